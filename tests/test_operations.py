"""Chapter 4, Operations: each step against a formula in double, each road against the naive."""
import math
import random
import struct
from array import array
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kshipra
import tiny
from kshipra import FORMATS, KshipraError, Tensor, f32

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
MODERATE = st.floats(-1e4, 1e4, width=32)
QUANTIZED = [name for name, row in FORMATS.items() if row.sub_len]
FLOATS = [name for name, row in FORMATS.items() if not row.sub_len]
EPS = 2.0 ** -24                        # half an ulp of 1: what one rounding may lose


def ulp(x):
    """The distance of x, a float32, to the next one."""
    bits = struct.unpack("<I", struct.pack("<f", abs(x)))[0]
    return struct.unpack("<f", struct.pack("<I", bits + 1))[0] - abs(x)


def random_floats(rng, n, spread=1.0):
    return array("f", [rng.gauss(0, spread) for _ in range(n)])


def random_weight(rng, name, n_out, n_in):
    """A matrix of random blocks: all codes and sub-scales occur, d and m are sane."""
    row = FORMATS[name]
    n_blocks = n_out * n_in // row.block_len
    if row.sub_len is None:
        data = row.encode(random_floats(rng, n_out * n_in))
    else:
        ds, ms = ([rng.uniform(-0.01, 0.01) for _ in range(n_blocks)] for _ in range(2))
        data = row.with_scales(rng.randbytes(n_blocks * row.block_bytes), ds, ms)
    return Tensor("w", row, (n_out, n_in), bytes(data))


# Rounding and the order of sums.

@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e38, max_value=1e38))
def test_f32_rounds_as_struct_does(x):
    assert f32(x) == struct.unpack("<f", struct.pack("<f", x))[0]


@given(FINITE, FINITE)
def test_one_rounding_of_a_double_is_the_float32_result(x, y):
    """+ - * / in double, then rounded, against exact rational arithmetic, rounded once."""
    exact = [Fraction(x) + Fraction(y), Fraction(x) * Fraction(y)] + (
        [Fraction(x) / Fraction(y)] if y else [])
    got = [x + y, x * y] + ([x / y] if y else [])
    for want, have in zip(exact, got):
        if abs(want) >= 2 ** 127:
            continue
        have = f32(have)
        step = Fraction(ulp(have))
        assert abs(Fraction(have) - want) <= step / 2 or have == 0 or abs(have) < 2.0 ** -126


def test_lane_sum_on_paper():
    big = 2.0 ** 24                     # big + 1 == big in float32
    assert kshipra.lane_sum(array("f")) == 0.0
    assert math.copysign(1, kshipra.lane_sum(array("f", [-0.0]))) == 1
    assert kshipra.lane_sum(array("f", [3.0])) == 3.0
    assert kshipra.lane_sum(array("f", range(1, 20))) == 190.0
    # Lanes 0 and 1 meet first: big + 1 loses the 1.
    assert kshipra.lane_sum(array("f", [big, 1, 0, 0, 0, 0, 0, 0])) == big
    # Elements 0 and 8 share lane 0, so -big comes before the 1 of lane 1.
    assert kshipra.lane_sum(array("f", [big, 1, 0, 0, 0, 0, 0, 0, -big])) == 1.0
    # Lanes 0..3 are one half of the tree and 4..7 the other: (big + 1) + (1 - big) = big - big.
    assert kshipra.lane_sum(array("f", [big, 0, 1, 0, 1, 0, -big, 0])) == 1.0


@given(st.lists(MODERATE, max_size=70))
def test_lane_sum_equals_its_definition(values):
    lanes = [0.0] * 8
    for i, v in enumerate(values):
        lanes[i % 8] = f32(lanes[i % 8] + v)
    a, b, c, d, e, f, g, h = lanes
    tree = f32(f32(f32(a + b) + f32(c + d)) + f32(f32(e + f) + f32(g + h)))
    assert kshipra.lane_sum(array("f", values)) == tree


# Functions of one number.

def test_exp_is_within_2_ulp_and_exact_at_0():
    rng = random.Random(5)
    xs = array("f", [rng.uniform(-87, 88) for _ in range(20000)])
    xs.extend([rng.uniform(-1, 1) for _ in range(20000)])
    worst = max(abs(y - math.exp(x)) / ulp(math.exp(x)) for x, y in zip(xs, kshipra.exp(xs)))
    assert worst <= 2, worst
    assert list(kshipra.exp([0.0, -0.0])) == [1.0, 1.0]


