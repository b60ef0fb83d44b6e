"""Run every operation of the builder as arm64 code and compare with the interpreter.

Needs an arm64 Python (an emulated one will do) and nothing else, not even pytest:

    python3 tests/arm64_check.py [seed]

Prints a line for each difference; the exit status is 0 if there was none.
"""
import ctypes
import itertools
import math
import mmap
import os
import random
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import kshipra as ks  # noqa: E402

SLOT = 64                       # bytes for each operand or result in the buffer
MEMORY = 1024                   # offset of the bytes that loads and stores touch
BUFFER_BYTES = 2048
NO_NAN = {"f32_to_i32"}         # unspecified out of range
DISPS = (0, 4, 16, 1, -3, -16, 33, 255, 240, 256, 1008, 1024, -1024, 4095, 4096, 16380, 65520, 65536, 70001,
         -5000, 1 << 24, (1 << 24) + 5, -(1 << 33))


class Code:
    """Code in executable memory."""

    def __init__(self, data):
        self.map = mmap.mmap(-1, max(len(data), 1), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self.map.write(data)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(self.address)


def floats(rng):
    special = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-40, 3.4e38, 0.5, 1.5, 2.5, -0.5, -0.3,
               8388608.5, -8388607.5, 2147483520.0, -2147483648.0, 65504.0, 65519.9, 65520.0, -1e9, 6e-8)
    return struct.pack("<8f", *[rng.choice(special) if rng.random() < 0.4 else
                                rng.uniform(-1, 1) * 2.0 ** rng.randint(-20, 20) for _ in range(8)])


def vector(rng, op, position):
    """Return 32 bytes for the vector operand at a position, as the operation's contract asks."""
    name = op.name
    if name == "f32_to_i32":
        return struct.pack("<8f", *[rng.choice((0.5, 1.5, -2.5, 2147483520.0, -2147483648.0, rng.uniform(-9, 9),
                                                rng.uniform(-2e9, 2e9))) for _ in range(8)])
    if name in ("shlv_i32", "shrv_i32") and position == 1:
        return struct.pack("<8i", *[rng.randint(0, 31) for _ in range(8)])
    if name == "select" and position == 0:
        return bytes([rng.choice((0, 255)) for _ in range(32)])
    if name == "shuffle_i8" and position == 1:
        return bytes([rng.choice((rng.randint(0, 15), rng.randint(128, 255))) for _ in range(32)])
    if name.startswith("dot4_us") and position == 1:
        return bytes([rng.choice((0, 1, 127, rng.randint(0, 127))) for _ in range(32)])
    if name == "dot4_ss" and position == 2:
        return bytes([rng.choice((0, 127, 129, rng.choice((*range(128), *range(129, 256))))) for _ in range(32)])
    if "f32" in name and not name.startswith(("load", "broadcast")) or name == "store_f16x8":
        return floats(rng)
    kind = rng.random()
    if kind < 0.3:
        return bytes([rng.choice((0, 1, 127, 128, 255)) for _ in range(32)])
    if kind < 0.5:
        return struct.pack("<8i", *[rng.choice((0, 1, -1, 127, 128, -128, -129, 2**31 - 1, -2**31, 32767, -32768))
                                    for _ in range(8)])
    return rng.randbytes(32)


def constants(op):
    """Return the values to try for the constant operands of an operation."""
    name = op.name
    if name.endswith("_imm"):
        return [(x,) for x in (0, 1, -1, 7, 255, 4095, 4096, -4095, -4096, 0xFFF000, 0x123456, -0x123456, 1 << 24,
                               0x12345678, -0x12345678, 2**63 - 1, -2**63, 0xFFFF0000, 0x00FF00FF00FF00FF, ~0xFFFF,
                               0x5555555555555555, 1 << 62, 0xFFFF_FFFF, 0x7FFF_0000_FFFF)]
    if name == "imm":
        return [(x,) for x in (0, 1, -1, 65535, 65536, -65536, -65537, 0x123456789ABCDEF, -0x123456789ABCDEF,
                               2**63 - 1, -2**63, 0xFFFF00000000, 0xFFFF_0000_FFFF_FFFF)]
    if name in ("shl", "shr", "sar"):
        return [(x,) for x in range(64)]
    if name[:3] in ("shl", "shr", "sar"):
        return [(x,) for x in range(32 if name.endswith("32") else 16)]
    if name == "const":
        return [(bytes(32),), (b"\xff" * 32,), (b"\x85" * 16 + b"\x01" * 16,), (bytes(range(32)),),
                (bytes(range(16)) * 2,), (bytes(16) + bytes(range(16)),), (b"\x00\x00\x80\x3f" * 8,)]
    if name == "load_i32_at":
        return [(tuple(range(0, 32, 4)),), ((5, 1, 100, -7, 0, 3, 400, 17),), ((0, 300, 600, 999, -300, -777, 2, 9),)]
    if name in ("broadcast_lane", "extract_i32", "insert_i32"):
        return [(x,) for x in range(8)]
    if name == "cmp_f32":
        return [(x,) for x in ks.COMPARE]
    if name.startswith("extend"):
        return [(0,), (1,)]
    if name == "shuffle_i32":
        return [(x,) for x in itertools.product(range(4), repeat=4)]
    if name == "blend_i32":
        return [(x,) for x in range(256)]
    if name == "halves":
        return list(itertools.product(range(4), repeat=2))
    return [()]


def cases(op):
    """Return (constants, displacement) pairs: each constant, each displacement."""
    has_disp = op.letters.endswith("d")
    return [(values, disp) for values in constants(op) for disp in (DISPS if has_disp else (None,))]


