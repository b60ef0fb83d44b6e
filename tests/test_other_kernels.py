"""Chapter 15: every kernel equals its operation of chapter 4, with ==."""
import math
import os
import random
import struct
import sys
from array import array

import pytest
from hypothesis import given, strategies as st

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import kshipra  # noqa: E402
from kernel_tools import (  # noqa: E402
    LENGTHS, Memory, OPS, RANDOMS, call, few, flat_of, floats_of, interpreted, kernel_of, rows_of,
    same, ways)


# Functions of one number

def emit_exp_of_vector(k):
    out, x = k.args("out", "x")
    k.store_f32x8(out, kshipra.emit_exp(k, k.load_f32x8(x)))


def exp_everywhere(run, xs):
    kernel = kernel_of(emit_exp_of_vector)
    out, x = Memory(bytes(32)), Memory(bytes(32))
    for i in range(0, len(xs), 8):
        x.buf[x.shift:x.shift + 32] = xs[i:i + 8].tobytes()
        call(run, kernel, 1, out=out, x=x)
        assert out.floats() == kshipra.exp(xs[i:i + 8])


@ways
def test_exp_over_its_range(run):
    """A sweep of both signs, through the clamps, the halves of ln 2, denormals and infinity."""
    steps = 2000 if run is interpreted else 400000
    xs = [-110 + 220 * i / steps for i in range(steps)]
    xs += [(i + 0.5) * math.log(2) + d for i in range(-130, 130) for d in (-1e-6, 0, 1e-6)]
    xs += [0.0, -0.0, 1e-45, -1e-45, math.inf, -math.inf, 3e38, -3e38, 88.0, -87.0]
    exp_everywhere(run, array("f", xs + [0.0] * (-len(xs) % 8)))


# Element by element

ELEMENTWISE = {
    "silu": (kshipra.emit_silu, 1, OPS.silu),
    "gelu": (kshipra.emit_gelu, 1, OPS.gelu),
    "gelu_erf": (kshipra.emit_gelu_erf, 1, OPS.gelu_erf),
    "swiglu_clamped": (kshipra.emit_swiglu_clamped, 2, OPS.swiglu_clamped),
    "add": (kshipra.emit_add, 2, OPS.add),
    "mul": (kshipra.emit_mul, 2, OPS.mul),
    "silu_mul": (kshipra.emit_silu_mul, 2, lambda x, y: OPS.mul(OPS.silu(x), y)),
    "gelu_mul": (kshipra.emit_gelu_mul, 2, lambda x, y: OPS.mul(OPS.gelu(x), y)),
    "scale": (kshipra.emit_scale, 1, OPS.mul),
    "softcap": (kshipra.emit_softcap, 1, OPS.softcap),
}


@ways
@pytest.mark.parametrize("name", ELEMENTWISE)
@given(n=LENGTHS, n_rows=st.integers(1, 3), slice_vectors=st.integers(1, 6), inplace=st.booleans(),
       rng=RANDOMS, c=st.sampled_from([30.0, 0.5, 33.94]))
