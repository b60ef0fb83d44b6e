"""Chapter 21, Quantizing, and the encoders of chapter 15 that it runs on."""
import math
import os
import random
import subprocess
import sys
from array import array

import pytest

import kshipra
import tiny
from kshipra import FORMATS, GGUF, KshipraError

ENCODED = [f.name for f in FORMATS.values() if kshipra.has_encoder(f, 8 * f.block_len)]
SEARCHED = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "INT2_G32", "INT4_G64",
            "INT8_G128"]


@pytest.fixture(scope="module")
def native():
    isa, reason = kshipra.choose_isa(os.environ)
    if isa is None:
        pytest.skip(reason)
    ops = kshipra.Native(isa, 2)
    yield ops
    ops.close()


def hard_rows(n, seed):
    """Rows that have gone wrong in searches: ties, zeros of both signs, one sign only, spikes."""
    rng = random.Random(seed)
    return [array("f", row) for row in (
        [rng.gauss(0, 1) for _ in range(n)],
        [rng.gauss(0, 1) * rng.choice((1, 10, 1e-3, 1e-20)) for _ in range(n)],
        [-1.0, 1.0, 0.5, -0.0] * (n // 4), [0.3] * n, [-0.0] * n, [0.0] * (n - 1) + [-3e4],
        [rng.choice((0.0, 0.0, 5.0, -3e-20, 1e-41)) for _ in range(n)],
        [-abs(rng.gauss(0, 1)) - 1 for _ in range(n)], [rng.choice((-3.0, 3.0)) for _ in range(n)],
        [1e-44 * i for i in range(n)])]


def encoded(native, rows, format, importance):
    """Return (the bytes of each row as the kernels write them, whether they refused one)."""
    refused = kshipra.Memory(8)
    found, _ = kshipra.compute_alone(
        native, lambda ops, x: ops.encode(x, format, importance, refused), [rows], "encode")
    return found, any(refused.view(refused.address, 8))


def test_kernels_encode_all_but_the_ternary_formats():
    assert set(kshipra.ENCODE) - {*ENCODED} == {"F32", "TQ1_0", "TQ2_0"}


@pytest.mark.parametrize("name", ENCODED)
def test_kernels_encode_as_chapter_1_does(native, name):
    format = FORMATS[name]
    block = max(8, format.block_len)
    for n in (block, 3 * block if block == 256 else 9 * block):
        rows = hard_rows(n, n)
        importance = array("f", [abs(v) for v in rows[1]])
        for given in [None, importance][:2 if name in SEARCHED else 1]:
            found, refused = encoded(native, rows, format, given)
            assert not refused
            for row, got in zip(rows, found):
                assert got == format.encode(row, given)


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 3e38])
def test_kernels_refuse_what_chapter_1_refuses(native, name, value):
    format, n = FORMATS[name], max(8, FORMATS[name].block_len)
    row = array("f", [0.25] * (n - 1) + [value])
    try:
        format.encode(row)
        accepts = True
    except KshipraError:
        accepts = False
    assert encoded(native, [row], format, None)[1] is not accepts


@pytest.mark.parametrize("src", ["F32", "F16", "BF16", "Q4_1", "Q6_K"])
@pytest.mark.parametrize("dst", ["Q8_0", "Q4_K", "F16", "F32"])
def test_pieces_are_those_of_chapter_1(native, src, dst):
    """Also in slices, and whatever the source."""
    rng, n = random.Random(1), 256
    data = FORMATS[src].encode(array("f", [rng.gauss(0, 1) for _ in range(5 * n)]))
    tensor = kshipra.Tensor("t", FORMATS[src], (5, n), data)
    plain = kshipra.Encoding()
    plain.close()                           # nothing native is left
    want = b"".join(plain.pieces(tensor, FORMATS[dst]))
    with kshipra.Encoding(2) as encoding:
        got = b"".join(map(bytes, encoding.pieces(tensor, FORMATS[dst])))
    assert got == want and (src == dst or want == FORMATS[dst].encode(tensor.floats()))


