"""Chapter 17: recorded programs and threads give the bits of the reference."""
import itertools
import json
import math
import os
import random
import subprocess
import sys
from array import array

import pytest
from hypothesis import HealthCheck, given, strategies as st

import kshipra
import tiny

pytestmark = pytest.mark.skipif(tiny.REFUSAL is not None,
                                reason=str(tiny.REFUSAL))
QUANT = ("Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K_M Q4_K_M Q4_K_S Q5_K_M Q6_K").split()


def engine(checkpoint=None, n_threads=1, **options):
    checkpoint = checkpoint or kshipra.open_checkpoint(None)
    ops = kshipra.Native(kshipra.choose_isa(os.environ)[0], n_threads)
    return kshipra.Engine(checkpoint, ops, **options)


def reference(checkpoint=None, **options):
    return kshipra.Engine(checkpoint or kshipra.open_checkpoint(None), kshipra.Reference(),
                          **options)


def bits(logits):
    return [row.tobytes() for row in logits]


def run(e, ids, pieces=None):
    """Return the bits of the logits at every position; pieces: lengths of the steps."""
    seq, out, at = kshipra.Sequence(e.cache), [], 0
    for n in pieces or [len(ids)]:
        rows = [(t, at + i, seq) for i, t in enumerate(ids[at:at + n])]
        out += bits(e.step(rows))
        at += n
    seq.truncate(0)
    return out


IDS = [0] + [random.Random(7).randrange(1, 512) for _ in range(150)]


@pytest.fixture(scope="module")
def truth():
    return run(reference(), IDS)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_python_equals_native_for_any_number_of_threads(truth, n_threads):
    assert run(engine(n_threads=n_threads), IDS) == truth


@pytest.mark.parametrize("n_threads", [2, 3, 8])
def test_attention_may_be_divided_by_position(monkeypatch, truth, n_threads):
    """From LONG_POSITIONS on; the step that crosses it is recorded anew."""
    monkeypatch.setattr(kshipra, "LONG_POSITIONS", 20)
    e = engine(n_threads=n_threads)
    assert run(e, IDS, [18, 1, 1, 1, 1, 40, 1, 3, 8, 64, 13]) == truth
    assert {key[2] for key in e.ops.programs} == {False, True}
    assert any(name == "attention_merge" for name, _ in e.ops.kernels.found)


