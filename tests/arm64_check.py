"""Run every operation of the builder as arm64 code and compare with the interpreter.

Needs an arm64 Python (an emulated one will do) and nothing else, not even pytest:

    python3 tests/arm64_check.py              every operation, control flow, calls, threads; then
                                              the model in the file and small ones with experts,
                                              native against plain Python
    python3 tests/arm64_check.py --kernels    and the tests of the kernels; these need pytest and
                                              hypothesis, plain Python that PYTHONPATH may point to

Prints a line for each difference; the exit status is 0 if there was none.
"""
import argparse
import ctypes
import itertools
import math
import os
import random
import struct
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import kshipra as ks  # noqa: E402
import tiny  # noqa: E402

SLOT = 64                       # bytes for each operand or result in the buffer
MEMORY = 1024                   # offset of the bytes that loads and stores touch
BUFFER_BYTES = 2048
ONE_KIND = {"shuffle_i8"}       # the second operand may not be any vector
DISPS = (0, 4, 16, 1, -3, -16, 33, 255, 240, 256, 1008, 1024, -1024, 4095, 4096, 16380, 65520,
         65536, 70001, -5000, 1 << 24, (1 << 24) + 5, -(1 << 31))
FLOATS = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-40, 3.4e38, 0.5, 1.5, 2.5, -0.5,
          -0.3, 8388608.5, -8388607.5, 2147483520.0, -2147483648.0, 65504.0, 65519.9, 65520.0,
          -1e9, 6e-8)
WORDS = (0, 1, -1, 127, 128, -128, -129, 2**31 - 1, -2**31, 32767, -32768)
LONGS = (0, 1, -1, 5, -5, 4, 6, 4095, -4095, 4096, -4096, 1 << 40, -(1 << 40), 2**63 - 1, -2**63)
IMMEDIATES = (*LONGS, 7, 255, 0xFFF000, 0x123456, -0x123456, 1 << 24, 0x12345678, -0x12345678,
              0xFFFF0000, 0x00FF00FF00FF00FF, ~0xFFFF, 0x5555555555555555, 1 << 62, 0xFFFFFFFF,
              0x7FFF0000FFFF, 65535, 65536, -65536, -65537, 0x123456789ABCDEF, -0x123456789ABCDEF,
              0xFFFF00000000, ~0xFFFF00000000)


def floats(rng):
    """Return eight floats, some of them from FLOATS, the others of all sizes."""
    return struct.pack("<8f", *[
        rng.choice(FLOATS) if rng.random() < 0.4 else
        rng.uniform(-1, 1) * 2.0 ** rng.randint(-20, 20) for _ in range(8)])


def vector(rng, op, position):
    """Return 32 bytes for the vector operand at a position, as the operation's contract asks."""
    name = op.name
    if name == "f32_to_i32":
        return struct.pack("<8f", *[
            rng.choice((0.5, 1.5, -2.5, 2147483520.0, -2147483648.0, rng.uniform(-9, 9),
                        rng.uniform(-2e9, 2e9))) for _ in range(8)])
    if name == "select" and position == 0:
        return bytes([rng.choice((0, 255)) for _ in range(32)])
    if name == "shuffle_i8" and position == 1:
        return bytes([rng.choice((rng.randint(0, 15), rng.randint(128, 255))) for _ in range(32)])
    if name.startswith("dot4_us") and position == 1:
        return bytes([rng.choice((0, 1, 127, rng.randint(0, 127))) for _ in range(32)])
    if name == "dot4_ss" and position == 2:
        return bytes([rng.choice((0, 127, 129, rng.randint(-127, 127) & 255)) for _ in range(32)])
    if "f32" in name and not name.startswith(("load", "broadcast")) or name == "store_f16x8":
        return floats(rng)
    kind = rng.random()
    if kind < 0.3:
        return bytes([rng.choice((0, 1, 127, 128, 255)) for _ in range(32)])
    if kind < 0.5:
        return struct.pack("<8i", *[rng.choice(WORDS) for _ in range(8)])
    return rng.randbytes(32)