def test_encoding_takes_the_threads_of_the_engine(native, monkeypatch):
    for asked, want in (("1", 1), ("2", 2)):
        monkeypatch.setenv("KSHIPRA_THREADS", asked)
        with kshipra.Encoding() as encoding:
            assert encoding.native.n_threads == want
    with kshipra.Encoding(1) as encoding:
        assert encoding.native.n_threads == 1
    monkeypatch.setenv("KSHIPRA_THREADS", "some")
    with pytest.raises(KshipraError, match="KSHIPRA_THREADS is 'some'"):
        kshipra.Encoding()


def test_a_faulty_encoder_is_found_and_chapter_1_encodes(native, monkeypatch, capsys):
    def emit_nothing(k, *parameters):
        k.fields.update(kshipra.build(kshipra.emit_encode, *parameters).fields)
    monkeypatch.setitem(kshipra.KERNELS, "encode",
                        kshipra.KERNELS["encode"]._replace(emit=emit_nothing))
    tensor = kshipra.Tensor("t", FORMATS["F32"], (3, 64), array("f", range(192)).tobytes())
    with kshipra.Encoding(1) as encoding:
        got = b"".join(encoding.pieces(tensor, FORMATS["Q5_1"]))
    assert got == FORMATS["Q5_1"].encode(tensor.floats())
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "encode" in message and "plain Python" in message


@pytest.fixture
def model_path(tmp_path):
    return tiny.write(tmp_path / "model.gguf", hidden=256, n_heads=4, head_dim=64, ffn=96)


@pytest.fixture
def small_path(tmp_path):
    return tiny.write(tmp_path / "small.gguf")


def test_a_quantized_model_runs_and_is_smaller(model_path, tmp_path):
    sizes = []
    for kind in ("F16", "Q8_0", "Q4_K_M", "Q2_K"):
        out = tmp_path / f"{kind}.gguf"
        kshipra.quantize(model_path, out, kind)
        sizes.append(out.stat().st_size)
        file = GGUF(out)
        assert file.metadata["general.file_type"] == kshipra.FILE_TYPES[kind][1]
        with kshipra.load(out) as model:
            assert len(list(model.generate_ids([1, 2, 3], 4, ignore_eos=True))) == 4
    assert sizes == sorted(sizes, reverse=True)


# What llama-quantize made of such tensors of a llama with 8 layers and grouped heads; the rule
# is in its source, the table is not taken from ours.
@pytest.mark.parametrize("mix, want", [
    ("Q4_K_M", {"attn_v": "6 4 4 6 4 4 6 6", "ffn_down": "6 4 4 6 4 4 6 6", "attn_q": "4" * 8,
                "attn_output": "4" * 8}),
    ("Q4_K_S", {"attn_v": "5 5 5 5 4 4 4 4", "ffn_down": "5 4 4 4 4 4 4 4"}),
    ("Q5_K_M", {"attn_v": "6 5 5 6 5 5 6 6", "ffn_down": "6 5 5 6 5 5 6 6", "ffn_up": "5" * 8}),
    ("Q3_K_M", {"attn_v": "5 5 4 4 4 4 4 4", "ffn_down": "4" * 8, "attn_output": "4" * 8,
                "attn_k": "3" * 8}),
    ("Q2_K", {"attn_v": "4" * 8, "ffn_down": "3" * 8, "attn_output": "3" * 8, "ffn_gate": "2" * 8,
              "attn_k": "2" * 8}),
])
def test_mixes_give_sensitive_tensors_better_types(mix, want):
    hp = type("Hp", (), {"n_layers": 8, "n_heads": 8, "n_kv_heads": 2, "n_experts": 0})
    for kind, types in want.items():
        got = [kshipra.mixed_type(mix, f"blk.{i}.{kind}.weight", hp, False, False)
               for i in range(8)]
        assert got == [f"Q{bits}_K" for bits in types.replace(" ", "")]
    assert kshipra.mixed_type(mix, "output.weight", hp, False, False) == "Q6_K"
    assert kshipra.mixed_type(mix, "token_embd.weight", hp, True, False) == "Q6_K"


