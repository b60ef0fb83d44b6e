"""Chapter 20: what calls cost, profiles, the limits of the machine, the plan of the memory."""
import ctypes
import math
import os
import time
import types
from array import array

import pytest

import kshipra
import tiny

F32, Q4_0, Q6_K = (kshipra.FORMATS[name] for name in ("F32", "Q4_0", "Q6_K"))
HAS_NATIVE = tiny.REFUSAL is None


def weight(fmt, *shape):
    return kshipra.Tensor("w", fmt, shape, memoryview(bytearray(fmt.n_bytes(shape[0] * shape[1]))))


def rows(n_rows, n):
    return [array("f", bytes(4 * n)) for _ in range(n_rows)]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("small") / "m.gguf", format="Q4_1", hidden=64,
                      ffn=96, head_dim=16)


# What a call costs: each sum as one does it on paper.

def test_the_cost_of_a_product():
    """18 bytes for 32 weights of Q4_0, 4 for a number; a multiplication and an addition each."""
    w, x, out = weight(Q4_0, 3, 64), rows(2, 64), rows(2, 3)
    assert kshipra.call_cost("matmul", (w, x), out) == (
        "matmul Q4_0", 3 * 36 + 4 * 2 * (64 + 3), 2 * 3 * 64 * 2)
    w, x, out = weight(Q6_K, 5, 256), rows(1, 256), rows(1, 5)
    assert kshipra.call_cost("matmul", (w, x), out) == (
        "matmul Q6_K", 5 * 210 + 4 * (256 + 5), 2 * 5 * 256)


@pytest.mark.parametrize("n_picks, n_read", [(2, 2), (4, 4), (10, 5)])
def test_the_cost_of_experts_is_of_those_that_can_be_picked(n_picks, n_read):
    """No more than there are: five."""
    experts = [weight(F32, 4, 8) for _ in range(5)]
    out = rows(n_picks, 4)
    assert kshipra.call_cost("matmul", (experts, None), out) == (
        "matmul F32", n_read * 4 * 32 + 4 * n_picks * (8 + 4), 2 * 4 * 8 * n_picks)


def test_the_cost_of_routing_and_mixing():
    """Six logits a row are read, two choices written, each of 4 bytes, as are their weights."""
    assert kshipra.call_cost("route", (rows(3, 6), 2), None) == (
        "route", 3 * 4 * (6 + 2 + 2), 3 * (2 * 6 + 18 * 6))
    route = types.SimpleNamespace(n_used=2)
    assert kshipra.call_cost("mix", (rows(6, 7), route), rows(3, 7)) == (
        "mix", 4 * 3 * 7 * (2 + 1), 2 * 3 * 7 * 2)


def test_the_cost_of_what_goes_over_numbers_once():
    assert kshipra.call_cost("embed", (weight(Q4_0, 9, 64), [1, 2]), rows(2, 64)) == (
        "embed", 2 * 36 + 4 * 2 * 64, 2 * 64)
    assert kshipra.call_cost("add", (rows(2, 5), rows(2, 5)), rows(2, 5)) == ("add", 120, 10)
    assert kshipra.call_cost("silu", (rows(2, 5),), rows(2, 5)) == ("silu", 80, 200)
    # the weight of a norm stays in the cache and is not counted
    assert kshipra.call_cost("rms_norm", (rows(2, 5), array("f", bytes(20)), 1e-6),
                             rows(2, 5)) == ("rms_norm", 80, 40)


@pytest.mark.parametrize("window, seen, last", [(0, 3 + 4 + 1, 4 + 1), (2, 2 + 2 + 1, 2 + 1)])
def test_the_cost_of_attention(window, seen, last):
    """Two rows of one text at positions 2 and 3, and the first of another; f16 keys."""
    pool = kshipra.PagePool([(2, 8)], 2, 64, "f16")
    a, b = kshipra.Sequence(pool), kshipra.Sequence(pool)
    batch = kshipra.Batch([(0, 2, a), (0, 3, a), (0, 0, b)], [2], pool)
    spec = kshipra.Attention(4, 2, 8, 1.0, window)
    kv_bytes = 2 * 2 * 8 * 2            # k and v, two heads of 8 numbers of 2 bytes
    assert kshipra.call_cost("attention", (None, None, None, batch, 0, spec), rows(3, 32)) == (
        "attention", last * kv_bytes + 2 * 4 * 3 * 32, 4 * seen * 32)


# Profiles

