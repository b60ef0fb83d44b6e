"""Chapter 10, Instructions: each operation interpreted and native, blocks, the allocator."""
import ctypes
import functools
import os
import re
import struct
from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kshipra
import tiny
from calling import ABI, ISAS, WAYS, address, callable_of, native, run
from every_kernel import every_kernel
from kshipra import OPS, IntReg, build, interpret

EVERY_WAY = pytest.mark.parametrize(
    "way", [None] + WAYS, ids=lambda way: "-".join(way) if way else "interpreted")


# Chapter 10: every operation: interpreted equals native, to the bit.
#
# Memory of a test kernel, in bytes from `memory`: vectors at 0, 32, 64; integers at 96, 104, 112;
# 64 bytes to load from or store to at 128; the result at 256.

N_BYTES = 320
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
    elif _op.verb[:3] in ("shl", "shr", "sar"):
        CONSTANTS[_name] = [(n,) for n in (0, 1, 8, _op.limit - 1)]
# A thread's mode of floats cannot be seen from here: test_self_check.py has its tests.
TESTED = [name for name, op in OPS.items() if op.meaning and not name.endswith("_mode")]


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
    touches_memory = "d" in op.reads or name == "load_i32_at"
    for letter in "v" * op.updates + op.reads:
        if letter == "v":
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
    if op.sets and not op.updates and op.lane != "i":
        to = k.const_i8x32(0)
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
    kind = "i" if op.lane == "i" else "v"
    aliases = [None] + [i for i, letter in enumerate(op.reads)
                        if op.sets and not op.updates and letter == kind]
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
    elif name == "select":
        for i in range(32):
            memory[i] = 0xFF if memory[i] & 0x80 else 0
    elif name in ("div", "rem"):
        words[26] |= 1
    elif name in ("load_f32_n", "store_f32_n"):
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
        recipes = encoder(isa, "aapcs64" if "neon" in isa else "sysv").recipes
        for name in OPS:
            function, n_temps = recipes[name]
            assert callable(function) and 0 <= n_temps <= 2, (isa, name)


def test_every_operation_is_used_by_a_kernel():
    """An operation comes into the table with the kernel that needs it, and goes with it."""
    users = {}
    for emit, parameters in every_kernel():
        for instruction in build(emit, *parameters).instructions:
            users.setdefault(instruction[0], emit.__name__)
    for name in OPS:
        print(f"{name:20} {users.get(name)}")
    assert list(OPS) == [name for name in OPS if name in users]


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
    (lambda k, a, b: k.unpack_lo_i32(a, b), "<8I", [struct.pack("<8I", *range(8))] * 2,
     [0, 0, 1, 1, 4, 4, 5, 5]),
    (lambda k, a, b: k.unpack_hi_i64(a, b), "<4Q", [BYTES, bytes(32)],
     [0x0F0E0D0C0B0A0908, 0, 0x1F1E1D1C1B1A1918, 0]),
    (lambda k, a, b: k.dot4_us(k.zero_i32x8(), a, b), "<8i", [b"\x7f" * 32, b"\x80" * 32],
     [-65024] * 8),
    (lambda k, a, b: k.dot4_ss(k.zero_i32x8(), a, b), "<8i", [b"\x80" * 32, b"\x81" * 32],
     [65024] * 8),
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
    (lambda k: k.const_i8x32(0) << 1, "shl of i8 and int is no operation"),
])
def test_wrong_kinds_are_refused_where_they_are_written(emit, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        build(lambda k: emit(k))


@pytest.mark.parametrize("emit, error, message", [
    (lambda k, x, v: k.shl(x, 64), ValueError, "shl takes constants 0 to 63"),
    (lambda k, x, v: v << 32, ValueError, "shl_i32 takes constants 0 to 31"),
    (lambda k, x, v: v >> -1, ValueError, "sar_i32 takes constants 0 to 31"),
    (lambda k, x, v: k.if_(x, "<>", 0).__enter__(), ValueError,
     "if_imm takes comparisons < <= > >= == !="),
    (lambda k, x, v: k.add(x, 2**63), ValueError, "kernel <lambda>: add_imm takes constants -92"),
    (lambda k, x, v: k.load_f32x8(x, 2**31), ValueError,
     "kernel <lambda>: vload (i3, 2147483648) is 2147483648 bytes from its register"),
    (lambda k, x, v: k.store_i64(x, x, -2**31 - 1), ValueError,
     "but a displacement has 32 bits; add to the register"),
    (lambda k, x, v: k.load_i32_at(x, (0, 2**31)), ValueError, "load_i32_at takes constants -21"),
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