@given(FINITE)
def test_exp_is_clamped_positive_and_finite(x):
    (y,) = kshipra.exp([x])
    assert 0 < y < math.inf
    assert y == kshipra.exp([min(max(x, -87.0), 88.0)])[0]


def test_exp_does_not_decrease_beyond_its_error():
    xs = array("f", [-87 + i * 175 / 9999 for i in range(10000)])
    ys = kshipra.exp(xs)
    assert all(b >= a * (1 - 4 * EPS) for a, b in zip(ys, ys[1:]))


def test_exp_of_infinity_is_clamped_and_of_nan_is_refused():
    low, high = kshipra.exp([-math.inf, math.inf])
    assert (low, high) == tuple(kshipra.exp([-87.0, 88.0]))
    with pytest.raises(KshipraError, match="not a number"):
        kshipra.exp([0.0, math.nan])


# One rounding each for the few steps after exp, whose error is 2 ulp = 4 EPS: 8 EPS covers it.

@given(st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=20))
def test_silu_against_double(xs):
    for x, y in zip(xs, kshipra.silu_of(array("f", xs))):
        want = x / (1 + math.exp(-x))
        assert abs(y - want) <= 8 * EPS * abs(want) + 2.0 ** -126


@given(st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=20))
def test_gelu_against_double(xs):
    """The argument u of exp carries 4 roundings, so exp(u) is off by |u| * 4 EPS more."""
    for x, y in zip(xs, kshipra.gelu_of(array("f", xs))):
        u = 2 * math.sqrt(2 / math.pi) * (x + f32(0.044715) * x ** 3)
        want = x / (1 + math.exp(min(-u, 700)))
        relative = (8 + 6 * min(abs(u), 88)) * EPS
        assert abs(y - want) <= relative * abs(want) + 1e-35
    assert list(kshipra.gelu_of(array("f", [0.0]))) == [0.0]


def test_gelu_erf_against_libm():
    """The tail is off by 2e-6 of itself, more where its exponent is large; the rest by 2 ulp."""
    xs = array("f", [-12 + i / 512 for i in range(12 * 1024)] + [0.0, -0.0, 40.0, -40.0, 1e-30])
    for x, y in zip(xs, kshipra.gelu_erf_of(xs)):
        want = x * math.erfc(-x / math.sqrt(2)) / 2
        assert abs(y - want) <= (3e-6 + 5e-7 * min(x * x, 150) * (x < 0)) * abs(want) + 1e-35
    assert list(kshipra.gelu_erf_of(array("f", [0.0]))) == [0.0]


@given(st.lists(st.tuples(st.floats(-30, 30, width=32), st.floats(-30, 30, width=32)),
                min_size=1, max_size=20))
def test_swiglu_clamped_against_double(pairs):
    """The sum up + 1 rounds where it may nearly cancel, so its error counts as that of 1."""
    gates, ups = (array("f", side) for side in zip(*pairs))
    for gate, up, y in zip(gates, ups, kshipra.swiglu_clamped_of(gates, ups)):
        gate, up = min(gate, 7.0), min(max(up, -7.0), 7.0)
        want = gate / (1 + math.exp(-1.702 * gate))
        assert abs(y - want * (up + 1)) <= (12 + 6 * abs(gate)) * EPS * abs(want) * (
            abs(up) + 1) + 1e-30


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_swiglu_clamped_hides_nothing(bad):
    for pair in (([bad], [1.0]), ([1.0], [bad])):
        with pytest.raises(KshipraError, match="infinite"):
            kshipra.swiglu_clamped_of(*(array("f", side) for side in pair))


@given(st.floats(-80, 80, width=32))
def test_gate_is_a_sigmoid(g):
    row, = kshipra.Reference().gate([array("f", [1.0, -3.0])], [array("f", [g])])
    want = 1 / (1 + math.exp(-g))
    assert abs(row[0] - want) <= 8 * EPS * want and row[1] == f32(-3 * row[0])