def emit_op(k, op, values, disp, alias, offsets):
    """Emit: load the operands from the buffer, run the operation, store what it set.

    alias: the number of the operand, of the right kind, whose register is also the result.
    """
    buffer, base = k.args("buffer", "base")
    values, operands, registers = list(values), [], []
    reads = op.letters[1:] if op.sets and not op.updates else op.letters
    memory_taken = False
    for position, kind in enumerate(reads):
        at = SLOT * (position + 1)
        if kind in "vW":
            x = k.load_i8x32(buffer, at)
        elif kind == "i" and ("d" in reads or op.name == "load_i32_at") and not memory_taken:
            x, memory_taken = base, True
        elif kind == "i":
            x = k.load_i64(buffer, at)
        else:
            x = disp if kind == "d" else values.pop(0)
        operands.append(x)
    result = None
    if op.sets and not op.updates:
        kind = ks.IntReg if op.letters[0] == "I" else ks.VecReg
        sources = [x for x in operands if type(x) is kind and x is not base]
        if alias == "same":
            operands = [sources[0] if type(x) is kind and x is not base else x for x in operands]
        if alias == "fresh":
            result = kind(k) if kind is ks.IntReg else kind(k, "i8")
        elif alias == "base":
            result = base
        else:
            result = sources[0 if alias == "same" else alias]
    keep = [x for x in operands if type(x) in (ks.IntReg, ks.VecReg)]
    out = getattr(k, "_op_" + op.name)(*operands, to=result) if op.sets and not op.updates else \
        getattr(k, "_op_" + op.name)(*operands)
    # everything is stored, so that a clobbered operand shows as well
    for i, x in enumerate([out] * op.sets + keep):
        at = SLOT * (8 + i)
        (k.store_i64 if type(x) is ks.IntReg else k.vstore)(buffer, x, at)


def aliases(op):
    if not op.sets or op.updates:
        return ["fresh"]
    kind = {"I": "i", "V": "v"}[op.letters[0]]
    reads = op.letters[1:]
    n = reads.count(kind)
    if kind == "i" and (reads.endswith("d") or op.name == "load_i32_at"):
        return ["fresh", *range(n - 1), "base"]
    return ["fresh", *range(n)] + ["same"] * (n > 1)


def integer(rng, op):
    if op.name.endswith("_n"):
        return rng.randint(-3, 12)
    return rng.choice((0, 1, -1, 7, 2**31, -2**31, 2**63 - 1, -2**63, rng.getrandbits(63), -rng.getrandbits(40), 5))


def fill(rng, op):
    data = bytearray(rng.randbytes(BUFFER_BYTES))
    reads = op.letters[1:] if op.sets and not op.updates else op.letters
    for position, kind in enumerate(reads):
        at = SLOT * (position + 1)
        if kind in "vW":
            data[at:at + 32] = vector(rng, op, position)
        elif kind == "i":
            value = integer(rng, op)
            if op.name in ("div", "rem") and position == 1:
                value = value or 3
            data[at:at + 8] = struct.pack("<q", value)
    return data


def same(op, expected, got):
    """True if two buffers agree, where one NaN in a float32 result is as good as another."""
    if expected == got:
        return True
    if op.lane != "f32" and op.name not in ("store_f16x8",):
        return False
    for i in range(0, BUFFER_BYTES, 4):
        if expected[i:i + 4] != got[i:i + 4]:
            x, y = struct.unpack_from("<f", expected, i)[0], struct.unpack_from("<f", got, i)[0]
            if op.name == "store_f16x8":
                pairs = zip(struct.unpack_from("<2e", expected, i), struct.unpack_from("<2e", got, i))
                if any(a != b and not (a != a and b != b) for a, b in pairs):
                    return False
            elif not (x != x and y != y):
                return False
    return True


def check_op(op, isa, rng, n_fills=3):
    """Run one operation in every way; return how many runs differed, and how many there were."""
    n_bad = n_runs = 0
    args = (ctypes.c_int64 * 2)()
    memory = (ctypes.c_char * BUFFER_BYTES)()
    address = ctypes.addressof(memory)
    for alias in aliases(op):
        for values, disp in cases(op):
            kernel = ks.build(emit_op, op, values, disp, alias, None)
            code = Code(ks.encode(kernel, isa, "aapcs64"))
            args[:] = address, address + MEMORY + 16 - (disp or 0)
            for _ in range(1 if len(cases(op)) > 30 else n_fills):
                start = bytes(fill(rng, op))
                if alias == "base":
                    start = bytes(start)
                memory.raw = start
                ks.interpret(kernel, ctypes.addressof(args))
                expected = memory.raw
                memory.raw = start
                code.call(ctypes.addressof(args), 0, None)
                n_runs += 1
                if not same(op, expected, memory.raw):
                    n_bad += 1
                    if n_bad < 4:
                        where = [i for i in range(BUFFER_BYTES) if expected[i] != memory.raw[i]]
                        at = where[0] & ~31
                        print(f"{isa} {op.name} {values} disp={disp} alias={alias}: byte {where[0]}\n"
                              f"   expected {expected[at:at + 32].hex()}\n   got      {memory.raw[at:at + 32].hex()}")
    return n_bad, n_runs


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    isas = ks.features_arm64()
    print("instruction sets:", *isas)
    n_bad = n_runs = 0
    for isa in isas:
        start = time.time()
        for op in ks.OPS.values():
            if op.meaning and not (isa == "neon" and len(isas) > 1 and op.name[:4] != "dot4"):
                bad, runs = check_op(op, isa, random.Random(f"{seed} {op.name}"))
                n_bad, n_runs = n_bad + bad, n_runs + runs
        print(f"{isa}: {time.time() - start:.1f} s")
    print(f"{n_runs} runs, {n_bad} differences")
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