def test_a_row_that_is_no_multiple_falls_back_and_says_so(model_path, tmp_path, capsys):
    kshipra.quantize(model_path, tmp_path / "out.gguf", "Q4_K_M")
    tensors = GGUF(tmp_path / "out.gguf").tensors
    assert tensors["blk.0.ffn_up.weight"].format.name == "Q4_K"
    assert tensors["blk.1.ffn_down.weight"].format.name in ("Q5_0", "Q8_0")     # rows of 96
    assert tensors["blk.0.attn_norm.weight"].format.name == "F32"
    assert "no multiple of 256" in capsys.readouterr().err
    assert kshipra.fitting("Q6_K", 100).name == "F16"


def test_nothing_is_overwritten_and_no_half_file_is_left(model_path, tmp_path, monkeypatch):
    taken = tmp_path / "taken"
    taken.write_bytes(b"mine")
    with pytest.raises(KshipraError, match="there already"):
        kshipra.quantize(model_path, taken, "Q8_0")
    with pytest.raises(KshipraError, match="there already"):
        kshipra.quantize(model_path, model_path, "Q8_0")
    with pytest.raises(KshipraError, match="Q9_Z.*Q4_K_M"):
        kshipra.quantize(model_path, tmp_path / "new", "Q9_Z")
    monkeypatch.setattr(kshipra.Encoding, "pieces", lambda *_: iter([b"short"]))
    with pytest.raises(KshipraError, match="bytes to write"):
        kshipra.quantize(model_path, tmp_path / "new", "Q8_0")
    assert sorted(os.listdir(tmp_path)) == ["model.gguf", "taken"]
    assert taken.read_bytes() == b"mine"


def test_a_weight_that_is_not_finite_is_refused_by_its_tensors_name(tmp_path):
    path = tmp_path / "m.gguf"
    tiny.write(path)
    data = bytearray(path.read_bytes())
    tensor = GGUF(path).tensors["blk.1.ffn_up.weight"]
    data[tensor.offset + 40:tensor.offset + 44] = array("f", [math.nan]).tobytes()
    path.write_bytes(data)
    with pytest.raises(KshipraError, match="blk.1.ffn_up.weight.*nan"):
        kshipra.quantize(path, tmp_path / "out.gguf", "Q8_0")
    assert not (tmp_path / "out.gguf").exists()


# Importance

