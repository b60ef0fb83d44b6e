"""Chapters 15 and 16: every kernel equals its operation of chapter 4, with ==."""
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
import tiny  # noqa: E402

OPS = kshipra.Reference()


class Memory:
    """A piece of memory that kernels may touch, with a margin behind it that they may not."""

    MARGIN = b"\xa5" * 64

    def __init__(self, data):
        data = bytes(data)
        self.n_bytes = len(data)
        self.buf = bytearray(64) + data + self.MARGIN
        self.view = (kshipra.ctypes.c_char * len(self.buf)).from_buffer(self.buf)
        start = kshipra.ctypes.addressof(self.view)
        self.shift = -start % 64
        self.buf[self.shift:self.shift + len(data) + 64] = data + self.MARGIN
        self.address = start + self.shift

    def __bytes__(self):
        end = self.shift + self.n_bytes
        tail = bytes(self.buf[end:self.shift + self.n_bytes + 64])
        assert tail == self.MARGIN[:len(tail)], "a kernel wrote behind its array"
        return bytes(self.buf[self.shift:end])

    def floats(self):
        return array("f", bytes(self))


KERNELS = {}


def kernel_of(emit, *parameters):
    key = emit, parameters
    if key not in KERNELS:
        KERNELS[key] = kshipra.build(emit, *parameters)
    return KERNELS[key]


def interpreted(kernel, args, chunk, scratch):
    kshipra.interpret(kernel, args, chunk, scratch)


ISAS = kshipra.host_instruction_sets()[0]
FUNCTIONS = {}


def native(kernel, args, chunk, scratch):
    if kernel not in FUNCTIONS:
        code, reason = kshipra.compile_kernels([kernel], ISAS[0])
        assert code, reason
        FUNCTIONS[kernel] = code.function(0)
    FUNCTIONS[kernel](args, chunk, scratch)


WAYS = [interpreted, native] if ISAS else [interpreted]
SCRATCH = Memory(bytes(1 << 19))


def call(run, kernel, n_chunks, **values):
    """Run all chunks, last one first: their order must not matter."""
    held = {name: v.address if isinstance(v, Memory) else v for name, v in values.items()}
    args = kernel.args_array(**held)
    for chunk in reversed(range(n_chunks)):
        run(kernel, args.buffer_info()[0], chunk, SCRATCH.address)


def floats_of(rng, n, scale=1.0):
    """Floats of many sizes, some of them zero, small or large."""
    odd = (0.0, -0.0, 1e-30, -3e4, 88.5, -100.0, 1e-40)
    return array("f", [rng.choice(odd) if rng.random() < 0.05 else rng.gauss(0, scale)
                       for _ in range(n)])


def rows_of(flat, n):
    return [flat[i:i + n] for i in range(0, len(flat), n)]


def flat_of(rows):
    return array("f", b"".join([row.tobytes() for row in rows]))


def same(x, y):
    """Equal as numbers; NaN equals NaN."""
    return len(x) == len(y) and all(a == b or (a != a and b != b) for a, b in zip(x, y))


ways = pytest.mark.parametrize("run", WAYS, ids=lambda run: run.__name__)
RANDOMS = st.integers(0, 2**32).map(random.Random)
few = tiny.examples(8)
LENGTHS = st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 100]))


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


# The cache and attention

