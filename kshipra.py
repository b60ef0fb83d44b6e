#!/usr/bin/env python3
"""kshipra: a complete LLM inference engine in one file that needs nothing but Python.

Run it:

    python kshipra.py --prompt "Once upon a time"
    python kshipra.py --model model.gguf --prompt "The capital of France is"

Call it:

    import kshipra
    model = kshipra.load("model.gguf")
    print("".join(model.generate("The capital of France is", max_tokens=16)))

Read it, top to bottom:

    1. Numbers
    2. Files
    3. Text
    4. Reference
    5. Machine code
    6. Cache
    7. Model
    8. Sampling
    9. Decoding
    12. Front doors
    13. The model in the file

Glossary.  n_layers, n_heads, n_kv_heads, n_vocab, n_ctx: counts.  head_dim, hidden, ffn:
the width of a head, of the residual stream, of the inside of the feed-forward network.
R: the rows of a batch; a row is one (token, position, sequence) and its line in every
activation.  S: the positions that a row can see.  token: an id; piece: its bytes; text: a
str.  Weight matrices are (n_out, n_in).  block: a run of quantized weights; page: the unit
of the cache.  `_bytes`, `_bits`, `_s`: units; `_off`: bytes from the start of a file.

MIT License; see the file LICENSE.
"""
import contextlib
import ctypes
import functools
import json
import math
import mmap
import os
import struct
import sys
from array import array
from itertools import chain, repeat
from operator import add, mul, neg, sub


class KshipraError(ValueError):
    """Something a user can meet: what is wrong, where, and what to do.

    path: the file concerned; offset: the byte in it; both are kept as attributes.
    """

    def __init__(self, message, path=None, offset=None):
        where = f"{path}, byte {offset:#x}: " if offset is not None else f"{path}: " if path else ""
        super().__init__(where + message)
        self.path, self.offset = path, offset


# ---------------------------------------------------------------------------------------
# 1. Numbers
#
# A model file is mostly weights, and most weights are kept in fewer bits than a float has.
# The idea of a block format: a run of 32 or 256 weights shares one scale (and perhaps one
# minimum), and each weight is a small integer, its code:
#
#     weight = scale * code  (+ minimum)
#
# The formats of 256 weights (the k-quants) divide a block into sub-blocks of 16 or 32, and
# keep the sub-blocks' scales as small integers too, under one float d for all.  To the rest
# of this file every format is the same thing: codes in int8, one exact f32 scale a
# sub-block, perhaps one f32 minimum.  A format differs only in where it keeps its bits, so
# it is one row of a table, FORMATS; the code that reads the table knows no format by name.
#
# Plain Python is slow a weight at a time, so all is done by the run: bytes.translate picks
# a bit field out of every byte at once, slices move runs, one huge integer does an OR.
# Layouts are little-endian, and this file expects a machine that is too.  Not here: the
# formats with lookup codebooks (IQ*), ternary ones (TQ*).  Source: ggml, ggml-quants.c.


# f16   | s | eeeee | mmmmmmmmmm |     s sign, e exponent, m fraction
# bf16  | s | eeeeeeee | mmmmmmm |     an f32 cut after 16 bits: same range, 8 bits precise
# f32   | s | eeeeeeee | mmmmmmmmmmmmmmmmmmmmmmm |

F16_MAX = 65504.0
F32_MAX = 3.4028234663852886e38
_PART_LEN = 1 << 16                             # weights coded at a time, to bound memory


def f16_to_f32(data) -> array:
    """Return the f16 numbers in a bytes-like, each exact in f32."""
    return array("f", struct.unpack(f"<{len(data) // 2}e", data))


def _f16s(floats):
    """Return floats as f16; raises OverflowError where a finite one would become infinite."""
    return struct.pack(f"<{len(floats)}e", *floats)


def f32_to_f16(floats) -> bytes:
    """Return floats as f16: clamped to +-65504, then rounded half to even; NaN stays NaN."""
    try:
        data = _f16s(floats)
        tops = data[1::2]
        if b"\x7c" not in tops and b"\xfc" not in tops:         # no infinity went in
            return data
    except OverflowError:
        pass
    return _f16s([min(max(x, -F16_MAX), F16_MAX) for x in floats])


def bf16_to_f32(data) -> array:
    """Return the bf16 numbers in a bytes-like: each is the upper half of an f32."""
    halves = bytes(data)
    wide = bytearray(2 * len(halves))
    wide[2::4] = halves[0::2]
    wide[3::4] = halves[1::2]
    return array("f", bytes(wide))


def _decode_f32(data):
    return array("f", bytes(data))


def _write_f32(floats):
    return floats.tobytes()


def _write_bf16(floats):
    """Return finite floats as bf16, rounded half to even.

    Adding 0x7fff, and one more where the kept half is odd, carries into the kept half
    exactly when the lost half is over one half, or just one half beside an odd number.
    """
    halves = [(u + 0x7FFF + ((u >> 16) & 1)) >> 16 for u in array("I", floats.tobytes())]
    if any((u & 0x7FFF) == 0x7F80 for u in halves):
        raise OverflowError
    return array("H", halves).tobytes()


# A run is four numbers: (at, n, shift, width).  It means: of each of the n bytes from byte
# `at` of a block, the `width` bits from bit `shift` up.  So the low nibbles of the 16 bytes
# from byte 2 are (2, 16, 0, 4), and their high nibbles (2, 16, 4, 4).

@functools.lru_cache(maxsize=None)
def _bits(shift, width, place):
    """Return the translation of a byte to its bit field, moved up to bit `place`."""
    return bytes(((byte >> shift) & ((1 << width) - 1)) << place for byte in range(256))


@functools.lru_cache(maxsize=None)
def _minus(bias):
    """Return the translation of a byte to itself less `bias`, as an int8."""
    return bytes((byte - bias) & 255 for byte in range(256))


def _gather(data, block_bytes, runs, place=0):
    """Return the fields of `runs`, in order, of every block: one byte a field."""
    tables = {run[2:]: data.translate(_bits(*run[2:], place)) for run in runs}
    parts = [(tables[shift, width], at, at + n) for at, n, shift, width in runs]
    return b"".join([table[block + start:block + end]
                     for block in range(0, len(data), block_bytes)
                     for table, start, end in parts])


def _or(a, b):
    """Return a | b, byte by byte."""
    both = int.from_bytes(a, "little") | int.from_bytes(b, "little")
    return both.to_bytes(len(a), "little")


# The eight bits of a byte as eight bytes, lowest bit first, each moved up to bit 4.
_SPREAD = [bytes((((byte >> i) & 1) << 4) for i in range(8)) for byte in range(256)]


class _Field:
    """Where a block keeps one kind of integer, and how to read it from all blocks at once.

    low, high: runs of the low and the high bits; `place` is where the high bits belong.
    spread: instead of `high`, (at, n): n bytes that hold the fifth bits, one bit a weight.
    bias: what to take from the unsigned integer.
    """

    def __init__(self, low, high=(), place=0, spread=None, bias=0):
        self.low, self.high, self.place, self.spread, self.bias = low, high, place, spread, bias

    def read(self, data, block_bytes):
        """Return the integers of every block, in the weights' order, as array('b')."""
        out = _gather(data, block_bytes, self.low)
        if self.high:
            out = _or(out, _gather(data, block_bytes, self.high, self.place))
        if self.spread:
            fifths = _gather(data, block_bytes, [(*self.spread, 0, 8)])
            out = _or(out, b"".join([_SPREAD[byte] for byte in fifths]))
        return array("b", out.translate(_minus(self.bias)) if self.bias else out)


