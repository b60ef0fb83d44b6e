"""Where the tests find their data.

tests/data is enough for most: small vectors and files made for this project.  `shared` is the
larger collection of fixtures, which a checkout may have beside it; tests that need it are
skipped where it is missing.

Two depths: `pytest tests` takes the few minutes that somebody waits for; `pytest --deep tests`
(or KSHIPRA_DEEP=1) runs the tests marked `deep` too, and more examples of every property.
"""
import os
import pathlib
import sys
import tarfile

import pytest
from hypothesis import HealthCheck, settings

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
BUSY = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}     # no failure
settings.register_profile("quick", max_examples=25, **BUSY)
settings.register_profile("deep", max_examples=200, **BUSY)


def pytest_addoption(parser):
    parser.addoption("--deep", action="store_true", default=bool(os.environ.get("KSHIPRA_DEEP")),
                     help="run the tests marked deep, and more examples of every property")


def pytest_configure(config):
    config.addinivalue_line("markers", "deep: takes long; run by --deep or KSHIPRA_DEEP=1 only")
    os.environ["KSHIPRA_DEEP"] = "1" if config.getoption("--deep") else ""  # for tiny.examples
    settings.load_profile("deep" if config.getoption("--deep") else "quick")


def is_deep(item):
    """@pytest.mark.deep, or deep(device="python"): with this parameter only."""
    return any(all(item.callspec.params.get(name) == value for name, value in mark.kwargs.items())
               for mark in item.iter_markers("deep"))


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--deep"):
        for item in filter(is_deep, items):
            item.add_marker(pytest.mark.skip(reason="deep: takes long; run it with --deep"))


@pytest.fixture(scope="session")
def shared():
    """The directory of the large fixtures: $KSHIPRA_SHARED, or shared/ beside the checkout."""
    named = os.environ.get("KSHIPRA_SHARED")
    beside = [pathlib.Path(named)] if named else [up / "shared" for up in HERE.parents[1:3]]
    for place in beside:
        if (place / "fixtures").is_dir():
            return place
    if named:
        pytest.fail(f"KSHIPRA_SHARED is {named}, which has no fixtures/")
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
