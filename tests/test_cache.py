"""Chapter 5, Cache: pages are counted, shared, copied before they are written, and given back."""
import hashlib
import math
import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import kshipra
import tiny
from kshipra import CHUNK, KshipraError, PagePool, Sequence

LAYERS = [(2, 4), (1, 6)]               # two layers that differ in heads and width
LAYERS_OF = {"f32": LAYERS, "f16": LAYERS, "q8_0": [(2, 32), (1, 64)]}
kv_types = pytest.mark.parametrize("kv_type", sorted(kshipra.KV_TYPES))


def vectors(rng, layers, layer):
    n_kv_heads, head_dim = layers[layer]
    return [array("f", [rng.gauss(0, 1) for _ in range(n_kv_heads * head_dim)]) for _ in "kv"]


def append(seq, token, rng, book):
    """Give a sequence one more position; `book` keeps what was written: (layer) -> [(k, v)]."""
    pos = len(seq.tokens)
    seq.reserve(pos, pos + 1)
    seq.tokens.append(token)
    for layer in range(len(LAYERS)):
        k, v = vectors(rng, seq.pool.layers, layer)
        seq.pool.write(layer, seq, pos, k, v)
        del book[layer][pos:]
        book[layer].append((k, v))


def rounded(row, kv_type):
    format = kshipra.FORMATS[kv_type.upper()]
    return format.decode(format.encode(row))


def check(seq, book, lowest=0):
    """Compare all that the pages hold with the book."""
    end = len(seq.tokens)
    for layer, (n_kv_heads, dim) in enumerate(seq.pool.layers):
        for head in range(n_kv_heads):
            at = lowest
            for first, keys, values in seq.pool.chunks(layer, seq, head, lowest, end):
                assert first == at
                n = len(keys) // dim
                assert n and first // CHUNK == (first + n - 1) // CHUNK
                for which, got in enumerate((keys, values)):
                    want = array("f")
                    for pos in range(first, first + n):
                        row = book[layer][pos][which]
                        want += rounded(row[head * dim:(head + 1) * dim], seq.pool.kv_type)
                    assert got == want
                at += n
            assert at == max(end, lowest)


@kv_types
@pytest.mark.parametrize("page_size", [8, 16, 32, 64, 128, 192])
def test_what_was_written_is_read(page_size, kv_type):
    rng, book = random.Random(1), [[], []]
    pool = PagePool(LAYERS_OF[kv_type], -(-200 // page_size), page_size, kv_type)
    seq = Sequence(pool)
    for i in range(200):
        append(seq, i, rng, book)
    for lowest in (0, 1, 7, 63, 64, 65, 199, 200):
        check(seq, book, lowest)


def test_f16_clamps_what_is_large_and_refuses_what_is_not_finite():
    pool = PagePool([(1, 8)], 1, 64, "f16")
    seq = Sequence(pool)
    seq.reserve(0, 1)
    row = array("f", [1e5, -1e30, 3e38, -65504, 65519, 1e-8, 0.1, -0.0])
    pool.write(0, seq, 0, row, row)
    (_, keys, values), = pool.chunks(0, seq, 0, 0, 1)
    assert keys == values
    assert list(keys) == [65504, -65504, 65504, -65504, 65504, 0, 0.0999755859375, 0]
    for bad in (math.inf, -math.inf, math.nan):
        row[3] = bad
        with pytest.raises(KshipraError, match="infinite or not a number"):
            pool.write(0, seq, 0, row, row)


@kv_types
def test_the_plan_is_what_the_pool_takes(tmp_path, kv_type):
    path = tiny.write(tmp_path / "tiny.gguf", n_layers=3, n_kv_heads=2, head_dim=64)
    pool = PagePool([(2, 64)] * 3, 1, 64, kv_type)
    line, = [line for line in kshipra.describe(path, kv_type=kv_type) if "KV cache" in line]
    assert line.endswith(f", {kv_type}, 256 positions of {pool.page_bytes // 64} bytes")


def test_a_plan_for_a_head_that_is_no_whole_number_of_blocks_is_refused(tmp_path):
    lines = kshipra.describe(tiny.write(tmp_path / "tiny.gguf", head_dim=16), kv_type="q8_0")
    with pytest.raises(KshipraError, match="head_dim 16 is no multiple"):
        list(lines)


@given(st.lists(st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False),
                          st.floats(-1, 1, width=32), st.just(0.0)), min_size=64, max_size=64),
       st.sampled_from([0.0, 1e-45, 1e-30, 1e-6, 1.0, 1e4, 1e5]))
