"""Where the tests find their data.

tests/data is enough for most: small vectors and files made for this project.  `shared` is the
larger collection of fixtures, which a checkout may have beside it; tests that need it are
skipped where it is missing.
"""
import os
import pathlib
import sys
import tarfile

import pytest
from hypothesis import settings

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
settings.register_profile("kshipra", deadline=None)     # a busy machine is no failure
settings.load_profile("kshipra")


@pytest.fixture(scope="session")
def shared():
    """The directory of the large fixtures: $KSHIPRA_SHARED, or shared/ beside the checkout."""
    named = os.environ.get("KSHIPRA_SHARED")
    for place in [pathlib.Path(named)] if named else [up / "shared" for up in list(HERE.parents)[1:3]]:
        if (place / "fixtures").is_dir():
            return place
    pytest.skip("no shared/fixtures beside the checkout, and KSHIPRA_SHARED names none")


def unpacked(name, tmp_path_factory):
    """Extract tests/data/NAME.tar.xz for this run and return where it lies."""
    place = tmp_path_factory.mktemp(name)
    with tarfile.open(HERE / "data" / f"{name}.tar.xz") as archive:
        archive.extractall(place)
    return place


@pytest.fixture(scope="session")
def formats(tmp_path_factory):
    """dequant/TYPE.blocks.bin and TYPE.f32.bin, quantize/input.f32.bin and TYPE.bin."""
    return unpacked("formats", tmp_path_factory)


@pytest.fixture(scope="session")
def malformed(tmp_path_factory):
    """manifest.json and the files it lists, good ones and bad ones."""
    return unpacked("malformed", tmp_path_factory) / "malformed"


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """llama/ and gpt2/: model.gguf, cases.json, logits_N.bin, made as shared/fixtures/README says.

    The first is llama-gqa-rope3 with BF16 matrices, the second gpt2 with F16 ones; both types
    hold the weights exactly.
    """
    return unpacked("models", tmp_path_factory) / "models"


@pytest.fixture(scope="session", params=["python", "native"])
def device(request):
    """What computes: every test of results runs on each that this machine has."""
    if request.param == "native":
        import kshipra
        try:
            kshipra.load(device="native")
        except kshipra.KshipraError as error:
            pytest.skip(f"no native code here: {error}")
    return request.param
