"""Chapters 10, 11 and 13: each operation interpreted and native, the encoders, the memory."""
import ctypes
import functools
import os
import re
import shutil
import struct
import subprocess
import sys
from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kshipra
import tiny
from kshipra import OPS, X86, IntReg, build, interpret

ISAS = kshipra.host_instruction_sets()[0]
ABI = kshipra.host_abi()
# What the operations run as, next to the interpreter.  Code for Windows also runs on other
# systems of the same processor, through `from_sysv`, which moves the parameters.
WAYS = [(isa, ABI) for isa in ISAS] + [(isa, "win64") for isa in ISAS[-1:] if ABI == "sysv"]
native = pytest.mark.skipif(not ISAS, reason="this machine runs no code of ours")


def from_sysv(target):
    """Return code that calls the win64 function at address `target` with sysv parameters."""
    asm = X86("avx2", "sysv")
    asm.begin((), (), False)
    asm.rr("mov", kshipra.RDX, kshipra.R8)
    asm.rr("mov", kshipra.RSI, kshipra.RDX)
    asm.rr("mov", kshipra.RDI, kshipra.RCX)
    asm.push(kshipra.RDI)                   # win64 keeps these two, sysv does not ask for it
    asm.push(kshipra.RSI)
    asm.rr("sub.8", 5, kshipra.RSP, 40)     # 32 for the callee, 8 to be a multiple of 16
    asm.mov_imm(kshipra.RAX, target)
    asm.raw("call rax", b"\xff\xd0")
    asm.rr("add.8", 0, kshipra.RSP, 40)
    asm.pop(kshipra.RSI)
    asm.pop(kshipra.RDI)
    return asm.finish()


def callable_of(kernel, isa, abi=ABI):
    """Return a Python function of (args address, chunk, scratch) that runs the encoded kernel."""
    code, reason = kshipra.place_code([kshipra.encode(kernel, isa, abi)])
    assert reason is None
    if abi != ABI:
        inner = code
        code, reason = kshipra.place_code([from_sysv(code.addresses[0])])
        code.inner = inner
    function = code.function(0)
    return lambda args, chunk=0, scratch=0: function(args, chunk, scratch)


def address(buf):
    return ctypes.addressof((ctypes.c_char * len(buf)).from_buffer(buf))


def run(kernel, way=None, chunk=0, scratch=0, functions=None, **values):
    """Run a kernel interpreted (way None) or as encoded for a (isa, abi)."""
    args = kernel.args_array(**values)
    if way is None:
        interpret(kernel, args.buffer_info()[0], chunk, scratch, functions)
    else:
        callable_of(kernel, *way)(args.buffer_info()[0], chunk, scratch)


EVERY_WAY = pytest.mark.parametrize(
    "way", [None] + WAYS, ids=lambda way: "-".join(way) if way else "interpreted")


# Chapter 10: every operation: interpreted equals native, to the bit.
#
# Memory of a test kernel, in bytes from `memory`: vectors at 0, 32, 64; integers at 96, 104, 112;
# 64 bytes to load from or store to at 128; the result at 256.

N_BYTES = 320
SHIFTS_32, SHIFTS_16, SHIFTS_64 = [0, 1, 8, 31], [0, 1, 8, 15], [0, 1, 32, 63]
IMMEDIATES = [0, 1, -1, 127, -128, 128, 2**31 - 1, -2**31, 2**31, -2**63, 2**63 - 1]
CONSTANTS = {           # the values tried for an operation's constants
    "imm": [(n,) for n in IMMEDIATES + [2**32 - 1, 2**32]],
    "const": [(bytes(32),), (b"\xff" * 32,), (b"abcd" * 8,), (bytes(range(16)) * 2,),
              (bytes(range(32)),)],
    "cmp_f32": [(how,) for how in kshipra.COMPARE],
    "load_i32_at": [((0, 4, 8, 12, 16, 20, 24, 28),), ((60, -128, 3, 3, 0, 17, 44, 1),)],
    "broadcast_lane": [(lane,) for lane in range(8)],
    "extract_i32": [(lane,) for lane in range(8)],
    "insert_i32": [(lane,) for lane in range(8)],
    "shuffle_i32": [((0, 1, 2, 3),), ((3, 1, 0, 2),), ((2, 2, 3, 3),)],
    "blend_i32": [(0,), (0xFF,), (0b10110001,)],
    "halves": [(low, high) for low in range(4) for high in range(4)],
}
for _name, _op in OPS.items():
    if _name.endswith("_imm"):
        CONSTANTS[_name] = [(n,) for n in IMMEDIATES]
    elif _name.startswith("extend"):
        CONSTANTS[_name] = [(0,), (1,)]
    elif _name in ("shl", "shr", "sar"):
        CONSTANTS[_name] = [(n,) for n in SHIFTS_64]
    elif re.fullmatch("(shl|shr|sar)_i(32|16)", _name):
        CONSTANTS[_name] = [(n,) for n in (SHIFTS_32 if "32" in _name else SHIFTS_16)]
TESTED = [name for name, op in OPS.items() if op.meaning]


def emit_one(k, name, constants, alias, crowded, disp):
    """Emit one operation on what `memory` holds.

    alias: None, or which of its operands the result overwrites.  crowded: keep registers busy
    that are handed out first, so that the operation gets the others.
    """
    op, constants = OPS[name], list(constants)
    memory = k.args("memory")
    base = memory + (128 - disp)
    ints = [k.load_i64(memory, 8 * i) for i in range(5)] if crowded else []
    vectors = [k.load_i8x32(memory, 8 * i) for i in range(9)] if crowded else []
    operands, n_ints, n_vectors = [], 0, 0
    touches_memory = "d" in op.letters or name == "load_i32_at"
    for i, letter in enumerate(op.letters[(op.sets and not op.updates):]):
        if letter in "Wv":
            operands.append(k.load_i8x32(memory, 32 * n_vectors))
            n_vectors += 1
        elif letter == "i" and touches_memory and base not in operands:
            operands.append(base)
        elif letter == "i":
            operands.append(k.load_i64(memory, 96 + 8 * n_ints))
            n_ints += 1
        elif letter == "d":
            operands.append(disp)
        elif letter == "n":
            operands.append(constants.pop(0))
    to = None
    if op.sets and not op.updates and op.letters[0] == "V":
        to = k.zero_i8x32()
    if alias is not None:
        to = operands[alias]
    if name == "load_i32_at":
        operands[1] = tuple([disp + d for d in operands[1]])
    result = k.emit(name, *operands, to=to)
    if type(result) is IntReg:
        k.store_i64(memory, result, 256)
    elif result is not None:
        k.store_i8x32(memory, result, 256)
    # The crowd is looked at again, so that it had to stay and to be left alone.
    for i, x in enumerate(ints):
        k.store_i64(memory, x, 288)
    for x in vectors:
        k.store_i8x32(memory, x, 288)