def test_q8_0_is_the_format_of_chapter_1(row, top):
    """The bytes of Format.encode, for any row; what its scale could not hold is clamped first."""
    row = array("f", [max(-top, min(x, top)) for x in row[:32]] + row[32:])
    limit = kshipra.Q8_0_MAX
    pool = PagePool([(1, 64)], 1, 64, "q8_0")
    seq = Sequence(pool)
    seq.reserve(0, 1)
    pool.write(0, seq, 0, row, row)
    clamped = array("f", [max(-limit, min(x, limit)) for x in row])
    assert pool.arena[:68] == kshipra.FORMATS["Q8_0"].encode(clamped)
    assert pool.page_bytes == 2 * 64 * 68


def test_q8_0_clamps_only_what_its_scale_cannot_hold():
    """The first float32 above the limit is the first that Format.encode refuses."""
    limit = array("f", [kshipra.Q8_0_MAX] + 31 * [1.0])
    above = array("f", [kshipra.Q8_0_MAX + 0.5] + 31 * [1.0])
    data = kshipra.FORMATS["Q8_0"].encode(limit)
    assert kshipra.f32_to_q8_0(limit) == kshipra.f32_to_q8_0(above) == data
    assert kshipra.f32_to_q8_0(array("f", [-3e38] + 31 * [1.0]))[:3] == data[:2] + b"\x81"
    with pytest.raises(KshipraError, match="beyond the range of Q8_0"):
        kshipra.FORMATS["Q8_0"].encode(above)


@pytest.mark.parametrize("size", [-64, -1, 0, 1, 4, 7, 9, 12, 24, 48, 63, 65, 96, 100])
def test_page_sizes_that_would_cut_a_chunk_are_refused(size):
    with pytest.raises(KshipraError, match=f"page_size is {size};"):
        PagePool(LAYERS, 1, size)


def test_unknown_types_and_impossible_sizes_are_refused():
    with pytest.raises(KshipraError, match="kv_type 'q4_0'.*f32, f16, q8_0"):
        PagePool(LAYERS, 1, 64, "q4_0")
    for head_dim in (1, 8, 16, 48, 80, 100):
        with pytest.raises(KshipraError, match=f"q8_0.* 32 numbers.* head_dim {head_dim} "):
            PagePool([(1, 32), (1, head_dim)], 1, 64, "q8_0")
    with pytest.raises(KshipraError, match="cannot be had"):
        PagePool(LAYERS, 2 ** 50, 64)


def test_a_full_pool_says_so_and_stays_whole():
    pool = PagePool(LAYERS, 2, 8)
    seq = Sequence(pool)
    seq.reserve(0, 16)
    with pytest.raises(KshipraError, match="all 2 pages of 8 positions are in use"):
        seq.reserve(16, 17)
    assert list(pool.refs) == [1, 1] and len(seq.table) == 2
    seq.truncate(0)
    assert list(pool.refs) == [0, 0] and sorted(pool.free) == [0, 1]


def test_a_fork_that_cannot_be_copied_keeps_its_page():
    pool = PagePool(LAYERS, 1, 8)
    seq = Sequence(pool)
    append(seq, 1, random.Random(1), [[], []])
    other = seq.fork()
    with pytest.raises(KshipraError, match="in use"):
        other.reserve(1, 2)
    assert list(pool.refs) == [2]
    other.truncate(0)
    seq.reserve(1, 2)
    assert list(pool.refs) == [1]


