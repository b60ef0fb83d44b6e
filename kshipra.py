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
import itertools
import math
import operator
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
# A processor computes in registers, of which it has few: for us, whole numbers and addresses in
# 64-bit registers, and vectors of 256 bits.  A vector is eight float32 lanes, eight int32, sixteen
# int16 or thirty-two int8; the bits do not know which, the operation decides:
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

    def method(self, *operands, to=None):
        if updates:
            to, operands = operands[0], operands[1:]
        if has_disp and len(operands) < n_operands:
            operands += (0,)
        if tuple(map(type, operands)) not in accepts:
            raise TypeError(f"{name} takes {op.letters[sets:]!r}, got {operands}")
        if sets:
            if to is None:
                to = VecReg(self, lane or operands[0].lane) if vector else IntReg(self)
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


# ---------------------------------------------------------------------------------------
# 5.3 arm64


# ---------------------------------------------------------------------------------------
# 5.4 Executable memory


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