@few
def test_elementwise(run, name, n, n_rows, slice_vectors, inplace, rng, c):
    emit, n_inputs, reference = ELEMENTWISE[name]
    x, y = floats_of(rng, n * n_rows, 3), floats_of(rng, n * n_rows)
    c = kshipra.f32(c)
    numbers = {"c_bits": kshipra.f32_bits(c)} if name in ("scale", "softcap") else {}
    expected = reference(rows_of(x, n), *[rows_of(y, n)] * (n_inputs - 1), *[c] * len(numbers))
    memory = {"x": Memory(x), "y": Memory(y)}
    memory = dict(list(memory.items())[:n_inputs])
    out = memory["x"] if inplace else Memory(bytes(4 * n * n_rows))
    slices = -(-n // (8 * slice_vectors))
    call(run, kernel_of(emit), n_rows * slices, **memory, out=out, n=n, slice=8 * slice_vectors,
         slices=slices, **{name + "_row_bytes": 4 * n for name in (*memory, "out")}, **numbers)
    assert same(out.floats(), flat_of(expected))


@ways
def test_add_of_one_row_to_all(run):
    x, y = array("f", range(30)), array("f", [0.1 * i for i in range(10)])
    out = Memory(bytes(120))
    call(run, kernel_of(kshipra.emit_add), 3, x=Memory(x), x_row_bytes=40, y=Memory(y),
         y_row_bytes=0, out=out, out_row_bytes=40, n=10, slice=16, slices=1)
    assert out.floats() == flat_of(OPS.add(rows_of(x, 10), y))


@ways
@given(n=LENGTHS, n_rows=st.integers(1, 3), inplace=st.booleans(), rng=RANDOMS)
@few
def test_gate(run, n, n_rows, inplace, rng):
    x, g = floats_of(rng, n * n_rows), floats_of(rng, n_rows, 30)
    x_mem = Memory(x)
    out = x_mem if inplace else Memory(bytes(x_mem))
    call(run, kernel_of(kshipra.emit_gate), n_rows, x=x_mem, x_row_bytes=4 * n, g=Memory(g),
         g_row_bytes=4, out=out, out_row_bytes=4 * n, n=n)
    assert same(out.floats(), flat_of(OPS.gate(rows_of(x, n), rows_of(g, 1))))


@ways
@given(n=LENGTHS, wanted=st.lists(st.integers(0, 4), min_size=1, max_size=6))
@few
def test_rows(run, n, wanted):
    x = array("f", range(5 * n))
    out = Memory(bytes(4 * n * len(wanted)))
    call(run, kernel_of(kshipra.emit_rows), len(wanted), x=Memory(x), x_row_bytes=4 * n,
         index=Memory(array("i", wanted)), out=out, out_row_bytes=4 * n, n=n)
    assert out.floats() == flat_of(OPS.rows(rows_of(x, n), wanted))


# Norms

@ways
@given(n=LENGTHS, runs=st.integers(1, 4), n_rows=st.integers(1, 3), inplace=st.booleans(),
       rng=RANDOMS)
@few
def test_rms_norm(run, n, runs, n_rows, inplace, rng):
    x, w, eps = floats_of(rng, n * runs * n_rows), floats_of(rng, n), kshipra.f32(1e-5)
    x_mem = Memory(x)
    out = x_mem if inplace else Memory(bytes(x_mem))
    call(run, kernel_of(kshipra.emit_rms_norm), n_rows, x=x_mem, x_row_bytes=4 * n * runs, out=out,
         out_row_bytes=4 * n * runs, w=Memory(w), n=n, runs=runs, eps_bits=kshipra.f32_bits(eps))
    assert out.floats() == flat_of(OPS.rms_norm(rows_of(x, n * runs), w, eps))


@ways
@given(n=LENGTHS, n_rows=st.integers(1, 3), bias=st.booleans(),
       rng=RANDOMS)
@few
def test_layer_norm(run, n, n_rows, bias, rng):
    x, w, eps = floats_of(rng, n * n_rows), floats_of(rng, n), kshipra.f32(1e-5)
    b = floats_of(rng, n) if bias else None
    out, b_mem = Memory(bytes(4 * n * n_rows)), Memory(b or b"")
    call(run, kernel_of(kshipra.emit_layer_norm), n_rows, x=Memory(x), x_row_bytes=4 * n, out=out,
         out_row_bytes=4 * n, w=Memory(w), b=b_mem if bias else 0, n=n,
         eps_bits=kshipra.f32_bits(eps))
    assert out.floats() == flat_of(OPS.layer_norm(rows_of(x, n), w, b, eps))


# Rope

@ways
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@given(half=st.integers(1, 20), still=st.integers(0, 20), n_heads=st.integers(1, 3),
       positions=st.lists(st.integers(0, 50), min_size=1, max_size=3), inplace=st.booleans(),
       rng=RANDOMS)
@few
def test_rope(run, pairing, half, still, n_heads, positions, inplace, rng):
    head_dim = 2 * half + still
    n = n_heads * head_dim
    x = floats_of(rng, n * len(positions))
    table = kshipra.RopeTable(pairing, [10000.0 ** (-i / half) for i in range(half)])
    table.rows(max(positions))
    x_mem = Memory(x)
    out = x_mem if inplace else Memory(bytes(4 * len(x)))
    call(run, kernel_of(kshipra.emit_rope, pairing), len(positions), x=x_mem, x_row_bytes=4 * n,
         out=out, out_row_bytes=4 * n, positions=Memory(array("i", positions)),
         cos=Memory(table.cos), sin=Memory(table.sin), n_heads=n_heads, head_dim=head_dim,
         n_rot=2 * half)
    assert out.floats() == flat_of(OPS.rope(rows_of(x, n), positions, table, head_dim))


# Long rows

@ways
@given(n=LENGTHS, n_rows=st.integers(1, 3), levels=st.integers(1, 50),
       rng=RANDOMS)
@few
def test_argmax(run, n, n_rows, levels, rng):
    """Few different values, so that ties are common, zeros of both signs among them."""
    values = [0.0, -0.0, -3.4028234663852886e38] + [rng.gauss(0, 1) for _ in range(levels)]
    x = array("f", [rng.choice(values[:levels + 2]) for _ in range(n * n_rows)])
    out = Memory(b"\xff" * (16 * n_rows))
    call(run, kernel_of(kshipra.emit_argmax), n_rows, x=Memory(x), x_row_bytes=4 * n, n=n, out=out)
    for i, row in enumerate(rows_of(x, n)):
        index, value, wild, zero = struct.unpack_from("<ifii", bytes(out), 16 * i)
        assert (index, value, wild, zero) == (OPS.argmax(row), max(row), 0, 0)


@ways
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_argmax_tells_what_is_not_finite(run, bad):
    for n in (1, 8, 13, 40):
        for at in {0, n // 2, n - 1}:
            x = array("f", range(n))
            x[at] = bad
            out = Memory(bytes(16))
            call(run, kernel_of(kshipra.emit_argmax), 1, x=Memory(x), x_row_bytes=0, n=n, out=out)
            assert struct.unpack_from("<i", bytes(out), 8) == (1,)


# Experts

def routed(run, x, n, n_used, normalize):
    """Return (experts, weights) of all rows, by the kernel."""
    n_rows = len(x) // n
    experts, weights = Memory(b"\xff" * (4 * n_used * n_rows)), Memory(bytes(4 * n_used * n_rows))
    call(run, kernel_of(kshipra.emit_route), n_rows, x=Memory(x), x_row_bytes=4 * n, n=n,
         n_used=n_used, normalize=int(normalize), experts=experts, weights=weights)
    return list(array("i", bytes(experts))), weights.floats()


@ways
@pytest.mark.parametrize("normalize", [True, False])
@given(n=st.one_of(LENGTHS, st.sampled_from([128, 255, 512])), n_rows=st.integers(1, 3),
       levels=st.integers(1, 200), rng=RANDOMS)
@few
def test_route(run, normalize, n, n_rows, levels, rng):
    """Few different logits, so that ties are common; some far apart, as if infinitely so."""
    values = [0.0, -0.0, 3e38, -3.4028234663852886e38] + [rng.gauss(0, 3) for _ in range(levels)]
    x = array("f", [rng.choice(values[:levels + 3]) for _ in range(n * n_rows)])
    n_used = rng.choice([1, n, rng.randint(1, n), min(n, 8)])
    expected = OPS.route(rows_of(x, n), n_used, normalize)
    assert routed(run, x, n, n_used, normalize) == (expected.experts, expected.weights)


@ways
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_route_by_what_is_not_finite_stays_among_the_experts(run, bad, normalize):
    """Where an expert would lie is an address; that a logit was wild shows in all weights."""
    for n in (1, 7, 8, 21):
        for places in ([0], [n // 2], [n - 1], range(n)):
            x = array("f", range(n))
            for at in places:
                x[at] = bad
            for n_used in {1, n // 2 or 1, n}:
                experts, weights = routed(run, x, n, n_used, normalize)
                assert all(0 <= e < n for e in experts)
                assert all(w != w for w in weights)


@ways
@given(n=LENGTHS, n_rows=st.integers(1, 3), n_used=st.integers(1, 9), rng=RANDOMS)
@few
def test_mix(run, n, n_rows, n_used, rng):
    n_picks = n_rows * n_used
    x, weights = floats_of(rng, n * n_picks), floats_of(rng, n_picks)
    out = Memory(bytes(4 * n * n_rows))
    call(run, kernel_of(kshipra.emit_mix), n_rows, x=Memory(x), x_row_bytes=4 * n,
         weights=Memory(weights), n_used=n_used, out=out, out_row_bytes=4 * n, n=n)
    expected = flat_of(OPS.mix(rows_of(x, n), kshipra.Route(n_used, None, weights)))
    assert bytes(out) == expected.tobytes()


@ways
@given(n=st.one_of(LENGTHS, st.integers(100, 300)), n_rows=st.integers(1, 2),
       capacity=st.integers(1, 80), rng=RANDOMS)
@few
def test_compact(run, n, n_rows, capacity, rng):
    x = array("f", [float(rng.randrange(40)) for _ in range(n * n_rows)])
    thresholds = array("f", [rng.choice([-1.0, 20.0, 36.0, 38.5, 100.0]) for _ in range(n_rows)])
    values, indices = Memory(bytes(4 * capacity * n_rows)), Memory(bytes(4 * capacity * n_rows))
    counts = Memory(bytes(8 * n_rows))
    call(run, kernel_of(kshipra.emit_compact), n_rows, x=Memory(x), x_row_bytes=4 * n, n=n,
         threshold=Memory(thresholds), values=values, indices=indices, capacity=capacity,
         counts=counts)
    for i, row in enumerate(rows_of(x, n)):
        wanted = [j for j, v in enumerate(row) if v >= thresholds[i]]
        assert array("q", bytes(counts))[i] == len(wanted)
        wanted = wanted[:capacity]
        start = i * capacity
        assert list(array("i", bytes(indices))[start:start + len(wanted)]) == wanted
        assert list(values.floats()[start:start + len(wanted)]) == [row[j] for j in wanted]