@pytest.mark.parametrize("cap", [0.5, 30.0, 50.0])
@given(xs=st.lists(st.floats(-1000, 1000, width=32), min_size=1, max_size=20))
def test_softcap_against_double(cap, xs):
    """tanh is 1 - 2 / (1 + exp), so near 0 its error is absolute: a few EPS, times the cap."""
    for x, y in zip(xs, kshipra.softcap_of(array("f", xs), cap)):
        assert abs(y - cap * math.tanh(x / cap)) <= 12 * EPS * cap
        assert abs(y) <= cap


# Norms, rope.

@given(st.lists(MODERATE, min_size=1, max_size=40), st.integers(0, 99))
def test_rms_norm_against_double(row, seed):
    w = random_floats(random.Random(seed), len(row))
    (y,) = kshipra.Reference().rms_norm([array("f", row)], w, f32(1e-5))
    scale = 1 / math.sqrt(math.fsum(v * v for v in row) / len(row) + f32(1e-5))
    for v, g, out in zip(row, w, y):
        # at most 5 + 3 additions in a lane and the tree, and 6 roundings besides
        assert abs(out - v * scale * g) <= 16 * EPS * abs(v * scale * g) + 1e-37


@given(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=40), st.integers(0, 99))
def test_layer_norm_against_double(row, seed):
    rng = random.Random(seed)
    w, b = random_floats(rng, len(row)), random_floats(rng, len(row))
    (y,) = kshipra.Reference().layer_norm([array("f", row)], w, b, f32(1e-5))
    mean = math.fsum(row) / len(row)
    scale = 1 / math.sqrt(math.fsum((v - mean) ** 2 for v in row) / len(row) + f32(1e-5))
    top = max(map(abs, row))
    for v, g, c, out in zip(row, w, b, y):
        # v - mean loses up to 12 EPS of the largest value, which the scale then magnifies
        bound = 16 * EPS * (abs((v - mean) * scale * g) + abs(c)) + 16 * EPS * top * scale * abs(g)
        assert abs(out - ((v - mean) * scale * g + c)) <= 2 * bound + 1e-37


