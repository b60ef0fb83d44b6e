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
import ctypes
import functools
import itertools
import math
import operator
import os
import platform
import struct
import sys
from array import array


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


# ---------------------------------------------------------------------------------------
# 2. Files


# ---------------------------------------------------------------------------------------
# 3. Text


# ---------------------------------------------------------------------------------------
# 4. Reference


# ---------------------------------------------------------------------------------------
# 5. Machine code
#
# Plain Python does some tens of millions of multiplications a second, the processor under it
# some hundred billion.  The difference is reached by writing the processor's own instructions
# into memory and calling them.  The one idea: a kernel (one of the inner loops of chapter 4) is
# written once, as a Python function over a builder, which only records a list of instructions.
# That list is then
#
#     interpreted   in Python, which defines what it means and tests it on any machine (5.1),
#     encoded       into bytes for x86-64 (5.2) or arm64 (5.3),
#     called        from memory that the system lets us execute (5.4).
#
# The kernels themselves are in 5.5, the threads that run them side by side in 5.6.
# Not here: a compiler.  Nothing is optimised; what a kernel says is what runs.

# ---------------------------------------------------------------------------------------
# 5.1 Builder and interpreter
#
# A processor computes in registers, of which it has few: for us, registers of 64 bits that hold
# whole numbers and addresses, and registers of 256 bits that hold vectors.  A vector is eight
# float32 lanes, eight int32, sixteen int16 or thirty-two int8; the bits do not know which, the
# operation decides:
#
#     byte    0       4       8       12      16      20      24      28      31
#            +-------+-------+-------+-------+-------+-------+-------+-------+
#     f32x8  | lane 0| lane 1| lane 2| lane 3| lane 4| lane 5| lane 6| lane 7|
#            +-------+-------+-------+-------+-------+-------+-------+-------+
#            |          low half             |          high half            |
#
# A kernel takes as many virtual registers as it likes, and the allocator below maps them to
# real ones.  A virtual register may be set again and again.  Memory is reached by a register
# holding an address plus a constant number of bytes, the displacement, and in no other way.
# There is no fused multiply-add, on purpose: every multiplication and every addition rounds on
# its own, so that plain Python can follow to the bit.
#
# An instruction is a tuple: the name of its operation, then its operands.  How many operands, and
# of what kind, is told by the operation's signature, a letter each:
#
#     I V   an integer or vector register that the operation sets        (before the "=")
#     W     a vector register that it reads, then sets                   (before the "=")
#     i v   an integer or vector register that it reads
#     j     an integer register or a Python int
#     n     a constant: int, str, bytes or tuple
#     d     a displacement in bytes; the last operand, 0 if left out

class IntReg:
    """A virtual register of 64 bits: a signed whole number, or an address."""

    __slots__ = ("k", "id")

    def __init__(self, k):
        self.k, self.id = k, k.n_regs
        k.n_regs += 1

    def __add__(self, b): return self.k.add(self, b)
    def __sub__(self, b): return self.k.sub(self, b)
    def __mul__(self, b): return self.k.mul(self, b)
    def __and__(self, b): return self.k.and_(self, b)
    def __or__(self, b): return self.k.or_(self, b)
    def __xor__(self, b): return self.k.xor(self, b)
    def __lshift__(self, b): return self.k.shl(self, b)
    def __rshift__(self, b): return self.k.sar(self, b)
    def __iadd__(self, b): return self.k.add(self, b, to=self)
    def __isub__(self, b): return self.k.sub(self, b, to=self)
    def __imul__(self, b): return self.k.mul(self, b, to=self)
    def __iand__(self, b): return self.k.and_(self, b, to=self)
    def __ior__(self, b): return self.k.or_(self, b, to=self)
    def __ixor__(self, b): return self.k.xor(self, b, to=self)
    def __ilshift__(self, b): return self.k.shl(self, b, to=self)
    def __irshift__(self, b): return self.k.sar(self, b, to=self)
    def __repr__(self): return f"i{self.id}"


class VecReg:
    """A virtual register of 256 bits.

    lane: "f32", "i32", "i16" or "i8", what the operators + - * / << >> take it for.  v.i8 is the
    same register seen as bytes, and so on; operations called by name look at the bits alone.
    """

    __slots__ = ("k", "id", "lane")

    def __init__(self, k, lane, id=None):
        self.k, self.lane, self.id = k, lane, id
        if id is None:
            self.id = k.n_regs
            k.n_regs += 1

    f32 = property(lambda self: VecReg(self.k, "f32", self.id))
    i32 = property(lambda self: VecReg(self.k, "i32", self.id))
    i16 = property(lambda self: VecReg(self.k, "i16", self.id))
    i8 = property(lambda self: VecReg(self.k, "i8", self.id))

    def _apply(self, verb, b, to=None):
        method = getattr(self.k, f"{verb}_{self.lane}", None)
        if method is None or (type(b) is VecReg and b.lane != self.lane):
            raise TypeError(f"{verb} of {self.lane} and {getattr(b, 'lane', type(b).__name__)} "
                            "is no operation; view the register as another lane, v.f32 or v.i8")
        return method(self, b, to=to)

    def __add__(self, b): return self._apply("add", b)
    def __sub__(self, b): return self._apply("sub", b)
    def __mul__(self, b): return self._apply("mul", b)
    def __truediv__(self, b): return self._apply("div", b)
    def __lshift__(self, b): return self._apply("shl", b)
    def __rshift__(self, b): return self._apply("sar", b)
    def __and__(self, b): return self.k.and_(self, b)
    def __or__(self, b): return self.k.or_(self, b)
    def __xor__(self, b): return self.k.xor(self, b)
    def __iadd__(self, b): return self._apply("add", b, self)
    def __isub__(self, b): return self._apply("sub", b, self)
    def __imul__(self, b): return self._apply("mul", b, self)
    def __itruediv__(self, b): return self._apply("div", b, self)
    def __ilshift__(self, b): return self._apply("shl", b, self)
    def __irshift__(self, b): return self._apply("sar", b, self)
    def __iand__(self, b): return self.k.and_(self, b, to=self)
    def __ior__(self, b): return self.k.or_(self, b, to=self)
    def __ixor__(self, b): return self.k.xor(self, b, to=self)
    def __repr__(self): return f"v{self.id}"


# What an operation means is a Python function of the values of its operands.  An integer register
# holds a Python int in -2**63..2**63-1, a vector register 32 bytes.  The next functions open such
# bytes into lanes and close lanes into bytes; closing rounds to float32 or drops the bits above.

_f32 = struct.Struct("<8f").unpack
_i32 = struct.Struct("<8i").unpack
_u32 = struct.Struct("<8I").unpack
_i16 = struct.Struct("<16h").unpack
_u16 = struct.Struct("<16H").unpack
_i8 = struct.Struct("<32b").unpack
_pack_u32 = struct.Struct("<8I").pack
_pack_u16 = struct.Struct("<16H").pack


def _to_f32(lanes): return array("f", lanes).tobytes()
def _to_i32(lanes): return _pack_u32(*[x & 0xFFFFFFFF for x in lanes])
def _to_i16(lanes): return _pack_u16(*[x & 0xFFFF for x in lanes])
def _to_i8(lanes): return bytes([x & 0xFF for x in lanes])
def _mask(lanes, n_bytes): return b"".join([b"\xff" * n_bytes if x else bytes(n_bytes) for x in lanes])
def _i64(x): return ((x & 0xFFFFFFFFFFFFFFFF) ^ 0x8000000000000000) - 0x8000000000000000


def _map2(function, read, write):
    """Return the vector operation that applies function to each pair of lanes."""
    return lambda a, b: write(map(function, read(a), read(b)))


def _map1(function, read, write):
    """Return the vector operation that applies function to each lane."""
    return lambda a: write(map(function, read(a)))


def _shift(function, read, write):
    """Return the vector operation that shifts each lane by a constant number of bits."""
    return lambda a, n: write([function(x, n) for x in read(a)])


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
    a, b = _f32(a), _f32(b)
    return _to_f32([a[0] + a[1], a[2] + a[3], b[0] + b[1], b[2] + b[3],
                    a[4] + a[5], a[6] + a[7], b[4] + b[5], b[6] + b[7]])


def _swap_halves(a): return a[16:] + a[:16]
def _pick_i32(a, order): return b"".join([a[4 * i:4 * i + 4] for i in order])


def _hsum_f32(a):
    a = _hadd(a, a)
    a = _hadd(a, a)
    return _map2(operator.add, _f32, _to_f32)(a, _swap_halves(a))


def _fold(function, read, write):
    """Return the vector operation whose every lane is function over all eight lanes."""
    step = _map2(function, read, write)

    def meaning(a):
        a = step(a, _swap_halves(a))
        a = step(a, _pick_i32(a, (2, 3, 0, 1, 6, 7, 4, 5)))
        return step(a, _pick_i32(a, (1, 0, 3, 2, 5, 4, 7, 6)))
    return meaning


def _madd(a, b):
    a, b = _i16(a), _i16(b)
    return _to_i32([a[i] * b[i] + a[i + 1] * b[i + 1] for i in range(0, 16, 2)])


def _dot4(acc, a, b):
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
    return lambda base, x, disp: _store(base + disp, (x & ((1 << 8 * n_bytes) - 1)).to_bytes(n_bytes, "little"))


def _load_lanes(form, write):
    """Return the load of as many packed lanes as `form` says, each widened by `write`."""
    n_bytes = struct.calcsize(form)
    return lambda base, disp: write(struct.unpack(form, _load(base + disp, n_bytes)))


def _load_first(base, n, disp):
    n = min(max(n, 0), 8)
    return _load(base + disp, 4 * n) + bytes(32 - 4 * n)


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
_add, _sub, _mul = operator.add, operator.sub, operator.mul