@functools.lru_cache(None)
def kernels_of(name):
    """Return [(kernel, its encoded functions)]: one operation with every constant and aliasing."""
    op = OPS[name]
    kind = {"I": "i", "V": "v"}.get(op.letters[:1])
    reads = op.letters[(op.sets and not op.updates):]
    aliases = [None] + ([i for i, letter in enumerate(reads) if letter == kind] if kind else [])
    found = []
    for constants in CONSTANTS.get(name, [()]):
        for alias in aliases:
            for crowded, disp in ((False, 0), (True, 1000)):
                kernel = build(emit_one, name, constants, alias, crowded, disp)
                found.append((kernel, [callable_of(kernel, *way) for way in WAYS]))
    return found


FLOAT_BITS = [0, 0x80000000, 1, 0x807FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x3F000000,
              0x3FC00000, 0x40200000, 0x4B000000, 0x4AFFFFFF, 0x7F7FFFFF, 0xFF7FFFFF,
              0x7F800000, 0xFF800000, 0x7FC00000, 0x477FE000, 0x477FF000, 0x33800000, 0x33000000,
              0x7F7F7F7F, 0x80808080, 0x00FF00FF, 0x80007FFF, 0xFFFFFFFF, 0x7FFFFFFF, 0x41DEADBE]