def constants(op):
    """Return the values to try for the constant operands of an operation."""
    name = op.name
    if name == "imm" or name.endswith("_imm"):
        return [(x,) for x in IMMEDIATES]
    if name[:3] in ("shl", "shr", "sar"):
        return [(x,) for x in range(op.limit)]
    if name == "const":
        return [(bytes(32),), (b"\xff" * 32,), (b"\x85" * 16 + b"\x01" * 16,), (bytes(range(32)),),
                (bytes(range(16)) * 2,), (bytes(16) + bytes(range(16)),),
                (b"\x00\x00\x80\x3f" * 8,)]
    if name == "load_i32_at":
        return [(tuple(range(0, 32, 4)),), ((5, 1, 100, -7, 0, 3, 400, 17),),
                ((0, 300, 600, 999, -300, -777, 2, 9),)]
    if name in ("broadcast_lane", "extract_i32", "insert_i32"):
        return [(x,) for x in range(8)]
    if name == "cmp_f32":
        return [(x,) for x in ks.COMPARE]
    if name == "shuffle_i32":
        return [(x,) for x in itertools.product(range(4), repeat=4)]
    if name == "blend_i32":
        return [(x,) for x in range(256)]
    if name == "halves":
        return list(itertools.product(range(4), repeat=2))
    return [()]


def cases(op):
    """Return (constants, displacement) pairs: each constant, each displacement."""
    disps = DISPS if op.reads.endswith("d") else (None,)
    return [(values, disp) for values in constants(op) for disp in disps]


def emit_op(k, op, values, disp, alias):
    """Emit: load the operands from the buffer, run the operation, store what it set.

    alias: the number of the operand, of the right kind, whose register is also the result.
    """
    buffer, base = k.args("buffer", "base")
    values, operands, registers = list(values), [], []
    reads, memory_taken = "v" * op.updates + op.reads, False
    for position, kind in enumerate(reads):
        at = SLOT * (position + 1)
        if kind == "v":
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
        kind = ks.IntReg if op.lane == "i" else ks.VecReg
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
    kind = "i" if op.lane == "i" else "v"
    n = op.reads.count(kind)
    if kind == "i" and (op.reads.endswith("d") or op.name == "load_i32_at"):
        return ["fresh", *range(n - 1), "base"]
    return ["fresh", *range(n)] + ["same"] * (n > 1 and op.name not in ONE_KIND)


def integer(rng, op):
    if op.name.endswith("_n"):
        return rng.randint(-3, 12)
    return rng.choice((*LONGS, rng.getrandbits(63), -rng.getrandbits(40), rng.getrandbits(32)))


def fill(rng, op):
    data = bytearray(rng.randbytes(BUFFER_BYTES))
    for position, kind in enumerate("v" * op.updates + op.reads):
        at = SLOT * (position + 1)
        if kind == "v":
            data[at:at + 32] = vector(rng, op, position)
        elif kind == "i":
            value = integer(rng, op)
            if op.name in ("div", "rem"):
                value = value or 3                      # of the first too: it may be the divisor
            data[at:at + 8] = struct.pack("<q", value)
    return data


def same(op, expected, got):
    """True if two buffers agree, where one NaN in a float32 result is as good as another."""
    if expected == got:
        return True
    form = "<2e" if op.name == "store_f16x8" else "<f" if op.lane == "f32" else None
    if form is None:
        return False
    for i in range(0, BUFFER_BYTES, 4):
        if expected[i:i + 4] != got[i:i + 4]:
            pairs = zip(struct.unpack_from(form, expected, i), struct.unpack_from(form, got, i))
            if any((x == x or y == y) and struct.pack("<d", x) != struct.pack("<d", y)
                   for x, y in pairs):
                return False
    return True


def place(kernels, isa):
    """Return the kernels in executable memory, as Python functions."""
    code, reason = ks.place_code([ks.encode(kernel, isa) for kernel in kernels])
    assert code, reason
    return [code.function(i) for i in range(len(kernels))]


