"""Running a kernel from a test, also as code for Windows, which is called by way of trampolines.

A function of Windows finds its parameters in rcx, rdx and r8, may write into the 32 bytes above
its return address, and must leave rbx, rbp, rdi, rsi, r12-r15 and xmm6-15 as they were.
"""
import ctypes

import pytest

import kshipra
from kshipra import RAX, RCX, RDI, RDX, RSI, RSP, R8, X86

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
        kshipra.interpret(kernel, args.buffer_info()[0], chunk, scratch, functions)
    else:
        callable_of(kernel, *way)(args.buffer_info()[0], chunk, scratch)
