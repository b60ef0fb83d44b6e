"""Chapter 19: what the machine computes wrongly, or refuses, is noticed before it is believed."""
import math
import os
import random
from array import array

import pytest
from hypothesis import given, strategies as st

import kshipra
import tiny
from test_programs import IDS, engine, native_shared, reference, run

pytestmark = pytest.mark.skipif(tiny.REFUSAL is not None,
                                reason=str(tiny.REFUSAL))


@pytest.fixture(scope="module")
def truth():
    return run(reference(), IDS)


def test_a_wrong_kernel_is_found_and_the_reference_goes_on(monkeypatch, capsys, truth):
    """P33, P35: what the machine computes wrongly is noticed before it is believed."""
    def emit_add_wrong(k):
        kshipra.emit_mul(k)
    emit_add_wrong.__name__ = "emit_add"
    monkeypatch.setitem(kshipra.KERNELS, "add",
                        kshipra.KERNELS["add"]._replace(emit=emit_add_wrong))
    e = engine()
    assert run(e, IDS[:20]) == truth[:20]
    assert isinstance(e.ops, kshipra.Reference)
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "add" in message and "plain Python" in message


def dead(kernel):
    """Return a row of the register whose code has the arguments of another's, and does nothing."""
    def emit_dead(k, *parameters, **options):
        k.fields.update(kshipra.build(kernel.emit, *parameters, **options).fields)
    return kernel._replace(emit=emit_dead)


FAULTY = {"llama": ("embed quantize matvec matmul add mul silu_mul rms_norm rows rope kv_store "
                    "attention argmax compact exp_sum run alone sequence").split(),
          "gpt2": ["layer_norm", "gelu"], "gemma2": ["scale", "gelu_mul", "softcap"],
          "mixtral": ["route", "mix", "pick", "matmul_float"], "falcon": ["gelu_erf"],
          "gpt-oss": ["swiglu_clamped"], "qwen2moe": ["gate"]}


@pytest.mark.parametrize("arch, name", [(a, name) for a in FAULTY for name in FAULTY[a]])
def test_each_kernel_is_tried_before_it_is_believed(monkeypatch, tmp_path, capsys, arch, name):
    """P33, P35: whichever is wrong, one line says so, and the text is that of plain Python."""
    path = tiny.write(tmp_path / "m.gguf", arch, format="Q8_0", hidden=32, ffn=64,
                      window=8 if arch == "gemma2" else 0)
    options = dict(max_tokens=4, ignore_eos=True, temperature=1.3, top_k=0, top_p=0.9, seed=3)
    expected = list(kshipra.load(path, "python").generate_ids(tiny.ids(20), **options))
    monkeypatch.setitem(kshipra.KERNELS, name, dead(kshipra.KERNELS[name]))
    model = kshipra.load(path)
    assert list(model.generate_ids(tiny.ids(20), **options)) == expected
    assert isinstance(model.ops, kshipra.Reference)
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "plain Python" in message


def test_a_faulty_merge_is_found_when_it_is_first_needed(monkeypatch, truth, capsys):
    monkeypatch.setattr(kshipra, "LONG_POSITIONS", 20)
    monkeypatch.setitem(kshipra.KERNELS, "attention_merge", dead(
        kshipra.KERNELS["attention_merge"]))
    e = engine(n_threads=2)
    assert run(e, IDS, [18, 1, 1, 1, 1, 40, 1, 3, 8, 64, 13]) == truth
    assert isinstance(e.ops, kshipra.Reference) and "attention_merge" in capsys.readouterr().err


def test_every_kernel_is_tried_or_within_another():
    """Of those that compute; the sampler's are checked together, `run` in each trial."""
    named = {name for names in FAULTY.values() for name in names}
    assert named | {"silu", "attention_merge", "mode", "encode"} == set(kshipra.KERNELS)


def test_every_kernel_has_a_trial_or_says_what_runs_it_and_can_be_listed():
    for name, kernel in kshipra.KERNELS.items():
        assert kernel.emit.__name__ == "emit_" + name
        assert callable(kernel.trial) or len(kernel.trial) > 10
        assert kernel.listed
    names = [own for kernel in kshipra.KERNELS.values() for own in kernel.listed]
    assert len(names) == len(set(names))
    assert "add_f32" in kshipra.kernel_listing("add")


