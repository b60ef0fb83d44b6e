"""Running a kernel from a test, also as code for Windows, which is called by way of trampolines.

A function of Windows finds its parameters in rcx, rdx and r8, may write into the 32 bytes above
its return address, and must leave rbx, rbp, rdi, rsi, r12-r15 and xmm6-15 as they were.
"""
import ctypes

import pytest

import kshipra
from kshipra import (R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP,
                     X86)

ISAS = kshipra.host_instruction_sets()[0]
ABI = kshipra.host_abi()
# What kernels run as, next to the interpreter.
WAYS = [(isa, ABI) for isa in ISAS] + [(isa, "win64") for isa in ISAS[-1:] if ABI == "sysv"]
native = pytest.mark.skipif(not ISAS, reason="this machine runs no code of ours")


def from_sysv(target):
    """Return code that calls the win64 function at address `target` with sysv parameters."""
    asm = X86("avx2", "sysv")
    asm.begin((), (), False)
    asm.rr("mov", RDX, R8)
    asm.rr("mov", RSI, RDX)
    asm.rr("mov", RDI, RCX)
    asm.push(RDI)                   # win64 keeps these two, sysv does not ask for it
    asm.push(RSI)
    asm.rr("sub.8", 5, RSP, 40)     # 32 for the callee, 8 to be a multiple of 16
    asm.mov_imm(RAX, target)
    asm.raw("call rax")
    asm.rr("add.8", 0, RSP, 40)
    asm.pop(RSI)
    asm.pop(RDI)
    return asm.finish()


KEPT, KEPT_VECTORS = (RBX, RBP, RDI, RSI, R12, R13, R14, R15), range(6, 16)
CANARY = 0x5A17C0DE


def _vectors(asm, name, off):
    """Move xmm6-15 to the stack at rsp + off ("vmovdqu.mx"), or back ("vmovdqu.x")."""
    for i, v in enumerate(KEPT_VECTORS):
        asm.vvm(name, v, 0, RSP, off + 16 * i)


def to_sysv(target):
    """Return code that calls the sysv function at `target` with win64 parameters, and keeps what
    such a function may change."""
    asm = X86("avx2", "win64")
    asm.begin((), (), False)
    asm.push(RDI)
    asm.push(RSI)
    asm.rr("sub.32", 5, RSP, 168)           # 160 for vectors, 8 to be a multiple of 16
    _vectors(asm, "vmovdqu.mx", 0)
    for register, parameter in ((RDI, RCX), (RSI, RDX), (RDX, R8)):
        asm.rr("mov", parameter, register)
    asm.mov_imm(RAX, target)
    asm.raw("call rax")
    _vectors(asm, "vmovdqu.x", 0)
    asm.rr("add.32", 0, RSP, 168)
    asm.pop(RSI)
    asm.pop(RDI)
    return asm.finish()


def checked(target, report):
    """Return code that stands before the win64 function at `target` and is as bad as Windows may
    be: as its caller, it wants all that is promised; to its own, it leaves no more than that.

    report: address of two i64; the first is not 0 when a register or the stack was changed,
    the second counts calls
    """
    asm = X86("avx2", "win64")
    asm.begin((), (), False)
    asm.mov_imm(R9, CANARY)
    for i in range(4):                      # the 32 bytes that our caller has to keep for us
        asm.rm("mov.mq", R9, RSP, 8 + 8 * i)
    for r in KEPT:
        asm.push(r)
    # from rsp: 32 bytes for the callee, 16 that it must not touch, our xmm6-15, its xmm6-15
    asm.rr("sub.32", 5, RSP, 376)
    asm.rm("mov.mq", R9, RSP, 32)
    asm.rm("mov.mq", R9, RSP, 40)
    _vectors(asm, "vmovdqu.mx", 48)
    for r in KEPT:
        asm.mov_imm(r, CANARY + r)
    for v in KEPT_VECTORS:
        asm.mov_imm(RAX, CANARY + v)
        asm.vvv("vmovd", v, 0, RAX)
        asm.vvv("vpbroadcastd", v, 0, v)
    asm.raw("vzeroupper")
    asm.mov_imm(RAX, target)
    asm.raw("call rax")
    asm.mov_imm(R10, 0)                     # gathers the differences

    def compare(expected):
        """Compare with rax, by way of rcx."""
        asm.mov_imm(RCX, expected)
        asm.rr("sub", RCX, RAX)
        asm.rr("or", RAX, R10)

    for r in KEPT:
        asm.rr("mov", r, RAX)
        compare(CANARY + r)
    _vectors(asm, "vmovdqu.mx", 208)
    wanted = [CANARY] * 2 + [(CANARY + v) * (2**32 + 1) for v in KEPT_VECTORS for _ in (0, 1)]
    for off, expected in zip([32, 40, *range(208, 368, 8)], wanted):
        asm.rm("mov.q", RAX, RSP, off)
        compare(expected)
    asm.mov_imm(R11, report)
    asm.rm("mov.q", RAX, R11, 0)
    asm.rr("or", R10, RAX)
    asm.rm("mov.mq", RAX, R11, 0)
    asm.mov_imm(RAX, 1)
    asm.rm("lock_xadd", RAX, R11, 8)
    _vectors(asm, "vmovdqu.x", 48)
    asm.rr("add.32", 0, RSP, 376)
    for r in reversed(KEPT):
        asm.pop(r)
    for r in (RAX, RCX, RDX, R8, R9, R10, R11):
        asm.mov_imm(r, CANARY << 20)
    for v in range(6):
        asm.vvv("vpcmpeqd", v, v, v)
    asm.raw("vzeroupper")
    return asm.finish()


def placed(*pieces):
    """Return pieces of code in executable memory, as a Code."""
    code, reason = kshipra.place_code(pieces)
    assert code, reason
    return code


def callable_of(kernel, isa, abi=ABI):
    """Return a Python function of (args address, chunk, scratch) that runs the encoded kernel."""
    code = placed(kshipra.encode(kernel, isa, abi))
    if abi != ABI:
        code = placed(from_sysv(code.addresses[0]))
    function = code.function(0)
    return lambda args, chunk=0, scratch=0: function(args, chunk, scratch)


def address(buf):
    return ctypes.addressof((ctypes.c_char * len(buf)).from_buffer(buf))


def run(kernel, way=None, chunk=0, scratch=0, functions=None, **values):
    """Run a kernel interpreted (way None) or as encoded for a (isa, abi)."""
    args = kernel.args_array(**values)
    if way is None:
        kshipra.interpret(kernel, args.buffer_info()[0], chunk, scratch, functions)
    else:
        callable_of(kernel, *way)(args.buffer_info()[0], chunk, scratch)
