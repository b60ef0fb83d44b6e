"""Chapter 16: the store and attention equal their operations of chapter 4, with ==."""
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
from kernel_tools import (  # noqa: E402
    ISAS, Memory, OPS, RANDOMS, call, few, flat_of, floats_of, kernel_of, native, ways)


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


BAD_KEYS = {
    "f32": [struct.pack("<f", bad) for bad in (math.nan, math.inf, -math.inf, 3e38, -3e38)],
    "f16": [struct.pack("<e", bad) for bad in (math.nan, math.inf, -math.inf)],
    "q8_0": [struct.pack("<e", bad) for bad in (math.nan, math.inf)],       # a block's scale
}


@ways
@pytest.mark.parametrize("kv_type, bad", [(t, bad) for t in BAD_KEYS for bad in BAD_KEYS[t]],
                         ids=lambda x: x if isinstance(x, str) else x.hex())
@pytest.mark.parametrize("cap", [0.0, 30.0])
@pytest.mark.parametrize("rows, parts", [(4, None), (1, 2)])
def test_a_score_that_is_not_finite_is_told_by_who_sees_the_key(run, kv_type, bad, cap, rows,
                                                                parts):
    """One cached key is bad: rows that see it have no number left, the others their own bits."""
    scene = Scene(random.Random(2), kv_type, 32, 1, 2, 64, (66,), (4,))
    for q in scene.q:
        q[0] = q[32] = 9.0                      # with a key of 3e38 the score is infinite
    spec = kshipra.Attention(2, 1, 32, kshipra.f32(32 ** -0.5), 48, cap, None)
    expected = scene.expected(spec)
    at = scene.pool.offset(scene.layer, scene.sequences[0].table[0], 0, 0, 20)
    scene.pool.arena[at:at + len(bad)] = bad
    found = scene.attend(run, spec, rows, 2, parts)
    for i, pos in enumerate(scene.positions):
        row = found[64 * i:64 * i + 64]
        if pos - 48 < 20:
            assert all(v != v for v in row)
        else:
            assert row == expected[64 * i:64 * i + 64]
    assert [pos - 48 < 20 for pos in scene.positions] == [True, True, False, False]


@ways
@kv_types
def test_a_key_that_was_never_stored_is_found_out(run, kv_type):
    """The canary of Scene: a finite value beside it hides nothing."""
    scene = Scene(random.Random(3), kv_type, 32, 1, 1, 64, (9,), (1,))
    scene.store(run)
    pool, seq = scene.pool, scene.sequences[0]
    a, b = (pool.offset(scene.layer, seq.table[0], which, 0, 9) for which in (0, 1))
    n = pool.vector_bytes[scene.layer]
    pool.arena[a:a + n] = b"\xff" * n
    assert pool.arena[b:b + n] != b"\xff" * n
    spec = kshipra.Attention(1, 1, 32, 1.0, 0, 0.0, None)
    assert all(v != v for v in scene.attend(run, spec, 1, 1))


@ways
@pytest.mark.parametrize("kv_type", ["f16", "f32"])
def test_the_lowest_score_is_seen(run, kv_type):
    """A score may be the lowest float32: it counts as any other does."""
    scene = Scene(random.Random(4), kv_type, 32, 1, 1, 8, (2,), (1,))
    for i, q in enumerate(scene.q):
        q[:] = array("f", [-1.0] + 31 * [0.0])
    seq, one = scene.sequences[0], array("f", [1.0] + 31 * [0.0])
    for pos in range(2):
        scene.pool.write(scene.layer, seq, pos, one, scene.kv_row())
    scene.k[0] = one
    scene.store(run)
    spec = kshipra.Attention(1, 1, 32, kshipra.F32_MAX, 0, 0.0, None)
    assert scene.attend(run, spec, 1, 1) == scene.expected(spec)


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