@given(st.lists(st.integers(0, 3), max_size=12),
       st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_common_prefix_leaves_one_token_over(have, want):
    seq = Sequence(PagePool([(1, 8)], 1, 8))
    seq.tokens = have
    n = seq.common_prefix(want)
    assert n <= len(want) - 1 and have[:n] == want[:n]
    assert n == len(want) - 1 or n == len(have) or have[n] != want[n]


def computed(seq, token):
    """Give a sequence one more position, whose k and v depend on the tokens up to it alone."""
    pos = len(seq.tokens)
    seq.reserve(pos, pos + 1)
    seq.tokens.append(token)
    rng = random.Random(repr(seq.tokens))
    for layer in range(len(LAYERS)):
        seq.pool.write(layer, seq, pos, *vectors(rng, seq.pool.layers, layer))


def book_of(tokens, layers):
    """Return what `computed` writes for these tokens: (layer) -> [(k, v)]."""
    book = [[], []]
    for pos in range(len(tokens)):
        rng = random.Random(repr(tokens[:pos + 1]))
        for layer in range(len(LAYERS)):
            book[layer].append(vectors(rng, layers, layer))
    return book


class Pages(RuleBasedStateMachine):
    """Sequences that begin with found pages, grow, fork, shrink and vanish, in any order."""

    @initialize(page_size=st.sampled_from([8, 16]),
                kv_type=st.sampled_from(sorted(kshipra.KV_TYPES)))
    def start(self, page_size, kv_type):
        self.pool = PagePool(LAYERS_OF[kv_type], 12, page_size, kv_type)
        self.lives = [Sequence(self.pool)]

    @rule(which=st.integers(0, 99), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def grow(self, which, tokens):
        seq = self.lives[which % len(self.lives)]
        for token in tokens:
            if seq.n_new_pages(len(seq.tokens) + 1) > self.pool.n_available:
                with pytest.raises(KshipraError, match="all 12 pages of"):
                    seq.reserve(len(seq.tokens), len(seq.tokens) + 1)
                break
            before = self.pool.n_available
            need = seq.n_new_pages(len(seq.tokens) + 1)
            computed(seq, token)
            assert self.pool.n_available == before - need
        seq.publish()

    @rule(which=st.integers(0, 99), n=st.integers(1, 60))
    def begin_like(self, which, n):
        """The beginning of what is there, in a new sequence: as much of it as is found."""
        tokens = self.lives[which % len(self.lives)].tokens[:n]
        if tokens and len(self.lives) < 6:
            seq = Sequence(self.pool)
            found = seq.adopt(tokens)
            assert seq.tokens == tokens[:found] and found < len(tokens)
            full = len(tokens) // self.pool.page_size * self.pool.page_size
            assert found >= min(full, len(tokens) - 1)      # since it was published
            self.lives.append(seq)

    @rule(which=st.integers(0, 99))
    def fork(self, which):
        if len(self.lives) < 6:
            self.lives.append(self.lives[which % len(self.lives)].fork())

    @rule(which=st.integers(0, 99), keep=st.integers(0, 40))
    def truncate(self, which, keep):
        self.lives[which % len(self.lives)].truncate(keep)

    @rule(which=st.integers(0, 99))
    def vanish(self, which):
        if len(self.lives) > 1:
            self.lives.pop(which % len(self.lives)).truncate(0)

    @invariant()
    def pages_hold_what_was_written(self):
        for seq in getattr(self, "lives", []):
            check(seq, book_of(seq.tokens, self.pool.layers))

    @invariant()
    def pages_are_counted(self):
        if hasattr(self, "pool"):
            held = [0] * 12
            for seq in self.lives:
                for page in seq.table:
                    held[page] += 1
                assert len(seq.table) == -(-len(seq.tokens) // self.pool.page_size)
            assert list(self.pool.refs) == held
            named = [key is not None for key in self.pool.key_of]
            assert sorted(self.pool.free) == [p for p in range(12) if not held[p] and not named[p]]
            assert sorted(self.pool.idle) == [p for p in range(12) if not held[p] and named[p]]
            assert sorted(page for _, page in self.pool.found.values()) == [
                p for p in range(12) if named[p]]

    def teardown(self):
        for seq in getattr(self, "lives", []):
            seq.truncate(0)
        if hasattr(self, "pool"):
            assert not any(self.pool.refs) and self.pool.n_available == 12


TestPages = Pages.TestCase
TestPages.settings = tiny.examples(10, stateful_step_count=20)


def sequence_of(pool, n):
    seq = Sequence(pool)
    for i in range(n):
        computed(seq, i % 7)
    seq.publish()
    return seq


@pytest.mark.parametrize("n", [1, 7, 8, 9, 16, 17])
def test_p23_a_prompt_found_whole_leaves_its_last_token_to_compute(n):
    """Lengths about the border of a page of 8, where there could be nothing left to compute."""
    pool = PagePool(LAYERS, 6, 8, "f32")
    first = sequence_of(pool, n)
    again = Sequence(pool)
    assert again.adopt(first.tokens) == min(n // 8 * 8, n - 1)
    for token in first.tokens[len(again.tokens):]:
        computed(again, token)
    again.publish()
    check(again, book_of(first.tokens, LAYERS))
    again.truncate(0)
    check(first, book_of(first.tokens, LAYERS))
    assert pool.n_asked == n and pool.n_found == min(n // 8 * 8, n - 1)


def test_the_page_that_is_idle_for_longest_goes_first():
    pool = PagePool(LAYERS, 4, 8, "f32")
    old, new = sequence_of(pool, 16), Sequence(pool)
    for token in range(10, 26):
        computed(new, token)
    new.publish()
    old_tokens, new_tokens = old.tokens[:], new.tokens[:]
    old.truncate(0)
    new.truncate(0)
    assert not pool.free and len(pool.idle) == 4 == pool.n_available
    pool.take()                             # the end of the old text, not its beginning
    found = [Sequence(pool).adopt(tokens + [0]) for tokens in (old_tokens, new_tokens)]
    assert found == [8, 16]


def test_what_follows_a_page_that_is_gone_is_not_found():
    """The page of another text in its place must not lead to the old text's second page."""
    pool = PagePool(LAYERS, 2, 8, "f32")
    seq = sequence_of(pool, 16)
    tokens = seq.tokens[:]
    seq.truncate(0)
    pool.forget(next(page for page in pool.idle if pool.key_of[page][0] == 0))
    other = Sequence(pool)
    for token in [9] * 8:
        computed(other, token)
    other.publish()
    assert Sequence(pool).adopt(tokens + [0]) == 0
    assert Sequence(pool).adopt([9] * 8 + tokens[8:] + [0]) == 8


@kv_types
def test_a_saved_sequence_is_the_same_in_pages_of_any_size(tmp_path, kv_type):
    layers = LAYERS_OF[kv_type]
    seq = sequence_of(PagePool(layers, 4, 64, kv_type), 77)
    kshipra.save_sequence(seq, tmp_path / "s", "model")
    for page_size in (8, 128):
        pool = PagePool(layers, 100, page_size, kv_type)
        loaded = sequence_of(pool, 30)
        kshipra.load_sequence(loaded, tmp_path / "s", "model", 77)
        for twin in (loaded, seq.copy_to(pool)):
            assert twin.tokens == seq.tokens
            check(twin, book_of(seq.tokens, layers))


def test_a_saved_sequence_that_does_not_fit_or_is_damaged_changes_nothing(tmp_path):
    seq = sequence_of(PagePool(LAYERS, 4, 8, "f32"), 20)
    path = tmp_path / "s"
    kshipra.save_sequence(seq, path, "model")
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
    pool, data = PagePool(LAYERS, 4, 8, "f32"), path.read_bytes()
    for pool_of, identity, n_ctx, words in (
            (pool, "another", 32, "saved with model 'model'"), (pool, "model", 19, "20 tokens"),
            (PagePool(LAYERS, 4, 8, "f16"), "model", 32, "kv_type 'f32'"),
            (PagePool(LAYERS[::-1], 4, 8, "f32"), "model", 32, "layers"),
            (PagePool(LAYERS, 2, 8, "f32"), "model", 32, "2 pages of 8")):
        own = sequence_of(pool_of, 3)
        with pytest.raises(KshipraError, match=words):
            kshipra.load_sequence(own, path, identity, n_ctx)
        assert own.tokens == [0, 1, 2] and pool_of.n_available == pool_of.n_pages - 1
        own.truncate(0)
    for at in range(0, len(data), 97):
        for bad in (data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]):
            path.write_bytes(bad)
            with pytest.raises(KshipraError, match="saved session|check sum"):
                kshipra.load_sequence(Sequence(pool), path, "model", 32)
    start = len(kshipra._SESSION_MAGIC) + 4
    n_header = int.from_bytes(data[start - 4:start], "little")
    header, planes = data[start:start + n_header], data[start + n_header:-32]
    for odd in (b"{", b"[]", b"{}", b"[" * 100000, header.replace(b"[0, 1", b'["a", 1'),
                header.replace(b"[0, 1", b"[1e99, 1"), header.replace(b"[0, 1", b"[-1, 1"),
                header.replace(b"[0, 1", b"[1"), header.replace(b'"f32"', b'{"a": 1}')):
        body = data[:start - 4] + len(odd).to_bytes(4, "little") + odd + planes
        path.write_bytes(body + hashlib.sha256(body).digest())
        with pytest.raises(KshipraError, match="header is not one|tokens need|with kv_type"):
            kshipra.load_sequence(Sequence(pool), path, "model", 32)
    assert pool.n_available == 4
    with pytest.raises(KshipraError, match="cannot be read"):
        kshipra.load_sequence(Sequence(pool), tmp_path / "none", "model", 32)
    with pytest.raises(KshipraError, match="cannot be written"):
        kshipra.save_sequence(seq, tmp_path / "no" / "s", "model")