def test_calibration_finds_the_mean_squares_of_activations(small_path, tmp_path):
    """The first norm's output is what wq of layer 0 meets: computed here by hand."""
    ids = tiny.ids(64)
    found = {}
    for device in ("python", "auto"):
        with kshipra.load(small_path, device=device, ctx_size=64) as model:
            path = tmp_path / f"{device}.gguf"
            kshipra.calibrate(model, ids, path, ctx=32)
            found[device] = kshipra.read_imatrix(path)
            embed, norm = model.weights.embed, model.weights.layers[0].attn_norm
            eps, add_bos = model.hparams.eps, model.tokenizer.add_bos
    chunks = [ids[:32], ids[32:]]
    total = [0.0] * 32
    for chunk in chunks:
        for token in ([tiny.BOS] if add_bos else chunk[:1]) + chunk[1:]:
            row = embed[token].floats()
            scale = 1 / math.sqrt(sum(v * v for v in row) / 32 + eps)
            total = [t + (v * scale * w) ** 2 for t, v, w in zip(total, row, norm)]
    for device in found:
        got = found[device]["blk.0.attn_q.weight"]
        assert got == pytest.approx([t / 64 for t in total], rel=1e-4)
        assert found[device]["blk.0.attn_v.weight"] == got
        assert set(found[device]) == {f"blk.{i}.{kind}.weight" for i in range(2) for kind in (
            "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
    assert {name: list(v) for name, v in found["auto"].items()} == {
        name: list(v) for name, v in found["python"].items()}


def test_an_importance_matrix_changes_what_is_written(model_path, tmp_path):
    with kshipra.load(model_path, ctx_size=64) as model:
        kshipra.calibrate(model, tiny.ids(64), tmp_path / "imatrix", ctx=32)
    kshipra.quantize(model_path, tmp_path / "plain", "Q4_K_S")
    kshipra.quantize(model_path, tmp_path / "heeded", "Q4_K_S", imatrix=tmp_path / "imatrix")
    importance = kshipra.read_imatrix(tmp_path / "imatrix")["blk.0.attn_q.weight"]
    lost = []
    original = GGUF(model_path).tensors["blk.0.attn_q.weight"].floats()
    for name in ("plain", "heeded"):
        tensor = GGUF(tmp_path / name).tensors["blk.0.attn_q.weight"]
        assert tensor.format.name == "Q4_K"
        lost.append(math.fsum(importance[i % 256] * (x - y) ** 2
                              for i, (x, y) in enumerate(zip(original, tensor.floats()))))
    assert lost[1] < 0.99 * lost[0]


def test_a_foreign_importance_matrix_is_refused(model_path, tmp_path):
    with pytest.raises(KshipraError, match="no importance matrix"):
        kshipra.quantize(model_path, tmp_path / "out", "Q4_K_S", imatrix=model_path)
    other = tmp_path / "other"
    f32 = FORMATS["F32"]
    kshipra.write_gguf(other, {"general.type": "imatrix"}, [
        ("blk.0.attn_q.weight.in_sum2", f32, (1, 4), [array("f", [1.0] * 4).tobytes()]),
        ("blk.0.attn_q.weight.counts", f32, (1, 1), [array("f", [1.0]).tobytes()])])
    with pytest.raises(KshipraError, match="another model"):
        kshipra.quantize(model_path, tmp_path / "out", "Q4_K_S", imatrix=other)


# Quality

def test_perplexity_by_hand(small_path):
    """Two chunks, each with BOS in the first place; the second half is scored."""
    ids = tiny.ids(40)
    with kshipra.load(small_path, ctx_size=64) as model:
        found = model.perplexity(ids, ctx=16)
        lost = []
        for start in (0, 16):
            chunk = [model.tokenizer.bos_id, *ids[start + 1:start + 16]]
            rows = model.logits(chunk)
            for pos in range(8, 15):
                total = math.fsum(map(math.exp, rows[pos]))
                lost.append(math.log(total) - rows[pos][chunk[pos + 1]])
        with pytest.raises(KshipraError, match="40 tokens"):
            model.perplexity(ids, ctx=41)
        with pytest.raises(KshipraError, match="ctx is 65"):
            model.perplexity(ids, ctx=65)
    assert found == pytest.approx(math.exp(sum(lost) / len(lost)), rel=1e-5)


def test_perplexity_is_the_same_on_every_device(small_path):
    found = []
    for device in ("python", "auto"):
        with kshipra.load(small_path, device=device, ctx_size=64) as model:
            found.append(model.perplexity(tiny.ids(64), ctx=32))
    assert found[0] == found[1]


def test_divergence(model_path, tmp_path):
    kshipra.quantize(model_path, tmp_path / "q", "Q2_K")
    with kshipra.load(model_path, ctx_size=64) as base, kshipra.load(tmp_path / "q") as model:
        ids = tiny.ids(32)
        none = kshipra.divergence(base, base, ids, ctx=32)
        assert abs(none.kl.mean) < 1e-6 and none.same_top == 1
        assert none.perplexity == none.base_perplexity == base.perplexity(ids, ctx=32)
        some = kshipra.divergence(model, base, ids, ctx=32)
        assert some.kl.mean > 10 * abs(none.kl.mean) and len(some.kl.values) == 15
        p, q = base.logits([base.tokenizer.bos_id, *ids[1:31]]), model.logits(
            [base.tokenizer.bos_id, *ids[1:31]])
        want = []
        for a, b in zip(p[16:], q[16:]):
            sums = [math.fsum(map(math.exp, row)) for row in (a, b)]
            want.append(math.fsum(math.exp(x) / sums[0] * (x - y) for x, y in zip(a, b))
                        - math.log(sums[0]) + math.log(sums[1]))
        assert list(some.kl.values) == pytest.approx(want, rel=1e-3, abs=1e-6)


# Encoding at load

@pytest.mark.parametrize("options, want", [
    (dict(quant_scheme="int"), "INT4_G64"), (dict(quant_scheme="nf4"), "NF4"),
    (dict(quant_scheme="int", quant_bits=2, group_size=32), "INT2_G32"),
    (dict(quant_scheme="int", quant_bits=8, group_size=128), "INT8_G128"),
    (dict(quant_scheme="q8_0"), "Q8_0"), (dict(quant_scheme="Q4_K"), "Q4_K"),
])
@pytest.mark.parametrize("devices", [("auto",), pytest.param(("python", "auto"),
                                                             marks=pytest.mark.deep)])
def test_weights_are_encoded_at_load(tmp_path, options, want, devices):
    path = tiny.write(tmp_path / "model.gguf", hidden=256, n_heads=4, head_dim=64, ffn=256)
    answers = []
    for device in devices:
        with kshipra.load(path, device=device, **options) as model:
            layer, original = model.weights.layers[1], GGUF(path).tensors["blk.1.ffn_up.weight"]
            assert layer.w_up.format.name == want == layer.wq.format.name
            assert bytes(layer.w_up[:8].data) == FORMATS[want].encode(original[:8].floats())
            assert model.weights.embed.format.name == (
                "Q8_0" if want in ("INT4_G64", "NF4", "INT2_G32", "Q4_K", "Q8_0") else want)
            answers.append(list(model.generate_ids([5, 6, 7], 6, temperature=0, ignore_eos=True)))
    assert answers[0] == answers[-1]


def test_what_cannot_be_encoded_at_load_is_refused_or_said(tmp_path, capsys):
    path = tiny.write(tmp_path / "model.gguf", hidden=64, ffn=96, head_dim=16)
    for options, message in ((dict(quant_scheme="int5"), "quant_scheme 'INT5'"),
                             (dict(quant_scheme="int", quant_bits=3), "quant_bits 3"),
                             (dict(quant_scheme="int", group_size=48), "group_size 48"),
                             (dict(quant_scheme="nf4", quant_bits=4), "go with quant_scheme int"),
                             (dict(quant_bits=4), "go with quant_scheme int")):
        with pytest.raises(KshipraError, match=message):
            kshipra.load(path, **options)
    with kshipra.load(path, quant_scheme="nf4") as model:
        assert model.weights.layers[0].w_down.format.name == "F32"     # rows of 96
    assert "rows of 96" in capsys.readouterr().err


# The command line

def run(*arguments):
    done = subprocess.run([sys.executable, kshipra.__file__, *map(str, arguments)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_the_whole_way_on_the_command_line(model_path, tmp_path):
    text = tmp_path / "text"
    text.write_text("It was a dark and stormy night; the rain fell in torrents. " * 3)
    small, imatrix = tmp_path / "small.gguf", tmp_path / "imatrix.gguf"
    at = "-m", model_path, "-c", 64
    assert run(*at, "--calibrate", text, "--imatrix", imatrix)[0] == 0
    assert run("-m", model_path, "--quantize", "q4_k_s", small, "--imatrix", imatrix)[0] == 0
    status, out, _ = run(*at, "--perplexity", text)
    with kshipra.load(model_path, ctx_size=64) as model:
        want = model.perplexity(text.read_text(), ctx=64)
    assert status == 0 and out.startswith(f"perplexity {want:.4f} +- ")
    status, out, _ = run("-m", small, "-c", 64, "--kl-divergence", text, "--base", model_path)
    assert status == 0 and out.startswith("KL divergence 0.") and f"{want:.4f}" in out
    status, _, err = run("-m", model_path, "--quantize", "q4_k_s", small)
    assert status == 1 and "there already" in err and err.count("\n") == 1
    assert run("-m", model_path, "--kl-divergence", text)[0] == 2


# Conversion

CONVERTED = ("falcon gemma gemma2 gemma3 gpt-neox gpt-oss gpt2 granite llama-gqa-rope3 llama-mha "
             "llama-tied llama-yarn mistral-swa mixtral olmo2 phi3 phi3-longrope qwen2 qwen3 "
             "qwen3moe smollm3 starcoder2").split()


@pytest.mark.parametrize("name", CONVERTED)
def test_a_converted_directory_is_what_llama_cpp_makes_of_it(shared, tmp_path, name):
    """The fixture's GGUF is of its converter: the same tensors, the same text and numbers."""
    place = shared / "fixtures" / "models" / name
    kshipra.convert(place / "hf", tmp_path / "out.gguf", "F32")
    ours, theirs = GGUF(tmp_path / "out.gguf"), GGUF(place / "model.gguf")
    assert set(ours.tensors) == set(theirs.tensors)
    for key, tensor in theirs.tensors.items():
        assert ours.tensors[key].shape == tensor.shape
        if key == "rope_freqs.weight":
            assert ours.tensors[key].floats() == pytest.approx(tensor.floats(), rel=1e-6)
        else:
            assert bytes(ours.tensors[key].data) == bytes(tensor.data), key
    for key, value in theirs.metadata.items():
        if isinstance(value, array) and key in ours.metadata:       # llama.cpp is strict
            assert ours.metadata[key].typecode == value.typecode, key
        if key.startswith("general.") or key.split(".")[-1] in {
                "scores", "token_type", "padding_token_id", "eot_token_id", "add_sep_token",
                "pre", "tensor_data_layout"} or key == "falcon.context_length":     # always 2048
            continue
        found = ours.metadata[key]
        assert (list(found) if hasattr(value, "__len__") else found) == (
            list(value) if hasattr(value, "__len__") else value), key
    text = "Hello, world!  It's 12345 o'clock\n\nné <s> </s>"
    before, after, other = map(kshipra.load_tokenizer, (
        place / "hf", tmp_path / "out.gguf", place / "model.gguf"))
    assert after.encode(text) == other.encode(text)
    assert before.encode("Once upon a time") == after.encode("Once upon a time")


@pytest.mark.parametrize("name", [*CONVERTED, "gpt-oss-notruncate", "gpt-oss/hf-mxfp4"])
def test_a_converted_model_answers_as_before(shared, tmp_path, name):
    """To the bit; but where a GGUF has the numbers of a head in another order, products are summed
    in another order, and the numbers of LongRoPE are f32 in a GGUF."""
    place = shared / "fixtures" / "models" / name
    place = place if "/" in name else place / "hf"
    kshipra.convert(place, tmp_path / "out.gguf", "F32")
    found = []
    for path in (place, tmp_path / "out.gguf"):
        with kshipra.load(path, kv_type="f32") as model:
            near = model.hparams.arch.rope == "interleaved" or name == "phi3-longrope"
            found.append([list(row) for row in model.logits([1, *range(5, 25)])])
    for row, other in zip(*found):
        assert row == (pytest.approx(other, abs=1e-4) if near else other)


def test_what_is_not_converted_is_refused(shared, tmp_path):
    with pytest.raises(KshipraError, match="type 'Q8_0'"):
        kshipra.convert(shared / "fixtures" / "models" / "gpt2" / "hf", tmp_path / "out", "Q8_0")
    assert not os.listdir(tmp_path)


def test_a_gguf_as_safetensors(model_path, tmp_path):
    kshipra.convert(model_path, tmp_path / "out.safetensors", "F32")
    out, file = kshipra.Safetensors(tmp_path / "out.safetensors"), GGUF(model_path)
    assert set(out.tensors) == set(file.tensors)
    for name, tensor in file.tensors.items():
        assert out.tensors[name].shape == tensor.shape
        assert out.tensors[name].floats() == tensor.floats()
    assert out.metadata["general.architecture"] == "llama"