@pytest.mark.parametrize("profiled", [False, True])
@pytest.mark.parametrize("n", range(0, 28, 3))
def test_a_refusal_to_compile_at_any_time(monkeypatch, tmp_path, capsys, n, profiled):
    """The n-th kernel gets no executable memory: plain Python goes on, also under a profile."""
    path = tiny.write(tmp_path / "m.gguf", format="Q8_0")
    options = dict(max_tokens=5, temperature=1.3, top_k=0, seed=3)
    expected = list(kshipra.load(path, "python").generate_ids(tiny.ids(20), **options))
    compiled, right = [], kshipra.compile_kernels

    def refuse(kernels, isa):
        compiled.append(kernels)
        return right(kernels, isa) if len(compiled) <= n else (None, "no memory for code")
    monkeypatch.setattr(kshipra, "compile_kernels", refuse)
    model = kshipra.load(path)
    if profiled:
        found = kshipra.profile(model, tiny.ids(20), 3)
        assert {line["operation"] for line in found["decode"]} & {"matmul Q8_0"}
        assert not isinstance(model.ops, kshipra.Profile)
    assert list(model.generate_ids(tiny.ids(20), **options)) == expected
    if len(compiled) > n:
        assert isinstance(model.ops, kshipra.Reference)
        assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(kshipra.KshipraError, match='use device="python"'):
        monkeypatch.setattr(kshipra, "compile_kernels", lambda kernels, isa: (None, "no memory"))
        kshipra.load(path, "native")


@tiny.examples(8)
@given(n=st.sampled_from([1, 7, 8, 9, 100, 4095, 4096, 5001]), k=st.integers(1, 300),
       seed=st.integers(0, 99), ties=st.booleans())
def test_long_rows_are_searched_as_the_reference_does(n, k, seed, ties):
    rng = random.Random(seed)
    row = array("f", [rng.randrange(-20, 20) if ties else rng.gauss(0, 5) for _ in range(n)])
    native, plain = native_shared().ops, kshipra.Reference()
    assert native.largest(row, k) == plain.largest(row, k)
    assert native.exp_sum(row, max(row)) == plain.exp_sum(row, max(row))


@pytest.mark.parametrize("fmt", kshipra.FORMATS.values(), ids=lambda fmt: fmt.name)
def test_the_trials_of_every_format_agree_and_are_of_finite_numbers(fmt):
    native, n_in = native_shared().ops, 2 * max(fmt.block_len, 32)
    kernels = [("embed", (fmt, n_in)), ("pick", (fmt, n_in))]
    if fmt.sub_len is None:
        kernels.append(("matmul_float", (fmt, n_in)))
    else:
        kernels.append(("matmul", (fmt, n_in, 8, native.isa in kshipra.FULL_U8)))
        kernels += [("matvec", (fmt, n_in, 8, n_rows))
                    for n_rows in range(1, 1 + kshipra.matvec_rows(fmt))]
    for kernel, parameters in kernels:
        call = kshipra.Call(kernel, parameters, {}, 1, None)
        operation, inputs = kshipra.KERNELS[kernel].trial(call)
        for row in operation(kshipra.Reference(), *inputs):
            assert all(map(math.isfinite, row)) and len(set(row)) > 2
        kshipra.check_kernel(native, call)


@pytest.mark.parametrize("ctx_size", [2, 16, 53])
def test_a_context_shorter_than_the_trials_is_no_danger(tmp_path, ctx_size):
    """The trial of attention is at positions 61 to 65; this model's tables have no room."""
    path = tiny.write(tmp_path / "m.gguf", head_dim=256)
    ids = [3] * ctx_size
    got = run(engine(kshipra.open_checkpoint(path), ctx_size=ctx_size), ids)
    assert got == run(reference(kshipra.open_checkpoint(path), ctx_size=ctx_size), ids)


def test_a_trial_larger_than_its_memory_gets_more():
    """Nine rows of 160,000 numbers are 5.8 MB."""
    native = kshipra.Native(kshipra.choose_isa(os.environ)[0], 1)
    x = [array("f", range(160_000)) for _ in range(9)]
    got, _ = kshipra.compute_alone(native, lambda ops, x: ops.mul(x, 0.5), [x])
    assert got == [row.tobytes() for row in kshipra.Reference().mul(x, 0.5)]


# The host's floating-point mode

FLUSH = {"x86-64": 0x1F80 | 0x8040, "arm64": 1 << 24}   # tiny results and operands are zero
UP = {"x86-64": 0x1F80 | 0x4000, "arm64": 1 << 22}      # rounds towards plus infinity