def check_op(op, isa, rng, n_fills=3):
    """Run one operation in every way; return how many runs differed, and how many there were."""
    n_bad = n_runs = 0
    args = (ctypes.c_int64 * 2)()
    memory = (ctypes.c_char * BUFFER_BYTES)()
    address = ctypes.addressof(memory)
    ways = [(alias, *case) for alias in aliases(op) for case in cases(op)]
    kernels = [ks.build(emit_op, op, values, disp, alias) for alias, values, disp in ways]
    for way, kernel, function in zip(ways, kernels, place(kernels, isa)):
        args[:] = address, address + MEMORY + 16 - (way[2] or 0)
        for _ in range(1 if len(ways) > 60 else n_fills):
            start = bytes(fill(rng, op))
            memory.raw = start
            ks.interpret(kernel, ctypes.addressof(args))
            expected = memory.raw
            memory.raw = start
            function(ctypes.addressof(args), 0, None)
            n_runs += 1
            if not same(op, expected, memory.raw):
                n_bad += 1
                if n_bad < 4:
                    first = next(i for i in range(BUFFER_BYTES) if expected[i] != memory.raw[i])
                    at = first & ~31
                    print(f"{isa} {op.name} {way}: byte {first}\n"
                          f"   expected {expected[at:at + 32].hex()}\n"
                          f"   got      {memory.raw[at:at + 32].hex()}")
    return n_bad, n_runs


def emit_control(k):
    """All shapes of control flow, with numbers from the arguments; what was passed is counted."""
    out, a, b, n = k.args("out", "a", "b", "n")
    total = k.imm(0)
    for how in ks.COMPARE:
        for number, other in enumerate((b, 0, 5, -5, 4095, -4095, 4096, 1 << 40)):
            total <<= 1
            with k.if_(a, how, other):
                total += 1
            if number & 1:
                with k.else_():
                    total -= 0x5A5A5A
    with k.loop(n) as left:
        total += left
        with k.loop(3):
            with k.if_(total & 1, "==", 0):
                total += 7
            with k.else_():
                total = k.add(k.mul(total, 3, to=total), 1, to=total)
    i = k.copy(n)
    with k.while_(i, ">", -4):
        i -= 3
        with k.while_(i, "!=", b):
            total += i
            k.mov(i, b)
        total += k.min(i, 9)
        k.sub(i, 1, to=i)
        k.min(i, n - 1, to=i)
        n -= 1
    k.store_i64(out, total)
    k.store_i64(out, i, 8)
    k.store_i64(out, k.chunk, 16)
    k.store_i64(out, k.scratch, 24)


def emit_crowded(k, n_ints=21, n_vectors=16):
    """As many registers as there are, so that those we must leave as found are used too."""
    out = k.args("out")
    ints = [k.load_i64(out, 8 * i) for i in range(n_ints)]
    vectors = [k.load_i32x8(out, 256 + 32 * i) for i in range(n_vectors)]
    for i, x in enumerate(ints):
        k.store_i64(out, k.add(x, ints[i - 1], to=x), 8 * i)
    for i, v in enumerate(vectors):
        k.store_i32x8(out, k.add_i32(v, vectors[i - 1], to=v), 256 + 32 * i)


def emit_caller(k):
    """Call a kernel twice while many integer registers hold what is needed afterwards."""
    out, function = k.args("out", "function")
    kept = [k.load_i64(out, 8 * i) for i in range(19)]
    k.call(function, out, kept[3], out + 1024)
    k.call(function, out, k.chunk, kept[4])
    for i, x in enumerate(kept):
        k.store_i64(out, x + i, 512 + 8 * i)


def emit_callee(k):
    """Add chunk and scratch into the argument structure; use many registers."""
    a = [k.load_i64(k.args_pointer, 8 * i) for i in range(20)]
    for i, x in enumerate(a):
        x -= k.chunk
        x += k.scratch
        k.store_i64(k.args_pointer, x, 8 * i + 1024)


def saved_registers_code():
    """Return code of (args): fill x19..x28 and d8..d15, call args[0](args[1], 0, 0), store them.

    They go to args[2..11] and args[12..19], and what was in them before is put back.
    """
    w, code = ks._W, []
    code.append(w["sub.sp"](256))
    pairs = [("x", i, i + 1, i - 19) for i in range(19, 29, 2)] + [("x", 29, 30, 10)] + \
            [("d", i, i + 1, 4 + i) for i in range(8, 16, 2)]
    code += [w["stp." + kind](a, b, at) for kind, a, b, at in pairs]
    code += [w["str.x"](0, 31, 30)]                     # register 31 as a base is sp
    for i in range(19, 29):
        code.append(w["movz"](i, 1000 + i, 1))
    for i in range(8, 16):
        code += [w["movz"](9, 2000 + i, 1), w["dup.w"](i, 9)]
    code += [w["ldr.x"](16, 0, 0), w["ldr.x"](0, 0, 1), w["movz"](1, 0, 0), w["movz"](2, 0, 0),
             w["blr"](16), w["ldr.x"](9, 31, 30)]
    code += [w["str.x"](i, 9, 2 + i - 19) for i in range(19, 29)]
    code += [w["str.d"](i, 9, 12 + i - 8) for i in range(8, 16)]
    code += [w["ldp." + kind](a, b, at) for kind, a, b, at in pairs]
    code += [w["add.sp"](256), w["ret"]()]
    return struct.pack(f"<{len(code)}I", *code)


