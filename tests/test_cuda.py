"""kshipra_cuda.py, on a machine without a GPU.

cuda_standin.cpp plays the driver and NVRTC: the same kernel source is compiled by the host's
compiler and run block by block.  Results are compared with == to those of the processor.
"""
import ctypes
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
from array import array

import pytest
import tiny

import kshipra
import kshipra_cuda

HERE = pathlib.Path(__file__).resolve().parent
DEEP = bool(os.environ.get("KSHIPRA_DEEP"))


class StandIn:
    """The stand-in's libraries in a tree like a system's, and its functions for tests."""

    def __init__(self, place):
        self.place = place
        (place / "toolkit" / "lib64").mkdir(parents=True)
        (place / "home").mkdir()
        self.driver = place / "libcuda.so.1"
        subprocess.run(["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden",
                        "-o", self.driver, HERE / "cuda_standin.cpp", "-ldl"], check=True)
        for name in ("libnvrtc.so.12", "libnvrtc-builtins.so.12.9"):
            shutil.copy(self.driver, place / "toolkit" / "lib64" / name)
        self.lib = ctypes.CDLL(str(self.driver))
        for name in ("held", "leaked", "touched", "calls"):
            getattr(self.lib, "standin_" + name).restype = ctypes.c_long
        self.lib.standin_bytes.restype = ctypes.c_size_t
        self.lib.standin_events.restype = ctypes.c_size_t

    def __getattr__(self, name):
        return getattr(self.lib, "standin_" + name)

    def log(self):
        """Return what has been done since the last call, line by line."""
        text = ctypes.create_string_buffer(1 << 22)
        assert self.events(text, ctypes.c_size_t(len(text))) <= len(text)
        return text.value.decode().splitlines()