def emit_set_mode(k):
    """Note the thread's mode, then change it."""
    before, mode = k.args("before", "mode")
    k.save_mode(before, 0)
    k.load_mode(mode, 0)


class Mode:
    """with Mode(bits): this thread computes floats so; `after` is what it was at the end."""

    def __init__(self, bits):
        self.code, _ = kshipra.compile_kernels([kshipra.build(emit_set_mode)],
                                               kshipra.choose_isa(os.environ)[0])
        self.bits, self.host, self.after = array("q", (bits,)), array("q", (0,)), array("q", (0,))

    def change(self, before, mode):
        args = array("q", (before.buffer_info()[0], mode.buffer_info()[0]))
        self.code.function(0)(args.buffer_info()[0], 0, 0)

    def __enter__(self):
        self.change(self.host, self.bits)
        return self

    def __exit__(self, *_):
        self.change(self.after, self.host)
        self.code.close()


def tiny_logits(metadata, tensors):
    """Make a model's logits too small for f32's full precision."""
    w = tensors["output.weight"]
    values = array("f", [v * 2.0 ** -132 for v in w.floats()])
    tensors["output.weight"] = kshipra.Tensor(w.name, w.format, w.shape, values.tobytes())


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("recorded", [False, True])
def test_the_host_may_flush_tiny_numbers_to_zero(tmp_path, capsys, n_threads, recorded):
    """As libraries built with fast-math do: the same bits, and the host's mode is left to it."""
    path = tiny.write(tmp_path / "m.gguf", change=tiny_logits)
    expected = run(reference(kshipra.GGUF(path)), IDS[:20])
    row = array("f", [-i * 1.3 for i in range(80)])
    total = kshipra.Reference().exp_sum(row, 0.0)
    assert 0 < max(array("f", expected[7])) < 2.0 ** -126
    e = engine(kshipra.GGUF(path), n_threads)
    if recorded:
        assert run(e, IDS[:20]) == expected
    with Mode(FLUSH[kshipra.MACHINE]) as mode:
        found, found_total = run(e, IDS[:20]), e.exp_sum(row, 0.0)
    assert found == expected and found_total == total and isinstance(e.ops, kshipra.Native)
    assert mode.after[0] & 0x1FFFFC0 == mode.bits[0] & 0x1FFFFC0        # less the sticky flags
    assert run(e, IDS[:20]) == expected and capsys.readouterr().err == ""


def test_plain_python_refuses_a_host_that_computes_otherwise():
    """It has no say in how the processor computes, and a wrong answer would look right."""
    e = reference()
    with Mode(FLUSH[kshipra.MACHINE]):
        with pytest.raises(kshipra.KshipraError, match="tiny numbers for zero"):
            run(e, IDS[:3])
    for model in (e, engine()):
        with Mode(UP[kshipra.MACHINE]):
            with pytest.raises(kshipra.KshipraError, match="does not round to the nearest"):
                run(model, IDS[:3])
        assert len(run(model, IDS[:3])) == 3


def test_machine_code_that_is_asked_for_by_name_is_never_replaced(monkeypatch, tmp_path, capsys):
    """device="native": heads too wide, code refused or wrong are errors, not plain Python."""
    path = tiny.write(tmp_path / "wide.gguf", hidden=8, n_heads=1, n_kv_heads=1, head_dim=1 << 14,
                      n_layers=1, ffn=8)
    refuses = pytest.raises(kshipra.KshipraError, match="too wide.*device=\"python\"")
    model = kshipra.load(path, "native", ctx_size=8)
    for _ in range(2):                  # and the second time as the first
        with refuses:
            model.logits([1, 2])
    with refuses:
        kshipra.profile(model, [1, 2], 1)
    assert kshipra.main(["-m", path, "-p", "ab", "-n", "1", "-c", "8", "--device", "native"]) == 1
    assert "too wide" in capsys.readouterr().err
    assert len(kshipra.load(path, ctx_size=8).logits([1, 2])) == 2      # "auto" goes on

    monkeypatch.setitem(kshipra.KERNELS, "add", dead(kshipra.KERNELS["add"]))
    path = tiny.write(tmp_path / "m.gguf")
    with pytest.raises(kshipra.KshipraError, match="code of add"):
        kshipra.load(path, "native").logits([1, 2])
    monkeypatch.setattr(kshipra, "compile_kernels", lambda kernels, isa: (None, "no permission"))
    with pytest.raises(kshipra.KshipraError, match="no permission"):
        kshipra.load(path, "native").logits([1, 2])