def test_norm_of_zeros_is_zeros_and_of_each_head_its_own():
    ops, w = kshipra.Reference(), array("f", [1, 2, 3, 4])
    assert ops.rms_norm([array("f", bytes(16))], w, f32(1e-6))[0] == array("f", bytes(16))
    rng = random.Random(3)
    a, b = random_floats(rng, 4), random_floats(rng, 4)
    whole, = ops.rms_norm([a + b], w, f32(1e-6))
    parts = ops.rms_norm([a, b], w, f32(1e-6))
    assert whole == parts[0] + parts[1]


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("n_rot", [8, 4])
def test_rope_turns_unit_vectors_by_cos_and_sin(pairing, n_rot):
    """P04: dim 8, position 1 and 3, two heads; dimensions beyond n_rot stay."""
    freqs = [100.0 ** (-2 * i / n_rot) for i in range(n_rot // 2)]
    table = kshipra.RopeTable(pairing, freqs)
    for pos in (0, 1, 3):
        for d in range(8):
            x = array("f", bytes(64))
            x[d] = x[8 + d] = 1.0
            y, = kshipra.Reference().rope([x], [pos], table, 8)
            want = [0.0] * 8
            if d >= n_rot:
                want[d] = 1.0
            else:
                if pairing == "interleaved":
                    pair, first, other = d // 2, d % 2 == 0, d ^ 1
                else:
                    half = n_rot // 2
                    pair, first, other = d % half, d < half, (d + half) % n_rot
                angle = pos * freqs[pair]
                want[d] = f32(math.cos(angle))
                want[other] = f32(math.sin(angle)) if first else -f32(math.sin(angle))
            assert list(y[:8]) == want and list(y[8:]) == want


def test_rope_table_is_the_same_however_it_grows():
    freqs = [1.0, 0.1, 0.01]
    at_once, grown = (kshipra.RopeTable("half", freqs, 1.25) for _ in range(2))
    far = at_once.rows(4000)
    for p in (3, 0, 17, 4000):
        assert grown.rows(p) == at_once.rows(p)
    for c, s, f in zip(*far, freqs):
        assert abs(c - 1.25 * math.cos(4000 * f)) < 1e-6
        assert abs(s - 1.25 * math.sin(4000 * f)) < 1e-6


# Matmul: three roads and the formula.

@tiny.examples(6)
@pytest.mark.parametrize("name", QUANTIZED)
@given(n_out=st.sampled_from([1, 2, 7, 63, 64, 65, 130]), blocks=st.integers(1, 2),
       n_rows=st.integers(1, 3), seed=st.integers(0, 2 ** 20))
def test_quantized_matmul_is_the_same_on_every_road(name, n_out, blocks, n_rows, seed):
    rng = random.Random(seed)
    n_in = FORMATS[name].block_len * blocks if FORMATS[name].block_len > 32 else 96 * blocks
    n_rows = 1 if n_out * n_in > 10000 else n_rows
    w = random_weight(rng, name, n_out, n_in)
    x = [random_floats(rng, n_in, 10.0 ** rng.randint(-6, 6)) for _ in range(n_rows)]
    x[0][:32] = array("f", bytes(128))              # a block of zeros
    x[0][-1] = rng.choice((0.0, 2.0 ** -101, 2.0 ** -100, 3e38))
    naive = kshipra.matmul_naive(w, x)
    assert kshipra.matmul_tiled(w, x) == naive
    assert kshipra.matmul_packed(kshipra.PackedWeight(w), x) == naive
    for kind in ("naive", "tiled", "packed"):
        assert kshipra.Reference(kind).matmul(w, x) == naive


@tiny.examples(8)
@pytest.mark.parametrize("name", FLOATS)
@given(n_out=st.integers(1, 20), n_in=st.integers(1, 40), seed=st.integers(0, 2 ** 20))
def test_float_matmul_is_the_same_on_every_road(name, n_out, n_in, seed):
    rng = random.Random(seed)
    w = random_weight(rng, name, n_out, n_in)
    x = [random_floats(rng, n_in, 10.0 ** rng.randint(-20, 15)) for _ in range(2)]
    naive = kshipra.matmul_naive(w, x)
    assert kshipra.matmul_tiled(w, x) == naive
    assert kshipra.Reference().matmul(w, x) == naive
    # A transposed view, as GPT-2's safetensors need, is the same matrix.
    columns = Tensor("w", w.format, (n_in, n_out), w.format.encode(w.T.floats())).T
    assert kshipra.matmul_naive(columns, x) == naive
    assert kshipra.Reference().matmul(columns, x) == naive
    for y, xr in zip(naive, x):
        for o in range(n_out):
            products = [a * b for a, b in zip(w[o].floats(), xr)]
            bound = (n_in / 8 + 5) * EPS * math.fsum(map(abs, products))
            assert abs(y[o] - math.fsum(products)) <= bound + 1e-40


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_matmul_is_near_the_product_of_the_floats(name):
    """Off by at most half a code step of each activation, and by the rounding of the sums."""
    rng = random.Random(7)
    w = random_weight(rng, name, 16, 512)
    x = random_floats(rng, 512)
    y, = kshipra.matmul_naive(w, [x])
    for o in range(16):
        row = w[o].floats()
        bound = 0.0
        for i in range(0, 512, 32):
            step = max(map(abs, x[i:i + 32])) / 127
            bound += step / 2 * math.fsum(map(abs, row[i:i + 32]))
        exact = math.fsum(a * b for a, b in zip(row, x))
        slack = 64 * EPS * math.fsum(abs(a * b) for a, b in zip(row, x))
        # With a minimum, terms of size code * scale and of size min cancel.
        slack += 64 * EPS * 16 * 0.01 * 64 * math.fsum(map(abs, x))
        assert abs(y[o] - exact) <= 1.01 * bound + slack


@given(st.lists(st.floats(-2.0 ** 99, 2.0 ** 99, width=32), min_size=32, max_size=32))
def test_quantized_activations_are_near_and_in_range(row):
    codes, scales = kshipra.quantize_activations(array("f", row))
    amax = max(map(abs, row))
    assert len(scales) == 1 and all(-127 <= c <= 127 and isinstance(c, int) for c in codes)
    if amax < 2.0 ** -100:
        assert scales[0] == 0 and not any(codes)
    else:
        assert max(map(abs, codes)) == 127
        assert all(abs(c * scales[0] - v) <= 0.5001 * scales[0] for c, v in zip(codes, row))


def test_quantized_activations_round_half_to_even():
    codes, scales = kshipra.quantize_activations(
        array("f", [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5] + [0] * 25))
    assert codes[:7] == [127, 0, 2, 2, 0, -2, -2] and scales[0] == 1.0


def test_prepared_weights_stay_within_their_limit(monkeypatch):
    monkeypatch.setattr(kshipra, "PREPARED_LIMIT_BYTES", 5 * 4 * 64)
    ops, rng = kshipra.Reference(), random.Random(1)
    first, second = (random_weight(rng, "Q4_0", 4, 64) for _ in range(2))
    x = [random_floats(rng, 64)]
    assert ops.matmul(first, x) == kshipra.matmul_naive(first, x)
    assert ops.matmul(second, x) == kshipra.matmul_naive(second, x)
    assert ops.prepare(first) is not None and ops.prepare(second) is None


# Attention.

def plain_attention(q, keys, values, scale, cap=0.0, sink=None):
    """softmax(scale q.k) v in double."""
    dim = len(q)
    scores = [math.fsum(a * b for a, b in zip(q, keys[j:j + dim])) * scale
              for j in range(0, len(keys), dim)]
    if cap:
        scores = [cap * math.tanh(s / cap) for s in scores]
    top = max(scores + ([] if sink is None else [sink]))
    p = [math.exp(s - top) for s in scores]
    total = math.fsum(p) + (0 if sink is None else math.exp(sink - top))
    return [math.fsum(pj * values[j * dim + d] for j, pj in enumerate(p)) / total
            for d in range(dim)], scores


def cut(keys, values, dim, first=0):
    """Chunks as the cache yields them."""
    n, at = len(keys) // dim, 0
    while at < n:
        stop = min(n, ((first + at) // 64 + 1) * 64 - first)
        yield first + at, keys[at * dim:stop * dim], values[at * dim:stop * dim]
        at = stop


@tiny.examples(15)
@given(n=st.sampled_from([1, 2, 8, 63, 64, 65, 130]), first=st.sampled_from([0, 1, 7, 60, 64]),
       dim=st.sampled_from([1, 4, 8, 12]), spread=st.sampled_from([0.0, 0.3, 3.0]),
       cap=st.sampled_from([0.0, 5.0]), sink=st.sampled_from([None, -3.0, 8.0]),
       seed=st.integers(0, 999))
def test_attention_is_softmax(n, first, dim, spread, cap, sink, seed):
    """An error of a score is an error of its weight; the weights add up to 1."""
    rng = random.Random(seed)
    q = random_floats(rng, dim, spread)
    keys, values = random_floats(rng, n * dim, spread), random_floats(rng, n * dim)
    got = kshipra.attend(q, cut(keys, values, dim, first), f32(0.5), cap, sink)
    want, scores = plain_attention(q, keys, values, f32(0.5), cap, sink)
    score_error = 8 * EPS * (1 + max(map(abs, scores), default=0)
                             + dim * spread * spread * 10 + cap)
    bound = (2 * score_error + (40 + n / 2) * EPS) * max(map(abs, values))
    assert all(abs(a - b) <= bound for a, b in zip(got, want))


def test_softmax_extremes():
    """Scores far apart, all equal, hugely negative: weights 1 and 0, equal, equal."""
    values = array("f", [1, 2, 4])
    one = array("f", [1])
    chunk = lambda *keys: [(0, array("f", keys), values[:len(keys)])]
    assert kshipra.attend(one, chunk(0, 1000, 0), 1.0)[0] == 2.0
    assert kshipra.attend(one, chunk(-3e38, 3e38), 1.0)[0] == 2.0
    assert kshipra.attend(one, chunk(-1e30, -1e30, -1e30), 1.0)[0] == f32(7 / 3)
    assert kshipra.attend(one, chunk(5), 1.0)[0] == 1.0
    assert kshipra.attend(one, chunk(5), 1.0, sink=5.0)[0] == 0.5
    assert 0 < kshipra.attend(one, chunk(5), 1.0, sink=1e6)[0] < 1e-37


def test_merging_keeps_the_smaller_maximum_in_proportion():
    q = array("f", [1.0])
    low = kshipra.attend_chunk(q, array("f", [0.0]), array("f", [1.0]), 1.0, 0)
    high = kshipra.attend_chunk(q, array("f", [2.0]), array("f", [3.0]), 1.0, 64)
    e = math.exp(-2)
    for pair in ((low, high), (high, low)):
        m, l, o = kshipra.merge_chunks(*pair)
        assert m == 2.0
        assert l == pytest.approx(1 + e, rel=4 * EPS) and o[0] == pytest.approx(3 + e, rel=4 * EPS)


# What is not finite is refused, on every road.

@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(bad):
    rng = random.Random(2)
    row = random_floats(rng, 64)
    row[40] = bad
    w = random_weight(rng, "Q4_0", 4, 64)
    for kind in ("naive", "tiled", "packed"):
        with pytest.raises(KshipraError, match="infinite or not a number"):
            kshipra.Reference(kind).matmul(w, [row])
    with pytest.raises(KshipraError):
        kshipra.softcap_of(row, 30.0)
    good = random_floats(rng, 64)
    for cap in (0.0, 30.0):
        with pytest.raises(KshipraError):
            kshipra.attend(row[32:48], [(0, good, good)], 1.0, cap)
        with pytest.raises(KshipraError):
            kshipra.attend(good[:16], [(0, row, good)], 1.0, cap)
    if math.isnan(bad):
        for operation in (kshipra.silu_of, kshipra.gelu_of, kshipra.gelu_erf_of):
            with pytest.raises(KshipraError):
                operation(row)


def test_argmax_takes_the_lowest_of_equals():
    assert kshipra.Reference().argmax(array("f", [1, 3, 2, 3])) == 1


# Experts

@given(st.integers(1, 40), st.integers(1, 3), st.booleans(), st.integers(0, 999))
def test_a_route_is_the_top_of_a_softmax(n, n_rows, normalize, seed):
    rng = random.Random(seed)
    x, n_used = [random_floats(rng, n, 3) for _ in range(n_rows)], rng.randint(1, n)
    route = kshipra.Reference().route(x, n_used, normalize)
    for r, row in enumerate(x):
        picks = slice(r * n_used, (r + 1) * n_used)
        order = sorted(range(n), key=lambda i: (-row[i], i))[:n_used]
        assert route.experts[picks] == order
        total = math.fsum(math.exp(row[i]) for i in (order if normalize else range(n)))
        for found, i in zip(route.weights[picks], order):
            assert found == pytest.approx(math.exp(row[i]) / total, rel=(n + 8) * EPS)


def test_a_route_takes_the_lowest_of_equals_and_refuses_what_is_not_finite():
    x = [array("f", [1.0, 2.0, 2.0, 0.0, 2.0]), array("f", [-0.0, 0.0, -1.0, 0.0, -0.0])]
    assert kshipra.Reference().route(x, 3, True).experts == [1, 2, 4, 0, 1, 3]
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(KshipraError, match="infinite or not a number"):
            kshipra.Reference().route([array("f", [1.0, bad])], 1, True)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 999))
def test_experts_are_mixed_by_their_weights(n_rows, n_used, seed):
    """Through the experts and back: each row is the weighted sum of its experts' products."""
    rng, ops = random.Random(seed), kshipra.Reference()
    up = [random_weight(rng, "F32", 6, 5) for _ in range(4)]
    down = [random_weight(rng, "F32", 3, 6) for _ in range(4)]
    x = [random_floats(rng, 5) for _ in range(n_rows)]
    experts = [e for _ in x for e in rng.sample(range(4), n_used)]
    route = kshipra.Route(n_used, experts, random_floats(rng, len(experts)))
    found = ops.mix(ops.matmul(down, ops.matmul(up, x, route), route), route)
    assert len(found) == n_rows
    for r, row in enumerate(found):
        wanted = [0.0] * 3
        for pick in range(r * n_used, (r + 1) * n_used):
            inside = ops.matmul(up[experts[pick]], [x[r]])
            (out,) = ops.matmul(down[experts[pick]], inside)
            wanted = [a + route.weights[pick] * b for a, b in zip(wanted, out)]
        assert list(row) == pytest.approx(wanted, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_goes_is_looked_at_when_it_goes(bad):
    """Nothing after `rows` can tell of it any more; of a row that stays, the logits tell."""
    ops, x = kshipra.Reference(), [array("f", [1.0, 2.0]), array("f", [3.0, bad])]
    with pytest.raises(kshipra.KshipraError, match="infinite"):
        ops.rows(x, [0])
    assert ops.rows(x[:1], []) == [] and ops.rows(x, [0, 1]) == x