@pytest.mark.parametrize("device", ["python"] + ["native"] * HAS_NATIVE)
def test_a_profile_counts_what_a_step_must_move_and_do(small, device):
    model = kshipra.load(small, device=device, threads=2, ctx_size=64)
    found = kshipra.profile(model, [1, 2, 3], 4)
    lines = {line["operation"]: line for line in found["decode"]}
    weights = [model.weights.lm_head] + [w for layer in model.weights.layers
                                         for w in vars(layer).values()
                                         if isinstance(w, kshipra.Tensor)]
    made = [line for name, line in lines.items() if name == "matmul Q4_1"]
    assert sum(line["calls"] for line in made) == 4 * len(weights)
    assert sum(line["operations"] for line in made) == 4 * 2 * sum(w.size for w in weights)
    # position p sees p + 1 positions: 4 multiplications and additions for each of 64 numbers
    assert lines["attention"]["operations"] == 2 * 4 * 64 * (4 + 5 + 6 + 7)
    assert all(line["seconds"] >= 0 and line["bytes"] > 0 for line in lines.values())
    assert {line["operation"] for line in found["prefill"]} == set(lines)
    assert lines["embed"]["calls"] == 4 and lines["embed"]["operations"] == 4 * 64


@pytest.mark.parametrize("device", ["python"] + ["native"] * HAS_NATIVE)
def test_a_profile_counts_the_experts_that_are_used(tmp_path, device):
    """One row reads as many experts as it uses; three rows at most all of them."""
    path = tiny.write(tmp_path / "tiny.gguf", "mixtral", format="Q8_0", n_layers=1,
                             n_experts=5, n_used=2)
    model = kshipra.load(path, device=device, threads=2, ctx_size=64)
    found = kshipra.profile(model, [1, 2, 3], 4)
    attention, head = 2 * 32 * 32 + 2 * 16 * 32, tiny.N_TOKENS * 32
    for phase, n_steps, n_rows, n_read in (("decode", 4, 1, 2), ("prefill", 1, 3, 5)):
        line, = [line for line in found[phase] if line["operation"] == "matmul Q8_0"]
        n_picks = 2 * n_rows
        activations = n_rows * (6 * 32 + 2 * 16) + 32 + tiny.N_TOKENS \
            + 3 * n_picks * (32 + 64)
        weights = attention + head + n_read * 3 * 64 * 32
        assert line["bytes"] == n_steps * (weights * 34 // 32 + 4 * activations)
        assert line["operations"] == n_steps * 2 * (
            n_rows * attention + head + n_picks * 3 * 64 * 32)
        lines = {line["operation"]: line for line in found[phase]}
        assert lines["mix"]["bytes"] == n_steps * 4 * 3 * 32 * n_rows
        assert lines["route"]["calls"] == n_steps


@pytest.mark.skipif(not HAS_NATIVE, reason="no machine code here")
def test_a_timed_run_computes_what_an_untimed_one_does(small):
    model = kshipra.load(small, device="native", threads=2, ctx_size=64)
    expected = model.logits([5, 6, 7])
    model.ops = kshipra.Profile(model.ops)
    assert model.logits([5, 6, 7]) == expected


# The limits of the machine

@pytest.mark.skipif(not HAS_NATIVE, reason="no machine code here")
def test_the_loops_that_find_limits_do_what_they_count():
    """n rounds of eight: dot products of four 3 * -5 in each lane; 1 * 1; and all bytes are seen.

    So each round is the 2 * 32 * 8 and 2 * 8 * 8 operations, or the 256 bytes, that are counted.
    """
    kernels = [kshipra.build(emit) for emit in (
        kshipra.emit_dot_only, kshipra.emit_multiply_add_only, kshipra.emit_read_only)]
    kernels.append(kshipra.build(kshipra.emit_read_only, kshipra.READ_AHEAD))
    code, _ = kshipra.compile_kernels(kernels, kshipra.choose_isa(os.environ)[0])

    def address(data):
        return ctypes.addressof(ctypes.c_char.from_buffer(data))

    def run(i, kind, **fields):
        out = array(kind, bytes(32))
        args = kernels[i].args_array(out=out.buffer_info()[0], **fields)
        code.function(i)(args.buffer_info()[0], 0, 0)
        return list(out)

    assert run(0, "i", n=7) == [7 * 8 * 4 * 3 * -5] * 8
    assert run(1, "f", n=7) == [7 * 8.0] * 8
    for i in (2, 3):
        for at in range(0, 3 * 256, 37):
            data = bytearray(3 * 256 + kshipra.READ_AHEAD)
            data[at] = 1
            seen = run(i, "i", n=3, data=address(data))
            assert seen == [(1 << 8 * (at % 4)) * (lane == at % 32 // 4) for lane in range(8)]
    code.close()


@pytest.mark.skipif(not HAS_NATIVE, reason="no machine code here")
def test_the_limits_of_the_machine_are_measured():
    """Against each other, and against what another way to do the same takes here.

    Four int8 products take the place of one of float32, and their sums go with them: 8 times
    as many operations with one instruction for all, 2 or 3 times where it takes three.  memcpy
    reads as much as it writes; to read alone is faster, but not by a factor of ten.
    """
    tries = [kshipra.ceilings(1) for _ in range(3)]         # others may be at work here
    limits = {name: max(found[name] for found in tries) for name in tries[0]}
    assert limits["threads"] == 1
    assert 1.3 < limits["int8_ops_s"] / limits["f32_ops_s"] < 30
    # 2 additions and 2 multiplications of 8 at up to 6.5 GHz; more is no processor of today
    assert 1e9 < limits["f32_ops_s"] < 6.5e9 * 64
    source, best = bytearray(64 << 20), math.inf
    target = memoryview(bytearray(len(source)))
    for _ in range(10):
        begun = time.perf_counter()
        target[:] = source
        best = min(best, time.perf_counter() - begun)
    assert 0.5 < limits["read_bytes_s"] / (len(source) / best) < 15


def test_a_limit_is_the_one_that_takes_longer():
    limits = {"read_bytes_s": 1e9, "int8_ops_s": 1e11, "f32_ops_s": 1e10, "threads": 1}
    line = {"operation": "matmul Q4_K", "seconds": 2.0, "bytes": 1e9, "operations": 1e9}
    assert kshipra.against_ceiling(line, limits) == (50.0, "memory-bound")
    line["operations"] = 2e11
    assert kshipra.against_ceiling(line, limits) == (100.0, "compute-bound")
    line.update(operation="attention", operations=2e10)
    assert kshipra.against_ceiling(line, limits) == (100.0, "compute-bound")


def test_the_words_of_a_limit():
    """What is faster than memory was not read from it."""
    limits = {"read_bytes_s": 1e9, "int8_ops_s": 1e11, "f32_ops_s": 1e10, "threads": 1}
    lines = [{"operation": name, "calls": 1, "seconds": s, "bytes": n, "operations": done}
             for name, s, n, done in (("add", 1.0, 5e8, 1e6), ("matmul Q8_0", 4.0, 1e8, 3e11),
                                      ("rope", 0.5, 1e9, 1e6))]
    heads, rows = kshipra.profile_rows(lines, limits)
    assert [head.strip("<") for head in heads][-2:] == ["of limit", "limit"]
    assert [row[0] for row in rows] == ["matmul Q8_0", "add", "rope"]
    assert [row[-2:] for row in rows] == [["75%", "compute-bound"], ["50%", "memory-bound"],
                                          ["200%", "none: in a cache"]]
    assert [row[3] for row in rows] == ["72.7%", "18.2%", "9.1%"]
    heads, rows = kshipra.profile_rows(lines, None)
    assert len(heads) == len(rows[0]) == 7


# Memory

@pytest.mark.parametrize("kv_type, vector_bytes", [("f32", 32), ("f16", 16)])
def test_a_plan_of_the_memory(tmp_path, kv_type, vector_bytes):
    """Two layers, two heads of 8 for k and v; five rows of all that is between two of them."""
    path = tiny.write(tmp_path / "m.gguf")
    model = kshipra.load(path, "python", ctx_size=100, kv_type=kv_type)
    held = kshipra.ledger(model, 5, 40)
    assert held["KV"] == 40 * 2 * 2 * 2 * vector_bytes
    assert held["weights"] == sum(t.n_bytes for t in model.checkpoint.tensors.values())
    # x, its norm and the sum: 3 of 32; q and its result of 32; k and v of 16; gate and up of 64
    assert held["activations"] == 4 * (5 * (3 * 32 + 2 * 32 + 2 * 16 + 2 * 64) + tiny.N_TOKENS)
    assert held["scores"] == 4 * 64 * 4
    lines = list(kshipra.describe(path, 100, kv_type))
    per_position = 2 * 2 * 2 * vector_bytes
    line, = [line for line in lines if "KV cache" in line]
    assert f"100 positions of {per_position} bytes" in line
    assert kshipra.count(100 * per_position, "B") in line
    line, = [line for line in lines if "weights  " in line]
    assert kshipra.count(held["weights"], "B") in line


def test_the_command_line_prints_profile_and_memory(capsys):
    assert kshipra.main(["-p", "Once", "-n", "2", "-c", "64", "--profile"]) == 0
    out = capsys.readouterr().out
    for word in ("prefill, ", "decode, 2 tokens", "matmul Q4_0", "attention", "weights", "KV"):
        assert word in out