@pytest.fixture(scope="session")
def standin(tmp_path_factory):
    if not shutil.which("g++") or sys.platform != "linux":
        pytest.skip("no g++ on Linux here, which plays NVRTC")
    return StandIn(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def card(standin, monkeypatch):
    """A machine with the stand-in as its only GPU.  After the test nothing is left on it."""
    monkeypatch.setattr(kshipra_cuda, "DRIVER_PLACES", {sys.platform: (str(standin.driver),)})
    monkeypatch.setattr(kshipra_cuda, "nvrtc_folders",      # and not a real one of this machine
                        lambda *_: [str(standin.place / "toolkit" / "lib64")])
    monkeypatch.setenv("STANDIN_HOME", str(standin.place / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(standin.place / "home"))
    standin.card(86, 12090, 1, ctypes.c_size_t(1 << 31))
    standin.leaked()
    yield standin
    standin.fail(None, -1, 0)
    assert standin.touched() == 0, "memory was written that belongs to nobody"
    assert standin.held() == 0


def same(found, expected):
    return [row.tobytes() for row in found] == [row.tobytes() for row in expected]


def compare(card, path, ids, other="native", gpu_layers=None, **options):
    """Compare the logits of all positions, then some greedy tokens, with another device's."""
    with kshipra.load(path, device=other, **options) as model:
        expected = model.logits(ids)
        text = list(model.generate(ids, max_tokens=6, temperature=0, ignore_eos=True))
    with kshipra.load(path, device="cuda", gpu_layers=gpu_layers, **options) as model:
        assert same(model.logits(ids), expected)
        assert list(model.generate(ids, max_tokens=6, temperature=0, ignore_eos=True)) == text
        assert model.ops.name == "cuda" and model.ops.isa == "sm_86"
    assert card.leaked() == 0


# 1. The driver

def test_without_a_driver_one_line_says_what_was_looked_for(monkeypatch, capsys):
    monkeypatch.setattr(kshipra_cuda, "DRIVER_PLACES", {
        sys.platform: ("libno-such-driver.so.1", "/no/such/place/libcuda.so.1")})
    assert kshipra.main(["--device", "cuda", "--prompt", "x"]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "libno-such-driver.so.1, /no/such/place/libcuda.so.1" in line
    assert "pip install nvidia-cuda-nvrtc" in line


def test_the_first_library_that_loads_is_taken(standin, tmp_path):
    """Only libcuda.so.1 is there, in WSL's folder, and a broken one stands before it."""
    broken = tmp_path / "libcuda.so"
    broken.write_bytes(b"no library")
    found, tried = kshipra_cuda.open_library([str(tmp_path / "none.so.1"), str(broken),
                                              str(standin.driver)])
    assert found._name == str(standin.driver) and tried is None
    found, tried = kshipra_cuda.open_library([str(tmp_path / "none.so.1"), str(broken)])
    assert found is None and str(tmp_path / "none.so.1") in tried
    assert f"{broken} (" in tried and "too short" in tried      # what is wrong with it


def test_wsl_and_the_soname_are_among_the_places():
    places = kshipra_cuda.DRIVER_PLACES["linux"]
    assert places[0] == "libcuda.so.1" and "/usr/lib/wsl/lib/libcuda.so.1" in places


def test_a_driver_that_lacks_a_function_is_too_old(standin):
    with pytest.raises(kshipra.KshipraError, match="cuNotThere, so it is too old"):
        kshipra_cuda.bind(standin.lib, {"cuInit": (), "cuNotThere": ()}, str)


def test_no_device(card):
    card.card(86, 12090, 0, ctypes.c_size_t(1 << 31))
    with pytest.raises(kshipra.KshipraError, match="cuInit: CUDA_ERROR_NO_DEVICE .*CUDA_VIS"):
        kshipra.load(device="cuda")


# 2. The compiler

def tree(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def names(pairs):
    return [tuple(os.path.basename(path) for path in pair) for pair in pairs]


def test_both_libraries_come_from_one_folder(tmp_path):
    """P36: a folder that lacks the builtins gives nothing, even if another folder has them."""
    tree(tmp_path, "a/libnvrtc.so.12", "b/libnvrtc-builtins.so.12.9",
         "c/libnvrtc.so.12", "c/libnvrtc-builtins.so.12.4", "c/libnvrtc.alt.so.12",
         "d/libnvrtc.so.13", "d/libnvrtc-builtins.so.12.9")
    pairs = [names(kshipra_cuda.nvrtc_pairs(tmp_path / folder)) for folder in "abcd"]
    assert pairs == [[], [], [("libnvrtc-builtins.so.12.4", "libnvrtc.so.12")], []]


@pytest.mark.parametrize("builtins, main", [
    ("libnvrtc-builtins.so.12.9", "libnvrtc.so.12"),
    ("libnvrtc-builtins-6c5639ce.so.11.2", "libnvrtc-672ee683.so.11.2"),     # torch's
    ("nvrtc-builtins64_129.dll", "nvrtc64_120_0.dll")])
def test_names_of_nvrtc(tmp_path, builtins, main):
    tree(tmp_path, builtins, main)
    assert names(kshipra_cuda.nvrtc_pairs(tmp_path)) == [(builtins, main)]


def test_two_toolkits_in_one_folder_do_not_mix(tmp_path):
    tree(tmp_path, "libnvrtc.so.12", "libnvrtc-builtins.so.12.9", "libnvrtc.so.13",
         "libnvrtc-builtins.so.13.0")
    assert names(kshipra_cuda.nvrtc_pairs(tmp_path)) == [
        ("libnvrtc-builtins.so.13.0", "libnvrtc.so.13"),
        ("libnvrtc-builtins.so.12.9", "libnvrtc.so.12")]


def test_where_nvrtc_is_looked_for(tmp_path):
    """The toolkit that is named, the system's, pip's wheels, torch's copy: in this order."""
    root, site = tmp_path / "root", tmp_path / "site"
    tree(root, "usr/local/cuda-12.4/lib64/x", "usr/local/cuda-13.0/lib64/x")
    tree(site, "nvidia/cuda_nvrtc/lib/x", "nvidia/cu13/lib/x", "torch/lib/x")
    folders = kshipra_cuda.nvrtc_folders({"CUDA_HOME": "/named"}, [str(site)], str(root))
    wanted = ["/named/lib64", root / "usr/local/cuda/lib64", root / "usr/local/cuda-13.0/lib64",
              root / "usr/local/cuda-12.4/lib64", site / "nvidia/cu13/lib",
              site / "nvidia/cuda_nvrtc/lib", site / "torch/lib"]
    at = [folders.index(str(folder)) for folder in wanted]
    assert at == sorted(at)


@pytest.mark.parametrize("archs, compute, target", [
    ([50, 60, 61, 75, 80, 86, 90], 86, ("--gpu-architecture=sm_86", True)),
    ([50, 60, 61, 75, 80, 90], 86, ("--gpu-architecture=sm_80", True)),     # runs on 8.6
    ([50, 60, 61, 75, 80, 90], 120, ("--gpu-architecture=compute_90", False)),
    ([50, 60, 61, 75], 86, ("--gpu-architecture=compute_75", False)),
    ([75, 80, 86, 90], 50, (None, False))])         # CUDA 13 knows no Maxwell
def test_cubin_or_ptx(archs, compute, target):
    """P37: the highest that runs on the device; PTX for a device newer than the compiler."""
    assert kshipra_cuda.choose_target(archs, compute) == target


def test_ptx_of_a_newer_toolkit_than_the_driver_is_refused_at_once(card):
    card.card(120, 11000, 1, ctypes.c_size_t(1 << 31))
    with pytest.raises(kshipra.KshipraError, match="no code for compute capability 12.0 under a "
                       "driver for CUDA 11.0.*pip install"):
        kshipra.load(device="cuda")


def test_no_nvrtc_names_all_places(card, monkeypatch, tmp_path):
    monkeypatch.setattr(kshipra_cuda, "nvrtc_folders", lambda *_: [str(tmp_path), "/no/where"])
    with pytest.raises(kshipra.KshipraError, match=f"{re.escape(str(tmp_path))}, /no/where.*pip"):
        kshipra.load(device="cuda")


def test_the_cache_is_keyed_by_all_that_matters_and_survives_damage(card, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = 'extern "C" __global__ void __launch_bounds__(1)\nf(int *x) {\n}\n'
    device = kshipra_cuda.Device()
    compiler, seen = device.compiler, []
    monkeypatch.setattr(compiler, "_compile", lambda text: seen.append(text) or b"code of " +
                        text.encode())
    first = compiler.compile(source)
    assert compiler.compile(source) == first and len(seen) == 1
    for name, value in (("target", "--gpu-architecture=sm_80"), ("binary", False),
                        ("version", (12, 8)), ("driver_version", (12, 8))):
        monkeypatch.setattr(compiler, name, value)
        compiler.compile(source)
    compiler.compile(source + " ")
    assert len(seen) == 6
    files = sorted((tmp_path / "kshipra").iterdir())
    assert len(files) == 6 and {file.suffix for file in files} == {".cubin", ".ptx"}
    for file in files:
        file.write_bytes(file.read_bytes()[:-1])            # cut short
    compiler.compile(source + " ")
    assert len(seen) == 7
    monkeypatch.setattr(compiler, "cache", str(tmp_path / "kshipra" / files[0].name / "below"))
    assert compiler.compile(source + " ") and len(seen) == 8        # no such folder: go without
    device.close()


def test_what_does_not_compile_says_why(card):
    device = kshipra_cuda.Device()
    with pytest.raises(kshipra.KshipraError, match="nvrtcCompileProgram: NVRTC_ERROR_COMPILATION "
                       r".*error"):
        device.compiler.compile('extern "C" __global__ void __launch_bounds__(1)\nf(int *x) {\n'
                                "not C\n}\n")
    device.close()


# 3. Memory

def test_pages_on_the_card_are_sliced_like_bytes(card):
    """Some layers on the card, some not: whatever is written, in any piece, is read again."""
    layers, rng = [(2, 8)] * 3, random.Random(1)
    device = kshipra_cuda.Device()
    for n_host in range(4):
        pool = kshipra_cuda.DevicePool(device, n_host, layers, 3, 16, "f16")
        size = 3 * pool.page_bytes
        expected = bytearray(size)
        for _ in range(50):
            a, b = sorted(rng.randrange(size + 1) for _ in range(2))
            expected[a:b] = piece = rng.randbytes(b - a)
            pool.arena[a:b] = piece
            a, b = sorted(rng.randrange(size + 1) for _ in range(2))
            assert pool.arena[a:b] == expected[a:b]
        del pool
    device.close()
    assert card.leaked() == 0


def test_too_little_memory(card):
    card.card(86, 12090, 1, ctypes.c_size_t(1 << 16))
    with pytest.raises(kshipra.KshipraError, match="cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY .*"
                       "smaller ctx_size"):
        with kshipra.load(device="cuda") as model:
            model.logits([1, 2, 3])


def call_by_call(card, work):
    """Return how many calls of the libraries `work` makes."""
    card.calls()
    work()
    return card.calls()


def test_every_failure_is_one_clear_error_and_leaves_nothing(card, tmp_path):
    """Each call in turn refuses, from the first one to those of the last token."""
    path = tmp_path / "tiny.gguf"
    tiny.write(path, "llama", n_layers=1)

    def work():
        with kshipra.load(path, device="cuda") as model:
            model.logits([1, 2, 3])
            list(model.generate([1, 2], max_tokens=2, temperature=0, ignore_eos=True))

    work()                              # so that all is compiled
    n_calls = call_by_call(card, work)
    card.leaked()
    assert n_calls > 100
    whats = set()
    for i in range(n_calls) if DEEP else random.Random(1).sample(range(n_calls), 40):
        card.fail(None, i, 719)
        try:
            work()
        except kshipra.KshipraError as error:
            assert "\n" not in str(error)
            what = re.match(r"(cu|nvrtc)\w+: |no NVRTC that fits", str(error))
            assert what, str(error)
            whats.add(what[0])
        card.fail(None, -1, 0)
        if card.bytes():                # the release itself was refused: the process would end
            card.lib.cuCtxSetCurrent(ctypes.c_void_p(1))
            card.lib.cuDevicePrimaryCtxRelease_v2(0)
    assert len(whats) > 8
    card.leaked()


def test_a_failed_card_says_so_from_then_on(card):
    model = kshipra.load(device="cuda")
    model.logits([1, 2])
    card.fail(b"cuGraphLaunch", 0, 700)
    with pytest.raises(kshipra.KshipraError, match="cuGraphLaunch: CUDA_ERROR_ILLEGAL_ADDRESS"):
        model.logits([1, 2])
    assert card.bytes() == 0 and card.leaked() == 0
    with pytest.raises(kshipra.KshipraError, match="computes no more .*cuGraphLaunch.*load"):
        model.logits([1, 2])
    model.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_is_refused(card):
    with kshipra.load(device="cuda") as model:
        expected = model.logits([1, 2])
        child = os.fork()
        if not child:
            try:
                model.logits([1, 2])
                os._exit(1)
            except kshipra.KshipraError as error:
                os._exit(0 if "forked" in str(error) else 2)
        assert os.waitpid(child, 0)[1] == 0
        assert same(model.logits([1, 2]), expected)


# 4. Kernels

def on_card(*trials):
    """Return, for each trial, the rows, as bytes, of an operation of 4.4 recorded by itself.

    trials: (operation, inputs), as in chapter 19; all in one program, so that one compiler runs
    """
    device = kshipra_cuda.Device()
    weights, places = kshipra_cuda.DeviceWeights(device), []

    def write_down(base):
        program = kshipra.Program(kshipra.types.SimpleNamespace(address=base, n_bytes=0))
        recording = kshipra_cuda.CudaRecording(program, weights, 4, 1, 1)
        places[:] = [[recording.buffer(len(x), len(x[0]) if isinstance(x[0], array) else 1)
                      for x in inputs] for _, inputs in trials]
        return program, [recording.done(operation(recording, *(
            place if isinstance(x[0], array) else kshipra.Index(place.address, len(x))
            for place, x in zip(own, inputs))))
            for (operation, inputs), own in zip(trials, places)]

    with device.at_work():
        n_bytes = write_down(0)[0].peak_bytes
        program, outs = write_down(device.alloc(n_bytes))
        weights.fill(3)
        for (_, inputs), own in zip(trials, places):
            for place, x in zip(own, inputs):
                rows = x if isinstance(x[0], array) else [array("i", x)]
                data = bytearray(b"".join(map(bytes, rows)))
                device.upload(place.address, kshipra.address_of(data), len(data))
        keys = list(dict.fromkeys(line.key for line in program.lines))
        symbols = [kshipra_cuda.symbol_of(*key) for key in keys]
        found = device.functions(kshipra_cuda.source_of(keys), symbols)
        functions = {key: found[symbol] for key, symbol in zip(keys, symbols)}
        for line in program.lines:
            kshipra_cuda.launch(device, functions, line)
        device.synchronize()
        rows = [[device.download(out.address + r * out.row_bytes, out.row_bytes)
                 for r in range(out.n_rows)] for out in outs]
    device.close()
    return rows


def trial_of(call):
    return kshipra.KERNELS[call.kernel].trial(call)


def check_trials(*trials):
    """Compare what the card and what plain Python compute."""
    plain = kshipra.Reference()
    assert on_card(*trials) == [[row.tobytes() for row in operation(plain, *inputs)]
                                for operation, inputs in trials]


SIMPLE = ["add", "mul", "scale", "silu", "gelu", "silu_mul", "gelu_mul", "gelu_erf",
          "swiglu_clamped", "gate", "softcap", "rms_norm",
          "layer_norm", "rows", "argmax", "route"]


def test_every_kernel_equals_its_definition(card):
    tables = [kshipra.RopeTable(pairing, [1.0, 0.3, 0.01]) for pairing in ("interleaved", "half")]
    calls = [kshipra.Call(kernel, (), {}, 1, None) for kernel in SIMPLE]
    calls += [kshipra.Call("rope", (table.pairing,), {}, 1, table) for table in tables]
    check_trials(*map(trial_of, calls))


def format_trials(format):
    """A matrix for 1, 3 and 9 rows, rows of an embedding, and the picks of a mixture."""
    n_in = 512 if format.sub_len else 37
    trials = [trial_of(kshipra.Call(kernel, (format, n_in), {}, 1, None))
              for kernel in ("embed", "pick")]
    for n_rows in (1, 3, 9):
        matrix = kshipra._trial_tensor(format, 11, n_in, random.Random(n_rows))
        trials.append((lambda ops, x, matrix=matrix: ops.matmul(matrix, x),
                       [kshipra.trial_rows(n_rows, n_in)]))
    return trials


ALL_FORMATS = list(kshipra.FORMATS.values())


@pytest.mark.parametrize("first", range(0, len(ALL_FORMATS), 8))
def test_every_format(card, first):
    trials = [trial for format in ALL_FORMATS[first:first + 8] for trial in format_trials(format)]
    check_trials(*trials)


def test_exp_and_long_rows(card):
    """silu of values in all sizes, among them where exp is clamped, and of zeros and denormals;
    norms of rows that take more than one tile."""
    rng = random.Random(3)
    x = [array("f", [rng.uniform(-100, 100) * 2.0 ** rng.randrange(-149, 1) for _ in range(3000)]
               + [0.0, -0.0, 1e-45, -1e-45, 87.0, -87.0, 88.0, 88.5, -88.5, 3e38, -3e38])]
    n = 2 * 2048 + 77
    long = [array("f", [rng.uniform(-2, 2) for _ in range(n)]) for _ in range(2)]
    w, b = (array("f", [rng.uniform(-2, 2) for _ in range(n)]) for _ in range(2))
    check_trials((lambda ops, x: ops.silu(x), [x]),
                 (lambda ops, x: ops.rms_norm(x, w, 1e-5), [long]),
                 (lambda ops, x: ops.layer_norm(x, w, b, 1e-5), [long]))


# 5. Whole models

@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_models_give_the_logits_of_plain_python(card, models, name):
    path = models / name / "model.gguf"
    cases = json.loads((models / name / "cases.json").read_text())["cases"]
    compare(card, path, cases[0]["ids"][:20], "python")


WINDOWS = dict.fromkeys(("gemma2", "gemma3"), {"attention__sliding_window": 16})


@pytest.mark.parametrize("arch", ["mixtral", "qwen3moe", "gemma2", "gemma3", "qwen2", "qwen3"])
def test_architectures(card, arch, tmp_path):
    """The window of the gemmas is shorter than the text."""
    path = tmp_path / "tiny.gguf"
    tiny.write(path, arch, format="Q8_0", **WINDOWS.get(arch, {}))
    compare(card, path, tiny.ids(40))


@pytest.mark.parametrize("kv_type, page_size", [
    ("f32", 8), ("f16", 64), ("q8_0", None), *[pytest.param(kv_type, size, marks=pytest.mark.deep)
    for kv_type in ("f32", "f16", "q8_0") for size in (None, 8, 64, 128)]])
def test_caches(card, kv_type, page_size, tmp_path):
    path = tmp_path / "tiny.gguf"
    tiny.write(path, "llama", format="Q4_1", head_dim=32)
    compare(card, path, tiny.ids(70), kv_type=kv_type, page_size=page_size)


@pytest.mark.parametrize("arch", ["llama", "gemma2"])
def test_a_long_context_is_divided_by_position(card, arch, tmp_path):
    """Beyond LONG_POSITIONS each head's attention has many blocks, and the same bits."""
    path = tmp_path / "tiny.gguf"
    tiny.write(path, arch, n_layers=1, n_ctx=1024, **WINDOWS.get(arch, {}))
    ids = tiny.ids(300)
    with kshipra.load(path, device="native", page_size=16) as model:
        expected = list(model.generate(ids, max_tokens=5, temperature=0, ignore_eos=True))
        seq = kshipra.Sequence(model.cache)
        rows = model.step([(t, i, seq) for i, t in enumerate(ids)])
        last = model.step([(7, 300, seq)])
    with kshipra.load(path, device="cuda", page_size=16) as model:
        assert list(model.generate(ids, max_tokens=5, temperature=0, ignore_eos=True)) == expected
        seq = kshipra.Sequence(model.cache)
        for a in range(0, 300, 150):
            assert same(model.step([(t, a + i, seq) for i, t in enumerate(ids[a:a + 150])]),
                        rows[a:a + 150])
        card.log()
        assert same(model.step([(7, 300, seq)]), last)
        assert any(line.startswith("attention_merge") for line in card.log())


def test_rows_of_many_texts_and_shared_pages(card, tmp_path):
    path = tmp_path / "tiny.gguf"
    tiny.write(path, "llama", format="Q4_0")
    prompts = [tiny.ids(n, n) for n in (3, 19, 40)]
    results = []
    for device in ("native", "cuda"):
        with kshipra.load(path, device=device, page_size=8) as model:
            batch = [list(g) if not isinstance(g, str) else g for g in model.generate_batch(
                prompts, max_tokens=6, temperature=0, ignore_eos=True)]
            seq = kshipra.Sequence(model.cache)
            model.step([(t, i, seq) for i, t in enumerate(prompts[1])])
            fork = seq.fork()           # its last page is shared, and copied when it is written
            a = model.step([(5, 19, seq), (6, 19, fork)])
            b = model.step([(7, 20, fork), (7, 20, seq)])
            results.append((batch, [row.tobytes() for row in a + b]))
    assert results[0] == results[1]


def test_a_session_goes_on_on_the_other_device(card, tmp_path):
    """Keys and values that one device computed are read by the other."""
    path, saved = tmp_path / "tiny.gguf", tmp_path / "session"
    tiny.write(path, "llama")
    ids = tiny.ids(50)
    with kshipra.load(path, device="native") as model:
        expected = list(model.generate(ids, max_tokens=8, temperature=0, ignore_eos=True))
    for first, second in (("native", "cuda"), ("cuda", "native")):
        with kshipra.load(path, device=first) as model:
            list(model.generate(ids, max_tokens=1, temperature=0))
            model.save_session(saved)
        with kshipra.load(path, device=second) as model:
            model.load_session(saved)
            assert list(model.generate(ids, max_tokens=8, temperature=0,
                                       ignore_eos=True)) == expected


@pytest.mark.parametrize("gpu_layers", range(5))
def test_layers_divided_between_processor_and_card(card, gpu_layers, tmp_path):
    """From none of the layers on the card, only the head, to all and more than there are."""
    path = tmp_path / "tiny.gguf"
    tiny.write(path, "qwen3moe" if gpu_layers % 2 else "llama", format="Q4_0", n_layers=3)
    compare(card, path, tiny.ids(40), gpu_layers=gpu_layers, threads=2, page_size=16)


def test_gpu_layers_is_for_the_card(card):
    with pytest.raises(kshipra.KshipraError, match="gpu_layers is for device 'cuda'"):
        kshipra.load(device="native", gpu_layers=1)
    with pytest.raises(kshipra.KshipraError, match="gpu_layers is -1"):
        kshipra.load(device="cuda", gpu_layers=-1)


def test_no_order_of_blocks_and_warps_changes_a_bit(card):
    found = set()
    for seed in range(20 if DEEP else 5):
        card.seed(seed)
        with kshipra.load(device="cuda") as model:
            found.add(b"".join(row.tobytes() for row in model.logits(list(range(9)))))
    assert len(found) == 1


def test_a_token_is_one_graph(card):
    """Its calls: take the context, launch, wait; and now and then the angles of new positions."""
    with kshipra.load(device="cuda") as model:
        seq = kshipra.Sequence(model.cache)
        for pos in range(70):
            model.step([(1, pos, seq)])
        card.calls()
        model.step([(1, 70, seq)])
        assert card.calls() == 3


def test_a_damaged_model_is_told(card, tmp_path):
    path = tmp_path / "tiny.gguf"
    name, values = "blk.0.attn_norm.weight", array("f", [float("inf")] * 32).tobytes()
    tiny.write(path, "llama", change=lambda _, tensors: tensors.update({
        name: kshipra.Tensor(name, kshipra.FORMATS["F32"], (32,), values)}))
    with kshipra.load(path, device="cuda") as model:
        with pytest.raises(kshipra.KshipraError, match="infinite or not a number"):
            model.logits([1, 2, 3])


def fixture_files(shared):
    for path in sorted((shared / "fixtures" / "models").glob("*/*")):
        if path.suffix == ".gguf" or path.is_dir():
            yield path


@pytest.mark.deep
def test_all_fixture_models(card, shared):
    n_compared = 0
    for path in fixture_files(shared):
        try:
            kshipra.load(path, device="python").close()
        except kshipra.KshipraError:    # an architecture or a file that kshipra does not read
            continue
        for case in json.loads((path.parent / "cases.json").read_text())["cases"]:
            compare(card, path, case["ids"][:80])       # the emulation takes its time
            n_compared += 1
    assert n_compared > 40


# 6. The real compiler, where it is installed; no GPU is needed for that

def all_keys(formats):
    """Return the keys of every kernel, as models of these formats would name them."""
    keys = [(name, ()) for name in (*kshipra_cuda.ELEMENTWISE, "gate", "quantize", "rms_norm",
                                    "layer_norm", "rows", "argmax", "route", "mix")]
    keys += [("rope", (pairing,)) for pairing in ("half", "interleaved")]
    keys += [(name, (kv_type, 128)) for name in ("kv_store", "attention")
             for kv_type in kshipra.KV_TYPES] + [("attention_merge", (128,))]
    for format in formats:
        if format.sub_len:
            keys += [(name, (format, 2048)) for name in ("embed", "pick")]
            keys += [("matvec", (format, 2048, rows)) for rows in kshipra_cuda.ROWS_AT_ONCE]
        else:
            keys += [(name, (format, 2048)) for name in ("embed_float", "matvec_float",
                                                         "pick_float")]
    assert {name for name, _ in keys} == {*kshipra_cuda.KERNELS} or len(formats) == 1
    return keys


@pytest.fixture(scope="module")
def nvrtc():
    """Return a function: compute capability -> Compiler, of the real NVRTC."""
    for folder in kshipra_cuda.nvrtc_folders({}, sys.path):
        for builtins, main in kshipra_cuda.nvrtc_pairs(folder):
            ctypes.CDLL(builtins, ctypes.RTLD_GLOBAL)
            library = ctypes.CDLL(main)
            return lambda compute: kshipra_cuda.Compiler(library, main, compute, (99, 0), "")
    pytest.skip("no NVRTC here; pip install nvidia-cuda-nvrtc-cu12")


COMMON = [kshipra.FORMATS[name] for name in ("F32", "F16", "Q4_0", "Q4_K", "Q6_K", "Q8_0")]


@pytest.mark.deep
@pytest.mark.parametrize("compute", [50, 61, 75, 80, 90])
def test_every_kernel_really_compiles(nvrtc, compute, monkeypatch):
    """For each architecture: a cubin, no warning, and no spill of a register."""
    compiler = nvrtc(compute)
    if compiler.target is None:
        pytest.skip(f"this NVRTC, {compiler.version}, knows no sm_{compute}")
    assert (compiler.target, compiler.binary) == (f"--gpu-architecture=sm_{compute}", True)
    monkeypatch.setattr(kshipra_cuda, "OPTIONS", (*kshipra_cuda.OPTIONS, "--ptxas-options=-v"))
    logs, call = [], compiler.nvrtc.nvrtcCompileProgram

    def compile_and_log(program, *args):
        status, size = call(program, *args), ctypes.c_size_t()
        compiler.nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        compiler.nvrtc.nvrtcGetProgramLog(program, log)
        logs.append(log.value.decode())
        return status
    monkeypatch.setattr(compiler.nvrtc, "nvrtcCompileProgram", compile_and_log)
    code = compiler._compile(kshipra_cuda.source_of(all_keys(COMMON)))
    assert code[:4] == b"\x7fELF"
    print(logs[0])                      # registers and shared memory of each kernel
    assert not re.search(r"kshipra\.cu.*warning", logs[0])      # NVRTC's on old cards are its own
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", logs[0])
    assert len(spills) >= len(all_keys(COMMON)) and set(spills) == {("0", "0")}


def divides(ptx):
    """Return the names of the kernels of a PTX text that divide or take a root."""
    return {name for name, body in re.findall(r"\.entry (\w+)\((.*?)\n}", ptx, re.S)
            if re.search(r"\b(div|sqrt)\.rn\.f32", body)}


@pytest.mark.deep
def test_no_fused_multiply_add_on_floats(nvrtc, monkeypatch, tmp_path):
    """None in the PTX of any kernel of any format.  The assembled code has them within its own
    division and root only, whose results round once: so none in kernels without these."""
    compiler, source = nvrtc(90), kshipra_cuda.source_of(all_keys(ALL_FORMATS))
    monkeypatch.setattr(compiler, "binary", False)
    ptx = compiler._compile(source).decode()
    assert "mul.rn.f32" in ptx and not re.search(r"\b(fma|mad)\.\S*f(16|32|64)", ptx)
    found = [shutil.which("nvdisasm")] + [str(path) for place in sys.path for path in
                                          pathlib.Path(place).glob("nvidia/*/bin/nvdisasm")]
    nvdisasm = next(filter(None, found), None)
    if nvdisasm is None:
        pytest.skip("no nvdisasm here; pip install nvidia-cuda-nvdisasm")
    monkeypatch.setattr(compiler, "binary", True)
    (tmp_path / "all.cubin").write_bytes(compiler._compile(source))
    text = subprocess.run([nvdisasm, "-c", tmp_path / "all.cubin"], check=True,
                          capture_output=True, text=True).stdout
    fused, kernel = set(), None
    for line in text.splitlines():
        section = re.match(r"\.text\.(\w+):", line.strip())
        kernel = section[1] if section else kernel
        if re.search(r"\b[FD]FMA\b", line):
            fused.add(kernel)
    assert "FMUL" in text and fused <= divides(ptx)
    assert not any(name.startswith(("matvec", "pick", "embed", "add", "mul")) for name in fused)