def check_control(isa, rng):
    """Control flow, calls, full register files, registers to be left as found."""
    n_bad = 0

    def expect(what, expected, got):
        nonlocal n_bad
        if expected != got:
            n_bad += 1
            print(f"{isa} {what}: expected {expected}, got {got}")

    kernels = [ks.build(emit) for emit in (emit_control, emit_crowded, emit_caller, emit_callee)]
    control, crowded, caller, callee = kernels
    run_control, run_crowded, run_caller, run_callee = functions = place(kernels, isa)
    memory = (ctypes.c_int64 * 512)()
    out = ctypes.addressof(memory)
    for a, b, n in itertools.product(LONGS, LONGS[:7], (-1, 0, 1, 4)):
        args = control.args_array(out=out, a=a, b=b, n=n)
        ks.interpret(control, args.buffer_info()[0], 77, 88)
        expected = memory[:4]
        run_control(args.buffer_info()[0], 77, 88)
        expect(f"control {a} {b} {n}", expected, memory[:4])

    start = [rng.getrandbits(63) for _ in range(512)]
    args = crowded.args_array(out=out)
    memory[:] = start
    ks.interpret(crowded, args.buffer_info()[0])
    expected = memory[:]
    memory[:] = start
    run_crowded(args.buffer_info()[0], 0, 0)
    expect("crowded", expected, memory[:])

    address = ctypes.cast(functions[3], ctypes.c_void_p).value
    args = caller.args_array(out=out, function=address)
    memory[:] = start
    ks.interpret(caller, args.buffer_info()[0], 5, 6, functions={
        address: lambda *parameters: ks.interpret(callee, *parameters)})
    expected = memory[:]
    memory[:] = start
    run_caller(args.buffer_info()[0], 5, 6)
    expect("caller", expected, memory[:])

    code, reason = ks.place_code([saved_registers_code()])
    for kernel, function in ((crowded, run_crowded), (caller, run_caller)):
        fields = dict.fromkeys(kernel.fields, out)
        if "function" in fields:
            fields["function"] = address
        args = kernel.args_array(**fields)
        probe = (ctypes.c_int64 * 20)(ctypes.cast(function, ctypes.c_void_p).value,
                                      args.buffer_info()[0])
        code.function(0)(ctypes.addressof(probe), 0, None)
        expect(f"registers after {kernel.name}",
               [(1000 + i) << 16 for i in range(19, 29)] +
               [((2000 + i) << 16) * ((1 << 32) + 1) for i in range(8, 16)], probe[2:])
    return n_bad


def emit_tail(k):
    """Load the first n lanes that end where memory ends, store them elsewhere and back."""
    out, source, n = k.args("out", "source", "n")
    v = k.load_f32_n(source, n)
    k.vstore(out, v)
    k.store_f32_n(source, v, n)


def check_tails(isa):
    """Loads and stores of n lanes must not touch the page after them."""
    page = 65536
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                          ctypes.c_int, ctypes.c_long)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    private_anonymous = 0x1002 if sys.platform == "darwin" else 0x22
    address = libc.mmap(None, 2 * page, 3, private_anonymous, -1, 0)
    assert libc.mprotect(address + page, page, 0) == 0
    end, n_bad = address + page, 0
    kernel, out = ks.build(emit_tail), (ctypes.c_float * 8)()
    (function,) = place([kernel], isa)
    for n in range(-2, 12):
        lanes = min(max(n, 0), 8)
        data = struct.pack(f"<{lanes}f", *range(1, lanes + 1))
        ctypes.memmove(end - len(data), data, len(data))
        args = kernel.args_array(out=ctypes.addressof(out), source=end - len(data), n=n)
        function(args.buffer_info()[0], 0, 0)
        stored = ctypes.string_at(end - len(data), len(data))
        if bytes(out) != data + bytes(32 - len(data)) or stored != data:
            n_bad += 1
            print(f"{isa} {kernel.name}: {n} lanes")
    return n_bad


