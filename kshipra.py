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

    Part I. The engine, in plain Python
    1. Numbers
    2. Files
    3. Text
    4. Operations
    5. Cache
    6. Model
    7. Sampling
    8. Decoding
    9. Batching

    Part II. The same bits, fast
    10. Instructions
    11. x86-64
    12. arm64
    13. Executable memory
    14. Matrix kernels
    15. Other kernels
    16. Attention kernels
    17. Programs
    18. Threads
    19. Self-check

    Part III. Around the engine
    20. Tools
    21. Quantizing
    22. Front doors
    23. The model in the file

Glossary.  n_layers, n_heads, n_kv_heads, n_experts, n_vocab, n_ctx: counts.  head_dim, hidden,
ffn: the width of a head, of the residual stream, of the inside of the feed-forward network.
R: the rows of a batch; a row is one (token, position, sequence) and its line in every
activation.  S: the positions that a row can see.  token: an id; piece: its bytes; text: a
str.  Weight matrices are (n_out, n_in).  block: a run of quantized weights; page: the unit
of the cache.  `_bytes`, `_bits`, `_s`: units; `_off`: bytes from the start of a file.

MIT License; see the file LICENSE.
"""
import argparse
import atexit
import base64
import bisect
import codecs
import collections
import contextlib
import functools
import hashlib
import heapq
import itertools
import json
import math
import mmap
import operator
import os
import platform
import random
import re
import select
import struct
import sys
import threading
import time
import types
import unicodedata
import weakref
import zlib
from array import array
from collections import Counter
from itertools import chain, repeat
from operator import add, mul, neg, sub, truediv
from typing import NamedTuple

try:
    import ctypes
except ImportError:                     # a Python built without it: no machine code
    ctypes = None

__all__ = ["Engine", "FORMATS", "Format", "GGUF", "Generation", "HFDirectory", "KshipraError",
           "Model", "Safetensors", "Sampler", "Sequence", "Tensor", "Tokenizer", "calibrate",
           "convert", "divergence", "load", "load_tokenizer", "main", "quantize", "write_gguf",
           "write_safetensors"]


def __dir__():
    """What a user may import; the rest of the book is there too, for whoever names it."""
    return [*__all__, "__version__", "__doc__", "__all__", "__name__", "__file__"]


__version__ = "0.1"


class KshipraError(ValueError):
    """Something a user can meet: what is wrong, where, and what to do.

    path: the file concerned; offset: the byte in it; both are kept as attributes.
    """

    def __init__(self, message: str, path=None, offset: "int | None" = None):
        at = "" if offset is None else f", byte {offset:#x}"
        name = str(path) if str(path).isprintable() and str(path) else repr(str(path))
        where = "" if path is None else name + at + ": "
        super().__init__(where + message)
        self.path, self.offset = path, offset


def warn(message):
    """Say something in one line on stderr, where there is one."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):      # closed, or nobody listens any more
            print("kshipra:", " ".join(str(message).split("\n")), file=sys.stderr)


# ---------------------------------------------------------------------------------------
# Part I. The engine, in plain Python
#
# A whole engine, complete without a line of machine code: from the bits of a weight to a
# streaming text.  It refers to nothing of Part II.


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
# Layouts are little-endian, and this file expects a machine that is too.  The simple formats
# come first (1.3), those whose codes are looked up in a table later (1.4), and how to write
# them all comes last (1.5).  Source: ggml, ggml-quants.c and ggml-common.h.


# 1.1 Plain floats.
#
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


# 1.2 Reading the bits of a block.  A run is four numbers, (at, n, shift, width), and means: of
# each of the n bytes from byte `at` of a block, the `width` bits from bit `shift` up.  So the low
# nibbles of the 16 bytes from byte 2 are (2, 16, 0, 4), and their high nibbles (2, 16, 4, 4).
# Where a block keeps one kind of integer (its codes, say) is a field, a list of runs, and a block
# format is its fields.

@functools.lru_cache(maxsize=None)
def _bits(shift, width, bit):
    """Return the translation of a byte to `width` of its bits, moved from `shift` to `bit`."""
    return bytes(((byte >> shift) & ((1 << width) - 1)) << bit for byte in range(256))


@functools.lru_cache(maxsize=None)
def _minus(bias):
    """Return the translation of a byte to itself less `bias`, as an int8."""
    return bytes((byte - bias) & 255 for byte in range(256))


def _gather(data, block_bytes, runs, bit=0):
    """Return the bits of `runs`, in order, of every block: a byte each, moved to bit `bit`."""
    moved = {run[2:]: data.translate(_bits(*run[2:], bit)) for run in runs}
    parts = [(moved[shift, width], at, at + n) for at, n, shift, width in runs]
    return b"".join([column[start + at:start + end]
                     for start in range(0, len(data), block_bytes)
                     for column, at, end in parts])


def _or(a, b):
    """Return a | b, byte by byte."""
    both = int.from_bytes(a, "little") | int.from_bytes(b, "little")
    return both.to_bytes(len(a), "little")


# The eight bits of a byte as eight bytes, lowest bit first, each moved up to bit 4.
_SPREAD = [bytes((((byte >> i) & 1) << 4) for i in range(8)) for byte in range(256)]


class _Field:
    """Where a block keeps one kind of integer, and how to read it from all blocks at once.

    runs: where the bits stand; upper: those from bit `upper_bit` of the integers up, if apart
    spread: instead of `upper`, (at, n): n bytes that hold the fifth bits, one bit a weight.
    bias: what to take from the unsigned integer, 0 or a power of two: kernels shift by it
    book: instead, the number that each unsigned integer stands for, in int8
    """

    def __init__(self, runs, upper=(), upper_bit=0, spread=None, bias=0, book=None):
        self.runs, self.upper, self.upper_bit = runs, upper, upper_bit
        self.spread, self.bias, self.book = spread, bias, book

    def read(self, data, block_bytes):
        """Return the integers of every block, in the weights' order, as array('b')."""
        out = _gather(data, block_bytes, self.runs)
        if self.upper:
            out = _or(out, _gather(data, block_bytes, self.upper, self.upper_bit))
        if self.spread:
            fifths = _gather(data, block_bytes, [(*self.spread, 0, 8)])
            out = _or(out, b"".join([_SPREAD[byte] for byte in fifths]))
        if self.book:
            out = out.translate(array("b", self.book).tobytes().ljust(256, b"\0"))
        return array("b", out.translate(_minus(self.bias)) if self.bias else out)

    def write(self, data, block_bytes, integers):
        """Put the integers of every block, as they are stored, into `data`, where zeros are."""
        n_blocks = len(data) // block_bytes
        per_block = len(integers) // n_blocks
        columns = {}                            # (at, n): what n bytes of each block get
        for runs, bit in ((self.runs, 0), (self.upper, self.upper_bit)):
            first = 0
            for at, n, shift, width in runs:
                moved = integers.translate(_bits(bit, width, shift))
                column = b"".join([moved[i:i + n] for i in range(first, len(moved), per_block)])
                columns[at, n] = _or(columns[at, n], column) if (at, n) in columns else column
                first += n
        if self.spread:                         # eight to a byte, lowest bit first
            columns[self.spread] = functools.reduce(
                _or, [integers[i::8].translate(_bits(4, 1, i)) for i in range(8)])
        taken = any(data)                       # perhaps some of the same bytes
        for (at, n), column in columns.items():
            for i in range(n_blocks):
                piece, start = column[i * n:i * n + n], i * block_bytes + at
                data[start:start + n] = _or(piece, data[start:start + n]) if taken else piece


def _read_f16(data, block_bytes, at):
    """Return the f16 at byte `at` of every block."""
    pairs = bytearray(2 * (len(data) // block_bytes))
    pairs[0::2] = data[at::block_bytes]
    pairs[1::2] = data[at + 1::block_bytes]
    return f16_to_f32(pairs)


def _each(values, n):
    """Return an iterator over values, each of them n times."""
    return chain.from_iterable(map(repeat, values, repeat(n)))


def _all_finite(floats):
    """Whether no float is infinite or NaN: an exponent of eight ones is either.

    The first test looks at seven of the eight, which are ones from 2**127 up, rarely seen.
    """
    tops = floats.tobytes()[3::4]
    return (b"\x7f" not in tops and b"\xff" not in tops) or all(map(math.isfinite, floats))


class Format:
    """One way to keep weights: its measures, and how to read and write it.

    sub_len: the weights under one scale, None for the plain floats.
    d_off, m_off: bytes of a block where the scale d and the f16 minimum stand.
    d: what d is: "f16"; "e8m0", a power of two; "ue4m3", a byte for each sub-block, from d_off;
    or where the bits of an f16 stand, a _BitField
    codes, scales, mins: fields, see _Field.  Without scales, d is that of all sub-blocks, and
    likewise the minimum; with them, sub-block s has the scale unit * d * scales[s].
    floats: how plain floats are read.
    supported: whether kshipra reads it; if not, the row serves to list a file's tensors.
    """

    def __init__(self, name, type_id, block_len, block_bytes, sub_len=None, d_off=None,
                 m_off=None, codes=None, scales=None, mins=None, unit=1.0, d="f16",
                 floats=None):
        self.name, self.type_id = name, type_id
        self.block_len, self.block_bytes, self.sub_len = block_len, block_bytes, sub_len
        self.d_off, self.m_off = d_off, m_off
        self.codes, self.scales, self.mins, self.unit = codes, scales, mins, unit
        self.d, self._floats = d, floats
        self.supported = bool(floats or codes)
        if codes:                               # what the kernels of chapter 14 rely on
            assert sub_len in (16, 32) and block_len % 32 == 0, "one scale of activations for each"
            assert m_off is None or m_off == d_off + 2, "both f16 are taken from one word"
            assert not mins or scales and m_off is not None, "sub-minimums are multiples of m"
            bias = getattr(codes, "bias", 0)
            assert not bias & (bias - 1), "a sum is multiplied by a bias by shifting it"
            for field, n in ((codes, block_len), (scales, block_len // sub_len)):
                if isinstance(field, _Field):
                    lengths = [run[1] for run in field.runs]
                    assert sum(lengths) == n, "a field has an integer for each"
                    assert not any(length % 4 for length in lengths), "kernels read four bytes"

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
        scales = self._read_d(data)
        if self.d != "ue4m3":
            scales = _each(scales, self.block_len // self.sub_len)
        if self.scales:                         # exact: 11 bits of d times at most 8
            factors = self.scales.read(data, self.block_bytes)
            scales = map(mul, factors, map(mul, scales, repeat(self.unit)))
        if self.m_off is None:
            return codes, array("f", scales), ()
        mins = _each(_read_f16(data, self.block_bytes, self.m_off), self.block_len // self.sub_len)
        if self.mins:
            mins = map(mul, self.mins.read(data, self.block_bytes), map(neg, mins))
        return codes, array("f", scales), array("f", mins)

    def _read_d(self, data):
        """Return the d of every block."""
        if self.d == "f16":
            return _read_f16(data, self.block_bytes, self.d_off)
        if self.d == "e8m0":
            return [math.ldexp(0.5, e - 127) for e in data[self.d_off::self.block_bytes]]
        if self.d == "ue4m3":
            runs = [(self.d_off, self.block_len // self.sub_len, 0, 8)]
            return [_UE4M3[byte] for byte in _gather(data, self.block_bytes, runs)]
        return f16_to_f32(array("H", self.d.read(data, self.block_bytes)).tobytes())

    def pack(self, codes, ds, ms=(), scales=None, mins=None) -> bytes:
        """Return blocks of these integers, bytes as they are stored: before bias and book."""
        data = bytearray(self.n_bytes(len(codes)))
        for field, integers in ((self.codes, codes), (self.scales, scales), (self.mins, mins)):
            if field:
                field.write(data, self.block_bytes, integers)
        return self.with_scales(data, ds, ms)

    def with_scales(self, data, ds, ms) -> bytes:
        """Return the blocks in `data` with the scales ds and minimums ms, one a block, instead of
        their own; a format without minimums takes none of ms, one without f16 what is near."""
        data, size = bytearray(data), self.block_bytes
        columns = [(self.m_off, _f16s(ms))] if self.m_off is not None else []
        if self.d == "e8m0":
            data[self.d_off::size] = bytes([max(math.frexp(d)[1] + 127, 0) for d in ds])
        elif self.d == "ue4m3":
            nearest = bytes([bisect.bisect_left(_UE4M3, abs(d), 0, 127) for d in ds])
            for s in range(self.block_len // self.sub_len):
                data[self.d_off + s::size] = nearest
        elif self.d == "f16":
            columns.append((self.d_off, _f16s(ds)))
        else:
            self.d.write(data, size, array("H", _f16s(ds)))
        for at, pairs in columns:
            data[at::size], data[at + 1::size] = pairs[0::2], pairs[1::2]
        return bytes(data)

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

    def encode(self, floats, importance=None) -> bytes:
        """Return finite floats, whole blocks of them, in this format.

        importance: how much the error of each counts, an array('f') as long as floats, of
        numbers from 0 up; a format whose encoder does not search takes no notice
        """
        if self.name not in _ENCODERS:
            raise KshipraError(f"kshipra does not write {self.name}; it writes "
                               + " ".join(_ENCODERS))
        if not (isinstance(floats, array) and floats.typecode == "f"):
            floats = array("f", floats)
        if len(floats) % self.block_len:
            raise KshipraError(f"{len(floats)} weights are no whole number of {self.name} blocks "
                               f"of {self.block_len}")
        if importance is not None and not (len(importance) == len(floats) and _all_finite(
                importance) and min(importance, default=0.0) >= 0):
            raise KshipraError(f"importance is {len(importance)} numbers for {len(floats)} "
                               "weights, or not all are finite and from 0 up")
        importance = heeded_importance(importance)
        out = []
        for start in range(0, len(floats), _PART_LEN):
            part = floats[start:start + _PART_LEN]
            if not _all_finite(part):
                at = next(i for i, x in enumerate(part) if not math.isfinite(x))
                raise KshipraError(f"weight {start + at} is {part[at]}; {self.name} is written "
                                   "from finite numbers only")
            try:
                out.append(_ENCODERS[self.name](self, part, importance and importance[
                    start:start + _PART_LEN]))
            except OverflowError:
                peak = max(map(abs, part))
                raise KshipraError(f"weights up to {peak:g} are beyond the range of {self.name}; "
                                   "take BF16 or F32") from None
        return b"".join(out)


# 1.3 The block formats, drawn: what stands above a box is the byte where it begins.
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

_K_SCALES = _Field([(4, 4, 0, 6), (12, 4, 0, 4)], upper=[(4, 4, 0, 0), (4, 4, 6, 2)], upper_bit=4)
_K_MINS = _Field([(8, 4, 0, 6), (12, 4, 4, 4)], upper=[(8, 4, 0, 0), (8, 4, 6, 2)], upper_bit=4)

FORMATS = {row.name: row for row in (
    Format("F32", 0, 1, 4, floats=_decode_f32),
    Format("F16", 1, 1, 2, floats=f16_to_f32),
    Format("BF16", 30, 1, 2, floats=bf16_to_f32),
    Format("Q4_0", 2, 32, 18, sub_len=32, d_off=0,
           codes=_Field([(2, 16, 0, 4), (2, 16, 4, 4)], bias=8)),
    Format("Q4_1", 3, 32, 20, sub_len=32, d_off=0, m_off=2,
           codes=_Field([(4, 16, 0, 4), (4, 16, 4, 4)])),
    Format("Q5_0", 6, 32, 22, sub_len=32, d_off=0,
           codes=_Field([(6, 16, 0, 4), (6, 16, 4, 4)], spread=(2, 4), bias=16)),
    Format("Q5_1", 7, 32, 24, sub_len=32, d_off=0, m_off=2,
           codes=_Field([(8, 16, 0, 4), (8, 16, 4, 4)], spread=(4, 4))),
    Format("Q8_0", 8, 32, 34, sub_len=32, d_off=0,
           codes=_Field([(2, 32, 0, 8)])),
    Format("Q2_K", 10, 256, 84, sub_len=16, d_off=80, m_off=82,
           codes=_Field([(at, 32, shift, 2) for at in (16, 48) for shift in (0, 2, 4, 6)]),
           scales=_Field([(0, 16, 0, 4)]),
           mins=_Field([(0, 16, 4, 4)])),
    Format("Q3_K", 11, 256, 110, sub_len=16, d_off=108,
           codes=_Field([(at, 32, shift, 2) for at in (32, 64) for shift in (0, 2, 4, 6)],
                        upper=[(0, 32, shift, 1) for shift in range(8)], upper_bit=2, bias=4),
           scales=_Field([(96, 8, 0, 4), (96, 8, 4, 4)],
                         upper=[(104, 4, shift, 2) for shift in (0, 2, 4, 6)], upper_bit=4,
                         bias=32)),
    Format("Q4_K", 12, 256, 144, sub_len=32, d_off=0, m_off=2,
           codes=_Field([(at, 32, shift, 4) for at in range(16, 144, 32) for shift in (0, 4)]),
           scales=_K_SCALES, mins=_K_MINS),
    Format("Q5_K", 13, 256, 176, sub_len=32, d_off=0, m_off=2,
           codes=_Field([(at, 32, shift, 4) for at in range(48, 176, 32) for shift in (0, 4)],
                        upper=[(16, 32, shift, 1) for shift in range(8)], upper_bit=4),
           scales=_K_SCALES, mins=_K_MINS),
    Format("Q6_K", 14, 256, 210, sub_len=16, d_off=208,
           codes=_Field([(at, 64, shift, 4) for at in (0, 64) for shift in (0, 4)],
                        upper=[(at, 32, shift, 2) for at in (128, 160) for shift in (0, 2, 4, 6)],
                        upper_bit=4, bias=32),
           scales=_Field([(192, 16, 0, 8)])),
)}


# 1.4 Codebooks and grids.  The number of codes is what a format pays for, so the formats of
# less than five bits choose which numbers their codes stand for.  A codebook says what number,
# of the int8 ones, each code of a weight is.  A grid goes further: one index chooses the codes
# of 4 or 8 weights together, from a list of those patterns that are likely, and without their
# signs, which stand apart.  So to the rest of this file all is as before: int8 codes, a scale.
#
# These blocks are not made of bytes, so here a field is drawn by its bits: bit b of a block is
# bit b mod 8 of byte b // 8, and an integer's lowest bit comes first.
#
#          0      2               18
# IQ4_NL  |  d   |   qs[16]      |                   as Q4_0, with a codebook; code 8 is 1
#          0               1               17
# MXFP4   | 2 ** (e - 127) |   qs[16]     |          e: 8 bits; the codes are twice those of E2M1,
#          a float of four bits, +- 0 1/2 1 3/2 2 3 4 6, and the scale half of 2 ** (e - 127)
#          0      4
# NVFP4   | d[4] |  4 x qs[8]    |                   4 of 16 like MXFP4's; d: a float of 4 bits of
#          exponent, 3 of fraction, halved; weight i and i + 8 of a sub-block in one byte
#          0      2     4        8
# IQ4_XS  |  d   | high | low[4] |  qs[128]  |       8 of 32 like IQ4_NL's; scales of 6 bits,
#          less 32, in the order of bits: four in low, the upper two in high
#          0            64     66
# TQ2_0   |  qs[64]    |  d   |                      2 bits a weight, in columns; code - 1
#          0            48       52
# TQ1_0   |  qs[48]    | qh[4] |  d   |              5 weights a byte, see _Trits
#
#          0     2
# IQ2_XXS |  d  | 8 x { 4 indexes of 8 bits, 4 signs of 7, scale of 4 } |
#          0     2                                        66
# IQ2_XS  |  d  | 32 x { index of 9 bits, signs of 7 }   | 16 scales of 4 |
#          0     2                       34            66                74
# IQ2_S   |  d  | 32 indexes, low 8    | 32 x 8 signs | 32 x 2 high    | 16 scales of 4 |
#          0     2                       66
# IQ3_XXS |  d  | 64 indexes of 8 bits | 8 x { 4 signs of 7, scale of 4 } |
#          0     2                       66            74              106
# IQ3_S   |  d  | 64 indexes, low 8    | 64 x 1 high  | 32 x 8 signs  | 8 scales of 4 |
#          0     2                       34
# IQ1_S   |  d  | 32 indexes, low 8    | 8 x { 4 x 3 high, scale of 3, shift } |
#          0                       32                             48
# IQ1_M   | 32 indexes, low 8      | 32 x { 3 high, shift }    | 4 x { 4 scales of 3, 4 of d } |
#
# Signs: bit i is set where weight i is negative.  Seven stand for eight: the eighth makes the
# number of negative weights even.  A scale s means 2 s + 1.  shift: whether 1/8 is added to
# the weights -1, 0 and 1 of the grid or taken from it; times eight, both are integers.
#
# Two that are not ggml's, and so stand in no file of GGUF: groups of 32, 64 or 128 weights with
# the step and the minimum of each, in two, four or eight bits; and the codebook of QLoRA.
#
#              0     2     4
# INTb_Gn     |  d  |  m  |  codes   |              4 bits: runs of 32 as in Q4_1; 2 bits: in
#          columns of n / 4; 8 bits: int8, so m is not the minimum but what code 0 stands for
#              0     2
# NF4         |  d  |  qs[32]        |              64 weights, runs of 32 as in Q4_0
#
# NF4's numbers are no integers: they cut a normal distribution into 16 equal parts.  Here they
# are rounded to 1/127 of the largest, so that the integer product serves.  That moves them by
# 0.0037 at most, where the nearest two are 0.08 apart; d is the largest magnitude / 127.
# Source: Dettmers et al. (2023), QLoRA, appendix E.

_NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)
_NF4_BOOK = tuple([round(127 * v) for v in _NF4])


def _int_format(bits, group):
    """Return the row of asymmetric integers of so many bits in groups of so many weights."""
    codes = _Field({2: [(4, group // 4, shift, 2) for shift in (0, 2, 4, 6)],
                    4: [(at, 16, shift, 4) for at in range(4, 4 + group // 2, 16)
                        for shift in (0, 4)],
                    8: [(at, 32, 0, 8) for at in range(4, 4 + group, 32)]}[bits])
    return Format(f"INT{bits}_G{group}", None, group, 4 + group * bits // 8, sub_len=32, d_off=0,
                  m_off=2, codes=codes)


_IQ4_BOOK = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1_BOOK = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

# Half of the float that each byte is: 0eeeefff, a NaN as 0.  ggml takes no notice of bit 7.
_UE4M3 = [math.ldexp(f if e == 0 else f + 8, max(e, 1) - 11) for e in range(16) for f in range(8)]
_UE4M3 = _UE4M3[:127] + [0.0] + _UE4M3

# The grids: of all patterns of the values, those of which a bit is set in the packed string;
# pattern p has the value number p mod n first, then (p // n) mod n, and so on.  The second
# number is the checksum (CRC-32) of the bits.  name: (weights, values, checksum, bits)
_GRIDS = {
    "IQ2_XXS": (8, (8, 25, 43), 1869742668,
        "by7>J#4rq#!QHEncOM6OfNtjgS9!Mc?a&boq_N~kZa;tJ!>d+kxj+DFC@{nhxM}r-6t&yWy?pq(0YOlzpO=!v_N0"
        "pFC`vj_PpJ6DLgkP~q?)&ED)yCEG#nD8@Ntf#lv{5duX40bO>_?)ta{Z3Tf3&$;%N>PPc(bCPlNQxV3S`6@7=#KX"
        "$+$?sbED0Wi_Xaq2%I~9#vAJ5AE`3vUSwSQR?z+dpS{)CcR{fmL|`Yvb<*BGJGSZ**}Ha6wU_u+t>=3H|EUc5o^C"
        ";#S@M(?7lH(Xs@aV_@g$Rd{6Ub{|fz0`v("),
    "IQ2_XS": (8, (8, 25, 43), 2302296685,
        "T~S-Eg)j&l68evc?uRD!zb1D7TRA*h_1@+j#R9|3Fvhq>t4E`IjNYmg!hMNW1`)ca4%!)(LLp{AE2P-VexqzVlR("
        "wFJSBhy1Uq7Ymv!j^v{XmmywM9Bu#qHS+&Ct$uoSRW+V>XU49pTgV<aHBi%%6Fn5|ZLRwzByoJpF%kV-K{7N+MwU"
        "WGFyhps6Zr^&0d0L>^%c}ofMKEsUCXoshWXilv$U$M@#HzYI4!!Ua_>=n1C=7nG;?a$_h29%-8Wb=9wZiv(B-%M&"
        "W=`RUqh-WB1A^kDh-y$Ko(7}$|4<nzVLxsCs_uKjvxvRvOaWLgr>FxqPyaJp#-H6Rlu%NfVKu!y)d`a#fqAy$iT*"
        "@kKG$+#IrS5AAue~V#AI;%yu3)k*@6+i100"),
    "IQ2_S": (8, (8, 25, 43), 615779209,
        "ZBku|1|bY<LEkIreJYIa3ike2*|a*l-?A&i{Kdp1YG%uZwOsHrht=HbUNS9FDR>MsYkRC|R&fDRK&z%Hq|KZq%$h"
        "AdfRu=<WFaD@ZEHcft-39iuu8M`o-)-$zSb+~Pzct{fIwGU$sr~>5dI}`C_$U{YOCkOh4$>44@+nz%+K^7#V^4EN"
        "@h@lTwueOAZqbVA&yVnn5KKRRv&L8Ux&RVkL<q8winguK(oINAt3cYun{b@p>!Z05NyGsKanfocdZXWy5=J?ASDF"
        "+5sX?Q$unApL-kF$9g5pXP9R>Nf)W_r?0BDYOW;$>J7R`v8>Q|dooO8NowT&e!Y&t&oPQ#-L-UG*l{sW^=T{xd+0"
        "V)_xvbcfP&@~~DgSg><U2MX;nQm%^f53Qr+0^rp9wi(B&iquFs&=ddOQ4;8Q3+-R}H_FE8m*F00"),
    "IQ3_XXS": (4, (4, 12, 20, 28, 36, 44, 52, 62), 1164938298,
        "O;Irp!Y~XxTd`DS3Pbmb3Gs?_V22+?oe-~J<eB)Krf^l&CO+Stllf(ufJ?TsX@SgYFKk#gTi_5(Xr<w@0m&c23k7"
        "(<ONwlHZUUHE6tk(XkPM;~73Z$vIQa@1s(}>SmT&aOHTs@nn>BHgp3s}<H_@xP8;v`1jUZ6VuD^ueo%?KNQe{^_n"
        "(wR(&xXPnQJNUcXM5v$ges&9R(Bh8nv@Yk263_d-(@|Qtf-@b<D|4ZKteoq+DL?h$nQN|w7(6*b^Qw!(tE=mzRP`"
        "N+)M4U95eAqMqCZ1{f_RKf%pO"),
    "IQ3_S": (4, (1, 3, 5, 7, 9, 11, 13, 15), 512079645,
        "Em6Tr!$1&yGt9zfPrD)FHQh$2`HHR7gL)}~_&aH-(Ds(%2Z&Y#`;*RYoWsDpH}l@x<mYv6znwW<&kxZf%GW~-XNS"
        "s0^XSbGX<tjlpa%E$6UinAhJdehMgXoa<{4|2r@$2(Ea@DiYDrGjHs~TP8n~726_%kjVy)d7ZZm&*Ihx)Kx8~5*q"
        "WlSN!+X>>+&H0xEvio8&a(_;L2p?^FI!Gz36Nju-`R5S9SF1{(Wr`ZIMT6&wRfs20c=|F2^I+@hJ$HynjoXF9`2m"
        "XY*c*4mIfj3Ow7E2AF|v>xe};?M>d#&tU?k5qa@!8OI{$hOWnba26%354U&|Fa(5_|7n{<x`iyD-Y;^FM^wJ8E=j"
        "@`Tk5I6}<eNhm{9kK?N#q5>9t)l8rM`xXN0)QN{E=vKmC3vOg-ILu0{"),
    "IQ1_S": (8, (-8, 0, 8), 1855292535,
        "EmA>CoJSabcdFraOl4y~L2`QctFhBr5$i4KWszN2^kPEt2RzxdNXa=(J}0~Bm)R6TAha}>aWKg^4Xg1`wx6&8PgZ"
        "(p>8%H8J%qX*0$v&n#LTX}&Ajlu&-1*`bL~P@H*DrIRz7ogN!#-%DXPy$iprG>BmIUcN=E^e`9PX<%ku|*5Mto|z"
        "A{(}s6v{|M**&<@CSp543nr%)tPHp$xUn<(&He<oVU2Yjwl2KF5v~ag!p6pC3Cdfyl0#K(#^w8wxxzzakl&C&_fn"
        "OOipK9F$6jLxBWb(qJ`zsveyFRTu?ZoXrNNKS~ti(c9*E8=xUH*2_MZzOk&Ha#8erfvWu39pCs19dkQNh=qfZYa~"
        "UeRPZek-ab+s%50=HLc*e*}py3y~DO|SV-PfQvG7+;HD5xf;vmyO9HL|$#*Rw`r$vq7J8x37PE2&y52`$mn&Tlrh"
        ">pz-*9Rmi^r9g>kSSvD<sA-<HTiLrqYl;>%7aa>L)9mc=YG?0t(M^8WzIAx~-|d&LzRC8!c>Br8%kkskgMW0K_wA"
        "vY$4xh=nkU)V!JVXUVPf&f@zo*(%ee1{fhozK(y!{?10}%1{p2H1i13y6ev3VAYqQIeFTbDsee)o%@{@i~jQsJW4"
        "|w+ugt-+`{$dtS*UUgN3feBP<)|DERd}v?DSHzBTRz-Nx!+*7HaTLZWMfDHEne44E$<T`uJ(800+zd|0Zk*JQFl3"
        "dDHGsbRKY=S;Xb8`kA?`m^?IYhxC|63@m!#QwUouCJt$hJv$@S+dG$@x(-pD!vzdC8a2A?yeIXQyd0+G$yJjq6o{"
        "Ww`4V|XUdlg+f1GApt6Ucv9{y*jZP-*r2hyWmP@r*i_fvOIOg9y&eRl419tfw#?!&LARhDor@x(jpf0R"),
}


@functools.lru_cache(maxsize=None)
def grid(name):
    """Return the patterns of a grid in int8, one after another, in the order of their index."""
    length, values, _, packed = _GRIDS[name]
    bits = int.from_bytes(zlib.decompress(base64.b85decode(packed), -15), "little")
    patterns = [p for p in range(len(values) ** length) if bits >> p & 1]
    return array("b", [values[p // len(values) ** i % len(values)]
                       for p in patterns for i in range(length)])


class _BitField:
    """Integers that stand anywhere in a block, drawn by their bits.

    parts: (width, first bit, (count, step), ...), the lowest bits of the integers first; steps
    are in bits and nest: (8, 64), (4, 7) is eight times, 64 bits apart, four that are 7 apart.
    odd: an integer v means 2 v + 1   bias: what to take from it
    """

    def __init__(self, *parts, odd=False, bias=0):
        self.odd, self.bias = odd, bias
        self.parts = []                         # (width, the first bit of each integer)
        for width, first, *runs in parts:
            bits = [first]
            for count, step in runs:
                bits = [bit + i * step for bit in bits for i in range(count)]
            self.parts.append((width, bits))

    def read(self, data, block_bytes):
        """Return the integers of every block, in order, as a list."""
        out = []
        for start in range(0, len(data), block_bytes):
            block = int.from_bytes(data[start:start + block_bytes], "little")
            width, bits = self.parts[0]
            mask = (1 << width) - 1
            integers = [block >> bit & mask for bit in bits]
            place = width
            for width, bits in self.parts[1:]:
                mask = (1 << width) - 1
                integers = [v | (block >> bit & mask) << place for v, bit in zip(integers, bits)]
                place += width
            out.extend(integers)
        if self.odd:
            return [2 * v + 1 for v in out]
        return [v - self.bias for v in out] if self.bias else out


    def write(self, data, block_bytes, integers):
        """Put the integers of every block, as they are stored, into `data`."""
        integers = iter(integers)
        for start in range(0, len(data), block_bytes):
            block = int.from_bytes(data[start:start + block_bytes], "little")
            for parts in zip(*[[(width, bit) for bit in bits] for width, bits in self.parts]):
                v = next(integers)
                for width, bit in parts:
                    mask = (1 << width) - 1
                    block = block & ~(mask << bit) | (v & mask) << bit
                    v >>= width
            data[start:start + block_bytes] = block.to_bytes(block_bytes, "little")


# Eight signs as eight bytes of 0 and 1, from a byte; and from seven bits, the eighth being even.
_SIGNS = [bytes(byte >> i & 1 for i in range(8)) for byte in range(256)]
_EVEN_SIGNS = [_SIGNS[i | (bin(i).count("1") & 1) << 7] for i in range(128)]


class _GridCodes:
    """Codes that an index chooses by the pattern.

    grid: its name   index, signs: _BitField; without signs the pattern has its own
    even: whether the signs are seven bits
    shift: whether the upper half of the indexes means the grid less 1, the lower the grid plus 1
    """

    def __init__(self, name, index, signs=None, even=False, shift=False):
        self.name, self.index, self.signs, self.even, self.shift = name, index, signs, even, shift
        self.length = _GRIDS[name][0]

    @functools.lru_cache(maxsize=None)
    def patterns(self):
        """Return the codes of each index, as bytes."""
        codes = grid(self.name)
        if self.shift:
            codes = array("b", [c + 1 for c in codes] + [c - 1 for c in codes])
        return [codes[i:i + self.length].tobytes() for i in range(0, len(codes), self.length)]

    def read(self, data, block_bytes):
        patterns = self.patterns()
        codes = b"".join([patterns[i] for i in self.index.read(data, block_bytes)])
        if self.signs:
            signs = _EVEN_SIGNS if self.even else _SIGNS
            ones = b"".join([signs[i] for i in self.signs.read(data, block_bytes)])
            ones = int.from_bytes(ones, "little")
            # -c is ~c + 1; no byte carries into the next, since no code of a grid is 0.
            codes = (int.from_bytes(codes, "little") ^ 255 * ones) + ones
            codes = codes.to_bytes(len(data) // block_bytes * 256, "little")
        return array("b", codes)


class _Trits:
    """Codes -1, 0, 1, five to a byte: digits of base 3, read as a fraction of 256.

    A byte b is near 256 * (0.abcde in base 3).  Three times b has the digit a above bit 7, and
    below it what is left for the next digits.
    runs: (at, n, digits): of the n bytes from `at`, so many digits, the first of all bytes first
    """

    def __init__(self, *runs):
        self.runs = runs

    def read(self, data, block_bytes):
        columns = [data.translate(bytes((byte * 3 ** i & 255) * 3 >> 8 for byte in range(256)))
                   for i in range(5)]
        parts = [(columns[i], at, at + n) for at, n, digits in self.runs for i in range(digits)]
        out = b"".join([column[start + at:start + end]
                        for start in range(0, len(data), block_bytes)
                        for column, at, end in parts])
        return array("b", out.translate(_minus(1)))

    def write(self, data, block_bytes, integers):
        """Put the digits 0, 1, 2 of every block into `data`: as a fraction, rounded up."""
        integers = iter(integers)
        for start in range(0, len(data), block_bytes):
            for at, n, digits in self.runs:
                numbers = [0] * n
                for i in range(digits):
                    numbers = [3 * number + next(integers) for number in numbers]
                data[start + at:start + at + n] = bytes(
                    [(number * 3 ** (5 - digits) * 256 + 242) // 243 for number in numbers])


FORMATS.update((row.name, row) for row in (
    Format("IQ4_NL", 20, 32, 18, sub_len=32, d_off=0,
           codes=_Field([(2, 16, 0, 4), (2, 16, 4, 4)], book=_IQ4_BOOK)),
    Format("MXFP4", 39, 32, 17, sub_len=32, d_off=0, d="e8m0",
           codes=_Field([(1, 16, 0, 4), (1, 16, 4, 4)], book=_E2M1_BOOK)),
    Format("NVFP4", 40, 64, 36, sub_len=16, d_off=0, d="ue4m3",
           codes=_Field([(at, 8, shift, 4) for at in range(4, 36, 8) for shift in (0, 4)],
                        book=_E2M1_BOOK)),
    Format("IQ4_XS", 23, 256, 136, sub_len=32, d_off=0,
           codes=_Field([(at, 16, shift, 4) for at in range(8, 136, 16) for shift in (0, 4)],
                        book=_IQ4_BOOK),
           scales=_BitField((4, 32, (8, 4)), (2, 16, (8, 2)), bias=32)),
    Format("TQ2_0", 35, 256, 66, sub_len=32, d_off=64,
           codes=_Field([(at, 32, shift, 2) for at in (0, 32) for shift in (0, 2, 4, 6)], bias=1)),
    Format("TQ1_0", 34, 256, 54, sub_len=32, d_off=52,
           codes=_Trits((0, 32, 5), (32, 16, 5), (48, 4, 4))),
    Format("IQ2_XXS", 16, 256, 66, sub_len=32, d_off=0, unit=1 / 8,
           codes=_GridCodes("IQ2_XXS", index=_BitField((8, 16, (8, 64), (4, 8))),
                            signs=_BitField((7, 48, (8, 64), (4, 7))), even=True),
           scales=_BitField((4, 76, (8, 64)), odd=True)),
    Format("IQ2_XS", 17, 256, 74, sub_len=16, d_off=0, unit=1 / 8,
           codes=_GridCodes("IQ2_XS", index=_BitField((9, 16, (32, 16))),
                            signs=_BitField((7, 25, (32, 16))), even=True),
           scales=_BitField((4, 528, (16, 4)), odd=True)),
    Format("IQ2_S", 22, 256, 82, sub_len=16, d_off=0, unit=1 / 8,
           codes=_GridCodes("IQ2_S", index=_BitField((8, 16, (32, 8)), (2, 528, (32, 2))),
                            signs=_BitField((8, 272, (32, 8)))),
           scales=_BitField((4, 592, (16, 4)), odd=True)),
    Format("IQ3_XXS", 18, 256, 98, sub_len=32, d_off=0, unit=1 / 4,
           codes=_GridCodes("IQ3_XXS", index=_BitField((8, 16, (64, 8))),
                            signs=_BitField((7, 528, (8, 32), (4, 7))), even=True),
           scales=_BitField((4, 556, (8, 32)), odd=True)),
    Format("IQ3_S", 21, 256, 110, sub_len=32, d_off=0,
           codes=_GridCodes("IQ3_S", index=_BitField((8, 16, (64, 8)), (1, 528, (64, 1))),
                            signs=_BitField((8, 592, (32, 8)))),
           scales=_BitField((4, 848, (8, 4)), odd=True)),
    Format("IQ1_S", 19, 256, 50, sub_len=32, d_off=0, unit=1 / 8,
           codes=_GridCodes("IQ1_S", shift=True, index=_BitField(
               (8, 16, (32, 8)), (3, 272, (8, 16), (4, 3)), (1, 287, (8, 16), (4, 0)))),
           scales=_BitField((3, 284, (8, 16)), odd=True)),
    Format("IQ1_M", 29, 256, 56, sub_len=16, unit=1 / 8,
           d=_BitField((4, 396), (4, 412), (4, 428), (4, 444)),
           codes=_GridCodes("IQ1_S", shift=True, index=_BitField(
               (8, 0, (32, 8)), (3, 256, (32, 4)), (1, 259, (32, 4)))),
           scales=_BitField((3, 384, (4, 16), (4, 3)), odd=True)),
    Format("NF4", None, 64, 34, sub_len=32, d_off=0,
           codes=_Field([(at, 16, shift, 4) for at in (2, 18) for shift in (0, 4)],
                        book=_NF4_BOOK)),
    *[_int_format(bits, group) for bits in (2, 4, 8) for group in (32, 64, 128)],
))
FORMAT_BY_ID = {row.type_id: row for row in FORMATS.values() if row.type_id is not None}

# Types that a file may hold and kshipra does not compute with: enough to list them and to
# check their place in the file.  Source: ggml.h, enum ggml_type, with the block sizes of
# ggml-common.h; the last group is named as safetensors names it and has no ggml number.
LISTED_FORMATS = {row.name: row for row in (
    Format("I8", 24, 1, 1), Format("I16", 25, 1, 2),
    Format("I32", 26, 1, 4), Format("I64", 27, 1, 8), Format("F64", 28, 1, 8),
    Format("BOOL", None, 1, 1), Format("U8", None, 1, 1), Format("U16", None, 1, 2),
    Format("U32", None, 1, 4), Format("U64", None, 1, 8), Format("F8_E4M3", None, 1, 1),
    Format("F8_E5M2", None, 1, 1), Format("F8_E8M0", None, 1, 1), Format("C64", None, 1, 8),
)}


# 1.5 Encoders.  Reading a format is one formula; writing it is a search for the scale and the
# minimum that lose least.  The simple formats take the largest weight (or the smallest and the
# largest) as it is.  The k-quants try a range of scales about that one, give each the codes that
# suit it, and ask which loses least: the scale for given codes is a matter of least squares.
# The searches are ggml's, step by step, in f32: each _f32s below is one rounding.  They work on
# all sub-blocks at once: column i has the weight i of every sub-block.  So loops run inside map,
# and a kernel can do the same with a sub-block in each lane.
#
# An encoder is a function (format, floats, importance) -> bytes.  importance: how much the error
# of each weight counts, or None; only the searches look at it.
# Source: ggml-quants.c, quantize_row_*_ref, make_qx_quants, make_qkx2_quants, make_q3_quants,
# quantize_row_iq4_nl_impl.

_NOTHING = array("f", [1e-15])[0]               # weights that span less are all one number


def _f32s(op, *columns):
    """Return op of the columns' elements, each rounded to f32."""
    return array("f", map(op, *columns))


def _columns(values, n):
    """Return column i, every n-th value from i on, for each i < n."""
    return [values[i::n] for i in range(n)]


def _rows(columns):
    """Return the values of which these are the columns, as bytes."""
    out = bytearray(len(columns) * len(columns[0]))
    for i, column in enumerate(columns):
        out[i::len(columns)] = bytes([int(v) & 255 for v in column])
    return bytes(out)


def _total(columns):
    """Return the sum of columns, added in order."""
    return functools.reduce(lambda a, b: _f32s(add, a, b), columns)


def _inner(*columns):
    """Return the sum of products of the first elements, the second and so on."""
    return _total([functools.reduce(lambda a, b: _f32s(mul, a, b), factors)
                   for factors in zip(*columns)])


def _nearest(values, low, high):
    """Return the integers nearest to values, even on a tie, but low at least and high at most.

    At 1.5 * 2**23 an f32 has no bits left for fractions: adding that rounds.
    """
    shifted = array("f", [(low if v < low else high if v > high else v) + 12582912.0
                          for v in values])
    return array("f", [v - 12582912.0 for v in shifted])


def _blocks(floats, n=32):
    return zip(*[iter(floats)] * n)


def _inverse(d):
    """Return 1/d, which an encoder multiplies by; 0 where a block is all zero (or all but).

    A d so small that 1/d is infinite in f32 is 0 in f16, and then any code will do.
    """
    return 1 / d if d and abs(1 / d) <= F32_MAX else 0.0


def _scaled(floats, ds, n=32):
    """Return every x * (1/d) with its block's d."""
    inverses = array("f", map(_inverse, ds))
    return _f32s(mul, floats, _each(inverses, n))


def _peak(block):
    """Return the number of largest magnitude, the first of them where signs differ."""
    high, low = max(block), min(block)
    return high if high > -low else low if high < -low else max(block, key=abs)


def _round_down(floats, limit):
    """Return floats, none negative, as bytes: the integer part, or `limit` if that is less."""
    return bytes(map(int, floats)).translate(bytes(min(b, limit) for b in range(256)))


def _round_away(floats):
    """Return the nearest integers, on a tie the one farther from zero."""
    return map(int, map(add, floats, map(math.copysign, repeat(0.5), floats)))


def heeded_importance(importance):
    """Return importance in parts of the largest, none of them nothing; None if there is none."""
    peak = max(importance) if importance else 0.0
    return array("f", [max(v / peak, 1e-6) for v in importance]) if peak else None


def _encode_bf16(format, floats, importance):
    """Return finite floats as bf16, rounded half to even.

    Adding 0x7fff, and one more where the kept half is odd, carries into the kept half
    exactly when the lost half is over one half, or just one half beside an odd number.
    """
    halves = [(u + 0x7FFF + ((u >> 16) & 1)) >> 16 for u in array("I", floats.tobytes())]
    if any((u & 0x7FFF) == 0x7F80 for u in halves):
        raise OverflowError
    return array("H", halves).tobytes()


def _encode_around_zero(format, floats, importance):
    """Q4_0, Q5_0: the weight of largest magnitude gets code 0, and d its sign."""
    top = format.codes.bias
    ds = array("f", [_peak(block) / -top for block in _blocks(floats)])
    shifted = _f32s(add, _scaled(floats, ds), repeat(top + 0.5))
    return format.pack(_round_down(shifted, 2 * top - 1), ds)


def _encode_above_minimum(format, floats, importance):
    """Q4_1, Q5_1: codes count up from the minimum."""
    top = 31 if format.codes.spread else 15
    ms = _f32s(min, *_columns(floats, 32))
    spans = _f32s(sub, map(max, _blocks(floats)), ms)
    if not _all_finite(spans):
        raise OverflowError
    ds = array("f", [span / top for span in spans])
    shifted = _f32s(add, _scaled(_f32s(sub, floats, _each(ms, 32)), ds), repeat(0.5))
    return format.pack(_round_down(shifted, top), ds, ms)


def _encode_q8_0(format, floats, importance):
    ds = array("f", [abs(_peak(block)) / 127 for block in _blocks(floats)])
    return format.pack(array("b", _round_away(_scaled(floats, ds))).tobytes(), ds)


def _encode_ternary(format, floats, importance):
    """TQ1_0, TQ2_0: for weights that are -d, 0 and d already."""
    ds = array("f", [abs(_peak(block)) for block in _blocks(floats, 256)])
    return format.pack(bytes([v + 1 for v in _round_away(_scaled(floats, ds, 256))]), ds)


def _encode_mxfp4(format, floats, importance):
    """The power of two that brings the largest magnitude to 4 and over; above 6 is cut."""
    book = _E2M1_BOOK[:8]
    limits = [(a + b) / 2 for a, b in zip(book, book[1:])]
    ds, codes = [], bytearray()
    for block in _blocks(floats):
        peak = abs(_peak(block))
        d = math.ldexp(0.5, max(math.frexp(peak)[1] - 3, -127) if peak else -127)
        ds.append(d)
        for x in block:
            code = bisect.bisect_left(limits, abs(x) / d)       # the smaller one on a tie
            codes.append(code + 8 if x < 0 and code else code)
    return format.pack(bytes(codes), ds)


def _weights(format, floats, importance, plain):
    """Return how much the error of each weight counts; plain: the answer without importance.
    importance: as heeded_importance returns it

    Refuses numbers that could overflow in a search; no scale in f16 is enough for them either.
    """
    if max(max(floats), -min(floats)) > 2.0 ** 28:
        raise OverflowError
    if importance is None:
        return plain
    squares, n = _f32s(mul, floats, floats), format.block_len
    run = format.sub_len if format.scales else n
    totals = _total(_columns(_total(_columns(squares, run)), n // run))
    means = array("f", [total * (2 / n) for total in totals])
    return _f32s(mul, importance, _f32s(math.sqrt, _f32s(add, squares, _each(means, n))))


def _search_minimum(x, w, top, tries, magnitude):
    """Return (scales, minimums) such that scale * code + minimum, of codes 0..top, is near x.

    x, w: columns   minimums: 0 at most   magnitude: whether an error counts as it is, not squared
    Each try spreads the codes a little wider or narrower than the weights reach, then takes the
    scale and minimum that suit these codes best.
    """
    lows, highs = array("f", [min(v, 0.0) for v in map(min, *x)]), array("f", map(max, *x))
    spans = _f32s(sub, highs, lows)
    live = [span >= _NOTHING for span in spans]
    sum_w, sum_x = _total(w), _inner(w, x)

    def spread(numerator):
        """Return the codes that a scale of span / numerator gives."""
        inverses = array("f", [numerator / span if ok and span else 0.0
                               for span, ok in zip(_f32s(sub, highs, lows), live)])
        return [_nearest(_f32s(mul, inverses, _f32s(sub, column, lows)), 0.0, top)
                for column in x]

    def loss(codes, scales, lows):
        errors = [_f32s(sub, _f32s(add, _f32s(mul, scales, c), lows), column)
                  for c, column in zip(codes, x)]
        if magnitude:
            return _inner(w, [_f32s(abs, e) for e in errors])
        return _inner(w, [_f32s(mul, e, e) for e in errors])

    scales = array("f", [span / top if ok else 0.0 for span, ok in zip(spans, live)])
    best = loss(spread(top), scales, lows)
    for numerator in tries:
        codes = spread(numerator)
        sum_c, sum_cc, sum_cx = _inner(w, codes), _inner(w, codes, codes), _inner(w, codes, x)
        determinant = _f32s(sub, _f32s(mul, sum_w, sum_cc), _f32s(mul, sum_c, sum_c))
        ok = [a and b > 0 for a, b in zip(live, determinant)]
        divisor = [b if a else 1.0 for a, b in zip(ok, determinant)]
        new = _f32s(truediv, _f32s(sub, _f32s(mul, sum_w, sum_cx), _f32s(mul, sum_x, sum_c)),
                    divisor)
        new_lows = _f32s(truediv, _f32s(sub, _f32s(mul, sum_cc, sum_x), _f32s(mul, sum_c, sum_cx)),
                         divisor)
        for i, low in enumerate(new_lows):
            if low > 0 and ok[i]:
                new[i], new_lows[i] = sum_cx[i] / sum_cc[i], 0.0
        cost = loss(codes, new, new_lows)
        for i, (a, b) in enumerate(zip(cost, best)):
            if ok[i] and a < b:
                best[i], scales[i], lows[i] = a, new[i], new_lows[i]
    return scales, lows


def _search_scale(x, w, tries, nearest):
    """Return scales such that scale * code is near x.

    x, w: columns   nearest: function of a column that returns codes
    tries: which code the weight of largest magnitude might have; the first is taken, another
    if it is better
    """
    peaks = array("f", map(_peak, zip(*x)))
    live = [abs(peak) >= _NOTHING for peak in peaks]
    wx, best, scales = [_f32s(mul, a, b) for a, b in zip(w, x)], None, None
    for code in tries:
        inverses = array("f", [code / peak if ok else 0.0 for peak, ok in zip(peaks, live)])
        codes = [nearest(_f32s(mul, inverses, column)) for column in x]
        sum_cx, sum_cc = _inner(wx, codes), _inner(w, codes, codes)
        new = array("f", [a / b if b > 0 else 0.0 for a, b in zip(sum_cx, sum_cc)])
        if best is None:
            scales, best = new, _f32s(mul, new, sum_cx)
            continue
        better = zip(_f32s(mul, sum_cx, sum_cx), _f32s(mul, best, sum_cc))
        for i, (a, b) in enumerate(better):
            if sum_cc[i] > 0 and a > b:
                scales[i] = new[i]
                best[i] = new[i] * sum_cx[i]
    return scales


def _search_q3(x, w):
    """Return scales as _search_scale does, for codes -4..3.

    From the plain codes on, one weight after the other takes the code that suits it best, the
    other codes being what they are, in five rounds.
    """
    peaks = array("f", map(_peak, zip(*x)))
    inverses = array("f", [-4 / peak if abs(peak) >= _NOTHING else 0.0 for peak in peaks])
    codes = [_nearest(_f32s(mul, inverses, column), -4.0, 3.0) for column in x]
    wx = [_f32s(mul, a, b) for a, b in zip(w, x)]
    sum_cx, sum_cc = _inner(wx, codes), _inner(w, codes, codes)
    for _ in range(5):
        for column, w_column, wx_column, code in zip(x, w, wx, codes):
            rest_cx = _f32s(sub, sum_cx, _f32s(mul, wx_column, code))
            rest_cc = _f32s(sub, sum_cc, _f32s(mul, _f32s(mul, w_column, code), code))
            ok = [a > 0 for a in rest_cx]
            new = _f32s(truediv, _f32s(mul, column, rest_cc),
                        [a if b else math.inf for a, b in zip(rest_cx, ok)])
            new = _nearest(new, -4.0, 3.0)
            cx = _f32s(add, rest_cx, _f32s(mul, wx_column, new))
            cc = _f32s(add, rest_cc, _f32s(mul, _f32s(mul, w_column, new), new))
            gain = zip(_f32s(mul, _f32s(mul, cx, cx), sum_cc),
                       _f32s(mul, _f32s(mul, sum_cx, sum_cx), cc))
            for i, (a, b) in enumerate(gain):
                if ok[i] and cc[i] > 0 and a > b:
                    code[i], sum_cx[i], sum_cc[i] = new[i], cx[i], cc[i]
    return array("f", [a / b if b > 0 else 0.0 for a, b in zip(sum_cx, sum_cc)])


def _second_level(values, n, weights, top, lowest, highest):
    """Return (integers, ds): values near integer * d, with one d for every n of them.

    The value of largest magnitude gets the integer `top`; if weights say how much each error
    counts, d is searched about there.
    """
    columns = _columns(values, n)
    if weights is None:
        ds = array("f", [peak / top if abs(peak) >= _NOTHING else 0.0
                         for peak in map(_peak, zip(*columns))])
    else:
        ds = _search_scale(columns, _columns(weights, n), _evenly(top - 0.9, 0.1, 18),
                           lambda column: _nearest(column, lowest, highest))
    inverses = array("f", map(_inverse, ds))
    integers = _nearest(_f32s(mul, _each(inverses, n), values), lowest, highest)
    return integers, f16_to_f32(_f16s(ds))


def _encode_k_minimum(top, tries, limit, magnitude, format, floats, importance):
    """Q2_K, Q4_K, Q5_K.   limit: the scales' and minimums' integers are 0..limit"""
    sub_len, n = format.sub_len, format.block_len // format.sub_len
    x, plain = _columns(floats, sub_len), _f32s(abs, floats)
    if not magnitude:
        means = _f32s(math.sqrt, array("f", [v * (1 / sub_len) for v in _inner(x, x)]))
        plain = _f32s(add, _each(means, sub_len), plain)
    w = _columns(_weights(format, floats, importance, plain), sub_len)
    scales, lows = _search_minimum(x, w, top, tries, magnitude)
    sums = None if importance is None else _total(w)
    (scales, ds), (mins, ms) = [
        _second_level(_f32s(max, v, repeat(0.0)), n, sums, limit, 0, limit)
        for v in (scales, _f32s(neg, lows))]
    d, m = _f32s(mul, _each(ds, n), scales), _f32s(mul, _each(ms, n), mins)
    d = [v or math.inf for v in d]              # no scale: any code will do
    codes = [_nearest(_f32s(truediv, _f32s(add, column, m), d), 0, top) for column in x]
    return format.pack(_rows(codes), ds, ms, _rows([scales]), _rows([mins]))


def _encode_k_scale(search, limit, index, format, floats, importance):
    """Q3_K, Q6_K, IQ4_XS.   limit: the scales' integers are -limit .. limit - 1

    index: function of a column, in units of its scale, that returns codes as they are stored
    """
    sub_len, n = format.sub_len, format.block_len // format.sub_len
    x, squares = _columns(floats, sub_len), _f32s(mul, floats, floats)
    w = _columns(_weights(format, floats, importance, squares), sub_len)
    scales = search(x, w)
    scales, ds = _second_level(scales, n, None if importance is None else _total(w),
                               -limit, -limit, limit - 1)
    d = [v or math.inf for v in _f32s(mul, _each(ds, n), scales)]
    codes = [index(_f32s(truediv, column, d)) for column in x]
    bias = format.scales.bias
    return format.pack(_rows(codes), ds, (), _rows([[v + bias for v in scales]]))


def _encode_iq4_nl(format, floats, importance):
    x, squares = _columns(floats, 32), _f32s(mul, floats, floats)
    w = _columns(_weights(format, floats, importance, squares), 32)
    ds = _search_iq4(x, w)
    inverses = array("f", map(_inverse, ds))
    return format.pack(_rows([_iq4_index(_f32s(mul, column, inverses)) for column in x]), ds)


_IQ4_LIMITS = [(a + b) / 2 for a, b in zip(_IQ4_BOOK, _IQ4_BOOK[1:])]


def _iq4_index(column):
    """Return the numbers of the nearest entries of IQ4_NL's codebook, the larger on a tie."""
    return [bisect.bisect_right(_IQ4_LIMITS, v) for v in column]


_IQ4_TRIES = [127] + [i - 127 for i in range(-7, 8)]


def _search_iq4(x, w):
    return _search_scale(x, w, _IQ4_TRIES, lambda column: array(
        "f", [_IQ4_BOOK[i] for i in _iq4_index(column)]))


def _search_q6(x, w):
    return _search_scale(x, w, _Q6_TRIES, lambda column: _nearest(column, -32.0, 31.0))


_Q6_TRIES = array("f", [-32.0] + [-32 - 0.1 * i for i in range(-9, 10) if i])


def _encode_nf4(format, floats, importance):
    ds = _f32s(abs, [_peak(block) / 127 for block in _blocks(floats, 64)])
    limits = [(a + b) / 2 for a, b in zip(_NF4_BOOK, _NF4_BOOK[1:])]
    scaled = _scaled(floats, ds, 64)
    return format.pack(bytes([bisect.bisect_right(limits, v) for v in scaled]), ds)


def _encode_int(format, floats, importance):
    """INT2, INT4, INT8.  The first two search; of 256 codes the plain spread is good enough."""
    group = format.block_len
    x = _columns(floats, group)
    w = _columns(_weights(format, floats, importance, array("f", [1.0]) * len(floats)), group)
    bits = 8 * (format.block_bytes - 4) // group
    top = 2 ** bits - 1
    ds, ms = _search_minimum(x, w, top, _int_tries(bits), False)
    if bits == 8:
        ms = _f32s(add, ms, [128 * d for d in ds])
    data = format.pack(bytes(len(floats)), ds, ms)
    ds, ms = format._read_d(data), _read_f16(data, format.block_bytes, 2)   # as they were rounded
    lowest = -128 if bits == 8 else 0
    d = [v or math.inf for v in ds]
    codes = [_nearest(_f32s(truediv, _f32s(sub, column, ms), d), lowest, lowest + top)
             for column in x]
    return format.pack(_rows(codes), ds, ms)


def _int_tries(bits):
    return array("f") if bits == 8 else _evenly(2 ** bits - 2, 0.1, 20)


def _biased(column, low, high):
    """Return the nearest of the integers low..high as they are stored, from 0 up."""
    return [v - low for v in _nearest(column, low, high)]


def _evenly(first, step, n):
    return array("f", [first + step * i for i in range(n + 1)])


_ENCODERS = {
    "F32": lambda format, floats, importance: floats.tobytes(),
    "F16": lambda format, floats, importance: _f16s(floats),
    "BF16": _encode_bf16,
    "Q4_0": _encode_around_zero, "Q5_0": _encode_around_zero,
    "Q4_1": _encode_above_minimum, "Q5_1": _encode_above_minimum,
    "Q8_0": _encode_q8_0,
    "Q2_K": functools.partial(_encode_k_minimum, 3, _evenly(2.5, 0.1, 15), 15, True),
    "Q4_K": functools.partial(_encode_k_minimum, 15, _evenly(14.0, 0.1, 20), 63, False),
    "Q5_K": functools.partial(_encode_k_minimum, 31, _evenly(30.5, 0.1, 15), 63, False),
    "Q3_K": functools.partial(_encode_k_scale, _search_q3, 32, lambda v: _biased(v, -4, 3)),
    "Q6_K": functools.partial(_encode_k_scale, _search_q6, 128, lambda v: _biased(v, -32, 31)),
    "IQ4_XS": functools.partial(_encode_k_scale, _search_iq4, 32, _iq4_index),
    "IQ4_NL": _encode_iq4_nl, "MXFP4": _encode_mxfp4,
    "TQ1_0": _encode_ternary, "TQ2_0": _encode_ternary, "NF4": _encode_nf4,
}
_ENCODERS.update((name, _encode_int) for name in FORMATS if name.startswith("INT"))


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
_NOT_A_MODEL = {                                            # first bytes: what such a file is
    b"version https://git-lfs": "a Git LFS pointer, not the file that it names; run git lfs pull",
    b"<!doctype html": "a web page; the download gave an error or asked for a login",
    b"<html": "a web page; the download gave an error or asked for a login",
    b"PK\x03\x04": "a zip archive; if it is PyTorch's, it may run code when read, so take the "
                   "model as safetensors or GGUF",
    b"\x1f\x8b": "compressed by gzip; unpack it first",
    b"\xfd7zXZ": "compressed by xz; unpack it first",
    **dict.fromkeys((b"lmgg", b"fmgg", b"tjgg", b"algg"),
                    "of GGML's time before GGUF; take a newer file, or convert the model again")}


def _quote(value):
    """Return a name from a file, or a parameter, as a message may show it: one line, not long."""
    try:
        text = repr(value)
    except ValueError:                  # an int of more digits than Python prints
        text = f"a number of {value.bit_length()} bits"
    return text if len(text) <= 100 else text[:80] + "..." + text[-12:]


def check_whole(name, value, low, high=math.inf):
    """Return a parameter as an int, or refuse it by name; numpy's integers are whole numbers."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__") \
            or not low <= (n := operator.index(value)) <= high:
        wanted = f"from {low} up" if high == math.inf else f"of {low} to {high}"
        raise KshipraError(f"{name} is {_quote(value)}; a whole number {wanted} is needed")
    return n


def check_choice(name, value, choices):
    """Refuse a parameter that is none of the choices, whatever its type."""
    if not isinstance(value, str) or value not in choices:
        raise KshipraError(f"{name} {_quote(value)} is unknown; use one of {', '.join(choices)}")


def check_path(path):
    """Return a path as a str, or refuse what is none."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise KshipraError(f"path is {_quote(path)}; a str or os.PathLike is needed") from None


def _shown(name):
    """Return a name from a file as a listing may show it: quoted where a terminal could obey."""
    return name if name.isprintable() else _quote(name)


def _is_file(path):
    """Return whether path is a file.  A link to nothing, as a hub's cache leaves, is refused."""
    if os.path.islink(path) and not os.path.exists(path):
        raise KshipraError(f"the link points to nothing, {_quote(os.readlink(path))}; the "
                           "download is not complete, so fetch the model again", path)
    return os.path.isfile(path)


def _refuse_foreign(data, path):
    """Refuse a file whose first bytes say that it is no part of a model, but something known."""
    head = bytes(data[:64]).lstrip().lower()
    for magic, what in _NOT_A_MODEL.items():
        if head.startswith(magic.lower()):
            raise KshipraError(f"this is no part of a model: it is {what}", path, 0)


def _map_file(path):
    """Return a file's bytes as a view.

    It cannot be written: a map that could be counts as data of this process, though it takes
    nothing, and systems limit that.
    """
    if not _is_file(path):
        found = "a directory or device" if os.path.exists(path) else "no such file"
        raise KshipraError(f"{found}, where a model file is needed; check the path", path)
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise KshipraError("the file is empty, 0 bytes; fetch it again", path)
            _refuse_foreign(file.read(64), path)
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, OverflowError) as error:
        raise KshipraError(f"cannot be mapped into memory: {error}", path) from None


def address_of(buffer):
    """Return the address of a buffer's first byte, whether it may be written or not.

    ctypes itself gives no address of what is read-only; Python's C interface does.
    """
    found = (ctypes.c_void_p * 16)()    # has room for a Py_buffer, which begins with the address
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(buffer), found, 0)
    address = found[0]
    ctypes.pythonapi.PyBuffer_Release(found)
    return address


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
        return address_of(self.data)

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

    def joined(self) -> bytes:
        """Return all strings in one piece; before each stand 8 bytes, the last of them zero."""
        return bytes(self._view[self._ends[0]:self._ends[-1]])

    def raw(self) -> list:
        """Return every string as bytes."""
        first, copy = self._ends[0], self.joined()
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
    before, end = "", data_off
    for t in sorted((t for t in tensors.values() if t.n_bytes), key=lambda t: t.offset):
        if t.offset < end:
            cursor.fail(f"tensor {_quote(t.name)} overlaps tensor {_quote(before)}; the file is "
                        "damaged, so fetch or convert it again", infos[t.name][3])
        before, end = t.name, t.offset + t.n_bytes
    return tensors


def _gguf_alignment(metadata, path):
    alignment = metadata.get("general.alignment", _GGUF_ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= 1 << 24 or alignment & alignment - 1:
        raise KshipraError(f"general.alignment is {_quote(alignment)}, against a power of two of "
                           f"8 to {1 << 24}", path)
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

    def __init__(self, path: "str | os.PathLike", data=None):
        self.path = check_path(path)
        view = _map_file(self.path) if data is None else memoryview(data)
        self.version, self.metadata, self.tensors = _read_gguf(self.path, view)
        n_parts = self.metadata.get("split.count", 1)
        if n_parts != 1 and n_parts != 0:
            self._add_parts(n_parts)

    def require_model(self) -> None:
        """Refuse a GGUF that is only something beside a model, as a LoRA adapter is."""
        kind, arch = (self.metadata.get("general." + key) for key in ("type", "architecture"))
        kind = {"clip": "mmproj"}.get(arch, kind) if isinstance(arch, str) else kind
        if kind not in (None, "model"):
            what = {"adapter": "a LoRA adapter, which changes a model", "imatrix": "an importance "
                    "matrix, which helps to quantize a model", "mmproj": "a projector of images "
                    "or sound, which goes with a model"}.get(str(kind))
            raise KshipraError(f"general.type is {_quote(kind)}: this is "
                               f"{what or 'not a model'}; give the file of the model itself",
                               self.path)

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
            if not _is_file(part):
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

    def __init__(self, path: "str | os.PathLike"):
        self.path = check_path(path)
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


def _read_bytes(path):
    """Return the bytes of a small file of a model directory."""
    name = os.path.basename(path)
    if not _is_file(path):                      # a pipe would be waited for
        raise KshipraError(f"{name} is missing; this is no model directory, or not a whole one",
                           path)
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_JSON_BYTES + 1)
    except OSError as error:
        raise KshipraError(f"cannot be read: {error.strerror}", path) from None
    if len(data) > _MAX_JSON_BYTES:
        raise KshipraError(f"{name} is larger than {_MAX_JSON_BYTES} bytes, the most that kshipra "
                           "reads; is it the right file?", path)
    _refuse_foreign(data, path)
    return data


def _read_json(path):
    """Return the JSON object in a file."""
    return _parse_object(_read_bytes(path), os.path.basename(path), path)


class HFDirectory:
    """A model directory as Hugging Face publishes it.

    config, generation_config: the JSON files of these names; the latter {} if missing
    tensors: {name: Tensor} of all shards   files: paths of the safetensors files read
    """

    def __init__(self, path: "str | os.PathLike"):
        self.path = check_path(path)
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

    def require_model(self) -> None:
        """Bring weights that another tool has packed into rows of FORMATS, or refuse them."""
        found = self.config.get("quantization_config")
        if found is None and self._has("quantize_config.json"):     # before config.json had it
            found = {"quant_method": "gptq", **self._object("quantize_config.json")}
        if found is None:
            return
        method = found.get("quant_method") if isinstance(found, dict) else found
        if method == "mxfp4":           # a format of our own, only laid out otherwise
            return
        unpack = {"gptq": _from_gptq, "awq": _from_awq, "bitsandbytes": _from_nf4}.get(
            method if isinstance(method, str) else None)
        if unpack is None:
            raise KshipraError(f"quantization_config.quant_method is {_quote(method)}, which is "
                               "not supported; take the model unquantized, or as GGUF", self.path)
        ending = ".weight.absmax" if unpack is _from_nf4 else ".qweight"
        for name in [name for name in self.tensors if name.endswith(ending)]:
            unpack(self, name[:-len(ending)], found)
        self.config.pop("quantization_config", None)

    def _has(self, name):
        return _is_file(os.path.join(self.path, name))

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


# Weights that other tools have packed.  GPTQ and AWQ keep an integer q of four bits a weight, and
# for each group of inputs of one output a scale s and an integer z:  weight = s * (q - z).  Now
# q - z lies in -16..15, which is what a code of Q5_0 is, with the same f16 scale: the same values,
# exactly, in 5.5 bits.  They lie in words of eight, for all outputs of one input side by side:
#
#   qweight  GPTQ (n_in / 8, n_out), eight inputs a word;  AWQ (n_in, n_out / 8), eight outputs
#   qzeros   (groups, n_out / 8)   scales   f16 (groups, n_out)
#
# bitsandbytes keeps NF4: two codes a byte, the first one high, and a float for each block of 64,
# which may be coded in bytes itself.  They become our NF4, whose book is rounded (section 1.3).
# Sources: AutoGPTQ 0.7, qlinear_cuda_old.py; AutoAWQ 0.2, packing_utils.py; bitsandbytes 0.43,
# functional.py, QuantState.

_LOW, _HIGH = bytes(b & 15 for b in range(256)), bytes(b >> 4 for b in range(256))


def _packed(directory, name, part, kind, shape=None):
    """Return the bytes of a part of a packed weight, and its shape, which is checked."""
    tensor = directory.tensors.pop(f"{name}.{part}", None)
    if tensor is None or tensor.format.name not in kind.split() or (
            shape is not None and tuple(tensor.shape) != shape) or len(tensor.shape) > 2:
        found = "missing" if tensor is None else f"{tensor.format.name} {tuple(tensor.shape)}"
        raise KshipraError(f"tensor {_quote(name + '.' + part)} is {found}, against "
                           f"{kind.replace(' ', ' or ')} {shape or ''}".rstrip()
                           + "; it is packed otherwise than its quant_method says",
                           directory.path)
    return bytes(tensor._data), tuple(tensor.shape)


def _nibbles_of_words(data):
    """Return the eight numbers of four bits of each word, lowest first, a byte each."""
    out = bytearray(2 * len(data))
    out[0::2], out[1::2] = data.translate(_LOW), data.translate(_HIGH)
    return bytes(out)


def _from_integers(directory, name, config, codes, zeros, n_out, n_in):
    """Put s * (q - z) in the place of its parts.

    codes: function from an output to its n_in integers q   zeros: (groups, n_out), z, a byte each
    """
    groups = len(zeros) // n_out
    scales, _ = _packed(directory, name, "scales", "F16", (groups, n_out))
    size = n_in // groups if groups else 0
    bits = config.get("bits", config.get("w_bit"))
    if bits != 4 or not size or size * groups != n_in or size % 32:
        raise KshipraError(f"{_quote(name)} is packed in {_quote(bits)} bits and groups of {size} "
                           f"of {n_in}; supported are 4 bits and groups of a multiple of 32",
                           directory.path)
    scales, format, data = f16_to_f32(scales), FORMATS["Q5_0"], bytearray()
    lower = [bytes((q + 16 - z) & 31 for q in range(256)) for z in range(17)]
    for o in range(n_out):
        row = codes(o)
        shifted = b"".join([row[g * size:(g + 1) * size].translate(lower[zeros[g * n_out + o]])
                            for g in range(groups)])
        data += format.pack(shifted, list(_each(scales[o::n_out], size // 32)))
    directory.tensors[name + ".weight"] = Tensor(name + ".weight", format, (n_out, n_in), data)


def _from_gptq(directory, name, config):
    """Unpack one weight of GPTQ, whose zero points are kept less 1 but in its second format."""
    data, (n_words, n_out) = _packed(directory, name, "qweight", "I32")
    n_in, order = 8 * n_words, directory.tensors.pop(f"{name}.g_idx", None)
    nibbles = _nibbles_of_words(data)
    packed, (groups, _) = _packed(directory, name, "qzeros", "I32")
    if order is not None:
        groups_of = array("i", bytes(order._data))
        if groups_of != array("i", [i * groups // n_in for i in range(n_in)]):
            raise KshipraError(f"the groups of {_quote(name)} do not follow its inputs (desc_act, "
                               "act_order), which is not supported; take the model as GGUF",
                               directory.path)
    less = 0 if config.get("checkpoint_format") == "gptq_v2" else 1
    zeros = bytes([z + less for z in _nibbles_of_words(packed)])
    if len(zeros) != groups * n_out:
        raise KshipraError(f"tensor {_quote(name + '.qzeros')} has {len(zeros)} zero points, "
                           f"against {groups * n_out}", directory.path)

    def codes(o):
        row = bytearray(n_in)
        for i in range(8):
            row[i::8] = nibbles[8 * o + i::8 * n_out]
        return bytes(row)
    _from_integers(directory, name, config, codes, zeros, n_out, n_in)


def _from_awq(directory, name, config):
    """Unpack one weight of AWQ, whose words hold outputs 0, 2, 4, 6, 1, 3, 5, 7."""
    if config.get("version", "gemm") not in ("gemm", "GEMM"):
        raise KshipraError(f"AWQ's version is {_quote(config['version'])}, against 'gemm'; take "
                           "the model as GGUF", directory.path)
    data, (n_in, n_words) = _packed(directory, name, "qweight", "I32")
    n_out, place = 8 * n_words, (0, 4, 1, 5, 2, 6, 3, 7)
    nibbles = _nibbles_of_words(data)
    packed, (groups, _) = _packed(directory, name, "qzeros", "I32")
    if len(packed) != groups * n_words * 4:
        raise KshipraError(f"tensor {_quote(name + '.qzeros')} does not fit {n_out} outputs",
                           directory.path)
    zeros = bytearray(2 * len(packed))
    for i in range(8):
        zeros[i::8] = _nibbles_of_words(packed)[place[i]::8]
    _from_integers(directory, name, config, lambda o: nibbles[o & ~7 | place[o & 7]::n_out],
                   bytes(zeros), n_out, n_in)


def _from_nf4(directory, name, config):
    """Unpack one weight of bitsandbytes."""
    state, _ = _packed(directory, name, "weight.quant_state.bitsandbytes__nf4", "U8")
    state = _parse_object(state, f"{name}.weight.quant_state", directory.path)
    shape, block = state.get("shape"), state.get("blocksize")
    if not _are_counts(shape) or len(shape) != 2 or block != 64 or shape[1] % 64:
        raise KshipraError(f"{_quote(name)} is NF4 of shape {_quote(shape)} in blocks of "
                           f"{_quote(block)}; supported are matrices in rows of blocks of 64",
                           directory.path)
    n = math.prod(shape)
    data, _ = _packed(directory, name, "weight", "U8", (n // 2, 1))
    book, _ = _packed(directory, name, "weight.quant_map", "F32", (16,))
    if any(abs(a - b) > 1e-6 for a, b in zip(array("f", book), _NF4)):
        raise KshipraError(f"the book of {_quote(name)} is not that of NF4", directory.path)
    peaks, _ = _packed(directory, name, "weight.absmax", "F32 U8", (n // 64,))
    if f"{name}.weight.nested_absmax" in directory.tensors:
        outer = array("f", _packed(directory, name, "weight.nested_absmax", "F32")[0])
        levels = array("f", _packed(directory, name, "weight.nested_quant_map", "F32", (256,))[0])
        offset, run = state.get("nested_offset", 0.0), state.get("nested_blocksize", 256)
        if type(run) is not int or run < 1 or len(outer) * run < len(peaks) \
                or type(offset) is not float:
            raise KshipraError(f"the nested state of {_quote(name)} is damaged", directory.path)
        peaks = [levels[b] * outer[i // run] + offset for i, b in enumerate(peaks)]
    else:
        peaks = array("f", peaks)
    codes = bytearray(n)
    codes[0::2], codes[1::2] = data.translate(_HIGH), data.translate(_LOW)
    packed = FORMATS["NF4"].pack(bytes(codes), [peak / 127 for peak in peaks])
    directory.tensors[name + ".weight"] = Tensor(name + ".weight", FORMATS["NF4"], shape, packed)


# Writing.  What is to be written is a Tensor or, where a model is too large to convert in
# memory, (name, format, shape, pieces): an iterable of bytes-like pieces, read when its turn
# comes.  A file is written beside its place and moved there whole, or not at all.

def _entries(metadata, tensors):
    """Return [(name, format, shape, pieces)], checked for what any file format needs."""
    if not isinstance(metadata, dict):
        raise KshipraError(f"metadata is {_quote(metadata)}; a dict is needed")
    entries, names = [], set()
    for item in tensors.values() if isinstance(tensors, dict) else tensors:
        if isinstance(item, Tensor):
            pieces = [item.data if item.contiguous else item.format.encode(item.floats())]
            item = item.name, item.format, item.shape, pieces
        if not isinstance(item, (tuple, list)) or len(item) != 4:
            raise KshipraError(f"{_quote(item)} is no Tensor and no (name, format, shape, pieces)")
        name, format, shape, pieces = item
        if not isinstance(name, str) or not getattr(format, "block_len", None) \
                or not isinstance(shape, (tuple, list)) or not hasattr(pieces, "__iter__"):
            raise KshipraError(f"{_quote(item)} is no str, one of FORMATS, tuple and iterable")
        _gguf_string(name)                      # no lone surrogates: no format has them
        shape = [check_whole(f"tensor {_quote(name)}: a length in its shape", n, 0)
                 for n in shape]
        if format.n_bytes(math.prod(shape)) >= 1 << 63:
            raise KshipraError(f"tensor {_quote(name)} of shape {_quote(shape)} needs more bytes "
                               "than a file can have")
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
        try:
            done_bytes += file.write(piece)
        except TypeError:
            raise KshipraError(f"tensor {_quote(name)}: a piece is of type "
                               f"{type(piece).__name__}, against bytes") from None
    if done_bytes != n_bytes:
        raise KshipraError(f"tensor {_quote(name)}: {done_bytes} bytes to write, against "
                           f"{n_bytes} for its shape and format")


@contextlib.contextmanager
def _whole_file(path):
    """Open a file to write that appears at `path` when complete, and never otherwise."""
    path = check_path(path)
    part = f"{path}.{os.getpid()}.part"
    if "\0" in path:
        raise KshipraError("cannot be written: no name of a file has a null", repr(path))
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


def _gguf_string(text, errors="strict"):
    """Return a string as GGUF stores it.  errors: "surrogateescape" for what may be no UTF-8"""
    try:
        raw = text if isinstance(text, bytes) else text.encode("utf-8", errors)
    except UnicodeEncodeError:
        raise KshipraError(f"{_quote(text)} has a lone surrogate, which UTF-8 cannot hold") \
            from None
    return struct.pack("<Q", len(raw)) + raw


def _gguf_integer_kind(values):
    """Return the value type that holds all integers: u32, else i32, u64, i64."""
    low, high = min(values), max(values)
    for kind, least, limit in ((4, 0, 1 << 32), (5, -1 << 31, 1 << 31),
                               (10, 0, 1 << 64), (11, -1 << 63, 1 << 63)):
        if least <= low and high < limit:
            return kind
    raise KshipraError(f"integers from {_quote(low)} to {_quote(high)} do not fit in 64 bits")


def _gguf_value(value):
    """Return (value type, bytes) of a metadata value, its numbers Python's or numpy's."""
    if not isinstance(value, (array, Strings)):
        value = getattr(value, "tolist", lambda: value)()   # what numpy has becomes Python's
        if not isinstance(value, (list, tuple)):
            return _gguf_elements([value])
    kind, body = _gguf_elements(value)
    return _GGUF_ARRAY, struct.pack("<IQ", kind, len(value)) + body


def _gguf_elements(values):
    """Return (value type, bytes) of values that are all of one kind."""
    if len(values) > _MAX_ARRAY:
        raise KshipraError(f"{len(values)} elements are over {_MAX_ARRAY}, the most that kshipra "
                           "reads")
    if isinstance(values, array):
        for kind, letter in _GGUF_SCALARS.items():
            if letter == values.typecode:
                return kind, values.tobytes()
    values = values.raw() if isinstance(values, Strings) else list(values)
    kinds = {str if isinstance(v, bytes) else type(v) for v in values}
    if kinds == {str}:
        return _GGUF_STRING, b"".join([_gguf_string(v, "surrogateescape") for v in values])
    if kinds == {bool}:
        return _GGUF_BOOL, bytes(values)
    if kinds == {int}:
        kind = _gguf_integer_kind(values)
        return kind, struct.pack(f"<{len(values)}{_GGUF_SCALARS[kind]}", *values)
    if kinds <= {int, float}:
        try:
            return 6, struct.pack(f"<{len(values)}f", *values)
        except (OverflowError, struct.error):   # of a float, of an int
            raise KshipraError("a number is too large for f32, as which floats are written") \
                from None
    raise KshipraError("strings, numbers or bools are written, and lists of one kind only; found "
                       + ", ".join(sorted(kind.__name__ for kind in kinds)))


def _gguf_pair(key, value):
    """Return the bytes of a metadata pair: key, value type u32, value."""
    if not isinstance(key, str):
        raise KshipraError(f"metadata key {_quote(key)} is of type {type(key).__name__}, against "
                           "str")
    try:
        kind, body = _gguf_value(value)
        return _gguf_string(key) + struct.pack("<I", kind) + body
    except KshipraError as error:
        raise KshipraError(f"metadata key {_quote(key)}: {error}") from None


def write_gguf(path, metadata: dict, tensors) -> None:
    """Write a GGUF file, version 3.

    metadata: as GGUF reads it, and lists of str, bytes, int, float or bool.  An int is
    written as u32 where it fits, else i32, u64, i64; a float as f32; an array as its type.
    tensors: {name: Tensor} or an iterable of Tensors or (name, format, shape, pieces)
    """
    entries = _entries(metadata, tensors)
    alignment = _gguf_alignment(metadata, path)
    head = [_GGUF_MAGIC, struct.pack("<IQQ", 3, len(entries), len(metadata))]
    head += [_gguf_pair(key, value) for key, value in metadata.items()]
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
    header, offset, entries = {}, 0, _entries(metadata, tensors)
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
#
# A model reads and writes token ids.  A tokenizer turns text into ids and back: it cuts the
# text into words, writes each word as a row of characters, and joins neighbours, best pair
# first, until no pair is left that the vocabulary knows (byte-pair encoding).
#
#   text -> special tokens cut out -> words -> characters -> merges -> ids
#
# Two families share the merge loop.  Byte-level BPE cuts words by a rule per model family
# and merges bytes in the order of a list.  SentencePiece merges characters by the score of
# the result, and falls back to bytes for what it does not know.  A vocabulary comes from
# GGUF metadata or from the files of a Hugging Face directory.
#
# Not here: WordPiece and Unigram vocabularies.  After Sennrich et al. (2016), "Neural machine
# translation of rare words with subword units", algorithm 1; the rules per family are those
# of llama.cpp, src/llama-vocab.cpp, and of each model's tokenizer.json.

# 3.1 Merging, and the vocabulary that says what may merge.

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)     # GGUF, token_type

WORD_CACHE_ENTRIES = 1 << 16    # words whose ids are remembered,
WORD_CACHE_CHARS = 64           # if they are no longer than this


def bpe_merge(parts, rank):
    """Join neighbours in parts, lowest rank first and leftmost of equals, while any has a rank.

    parts: list of str   rank(left, right): a number, or None where the pair does not merge
    The parts are a linked list (before, after).  Every rank has a heap of its places, and the
    ranks are in a heap too.  A place whose rank has changed since is out of date and skipped.
    So n characters cost n log n, also when they are all equal.

    With ranks {"a b": 0, "ab ab": 1}: a b a b -> ab a b -> ab ab -> abab.
    """
    n = len(parts)
    numbers = list(range(-1, n + 1))
    before, after = numbers[:n], numbers[2:]
    ranks = [rank(left, right) for left, right in zip(parts, parts[1:])] + [None]
    places = {}
    for i, r in enumerate(ranks):
        if r is not None:
            places.setdefault(r, []).append(i)
    order = list(places)
    heapq.heapify(order)
    while order:
        r = order[0]
        if not places[r]:
            del places[heapq.heappop(order)]
            continue
        i = heapq.heappop(places[r])
        if ranks[i] != r:
            continue
        gone = after[i]
        parts[i] += parts[gone]
        parts[gone] = ranks[gone] = None
        after[i] = after[gone]
        if after[i] < n:
            before[after[i]] = i
        for left in (before[i], i):
            if left < 0:
                continue
            right = after[left]
            new = ranks[left] = rank(parts[left], parts[right]) if right < n else None
            if new is not None:
                if new not in places:
                    places[new] = []
                    heapq.heappush(order, new)
                heapq.heappush(places[new], left)
    return [part for part in parts if part is not None]


def _as_str(text):
    return text if isinstance(text, str) else bytes(text).decode("utf-8", "surrogateescape")


class Finder:
    """Where each text of a long sequence stands: a dict that unfolds as it is used.

    texts: sequence of str or UTF-8 bytes
    A dict of 262144 texts takes 40 MB, of which a prompt looks at some hundreds.  Here every
    text is first only sorted, by its hash, into a bucket of numbers; a bucket becomes a dict
    when a text is looked up that could be in it.  Of equal texts the first counts.  Strings are
    hashed as the bytes that they are in the file, for decoding all would take longest.
    """

    def __init__(self, texts):
        self.texts = texts
        mask = self.mask = (1 << max(1, len(texts) // 64).bit_length()) - 1
        buckets = self.buckets = [array("I") for _ in range(mask + 1)]
        keys = texts.raw() if isinstance(texts, Strings) else map(_as_str, texts)
        for i, number in enumerate(map(hash, keys)):
            buckets[number & mask].append(i)

    def get(self, text):
        """Return the place of text, a str, or None."""
        in_file = isinstance(self.texts, Strings)
        home = hash(text.encode("utf-8", "surrogateescape") if in_file else text) & self.mask
        bucket = self.buckets[home]
        if not isinstance(bucket, dict):
            bucket = {_as_str(self.texts[i]): i for i in reversed(bucket)}
            self.buckets[home] = bucket
        return bucket.get(text)


# Tokens that end a turn or a text, whatever a file calls them.
# Source: llama.cpp, src/llama-vocab.cpp, special_eog_ids.
STOP_TEXTS = {
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>",
    "<|calls|>", "<end_of_turn>", "<turn|>", "<|endoftext|>", "<|end_of_text|>", "<|EOT|>",
    "<end_of_utterance>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<｜end▁of▁sentence｜>"}
# Of these, the turn openers and the marks of fill-in-the-middle a file may say that they are
# normal or user-defined.  Here they are control tokens all the same, so that no one can type
# them, and the model, not the file, says when it has finished.
CONTROL_TEXTS = STOP_TEXTS | {
    "<start_of_turn>", "<|turn>", "<|im_start|>", "<|start_header_id|>", "<|end_header_id|>",
    "<｜begin▁of▁sentence｜>", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>",
    *(mark.format(part) for mark in ("<|fim_{}|>", "<fim_{}>", "<fim-{}>")
      for part in ("prefix", "suffix", "middle", "pad"))}
_S_TAGS = ("<s>", "</s>")           # to Gemma these two are tags of HTML, to others its ends
_MARK = re.compile(r"<.+>|\[.+\]", re.DOTALL)       # what a control token mostly looks like


class Vocabulary:
    """The text and the type of every token id, and the ways to look a text up.

    texts: sequence of str or UTF-8 bytes   types: sequence of int, mended where a known text
    says more   spells_bytes: whether "<0x0A>" stands for a byte, as in SentencePiece
    No index in full is built: a vocabulary may hold 262144 tokens.
    """

    def __init__(self, texts, types, spells_bytes=False):
        self.texts, self.types = texts, bytearray(iter(types))
        self._places = Finder(texts)
        self._retype(CONTROL_TEXTS, CONTROL)
        if any(token is not None and self.types[token] == CONTROL
               for token in map(self.token, _S_TAGS)):
            self._retype(_S_TAGS, CONTROL)
        if spells_bytes and self.types.count(BYTE) < 256:
            self._retype([f"<0x{byte:02X}>" for byte in range(256)], BYTE)

    def __len__(self):
        return len(self.texts)

    def _retype(self, texts, kind):
        for token in map(self.token, texts):
            if token is not None:
                self.types[token] = kind

    def make_control(self, tokens):
        """Type as control what a file names as its end, its padding or the like: not a byte, and
        not a word, which a file that names none means by its zero."""
        for token in tokens:
            if token is not None and self.types[token] not in (UNKNOWN, BYTE) and (
                    self.types[token] != NORMAL or _MARK.fullmatch(self.text(token))):
                self.types[token] = CONTROL

    def text(self, token):
        """Return a token's text; bytes that are not UTF-8 are surrogates in it."""
        return _as_str(self.texts[token])

    def token(self, text):
        """Return the token of this text, of any type, or None."""
        return self._places.get(text)

    def merged(self, text):
        """Return the token that merging may yield, never a control or byte token, or None."""
        token = self._places.get(text)
        return token if token is None or self.types[token] in (NORMAL, USER_DEFINED) else None

    def of_types(self, first, last):
        """Yield the tokens of types first to last."""
        return (match.start() for match in re.finditer(b"[%c-%c]" % (first, last), self.types))

    @functools.cached_property
    def special(self):
        """{text: token} of the tokens that are matched as they stand, before any word is cut."""
        found = {}
        for token in self.of_types(UNKNOWN, USER_DEFINED):
            found.setdefault(self.text(token), token)
        found.pop("", None)
        return found

    @functools.cached_property
    def byte_ids(self):
        """{"<0xF0>": token} of the tokens that stand for one byte."""
        return {self.text(token): token for token in self.of_types(BYTE, BYTE)}


def rank_by_merges(vocabulary, merges):
    """Return rank(left, right) for bpe_merge: the place of "left right" in merges."""
    @functools.lru_cache(maxsize=None)
    def ranks():
        return Finder(merges)

    def rank(left, right):
        found = ranks().get(f"{left} {right}")
        return None if found is None or vocabulary.merged(left + right) is None else found
    return rank


def rank_by_scores(vocabulary, scores):
    """Return rank(left, right) for bpe_merge: the highest score of the joined text first."""
    def rank(left, right):
        token = vocabulary.merged(left + right)
        return None if token is None else -scores[token]
    return rank


# 3.2 Where to cut words.  Every family has its regular expressions, applied one after another,
# each to what the one before has cut.  They speak of Unicode classes, which `re` does not
# know.  So a character that is not ASCII is first replaced by a stand-in for its class; then
# \p{L} is a short set, and \s in ASCII mode is right too.  Han is a script, that of Chinese:
# letters for the most part, but some of its characters are marks, numbers or symbols.

STAND_INS = {"Lu": "À", "Ll": "à", "Lt": "ǅ", "Lm": "ʰ", "Lo": "ª", "M": "\u0300", "N": "²",
             "P": "¡", "S": "©", "Z": "\v", "C": "\x80",
             "Han Lo": "一", "Han Lm": "々", "Han N": "〇", "Han S": "⺀", "Han M": "\U00016ff0",
             "Han P": "\U00016fe2"}
CLASSES = {"Lu": "A-ZÀ", "Ll": "a-zà", "Lt": "ǅ", "Lm": "ʰ々", "Lo": "ª一",
           "L": "A-Za-zÀàǅʰª一々", "M": "\u0300\U00016ff0", "N": "0-9²〇", "S": "$+<=>^`|~©⺀",
           "P": r"!-#%-*,-/:;?@\[-\]_{}¡" "\U00016fe2", "Han": "一々〇⺀\U00016ff0\U00016fe2",
           "M-Han": "\u0300", "Lm-Han": "ʰ", "Lo-Han": "ª"}
_HAN = ("2e80-2e99 2e9b-2ef3 2f00-2fd5 3005 3007 3021-3029 3038-303b 3400-4dbf 4e00-9fff "
        "f900-fa6d fa70-fad9 16fe2-16fe3 16ff0-16ff1 20000-2a6df 2a700-2b739 2b740-2b81d "
        "2b820-2cea1 2ceb0-2ebe0 2ebf0-2ee5d 2f800-2fa1d 30000-3134a 31350-323af")
# White space of Unicode; str.isspace and \s of re take U+001C to U+001F too.
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680%s\u2028\u2029\u202f\u205f\u3000" % "".join(
    map(chr, range(0x2000, 0x200B)))

# The letters, marks, numbers and punctuation that Unicode 14.0, 15.0 and 15.1 added, since
# Python 3.9 knows 13.0 only and ids must not depend on the Python.  Source: UnicodeData.txt.
NEWER = {
    "Lu": "2c2f a7c0 a7d0 a7d6 a7d8 10570-1057a 1057c-1058a 1058c-10592 10594-10595",
    "Ll": "2c5f a7c1 a7d1 a7d3 a7d5 a7d7 a7d9 10597-105a1 105a3-105b1 105b3-105b9 105bb-105bc "
          "1df00-1df09 1df0b-1df1e 1df25-1df2a",
    "Lm": "8c9 a7f2-a7f4 10780-10785 10787-107b0 107b2-107ba 1aff0-1aff3 1aff5-1affb "
          "1affd-1affe 1e030-1e06d 1e4eb",
    "Lo": "870-887 889-88e 8b5 8c8 c5d cdd 170d 171f 1b4c 9ffd-9fff 10f70-10f81 11071-11072 "
          "11075 1123f-11240 11740-11746 11ab0-11abf 11f02 11f04-11f10 11f12-11f33 12f90-12ff0 "
          "1342f 13441-13446 16a70-16abe 1b11f-1b122 1b132 1b155 1df0a 1e290-1e2ad 1e4d0-1e4ea "
          "1e7e0-1e7e6 1e7e8-1e7eb 1e7ed-1e7ee 1e7f0-1e7fe 2a6de-2a6df 2b735-2b739 2ebf0-2ee5d "
          "31350-323af",
    "M": "898-89f 8ca-8d2 c3c cf3 ece 1715 180f 1ac1-1ace 1dfa 10efd-10eff 10f82-10f85 11070 "
         "11073-11074 110c2 11241 11f00-11f01 11f03 11f34-11f3a 11f3e-11f42 13440 13447-13455 "
         "1cf00-1cf2d 1cf30-1cf46 1e08f 1e2ae 1e4ec-1e4ef",
    "N": "11f50-11f59 16ac0-16ac9 1d2c0-1d2d3 1e4f0-1e4f9",
    "P": "61d 1b7d-1b7e 2e53-2e5d 10f86-10f89 116b9 11b00-11b09 11f43-11f4f 12ff1-12ff2",
}


def _runs(text):
    """Yield the code points in a text such as "a7c0 10570-1057a", as ranges."""
    for run in text.split():
        ends = run.split("-")
        yield range(int(ends[0], 16), int(ends[-1], 16) + 1)


@functools.lru_cache(maxsize=None)
def newer_classes():
    """Return NEWER as {code point: class}."""
    return {code: newer for newer, runs in NEWER.items() for run in _runs(runs) for code in run}


def stand_in(code):
    """Return the stand-in for a code point; ASCII stands for itself."""
    if code < 128:
        return chr(code)
    if code == 0x85:                            # next line: a control, but white space
        return STAND_INS["Z"]
    category = unicodedata.category(chr(code))
    if category == "Cn":
        category = newer_classes().get(code, category)
    if code >= 0x2E80 and any(code in run for run in _HAN_RUNS):
        category = "Han " + (category if category[0] == "L" else category[0])
    return STAND_INS.get(category) or STAND_INS[category[0]]


class StandIns(dict):
    """A table for str.translate that fills itself, to a bound."""

    def __missing__(self, code):
        found = stand_in(code)
        if len(self) < 1 << 16:
            self[code] = found
        return found


STAND_IN_TABLE = StandIns()
_HAN_RUNS = list(_runs(_HAN))

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
SEED = QWEN2.replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+")
JAIS2 = LLAMA3.replace(r"\s+(?!\S)|\s+", "".join(rf"\s{{{1 << i}}}(?!\S)|" for i in range(
    9, 1, -1)) + r"\s{1,2}(?!\S)|\s{1}")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = GPT4O.replace(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
KIMI = r"\p{Han}+|" + GPT4O.replace("/]*", "]*").replace(r"\p{Lm}\p{Lo}\p{M}",
                                                       r"\p{Lm-Han}\p{Lo-Han}\p{M-Han}")
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
             r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
             r"|\s*[\r\n]+|\s+(?!\S)|\s+").replace('\\"', '"')
# DeepSeek's first tokenizer lists the letters of the alphabets that have two cases.
_TWO_CASES = (
    "b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a "
    "38c 38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba "
    "1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d "
    "1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc "
    "1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d "
    "2124 2126 2128 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b "
    "2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e "
    "ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb "
    "10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943")
DEEPSEEK_LETTERS = r"\s?[A-Za-z%s]+" % "".join([
    "-".join(chr(int(end, 16)) for end in run.split("-")) for run in _TWO_CASES.split()])
CJK, CHINESE_JAPANESE = "[一-龥ࠀ-一가-\ud7ff]+", "[一-龥\u3040-ゟ゠-ヿ]+"
PUNCTUATION = r"[\p{P}$+<=>^`|~]+"
DIGIT, DIGITS, ONE_TO_THREE, THREE_DIGITS = r"\p{N}", r"\p{N}+", r"\p{N}{1,3}", "[0-9][0-9][0-9]"

# The values of tokenizer.ggml.pre, and the expressions they stand for.
PRE_TOKENIZERS = {pre: patterns for names, patterns in (
    ("default", (r"[\p{P}$+<=>^|~]+", GPT2, DIGITS, THREE_DIGITS)),
    ("gpt-2 phi-2 mpt olmo jais gigachat a.x-4.0 mellum exaone4 trillion granite-docling "
     "modern-bert", (GPT2,)),
    ("falcon", (PUNCTUATION, GPT2, THREE_DIGITS)),
    ("smollm starcoder refact command-r codeshell exaone minerva-7b", (DIGIT, GPT2)),
    ("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe "
     "chatglm-bpe glm4", (LLAMA3,)),
    ("qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2 bailingmoe "
     "bailingmoe2 llada-moe", (QWEN2,)),
    ("qwen35", (QWEN35,)),
    ("seed-coder", (SEED,)),
    ("jais-2", (JAIS2,)),
    ("gpt-4o llama4 kanana2 minimax-m2", (GPT4O,)),
    ("tekken", (TEKKEN,)),
    ("kimi-k2", (KIMI,)),
    ("bloom gpt3-finnish poro-chat", (BLOOM,)),
    ("viking", (BLOOM, DIGIT)),
    ("deepseek-llm", (r"[\r\n]", DEEPSEEK_LETTERS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$",
                      CJK, DIGITS)),
    ("deepseek-coder", (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, DIGIT)),
    ("deepseek-v3 hunyuan-dense joyai-llm", (ONE_TO_THREE, CHINESE_JAPANESE, DEEPSEEK3)),
) for pre in names.split()}
# A word that is a token as a whole is taken whole, and BOS is added unless the file objects.
WHOLE_WORDS = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0",
               "lfm2", "tekken"}
# These were trained on text in normal form C.  GGUF has no key for it; tokenizer.json says so,
# and transformers' tokenizers of Qwen2, Cohere and GPT-NeoX, whose own mpt and olmo use.
NORMAL_FORMS = dict.fromkeys(("qwen2", "qwen35", "deepseek-r1-qwen", "stablelm2", "command-r",
                              "mpt", "olmo"), "NFC")
# What a tokenizer.json may ask for, in any order, and other ways to write the same.
KNOWN_PATTERNS = {pattern for patterns in PRE_TOKENIZERS.values() for pattern in patterns}
KNOWN_PATTERNS |= {DIGIT, DIGITS, ONE_TO_THREE, THREE_DIGITS}
SAME_PATTERN = (("\r", r"\r"), ("\n", r"\n"), ("?+", "?"), ("++", "+"), ("{1}", ""),
                ("'(?i:[sdmt]|ll|ve|re)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"),
                (r"\s*[\r\n]|", r"\s*[\r\n]+|"), ("|[.,!?…。，、।۔،])]", "|.,!?…。，、।۔،)]"))


def known_pattern(pattern):
    """Return one of KNOWN_PATTERNS that cuts as pattern does, or None.

    Others are refused, since an expression of a stranger's may take for ever.
    """
    for one, other in SAME_PATTERN if isinstance(pattern, str) else ():
        pattern = pattern.replace(one, other)
    return pattern if isinstance(pattern, str) and pattern in KNOWN_PATTERNS else None


@functools.lru_cache(maxsize=None)
def compile_pattern(pattern):
    """Compile an expression with \\p{..} to one over stand-ins -> (compiled, over stand-ins).

    An expression without classes is matched against the text itself.
    """
    def expand(match):
        found = match.group()
        inside = re.sub(r"\\p\{([\w-]+)\}", lambda name: CLASSES[name.group(1)], found)
        return inside if found[0] == "[" else f"[{inside}]"

    if "\\p" not in pattern:
        spaces = pattern.replace(r"[^(\s", "[^(" + _WHITE_SPACE)
        return re.compile(spaces.replace(r"\s", f"[{_WHITE_SPACE}]")), False
    expanded = re.sub(r"\[(?:\\.|[^\]\\])*\]|\\p\{[\w-]+\}", expand, pattern)
    return re.compile(expanded, re.ASCII), True


def cut_words(text, patterns):
    """Return text cut at the matches of each pattern in turn, and between them; loses nothing.

    With GPT2: "I'll go  on" -> ["I", "'ll", " go", " ", " on"].
    """
    stand_ins = text if text.isascii() else text.translate(STAND_IN_TABLE)
    spans = [(0, len(text))]
    for pattern in patterns:
        compiled, over_stand_ins = compile_pattern(pattern)
        subject = stand_ins if over_stand_ins else text
        cut = []
        for start, end in spans:
            for match in compiled.finditer(subject, start, end):
                if match.start() > start:
                    cut.append((start, match.start()))
                cut.append(match.span())
                start = match.end()
            if start < end:
                cut.append((start, end))
        spans = cut
    return [text[start:end] for start, end in spans]


def normalize(form, text):
    """Return unicodedata.normalize(form, text), in linear time.

    The library sorts a run of marks by insertion, which takes the square of its length; so
    long runs are decomposed and sorted here.  Source: Unicode Standard, 3.11, canonical order.
    """
    def in_order(match):
        marks = "".join([unicodedata.normalize("NFD", c) for c in text[slice(*match.span())]])
        runs = itertools.groupby(marks, lambda c: unicodedata.combining(c) > 0)
        return "".join(["".join(sorted(run, key=unicodedata.combining)) if moves
                        else "".join(run) for moves, run in runs])

    if text.isascii():
        return text
    out, start = [], 0
    for match in re.finditer(STAND_INS["M"] + "{32,}", text.translate(STAND_IN_TABLE)):
        out += [text[start:match.start()], in_order(match)]
        start = match.end()
    return unicodedata.normalize(form, "".join(out) + text[start:])


# 3.3 The two families.  Both offer words(text, first), which yields the words of a text as the
# vocabulary writes them (first: nothing stands before the text), word_ids(word), which merges
# one, and piece(text), the way back.
#
# Byte-level vocabularies write a byte as a printable character: printable Latin-1 as itself,
# the other 68 bytes as U+0100 and on.  Source: GPT-2, encoder.py, bytes_to_unicode.

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_TO_CHAR = {**{byte: chr(byte) for byte in _PRINTABLE},
                **{byte: chr(256 + i) for i, byte in enumerate(_OTHERS)}}
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}


class ByteLevel:
    """Byte-level BPE: words of bytes, merged in the order of a list.

    rank: of rank_by_merges   patterns: where to cut words, as in cut_words
    whole_words: take a word that is a token without merging
    """

    space_prefix = "never"

    def __init__(self, vocabulary, rank, patterns, whole_words=False, normal_form=None):
        self.vocabulary, self.rank, self.patterns = vocabulary, rank, patterns
        self.whole_words, self.normal_form = whole_words, normal_form

    def words(self, text, first):
        if self.normal_form:
            text = normalize(self.normal_form, text)
        for word in cut_words(text, self.patterns):
            yield word.encode("utf-8").decode("latin-1").translate(BYTE_TO_CHAR)

    def word_ids(self, word):
        merged = self.vocabulary.merged
        if self.whole_words and merged(word) is not None:
            return [merged(word)]
        # A byte without a token is left out, as everywhere: Falcon has none for control bytes.
        ids = map(merged, bpe_merge(list(word), self.rank))
        return [token for token in ids if token is not None]

    def piece(self, text):
        """Return the bytes that a normal token's text stands for."""
        return b"".join(bytes((CHAR_TO_BYTE[c],)) if c in CHAR_TO_BYTE
                        else c.encode("utf-8", "surrogateescape") for c in text)


SPACE = "\u2581"                            # how SentencePiece writes a space
BYTE_TEXT = re.compile("<0x[0-9A-F]{2}>")   # and a byte without a character


class SentencePiece:
    """SentencePiece BPE: characters, merged by the score of the result, with byte fallback.

    rank: of rank_by_scores or rank_by_merges   unknown_id: for characters without byte tokens
    space_prefix: "always" puts a space before the text and again after each special token,
    "first" only before the text, "never"; a text that begins with one gets none if `once`.
    """

    def __init__(self, vocabulary, rank, space_prefix, unknown_id=None, once=False,
                 normal_form=None):
        self.vocabulary, self.rank, self.unknown_id = vocabulary, rank, unknown_id
        self.space_prefix, self.once, self.normal_form = space_prefix, once, normal_form

    @functools.cached_property
    def cuts(self):
        """Where no merge can reach across: before a space, unless after a character that some
        token has before a space.  So words can be merged, and remembered, one by one."""
        texts = self.vocabulary.texts
        if isinstance(texts, Strings):      # as bytes, of which a character has at most four
            before = {part[-4:] for part in texts.joined().split(SPACE.encode())[:-1]}
        else:
            before = {part[-1:] for part in "\0".join(map(_as_str, texts)).split(SPACE)[:-1]}
        inside = {_as_str(part)[-1:] for part in before} | {SPACE}
        return re.compile(f"(?<![{re.escape(''.join(sorted(inside)))}])(?={SPACE})")

    def words(self, text, first):
        if self.normal_form:
            text = normalize(self.normal_form, text)
        text = text.replace(" ", SPACE)
        wanted = self.space_prefix == "always" or (self.space_prefix == "first" and first)
        if wanted and not (self.once and text.startswith(SPACE)):
            text = SPACE + text
        return filter(None, self.cuts.split(text))

    def word_ids(self, word):
        byte_ids, out = self.vocabulary.byte_ids, []
        for part in bpe_merge(list(word), self.rank):
            token = self.vocabulary.merged(part)
            if token is not None:
                out.append(token)
                continue
            bytes_of_part = [byte_ids.get(f"<0x{b:02X}>") for b in part.encode("utf-8")]
            if None in bytes_of_part:
                bytes_of_part = [self.unknown_id]
            if None in bytes_of_part:
                raise KshipraError(f"tokenizer: the vocabulary has no token for {part!r}, not all "
                                   "bytes and no unknown token; leave the character out")
            out.extend(bytes_of_part)
        return out

    def piece(self, text):
        """Return the bytes that a normal token's text stands for."""
        return text.replace(SPACE, " ").encode("utf-8", "surrogateescape")


# 3.4 The tokenizer.

_SURROGATE = re.compile("[\ud800-\udfff]")          # UTF-8 has none, so no text that is read
_HIDE = "\ud800"        # stands in text of the user's that spells a control token; see `hide`


class Tokenizer:
    """Text to token ids and back.

    n_vocab: number of tokens   n_used: of those up to the last that is not padding; no model
    means the others   bos_id, eos_id: int or None   stop_ids: set of all ids that end a
    generation   add_bos, add_eos: whether encode adds them
    strips: {token: (left, right)}: takes the white space beside it away
    chat_templates: {"default": source of a template, ...}, in the language of section 3.6
    decode(encode(text)) is the text, but for control tokens in it; U+2581, which SentencePiece
    takes for a space; Unicode normalization, where the model asks for it; and characters that
    the vocabulary has neither a token nor bytes for.
    """

    _SPACES = re.compile(f"[{_WHITE_SPACE}]*")

    def __init__(self, model, bos_id=None, eos_id=None, stop_ids=(), add_bos=False,
                 add_eos=False, strips=None, chat_templates=None):
        self.chat_templates = chat_templates or {}
        self.model, self.vocabulary = model, model.vocabulary
        self.n_vocab = len(model.vocabulary)
        self.bos_id, self.eos_id = bos_id, eos_id
        self.add_bos, self.add_eos = add_bos and bos_id is not None, add_eos and eos_id is not None
        self._strips = strips or {}
        self._cache, self._templates = {}, {}
        vocabulary = self.vocabulary
        vocabulary.make_control([bos_id, eos_id, *stop_ids])
        self.n_used = len(vocabulary.types.rstrip(bytes([UNUSED]))) or self.n_vocab
        self._control = {*vocabulary.of_types(UNKNOWN, CONTROL)}
        stops = {text: vocabulary.token(text) for text in (*STOP_TEXTS, "</s>")}
        if vocabulary.token("<|channel|>") is not None:
            del stops["<|end|>"]                # gpt-oss: this ends a message, not the turn
        self.stop_ids = {*stops.values()} & self._control
        self.stop_ids |= {token for token in (eos_id, *stop_ids) if token is not None}

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list:
        """Return the ids of text.

        add_special: add BOS and EOS where the model was trained with them.
        parse_special: read "<|im_end|>" in the text as that token; without it no text, whatever
        it spells, gives a control token.  Tokens of type user-defined are matched either way,
        but not one whose text is known to be control: llama.cpp would make that token of it.
        """
        text = _SURROGATE.sub("\ufffd", text)
        out = [self.bos_id] if add_special and self.add_bos else []
        out += self._encode_parts(text, parse_special)
        if add_special and self.add_eos:
            out.append(self.eos_id)
        return out

    def encode_prompt(self, text: str) -> list:
        """Return the ids of a text that is to go on: BOS once, also where the text spells it,
        and no EOS behind it, whatever the files ask."""
        return self._begin(self.encode(text, add_special=False))

    def _begin(self, ids):
        """Return ids with the BOS that the model was trained with, once."""
        bos = self.bos_id
        while bos is not None and ids[:2] == [bos, bos]:
            ids = ids[1:]
        return [bos, *ids] if self.add_bos and ids[:1] != [bos] else ids

    def _encode_parts(self, text, parse_special):
        out, first = [], True
        for part in self._cut_special(text, parse_special):
            if isinstance(part, int):
                out.append(part)
            elif part:
                self._encode_plain(part.replace(_HIDE, ""), first, out)
            first = False
        return out

    @property
    def chat_template(self):
        """The source of the template for conversations, or None."""
        return self.chat_templates.get("default")

    def template(self, name: str = "default"):
        """Return the ChatTemplate of a name, or the default one if there is none such."""
        source = self.chat_templates.get(name, self.chat_template)
        if source is None:
            raise KshipraError("the model has no chat template, so it was not trained on "
                               "conversations; give it a text to continue")
        if name not in self._templates:
            self._templates[name] = ChatTemplate(source)
        return self._templates[name]

    def apply_chat_template(self, messages, add_generation_prompt: bool = True, tools=None,
                            tokenize: bool = True, **variables):
        """Return the ids of a conversation, or its text, as the model was trained to read it.

        messages: [{"role": "user", "content": "Hi"}, ...]   add_generation_prompt: end where the
        assistant's turn begins   tools: list of JSON schemas   variables: more that the template
        knows, such as enable_thinking; one that it never reads is refused
        No text in these gives a control token, whatever it spells, and BOS comes once.
        """
        text = render_chat(self, messages, add_generation_prompt, tools, **variables)
        if not tokenize:
            return text.replace(_HIDE, "")
        text = re.sub("[\ud801-\udfff]", "\ufffd", text)
        return self._begin(self._encode_parts(text, True))

    def hide(self, text: str) -> str:
        """Return text with the mark _HIDE in all that spells a control token, or ends like the
        beginning of one.  So rendering, which is done on text, leaves what a template wrote and
        what a user wrote distinct: a spelling with the mark in it is matched by no token."""
        text = _SURROGATE.sub("\ufffd", text)
        first, lengths, ids = self._openers[True]
        out, start = [], 0
        longest = max(map(len, ids), default=0)
        for match in first.finditer(text) if first else ():
            at = match.start()
            spelt = [text[at:at + n] for n in lengths[text[at]]]
            if at + longest > len(text):        # near the end, where it may go on elsewhere
                rest = text[at:]
                spelt += [name for name in ids if name.startswith(rest)]
            if any(ids.get(name) in self._control for name in spelt):
                out += [text[start:at + 1], _HIDE]
                start = at + 1
        return "".join(out) + text[start:]

    def _encode_plain(self, text, first, out):
        cache = self._cache
        for word in self.model.words(text, first):
            ids = cache.get(word)
            if ids is None:
                ids = self.model.word_ids(word)
                if len(word) <= WORD_CACHE_CHARS:
                    if len(cache) >= WORD_CACHE_ENTRIES:
                        cache.clear()
                    cache[word] = ids
            out.extend(ids)

    @functools.cached_property
    def _openers(self):
        """For each way of parse_special: (expression that finds a special token's first
        character, {first character: lengths of the tokens, longest first}, {text: token})."""
        out = []
        for parse in (False, True):
            ids = {text: i for text, i in self.vocabulary.special.items()
                   if parse or i not in self._control}
            lengths = {}
            for text in ids:
                lengths.setdefault(text[0], set()).add(len(text))
            lengths = {c: sorted(found, reverse=True) for c, found in lengths.items()}
            first = re.compile("[" + re.escape("".join(lengths)) + "]") if ids else None
            out.append((first, lengths, ids))
        return out

    def _cut_special(self, text, parse_special):
        """Yield text as str parts and special tokens, the leftmost and longest first."""
        first, lengths, ids = self._openers[bool(parse_special)]
        start = pos = 0
        while first:
            match = first.search(text, pos)
            if not match:
                break
            at = match.start()
            for length in lengths[text[at]]:
                token = ids.get(text[at:at + length])
                if token is not None:
                    strip_left, strip_right = self._strips.get(token, (False, False))
                    before = text[start:at]
                    yield before.rstrip(_WHITE_SPACE) if strip_left else before
                    yield token
                    start = pos = at + length
                    if strip_right:
                        start = pos = self._SPACES.match(text, pos).end()
                    break
            else:
                pos = at + 1
        yield text[start:]

    def piece(self, token: int) -> bytes:
        """Return the bytes of one token, a special one's name included; b"" beyond the end."""
        if not 0 <= token < self.n_vocab:
            return b""
        text, kind = self.vocabulary.text(token), self.vocabulary.types[token]
        if kind == UNUSED:
            return b""
        if kind == BYTE and BYTE_TEXT.fullmatch(text):
            return bytes((int(text[3:5], 16),))
        if kind in (NORMAL, BYTE):
            return self.model.piece(text)
        return text.encode("utf-8", "surrogateescape")

    def decode(self, ids, special: bool = False) -> str:
        """Return the text of ids, a whole text: the space that encode put first is taken off.

        special: show control tokens too.  Any id has a text, if only an empty one; bytes that
        are not UTF-8 become U+FFFD.
        """
        stream = TextStream(self, special, at_start=True)
        return "".join([stream.push(token) for token in ids]) + stream.flush()

    def stream(self, special: bool = False):
        """Return a TextStream: push(id) and flush() give the text of ids that go on from a
        prompt, so that a leading space stays; if BOS comes first, it is decode's text."""
        return TextStream(self, special)


class TextStream:
    """Ids to text, one by one, holding bytes back until they are whole characters.

    at_start: whether the ids begin a text, so that the space that encode put there is taken
    off; None: if the first of them is BOS
    """

    def __init__(self, tokenizer, special=False, at_start=None):
        self._tokenizer, self._special, self._at_start = tokenizer, special, at_start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the text that is certain once token has come; often its piece, maybe ""."""
        tokenizer = self._tokenizer
        if self._at_start is None:
            self._at_start = token == tokenizer.bos_id
        if token in tokenizer._control and not self._special:
            return ""
        piece = tokenizer.piece(token)
        if self._at_start and piece:
            self._at_start = False
            if tokenizer.model.space_prefix != "never" and piece.startswith(b" "):
                piece = piece[1:]
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """Return what is left at the end: one U+FFFD for the bytes of half a character."""
        return self._decoder.decode(b"", True)


# 3.5 From files.  Every value below is untrusted: it is checked here, before it is an index.

class _TokenizerKeys:
    """The keys tokenizer.ggml.* of GGUF metadata, checked as they are read."""

    def __init__(self, metadata, path):
        self.metadata, self.path = metadata, path

    def get(self, key, default=None):
        return self.metadata.get("tokenizer.ggml." + key, default)

    def refuse(self, key, message):
        raise KshipraError(f"tokenizer.ggml.{key}: {message}", self.path)

    def array_of(self, kinds, key, n_wanted=None):
        """Return an array of one of `kinds`; n_wanted: the length it must have."""
        found = self.get(key)
        if found is None or isinstance(found, (str, bytes)) or not hasattr(found, "__len__"):
            self.refuse(key, f"an array is needed, but {_quote(found)} was found")
        if len(found) and not isinstance(found[0], kinds):
            self.refuse(key, f"an array of {kinds[0].__name__} is needed, but it holds "
                             f"{_quote(found[0])}")
        if n_wanted is not None and len(found) != n_wanted:
            self.refuse(key, f"length {len(found)}, but there are {n_wanted} tokens")
        return found

    def flag(self, key, default):
        found = self.get(key, default)
        return found if type(found) is bool else self.refuse(key, f"{_quote(found)} is no bool")

    def token_id(self, key, n_vocab, default=None):
        """Return an id below n_vocab; where the file gives none, the default if there is such."""
        found = self.get(key)
        if found is None and default is not None and default < n_vocab:
            return default
        if found is not None and (type(found) is not int or not 0 <= found < n_vocab):
            self.refuse(key, f"{_quote(found)} is no token of a vocabulary of {n_vocab}; convert "
                             "the model again")
        return found

    def vocabulary(self, spells_bytes):
        """Return the Vocabulary; without token_type all tokens are normal, if not known."""
        tokens = self.array_of((str, bytes), "tokens")
        types = [NORMAL] * len(tokens)
        if self.get("token_type") is not None:
            types = self.array_of((int,), "token_type", len(tokens))
        if not set(types) <= set(range(1, 7)):
            self.refuse("token_type", f"types {sorted(set(types))[:9]}, against 1 to 6")
        return Vocabulary(tokens, types, spells_bytes)


def _phi3_strips(vocabulary):
    """Return {token: (left, right)}: Phi-3's special tokens swallow the space after them.

    GGUF has no place for this property, so llama.cpp knows it by the model's name.
    """
    plain = ("<unk>", "<s>", "<|endoftext|>")
    return {i: (False, True) for text, i in vocabulary.special.items() if text not in plain}


def _chat_templates(metadata):
    key = "tokenizer.chat_template"
    return {name[len(key) + 1:] or "default": source for name, source in metadata.items()
            if name == key or name.startswith(key + ".")}


def tokenizer_from_gguf(metadata, path=None):
    """Return the Tokenizer that GGUF metadata describe.

    metadata: {key: value}; texts are str or bytes   path: named in errors
    Source: GGUF specification, "Tokenizer"; llama.cpp, src/llama-vocab.cpp.
    """
    keys = _TokenizerKeys(metadata, path)
    kind = keys.get("model")
    if kind not in ("gpt2", "llama"):
        keys.refuse("model", f"{_quote(kind)} is not supported; 'gpt2' (byte-level BPE) and "
                             "'llama' (SentencePiece BPE) are")
    vocabulary = keys.vocabulary(spells_bytes=kind == "llama")
    read = functools.partial(keys.token_id, n_vocab=len(vocabulary))
    if kind == "gpt2":
        bos_id, eos_id, unknown_id = read("bos_token_id"), read("eos_token_id"), None
    else:                       # what SentencePiece numbers first; Gemma has another order
        bos_id = read("bos_token_id", default=vocabulary.special.get("<bos>", 1))
        eos_id = read("eos_token_id", default=vocabulary.special.get("<eos>", 2))
        unknown_id = read("unknown_token_id", default=0)
    vocabulary.make_control([unknown_id, read("padding_token_id")])

    if kind == "gpt2":
        pre = keys.get("pre")
        if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
            what = "is missing" if pre is None else f"is {_quote(pre)}, which is unknown"
            keys.refuse("pre", f"the rule for cutting words {what}, and a wrong rule would give "
                               "wrong tokens; convert the model again with a current converter")
        merges = keys.array_of((str, bytes), "merges")
        model = ByteLevel(vocabulary, rank_by_merges(vocabulary, merges), PRE_TOKENIZERS[pre],
                          pre in WHOLE_WORDS, NORMAL_FORMS.get(pre))
        adds_bos = pre in WHOLE_WORDS
    else:
        scores = keys.array_of((float, int), "scores", len(vocabulary))
        space_prefix = "always" if keys.flag("add_space_prefix", True) else "never"
        model = SentencePiece(vocabulary, rank_by_scores(vocabulary, scores), space_prefix,
                              unknown_id)
        adds_bos = True
    add_bos = keys.flag("add_bos_token", adds_bos and bos_id is not None)
    if add_bos and bos_id is None:
        keys.refuse("bos_token_id", "missing, but add_bos_token is true")
    name = str(metadata.get("general.name", "")).lower()
    return Tokenizer(model, bos_id, eos_id, [read("eot_token_id"), read("eom_token_id")],
                     add_bos, keys.flag("add_eos_token", False),
                     _phi3_strips(vocabulary) if "phi-3" in name or "phi3" in name else None,
                     _chat_templates(metadata))


def tokenizer_from_hf(directory):
    """Return the Tokenizer of a Hugging Face directory.

    From tokenizer.json, else vocab.json and merges.txt, else tokenizer.model; which ids begin
    and end a text stands in tokenizer_config.json, config.json and generation_config.json.
    """
    try:
        return _tokenizer_from_hf(directory)
    except KshipraError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, struct.error) as error:
        raise KshipraError("tokenizer: a part is missing or of the wrong type "
                           f"({type(error).__name__}: {error}); fetch the files again",
                           directory) from None


def _tokenizer_from_hf(directory):
    files = _TokenizerFiles(directory)
    model, before, after = files.model()
    vocabulary, settings = model.vocabulary, files.settings
    bos_id, eos_id = files.named("bos_token", vocabulary), files.named("eos_token", vocabulary)
    bos_ids = [bos_id, before and vocabulary.token(before),
               *files.listed("bos_token_id", vocabulary)]
    eos_ids = [eos_id, *files.listed("eos_token_id", vocabulary)]
    bos_id, eos_id = (next((token for token in ids if token is not None), None)
                      for ids in (bos_ids, eos_ids))
    add_bos, add_eos = settings.get("add_bos_token"), settings.get("add_eos_token")
    add_bos = before is not None if add_bos is None else add_bos
    if add_bos and bos_id is None:
        raise KshipraError("tokenizer: a text is to begin with BOS, but no file says which token "
                           "that is", directory)
    return Tokenizer(model, bos_id, eos_id, eos_ids, add_bos,
                     after is not None if add_eos is None else add_eos, files.strips(),
                     files.chat_templates())


class _TokenizerFiles:
    """The files of a directory that say what the tokens are."""

    def __init__(self, directory):
        self.directory = directory
        self.config, self.generation = (self.json(name) for name in (
            "config.json", "generation_config.json"))
        self.settings = {**self.json("special_tokens_map.json"),
                         **self.json("tokenizer_config.json")}
        self.root = self.json("tokenizer.json")

    def path(self, name):
        return os.path.join(self.directory, name)

    def has(self, *names):
        return all(_is_file(self.path(name)) for name in names)

    def json(self, name):
        return _read_json(self.path(name)) if self.has(name) else {}

    @functools.cached_property
    def added(self):
        """The tokens added to a vocabulary, as tokenizer.json lists them, but from all files."""
        named = {self._content(value) for key, value in self.settings.items()
                 if key.endswith("_token")}
        simple = [{"content": text, "id": token, "special": text in named}
                  for text, token in self.json("added_tokens.json").items()]
        decoder = self.settings.get("added_tokens_decoder") or {}
        decoder = [{**a, "id": int(token)} for token, a in decoder.items()]
        return [*{a.get("id"): a for a in [*simple, *decoder,
                                           *(self.root.get("added_tokens") or [])]}.values()]

    @staticmethod
    def _content(token):
        """Return the text of a token given as its text or as {"content": text}."""
        found = token.get("content") if isinstance(token, dict) else token
        return found if isinstance(found, str) else None

    def strips(self):
        return {a["id"]: (bool(a.get("lstrip")), bool(a.get("rstrip")))
                for a in self.added if a.get("lstrip") or a.get("rstrip")}

    def chat_templates(self):
        """Return {name: source}: chat_template of the settings, a text or a list of such with
        names, or a file of its own."""
        if self.has("chat_template.jinja"):
            return {"default": _read_bytes(self.path("chat_template.jinja")).decode("utf-8")}
        found = self.json("chat_template.json").get("chat_template",
                                                    self.settings.get("chat_template"))
        if isinstance(found, list):
            found = {entry["name"]: entry["template"] for entry in found}
        return found if isinstance(found, dict) else {} if found is None else {"default": found}

    def named(self, key, vocabulary):
        """Return the id of the token that the settings name, None where they name none."""
        text = self._content(self.settings.get(key))
        token = None if text is None else vocabulary.token(text)
        if text is not None and token is None:
            raise KshipraError(f"{key} is {_quote(text)}, which has no id in any file; fetch the "
                               "tokenizer's files again", self.directory)
        return token

    def listed(self, key, vocabulary):
        """Yield the ids under key, one or a list, in any of the files; those of padding not."""
        for place in (self.generation, self.config, self.config.get("text_config")):
            found = place.get(key) if isinstance(place, dict) else None
            for token in found if isinstance(found, list) else [found]:
                if type(token) is int and 0 <= token < len(vocabulary):
                    yield token

    def model(self):
        """Return (ByteLevel or SentencePiece, text of the token put before a text, after it)."""
        if self.has("tokenizer.json"):
            path = self.path("tokenizer.json")
            return _model_from_tokenizer_json(self.root, self.added, path), *_template(
                self.root, path)
        if self.has("vocab.json", "merges.txt"):
            return _model_from_vocab_json(self), None, None
        if self.has("tokenizer.model"):         # Llama and Gemma have such files, and add BOS
            model = _model_from_sentencepiece(self.path("tokenizer.model"), self.added)
            return model, self._content(self.settings.get("bos_token")) or "<s>", None
        raise KshipraError("no tokenizer: tokenizer.json, vocab.json with merges.txt, or "
                           "tokenizer.model is needed", self.directory)


def _vocabulary_of(pairs, types, added, spells_bytes, path):
    """Return the Vocabulary of tokens and of those added to them, which come last.

    pairs: (text, id)   types: {id: type} where it is not normal
    """
    added_pairs = [(a.get("content"), a.get("id")) for a in added]
    n_tokens, highest = len(pairs) + len(added), -1
    for text, token in itertools.chain(pairs, added_pairs):
        if type(token) is not int or not isinstance(text, (str, bytes)) or token < 0:
            raise KshipraError(f"vocabulary: token {_quote(text)} has id {_quote(token)}; "
                               "ids are numbers from 0", path)
        highest = token if token > highest else highest
    if highest >= 2 * n_tokens:
        raise KshipraError(f"vocabulary: the highest id is {highest}, but there are only "
                           f"{n_tokens} tokens", path)
    texts, kinds = [""] * (highest + 1), bytearray([UNUSED]) * (highest + 1)
    for text, token in pairs:
        texts[token], kinds[token] = text, NORMAL
    for token, kind in types.items():
        kinds[token] = kind
    for a, (text, token) in zip(added, added_pairs):
        special = a.get("special")
        texts[token] = text.replace(SPACE, " ") if spells_bytes and not special else text
        kinds[token] = CONTROL if special else USER_DEFINED
    try:
        "".join([text for text in texts if isinstance(text, str)]).encode()
    except UnicodeEncodeError as error:
        raise KshipraError("vocabulary: a token holds half a character of UTF-16, "
                           f"{_quote(error.object[error.start])}; fetch the file again",
                           path) from None
    return Vocabulary(texts, kinds, spells_bytes)


def _steps(node, key):
    """Return the steps of a tokenizer.json component: none, one, or a Sequence's."""
    if node is None:
        return []
    return node[key] if node["type"] == "Sequence" else [node]


def _unsupported(part, found, path):
    """Refuse what would change the ids and is not known here."""
    raise KshipraError(f"tokenizer, {part}: {_quote(found)} is not supported; convert the model "
                       "to GGUF", path)


def _model_from_tokenizer_json(root, added, path):
    """Return the ByteLevel or SentencePiece that the object in a tokenizer.json describes."""
    bpe = root["model"]
    kind = bpe.get("type", "BPE" if "merges" in bpe else None)
    if kind != "BPE":
        _unsupported("model.type", kind, path)
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if bpe.get(key):
            _unsupported("model." + key, bpe[key], path)
    for a in added:
        if a.get("single_word"):
            _unsupported("added_tokens", a, path)
    vocabulary = _vocabulary_of([*bpe["vocab"].items()], {}, added, bool(bpe.get("byte_fallback")),
                                path)
    merges = [m if isinstance(m, str) else " ".join(m) for m in bpe["merges"]]
    for merge in bpe["merges"]:
        if len(merge) != 2 and not isinstance(merge, str):
            _unsupported("model.merges, of other than two parts", merge, path)
    rank = rank_by_merges(vocabulary, merges)
    rules = _Rules(root, path)
    if rules.to_space:
        return SentencePiece(vocabulary, rank, rules.space_prefix,
                             bpe["vocab"].get(bpe.get("unk_token")), rules.once,
                             rules.normal_form)
    return ByteLevel(vocabulary, rank, rules.patterns, bool(bpe.get("ignore_merges")),
                     rules.normal_form)


class _Rules:
    """What the normalizer and the pre_tokenizer of a tokenizer.json do to a text.

    to_space: whether spaces become U+2581, as in SentencePiece, instead of bytes; then
    space_prefix and once are those of SentencePiece.  patterns, normal_form: of ByteLevel
    """

    def __init__(self, root, path):
        self.normal_form, self.patterns = None, []
        self.space_prefix, self.once, self.to_space = "never", False, False
        for step in _steps(root.get("normalizer"), "normalizers"):
            self._normalize(step) or _unsupported("normalizer", step, path)
        for step in _steps(root.get("pre_tokenizer"), "pretokenizers"):
            self._cut(step) or _unsupported("pre_tokenizer", step, path)
        if self.to_space == bool(self.patterns) or self.space_prefix not in (
                "always", "first", "never"):
            _unsupported("pre_tokenizer", root.get("pre_tokenizer"), path)

    def _normalize(self, step):
        """Take a step of the normalizer into account; return whether it is known."""
        kind = step["type"]
        if kind in ("NFC", "NFD", "NFKC", "NFKD"):
            self.normal_form = kind
        elif kind == "Prepend" and step["prepend"] == SPACE:
            self.space_prefix = "always"
        elif kind == "Replace" and (step["pattern"], step["content"]) == ({"String": " "}, SPACE):
            self.to_space = True
        else:
            return False
        return True

    def _cut(self, step):
        """Take a step of the pre_tokenizer into account; return whether it is known."""
        kind, pattern = step["type"], step.get("pattern") or {}
        ways = step.get("behavior"), step.get("invert", False)
        known = known_pattern(pattern.get("Regex"))
        if kind == "ByteLevel" and not step.get("add_prefix_space"):
            self.patterns += [GPT2] if step.get("use_regex", True) else []
        elif kind == "Digits":
            self.patterns.append(DIGIT if step.get("individual_digits") else DIGITS)
        elif kind == "Punctuation" and ways[0] == "Contiguous":
            self.patterns.append(PUNCTUATION)
        elif kind == "Split" and known and ways in (("Isolated", False), ("Removed", True)):
            self.patterns.append(known)
        elif kind == "Split" and pattern == {"String": " "} and self.to_space:
            pass                                # no space is left to cut at
        elif kind == "Metaspace" and step["replacement"] == SPACE and step.get("split") is False:
            self.space_prefix = step.get("prepend_scheme", "always")
            self.once = self.to_space = True
        else:
            return False
        return True


def _template(root, path):
    """Return the texts of the special tokens put before and after a text, None for none."""
    before = after = None
    for step in _steps(root.get("post_processor"), "processors"):
        if step["type"] == "TemplateProcessing":
            parts = [part.get("SpecialToken", {}).get("id") for part in step["single"]]
            text_at = parts.index(None)
            if text_at > 1 or len(parts) - text_at > 2:
                _unsupported("post_processor", step, path)
            before, after = parts[0], parts[-1]
        elif step["type"] != "ByteLevel":
            _unsupported("post_processor", step, path)
    return before, after


def _model_from_vocab_json(files):
    """Return the model of vocab.json and merges.txt, the files of GPT-2's first release."""
    path = files.path("vocab.json")
    family = str(files.settings.get("tokenizer_class", files.config.get("model_type", "")))
    patterns = {"gpt2": (GPT2,), "qwen2": (QWEN2,)}.get(
        family.lower().replace("tokenizer", "").replace("fast", ""))
    if patterns is None:
        raise KshipraError(f"tokenizer_class: {_quote(family)} does not say how to cut words; "
                           "a tokenizer.json is needed", path)
    lines = _read_bytes(files.path("merges.txt")).decode("utf-8").split("\n")
    merges = [line for line in lines if line and not line.startswith("#version:")]
    vocabulary = _vocabulary_of([*_read_json(path).items()], {}, files.added, False, path)
    return ByteLevel(vocabulary, rank_by_merges(vocabulary, merges), patterns,
                     normal_form="NFC" if patterns == (QWEN2,) else None)


def _protobuf_fields(data, path):
    """Yield (field number, value) of a protocol buffer: int, or bytes for any longer value.

    Source: Protocol Buffers, "Encoding".
    """
    pos = 0

    def varint():
        nonlocal pos
        value = 0
        for shift in range(0, 70, 7):
            byte = data[pos]
            pos += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise IndexError

    try:
        while pos < len(data):
            tag = varint()
            number, wire = tag >> 3, tag & 7
            if wire == 0:
                yield number, varint()
                continue
            if wire not in (1, 2, 5):
                raise IndexError
            size = varint() if wire == 2 else {1: 8, 5: 4}[wire]
            if size > len(data) - pos:
                raise IndexError
            pos += size
            yield number, data[pos - size:pos]
    except IndexError:
        raise KshipraError("not a SentencePiece model, or cut short; fetch it again",
                           path, pos) from None


def _model_from_sentencepiece(path, added):
    """Return the model of a tokenizer.model and the tokens added to it.

    Source: sentencepiece, src/sentencepiece_model.proto: ModelProto has pieces = 1 (piece = 1,
    score = 2, type = 3), trainer_spec = 2 (model_type = 3; 2 is BPE), normalizer_spec = 3
    (precompiled_charsmap = 2, add_dummy_prefix = 3, remove_extra_whitespaces = 4).
    The types are those of GGUF.
    """
    data = _read_bytes(path)
    texts, scores, types = [], [], []
    trainer, normalizer = {}, {}
    for number, value in _protobuf_fields(data, path):
        if number == 1:
            piece = dict(_protobuf_fields(value, path))
            types.append(piece.get(3, NORMAL))
            text = piece.get(1, b"")
            if not isinstance(text, bytes) or types[-1] not in range(1, 7):
                raise KshipraError(f"piece {len(texts)}: text {_quote(text)} of type {types[-1]}; "
                                   "fetch the file again", path)
            texts.append(text.replace(SPACE.encode(), b" ") if types[-1] == USER_DEFINED else text)
            scores.append(struct.unpack("<f", piece.get(2, bytes(4)))[0])
        elif number == 2:
            trainer = dict(_protobuf_fields(value, path))
        elif number == 3:
            normalizer = dict(_protobuf_fields(value, path))
    if trainer.get(3) != 2:
        raise KshipraError(f"model_type: {trainer.get(3, 1)} is not supported; "
                           "2 (BPE) is", path)
    if normalizer.get(2) or normalizer.get(4, 1):
        raise KshipraError("normalizer_spec: a character map or the removal of extra white space "
                           "is not supported", path)
    vocabulary = _vocabulary_of([*zip(texts, range(len(texts)))], dict(enumerate(types)), added,
                                True, path)
    scores += [0.0] * (len(vocabulary) - len(scores))
    return SentencePiece(vocabulary, rank_by_scores(vocabulary, scores),
                         "always" if normalizer.get(3, 1) else "never",
                         types.index(UNKNOWN) if UNKNOWN in types else None)


def tokenizer_of(checkpoint):
    """Return the Tokenizer that a checkpoint carries."""
    if isinstance(checkpoint, GGUF):
        checkpoint.require_model()
        return tokenizer_from_gguf(checkpoint.metadata, checkpoint.path)
    return tokenizer_from_hf(checkpoint.path)


def load_tokenizer(path: "str | os.PathLike") -> Tokenizer:
    """Return the Tokenizer of a GGUF file, a vocabulary-only one too, or of an HF directory,
    which a safetensors file in it may stand for."""
    path = check_path(path)
    if path.endswith(".safetensors"):
        path = os.path.dirname(path) or "."
    if os.path.isdir(path):
        return tokenizer_from_hf(path)
    return tokenizer_of(GGUF(path))


# 3.6 Chat templates.  A model is trained on conversations written out in one exact form, and
# its file carries that form as a program in Jinja, the language of web pages: text, in which
# {{ an expression }} is replaced by its value and {% a statement %} is followed.
#
#   source -> tokens -> a tree of functions -> text, with the messages filled in -> ids
#
# Every expression becomes a function of a scope, the names that are known; every statement one
# of a scope and the list that the text is written to.  A template is a stranger's program.  So
# its values are those of JSON and functions made here, never an object of Python with
# attributes; texts and numbers have a greatest size; and each statement, and each piece of a
# long text, costs a step of a limited number.
# Not here: inheritance, includes, call blocks and filters that only web pages need; they are
# refused by name.  Source: Jinja 3.1, "Template Designer Documentation", with trim_blocks and
# lstrip_blocks, as transformers sets it up (utils/chat_template_utils.py).

TEMPLATE_STEPS = 1_000_000
TEMPLATE_CHARS = 1 << 23                # of any text, and of all that is written
TEMPLATE_CHARS_PER_STEP = 512
_TEMPLATE_BITS = 4096                   # of any whole number
_TEMPLATE_RANGE = 100_000
_TEMPLATE_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError,
                    RecursionError)


class _LoopControl(Exception):
    """break and continue."""


class _TemplateFault(Exception):
    """What is wrong with the text of a template, and at which offset."""


class _Namespace(dict):
    """What namespace(...) makes: the one value that a template may change, ns.x = 1."""


class _Undefined:
    """What a name is that nobody has set: empty text, false, no items.  More is an error."""

    def __init__(self, what):
        self.what = what

    def __len__(self):                          # so it is false, too
        return 0

    def __iter__(self):
        return iter(())

    def __eq__(self, other):
        return isinstance(other, _Undefined)

    def __hash__(self):
        return 0

    def __repr__(self):
        return "Undefined"                      # as in a list that is shown


class _Scope:
    """Names and their values, and the scope around.  Only `for` and `macro` open one."""

    def __init__(self, work, values, around=None):
        self.work, self.values, self.around = work, values, around

    def get(self, name):
        scope = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.around
        return _Undefined(_quote(name))


class _Work:
    """One rendering: what it may still cost, and the operations on values.

    hide: done to text that is made of values, as in Tokenizer.hide   now: struct_time or None
    """

    def __init__(self, hide, now):
        self.left, self.hide, self.now = TEMPLATE_STEPS, hide, now

    def spend(self, n_steps=1):
        self.left -= n_steps
        if self.left < 0:
            raise KshipraError("the model's chat template has not ended after "
                               f"{TEMPLATE_STEPS} steps; give another one")

    def sized(self, n):
        """Refuse a text or list of n before it is made; larger ones cost more steps."""
        if n > TEMPLATE_CHARS:
            raise ValueError(f"a text or list of {n} is too large")
        self.spend(n // TEMPLATE_CHARS_PER_STEP)

    def plain(self, value):
        """Return a copy that Python's own functions may see: JSON, with nothing hidden in it."""
        self.spend()
        if isinstance(value, str):
            self.sized(len(value))
            return value.replace(_HIDE, "")
        if isinstance(value, (list, tuple)):
            return type(value)(self.plain(item) for item in value)
        if isinstance(value, dict) and not isinstance(value, _Namespace):
            return {self.plain(key): self.plain(item) for key, item in value.items()}
        if value is None or isinstance(value, (bool, int, float, _Undefined)):
            return value
        raise TypeError("a function is no value to be shown")

    def text(self, value):
        """Return a value as text."""
        if isinstance(value, str):
            return value
        return "" if isinstance(value, _Undefined) else self.hide(str(self.plain(value)))

    @staticmethod
    def defined(*values):
        for value in values:
            if isinstance(value, _Undefined):
                raise TypeError(f"{value.what} is undefined")

    def attribute(self, value, name):
        """value.name: for a dict first its methods, then its items."""
        for kind, methods in _METHODS.items():
            if isinstance(value, kind) and not isinstance(value, _Namespace) and name in methods:
                return functools.partial(_call_method, value, name)
        return self.item(value, name)

    def item(self, value, key):
        """value[key]; what is not there is undefined."""
        self.defined(value)
        if isinstance(value, (str, list, tuple)) and isinstance(key, slice):
            self.sized(len(value))
            return value[key]
        if isinstance(value, (str, list, tuple)) and isinstance(key, int):
            if -len(value) <= key < len(value):
                return value[key]
        elif isinstance(value, dict) and not isinstance(key, (list, dict)) and key in value:
            return value[key]
        return _Undefined(f"element {_quote(key)} of a {type(value).__name__}")

    def call(self, function, arguments):
        self.defined(function)
        if not callable(function):
            raise TypeError(f"a {type(function).__name__} is no function")
        self.spend()
        return function(self, *arguments[0], **arguments[1])

    def filter(self, function, value, arguments):
        """value|function(...)"""
        if isinstance(value, str):
            self.sized(len(value))
        elif isinstance(value, (list, tuple, dict)):
            self.spend(len(value))
        return function(self, value, *arguments[0], **arguments[1])

    def operate(self, op, a, b):
        """Return a op b, if it is not too large."""
        if op == "~":
            op, a, b = "+", self.text(a), self.text(b)
        self.defined(a, b)
        n_a, n_b = (len(v) if isinstance(v, (str, list, tuple)) else None for v in (a, b))
        if n_a is None and n_b is None:
            n_bits = sum(v.bit_length() for v in (a, b) if isinstance(v, int))
            if isinstance(a, int) and isinstance(b, int) and op == "**":
                n_bits = a.bit_length() * max(b, 1)
            if n_bits > _TEMPLATE_BITS:
                raise ValueError("a number is too large")
        elif op == "*" and (n_a is None or n_b is None):
            self.sized((n_a or n_b or 0) * max(0, *(v for v in (a, b) if isinstance(v, int))))
        elif op == "+" and n_a is not None and n_b is not None:
            self.sized(n_a + n_b)
        else:                                   # so that "%" never formats
            raise TypeError(f"{op} of a {type(a).__name__} and a {type(b).__name__}")
        return _OPERATORS[op](a, b)

    def compare(self, op, a, b):
        for value in (a, b):
            if isinstance(value, (str, list, tuple, dict)):
                self.plain(value)               # for its cost: lists in lists could take for ever
        if op[0] in "<>":
            self.defined(a, b)
        return _OPERATORS[op](a, b)


_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
              "//": operator.floordiv, "%": operator.mod, "**": operator.pow,
              "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
              ">": operator.gt, ">=": operator.ge, "in": lambda a, b: a in b,
              "not in": lambda a, b: a not in b}
_METHODS = {
    str: {"strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "startswith", "endswith",
          "upper", "lower", "title", "capitalize", "find", "rfind", "index", "count", "replace",
          "join", "isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower"},
    dict: {"items", "keys", "values", "get"},
    (list, tuple): {"index", "count"}}


def _call_method(value, name, work, *args, **named):
    """Call a method of a value of JSON."""
    if name == "replace":                       # these two could make too much
        return _replace(work, value, *args)
    if name == "join":
        return _join(work, *args, between=value)
    work.sized(len(value))
    found = getattr(value, name)(*args, **named)
    return [*found] if name in ("items", "keys", "values") else found


# Filters, value|name(...), and tests, value is name(...): functions of a _Work and the value.

def _replace(work, value, old, new, count=-1):
    value, old, new = map(work.text, (value, old, new))
    n_times = value.count(old) if count is None or count < 0 else min(value.count(old), count)
    work.sized(len(value) + n_times * len(new))
    return value.replace(old, new, n_times)


def _join(work, value, between="", attribute=None):
    between = work.text(between)
    parts = [work.text(part if attribute is None else _path(work, part, attribute))
             for part in value]
    work.sized(sum(map(len, parts)) + len(parts) * len(between))
    return between.join(parts)


def _indent(work, value, width=4, first=False, blank=False):
    lines = (work.text(value) + "\n").splitlines()
    margin = width if isinstance(width, str) else " " * min(width, 1000)
    work.sized(sum(map(len, lines)) + len(lines) * len(margin))
    return "\n".join([margin + line if (line or blank) and (i or first) else line
                      for i, line in enumerate(lines)])


def _tojson(work, value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    if indent is not None and not 0 <= indent <= 100:
        raise ValueError(f"an indent of {indent}")
    return work.hide(json.dumps(work.plain(value), ensure_ascii=ensure_ascii, indent=indent,
                                separators=separators, sort_keys=sort_keys))


def _path(work, value, path):
    """Return the item at "a.b.0" in value."""
    for key in path.split(".") if isinstance(path, str) else [path]:
        value = work.item(value, int(key) if isinstance(key, str) and key.isdigit() else key)
    return value


def _map(work, value, name=None, *args, attribute=None, default=None):
    if attribute is None:
        return [TEMPLATE_FILTERS[name](work, item, *args) for item in value or ()]
    found = [_path(work, item, attribute) for item in value or ()]
    return [default if isinstance(v, _Undefined) and default is not None else v for v in found]


def _picked(wanted, by_attribute):
    """Return select, reject, selectattr or rejectattr: items for which a test holds, or not."""
    def pick(work, value, *args):
        path, args = (args[0], args[1:]) if by_attribute else (None, args)
        test = TEMPLATE_TESTS[args[0]] if args else lambda work, v: bool(v)
        return [item for item in value or () if wanted == bool(test(
            work, _path(work, item, path) if by_attribute else item, *args[1:]))]
    return pick


def _sort_key(work, case_sensitive, attribute):
    def key(item):
        value = item if attribute is None else _path(work, item, attribute)
        return value.lower() if isinstance(value, str) and not case_sensitive else value
    return key


def _sort(work, value, reverse=False, case_sensitive=False, attribute=None):
    return sorted(value, key=_sort_key(work, case_sensitive, attribute), reverse=bool(reverse))


def _unique(work, value, case_sensitive=False, attribute=None):
    found = {}
    for item in value:
        found.setdefault(_sort_key(work, case_sensitive, attribute)(item), item)
    return [*found.values()]


def _number(kind):
    """Return the filter int or float: 0 for what is none."""
    def convert(work, value, default=kind(0)):
        try:
            return kind(value) if not isinstance(value, str) or len(value) < 1000 else default
        except (TypeError, ValueError, OverflowError):
            return default
    return convert


def _items(work, value):
    if not isinstance(value, (dict, _Undefined)):
        raise TypeError(f"items of a {type(value).__name__}")
    return [*value.items()] if isinstance(value, dict) else []


def _default(work, value, other="", boolean=False):
    return other if isinstance(value, _Undefined) or (boolean and not value) else value


def _of_text(function):
    return lambda work, value, *args: function(work.text(value), *args)


def _of_value(function):
    return lambda work, *args: function(*args)


TEMPLATE_FILTERS = {
    "replace": _replace, "join": _join, "indent": _indent, "tojson": _tojson, "map": _map,
    "select": _picked(True, False), "reject": _picked(False, False),
    "selectattr": _picked(True, True), "rejectattr": _picked(False, True),
    "sort": _sort, "unique": _unique, "int": _number(int), "float": _number(float),
    "items": _items, "default": _default, "d": _default,
    "string": _of_text(str), "safe": _of_text(str), "trim": _of_text(str.strip),
    "upper": _of_text(str.upper), "lower": _of_text(str.lower), "title": _of_text(str.title),
    "capitalize": _of_text(str.capitalize), "length": _of_value(len), "count": _of_value(len),
    "list": lambda work, value: work.spend(len(value)) or [*value],
    "abs": _of_value(abs), "sum": _of_value(sum),
    "round": _of_value(lambda value, precision=0: round(value, precision)),
    "reverse": _of_value(lambda value: value[::-1]),
    "first": _of_value(lambda value: next(iter(value), _Undefined("the first of nothing"))),
    "last": _of_value(lambda value: next(iter([*value][-1:]), _Undefined("the last of nothing"))),
    "dictsort": _of_value(lambda value: sorted(value.items(), key=lambda pair: pair[0].lower()))}

TEMPLATE_TESTS = {name: _of_value(test) for name, test in {
    "defined": lambda v: not isinstance(v, _Undefined),
    "undefined": lambda v: isinstance(v, _Undefined),
    "none": lambda v: v is None,
    "true": lambda v: v is True,
    "false": lambda v: v is False,
    "boolean": lambda v: isinstance(v, bool),
    "string": lambda v: isinstance(v, str),
    "mapping": lambda v: isinstance(v, dict),
    "iterable": lambda v: hasattr(v, "__iter__"),
    "sequence": lambda v: hasattr(v, "__len__"),
    "number": lambda v: isinstance(v, (int, float)),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "float": lambda v: isinstance(v, float),
    "callable": callable,
    "odd": lambda v: v % 2 == 1,
    "even": lambda v: v % 2 == 0,
    "divisibleby": lambda v, n: v % n == 0}.items()}


def _comparison_test(op):
    return lambda work, value, other: work.compare(op, value, other)


TEMPLATE_TESTS.update((name, _comparison_test(op)) for op, names in (
    ("==", "equalto eq sameas =="), ("!=", "ne !="), ("<", "lt lessthan <"), ("<=", "le <="),
    (">", "gt greaterthan >"), (">=", "ge >="), ("in", "in")) for name in names.split())


def _raise_exception(work, message):
    raise KshipraError(f"the model's chat template refuses: {_shown(work.text(message))}")


def _strftime_now(work, form):
    if not re.fullmatch("(?:[^%]|%-?[A-Za-z%]){0,200}", form):
        raise ValueError(f"{_quote(form)} is no form of a date")
    return time.strftime(form, work.now or time.localtime())


def _range(work, *args):
    if len(range(*args)) > _TEMPLATE_RANGE:
        raise ValueError(f"a range of more than {_TEMPLATE_RANGE}")
    return [*range(*args)]


_TEMPLATE_GLOBALS = {
    "raise_exception": _raise_exception, "strftime_now": _strftime_now, "range": _range,
    "namespace": lambda work, *args, **named: _Namespace(*args, **named),
    "dict": lambda work, *args, **named: dict(*args, **named)}


# Tokens.  Around the tags, white space is taken away: by a "-" in the tag all of it on that
# side; else, for {% %} and {# #} but not {{ }}, the spaces before the tag, if it begins its
# line, and the newline behind it.  A "+" keeps it.

_TAG = re.compile(r"\{([{%#])([-+]?)")
_TAG_END = {"{": re.compile(r"-\}\}\s*|\}\}"), "%": re.compile(r"-%\}\s*|\+%\}|%\}\n?"),
            "#": re.compile(r".*?(?:-#\}\s*|\+#\}|#\}\n?)", re.DOTALL)}
_RAW_TAG = re.compile(r"\{%[-+]?\s*raw\s*(?:-%\}\s*|%\})")
_RAW_END = re.compile(r"\{%([-+]?)\s*endraw\s*(?:-%\}\s*|\+%\}|%\}\n?)")
_TEMPLATE_TOKEN = re.compile(r"""
    (?P<number> \d[\d_]{0,99}(?:\.\d+)?(?:[eE][-+]?\d+)? ) | (?P<name> [^\W\d]\w* )
    | (?P<string> '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" ) | (?P<space> \s+ )
    | (?P<op> \*\*|//|==|!=|<=|>=|[-+*/%~<>=()\[\]{}.,:|] )""", re.VERBOSE | re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}"
                     r"|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0",
            "\n": "", "\\": "\\", "'": "'", '"': '"'}


def _unescaped(match):
    """Return what a backslash and what follows mean in a string, as in Python."""
    found = match[1]
    return chr(int(found[1:], 16)) if len(found) > 1 else _ESCAPED.get(found, match[0])


def _template_tokens(source):
    """Return [(kind, value, offset)]: "data", "{" and "%" for tags, "end", number, name, ...

    "Hi {{ x }}" gives data "Hi ", "{", name "x", "end".
    """
    out, pos, at_line_start = [], 0, True

    def data(text, sign, of_line=True):
        if sign == "-":
            text = text.rstrip()
        elif sign != "+" and of_line:
            start = text.rfind("\n") + 1
            if (start or at_line_start) and text[start:].isspace():
                text = text[:start]
        if text:
            out.append(("data", text, pos))

    while True:
        tag = _TAG.search(source, pos)
        if not tag:
            data(source[pos:], "+")
            return out + 2 * [("end of file", None, len(source))]
        kind, sign = tag.groups()
        data(source[pos:tag.start()], sign, kind != "{")
        raw = _RAW_TAG.match(source, tag.start())
        if raw or kind == "#":
            end = _RAW_END.search(source, raw.end()) if raw else _TAG_END[kind].match(
                source, tag.end())
            if not end:
                raise _TemplateFault("a comment or raw text does not end", tag.start())
            if raw:
                at_line_start = source[raw.end() - 1] == "\n"
                data(source[raw.end():end.start()], end[1])
            pos = end.end()
        else:
            out.append((kind, None, tag.start()))
            pos = _tag_tokens(source, tag.end(), _TAG_END[kind], out)
        at_line_start = source[pos - 1] == "\n"


def _tag_tokens(source, pos, ending, out):
    """Append the tokens of a tag and "end" to out; return where the text goes on."""
    depth = 0
    while True:
        end = ending.match(source, pos) if depth == 0 else None
        if end:
            out.append(("end", None, pos))
            return end.end()
        token = _TEMPLATE_TOKEN.match(source, pos)
        if not token:
            raise _TemplateFault(f"{_quote(source[pos:pos + 10])} is not understood", pos)
        kind, value = token.lastgroup, token[0]
        if kind == "string":
            value = _ESCAPE.sub(_unescaped, value[1:-1])
        elif kind == "number":
            value = float(value) if re.search("[.eE]", value) else int(value)
        elif kind == "op":
            depth += (value in "([{") - (value in ")]}")
        if kind != "space":
            out.append((kind, value, pos))
        pos = token.end()


# From tokens to functions.  A leaf is constant(value); what has parts, which are functions of
# a scope too, is doing(method of _Work, parts).

def _constant(value):
    return lambda scope: value


def _doing(method, *parts):
    return lambda scope: method(scope.work, *[part(scope) for part in parts])


class _TemplateParser:
    """Tokens to functions.  A method named after a rule of the grammar reads what it names.

    reads: the names that are looked up anywhere
    """

    def __init__(self, source):
        self.source, self.reads, self.n_loops = source, set(), 0
        self.tokens, self.at = _template_tokens(source), 0

    def fail(self, message):
        raise _TemplateFault(message, self.tokens[self.at][2])

    def peek(self, kind, *values):
        found = self.tokens[self.at]
        return found[0] == kind and (not values or found[1] in values)

    def take(self, kind, *values):
        """Step over a token and return its value, if it is such a one, else None."""
        if not self.peek(kind, *values):
            return None
        value = self.tokens[self.at][1]
        self.at += 1
        return True if value is None else value

    def need(self, kind, *values):
        found = self.take(kind, *values)
        if found is None:
            self.fail(f"{' or '.join(map(repr, values)) or kind} is needed, but "
                      f"{_quote(self.tokens[self.at][1] or self.tokens[self.at][0])} was found")
        return found

    # Statements.

    def body(self, *ends):
        """Read up to the first {% end %} of ends -> (function of scope and out, which end)."""
        nodes = []
        while True:
            offset = self.tokens[self.at][2]
            if self.peek("data") or self.take("{"):
                data = self.take("data")
                value = _constant(data) if data else self.expression()
                data or self.need("end")
                nodes.append((offset, functools.partial(self.write, value)))
            elif self.take("%"):
                name = self.need("name")
                if name in ends:
                    return self.sequence(nodes), name
                if name not in _STATEMENTS:
                    self.at -= 1
                    self.fail(f"the statement {_quote(name)} is not known here")
                nodes.append((offset, _STATEMENTS[name](self)))
            else:
                self.need("end of file") if not ends else self.fail(f"{ends[-1]} is missing")
                return self.sequence(nodes), None

    def block(self, end):
        """Read %} ... {% end %}."""
        self.need("end")
        body, _ = self.body(end)
        self.need("end")
        return body

    @staticmethod
    def write(value, scope, out):
        out.append(scope.work.text(value(scope)))

    @staticmethod
    def text_of(body):
        """Return the function of a scope that gives what body writes."""
        def value(scope):
            out = []
            body(scope, out)
            scope.work.sized(sum(map(len, out)))
            return "".join(out)
        return value

    def sequence(self, nodes):
        """Return the statement that does these in turn, and says in which line one failed."""
        def run(scope, out):
            for offset, node in nodes:
                scope.work.spend()
                try:
                    node(scope, out)
                except KshipraError:
                    raise
                except _TEMPLATE_ERRORS as error:
                    nested = isinstance(error, RecursionError)
                    raise _template_error("it is nested too deep" if nested else error.args[0],
                                         self.source, offset) from None
        return run

    def if_(self):
        """{% if a %} ... {% elif b %} ... {% else %} ... {% endif %}"""
        branches, end = [], "elif"
        while end == "elif":
            test = self.expression()
            self.need("end")
            body, end = self.body("elif", "else", "endif")
            branches.append((test, body))
        if end == "else":
            branches.append((_constant(True), self.block("endif")))
        else:
            self.need("end")

        def run(scope, out):
            for test, body in branches:
                if test(scope):
                    return body(scope, out)
        return run

    def for_(self):
        """{% for x, y in items if test %} ... {% else %} ... {% endfor %}"""
        names = self.names()
        self.need("name", "in")
        items = self.binary(0)
        test = self.expression() if self.take("name", "if") else _constant(True)
        self.need("end")
        self.n_loops += 1
        body, end = self.body("else", "endfor")
        self.n_loops -= 1
        otherwise = self.block("endfor") if end == "else" else self.need("end") and None

        def run(scope, out):
            values = [value for value in items(scope) if scope.work.spend() or test(
                _Scope(scope.work, self.unpack(names, value), scope))]
            for i, value in enumerate(values):
                inner = {**self.unpack(names, value), "loop": _loop_variable(i, values)}
                try:
                    body(_Scope(scope.work, inner, scope), out)
                except _LoopControl as control:
                    if control.args[0] == "break":
                        break
            if not values and otherwise:
                otherwise(scope, out)
        return run

    def names(self):
        """Read x or x, y or (x, y)."""
        bracket = self.take("op", "(")
        names = [self.need("name")]
        while self.take("op", ","):
            names.append(self.need("name"))
        bracket and self.need("op", ")")
        return names

    @staticmethod
    def unpack(names, value):
        if len(names) == 1:
            return {names[0]: value}
        if len(value) != len(names):
            raise ValueError(f"{len(value)} values for {len(names)} names")
        return dict(zip(names, value))

    def set_(self):
        """{% set x = a %}, {% set ns.x = a %} or {% set x %} ... {% endset %}"""
        names = self.names()
        field = self.need("name") if self.take("op", ".") else None
        if self.take("op", "="):
            value = self.expression()
            self.need("end")
        else:
            value = self.text_of(self.block("endset"))

        def run(scope, out):
            if field is None:
                return scope.values.update(self.unpack(names, value(scope)))
            space = scope.get(names[0])
            if not isinstance(space, _Namespace):
                raise TypeError(f"{_quote(names[0])} is no namespace, so it cannot be changed")
            space[field] = value(scope)
        return run

    def macro(self):
        """{% macro name(a, b=1) %} ... {% endmacro %}: a function that gives text."""
        name, parameters = self.need("name"), {}
        self.need("op", "(")
        while not self.take("op", ")"):
            parameter = self.need("name")
            parameters[parameter] = self.expression() if self.take("op", "=") else _constant(
                _Undefined(_quote(parameter)))
            self.peek("op", ")") or self.need("op", ",")
        n_loops, self.n_loops = self.n_loops, 0
        text = self.text_of(self.block("endmacro"))
        self.n_loops = n_loops

        def run(scope, out):
            def macro(work, *args, **named):
                if len(args) > len(parameters) or named.keys() - parameters.keys():
                    raise TypeError(f"macro {_quote(name)} has no such argument")
                inner = _Scope(work, {**dict(zip(parameters, args)), **named}, scope)
                for parameter, default in parameters.items():
                    if parameter not in inner.values:
                        inner.values[parameter] = default(inner)
                return text(inner)
            scope.values[name] = macro
        return run

    def control(self):
        """{% break %} or {% continue %}"""
        name = self.tokens[self.at - 1][1]
        self.n_loops or self.fail(f"{name} outside a loop")
        self.need("end")

        def run(scope, out):
            raise _LoopControl(name)
        return run

    # Expressions, from what binds least to what binds most.

    def expression(self):
        """binary [if binary [else expression]]"""
        value = self.binary(0)
        while self.take("name", "if"):
            value = self.choice(value, self.binary(0), self.expression() if self.take(
                "name", "else") else _constant(_Undefined("the other case of an if")))
        return value

    @staticmethod
    def choice(yes, test, no):
        return lambda scope: yes(scope) if test(scope) else no(scope)

    LEVELS = (("or",), ("and",), (), ("+", "-"), ("~",), ("*", "/", "//", "%"), ("**",))

    def binary(self, level):
        """The operators of LEVELS, those further right within those further left."""
        if level == len(self.LEVELS):
            return self.unary()
        if not self.LEVELS[level]:
            return self.comparison(level + 1)
        value = self.binary(level + 1)
        while self.peek("name" if level < 2 else "op", *self.LEVELS[level]):
            op = self.tokens[self.at][1]
            self.at += 1
            other = self.binary(level + 1)
            value = self.lazily(op == "or", value, other) if level < 2 else _doing(
                _Work.operate, _constant(op), value, other)
        return value

    @staticmethod
    def lazily(enough, a, b):
        """Return a's value if it says enough, else b's."""
        def value(scope):
            found = a(scope)
            return found if bool(found) == enough else b(scope)
        return value

    def comparison(self, level):
        """[not ...] binary < binary <= binary ..., and "in" and "not in" alike"""
        if self.take("name", "not"):
            value = self.comparison(level)
            return lambda scope: not value(scope)
        first, others = self.binary(level), []
        while True:
            op = self.take("op", "==", "!=", "<", "<=", ">", ">=") or self.take("name", "in")
            if not op and self.peek("name", "not") and self.tokens[self.at + 1][1] == "in":
                self.at += 2
                op = "not in"
            if not op:
                break
            others.append((op, self.binary(level)))

        def value(scope):
            left = first(scope)
            for op, other in others:
                right = other(scope)
                if not scope.work.compare(op, left, right):
                    return False
                left = right
            return True
        return value if others else first

    def unary(self, filtered=True):
        """[- or +] primary, its parts, its filters and tests"""
        op = self.take("op", "-", "+")
        value = _doing(_Work.operate, _constant(op), _constant(0), self.unary(False)) if op else (
            self.parts(self.primary()))
        while filtered:
            if self.take("op", "|"):
                function = _constant(self.known(TEMPLATE_FILTERS, "filter"))
                value = _doing(_Work.filter, function, value, self.arguments(optional=True))
            elif self.take("name", "is"):
                value = self.test(value)
            else:
                break
        return value

    def parts(self, value):
        """value.name, value[key], value[a:b:c] and value(...)"""
        while True:
            if self.take("op", "."):
                value = _doing(_Work.attribute, value, _constant(self.need("name")))
            elif self.take("op", "["):
                value = _doing(_Work.item, value, self.key())
            elif self.peek("op", "("):
                value = _doing(_Work.call, value, self.arguments())
            else:
                return value

    def key(self):
        """a or a:b:c, up to the bracket"""
        bounds, n_colons = [None, None, None], 0
        while not self.take("op", "]"):
            if n_colons < 2 and self.take("op", ":"):
                n_colons += 1
            else:
                bounds[n_colons] = self.expression()
        if not n_colons:
            return bounds[0] or self.fail("a key is needed")
        return lambda scope: slice(*[bound and bound(scope) for bound in bounds])

    def arguments(self, optional=False):
        """(a, b, name=c) -> function of a scope that returns ([a, b], {"name": c})"""
        unnamed, named = [], {}
        if not optional or self.peek("op", "("):
            self.need("op", "(")
            while not self.take("op", ")"):
                if self.peek("name") and self.tokens[self.at + 1][1] == "=":
                    name = self.need("name")
                    self.need("op", "=")
                    named[name] = self.expression()
                else:
                    unnamed.append(self.expression())
                self.peek("op", ")") or self.need("op", ",")
        return lambda scope: ([part(scope) for part in unnamed],
                              {name: part(scope) for name, part in named.items()})

    def known(self, table, what):
        """Read the name of a filter or test and return its function."""
        name = self.need("name")
        if name not in table:
            self.at -= 1
            self.fail(f"the {what} {_quote(name)} is not known here")
        return table[name]

    def test(self, value):
        """[not] name, name(...) or name operand, behind "is" """
        inverse = bool(self.take("name", "not"))
        function = self.known(TEMPLATE_TESTS, "test")
        if self.peek("string") or self.peek("number") or self.peek("op", "[", "{") or (
                self.peek("name") and not self.peek("name", "else", "or", "and", "is", "if", "in",
                                                    "not")):
            operand = self.parts(self.primary())
            return lambda scope: function(scope.work, value(scope), operand(scope)) != inverse
        arguments = self.arguments(optional=True)
        return lambda scope: function(scope.work, value(scope), *arguments(scope)[0]) != inverse

    CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "none": None,
                 "None": None}

    def primary(self):
        """A name, a constant, (a), (a, b), [a, b] or {a: b}"""
        if self.peek("number"):
            return _constant(self.take("number"))
        if self.peek("string"):
            text = self.take("string")
            while self.peek("string"):
                text += self.take("string")
            return _constant(text)
        if self.peek("name"):
            name = self.take("name")
            if name in self.CONSTANTS:
                return _constant(self.CONSTANTS[name])
            self.reads.add(name)
            return lambda scope: scope.get(name)
        if self.take("op", "{"):
            pairs, _ = self.list_of("}", lambda: (self.expression(), self.need("op", ":"),
                                                  self.expression()))
            return lambda scope: {key(scope): item(scope) for key, _, item in pairs}
        kind = tuple if self.need("op", "(", "[") == "(" else list
        items, comma = self.list_of(")" if kind is tuple else "]", self.expression)
        if kind is tuple and len(items) == 1 and not comma:
            return items[0]
        return lambda scope: kind([item(scope) for item in items])

    def list_of(self, closing, read):
        """Return (what read() gives for each part, whether a comma stood last)."""
        items, comma = [], False
        while not self.take("op", closing):
            items.append(read())
            comma = bool(self.take("op", ","))
            comma or self.peek("op", closing) or self.need("op", ",")
        return items, comma


_STATEMENTS = {"if": _TemplateParser.if_, "for": _TemplateParser.for_, "set": _TemplateParser.set_,
               "macro": _TemplateParser.macro, "break": _TemplateParser.control,
               "continue": _TemplateParser.control,
               # what the model wrote: a mark for those who train one
               "generation": lambda parser: parser.block("endgeneration")}


def _loop_variable(i, values):
    """Return the variable `loop` in round i over values."""
    n = len(values)
    loop = {"index": i + 1, "index0": i, "revindex": n - i, "revindex0": n - i - 1, "length": n,
            "first": i == 0, "last": i == n - 1,
            "cycle": lambda work, *args: args[i % len(args)]}
    loop.update({name: values[at] for name, at in (("previtem", i - 1), ("nextitem", i + 1))
                 if 0 <= at < n})
    return loop


def _template_error(what, source, offset):
    line = source.count("\n", 0, offset) + 1
    return KshipraError(f"the model's chat template, line {line}: {_shown(str(what))}")


class ChatTemplate:
    """A template, read once.

    source: its text   reads: the names that it looks up, so an argument that is not among them
    changes nothing
    """

    def __init__(self, source: str):
        if not isinstance(source, str) or len(source) > 1 << 20:
            raise KshipraError(f"chat template: {_quote(source)} is no text of at most 1 MiB")
        source = re.sub("\r\n?", "\n", source)
        source = source[:-1] if source.endswith("\n") else source
        try:
            parser = _TemplateParser(source)
            text = parser.text_of(parser.body()[0])
        except _TemplateFault as fault:
            raise _template_error(fault.args[0], source, fault.args[1]) from None
        except RecursionError:
            raise _template_error("it is nested too deep", source, 0) from None
        self._run = parser.sequence([(0, functools.partial(parser.write, text))])
        self.source, self.reads = source, parser.reads

    def render(self, variables: dict, hide=str, now=None) -> str:
        """Return the text.  hide: done to text made of values, as in Tokenizer.hide
        now: time.struct_time for strftime_now, None for the present"""
        out = []
        self._run(_Scope(_Work(hide, now), {**_TEMPLATE_GLOBALS, **variables}), out)
        return out[0]


def _check_messages(messages):
    """Refuse what is no conversation: a list of {"role": word, ...}, all of it JSON."""
    if not isinstance(messages, (list, tuple)):
        raise KshipraError(f"messages: a list is needed, but {_quote(messages)} was found")
    for i, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or not re.fullmatch(r"[\w.-]{1,64}", role):
            raise KshipraError(f"messages[{i}]: an object with a role, such as user or assistant, "
                               f"is needed, but {_quote(message)} was found")


def _hidden(value, hide, where):
    """Return a copy of a value of JSON with every text in it given to hide."""
    if isinstance(value, str):
        return hide(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_hidden(item, hide, where) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {hide(key): _hidden(item, hide, where) for key, item in value.items()}
    raise KshipraError(f"{where}: {type(value).__name__} is no type of JSON")


def render_chat(tokenizer, messages, add_generation_prompt=True, tools=None, **variables):
    """Return a conversation as the model's template writes it, with the marks of `hide` in it.

    Texts in messages, tools and variables spell no control token; those of the template do.
    """
    _check_messages(messages)
    template = tokenizer.template("tool_use" if tools else "default")
    given = {"messages": list(messages), "tools": tools, **variables}
    given = {name: value for name, value in given.items() if value is not None}
    unread = [name for name in given if name not in template.reads]
    if unread:
        raise KshipraError(f"{', '.join(unread)}: the model's chat template never reads this, so "
                           "it would change nothing; leave it out")
    try:
        given = {name: _hidden(value, tokenizer.hide, name) for name, value in given.items()}
    except RecursionError:
        raise KshipraError("messages: nested too deep") from None
    ends = {name: "" if token is None else tokenizer.vocabulary.text(token) for name, token in
            (("bos_token", tokenizer.bos_id), ("eos_token", tokenizer.eos_id))}
    return template.render({"add_generation_prompt": bool(add_generation_prompt), **ends, **given},
                           tokenizer.hide)


# ---------------------------------------------------------------------------------------
# 4. Operations
#
# The operations that a transformer is made of, in plain Python.  They are the definition
# of right: machine code has to give the same bits, so each step says how it rounds.
#
# The one idea: every float operation rounds once to float32, and every sum has one stated
# order.  Python computes in double; a double result of + - * / or sqrt rounded to float32
# is what float32 hardware gives, since 53 >= 2 * 24 + 2 bits (Figueroa 1995, "When is
# double rounding innocuous?").  Rounding in bulk is free: array('f', values) does it.
#
# An activation is a list of R rows, each an array('f').  Operations return new rows.
# Three matmuls follow one another: naive, as in a textbook; tiled, which unpacks a weight
# once for all rows; packed, which makes one Python integer hold a whole column of weights.

def f32(x):
    """Return x rounded to float32, as a Python float."""
    return array("f", (x,))[0]


def f32_add(x, y):
    """Return x + y, element by element, each sum rounded to float32."""
    return array("f", map(add, x, y))


def f32_sub(x, y):
    """Return x - y, element by element, each difference rounded to float32."""
    return array("f", map(sub, x, y))


def f32_mul(x, y):
    """Return x * y, element by element, each product rounded to float32."""
    return array("f", map(mul, x, y))


def f32_scale(x, c):
    """Return x * c for a number c, each product rounded to float32."""
    return array("f", [v * c for v in x])


def tree_sum(lanes):
    """Return the sum of eight lanes, added in pairs: the order of two NEON or AVX2 registers."""
    a, b, c, d, e, f, g, h = lanes
    a, b, c, d = array("f", (a + b, c + d, e + f, g + h))
    a, b = array("f", (a + b, c + d))
    return f32(a + b)


def tree_sum_rows(lanes):
    """Return tree_sum element by element: of eight arrays (n,) -> array('f') (n,)."""
    a, b, c, d, e, f, g, h = lanes
    half = f32_add(f32_add(a, b), f32_add(c, d))
    return f32_add(half, f32_add(f32_add(e, f), f32_add(g, h)))


def lane_sum(values):
    """Return the sum of values: element i is added to lane i mod 8, then the lanes by a tree.

    The order is that of a loop over 8-wide vectors.  A short last vector adds nothing to
    the lanes it lacks (the same bits as adding zeros, since no lane can hold -0.0).
    """
    lanes = array("f", bytes(32))
    full = len(values) & ~7
    for i in range(0, full, 8):
        lanes = f32_add(lanes, values[i:i + 8])
    for lane, v in enumerate(values[full:]):
        lanes[lane] += v
    return tree_sum(lanes)


NOT_FINITE = ("an activation is infinite or not a number; the model's weights are damaged or its "
              "type cannot hold them, so fetch it again")


def check_finite(values):
    """Raise KshipraError if one of the values is infinite or not a number."""
    if not math.isfinite(sum(values)):          # of doubles, which f32s cannot fill
        raise KshipraError(NOT_FINITE)


# 4.1 Functions of one number.  libm differs between systems in the last bit, so exp is our
# own: x = n ln 2 + r, exp(r) by a polynomial, times 2**n.  ln 2 is split in two parts, the
# first with so few bits that n * LN2_HI is exact (Cody and Waite 1980; coefficients of
# Moshier's Cephes, expf.c).

LOG2_E = f32(1.44269504)
LN2_HI, LN2_LO = 0.693359375, f32(-2.12194440e-4)
EXP_POLY = array("f", (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3,
                       4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1))
EXP_MIN, EXP_MAX = -87.0, 88.0          # exp stays a normal float32 inside these
POWERS_OF_2 = [2.0 ** n for n in range(-126, 128)]


def exp(x):
    """Return e to the power of each element of x, rounded and clamped to EXP_MIN..EXP_MAX.

    Raises KshipraError for what is not a number; infinities are clamped like the rest.
    """
    x = array("f", [EXP_MIN if v < EXP_MIN else EXP_MAX if v > EXP_MAX else v for v in x])
    check_finite(x)
    n = list(map(round, f32_scale(x, LOG2_E)))
    r = array("f", [v - k * LN2_HI for v, k in zip(x, n)])
    r = f32_sub(r, f32_scale(n, LN2_LO))
    p = f32_scale(r, EXP_POLY[0])
    for c in EXP_POLY[1:-1]:
        p = f32_mul(array("f", [v + c for v in p]), r)
    p = array("f", [v + EXP_POLY[-1] for v in p])
    y = f32_add(f32_mul(p, f32_mul(r, r)), r)
    y = array("f", [v + 1.0 for v in y])
    return array("f", [v * POWERS_OF_2[k + 126] for v, k in zip(y, n)])


def silu_of(x):
    """Return x / (1 + exp(-x)), element by element."""
    e = array("f", [v + 1.0 for v in exp([-v for v in x])])
    return array("f", map(operator.truediv, x, e))


GELU_CUBIC, GELU_SLOPE = f32(0.044715), f32(-2 * math.sqrt(2 / math.pi))


def gelu_of(x):
    """Return the tanh form of GELU: x / (1 + exp(-2 u)), u = sqrt(2/pi) (x + 0.044715 x^3).

    Source: Hendrycks and Gimpel (2016), "Gaussian error linear units"; the quotient is
    x/2 (1 + tanh u) written with one exp.
    """
    cube = f32_mul(f32_mul(x, x), x)
    u = f32_add(x, f32_scale(cube, GELU_CUBIC))
    e = array("f", [v + 1.0 for v in exp(f32_scale(u, GELU_SLOPE))])
    return array("f", map(operator.truediv, x, e))


ROOT_HALF = f32(math.sqrt(0.5))
# ln(erfc(z) / t) + z^2 as a polynomial in t = 1 / (1 + z/2), the highest power first: it is
# nearly straight.  Interpolated at Chebyshev's nodes; error below 2e-7 for every z >= 0.
ERFC_POLY = array("f", (0.17087278, -0.82215226, 1.4885159, -1.135204, 0.27886808,
                        -0.18628806, 0.09678419, 0.37409195, 1.0000237, -1.2655122))


def gelu_erf_of(x):
    """Return GELU itself: x times the share of a normal distribution that lies below x.

    That share is erfc(-x / sqrt 2) / 2.  With z = |x| / sqrt 2 the tail e = erfc(z) / 2 is
    t/2 exp(poly(t) - z^2); below zero it is the share, above 1 - e is.
    """
    z = f32_scale([abs(v) for v in x], ROOT_HALF)
    t = array("f", [v + 1.0 for v in f32_scale(z, 0.5)])
    t = array("f", [1.0 / v for v in t])
    p = array("f", [ERFC_POLY[0]]) * len(t)
    for c in ERFC_POLY[1:]:
        p = array("f", [v + c for v in f32_mul(p, t)])
    e = f32_mul(f32_scale(t, 0.5), exp(f32_sub(p, f32_mul(z, z))))
    share = array("f", [tail if v < 0 else 1.0 - tail for v, tail in zip(x, e)])
    return f32_mul(x, share)


SWIGLU_LIMIT, SWIGLU_SLOPE = 7.0, f32(-1.702)


def swiglu_clamped_of(gate, up):
    """Return gate / (1 + exp(-1.702 gate)) * (up + 1), gate at most 7, up between -7 and 7.

    Raises KshipraError for what is not finite, which the limits would hide.
    Source: gpt-oss, model.py, swiglu.
    """
    check_finite(gate)
    check_finite(up)
    gate = array("f", [min(v, SWIGLU_LIMIT) for v in gate])
    up = array("f", [min(max(v, -SWIGLU_LIMIT), SWIGLU_LIMIT) + 1.0 for v in up])
    e = array("f", [v + 1.0 for v in exp(f32_scale(gate, SWIGLU_SLOPE))])
    return f32_mul(array("f", map(operator.truediv, gate, e)), up)


# 4.2 Matrix times vector.  A quantized weight is an int8 code times a scale (chapter 1), so
# activations become int8 too, 32 at a time, and the inner product is one of integers, which
# is exact whatever its order.  Only the few float operations per block round:
#
#   y += float(dot(codes of w, codes of x)) * (scale of w * scale of x)
#   y += min of w * (scale of x * sum of the codes of x)             formats with a minimum

ACT_BLOCK = 32                          # activations that share a scale
TINY = 2.0 ** -100                      # a block whose largest value is below this is zero


def quantize_activations(row):
    """Return (codes, scales) with row[i] ~ codes[i] * scales[i // 32].

    row: (n_in,), a multiple of 32   -> codes: list of int in -127..127, scales: array('f')
    scale = amax / 127; code = x * (127 / amax), rounded half to even.
    Raises KshipraError when a value is not finite.
    """
    check_finite(row)
    codes, scales = [], array("f")
    for i in range(0, len(row), ACT_BLOCK):
        block = row[i:i + ACT_BLOCK]
        amax = max(max(block), -min(block))
        if amax < TINY:
            scales.append(0.0)
            codes.extend([0] * ACT_BLOCK)
        else:
            scales.append(amax / 127)
            codes.extend(map(round, f32_scale(block, f32(127 / amax))))
    return codes, scales


def dot_int(x, y):
    """Return the exact inner product of two rows of integers."""
    return sum(map(mul, x, y))


def matmul_naive(w, x):
    """Return x times w transposed, one output at a time, as the definition reads.

    w: Tensor (n_out, n_in)   x: (R, n_in)   -> (R, n_out)
    """
    n_out, n_in = w.shape
    if w.format.sub_len is None:
        rows = [w[o].floats() for o in range(n_out)]
        return [array("f", [lane_sum(f32_mul(row, xr)) for row in rows]) for xr in x]
    sub = w.format.sub_len
    out = []
    for xr in x:
        xq, x_scales = quantize_activations(xr)
        y = array("f")
        for o in range(n_out):
            codes, scales, mins = w.format.unpack(w[o].data)
            acc = 0.0
            for s in range(n_in // sub):
                a, b = s * sub, (s + 1) * sub
                x_scale = x_scales[a // ACT_BLOCK]
                dot = 0
                for i in range(a, b):
                    dot += codes[i] * xq[i]
                acc = f32(acc + f32(dot * f32(scales[s] * x_scale)))
                if mins is not None:
                    acc = f32(acc + f32(mins[s] * f32(x_scale * sum(xq[a:b]))))
            y.append(acc)
        out.append(y)
    return out


def _add_block(acc, dots, scales, mins, x_scale, x_sum):
    """Return acc plus one sub-block's products, for many outputs at once."""
    acc = f32_add(acc, f32_mul(dots, f32_scale(scales, x_scale)))
    if mins is not None:
        acc = f32_add(acc, f32_scale(mins, f32(x_scale * x_sum)))
    return acc


def matmul_columns(columns, x):
    """Return x times w transposed for float weights, all outputs at once, column by column.

    columns: array('f') (n_in, n_out), flat: w transposed   x: (R, n_in)   -> (R, n_out)
    Column i is multiplied by x[i] and added to lane i mod 8 of every output: the order of
    lane_sum, with the loop over outputs inside, where Python is quick.
    """
    out = []
    for xr in x:
        n_out = len(columns) // len(xr)
        lanes = [array("f", bytes(4 * n_out)) for _ in range(8)]
        for i, v in enumerate(xr):
            column = columns[i * n_out:(i + 1) * n_out]
            lanes[i & 7] = f32_add(lanes[i & 7], f32_scale(column, v))
        out.append(tree_sum_rows(lanes))
    return out


TILE = 64                               # weight rows unpacked at a time


def matmul_tiled(w, x):
    """Return what matmul_naive returns; a tile of weight rows is unpacked once for all of x.

    Inside a tile everything runs in bulk: a block's dot products for all of its rows, then
    each float step for all of its rows.
    """
    n_out, n_in = w.shape
    if w.format.sub_len is None:
        return matmul_columns(w.T.floats(), x)
    sub = w.format.sub_len
    n_sub = n_in // sub
    quantized = [quantize_activations(xr) for xr in x]
    out = [array("f") for _ in x]
    for first in range(0, n_out, TILE):
        codes, scales, mins = w.format.unpack(w[first:first + TILE].data)
        n_rows = len(scales) // n_sub
        for (xq, x_scales), y in zip(quantized, out):
            acc = array("f", bytes(4 * n_rows))
            for s in range(n_sub):
                x_block = xq[s * sub:(s + 1) * sub]
                dots = [dot_int(codes[i:i + sub], x_block)
                        for i in range(s * sub, n_rows * n_in, n_in)]
                acc = _add_block(acc, dots, scales[s::n_sub], mins and mins[s::n_sub],
                                 x_scales[s * sub // ACT_BLOCK], sum(x_block))
            y.extend(acc)
    return out


# The packed form.  A Python integer is a vector register as long as we like: give each of
# n_out weights of one column a 32-bit field, and `column * code` multiplies them all.  A sum
# of such products holds n_out dot products.  Fields may go below zero and borrow from their
# neighbour; adding 2**31 to every field before reading makes each one non-negative again.
#
#   column i  =  sum over outputs o of  codes[o][i] << (32 * o)

class PackedWeight:
    """A quantized weight as one integer per column, for dot products in bulk.

    w: Tensor (n_out, n_in).  Takes about 4.3 bytes a weight.
    columns[i]: the integer of column i; scales[s], mins[s]: array('f') (n_out,), sub-block s.
    """

    def __init__(self, w):
        self.n_out, n_in = w.shape
        self.sub_len = w.format.sub_len
        codes, scales, mins = w.format.unpack(w.data)
        n_sub = n_in // self.sub_len
        self.scales = [scales[s::n_sub] for s in range(n_sub)]
        self.mins = [mins[s::n_sub] for s in range(n_sub)] if mins is not None else None
        self.bias = self._fields(b"\1" * self.n_out) << 31
        offset = self._fields(b"\x80" * self.n_out)
        shifted = codes.tobytes().translate(_minus(128))    # plus 128 is the same, in a byte
        self.columns = [self._fields(shifted[i::n_in]) - offset for i in range(n_in)]

    def _fields(self, values):
        """Return the integer whose 32-bit fields are the given bytes."""
        spread = bytearray(4 * self.n_out)
        spread[::4] = values
        return int.from_bytes(spread, "little")

    def dots(self, sub_block, x_codes):
        """Return array('i') (n_out,): each output's dot product over one sub-block."""
        a = sub_block * self.sub_len
        total = sum(map(mul, self.columns[a:a + self.sub_len], x_codes))
        # Adding the bias ends the borrowing; flipping the same bits takes it out again.
        return array("i", ((total + self.bias) ^ self.bias).to_bytes(4 * self.n_out, "little"))


def matmul_packed(w, x):
    """Return what matmul_naive returns, ten times quicker than matmul_tiled.

    w: PackedWeight (n_out, n_in)   x: (R, n_in)   -> (R, n_out)
    """
    out = []
    for xr in x:
        xq, x_scales = quantize_activations(xr)
        acc = array("f", bytes(4 * w.n_out))
        for s, scales in enumerate(w.scales):
            a = s * w.sub_len
            x_block = xq[a:a + w.sub_len]
            acc = _add_block(acc, w.dots(s, x_block), scales, w.mins and w.mins[s],
                             x_scales[a // ACT_BLOCK], sum(x_block))
        out.append(acc)
    return out


# 4.3 Attention.  A query looks at keys in chunks of CHUNK positions; each chunk gives its
# largest score, its sum of exponentials and its weighted sum of values, and chunks merge in
# order.  A chunk's borders are absolute positions, so that prefill in one piece, in many
# pieces or token by token does the same arithmetic.
#
# What attention reads are keys and values as the cache keeps them: rounded to one of a few
# formats of chapter 1.

CHUNK = 64
Q8_0_MAX = 8321039.5            # the largest f32 whose 127th, a block's scale, is finite in f16


def f32_to_q8_0(floats) -> bytes:
    """Return finite floats, whole blocks, in Q8_0: clamped to +-Q8_0_MAX, then encoded."""
    if max(floats) > Q8_0_MAX or min(floats) < -Q8_0_MAX:
        floats = [min(max(x, -Q8_0_MAX), Q8_0_MAX) for x in floats]
    return FORMATS["Q8_0"].encode(floats)


class KVType(NamedTuple):
    """How a cache keeps keys and values."""
    format: Format
    write: object               # function of an array('f') of finite numbers -> bytes


KV_TYPES = {
    "f32": KVType(FORMATS["F32"], array.tobytes),
    "f16": KVType(FORMATS["F16"], f32_to_f16),
    "q8_0": KVType(FORMATS["Q8_0"], f32_to_q8_0),
}


def kv_vector_bytes(kv_type, head_dim):
    """Return the size of one key or value.  Raises KshipraError where there is no such cache."""
    check_choice("kv_type", kv_type, KV_TYPES)
    format = KV_TYPES[kv_type].format
    if head_dim % format.block_len:
        raise KshipraError(f"kv_type {kv_type!r} keeps blocks of {format.block_len} numbers, and "
                           f"head_dim {head_dim} is no multiple of that; use another kv_type")
    return format.n_bytes(head_dim)


def softcap_of(x, cap):
    """Return cap * tanh(x / cap), element by element, with tanh(u) = 1 - 2 / (1 + exp(2 u)).

    Raises KshipraError for an infinite x, which a cap would hide.
    """
    check_finite(x)
    u = array("f", [v / cap for v in x])
    e = array("f", [v + 1.0 for v in exp(f32_scale(u, 2.0))])
    t = array("f", [1.0 - v for v in array("f", [2.0 / v for v in e])])
    return f32_scale(t, cap)


def attend_chunk(q, keys, values, scale, first, cap=0.0):
    """Return (m, l, o) of one query over one chunk.

    q: (head_dim,)   keys, values: array('f') (n, head_dim), flat, of positions first, first+1..
    m: largest score; l: sum of p = exp(score - m); o: (head_dim,), sum of p * value.
    Scores are lane sums over head_dim; l is a lane sum with position p in lane p mod 8; o adds
    in order of position.  Raises KshipraError if a score is not finite.
    """
    dim = len(q)
    n = len(keys) // dim
    lanes = [array("f", bytes(4 * n)) for _ in range(8)]
    for d, v in enumerate(q):
        lanes[d & 7] = f32_add(lanes[d & 7], f32_scale(keys[d::dim], v))
    scores = f32_scale(tree_sum_rows(lanes), scale)
    check_finite(scores)
    if cap:
        scores = softcap_of(scores, cap)
    m = max(scores)
    p = exp([s - m for s in scores])
    o = array("f", bytes(4 * dim))
    for j, pj in enumerate(p):
        o = f32_add(o, f32_scale(values[j * dim:(j + 1) * dim], pj))
    return m, lane_sum(array("f", bytes(4 * (first & 7))) + p), o


def merge_chunks(x, y):
    """Return the (m, l, o) of two neighbouring runs of positions, x before y.

    Source: Milakov and Gimelshein (2018), "Online normalizer calculation for softmax", alg. 3.
    """
    (mx, lx, ox), (my, ly, oy) = x, y
    m = max(mx, my)
    a, b = exp((mx - m, my - m))
    return m, f32(f32(lx * a) + f32(ly * b)), f32_add(f32_scale(ox, a), f32_scale(oy, b))


def attend(q, chunks, scale, cap=0.0, sink=None):
    """Return softmax(scale * q . keys) times values, for one query and one head.

    chunks: iterable of (first position, keys, values); sink: a learnt score without a value.
    """
    state = None
    for first, keys, values in chunks:
        part = attend_chunk(q, keys, values, scale, first, cap)
        state = merge_chunks(state, part) if state else part
    m, l, o = state
    if sink is not None:
        top = max(m, sink)
        a, b = exp((m - top, sink - top))
        l, o = f32(f32(l * a) + b), f32_scale(o, a)
    return array("f", [v / l for v in o])


# 4.4 The operation surface: what a forward pass may call, and nothing else.  `Reference`
# below is its definition; Part II offers the same names.

class BackendFault(Exception):
    """A backend cannot compute, or not what it should; the message says why."""


class Backend:
    """What the rest of the engine asks of that which computes; here, the common answers.

    name: the device   isa: its instructions   n_threads: that share its work
    prefill_rows: how many rows of a prompt make a step
    required: asked for by name, so that no other may go on for it
    runs_ranges: whether it heeds Batch.layers
    Every backend has besides
        run(forward, model, batch)      the logits of the wanted rows, all finite
        the operation surface           what `forward` calls; or it is handed a recorder of it
        timed_run(forward, model, batch)    if it has calls to time: (logits, [(Call, seconds)])
    Any of them may raise BackendFault; then `fallback` goes on, and gives the same bits.
    """

    required = runs_ranges = False

    def fallback(self, fault):
        """Return the backend that goes on when this one cannot, and say so."""
        if self.required:
            raise refused_by_name(fault) from None
        warn_plain(fault)
        return Reference()

    def new_pool(self, layers, n_pages, page_size, kv_type):
        """Return a PagePool, whose pages lie where this backend computes."""
        return PagePool(layers, n_pages, page_size, kv_type)

    def close(self):
        """Give back threads and memory; the backend is not used again."""

    def after_fork(self):
        """Begin anew, in a forked child, what only the parent has: threads."""

    def argmax(self, row):
        """Return the lowest index of the largest value of one row of logits."""
        return row.index(max(row))

    def largest(self, row, k):
        """Return the indices of the k largest values, the largest first, equal ones in order."""
        if k == 1:
            return [row.index(max(row))]
        if k < len(row) // 8:
            return heapq.nlargest(k, range(len(row)), key=row.__getitem__)
        return sorted(range(len(row)), key=row.__getitem__, reverse=True)[:k]

    def exp_sum(self, row, top):
        """Return the lane sum of exp(value - top)."""
        return lane_sum(exp([v - top for v in row]))


def warn_plain(reason):
    """Say, in one line, that plain Python computes, and why."""
    warn(f"computing in plain Python, which is slow: {reason}")


def refused_by_name(reason):
    """Return the KshipraError for machine code that was asked for and cannot be had."""
    return KshipraError(f"machine code cannot be used: {reason}; use device=\"python\"")


PREPARED_LIMIT_BYTES = 2 << 30          # weights kept unpacked, at most


class Route(NamedTuple):
    """Which experts compute each row, the best first.  A pick is one pair of a row and an
    expert; pick r * n_used + j is row r with its choice j.

    n_used: picks of a row   experts, weights: of each pick, in the form of the backend; in the
    reference a list of int and an array('f')
    """
    n_used: int
    experts: object
    weights: object


class Reference(Backend):
    """The operations on lists of rows, in plain Python.

    matmul: "naive", "tiled" or "packed"; the three give the same bits at different speeds.
    """

    name, isa, n_threads, prefill_rows, runs_ranges = "python", "python", 1, 64, True

    def __init__(self, matmul="packed"):
        self.kind = matmul
        self.prepared, self.prepared_bytes = {}, 0

    def prepare(self, w):
        """Return w unpacked for matmul in bulk, or None when there is no room to keep it."""
        if id(w) not in self.prepared:
            need_bytes = 5 * w.shape[0] * w.shape[1]
            if self.prepared_bytes + need_bytes > PREPARED_LIMIT_BYTES:
                return None
            self.prepared_bytes += need_bytes
            unpacked = PackedWeight(w) if w.format.sub_len else w.T.floats()
            self.prepared[id(w)] = w, unpacked      # holding w keeps its id its own
        return self.prepared[id(w)][1]

    def embed(self, w, tokens):
        """Return rows `tokens` of w.   w: (n_vocab, hidden)   -> (R, hidden)"""
        return [w[t].floats() for t in tokens]

    def matmul(self, w, x, route=None):
        """Return x times w transposed.   w: (n_out, n_in)   x: (R, n_in)   -> (R, n_out)

        With a route w is a list of matrices, one for each expert, and every pick is multiplied
        by its expert's.   x: (R, n_in), the picks' rows, or (picks, n_in)   -> (picks, n_out)
        """
        if route is not None:
            return self._matmul_picks(w, x, route)
        if self.kind == "naive":
            return matmul_naive(w, x)
        unpacked = self.prepare(w) if self.kind == "packed" else None
        if unpacked is None:
            return matmul_tiled(w, x)
        return (matmul_packed if w.format.sub_len else matmul_columns)(unpacked, x)

    def _matmul_picks(self, w, x, route):
        """Return matmul with a route; each matrix meets all of its picks at once."""
        out, picks_of = [None] * len(route.experts), {}
        each = len(out) // len(x)                   # picks that share a row of x
        for pick, expert in enumerate(route.experts):
            picks_of.setdefault(expert, []).append(pick)
        for expert, picks in picks_of.items():
            rows = self.matmul(w[expert], [x[pick // each] for pick in picks])
            for pick, row in zip(picks, rows):
                out[pick] = row
        return out

    def route(self, x, n_used, normalize):
        """Return the Route to each row's n_used experts of largest logits.

        x: (R, n_experts), logits; of equal ones the lower index comes first
        The weight of an expert is exp(logit - largest) / total.  If `normalize`, total is the
        sum of these exponentials over the chosen experts, in order of choice; otherwise it is
        the lane sum over all experts.
        Raises KshipraError if a logit is not finite.
        Source: Jiang et al. (2024), "Mixtral of experts", section 2.1, which normalizes.
        """
        experts, weights = [], array("f")
        for row in x:
            check_finite(row)
            chosen = self.largest(row, n_used)
            e = exp([v - row[chosen[0]] for v in row])
            picked = [e[i] for i in chosen]
            total = functools.reduce(lambda a, b: f32(a + b), picked) if normalize else lane_sum(e)
            experts.extend(chosen)
            weights.extend([v / total for v in picked])
        return Route(n_used, experts, weights)

    def mix(self, x, route):
        """Return for each row the sum of its picks' x times their weights, in order of choice.

        x: (picks, n)   -> (R, n)   The sum starts with the first product, not with 0.
        """
        scaled, n = [f32_scale(row, c) for row, c in zip(x, route.weights)], route.n_used
        return [functools.reduce(f32_add, scaled[i:i + n]) for i in range(0, len(scaled), n)]

    def gate(self, x, g):
        """Return each row of x times the sigmoid of its g.   x: (R, n)   g: (R, 1)   -> (R, n)"""
        out = []
        for row, (v,) in zip(x, g):
            weight = f32(1.0 / f32(exp([-v])[0] + 1.0))
            out.append(f32_scale(row, weight))
        return out

    def add(self, x, y, route=None):
        """Return x + y; y may be one row, added to each.   (R, n) + (R, n) or (n,) -> (R, n)

        With a route x has a row for every pick, and y, a Tensor, one for every expert.
        """
        if route is not None:
            y = [y[expert].floats() for expert in route.experts]
        if isinstance(y, array):
            return [f32_add(row, y) for row in x]
        return [f32_add(a, b) for a, b in zip(x, y)]

    def mul(self, x, y):
        """Return x * y; y: (R, n) or a number   -> (R, n)"""
        if isinstance(y, float):
            return [f32_scale(row, y) for row in x]
        return [f32_mul(a, b) for a, b in zip(x, y)]

    def rms_norm(self, x, w, eps):
        """Return each row of x scaled to root mean square 1, times w.

        x: (R, n), or (R, k * n): then each run of n, that is each head, by itself   w: (n,)
        eps > 0 is added under the root, so a zero row stays zero.
        Source: Zhang and Sennrich (2019), RMSNorm, eq. 4; eps as in Llama.
        """
        n, out = len(w), []
        for row in x:
            y = array("f")
            for i in range(0, len(row), n):
                part = row[i:i + n]
                mean = f32(lane_sum(f32_mul(part, part)) / n)
                scale = f32(1 / f32(math.sqrt(f32(mean + eps))))
                y.extend(f32_mul(f32_scale(part, scale), w))
            out.append(y)
        return out

    def layer_norm(self, x, w, b, eps):
        """Return each row of x with mean 0 and variance 1, times w, plus b.

        x: (R, n)   w, b: (n,)   -> (R, n)
        Source: Ba et al. (2016), "Layer normalization", eq. 4.
        """
        n, out = len(w), []
        for row in x:
            mean = f32(lane_sum(row) / n)
            c = array("f", [v - mean for v in row])
            variance = f32(lane_sum(f32_mul(c, c)) / n)
            scale = f32(1 / f32(math.sqrt(f32(variance + eps))))
            y = f32_mul(f32_scale(c, scale), w)
            out.append(f32_add(y, b) if b is not None else y)
        return out

    def rope(self, x, positions, table, head_dim):
        """Return x with the pairs of each head turned by their position's angles.

        x: (R, n_heads * head_dim)   table: RopeTable (chapter 6), with cos and sin rows and
        the pairing: "interleaved" turns (2i, 2i+1), "half" turns (i, i + n_rot/2).
        Source: Su et al. (2021), RoFormer, eq. 34.
        """
        half, out = table.n_rot // 2, []
        for row, pos in zip(x, positions):
            cos, sin = table.rows(pos)
            y = array("f", row)
            for h in range(0, len(row), head_dim):
                if table.pairing == "interleaved":
                    ia, ib = slice(h, h + 2 * half, 2), slice(h + 1, h + 2 * half, 2)
                else:
                    ia, ib = slice(h, h + half), slice(h + half, h + 2 * half)
                a, b = row[ia], row[ib]
                y[ia] = f32_sub(f32_mul(a, cos), f32_mul(b, sin))
                y[ib] = f32_add(f32_mul(a, sin), f32_mul(b, cos))
            out.append(y)
        return out

    def silu(self, x):
        """Return x / (1 + exp(-x)).   (R, n) -> (R, n)"""
        return [silu_of(row) for row in x]

    def gelu(self, x):
        """Return GELU in its tanh form.   (R, n) -> (R, n)"""
        return [gelu_of(row) for row in x]

    def gelu_erf(self, x):
        """Return GELU itself.   (R, n) -> (R, n)"""
        return [gelu_erf_of(row) for row in x]

    def swiglu_clamped(self, gate, up):
        """Return what gpt-oss makes of gate and up.   (R, n), (R, n) -> (R, n)"""
        return [swiglu_clamped_of(a, b) for a, b in zip(gate, up)]

    def store(self, k, v, batch, layer, spec):
        """Store k and v, (R, n_kv_heads * head_dim), in the cache."""
        for k_row, v_row, seq, pos in zip(k, v, batch.sequences, batch.positions):
            batch.cache.write(layer, seq, pos, k_row, v_row)

    def attention(self, q, k, v, batch, layer, spec):
        """Store k and v in the cache, then return what each row's heads attend to.

        q: (R, n_heads * head_dim)   k, v: (R, n_kv_heads * head_dim)   -> like q
        spec: Attention (chapter 6).  Query heads share keys in runs of n_heads / n_kv_heads
        (Ainslie et al. 2023, GQA).
        """
        cache, dim, out = batch.cache, spec.head_dim, []
        group = spec.n_heads // spec.n_kv_heads
        self.store(k, v, batch, layer, spec)
        for row, seq, pos in zip(q, batch.sequences, batch.positions):
            lowest = max(0, pos + 1 - spec.window) if spec.window else 0
            y = array("f")
            for h in range(spec.n_heads):
                if h % group == 0:
                    chunks = list(cache.chunks(layer, seq, h // group, lowest, pos + 1))
                sink = None if spec.sinks is None else spec.sinks[h]
                y.extend(attend(row[h * dim:(h + 1) * dim], chunks, spec.scale, spec.cap, sink))
            out.append(y)
        return out

    def rows(self, x, wanted):
        """Return the rows of x that `wanted` lists.

        Raises KshipraError if one of those that go is not finite; the others can still tell.
        """
        for row in x if len(wanted) < len(x) else ():
            check_finite(row)
        return [x[i] for i in wanted]

    def softcap(self, x, cap):
        """Return cap * tanh(x / cap).   (R, n) -> (R, n)"""
        return [softcap_of(row, cap) for row in x]

    def run(self, forward, model, batch):
        """Return the logits that a forward pass on these operations computes, all finite."""
        if array("f", (1e-40,))[0] == 0:
            raise KshipraError("this thread takes tiny numbers for zero, as a library built with "
                               "fast-math has told the processor; use device native, or a "
                               "process without that library")
        logits = forward(model, self, batch)
        for row in logits:
            check_finite(row)
        return logits


# ---------------------------------------------------------------------------------------
# 5. Cache
#
# The cache keeps every layer's k and v, so that a new token attends to the past without
# computing it again.  The idea of paging: a sequence owns a table of fixed-size pages, not
# one long array, so memory is lent page by page, and two sequences that begin alike hold
# the same pages.  A shared page is never written: its writer copies it first.
#
#   position p of a sequence  ->  page table[p // page_size], slot p % page_size
#   page                      ->  for each layer: k then v, each (n_kv_heads, page_size, head_dim)
#
# A contiguous cache is the same thing with one page as long as the context.  The arena is
# anonymous memory: the system hands out a page of it when it is first written, so a long
# context costs nothing until it is used.
#
# What a full page holds depends on nothing but the tokens up to its end (chapter 4 makes that
# true to the bit).  So it can be found again, by the page before it and its own tokens, also when
# nobody holds it any more.  Such a page is idle; it keeps its content until a new page is needed
# and none is free, and then the one that has been idle for longest goes.
#
#   free --take--> held, by one table or several --release--> idle, if it can be found; else free
#
# Not here: moving pages to disk.  After Kwon et al. (2023), "PagedAttention", section 4.

# What belongs to whom is written so that an interrupt at any point leaves nothing wrong, only
# pages that nobody holds and that are not free either: counts are raised before a table names
# a page, and lowered after it does so no more.  When no page is left, they are counted anew.

def anonymous_memory(n_bytes):
    """Return zeroed memory, committed as it is written; a forked child has its own from then on.

    Raises OSError and the like where it cannot be had.
    """
    if sys.platform == "win32":
        return mmap.mmap(-1, n_bytes)
    memory = mmap.mmap(-1, n_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANON)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):        # or the first byte written commits megabytes
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


def check_page_size(page_size):
    """Return a page size as an int; one that would cut a chunk unevenly is refused."""
    size = check_whole("page_size", page_size, 8)
    if CHUNK % size and size % CHUNK:
        raise KshipraError(f"page_size is {size}; 8, 16, 32 or a multiple of {CHUNK} is needed")
    return size


class PagePool:
    """An arena of n_pages pages, lent out by number and counted.

    layers: one (n_kv_heads, head_dim) for each layer   kv_type: a name of KV_TYPES
    page_size: positions in a page: 8, 16, 32 or a multiple of CHUNK
    refs[page]: how many tables hold the page
    found: (id of the page before, or 0, and the tokens of a full page) -> (its own id, page)
    idle: the pages that nobody holds but that can be found, the longest idle first
    n_asked, n_found: positions of prompts that were looked for, and that were there
    sequences: those whose tables hold pages, as long as somebody has them
    """

    def __init__(self, layers, n_pages, page_size, kv_type="f16"):
        check_page_size(page_size)
        self.page_size, self.kv_type, self.n_pages = page_size, kv_type, n_pages
        self.layers, self.layer_offs, page_bytes = layers, [], 0
        self.vector_bytes = [kv_vector_bytes(kv_type, head_dim) for _, head_dim in layers]
        for (n_kv_heads, _), vector_bytes in zip(layers, self.vector_bytes):
            self.layer_offs.append(page_bytes)
            page_bytes += 2 * n_kv_heads * page_size * vector_bytes
        self.page_bytes = page_bytes
        try:
            self.arena = anonymous_memory(max(1, n_pages * page_bytes))
        except (OSError, OverflowError, ValueError) as e:
            raise KshipraError(f"a cache of {n_pages * page_bytes} bytes cannot be had ({e}); "
                               "use a smaller ctx_size") from None
        self.free = list(range(n_pages - 1, -1, -1))
        self.refs = [0] * n_pages
        self.found, self.key_of, self.idle, self.next_id = {}, [None] * n_pages, {}, 1
        self.n_asked = self.n_found = 0
        self.sequences = weakref.WeakSet()

    n_available = property(lambda self: len(self.free) + len(self.idle))

    def take(self):
        """Return a page, now held once: a free one, or else the one that is idle for longest.

        Raises KshipraError when all are held.
        """
        if not self.n_available:
            self.recount()
        if not self.n_available:
            raise KshipraError(f"all {self.n_pages} pages of {self.page_size} positions are in "
                               "use; use a larger ctx_size")
        if not self.free:
            self.forget(next(iter(self.idle)))
        page = self.free.pop()
        self.refs[page] = 1
        return page

    def recount(self):
        """Count the holds anew, from the tables that there are; find what was lost.

        Lost are the pages of a sequence that went without a truncate, or that an interrupt kept
        from their table.
        """
        refs = Counter(itertools.chain.from_iterable([seq.table for seq in list(self.sequences)]))
        self.refs = [refs[page] for page in range(self.n_pages)]
        unheld = [page for page in chain(self.idle, range(self.n_pages)) if not refs[page]]
        self.idle = {page: None for page in unheld if self.key_of[page] is not None}
        self.free = [page for page in set(unheld) if self.key_of[page] is None]

    def hold(self, page):
        """Hold a page once more."""
        self.idle.pop(page, None)
        self.refs[page] += 1

    def release(self, page):
        """Give back one hold on a page."""
        self.refs[page] -= 1
        if not self.refs[page]:
            if self.key_of[page] is None:
                self.free.append(page)
            else:
                self.idle[page] = None

    def publish(self, page, before, tokens):
        """Let a full page be found; return (id, page), those of its twin if there is one.

        before: the id of the page before it, or 0   tokens: those whose k and v it holds
        An id is never given twice.  So what was found by way of a page that is gone is not found
        any more, and cannot be mistaken.
        """
        key = before, tuple(tokens)
        if key not in self.found:
            self.next_id += 1
            self.key_of[page] = key
            self.found[key] = self.next_id, page
        return self.found[key]

    def forget(self, page):
        """Let a page be found no more, since it will be written."""
        if self.key_of[page] is not None:
            self.found.pop(self.key_of[page], None)
            self.key_of[page] = None
        if page in self.idle:
            del self.idle[page]
            self.free.append(page)

    def copy(self, page):
        """Return a new page, held once, with the content of `page`."""
        new = self.take()
        a, b, n = page * self.page_bytes, new * self.page_bytes, self.page_bytes
        self.arena[b:b + n] = self.arena[a:a + n]
        return new

    def offset(self, layer, page, which, head, slot):
        """Return the byte offset in the arena of one k (which = 0) or v (which = 1) vector."""
        vector = (which * self.layers[layer][0] + head) * self.page_size + slot
        return (page * self.page_bytes + self.layer_offs[layer]
                + vector * self.vector_bytes[layer])

    def write(self, layer, seq, pos, k, v):
        """Store one position's k and v, each (n_kv_heads * head_dim,), rounded to kv_type.

        Raises KshipraError for what is not finite, which f16 and q8_0 would clamp.
        """
        page, slot = seq.table[pos // self.page_size], pos % self.page_size
        n = self.vector_bytes[layer]
        for which, row in enumerate((k, v)):
            check_finite(row)
            data = KV_TYPES[self.kv_type].write(row)
            for head in range(self.layers[layer][0]):
                at = self.offset(layer, page, which, head, slot)
                self.arena[at:at + n] = data[head * n:(head + 1) * n]

    def chunks(self, layer, seq, head, lowest, end):
        """Yield (first position, keys, values) of positions lowest..end-1, cut at CHUNK borders.

        keys, values: array('f') (n, head_dim), flat
        """
        decode = KV_TYPES[self.kv_type].format.decode
        while lowest < end:
            stop = min(end, (lowest // CHUNK + 1) * CHUNK)
            keys, values = (b"".join([self.arena[a:b] for a, b in self.runs(
                layer, seq, which, head, lowest, stop)]) for which in (0, 1))
            yield lowest, decode(keys), decode(values)
            lowest = stop

    def runs(self, layer, seq, which, head, first, end):
        """Yield (start, end), offsets in the arena, of the bytes with positions first..end-1."""
        size, n_bytes = self.page_size, self.vector_bytes[layer]
        while first < end:
            n = min(end - first, size - first % size)
            at = self.offset(layer, seq.table[first // size], which, head, first % size)
            yield at, at + n * n_bytes
            first += n


class Sequence:
    """One text's page table, and the tokens whose k and v its pages hold.

    table: array('i') of page numbers   tokens: ids at positions 0..len-1
    ids: of the full pages that can be found, from the first one on; see PagePool.publish
    begun: of the tokens after those, which have gone through some layers only: (token, how many
    layers, what they left: array('f') (hidden,))
    n_exact: from this position on k and v are approximate (8.3), and are for nobody else
    """

    def __init__(self, pool: "PagePool"):
        self.pool, self.table, self.tokens, self.ids = pool, array("i"), [], []
        self.begun, self.n_exact = [], math.inf
        pool.sequences.add(self)

    def reserve(self, first: int, end: int) -> None:
        """Own writable pages for positions first..end-1; a page held elsewhere too is copied."""
        size = self.pool.page_size
        while len(self.table) * size < end:
            self.table.append(self.pool.take())
        for i in range(first // size, (end + size - 1) // size):
            if self.pool.refs[self.table[i]] > 1:
                shared, self.table[i] = self.table[i], self.pool.copy(self.table[i])
                self.pool.release(shared)
            self.pool.forget(self.table[i])

    def n_new_pages(self, end: int) -> int:
        """Return how many pages `reserve` will take for the next positions, up to `end`."""
        size, first = self.pool.page_size, len(self.tokens) // self.pool.page_size
        shared = sum(self.pool.refs[page] > 1 for page in self.table[first:])
        return max(0, -(-end // size) - len(self.table)) + shared

    def publish(self) -> None:
        """Let the pages that are full by now be found by texts that begin alike."""
        size, pool = self.pool.page_size, self.pool
        for i in range(len(self.ids), min(len(self.tokens), self.n_exact) // size):
            id, page = pool.publish(self.table[i], self.ids[-1] if self.ids else 0,
                                    self.tokens[i * size:(i + 1) * size])
            if page != self.table[i]:           # two texts computed the same: one page is enough
                pool.hold(page)
                own, self.table[i] = self.table[i], page
                pool.release(own)
            self.ids.append(id)

    def adopt(self, tokens: list) -> int:
        """Take over, into an empty sequence, the pages with the beginning of `tokens`.

        One token is always left over: its logits have to be computed.
        Returns how many positions there are now.
        """
        size, pool = self.pool.page_size, self.pool
        for i in range(len(tokens) // size):
            id, page = pool.found.get((self.ids[-1] if self.ids else 0,
                                       tuple(tokens[i * size:(i + 1) * size])), (None, None))
            if id is None:
                break
            pool.hold(page)
            self.table.append(page)
            self.ids.append(id)
        n = min(len(self.table) * size, len(tokens) - 1)
        self.tokens = list(tokens[:n])
        del self.ids[n // size:]
        pool.n_asked += len(tokens)
        pool.n_found += n
        return n

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on, and give back the pages that only they used."""
        del self.tokens[length:], self.begun[:]
        if length <= self.n_exact:
            self.n_exact = math.inf
        del self.ids[length // self.pool.page_size:]
        keep = -(-length // self.pool.page_size)
        while len(self.table) > keep:
            self.pool.release(self.table.pop())

    def drop_inexact(self) -> None:
        """Forget the positions whose k and v are approximate, and those after them."""
        if self.n_exact < math.inf:
            self.truncate(self.n_exact)

    def fork(self) -> "Sequence":
        """Return a sequence with the same past; pages are shared until one of the two writes."""
        other = Sequence(self.pool)
        for page in self.table:
            self.pool.hold(page)
            other.table.append(page)
        other.tokens, other.ids, other.n_exact = list(self.tokens), list(self.ids), self.n_exact
        return other

    def common_prefix(self, tokens) -> int:
        """Return how many of `tokens` this sequence begins with, at most len(tokens) - 1.

        One token is always left over: its logits have to be computed.
        """
        n = min(len(self.tokens), len(tokens) - 1, self.n_exact)
        if self.tokens[:n] == tokens[:n]:       # the usual case, at C speed
            return n
        return next(i for i in range(n) if self.tokens[i] != tokens[i])

    def planes(self, end: int):
        """Yield the runs of bytes of positions 0..end-1, a list for each layer, k and v, head."""
        for layer, (n_kv_heads, _) in enumerate(self.pool.layers):
            for which, head in itertools.product((0, 1), range(n_kv_heads)):
                yield list(self.pool.runs(layer, self, which, head, 0, end))

    def copy_to(self, pool: "PagePool") -> "Sequence":
        """Return a sequence of another pool of the same kind that holds the same."""
        other = Sequence(pool)
        try:
            other.fill(self.tokens, b"".join(
                self.pool.arena[a:b] for runs in self.planes(len(self.tokens)) for a, b in runs))
        except BaseException:
            other.truncate(0)
            raise
        return other

    def fill(self, tokens: list, data: bytes) -> None:
        """Take pages for `tokens`, and write the bytes of all planes into them."""
        self.reserve(0, len(tokens))
        tokens = list(tokens)
        at = 0
        for runs in self.planes(len(tokens)):
            for a, b in runs:
                self.pool.arena[a:b] = data[at:at + b - a]
                at += b - a
        self.tokens = tokens
        self.publish()


# A saved sequence: what it is, as JSON behind its length, and then the planes, in which the size
# of the pages does not show.
#
#   magic 16 | header length 4 | header | k and v of layer 0, head by head, layer 1 .. | SHA-256 32

_SESSION_MAGIC = b"kshipra session\1"


def save_sequence(seq, path, identity):
    """Write a sequence's tokens, k and v to a file, which appears whole or not at all.

    identity: a str, the same for two models only if they compute the same
    """
    pool, part = seq.pool, f"{check_path(path)}.part"
    header = json.dumps({"model": identity, "kv_type": pool.kv_type, "layers": pool.layers,
                         "tokens": seq.tokens}).encode()
    digest = hashlib.sha256()
    try:
        with open(part, "wb") as f:
            pieces = [_SESSION_MAGIC, struct.pack("<I", len(header)), header]
            for piece in chain(pieces, (pool.arena[a:b] for runs in seq.planes(len(seq.tokens))
                                        for a, b in runs)):
                digest.update(piece)
                f.write(piece)
            f.write(digest.digest())
        os.replace(part, path)
    except OSError as e:
        raise KshipraError(f"the session cannot be written ({e.strerror}); give another place",
                           path) from None
    finally:
        with contextlib.suppress(OSError):
            os.remove(part)


def load_sequence(seq, path, identity, n_ctx):
    """Let a sequence hold what save_sequence wrote to a file, in its own pool's pages.

    Everything is checked before the sequence is touched.  Raises KshipraError for a file that is
    damaged, of another model or another kind of cache, or longer than n_ctx positions.
    """
    pool = seq.pool
    try:
        with open(path, "rb") as f:
            data = f.read()
    except OSError as e:
        raise KshipraError(f"the session cannot be read ({e.strerror})", path) from None
    start, body = len(_SESSION_MAGIC) + 4, data[:-32]
    if not data.startswith(_SESSION_MAGIC) or len(data) < start + 32:
        raise KshipraError("is no saved session, or one of another version; save it anew", path, 0)
    if hashlib.sha256(body).digest() != data[-32:]:
        raise KshipraError("the session's bytes and its check sum differ, so it is damaged or cut "
                           "short; save it anew", path, len(body))
    n_header, = struct.unpack("<I", data[start - 4:start])
    try:
        header = json.loads(body[start:start + n_header])
        tokens = array("i", header["tokens"])
        saved = [header[name] for name in ("model", "kv_type", "layers")]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise KshipraError("the session's header is not one; save it anew", path, start) from None
    own = identity, pool.kv_type, [list(layer) for layer in pool.layers]
    for name, a, b in zip(("model", "kv_type", "layers"), saved, own):
        if a != b:
            raise KshipraError(f"the session was saved with {name} {_quote(a)}, and this is {b!r};"
                               " load the model it belongs to", path)
    n_pages = -(-len(tokens) // pool.page_size)
    if len(tokens) > n_ctx or n_pages > pool.n_available + len(seq.table):
        raise KshipraError(f"the session has {len(tokens)} tokens, but the context holds {n_ctx} "
                           f"and {pool.n_available + len(seq.table)} pages of {pool.page_size} "
                           "are free; load the model with a larger ctx_size", path)
    need_bytes = 2 * len(tokens) * sum(n_kv_heads * n_bytes for (n_kv_heads, _), n_bytes
                                       in zip(pool.layers, pool.vector_bytes))
    if len(body) - start - n_header != need_bytes or min(tokens, default=0) < 0:
        raise KshipraError(f"the session's {len(tokens)} tokens need {need_bytes} bytes of keys "
                           f"and values, but there are {len(body) - start - n_header}; save it "
                           "anew", path, start + n_header)
    seq.truncate(0)
    seq.fill(tokens, memoryview(body)[start + n_header:])


# ---------------------------------------------------------------------------------------
# 6. Model
#
# A decoder is the same few lines for every family: norm, attention, add, norm, feed-forward,
# add.  Families differ in which norms, which activation, which tensors there are and how the
# numbers are called in the file; that is data, so it stands in tables: ARCHITECTURES has a
# row for each family, GGUF_NAMES and HF_NAMES the names of the tensors, KEYS those of the
# hyperparameters.  A row says how it differs from Llama.
#
#   x = embed(token)
#   each layer:  x = x + wo attention(rope(wq n), rope(wk n), wv n)    n = norm(x)
#                x = x + w_down (silu(w_gate n) * w_up n)              n = norm(x)
#   logits = lm_head norm(x)
#
# In a mixture of experts w_gate, w_up and w_down are lists of matrices, of which a router
# picks a few for each row; their results are added, each with a weight.
#
# Not here: layers without experts among others, positions by ALiBi.
# Sources: Radford et al. (2019), GPT-2; Touvron et al. (2023), Llama; the Gemma reports;
# Jiang et al. (2024), Mixtral; of each other family its report and the code in transformers.

# 6.1 Tables

class Arch(NamedTuple):
    """One family: what the tables of its files do not say.

    slots: the tensors of a layer, perhaps absent with "?" before; "+b" behind one: with a bias,
    "?b": perhaps with a bias.  Absent norms are left out.   outer: those outside of layers
    act: an operation, or two joined in one (swiglu_clamped)
    rope: "interleaved" or "half", as the rows of wq lie in a GGUF; None: learned positions
    qk_norm: what q_norm and k_norm take together, a "head" or "all" of them
    window_every, no_rope_every: every n-th layer sees all; has no rope   0: none does
    scales: which numbers of SCALES its files set   partial: only a part of a head may turn
    defaults: hyperparameter: its value where config.json lacks the key; or a function of hp
    gguf_defaults: the same where a GGUF lacks it
    must: key of config.json: what it must be; the rest is refused
    gguf_names, hf_names: where tensors are called otherwise   stored: slot: name of a TRANSFORM
    that its safetensors need
    """
    slots: str
    outer: str = "embed out_norm ?lm_head"
    norm: str = "rms"
    act: str = "silu"
    rope: str = "half"
    qk_norm: str = "head"
    parallel: object = None             # both halves of a layer read the same x; None: never;
                                        # "one norm": where a layer has but one norm
    window_every: int = 0
    no_rope_every: int = 0
    window_unused: bool = False         # its files name a window that they do not use
    experts: bool = False               # a mixture of experts
    embed_by_root: bool = False         # embeddings times sqrt(hidden)
    scales: tuple = ()
    partial: bool = False
    defaults: dict = {}
    gguf_defaults: dict = {}
    rules: dict = {}                    # hyperparameter: function of hp, ahead of config.json
    must: dict = {}
    gguf_names: dict = {}
    hf_names: dict = {}
    stored: dict = {}


GGUF_NAMES = {  # slot: name, behind "layers" where it is of a layer, before .weight or .bias
    "layers": "blk.{}.",
    "embed": "token_embd", "pos_embed": "position_embd", "out_norm": "output_norm",
    "lm_head": "output", "rope_freqs": "rope_freqs",
    "rope_long": "rope_factors_long", "rope_short": "rope_factors_short",
    "attn_norm": "attn_norm", "wqkv": "attn_qkv", "wq": "attn_q", "wk": "attn_k", "wv": "attn_v",
    "wo": "attn_output", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "sinks": "attn_sinks",
    "post_attn_norm": "post_attention_norm", "ffn_norm": "ffn_norm",
    "w_gate": "ffn_gate", "w_up": "ffn_up", "w_down": "ffn_down", "post_ffn_norm": "post_ffw_norm",
    # a {}: a tensor for each expert, as in the first GGUF files of Mixtral
    "router": "ffn_gate_inp", "w_gate_experts": ("ffn_gate_exps", "ffn_gate.{}"),
    "w_up_experts": ("ffn_up_exps", "ffn_up.{}"),
    "w_down_experts": ("ffn_down_exps", "ffn_down.{}"),
    "shared_gate": "ffn_gate_inp_shexp", "w_gate_shared": "ffn_gate_shexp",
    "w_up_shared": "ffn_up_shexp", "w_down_shared": "ffn_down_shexp",
}
HF_NAMES = {    # the same in safetensors, as Llama has them; "!": with nothing behind
    "layers": "model.layers.{}.",
    "embed": "model.embed_tokens", "out_norm": "model.norm", "lm_head": "lm_head",
    "attn_norm": "input_layernorm", "wqkv": "self_attn.qkv_proj", "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj", "wv": "self_attn.v_proj", "wo": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm", "sinks": "self_attn.sinks!",
    "ffn_norm": "post_attention_layernorm", "w_gate": "mlp.gate_proj", "w_up": "mlp.up_proj",
    "w_down": "mlp.down_proj", "w_gate_up": "mlp.gate_up_proj",
    "router": "mlp.gate", "w_gate_experts": "mlp.experts.{}.gate_proj",
    "w_up_experts": "mlp.experts.{}.up_proj", "w_down_experts": "mlp.experts.{}.down_proj",
    "shared_gate": "mlp.shared_expert_gate", "w_gate_shared": "mlp.shared_expert.gate_proj",
    "w_up_shared": "mlp.shared_expert.up_proj", "w_down_shared": "mlp.shared_expert.down_proj",
}
FUSED = {       # one tensor of a file: the slots that it holds, one below another
    "wqkv": ("wq", "wk", "wv"), "w_gate_up": ("w_gate", "w_up"),
    "w_gate_up_experts": ("w_gate_experts", "w_up_experts"),
}
EXPERT_TENSORS = re.compile(
    r".*(ffn_(gate|up|down)(_exps|\.\d+)\.weight|\.experts\.\d+\.\w+\.weight"
    r"|\.experts\.\w+_proj(_blocks|_scales)?)")
UNUSED_TENSORS = re.compile(    # stored by some exporters, and computed here instead
    r".*\.rotary_emb\.inv_freq|(.+\.)?(attn|attention)\.(masked_)?bias")

SCALES = "embed_scale", "residual_scale", "attn_scale", "logit_scale"
NORMS = "attn_norm ffn_norm post_attn_norm post_ffn_norm q_norm k_norm out_norm".split()
LLAMA = Arch("attn_norm wq?b wk?b wv?b wo?b ffn_norm w_gate?b w_up?b w_down?b",
             outer="embed out_norm ?lm_head ?rope_freqs", rope="interleaved")
EXPERT_SLOTS = "attn_norm wq?b wk?b wv?b wo?b ffn_norm router w_gate_experts w_up_experts " \
               "w_down_experts"
POST_NORMS = {"post_attn_norm": "post_attention_layernorm",
              "post_ffn_norm": "post_feedforward_layernorm"}
GEMMA = LLAMA._replace(
    rope="half", act="gelu", embed_by_root=True, defaults={"tied": True},
    stored=dict.fromkeys(NORMS, "plus_one"))

ARCHITECTURES = {
    "llama": LLAMA,
    "mistral": LLAMA._replace(defaults={"window": 4096}),
    "gpt2": Arch(
        "attn_norm+b wqkv+b wo+b ffn_norm+b w_up+b w_down+b",
        outer="embed pos_embed out_norm+b ?lm_head", norm="layer", act="gelu", rope=None,
        defaults={"tied": True, "ffn": lambda hp: 4 * hp.hidden},
        gguf_defaults={"ffn": lambda hp: 4 * hp.hidden},
        hf_names={"layers": "transformer.h.{}.", "embed": "transformer.wte",
                  "pos_embed": "transformer.wpe", "out_norm": "transformer.ln_f",
                  "attn_norm": "ln_1", "wqkv": "attn.c_attn", "wo": "attn.c_proj",
                  "ffn_norm": "ln_2", "w_up": "mlp.c_fc", "w_down": "mlp.c_proj"},
        stored=dict.fromkeys(("wqkv", "wo", "w_up", "w_down"), "transposed")),
    "qwen2": LLAMA._replace(
        slots="attn_norm wq+b wk+b wv+b wo ffn_norm w_gate w_up w_down", rope="half",
        window_unused=True),
    "qwen3": LLAMA._replace(slots=LLAMA.slots + " q_norm k_norm", rope="half",
                            window_unused=True),
    "gemma": GEMMA,
    "gemma2": GEMMA._replace(
        slots=LLAMA.slots + " post_attn_norm post_ffn_norm", window_every=2,
        defaults={"tied": True, "window": 4096, "attn_cap": 50.0, "final_cap": 30.0,
                  "query_scalar": 256},
        gguf_defaults={"window": 4096, "attn_cap": 50.0, "final_cap": 30.0},
        hf_names={**POST_NORMS, "ffn_norm": "pre_feedforward_layernorm"}),
    "gemma3": GEMMA._replace(
        slots=LLAMA.slots + " post_attn_norm post_ffn_norm q_norm k_norm", window_every=6,
        defaults={"tied": True, "window": 4096, "query_scalar": 256, "rope_base": 1e6},
        # its own base is another than all others', so there it has to be in the file
        gguf_defaults={"rope_base": None},
        hf_names={**POST_NORMS, "ffn_norm": "pre_feedforward_layernorm"}),
    "mixtral": LLAMA._replace(
        slots=EXPERT_SLOTS, experts=True,
        defaults={"rope_base": 1e6, "expert_ffn": lambda hp: hp.ffn, "normalize": True},
        gguf_defaults={"expert_ffn": lambda hp: hp.ffn},
        hf_names={"router": "block_sparse_moe.gate",
                  "w_gate_experts": "block_sparse_moe.experts.{}.w1",
                  "w_up_experts": "block_sparse_moe.experts.{}.w3",
                  "w_down_experts": "block_sparse_moe.experts.{}.w2"}),
    # All that can be met normalize; but the default of Qwen 3's config.json is not to.
    "phi2": Arch(
        "attn_norm+b wqkv+b wo+b w_up+b w_down+b", outer="embed out_norm+b lm_head+b",
        norm="layer", act="gelu", parallel=True, partial=True, defaults={"rope_part": 0.5},
        hf_names={"out_norm": "model.final_layernorm", "wo": "self_attn.dense",
                  "w_up": "mlp.fc1", "w_down": "mlp.fc2"}),
    "phi3": LLAMA._replace(
        slots="attn_norm wqkv?b wo?b ffn_norm w_gate_up w_down", rope="half", partial=True,
        outer="embed out_norm ?lm_head ?rope_long ?rope_short",
        gguf_names={"w_gate_up": "ffn_up"}),
    "gptneox": Arch(
        "attn_norm+b wqkv?b wo?b ffn_norm+b w_up+b w_down+b", outer="embed out_norm+b lm_head",
        norm="layer", act="gelu_erf", parallel=True, partial=True, defaults={"rope_part": 0.25},
        hf_names={"layers": "gpt_neox.layers.{}.", "embed": "gpt_neox.embed_in",
                  "out_norm": "gpt_neox.final_layer_norm", "lm_head": "embed_out",
                  "wqkv": "attention.query_key_value", "wo": "attention.dense",
                  "w_up": "mlp.dense_h_to_4h", "w_down": "mlp.dense_4h_to_h"},
        stored={"wqkv": "by_head"}),
    "falcon": Arch(
        "attn_norm+b wqkv?b wo?b ?ffn_norm+b w_up?b w_down?b", outer="embed out_norm+b ?lm_head",
        norm="layer", act="gelu_erf", parallel=True,
        defaults={"tied": True, "ffn": lambda hp: 4 * hp.hidden},
        rules={"n_kv_heads": lambda hp: 1 if hp.at("multi_query") is not False
               and not hp.at("new_decoder_architecture") else None},
        must={"parallel_attn": True},
        # the larger ones have a norm for each half, called otherwise
        gguf_names={"attn_norm": ("attn_norm_2", "attn_norm"), "ffn_norm": "attn_norm"},
        hf_names={"layers": "transformer.h.{}.", "embed": "transformer.word_embeddings",
                  "out_norm": "transformer.ln_f", "attn_norm": ("ln_attn", "input_layernorm"),
                  "ffn_norm": "ln_mlp", "wqkv": "self_attention.query_key_value",
                  "wo": "self_attention.dense", "w_up": "mlp.dense_h_to_4h",
                  "w_down": "mlp.dense_4h_to_h"},
        stored={"wqkv": "by_head"}),
    "starcoder2": Arch(
        "attn_norm+b wq?b wk?b wv?b wo?b ffn_norm+b w_up?b w_down?b",
        outer="embed out_norm+b ?lm_head", norm="layer", act="gelu", defaults={"tied": True},
        hf_names={"w_up": "mlp.c_fc", "w_down": "mlp.c_proj"}),
    "stablelm": Arch(
        "attn_norm+b wq?b wk?b wv?b wo ?ffn_norm+b w_gate w_up w_down",
        outer="embed out_norm+b ?lm_head", norm="layer", parallel="one norm",
        partial=True, defaults={"rope_part": 0.25}),
    "olmo2": LLAMA._replace(
        slots="wq wk wv wo q_norm k_norm post_attn_norm w_gate w_up w_down post_ffn_norm",
        rope="half", qk_norm="all", hf_names=POST_NORMS),
    "granite": LLAMA._replace(scales=SCALES, defaults={"attn_scale": 1.0}),
    "smollm3": LLAMA._replace(no_rope_every=4, window_unused=True,
                              defaults={"tied": True, "rope_base": 2e6}),
    "qwen2moe": LLAMA._replace(
        slots="attn_norm wq+b wk+b wv+b wo ffn_norm router w_gate_experts w_up_experts "
              "w_down_experts shared_gate w_gate_shared w_up_shared w_down_shared",
        rope="half", experts=True, window_unused=True,
        gguf_defaults={"normalize": False, "shared_ffn": lambda hp: hp.ffn},
        must={"decoder_sparse_step": 1, "mlp_only_layers": []}),
    "gpt-oss": Arch(
        "attn_norm wq+b wk+b wv+b wo+b sinks ffn_norm router+b w_gate_up_experts+b "
        "w_down_experts+b",
        act="swiglu_clamped", window_every=2, experts=True,
        defaults={"rope_base": 150000.0, "window": 128, "expert_ffn": lambda hp: hp.ffn,
                  "normalize": True, "scaling": {
                      "rope_type": "yarn", "factor": 32.0, "truncate": False,
                      "original_max_position_embeddings": 4096}},
        must={"swiglu_limit": SWIGLU_LIMIT, "swiglu_alpha": 1.702},
        gguf_names={"ffn_norm": "post_attention_norm"},
        hf_names={"router": "mlp.router", "w_gate_up_experts": "mlp.experts.gate_up_proj!",
                  "w_gate_up_experts_b": "mlp.experts.gate_up_proj_bias!",
                  "w_down_experts": "mlp.experts.down_proj!",
                  "w_down_experts_b": "mlp.experts.down_proj_bias!"},
        stored={"w_gate_up_experts": "transposed alternating", "w_down_experts": "transposed"}),
    "qwen3moe": LLAMA._replace(
        slots=EXPERT_SLOTS + " q_norm k_norm", rope="half", experts=True,
        window_unused=True,
        must={"decoder_sparse_step": 1, "mlp_only_layers": []}),
}
HF_MODEL_TYPES = {"gemma3_text": "gemma3", "gpt_neox": "gptneox", "gpt_oss": "gpt-oss",
                  "phi": "phi2", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"}

KEYS = {    # hyperparameter: its key in GGUF, and its keys in config.json
    "n_layers":     ("block_count", ("num_hidden_layers", "n_layer")),
    "hidden":       ("embedding_length", ("hidden_size", "n_embd")),
    "ffn":          ("feed_forward_length", ("intermediate_size", "n_inner",
                                             "ffn_hidden_size")),
    "n_heads":      ("attention.head_count", ("num_attention_heads", "n_head")),
    "n_kv_heads":   ("attention.head_count_kv", ("num_key_value_heads", "num_kv_heads")),
    "head_dim":     ("attention.key_length", ("head_dim",)),
    "value_dim":    ("attention.value_length", ()),
    "n_ctx":        ("context_length", ("max_position_embeddings", "n_positions", "n_ctx")),
    "n_vocab":      ("vocab_size", ("vocab_size",)),
    "tied":         (None, ("tie_word_embeddings",)),
    "rms_eps":      ("attention.layer_norm_rms_epsilon", ("rms_norm_eps",)),
    "layer_eps":    ("attention.layer_norm_epsilon", ("layer_norm_epsilon", "layer_norm_eps",
                                                    "norm_epsilon")),
    "n_rot":        ("rope.dimension_count", ()),
    "rope_part":    (None, ("partial_rotary_factor", "rotary_pct")),
    "rope_base":    ("rope.freq_base", ("rope_theta", "rotary_emb_base")),
    "original_ctx": ("rope.scaling.original_context_length",
                     ("original_max_position_embeddings",)),
    "no_rope_every": (None, ("no_rope_layer_interval",)),
    "parallel":     ("use_parallel_residual", ("use_parallel_residual",)),
    "local_base":   ("rope.freq_base_swa", ("rope_local_base_freq",)),
    "window":       ("attention.sliding_window", ("sliding_window",)),
    "pattern":      ("attention.sliding_window_pattern", ("sliding_window_pattern",
                                                          "_sliding_window_pattern")),
    "attn_cap":     ("attn_logit_softcapping", ("attn_logit_softcapping",)),
    "final_cap":    ("final_logit_softcapping", ("final_logit_softcapping",)),
    "query_scalar": (None, ("query_pre_attn_scalar",)),
    "embed_scale":    ("embedding_scale", ("embedding_multiplier",)),
    "residual_scale": ("residual_scale", ("residual_multiplier",)),
    "attn_scale":     ("attention.scale", ("attention_multiplier",)),
    "logit_scale":    ("logit_scale", ("logits_scaling",)),
    "n_experts":    ("expert_count", ("num_local_experts", "num_experts")),
    "n_used":       ("expert_used_count", ("num_experts_per_tok",)),
    "expert_ffn":   ("expert_feed_forward_length", ("moe_intermediate_size",)),
    "shared_ffn":   ("expert_shared_feed_forward_length", ("shared_expert_intermediate_size",)),
    "normalize":    ("expert_weights_norm", ("norm_topk_prob",)),
}
NULL_MEANS = {"window": 0, "attn_cap": 0.0, "final_cap": 0.0}   # null in config.json, not absent
DEFAULTS = {"rope_base": 10000.0, "local_base": 10000.0, "window": 0, "attn_cap": 0.0,
            "final_cap": 0.0, "rope_part": 1.0, "n_experts": 0, "tied": False}
GGUF_DEFAULTS = {**DEFAULTS, "normalize": True}
HF_DEFAULTS = {**DEFAULTS, "normalize": False}

CONFIG_MUST_BE = {  # keys of config.json that would change the answer, were they anything else
    "use_bidirectional_attention": False, "is_causal": True, "use_sliding_window": False,
    "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True,
    "add_cross_attention": False, "clip_qkv": None, "logit_scale": 1, "alibi": False,
    "qk_layernorm": False, "use_qk_norm": False,
}
GGUF_MUST_BE = {    # the same for the keys of a GGUF, behind the name of the architecture
    "expert_gating_func": 1, "expert_weights_scale": 1, "expert_shared_count": 0,
    "expert_group_count": 1, "expert_group_used_count": 1, "leading_dense_block_count": 0,
    "interleave_moe_layer_step": 1, "attention.causal": True, "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0, "attention.temperature_scale": 0,
    "rope.scaling.yarn_ext_factor": 1, "rope.scaling.yarn_log_multiplier": 0,
    "use_parallel_residual": False,
}
# Keys that have been looked at and change no answer: they are about training, about dropout,
# about what is in the tokenizer, or say what the tensors say.
HARMLESS_GGUF = set(
    "attention.layer_norm_epsilon attention.layer_norm_rms_epsilon rope.dimension_count "
    "rope.freq_base rope.scaling.finetuned tensor_data_layout".split())
HARMLESS_CONFIG = set(
    "_name_or_path architectures attention_bias attention_dropout attn_pdrop auto_map bias "
    "bos_token_id cache_implementation chunk_size_feed_forward classifier_dropout "
    "decoder_start_token_id dtype embd_pdrop embedding_dropout eos_token_id ffn_dropout "
    "finetuning_task gradient_checkpointing "
    "hidden_dropout hidden_dropout_prob id2label initializer_range is_decoder is_encoder_decoder "
    "label2id max_length max_window_layers mlp_bias model_type n_ctx num_labels "
    "num_ln_in_parallel_attn output_attentions "
    "output_hidden_states output_router_logits pad_token_id pretraining_tp problem_type "
    "quantization_config reorder_and_upcast_attn resid_pdrop residual_dropout return_dict "
    "rope_interleaved rotary_dim router_aux_loss_coef router_jitter_noise sep_token_id "
    "summary_activation summary_first_dropout summary_proj_to_labels summary_type "
    "summary_use_proj task_specific_params tokenizer_class torch_dtype torchscript "
    "transformers_version unk_token_id use_bias use_cache use_flash_attn use_mrope "
    "use_return_dict".split())
ACTS = {    # activations by their names in config.json
    "silu": "silu", "swish": "silu", "gelu": "gelu_erf", "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu",
}


def slots_of(arch, which="slots"):
    """Yield (slot, whether it must be there, bias: "+b", "?b" or "") of an Arch's slots."""
    for perhaps, slot, bias in re.findall(r"(\??)(\w+)(\S*)", getattr(arch, which)):
        yield slot, not perhaps, bias


def slot_shapes(hp, arch):
    """Return {slot: shape} of all that a layer of the family may hold.

    hp: Hparams, or what else has hidden, n_heads, n_kv_heads, head_dim and ffn
    """
    q_dim, kv_dim = hp.n_heads * hp.head_dim, hp.n_kv_heads * hp.head_dim
    q_norm, k_norm = (q_dim, kv_dim) if arch.qk_norm == "all" else (hp.head_dim, hp.head_dim)
    shapes = {
        **dict.fromkeys(NORMS, (hp.hidden,)), "q_norm": (q_norm,), "k_norm": (k_norm,),
        "wqkv": (q_dim + 2 * kv_dim, hp.hidden), "wq": (q_dim, hp.hidden),
        "wk": (kv_dim, hp.hidden), "wv": (kv_dim, hp.hidden), "wo": (hp.hidden, q_dim),
        "sinks": (hp.n_heads,),
    }
    widths = {"": hp.ffn}
    if arch.experts:
        widths.update({"_experts": hp.expert_ffn, "_shared": hp.shared_ffn})
        shapes.update({"router": (hp.n_experts, hp.hidden), "shared_gate": (1, hp.hidden)})
    for kind, ffn in widths.items():
        shapes.update(dict.fromkeys(("w_gate" + kind, "w_up" + kind), (ffn, hp.hidden)))
        shapes["w_gate_up" + kind] = 2 * ffn, hp.hidden
        shapes["w_down" + kind] = hp.hidden, ffn
    return shapes


# 6.2 Hyperparameters

DEFAULT_CTX = 8192                      # positions, where the model was trained for more
GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
MAX_EXPERTS, MAX_USED_EXPERTS = 512, 64  # there may be, of a layer; and for one row


class Hparams:
    """The numbers of one model, checked, under the names of the glossary.

    path: the file they came from   numbers: its metadata or config.json
    arch_name, arch: the row of ARCHITECTURES   seen: the keys that were asked for
    Raises KshipraError naming the key when one is missing, of a wrong type or out of range.
    """

    def __init__(self, checkpoint):
        self.path, self.is_gguf = checkpoint.path, isinstance(checkpoint, GGUF)
        self.numbers = checkpoint.metadata if self.is_gguf else checkpoint.config
        self.seen = set()
        self._find_arch()
        self._read_sizes()
        self._read_experts()
        self._read_numbers()
        self._read_windows()
        self._check_rest()

    def _find_arch(self):
        """Set arch_name and arch."""
        key = "general.architecture" if self.is_gguf else "model_type"
        name = self.numbers.get(key)
        if isinstance(name, str) and not self.is_gguf:
            name = HF_MODEL_TYPES.get(name, name)
        if not isinstance(name, str) or name not in ARCHITECTURES:
            raise KshipraError(f"architecture {_quote(name)} ({key}) is not supported; supported "
                               f"are {', '.join(ARCHITECTURES)}", self.path)
        self.arch_name, self.arch = name, ARCHITECTURES[name]
        self.n_experts = self.integer("n_experts")
        if self.is_gguf and name == "llama" and self.n_experts:
            self.arch = ARCHITECTURES["mixtral"]        # a GGUF calls it llama

    def _read_sizes(self):
        self.n_layers = self.integer("n_layers")
        self.hidden = self.integer("hidden")
        self.n_heads = self.integer("n_heads")
        self.n_kv_heads = self.integer("n_kv_heads", self.n_heads)
        if self.n_heads % self.n_kv_heads:
            self.fail("n_kv_heads", self.n_kv_heads, f"it must divide the {self.n_heads} heads")
        if self.hidden % self.n_heads and self.get("head_dim") is None:
            self.fail("n_heads", self.n_heads, f"it must divide the width {self.hidden}")
        self.head_dim = self.integer("head_dim", self.hidden // self.n_heads)
        if self.integer("value_dim", self.head_dim) != self.head_dim:
            self.fail("value_dim", self.get("value_dim"),
                      f"keys and values must be equally wide, here {self.head_dim}")
        self.ffn = self.integer("ffn")
        self.n_ctx = self.integer("n_ctx")
        # Beyond this many positions Phi 3 turns by other frequencies, whatever the text's length;
        # so such a context is made only if it is asked for.
        self.short_ctx = self.n_ctx
        if "rope_long" in self.arch.outer:
            self.short_ctx = min(self.n_ctx, self.integer("original_ctx", self.n_ctx))
        self.ctx_size = self.check_ctx(None)

    def _read_experts(self):
        """Set n_used, normalize, and expert_ffn and shared_ffn, what ffn is in an expert."""
        if not self.arch.experts:
            if self.n_experts:
                self.fail("n_experts", self.n_experts, "of mixtures of experts " + ", ".join(
                    name for name, arch in ARCHITECTURES.items() if arch.experts)
                    + " are supported")
            return
        if not 1 <= self.n_experts <= MAX_EXPERTS:
            self.fail("n_experts", self.n_experts, f"1 to {MAX_EXPERTS} experts are supported")
        self.n_used = self.integer("n_used")
        most = min(self.n_experts, MAX_USED_EXPERTS)
        if self.n_used > most:
            self.fail("n_used", self.n_used, f"of {self.n_experts} experts a row can use 1 to "
                      f"{most}")
        self.expert_ffn = self.integer("expert_ffn")
        self.shared_ffn = self.integer("shared_ffn") if "_shared" in self.arch.slots else 0
        self.normalize = self.flag("normalize")

    def _read_numbers(self):
        eps = "rms_eps" if self.arch.norm == "rms" else "layer_eps"
        self.eps = f32(self.number(eps))
        if not self.eps:
            self.fail(eps, self.get(eps), "it must be above 0, or a row of zeros has no norm")
        self.attn_cap = f32(self.number("attn_cap"))
        self.final_cap = f32(self.number("final_cap"))
        self.embed_scale = f32(math.sqrt(self.hidden)) if self.arch.embed_by_root else 1.0
        self.attn_scale = f32(1 / math.sqrt(self._query_scalar()))
        self.residual_scale = self.logit_scale = 1.0
        for name in SCALES:
            value = self.get(name, self.default(name))
            if value is None or (self.is_gguf and value == 0):
                continue
            if name not in self.arch.scales and not (self.is_gguf and name == "attn_scale"):
                if value != 1:
                    self.fail(name, value, f"with {self.arch_name} only 1 is supported")
            elif not self.number(name):
                self.fail(name, value, "it must be above 0")
            else:                       # logits alone are divided
                value = 1 / self.number(name) if name == "logit_scale" else self.number(name)
                setattr(self, name, f32(value))
        self.parallel = False
        if self.arch.parallel is not None:
            self.parallel = self.flag("parallel", self.arch.parallel is True)
        part = self.number("rope_part")
        if part != 1 and not self.arch.partial:
            self.fail("rope_part", part, f"with {self.arch_name} only 1 is supported")
        self.n_rot = self.integer("n_rot", int(self.head_dim * part))
        if self.n_rot % 2 or self.n_rot > self.head_dim:
            name, value = ("n_rot", self.n_rot) if self.is_gguf else ("rope_part", part)
            self.fail(name, value, f"an even number of the {self.head_dim} dimensions must turn")

    def _query_scalar(self):
        """Return the number whose root the scores are divided by: head_dim, but for Gemma.

        A GGUF does not hold it; of the published models only the 27B ones differ from head_dim.
        Source: llama.cpp, llama-model.cpp, f_attention_scale.
        """
        if self.is_gguf:
            large = GEMMA_27B_LAYERS.get(self.arch_name) == self.n_layers
            return self.hidden / self.n_heads if large else self.head_dim
        scalar = self.number("query_scalar", self.head_dim)
        if not scalar:
            self.fail("query_scalar", scalar, "it must be above 0")
        return scalar

    def _read_windows(self):
        """Set what layer_window and layer_has_rope ask for.

        layer_types: of config.json, "sliding_attention" or "full_attention" for each layer
        pattern: of a GGUF, a list that is true where a layer has a window; or a number n,
        every n-th layer sees all, with 0 none does
        """
        self.window = self.integer("window")
        if self.arch.window_unused:
            self.window = 0
        self.windowed = self.numbers.get("layer_types") if not self.is_gguf else None
        self.seen.add("layer_types")
        pattern = self.get("pattern")
        if self.windowed is not None:
            kinds = {"full_attention": False, "sliding_attention": True}
            if not isinstance(self.windowed, list) or not all(
                    isinstance(kind, str) and kind in kinds for kind in self.windowed):
                self._refuse("layer_types", self.windowed, list(kinds))
            self.windowed = [kinds[kind] for kind in self.windowed]
        elif isinstance(pattern, (list, array)) and self.is_gguf:
            self.windowed = list(map(bool, pattern))
        self.window_every = self.arch.window_every
        self.no_rope_every = self.arch.no_rope_every
        if self.no_rope_every:
            self.no_rope_every = self.integer("no_rope_every", self.no_rope_every)
        self.ropes = None if self.is_gguf else self.at("no_rope_layers")
        if self.ropes is not None:
            known = isinstance(self.ropes, list) and all(rope in (0, 1) for rope in self.ropes)
            if not known or (0 in self.ropes and not self.arch.no_rope_every) \
                    or len(self.ropes) < self.n_layers:
                self._refuse("no_rope_layers", self.ropes, "1 for each layer")
        if self.windowed is not None:
            if len(self.windowed) < self.n_layers or (any(self.windowed) and not self.window):
                if self.is_gguf:
                    self.fail("pattern", pattern, f"it needs {self.n_layers} layers and a window")
                self._refuse("layer_types", self.numbers["layer_types"],
                             f"{self.n_layers} layers and a sliding window")
        elif pattern is not None:
            if not self.arch.window_every:
                self.fail("pattern", pattern, f"with {self.arch_name} it is not supported")
            self.window_every = self.integer("pattern")

    def layer_window(self, i):
        """Return how many positions layer i looks back, itself included; 0 for all."""
        if self.windowed is not None:
            return self.window if self.windowed[i] else 0
        every = self.window_every
        return 0 if every and (i + 1) % every == 0 else self.window

    def layer_has_rope(self, i):
        """Return whether layer i turns its keys; no_rope_layers is a list, 1 for those that do."""
        every = self.no_rope_every
        if self.ropes is not None and every:
            return bool(self.ropes[i])
        return self.arch.rope is not None and not (every and (i + 1) % every == 0)

    def get(self, name, default=None):
        """Return a hyperparameter as it stands in the file, or the default."""
        gguf_key, config_keys = KEYS[name]
        if self.is_gguf:
            value = self.at(f"{self.arch_name}.{gguf_key}") if gguf_key else None
            return default if value is None else value
        kind = "sliding_attention" if name == "local_base" else "full_attention"
        places = [self.numbers]
        fixed = self.arch.rules[name](self) if name in self.arch.rules else None
        if fixed is not None:
            self.seen.update(config_keys)
            return fixed
        if name in ("rope_base", "local_base", "rope_part"):
            places.append(self.rope_parameters(kind))
        found = default
        self.seen.update(config_keys)
        for place in places:
            for key in config_keys:
                if place.get(key) is not None:
                    return place[key]
                if key in place:
                    found = NULL_MEANS.get(name, found)
        return found

    def at(self, key):
        """Return what stands in the file, and note that the key was asked for."""
        self.seen.add(key)
        return self.numbers.get(key)

    def default(self, name, other=None):
        """Return what a hyperparameter is where the file does not say; None: it has to."""
        own, common = (self.arch.gguf_defaults, GGUF_DEFAULTS) if self.is_gguf else (
            self.arch.defaults, HF_DEFAULTS)
        value = own[name] if name in own else common.get(name, other)
        return value(self) if callable(value) else value

    def rope_parameters(self, kind="full_attention"):
        """Return what config.json says about rope, of one kind of layers.

        rope_parameters may hold an object for each kind; rope_scaling, its older name, is of
        the layers that see all.
        """
        merged = {}
        for key in ("rope_parameters", "rope_scaling"):
            rope = self.at(key) or {}
            part = rope.get(kind, rope) if isinstance(rope, dict) else rope
            if not isinstance(part, dict):
                raise KshipraError(f"{key} is {_quote(rope)}, not an object", self.path)
            if kind == "full_attention":
                merged.update(part)
            elif part is not rope:
                merged.update(part)
        if not merged and kind == "full_attention":
            merged.update(self.default("scaling") or {})
        if kind == "sliding_attention" and "rope_theta" in merged:
            merged["rope_local_base_freq"] = merged["rope_theta"]
        return merged

    def fail(self, name, value, why):
        """Raise the error that a hyperparameter's value deserves."""
        gguf_key, config_keys = KEYS[name]
        key = f"{self.arch_name}.{gguf_key}" if self.is_gguf else next(
            (key for key in config_keys if key in self.numbers), (*config_keys, name)[0])
        raise KshipraError(f"{key} ({name}) is {_quote(value)}: {why}; the file is damaged or of "
                           "a kind that is not supported", self.path)

    def integer(self, name, default=None):
        value = self.get(name, self.default(name, default))
        least = 0 if name in ("window", "pattern", "n_experts") else 1
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2 ** 31:
            self.fail(name, value, f"a whole number of at least {least} is needed"
                      if value is not None else "it is missing")
        return value

    def number(self, name, default=None):
        value = self.get(name, self.default(name, default))
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(name, value, "a number is needed" if value is not None else "it is missing")
        if not 0 <= value < 1e30:
            self.fail(name, value, "a finite number that is not negative is needed")
        return float(value)

    def flag(self, name, default=None):
        value = self.get(name, self.default(name, default))
        if not isinstance(value, bool):
            self.fail(name, value, "true or false is needed")
        return value

    def check_ctx(self, ctx_size):
        """Return the positions of the cache: what was asked for, or what suits the model."""
        if ctx_size is None:
            return min(self.n_ctx, DEFAULT_CTX, self.short_ctx)
        ctx_size = check_whole("ctx_size", ctx_size, 1, 2 ** 31 - 1)
        if self.arch.rope is None and ctx_size > self.n_ctx:
            raise KshipraError(f"ctx_size is {ctx_size}, more than the {self.n_ctx} positions "
                               "that this model has learned; use a smaller one", self.path)
        return ctx_size

    def _check_rest(self):
        """Refuse a file that asks for something which nothing here would compute."""
        self.act = self.arch.act
        if self.is_gguf:
            for key, need in GGUF_MUST_BE.items():
                key = f"{self.arch_name}.{key}"
                if key not in self.seen:
                    self._must_be(key, (None, need))
            return
        for key, need in {**CONFIG_MUST_BE, **self.arch.must}.items():
            if key not in self.seen:
                self._must_be(key, (None, need))
        self._check_act()

    def _check_act(self):
        """Set act from config.json, which may choose among the GELUs."""
        keys = ("hidden_activation", "hidden_act", "activation_function", "activation")
        self.seen.update(keys)
        key = next((k for k in keys if self.numbers.get(k)), "hidden_act")
        value = self.numbers.get(key)
        if value is None:
            return
        gelu = self.arch.act in ("gelu", "gelu_erf")
        known = [name for name, act in ACTS.items() if act.startswith("gelu") == gelu]
        if not isinstance(value, str) or value not in known:
            self._refuse(key, value, known)
        # the first configs of Gemma say "gelu" but mean the tanh form
        if gelu and not self.arch.embed_by_root:
            self.act = ACTS[value]

    def _must_be(self, key, known):
        value = self.at(key)
        if value not in known:
            self._refuse(key, value, known[1])

    def _refuse(self, key, value, wanted):
        raise KshipraError(f"{key} is {_quote(value)}; {self.arch_name} is supported with "
                           f"{_quote(wanted)} only", self.path)

    def warn_unread(self):
        """Say, in one line, which keys of the architecture nothing here has ever looked at."""
        if self.is_gguf:
            prefix = self.arch_name + "."
            left = [key for key in self.numbers if key.startswith(prefix)
                    and key not in self.seen and key[len(prefix):] not in HARMLESS_GGUF]
        else:
            left = [key for key in self.numbers
                    if key not in self.seen and key not in HARMLESS_CONFIG]
        if left:
            more = f" and {len(left) - 5} more" if len(left) > 5 else ""
            warn("not known here, so not heeded: " + ", ".join(
                map(_quote, sorted(left)[:5])) + more)


# 6.3 Rotary positions.  Each pair of a head turns by position * frequency.  Stretching a
# model to a longer context changes the frequencies: by a number for each pair (llama3, or
# rope_freqs in a GGUF; longrope, one for short texts and one for long), by one number for all
# (linear), or by a blend of both ends (YaRN).

class RopeTable:
    """Cosines and sines, made in double and rounded to float32, grown as positions come up.

    n_rot: dimensions of a head that turn   pairing: "interleaved" or "half"
    freqs: angle per position of each pair; magnitude: factor on cos and sin (YaRN, longrope)
    cos, sin: array('f') (n_positions, n_rot / 2), flat
    """

    def __init__(self, pairing, freqs, magnitude=1.0):
        self.pairing, self.freqs, self.magnitude = pairing, freqs, magnitude
        self.n_rot = 2 * len(freqs)
        self.cos, self.sin = array("f"), array("f")

    def rows(self, pos):
        """Return (cos, sin) of one position, each (n_rot / 2,)."""
        half = len(self.freqs)
        new = range(len(self.sin) // half, pos + 1)
        if new:                         # sines last: they say how many positions there are
            cos, sin = (array("f", [part(p * f) * self.magnitude for p in new for f in self.freqs])
                        for part in (math.cos, math.sin))
            del self.cos[new[0] * half:]
            self.cos.extend(cos)
            self.sin.extend(sin)
        return self.cos[pos * half:(pos + 1) * half], self.sin[pos * half:(pos + 1) * half]


def rope_scaling(hp, kind="full_attention"):
    """Return the scaling as a dict of Hugging Face's names, whatever the file; {} for none.

    kind: of the layers, "full_attention" or "sliding_attention"
    A GGUF's attn_factor multiplies the magnitude, whatever the type; its yarn_attn_factor, a
    config.json's attention_factor, is YaRN's magnitude itself.
    """
    return _gguf_scaling(hp, kind) if hp.is_gguf else _hf_scaling(hp, kind)


def _hf_scaling(hp, kind):
    scaling = hp.rope_parameters(kind)
    type_ = scaling.get("rope_type", scaling.get("type", "default"))
    more = sorted(set(scaling) & {"mscale", "mscale_all_dim", "short_mscale", "long_mscale"})
    if more:
        raise KshipraError(f"rope scaling {_quote(type_)} with {more[0]} is not supported",
                           hp.path)
    if not isinstance(scaling.get("truncate", True), bool):
        raise KshipraError(f"rope scaling has truncate = {_quote(scaling['truncate'])}; true or "
                           "false is needed", hp.path)
    if type_ == "su":                   # its first name
        type_ = "longrope"
    scaling.setdefault("original_max_position_embeddings", hp.get("original_ctx"))
    return {} if type_ == "default" else dict(scaling, rope_type=type_)


def _gguf_scaling(hp, kind):
    def get(key, default=None):
        value = hp.at(f"{hp.arch_name}.rope.{key}")
        return default if value is None else value

    if kind == "sliding_attention":
        return {}
    scaling = {"factor": get("scaling.factor", get("scale_linear")),
               "original_max_position_embeddings": get("scaling.original_context_length"),
               "beta_fast": get("scaling.yarn_beta_fast"),
               "beta_slow": get("scaling.yarn_beta_slow"),
               "attention_factor": get("scaling.yarn_attn_factor"),
               "attn_factor": get("scaling.attn_factor")}
    # A factor without a type is that of the oldest files, which knew no other.
    type_ = get("scaling.type", "linear" if scaling["factor"] not in (None, 0, 1) else "none")
    if type_ == "none" and scaling["attn_factor"] in (None, 1):
        return {}
    return dict(scaling, rope_type=type_)


def _scaling_number(hp, scaling, key, default=None):
    value = scaling.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1e-9 < value < 1e12:
        raise KshipraError(f"rope scaling {_quote(scaling['rope_type'])} has {key} = "
                           f"{_quote(value)}; a positive number is needed", hp.path)
    return value


def scale_none(hp, scaling, freqs, base):
    return freqs, 1.0


def scale_linear(hp, scaling, freqs, base):
    factor = _scaling_number(hp, scaling, "factor")
    return [f / factor for f in freqs], 1.0


def scale_llama3(hp, scaling, freqs, base):
    """Return frequencies for Llama 3.1's longer context.

    Wavelengths beyond original / low_freq_factor are stretched by factor, those below
    original / high_freq_factor stay, and those between are blended.
    Source: Llama 3.1 reference code, apply_scaling.
    """
    factor, low, high, original = (_scaling_number(hp, scaling, key) for key in (
        "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    if not low < high:
        raise KshipraError(f"rope scaling 'llama3' has low_freq_factor = {low} and "
                           f"high_freq_factor = {high}; the first must be smaller", hp.path)
    out = []
    for f in freqs:
        turns = original * f / (2 * math.pi)          # over the original context
        keep = min(1.0, max(0.0, (turns - low) / (high - low)))
        out.append(keep * f + (1 - keep) * f / factor)
    return out, 1.0


def scale_yarn(hp, scaling, freqs, base):
    """Return (frequencies, magnitude) of YaRN: fast pairs stay, slow ones are stretched.

    Source: Peng et al. (2023), YaRN, section 3.2 and eq. 22.
    """
    factor = _scaling_number(hp, scaling, "factor")
    original = _scaling_number(hp, scaling, "original_max_position_embeddings", hp.n_ctx)
    n_rot = 2 * len(freqs)

    def pair_with(turns):
        """Return the (fractional) pair that makes so many turns over the original context."""
        return n_rot * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = pair_with(_scaling_number(hp, scaling, "beta_fast", 32.0))
    high = pair_with(_scaling_number(hp, scaling, "beta_slow", 1.0))
    if scaling.get("truncate") is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(0, low), min(n_rot - 1, high)
    out = []
    for i, f in enumerate(freqs):
        stretch = min(1.0, max(0.0, (i - low) / max(high - low, 0.001)))
        out.append(stretch * f / factor + (1 - stretch) * f)
    magnitude = _scaling_number(hp, scaling, "attention_factor", 0.1 * math.log(factor) + 1
                                if factor > 1 else 1.0)
    return out, magnitude


def scale_longrope(hp, scaling, freqs, base):
    """Return (frequencies, magnitude) of LongRoPE: each pair has a factor for short contexts and
    one for long ones.  Those of a GGUF are tensors, which rope_table has applied.

    Source: Ding et al. (2024), LongRoPE; for the magnitude transformers, modeling_rope_utils.py.
    """
    if hp.is_gguf:
        return freqs, 1.0
    key = "long_factor" if hp.ctx_size > hp.short_ctx else "short_factor"
    factors = scaling.get(key)
    if not isinstance(factors, list) or len(factors) != len(freqs):
        raise KshipraError(f"rope scaling 'longrope' has {key} = {_quote(factors)}; a list of "
                           f"{len(freqs)} numbers is needed", hp.path)
    factors = [_scaling_number(hp, {**scaling, key: c}, key) for c in factors]
    factor = _scaling_number(hp, scaling, "factor", hp.n_ctx / hp.short_ctx)
    magnitude = _scaling_number(hp, scaling, "attention_factor", math.sqrt(
        1 + math.log(factor) / math.log(hp.short_ctx)) if factor > 1 else 1.0)
    return [f / c for f, c in zip(freqs, factors)], magnitude


SCALINGS = {"none": scale_none, "linear": scale_linear, "llama3": scale_llama3,
            "yarn": scale_yarn, "longrope": scale_longrope}


def rope_table(hp, kind="full_attention", factors=None):
    """Return the RopeTable of one kind of layers.

    factors: the numbers of rope_freqs.weight or its like, one for each pair, or None
    """
    base = "local_base" if kind == "sliding_attention" else "rope_base"
    value = hp.number(base)
    if not 1 < value < 1e12:
        hp.fail(base, value, "a number above 1 is needed")
    freqs = [value ** (-2 * i / hp.n_rot) for i in range(hp.n_rot // 2)]
    if factors is not None:
        if len(factors) != len(freqs) or not all(1e-9 < c < 1e9 for c in factors):
            raise KshipraError(f"tensor 'rope_freqs.weight' or 'rope_factors_...' holds "
                               f"{len(factors)} factors; {len(freqs)} positive ones are needed",
                               hp.path)
        freqs = [f / c for f, c in zip(freqs, factors)]
    scaling = rope_scaling(hp, kind)
    type_ = scaling.get("rope_type", "none")
    if not isinstance(type_, str) or type_ not in SCALINGS:
        raise KshipraError(f"rope scaling {_quote(type_)} is not supported; supported are "
                           + ", ".join(SCALINGS), hp.path)
    freqs, magnitude = SCALINGS[type_](hp, scaling, freqs, value)
    if scaling.get("attn_factor") is not None:
        magnitude *= _scaling_number(hp, scaling, "attn_factor")
    return RopeTable(hp.arch.rope if hp.is_gguf else "half", freqs, magnitude)


# 6.4 Weights

class Weights:
    """The tensors of a model or of one layer, by slot; a bias is slot + "_b", absent: None.

    Of a layer besides   rope: RopeTable or None   attention: Attention
    """

    def __getattr__(self, slot):        # only asked for what was never set
        return None


class Attention(NamedTuple):
    """What the attention of one layer needs to know beside q, k and v."""
    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    window: int = 0                     # positions a row looks back, itself included; 0: all
    cap: float = 0.0                    # softcap on the scores; 0: none
    sinks: object = None                # array('f') (n_heads,): a learnt score without a value


# How files store what here is a matrix (n_out, n_in), or a vector.

TRANSFORMS = {
    "transposed": lambda t: t.T if isinstance(t, Tensor) else t,
    "plus_one": lambda values: array("f", [v + 1.0 for v in values]),
}


def _closed_up(t):
    """Return t, or a copy of it whose rows lie one after another; each row is whole blocks."""
    if t.contiguous:
        return t
    n_out, n_in = t.shape
    if t.strides[1] == 1:
        rows = [t[i].data for i in range(n_out)]
    else:
        items = array({2: "H", 4: "I"}[t.format.block_bytes], bytes(t.data))
        down, along = t.strides
        rows = [items[i * down:i * down + (n_in - 1) * along + 1:along] for i in range(n_out)]
    return Tensor(t.name, t.format, t.shape, b"".join(rows))


def _take_rows(t, ranges):
    """Return the rows of a Tensor, or the elements of an array, that a list of ranges names."""
    if len(ranges) == 1:
        return t[ranges[0].start:ranges[0].stop:ranges[0].step]
    parts = [t[r.start:r.stop:r.step] for r in ranges]
    if isinstance(t, array):
        return functools.reduce(operator.add, parts)
    return Tensor(t.name, t.format, (sum(len(r) for r in ranges), *t.shape[1:]),
                  b"".join(part.data for part in parts))


def fused_rows(sizes, stored=(), n_kv_heads=1):
    """Return, for each part of a fused tensor, the ranges of the rows that are its.

    sizes: rows of each part   stored: nothing, one part below another; "by_head", a run of each
    part for every head of keys; "alternating", a row of each in turn
    """
    if "alternating" in stored:
        return [[range(i, sum(sizes), len(sizes))] for i in range(len(sizes))]
    n_runs = n_kv_heads if "by_head" in stored else 1
    cuts = [0, *itertools.accumulate(size // n_runs for size in sizes)]
    return [[range(i * cuts[-1] + a, i * cuts[-1] + b) for i in range(n_runs)]
            for a, b in zip(cuts, cuts[1:])]


def _mxfp4_blocks(codes, scales):
    """Return ggml's blocks of what Hugging Face's files hold apart.

    codes: 16 bytes a block, the even one of two neighbours low   scales: a byte for each block
    In ggml's block the low halves are the first 16 numbers, the high halves the last 16:

      byte  0 ........ 15           codes[i]: numbers 2i, 2i + 1
      byte  0      1 ........ 16    scale, then byte j: numbers j, j + 16
    """
    out = bytearray(17 * len(scales))
    out[::17] = scales
    mask = int.from_bytes(b"\x0f" * len(scales), "little")
    columns = [int.from_bytes(codes[i::16], "little") for i in range(16)]
    for j in range(16):
        low, high = columns[j // 2], columns[j // 2 + 8]
        if j % 2:
            low, high = low >> 4, high >> 4
        both = low & mask | (high & mask) << 4
        out[1 + j::17] = both.to_bytes(len(scales), "little")
    return bytes(out)


class Loader:
    """Hands out the tensors of a checkpoint by slot, checks shapes, and knows what is left."""

    def __init__(self, checkpoint, hp):
        self.hp, self.tensors = hp, checkpoint.tensors
        self.left = set(self.tensors)
        self.names = {**GGUF_NAMES, **hp.arch.gguf_names} if hp.is_gguf else {
            **HF_NAMES, **hp.arch.hf_names}
        self.stored = {} if hp.is_gguf else hp.arch.stored
        # GPT-2's first release left out the first part of all names but that of the head.
        first, _, rest = self.names["embed"].partition(".")
        if rest and first + "." + rest + ".weight" not in self.tensors \
                and rest + ".weight" in self.tensors:
            self.names = {slot: name[len(first) + 1:] if str(name).startswith(first + ".")
                          else name for slot, name in self.names.items()}

    def names_of(self, slot, layer=None, kind="weight", expert=None):
        """Return the names that a tensor may have in this file."""
        found = self.names[slot]
        if kind == "bias" and slot + "_b" in self.names:
            found = self.names[slot + "_b"]
        prefix = "" if layer is None else self.names["layers"].format(layer)
        names = [prefix + (name[:-1] if name.endswith("!") else f"{name}.{kind}")
                 for name in ((found,) if isinstance(found, str) else found)]
        return [name.format(expert or 0) for name in names]

    def name(self, slot, layer=None, kind="weight", expert=None):
        """Return the tensor's name in this file; of several, the first that is there."""
        names = self.names_of(slot, layer, kind, expert)
        return next((name for name in names if name in self.tensors), names[0])

    def has(self, slot, layer=None, kind="weight"):
        return slot in self.names and self.name(slot, layer, kind) in self.left

    def stored_so(self, slot, how):
        """Return whether this file stores a slot in the way `how`."""
        return how in self.stored.get(slot, "").split()

    def tensor(self, slot, layer, kind, shape, expert=None):
        """Return a tensor after checking its shape; shape: (n_out, n_in) or (n,)."""
        name = self.name(slot, layer, kind, expert)
        t = self.tensors.get(name)
        if t is None:
            names = " or ".join(map(repr, self.names_of(slot, layer, kind, expert)))
            raise KshipraError(f"tensor {names} is missing; the file is incomplete, so fetch or "
                               "convert it again", self.hp.path)
        self.left.discard(name)
        if kind == "weight" and self.stored_so(slot, "transposed"):
            shape = shape[:-2] + shape[:-3:-1]
        if shape[:1] == (1,) and tuple(t.shape) == shape[1:]:   # one row is a vector in a GGUF
            t = Tensor(t.name, t.format, shape, t.data, t.offset, t.path)
        if tuple(t.shape) != tuple(shape):
            raise KshipraError(f"tensor {name!r} has shape {tuple(t.shape)}; the hyperparameters "
                               f"ask for {tuple(shape)}", self.hp.path, t.offset)
        t.data                          # raises for a type that cannot be computed with
        return t

    def read(self, slot, layer, kind, shape):
        """Return a matrix as a Tensor, a norm's weight or a bias as array('f')."""
        t = self.tensor(slot, layer, kind, shape)
        value = t.floats() if len(shape) == 1 else t
        for change in self.stored.get(slot, "").split() if kind == "weight" else ():
            value = TRANSFORMS.get(change, lambda value: value)(value)
        return value

    def read_parts(self, slot, layer, kind, shape):
        """Return the parts of a fused tensor, or of its bias."""
        whole = self.read(slot, layer, kind, shape)
        return [_take_rows(whole, ranges) for ranges in self.part_rows(slot)]

    def part_rows(self, slot):
        """Return, for each part of a fused tensor, the ranges of its rows."""
        shapes = slot_shapes(self.hp, self.hp.arch)
        return fused_rows([shapes[part][0] for part in FUSED[slot]],
                          self.stored.get(slot, "").split(), self.hp.n_kv_heads)

    def experts(self, slot, layer, shape):
        """Return the matrices of all experts, a list of Tensor (n_out, n_in), one format."""
        n, names = self.hp.n_experts, [self.name(slot, layer, "weight", i) for i in (0, 1)]
        if names[0] + "_blocks" in self.tensors:
            whole = self.mxfp4(names[0], (n, *shape))
            return [whole[i] for i in range(n)]
        if names[0] == names[1]:
            whole = self.tensor(slot, layer, "weight", (n, *shape))
            turned = self.stored_so(slot, "transposed")
            return [_closed_up(whole[i].T) if turned else whole[i] for i in range(n)]
        found = [self.tensor(slot, layer, "weight", shape, i) for i in range(n)]
        for t in found:
            if t.format is not found[0].format:
                raise KshipraError(f"tensor {t.name!r} is of type {t.format.name}, but that of "
                                   f"the first expert of {found[0].format.name}; the experts of "
                                   "a layer must be of one type", self.hp.path, t.offset)
        return found

    def mxfp4(self, name, shape):
        """Return a Tensor of the format MXFP4 from blocks and scales that lie apart."""
        parts = []
        for part, tail in (("_blocks", (shape[-1] // 32, 16)), ("_scales", (shape[-1] // 32,))):
            t, wanted = self.tensors.get(name + part), (*shape[:-1], *tail)
            if t is None or tuple(t.shape) != wanted or t.n_bytes != math.prod(wanted):
                raise KshipraError(f"tensor {name + part!r} is missing, or not of {wanted} bytes",
                                   self.hp.path)
            self.left.discard(name + part)
            parts.append(bytes(t._data))
        return Tensor(name, FORMATS["MXFP4"], shape, _mxfp4_blocks(*parts))

    def embedding(self):
        """Return the embedding matrix, whose rows say how large the vocabulary is."""
        name = self.name("embed")
        if name not in self.tensors or len(self.tensors[name].shape) != 2:
            raise KshipraError(f"tensor {name!r}, a matrix, is missing; the file is incomplete or "
                               "holds a vocabulary only", self.hp.path)
        n_vocab = self.hp.get("n_vocab")
        if n_vocab not in (None, self.tensors[name].shape[0]):
            self.hp.fail("n_vocab", n_vocab, f"the embedding has {self.tensors[name].shape[0]} "
                         "rows")
        return self.tensor("embed", None, "weight",
                           (self.tensors[name].shape[0], self.hp.hidden))

    def layer(self, i):
        """Return the Weights of layer i."""
        shapes, layer = slot_shapes(self.hp, self.hp.arch), Weights()
        for slot, must, bias in slots_of(self.hp.arch):
            # With both halves on the same x one norm may do for both.
            spare = not must and (slot != "ffn_norm" or self.hp.parallel)
            if spare and not self.has(slot, i):
                continue
            # A fused slot, or its parts, where the file has them apart.
            apart = slot in FUSED and (slot not in self.names or self.has(FUSED[slot][0], i))
            for each in FUSED[slot] if apart else (slot,):
                self.fill(layer, each, i, shapes[each], bias)
        return layer

    def fill(self, layer, slot, i, shape, bias):
        """Set one slot of a layer, with its bias, or those that are fused in it."""
        # Whether an optional bias is there is read off the first layer.
        with_bias = bias == "+b" or (bias == "?b" and self.name(slot, 0, "bias") in self.tensors)
        if slot.endswith("_experts"):           # w_gate and so on, but lists
            self.fill_experts(layer, slot, i, shape, bias)
        elif slot in FUSED:
            for part, value in zip(FUSED[slot], self.read_parts(slot, i, "weight", shape)):
                setattr(layer, part, value)
            if with_bias:
                for part, value in zip(FUSED[slot], self.read_parts(slot, i, "bias", shape[:1])):
                    setattr(layer, part + "_b", value)
        else:
            setattr(layer, slot, self.read(slot, i, "weight", shape))
            if with_bias:
                setattr(layer, slot + "_b", self.read(slot, i, "bias", shape[:1]))

    def fill_experts(self, layer, slot, i, shape, bias):
        """Set a slot of lists of matrices; their biases are one matrix, a row for each."""
        parts = FUSED.get(slot, (slot,))
        rows = self.part_rows(slot) if slot in FUSED else [[range(shape[0])]]
        matrices = self.experts(slot, i, shape)
        biases = self.tensor(slot, i, "bias", (len(matrices), shape[0])) if bias else None
        for part, (cut,) in zip(parts, rows):
            part = part[:-len("_experts")]
            setattr(layer, part, [_closed_up(w[cut.start:cut.stop:cut.step]) for w in matrices])
            if bias:
                setattr(layer, part + "_b",
                        _closed_up(biases[:, cut.start:cut.stop:cut.step]))

    def check_all_used(self):
        """Refuse tensors that nothing here would read: the answers would be wrong."""
        left = sorted(n for n in self.left if not UNUSED_TENSORS.fullmatch(n))
        if left:
            raise KshipraError(f"{len(left)} tensors would be ignored, the first is {left[0]!r}; "
                               "this variant of the architecture is not supported", self.hp.path)


def load_weights(checkpoint, hp):
    """Return Weights with .layers, a list of Weights; sets hp.n_vocab.

    hp.ctx_size: the positions of the cache
    """
    load, w = Loader(checkpoint, hp), Weights()
    w.embed = load.embedding()
    hp.n_vocab = w.embed.shape[0]
    shapes = {"pos_embed": (hp.n_ctx, hp.hidden), "out_norm": (hp.hidden,),
              "lm_head": (hp.n_vocab, hp.hidden),
              **dict.fromkeys(("rope_freqs", "rope_long", "rope_short"), (hp.n_rot // 2,))}
    if hp.arch.parallel == "one norm":      # what converters write of it is often wrong
        hp.parallel = not (load.has("ffn_norm", 0) or load.has("ffn_norm", 1))
    w.layers = [load.layer(i) for i in range(hp.n_layers)]
    for slot, must, bias in slots_of(hp.arch, "outer"):
        if slot != "embed" and (must or load.has(slot)):
            setattr(w, slot, load.read(slot, None, "weight", shapes[slot]))
            if bias:
                setattr(w, slot + "_b", load.read(slot, None, "bias", shapes[slot][:1]))
    tied = hp.flag("tied")
    if w.lm_head is None:
        if not hp.is_gguf and not tied:
            raise KshipraError(f"tensor {load.name('lm_head')!r} is missing and "
                               "tie_word_embeddings is not true; the checkpoint is incomplete, so "
                               "fetch it again", hp.path)
        w.lm_head = w.embed
    load.check_all_used()
    set_positions(w, hp)
    hp.warn_unread()
    return w


def set_positions(w, hp):
    """Give each layer its attention and its rope table; layers share the tables."""
    full = local = None
    if hp.arch.rope is not None:
        by_length = w.rope_long if hp.ctx_size > hp.short_ctx else w.rope_short
        full = local = rope_table(hp, factors=w.rope_freqs or by_length)
        if hp.arch_name == "gemma3":        # local layers have a base of their own
            local = rope_table(hp, "sliding_attention")
    for i, layer in enumerate(w.layers):
        window = hp.layer_window(i)
        layer.rope = (local if window else full) if hp.layer_has_rope(i) else None
        layer.attention = Attention(hp.n_heads, hp.n_kv_heads, hp.head_dim, hp.attn_scale, window,
                                    hp.attn_cap, layer.sinks)


# 6.5 The forward pass

class Batch:
    """The rows of one step: parallel lists, and the rows whose logits are wanted.

    rows, wanted: as in Engine.step   cache: PagePool
    layers: (first, end), those to go through; None: all   hidden: (R, hidden), what the layers
    before the first one left; None: there are none   left: a list, to which the forward pass
    adds what the last of them leaves; None if nobody wants it
    """

    def __init__(self, rows, wanted, cache, layers=None, hidden=None, left=None):
        self.rows, self.wanted, self.cache = rows, wanted, cache
        self.layers, self.hidden, self.left = layers, hidden, left
        self.tokens, self.positions, self.sequences = map(list, zip(*rows))

    def padded(self, n_rows, n_wanted):
        """Return the batch with its last row, and the last wanted one, once more or oftener.

        What a row computes and stores is the same each time, so it changes nothing.
        """
        n_rows, n_wanted = n_rows - len(self.rows), n_wanted - len(self.wanted)
        if not n_rows and not n_wanted:
            return self
        return Batch(self.rows + self.rows[-1:] * n_rows,
                     self.wanted + self.wanted[-1:] * n_wanted, self.cache, self.layers,
                     self.hidden and self.hidden + self.hidden[-1:] * n_rows, self.left)


def norm(ops, hp, x, weight, bias=None):
    """Return x in the family's norm, or x itself where there is none."""
    if weight is None:
        return x
    if hp.arch.norm == "layer":
        return ops.layer_norm(x, weight, bias, hp.eps)
    return ops.rms_norm(x, weight, hp.eps)


def linear(ops, x, weight, bias, route=None):
    y = ops.matmul(weight, x, route)
    return y if bias is None else ops.add(y, bias) if route is None else ops.add(y, bias, route)


def scaled(ops, x, c):
    return x if c == 1 else ops.mul(x, c)


def turned(ops, hp, layer, x, weight, batch):
    """Return q or k as attention takes it: normed, where there is a weight, and rotated."""
    x = norm(ops, hp, x, weight)
    return x if layer.rope is None else ops.rope(x, batch.positions, layer.rope, hp.head_dim)


def self_attention(ops, hp, layer, n, batch, i):
    """Return what layer i's attention adds.   n: (R, hidden), normed   -> (R, hidden)"""
    q = linear(ops, n, layer.wq, layer.wq_b)
    k = linear(ops, n, layer.wk, layer.wk_b)
    v = linear(ops, n, layer.wv, layer.wv_b)
    q = turned(ops, hp, layer, q, layer.q_norm, batch)
    k = turned(ops, hp, layer, k, layer.k_norm, batch)
    return linear(ops, ops.attention(q, k, v, batch, i, layer.attention), layer.wo, layer.wo_b)


def gated(ops, hp, gate, up):
    """Return what the family makes of its gate and of what comes up."""
    if hp.act == "swiglu_clamped":
        return ops.swiglu_clamped(gate, up)
    return ops.mul(getattr(ops, hp.act)(gate), up)


def feed_forward(ops, hp, layer, n):
    """Return what a layer's second half adds.   n: (R, hidden), normed   -> (R, hidden)"""
    route = None
    if layer.router is not None:        # from here on a row is a pick, one expert's work
        route = ops.route(linear(ops, n, layer.router, layer.router_b), hp.n_used, hp.normalize)
    up = linear(ops, n, layer.w_up, layer.w_up_b, route)
    if layer.w_gate is not None:
        up = gated(ops, hp, linear(ops, n, layer.w_gate, layer.w_gate_b, route), up)
    else:
        up = getattr(ops, hp.act)(up)
    f = linear(ops, up, layer.w_down, layer.w_down_b, route)
    if route is not None:
        f = ops.mix(f, route)
    if layer.shared_gate is not None:   # an expert that every row uses, as much as it asks for
        up = gated(ops, hp, linear(ops, n, layer.w_gate_shared, None),
                   linear(ops, n, layer.w_up_shared, None))
        f = ops.add(f, ops.gate(linear(ops, up, layer.w_down_shared, None),
                                linear(ops, n, layer.shared_gate, None)))
    return f


def forward(model, ops, batch):
    """Return the logits of the wanted rows.

    model: Engine   ops: Reference or its equal   batch: Batch   -> (len(wanted), n_vocab)
    x: (R, hidden), the residual stream, until only the wanted rows are left
    """
    hp, w, x = model.hparams, model.weights, batch.hidden
    first, end = batch.layers or (0, hp.n_layers)
    if x is None:
        x = scaled(ops, ops.embed(w.embed, batch.tokens), hp.embed_scale)
        if w.pos_embed is not None:
            x = ops.add(x, ops.embed(w.pos_embed, batch.positions))
    for i in range(first, end):
        layer = w.layers[i]
        n = norm(ops, hp, x, layer.attn_norm, layer.attn_norm_b)
        a = self_attention(ops, hp, layer, n, batch, i)
        a = scaled(ops, norm(ops, hp, a, layer.post_attn_norm), hp.residual_scale)
        if hp.parallel:                 # both halves read the same x, often the same norm of it
            n = n if layer.ffn_norm is None else norm(
                ops, hp, x, layer.ffn_norm, layer.ffn_norm_b)
            x = ops.add(x, a)
        else:
            x = ops.add(x, a)
            n = norm(ops, hp, x, layer.ffn_norm, layer.ffn_norm_b)
        f = feed_forward(ops, hp, layer, n)
        f = scaled(ops, norm(ops, hp, f, layer.post_ffn_norm), hp.residual_scale)
        x = ops.add(x, f)
    if batch.left is not None:
        batch.left.append(x)
    x = norm(ops, hp, ops.rows(x, batch.wanted), w.out_norm, w.out_norm_b)
    logits = scaled(ops, linear(ops, x, w.lm_head, w.lm_head_b), hp.logit_scale)
    return ops.softcap(logits, hp.final_cap) if hp.final_cap else logits


def fill_in(model, ops, batch):
    """Store, in the layers that the rows skip, the k and v of what they left with.

    As if the skipped layers added nothing (8.3).   Parameters as for forward; wanted: none
    """
    hp = model.hparams
    for i in range(*batch.layers):
        layer = model.weights.layers[i]
        n = norm(ops, hp, batch.hidden, layer.attn_norm, layer.attn_norm_b)
        k = linear(ops, n, layer.wk, layer.wk_b)
        v = linear(ops, n, layer.wv, layer.wv_b)
        ops.store(turned(ops, hp, layer, k, layer.k_norm, batch), v, batch, i, layer.attention)
    return ops.rows(batch.hidden, batch.wanted)


class Engine:
    """A loaded model, its cache and the backend that computes: everything `step` needs.

    checkpoint: GGUF or HFDirectory   ops: Reference (or another backend of the same surface)
    ctx_size: positions that the cache holds; None: the model's, at most DEFAULT_CTX
    page_size: None for one contiguous page
    turn: the lock of whoever uses the cache and the backend; one thread at a time does
    """

    def __init__(self, checkpoint, ops: Backend, ctx_size: "int | None" = None,
                 kv_type: str = "f16", page_size: "int | None" = None,
                 cache_tokens: "int | None" = None):
        self.checkpoint, self.ops, self.prefill_rows = checkpoint, ops, ops.prefill_rows
        self.hparams = hp = Hparams(checkpoint)
        self.ctx_size = hp.ctx_size = hp.check_ctx(ctx_size)
        self.weights = load_weights(checkpoint, hp)
        self.kv_type, self._pools = kv_type, weakref.WeakSet()
        self.page_size = None if page_size is None else check_page_size(page_size)
        size = self.page_size or -(-self.ctx_size // CHUNK) * CHUNK
        self.cache_tokens = max(self.ctx_size, min(4 * self.ctx_size, 16384))
        if cache_tokens is not None:
            self.cache_tokens = check_whole("cache_tokens", cache_tokens, 1)
        self.cache = self.new_pool(self.ctx_size, size)
        self.after_fork()
        _ENGINES.add(self)

    def new_pool(self, n_positions: int, page_size: int) -> PagePool:
        """Return a PagePool for as many positions of this model's k and v."""
        hp = self.hparams
        pool = self.ops.new_pool([(hp.n_kv_heads, hp.head_dim)] * hp.n_layers,
                                 -(-n_positions // page_size), page_size, self.kv_type)
        self._pools.add(pool)
        return pool

    def after_fork(self) -> None:
        """Begin anew what a forked child has no part in: the turns of its parent's threads."""
        self.turn = threading.RLock()

    def close(self) -> None:
        """Give back threads, machine code and the file; after this the engine computes no more."""
        with self.turn:
            ops, self.ops = self.ops, None
            if ops is not None:
                ops.close()
            self.weights = self.checkpoint = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def identity(self) -> str:
        """Return a digest that two models share only if they compute the same.

        It is made of the numbers of the file, and of every tensor's name, format, shape and
        first bytes; all bytes of a large file would take too long.
        """
        digest = hashlib.sha256()
        for name, t in sorted(self.checkpoint.tensors.items()):
            digest.update(repr((name, t.format.name, tuple(t.shape))).encode())
            digest.update(bytes(memoryview(t.data)[:4096]))
        for key, value in sorted(self.hparams.numbers.items()):
            if not key.startswith("tokenizer."):
                digest.update(repr((key, value)).encode("utf-8", "replace"))
        return digest.hexdigest()

    def step(self, rows: list, wanted: "list | None" = None,
             n_layers: "int | None" = None) -> list:
        """Run rows through the model and return the logits of those that are wanted.

        rows: list of (token, position, Sequence); rows of many sequences mix freely, those of
        one sequence stand in order of position.   wanted: indices into rows, None for all
        -> list of array('f') (n_vocab,), one for each wanted row
        Each row's k and v enter the cache; its logits depend on its own sequence alone.
        Threads take turns.  A sequence holds the new tokens when all is computed: a step that
        fails or is interrupted leaves none.
        n_layers: go through so many of the layers only.  The logits are what norm and lm_head make
        of that; and the tokens are not yet of their sequences, but `begun`: rows of such steps may
        follow each other, and a later step with the same tokens goes on where they stand.
        """
        with self.turn:
            self._refuse_within_a_step(sys._getframe(1))
            return self._step(rows, wanted, n_layers)

    def _refuse_within_a_step(self, frame):
        """Refuse to compute where a step of this engine is among the callers, from `frame` on.

        The stack cannot be wrong about that; a flag or a lock can, after an interrupt.
        """
        steps = Engine._step.__code__, Engine.leave.__code__
        while frame:
            if frame.f_code in steps and frame.f_locals["self"] is self:
                raise KshipraError("the model is asked to compute from within a step of its own "
                                   "(by a signal handler?); call it when that has returned")
            frame = frame.f_back

    def _step(self, rows, wanted, n_layers):
        if self.ops is None:
            raise KshipraError("the model is closed; load it again")
        whole = n_layers in (None, self.hparams.n_layers)
        n_layers = self.hparams.n_layers if whole else check_whole(
            "n_layers", n_layers, 1, self.hparams.n_layers)
        wanted = list(range(len(rows)) if wanted is None else wanted)
        one = 1.0
        if one + 2.0 ** -53 != 1 or one - 2.0 ** -54 != 1:      # halfway, so to the even one
            raise KshipraError("this thread does not round to the nearest, as its host program "
                               "has told the processor; set that back before kshipra is used")
        for i in wanted:
            if not 0 <= i < len(rows):
                raise KshipraError(f"row {i} is wanted, but the rows are 0..{len(rows) - 1}")
        if not rows:
            return []
        pool, ends = rows[0][2].pool, {}        # by id: a sequence, and its length afterwards
        if pool not in self._pools:
            raise KshipraError("the sequence is of another model's cache; make one with "
                               "Sequence(model.cache)")
        for row in rows:
            self._check_row(pool, ends, whole, *row)
        try:
            for seq, end in ends.values():
                seq.reserve(len(seq.tokens), end)
            logits, left = self._run(rows, wanted, pool, n_layers)
        except BaseException:           # the pages taken for nothing
            for seq, _ in ends.values():
                seq.truncate(len(seq.tokens))
            raise
        if not whole:
            for (token, pos, seq), x in zip(rows, left):
                seq.begun[pos - len(seq.tokens):] = [(token, n_layers, x)]
            return logits
        for token, _, seq in rows:
            seq.tokens.append(token)
        for seq, end in ends.values():
            seq.begun.clear()
            if end // pool.page_size > len(seq.ids):
                seq.publish()
        return logits

    def _run(self, rows, wanted, pool, n_layers):
        """Return (logits, what the rows left the last of n_layers with, if that is not all).

        Rows that have been begun join those that start anew where they stand.
        """
        starts, hidden, fresh = [], [None] * len(rows), set()
        for i, (token, pos, seq) in enumerate(rows):
            at, start = pos - len(seq.tokens), 0
            if id(seq) not in fresh and at < len(seq.begun) and seq.begun[at][0] == token \
                    and seq.begun[at][1] < n_layers:
                _, start, hidden[i] = seq.begun[at]
            else:
                fresh.add(id(seq))      # whatever follows saw another token here
            starts.append(start)
        if not any(starts) and n_layers == self.hparams.n_layers:
            batch = Batch(rows, wanted, pool)
            return self.compute(lambda ops: ops.run(forward, self, batch)), None
        if not self.ops.runs_ranges:
            raise KshipraError(f"device {self.ops.name} goes through all layers only")
        levels = sorted({*starts}) + [n_layers]
        for first, end in zip(levels, levels[1:]):
            part = [i for i, start in enumerate(starts) if start <= first]
            batch = Batch([rows[i] for i in part], wanted if end == n_layers else [], pool,
                          (first, end), [hidden[i] for i in part] if first else None, [])
            logits = self.compute(lambda ops: ops.run(forward, self, batch))
            for i, x in zip(part, batch.left.pop()):
                hidden[i] = x
        return logits, hidden

    def leave(self, seq):
        """Take the one token that is begun for computed, as if the other layers added nothing."""
        with self.turn:
            self._refuse_within_a_step(sys._getframe(1))
            (token, n_layers, x), = seq.begun
            batch = Batch([(token, len(seq.tokens), seq)], [], seq.pool,
                          (n_layers, self.hparams.n_layers), [x])
            self.compute(lambda ops: ops.run(fill_in, self, batch))
            seq.n_exact = min(seq.n_exact, len(seq.tokens))
            seq.tokens.append(token)
            seq.begun.clear()

    def _check_row(self, pool, ends, whole, token, pos, seq):
        """Check one row, and note in `ends` that it follows those before it."""
        if not 0 <= token < self.hparams.n_vocab:
            raise KshipraError(f"token {token} is outside 0..{self.hparams.n_vocab - 1}")
        if not 0 <= pos < self.ctx_size:
            raise KshipraError(f"position {pos} is outside the context of {self.ctx_size}; "
                               "use a larger ctx_size")
        if seq.pool is not pool:
            raise KshipraError("the rows are of sequences of several caches; give those of one at "
                               "a time")
        end = ends[id(seq)][1] if id(seq) in ends else len(seq.tokens)
        if not whole and id(seq) not in ends:
            end = min(max(pos, end), end + len(seq.begun))
        if pos != end:
            raise KshipraError(f"position {pos} does not follow the {end} tokens of its "
                               "sequence; truncate it first")
        ends[id(seq)] = seq, end + 1

    def compute(self, call):
        """Return call(backend); where the backend cannot, the one that goes on for it does.

        Whoever needs a backend asks here, each time, so that all change over together.
        """
        with self.turn:
            if self.ops is None:
                raise KshipraError("the model is closed; load it again")
            try:
                return call(self.ops)
            except BackendFault as fault:
                self.ops = self.ops.fallback(fault)
                return call(self.ops)

    def largest(self, row: array, k: int) -> "list[int]":
        """As Backend.largest."""
        return self.compute(lambda ops: ops.largest(row, k))

    def exp_sum(self, row: array, top: float) -> float:
        """As Backend.exp_sum."""
        return self.compute(lambda ops: ops.exp_sum(row, top))


_ENGINES = weakref.WeakSet()            # all that there are, for a child process


def _after_fork():
    for engine in list(_ENGINES):
        engine.after_fork()
        if engine.ops is not None:
            engine.ops.after_fork()


if hasattr(os, "register_at_fork"):     # where processes fork
    os.register_at_fork(after_in_child=_after_fork)


# ---------------------------------------------------------------------------------------
# 7. Sampling
#
# A sampler turns one row of logits into one token.  The filters apply in this order, each to
# what the one before it left, and the temperature comes last, as in llama.cpp:
#
#   repeat penalty -> top-k -> top-p -> min-p -> temperature -> draw
#
# Probabilities use the exp of chapter 4 and one stated order (largest first, then lowest
# id), so the same seed gives the same text on every machine.  Temperature 0 takes the
# largest logit and draws nothing.
# Sources: Keskar et al. (2019), CTRL (penalty); Fan et al. (2018) (top-k); Holtzman et al.
# (2020) (top-p); Nguyen et al. (2024) (min-p).

# The filters take and return candidates: pairs (logit, token), the largest logit first.

PENALTY_WINDOW = 64                     # the penalty looks at so many of the last tokens
FIRST_TRY = 64                          # candidates looked at first, where all are candidates


def penalize(logits, tokens, penalty):
    """Return logits with those of `tokens` made less likely: divided, or multiplied below 0.

    A token beyond the logits (padding, in a prompt of ids) has none to change.
    """
    out = array("f", logits)
    for t in {t for t in tokens if t < len(out)}:
        new = out[t] / penalty if out[t] > 0 else out[t] * penalty
        out[t] = min(max(new, -F32_MAX), F32_MAX)
    return out


def keep_top_p(candidates, p, total):
    """Return the fewest first candidates whose weights reach p * total, at least one.

    candidates: (logit, token), best first; the weight of one is exp(logit - best logit)
    total: the weights of all that the filters before this one left
    """
    if p >= 1:
        return candidates
    weights = exp([logit - candidates[0][0] for logit, _ in candidates])
    reached = list(itertools.accumulate(weights))
    return candidates[:bisect.bisect_left(reached, p * total) + 1]


def keep_min_p(candidates, p):
    """Return the candidates at least p times as probable as the best."""
    if p <= 0:
        return candidates
    weights = exp([logit - candidates[0][0] for logit, _ in candidates])
    return [c for c, weight in zip(candidates, weights) if weight >= p] or candidates[:1]


def check_number(name, value, low, high=math.inf):
    """Return a parameter as a float, or refuse it by name; numpy's numbers are numbers too."""
    number = math.nan
    if hasattr(type(value), "__float__") and not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = float(value)
    if not low <= number <= high or number == math.inf:
        wanted = f"from {low} up" if high == math.inf else f"of {low} to {high}"
        raise KshipraError(f"{name} is {_quote(value)}; a number {wanted} is needed")
    return number


class Sampler:
    """Chooses tokens; owns its random numbers, so requests do not disturb each other.

    temperature: 0 for greedy   top_k: 0 for all   top_p: 1 for all   min_p: 0 for all
    repeat_penalty: 1 for none   seed: a whole number from 0 up, None for a new one each time
    ops: what looks through long rows of logits, a Backend or an Engine
    Raises KshipraError for a value outside its range.
    """

    def __init__(self, temperature: float = 0.8, top_k: int = 40, top_p: float = 0.95,
                 min_p: float = 0.05, repeat_penalty: float = 1.0, seed=None, ops=Reference()):
        self.temperature = check_number("temperature", temperature, 0)
        self.top_k = check_whole("top_k", top_k, 0)
        self.top_p = check_number("top_p", top_p, 0, 1)
        self.min_p = check_number("min_p", min_p, 0, 1)
        self.repeat_penalty = check_number("repeat_penalty", repeat_penalty, 1e-6)
        if seed is not None:
            seed = check_whole("seed", seed, 0)     # to Python, -1 is the same as 1
        self.random, self.ops = random.Random(seed), ops

    def __call__(self, logits, past, n_vocab=None):
        """Return the next token.

        logits: array('f')   past: the tokens so far   n_vocab: ids from here on are padding
        """
        return self.draw(*self.distribution(logits, past, n_vocab))

    def distribution(self, logits, past, n_vocab=None):
        """Return (tokens, sums): tokens that may come next, best first; the weight of each, and
        of those before it, added up.   Parameters as for a call.
        """
        n_vocab = len(logits) if n_vocab is None else n_vocab
        if self.temperature == 0 and self.repeat_penalty == 1:
            best = getattr(logits, "best", n_vocab)     # machine code has looked already
            if best < n_vocab:
                return [best], [1.0]
        if n_vocab < len(logits):
            logits = logits[:n_vocab]
        if self.repeat_penalty != 1:
            logits = penalize(logits, past[-PENALTY_WINDOW:], self.repeat_penalty)
        if self.temperature == 0:
            return self.ops.largest(logits, 1), [1.0]
        candidates = self.candidates(logits)
        top = candidates[0][0]
        weights = exp([max(-1e30, (logit - top) / self.temperature) for logit, _ in candidates])
        return [token for _, token in candidates], list(itertools.accumulate(weights))

    def draw(self, tokens, sums):
        """Return one of a distribution's tokens: the first if greedy, or by a random number."""
        if self.temperature == 0:
            return tokens[0]
        at = bisect.bisect_right(sums, self.random.random() * sums[-1])
        return tokens[min(at, len(tokens) - 1)]

    def twin(self, ops):
        """Return a sampler that will draw with the same random numbers as this one from here on.

        ops: as in Sampler, for the logits of another model
        """
        twin = Sampler(self.temperature, self.top_k, self.top_p, self.min_p, self.repeat_penalty,
                       ops=ops)
        twin.random.setstate(self.random.getstate())
        return twin

    def candidates(self, logits: array) -> "list[tuple[float, int]]":
        """Return the (logit, token) pairs that the filters leave, best first.

        Without top-k every token is a candidate, but the later filters mostly leave few; so
        the best are tried first, and more of them as long as nothing of them is cut off.
        """
        n = self.top_k or FIRST_TRY
        total = None
        while True:
            found = [(logits[t], t) for t in self.ops.largest(logits, n)]
            if total is None:
                # Added by token, so that the sum does not depend on how many are tried.
                left = array("f", [logits[t] for t in sorted(t for _, t in found)]) \
                    if self.top_k else logits
                total = self.ops.exp_sum(left, found[0][0]) if self.top_p < 1 else 0.0
            kept = keep_min_p(keep_top_p(found, self.top_p, total), self.min_p)
            if self.top_k or len(kept) < n or n >= len(logits):
                return kept
            n *= 8


# ---------------------------------------------------------------------------------------
# 8. Decoding
#
# A decoding strategy is a generator of tokens over `step`: it chooses the next batch, reads
# the logits, and never looks inside the model.  The first one keeps nothing and recomputes
# the whole text for each token, as the formula of a language model says; the second keeps
# the cache, and computes each position once.
#
#   baseline      N tokens cost 1 + 2 + ... + N rows
#   cached        N tokens cost N rows, in N steps
#   speculative   the same tokens cost more rows in fewer steps
#   exiting       N tokens, nearly the same, cost N rows of fewer layers
#
# Then tokens become text: pieces are held back while they may still be the beginning of a
# stop string.

# 8.1 Token by token.

def prefill(engine, seq, tokens, progress=None):
    """Append tokens to a sequence, engine.prefill_rows a step; return the last one's logits.

    progress(done, total): called before each step, and at the end
    Raises KshipraError if progress() changes the sequence: it may use the model on others only.
    """
    start, total, logits = len(seq.tokens), len(tokens), None
    for a in range(0, total, engine.prefill_rows):
        if progress:
            progress(a, total)
        if len(seq.tokens) != start + a:
            raise KshipraError("a progress callback used the very text that is being read; use "
                               "the model when the callback has returned")
        part = tokens[a:a + engine.prefill_rows]
        rows = [(t, start + a + i, seq) for i, t in enumerate(part)]
        last = a + len(part) == total
        result = engine.step(rows, [len(rows) - 1] if last else [])
        logits = result[0] if last else None
    if progress:
        progress(total, total)
    return logits


def baseline(engine, prompt, choose, seq, progress=None):
    """Yield tokens without end, computing every position anew for each.

    prompt: token ids   choose(logits, tokens so far) -> token
    seq: a Sequence; what it holds is dropped
    """
    tokens = list(prompt)
    while True:
        with engine.turn:
            seq.truncate(0)
            logits = prefill(engine, seq, tokens, progress)
        tokens.append(choose(logits, tokens))
        progress = None
        yield tokens[-1]


def cached(engine, prompt, choose, seq, progress=None):
    """Yield tokens without end, each for one row of work after the prompt.

    seq: a Sequence that may already hold the beginning of the prompt; what differs is dropped.
    It is looked at anew for each token: should another generation, of this thread or another,
    have used it in between, what that one dropped is computed again.
    """
    tokens = list(prompt)
    while True:
        with engine.turn:
            seq.truncate(seq.common_prefix(tokens))
            logits = prefill(engine, seq, tokens[len(seq.tokens):], progress)
        tokens.append(choose(logits, tokens))
        progress = None
        yield tokens[-1]


# 8.2 Speculation.  A step of five rows costs little more than a step of one, since both read
# every weight once.  So a drafter guesses the next k tokens, by whatever is quicker than the
# model, and one step computes the logits behind each of them.  The tokens are then chosen one
# after another, as ever, for as long as the guesses were right:
#
#   text        ... on the      guesses   mat and slept
#   rows of the step            the  mat  and  slept
#   chosen behind each          mat  and  then   -         three tokens for one step
#
# What a row computes does not depend on the other rows of its step, to the bit (chapter 4), so
# the tokens are those that would have been chosen without a drafter, greedy or sampled: a bad
# drafter costs time and nothing else.  This is the rejection rule of Leviathan et al. for a
# drafter that is sure of each guess x: accept it with probability p(x), or else draw from p
# without x.  To draw from p and look whether it is x does just that, with the same random
# number that the draw without a drafter takes.
#
# Sources: Leviathan et al. (2023), "Fast Inference from Transformers via Speculative Decoding";
# Chen et al. (2023), "Accelerating Large Language Model Decoding with Speculative Sampling";
# Saxena (2023), "Prompt Lookup Decoding".

# A drafter has propose(tokens, k) -> at most k tokens that may come next; costs_nothing, whether
# that takes no time to speak of; and turns, the locks of the engines that it uses.

class PromptLookup:
    """Guesses that what followed the last few tokens before will follow them again.

    n: how many tokens to look for, as long as there are; then fewer, down to LEAST_MATCH
    """

    name, costs_nothing, turns = "lookup", True, ()
    LEAST_MATCH = 2

    def __init__(self, n=3):
        self.sizes = range(max(n, self.LEAST_MATCH), self.LEAST_MATCH - 1, -1)
        self.after, self.n_read = {}, 0         # tuple of tokens: where the last such run ended

    def propose(self, tokens, k):
        for end in range(self.n_read, len(tokens)):     # runs that something follows
            for n in self.sizes:
                if n <= end:
                    self.after[tuple(tokens[end - n:end])] = end
        self.n_read = len(tokens)
        at = next((self.after[run] for run in (tuple(tokens[-n:]) for n in self.sizes)
                   if run in self.after), None)
        if at is None:
            return []
        text, period = tokens[at:at + k], len(tokens) - at
        while len(text) < k:                    # where it comes to its own end, it goes on
            text.append(text[-period])
        return text


class NGrams:
    """Guesses what has most often followed the last tokens in this text, the later one on a tie.

    n: of an n-gram; the longest beginning that was seen counts: n - 1 tokens, then fewer, to one
    """

    name, costs_nothing, turns = "ngram", True, ()

    def __init__(self, n=3):
        self.sizes = range(max(n - 1, 1), 0, -1)
        self.counts, self.n_read = {}, 0        # tuple of tokens: {token: how often it followed}
        self.best = {}                          # and the most frequent of them

    def propose(self, tokens, k):
        for end in range(self.n_read, len(tokens)):
            for n in self.sizes:
                if n <= end:
                    run, token = tuple(tokens[end - n:end]), tokens[end]
                    counts = self.counts.setdefault(run, {})
                    counts[token] = counts.get(token, 0) + 1
                    if counts[token] >= counts.get(self.best.get(run), 0):
                        self.best[run] = token
        self.n_read = len(tokens)
        text = list(tokens[-self.sizes.start:])
        n_known = len(text)
        while len(text) < n_known + k:
            token = next((self.best[run] for run in (tuple(text[-n:]) for n in self.sizes)
                          if run in self.best), None)
            if token is None:
                break
            text.append(token)
        return text[n_known:]


class DraftModel:
    """Lets a smaller model of the same vocabulary go ahead.

    engine: Engine   seq: a Sequence of it
    foresee(engine) -> choose(logits, tokens so far), with the random numbers that the draws from
    the large model will take: where both models are sure, the same number draws the same token
    """

    name, costs_nothing = "model", False
    turns = property(lambda self: (self.engine.turn,))

    def __init__(self, engine, seq, foresee):
        self.engine, self.seq, self.foresee, self.n_read = engine, seq, foresee, 0

    def propose(self, tokens, k):
        engine, seq = self.engine, self.seq
        k = min(k, engine.ctx_size - len(tokens) + 1)
        if k < 1:
            return []
        n = min(self.n_read, len(seq.tokens))
        while n < min(len(seq.tokens), len(tokens)) and seq.tokens[n] == tokens[n]:
            n += 1
        seq.truncate(n)                 # guesses that were wrong
        seq.truncate(seq.common_prefix(tokens))
        choose, text = self.foresee(engine), list(tokens)
        logits = prefill(engine, seq, text[len(seq.tokens):])
        text.append(choose(logits, text))
        while len(text) < len(tokens) + k:
            logits = engine.step([(text[-1], len(text) - 1, seq)])[0]
            text.append(choose(logits, text))
        self.n_read = len(tokens)
        return text[len(tokens):]


class SelfDraft:
    """Lets the model's own first layers go ahead: norm and lm_head read what they leave.

    engine, foresee: as in DraftModel   seq: the text's own Sequence   n_layers: how many; None: a
    half.  The step that checks the guesses goes on where they stand, with the same keys and
    values (Zhang et al. 2023, "Draft & Verify"; Elhoushi et al. 2024, "LayerSkip").
    """

    name, costs_nothing, turns = "self", False, ()

    def __init__(self, engine, seq, foresee, n_layers=None):
        self.engine, self.seq, self.foresee = engine, seq, foresee
        self.n_layers = n_layers or max(1, engine.hparams.n_layers // 2)
        if not 0 < self.n_layers < engine.hparams.n_layers:
            raise KshipraError(f"{self.n_layers} of {engine.hparams.n_layers} layers cannot go "
                               "ahead of them; use another draft than \"self\"")

    def propose(self, tokens, k):
        choose, text = self.foresee(self.engine), list(tokens)
        while len(text) < len(tokens) + k:
            logits = self.engine.step([(text[-1], len(text) - 1, self.seq)], None, self.n_layers)
            text.append(choose(logits[0], text))
        return text[len(tokens):]


def check_same_vocabulary(tokenizer, draft, path=None):
    """Refuse a draft model whose tokens are not the same texts, for its guesses would be noise."""
    n, n_draft = tokenizer.n_used, draft.n_used
    for token in range(min(n, n_draft)):
        a, b = tokenizer.vocabulary.text(token), draft.vocabulary.text(token)
        if a != b:
            raise KshipraError(f"the draft model has another vocabulary: its token {token} is "
                               f"{_quote(b)}, and the model's is {_quote(a)}; use a draft of the "
                               "same family", path)
    if n != n_draft:
        raise KshipraError(f"the draft model has a vocabulary of {n_draft} tokens, and the model "
                           f"one of {n}; use a draft of the same family", path)


DRAFT_TOKENS = 15                       # to guess at most, unless something else is said
SIZES = (0, 1, 3, 7, 15, 31)            # windows: few, since each takes a program (chapter 17)
MEMORY = 0.9                            # of what was measured, at each new measurement
GAIN = 1.02                             # that guessing must promise
FIRST_PAUSE, LONGEST_PAUSE = 8, 128     # steps without a guess, when guessing does not pay


class Window:
    """How many tokens to guess: always `most`, or, if adaptive, as many as pay, up to that.

    They pay if the tokens of a step, over its seconds, are more than without.  Of k guesses, of
    which each is right with probability a if those before it were, 1 + a + a^2 + ... + a^k tokens
    come; what a guess takes, and a step of k + 1 rows, is measured as one goes along.  Where no
    guess pays, none is made for a while, then one is tried again.
    step_s: seconds by number of rows, of earlier texts   n_off: steps for which none was made
    """

    def __init__(self, most=None, adaptive=True, step_s=None):
        self.most, self.adaptive = most or DRAFT_TOKENS, adaptive
        self.n_right, self.n_tried = 1.6, 2.0   # of late; at first, a hope
        self.guess_s, self.step_s = 0.0, {} if step_s is None else step_s
        self._seen, self._seen_guesses = set(self.step_s), set()
        self._pause, self._left, self.n_off = FIRST_PAUSE, 0, 0

    def note(self, n_right, n_tried):
        """Take account of guesses: how many were looked at, and were right."""
        self.n_right = MEMORY * self.n_right + n_right
        self.n_tried = MEMORY * self.n_tried + n_tried

    def note_time(self, n_guesses, guess_s, n_rows, step_s):
        """Take account of seconds, but not of the first of a size: then programs are written."""
        if n_guesses and n_guesses not in self._seen_guesses:
            self._seen_guesses.add(n_guesses)
        elif n_guesses:
            known = self.guess_s or guess_s / n_guesses
            self.guess_s = known + (guess_s / n_guesses - known) / 2
        if n_rows in self._seen:
            step_s = min(step_s, n_rows * self.step_s.get(1, math.inf))     # an interruption
            known = self.step_s.get(n_rows, step_s)
            self.step_s[n_rows] = known + (1 - MEMORY) * (step_s - known)
        self._seen.add(n_rows)

    def seconds(self, n_rows):
        """Return what a step of n_rows takes; if not known, hopefully, less than it seems."""
        if n_rows in self.step_s:
            return self.step_s[n_rows]
        less, more = ([1] + sorted(n for n in self.step_s if n < n_rows))[-2:]
        slope = (self.step_s[more] - self.step_s[less]) / max(1, more - less)
        return self.step_s[more] + (n_rows - more) * slope / 2

    def fit(self, n):
        """Return how many of n guesses to use."""
        return max(k for k in SIZES if k <= n) if self.adaptive else n

    def choose(self):
        """Return how many tokens to guess now."""
        if not self.adaptive:
            return self.most
        if 1 not in self.step_s:
            return 0                    # a step of one row is what all is measured against
        right = self.n_right / self.n_tried
        best, best_rate = 1, 0.0
        for k in SIZES[1:]:
            if k > self.most:
                break
            n_tokens = math.fsum(right ** i for i in range(k + 1))
            rate = n_tokens / (self.seconds(k + 1) + k * self.guess_s)
            if rate > best_rate:
                best, best_rate = k, rate
            if k + 1 not in self.step_s:
                break                   # one new size at a time
        if best_rate * self.step_s[1] > GAIN:
            self._pause, self._left = FIRST_PAUSE, 0
            return best
        if self._left:
            self._left -= 1
            self.n_off += 1
            return 0
        self._left, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return best


class Speculation:
    """The guesses of one generation: who makes them, how many, and what became of them.

    drafter: as above   window: Window
    n_steps: steps that chose tokens   n_drafted, n_accepted: guesses, and those that were right
    n_tokens: chosen in all
    """

    def __init__(self, drafter, window):
        self.drafter, self.window = drafter, window
        self.n_steps = self.n_drafted = self.n_accepted = self.n_tokens = 0

    @property
    def accept_rate(self):
        """Return the share of the guesses that were right, None if there were none."""
        return self.n_accepted / self.n_drafted if self.n_drafted else None

    def __str__(self):
        if not self.n_drafted:
            return f"{self.drafter.name}: no guesses in {self.n_steps} steps"
        n_off = self.window.n_off
        off = f"; did not pay, so was off, in {n_off} of them" if n_off else ""
        return (f"{self.drafter.name}: {self.n_accepted} of {self.n_drafted} guesses right "
                f"({self.accept_rate:.0%}), {self.n_tokens} tokens in {self.n_steps} steps{off}")

    def draft(self, engine, seq, tokens):
        """Return (guesses, how many of them go into the step), no more than there is room for."""
        k = self.window.choose()
        most = min(k, engine.ctx_size - len(tokens))
        while most > 0 and seq.n_new_pages(len(tokens) + most) > seq.pool.n_available:
            most -= 1
        if most < 1 and not (k == 0 and self.drafter.costs_nothing):
            return [], 0
        guesses = []
        for token in itertools.islice(self.drafter.propose(tokens, max(most, 1)), max(most, 1)):
            if not 0 <= token < engine.hparams.n_vocab:
                break
            guesses.append(token)
        return guesses, self.window.fit(min(most, len(guesses)))

    def round(self, engine, seq, tokens, choose):
        """Return the tokens that come next, at least one, for one step.

        seq: holds all of tokens but the last
        """
        begun = time.perf_counter()
        guesses, n = self.draft(engine, seq, tokens)
        drafted = time.perf_counter()
        start = len(tokens) - 1
        rows = [(token, start + i, seq) for i, token in enumerate(tokens[-1:] + guesses[:n])]
        try:
            logits = engine.step(rows)
        except KshipraError:            # a wrong guess may lead to what is not finite
            if not n:
                raise
            n = 0
            logits = engine.step(rows[:1])
        self.window.note_time(n, drafted - begun, len(rows), time.perf_counter() - drafted)
        new = []
        for row, guess in itertools.zip_longest(logits, guesses[:n]):
            new.append(choose(row, tokens + new))
            if new[-1] != guess:
                break
        if guesses:                     # those not computed are tried against the one token
            n_right = len(new) - 1 if n else int(new[0] == guesses[0])
            self.window.note(n_right, min(n_right + 1, max(n, 1)))
        seq.truncate(start + len(new))
        self.n_steps += 1
        self.n_drafted += n
        self.n_accepted += len(new) - 1
        self.n_tokens += len(new)
        return new


def speculative(engine, prompt, choose, seq, progress=None, *, speculation):
    """Yield the tokens of `cached`, some of them for a share of a step only.

    speculation: Speculation
    """
    tokens = list(prompt)
    while True:
        with contextlib.ExitStack() as turns:
            locks = engine.turn, *speculation.drafter.turns
            for lock in sorted(locks, key=id):      # in one order, or two might wait for ever
                turns.enter_context(lock)
            seq.truncate(seq.common_prefix(tokens))
            if len(seq.tokens) < len(tokens) - 1:
                logits = prefill(engine, seq, tokens[len(seq.tokens):], progress)
                new = [choose(logits, tokens)]
            else:
                new = speculation.round(engine, seq, tokens, choose)
        progress = None
        for token in new:
            tokens.append(token)
            yield token


# 8.3 Early exit.  Often a token is clear long before the last layer.  So after each layer, norm
# and lm_head may say what they would choose there; if the most probable token has a probability
# over a threshold, the row leaves, and that is its answer.  This is an approximation, unlike all
# else here: the token may be another one than the last layer's, and of the layers that it skips
# later tokens see only keys and values filled in, as if those layers had added nothing.  No other
# text gets to see these.  (As a drafter, see SelfDraft, the same thing changes nothing.)
#
# Sources: Schuster et al. (2022), "Confident Adaptive Language Modeling", 3.2 and 4.1 (CALM).

class EarlyExit:
    """Where the tokens of one generation left.

    threshold: the probability that is enough   n_first: the first layer after which one may leave;
    None: a half of them   exits: Counter, after how many layers tokens left
    """

    def __init__(self, engine, threshold, n_first=None):
        self.engine, self.threshold, self.exits = engine, threshold, Counter()
        self.n_first = n_first or max(1, engine.hparams.n_layers // 2)

    def logits(self, seq, token):
        """Return the logits behind a token where it leaves.   seq: those before it"""
        row, n_layers = (token, len(seq.tokens), seq), self.engine.hparams.n_layers
        for n in range(self.n_first, n_layers):
            logits, = self.engine.step([row], None, n)
            top = logits[self.engine.largest(logits, 1)[0]]
            if self.engine.exp_sum(logits, top) * self.threshold <= 1:
                self.engine.leave(seq)
                break
        else:
            n = n_layers
            logits, = self.engine.step([row])
        self.exits[n] += 1
        return logits

    def __str__(self):
        total = sum(self.exits.values())
        if not total:
            return "early exit: no tokens"
        mean = sum(n * count for n, count in self.exits.items()) / total
        return (f"early exit: {mean:.1f} of {self.engine.hparams.n_layers} layers on average; "
                "left after " + ", ".join(f"{n}: {self.exits[n]}" for n in sorted(self.exits)))


def exiting(engine, prompt, choose, seq, progress=None, *, early_exit):
    """Yield tokens without end, each after as many layers as it seems to need.

    early_exit: EarlyExit.  The prompt goes through all of them.
    """
    tokens = list(prompt)
    while True:
        with engine.turn:
            if seq.tokens == tokens[:-1]:
                logits = early_exit.logits(seq, tokens[-1])
            else:
                seq.truncate(seq.common_prefix(tokens))
                logits = prefill(engine, seq, tokens[len(seq.tokens):], progress)
        tokens.append(choose(logits, tokens))
        progress = None
        yield tokens[-1]


# 8.4 From tokens to text.

class StopStrings:
    """Passes text on, but not the stop strings, nor what may become one.

    push(text) -> what may be shown; `found` is then the stop string that ended it, or None.
    The stop string that is complete first counts, so how the text is cut does not matter.
    """

    def __init__(self, stops):
        self.stops = stops
        self.held, self.found = "", None

    def push(self, text):
        text, self.held = self.held + text, ""
        hits = [(text.find(s) + len(s), -len(s), s) for s in self.stops if s in text]
        if hits:
            end, _, self.found = min(hits)
            return text[:end - len(self.found)]
        keep = 0
        for s in self.stops:
            for n in range(min(len(s) - 1, len(text)), keep, -1):
                if text.endswith(s[:n]):
                    keep = n
                    break
        cut = len(text) - keep
        self.held = text[cut:]
        return text[:cut]

    def flush(self):
        """Return what was held back and did not become a stop string."""
        text, self.held = self.held, ""
        return text


class Transcript:
    """What a generation has said: tokens become text, and the end is noticed.

    ids: the tokens so far, end token included   text: what was shown of them
    finish_reason: None as long as it goes on; then "stop" (end token or stop string) or "length"
    max_tokens: how many there may be
    """

    def __init__(self, tokenizer, stop_ids, stops, max_tokens):
        self.ids, self.text = [], ""
        self.finish_reason = None if max_tokens else "length"
        self._stream, self._stops = tokenizer.stream(), StopStrings(stops)
        self._stop_ids, self.max_tokens = stop_ids, max_tokens

    def push(self, token):
        """Take the next token; return the text that is certain now."""
        self.ids.append(token)
        if token in self._stop_ids:
            self.finish_reason, text = "stop", ""
        else:
            text = self._stops.push(self._stream.push(token))
            if len(self.ids) == self.max_tokens:
                self.finish_reason = "length"
        if self.finish_reason and not self._stops.found:
            text += self._stops.push(self._stream.flush())
            text += "" if self._stops.found else self._stops.flush()
        if self._stops.found:
            self.finish_reason = "stop"
        self.text += text
        return text


class Generation:
    """An iterator of text, and what became of it.

    prompt_ids: the prompt's tokens   ids, text, finish_reason: as in Transcript
    ttft_s, decode_s: seconds to the first token, and from there to the last one
    speculation: Speculation, what became of guesses   early_exit: EarlyExit, where tokens left
    """

    def __init__(self, tokens, prompt_ids, transcript, speculation=None, early_exit=None):
        self.prompt_ids, self.transcript = prompt_ids, transcript
        self.speculation, self.early_exit = speculation, early_exit
        self.ttft_s = self.decode_s = 0.0
        self._steps, self._closed, self._turn = self._run(tokens), False, threading.RLock()

    ids = property(lambda self: self.transcript.ids)
    text = property(lambda self: self.transcript.text)
    finish_reason = property(lambda self: self.transcript.finish_reason)

    def __repr__(self):
        return (f"<{type(self).__name__}: {len(self.ids)} tokens, "
                f"{self.finish_reason or 'going on'}, {_quote(self.text)}>")

    def __iter__(self):
        return self

    def _step(self):
        """Return the text that the next token makes certain, which may be none."""
        with self._turn:                # threads that share it get a token each
            if self._steps.gi_running:
                raise KshipraError("a generation is asked for its next piece by its own progress "
                                   "callback; ask when that has returned")
            return next(self._steps)

    def __next__(self) -> str:
        return next(filter(None, iter(self._step, None)))

    def tokens(self):
        """Iterate over token ids instead of text, the end token included."""
        try:
            for _ in iter(self._step, None):
                yield self.ids[-1]
        finally:
            self.close()

    def close(self) -> None:
        """End the generation and free what it holds; iterating on gives nothing more.

        While it is computing, for another thread, it ends after the token it is at.
        """
        self._closed = True
        if self._turn.acquire(blocking=False):
            try:
                if not self._steps.gi_running:
                    self._steps.close()
            finally:
                self._turn.release()

    def _run(self, tokens):
        """Yield the text of each token."""
        begun = time.perf_counter()
        try:
            while self.finish_reason is None and not self._closed:
                token = next(tokens)
                now = time.perf_counter()
                if not self.ids:
                    self.ttft_s, begun = now - begun, now
                self.decode_s = now - begun
                yield self.transcript.push(token)
        finally:
            tokens.close()


# ---------------------------------------------------------------------------------------
# 9. Batching
#
# A step reads every weight once, however many rows it multiplies, so eight texts together cost
# little more than one.  The one idea: a row is (token, position, sequence) and a sequence has
# pages of its own (chapter 5), so texts of any lengths stand in one flat batch as they are.
# Nothing is padded, no row sees another text, and which rows share a step is scheduling alone:
# since each row rounds by itself (chapter 4), it never changes an answer.
#
#   static       all texts begin together, and the batch shrinks as they end
#   continuous   texts come and go between any two steps:
#
#   waiting --admitted, when its prompt's pages are free--> running --end token, limit--> finished
#      ^                                                       |
#      '---- preempted, when an older one needs its pages -----'
#
# What always holds: requests stand in order of arrival, the running before the waiting; only the
# first that waits is admitted, only the last that runs is preempted, and one alone always finds
# room.  So the oldest goes on at every step, and nobody waits for ever.
#
# Sources: Yu et al. (2022), "Orca", for scheduling by the step; Kwon et al. (2023),
# "PagedAttention", for preemption; Agrawal et al. (2024), "Sarathi-Serve", for prompts read in
# pieces between the rows that decode.

class Request(Generation):
    """A Generation among others, which is not asked for its text but given it.

    choose(logits, tokens so far) -> token   seq: its Sequence   tokens: its prompt and its ids
    finish_reason: may also be "cancelled" and "error"   error: what went wrong, if anything did
    n_reused: positions of its prompt that another text had computed

    Iterating gives pieces of text as they come; `async for` does too, and `await` the whole
    text.  Any thread may iterate, wait or cancel.
    """

    def __init__(self, prompt_ids, choose, transcript, seq):
        super().__init__((), prompt_ids, transcript)
        self.choose, self.seq, self.tokens = choose, seq, list(prompt_ids)
        self.cancelled, self.error, self.n_reused = False, None, 0
        self._arrival_s, self._told, self._over = time.perf_counter(), [], False
        self._changed, self._futures = threading.Condition(), []

    def pending(self):
        """Return the tokens that are not in the cache; the logits of the last are wanted."""
        return self.tokens[len(self.seq.tokens):]

    def n_pages_to_end(self):
        """Return how many pages it may need if it goes on to its limit."""
        n_positions = len(self.prompt_ids) + self.transcript.max_tokens - 1
        return -(-n_positions // self.seq.pool.page_size)

    def take(self, logits):
        """Choose the next token, and show the text that has become certain by it."""
        token = self.choose(logits, self.tokens)
        self.tokens.append(token)
        passed_s = time.perf_counter() - self._arrival_s
        self.ttft_s = self.ttft_s or passed_s
        self.decode_s = passed_s - self.ttft_s
        self._tell(self.transcript.push(token))

    def end(self, reason=None, error=None):
        """Give back its pages, and tell who waits that nothing more will come."""
        self.seq.truncate(0)
        if reason:
            self.transcript.finish_reason = reason
        self.error = error
        self._tell("", over=True)

    def _tell(self, piece, over=False):
        with self._changed:
            if piece:
                self._told.append(piece)
            self._over = self._over or over
            futures, self._futures = self._futures, []
            self._changed.notify_all()
        for loop, future in futures:
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:                # that loop has closed: nobody waits there
                pass

    def cancel(self):
        """End it at the next step; what was generated stays.  Nothing to do if it is over."""
        self.cancelled = True

    close = cancel

    def result(self, timeout_s=None) -> str:
        """Wait for the end, and return the whole text.

        Raises TimeoutError if it takes longer than timeout_s, and what went wrong otherwise.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._over, timeout_s):
                raise TimeoutError(f"not finished after {timeout_s} s")
        if self.error:
            raise self.error
        return self.text

    def __iter__(self):
        return self._follow(self._told)

    __next__ = None                             # each `for` begins at the beginning

    def tokens(self):
        return self._follow(self.ids)

    def _follow(self, items):
        """Yield what is in a list and what comes to it, to the end."""
        at = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._over or len(items) > at)
                new = items[at:]
            yield from new
            at += len(new)
            if not new:
                self.result()                   # raises what went wrong
                return

    async def __aiter__(self):
        at = 0
        while True:
            with self._changed:
                pieces, over = self._told[at:], self._over
                future = None
                if not pieces and not over:
                    import asyncio              # here, since it takes 40 ms that few need
                    loop = asyncio.get_running_loop()
                    future = loop.create_future()
                    self._futures.append((loop, future))
            if future:
                await future
                continue
            for piece in pieces:
                yield piece
            at += len(pieces)
            if not pieces:
                self.result()
                return

    def __await__(self):
        return self._whole().__await__()

    async def _whole(self):
        async for _ in self:
            pass
        return self.text


def _resolve(future):
    if not future.done():                       # it is, where its task was cancelled
        future.set_result(None)


def run_static(engine, requests):
    """Continue all requests together until each has ended.

    The first round reads all prompts, one behind the other in one flat batch; every later one
    is a row of each text that goes on.  Requests of one and the same prompt_ids (n completions)
    are forks of the first of them, which has read all but the last token.
    """
    active, first_of = list(requests), {}
    for request in active:
        first = first_of.setdefault(id(request.prompt_ids), request)
        if first is request:
            request.n_reused = request.seq.adopt(request.tokens)
        else:
            if len(first.pending()) > 1:
                prefill(engine, first.seq, first.pending()[:-1])
            request.seq, request.n_reused = first.seq.fork(), len(first.seq.tokens)
    while active:
        rows, wanted = [], []
        for request in active:
            start = len(request.seq.tokens)
            rows += [(token, start + i, request.seq)
                     for i, token in enumerate(request.pending())]
            wanted.append(len(rows) - 1)
        logits, n = [], engine.prefill_rows
        for a in range(0, len(rows), n):
            logits += engine.step(rows[a:a + n], [i - a for i in wanted if a <= i < a + n])
        for request, row in zip(active, logits):
            request.take(row)
            if request.finish_reason:
                request.end()
        active = [request for request in active if not request.finish_reason]


class Scheduler:
    """Requests that come and go, of which each step takes what fits.

    engine: Engine   pool: PagePool, which the requests share   max_rows: rows of a step
    max_running: requests that decode together
    waiting, running: Requests, in order of arrival

    Call `step` as long as it returns true; or `submit`, from any thread, and a thread does so in
    the background that lives as long as there is a request.
    """

    def __init__(self, engine, pool, max_rows=None, max_running=64):
        self.engine, self.pool = engine, pool
        self.max_rows = max_rows or engine.prefill_rows
        self.max_running = min(max_running, self.max_rows)
        self.waiting, self.running = collections.deque(), []
        self.n_steps = self.n_rows = self.n_preempted = 0
        self._inbox, self._lock, self._thread = [], threading.Lock(), None

    def add(self, request):
        """Let a request wait for its turn."""
        self.waiting.append(request)

    def submit(self, request):
        """Add a request, and see to it that a thread steps."""
        with self._lock:
            if self._thread is None:
                try:
                    thread = threading.Thread(target=self._work, name="kshipra", daemon=True)
                    thread.start()
                except RuntimeError as error:   # a limit on processes; a subinterpreter
                    raise KshipraError(f"no thread can be had for it: {error}; generate_batch "
                                       "needs none") from None
                self._thread = thread
                atexit.register(self.close)
            self._inbox.append(request)

    def _work(self):
        more = False
        while True:
            with self._lock:
                arrived, self._inbox = self._inbox, []
                if not arrived and not more:
                    self._thread = None
                    atexit.unregister(self.close)
                    return
            for request in arrived:
                self.add(request)
            try:
                more = self.step()
            except Exception as error:  # between two steps: nobody may wait for what cannot come
                for request in (*self.running, *self.waiting):
                    if not request.finish_reason:
                        request.end("error", error)
                self.running, more = [], False
                self.waiting.clear()

    def close(self):
        """End all requests as cancelled, and wait until the thread has ended."""
        with self._lock:
            thread = self._thread
            for request in (*self._inbox, *self.waiting, *self.running):
                request.cancel()
        if thread not in (None, threading.current_thread()):
            thread.join()

    def step(self):
        """Run the rows of one step; return whether there is more to do."""
        self._end_cancelled()
        self._admit()
        work = self._choose_rows()
        if work:
            self._run(work)
        self.running = [r for r in self.running if not r.finish_reason]
        return bool(self.running or self.waiting)

    def _end_cancelled(self):
        for request in (*self.running, *self.waiting):
            if request.cancelled:
                request.end("cancelled")
        self.running = [r for r in self.running if not r.finish_reason]
        self.waiting = collections.deque(r for r in self.waiting if not r.finish_reason)

    def _admit(self):
        """Let the first that waits run, if all of its prompt and the next rows of the others fit.

        What the pool still has of its prompt is taken over, and not computed again.
        """
        while self.waiting and len(self.running) < self.max_running:
            request = self.waiting[0]
            promised = sum(self._n_new_pages(r, 1) for r in self.running)
            request.n_reused = request.seq.adopt(request.tokens)
            need = self._n_new_pages(request, len(request.pending()))
            if self.running and need + promised > self.pool.n_available:
                request.seq.truncate(0)
                return
            self.running.append(self.waiting.popleft())

    def _n_new_pages(self, request, n_rows):
        """Return how many pages a request needs beyond its own for its next n_rows."""
        seq = request.seq
        return seq.n_new_pages(len(seq.tokens) + n_rows)

    def _choose_rows(self):
        """Return [(request, number of rows)] of the next step, the oldest request first.

        Every request that decodes has its one row; what is left of max_rows goes to those that
        still read their prompts.  Where pages are short, the youngest gives its own back.
        """
        while True:
            left = self.max_rows - len(self.running)
            work, need = [], 0
            for request in self.running:
                n = min(len(request.pending()), left + 1)
                left -= n - 1
                work.append((request, n))
                need += self._n_new_pages(request, n)
            if need <= self.pool.n_available:
                return work
            assert len(self.running) > 1, "one request alone always finds room"
            request = self.running.pop()
            request.seq.truncate(0)
            self.waiting.appendleft(request)
            self.n_preempted += 1

    def _run(self, work):
        """Compute the rows chosen; a request that cannot be computed ends, and no other."""
        try:
            results = self._step(work)
        except Exception as error:
            if len(work) > 1:
                for one in work:
                    self._run([one])
            else:
                work[0][0].end("error", error)
            return
        for request, row in results:
            request.take(row)
            if request.finish_reason:
                request.end()

    def _step(self, work):
        """Return [(request, logits)] of those requests whose last token was among the rows."""
        rows, wanted, whose = [], [], []
        for request, n in work:
            start, todo = len(request.seq.tokens), request.pending()
            rows += [(token, start + i, request.seq) for i, token in enumerate(todo[:n])]
            if n == len(todo):
                wanted.append(len(rows) - 1)
                whose.append(request)
        logits = self.engine.step(rows, wanted)
        self.n_steps += 1
        self.n_rows += len(rows)
        return list(zip(whose, logits))


# ---------------------------------------------------------------------------------------
# Part II. The same bits, fast
#
# Plain Python does some tens of millions of multiplications a second, the processor under it
# some hundred billion.  The difference is reached by writing the processor's own instructions
# into memory and calling them.  The one idea: a kernel (one of the inner loops of chapter 4) is
# written once, as a Python function over a builder, which only records a list of instructions.
# That list is then
# 
#     interpreted   in Python, which defines what it means and tests it on any machine (10),
#     encoded       into bytes for x86-64 (11) or arm64 (12),
#     called        from memory that the system lets us execute (13).
# 
# The kernels themselves are in chapters 14 to 16; 17 strings them together into a forward pass,
# 18 runs it on several threads, and 19 lets no kernel be used before it has been compared with
# chapter 4.
# Not here: a compiler.  Nothing is optimised; what a kernel says is what runs.
# 
# The words.  A register is a place inside the processor that holds one value.  An instruction, a
# few bytes, computes with registers, or moves one from or to memory; code is instructions one
# after the other.  A jump goes on elsewhere, at a label, if the comparison before it came out as
# the jump says.  A number that is part of an instruction is called immediate (imm).  Assembly is
# instructions as text: `add rsi, 32` adds 32 to the register rsi; the first word is the mnemonic,
# and the operand that is set comes first.  The stack is memory where a function keeps what its
# registers cannot hold; a register, sp, has its address.  A calling convention says in which
# registers a function finds its parameters, and which it must leave as it found them.


# ---------------------------------------------------------------------------------------
# 10. Instructions
#
# A processor computes in registers, of which it has few: for us, registers of 64 bits that hold
# whole numbers and addresses, and registers of 256 bits that hold vectors.  A vector is eight
# float32 lanes, eight int32 or thirty-two int8; the bits do not know which, the operation
# decides:
#
#     byte    0       4       8       12      16      20      24      28      31
#            +-------+-------+-------+-------+-------+-------+-------+-------+
#     f32x8  | lane 0| lane 1| lane 2| lane 3| lane 4| lane 5| lane 6| lane 7|
#            +-------+-------+-------+-------+-------+-------+-------+-------+
#            |          low half             |          high half            |
#
# A kernel takes as many virtual registers as it likes, and the allocator below maps them to
# real ones.  A virtual register may be set again and again: `v += w` sets the register v, while
# `v = v + w` takes a new one and calls that v from here on.  A constant, k.const_f32x8(2.0), is
# an instruction each time it is written.  Memory is reached by a register holding an address
# plus a constant number of bytes, the displacement, and in no other way.  There is no fused
# multiply-add, on purpose: every multiplication and every addition rounds on its own, so that
# plain Python can follow to the bit.
#
# Every kernel is a function of three parameters, its first registers i0, i1 and i2: the address
# of its arguments, which are 64-bit fields one after the other; chunk, the number of the piece
# of work to do; and scratch, the address of memory to work in.
#
# An instruction is a tuple: the name of its operation, then its operands.  A whole example, a
# kernel that doubles 8 * n floats where they stand:
#
#     def emit_double(k):
#         x, n = k.args("x", "n")
#         with k.loop(n):
#             v = k.load_f32x8(x)
#             k.store_f32x8(x, v + v)
#             k.advance(x=32)
#
# kernel = build(emit_double) calls it once, which records kernel.instructions, on the left.  To
# the right of them is what encode(kernel, "avx2", "sysv") makes of each, and that as assembly:
#
#     ('load_i64', i3, i0, 0)   48 8b 37            mov rsi, [rdi]
#     ('load_i64', i4, i0, 8)   48 8b 7f 08         mov rdi, [rdi + 8]
#     ('mov', i5, i4)
#     ('loop', i5, 0)           48 85 ff            test rdi, rdi
#                               0f 8e 1a 00 00 00   jle end_0
#                                                   top_0:
#     ('vload', v6, i3, 0)      c5 fe 6f 06         vmovdqu ymm0, [rsi]
#     ('add_f32', v7, v6, v6)   c5 fc 58 c0         vaddps ymm0, ymm0, ymm0
#     ('vstore', i3, v7, 0)     c5 fe 7f 06         vmovdqu [rsi], ymm0
#     ('add_imm', i3, i3, 32)   48 83 c6 20         add rsi, 32
#     ('endloop', i5, 0)        48 83 ef 01         sub rdi, 1
#                               0f 8f e6 ff ff ff   jg top_0
#                                                   end_0:
#                               c5 f8 77            vzeroupper
#                               c3                  ret
#
# [rdi + 8] is the memory 8 bytes behind the address in rdi, where i0 arrives.  i0 is not needed
# after the second load and i4 not after the `mov`, so i4 and i5 are given rdi as well, and the
# `mov` is no code.  This runs the kernel in Python, over real memory:
#
#     x = array("f", range(8))
#     args = kernel.args_array(x=x.buffer_info()[0], n=1)
#     interpret(kernel, args.buffer_info()[0])
#
# and x is 0, 2, 4 ... 14.


class IntReg:
    """A virtual register of 64 bits: a signed whole number, or an address.

    k: the Builder that it belongs to, in which + and the like append an instruction.
    """

    __slots__ = ("k", "id")

    def __init__(self, k):
        self.k, self.id = k, k.n_regs
        k.n_regs += 1

    def __repr__(self): return f"i{self.id}"


class VecReg:
    """A virtual register of 256 bits.

    lane: "f32", "i32" or "i8", what the operators + - * / << >> take it for.  v.i32 is the same
    register seen as int32, v.f32 as float32; operations called by name look at the bits alone.
    """

    __slots__ = ("k", "id", "lane")

    def __init__(self, k, lane, id=None):
        self.k, self.lane, self.id = k, lane, id
        if id is None:
            self.id = k.n_regs
            k.n_regs += 1

    f32 = property(lambda self: VecReg(self.k, "f32", self.id))
    i32 = property(lambda self: VecReg(self.k, "i32", self.id))

    def __repr__(self): return f"v{self.id}"


def _int_operator(verb):
    """Return the method (a, b, to=None) of IntReg for an operator."""
    return lambda a, b, to=None: getattr(a.k, verb)(a, b, to=to)


def _vec_operator(verb):
    """Return the method of VecReg: for most operators, an operation on lanes of its kind."""
    by_lane = verb not in ("and_", "or_", "xor")
    names = {lane: f"{verb}_{lane}" if by_lane else verb for lane in ("f32", "i32", "i8")}

    def method(a, b, to=None):
        found = getattr(a.k, names[a.lane], None)
        if found is None or (by_lane and type(b) is VecReg and b.lane != a.lane):
            raise TypeError(f"{verb} of {a.lane} and {getattr(b, 'lane', type(b).__name__)} is no "
                            "operation; view the register as another lane, v.f32 or v.i32")
        return found(a, b, to=to)
    return method


def _in_place(method):
    return lambda a, b: method(a, b, a)


for _name, _verb in {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "and": "and_",
                     "or": "or_", "xor": "xor", "lshift": "shl", "rshift": "sar"}.items():
    for _class, _method in ((IntReg, _int_operator(_verb)), (VecReg, _vec_operator(_verb))):
        setattr(_class, f"__{_name}__", _method)
        setattr(_class, f"__i{_name}__", _in_place(_method))


# What an operation means is a Python function of the values of its operands.  An integer register
# holds a Python int in -2**63..2**63-1, a vector register 32 bytes.  The next functions open such
# bytes into lanes and close lanes into bytes; closing rounds to float32 or drops the bits above.

_f32 = struct.Struct("<8f").unpack
_i32 = struct.Struct("<8i").unpack
_u32 = struct.Struct("<8I").unpack
_i8 = struct.Struct("<32b").unpack
_pack_u32 = struct.Struct("<8I").pack


def _to_f32(lanes): return array("f", lanes).tobytes()
def _to_i32(lanes): return _pack_u32(*[x & 0xFFFFFFFF for x in lanes])
def _to_i8(lanes): return bytes([x & 0xFF for x in lanes])
def _to_mask(lanes): return b"".join([(b"\xff" if x else b"\0") * 4 for x in lanes])
def _i64(x): return ((x & 0xFFFFFFFFFFFFFFFF) ^ 0x8000000000000000) - 0x8000000000000000
def _i64s(function): return lambda a, b: _i64(function(a, b))


def _lanes(read, write):
    """Return what makes, of a function of numbers, the operation that applies it lane by lane.

    Of the operands, vectors are opened by `read`; a constant is the same for all lanes.
    """
    def of(function):
        def meaning(*operands):
            return write(map(function, *[repeat(x) if type(x) is int else read(x)
                                         for x in operands]))
        return meaning
    return of


_bytes_of, _f32s_of = _lanes(bytes, bytes), _lanes(_f32, _to_f32)
_i32s_of, _u32s_of = _lanes(_i32, _to_i32), _lanes(_u32, _to_i32)


def _divide(x, y):
    """x / y as IEEE 754 has it, where Python raises for y = 0."""
    if y:
        return x / y
    return math.nan if x == 0 or x != x else math.copysign(math.inf, x) * math.copysign(1, y)


def _square_root(x): return math.sqrt(x) if x >= 0 else x if x == 0 else math.nan
def _smaller(x, y): return x if x < y else y           # so NaN in either place gives y
def _larger(x, y): return x if x > y else y


def _whole(function):
    """Return function (round, math.floor) kept among floats: -0.3 becomes -0.0, and inf stays."""
    return lambda x: x if abs(x) >= 2**23 or x != x else math.copysign(function(x), x)


def _int32(x):
    """The whole number nearest to x, the even one if two are; -2**31 where x is out of range."""
    return round(x) if -2**31 <= x < 2**31 else -2**31


def _f16_bytes(x):
    """x rounded to float16, half to even; infinity where struct would raise."""
    try:
        return struct.pack("<e", x)
    except OverflowError:
        return struct.pack("<e", math.copysign(math.inf, x))


def _hadd(a, b):
    """Return the sums of neighbours: in each half, two of a, then two of b."""
    a, b = _f32(a), _f32(b)
    return _to_f32([a[0] + a[1], a[2] + a[3], b[0] + b[1], b[2] + b[3],
                    a[4] + a[5], a[6] + a[7], b[4] + b[5], b[6] + b[7]])


def _swap_halves(a): return a[16:] + a[:16]
def _pick_i32(a, order): return b"".join([a[4 * i:4 * i + 4] for i in order])


def _hsum_f32(a):
    a = _hadd(a, a)
    a = _hadd(a, a)
    return _f32s_of(add)(a, _swap_halves(a))


def _fold(step):
    """Return the vector operation whose every lane is step, of two vectors, over all lanes."""
    def meaning(a):
        a = step(a, _swap_halves(a))
        a = step(a, _pick_i32(a, (2, 3, 0, 1, 6, 7, 4, 5)))
        return step(a, _pick_i32(a, (1, 0, 3, 2, 5, 4, 7, 6)))
    return meaning


def _dot4(acc, a, b):
    """Return i32x8: to each lane of acc is added the sum of four products.  a, b: 32 ints"""
    return _to_i32([x + sum(a[i] * b[i] for i in range(4 * j, 4 * j + 4))
                    for j, x in enumerate(_i32(acc))])


def _unpack(a, b, n_bytes, start):
    """Alternate the lanes of a and b, from byte `start` (0 or 8) of each half."""
    return b"".join([v[half + start + i:half + start + i + n_bytes]
                     for half in (0, 16) for i in range(0, 8, n_bytes) for v in (a, b)])


def _shuffle_i8(a, index):
    return bytes([0 if n & 0x80 else a[(i & 16) | (n & 15)] for i, n in enumerate(index)])


def _load(address, n_bytes):
    return ctypes.string_at(address & 0xFFFFFFFFFFFFFFFF, n_bytes)


def _store(address, data):
    ctypes.memmove(address & 0xFFFFFFFFFFFFFFFF, bytes(data), len(data))


def _load_int(n_bytes, signed):
    return lambda base, disp: int.from_bytes(_load(base + disp, n_bytes), "little", signed=signed)


def _store_int(n_bytes):
    return lambda base, x, disp: _store(base + disp, (x % 2**64).to_bytes(8, "little")[:n_bytes])


def _load_vector(n_bytes, copies=1):
    """Return the load of n_bytes into each of so many places, the rest of the vector being 0."""
    return lambda base, disp: (_load(base + disp, n_bytes) * copies).ljust(32, b"\0")


def _store_vector(n_bytes):
    return lambda base, v, disp: _store(base + disp, v[:n_bytes])


def _load_lanes(form, write):
    """Return the load of as many packed lanes as `form` says, each widened by `write`."""
    n_bytes = struct.calcsize(form)
    return lambda base, disp: write(struct.unpack(form, _load(base + disp, n_bytes)))


def _load_first(base, n, disp):
    return _load(base + disp, 4 * min(max(n, 0), 8)).ljust(32, b"\0")


def _store_first(base, v, n, disp):
    _store(base + disp, v[:4 * min(max(n, 0), 8)])


def _fetch_add(base, x, disp):
    old = _load_int(8, True)(base, disp)
    _store_int(8)(base, old + x, disp)
    return old


def _insert_i32(v, x, lane):
    return v[:4 * lane] + (x & 0xFFFFFFFF).to_bytes(4, "little") + v[4 * lane + 4:]


COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
           "==": operator.eq, "!=": operator.ne}


class Op:
    """An operation: a row of the table below.

    signature: what it sets, "=", and what it reads, a letter each.  What is set is an integer
    register (i), or a vector register that the operators then take for f32, i32 or i8, or for
    what the operand was that it is made of (v); with "+" it is read too, before.  What is read is
    an integer register (i), a vector register (v), a constant (n: int, str, bytes or tuple; n8:
    ints from 0 to 7), and last a displacement (d), 0 if left out.
    meaning: takes what is read and returns what is set.  None: a part of the control flow
    x86, arm64: the recipe for each processor
    sets, updates: whether it sets its first operand, and reads it before
    accepts: the tuples of types that what is read may have   verb: the name without _imm
    letters: what the operands are called in a recipe
    """

    __slots__ = ("name", "verb", "sets", "updates", "lane", "reads", "limit", "meaning", "x86",
                 "arm64", "accepts", "letters")

    KINDS = {"i": (IntReg,), "v": (VecReg,), "n": (int, str, bytes, tuple), "d": (int,)}

    def __init__(self, name, signature, meaning, x86, arm64):
        result, reads = signature.split("=")
        self.name, self.meaning, self.x86, self.arm64 = name, meaning, x86, arm64
        self.verb = name[:-4] if name.endswith("_imm") else name
        self.updates, self.lane = result.endswith("+"), result.rstrip("+")
        self.sets = self.lane != ""
        self.reads = reads.rstrip("0123456789")
        self.limit = int(reads[len(self.reads):] or 0)
        self.letters = "d" * self.sets + "abce"[:len(self.reads)]
        self.accepts = set(itertools.product(*[self.KINDS[c] for c in self.reads]))



# The operations, each in one place: its name and signature, what it means, and what it becomes on
# x86-64 and on arm64.  Such a recipe is assembly, its instructions divided by ";".  In it, d is
# the register that is set, and a, b, c are the operands that are read, in order; t and u are
# temporaries, registers for this operation alone; * is the memory at base + displacement.  The
# mnemonics, and what else a recipe may say, are those of chapters 11 and 12.  A recipe that is
# the name of a function, beginning with "_", is that function of the processor's chapter.  Where
# the instruction set decides, or the constant operand, the recipe is a dictionary.  Since the
# result may be one of the operands, none is read after the result is written.
#
#   Integers wrap at 64 bits.  Shifts are by a constant less than the lane's width: shl to the
#   left, shr to the right with zeros moving in, sar to the right with copies of the sign.
#   div and rem are unsigned, and the divisor is not 0.
#   min_f32 and max_f32 return the second operand where the two do not compare (a NaN).
#   Float results that are NaN are some NaN: which one differs between processors.
#   f32_to_i32 of NaN or of what does not fit 32 bits is unspecified on other processors.
#   Masks are lanes of all ones or all zeros; `select` needs bytes of 0x00 or 0xff.
#   shuffle_i8 needs indices 0..15, or 128..255 for a zero; it stays within each half.
#   dot4_us needs u <= 127 as unsigned bytes, dot4_ss needs b >= -127: then no step overflows.
#   On x86-64 processors that have the dot product as one instruction, u may go up to 255.

_X86_DOT = {"avx2": "vpmaddubsw t {0}; vpmaddwd t t ones; vpaddd d d t",   # pairs in i16, in i32
            "avxvnni": "vpdpbusd d {0}", "vnni": "vpdpbusd.e d {0}"}
_X86_FOLD = ("vperm2i128 t a a 1; {0} d a t;"                       # the other half,
             "vpshufd t d 78; {0} d d t;"                           # turned by two lanes,
             "vpshufd t d 177; {0} d d t")                          # neighbours
_A64_DOT = "smull.8h t {0} {1}; smull2.8h u {0} {1}; addp.8h t t u; sadalp.4s {2} t"
_A64_FOLD = "{0} t a0 a1; {1} t t; dup.s d0 t 0; dup.s d1 t 0"
_A64_DUP = "ldr.{0} d0 *; dup.{1} d1 d0 0; dup.{1} d0 d0 0"

OPS = {op.name: op for op in itertools.starmap(Op, [
    # integer registers
    ("imm", "i=n", _i64, "mov d a", "const.x d a"),
    ("mov", "i=i", lambda a: a, "mov d a", "mov.x d a"),
    ("add", "i=ii", _i64s(add), "add d a b", "add.x d a b"),
    ("add_imm", "i=in", _i64s(add), "_x86_add_imm", "sum.x d a b"),
    ("sub", "i=ii", _i64s(sub), "sub d a b", "sub.x d a b"),
    ("mul", "i=ii", _i64s(mul), "imul d a b", "mul.x d a b"),
    ("mul_imm", "i=in", _i64s(mul), "_x86_mul_imm", "const.x 16 b; mul.x d a 16"),
    ("div", "i=ii", lambda a, b: _i64((a % 2**64) // (b % 2**64)), "_x86_div", "udiv.x d a b"),
    ("rem", "i=ii", lambda a, b: _i64((a % 2**64) % (b % 2**64)), "_x86_rem",
     "udiv.x 16 a b; msub.x d 16 b a"),
    ("iand_imm", "i=in", operator.and_, "and d a b", "_a64_and_imm"),
    ("ior_imm", "i=in", operator.or_, "or d a b", "_a64_or_imm"),
    ("shl", "i=in64", lambda a, n: _i64(a << n),
     {0: "mov d a", None: "mov d a; shl d b"}, "lsl.i d a 63-b -b&63"),
    ("sar", "i=in64", operator.rshift, {0: "mov d a", None: "mov d a; sar d b"}, "asr.i d a b"),
    ("min", "i=ii", min, "mov rax a; cmp rax b; cmovg rax b; mov d rax",
     "cmp.x a b; csel.x d a b lt"),
    ("min_imm", "i=in", min, "mov rax b; cmp rax a; cmovg rax a; mov d rax",
     "const.x 16 b; cmp.x a 16; csel.x d a 16 lt"),
    ("max", "i=ii", max, "mov rax a; cmp rax b; cmovl rax b; mov d rax",
     "cmp.x a b; csel.x d a b gt"),
    ("max_imm", "i=in", max, "mov rax b; cmp rax a; cmovl rax a; mov d rax",
     "const.x 16 b; cmp.x a 16; csel.x d a 16 gt"),
    ("load_i64", "i=id", _load_int(8, True), "mov.q d *", "ldr.x d *"),
    ("load_i32", "i=id", _load_int(4, True), "movsxd.m d *", "ldrs.w d *"),
    ("load_i16", "i=id", _load_int(2, True), "movsx.w d *", "ldrs.h d *"),
    ("load_u16", "i=id", _load_int(2, False), "movzx.w d *", "ldr.h d *"),
    ("store_i64", "=iid", _store_int(8), "mov.mq * b", "str.x b *"),
    ("store_i32", "=iid", _store_int(4), "mov.mr * b", "str.w b *"),
    ("store_i16", "=iid", _store_int(2), "mov.mw * b", "str.h b *"),

    # threads: atomic at multiples of 8 bytes, and seen by other threads in the order written;
    # on x86-64 every aligned load and store is.  fetch_add returns what was there before: arm64
    # loads and claims, adds, stores if the claim still holds, else tries again
    ("load_acquire", "i=id", _load_int(8, True), "mov.q d *", "_a64_load_acquire"),
    ("fetch_add", "i=iid", _fetch_add, "mov rax b; lock_xadd * rax; mov d rax",
     "sum.x 16 a c; ldaxr 17 16; add.x 17 17 b; stlxr 15 17 16; cbnz 15 -3; sub.x d 17 b"),
    ("pause", "=", lambda: None, "_x86_pause", "isb"),       # `yield` does nothing on most arm64

    # how floats are rounded, and whether tiny ones count: to memory, from there, and as it has
    # to be: to nearest, all count, no traps; x86-64 gets that by a number, through memory
    ("save_mode", "=id", lambda base, disp: None, "stmxcsr *", "mrs.fpcr 17; str.x 17 *"),
    ("load_mode", "=id", lambda base, disp: None, "ldmxcsr *", "ldr.x 17 *; msr.fpcr 17"),
    ("own_mode", "=ind", lambda base, n, disp: None, "mov rax b; mov.mr * rax; ldmxcsr *",
     "zero.fpcr"),
    ("prefetch", "=id", lambda base, disp: None, "prefetcht0 *", "_a64_prefetch"),
    ("prefetch_l2", "=id", lambda base, disp: None, "prefetcht1 *", "_a64_prefetch_l2"),

    # any vector: 32 bytes as they are
    ("const", "v=n", lambda data: data, "_x86_const", "_a64_const"),
    ("vmov", "v=v", lambda a: a, "_x86_vmov", "_a64_vmov"),
    ("vload", "v=id", _load_vector(32), "vmovdqu d *", "ldp.q d *"),
    ("vstore", "=ivd", _store_vector(32), "vmovdqu.m * b", "stp.q b *"),
    ("vand", "v=vv", _bytes_of(operator.and_), "vpand d a b", "and.16b d a b"),
    ("vor", "v=vv", _bytes_of(operator.or_), "vpor d a b", "orr.16b d a b"),
    ("vxor", "v=vv", _bytes_of(operator.xor), "vpxor d a b", "eor.16b d a b"),
    ("vandnot", "v=vv", _bytes_of(lambda x, y: ~x & y & 255), "vpandn d a b", "bic.16b d b a"),
    ("select", "v=vvv", _bytes_of(lambda mask, yes, no: yes if mask & 0x80 else no),
     "_x86_select", "_a64_select"),

    # half a vector, a lane, several lanes
    ("load_i8x16", "i8=id", _load_vector(16), "vmovdqu.x d *", "ldr.q d0 *; movi.16b d1 0 0"),
    ("load_f32", "f32=id", _load_vector(4), "vmovss d *", "ldr.s d0 *; movi.16b d1 0 0"),
    ("store_i8x16", "=ivd", _store_vector(16), "vmovdqu.mx * b", "str.q b0 *"),
    ("store_f32", "=ivd", _store_vector(4), "vmovss.m * b", "str.s b0 *"),
    ("load_high", "v=vid", lambda v, base, disp: v[:16] + _load(base + disp, 16),
     "vinserti128 d a * 1", "_a64_load_high"),
    # n lanes; the rest is 0 and not read, or not written
    ("load_f32_n", "f32=iid", _load_first,
     "vmovd d b; vpbroadcastd d d; vpcmpgtd d d lanes; vmaskmovps d d *", "_a64_load_n"),
    ("store_f32_n", "=ivid", _store_first,
     "vmovd t c; vpbroadcastd t t; vpcmpgtd t t lanes; vmaskmovps.m * t b", "_a64_store_n"),
    ("load_i32_at", "i32=in", lambda base, disps: b"".join([_load(base + d, 4) for d in disps]),
     "_x86_load_i32_at", "_a64_load_i32_at"),           # disps: one for each lane
    ("broadcast_i8x16", "i8=id", _load_vector(16, 2), "vbroadcasti128 d *",
     "ldr.q d0 *; mov.16b d1 d0"),
    ("broadcast_f32x8", "f32=id", _load_vector(4, 8), "vbroadcastss d *",
     _A64_DUP.format("s", "s")),
    ("broadcast_i32x8", "i32=id", _load_vector(4, 8), "vpbroadcastd d *",
     _A64_DUP.format("s", "s")),
    ("broadcast_i16x16", "i32=id", _load_vector(2, 16), "vpbroadcastw d *",
     _A64_DUP.format("vh", "h")),
    ("splat_i32", "i32=i", lambda x: (x & 0xFFFFFFFF).to_bytes(4, "little") * 8,
     "vmovd d a; vpbroadcastd d d", "dup.w d0 a; dup.w d1 a"),
    ("broadcast_lane", "v=vn8", lambda v, lane: v[4 * lane:4 * lane + 4] * 8,
     "_x86_broadcast_lane", "dup.s d0 a+(b>>2) b&3; mov.16b d1 d0"),
    ("extract_i32", "i=vn8", lambda v, lane: _i32(v)[lane], "_x86_extract_i32",
     "smov.s d a+(b>>2) b&3"),
    ("insert_i32", "i32=vin8", _insert_i32, "_x86_insert_i32", "_a64_insert_i32"),

    # f32x8.  fmin and fmax of NEON prefer numbers to NaN, or -0 to 0; ours choose by comparison
    ("add_f32", "f32=vv", _f32s_of(add), "vaddps d a b", "fadd.4s d a b"),
    ("sub_f32", "f32=vv", _f32s_of(sub), "vsubps d a b", "fsub.4s d a b"),
    ("mul_f32", "f32=vv", _f32s_of(mul), "vmulps d a b", "fmul.4s d a b"),
    ("div_f32", "f32=vv", _f32s_of(_divide), "vdivps d a b", "fdiv.4s d a b"),
    ("min_f32", "f32=vv", _f32s_of(_smaller), "vminps d a b",
     "fcmgt.4s t b a; bsl.16b t a b; mov.16b d t"),
    ("max_f32", "f32=vv", _f32s_of(_larger), "vmaxps d a b",
     "fcmgt.4s t a b; bsl.16b t a b; mov.16b d t"),
    ("sqrt_f32", "f32=v", _f32s_of(_square_root), "vsqrtps d a", "fsqrt.4s d a"),
    ("round_f32", "f32=v", _f32s_of(_whole(round)), "vroundps d a 8", "frintn.4s d a"),
    ("floor_f32", "f32=v", _f32s_of(_whole(math.floor)), "vroundps d a 9", "frintm.4s d a"),
    ("cmp_f32", "i32=vnv", lambda a, how, b: _lanes(_f32, _to_mask)(COMPARE[how])(a, b),
     {"<": "vcmpps d a c 17", "<=": "vcmpps d a c 18", ">": "vcmpps d a c 30",
      ">=": "vcmpps d a c 29", "==": "vcmpps d a c 0", "!=": "vcmpps d a c 4"},
     {"<": "fcmgt.4s d c a", "<=": "fcmge.4s d c a", ">": "fcmgt.4s d a c",
      ">=": "fcmge.4s d a c", "==": "fcmeq.4s d a c", "!=": "fcmeq.4s d a c; mvn.16b d d"}),
    ("i32_to_f32", "f32=v", _lanes(_i32, _to_f32)(float), "vcvtdq2ps d a", "scvtf.4s d a"),
    ("f32_to_i32", "i32=v", _lanes(_f32, _to_i32)(_int32), "vcvtps2dq d a", "fcvtns.4s d a"),
    ("hadd_f32", "f32=vv", _hadd, "vhaddps d a b", "faddp.4s d a b"),
    # ((0+1)+(2+3)) + ((4+5)+(6+7)), in every lane
    ("hsum_f32", "f32=v", _hsum_f32, "vhaddps d a a; vhaddps d d d; vperm2f128 t d d 1;"
     "vaddps d d t", "faddp.4s t a0 a1; faddp.4s t t t; faddp.4s d0 t t; mov.16b d1 d0"),
    ("hmax_f32", "f32=v", _fold(_f32s_of(_larger)), _X86_FOLD.format("vmaxps"),
     "fcmgt.4s t a0 a1; fcmgt.4s u a1 a0; bsl.16b t a0 a1; bsl.16b u a1 a0; mov.16b d0 t;"
     "mov.16b d1 u;" + "".join([f"{turned}; fcmgt.4s u {half} t; bif.16b {half} t u;"
                                for half in ("d0", "d1") for turned in (
                                    f"ext.16b t {half} {half} 8", f"rev64.4s t {half}")])),
    ("load_f16x8", "f32=id", _load_lanes("<8e", _to_f32), "vcvtph2ps d *",
     "ldr.q d1 *; fcvtl.4s d0 d1; fcvtl2.4s d1 d1"),
    ("f16_to_f32", "f32=v", lambda a: _to_f32(struct.unpack("<8e", a[:16])), "vcvtph2ps d a",
     "fcvtl2.4s d1 a0; fcvtl.4s d0 a0"),                # of the low half
    ("load_bf16x8", "f32=id", _load_lanes("<8H", lambda h: _to_i32([x << 16 for x in h])),
     "vpmovzxwd d *; vpslld d d 16", "ldr.q d1 *; shll.4s d0 d1; shll2.4s d1 d1"),
    ("store_f16x8", "=ivd", lambda base, v, disp: _store(
        base + disp, b"".join(map(_f16_bytes, _f32(v)))),
     "vcvtps2ph * b 0", "fcvtn.4h t b0; fcvtn2.8h t b1; str.q t *"),

    # i32x8
    ("add_i32", "i32=vv", _i32s_of(add), "vpaddd d a b", "add.4s d a b"),
    ("sub_i32", "i32=vv", _i32s_of(sub), "vpsubd d a b", "sub.4s d a b"),
    ("mul_i32", "i32=vv", _i32s_of(mul), "vpmulld d a b", "mul.4s d a b"),
    ("max_u32", "i32=vv", _u32s_of(max), "vpmaxud d a b", "umax.4s d a b"),
    ("shl_i32", "i32=vn32", _i32s_of(operator.lshift), "vpslld d a b", "shl.4s d a b"),
    ("shr_i32", "i32=vn32", _u32s_of(operator.rshift), "vpsrld d a b",
     {0: "mov.16b d a", None: "ushr.4s d a 32-b"}),
    ("sar_i32", "i32=vn32", _i32s_of(operator.rshift), "vpsrad d a b",
     {0: "mov.16b d a", None: "sshr.4s d a 32-b"}),
    ("cmpgt_i32", "i32=vv", _lanes(_i32, _to_mask)(operator.gt), "vpcmpgtd d a b",
     "cmgt.4s d a b"),
    ("hsum_i32", "i32=v", _fold(_i32s_of(add)), _X86_FOLD.format("vpaddd"),     # in every lane
     _A64_FOLD.format("add.4s", "addv.4s")),
    ("hmax_u32", "i32=v", _fold(_u32s_of(max)), _X86_FOLD.format("vpmaxud"),
     _A64_FOLD.format("umax.4s", "umaxv.4s")),
    ("widen_i8x8", "i32=id", _load_lanes("<8b", _to_i32), "vpmovsxbd d *",
     "ldr.d d1 *; sxtl.8h d1 d1; sxtl.4s d0 d1; sxtl2.4s d1 d1"),
    ("store_i32_as_i8", "=ivd", lambda base, v, disp: _store(       # what does not fit is clamped
        base + disp, bytes([min(max(x, -128), 127) & 255 for x in _i32(v)])),
     "vextracti128 t b 1; vpackssdw.x t b t; vpacksswb.x t t t; vmovq.m * t",
     "sqxtn.4h t b0; sqxtn2.8h t b1; sqxtn.8b t t; str.d t *"),

    # i8x32.  Before VNNI, vpmaddubsw wants one side unsigned: it is given the other one's sign
    ("min_u8", "i8=vv", _bytes_of(min), "vpminub d a b", "umin.16b d a b"),
    ("shuffle_i8", "i8=vv", _shuffle_i8, "vpshufb d a b", "tbl.16b d a b"),     # (table, index)
    ("dot4_us", "i32+=vv", lambda acc, u, s: _dot4(acc, u, _i8(s)),
     {isa: dot.format("a b") for isa, dot in _X86_DOT.items()},
     {"neon": _A64_DOT.format("a", "b", "d"), "neon_dot": "sdot.4s d a b"}),
    ("dot4_ss", "i32+=vv", lambda acc, a, b: _dot4(acc, _i8(a), _i8(b)),
     {isa: "vpsignb t b a; vpabsb u a; " + dot.format("u t") for isa, dot in _X86_DOT.items()},
     {"neon": _A64_DOT.format("a", "b", "d"), "neon_dot": "sdot.4s d a b"}),
    ("dot4_us_m", "i32+=vid", lambda acc, u, base, disp: _dot4(     # four bytes, in every lane
        acc, u, struct.unpack("<4b", _load(base + disp, 4)) * 8),
     {**{isa: "vpbroadcastd t *; " + dot.format("a t") for isa, dot in _X86_DOT.items()},
      "vnni": "vpdpbusd.e d a *"},
     {"neon": "".join([f"ldr.s t *; dup.s t t 0; smull.8h u a{h} t; smull2.8h t a{h} t;"
                       f"addp.8h u u t; sadalp.4s d{h} u;" for h in (0, 1)]),
      "neon_dot": "ldr.s t *; sdot.4b d0 a0 t 0 0; sdot.4b d1 a1 t 0 0"}),

    # rearranging
    ("unpack_lo_i32", "i32=vv", lambda a, b: _unpack(a, b, 4, 0), "vpunpckldq d a b",
     "zip1.4s d a b"),
    ("unpack_hi_i32", "i32=vv", lambda a, b: _unpack(a, b, 4, 8), "vpunpckhdq d a b",
     "zip2.4s d a b"),
    ("unpack_lo_i64", "i32=vv", lambda a, b: _unpack(a, b, 8, 0), "vpunpcklqdq d a b",
     "zip1.2d d a b"),
    ("unpack_hi_i64", "i32=vv", lambda a, b: _unpack(a, b, 8, 8), "vpunpckhqdq d a b",
     "zip2.2d d a b"),
    ("shuffle_i32", "v=vn4", lambda a, order: _pick_i32(            # order: 4 of 0..3
        a, [half + i for half in (0, 4) for i in order]), "_x86_shuffle_i32", "_a64_shuffle_i32"),
    ("blend_i32", "v=vvn256", lambda a, b, bits: b"".join(          # bit i set: lane i from b
        [(b if bits >> i & 1 else a)[4 * i:4 * i + 4] for i in range(8)]),
     "vpblendd d a b c", "_a64_blend_i32"),
    ("halves", "v=vvnn4", lambda a, b, low, high: b"".join(         # 0 1: of a, 2 3: of b
        [(a + b)[16 * i:16 * i + 16] for i in (low, high)]), "_x86_halves", "_a64_halves"),

    # control: told apart from the rest by the interpreter, and the same for both encoders
    ("call", "=iiii", None, "_x86_call", "_a64_call"),      # address, then its three arguments
    ("loop", "=in", None, "_loop", "_loop"),                # counter, number of the block
    ("endloop", "=in", None, "_endloop", "_endloop"),
    ("if", "=inin", None, "_if", "_if"),                    # a, how, b, number of the block
    ("if_imm", "=innn", None, "_if_imm", "_if_imm"),
    ("else", "=n", None, "_else", "_else"),
    ("endif", "=n", None, "_endif", "_endif"),
    ("while", "=inin", None, "_while", "_while"),
    ("while_imm", "=innn", None, "_while_imm", "_while_imm"),
    ("endwhile", "=inin", None, "_endwhile", "_endwhile"),
    ("endwhile_imm", "=innn", None, "_endwhile_imm", "_endwhile_imm"),
])}


class Builder:
    """A kernel: the list of its instructions, and the methods that append to it.

    There is a method for each operation, called with the operands after the "=" of the signature;
    it returns the register that it sets, a fresh one, or `to` where that is given.  Operators on
    registers are the same methods.  args_pointer, chunk, scratch: the three parameters, registers.
    """

    def __init__(self, name):
        self.name = name
        self.instructions = []
        self.n_regs = 0
        self.fields = {}              # name -> register, in the order of the 64-bit fields
        self.held = {}                # constants kept in registers: bytes -> register
        self.blocks = []              # [start, else or None, end]: positions of loop, if, while
        self.open_blocks = []
        self.args_pointer, self.chunk, self.scratch = IntReg(self), IntReg(self), IntReg(self)

    def args(self, *names):
        """Load the next fields of the argument structure, 64 bits each; return their registers."""
        for name in names:
            self.fields[name] = self.load_i64(self.args_pointer, 8 * len(self.fields))
        found = tuple([self.fields[name] for name in names])
        return found if len(found) > 1 else found[0]

    def advance(self, **n_bytes):
        """Add to pointers that `args` returned, by name: k.advance(x=32, out=4)."""
        for name, n in n_bytes.items():
            self.add(self.fields[name], n, to=self.fields[name])

    def mov(self, to, source):
        """Set register `to` to the value of `source`, a register of its kind or a Python int."""
        kind = "vmov" if type(source) is VecReg else "imm" if type(source) is int else "mov"
        return self.emit(kind, source, to=to)

    def copy(self, source):
        """Return a fresh register with the value of `source`."""
        if type(source) is VecReg:
            return self.emit("vmov", source, to=VecReg(self, source.lane))
        return self.emit("mov", source)

    def emit(self, name, *operands, to=None):
        """Append the operation of that name."""
        return getattr(self, "_op_" + name)(*operands, to=to)

    # These choose an operation by the kind of an operand.

    def sub(self, a, b, to=None):
        return self.add(a, -b, to=to) if type(b) is int else self._op_sub(a, b, to=to)

    def and_(self, a, b, to=None):
        return (self.vand if type(a) is VecReg else self.iand_imm)(a, b, to=to)

    def or_(self, a, b, to=None):
        return (self.vor if type(a) is VecReg else self.ior_imm)(a, b, to=to)

    def xor(self, a, b, to=None):
        return self.vxor(a, b, to=to)

    def andnot(self, a, b, to=None):
        return self.vandnot(a, b, to=to)

    # Vectors known when the kernel is built: one value for all lanes, or a list with one for each.

    def const_f32x8(self, x): return self._constant(x, 8, _to_f32, "f32")
    def const_i32x8(self, x): return self._constant(x, 8, _to_i32, "i32")
    def const_i8x32(self, x): return self._constant(x, 32, _to_i8, "i8")
    def zero_f32x8(self): return self.const_f32x8(0.0)
    def zero_i32x8(self): return self.const_i32x8(0)

    def _constant(self, x, n_lanes, write, lane):
        lanes = [x] * n_lanes if isinstance(x, (int, float)) else list(x)
        if len(lanes) != n_lanes:
            raise ValueError(f"constant of {len(lanes)} lanes; needs 1 or {n_lanes}")
        data = write(lanes)
        if data in self.held:
            return VecReg(self, lane, self.held[data])
        return self._op_const(data, to=VecReg(self, lane))

    def hold_i8x32(self, x):
        """Keep a constant in a register, not to be set: const_i8x32(x) is that from here on."""
        v = self.const_i8x32(x)
        self.held[_to_i8([x] * 32 if isinstance(x, int) else x)] = v.id

    # Blocks, used as context managers: with k.loop(n): ...

    def loop(self, n):
        """Run the block n times, none if n <= 0; n: a register or int.

        `with k.loop(n) as left` gives the register that counts down: n, n - 1 ... 1.
        """
        count = self.emit("imm" if type(n) is int else "mov", n)
        return Block(self, "loop", (count,))

    def if_(self, a, how, b):
        """Run the block if a < b; how: one of < <= > >= == !=; signed; b may be an int."""
        return Block(self, "if", (a, how, b))

    def else_(self):
        """Run the block if the one of the `if_` just closed did not run."""
        return Block(self, "else", ())

    def while_(self, a, how, b):
        """Run the block as long as a < b, which is looked at before each round."""
        return Block(self, "while", (a, how, b))

    def args_array(self, **values):
        """Return the fields as array('q'), in the order of the structure: what a call is given."""
        if set(values) != set(self.fields):
            raise TypeError(f"kernel {self.name} takes {list(self.fields)}, got {list(values)}")
        return array("q", [_i64(values[name]) for name in self.fields])


class Block:
    """The instructions between a `loop`, `if`, `else` or `while` and its end."""

    __slots__ = ("k", "kind", "operands")

    def __init__(self, k, kind, operands):
        self.k, self.kind, self.operands = k, kind, operands

    def __enter__(self):
        k, here = self.k, len(self.k.instructions)
        if self.kind == "else":
            # An `if` that is followed by an `else` is closed by the latter's end.
            if not k.instructions or k.instructions[-1][0] != "endif":
                raise ValueError("else_ must follow the block of an if_")
            _, number = k.instructions.pop()
            k.blocks[number][1] = here - 1
            k.instructions.append(("else", number))
        else:
            number = len(k.blocks)
            k.blocks.append([here, None, None])
            k.emit(self.kind, *self.operands, number)
        k.open_blocks.append(number)
        return self.operands[0] if self.kind == "loop" else None

    def __exit__(self, *error):
        k = self.k
        number = k.open_blocks.pop()
        k.blocks[number][2] = len(k.instructions)
        if self.kind in ("if", "else"):
            k.instructions.append(("endif", number))
        else:
            k.emit("end" + self.kind, *self.operands, number)


# The methods of Builder, one made from each row of the table.  As _op_name it is always that
# operation; as plain `name` too, unless the class defines a method of that name (mov).  Where
# there is an operation `name_imm`, `name` takes a register or an int, and appends either.

def _check_constants(kernel, name, operands, lowest, highest):
    """Refuse ints, or ints in a tuple, that are out of range, and words that do not compare."""
    for x in operands:
        kind = type(x)
        if kind is int and not lowest <= x <= highest or (
                kind is tuple and not all([lowest <= n <= highest for n in x])):
            raise ValueError(f"kernel {kernel.name}: {name} takes constants {lowest} to {highest}"
                             f", got {operands}")
        if kind is str and x not in COMPARE:
            raise ValueError(f"kernel {kernel.name}: {name} takes comparisons "
                             f"{' '.join(COMPARE)}, got {operands}")


def _add_method(op):
    """Give Builder the method that appends one `op`.

    Kinds and constants are checked here, so that a mistake shows in the line that makes it.
    """
    name, accepts, sets, updates, n_reads = (op.name, op.accepts, op.sets, op.updates,
                                             len(op.reads))
    has_disp, has_constants = op.reads.endswith("d"), "n" in op.reads
    bits = 32 if name == "load_i32_at" else 64      # displacements, or numbers
    constants = (0, op.limit - 1) if op.limit else (-2**(bits - 1), 2**(bits - 1) - 1)
    kind, lane = (IntReg, None) if op.lane == "i" else (VecReg, op.lane if op.lane != "v" else "")
    like = 1 if name == "select" else 0            # the operand whose lane type the result has

    def method(self, *operands, to=None):
        if updates:
            to, operands = operands[0], operands[1:]
        if has_disp and len(operands) < n_reads:
            operands += (0,)
        if tuple(map(type, operands)) not in accepts:
            raise TypeError(f"{name} takes {op.reads!r}, got {operands}")
        if has_constants:
            _check_constants(self, name, operands, *constants)
        if has_disp and not -2**31 <= operands[-1] < 2**31:
            raise ValueError(f"kernel {self.name}: {name} {operands} is {operands[-1]} bytes from "
                             "its register, but a displacement has 32 bits; add to the register")
        if not sets:
            self.instructions.append((name, *operands))
            return None
        if to is None:
            to = IntReg(self) if kind is IntReg else VecReg(self, lane or operands[like].lane)
        elif type(to) is not kind:
            raise TypeError(f"{name} sets a {kind.__name__}, got to={to}")
        self.instructions.append((name, to, *operands))
        return to
    return method


def _register_or_int(on_register, on_int, i):
    """Return the method that appends either operation: on_int where operand i is an int."""
    def method(self, *operands, to=None):
        return (on_int if type(operands[i]) is int else on_register)(self, *operands, to=to)
    return method


for _op in reversed(OPS.values()):                 # add_imm before add
    _method = _add_method(_op)
    _name = _op.name + "_imm"
    if _name in OPS:
        _differ = [x == y for x, y in zip(_op.reads, OPS[_name].reads)].index(False)
        _method = _register_or_int(_method, getattr(Builder, "_op_" + _name), _differ)
    setattr(Builder, "_op_" + _op.name, _method)
    if not hasattr(Builder, _op.name):
        setattr(Builder, _op.name, _method)


def _load_method(lane):
    def method(self, base, disp=0, to=None):
        return self._op_vload(base, disp, to=to or VecReg(self, lane))
    return method


for _lane, _shape in (("f32", "f32x8"), ("i32", "i32x8"), ("i8", "i8x32")):
    setattr(Builder, "load_" + _shape, _load_method(_lane))
    setattr(Builder, "store_" + _shape, Builder.vstore)


def build(emit, *parameters, **options):
    """Return the kernel that emit(k, *parameters, **options) writes."""
    k = Builder(emit.__name__)
    emit(k, *parameters, **options)
    return k


def interpret(kernel, args, chunk=0, scratch=0, functions=None):
    """Run a kernel in Python, over real memory.

    args, scratch: addresses.  functions: {address: Python function of (args, chunk, scratch)},
    for kernels that `call`.
    """
    instructions, blocks = kernel.instructions, kernel.blocks
    values = [None] * kernel.n_regs
    values[:3] = args, chunk, scratch
    at = 0
    while at < len(instructions):
        name, *operands = instructions[at]
        at += 1
        op = OPS[name]
        reads = [values[x.id] if type(x) is IntReg or type(x) is VecReg else x
                 for x in operands[op.sets and not op.updates:]]
        if any(x is None for x in reads):
            raise ValueError(f"{kernel.name}: {name} {operands} reads a register that was not set")
        if op.meaning:
            result = op.meaning(*reads)
            if op.sets:
                values[operands[0].id] = result
        elif name == "call":
            functions[reads[0]](*reads[1:])
        elif op.verb in ("if", "while", "endwhile"):
            start, middle, end = blocks[reads[3]]
            holds = COMPARE[reads[1]](reads[0], reads[2])
            if op.verb == "endwhile" and holds:
                at = start + 1
            elif op.verb != "endwhile" and not holds:
                at = (end if middle is None else middle) + 1
        elif name == "else":
            at = blocks[reads[0]][2] + 1
        elif name == "loop" and reads[0] <= 0:
            at = blocks[reads[1]][2] + 1
        elif name == "endloop":
            values[operands[0].id] = left = reads[0] - 1
            if left > 0:
                at = blocks[reads[1]][0] + 1


# From virtual registers to real ones.  A register is busy from the instruction that first sets it
# to the last that names it; one that is set before a loop and named inside stays busy to the
# loop's end, since the next round needs it again.  Walking the instructions once in order, each
# register takes a free real one when its time begins and returns it when its time is over.  That
# is linear scan allocation (Poletto and Sarkar, 1999) without its hard part: nothing is ever
# moved to memory.  A kernel that needs more registers than there are is a mistake to be mended
# in the kernel.

def _lifetimes(kernel):
    """Return (first, last): for each register, the positions between which it is busy.

    first[r] is None for a register never used.  The three parameters begin at -1.
    """
    first, last = [None] * kernel.n_regs, [-1] * kernel.n_regs
    first[:3] = -1, -1, -1
    scope = [0] * kernel.n_regs         # the block in which a register is first set
    open_scopes, n_scopes = [0], 1      # an `if` and its `else` are two scopes
    open_loops = []                     # (start, end), outermost first
    for at, instruction in enumerate(kernel.instructions):
        op = OPS[instruction[0]]
        name = None if op.meaning else op.verb          # of the control flow
        if name in ("else", "endif", "endloop", "endwhile"):
            open_scopes.pop()
        fresh = op.sets and not op.updates              # whether operand 1 is only set
        for x in instruction[1:]:
            kind = type(x)
            if kind is IntReg or kind is VecReg:
                r = x.id
                since = first[r]
                if since is None and fresh:
                    first[r] = since = at
                    scope[r] = open_scopes[-1]
                elif since is None or since == at:
                    raise ValueError(f"kernel {kernel.name}, instruction {at}: {op.verb} reads "
                                     f"{x}, which was not set before; set it first")
                elif scope[r] not in open_scopes:
                    raise ValueError(f"kernel {kernel.name}, instruction {at}: {op.verb} names "
                                     f"{x}, first set in a block that has ended; set it before "
                                     "that block")
                if last[r] < at:
                    last[r] = at
                if open_loops and since < open_loops[-1][0]:
                    for start, end in open_loops:
                        if since < start:
                            if last[r] < end:
                                last[r] = end
                            break
            fresh = False
        if name in ("if", "else", "loop", "while"):
            open_scopes.append(n_scopes)
            n_scopes += 1
            if name in ("loop", "while"):
                open_loops.append((at, kernel.blocks[instruction[-1]][2]))
        elif name in ("endloop", "endwhile"):
            open_loops.pop()
    return first, last


def _too_many(kernel, kind, have, first, last):
    """Return the error that names where a kernel needs the most registers of a kind."""
    ids = {x.id for instruction in kernel.instructions for x in instruction if type(x) is kind}
    busy = [sum(first[r] <= at <= last[r] for r in ids) for at in range(len(kernel.instructions))]
    at = busy.index(max(busy))
    return ValueError(f"kernel {kernel.name} needs {max(busy)} {kind.__name__} and its "
                      f"temporaries at instruction {at}, {kernel.instructions[at]}, but there "
                      f"are {have}; keep fewer values at once")


def allocate(kernel, encoder):
    """Return (bound, ints, vectors): the instructions on real registers, and which were used.

    bound: a list of [function, operands...]; after the operands of the operation come its
    temporaries, and for `call` the integer registers whose value is needed afterwards.
    The register that an operation sets may be one that it reads for the last time; a temporary
    is never any of the others.
    """
    first, last = _lifetimes(kernel)
    ending = [[] for _ in kernel.instructions]
    for r, at in enumerate(last):
        if at >= 0:
            ending[at].append(r)
    free = {IntReg: list(reversed(encoder.int_order)),
            VecReg: list(reversed(range(encoder.n_vectors)))}
    n_all = {kind: len(registers) for kind, registers in free.items()}
    used = {IntReg: set(), VecReg: set()}
    real, kind_of = [None] * kernel.n_regs, {}      # the real register, and the kind, of each
    for r, parameter in enumerate(encoder.parameters):
        if last[r] >= 0:
            real[r], kind_of[r] = parameter, IntReg
            free[IntReg].remove(parameter)
            used[IntReg].add(parameter)
    recipes = {name: encoder.recipes[name] for name in {line[0] for line in kernel.instructions}}
    bound = []
    for at, instruction in enumerate(kernel.instructions):
        function, n_temps = recipes[instruction[0]]
        temps = ()
        if n_temps:
            if len(free[VecReg]) < n_temps:
                raise _too_many(kernel, VecReg, n_all[VecReg], first, last)
            temps = free[VecReg][-n_temps:]
            del free[VecReg][-n_temps:]
            used[VecReg].update(temps)
        ended = ending[at]
        for r in ended:                             # before what is set here takes its place
            if real[r] is not None:
                free[kind_of[r]].append(real[r])
        line = [function]
        for x in instruction[1:]:
            kind = type(x)
            if kind is IntReg or kind is VecReg:
                r = x.id
                if real[r] is None:
                    if not free[kind]:
                        raise _too_many(kernel, kind, n_all[kind], first, last)
                    real[r], kind_of[r] = free[kind].pop(), kind
                    used[kind].add(real[r])
                    if r in ended:                  # set, and never looked at
                        free[kind].append(real[r])
                x = real[r]
            line.append(x)
        if temps:
            line += temps
            free[VecReg] += temps
        elif instruction[0] == "call":
            live = [r for r in kind_of if first[r] < at < last[r]]
            if any(kind_of[r] is VecReg for r in live):
                raise ValueError(f"kernel {kernel.name}: a vector register is busy across a call; "
                                 "store it before")
            line.append(tuple(real[r] for r in live))
        bound.append(line)
    return bound, used[IntReg], used[VecReg]


class Encoder:
    """What writes the code of one kernel: all that this chapter asks of a processor.

    isa: the name of an instruction set   abi: of a calling convention   kernel: a Builder
    recipes: see Recipes   labels: name -> where in the code
    A class for a processor, X86 in chapter 11 and Arm64 in 12, adds to it:

        code            what is written so far: a sequence, unit_bytes to an element
        n_vectors, int_order, parameters    how many vector registers there are; the integer
                        registers that a kernel may have, the first to be taken first; those of
                        them in which args, chunk and scratch arrive
        column          the name of its column in the table of operations
        recipe(op, text)    class method: (function, n_temps) of a recipe, see Recipes
        begin(ints, vectors, calls)     writes what stands before the kernel: what the convention
                        wants kept is kept, if it is among the registers used; calls: whether
                        there is a `call`
        finish()        writes what stands behind it, fills in the distances of jumps and of
                        constants; returns bytes, the first n_code_bytes of which are code
        compare(a, b), compare_imm(a, n), count_down(a)     integer registers: compare with a
                        register or an int; subtract 1 and compare the rest with 0
        jump(how, label)    where the comparison just made came out so, or always if how is None
        EMITTERS, text(emitter, operands, data)     for `listing`: the methods that append one
                        instruction each, and such an instruction as assembly; or EMITTERS is
                        empty and disassemble(data) tells what four bytes are
    """

    def __init__(self, isa, abi):
        self.isa, self.abi, self.kernel, self.labels = isa, abi, None, {}
        self.recipes = recipes_of(isa)

    def label(self, name):
        self.labels[name] = len(self.code)


class Recipes(dict):
    """Name of an operation -> (function, n_temps), for an instruction set; made when needed.

    function: writes the code; it is given the encoder, the operands as the numbers of real
    registers or constants, and then as many vector registers as it wants for temporaries
    """

    def __init__(self, isa):
        self.isa, self.encoder = isa, ENCODERS[isa]

    def __missing__(self, name):
        op = OPS[name]
        recipe = getattr(op, self.encoder.column)
        if type(recipe) is dict and self.isa in recipe:
            recipe = recipe[self.isa]
        if type(recipe) is dict:                        # by the value of the constant operand
            made = {value: self.encoder.recipe(op, text) for value, text in recipe.items()}
            constant = op.sets + op.reads.index("n")

            def function(asm, *operands):
                made.get(operands[constant], made.get(None))[0](asm, *operands)
            self[name] = function, max(n_temps for _, n_temps in made.values())
        elif recipe[0] == "_":                          # a function that names its temporaries
            function = globals()[recipe]
            names = function.__code__.co_varnames[:function.__code__.co_argcount]
            self[name] = function, len({"t", "u"}.intersection(names))
        else:
            self[name] = self.encoder.recipe(op, recipe)
        return self[name]


# The control flow is the same for both.  asm: the encoder

def _loop(asm, count, block):
    asm.compare_imm(count, 0)
    asm.jump("<=", ("end", block))
    asm.label(("top", block))


def _endloop(asm, count, block):
    asm.count_down(count)
    asm.jump(">", ("top", block))
    asm.label(("end", block))


def _else(asm, block):
    asm.jump(None, ("end", block))
    asm.label(("else", block))


def _endif(asm, block):
    asm.label(("end", block))


_OPPOSITE = {"<": ">=", ">=": "<", "<=": ">", ">": "<=", "==": "!=", "!=": "=="}


def _branches(compare):
    """Return the functions for if, while and endwhile.  compare: the name of a method"""
    def if_(asm, a, how, b, block):
        getattr(asm, compare)(a, b)
        has_else = asm.kernel.blocks[block][1] is not None
        asm.jump(_OPPOSITE[how], ("else" if has_else else "end", block))

    def while_(asm, a, how, b, block):
        getattr(asm, compare)(a, b)
        asm.jump(_OPPOSITE[how], ("end", block))
        asm.label(("top", block))

    def endwhile(asm, a, how, b, block):
        getattr(asm, compare)(a, b)
        asm.jump(how, ("top", block))
        asm.label(("end", block))
    return if_, while_, endwhile


_if, _while, _endwhile = _branches("compare")
_if_imm, _while_imm, _endwhile_imm = _branches("compare_imm")

ENCODERS = {}           # instruction set -> its encoder class; chapters 11 and 12 fill it
recipes_of = functools.lru_cache(maxsize=None)(Recipes)
_MACHINE = {"amd64": "x86-64", "x86_64": "x86-64", "arm64": "arm64", "aarch64": "arm64"}.get(
    platform.machine().lower())


def host_abi():
    """Return the name of this machine's calling convention."""
    return "aapcs64" if _MACHINE == "arm64" else "win64" if sys.platform == "win32" else "sysv"


def encode(kernel, isa, abi=None):
    """Return the bytes of a kernel for instruction set `isa` and calling convention `abi`.

    abi: None for this machine's
    """
    encoder = ENCODERS[isa](isa, abi or host_abi())
    _emit(kernel, encoder)
    return encoder.finish()


def _emit(kernel, encoder, before_each=None):
    """Let an encoder write the code of a kernel, all but its end.

    before_each: None, or called with each instruction before its code is written
    """
    bound, ints, vectors = allocate(kernel, encoder)
    encoder.kernel = kernel
    encoder.begin(ints, vectors, any(line[0] == "call" for line in kernel.instructions))
    for at, (function, *operands) in enumerate(bound):
        if before_each:
            before_each(kernel.instructions[at])
        function(encoder, *operands)


def listing(kernel, isa, abi=None):
    """Return a kernel as text: each operation, and below it offset, bytes and assembly.

    Nothing is spent on text unless it is asked for.  The encoder's EMITTERS are wrapped here to
    note what they are called with.
    """
    encoder = ENCODERS[isa](isa, abi or host_abi())
    notes, depth = [(0, None, ("begin",))], 0       # (offset, emitter or None, what it was given)

    def offset():
        return encoder.unit_bytes * len(encoder.code)

    def wrapped(name):
        emit = getattr(encoder, name)

        def noting(*operands):
            nonlocal depth
            if depth == 0:                  # an emitter may use another one
                notes.append((offset(), name, operands))
            depth += 1
            emit(*operands)
            depth -= 1
        return noting

    for name in encoder.EMITTERS:
        setattr(encoder, name, wrapped(name))
    _emit(kernel, encoder, lambda instruction: notes.append((offset(), None, instruction)))
    notes.append((offset(), None, ("end",)))
    code = encoder.finish()
    ends = [note[0] for note in notes[1:]] + [encoder.n_code_bytes]
    lines = [f"; {kernel.name} for {isa}, {encoder.abi}: {len(code)} bytes"]
    for (start, name, operands), end in zip(notes, ends):
        if name is None:
            lines.append("; " + " ".join([operands[0], ", ".join(map(str, operands[1:]))]).strip())
            parts = [(off, code[off:off + 4]) for off in range(start, end, 4)]  # none if noted
            texts = [encoder.disassemble(data) for _, data in parts]
        else:
            data = code[start:end]
            parts, texts = [(start, data)], [encoder.text(name, operands, data)]
        for (off, data), text in zip(parts, texts):
            lines.append(f"{off:04x}  {data.hex(' '):<30}  {text}")
    if len(code) > encoder.n_code_bytes:
        data = code[encoder.n_code_bytes:]
        lines.append(f"{encoder.n_code_bytes:04x}  constants: {data.hex(' ')}")
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------
# 11. x86-64
#
# An x86-64 instruction is 1 to 15 bytes, of which one, the opcode, says what is done.  The one
# idea: a table has the numbers of every instruction that we use, the methods of the encoder (its
# emitters) bring them into the forms below, and the functions behind it say which instructions
# make up an operation of chapter 10.
#
# Most of ours are vector instructions in the VEX form, which name three registers, d = a op b:
#
#     byte       C4          1            2          opcode     3
#            +--------+-----------+-----------------+--------+------------+------------+-----+
#            |11000100|R X B mmmmm|W  v v v v  L p p|        |mod reg r/m |displacement| imm |
#            +--------+-----------+-----------------+--------+------------+------------+-----+
#     mmmmm, pp  which table of opcodes: mmmmm 1 is called 0F, 2 is 0F38, 3 is 0F3A; pp 1 is 66,
#                2 is F3, 3 is F2, the prefix bytes that used to do this work
#     L          0: 128 bits (xmm), 1: 256 bits (ymm)           W: one more bit of opcode
#     reg, vvvv, r/m   the three registers, usually d, a, b; a register number has four bits, and
#                the fourth of reg is R, of r/m is B.  R, X, B and vvvv are stored inverted.
#     mod        3: r/m is a register.  Else memory: r/m is the register holding the address, and
#                the displacement has 0 (mod 0), 1 (mod 1) or 4 bytes (mod 2).  Two oddities: r/m 4
#                announces a further byte, here always 24 ("no index"), and mod 0 with r/m 5 means
#                "4 bytes of displacement from the end of this instruction", by which a kernel
#                reaches its constants, so that registers 5 and 13 always have a displacement.
#
# Where X, B and W are not needed and mmmmm is 1, a shorter form drops that byte:
#
#            +--------+-----------------+--------+-----------
#            |11000101|R  v v v v  L p p| opcode | mod reg r/m ...
#            +--------+-----------------+--------+-----------
#
# Instructions on integers are older: an optional prefix REX, 0100WRXB, not inverted, where W
# means 64 bits; the opcode; then mod reg r/m as above; two registers, d = d op b.
# Source: Intel SDM volume 2A, chapter 2 (2.1.5 tables, 2.3 VEX, 2.7 EVEX); the opcodes: 2A-2D.

# Vector instructions: opcode, pp, mmmmm, W, L, and the operands in the order an assembler writes
# them: y and x are ymm and xmm, w, r and q integer registers of 16, 32 and 64 bits, m memory.
# They fill reg, vvvv, r/m in turn, or reg, r/m where there are two; "<" turns the order round.  A
# digit stands in reg as one more bit of opcode.  What follows a "." tells forms of one mnemonic
# apart: m for a store, x for xmm, 8 and 32 for the bits of a constant, e for EVEX.

_VEX_ROWS = {
    "vmovdqu":        (0x6F, 2, 1, 0, 1, "yy"),     "vmovdqu.m":      (0x7F, 2, 1, 0, 1, "<my"),
    "vmovdqu.x":      (0x6F, 2, 1, 0, 0, "xx"),     "vmovdqu.mx":     (0x7F, 2, 1, 0, 0, "<mx"),
    "vmovaps":        (0x28, 0, 1, 0, 1, "yy"),     "vmovq.m":        (0xD6, 1, 1, 0, 0, "<mx"),
    "vmovss":         (0x10, 2, 1, 0, 0, "xm"),     "vmovss.m":       (0x11, 2, 1, 0, 0, "<mx"),
    "vmovd":          (0x6E, 1, 1, 0, 0, "xr"),     "vmovd.r":        (0x7E, 1, 1, 0, 0, "<rx"),
    "vpextrd":        (0x16, 1, 3, 0, 0, "<rx"),    "vpinsrd":        (0x22, 1, 3, 0, 0, "xxr"),
    "vmaskmovps":     (0x2C, 1, 2, 0, 1, "yym"),    "vmaskmovps.m":   (0x2E, 1, 2, 0, 1, "<myy"),
    "vbroadcastss":   (0x18, 1, 2, 0, 1, "yx"),     "vbroadcasti128": (0x5A, 1, 2, 0, 1, "ym"),
    "vpbroadcastw":   (0x79, 1, 2, 0, 1, "yx"),     "vpbroadcastd":   (0x58, 1, 2, 0, 1, "yx"),
    "vextracti128":   (0x39, 1, 3, 0, 1, "<xy"),    "vinserti128":    (0x38, 1, 3, 0, 1, "yyx"),
    "vperm2i128":     (0x46, 1, 3, 0, 1, "yyy"),    "vperm2f128":     (0x06, 1, 3, 0, 1, "yyy"),
    "vpermq":         (0x00, 1, 3, 1, 1, "yy"),     "vpshufd":        (0x70, 1, 1, 0, 1, "yy"),
    "vpblendd":       (0x02, 1, 3, 0, 1, "yyy"),    "vpblendvb":      (0x4C, 1, 3, 0, 1, "yyy"),
    "vaddps":         (0x58, 0, 1, 0, 1, "yyy"),    "vsubps":         (0x5C, 0, 1, 0, 1, "yyy"),
    "vmulps":         (0x59, 0, 1, 0, 1, "yyy"),    "vdivps":         (0x5E, 0, 1, 0, 1, "yyy"),
    "vminps":         (0x5D, 0, 1, 0, 1, "yyy"),    "vmaxps":         (0x5F, 0, 1, 0, 1, "yyy"),
    "vsqrtps":        (0x51, 0, 1, 0, 1, "yy"),     "vroundps":       (0x08, 1, 3, 0, 1, "yy"),
    "vcmpps":         (0xC2, 0, 1, 0, 1, "yyy"),    "vhaddps":        (0x7C, 3, 1, 0, 1, "yyy"),
    "vcvtdq2ps":      (0x5B, 0, 1, 0, 1, "yy"),     "vcvtps2dq":      (0x5B, 1, 1, 0, 1, "yy"),
    "vcvtph2ps":      (0x13, 1, 2, 0, 1, "yx"),     "vcvtps2ph":      (0x1D, 1, 3, 0, 1, "<my"),
    "vpand":          (0xDB, 1, 1, 0, 1, "yyy"),    "vpandn":         (0xDF, 1, 1, 0, 1, "yyy"),
    "vpor":           (0xEB, 1, 1, 0, 1, "yyy"),    "vpxor":          (0xEF, 1, 1, 0, 1, "yyy"),
    "vpaddd":         (0xFE, 1, 1, 0, 1, "yyy"),    "vpsubd":         (0xFA, 1, 1, 0, 1, "yyy"),
    "vpmulld":        (0x40, 1, 2, 0, 1, "yyy"),    "vpminub":        (0xDA, 1, 1, 0, 1, "yyy"),
    "vpmaxud":        (0x3F, 1, 2, 0, 1, "yyy"),    "vpabsb":         (0x1C, 1, 2, 0, 1, "yy"),
    "vpsignb":        (0x08, 1, 2, 0, 1, "yyy"),    "vpcmpeqd":       (0x76, 1, 1, 0, 1, "yyy"),
    "vpcmpgtd":       (0x66, 1, 1, 0, 1, "yyy"),    "vpslld":         (0x72, 1, 1, 0, 1, "6yy"),
    "vpsrld":         (0x72, 1, 1, 0, 1, "2yy"),    "vpsrad":         (0x72, 1, 1, 0, 1, "4yy"),
    "vpmovsxbd":      (0x21, 1, 2, 0, 1, "yx"),     "vpmovzxwd":      (0x33, 1, 2, 0, 1, "yx"),
    "vpackssdw.x":    (0x6B, 1, 1, 0, 0, "xxx"),    "vpacksswb.x":    (0x63, 1, 1, 0, 0, "xxx"),
    "vpmaddwd":       (0xF5, 1, 1, 0, 1, "yyy"),    "vpmaddubsw":     (0x04, 1, 2, 0, 1, "yyy"),
    "vpshufb":        (0x00, 1, 2, 0, 1, "yyy"),    "vpunpckldq":     (0x62, 1, 1, 0, 1, "yyy"),
    "vpunpckhdq":     (0x6A, 1, 1, 0, 1, "yyy"),    "vpunpcklqdq":    (0x6C, 1, 1, 0, 1, "yyy"),
    "vpunpckhqdq":    (0x6D, 1, 1, 0, 1, "yyy"),    "vpdpbusd":       (0x50, 1, 2, 0, 1, "yyy"),
    "vpdpbusd.e":     (0x50, 1, 2, 0, 1, "yyy"),
}
# As the encoder wants them: opcode, mmmmm, and the byte W vvvv L pp without its vvvv.
VEX = {name: (opcode, mmmmm, (w << 7) | (l << 2) | pp)
       for name, (opcode, pp, mmmmm, w, l, _) in _VEX_ROWS.items()}

# Integer instructions: the bytes before mod reg r/m (a W of 1 goes into REX), reg or r/m first.
_REX_ROWS = {
    "mov":        (1, b"\x89", "<qq"),          "add":        (1, b"\x01", "<qq"),
    "sub":        (1, b"\x29", "<qq"),          "and":        (1, b"\x21", "<qq"),
    "or":         (1, b"\x09", "<qq"),          "cmp":        (1, b"\x39", "<qq"),
    "test":       (1, b"\x85", "<qq"),          "xor.r":      (0, b"\x31", "<rr"),
    "imul":       (1, b"\x0f\xaf", "qq"),       "cmovg":      (1, b"\x0f\x4f", "qq"),
    "cmovl":      (1, b"\x0f\x4c", "qq"),       "mov.q":      (1, b"\x8b", "qm"),
    "mov.r":      (0, b"\x8b", "rm"),           "movsxd":     (1, b"\x63", "qr"),
    "movsxd.m":   (1, b"\x63", "qm"),           "lea":        (1, b"\x8d", "qm"),
    "movsx.w":    (1, b"\x0f\xbf", "qm"),       "movzx.w":    (0, b"\x0f\xb7", "rm"),
    "mov.mq":     (1, b"\x89", "<mq"),          "mov.mr":     (0, b"\x89", "<mr"),
    "mov.mw":     (0, b"\x89", "<mw"),          "lock_xadd":  (1, b"\x0f\xc1", "<mq"),
    "div":        (1, b"\xf7", "6m"),           "prefetcht0": (0, b"\x0f\x18", "1m"),
    "stmxcsr":    (0, b"\x0f\xae", "3m"),       "ldmxcsr":    (0, b"\x0f\xae", "2m"),
    "prefetcht1": (0, b"\x0f\x18", "2m"),       "add.8":      (1, b"\x83", "0q"),
    "add.32":     (1, b"\x81", "0q"),           "or.8":       (1, b"\x83", "1q"),
    "or.32":      (1, b"\x81", "1q"),           "and.8":      (1, b"\x83", "4q"),
    "and.32":     (1, b"\x81", "4q"),           "sub.8":      (1, b"\x83", "5q"),
    "sub.32":     (1, b"\x81", "5q"),           "cmp.8":      (1, b"\x83", "7q"),
    "cmp.32":     (1, b"\x81", "7q"),           "imul.8":     (1, b"\x6b", "qq"),
    "imul.32":    (1, b"\x69", "qq"),           "mov.32":     (1, b"\xc7", "0q"),
    "shl":        (1, b"\xc1", "4q"),           "sar":        (1, b"\xc1", "7q"),
}
# A byte before REX: `lock` makes an instruction atomic, 66 makes 16 bits of 32.
_LEGACY_PREFIX = {"lock_xadd": b"\xf0", "mov.mw": b"\x66"}
# Instructions that are always the same bytes.
_RAW = {"pause": b"\xf3\x90", "vzeroupper": b"\xc5\xf8\x77", "call rax": b"\xff\xd0",
        "ret": b"\xc3", "cpuid": b"\x0f\xa2", "xgetbv": b"\x0f\x01\xd0"}
RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15 = range(16)
# A comparison in a jump (which reads the flags, where `cmp` and `test` leave their outcome).
CONDITION = {"<": 0xC, ">=": 0xD, "<=": 0xE, ">": 0xF, "==": 0x4, "!=": 0x5}

# Calling conventions: where parameters arrive, what a function must leave as it was, and for
# Windows, that a caller keeps 32 bytes for the callee above the return address.
# Sources: System V ABI, AMD64 supplement, 3.2; Microsoft, "x64 calling convention".
_ABI = {
    "sysv":  dict(parameters=(RDI, RSI, RDX), saved=(RBX, RBP, R12, R13, R14, R15), saved_vecs=(),
                  int_order=(RDI, RSI, RDX, RCX, R8, R9, R10, R11, RBX, RBP, R12, R13, R14, R15)),
    "win64": dict(parameters=(RCX, RDX, R8), saved=(RBX, RBP, RDI, RSI, R12, R13, R14, R15),
                  saved_vecs=tuple(range(6, 16)),
                  int_order=(RCX, RDX, R8, R9, R10, R11, RBX, RBP, RDI, RSI, R12, R13, R14, R15)),
}
_CALL_SLOTS = 17            # frame space of a kernel that calls: 3 arguments, up to 14 registers


@functools.lru_cache(maxsize=None)
def _vex(name, reg, vvvv, rm):
    """Return the prefix and the opcode of a vector instruction, the short prefix if it will do."""
    opcode, mmmmm, w_l_pp = VEX[name]
    r_vvvv = (0 if reg > 7 else 0x80) | ((15 - vvvv) << 3)
    if rm < 8 and mmmmm == 1 and w_l_pp < 128:
        return bytes((0xC5, r_vvvv | w_l_pp, opcode))
    return bytes((0xC4, (r_vvvv & 0x80) | (0x40 if rm > 7 else 0x60) | mmmmm,
                  (r_vvvv & 0x78) | w_l_pp, opcode))


@functools.lru_cache(maxsize=None)
def _vex_registers(name, reg, vvvv, rm):
    """Return a whole vector instruction on registers."""
    return _vex(name, reg, vvvv, rm) + bytes((0xC0 | ((reg & 7) << 3) | (rm & 7),))


def _mod_rm(reg, base, disp, unit=1):
    """Return the bytes mod reg r/m and what follows, for the memory at base + disp.

    unit: how many bytes a 1-byte displacement counts, other than 1 in the EVEX form only.
    """
    reg_rm = ((reg & 7) << 3) | (base & 7)
    sib = b"\x24" if base & 7 == 4 else b""
    if disp == 0 and base & 7 != 5:
        return bytes((reg_rm,)) + sib
    if disp % unit == 0 and -128 <= disp // unit <= 127:
        return bytes((0x40 | reg_rm,)) + sib + bytes((disp // unit & 0xFF,))
    return bytes((0x80 | reg_rm,)) + sib + struct.pack("<i", disp)


# The names of the registers by size, and the rest of what a listing is made from.
_INT_NAMES = {
    "q": "rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15".split(),
    "r": "eax ecx edx ebx esp ebp esi edi r8d r9d r10d r11d r12d r13d r14d r15d".split(),
    "w": "ax cx dx bx sp bp si di r8w r9w r10w r11w r12w r13w r14w r15w".split(),
}
_JUMP_NAMES = {"<": "l", ">=": "ge", "<=": "le", ">": "g", "==": "e", "!=": "ne"}
_MEMORY_SIZE = {"movsx.w": "word ptr ", "movzx.w": "word ptr ", "movsxd.m": "dword ptr ",
                "div": "qword ptr "}


def _memory_text(base, disp):
    distance = f" + {disp}" if disp > 0 else f" - {-disp}" if disp else ""
    return f"[{_INT_NAMES['q'][base]}{distance}]"


def _operands_text(name, pattern, reg, vvvv, r_m, imm):
    """Return mnemonic and operands in the order that a table's pattern says; see _VEX_ROWS."""
    kinds = pattern.lstrip("<")
    operands = [reg, vvvv, r_m] if len(kinds) == 3 else [reg, r_m]
    if pattern[0] == "<":
        operands.reverse()
    texts = []
    for kind, x in zip(kinds, operands):
        if not kind.isdigit():
            texts.append(x if type(x) is str else f"{kind}mm{x}" if kind in "xy" else
                         _INT_NAMES[kind][x])
    if name == "vpblendvb":
        texts.append(f"ymm{imm[0] >> 4}")            # here the last byte holds a register
    elif imm and imm[0] is not None:
        texts.append(str(imm[0]))
    return f"{name.split('.')[0].replace('_', ' ')} {', '.join(texts)}"


class X86(Encoder):
    """The encoder for x86-64.  abi: see _ABI

    isa: "avx2"; or with the dot product vpdpbusd, which came in two forms: "vnni" (EVEX, with
    AVX-512) and "avxvnni" (VEX).
    Register rax belongs to the encoder, rsp has the stack's address, all others are the kernel's.
    """

    column, n_vectors, unit_bytes = "x86", 16, 1            # code is a bytearray

    def __init__(self, isa, abi):
        super().__init__(isa, abi)
        self.parameters, self.int_order = _ABI[abi]["parameters"], _ABI[abi]["int_order"]
        self.code = bytearray()
        self.jumps = []                           # (offset of 4 bytes, name of a label)
        self.constants, self.uses = {}, []        # bytes -> offset; (offset of 4 bytes, bytes)

    # The emitters: each appends one instruction.  The first argument names a row above.

    def vvv(self, name, reg, vvvv, rm, imm=None):
        """A vector instruction on registers."""
        self.code += _vex_registers(name, reg, vvvv, rm)
        if imm is not None:
            self.code.append(imm)

    def vvm(self, name, reg, vvvv, base, disp, imm=None):
        """A vector instruction whose r/m is the memory at base + disp."""
        self.code += _vex(name, reg, vvvv, base) + _mod_rm(reg, base, disp)
        if imm is not None:
            self.code.append(imm)

    def vvc(self, name, reg, vvvv, data):
        """A vector instruction whose r/m is a constant of the kernel; `finish` fills in where."""
        self.code += _vex(name, reg, vvvv, 0) + bytes((((reg & 7) << 3) | 5, 0, 0, 0, 0))
        self.constants[data] = None
        self.uses.append((len(self.code) - 4, data))

    def evv(self, name, reg, vvvv, rm):
        """vpdpbusd in the EVEX form of AVX-512, 4 bytes of prefix; our registers need no 5th bit.

            62 | R X B R' 0 mmm | W vvvv 1 pp | z L'L b V' aaa |  (b: broadcast 4 bytes of memory)
        """
        self.code += bytes((0x62, (0x72 if reg > 7 else 0xF2) ^ (0x20 if rm > 7 else 0),
                            0x05 | ((15 - vvvv) << 3), 0x28, VEX[name][0],
                            0xC0 | ((reg & 7) << 3) | (rm & 7)))

    def evm(self, name, reg, vvvv, base, disp):
        """The same of 4 bytes of memory, in every lane; a displacement byte counts in 4s."""
        self.code += bytes((0x62, (0x72 if reg > 7 else 0xF2) ^ (0x20 if base > 7 else 0),
                            0x05 | ((15 - vvvv) << 3), 0x38, VEX[name][0]))
        self.code += _mod_rm(reg, base, disp, 4)

    def rr(self, name, reg, rm, imm=None):
        """An integer instruction on registers; reg may be a digit of the opcode."""
        w, opcode, _ = _REX_ROWS[name]
        rex = (w << 3) | (4 if reg > 7 else 0) | (1 if rm > 7 else 0)
        if rex:
            self.code.append(0x40 | rex)
        self.code += opcode
        self.code.append(0xC0 | ((reg & 7) << 3) | (rm & 7))
        if imm is not None:
            self.code += imm.to_bytes(4 if name.endswith(".32") else 1, "little", signed=imm < 0)

    def rm(self, name, reg, base, disp):
        """An integer instruction whose r/m is the memory at base + disp."""
        w, opcode, _ = _REX_ROWS[name]
        self.code += _LEGACY_PREFIX.get(name, b"")
        rex = (w << 3) | (4 if reg > 7 else 0) | (1 if base > 7 else 0)
        if rex:
            self.code.append(0x40 | rex)
        self.code += opcode + _mod_rm(reg, base, disp)

    def mov_imm(self, d, n):
        """Set integer register d to n in the shortest of the usual ways."""
        if n == 0:
            self.rr("xor.r", d, d)
        elif 0 < n < 2**32:                                       # B8+r: clears the upper half
            self.code += (b"\x41" if d > 7 else b"") + bytes((0xB8 | (d & 7),))
            self.code += n.to_bytes(4, "little")
        elif -2**31 <= n < 0:
            self.rr("mov.32", 0, d, n)
        else:
            self.code += bytes((0x49 if d > 7 else 0x48, 0xB8 | (d & 7)))
            self.code += (n & (2**64 - 1)).to_bytes(8, "little")

    def raw(self, name):
        """An instruction that is always the same bytes."""
        self.code += _RAW[name]

    def push(self, r):
        self.code += bytes((0x41, 0x50 | (r & 7)) if r > 7 else (0x50 | r,))

    def pop(self, r):
        self.code += bytes((0x41, 0x58 | (r & 7)) if r > 7 else (0x58 | r,))

    def jump(self, how, label):
        """Always with 4 bytes of distance: a 1-byte form exists, but forward it is a guess."""
        self.code += b"\xe9" if how is None else bytes((0x0F, 0x80 | CONDITION[how]))
        self.code += bytes(4)
        self.jumps.append((len(self.code) - 4, label))

    EMITTERS = ("vvv", "vvm", "vvc", "evv", "evm", "rr", "rm", "mov_imm", "raw", "push", "pop",
                "jump", "label")

    def text(self, emitter, operands, data):
        """Return an instruction as an assembler writes it.  data: its bytes."""
        name = operands[0]
        if emitter == "label":
            return f"{name[0]}_{name[1]}:"
        if emitter == "jump":
            part, block = operands[1]
            return f"{'jmp' if name is None else 'j' + _JUMP_NAMES[name]} {part}_{block}"
        if emitter == "raw":
            return name
        if emitter in ("push", "pop"):
            return f"{emitter} {_INT_NAMES['q'][name]}"
        if emitter == "mov_imm":
            d, n = operands
            return (f"xor {_INT_NAMES['r'][d]}, {_INT_NAMES['r'][d]}" if n == 0 else
                    f"mov {_INT_NAMES['r' if 0 < n < 2**32 else 'q'][d]}, {n}")
        pattern = (_REX_ROWS[name] if name in _REX_ROWS else _VEX_ROWS[name])[-1]
        _, reg, *rest = operands
        vvvv = None if name in _REX_ROWS else rest.pop(0)
        if emitter in ("rm", "vvm", "evm"):
            base, disp, *imm = rest
            r_m = _MEMORY_SIZE.get(name, "") + _memory_text(base, disp)
            if emitter == "evm":
                r_m = f"dword ptr {r_m}{{1to8}}"
        elif emitter == "vvc":
            r_m, imm = f"[rip + {struct.unpack('<i', data[-4:])[0]}]", ()
        else:
            r_m, *imm = rest
        prefix = "{vex} " if name == "vpdpbusd" else ""
        return prefix + _operands_text(name, pattern, reg, vvvv, r_m, imm)

    # Two or three instructions each.

    def mov(self, d, a):
        """d = a, which is no code if they are the same register."""
        if d != a:
            self.rr("mov", a, d)

    def arith(self, name, d, a, b):
        """d = a op b, on an instruction that does d = d op b."""
        if d == b and d != a:
            if name == "sub":
                self.mov(RAX, a)
                self.rr(name, b, RAX)
                return self.mov(d, RAX)
            a, b = b, a
        self.mov(d, a)
        if name == "imul":                        # here reg is the destination
            d, b = b, d
        return self.rr(name, b, d)

    def arith_imm(self, name, d, a, n):
        """d = a op n, n a constant."""
        self.mov(d, a)
        form = ".8" if -128 <= n <= 127 else ".32"
        if -2**31 <= n < 2**31:
            self.rr(name + form, int(_REX_ROWS[name + form][2][0]), d, n)
        else:
            self.mov_imm(RAX, n)
            self.rr(name, RAX, d)

    def compare(self, a, b):
        self.rr("cmp", b, a)

    def compare_imm(self, a, n):
        if n == 0:
            self.rr("test", a, a)
        elif -2**31 <= n < 2**31:
            self.rr("cmp.8" if -128 <= n <= 127 else "cmp.32", 7, a, n)
        else:
            self.mov_imm(RAX, n)
            self.rr("cmp", RAX, a)

    def count_down(self, a):
        self.rr("sub.8", 5, a, 1)

    # Beginning and end of a kernel.

    def begin(self, ints, vectors, calls):
        """Save what the calling convention wants kept, and make room on the stack."""
        self.saved = [r for r in _ABI[self.abi]["saved"] if r in ints]
        self.saved_vecs = [v for v in _ABI[self.abi]["saved_vecs"] if v in vectors]
        for r in self.saved:
            self.push(r)
        self.shadow = 32 if self.abi == "win64" else 0      # what is kept for the callee
        self.vec_area = self.shadow + 8 * _CALL_SLOTS if calls else 0
        self.frame = self.vec_area + 16 * len(self.saved_vecs)
        if calls and (self.frame + 8 * len(self.saved) + 8) % 16:
            self.frame += 8                              # at a call, rsp is a multiple of 16
        if self.frame:
            _x86_add_imm(self, RSP, RSP, -self.frame)
        for i, v in enumerate(self.saved_vecs):
            self.vvm("vmovdqu.mx", v, 0, RSP, self.vec_area + 16 * i)
        self.vectors = vectors

    def finish(self):
        """Undo `begin`, return, lay down the constants, fill in distances; return the bytes."""
        if self.vectors:
            # Old SSE code in the caller is slow while upper halves are in use, so clear them all.
            self.raw("vzeroupper")
        for i, v in enumerate(self.saved_vecs):
            self.vvm("vmovdqu.x", v, 0, RSP, self.vec_area + 16 * i)
        if self.frame:
            _x86_add_imm(self, RSP, RSP, self.frame)
        for r in reversed(self.saved):
            self.pop(r)
        self.raw("ret")
        self.n_code_bytes = len(self.code)
        for data in sorted(self.constants, key=len, reverse=True):
            self.code += bytes(-len(self.code) % len(data))
            self.constants[data] = len(self.code)
            self.code += data
        for off, label in self.jumps:
            self.code[off:off + 4] = struct.pack("<i", self.labels[label] - (off + 4))
        for off, data in self.uses:
            self.code[off:off + 4] = struct.pack("<i", self.constants[data] - (off + 4))
        return bytes(self.code)

    # The recipes of chapter 10.  An instruction has its operands in the order of an assembler.
    # rax is the encoder's register; `ones` and `lanes` are constants in memory.  add, sub, imul,
    # and, or take three operands, and `mov` a constant too: that may be several instructions.

    FIXED = {"rax": RAX, "ones": struct.pack("<16h", *[1] * 16),
             "lanes": struct.pack("<8i", *range(8))}

    @classmethod
    def recipe(cls, op, text):
        """Return (function, n_temps): what calls the emitters for each instruction of a recipe."""
        tokens = text.replace(";", " ").split()
        n_temps = 2 if "u" in tokens else int("t" in tokens)
        names = [*op.letters, *"tu"[:n_temps]]          # of what the function is given
        index = {name: i for i, name in enumerate(names)}
        index.update(base=op.sets + op.reads.find("i"), disp=len(op.letters) - 1)
        fixed, steps = [], []                           # values that it is not given
        for instruction in text.split(";"):
            name, *tokens = instruction.split()
            i = index.get(tokens[-1], 0) - op.sets
            is_imm = 0 <= i < len(op.reads) and op.reads[i] == "n"
            if name == "mov":
                emitter, args = "mov_imm" if is_imm else "mov", tokens
            elif name in ("add", "sub", "imul", "and", "or"):
                emitter, args = "arith_imm" if is_imm else "arith", [name, *tokens]
            else:
                vector = name in _VEX_ROWS
                pattern = (_VEX_ROWS if vector else _REX_ROWS)[name][-1]
                n_places = len(pattern.lstrip("<"))
                tokens = [pattern[0]] * pattern[0].isdigit() + tokens
                places, imm = tokens[:n_places], tokens[n_places:]
                if pattern[0] == "<":
                    places.reverse()
                if vector and n_places == 2:
                    places.insert(1, "0")               # no vvvv
                r_m = places.pop()
                emitter = "r" if not vector else "ev" if name.endswith(".e") else "vv"
                emitter += ("m" if r_m == "*" else "c" if r_m in ("ones", "lanes") else
                            "v" if vector else "r")
                args = [name, *places, *(("base", "disp") if r_m == "*" else (r_m,)), *imm]
            picks = []
            for x in args:
                if x not in index:
                    index[x] = len(names) + len(fixed)
                    fixed.append(int(x) if x.isdigit() else cls.FIXED.get(x, x))
                picks.append(index[x])
            steps.append((emitter, operator.itemgetter(*picks)))
        fixed, ((first, pick_first), *more) = tuple(fixed), steps

        def function(asm, *operands):
            values = operands + fixed
            getattr(asm, first)(*pick_first(values))
            for emitter, pick in more:
                getattr(asm, emitter)(*pick(values))
        return function, n_temps


# The functions that recipes name.  asm: the encoder; then operands and temporaries, as numbers of
# registers.  Each must be right when the destination d is also a source.

def _x86_add_imm(asm, d, a, n):
    """d = a + n: lea adds without touching its source, else the plain add."""
    if d != a and -2**31 <= n < 2**31:
        asm.rm("lea", d, a, n)
    else:
        asm.arith_imm("add", d, a, n)


def _x86_mul_imm(asm, d, a, n):
    if -2**31 <= n < 2**31:
        asm.rr("imul.8" if -128 <= n <= 127 else "imul.32", d, a, n)
    else:
        asm.mov_imm(RAX, n)
        asm.rr("imul", RAX, a)
        asm.mov(d, RAX)


def _x86_division(result):
    """div divides rdx:rax by its operand, into quotient rax and remainder rdx."""
    def function(asm, d, a, b):
        asm.push(RDX)
        asm.push(b)
        asm.mov(RAX, a)
        asm.rr("xor.r", RDX, RDX)
        asm.rm("div", 6, RSP, 0)
        asm.mov(RAX, result)
        asm.pop(RDX)                     # b, dropped
        asm.pop(RDX)
        asm.mov(d, RAX)
    return function


_x86_div, _x86_rem = _x86_division(RAX), _x86_division(RDX)


def _x86_const(asm, d, data):
    """Constants that are all 0 or 1 bits need no memory; repeated ones are stored once."""
    if data == bytes(32):
        asm.vvv("vpxor", d, d, d)
    elif data == b"\xff" * 32:
        asm.vvv("vpcmpeqd", d, d, d)
    elif data == data[:4] * 8:
        asm.vvc("vbroadcastss", d, 0, data[:4])
    elif data == data[:16] * 2:
        asm.vvc("vbroadcasti128", d, 0, data[:16])
    else:
        asm.vvc("vmovdqu", d, 0, data)


def _x86_pause(asm):
    asm.raw("pause")


def _x86_vmov(asm, d, a):
    if d != a:
        asm.vvv("vmovaps", d, 0, a)


def _x86_select(asm, d, mask, yes, no):
    asm.vvv("vpblendvb", d, no, yes, mask << 4)


def _x86_load_i32_at(asm, d, base, disps, t):
    """Two halves of four: the first dword clears its register, the others are inserted."""
    for half, v in ((disps[:4], d), (disps[4:], t)):
        asm.vvm("vmovd", v, 0, base, half[0])
        for lane in (1, 2, 3):
            asm.vvm("vpinsrd", v, v, base, half[lane], lane)
    asm.vvv("vinserti128", d, d, t, 1)


def _x86_broadcast_lane(asm, d, v, lane):
    asm.vvv("vpshufd", d, 0, v, (lane & 3) * 0b01010101)      # that lane of its half, four times
    asm.vvv("vpermq", d, 0, d, 0xEE if lane > 3 else 0x44)    # then that half twice


def _x86_extract_i32(asm, d, v, lane, t):
    if lane > 3:
        asm.vvv("vextracti128", v, 0, t, 1)
        v = t
    if lane & 3:
        asm.vvv("vpextrd", v, 0, d, lane & 3)
    else:
        asm.vvv("vmovd.r", v, 0, d)
    asm.rr("movsxd", d, d)


def _x86_insert_i32(asm, d, v, x, lane, t):
    asm.vvv("vmovd", t, 0, x)
    asm.vvv("vpbroadcastd", t, 0, t)
    asm.vvv("vpblendd", d, v, t, 1 << lane)


def _x86_shuffle_i32(asm, d, a, order):
    asm.vvv("vpshufd", d, 0, a, order[0] | order[1] << 2 | order[2] << 4 | order[3] << 6)


def _x86_halves(asm, d, a, b, low, high):
    asm.vvv("vperm2i128", d, a, b, low | high << 4)


def _x86_call(asm, address, a, b, c, live):
    """Call a C function of three arguments; registers that it may change wait on the stack."""
    slot = asm.shadow
    kept = [r for r in live if r not in _ABI[asm.abi]["saved"]]
    for i, r in enumerate((a, b, c, *kept)):
        asm.rm("mov.mq", r, RSP, slot + 8 * i)
    asm.mov(RAX, address)
    for i, r in enumerate(asm.parameters):
        asm.rm("mov.q", r, RSP, slot + 8 * i)
    asm.raw("vzeroupper")
    asm.raw("call rax")
    for i, r in enumerate(kept):
        asm.rm("mov.q", r, RSP, slot + 8 * (i + 3))


ENCODERS.update(avx2=X86, vnni=X86, avxvnni=X86)


# ---------------------------------------------------------------------------------------
# 12. arm64
#
# An arm64 instruction is one word of 32 bits, always.  The word is cut into parts: some bits say
# which operation, others which registers.  This one adds two registers of four float32 lanes,
# `fadd v3.4s, v1.4s, v2.4s`:
#
#      31         21 20   16 15    10 9     5 4     0
#     +-------------+-------+--------+-------+-------+
#     | 01001110001 | mmmmm | 110101 | nnnnn | ddddd |      v_d = v_n + v_m
#     +-------------+-------+--------+-------+-------+
#       operation      2                1       3
#
# The one idea: the table below draws every word that we use just so, as 32 characters in which
# digits are meant and a run of letters is a number (a capital: a signed one).  Beside it stands
# the text, a format string of the same letters.  From the picture comes the function that makes
# the word; the listing goes the other way, finds the picture that a word fits and fills in the
# text.
#
# NEON, the vector part, has 32 registers v0..v31 of 128 bits.  Two neighbours, an even one for the
# low half and the next for the high half, make one of our vectors; most operations are one
# instruction for each.
#
#     x0..x14, x19..x28   whole numbers and addresses; x0, x1, x2 hold our parameters on entry
#     x15, x16, x17       ours for the length of one operation: constants, addresses far away
#     x18                 belongs to the system on macOS and Windows; x29, x30 frame and return
#     v8..v15, x19..x28   must be left as found (of v8..v15 only the low 64 bits)
#
# Source: Arm Architecture Reference Manual (DDI 0487), C4 for the words, C6 and C7 for what they
# do; Procedure Call Standard for the Arm 64-bit Architecture (IHI 0055), section 6.

_CONDITIONS = "eq ne hs lo mi pl vs vc hi ls ge lt gt le al".split()    # in order of their numbers
_A64_CONDITION = {how: _CONDITIONS.index(name) for how, name in (
    ("<", "lt"), ("<=", "le"), (">", "gt"), (">=", "ge"), ("==", "eq"), ("!=", "ne"))}


def _bitmask_bits(value):
    """Return the 13 bits N:immr:imms of an `and` with a constant, or None if it has none.

    Such a constant is a run of ones, rotated, in an element of 2, 4 ... 64 bits that repeats:
    imms says how long the element and (less one) the run, immr how far it turns to the right.
    """
    value &= 2**64 - 1
    if value in (0, 2**64 - 1):
        return None
    size = 64
    while size > 2 and value >> size // 2 == value & ((1 << size // 2) - 1):
        size //= 2
        value &= (1 << size) - 1
    ones = bin(value).count("1")
    run = (1 << ones) - 1
    for turn in range(size):
        if ((run >> turn) | (run << (size - turn))) & ((1 << size) - 1) == value:
            return (size == 64) << 12 | turn << 6 | ((-size << 1) & 63 | ones - 1) & 63
    return None


def _bitmask_value(bits):
    """Return the constant that `_bitmask_bits` encodes."""
    size = 1 << ((bits >> 12 << 6 | ~bits & 63).bit_length() - 1)
    turn, ones = (bits >> 6) & (size - 1), (bits & (size - 1)) + 1
    run = (1 << ones) - 1
    element = ((run >> turn) | (run << (size - turn))) & ((1 << size) - 1)
    return sum([element << i for i in range(0, 64, size)])


# Loads and stores come in two forms: with a displacement of 0..4095 units of the size moved, and
# with one of -256..255 bytes.  Here for each: size, whether of a vector register, kind, register.
_ACCESSES = {
    "str.h": ("01", 0, "00", "w"), "ldr.h": ("01", 0, "01", "w"), "ldrs.h": ("01", 0, "10", "x"),
    "str.w": ("10", 0, "00", "w"), "ldr.w": ("10", 0, "01", "w"), "ldrs.w": ("10", 0, "10", "x"),
    "str.x": ("11", 0, "00", "x"), "ldr.x": ("11", 0, "01", "x"),
    "ldr.vh": ("01", 1, "01", "h"), "ldr.s": ("10", 1, "01", "s"), "str.s": ("10", 1, "00", "s"),
    "ldr.d": ("11", 1, "01", "d"), "str.d": ("11", 1, "00", "d"),
    "ldr.q": ("00", 1, "11", "q"), "str.q": ("00", 1, "10", "q"),
}
_ACCESS_BYTES = {name: 16 if name[-1] == "q" else 1 << int(row[0], 2)
                 for name, row in _ACCESSES.items()}


def _access_rows():
    for name, (size, vector, kind, register) in _ACCESSES.items():
        verb, suffix = name.split(".")
        letter = "h" if suffix == "h" else "w" if verb == "ldrs" else ""
        yield (name, f"{size}111{vector}01{kind} iiiiiiiiiiii nnnnn ddddd",
               f"{verb}{letter} {register}{{d}}, [x{{n}}, #{{i*{_ACCESS_BYTES[name]}}}]")
        yield (name + "u", f"{size}111{vector}00{kind}0 IIIIIIIII 00 nnnnn ddddd",
               f"{verb[:2]}u{verb[2:]}{letter} {register}{{d}}, [x{{n}}, #{{I}}]")


# name, word, text.  A name is the mnemonic and what the lanes are: 4s, four of 32 bits; 8h, eight
# of 16; 16b, sixteen of 8; 2d, two of 64.  The operands are given in the order of the text.
_A64_ROWS = [
    # whole numbers
    ("movz",     "110100101 hh iiiiiiiiiiiiiiii ddddd", "movz x{d}, #{i:#x}, lsl #{h*16}"),
    ("movn",     "100100101 hh iiiiiiiiiiiiiiii ddddd", "movn x{d}, #{i:#x}, lsl #{h*16}"),
    ("movk",     "111100101 hh iiiiiiiiiiiiiiii ddddd", "movk x{d}, #{i:#x}, lsl #{h*16}"),
    ("mov.x",    "10101010000 mmmmm 000000 11111 ddddd", "mov x{d}, x{m}"),
    ("add.x",    "10001011000 mmmmm 000000 nnnnn ddddd", "add x{d}, x{n}, x{m}"),
    ("sub.x",    "11001011000 mmmmm 000000 nnnnn ddddd", "sub x{d}, x{n}, x{m}"),
    ("and.x",    "10001010000 mmmmm 000000 nnnnn ddddd", "and x{d}, x{n}, x{m}"),
    ("orr.x",    "10101010000 mmmmm 000000 nnnnn ddddd", "orr x{d}, x{n}, x{m}"),
    ("eor.x",    "11001010000 mmmmm 000000 nnnnn ddddd", "eor x{d}, x{n}, x{m}"),
    ("cmp.x",    "11101011000 mmmmm 000000 nnnnn 11111", "cmp x{n}, x{m}"),
    ("mul.x",    "10011011000 mmmmm 011111 nnnnn ddddd", "mul x{d}, x{n}, x{m}"),
    ("msub.x",   "10011011000 mmmmm 1 aaaaa nnnnn ddddd", "msub x{d}, x{n}, x{m}, x{a}"),
    ("udiv.x",   "10011010110 mmmmm 000010 nnnnn ddddd", "udiv x{d}, x{n}, x{m}"),
    ("csel.x",   "10011010100 mmmmm cccc 00 nnnnn ddddd",
     "csel x{d}, x{n}, x{m}, {_CONDITIONS[c]}"),
    ("sub.sp",   "1101000100 iiiiiiiiiiii 11111 11111", "sub sp, sp, #{i}"),
    ("add.sp",   "1001000100 iiiiiiiiiiii 11111 11111", "add sp, sp, #{i}"),
    ("cmp.i",    "1111000100 iiiiiiiiiiii nnnnn 11111", "cmp x{n}, #{i}"),
    ("cmn.i",    "1011000100 iiiiiiiiiiii nnnnn 11111", "cmn x{n}, #{i}"),
    ("add.i",    "1001000100 iiiiiiiiiiii nnnnn ddddd", "add x{d}, x{n}, #{i}"),
    ("add.i12",  "1001000101 iiiiiiiiiiii nnnnn ddddd", "add x{d}, x{n}, #{i}, lsl #12"),
    ("sub.i",    "1101000100 iiiiiiiiiiii nnnnn ddddd", "sub x{d}, x{n}, #{i}"),
    ("sub.i12",  "1101000101 iiiiiiiiiiii nnnnn ddddd", "sub x{d}, x{n}, #{i}, lsl #12"),
    ("subs.i",   "1111000100 iiiiiiiiiiii nnnnn ddddd", "subs x{d}, x{n}, #{i}"),
    ("and.i",    "100100100 iiiiiiiiiiiii nnnnn ddddd", "and x{d}, x{n}, #{_bitmask_value(i):#x}"),
    ("orr.i",    "101100100 iiiiiiiiiiiii nnnnn ddddd", "orr x{d}, x{n}, #{_bitmask_value(i):#x}"),
    ("eor.i",    "110100100 iiiiiiiiiiiii nnnnn ddddd", "eor x{d}, x{n}, #{_bitmask_value(i):#x}"),
    ("lsr.i",    "1101001101 iiiiii 111111 nnnnn ddddd", "lsr x{d}, x{n}, #{i}"),
    ("asr.i",    "1001001101 iiiiii 111111 nnnnn ddddd", "asr x{d}, x{n}, #{i}"),
    ("lsl.i",    "1101001101 rrrrrr ssssss nnnnn ddddd", "lsl x{d}, x{n}, #{63-s}"),  # r = s + 1
    # memory
    *_access_rows(),
    ("ldp.q",    "1010110101 IIIIIII mmmmm nnnnn ddddd", "ldp q{d}, q{m}, [x{n}, #{I*16}]"),
    ("stp.q",    "1010110100 IIIIIII mmmmm nnnnn ddddd", "stp q{d}, q{m}, [x{n}, #{I*16}]"),
    ("stp.x",    "1010100100 IIIIIII mmmmm 11111 ddddd", "stp x{d}, x{m}, [sp, #{I*8}]"),
    ("ldp.x",    "1010100101 IIIIIII mmmmm 11111 ddddd", "ldp x{d}, x{m}, [sp, #{I*8}]"),
    ("stp.d",    "0110110100 IIIIIII mmmmm 11111 ddddd", "stp d{d}, d{m}, [sp, #{I*8}]"),
    ("ldp.d",    "0110110101 IIIIIII mmmmm 11111 ddddd", "ldp d{d}, d{m}, [sp, #{I*8}]"),
    ("prfm.l1",  "1111100110 iiiiiiiiiiii nnnnn 00000", "prfm pldl1keep, [x{n}, #{i*8}]"),
    ("prfm.l2",  "1111100110 iiiiiiiiiiii nnnnn 00010", "prfm pldl2keep, [x{n}, #{i*8}]"),
    ("ldar",     "11001000110 11111 1 11111 nnnnn ddddd", "ldar x{d}, [x{n}]"),
    ("ldaxr",    "11001000010 11111 1 11111 nnnnn ddddd", "ldaxr x{d}, [x{n}]"),
    ("stlxr",    "11001000000 sssss 1 11111 nnnnn ddddd", "stlxr w{s}, x{d}, [x{n}]"),
    ("ldr.qlit", "10011100 IIIIIIIIIIIIIIIIIII ddddd", "ldr q{d}, .{4*I:+}"),
    ("ld1.s",    "0q001101110 11111 100 s 00 nnnnn ddddd", "ld1 {{v{d}.s}}[{2*q+s}], [x{n}], #4"),
    ("st1.s",    "0q001101100 11111 100 s 00 nnnnn ddddd", "st1 {{v{d}.s}}[{2*q+s}], [x{n}], #4"),
    # control and the system
    ("b",        "000101 IIIIIIIIIIIIIIIIIIIIIIIIII", "b .{4*I:+}"),
    ("b.if",     "01010100 IIIIIIIIIIIIIIIIIII 0 cccc", "b.{_CONDITIONS[c]} .{4*I:+}"),
    ("cbnz",     "10110101 IIIIIIIIIIIIIIIIIII ddddd", "cbnz x{d}, .{4*I:+}"),
    ("blr",      "1101011000111111000000 nnnnn 00000", "blr x{n}"),
    ("ret",      "11010110010111110000001111000000", "ret"),
    ("isb",      "11010101000000110011111111011111", "isb"),
    ("mrs.fpcr", "110101010011101101000100000 ddddd", "mrs x{d}, fpcr"),
    ("zero.fpcr", "11010101000110110100010000011111", "msr fpcr, xzr"),
    ("msr.fpcr", "110101010001101101000100000 ddddd", "msr fpcr, x{d}"),
    # vectors: the bits as they are, lanes moved about
    ("mov.16b",  "01001110101 nnnnn 000111 nnnnn ddddd", "mov v{d}.16b, v{n}.16b"),
    ("and.16b",  "01001110001 mmmmm 000111 nnnnn ddddd", "and v{d}.16b, v{n}.16b, v{m}.16b"),
    ("bic.16b",  "01001110011 mmmmm 000111 nnnnn ddddd", "bic v{d}.16b, v{n}.16b, v{m}.16b"),
    ("orr.16b",  "01001110101 mmmmm 000111 nnnnn ddddd", "orr v{d}.16b, v{n}.16b, v{m}.16b"),
    ("eor.16b",  "01101110001 mmmmm 000111 nnnnn ddddd", "eor v{d}.16b, v{n}.16b, v{m}.16b"),
    ("bsl.16b",  "01101110011 mmmmm 000111 nnnnn ddddd", "bsl v{d}.16b, v{n}.16b, v{m}.16b"),
    ("bit.16b",  "01101110101 mmmmm 000111 nnnnn ddddd", "bit v{d}.16b, v{n}.16b, v{m}.16b"),
    ("bif.16b",  "01101110111 mmmmm 000111 nnnnn ddddd", "bif v{d}.16b, v{n}.16b, v{m}.16b"),
    ("mvn.16b",  "0110111000100000010110 nnnnn ddddd", "mvn v{d}.16b, v{n}.16b"),
    ("movi.16b", "0100111100000 aaa 111001 bbbbb ddddd", "movi v{d}.16b, #{32*a+b:#x}"),
    ("dup.h",    "01001110000 iii10 000001 nnnnn ddddd", "dup v{d}.8h, v{n}.h[{i}]"),
    ("dup.s",    "01001110000 ii100 000001 nnnnn ddddd", "dup v{d}.4s, v{n}.s[{i}]"),
    ("dup.d",    "01001110000 i1000 000001 nnnnn ddddd", "dup v{d}.2d, v{n}.d[{i}]"),
    ("dup.w",    "01001110000 00100 000011 nnnnn ddddd", "dup v{d}.4s, w{n}"),
    ("umov.d",   "01001110000 i1000 001111 nnnnn ddddd", "mov x{d}, v{n}.d[{i}]"),
    ("smov.s",   "01001110000 ii100 001011 nnnnn ddddd", "smov x{d}, v{n}.s[{i}]"),
    ("ins.w",    "01001110000 ii100 000111 nnnnn ddddd", "ins v{d}.s[{i}], w{n}"),
    ("ins.s",    "01101110000 ii100 0 jj00 1 nnnnn ddddd", "ins v{d}.s[{i}], v{n}.s[{j}]"),
    ("zip1.4s",  "01001110100 mmmmm 001110 nnnnn ddddd", "zip1 v{d}.4s, v{n}.4s, v{m}.4s"),
    ("zip1.2d",  "01001110110 mmmmm 001110 nnnnn ddddd", "zip1 v{d}.2d, v{n}.2d, v{m}.2d"),
    ("zip2.4s",  "01001110100 mmmmm 011110 nnnnn ddddd", "zip2 v{d}.4s, v{n}.4s, v{m}.4s"),
    ("zip2.2d",  "01001110110 mmmmm 011110 nnnnn ddddd", "zip2 v{d}.2d, v{n}.2d, v{m}.2d"),
    ("ext.16b",  "01101110000 mmmmm 0 iiii 0 nnnnn ddddd",
     "ext v{d}.16b, v{n}.16b, v{m}.16b, #{i}"),
    ("rev64.4s", "0100111010100000000010 nnnnn ddddd", "rev64 v{d}.4s, v{n}.4s"),
    ("tbl.16b",  "01001110000 mmmmm 000000 nnnnn ddddd", "tbl v{d}.16b, {{v{n}.16b}}, v{m}.16b"),
    # float32
    ("fadd.4s",  "01001110001 mmmmm 110101 nnnnn ddddd", "fadd v{d}.4s, v{n}.4s, v{m}.4s"),
    ("fsub.4s",  "01001110101 mmmmm 110101 nnnnn ddddd", "fsub v{d}.4s, v{n}.4s, v{m}.4s"),
    ("fmul.4s",  "01101110001 mmmmm 110111 nnnnn ddddd", "fmul v{d}.4s, v{n}.4s, v{m}.4s"),
    ("fdiv.4s",  "01101110001 mmmmm 111111 nnnnn ddddd", "fdiv v{d}.4s, v{n}.4s, v{m}.4s"),
    ("faddp.4s", "01101110001 mmmmm 110101 nnnnn ddddd", "faddp v{d}.4s, v{n}.4s, v{m}.4s"),
    ("fcmeq.4s", "01001110001 mmmmm 111001 nnnnn ddddd", "fcmeq v{d}.4s, v{n}.4s, v{m}.4s"),
    ("fcmge.4s", "01101110001 mmmmm 111001 nnnnn ddddd", "fcmge v{d}.4s, v{n}.4s, v{m}.4s"),
    ("fcmgt.4s", "01101110101 mmmmm 111001 nnnnn ddddd", "fcmgt v{d}.4s, v{n}.4s, v{m}.4s"),
    ("fsqrt.4s", "0110111010100001111110 nnnnn ddddd", "fsqrt v{d}.4s, v{n}.4s"),
    ("frintn.4s", "0100111000100001100010 nnnnn ddddd", "frintn v{d}.4s, v{n}.4s"),
    ("frintm.4s", "0100111000100001100110 nnnnn ddddd", "frintm v{d}.4s, v{n}.4s"),
    ("scvtf.4s", "0100111000100001110110 nnnnn ddddd", "scvtf v{d}.4s, v{n}.4s"),
    ("fcvtns.4s", "0100111000100001101010 nnnnn ddddd", "fcvtns v{d}.4s, v{n}.4s"),
    ("fcvtl.4s", "0000111000100001011110 nnnnn ddddd", "fcvtl v{d}.4s, v{n}.4h"),
    ("fcvtl2.4s", "0100111000100001011110 nnnnn ddddd", "fcvtl2 v{d}.4s, v{n}.8h"),
    ("fcvtn.4h", "0000111000100001011010 nnnnn ddddd", "fcvtn v{d}.4h, v{n}.4s"),
    ("fcvtn2.8h", "0100111000100001011010 nnnnn ddddd", "fcvtn2 v{d}.8h, v{n}.4s"),
    # whole numbers in lanes
    ("add.4s",   "01001110101 mmmmm 100001 nnnnn ddddd", "add v{d}.4s, v{n}.4s, v{m}.4s"),
    ("sub.4s",   "01101110101 mmmmm 100001 nnnnn ddddd", "sub v{d}.4s, v{n}.4s, v{m}.4s"),
    ("mul.4s",   "01001110101 mmmmm 100111 nnnnn ddddd", "mul v{d}.4s, v{n}.4s, v{m}.4s"),
    ("umax.4s",  "01101110101 mmmmm 011001 nnnnn ddddd", "umax v{d}.4s, v{n}.4s, v{m}.4s"),
    ("umin.16b", "01101110001 mmmmm 011011 nnnnn ddddd", "umin v{d}.16b, v{n}.16b, v{m}.16b"),
    ("cmgt.4s",  "01001110101 mmmmm 001101 nnnnn ddddd", "cmgt v{d}.4s, v{n}.4s, v{m}.4s"),
    ("addp.8h",  "01001110011 mmmmm 101111 nnnnn ddddd", "addp v{d}.8h, v{n}.8h, v{m}.8h"),
    ("addv.4s",  "0100111010110001101110 nnnnn ddddd", "addv s{d}, v{n}.4s"),
    ("umaxv.4s", "0110111010110000101010 nnnnn ddddd", "umaxv s{d}, v{n}.4s"),
    ("shl.4s",   "01001111001 iiiii 010101 nnnnn ddddd", "shl v{d}.4s, v{n}.4s, #{i}"),
    ("sshr.4s",  "01001111001 iiiii 000001 nnnnn ddddd", "sshr v{d}.4s, v{n}.4s, #{32-i}"),
    ("ushr.4s",  "01101111001 iiiii 000001 nnnnn ddddd", "ushr v{d}.4s, v{n}.4s, #{32-i}"),
    ("sxtl.8h",  "0000111100001000101001 nnnnn ddddd", "sxtl v{d}.8h, v{n}.8b"),
    ("sxtl.4s",  "0000111100010000101001 nnnnn ddddd", "sxtl v{d}.4s, v{n}.4h"),
    ("sxtl2.4s", "0100111100010000101001 nnnnn ddddd", "sxtl2 v{d}.4s, v{n}.8h"),
    ("shll.4s",  "0010111001100001001110 nnnnn ddddd", "shll v{d}.4s, v{n}.4h, #16"),
    ("shll2.4s", "0110111001100001001110 nnnnn ddddd", "shll2 v{d}.4s, v{n}.8h, #16"),
    ("sqxtn.4h", "0000111001100001010010 nnnnn ddddd", "sqxtn v{d}.4h, v{n}.4s"),
    ("sqxtn2.8h", "0100111001100001010010 nnnnn ddddd", "sqxtn2 v{d}.8h, v{n}.4s"),
    ("sqxtn.8b", "0000111000100001010010 nnnnn ddddd", "sqxtn v{d}.8b, v{n}.8h"),
    ("smull.8h", "00001110001 mmmmm 110000 nnnnn ddddd", "smull v{d}.8h, v{n}.8b, v{m}.8b"),
    ("smull2.8h", "01001110001 mmmmm 110000 nnnnn ddddd", "smull2 v{d}.8h, v{n}.16b, v{m}.16b"),
    ("sadalp.4s", "0100111001100000011010 nnnnn ddddd", "sadalp v{d}.4s, v{n}.8h"),
    ("sdot.4s",  "01001110100 mmmmm 100101 nnnnn ddddd", "sdot v{d}.4s, v{n}.16b, v{m}.16b"),
    ("sdot.4b",  "0100111110 l mmmmm 1110 h 0 nnnnn ddddd",
     "sdot v{d}.4s, v{n}.16b, v{m}.4b[{2*h+l}]"),
]

_A64_NUMBER = re.compile(r"([a-zA-Z])\1*")


@functools.lru_cache(maxsize=None)
def _a64_parts(picture, text):
    """Return (the bits that are set in every such word, {letter: (width, [shifts])}).

    The letters are in the order in which the text has them, and those it lacks come last.
    """
    picture = picture.replace(" ", "")
    found = {}
    for run in _A64_NUMBER.finditer(picture):
        found.setdefault(run[1], (len(run[0]), []))[1].append(32 - run.end())
    order = re.findall(r"\b[a-zA-Z]\b", " ".join(re.findall(r"{([^{}]*)}", text)))
    parts = {letter: found[letter] for letter in [*order, *found] if letter in found}
    return int(_A64_NUMBER.sub(lambda run: "0" * len(run[0]), picture), 2), parts


class _A64Words(dict):
    """Name -> function of the operands that returns the word, made when first asked for.

    A picture becomes Python source, which is compiled: a kernel has thousands of words, and each
    now costs a few shifts and no look at its picture.
    """

    pictures = {name: (picture, text) for name, picture, text in _A64_ROWS}

    def source(self, name, operands):
        """Return the Python expression of the word, each operand being an expression itself."""
        base, parts = _a64_parts(*self.pictures[name])
        if len(operands) != len(parts):
            raise TypeError(f"{name} takes {list(parts)}, got {operands}")
        terms = []
        for (letter, (width, shifts)), operand in zip(parts.items(), operands):
            for shift in shifts:
                if operand.isdigit():
                    base |= int(operand) << shift
                elif letter.isupper():
                    terms.append(f" | ({operand} & {(1 << width) - 1}) << {shift}")
                else:
                    terms.append(f" | {operand} << {shift}" if shift else f" | {operand}")
        return f"{base:#x}{''.join(terms)}"

    def __missing__(self, name):
        letters = list(_a64_parts(*self.pictures[name])[1])
        self[name] = eval(f"lambda {', '.join(letters)}: {self.source(name, letters)}")
        return self[name]


_W = _A64Words()


def _constant_words(d, value):
    """Return the words that set x_d.  The first one sets 16 bits, and all others to 0 or to 1."""
    parts = [(value >> shift) & 0xFFFF for shift in (0, 16, 32, 48)]
    negative = parts.count(0xFFFF) > parts.count(0)
    idle = 0xFFFF if negative else 0
    busy = [h for h in range(4) if parts[h] != idle] or [0]
    first = _W["movn" if negative else "movz"](d, parts[busy[0]] ^ idle, busy[0])
    return (first, *[_W["movk"](d, parts[h], h) for h in busy[1:]])


def _sum_words(d, n, number):
    """Return the words for x_d = x_n + number.  Uses x16 where 24 bits do not hold the number."""
    size, verb = abs(number), "add" if number >= 0 else "sub"
    if size < 4096:
        return (_W[verb + ".i"](d, n, size),)
    if size < 1 << 24:
        words = (_W[verb + ".i12"](d, n, size >> 12),)
        return words + (_W[verb + ".i"](d, d, size & 4095),) if size & 4095 else words
    return _constant_words(16, number) + (_W["add.x"](d, n, 16),)


def _access(name, d, n, disp):
    """Return the words that load or store register d at x_n + disp, by way of x16 if it is far."""
    n_bytes = _ACCESS_BYTES[name]
    if not disp % n_bytes and 0 <= disp < 4096 * n_bytes:
        return (_W[name](d, n, disp // n_bytes),)
    if -256 <= disp < 256:
        return (_W[name + "u"](d, n, disp),)
    rest = 0 if disp % n_bytes else disp & 4095
    return (*_sum_words(16, n, disp - rest), _W[name](d, 16, rest // n_bytes))


def _access_pair(name, d, n, disp):
    """Return the words that load or store q_d and q_d+1 at x_n + disp."""
    if not disp & 15 and -1024 <= disp < 1024:
        return (_W[name](d, d + 1, n, disp >> 4),)
    if -256 <= disp < 240 or not disp & 15 and 0 <= disp < 65520:
        single = name.replace("p", "r")
        return _access(single, d, n, disp) + _access(single, d + 1, n, disp + 16)
    return (*_sum_words(16, n, disp), _W[name](d, d + 1, 16, 0))


# The recipes of chapter 10.  t and u are the halves of one temporary.  A recipe that names halves
# (d0 the low one, d1 the high one) stands as it is; any other is done for the low halves, then
# for the high ones; no half of an operand is read after that half of the result is written.
# Numbers may be expressions, and 15, 16, 17 are the encoder's registers.  Two things may be
# several instructions: `const.x d n` sets x_d to n, and `sum.x d a n` is x_d = x_a + n.

_PAIR = (0, 2, 4, 6, 16, 18, 20, 22, 24, 26, 28, 30, 8, 10, 12, 14)   # the low half of each vector


def _recipe_source(op, recipe, vectors):
    """Return the Python expressions of the words of a recipe; for memory, starred calls.

    vectors: the letters that are vector registers
    """
    vector = re.compile(rf"([{vectors or '-'}])([01]?)")
    steps = [step.split() for step in recipe.split(";") if step.strip()]
    by_halves = any(vector.fullmatch(token) and len(token) == 1
                    for step in steps if step[-1] != "*" for token in step[1:])

    def operand(token, half):
        part = vector.fullmatch(token)
        if part:
            return part[1] if (part[2] or half) == "0" else f"({part[1]} + 1)"
        if token in _CONDITIONS:
            return str(_CONDITIONS.index(token))
        return "(t + 1)" if token == "u" else token if token.isalnum() else f"({token})"

    source = []
    for half in "01" if by_halves else "0":
        for name, *tokens in steps:
            if tokens and tokens[-1] == "*":
                access = "_access_pair" if name[2] == "p" else "_access"
                register = operand(tokens[0], half)
                base, disp = op.letters[op.sets + op.reads.index("i")], op.letters[-1]
                source.append(f"*{access}({name!r}, {register}, {base}, {disp})")
            elif name in ("const.x", "sum.x"):
                several = "_constant_words" if name == "const.x" else "_sum_words"
                source.append(f"*{several}({', '.join(tokens)})")
            else:
                source.append(_W.source(name, [operand(token, half) for token in tokens]))
    return ", ".join(source)


# The functions that recipes name.  asm: the encoder, below; then operands and temporaries.

def _a64_logic_imm(verb):
    """Return the function of and, or, xor with an int: one word where the int is a bit mask."""
    def function(asm, d, a, number):
        bits = _bitmask_bits(number)
        if bits is None:
            asm.code += (*_constant_words(16, number), _W[verb + ".x"](d, a, 16))
        else:
            asm.code.append(_W[verb + ".i"](d, a, bits))
    return function


_a64_and_imm, _a64_or_imm = _a64_logic_imm("and"), _a64_logic_imm("orr")


def _a64_load_acquire(asm, d, base, disp):
    """Load by an instruction that has no displacement."""
    if disp:
        asm.code += _sum_words(16, base, disp)
    asm.code.append(_W["ldar"](d, 16 if disp else base))


def _a64_prefetches(word):
    def prefetch(asm, base, disp):
        disp &= ~7                                      # in the same line
        if 0 <= disp < 32768:
            asm.code.append(_W[word](base, disp >> 3))
        else:
            asm.code += (*_sum_words(16, base, disp), _W[word](16, 0))
    return prefetch


_a64_prefetch, _a64_prefetch_l2 = _a64_prefetches("prfm.l1"), _a64_prefetches("prfm.l2")


def _a64_const(asm, d, data):
    """A byte that repeats is part of the instruction; other constants lie after the code."""
    d, halves = _PAIR[d], (data[:16], data[16:])
    for half in (0, 1):
        part = halves[half]
        if part == part[:1] * 16:
            asm.code.append(_W["movi.16b"](d + half, part[0] >> 5, part[0] & 31))
        elif half and part == halves[0]:
            asm.code.append(_W["mov.16b"](d + 1, d))
        else:
            asm.load_constant(d + half, part)


def _a64_move_halves(asm, d, low, high):
    """Set v_d, v_d+1 from two registers that may be the same ones, crossed."""
    mov, words = _W["mov.16b"], asm.code
    if (low, high) == (d + 1, d):
        eor = _W["eor.16b"]                             # a ^= b; b ^= a; a ^= b exchanges them
        words += (eor(d, d, d + 1), eor(d + 1, d, d + 1), eor(d, d, d + 1))
        return
    moves = (d, low), (d + 1, high)
    for to, source in moves[::-1] if high == d else moves:
        if to != source:
            words.append(mov(to, source))


def _a64_vmov(asm, d, a):
    _a64_move_halves(asm, _PAIR[d], _PAIR[a], _PAIR[a] + 1)


def _a64_halves(asm, d, a, b, low, high):
    a, b = _PAIR[a], _PAIR[b]
    parts = (a, a + 1, b, b + 1)
    _a64_move_halves(asm, _PAIR[d], parts[low], parts[high])


def _a64_select(asm, d, mask, yes, no):
    """bsl replaces the mask, bit and bif one of the choices: take the one that is the result."""
    d, mask, yes, no = _PAIR[d], _PAIR[mask], _PAIR[yes], _PAIR[no]
    for h in (0, 1):
        if d == no:
            asm.code.append(_W["bit.16b"](d + h, yes + h, mask + h))
        elif d == yes:
            asm.code.append(_W["bif.16b"](d + h, no + h, mask + h))
        else:
            if d != mask:
                asm.code.append(_W["mov.16b"](d + h, mask + h))
            asm.code.append(_W["bsl.16b"](d + h, yes + h, no + h))


def _a64_load_high(asm, d, a, base, disp):
    d, a = _PAIR[d], _PAIR[a]
    if d != a:
        asm.code.append(_W["mov.16b"](d, a))
    asm.code += _access("ldr.q", d + 1, base, disp)


def _a64_lanes(asm, pair, single, v, base, n, disp, clear=()):
    """All eight lanes at once; or, where n < 8, lane by lane until n are done."""
    asm.code += (*_sum_words(16, base, disp),
                 _W["cmp.i"](n, 8), _W["b.if"](_A64_CONDITION["<"], 3),
                 _W[pair](v, v + 1, 16, 0), _W["b"](1 + len(clear) + 3 * 8), *clear)
    for lane in range(8):
        asm.code += (_W["cmp.i"](n, lane), _W["b.if"](_A64_CONDITION["<="], 2 + 3 * (7 - lane)),
                     _W[single](v + (lane >> 2), lane >> 1 & 1, lane & 1, 16))


def _a64_load_n(asm, d, base, n, disp):
    clear = _W["movi.16b"](_PAIR[d], 0, 0), _W["movi.16b"](_PAIR[d] + 1, 0, 0)
    _a64_lanes(asm, "ldp.q", "ld1.s", _PAIR[d], base, n, disp, clear)


def _a64_store_n(asm, base, v, n, disp):
    _a64_lanes(asm, "stp.q", "st1.s", _PAIR[v], base, n, disp)


def _a64_load_i32_at(asm, d, base, disps, t):
    d, t = _PAIR[d], _PAIR[t]
    for lane, disp in enumerate(disps):
        half, i = lane >> 2, lane & 3
        asm.code += _access("ldr.s", t + (lane & 1) if i else d + half, base, disp)
        if i:
            asm.code.append(_W["ins.s"](d + half, i, t + (lane & 1), 0))


def _a64_insert_i32(asm, d, a, x, lane):
    _a64_vmov(asm, d, a)
    asm.code.append(_W["ins.w"](_PAIR[d] + (lane >> 2), lane & 3, x))


def _a64_blend_i32(asm, d, a, b, bits):
    if d == b:
        a, b, bits = b, a, bits ^ 0xFF                  # keep what is in place
    _a64_vmov(asm, d, a)
    d, b = _PAIR[d], _PAIR[b]
    for half, part in ((0, bits & 15), (1, bits >> 4)):
        if part == 15:
            asm.code.append(_W["mov.16b"](d + half, b + half))
        else:
            asm.code += [_W["ins.s"](d + half, i, b + half, i) for i in range(4) if part >> i & 1]


# order -> row, and what follows d and a: the register a again (None), a lane, a number of bytes
_SHUFFLES = {
    (0, 1, 2, 3): ("mov.16b",), (1, 0, 3, 2): ("rev64.4s",),
    (0, 0, 1, 1): ("zip1.4s", None), (2, 2, 3, 3): ("zip2.4s", None),
    (1, 2, 3, 0): ("ext.16b", None, 4), (2, 3, 0, 1): ("ext.16b", None, 8),
    (3, 0, 1, 2): ("ext.16b", None, 12),
    (0, 1, 0, 1): ("dup.d", 0), (2, 3, 2, 3): ("dup.d", 1),
    **{(i, i, i, i): ("dup.s", i) for i in range(4)},
}


def _a64_shuffle_i32(asm, d, a, order):
    """One instruction for the usual orders; for others the half passes through x16 and x17."""
    d, a = _PAIR[d], _PAIR[a]
    for d, a in ((d, a), (d + 1, a + 1)):
        if order in _SHUFFLES:
            name, *more = _SHUFFLES[order]
            asm.code.append(_W[name](d, a, *[a if x is None else x for x in more]))
            continue
        asm.code += (_W["umov.d"](16, a, 0), _W["umov.d"](17, a, 1))
        for i, source in enumerate(order):
            holds = 16 + (source >> 1)
            if source & 1:
                asm.code.append(_W["lsr.i"](15, holds, 32))
            asm.code.append(_W["ins.w"](d, i, 15 if source & 1 else holds))


def _a64_call(asm, address, a, b, c, live):
    """Call a C function of three arguments.  It may change x0..x17: put aside what is needed."""
    aside = [x for x in live if x < 15]
    aside += [15] * (len(aside) & 1)
    pairs = [(aside[i], aside[i + 1], i) for i in range(0, len(aside), 2)]
    mov = _W["mov.x"]
    asm.code += [_W["stp.x"](*pair) for pair in pairs]
    asm.code += (mov(16, address), mov(17, b), mov(15, c), mov(0, a), mov(1, 17), mov(2, 15),
                 _W["blr"](16))
    asm.code += [_W["ldp.x"](*pair) for pair in pairs]


class Arm64(Encoder):
    """The encoder for arm64.  isa: "neon", or "neon_dot" with the dot products of FEAT_DotProd"""

    column, n_vectors, unit_bytes = "arm64", len(_PAIR), 4      # code is a list of words
    int_order, parameters = [*range(15), *range(19, 29)], (0, 1, 2)
    EMITTERS = ()                               # for `listing`, which reads the words themselves

    def __init__(self, isa, abi):
        super().__init__(isa, abi)
        self.code = []
        self.jumps = []                         # (index of a word, how, label)
        self.constants = {}                     # 16 bytes -> [(index of a word, register)]

    @classmethod
    def recipe(cls, op, text):
        """Return (function, n_temps): a recipe as Python source, compiled.

        For add_f32, "fadd.4s d a b", the function is

            def add_f32(asm, d, a, b, t=0):
                d = _PAIR[d]
                a = _PAIR[a]
                b = _PAIR[b]
                asm.code += (0x4e20d400 | d | a << 5 | b << 16,
                             0x4e20d400 | (d + 1) | (a + 1) << 5 | (b + 1) << 16,)
        """
        kinds = ("" if not op.sets else "i" if op.lane == "i" else "v") + op.reads
        vectors = [x for x, kind in zip(op.letters, kinds) if kind == "v"]
        n_temps = int(bool(re.search(r"\bt\b", text)))
        source = [f"def {op.name}(asm, {', '.join([*op.letters, 't=0'])}):"]
        source += [f"    {x} = _PAIR[{x}]" for x in vectors + ["t"] * n_temps]
        source.append(f"    asm.code += ({_recipe_source(op, text, ''.join(vectors))},)")
        scope = dict(globals())
        exec("\n".join(source), globals(), scope)
        return scope[op.name], n_temps

    def begin(self, ints, vectors, calls):
        """Write the prologue: make room on the stack, put there what must be left as found.

            sp + 0 .. 127   the registers that a `call` puts aside, in a kernel that calls
            then            x19..x28, x29 and x30, d8..d15, those in use
        """
        whole = sorted([x for x in ints if x >= 19]) + [29, 30] * calls
        halves = [_PAIR[p] + half for p in vectors for half in (0, 1) if 8 <= _PAIR[p] < 16]
        pairs = [(verb, registers[i], registers[i + 1])
                 for verb, registers in (("x", whole + [15] * (len(whole) & 1)), ("d", halves))
                 for i in range(0, len(registers), 2)]
        first = 16 if calls else 0              # counted in 8 bytes
        self.saved = [(*pair, first + 2 * i) for i, pair in enumerate(pairs)]
        self.frame_bytes = 128 * calls + 16 * len(self.saved)
        if self.frame_bytes:
            self.code.append(_W["sub.sp"](self.frame_bytes))
        self.code += [_W["stp." + verb](*pair) for verb, *pair in self.saved]

    def compare(self, a, b):
        self.code.append(_W["cmp.x"](a, b))

    def compare_imm(self, a, n):
        if 0 <= n < 4096:
            self.code.append(_W["cmp.i"](a, n))
        elif -4096 < n < 0:
            self.code.append(_W["cmn.i"](a, -n))
        else:
            self.code += (*_constant_words(16, n), _W["cmp.x"](a, 16))

    def count_down(self, a):
        self.code.append(_W["subs.i"](a, a, 1))

    def jump(self, how, label):
        """The word is made at the end, when it is known where the labels are."""
        self.jumps.append((len(self.code), how, label))
        self.code.append(0)

    def load_constant(self, d, data):
        self.constants.setdefault(data, []).append((len(self.code), d))
        self.code.append(0)

    def finish(self):
        """Write the epilogue and the constants, fill in jumps, and return the bytes."""
        code = self.code
        code += [_W["ldp." + verb](*pair) for verb, *pair in self.saved]
        if self.frame_bytes:
            code.append(_W["add.sp"](self.frame_bytes))
        code.append(_W["ret"]())
        self.n_code_bytes = 4 * len(code)
        if self.constants:
            code += [0] * (-len(code) % 4)
        if len(code) + 4 * len(self.constants) >= 1 << 18:
            raise ValueError(f"kernel {self.kernel.name} has {4 * len(code)} bytes, but arm64 "
                             "jumps reach 1 MiB; unroll less")
        for i, how, label in self.jumps:
            distance = self.labels[label] - i
            code[i] = _W["b.if"](_A64_CONDITION[how], distance) if how else _W["b"](distance)
        for data, uses in self.constants.items():
            for i, d in uses:
                code[i] = _W["ldr.qlit"](d, len(code) - i)
            code += struct.unpack("<4I", data)
        return struct.pack(f"<{len(code)}I", *code)

    @staticmethod
    def disassemble(data):
        """Return the text of a word, given as 4 bytes: that of the first picture that it fits."""
        word = int.from_bytes(data, "little")
        for name, picture, text in _A64_ROWS:
            base, parts = _a64_parts(picture, text)
            if word & base == base:
                values = {}
                for letter, (width, shifts) in parts.items():
                    value = (word >> shifts[0]) & ((1 << width) - 1)
                    negative = letter.isupper() and value >> (width - 1)
                    values[letter] = value - (1 << width) if negative else value
                if _W[name](*values.values()) == word:
                    return eval("f" + repr(text), globals(), values)
        return f".word {word:#x}"


ENCODERS["neon"] = ENCODERS["neon_dot"] = Arm64


# ---------------------------------------------------------------------------------------
# 13. Executable memory
#
# A processor refuses to run bytes from ordinary memory, since most attacks begin by making it do
# so.  Memory for code is asked from the system as writable, filled, and then changed to readable
# and executable; it is never both writable and executable.  Some systems refuse even that; then
# a reason is returned, and the caller runs in plain Python.
#
#     Linux, macOS on Intel   mmap, write, mprotect
#     macOS on arm64          mmap with MAP_JIT, whose pages are writable or executable by turns,
#                             per thread: pthread_jit_write_protect_np
#     Windows                 VirtualAlloc, write, VirtualProtect
#
# arm64 fetches instructions through a cache that does not see writes: it must be told.
# Which instructions there are, is asked from the processor (x86-64) or from the system (arm64).
# Sources: mmap(2), mprotect(2); Apple, "Porting just-in-time compilers to Apple silicon";
# Microsoft, VirtualProtect; Intel SDM 1, 14.3 and 2A, CPUID; Linux, arm64/elf_hwcaps.rst.

_PROT_READ, _PROT_WRITE, _PROT_EXEC = 1, 2, 4              # the same on Linux and macOS
_MAP_PRIVATE, _MAP_JIT = 2, 0x800
_MAP_ANONYMOUS = 0x1000 if sys.platform == "darwin" else 0x20
_MEM_COMMIT_RESERVE, _MEM_RELEASE = 0x3000, 0x8000         # Windows
_PAGE_READWRITE, _PAGE_EXECUTE_READ = 4, 0x20

# What ctypes has to know to call a kernel: nothing is returned; args, chunk, scratch.
KERNEL_FUNCTION = ctypes and ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64,
                                              ctypes.c_void_p)


def _foreign(library, name, result, *arguments):
    """Return the C function `name` with its types; ctypes would guess int and cut an address."""
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function


def _clear_cache(address, n_bytes):
    """Make arm64 Linux fetch what was written, by the compiler's helper for it.

    Where no libgcc is found, the kernel's own care must do: it clears the cache of a page when
    the page becomes executable for the first time, which is the next step here.
    Source: Linux, arch/arm64/mm/flush.c, __sync_icache_dcache.
    """
    try:
        clear = _foreign(ctypes.CDLL("libgcc_s.so.1"), "__clear_cache", None,
                         ctypes.c_void_p, ctypes.c_void_p)
    except (OSError, AttributeError):
        return
    clear(address, address + n_bytes)


class _Posix:
    """Pages by mmap.  Each method raises OSError where the system refuses."""

    def __init__(self):
        c, address, size = ctypes, ctypes.c_void_p, ctypes.c_size_t
        libc = ctypes.CDLL(None, use_errno=True)
        self.mmap = _foreign(libc, "mmap", address, address, size, c.c_int, c.c_int, c.c_int,
                             c.c_long)
        self.mprotect = _foreign(libc, "mprotect", c.c_int, address, size, c.c_int)
        self.munmap = _foreign(libc, "munmap", c.c_int, address, size)
        self.jit = sys.platform == "darwin" and _MACHINE == "arm64"
        if self.jit:
            self.write_protect = _foreign(libc, "pthread_jit_write_protect_np", None, c.c_int)
            self.flush = _foreign(libc, "sys_icache_invalidate", None, address, size)

    def place(self, data):
        """Return the address of fresh pages that hold data and can be executed."""
        writable = _PROT_READ | _PROT_WRITE
        address = self.mmap(None, len(data), writable | _PROT_EXEC if self.jit else writable,
                            _MAP_PRIVATE | _MAP_ANONYMOUS | (_MAP_JIT if self.jit else 0), -1, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(f"mmap: {os.strerror(ctypes.get_errno())}")
        if self.jit:
            self.write_protect(0)
            ctypes.memmove(address, data, len(data))
            self.write_protect(1)
            self.flush(address, len(data))
            return address
        ctypes.memmove(address, data, len(data))
        if _MACHINE == "arm64":
            _clear_cache(address, len(data))
        if self.mprotect(address, len(data), _PROT_READ | _PROT_EXEC):
            error = os.strerror(ctypes.get_errno())
            self.munmap(address, len(data))
            raise OSError(f"mprotect: {error}")
        return address

    def free(self, address, n_bytes):
        self.munmap(address, n_bytes)


class _Windows:
    """Pages by VirtualAlloc, with the methods of _Posix."""

    def __init__(self):
        c, address, size = ctypes, ctypes.c_void_p, ctypes.c_size_t
        dll = ctypes.WinDLL("kernel32", use_last_error=True)
        self.alloc = _foreign(dll, "VirtualAlloc", address, address, size, c.c_uint32, c.c_uint32)
        self.protect = _foreign(dll, "VirtualProtect", c.c_int, address, size, c.c_uint32,
                                c.POINTER(c.c_uint32))
        self.virtual_free = _foreign(dll, "VirtualFree", c.c_int, address, size, c.c_uint32)
        self.process = _foreign(dll, "GetCurrentProcess", address)
        self.flush = _foreign(dll, "FlushInstructionCache", c.c_int, address, address, size)

    def place(self, data):
        address = self.alloc(None, len(data), _MEM_COMMIT_RESERVE, _PAGE_READWRITE)
        if not address:
            raise OSError(f"VirtualAlloc: error {ctypes.get_last_error()}")
        ctypes.memmove(address, data, len(data))
        before = ctypes.c_uint32()
        if not self.protect(address, len(data), _PAGE_EXECUTE_READ, ctypes.byref(before)):
            error = ctypes.get_last_error()
            self.free(address, len(data))
            raise OSError(f"VirtualProtect: error {error}")
        self.flush(self.process(), address, len(data))
        return address

    def free(self, address, n_bytes):
        self.virtual_free(address, 0, _MEM_RELEASE)


class Code:
    """Machine code in executable memory.  addresses: where each piece begins.

    Not freed by itself: `close` it when nothing can call it any more.
    """

    def __init__(self, system, address, n_bytes, addresses):
        self._system, self._address, self._n_bytes = system, address, n_bytes
        self.addresses = addresses

    def function(self, i):
        """Return piece i as a Python callable of (args address, chunk, scratch address)."""
        return KERNEL_FUNCTION(self.addresses[i])

    def close(self):
        if self._address is not None:
            self._system.free(self._address, self._n_bytes)
        self._address = None


def place_code(pieces):
    """Put pieces of machine code (bytes) into executable memory; return (Code, None).

    Where that is impossible, (None, reason), the reason being half a sentence for the user.
    """
    data, offsets = bytearray(), []
    for piece in pieces:
        data += bytes(-len(data) % 64)                     # each begins at a cache line
        offsets.append(len(data))
        data += piece
    try:
        system = _Windows() if sys.platform == "win32" else _Posix()
        address = system.place(bytes(data))
    except (OSError, AttributeError) as error:
        return None, f"the system refuses executable memory ({error})"
    return Code(system, address, len(data), [address + offset for offset in offsets]), None


def compile_kernels(kernels, isa):
    """Encode kernels for this machine; return (Code, None) or (None, reason)."""
    return place_code([encode(kernel, isa) for kernel in kernels])


def features_x86(cpuid, read_xcr0):
    """Return the names of the instruction sets that may be used, best first: those of class X86.

    cpuid: function of (leaf, subleaf) -> (eax, ebx, ecx, edx).  read_xcr0: function -> int.
    What cpuid claims is not enough: the system must also save the registers when it switches
    threads, and says so in XCR0.  Reading that is itself an instruction that may not be allowed.
    """
    def bit(register, n):
        return register >> n & 1

    highest_leaf = cpuid(0, 0)[0]
    if highest_leaf < 7:
        return []
    ecx1 = cpuid(1, 0)[2]
    highest_7, ebx7, ecx7, _ = cpuid(7, 0)
    osxsave, avx, f16c, avx2 = bit(ecx1, 27), bit(ecx1, 28), bit(ecx1, 29), bit(ebx7, 5)
    if not (osxsave and avx and f16c and avx2):
        return []
    xcr0 = read_xcr0()
    if xcr0 & 0b110 != 0b110:                              # xmm, upper halves of ymm
        return []
    found = ["avx2"]
    if highest_7 >= 1 and bit(cpuid(7, 1)[0], 4):
        found.insert(0, "avxvnni")
    avx512f, avx512vl, avx512_vnni = bit(ebx7, 16), bit(ebx7, 31), bit(ecx7, 11)
    if avx512f and avx512vl and avx512_vnni and xcr0 & 0b11100110 == 0b11100110:
        found.insert(0, "vnni")
    return found


def _cpuid_code(abi):
    """Return code for cpuid: args[0..1] are leaf and subleaf, eax ebx ecx edx go to args[2..5]."""
    asm = X86("avx2", abi)
    asm.begin({RBX}, (), False)
    asm.rr("mov", asm.parameters[0], R10)
    asm.rm("mov.r", RAX, R10, 0)
    asm.rm("mov.r", RCX, R10, 8)
    asm.raw("cpuid")
    for i, r in enumerate((RAX, RBX, RCX, RDX)):
        asm.rm("mov.mr", r, R10, 16 + 8 * i)
    return asm.finish()


def _xgetbv_code(abi):
    """Return code for xgetbv: the low half of XCR0 goes to args[0]."""
    asm = X86("avx2", abi)
    asm.begin((), (), False)
    asm.rr("mov", asm.parameters[0], R10)
    asm.rr("xor.r", RCX, RCX)
    asm.raw("xgetbv")
    asm.rm("mov.mr", RAX, R10, 0)
    return asm.finish()


def _ask_x86():
    """Return (names of instruction sets, reason): the processor's own answer."""
    code, reason = place_code([_cpuid_code(host_abi()), _xgetbv_code(host_abi())])
    if code is None:
        return [], reason

    def cpuid(leaf, subleaf):
        args = (ctypes.c_int64 * 6)(leaf, subleaf)
        code.function(0)(ctypes.addressof(args), 0, None)
        return tuple(args[2:])

    def read_xcr0():
        args = (ctypes.c_int64 * 1)()
        code.function(1)(ctypes.addressof(args), 0, None)
        return args[0]

    found = features_x86(cpuid, read_xcr0)
    code.close()
    return found, None if found else "the processor or the system lacks AVX2 and F16C"


def _ask_arm64():
    """Return (names of instruction sets, reason).  Every arm64 processor has NEON."""
    c = ctypes
    if sys.platform == "linux":
        getauxval = _foreign(c.CDLL(None), "getauxval", c.c_ulong, c.c_ulong)
        dot = getauxval(16) >> 20 & 1                      # AT_HWCAP, HWCAP_ASIMDDP
    elif sys.platform == "darwin":
        sysctl = _foreign(c.CDLL(None), "sysctlbyname", c.c_int, c.c_char_p, c.c_void_p,
                          c.c_void_p, c.c_void_p, c.c_size_t)
        value, size = c.c_int(), c.c_size_t(4)
        status = sysctl(b"hw.optional.arm.FEAT_DotProd", c.byref(value), c.byref(size), None, 0)
        dot = status == 0 and value.value
    elif sys.platform == "win32":
        present = _foreign(c.WinDLL("kernel32"), "IsProcessorFeaturePresent", c.c_int, c.c_uint32)
        dot = present(43)                                  # PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
    else:
        dot = False
    return (["neon_dot"] if dot else []) + ["neon"], None


@functools.lru_cache(None)
def host_instruction_sets():
    """Return (instruction sets that kernels may use here, best first; the reason if none)."""
    if ctypes is None:
        return [], "this Python has no ctypes, which calls machine code"
    if ctypes.sizeof(ctypes.c_void_p) != 8 or sys.byteorder != "little" or _MACHINE is None:
        return [], f"no code generator for this machine ({platform.machine()}, " \
                   f"{8 * ctypes.sizeof(ctypes.c_void_p)}-bit Python)"
    found, reason = _ask_x86() if _MACHINE == "x86-64" else _ask_arm64()
    found = [isa for isa in found if isa in ENCODERS]
    return found, reason if found or reason else "no code generator for this machine"


def choose_isa(environ):
    """Return (instruction set, None), or (None, why plain Python is used).

    KSHIPRA_ISA in environ chooses one that is not above what the processor has, or "python";
    "vnni" stands for either form of that instruction.
    """
    wanted = environ.get("KSHIPRA_ISA")
    if wanted == "python":
        return None, "KSHIPRA_ISA=python"
    found, reason = host_instruction_sets()
    if not wanted or not found:
        return (found[0], None) if found else (None, reason)
    for isa in found:
        if wanted == isa or (wanted == "vnni" and isa == "avxvnni"):
            return isa, None
    raise KshipraError(f"KSHIPRA_ISA={wanted!r}: this machine offers {', '.join(found)} and "
                       "python; choose one of these, or leave it unset")


# ---------------------------------------------------------------------------------------
# 14. Matrix kernels
#
# y = W x is where an inference engine spends its time.  For one token every weight is read
# once and used once, so memory sets the pace; for a long prompt a weight is used for every
# row, so arithmetic does.  Two kernels, then: emit_matvec, for one to four rows, takes weights
# apart and multiplies at once; emit_matmul takes them apart into a small panel first and uses
# that for all rows.  Both give the bits of matmul_naive, so it never matters which one ran.
#
# The one idea is to work on eight weight rows at a time, lane = row.  Four neighbouring codes
# of a row are one 32-bit lane, so a vector holds four codes of eight rows, and the processor's
# dot product of four bytes adds all of them to eight sums at once.  Scales are vectors too.
# To get there, 16 bytes of eight rows are turned like a 4 x 4 table in each half:
#
#     row 0 | a0 a1 a2 a3 | row 4 | e0 e1 e2 e3 |          | a0 b0 c0 d0 | e0 f0 g0 h0 |
#     row 1 | b0 b1 b2 b3 | row 5 | f0 f1 f2 f3 |    ->    | a1 b1 c1 d1 | e1 f1 g1 h1 |
#     row 2 | c0 c1 c2 c3 | row 6 | g0 g1 g2 g3 |          | a2 b2 c2 d2 | e2 f2 g2 h2 |
#     row 3 | d0 d1 d2 d3 | row 7 | h0 h1 h2 h3 |          | a3 b3 c3 d3 | e3 f3 g3 h3 |
#
# and what was said of one block in chapter 1 (which bits of which bytes are the codes, the
# scales, the minimums) holds for a column of eight of them: the kernels are made from the same
# fields, and no format is named here.
#
# The weights' rows lie a fixed distance apart, which is written into the code, so a kernel is
# built for a format and an n_in.  The float steps and their order are those of chapter 4: a
# lane is one output, its blocks are added in order.  A bias (Q4_0's 8) is taken from the dot
# product while that is an integer, as bias * sum of the activation codes: exact, and the codes
# themselves stay unsigned, which the processor's dot product wants.  Codes that are looked up
# get a bias too, if that keeps them below 128.

MATRIX_FIELDS = ("w", "x", "y", "n_out", "chunk_rows", "n_rows", "y_stride")

# Activations, quantized: a record for each block of 32 of each row.  Rows go in groups of six,
# the last group may be smaller; a group holds the records of its rows for block 0, then those
# for block 1, and so on, in one piece, in the order in which they will be read.  Rows that each
# meet a weight of their own go in groups of one.
#
#     0           32      36            40     44     48     52           56           60
#    +-----------+-------+-------------+------+------+------+------------+------------+---+
#    | codes[32] | scale | scale * sum | -low | -high| -sum | scale * low| scale *high| 0 |
#    +-----------+-------+-------------+------+------+------+------------+------------+---+
#
# low, high: the sums of the first and of the last 16 codes; sum: of all.  i8, f32 and i32.

ACT_RECORD, ACT_GROUP = 64, 6
ACT_SCALE = 32
ACT_SCALED = {32: (36,), 16: (52, 56)}         # by sub-block length: scale * sum of the codes
ACT_MINUS = {32: (48,), 16: (40, 44)}          # the sum of the codes, negative


def emit_quantize_block(k, x, record, disp=0):
    """Emit quantize_activations for the 32 floats at x + disp, into the record at `record`.

    A float's bits without the sign grow as it does, so the largest magnitude is found among
    integers, where an infinity or a NaN is larger than all; then scale is no finite number.
    """
    block = [k.load_f32x8(x, disp + 32 * i) for i in range(4)]
    magnitude = k.const_i32x8(0x7FFFFFFF)
    a, b, c, d = [k.and_(v.i32, magnitude) for v in block]
    peak = k.hmax_u32(k.max_u32(k.max_u32(a, b), k.max_u32(c, d)))
    tiny = k.cmpgt_i32(k.const_f32x8(TINY), peak)
    full = k.const_f32x8(127.0)
    scale = k.andnot(tiny.f32, peak.f32 / full)
    inverse = k.andnot(tiny.f32, full / peak.f32)
    codes = [k.f32_to_i32(v * inverse) for v in block]
    for i, v in enumerate(codes):
        k.store_i32_as_i8(record, v, 8 * i)
    low, high = k.hsum_i32(codes[0] + codes[1]), k.hsum_i32(codes[2] + codes[3])
    total, zero = low + high, k.zero_i32x8()
    words = [scale, k.i32_to_f32(total) * scale, zero - low, zero - high, zero - total,
             k.i32_to_f32(low) * scale, k.i32_to_f32(high) * scale]
    row = zero                                 # lane 7 stays zero
    for lane, v in enumerate(words):
        row = k.blend_i32(row, v, 1 << lane)
    k.store_i32x8(record, row, ACT_SCALE)


def emit_quantize(k):
    """Emit quantize_activations for row `chunk` of x.

    x: f32 (n_rows, 32 * n_blocks)   xq: 64 bytes * n_rows * n_blocks, records as above
    group: rows of a group
    """
    x, xq, n_blocks, n_rows, group = k.args("x", "xq", "n_blocks", "n_rows", "group")
    x += k.chunk * (n_blocks << 7)
    first = k.div(k.chunk, group) * group
    xq += (first * n_blocks + (k.chunk - first)) << 6
    step = k.min(n_rows - first, group) << 6
    with k.loop(n_blocks):
        emit_quantize_block(k, x, xq)
        k.advance(x=128)
        xq += step


# Taking eight blocks apart.

def emit_turn(k, rows, wanted=(0, 1, 2, 3)):
    """Return the wanted columns of a 4 x 4 table of words, in each half by itself."""
    a, b, c, d = rows
    pairs = {}
    if min(wanted) < 2:
        pairs[0] = k.unpack_lo_i32(a, b), k.unpack_lo_i32(c, d)
    if max(wanted) > 1:
        pairs[1] = k.unpack_hi_i32(a, b), k.unpack_hi_i32(c, d)
    return [(k.unpack_hi_i64 if j & 1 else k.unpack_lo_i64)(*pairs[j >> 1]) for j in wanted]


class EightRuns:
    """Eight runs of bytes side by side, lane = run: a register and eight distances from it.

    n_bytes: how long a run is, if shorter than what is read of longer ones at a time
    """

    def __init__(self, k, base, steps, n_bytes=16):
        self.k, self.base, self.steps, self.n_bytes = k, base, steps, n_bytes

    def words(self, at, wanted=(0, 1, 2, 3)):
        """Return {byte: i32x8 of the four bytes from there}, of the 16 bytes from `at`.

        wanted: which of the four words to return; all 16 bytes are read, if there are as many
        """
        k, base, steps = self.k, self.base, self.steps
        if self.n_bytes < 16:
            return {at + 4 * j: k.load_i32_at(base, tuple([step + at + 4 * j for step in steps]))
                    for j in wanted if at + 4 * j + 4 <= self.n_bytes}
        rows = [k.load_high(k.load_i8x16(base, steps[i] + at), base, steps[i + 4] + at)
                for i in range(4)]
        return {at + 4 * j: v for j, v in zip(wanted, emit_turn(k, rows, wanted))}


LOW_THEN_HIGH = [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15] * 2     # in each half


def emit_f16_pair(k, words, wanted=(0, 1)):
    """Return the f16 in the low (0) and in the high (1) 16 bits of each word, as f32x8."""
    packed = k.shuffle_i8(words, k.const_i8x32(LOW_THEN_HIGH))
    swapped = k.halves(packed, packed, 1, 0)
    return [k.f16_to_f32((k.unpack_hi_i64 if high else k.unpack_lo_i64)(packed, swapped))
            for high in wanted]


def _places(runs):
    """Return where a field's integers 4 p .. 4 p + 3 stand, for each p: (byte, shift, width)."""
    return [(at + i, shift, width) for at, n, shift, width in runs for i in range(0, n, 4)]


def emit_bits(k, word, shift, width, place=0):
    """Return `width` bits from bit `shift` of each byte of word, moved to bit `place`."""
    if width == 8:
        return word
    if shift != place:
        word = word >> (shift - place) if shift > place else word << (place - shift)
    return k.and_(word, k.const_i8x32(((1 << width) - 1) << place))


def emit_spread(k, word, p):
    """Return bits 4 p .. 4 p + 3 of each word, one at bit 4 of each byte.

    The byte that holds them is copied to all four, each copy keeps its own bit, in the upper
    half of the byte, and anything there is 16 or more.
    """
    if p % 2 == 0:
        word = word << 4
    copies = k.shuffle_i8(word, k.const_i8x32([i // 4 * 4 + p // 2 for i in range(16)] * 2))
    return k.min_u8(k.and_(copies, k.const_i8x32(OWN_BIT)), k.const_i8x32(16)).i32


OWN_BIT = [16, 32, 64, 128] * 8


def emit_field(k, field, p, words):
    """Return integers 4 p .. 4 p + 3 of a field, a byte each and not yet less its bias."""
    at, shift, width = _places(field.runs)[p]
    v = emit_bits(k, words[at], shift, width)
    if field.upper:
        at, shift, width = _places(field.upper)[p]
        if width:
            v = k.or_(v, emit_bits(k, words[at], shift, width, field.upper_bit))
    return v


def emit_byte(k, word, i, signed, bias):
    """Return byte i of each word, less the bias, as i32x8."""
    if signed:                                              # the sign is copied down
        return (word << (24 - 8 * i) if i < 3 else word) >> 24
    v = k.shr_i32(word, 8 * i) if i else word
    v = k.and_(v, k.const_i32x8(255)) if i < 3 else v
    return v - k.const_i32x8(bias) if bias else v


class Words:
    """Words of eight blocks by their byte, each read when it is first asked for.

    needed: the bytes that will be asked for
    Sixteen bytes are read at a time, and none behind the block: near its end, from further back.
    """

    def __init__(self, format, block, needed):
        self.block_bytes, self.block, self.needed, self.read = (
            format.block_bytes, block, needed, {})

    def __getitem__(self, at):
        if at not in self.read:
            behind = at + min(16, self.block_bytes) - self.block_bytes
            start = at - max(0, -(-behind // 4) * 4)
            wanted = tuple([j for j in range(4) if start + 4 * j in self.needed])
            self.read.update(self.block.words(start, wanted))
        return self.read[at]


def emit_d(k, format, words, at):
    """Return (d, minimum or None) of eight blocks, as f32x8.   at: of the word d stands in"""
    if format.d == "e8m0":              # the bits of 2**(e - 128): below the normal ones if e < 2
        e, one = k.and_(words[at], k.const_i32x8(255)), k.const_i32x8(1)
        small = k.cmpgt_i32(k.const_i32x8(2), e)
        return k.select(small, (e + one) << 21, (e - one) << 23).f32, None
    if format.d != "f16":
        return emit_f16_pair(k, emit_integer(k, format, format.d, 0, words), (0,))[0], None
    halves = ((format.d_off - at) // 2, 1)[:1 if format.m_off is None else 2]
    d, *m = emit_f16_pair(k, words[at], halves)
    return d, m[0] if m else None


def emit_ue4m3(k, byte):
    """Return _UE4M3 of the byte in each lane: its bits are those of an f32, but for the range."""
    bits = k.and_(byte, k.const_i32x8(127)) << 20
    above = [k.cmpgt_i32(byte, k.const_i32x8(limit)) for limit in (126, 127)]
    nan = k.andnot(above[1], above[0]).f32
    return k.andnot(nan, bits.f32 * k.const_f32x8(2.0 ** 119))


def emit_scales(k, format, block, keep):
    """Emit keep(s, scale, low) for each sub-block s; low is None without minimums.

    block: EightRuns over eight blocks   scale, low: f32x8, exact as in Format.unpack
    """
    d_at = None if format.d_off is None else min(format.d_off, format.block_bytes - 4)
    needed = set() if d_at is None else {d_at}      # the last two bytes: a half of the last four
    for field in (format.d, format.scales, format.mins):
        if isinstance(field, _BitField):
            needed |= {_word_of(format, bit)[0] for _, bits in field.parts for bit in bits}
        elif isinstance(field, _Field):
            needed |= {at for at, _, width in _places(field.runs) + _places(field.upper) if width}
    words, n_subs = Words(format, block, needed), format.block_len // format.sub_len
    if format.d == "ue4m3":
        for s in range(n_subs):
            keep(s, emit_ue4m3(k, emit_byte(k, words[d_at], s, False, 0)), None)
        return
    d, m = emit_d(k, format, words, d_at)
    if format.scales is None:
        for s in range(n_subs):
            keep(s, d, m)
    elif isinstance(format.scales, _BitField):
        if format.unit != 1:
            d = d * k.const_f32x8(format.unit)
        for s in range(n_subs):
            keep(s, k.i32_to_f32(emit_integer(k, format, format.scales, s, words)) * d, None)
    else:
        if m:
            m = k.xor(m, k.const_f32x8(-0.0))
        for p in range(n_subs // 4):
            scales = emit_field(k, format.scales, p, words)
            mins = emit_field(k, format.mins, p, words) if m else None
            signed, bias = format.scales.runs[0][3] == 8, format.scales.bias
            for i in range(4):
                low = k.i32_to_f32(emit_byte(k, mins, i, False, 0)) * m if m else None
                keep(4 * p + i, k.i32_to_f32(emit_byte(k, scales, i, signed, bias)) * d, low)


def _word_of(format, bit):
    """Return (byte of a word of the block that holds this bit, place of the bit in it).

    Words are counted from the end of the block, where fields of bits stand; the first two
    bytes may be a word of their own.
    """
    at = max(0, (bit // 8 - format.block_bytes % 4) // 4 * 4 + format.block_bytes % 4)
    return at, bit - 8 * at


def emit_integer(k, format, field, i, words):
    """Return integer i of a _BitField, as i32x8."""
    return emit_parts(k, field, [(width, *_word_of(format, bits[i]))
                                 for width, bits in field.parts], words)


def emit_parts(k, field, parts, words):
    """Return an integer of a _BitField from its parts, lowest first: (width, word, shift)."""
    v, place = None, 0
    for width, at, shift in parts:
        part = words[at]
        assert shift + width <= 32, "an integer's bits stand in one word"
        part = k.shr_i32(part, shift) if shift else part
        part = k.and_(part, k.const_i32x8((1 << width) - 1)) if shift + width < 32 else part
        v = k.or_(v, part << place) if place else part
        place += width
    if field.odd:
        return v + v + k.const_i32x8(1)
    return v - k.const_i32x8(field.bias) if field.bias else v


@functools.lru_cache(maxsize=None)
def kept_bias(format):
    """Return what is added to codes so that none is negative; 0 also if they keep their signs."""
    codes = format.codes
    if isinstance(codes, _GridCodes):
        lowest = -(max(grid(codes.name)) + codes.shift)
    elif isinstance(codes, _Trits):
        lowest = -1
    elif codes.book:
        lowest = min(codes.book)
        if max(codes.book) - lowest > 127:
            return 0
    else:
        return codes.bias
    return 1 << (-lowest - 1).bit_length()


def is_int8(format):
    """Whether the codes fill their bytes, and so have a sign; all others are biased."""
    codes = format.codes
    if isinstance(codes, _Field):
        return codes.runs[0][3] == 8 if codes.book is None else kept_bias(format) == 0
    return False


def stretch_of(format):
    """Return the length of the shortest run of weights that uses whole bytes of codes."""
    if not isinstance(format.codes, _Field):
        return 32 if isinstance(format.codes, _GridCodes) else format.block_len
    length = 0
    for i, (at, n, shift, width) in enumerate(format.codes.runs):
        if i and shift == 0 and length % 32 == 0:
            break
        length += n
    return length


def emit_codes(k, format, block, out):
    """Emit out.codes(i, v) for every four codes of every stretch, out.finish() after each.

    block: EightRuns over eight blocks   i: place in the stretch, a multiple of 4
    v: four codes of each lane's block, plus kept_bias, so that none is negative, except where
    is_int8.  They come in the order of the bytes.
    """
    if isinstance(format.codes, _GridCodes):
        return emit_grid_codes(k, format, block, out)
    if isinstance(format.codes, _Trits):
        return emit_trits(k, format, block, out)
    low, high = _places(format.codes.runs), _places(format.codes.upper)
    per, n = stretch_of(format) // 4, format.block_len // stretch_of(format)
    low_step, high_step = [places[per][0] - places[0][0] if places[per:] else 0
                           for places in (low, high)]
    if n > 1 and all(now[1:] == before[1:] for places in (low, high)
                     for now, before in zip(places[per:], places)):
        low_base, high_base = k.copy(block.base), k.copy(block.base) if high else None
        with k.loop(n):
            emit_stretch(k, format, EightRuns(k, low_base, block.steps), low[:per],
                         EightRuns(k, high_base, block.steps), high[:per], out)
            low_base += low_step
            if high:
                high_base += high_step
    else:
        for i in range(0, n * per, per):
            emit_stretch(k, format, block, low[i:i + per], block, high[i:i + per], out)


def emit_stretch(k, format, low_block, low, high_block, high, out):
    """Emit one stretch of emit_codes.  low, high: where its codes' bits stand, see _places.

    chunk_of: for each place, the first of the 16 bytes with which it is read.  All places of 16
    bytes are done before the next 16 are read, so that few registers hold bytes.
    """
    field = format.codes
    chunk_of = [[at - (at - places[0][0]) % 16 for at, _, _ in places] for places in (low, high)]
    pairs = list(zip(chunk_of[1] or [None] * len(low), chunk_of[0]))
    if field.spread:
        spread = low_block.words(field.spread[0], (0,))[field.spread[0]]
    for high_chunk in sorted(set(chunk_of[1])) or [None]:
        high_words = high_block.words(high_chunk) if high else None
        for low_chunk in sorted({b for a, b in pairs if a == high_chunk}):
            low_words = low_block.words(low_chunk)
            group = [p for p in range(len(low)) if pairs[p] == (high_chunk, low_chunk)]
            for p in sorted(group, key=lambda p: (low[p][0], p)):
                at, shift, width = low[p]
                v = emit_bits(k, low_words[at], shift, width)
                if high:
                    at, shift, width = high[p]
                    v = k.or_(v, emit_bits(k, high_words[at], shift, width, field.upper_bit))
                if field.spread:
                    v = k.or_(v, emit_spread(k, spread, p))
                if field.book:
                    v = k.shuffle_i8(k.const_i8x32(book_table(format)), v).i32
                out.codes(4 * p, v)
    out.finish()


def book_table(format):
    """Return a codebook plus kept_bias as two tables of 16 bytes, one for each half."""
    return [value + kept_bias(format) for value in format.codes.book] * 2


# Grids.  An index is a number like any other, in a lane for each row; but what it chooses, four
# or eight codes, is read from a table in memory, and that a lane at a time: the vector is stored,
# and from there each index goes to a register for addresses.

@functools.lru_cache(maxsize=None)
def grid_table(format):
    """Return the patterns of a grid, each code plus kept_bias, between 8 bytes before and behind.

    Kernels know its address, so it is kept.
    """
    codes = array("b", b"".join(format.codes.patterns()))
    margin = array("b", bytes(8))
    return margin + array("b", [code + kept_bias(format) for code in codes]) + margin


class StretchWords:
    """Words of eight blocks by (byte in the first of n stretches, step to the next), in a loop.

    left: the register in which the loop counts down from n   step: a power of two
    """

    def __init__(self, k, block, n, left):
        self.k, self.block, self.n, self.left, self.read = k, block, n, left, {}

    def __getitem__(self, at_step):
        if at_step not in self.read:
            at, step = at_step
            base = self.block.base - (self.left << (step.bit_length() - 1))
            self.read[at_step] = self.k.load_i32_at(
                base, tuple([at + self.n * step + lane for lane in self.block.steps]))
        return self.read[at_step]


def _stretch_parts(format, field, n, i):
    """Return the parts of integer i of the n in a stretch, as for emit_parts: StretchWords'.

    Four bytes are read, so those at the end of the block are read from further back.
    """
    parts = []
    for width, bits in field.parts:
        first, step = bits[0] // 16 * 2, (bits[n] - bits[0]) // 8
        at = first + (bits[i] // 8 - first) // 4 * 4
        last = at + (format.block_len // 32 - 1) * step
        at -= max(0, last + 4 - format.block_bytes)
        parts.append((width, (at, step), bits[i] - 8 * at))
    return parts


def emit_grid_codes(k, format, block, out):
    """Emit emit_codes for codes of a grid, a stretch of 32 at a time.

    A pattern holds bias + c.  For bias - c, of a weight that is negative, all seven bits are
    turned, which gives 63 - c if the bias is 64, and one is added.
    """
    field, bias = format.codes, kept_bias(format)
    n_patterns, words_each = 32 // field.length, field.length // 4
    indexes = [_stretch_parts(format, field.index, n_patterns, j) for j in range(n_patterns)]
    signs = [_stretch_parts(format, field.signs, 4, j) for j in range(4)] if field.signs else []
    table, n = k.imm(grid_table(format).buffer_info()[0] + 8), format.block_len // 32
    with k.loop(n) as left:
        words = StretchWords(k, block, n, left)
        for j, parts in enumerate(indexes):
            i = j * field.length
            index = emit_parts(k, field.index, parts, words) << (1 + words_each)
            codes = emit_lookup(k, table, index, words_each, *out.spare(i))
            for h, v in enumerate(codes):
                eight, half = divmod(i + 4 * h, 8)
                if signs:
                    if half == 0:
                        minus = emit_sign_bytes(k, field, signs[eight], words)
                    ones = k.min_u8(k.and_(minus, k.const_i8x32(EIGHT_BITS[half // 4])),
                                    k.const_i8x32(1)).i32
                    v = k.xor(v, (ones << bias.bit_length()) - ones) + ones
                out.codes(i + 4 * h, v)
        out.finish()


EIGHT_BITS = [1, 2, 4, 8] * 8, [16, 32, 64, 128] * 8    # of the first and the second four weights


def emit_lookup(k, table, index, n_words, spare, disp):
    """Return n_words vectors: for each lane the word at table + index, and the one after it.

    table: register   index: i32x8, bytes   spare, disp: where 32 bytes may be written
    Two words are read at once, into either end of 16 bytes; beside them comes what is not used.
    """
    k.store_i32x8(spare, index, disp)

    def pointer(lane):
        return table + k.load_i32(spare, disp + 4 * lane)

    if n_words == 1:
        v = k.broadcast_i32x8(pointer(0))
        for lane in range(1, 8):
            v = k.blend_i32(v, k.broadcast_i32x8(pointer(lane)), 1 << lane)
        return [v]
    pairs = []
    for lane in (0, 2):                 # 0 1 | 4 5 and 2 3 | 6 7
        v = k.broadcast_i8x16(pointer(lane))
        for more, back, bits in ((1, -8, 0x0C), (4, 0, 0x30), (5, -8, 0xC0)):
            v = k.blend_i32(v, k.broadcast_i8x16(pointer(lane + more), back).i32, bits)
        pairs.append(v)
    even, odd = k.unpack_lo_i32(*pairs), k.unpack_hi_i32(*pairs)
    return [k.unpack_lo_i32(even, odd), k.unpack_hi_i32(even, odd)]


def emit_sign_bytes(k, field, parts, words):
    """Return the eight signs of eight weights in every byte of their lane.

    Of seven bits, the eighth is one if their number is odd.
    """
    ((width, at, shift),) = parts
    v, byte = words[at], shift // 8
    if field.even:
        v, byte = emit_parts(k, field.signs, parts, words), 0
        odd = k.xor(v, k.shr_i32(v, 4))
        odd = k.xor(odd, k.shr_i32(odd, 2))
        odd = k.xor(odd, k.shr_i32(odd, 1))
        v = k.or_(v, odd << 7)
    return k.shuffle_i8(v, k.const_i8x32([i // 4 * 4 + byte for i in range(16)] * 2))


def emit_trits(k, format, block, out):
    """Emit emit_codes for digits of base 3: see _Trits.  A stretch is the whole block.

    Three times a byte takes ten bits, so every other byte is worked on, then the rest.
    """
    even, odd = k.const_i32x8(0x00FF00FF), k.const_i32x8(0xFF00FF00 - 2**32)
    start = 0
    for at, n, digits in format.codes.runs:
        for first in range(at, at + n, 16):
            back = max(0, first + 16 - (at + n)) if n < 16 else 0
            for byte, word in block.words(first - back, range(back // 4, 4)).items():
                a, b = k.and_(word, even), k.and_(k.shr_i32(word, 8), even)
                for digit in range(digits):
                    a, b = a + a + a, b + b + b
                    v = k.or_(k.and_(k.shr_i32(a, 8), even), k.and_(b, odd))
                    out.codes(start + digit * n + byte - at, v)
                    a, b = k.and_(a, even), k.and_(b, even)
        start += n * digits
    out.finish()


# Few rows: take a block apart and multiply at once.

# The scratch of emit_matvec: dot products of a stretch, y if it has more rows than one, scales.
DOTS_AT, Y_AT, SCALES_AT, SPARE_AT, MATVEC_SCRATCH = 0, 1024, 1280, 2304, 4096


def emit_first_sum(k, format, bias, i, x, record):
    """Return what the dot product of the sub-block at place i starts from: - bias * sum of x.

    bias: a power of two, or 0   record: of the activations, its distance from register x; it
    holds the sum of the codes, negative, so what is returned is this sum shifted.
    """
    if not bias:
        return k.zero_i32x8()
    minus = ACT_MINUS[format.sub_len][i % 32 // format.sub_len]
    return k.broadcast_i32x8(x, record + minus) << (bias.bit_length() - 1)


def emit_dot(k, format, bias, dot, v, x, disp):
    """Emit dot += the products of v's codes and the four activation codes at x + disp."""
    if is_int8(format) and not bias:
        k.dot4_ss(dot, v, k.broadcast_i32x8(x, disp))
    else:
        k.dot4_us_m(dot, v, x, disp)


def emit_add_dot(k, y, dot, scale, low, i, sub, x, record):
    """Emit y += dot * (scale * x's scale), then y += low * (x's scale * the codes' sum).

    i: place of the sub-block, of `sub` weights   record: of the activations, from register x
    """
    y += k.i32_to_f32(dot) * (scale * k.broadcast_f32x8(x, record + ACT_SCALE))
    if low:
        y += low * k.broadcast_f32x8(x, record + ACT_SCALED[sub][i % 32 // sub])


class Products:
    """Where emit_matvec sends codes and scales: into dot products, then into y.

    x: register, the records of the first block   y: f32x8 for each row of activations
    ahead: Ahead, which fetches memory meanwhile
    Not everything fits the registers: in the scratch wait the scales if a block has many, the
    dot products if a stretch has many (its codes do not come in the order in which the sums
    must be made), and y if there are several rows.
    many: whether a block has many scales   place: register, from which those of the stretch lie
    SCALES_AT bytes away   park: whether dot products wait   run_len: how many codes share one sum
    """

    def __init__(self, k, format, x, n_rows, ahead):
        self.k, self.format, self.x, self.n_rows, self.ahead = k, format, x, n_rows, ahead
        self.bias, self.length = kept_bias(format), stretch_of(format)
        self.scales, self.dots = {}, {}
        self.many = format.scales is not None or format.d == "ue4m3"
        self.park = self.length > 64
        self.run_len = 16 if n_rows == 1 else format.sub_len    # short runs wait less for sums
        self.place = k.copy(k.scratch) if self.many else None
        self.y = [k.zero_f32x8()]
        if n_rows > 1:
            for r in range(n_rows):
                k.store_f32x8(k.scratch, self.y[0], Y_AT + 32 * r)

    def keep(self, s, scale, low):
        if self.many:
            self.k.store_f32x8(self.k.scratch, scale, SCALES_AT + 64 * s)
            if low:
                self.k.store_f32x8(self.k.scratch, low, SCALES_AT + 64 * s + 32)
        else:
            self.scales[s] = scale, low

    def spare(self, i):
        """Return (register, distance) of 32 bytes that are free until codes(i, ...)."""
        return self.k.scratch, SPARE_AT

    def start(self):
        """Begin a block."""
        if self.many:
            self.k.mov(self.place, self.k.scratch)

    def record(self, i, r):
        """Return where the record is, from x, of place i of the stretch and row r."""
        return (i // 32 * self.n_rows + r) * ACT_RECORD

    def codes(self, i, v):
        k, run = self.k, i // self.run_len
        self.ahead.fetch()
        if run not in self.dots:
            bias = self.bias if i % self.format.sub_len == 0 else 0
            self.dots[run] = [emit_first_sum(k, self.format, bias, i, self.x, self.record(i, r))
                              for r in range(self.n_rows)]
        for r, dot in enumerate(self.dots[run]):
            emit_dot(k, self.format, self.bias, dot, v, self.x, self.record(i, r) + i % 32)
            if self.park and i % 16 == 12:
                k.store_i32x8(k.scratch, dot, DOTS_AT + 32 * (run * self.n_rows + r))

    def dot(self, s, r):
        """Return the dot product of sub-block s of the stretch with row r."""
        n = self.format.sub_len // self.run_len
        dots = [self.k.load_i32x8(self.k.scratch, DOTS_AT + 32 * (run * self.n_rows + r))
                if self.park else self.dots[run][r] for run in range(n * s, n * s + n)]
        return dots[0] if n == 1 else dots[0] + dots[1]

    def scale(self, s):
        """Return (scale, low) of sub-block s of the stretch."""
        if not self.many:
            return self.scales[s]
        at = SCALES_AT + 64 * s
        return self.k.load_f32x8(self.place, at), (
            self.k.load_f32x8(self.place, at + 32) if self.format.mins else None)

    def finish(self):
        """Emit the float steps of one stretch, in order."""
        k, sub, n_rows = self.k, self.format.sub_len, self.n_rows
        for r in range(n_rows):
            y = self.y[0] if n_rows == 1 else k.load_f32x8(k.scratch, Y_AT + 32 * r)
            for s in range(self.length // sub):
                emit_add_dot(k, y, self.dot(s, r), *self.scale(s), s * sub, sub, self.x,
                             self.record(s * sub, r))
            if n_rows > 1:
                k.store_f32x8(k.scratch, y, Y_AT + 32 * r)
        self.dots = {}
        self.ahead.finish()
        k.add(self.x, self.record(self.length, 0), to=self.x)
        if self.many:
            k.add(self.place, 64 * (self.length // sub), to=self.place)

    def sums(self):
        """Return y, at the end."""
        if self.n_rows == 1:
            return self.y
        return [self.k.load_f32x8(self.k.scratch, Y_AT + 32 * r) for r in range(self.n_rows)]


class Ahead:
    """What is fetched into the cache while a stretch is computed, a line of 64 bytes at a time.

    The processor finds out by itself what will be read next where one thing is read in order,
    but not where eight rows are; without this, weights come in at a third of the speed.  What
    is fetched is the next eight rows: end to end, which memory likes best, or, where two
    groups of rows would crowd the first-level cache, all eight side by side, so that a line
    comes in as one goes out of use.  In the first case the rows after those are called up as
    well, as far as the second-level cache, which can wait for more lines at a time.  The fetches
    are spread over the codes, since all at once would only fill the queue of reads.
    """

    def __init__(self, k, format, steps, row_bytes, base):
        self.k, self.format = k, format
        eight = 8 * format.block_bytes * stretch_of(format) // format.block_len
        self.at, self.near = base + 8 * row_bytes, 8 * row_bytes <= NEAR_BYTES
        if self.near:
            self.step, self.lines = eight, range(0, eight, 64)
        else:
            self.step = per_row = -(-eight // 8)
            self.lines = [step + line for line in range(0, per_row, 64) for step in steps]
        self.n_fetched = self.n_codes = 0

    def fetch(self):
        """Emit the fetching that goes with the next four codes of a stretch."""
        self.n_codes += 4
        share = len(self.lines) * self.n_codes / stretch_of(self.format)
        while self.n_fetched < share:
            self.k.prefetch(self.at, self.lines[self.n_fetched])
            if self.near:
                self.k.prefetch_l2(self.at, self.lines[self.n_fetched] + FAR_BYTES)
            self.n_fetched += 1

    def finish(self):
        """End a stretch."""
        self.k.add(self.at, self.step, to=self.at)
        self.n_fetched = self.n_codes = 0


NEAR_BYTES = 15 << 10                   # of 32 KB
FAR_BYTES = 8 << 10


def emit_reload(k, name):
    """Return the field `name`, loaded again: cheaper than a register kept through inner loops."""
    return k.load_i64(k.args_pointer, 8 * list(k.fields).index(name))


def emit_held_constants(k, format, n_rows=1):
    """Keep in registers what every stretch of codes needs, as far as there are registers.

    n_rows: of activations; with several, their sums take the place of some of these
    """
    if not isinstance(format.codes, _Field):
        return
    width = format.codes.runs[0][3]
    if width < 8 and (n_rows == 1 or format.block_len == 32):
        k.hold_i8x32((1 << width) - 1)
    if format.codes.book and (n_rows == 1 or format.block_len == 32):
        k.hold_i8x32(book_table(format))
    if format.codes.spread and n_rows == 1:
        k.hold_i8x32(OWN_BIT)
        k.hold_i8x32(16)
    if format.block_len == 32:
        k.hold_i8x32(LOW_THEN_HIGH)


def emit_store_tile(k, tile, row, lanes, y):
    """Emit y[r][row ...] = tile[r], for the group of weight rows at `row`, see emit_matvec."""
    at = y + (k.min(row, emit_reload(k, "n_out") - lanes) << 2)
    y_stride = emit_reload(k, "y_stride")
    for v in tile:
        if lanes == 8:
            k.store_f32x8(at, v)
        else:
            k.store_f32_n(at, v, k.imm(lanes))
        at += y_stride


def emit_matvec(k, format, n_in, lanes=8, n_rows=1):
    """Emit matmul_naive for n_rows rows of activations and rows chunk * chunk_rows ... of w.

    w: packed rows of n_in weights   x: records (n_rows, n_in / 32)   y: f32, rows y_stride
    bytes apart   scratch: MATVEC_SCRATCH
    n_rows: 1 .. matvec_rows(format), known when the kernel is built; the field is not read.
    lanes: 8, or n_out if that is less; then the surplus lanes repeat the last row.
    Rows are taken in groups of eight; the last group ends at the last row, so that some rows
    may be computed twice.
    """
    n_out, chunk_rows = k.args(*MATRIX_FIELDS)[3:5]
    row_bytes = format.n_bytes(n_in)
    steps = [min(i, lanes - 1) * row_bytes for i in range(8)]
    row = k.chunk * chunk_rows
    end = k.min(row + chunk_rows, n_out)
    emit_held_constants(k, format, n_rows)
    with k.while_(row, "<", end):
        first = k.min(row, emit_reload(k, "n_out") - lanes)
        block = EightRuns(k, emit_reload(k, "w") + first * row_bytes, steps, format.block_bytes)
        ahead = Ahead(k, format, steps, row_bytes, block.base)
        out = Products(k, format, emit_reload(k, "x"), n_rows, ahead)
        with k.loop(n_in // format.block_len):
            out.start()
            emit_scales(k, format, block, out.keep)
            emit_codes(k, format, block, out)
            k.add(block.base, format.block_bytes, to=block.base)
        emit_store_tile(k, out.sums(), row, lanes, emit_reload(k, "y"))
        row += 8


def matvec_rows(format):
    """Return how many rows of activations emit_matvec can take at once.

    Of 16 vector registers, four hold codes, four more their upper bits if those stand apart,
    and three are in passing.  The others can be sums: those that are open at a time, a row.
    """
    if not isinstance(format.codes, _Field):
        return 4 if isinstance(format.codes, _GridCodes) else 1
    sums = 1 if format.block_len == 32 else len({shift for _, _, shift, _ in format.codes.runs})
    return min(4, (5 if format.codes.upper else 9) // sums)


# Many rows: take eight weight rows apart into a panel, then multiply it with all rows.
#
# A panel is a row of records, one for 32 weights of each of the eight rows:
#
#     0                    256           288
#    +--------------------+-------------+-----------------------+
#    | 8 vectors of codes | scales f32x8| minimums, if any      |    twice the latter for
#    +--------------------+-------------+-----------------------+    sub-blocks of 16

def _scales_bytes(format):
    return 32 if format.m_off is None else 64


def panel_record_bytes(format):
    """Return the size of a panel's record: 8 * 32 codes, then the sub-blocks' scales."""
    return 256 + 32 // format.sub_len * _scales_bytes(format)


def matmul_scratch_bytes(format, n_in, chunk_rows):
    """Return the scratch that emit_matmul needs: the panels of a chunk."""
    return -(-chunk_rows // 8) * (n_in // 32) * panel_record_bytes(format)


class Panel:
    """Where codes and scales are sent to be kept: the record at register `at` and those after it.

    bias: what the kept codes are more than the true ones, see emit_matmul
    ahead: Ahead, or None
    """

    def __init__(self, k, format, at, bias, ahead):
        self.k, self.format, self.at, self.bias, self.ahead = k, format, at, bias, ahead
        self.record_bytes = panel_record_bytes(format)

    def keep(self, s, scale, low):
        i = s * self.format.sub_len
        disp = (i // 32 * self.record_bytes + 256
                + i % 32 // self.format.sub_len * _scales_bytes(self.format))
        self.k.store_f32x8(self.at, scale, disp)
        if low:
            self.k.store_f32x8(self.at, low, disp + 32)

    def codes(self, i, v):
        if self.ahead:
            self.ahead.fetch()
        if self.bias == 128:
            v = self.k.xor(v, self.k.const_i8x32(-128).i32)
        self.k.store_i32x8(self.at, v, i // 32 * self.record_bytes + i % 32 * 8)

    def spare(self, i):
        return self.at, i // 32 * self.record_bytes + i % 32 * 8

    def finish(self):
        if self.ahead:
            self.ahead.finish()
        self.k.add(self.at, stretch_of(self.format) // 32 * self.record_bytes, to=self.at)


def emit_panel(k, format, block, n_blocks, at, bias, ahead=None):
    """Emit the unpacking of n_blocks blocks of eight runs into the panel at register `at`."""
    out = Panel(k, format, at, bias, ahead)
    with k.loop(n_blocks):
        emit_scales(k, format, block, out.keep)
        emit_codes(k, format, block, out)
        k.add(block.base, format.block_bytes, to=block.base)


def emit_tile(k, format, bias, n_in, panel, x, x_step, n_columns):
    """Return y, an f32x8 for each of n_columns rows of activations: the panel times those rows.

    panel, x: registers, which move: the first records   x_step: bytes from block to block
    """
    sub, record_bytes = format.sub_len, panel_record_bytes(format)
    y = [k.zero_f32x8() for _ in range(n_columns)]
    with k.loop(n_in // 32):
        for s in range(32 // sub):
            dots = [emit_first_sum(k, format, bias, s * sub, x, ACT_RECORD * c)
                    for c in range(n_columns)]
            for i in range(s * sub, (s + 1) * sub, 4):
                v = k.load_i32x8(panel, 8 * i)
                for c, dot in enumerate(dots):
                    emit_dot(k, format, bias, dot, v, x, ACT_RECORD * c + i)
            at = 256 + s * _scales_bytes(format)
            scale = k.load_f32x8(panel, at)
            for c, dot in enumerate(dots):
                low = k.load_f32x8(panel, at + 32) if format.m_off is not None else None
                emit_add_dot(k, y[c], dot, scale, low, s * sub, sub, x, ACT_RECORD * c)
        panel += record_bytes
        x += x_step
    return y


TILES = (ACT_GROUP, 4, 2, 1)            # rows of activations at a time; 6 fill the registers


def emit_matmul(k, format, n_in, lanes=8, full_u8=False):
    """Emit matmul_naive for all rows of activations and rows chunk * chunk_rows ... of w.

    w: packed rows of n_in weights   x: records (n_in / 32, n_rows)   y: f32, rows y_stride
    bytes apart.  chunk_rows: a multiple of 8.  scratch: matmul_scratch_bytes.
    lanes: 8, or n_out if that is less; then the surplus lanes repeat the last row.
    full_u8: whether dot4_us is right for bytes up to 255, as in VNNI; then int8 codes are kept
    as code + 128, which spares their signs' special handling.
    """
    n_out, chunk_rows = k.args(*MATRIX_FIELDS)[3:5]
    row_bytes = format.n_bytes(n_in)
    steps = [min(i, lanes - 1) * row_bytes for i in range(8)]
    bias = 128 if is_int8(format) and full_u8 else kept_bias(format)
    row = k.chunk * chunk_rows
    end = k.min(row + chunk_rows, n_out)
    panel = k.copy(k.scratch)
    emit_held_constants(k, format)
    with k.while_(row, "<", end):
        first = k.min(row, emit_reload(k, "n_out") - lanes)
        block = EightRuns(k, emit_reload(k, "w") + first * row_bytes, steps, format.block_bytes)
        ahead = Ahead(k, format, steps, row_bytes, block.base)
        emit_panel(k, format, block, n_in // format.block_len, panel, bias, ahead)
        row += 8
    x, y, rows_left = [emit_reload(k, name) for name in ("x", "y", "n_rows")]
    group_step = k.rem(rows_left, k.imm(ACT_GROUP)) << 6
    for n_columns in TILES:
        x_step, next_tile = ACT_RECORD * ACT_GROUP, ACT_RECORD * n_columns
        if n_columns == ACT_GROUP:
            next_tile *= n_in // 32
        else:                               # a part of the last, smaller group
            x_step = group_step
        with k.while_(rows_left, ">=", n_columns):
            k.mov(panel, k.scratch)
            k.mov(row, k.chunk * emit_reload(k, "chunk_rows"))
            with k.while_(row, "<", end):
                tile = emit_tile(k, format, bias, n_in, panel, k.copy(x), x_step, n_columns)
                emit_store_tile(k, tile, row, lanes, y)
                row += 8
            x += next_tile
            y += emit_reload(k, "y_stride") * n_columns
            rows_left -= n_columns


# Weights that are plain floats.

FLOAT_LOADS = {"F32": "load_f32x8", "F16": "load_f16x8", "BF16": "load_bf16x8"}


def emit_load_floats(k, format, base, disp, n=8):
    """Return the first n weights at base + disp as f32x8, the other lanes 0 and not read."""
    if n == 8:
        return getattr(k, FLOAT_LOADS[format.name])(base, disp)
    if format.name == "F32":
        return k.load_f32_n(base, k.imm(n), disp)
    v = k.zero_i32x8()
    for i in range(n):
        v = k.insert_i32(v, k.load_u16(base, disp + 2 * i), i)
    return emit_f16_pair(k, v, (0,))[0] if format.name == "F16" else (v << 16).f32


def emit_float_tile(k, format, n_in, w, x, y, y_stride, n_rows, n_columns):
    """Emit y[c][o] = lane_sum(w[o] * x[c]) for n_rows rows of w and n_columns rows of x.

    w, x, y: registers, which do not move   y_stride: register
    """
    row_bytes, n_tail = format.n_bytes(n_in), n_in % 8
    w, x, y = k.copy(w), k.copy(x), k.copy(y)
    sums = [[k.zero_f32x8() for _ in range(n_rows)] for _ in range(n_columns)]

    def add_products(n):
        columns = [emit_load_floats(k, FORMATS["F32"], x, 4 * n_in * c, n)
                   for c in range(n_columns)]
        for o in range(n_rows):
            v = emit_load_floats(k, format, w, row_bytes * o, n)
            for column, total in zip(columns, sums):
                total[o] += v * column

    with k.loop(n_in // 8):
        add_products(8)
        w += format.n_bytes(8)
        x += 32
    if n_tail:
        add_products(n_tail)
    for total in sums:
        for o, v in enumerate(total):
            k.store_f32(y, k.hsum_f32(v), 4 * o)
        y += y_stride


def emit_matmul_float(k, format, n_in):
    """Emit matmul_naive for all rows of x and rows chunk * chunk_rows ... of float weights.

    w: rows of n_in floats, one after the other   x: f32 (n_rows, n_in)
    y: f32, rows y_stride bytes apart.
    Three rows by three share each value read three times; with one row of activations left,
    four weight rows are read side by side.
    """
    w, x, y, n_out, chunk_rows, rows_left, y_stride = k.args(*MATRIX_FIELDS)
    row_bytes = format.n_bytes(n_in)
    first = k.chunk * chunk_rows
    n_chunk = k.min(n_out - first, chunk_rows)
    w += first * row_bytes
    y += first << 2
    for n_columns, shapes in ((3, (3, 1)), (1, (4, 1))):
        with k.while_(rows_left, ">=", n_columns):
            left, weights, out = k.copy(n_chunk), k.copy(w), k.copy(y)
            for n_rows in shapes:
                with k.while_(left, ">=", n_rows):
                    emit_float_tile(k, format, n_in, weights, x, out, y_stride,
                                    n_rows, n_columns)
                    weights += row_bytes * n_rows
                    out += 4 * n_rows
                    left -= n_rows
            x += 4 * n_in * n_columns
            y += y_stride * n_columns
            rows_left -= n_columns


# Embeddings: rows of a weight as floats.

def emit_decode(k, format, panel, y, steps):
    """Emit the weights of the block in each of a panel's lanes to y + steps[lane]; both move."""
    sub = format.sub_len
    with k.loop(format.block_len // 32):
        for s in range(32 // sub):
            at = 256 + s * _scales_bytes(format)
            scale = k.load_f32x8(panel, at)
            low = k.load_f32x8(panel, at + 32) if format.m_off is not None else None
            codes = panel + 8 * sub * s
            with k.loop(sub // 4):
                v = k.load_i32x8(codes)
                floats = [k.i32_to_f32(emit_byte(k, v, i, is_int8(format), kept_bias(format)))
                          * scale for i in range(4)]
                if low:
                    floats = [f + low for f in floats]
                for lane, f in enumerate(emit_turn(k, [f.i32 for f in floats])):
                    k.store_i8x16(y, f, steps[lane])
                    k.store_i8x16(y, k.halves(f, f, 1, 1), steps[lane + 4])
                codes += 32
                y += 16
        panel += panel_record_bytes(format)


def emit_embed(k, format, n_in):
    """Emit y = w[tokens[chunk]], as Format.decode has it.

    tokens: i32   w: rows of n_in weights   y: f32, rows y_stride bytes apart   scratch: 4096
    Eight blocks of one row take the place of eight rows; where the row has no more blocks the
    last one is repeated.
    """
    tokens, w, y, y_stride = k.args("tokens", "w", "y", "y_stride")
    token = k.load_i32(tokens + (k.chunk << 2))
    w += token * format.n_bytes(n_in)
    y += k.chunk * y_stride
    if format.sub_len is None:
        n_tail = n_in % 8
        with k.loop(n_in // 8):
            k.store_f32x8(y, emit_load_floats(k, format, w, 0))
            w += format.n_bytes(8)
            y += 32
        if n_tail:
            k.store_f32_n(y, emit_load_floats(k, format, w, 0, n_tail), k.imm(n_tail))
        return
    n_blocks, block_len = n_in // format.block_len, format.block_len
    lanes = min(8, n_blocks)
    steps = [min(i, lanes - 1) for i in range(8)]
    done = k.imm(0)
    with k.while_(done, "<", n_blocks):
        first = k.min(done, n_blocks - lanes)
        block = EightRuns(k, w + first * format.block_bytes,
                          [i * format.block_bytes for i in steps], format.block_bytes)
        emit_panel(k, format, block, 1, k.copy(k.scratch), kept_bias(format))
        emit_decode(k, format, k.copy(k.scratch), y + first * (4 * block_len),
                    [4 * block_len * i for i in steps])
        done += 8


# ---------------------------------------------------------------------------------------
# 15. Other kernels
#
# What a forward pass does besides multiplying by matrices: norms, rotations, activations,
# the cache, attention and the choice of experts.  Each emitter is named after the operation
# of chapter 4 that it must equal, bit for bit; its docstring says what one chunk of work is.
#
# The one idea: a vector of eight lanes is the natural unit of the definitions.  lane_sum adds
# element i to lane i mod 8 because that is what a loop over vectors does, and attention cuts
# its keys at multiples of 64 because then position p always meets lane p mod 8.  A row whose
# length is no multiple of 8 ends in a short vector; its missing lanes are neither read nor
# written, and where a sum would notice them they are masked to zero.
#
# Registers are few.  So an argument is loaded where it is used, and again where it is used
# next; the processor keeps it in its nearest cache.  Addresses in fields are not checked here:
# who fills the fields (19) guarantees them.  A name with _row_bytes is the distance in bytes
# from one row to the next; a name with _bits is a float32 passed as the integer of its bits.

class Fields:
    """The fields of a kernel's argument structure, each loaded when it is asked for."""

    def __init__(self, k, *names):
        self.k = k
        self.offs = {name: 8 * i for i, name in enumerate(names)}
        k.fields.update(dict.fromkeys(names))

    def __call__(self, name):
        """Emit the load of a whole number or address."""
        return self.k.load_i64(self.k.args_pointer, self.offs[name])

    def number(self, name):
        """Emit the load of a float32, into every lane."""
        return self.k.broadcast_f32x8(self.k.args_pointer, self.offs[name])

    def row(self, name, row):
        """Emit the address of a row of the array `name`."""
        return self(name) + row * self(name + "_row_bytes")


LOWEST = f32(-3.4028234663852886e38)        # the lowest finite float32


def f32_bits(x):
    """Return the bits of a float32 as a signed integer, the form in which kernels take numbers."""
    return struct.unpack("<i", struct.pack("<f", x))[0]


def _each_vector(k, n, steps, body):
    """Emit body(None) for each whole vector of n elements, then body(lanes) for what is left.

    n: register or int   lanes: register, 1..7   steps: ((pointer, bytes to advance), ...)
    """
    with k.loop(n >> 3):
        body(None)
        for pointer, n_bytes in steps:
            k.add(pointer, n_bytes, to=pointer)
    if type(n) is int:
        if n & 7:
            body(k.imm(n & 7))
    else:
        lanes = n & 7
        with k.if_(lanes, ">", 0):
            body(lanes)


def _load_some(k, pointer, lanes, disp=0):
    """Emit the load of a vector of floats, or of its first lanes with zeros behind them."""
    if lanes is None:
        return k.load_f32x8(pointer, disp)
    return k.load_f32_n(pointer, lanes, disp)


def _store_some(k, pointer, v, lanes, disp=0):
    """Emit the store of a vector of floats, or of its first lanes alone."""
    if lanes is None:
        k.store_f32x8(pointer, v, disp)
    else:
        k.store_f32_n(pointer, v, lanes, disp)


def _first_lanes(k, lanes):
    """Emit the mask of the lanes 0..lanes-1."""
    return k.cmpgt_i32(k.splat_i32(lanes), k.const_i32x8(range(8)))


# Functions of one number, eight at a time.  Their steps are those of section 4.1, in order.

def emit_exp(k, *xs):
    """Emit exp(x) of one vector, or of several: then a constant is loaded once for all.

    x: f32x8 -> f32x8, or a list of them.  2**n is made by writing n into the exponent bits: a
    float32 of fraction 1 and exponent n + 127 is 2**n.  Nothing overflows: x is clamped first,
    with the bound as first operand, so that what is not a number stays so.
    """
    def each(function, c, *lists):
        c = k.const_f32x8(c)
        return [function(*vectors, c) for vectors in zip(*lists)]

    xs = each(lambda x, c: k.max_f32(c, x), EXP_MIN, xs)
    xs = each(lambda x, c: k.min_f32(c, x), EXP_MAX, xs)
    ns = [k.round_f32(x) for x in each(k.mul_f32, LOG2_E, xs)]
    rs = each(lambda r, n, c: r - n * c, LN2_HI, xs, ns)
    rs = each(lambda r, n, c: r - n * c, LN2_LO, rs, ns)
    ps = each(k.mul_f32, EXP_POLY[0], rs)
    for coefficient in EXP_POLY[1:-1]:
        ps = each(lambda p, r, c: (p + c) * r, coefficient, ps, rs)
    ps = each(k.add_f32, EXP_POLY[-1], ps)
    ys = each(lambda p, r, c: p * (r * r) + r + c, 1.0, ps, rs)
    bias = k.const_i32x8(127)
    ys = [y * (k.f32_to_i32(n) + bias << 23).f32 for y, n in zip(ys, ns)]
    return ys if len(ys) > 1 else ys[0]


def _silu(k, x):
    return x / (emit_exp(k, k.zero_f32x8() - x) + k.const_f32x8(1.0))


def _gelu(k, x):
    u = x + x * x * x * k.const_f32x8(GELU_CUBIC)
    return x / (emit_exp(k, u * k.const_f32x8(GELU_SLOPE)) + k.const_f32x8(1.0))


def _gelu_erf(k, x):
    z = (x & k.const_i32x8(2**31 - 1)).f32 * k.const_f32x8(ROOT_HALF)
    t = k.const_f32x8(1.0) / (z * k.const_f32x8(0.5) + k.const_f32x8(1.0))
    p = k.const_f32x8(ERFC_POLY[0])
    for c in ERFC_POLY[1:]:
        p = p * t + k.const_f32x8(c)
    e = t * k.const_f32x8(0.5) * emit_exp(k, p - z * z)
    below = k.cmp_f32(k.zero_f32x8(), ">", x)
    return x * k.select(below, e, k.const_f32x8(1.0) - e).f32


def _finite(x):
    """Emit x, bit for bit, but what is not finite becomes not a number: inf - inf is none."""
    return x - (x - x)


def _softcap(k, x, cap):
    x = _finite(x)                      # or the cap would hide it
    e = emit_exp(k, x / cap * k.const_f32x8(2.0)) + k.const_f32x8(1.0)
    return (k.const_f32x8(1.0) - k.const_f32x8(2.0) / e) * cap


def _swiglu_clamped(k, gate, up):
    gate = k.min_f32(k.const_f32x8(SWIGLU_LIMIT), _finite(gate))
    up = k.max_f32(k.const_f32x8(-SWIGLU_LIMIT), _finite(up))
    up = k.min_f32(k.const_f32x8(SWIGLU_LIMIT), up) + k.const_f32x8(1.0)
    e = emit_exp(k, gate * k.const_f32x8(SWIGLU_SLOPE)) + k.const_f32x8(1.0)
    return gate / e * up


# Element by element.  A chunk is a slice of a row, so that the logits of one token, a row
# of 262144, can be shared out among threads as well as the 512 rows of a prompt:
#
#   chunk = row * slices + part;  elements part * slice .. of n;  slice is a multiple of 8

def _elementwise(k, function, inputs=("x",), numbers=()):
    """Emit out = function(k, *inputs, *numbers), for one slice of one row.

    inputs, out: f32 (R, n)   numbers: names of the fields that hold them
    out may be one of the inputs: a vector is written after it was read.
    """
    arrays = [name + suffix for name in (*inputs, "out") for suffix in ("", "_row_bytes")]
    field = Fields(k, *arrays, "n", "slice", "slices", *numbers)
    slices = field("slices")
    row, part = k.div(k.chunk, slices), k.rem(k.chunk, slices)
    start = part * field("slice")
    n = k.min(field("n") - start, field("slice"))
    start <<= 2
    pointers = [field.row(name, row) + start for name in (*inputs, "out")]
    constants = [field.number(name) for name in numbers]

    def body(lanes):
        values = [_load_some(k, pointer, lanes) for pointer in pointers[:-1]]
        _store_some(k, pointers[-1], function(k, *values, *constants), lanes)

    _each_vector(k, n, [(pointer, 32) for pointer in pointers], body)


def emit_silu(k):
    """Emit out = silu(x)."""
    _elementwise(k, _silu)


def emit_gelu(k):
    """Emit out = gelu(x)."""
    _elementwise(k, _gelu)


def emit_gelu_erf(k):
    """Emit out = gelu_erf(x)."""
    _elementwise(k, _gelu_erf)


def emit_swiglu_clamped(k):
    """Emit out = swiglu_clamped(x, y): x is the gate, y what comes up."""
    _elementwise(k, _swiglu_clamped, ("x", "y"))


def emit_scale(k):
    """Emit out = mul(x, c), c a number."""
    _elementwise(k, lambda k, x, c: x * c, numbers=("c_bits",))


def emit_softcap(k):
    """Emit out = softcap(x, c)."""
    _elementwise(k, _softcap, numbers=("c_bits",))


def emit_add(k):
    """Emit out = add(x, y).  With y_row_bytes = 0 one row y is added to all: a bias."""
    _elementwise(k, lambda k, x, y: x + y, ("x", "y"))


def emit_mul(k):
    """Emit out = mul(x, y)."""
    _elementwise(k, lambda k, x, y: x * y, ("x", "y"))


def emit_silu_mul(k):
    """Emit out = mul(silu(x), y): x is the gate, y what comes up."""
    _elementwise(k, lambda k, x, y: _silu(k, x) * y, ("x", "y"))


def emit_gelu_mul(k):
    """Emit out = mul(gelu(x), y)."""
    _elementwise(k, lambda k, x, y: _gelu(k, x) * y, ("x", "y"))


def emit_gate(k):
    """Emit out = gate(x, g).  A chunk is one row.

    x, out: f32 (R, n), perhaps the same   g: f32 (R, 1)
    """
    field = Fields(k, "x", "x_row_bytes", "g", "g_row_bytes", "out", "out_row_bytes", "n")
    x, out = field.row("x", k.chunk), field.row("out", k.chunk)
    g = k.broadcast_f32x8(field.row("g", k.chunk))
    weight = emit_exp(k, k.zero_f32x8() - g) + k.const_f32x8(1.0)
    weight = k.const_f32x8(1.0) / weight
    _each_vector(k, field("n"), ((x, 32), (out, 32)), lambda lanes: _store_some(
        k, out, _load_some(k, x, lanes) * weight, lanes))


def emit_rows(k):
    """Emit out = rows(x, index).  A chunk is one row of out.

    x: f32 (any, n)   index: i32 (R,)   out: f32 (R, n), not x
    """
    field = Fields(k, "x", "x_row_bytes", "index", "out", "out_row_bytes", "n")
    x = field.row("x", k.load_i32(field("index") + (k.chunk << 2)))
    out = field.row("out", k.chunk)
    _each_vector(k, field("n"), ((x, 32), (out, 32)),
                 lambda lanes: _store_some(k, out, _load_some(k, x, lanes), lanes))


# Norms.  A row is read twice, or three times; it stays in the nearest cache.

def _lane_sum(k, x, n, function):
    """Emit lane_sum of function(v) over the n floats v at x, into every lane.

    function(v) need not be 0 for v = 0, so the lanes that a short vector lacks are masked.
    """
    total, x = k.zero_f32x8(), k.copy(x)

    def body(lanes):
        v = function(_load_some(k, x, lanes))
        k.add_f32(total, v if lanes is None else v & _first_lanes(k, lanes), to=total)

    _each_vector(k, n, ((x, 32),), body)
    return k.hsum_f32(total)


def _inverse_root(k, total, n, eps):
    """Emit 1 / sqrt(total / n + eps)."""
    return k.const_f32x8(1.0) / k.sqrt_f32(total / n + eps)


def emit_rms_norm(k):
    """Emit out = rms_norm(x, w, eps).  A chunk is one row: `runs` runs of n, each by itself.

    x, out: f32 (R, runs * n)   w: f32 (n,)
    """
    field = Fields(k, "x", "x_row_bytes", "out", "out_row_bytes", "w", "n", "runs", "eps_bits")
    x, out, n = field.row("x", k.chunk), field.row("out", k.chunk), field("n")
    length, eps = k.i32_to_f32(k.splat_i32(n)), field.number("eps_bits")
    with k.loop(field("runs")):
        scale = _inverse_root(k, _lane_sum(k, x, n, lambda v: v * v), length, eps)
        w = field("w")
        _each_vector(k, n, ((x, 32), (out, 32), (w, 32)), lambda lanes: _store_some(
            k, out, _load_some(k, x, lanes) * scale * _load_some(k, w, lanes), lanes))
        rest = (n & 7) << 2
        x += rest
        out += rest


def emit_layer_norm(k):
    """Emit out = layer_norm(x, w, b, eps).  A chunk is one row.  b: an address, or 0 for None."""
    field = Fields(k, "x", "x_row_bytes", "out", "out_row_bytes", "w", "b", "n", "eps_bits")
    x, out, n = field.row("x", k.chunk), field.row("out", k.chunk), field("n")
    length = k.i32_to_f32(k.splat_i32(n))
    mean = _lane_sum(k, x, n, lambda v: v) / length

    def square(v):
        c = v - mean
        return c * c

    scale = _inverse_root(k, _lane_sum(k, x, n, square), length, field.number("eps_bits"))
    w, b = field("w"), field("b")

    def normed(lanes):
        return (_load_some(k, x, lanes) - mean) * scale * _load_some(k, w, lanes)

    with k.if_(b, "!=", 0):
        _each_vector(k, n, ((x, 32), (out, 32), (w, 32), (b, 32)), lambda lanes: _store_some(
            k, out, normed(lanes) + _load_some(k, b, lanes), lanes))
    with k.else_():
        _each_vector(k, n, ((x, 32), (out, 32), (w, 32)), lambda lanes: _store_some(
            k, out, normed(lanes), lanes))


# Rotary positions.  In the "half" pairing the two of a pair stand in two vectors, and lanes
# line up with the angles.  In the "interleaved" pairing they are neighbours in one vector:
#
#   x            a0  b0  a1  b1 ...      times  c0  c0  c1  c1 ...
#   swapped      b0  a0  b1  a1 ...      times -s0  s0 -s1  s1 ...    and the two are added
#
# which has the bits of a c - b s and b c + a s: subtracting is adding the negative.

def _rope_interleaved(k, x, out, cos, sin, half):
    """Emit the turn of pairs (2i, 2i + 1), and move x and out behind them."""
    twice = [i for lane in (0, 1, 2, 3) for i in 2 * list(range(4 * lane, 4 * lane + 4))]
    twice = k.const_i8x32(twice)                # 4 angles, the same in both halves -> 8 lanes
    sign = k.const_i32x8([-2**31, 0] * 4).f32   # the sign bit of the even lanes

    def spread(pointer, lanes):
        if lanes is None:
            v = k.broadcast_i8x16(pointer)
        else:
            v = k.load_f32_n(pointer, lanes >> 1)
            v = k.halves(v, v, 0, 0)
        return k.shuffle_i8(v, twice).f32

    def body(lanes):
        v = _load_some(k, x, lanes)
        swapped = k.shuffle_i32(v, (1, 0, 3, 2))
        s = spread(sin, lanes) ^ sign
        _store_some(k, out, v * spread(cos, lanes) + swapped * s, lanes)

    n = half << 1
    _each_vector(k, n, ((x, 32), (out, 32), (cos, 16), (sin, 16)), body)
    rest = (n & 7) << 2
    x += rest
    out += rest


def _rope_halves(k, x, out, cos, sin, half):
    """Emit the turn of pairs (i, i + half), and move x and out behind them."""
    n_bytes = half << 2
    xb, outb = x + n_bytes, out + n_bytes

    def body(lanes):
        a, b, c, s = (_load_some(k, pointer, lanes) for pointer in (x, xb, cos, sin))
        _store_some(k, out, a * c - b * s, lanes)
        _store_some(k, outb, a * s + b * c, lanes)

    _each_vector(k, half, [(pointer, 32) for pointer in (x, xb, out, outb, cos, sin)], body)
    rest = (half & 7) << 2
    k.add(xb, rest, to=x)
    k.add(outb, rest, to=out)


def emit_rope(k, pairing):
    """Emit out = rope(x, positions, table, head_dim).  A chunk is one row.

    x, out: f32 (R, n_heads * head_dim), perhaps the same   positions: i32 (R,)
    cos, sin: f32 (n_positions, n_rot / 2)   pairing: "interleaved" or "half"
    """
    field = Fields(k, "x", "x_row_bytes", "out", "out_row_bytes", "positions", "cos", "sin",
                   "n_heads", "head_dim", "n_rot")
    x, out, half = field.row("x", k.chunk), field.row("out", k.chunk), field("n_rot") >> 1
    angles = k.load_i32(field("positions") + (k.chunk << 2)) * half << 2
    cos0, sin0 = field("cos") + angles, field("sin") + angles
    with k.loop(field("n_heads")):
        cos, sin = k.copy(cos0), k.copy(sin0)
        if pairing == "interleaved":
            _rope_interleaved(k, x, out, cos, sin, half)
        else:
            _rope_halves(k, x, out, cos, sin, half)
        rest = field("head_dim") - (half << 1)          # the dimensions that do not turn
        _each_vector(k, rest, ((x, 32), (out, 32)),
                     lambda lanes: _store_some(k, out, _load_some(k, x, lanes), lanes))
        short = (rest & 7) << 2
        x += short
        out += short


def _largest_lane(k, best, index):
    """Emit (index, value) of the largest of eight values, of equal ones the lowest index.

    best: f32x8, no NaN   index: i32x8   -> register, f32x8 with the value in every lane
    """
    top, far = k.hmax_f32(best), k.const_i32x8(2**31 - 1)
    first = far - k.hmax_u32(far - index & k.cmp_f32(best, "==", top))
    return k.extract_i32(first, 0), top


# Experts.  Which weight a row meets is known only when a program runs.  To a matrix kernel that is
# a matter of arguments, so a kernel of its own writes them down and calls it.

def emit_pick(k, format, n_in):
    """Emit matmul for one pick: the kernel for one row of activations, with its expert's weight.

    kernel: address of emit_matvec or emit_matmul_float for this format and n_in
    table: i64 (n_experts,), addresses of weights   experts: i32 (n_picks,)
    x: a row for every per_row picks; each row by itself is a group of quantized activations
    per_row: n_used where the picks of a row share its x, 1 where each has its own
    y: a row for each pick   scratch: that of the kernel, then its arguments
    Unit c, k.chunk, is chunk c / n_picks of the matrix of pick c % n_picks: units that follow
    each other take the same rows of the weights, which are then read from memory once if
    several picks chose one expert.
    """
    field = Fields(k, "kernel", "table", "x", "y", "n_out", "chunk_rows", "y_stride", "experts",
                   "n_picks", "per_row")
    x_row_bytes = 4 * n_in if format.sub_len is None else n_in // ACT_BLOCK * ACT_RECORD
    args, n_picks = k.scratch + MATVEC_SCRATCH, field("n_picks")
    pick = k.rem(k.chunk, n_picks)
    expert = k.load_i32(field("experts") + (pick << 2))
    w, row = k.load_i64(field("table") + (expert << 3)), k.div(pick, field("per_row"))
    own = {"w": w, "x": field("x") + row * x_row_bytes,
           "y": field("y") + pick * field("y_stride"), "n_rows": k.imm(1)}
    for i, name in enumerate(MATRIX_FIELDS):
        k.store_i64(args, own[name] if name in own else field(name), 8 * i)
    k.call(field("kernel"), args, k.div(k.chunk, n_picks), k.scratch)


def emit_route(k):
    """Emit route(x, n_used, normalize).  A chunk is one row.

    The largest logit is taken several times over, from a copy in which each that was chosen is
    struck out.

    x: f32 (R, n), n <= MAX_EXPERTS   -> experts: i32, weights: f32, both (R, n_used)
    normalize: 0 or 1   scratch: 4 * MAX_EXPERTS
    Experts choose addresses, so they must be 0..n-1 even for bad logits: a NaN loses every
    comparison, and if no logit wins one, expert 0 is taken.  Nothing is refused here, unlike
    in the reference: one logit that is not finite makes all weights of its row NaN.
    """
    field = Fields(k, "x", "x_row_bytes", "n", "n_used", "normalize", "experts", "weights")
    x, place = field.row("x", k.chunk), k.chunk * field("n_used") << 2
    experts, weights = field("experts") + place, field("weights") + place
    source, copy, wild = k.copy(x), k.copy(k.scratch), k.zero_f32x8()

    def take(lanes):
        v = _load_some(k, source, lanes)
        k.add_f32(wild, v - v, to=wild)
        if lanes is not None:
            v = k.select(_first_lanes(k, lanes), v, k.const_f32x8(-math.inf)).f32
        k.store_f32x8(copy, v)

    _each_vector(k, field("n"), ((source, 32), (copy, 32)), take)
    expert, logit = k.copy(experts), k.copy(weights)
    with k.loop(field("n_used")):
        best, index, here = k.const_f32x8(-math.inf), k.zero_i32x8(), k.const_i32x8(range(8))
        k.mov(copy, k.scratch)
        with k.loop((field("n") + 7) >> 3):
            v = k.load_f32x8(copy)
            k.select(k.cmp_f32(v, ">", best), here, index, to=index)
            k.max_f32(v, best, to=best)
            k.add_i32(here, k.const_i32x8(8), to=here)
            copy += 32
        first, top = _largest_lane(k, best, index)
        k.store_i32(expert, first)
        k.store_f32(logit, top)
        k.store_f32(k.scratch + (first << 2), k.const_f32x8(-math.inf))
        expert += 4
        logit += 4
    top, total = k.broadcast_f32x8(weights) + k.hsum_f32(wild), k.zero_f32x8()
    logit = k.copy(weights)
    _each_vector(k, field("n_used"), ((logit, 32),), lambda lanes: _store_some(
        k, logit, emit_exp(k, _load_some(k, logit, lanes) - top), lanes))
    with k.if_(field("normalize"), "!=", 0):
        e = k.copy(weights)
        with k.loop(field("n_used")):
            k.add_f32(total, k.broadcast_f32x8(e), to=total)
            e += 4
    with k.else_():
        k.mov(total, _lane_sum(k, x, field("n"), lambda v: emit_exp(k, v - top)))
    _each_vector(k, field("n_used"), ((weights, 32),), lambda lanes: _store_some(
        k, weights, _load_some(k, weights, lanes) / total, lanes))


def emit_mix(k):
    """Emit out = mix(x, route).  A chunk is one row of out.

    x: f32 (R * n_used, n)   weights: f32 (R * n_used,)   out: f32 (R, n), not x
    """
    field = Fields(k, "x", "x_row_bytes", "weights", "n_used", "out", "out_row_bytes", "n")
    first = k.chunk * field("n_used")
    x, out = field.row("x", first), field.row("out", k.chunk)
    weights = field("weights") + (first << 2)

    def body(lanes):
        row, weight = k.copy(x), k.copy(weights)
        total = _load_some(k, row, lanes) * k.broadcast_f32x8(weight)
        with k.loop(field("n_used") - 1):
            row += field("x_row_bytes")
            weight += 4
            total += _load_some(k, row, lanes) * k.broadcast_f32x8(weight)
        _store_some(k, out, total, lanes)

    _each_vector(k, field("n"), ((x, 32), (out, 32)), body)


# For sampling.  Python is too slow to look at each of 262144 logits; these leave it few.

def emit_argmax(k):
    """Emit argmax(x), the largest value, and whether any is not finite.  A chunk is one row.

    x: f32 (R, n), n >= 1   out: (R, 16) bytes: i32 index, f32 value, i32 not finite (0 or 1), 0
    Each lane keeps its largest value and where it first met it.  Index and value mean
    nothing if some value is not finite.
    """
    field = Fields(k, "x", "x_row_bytes", "n", "out")
    x, far = field.row("x", k.chunk), k.const_i32x8(2**31 - 1)
    best, index, wild = k.const_f32x8(LOWEST), k.zero_i32x8(), k.zero_i32x8()
    here = k.const_i32x8(range(8))

    def body(lanes):
        v = _load_some(k, x, lanes)
        not_finite = k.cmpgt_i32(v & far, k.const_i32x8(0x7F7FFFFF))
        k.or_(wild, not_finite, to=wild)
        if lanes is not None:
            v = k.select(_first_lanes(k, lanes), v, k.const_f32x8(LOWEST)).f32
        k.select(k.cmp_f32(v, ">", best), here, index, to=index)
        k.max_f32(v, best, to=best)
        k.add_i32(here, k.const_i32x8(8), to=here)

    _each_vector(k, field("n"), ((x, 32),), body)
    first, top = _largest_lane(k, best, index)
    out = field("out") + (k.chunk << 4)
    k.store_i32(out, first)
    k.store_f32(out, top, 4)
    k.store_i64(out, k.extract_i32(k.hsum_i32(wild), 0) >> 63 & 1, 8)


def emit_exp_sum(k):
    """Emit lane_sum(exp(x - top)).  A chunk is one row.

    x: f32 (R, n)   top: f32 (R,), taken off first   -> out: f32 (R,)
    """
    field = Fields(k, "x", "x_row_bytes", "n", "top", "out")
    x, place = field.row("x", k.chunk), k.chunk << 2
    top = k.broadcast_f32x8(field("top") + place)
    total = _lane_sum(k, x, field("n"), lambda v: emit_exp(k, v - top))
    k.store_f32(field("out") + place, total)


def emit_compact(k):
    """Emit the list of the elements of a row that are >= its threshold.  A chunk is one row.

    x: f32 (R, n)   threshold: f32 (R,)   -> values: f32, indices: i32, both (R, capacity), and
    counts: i64 (R,).  In order of index; all are counted, the first `capacity` are written.
    64 elements at once are passed over where none qualifies, which is nearly everywhere.
    """
    field = Fields(k, "x", "x_row_bytes", "n", "threshold", "values", "indices", "capacity",
                   "counts")
    x, n = field.row("x", k.chunk), field("n")
    threshold = k.broadcast_f32x8(field("threshold") + (k.chunk << 2))
    start = k.chunk * field("capacity") << 2
    values, indices = field("values") + start, field("indices") + start
    count, index = k.imm(0), k.imm(0)

    def look_at_each(n):
        with k.loop(n):
            v = k.load_f32(x)
            with k.if_(k.extract_i32(k.cmp_f32(v, ">=", threshold), 0), "!=", 0):
                with k.if_(count, "<", field("capacity")):
                    k.store_f32(values, v)
                    k.store_i32(indices, index)
                    k.add(values, 4, to=values)
                    k.add(indices, 4, to=indices)
                k.add(count, 1, to=count)
            k.add(x, 4, to=x)
            k.add(index, 1, to=index)

    with k.loop(n >> 6):
        top = k.const_f32x8(LOWEST)
        for i in range(8):
            k.max_f32(k.load_f32x8(x, 32 * i), top, to=top)
        found = k.hsum_i32(k.cmp_f32(top, ">=", threshold))
        with k.if_(k.extract_i32(found, 0), "!=", 0):
            look_at_each(k.imm(64))
        with k.else_():
            x += 256
            index += 64
    look_at_each(n & 63)
    k.store_i64(field("counts") + (k.chunk << 3), count)


# Encoders.  What 1.5 does to all sub-blocks at once is done here to eight of them: lane =
# sub-block, or lane = block where a block has one scale.  The weights are turned into columns
# in the scratch memory, vector i holding weight i of the eight; then the searches of 1.5 are
# followed step by step, so that the blocks are equal to the bit.  At the end the codes are
# turned back, and their bits put where the fields of the format say.
#
# Numbers that a format cannot hold are only noticed: `refused` is set, and whoever reads that
# has chapter 1 say why.

# The scratch memory: for each of three groups of eight lanes its columns and vectors; then codes
# in the order of the weights, the integers of scales and minimums, and floats and f16 in passing.
GROUP_COLUMNS = {"x": 0, "w": 4096, "wx": 8192, "codes": 12288}
GROUP_VECTORS = 16384
GROUP_BYTES = 18432
CODES_AT, SUB_SCALES_AT, SUB_MINS_AT, FLOATS_AT, F16_AT, BAD_AT = (
    3 * GROUP_BYTES + off for off in (0, 1024, 1056, 1088, 1152, 1184))
MOST_FINITE = f32_bits(F32_MAX)


class Column:
    """Vector i of each kind of column of a group: c["x"] loads one, c["codes"] = v stores it."""

    def __init__(self, k, pointer, i):
        self.k, self.pointer, self.i = k, pointer, i

    def __getitem__(self, name):
        return self.k.load_f32x8(self.pointer, GROUP_COLUMNS[name] + 32 * self.i)

    def __setitem__(self, name, v):
        self.k.store_f32x8(self.pointer, v, GROUP_COLUMNS[name] + 32 * self.i)


class Group:
    """Eight runs of n weights that are being encoded; base: register, its scratch memory."""

    def __init__(self, k, base, n):
        self.k, self.base, self.n, self.offs = k, base, n, {}

    def each(self, body):
        """Emit body(Column) for all n columns, in order."""
        pointer = self.k.copy(self.base)
        with self.k.loop(self.n // 4):
            for i in range(4):
                body(Column(self.k, pointer, i))
            pointer += 128

    def __getitem__(self, name):
        """Emit the load of a vector that was kept under this name."""
        return self.k.load_f32x8(self.base, self.offs[name])

    def __setitem__(self, name, v):
        off = self.offs.setdefault(name, GROUP_VECTORS + 32 * len(self.offs))
        self.k.store_f32x8(self.base, v, off)

    def load(self, start, steps, name, largest=None):
        """Turn eight runs of floats into columns; note numbers beyond the bits of `largest`.

        start: register, where the first run begins   steps: of each run, its distance from there
        """
        k = self.k
        pointer, source = self.base + GROUP_COLUMNS[name], k.copy(start)
        if largest is not None:
            bad, most = k.load_i32x8(k.scratch, BAD_AT), k.const_i32x8(largest)
            magnitude = k.const_i32x8(0x7FFFFFFF)
        with k.loop(self.n // 4):
            for at, v in EightRuns(k, source, steps).words(0).items():
                k.store_i32x8(pointer, v, 8 * at)
                if largest is not None:
                    k.or_(bad, k.cmpgt_i32(k.and_(v, magnitude), most), to=bad)
            source += 16
            pointer += 128
        if largest is not None:
            k.store_i32x8(k.scratch, bad, BAD_AT)


class Nearest:
    """A function that emits _nearest: the nearest whole numbers within two limits."""

    def __init__(self, k, low, high):
        self.k, self.low, self.high = k, k.const_f32x8(low), k.const_f32x8(high)
        self.shift = k.const_f32x8(12582912.0)

    def __call__(self, v):
        v = self.k.min_f32(self.high, self.k.max_f32(self.low, v))
        return (v + self.shift) - self.shift


def emit_where(k, mask, v):
    """Return v where the mask is set, elsewhere 0."""
    return k.and_(mask, v.i32).f32


def emit_abs(k, v):
    return k.and_(v.i32, k.const_i32x8(0x7FFFFFFF)).f32


def emit_start_sums(k, n):
    """Return n sums of nothing: -0.0, to which whatever is added stays as it is."""
    return [k.copy(k.const_f32x8(-0.0)) for _ in range(n)]


def emit_find_peak(k, group):
    """Return _peak of each lane's numbers."""
    most, peak = k.copy(k.const_i32x8(-1)), k.copy(k.zero_f32x8())

    def look(c):
        x = c["x"]
        size = emit_abs(k, x).i32
        above = k.cmpgt_i32(size, most)
        k.select(above, size, most, to=most)
        k.select(above, x, peak, to=peak)
    group.each(look)
    return peak


@functools.lru_cache(maxsize=None)
def tries_table(tries):
    """Return what a search tries, to be read by a kernel; kept: the kernel knows its address."""
    return array("f", tries)


def emit_each_try(k, tries, body):
    """Emit body(number in every lane) for each of the tries."""
    if len(tries):
        pointer = k.imm(tries_table(tuple(tries)).buffer_info()[0])
        with k.loop(len(tries)):
            body(k.broadcast_f32x8(pointer))
            pointer += 4


def emit_search_minimum(k, group, top, tries, magnitude):
    """Emit _search_minimum: keep "scale" and "low"."""
    low, high = k.copy(k.const_f32x8(math.inf)), k.copy(k.const_f32x8(-math.inf))
    sum_w, sum_x = emit_start_sums(k, 2)

    def look(c):
        x, w = c["x"], c["w"]
        k.min_f32(x, low, to=low)
        k.max_f32(x, high, to=high)
        k.add_f32(sum_w, w, to=sum_w)
        k.add_f32(sum_x, w * x, to=sum_x)
    group.each(look)
    low = k.min_f32(k.zero_f32x8(), low)
    span = high - low
    live = k.cmp_f32(span, ">=", k.const_f32x8(_NOTHING))
    group["low"], group["high"], group["sum w"], group["sum x"] = low, high, sum_w, sum_x
    group["live"], group["scale"] = live.f32, emit_where(k, live, span / k.const_f32x8(top))

    def spread(numerator, sums):
        """Emit the codes for a scale of span / numerator, and the sums over them."""
        low = group["low"]
        span = group["high"] - low
        live = k.and_(group["live"].i32, k.cmp_f32(span, "!=", k.zero_f32x8()))
        inverse, nearest = emit_where(k, live, numerator / span), Nearest(k, 0.0, top)

        def each(c):
            x = c["x"]
            code = nearest(inverse * (x - low))
            c["codes"] = code
            if sums:
                w_code = c["w"] * code
                for total, v in zip(sums, (w_code, w_code * code, w_code * x)):
                    k.add_f32(total, v, to=total)
        group.each(each)

    def loss(scale, low):
        """Return what the codes lose with this scale and minimum."""
        (total,) = emit_start_sums(k, 1)

        def each(c):
            error = (scale * c["codes"] + low) - c["x"]
            error = emit_abs(k, error) if magnitude else error * error
            k.add_f32(total, c["w"] * error, to=total)
        group.each(each)
        return total

    spread(k.const_f32x8(top), ())
    group["best"] = loss(group["scale"], group["low"])

    def attempt(numerator):
        sums = emit_start_sums(k, 3)
        spread(numerator, sums)
        sum_c, sum_cc, sum_cx = sums
        sum_w, sum_x, zero = group["sum w"], group["sum x"], k.zero_f32x8()
        determinant = sum_w * sum_cc - sum_c * sum_c
        ok = k.and_(group["live"].i32, k.cmp_f32(determinant, ">", zero))
        new = (sum_w * sum_cx - sum_x * sum_c) / determinant
        new_low = (sum_cc * sum_x - sum_c * sum_cx) / determinant
        above = k.cmp_f32(new_low, ">", zero)
        new = k.select(above.f32, sum_cx / sum_cc, new)
        new_low = k.andnot(above.f32, new_low)
        cost, best = loss(new, new_low), group["best"]
        better = k.and_(ok, k.cmp_f32(cost, "<", best)).f32
        group["best"] = k.select(better, cost, best)
        group["scale"] = k.select(better, new, group["scale"])
        group["low"] = k.select(better, new_low, group["low"])
    emit_each_try(k, tries, attempt)


def emit_total(k, group, column, name):
    """Emit _total of the columns; keep it."""
    (total,) = emit_start_sums(k, 1)

    def each(c):
        k.add_f32(total, c[column], to=total)
    group.each(each)
    group[name] = total


def emit_w_times_x(group):
    """Emit the column wx of each column."""
    def each(c):
        c["wx"] = c["w"] * c["x"]
    group.each(each)


def emit_search_scale(k, group, tries, nearest_of):
    """Emit _search_scale: keep "scale".

    nearest_of(k): returns a function that emits the codes of a column
    """
    emit_w_times_x(group)
    peak = emit_find_peak(k, group)
    group["peak"] = peak
    group["live"] = k.cmp_f32(emit_abs(k, peak), ">=", k.const_f32x8(_NOTHING)).f32

    def attempt(numerator, first=False):
        inverse = emit_where(k, group["live"].i32, numerator / group["peak"])
        nearest, (sum_cx, sum_cc) = nearest_of(k), emit_start_sums(k, 2)

        def each(c):
            code = nearest(inverse * c["x"])
            k.add_f32(sum_cx, c["wx"] * code, to=sum_cx)
            k.add_f32(sum_cc, (c["w"] * code) * code, to=sum_cc)
        group.each(each)
        some = k.cmp_f32(sum_cc, ">", k.zero_f32x8())
        new = emit_where(k, some, sum_cx / sum_cc)
        if first:
            group["scale"], group["best"] = new, new * sum_cx
            return
        best = group["best"]
        better = k.and_(some, k.cmp_f32(sum_cx * sum_cx, ">", best * sum_cc)).f32
        group["scale"] = k.select(better, new, group["scale"])
        group["best"] = k.select(better, new * sum_cx, best)
    attempt(k.const_f32x8(tries[0]), first=True)
    emit_each_try(k, tries[1:], attempt)


def emit_search_q6(k, group):
    emit_search_scale(k, group, _Q6_TRIES, lambda k: Nearest(k, -32, 31))


def emit_search_q3(k, group):
    """Emit _search_q3: keep "scale"."""
    emit_w_times_x(group)
    peak = emit_find_peak(k, group)
    live = k.cmp_f32(emit_abs(k, peak), ">=", k.const_f32x8(_NOTHING))
    inverse = emit_where(k, live, k.const_f32x8(-4.0) / peak)
    nearest, (sum_cx, sum_cc) = Nearest(k, -4, 3), emit_start_sums(k, 2)

    def begin(c):
        code = nearest(inverse * c["x"])
        c["codes"] = code
        k.add_f32(sum_cx, c["wx"] * code, to=sum_cx)
        k.add_f32(sum_cc, (c["w"] * code) * code, to=sum_cc)
    group.each(begin)

    def improve(c):
        w, wx, code = c["w"], c["wx"], c["codes"]
        rest_cx, rest_cc = sum_cx - wx * code, sum_cc - (w * code) * code
        ok = k.cmp_f32(rest_cx, ">", k.zero_f32x8())
        divisor = k.select(ok.f32, rest_cx, k.const_f32x8(math.inf))
        new = nearest((c["x"] * rest_cc) / divisor)
        cx, cc = rest_cx + wx * new, rest_cc + (w * new) * new
        gain = k.cmp_f32((cx * cx) * sum_cc, ">", (sum_cx * sum_cx) * cc)
        better = k.and_(k.and_(ok, k.cmp_f32(cc, ">", k.zero_f32x8())), gain).f32
        c["codes"] = k.select(better, new, code)
        k.select(better, cx, sum_cx, to=sum_cx)
        k.select(better, cc, sum_cc, to=sum_cc)
    with k.loop(5):
        group.each(improve)
    some = k.cmp_f32(sum_cc, ">", k.zero_f32x8())
    group["scale"] = emit_where(k, some, sum_cx / sum_cc)


def emit_weights(k, groups, format, plain):
    """Emit _weights: what the error of each weight counts becomes the column w.

    plain: function of (x, _) that returns it; None: w holds the importance, to be completed
    """
    if plain:
        for group in groups:
            def each(c):
                c["w"] = plain(group, c["x"])
            group.each(each)
        return
    for g, group in enumerate(groups):
        (total,) = emit_start_sums(k, 1)

        def add_square(c):
            x = c["x"]
            k.add_f32(total, x * x, to=total)
        group.each(add_square)
        k.store_f32x8(k.scratch, total, FLOATS_AT + 32 * g)
    if format.scales:                           # one mean for all the sub-blocks
        total = k.load_f32(k.scratch, FLOATS_AT)
        for s in range(1, 8 * len(groups)):
            total = total + k.load_f32(k.scratch, FLOATS_AT + 4 * s)
        total = k.broadcast_lane(total, 0)
    mean = total * k.const_f32x8(2 / format.block_len)
    for group in groups:
        def complete(c):
            x = c["x"]
            c["w"] = c["w"] * k.sqrt_f32(x * x + mean)
        group.each(complete)


def emit_as_f16(k, v):
    """Return v rounded to f16, which stays in the scratch; note those that become infinite."""
    k.store_f16x8(k.scratch, v, F16_AT)
    v = k.load_f16x8(k.scratch, F16_AT)
    bad = k.cmpgt_i32(emit_abs(k, v).i32, k.const_i32x8(MOST_FINITE))
    k.store_i32x8(k.scratch, k.or_(k.load_i32x8(k.scratch, BAD_AT), bad), BAD_AT)
    return v


def emit_second_level(k, groups, name, weighted, top, lowest, highest, to, bias=0):
    """Emit _second_level for the kept vectors `name`: replace each by its integer * d.

    weighted: whether "sum w" says how much each counts   to: where the integers go, plus bias,
    bytes in the scratch.  d stays at F16_AT.  The numbers of eight lanes become as many columns,
    alike in every lane.
    """
    second = Group(k, k.scratch + 2 * GROUP_BYTES, 8 * len(groups))
    for kind, kept in (("x", name), ("w", "sum w"))[:1 + weighted]:
        for g, group in enumerate(groups):
            k.store_f32x8(k.scratch, group[kept], FLOATS_AT + 32 * g)
        for i in range(second.n):
            Column(k, second.base, i)[kind] = k.broadcast_f32x8(k.scratch, FLOATS_AT + 4 * i)
    if weighted:
        emit_search_scale(k, second, _evenly(top - 0.9, 0.1, 18),
                          lambda k: Nearest(k, lowest, highest))
        d = second["scale"]
    else:
        peak = emit_find_peak(k, second)
        live = k.cmp_f32(emit_abs(k, peak), ">=", k.const_f32x8(_NOTHING))
        d = emit_where(k, live, peak / k.const_f32x8(top))
    inverse, nearest = emit_inverse(k, d), Nearest(k, lowest, highest)
    d = emit_as_f16(k, d)
    for g, group in enumerate(groups):
        v = nearest(inverse * group[name])
        group[name] = d * v
        k.store_i32_as_i8(k.scratch, k.f32_to_i32(v) + k.const_i32x8(bias), to + 8 * g)


def emit_inverse(k, d):
    """Return _inverse(d)."""
    inverse = k.const_f32x8(1.0) / d
    finite = k.cmpgt_i32(k.const_i32x8(MOST_FINITE + 1), emit_abs(k, inverse).i32)
    return emit_where(k, finite, inverse)


def emit_or_infinite(k, v):
    """Return v, or infinity where it is 0: then whatever is divided by it gets code 0."""
    return k.select(k.cmp_f32(v, "==", k.zero_f32x8()).f32, k.const_f32x8(math.inf), v)


def emit_turn_back(k, group, first, run, bias=0):
    """Emit the codes of a group, plus bias, as bytes in the order of the weights.

    run: bytes from one lane's codes to the next one's   first: of the scratch's, for lane 0
    """
    pointer, to = k.copy(group.base), k.scratch + first
    byte, bias = k.const_i32x8(255), k.const_i32x8(bias) if bias else None
    with k.loop(group.n // 16):
        words = []
        for j in range(4):
            word = None
            for b in range(4):
                v = k.f32_to_i32(Column(k, pointer, 4 * j + b)["codes"])
                v = v + bias if bias else v
                v = k.and_(v, byte) if b < 3 else v
                word = k.or_(word, v << (8 * b)) if b else v
            words.append(word)
        for lane, row in enumerate(emit_turn(k, words)):
            k.store_i8x16(to, row, lane * run)
            k.store_i8x16(to, k.halves(row, row, 1, 1), (lane + 4) * run)
        pointer += 512
        to += 16


def emit_pack(k, format, codes_at, out, disp):
    """Emit _Field.write of all fields, for one block at out + disp.

    codes_at: of the scratch; its scales and minimums are at SUB_SCALES_AT and SUB_MINS_AT
    """
    places = {}                         # (byte, how many): [(of the scratch, emit_bits's numbers)]
    for field, source in ((format.codes, codes_at), (format.scales, SUB_SCALES_AT),
                          (format.mins, SUB_MINS_AT)):
        for runs, bit in ((field.runs, 0), (field.upper, field.upper_bit)) if field else ():
            first = source
            for at, n, shift, width in runs:
                if width:
                    places.setdefault((at, n), []).append((first, bit, width, shift))
                first += n
    for (at, n), parts in places.items():
        size = next(size for size in (32, 16, 4) if n % size == 0)
        load, store = {32: (k.load_i32x8, k.store_i32x8), 4: (k.broadcast_i32x8, None),
                       16: (k.load_i8x16, k.store_i8x16)}[size]
        for i in range(0, n, size):
            v = None
            for first, bit, width, shift in parts:
                part = emit_bits(k, load(k.scratch, first + i).i32, bit, width, shift)
                v = part if v is None else k.or_(v, part)
            if store:
                store(out, v, disp + at + i)
            else:
                k.store_i32(out, k.extract_i32(v, 0), disp + at + i)
    if format.codes.spread:             # four codes' fifth bits meet above bit 28, then all 32
        v = k.and_(k.load_i32x8(k.scratch, codes_at) >> 4, k.const_i32x8(0x01010101))
        v = k.shr_i32(v * k.const_i32x8(sum(1 << s for s in (28, 21, 14, 7))), 28)
        v = k.hsum_i32(v * k.const_i32x8([1 << 4 * j for j in range(8)]))
        k.store_i32(out, k.extract_i32(v, 0), disp + format.codes.spread[0])


# One function for each kind of encoder of 1.5: it makes the codes of the groups, and returns what
# is added to them where they are stored.  d and m of blocks with one scale are given to keep(off,
# v), the others stored where `out` points.

def emit_k_minimum(k, groups, format, weighted, out, top, tries, limit, magnitude):
    def plain(group, x):
        return emit_abs(k, x) if magnitude else group["mean"] + emit_abs(k, x)
    if not magnitude and not weighted:
        for group in groups:
            (total,) = emit_start_sums(k, 1)

            def add_square(c):
                x = c["x"]
                k.add_f32(total, x * x, to=total)
            group.each(add_square)
            group["mean"] = k.sqrt_f32(total * k.const_f32x8(1 / format.sub_len))
    emit_weights(k, groups, format, None if weighted else plain)
    for group in groups:
        emit_search_minimum(k, group, top, tries, magnitude)
        group["low"] = k.xor(group["low"], k.const_f32x8(-0.0))
    for name, off, to in (("scale", format.d_off, SUB_SCALES_AT),
                          ("low", format.m_off, SUB_MINS_AT)):
        for group in groups:
            group[name] = k.max_f32(k.zero_f32x8(), group[name])
        emit_second_level(k, groups, name, weighted, limit, 0, limit, to)
        k.store_i16(out, k.load_u16(k.scratch, F16_AT), off)
    for group in groups:
        d, m, nearest = emit_or_infinite(k, group["scale"]), group["low"], Nearest(k, 0, top)

        def each(c):
            c["codes"] = nearest((c["x"] + m) / d)
        group.each(each)
    return 0


def emit_k_scale(k, groups, format, weighted, out, search, limit, _):
    low, bias = -format.codes.bias, format.codes.bias
    emit_weights(k, groups, format, None if weighted else lambda group, x: x * x)
    for group in groups:
        {_search_q3: emit_search_q3, _search_q6: emit_search_q6}[search](k, group)
        if weighted:
            emit_total(k, group, "w", "sum w")
    emit_second_level(k, groups, "scale", weighted, -limit, -limit, limit - 1, SUB_SCALES_AT,
                      format.scales.bias)
    k.store_i16(out, k.load_u16(k.scratch, F16_AT), format.d_off)
    for group in groups:
        d, nearest = emit_or_infinite(k, group["scale"]), Nearest(k, low, bias - 1)

        def each(c):
            c["codes"] = nearest(c["x"] / d)
        group.each(each)
    return bias


def emit_around_zero(k, group, format, weighted, keep):
    top = format.codes.bias
    d = emit_find_peak(k, group) / k.const_f32x8(-top)
    keep(format.d_off, d)
    inverse, half = emit_inverse(k, d), k.const_f32x8(top + 0.5)
    most = k.const_f32x8(2 * top - 1)

    def each(c):
        c["codes"] = k.min_f32(k.floor_f32(c["x"] * inverse + half), most)
    group.each(each)
    return 0


def emit_above_minimum(k, group, format, weighted, keep):
    top = k.const_f32x8(31 if format.codes.spread else 15)
    m, high = k.copy(k.const_f32x8(math.inf)), k.copy(k.const_f32x8(-math.inf))

    def look(c):
        x = c["x"]
        k.min_f32(x, m, to=m)
        k.max_f32(x, high, to=high)
    group.each(look)
    d = (high - m) / top
    keep(format.d_off, d)
    keep(format.m_off, m)
    inverse, half = emit_inverse(k, d), k.const_f32x8(0.5)

    def each(c):
        c["codes"] = k.min_f32(k.floor_f32((c["x"] - m) * inverse + half), top)
    group.each(each)
    return 0


def emit_q8_0(k, group, format, weighted, keep):
    d = emit_abs(k, emit_find_peak(k, group)) / k.const_f32x8(127)
    keep(format.d_off, d)
    inverse, half, minus = emit_inverse(k, d), k.const_f32x8(0.5), k.const_f32x8(-0.0)

    def each(c):                                # _round_away
        v = c["x"] * inverse
        size = emit_abs(k, v)
        whole = k.floor_f32(size)
        up = k.cmp_f32(size - whole, ">=", half)
        whole = whole + emit_where(k, up, k.const_f32x8(1.0))
        c["codes"] = k.or_(whole.i32, k.and_(v, minus).i32).f32
    group.each(each)
    return 0


def emit_rank(k, v, limits):
    """Return how many of the limits are not above v."""
    rank = k.zero_i32x8()
    for limit in limits:
        rank = rank - k.cmp_f32(v, ">=", k.const_f32x8(limit))
    return k.i32_to_f32(rank)


def emit_nf4(k, group, format, weighted, keep):
    d = emit_abs(k, emit_find_peak(k, group) / k.const_f32x8(127))
    keep(format.d_off, d)
    inverse = emit_inverse(k, d)

    limits = [(a + b) / 2 for a, b in zip(_NF4_BOOK, _NF4_BOOK[1:])]

    def each(c):
        c["codes"] = emit_rank(k, c["x"] * inverse, limits)
    group.each(each)
    return 0


def emit_iq4_nl(k, group, format, weighted, keep):
    def nearest_of(k):
        def nearest(v):                         # the entry of the codebook
            code = k.const_f32x8(_IQ4_BOOK[0])
            for limit, entry in zip(_IQ4_LIMITS, _IQ4_BOOK[1:]):
                above = k.cmp_f32(v, ">=", k.const_f32x8(limit))
                code = k.select(above.f32, k.const_f32x8(entry), code)
            return code
        return nearest
    emit_weights(k, [group], format, None if weighted else lambda group, x: x * x)
    emit_search_scale(k, group, _IQ4_TRIES, nearest_of)
    keep(format.d_off, group["scale"])
    inverse = emit_inverse(k, group["scale"])

    def each(c):
        c["codes"] = emit_rank(k, c["x"] * inverse, _IQ4_LIMITS)
    group.each(each)
    return 0


def emit_int(k, group, format, weighted, keep):
    bits = 8 * (format.block_bytes - 4) // format.block_len
    top, lowest = 2 ** bits - 1, -128 if bits == 8 else 0
    emit_weights(k, [group], format, None if weighted else lambda group, x: k.const_f32x8(1.0))
    emit_search_minimum(k, group, top, _int_tries(bits), False)
    m = group["low"]
    if bits == 8:
        m = m + k.const_f32x8(128.0) * group["scale"]
    group["low"] = keep(format.m_off, m)
    d = emit_or_infinite(k, keep(format.d_off, group["scale"]))
    m, nearest = group["low"], Nearest(k, lowest, lowest + top)

    def each(c):
        c["codes"] = nearest((c["x"] - m) / d)
    group.each(each)
    return 0


EMIT_ENCODERS = {_encode_k_minimum: emit_k_minimum, _encode_k_scale: emit_k_scale,
                 _encode_around_zero: emit_around_zero, _encode_q8_0: emit_q8_0,
                 _encode_above_minimum: emit_above_minimum, _encode_nf4: emit_nf4,
                 _encode_int: emit_int, _encode_iq4_nl: emit_iq4_nl}


def encoder_of(format):
    """Return (emit function, what else it takes), or None where only chapter 1 encodes."""
    encoder = _ENCODERS.get(format.name)
    more = getattr(encoder, "args", ())
    if more and more[0] is _search_iq4:
        return None
    emit = EMIT_ENCODERS.get(getattr(encoder, "func", encoder))
    return (emit, more) if emit else None


def has_encoder(format, n):
    """Whether emit_encode takes rows of n weights."""
    if format.name in ("F16", "BF16"):
        return n % 8 == 0
    return encoder_of(format) is not None and n % format.block_len == 0


def emit_encode(k, format, n, errors):
    """Emit format.encode for row `chunk` of x, (n_rows, n).

    errors: "alike", or "weighted" by importance, f32 (n,)   out: the blocks
    refused: i64, set to 1 if the row has a number that the format cannot hold
    """
    field = Fields(k, "x", "x_row_bytes", "out", "out_row_bytes", "importance", "refused")
    k.store_i32x8(k.scratch, k.zero_i32x8(), BAD_AT)
    x, out = field.row("x", k.chunk), field.row("out", k.chunk)
    if format.sub_len is None:
        emit_encode_floats(k, format, n, x, out)
    else:
        emit_encode_blocks(k, format, n, errors == "weighted", x, out, field)
    bad = k.hsum_i32(k.load_i32x8(k.scratch, BAD_AT))
    with k.if_(k.extract_i32(bad, 0), "!=", 0):
        k.store_i64(field("refused"), k.imm(1))


def emit_encode_floats(k, format, n, x, out):
    """Emit F16 and BF16: see emit_encode."""
    bad, most = k.copy(k.zero_i32x8()), k.const_i32x8(MOST_FINITE)
    if format.name == "F16":
        with k.loop(n // 8):
            k.store_f16x8(out, k.load_f32x8(x))
            k.or_(bad, k.cmpgt_i32(emit_abs(k, k.load_f16x8(out)).i32, most), to=bad)
            x += 32
            out += 16
    else:
        half, one = k.const_i32x8(0x7FFF), k.const_i32x8(1)
        with k.loop(n // 8):
            v = k.load_i32x8(x)
            v = (v + half) + k.and_(k.shr_i32(v, 16), one)
            k.or_(bad, k.cmpgt_i32(emit_abs(k, v.f32).i32, most), to=bad)
            halves = k.shuffle_i8(k.shr_i32(v, 16), k.const_i8x32(LOW_THEN_HIGH))
            k.store_i8x16(out, k.unpack_lo_i64(halves, k.halves(halves, halves, 1, 0)))
            x += 32
            out += 16
    k.store_i32x8(k.scratch, bad, BAD_AT)


def emit_encode_blocks(k, format, n, weighted, x, out, field):
    """Emit the block formats: see emit_encode.

    With sub-blocks, a block at a time; else eight, the last eight beginning early enough to be
    eight, so that some may be done twice; and where there are fewer, the last one several times.
    """
    emit, more = encoder_of(format)
    searches = emit in (emit_k_minimum, emit_k_scale, emit_int, emit_iq4_nl)
    largest = f32_bits(2.0 ** 28) if searches else MOST_FINITE
    run = format.sub_len if format.scales else format.block_len
    n_blocks = n // format.block_len
    if format.scales:
        groups = [Group(k, k.scratch + g * GROUP_BYTES, run)
                  for g in range(format.block_len // run // 8)]
        steps, n_units = [4 * run * lane for lane in range(8)], n_blocks
    else:
        groups = [Group(k, k.copy(k.scratch), run)]
        lanes, n_units = [min(lane, n_blocks - 1) for lane in range(8)], -(-n_blocks // 8)
        steps = [4 * run * lane for lane in lanes]
    with k.loop(n_units) as left:
        unit = k.imm(n_units) - left
        block = unit if format.scales else k.min(unit << 3, max(n_blocks - 8, 0))
        start, to = block * (4 * format.block_len), out + block * format.block_bytes
        for g, group in enumerate(groups):
            group.load(x + start + 32 * run * g, steps, "x", largest)
            if weighted and searches:
                group.load(field("importance") + start + 32 * run * g, steps, "w")
        if format.scales:
            bias = emit(k, groups, format, weighted, to, *more)
            for g, group in enumerate(groups):
                emit_turn_back(k, group, CODES_AT + 8 * run * g, run, bias)
            emit_pack(k, format, CODES_AT, to, 0)
        else:
            def keep(off, v):
                v = emit_as_f16(k, v)
                for lane, block in enumerate(lanes):
                    k.store_i16(to, k.load_u16(k.scratch, F16_AT + 2 * lane),
                                block * format.block_bytes + off)
                return v
            emit(k, groups[0], format, weighted, keep, *more)
            emit_turn_back(k, groups[0], CODES_AT, run)
            for lane, block in enumerate(lanes):
                emit_pack(k, format, CODES_AT + run * lane, to, block * format.block_bytes)


# ---------------------------------------------------------------------------------------
# 16. Attention kernels
#
# The cache, seen from machine code.  A row brings the address of its sequence's page table
# (i32 page numbers) and its position; chapter 5 defines where a vector lies:
#
#   arena + page * page_bytes + layer_off
#         + ((which * n_kv_heads + head) * page_size + slot) * bytes of a vector
#
# These bytes are read and written exactly: next to a vector is another one's.


def _copy_bytes(k, to, to_disp, source, disp, n_bytes):
    """Emit the copy of a constant, small number of bytes, through integer registers."""
    for size in (8, 4, 2):
        while n_bytes >= size:
            load, store = getattr(k, f"load_i{8 * size}"), getattr(k, f"store_i{8 * size}")
            store(to, load(source, disp), to_disp)
            disp, to_disp, n_bytes = disp + size, to_disp + size, n_bytes - size


HALF_BELOW = f32(0.49999997)                # the float32 just below 1/2


def emit_q8_0_block(k, block, to):
    """Emit _write_q8_0 of 32 numbers, four vectors, into the 34 bytes at `to`.

    The peak is found among integers, as in emit_quantize_block, so one NaN makes the scale NaN
    and is seen by whoever reads the block.  Halves round away from zero: floor(|x| + HALF_BELOW),
    since to 0.49999997 a whole half would add up to 1.  The store of the scale writes 16 bytes;
    the codes then come over all but its first two.
    """
    magnitude = k.const_i32x8(0x7FFFFFFF).f32
    a, b, c, d = [(v & magnitude).i32 for v in block]
    peak = k.hmax_u32(k.max_u32(k.max_u32(a, b), k.max_u32(c, d))).f32
    scale = peak / k.const_f32x8(127.0)
    inverse = k.const_f32x8(1.0) / scale
    inverse &= k.cmp_f32(inverse, "<=", k.const_f32x8(F32_MAX)).f32     # _inverse
    k.store_f16x8(to, scale)
    for i, v in enumerate(block):
        v = v * inverse
        code = k.floor_f32((v & magnitude) + k.const_f32x8(HALF_BELOW)) | k.andnot(magnitude, v)
        k.store_i32_as_i8(to, k.f32_to_i32(code), 2 + 8 * i)


def emit_kv_store(k, kv_type, head_dim):
    """Emit PagePool.write for one row: round its k and v to kv_type, and store them.

    k, v: f32 (R, n_kv_heads * head_dim)   tables: i64 (R,), addresses   positions: i32 (R,)
    scratch: 32 bytes.  A chunk is one row.  The clamp keeps a NaN: a comparison with it fails,
    and then min and max return their second operand.
    """
    field = Fields(k, "k", "k_row_bytes", "v", "v_row_bytes", "tables", "positions", "arena",
                   "page_bytes", "layer_off", "page_size", "n_kv_heads")
    format, vector_bytes = KV_TYPES[kv_type].format, kv_vector_bytes(kv_type, head_dim)
    pos, page_size = k.load_i32(field("positions") + (k.chunk << 2)), field("page_size")
    table = k.load_i64(field("tables") + (k.chunk << 3))
    page = k.load_i32(table + (k.div(pos, page_size) << 2))
    to = field("arena") + page * field("page_bytes") + field("layer_off")
    to += k.rem(pos, page_size) * vector_bytes
    step = (page_size - 1) * vector_bytes               # from a vector's end to the next head's
    if kv_type != "f32":
        limit = F16_MAX if kv_type == "f16" else Q8_0_MAX
        top, bottom = k.const_f32x8(limit), k.const_f32x8(-limit)

    def convert(vectors, pointer):
        if kv_type == "f32":
            k.store_f32x8(pointer, *vectors)
            return
        vectors = [k.min_f32(top, k.max_f32(bottom, _finite(v))) for v in vectors]
        if kv_type == "f16":
            k.store_f16x8(pointer, *vectors)
        else:
            emit_q8_0_block(k, vectors, pointer)

    run = max(8, format.block_len)                      # numbers converted at a time
    rest = head_dim % run
    for name in ("k", "v"):
        x = field.row(name, k.chunk)
        with k.loop(field("n_kv_heads")):
            with k.loop(head_dim // run):
                convert([k.load_f32x8(x, disp) for disp in range(0, 4 * run, 32)], to)
                x += 4 * run
                to += format.n_bytes(run)
            if rest:
                convert([k.load_f32_n(x, k.imm(rest))], k.scratch)
                _copy_bytes(k, to, 0, k.scratch, 0, format.n_bytes(rest))
                x += 4 * rest
                to += format.n_bytes(rest)
            to += step


# Attention.  A unit of work is a few rows times a few query heads that share one kv head;
# each (row, head) is a pair.  Rows of the unit that lie next to each other and belong to one
# sequence form a run.  For a run, chunk after chunk of 64 positions:
#
#   load     keys and values come from the pages to the scratch, as float32: one after another,
#            whatever the pages' size and type, short vectors filled up with zeros
#   scores   of each pair that sees some of the chunk           \
#   softmax  p = exp(score - m) in their place, and their sum    }  attend_chunk
#   values   the sum of p * value; then all is merged           /   merge_chunks
#            into the state of the pair
#
# The steps are methods of AttentionKernel, in the order in which emit_attention takes them:
# step by step for all pairs, and not pair by pair: so the nearest cache has to hold the keys
# or the values, not both.  Several pairs are taken at once, so that a key or value, once
# loaded, serves them all.  The positions of a run are those that any of its rows sees; one
# that a pair does not see has score UNSEEN and p = 0, and adds 0 * value to o, which changes
# nothing (o is never -0.0, values are finite).  Where the reference refuses a score, because it
# is not finite, p is not a number, and so are l and the row that comes out: the logits tell.
#
# A state that has seen nothing is m = LOWEST, l = 0, o = 0: merging a chunk into it gives that
# chunk's own m, l and o, to the bit, since exp(0) = 1 and 0 * exp(-87) + y = y.
#
# A thread gets one kv head at least, so with three kv heads and two threads, one does two heads
# while the other waits.  Where the text is long, the chunks of a run are dealt out in `parts`
# as well: part i takes chunks i, i + parts and so on, and leaves the m, l and o of each chunk
# in that chunk's own slot; emit_attention_merge then merges the slots in order of position.  It
# is the same arithmetic in the same order, so the bits do not tell how many parts there were.
# Source: Dao et al. (2023), "Flash-Decoding for long-context inference".

ATTENTION_PAIRS = 64                        # rows * heads of a unit, at most
UNSEEN = -math.inf                          # no score: those are finite or not a number


class AttentionScratch:
    """What lies where in the scratch of attention: byte offsets, in the order of the chapter.

    row_bytes: of a key or value, padded to whole vectors
    frame: whole numbers that would otherwise occupy registers   queries, sums: of eight pairs
    pairs: for each pair that sees the chunk: address of q, last unseen position before, first
    after, address of the state.  The offsets m .. o are within a state; m, l: in eight lanes;
    top, total: largest score and sum of p of the chunk, lane by lane.
    """

    FRAME = ("head", "row", "n_rows", "table", "lowest", "highest", "back", "k_addr", "v_step",
             "pos", "last", "n_pairs", "part")
    SLOT_M, SLOT_L, SLOT_O = 0, 32, 64
    Q, BEFORE, AFTER, STATE, PAIR_BYTES = 0, 8, 16, 24, 32

    def __init__(self, head_dim):
        self.n_vectors = -(-head_dim // 8)
        self.row_bytes = 32 * self.n_vectors
        self.keys = 0
        self.values = self.keys + CHUNK * self.row_bytes
        self.spare = self.values + CHUNK * self.row_bytes
        self.frame = {name: self.spare + 32 + 8 * i for i, name in enumerate(self.FRAME)}
        self.queries = self.spare + 32 + 8 * len(self.FRAME)
        self.sums = self.queries + 8 * self.row_bytes
        self.pairs = self.sums + 4 * 8 * 32
        self.states = self.pairs + ATTENTION_PAIRS * self.PAIR_BYTES
        self.m, self.l, self.top, self.total, self.scores = 0, 32, 64, 96, 128
        self.o = self.scores + 4 * CHUNK
        self.state_bytes = self.o + self.row_bytes
        self.slot_bytes = self.SLOT_O + self.row_bytes
        self.n_bytes = self.states + ATTENTION_PAIRS * self.state_bytes


def _load_vectors(k, kv_type, source, n):
    """Return an iterator that emits the load of one of n vectors at a time, as float32.

    In q8_0 n is 4, a block: code i is the byte 2 + i, and times d it is exact.
    """
    if kv_type == "q8_0":
        d = k.f16_to_f32(k.broadcast_i16x16(source))
        return (k.i32_to_f32(k.widen_i8x8(source, 2 + 8 * i)) * d for i in range(n))
    if kv_type == "f16":
        return (k.load_f16x8(source, 16 * i) for i in range(n))
    return (k.load_f32x8(source, 32 * i) for i in range(n))


def _transpose(k, v):
    """Emit the eight vectors whose vector i, lane j is vector j, lane i of v."""
    pairs = [(k.unpack_lo_i32(a, b), k.unpack_hi_i32(a, b)) for a, b in zip(v[::2], v[1::2])]
    fours = [[unpack(x, y) for x, y in zip(a, b) for unpack in (k.unpack_lo_i64, k.unpack_hi_i64)]
             for a, b in zip(pairs[::2], pairs[1::2])]
    return [k.halves(a, b, half, 2 + half).f32 for half in (0, 1) for a, b in zip(*fours)]


def _eight_sums(k, v):
    """Emit the vector whose lane i is tree_sum of the lanes of v[i]: three levels of pairs."""
    low = k.hadd_f32(k.hadd_f32(v[0], v[1]), k.hadd_f32(v[2], v[3]))
    high = k.hadd_f32(k.hadd_f32(v[4], v[5]), k.hadd_f32(v[6], v[7]))
    return k.halves(low, high, 0, 2) + k.halves(low, high, 1, 3)


class AttentionKernel:
    """A kernel of attention while it is built; each step is a method that emits it.

    k: Builder   field: Fields   at: AttentionScratch   cap: whether scores are capped
    The numbers of the frame are read and written as self["pos"]: a load, or a store.
    """

    def __init__(self, k, field, head_dim, kv_type=None, cap=False):
        self.k, self.field, self.at = k, field, AttentionScratch(head_dim)
        self.head_dim, self.kv_type, self.cap = head_dim, kv_type, cap

    def __getitem__(self, name):
        return self.k.load_i64(self.k.scratch, self.at.frame[name])

    def __setitem__(self, name, value):
        self.k.store_i64(self.k.scratch, value, self.at.frame[name])

    def query_of(self, pair, i):
        """Emit the load of the address of q of the pair i places behind `pair`."""
        return self.k.load_i64(pair, self.at.pairs + self.at.PAIR_BYTES * i + self.at.Q)

    def state_of(self, pair, i):
        """Emit the load of the address of its state."""
        return self.k.load_i64(pair, self.at.pairs + self.at.PAIR_BYTES * i + self.at.STATE)

    def positions_back(self):
        """Emit how many positions a row looks back, itself included: the window, or all."""
        k, field = self.k, self.field
        back = field("window")
        with k.if_(back, "==", 0):
            k.mov(back, 2**40)
        return back

    def begin_unit(self):
        """Emit what is the same for the whole unit; return the register of the number of its rows.

        back: positions a row looks back   k_addr: where the kv head's keys begin in page 0
        v_step: from a key to its value
        """
        k, at, field = self.k, self.at, self.field
        blocks = k.div(field("n_heads"), field("heads"))
        self["part"] = k.rem(k.chunk, field("parts"))
        unit = k.div(k.chunk, field("parts"))
        row, head = k.div(unit, blocks) * field("rows"), k.rem(unit, blocks) * field("heads")
        self["row"], self["head"] = row, head
        self["back"] = self.positions_back()
        kv_head = k.div(head, k.div(field("n_heads"), field("n_kv_heads")))
        plane = field("page_size") * kv_vector_bytes(self.kv_type, self.head_dim)
        self["k_addr"] = field("arena") + field("layer_off") + kv_head * plane
        self["v_step"] = field("n_kv_heads") * plane
        k.store_f32x8(k.scratch, k.zero_f32x8(), at.spare)
        return k.min(field("n_rows") - row, field("rows"))

    def begin_run(self, rows_left):
        """Emit the search for the rows from `row` that share a table, and clear their states.

        n_rows: how many   lowest, highest: the positions that one or another of them sees
        """
        k, at, field = self.k, self.at, self.field
        row = self["row"]
        tables, positions = field("tables") + (row << 3), field("positions") + (row << 2)
        table, n_rows = k.load_i64(tables), k.imm(0)
        lowest, highest, left = k.imm(2**40), k.imm(-1), k.copy(rows_left)
        with k.while_(left, ">", 0):
            with k.if_(k.load_i64(tables), "==", table):
                pos = k.load_i32(positions)
                k.min(lowest, k.max(pos + 1 - self["back"], 0), to=lowest)
                k.max(highest, pos, to=highest)
                n_rows += 1
                tables += 8
                positions += 4
                left -= 1
            with k.else_():
                k.mov(left, 0)
        self["table"], self["n_rows"] = table, n_rows
        self["lowest"], self["highest"] = lowest, highest
        state = k.scratch + at.states
        with k.loop(n_rows * field("heads")):
            self.clear_state(state)
            state += at.state_bytes

    def clear_state(self, state):
        """Emit the state that has seen nothing."""
        k, at = self.k, self.at
        zero = k.zero_f32x8()
        k.store_f32x8(state, k.const_f32x8(LOWEST), at.m)
        k.store_f32x8(state, zero, at.l)
        for disp in range(at.o, at.o + at.row_bytes, 32):
            k.store_f32x8(state, zero, disp)

    def load(self):
        """Emit the copy of the keys and values of positions pos..last, eight at a time.

        A page holds a multiple of eight, so eight positions from a multiple of eight on lie in
        one page, next to each other.
        """
        k, at, field = self.k, self.at, self.field
        kv_type, (full, rest) = self.kv_type, divmod(self.head_dim, 8)
        format, vector_bytes = KV_TYPES[kv_type].format, kv_vector_bytes(kv_type, self.head_dim)
        pos, page_size = self["pos"], field("page_size")
        slot, entry = k.rem(pos, page_size), self["table"] + (k.div(pos, page_size) << 2)
        to = k.scratch + (pos & (CHUNK - 1)) * at.row_bytes
        with k.loop(((self["last"] - pos) >> 3) + 1):
            keys = k.load_i32(entry) * field("page_bytes") + self["k_addr"] + slot * vector_bytes
            values = keys + self["v_step"]
            if rest == 0:
                with k.loop(self.head_dim // 4):        # 32 numbers each: eight positions
                    for source, disp in ((keys, at.keys), (values, at.values)):
                        for i, v in enumerate(_load_vectors(k, kv_type, source, 4)):
                            k.store_f32x8(to, v, disp + 32 * i)
                    n_bytes = format.n_bytes(32)
                    for pointer, n_bytes in ((keys, n_bytes), (values, n_bytes), (to, 128)):
                        k.add(pointer, n_bytes, to=pointer)
            else:
                with k.loop(8):
                    for source, disp in ((keys, at.keys), (values, at.values)):
                        for i, v in enumerate(_load_vectors(k, kv_type, source, full)):
                            k.store_f32x8(to, v, disp + 32 * i)
                        _copy_bytes(k, k.scratch, at.spare, source, format.n_bytes(8 * full),
                                    format.n_bytes(rest))
                        v, = _load_vectors(k, kv_type, k.scratch + at.spare, 1)
                        k.store_f32x8(to, v, disp + 32 * full)
                        k.add(source, vector_bytes, to=source)
                    to += at.row_bytes
            slot += 8
            with k.if_(slot, ">=", page_size):
                k.mov(slot, 0)
                entry += 4

    def list_pairs(self):
        """Emit the list of the pairs that see some of the positions pos..last."""
        k, at, field = self.k, self.at, self.field
        pair, n_pairs = k.copy(k.scratch), k.imm(0)
        with k.loop(self["n_rows"]) as rows_left:
            i = self["n_rows"] - rows_left
            row = self["row"] + i
            pos = k.load_i32(field("positions") + (row << 2))
            before, after = k.max(pos - self["back"], -1), pos + 1
            with k.if_(before, "<", self["last"]):
                with k.if_(after, ">", self["pos"]):
                    state = k.scratch + at.states + i * field("heads") * at.state_bytes
                    q = field.row("q", row) + self["head"] * (4 * self.head_dim)
                    with k.loop(field("heads")):
                        for disp, value in ((at.Q, q), (at.BEFORE, before), (at.AFTER, after),
                                            (at.STATE, state)):
                            k.store_i64(pair, value, at.pairs + disp)
                        q += 4 * self.head_dim
                        state += at.state_bytes
                        k.add(pair, at.PAIR_BYTES, to=pair)
                        k.add(n_pairs, 1, to=n_pairs)
        self["n_pairs"] = n_pairs

    def groups(self):
        """Emit (index of the first position in its chunk, number of groups of eight)."""
        pos = self["pos"]
        return pos & (CHUNK - 1), ((self["last"] - pos) >> 3) + 1

    def all_pairs(self, sizes, step):
        """Emit `step` for all pairs, n at once, n as large a one of `sizes` as there are left."""
        k, at = self.k, self.at
        pair, left = k.copy(k.scratch), self["n_pairs"]
        for n in sizes:
            with k.while_(left, ">=", n):
                step(pair, n)
                pair += n * at.PAIR_BYTES
                left -= n

    def scores_of_few(self, keys, pair, n):
        """Emit q . key of one or two pairs and the eight keys at `keys`: a vector of each pair.

        Eight accumulators hold the lane sums of eight keys, or of four keys for both pairs, and
        then of the next four.
        """
        k, at = self.k, self.at
        (full, rest), n_keys = divmod(self.head_dim, 8), 8 // n
        unroll = 2 if full % 2 == 0 else 1
        parts = []
        for first in range(0, 8, n_keys):
            sums = [k.zero_f32x8() for _ in range(8)]
            queries = [self.query_of(pair, i) for i in range(n)]

            def accumulate(lanes, disp):
                parts = [_load_some(k, query, lanes, disp) for query in queries]
                for i in range(n_keys):
                    key = k.load_f32x8(keys, at.keys + (first + i) * at.row_bytes + disp)
                    for j, part in enumerate(parts):
                        product = k.mul_f32(key, part, to=key if j == n - 1 else None)
                        sums[j * n_keys + i] += product

            with k.loop(full // unroll):
                for t in range(unroll):
                    accumulate(None, 32 * t)
                for pointer in (keys, *queries):
                    k.add(pointer, 32 * unroll, to=pointer)
            if rest:
                accumulate(k.imm(rest), 0)
            keys -= 32 * full
            parts.append(_eight_sums(k, sums))
        return parts if n == 1 else [k.halves(*parts, 0, 2), k.halves(*parts, 1, 3)]

    def queries_of_eight(self, pair):
        """Emit the transposed q of eight pairs: `queries` is (padded head_dim, 8 pairs)."""
        k, at = self.k, self.at
        to, off = k.copy(k.scratch), k.imm(0)

        def body(lanes):
            v = [_load_some(k, self.query_of(pair, i) + off, lanes) for i in range(8)]
            for i, v in enumerate(_transpose(k, v)):
                k.store_f32x8(to, v, at.queries + 32 * i)
            k.add(to, 256, to=to)

        _each_vector(k, self.head_dim, ((off, 32),), body)

    def scores_of_eight(self, keys):
        """Emit q . key of eight pairs and the eight keys at `keys`: a vector of each pair.

        Here a lane is a pair, an accumulator is one key, and a number of the key goes into all
        lanes.  The lane sums of the definition come one after another: those of lane r add the
        dimensions r, r + 8, ...; then the tree adds whole vectors, without a shuffle.  Sums of
        lanes 2r and 2r + 1 wait in the scratch for their turn.
        """
        k, at = self.k, self.at
        query, waiting = k.copy(k.scratch), k.copy(k.scratch)
        with k.loop(4):
            for r in (0, 1):
                sums = [k.zero_f32x8() for _ in range(8)]
                with k.loop(at.n_vectors):
                    q = k.load_f32x8(query, at.queries + 32 * r)
                    for i in range(8):
                        x = k.broadcast_f32x8(keys, at.keys + i * at.row_bytes + 4 * r)
                        sums[i] += k.mul_f32(x, q, to=x)
                    keys += 32
                    query += 256
                keys -= at.row_bytes
                query -= 8 * at.row_bytes
                for i in range(8):
                    if r == 1:
                        sums[i] += k.load_f32x8(waiting, at.sums + 32 * i)
                    k.store_f32x8(waiting, sums[i], at.sums + 32 * i)
            keys += 8
            query += 64
            waiting += 256
        keys -= 32
        totals = []
        for i in range(8):
            a, b, c, d = (k.load_f32x8(k.scratch, at.sums + 256 * j + 32 * i) for j in range(4))
            totals.append((a + b) + (c + d))
        return _transpose(k, totals)

    def scores(self, pair, n):
        """Emit the scores of n pairs, UNSEEN where they do not see, and the largest, lane by lane.

        A score that is not finite becomes not a number; the largest is that of the others.
        """
        k, at, field = self.k, self.at, self.field
        index, n_groups = self.groups()
        keys, pos = k.scratch + index * at.row_bytes, self["pos"]
        for i in range(n):
            state = self.state_of(pair, i)
            k.store_f32x8(state, k.const_f32x8(LOWEST), at.top)
        if n == 8:
            self.queries_of_eight(pair)
        with k.loop(n_groups):
            parts = self.scores_of_eight(keys) if n == 8 else self.scores_of_few(keys, pair, n)
            keys += 8 * at.row_bytes
            lanes = k.splat_i32(pos) + k.const_i32x8(range(8))
            for i, s in enumerate(parts):
                s = s * field.number("scale_bits")
                s = _softcap(k, s, field.number("cap_bits")) if self.cap else _finite(s)
                disp = at.pairs + at.PAIR_BYTES * i
                seen = k.cmpgt_i32(lanes, k.broadcast_i32x8(pair, disp + at.BEFORE))
                seen &= k.cmpgt_i32(k.broadcast_i32x8(pair, disp + at.AFTER), lanes)
                s = k.select(seen, s, k.const_f32x8(UNSEEN)).f32
                state = self.state_of(pair, i)
                k.store_f32x8(state, k.max_f32(s, k.load_f32x8(state, at.top)), at.top)
                k.store_f32x8(state + ((pos & (CHUNK - 1)) << 2), s, at.scores)
            pos += 8

    def softmax(self, pair, n):
        """Emit p = exp(score - m), 0 where the pair does not see, and the sum of p, lane by lane.

        exp is long, and each of its steps waits for the one before: four groups of positions at
        once keep the processor busy.  n = 1.
        """
        k, at = self.k, self.at
        state = self.state_of(pair, 0)
        index, n_groups = self.groups()
        scores = state + (index << 2)
        m, total = k.hmax_f32(k.load_f32x8(state, at.top)), k.zero_f32x8()

        def some(n):
            x = [k.load_f32x8(scores, at.scores + 32 * i) - m for i in range(n)]
            for i, p in enumerate(emit_exp(k, *x) if n > 1 else [emit_exp(k, *x)]):
                score = k.load_f32x8(scores, at.scores + 32 * i)
                p = k.andnot(k.cmp_f32(score, "==", k.const_f32x8(UNSEEN)), p).f32
                k.store_f32x8(scores, p, at.scores + 32 * i)
                k.add_f32(total, p, to=total)
            k.add(scores, 32 * n, to=scores)

        with k.loop(n_groups >> 2):
            some(4)
        with k.loop(n_groups & 3):
            some(1)
        k.store_f32x8(state, m, at.top)
        k.store_f32x8(state, total, at.total)

    def merge(self, state, total):
        """Emit merge_chunks for m and l; a and b come to stand in lanes 0 and 1 of `top`.

        total: sum of p of the chunk, in all lanes
        """
        k, at = self.k, self.at
        old, m = k.load_f32x8(state, at.m), k.load_f32x8(state, at.top)
        new = k.max_f32(old, m)
        factors = emit_exp(k, k.blend_i32(old - new, m - new, 0b10))
        k.store_f32x8(state, new, at.m)
        k.store_f32x8(state, factors, at.top)
        l = k.load_f32x8(state, at.l) * k.broadcast_lane(factors, 0)
        k.store_f32x8(state, l + total * k.broadcast_lane(factors, 1), at.l)

    def values(self, pair, n):
        """Emit o = o * a + (sum of p * value) * b for n pairs, 8 / n vectors of o at a time."""
        k, at = self.k, self.at
        states = [self.state_of(pair, i) for i in range(n)]
        for state in states:
            self.merge(state, k.hsum_f32(k.load_f32x8(state, at.total)))
        off, width = k.imm(0), 8 // n
        full, rest = divmod(at.n_vectors, width)

        def some_vectors(n_vectors):
            first = k.max(self["pos"], self["lowest"])
            index, n_values = first & (CHUNK - 1), self["last"] + 1 - first
            values = k.scratch + index * at.row_bytes + off
            probs = [state + (index << 2) for state in states]
            sums = [[k.zero_f32x8() for _ in range(n_vectors)] for _ in states]

            def add_values(count):
                for j in range(count):
                    ps = [k.broadcast_f32x8(p, at.scores + 4 * j) for p in probs]
                    for t in range(n_vectors):
                        v = k.load_f32x8(values, at.values + j * at.row_bytes + 32 * t)
                        for p, o in zip(ps, sums):
                            o[t] += k.mul_f32(v, p, to=v if p is ps[-1] else None)
                for pointer, n_bytes in ((values, at.row_bytes), *[(p, 4) for p in probs]):
                    k.add(pointer, count * n_bytes, to=pointer)

            with k.loop(n_values >> 1):
                add_values(2)
            with k.if_(n_values & 1, "!=", 0):
                add_values(1)
            for state, o in zip(states, sums):
                a, b = (k.broadcast_f32x8(state, at.top + 4 * i) for i in (0, 1))
                to = state + off
                for t in range(n_vectors):
                    old = k.load_f32x8(to, at.o + 32 * t)
                    k.store_f32x8(to, old * a + o[t] * b, at.o + 32 * t)

        with k.while_(off, "<", 32 * width * full):
            some_vectors(width)
            off += 32 * width
        if rest:
            some_vectors(rest)

    def keep_partials(self):
        """Emit the move of what one chunk gave to its slots, one a head; the run is one row."""
        k, at, field = self.k, self.at, self.field
        chunk = (self["pos"] >> 6) - (self["lowest"] >> 6)
        pair = self["row"] * field("n_heads") + self["head"]
        slots = field("slots")
        slot = field("partials") + (pair * slots + chunk) * at.slot_bytes
        slots *= at.slot_bytes
        state = k.scratch + at.states
        with k.loop(field("heads")):
            for disp, to in ((at.m, at.SLOT_M), (at.l, at.SLOT_L),
                             *[(at.o + i, at.SLOT_O + i) for i in range(0, at.row_bytes, 32)]):
                k.store_f32x8(slot, k.load_f32x8(state, disp), to)
            self.clear_state(state)
            slot += slots
            state += at.state_bytes

    def finish(self):
        """Emit the sink, if there are sinks, and out = o / l, for each pair of the run."""
        k, at, field = self.k, self.at, self.field
        state = k.scratch + at.states
        with k.loop(self["n_rows"]) as rows_left:
            head, n_bytes = self["head"], 4 * self.head_dim
            out = field.row("out", self["row"] + self["n_rows"] - rows_left) + head * n_bytes
            with k.loop(field("heads")):
                a, l, sinks = k.const_f32x8(1.0), k.load_f32x8(state, at.l), field("sinks")
                with k.if_(sinks, "!=", 0):
                    m, sink = k.load_f32x8(state, at.m), k.broadcast_f32x8(sinks + (head << 2))
                    top = k.max_f32(m, sink)
                    both = emit_exp(k, k.blend_i32(m - top, sink - top, 0b10))
                    k.mov(a, k.broadcast_lane(both, 0))
                    k.mov(l, l * a + k.broadcast_lane(both, 1))
                for t in range(at.n_vectors):
                    lanes = k.imm(self.head_dim % 8) if 8 * (t + 1) > self.head_dim else None
                    o = k.load_f32x8(state, at.o + 32 * t) * a
                    _store_some(k, out, o / l, lanes, 32 * t)
                head += 1
                out += n_bytes
                state += at.state_bytes


def emit_attention(k, kv_type, head_dim, cap=False):
    """Emit Reference.attention, the part behind the store, for `rows` rows and `heads` heads.

    q, out: f32 (R, n_heads * head_dim)   tables: i64 (n_rows,), addresses   positions: i32
    arena .. page_size: as in emit_kv_store   window: 0 for all   sinks: f32 (n_heads,) or 0
    chunk = (block of rows * (n_heads / heads) + block of heads) * parts + part; heads divides
    n_heads / n_kv_heads, and rows * heads <= ATTENTION_PAIRS.  cap: build with softcap, by
    cap_bits.   partials: 0, and then parts is 1 and `out` is written; or, with rows = 1, the
    address of slots (R, n_heads, slots), for emit_attention_merge
    """
    field = Fields(k, "q", "q_row_bytes", "out", "out_row_bytes", "tables", "positions", "arena",
                   "page_bytes", "layer_off", "page_size", "n_heads", "n_kv_heads", "scale_bits",
                   "window", "cap_bits", "sinks", "n_rows", "rows", "heads", "parts", "partials",
                   "slots")
    unit = AttentionKernel(k, field, head_dim, kv_type, cap)
    rows_left = unit.begin_unit()
    with k.while_(rows_left, ">", 0):
        unit.begin_run(rows_left)
        lowest = unit["lowest"]
        pos = k.max(lowest & -8, ((lowest >> 6) + unit["part"]) << 6)
        unit["pos"] = pos
        left = unit["highest"] + 1 - pos
        with k.while_(left, ">", 0):
            unit["last"] = k.min(unit["pos"] | (CHUNK - 1), unit["highest"])
            unit.load()
            unit.list_pairs()
            unit.all_pairs((8, 2, 1), unit.scores)
            unit.all_pairs((1,), unit.softmax)
            unit.all_pairs((2, 1), unit.values)
            with k.if_(field("partials"), "!=", 0):
                unit.keep_partials()
            pos = ((unit["pos"] >> 6) + field("parts")) << 6
            unit["pos"] = pos
            k.sub(unit["highest"] + 1, pos, to=left)
        with k.if_(field("partials"), "==", 0):
            unit.finish()
        unit["row"] = unit["row"] + unit["n_rows"]
        k.sub(rows_left, unit["n_rows"], to=rows_left)


def emit_attention_merge(k, head_dim):
    """Emit the end of attention in parts.  A unit of work, k.chunk, is one head of one row.

    Its slots, one for each CHUNK positions that the row sees, are merged from the lowest up.
    out .. partials: as in emit_attention   heads: 1   slots: room of a head, in slots
    """
    field = Fields(k, "out", "out_row_bytes", "positions", "window", "n_heads", "heads", "sinks",
                   "partials", "slots")
    unit = AttentionKernel(k, field, head_dim)
    at = unit.at
    row = k.div(k.chunk, field("n_heads"))
    unit["row"] = row
    unit["head"] = k.rem(k.chunk, field("n_heads"))
    unit["n_rows"] = k.imm(1)
    pos = k.load_i32(field("positions") + (row << 2))
    lowest = k.max(pos + 1 - unit.positions_back(), 0)
    slot = field("partials") + k.chunk * field("slots") * at.slot_bytes
    state = k.scratch + at.states
    unit.clear_state(state)
    with k.loop((pos >> 6) - (lowest >> 6) + 1):
        k.store_f32x8(state, k.load_f32x8(slot, at.SLOT_M), at.top)
        unit.merge(state, k.load_f32x8(slot, at.SLOT_L))
        a, b = (k.broadcast_f32x8(state, at.top + 4 * i) for i in (0, 1))
        for i in range(0, at.row_bytes, 32):
            o = k.load_f32x8(state, at.o + i) * a + k.load_f32x8(slot, at.SLOT_O + i) * b
            k.store_f32x8(state, o, at.o + i)
        slot += at.slot_bytes
    unit.finish()


# ---------------------------------------------------------------------------------------
# 17. Programs
#
# A forward pass calls some hundreds of operations, and a call from Python to machine code
# costs more than many of them.  The one idea: the calls are not made but written down, once.
# A `Recorder` has the methods of the operation surface (4.4), and each appends a line to a
# table, the program.
#
#   line:  address of the kernel | address of its arguments | number of chunks | barrier
#
# Running a token is then one foreign call per thread: `emit_run` is a kernel that walks the
# table.  At each line every thread takes chunks from a shared counter until none is left, so
# a slow core takes fewer; where the next line reads what this one wrote, the threads wait for
# each other.  A program is kept for each number of rows; the tokens, positions and page tables
# it works on lie in fixed buffers that are filled in before a run.

LINE_BYTES, COUNTER_BYTES = 32, 64      # a counter has a cache line to itself
STAMP_OFF = 16                          # where in a counter's line the time stands, if asked for
SPINS = 2000                            # looks at a barrier before giving way to the system


# A host may have told the processor to round otherwise, or to take tiny numbers for zero, as
# libraries compiled with fast-math do when they are loaded.  Whoever enters machine code computes
# in the mode of chapter 1, and leaves the host's as it was.

MODE_BYTES = 64                         # of the scratch memory, where the host's mode is kept
OWN_MODE = 0x1F80                       # all traps masked, nothing else: Intel SDM 1, 10.2.3


@contextlib.contextmanager
def _own_mode(k):
    """Emit the change to our mode before what is emitted inside, and the change back after it.

    Yields a register: the scratch memory that is left.
    """
    k.save_mode(k.scratch, 0)
    k.own_mode(k.scratch, OWN_MODE, 8)
    yield k.scratch + MODE_BYTES
    k.load_mode(k.scratch, 0)


def emit_mode(k):
    """Change the calling thread to our mode, or back.

    host: 16 bytes, where the host's mode is kept   enter: 1, or 0 for back
    """
    host, enter = k.args("host", "enter")
    with k.if_(enter, "!=", 0):
        k.save_mode(host, 0)
        k.own_mode(host, OWN_MODE, 8)
    with k.else_():
        k.load_mode(host, 0)


def emit_alone(k):
    """Call one kernel for its chunk 0.   scratch: MODE_BYTES, and what the kernel needs

    kernel: its address   args: the address of its arguments
    """
    kernel, args = k.args("kernel", "args")
    with _own_mode(k) as scratch:
        k.call(kernel, args, k.imm(0), scratch)


def emit_run(k, clock=None):
    """Run a program's table, together with n_threads - 1 other threads doing the same.

    table: lines   n_lines: how many   counters: one for each line, zero at the start
    arrived: i64, zero at the start; how many threads have come to barriers so far
    give_way: address of a function of the system that lets other threads run
    clock: None, or (address, first argument or None) of a function that writes the time to
    where its next argument points: it is called after each line, for the place behind the
    line's counter, and the last thread to get there has the say
    """
    field = Fields(k, "table", "n_lines", "counters", "arrived", "n_threads", "give_way")
    table, n_lines, counters = field("table"), field("n_lines"), field("counters")
    due = k.imm(0)                      # what `arrived` must reach at the next barrier
    with _own_mode(k) as scratch:
        with k.loop(n_lines):
            n_chunks = k.load_i64(table, 16)
            left = n_chunks - k.load_acquire(counters)
            with k.while_(left, ">", 0):
                share = k.max(k.div(left, field("n_threads")), 1)
                chunk = k.fetch_add(counters, share)
                end = k.min(chunk + share, n_chunks)
                with k.while_(chunk, "<", end):
                    k.call(k.load_i64(table, 0), k.load_i64(table, 8), chunk, scratch)
                    chunk += 1
                k.mov(left, n_chunks - k.load_acquire(counters))
            with k.if_(k.load_i64(table, 24), "!=", 0):
                arrived, spins = field("arrived"), k.imm(0)
                due += field("n_threads")
                k.fetch_add(arrived, k.imm(1))
                here = k.load_acquire(arrived)
                with k.while_(here, "<", due):
                    k.pause()
                    spins += 1
                    with k.if_(spins, ">", SPINS):
                        k.call(field("give_way"), table, due, scratch)
                    k.load_acquire(arrived, to=here)
            if clock:
                function, first = clock
                stamp = counters + STAMP_OFF
                k.call(k.imm(function), stamp if first is None else k.imm(first), stamp, scratch)
            table += LINE_BYTES
            counters += COUNTER_BYTES


def emit_sequence(k):
    """Call n kernels one after another for the same chunk.

    calls: address of each kernel, then of its arguments; i64 (n, 2)
    """
    calls, n = k.args("calls", "n")
    with k.loop(n):
        k.call(k.load_i64(calls, 0), k.load_i64(calls, 8), k.chunk, k.scratch)
        calls += 16


# 17.1 The register.  What is known of a kernel stands in one row of KERNELS: how its code is
# written, how it is tried, what a call of it costs, and what --listing prints it as.
#
# Before a kernel is trusted on a machine it has to agree with chapter 4 on a small random input
# (chapter 19 sees to that).  A trial is an operation of 4.4 and its inputs, so that a kernel is
# tried as it is used; those that no operation calls by themselves run within other trials.

class Call(NamedTuple):
    """A recorded call of a kernel, as self-check and profile want to know it.

    example: what else a trial of this kernel is made from
    """
    kernel: str
    parameters: tuple
    fields: dict
    n_chunks: int
    example: object


class Kernel(NamedTuple):
    """One row of the register.

    emit(k, *parameters): writes the code
    trial(call): returns (function of (ops, inputs), inputs); an input is rows of numbers, or row
    numbers (ints).  Or a str: what runs the kernel before it is believed, if not a trial
    cost(call, batch): returns (operation, bytes, operations); None if it is no line of a program
    listed: {name for --listing: parameters}
    """
    emit: object
    trial: object
    cost: object
    listed: dict


def _trial_tensor(fmt, n_out, n_in, rng):
    """Return a Tensor of random blocks with finite scales, another in each."""
    n_bytes = fmt.n_bytes(n_out * n_in)
    data = rng.getrandbits(8 * n_bytes).to_bytes(n_bytes, "little")
    if fmt.name == "F32":                 # its third byte counts too: take numbers
        return Tensor("trial", fmt, (n_out, n_in),
                      array("f", [rng.uniform(-1, 1) for _ in range(n_out * n_in)]).tobytes())
    if fmt.sub_len is None:               # no byte has the bits of infinity
        data = data.translate(bytes(b if b & 0x7C != 0x7C else b ^ 0x40 for b in range(256)))
    else:
        ds, ms = [[rng.uniform(-1, 1) for _ in range(n_bytes // fmt.block_bytes)]
                  for _ in range(2)]
        data = fmt.with_scales(data, ds, ms)
    return Tensor("trial", fmt, (n_out, n_in), data)


def _trial_rows(n_rows, n, seed=1):
    """Return rows of numbers for a trial, some of them too small for f32's full precision."""
    rng = random.Random(seed)
    return [array("f", [rng.uniform(-2, 2) * rng.choice((1, 1, 1, 2.0 ** -130)) for _ in range(n)])
            for _ in range(n_rows)]


def _matrix_trial(call):
    fmt, n_in, *rest = call.parameters  # rest: lanes, then n_rows of emit_matvec
    matrix = _trial_tensor(fmt, rest[0] if rest else 8, n_in, random.Random(1))
    x = _trial_rows(rest[1] if call.kernel == "matvec" else 9, n_in)
    return (lambda ops, x: ops.matmul(matrix, x)), [x]


def _embed_trial(call):
    fmt, n = call.parameters
    matrix = _trial_tensor(fmt, 5, n, random.Random(1))
    return (lambda ops, index: ops.embed(matrix, index)), [[4, 0, 3]]


def _pick_trial(call):
    fmt, n_in = call.parameters
    rng = random.Random(1)
    experts = [_trial_tensor(fmt, 8, n_in, rng) for _ in range(4)]
    return (lambda ops, x, y: ops.matmul(experts, x, ops.route(y, 2, True))), [
        _trial_rows(3, n_in), _trial_rows(3, 4, 2)]


def _route_trial(call):
    return (lambda ops, x, y: ops.add(ops.mix(x, ops.route(y, 3, True)),
                                      ops.mix(x, ops.route(y, 3, False)))), [
        _trial_rows(9, 21), _trial_rows(3, 37, 2)]


def _rope_trial(call):
    """Turn two heads of rows at positions 0, 1 and 3."""
    table = call.example
    dim = table.n_rot + 1
    x = [array("f", [(r + 2) / (i + 1) for i in range(2 * dim)]) for r in range(3)]
    return (lambda ops, x, index: ops.rope(x, index, table, dim)), [x, [0, 1, 3]]


def _encode_trial(call):
    """Encode rows of numbers that are tiny, of two signs, all alike or all zero."""
    fmt, n, errors = call.parameters
    x = _trial_rows(5, n)
    x[3], x[4] = array("f", [0.75]) * n, array("f", bytes(4 * n))
    importance = array("f", map(abs, x[0])) if errors == "weighted" else None

    def operation(ops, x):
        return [array("B", fmt.encode(row, importance)) for row in x] \
            if isinstance(x, list) else ops.encode(x, fmt, importance, Memory(8))
    return operation, [x]


def _attention_trial(call):
    """Store and attend to positions about a chunk's border.

    One head of keys and its queries, in a small pool of the same kind of cache.
    """
    cache, spec = call.example
    dim, positions = spec.head_dim, list(range(CHUNK - 3, CHUNK + 2))
    group = min(8, spec.n_heads // spec.n_kv_heads)
    spec = spec._replace(n_heads=group, n_kv_heads=1, window=10, sinks=None)
    q, k, v = (_trial_rows(len(positions), n, seed)
               for seed, n in enumerate((group * dim, dim, dim)))
    seq = types.SimpleNamespace(table=array("i", (1, 0)))
    tables = array("q", [seq.table.buffer_info()[0]] * len(positions))

    def operation(ops, q, k, v, index):
        batch = types.SimpleNamespace(
            cache=type(cache)([(1, dim)], 2, CHUNK, cache.kv_type), positions=index,
            sequences=[seq] * len(positions), tables=tables.buffer_info()[0], keep=tables)
        return ops.attention(q, k, v, batch, 0, spec)
    return operation, [q, k, v, positions]


def _largest(ops, x):
    """Record emit_argmax, or return what it must find: index, bits of the value, 0, 0."""
    return [array("i", (ops.argmax(row), f32_bits(max(row)), 0, 0)) for row in x] \
        if isinstance(x, list) else ops.argmax(x)


def _numbers(operation, n_inputs=1):
    """Return the trial of an operation on rows of numbers."""
    return lambda call: (operation, [_trial_rows(3, 37, seed) for seed in (1, 2)[:n_inputs]])


# What a call must move and compute.  A matrix counts its weights once, an activation 4 bytes
# a number; attention reads each position that its rows see once for all rows of a sequence.
# Experts count as if no two picks were of the same one while there are others: so it is for
# one row; for several it is the most that they can be.
# A cost is (operation, bytes, operations).

OPERATIONS_EACH = {     # of a result; a polynomial's steps count one by one
    "exp": 18, "rms_norm": 4, "layer_norm": 7, "rope": 3, "quantize": 3, "silu": 20, "gelu": 26,
    "gelu_erf": 45, "swiglu_clamped": 26, "softcap": 26, "silu_mul": 21, "gelu_mul": 27}


def matrix_cost(format, n_out, n_in, n_rows, n_experts=None):
    n_read = 1 if n_experts is None else min(n_rows, n_experts)
    n_bytes = n_read * format.n_bytes(n_out * n_in) + 4 * n_rows * (n_in + n_out)
    return f"matmul {format.name}", n_bytes, 2 * n_out * n_in * n_rows


def route_cost(n_rows, n_experts, n_used):
    return ("route", 4 * n_rows * (n_experts + 2 * n_used),
            n_rows * (n_used * n_experts + OPERATIONS_EACH["exp"] * n_experts))


def mix_cost(n_rows, n, n_used):
    return "mix", 4 * n_rows * n * (n_used + 1), 2 * n_rows * n * n_used


def attention_cost(batch, window, n_heads, n_kv_heads, head_dim):
    ends, n_seen = {}, 0
    for seq, pos in zip(batch.sequences, batch.positions):
        seen = min(pos + 1, window or pos + 1)
        ends[id(seq)], n_seen = max(seen, ends.get(id(seq), 0)), n_seen + seen
    kv_bytes = 2 * n_kv_heads * kv_vector_bytes(batch.cache.kv_type, head_dim)
    return ("attention", sum(ends.values()) * kv_bytes
            + 8 * len(batch.positions) * n_heads * head_dim, 4 * n_seen * n_heads * head_dim)


def _matrix_line(call, batch):
    format, n_in = call.parameters[:2]
    return matrix_cost(format, call.fields["n_out"], n_in, call.fields["n_rows"])


def _pick_line(call, batch):
    format, n_in = call.parameters
    return matrix_cost(format, call.fields["n_out"], n_in, call.fields["n_picks"], call.example)


def _attention_line(call, batch):
    return attention_cost(batch, call.fields["window"], call.fields["n_heads"],
                          call.fields["n_kv_heads"], call.parameters[1])


def _store_line(call, batch):
    n, head_dim = 2 * call.n_chunks * call.fields["n_kv_heads"], call.parameters[1]
    return "kv_store", n * (4 * head_dim + kv_vector_bytes(*call.parameters)), n * head_dim


def _embed_line(call, batch):
    format, n_in = call.parameters
    n = call.n_chunks * n_in
    return "embed", format.n_bytes(n) + 4 * n, n


def _encode_line(call, batch):
    format, n = call.parameters[:2]
    n *= call.n_chunks
    return f"encode {format.name}", 4 * n + format.n_bytes(n), n


def _each_number(call, batch):
    """The cost of a kernel that goes over its numbers once."""
    fields, name = call.fields, call.kernel
    n = call.n_chunks // fields.get("slices", 1) * (
        fields["n_blocks"] * ACT_BLOCK if name == "quantize"
        else fields["n_heads"] * fields["head_dim"] if name == "rope"
        else fields["n"] * fields.get("runs", 1))
    n_arrays = {"quantize": 1.25, "argmax": 1}.get(name, 3 if fields.get("y_row_bytes") else 2)
    return name, int(4 * n * n_arrays), OPERATIONS_EACH.get(name, 1) * n


def _listed(pattern, formats):
    """Return `listed` of a kernel of (format, n_in)."""
    return {pattern.format(fmt.name.lower()): (fmt, max(fmt.block_len, 64)) for fmt in formats}


_PACKED = [fmt for fmt in FORMATS.values() if fmt.sub_len]
_PLAIN = [fmt for fmt in FORMATS.values() if not fmt.sub_len]
_NORM_W, _NORM_B = _trial_rows(2, 37, 3)

KERNELS = {row.emit.__name__[len("emit_"):]: row for row in (
    Kernel(emit_matvec, _matrix_trial, _matrix_line, _listed("{}", _PACKED)),
    Kernel(emit_matmul, _matrix_trial, _matrix_line, _listed("{}_panel", _PACKED)),
    Kernel(emit_matmul_float, _matrix_trial, _matrix_line, _listed("{}", _PLAIN)),
    Kernel(emit_embed, _embed_trial, _embed_line, _listed("embed_{}", FORMATS.values())),
    Kernel(emit_quantize, "the trial of a matrix", _each_number, {"quantize": ()}),
    Kernel(emit_pick, _pick_trial, _pick_line, {"pick": (FORMATS["Q4_0"], 64)}),
    Kernel(emit_route, _route_trial, lambda call, batch: route_cost(
        call.n_chunks, call.fields["n"], call.fields["n_used"]), {"route": ()}),
    Kernel(emit_mix, _route_trial, lambda call, batch: mix_cost(
        call.n_chunks, call.fields["n"], call.fields["n_used"]), {"mix": ()}),
    Kernel(emit_add, _numbers(lambda ops, x, y: ops.add(x, y), 2), _each_number, {"add": ()}),
    Kernel(emit_mul, _numbers(lambda ops, x, y: ops.mul(x, y), 2), _each_number, {"mul": ()}),
    Kernel(emit_scale, _numbers(lambda ops, x: ops.mul(x, 0.375)), _each_number, {"scale": ()}),
    Kernel(emit_silu, _numbers(lambda ops, x: ops.silu(x)), _each_number, {"silu": ()}),
    Kernel(emit_gelu, _numbers(lambda ops, x: ops.gelu(x)), _each_number, {"gelu": ()}),
    Kernel(emit_silu_mul, _numbers(lambda ops, x, y: ops.mul(ops.silu(x), y), 2), _each_number,
           {"silu_mul": ()}),
    Kernel(emit_gelu_mul, _numbers(lambda ops, x, y: ops.mul(ops.gelu(x), y), 2), _each_number,
           {"gelu_mul": ()}),
    Kernel(emit_gelu_erf, _numbers(lambda ops, x: ops.gelu_erf(x)), _each_number,
           {"gelu_erf": ()}),
    Kernel(emit_swiglu_clamped, _numbers(lambda ops, x, y: ops.swiglu_clamped(x, y), 2),
           _each_number, {"swiglu_clamped": ()}),
    Kernel(emit_gate, lambda call: ((lambda ops, x, g: ops.gate(x, g)),
                                    [_trial_rows(3, 37), _trial_rows(3, 1, 2)]), _each_number,
           {"gate": ()}),
    Kernel(emit_softcap, _numbers(lambda ops, x: ops.softcap(x, 3.0)), _each_number,
           {"softcap": ()}),
    Kernel(emit_rms_norm, _numbers(lambda ops, x: ops.rms_norm(x, _NORM_W, f32(1e-5))),
           _each_number, {"rms_norm": ()}),
    Kernel(emit_layer_norm, _numbers(lambda ops, x: ops.layer_norm(x, _NORM_W, _NORM_B,
                                                                   f32(1e-5))),
           _each_number, {"layer_norm": ()}),
    Kernel(emit_rows, lambda call: ((lambda ops, x, index: ops.rows(x, index)),
                                    [_trial_rows(3, 37), [2, 0]]), _each_number, {"rows": ()}),
    Kernel(emit_rope, _rope_trial, _each_number,
           {f"rope_{pairing}": (pairing,) for pairing in ("interleaved", "half")}),
    Kernel(emit_encode, _encode_trial, _encode_line,
           {f"encode_{fmt.name.lower()}": (fmt, max(fmt.block_len, 64), "alike")
            for fmt in FORMATS.values() if has_encoder(fmt, fmt.block_len * 64)}),
    Kernel(emit_kv_store, "the trial of attention", _store_line,
           {f"kv_store_{kv_type}": (kv_type, 64) for kv_type in KV_TYPES}),
    Kernel(emit_attention, _attention_trial, _attention_line,
           {f"attention_{kv_type}": (kv_type, 64) for kv_type in KV_TYPES}),
    Kernel(emit_attention_merge, _attention_trial, lambda call, batch: (
        "attention_merge", 0, 0), {"attention_merge": (64,)}),      # attention's cost has it all
    Kernel(emit_argmax, _numbers(_largest), _each_number, {"argmax": ()}),
    Kernel(emit_compact, "RowSearch.check", None, {"compact": ()}),
    Kernel(emit_exp_sum, "RowSearch.check", None, {"exp_sum": ()}),
    Kernel(emit_run, "every trial", None, {"run": ()}),
    Kernel(emit_alone, "RowSearch.check", None, {"alone": ()}),
    Kernel(emit_mode, "it computes nothing; the trials run inside it", None, {"mode": ()}),
    Kernel(emit_sequence, _numbers(lambda ops, x, y: ops.mul(ops.add(x, y), y), 2), None,
           {"sequence": ()}),
)}


# 17.2 The table of lines, and the memory that they work in.

def _function_address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def system_yield():
    """Return the address of the system's function that lets another thread run."""
    library, name = ((ctypes.WinDLL("kernel32"), "SwitchToThread") if sys.platform == "win32" else
                     (ctypes.CDLL(None), "sched_yield"))
    return _function_address(_foreign(library, name, ctypes.c_int))


def system_clock():
    """Return (address, first argument or None) of the system's function that writes the time."""
    if sys.platform == "win32":
        counter = _foreign(ctypes.WinDLL("kernel32"), "QueryPerformanceCounter", ctypes.c_int,
                           ctypes.c_void_p)
        return _function_address(counter), None
    gettime = _foreign(ctypes.CDLL(None), "clock_gettime", ctypes.c_int, ctypes.c_int,
                       ctypes.c_void_p)
    return _function_address(gettime), time.CLOCK_MONOTONIC


def system_time(address):
    """Return the seconds of the time that the function of system_clock wrote at address."""
    first, second = struct.unpack("<qq", ctypes.string_at(address, 16))
    if sys.platform == "win32":
        frequency = ctypes.c_int64()
        _foreign(ctypes.WinDLL("kernel32"), "QueryPerformanceFrequency", ctypes.c_int,
                 ctypes.c_void_p)(ctypes.byref(frequency))
        return first / frequency.value
    return first + second * 1e-9


class Memory:
    """Zeroed memory outside of Python's heap; the system commits it as it is written.

    address: of its first byte, on a page border   n_bytes: its size
    """

    def __init__(self, n_bytes):
        self.n_bytes = max(n_bytes, mmap.PAGESIZE)
        try:
            self._map = anonymous_memory(self.n_bytes)
        except (OSError, OverflowError, ValueError) as e:
            raise KshipraError(f"{self.n_bytes} bytes to compute in cannot be had ({e}); leave "
                               "more memory to this process") from None
        self.address = address_of(self._map)

    def view(self, address, n_bytes):
        """Return n_bytes from an address in it, as a memoryview."""
        start = address - self.address
        return memoryview(self._map)[start:start + n_bytes]

    def write(self, off, data):
        """Copy an array or bytes to `off` bytes from its start.   Raises ValueError beyond it."""
        data = memoryview(data).cast("B")
        self._map[off:off + len(data)] = data


class Buffer:
    """An activation of a recorded program: f32 (n_rows, n) in the arena.

    address: of the first row   quantized: the Buffers of its int8 form that there are already,
    by the size of their groups of rows
    Python frees a Buffer when the forward pass drops it, and its place serves the next one.
    """

    def __init__(self, program, n_rows, n, n_bytes):
        self.program, self.n_rows, self.n, self.n_bytes = program, n_rows, n, n_bytes
        self.address = program.place(n_bytes)
        self.quantized = {}

    row_bytes = property(lambda self: 4 * self.n)
    span = property(lambda self: (self.address, self.address + self.n_bytes))

    def __del__(self):
        if hasattr(self, "address"):
            self.program.free(self.address, self.n_bytes)


class ByteRows(Buffer):
    """Rows of n bytes instead of floats."""

    row_bytes = property(lambda self: self.n)


class Span:
    """A run of memory that recorded calls read or write: what a barrier is decided by."""

    def __init__(self, address, n_bytes):
        self.span = address, address + n_bytes


class Index(NamedTuple):
    """Where the numbers of n_rows rows will lie when a program runs: i32."""
    address: int
    n_rows: int


class Recorded(NamedTuple):
    """What stands for a Batch while its program is recorded: addresses, filled in before a run."""
    tokens: Index
    positions: Index
    wanted: Index
    tables: int                         # i64, a row each: address of its sequence's page table
    cache: object
    layers: object = None
    hidden: object = None               # a Buffer
    left: object = None


class Promise(NamedTuple):
    """An activation function not yet recorded: a product that follows is taken in with it."""
    x: Buffer
    alone: str                          # kernel of the activation alone
    fused: str                          # and of the activation times another operand


def _overlap(xs, ys):
    """Return whether any of the runs xs of memory shares a byte with any of ys."""
    return any(a < d and c < b for a, b in xs for c, d in ys)


class Program:
    """A recorded forward pass for one number of rows.

    arena: Memory for the activations; when it is too small, recording goes on for the sake of
    `peak_bytes`, and is then done again in a larger one.
    calls: a Call for each line, until the record is kept
    """

    def __init__(self, arena):
        self.arena, self.lines, self.keep, self.calls = arena, [], [], []
        self.holes, self.end, self.peak_bytes = [], 0, 0
        # (address, end) of what is read, and of what is written: by the lines since the last
        # barrier, but for the last one and those that it joined; and by these.
        self.since = self.last = [], []
        self.by_row = False                 # whether the last line goes row by row

    def place(self, n_bytes):
        """Return the address of n_bytes of the arena, on a 64-byte border."""
        n_bytes = -(-n_bytes // 64) * 64
        for i, (off, size) in enumerate(self.holes):
            if size >= n_bytes:
                self.holes[i:i + 1] = [(off + n_bytes, size - n_bytes)] if size > n_bytes else []
                return self.arena.address + off
        off, self.end = self.end, self.end + n_bytes
        self.peak_bytes = max(self.peak_bytes, self.end)
        return self.arena.address + off

    def free(self, address, n_bytes):
        """Give back a place; neighbouring holes grow together."""
        self.holes.append((address - self.arena.address, -(-n_bytes // 64) * 64))
        self.holes.sort()
        merged = []
        for off, size in self.holes:
            if merged and merged[-1][0] + merged[-1][1] == off:
                merged[-1] = merged[-1][0], merged[-1][1] + size
            else:
                merged.append((off, size))
        self.holes = merged

    def line(self, kernel, n_chunks, reads, writes, args, by_row):
        """Append a call.  reads, writes: (address, end) of the memory it touches.

        A call that reads what an earlier one writes, or writes what an earlier one touches,
        must wait for it: then the line before gets a barrier.  Unless both go row by row
        (by_row: chunk r reads and writes nothing but row r): then it joins the line before, and
        who computes a chunk of the one goes on with the same chunk of the other.  A place that
        serves a second time may hold other rows than before, so that is let in for one row only.
        """
        def meets(since):
            return _overlap(reads, since[1]) or _overlap(writes, since[0] + since[1])

        joins = bool(self.lines) and by_row and self.by_row and n_chunks == self.lines[-1][2] \
            and _overlap(reads, self.last[1]) and not meets(self.since) \
            and (n_chunks == 1 or not _overlap(writes, self.last[0] + self.last[1]))
        if joins:
            last = self.last
        elif meets(self.last) or meets(self.since):
            self.lines[-1][3] = 1
            self.since, last = ([], []), ([], [])
        else:
            self.since = self.since[0] + self.last[0], self.since[1] + self.last[1]
            last = [], []
        self.last, self.by_row = (last[0] + reads, last[1] + writes), by_row
        self.keep.append(args)
        self.lines.append([kernel, args.buffer_info()[0], n_chunks, 0, joins])

    def finish(self, n_threads, sequence=None):
        """Turn the lines into the table that emit_run walks.

        sequence: address of emit_sequence, for lines that join; None: they get barriers instead
        """
        table, at = [], 0
        while at < len(self.lines):
            end = at + 1
            while end < len(self.lines) and self.lines[end][4]:
                end += 1
            if sequence and end - at > 1:
                calls = array("q", [x for line in self.lines[at:end] for x in line[:2]])
                args = array("q", (calls.buffer_info()[0], end - at))
                self.keep += calls, args
                table += sequence, args.buffer_info()[0], self.lines[at][2], self.lines[end - 1][3]
            else:
                for line in self.lines[at:end - 1]:
                    table += *line[:3], 1
                table += self.lines[end - 1][:4]
            at = end
        n = len(table) // 4
        self.table, self.n_threads = array("q", table), n_threads
        self.counter_bytes = (n + 1) * COUNTER_BYTES
        self.counters = Memory(self.counter_bytes)
        self.args = array("q", (self.table.buffer_info()[0], n, self.counters.address,
                                self.counters.address + n * COUNTER_BYTES, n_threads,
                                system_yield()))

    def clear(self):
        """Set all counters to zero, as they must be before a run."""
        ctypes.memset(self.counters.address, 0, self.counter_bytes)


def record_in(arena, write_down):
    """Return (Program, what write_down(program) returned), in `arena` or, if need be, a larger.

    arena: the target's memory, with address, n_bytes and a class that makes more of it
    """
    while True:
        program = Program(arena)
        result = write_down(program)
        if program.peak_bytes <= arena.n_bytes:
            return program, result
        arena = type(arena)(program.peak_bytes)


# 17.3 The operation surface, written down.  What is the same for every target stands here.

SLICE = 8192                            # elements of a chunk of an element-wise operation


def _located(**buffers):
    """Return the fields that tell a kernel where Buffers lie: NAME and NAME_row_bytes."""
    fields = {}
    for name, buffer in buffers.items():
        fields[name], fields[name + "_row_bytes"] = buffer.address, buffer.row_bytes
    return fields


class Recorder:
    """The operations of 4.4 over Buffers instead of rows, written down instead of computed.

    Each method appends lines to `program` and returns the Buffer that they will fill.  What
    differs from target to target is left to a subclass, which adds
        matmul and attention    the two whose work it has to divide
        line(n_chunks, reads, writes, name, *parameters, by_row=False, example=None, **fields)
                                append a call of the kernel of that name
        vector(values)          the address of a weight vector, array('f')
        matrix(w)               (address, Format) of a weight matrix, a Tensor
        angles(table)           the addresses of a RopeTable's cosines and of its sines
    Addresses are the target's own.
    dropped: what argmax finds of the rows that do not all go on; whether they are finite
    counts, though nothing else of them does
    """

    def __init__(self, program):
        self.program, self.dropped = program, []

    def buffer(self, n_rows, n):
        return Buffer(self.program, n_rows, n, 4 * n_rows * n)

    def elementwise(self, kernel, x, *more, c=None):
        """Record an operation on elements, cut in slices; more: further inputs."""
        out = self.buffer(x.n_rows, x.n)
        slice = min(SLICE, -(-x.n // 8) * 8)
        slices = -(-x.n // slice)
        fields = dict(_located(x=x, out=out), n=x.n, slice=slice, slices=slices)
        reads = [x]
        for y in more:
            if isinstance(y, Buffer):
                fields.update(_located(y=y))
                reads.append(y)
            else:                       # one row, added to each
                fields.update(y=self.vector(y), y_row_bytes=0)
        if c is not None:
            fields["c_bits"] = f32_bits(c)
        self.line(x.n_rows * slices, reads, [out], kernel, by_row=slices == 1, **fields)
        return out

    def done(self, x):
        """Return x as a Buffer (or a row); what was only promised is recorded now."""
        return self.elementwise(x.alone, x.x) if isinstance(x, Promise) else x

    def embed(self, w, index, reads=()):
        """Record out[r] = row index[r] of w; index: Index, of what is in the Buffers `reads`."""
        out = self.buffer(index.n_rows, w.shape[1])
        address, format = self.matrix(w)
        self.line(out.n_rows, [*reads], [out], "embed", format, out.n,
                  tokens=index.address, w=address, y=out.address, y_stride=out.row_bytes)
        return out

    def quantized(self, x, group):
        """Return x in int8, in groups of so many rows; once for all matrices that it meets."""
        if group not in x.quantized:
            n_blocks = x.n // ACT_BLOCK
            xq = Buffer(self.program, x.n_rows, x.n, ACT_RECORD * n_blocks * x.n_rows)
            self.line(x.n_rows, [x], [xq], "quantize", by_row=True, x=x.address,
                      xq=xq.address, n_blocks=n_blocks, n_rows=x.n_rows, group=group)
            x.quantized[group] = xq
        return x.quantized[group]

    def route(self, x, n_used, normalize):
        assert x.n <= MAX_EXPERTS, "what a route keeps a copy of"
        experts, weights = self.buffer(x.n_rows, n_used), self.buffer(x.n_rows, n_used)
        self.line(x.n_rows, [x], [experts, weights], "route", by_row=True, **_located(x=x),
                  n=x.n, n_used=n_used, normalize=int(normalize),
                  experts=experts.address, weights=weights.address)
        return Route(n_used, experts, weights)

    def mix(self, x, route):
        out = self.buffer(route.weights.n_rows, x.n)
        self.line(out.n_rows, [x, route.weights], [out], "mix", by_row=True,
                  **_located(x=x, out=out), weights=route.weights.address, n_used=route.n_used,
                  n=x.n)
        return out

    def gate(self, x, g):
        out = self.buffer(x.n_rows, x.n)
        self.line(x.n_rows, [x, g], [out], "gate", by_row=True, **_located(x=x, g=g, out=out),
                  n=x.n)
        return out

    def add(self, x, y, route=None):
        if route is not None:           # each pick's expert's row of y
            y = self.embed(y, Index(route.experts.address, x.n_rows), [route.experts])
        return self.elementwise("add", self.done(x), self.done(y))

    def mul(self, x, y):
        if isinstance(y, float):
            return self.elementwise("scale", self.done(x), c=y)
        if isinstance(x, Promise):      # the activation and the product in one pass
            return self.elementwise(x.fused, x.x, self.done(y))
        return self.elementwise("mul", x, self.done(y))

    def silu(self, x):
        return Promise(self.done(x), "silu", "silu_mul")

    def gelu(self, x):
        return Promise(self.done(x), "gelu", "gelu_mul")

    def gelu_erf(self, x):
        return self.elementwise("gelu_erf", self.done(x))

    def swiglu_clamped(self, gate, up):
        return self.elementwise("swiglu_clamped", self.done(gate), self.done(up))

    def softcap(self, x, cap):
        return self.elementwise("softcap", x, c=cap)

    def rms_norm(self, x, w, eps):
        out = self.buffer(x.n_rows, x.n)
        self.line(x.n_rows, [x], [out], "rms_norm", by_row=True, **_located(x=x, out=out),
                  w=self.vector(w), n=len(w), runs=x.n // len(w), eps_bits=f32_bits(eps))
        return out

    def layer_norm(self, x, w, b, eps):
        out = self.buffer(x.n_rows, x.n)
        self.line(x.n_rows, [x], [out], "layer_norm", by_row=True, **_located(x=x, out=out),
                  w=self.vector(w), b=0 if b is None else self.vector(b), n=x.n,
                  eps_bits=f32_bits(eps))
        return out

    def rows(self, x, index):
        if index.n_rows < x.n_rows:
            self.dropped.append(self.argmax(x))
        out = self.buffer(index.n_rows, x.n)
        self.line(out.n_rows, [x], [out], "rows", **_located(x=x, out=out), index=index.address,
                  n=x.n)
        return out

    def rope(self, x, positions, table, head_dim):
        out = self.buffer(x.n_rows, x.n)
        cos, sin = self.angles(table)
        self.line(x.n_rows, [x], [out], "rope", table.pairing, by_row=True, example=table,
                  **_located(x=x, out=out), positions=positions.address, cos=cos, sin=sin,
                  n_heads=x.n // head_dim, head_dim=head_dim, n_rot=table.n_rot)
        return out

    def encode(self, x, format, importance, refused):
        """Record format.encode of each row.

        importance: array('f') (n,) or None   refused: Memory, whose first number is set to 1
        where chapter 1 would raise
        """
        importance, row_bytes = heeded_importance(importance), format.n_bytes(x.n)
        out = ByteRows(self.program, x.n_rows, row_bytes, x.n_rows * row_bytes)
        self.program.keep += importance, refused
        self.line(x.n_rows, [x], [out], "encode", format, x.n,
                  "alike" if importance is None else "weighted", by_row=True, **_located(x=x),
                  out=out.address, out_row_bytes=row_bytes, refused=refused.address,
                  importance=0 if importance is None else importance.buffer_info()[0])
        return out

    def argmax(self, x):
        """Record, for each row, where its largest value is, and whether all are finite."""
        out = Buffer(self.program, x.n_rows, 4, 16 * x.n_rows)
        self.line(x.n_rows, [x], [out], "argmax", **_located(x=x), n=x.n, out=out.address)
        return out


# 17.4 Recording for the processor

SHARES = 8                              # chunks a thread, in which a weight's rows are dealt out
PANEL_ROWS = 32                         # weight rows of a chunk where many activations meet them
ATTENTION_ROWS = 16                     # neighbouring rows that share the loading of keys
LONG_POSITIONS = 4 * CHUNK              # of a row whose attention is divided by position, too
PARTS = 4                               # then, units of attention a thread
SCRATCH_BYTES = 8 << 20                 # of each thread; committed as it is written
FULL_U8 = ("vnni", "avxvnni")           # where dot4_us takes all unsigned bytes, see emit_matmul

class Kernels:
    """Compiled kernels: each is encoded when it is first asked for.

    found: (name, parameters) -> (address, Builder)   codes: what they lie in
    """

    def __init__(self, isa):
        self.isa, self.found, self.codes = isa, {}, []

    def __call__(self, name, *parameters):
        """Return (address, Builder) of a kernel.  Raises BackendFault."""
        key = name, parameters
        if key not in self.found:
            k = build(KERNELS[name].emit, *parameters)
            code, reason = compile_kernels([k], self.isa)
            if code is None:
                raise BackendFault(reason)
            self.codes.append(code)
            self.found[key] = code.addresses[0], k
        return self.found[key]

    def close(self):
        for code in self.codes:
            code.close()


class Resident:
    """What programs read where it lies: weights, and tables of angles at fixed addresses.

    held: by id, weights, and what was made of them; holding them keeps the ids their own
    ropes: by id, (RopeTable, Memory of its cosines, of its sines, [positions filled in])
    """

    def __init__(self):
        self.held, self.ropes = {}, {}

    def vector(self, values):
        """Return the address of a weight vector, array('f')."""
        self.held[id(values)] = values
        return values.buffer_info()[0]

    def matrix(self, w):
        """Return w itself, or, where its rows do not lie one after another, a copy that does."""
        if id(w) not in self.held:
            self.held[id(w)] = w, w if w.contiguous else Tensor(
                w.name, FORMATS["F32"], w.shape, w.floats().tobytes())
        return self.held[id(w)][1]

    def experts(self, w):
        """Return the address of the addresses of a list of matrices, each contiguous."""
        if id(w) not in self.held:
            self.held[id(w)] = w, array("q", [expert.address() for expert in w])
        return self.held[id(w)][1].buffer_info()[0]

    def angles(self, table, n_positions):
        """Return the addresses of a RopeTable's cosines and of its sines."""
        if id(table) not in self.ropes:
            n_bytes = 4 * n_positions * len(table.freqs)
            self.ropes[id(table)] = table, Memory(n_bytes), Memory(n_bytes), [0]
        return [memory.address for memory in self.ropes[id(table)][1:3]]

    def fill(self, last):
        """Bring the cosines and sines of positions up to `last` to where kernels read them."""
        for table, cos, sin, filled in self.ropes.values():
            if last >= filled[0]:
                table.rows(last)
                done = len(table.freqs) * filled[0]
                for memory, values in ((cos, table.cos), (sin, table.sin)):
                    memory.write(4 * done, memoryview(values)[done:])
                filled[0] = len(table.cos) // len(table.freqs)


class Recording(Recorder):
    """One recording for the processor's threads.

    kernels: Kernels   resident: Resident   n_positions: of the tables of angles
    divided: whether the attention of one row is divided among the threads by position
    """

    def __init__(self, program, kernels, resident, n_threads, n_positions, divided):
        super().__init__(program)
        self.kernels, self.resident, self.n_threads = kernels, resident, n_threads
        self.n_positions, self.divided = n_positions, divided

    def line(self, n_chunks, reads, writes, name, *parameters, by_row=False, example=None,
             **fields):
        if n_chunks:
            address, k = self.kernels(name, *parameters)
            self.program.line(address, n_chunks, [b.span for b in reads],
                              [b.span for b in writes], k.args_array(**fields), by_row)
            self.program.calls.append(Call(name, parameters, fields, n_chunks, example))

    def vector(self, values):
        return self.resident.vector(values)

    def matrix(self, w):
        w = self.resident.matrix(w)
        return w.address(), w.format

    def angles(self, table):
        return self.resident.angles(table, self.n_positions)

    def chunk_rows(self, w, n_rows):
        """Return how many rows of a weight make a chunk: a multiple of 8, some chunks a thread."""
        n_out, n_in = w.shape
        if not w.format.sub_len or n_rows <= matvec_rows(w.format):
            return max(8, n_out // (SHARES * self.n_threads) + 7 & ~7)
        rows = PANEL_ROWS if n_rows > 16 else PANEL_ROWS // 2
        while matmul_scratch_bytes(w.format, n_in, rows) > SCRATCH_BYTES:
            if rows == 8:
                raise BackendFault(f"rows of {n_in} weights are too long for its scratch memory")
            rows //= 2
        return rows

    def matmul(self, w, x, route=None):
        x = self.done(x)
        if route is not None:
            return self.matmul_picks(w, x, route)
        w = self.resident.matrix(w)
        n_out, n_in = w.shape
        out = self.buffer(x.n_rows, n_out)
        chunk_rows = self.chunk_rows(w, x.n_rows)
        fields = dict(w=w.address(), y=out.address, n_out=n_out, chunk_rows=chunk_rows,
                      n_rows=x.n_rows, y_stride=out.row_bytes)
        n_chunks = -(-n_out // chunk_rows) if x.n_rows else 0
        if w.format.sub_len is None:
            self.line(n_chunks, [x], [out], "matmul_float", w.format, n_in,
                      x=x.address, **fields)
            return out
        xq = self.quantized(x, min(x.n_rows, ACT_GROUP))
        if x.n_rows <= matvec_rows(w.format):
            kernel = "matvec", w.format, n_in, min(8, n_out), x.n_rows
        else:                           # VNNI multiplies bytes without a sign up to 255
            kernel = "matmul", w.format, n_in, min(8, n_out), self.kernels.isa in FULL_U8
        self.line(n_chunks, [xq], [out], *kernel, x=xq.address, **fields)
        return out

    def matmul_picks(self, w, x, route):
        """Record matmul with a route.

        w: a list of matrices of one shape and format, contiguous
        """
        format, (n_out, n_in) = w[0].format, w[0].shape
        n_picks = route.experts.n_rows * route.n_used
        out = self.buffer(n_picks, n_out)
        chunk_rows = max(8, n_out * n_picks // (SHARES * self.n_threads) + 7 & ~7)
        if n_picks > route.n_used:      # rows may share experts, and then what a cache holds
            chunk_rows = min(chunk_rows, PANEL_ROWS)
        if format.sub_len is None:
            kernel = "matmul_float", format, n_in
        else:
            x, kernel = self.quantized(x, 1), ("matvec", format, n_in, min(8, n_out), 1)
        self.line(-(-n_out // chunk_rows) * n_picks, [x, route.experts], [out], "pick", format,
                  n_in, example=len(w), kernel=self.kernels(*kernel)[0],
                  table=self.resident.experts(w),
                  x=x.address, y=out.address, n_out=n_out, chunk_rows=chunk_rows,
                  y_stride=out.row_bytes, experts=route.experts.address, n_picks=n_picks,
                  per_row=n_picks // x.n_rows)
        return out

    def pages(self, batch, layer, spec):
        """Return (what stands for the layer's part of all pages, fields that tell where it is)."""
        pool = batch.cache
        self.program.keep.append(batch)     # and by it the pool and the page tables
        arena = address_of(pool.arena)
        return Span(arena + pool.layer_offs[layer], 1), dict(
            tables=batch.tables, positions=batch.positions.address, arena=arena,
            page_bytes=pool.page_bytes, layer_off=pool.layer_offs[layer],
            page_size=pool.page_size, n_kv_heads=spec.n_kv_heads)

    def store(self, k, v, batch, layer, spec):
        pages, common = self.pages(batch, layer, spec)
        self.line(k.n_rows, [k, v], [pages], "kv_store", batch.cache.kv_type, spec.head_dim,
                  by_row=True, **_located(k=k, v=v), **common)

    def attention(self, q, k, v, batch, layer, spec):
        pool, out = batch.cache, self.buffer(q.n_rows, q.n)
        self.store(k, v, batch, layer, spec)
        pages, common = self.pages(batch, layer, spec)
        heads, parts, rows = self.attention_shares(q.n_rows, spec)
        scratch, slots, partials = AttentionScratch(spec.head_dim), 0, None
        if scratch.n_bytes > SCRATCH_BYTES:
            raise BackendFault(f"heads of {spec.head_dim} are too wide for its scratch memory")
        if parts > 1:
            slots = self.n_positions // CHUNK + 2
            partials = Buffer(self.program, q.n_rows, slots,
                              q.n_rows * spec.n_heads * slots * scratch.slot_bytes)
        shared = dict(_located(out=out), n_heads=spec.n_heads, window=spec.window, slots=slots,
                      partials=partials.address if partials else 0,
                      sinks=0 if spec.sinks is None else self.vector(spec.sinks))
        units = -(-q.n_rows // rows) * (spec.n_heads // heads)
        self.line(units * parts, [q, pages], [partials or out], "attention", pool.kv_type,
                  spec.head_dim, bool(spec.cap), example=(pool, spec), **_located(q=q),
                  scale_bits=f32_bits(spec.scale), cap_bits=f32_bits(spec.cap), n_rows=q.n_rows,
                  rows=rows, heads=heads, parts=parts, **shared, **common)
        if partials:
            self.line(q.n_rows * spec.n_heads, [partials], [out], "attention_merge",
                      spec.head_dim, example=(pool, spec), positions=batch.positions.address,
                      heads=1, **shared)
        return out

    def attention_shares(self, n_rows, spec):
        """Return (heads, parts, rows): how many of them a unit of attention takes together.

        parts: in how many the positions of a unit are divided
        """
        group, parts = spec.n_heads // spec.n_kv_heads, 1
        heads = max(h for h in range(1, 9) if group % h == 0)
        rows = 1 if n_rows < ATTENTION_ROWS else min(ATTENTION_ROWS, ATTENTION_PAIRS // heads)
        units = -(-n_rows // rows) * (spec.n_heads // heads)
        if self.divided and rows == 1 and units < PARTS * self.n_threads:
            parts = -(-PARTS * self.n_threads // units)
        else:
            while heads % 2 == 0 and units < self.n_threads:
                heads, units = heads // 2, 2 * units    # rather than a thread without a unit
        assert rows * heads <= ATTENTION_PAIRS, "what a unit of attention keeps"
        return heads, parts, rows


# ---------------------------------------------------------------------------------------
# 18. Threads
#
# The threads of a run share one program: the caller's thread walks its table, and so does each
# worker.  Between runs a worker sleeps on a lock.  What makes that safe is written at Team.

class Team:
    """The threads that run programs: the caller's, which is number 0, and workers.

    run_kernel: the native `emit_run`   n_threads: how many there are; fewer than asked for
    where the system gives no more   job: (number of the run going on, its Program)
    seen: the last run that each thread has finished

    Worker i sleeps in go[i].acquire(), the caller in done[i].acquire(); so each lock is taken by
    one thread only and opened by one only.  Nobody is forgotten, and nobody waits for ever:
    - A run becomes public in one assignment, to `job`, before any lock is opened for it.  A
      worker looks at `job` after it got its lock.  If go[i] is open already, from an earlier
      run, then worker i has yet to take it, and looks afterwards.
    - Worker i sets seen[i], then opens done[i] if it is closed.  The caller looks at seen[i],
      and takes done[i] only while the run is not seen.  If done[i] was still open, from an
      earlier run, it takes that for nothing, looks again and takes again; it sleeps only if the
      worker has yet to come to seen[i], and then the worker finds done[i] closed and opens it.
    - A lock may be opened once too often (a worker that finds nothing new sleeps again), and a
      table walked once too often: all chunks are taken, and at each barrier of a finished run
      enough threads have arrived.  So a worker that lacks memory at any line begins its share
      again, and a run that Ctrl-C broke off at any line of `run` or `complete` is completed by
      calling `complete` again, before the next one begins.
    - `job` holds the program, and that its arena, inputs and arguments, until it is completed.
    """

    def __init__(self, run_kernel, n_threads):
        self.run_kernel, self.job, self.threads = run_kernel, (0, None), []
        self.seen = [0] * n_threads
        self.scratch = [Memory(MODE_BYTES + SCRATCH_BYTES) for _ in range(n_threads)]
        self.go = [threading.Lock() for _ in range(n_threads)]
        self.done = [threading.Lock() for _ in range(n_threads)]
        for lock in self.go + self.done:
            lock.acquire()
        for i in range(1, n_threads):
            try:
                thread = threading.Thread(target=self._work, args=(i,), daemon=True)
                thread.start()
            except RuntimeError as error:   # a limit on processes; a subinterpreter
                warn(f"going on with {i} of {n_threads} threads: {error}")
                break
            self.threads.append(thread)
        self.n_threads = len(self.threads) + 1

    def _work(self, i):
        woken = False
        while True:
            try:
                if not woken:
                    self.go[i].acquire()
                    woken = True
                if not self._serve(i):
                    return
                woken = False
            except MemoryError:         # the others wait for this thread, so it tries again
                pass

    def _serve(self, i):
        """Do a worker's share of the run going on; return whether there will be more."""
        job = self.job
        if job is None:
            return False
        turn, program = job
        if i < program.n_threads:
            if self.seen[i] != turn:
                self._walk(i, turn, program)
            if self.done[i].locked():
                self.done[i].release()
        return True

    def _walk(self, i, turn, program):
        self.run_kernel(program.args.buffer_info()[0], 0, self.scratch[i].address)
        self.seen[i] = turn

    def complete(self):
        """Bring the run going on to its end; nothing to do if it has come there."""
        turn, program = self.job
        workers = range(1, program.n_threads if program else 1)
        for i in workers:
            if self.seen[i] != turn and self.go[i].locked():
                self.go[i].release()
        if self.seen[0] != turn:
            self._walk(0, turn, program)
        for i in workers:
            while self.seen[i] != turn:
                self.done[i].acquire()

    def run(self, program):
        """Run a program on as many threads as it was finished for: all, or the caller's alone."""
        self.complete()
        program.clear()
        self.job = self.job[0] + 1, program
        try:
            self.complete()
        except BaseException:
            self.complete()
            raise

    def close(self):
        """End the workers, after the run going on."""
        if self.job is None:
            return
        self.complete()
        self.job = None
        for i, thread in enumerate(self.threads, 1):
            if self.go[i].locked():
                self.go[i].release()
            if thread is not threading.current_thread():    # which may be what collects garbage
                thread.join()


def usable_cpus():
    """Return the numbers of the logical processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def cpu_share(root="/"):
    """Return how many processors' time the control groups of this process leave it.

    Linux has them in two versions, and a group is bound by every group that it lies in.
    root: where proc and sys are mounted
    """
    share = math.inf
    try:
        with open(os.path.join(root, "proc/self/cgroup")) as f:
            groups = [line.rstrip("\n").split(":", 2) for line in f]
    except OSError:
        groups = []
    for _, controllers, path in [group for group in groups if len(group) == 3] + [("", "", "/")]:
        if controllers and "cpu" not in controllers.split(","):
            continue
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        parts = path.strip("/").split("/")
        for base, n in itertools.product({controllers, controllers and "cpu"},
                                         range(len(parts) + 1)):
            with contextlib.suppress(OSError, ValueError):      # "max" is no number
                words = []
                for name in files:
                    with open(os.path.join(root, "sys/fs/cgroup", base, *parts[:n], name)) as f:
                        words += f.read().split()
                quota, period = map(int, words)
                share = min(share, quota / period if quota > 0 < period else math.inf)
    return share


def usable_cores():
    """Return how many physical cores this process may use, by its affinity and its share."""
    cores = set()
    for cpu in usable_cpus():
        try:                            # "0,4" or "0-1": the threads that share a core
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as f:
                cores.add(f.read())
        except OSError:
            cores.add(cpu)
    return max(1, min(len(cores), int(min(cpu_share(), 1 << 20))))


# ---------------------------------------------------------------------------------------
# 19. Self-check
#
# Before a kernel is trusted on a machine it has to agree with chapter 4 on a small random
# input, once for each kind.  A trial is an operation of 4.4 and its inputs: the reference
# computes it, and a program of its own does.  Then the parts of Part II are put together: the
# backend `Native`.

ARENA_BYTES = 16 << 20                  # committed as it is written; so few recordings are redone
KEPT_PROGRAMS = 64                      # the oldest goes first
TRIAL_POSITIONS = 4                     # of a rope's table, whatever the model's context


def _check_key(kernel, parameters):
    """Return what makes two kernels alike enough to be tried once: n_in and lanes do not count."""
    return (kernel, *[p for p in parameters if isinstance(p, (str, Format))], *parameters[3:])


def compute_alone(native, operation, inputs, kernel=None):
    """Return (rows, as bytes, of operation(ops, *inputs), kernels called): a program by itself.

    kernel: what is tried; some are called only where lines join, or attention is divided
    """
    places, resident, divided = [], Resident(), kernel == "attention_merge"

    def write_down(program):
        recording = Recording(program, native.kernels, resident,
                              2 * PARTS if divided else 1, TRIAL_POSITIONS, divided)
        places[:] = [recording.buffer(len(x), len(x[0]) if isinstance(x[0], array) else 1)
                     for x in inputs]
        return recording.done(operation(recording, *(
            place if isinstance(x[0], array) else Index(place.address, len(x))
            for place, x in zip(places, inputs))))

    program, out = record_in(Memory(ARENA_BYTES), write_down)
    program.finish(1, native.kernels("sequence")[0] if kernel == "sequence" else None)
    for place, x in zip(places, inputs):
        rows = x if isinstance(x[0], array) else [array("i", x)]
        program.arena.write(place.address - program.arena.address, b"".join(map(bytes, rows)))
    resident.fill(TRIAL_POSITIONS - 1)
    program.keep.append(resident)
    native.team.run(program)
    return ([ctypes.string_at(out.address + r * out.row_bytes, out.row_bytes)
             for r in range(out.n_rows)], {call.kernel for call in program.calls})


def check_kernel(native, call):
    """Compare a recorded kernel with the reference on a small input.  Raises BackendFault."""
    trial = KERNELS[call.kernel].trial
    if not isinstance(trial, str):
        operation, inputs = trial(call)
        expected = [row.tobytes() for row in operation(Reference(), *inputs)]
        found, called = compute_alone(native, operation, inputs, call.kernel)
        assert call.kernel in called or call.kernel == "sequence", "a trial tries its kernel"
        if found != expected:
            raise BackendFault(f"the {native.isa} code of {call.kernel}{call.parameters} does "
                               "not compute on this machine what it should")


class RowSearch:
    """What a sampler asks about one row of logits, outside of any program.

    kernels: Kernels; those called here use no scratch memory
    """

    def __init__(self, kernels):
        self.kernels = kernels

    def call(self, kernel, row, **fields):
        """Run a kernel on one row, an array('f')."""
        address, builder = self.kernels(kernel)
        args = builder.args_array(x=row.buffer_info()[0], x_row_bytes=0, n=len(row), **fields)
        alone, scratch = self.kernels("alone")[0], array("q", bytes(MODE_BYTES))
        call = array("q", (address, args.buffer_info()[0]))
        KERNEL_FUNCTION(alone)(call.buffer_info()[0], 0, scratch.buffer_info()[0])

    def largest(self, row, k):
        """As Backend.largest; only what reaches a threshold is sorted."""
        found, n = array("i", (0, 0, 0, 0)), len(row)
        self.call("argmax", row, out=found.buffer_info()[0])
        top, depth, count = row[found[0]], 2.0, array("q", (0,))
        values, indices = Memory(4 * n), Memory(4 * n)
        while count[0] < k:
            if top - depth < -F32_MAX:
                raise BackendFault("the machine code for sampling finds too few numbers")
            depth *= 2
            threshold = array("f", (top - depth,))
            self.call("compact", row, capacity=n, threshold=threshold.buffer_info()[0],
                      values=values.address, indices=indices.address,
                      counts=count.buffer_info()[0])
        pairs = zip(array("f", ctypes.string_at(values.address, 4 * count[0])),
                    array("i", ctypes.string_at(indices.address, 4 * count[0])))
        return [i for _, i in sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:k]]

    def exp_sum(self, row, top):
        """As Backend.exp_sum."""
        top, out = array("f", (top,)), array("f", (0.0,))
        self.call("exp_sum", row, top=top.buffer_info()[0], out=out.buffer_info()[0])
        return out[0]

    def check(self):
        """Compare the kernels with the reference.  Raises BackendFault."""
        row, = _trial_rows(1, 77, 3)
        plain = Reference()
        if self.largest(row, 20) != plain.largest(row, 20) or \
                self.exp_sum(row, row[0]) != plain.exp_sum(row, row[0]):
            raise BackendFault(f"the {self.kernels.isa} code for sampling does not compute on "
                               "this machine what it should")


class Inputs:
    """Where programs find the rows of a run: tables (i64), tokens, positions, wanted (i32)."""

    def __init__(self, n_rows):
        self.n_rows, self.memory = n_rows, Memory(20 * n_rows)

    def recorded(self, batch):
        """Return the Recorded that stands for a batch of as many rows as this one."""
        at = self.memory.address
        tokens, positions, wanted = (at + off * self.n_rows for off in (8, 12, 16))
        n_rows = len(batch.tokens)
        return Recorded(Index(tokens, n_rows), Index(positions, n_rows),
                        Index(wanted, len(batch.wanted)), at, batch.cache, batch.layers,
                        None, None if batch.left is None else [])

    def fill(self, batch):
        """Write what a batch holds to where the programs look for it."""
        for off, kind, values in (
                (0, "q", [seq.table.buffer_info()[0] for seq in batch.sequences]),
                (8, "i", batch.tokens), (12, "i", batch.positions), (16, "i", batch.wanted)):
            self.memory.write(off * self.n_rows, array(kind, values))


class Logits(array):
    """One row of logits; best: the index of its largest, which the machine code has found."""

    __slots__ = ("best",)


# A program is for a number of rows, and to record one takes as long as some tokens.  So that texts
# may come and go without new programs, there are programs for some numbers only, and the rows of
# a batch are filled up to the next of them.
def _bucket(n):
    """Return the number of rows of the program that runs n rows."""
    step = 1 if n <= 4 else 2 if n <= 8 else 4 if n <= 24 else 8 if n <= 48 else 16
    return -(-n // step) * step


class Native(Backend):
    """The backend of machine code: records programs, checks their kernels, runs them.

    kernels: Kernels   resident: Resident   row_search: RowSearch   team: Team
    programs: the records, by number of rows, layers, and what goes through them
    checked: the kinds of kernels that agreed with chapter 4, by _check_key
    arena: Memory for the Buffers   peak_bytes: used of it, at most   inputs: Inputs
    """

    name, runs_ranges = "native", True
    prefill_rows = 192                      # a multiple of the six rows that a tile holds

    def __init__(self, isa, n_threads, required=False):
        self.required = required
        self.isa, self.kernels, self.resident = isa, Kernels(isa), Resident()
        self.row_search, self.checked = RowSearch(self.kernels), set()
        self.arena, self.peak_bytes = Memory(ARENA_BYTES), 0
        self.inputs, self.programs = Inputs(self.prefill_rows), {}
        self.n_threads, self._team = n_threads, None
        self.team                       # so that what the system lacks is known now

    @property
    def team(self):
        """The Team, made when it is first needed: in a forked child, once more."""
        if self._team is None:
            self._team = Team(KERNEL_FUNCTION(self.kernels("run")[0]), self.n_threads)
            if self._team.n_threads < self.n_threads:
                self.n_threads = self._team.n_threads
                self.programs.clear()   # they would wait for the missing ones
        return self._team

    def after_fork(self):
        """Forget the threads, of which a forked child has none."""
        self._team = None

    def close(self):
        """End the threads, then free the code that they ran."""
        if getattr(self, "_team", None) is not None:
            self._team.close()
            self._team = None
        if hasattr(self, "kernels"):
            self.kernels.close()

    __del__ = close

    def run(self, forward, model, batch):
        """Return the logits of the wanted rows: record the forward pass, or use the record."""
        n_wanted = len(batch.wanted)
        batch = batch.padded(_bucket(len(batch.tokens)), _bucket(n_wanted))
        team, divided = self.team, self.is_divided(batch)
        key = (len(batch.tokens), len(batch.wanted), divided, id(batch.cache), batch.layers,
               forward)
        program = self.programs.get(key)
        if program is None:
            program = self.record(forward, model, batch, divided)
            program.calls = None
            if len(self.programs) == KEPT_PROGRAMS:
                del self.programs[next(iter(self.programs))]
            self.programs[key] = program
        return self.run_program(team, program, batch)[:n_wanted]

    def is_divided(self, batch):
        """Return whether the attention of some row is worth dividing among the threads."""
        return self.n_threads > 1 and max(batch.positions) >= LONG_POSITIONS

    def record(self, forward, model, batch, divided):
        """Return the Program of a forward pass over so many rows; all its kernels are checked."""
        if len(batch.tokens) > self.inputs.n_rows:
            self.programs.clear()
            self.inputs = Inputs(len(batch.tokens))
        n_positions = max(model.ctx_size, TRIAL_POSITIONS)

        def write_down(program):
            recording = Recording(program, self.kernels, self.resident, self.n_threads,
                                  n_positions, divided)
            rows = self.inputs.recorded(batch)
            if batch.hidden:
                rows = rows._replace(hidden=recording.buffer(len(batch.tokens),
                                                             model.hparams.hidden))
            result = forward(model, recording, rows)
            return result, recording.argmax(result), recording.dropped, rows

        program, (logits, best, dropped, rows) = record_in(self.arena, write_down)
        if program.arena is not self.arena:     # then the smaller one serves nobody
            self.programs.clear()
            self.arena = program.arena
        self.peak_bytes = max(self.peak_bytes, program.peak_bytes)
        program.finish(self.n_threads, self.kernels("sequence")[0])
        program.output = logits.address, best.address, logits.n_rows, logits.n
        program.looked_at = [(b.address, b.n_rows) for b in dropped + [best]]
        program.inputs, program.hidden = self.inputs, rows.hidden and rows.hidden.address
        program.left = (rows.left[0].address, rows.left[0].n) if rows.left else None
        with self.own_mode():           # the reference of the trials, too
            self.check(program)
        return program

    @contextlib.contextmanager
    def own_mode(self):
        """Have this thread compute floats in our mode; see emit_mode."""
        host, function = array("q", (0, 0)), KERNEL_FUNCTION(self.kernels("mode")[0])
        enter, leave = (array("q", (host.buffer_info()[0], flag)) for flag in (1, 0))
        function(enter.buffer_info()[0], 0, 0)
        try:
            yield
        finally:
            function(leave.buffer_info()[0], 0, 0)

    def check(self, program):
        """Try what has not been tried of the kernels that a program calls, and the sampler's."""
        if not self.checked:
            self.row_search.check()
        for call in program.calls + [Call("sequence", (), {}, 1, None)]:
            key = _check_key(call.kernel, call.parameters)
            if key not in self.checked:
                check_kernel(self, call)
                self.checked.add(key)

    def run_program(self, team, program, batch):
        """Fill in a batch, run the program, and return a copy of its logits, a row each."""
        program.inputs.fill(batch)
        if batch.hidden:
            program.arena.write(program.hidden - program.arena.address,
                                b"".join(map(bytes, batch.hidden)))
        self.resident.fill(max(batch.positions))
        team.run(program)
        address, best_address, n_rows, n = program.output
        for found, n_found in program.looked_at:
            if any(array("i", ctypes.string_at(found, 16 * n_found))[2::4]):
                raise KshipraError(NOT_FINITE)
        best, out = array("i", ctypes.string_at(best_address, 16 * n_rows)), []
        for r in range(n_rows):
            row = Logits("f")           # and not made from bytes, which are read one by one
            row.frombytes(program.arena.view(address + 4 * n * r, 4 * n))
            row.best = best[4 * r]
            out.append(row)
        if batch.left is not None:
            address, n = program.left
            x = array("f", bytes(program.arena.view(address, 4 * n * len(batch.rows))))
            batch.left.append([x[r:r + n] for r in range(0, len(x), n)])
        return out

    def timed_run(self, forward, model, batch):
        """Return (logits, [(Call, seconds)]): a run line by line.

        Every line gets a barrier, and the threads note the time after each.
        """
        team = self.team
        program = self.record(forward, model, batch, self.is_divided(batch))
        program.lines = [[0, 0, 0, 1, 0]] + [line[:3] + [1, 0] for line in program.lines]
        program.finish(self.n_threads)
        untimed = team.run_kernel
        team.run_kernel = KERNEL_FUNCTION(self.kernels("run", system_clock())[0])
        try:
            logits = self.run_program(team, program, batch)
        finally:
            team.run_kernel = untimed
        stamps = [system_time(program.counters.address + COUNTER_BYTES * i + STAMP_OFF)
                  for i in range(len(program.lines))]
        return logits, list(zip(program.calls, map(sub, stamps[1:], stamps)))

    def largest(self, row, k):
        """As Backend.largest; of a few out of many, by kernels."""
        if k > len(row) // 8 or len(row) < 4096:
            return super().largest(row, k)
        return self.row_search.largest(row, k)

    def exp_sum(self, row, top):
        return self.row_search.exp_sum(row, top)


# ---------------------------------------------------------------------------------------
# Part III. Around the engine
#
# What a caller of the engine needs beside it: tools, the two doors, and a model.


# ---------------------------------------------------------------------------------------
# 20. Tools
#
# Where does the time go, and why there?  A profile runs the model on operations that call
# the real ones and note of each call its seconds, the bytes it cannot avoid to move and the
# arithmetic it cannot avoid to do.  The limits of the machine are measured by emitted loops
# that only read, or only compute.  An operation that does little for each byte waits for
# memory, one that does much for the arithmetic units: bytes / read speed and operations /
# compute speed are two times, and no kernel can beat the longer one.
#
# Source: Williams, Waterman and Patterson (2009), "Roofline", Communications of the ACM 52.

def call_cost(name, args, out):
    """Return (operation, bytes, operations) of a call of the reference."""
    if name == "matmul":
        w, n_experts = args[0], None
        if isinstance(w, list):
            w, n_experts = w[0], len(w)
        return matrix_cost(w.format, *w.shape, len(out), n_experts)
    if name == "route":
        return route_cost(len(args[0]), len(args[0][0]), args[1])
    if name == "mix":
        return mix_cost(len(out), len(out[0]), args[1].n_used)
    n_out = sum(map(len, out))
    if name == "embed":
        return name, len(out) * args[0].row_bytes + 4 * n_out, n_out
    if name == "attention":
        batch, spec = args[3], args[5]
        return attention_cost(batch, spec.window, spec.n_heads, spec.n_kv_heads, spec.head_dim)
    n_in = sum(len(row) for x in args[:2] if isinstance(x, list) for row in x
               if isinstance(row, array))
    return name, 4 * (n_in + n_out), OPERATIONS_EACH.get(name, 1) * n_out


class Profile:
    """The operations of another backend, each call timed.

    lines: {operation: [calls, seconds, bytes, operations]}
    """

    OPERATIONS = ("embed", "matmul", "route", "mix", "add", "mul", "rms_norm", "layer_norm",
                  "rope", "silu", "gelu", "gelu_erf", "swiglu_clamped", "gate", "attention",
                  "softcap")

    def __init__(self, ops):
        self.ops, self.lines = ops, {}

    def __getattr__(self, name):        # only asked for what is not here: the backend's own
        found = getattr(self.ops, name)
        if name not in self.OPERATIONS:
            return found

        def timed(*args):
            begun = time.perf_counter()
            out = found(*args)
            self.note(call_cost(name, args, out), time.perf_counter() - begun)
            return out

        return timed

    def note(self, cost, seconds):
        """Add one call.   cost: (operation, bytes, operations)"""
        line = self.lines.setdefault(cost[0], [0, 0.0, 0, 0])
        for i, value in enumerate((1, seconds, *cost[1:])):
            line[i] += value

    def run(self, forward, model, batch):
        """Run a forward pass, timed: call by call, or line by line of a recorded program."""
        if not hasattr(self.ops, "timed_run"):
            return self.ops.run(lambda *_: forward(model, self, batch), model, batch)
        logits, calls = self.ops.timed_run(forward, model, batch)
        for call, seconds in calls:
            self.note(KERNELS[call.kernel].cost(call, batch), seconds)
        return logits

    def fallback(self, fault):
        """Go on timing, on what the backend falls back to."""
        self.ops = self.ops.fallback(fault)
        return self


def profile(model, prompt, n):
    """Run a prompt and n tokens after it, greedily, on timed operations.

    prompt: token ids   -> {"prefill" and "decode": [a dict for each operation]}
    """
    found, seq, choose = {}, Sequence(model.cache), Sampler(temperature=0)
    timed = Profile(model.ops)
    try:
        for phase in ("prefill", "decode"):
            model.ops = timed = Profile(timed.ops)
            if phase == "prefill":
                logits = prefill(model, seq, prompt)
            else:
                for _ in range(n):
                    token = choose(logits, seq.tokens)
                    logits = model.step([(token, len(seq.tokens), seq)])[0]
            found[phase] = [
                dict(zip(("operation", "calls", "seconds", "bytes", "operations"), (name, *line)))
                for name, line in timed.lines.items()]
    finally:
        model.ops = timed.ops
        seq.truncate(0)
    return found


def early_exit_rows(model, prompt, n, thresholds):
    """Return rows of a table: what early exit gains and costs, greedily, at each threshold.

    They agree where the whole model, given the text so far, would have chosen the same token.
    """
    rows, choose, seq = [], Sampler(temperature=0), Sequence(model.cache)
    for threshold in (*thresholds, None):       # None: the whole model
        early_exit = None if threshold is None else EarlyExit(model, threshold)
        for _ in range(2):                      # the first time is for writing programs
            seq.truncate(0)
            if early_exit:
                early_exit.exits.clear()
                tokens = exiting(model, prompt, choose, seq, early_exit=early_exit)
            else:
                tokens = cached(model, prompt, choose, seq)
            text = prompt + [next(tokens)]
            begun = time.perf_counter()
            text += itertools.islice(tokens, n - 1)
            seconds = time.perf_counter() - begun
        seq.truncate(0)
        agreed = sum(choose(logits, []) == text[len(prompt) + i] for i, logits in enumerate(
            model.step([(t, i, seq) for i, t in enumerate(text[:-1])])[len(prompt) - 1:]))
        seq.truncate(0)
        exits = early_exit.exits if early_exit else {model.hparams.n_layers: n - 1}
        rows.append([str(threshold or "none"), short((n - 1) / seconds),
                     short(sum(layers * count for layers, count in exits.items())
                           / max(1, sum(exits.values()))), f"{agreed / n:.1%}",
                     ", ".join(f"{layers}: {exits[layers]}" for layers in sorted(exits))])
    return rows


# The loops that find the limits: each does one thing, on eight independent registers, so
# that no instruction waits for the one before.

def emit_read_only(k, ahead=0):
    """Read n times 256 bytes from `data`, and no more than look at them.

    ahead: ask for the memory so many bytes before it is read; 0: leave that to the processor
    """
    data, n, out = k.args("data", "n", "out")
    seen = [k.zero_i32x8() for _ in range(4)]
    with k.loop(n):
        for off in range(0, 256 if ahead else 0, 64):
            k.prefetch(data, ahead + off)
        for i in range(8):
            seen[i % 4] |= k.load_i32x8(data, 32 * i)
        k.advance(data=256)
    k.store_i32x8(out, (seen[0] | seen[1]) | (seen[2] | seen[3]))


def emit_dot_only(k):
    """Do n times eight dot products of 32 int8 numbers, 512 operations, on registers."""
    n, out = k.args("n", "out")
    x, y = k.const_i8x32(3), k.const_i8x32(-5)
    sums = [k.zero_i32x8() for _ in range(8)]
    with k.loop(n):
        for i in range(8):
            k.dot4_us(sums[i], x, y, to=sums[i])
    for total in sums[1:]:
        sums[0] += total
    k.store_i32x8(out, sums[0])


def emit_multiply_add_only(k):
    """Do n times eight multiplications and additions of eight floats, 128 operations."""
    n, out = k.args("n", "out")
    x = k.const_f32x8(1.0)
    sums = [k.zero_f32x8() for _ in range(8)]
    with k.loop(n):
        for i in range(8):
            sums[i] += x * x
    for total in sums[1:]:
        sums[0] += total
    k.store_f32x8(out, sums[0])


READ_BYTES = 128 << 20                  # read by each thread: more than any cache keeps
READ_AHEAD = 4096


def ceilings(threads=None):
    """Measure what this machine can do, or return None where code cannot be generated.

    -> {"read_bytes_s", "int8_ops_s", "f32_ops_s", "threads"}: the best of several tries
    """
    isa, _ = choose_isa(os.environ)
    if isa is None:
        return None
    n_threads = threads or usable_cores()
    kernels = [build(emit_read_only), build(emit_read_only, READ_AHEAD), build(emit_dot_only),
               build(emit_multiply_add_only)]
    code, _ = compile_kernels(kernels, isa)
    if code is None:
        return None
    data = [bytearray(b"\1") * READ_BYTES for _ in range(n_threads)]
    outs = [bytearray(32) for _ in range(n_threads)]

    def speed(i, fields, amount):
        """Return amount over the seconds that kernel i takes on all threads, at best."""
        arrays = [kernels[i].args_array(out=address_of(out), **fields(t))
                  for t, out in enumerate(outs)]
        best = math.inf
        for _ in range(5):
            team = [threading.Thread(target=code.function(i), args=(a.buffer_info()[0], 0, 0))
                    for a in arrays]
            begun = time.perf_counter()
            for thread in team:
                thread.start()
            for thread in team:
                thread.join()
            best = min(best, time.perf_counter() - begun)
        return n_threads * amount / best

    n_reads, n_rounds = (READ_BYTES - 2 * READ_AHEAD) // 256, 2_000_000
    found = {
        "read_bytes_s": max(speed(i, lambda t: {"data": address_of(data[t]), "n": n_reads},
                                  256 * n_reads) for i in (0, 1)),
        "int8_ops_s": speed(2, lambda t: {"n": n_rounds}, 512 * n_rounds),
        "f32_ops_s": speed(3, lambda t: {"n": n_rounds}, 128 * n_rounds), "threads": n_threads}
    code.close()
    return found


def against_ceiling(line, limits):
    """Return (percent of the best possible speed, which limit it is) for a line of a profile."""
    peak = limits["int8_ops_s" if line["operation"].startswith("matmul Q") else "f32_ops_s"]
    move_s, do_s = line["bytes"] / limits["read_bytes_s"], line["operations"] / peak
    percent = 100 * max(move_s, do_s) / max(line["seconds"], 1e-9)
    return percent, "memory-bound" if move_s >= do_s else "compute-bound"


def short(x, unit=""):
    """Return a number in three digits or so, as people write it."""
    if x is None:
        return "-"
    if x == 0:
        return "0" + unit
    if abs(x) < 1:
        return f"{x:.3g}{unit}"
    return f"{x:,.{max(0, 2 - math.floor(math.log10(abs(x))))}f}{unit}"


def duration(seconds):
    """Return seconds in the unit that keeps them short."""
    for least, factor, unit in ((1, 1, " s"), (1e-3, 1e3, " ms"), (0, 1e6, " us")):
        if seconds >= least:
            return short(seconds * factor, unit)
    return "-"


def count(x, unit=""):
    """Return a large number with a metric prefix."""
    for least, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= least:
            return f"{short(x / least)} {prefix}{unit}"
    return f"{short(x)} {unit}".strip()


def aligned(heads, rows):
    """Return rows of str in aligned columns; a head with "<" is of text, which goes left."""
    left = [head.startswith("<") for head in heads]
    rows = [[head.lstrip("<") for head in heads]] + rows
    widths = [max(len(row[i]) for row in rows) for i in range(len(left))]
    lines = ["  ".join(cell.ljust(w) if to_left else cell.rjust(w)
                       for cell, w, to_left in zip(row, widths, left)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(lines)


def profile_rows(lines, limits):
    """Return (heads, rows) of the table of one phase; limits: those of `ceilings`, or None."""
    heads = ["<operation", "calls", "time", "share", "moved", "done", "op/B"]
    heads += ["of limit", "<limit"] if limits else []
    total, rows = math.fsum(line["seconds"] for line in lines), []
    for line in sorted(lines, key=lambda line: -line["seconds"]):
        row = [line["operation"], str(line["calls"]), duration(line["seconds"]),
               f"{line['seconds'] / total:.1%}", count(line["bytes"], "B"),
               count(line["operations"], "op"), short(line["operations"] / max(1, line["bytes"]))]
        if limits:
            percent, bound = against_ceiling(line, limits)
            row += [f"{percent:.0f}%", bound if percent <= 100 else "none: in a cache"]
        rows.append(row)
    return heads, rows


def limits_text(limits):
    """Return what `ceilings` found as half a sentence."""
    return (f"limits measured here on {limits['threads']} threads: reading "
            f"{count(limits['read_bytes_s'], 'B/s')}, int8 {count(limits['int8_ops_s'], 'op/s')}, "
            f"float32 {count(limits['f32_ops_s'], 'op/s')}") if limits else \
        "no limits: they are measured by machine code, which this run does without"


def activation_bytes(hp, n_rows, n_vocab):
    """Return the size of all activations of a step, the logits of one row included."""
    q_dim, kv_dim = hp.n_heads * hp.head_dim, hp.n_kv_heads * hp.head_dim
    inside = 2 * hp.ffn if not hp.arch.experts else hp.n_used * (2 * hp.expert_ffn + hp.hidden)
    return 4 * (n_rows * (3 * hp.hidden + 2 * q_dim + 2 * kv_dim + inside) + n_vocab)


def memory_plan(checkpoint, hp, kv_type, n_rows, n_positions):
    """Return {name: bytes} of what a text of n_positions takes, n_rows a step.

    weights: mapped, so the system can drop them
    activations: of the widest step, the logits of one row included
    scores: a chunk of each head, merged before the next; a matrix would be n_heads * S * S
    """
    n_vocab = Loader(checkpoint, hp).embedding().shape[0]
    return {
        "weights": sum(t.n_bytes for t in checkpoint.tensors.values()),
        "KV": kv_position_bytes(hp, kv_type) * n_positions,
        "activations": activation_bytes(hp, n_rows, n_vocab),
        "scores": 4 * CHUNK * hp.n_heads,
    }


def kv_position_bytes(hp, kv_type):
    """Return what the k and v of one position take in all layers."""
    return 2 * hp.n_layers * hp.n_kv_heads * kv_vector_bytes(kv_type, hp.head_dim)


def ledger(model, n_rows, n_positions):
    """Return {name: bytes} of what a model holds after a text: its plan, as it came about.

    unpacked: copies of weights for plain Python
    """
    held = memory_plan(model.checkpoint, model.hparams, model.kv_type,
                       min(n_rows, model.prefill_rows), n_positions)
    held["activations"] = getattr(model.ops, "peak_bytes", 0) or held["activations"]
    return {**held, "unpacked": getattr(model.ops, "prepared_bytes", 0)}


# ---------------------------------------------------------------------------------------
# 21. Quantizing
#
# From a model of many bits a weight to one of few.  A tensor is taken some rows at a time:
# decoded to f32, encoded anew, written; so the memory that is needed does not grow with the
# model.  Decoding and encoding are two lines of a program (chapter 17), or chapter 1 where
# there is no machine code; the bytes are the same.
#
# Not all tensors deserve the same: norms and biases stay as they are, the output and, in the
# mixes called _M, a part of the layers are kept in better types.  Which ones, was found by
# trying; the rules are llama.cpp's, so that a type means the same here and there.
# Source: llama.cpp, llama-quant.cpp, llama_tensor_get_type.

# What can be asked for: the type of most tensors, and the number of general.file_type.
FILE_TYPES = {
    "F32": ("F32", 0), "F16": ("F16", 1), "BF16": ("BF16", 32), "Q4_0": ("Q4_0", 2),
    "Q4_1": ("Q4_1", 3), "Q5_0": ("Q5_0", 8), "Q5_1": ("Q5_1", 9), "Q8_0": ("Q8_0", 7),
    "Q2_K": ("Q2_K", 10), "Q3_K_S": ("Q3_K", 11), "Q3_K_M": ("Q3_K", 12), "Q3_K_L": ("Q3_K", 13),
    "Q4_K_S": ("Q4_K", 14), "Q4_K_M": ("Q4_K", 15), "Q5_K_S": ("Q5_K", 16),
    "Q5_K_M": ("Q5_K", 17), "Q6_K": ("Q6_K", 18), "IQ4_NL": ("IQ4_NL", 25),
    "IQ4_XS": ("IQ4_XS", 30), "MXFP4": ("MXFP4", 38)}
INSTEAD = {     # where a row is no multiple of 256
    "Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1",
    "Q6_K": "Q8_0"}
SLICE_WEIGHTS = 1 << 20                 # encoded at a time


def is_quantized(name, shape):
    """Whether a tensor of a GGUF is one that changes its type: a matrix, but no small one."""
    return len(shape) > 1 and name.endswith(".weight") and not re.search(
        r"_norm\.|ffn_gate_inp\.|position_embd\.|token_types\.", name)


def _in_better_third(i, n):
    """Whether layer i of n is of the first eighth, the last, or every third between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def mixed_type(mix, name, hp, tied, weighted):
    """Return the name of the type that a mix gives a tensor, whatever the length of its rows.

    mix: of FILE_TYPES   hp: Hparams   tied: whether the embedding is the output too
    weighted: whether there is an importance matrix
    """
    most = FILE_TYPES[mix][0]
    if most in ("F32", "F16", "BF16"):
        return most
    if name == "output.weight" or (tied and name == "token_embd.weight"):
        return "Q8_0" if most == "Q8_0" else "Q6_K"
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)(\.\d+)?\.weight", name)
    if not found:
        return most
    i, kind, n = int(found[1]), found[2].replace("_exps", ""), hp.n_layers
    better, first = _in_better_third(i, n), i < n // 8
    eight, shared = hp.n_experts == 8, hp.n_heads // hp.n_kv_heads >= 4
    if kind == "attn_v":
        if eight:
            return "Q8_0"
        return {"Q2_K": "Q4_K" if shared else "Q3_K", "Q3_K_M": "Q5_K" if i < 2 else "Q4_K",
                "Q3_K_L": "Q5_K", "Q4_K_M": "Q6_K" if better else most,
                "Q5_K_M": "Q6_K" if better else most, "Q4_K_S": "Q5_K" if i < 4 else most,
                **dict.fromkeys(("IQ4_NL", "IQ4_XS"), "Q5_K" if shared else most)}.get(mix, most)
    if kind == "attn_k" and eight:
        return "Q8_0"
    if kind == "ffn_down":
        return {"Q2_K": "Q3_K", "Q3_K_M": "Q5_K" if i < n // 16 else "Q4_K", "Q3_K_L": "Q5_K",
                "Q4_K_M": "Q6_K" if better else most, "Q5_K_M": "Q6_K" if better else most,
                "Q4_K_S": "Q5_K" if first else most,
                **dict.fromkeys(("IQ4_NL", "IQ4_XS"), "Q5_K" if first and not weighted else most),
                "Q4_0": "Q4_1" if first and weighted else most,
                "Q5_0": "Q5_1" if first and weighted else most}.get(mix, most)
    if kind == "attn_output":
        if eight and mix in ("Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "IQ4_XS", "Q4_K_S", "Q4_K_M"):
            return "Q5_K"
        return {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(mix, most)
    if kind == "attn_qkv":
        return {"Q3_K_M": "Q4_K", "Q3_K_L": "Q4_K", "Q4_K_M": "Q5_K", "Q5_K_M": "Q6_K"}.get(
            mix, most)
    return most


def fitting(name, n):
    """Return the Format of that name, or one in its stead that takes rows of n weights."""
    while n % FORMATS[name].block_len:
        name = INSTEAD.get(name, "F16")
    return FORMATS[name]


class Encoding:
    """What encodes tensors: machine code on several threads, or chapter 1.

    threads: None for all cores
    """

    def __init__(self, threads=None):
        self.native = None
        threads = None if threads is None else check_whole("threads", threads, 1, 256)
        isa, _ = choose_isa(os.environ)
        if isa is not None:
            with contextlib.suppress(BackendFault):
                self.native = Native(isa, threads or usable_cores())

    def pieces(self, tensor, format, importance=None):
        """Yield a tensor's elements, in order, in another format: bytes of some rows at a time.

        importance: array('f'), one for each column, or None
        """
        if tensor.format is format and tensor.contiguous:
            yield tensor.data
            return
        n = tensor.shape[-1] if tensor.shape else 1
        n_rows = tensor.size // n if n else 0
        flat = Tensor(tensor.name, tensor.format, (n_rows, n), tensor.data, tensor.offset,
                      tensor.path) if tensor.contiguous else None
        step = max(1, SLICE_WEIGHTS // max(n, 1))
        for start in range(0, n_rows, step):
            end = min(n_rows, start + step)
            if flat is None:
                floats = tensor.floats() if start == 0 else floats
                yield self._plainly(floats[start * n:end * n], format, importance, tensor)
            elif self.native and (format.name == "F32" or has_encoder(format, n)):
                yield self._natively(flat[start:end], format, importance)
            else:
                yield self._plainly(flat[start:end].floats(), format, importance, tensor)
            if flat is not None:
                _forget(flat[start:end])

    @staticmethod
    def _plainly(floats, format, importance, tensor):
        repeated = importance and importance * (len(floats) // len(importance))
        try:
            return format.encode(floats, repeated)
        except KshipraError as error:
            raise KshipraError(f"tensor {_quote(tensor.name)}: {error}", tensor.path) from None

    def _natively(self, rows, format, importance):
        """Return the encoded rows; where machine code cannot, chapter 1 does it."""
        try:
            return self._run(rows, format, importance)
        except BackendFault as fault:
            warn_plain(fault)
            self.close()
            return self._plainly(rows.floats(), format, importance, rows)

    def _run(self, rows, format, importance):
        """Run the program that encodes rows; what chapter 1 would refuse, it refuses."""
        native, n_rows, refused = self.native, rows.shape[0], Memory(8)
        index = array("i", range(n_rows))

        def write_down(program):
            recording = Recording(program, native.kernels, Resident(), native.n_threads, 1, False)
            program.keep += index, recording
            x = recording.embed(rows, Index(index.buffer_info()[0], n_rows))
            return x if format.name == "F32" else recording.encode(x, format, importance, refused)

        program, out = record_in(native.arena, write_down)
        native.arena = program.arena
        with native.own_mode():
            native.check(program)
        program.finish(native.n_threads)
        native.team.run(program)
        if any(refused.view(refused.address, 8)):
            return self._plainly(rows.floats(), format, importance, rows)
        return ctypes.string_at(out.address, n_rows * format.n_bytes(rows.shape[1]))

    def close(self):
        if self.native:
            self.native.close()
            self.native = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _forget(tensor):
    """Let the system take back the memory of a mapped tensor that is not needed again soon."""
    mapped = tensor.data.obj
    if isinstance(mapped, mmap.mmap) and tensor.offset is not None and hasattr(mmap,
                                                                              "MADV_DONTNEED"):
        start = tensor.offset // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, start, tensor.offset + tensor.n_bytes - start)


def _must_not_exist(path):
    """Refuse to write over what is there; return the path as a str."""
    path = check_path(path)
    if os.path.lexists(path):
        raise KshipraError("is there already, and nothing is overwritten; give another name or "
                           "remove it", path)
    return path


def _counted(pieces, done, total, progress):
    """Yield pieces, and tell `progress` of the weights done; done: list of one int.

    pieces: an iterable of (bytes, n_weights)
    """
    for piece, n_weights in pieces:
        yield piece
        done[0] += n_weights
        if progress:
            progress(min(done[0], total), total)


# From Hugging Face's files to a GGUF.  The numbers of config.json get the keys of KEYS, the
# tensors the names of GGUF_NAMES, and what chapter 6 does to tensors as it loads them is done
# for good: norms get their 1, matrices that lie on their side are turned.  Two things are left.
# Where a GGUF's heads turn neighbours ("interleaved"), the rows of q and k, which lie in halves,
# change places; and a scaling of rope that has a number for each pair becomes a tensor of them.

CONVERTED = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gpt2", "olmo2",
             "granite", "smollm3", "starcoder2")
GGUF_ARCHITECTURES = {"mistral": "llama"}   # of those, what a GGUF calls otherwise


def gguf_form(checkpoint):
    """Return (metadata, {name: Tensor}) of a checkpoint as a GGUF has them."""
    if isinstance(checkpoint, GGUF):
        return checkpoint.metadata, checkpoint.tensors
    hp, tokenizer = Hparams(checkpoint), tokenizer_of(checkpoint)
    if hp.arch_name not in CONVERTED:
        raise KshipraError(f"models of {hp.arch_name} are not converted, only those of "
                           f"{', '.join(CONVERTED)}; take a GGUF of it", checkpoint.path)
    load, tensors = Loader(checkpoint, hp), {}
    hp.n_vocab = load.embedding().shape[0]
    shapes = {**slot_shapes(hp, hp.arch), "embed": (hp.n_vocab, hp.hidden),
              "lm_head": (hp.n_vocab, hp.hidden), "pos_embed": (hp.n_ctx, hp.hidden)}
    names = {**GGUF_NAMES, **hp.arch.gguf_names}

    def take(slot, layer, must, bias):
        """Put a slot and its bias among the tensors, if the file has them."""
        prefix = "" if layer is None else names["layers"].format(layer)
        for kind in ("weight", "bias"):
            if kind == "bias" and not bias:
                return
            if (kind == "bias" and bias == "?b" or not must) and \
                    load.name(slot, layer, kind) not in checkpoint.tensors:
                continue
            shape = shapes[slot] if kind == "weight" else shapes[slot][:1]
            value = load.read(slot, layer, kind, shape)
            name = f"{prefix}{names[slot]}.{kind}"
            if isinstance(value, array):
                value = Tensor(name, FORMATS["F32"], shape, value.tobytes())
            if slot in ("wq", "wk") and hp.arch.rope == "interleaved":
                value = _interleaved(value, hp.head_dim)
            tensors[name] = value

    for layer in (None, *range(hp.n_layers)):
        for slot, must, bias in slots_of(hp.arch, "outer" if layer is None else "slots"):
            if slot != "rope_freqs" and not (slot == "lm_head" and hp.flag("tied")):
                take(slot, layer, must, bias)
    metadata = _gguf_numbers(hp, tensors)
    metadata.update(_gguf_tokenizer(checkpoint, tokenizer, hp.n_vocab))
    return metadata, tensors


def _interleaved(t, head_dim):
    """Return a matrix or bias, its rows changed from halves of heads to neighbours."""
    half, row_bytes = head_dim // 2, t.row_bytes if len(t.shape) > 1 else t.format.n_bytes(1)
    data = memoryview(t.data)
    order = [head + j * half + i for head in range(0, t.shape[0], head_dim)
             for i in range(half) for j in (0, 1)]
    return Tensor(t.name, t.format, t.shape,
                  b"".join([data[r * row_bytes:(r + 1) * row_bytes] for r in order]))


def _gguf_numbers(hp, tensors):
    """Return the metadata of the hyperparameters; a scaling may add a tensor."""
    arch = GGUF_ARCHITECTURES.get(hp.arch_name, hp.arch_name)
    values = {
        "n_layers": hp.n_layers, "n_ctx": hp.n_ctx, "hidden": hp.hidden, "ffn": hp.ffn,
        "n_heads": hp.n_heads, "n_kv_heads": hp.n_kv_heads, "n_vocab": hp.n_vocab,
        "rms_eps" if hp.arch.norm == "rms" else "layer_eps": hp.eps}
    if hp.arch.rope is not None:
        values.update(head_dim=hp.head_dim, value_dim=hp.head_dim, n_rot=hp.n_rot,
                      rope_base=hp.number("rope_base"))
    values.update({name: hp.number(name) for name in ("attn_cap", "final_cap")
                   if hp.number(name)})
    values.update({name: float(hp.get(name, hp.default(name))) for name in hp.arch.scales})
    if hp.arch_name == "gemma3":
        values["local_base"] = hp.number("local_base")
    if hp.window:
        values["window"] = hp.window
    large = GEMMA_27B_LAYERS.get(hp.arch_name) == hp.n_layers
    scalar = hp.hidden / hp.n_heads if large else hp.head_dim
    if "attn_scale" not in hp.arch.scales and hp.attn_scale != f32(1 / math.sqrt(scalar)):
        hp.fail("query_scalar", hp.get("query_scalar"), "a GGUF has no key for it")
    metadata = {"general.architecture": arch, "general.type": "model",
                "general.name": os.path.basename(os.path.abspath(hp.path))}
    metadata.update({f"{arch}.{KEYS[name][0]}": value for name, value in values.items()})
    return {**metadata, **_gguf_rope(hp, arch, tensors)}


def _gguf_rope(hp, arch, tensors):
    """Return the metadata of a scaling of rope; that of Llama 3.1 becomes a tensor."""
    scaling = rope_scaling(hp) if hp.arch.rope is not None else {}
    kind, prefix = scaling.get("rope_type"), f"{arch}.rope.scaling."
    if kind is None:
        return {}
    if kind == "llama3":
        plain = [hp.number("rope_base") ** (-2 * i / hp.n_rot) for i in range(hp.n_rot // 2)]
        factors = array("f", map(truediv, plain, rope_table(hp).freqs))
        tensors["rope_freqs.weight"] = Tensor("rope_freqs.weight", FORMATS["F32"],
                                              (len(factors),), factors.tobytes())
        return {}
    known = {"rope_type", "type", "factor", "original_max_position_embeddings", "rope_theta",
             "beta_fast", "beta_slow"}
    more = sorted(key for key in set(scaling) - known if scaling[key] is not None)
    if kind not in ("linear", "yarn") or more:
        raise KshipraError(f"rope scaling {_quote(kind)}{' with ' + more[0] if more else ''} is "
                           "not converted; linear, llama3 and yarn are", hp.path)
    keys = {"factor": "factor", "original_max_position_embeddings": "original_context_length",
            "beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}
    found = {prefix + keys[key]: scaling[key] for key in keys if scaling.get(key) is not None}
    found = {key: value if key.endswith("length") else float(value)
             for key, value in found.items()}
    return {prefix + "type": kind, **found}


def _gguf_tokenizer(checkpoint, tokenizer, n_vocab):
    """Return the metadata tokenizer.ggml.* of a tokenizer, its vocabulary filled up to n_vocab."""
    model, files = tokenizer.model, _TokenizerFiles(checkpoint.path)
    n, vocabulary = len(tokenizer.vocabulary), tokenizer.vocabulary
    n_more = max(0, n_vocab - n)
    texts = [vocabulary.text(i) for i in range(n)] + [f"[PAD{n + i}]" for i in range(n_more)]
    found = {"tokens": texts, "token_type": array("i", [*vocabulary.types] + [UNUSED] * n_more),
             "add_bos_token": tokenizer.add_bos, "add_eos_token": tokenizer.add_eos}
    if "merges" in files.root.get("model", {}):
        merges = [m if isinstance(m, str) else " ".join(m) for m in files.root["model"]["merges"]]
    elif files.has("merges.txt"):
        lines = _read_bytes(files.path("merges.txt")).decode("utf-8").split("\n")
        merges = [line for line in lines if line and not line.startswith("#version:")]
    else:
        merges = []
    if isinstance(model, ByteLevel):
        rules = tuple(model.patterns), model.whole_words, model.normal_form
        pre = next((pre for pre, patterns in PRE_TOKENIZERS.items() if rules == (
            tuple(patterns), pre in WHOLE_WORDS, NORMAL_FORMS.get(pre))), None)
        if pre is None:
            raise KshipraError("a GGUF has no name for the rule by which this tokenizer cuts "
                               "words", checkpoint.path)
        found = {"model": "gpt2", "pre": pre, "merges": merges, **found}
    else:
        found.update({"model": "llama", "pre": "default",
                      "scores": _scores(files, vocabulary, merges) + [-1000.0] * n_more,
                      "add_space_prefix": model.space_prefix != "never"})
        if model.unknown_id is not None:
            found["unknown_token_id"] = model.unknown_id
    others = sorted(tokenizer.stop_ids - {tokenizer.eos_id})
    for key, token in (("bos", tokenizer.bos_id), ("eos", tokenizer.eos_id),
                       ("eot", others[0] if others else None)):
        if token is not None:
            found[key + "_token_id"] = token
    metadata = {"tokenizer.ggml." + key: value for key, value in found.items()}
    template = files.settings.get("chat_template")
    if files.has("chat_template.jinja"):
        template = _read_bytes(files.path("chat_template.jinja")).decode("utf-8")
    if isinstance(template, list):
        template = {each.get("name"): each.get("template") for each in template}.get("default")
    return {**metadata, "tokenizer.chat_template": template} if isinstance(
        template, str) else metadata


def _scores(files, vocabulary, merges):
    """Return the score of each token: of tokenizer.model, or by the merges, the first the best."""
    if files.has("tokenizer.model"):
        path = files.path("tokenizer.model")
        pieces = [dict(_protobuf_fields(value, path)) for number, value in _protobuf_fields(
            _read_bytes(path), path) if number == 1]
        scores = [struct.unpack("<f", piece.get(2, bytes(4)))[0] for piece in pieces]
        return scores[:len(vocabulary)] + [-1000.0] * (len(vocabulary) - len(scores))
    scores = [0.0] * len(vocabulary)
    for rank, merge in reversed([*enumerate(merges)]):
        token = vocabulary.token(merge.replace(" ", "", 1))
        if token is not None:
            scores[token] = -1.0 - rank
    return scores


def quantize(src: "str | os.PathLike", dst: "str | os.PathLike", type: str,
             imatrix: "str | os.PathLike | None" = None, threads: "int | None" = None,
             progress=None) -> None:
    """Write a model in another type, as a GGUF.

    src: GGUF or Hugging Face directory   dst: a name that is not there yet
    type: of FILE_TYPES   imatrix: a file that `calibrate` wrote   threads: None for all cores
    progress(done, total): called with numbers of weights
    """
    check_choice("type", type, FILE_TYPES)
    dst = _must_not_exist(dst)
    checkpoint = open_checkpoint(src)
    checkpoint.require_model()
    hp = Hparams(checkpoint)
    metadata, tensors = gguf_form(checkpoint)
    importances = read_imatrix(imatrix) if imatrix is not None else {}
    tied, plan, instead = "output.weight" not in tensors, [], Counter()
    for name, tensor in tensors.items():
        stays = isinstance(checkpoint, GGUF) and len(tensor.shape) > 1
        format = tensor.format if stays else FORMATS["F32"]
        if is_quantized(name, tensor.shape):
            wanted = mixed_type(type, name, hp, tied, bool(importances))
            format = fitting(wanted, tensor.shape[-1])
            if format.name != wanted:
                instead[wanted, format.name] += 1
        importance = importances.get(name)
        if importance is not None and len(importance) != tensor.shape[-1]:
            raise KshipraError(f"has {len(importance)} columns for {_quote(name)}, which has "
                               f"{tensor.shape[-1]}; it is of another model", imatrix)
        plan.append((name, format, tensor, importance))
    for (wanted, given), n in instead.items():
        warn(f"{n} tensors have rows that are no multiple of {FORMATS[wanted].block_len}; they "
             f"are written as {given} instead of {wanted}")
    metadata = {**metadata, "general.file_type": FILE_TYPES[type][1],
                "general.quantization_version": 2}
    write_encoded(dst, metadata, plan, threads, progress)


def write_encoded(dst, metadata, plan, threads=None, progress=None, write=write_gguf):
    """Write a GGUF, or what `write` writes.

    plan: [(name, Format, Tensor, importance or None)]
    """
    done, total = [0], sum(tensor.size for _, _, tensor, _ in plan)
    metadata = {key: value for key, value in metadata.items() if not key.startswith("split.")}
    with Encoding(threads) as encoding:
        def sized(tensor, format, importance):
            for piece in encoding.pieces(tensor, format, importance):
                yield piece, len(piece) // format.block_bytes * format.block_len

        write(dst, metadata, [
            (name, format, tensor.shape,
             _counted(sized(tensor, format, importance), done, total, progress))
            for name, format, tensor, importance in plan])


def convert(src: "str | os.PathLike", dst: "str | os.PathLike", type: str = "F16",
            threads: "int | None" = None, progress=None) -> None:
    """Write a model as a GGUF of F16, BF16 or F32; or, where dst ends so, as safetensors.

    src: Hugging Face directory or GGUF   The tensors of a safetensors file keep their names of
    GGUF, and its metadata are those of the GGUF that are no lists.
    """
    check_choice("type", type, _SAFETENSORS_FLOATS)
    if not check_path(dst).endswith(".safetensors"):
        return quantize(src, dst, type, threads=threads, progress=progress)
    dst = _must_not_exist(dst)
    metadata, tensors = gguf_form(open_checkpoint(src))
    plan = [(name, FORMATS[type], tensor, None) for name, tensor in tensors.items()]
    write_encoded(dst, {key: str(value) for key, value in metadata.items()
                        if isinstance(value, (str, int, float))}, plan, threads, progress,
                  write_safetensors)


# How good is a model of fewer bits?  Perplexity is the exponential of the mean surprise at the
# next token of a text.  The Kullback-Leibler divergence compares with the model as it was: how
# many more nats its own tokens would cost, were they coded by the other's probabilities.  Both
# go by chunks of a text, each with an empty cache: its first half is only read, its second
# half scored, so that every token has some past.  So does llama.cpp, and the numbers compare.

SCORED_LOGITS = 1 << 24                 # held at a time
SCORED_CTX = 512                        # tokens of a chunk, unless something else is said


def chunks_of(model, text, ctx):
    """Return the ids of a text in lists of ctx; each begins with BOS, if texts of the model do."""
    ctx = check_whole("ctx", ctx, 4, model.ctx_size)
    ids = model.tokenizer.encode(text) if isinstance(text, str) else \
        [check_whole("a token", token, 0, model.hparams.n_vocab - 1) for token in text]
    chunks = [ids[start:start + ctx] for start in range(0, len(ids) - ctx + 1, ctx)]
    if not chunks:
        raise KshipraError(f"the text has {len(ids)} tokens, and one chunk of it needs {ctx}; "
                           "give more text or a smaller ctx")
    if model.tokenizer.add_bos:
        for chunk in chunks:
            chunk[0] = model.tokenizer.bos_id
    return chunks


def scored(model, ids):
    """Yield (logits, next token) for the second half of a chunk."""
    seq, first = model.session, len(ids) // 2
    step = max(1, min(model.prefill_rows, SCORED_LOGITS // model.hparams.n_vocab))
    with model.turn:
        seq.truncate(0)
        for start in range(0, len(ids) - 1, step):
            rows = [(ids[pos], pos, seq) for pos in range(start, min(len(ids) - 1, start + step))]
            wanted = [i for i, row in enumerate(rows) if row[1] >= first]
            for i, logits in zip(wanted, model.step(rows, wanted)):
                yield logits, ids[rows[i][1] + 1]


def log_sum_exp(model, logits):
    """Return the logarithm of the sum of exp(logit)."""
    top = max(logits) if getattr(logits, "best", None) is None else logits[logits.best]
    return top + math.log(model.exp_sum(logits, top))


class Mean:
    """Numbers, of which the mean and how far it may be off (one standard error) are wanted."""

    def __init__(self):
        self.values = array("d")

    @property
    def mean(self):
        return math.fsum(self.values) / len(self.values)

    @property
    def error(self):
        n, mean = len(self.values), self.mean
        return math.sqrt(math.fsum((v - mean) ** 2 for v in self.values) / max(1, n - 1) / n)


def surprise(model, text, ctx=SCORED_CTX, progress=None):
    """Return the Mean of -log(probability) of the scored tokens of a text."""
    found, chunks = Mean(), chunks_of(model, text, ctx)
    for i, ids in enumerate(chunks):
        for logits, token in scored(model, ids):
            found.values.append(log_sum_exp(model, logits) - logits[token])
        if progress:
            progress(i + 1, len(chunks))
    return found


class Divergence(NamedTuple):
    """What sets a model apart from the one that it was made of, over a text.

    kl: Mean, in nats   same_top: how often both have the same most probable token
    perplexity, base_perplexity: of each
    """
    kl: Mean
    same_top: float
    perplexity: float
    base_perplexity: float


def divergence(model, base, text, ctx=SCORED_CTX, progress=None):
    """Return the Divergence of a model from `base`, a Model with the same tokens."""
    if model.hparams.n_vocab != base.hparams.n_vocab:
        raise KshipraError(f"the models have {model.hparams.n_vocab} and {base.hparams.n_vocab} "
                           "tokens; they must be of the same family to be compared")
    kl, same, own, others, chunks = Mean(), 0, Mean(), Mean(), chunks_of(base, text, ctx)
    for i, ids in enumerate(chunks):
        for (p, token), (q, _) in zip(scored(base, ids), scored(model, ids)):
            p_log, q_log = log_sum_exp(base, p), log_sum_exp(model, q)
            lost = math.fsum(map(mul, map(math.exp, map(sub, p, repeat(p_log))), map(sub, p, q)))
            kl.values.append(lost - p_log + q_log)
            same += p.index(max(p)) == q.index(max(q))
            own.values.append(q_log - q[token])
            others.values.append(p_log - p[token])
        if progress:
            progress(i + 1, len(chunks))
    return Divergence(kl, same / len(kl.values), math.exp(own.mean), math.exp(others.mean))


# What the errors of weights cost.  A weight is multiplied by the activation of its column, so
# its error counts by the mean square of that activation, over a text like those to come.  The
# file is llama.cpp's: a GGUF of type imatrix, and of each matrix the sums of squares and a count.

class Watcher:
    """The operations of another backend; of each matrix of a layer it notes what squares it meets.

    seen: {name of the tensor: sums over the rows of x * x, in the backend's form}
    """

    def __init__(self, ops, n_rows):
        self.ops, self.seen, self._sums, self._kept = ops, {}, {}, []
        ones = array("f", [1.0]) * n_rows
        if isinstance(ops, Recorder):
            ops.program.keep.append(ones)
            self.weights = types.SimpleNamespace(
                n_rows=1, address=ones.buffer_info()[0],
                span=(ones.buffer_info()[0], ones.buffer_info()[0] + 4 * n_rows))
        else:
            self.weights = ones
        self.route = Route(n_rows, None, self.weights)

    def __getattr__(self, name):        # only asked for what is not here: the backend's own
        return getattr(self.ops, name)

    def matmul(self, w, x, route=None):
        if route is None and w.name.startswith("blk."):
            if hasattr(self.ops, "done"):
                x = self.ops.done(x)
            if id(x) not in self._sums:
                self._kept.append(x)    # holding it keeps its id its own
                self._sums[id(x)] = self.ops.mix(self.ops.mul(x, x), self.route)
            self.seen[w.name] = self._sums[id(x)]
        return self.ops.matmul(w, x, route)


def squares_of(model, rows):
    """Run rows through a model -> {name of a matrix: array('f'), the sums of squares it met}."""
    found = {}

    def watched(model, ops, batch):
        watcher = Watcher(ops, len(rows))
        logits = forward(model, watcher, batch)
        found.clear()
        found.update(watcher.seen)
        return logits

    def run(ops):
        batch = Batch(rows, [len(rows) - 1], model.cache)
        if not hasattr(ops, "record"):
            ops.run(watched, model, batch)
            return {name: sums[0] for name, sums in found.items()}
        program = ops.record(watched, model, batch, ops.is_divided(batch))
        ops.run_program(ops.team, program, batch)
        return {name: array("f", ctypes.string_at(sums.address, 4 * sums.n))
                for name, sums in found.items()}
    return model.compute(run)


def calibrate(model: Engine, text, path: "str | os.PathLike", ctx: int = SCORED_CTX,
              progress=None) -> None:
    """Write the importance matrix that a text gives a model of GGUF.

    text: str or token ids; it is read in pieces of ctx, what is left behind them is not
    """
    path = _must_not_exist(path)
    if not isinstance(model.checkpoint, GGUF):
        raise KshipraError("calibration needs a GGUF, whose tensors it names; convert the model "
                           "first", model.checkpoint.path)
    sums, n_tokens, chunks = {}, 0, chunks_of(model, text, ctx)
    for i, ids in enumerate(chunks):
        seq = Sequence(model.cache)
        try:
            with model.turn:
                for start in range(0, ctx, model.prefill_rows):
                    part = ids[start:start + model.prefill_rows]
                    seq.reserve(len(seq.tokens), start + len(part))
                    found = squares_of(model, [(token, start + j, seq)
                                               for j, token in enumerate(part)])
                    seq.tokens.extend(part)
                    n_tokens += len(part)
                    for name, squares in found.items():
                        old = sums.get(name)
                        sums[name] = squares if old is None else f32_add(old, squares)
        finally:
            seq.truncate(0)
        if progress:
            progress(i + 1, len(chunks))
    if not sums:
        raise KshipraError("no matrix of this model can be calibrated; those of experts are not",
                           model.checkpoint.path)
    f32, tensors = FORMATS["F32"], []
    for name, total in sums.items():
        tensors += [(name + ".in_sum2", f32, (1, len(total)), [total.tobytes()]),
                    (name + ".counts", f32, (1, 1), [array("f", [n_tokens]).tobytes()])]
    write_gguf(path, {"general.type": "imatrix", "imatrix.datasets": ["calibration"],
                      "imatrix.chunk_count": len(chunks), "imatrix.chunk_size": ctx}, tensors)


def read_imatrix(path):
    """Return {name of a matrix: array('f'), the importance of each column}."""
    file = GGUF(path)
    if file.metadata.get("general.type") != "imatrix":
        raise KshipraError("is no importance matrix; give a GGUF of type imatrix, as --calibrate "
                           "writes it", path)
    found = {}
    for name, tensor in file.tensors.items():
        matrix, _, kind = name.rpartition(".")
        if kind != "in_sum2" or tensor.format.name != "F32":
            continue
        counts = file.tensors.get(matrix + ".counts")
        if counts is None or counts.size != 1 or counts.format.name != "F32":
            continue                    # of experts: their matrices are encoded without
        (n,), sums = counts.floats(), tensor.floats()
        if not n > 0 or not all(0 <= v < math.inf for v in sums):
            raise KshipraError(f"tensor {_quote(name)}: sums of squares and a count above 0 are "
                               "needed; the file is damaged", path, tensor.offset)
        found[matrix] = array("f", [v / n for v in sums])
    if not found:
        raise KshipraError("holds no sums of squares; calibrate again", path)
    return found


# Encoding when a model is loaded.  The matrices of the layers go from the file to memory in
# fewer bits; the embedding and the output, which are few and sensitive, in no fewer than eight.

SCHEMES = ("int", "nf4", *[name for name in FORMATS if name in _ENCODERS
                           and not name.startswith(("INT", "NF", "TQ"))])


def scheme_format(scheme, bits, group_size):
    """Return the Format that a scheme, and for "int" its bits and group size, mean; or None."""
    if scheme is not None:
        scheme = {"INT": "int", "NF4": "nf4"}.get(str(scheme).upper(), str(scheme).upper())
        check_choice("quant_scheme", scheme, SCHEMES)
    if scheme == "int":
        name = f"INT{4 if bits is None else bits}_G{64 if group_size is None else group_size}"
        if name not in FORMATS:
            raise KshipraError(f"quant_bits {_quote(bits)} with group_size {_quote(group_size)} "
                               "are not supported; 2, 4 or 8 bits are, in groups of 32, 64 or "
                               "128")
        return FORMATS[name]
    if bits is not None or group_size is not None:
        raise KshipraError(f"quant_bits and group_size go with quant_scheme int, not {scheme}")
    if scheme is None:
        return None
    return FORMATS["NF4" if scheme == "nf4" else scheme]


def encode_weights(model, format, threads=None):
    """Replace the matrices of a loaded model by encoded ones, in memory."""
    fewer = format.block_bytes * 8 / format.block_len < 8
    kept, done = Counter(), {}

    with Encoding(threads) as encoding:
        def encoded(tensor, format):
            if not isinstance(tensor, Tensor) or len(tensor.shape) != 2:
                return tensor
            if tensor.shape[1] % format.block_len:
                kept[tensor.shape[1]] += 1
                return tensor
            if id(tensor) not in done:      # the embedding may be the output too
                data = bytearray()
                for piece in encoding.pieces(tensor, format):
                    data += piece
                done[id(tensor)] = tensor, Tensor(tensor.name, format, tensor.shape, data)
            return done[id(tensor)][1]

        w, ends = model.weights, FORMATS["Q8_0"] if fewer else format
        w.embed, w.lm_head = encoded(w.embed, ends), encoded(w.lm_head, ends)
        for layer in w.layers:
            for slot, value in vars(layer).items():
                if slot in ("wqkv", "router"):      # views of it are what computes; it is small
                    continue
                setattr(layer, slot, [encoded(t, format) for t in value]
                        if isinstance(value, list) else encoded(value, format))
    if kept:
        warn(f"{sum(kept.values())} matrices have rows of {', '.join(map(str, kept))} weights, no "
             f"multiple of the {format.block_len} of a block of {format.name}; they stay as they "
             "are")


# ---------------------------------------------------------------------------------------
# 22. Front doors
#
# Two doors lead in: `load`, for programs, and `main`, for the command line.  Nothing here
# computes; the command line can do nothing that a caller of `load` could not.

DEVICES = ("auto", "native", "python", "cuda")
MAX_TOKENS = 256                        # to generate, unless something else is said
SMALL_BYTES = 8 << 20                   # weights that one core reads sooner than two agree
STRATEGIES = {"cached": cached, "baseline": baseline}
DRAFTS = ("ngram", "lookup", "model", "self")


class Model(Engine):
    """A model with its tokenizer: what `load` returns."""

    def __init__(self, checkpoint, tokenizer, ops, **options):
        super().__init__(checkpoint, ops, **options)
        self.tokenizer = tokenizer
        if {NORMAL, BYTE} & {*tokenizer.vocabulary.types[self.hparams.n_vocab:]}:
            raise KshipraError(f"the tokenizer has {tokenizer.n_vocab} tokens but the embedding "
                               f"only {self.hparams.n_vocab} rows; the files do not belong "
                               "together", checkpoint.path)
        if self.ctx_size > self.hparams.n_ctx:
            warn(f"ctx_size is {self.ctx_size}, more than the {self.hparams.n_ctx} positions that "
                 "the model was trained for; what it says beyond them may make no sense")
        self.session = Sequence(self.cache)     # the last text, so that a longer one reuses it
        self._drafts = weakref.WeakSet()        # models that have the same vocabulary
        self._own_draft = None                  # the small model in this file, once asked for
        self._step_s = {}                       # of Window

    def logits(self, ids) -> list:
        """Return the logits after each of ids: list of array('f') (n_vocab,), one a position.

        Raises KshipraError when ids are more than the context holds.
        """
        ids = self.prompt_ids(ids)
        self.check_prompt(ids)
        seq, out = self.session, []
        with self.turn:
            seq.truncate(0)
            for a in range(0, len(ids), self.prefill_rows):
                part = ids[a:a + self.prefill_rows]
                out.extend(self.step([(t, a + i, seq) for i, t in enumerate(part)]))
        return out

    def perplexity(self, text, ctx: int = SCORED_CTX) -> float:
        """Return the perplexity of a text, str or ids, in chunks of ctx: see chapter 21."""
        return math.exp(surprise(self, text, ctx).mean)

    def prompt_ids(self, prompt) -> list:
        """Return a prompt's token ids; text that spells the beginning token gets no second one.

        prompt: str, or whole numbers; bytes would be numbers too, but never the ones meant.
        """
        if self.ops is None:
            raise KshipraError("the model is closed; load it again")
        if isinstance(prompt, (bytes, bytearray)):
            raise TypeError(f"a prompt is a str or token ids, not {type(prompt).__name__}")
        if not isinstance(prompt, str):
            return list(map(operator.index, prompt))
        return self.tokenizer.encode_prompt(prompt)

    def check_prompt(self, ids: list) -> None:
        """Refuse a prompt that is empty or longer than the context; nothing is ever cut."""
        if not ids:
            raise KshipraError("the prompt is empty and this model has no token to begin with; "
                               "give at least one character")
        if len(ids) > self.ctx_size:
            raise KshipraError(f"the prompt has {len(ids)} tokens but the context holds "
                               f"{self.ctx_size}; shorten it or use a larger ctx_size "
                               f"(the model was trained for {self.hparams.n_ctx})")

    def check_limit(self, max_tokens: "int | None", room: int) -> int:
        """Return how many tokens to generate: max_tokens, None for all, at most `room`."""
        if max_tokens is None:
            return room
        return min(room, check_whole("max_tokens", max_tokens, 0))

    def generate(self, prompt, max_tokens: "int | None" = MAX_TOKENS, stop=None,
                 ignore_eos: bool = False, strategy: str = "cached", progress=None,
                 session: "Sequence | None" = None, draft: "str | Model | None" = None,
                 speculate: "int | None" = None, adaptive_k: bool = False, ngram_n: int = 3,
                 lookup_n: int = 3, early_exit: "float | None" = None,
                 **sampling) -> Generation:
        """Return a Generation: an iterator of text pieces.

        prompt: str, or token ids   max_tokens: None for as many as the context holds
        stop: str or several; none of it is shown   ignore_eos: go on after an end token
        strategy: "cached" or "baseline", as in chapter 8
        progress(done, total): called while the prompt is read
        session: of fork; what it has of the prompt is not read again; None: that of the last text
        draft: who guesses tokens ahead, which changes no token (8.2): "lookup", "ngram", "model"
        for the small model in this file, "self" for the first layers of this one, a Model, or None
        speculate: how many it guesses; None: as many as pay
        adaptive_k: as many as pay, but `speculate` at most
        ngram_n, lookup_n: how many tokens "ngram" and "lookup" look at
        early_exit: the probability at which a token leaves before the last layer (8.3), which is
        an approximation
        sampling: the parameters of Sampler
        """
        ids, sampler = self.prompt_ids(prompt), Sampler(ops=self, **sampling)
        self.check_prompt(ids)
        check_choice("strategy", strategy, STRATEGIES)
        run, speculation, exits = STRATEGIES[strategy], None, None
        if draft is not None:
            if run is not cached or early_exit is not None:
                other = "early_exit" if run is cached else f"strategy {strategy!r}"
                raise KshipraError(f"{other} takes no draft; leave one of them out")
            drafter = self._drafter(draft, sampler, session or self.session,
                                    check_whole("ngram_n", ngram_n, 2),
                                    check_whole("lookup_n", lookup_n, 1))
            most = None if speculate is None else check_whole("speculate", speculate, 1)
            speculation = Speculation(drafter, Window(most, adaptive_k or most is None,
                                                      self._step_s))
            run = functools.partial(speculative, speculation=speculation)
        if early_exit is not None:
            if run is not cached:
                raise KshipraError(f"strategy {strategy!r} takes no early_exit; leave one out")
            exits = EarlyExit(self, check_number("early_exit", early_exit, 0, 1))
            run = functools.partial(exiting, early_exit=exits)
        # The last token needs no place in the cache.
        limit = self.check_limit(max_tokens, self.ctx_size - len(ids) + 1)
        tokens = run(self, ids, self._chooser(sampler), session or self.session, progress)
        return Generation(tokens, ids, self._transcript(limit, stop, ignore_eos), speculation,
                          exits)

    def _drafter(self, draft, sampler, seq, ngram_n, lookup_n):
        """Return the drafter that `draft` means; sampler: what draws this model's tokens."""
        def foresee(engine):
            return self._chooser(sampler.twin(engine))

        if hasattr(draft, "propose"):
            return draft
        if isinstance(draft, Engine):
            if draft is self:
                raise KshipraError("a model is its own draft; use a smaller one")
            if draft not in self._drafts:
                check_same_vocabulary(self.tokenizer, draft.tokenizer, draft.checkpoint.path)
                self._drafts.add(draft)
            return DraftModel(draft, draft.session, foresee)
        check_choice("draft", draft, DRAFTS)
        if draft == "self":
            return SelfDraft(self, seq, foresee)
        if draft == "model":
            if self._own_draft is None:
                self._own_draft = load_draft(self.ops.name)
            return self._drafter(self._own_draft, sampler, seq, ngram_n, lookup_n)
        return NGrams(ngram_n) if draft == "ngram" else PromptLookup(lookup_n)

    def _transcript(self, limit, stop, ignore_eos):
        if isinstance(stop, bytes) or not hasattr(stop or (), "__iter__"):
            raise KshipraError(f"stop is {_quote(stop)}; a str or several are needed")
        stops = [stop] if isinstance(stop, str) else list(stop or ())
        for text in stops:
            if not isinstance(text, str) or not text:
                raise KshipraError(f"a stop string is {_quote(text) if text else 'empty'}; a str "
                                   "of at least one character is needed")
        return Transcript(self.tokenizer, () if ignore_eos else self.tokenizer.stop_ids, stops,
                          limit)

    def generate_ids(self, prompt, max_tokens: "int | None" = MAX_TOKENS, **options):
        """Iterate over token ids, the end token included; parameters as for generate."""
        return self.generate(prompt, max_tokens, **options).tokens()

    def _chooser(self, sampler):
        n_vocab = min(self.tokenizer.n_used, self.hparams.n_vocab)
        return lambda logits, past: sampler(logits, past, n_vocab)

    # Many texts at once: chapter 9

    @property
    def scheduler(self):
        """The Scheduler of `submit`, made when it is first asked for.

        Its pages serve generate_batch and fork too; texts that begin alike share them.
        """
        with self.turn:
            if self._scheduler is None:
                pool = self.cache if self.page_size else self.new_pool(self.cache_tokens, CHUNK)
                self._scheduler = Scheduler(self, pool)
            return self._scheduler

    def after_fork(self) -> None:
        super().after_fork()
        self._scheduler = None          # it and its requests are the parent's

    def close(self) -> None:
        """Give back threads, machine code and the file; what is being generated ends."""
        for held in (self._scheduler, self._own_draft):
            if held is not None:
                held.close()
        super().close()
        self.tokenizer = self.hparams = None    # the vocabulary lies in the file

    def _request(self, ids, max_tokens=MAX_TOKENS, stop=(), ignore_eos=False, **sampling):
        """Return the Request for a prompt's ids; parameters as for generate."""
        self.check_prompt(ids)
        pool = self.scheduler.pool
        most = min(self.ctx_size, pool.n_pages * pool.page_size)
        if len(ids) > most:
            raise KshipraError(f"the prompt has {len(ids)} tokens but the shared pages hold "
                               f"{most}; load the model with a larger cache_tokens")
        limit = self.check_limit(max_tokens, most - len(ids) + 1)
        return Request(ids, self._chooser(Sampler(ops=self, **sampling)),
                       self._transcript(limit, stop, ignore_eos), Sequence(pool))

    def generate_batch(self, prompts, n: int = 1, seed: "int | None" = None,
                       **options) -> "list[Generation]":
        """Continue several prompts together; return their Generations, finished, in order.

        prompts: a list, each as for generate   n: completions of each prompt; with a seed, the
        j-th of them has seed + j   options: as for generate, the same for all
        """
        if isinstance(prompts, (str, bytes)):
            raise KshipraError("prompts is one prompt; a list of prompts is needed")
        n = check_whole("n", n, 1)
        requests = [self._request(ids, seed=None if seed is None else seed + j, **options)
                    for ids in map(self.prompt_ids, prompts) for j in range(n)]
        waiting = [request for request in requests if not request.finish_reason]
        while waiting:                          # as many at a time as the pages hold to the end
            n_pages, part = self.scheduler.pool.n_available, []
            for request in waiting:
                n_pages -= request.n_pages_to_end()
                if n_pages < 0 and part:
                    break
                part.append(request)
            run_static(self, part)
            del waiting[:len(part)]
        return requests

    def fork(self, n: int = 1) -> "list[Sequence]":
        """Return n sessions that begin with the text of this one, for generate(session=...).

        They share its keys and values until they differ.
        """
        with self.turn:
            pool, seq = self.scheduler.pool, self.session
            seq.drop_inexact()
            if pool is not self.cache:
                seq = seq.copy_to(pool)
            forks = [seq.fork() for _ in range(check_whole("n", n, 1))]
            if seq is not self.session:
                seq.truncate(0)
            return forks

    def save_session(self, path) -> None:
        """Write the keys and values of the last text to a file, which appears whole or not."""
        with self.turn:
            self.session.drop_inexact()
            save_sequence(self.session, path, self.identity())

    def load_session(self, path) -> None:
        """Take up a text from save_session: a prompt that begins like it need not be read again.

        Raises KshipraError, and changes nothing, if the file is damaged or of another model.
        """
        with self.turn:
            load_sequence(self.session, path, self.identity(), self.ctx_size)

    def submit(self, prompt, **options) -> Request:
        """Let a prompt be continued among others, in the background; return its Request.

        Parameters as for generate.  Many threads may call this.
        """
        request = self._request(self.prompt_ids(prompt), **options)
        if request.finish_reason:
            request.end()
        else:
            self.scheduler.submit(request)
        return request


def open_checkpoint(path):
    """Return the GGUF or HFDirectory at path; None for the model in this file."""
    if path is None:
        return GGUF("the model in kshipra.py", data=unpack_model(DEMO_MODEL))
    path = check_path(path)
    if os.path.isdir(path):
        return HFDirectory(path)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", path) and not os.path.exists(path) \
            and not path.endswith((".gguf", ".safetensors")):
        raise KshipraError("no such file or directory; if this is the name of a model on a hub, "
                           "fetch its GGUF file, or config.json, the tokenizer and *.safetensors "
                           "into a directory, and give the path of that", path)
    if not path.endswith(".safetensors"):
        return GGUF(path)
    Safetensors(path)                   # what is wrong with this very file is said first
    checkpoint = HFDirectory(os.path.dirname(path) or ".")
    if not any(os.path.samefile(path, file) for file in checkpoint.files):
        raise KshipraError("is not among the files of the model in its directory; give the "
                           "directory", path)
    return checkpoint


def _gpu_path():
    """Return the module kshipra_cuda, a file beside this one.  Raises KshipraError without it."""
    try:
        import kshipra_cuda             # only now: it takes a while, and most runs need none of it
    except ImportError as e:
        raise KshipraError(f"device \"cuda\" needs kshipra_cuda.py beside kshipra.py ({e}); copy "
                           "it there") from None
    return kshipra_cuda


def choose_backend(device, threads, weight_bytes, gpu_layers=None):
    """Return the backend for a device: Native where it can be had, unless it is not wanted.

    threads: None for KSHIPRA_THREADS, or all cores where the weights are worth it
    """
    check_choice("device", device, DEVICES)
    named, asked = "threads", os.environ.get("KSHIPRA_THREADS")
    if threads is None and asked:
        named, threads = "KSHIPRA_THREADS", int(asked) if asked.isdecimal() else asked
    if threads is not None:
        threads = check_whole(named, threads, 1, 256)
    if device == "python":
        return Reference()
    if device == "cuda":
        return _gpu_path().Cuda(choose_backend("auto", threads, weight_bytes), gpu_layers)
    isa, reason = choose_isa(os.environ)

    def plain(reason):
        if device == "native":
            raise refused_by_name(reason)
        if os.environ.get("KSHIPRA_ISA") != "python":
            warn_plain(reason)
        return Reference()

    if isa is None:
        return plain(reason)
    if threads is None:
        threads = usable_cores() if weight_bytes > SMALL_BYTES else 1
    n_cpus = len(usable_cpus())
    if threads > n_cpus:                # they would wait for each other by turns
        warn(f"going on with {n_cpus} of {threads} threads: this process may use no more "
             "processors")
        threads = n_cpus
    try:
        return Native(isa, threads, device == "native")
    except BackendFault as fault:
        return plain(fault)


def give_back_memory():
    """Have glibc return what Python needed to translate this file, some 25 MB, to the system."""
    if sys.platform == "linux" and ctypes:
        try:
            _foreign(ctypes.CDLL(None), "malloc_trim", ctypes.c_int, ctypes.c_size_t)(0)
        except AttributeError:          # another C library
            pass


def load(path: "str | os.PathLike | None" = None, device: str = "auto",
         threads: "int | None" = None, ctx_size: "int | None" = None, kv_type: str = "f16",
         page_size: "int | None" = None, cache_tokens: "int | None" = None,
         quant_scheme: "str | None" = None, quant_bits: "int | None" = None,
         group_size: "int | None" = None, gpu_layers: "int | None" = None) -> Model:
    """Load a model.

    path: GGUF file, safetensors file, Hugging Face directory; None: the model in this file
    device: "native" for machine code, "python" for chapter 4, "auto" for the first of these that
    works; "cuda" for an NVIDIA GPU
    threads: None for all that pay   ctx_size: positions in the cache; None: the model's own, at
    most DEFAULT_CTX   kv_type: "f32", "f16" or "q8_0", for the cache   page_size: positions in
    a page of it; None: one page   cache_tokens: positions in the pages that generate_batch and
    submit share; None: four contexts, or 16384 if that is less   quant_scheme: None, or encode
    the weights in memory: "int", with quant_bits of 2, 4 or 8 and a group_size of 32, 64 or 128,
    "nf4", or the name of a format, such as "q8_0"   gpu_layers: how many of the
    last layers device "cuda" computes, the processor doing the others; None: all
    Raises KshipraError for anything wrong with the file or the parameters.
    """
    give_back_memory()
    format = scheme_format(quant_scheme, quant_bits, group_size)
    checkpoint = open_checkpoint(path)
    checkpoint.require_model()
    Hparams(checkpoint)                 # an architecture that is unknown is said first
    weight_bytes = sum(t.n_bytes for t in checkpoint.tensors.values())
    if gpu_layers is not None and device != "cuda":
        raise KshipraError(f"gpu_layers is for device 'cuda', and device is {_quote(device)}")
    ops = choose_backend(device, threads, weight_bytes, gpu_layers)
    model = Model(checkpoint, tokenizer_of(checkpoint), ops, ctx_size=ctx_size, kv_type=kv_type,
                  page_size=page_size, cache_tokens=cache_tokens)
    if format is not None:
        encode_weights(model, format, threads)
    return model


def load_draft(device) -> Model:
    """Load the small model in this file that goes ahead of the other one."""
    checkpoint = GGUF("the draft model in kshipra.py", data=unpack_model(DRAFT_MODEL))
    return Model(checkpoint, tokenizer_of(checkpoint), choose_backend(device, 1, 0))


def free_memory_bytes():
    """Return the memory that a new process could use, or None where the system does not say."""
    try:
        with open("/proc/meminfo") as f:
            return int(re.search(r"MemAvailable:\s+(\d+)", f.read()).group(1)) << 10
    except (OSError, AttributeError):
        return None


def resident_mb():
    """Return (MB in memory now, the most so far) of this process, None for what is not known.

    Linux counts a child's peak in getrusage from its parent's, so it is asked for elsewhere.
    """
    with contextlib.suppress(OSError, KeyError, ValueError):
        with open("/proc/self/status") as f:
            kb = dict(line.split(":", 1) for line in f)
        return tuple(round(int(kb[key].split()[0]) * 1024 / 1e6, 1) for key in ("VmRSS", "VmHWM"))
    try:
        import resource                 # not on Windows
    except ImportError:
        return None, None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None, round(peak * (1 if sys.platform == "darwin" else 1024) / 1e6, 1)


def describe(path, ctx_size=None, kv_type="f16"):
    """Yield lines: metadata, tensors and memory plan of a checkpoint, no weight read.

    What can be listed is listed before KshipraError is raised for the rest.  A safetensors
    file without config.json beside it has no plan.
    """
    alone = path is not None and path.endswith(".safetensors") and not os.path.isfile(
        os.path.join(os.path.dirname(path), "config.json"))
    checkpoint = Safetensors(path) if alone else open_checkpoint(path)
    yield f"file      {_shown(checkpoint.path)}"
    numbers = checkpoint.config if isinstance(checkpoint, HFDirectory) else checkpoint.metadata
    for key, value in sorted(numbers.items()):
        if hasattr(value, "__len__") and not isinstance(value, (str, dict)) and len(value) > 8:
            value = f"[{len(value)} values]"
        text = str(value) if not isinstance(value, str) else repr(value)
        yield f"  {_shown(key)} = {text if len(text) < 100 else text[:96] + ' ...'}"
    yield f"tensors   {len(checkpoint.tensors)}"
    weight_bytes = 0
    for name, t in checkpoint.tensors.items():
        yield f"  {_shown(name):<40} {t.format.name:<6} {tuple(t.shape)}"
        weight_bytes += t.n_bytes
    yield "memory"
    yield f"  weights      {count(weight_bytes, 'B')}, mapped from the file"
    if alone:
        return
    checkpoint.require_model()
    hp = Hparams(checkpoint)
    n_ctx, n_rows = hp.check_ctx(ctx_size), Reference.prefill_rows
    plan = memory_plan(checkpoint, hp, kv_type, n_rows, n_ctx)
    if hp.arch.experts:
        idle = sum(t.n_bytes for name, t in checkpoint.tensors.items()
                   if EXPERT_TENSORS.fullmatch(name)) * (hp.n_experts - hp.n_used) // hp.n_experts
        yield (f"  experts      {hp.n_used} of {hp.n_experts} in each layer for a token, which so "
               f"reads {count(weight_bytes - idle, 'B')} of the weights")
    yield (f"  KV cache     {count(plan['KV'], 'B')}, {kv_type}, {n_ctx} positions "
           f"of {kv_position_bytes(hp, kv_type)} bytes")
    yield f"  scratch      {count(plan['activations'], 'B')}, for {n_rows} rows at a time"
    total, free = sum(plan.values()), free_memory_bytes()
    verdict = "" if free is None else \
        f" of {count(free, 'B')} free" + ("" if total <= free else ": too little memory")
    yield f"  together     {count(total, 'B')}{verdict}"


def kernel_listing(name):
    """Return a kernel as text: what it must equal, then each operation with its bytes."""
    kernels = {own: (row.emit, parameters) for row in KERNELS.values()
               for own, parameters in row.listed.items()}
    if name.lower() not in kernels:
        raise KshipraError(f"no kernel is called {name!r}; there are {', '.join(kernels)}")
    emit, parameters = kernels[name.lower()]
    isa = choose_isa(os.environ)[0] or "avx2"
    return f"{name}, {isa}\n\n{emit.__doc__.strip()}\n\n{listing(build(emit, *parameters), isa)}"


# The command line.  A row of OPTIONS is an option; where its name is that of a parameter of the
# API it is passed on, and what is not given is left to the API, so defaults are written once.
# LISTED says what each way to run takes; an option that it would ignore is refused.

STORY = "Once upon a time"              # the prompt where there is none
LOAD_OPTIONS = ("device", "threads", "ctx_size", "kv_type", "page_size", "quant_scheme",
                "quant_bits", "group_size", "gpu_layers")
SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed")
GENERATE_OPTIONS = ("max_tokens", "stop", "ignore_eos", *SAMPLING_OPTIONS)
DRAFT_OPTIONS = ("speculate", "adaptive_k", "ngram_n", "lookup_n")     # with one of the next
DRAFTER_OPTIONS = ("draft_mode", "draft")
PROMPT_OPTIONS = ("model", "prompt", "file", "text", "paged_cache", *LOAD_OPTIONS)
LISTED = {                              # what to do -> the options that it heeds
    "info": ("model", "ctx_size", "kv_type"), "listing": (), "version": (),
    "profile": (*PROMPT_OPTIONS, "max_tokens", "early_exit"),
    "json": (*PROMPT_OPTIONS, "batch_prompts", *GENERATE_OPTIONS, *DRAFTER_OPTIONS,
             *DRAFT_OPTIONS, "early_exit"),
    "quantize": ("model", "imatrix", "threads"), "convert": ("model", "threads"),
    "calibrate": ("model", "imatrix", *LOAD_OPTIONS), "perplexity": ("model", *LOAD_OPTIONS),
    "kl_divergence": ("model", "base", *LOAD_OPTIONS)}

OPTIONS = {                             # group -> rows of (flags, what argparse is told)
    "what to say": [
        ("-m --model --checkpoint", dict(metavar="PATH", help="GGUF file, safetensors file or "
         "Hugging Face directory (default: the model in this file)")),
        ("-p --prompt", dict(metavar="TEXT", help="text to continue; - for standard input")),
        ("-f --file", dict(metavar="FILE", help="text to continue, from a file")),
        ("--batch-prompts", dict(metavar="A|B|C", help="texts to continue together")),
        ("-n --max-tokens", dict(type=int, metavar="N", help="tokens to generate at most; -1 for "
         f"as many as the context holds (default: {MAX_TOKENS})")),
        ("--stop", dict(action="append", metavar="TEXT",
         help="end before this text; may be given several times")),
        ("--ignore-eos", dict(action="store_true", help="go on after an end token"))],
    "how to choose": [
        ("--temp --temperature", dict(dest="temperature", type=float, metavar="T",
         help="0 for the most probable token each time (default: 0.8)")),
        ("--top-k", dict(type=int, metavar="K", help="0 for all tokens (default: 40)")),
        ("--top-p", dict(type=float, metavar="P", help="1 for all (default: 0.95)")),
        ("--min-p", dict(type=float, metavar="P", help="0 for all (default: 0.05)")),
        ("--repeat-penalty", dict(type=float, metavar="X", help="default: 1, none")),
        ("--seed", dict(type=int, metavar="N",
         help="same seed, same text (default, and -1: a new one)"))],
    "how to compute": [
        ("-c --ctx-size", dict(type=int, metavar="N",
         help=f"positions in the cache (default: the model's, at most {DEFAULT_CTX})")),
        ("-t --threads", dict(type=int, metavar="N", help="threads (default: all that pay)")),
        ("--device", dict(choices=DEVICES, help="what computes (default: auto)")),
        ("--gpu-layers", dict(type=int, metavar="N", help="with --device cuda: how many of the "
         "last layers the GPU computes, the processor doing the others (default: all)")),
        ("--kv-type", dict(choices=KV_TYPES, help="type of the cache (default: f16); q8_0 takes "
         "half as much, and is coarse where a few of a key's numbers are much larger than the "
         "rest")),
        ("--paged-cache", dict(action="store_true", help="keep the cache in small pages")),
        ("--page-size", dict(type=int, metavar="N",
         help="positions in a page of the paged cache (default: 64)")),
        ("--quant-scheme", dict(metavar="int|nf4|TYPE",
         help="encode the weights when they are loaded, in memory; TYPE as q8_0, q4_k")),
        ("--quant-bits", dict(type=int, metavar="N", help="of int: 2, 4 or 8 (default: 4)")),
        ("--group-size", dict(type=int, metavar="N",
         help="weights of int under one scale: 32, 64 or 128 (default: 64)"))],
    "who guesses tokens ahead, which changes no token": [
        ("--draft-mode", dict(choices=("greedy", *DRAFTS), help="greedy: nobody (default); "
         "lookup: what followed the last tokens before; ngram: what most often did; model: a "
         "smaller one; self: the model's own first layers")),
        ("--draft --draft-checkpoint", dict(metavar="PATH", help="the smaller model, of the same "
         "vocabulary (default: the draft in this file)")),
        ("--speculate", dict(type=int, metavar="K", help="guesses a step (default: as many as "
         f"pay, at most {DRAFT_TOKENS})")),
        ("--adaptive-k", dict(action="store_true", help="as many as pay, at most --speculate")),
        ("--ngram-n", dict(type=int, metavar="N", help="tokens in an n-gram (default: 3)")),
        ("--lookup-n", dict(type=int, metavar="N", help="tokens to look for (default: 3)"))],
    "which does change tokens": [
        ("--early-exit", dict(metavar="P", help="leave out the last layers where the first are as "
         "sure as this of a token, such as 0.9; with --profile also several, as 0.5,0.9"))],
    "what to do instead of printing text (one of these)": [
        ("--json", dict(action="store_true", help="print one JSON object")),
        ("--info", dict(action="store_true", help="print metadata, tensors and a memory plan")),
        ("--profile", dict(action="store_true",
         help="print where the time and the memory of the prompt and --max-tokens go")),
        ("--listing", dict(metavar="KERNEL", help="print a kernel's machine code, such as q4_0")),
        ("--quantize", dict(nargs=2, metavar=("TYPE", "OUT"), help="write the model as a GGUF of "
         f"another type: {', '.join(FILE_TYPES)}")),
        ("--convert", dict(metavar="OUT", help="write the model as a GGUF of F16 or, if OUT ends "
         "in .safetensors, as that")),
        ("--calibrate", dict(metavar="TEXTFILE",
         help="write to --imatrix what a text says of the importance of weights")),
        ("--imatrix", dict(metavar="FILE", help="an importance matrix, for --quantize to use or "
         "for --calibrate to write")),
        ("--perplexity", dict(metavar="TEXTFILE", help="print how well the model foretells a "
         f"text, in chunks of --ctx-size (default: {SCORED_CTX})")),
        ("--kl-divergence", dict(metavar="TEXTFILE",
         help="print how far the model is from --base on a text")),
        ("--base", dict(metavar="MODEL", help="the model that --model was made of")),
        ("--version", dict(action="store_true", help="print the version"))]}

EXAMPLES = """examples:
  kshipra.py "Once upon a time"                 a story from the model in this file
  kshipra.py -m model.gguf -p "1, 2, 3," -n 20 --temp 0
  kshipra.py -m model.gguf -f prompt.txt --json > answer.json
  kshipra.py -m model.gguf --info               what is in it, what memory it takes
  echo "The capital of France is" | kshipra.py -m model.gguf -p -
"""


class _OutputLost(Exception):
    """The output cannot be written; the cause is the OSError."""


def say(text):
    """Write text to stdout, all of it; what its encoding lacks is marked."""
    out = sys.stdout
    if out is None:                     # started with its output closed
        return
    try:
        if not hasattr(out, "buffer"):  # a StringIO, a notebook
            out.write(text)
            return
        _patiently(out, out.flush)
        data = text.replace("\n", os.linesep).encode(out.encoding or "utf-8", "replace")
        while data:
            data = data[_patiently(out, out.buffer.write, data):]
        _patiently(out, out.buffer.flush)
    except OSError as error:
        raise _OutputLost from error


def _patiently(out, call, *data):
    """Return call(*data); where the output is full and does not wait, wait for it."""
    try:
        return call(*data)
    except BlockingIOError as error:
        select.select([], [out], [])
        return error.characters_written if data else _patiently(out, call)


class _Parser(argparse.ArgumentParser):
    """argparse's, which writes where and as we do."""

    def _print_message(self, message, file=None):
        if file is sys.stderr:
            file.write(message)
        else:
            say(message)

    def error(self, message):
        if sys.stderr is None:          # or it would write to stdout
            self.exit(2)
        super().error(message)


def build_parser():
    """Return the argparse parser of the command line; what is not given is not in its answer."""
    parser = _Parser(
        prog="kshipra", description="Run a language model: the small one in this file, or any "
        "GGUF or safetensors checkpoint.", epilog=EXAMPLES, allow_abbrev=False,
        argument_default=argparse.SUPPRESS, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", metavar="PROMPT", help="text to continue")
    for title, rows in OPTIONS.items():
        group = parser.add_argument_group(title)
        for flags, told in rows:
            group.add_argument(*flags.split(), **told)
    return parser


def _flag(name):
    """Return how the command line calls what argparse calls `name`."""
    return {"text": "PROMPT", "temperature": "--temp"}.get(name, "--" + name.replace("_", "-"))


def _joined(argv):
    """Return argv with a text that begins with "-" tied to its option, or argparse would take
    it for an option."""
    flags = {flag for rows in OPTIONS.values() for names, _ in rows for flag in names.split()}
    out, i = [], 0
    while i < len(argv):
        option, text = argv[i], argv[i + 1] if i + 1 < len(argv) else ""
        if option == "--":
            return out + argv[i:]
        if option in ("-p", "--prompt", "--stop") and text[:1] == "-" and len(text) > 1 \
                and text.partition("=")[0] not in flags:
            option, i = {"-p": "--prompt"}.get(option, option) + "=" + text, i + 1
        out.append(option)
        i += 1
    return out


def parse_arguments(argv):
    """Return {name: value} of the options that were given; usage errors exit with status 2."""
    parser = build_parser()
    given = vars(parser.parse_args(_joined(list(argv))))
    whats = [name for name in given if name in LISTED]
    if len(whats) > 1:
        parser.error(f"{' and '.join(map(_flag, whats))} exclude each other")
    heeded = LISTED[whats[0]] if whats else LISTED["json"]
    ignored = [_flag(name) for name in given if name not in (*heeded, *whats)]
    if ignored:
        parser.error(f"{_flag(whats[0])} does not heed {', '.join(ignored)}")
    prompts = [name for name in ("text", "prompt", "file", "batch_prompts")
               if name in given]
    if len(prompts) > 1:
        parser.error(f"{' and '.join(map(_flag, prompts))} exclude each other")
    drafting = _some(given, (*DRAFTER_OPTIONS, *DRAFT_OPTIONS))
    alone = [*drafting, *_some(given, ["early_exit"])]
    if alone and "batch_prompts" in given:
        parser.error(f"--batch-prompts and {_flag(alone[0])} exclude each other")
    mode = given.get("draft_mode", "model" if "draft" in given else "greedy")
    if "draft" in given and mode != "model":
        parser.error(f"--draft-mode {mode} and --draft exclude each other")
    for name in _some(given, DRAFT_OPTIONS):
        if mode == "greedy" or {"ngram_n": "ngram", "lookup_n": "lookup"}.get(name, mode) != mode:
            parser.error(f"--draft-mode {mode} does not heed {_flag(name)}")
    for name, needed in (("calibrate", "imatrix"), ("kl_divergence", "base")):
        if name in given and needed not in given:
            parser.error(f"{_flag(name)} needs {_flag(needed)}")
    if not prompts and "model" in given and set(whats) <= {"json", "profile"}:
        parser.error("give a prompt (or --info)")
    return given


def typed_text(argument):
    """Return a command line's argument as text: typed in another encoding it has surrogates."""
    return os.fsencode(argument).decode("utf-8", "replace")


def _standard_input():
    """Return all of it, as bytes; a host may have put a StringIO in its place, or closed it."""
    if sys.stdin is None:
        return b""
    if not hasattr(sys.stdin, "buffer"):
        return sys.stdin.read().encode("utf-8", "replace")
    return sys.stdin.buffer.read()


def prompt_of(given):
    """Return the prompt: as typed, from a file, or from standard input.

    The end of the last line of a file is not part of it.
    """
    typed = given.get("prompt", given.get("text", STORY))
    if "file" in given or typed == "-":
        source = given.get("file", "standard input")
        data = _read_bytes(source) if "file" in given else \
            _standard_input()
        try:
            text = data.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            raise KshipraError("a prompt is not UTF-8", source, error.start) from None
        return text[:-1] if text.endswith("\n") else text
    return typed_text(typed)


def _some(given, names):
    return {name: given[name] for name in names if name in given}


def load_as_asked(given):
    """Return the Model that the arguments ask for."""
    options = _some(given, LOAD_OPTIONS)
    if "paged_cache" in given:
        options.setdefault("page_size", 64)
    return load(given.get("model"), **options)


def generation_options(given):
    """Return the parameters of generate that the arguments ask for."""
    options = _some(given, GENERATE_OPTIONS)
    if options.get("max_tokens") == -1:
        options["max_tokens"] = None
    if options.get("seed") == -1:
        options["seed"] = None
    options["stop"] = [typed_text(stop) for stop in options.get("stop", ())]
    return options


def thresholds(text):
    """Return the numbers that --early-exit lists."""
    try:
        return [check_number("early_exit", float(part), 0, 1) for part in text.split(",")]
    except ValueError as error:
        raise error if isinstance(error, KshipraError) else KshipraError(
            f"early_exit is {_quote(text)}; a number of 0 to 1 is needed") from None


def draft_as_asked(given):
    """Return the parameters of generate that say who guesses, or where tokens leave."""
    options = _some(given, DRAFT_OPTIONS)
    if "early_exit" in given:
        options["early_exit"], *more = thresholds(given["early_exit"])
        if more:
            raise KshipraError("early_exit takes several thresholds only with --profile; give one")
    if "draft" in given:
        options["draft"] = load(given["draft"], **_some(given, ("device", "threads")))
    elif given.get("draft_mode", "greedy") != "greedy":
        options["draft"] = given["draft_mode"]
    return options


def timings_of(generation, load_s):
    n_ids, n_prompt = len(generation.ids), len(generation.prompt_ids)
    return {
        "load_s": load_s, "ttft_s": generation.ttft_s,
        "prefill_tok_s": n_prompt / generation.ttft_s if generation.ttft_s else None,
        "decode_tok_s": (n_ids - 1) / generation.decode_s if generation.decode_s else None}


def run_prompt(given):
    """Generate for the prompt and print it: the prompt and its continuation, or JSON."""
    as_json, on_terminal = "json" in given, sys.stderr is not None and sys.stderr.isatty()
    prompt, begun = prompt_of(given), time.perf_counter()
    model = load_as_asked(given)
    load_s = time.perf_counter() - begun

    def progress(done, total):
        sys.stderr.write(f"\rreading the prompt: {done} of {total} tokens"
                         if done < total else "\r\x1b[K")
        sys.stderr.flush()

    generation = model.generate(prompt, progress=progress if on_terminal and not as_json else None,
                                **generation_options(given), **draft_as_asked(given))
    reason = None
    try:
        if not as_json:
            say(prompt)
        for piece in generation:
            if not as_json:
                say(piece)
    except KeyboardInterrupt:
        reason = "interrupted"
    reason, timings = reason or generation.finish_reason, timings_of(generation, load_s)
    if as_json:
        say(json.dumps(as_object(model, generation, reason, timings)) + "\n")
    else:
        say("\n")
        if on_terminal:
            warn(timings_text(generation, timings))
            if generation.speculation or generation.early_exit:
                warn(generation.speculation or generation.early_exit)
        n_asked = given.get("max_tokens", MAX_TOKENS)
        if reason == "length" and len(generation.ids) < n_asked:
            warn(f"the context of {model.ctx_size} positions is full; use a larger --ctx-size")
        if not given:
            warn("that was the model in this file; --help tells what else there is")
    return 130 if reason == "interrupted" else 0


def as_object(model, generation, reason, timings):
    """Return what --json prints of a generation."""
    found = {"text": generation.text, "tokens": generation.ids,
             "prompt_tokens": len(generation.prompt_ids), "finish_reason": reason,
             "timings": timings, "rss_mb": resident_mb()[1], "device": model.ops.name,
             "isa": model.ops.isa, "threads": model.ops.n_threads}
    if generation.early_exit:
        found.update(early_exit=str(generation.early_exit))
    if generation.speculation:
        found.update(accept_rate=generation.speculation.accept_rate,
                     speculation=str(generation.speculation))
    return found


def run_batch(given):
    """Continue several prompts together, and print them one after the other, or as JSON."""
    begun = time.perf_counter()
    model = load_as_asked(given)
    load_s = time.perf_counter() - begun
    prompts = typed_text(given["batch_prompts"]).split("|")
    batch = model.generate_batch(prompts, **generation_options(given))
    if "json" in given:
        say(json.dumps([as_object(model, generation, generation.finish_reason,
                                  timings_of(generation, load_s)) for generation in batch]) + "\n")
    else:
        say("\n\n".join(map(operator.add, prompts, [g.text for g in batch])) + "\n")
    return 0


def timings_text(generation, timings):
    """Return one line: how long it took, and how fast that was."""
    prefill, decode = (f"{t:,.1f}/s" if t else "-" for t in (
        timings["prefill_tok_s"], timings["decode_tok_s"]))
    return (f"load {duration(timings['load_s'])}; prompt {len(generation.prompt_ids)} tokens, "
            f"{duration(generation.ttft_s)}, {prefill}; text {len(generation.ids)} tokens, "
            f"{duration(generation.decode_s)}, {decode}")


def run_profile(given):
    """Print where the time and the memory of the prompt and its continuation go."""
    model = load_as_asked(given)
    ids = model.prompt_ids(prompt_of(given))
    model.check_prompt(ids)
    n = given.get("max_tokens", MAX_TOKENS)
    n = model.check_limit(None if n == -1 else n, model.ctx_size - len(ids))
    if "early_exit" in given:
        rows = early_exit_rows(model, ids, n, thresholds(given["early_exit"]))
        say(aligned(["threshold", "tokens/s", "layers", "agree", "<left after"], rows) + "\n")
        return 0
    found, limits = profile(model, ids, n), ceilings(given.get("threads"))
    lines = [f"{model.ops.name}, {model.ops.isa}, threads {model.ops.n_threads}; "
             + limits_text(limits)]
    for phase, n_tokens in (("prefill", len(ids)), ("decode", n)):
        if n_tokens:
            lines += [f"\n{phase}, {n_tokens} tokens\n",
                      aligned(*profile_rows(found[phase], limits))]
    held = ledger(model, len(ids), len(ids) + n)
    lines += ["\nmemory\n", aligned(["<what", "held"],
                                    [[name, count(size, "B")] for name, size in held.items()])]
    say("\n".join(lines) + "\n")
    return 0


def progress_bar(what):
    """Return progress(done, total), which draws a bar on stderr; None where nobody watches."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None

    def progress(done, total):
        n = 40 * done // total
        sys.stderr.write(f"\r{what} [{'#' * n}{'.' * (40 - n)}] {100 * done // total}%"
                         if done < total else "\r\x1b[K")
        sys.stderr.flush()
    return progress


def text_of(path):
    """Return the text of a file."""
    try:
        return _read_bytes(path).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise KshipraError("is not a text of UTF-8", path, error.start) from None


def run_quantize(given):
    kind, out = given["quantize"]
    quantize(given.get("model"), out, kind.upper(), progress=progress_bar("encoding"),
             **_some(given, ("imatrix", "threads")))
    return 0


def run_convert(given):
    convert(given.get("model"), given["convert"], progress=progress_bar("converting"),
            **_some(given, ("threads",)))
    return 0


def run_calibrate(given):
    text, model = text_of(given["calibrate"]), load_as_asked(given)
    calibrate(model, text, given["imatrix"], given.get("ctx_size", SCORED_CTX),
              progress_bar("calibrating"))
    return 0


def run_perplexity(given):
    text, model = text_of(given["perplexity"]), load_as_asked(given)
    found = surprise(model, text, given.get("ctx_size", SCORED_CTX), progress_bar("reading"))
    perplexity = math.exp(found.mean)
    say(f"perplexity {perplexity:.4f} +- {perplexity * found.error:.4f}, of {len(found.values)} "
        "tokens\n")
    return 0


def run_kl_divergence(given):
    text, model = text_of(given["kl_divergence"]), load_as_asked(given)
    base = load(given["base"], **_some(given, ("device", "threads", "ctx_size", "kv_type")))
    found = divergence(model, base, text, given.get("ctx_size", SCORED_CTX),
                       progress_bar("comparing"))
    say(f"KL divergence {found.kl.mean:.6f} +- {found.kl.error:.6f} nats a token, of "
        f"{len(found.kl.values)}; the same most probable token {found.same_top:.2%}\n"
        f"perplexity {found.perplexity:.4f}, of the base {found.base_perplexity:.4f}\n")
    return 0


def run_command(argv):
    """Do what the arguments ask for; return the exit status."""
    given = parse_arguments(argv)
    if "version" in given:
        say(f"kshipra {__version__}, Python {platform.python_version()}\n")
    elif "listing" in given:
        say(kernel_listing(given["listing"]) + "\n")
    elif "info" in given:
        for line in describe(given.get("model"), **_some(given, ("ctx_size", "kv_type"))):
            say(line + "\n")
    else:
        runs = {"profile": run_profile, "quantize": run_quantize, "convert": run_convert,
                "calibrate": run_calibrate, "perplexity": run_perplexity,
                "kl_divergence": run_kl_divergence, "batch_prompts": run_batch}
        return next((run for name, run in runs.items() if name in given), run_prompt)(given)
    return 0


def complain(message):
    """Say in one line what is wrong, parameters named as options; return the status for it."""
    names = (*LOAD_OPTIONS, *GENERATE_OPTIONS, *DRAFT_OPTIONS, "early_exit")
    warn(re.sub(r"\b[a-z]+_[a-z]+\b", lambda m: _flag(m.group()) if m.group() in names
                else m.group(), str(message)))
    return 1


def main(argv=None) -> int:
    """Run the command line; return the exit status."""
    try:
        return run_command(sys.argv[1:] if argv is None else argv)
    except _OutputLost as lost:
        if isinstance(lost.__cause__, BrokenPipeError):     # whoever read it has seen enough
            return 0
        return complain(f"the output cannot be written: {lost.__cause__.strerror}")
    except (KshipraError, OSError) as error:
        return complain(error)
    except MemoryError:
        return complain("not enough memory; use a smaller model or ctx_size")
    except KeyboardInterrupt:
        return 130


def _script():
    """Run as a script: a process of our own, which has its three streams to itself."""
    for fd in range(3):                 # no file may be opened in the place of a closed one
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is not None:          # a console that cannot show a character marks it
        sys.stderr.reconfigure(errors="backslashreplace")
    status = main()
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:                     # said already; nor may Python try again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


# ---------------------------------------------------------------------------------------
# 23. The model in the file
#
# Two small llama models that were trained for this project on stories of its own grammar:
# the demo (4 layers, width 64, Q4_0) and a draft for speculative decoding (one layer of
# width 32).  Each is a GGUF file, compressed by zlib and
# written in base 85.

def unpack_model(text):
    """Return the bytes of the GGUF file packed in text."""
    return zlib.decompress(base64.b85decode(text.replace("\n", "")))


DEMO_MODEL = """
c-riHcUY5G-+x<0K<%#E=V@A%m0-0hOGT@)(NY;1fHJb~Bn-(OC<@u2RLKTJA^VP^0!bLwN`L^aR%N)l+}gK&I$X6+f3Z(<=k{
&;w(ozx>w4w7a`DNX?>Xl?KHu*-=Nm{!$c&%x+;h(bJ@=oV8NdC0<G0@=LNTE%pSCc+tdI;a2!#x086m*)-0!!~X|(*J{Hgy<x
H!M)S0V3nDxD0JmgR@z2}LEZ{x?}7KqG8sa7zgjJr7^-yypHlfi2AZVg|s=X8<L|n^}Z1y63l7_6@ie3kyq%83YbvGmTJ8VvwK
6JQ14ylnkM$fPlvX#Uz;2YR~J{r=$vKC56<@g(b{l#uI@juUStC5D5hQW@1ShJHHGMn<>xpn*EeuK7&Chexmw9G9e%T^pyYjOU
cbtme<svKM|(oa|vaei%ZIiHkTFAHxo+f0Ij5Wl1CEk3yyqRnX-~n!a_VyL@0jZM4vLR{LYoXN)pQmTQ(Qu(+N*zdv5jI_*b5i
VU-l-7i^{jJc8HN-Z>a0R6?=mdD%h|sff0)s02@-1^j08uc0kvy!+Z8%a%S(FOOvSyVL$y^w+oaK+gvOzpek|=f&TIR|p8j_!8
n1LI`4?|Lx&hUhuXT%=3czUa-Img1jKu3qrgg)C<DA0O<uNF9`R7g<kNE7cBCE#a{5P7cB9DrCzYi3nIKA(hH)zAleIJykNN(t
nh-BUI2Mxl^3k`g7>^&jTfx-f^}XH=LPXzkl+Q0UXbJk$zG7+1*u-J-U~K(!TVm2<^>;k!A37g_ks*B$n=6NFF<<%#tX1sfb)W
EFUawNTrb$<1)IGf&kORspuh_Xy#Vh81TP?Z0m%!<UI2Ij#S5rjK=XnkFDUkc5-%wAf-PQ9<^^;wV0Z!33s_#j_5zL<aJ_)%1$
-|MctN=rZ2c|Mo;$t|Li-`q451bX=^<o*kP$*A2$>;dfshqKAcPJ;=pckzA#?~rhaq$XLTwOghfoKE>=1H5$O)lN2z5cI8$vx0
ItrnWyr{PVLfav<145M$s)CRZLLvx>AtZs26hblx$stq?p&AJ7gwQSs)k5e)2<?W@9thPzNC6=wgj5hxLr4Q5ErfIss)tYmgc>
2V7eY-Cf>_rJv91?lT`$DCUWj$Q5bJs&*7ZWH>xEd?3$d;jVqGu9x?UTEApZ42{Og7I*9-Bl7vf(p#J^sMf4va@dLjPxLj3E6_
}2^ZuNUH9FT}rIh=08h|9T<*^+Nn}LHu(;{BuG4b3y!bLHu(;{BuG4b3y!bLHu(;{BuG4b3y!bLHu(;{BuG4b3y!bLHu(;{BuG
4b3y!bLHu(;{BuG4b3y!bLHu(;{BuG4b3y!bLHu(;{BuG4b3y!bLHu(;{BuG4b3y!bLHu(;{BuG4b3y!bLHu(;{BuG4b3y!bLH
u(;{BuG4b3y!bLHu(;{BuG4b3y!bLHu(;{BuG4b3y!bLHu(;{BuG4b3y!bLHu(;{BuG4b3y#;gZS46@vjf!UmwIjGGPMbafT1(
`yk!VCjggbd#5PIdl8`wLU^BGfe!)`eZyf(l=vXcJ3|>vmY(l@T14<^lkZ!YM)S>3?1Mz#6bxt$&y~g}0nI>$mH?n<WiV^s_Je
6ohfF8=Bno}7$oqK-)Auj~dI&R@1kLoHL;r8)`gAB^K-xeW5{i9xl>xrV-t&h&_L%9D0vJ9Fk71H`O4QqsBLHY=D4O|P$T<*4$
oY_FC2ZJAF!z`G9v4E&)1hHBSS&Nh1X#Es5oR%@0;CKL?~^Qm*#d*9URe^^`;g&_y5}<Ln}G(ITUG+C3aw9or34pdBt(FGm;kg
^hR?-R0^VmNJ|8wmNwMz(ZVA)(K{1pVBr<Gvm_!ND`?#ct07V8$0kY53BKY#fJ}$8!1<L?v1}ecHri5oGG_@}Z5Tet4s;!>{i*
peykg%kJRLZB(d@9jON_=C99$f;SdRGjE+QVk9Z$YXTz7J0u28@zSUxXkt3aPLh1{jmzZ^%BS;RY~EeT$~UXa|cU10ql%Y+w>B
;pj!a(gWiz8}O+^htoeFo~%%MmlQ)WBlyZ)NeQeL6hMWAPz-s34$TaB_~cuX=u7W~Z^N7j6u}Z{jSnWmawb0j9ziPHs$yulVo#
p=mh(i)AC`11I58Q%ida%i@`pLjLl$^^2~ZtkL0+eEeZGLr`Cc&|7GRG*ASpJiLdAP$dFyT8!ws-Bc;YiyWFS@n5HT1um|-3j%
V1Tlga+FN*THr!UjWOPusTpwQWgk*^TdU|2@)pyau#MOj2Nz_G^i#Q`OL?AY=$Zt-KQ<#Nmlv8_B954&&V&H1TW7J<!Lkm%(X=
x212YWgCMgQO8t%bFkP8Y9DuU?iI4;fqB($vtjYK7cx0$H6H0t#94eG_a=uURQeSfTiWESD^d~=6|MQD{+N~kLVnG97$+FH@Is
uZ;_;`=SzIUk}qkTitfKuN_Pb~C(l)$9>K3eZ_gzw#Z9zMX_?s0){SSkTlEZ_6k?0dHX@cFw0Ho<z23w*YcVB=Fg9`TM?^)}2O
u<D#qQZx}d$iVX{!&7Nt+Zq6|Jf8*aCcb)2hO?Cnrx+cIHHiRAGkgh5q$B_y5>K}IK1+n3nHVL$Ert%ySt6|F!S;Bl`Y~Xu`4~
rnrEviOD`X6Kg46TazBlP)$oOEG*Nb6ZCwUwM-*<{(o+)6$wxog*_%2YwnDsxjWPk1E2YQ>hzp3!V7tcR?J$pTSJ$pTSJ$pTS{
hxaM$#=L#gfbEV`VRM(=X{5SUr%ZX*y#!ZJAfcy=W7J)@XA2IFRlo-ccNkhbR;Ao%6t%ZQA8BLFzj&5erhe)*$m;kGr{HQ2<RG
6gn%8c@)5<54m1P}HV^E^jDQ^u8NS6>2>2=0XA9Z47T|kY_LSFPcWHJ$g6{JO?9zcKgkh*VP=bK<cn}%B$8aZ*d=tX%o%DQ!?+
{*sVE9za_c<SSxk13YtBCgkV0}Y`=Thhs1Q4);{?oxu^3IGxyzO(4uV3Mddp?5ea~s4ea=uT`5(FE*COkr=z7Gn0*3f-pY4E6L
cyxqw1CnAQihb&o`NqNz;7`R7j#Hs)3Ib{rF<>0=Xbig{(0ooPLzMUwVE94-Pc1Ioa=K4RxD2#v1}p|t1pFe7N94n1DnY<*fm}
oh6V?XwB^ZhP)GAE)c&K+?g79^O0AC`JJ&8Thmv}HuiV-D{sVtu#J=F5GMG>%0Uva)?1-x$wSfGl1@rK=~5bOP64Mzn0I{^e4m
Z6Y-`3QI)iH0aC@l8PV<N_h^skS4+cP;ZI0|M6ULr}f=eFVIr<*9@DFsi|#2-#JLpu#Ex0$}*V`;Q1R%m%nYOa!cpj!1{Il?$(
3fNvex=p=ah(h)_l0*8l}TmW{Fekz0VpU!{4M+#q~kKpkx^t=RKW(s_zi%{(2Ki#JyfFO}!*IpvRcZ*+$cpK(m00HmIBG$lgB0
Tl-1L3Vn#8dtEV&A&O2%s3&$U(ecOn~<pJVg*jXa=kVd+Z|xz&ezOd>ZYk{-3Ybv3x<H`AFnZ3O4n79<ITNfFKk@30cB^st(3`
=XwhPYu6w)!14(3bcYwV`v5)`F%UGEsZSIxgVoOx1pMn2#5(wX>Wgw20^X%6@&s)%ylsgneyYWWNbrM|06cuLVt7o`e7ixBKdi
37I<^D^-KRU@$yUV;fN!@9_}=9yAO7$TrY~V=o;?HRc8>wRHo7O_A<QiH?Km3|`Ebpd3}5m0HR(3yBUn(50C->V^XxhKzD?5Cr
}q&HfYoJB4#N6=rM{wDg7Ee80GiJr^3ywzrzZMzUE?7Yy!gSt`B(=l)t*%Jxg_4RyTQDd>Ipc^{4@km>iZD!q`T?+Fag1Y^_bT
qfU<ml7~jj7@Teg2;oZ+v1fc{jODDsIZa}~~z9sP3u1A#6Vc$}d5G8QU0pB+Ss}OI)okWA58%m%?a0&CNq|A6y+u{2xfcHfe_C
=a6#XVGmvHVGf!HY1&2@-+;@1i0~;8G=l@U|y{0spcz@u{Pq=iCb0=;%)s03y7!mch;<P?crCmxYm(1V2?3AmCkZ##0r;bM$2U
-lZda-+cxn=<wPL3knI5&mzG0KLotHT;NGAe^@6J0dF>Y4!3ju_-a#7Lf`zKeyA@%e<Diw1JSvEESitUZ-!=mqSf;=ekWMyA;@
M1p{SIW&-k^rR(b!ZZvlenDThTK=6bd-Iz8WW_d+Zv=kpOo*}=d5^>i^KI2Tb~?hyotPac+)&<LI<D_0_d^XYVe&dB#j{AUQH^
nc_DG&<ow9|Y$V2mki081I>8!Ef-%(hJI8g{!-nP*i|l$R<45D4sNmSO4~*w`=U}UqAWr{vCG#jk<8rlRtni{`Ie(e;fTgeDsr
_#Q*$y{r97`{K0~&;p-;-=}_t)3`M|)Zv4}stiKpqk@X)u^Y=qbn2b^;<FB;N{tuq^)OaHCfA$jo&jyh^)cJ!I^WZBI{>a!TgP
Em&F|?xW&(?kN-5_jm-XB?7@q0on{!2ns)cjuC#ea_w6+8cQ=wA_{LiMLZ|B4XL)&HIli~kpdsA&4Vj~D+HAu7y&Ht25<qQde=
#{MlrJm>hcb^it-D*Ap;h<E?GLY)1*w(tJU3UTgFhyG=SxcsL>|FS}S@q0qN`@g9W*MINhcmJ|NeDi06{!WGX_K%GHdllm6KU?
?jRER0h|Bet#{<=cUeExUZF8P}kV%DDy{mTmR_MZ;@%L?(^Kc>w5{m{QxA%6R(m1$3n|EmhI^v?$UoeHt+kBt3$6=Ln5t^0Q>#
Bcvm@)~rce&U}0k@vs-7syvj#UzzRA``1SE7%gLiAP#w<0f5EjQ22|8dYkNqgFQfjU{LqUKO5JbJ3Y}XaB(H&q;Dnb?UJGG;RU
6jjR=m(_F-Qq-i(1hFsLxSKYoOFsksv&XZwhD*^$IxFaq>$~P*dswHc~x$F+EN-DGHN{P*ErA7SyyDBM%!>QG<r4lt;E|IdI$^
6eUSHhgka?aN~(<i8Mq-ZKD?gvwN8<7o67qp7(jv8&CZNBR7%o83iYQH0H*2q{y9<N-mb^b977?dCsKWyf9uIKb9Tk_f*e`lUg
LtC0ZVU2`zM~vxJ`}|o^!&#P!AHUl&@EJ+AjPY5E%AvuX4!x1+mV*SR(z1Ftp<ILqSSUS-vWZ$oQ#d{fka1Wsk-<n@;4&?TTb+
$AjmXRqN3gU=P68(;>lHrHsY}?DlDtIfAJ&YHLt~?Uiocr{8aE(HBu%y^*zb;LcCPM@VQRQ#5?18R&~IAb%D~qBr0-iQ%+fNaE
uS9tfJG5!=5??gZUT46>Ac=yiSBS)rP${~Q%*|(rS&eG9&(2F_H+f~V9J@BCCe_k3kC{8C9FyjGixvF!Xk2}fVS3pGuTP+*D47
o*zUV;NE_Kng#I8)T$5DHK6v=?gvhcDv@|L$M6Z~MMHhA{Ete;eY5;WeiQulp9a&;hkACQt%*ArS;%ae-o#l_imTC=PkDq227b
iRvtOWLpcnMePx}J|(lS_M-nj2zZ2Bxsm>Q#=fCvgs9GAn0;L|X1-ebK8J#i{CS=}lAecVJ_Ld*COTlqL&NiAt$t`u}fS^|z^j
NKLMs#|n_DoFe6zl#4XB-|cyBwy?mVo5^dq!BPL6dDzzSg|zw(Tt>pj!{+Y8jjZRH$TWxaqdH2G*ih#zXUT>rpIVdHE0d$st3~
4Bi#<-`xA+^D6xL2O*V!<<9Ag@=A6^~CGjEe`LMsd#wtdsPtBcL}KCcL6*H?(*6FKqCOpeBCmR0Q!9o^q{_Y_)TPn+z=i4rVd(
H|zc{tEktby-2CDiMxE(O_P)CD^S@B1ilp=AJ+&BDO7AZ;s<$J)<}xy(iS@32I6CFB2>|d$vhhWX#k6@aunn4EDaI552qesOgg
=15Q6Njuld`joOOL)YEm89;x}ziv>$$>60u(i_~=89(D8X1+o#{th78wc|S~Xdv`tY9)3H1MmjSktBF#DVh{6J6>&-`Im#fPMi
t<&$fLv$#BG;VsdJP4#MvYYm}Hq+aDax>hj)d|qNUgKQ;*v$VNUr3U8*cn^x&~cWCERXGbZqd!nvlJBRX-^HvGWx!a#7!Xf9hH
l9jA>HjZ;OH^&n#D<`@MT4qGosN7cE(L#<}V)<z8Lc+!b9_><Bk+mtazf2K&>)M2&Lo*_#S4|3wVV^poNwcakALZ&)UCYUu%Qb
syh61*RRSg6T-%A$8nez4u+Uu>X`(bv%RV__;g*~yLvI|*u+WIex#p($0A6MUr1{f`m_3O6%VD;Bhk8q}2dDe#~0dg@b{X*zS`
9v2+P1*f@B<Cj}n~}U1+(~>9Lnrc#WCvfaFpnr7hc(rXR{s!8t{aMMw6Ys)DeogYNUa*}zdPy%utJuW)n+P1p1T><z;q7BsTC@
xlTvmjGxS<Qe$8<8NbL_8VjO4VEJmB9CP39&?IJo<_1)F<ku62@ERE?eCGi)$)>C;^uDtjDyOLhZ*1)}F&cE5`t8ZOc^I)Xcm>
Q-V_+DCWxq)UNrq9CeQ1GsY4)0-$&zcX<I}*RO#&60a3mb_RwCAvloqZiM>u|?g7wTeBH>m`ka*}M%3Ep}ORn`&kAoNFG^R5?@
Ma-&yR=I%Y*QXDeag=VUOe(&g<q&GtZO-coLH04@I)Ey$Lm03`AtkQ-hd;7?e0t*H;i{STJt^xmvyT0(Je_UTCvDE`%9{BN`j%
GRZ2orHcIzhPaP@l0D^(O(yii9$u1qyg?Z{rztjuZLb$(1Mm7b@3V|EZOYG{0wo6D7y<0Tc+|KI9QlodPF6=%9$c}sI}au=Q?w
!VYP(9G-RRgl>#{T|suLJaor%u|D6#Fg^9s;e^TJ#}4v*GTUku_o-z7E$CmG5o>NTUZj!e>Dhd+DF!8hLWkL8=klAG*(VWNfeI
^N=Y4~JeVss@cq<js76s~nfg-l$e!SI1DkCL(W4CFfxFa*26cyf5jwPPO?D+}T~GZqyR`0_wuEujuM;bGgPqaS+%x0TFp{Wi7(
#Fqff7y-tQANiFQO3?@c>4wVqRZJB3iKMDM~tKfGh&UO8$E`372b$S1YG>8S2G%Y&T6jF!Is4g#9X6*zV+865N!J?F()8mn_2x
Ny}AHE!p%DQUCexL3N5uxSt#)-_AkHO6w(<wF{kDA`Vp@k4;V0H(@!pf?U*4mbRd7vV$b5XLbxZWwIAg>pJ#y4K}w^_Jv)$8=y
vKq@$818L<zK)>YlwrC>Q);z;wsl$Mkp4HLc9aZH9+_56Tggn^A40!M?SkrJJ82UoDHoe$PYss+oCSEF_JJLNimg6<8lw7lxoz
UwdC5vcbkMoOY5>cb<+O6I6qzP+8IXs^xT5e#5uBG-87X4P~PUV8MBs1?f#_v?!{^b6SS<du#AQi+7y4$`oh<TI?LRH1Y<QOo6
HccG3V)k@8>=$PI~5f9?+4K)kGr9-!dC(3_9Z`ILoE*wC)WQl$BS<b1*Ai1M`YxL<?)=}?<CrspU#ko~=CL9`Fy`HFv4Og1?)D
Fv2-9W;E3z?HM1TUc`)U~86FTR-cL8WY?iI})fXI=fEaiqD6JcnpMx*Qaa9^DQ~n0@U7yhQ#iw3hcCx0X<f9Cv1fjJzCGurrDM
#o86~#my+HE0xtWo8ri{EgyT-Vl;ka(_q-n$tA{Nqg)HLsr#zVSzpj~YT4K3tkdtheU-?+U_Fdt4yigiW=7R*%=_US`vczad*L
-o@C3Sgq+ezYjAsr%GCHh8>CfYPfIZ)cj=Z#hsB(;UA?wo$ldJ3duBs1=CEv0nin2g#*HC(rIV(l_xrWsJP~(1x?Bu5^deEEG?
#69m5gmMP9BT6?RUA##!~KC|)y;K_6@+Az(``J!<leDZekOC+Q&$UCp(>QGcl|t&#pVK>6Fc4^nfF=Iv*KDz>CX?>@wTu(bViV
GA(O3bE3Wlrey}2Y-!~?Ik+Kant=^<MhZ$I%M33N&NV_>NS-W{tl&gc{0Gt{dE$tjrU$Ly~dtsy59<S*f9M>IV?=?QVJ3NzlCi
6_@nanepXEM)Zp2<9uc_#Br=9$bhnP)P;m$9QHEvi7aLT|hwqNJ=RW#bQkjaqHN#TK!XCThwW!cx1Q`S6*{|23JFVZ6x)L>S!I
4r(HG))f9~`97NxTOGwcW{lPV<=IAaIqsPcpUFIvc_#CJLFN{ysFO*D78mnC*@n%gMdp5W=!!$wh4FFU9$uDw?Ic#W<jOx$WW2
med#kEyCV9n5Wg5>(M+vlFIzFJ?*mvZ`PHb-N1vfTyx4v8~uByds3g66sUpW%MLWOXP9g!&)?~N|vyxlggD0<sA){Ms~4eq2`r
T)m-dQ)Zw*lD)6183DV&iNZhRg^QhOyn8=nQNV@1^d?Hwl>TO;tzGBSn5&cW@?MnL2n9XI~*r>S})xAA*bSe6^L_ZANumE%=?K
b(oU73He1i`8>m`-sf}n7+9sP#2NMU0B8pl<0qrd&a(E~6JbOqwRI4Bp#JR@0x_;DBq9Vic0$XGLK(CLIzFUYvy(8%atmJ>SMx
!lMn|AF2!aEb|4OvyDB%q4PkYfl&)n#y|R%ew}MQ2YU${W~ME!e<tO?3(f<PlU8Gdoif<Qdu5tztzUujY%B<PawL<iKSDYs@yt
^0&7nTvUp*PMooxt@s6`CRp3_rv~crZgUqfmECgyRmsU+u1rcyYhxs^34?lD8h9#@ix&+^0LpdUf8lnkD1BB5<3lN6oHMlGrg}
nqjbzF)<Vev}J<B+_kBwENsb+3(&qZp`xDSBT^vb0#J+dWtDu4MF3A8T)zc3z=#%t8^Q_k|oGEf@9Co^rQF|+lr7|+cj5*51eC
{r~{CIy7?0p$v!DzW)}<SJz<R<=58`}sMp0E}a<bDvdBUX&c<)|gVp$yW#)MOWN5jh2TOme=OANKa6@vsub9FpjSDzdF2(HfqF
DxrGD3_He8^2BSEkT|jz11`9+f_q+$1tYibhWW|Xm542J8XVr(Gf{tt?-|gHr%ndEQiL+#%cnwt}P_kd|W8V|XXT(PybCU!pYT
_8VLFzn~LNW=Ln`PWURHB8|a^#Ro;y5+6)!NU#BLyY3BN_@*y+K^H%z2C4{oP!U%Z|h~ej+oE0Ns~>Qu(R3K#{g>N*3zN+g+Xh
>NX8FHwg8fecGWGoUOuXS+;;^NWiT?bxP9uZdP*Fj9JO!5kQs0X%;B#(;j`DHMLx|bYILzv(}-J<<+=DPC00tvXY-2ae1<|4@F
S<brWVW*&_J@yfQ*Qx-R^Jzz~AgsLbbS?A9zHzdZ?+vt87XIo+++(A)vE%T_lPC08uSA%Rv!Zcd(<j9ozjY-mZ4OgNcnO<-lI;
sAAZE~+EPl5~BIV6hQZ+ettt^8O9#1m(Li;+DYu1|z5UqImyT$enbd?A^l-{t^;qRocTL)f(`{?7D~Sj}?GjV<wHoGr3DqV_M1
H)%-#%e|cFL5WlnUoJ}7fQ^*t&Kq)odRAmk)CxeAAIt1A_qlxSjCn=A+iLy8_uPsv1BAQVzT3i0+?&vDv)^M_^(~>49Z3p9>0E
S!!v{{dQc>q7@W1&M_=^imh3(A(+3>eXPUSY4ikRI=JveZO3O2Q*|_U0Pe8h~R_Ehddbglb))T)VzytZ*k)V_=(Uq=4`gCPraV
-eX9&#iFH7&dYJu;v5#I$wc3}tNXrLo84v@wkRXj!<Y4Hvw7GY$F0vp1=>iJsr~4w44wEZRTf_@ldVNj^n9g5)iP+A%6ZT;gqN
N}vfL?kS7aOebCN0O`Gh7m0!g8CUTWtB??`;PC6az(<E=_mA)cSCw`>a_M;<;)D7efmKw@Rr|7kjB?H!w?tr!%poanbOOQ_W*4
YH+M%hd8T5>K<idPDT%ZLGpyMr9nWJiF0xXTNpySiM0KdHwz?Bg2y~L?hLBuw|>zFPL3I%~XpO#Adx@56GTh!_HhS?2KoH09Fy
3wlci`>R7y^Tyrdoa~Zf!q9y!-B5BVotH1tXCfmql^3^2ECRFv$9kWj)*|z|cB7F4}s$+(AE!rewwmzWTJh)6ejM;3wW#-bWt<
@L)k=T6(+xYs9jvy*hPXF=8!mI`{kTI1Vc@LGi-l|C?s`+sPNr^h$7G0o3WJFOpI+-UPhN6VEGTg8<bRH^k65F`eDBeMm?~$vQ
_lQIwb*FA<CwpL5f??x;P#Ac;%gVBLeLG0S?EN77v<kSf{rNX6{mkP5RlD!p>A10m?v$RttVAX(FD_Q??KtwXw2Bm^Jpc9t>$O
~IU@NZu@eAig=M_Wo7plU@2?uhNd-JXaXEhCF8*Y)8Si>5FMn23vvm*6wyn*fR+WETeO-&khxG|I5xkKi5m@jFoK@}VOUzwR3I
#hj0#iyo-b6!GXKVMh(kI51OVe>Nng&#6-Z(3tc`FCjeE2NI0l9vUtf0OCfZ#K+3{)v;gsp_iwD$v9lT7X*dR;66Cm&PGU$*oh
w`UV<ue#Y_4!i(~<{E+gXg&$4kWr4hkhT(WQK^npbR-HPOiN%C>TU1t|KY;(a!5U*EhoUo(S=rmS(s;sYgsFX%`70{5+rnh++9
mVatfAS~G{*|+k^BEd1+TBb9Xu=ebp2A<d5P@o$Rbom+v>G-cdPV0$eGmghM@yt$QJHwEBpG7yrk9TxeHHEA2OrBhpMEtJNl1_
J2+YU2H8tn!OkQGnQ(S@wy|H(CJM;DML>qu&yZ_oc9ab|rG6pv&W{G5h;ph)&e8Sdyf~Sl>W-g1Yz?NKO7D7IrWV%PK9iP=D}|
`_6;;dcX|o5T7Z{Bnir-IIjxr5lqV+oC4P^gD*MR$5^ZQ_OqVs0X<Q=?B^(vATry8Z(nuwfpx{K1BZOatdSiF6J66RD*xW1BlS
I9`8n;radqIs{yIO#&=_4JQz8g$oM6MCQtg$zyxhj+e1ZwX>&On)&@*z*~Rvks%MGe08~QVIg4<@&}nRA=U%sXTcn0<EMQhzVB
9HR~&T4SK5<(9#@Ysb%jcBoL*<<e_ZROsyq{bNXGmwB-@Vmuadr&h$WDzY6S-CY&ar&WN!R_X(M^aryFV?>b&OFacHFT%XNbAf
w!+>j1%)YZG5V$u?V$+q=H%+vC5Dn>xZxNexT1n~7(7I`6;RpqQ*OZ~I~exaC3F8bCEDkQhkGV^zb?eGZB(6-Tn%KvBZTFh`ca
vO2AzdOxOKzdL)#!c$&bufp5R7#=6)LiJCkz+Ix~<T$bVIh&f+*%`r&7dtNO6`T<Yd2gW1GHj{h+)qDlnyej5-mPWt26xjgOJs
=_%jh?gv9^O1rd8nse3KocFtlJY6LehlOU`l>PJJz=cLZObwai%?uwkJ0pQ!qPx61c0O&DQ0@3o)IIWfmj6n_mzq+w+$WL!@4@
yv^MaHuJNpl+pZ1Glux5Y(wj6`=-cM{oyUY-is<7LIAG%KO=<YEccQU9;`m`pTj7U1E0CsfDCr7r^3iOAi1BsZ``_*bW-&kGbP
g1l80+1)m@tcI*ekzb#QBi`C{nIiS0f&{dQXmW8|KD9~F*ueS~?!aSU~z!sJvC98%vHD?&2D5p0eDsmr&nC=2MC5vU1%$ITE$d
1?Ttp|t{Ql1hkOjOC#JYxgLy$QvsyNz9v;!$DLKZRl-eK7~c7+o!}e-LXb#$Fd?92{=Tw|@Ou(rx5-33r_~;rn^BSkWuO<3qd9
@w*yZ(ztvoCYhrB38@0H3JpcQB@F#hL{(hr^<r>pbtjfUH8Z6L8tZ?sWb7FTt5DCW-~OPkY6L%WGyk%<M~a+ci4zz6xbnXLho2
<nrGJf!29qAF?ROH1v=o+U(7rlM_f=RqBUf;2j&gr8>8xb(T61O@2rMP^tIds^j-`ZM)#^OyL8Q4T0Ie7pyxI9CDTR0I`l0#ZU
>7DZOJTe}K%S4LXwpTqQK>@nlIriCbJ-b=W(+x9hB+W{TTB=FL|Z$gWMe6x74?$M_!WD=zBXZAKpQDS=h-kmL+)_n22^QDAN;i
GoamNz!NG^2>&DG~o!O_~CVdd}NmBLf<Q!Cmk-TQ!zH;W=Nz3ywgWMBWkj@<JXoXyK3pfAZvgMZmSspk!ZeRp$o*}~!oTdn-#(
WSpk71l$4a`Y;Da%0tZba|73d*HeCELm-&rR&V#jX$lbHhQdqAsFWkr#~F-6z!<HSdBO8q%jFiry9P)}yPh#-HhY+4`VlYjn$N
^<YCA-|xh|7hEr+PD(Fz@%(JuIvtl(^k7949raHliyEYQ5ldbt{t8JT6AxKt#^Kn&)>V%2lM-&zFWch?D0Acyb1xuQpotT(RSm
hhZ(C6mW5``#&3U{wE8&F*tP^P?O0~(+0i6Q9G241LM8nAlmn+G{Nr~C$qv%mIMXfO8poHu`*^dlCW=9RF7R{WMLO=-*NQh+3f
vQEF>Ik{gu!{(?6Sx`y?LB^;YipK9abMhM3*_1bl?OQ8dQ8S}e>;{)Mzs-}1AZhM<K3YW5kV}ke#bihelzk;S5w#hoc62)gIT5
kQ`$%sgsgFNkzOU%%Q}BvkF?%N3ma3raX_0Hd*{^q+V!Zfb=M{C)rSk;IIL+~>`x?7EF$EL8^7GnI4XLROr9~(L<&VU;oc*SSE
Z)z3GL{u5>_{Vf$aZu=kOWXy&H@;?MmD9q{x79RlTCr?MRlI6a*b9Th_4~Bu(Tqg-N7_)a5%)r;~ZCd7)DGOy^`w*jW-WArrty
pIc|H?{3Cef9P6H`v|*k3bD){4hk0;I1N=DCg~vVQ|m{D&ilxuzK)$+TJVcLOIIe#9%y%QQThn8XkE3iB3CmV&A!l~(AYLe#ic
ui<s>oM+?j!*4zICQ$Cs;x<Rq#FOd&lcrB%0qCp5+t(s=Temfhs+d%z7<NtokuDdEnJM{BJcf<e84EVNknNY^Hae-><0ok24$V
6;j9M(rhQ>i+A5XpeBmkRrK4BhIw34QeO(k(f<*NXkNdDmML{d#>F2;1-iZ2J{Pd_o!dLJdr&z-?o?wkX9U(=5qYV7sl;q(H4|
5GmhO&bak$%V%r1rS;A;=%5l4WYvsr6{Hg(M8xx)Nap*hWsW<h-e)Wos_{%cF_Rxj@Kq=HOm_!Hf8OxA+f@9hR>)WhyPD868qn
e_#b_$hsJ1{6~NW>$fOfQuNnM2b@UWtl01hO1-@jR6sWoUFJwbC*-{{sx8M3176EmdVXC5rn%Ki*;+6gF7)39y#cAMv^FOtJZ_
Md?hXVWpH5>lFDT^QGJMJCTgYig_EC5t|m6xTDipVC4?*hzK3A$}9;vJ1tI}CT5>H5%xw;hWKFKMbe(Q<Co{EqD}{ck~&(P^3q
zK5nT{AX>R?V388%_&6b1N*$(m|YP;xI;)>lN7i2Tp=3~nTESqe=u!g_yy>R!StB0!6Hgh7oqLN-b#~BTGC`m+mUVFdX$dPtAm
BcOK+JVIBDI#M(21`kl$o#N!RC@e%wnTI4n3f?<)L{6<pM#yPm@z&MIQUu(FlG#s=Y(4|YgL`L(1@eQD4q55`|EdqXU5y3r`lB
ssc&?EBW_u%P8T-6T}~bhqz?X&PdOQn%O#J8$xhFSE`QkB6Z67dU{_AC^$l=Y*17ZQ1p${Bj<NE>4?t5gs+yy@t~s%xiX_HJ*x
JazZ77~unu+nRQb%o&F5w?##b2}d6{4m^<+!`jPd6{*x$cvugONz!4U#F7IwAMN3u6(Ki94;K*R1FxlpSBUg3^9VBS5=_>=#$Q
AEH@re~6tn$VTfX4WocTj+k&l_1+LdBOzv%gPO2oTlL1F3c>D5G+`rhWM=w3^LISX!QgjzpRB!hdHdsVhkpaAU$=}*%F|_XF(G
wb^%n#^C}u$*Z$-U?pOk=KXYKzWii=#kfqkcHo};ZN)mWPPZ(i2auxO3^=7FuVvXUpCs^N-w3z*2Pu#zH8V}IMrLk3ld{aTP56
*)_mq5bM7GZyJwhfANJXN9pJE`NUqV{GZxO0j*<){fc)R6WfxshCYra?4L>mOo;PuUO@~$1_->wMg>hog-Eg$ru1u>*7mw13Lu
QA2<B7x9y`1oygJBN|5Mm)LU0x+;bjd$~0JMADrs4fyEJ&+a-bZ)wUHAQOEbo{ii1gi9bn+nw_7H=_74Q$&0FX#&B|9&(>_irv
%IvkjjyAck9^H^9d*9ZE1SNw$O8*UTCxaSK2pzp%Tv9{G6l(mQKajXx**H;pT5C?it3zbE3mD$CWs~)?m`+^@;&uBC7`_i7DW<
C-9CKrK<Ko^-0w$sO_qb%FFJRM%z4~w{#VY_lAwDawcoh>t%MNYjZ1QfI9~z%FMH|$N9o$<_t?bCDWp{31xH++q|?J43=_gt#O
>)3n{EAngO+z)RiD5<2WMwHgJJ_DXF@69mP7*-j+~^sU5OK(flO>(mewA6oYJMx#V1nAA5<t@d|LE1gPJjuj?0lhmxiZzGJs4D
`uM{Y_85s%|%h^Tudfrv~b}FrLcS=uX=vip&(<;R;=>#0zX=kYF7P@@UR?Giuwg&bny7bt7Bv}Mu$cAwO=2M=aTlh<$mI%?He=
VLK95EX|+7`567>H@0eYS-;YL8HaTvhEnnmLWCt#xiIw7y`abn>S6AZL3-*?l1s#5g$D2dLW!cHEOd8+!@nS0Z?S$o*-bPIl9~
KnW{UB&qE6LD){jnwAR;nU%Ic%xvzME|{wwT*2sJhGT<>Uu4!@!D6^x#-2{}b?>6RRRODzb#*+IaP>e!uas6Pj$ttR<JbB#u~q
R>`A43}}*ttoH0nDb3o>I`>La(i_&uL~`h0MmKq4Y9tn&P-dP0;#}b)C)Uxg2XqL|*BPCv*FguNwd#61j%^)C=sg?)5?(|Sg1F
O~BXbU^CQIWDSII{)C~kA;=4*p8Le?ukhF-Md*&O7Yxsx#4YqrFd5cd#QpAJ<efs)3^I=eKn9O*KwxGrUVn~BO2b!YX)52+V&$
*Y$v8%})fK)q5~3P?0EnUW$tE7utJm|tWnBUnfDo8Hu52igVmj#Pm`Uk+a@cSn+OIi18aGs3V{R_w)4<+|o*enXo(`PR9*CZkm
(ZXeJkmG)5SCf3A2rZdQ9y8>vUU$BUk?wfpPRg|>Py0EQFE!3>e{;o^@=%Q9nK!p>sh1xdLSfpg)9zzv?!JZF4CQ_0U3>-Z+YB
-eG&cceq?kw}KNxIUVcVQp;RCfDZA{uEIt27m=)QEA8!I@|lrPPJ%22ELfv{}iCODJMa;z&7G1>@&EryfdfF0#cxRAB@S2f(g<
<wul@mBzIuX%Q<`lD5?fU|6Rg-by)X?3CK7s>rRyVc9{>%`<J=dYgD$<~yQ)aOQ^!C3BL$!<5(GtUop??l7~ds6!ePMXgD#b$(
Dc6{seWqfo+kPdVou;*DiqFmde38B?bst%Kuswz;8_C=M8ks?9;41+i)l)~vQ`GED)*hkA+}je6gYDi9AC+81uzcSkOkWaNOeS
;uSnTDJq7vv$y4M-W<2B2m&j4pD``s8e*ZrUDWkIi}VIw%zD_ck5i-oIcgrHztCkO(jY5;*@5lDVcmi6f=0&GH!Y3x^{xAQ57~
3KHT%#l@F2U?yl2xSLX!XNF=u|M^P13p&F|4A-(qM{Fl38`WlZ?i5+1-zpQ!f*78ow*K6#7TW_6YpS0rdJK9`kR`J6}gVgxC<l
4O`-rfKJ8z;=i0r6E~IP2&lP`0~c!k|{H;r&R>&M=92>0u)`nZxTtXd=lQ>rHbsQ)YG{C2GHn-4R%x@m_}pr_%Dn!C>`|)-K(e
t+$SAXvcVjWi)H$rHJb7oPJzdvh{L)S-P~&O1wm-zM$LWPP+0LM%yfNykS`uKhBMNJahm=o88T)CSCkH=btoW<h&JIdvn*`cri
%7Jv*{GbB`sFpmB|l4{!z-Z9EY_``ERUq3f0;KgiV$o~^*4$07)L$!SaD)?wjPVIOy<fJ>n4Y$lGOhBXXj6WKB)7njt`#GJB~q
e9yzX9i0jcCrRc4wUWZ_y<<`?IDR@@`dEFuD;>s9qdJKgvW0vV(YTCRhU9&q|F_exyOthJRf=s!womLcZ!=bZ)}S|Db+X(Ga!|
1kak<toSwm-!s^+*&FeLa_^)TT>|a`)Q#)c&M#xyEJ2GH)VB6z8cIuUl$Y2Wolzx!jrG4x0lnq79bs?w>9r+bfWmSc|hqqlrRO
LokzmtMjCk0~dSJVwZ*EC9F!%-(%#+DF7e5GkPvQ_2Gk~e|3nekbhNLf2AvLM~(bVUaf+2RNZba30h|7^m|L15XaxgS~GXk=Gp
G`1G6lv9#Jw+8UTF$ODNnMd6s(+!jMh_%jjD6W&-O*u|#n$DqUvo&Ii8SG<~lIqPtYZ6CmI)f4nlyk@*h2!yP%`T>do{)r5;Q~
lV`KZh<s}o2TNHdLD`!3e5N3olxg@~dXXkP;b?ei-*I5)_Ocho3>bk2m?X8As`sb)2bzrnDJOO8I)uUTitMwlq4ZH^6Ov?bBVE
w7VywG!e~)fRo<UP_*HuR4n(5PegTUH>>tU_?`t;(-9&qa^%t;1=_I2!Br6zDr6`;La#Ek#(?25^f&I<<48i6qs34nyF`b@jvY
~zGR5a*ymV5xi~($O~Sva{V-HwOd_i*WNI<Xq1?qUYRLjKnvJ*lJY(SNS1@CJUAu7BusijkuLQU*ek$Z%N@+ZJM@|UCWi<)Ekt
>2bqnC{_1eByQ^Lf63Jcl*+HaGgrXzOTPH9d5lqqWa=o8!6IAqZFvZRbTp+0F-xX8%xqGdZ@^@csAijXXe^XQ@e@q<H4!CCW0o
Syd@SX4CzhR@PYNKFQews}g24pD<OrHs!XGRyyYYP`v&Zg=E)ID94^@N+k*%vU{3|@)fRi;o$?Mktn`Egk@7*X$z>Vi19F~h(C
vN&bcqOE3ai!e*?Qcgf{!V=8HyEpdf_J&N@oWDmD+~@G>$<Irex|Gv!;|(w~A+XhE~GN2BI+VG@r_tTwSHTTT2fpk21pfu7nf+
utX?a4<}c8T|CJs8=$Wg)pU;sJM&G%ZNiN)?imdLcC*KZJT)XEwKOMJvPVCq@&#AFzjK!D0Ik_sEvC_8|8|BX;x94%Fb_J4o%K
%lKf1mn|>ntb@vt;6&)FxV&IGqsIN}cJa|9(ov5#?Tp@zFX~#~s7y`>fJvXJ(LJ8eGAfPNo6KQ6`iru(xHJOi(qVmo)7jUEZ;d
59?A7aeT7Ttl#Xm$rhW|EI8%(}{<ENOsE>@e{QRrtXsolPBIenGevTrO-n@>rCy{Pt4KNjrfm+!_MN8afspk4ozoAZfuD8_{z@
ie^*=#MI-*>b`2}jpGi~e2O~4Fwi&OmNK&^W@fby0z$WW{-WbMDjIm)Hrq^X1^#}@@(@64Yk%`lWL^giSw8*ouK0~1MZr(zDRk
GJZR^eO%;OiXO)bnFB&p*xb%A7>T#nu!c9ZQSOItaExSGbV+D+Z~@DQx5zWvQJL7sWSYJ$Grn|LsoHbWl}(~#j-e0Ahp9C@Tc6
GG8~?F)}b<n;-Vf}lHl6Z(RSW>)z}H>SJmzHB+S4jA2O_UHq4gdg|l<B^HH+eoSl&Y7+Vh^{6K)P3J_E`vN$b1s-CYv_CPSa4c
<(Hy~y#|P09f7Lm;f#I(EuKnCn&Ol9}$3HgDTETgCYM3D6&R+D}!R0fA0nrTwqg7uupIZyu@W^nr-5#09ymnfcAo%WHv|k7<xG
pfdzR>Qm{ahS(q$bp4U>0Wo>-}3FrL<gYxjjG69S}nE_&K?rKJdiPndGr@ZU|5I#IDG+cG_$~uxG6zk3Mz&N%aJ`;;g<eliOeO
;S;<17JeL=)=`e61zl{6_X{ZsQUt`v3*Gv!+RkPGH_BZeox%3-;}K~ce5Ak=)2v6qIsSG2(V!<5-?jC5^r^1)$kcZ%{3J5Z@T*
<B(8Iw+Gdwc&^fASEdXEo1I-}bAN;CMkI~B*H&#%r*#hhOnhAmPb(DeP-9MkeLsaZC?Aw7g5eZrq7wl5b%-f2V^dvq3hbjG`tX
IosEJa>66%4yINdoCBWmqt^iV!X247?zzBdQXLJWUz<V5_)7CN@s)s8e88x$EK(Cm(M8*e!Ms9U%}-wh5pes9-Y5xb7gQx8a9O
9Q#{~ZROP#_O{!1SeUJL2+eU0ivvldqd?2A%hbN6H)`N$unA@b{kfa7qipfzsB)EzC5Rgtz0c=}H(RKo6l%PU~;Is|>|9s*@8u
C{^FAAXr)%nL%<K1<iw)AC?-8BzTL0zk(IdmOSEMwMjNNu!TU^c_lrvVd_0vMEJa-xIB0W-}L$!)s{)UpOHFjSMNF0#Clqh9bJ
aZut{lM%(9Z`d;3g42HGH%6+v&Kq4n@XL#zk)>AdvS>pHe+eg^+S&fa^0JqXTfc5OYUf9jnb|)Afz}j?Zen=$*wlK`cDq`$QKS
R3Qc+~MN_9=UqwQ`=HrMhwDH9k!fuvL}DW}H^KjHOb({|Y|k`I9<(YQ>Kkp0mVO|@yj5`vs%n@1uUIkduEbgi^hS+CJC!|M4)K
SA5l<Jr0srqprPKpoP!Gor`@TyS&0)yLSS&g6^8jDn8d(PSKjk`&W0NJ74R08}lgbVOfNtWU3qrYk?ha88C3xDm~pDLN6jo>Gf
-Wy@J$#!0mlpoldMPBgA;Q5`=N#o=_j8&1$AY5_S-a-KEwUtviKNlzr^;)lTFSAz%HCu`4IKQ5kiiDD9UFWt-JpP?kX7b0bC%y
+aY#LVr?BWo{xS*w_WY{jQ=&Rwhf%1*r4J|jkuy$l&~CD3_~L|H?UIb>-1g>8(m?0~PX6Dz0e=zG&lkrGUCF=0LIM6T!r&7D7q
bdh|ce%?G}nd1Pc+htSlDzB4ImV85fA-py2Ku5%=8PC%?Qb6M1<sMrZsiAGYh{R*-tiZS=ko*XA@=M)v72my@fIO|#s5(x9YMs
%}ic%Gc35kyWDde1kDA89rspocBSZRD}22pK}-vV;V7?{bJo~(`zyHcg)N)nKHhR||p*?)bx(T0zDBpyohN8YZM&Znp^Z(M13u
ZhtUUm6IWkUbg}489!A8a1dB#qBBrQry|rR@KNL<h1RzPUP-YT?Kiet)%hg*qAhxp@qoP^mSWQO)Nw9kxkXndP$S*O=85SNXph
S_v{c>YfH5`M#o|mZng=w1C9l8d18fCEwk{*<dvXyT@?1=W#);_r3;1-5_51biqlD6noI8BW+ib}$H-1#@hFUVYga<0Jp*BBkG
9||FMb1x*a3svb$amPqjpMNd6B!$W)aEF+^yyuRYih<J*Z~Su!>e<V|2Z)TXFr==F7!>&leq#D|H-ArijUs7|dx2?7D59czt<|
Sccr)_ojm@Wf<e@!@4CHfIZB2mQ7+`K#z6L`ykvQ;b6p?m^J7;2F0k5F<$@=@Nl~9f}~M}W~<46mc)4(#gwH)4oFCAcKT--os!
NFZCL8;@SN)(Kc4KMiZ(7C>Af)!TJb>q*~*NSe%C`b%vOx9H{1mMGxR1US1j8o<aV<|*(JkaLoacXHm0Yb*Asijqv|l5Vv)5q|
1c`p>vnW)1D7E;Q%}}g3YsW;PP|s2`u^)5_VgwfMcfZ%TP}UHPpK#34jRsB{r4o`!lpGoJpXeU=34EPBz_=LL|GeNW$m}OWf&y
VoSkHxe;0*s)_iz9ByZ}Cna8g^+Nch%H=aROsA4YirINy9!&&i<u>&nY?+>w!hc3k)&%6=~NFT)Fso%x^u;Yi==jNV{y|X1|)y
ETEv6xdwV;7Eo78@WKj`jQYxm7>0{uLWwydFzLJ&Fy%-;FgUejoe7nKQAs4%~=+?aser17}QJH8^$Rs$0(QW7!>}vFn!=uDW#Q
L2OL;^Q+3Ed8-mHjmK_3{OYQ(C6{9pi@%O74Vkd2;M=cbFWh@=)#`b(SNWGsSoLb{XR$XPq_1+1-;eFjes0yj_kR<+qVcs=wS-
qzCF8Hg8Z<X!H!l7*HnHt)tTxYo)r7aEuG;vIYq6iacsus>y)UgA4}NRa>F(E7%^3(-^-A~o*iRO|x+*kh$|`#37qOG)Pg#Yo{
4VyxUv9>JXw6d6rBejAzP@Fq81UBJj8{QoLq|p7<rH~GSFP)|t^<7<C5@I@xFFMUGM;v{VzOns1(o$tSB-(d6-^#dQpK{mWxJ4
*vXqI2<%1a&M3yBI7q8wQHngM4cG;MIYQnvy3psT0z>08!yn3&eF<j00IL0sAs<?VCT$;pODmD8rXI^0IELM~AjAha~`nJv<O-
wX)MkQ@Kdk+>>TaUZU5oTh!qJB4%6&-WmTFCx{FX0>VL(r~=Gex?I3&9k+d~4?v(Z5zXr@w0I7Vq1RoGR$zt~1^*T&CdTsHgGb
T~>uYQXF56)lMR|r|*!Nz|&T;`Vo#?$hHPFM8DK<KYrgQ*4`gS#rspIOiMFiKcalbSX;U{n#_qD>=b>F5`Z@c5U7bCEjEdyG)C
%JtJchpOm=G6EWK8d;xFSC*QJqoAw-&eG`6K8Yl{6)iA*>k9>S=UyL56CvR-J2=5|eO(PFW}9e_)PRJs#Y4`mJQsX5(EKT1RMa
NyCSla`VX*xMfCuImjM4R5YqsKf<glnEMDR((7(o*z#+WaDi$)@N`GGAS5-gIz(Sl_Dv_XoW(UxBNc)JiCuFDBWulvsnY04pMT
BLai0G$R`&eH6L|iw=^XwmrH544DG3mUR!;WgfCO&WD`kjDXSp${3&Z))uRuiy6UA3-%L0d?Oqu_8H^^CZA`c0FGRALoYtMxH7
7w{wUnbX&~yQpMQCdv$uJlm$*=QMH<mjFQpw$V&LzW3AW<bXxusjlftBtoaz6oA5Ei@y+p7DXVkd3knB`rg3AZhzY~6VwYm)u-
zG;WE?`Ni71ScuyO53qRArW#-m25W;y)nFes74$@Rs~cB4YO;Sb2%T_STaN2kE$9efNpc(tC&@*Z4Ue-o1|KG`?Qon6eJexxo8
r|cMHclf~Q?tJy531Rc9VR_9Zf<+b$GrP1`K(jHK$A3E^U1C(-Xjzf9TBOR-^8l6fF)i*wcD`k&8GskC?-I(n!T9BY^Cj=Xr)*
~&T~X7L14JF2P}eXK64+NmTI7IwZ)Id~;pT4Jb`7E+ZQX0S$=BhsgbiwEj#{w4KGftbx&TDDbrdohP4L=PIVh1eNPV*r~?u3e<
oYd0;~Fw$g_iV4+Xm1$c`%6P)-N=plwOPCm+$UZ%=(eO}(a|YB<IJNH^v$8vr7%zhI78y@*zO9TSuY6ltp)g~^zIi0tp^g60+{
F>*$q3TimlhJyDiv4PAoQ0K&Z<OO&Zpoq))B6Q2q-jfA1w!DrJ{W{nSW}PESfN4>H<FBr&a?5D>y4la(ST5&`JTnjZNV9e-Wm|
Y&&dTNY!_34-DS*$-gP&17efGz{O#}HJX5Qtk{B&vY8(_6KjQhjk!*S6B;qHO0c+Ys-8vR^RdLxmJaryQ~8dVWp>gv24W-=z={
EB1qVzm9UvdgI-iY{Hn8k%iXZP;{4b6qQ9EeC6!sxgR@G+Hd?fz9Od;)B-z7VAix^#j?)Y~orb{!DhaI`DRBU-}m+@nv(+Y5m=
bPEaAY!1F!)|TBT?q4B%4O_MG<W@}oIr_gIhO`bj_F`Bx1DV>f{DUGtznh`862&YSNBVI%;mL;G8j^k4jJA4aAWY|+uQRv5pg<
4p}saW%)d}tb)GtXR@Pa<dU8VY5oBpXVVuRfk9@sRatm;*sP8{OHK<KVJW9ReFo)bJs}*&CSakx|Y?x9mZMbn+GVslgH^Yarsx
s=N1MZy~e<jDrFG)k?Meatcim+i^q8m4`<CHkzK#*ROs6CdWF)o&&c}WuVNl+S~YWL$>T%T64<Mk(mgj};(#hs|ea_rSuK#(OO
;&egf+gM7Ks-F+6j1jb0C%rZ42$`zDnCw`FWD-F<ODy9&f0)ap@ENHWTQ%aOV47PZ8MF@W$4mH!zWOYI6|g3^FR5reY~j0gs!l
2TyZ(<NntB}K=1JBxM@lH|evb=ui^2{2@oh(~Jz6o7kbLlBg(G^{oew&0EaY+I1|F3|NEWCQIesj%#C*{ImlJCzca#0^uQK1qK
BxH?%2hO1ct~uHPnRsRD9xc4mVyIf4g-`CC2dm)hSX~jN(YLNw6BgVQ70~-T1A$x{SQ%4KU2G_Hcv|C+#F=ci^Q@8vyhULV_an
E<2gccr?s1%5q32^piAeLYU=yrS;?$(GVPRBuyxMHdWF?K9;v3u(3;)yJ7AQ(Yb?=WVpYvEq^-H##u1~?CYf1Ad&eRx%)*WYq~
AP&N~;mZWOs^*=t{mK(d9hiLKVwI?gZV;8a_ih#o#%rib5~-Pb<x=<*rmxhRGW@&n;LB4qMEF3)&xJxu5X@e=!?(j3E=Tr`<r#
xEeT>lvgbo%qD;p#s>W|zVgvgP+tUU>p3oDbLMEUm@G8T`5Xf@e0sKiC2H-_eNi158}%G2`^sc3BN~GWjsrA=9Ltw_Ivyc6lF4
6K#!jmI2tnH=yAvL+aVQ<!vq+guji2pko^eh8Lw4yHe~QRD8ZI*oAysX0c|^`K9plS$mTQMDg&*M6xv}NB#+bX>ruhc+p8Ct58
%8Q^qzF0Z6!pT)U?bYCR8n}ul>LCIPWZX<_7O2#!c=vT=s+L?J5vHkC5u=9M?d_1;6jqN^JI%sCq$!mGD&3l|6{m5{F*xSHh|x
@%G7$h)N1>7SRn)3UX`tlZ3RNW(E^#ER>%fLA;~#OP?RJmCkaX+$vH_tsgUHHlYk4d07a36fNizP)J_+U-rC`4?QP%w3BU3AJk
NL3#v3-R^FWbr_*p5~@-O^oS`Ms-?gZRTm(R`;2VdDRq9U_j`17AH^<BpkwJE*Uqz?~8Pv#pp*2~A<?RVr-H^uP|S21i~ef7eM
7`^tRRx$C?6oFptA%1+=B>vE^`FF)vD?+t)j)I<}@brZ|ZPnsV6Ooe)i_Zkc{wl3MIy(fup8FeFl>ZPv^X^9a6!QF=mY>YwdtS
CC-yF$NLk?@E)YWtXj(GouT!wZ2);;{fUU94c5Ys{dg|#D_z8fAh)I_;{@mu0&Rs?v9Eu8jgOs<;&q<0`yYu7l>PBU7<0#jn9T
*Ox}p1cjgTJR_}7PHxWJ=}=M;Yz6&?v*!gsU5>5X)TNUD5?Z1dh<o#f#-Lzf|p^0A3k_`)U(5S%6jh8`ZXJBeh>U{X!_b7&+gY
=9xdC-(e9C%`1A8rLU9+r{(v~b>2dd%QZsK@#_kG_Ss}dGW;AS5F19HdQ0mB*lrQ8zl73pwXq4<~tQ)k}+Cm=XdQY0rCD<>ZD+
}UwlR_3xt<7p}0!Pd@<qAQq=iJF<DIv!qVl{ED?86jJ=Hj{GKcDM@ZPl`?=4ELLsm*hJxfD1|k(%f5Lh6UBnH6p9Cx5f}zoj4|
p=%@#`a>=jS+`5Kz56H`HAH@l1yT2{7L9Vot%k2GAMVP8h3$<gxa-{Q9Y$MKn@<lwFp7f>aIzeXLnVsl9+#WVtDr~Q{iuK`9fQ
T+uITsdgl0uaEm=nEwq8}lg?GC|N&r>=16g;-L67a%6{WP@sacV6B~brMs4QR4J%uKAIoWY)KfM=?*xW<Am$3Y{6?B0_ec`=up
50swJ3uaTm#1d@(WUg&X?MO!ND_YKS+eOt3g;Lnw0<Tt1q6MfV?FD^&E6}Ky*Bw|r9{~`Uad_d-fdkW#bA*f58KxY3<E-C;<zz
IawvipeqhiYm|DvmWC<-_Qwf2Lf!K;hfz9hTxK*(Ex>p!K?K2&?eF8Hi6?xg#+W2mV_XpoLWvNqz%kP5uRY*rl|D^hdZN)<k<~
eqYZ{#YtGKB;w8LE~6I`1wZ4^G{Emqon+GC#BIYfWgzn*MBDA3Al_v*d128*Wv|WwCN7Mqf^aJzH-^Z)tNJwa#Z(zMS*5S|7JU
esuV=F+Zd)O?0d349b)1-ZtZNJP3ixK!qhwW|PiPQp_#~2Wefq>q`8Tm*2N))o&@?;qHx+WP=$zFaI}MRn_+cb+0RZJ8Uz`3*$
j+Ry5hQ%gd_y`eyX8q%q5FpEk#;xX*b(yg)p)Ch;WY!{wf=l$eEYy%V_-#~gtXk1o>q2TKfTJXEJ1S_ZUOh!DUQ&hd5+uJO#l-
Gvn?m7kD9XZNZyMOA}6ZdR?{5H;)rVwhmOLagBQ*v3WDa&ENUs^{mb&I3SZ@|ru0`YA1D0868tbe=o3B1t4|QFN9f7bFg8ay>s
ku(L~au7{->6QiDU7J1dSFv{xcL`sZ8Y0KQnYR3^{57=<ZWB%ol-Fj?Es2G^(xVW*igxWp#V<yKu-Ggncb!F5MZa@0Aiy1;o{C
h^=L2|Cw?j{{u;Sbm{<MaV|MX1HvQZ}S~;Qb^t#{M#1&9M<nIL#|v)>^N!>kx=b{gK?>59bKUmwK;y8-(d4SH|95f6$6pXZp00
oRnCMt8ky{%fEHWn0@@uCpV(rUDi;(H8C9X`Ns>LUa?9(mLd)U;OSC0Mxgv?_m-T+lQGFVTw}LG?Iz@X^=C*2s1(n~V!zfsJ`W
kD6)V515uD<Do|C-uc&xtYy4hC>S$nj9NCG*@5hGvs=)YHI5*Ky40*@x?`$&fHZHLQkO*@5Hotn+;aw?hi^SImZsU)gJDkdo%S
MGN%nR~l0(qq3ls~-Py{0xirlUtc!fU7thcrqrC({<{m@qznUP%;-mS{^At=_@{_Kd{PmwST4J8cRBXEeU2yljCP!BjdhdaX^_
G%C@^%23bP)4qR62WBIG~y3`3#@`zEFTSG>dAskpPzavJ~|MbIp=~FoNvb4!9L2yv^kRw8bw`W`(_qmUfmmHmF6BH~}?CHsR+C
8P8_$<2Ms5Iy-0PmEaA7+u9SLFy=hs=I-pnaeDL%ZZIxk|q+sATQcN=Nn^Ax{`NmNb!?tsgK~XYEDoVmD>sC*-7PUZZn|VQ)KY
$}LIjxre<*itf(OFGhBX`NnFasZw-c7L$rwYGb6cC|iMDg>_ZA?<KE1+FbqV>cTW!ahksS8G`jTZWisHOh*x*y&o1RRkhO}VcS
hzTDPv1sKx(;&Efdqy(HSa>8*|al7RS-3eM_5(Kkq5jWXZtu=&_-Q}e#*;ketF7?Q<~v^3uCH5vWW5#3vI5(3RA?B9q-JLs{U2
HS+W(~U~2mF4@_^}<ML??LSLx8)dbPWpIfo0MT`K*|tB_W@@TdQ|$iLew164+YA`T*t)UB?<g9b4dJE11}4PBmRhie+jefo;pu
pHt|!X66E3eqQD19dGQG+b8ky@J>$0Kx|1uL7Lk_IXA>vDgS=DSj4g?n$F`Vc&zoik(nN9hMt&99xt_Xtq>r9h->NAv%A+oKh9
CVj?*Ax9;F8zdT*IOoXJs7>6v78EM3UtL6l|g&WC#rBV=ezpE-(e;9VpX()RDE9@hsVJ5Hn1K9SnPo%Z{Rgm`L%Nh1iz6Es4cu
rrfyiC~#8e@;`+gL=EbY=*LB#HCE;Dr^oCeQmc|_@%+i=#wu#lT5uUZj}(?fYw{294UWdk!7H|7S>vR-qXkB(39zv(;f#8Xy(2
<y7&fpgrL7QavjT84+VT@fe#Js~_1Z5YYM7ZwJUa2$Elg*!;s(3T-Uy8bCP#NPS>4%IRh#Nhl?bbSxcP9#>YEypxvO0a5{K<0U
Om!n&n0-ITN1WNQ;)PY^3Ueks(~baa^rjdRm_gw>1^_ePQe?~?M=z+?;k&>sEjC%33N5SOs-t!PT0qM$opr)7PTQv-|b%?N7|q
Fw=OR;j@z=uBn5`lzx+gowaytkS}ix)r(1ErvI8S0l-Sug7n4bBUcKn+e!)%5CA9@bMyWQWc5IWGrO#f(meYGHZQ4^}R3>Uih1
PrjO5Pll{CRvcALO7%&MR69_A{|{g^W`?b1+LKRwxV3vt{CBHXpbvXPZYhKWSD`!7HrP<rnKj)E=w!=Y*-t`3v@r|MpBWw)cl0
CZvpWN|_w$wGSdO<TwW|5N$Bj=_MLrWsfJ&oU}im(>l>ujYy5K!O*+qK8Pjql)nHxMcBN-?3C=3DPJR5=5z9Y{jI0YqncIf#DI
T2wzJd3iT{CN_PGJ6-8CJVPlX4SLOtq}aIDBMCek}|NPLD-r81ed=Y(Rt_&Xn?emSV8FE*Wc@bj_GgKcz=ReZtaSpoi2@+2H%x
YA)L;T<c*B6#z>49gY-@P%EX3XO0GYpC!F!H9Hp&?R$;5v}SN77-xNDm%A`xmMoPFPy;jVqD7G7&xn!D74l=w6`2kHDN(Id$20
ZSL@EjvU+SMEcLEUUtJr%Albo!8X5S9!-4b@o%=MG@$pTM`m1_ss};4bM$EZ1nA5LfulRmoaO7x5r`cw9ig#JXCaVOA8Vogqee
Nysq(e6;p_9qT{3_q{ZI*jy?Y~Hsa%a{OPGN|5X+rFuy70qg63k}HsOi`{POwx|xZ#*$P155v;!~APYpuNUI$SH|Y<Sf@7G^o@
NMSU3Azpj2Vo1ip9a7N0^*4nR)?VnhV*$~(&OAGNf20$O>!n(FRVvAueXcq&zEm>ggT6FZ|EkJV-+Brs0LlZY`n!j)j$!S^#GH
C}$rkG(IcEO8u9UUgUofBNNh;gV%Qft4Gr-P}{_?Xd=_rO-BVg$daR+~k>SHN%)hZb-@m)5XSiSgn23CR9A{t5~VWoX7B9R-w=
NXJvt;GKjJF+PM*bXZ~n(4U(URNu%F(f$}s$n&q1D59H{l@hZME6?(edm2ZIj8%;VfEliQMP5>@-wg^_w934oM7VCweAO(6;)V
s+gTWK>m}wcqw+JE=)$Mu%6uI%dB9k9!Td6+wAlQ6$*XI0zFrs*SNVoeJ@tZ)g;D#&1%H4wm&>sE`T$|u)JNip*t|yB20Cj847
Nvvx;aj?VD{IpYOqU}8X;9p-#<A+0<HEeCFVS~6E<(MDn14cn2Gl=s8(OVB`59qV~R2-PJ+00mSnUqfV!<sMRkf&ABl$>HQEx1
-3AYrLJK;3|Kpl#*9;|F2vO(HZ%@G`q|r657uM2n1^8^*hH1{ePRW|HPjGstMpEm)p(_XM;vhmxw2?GxA0WUcrD8c=Xico(f*}
f%$C4k{!+hffSURi}p}TP#G3Y}I0jbfde_&<`6vgClFB>8qVdtCB!Aj0hW@r`JzLPD=PPndjVZ9YYTtNI0)|t!OTE!HG=J7Y`1
q?~Bjl^o%dZNZEU;r+t;TrQo=Q1~dZd8`J8x;;yogGxozw{AF{H(;LDl~&z#1gnt53jM{zC-3gs3*IU>MRV2FcI-GmSnw8q##3
(Eu62j!m8^_+%NS~(c|JZzFuF9va1Zjr?5ms2#%^cA?u3E+!`35XSqDn*&OJ~Jax)UcG*PFiI_8(#R@ctN-r3%YwcabJYUvP>~
M8Yk~QD9CKo<8;tO<KMqSrx9`1lD7{)2|LMYAI0kyhdp5MmN^km=><pQ_Jb$QiWCBzRy7_Qr<1QLI|m@Hk}n0%4796BIShB`Z4
<n&|Er8}hNT+V#0;Q`7mFF=)*H?$10K<_Fmfc7}%2_T&~M;N%UeEyR4!i!L0%`d-FKNx^+ifNesezv5<W%1}NeH!p98IqNBl(j
_`#q`H^($jw%*NmoqLKfAjyrM*49AKE#!_Lb_E{W$Ia&-DkRoS`i2|aaJ@Wmt>@XK_X&5}(5hF*#IvKEA~&;~a=nBJoc+!V0vi
v3Q1ve!TRGaIx+dRf_^^qNbQnFOg@ezc<x=S9BS_u5dzA~}F*pns&}_O(Go+-3J9>U`DpkWzx$zG}C!Qo=6BD5Tcn+F@2XzJI8
<Z-Ka1*lSS#n+&C8x&T<DbD2H`=dA(myh<WTv4Z=bbxsPmN5Q;{&zjGW45q?I`K4~W(r992eQ<&PA4~x`rVLx}{49XQn~wSROi
#H0-tSV@g|KU)W!nB*6GZg7d!=VbA4GQ`qUg-T{d2!O7{@IDVVH;K%ZXA(tACU&J(E<v0M~L`F1tX3uI>U?2mS3jJJ}O{G_KgO
0D%#J(Nk$!{yofMeFy5c&_@I~+UN2YxrXgcGcfn!jZW)Bpz#`VZVQIxTEvhVsa?yHwd(+}RgiS%ge33t-QfLjVUR(R!2bWZ-K7
@>dM0535yuKzu4Y6xxy?3<z7!1asRB5qD+KpldDsOKW(L;ms0%f6C7?zRyh;lD#9*h-m(4#kFTWR;bS_Qy1m07A)86l|G>Eog*
@dOwCEa*<nOJhn{25TDb!T}s+AxMdt@j0pxsN;HhB2A)vsqUPSfNbQqd{6g6!%ckTGp2o;^`WuZ_d;7CbB0xDVP#-ZMYG^Dy^4
>^fwBx<-(2y2S~ScQrnIEz;`@zZknDUDR`Tta&*78RVA4}<qkO)g+L4Lnwkgw64ItOC#up8C4N?eyzlCpAO&5VlnY+HN^Ap9en
p}PnfBgxy*OM68n(y{Lh(Psdq&WjJ^TA1`fHZflTB;9F_`vu<5_#($w~%OnP}6v{HHNQ3F|p8C!PiK+z8aG_y6SbewY9KmH&-V
I8re(AJgpZ#O4KB6t^Pc>m>lq^GZO|F@**8O8p|3{7|gCbXKTLy^!KsW4X!rF4gb+VZNAK#_dVF={6hkAuL`1*Ld8`Sm(2T^>T
JS+*kI;N5{iCiLdO}bn0fwaiB(FvMJd4?mV_{SR@@M2MSK2KC8`!j16~IKHI50oIEiV<^fdUMlZy(Lg~8~<Y8G@f|VRKa(84|F
;1!b`_1IAW8S$6lN{3lmDyILSAR4)ykF~O-tveQjn|z$yo>XGx|BlWHN8n&*Zmsp)iW>AF51&*EtI!ucR5RF-3MQ$jiMQ}@1JD
Q&K-T3cI?q|+K$;2+ADWg(_Sfmofez;91VN_4cZT)=V*qkLfY$w<+Q`q|E5iprqV3q&(cEko~OM-d5e~qG@qt_{#jZb@Ne3muP
4&P%xv1Vro}YD@pov4JD1TGq$kq)CGXL;KEISU=ioA0pl><td`cp1;}6SeUv?zZ+PSH;w;6M3n@3-y**lYItGZsGwfi$@TO)K@
HD?7a^WbvY@&#$MKi^HFVa64-S6|Dfy&GLX%PD({c3r)YCVFla?aH4o(q4sMr8yU`qG>u}Xwqx1(5hNrq`@BVD5jc5<c8URM;q
szy8I0B+FS)B&g(kw+%34f1dY~xK};AEZv)^Fe=}lr4R?w@BY8TY^A@QP>rw_QeQ!AH;j?)5!>e7nRfWZZF-SX`=&T%YbB))@e
;L2tbAk9mS498j&0L~L!h)KtA4&FJ#f;zBrPr(}a~mmaU4;U58%-{{R^fM$YxS*BO*EKsP#iDl4i6{~c=}{LF>YX4B{UX9O92H
YBgv6i{{gI0o>4MiL0<LwTlrqdGI`o&6JkNsYKJ#RM*_rZA(^GBuk<Ru)MOO0kRuZEahE`_p-D97`=hdNx{cO|)>B&_@mNRm7&
`d&)@C5EVi)<eh#N`$*Z*a%sEa;u{S^RSCYv*#o;#MxFmtl?Rw+N@-evb_zUg7ao)9bxP2S3B{^O1rkI%DRZ^1wAJlYXjJ<vDS
uOT1FHDv6{`=qCBcay7kI|0sOBeyG?USED~$=6-olST5gs&2B7xBR1@6WeBfLyO#}56Fpw)H5a&(>~*6f+LpvLNi{fOmXHvbJb
QXx!cMWa#|Ih)yt?V`94wEKO9?68X2SuXERXmPQSw;vemmF0Q6%D#riDrZ)Ec?e+--)nX`M@8uPdjN+u(2Xjjhlmf8+VrQR5OZ
K8v`?EQp$2tKJ(zIPRnH7?d&prZ0QxX^H^WYnhLEAN&^w|a_Dj#T8r`gE-o|7fb|N*`HZR>Wz?0FX0k?#6%S70W!kAy~URRDf+
z@ZACVoO|ghj_-V4(Q@0}T9ak8t<<3Zr)rjn+F8oc$|_SUH4VCqiYW)|`n8V=bj<X2t*WOol=qUyW%1J~$KzXj^V!>5`&D2MDR
~8muD7deyF{0kzen8fAHqleqaD(JNDnprM4I9_cC>FHT5VqkN-7Ju9<cSk$qfy-JltWi!L}X`mSQp810a}GMEMo0Lb#%~azSZx
<=%gW6nf|qpKh~U)Vp`gQ1jReebwWEw>fP-V3uII7zU#lIq$~u&Q3ktNB-b&?C;s6h9|q4>Qlg3t)aeGp^jK>5@bXMC3^dT!zO
+#Hj=!a;ZyF0ry}ICzY9*@V?HZV-rPZU>_=4-Bu<$M+8dq?304-Rwbssoddc_7YQs8!ant<7*Ic*q^~}9qI|JNy$0dZpU{No!V
TyhhH!NN};Mh|*r_|NZRrx^ZJwSdenT&}XtHwb&gvrw!`Y<kxFYT3XV!yWqPZEEX*-`!jk@^_QVtaIo!k#q!g)T+>Hq02g6GvC
Q@wdjt)`%MknZnzqtbpM-*EzimK$Q}wq%=j}5mPWLDYLT<d2|lTm?@6fyG;xQ`1**&Qs6;J8T{v{zFbL5z1g|napfG}Bc~UgrF
1?W$(QC9ZtcW}K63mf!s95@z{lM4x&uh{OGUgT{Al@)gj<w{@NHoAJ}2@&{{D?qf0FjMp3tAZKX=PXF1&n`Ue=0wSZPmNHKlSg
orB;(>!b}zak9UT0!Lc&=R|syD0)XXCnZv0S>XiLfF{{i9TXz(KSN3BvrEXgAaxOu$DW#7qK);WwS^V(b$)$VOc(t%9L%pKeJ8
4l?0*F+x>lK>g*l3y@f3p+)kQQV%_F(h)r{b(Kr<CZO$Cn?u>H_6v+t@0?oFk*`lsfz623P*(l=y$+;DKpN72!XN4(fPqGm}HA
PPj#HHyTvt?PVr%+{N&uxKA3;y1i5Q0-G}+E$QP0!YB4kj_k&OFvPc^ZB33n=@^bgAU{css$g_wg~e8&^v$#V+>!nlb7st6Qgx
CD5#kG#abAV&k`8ab4!j}kn@*2M8Wlg=)Y3xz`i7{z%~K%Ttm%4{bnWE63e=0?HqRrk5+C(TMXI6KXImF4(h`a$GD?cRamJ!Od
d{kj7>nhT_LqDBO$=5M+s)+cKyNi!+j+jcIXm`rJo=+3uVgF`G+>VD0Eo0EV*NVU~FHdXB4&OcohxZ$C<>1+oaCo)#?0oRn|4Z
H;y3tAf278=;bBVvkjcwSD(#ks$4DpFS*E)Jwj#+7A-xtzJ)LVN1nsOBu=#`pRv=aXt@2bXU}Feu}JD{7j|?S&V{b5jS4tj5~|
KEVe-u_ol~y7_0s)K+V@lJc2$-J$pkwAckN^4qS!-ZR;06sQ&Uxa<FjE@iu5n6z>`6iPf)hMDx;oxusnlA{{fprW%fa5pUG^9p
jS^HYCJ=t-htyJmP@8a6`beqdCalDO};;hf<?+%p^>y6>)_@cC?#e6obxQ{<)*GvTzaJ|yyTpo%<kHP`d^CdC&fGr#jFxJvT=@
7?&i`IS=A38I}mFMHc7718BSV*2MqIlh5PegVi4bvTk<VC?kV$JLxaw}qZ2n|ACZmlOlPIv@PQ}3B2O?o!_ZPni_m!rw@xGU<M
uU+$FhzRot>$@WAS2fP@WdS6+tgV9g4K(&6aWN^I7c49XV)NN2zM6eS!z=SL+l#&M!V4HphEV%SWjC^PvK3wJwTH0%jh0NgR$$
L<`b6!5VyV_D81$o<zEVMVv~4P|;m|Qe7r^(d%+sr+jQS2eleJ)fo!el9bX`i3GHYvJB5gU1JJE;0d*=6-hLUTz%1dMm>u|iRN
_yIN(&GK%uREz0MU-bTv}=JItLEzN07nh?Fd?*6rky8JoI3Ji*i$=axPwV~;Kqe}+N&IX>PgQEuHNk#=Y9@0G{#EcP42S8)i%z
ya1|@v)Zmo^<^y%FV?t*cwsSjRCD2nPiK6nJ_0?Hkjp+SPR4$6e5cyBXTUrZV~+W4OM6EIQC!i?CF;vU^Mfjmohf+pjwv?c|w?
Ex3a0Rwe)jXj%IBK+lg44xTOs{;4a>hlbX|u@j58$|D2TQ54E2?WRNY2h!uvl-aJqf1GdSq48$h&AVCPCe7(D9$HCgddXK(ls3
%PgzKT1fv$_Sq&mD(!8HQrPq<1qx>uOMyOLN4V!4a_ou5~5jxQN{uGXjLgcY^i~?C-;TyxQ@SxiBJ%pAu8-S63+T^8}#JX9xtU
bn6R~JD!%EL`za86JVij^lR-mo)bi;%as#L7|7m9nW4mbK{ljBuARJegJLW1B*M{h<qi=1is)Do`zP6&_u}##SS(>AtUiy>qs`
YnpxQQqU(T~~J7G~@oLksTjn&FOAL|vHr%im(v{Ip;OZmL%x;G><OORA1jOCWx9wR$d4outkctrJW+^O>jAce^t3N5`5KO`5%K
^b>4*7Xe#`I7zVcXn*^oV=SV7CpST^#xC5U<K;iXR*)jiruePEXuo0E?c{;70?j1E2|!T?CQ(><rCc9_QLs;h0Eg4p$edQ)%O@
5UnlrJz$uMh3F${2f@WB@fV^XG-+`#Njz;fI^&k)1gJ}d6mF)g9UW04gFV+nRuU^?qY13%R7nlrI%4Hk>6b7<&<dQ@fWojCGN|
y~JcoqlWPNZaSXk|S0UzJe(f?cPx_68hy+^{5dja}>@?KWK*>h)sD6oc(rxAm32%NNuizlH5AQJN_To}g#vbOj^@3I+2MD>0nH
+#uqpW~E9@r`0b;tLdk3QKp5x<WwKC%Kxskiuuz2ZS-s&wrH{=!Q`Msx)&C)tqoovw_>^%)3VglY;8f#AnQp=2u3S`pxhErWeM
TU4T?kLqi-M9POr=UO2j@Z@H$w(g*|tm1E{?LUy^XJ;9fve>Bn(LrJ+<{03JsH_+?+y4)H?DpT}Mi3(@l*5xKW)TZJw~7|-}U3
ae%1vp3~Jj#0UHu#I9rr0q3EW^T=%*87!2Y+%|`QfqytB|7tyg5|U3oby!BsaqGR@Y2c#Ue;UlMV0*Cz`v<xW2Gv3VO=Lf4eQ+
njy?)*TeO!Mr`&6wEXbEB1pjmVfIE-l<p;$7C%b)V1o>Bi=FJ;qCvJJ%rmEt<#IMI;caca($(wZ}EqTFfEtPlBE43TeJxvhmHV
*r(|LONQ+utNQ710UucTZ9yvR(c;1*JUe%*$&=xRiUXDDV8_rt>v5xnbXCFZT(i(5KlYpWn@2Ieh;E-uJ_;Af-;vh`+R}LmogP
?9ylwXNF?Q&47(ESaNc2=|sC_B`-`Qm=xkZuI<2=d#1S~g(2DdxM{>fc81NqjR*gwVD4)<`j#gin)+uk`K>FD7i=%7<uP9O8gA
AM2;xN{7H+UBZeQnoiwj*lZe(1TeCQmf0o=9W@qc?{e_W76xlCP^qg<|I!u!AVtOC}|Dd2KZxELUu!oW8`3OZe+iwyQ;x<P^Vl
Q%%g0EzO~!Z$tWO0jNRXUp>+X!t0lt6(zSWw0%8NV!%f_a*v4qOmnE|3=u!yB+L@69LrpzUS&Uq4RWnoG2yyq`6E@ROuCDO_#A
p+^X94U=3SOToQS>a-g2mdJs4&G1qEZv+;My#Zp4>@qYM(zCLI4{2YrTn_@V!x%366Tp+-eEG^lAttTEZcXx`84n*dS<jXTC=j
U~L-j_fD+>oS*)vHj7O+Hpj*jn~f>A<WDsipNB^nPvJdOTUPO=qcPf@62PbAZ!V^z$kGl>x2CWJNAV0d8cTkf=)@tG`~`nJ#!q
9+cY-FnH~O6x$UO<N{euGQHmGuvndkQ(SKQ#EgxN_iGdO>MKxv1)+VVFlaU7j>0_TX%6;&?~pfHI&740na(o|h&D^=t~{<JlWb
ghM%?8+Q~APQg4ZPv^C*X?$){T0l)w4|J8ydL%dPc?Nhfxc<j&kk-khOIFBR&zUq48K&S@I=u+g>VuqEjNec&KFMU2)P@@qY5l
BmR28aftAB`;+<1!MdE82q>@Gn@=rvUZcDFG434=TDC`@67!VH*U*(F)3?K-;-o{oN}3}dFh#t)|xhw84sJ7oZBnEn4^Zj5eNB
Oy2)SksLC%G+@cIy^fhDa<KJE)duF20<%&SUJ)nhjZ)VL+7ddSJ6tXlWL+)17e~u|{e0H6})8dn${dQ%M7D`Y+_n@uBkvYFZGo
p>%Wf6jY$E(PDgu&+-wP1ow4&EL;dC2faT^gk>2N-%J(v>!dGV??2hJ}e9xt~&MZQ%JUrS&D+D#&W`q9ParpVrviirkQ4&5SIE
Xq5mQ({pN$<4y)^M5l|niAQbVt!-C2>yc^e#haXS|NVpL*o~{hEZt;72axeB-N}C=#c64DkVJXJ$cEM@3k-<<AwCW5-crvG)as
^-DW9fGqCPySsU^{Psl^m(upofFj3K3RF}BLb5bcWk2X(DJ^}z+?2Z`HTJoDG?f05c-$zyFX+NmYmY@=1ebe4MPbBR1n&t67uR
A2eE*iR3M?#csCV*%@8BEM_;|4!2v0Z)USxbZCmYpEBg2`~|Z%aI7cnQJ&KtrS0(ai{j;Op~gxYva(nu=TpYtJ4Hz1}MSl0>Q^
dqgD6^?yI#?mYx0I<kRVGXx;G=Ml%jq@H#?7OV7}cufubY;i@Ys@{lqE$v|RVGZm1pqHS2{EgsNLv>Jq1FFa+pR~HLYiFVE*yO
9v@k>s5&$()w#4pG?rvM=*II<CQs^u*-@8@5o+#fJ@+`e8?3LFYc5aLZdAL>%{=#CEkx4}V=~$K*0b7InmLNszSm3U*ZPV-^2{
I;ZzTf~OD|^{IwAA-Y@%HU34-p-+^E<zSQ1nl>B|0RFFVxnGj_pa)+*^5ELv5!M&0be?L!sgpQ$Op|`(WK7N@%SBJSq?O}9gP8
q~fFiUUzBPg`=I;F1l(smFUjct%=}VoPhQIla_OJKor@!0#>j~;gN8WG0r_iUj_|o+D4KWhMD!b8b8}8N{gs$Sm2DhjMKoO0*x
1Z1__Uo>;IK&T!{Z|468%Xiomo&QjhFv!`{Sz8~;@;Hfyl`VjZ<VDU>locNB0_(#BObp^(wK@({chC(^9(i)YcpACE`1Px=l~*
9hNLB@lmp9&5L(Uej`%6(AKWoG8lZ{ih|0`IbFA;%n?0;if8}lKUriq4eg_``A=RekERh@4#bXrr>BgE0xq2o+t6<r-9$)oN7c
yWOWTs{MSTa06Cr}XikytH@Ga;`2zF~DUyI0@uR(M1c55Ur<Mw?5XKE2wEN23(J!A2jh{ekn01<}FXZA3n0gooRNsZW(w@wz_{
2nHJK$fR_?pX3|+qrU=HTH3|(4&uvzV0@+9A6EtK4`tYzp(E7QnMQm_pX@-lX+$Eh*S<U@OM*=K+P4TYn4^XA43+z-6dQL~56E
OHjw{x_`Yrf!yw}NVq=0ViSs5nYAGU2~oxwg(j5g_$YBZYL-(a8M&#PAxbF8o;nlJ-wud_9uVNFbYk)l5))^_?7TDOhfh{&PK*
SwIOX%Mlv`UZcN=?A^N`bA3K)NaTLvbvAJ|FRP7S?~*-pIm?b2XE&N%n?l818ux|iCpr~`EDHq<H)Qz4A%wilQ`V87|k;xH#R6
{JEfPe{f9)R>C4_N%lMJICA_n=zdJqKMvNj#BrewyMDFNjTUd^Rds6Ik2{_9;q0rj#5~~syl2Vwg9CcH~-wM_W{)T|Xfi&V4R@
$3?;PDgrud*1MmT{=l^WzJ7QunxEvqRr#D+YJs<wU>n+>aJS$qN|@s)XCRfR*@RwIK*eoLdfkD57Uz+uO&JGyk0TQaKsrSohWR
3SUTl{05;8M*V8C?Bz@L$TpBgmA{{&@);1!j^!D1Y;kqKpNd$@u{}8`mae#shQkM2e!+uOx1~B?9s#}g^2Q$hR`!86I)GdL&>>
I{uhAn9F7>(RhO)@7I3^=Aj{F`sGvL~rHiv(lk}F13>}1Pa=Z6tX#IMnaJx%tEyi}7kYKFZe*%;Tlq6<~%oB`w#0mcFrwXXn4r
K0S5N|I$mfG^?u_+UDRz~`3JjPxnwt6eKP57u%k&OaevRaolZGhI7uuPFjgf9P9ECt~;Pk;XDgXZ9Zbql;}`IP^Ad$X}cr3-?b
KJjiR5zX!2bkpCBVcf4uuu6&(7`Se}m8m-^M?c@aI6%dDB-_zPqd$0HD6n(URmsu2a#{h&{EGJ&Nh|Qe6ikkZv=}>QLf@h@0l1
zF@G}KTTnT7ADPJ1j1hZ3$+)NC{R&jCTcCD;TTjH%|E<XlaT5d>`w5iF2N?@645R_K^AYoN*I@>TY>27P?lvsAr|%vTMl6K$sV
yUUO4&^;tTHzzH81xaqN?CZzZyOdAiSD&A@Gv4a9t*hBO&%*p<`VFtXc5ce@Wp+xgN$%VKxKb}AIr;mKY?IPTdXiQ7zo<u)KM{
&U>h-GV(K;`F%`|#UB&|td2_3`rr6%66D#|P_vg;B(A}<@RSG*3DADCo2h;d+miUqOCevw0g=og)Ctj@I*P}S?dl*q-%^Z~VQP
^57g-ou*@i{qddA<f<SmdeFR-`W0$qdS&)EC%<)cN;`^XI}#anH00c<l1m#tk|Qm#^(tXqD<=NNUf|)zqB!=7@SSk0eU^vJwGa
_aog10DaV^o``9NNx+>Dp441ne>S*)p#U4A%A@_ModPoIIFK}W0Y+A@Up&@hTstV4r*VRzanXtn*m4tf)Zsb_3?9qYBzC!qlhY
o-2jYnab$P>~#R7B+Phq@q-Qu(j7r6nsR&5XL@_uK9^Y<1)5rlW)Xs}FpaQ#m5&PTzTFou?LJx_*UO37LxXy5h@P=xeV>7aY_w
St|ddEWJXhcYopGG~7OB0!KJLV=LLglCb1Nz~li70(h0HBJb$@@%2wqQlRzo*y>CKv5)1}jt1^&7j)H{ywjU)@+_ZSkLn#5Ynb
>V{6A^X&5TTOg(_=k@Z1LS<?%H3x3Vcl4ImlZK$k;to?t-@aU+VsZ6Ox=0r!|jLGfr9X7psjXg)GFaIIy`_6pU+HP}OZvTiEE)
^2;~Sbm(M8yPcHH(>JJ{vL7Z0yb?P{>8`!2pwOgXbJJxz8N1HoKOC1X=$M1X>edjarL!S@<PLB)PXjh4ubo{k-Ho_CJr2<Q#F|
EYfyZrr9cQLf`a#6_|c<;)>|34XtabG!|borJs?y0P=2P#6L6n8rrd#lMd7n4t;DB4YDtQNctGgaR+Ybggs5dhTX=UH9wC?Jcy
#W<;guduz+j9WMe@WShO~&d<kPE^`hd<q`>B;_C?2V;xgx(CCEDBmtY$#`J=415^pIaDFp>A9X7kTAN)Si+(Ee?X$7ky)ZT1;y
N?Jtn^u%H36_lGZizh$+kgb*fPw6ZE-da1ySn)FjRQS~GUZUGs)&sTq^kbvRYc<=uElLo4X(7|~IA*w6N>p#@5zUe4mss0HNsE
eHU$BV}O5#5I-SA6t{_<O4!^TKJ=P`;-p7V(#06nkzb9T9!{hCK?ReBW4;2r9?HZi~N?DFkY;hs`=8=qOOp6BZ7DG=o!B7i{6(
&a6W*{w6Rg&^vwW>E3l(6&2ypskhEBXiihMEkrzot;QZ;KD+o9A4h6>^$!=&f386^Erx}vEIOCq(6ue=tzA@aX5Q!zLSyWue^z
#r#P-k(#x(<2US62)mF@wcMR**v{oJrpV|N6IqR4-_4>aTd3SPL8R7b%>zfK(cO>X@-6bLoCpt2Wz?J;?^p4w7RoUMuIVD$7T|
n=utyIR0Kzej71%>k~+!+@oAEXs!LWb(JMMS9n6_KoB=N;okM=8DLoz8Tx*vR-gFUB(*?BfAmPF~Lzstp+ZZ&lW0WUr~6)tt`|
=XR+|F!9w4*Ra+W0;HYurVCSIa`=!r5Hi+<rDE+K$<)#mxoo19em=ccdL*}A=1g>b>&aphhZiBzezTh450@w4D1M@-_cQN^GRA
zSxpF5N)UEe?d~dYGkaq-6<f&%Z(7XH(x|P3<wYM3>T1fw%C15uKsb1qXdOAtWjlG0i_;}X5|HtKBt}D8VReI2WrZoPtSS83_<
edqtcfOwK(uTzkSx@Y0%C3|a7bFll6F{{?C#JI_mDfGNFWW07{V#6MJ14rQ4~b7*?y^I`??6D_G~&k~Ia9`M!>yqrCP%A1@%y1
g{ezMA4h3Zb-Cq9%{kbr^|6J|?rJ(mBMQ6Tnb9jBt(9CHK!V2`Ezj_L6+4#RPZt(KNO__i$vM?ym<ZCt<GqT1WaZP?&n_7CC>H
?>n@cx+41G@qj)x0&iC}qRvu`G|GZpv~!16ns)*$q=EMSKOct?xvIJUA(AF{>7KL0C{6wut%cXLJ%lW+t2BMN-;~gM)1bmgKb3
(M<QQr4lQ2BPS@*!aaO%Ot&~RlIu0}fuoaQ|5&C3hS&L!%IC>Z7`{{X$sD2r-m9Teu6>*Bwg0Yf`gl27F$0-IB)t?IA@r9vwOS
R`)`~Fj*m-|4EyI%^Z7|e}*IH$ku{vZ=#a1fyn*oRW^mfx;f}jq660^lnnzDM+Jof0-a&K^J4gHSIKJ(@ZPs=DD^$}XkrxsuIZ
>u;>tzwN%k5z77!`v~fyZy*HnZ6<|lJ6280d1o&VU?im)BoxsF70=ajmPTvU7V4p4N=YlFAELZb0ZtjcEMIK&;H5wpI6BGGTh1
wYL-f8!NsCDL9f?89rxR=hcYoL>;Xkip}4}E;d685_hu<6{&e^H1Cc(9w+&&TlZe5;P131%sEuu0;%&QK5jil=rK(6)uRH(&AU
@%qClXu{Yp=e++gBwLi@v4&y%f~zrsfIT<`y~~kNW0^i1YvFJ3h=ljVT-kEJ0dijrRtPhkj>!fJ`S68s~EF)jxR~Mws&INB`uD
M94O3#nIJNSV{Wx(`R?%o%`f&{Ql^U%haqPUFmQ7NRXj)tklFD)xGAm`_@~pr%4L>ZdND-+Z<jC;lGZFl12`%oR>B_vgdDv-{A
?U+hk<uCY<czInT#2!B11J?498XKZ+4dGp&}qR)>2H_1)o54YD#u`QqOuWZi0}wS{<I@|iJVr`%nH3;pBmmGAK=oW025>C4T_P
wd)LKRnL)_&$*#q33Qm1jqRV4i}QTA9&j%hQH-@_=k_LtF;#z1GvAD;3@G*|MqPGYHIY}qzOEq?XeUhPbs8}y*A;wp38m*r#Z!
d&?`>D+$3)ze;%Y0a4226kB;(izC8pt^V5W$&doo0#n5onA3>m>0APVI67{vMNVDcef`L9!<DR+G@E@bNh@xS=*E_N7lQjXa)K
S3itKO6Hu;}*{j+Ge>Oo1I!!CNohAtPo(=%pd%G!o}hxPQd!o=<tI&iGg+9;wK6k$->hp0QU*-C=i49vp3;Zy;vMb+Tsy@1*$L
I;9d;)o1(mSOm~tLK!ve05fv9rNTeAS}J~QQYc?cv9Ce(b3NpuzYI2H$tQOM?Nr<$k9m7(G5Dno=F;!fJ@j}0o($j+c6F;t*f*
AKj*TU<QQxK99_SQrjvs0)@v{$7!Op(vQ&Q^;??K*y+-z;^n{Qid)I2?8#NF|tlSW7=e$$)bHV6GelA*~~V%uMlK2o@19FlZa2
U#LHZog8iw#k~kDBF&5=n2XSoRz7yo86yvoq{q56p&j-u{52eQ#dy*WlP_G4WBN|2AJook)U|UL|$QQx;dke**DQ$fXz1W5|p+
=cy24Y8RoCquI1RuOWnC&d-!`<f7li)zQ~KYku%y|lDf+4@#~6;l^z!=o_mRZwc-3;ygUESnWD|-k}qKg4n9$DmDPFT$-+R=Ff
<K|`+-+^*3Rd=V4vQuIsWm(^gvSWbfWmIloCl~*-z7dZTZ^Qs;#{H&@c7E(igo@&WMh$G)v+?cR^KeyZLfx!XYlff&4DJeRIuB
%2<(WbC%2Lr$-x%NEd|2R$xKui&#jg63FUx7;cpw!r!Ysr{0fSMa230WpTq!U&P~#<F=8Jpi8K`Rl+x*`W8=TB45rCp#ee*DH!
|e8ULjcI5J`9<!i~d`U_<ha=4y+e*NmFKb@HhTGJF3|BZ$XRBwSf!J{ty11hgEUgNmk;MdfZ4;QT^zNkCQxp_>>7lQ@GR2)7r%
Mo+*d+q}RCoYQ3r#(h7X678+_3mZFw6GY#+5}X3u*={Vgy!h%9A1MxfJrIqzm>_W0)3a~^|&<^nSbYJc|IhBO?IVHVQm&2(aOh
5_IBmLu@J(-lt4KXa+Gn+T5piev|AbMYBru`cQ6pjGEZFBIcU4WITQ&ORBeymS~D-j5Zb}JU1+?F)EfSeUJ`>`q{=iIR>e=LSz
+0{1`i-XvWV0hs7hktygk&!Sa4vy-uLl4=qtN=s%4}1HUhWuw$<scJa_cG{{4iP>voZ#(NF%D&Mlz4cuc<TlQpukjV|_dzvj^4
%&`HgAFfsPi6`Us>^WFu>ttHHspOh~Rft*3mJjAYyPwacz1=l{bCot8Sl#koMS+NI*MI17SvmF(feQm_m-NsFFMAEEDeup&Eba
RtKkvIZp;$MqTwdh;oYx!6bP<tZ2VkEzSrlICHnykAZIka70*4W6C0co#a_12TmG!<f*t^g^#NJx5gX6WJ5`%hL!4@9!7`C-m>
^OE*FIMN)L4ATIlU$7e0=C+#R2-$*<0OJnQZ97R#@@ZK3s~#-{?Q)R8+Bsb2eI#cNiBgrkFsN|JY*qWSulRu_HIg)U;{B0Pz=E
AJubfO(9a&74a&%})jY}5zqIvU2uKWhg(bST0G-4(vWL_9(5s5y_jWGEVOKq)|L5ScGBGO;Wu<(s&tr+C+gNmY#+0>{f#!A%lN
1V@QO6k2Ry&z&UF#>u5YVP`iuIBT9ULP<5#fYK^4Ch`Gpf@$-1S6jI4@`@S`iX36njNA7TE3<Sf`1mD3#S`0Bp5b|04Q=&->VY
ieD+G$GSu%dBQ=DGS!DEPAR^luCx`IJfm^eR(r$e>_BB&!0Y2!?ENMH>NAFvPGghdbFUoYh(z@fp^7(z0Zz5Sp5lUZ(!7p40$0
g8uZSztzvi_n1-<~6J3QYGu@oW!FyEu)jXKUffwgZ*Dn+qE*1+`?J0?{w^)1ysWfx86DZC?|6#hDuE*~q1GDu=hk*H6$kAS$pS
Jutex&*0ozP4;nd$sqninm`i&;{BmQ2WVkN~pO@C~-g@XM@64?X!Wf!m`T?in-O+Xsv$;ZBfyeTE@olUmKZX<O8?*{oOaGI{DA
+-qPhNo*Syv+ZiA@1<N1+-JjBK#RB5pSh+2zR|&#$(%i19^ANL9feciKm-Mp8?7R`rVBPFmne(JuK6S-9G&E8BK1FciI3cS2mD
$W&bSgopWlW}gl|Om?q!PBthYZ3U=rL5{RoOMHerrvYev>s<bT`)idJ23_Gkq_C8Ei<Z1dOLq)l(}X;bt)`Z^z)u;GZChga;@$
LF*y27p)(Efv3ui->+JjGB#N56B(drZb)jIuq;$k2@1WY+zj!L2%r9YFT9Jn<YL!aEvQ1uU7LA!4lDiEoxpokDd5wG)NM&4M$p
rq_Lg#)XYR71Xh=8lD10MBREGYZ`k{vu&)V&N<&&L|nh=ZVdi!H<_D!K>5^>AyibA>39@pvqhr+`NLd#hvLu&vH8A3V@-yDFof
N29MIcSakFmUsOdarz;tcAs-=y^;dxGld%CiR>g8|~AZnqzDgZP`OJP{l<;PX;!Wa}}8{ufy$d*s`}JMTtDBs1ZjWD*`83b9=d
ycf797Qhpxmn1})+ou_qdc&WGeQ4#Y<UvJRX*Eb^VP*!VKG+Tp^n@hFCMW?h9J8rJ^et?*YJDdd%rV`Xz9eS(n+jly<4saHa$#
Wr$H5c~+lXJV<DCZ|Q+`d?G7oZOUEv-CnAy2XadUIM}^2c3~k4Or{R8`irjX~6C1twwVj47^ahxa?HTp57mCafeED|TNFz1(F5
B^4Duc>&yvRK$!qt$z@?r}_%Sa4^TU;@y#Cd;Lo?s)3_2==eh~8&8@RC{5n2-+HNK@T1yzAgZOydJywy!_F0WugL0fAk|ET3BX
)<|I(v)dK-f1BzisopduF-dxuQp5A$?<&8iip9nUqry2K(%sbq%g0lrE;<_f~>uqbl{r3k33zFcPb{vhCKni!}!c;?c7Xxy0^+
8IX@O;#(SnKA&{nRJl$F<L+it+mivVyb9c$#UBB{8U;ZSWMe=e;F-Z*i3sqxq_DQ%m&)|ic%W({U+Kfnu7MfM_Xx|`d_65ue?X
2&CjOYDd5w>89dtM94_sEBZKxSV>Ru1u9CLz+8P?;9EEmzmzeg^mld>kUP`C6p95+8Ijd>kzg9(?qg_jTXU<yM{b~*Etu8UGu_
2k(^z2$%#;!D)djXxc<Mlk+(*G0C9&g=An~@7?mCvrHiG*devG`)z)n}ihWmq({i`F8VskMOi2fU5OIK`s9yQYx#<&s$17t0E1
n<6>1@#@927iM?S)_cq^YcVc8px<-3Jg2=@0*;ZN&iq{^<Zd15pMiO`U7WAC;nEu8eh7doh=S;V!QL)|aar<o9ytHWwXpLY!P&
Jb=LbBP`#>Hd;|CD8Piznk7F;G}4(VoLc@AHu9plwx#GY)z<-6Fz;q!`c(~7%&>4@v2WNHv$3&buPSjTpKlOJ+d3n}BhrSrI`{
&_Y8F1|z*dzO*rpRg{!^o4Wu?D{t<<r0zXPi#*`=jcbJ4{o`C(|i(GCt7pdGvyOa=XF%`^!nqY#^#nBKgGvvJswb4i@BoWdfRH
@p_8OFj-}s<6;1!;1er^}j<43NCh*VE1`d1#$z>16Z67N8mhA-zrppbPA)S^m(T(^qaM>y2;80Tkh*7$Q!ONdvz`buynh%a=d0
6cCx(7es^>9`51FtB*(`#2nf4cM49L=p3yL<ETAO`U57eu877Gd)Ogm4$-o^8}PXQxi|IJ}oYY(jl0o>!XW*p5fPY8=R_Hzb_2
eoR!aSB`6fsq|rHr^}`kVG;b}jdpPJOi|0^O+y^oXbcq*VHB|HFR6p|=aCu5&F$egi85f+zImiV^JTrMdg@$7XcxJ&qvx<_V_%
-dBupeU){5%4ArT4#dI14xlS11J0o^#I)Ig7dwXH5;p2?6{!z7-jO7xaamLtuSo(L&zkq|N8o2_o+%b5~+gfBW9uL+3fd96&|G
eVIat5nz_RAyy2<MGY`rqZP!4=_$G`H*P2TZKDaX<|fQfKMZm1Y_)!c{e#N?<*T4c_MS<OuSH6(cpW=YfSB(-Y<zZtQU)g7_=@
(Apx`N?=4z;d-j(g7W}H$RK3R27GabJq=LzTkV-^nuInqu_xDzQf=!C-@yakH7IUOH`Fp>kJgaF=RS>wUUX710{eOnb!>y@9ef
+oA!BE?NJJf31>(#1Bz-k>#6|0Oev{WGzlnU8Fsbrj!1Vu@5&PhN}NKQ@yib9ezf>MP{9F-9QsBKl2cHCPBj`sG~*4^Iw>tFCb
&-=XZ^Z9(%#w`=e0k1SGu|(=nN-_qX?<I;#%Mz-tvF(}8p#`s7nU(;}JtlqQdC*wxVvRVnI@ARh<9rQVyQIo`c9{w((6BS5c`G
z>OfeHR*l<I$hi%dUv2ocPU452&R(-}@q`AMecx(=%G%Qv;Jt-dCNd{~^(HegfLsDGrAaP>^Ly_+;C&^yEdvfic5m&4IXb3y^{
x#W5V*gi*XA~Uz=pDOye4#;L&oF`E#iyjYKE#qIz3||o>dfTPo&c-U65ueKFN*mNG~@$;+UzuP<{3!t`{U4kJnP_-cX`R&Ul;@
BY}k}bg4O4mB7jL!+E3J7U(r(o>>rq8pY4tu{z-X^;d1jnJS&S<mI<e&vJsD9GTw$dnkKy-bQvOsDztxDQJlFCGe;nwD(m{As6
U&Wn%Q(UwPf3c7QJa^(pR@5MGdE}#5+ipIuj5vIef8%Gjj%XgW>U2gM*gm0^xwC+3}mM?s%M?KWn|xvJu1D!KcIIXGs-ww4?8A
AHapCUPnw^=zrylJ$-{UNF#wWU|YoM9*sKq9X<Kj+kfSUE?`6sIhyA*U#+1t!`-(1R9?PKUVuZ<xN(#=tzb=r_)ur9+3*M%vn-
geqnA0+l{PLI*x84E^E{ffA)680NiLT*b=R7#H==*?bEFT55_=Z9@Vh772dIP{rWliHARgtx(E!j6ND;zdLNx9b_zDbYzN%7k#
?%>a$oK4=wTy(_C8SU?=D{v`Ehk|!ZvkCwdIEIqx!%s2*ZQVoT<E=w3ywaS-<f3g4D>IweYdyPki@`zAO_SU2wNjjS*o|-(H@J
z++or-!DvRb`VOHSctrm=sK@#Ex1-lJ&+mU(G4Mt!BM8;QTFfGL_GLShD&E%q7QdVe5H7qM=U~uGn5%0)(N4I;n)K_!LQpgwQ*
#{RwJg5Y(-xZ*5$@|Q2y>n`@xf0%1OT5z%$vMC@k8l}h~5_XW)+Ds*+45;YsUs5L}eFu#nn?+LQRmS8+4nJP0<4h*@S9W!hBi9
xn<c*XRvPQ&jWpN#Q}B6V;k<pj3*mw#j24L4C<^3UR5xFp^A18EI@s{xN*m!KnpU?ChViL*JlhiourdCs-+N&qw=zA1TDt=%rQ
D~TR-5!IGH$<ur8@LHfX2Nt!K~Xu&(Izk!Y;WJ<s+FA&5VGJwH-Yw%ZW78<~r%KV}q*ytdLL@YM%Bs@#7LK6F>pzkhj4_IP&=R
@Jo25<OAY@Cum&Q4ynwzf8kttu${(XTGF8_;gnmb-8A(AR0%Ooh*y^7;`E+&WPS8tv5_be-jvmRCSyUhv%@IU9NzsX+ZCD*iy-
TiaffWP>#R_-?$kuO7>R5hx<6kFH1juP;}>odM0<@-#n+wOl6{3BdFcYQF^tO!%D`oswCsn-2G}{xzhc`IrgU4DTD49C>40<V=
6c+8~W-|3XPlnxPRUeuOwMHbd1@cSz%j#vO@djXYWgD5T(O}+7fzfv>!RUgje!ngc-|+e?Fe_ue@c{GgV>~c}BTHHE;apKvflU
IBp%VBU7$4NQ?*pG!vm&S@i#i-yM!Eg$>5Uc+Ynmq<<>n1_%>mlk45BwK7$aEy63HWNxi{mYIpo+b?6Mh)gM&CmoT6TPE&Q8)a
xAwm~QG&06B>rMwj^kNSCw$K>`hk8e7C%f^T7M%pTL16Gw&{waKS)nDEQV4VP>DI7xV>}K^|QZT~lRrqUAy<ierHqZDflTpMwh
fB|Dp>bJO?~I~aaFYCJOC|PvtQLtnk2p13%HY0uHB@7xNmxKT&qtN?n^Zp%!nyp#PE(oSJOoFZuNl^aNL_{QkcBhMy1<z_N*oU
pD~QV#ulzJ9l6cp0{y3u(FveHY|L9K>c!{>K$~^oIR>_LFj!&nU?WgRSPbn44{+}&A?0+~6QJDtOZ~rI57VVcn8+CK&(fND*Up
oBZ_DC-osb!^RGLXF9qL^pHj#KB8-<Fd%U9Z!-5zZoA6Pn+XOPRMUXsi%-sO=^Vd@WYWhfzl^M)5zRJ39-zVafWp^ID8{@PKGw
H33F6_8Z8|z2%w$H8T-OzCtuf7KwyD9*&8nfyN15cpg1#ZKUQfx#zBJd}11tx1aTvXQE1$=z+ZzJ*E~y-NJ%b(^o%5Fxv_Ct7G
Ydr(j!;w1qs(mqp_qk9_Ehxe0r244Z%Q0Qz9SUjf!?-NqtaxFcbkd)Z~{hQs@&dd7~}4;Li=xvCR)A3Sa??>u~JXD5HWIHyJYe
jFZQxS4-+AqNS7J!hG}Nl*Wud&g5Zwl8tsyl6vB!hP=N@kd!c?AAzklTx~_Ozq-F%c;O|C0Ky7t^R5$fMlzix37kcQWark<*SS
Ahk0VQctJOeAZk;qL<2w(%mkT%x0fyu=rOf=`L`Wk7GOO;4252GE>ye5v*RYtHr={t=^jjdvYtXiVD@Gn<?m0<y|HhBrr{s)YH
cb~9ms|zg9w(Dt{5*TWWff!N&cKV84lfWW$R>5C=e4)t}Aq?lj_-uy|RXs-)IH3M10HG#YbloHxl<;`-~p)1~Kb!JzrJZysi16
p6H<cjAv`_*1@N)&Z*fhWJoi=s$4}%nzs*7d}ur&OxB*=^oC-y$J~=~xTo7Yik6*rlp)cEO?2^-2NsKL)WSGgSdmqA-`dL<DUc
#bB~8GTt+QLHS4#%S*uNfLD>@(_MTAoJHqE4-@Pb12!_p#F0aAfVKRog%fds{+CaWg&w?Y5}?gs?^7>3kC6QVij(wrzaK;xEqY
8c!Sjl{J#)mmXymn}J|jXb80x8Cv#9nxW`ioTY=^jYM6a<^hXI(e1fu;o~{Lj3PcyqHF&*WUHgKNp<4ZQixK+F<&cu~h<4;CO|
d!cJtt*k}=#VO^Xk;YbQLt);qkbc`n&Iwc0(xURyFiy?#^QgMmb>5XU&icDsUz@TYPj>7=$qby;q*WGD?<&@5NtjS95ArL)qV%
<mk?)gvo(^vTVV^-52X58<~mrO}yU++jvc3fDojl?SN|22~I^kUKNA{}$+C^cB#i9yz;&s%ydpZNim@Sk6}`^7@Ym{lUk3m(qO
VIglO*bp^j>clh}h=d(5r7m`oPQP8jMgH^;tkd^@<?y6_@Q<k8D(;H^P8HpgDzQi4z$qf}6$v@c3qR1F>?qYGHGXi7{(zeQkzK
Ok^}Lhe=5ol+ONxuyZih-o?%JUjWV$kA5D!sM$x-KK3wyvR-ywE(Qbp1@0BQc)k`dJReDtwRi`%tt$JJnsUrDoY{eAqT#CRSv-
6Cr*bwQVMu^BMw16+gEuG0+FC-)@FY%QrvRWk_M#>7SgqlN57;r_S6O@dH<{o8>=oF4Auy3}Y*Q^{k%`EnsiE%%^z2BYu8;-LK
*NRSp)-tM@Vi9v5yR-vKWVx82gY^i_Jay^oqd-Qs(NM5YTm=`^AoncaOgwv7o;b;k7w&VIuxP$St_>`4cQsGzFo$MQ?EAQVW&(
1+$<Jd#RO$7j0*n%r5@wPyZd6tcrQqMw-79nJBqjqUZDqZd(gscP*>yj)LPWT3DFCLZ&!sUT$&)yOjM(U`f$@EmQ+7@ud45E{S
yX7^8l*c;WC}<nl_`+tBw04=N=)RM)-#ef5Ts;8p$0ShV?pmr_P4)-aHiM8QigF39qgRN{3&2<JXDT~lkJK8977SeaFQW_#_zu
nb%<luoi2-wO_19#j^6#ARRC^xb&~Nz-R4Xo#DGLYB?zn+rDUylE0}UtUZ)B%phM`n#v!}l8$hjLdy#N_&mM!!L^MLURR?s(`!
502b1~FxWiF`C+H<~p&>+DSvL^K8mfvSN-F8HhX8<1=njU#-z8Eqhwd)dUdo(93-N&4yiho;sGlslZM;zqeC_lLj7LuLM)7!;m
cD7LXcr`;99Xp7XS%=JO$w4VA2@WZ`|QnEI>qLrc6AQIcYEmDhf=f^}x=t|Gg*GBqhZ37}nO9n6o1!ZGpZ{LG%wmy|ngSi;iL*
Kh{NL^Pi*NYmE0~s21v=HBneR=ZJ6oYO53s=u=N$k>o+M55By{xKt4>6>L<JiT_)eVfF<*c$s4DeoF*JqV@1{*3@<cMO_JhM?r
S!BMTn1z;lLNu!ugW;KOiNoe1)OHaAl0Gn5ip<c>d8}lYenzE(u<=l!HvA>K@#@Q8O7;Jy|41CR9{u$M(>_~ZuWdmsL#K)uk#R
^l)Bm!N-ozMEwCc-y$dNKtLB3`}*>n#U`|*q4C6MP#+kTDs%QS){nKbnqal=a*_(z+uP{@9eQVcHp-wbhh2q*V8=l-&`-h0OMc
n<Qz(DRvb+-1#@5|J?TWR=6{woMi+V30#uJ`e})AG?y-`Nx!qTuILtt4`@3e4qIViL$;9HD;zU@OG*>h*YaDCvv&D;O+V<;`jT
|y1i#e&7uy4-?gag*h-4ZULP&s2<#kHLIH26!;HjtsgV9IaAuCu2lR_<1>TqRMw1IQfiE|6r;E{cN4V%BVfWpCws*dpJJFLBE;
&Mzd_YXoVm8rBb<w*+d`WKRr^&C=)hToD`(MAZ-*Ra_bx!^1?pFNGZG{WP-TMAIR{keq6&C#p1@Fq<U%9l}PD=FM@1@*#^T|&6
#(Qv*vE3Fh9-CJy(+tvx=pU(qjaJUomTQNpBZ0Q9^c&4tF=Y{P-T0b=PhCO7)?Uh*2sF5Ui@=!eV4+yqn9Gbe$>{nX*bb|rrK(
6$A^amlEj#DK!VNU11NYwy<!YBwhhmt4c20qDk4)xwUGzJy(bhMquYIV}=!3*Ymu05=^Rl=fMWsp?Z2hsn!7UACmeEYa*z8@R;
J1Eryr@rG`bA%99qsw}_g7zMeGX1`MEym&@9IAEWGah95aMMwkQzwrcZ{s1`~d0?dtya_K2s_&;r7fW?gsZu{Izjk{>C2_Rmc|
Rm`NV#=FO~4J{fVT)!F@;a4W93+1S2K$ZUVVuN<CpqEBj|!IAKkx{xbXR)gSmsK#7JTZnW1wxsxX&a*nRzC~zIe-;;um|N6tgr
&X1F@Y>=03iimF!x*M;JPM21yF}C**~Fsv!aGarN1GVy~rd?D)iJ4Hru`G&korvTxmJ*{`Wy(dHh*s1_(FuVpWs_mH{bP37r@V
w<?P^<Pz57PX^vUY~2!HE0qD=1i@_c${M=cK~0bdAS<iQCfC@G!?M2;KhK#??tRS<qjr4@7iJNIY&*V%?5SiKPN16%=D&(@NHz
pb#953?RgC=#0oZB~mAY2GoAQn;gAF1388L=o=0KwJkUQZ@^3%AIkxFEtAU8&I$)7@?dtA(B61m$?(-6L%PdaII+rn6B7I!XEU
hM0t7xa^tXtRC*kKMu1V0WRz?$m61Xpi$-oJP+`P#hLEEC(@^_Z!0+^vx{xIh}0$-zJWXbL0~KPGK-?Y-mBZ>@XY;vg43G8q!?
hgMar^lcA+ztG&ggpip*UQDU>TKbmuIT;=nn0klRXsXtn?{2ybYq&X`0gA02I&%7JPYWtUH<k!K2(2KK>ooerID>Um6v0p6&zM
@2J%RH?BDV-3(08uJb*lVT0Y6jK}Bb4Rn%CEGYV{%8G`2vB8d9_$^qwAY)X*pR^tNDRo9o9afJt?vUVs7wIVJ`hHUUYy|PvFdp
#!47l=K`xX5U);}wBOs3P0U)Z^5~;-&YN){BnIni4STk!?oR_;-8vi}`&_{)t5w=x_5|ua{sqW8Oh1*mUjF+!5#7K0hF#KNve(
n(Ez6bT+0v{p4UePR*@~tY&L($m&w@ECHwsUl8t&=trmbZ(59UxYJyeJ*7eh9FO;I*Mn@JQO2#aFSIyO@<p9`6Z8!Wf8quXvTo
-K@|lBD!DZ9Ski$PUzie|Hq6f@*E{OrlFs_tGNS<DC^!pRX-k-h2ah0;Y!x+qW0os!W1{`jnCbbk~!1T9)Lq;}D&!VdwAluA-Q
)0@-|bK(TkACrbzOu+t1uLugG4M+6w+P6}*_WWG-iSxw1of3ejXr7QA#<25a0ztXJ&wJn9l`a<D!1y{O`-mP@X&gg8ABz$ktx|
|H(7y(H7)#A*gkfaDPdhr<HeY$aL=2zBad8y!Y@v;GF->m}L9z|?hVT6^n=kzjuK*;zsjm&mrYa%9x%@23z0)fHKjpW)X%^r=&
NRl}|apR>~z${A03pMF7oj!dhzuBfr<v$?>psq@x<U~o_oa6$QeqsZqHRVNhb1uVZ1~+N11@pcZ&w(s9sh@0h>lG~2q2nrv5P~
L1&#=1YlHL`u?jqhE(gsF}jSBdt9d`v>@HpY1X;W6ZoAx4CqrLAUE1$(=^^zL3%Uq-54tQH4InC>5A+N?+?O~Tx;%|kK!%chmV
%cp*wHuWI0aGYrgPMt?7r`6o=&QY&Z%^yDa<i@<<-6^?RC;hi3r`yj3>2QxG<A);Inw28Mn8H&<3yi^&%ah8VKw|iMsv$~Qs?;
5U)8O?J+b@O{IUd($*X+*=&aBB_l%;NGmq_gWgXl#QXyWLR1|{{dAn}`LDNbrfc#vKnbrB49=jug;e{kYG?n*F(c6fWq;T}yb{
&g>6-4Pr2btW;q=U|>-jmWYBHMny8cr5N*OlpTmWA2>FZ`V@mI+4}q!%tdq*@!@b-kQafK8_AW;C-y*DJj_1iEjzW89V8dqcei
+TLp>PP}vdCAt>^#TzG336hfyRfF{ByU1w)Ti|$+kt~SBp?x$?&vg2~pXz+G1D2PzbXz&>;Gv%o#`<DQV?id)|Jx^pB0^*MfMo
O=)zEBf6H*2~bPd{+e-bv>{e`TeS{j+}!pwb~o%tTi4;d*A+pa6`I*oIrjl3ElZsfyeKA`m{ZIM9ho+EP-f)vt)x!KKMNq8&+J
|q$Q7g06fHu9TnROSW&N0+T(_%eO_q~HBB*)&1~q9v#I)O=Dw`O(@$AK;I2)S=@d2q^Dmpld+UvRZn!!maP#dy&t6pMgcI-lHZ
*yi=}Rx;*!qGlTrfkyk3=@RWKyE>GfUV-rLMfl5;TG0I_P^zxabv5rxXGSHMG$@WUzLB!P3nT%a0WudbY(X^my&}RUBB#Im$+S
*d=kUICB-iy1YH{}Mk3PNF7Fit)B+Bs0s@o-*{-{+$3;aUxFFY5fj2RFL}t+FlgN<zaXV6@6@RF6tvZtOaS4+BVJjIO2$^Ips~
^}}lzDO$b}IxE9`!yqC*Vu>DOL}?#vGyr`6gdr0dPjV|?^?*JJ%<=!_=^|s1Fx57@gw9BAfY%oKcj=4oIeTSF+j{zSH?TkNxXv
D%O?3N#qwP!SPAyc<@0+G_W@f!}(>l;=VL*K~;;%7dr(N4(b{F#aH6+6>tPWjuh@zEBI3OW+WznX;Ey)Uh*3SKZ>7h-}Zoc!N8
{f0d6hPizRASXompSibTeguPc=KCljOnQG*D`nUU60jH>!Sqk7492AckIdf!4$cD?*sBZOneu0wOjiR8><V|ZB{m&nXGE^NL>3
2eBSv60UNnUtp5^C!oA7PPSkDQLFw%Ilrb4oyI1*06Hnz&N-h95E?=}`&h7WgKK_hHyJyoq;=;!nNQ#;#{MD(mA{p>ScKBcvu@
4Q|zouAx|8>Wxn=|{|97<gT5oD*<MtkP9*>gGEPwD&n2PLn<bz7E*9@R<Qsas@mrij6|$><2ii4wa@voy6|(SXgav+tC+;8R-{
oNVmVTE<?NrzO=lq%E$GOAEiIO?%|1O)J`INV{LXCyh4DPYZ?&X)Q}-X|9y)w2Cj;Y3w%((}dodw6~w_PTRuXmX?xwFzv_v6=~
|=;j~JvD(%Ip+%!PHKW**#>NKN8nbs_<Nqc{?IIZj6&a}|#yfkOQfwbGz<!Qr9cxl7gjx^tU`_sxdv(xq<NLp6azO*?ZdD`nYu
Wnq@D@bFB_ND!;%bd1j^^UX~^LMBH+s{f{bmY^tKL)DPreD*g>1~>{ynk}i6u$#$#tomR{qNm_Y2Ut;lZNFNr7d;~(-c<(Y4}I
S(mE2W)86^MG_B*K*=edDptSP;sL~3)m!!S-r8<p881#R9=>p4HrNDG+%EYb(2ME8h^_zyAneMHj&C7Huc(IMa?1dx7@E%~u&#
GoZs)3b^S;nB4r_IuATh=H3ixf2f^87xdqkb3g;R{Rs=;_q1=Q(8EsZm4<X@%0)HWB>egWzi<WPNN()tR-`z$7mINpzY;sIJ;?
&vw8Q$vR6Jver#(i@zwz<0{2UBH)_|wMjKM&N3$8X_Z$pah&~a_$P=fv2P-o3j)pJNdF8<(lLU$m?^JPYCmDhc85yFh6Z*S|2c
^LK^Hdtq|;~1fmwp1$T;Fw&5W-)L=a|!)u2~HjWK|mH%g&ODMp|}lQD(o;2cUy#xWX!GA2IQvsPvVSV)MR{e%cqHei?C1Ps1Fz
4re3nbi!lbmI*8tbGD5@%SC8l$+nsO~Klh&1bpC+t^}ByOh_kkb<|Qk}8n0Y?haV6xn6%^NFaeE^&=dReIl<PHQ@p!OSC;$4Y#
Uk6+*`pr?o5_Dd|U5PWn9nBDfKsVfC5zu;M&`+l5DthTmd1RmFp<G!K8x<(I%Fi+ZNIUo?OGQ%dJ;XQ_R-tfxge0@6hvbF(LAR
Xd3LG7T)$`b4?O_sMJ&&ynkJz2&UGZHi*z1KzCJKZAZ5QUvxpjJqM5*5I+h@bY`R}oUOQZ3UA9KWhLd~R|7s<#C6-@3{37T&&Q
(+}cD96-li$!L$_PVrESYlq6n_ih;P&W-oDqK(#o#z}e*{aqg}pGG%}S)FzZHM#<gipcZif%oDX3^vh0WJ-FM2zB!YRQi9>RNT
d?eZGa7^0R+ekZGe8AU$QDV#t)_2mFKq?1ik=VvhsRNWhrOfP2J1RQc5{g>+R<jtW)%Hm{8QL?f8Cwec>!8?3{-UJts)nSb7>S
x`RsaU9?w{3Rh=r}T<lfME}Fg7{!?Or#N}jy~8N<xLE`bDt4st3u;AZ0Ic%BW1AR-LGcTBmA%9sH0I$aAr;dim_{yc;Jgj;&~o
?um6%qJzXPePNlfrj!6km312TZ9h|DrvfJogUYAR5^p`QS@q(&<MHAJ8gyZAtn^QyTs$L}jZu_?hgwuO&=9y!cw)bk?I9@hnuV
lRIBAxn%T5EBNrenD*7M?~;@PP8h^eqiKJe(;mHpx!W))Mu{G>8ywb-Uu^yxVw?03BI@ZgytblO~tDLL(cQPW_gkci9m0Xe*H`
3KZsDc|oI&xc<74RbBUMST*E-UG4uSpwXFF`CL)cd7wGS{X*;(5pcm!+gw9@_oXefTz=)*>&FS@i6Gf0ceSKg2FS3pI)h2UVwP
K~V`m}+$7~~Avu+UGBX^IP)b<W|LDaw}c%|kMo|hib<ywKi`wsr|nDr0;Z~r2i{bOLa@Hvn;Re)B2tCuT?c?yhtbpKbYE100O=
1Zwx@E2q21rrvNOUd2x<yWpVHYV9kFTUcoFoy@Dw<k?kB!Kmdv4^1mxk>tz85s#@d8}p$1G<R$VL51ul(JMB(D>vYen%nrX7dX
u>GkYoZvBnB0}x%YY0_R|yO!Ex6y&jw*TZ*d!U3(M9??XZ{<o`;y5-R%FnrJsFhxCLc6Rn>pL@|@dzBGP{?ghi-Y$i#Un+oRLc
Er4IeakovG+CN;V$kFUT|P+FXOnXz0bZVf#6CTSw(2B`53)Jc;^0tVk_b?2bYgY+rG+*1G2E0IV>*=R=L!er?$U?c4ZRWkyulF
3tXSm*@flrauckvH=gKk?I)`4H*)gT$F=;wF5Dh0C)t@CghL5>Vw7?CUDk;d=eqxnB*eUck5oL2Ys6<+26D>_*Uo)of7}p1akM
|ouqI~o5Ia&yj$EId6q7W4fMIBxBubcVdw_z%A@zL;Yo-S@iS4>*5uzWHz)nR@))V}wTy}Qr4v_ZNsU*$p&yKt5$e>Rp^Kfe2G
p20ovoYA-N=(nT`rdtT^rH=-QnDz~zWq%CRCQy9fnzg$W9<)2H8`B*Ni?$I+AX;{ExRxZOg1Xh86{TUx2B^vCeH7Gy4km~r~QK
=%0H>-18rl879sCyeINWarBgYC?{Z2+u*B+3x2Wwm82=G`%i(Nwi#v>G-F*$XMnI3&Oo^Wlq5jQKs`6fyW^RaaT`Ad!N5uhJev
Q;8m)so3nZcW?Gck!yRde~z5M5w?!4S+QF!4BUWDgsXaoallJv#oRCZ}c`u}|f9q{~F@BXZ(S0(s_xN!4bVxT^!?0<Yd7tO~;d
YZGmz*Ird_wI;XiCNU<KDrH@>Hds)|EUH`m1P?rt>4$Uc+P<>cFG$bvRzD`GheZv#L(88!lN8`mlPlX97l6#I-4=#TNU<>k#B&
_S_bn3OrAkP&2HV#kpYZ?wYb55DSw0EMeV^ptBGZF)TKB>@mn*r4fGqBEr0wEEa2)@IZedM74D8Dc(EMiO;6^d^CtZ?Jc<d%P$
45oNhq~AwNYCQMt1m9l+JBZk_vzD?lN4hKX%juzDt>KBeThU(9R2W$do+oMX@2P?jG+sI@zFWC2YczlhgQ$a0pGc%YqdOs(J<{
NdcjfFIk8$W@$^~;Q6FQL7#aVrDAMf3cRSBP06HZIp+7Bemu;0UX|Smd5H>6!e%Z(gvKHLD(JHd|du%=K(*}HwkF*%Yp<q@HqO
e7QrCMj<+PEB>%qsA>-6e`zy%0nN+i*i_?|@Rs54?CW)_)}SDd#QvL(SMmB~+xrRC#48&1);(Ak~8<MP-vbg{LW5D0w#fMF|mE
;u`GnUr|M^cbo0%v&AO*_8=gR82)@|wT*)>IwhYb(>j~$?5+&-q3rT;#%N=4*Di*6+EB3Q$wBW^P~bP&jbuDyDO9GuoF6IXI=b
(4v+j#lkoF$+2*B&KSjrwWIX7is1exI&9FWYbN8ja#i5VA+*6;8!)7WpTIu2<1g6O04N5@~%$!6n3_VIzfEJyfOPPLUf{1Z`T2
-p{-ZZYMD32OUAe@`}9Zq}wtI~m)Jb-YxQT5@kjob|?$(*zaBMk|UnQn6r%k^cKJ!4GD?WUrVRt|9_mIaE9fOvfY{+yLnCjaqS
4a4{pNJrFZ;ZwYM6D#ZIr%Z*)h`wOa}Zb!Ga&{<qOninvSk?znV?k>18MpC7MtZF-4OaD@}9Y|u0S`!(PDAOlWYa402m^{-2&h
VRfb-3E2D%wV<?E>lt!KMJ0>MjPF?p&@QNk6$<1D}b>{-8YzZN7Q-SzK?mtc-0H+tC&=M~Z;$Ai*o-o_Wn7{LJ)g8WFZ0c#%hY
wr-Az`ns5%{&k{LS!b?3g16=QJ?FX4B->{ceiV-z%J&eOtv2UoFq!~Xlw-CV1>mQ|l+5wj!9MlVzk6u!rH23>Ns}+%!0@PcKdB
I#eW$gWyHDfzzCsNF+p$Rd`I6x$rAaGkJopLtd{ffu3tWq(sz>pUxdbJMc$2<XZdB;pv0|mE$V`Z*yENlQV~2fj?&U;*_pgn;2
I`V)Zy2CI;H2N}LrHcpz77$fW|z`|B$`FhB5C*x-gNgeZI#7+Wjj$&M|~JG@r?KjB&ZVd#`c91ffE*sDW8Z*&cH!r0GWDOJxFD
7j^+?IOX|Fe7xvQcx|`~7-RFRUoRzTod!tOi!cv}T60G?6I%5ByH5)3AL*@~gsii8Rpjt_+)Fc7`ry!{?l7jWknXzX#t`!m)HH
wmskDiGpLibK|&7vcEaGW&#463JHcc_89;b!7Abx5t$$#&_Q*w;(mbrSms5i?S`3$<bF)UuBUiefuA(+xN7tdo87m2liQKcQQa
te#FM3@I@`74LnZXl6&29~)vO(2v>ozBqR>w9f~(<5p2L7pCLrvdE2m=_QXowSx`QhOUv0bW7sFyi=4{Dg+2rJ>z|bWy%0ul!K
-EvktS9<N3?jt947SQM#>X?{w$+mI^~lnQ>vKe_U)B(sC_X7cu8$<_WUjJEU%RKSLogbZ@@D)wq*7mAF&ud=zK^9%B)N7-s*6P
#G=2;9hJ_rX<MgIQhdsHQ^0K|H^9q0_3(t%7<JDhi=DN%A(WDgqGb@lR_uG!c||R2fK<nP-ja(E8nasIe0`1(|4ZXbc)cHJg#{
tN5n~6_E|i3$SSEt1g6Rp)n2p51q?C7j^PW|MkqIz3qu?<hO>d>+7(T*L9iPA*2F&UTkH^$!rP)|Znx?phkMDvl{JlDCwoRRyZ
~2xFf0I(vqP=jZiXuHlBUX;iHo~+C6FB#FJfeA@(CGFbN%;@N@lyLYDW>i$V=u;(dW&pWS7|Bk3N6TLwrIeo>SdFw>m~Q!e3tX
X4aB8TfqMXc2UIfADe89hOONF1WABp=@XJS^GXD#Lr=kvZR9-otWvgIWAYvf-2<A3tDDK-#iKGTCtH0Wl!xLi*?23Z7_$hQnAx
uHG_edbr&+m|krR@P2m(@I!)U9k0kI-!)IAmK%ye$n2U^XeCYJ;M10O6-xb?iuJa4Ebsy+~GihqpHU9NvlRP^NF9+iauqzu33K
3?L*@E4UO-<^1>nb4+KwveTn`LYCS=`n+0=`tSTc01|wo2{k~Lf`_-VZDqli&n)j$}pME+<)KE?N~VNNSo5NgD8n~c;mMgc$O9
!1E0f6*LJcUMGD>)oW{F&aI1Z8@)m+|&MGe-0<7w_`N`xqxLxBVVkCICByji*D0`r8P+Uxpj)!4^n~fI;IJ2{jNG+I=%n+`u4R
<sx7iT-{1A`Y{9r}{qOz%0a{Fs04P~D=>PVq>ng$@mdYmuRRNwcBsxWjI|wi$2kSS6gje}(WCqQCe_-#ltAqxd3IT!ZnQ>q<XO
nFvaDBrzh>Wo7f#SP!yWGp{o1e&7Y8rCMVfz1$(@!XmRK{$aQvz78`(oH8s{EOrMmWn>*K9{b$oZxETXk#?=k&60o{>AU}Et~`
C^c;Z6qq#K<L9o)un&2^JtziW<N$qpii+s&<nO&$9Zuj%N$GvMk(SM~33yUSG3Igf3w8)fl9NydYc--c<&R%iHARPrQkl5vh{M
)GVHrRG!!tF&6#Vo#xGN<C;RVT|XvQ^@vY*K53i`yn-$HB70av&1%{GUAb#S%e5R|BY_=K<9gHA*zq{MxLM1Tpf7A2%pl-0t+>
V$VTqq0}@a#?y#{y*rM)<sO^})T^Qr%lil`S0kYbpXyqw7ZH8L$8-#Y?u{LolEQ~#BMR|K{YtAy<>So?*&X6tk>GnFa6BS)xSO
B3oQ*f)ID^oZnYp+BNM6On<mk)K`z-QM+Oos-y+>2`onP!qQyY`GqJu&I9z4r}{)j_Q9CI*kvet)gk&2B61Bw+}sR5w0Rsox$|
+FGT-mvr;?TK2jgkxw#>v<xowaXV>&dpCde$qOBvioqXW-0iR)iem)V`<=t;zZ+_Okk1{eoy~{<i>&i9v*v{|_E3Yf(!KwSD{|
&=qOv6%jl?V5=ZY{-QBVRUGeP#OFyB|=6^EHD`dcA(^eKc}yJ2$DmF{|_u9xoM{JTlpfy8Q{zOlM}aeM&p`strsq_iZNUX<>J*
sh^cj~I(B6kZd70zOJuwZ4Ftpr3+XKx{-V74=PRV07wJ8OOFXI=g%1^>X$W)Bc+YCBMcAMOA<ab`zzMIxxFBtK$-Z=n>SoYTZ!
%1hqHiLVD&LVk)Pz<EfF(`*02Q;$EFPoJ|DpG)wiAbmm8<q{vjGCiFHTg?@uarm6mgzVcSMXYR*y>2&>_ZJ^6HB+_ik<-OQTZy
cbGj*0yw)6_87Z?g4=m}M5ydd^4sV){;o`yr9tmgjnP#Q<uo#C1%q2*PYWFx()GpA!T$J|4`kf=1M=Qq`5;aNzdvsTgJZzKqnj
xE=;^qml8nk6<a+4|%F(N`O_CY?Q?Z9ek1_nPmbs5<m?e%aKz8y`lA^;WCK{g6GRcM~v&}UywYRm~b`}m|1*1VIRrxAYG2woNr
BaYSi+uU(=s+4tHiJPuX@wi<fD~6Gz*hXPzb5MeoJ(kuj@A0*yUK7?oj$B`C=R(Qujl%2+O_>y-A8Bx;3Gi^;pwK5HPkT_n3e$
C*#}#k~?4w&i^9UXZa{*GAu-ODvhM(DF^ApTafOA@D41Z_WEhuzA&n?E_87Q5!M!ejGY9_{sQCo4cBLA*W<RqJJ*8a^&5e%{lM
Y4gEB-dgX^@4w957$sUYwEoDR1Y6HI=KS*t)+}c?hW5gzr&F`~gWKw*KOW=05sF0H|9IJ)6vif+m{Zu%D3~>;q4X6g~$`pe6iZ
&;^U)JwJ@jSzu_@TGsFKL>iK@9w^v<;990DRkCx}aN3=x-e%rx!psrFB<#$r<h;%YLY%%p7&ygmD_5JNgLe;9fKKR}{BQAgeS3
ZFUbCeBdTp_6DK)uhh6>cfb|P2qov(Rg)Z7q;W^3t^cc}Lv#ZM@}5<R-bqN9GS*|iUo^$Zm52@4qLxmH%*JS(hknkG!AFz0N!6
?>iFMb^aFwu=j(0w=Rwh(;+2?H)u^r~b+l+PswR*AZ)$vv+usocT_;=5Cm3k8G)F07EgH*Q~03Z@pav{mmc*N%dkNq?alI)^wu
#At0Gt8PZH}-Bh`-L*PpZ?AX(abvOc!IwT?iKGCZ#fh<3=iI7;e$rfEgO_ZA0S?di;{@7pX)j26i4M1qd6h1Dqe`SbN=E4k!#E
XqBTXzZ)k@n-~PMH5w7?04l*uZc3=6O0cnJm-^;6$NzfzQtP|hb61QGx4`6PiTZZPWu}&-Bt{{#Os60m<{m3GicD>RinwTCJ%e
>+8Eh{2#rl#QNWLV$G2#O);FCS>V@>;?S=dj<&XJ~cVn;^AA@-N=82@mEot|VPi-&pJq2fBTwqW+C=_hp0t&7iSt7`{mT8f>bu
vOYgb7|V_<YFz%d#Ig&aj#f$f-(YNY&bVZY_*k~<f2fXvmMJ9}TG}-{$kJI=NR@cTb&8b7+f7z7V3N!RVLfO9Q{5(_tYkU#FeZ
TTi+<;o!dlHr`o!%avGl<=8PUD97aWgG<+mB)u;=W&7Bx^I!}ka5IQAW-GO|`^xdh1{v;h}`{wFKwHttB)y`N`T*Uin`UcWuDa
c(?r<%!_o2E{{W;#t^sMQfn1T`UMXXr1h-Qj#;JmQfz^;{Zpa7OUNO^OHyv&V6f;EK0ibswStYMWk*tIa1>qn+dqx>C5B#%YRt
smKyM@RR`$qQg3_tc5d9zFXyo!XKlx?wET-(dB+*Q^Zov-JI23#;Cr302a}SLN@Y(}+AnOHcJr(b`kCiz7QZgvURHSBrnM+Vtp
6}DE<n1!I*0c>xgOwih0I#A#?6CgtSzdN268p%1StN9KH(>hn6f^3^##2S=r|iG_0uvj1-JG`^H<Qa3;ZLTY1lF1oO8#iQdsy$
Sqw2QI>Xh@@yw5wP!iGugdHqjGrb_Pm2t^`bV3^fub~FKWmP4mna1E6(hF}@VgpRGSJ@JyHcca+ZkhWzJhh`xJUA}gTno;=Ppi
xM@k)}BSvWKigJ$~RlR;7i%rGn6h-o-it$#=Rz~!Jn*)unhZL!skY9tJ`e|L$8$o$_2z~RB_&foQUyblZe<y}N`Z2-%1?M)<=8
m2b#Ry9PQ`E)|t{VpW{-nQKJ1JLOvy4}^MJ6aT*v@Wsz^0{xI)bEK+%laSJrUnzGTN_WEwhVONXJB3g^3KEtOH~ODf6evC`8c?
lOUYHqfZr&Y=a?xhYoQuOK+io*FIwww@fB&TwggX4o0EsOnVA;*44H|N+s`rDt7@6xONRy%`vp)5yeyq=rQPO5i+jWC2k3Y8|F
p_BlN0F!u%coE8*(OgXAfG0C8Rdnk<H9c$8N*nAPeJ!xWw5e;|GIo_KEAQPj8<R9{P15K1bF2n^pt+#GV=p9){;RiQ135_G|Z0
Pme2j_Nx9Fm)aQCStnsI(Lbp9+^-l;Id0q#7a~1a@=i1`(3x#jn}&h4ar|3^ItE!olL^s4=#6gkEAc2_3_~nDdsXO~69R$Sk30
`}0p3s`w(l=_$@ZgMNjYP{!gX!kmNT30*VwFLFJ~L=%gNUeTu3?<$ak`@?`r@16Jfq`TwtoFS`EM5x@VU`>Hi@_o#nL<Ss-m%3
f0&|__cAm?DJ6V7iWCw%27xkGo-(KALl<hC|NtXM|TdbsW?;@ac40cUq(MGKFSpW*vIy~3EP@K;^=?|eW;C5iMrIVYr<~(7jg6
gch5tp{Xa7V5OZiTqV8rWU5Po4+?42A-jjc1zi<r<lN*f56wb5$)%ueAQ=1Bt<B1Ov&mR+8T27pD9nNZ%msuagXQ-_++#0DGke
KXdz8QK%+syfS*P%tFyLBH2l88rDmPB%Xc@2eGamy{sIwOWR2s9o;fvv&qmT4torzFsAlRRT|xT`b)rB%(0QeXX~U&QVqU4xcd
)nHgWL&tlT(ymg^pvqdBU|ZRZ{lN{jt;Y<#NCyRZ3?e3wu_83=CKic~V`D@FVEcG#S9Z|%E)Y|B*!uVQ!ls)yb&y*OHkdgYpHg
=Zf8Za<TwQBlTbQ&`XPF`U_-`I5y8)j#kC{Lp3%<7BEjE+7OjY?lceIbJCig?wNOBM3Q03z2k?gjo2OnShaq|AagT<#H7V3ysA
>FwKiKf{a-DGBDG_aYsBw~$Bmy_2-x{UXUBJiX$?)X@Yx2vm%Wi=M`GejBb@(LDRSQs3{4%dX4Pbpl=4v{K-Uo7V1JeHK3+8D4
^#eO!S<|w@CBMmpe;(yWR-CL4Lkk1x}^0=2rFV2kHPh4nvat<nBexz>Nu>AM2DA`+dT3~MmGf|1&SplKe)*8-JVvq<sO46`##7
y;626&X0Hf+myq%*U+nD3PA-le>t+Ro^JXVsJeg>};4K0L>|(O*SZs4_#Xx8CWy+~ReAn<n=Z&^K-E;eJb;0vk32JPBQ-xSgEc
5BYQMf8=SrY&n$zZ*6X+&%HJ=U}VRt_M9onRw|tVUYrWpc6DQd7;*W&jlwtuuz<QehnOFPcEU*syjla4J0)SjqI@^&oK}1i<_$
w@M<X3%=9KfsAbd#Jo}_h#Tj~4r;%xZ>2?n?=l48Q#azG&8$sm5;%|?xzxWF~<J-h!b^B;@?rG!NA+MWaX(!oKV6Zt=i<+0Kb9
hUQ&*FyMmYm2_XeP1*`$@jgON9_Qu$8`Jf{iJ%Ue7&_;b3gKrK_eg-X{{qQ1|=6THZQzC^y9@0iHqZ=@9STpSRzl692mr&&nF6
^s>uLo7Go=K@Y}jt%4XzlF+C)N?MpDXd#hB(YI}tOh;8c__5|seRYr>(5U%oNJP{t6pg$;g9%`RKI5hDcb-8t-(xrq+^Z@>Q*_
q-0gS61^qm%G&bd(Wwiv5;MmU$w|k{)2>mN7J^H(<FH<7iuu6oG4O<~Q-?<cz%WvKQ+n^vA`W-PhM_qSQyrAO^qM(eY62rZj!e
o{(5D%mbTYiA3bCl0^H{rFi9qw4z&Qo7&^7%H{pli}I#CjaJYyU>+Bcv+%G!SEA~q`i)n)l3_cU7@B1}k`+eAXy9FzqMsTIR0K
tBj}3`C{$!8<(<HJL$~|WnP2y6S=_iIwE;e++=Bb-ZW+_3mig<KhPSWe!xvWF%MskmT2-E)`rF^2v+Y!Aa$5o{<v6W2O{}@eOs
7olHis7)%B|1ei?+0`(#+*Fh5pAg}_$pibiTaR-AanQN!|Lrn4g4UvjQKw((Z(T|%>dZ|)t=54F*=;Vdo^yBNNS8|s*Jb31&Oz
_TudY0E-sxT%Mon{few<nS;IR(rY75I-!~Y+eN8}aK&;OAhEa&xQM?i{LbhmWmwmYXCjv>g4v&vZ`}H<aw@GQ9HIrck2f@KH@1
~pcKVnIbuDw!4!V+WfA<U_=TeV&1r5BMo^a=u<3a<x1PeyXuKG#)+jMU#4G(HD9H*3a1-7a%#WCJ76Pqv3`vk2e%luQ0~CtE(I
vc|HKqHeqE9ZCV^%5$~LJUQbf-IZ<*78a?@116F2G2I65ITMhyk7kzS-JfE4rC-wnCkrt<=5y?KlvZ@1ffH8p#%8;SP(33M-?*
!}K{!5}nAKAEFY~thwVB+vfHdmc<E><OxSX90C2F|9%vO=RU;6WMCVb#>^gC&cgSX##<5od$$_|F)xp?SW<0%^JCS~sbJ=XXgV
Vq$#^npSC0U>MLDzzTWBm|W?(kFziJ^K8*g0ah2b75Nj`0q{MAJ}<BZQb4BqqUaZptWJ4n#>{JUS(?5%y}mhet%4aNcI!8M+37
((cpj*D(WVxeVm-0GZ!E+f9)0$cAWb+y<3)wlTMjPBanleoJ$u!r6ok@+@#sh)-iWRYV@N!<pspK@1G1^jQ?qJU&V+;wfnQ)e=
^PmG~R5SG4t6@6T6KMsfz!iLz37XV>P~TaYt=b9s8&UbBd6B0~Yd5@ue9@vO>!|hXIqoXxc9kM~hO0nYPBNxVl-v42$K0#i&;_
L)dQcs)uPeA^>VJ*jQ%RWU<eh#;8s^xi%PtjDd{4nl%av*+u_6n8K2-^$X`+shp9WW1gbZAE=B`mAf5>xc63tGUuK=UXByf)kR
7y-X>oR+K@KB#2;532&)MLV&~al?wzx~tZx~_>-?}&>$oHJyx<G2!u;)wSB`>jRF=BWH1onHojLvRZzONBVN_5U4{Oc#U&I_M?
`u3GD6ix;a*ayb6dRk#Xum_SKR4cdcdi}%)7vmM3IRfoJF8`+M6+}hZhR8^-jBPoSHDg^a`33b(?bw9m-*dzw`+%!ZpNEG@*Tm
<nu;uFuu^voqi3#l{}cIRUlf&NC-L#oeKBNp3fOJ^(|b#))Rj8L_ed8t&GPYpAkMy=k)yUq-Mh4h=!Y@Yrf0@;r!wBMUWVP~z_
xg$O%uXmk)^0jqeKiKe3c@PI0jtiEaJT5Vo2+FObHq7n!JEX0XJnO&e}P*(9-XqbLo6Pvd-c!dQs589x^Tbj@<4aP4qaFW#o_6
=srQc?$daiQlw#vCWI3~;!Hz;t*3Cr_J+8*u9Y~ymNHEs+wHxSh=MV#quMGaV7>uWLv;+aYV@VG-S*C2WuufFaYlc@XxVU0o@C
fj_bjzyxdXfh^w85KpHUec)v!zql>~S>>G$Iyq_K?S9LT?_v7;vVdD9`!1n5U@NHe|k2K9_0q}+05rP{)5ZgwbRAOl+shJ#NXG
_Jqk90_I)4ZM?`*BPatmD7i?Loo{8gD*Jzy?AM#DfJY!4YLuB29I%)^ji!Q0^nVb7352^V{5r8B@0w&CXw^;QyzW`X!D>Yu+7-
lU1pCX>w<yqCYhUm!=OL@MnaVOBHl);I(xXL%yGT_9b@t?Zq!v`lmK*F4$HebjL6JP=g=@nQ;F~YIFt2RaKF3Dmh!7=R~e<28>
$DJu%w_#g9kHcst-was(R7ysy*7BrVi1NF3~cLU`H3ch99`WKFry+b^T2c_<vO0$dnbZQ?Vu}w?!-Rdi`|g7#~^sc<eLH5fyvZ
@?zJwL@=r09SZ^S@(Lg=kX;|RLHO4YgJ#RgP#ch1n70LLwc%ghx+ouj)y%P4OI7<XcXF3ALcpV!f9sP$L7OymZOvQHHh563Iby
vCU@D`Oz2mVyl1{aYi<}WqZE@dp8Z&3s7Owixh!dg+#8%}HQgIkTqQdy|!Dp>xp>Jzv&%WjnXB+s8YK1eBD$|Sj=0ba6t`_!=(
${CLtLuy#cs5k!dPpy?d9;Et?2$C33=V=USLJlxx`Dxe(sw)=@Et2c(--~d`KBOBt$sloByZ2*qgBh*H$kyXmiXVV<006E_YZa
B;v|4$!`U-&dh-e31K0DQHVHGbKfYMxeItGoS34A;^hy27D{0!IYr@^6+G59uhdl*%%uT$^r$BWAiK084q9V3nSM7UVdGuZA48
h#*-#;Mz!Y>*tKDhN>ex`w>MfPy^?Yt$*Fe*0G9c?Ykh*MOsmj*2RPNLTz@FE7$-s}}d$zY~91_V%F*d7qV=rtPSd~d=T5Pddb
)xgBR7S+la#BT8nTQ%z@CoBid1OBvgbm`o@N+9ezfDB%Z4smJ;f)T-0CZ8!EKOvEN5c%DT2F5Xn2(^Fqe0eQ!DW)x_S=L8QA9w
jphVh|Es};SgG$A_);p=YS=C|yB)M`H;v)D5d){uvfRaz4szBZ9Nj4C!Z<rs!ZnZtWRJ*=>~#jeavB8T)g$u?qy&S-L<<2Ibug
(SqM3=uf-Bc|*1hm5V=<Hl0s&vc9?vFB_2pU1&wO<`f7T}91s4Fko_s!w5|LR%by&@$2_{z5b~++^Yv!5Ehj%~?%<m;|4!H0SB
+)!kRP6+2vW$a;Rq?F@N-!Z$~eYYF459SR00RQ$VjFh@5qK2*4jZ05)b@P)I3IO#UDm(PYN0>W$J9BYiEE%LmM)7qkScWFV62b
h4|2eT3ZvCt(4Ff{tF-@%OkpQ1AjXyVZRb~koy@6yHA_TK(mmrTIcR$0}?DoX;mRLKsCLUvFpB$-S=QIgC|5|m1onFNpuBr}uX
3fVyG0wFBk+A6C{y>(xDYwNz$zI{KO@8`og=l49Hj&@dak4cAS-im+eOWGgg4WB=`N3IN2%YO;At#-|yNy24gZ*z_=n(mS@_bt
*J0?~9ww@RU}Tf1}VxB5YQ`9syelky4?&0NsVQpebFO`q*>It5#m-wsYi881)N9~p_4DK1cclP1DVH5xuFB(qzZD7l>y6D-Uu(
i`B(9{99cEwd)V_K=G=&if?0+`g9ZsG@V}<*v8_OjT-fzyfrVuT=ewtbZeOT2tVv22UKiX*==t^>d`7?$OcQ=P_CEZgcgiS!VG
XFX1NCCU=Iw8Y=EEILf8pC5DSTD2_&IAnGX*F`02Qin@QV!8lc_JlEcvOW!QO*>vFHt^?TK+Ys64Kyp&{rZ2on>1GJ?qk?ITut
img`X#0i;8-88pFKxamGU?#ZzDRc%A|N6Yq9Vhr+coZApS<HyZQyu#2Ws+L1pbP!VyI}^U(??kykXGSvqdGm|+|$DApHV^(6wU
0|tcKtwf!-R1!bGdRA{CW9As2u~=EcunAT&JPT?W<t#R%=_fHGPtd|ZY|9uWbJdKwrd-CVvRX!Ju7L3)P|Kjsl`sZBSjw0eo5!
HGY+$T9x`mPcNh9OMzZi`A8%2y6r#CW?MQTRo)fJ4pn@bsu(^oRw{_TubOwVZd%w;(KR>XMxa|MH4A!Lkwx|-qLqh(~BGBD@|w
lHFkG8nfneaT>KDrOYVLKyww<&1xP{54~7+&sqXv7a$6^k*@)H7Xf<q4kWG<(nABtvQTGYq*Sy%^MhHi+K!H*G>i~Q7|q(tYEy
1=QCbDDr3z1V;iGM{RQJ}{g;fT5*b6iX&K|p8|xUUMBVJ2yT!%Izl2IzW3h>+J|v!hlwXKds&LQ!7(*4Dv-3JpDfM52I2fqNQp
E?qVy=A`s8Ao8^Tc<&fa~h59L9O95n|w3P&G8oS8!WeQ~u7DHP7qms)u&fY>7l&9X?n4EDzFc12*+&%QL^7PSwQ+gczceZ=@yU
Xf5t^A7*luNrm5wY<@zDoe7M}Ct8N<*cB3MUVb_0JGJl1NJHf@w3JALl3~_!+H7q~h82}P(pBXg*xGMjkW6e~6Xf=mg-u_lvww
Z%%GD<nm8HGeXy_gsuO`1Ux{kE!*V7x?ibLNv!)yQju*p$yxLa)loa)}tY^RF3cSIRO=w_=HkbATdyuLPQFqZkLowE#yFT5N?t
CErJwc;dCIph#I-v2a+<FLF{URKEKvDV{W&6~4oJXafb+;X|VRT`El&*x^h#{)strdIIiL!>VvJsE79L0<g+l^vh_6PmR<z4W~
b#Md;B{4$Z9IkRqVu>12SPi*=*&J*HM+aOPUL<25ed;wMcQ)R6Ov}loqkl2<NymnLWA7Ymsr=YOJu4=ED%GJabnlz8qMo-uyQw
}lrNJwGFxeB(rB@C#+<O$^Zv;hk8{l)nM0tWf2S9`6OF#d4nk9WNLUDBSvlkdEE_w`Nh>~y3@nK$)vNzZd2c(}N|+s&-W9NKph
s}mAfBI1;N99SztG9tWTXrDeN7nrPMmi79|uP1sVAFZsJcBhQwvHf|-4$vvGJ1D`0H6PxgweS)B)*9bLc(P*U7E~|$g_I00f|?
he6u1zQh~XcJD+O>lzHC$9jzYL=Vg;veFz$QWZ#wd+d6g5t)%x+b0~NAsVFGw_sQhqw!nis=O=fa^ta*tPN@GpqSB`b1YYQAa3
3KXClIzIn(XH}!XPQ(|DXDW%Cn=}u++3#<cbrZ>p?6=%c%7Vd@}z}#^Lfo{&OJZTWmx_)J?LBEFUOI=nrpS~sCXZK7a*Xv^IV^
_&EW^5o>jScRm63x=!m(((-OWf&ifwMi=zRG<LBNgEE*L`^J-s1=6sz<@t~%Gp*&tG9($)LCs#`ToeZi6jDn=&dwGGzxd_@Yyy
8=_%x1z&c&G6I$2tHv8=Uj4s7BIsz@#w2K}0S$g6Q6SUU%-7J_$dLwn+BL*E3gsGg}s#td@0ZJcuFo6n+k&zfPMPDSmCXd1%p}
3+q8DFqhT=Toq_d94)eYc|KLqrkf?NqHn!@OIXE}ZT)96M7ZO1vtzvt61`o;mTNpx$7rMB9!o$Q!){h*_kVHujTiM-Rn)#WFyf
GEzUnq;TQWz_ljnyXhyG35>if8>rs^27HDBd!>v?nW+ukRB4?ko-gF?2l_@0|K#}E*V&3+oBfjOmJe1ocS==`Su*ytMbz2Pq1+
$Jg!oFiEuP&q5<tP#G_2%`ysO2UI}CKW}zzWT~8ce>|r+`t3a9#8hKy{Gz)Mn)Gwgf|PC+YkeUo#GxdmZq&nM)D;xZgd2AT-`u
7!;_g?(yiw$tQcE2z)aRx2hN}K=Mb`EEIxw2pw|cXjKmh=4p*pVx~AV(T}@Ypa1v6LF1i}O8?QWv<o3@^Yru9B%iB5CIiW@ti2
n2n0GX57TD5p@xVjM@mrS1%AuI99z=-w!>dC)ox;?^!r%^Q={t~!(&pj2EW-TLP1;5YHI=0+eq6$oZK&Nu;@^9<c5{U-)=4YdR
Rj$DJ%4Rt$V*%YSY9*5f)$baH)X*6nc4do4-%+oU5RF|RtTjLt*<}kUiOCXdEJlcF-|pZ(z#NNMlwr{Cs~;MGGga!Ix@e6UoF_
F89#PkLz7LE_YH#`n1J~vgO&XW^fJA|6g4!V51LEy5GEi+Wmuf8%+%=%$E;O`X=c^V#Yqxb^p+6nY4>guwlUn`l5>*5StI0ZF2
M(p$Nwv1v*=J(=&-<P*yTi9g4{Z)4io15}pOXUKijysJ__w=>3^YD(%H3rybeP2T>g32NYG!?@Wkh9zJ8K&!Y*nG}LNvX#N(#3
ho8wrn(y|6Uf4`PkP)i2+_G$t`A-1wKfH{FvFPy5qybrz6MZwZa?J`V9H$W1hMD>>w2+APrVa9<A#KuoGpFK%iLGIB-$yoI~90
T?*Av2?R95C@~XmSL7{?Fqy*H`&;hoWgobKI@_l7X}KXiBoA08FXCIYD=2e_wsra2G%koxeB1Wt6Eob?v$CNsXsz`i%jb1e;o>
cj>1js`WDxW8B7lvt{alMApFpOD$k5(3#Mwg5HT7k?3hz&mB762u<VsOy${Oe64w}D?$#qBEM2KM8Dq6F;JdMS+LSw5AmoSeh9
4pF`+;!Ly1nk=KWNP<0WPUiO|QXUo<PM#k;Ks0kz#hC=SE{gnaz`Ce4T>3vgv4P`Epe+^E)Z<eY=}G(gEca<XIBC0nXyh$FG{>
wZaW56PW}C_C3;FE@tluG#_e<=Z_E8*?+0zrEq=Z)f}LM}XCO8~pfNF>4PKwLTN%+_?w{V{a996zKdVPcymag-GbPBqn5Ys|AB
U-T6J{<de$I;s2Yja>HuV0f^<Go(`Eb`;2k3P`|qso7=|(&6-^{T8Ct4b~&LY?1aFsz_~%gKs1%(b)pa+BX!{YpbB>!ga->em6
0l2X0R--iu?G~=jxik9NNH%?qj11t0s``>LV+DZ%h*a-_~~7lZRyRu1Lt4!z79hdDSLE>A(XBZPpIjn`7Ln&wxN-_UqWN7Ue2N
Pp$d61FEMhY!g^A2NbkTB)E0LEN(G?EhGn{=Xq8XB41ABk_lQjP#W{?gk<Qe^SQI32YZ5i`O9Q;$x^M7-Cl@QcVyLeSnDRq9WI
S@)=fJ&EhHB~X;b{mz`&xehi1DjU++@vxa8zg79yd|zW1x#t?aeiQhDsyD*3;t>e?=i2vT;NREA6>41<5rv@ToV<thQq5UM%q$
g=C&N&7&1Db#<=ZizT`a<#elH1UL!?O_|>`f5_pdImctcu4#=U0NFqsATI-)ciUm4P0AF3fb95B*~(Jzwvi{`hNc;_kToT)j0u
~Bs`)urrd}IZ*!S+lb`#L1F~vycqe`CxJS6uOM(%1%K_NsAt>aC!c5T;eZ+h>PH6}mA58xLFGBwy>PdeArVfssf^8D}pyjnCB$
n8TvNOwH=P9JTwa~k>^E{wOYvL=JuIU@q28S;<U*&Nd+_9<po03Xbpa&g>>fWNKm7+not8E}pw<0R3&Y=C*9Hj}f@9lF$!Kp{8
^}DvLx#M!*kwGVViad|!978KP*W-)ln+I4@u4?USSy6CnI>H6-9(H3=sqp}!F~S~Hi<;DPfL%tg@t77-5Sf=hyLV<cUP4c1b@N
JlX1sFSKY+X^xxwB}44`EPAC;)D@$3a>bLl4&{zK|%s=eIu{El_I;;YTs!uo@BXIoB%@R3Nx-A&qXpALJ?;}~;;uPA-8${Gani
76X{dcMhMu$LN;H*6*?m-@y2gpR<I(14rYQ-37W3SEsh?4n~=-L=^`Y#SZqre`|b{4?al-(x*kIX`#tMvUwKFGa?Yrj9PC4Sx0
7K+o9`@7bHeV4?@?Ev^nIw1c6uHFL-sXC)9h+&Up@M@>JUVfNVq>A}}1P~y2|W$5-gc}T3yF_*iAhT~;^xin?*oMLX$Ihm6GKV
oML74loaW^0S0v=`+WW&(YYT2oITxxBu^@}MU3KOH;hR9IUoYejO^q9dfdDF|L9c4wCsFA$yLeu<zSU$b=M%fyf<@@eW>e)HE2
_M>k-af+W2)l-`z;<-G;UR|DG7Rih;Ng=nNj~%NvA>tZ?k#eg}Q($vjq{%JgXQ~@5YX_D#-cDpIBh?+vae@A(!z5moBI~DfwB@
dHoWd#hzG;fVoL&3ql5)!-SzWXiFl^P>`w{tcO1Uofy63EQf9fI>`^g}0e(1L59Qkx*f!UXEoi^q@Q(xB6t^o7;-w8I}GW7~hP
wEGM`o3KiZmSHq1ieJydzUV5DD}msCS)E5afz17R-WIPF5t+fA0`|!DSAwnhpL@81Uu9>0S+@SWl|(b?cg|<B)E^1Af5o{aFs~
z^W7(9rmw{Xu{TM~4CfIC4Lhec*>fVnTEY9?O!wNqCPAiTDVi~F3Nk$aK>D{@PcGDq9_>^e+LMeNnIbi+o}If2lKso}?A#(fgf
z@1-(G^$9MZ4f<hYzFXYxd^Y^A{J26gg)KeR@go~|(~x|UGv7;cHL8xLTUslu&V*3@w_cZU;Wm7G~{jGPQ`3N()QlisnA8t!R3
>FQKT7w|xq+^ec1Br=Ukg~kuc@Il;s4(Rz~u)3din4d~WMlM~;8ut)|;a^zEyin!Ok2MWjEs0+N^sTn(UmYxbXgkTJk=ow^YJ}
WcSTK7L^t*r;w`lO;F7>StDZJOrYw}o?zQDPLF8j%k(!Jtv>WNs==FZj{EOsVhA0Qs@QZu9{DbA~lbM5;M8Q~DM`1PwBk-5Pk!
Noy*w@9td0N$&CmJ%N+`A4f=daCKia*G$Sw4W5<q^QR)$_OHO>rWm$Ehe!_B{d00t{C@E@Fn+1EE};UPMXw2tjc2DrIySCJYA!
6k@RW(qw1yt>yNzObe^c2?ugB<dE3B1wW2!sQ9Dh-Tc)g3|FX98^$jnlZ;|xALT>%XdF~)_CuismJ`&nHKkyq}YBtd+Tdf2soF
qU;R<JP9DMF6)N(sN-XnPIQyKD{smKNODBQ*=}rE_jPRZb7B_1q+*z<sH%4yqTkOJ!A+&A?WH!%;r{J%KIASR6j{lyuXhoU?O@
FfM9QsdPjMm5CCDFE>uhEg!jMxWCvv``6EIuJx7;7Ly&0VOw4~Y+>4Wq7FK_nzXx%Msv!2y=Xysa4Oyt+$sP52zjisX|QJk_hC
9iqMqrqZ~VUojomRI!O%|5T93p?y-kc8)O8{Zj6Pey50Npp<%f?-0vK1SG7MdOHh73urx%-NA{o{w&V<r^Y0+5|T}wF@xcv2T*
k9p=l#e2FXv^pSxVv*#Ysb!Og_`EA`{inSM?yZeVhn;+V@I_0LmAycQdf;X%F?u+s|med`LwE>+>z9%*4kWYxD-bnhK`E7#*9Q
qU^<LTv#*OVw_)@h)Yn2+wR+N+*FaV-f|Fks>;Y)N_Xg%$id+_#YTa3_4m?<Kg1A-CQ!?Q^b=f|Lo?VO`JA9jdJ5b9XoX`<#o^
W?)W@nJ!cp#2*aK6(ssK(K3ik)Ix2%Il(7R<(1m28Q+Hr1EzIDHu)2RJRaq;LF@)7#|EmtWBtJ^Jx6H;jel66=t~s6?0kBPmK_
qWiHYMz!`9W+eKkB--(p>wovTTfmC${U<K7<}7>}_-)hjZ6@fCX&u_Kl;8Z#_)NMd`D=g1@ME{;R2T04<JZ>rsG`F+6*o63@x9
{X?|F+&-b-YKwX7^Bl!(dE19IGvo%bI?@TOyrk<p)*5$oj%ehmHaG2L`Gy%)02&I|?|vPVB_l1~C_M_KmC$2WWlo}nm(q)^^X!
D|o;8<E0Fcz5*7!$ByCp5Kw;od1^I5ap}SQVtpn7k~{NqF$jt9>2js&*&d+gKm<otSwwYwK<I)oTVT<i01z&c3=F>y2-pvQtM}
<X-R767uw7ov9S`@#CquZMU6dKKTiQ8Q}7qxNTjXAd^XGT^zR#I(kkkEpW_`rHzoJB(~7T6Q0IZ+U3EWC`q%!gZ%t+la|}^Grr
dUetaX3#sZv)N-1AV%d@qr$F@2oi6PrVo8Bn-cY|f^qvr-x=J8&c1{@&T#@VVv^QmGDJ9cS;ID-Prq<CAFU0hQjzkxRSNT$n#j
U2ex*H9*eYK3_e^v#ADkHpLtb(>8nQ%A(CR<<mdl=yvApINo1ip2JyZgEIPq%=aSXC2X5f$|X)-oq1R_&EdG%O_eFd*PaiP$G}
QoANS<Wx8!h-m{RYGA}5el18J7>m>21tizSY8wi#X{7}{$#sa#eSUxpJ0Lc;*7C9gfQes=(k3kk#MSj$p6TBY52OhH+3i?rQf6
K+kW%B=8e*b>YZS*6FoW~1~YQkB1=2-=m<_)eEa!U$|-bkHx0OEYkjf>VC_>+T%pjKd`0b2O|IT-)g|7_n`|rE=9pqOw&p^Kit
dyH}~r(sOr`f2ZGFB+;`2DovXfCP$^&_SfivJz-wZeit-08ZZQ{KHEl1&>Zags}o$6bx^*eLrU9C8xI+L?O(eNxNdZXP2B^7QS
=T0BEa&ws@|}IRnv+nUJy1ye-5UNOJ94gfofLf2U&p5%a071soH`?(s@Nbx9uLyW>Jk973#a*?p)>mpm1B3yESnD&A%}mA)wv{
9{GPIITXPg=?gS960f;kGPtShi`|qXmYExBgm7bbKHl@(@9c6HZXS=;R!fOLn)RY}l&i0j{Pss}E{^}(a9e<CmKhQrT?M$!Fa%
-(6-TY_ppHR3uTT+#;$FLLiK?5z5CpWvkI~Ust)grIZud)A`u=*=+(8m_-KWX7>GTK{M<r?uW9d}OhD$bfuDlt%#<S|2eAzoR9
hv$`dDp3(i};_m&&itp-g}hV((kOFdsmR`oa}fnC$DEW0Z#qOLz-&l@0jgGN`Lykp9I?P?n%D|Z|>!mIRI&y%HHd`>I1H4H0^a
IeA3jDdS~<TJH)_kfjj)8nS<tqPiucf`xlbiFDWp$-q~9M=|zL>=^e`e4e#;?!s*(wu@L%m7o?a=5*8~84Hw=jiM<Og`D8ZAl9
PkbjmvdU<`xBySuw7Wuw9|KDDdXISmjpX$WfbVfg<!^_Ct>A9zK2Af9J4dw&wfq1}6xrKIrh@VhZF}p4>ItIJkvAAU+Icv}<y5
>@2_BnZW!zRRu~MC)0=(T$CD?*JdC7p5C3#QB#655(MaW7y`VQ|IxI@QvpXz;mxsUMZ|f|x^@%ozU=DJU~l-W!o@#R)lgUVGO?
wM3zY7H8YWwEU;kIAZ}SA8vPo>K{<`R-z}70f-vMoKGk(NT|B}0%R!8j@ImYznu{npr{Czs>6TN{IJxWlWIe#W{l*Tb~*P^+pQ
jMHf%f}CqPbc6lDs{x6GG%vPQcBZyk!sDxYd;H|<E;|)1Hp-{^82JkqjBVBWj&a*Pir5nPXMMo%woYhzDWkUs_h!T74!gJ6DCh
kLfu~%N-%pKhABT!8c<6?+<eN4ME7e*Bigls4wfH|9v6}}P!S>n_dEl0Y5z$2oV;3-SNC1Q)s}*#QUW3jedPAAjjrP#(65(PmC
0t2U6|!<klT!rm7onjaIMFk*w~76z!26H)IbiDncDFS$<X(ScQOT888$n3tg4NZ5AZJu^736^5ztq+f!~sClqPXu!X?yerh)yS
cfi)6{*LaK$!%^=M|>eBH_Bc0sRKlP-x;GLef4pG_w6O!O{>!IX&~F+a+i*X0;<&ku2y`pv$It5vOGrS%vopI8}#A>oWsP5P18
Vu@>6-?$vi&}$hpseLpky`JWjs0&ct_V3$e)$NVToPkRzQ-J|vj$n-pH&9fCuX37H8w3n#9z;bG`3noEbPaLW%0nKX-g8tz{gj
>ze-#!;;by8WYuif+eI0Wu1}(<Vqn#s9gJVvRa9YSciM9-1(0B4~(_Q!yd59P}xvL!-W$#rl-tQE9u{(#t(yBp2-{OW;c7dORg
)e>AZmoJH;wo4@Q2e=%WP%RU+FJ1=n14J;SxDhnU8DVpt{NGw&UltXiuQ0l$hnZ}OBG|)*y=xd3>zO!}iOMeCG@?HEM!8=Jv4z
A)Iuy7+bOl|$EE)%<2Wnk#0;2LWV0dKcm4ztLnu=q-24te1XBkbB|y5V}ATnj8~UK$jGaPohHUSniSbkb=jACnLW=~COOHPxkP
Bi(J#5O~WZd^E+SA?~WX3KDToI}TMLaL+ZkutC%7GXl^(jS7)et!$JY=vXD*Fj7ls=ea8tN%@aK@m+T_;nE+cUEdR2OJv#)Vo~
*}Pu=&neL?N2>{c0Umv|@Oq1{%O1bmbJj(a1%SWD&|`=KP(im}+MX<%iwB?2Gs>f`~uA1tQW6ygL{4+)6Vq)b{DMxN9McGA+<r
Vw2I4JYq(@8QJoFBkyiK{HdR;ea&%J_L8|jvYD#1XJ6U7cBJYLX|#(AZE)!+DzX816asxnuqg(`j1@mGl9h%WqpM5dzn&}5_TF
AHW5mv&3j^Z{tO*gHdSn6i%-nmtk!=cv`I%=f10Ta>q-27G!C4dq;-#h1*Gfs?9IXJ3VNn5=Kz4-8n6V-;FSQvrzIi!Aoj+)ic
-{E4wu})sQ2l46)u#E&5$;P%bAc+fs1J)Cj<!toW1I$X=}r1byv~nK%}!#>eCi-um){A<`3+Q(6n-k=v#f=vfXMO6fnm0eontD
#bio_Sc};z71dT>(o2*}NVYX<AQzUiCqcTfi~c?^-foS(!K!Jl5z1kH<GZ@G1kXk|7QV~6=bZbzPS5=Cg9&m_CS--QLb=MZw+Z
RfwGO#w6&Ef4jV+y)H+Xq}+aFE6LTV9&T-)qqqJn91msGghDF+By4hK3-KhtPxck1q%)B1^|i7B+{cU@bx4Q9L%cr@?}tqh)tR
sZtulXb7}(p7)%Cf<N*8QJ@48QR$l24{8+Bgt9ESX`-N*w(|0PkS2}Z=J4XY~KPi-fZGC{Eb@~m`lxQ*l%QncYMQm3lTA9PSrC
w3r&pnZ+A1|ks5|=)kemLziei_;orn){9+fQpux%L{n^O)>ZKwE`ePwuyrq@V_R80cV@r21j(%@t9N1dVxVo{N@xHB*@pf(v<6
z+?M(E$ad_gQ#GPb*QjD5~;7~g-VU{q8fjQ1vM8UGmPGcxu`7z|Y%<Mlox1N=<Qkh%E`gll0WmO_j#W4>mzU9~gP-c>Uevnv^n
kut{Wn-z?SV|9$u{7lA2r*w=zo+FHpr>$ZH6$oR5XirJYA+~ER$Vxc2>`W-~5w(ds{x~;mA5iUE-7n!GEw7SMk8(2)^V|h9XQm
tuoWHSZJ&6k%FOGX{`H_SIQ7bB<)zhvUck>kV-jJPB>byVu4aa@bZm!D>^TeW@ZJLTLP$gJEa~BLeGq2t6sTer)`EIuUxQupe;
@<;Y)bZrtUL^BDrnG0;KB-OyN_qVG$~@f6GL^c%^V&HR^6jrfA*n3|Rt;5cj-zi^i#mHPaa8(wUYk-Q{`CvWXR1DL=bBDl2yoy
y`<ApFK#FKMY)-fwOmvt>y98um8ePv<4D{Eolsh?}kJ-W0><jK)aNC&<OZ<g@%+EdQ32kV2D~a7Cl>)6#4HJ+WSL*ayBS7;?{S
H7f#Trm@trbV?uaHs|L@jALkycS3JbOXT1Jj5OLH?5cPaHd*+;$Gz_r1FO0B~d&1l^c$lSDaYqD2>&Dv15<zZi5Qhfg+SlW7_M
UD*47RE);RM?;;?j@zm7x^xp1BnM>b<T6<7P2Yhh=-rA^$b(neO_E{7#ELPL8*Mf4018j5DIJg$_c!0^Qj107^67~%6s7|GEYd
YI5T(e6b(wULxi~Ti?<yQ<TbQF4kv5@cBWWeuJ~oW%O$|W<3jSpsO3FRu6v<?@-xYEc5HxQk*#VK}Y)K>8njy2vi{K3!s=onN6
M6NyXR^01k-zFPUn5HlyX_@V)s|G=46K0=S;S;asavi})1ZigoapZ`QXf!qYb}2N=vX8B;DC_=6Qfs>oWO!JUfG8^uCDwej_$P
Tr&K{e$*ctnaU`@ClV>UA%RQkIqvkb_l6<K2{WMUWgKYx#s0yQL2D!7$%3p^A3hiQYpxszuc?64iT_ckVul{Y^OI36HlLIk6yD
)(GBuXpNMPbkV4vkw;ob#@O&A~}vKk;e1&#i5=AIRdTk8@A8e~?RY*XRuAy3AG6EYdPZ5OEg)|BF(5Y4k%9Y;f}A>UA}Xws^(O
D5Mr4a<@hUHtw$Fw$h5^^UhfVg~o(5--`W)^!#>u6e=~iHijPNcb9Rp@o}SwlvWS+y@gj?$F^GQA1V1iMM%!+h%rY&TJ>_ONx6
qEeNIa+UtNT?+lb7%jnnIEbWSxnW3~8fX&GOfDIuPlb(}>aV&L)A%Ih(^CJWO-b%n-cbsO1OKFLnA;_5Qdr(K*F&R7l^;S@?5n
*A5KT6&M9>YI^k#J5f%swU3l${Ty+rR4rsKP2?mSxm(z+Z-Sg{qR~0xBUyRPzBp8Vj6FtY6y*G>ST0!PuNLK9<aH?vfVU!y{M=
Q=o?`&&C9{0X*PSfH%k>DX~<ho`01{iN0!ago58_c`CVE;d;95w&K-HmY+Qw>B_j+f2A(sa*^kMk?MaW-7)P~%cx95^`&LoO+@
N|JB~*-ho)OzZx$!rmm9!rA$Jd1~)MJByy`Tfr7<sx#X}@ux6;$O@66>VHa{d75R%jg)IdbM#l*mY$N0c6FFO3@y>(R2=WScwt
sd#4Ttq^qJGjn~@FDmLt@R2eLMRKFF%}wEbGI$O_?CfDj@Z%@?J!1!e%i<?XDIdyTdC}m*U3QTJQoOS9dor+Of2VkJ{^5$_UrK
l_lK*TW%O(w+MS{YHHC3NJt<IZd{tQUQwQ0y@7iUd3QV@3r&dVgLE*0ht+HwrvFoWx5w~|dyX+=<c+`qv)5#az$0Rq*W;~p4`G
a32~ZT8T0I}e0X50DMcbyw;bZi{Q3PkWQr8+nbs{d!7Vm$ErB8Bj2vAprQCIA4M7O%qDfpmfoa&T)@-IekW2dN=;kt&qRZ{m*f
7SSuxZ?Q`3@7Nr^_<-EGmqSMfF3dTyqj`Y&kQWLzvddKzDlZ09FZI5e^dq7Hrj|~^97ye1_a~~wOQu&eIR-@iSaW`amOjf=0tj
5LVPYr|es^X5f2+p9o;D7XuM_#Wcc0E^+-Twmo`GQSL;azi9V!pSFxTK1j=P+U}15ZL2BI;T+%kGZ$N}A-F#vs$#U=3z1v+_b7
IvZ+Bsjv&(J#q}c<+a&9CB7-?Hydk;%>^Guy2gIL7fB>lt<tHMs!oBw^QJ>&ZtC|ZVlxY~{oO(MJCYlD-7-?sOY${osLP7!q%m
LELka!dk38K4VRy=qK^6XH5U*(Rm+YW>a8)kYzfb$0DkI2=vs>qoPJzwU;W%_bljasI3BBB`Ax*cNaO1ooK`y4;Z}MVs8mg-2D
zc|Hwy~{nBYY(=U_C;3klCX}y`!JKm{!U5<#Ll=rKPgt{Aa)3qfIr0>pQ>eJJn768bVj%U;b?5x&L_a9U3DUreaL?0gYl%nY{=
mytr{>0QkzMuHijRUup2m^nuMe$Fu}?S$zM8lyB45ckK9LM^bxiZQ{bf-<ljtl1&bnr^YFvW*ONS$XvI=RP6JSYjhL)H9PKj-1
ccXTB~75Z0r*o)t=OE5*6)G2izcQ%9r<7k_H=ep5RUs4{6*y*PT6(<2%XfF8~U33pt|lE1Lcw@AN)5kH4H`fBQZ1cZW$zNDt%`
9$v%$jGhSgsn2y0vGCsJDovX$_=czKCSR;8!|HI@-N3b&GaKf<RV!Td?}j^{LaU^%;p8iy?xH2+)99K~vB27>nmW2?1@$-D+pA
{J-4W!*9P1q6roOGw-lsT*>_<ak4J>2+BI|`~HKks2cR*l>#!NWBQX#=m)Axy5sbd{PIO<uX0I9W#)SH36C3+Qqhe-IJ1zVp;!
i@)Hlu-+*gYK(4&<80FW)$4xC1tWyt70?Lvvb_@nF^{Z)&XyCG54_S5n`Y?zv@ldjiC%mRFCgR@hz4LJX@WcmK^zvUhQa`DK2p
EN574)f_1;9d1&VY@y^eXhb-+zAME^tr~1%arA}2DitSZ870yHvH7qB;ac@2MbM%efcEMM7bXsWZO#1Fjo@7#D@M?ctx3|_&hX
lx@hRubfCxN@nugNw>WIsNqNOis1*g1QlJFXcLR>#_&1KV1n#XUV!oi&9!*`<yt)+@w=Qj7GYW4?X#?FGe0c7vvwbX#W+k#%WN
psQ4_z&y^<$K(@u_EYa(B}mqNv}!n-D|$lm#b@i~)qy}`^(zLAc~)dT(Au*qlw$3zk&CZ%DS2Jn=6n4{HPMAMa)Xe$0VMshH%M
plBb@B!`&>T^+TX~x6{ZmKsc8+1w@J58&C$c>M%fQCydpbP=0ai?LU>ik0d8oV>lJ)F5P=r+*$#O{8FPS3{)5^j)wlL(#U&}RA
z8K`p7*NPAW%EVDD&k&2R~bC<LUlExwI1Xz7kbqSMF-a_<fnqKxKci&L@>=s-*nb6@_+8TS-cOph@e7qAPAN^U9l`l1Klf?4X_
!zqju!Hr8<6_NLyaB4viGZwhP1US(>_(v>Lj<I9vxza}|bCCN1{RYj`68RK=7)I-sg5o^~~(65ex_o|x`yZH89O}=giuO-l-i8
t2_65*Yi<X5Zg)dK2zGZL@5@{wnbI=b25#d=P17dVY>2k`_b9S@Pp#lxX_Z70{d{jq$EaExuz!Qlt&cr^KI+hxl<5ikp$YHKAH
&71hf?9dD^@E`VcwKcd=gjWzGT{g_YmZ(W002YsJA&ho*lOuMBn|Ot`FTHD6amBH*Gm09T{g1=<sz{~e$c$;7!ktih_Olf$)Vk
?Onng-skFs21SBK0wnpku@@INX%01wgS$j&ICyGhqu1Q_aF5l?YAevl~Yzcv(7{lg1o*83f?s+=6M%5Lp(4RzC@?PbwQ3~Z6|C
&V?P+xC@Ig0H@`8ca&(@Gc?i>xJv$iEY{ErL)pIUmjjR<*Ytf3qBz>KuB`wLi|Lfrx7X{{wj7Jx$MtwOt{`Lcgh`H_;}Tx7#-z
mR{2YY(^GSjxN(h!5;R1aoh%V*2v6$t4RhYD<7@NCd__LajY=)ro^jJEn@3uw5(jgQ?p)ZO3fh^iOutLJ1V~vg!?JMavrzs0Ey
FLND3WN^7p@$G9i*1%2kUbt;w)4IE+pJ74e&G%)SU4`XKf*QPfq`@kx=tr&mMHQL3NrKO8*ht9y8A;mHZ?zlnc^$I30;LfNFmZ
C%vR)4=*4{=2DBqYJD6t+q0<8*2Cm4UW1ax06`FmKt=Bg6Xc)xUb#7`hY4G2osd>BXto=3?fla~x!c`Z&)I)!$}ex?>bB-s6Sv
zBgeC$kg+`S#VC*&w!X)64>7;-9EuSq58CL&wR6i$sGD9mC2N&EZl9SBlnpd{e0$k3by@NQOzS0pEr_3kCpHNc!f_=V7ZiA|kS
q9h_b*!YN)<U0yss|-qH{KPEe3Y?yfZSB-ey0vP@Z9k>i<^|iFW64VAI;y!+jHn_U%M+fN$jtGPQp_OA3QxY@SRpY+U$B#VCK?
C+{0L>BhaIOrxn5~!)(xN$gN00c*`}o2FHBtCb5j(5<8Tmm1myZIJgIB5@P6%ByE3$U1=A@@==SEkRd7!eLBKE<?GXX`ExZvg+
2!yoyV)fz_dBqrBXgmkmL;qF3dB4x8BmRB)yKx7<2=<cI8oEk!Wj^bQ)GAf@bQI;p>KF^jqC=jdspgYi-xh*>A}pRTI5D?rIa<
FLOI^{_z@PQ2G`5j3N2DL{vVqm+QJ9Gflfb-IH^}6LUS^zEx&QrP%)NE$3)F+*W+!=C-#(oi{OidvP|CZc8Co+G=G(W0q_qS}?
osAd%S?qHfSybXFGltZ(*{gmK#2ZI5?wvf#YQPe1XG*!IM}O&JT>`A=XIdZz1K#K(^L<ZIv{Jo{o_b&4`ev^2)~qhsNZWSPttG
Bk$sqW+t!Uaqv;e*jcV13rtshM#G(>&Q0gE*tr}=gl>_Q>GC?R+CLqmwNpYaXaE~#bgDI^A=^-Sl>kcWDu(Eg>Bs>w(+~aj{LY
y2xo&NntjifZYn#l&v=o9$Zehu(vjQ#;_UIv1MHtN5ocP7<!4&e=e{(<(w2Ab6fn#8qfNrwM8p-%RR{aZbNPe9ALoBF)j*hkl-
zLs>*$V_bQgOp0Wx2r)MsJ0&5fqtFQeL1sn^p-fC&1+*39V}8dNk$9V^NMTj>KhOtm|Mt(J+MD*Mp0bNk7P)$Ir7;n=Vl!q!Hj
o$c>ZV&QGd%C(2N31yT~k%4WdxkPIf)q(!MHT6Hu7b)xEWnL=`))7ctK;8=(ueuvOKYL|7aq2lEdQ52#3mj5&#~5k5CbL$grAX
9Ba%250<Zw5=UTE^P8dB3qrV_bUAXU8U71x&8BT}apb#UbAC`7F$hmM4%8O09c&E@SU3YBfxLIA54B_@t}!M(1oOAxE(fr*}D0
3QybmKeLil=3mrhINvfMIOUnE6J?oWbn6PRkv1<T>c(AS=$xpU*2Z@5x$YZOMF!_lr9e8VppliDOO|tKPltUDnxu9an>q^Y$Hu
S7;TBQCV@$9W<{hf&44W2HT65~C@SDLt~Q*TTLtINQ`(j+p~I6mm%m8~`5)!+y-l3eYcwABP<MyT=!eDex4@uFN0fVpYCPBsWy
0JlNdV#H21A)iTqqbo1y|gy4mBzzafs=e=J3|5eSKG9vYRv%NM)~(oDC{=le;VWoTR4Lq|n}+?LoL62?^gWX4~E|*QX8Z408`{
gN@e9jHG9O2?Zu>UwwrPxvqjESe&bB5tSp?^#AQMdR^g+)u7lPQD4Wgq8`0%JB1awO##-|xKx=NX)u&Y2Rt1H&~Og!n;3-u3M<
|;i96B%W<##s5YANVVS~YA;YZN{Q%PU)mDLMz3bor<YVj5d)W9X7ofmAsaAcRk=zfhQF(#M$rCsZCTeVz69UGfH%_~@H(@JGzu
8i4_5J59mP2R3(rw<;zdHWf>tuP_KH?NDto0_!}x5x^|3}ackQ>Iseq?li?+*zs94cg&ov*t^GgLk9APgFQnDtWH~8wQP14_W=
Z``}J*o;@~J+N_ckjLu9d^-B?+-0cY14FtTjJn)40b9O-J{Or}xk<j_xp;dnCX^&3CH%9qMZjN?fc+w@m!%vh*RH(up$3?2iYy
n8-q$j2_E$*0cM3MvjWdl1eEm%+41okTKR@}Wn8}570sf#;C9D1X(dblK0-&Wx2oE;wZ)9GW}^h@>5tpqBWk*DdZ7ym(j;Rl%m
qeM2L(M$4sA~7%A?>4ROWi|e{s>P7`yU>|dgi>JG{YDyi);vR*@8{DT!8wWGR`CK!aEF&{P|==r2oC2ay@rC#$}%S$z)_sEBk*
&2wP8wD0oivN>Tg&hkgVt>!1&7#TvZC_AJ6*2=95hGe?>1yS)PR`x^Z`~D>48@W&az{H!^Qky}EVIIIdje>S?*UoZ@P0#jJiIr
WOrViDi}RW+ZBiHO4GMR+_A#d)Ss+*0X}%6jxP{ruPn($YAueI(Dd$>NcnpfoMD;$(D>xhy(s#fvR|;>4uH2Ji8<VL_I-10aQX
K%<M&4>Woqo708&JRqnO)#v42tJsJ%tBL#rL_bT19S5q-&?1C3<Ga;^~4s`)_jW^UU&Z!|t!@0#Xh7xpqif0e`0_~e(AyZ3}I@
09*5U}-6xgqRP;$Qr1x2<=xwo>UtR%-{g(<y_H(Y*_Q<!VTkn<uUzKWzEC?j<`Sy()+Ys#$IzTVp?ZGClHO>A?T3$tN?@h&PX=
Z{T2C?RFppUU*FMn>#IV_6F%SQ-~}r=F24H$dELu%=V)DySGlE9rpIJkAbuBs?1Az8k}D0`~c+T`QiZX=Jg!(CNt_tyX&^F7w0
l405(-Ek{Zt%ss%-!29>y<_{Qj+4?bWHA6YwzXiBb!?$fikW?!jszZ#SZoWq;_Dj$ok2Td-`O<VL*WR`gCe*!~NuN{*)m>LwU<
M+5HYmosi-B^&Il5}mQOsqwLEk4o4%j6YH)WEKD?sXC*Q;kAWrHN$PCVGRGkq+82?x|Oat80z}Qm}y7=Vw2QMa9e2v_rBFfWOz
)*NbJZJe0~r(2TX1@<V!4hcT-+X5Ix`oTFMZ(g?mz+CyF2pIf;zK3b-^Z%BX}*8t+*I!=qfacp^v6|n2JPh|cE6!*9*2kR_rP2
obnOI~IjBaVe?vPAEEw`pRy>Pdi2o|{KOI}4TBY456)dhXc4P+aDAO3+uNL+AmKJ+^d5Okuiou1D_4>du!}RM$3%>;WEC^bm+j
You&wcg@dkA*}bn@_5fmzt`cXV13V0Cjrf{b}t8FA38(Yzz9NhY&mI+3Fp&Ee(J)jyd`~+6v)c?vv`q#A}6c18(P+$2_HQP2gD
WXxl2e*X{vGWpVcM&O-t^9$Gq<4Ng8$FxiA1Wz^Po>S)&`}(_=l32l)7B7%X!y1f{O#bV_qI;(estf5ObK?ZI3(zP|xj-ES-e>
VjHt=a=cJN&XwNfw}-BHs$LtG!EAKuLYKvP|{u_@!ombsu*%r*W<X|NB~_HhS`?Vx-D~)w*6SD(##`E4b@Y8C9;aRPTt3|ljhI
x)MlE(wkPif(g)c#IWi1>)miG|!7Ugj4h_5dTG>|ncA)7Q8Vp`_*<%Xd(_RR?32pH(Lp-k4iGcM{<*C~jVC+iDlI@VW_`TSk7@
o{=^{e1(iH>y89OF~lS!;C0G16`OAB9q%NX0yrHnvme!ZwJ${~K@$$Akkvv^kNV`lFf$cGB3M{7~=VJ~&P;prGciPKvw)D49x&
C*2w`5AO8eY;a+*R9(%A#B(mEX`ic#6H_)J{emtk&2HwmA!|A(imzq6cjoN#cwz&1Po?A(5l{sXP+LBiBJWMsjo|fukx~Eej#T
lnH_1&+Wz8Pub^%x##UIYU==_vajV~+xJlpXygv!yoszojuxqk`1BQ(2k?=+E3q0u)S&m(+YeUq<hN&?*W74Zs=^vwiH)EtdXk
vn#&VEb1=xh?0vzzy~y;#@XSbSIs1t?OvWc$lba@Tr}F2%#CWQ#Lr4|Aoi;HXm$s2Rp(ieI2Ae7Cuaf;X-e%akz)~n?F=AJb)Y
qN}_8|pRC=4dmH7@Jl|1$hWl#tsaa#Yl?uv+jh_@Hwn3zp^fIR#L<D{74+L|cv3?09@fV>zJ*vLAsm|Q4O6ZeBitdS1NkW3`|J
kM6mUBC`6=XdujNHT?mz9~GmNo9!6&vN1!*GX4QstTthyCCltL-Xj;m<uoY%XgMjoa69Ga{^mUO_y>$EvJCm_lU~Ccl1*^r?%t
MO<=C0h*Sxw!p7^gTgfDMsl~nRo2h>Q@K4A*iAqqYxCt0>CSJxU07}Nkb6BjxM`89juozSLDg?Q8k&~&63`7#)eoK;?J9Gr?)x
}V#wDJudNB&JLA5xtEjt|@i)I0@4O8@Y0$3;JKUs)P@C?@}q5!mTx>IPsm&nb&2J_SoS_th?@CjqzyYI&emz#5To+M+xkqn}K^
OE(Ral)OYd~uof%vyJ^Nno+@O~ZZd1M6E=K#GC*{qaZ(8t6#=dD^yQ^e4aon)QWtb#842JR%}R?kV!Sx-GZl<BD#*#$<hE3ex|
x6ET1R*Z`vl?5<Gz3Hi&w;n$9j-aee^{5<QOt<uA+jE{k2sTV6&^-P9DV%7^_{NBstf|1F$1Pi|*I9}#mXL(Z&J1LCEboo$&oh
Z#2=kPG+HsaE?Y>mv%Y|cIVS_YY`$giM~J+p*_wcXuwvEpBII}F@zij|D!4CEW)U}0SZ&6hxBbf4HwtkIA?H>BE;##SN&Bj14~
<sI9E<Wi5AMJQC^Rdg=Pb#$B%XNIeL+D|-;{tFoXzV=Adv=1_khAr58T{6&pa88`lrY8g6k8B@Amzm#%N3PRITQw@PxqW5r^QG
?a)V0ruHOi+?EZ5@xvnBJ_?yXLAy`Bi@GfP(s!NG--Y0Odfk2ky|c4=`qAW*^G?99-^BP@y1BL^#I<8${_>ujm^wX&4ri-}sL$
wT@o!@X#3$XF~rxrB15qK2!$&v$cEPxMwD{mF1Fu?8#6+MeuRIubHs(t%v{PO`fb`HQN0uMZASXPVyeb6`ph(@ii@Biea|U0rj
)aAO2GSi}w{^roxNC+?2x-^cO3lvE3a)EfyKFF)1TR5yW3f1%o;OaWS7Wd=c{AX)+w>cjvN5+XT=gZ5aN#tN&ne*=cjtTT~O8s
rn-oD(;U8ukTR6SKEx=^webjXfDnRXmIKAlV<=bCM+y`pz64Xv3TOA|TDM=JtO)$KbOTT1S#yrYR~-La@CWr%ucl`N>jdP}1-#
IdWj2Cj@JyYB&2HMJn_oWLl<Nj<*iKldrv<wMX8T_Yxf{nIE2_lIK(tlwQ3K_S{YEuioNONyI@1v)if;EakdL_=<auZTmod!j5
zR3^m$EX@xR&ml!Qg1xZ%vhlQz9KW)Pib%E-H`}}INb^pEZv|N%Nba9`YDl@hUx|Ef=dOI%<=!on2BI8b~xjSZfsHK<qaU1Cn8
h^@Bsrm1HrwEqBv0Oipy7p-BE9zcjmD{DHIv}QrRwR;j4h0rsr3p1H$P01x4ItIe{;Imbbo_pvr%7&%hf^ue=Nsd5##FN=)Yt_
(k#~K$H(qTya);NUHX0wY`J{MmEiGxsv8m@rMklIgu*mcy!Q-n)y8*?fffo3H=1JGK=ldqE0!VFucct-2s@&e+Z*-XCw}@U{ae
%U-8g^%4z}aEEW}suOcA3m5vhI=YFqBqWzuV;@y9?#!r0Nb-=ZS%3MBP0?`r;h??hjvGD=V$<swFGgFD0sj`41G@YucDfr;IBV
hT<sGZuaE`0W`)D@}*5qAdVN5op-3yECfS3IfTZkI~omSpi*GiV!pHhhm1&NZFta5-$UQdmu{?|5jHMGur`7{LjCtpWA!mEmnA
n<%1ASG;}0(rEOxjHsvIobQDW(GangZF^3LzMdy7oSB{l7BcFC^OK=YsNijF0Q$=u4Esp5V7#`o##7-D0Lq(??dDvRW8dmUToK
Gid9@Inss$0qGjWxPBj1}Yr^$9Ro4t715(>M+4>ucp1V?^0)<=n08+-I1kVFr^)$s@AxjD*hfW9Ix=O>bmS306{@c+G*><v8nV
8sdEM5f>uH&%m$xgC4hPH^bH9E@Wc*U0ERxxP@5m5R)2Hu3vBh;?@0b(x073L5Drer)tVSiO+B!hV-l{}Um}M1aF~nxN7)3)Xz
<3()K;J>#5czlo!3jrjLXLt%W_l`gK^xdG#d;6CB_gSij#8ADvyoGyYw{*0JC&XZX%~O55niVN@w;||3ag1){=Z>irwGzjK2D9
BsHE)EqpKcU$tgd+9|!bF-?-X%d-VlyY*`K3>Yiyk)pA1gorWQ3N*M>J#1?kQxcl4W3;RFv36mFNt5k5ES}0<0n0skZWDe$Q%5
xs=u{5(urZF>ZPav!`(}lD_g=X~ppZvHhm0K-ty??`k4Ja7Y<!3g-~y<5S#oaKF|gvIOlEt80Jn1s+otqkcQC<#m|becl*cA+K
-)DzTw_%t2!WZ_0~c1w@v42YW4dUn0Ag6wLZBn)YZLX^@reqg;(kx{?SFar5IBvL<G4=93Ovy_iRVzp8~h;|j08O-8mC%cDLn0
wRi$@pYYjc9AxQ8fMLsiN)Q9^DUJv?KT<nho1E1{O3j}Pv>Bwv47c1M%-0N_qeIJGDudzf!+86V?dO+Jn+vE1c{}_@9*p!nfbv
rbLC68(&q*yM9A8q&QZYrK=ykvmh=P8?uj*2OW6r7WAj=4ZdV&W{h`~OjN=5I|L>fb)6Rd($;J$38qX;qRyPdzHD+E@jWu&7nY
3W`E@P}C$dNdOU&%p?IfNM@1%QX$FABq$Zg2B=j?!s613Y--z6cde~mT)TYVzW>2<J=gVop8Njk18WS;q2h<P$JJ%UED|w7w8`
a?caa`<`ju`mD`%J__O%Z2|MmLY6RW$<#80OxmnDelHcV+R6$$2vwXX86zW?IFsn*$+>=`@H^vCT560h<gZn>+MsUi4)vaP$Mb
mU7k52Ka|MUjFt_e(|U)2W!TdKAAM#VCbC`#%emXoLXlVP{bK%j&0wV?McLNQF8~nTEUfDC|gkW<N!zl|%9gE}pjYf21$&ull~
{GeK0Q)HG4pQD%678^S%$`o+apZ0K>TtCS7)Q5Ix`gG`+T(OZ2642e*DfUgl!lq;wA#r=5lRwEoJV+>*N1^5gm>t$zudM-=Oo^
2Fie+;BJ3h!rFvrzcS@)`UGGKIYv(p8ozN3Iz=7?m=H=*3D@=oB4BWspaJ1CR}tbh%afc0snQuFsMh{bbg&V_?LI8`(z<+H74-
O<g0hi&GksQ{b9BjuBCw&qY8*JWV#NCp*QzJXozS50fhH8b*tT?*N1aP`BwZo5oiY!YGxWb1#q=uXboFhtd@a!<6FJzbtQ4q6@
@otoUlL!=o2^!>B<@={acWnsf%C;YmSH(8!XA@T15nqeaL=KUKC>DW0B~xsT^d`i^eRBuT;$dRE1A1RKe!OSzC<asx=I&sX|ul
(!Dz{DyGp_8zHBTv7J$rk%f^PkwC<NVJD{jTphLtf6Kx=eCRGHHU*>IWSkHa$aEZogs3)|4Ngg>C9OA_Lv-!>3vTKcdpJfBU<l
F<Dv@h^ZN7;-X*sRb#d)kI*wi&p#~(=FoBn<mfr>w7u*L%kxw7Gto;k{n0@-Rt?ln_sQu+SQCC_o%cUH;2XNhGy_h07thiy5M9
xiAUlrs`aUE$!k9Hp$RaZFh?!(C2S$7$(0-Yd6{CVPEOw!m~a(>NMt%dyoMP8W#kN(~HA@XYXdB^Q}{dD~lisn_VArx%S@dL|s
pB?tnFnr{^JBgBovYK*pz)ow0p>QMqV$Iu$mUdsg0|lGTUJ2+|S#p_Q5MRt*)2SDq<JfG{kbEnmSdw5C3Y`Eumc=s%6!NEzg3Y
+hq}1N}K-8PzI{%XMQuX*$0_5jQJcA;O#AX*pWsC~Grg%@8E0kNHt<A@v<^sZzg^;yP*d0~k?IQxMO{ZmQBg%0Ga<_(b(5KUsj
dNcZrw+(4qiC6@_eQGrI>_ni(lp-viX3Im@cUik>`$8qyL|eo!QT@_Y%>NyU<D|)<fQ3J)v+#nhsXxrmOCID7)XOChyU*C@Gjs
cF+HX7-!dkqHgo)OE~tW8m*V@_X9i33dqHbYJ2@U)T>wg1ss`@!!%ihGdyOpJRxBtbuP<eF95C^A?`!%Qrxlihq!<O~1YNGOw{
M;G89x26e|_)i`5uR4q_KYQX5n=wXI95oVn*drN1aNJebO}c3dPUi#Mq^JZHj1ZN4QFz9wuq_W$O4+%Pv!%r`51I{p%eG+*qMV
f70UNdICPB=`Kog<@6|&0Z)vu64DC{#Ph6bLMG|(eOM=`@o7;z4x{jOGP)U1No)7lK7fKe)Xvf!OfX5LH6vdc?kYd@!Z4`aXC}
Mq6q=J<)&37)Z=fJhGj)%&d+G?<TkaHLp^V4<@PCMVxRCdPdqZ_AqHQd@;nQ~&wiZ&xGgq>IJgJ{r^Ngw$&CNMOK9O7XaY9$wm
I>*uRZi2|zViwDW>jU4y`pO6QDg)SMKgXP9oEsQ$Fu0%yqBpqRnm8LCn*uj%@EeZWV<BXS~OF}(-88papf_z{sv#GSZ7vND(Z3
4s8YFkIM-0(uN@Kv0Hcb?1mdr$in#JvI5q61iI>f%G+O0KoxZ0)x^10CUGyLaz;!zl%cjh5+4~V|<;Akk6eoz0607>KP;yn{O4
FfzhT+E;9W@MZfN_=ad{PYZK(u6(g0L5qB7;u^3?W-NRqPu*g;m{yv)tpRM}?ohHA>hO5jo_m92ewWXxkzFAim@>7{bj2YfK2t
>de*K3cHP=Nf*2g%N=~uoFQ7OY}I|LP%qQYx{e_qXEZ`0?6|RuC*w2KxBf#Yn|^;`<)JlE+U#72c1+oe{bIg0@|5~2EZMc;ydS
FPdGQg)-Er%ic3rH5UjC`y+OUEszW-Umc~_{uiXptUQRjeXQ*aaGF-qt2xq{|7wleGRJVLif8<~fIB_Ogfv>)pQ_Y$iu%+93|I
tPQuRZxV#D|Ou*>Zami>O0j{)UW<?fcmkFPi;2xs9R$p>Lap=db1{<Dtfbusy?!l`sZamb<3}E>YbM$b*{IDdMLDqx^JkM`h32
SI-01ZdTaGm=ei;)I(~q9Wwe_5_?dxP%jZ+S_;(HU=8ke|l15A&nro)MI8jOckfNZr24z&BbQ|@xh&|MvoL$tzvv*Pd-cmz-)J
LNJ_*)Tm#I%okpEyK)e4R%P9F<ZtzGqVZe4IgTSyW9u*}R7u%il;%hAOB%aWv|EI){38k&4=|eiwDxtfv0NFQnckZKFQ3eL_9>
m6W=1|8D9ykVlp82dLO09rcTc4C>!&GpT2>$2F|DChk3xHMJ~fMD?}tcaoRp#{1BUS%|h%Xkkc$A?%jfJPWcvC}Qoq+tZy*VII
Rv%xsRH$U2)1;TJw0FJa{3sw~afT#K#xo&)R!xxLkkiNh8YWILtnbsF7oef@gZE3Rm8zX`Pq^$WqVwV>&U{1cLjy*?Q0HHv$O*
BdvyQC{{o4*A;7^GAz>(o^IKq3+V%Vq#ha2wK`ys(S78gq$r-T7zx!(`B2B^wy=4fY{QMyb8s&D`~U6=AK=80X{9pnGJ7Ilu@~
AU<o&U+-och#(n@Va~;>m*@;q9ftMW^*VA0Ce_{o7-A4R=uzrgmlP1;8{{026rQv~T-j>ZU$LGT#n{z(p`-Si268QS{bZY&7a?
%%PQ%`tdQATr{T8x`;q8_Rg;7hq`qzVpmZydIOf5EWOocDpNh-27WmmV%sTEF+x+aeug*?+^+X=ORuO!0uxd498F2e#g6k;@wf
Ug6;lwj(K`;9Gcu=0_E0+isxXdtG$LxFOJs`zoJhiais@4tAHkN)H169VRCsXlA$9s1#TThs1ob;u`iFY@d`pe3Q}rCM#k)mNw
FhTbcRFzsOQRqUYnE^hRIUg)<T5^V<BS8S3rIzYQkqPyL6~Ywq3|Q4lTvp;zs>B0AJ^kGwZGo>G-K0~&(1r;Zp56}eH9B>gN7B
PxXfgjKq-o0MRA%1091BC#G0jTP93nK_i4Ldi=pt*kzqua2p2F!?SLnRJH8(x79cu|Ru+{1x3ptcK!zx)<=;28IW{=xNEo&lp>
tZ@%`7l_b`q;AByC1p{|s&5*WAT&+d3Vuam@Y7drt+9?2jZezZ1)<*9c8bQT)^wfpBt2s%uC}r!Kjz%4qMpp0P6&l83i^xpF?l
DVXQKrinsUK!bpgwm{O)Kvn{^o0ZD&)<v6=da^lAWrvf~T|qcJh}>jH=6381E_L-X3a}?Qkh+T9#cKB?^h%_H+jzTu83WV6fGt
w@THmKYEJKK=40^kXt?d0As~rx)W!PP^>pH6Q(6ZS){~jZi32IGufUjhg)dW55rCe#K7RFYp{gV>=vL7_fWX`wB<5zJfJi<C0!
Q1iZ5xi>eX-nFi6y*ui6WhoJ_ukyEIPN`yOJQ<=Ej+DU$4@gY3#4Z7Hw9!kYAuCC7DG`vc68r(b@!p{ZbFkPONTIy&;VMTKbpJ
x$2oCkHWB)LMB&h0re$30Ji6d~428<akI9>fLhaY=Pfp#4Il{ZsB3x%=Zq<54oC`r9)@hzajtqpvQC1T!MA<C#j{+RNKoaTcia
irZaqf9Boa3Rx37d!hQ}_uNuNevYskYUbJV6%tM@{Rr_+|(xu4+T<$g62^BfG3OJdQ+G{P8ijtA~$QwBR%3lC)ct-|5WPsfpEH
TRODM44n8y5dn^_oF(wGgxD(y*Byd@NXj-4QE0WKSm*H3@{Rb}hY~*I-XxV-E8Dk;cV1XIO4@S2>ZW3xIiFiL>K9CmMC$XXZR5
|GOp`exPD4xI%2@svCh-44~qM1FE(1Mbi{uBCM`anQ>40DwL)uFnvd6LkBo)30|*jT7PxutgEOC4<NAo3Ts_Ju1Jb6$3OL+#EM
8|tb%~v(<Cl=M}VBgdq{o8;a<u421lGu|GKTJP}Afx9|gsP*9%rUeFklP_VNN(Gr;u~@X)JAnHiwe^~$|FxPD)~dnsBeIHixxg
xlTkZ6^O|XrSl&zkT7l)tdD~?!Gh62+^>{StbXWs(Q>i5?znJM)vLFXjU!LMYzo~tmo5{C6W&#%vYTTzWcgmC+qW<=uGpEA7TD
7)YfGL^*$>q6&plfEP)Ib#)Hi6oVHL%$}P`lIXilJCZ_p_HrJs41_S4r&a&e-Dfo5mmvY}uwcMtkZ=8+K!sB}@vV%@Y_Xww{m1
b~_g)D7JVo#(6YlgD-d7M2B;8vpYm@^D3YeqX$`PEt%&UU($o=O88h&I_JxJbfu_9PI@#mC>!)<GaUAMRlEnU%|2?Ut?b@;i{Y
6FjVhNx9%_xVeVrEynBly&Fne=he%Sf5np_oqDcHLOvT_{V`M*uqG0R9>K9{YxWN#g0XM(=bo)(<NY_arHvEK<zP}wBY96{>Tf
te^Bj^1A2qdz*}69RUoRw{@G5_f#X3-U&v}d=_^M?Q*;72UKHU)1N}=Z|^$JdN8%g}}Y3*zgp~#RHk=@Bv?*SBsQa-H56o9k53
rDq<0EsM>jEVX!-Tmrl@1z;86mF#Ody(P8+n_C$F`+_~fe~dyX#^IwhREUZJ^?x`XVx8e_75;l2b#Vb8gfd3$E;;@7Q0W#jRqc
_6`?^r3^79#>LUcbIud((1t=FJzfm|fxju@-V-Nz+7a=meC|RN63NbZavGeLEMa3AD+qOKRWunBFE>6i_e~d-sP-y8e;=#qH1b
7(739(?Dad+pd(kSiAZ%Da~<-c)`z4s`y;8o7CyCLExHjpBh&11fHFQ25@0VMB34V^YsAzdiI@&!CNCsHD$w|o><8DMpnQexD)
5UbKC$~?|D{$Wa(2G+FzHNh0MVM^j)*+4m?!VbbB)e14VWyv_jA6S{v-x`z(w8cQv`s_SL0&^N3wMdr19WYXuy7)Y&nG&_$=C>
H`J?xX1lM1XWho<pLMOyShd%sOpHW`w{$;2>`Q!j;}Y@s=Z**wY-O$#%~{HzJ2U|U}_Q;?ryLAQ%UWYXv?+NhArOq0^4rEtrk#
R>Z8P@h$&RV7&`3-U!)OGAQFB?aXMNVE=BHhcZd+Wn-5`cvm!k0jQb>u8VU7iGpj$*v^iX@>7$K}X7bgn8LrKS~k9$utvJmw@e
sY!M?tcuoB5nyUi+4?`QA&0MkO6Yj$(k|i~$YF=jc1Cf?goR?6t5-0T4T~@jA6K_NLvCMkT_V+OI>7ze3Q>!kY+$?K)qjhNd3P
yvcqrO5OK6FljUriXoN5drP#a|CTXqX@j$AKo{vBUeW;RfiLDzpYPascyL9jtbCI76?$&*hy9Mt;*wU%hFCd)-SicTWS5WyyLL
UBwe`9U5{syZKBQMJhln#{j`)V7BFdB%;+wKN0OizL>ZqHC2J@Z;;l`(b;9Nyy~0?GKPOfJ8!va#NFP0g^JKyv^^$c!E~6i&yb
QcfolWW*>wialnk3q;QRg{Vr&o^P>pOK>`XCrCBP*XQAD>8X8M)FKqV$rJDU?+ujp$0^Fcc6q<8>L<zhnE`=F{#?v(!J8fBwk|
A`X{gkgrwf^~uq-9>3^rZRFRW)VY%Hc(>KTP^jl3w#p~p)|dmdK&|XOnb^FT~<D^p)b(pc<DfT@!v?p`>fC$;@*bd7jq;mh79q
KC5A63UZ(&e&FMh%W>o4^k)a-*Efv>Jm^<E}8x(VZkJ(Mnx0oNegbvZYI0%(U<d6@MT`+u!B_9aZn$mX_7r*^Yt;J_i4v|+&5|
U{c^_zxuI-yse?pTFO&lexqTCfJ{TfK?4-{+Y6%%uc%^s};SdMNC&!@Wt?cL~!!SaPu<#J~>t)1}X+{fAs&I^To6WGY|t+CkMd
%T!-H(Ybzq&OB($_$$LM7c{Q>meS^x>2Z-52jWlz!b2_n<Yyic^Tih?EvyWI>rfXwN{VsLcnBq;sow+1Jnbxr1Ou8Y-2D5e6Z5
FxeoxTlk>Q-oURv$BGfuTyG}1CfTaIJ4eV<tw>gS%>?Nes^W7}3G_NQ34BUVd}DwKaWwz{#UV=1X!Ppky7s&|5y>mTWw?K^Ztd
0j`-x-z-vy2;}I*|1WAQv~u~Q_W}<T+_Cu*FEY-mL%YkTo=2ma*a}?Xi=ae2NMa@j^ar6cX%gz+RMLId@X~l;x{Naxg)P<|7)0
I)p`Q}p7yL@=@$>=Q~zjHH66z~&)g+S87Gd`UBZ>DM|O3SuD9ZpBgwA)LuuGBI3hNj?XeGEw=GNd-wj)eGlf?65wX%r5BzsIKE
==lOd0FoO?_?#Jq4`k#`Lhz&;@d>Fm5qGMraI=(wjkZ<b!0{lABhq2sIy0>}RMNQB1rpj38TWW@}1<n<L`2DIt3ni-Aabt^t92
q;NjLFa1+AG90;e8%TaVzM5jZAm#+Dc6X{Q_?<9H#a~W1@_-94S6E1tO|@1S%+L*Nu%Gu$yRPH9GUeG$g5!GCfyY$u_bCj%H4U
zH-$Sc-?tdie9oE9;1fB^-e8!~1t%ZJ^wZS3D+=uI;N6(n+yocFy$h1>MT4Qlx@5$=?_VLJkW+G*bX#UtM1X*o%Z{I{ZOz)$3W
9L_vy?qJD&O9XH8-RV4c#r=wvjKB$I|i|LROUPYE|LD(Q4z+j`TgyGr}udaY3w{#hE$fx!kP%Wby1#vo#Mi0n4x~je!eALyyJy
d{cPxD%o@ry+v1kW$%4j~ds)}-q8i<*L<{B`4K#nwq=ou02;U4|q}))!L_43$tx+oW%X=N?UZ>2uTA-|{Z(zfFgIw|KV4BkvsO
XmjVDaZ3z*T1iJ-7=`VWqERw^`Dc4Evu6c4c}mVYRehX_L6gBY*Kss5iz+GAXA~Y++X^yw}3UO91t#@fp#l(s}%PlguUMn*uvM
QOn6AR)N3()gVu^9(Zd{I1^oz7dgB6ZbK`S9xM#S@vRs4Q1)w7yNaPKeO(zGdM7#BRGFwX_2KYT0wB^BLSPLc>?I#=gb$G{zT3
0xy7$#Rd&Ej2OC;b7(O4w&Cja-xXWe(aN-_4T?i(^cPV+lsvClR-qc#zAC{6XmuMz-${rNaF-ux=%+ewY%ZRv+SrSgtUke7SnK
5l&4Ub8HXun!l2p`3o6Y<41tp$~ncCWU80O{i4Gj(tKgTWm0r3LPDmqJ(I56v4n3v*PSnX!Da9zfHbjX(P6d{M|P1zTd80FgtF
{J4WB195q8>S?q_TkwC!42YCzEc+?BskWTVYFdQw~2<_uZ45lh7`HVqd%w()Q$<J0$F3VSo-%rs07P{jQbt+?~0)P)?*`MN`fn
TEpZy@pxWqi~3Q;6~vVns<<U>g1yxK@36y6;zb;Xw=?Sv;}LCQrVm$qm=;=L(KfkcXp=UwoIIxMrxj2!X}2){R>+4dgG&fvu(f
v-0Foj$0N03I&`fOSVm<W-$CrlpJ4buP_g^!PbHo;7QB)qwigPQTS24kngi}GBOc8xXVNFo%>WN8;6IAEjF&$q%W9@vl*6I$A%
|?;`^@;I()-56kIf*vi#PGJR!w~WWJ8HWTxvvMYJB#)AIqlRj9mJ=CqSoSi<$*CoiM8Wm(Ra#Zy=Bl6N#0dl*ERCGB@fL+)zfe
N3q#yd_l$&C=AN-rpUO(+k}~F5*|GN=mCEfRvEk_`NFu8c@b4`|zPv0s<amTcCM_XMAp(_C?O8S|4vj-=xScNH8NnE@<lu4Wuz
=r}8(fd<Eyf+P5quhJy3e)oT{TA#Zh&t3+(d!Zs7rYp^R#rIqDJ5;>?v5O%8k;PTa={s)y)<l+P)k&7YLam7gEgrFo~xPY&_oT
<Oz8*vZ6NUjU6`=$9~BK04u#Hgg4lVxa7`+>qQ8WWMe!)8=3(he)CvWICv3YXA@9oAq)sU$_u)ug4YKKQ4rD_xg{vH)g@1)X?H
FA0b6{?CB`{m)_I2!FQvcOU!tuEf+#cKK{*7-jgZOs7KZ&Le+*srQ!HN={c8ViNq7bB@!=Ey2e8t;ml}HceXlFLeCyH~2z2-fW
Kz+cd!OvXbhC85!BJG0%wxe6DM*;!1_E4_S$owC(v=VsUS8V7s<ecQuD{N$1;)FQm4axYqK1y`kxxeBqLT{r!dyU$mWEH2pANQ
u)&H$e}e*ILjK~Icl|~-2AIaCnpP<pX?K-io6QX*i(_UCh==bA;xM{>R@{-W@fVbELErQ>Fl?t3VGA2je2~}SMnjv>tqLi92-S
<@d4@3Rm;9Py+Z6on*biLr`4xx<*h9b0u#H)8U*xtFh#$~p$*<D5I-)W>>CW0owF#E<*>5LQ~M?N2a=|=z38j&ln5_BB#9Y%SG
<){X`iD%cw&qWHLFfE0dIoGDUn<;k}>Sqw)BoxYEbsz8ho1xQ{NRB>u5JCSmPyMRDS3(&`N6np-Z7t>z#vwa`Y`6{j&KoKxf_A
1=hABQ*QHC?C%}%{gazcIJ-R`2|LVd78H^hK#VTT0@DaY=k=VoeDo;(Y;~S`=bfXCyKkFvczuG@^`sZ}rIm+sB&mSc=jlZ$rZu
F#BO0r&?y+qR7zCekOHY4`sV7xE2t;ZS4>~Yh8JGJc9!BaGh_H%d=R@^j-4$GL7u&sknOY?vRKnuCRIS4Q(W?~TFvy<N&)_4Kh
Rlg3A#IGr&12Xsdrbh+9o`8A-YK5K`Sfl^)5pW!%cZ@@duFzFGpTXvK`-~Z$v3#%Xl)u7Yw6eoJ;xc&LUgxw?KpdTt);Y^e6Y$
-k7CMHCQSoj0s)l@d)u+;oh+T)s!{C&F8jkchV#%h(#u>=_fr*zT?*-Y|ARrWr)Rj7S;D>CtMHy@tFzrSeU}%mhb956T+TI0!%
r!gNUR>e*6k4q&}dU(mL&-fsMvXn^5%vnaA!W;3u?z*Fkn|yDerpP3oip)KV<xOe6@4g+sVnFsD@%U74{8VM{7vkRS2PfZ198*
Np-NNYX5)9m>Ra*#Fw*?!fpiW^yaY1Sc0DWBr8UkDosIfy`FBuwhPT)>MXit#dc)lO?sKtghh(=?de%!V|#YL9uU1-*NcG~c&K
c9`fJ%~x@Wv<cR8O7VRn|IfvD6lmn-ORU4h>sWORj33^>D$afh1#SSUR}gamyOET^op?GD0bVA+m4<P(i2MCCmPWkN7?Jr?FEi
t#F=25Fq&6qX)7Nd68HKG{RQb+yl1A`ceoCFybAe4YJu+@<0O>r~>dmNEx!+vbwJLfS9Gb-|%33HIK%W8bFg@NY=9SO<mmj`XU
kTg-x9%NN}wNse+n!@bj6t5fxXW$*tKb)0Y^XLtLZss$GWX&QD1DwSbQ(IBpl^|eU4J*1!!<h+kl^=k3KM!#<``>{k?uOC#p^!
p%#%7cU9brKz8$V8JTP%0lcHF^wBZfO`Y;%bKYC%jV!%5TE#lcug5iIH<kmgou|&polxqmMrb9Wce#8_W$@_QCOvH4i?rao6o?
D$JOxSx;s?Q|Z0_TJM!MPP{pbUUhSs@H^_ep}G<3;VPwcKCe6T*s^wc#asIatMUW?Gbg{d|E=tW30~wK2#&t5d#FQA0YK$syJp
yaG`1czxf{#FdU*(%LzX*>_QA<<c3er5aI-^Z7UtCM2yc^@boA}e=dmW#mupFf^kuuGvLjhTH+AF6!pmzlxS>2K$ZAwa9qC<tH
63&$<o<VMi+;91*f+z4dN`FA1p3$iyFy>!b=k}UB`W$qf&LYwnpCJeq4Guefh_K+lyw{1A%JwMO)5?AafCb#yQ_~}5mwE?p;%n
h+&~}e*dP`E;4?F`u+Zh(jg#Lo%ZQ^0v+*wBXroA=>}n>cYP@~f25T1K$|dBEJY-A;c%-#wHRA$bqNB)}YULf|oEvrmYj<KJJs
A-zNc0ZFYJ+_?%T#pYR>SJzyq`!3)I^=}b9)6}?)RY`i!A2|!DGpgt{Lla=$%drTP>c2TQ$GfF(id=@7krmvP-d+MImC2u3_BI
vFLHZRRQE0UWALsIUHIejDQDwyORC)SHR>1j<AX~iW_~iR_%01u1fs4xu<?2&(PAQo^lBw{Z|R?PFjvOSk%67GF3Zmww{%~Axk
u2a>>~>PQn5y!UipX{gDvTR_GM=VFUwGe3N>iV7}X2sJ0_U(C0IBrJv^@r<zH!UnTec$~+W4RA;$5yQlwhye^19{^=Ip&F#IR6
K&>2bI3z3q(ED*vl5;w98X8w+EM%**rJe{LqWvrTqS^t<_O7T;OFss`f_aO%ZWnCw?N`rT-xA-yN|p(7f(QKKV4VtIz{SbxWO*
#P~iqP^pmMO*K~k{3Er`9+e9dL&n~n656R<xPD-fm4dwRv$ou3u1{YzDbCS|=PswP2$%7w2(9mJU&y8fVnij3g>(%pB3kExYhM
tWizND!Zty78*QxxH#V+p;Se5d!IeRPkjqNUTQETk7gr$~iWKJH-T3DDrGmGH4l=2CKquCXtSxs&b*WtDETtUYlUQ`B5*oCgTm
H=&NIo{c{40nBNwx`rt}2%ar#jm&W*E0(%N23W~f;8B@QSZCo`9q;3Kwc;$<9*j@wlvck~X0Y#&-wlF0(IAbi74(d8+w@Hllr*
?;RSuocFS^`08J-l4ufP^;vpK)poZkpB#+~Puta;AH<2pis)1RdpY6oCorxQ3&f;rOZw=H*@^`6-O6j)K@8`5NBOKf*jHo=N@o
s$y7PvR))Tj~7gW)ZV|@ZzboqtVvV#9%LIH!u-QR0$Y01yF1uKBeEgZ6oc$mNfGaV{dK+`i{%{3of~w)jI{-O?r9(V7-kCwc0$
%C|vg~v&C**R@8Am!4ZWxD+^JXj>UxZ63OZ_cu+lLb?hpvY8w$0r5#1|cjBRL-5uYi51lF7N9UAXyX3!KqNCamz|`7%V(PvA8t
RtU4^d~*%~Xm+M?L<io4RysEmitbM~xmhK)oiZqau^rs8?PpssE?7QNis(>dz^1DsfCpJ$q3?eQOp>{a$&1n!S4$^+cwgI`&%=
bq?ha72JH1YM+o%-}`S3^>IWqb?@~W>i>r7sppm&seM@*>if&~QgsG|dL^Wx9>ihl>qGOYn<`XPm#m%IDTJv<%mV7H);cQSl~M
<m2&nb$8mjaABh&(qj+*(Kmios>TI%`(1}gLeK+U{SLw#QiQ$Ji*M@6e^sFD>*>f>7wb-|le)L#noskT3iRL&+1b@wY()H4|{w
Taw-c@DYfieZP(SNcF&RJx6jnFY~sgA!4R4O33NW9Mc<XWh<(#zE`L{tg{D8%ke@zj{ZC%G0EGL7f#;JU~sY_yF4g2$qPW{#BR
_bV(NY{veX~vO<w;zM#Mf?KqrF4_YanDr)`Y@bJY+kAZJ`)t3=R5L|zwDfOMhPhe%Jj*DJPbqV1$j$Q63bAGea42=TnWc*^%d2
%OLzf(7F;jCtrPQH=kiQd|p!@K2$1`7>k?CV1+0)j$4?V@p(t@U5UWb+4OvACVDIB{`&#bR-p$_EtkX}{wpMd+l5-DEIv`7`q@
(bM&~uD8=<xwwe`AO%N1i?*mPVx60~q5apUn&7Uuo{s$D`|psS52T9U%kHvmx@_`z3~QJDNKET0T7wibBZRVi9nO7Yy=1dD%NF
f^Frm|C451m)vM1zVNhI?Q!CNruxYxm&5;&WP4nTF&e>dN&0u;6~MfA}q4BgRCveUxya&pMmzgzqdwE*KCT*#AMIO<rCLLbVmj
2^HNY(rRSPQL)wqQKPO>PnqsxYjVM&X>(kbCn_NEMU=<8@SIXJfMqY<QwK?zxd1`Q>>(D9bMQ%r%P?_mb)c*$J8;(e|4_R=uRW
UfGUJG`%UN+p)lLngJ*$%gAFs+_9RiVu2DpsJE)c~-}vE)ORB!eW_TI-e(<&#)tWnj#|ZvhwGqFB6WZDsglrsz*;{pW5xrZbE`
6pr<-9Unn-l9Cqksiji;2qi_7Q&SlqN5RVlAvoZh8&ZqZ!LTs7h@_)M#O4t-5Fn`J^rTj9^lqZy5awS#cN~c!d2uBlm6P;n`O$
<pi5E{{Den3NC1BxYQHte!xHnv-oP@-`MWPR9<tK0ZwL}{VhGx{pT5yzto)2(U!O64}A1alRSCHCq&pFsw>^ekJ5=mm2auC#g{
N!rcxY!K`-Ff{IFE=JzLd^$B95h;L7@>VBzY81Z&uL0E^8Sg#WROJ~Qyfk)-UB0@L3pv|_nP*kB5t_%d_P)x2NN#Sr(6XC?cyZ
)t!V>_aU!)b%N0uw=Sq)1prYPjDg?mX_MD@LfhVycBE&<bke0d>FEH6DyHQNSC?IG@Glkl;irngE&GO7d8r%x^L@&7TEv?Ifq+
&%9h?s7n$URdT_Q-#g$^xk9t0cRaX5pt)6(1o=8mmnqXgoy6(Zy=*eDl+i$H|m2Qd<aa(-|lpY$96Y>a}N*P~()`Y*((T{1zx2
Il~CVD$vh71E%0v}zg;};(i&RCoy3Cb}KS6^Y_4fk*`-DI=UfUkNP!d9g@Gw{MKDcMuAH6HRcmsgBQ1FW{IS!Pu!=vd~W-$`-j
;uQ)gRAf+?33MyPW{qqj+s;Vc9$^Ovo<t5M!g2{<#i}p^FAT+dgvES{c`Y6;g7AUt%T*SaalW{plx%46n6|JSGtZ1w-^|`_AIA
Ido_4HM9^PA45A-yhKcF~7dOHp8>h0F6%)K8DG#qbvelq@>RCA4>4EpTZr`%IIzsnd;_SxTzAZUg(+TBCfMn&3_FNu+#3VZ~}1
WNSH191%&S_y@$f|a;=SKOxZ3ri=&e%mW9oMKJU>HqRfp~a_^ltt_$XhdYaazJfT3=0RjDu&xmI>L_M@v;9tpeV?iXO1yBN=Tl
9qBFmlB$oJ5e?`uj{dy)j_730PUeFz~cUxz!SDp--ajC{5X79MS?htCUSl|xLaYCam%v!0DE%&t!h!jYHJk<rroWtd;JjKHqJw
g-@%cIFjWA{%a|3VwW1AjYm_vFPok;@7LvaQJ#?Y)HpksNarV7RSQCHQQ7GW<Z%JnSgWGJiv=6J6&?oV(+$q~jxW*0ti@B<{EN
F)PNd7iU7p73yc1ui(79>uxr3>qTGq$hlBn^rQW_?Xtoxy{C|O7xi68wHp?~r2jf*jSx-twDU`SKW3Jmy!8d8OUy#Ldq(?Uos8
A%^Z{(Q$ZIy}YV18t;Y<u*LFO6?|2VynGljTE0%-4Jj#E2<qwSgY05|Ho?-0_rXrN?IBEc0O6j{6LnkW`^(2-cV?ibv|RF4#jh
;?c8I3h%o<xAYG6v<*CtCPW6>pv}nAz<1ikolVIStH18FrwTp&FI-qUX)Esm0ul(!3O->8K0+Bj-@n}-k-J2wU03m`ut5gjq(N
gQ@;DsluPzUB_b+r$hMu1!bgOsSKfQ23?9`HGA4G!BgQ|6*mgNgE8&2h$L0_diLVe<_!bcHE$UGeqquWh$UGmn3b+l0EfGpy>u
9BPh2KFYXIrm@@slG*`y2&v(B~gry@1bfSil>l5U|-|S7pIXmP@$zAMcckm_fb7Jn|~w$>2T5ZUKnURQEUiN!IlXwZN>ae_+)Y
T8B|&`sn2xzcIfvfF8lic8}<8n~Rka!Ks5O$pA}^J9pS(=t3uRq{n7R7e*L*2}>5jGC1(%`?hJy7da)2)h=v97X#2DN0neHO#Z
)K<TY0(D+5qUi}fNU+B_|jVs66b*(cH&`@$v0CaAa<OFNHgvg@0-n`hdx_@`P@F8bXAM62Nl>e%%^)iMC<<+(Pie|I(Ai*lL*w
5{!IjyX!<@NdK<^(&yyJwW!m*RV+1P2i}&l^Wvkyol3Klj_nR1jI}W77I;nEM@dKdt8h|ULUXicgp(vUDZ}`&scM&)H&>e$4(O
^=Rq)YHdZsN)w6CKx78mZt~-3dP|#daS|ri)8Yc1`Waqzy;r9u2AXE%E^*VU89n;hjS5|(m?x?fRO3nIQWT|tBxPGKWsu5b65T
vH5v6N3V2ER6cX@6Ujv^F4U1~;QdLf>P+nF1VBf)1fr`gc<t1)rhoWg7?ozyhxn_t>8v)FieDIKHq_Wz0@Tg=NXj5i4EEVmjE=
&14pX84QkYiGoD&4huceK2;D7T?8gG9=!}=PPV#Lc}kii5k&BbX`1Ct!VKK~W0%CSY?XW#PkBLypT_m`jYfn%DCPkL+|7c3w9&
=mbZC?;*{dv_S(-Iva;(LEGma9QgW0^Fmzmd;DRH}l+$TInNX~t7K{<3LcC>&SHWD=OuN!oZ*7Ut)7)y1D=JmTmBIOxF7N*75l
?F(68HOZc`uZW#6b%>7W<cqK4aX&4l51iO*+&69S20>2wy|mb{Uqk0;mx+pD=$YT_=LZ+3BQQR*#kL(h6+}H<l2Ng3Yh&Kk*02
7S+LBl^ym}xvVx&)P2>!1i)^{4PNhXfeNsd6NH+mb4BM_m80eb!s$Sb8&Tma6R=*U5cwqLO&3Ce4rPk?<r=W=Jc@uaR9tts<^x
k^SZA!EPJ)jJy>FXM7QrkV-a60bj#E4Rzes*$B!@bpD;E)|}q4iv}+KhLyI<FV>%-Kggr}U*1Oi7qV@G3vBxl#nGf5aOsz5qld
-Q*O&>}q_LN=eq!2kDJ!B&RQq?s(`J|5}Odd|IpDxnCKdtaBP(dD%g$aw#pU6w6*k-72MC^e(51HG^jcKD$LMKOj$PmZ7Sk2YW
Rk--`BX>0r<%jP23+`zkl$3pbY`@~XKFYG6{3uL+snb!GNh(1QAcC0Pm5GX1y7gGu;I!SGzqf`)qBa^<;JAn$F${W9m(+sYE0l
YPsUS6Wf^|2w47?4l_~nS|>YhGt)P<r7SXz$K2*I&=rij6HBF_fOJ=?rGr#|7J_b<UP?MFOz<aC)|}ZvJ$!Sh`)xvk`HuLkzXy
dPjO9Eq7J`Vs%nCn3rHQBeWgNP_DOKn?-#P;FmOB0-U}bb`sFN9hiJXJiv(K9mT1UvsW){L75pnyIs1<R*lD^|P<nQEnbkj|QB
A}1N8ThWEVQV1l~s@rGRa#k2ho@0ytQJrxv3ZMvXER?Ew(%c*Jtvcj~XljMx+6cRm2*9#+?XNE6v`wB;t66No}*{RN!~kp|CT|
m56NO9+NpOVjOQw@8ce<Oa_W-R&Z_l^Ue(SjM<u;s#AUdRv`%r5mNDjj6V4AmSrTz+UHe1ERDbi;{FoWh#pmeDJg&GL}lG2*!(
lexjjODsPyOVRq|o@q>t3A#Oo_FGM;suJj~APoDt?UNm59x;Y8KQsAHhx19QyhdyVx>>_rYR)(3*YE$<3;fl<1pm&lNkTW5s|Q
}>Ac&X~$02L>n(gS)fz{79j@*|QvV4yt1)O%HgwRa44-K%>qOO?%`17SE(8c$dM&h41k}+H>=E&cATb`DeMOFW0;Zo+I6FG!B#
8I;48*KD@4kxeYOL4To2KPDTN5PCceYTa#u3SP)oLK|ybTEfFeZy1IijbF>JD*5H49nyoocQry2-S!1>Y@;AIgWLmj4juTI95M
?zOHs79-Vi#6Qb;|9!I6;Iuf3Y`tY93))>|;BgA7bA1`}6AS5U84*=K@d4E0ywT#RWe!jJ|4ft5mejLENktDlorNpV8Dt_U0AL
{ek^JMQ<vda;k`|pE0lJTB?xjHK;Y84j&GLkiSvxeBYhb(|el6NA%(R?XI}v#6qV}UdL{%bf`yY+Hi8k0Rmepk`4@J2Ri278>z
QSoOZJIOg7e?5+vr*Gey6$O8!+q&gMl<mdxmbrDMlK5I2=~l_<XR_Vbb?pr!Ze6RTynoV|zaPd&Hxw$N~PBNNIi<FeXz$8Wj2@
k6QQQLtk&a<D<NDKVQEyBpo`bp|4Hy!3igbOKD}u0X{!na=A``S<|aa0^{Qo(Aglx0>K5&It0}p_Kctzv0qb)lTzgm674r2T~R
dll`@a1=zWzj_`2B5_ny+bx44?RJ_hiQtw79UU(FsML7oQu#xo1dGpO3<<Xi$vbAZ?nnp>XpF}a`C6H9_e_2GFzEIxb(&$t;5f
gvT1(tQ{z|zhYlx1aWU*OYxTJ^*lNSr2(`j8S3T2<ZxZqHOfUy>Aj70_VHzpJd-`!Stw`oh+|NvUKrDLIW_A^s<iUHN9~<n<RD
80D_@rd1CcPc%E*qcHxk^Jo7b35|X!mpkBOYE!#L_gQPP-^f`Ying~%3y&6jTc;S6T|Gw@2u{McW(9bVkg?s;c!eKwOO;}dbJw
p9zc>`5WGlg*#9=8W;NLf^4Yy~^TGpMo`{c$d7K&l{lVN5>&WfDX5*x+j?ope;l=xZ}#}mP27xojARhE-=sSmRV_CtQ#IaR35S
@%NYKD=gW11{4t4qY&tFJgm9xx){3WxaB;aLq&m7ATyZ7;OtTvV@o}2xZv~B9r0>IVM{*@yOD!K!BIqw{}=18(g4JpUIHMh}qd
DdD>0^`g(%bq8aqLM08=78Yb%wVe={K!m#shhR{P!Wm}hvz5er*9@Tn4-qMTHYy&0w#a9U`5w!XdefIG#Rx^|5s4uW=CFg`^O3
y<(vkNV4R)L5X+D6<H^jD%EkA&uWtIKeX7e7b|&oL-*A9t^i?KE0>nC%QP;V&pmd(c)uN2cGJbKY4-O*A-^sVp^&n2-u9G_~mY
IXtgdZz-QRSGhZ8bfnK_6WyS&VIkf20uiHP(;T$QC14~pNGCC$BiXRrpcF8CDojclvM7kz%>|`HtL>BS0n_l8qzV+WOcb&q_SW
Y|Qr(4LEG0UGVG|~t9mcqL0%+Bhid}>J4i1>oL?4!GIs~=r@cWqYo2O<{gIZJJ-H8l4R+8Ssm!svnpEN@sI(zkqF;p4&m^_;)+
PRnA$f-RMi<)+K-&eahq&+a4RmrNTp6CIE5Id6mG8nzr{P1^+qkqd(X)eF)6hW-fE9xmZuN||T0+hQTJd50;-&$6^H5~SN*l%t
&q%3)x++EwOGu0U-q{Gt0GXEOUL457OlU|oD5Ef01NYKc#z%PVLk~NC=i2$GxmPU(?7h&WUwQdk=YTw-Qi@ed=DB=9gy)n`!Zk
BLhB|~6SC@tLgupIOM5Ye%BJJ)q=Tp;av`iT=mKELtCRB>A8QIO5PjoO1p$uyl*H5t@!twhn-S&J(;NU8iaXI!fAb$}fWF=agK
$RV;q(vu>6v)CxV{xRE^B0QFa|0wu7clB0++c5%72ue3KUdP||fcACA(|X*VLywRSd9Vjh4c@yXib^JbY&G3mT>y;qQMiUlk%A
rL%t;EUA>paC?ZgMomigcJEfUcofToP(8Q(}~>3E@lBm1)lmGx=*bLyP+1o5>O*^G`jm0Rm<A~u?`mqd&neKY^`*mBb@iDcP7&
vpKdGBo|ZHi4aQ`Sv4@tI}av^DbpllAZ5XWbC#-DQI)uY4?0ePIc!5f9RaNpQ&Z-?;CjS+OS)LR3O&`7J(T#s8H&BP<$eg#Oza
62t^*q+PA`<FSX;A=9(kc8^85t3oGqqayL5*7qBZOV}9&_SYj^Dnk=+h60NAsA>!#pSpuOBK5OqN#~n~%_6eQ3R_t0F&M{2>`C
$S^kt6DjBlG#kBryV|U-O3hJT5%x22117-%UuNL_T)~xwL|P_3d2px%^~qeVEpl_Ai&N`m!^djtlB1)a*Mzs<RCj{h#;xzUI{L
ZyDSEnGUPaKXFj&I$t$IV+0uTxjJ0(KuG9%jJi#81RrfzINNU_4C}whyr+$i_hJz6{fQY}o!+_u!`vg_mP=QeoB5PFG0D+1GJ{
+4l?u;SbCQj)DYOV}w-1s0XXl0482k8fkCRo|!`Si;QD~AOaOE3qfyVlQbf*Jsz>aAEIgnBlo`3u*$NJ_l=_#fc%XU5%_bX>sg
~~1qJ8elge}53?x=hOFCY^$V&)Qf>KK$`J908=;5%}jLFtSYQDR#}BUR{t{X6d3ELtX}Fh*6cmg1X3J$jdWmy++eXBeRVN@bxO
@P)E>Won@4o6yj_6ALoQ?ve*{%Grfap`Mjod5<lvS>pNZsi-h!8<9bld^5MNSnI)_fwnlz=q1XG!+R=vRrW8d3;Pkd$4!0=$bf
mhEh;0H#gidEOf!8<Rbrecu<o=5s@%9J9nwu*ZTRAuu<PlpP1~CL)_GzsA>~ns5z(sL!W5v$=+_YT}mG?hb%}Hr@afBlg1%Vml
H(RBnfHPFrhR0~^+Ns8);Ikfg3Q!`C@1r1Mwud9hMUFFPdosr^I@e*?-5Pm3u)lgm^yJe&8ln%bA{UL*bulXYjrg6YKw`Lm`Z4
JbgAMJ>eo(L$dPSiX{@A{c&^?I$qJn~K@r<YBgJyz8q72uV9LArluaCkv%UKPrWomM$zAFBMEJ^MYSMqr2xy8okF4THnn>~UUj
XFK9oZT<{j8ZJayM;%q+Q)R6h}4Vg<1p1lL~(q{tS73$e-ii4IKw@7&S;LAEuO_inxxgZXK4SwDR|hNKM#!ZhFeUl)y~?H36ha
sv+THhfBM^UbhWkg&VpMMe#^l6<M3Th4HmY0!l&yy@B;hiJ0_fkfSw$Dv^=2QpW!y-glXN4$e7ar(~Vm@qG2+Zp6&bad)HFd^r
n<vMQnZsUR*l1sJ3Z;Bf6~IqioXld`+4M?S1`(y5J{c4azm;AE0j_7qw2M4<0X2L7&)XaE5F1hD4FULfliCxDI}Vl7+g|%PIa*
gWml>na0^Yzd_ivc_fFd?EiwKqZ@dn8=lNpvx4@OI8*(lGp8vdhJ8Z7R%H5EVhXZXVJYpEE$Rc?A8uioB6wui(BIGGiVJiGMNy
WhAB7_*^<(rMkxwB*AE|Pxou0-p#_yS(9KG+ommTk-pN_Ak_H6x`qDIwkJ@bmI%&CWqQsg;|e^a*lnWTmdQaA%HbVMm0qGJ58q
E&3xSoB=vvxa;34Nw%>-lf}P5sqKuAgy)RE9);Q69VRt-$RdZb8K0FL9A%@;k4DY_swYM@ZIRE72k~qerLIk?tEB2sWD$fJSyB
>VNKae8F@24yN*_lM>bN7N{C}E!GyND=n2FAIsnJfAAycR5$?|8d~#<kBpfso(HnvX@ee6+Rmp@w@lbh^Wc#!;Jxeh~2@{KRL>
r|eEcthRetxMoDzV@N&!w~W%Je8#YOk@qOvmLdtQiG!7Iy#6(O-4hw5Np>K~)2x$GABb`{*<ws#-op94(e?M0GZcKED1c(-8(=
Pxvd64ysb`sV%BVmZ-(ft;K|J>yQe1cFkOR!)x$TW^co}?+>|%b6a!@;c|S~J+P(^YuXa{ggCZL+C1U&cYYyndz%7@BBsSx6m6
ljL+K+uygMV5W<<fn35qAx<Q!^KRDAb0O7+wzaB}Oh5!GylfDh>N4-@Dau30sKO>hy`lwq!O^e*<<BPjFNeqdu@%v}o1m8q_fF
DXrxeakXYn<zLk=8FtnCt1FXZ0Y>w^?51SU4g?V$ll;m=k-eq)achEXH~d>Z?h%2G{>VYLJK;r(<ob=Y-Mf*>5*QNM235ES|--
@Rv!B`38VZ9$&hIsW4Y4lS_O_G?eCN4Cx~n@2g*04zX|bSad>Pm`KPrAqDe*S8uwp2QMdfM^f7)*Xc<{$7>&9y^(d{QiFSXPD-
0Us(5R20Y;zX^QZDKs{WSlpxSN^=-<>{L-l>b@o?cSSIhpM<-V)ue0db31?*RrWHetSo(63|p9Pvm_W~I-D!)%@?ra?FK(kKzN
7rx{lCz9;i&9F+ABrwvXxejw)3c3FW!Efis6!?-t%a^6Y*NTft@2)Z3#e2`!hc*;!FM1`~{wdB2&07TX|2crQKW!z!6^=hC2uu
6)8T%^KjJ(*aGS`_aNSFIdz6Z4eOZMvfHqYl-YyalzYcxWZvNI?9`n`<6)w3TUq#%iNA-OSD;6%GW8Cr8SzJavVF7@5Uo1v4&*
T6Nndn1TtUt<Dc4&=#v4Q+lSFl5B-o%J-$XVjWHmNECO?^MavPn{=|4U&-m-Y|1#*kV^w4*wQ^Jez@_h3ab&Ru`6p#Gz3xr7kS
;fI!p%jnjD4p)XJ^Q$JR8G;p4y+pgcOvpo28%P8JeBJ4pGqf&o!^U#^xZFZDm?BtFp0~1Hj<QV#fz5M0>q=;oLgUJqVhf`e8e#
~%x^D}I`v2B5b2DOxiohvjq@C}D3@}b|?T}((FlSuM)k60${-UQtn5N?cs{YUC_2$XBUr?FZVd&##orLvuP^8ahFPPm#l5C8zz
6$N42RojYdtF=~0CfI64Ac)7bTnSi<3giGR3M7*WAWFzg4iq8BBmqSr$>hLAj?7E~iXbEqaI44>Jhoj$2ts!~idSpjzFN;7+du
KWPZF+)Ft^ia{I4o4XF?-|d1=3Ay1u490$Kuu`f;&`vQw!Z%nXm_Q`&Qzs&qm+>i96c1b6pa91KK1HBeBR*0L~2AhJEOWDYWTp
*hn-xvne7#zsX3*S7zj(|gc3AJ)CLL3*T*+a82kDdD}|gPAP2Z}v_`5G&paq%+Etal@pc+mgs_8x@A+Nk5?!G7ZkOiO*PAx+`p
Wa=}3g_Dw1H5TRX&$uD+u%Y;J!!l&w4{4%mZn6H6@;=~659sSX_sBy=`f@Bq!+byZccO)$_-DmBEszh>&Y=`P~+7QLn)o^GWk4
|VM%NCPa@N-&UE%wX7uN|=u8a`gD$*L(2V~}!Ln$eI`<~O>DXpNBqsTWMqzb|FzXZ5)uidUEB4!xv|WCo0=45*2k6iYj?zT5QL
WQ0oZ)u1+aTT*vyy7)t~(nC16U|old736dMY@$U@>|)KdK0SV{GHMY#3qx^?r^LxL1$)UkXnFrvUg#AP!~d3HNp_ioN1YsTVM-
EC;faG3kyq<<QzCMe9Esi3?)BWJtXK3bJKXnWYI2Z~w6+QULLLNr*j=up!J-zHh|GMa_X0I?v$t`$@#2_XXxhClxF%ak9=<VW4
*W4a=n2|7apZz$dNpMx|1lEBvUnD;bBwoU(1%T~MxU`4lC{ZjJlNufNaPHi&>)Wq+58{GCo}C2aPr(BEtuagi+qUjDQGmt{<(E
PPCwXGBa;4EQdh!NGU>62`vD-2&DG8fFCOKrh*ek+UMMFbuhyvcm>fPgbP6-;xXM5ZwJWbCoE<LQ%nD)7bU-!#B;m<N>%)#|Q?
@<Cv`vbssAiY8)Lb&zqcEkCVl)b-^glARmo4V5&4k)WSe8%wX`LTMm_Esh#grwfuDG*#s_HhudlbvlnFC$R(yjb1+9cCt^gg9q
IG+kEMf-&Y-xI5h7x9-_asqRuL#s4$GFTcXup*A7Bs3w<u;a#WZSV_Nz3?irm1diXp;=B%r0N#TK>n0bv<_fp3UqB+RJBaEtE?
^1k6xg3LGd~lN4Q7T--t!u;t5tzYJGo=)0nf7GaHiGz6ri}htBQL4i`3=3lgh6gwE;1es7x-{F-gxnoRR>=l!q<ntg_5pJt5WM
^fLZsW?(sp#Akg7`3U7-_wn9Wz~JQ(<RNR0w#R|ld!QIH7WgKCmZzMEYs36$EpYG+$)vmT1yiH_i(hA$=f|eoL;Qz!KHhdwIj&
b_y+)QJns5t4%X^P3Gtm(J?PmAWCY#7^{n4eCRxyslxQGNF!a0Fhyz=bF5l}^;K6Wq5`)LX;?fc)NBzFynJbjGnbAH#nK`j$q0
Ct;vxsm;LN5S$6$)KxL(yN+W=`)6Cj6Ox<x<~xvRNA4RC-BE#$E6OWVUy#^VRDXy8VDZTD3=#`gU09zYp(9CQ8`$mJ>I-<vYq*
;ktpAheSbs#*Tl<k)4aq91mbPI`$-SbV$2QbSs$9>8Iux*%D#0*wb2odrB8|)L5e8>FrR6^9ARsmWZ@_)As$--oh}8GjTTxp|&
OmUsQz{zF_$DM{!MkGTMulkbK3+)#YR|WNPft?bVbhzu=4Y@yKB^`q8q+%Fx;`J;Tenh5cCR2hQa7^q(uw!@iEo>ROR8TFYhx<
--RJlQeJJwnDj7GAK&`Omh;%ZV7n7TaB1xd+tv}Qj(U(^7+x_QeD`J@iR!((I{tug!*`dDSE3cG*k53l`;F{KV`$Ubs<06jY(W
yM8wwpqrmsLjiZ-)8`8N)eKk^T?hGj?O=qT+Mq4lwOD+|SU#KA)xK-W*iNC|Stqf-=YT0os{IntX`lOm+E@T}&46B+~&xCb&#k
|qwi>`g|@$&qAzHY*qR$YckeJYt58EMe-Cq!o{tfwcq&n7;S?D6Oeot)?V_5!%VWi?Wn?sBzAIGwFN@6@^)1ZW+ewnbmxqI^)q
-2k*)l9zU3=#5PBKs*1w&+rD2ulQbzF!!DZrWZ!l=kt(H0EgS3!6_-IvJ#O*UYSuJ#vq<aCsmopG{NaOGG%kJ?~?nUnL_GP^ph
<!RUV!xIctij0;`mlO@r~fLI;jV1UJW@iu}RqHI<5IsPX|72IVgv!y`9~<_gfgZ>f4?)$_)SyFybpE)<~3)Au#eTil2H3eRAyc
2bo4`rMVr=<7BT*52_nbWKp-6luoc9OJNGmn_l@q-O00%<7bLI)})OUsEKUcGXwt0pjJjlB#IEz9fgUOU<oVc7h>ux_0nRc+$!
w8v6~V7Fy4s2E|_SeE*aPx4gqE7*T{!_(vWw_0-P2Vh@Uvw)3o7z;sLG`FhMaNZeGoz2y&k)~-|N|7Q$w;gHDGZL1dQ+wU@BOb
+*DI2SRUQb{LuknjY96-?-F6~>9-o&c^zm5~z;u={8MV?&L3D4_|5FK5xh$sPz0C>*aAF@N!G?#+{t?>HqHwrZ;zS}@g9hB;+s
p&M|N%Dw+1gfwz+C^aydXG#aK$+t9IKa_n!&Nd4kW2#6B%T=g1lN@_*c^8GVJ-)T{+-yB=G4FihiYBv8igrIQi&$nX4vSb|a4@
UT&#3yj7_T#LA-duG;|`VI5D(0y+XP!(0q+U7yL-k8VoGLmDqkz159!r`%&oyOu-HEZi+fMu!@J3}Z5N}RhJC^V=`tUk^lIzqh
X~W1nk0u{a)Yc?Htfe{oViMz-*-`YqnNDJFw|1jDyl_ukG(e?fqdID8w?9Rc0U8Wx>Y|7*=J;LKU7+i4h3kxq4!nqwsl4l62S+
|z*h;{WGPww4Aor=%^Y88{i!!q&t3#L`;&B{tcH=Urf70kE1^48L!o$KNuaFMADA!c!bB$b3P25E7QxeMLtRcXWRCf3^*mr7;3
Y;deX51~m~FlpM9OG}(szCS?XFKTJCOa&yIc0~>7MGQY3*EW+cx}&%%ccQ+fBlS!4k)l(`9Q<HHQsw2D*;XC2`uL#k{Ek(Y&fX
WB2%f1W@y*%=yG##dJaJ1$|<nP^bV3n@<e&z42ThT~~?e6!il#;8=BFCVVpk*69;p{OSuWd`cIYOE3aSI0kFKM5eHeum(c7+%5
BTlg|eV!0msmGbYI$7au5aVVe`uwBppu&e&No&0ox4#lv?0I$Jwd9{-O#&Q&_f(E5&9)Jp_GJfbc`@M!)zw>CN%ZL4tLkef?7_
--ZLxT^@UM_Om372k>F_;K4(hH&6bPXpVlv-*dnQf$N`r|gq0W(}{%9yl%kqtC@(zL7y`)t__OR!@+W$VkAe8_iT2+1P(`It8a
+aWulBO;D6m#L}5$L72POwm^UUi4J>0lcWQYA&}R*=3gTkKyj9}1E}|n&M+Gjg|ApO$+_(kJdLDB`@C`IR!^W!CZF-q#3c*)W=
)|Et&>XnEAr*G0}?0*;Kl!a^cPow$eHveJkJ`QSIj`NXP@af?{PXT?huDQiD-6e^$1(ri<~ZDT{IPPOsp^}DMDHjLouU@k?{Yh
CjxHYrp&B<VIXX-6TNtI)byNyik+C!j=`oHInLVcFy4GzGUmk9`hwp%c(+SKaYQMH18Kl9LcP8<hgbgdvMSYKziC5<D|4(&(CM
-JtIcu*9Tdi_0N7<@$Jgbb*{>TkI{biJw}eXBSxs%Yq|TUH{^+{-hUZKnAT8e=Zn$c71b!v_T$K2q{W3<6$dERRsuPF!r|;(67
%w_TnRo0z*|EDstGHFn$%%%j@0?p8F?7jkl@dSn>Pt*Ixq}iR*ZQ+2&~Fkf!g|**TTHpkrv=p<17R8=Jm)I8+NLr_y;Y7f7d2{
`4w+RCSE)P5ju1C}=(F`PN01iptcB-S0{!1hAku1Slh-F!{L<E2bcZyp)#TcwKBZB31b&9BOZ$>SnA_b>d|ACCP?If^>^!1qdl
x)^FdqExPbb02dL}4<UvKaDX)X9SArs_uz72AU=Y#$AE5OQ%3a~bt0me^cgH`=YK|xL|_+svJ@V}EA!B6X=z|f1YwqHBU1TWt$
0`KmN1R2-ZVA87u@cpPT@Wn|sc>B~AP*zz1!iQ48{+;iGW2@f)@5RppbHDu<e5uO^_rDAVUvx%*maa&U>KfX%xq1UQeIyZ#X;=
$R)U5&QqnO~2<B4FCdu02*(oNvSkN}WnTng?tMS`er4R~$uN-!xW3Vc6w4LJG+4cz<p?cn<6D3EPj32J^@3cl6?;Eg+<fQ$Epf
Q#p^0^c271qRe_1pg1+QeRg
"""
DRAFT_MODEL = """
c-rl{d0dlM_6OWfl}+1Dr<>Y#eyJN<K->YfabZWT3M3&wWy$s=fgsrvaD(iiC?t83fKq|%fgq3#v{u57ZKp0Q>U4AOI$d1b&Ku
k2$>XSP=l#6@y~F48eE8-*=iYnnIp1^cy(dXd&Psafi6@?z@x-rxFaP%ch2Q>@2qlEF0$OxISrHjv5{j6tGD48Iefn?jX|#gkf
|>szTvAZ{i_p`*wNn{nptP(Y3SU-0WIp#F!bE^Z*v{mY5~g_@|KfdK{SSd1tb!6Iz%O6|^pfptLK(yR-zWP5T#e`=dI^)jWp1Y
tN=QudeVO}0FFhbbC@v)6@jwX)CWY`m&pjYjNTU}~w-?b_CCvK*PkNu(4+szm1pIa)y^K>(hKG%m?|tSxAXva;5=!o?9!(|`;Q
d41*Z#FXl-y2b`-B%hMwnK>Bb03~p_dhJFDqtjCzLV(8oeaID{1KuUHPCgW%N=)G#)4>l-xI>Uzxu?WXfM8iDiTx+Y1XAg!`jC
vG&!Zzdj(trWX|yZf5{|g3r{xF_?5Jp~Tx>7EK}*)1r&%cmnM{A*T6UTgqJWw@1sCKFBYxWYm%uA1(UJM@F#sMbK~aKLI1%>T*
H}o=&_^i1Ig{{H^hIADHU{^L${w4=nJ3g+37K17SW8?gJ4%5a|O*ABggSXdhVQ12I0Z*aw#Qz)~Mr<^#)pV1*B?^nq9(i1UGXA
6VrBt9@XN4?xyH`M_EqSmy)lePDwRB=|t04<z|OvJa&AK&lU<`9Qi4Z1jOmKCsyb-t>VjKCsmXw)sGY4`lj4mJgtP0OJE#AISC
roDbyqK&}tu`M_H~u-ympeW1Vx3Voo+2k<^X@ByL^kbHpb1Aq@ue1Pf$G#@DTff65}`#`A=?C^myA7J<Z(+5~S!1e)-4{&{e=L
38n5coj34^;TT&fg;KiIZ<b=m><GA=Cn)RtV`Jq=%3JLPiLgAY_J+1ww5QYKM>wLLCq~3ZYI2bwQ{bLUsr_AmoIQ3qo!P^+2c>
LdPI<976B-P~UC{?Sar<2vtI;3PM5%i6A6~kOV?f2+1HMhfp<yY9O=^Li-_93!wuLItZaU2-QPK0U;%XR1g9oq=t|NLRttlK&T
NyhahwqLQN2YSl0)!t`A~eAH=#oh;@As>-r$p^+BxbgIL!Gv91qdT_41{J}ZPE{`Eop>x1~$2l1~D;$I)czdne6eGvcpApZ41{
Og1G*9Y;h58_`R#J@g>e|-@D`XK)GLHzST{PRHk^FaLbK>YJS{PRHk^FaLbK>YJS{PRHk^FaLbK>YJS{PRHk^FaLbK>YJS{PRH
k^FaLbK>YJS{PRHk^FaLbK>YJS{PRHk^FaLbK>YJS{PRHk^FaLbK>YJS{PRHk^FaLbK>YJS{PRHk^FaLbK>YJS{PRHk^FaLbK>
YJS{PRHk^FaLbK>YJS{PRHk^FaLbK>YJS{PRHk^FaLbK>YJS{PRHk^FaLbK>YJS{PRHk^FaLbK>X{6_}35duOH%HKg2&W;VH=C
Og}8}L&kK!09=~m8=?g7LxeI2;r)Vzeh5tScZW?u_d}X*gff^cqrlf%Oz>+{;GdXA^N&#CheZDnOlS`8mBudtjX;K`0HC%q*lO
oahiT4$mQM0Z6!~GX?>(L6Z_I=mVap{!BmH{l|82Q`9q3F*8%RS!iGN*XfPb)cfv{%pGW}8j(~sdkO!W<koC_HOfTo7LS-^vg1
96000BJ_&z-EG(ztrDc1S!vey3t_1%p?<F?uJBIC6Ee`GBmtjvJkcw7~JTSC6RrNOuyH?mr?%+G-$bHbZAy+egZ5cc(6r61So(
BKyzjKO-v=={fopGz{a4L_+RkoEdPrVC@@H5*yu0`I?>lmFD5{qfkJ@nUurRY`Vv2v*pPx{05k%X5C~Jk+Z7tx?*#}k7=G0@1;
G4V409wbs34UJXf(e{G&<eim*~|c=z&iqkgL6H=J_Y2`rw=JuwlX|$?|&$T1F8S7Q+BD0RDmOR~o(mR;ho|3>fWTeq=%fDuQ)P
g#{d=*q?e}+~oj%br^8^7r=uR3U7J|<THXl-O=f=Tu=xl7D5SR2?jJW;N_ElN}@l!qvyhm2o%EtX}uq&z+$E#2<|~Dd{rgTbS2
(6^H1mXR3I$q*l=Pp{TY#7LJEW#&Px`!e+f_?VnbG^@%*-cjk&G_4|A~B9*`6VmZ6e-qr5)X-?$kT2KQ|S^9;l)03rsH23wd{#
WGk{qtjs9U;=FC@;k7M1<M1)^s-?1hx;b<50E^~AG5HP!ieE%+5+X|V*m2--ZeuRjp5gpa6hU7Vfz{rzGoDa1i;fXM0pyG05ff
|mw^!L${@%pfkJ;<0ZdmG<OiUvU>YRBhG-7pq16=lcRVtbn+bG(8ix`kgIwU(yVM^X{v-v^ApOY?<o|+Vzjo^hFkjFBSg<7cQz
t<3FFwh;V*jU&-bMSnYynFBukNqV|0<cq@W0yRHH81uIxin!X7`%F-)$oSmMqtK*X;ka8SvYi4jW*T*988xl3@KedM)DXftm}m
2P`{h(u=1-2N`%gWqLC$Y+C~$mKU(0-Nc`-$#Axk;S^&)z9tc1VTPx}MCd_qmw2Pi|1Jf7W@6I)TMPppvqV_VgYEH9_G7|k^D~
YF3*$lnmdKd!0B00%{2wyN(Bea3Rxg2Bo#ZtTeBUX7S*DN$+mZ_D@Lhn;oc%i`*<Y&p!M-ByZz??XTN(X-&;OqPJ^y?D_x$hq-
}C>U=P}>m78A-y1n4{5e?Q?rEc|j(L%>c~2-pDx0XttKV24*G0)BBtaC`%mAfO{50a50Mu!|z15QbrgW6lF}!Oms~|D6dg&p<%
efMNvfa8-aPfpnlDXs~f$H)aIvaLDve#zw$Tss6Q){c{2S*0Kkz2D?jh3J?sxMPQc>L=g-_)d4yJR^vfr`kUcKAo&M`-8&ft2>
&6Rj$ry#EASg1cDX^otE-50L9n_Z!h0$73jzq(LH|K#r}{=lBIf!H<gZuw{a%3J`OOBgid^8=laAoP=Y)Hx)c>N$zZ!<WFAeVX
Os|e`Za`8jM2TOWGJjwA0sH|!!tqAvnu34|MNAk+yc)x92sFPD$`EwF0!+Uv;GxBXubkmm5-tPHnhEm(6#>79;}He0k?086Es%
$xvtVUFe}Iw556r@X_lIidbcDYm1o#7q><#Q`{=kE2Qi7mEOJ)1*=%tpwEQ)|t`brACGvNJGz#LWL_c!cDh1e7bD>x$H-w7bdu
n2|pD?q^ONHheU?jL~YjRivR17$~q|61k^1_Z3whoJiKn+SM8%bN!aU{r&75n5Lff(pwF2!I&~uRkKlur<IJ#6rNT=!gtBTY2!
@1^DNI^-hI{F9T5wOK^C2$^~E-=?5aH;KBF@{G{*~`Uqa@LhW>Tnkn?BE<%Z){|vv10D?q@U3-ZL|1CZmF&AcF00FPdBG$uj3O
w`*g5jk}!~^yB692p<2%rR3$U(eWLV(v9yh#v7XeKNLd)G$_f>kIH1vJ_N^*?{EWBZ*#^OMM{6l~~qUarB2fFP7W0ZHdPkOz}|
W4(@mm1_{2VR3|bu)+)5eE>g;m<SqdsrMBwgXK>;0{-<1A_2ai`n_C+fLE!Cy-o{(mn{(`50uyt$<tve01uz61n$!<{@tKB5SG
_q6<Y#=;n$sTf2-mJ!M9r`eDCt6k3e_@(;qN2@16lOyLSQpGP*b5A<QcA?>O5K1#rz-On>tC7wNVYAlOih0C<1$^X@qX{!P+fr
}q;JfaPUx48rPurT(N#NBHY`0L{N3@`F2&Hz)daUGF6oJo&-D`AC4JYHuj|O_Jo@-C)++=yf=3`CAY`ssAP7es$CTG8w^w)tEO
SfU<%>7~jiSaIYW=;MLEK2m&20%OJzLZbrZ=zI3>6HzDW@*tgUq1Rbt9;QxjIg_sLB5)FQCphJaVI_rU;%)Fo5;rlFr_j?ugMV
ddvy;Os-{C<SNlQ6^y5`qA)q9W*UDS9xx?1^B)zbs98;OOT)x573$#sdj}2v4nLu(Jr1Wts44VI(ENPgR8oc-5QvK*sPMJvshQ
83_M(pP>i_Jomz!LP8X<3Gn?70k19>dV?zvRtZJGi_PA{?JJMI+7!|m+kdTx`W^HbQNklcUwyP_0Uo~{8u`9fPrm$+V3C&~+nI
#oQd$A?m)u(A`%&Kl1ksxgi@nVCZeI*Wf%oo(SWqDlAc}KBfBE%v2{SYgQBmO)1c>(=%jh(Mw`I*5L}&qn0Wg>aUWs43KuZ5AP
oOafzrF~~EeZXttpx8KX2Eap{?rR9o`b8qolsnekLD2WZxr_n#faZt`l`mh`t|)k-|x5!Y1HVL`#*p#`Q=y7zx93+-uwRF{9pe
)|8TDzkC+evn|Jr)yHfw4>xqSr?aKaxu1|#jif29CmCj<8vY3C+e{JNi_{9hM6N$fTrQK1F>qPQW=MgjJ!!?e6)MD><W|jUy*A
vSgH}C!L24S7^ALXA_zv90^`SHGaes7s;*FW)?zw7Pq{d*@4BdvahJ<7>iQ1x8PUu<K#6};M9?st+R(rV+`@S&K+_)*pI6I91N
U@E~GN>iUwAggYZ%tsrAz-t586I}lIu=<ylldzWhUuCTR7S%(&l#l5JZ_zx|>tPx2A(<sM&{1?*acI`1ZMDqo;m&D%)kD4B?%)
rw_`9olElQDxC9O{#uYYKq*Ougmv$Hu^H`(d9s&;M~{d~7=l8{`^Z6F)emv+jhl@eFZUR=iSGG>FSY}KfJ_pwRo&w%Ymv`nTFq
}kn|wB|`=4o0y!U|c<6((49gF86@C1nb-vjZSaE2sFdlg}oYm5ALn6u0*ZBKovQjnji%#PY?c>Gji=OF@G7>2|=9}ohW}>sohs
SM2%je29nI=qX9(o_nzbGhR<ij{8d~864H(&qD|*jQmx>e+x8QY6;C2lTPh<-Gil?ua=dH5_29Z5w%Eh=dDuIlwu<p$qMEYP##
2?EOqoCrKg@)(n3oL81pTH`vf$JTBR0F?Yn<);iem}^#o8hqbcEUSMg2k>$lX-PlMO60&b!P}s81a1vkd{V44PdN%5U~W6qm9x
f3gj+D%dM1&eh_8#QGFnN=yBsy|NhE&@CK4jTwCB)-&%_e{Ex<_ka8XOD#%Sm>Mqf3=w;6N~UI8u}e<y5T0JBWbfbz+jkaMcc(
VKzwjR~Y4(O*Ia*p3v*BWldeF&J#>()lw0C5Zy^DiPLJb?uG}e#kM}hQg8PcW_8aT*h4RM2WivrXM+cNrXBTC*2K_e3cAzm)!R
jQb!w#yYYSqtS~)^o8VVQuyL{GsUQ<C{P7JXtv<7#W`Wny8;#-to~TwXVQKs2(O#$SiUxz+aTCP}Dd|nK<d!?6VDO)TQSZSLqS
rK^>c%MCS0dZ_@Nf+g;q&vxLKUXWtDwx7M6=Bn8!O&0Vc5)SAMs4g8cTK{PFX+BW6^g=BNeJHwdR7ylwYv^poI>ZeN6dF$R%?2
Qp2pO>B;+c82kp(EwmN@FG)vs=h~L=>nOomo+;{hVAkPVT{;D(7w5_+)h1U7`9adxl~4p?{s=*o*f+k}bC$6@&l5pZ}0iwBI=7
UamFr<UOvPNkxp(q~ChMvcymANr3b~E4s10@b0_2U3W<9(mSdfI7&lm)^PV&^Es(HZszHjVEnBM71u-sL-D#FF_mL)&Fc_xH_3
_VuS#nh#6JSk9kh_64)L`57dW(?23b|B+9@<3IwT-DP#3n!%+iburZ$dG)WoD@e51$Q-rORc6L+XD<+d<-aY;O;m({W)V<$1tn
2=pPYxYrhZ7Q2-khUc^f?S#`OOV_qKP!JScBi>oHi*q#jv4+|)X{Y>Cu0;x)!T%GG&7&->S(VRe)jCQ+&8odJ(tg(Y`9cU?C_{
Jf`se@b>Stqt=Wm*Ini;xHJv~rQa7%%@uY)!D%x!uXE1gdLut?#SyT#%xGCa@ty(z)7!2Tkp`Wy<d%kKLem7<X??^@c?y^={Y7
$x*O5Ox?bO}q8>A@wEgX7F=S9!zYHy7R7ck<5Jz5iNkwr<|e*zhl*&DPTO>U7bfia168DRb;*kWjYRyqUDK*G|%yOOFl3;VGt=
4v?em1l}ZZ@gTc)#UWC6NT=P!sa3}7cq$FUKys$BR@#nDpYxCFt0-@cl<8VhNenl$V@@-_46Lbc(|bgk{zJ92hM0i&McNHUv5a
eyju041@xz&41F<FQzt|nL4>3yhn7sf#GWbyTQ#@*}TYoe=_&d8^)E{Kg-`~F;m!D5QJeSo!m*O!w{693j^+%DbeP|Vm$JqJk@
9JFlsJZ^oJ9Uqm>()bOfIl2r{V1#c$6U&XvW@C7y?*~}^Dq;@NAc&@Bbi|RJ?}iuhX3u}{jfgj$1wcppIG~U#Lgq532x_y83m6
N%wu#`JZ1+u`VbTT!>9iR>mEO{;!m7^9`@<O8KC}8?2L;4k91Z&YW6?Oq7UZ{?Vre*>OaAj`ahAM6_1MCKeUGGPek{h$;RqG-R
t+c0X{0aZ~eL5;rB;=+`1lNdF!M0l&Hr>_rtsA`o$^&!|u9WE3iy<OEhtIyyj1gqj=Q5{A&yOzp?WpGs&$#%B$)}arO2eWwu|L
3AdQyPsi8qN5La=_#f^~4@WmD+CD9hz4Ktz&}GTl62|-?F8C+T63XA@59aY!{cW76$7VM0Pk2!MsJR|{()(|AtNO>)6aLGb@Mm
tm;Ga1AssCS{SHZ_w!}<sD_1M#3)F1f$_w{*XbpOX(J8hS_3f^Bx?@1Sv>-VN+x1=MZKToS3{YW=4a5ZRe+&b6knlzhk42Te^<
5<Oe_sHJ+IiIUtG$a(4=X{*hb8_{(^aKu9b-~62wxzYKk<1E4D=Qo$m^bdWB}tgY@0M>0s**G?_A7Z&CywqTN}WNgQY4iP`V`=
h_eyL#RYhv3Pn8N*a!<1iKb#Ah)zLSY*xVS1yTo!{>=s@lM_pbdjpOcY5PqT6&)$--*eLCJGUmNvLi7jDZVSd#Jo<4$_V?e$0B
Q|aqXf<miAK@`Ty8^Jd-=Hwil!Bu^_Hojn(IR9uH2YpZnsp%9=O5AW-i<!Q|rmLtaY<EX`rm;vifGsxVh_Kx{bmmVY_-vga9yJ
ek>)y`9?b(L%Q)}8t(A7CmLeUex&?1x`WirLbvd;LBn*nVx+D}B#mh~d_t3a?d~P@5FnOR^|wdIWU8A7l@6{*Olc0>nnt43we^
9yr5WmH#SIIopM6A@Q`k0EeU|7<n3M^Az{wE^H+)V!>f~1UiG$z9%0)LZT2mUSsI8bJX2p=vd$T~~Ki)asWqi`M>ymnRuJ{6YP
_F-!b=%(Ju$jASL{y1uDsyCFhUyx7*EdTx@=tK(%?9BF29)s~pyNo)%|xB4e#q6fZ@hFYjbzUL$eMCF<Zh?t>rTmYE$8U+kdPm
28g$KDL(h`~@V!@u^%l{&H8!yW=hny4loT?z={QAawX^}en9vS2I1g=)KU1M6N?o?v7OsAU_`Sr=izaEg?0PO}qYRq?ZpwuKuC
5_VB9v+_c8EXVkka)eP3tj{5HzF`Z?>U{gIRqMJR!L!c<B5P3v<+V`(Q*I)~$H<7H3GvFJEy!-qzB|&F)b}eVna*r4Tn`XivON
soAyQ$R@+FznvOP9}+gq{Fm+A9!>4dr93WLt6x|+t|vKcoI4wm0(NmOvOZMbt#la?Uq=By_r~RPGY>x<d6GQ4vWoFcOh7<3`AZ
3N=-#m-?`t^Y+0S$cQfipSr?XeIGSPNXri>VGqcy)yO$!t7LP}3@@APCzzlplN-aQdAv7_PB<y2nh*zn2vnBfhk39PGhdzG-hQ
7tr?E-f|$xy|CeZ%f(90>F6e3<Yu2>Si5O^Gxc!9Az!n<(Bm=BG=S$svXnx7agWGq|E>0cX#aKtXvta)Y<_#%P?`39lJGVckpM
XO%BqY5=rEI-Y})>q)mJ<Gw+q;F9!}L?;c;l(e3#*<}Ud&N29JDJEPQfE|!zijk3AKsad;+ENBa(Q+Y|d{hd&oSuGJBIFCedG-
;v<rIR~hbyTNW`)PkaNbbOPKXaTD-n2N=Ff@@;tJTu$(*XGai}tfcmCsK8rL9>|g?q8$kaoRY^Fs^~tuqd&mh}&h3EieZrR)Wp
vnYvInr2OH6UCE;*KsN~Ef$CL3rGnpra|;M$;Bd>T(<h@FMSLexS?gPck$q;o*!`3$O84lm^5;&MJzv@o5Ucr)pwXX4{)RAUB*
7`zW7zH<l18O3Vu62ADm)UgM2ZGUnO6}Ch^qwB<#Vy&c3#pjw@-cF>g1V9T>P~6g_=~pkK`YPPHdymBq3q{`(VmPu1moFRxl1u
e1#|6M|CM7y3K;Ci&(ck_&Gv5(Q0$YHYmoDb<1y+-Y+CNgMOTtLrU#hhinUIjc4PT>XwE4x&P9IU(_A%77N0Ae)!G1Wi37!Kr!
jT%*(+n9V&lD`tKazWfW3b}V1%7QD=JD|2nQCUw^^W?vUb08dj#7aH)3?bVu1;jLiba9OaDmE0?v8<R7GGa8j}^_EzvdO1aI(!
Opx%b^K*$G-&iul6n@)c=K1(J?Sc*6?L(z!ZZdP}A1Uc<Cqx*P4HzS3zN68SIp{l%D;I9K$`?mSpiRWp#E46@Q~|QOqz+C!>sh
sN1qeuelogQR`gW7*@%=Ry?Y!!p>+-`<y5RmTJsh&Q>0HHN?(IkPw~r#U0ue1eOp4^CuK85U8#g>$ZUdS*?=1jXj2!zWLlKA%x
6b45nsW)M5h0+K4i}w1C@^v4jd5RixV(G%q25D9ez_j>eoCxM95%^AEjg_p)=q=2Mcgn5LF9>ISC}Ar)_AW`oS7${3YXELAX@E
fQmX;z8uUy_x^w+KO<jD#fr(-{Pp_QFnf7+hv|LbMzzXze#!Bd{Coqh_wxKo>?uTHSh25@9sU(i2I3b`#F>-u{rmDibl7_()eP
G*4E$%yqmJL=M-yVhicE*Ecv$`(v%>z*rnwF*F_oK*To5?ive@jl-V@Ol*xjfK(>2Hl+D34rjrF<h_+V;CD;WUI;O>_Vug7qi~
`UY!yRkYx{K>#xYX;i*#U1)4n;Yu6dHxNZE<!5hr*czd6czWIhIp1<ya(-pL|PtYaj6H-l*VHTJ7NtwzqT9_zGg))~;_f>HB&m
vWHKegNsVz_D#*GKeL70az%@GNmZ_P(%y=`nHSQlabW5Z+~}TeN{2!(<B*Kh07)x=Z@*#`*2f%8z?aJhf*lks^%C}?VQgBAP&4
aungRsWvVb=vl)K;4Z35M<-SHUq#TRzPQZ;?N**`6|r`-cUqmbncR362)42}NXR$`bVs9zu6Zs&abLRDjED%G}2MIfpGkwytp$
m)D5XR*z3{pBoldG$eg(Wwb>Ers@~ZRg$vr6RFx!E042U5eAaf8LTxAp4k;uLcub0AnRvZNs-yERyuU4!YUTD`q6L%2#~yT8Em
{8qVy|=!Z)`(YpD@<o5QuR_@-U-Eq?<@atQzlF_Sf#RN)*dYbQjUal%Hem}w_xsquUT?~@NH(EJdE^Qh2hPwN$wv37u$?gE_yv
aA7xTj+2vF$M;_Zj{4YeMa+tmkzS>|v+LRtaQs?BFiq5aXrYsYX$<vweDbLh>*#&)G&cV%|)xGj6l(zj37Hv{YIwiV;om8?fT%
ZG+cCH6oRCzV>77IaM~cZAk}j@tpkSjZ9X?v0NFNm?%FGlaIR~n3~M%qA99zs%NPB-bGipiN9LJ(PUO&r}b*k*~T}cJE(D5t4C
MX!aKXMX$7^1857??kXecyL1{@$;v8c6sU5a2&MqvjiJdVz>=s%C?qVRvwnjRuXc9<L6%J`<x=x-(Z;dIX8ixrhbXp}jr{~4jC
YxhADijKpaaT>5^4c|L9X?3mUThTbO+%H2(sxrw#xT5r>a1vsD1W4B&yF6uy<-fMRG#~PF<bbiiG!bq-jjBJVs-#x<=<mkcibr
E3AY)p-<?<(gicj2vkkS7xiXClPXWKV_hn-Ih9a8)FiC60g87pMfoNom92?UiPcfzt0CH<qXXmDZO}xLn*pYk4Ez@T<<|xO&z)
9mO%~v*)zL?77ahT%FcTMHk<%rX5+jfJo!yHNg=9>)GUGbc)KgE<U{ieahO-oG@nOnp!eero@2YZs2nk7orN=^lWy>g}@&6ahO
2~6=<Z=e~uuW*z}fiKyvY}gzMj^IEJGkeEV21)Ph9m6!XiSbw5vQAbjnPXf+b#_!_B%EL!Y-y|{YE)ekoWN{b{hndvG_sk_U8#
v9pJ8WoM~k=jy;(u#TsUdQHSG~zIptVfi_y_;v54Imb^~bzmaSq&+rlop#@0$a^^MKyDaGwIGnOb#Kc|XIi)t1CrgJ>dqAqL8x
uD?$Tbz;c#MMdmY4dN;Y=#`+6W?4BY{W?RqIoiM+rMmLF1Df!aO<!ES=|n`P}{l0tPu^-w2qV+Vy?1>ESvm$M-NF6h{5TvpKJQ
3tcNs|HM^ZR3!gSfc;%bkiXS^KlNI5oqdWKsn=TzJ9F_(<<jtxp|5(46XUt-Q#`RY%<F)!Ks$BR+hvc&!G{7}vJ=4-DmKa&;k8
IScir~~nEbe<Qroq59)jxbM*k_}J3=}jS7phyh1P-P6#q;0VR+}eDKu7~eYZP!LlR_zGu`^wMTfuKZKa)ZDg6gVDu54d!XHA<W
U!F+6zJTZ+%9(6gq<kuKNXlWL_i_isVEDa3cbn;l6C~pIn#!t8M>7HjkE}y<aMlj)Xzk9OViVliQyZlYW5+$}x}@uss$&kVK~n
9WUVk=5FLZyNmh3s-JEqQWh)^BaW{a1anx*9z*f{1U@D_7Hh`DW;gxOGl#?`LD=Ww|e<kL^KMO*X>q~R7dZ{DGxmm8P&eY-e0z
K+4?8x?YJx-PZ5s&T7L5v1)KKqhSH0wpX{XeHOW$g%1JC8;`sXSlgJNx$0cQ7^)*@^UY|JR$IA1XV$Ee>B(n<-)eG)Rroq3D7>
<!@@3m!e(Eh>~7$1?w0(uebsR(ccdYvO1)P$c=|OwCl_eSS|uI+w(VN#*n$_p4@|fI_En~)(>$*%rf8;X>IR6*qJcx)h4n9?Yi
w!>8&lP7H-jsktPs0mo3>*r5e!JkGTsuBrGpN%Bj3Jg7Piuno12Rd{BBkwQ=oF&Y?RbpX^5Ud**R=Yg%)rwIn{PtKQ`xyVkPK^
Gs|nzzUY3seX6#?Q~yeO0+yEe`JE!t?XPUxSJtqCdJGn|io46`R3)#rna*wJ7zUKR*F(BY)H-r<S;r+_LT#`8J(XC!AM;&ztXO
U%PKL5EqB$#-<7-vfDTq1?vL`Y9WO#4CyZ-vT-1yp?uj-=Q7ltE}oWkC`D`3zpDgJyjvS)ev(KxS6-F=y+o3DP;Zfunfypgf$x
es-%CkchS=QVg`R-KIPIqR;xK96=^M)1qXVPpN~x*LD{Wn>dHSKV)OF?=mOzsbz(_Um)wSDAyqjQq>&H|G8_@;gX#QhHx(Z@=l
_b#IGT=D>XoPsa7!m-$u0s{1YPhTZRV=lP9Znb$PG$ow+<jbAm?|1wwH{n@WSPfM%4@@mcEkS`?tR8C>599U4J>r&er?#sM;U#
9;0^S|ixq|JKJS?a+h@oSR!gniYl2AfxARVRG*?wHo4;uVJoG2xCh0SMa95Ppt+Q_TFbvElMz;jRV|I&L_G`inkcy=O<f8ve5O
$c{lhu3s!+&rp=O#r>1y>SZ0n7B%iAOAmohm4v8p5yIeh?TvtjR{K6if|}?2oU?Q5aa$ZOnWT!UudYiczF-=z3aae5at$NR!pu
;K8x>3;>xg`Y?c5wzlBMhLPwTq|mW>4<vfPWPFUza!662)fFt9?XA3HJcs6-|bPEV04q-w0m1h53JcZ}%QitdO>t2p9N3fYVV!
S);#hm23}Wmfm|9UJNSne!IayAIr0XgS;b-M-w20NU3L<VDP7Lbb*<^<h`5K{7p8b|Q9hJyB&>9NQw1+J$Ycc7yn!ZA2wbwXYs
x7n`Rk4H-+>8H<HfbunL@G=)qEQ%axJfXh1uoQLWLhO+s{;hrLwD#XxhD`D{tE=x=3PS(@()wMG4NDMxE^dfI42fcAO%UCVL3Q
e|d6@xPCf-GEokQH?MEy){m+rvb>u2Sq_zPK`_zB)$=*2GNz=E^|BUR_#GFkc~E&M#NB-=<?Zc3x^q!bMYlMP+vM^~Gc{o06lC
b(K?ZXtQT@4k>JG?ZS-&{%BSfTB+4y_|wW3*ONfI;*@t?de(98x+Dqh)P>6x2gEvDGIpS?y=fJ?(I(f?(wr_4D@+3@#=y0-(`_
%OZkW+bZddJD9w0X}-VfMlBcyX}7+|#;dpb7rdp41J*+zE7mCI)FMZF4*K~yT@?dcdbs<#&KV^~}xN6h8|{7Y?lgmy-$`I&xk{
~O`~MV%AbE<w#ZO-AiZ=Az!XRF9fiy&tup@om(ZK?Q0hfq)wPaSzJ4m4!O_Pde&e^iI^-zo((jQp-@gB1%!N{RC8QH6B%u<)hN
4DNv3Bc+|u&1GS@Af;vnWqJDgzfht)=LcM2aqqe-0iW+FnLG^VMqY8Fbp*H=s9@Sa76BWJ)V;a=Rg++CuY(7Y>#esHX#%j)fci
s>ohH|5PK|0y^jQN`AMN#b=l+_sKz@jr0U2ePOh7Q+NmB+~`x>H9i-~O@jpAqdQ(r9*dh9vF4?v$G?eQ}2^B;2<b-|86dYlt;E
mzB0%dp)AH)<lu5+$Wogy0PZ1inq}5(bU1Xgr#}dO_^`!XLTQ|N}Cg%cQ#~OehE%Ouyb_7hPnKvHd*nVugO<!Uudao4Y3E@J(<
?}`kbdsudJFD^DY%<qAQaDtEsexGLIU&*%Ee^Kf8p8u8K|-RU1<VGomWM)e`Ygf6z15ykSxG?tR$!2KK`4Y(_UYzwO;}PnuI~T
&}!O+8{8iO>(PxB)uwQ-$56}Q_3yVX62qS2ON=H(}sb~nQo&HuWL+NX6aR(yLQ{kEq#N!iPo@S_#b4`O^G-(<fZ5@+m3zq{e@h
qbQ!X1PhbKkqUYkx>n$x70goCSwcd4p#P$BQLbeQ-n}8S_Xh-%5#EA;gg-wJJ$zW+STJVDzU#l7)s+h!01NMh=ww`4NTZ32L{8
Dq}=uvJ8B{pEgsVhd)7L4+IiM78)yEA=u#QJwU>ulsr7yem(rU|ST$2u3H&yxjFwS(^$s?$o&E;}`{LO1AHwJn+~DV(&sDyuzf
&!kJ;ai<B$1sdY&e9RP*{4ve=*^$L18>8a3*l9dNie@L{RwF&VI&C1zoOQz#yOPphQz!W#H_z$fElLHs(t2x}gcs!0s5v=Tl8p
z_wuzQ!9}B^g(oY?`o3r+kRV&U)6mv%cxj5i6w{$SOGa_EmA|VrieUpb5rfGn&QWa9#s50^o;_qBx#e<83OTN1j`Q;p8+|qvzV
>wvKZNNsCXIf_R9F2JyiS4@WfE11W`n#8+t}xgM3b~BgI+wa->}zLsm~{h(FMB8ErL!%#jo7Y=Vb{m)SW5r-Lr0o!j9BHTu-Nk
^dL)J*Q@%6p{|Z{zvaS{}!`X@qklZS<EL+!OeotFLP9Jq3qFJK(1TOs@bhSZ~a_@G0{(ehn`$g4z%Y>CG<4}A_h&$#B%dtb{$L
F1%Fa^z4wi8vjE0v41P9{IN2WtYDA{JMqP}rifDp?Nm3vs0iv_^S}WIw;$delQDWXxf==|tr=4O*sNiR65c`6ZX>cteuJ84_#A
RWDlAia=1DQf!!1j~k4`46+glbgDbc(s^j%PvFP9jA}Q=sv#w*ZMn<PN=D-NArq!zhE*{`mpXY#YS$R|oF|^&+i*HcuE5$^uVt
s&R<H*58v?U0wJQP@a+h7Nsx}e~cwj`bE@o#-8or>oF&WPTg*~$AE8j)#a^`KTMDAKxh$C-pa6E;!M2u0@m!+r1`53KWhVqB*y
8nyO2DuC^oO7Dcw1pZG$x@sZt*z0U0x;tgz=Y>;@e3(ENL6^fBY9(|s(i~8+1U%9ZeMC`yd`)7ts4!`2T$pgY)<n%OKB^u0jbz
#vYeLvurF;a>2D@Iw=siNRbM$PIYOO%!l0HKzR;00=@ZI&^68SQ;GUK`qVc@e^3xt%qPR6Xt0!QrD(7@q`f8CTwOW6oNxrh^Sk
L4>d?eXP5XGwkSp;qtO(@X{$tDtk#T!jkk8seLv4mDzy~hwt682?e={t1;I_>lo(xZPjX94B0Nvc+Toimo%B*Lb3gciQ>Ia}Pb
xX2~ay|62nxTP(eA6%|VQKdM;$ipV_Da-^jT)$Q-%S@Gs1s8C008pmf6y`SWVFSi9Sn*6diP5+k-5i$D{LfgOj4!*jbR_htdsa
(s=<OG1$zyGr15Qop_-k|I>2ZeoRH<%MtG@V@9hb1W=S|{t<M$=+&I=5e=%fat0}!fpSq2K$;J{MmUk%!~JN-RuUD9;pG9tG@T
0TBuPY$e4@2OPGiO@*Jv#T}vgiIY@(bmdtCWi@X2+MDTu(-4|W1?iH+OjLWmD@R*5=XY`SQ24MAfK}_%(THRkfvYAF?>?{w?-;
2b~tQR;7S9RDqe|m8m_0=kLg(E>*^+{iKOA+%hi*n2Hu7k;|Z*hr-`6BiOR3984@|*rG-f+M@FYhBug~u*2wc1V)lY?mRdy4#3
vQqajXcEo*T$Z4tFJy;s{katZG3f=;RikU>Fsdtd)IIXK^cg(@c=5SCPUb+>yxT*yKYM**VQb&>nEpC^n7rmD#F00cxorX|R}c
#ZYw+%}zrrDGj6X6rv;8;4*}PGQP=F#pY-jr^H1;iYPsK5dZ4u+Y>aVEvxQj?`oVcGZ^-c7l+RD9t_xK!_HMlI76XLjsbn6K97
rzSeeoW^5+~2%c?W*h)Stox6yfXPp^p^5?0R1T_hHl@JBbYEvAj7YpP8u8d*TnV<kf%A9Mjy+f}_Gj-n#;sns=|D)C=s;N%^Bo
h%qg+TXmC8LoDKXVbOrF!tC9d0`G``h?QLSvR`ySgk>+*S*47OEe@6N~rtv9`X^x%6JW--WgP>P%3B=P@>xumY5Ni)cTohx0N)
?GYVQ2DWQA^g0<sW(O84|6Jt(Igx#T6*BTPdZ00FXu9keAd28>Uu#MwomQ}TNEmx#3YbzZdOHt^6=s=f1dbmzkac+Vz{P9a%1D
EA_iljL{l%g7FcZ~AXd10pUA#~1deFe5lq<p&k-S{sT-dp%ebo-#9sPR~0K8v5m!p(p4ub*zSAL#4s7t~!?zL;lu%@8tT&?n|L
>)%aPW5CrS*B7D81=!9Njm94gn4XMUCO&z;-j-p|O(=_`#o^?#G&SdZgJE~_sd5r2hP7I|LdD7@r@S62baXWULpdfxJY$M$lWj
!l<!fE`xBEWF=$6d;;5<jbc{a3iy}p+!&<vJ0m5~X<V=1dcQ&ZR$Rp{3-+g6fP!c51h?^;vbc@3mN!%M4&?M_kdH=lnMI&q~=k
fUDf5UHqIbYQlk$(T*5E_J#%Xgfg~Pm=<gl&5-7Wj|R_pL}x^wK2(sdi!=4YDuaGwe<V<QS9<=)capKQCB`wqQJ0j)TiG#Q0K4
OP)m<Dqav3cM=c%Ep~i@9sKucc)X&$Qs0-6vDEo7LsF!~}ihBNZH>&7%Kg!0pqFxU7p#J))1-1NpH!7L#Kozj<C|ci1)EQL=>U
qm44MiBTk+a-z@1r6dx4X({tyb*Ksv6dRfYwxqg(6TYMD{Lcd^T{1d4kMolLA#?m2QhJ5^KcGe>-_sW)T0}rn-HXEe8g5o^0-5
Wsh3@zV(Q`R$=+zuD)tl{fgwOER8fy-39E4uDPCcB$*HL4Mp}Xxo68&;ZZBOG?gKBqki1cUMS+8IP!x<!3EE-vq8Xd`mO^V*zZ
h=QR?L)Vvb9i6lixD#cJIF3oE<4p$zX)^4uYF2*A?hb(VcyU1{5C6OnD_d4XkfwvrVVG}ke9VSexFa=cV<_Iu2X58HIri5MBb)
ELJD+OQO-I6ewwi&Ao~R#mEQIozd&IA=YQH^&q><x1?%dfJ8mca~yvVw5(W%#%qyaXf5oPbMyzvIwb2a*2t8^bd~A+n-4{Y~ze
tDB|wQ%eB%0qe|48BQPXnFOmtL=9W9rBN9+45*p;}F7sRVq1*s2@BF2R8v4!H>**gx8U{T4TklA^`<ZvosK`$(F<Y*3%g++3%7
Oj7{C1&SmG^#>ODeKyrL3)8!lfiTm|N^dE|1t-0~Q^-PQmk(-s4-)zak@KgWUq0tJ;_r^x?|O@0_(DDY`%=zx%z_di>?xou_o#
ymsvn*+Q$84#`0~kDI9kF-W1nTAi4R!|py=T?{M|{d0b_6HRRa&V_8FaWpI@S2_GabcYULtx}b%`N?8+Ft^(EgW00Kx%1+&HcH
-4KW*QXxqWS^1?)dBx-;)u*YI1}WkI>ic!2e=V}`;6O0<$XZde(HuX?!+qZuAbRpb~+<1<(#he(oBQMkcjv?x8s%^RYsdRoQmE
0MA!GUZNr|An`xyFU_#VN1V?=1HhYU9R{c^$06ntq$G&vUMEK*9&t$4-606XI5qHGxQ;aIVxOWnt0x_4$Il<^elRLTV1!)B$Bi
;h}rprYOI#L%DjI{3HGFwt|c4$4CEN|rbU*KesYg($JS;pTF*n<jU&y-uB(Zltu+VG;Mnv3$t~)gA0^pWC$5*`N48-}(~}JbV-
(U<!A->^Ub1Sc>+|(lXLK({t@~g&X}>m|)5=X%-#GVzof`RWf$F5dX>2@lF60y~D)Vw>bZ?-to~<G?_KI+qoSK6quuUe&z_Iu2
74y{Or=94Qp#?UPG<k-YZIrpOQVf9R8J@GOF3%Vb8gp0a29vDwpTBh`7s=-s#)-S_PE50rgwj31cOiQTO=|m09Y#D%;w;>q1G<
pX`MM7}Fdxl1Qo)YRs3EWmt%DWYLL}d7m?SV^A%_cA_eZ(p`sz`;g~2iDg+YfvVrLZjAg?)Z22EsEzjsbIByrBRw1%pa%z0Hm#
!oAJ!>s!eZHzkWCMV&ftld=_Vmd%zuzx^$x=9DMlsJ{PIPzkU@+oEla#V6&9LPvPJKM^Mo!yf9O-Qj5$p3_$_0*(1DK)WG_r(v
EBsXQcQvHeLZai-!$8M3Wi9R>bfMXb9v1=Rav$!eYxW8HVvWmf(LXv6{;9Xgn!c%;JWb@RqtqW2N$?g@r#F<!oU6iDyqL8iN3T
yIH-=5rGr#l_h*``K_Whqh)pwtTiMd=q7{)}m07I&oW0w(q-KK;iFXQE7+B7&HtaHQn)Pqi3GGk>%$CsXQW#sp`&Ksg$ylBM#H
KQy-*8L4mHY%W)G)|^$@R<$)4RMTB9yA;r&F&J_Bxw2>)ovY3l@pF5|dSq%XR&vQYS!_~{fE<ioP|n^H!1{n>nR%#8r<vM&5p7
cEy+lG);H?34t`Zo<mWbj^ZfUwR?n7it^?Wstb3-$&vL}{8J8VcoE;kAaMB7Kd+c({QW&M|P8i7cMhLJJtz_|lR^0J6g7KJ(6v
gEkz=CcDPGmx05_(^_6A8tMJ%-iW$0z)aQ5RsRZEhO%?_6e`vrQKrVIi|!dDzV$5vPz4y&ku22p&w*Bhtn|ns+u-QL%(#e|E#l
@Wn_UNj;?NGXo#2%Bv$n(h5Ear<6``Eq?IQZ7$ie>$^{dzn9~1L8Zz176pdzjMzV%tl&SUE4TkWOXD)V67s*c?URk&)^ANf&D=
N2@rxF`0w@LN&fY2E%9!HuPdY+DPFb~k=t4!|jh+S6Iu)f~DQI4hDOfA{il&yT%d{AOB@>0YZQiX<(N(@@KKZ<X}2&yoG;gG%Z
7CvTR_}@s{jYhzL)--6b<*hOH6wNM6X3L7>JW`pm(#4T;b-ZbSrMY<P%jq}C!63dyVwiBTze3`}SUMdst0<*@NMy%+5wkx^YNd
=`;jG=2ZqQ#)$&o-4GS*NwT*KD#9U14euAQ+nb|Q~d*Z1tLYL^eE%BjU$60+a5fPrhct-xSa<RKM~oG{guk916>Ha|HkcH%Heq
aR@J;l8)rzzTvs9IoVZ8(R$JgIr>u)ohBWa#)O9=UOX+7^iQ2(OTI<QXgD>b*&{=KThIF)$vFtkyzv|{_!aF^rjhK=;W=&s9;U
E$ieB#98nK7NN$>xKUy5hVlGz&%q-%s5Usi@K7zH79RaZpV_Uf3j4`uyd22(TRlZWE_Ed9q;byTxRm2XevMPhDqP<v57+XUePE
u(k^Q_Bpy##G)y707~Nhw|5%AaYKW#r(cQ~^QJPfG3FEsXd)BKalB;$YnBoEgA6oRc=u%dyNbzM2VWfyvoSBQERE&W3KQtwEA?
#V|^o4PJM-H4OxORJTN})o0CS^98}mDt3i}h^(5prx7zl(#=`Y?Ru6LAK7*p03_%jvRX`5_F#I{z;l-Uq|u0Nydt-g#yM}?G9)
HhvBxgD93e;QouJb_c$JwEh%{Z;YP`KS&hhOu`F?%FX^zl5(Rfi}*piTcG0SAhnrch0K<1_sb4{ur+J;x{EomiJY`JIJaP{@h{
ps5i+Z>qgkgPS*O!L^~kF)IKhR}=@+06DE^{yAq(&CGFTE)x5Lti0AR-|8ZAdsq-B_dN08cX~UH+Y0$NZ%HDTe@5H*^8+pX+`g
o-0QsYJS%apSTNM&jKjw2(d9zLd7@<;U)IDPYHgGKAPP+)qyu>KtNV@B4a>fFW!JLji#Fsw>#^igu1K;Q;?TKT6i*#wO!+yAc~
&!>lxZfXWqD6FQfKR-$h{Y)QqF_&cZnyyRCaIFiYnT0W|cW;HW`rMEJWvbWKJ?tmQ*P{d*PkJEz0a=f?@ML&|=szwO>eXGL)`L
J%*{WhvgzyDk<gL`E3L_8aooqCuE;CM}VdewQ)q;z_bRz&4d}e6r_QhpLHQ(r*UAp<GUoyo1+|Lep>5ITxH697M9p0*2T(~N2M
8Qx%*^O{F(|A1w{;O)kp4fYWrBZE8g0liyL|R?%QT#WCA-aXR4Ol{nPZCli7la-X+MN)z=S-zFDYIkobpgrg4K~kQ&Q+*6wWdz
7?nOdYN*SofB#6A3~-s=sDv?XAC>He|JS5d2Q{&RmJ=INj%UH`Y+<Y$sa`YUz^Sx+0haJWaV^L<3?uRja2EbvStJ78-ion3G?Q
_@k%R6B^BGpG#5v6or8L^E&cc+Y9?D&D?$T8P5=uaXBkc)38xBHhH}$5d%tt?XOgn&Jdr)F+lPLLQCpmo!p%w`YQ^`+A1EU({<
%I9wpp4#kX!CTTG{-yd%K%4Bq}xKEh<*bKGSZLB*|38Qn5%C0W=Xw++n0KPdLxzs*DTyypdzTiEk8HCs#-<CJvunMdVv8VS(%r
bHcn9XK5!`cJ_GCth?)IZ(1!+AAhg+xX7_DQ}wpcP8_ITjTC*IwQ=+I?#bc|VM9Q-Q~Xrabv@S1+f_up5GT+8AJew|-71*epUM
-ECxS;D1DAwCeXiwwTz>BvNugx>h5p2_o}JmRMu&32EX+#&NU7SCb*MFs(qL%?QYyCvXk=pssZvTCnf)0uowAI-JS!rW;;Q32t
+kx$h})ZGAH6eu){gpE`N)!OJO5rDHKfR{7g-M{pFbjti6v(AuZcob)G&`V)$xV92EasdJt5Fcs(rPGk9k$sADcD7W5%6VTllU
)Qp$|xAZm-{NA%ugN?w$#2CcyoP2EODkd(|<^ZJqW@mdy6z`WL~tI}5XZ%WRKI#8r@RB_mj@M=>qNSaSv8)>sA=ggA-$T*s1Ui
<C$Zh^wWY9%Wp)A;sRFPYRoj6B18JvvEqGvxMnCsourHB?esPW^F<v1L3fw>eOhQ{Jo`%{$bxz|6f_qDaf*U7h=0@8I?5qP0t-
oF3&`19+~AfNPBt%eHMiZyf?}GkGrYWI(b8+k&sAF1NgUsdVhp4B?e^bt_H8>`fecv|Gi?(I+b?0b*4WT9?Y5i!_4C4I#Q@LPk
xc2<sHLory&1Nj<4sllNPkYyQHT+9l0HHh13DS4TvP03onNc~2=gYhlakx#fZ12Uv`woMILAR&$ta=&7HxB<IsuOO9W!&k!qQ;
UUR;&Si5lvq_ZI4VQYXyS}x=g6u+2RQgW=o186VsT>^^xzKS=;~c`$L?L&@oSWHmtahGT;>Idul2zOAfhk(rSCL!|H&0My6paK
~xNJ(D&J>}V$yR??Hu?AA&KZPTluhJ8qb|8+(NWfB%A}5rRloi5<YDs)<JuLM&xZEavAOaDGDeF)4$$8yZ@s%vFI~{!!V6Ps15
8!#v#vK3E=VxAneLCV9gb`h4L|4@DAo*!hpeXyMbel6WNLcJQr?Ww%A3rtLhPzJx+ksY)B`7(T`eLWCLrF@+FLv)`t%fTLs*a$
6eg>Q;sKtd3@Ke%SZxf&<;i8>NE7(a9CM`Q!cL=!&#A4^$KhSA7tebls7=?oy*-^5W%1NqocGWrKNv|7HNduKzs&rJt&BtMB;W
Zove(MgAKHko^(fOha=nG%h~OE=P5=H(*->uKUYK#bY0kXxfK)5v<hen>ybu>wp7Ew9!(_ZZFvGL`UiMq9k}dMeix(~-T}12zc
_pc>+foHKDJn=@(`vm$=_nFCRdcXrsg%hOV<Ia!Bg;>}f1xV{@9Lb2;c8`O9ouxLk!Mnp^*Z75?<WFc%v1MDtK*xu&}An3EsZ;
eci5PkTD&qi^1Ni{@+19nPCcPKLV}*D3X2jdtN1@ZvG`l@!4R{dY1uLsSDGbs@T1(UJDNKY;h2nP)YmK%vDd9sLn38IsY#Wksr
$z_bbQ%?19J?m<g(Y1CIvqweWuc-s_16wo~L)eh+N6GyAsnp=GAG$;LNuq5}QdPbh$rBuuCNhkn*YQc6W?<{T=JtzZEE2%=3C<
oMD6`JEME0o>Z_~YUjs+Yc=fgth1IgOJk>}1-vag%E72`s%j7)$()gbyGmk9N_baf*UXY$gGnr%HI!GmhIx-ycy_d}iCb$157q
K2O!aIzhbudGhg(k#KM)&~JvFw`f&C=dX|jlVx0))0Q}QG`aZ_8H$js_`cH{dI<c6I!okE;J!wboNN3sL>z$`F28Acp?Yh|XqR
JJl><hDu2??LYuXXPIp0m_SN=7Ve`HrU1F$lOBZFd$aRRtOeHgvr2uH!do^MbIiV2Q@0gkVs;hdySl&s^=!kG>w{ICQ@oh0)&Y
M4HvADlr=e0ip(r>k6Ems6b;4apCx4&m#ZV^nIr^2M<iQotEnu*kII4w4C#{j{k@dsx$iwqd!sd+aNd~W7JM*X+&Cj83$1Pkl*
jEzoB~JW5PL|{YFDv_Q!8C)C2K_bDYKh3-2}4uX%qGklZ@TU1D`2B{KiSP=jf*-QC=i@ivctGy}6sY{hWPBJHPiy(-uuDXi7~@
Zhq^hPtR7L#LhOcC$86@e)*WFhIBM_IvBfjk0sQ=8+<E|43JD=)j};0#5HcMOR91Qet7Z#BjXg$BXta#awwS%yW}iPw;`W%ZBX
w_iWu5jUb<`9L=N@mYqKcE72*t2_qgs0VYjB)_D+k6tQnAbB62c%mh6!>I>s@@>}R$u>pK^@EQ^>q#;Tm24e}kl(dAena-&MB<
gYe{_1x4n>za71(a6d~RVhIsOC`xAoYu|Vi3roq%r9NI_d#-v`>^)8z*bDD`CQ0*#Fkd)-r?0m(||<u#S0Ojb+nrsQ9k#bRLyQ
@y!GbK5%UGSEBCAnuA8<+&AWozcqg*)pkyR;vqRLtv0Szlr*^)8EMCji=vq5Lu()hQ&l}@?WYW%clu&>l2=Rg0`m@H28ymw#!P
Wc|(rn&!cgwox6zjJYnJ=dC+OBAK@%R_cJ2f-*-2^R^OI+-bJ*Pf3)zxB1YpQxJ%D~vLO;e2)vZ?~uM&p#_g6U}<cZ-;!!SwG?
S2^}=)}xX7Pu=+XK?O$hMHgETXs^q)s70}uHQ5Z}S70Ek-AJu^C882LI2roJvWbYVL)^|T)uKMbybHxa)x*kk{nQ;n5;AE;V<g
peo>z5~L&+}^bBHgjH7qxur-bj*B_<F5TZ#)3aRAU5p709uU}o#-)3>+w1m;M^$;8M*c1~HQG%<envAqOYa=+|HgWf#97r#;#`
buZh50foS<-BlFz|TGEy+LgUuZVYU$s1frkCe`c+oht~UmU$HW@h6!^|!;>J3}HC%};6=XJ6$E6-t(p!pYNXc8SQEB>B<XqsNs
>_TNlv$Hf}ap6g4fQ||R=1>*kK?hK(CU%85^xpoEhe{Y>fE%~Y!rLG!8J!||B)xYWn>gv9qP*42$HR|G}Ar$AYJ*XbRC~C{x%c
y&aU!ZO`jH7;@F^T#ZHHr#f_9ZG~(>c^r#8K4s^Pi!<nK^~(J#ie>g!u<*chE<u(;tqZK8gPXRWmh)y7S2hYRj{MYqgVCQ2!60
@eN1
"""

if __name__ == "__main__":
    # A second file that imports kshipra shall get this very module, not load it once more.
    sys.modules.setdefault("kshipra", sys.modules["__main__"])
    _script()