# The operations.  Each row: name, signature, lane type of the result, meaning.  The meaning takes
# the operands after the "=" (an operation with W takes that first) and returns what is set.
#
#   Integers wrap at 64 bits.  Shifts by a constant less than the lane's width.
#   min_f32 and max_f32 return the second operand where the two do not compare (a NaN).
#   Float results that are NaN are some NaN: which one differs between processors.
#   f32_to_i32 of NaN or of what does not fit 32 bits is unspecified on other processors.
#   Masks are lanes of all ones or all zeros; `select` needs bytes of 0x00 or 0xff.
#   shuffle_i8 needs indices 0..15, or 128..255 for a zero; it stays within each half.
#   dot4_us needs u <= 127 as unsigned bytes, dot4_ss needs b >= -127: then no step overflows.
#   Per-lane shift counts are 0..31.  div and rem are unsigned, and the divisor is not 0.

_OP_ROWS = [
    # integer registers
    ("imm",         "I=n",   None, _i64),
    ("mov",         "I=i",   None, lambda a: a),
    ("add",         "I=ij",  None, lambda a, b: _i64(a + b)),
    ("sub",         "I=ij",  None, lambda a, b: _i64(a - b)),
    ("mul",         "I=ij",  None, lambda a, b: _i64(a * b)),
    ("div",         "I=ii",  None, lambda a, b: _i64((a % 2**64) // (b % 2**64))),
    ("rem",         "I=ii",  None, lambda a, b: _i64((a % 2**64) % (b % 2**64))),
    ("iand",        "I=ij",  None, lambda a, b: a & b),
    ("ior",         "I=ij",  None, lambda a, b: a | b),
    ("ixor",        "I=ij",  None, lambda a, b: a ^ b),
    ("shl",         "I=in",  None, lambda a, n: _i64(a << n)),
    ("shr",         "I=in",  None, lambda a, n: _i64((a % 2**64) >> n)),
    ("sar",         "I=in",  None, lambda a, n: a >> n),
    ("min",         "I=ij",  None, min),
    ("max",         "I=ij",  None, max),
    ("load_i64",    "I=id",  None, _load_int(8, True)),
    ("load_i32",    "I=id",  None, _load_int(4, True)),
    ("load_u32",    "I=id",  None, _load_int(4, False)),
    ("load_i16",    "I=id",  None, _load_int(2, True)),
    ("load_u16",    "I=id",  None, _load_int(2, False)),
    ("load_i8",     "I=id",  None, _load_int(1, True)),
    ("load_u8",     "I=id",  None, _load_int(1, False)),
    ("store_i64",   "=iid",  None, _store_int(8)),
    ("store_i32",   "=iid",  None, _store_int(4)),
    ("store_i16",   "=iid",  None, _store_int(2)),
    ("store_i8",    "=iid",  None, _store_int(1)),
    # threads: atomic, and seen by other threads in the order written
    ("load_acquire",  "I=id",  None, _load_int(8, True)),
    ("store_release", "=iid",  None, _store_int(8)),
    ("fetch_add",     "I=iid", None, _fetch_add),           # returns what was there before
    ("pause",         "=",     None, lambda: None),
    ("prefetch",      "=id",   None, lambda base, disp: None),
    # any vector: 32 bytes as they are
    ("const",       "V=n",   None, lambda data: data),
    ("vmov",        "V=v",   None, lambda a: a),
    ("vload",       "V=id",  None, lambda base, disp: _load(base + disp, 32)),
    ("vstore",      "=ivd",  None, lambda base, v, disp: _store(base + disp, v)),
    ("vand",        "V=vv",  None, _map2(operator.and_, bytes, bytes)),
    ("vor",         "V=vv",  None, _map2(operator.or_, bytes, bytes)),
    ("vxor",        "V=vv",  None, _map2(operator.xor, bytes, bytes)),
    ("vandnot",     "V=vv",  None, _map2(lambda x, y: ~x & y & 255, bytes, bytes)),
    ("select",      "V=vvv", None, lambda mask, yes, no: bytes(
        [y if m & 0x80 else n for m, y, n in zip(mask, yes, no)])),
    # half a vector, a lane, several lanes
    ("load_i8x16",    "V=id",  "i8", lambda base, disp: _load(base + disp, 16) + bytes(16)),
    ("load_i8x8",     "V=id",  "i8", lambda base, disp: _load(base + disp, 8) + bytes(24)),
    ("load_f32",      "V=id",  "f32", lambda base, disp: _load(base + disp, 4) + bytes(28)),
    ("store_i8x16",   "=ivd",  None, lambda base, v, disp: _store(base + disp, v[:16])),
    ("store_i8x8",    "=ivd",  None, lambda base, v, disp: _store(base + disp, v[:8])),
    ("store_f32",     "=ivd",  None, lambda base, v, disp: _store(base + disp, v[:4])),
    ("load_high",     "V=vid", None, lambda v, base, disp: v[:16] + _load(base + disp, 16)),
    ("load_f32_n",    "V=iid", "f32", _load_first),          # n lanes, the rest 0 and not read
    ("load_i32_n",    "V=iid", "i32", _load_first),
    ("store_f32_n",   "=ivid", None, _store_first),          # n lanes, the rest not written
    ("store_i32_n",   "=ivid", None, _store_first),
    ("load_i32_at",   "V=in",  "i32", lambda base, disps: b"".join([_load(base + d, 4) for d in disps])),
    ("broadcast_i8x16", "V=id", "i8", lambda base, disp: _load(base + disp, 16) * 2),
    ("broadcast_i64x4", "V=id", "i8", lambda base, disp: _load(base + disp, 8) * 4),
    ("broadcast_f32x8", "V=id", "f32", lambda base, disp: _load(base + disp, 4) * 8),
    ("broadcast_i32x8", "V=id", "i32", lambda base, disp: _load(base + disp, 4) * 8),
    ("broadcast_i16x16", "V=id", "i16", lambda base, disp: _load(base + disp, 2) * 16),
    ("broadcast_i8x32", "V=id", "i8", lambda base, disp: _load(base + disp, 1) * 32),
    ("splat_i32",     "V=i",   "i32", lambda x: (x & 0xFFFFFFFF).to_bytes(4, "little") * 8),
    ("broadcast_lane", "V=vn", None, lambda v, lane: v[4 * lane:4 * lane + 4] * 8),
    ("extract_i32",   "I=vn",  None, lambda v, lane: _i32(v)[lane]),
    ("insert_i32",    "V=vin", "i32", _insert_i32),
    # f32x8
    ("add_f32",     "V=vv",  "f32", _map2(_add, _f32, _to_f32)),
    ("sub_f32",     "V=vv",  "f32", _map2(_sub, _f32, _to_f32)),
    ("mul_f32",     "V=vv",  "f32", _map2(_mul, _f32, _to_f32)),
    ("div_f32",     "V=vv",  "f32", _map2(_divide, _f32, _to_f32)),
    ("min_f32",     "V=vv",  "f32", _map2(_smaller, _f32, _to_f32)),
    ("max_f32",     "V=vv",  "f32", _map2(_larger, _f32, _to_f32)),
    ("sqrt_f32",    "V=v",   "f32", _map1(_square_root, _f32, _to_f32)),
    ("round_f32",   "V=v",   "f32", _map1(_whole(round), _f32, _to_f32)),      # half to even
    ("floor_f32",   "V=v",   "f32", _map1(_whole(math.floor), _f32, _to_f32)),
    ("cmp_f32",     "V=vnv", "i32", lambda a, how, b: _mask(map(COMPARE[how], _f32(a), _f32(b)), 4)),
    ("i32_to_f32",  "V=v",   "f32", _map1(float, _i32, _to_f32)),
    ("f32_to_i32",  "V=v",   "i32", _map1(_int32, _f32, _to_i32)),             # half to even
    ("hadd_f32",    "V=vv",  "f32", _hadd),
    ("hsum_f32",    "V=v",   "f32", _hsum_f32),   # ((l0+l1)+(l2+l3)) + ((l4+l5)+(l6+l7)), every lane
    ("hmax_f32",    "V=v",   "f32", _fold(_larger, _f32, _to_f32)),
    ("load_f16x8",  "V=id",  "f32", _load_lanes("<8e", _to_f32)),
    ("load_bf16x8", "V=id",  "f32", _load_lanes("<8H", lambda h: _to_i32([x << 16 for x in h]))),
    ("store_f16x8", "=ivd",  None, lambda base, v, disp: _store(
        base + disp, b"".join(map(_f16_bytes, _f32(v))))),
    # i32x8
    ("add_i32",     "V=vv",  "i32", _map2(_add, _i32, _to_i32)),
    ("sub_i32",     "V=vv",  "i32", _map2(_sub, _i32, _to_i32)),
    ("mul_i32",     "V=vv",  "i32", _map2(_mul, _i32, _to_i32)),
    ("min_i32",     "V=vv",  "i32", _map2(min, _i32, _to_i32)),
    ("max_i32",     "V=vv",  "i32", _map2(max, _i32, _to_i32)),
    ("max_u32",     "V=vv",  "i32", _map2(max, _u32, _to_i32)),
    ("abs_i32",     "V=v",   "i32", _map1(abs, _i32, _to_i32)),
    ("shl_i32",     "V=vn",  "i32", _shift(operator.lshift, _i32, _to_i32)),
    ("shr_i32",     "V=vn",  "i32", _shift(operator.rshift, _u32, _to_i32)),
    ("sar_i32",     "V=vn",  "i32", _shift(operator.rshift, _i32, _to_i32)),
    ("shlv_i32",    "V=vv",  "i32", _map2(operator.lshift, _u32, _to_i32)),
    ("shrv_i32",    "V=vv",  "i32", _map2(operator.rshift, _u32, _to_i32)),
    ("cmpeq_i32",   "V=vv",  "i32", lambda a, b: _mask(map(operator.eq, _i32(a), _i32(b)), 4)),
    ("cmpgt_i32",   "V=vv",  "i32", lambda a, b: _mask(map(operator.gt, _i32(a), _i32(b)), 4)),
    ("hsum_i32",    "V=v",   "i32", _fold(_add, _i32, _to_i32)),               # in every lane
    ("hmax_u32",    "V=v",   "i32", _fold(max, _u32, _to_i32)),
    ("widen_i8x8",  "V=id",  "i32", _load_lanes("<8b", _to_i32)),
    ("widen_u8x8",  "V=id",  "i32", _load_lanes("<8B", _to_i32)),
    ("widen_i16x8", "V=id",  "i32", _load_lanes("<8h", _to_i32)),
    ("widen_u16x8", "V=id",  "i32", _load_lanes("<8H", _to_i32)),
    ("store_i32_as_i8", "=ivd", None, lambda base, v, disp: _store(
        base + disp, bytes([min(max(x, -128), 127) & 255 for x in _i32(v)]))),
    # i16x16
    ("add_i16",     "V=vv",  "i16", _map2(_add, _i16, _to_i16)),
    ("sub_i16",     "V=vv",  "i16", _map2(_sub, _i16, _to_i16)),
    ("mul_i16",     "V=vv",  "i16", _map2(_mul, _i16, _to_i16)),
    ("shl_i16",     "V=vn",  "i16", _shift(operator.lshift, _i16, _to_i16)),
    ("shr_i16",     "V=vn",  "i16", _shift(operator.rshift, _u16, _to_i16)),
    ("sar_i16",     "V=vn",  "i16", _shift(operator.rshift, _i16, _to_i16)),
    ("widen_i8x16", "V=id",  "i16", _load_lanes("<16b", _to_i16)),
    ("widen_u8x16", "V=id",  "i16", _load_lanes("<16B", _to_i16)),
    ("extend_i8",   "V=vn",  "i16", lambda a, half: _to_i16(_i8(a)[16 * half:16 * half + 16])),
    ("extend_u8",   "V=vn",  "i16", lambda a, half: _to_i16(a[16 * half:16 * half + 16])),
    ("extend_i16",  "V=vn",  "i32", lambda a, half: _to_i32(_i16(a)[8 * half:8 * half + 8])),
    ("extend_u16",  "V=vn",  "i32", lambda a, half: _to_i32(_u16(a)[8 * half:8 * half + 8])),
    ("madd",        "V=vv",  "i32", _madd),                  # pairs of i16 products, added in i32
    # i8x32
    ("add_i8",      "V=vv",  "i8", _map2(_add, bytes, _to_i8)),
    ("sub_i8",      "V=vv",  "i8", _map2(_sub, bytes, _to_i8)),
    ("min_u8",      "V=vv",  "i8", _map2(min, bytes, bytes)),
    ("max_u8",      "V=vv",  "i8", _map2(max, bytes, bytes)),
    ("abs_i8",      "V=v",   "i8", _map1(abs, _i8, _to_i8)),
    ("sign_i8",     "V=vv",  "i8", _map2(lambda x, s: -x if s < 0 else x if s else 0, _i8, _to_i8)),
    ("cmpeq_i8",    "V=vv",  "i8", lambda a, b: _mask(map(operator.eq, a, b), 1)),
    ("cmpgt_i8",    "V=vv",  "i8", lambda a, b: _mask(map(operator.gt, _i8(a), _i8(b)), 1)),
    ("shuffle_i8",  "V=vv",  "i8", _shuffle_i8),             # (table, index)
    ("dot4_us",     "W=vv",  "i32", lambda acc, u, s: _dot4(acc, u, _i8(s))),
    ("dot4_ss",     "W=vv",  "i32", lambda acc, a, b: _dot4(acc, _i8(a), _i8(b))),
    ("dot4_us_m",   "W=vid", "i32", lambda acc, u, base, disp: _dot4(
        acc, u, struct.unpack("<4b", _load(base + disp, 4)) * 8)),
    # rearranging
    ("unpack_lo_i8",  "V=vv",   "i8", lambda a, b: _unpack(a, b, 1, 0)),
    ("unpack_hi_i8",  "V=vv",   "i8", lambda a, b: _unpack(a, b, 1, 8)),
    ("unpack_lo_i16", "V=vv",   "i16", lambda a, b: _unpack(a, b, 2, 0)),
    ("unpack_hi_i16", "V=vv",   "i16", lambda a, b: _unpack(a, b, 2, 8)),
    ("unpack_lo_i32", "V=vv",   "i32", lambda a, b: _unpack(a, b, 4, 0)),
    ("unpack_hi_i32", "V=vv",   "i32", lambda a, b: _unpack(a, b, 4, 8)),
    ("unpack_lo_i64", "V=vv",   "i32", lambda a, b: _unpack(a, b, 8, 0)),
    ("unpack_hi_i64", "V=vv",   "i32", lambda a, b: _unpack(a, b, 8, 8)),
    ("shuffle_i32",   "V=vn",   None, lambda a, order: _pick_i32(       # order: 4 of 0..3, per half
        a, [half + i for half in (0, 4) for i in order])),
    ("blend_i32",     "V=vvn",  None, lambda a, b, bits: b"".join(      # bit i set: lane i from b
        [(b if bits >> i & 1 else a)[4 * i:4 * i + 4] for i in range(8)])),
    ("halves",        "V=vvnn", None, lambda a, b, low, high: b"".join(  # 0 1: of a, 2 3: of b
        [(a + b)[16 * i:16 * i + 16] for i in (low, high)])),
    # control, told apart from the rest by the interpreter and the encoders
    ("call",     "=iiii", None, None),           # address, then its three arguments
    ("loop",     "=in",   None, None),           # counter, number of the block
    ("endloop",  "=in",   None, None),
    ("if",       "=injn", None, None),        # a, how, b, number of the block
    ("else",     "=n",    None, None),
    ("endif",    "=n",    None, None),
    ("while",    "=injn", None, None),
    ("endwhile", "=injn", None, None),
]


class Op:
    """An operation.  sets, updates: whether it sets its first operand, and reads it before."""

    __slots__ = ("name", "verb", "letters", "sets", "updates", "lane", "meaning", "accepts")

    KINDS = {"i": (IntReg,), "v": (VecReg,), "n": (int, str, bytes, tuple), "d": (int,)}

    def __init__(self, name, verb, signature, lane, meaning):
        result, reads = signature.split("=")
        self.name, self.verb, self.lane, self.meaning = name, verb, lane, meaning
        self.letters = result + reads
        self.sets, self.updates = bool(result), result == "W"
        self.accepts = set(itertools.product(*[self.KINDS[c] for c in reads]))


# Where an operand may be a register or a Python int, those are two operations: add and add_imm.
OPS = {}
for _verb, _signature, _lane, _meaning in _OP_ROWS:
    OPS[_verb] = Op(_verb, _verb, _signature.replace("j", "i"), _lane, _meaning)
    if "j" in _signature:
        OPS[_verb + "_imm"] = Op(_verb + "_imm", _verb, _signature.replace("j", "n"), _lane, _meaning)


class Builder:
    """A kernel: the list of its instructions, and the methods that append to it.

    There is a method for each operation, called with the operands after the "=" of the signature;
    it returns the register that it sets, a fresh one, or `to` where that is given.  Operators on
    registers are the same methods.  args_pointer, chunk, scratch: the three parameters.
    """

    def __init__(self, name):
        self.name = name
        self.instructions = []
        self.n_regs = 0
        self.fields = {}              # name -> register, in the order of the 64-bit fields
        self.blocks = []              # [start, else or None, end]: positions of loop, if, while
        self.open_blocks = []
        self.last_if = None
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
        return getattr(self, "_op_" + name)(*operands, to=to)

    # Vectors known when the kernel is built: one value for all lanes, or a list with one for each.

    def const_f32x8(self, x): return self._constant(x, 8, _to_f32, "f32")
    def const_i32x8(self, x): return self._constant(x, 8, _to_i32, "i32")
    def const_i16x16(self, x): return self._constant(x, 16, _to_i16, "i16")
    def const_i8x32(self, x): return self._constant(x, 32, _to_i8, "i8")
    def zero_f32x8(self): return self.const_f32x8(0.0)
    def zero_i32x8(self): return self.const_i32x8(0)
    def zero_i16x16(self): return self.const_i16x16(0)
    def zero_i8x32(self): return self.const_i8x32(0)

    def _constant(self, x, n_lanes, write, lane):
        lanes = [x] * n_lanes if isinstance(x, (int, float)) else list(x)
        if len(lanes) != n_lanes:
            raise ValueError(f"constant of {len(lanes)} lanes; needs 1 or {n_lanes}")
        return self._op_const(write(lanes), to=VecReg(self, lane))

    # Blocks, used as context managers: with k.loop(n): ...

    def loop(self, n):
        """Run the block n times, none if n <= 0; n: a register or int.  As: the rounds left."""
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
            k._control(self.kind, *self.operands, number)
        k.open_blocks.append(number)
        return self.operands[0] if self.kind == "loop" else None

    def __exit__(self, *error):
        k = self.k
        number = k.open_blocks.pop()
        k.blocks[number][2] = len(k.instructions)
        if self.kind in ("if", "else"):
            k.instructions.append(("endif", number))
        else:
            k.instructions.append(("end" + self.kind, *self.operands, number))


def _add_method(op):
    """Give Builder the method that appends one `op`.  Checks kinds, so that mistakes show where made."""
    name, lane, accepts, sets, updates = op.name, op.lane, op.accepts, op.sets, op.updates
    n_operands = len(op.letters) - sets
    has_disp = op.letters.endswith("d")
    vector = op.letters[:1] == "V"
    like = 1 if name == "select" else 0            # the operand whose lane type the result has

    def method(self, *operands, to=None):
        if updates:
            to, operands = operands[0], operands[1:]
        if has_disp and len(operands) < n_operands:
            operands += (0,)
        if tuple(map(type, operands)) not in accepts:
            raise TypeError(f"{name} takes {op.letters[sets:]!r}, got {operands}")
        if sets:
            if to is None:
                to = VecReg(self, lane or operands[like].lane) if vector else IntReg(self)
            self.instructions.append((name, to, *operands))
            return to
        self.instructions.append((name, *operands))

    setattr(Builder, "_op_" + name, method)
    if not hasattr(Builder, name):
        setattr(Builder, name, method)


def _register_or_int(name, position):
    """Return the method that picks operation `name` or its _imm form by the operand at `position`."""
    on_register, on_int = getattr(Builder, "_op_" + name), getattr(Builder, "_op_" + name + "_imm")

    def method(self, *operands, to=None):
        return (on_int if type(operands[position]) is int else on_register)(self, *operands, to=to)
    return method


for _op in OPS.values():
    _add_method(_op)
for _verb, _signature, _lane, _meaning in _OP_ROWS:
    if "j" in _signature:
        _method = _register_or_int(_verb, _signature.index("j") - _signature.index("=") - 1)
        setattr(Builder, "_op_" + _verb, _method)
        if OPS[_verb].sets:
            setattr(Builder, _verb, _method)


def _either(int_name, vector_name):
    """Return the method that picks the integer or the vector operation by its first operand."""
    on_ints, on_vectors = getattr(Builder, "_op_" + int_name), getattr(Builder, "_op_" + vector_name)

    def method(self, a, b, to=None):
        return (on_vectors if type(a) is VecReg else on_ints)(self, a, b, to=to)
    return method


Builder.and_, Builder.or_ = _either("iand", "vand"), _either("ior", "vor")
Builder.xor, Builder.andnot = _either("ixor", "vxor"), Builder.vandnot
Builder._control = lambda self, name, *operands: getattr(self, "_op_" + name)(*operands)


def _load_method(lane):
    def method(self, base, disp=0, to=None):
        return self._op_vload(base, disp, to=to or VecReg(self, lane))
    return method


for _lane, _shape in (("f32", "f32x8"), ("i32", "i32x8"), ("i16", "i16x16"), ("i8", "i8x32")):
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
        name = op.verb
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
        elif name in ("if", "while", "endwhile"):
            start, middle, end = blocks[reads[3]]
            holds = COMPARE[reads[1]](reads[0], reads[2])
            if name == "endwhile" and holds:
                at = start + 1
            elif name != "endwhile" and not holds:
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

ENCODERS = {}           # name of an instruction set -> its encoder class; 5.2 and 5.3 fill it


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
        name = op.verb
        if name in ("else", "endif", "endloop", "endwhile"):
            open_scopes.pop()
        for position, x in enumerate(instruction):
            if type(x) is not IntReg and type(x) is not VecReg:
                continue
            r = x.id
            if first[r] is None:
                first[r], scope[r] = at, open_scopes[-1]
            if first[r] == at and (position != 1 or not op.sets or op.updates):
                raise ValueError(f"kernel {kernel.name}, instruction {at}: {name} reads {x}, "
                                 "which was not set before; set it first")
            if scope[r] not in open_scopes:
                raise ValueError(f"kernel {kernel.name}, instruction {at}: {name} names {x}, first "
                                 "set in a block that has ended; set it before that block")
            if last[r] < at:
                last[r] = at
            if open_loops and first[r] < open_loops[-1][0]:
                for start, end in open_loops:
                    if first[r] < start:
                        last[r] = max(last[r], end)
                        break
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
    return ValueError(f"kernel {kernel.name} needs {max(busy)} {kind.__name__} and its temporaries "
                      f"at instruction {at}, {kernel.instructions[at]}, but there are {have}; "
                      "keep fewer values at once")


def allocate(kernel, encoder):
    """Return (placed, ints, vectors): the instructions on real registers, and which were used.

    placed: a list of [function of the encoder, operands...]; after the operands of the operation
    come its temporaries, and for `call` the integer registers whose value is needed afterwards.
    The register that an operation sets may be one that it reads for the last time; a temporary
    is never any of the others.
    """
    first, last = _lifetimes(kernel)
    ending = [[] for _ in kernel.instructions]
    for r, at in enumerate(last):
        if at >= 0:
            ending[at].append(r)
    real = [None] * kernel.n_regs
    free_ints, free_vecs = list(reversed(encoder.int_order)), list(reversed(range(encoder.n_vectors)))
    free_of = {}                        # register -> the list it came from
    used_ints, used_vecs = set(), set()
    for r, parameter in enumerate(encoder.parameters):
        if last[r] >= 0:
            real[r], free_of[r] = parameter, free_ints
            free_ints.remove(parameter)
            used_ints.add(parameter)
    placed = []
    for at, instruction in enumerate(kernel.instructions):
        function, n_temps = encoder.rows[instruction[0]]
        temps = ()
        if n_temps:
            if len(free_vecs) < n_temps:
                raise _too_many(kernel, VecReg, encoder.n_vectors, first, last)
            temps = free_vecs[-n_temps:]
            del free_vecs[-n_temps:]
            used_vecs.update(temps)
        ended = ending[at]
        for r in ended:
            if real[r] is not None:
                free_of[r].append(real[r])
        line = [function]
        for x in instruction[1:]:
            kind = type(x)
            if kind is IntReg or kind is VecReg:
                r = x.id
                if real[r] is None:
                    free = free_ints if kind is IntReg else free_vecs
                    if not free:
                        have = len(encoder.int_order) if kind is IntReg else encoder.n_vectors
                        raise _too_many(kernel, kind, have, first, last)
                    real[r], free_of[r] = free.pop(), free
                    (used_ints if kind is IntReg else used_vecs).add(real[r])
                    if r in ended:      # set, and never looked at
                        free.append(real[r])
                line.append(real[r])
            else:
                line.append(x)
        if temps:
            line += temps
            free_vecs += temps
        elif instruction[0] == "call":
            live = [r for r in free_of if first[r] < at < last[r]]
            if any(free_of[r] is free_vecs for r in live):
                raise ValueError(f"kernel {kernel.name}: a vector register is busy across a call; "
                                 "store it before")
            line.append(tuple(real[r] for r in live))
        placed.append(line)
    return placed, used_ints, used_vecs


def encode(kernel, isa, abi=None):
    """Return the bytes of a kernel for instruction set `isa` and calling convention `abi`."""
    encoder = ENCODERS[isa](isa, abi or host_abi())
    _emit(kernel, encoder)
    return encoder.finish()


def _emit(kernel, encoder):
    placed, ints, vectors = allocate(kernel, encoder)
    encoder.blocks = kernel.blocks
    encoder.begin(ints, vectors, any(line[0] == "call" for line in kernel.instructions))
    for function, *operands in placed:
        function(encoder, *operands)


# ---------------------------------------------------------------------------------------
# 5.2 x86-64
#
# An x86-64 instruction is 1 to 15 bytes.  Most of ours are vector instructions in the VEX form,
# which name three registers, d = a op b:
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
# them: y and x are ymm and xmm, r and q integer registers of 32 and 64 bits, m memory.  They fill
# reg, vvvv, r/m in turn, or reg, r/m where there are two; "<" says that r/m comes first.  A digit
# stands in reg as one more bit of opcode.  ".m" or ".x" tells forms of one mnemonic apart.

_VEX_ROWS = {
    "vmovdqu":      (0x6F, 2, 1, 0, 1, "yy"),   "vmovdqu.m":    (0x7F, 2, 1, 0, 1, "<my"),
    "vmovdqu.x":    (0x6F, 2, 1, 0, 0, "xx"),   "vmovdqu.mx":   (0x7F, 2, 1, 0, 0, "<mx"),
    "vmovaps":      (0x28, 0, 1, 0, 1, "yy"),
    "vmovq":        (0x7E, 2, 1, 0, 0, "xx"),   "vmovq.m":      (0xD6, 1, 1, 0, 0, "<mx"),
    "vmovss":       (0x10, 2, 1, 0, 0, "xx"),   "vmovss.m":     (0x11, 2, 1, 0, 0, "<mx"),
    "vmovd":        (0x6E, 1, 1, 0, 0, "xr"),   "vmovd.r":      (0x7E, 1, 1, 0, 0, "<rx"),
    "vpextrd":      (0x16, 1, 3, 0, 0, "<rx"),  "vpinsrd":      (0x22, 1, 3, 0, 0, "xxr"),
    "vmaskmovps":   (0x2C, 1, 2, 0, 1, "yyy"),  "vmaskmovps.m": (0x2E, 1, 2, 0, 1, "<myy"),
    "vbroadcastss": (0x18, 1, 2, 0, 1, "yx"),   "vbroadcasti128": (0x5A, 1, 2, 0, 1, "yx"),
    "vpbroadcastb": (0x78, 1, 2, 0, 1, "yx"),   "vpbroadcastw": (0x79, 1, 2, 0, 1, "yx"),
    "vpbroadcastd": (0x58, 1, 2, 0, 1, "yx"),   "vpbroadcastq": (0x59, 1, 2, 0, 1, "yx"),
    "vextracti128": (0x39, 1, 3, 0, 1, "<xy"),  "vinserti128":  (0x38, 1, 3, 0, 1, "yyx"),
    "vperm2i128":   (0x46, 1, 3, 0, 1, "yyy"),  "vperm2f128":   (0x06, 1, 3, 0, 1, "yyy"),
    "vpermq":       (0x00, 1, 3, 1, 1, "yy"),   "vpshufd":      (0x70, 1, 1, 0, 1, "yy"),
    "vpermilps":    (0x04, 1, 3, 0, 1, "yy"),   "vpblendd":     (0x02, 1, 3, 0, 1, "yyy"),
    "vpblendvb":    (0x4C, 1, 3, 0, 1, "yyy"),
    "vaddps":       (0x58, 0, 1, 0, 1, "yyy"),  "vsubps":       (0x5C, 0, 1, 0, 1, "yyy"),
    "vmulps":       (0x59, 0, 1, 0, 1, "yyy"),  "vdivps":       (0x5E, 0, 1, 0, 1, "yyy"),
    "vminps":       (0x5D, 0, 1, 0, 1, "yyy"),  "vmaxps":       (0x5F, 0, 1, 0, 1, "yyy"),
    "vsqrtps":      (0x51, 0, 1, 0, 1, "yy"),   "vroundps":     (0x08, 1, 3, 0, 1, "yy"),
    "vcmpps":       (0xC2, 0, 1, 0, 1, "yyy"),  "vhaddps":      (0x7C, 3, 1, 0, 1, "yyy"),
    "vcvtdq2ps":    (0x5B, 0, 1, 0, 1, "yy"),   "vcvtps2dq":    (0x5B, 1, 1, 0, 1, "yy"),
    "vcvtph2ps":    (0x13, 1, 2, 0, 1, "yx"),   "vcvtps2ph":    (0x1D, 1, 3, 0, 1, "<my"),
    "vpand":        (0xDB, 1, 1, 0, 1, "yyy"),  "vpandn":       (0xDF, 1, 1, 0, 1, "yyy"),
    "vpor":         (0xEB, 1, 1, 0, 1, "yyy"),  "vpxor":        (0xEF, 1, 1, 0, 1, "yyy"),
    "vpaddb":       (0xFC, 1, 1, 0, 1, "yyy"),  "vpsubb":       (0xF8, 1, 1, 0, 1, "yyy"),
    "vpaddw":       (0xFD, 1, 1, 0, 1, "yyy"),  "vpsubw":       (0xF9, 1, 1, 0, 1, "yyy"),
    "vpaddd":       (0xFE, 1, 1, 0, 1, "yyy"),  "vpsubd":       (0xFA, 1, 1, 0, 1, "yyy"),
    "vpmullw":      (0xD5, 1, 1, 0, 1, "yyy"),  "vpmulld":      (0x40, 1, 2, 0, 1, "yyy"),
    "vpminsd":      (0x39, 1, 2, 0, 1, "yyy"),  "vpmaxsd":      (0x3D, 1, 2, 0, 1, "yyy"),
    "vpminub":      (0xDA, 1, 1, 0, 1, "yyy"),  "vpmaxub":      (0xDE, 1, 1, 0, 1, "yyy"),
    "vpmaxud":      (0x3F, 1, 2, 0, 1, "yyy"),
    "vpabsb":       (0x1C, 1, 2, 0, 1, "yy"),   "vpabsd":       (0x1E, 1, 2, 0, 1, "yy"),
    "vpsignb":      (0x08, 1, 2, 0, 1, "yyy"),
    "vpcmpeqb":     (0x74, 1, 1, 0, 1, "yyy"),  "vpcmpgtb":     (0x64, 1, 1, 0, 1, "yyy"),
    "vpcmpeqd":     (0x76, 1, 1, 0, 1, "yyy"),  "vpcmpgtd":     (0x66, 1, 1, 0, 1, "yyy"),
    "vpsllw":       (0x71, 1, 1, 0, 1, "6yy"),  "vpslld":       (0x72, 1, 1, 0, 1, "6yy"),
    "vpsrlw":       (0x71, 1, 1, 0, 1, "2yy"),  "vpsrld":       (0x72, 1, 1, 0, 1, "2yy"),
    "vpsraw":       (0x71, 1, 1, 0, 1, "4yy"),  "vpsrad":       (0x72, 1, 1, 0, 1, "4yy"),
    "vpsllvd":      (0x47, 1, 2, 0, 1, "yyy"),  "vpsrlvd":      (0x45, 1, 2, 0, 1, "yyy"),
    "vpmovsxbw":    (0x20, 1, 2, 0, 1, "yx"),   "vpmovzxbw":    (0x30, 1, 2, 0, 1, "yx"),
    "vpmovsxbd":    (0x21, 1, 2, 0, 1, "yx"),   "vpmovzxbd":    (0x31, 1, 2, 0, 1, "yx"),
    "vpmovsxwd":    (0x23, 1, 2, 0, 1, "yx"),   "vpmovzxwd":    (0x33, 1, 2, 0, 1, "yx"),
    "vpackssdw.x":  (0x6B, 1, 1, 0, 0, "xxx"),  "vpacksswb.x":  (0x63, 1, 1, 0, 0, "xxx"),
    "vpmaddwd":     (0xF5, 1, 1, 0, 1, "yyy"),  "vpmaddubsw":   (0x04, 1, 2, 0, 1, "yyy"),
    "vpshufb":      (0x00, 1, 2, 0, 1, "yyy"),
    "vpunpcklbw":   (0x60, 1, 1, 0, 1, "yyy"),  "vpunpckhbw":   (0x68, 1, 1, 0, 1, "yyy"),
    "vpunpcklwd":   (0x61, 1, 1, 0, 1, "yyy"),  "vpunpckhwd":   (0x69, 1, 1, 0, 1, "yyy"),
    "vpunpckldq":   (0x62, 1, 1, 0, 1, "yyy"),  "vpunpckhdq":   (0x6A, 1, 1, 0, 1, "yyy"),
    "vpunpcklqdq":  (0x6C, 1, 1, 0, 1, "yyy"),  "vpunpckhqdq":  (0x6D, 1, 1, 0, 1, "yyy"),
    "vpdpbusd":     (0x50, 1, 2, 0, 1, "yyy"),
}
# As the encoder wants them: opcode, mmmmm, and the byte W vvvv L pp without its vvvv.
VEX = {name: (opcode, mmmmm, (w << 7) | (l << 2) | pp)
       for name, (opcode, pp, mmmmm, w, l, _) in _VEX_ROWS.items()}

# Integer instructions: the bytes before mod reg r/m (a W of 1 goes into REX), reg or r/m first.
_REX_ROWS = {
    "mov":     (1, b"\x89", "<qq"),      "add":     (1, b"\x01", "<qq"),
    "sub":     (1, b"\x29", "<qq"),      "and":     (1, b"\x21", "<qq"),
    "or":      (1, b"\x09", "<qq"),      "xor":     (1, b"\x31", "<qq"),
    "cmp":     (1, b"\x39", "<qq"),      "test":    (1, b"\x85", "<qq"),
    "xor.r":   (0, b"\x31", "<rr"),      "imul":    (1, b"\x0f\xaf", "qq"),
    "cmovg":   (1, b"\x0f\x4f", "qq"),   "cmovl":   (1, b"\x0f\x4c", "qq"),
    "mov.q":   (1, b"\x8b", "qm"),       "mov.r":   (0, b"\x8b", "rm"),
    "movsxd":  (1, b"\x63", "qr"),       "lea":     (1, b"\x8d", "qm"),
    "movsx.w": (1, b"\x0f\xbf", "qm"),   "movzx.w": (0, b"\x0f\xb7", "rm"),
    "movsx.b": (1, b"\x0f\xbe", "qm"),   "movzx.b": (0, b"\x0f\xb6", "rm"),
    "mov.mq":  (1, b"\x89", "<mq"),      "mov.mr":  (0, b"\x89", "<mr"),
    "mov.mb":  (0, b"\x88", "<mb"),      "neg":     (1, b"\xf7", "3q"),
    "div":     (1, b"\xf7", "6m"),       "prefetcht0": (0, b"\x0f\x18", "1m"),
    "lock xadd": (1, b"\x0f\xc1", "<mq"),
    "add.8":   (1, b"\x83", "0q"),       "add.32":  (1, b"\x81", "0q"),
    "or.8":    (1, b"\x83", "1q"),       "or.32":   (1, b"\x81", "1q"),
    "and.8":   (1, b"\x83", "4q"),       "and.32":  (1, b"\x81", "4q"),
    "sub.8":   (1, b"\x83", "5q"),       "sub.32":  (1, b"\x81", "5q"),
    "xor.8":   (1, b"\x83", "6q"),       "xor.32":  (1, b"\x81", "6q"),
    "cmp.8":   (1, b"\x83", "7q"),       "cmp.32":  (1, b"\x81", "7q"),
    "imul.8":  (1, b"\x6b", "qq"),       "imul.32": (1, b"\x69", "qq"),
    "mov.32":  (1, b"\xc7", "0q"),
    "shl":     (1, b"\xc1", "4q"),       "shr":     (1, b"\xc1", "5q"),
    "sar":     (1, b"\xc1", "7q"),
}
RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15 = range(16)
CONDITION = {"<": 0xC, ">=": 0xD, "<=": 0xE, ">": 0xF, "==": 0x4, "!=": 0x5}      # of jcc
PREDICATE = {"<": 0x11, ">=": 0x1D, "<=": 0x12, ">": 0x1E, "==": 0x00, "!=": 0x04}  # of vcmpps

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


class X86:
    """The encoder for x86-64.  isa: "avx2", "vnni" (EVEX) or "avxvnni" (VEX); abi: see _ABI.

    Register rax belongs to the encoder, rsp is the stack, all others are the kernel's.
    """

    n_vectors = 16

    def __init__(self, isa, abi):
        self.isa, self.abi = isa, abi
        self.rows = _X86_ROWS[isa]
        self.parameters, self.int_order = _ABI[abi]["parameters"], _ABI[abi]["int_order"]
        self.code = bytearray()
        self.labels, self.jumps = {}, []          # name -> offset; (offset of 4 bytes, name)
        self.constants, self.uses = {}, []        # bytes -> offset; (offset of 4 bytes, end, bytes)

    # The emitters: each appends one instruction.  The first argument names a row above.

    def vvv(self, name, reg, vvvv, rm, imm=None):
        """A vector instruction on registers."""
        opcode, mmmmm, w_l_pp = VEX[name]
        if rm < 8 and mmmmm == 1 and w_l_pp < 128:
            self.code += bytes((0xC5, (0 if reg > 7 else 0x80) | ((15 - vvvv) << 3) | w_l_pp, opcode,
                                0xC0 | ((reg & 7) << 3) | rm))
        else:
            self.code += bytes((0xC4, (0x40 if reg > 7 else 0xC0) | (0 if rm > 7 else 0x20) | mmmmm,
                                w_l_pp | ((15 - vvvv) << 3), opcode,
                                0xC0 | ((reg & 7) << 3) | (rm & 7)))
        if imm is not None:
            self.code.append(imm)

    def vvm(self, name, reg, vvvv, base, disp, imm=None):
        """A vector instruction whose r/m is the memory at base + disp."""
        opcode, mmmmm, w_l_pp = VEX[name]
        if base < 8 and mmmmm == 1 and w_l_pp < 128:
            head = (0xC5, (0 if reg > 7 else 0x80) | ((15 - vvvv) << 3) | w_l_pp, opcode)
        else:
            head = (0xC4, (0x40 if reg > 7 else 0xC0) | (0 if base > 7 else 0x20) | mmmmm,
                    w_l_pp | ((15 - vvvv) << 3), opcode)
        self.code += bytes(head) + _at(reg, base, disp)
        if imm is not None:
            self.code.append(imm)

    def vvc(self, name, reg, vvvv, data):
        """A vector instruction whose r/m is a constant of the kernel."""
        opcode, mmmmm, w_l_pp = VEX[name]
        self.code += bytes((0xC4, (0x40 if reg > 7 else 0xC0) | 0x20 | mmmmm,
                            w_l_pp | ((15 - vvvv) << 3), opcode, ((reg & 7) << 3) | 5, 0, 0, 0, 0))
        self.constants[data] = None
        self.uses.append((len(self.code) - 4, data))

    def evex_dot(self, acc, u, s):
        """vpdpbusd in the EVEX form of AVX-512, 4 bytes of prefix; our registers need no 5th bit.

            62 | R X B R' 0 mmm | W vvvv 1 pp | z L'L b V' aaa |  (b: broadcast 4 bytes of memory)
        """
        self.code += bytes((0x62, (0x52 if acc > 7 else 0xD2) ^ (0x20 if s > 7 else 0),
                            0x05 | ((15 - u) << 3), 0x28, 0x50, 0xC0 | ((acc & 7) << 3) | (s & 7)))

    def evex_dot_broadcast(self, acc, u, base, disp):
        """The same, s being 4 bytes of memory in every lane; a displacement byte counts 4 bytes."""
        self.code += bytes((0x62, (0x52 if acc > 7 else 0xD2) ^ (0x20 if base > 7 else 0),
                            0x05 | ((15 - u) << 3), 0x38, 0x50)) + _at(acc, base, disp, 4)

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
        if name == "lock xadd":
            self.code.append(0xF0)
        rex = (w << 3) | (4 if reg > 7 else 0) | (1 if base > 7 else 0)
        if rex or (name == "mov.mb" and reg > 3):        # without REX, 4..7 would be ah ch dh bh
            self.code.append(0x40 | rex)
        self.code += opcode + _at(reg, base, disp)

    def store_word(self, reg, base, disp):
        """mov word [base + disp], reg: prefix 66 before REX makes 16 bits of 32."""
        self.code.append(0x66)
        self.rm("mov.mr", reg, base, disp)

    def mov_imm(self, d, n):
        """Set integer register d to n in the shortest of the usual ways."""
        if n == 0:
            self.rr("xor.r", d, d)
        elif 0 < n < 2**32:                                       # B8+r: clears the upper half
            self.code += (b"\x41" if d > 7 else b"") + bytes((0xB8 | (d & 7),)) + n.to_bytes(4, "little")
        elif -2**31 <= n < 0:
            self.rr("mov.32", 0, d, n)
        else:
            self.code += bytes((0x49 if d > 7 else 0x48, 0xB8 | (d & 7)))
            self.code += (n & (2**64 - 1)).to_bytes(8, "little")

    def raw(self, text, data):
        """An instruction that is always the same bytes."""
        self.code += data

    def push(self, r):
        self.code += bytes((0x41, 0x50 | (r & 7)) if r > 7 else (0x50 | r,))

    def pop(self, r):
        self.code += bytes((0x41, 0x58 | (r & 7)) if r > 7 else (0x58 | r,))

    def jump(self, how, label):
        """Jump to a label if the flags of the last comparison say so, or always if how is None.

        Always with 4 bytes of distance: a 1-byte form exists, but forward its use is a guess.
        """
        self.code += b"\xe9\0\0\0\0" if how is None else bytes((0x0F, 0x80 | CONDITION[how], 0, 0, 0, 0))
        self.jumps.append((len(self.code) - 4, label))

    def label(self, name):
        self.labels[name] = len(self.code)

    # Beginning and end of a kernel.

    def begin(self, ints, vectors, calls):
        """Save what the calling convention wants kept, and make room on the stack."""
        self.saved = [r for r in _ABI[self.abi]["saved"] if r in ints]
        self.saved_vecs = [v for v in _ABI[self.abi]["saved_vecs"] if v in vectors or calls]
        self.saved_vecs = [v for v in self.saved_vecs if v in vectors]
        for r in self.saved:
            self.push(r)
        self.shadow = 32 if self.abi == "win64" else 0
        self.vec_area = self.shadow + 8 * _CALL_SLOTS if calls else 0
        self.frame = self.vec_area + 16 * len(self.saved_vecs)
        if calls and (self.frame + 8 * len(self.saved) + 8) % 16:
            self.frame += 8                              # at a call, rsp is a multiple of 16
        if self.frame:
            _add_imm(self, RSP, RSP, -self.frame)
        for i, v in enumerate(self.saved_vecs):
            self.vvm("vmovdqu.mx", v, 0, RSP, self.vec_area + 16 * i)
        self.vectors = vectors

    def finish(self):
        """Undo `begin`, return, lay down the constants, fill in distances; return the bytes."""
        if self.vectors:
            # Old SSE code in the caller is slow while upper halves are in use, so clear them all.
            self.raw("vzeroupper", b"\xc5\xf8\x77")
        for i, v in enumerate(self.saved_vecs):
            self.vvm("vmovdqu.x", v, 0, RSP, self.vec_area + 16 * i)
        if self.frame:
            _add_imm(self, RSP, RSP, self.frame)
        for r in reversed(self.saved):
            self.pop(r)
        self.raw("ret", b"\xc3")
        self.n_code_bytes = len(self.code)
        for data in sorted(self.constants, key=len, reverse=True):
            self.code += bytes(-len(self.code) % len(data))
            self.constants[data] = len(self.code)
            self.code += data
        for at, label in self.jumps:
            self.code[at:at + 4] = struct.pack("<i", self.labels[label] - (at + 4))
        for at, data in self.uses:
            self.code[at:at + 4] = struct.pack("<i", self.constants[data] - (at + 4))
        return bytes(self.code)


def _at(reg, base, disp, unit=1):
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


# From here on, how each operation becomes instructions: the rows that `allocate` looks up.  A
# function has the operation's operands, and after them its temporaries.  It must be right when
# the destination is also a source.

def _arith(name, commutes):
    """Return the function for d = a op b, on an instruction that does d = d op b."""
    def function(asm, d, a, b):
        if d == b and d != a:
            if commutes:
                a, b = b, a
            else:
                asm.rr("mov", a, RAX)
                asm.rr(name, b, RAX)
                return asm.rr("mov", RAX, d)
        if d != a:
            asm.rr("mov", a, d)
        asm.rr(name, b, d)
    return function


def _arith_imm(name, digit):
    """Return the function for d = a op n, n a constant."""
    def function(asm, d, a, n):
        if d != a:
            asm.rr("mov", a, d)
        if -128 <= n <= 127:
            asm.rr(name + ".8", digit, d, n)
        elif -2**31 <= n < 2**31:
            asm.rr(name + ".32", digit, d, n)
        else:
            asm.mov_imm(RAX, n)
            asm.rr(name, RAX, d)
    return function


def _add_imm(asm, d, a, n):
    """d = a + n: lea adds without touching its source, else the plain add."""
    if d != a and -2**31 <= n < 2**31:
        asm.rm("lea", d, a, n)
    else:
        _arith_imm("add", 0)(asm, d, a, n)


def _mul_row(asm, d, a, b):
    if d == b:
        a, b = b, a
    if d != a:
        asm.rr("mov", a, d)
    asm.rr("imul", d, b)


def _mul_imm(asm, d, a, n):
    if -2**31 <= n < 2**31:
        asm.rr("imul.8" if -128 <= n <= 127 else "imul.32", d, a, n)
    else:
        asm.mov_imm(RAX, n)
        asm.rr("imul", RAX, a)
        asm.rr("mov", RAX, d)


def _divide_row(result):
    """div divides rdx:rax by its operand, into quotient rax and remainder rdx."""
    def function(asm, d, a, b):
        asm.push(RDX)
        asm.push(b)
        asm.rr("mov", a, RAX)
        asm.rr("xor.r", RDX, RDX)
        asm.rm("div", 6, RSP, 0)
        if result == RDX:
            asm.rr("mov", RDX, RAX)
        asm.pop(RDX)                     # b, dropped
        asm.pop(RDX)
        asm.rr("mov", RAX, d)
    return function


def _extreme(move):
    """min and max: keep a, and move b over it if the comparison says so."""
    def function(asm, d, a, b):
        asm.rr("mov", a, RAX)
        asm.rr("cmp", b, RAX)
        asm.rr(move, RAX, b)
        asm.rr("mov", RAX, d)

    def function_imm(asm, d, a, n):
        asm.mov_imm(RAX, n)
        asm.rr("cmp", a, RAX)
        asm.rr(move, RAX, a)
        asm.rr("mov", RAX, d)
    return function, function_imm


def _shift_int(name, digit):
    def function(asm, d, a, n):
        if d != a:
            asm.rr("mov", a, d)
        if n:
            asm.rr(name, digit, d, n)
    return function


def _mov(asm, d, a):
    if d != a:
        asm.rr("mov", a, d)


def _vmov(asm, d, a):
    if d != a:
        asm.vvv("vmovaps", d, 0, a)


def _fetch_add_row(asm, d, base, x, disp):
    asm.rr("mov", x, RAX)
    asm.rm("lock xadd", RAX, base, disp)
    asm.rr("mov", RAX, d)


def _const(asm, d, data):
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


def _three(name):
    return (lambda asm, d, a, b: asm.vvv(name, d, a, b)), 0


def _two(name):
    return (lambda asm, d, a: asm.vvv(name, d, 0, a)), 0


def _two_imm(name, imm):
    return (lambda asm, d, a: asm.vvv(name, d, 0, a, imm)), 0


def _shift_vector(name, digit):
    return (lambda asm, d, a, n: asm.vvv(name, digit, d, a, n)), 0


def _vload(name):
    return (lambda asm, d, base, disp: asm.vvm(name, d, 0, base, disp)), 0


def _vstore(name):
    return (lambda asm, base, v, disp: asm.vvm(name, v, 0, base, disp)), 0


def _load_int_row(name):
    return (lambda asm, d, base, disp: asm.rm(name, d, base, disp)), 0


def _store_int_row(name):
    return (lambda asm, base, x, disp: asm.rm(name, x, base, disp)), 0


_LANE_NUMBERS = struct.pack("<8i", *range(8))


def _first_lanes_mask(asm, d, n):
    """d = all ones in the lanes i < n."""
    asm.vvv("vmovd", d, 0, n)
    asm.vvv("vpbroadcastd", d, 0, d)
    asm.vvc("vpcmpgtd", d, d, _LANE_NUMBERS)


def _load_first_row(asm, d, base, n, disp):
    _first_lanes_mask(asm, d, n)
    asm.vvm("vmaskmovps", d, d, base, disp)


def _store_first_row(asm, base, v, n, disp, t):
    _first_lanes_mask(asm, t, n)
    asm.vvm("vmaskmovps.m", v, t, base, disp)


def _load_i32_at(asm, d, base, disps, t):
    """Two halves of four: the first dword clears its register, the others are inserted."""
    for half, v in ((disps[:4], d), (disps[4:], t)):
        asm.vvm("vmovd", v, 0, base, half[0])
        for lane in (1, 2, 3):
            asm.vvm("vpinsrd", v, v, base, half[lane], lane)
    asm.vvv("vinserti128", d, d, t, 1)


def _splat_i32(asm, d, x):
    asm.vvv("vmovd", d, 0, x)
    asm.vvv("vpbroadcastd", d, 0, d)


def _insert_i32_row(asm, d, v, x, lane, t):
    _splat_i32(asm, t, x)
    asm.vvv("vpblendd", d, v, t, 1 << lane)


def _extract_i32(asm, d, v, lane, t):
    if lane > 3:
        asm.vvv("vextracti128", v, 0, t, 1)
        v = t
    if lane & 3:
        asm.vvv("vpextrd", v, 0, d, lane & 3)
    else:
        asm.vvv("vmovd.r", v, 0, d)
    asm.rr("movsxd", d, d)


def _broadcast_lane(asm, d, v, lane):
    asm.vvv("vpshufd", d, 0, v, (lane & 3) * 0b01010101)      # that lane of its half, four times
    asm.vvv("vpermq", d, 0, d, 0xEE if lane > 3 else 0x44)    # then that half twice


def _hsum_f32_row(asm, d, a, t):
    asm.vvv("vhaddps", d, a, a)
    asm.vvv("vhaddps", d, d, d)
    asm.vvv("vperm2f128", t, d, d, 1)
    asm.vvv("vaddps", d, d, t)


def _fold_row(name):
    """The function for a fold over all lanes: by halves, by pairs, by neighbours."""
    def function(asm, d, a, t):
        asm.vvv("vperm2i128", t, a, a, 1)
        asm.vvv(name, d, a, t)
        for order in (0b01_00_11_10, 0b10_11_00_01):
            asm.vvv("vpshufd", t, 0, d, order)
            asm.vvv(name, d, d, t)
    return function, 1


def _load_bf16x8(asm, d, base, disp):
    asm.vvm("vpmovzxwd", d, 0, base, disp)
    asm.vvv("vpslld", 6, d, d, 16)


def _store_i32_as_i8(asm, base, v, disp, t):
    asm.vvv("vextracti128", v, 0, t, 1)
    asm.vvv("vpackssdw.x", t, v, t)
    asm.vvv("vpacksswb.x", t, t, t)
    asm.vvm("vmovq.m", t, 0, base, disp)


def _extend(name):
    def function(asm, d, a, half):
        if half:
            asm.vvv("vextracti128", a, 0, d, 1)
        asm.vvv(name, d, 0, d if half else a)
    return function, 0


# The dot products.  Before VNNI: vpmaddubsw multiplies u8 by i8 and adds pairs into i16, which
# does not overflow under the conditions of 5.1; vpmaddwd by ones adds pairs into i32.  Bytes that
# are signed on both sides give their sign to the other side first.
_ONES_I16 = struct.pack("<16h", *[1] * 16)


def _dot4_us_avx2(asm, acc, u, s, t):
    asm.vvv("vpmaddubsw", t, u, s)
    asm.vvc("vpmaddwd", t, t, _ONES_I16)
    asm.vvv("vpaddd", acc, acc, t)


def _dot4_us_m_avx2(asm, acc, u, base, disp, t):
    asm.vvm("vpbroadcastd", t, 0, base, disp)
    _dot4_us_avx2(asm, acc, u, t, t)


def _dot4_us_m_avxvnni(asm, acc, u, base, disp, t):
    asm.vvm("vpbroadcastd", t, 0, base, disp)
    asm.vvv("vpdpbusd", acc, u, t)


def _dot4_ss(dot):
    def function(asm, acc, a, b, t, t2):
        asm.vvv("vpsignb", t, b, a)
        asm.vvv("vpabsb", t2, 0, a)
        dot(asm, acc, t2, t, t)
    return function, 2


def _compare(asm, a, b):
    asm.rr("cmp", b, a)


def _compare_imm(asm, a, n):
    if n == 0:
        asm.rr("test", a, a)
    elif -2**31 <= n < 2**31:
        asm.rr("cmp.8" if -128 <= n <= 127 else "cmp.32", 7, a, n)
    else:
        asm.mov_imm(RAX, n)
        asm.rr("cmp", RAX, a)


_OPPOSITE = {"<": ">=", ">=": "<", "<=": ">", ">": "<=", "==": "!=", "!=": "=="}


def _loop(asm, count, block):
    asm.rr("test", count, count)
    asm.jump("<=", ("end", block))
    asm.label(("top", block))


def _endloop(asm, count, block):
    asm.rr("sub.8", 5, count, 1)
    asm.jump(">", ("top", block))
    asm.label(("end", block))


def _else(asm, block):
    asm.jump(None, ("end", block))
    asm.label(("else", block))


def _branches(compare):
    """Return the functions for if, while and endwhile."""
    def if_(asm, a, how, b, block):
        compare(asm, a, b)
        asm.jump(_OPPOSITE[how], ("end" if asm.blocks[block][1] is None else "else", block))

    def while_(asm, a, how, b, block):
        compare(asm, a, b)
        asm.jump(_OPPOSITE[how], ("end", block))
        asm.label(("top", block))

    def endwhile(asm, a, how, b, block):
        compare(asm, a, b)
        asm.jump(how, ("top", block))
        asm.label(("end", block))
    return if_, while_, endwhile


def _call(asm, address, a, b, c, live):
    """Call a C function of three arguments; registers that it may change wait on the stack."""
    slot = asm.shadow
    kept = [r for r in live if r not in _ABI[asm.abi]["saved"]]
    for i, r in enumerate((a, b, c, *kept)):
        asm.rm("mov.mq", r, RSP, slot + 8 * i)
    asm.rr("mov", address, RAX)
    for i, r in enumerate(asm.parameters):
        asm.rm("mov.q", r, RSP, slot + 8 * i)
    asm.raw("vzeroupper", b"\xc5\xf8\x77")
    asm.raw("call rax", b"\xff\xd0")
    for i, r in enumerate(kept):
        asm.rm("mov.q", r, RSP, slot + 8 * (i + 3))


def _x86_rows(isa):
    """Return the table operation -> (function, number of temporaries) of an instruction set."""
    def plain(function, n_temps=0):
        return function, n_temps

    rows = {
        "imm": plain(lambda asm, d, n: asm.mov_imm(d, _i64(n))), "mov": plain(_mov),
        "add": plain(_arith("add", True)), "add_imm": plain(_add_imm),
        "sub": plain(_arith("sub", False)),
        "sub_imm": plain(lambda asm, d, a, n: _add_imm(asm, d, a, _i64(-n))),
        "mul": plain(_mul_row), "mul_imm": plain(_mul_imm),
        "div": plain(_divide_row(RAX)), "rem": plain(_divide_row(RDX)),
        "iand": plain(_arith("and", True)), "iand_imm": plain(_arith_imm("and", 4)),
        "ior": plain(_arith("or", True)), "ior_imm": plain(_arith_imm("or", 1)),
        "ixor": plain(_arith("xor", True)), "ixor_imm": plain(_arith_imm("xor", 6)),
        "shl": plain(_shift_int("shl", 4)), "shr": plain(_shift_int("shr", 5)),
        "sar": plain(_shift_int("sar", 7)),
        "load_i64": _load_int_row("mov.q"), "load_i32": _load_int_row("movsxd"),
        "load_u32": _load_int_row("mov.r"), "load_i16": _load_int_row("movsx.w"),
        "load_u16": _load_int_row("movzx.w"), "load_i8": _load_int_row("movsx.b"),
        "load_u8": _load_int_row("movzx.b"),
        "store_i64": _store_int_row("mov.mq"), "store_i32": _store_int_row("mov.mr"),
        "store_i16": plain(lambda asm, base, x, disp: asm.store_word(x, base, disp)),
        "store_i8": _store_int_row("mov.mb"),
        # Loads and stores of aligned 64 bits are atomic and ordered as acquire and release.
        "load_acquire": _load_int_row("mov.q"), "store_release": _store_int_row("mov.mq"),
        "fetch_add": plain(_fetch_add_row),
        "pause": plain(lambda asm: asm.raw("pause", b"\xf3\x90")),
        "prefetch": plain(lambda asm, base, disp: asm.rm("prefetcht0", 1, base, disp)),
        "call": plain(_call),
        "loop": plain(_loop), "endloop": plain(_endloop), "else": plain(_else),
        "endif": plain(lambda asm, block: asm.label(("end", block))),

        "const": plain(_const), "vmov": plain(_vmov),
        "vload": _vload("vmovdqu"), "vstore": _vstore("vmovdqu.m"),
        "vand": _three("vpand"), "vor": _three("vpor"), "vxor": _three("vpxor"),
        "vandnot": _three("vpandn"),
        "select": plain(lambda asm, d, mask, yes, no: asm.vvv("vpblendvb", d, no, yes, mask << 4)),
        "load_i8x16": _vload("vmovdqu.x"), "load_i8x8": _vload("vmovq"),
        "load_f32": _vload("vmovss"), "store_i8x16": _vstore("vmovdqu.mx"),
        "store_i8x8": _vstore("vmovq.m"), "store_f32": _vstore("vmovss.m"),
        "load_high": plain(lambda asm, d, v, base, disp: asm.vvm("vinserti128", d, v, base, disp, 1)),
        "load_f32_n": plain(_load_first_row), "load_i32_n": plain(_load_first_row),
        "store_f32_n": plain(_store_first_row, 1), "store_i32_n": plain(_store_first_row, 1),
        "load_i32_at": plain(_load_i32_at, 1),
        "broadcast_i8x16": _vload("vbroadcasti128"), "broadcast_i64x4": _vload("vpbroadcastq"),
        "broadcast_f32x8": _vload("vbroadcastss"), "broadcast_i32x8": _vload("vpbroadcastd"),
        "broadcast_i16x16": _vload("vpbroadcastw"), "broadcast_i8x32": _vload("vpbroadcastb"),
        "splat_i32": plain(_splat_i32), "broadcast_lane": plain(_broadcast_lane),
        "extract_i32": plain(_extract_i32, 1), "insert_i32": plain(_insert_i32_row, 1),

        "add_f32": _three("vaddps"), "sub_f32": _three("vsubps"), "mul_f32": _three("vmulps"),
        "div_f32": _three("vdivps"), "min_f32": _three("vminps"), "max_f32": _three("vmaxps"),
        "sqrt_f32": _two("vsqrtps"), "round_f32": _two_imm("vroundps", 8),
        "floor_f32": _two_imm("vroundps", 9),
        "cmp_f32": plain(lambda asm, d, a, how, b: asm.vvv("vcmpps", d, a, b, PREDICATE[how])),
        "i32_to_f32": _two("vcvtdq2ps"), "f32_to_i32": _two("vcvtps2dq"),
        "hadd_f32": _three("vhaddps"), "hsum_f32": plain(_hsum_f32_row, 1),
        "hmax_f32": _fold_row("vmaxps"), "load_f16x8": _vload("vcvtph2ps"),
        "load_bf16x8": plain(_load_bf16x8),
        "store_f16x8": plain(lambda asm, base, v, disp: asm.vvm("vcvtps2ph", v, 0, base, disp, 0)),

        "add_i32": _three("vpaddd"), "sub_i32": _three("vpsubd"), "mul_i32": _three("vpmulld"),
        "min_i32": _three("vpminsd"), "max_i32": _three("vpmaxsd"), "max_u32": _three("vpmaxud"),
        "abs_i32": _two("vpabsd"), "shl_i32": _shift_vector("vpslld", 6),
        "shr_i32": _shift_vector("vpsrld", 2), "sar_i32": _shift_vector("vpsrad", 4),
        "shlv_i32": _three("vpsllvd"), "shrv_i32": _three("vpsrlvd"),
        "cmpeq_i32": _three("vpcmpeqd"), "cmpgt_i32": _three("vpcmpgtd"),
        "hsum_i32": _fold_row("vpaddd"), "hmax_u32": _fold_row("vpmaxud"),
        "widen_i8x8": _vload("vpmovsxbd"), "widen_u8x8": _vload("vpmovzxbd"),
        "widen_i16x8": _vload("vpmovsxwd"), "widen_u16x8": _vload("vpmovzxwd"),
        "store_i32_as_i8": plain(_store_i32_as_i8, 1),

        "add_i16": _three("vpaddw"), "sub_i16": _three("vpsubw"), "mul_i16": _three("vpmullw"),
        "shl_i16": _shift_vector("vpsllw", 6), "shr_i16": _shift_vector("vpsrlw", 2),
        "sar_i16": _shift_vector("vpsraw", 4),
        "widen_i8x16": _vload("vpmovsxbw"), "widen_u8x16": _vload("vpmovzxbw"),
        "extend_i8": _extend("vpmovsxbw"), "extend_u8": _extend("vpmovzxbw"),
        "extend_i16": _extend("vpmovsxwd"), "extend_u16": _extend("vpmovzxwd"),
        "madd": _three("vpmaddwd"),

        "add_i8": _three("vpaddb"), "sub_i8": _three("vpsubb"), "min_u8": _three("vpminub"),
        "max_u8": _three("vpmaxub"), "abs_i8": _two("vpabsb"), "sign_i8": _three("vpsignb"),
        "cmpeq_i8": _three("vpcmpeqb"), "cmpgt_i8": _three("vpcmpgtb"),
        "shuffle_i8": _three("vpshufb"),

        "shuffle_i32": plain(lambda asm, d, a, order: asm.vvv(
            "vpshufd", d, 0, a, order[0] | order[1] << 2 | order[2] << 4 | order[3] << 6)),
        "blend_i32": plain(lambda asm, d, a, b, bits: asm.vvv("vpblendd", d, a, b, bits)),
        "halves": plain(lambda asm, d, a, b, low, high: asm.vvv("vperm2i128", d, a, b, low | high << 4)),
    }
    rows["min"], rows["min_imm"] = map(plain, _extreme("cmovg"))
    rows["max"], rows["max_imm"] = map(plain, _extreme("cmovl"))
    rows["if"], rows["while"], rows["endwhile"] = map(plain, _branches(_compare))
    rows["if_imm"], rows["while_imm"], rows["endwhile_imm"] = map(plain, _branches(_compare_imm))
    for part, letter in (("lo", "l"), ("hi", "h")):
        for lane, name in (("i8", "bw"), ("i16", "wd"), ("i32", "dq"), ("i64", "qdq")):
            rows[f"unpack_{part}_{lane}"] = _three(f"vpunpck{letter}{name}")
    if isa == "avx2":
        rows["dot4_us"], rows["dot4_us_m"] = (_dot4_us_avx2, 1), (_dot4_us_m_avx2, 1)
        rows["dot4_ss"] = _dot4_ss(_dot4_us_avx2)
    elif isa == "avxvnni":
        rows["dot4_us"], rows["dot4_us_m"] = _three("vpdpbusd"), (_dot4_us_m_avxvnni, 1)
        rows["dot4_ss"] = _dot4_ss(lambda asm, acc, u, s, _: asm.vvv("vpdpbusd", acc, u, s))
    else:
        rows["dot4_us"] = plain(lambda asm, acc, u, s: asm.evex_dot(acc, u, s))
        rows["dot4_us_m"] = plain(lambda asm, acc, u, base, disp: asm.evex_dot_broadcast(acc, u, base, disp))
        rows["dot4_ss"] = _dot4_ss(lambda asm, acc, u, s, _: asm.evex_dot(acc, u, s))
    return rows


_X86_ROWS = {isa: _x86_rows(isa) for isa in ("avx2", "vnni", "avxvnni")}
ENCODERS.update(avx2=X86, vnni=X86, avxvnni=X86)


# ---------------------------------------------------------------------------------------
# 5.3 arm64


# ---------------------------------------------------------------------------------------
# 5.4 Executable memory
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
_MACHINE = {"amd64": "x86-64", "x86_64": "x86-64", "arm64": "arm64", "aarch64": "arm64"}.get(
    platform.machine().lower())

KERNEL_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


def _foreign(library, name, result, *arguments):
    """Return the C function `name` with its types; ctypes would guess int and cut an address."""
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function


class _Posix:
    """Pages by mmap.  Each method raises OSError where the system refuses."""

    def __init__(self):
        c, address, size = ctypes, ctypes.c_void_p, ctypes.c_size_t
        libc = ctypes.CDLL(None, use_errno=True)
        self.mmap = _foreign(libc, "mmap", address, address, size, c.c_int, c.c_int, c.c_int, c.c_long)
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


class _Windows:
    """Pages by VirtualAlloc."""

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
        if not self.protect(address, len(data), _PAGE_EXECUTE_READ, ctypes.byref(ctypes.c_uint32())):
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


def host_abi():
    """Return the name of this machine's calling convention."""
    return "aapcs64" if _MACHINE == "arm64" else "win64" if sys.platform == "win32" else "sysv"


def features_x86(cpuid, read_xcr0):
    """Return the names of the instruction sets that may be used, best first.

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
    asm.raw("cpuid", b"\x0f\xa2")
    for i, r in enumerate((RAX, RBX, RCX, RDX)):
        asm.rm("mov.mr", r, R10, 16 + 8 * i)
    return asm.finish()


def _xgetbv_code(abi):
    """Return code for xgetbv: the low half of XCR0 goes to args[0]."""
    asm = X86("avx2", abi)
    asm.begin((), (), False)
    asm.rr("mov", asm.parameters[0], R10)
    asm.rr("xor.r", RCX, RCX)
    asm.raw("xgetbv", b"\x0f\x01\xd0")
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
        sysctl = _foreign(c.CDLL(None), "sysctlbyname", c.c_int, c.c_char_p, c.c_void_p, c.c_void_p,
                          c.c_void_p, c.c_size_t)
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
    """Return (names of the instruction sets that kernels may use here, best first; reason if none)."""
    if ctypes.sizeof(ctypes.c_void_p) != 8 or sys.byteorder != "little" or _MACHINE is None:
        return [], f"no code generator for this machine ({platform.machine()}, " \
                   f"{8 * ctypes.sizeof(ctypes.c_void_p)}-bit Python)"
    found, reason = _ask_x86() if _MACHINE == "x86-64" else _ask_arm64()
    found = [isa for isa in found if isa in ENCODERS]
    return found, reason if found or reason else "no code generator for this machine"


def choose_isa(environ):
    """Return (instruction set, None), or (None, why plain Python is used).

    KSHIPRA_ISA in environ chooses one that is not above what the processor has, or "python".
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
    raise KshipraError(f"KSHIPRA_ISA={wanted!r}: this machine offers {', '.join(found)} and python; "
                       "choose one of these, or leave it unset")


# ---------------------------------------------------------------------------------------
# 5.5 Kernels


# ---------------------------------------------------------------------------------------
# 5.6 Programs and threads


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