@tiny.examples(6, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_pieces_of_a_prompt_do_not_matter(truth, data):
    pieces, left = [], len(IDS)
    while left:
        pieces.append(data.draw(st.integers(1, min(left, 40))))
        left -= pieces[-1]
    assert run(native_shared(), IDS, pieces) == truth


_shared = []


def native_shared():
    """Return one engine for the tests that need no other: its programs are recorded once."""
    if not _shared:
        _shared.append(engine(n_threads=2, page_size=8))
    return _shared[0]


@pytest.mark.parametrize("page_size", [None, 8, 16, 64, 128])
def test_page_sizes_do_not_matter(truth, page_size):
    assert run(engine(page_size=page_size), IDS, [1, 63, 1, 1, 7, 64, 14]) == truth


@tiny.examples(4, suppress_health_check=list(HealthCheck))
@given(n=st.integers(1, 17), seed=st.integers(0, 99))
def test_rows_of_many_sequences_mix_freely(n, seed):
    """n sequences of different lengths, stepped together, equal each one alone."""
    rng = random.Random(seed)
    texts = [[0] + [rng.randrange(1, 512) for _ in range(rng.randrange(0, 9))] for _ in range(n)]
    e = native_shared()
    alone = [run(e, ids) for ids in texts]
    seqs = [kshipra.Sequence(e.cache) for _ in texts]
    together = [[] for _ in texts]
    for pos in range(max(map(len, texts))):
        rows = [(ids[pos], pos, seq) for ids, seq in zip(texts, seqs) if pos < len(ids)]
        owners = [i for i, ids in enumerate(texts) if pos < len(ids)]
        for i, row in zip(owners, bits(e.step(rows))):
            together[i].append(row)
    for seq in seqs:
        seq.truncate(0)
    assert together == alone


@pytest.mark.parametrize("drafter", ["right", "wrong", "random"])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_p28_verifying_drafts_is_lossless(drafter, k):
    """k drafted tokens checked in one step of k + 1 rows leave the tokens of plain greedy."""
    e, prompt, n, rng = native_shared(), [1, 1, 1], 40, random.Random(k)
    seq, tokens = kshipra.Sequence(e.cache), list(prompt)
    greedy = list(itertools.islice(
        kshipra.cached(e, prompt, lambda row, past: row.best, seq), n))
    seq.truncate(0)
    tokens.append(kshipra.prefill(e, seq, tokens).best)
    while len(tokens) < len(prompt) + n:
        at = len(tokens) - len(prompt)
        draft = {"right": greedy[at:at + k], "wrong": [(t + 1) % 512 for t in greedy[at:at + k]],
                 "random": [rng.randrange(512) for _ in range(k)]}[drafter]
        start = len(tokens) - 1
        best = [row.best for row in e.step(
            [(t, start + i, seq) for i, t in enumerate([tokens[-1]] + draft)])]
        taken = 0
        while taken < len(draft) and draft[taken] == best[taken]:
            taken += 1
        tokens += best[:taken + 1]
        seq.truncate(start + taken + 1)
    seq.truncate(0)
    assert tokens[len(prompt):][:n] == greedy


def test_wanted_rows_only():
    e, seq = native_shared(), None
    full = run(e, IDS[:20])
    seq = kshipra.Sequence(e.cache)
    rows = [(t, i, seq) for i, t in enumerate(IDS[:20])]
    assert bits(e.step(rows, [3, 19])) == [full[3], full[19]]
    seq.truncate(0)
    assert e.step([(t, i, seq) for i, t in enumerate(IDS[:20])], []) == []
    seq.truncate(0)


@pytest.mark.deep
@pytest.mark.parametrize("kv_type", sorted(kshipra.KV_TYPES))
@pytest.mark.parametrize("page_size", [None, 8, 64])
def test_kv_types(tmp_path, kv_type, page_size):
    path = tiny.write(tmp_path / "tiny.gguf", n_heads=6, head_dim=32, format="Q8_0")
    ids = tiny.ids(140)
    expected = run(reference(kshipra.GGUF(path), kv_type=kv_type), ids)
    e = engine(kshipra.GGUF(path), 2, kv_type=kv_type, page_size=page_size)
    assert run(e, ids) == run(e, ids, [1, 62, 3, 1, 1, 59, 13]) == expected


def test_whole_generations_of_the_demo_are_equal():
    python = kshipra.load(device="python")
    native = kshipra.load(device="native", threads=2)
    for options in ({"temperature": 0}, {"temperature": 0.9, "seed": 5},
                    {"temperature": 1.2, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 1}):
        a = list(python.generate_ids("Once upon a time", 120, **options))
        assert list(native.generate_ids("Once upon a time", 120, **options)) == a


@pytest.mark.parametrize("isa", ["avx2", "avxvnni", "vnni", "neon", "neon_dot"])
def test_instruction_sets_give_the_same_bits(truth, isa):
    if isa not in kshipra.host_instruction_sets()[0]:
        pytest.skip(f"{isa} is not on this machine")
    e = kshipra.Engine(kshipra.open_checkpoint(None), kshipra.Native(isa, 2))
    assert run(e, IDS, [100, 1, 50]) == truth


@pytest.mark.parametrize("name", QUANT)
@pytest.mark.parametrize("base", ["llama", "qwen3"])
def test_quantized_models_equal_the_reference(shared, base, name):
    path = os.path.join(shared, "fixtures", "quant", base, name + ".gguf")
    if not os.path.exists(path):
        pytest.skip("no such fixture")
    with open(path[:-4] + "json") as f:
        ids = json.load(f)["cases"][0]["ids"][:12]
    expected = run(reference(kshipra.GGUF(path)), ids)
    for isa in kshipra.host_instruction_sets()[0]:
        e = kshipra.Engine(kshipra.GGUF(path), kshipra.Native(isa, 2))
        assert run(e, ids, [7, 1, 1, len(ids) - 9]) == expected


@pytest.mark.parametrize("path", [
    "gpt2/model.gguf", "gpt2/hf", "llama-gqa-rope3/model-f16.gguf",
    "llama-gqa-rope3/model-bf16.gguf",
    "llama-gqa-rope3/hf", "llama-tied/model.gguf", "llama-yarn/hf", "qwen2/model.gguf",
    "qwen3/hf", "gemma/model.gguf", "gemma2/model.gguf", "gemma3/hf"])
def test_float_models_equal_the_reference(shared, path):
    path = os.path.join(shared, "fixtures", "models", path)
    ids = [random.Random(3).randrange(1, 500) for _ in range(21)]
    expected = run(reference(kshipra.open_checkpoint(path), kv_type="f32"), ids)
    assert run(engine(kshipra.open_checkpoint(path), 2, kv_type="f32"), ids,
               [11, 1, 1, 8]) == expected


@pytest.mark.parametrize("path", ["mixtral/model.gguf", "mixtral/hf", "qwen3moe/model.gguf",
                                  "qwen3moe/hf"])
def test_models_with_experts_equal_the_reference(shared, path):
    path = os.path.join(shared, "fixtures", "models", path)
    ids = [random.Random(3).randrange(1, 500) for _ in range(21)]
    expected = run(reference(kshipra.open_checkpoint(path), kv_type="f32"), ids)
    assert run(engine(kshipra.open_checkpoint(path), 2, kv_type="f32"), ids,
               [11, 1, 1, 8]) == expected


@pytest.mark.parametrize("arch, options", [
    ("mixtral", {"format": "Q4_0", "ffn": 96}), ("mixtral", {"format": "BF16", "hidden": 40}),
    ("qwen3moe", {"format": "Q8_0", "n_experts": 19, "n_used": 5, "ffn": 32}),
    ("qwen3moe", {"format": "Q5_1", "n_experts": 1, "n_used": 1}),
    ("qwen3moe", {"n_experts": 9, "n_used": 9, "ffn": 7, "expert_weights_norm": False})])
def test_experts_for_any_number_of_threads_and_rows(tmp_path, arch, options):
    """Whole, in pieces, and mixed with the rows of another sequence."""
    path = tiny.write(tmp_path / "tiny.gguf", arch, **options)
    ids, others = tiny.ids(40), tiny.ids(40, seed=9)
    expected = run(reference(kshipra.GGUF(path)), ids)
    for isa in kshipra.host_instruction_sets()[0]:
        for n_threads in (1, 2, 3):
            e = kshipra.Engine(kshipra.GGUF(path), kshipra.Native(isa, n_threads), page_size=8)
            assert run(e, ids) == run(e, ids, [1, 7, 1, 1, 20, 10]) == expected
            seqs = kshipra.Sequence(e.cache), kshipra.Sequence(e.cache)
            mixed = []
            for i, (a, b) in enumerate(zip(ids, others)):
                mixed += bits(e.step([(b, i, seqs[1]), (a, i, seqs[0])], [1]))
            assert mixed == expected
            assert isinstance(e.ops, kshipra.Native)


def test_what_does_not_fit_the_scratch_memory_is_not_run_natively():
    """A file may say that a row holds a million weights; the scratch of a thread has a size."""
    native = kshipra.Recording(None, None, kshipra.Resident(), 1, 1, False)
    for name in ("Q8_0", "Q2_K"):
        fmt, n_in = kshipra.FORMATS[name], 1 << 19
        w = kshipra.Tensor("w", fmt, (8, n_in), bytes(fmt.n_bytes(8 * n_in)))
        assert kshipra.matmul_scratch_bytes(fmt, n_in, native.chunk_rows(w, 32)) \
            <= kshipra.SCRATCH_BYTES
        wide = kshipra.Tensor("w", fmt, (8, 8 * n_in), bytes(fmt.n_bytes(64 * n_in)))
        with pytest.raises(kshipra.BackendFault, match="too long"):
            native.chunk_rows(wide, 32)


def test_memory_is_not_written_beyond_its_end():
    memory = kshipra.Memory(4096)
    memory.write(4092, array("i", [7]))
    assert bytes(memory.view(memory.address + 4092, 4)) == array("i", [7]).tobytes()
    for off in (4093, 4096, 5000):
        with pytest.raises((IndexError, ValueError)):
            memory.write(off, bytes(4))


def test_nothing_grows_over_many_tokens():
    """P40: after warming up, tokens cost no memory beyond their place in the cache."""
    if not os.path.exists("/proc/self/status"):
        pytest.skip("no /proc")
    code = (
        "import kshipra, gc\n"
        "def anon():\n"
        "    with open('/proc/self/status') as f:\n"
        "        return sum(int(l.split()[1]) for l in f if l.startswith(('RssAnon', 'VmSwap')))\n"
        "m = kshipra.load(device='native', ctx_size=4096)\n"
        "g = m.generate_ids('Once upon a time', 2400, ignore_eos=True, temperature=0)\n"
        "for _ in range(400): next(g)\n"
        "gc.collect(); a = anon()\n"
        "for _ in range(1990): next(g)\n"
        "print(anon() - a, gc.collect())\n")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         cwd=os.path.dirname(kshipra.__file__)).stdout
    grown_kb, garbage = map(int, out.split())
    kv_kb = 1990 * 4 * 2 * 3 * 16 * 2 / 1024    # layers, k and v, heads, numbers, bytes
    assert grown_kb <= 1.05 * kv_kb + 256, f"{grown_kb} KB for {kv_kb} KB of cache"
    assert garbage == 0


def test_texts_that_come_and_go_record_no_new_programs():
    """Rows are filled up to a number that there is a program for, and give the same bits."""
    model, exact = native_shared(), kshipra.load(device="python")
    pools = [engine.new_pool(64 * 64, 64) for engine in (model, exact)]
    model.ops.programs.clear()
    for n_rows in (*range(1, 30), 47, 50, 63):
        results = []
        for engine, pool in zip((model, exact), pools):
            seqs = [kshipra.Sequence(pool) for _ in range(n_rows)]
            results.append(engine.step([(5 + i, 0, seq) for i, seq in enumerate(seqs)],
                                       range(0, n_rows, 2)))
            for seq in seqs:
                seq.truncate(0)
        assert results[0] == results[1] and len(results[0]) == -(-n_rows // 2)
    buckets = [kshipra.rows_bucket(n) for n in range(193)]
    assert all(n <= b <= n + max(n // 2, 15) for n, b in enumerate(buckets))
    assert len(model.ops.programs) <= 25 and max(buckets) == 192