def emit_count(k):
    """Add 1 to a shared counter n times; and 1 to a sum guarded by a lock made of fetch_add."""
    counter, n = k.args("counter", "n")
    one = k.imm(1)
    with k.loop(n):
        k.fetch_add(counter, one)
        mine = k.fetch_add(counter, one, 64)            # a ticket
        turn = k.load_acquire(counter, 128)
        with k.while_(turn, "!=", mine):
            k.pause()
            k.load_acquire(counter, 128, to=turn)
        k.store_i64(counter, k.load_i64(counter, 192) + 1, 192)
        k.fetch_add(counter, one, 128)


def check_threads(isa, n_threads=3, n=300):
    """Threads that count together lose nothing."""
    kernel = ks.build(emit_count)
    (function,) = place([kernel], isa)
    memory = (ctypes.c_int64 * 32)()
    args = kernel.args_array(counter=ctypes.addressof(memory), n=n)
    threads = [threading.Thread(target=function, args=(args.buffer_info()[0], 0, 0))
               for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = [memory[i] for i in (0, 8, 16, 24)]
    if counts != [n * n_threads] * 4:
        print(f"{isa} threads: {counts}")
        return 1
    return 0


def check_model(isas, path=None):
    """A model gives the same bits natively, on any number of threads; None: that in the file."""
    def logits(device, threads):
        model = ks.load(path, device=device, threads=threads)
        ids = model.tokenizer.encode("Once upon a time there was")
        return [row.tobytes() for row in model.logits(ids)], list(
            model.generate_ids(ids, max_tokens=6, temperature=0)), model.ops.name

    expected, n_bad = logits("python", None)[:2], 0
    for isa, threads in itertools.product(isas, (1, 3)):
        os.environ["KSHIPRA_ISA"] = isa
        if logits("native", threads) != (*expected, "native"):
            n_bad += 1
            print(f"{isa} model {path}, {threads} threads: not the logits of plain Python")
    del os.environ["KSHIPRA_ISA"]
    return n_bad


def check_experts(isas):
    """The same of small models with experts, of both kinds of weights."""
    n_bad = 0
    with tempfile.TemporaryDirectory() as place:
        for arch, options in (("mixtral", {"format": "Q4_0"}),
                              ("qwen3moe", {"n_experts": 11, "n_used": 3, "ffn": 20})):
            path = tiny.write(os.path.join(place, arch), arch, n_layers=1, **options)
            n_bad += check_model(isas, path)
    return n_bad


def check_kernels():
    """Run the native half of the kernels' own tests; return 1 if they fail."""
    import pytest
    tests = [os.path.join(HERE, f"test_{name}_kernels.py")
             for name in ("matrix", "other", "attention")]
    chosen = "(native or neon) and not exp_over"        # a sweep too long for an emulator
    return int(pytest.main(["-q", "-p", "no:cacheprovider", "-k", chosen, *tests])) != 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", action="store_true", help="run the tests of the kernels too")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers (1)")
    options = parser.parse_args()
    isas, reason = ks.host_instruction_sets()
    print("instruction sets:", *isas, reason or "", flush=True)
    n_bad = n_runs = 0
    for isa in isas:
        start = time.time()
        n_bad += check_control(isa, random.Random(options.seed)) + check_threads(isa)
        n_bad += check_tails(isa) if sys.platform != "win32" else 0
        for op in ks.OPS.values():
            differs = isa == isas[0] or op.name.startswith("dot4")      # from the better set
            if op.meaning and differs and not op.name.endswith("_mode"):
                bad, runs = check_op(op, isa, random.Random(f"{options.seed} {op.name}"))
                n_bad, n_runs = n_bad + bad, n_runs + runs
        print(f"{isa}: {time.time() - start:.1f} s", flush=True)
    n_bad += check_model(isas) + check_experts(isas)
    print(f"{n_runs} runs of operations; {n_bad} differences in all", flush=True)
    if options.kernels:
        n_bad += check_kernels()
    return 1 if n_bad or not isas else 0


if __name__ == "__main__":
    sys.exit(main())