def _read_f16(data, block_bytes, at):
    """Return the f16 at byte `at` of every block."""
    pairs = bytearray(2 * (len(data) // block_bytes))
    pairs[0::2] = data[at::block_bytes]
    pairs[1::2] = data[at + 1::block_bytes]
    return f16_to_f32(pairs)


def _each(values, n):
    """Return an iterator over values, each of them n times."""
    return chain.from_iterable(map(repeat, values, repeat(n)))


class Format:
    """One way to keep weights: its measures, and how to read and write it.

    sub_len: the weights under one scale, None for the plain floats.
    d_off, m_off: bytes of a block where the f16 scale and the f16 minimum stand.
    codes, scales, mins: fields, see _Field; scales and mins only in the k-quants.
    floats: how plain floats are read; write: how an encoder fills blocks.
    supported: whether kshipra reads it; if not, the row serves to list a file's tensors.
    """

    def __init__(self, name, type_id, block_len, block_bytes, sub_len=None, d_off=None,
                 m_off=None, codes=None, scales=None, mins=None, floats=None, write=None):
        self.name, self.type_id = name, type_id
        self.block_len, self.block_bytes, self.sub_len = block_len, block_bytes, sub_len
        self.d_off, self.m_off = d_off, m_off
        self.codes, self.scales, self.mins = codes, scales, mins
        self._floats, self._write = floats, write
        self.supported = bool(floats or codes)

    def __repr__(self):
        return f"<Format {self.name}>"

    def n_bytes(self, n_weights: int) -> int:
        """Return the size of n_weights, a multiple of block_len."""
        return n_weights // self.block_len * self.block_bytes

    def decode(self, data) -> array:
        """Return the weights in `data`, whole blocks, as f32.

        weight = f32(scale * code + min): the product is exact, so it rounds once.
        """
        out = array("f")
        for part in self._parts(data):
            if self._floats:
                out.extend(self._floats(part))
                continue
            codes, scales, mins = self._unpack(part)
            weights = map(mul, codes, _each(scales, self.sub_len))
            if mins:
                weights = map(add, weights, _each(mins, self.sub_len))
            out.extend(array("f", weights))
        return out

    def unpack(self, data) -> tuple:
        """Return (codes, scales, mins) of the weights in `data`, whole blocks.

        codes: array('b'), one a weight   scales: array('f'), one a sub-block of sub_len
        mins: array('f') like scales, or None.   weight = f32(scale * code + min)
        """
        codes, scales, mins = array("b"), array("f"), array("f")
        for part in self._parts(data):
            for whole, more in zip((codes, scales, mins), self._unpack(part)):
                whole.extend(more)
        return codes, scales, None if self.m_off is None else mins

    def _unpack(self, data):
        if self.codes is None:
            raise KshipraError(f"{self.name} is not a block format that kshipra reads, so it has "
                               "no codes to unpack")
        codes = self.codes.read(data, self.block_bytes)
        scales = _read_f16(data, self.block_bytes, self.d_off)
        mins = _read_f16(data, self.block_bytes, self.m_off) if self.m_off is not None else ()
        n_subs = self.block_len // self.sub_len
        if self.scales:                         # exact: 11 bits of d times at most 8
            factors = self.scales.read(data, self.block_bytes)
            scales = array("f", map(mul, factors, _each(scales, n_subs)))
        if self.mins:
            factors = self.mins.read(data, self.block_bytes)
            mins = array("f", map(mul, factors, _each(map(neg, mins), n_subs)))
        return codes, scales, mins

    def _parts(self, data):
        """Yield `data` as bytes, some thousand blocks at a time: the steps between take more
        memory than their result, and a tensor may have a billion weights."""
        view = memoryview(data).cast("B")
        if len(view) % self.block_bytes:
            raise KshipraError(f"{self.name} data of {len(view)} bytes is no whole number of "
                               f"blocks of {self.block_bytes} bytes")
        step = _PART_LEN // self.block_len * self.block_bytes
        for start in range(0, len(view), step):
            yield bytes(view[start:start + step])

    def encode(self, floats) -> bytes:
        """Return finite floats, whole blocks of them, in this format."""
        if self._write is None:
            raise KshipraError(f"kshipra does not write {self.name}; it writes "
                               + " ".join(f.name for f in FORMATS.values() if f._write))
        if not (isinstance(floats, array) and floats.typecode == "f"):
            floats = array("f", floats)
        if len(floats) % self.block_len:
            raise KshipraError(f"{len(floats)} weights are no whole number of {self.name} blocks "
                               f"of {self.block_len}")
        out = []
        for start in range(0, len(floats), _PART_LEN):
            part = floats[start:start + _PART_LEN]
            if not _all_finite(part):
                at = next(i for i, x in enumerate(part) if not math.isfinite(x))
                raise KshipraError(f"weight {start + at} is {part[at]}; {self.name} is written "
                                   "from finite numbers only")
            try:
                out.append(self._write(part))
            except OverflowError:
                peak = max(map(abs, part))
                raise KshipraError(f"weights up to {peak:g} are beyond the range of {self.name}; "
                                   "take BF16 or F32") from None
        return b"".join(out)


# The encoders follow ggml's step for step, roundings included, so the bytes are the same.
# Each array("f", ...) below is one f32 rounding of ggml's.

def _all_finite(floats):
    """Whether no float is infinite or NaN: an exponent of eight ones is either.

    The first test looks at seven of the eight, which are ones from 2**127 up, rarely seen.
    """
    tops = floats.tobytes()[3::4]
    return (b"\x7f" not in tops and b"\xff" not in tops) or all(map(math.isfinite, floats))


def _blocks(floats):
    return zip(*[iter(floats)] * 32)


def _inverse(d):
    """Return 1/d, which an encoder multiplies by; 0 where a block is all zero (or all but).

    A d so small that 1/d is infinite in f32 is 0 in f16, and then any code will do.
    """
    return 1 / d if d and abs(1 / d) <= F32_MAX else 0.0


def _scaled(floats, ds):
    """Return every x * (1/d) with its block's d."""
    inverses = array("f", map(_inverse, ds))
    return array("f", map(mul, floats, _each(inverses, 32)))


def _peak(block):
    """Return the number of largest magnitude, the first of them where signs differ."""
    high, low = max(block), min(block)
    return high if high > -low else low if high < -low else max(block, key=abs)


def _round_down(floats, limit):
    """Return floats, none negative, as bytes: the integer part, or `limit` if that is less."""
    return bytes(map(int, floats)).translate(bytes(min(b, limit) for b in range(256)))


def _around_zero(floats, top):
    """Return (ds, codes) of codes 0..2*top-1 that stand for -top..top-1.

    The weight of largest magnitude gets code 0, that is -top, exactly: d takes its sign.
    """
    ds = array("f", [_peak(block) / -top for block in _blocks(floats)])
    shifted = array("f", map(add, _scaled(floats, ds), repeat(top + 0.5)))
    return ds, _round_down(shifted, 2 * top - 1)


def _above_minimum(floats, top):
    """Return (ds, ms, codes) of codes 0..top that count up from the minimum m."""
    ms = array("f", map(min, _blocks(floats)))
    spans = array("f", map(sub, map(max, _blocks(floats)), ms))
    if not _all_finite(spans):
        raise OverflowError
    ds = array("f", [span / top for span in spans])
    above = array("f", map(sub, floats, _each(ms, 32)))
    shifted = array("f", map(add, _scaled(above, ds), repeat(0.5)))
    return ds, ms, _round_down(shifted, top)


def _nibbles(codes):
    """Return blocks of 32 codes as 16 bytes: code i in the low half of byte i, code i + 16 in
    the high half."""
    starts = range(0, len(codes), 32)
    low = b"".join([codes[start:start + 16] for start in starts])
    high = b"".join([codes[start + 16:start + 32] for start in starts])
    return _or(low.translate(_bits(0, 4, 0)), high.translate(_bits(0, 4, 4)))


def _fifth_bits(codes):
    """Return bit 4 of every code, eight to a byte, lowest bit first."""
    columns = [codes[i::8].translate(_bits(4, 1, i)) for i in range(8)]
    return functools.reduce(_or, columns)


def _shuffle(n_blocks, *columns):
    """Return blocks made of a piece of each column, in order."""
    sizes = [len(column) // n_blocks for column in columns]
    return b"".join([column[i * size:(i + 1) * size]
                     for i in range(n_blocks) for column, size in zip(columns, sizes)])


def _write_q4_0(floats):
    ds, codes = _around_zero(floats, 8)
    return _shuffle(len(ds), _f16s(ds), _nibbles(codes))


def _write_q4_1(floats):
    ds, ms, codes = _above_minimum(floats, 15)
    return _shuffle(len(ds), _f16s(ds), _f16s(ms), _nibbles(codes))


def _write_q5_0(floats):
    ds, codes = _around_zero(floats, 16)
    return _shuffle(len(ds), _f16s(ds), _fifth_bits(codes), _nibbles(codes))


def _write_q5_1(floats):
    ds, ms, codes = _above_minimum(floats, 31)
    return _shuffle(len(ds), _f16s(ds), _f16s(ms), _fifth_bits(codes), _nibbles(codes))


def _write_q8_0(floats):
    ds = array("f", [abs(_peak(block)) / 127 for block in _blocks(floats)])
    scaled = _scaled(floats, ds)
    codes = array("b", map(int, map(add, scaled, map(math.copysign, repeat(0.5), scaled))))
    return _shuffle(len(ds), _f16s(ds), codes.tobytes())   # int: rounded half away from zero


# The block formats, drawn: what stands above a box is the byte where it begins.
#
#        0     2                18
# Q4_0  |  d  |   qs[16]       |    weight i: low nibble of qs[i]; i + 16: high nibble
#        0     2    4               code - 8
# Q4_1  |  d  |  m  |   qs[16]  |   the same, code 0..15, plus m
#        0     2         6
# Q5_0  |  d  |  qh[4]  |  qs[16] | a fifth bit: bit i of qh for weight i; code - 16
#        0     2    4         8
# Q5_1  |  d  |  m  |  qh[4]  |  qs[16] |             code 0..31, plus m
#        0     2                34
# Q8_0  |  d  |   qs[32]       |    int8
#
# The k-quants, 256 weights a block.  "In columns": byte l of a run of 32 bytes holds fields
# of the weights l, l + 32, l + 64 ..., lowest bits first, and the next run goes on from there.
# So qs and qh lie; ql, in runs of 64: low nibble weight l, high nibble weight l + 64.
#
#        0             16         80     82
# Q2_K  | scales[16]  | qs[64]  |  d   | dmin |    16 sub-blocks of 16, codes of 2 bits;
#          scales: low nibble the scale, high nibble the minimum of a sub-block
#        0            32         96           108
# Q3_K  | hmask[32]  | qs[64]  | scales[12] |  d  |  16 of 16, 2 bits in qs, the third in
#          hmask, a column of 8 bits; code - 4.  scales: 16 of 6 bits, less 32: the low
#          four bits in the nibbles of bytes 0..7, the upper two in bytes 8..11, in columns
#        0     2      4            16
# Q4_K  |  d  | dmin | scales[12] | qs[128]  |       8 of 32, codes of 4 bits
#        0     2      4            16        48
# Q5_K  |  d  | dmin | scales[12] | qh[32]  | qs[128]  |  a fifth bit in qh, in columns
#          scales of both: 8 scales and 8 minimums of 6 bits.  Bytes 0..3 hold scales 0..3,
#          bytes 4..7 minimums 0..3, bytes 8..11 the low four bits of scales 4..7 and
#          (high nibble) of minimums 4..7; their upper two bits fill up bytes 0..7
#        0          128      192          208
# Q6_K  | ql[128]  | qh[64] | scales[16] |  d  |     16 of 16, scales in int8; code - 32
#
# The fields below say the same.

_K_SCALES = _Field(low=[(4, 4, 0, 6), (12, 4, 0, 4)], high=[(4, 4, 0, 0), (4, 4, 6, 2)], place=4)
_K_MINS = _Field(low=[(8, 4, 0, 6), (12, 4, 4, 4)], high=[(8, 4, 0, 0), (8, 4, 6, 2)], place=4)

FORMATS = {row.name: row for row in (
    Format("F32", 0, 1, 4, floats=_decode_f32, write=_write_f32),
    Format("F16", 1, 1, 2, floats=f16_to_f32, write=_f16s),
    Format("BF16", 30, 1, 2, floats=bf16_to_f32, write=_write_bf16),
    Format("Q4_0", 2, 32, 18, sub_len=32, d_off=0, write=_write_q4_0,
           codes=_Field([(2, 16, 0, 4), (2, 16, 4, 4)], bias=8)),
    Format("Q4_1", 3, 32, 20, sub_len=32, d_off=0, m_off=2, write=_write_q4_1,
           codes=_Field([(4, 16, 0, 4), (4, 16, 4, 4)])),
    Format("Q5_0", 6, 32, 22, sub_len=32, d_off=0, write=_write_q5_0,
           codes=_Field([(6, 16, 0, 4), (6, 16, 4, 4)], spread=(2, 4), bias=16)),
    Format("Q5_1", 7, 32, 24, sub_len=32, d_off=0, m_off=2, write=_write_q5_1,
           codes=_Field([(8, 16, 0, 4), (8, 16, 4, 4)], spread=(4, 4))),
    Format("Q8_0", 8, 32, 34, sub_len=32, d_off=0, write=_write_q8_0,
           codes=_Field([(2, 32, 0, 8)])),
    Format("Q2_K", 10, 256, 84, sub_len=16, d_off=80, m_off=82,
           codes=_Field([(at, 32, shift, 2) for at in (16, 48) for shift in (0, 2, 4, 6)]),
           scales=_Field([(0, 16, 0, 4)]),
           mins=_Field([(0, 16, 4, 4)])),
    Format("Q3_K", 11, 256, 110, sub_len=16, d_off=108,
           codes=_Field([(at, 32, shift, 2) for at in (32, 64) for shift in (0, 2, 4, 6)],
                        high=[(0, 32, shift, 1) for shift in range(8)], place=2, bias=4),
           scales=_Field([(96, 8, 0, 4), (96, 8, 4, 4)],
                         high=[(104, 4, shift, 2) for shift in (0, 2, 4, 6)], place=4, bias=32)),
    Format("Q4_K", 12, 256, 144, sub_len=32, d_off=0, m_off=2,
           codes=_Field([(at, 32, shift, 4) for at in range(16, 144, 32) for shift in (0, 4)]),
           scales=_K_SCALES, mins=_K_MINS),
    Format("Q5_K", 13, 256, 176, sub_len=32, d_off=0, m_off=2,
           codes=_Field([(at, 32, shift, 4) for at in range(48, 176, 32) for shift in (0, 4)],
                        high=[(16, 32, shift, 1) for shift in range(8)], place=4),
           scales=_K_SCALES, mins=_K_MINS),
    Format("Q6_K", 14, 256, 210, sub_len=16, d_off=208,
           codes=_Field([(at, 64, shift, 4) for at in (0, 64) for shift in (0, 4)],
                        high=[(at, 32, shift, 2) for at in (128, 160) for shift in (0, 2, 4, 6)],
                        place=4, bias=32),
           scales=_Field([(192, 16, 0, 8)])),
)}
FORMAT_BY_ID = {row.type_id: row for row in FORMATS.values()}

# Types that a file may hold and kshipra does not compute with: enough to list them and to
# check their place in the file.  Source: ggml.h, enum ggml_type, with the block sizes of
# ggml-common.h; the last group is named as safetensors names it and has no ggml number.
LISTED_FORMATS = {row.name: row for row in (
    Format("IQ2_XXS", 16, 256, 66), Format("IQ2_XS", 17, 256, 74), Format("IQ2_S", 22, 256, 82),
    Format("IQ3_XXS", 18, 256, 98), Format("IQ3_S", 21, 256, 110), Format("IQ1_S", 19, 256, 50),
    Format("IQ1_M", 29, 256, 56), Format("IQ4_NL", 20, 32, 18), Format("IQ4_XS", 23, 256, 136),
    Format("TQ1_0", 34, 256, 54), Format("TQ2_0", 35, 256, 66), Format("MXFP4", 39, 32, 17),
    Format("NVFP4", 40, 64, 36), Format("I8", 24, 1, 1), Format("I16", 25, 1, 2),
    Format("I32", 26, 1, 4), Format("I64", 27, 1, 8), Format("F64", 28, 1, 8),
    Format("BOOL", None, 1, 1), Format("U8", None, 1, 1), Format("U16", None, 1, 2),
    Format("U32", None, 1, 4), Format("U64", None, 1, 8), Format("F8_E4M3", None, 1, 1),
    Format("F8_E5M2", None, 1, 1), Format("F8_E8M0", None, 1, 1), Format("C64", None, 1, 8),
)}


# ---------------------------------------------------------------------------------------
# 2. Files
#
# A model file is a header that names tensors, and their bytes.  The idea: the file is
# mapped, never read.  A tensor is a view of the mapped bytes with a shape; opening 4 GB
# takes as long as parsing the header, and the system fetches a weight when it is touched.
# A view may be cut in rows or transposed by changing its shape and strides alone.
#
#   GGUF         magic, version, counts | metadata | tensor infos | padding | tensor bytes
#   safetensors  header length | header, JSON                               | tensor bytes
#   HF directory config.json, and safetensors files, one or (with an index) several
#
# A file is not to be trusted: kernels will read what the header says.  So every count,
# length, offset and product is held against the file's size before it is used; Python's
# integers do not wrap.  The map is copy-on-write: ctypes gives addresses of writable memory
# only, and a write could not reach the file anyway.
# Not here: pickled checkpoints, which run code when read.  Source: ggml's docs/gguf.md,
# GGUF v3; the README of huggingface/safetensors, "Format".

_GGUF_MAGIC = b"GGUF"
_GGUF_BOOL, _GGUF_STRING, _GGUF_ARRAY = 7, 8, 9
_GGUF_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?",
                 10: "Q", 11: "q", 12: "d"}                 # value type: letter of struct
_GGUF_ALIGNMENT = 32                                        # unless general.alignment says
_GGUF_MAX_DIMS = 4
_LEAST_PAIR_BYTES = 8 + 4 + 1                               # length of key, type, a byte
_LEAST_INFO_BYTES = 8 + 4 + 8 + 4 + 8                       # length of name, n_dims, ...
_MAX_COUNT = 1 << 20                                        # tensors, metadata keys
_MAX_ARRAY = 1 << 24                                        # elements of a metadata array
_MAX_JSON_BYTES = 100_000_000                               # as in the safetensors library
_SAFETENSORS_FLOATS = ("F32", "F16", "BF16")


def _quote(name):
    """Return a name from a file as a message may show it: one line, not too long."""
    text = repr(name)
    return text if len(text) <= 100 else text[:80] + "..." + text[-12:]


def _map_file(path):
    """Return a file's bytes as a writable view; what is written stays in this process.

    On Linux a private writable map counts as memory in use, though it takes none, and a file
    larger than the memory would be refused; MAP_NORESERVE says that we do not mean to write.
    """
    if not os.path.isfile(path):
        found = "a directory or device" if os.path.exists(path) else "no such file"
        raise KshipraError(f"{found}, where a model file is needed; check the path", path)
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise KshipraError("the file is empty, 0 bytes; fetch it again", path)
            if sys.platform == "linux":
                flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)
                return memoryview(mmap.mmap(file.fileno(), 0, flags=flags,
                                            prot=mmap.PROT_READ | mmap.PROT_WRITE))
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    except (OSError, OverflowError) as error:
        raise KshipraError(f"cannot be mapped into memory: {error}", path) from None


def _row_major(shape):
    """Return the strides, in elements, of a contiguous array: the last axis moves by 1."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


class Tensor:
    """A named array in a file: a view of bytes, a format, a shape.

    shape: row-major, (n_out, n_in) for a matrix.   strides: in elements, axis by axis
    offset: of the first byte in the file `path`; both None for one made in memory.
    A view (`.T`, `t[3]`, `t[8:16]`, `t[:, 2]`) shares the bytes of the tensor it is cut from.
    """

    def __init__(self, name: str, format: Format, shape: tuple, data, offset=None, path=None,
                 strides=None):
        view = memoryview(data)
        if view.readonly:                       # address() needs memory that may be written
            view = memoryview(bytearray(view))
        self.name, self.format, self.shape = name, format, tuple(shape)
        self._data = view if view.format == "B" else view.cast("B")
        self.offset, self.path = offset, path
        self.strides = _row_major(self.shape) if strides is None else tuple(strides)
        if strides is None and format.block_len and len(self._data) != format.n_bytes(self.size):
            raise KshipraError(f"tensor {_quote(name)} of type {format.name} and shape {shape} "
                               f"needs {format.n_bytes(self.size)} bytes, against "
                               f"{len(self._data)}", path, offset)

    def __repr__(self):
        return f"<Tensor {self.name} {self.format.name} {self.shape}>"

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def data(self) -> memoryview:
        """The bytes, from the first element to the last.  Raises if kshipra lacks the format."""
        if not self.format.supported:
            raise KshipraError(f"tensor {_quote(self.name)} is of type {self.format.name}, which "
                               "kshipra does not compute with; take a file with another "
                               "quantization", self.path, self.offset)
        return self._data

    @property
    def n_bytes(self) -> int:
        """The bytes from the first element to the last; 0 if the type's size is unknown."""
        return len(self._data)

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie in row-major order with no gaps."""
        return all(n == 1 or have == need for n, have, need
                   in zip(self.shape, self.strides, _row_major(self.shape)))

    @property
    def row_bytes(self) -> int:
        """The bytes of one row: row i of a contiguous matrix begins at i * row_bytes."""
        return self.format.n_bytes(self.shape[-1])

    def address(self) -> int:
        """Return the address of the first byte, valid while the tensor lives."""
        return ctypes.addressof((ctypes.c_char * 0).from_buffer(self.data))

    def floats(self) -> array:
        """Return the elements as f32, in row-major order of the shape."""
        flat = self.format.decode(self.data)
        if self.contiguous:
            return flat
        out = array("f")
        starts = [0]
        for n, stride in zip(self.shape[:-1], self.strides[:-1]):
            starts = [start + i * stride for start in starts for i in range(n)]
        n, stride = self.shape[-1], self.strides[-1]
        for start in starts:
            out.extend(flat[start:start + n * stride:stride])
        return out

    @property
    def T(self):
        """The view with the axes in reverse order."""
        return Tensor(self.name, self.format, self.shape[::-1], self._data, self.offset,
                      self.path, self.strides[::-1])

    def reshape(self, *shape):
        """Return a view of a contiguous tensor with another shape of the same size."""
        if not self.contiguous or math.prod(shape) != self.size:
            raise KshipraError(f"tensor {_quote(self.name)} of shape {self.shape} cannot be seen "
                               f"as {shape}", self.path, self.offset)
        return Tensor(self.name, self.format, shape, self._data, self.offset, self.path)

    def __getitem__(self, index):
        """Return the view at ints and slices, one for each leading axis."""
        index = index if isinstance(index, tuple) else (index,)
        if len(index) > len(self.shape):
            raise IndexError(f"{len(index)} indices for shape {self.shape}")
        shape, strides, first = [], [], 0
        for at, n, stride in zip(index, self.shape, self.strides):
            if isinstance(at, slice):
                places = range(n)[at]
                if places.step < 1:
                    raise IndexError(f"step {places.step} of {_quote(self.name)} is not positive")
                shape.append(len(places))
                strides.append(stride * places.step)
                first += places.start * stride if places else 0
            else:
                first += range(n)[at] * stride
        shape += self.shape[len(index):]
        strides += self.strides[len(index):]
        return self._cut(shape, strides, first)

    def _cut(self, shape, strides, first):
        """Return the view that begins at element `first` and ends at its own last element."""
        span = sum((n - 1) * stride for n, stride in zip(shape, strides)) + 1
        end = first + span if math.prod(shape) else first
        whole = self.data
        if first % self.format.block_len or end % self.format.block_len:
            raise KshipraError(f"tensor {_quote(self.name)}: elements {first} to {end} cut a "
                               f"{self.format.name} block of {self.format.block_len}", self.path)
        start_bytes = self.format.n_bytes(first)
        data = whole[start_bytes:self.format.n_bytes(end)]
        offset = None if self.offset is None else self.offset + start_bytes
        return Tensor(self.name, self.format, shape, data, offset, self.path, strides)


class Strings:
    """The strings of a GGUF array, decoded when asked for: a vocabulary has 262144.

    A sequence of str.  Bytes that are not UTF-8 become lone surrogates (surrogateescape),
    so str.encode with the same handler gives them back; raw() gives all as bytes.
    """

    def __init__(self, view, ends):
        self._view, self._ends = view, ends     # ends[i]: where string i - 1 ended, 8 before i

    def __len__(self):
        return len(self._ends) - 1

    def raw(self) -> list:
        """Return every string as bytes."""
        first = self._ends[0]
        copy = bytes(self._view[first:self._ends[-1]])
        return [copy[start - first + 8:end - first]
                for start, end in zip(self._ends, self._ends[1:])]

    def __iter__(self):
        return iter([piece.decode("utf-8", "surrogateescape") for piece in self.raw()])

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        i = range(len(self))[index]
        piece = bytes(self._view[self._ends[i] + 8:self._ends[i + 1]])
        return piece.decode("utf-8", "surrogateescape")

    def __repr__(self):
        return f"<{len(self)} strings>"


class _Cursor:
    """A place in a mapped file that moves on as it reads, and never past the end."""

    def __init__(self, view, path):
        self.view, self.path, self.off = view, path, 0

    def fail(self, message, off=None):
        raise KshipraError(message, self.path, self.off if off is None else off)

    def take(self, n_bytes, what):
        """Step over n_bytes and return where they began."""
        left_bytes = len(self.view) - self.off
        if n_bytes > left_bytes:
            self.fail(f"{what} needs {n_bytes} bytes but {left_bytes} are left of the "
                      f"{len(self.view)} in the file; the file is truncated, so fetch it again")
        start = self.off
        self.off += n_bytes
        return start

    def numbers(self, letters, what):
        """Return the little-endian numbers of a struct format."""
        layout = "<" + letters
        return struct.unpack_from(layout, self.view, self.take(struct.calcsize(layout), what))

    def string(self, what):
        """Return the bytes of a string: u64 length, bytes."""
        (n_bytes,) = self.numbers("Q", f"the length of {what}")
        start = self.take(n_bytes, what)
        return bytes(self.view[start:start + n_bytes])

    def name(self, what):
        """Return a string that must be UTF-8."""
        start, raw = self.off, self.string(what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8: {_quote(raw)}", start)

    def strings(self, n, what):
        """Return n strings as Strings.  The loop checks nothing: a false length runs past
        the end of the file, and the next read, or the last line, finds it there."""
        unpack, view = struct.Struct("<Q").unpack_from, self.view
        start = off = self.off
        ends = array("Q", [start])
        try:
            for _ in range(n):
                off += 8 + unpack(view, off)[0]
                ends.append(off)
        except (struct.error, OverflowError):   # past the end; past 64 bits
            off = len(view) + 1
        if off > len(view):
            n_whole = sum(end <= len(view) for end in ends) - 1
            self.fail(f"{what}: string {n_whole} of {n} runs past the end of the file, "
                      f"{len(view)} bytes; the file is truncated, so fetch it again", start)
        self.off = off
        return Strings(view, ends)


def _metadata_value(cursor, kind, what):
    """Return the value of one metadata pair: number, bool, str, array('I' ...) or Strings."""
    if kind == _GGUF_STRING:
        return cursor.string(what).decode("utf-8", "surrogateescape")
    if kind == _GGUF_ARRAY:
        return _metadata_array(cursor, what)
    if kind not in _GGUF_SCALARS:
        cursor.fail(f"{what} has value type {kind}; GGUF knows types 0 to 12", cursor.off - 4)
    if kind == _GGUF_BOOL:
        (value,) = cursor.numbers("B", what)
        if value > 1:
            cursor.fail(f"{what} is a bool of value {value}, against 0 or 1", cursor.off - 1)
        return bool(value)
    return cursor.numbers(_GGUF_SCALARS[kind], what)[0]


def _metadata_array(cursor, what):
    """Return an array value: element type u32, count u64, elements."""
    kind, n = cursor.numbers("IQ", what)
    if kind != _GGUF_STRING and kind not in _GGUF_SCALARS:
        cursor.fail(f"{what} is an array of element type {kind}; kshipra reads arrays of numbers "
                    "and of strings", cursor.off - 12)
    letter = "Q" if kind == _GGUF_STRING else "B" if kind == _GGUF_BOOL else _GGUF_SCALARS[kind]
    least_bytes, left_bytes = n * struct.calcsize(letter), len(cursor.view) - cursor.off
    if least_bytes > left_bytes:
        cursor.fail(f"{what} has {n} elements, at least {least_bytes} bytes, but {left_bytes} are "
                    "left; the file is truncated, so fetch it again", cursor.off - 8)
    if n > _MAX_ARRAY:
        cursor.fail(f"{what} has {n} elements, over {_MAX_ARRAY}, the most that kshipra reads",
                    cursor.off - 8)
    if kind == _GGUF_STRING:
        return cursor.strings(n, what)
    start = cursor.take(least_bytes, what)
    values = array(letter, bytes(cursor.view[start:cursor.off]))
    if kind == _GGUF_BOOL:
        if max(values, default=0) > 1:
            cursor.fail(f"{what} is an array of bools, one of them {max(values)}", start)
        return [bool(value) for value in values]
    return values


def _gguf_header(cursor):
    """Return (version, n_tensors, n_pairs)."""
    magic = bytes(cursor.view[:4])
    if magic != _GGUF_MAGIC:
        cursor.fail(f"magic is {magic!r}, against {_GGUF_MAGIC!r}: this is no GGUF file", 0)
    cursor.take(4, "the magic")
    (version,) = cursor.numbers("I", "the header")
    if version in (2 << 24, 3 << 24):
        cursor.fail(f"a big-endian GGUF file, version {version >> 24}; kshipra reads "
                    "little-endian ones", 4)
    if version not in (2, 3):
        cursor.fail(f"GGUF version {version}, against 2 or 3; convert the model anew", 4)
    n_tensors, n_pairs = cursor.numbers("QQ", "the header")
    left_bytes = len(cursor.view) - cursor.off
    for n, least, what in ((n_tensors, _LEAST_INFO_BYTES, "tensor"),
                           (n_pairs, _LEAST_PAIR_BYTES, "metadata key")):
        if n * least > left_bytes:
            cursor.fail(f"{what} count {n} needs at least {n * least} bytes but {left_bytes} are "
                        "left; the file is truncated or damaged, so fetch it again", 8)
        if n > _MAX_COUNT:
            cursor.fail(f"{what} count {n} is over {_MAX_COUNT}, the most that kshipra reads", 8)
    return version, n_tensors, n_pairs


def _gguf_metadata(cursor, n_pairs):
    """Return the metadata: pairs of key, value type u32, value."""
    metadata = {}
    for i in range(n_pairs):
        start = cursor.off
        key = cursor.name(f"metadata key {i} of {n_pairs}")
        what = f"metadata key {_quote(key)}"
        if key in metadata:
            cursor.fail(f"{what} is a duplicate: it stands here a second time", start)
        (kind,) = cursor.numbers("I", what)
        metadata[key] = _metadata_value(cursor, kind, what)
    return metadata


def _gguf_format(type_id):
    if type_id in FORMAT_BY_ID:
        return FORMAT_BY_ID[type_id]
    for row in LISTED_FORMATS.values():
        if row.type_id == type_id:
            return row
    return Format(f"number {type_id}", type_id, None, None)


def _gguf_infos(cursor, n_tensors):
    """Return the tensor infos as {name: (format, shape, offset, where the info stands)}."""
    infos = {}
    for i in range(n_tensors):
        start = cursor.off
        name = cursor.name(f"the name of tensor {i} of {n_tensors}")
        what = f"tensor {_quote(name)}"
        if name in infos:
            cursor.fail(f"{what} is a duplicate: it stands here a second time", start)
        (n_dims,) = cursor.numbers("I", what)
        if not 1 <= n_dims <= _GGUF_MAX_DIMS:
            cursor.fail(f"{what} has {n_dims} dimensions, against 1 to {_GGUF_MAX_DIMS}",
                        cursor.off - 4)
        dims = cursor.numbers("Q" * n_dims, what)
        type_id, offset = cursor.numbers("IQ", what)
        infos[name] = _gguf_format(type_id), dims[::-1], offset, start
    return infos


def _tensor_bytes(what, format, shape, cursor, at):
    """Return the size in bytes of a tensor whose rows are whole blocks; refuse others."""
    if shape[-1:] and shape[-1] % format.block_len:
        cursor.fail(f"{what}: rows of {shape[-1]} are no multiple of the {format.name} block of "
                    f"{format.block_len}", at)
    return format.n_bytes(math.prod(shape))


def _gguf_tensors(cursor, infos, alignment):
    """Return {name: Tensor}, each shown to lie in the file."""
    file_bytes = len(cursor.view)
    data_off = -(-cursor.off // alignment) * alignment
    tensors = {}
    for name, (format, shape, offset, at) in infos.items():
        what = f"tensor {_quote(name)}"
        if offset % alignment:
            cursor.fail(f"{what}: offset {offset} is no multiple of the alignment {alignment}", at)
        start = data_off + offset
        n_bytes = _tensor_bytes(what, format, shape, cursor, at) if format.block_len else 0
        if start + n_bytes > file_bytes:
            cursor.fail(f"{what} of type {format.name} and shape {shape} needs {n_bytes} bytes "
                        f"from offset {start}, that is a file of {start + n_bytes} bytes, but it "
                        f"has {file_bytes}; it is truncated or damaged, so fetch it again", at)
        view = cursor.view[start:start + n_bytes]
        tensors[name] = Tensor(name, format, shape, view, start, cursor.path)
    return tensors


def _gguf_alignment(metadata, path):
    alignment = metadata.get("general.alignment", _GGUF_ALIGNMENT)
    if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
        raise KshipraError(f"general.alignment is {_quote(alignment)}, against a power of two, "
                           "8 or more", path)
    return alignment


def _read_gguf(path, view):
    """Return (version, metadata, tensors) of one GGUF file."""
    cursor = _Cursor(view, path)
    version, n_tensors, n_pairs = _gguf_header(cursor)
    metadata = _gguf_metadata(cursor, n_pairs)
    alignment = _gguf_alignment(metadata, path)
    infos = _gguf_infos(cursor, n_tensors)
    return version, metadata, _gguf_tensors(cursor, infos, alignment)


class GGUF:
    """A GGUF file, versions 2 and 3: metadata and tensors, nothing copied but numbers.

    metadata: {key: int, float, bool, str, array('I' ...), list of bool, or Strings}
    tensors: {name: Tensor}, of all parts where the model is split over several files
    data: the file's bytes, where they are in memory already; `path` is then only a name.
    """

    def __init__(self, path, data=None):
        self.path = os.fspath(path)
        view = _map_file(self.path) if data is None else memoryview(data)
        self.version, self.metadata, self.tensors = _read_gguf(self.path, view)
        n_parts = self.metadata.get("split.count", 1)
        if n_parts != 1 and n_parts != 0:
            self._add_parts(n_parts)

    def _add_parts(self, n_parts):
        """Add the tensors of NAME-00002-of-0000N.gguf and so on."""
        if type(n_parts) is not int or not 1 < n_parts <= 99999:
            raise KshipraError(f"split.count is {_quote(n_parts)}, against 1 to 99999", self.path)
        ending = f"-00001-of-{n_parts:05d}.gguf"
        if not self.path.endswith(ending):
            raise KshipraError(f"a part of a model split in {n_parts}, but its name does not end "
                               f"in {ending}; open the first part, under its own name", self.path)
        for i in range(2, n_parts + 1):
            part = self.path[:-len(ending)] + f"-{i:05d}-of-{n_parts:05d}.gguf"
            if not os.path.isfile(part):
                raise KshipraError(f"the model is split in {n_parts} files and "
                                   f"{os.path.basename(part)} is missing; fetch it too", self.path)
            for name, tensor in _read_gguf(part, _map_file(part))[2].items():
                if name in self.tensors:
                    raise KshipraError(f"tensor {_quote(name)} is a duplicate: another part of "
                                       "the split model has it too", part)
                self.tensors[name] = tensor


def _parse_object(raw, what, path, offset=None):
    """Return the JSON object in `raw` as a dict; refuse other JSON and names that repeat."""
    def unique(pairs):
        found = dict(pairs)
        if len(found) != len(pairs):
            seen = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))
            raise KshipraError(f"{what} has a duplicate name {_quote(twice)}", path, offset)
        return found
    try:
        value = json.loads(bytes(raw).decode("utf-8"), object_pairs_hook=unique)
    except KshipraError:
        raise
    except UnicodeDecodeError as error:
        raise KshipraError(f"{what} is not UTF-8 at byte {error.start}", path, offset) from None
    except RecursionError:
        raise KshipraError(f"{what} is JSON nested too deep", path, offset) from None
    except ValueError as error:
        raise KshipraError(f"{what} is not JSON: {error}", path, offset) from None
    if type(value) is not dict:
        raise KshipraError(f"{what} is JSON of type {type(value).__name__}, against an object",
                           path, offset)
    return value


def _are_counts(values):
    """Whether values is a list of u64; long lists are refused, since their product is slow."""
    return type(values) is list and len(values) <= 64 and all(
        type(v) is int and 0 <= v < 1 << 64 for v in values)           # type(True) is bool


def _safetensors_tensor(name, info, view, data_off, cursor):
    """Return the Tensor of one header entry {dtype, shape, data_offsets}."""
    what = f"tensor {_quote(name)}"
    if type(info) is not dict:
        cursor.fail(f"{what}: its entry in the header is no JSON object", 8)
    dtype, shape, offsets = (info.get(key) for key in ("dtype", "shape", "data_offsets"))
    format = None
    if type(dtype) is str:
        format = FORMATS[dtype] if dtype in _SAFETENSORS_FLOATS else LISTED_FORMATS.get(dtype)
    if format is None or format.block_len != 1:
        cursor.fail(f"{what}: dtype {_quote(dtype)} is unknown", 8)
    if not _are_counts(shape):
        cursor.fail(f"{what}: shape {_quote(shape)} is no list of sizes, integers from 0 up", 8)
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        cursor.fail(f"{what}: data_offsets {_quote(offsets)} are no pair of integers, begin and "
                    "end", 8)
    start, end = offsets
    if data_off + end > len(view):
        cursor.fail(f"{what}: data_offsets end at byte {data_off + end}, past the end of the "
                    f"file, {len(view)} bytes; the file is truncated, so fetch it again", 8)
    n_bytes = format.n_bytes(math.prod(shape))
    if n_bytes != end - start:
        cursor.fail(f"{what}: dtype {dtype} and shape {_quote(tuple(shape))} need "
                    f"{_quote(n_bytes)} bytes, against the {end - start} of its data_offsets", 8)
    data = view[data_off + start:data_off + end]
    return Tensor(name, format, shape, data, data_off + start, cursor.path)


class Safetensors:
    """A safetensors file: metadata ({str: str}) and tensors ({name: Tensor})."""

    def __init__(self, path):
        self.path = os.fspath(path)
        view = _map_file(self.path)
        cursor = _Cursor(view, self.path)
        (header_bytes,) = cursor.numbers("Q", "the header length")
        if header_bytes > _MAX_JSON_BYTES:
            cursor.fail(f"header length {header_bytes} is too large, against at most "
                        f"{_MAX_JSON_BYTES}; this is no safetensors file", 0)
        start = cursor.take(header_bytes, "the header")
        header = _parse_object(view[start:cursor.off], "the header", self.path, 8)
        self.metadata = header.pop("__metadata__", {})
        if type(self.metadata) is not dict or any(type(v) is not str
                                                  for v in self.metadata.values()):
            cursor.fail("__metadata__ is no JSON object of strings", 8)
        self.tensors = {name: _safetensors_tensor(name, info, view, cursor.off, cursor)
                        for name, info in header.items()}
        self._refuse_gaps(cursor.off, len(view))

    def _refuse_gaps(self, end, file_bytes):
        """Check that the tensors fill the file: none overlap, nothing hides between them."""
        for tensor in sorted(self.tensors.values(), key=lambda t: (t.offset, t.size)):
            if tensor.offset != end:
                raise KshipraError(f"tensor {_quote(tensor.name)}: its data_offsets leave a hole "
                                   f"or overlap; it begins at byte {tensor.offset} of the file, "
                                   f"against {end}", self.path, tensor.offset)
            end += tensor.format.n_bytes(tensor.size)
        if end != file_bytes:
            raise KshipraError(f"the tensors end at byte {end} but the file has {file_bytes}; it "
                               "holds something else", self.path, end)


def _read_json(path):
    """Return the JSON object in a file."""
    name = os.path.basename(path)
    if not os.path.isfile(path):                # a pipe would be waited for
        raise KshipraError(f"{name} is missing; this is no model directory, or not a whole one",
                           path)
    if os.path.getsize(path) > _MAX_JSON_BYTES:
        raise KshipraError(f"{name} is larger than {_MAX_JSON_BYTES} bytes", path)
    try:
        with open(path, "rb") as file:
            return _parse_object(file.read(), name, path)
    except OSError as error:
        raise KshipraError(f"cannot be read: {error.strerror}", path) from None


class HFDirectory:
    """A model directory as Hugging Face publishes it.

    config, generation_config: the JSON files of these names; the latter {} if missing
    tensors: {name: Tensor} of all shards   files: paths of the safetensors files read
    """

    def __init__(self, path):
        self.path = os.fspath(path)
        self.config = self._object("config.json")
        generation = "generation_config.json"
        self.generation_config = self._object(generation) if self._has(generation) else {}
        if self._has("model.safetensors"):
            homes, names = {}, ["model.safetensors"]
        else:
            homes = self._weight_map()
            names = sorted(set(homes.values()))
        self.files = [os.path.join(self.path, name) for name in names]
        self.tensors = {}
        found = {}
        for name, file in zip(names, self.files):
            for tensor in Safetensors(file).tensors.values():
                if tensor.name in found:
                    raise KshipraError(f"tensor {_quote(tensor.name)} is a duplicate: {name} and "
                                       f"{found[tensor.name]} hold it", file)
                found[tensor.name] = name
                self.tensors[tensor.name] = tensor
        wrong = [_quote(name) for name, home in homes.items() if found.get(name) != home]
        if wrong:
            more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
            raise KshipraError("the index names a shard that does not hold the tensor, for "
                               + ", ".join(wrong[:8]) + more + "; fetch the whole model anew",
                               self.path)

    def _has(self, name):
        return os.path.isfile(os.path.join(self.path, name))

    def _object(self, name):
        return _read_json(os.path.join(self.path, name))

    def _weight_map(self):
        """Return {tensor: shard} from the index, every shard a file of this directory."""
        index = "model.safetensors.index.json"
        if not self._has(index):
            found = "pytorch_model.bin, a pickle, which may run code when read; " if (
                self._has("pytorch_model.bin")) else ""
            raise KshipraError(f"found {found}no weights in model.safetensors and no {index}; "
                               "convert the model to safetensors", self.path)
        homes = self._object(index).get("weight_map")
        file = os.path.join(self.path, index)
        if type(homes) is not dict or not homes:
            raise KshipraError("weight_map is missing or no JSON object of names", file)
        for tensor, shard in homes.items():
            if type(shard) is not str:
                raise KshipraError(f"weight_map: the shard of {_quote(tensor)} is "
                                   f"{_quote(shard)}, against a file name", file)
            if shard in ("", ".", "..") or any(c in shard for c in "/\\:\0"):
                raise KshipraError(f"weight_map: shard {_quote(shard)} of {_quote(tensor)} points "
                                   "outside the directory", file)
        missing = sorted(shard for shard in set(homes.values()) if not self._has(shard))
        if missing:
            raise KshipraError(f"shard {_quote(missing[0])} is missing, with {len(missing) - 1} "
                               "more; fetch the whole model", file)
        return homes


# Writing.  What is to be written is a Tensor or, where a model is too large to convert in
# memory, (name, format, shape, pieces): an iterable of bytes-like pieces, read when its turn
# comes.  A file is written beside its place and moved there whole, or not at all.

def _entries(tensors):
    """Return [(name, format, shape, pieces)], checked for what any file format needs."""
    entries, names = [], set()
    for item in tensors.values() if isinstance(tensors, dict) else tensors:
        if isinstance(item, Tensor):
            pieces = [item.data if item.contiguous else item.format.encode(item.floats())]
            item = item.name, item.format, item.shape, pieces
        name, format, shape, pieces = item
        if name in names:
            raise KshipraError(f"tensor {_quote(name)} is to be written twice")
        if shape and shape[-1] % format.block_len:
            raise KshipraError(f"tensor {_quote(name)}: rows of {shape[-1]} are no multiple of "
                               f"the {format.name} block of {format.block_len}")
        names.add(name)
        entries.append((name, format, tuple(shape), pieces))
    return entries


def _write_pieces(file, name, pieces, n_bytes):
    """Write the bytes of one tensor and check that they are as many as its shape needs."""
    done_bytes = 0
    for piece in pieces:
        done_bytes += file.write(piece)
    if done_bytes != n_bytes:
        raise KshipraError(f"tensor {_quote(name)}: {done_bytes} bytes to write, against "
                           f"{n_bytes} for its shape and format")


@contextlib.contextmanager
def _whole_file(path):
    """Open a file to write that appears at `path` when complete, and never otherwise."""
    part = f"{os.fspath(path)}.{os.getpid()}.part"
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.remove(part)
        if isinstance(error, OSError):
            raise KshipraError(f"cannot be written: {error.strerror}", path) from None
        raise


def _gguf_string(text):
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _gguf_integer_kind(values):
    """Return the value type that holds all integers: u32, else i32, u64, i64."""
    low, high = min(values), max(values)
    for kind, least, limit in ((4, 0, 1 << 32), (5, -1 << 31, 1 << 31),
                               (10, 0, 1 << 64), (11, -1 << 63, 1 << 63)):
        if least <= low and high < limit:
            return kind
    raise KshipraError(f"metadata integers from {low} to {high} do not fit in 64 bits")


def _gguf_value(value):
    """Return (value type, bytes) of a metadata value."""
    if isinstance(value, bool):
        return _GGUF_BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        kind = _gguf_integer_kind([value])
        return kind, struct.pack("<" + _GGUF_SCALARS[kind], value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, (str, bytes)):
        return _GGUF_STRING, _gguf_string(value)
    kind, body = _gguf_elements(value)
    return _GGUF_ARRAY, struct.pack("<IQ", kind, len(value)) + body


def _gguf_elements(values):
    """Return (value type, bytes) of the elements of an array."""
    if isinstance(values, array):
        kind = next(k for k, letter in _GGUF_SCALARS.items() if letter == values.typecode)
        return kind, values.tobytes()
    if isinstance(values, Strings):
        values = values.raw()
    kinds = {bool if isinstance(v, bool) else str if isinstance(v, (str, bytes)) else type(v)
             for v in values}
    if kinds == {str}:
        return _GGUF_STRING, b"".join([_gguf_string(v) for v in values])
    if kinds == {bool}:
        return _GGUF_BOOL, bytes(values)
    if kinds == {int}:
        kind = _gguf_integer_kind(values)
        return kind, struct.pack(f"<{len(values)}{_GGUF_SCALARS[kind]}", *values)
    if kinds <= {int, float}:
        return 6, struct.pack(f"<{len(values)}f", *values)
    raise KshipraError("a metadata array is of strings, numbers or bools, one kind only; found "
                       + ", ".join(sorted(kind.__name__ for kind in kinds)))


def write_gguf(path, metadata: dict, tensors) -> None:
    """Write a GGUF file, version 3.

    metadata: as GGUF reads it, and lists of str, bytes, int, float or bool.  An int is
    written as u32 where it fits, else i32, u64, i64; a float as f32; an array as its type.
    tensors: {name: Tensor} or an iterable of Tensors or (name, format, shape, pieces)
    """
    alignment = _gguf_alignment(metadata, path)
    entries = _entries(tensors)
    head = [_GGUF_MAGIC, struct.pack("<IQQ", 3, len(entries), len(metadata))]
    for key, value in metadata.items():
        kind, body = _gguf_value(value)
        head += [_gguf_string(key), struct.pack("<I", kind), body]
    offset, sizes = 0, []
    for name, format, shape, _ in entries:
        if format.type_id is None or not 1 <= len(shape) <= _GGUF_MAX_DIMS:
            raise KshipraError(f"tensor {_quote(name)} of type {format.name} and shape {shape} "
                               "has no place in GGUF")
        head += [_gguf_string(name), struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1]),
                 struct.pack("<IQ", format.type_id, offset)]
        sizes.append(format.n_bytes(math.prod(shape)))
        offset += -(-sizes[-1] // alignment) * alignment
    head = b"".join(head)
    with _whole_file(path) as file:
        file.write(head + bytes(-len(head) % alignment))
        for (name, _, _, pieces), n_bytes in zip(entries, sizes):
            _write_pieces(file, name, pieces, n_bytes)
            file.write(bytes(-n_bytes % alignment))


def write_safetensors(path, metadata: dict, tensors) -> None:
    """Write a safetensors file of F32, F16 and BF16 tensors; metadata: {str: str}."""
    header, offset, entries = {}, 0, _entries(tensors)
    if metadata:
        header["__metadata__"] = {str(key): str(value) for key, value in metadata.items()}
    for name, format, shape, _ in entries:
        if format.name not in _SAFETENSORS_FLOATS:
            raise KshipraError(f"tensor {_quote(name)} is {format.name}; safetensors holds "
                               + ", ".join(_SAFETENSORS_FLOATS))
        end = offset + format.n_bytes(math.prod(shape))
        header[name] = {"dtype": format.name, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with _whole_file(path) as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for name, format, shape, pieces in entries:
            _write_pieces(file, name, pieces, format.n_bytes(math.prod(shape)))


# ---------------------------------------------------------------------------------------
# 3. Text


# ---------------------------------------------------------------------------------------
# 4. Reference


# ---------------------------------------------------------------------------------------
# 5. Machine code


# ---------------------------------------------------------------------------------------
# 6. Cache


# ---------------------------------------------------------------------------------------
# 7. Model


# ---------------------------------------------------------------------------------------
# 8. Sampling


# ---------------------------------------------------------------------------------------
# 9. Decoding


# ---------------------------------------------------------------------------------------
# 12. Front doors


# ---------------------------------------------------------------------------------------
# 13. The model in the file