class Scene:
    """Some sequences in a page pool, and the rows of a batch that continue them."""

    def __init__(self, rng, kv_type, head_dim, n_kv_heads, group, page_size, lengths, n_new,
                 n_layers=2):
        self.rng, self.kv_type, self.head_dim = rng, kv_type, head_dim
        self.n_kv_heads, self.n_heads, self.page_size = n_kv_heads, n_kv_heads * group, page_size
        n_pages = sum([(n + new) // page_size + 1 for n, new in zip(lengths, n_new)])
        layers = [(n_kv_heads, head_dim)] * n_layers
        self.pool = kshipra.PagePool(layers, n_pages, page_size, kv_type)
        self.layer = rng.randrange(n_layers)
        rng.shuffle(self.pool.free)
        # What was never stored is NaN: whoever looks at it is found out.
        for i in range(0, len(self.pool.arena), 2):
            self.pool.arena[i:i + 2] = b"\xff\xff"
        self.rows = []
        sequences = []
        for n, new in zip(lengths, n_new):
            seq = kshipra.Sequence(self.pool)
            sequences.append(seq)
            seq.reserve(0, n + new)
            for pos in range(n):
                self.pool.write(self.layer, seq, pos, self.kv_row(), self.kv_row())
            self.rows += [(pos, seq) for pos in range(n, n + new)]
        self.positions = [pos for pos, seq in self.rows]
        self.sequences = [seq for pos, seq in self.rows]
        self.k = [self.kv_row() for _ in self.rows]
        self.v = [self.kv_row() for _ in self.rows]
        self.q = [array("f", [rng.gauss(0, 1) for _ in range(self.n_heads * head_dim)])
                  for _ in self.rows]
        view = (kshipra.ctypes.c_char * len(self.pool.arena)).from_buffer(self.pool.arena)
        self.arena = kshipra.ctypes.addressof(view)
        self.tables = Memory(array("q", [seq.table.buffer_info()[0] for seq in self.sequences]))

    def kv_row(self):
        n = self.n_kv_heads * self.head_dim
        return array("f", [self.rng.gauss(0, 1) for _ in range(n)])

    def fields(self):
        return dict(tables=self.tables, positions=Memory(array("i", self.positions)),
                    arena=self.arena, page_bytes=self.pool.page_bytes,
                    layer_off=self.pool.layer_offs[self.layer], page_size=self.page_size,
                    n_kv_heads=self.n_kv_heads)

    def store(self, run):
        n = 4 * self.n_kv_heads * self.head_dim
        call(run, kernel_of(kshipra.emit_kv_store, self.kv_type, self.head_dim), len(self.rows),
             k=Memory(flat_of(self.k)), k_row_bytes=n, v=Memory(flat_of(self.v)), v_row_bytes=n,
             **self.fields())

    def expected(self, spec):
        batch = kshipra.Batch([(0, pos, seq) for pos, seq in self.rows], [], self.pool)
        return flat_of(OPS.attention(self.q, self.k, self.v, batch, self.layer, spec))

    def attend(self, run, spec, rows, heads, parts=None):
        """Run emit_attention; parts: in so many, into slots, which emit_attention_merge merges."""
        n, row_bytes = len(self.rows), 4 * self.n_heads * self.head_dim
        out = Memory(bytes(row_bytes * n))
        sinks = Memory(array("f", spec.sinks or []))
        slots = max(self.positions) // kshipra.CHUNK + 1 if parts else 0
        slot_bytes = kshipra.AttentionScratch(self.head_dim).slot_bytes
        partials = Memory(b"\xff" * (n * self.n_heads * slots * slot_bytes))
        shared = dict(out=out, out_row_bytes=row_bytes, n_heads=self.n_heads, window=spec.window,
                      sinks=sinks if spec.sinks else 0, partials=partials if parts else 0,
                      slots=slots)
        kernel = kernel_of(kshipra.emit_attention, self.kv_type, self.head_dim, bool(spec.cap))
        call(run, kernel, -(-n // rows) * (self.n_heads // heads) * (parts or 1),
             q=Memory(flat_of(self.q)), q_row_bytes=row_bytes,
             scale_bits=kshipra.f32_bits(spec.scale), cap_bits=kshipra.f32_bits(spec.cap),
             n_rows=n, rows=rows, heads=heads, parts=parts or 1, **shared, **self.fields())
        if parts:
            call(run, kernel_of(kshipra.emit_attention_merge, self.head_dim), n * self.n_heads,
                 positions=self.fields()["positions"], heads=1, **shared)
        return out.floats()


kv_types = pytest.mark.parametrize("kv_type", sorted(kshipra.KV_TYPES))


def head_dims(kv_type, widths):
    """Return a strategy for the widths that a cache of kv_type can keep."""
    block_len = kshipra.KV_TYPES[kv_type].format.block_len
    return st.sampled_from([n for n in widths if n % block_len == 0])


def kv_rows(rng, n):
    """A row of n numbers that are hard to round, in f16 or in blocks."""
    kind = rng.randrange(5)
    if kind == 0:                       # halves between codes, where a block's scale is 1
        return array("f", [127.0] + [
            rng.choice([0.49999997, -0.49999997, rng.randrange(-126, 127) + 0.5,
                        rng.uniform(-126, 126)]) for _ in range(n - 1)])
    row = floats_of(rng, n, rng.choice([1e-44, 1e-38, 1e-9, 1e-5, 1.0, 1e6, 1e37]))
    row[0] = rng.choice([1e30, -1e30, 65504.0, 65519.0, 65520.0, -0.0, 6e-8, 2.5e-8, 1e-45,
                         8321039.5, 8321040.0, -8321041.0, 3.4e38])
    return array("f", n * [rng.choice([0.0, -0.0, 1e-45])]) if kind == 1 else row


@ways
@kv_types
@given(data=st.data(), n_kv_heads=st.integers(1, 3), page_size=st.sampled_from([8, 16, 64, 192]),
       rng=RANDOMS)
@few
def test_kv_store(run, kv_type, data, n_kv_heads, page_size, rng):
    """The whole arena is as PagePool.write leaves it: clamped, rounded, nothing else touched."""
    head_dim = data.draw(head_dims(kv_type, [2, 4, 8, 12, 16, 20, 24, 32, 64, 96, 128, 256]))
    scene = Scene(rng, kv_type, head_dim, n_kv_heads, 1, page_size, (rng.randrange(20), 0), (3, 2))
    for rows in (scene.k, scene.v):
        for row in rows:
            row[:head_dim] = kv_rows(rng, head_dim)
    before = scene.pool.arena[:]
    scene.store(run)
    found = scene.pool.arena[:]
    scene.pool.arena[:] = before
    for k, v, seq, pos in zip(scene.k, scene.v, scene.sequences, scene.positions):
        scene.pool.write(scene.layer, seq, pos, k, v)
    assert found == scene.pool.arena[:]


@ways
@kv_types
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_not_hidden_by_the_cache(run, kv_type, bad):
    """It comes back as no finite number; where the reference refuses, the logits then tell."""
    for at in (0, 17, 31):
        scene = Scene(random.Random(1), kv_type, 32, 1, 1, 8, (0,), (1,))
        scene.k[0][at] = scene.v[0][at] = bad
        scene.store(run)
        (_, keys, values), = scene.pool.chunks(scene.layer, scene.sequences[0], 0, 0, 1)
        assert not math.isfinite(keys[at]) and not math.isfinite(values[at])


def check_attention(run, rng, kv_type, head_dim, n_kv_heads, group, page_size, lengths, n_new,
                    window, cap, sinks, rows, heads, parts=None):
    """Store and attend in machine code; compare with the reference, bit for bit."""
    scene = Scene(rng, kv_type, head_dim, n_kv_heads, group, page_size, lengths, n_new)
    spec = kshipra.Attention(scene.n_heads, n_kv_heads, head_dim,
                             kshipra.f32(head_dim ** -0.5), window, cap,
                             [rng.gauss(0, 2) for _ in range(scene.n_heads)] if sinks else None)
    if spec.sinks:
        spec = spec._replace(sinks=array("f", spec.sinks))
    scene.store(run)
    found = scene.attend(run, spec, rows, heads, parts)
    assert found == scene.expected(spec)


LENGTHS_BEFORE = st.sampled_from([0, 1, 5, 7, 8, 31, 62, 63, 64, 70, 127, 130])


@ways
@kv_types
@given(data=st.data(), n_kv_heads=st.integers(1, 2),
       group=st.sampled_from([1, 2, 3, 4, 8]), page_size=st.sampled_from([8, 16, 64, 192]),
       lengths=st.lists(LENGTHS_BEFORE, min_size=1, max_size=3),
       n_new=st.lists(st.integers(1, 3), min_size=3, max_size=3),
       window=st.sampled_from([0, 1, 5, 8, 70]), cap=st.sampled_from([0.0, 50.0, 0.5]),
       sinks=st.booleans(), rows=st.integers(1, 8), rng=RANDOMS)
@tiny.examples(5)
def test_attention(run, kv_type, data, n_kv_heads, group, page_size, lengths, n_new, window,
                   cap, sinks, rows, rng):
    """Rows of several sequences, chunk borders, pages, windows, softcaps, sinks, all units."""
    head_dim = data.draw(head_dims(kv_type, [2, 8, 12, 16, 20, 24, 32]))
    heads = rng.choice([h for h in range(1, group + 1) if group % h == 0])
    check_attention(run, rng, kv_type, head_dim, n_kv_heads, group, page_size, lengths,
                    n_new[:len(lengths)], window, kshipra.f32(cap), sinks, rows, heads)


@ways
@kv_types
@given(data=st.data(), group=st.sampled_from([1, 3, 4]), page_size=st.sampled_from([8, 64, 192]),
       lengths=st.lists(LENGTHS_BEFORE, min_size=1, max_size=2), parts=st.integers(1, 4),
       window=st.sampled_from([0, 1, 8, 70]), cap=st.sampled_from([0.0, 0.5]),
       sinks=st.booleans(), rng=RANDOMS)
@tiny.examples(4)
def test_attention_in_parts(run, kv_type, data, group, page_size, lengths, parts, window, cap,
                            sinks, rng):
    """More parts than chunks, too: the others find nothing to do."""
    head_dim = data.draw(head_dims(kv_type, [2, 12, 24, 32]))
    heads = rng.choice([h for h in range(1, group + 1) if group % h == 0])
    check_attention(run, rng, kv_type, head_dim, 2, group, page_size, lengths, (1, 2), window,
                    kshipra.f32(cap), sinks, 1, heads, parts)


@pytest.mark.parametrize("kv_type, head_dim", [
    (kv_type, n) for kv_type, (format, _) in kshipra.KV_TYPES.items()
    for n in (4, 8, 12, 16, 20, 24, 32, 64, 80, 96, 128, 256) if n % format.block_len == 0])
@pytest.mark.skipif(not ISAS, reason="no machine code here")
def test_attention_of_every_width(head_dim, kv_type):
    """Enough rows across a border for units of eight pairs, of two and of one."""
    rng = random.Random(head_dim)
    for group, heads, rows, window, page_size in (
            (1, 1, 11, 0, 8), (3, 3, 4, 0, 64), (2, 1, 16, 9, 128)):
        check_attention(native, rng, kv_type, head_dim, 1, group, page_size, (58,), (13,), window,
                        0.0, False, rows, heads)
    check_attention(native, rng, kv_type, head_dim, 1, 3, 64, (140,), (3,), 0, 0.0, True, 1, 3, 2)


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