WORDS = st.lists(st.sampled_from(FLOAT_BITS) | st.integers(0, 2**32 - 1),
                 min_size=N_BYTES // 4, max_size=N_BYTES // 4)


def is_nan(bits):
    return bits & 0x7FFFFFFF > 0x7F800000


def fit(name, memory):
    """Change random memory to what an operation takes, where it does not take everything."""
    words = memoryview(memory).cast("I")
    if name == "f32_to_i32":
        for i in range(8):
            if words[i] >> 23 & 255 > 156:
                words[i] &= 0x4FFFFFFF ^ 0x01000000
    elif name == "store_f16x8":
        for i in range(8):
            words[i] = 0 if is_nan(words[i]) else words[i]
    elif name in ("dot4_us", "dot4_us_m"):
        for i in range(32, 64):
            memory[i] &= 0x7F
    elif name == "dot4_ss":
        for i in range(64, 96):
            memory[i] = max(memory[i], 0x81) if memory[i] >= 0x80 else memory[i]
    elif name == "shuffle_i8":
        for i in range(32, 64):
            memory[i] &= 0x8F
    elif name in ("shlv_i32", "shrv_i32"):
        for i in range(8, 16):
            words[i] &= 31
    elif name == "select":
        for i in range(32):
            memory[i] = 0xFF if memory[i] & 0x80 else 0
    elif name in ("div", "rem"):
        words[26] |= 1
    elif name in ("load_f32_n", "load_i32_n", "store_f32_n", "store_i32_n"):
        struct.pack_into("<q", memory, 96, words[24] % 16 - 4)


def result_of(name, memory):
    """Return all of memory, every NaN in a float result made the same."""
    words = array("I", bytes(memory))
    if OPS[name].lane == "f32":
        for i in range(64, 72):
            words[i] = 0x7FC00000 if is_nan(words[i]) else words[i]
    return words.tobytes()


@native
@pytest.mark.parametrize("name", TESTED)
@tiny.examples(3)
@given(words=WORDS)
def test_operation_interpreted_equals_native(name, words):
    """Any bits in, any constant, whatever register the result goes to: the same memory after."""
    before = bytearray(array("I", words).tobytes())
    fit(name, before)
    for kernel, functions in kernels_of(name):
        memory = bytearray(before)
        args = kernel.args_array(memory=address(memory))
        interpret(kernel, args.buffer_info()[0])
        expected = result_of(name, memory)
        for way, function in zip(WAYS, functions):
            memory[:] = before
            function(args.buffer_info()[0])
            assert result_of(name, memory) == expected, (way, kernel.instructions)


@pytest.mark.parametrize("isa", ["vnni", "avxvnni"])
@pytest.mark.parametrize("name", ["dot4_us", "dot4_us_m"])
@tiny.examples(8)
@given(words=WORDS)
def test_vnni_takes_all_unsigned_bytes(isa, name, words):
    if isa not in ISAS:
        pytest.skip("not on this processor")
    kernel, before = build(emit_one, name, (), None, False, 0), array("I", words)
    results = []
    for way in (None, (isa, ABI)):
        memory = before[:]
        run(kernel, way, memory=memory.buffer_info()[0])
        results.append(memory)
    assert results[0] == results[1]


def test_every_operation_has_a_row_in_every_encoder():
    for isa, encoder in kshipra.ENCODERS.items():
        rows = encoder(isa, "aapcs64" if "neon" in isa else "sysv").rows
        assert not set(OPS) - set(rows), isa


# Known answers, so that interpreter and encoder cannot be wrong together.

def lanes_of(emit, form, **memory):
    """Return the 32 bytes that emit(k, register of each operand) computes, unpacked by form."""
    def emit_known(k):
        out, *operands = k.args("out", *memory)
        k.store_i8x32(out, emit(k, *[k.load_i8x32(x) for x in operands]))
    kernel = build(emit_known)
    buffers = {name: bytearray(data) for name, data in memory.items()}
    out = bytearray(32)
    run(kernel, out=address(out), **{name: address(buf) for name, buf in buffers.items()})
    return list(struct.unpack(form, out))


BYTES = bytes(range(32))
F = struct.pack("<8f", 1, 2, 4, 8, 16, 32, 64, 128)


@pytest.mark.parametrize("emit, form, memory, want", [
    (lambda k, a: k.hsum_f32(a), "<8f", [F], [255.0] * 8),
    (lambda k, a: k.hmax_f32(a), "<8f", [F], [128.0] * 8),
    (lambda k, a, b: k.hadd_f32(a, b), "<8f", [F, F], [3, 12, 3, 12, 48, 192, 48, 192]),
    (lambda k, a, b: k.unpack_lo_i8(a, b), "32B", [BYTES, BYTES],
     [i // 2 for i in range(16)] + [16 + i // 2 for i in range(16)]),
    (lambda k, a, b: k.unpack_hi_i64(a, b), "<4Q", [BYTES, bytes(32)],
     [0x0F0E0D0C0B0A0908, 0, 0x1F1E1D1C1B1A1918, 0]),
    (lambda k, a, b: k.madd(a, b), "<8i", [b"\x00\x80" * 16] * 2, [-2**31] * 8),
    (lambda k, a, b: k.dot4_us(k.zero_i32x8(), a, b), "<8i", [b"\x7f" * 32, b"\x80" * 32],
     [-65024] * 8),
    (lambda k, a, b: k.dot4_ss(k.zero_i32x8(), a, b), "<8i", [b"\x80" * 32, b"\x81" * 32],
     [65024] * 8),
    (lambda k, a, b: k.sign_i8(a, b), "32b", [b"\x05" * 32, b"\x00\x01\xff\x80" * 8],
     [0, 5, -5, -5] * 8),
    (lambda k, a, b: k.shuffle_i8(a, b), "32B", [BYTES, b"\x0f\x00\x80\x01" * 8],
     [15, 0, 0, 1] * 4 + [31, 16, 0, 17] * 4),
    (lambda k, a: k.halves(a, a, 1, 0), "32B", [BYTES], list(range(16, 32)) + list(range(16))),
    (lambda k, a: k.round_f32(a), "<8f",
     [struct.pack("<8f", .5, 1.5, 2.5, -.5, -1.5, 3.2, 1e9, 0)],
     [0, 2, 2, 0, -2, 3, 1e9, 0]),
    (lambda k, a: k.f32_to_i32(a), "<8i",
     [struct.pack("<8f", .5, 1.5, 2.5, -.5, -1.5, 3.2, 1e9, 0)],
     [0, 2, 2, 0, -2, 3, 10**9, 0]),
])
def test_known_answers(emit, form, memory, want):
    assert lanes_of(emit, form, **dict(zip("abc", memory))) == want


def test_lane_sum_order():
    """1e8 swallows a 1 unless the 1s meet first: the tree of chapter 4 is what is computed."""
    v = [1e8, -1e8, 1, 1, 1, 1e8, 1, -1e8]
    f = lambda x: array("f", [x])[0]
    want = f(f(f(v[0] + v[1]) + f(v[2] + v[3])) + f(f(v[4] + v[5]) + f(v[6] + v[7])))
    assert lanes_of(lambda k, a: k.hsum_f32(a), "<8f", a=struct.pack("<8f", *v)) == [want] * 8


@pytest.mark.skipif(not hasattr(os, "fork") or not ISAS, reason="needs mprotect and native code")
@pytest.mark.parametrize("n", range(9))
def test_partial_load_and_store_stop_at_the_end_of_a_page(n):
    """Lanes from n on are neither read nor written: the page behind is not ours to touch."""
    page = 16384
    libc = ctypes.CDLL(None)
    libc.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mprotect.restype = ctypes.c_int
    raw = (ctypes.c_char * (3 * page))()
    edge = (ctypes.addressof(raw) + 2 * page - 1) // page * page
    ctypes.memmove(edge - 32, struct.pack("<8f", *range(8)), 32)

    def emit_copy(k):
        x, y, n = k.args("x", "y", "n")
        k.store_f32_n(y, k.load_f32_n(x, n), n)

    kernel, out = build(emit_copy), bytearray(b"\xaa" * 32)
    for way in WAYS:
        function = callable_of(kernel, *way)
        args = kernel.args_array(x=edge - 4 * n, y=address(out), n=n)
        back = kernel.args_array(x=address(out), y=edge - 4 * n, n=n)
        assert libc.mprotect(edge, page, 0) == 0
        function(args.buffer_info()[0])
        function(back.buffer_info()[0])
        assert libc.mprotect(edge, page, 3) == 0
        assert out == struct.pack("<8f", *range(8))[32 - 4 * n:] + b"\xaa" * (32 - 4 * n)


# Blocks.  A program is a tree of statements over a few variables; Python runs the tree itself.

N_VARIABLES = 4
VARIABLE = st.integers(0, N_VARIABLES - 1)
VALUE = st.tuples(st.just("var"), VARIABLE) | st.tuples(st.just("imm"), st.integers(-3, 300))
CONDITION = st.tuples(VARIABLE, st.sampled_from(list(kshipra.COMPARE)), VALUE)
LEAF = st.tuples(st.sampled_from(["+", "-"]), VARIABLE, VALUE)


def compound(body):
    body = st.lists(body, max_size=3)
    return (st.tuples(st.just("loop"), st.integers(-1, 3), body)
            | st.tuples(st.just("loop var"), VARIABLE, body)
            | st.tuples(st.just("while"), st.integers(0, 3), body)
            | st.tuples(st.just("if"), CONDITION, body)
            | st.tuples(st.just("if else"), CONDITION, body, body))


PROGRAM = st.lists(st.recursive(LEAF, compound, max_leaves=12), max_size=4)


def python_runs(program, v):
    def value(x):
        return v[x[1]] if x[0] == "var" else x[1]

    for kind, first, second, *rest in program:
        if kind in "+-":
            v[first] = kshipra._i64(v[first] + (value(second) if kind == "+" else -value(second)))
        elif kind in ("loop", "loop var", "while"):
            for _ in range(v[first] & 3 if kind == "loop var" else first):
                python_runs(second, v)
        else:
            a, how, b = first
            if kshipra.COMPARE[how](v[a], value(b)):
                python_runs(second, v)
            elif rest:
                python_runs(rest[0], v)


def emit_program(k, program):
    memory = k.args("memory")
    v = [k.load_i64(memory, 8 * i) for i in range(N_VARIABLES)]

    def value(x):
        return v[x[1]] if x[0] == "var" else x[1]

    def emit(program):
        for kind, first, second, *rest in program:
            if kind in "+-":
                v[first] += value(second) if kind == "+" else k.imm(0) - value(second)
            elif kind in ("loop", "loop var"):
                with k.loop(v[first] & 3 if kind == "loop var" else first):
                    emit(second)
            elif kind == "while":
                i = k.imm(0)
                with k.while_(i, "<", first):
                    emit(second)
                    i += 1
            else:
                a, how, b = first
                with k.if_(v[a], how, value(b)):
                    emit(second)
                if rest:
                    with k.else_():
                        emit(rest[0])

    emit(program)
    for i in range(N_VARIABLES):
        k.store_i64(memory, v[i], 8 * i)


@EVERY_WAY
@tiny.examples(25)
@given(program=PROGRAM,
       values=st.lists(st.integers(-5, 2**40), min_size=N_VARIABLES, max_size=N_VARIABLES))
@example(program=[("if else", (0, "<", ("imm", 1)), [], [])], values=[0, 0, 0, 0])
def test_blocks_do_what_the_program_says(way, program, values):
    kernel = build(emit_program, program)
    memory = array("q", values)
    run(kernel, way, memory=memory.buffer_info()[0])
    python_runs(program, values)
    assert list(memory) == values


@EVERY_WAY
def test_registers_set_before_a_loop_survive_it(way):
    def emit_sums(k):
        out, n = k.args("out", "n")
        early = [k.const_f32x8(float(i)) for i in range(6)]
        total = k.zero_f32x8()
        with k.loop(n):
            for x in early[:3]:
                temporary = x * x               # would take over an early register if it could
                total += temporary
            with k.loop(2):
                total += early[3] + early[4]
        k.store_f32x8(out, total + early[5])

    out = array("f", bytes(32))
    run(build(emit_sums), way, out=out.buffer_info()[0], n=3)
    assert list(out) == [3.0 * (0 + 1 + 4 + 2 * 7) + 5] * 8


@EVERY_WAY
def test_parameters_arrive(way):
    def emit_parameters(k):
        out = k.args("out")
        k.store_i64(out, k.chunk)
        k.store_i64(out, k.scratch, 8)
        k.store_i64(out, k.args_pointer, 16)

    kernel, out = build(emit_parameters), array("q", bytes(24))
    args = kernel.args_array(out=out.buffer_info()[0])
    where = args.buffer_info()[0]
    function = functools.partial(interpret, kernel) if way is None else callable_of(kernel, *way)
    function(where, -7, 1 << 40)
    assert list(out) == [-7, 1 << 40, where]


@EVERY_WAY
def test_call_keeps_registers(way):
    """A caller with all its registers in use, a callee that overwrites all of them."""
    def emit_callee(k):
        out = k.args("out")
        many = [k.load_i64(out, 24) * i for i in range(10)]
        vectors = [k.const_i32x8(i) for i in range(16)]
        with k.if_(many[9], "==", -1):         # never, but keeps them busy until here
            for x in many:
                k.store_i64(out, x, 24)
            for x in vectors:
                k.store_i32x8(out, x, 32)
        k.store_i64(out, k.chunk)
        k.store_i64(out, k.scratch, 8)

    def emit_caller(k):
        out, callee, args = k.args("out", "callee", "args")
        many = [k.imm(100 + i) for i in range(8)]
        k.call(callee, args, many[3], many[0])
        total = k.imm(0)
        for i, x in enumerate(many):
            total += x * (i + 1)
        k.store_i64(out, total, 16)

    out = array("q", bytes(32 + 32))
    callee, caller = build(emit_callee), build(emit_caller)
    inner = callee.args_array(out=out.buffer_info()[0])
    functions, target = None, 4096
    if way is None:
        functions = {target: functools.partial(interpret, callee)}
    else:
        code, _ = kshipra.place_code([kshipra.encode(callee, *way)])
        target = code.addresses[0]
    run(caller, way, functions=functions, out=out.buffer_info()[0], callee=target,
        args=inner.buffer_info()[0])
    assert list(out[:3]) == [103, 100, sum((100 + i) * (i + 1) for i in range(8))]


# What a kernel author gets wrong is an error that says where.

@pytest.mark.parametrize("emit, message", [
    (lambda k: k.add_f32(k.zero_f32x8(), k.imm(1)), "add_f32 takes 'vv'"),
    (lambda k: k.load_f32x8(k.zero_f32x8()), "vload takes 'id'"),
    (lambda k: k.zero_f32x8() + k.zero_i32x8(), "add of f32 and i32 is no operation"),
    (lambda k: k.zero_i8x32() << 1, "shl of i8 and int is no operation"),
])
def test_wrong_kinds_are_refused_where_they_are_written(emit, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        build(lambda k: emit(k))


@pytest.mark.parametrize("emit, error, message", [
    (lambda k, x, v: k.shl(x, 64), ValueError, "shl takes constants 0 to 63"),
    (lambda k, x, v: v << 32, ValueError, "shl_i32 takes constants 0 to 31"),
    (lambda k, x, v: k.sar_i16(v, -1), ValueError, "sar_i16 takes constants 0 to 15"),
    (lambda k, x, v: k.extract_i32(v, 8), ValueError, "extract_i32 takes constants 0 to 7"),
    (lambda k, x, v: k.shuffle_i32(v, (0, 1, 2, 4)), ValueError,
     "shuffle_i32 takes constants 0 to 3"),
    (lambda k, x, v: k.add_i32(v, v, to=x), TypeError, "add_i32 sets a VecReg"),
    (lambda k, x, v: k.add(x, x, to=v), TypeError, "add sets a IntReg"),
    (lambda k, x, v: k.dot4_us(x, v, v), TypeError, "dot4_us sets a VecReg"),
    (lambda k, x, v: k.const_i32x8([1, 2]), ValueError, "constant of 2 lanes; needs 1 or 8"),
])
def test_wrong_constants_and_results_are_refused(emit, error, message):
    with pytest.raises(error, match=re.escape(message)):
        build(lambda k: emit(k, k.imm(1), k.zero_i32x8()))


def encode(emit, isa="avx2", abi="sysv"):
    return kshipra.encode(build(emit), isa, abi)


def test_a_kernel_may_use_all_registers_and_no_more():
    def emit_many(k, n_vectors, n_ints):
        out = k.args("out")
        vectors = [k.load_i32x8(out, 32 * i) for i in range(n_vectors)]
        ints = [k.load_i64(out, 32 * i) for i in range(n_ints)]
        for x in vectors:
            k.store_i32x8(out, x)
        for x in ints:
            k.store_i64(out, x)

    assert kshipra.encode(build(emit_many, 16, 13), "avx2", "sysv")
    with pytest.raises(ValueError, match=r"emit_many needs 17 VecReg .* but there are 16"):
        kshipra.encode(build(emit_many, 17, 1), "avx2", "sysv")
    with pytest.raises(ValueError, match=r"emit_many needs 15 IntReg .* but there are 14"):
        kshipra.encode(build(emit_many, 1, 14), "avx2", "win64")


def test_temporaries_count():
    def emit_dot(k, n):
        out = k.args("out")
        vectors = [k.load_i32x8(out, 32 * i) for i in range(n)]
        k.dot4_ss(vectors[0], vectors[1], vectors[2])
        for x in vectors:
            k.store_i32x8(out, x)

    assert kshipra.encode(build(emit_dot, 14), "avx2", "sysv")
    with pytest.raises(ValueError, match="VecReg and its temporaries"):
        kshipra.encode(build(emit_dot, 15), "avx2", "sysv")


def test_a_register_must_be_set_before_it_is_read():
    def emit_unset(k):
        k.store_i64(k.args("out"), IntReg(k))
    with pytest.raises(ValueError, match=r"store_i64 reads i\d, which was not set"):
        encode(emit_unset)
    with pytest.raises(ValueError, match="reads a register that was not set"):
        interpret(build(emit_unset), array("q", [0]).buffer_info()[0])


def test_a_register_set_in_a_block_ends_with_it():
    def emit_escape(k):
        out = k.args("out")
        with k.loop(out):
            x = k.imm(1)
        k.store_i64(out, x)
    with pytest.raises(ValueError, match="first set in a block that has ended"):
        encode(emit_escape)


def test_else_needs_its_if():
    def emit_lonely(k):
        with k.else_():
            pass
    with pytest.raises(ValueError, match="else_ must follow"):
        build(emit_lonely)


def test_arguments_are_checked_by_name():
    def emit_two(k):
        k.args("x", "n")
    with pytest.raises(TypeError, match=r"takes \['x', 'n'\], got \['x'\]"):
        build(emit_two).args_array(x=1)


# Chapter 11, x86-64: bytes recorded from GNU as 2.40, one for each rule of the encoding.

RECORDED = [
    # rule, emitter with its operands, assembly, bytes
    ("short prefix",
     ("vvv", "vaddps", 0, 1, 2), "vaddps ymm0, ymm1, ymm2", "c5 f4 58 c2"),
    ("R extends reg in the short prefix",
     ("vvv", "vaddps", 8, 1, 2), "vaddps ymm8, ymm1, ymm2", "c5 74 58 c2"),
    ("vvvv has four bits",
     ("vvv", "vaddps", 0, 15, 2), "vaddps ymm0, ymm15, ymm2", "c5 84 58 c2"),
    ("B needs the long prefix",
     ("vvv", "vsubps", 0, 1, 10), "vsubps ymm0, ymm1, ymm10", "c4 c1 74 5c c2"),
    ("pp is 66",
     ("vvv", "vpaddd", 3, 4, 5), "vpaddd ymm3, ymm4, ymm5", "c5 dd fe dd"),
    ("pp is F3",
     ("vvm", "vmovdqu", 1, 0, 7, 0), "vmovdqu ymm1, [rdi]", "c5 fe 6f 0f"),
    ("pp is F2",
     ("vvv", "vhaddps", 1, 2, 3), "vhaddps ymm1, ymm2, ymm3", "c5 ef 7c cb"),
    ("table 0F38 needs the long prefix",
     ("vvv", "vpmulld", 1, 2, 3), "vpmulld ymm1, ymm2, ymm3", "c4 e2 6d 40 cb"),
    ("table 0F3A, with a constant",
     ("vvv", "vperm2i128", 1, 2, 3, 33), "vperm2i128 ymm1, ymm2, ymm3, 33", "c4 e3 6d 46 cb 21"),
    ("W is 1",
     ("vvv", "vpermq", 1, 0, 2, 238), "vpermq ymm1, ymm2, 238", "c4 e3 fd 00 ca ee"),
    ("L is 0",
     ("vvv", "vpackssdw.x", 1, 2, 3), "vpackssdw xmm1, xmm2, xmm3", "c5 e9 6b cb"),
    ("unused vvvv is 1111",
     ("vvv", "vsqrtps", 1, 0, 2), "vsqrtps ymm1, ymm2", "c5 fc 51 ca"),
    ("a digit in reg",
     ("vvv", "vpsrld", 2, 1, 9, 4), "vpsrld ymm1, ymm9, 4", "c4 c1 75 72 d1 04"),
    ("r/m first",
     ("vvv", "vextracti128", 9, 0, 2, 1), "vextracti128 xmm2, ymm9, 1", "c4 63 7d 39 ca 01"),
    ("a register in the constant",
     ("vvv", "vpblendvb", 1, 2, 3, 0xC0),
     "vpblendvb ymm1, ymm2, ymm3, ymm12", "c4 e3 6d 4c cb c0"),
    ("memory, no displacement",
     ("vvm", "vaddps", 1, 2, 6, 0), "vaddps ymm1, ymm2, [rsi]", "c5 ec 58 0e"),
    ("memory, one byte",
     ("vvm", "vaddps", 1, 2, 6, -128), "vaddps ymm1, ymm2, [rsi - 128]", "c5 ec 58 4e 80"),
    ("memory, four bytes",
     ("vvm", "vaddps", 1, 2, 6, 128), "vaddps ymm1, ymm2, [rsi + 128]", "c5 ec 58 8e 80 00 00 00"),
    ("base rbp always has a displacement",
     ("vvm", "vaddps", 1, 2, 5, 0), "vaddps ymm1, ymm2, [rbp]", "c5 ec 58 4d 00"),
    ("base r13 likewise",
     ("vvm", "vaddps", 1, 2, 13, 0), "vaddps ymm1, ymm2, [r13]", "c4 c1 6c 58 4d 00"),
    ("base rsp needs the byte 24",
     ("vvm", "vaddps", 1, 2, 4, 32), "vaddps ymm1, ymm2, [rsp + 32]", "c5 ec 58 4c 24 20"),
    ("base r12 likewise",
     ("vvm", "vaddps", 9, 2, 12, 0), "vaddps ymm9, ymm2, [r12]", "c4 41 6c 58 0c 24"),
    ("a constant after the displacement",
     ("vvm", "vinserti128", 1, 2, 6, 16, 1),
     "vinserti128 ymm1, ymm2, [rsi + 16], 1", "c4 e3 6d 38 4e 10 01"),
    ("a store, reg is the source",
     ("vvm", "vmovdqu.m", 9, 0, 6, 16), "vmovdqu [rsi + 16], ymm9", "c5 7e 7f 4e 10"),
    ("a store under a mask",
     ("vvm", "vmaskmovps.m", 1, 2, 6, 0), "vmaskmovps [rsi], ymm2, ymm1", "c4 e2 6d 2e 0e"),
    ("general to vector register",
     ("vvv", "vmovd", 1, 0, 8), "vmovd xmm1, r8d", "c4 c1 79 6e c8"),
    ("EVEX",
     ("evex_dot", 1, 2, 3), "vpdpbusd ymm1, ymm2, ymm3", "62 f2 6d 28 50 cb"),
    ("EVEX, registers from 8 on",
     ("evex_dot", 9, 10, 11), "vpdpbusd ymm9, ymm10, ymm11", "62 52 2d 28 50 cb"),
    ("EVEX, broadcast",
     ("evex_dot_broadcast", 1, 2, 6, 0),
     "vpdpbusd ymm1, ymm2, dword ptr [rsi]{1to8}", "62 f2 6d 38 50 0e"),
    ("EVEX, displacement in units of 4",
     ("evex_dot_broadcast", 9, 10, 8, 508),
     "vpdpbusd ymm9, ymm10, dword ptr [r8 + 508]{1to8}", "62 52 2d 38 50 48 7f"),
    ("EVEX, displacement of no whole unit",
     ("evex_dot_broadcast", 1, 2, 6, 2),
     "vpdpbusd ymm1, ymm2, dword ptr [rsi + 2]{1to8}", "62 f2 6d 38 50 8e 02 00 00 00"),
    ("VEX form of the dot product",
     ("vvv", "vpdpbusd", 1, 2, 3), "{vex} vpdpbusd ymm1, ymm2, ymm3", "c4 e2 6d 50 cb"),
    ("REX.W",
     ("rr", "add", 1, 2), "add rdx, rcx", "48 01 ca"),
    ("REX.R and REX.B",
     ("rr", "add", 9, 10), "add r10, r9", "4d 01 ca"),
    ("no REX for 32 bits",
     ("rr", "xor.r", 1, 1), "xor ecx, ecx", "31 c9"),
    ("opcode of two bytes",
     ("rr", "imul", 1, 10), "imul rcx, r10", "49 0f af ca"),
    ("constant of one byte",
     ("rr", "cmp.8", 7, 9, -5), "cmp r9, -5", "49 83 f9 fb"),
    ("constant of four bytes",
     ("rr", "sub.32", 5, 9, 1000), "sub r9, 1000", "49 81 e9 e8 03 00 00"),
    ("integer load",
     ("rm", "mov.q", 9, 5, 0), "mov r9, [rbp]", "4c 8b 4d 00"),
    ("sign extension",
     ("rm", "movsxd.m", 1, 6, 4), "movsxd rcx, dword ptr [rsi + 4]", "48 63 4e 04"),
    ("store of 16 bits: 66 before REX",
     ("store_word", 9, 6, 0), "mov [rsi], r9w", "66 44 89 0e"),
    ("store of sil needs a REX",
     ("rm", "mov.mb", 6, 1, 0), "mov [rcx], sil", "40 88 31"),
    ("lock before REX",
     ("rm", "lock xadd", 0, 9, 8), "lock xadd [r9 + 8], rax", "f0 49 0f c1 41 08"),
    ("constant of 32 bits, zero-extended",
     ("mov_imm", 9, 2**32 - 1), "mov r9d, 4294967295", "41 b9 ff ff ff ff"),
    ("constant of 32 bits, sign-extended",
     ("mov_imm", 9, -1), "mov r9, -1", "49 c7 c1 ff ff ff ff"),
    ("constant of 64 bits",
     ("mov_imm", 9, 2**32), "mov r9, 4294967296", "49 b9 00 00 00 00 01 00 00 00"),
    ("push",
     ("push", 12), "push r12", "41 54"),
]


def emitted(emitter, *operands):
    asm = X86("avx2", "sysv")
    getattr(asm, emitter)(*operands)
    return asm, bytes(asm.code)


@pytest.mark.parametrize("call, text, want", [row[1:] for row in RECORDED],
                         ids=[row[0] for row in RECORDED])
def test_encoding(call, text, want):
    emitter, *operands = call
    asm, data = emitted(emitter, *operands)
    assert data.hex(" ") == want
    assert asm.text(emitter, operands, data) == text


def instructions_of(kernel, isa, abi):
    """Return (assembly, bytes) of each instruction in a kernel's listing."""
    lines = re.findall(r"^[0-9a-f]{4}  ([0-9a-f ]{2,}?)  +(\S.*)$",
                       kshipra.listing(kernel, isa, abi), re.M)
    return [(text, data) for data, text in lines]


@pytest.mark.skipif(not shutil.which("as") or not shutil.which("objcopy")
                    or sys.platform != "linux"
                    or kshipra._MACHINE != "x86-64", reason="needs GNU as for x86-64")
def test_listings_are_what_gnu_as_makes_of_them(tmp_path):
    """Each operation's listing, assembled again, gives the bytes that it shows."""
    source, want = [".intel_syntax noprefix"], []
    for isa in ("avx2", "vnni", "avxvnni"):
        for name in TESTED:
            for constants in CONSTANTS.get(name, [()]):
                kernel = build(emit_one, name, constants, None, True, 1000)
                for text, data in instructions_of(kernel, isa, "win64"):
                    # as has a shorter form for shifts by 1, and for moves from registers 8 to 15
                    if not re.match(r"sh[lr] \w+, 1$|sar \w+, 1$|"
                                    r"vmovaps ymm[0-7], ymm([89]|1\d)$", text):
                        source.append(text)
                        want.append(bytes.fromhex(data))
    unique = dict(zip(source[1:], want))
    (tmp_path / "a.s").write_text("\n".join(source[:1] + list(unique)) + "\n")
    subprocess.run(["as", "-o", tmp_path / "a.o", tmp_path / "a.s"], check=True)
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", tmp_path / "a.o",
                    tmp_path / "a.bin"], check=True)
    assert (tmp_path / "a.bin").read_bytes() == b"".join(unique.values())


def test_listing_shows_operations_labels_and_constants():
    def emit_shown(k):
        x, n = k.args("x", "n")
        with k.loop(n):
            k.store_f32x8(x, k.load_f32x8(x) * k.const_f32x8(2.0))
            k.advance(x=32)

    text = kshipra.listing(build(emit_shown), "avx2", "sysv")
    code = encode(emit_shown)
    assert text.startswith(f"; emit_shown for avx2, sysv: {len(code)} bytes")
    for part in ("; mul_f32 v", "top_0:", "jg top_0", "vmulps ymm", "vbroadcastss ymm1, [rip + ",
                 "; end", "ret", "constants: ", "00 00 40"):
        assert part in text, part
    shown = "".join(data for _, data in re.findall(r"^([0-9a-f]{4})  ([0-9a-f ]+?)  ", text, re.M))
    assert bytes.fromhex(shown) == code[:len(bytes.fromhex(shown))]


def test_the_example_in_the_text_is_exact():
    """The kernel in the opener of chapter 10: instructions, bytes and assembly, and its run."""
    with open(kshipra.__file__, encoding="utf-8") as f:
        opener = re.search(r"^# 10\. .*?^class ", f.read(), re.M | re.S)[0]
    blocks = [re.sub("^#     ", "", block, flags=re.M)
              for block in re.findall(r"(?:^#     .*\n)+", opener, re.M)]
    source, table, run_source = [
        block for block in blocks
        if block.startswith(("def emit_double", "('load_i64'", "x = array"))]
    names = dict(vars(kshipra))
    exec(source, names)
    kernel = names["kernel"] = build(names["emit_double"])
    rows = [re.fullmatch(r"(\(.*\))? *((?: ?\b[0-9a-f]{2}\b)*) *(.*)", line).groups()
            for line in table.splitlines()]
    assert [row[0] for row in rows if row[0]] == list(map(repr, kernel.instructions))
    assert "".join(row[1] for row in rows).replace(" ", "") == encode(names["emit_double"]).hex()
    listed = [(text, data.strip()) for text, data in instructions_of(kernel, "avx2", "sysv")]
    assert [(text, data) for _, data, text in rows if text] == listed
    exec(run_source, names)
    assert names["x"].tolist() == list(range(0, 16, 2))


def test_nested_ifs_have_labels_of_their_own():
    def emit_two(k):
        x = k.args("x")
        for _ in range(2):
            with k.if_(x, "<", 0):
                k.store_i64(x, x)
    assert len(re.findall(r"end_[01]:", kshipra.listing(build(emit_two), "avx2", "sysv"))) == 2


def busy_kernel(calls):
    def emit_busy(k):
        out = k.args("out")
        ints = [k.load_i64(out, 8 * i) for i in range(13)]
        for x in ints:
            k.store_i64(out, x)
        vectors = [k.load_f32x8(out, 32 * i) for i in range(16)]
        for x in vectors:
            k.store_f32x8(out, x)
        if calls:
            k.call(out, out, k.imm(1), k.imm(2))
            k.store_i64(out, out)
    return build(emit_busy)


@pytest.mark.parametrize("calls", [False, True], ids=["leaf", "calls"])
@pytest.mark.parametrize("abi, kept, kept_vectors", [
    ("sysv", "rbx rbp r12 r13 r14 r15", []),
    ("win64", "rbx rbp rdi rsi r12 r13 r14 r15", range(6, 16)),
])
def test_calling_convention(calls, abi, kept, kept_vectors):
    """What the convention wants kept is saved and restored; the stack is aligned at calls."""
    texts = [text for text, _ in instructions_of(busy_kernel(calls), "avx2", abi)]
    pushed = [text[5:] for text in texts if text.startswith("push")]
    popped = [text[4:] for text in texts if text.startswith("pop")]
    assert sorted(pushed) == sorted(kept.split()) and popped == pushed[::-1]
    for v in kept_vectors:
        (save,) = [i for i, text in enumerate(texts)
                   if re.fullmatch(rf"vmovdqu \[rsp.*\], xmm{v}", text)]
        (restore,) = [i for i, text in enumerate(texts)
                      if re.fullmatch(rf"vmovdqu xmm{v}, \[rsp.*\]", text)]
        uses = [i for i, text in enumerate(texts) if re.search(rf"ymm{v}\b", text)]
        assert save < min(uses) and max(uses) < restore
        place, again = (texts[i].split("[")[1].split("]")[0] for i in (save, restore))
        assert place == again
    moved = sum(int(text.split(", ")[1]) for text in texts if re.match(r"(add|sub) rsp", text)
                for text in [text.replace("sub rsp, ", "sub rsp, -")])
    assert moved == 0
    zeroed = texts.index("vzeroupper") if not calls else (
        len(texts) - 1 - texts[::-1].index("vzeroupper"))
    assert not any("ymm" in text for text in texts[zeroed:]) and texts[-1] == "ret"
    if calls:
        (at,) = [i for i, text in enumerate(texts) if text == "call rax"]
        frame = sum(abs(int(text.split(", ")[1])) for text in texts[:at]
                    if re.match(r"(add|sub) rsp", text))
        assert (8 + 8 * len(pushed) + frame) % 16 == 0
        assert texts[at - 1] == "vzeroupper"
        if abi == "win64":
            slots = [int(text.split("+ ")[1].split("]")[0]) for text in texts
                     if text.startswith("mov [rsp")]
            assert min(slots) >= 32, "the callee owns 32 bytes above the return address"


# Chapter 13: executable memory and instruction sets.

def emit_answer(k):
    k.store_i64(k.args("out"), k.imm(42))


@native
def test_pages_are_never_writable_and_executable():
    code, _ = kshipra.compile_kernels([build(emit_answer)], ISAS[0])
    out = array("q", [0])
    args = build(emit_answer).args_array(out=out.buffer_info()[0])
    code.function(0)(args.buffer_info()[0], 0, None)
    assert out[0] == 42
    if os.path.exists("/proc/self/maps"):
        with open("/proc/self/maps") as maps:
            rights = [line.split()[:2] for line in maps]
        assert not [r for r in rights if "w" in r[1] and "x" in r[1]]
        ours = [r for where, r in rights if int(where.split("-")[0], 16) == code.addresses[0]]
        assert [r[:3] for r in ours] == ["r-x"]
    code.close()
    code.close()


@native
def test_several_kernels_share_pages():
    kernels = [build(emit_answer), build(emit_answer)]
    code, _ = kshipra.compile_kernels(kernels, ISAS[0])
    assert code.addresses[1] - code.addresses[0] == 64
    code.close()


@pytest.mark.skipif(sys.platform == "win32", reason="mmap and mprotect")
@pytest.mark.parametrize("call, result", [("mmap", ctypes.c_void_p(-1).value), ("mprotect", -1)])
def test_refused_memory_is_a_reason(monkeypatch, call, result):
    real = kshipra._foreign

    def refusing(library, name, *types):
        return (lambda *_: result) if name == call else real(library, name, *types)
    monkeypatch.setattr(kshipra, "_foreign", refusing)
    code, reason = kshipra.place_code([b"\xc3"])
    assert code is None and reason.startswith(f"the system refuses executable memory ({call}: ")


def placed_with_fakes(monkeypatch, platform, machine):
    """Place four bytes on a fake system; return its calls, in order, with their arguments."""
    page, calls = ctypes.create_string_buffer(64), []

    def fake(library, name, *types):
        def function(*args):
            calls.append((name, *args))
            return (ctypes.addressof(page) if name in ("mmap", "VirtualAlloc")
                    else int(name == "VirtualProtect"))
        return function
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(kshipra, "_MACHINE", machine)
    monkeypatch.setattr(kshipra, "_foreign", fake)
    monkeypatch.setattr(ctypes, "WinDLL", lambda *_, **__: None, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: None)
    code, reason = kshipra.place_code([b"\xc3" * 4])
    assert reason is None and page.raw[:4] == b"\xc3" * 4
    assert code.addresses == [ctypes.addressof(page)]
    code.close()
    return calls


def test_windows_memory_is_protected_then_flushed_then_freed(monkeypatch):
    calls = placed_with_fakes(monkeypatch, "win32", "x86-64")
    assert [call[0] for call in calls] == ["VirtualAlloc", "VirtualProtect", "GetCurrentProcess",
                                           "FlushInstructionCache", "VirtualFree"]
    assert calls[0][-1] == 4 and calls[1][3] == 0x20, "read-write, then execute-read"
    assert calls[4][2:] == (0, 0x8000)


def test_apple_silicon_memory_is_written_unprotected_and_flushed(monkeypatch):
    calls = placed_with_fakes(monkeypatch, "darwin", "arm64")
    assert [call[0] for call in calls] == ["mmap", "pthread_jit_write_protect_np",
                                           "pthread_jit_write_protect_np",
                                           "sys_icache_invalidate", "munmap"]
    assert calls[0][3] == 7 and calls[0][4] & 0x800 and calls[1][1] == 0 and calls[2][1] == 1


def test_arm64_linux_memory_is_flushed_before_it_becomes_executable(monkeypatch):
    calls = placed_with_fakes(monkeypatch, "linux", "arm64")
    assert [call[0] for call in calls] == ["mmap", "__clear_cache", "mprotect", "munmap"]
    assert calls[0][3] == 3 and calls[2][3] == 5


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_memory_refused_by_the_kernel_is_a_reason():
    """Under PR_SET_MDWE (Linux 6.3) no page may become executable."""
    script = ("import ctypes, kshipra; "
              "assert ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0, 'no MDWE'; "
              "print(kshipra.choose_isa({}))")
    here = os.path.dirname(kshipra.__file__)
    done = subprocess.run([sys.executable, "-c", script], cwd=here, capture_output=True, text=True)
    if "no MDWE" in done.stderr or kshipra._MACHINE != "x86-64":
        pytest.skip("this kernel has no PR_SET_MDWE")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("(None, 'the system refuses executable memory (mprotect: ")


AVX2_LEAVES = {(0, 0): (7, 0, 0, 0), (1, 0): (0, 0, 0x38000000, 0), (7, 0): (1, 0x20, 0, 0),
               (7, 1): (0, 0, 0, 0)}
AVX512_LEAVES = {**AVX2_LEAVES, (7, 0): (1, 0x80010020, 0x800, 0)}
VEX_VNNI_LEAVES = {**AVX2_LEAVES, (7, 1): (0x10, 0, 0, 0)}


@pytest.mark.parametrize("leaves, xcr0, want", [
    (AVX2_LEAVES, 0x07, ["avx2"]),
    (AVX512_LEAVES, 0xE7, ["vnni", "avx2"]),
    (AVX512_LEAVES, 0x07, ["avx2"]),                                       # claimed, not enabled
    (AVX512_LEAVES, 0x67, ["avx2"]),                                       # a part of it enabled
    ({**AVX512_LEAVES, (7, 0): (0, 0x00010020, 0x800, 0)}, 0xE7, ["avx2"]),   # no AVX512VL
    ({**AVX512_LEAVES, (7, 0): (0, 0x80010020, 0, 0)}, 0xE7, ["avx2"]),       # no AVX512_VNNI
    (VEX_VNNI_LEAVES, 0x07, ["avxvnni", "avx2"]),
    ({**VEX_VNNI_LEAVES, (7, 0): (0, 0x20, 0, 0)}, 0x07, ["avx2"]),    # leaf 7.1 does not exist
    (AVX2_LEAVES, 0x03, []),                                               # no upper halves saved
    (AVX2_LEAVES, 0x01, []),
    ({**AVX2_LEAVES, (1, 0): (0, 0, 0x30000000, 0)}, None, []),            # OSXSAVE off: no xgetbv
    ({**AVX2_LEAVES, (1, 0): (0, 0, 0x18000000, 0)}, None, []),            # no F16C
    ({**AVX2_LEAVES, (7, 0): (0, 0, 0, 0)}, None, []),                     # AVX without AVX2
    ({(0, 0): (6, 0, 0, 0)}, None, []),                                    # no leaf 7
])
def test_instruction_sets_of_fake_processors(leaves, xcr0, want):
    def read_xcr0():
        assert xcr0 is not None, "xgetbv would fault here"
        return xcr0
    assert kshipra.features_x86(lambda leaf, subleaf: leaves[leaf, subleaf], read_xcr0) == want


@pytest.mark.skipif(not os.path.exists("/proc/cpuinfo") or kshipra._MACHINE != "x86-64",
                    reason="x86 Linux")
def test_processor_agrees_with_the_system():
    flags = re.search(r"^flags\s*:(.*)$", open("/proc/cpuinfo").read(), re.M).group(1).split()
    assert ("avx2" in ISAS) == ("avx2" in flags and "f16c" in flags)
    assert ("vnni" in ISAS) == ("avx512_vnni" in flags and "avx512vl" in flags)


def test_isa_can_be_forced_down_and_not_up(monkeypatch):
    monkeypatch.setattr(kshipra, "host_instruction_sets", lambda: (["vnni", "avx2"], None))
    assert kshipra.choose_isa({}) == ("vnni", None)
    assert kshipra.choose_isa({"KSHIPRA_ISA": "avx2"}) == ("avx2", None)
    assert kshipra.choose_isa({"KSHIPRA_ISA": "python"}) == (None, "KSHIPRA_ISA=python")
    with pytest.raises(kshipra.KshipraError, match="KSHIPRA_ISA='neon': this machine offers "
                                                   "vnni, avx2 and python"):
        kshipra.choose_isa({"KSHIPRA_ISA": "neon"})
    monkeypatch.setattr(kshipra, "host_instruction_sets", lambda: (["avxvnni", "avx2"], None))
    assert kshipra.choose_isa({"KSHIPRA_ISA": "vnni"}) == ("avxvnni", None)
    monkeypatch.setattr(kshipra, "host_instruction_sets", lambda: ([], "no AVX2"))
    assert kshipra.choose_isa({}) == (None, "no AVX2")


def test_foreign_functions_get_their_types_in_one_place():
    """A function used without argtypes and restype cuts 64-bit addresses to 32."""
    with open(kshipra.__file__, encoding="utf-8") as file:
        source = file.read()
    section = source[source.index("\n# 13. Executable"):source.index("\n# 14. Matrix")]
    for line in section.splitlines():
        if re.search(r"(CDLL|WinDLL)\(", line):
            assert "_foreign(" in line or re.match(r" +(libc|dll) = ", line) \
                or "CDLL(\"libgcc_s" in line, line
        assert not re.search(r"\b(libc|dll)\.\w", line), line
