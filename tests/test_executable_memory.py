"""Chapter 13, Executable memory: pages, instruction sets, and code for Windows run here."""
import ctypes
import os
import re
import subprocess
import sys
from array import array

import pytest

import kshipra
from calling import ABI, ISAS, checked, from_sysv, native, placed, to_sysv
from kshipra import RAX, RBX, RSI, RSP, X86, build

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
    real = kshipra.foreign

    def refusing(library, name, *types):
        return (lambda *_: result) if name == call else real(library, name, *types)
    monkeypatch.setattr(kshipra, "foreign", refusing)
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
    monkeypatch.setattr(kshipra, "MACHINE", machine)
    monkeypatch.setattr(kshipra, "foreign", fake)
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
    if "no MDWE" in done.stderr or kshipra.MACHINE != "x86-64":
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


@pytest.mark.skipif(not os.path.exists("/proc/cpuinfo") or kshipra.MACHINE != "x86-64",
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
            assert "foreign(" in line or re.match(r" +(libc|dll) = ", line) \
                or "CDLL(\"libgcc_s" in line, line
        assert not re.search(r"\b(libc|dll)\.\w", line), line


# Code for Windows, run on a system of the other calling convention.

windows = pytest.mark.skipif(ABI != "sysv" or not ISAS, reason="a system that calls as sysv does")


def report_of(code):
    """Return what `checked` says of a win64 function."""
    report = array("q", [0, 0])
    inner = placed(code)
    outer = placed(checked(inner.addresses[0], report.buffer_info()[0]))
    placed(from_sysv(outer.addresses[0])).function(0)(0, 0, None)
    assert report[1] == 1
    return report[0]


@windows
@pytest.mark.parametrize("fault", ["none", "rbx", "rsi", "xmm6", "xmm15", "stack"])
def test_a_function_that_breaks_the_convention_of_windows_is_noticed(fault):
    asm = X86("avx2", "win64")
    asm.begin((), (), False)
    if fault in ("rbx", "rsi"):
        asm.mov_imm(RBX if fault == "rbx" else RSI, 1)
    elif fault.startswith("xmm"):
        v = int(fault[3:])
        asm.vvv("vpxor", v, v, v)
    asm.rm("mov.mq", RAX, RSP, 40 if fault == "stack" else 32)      # the last 8 bytes are ours
    assert (report_of(asm.finish()) == 0) == (fault == "none")


@windows
@pytest.mark.parametrize("isa", sorted({*ISAS[:1], *ISAS[-1:]}))
def test_windows_code_gives_the_same_generation(monkeypatch, isa):
    """Every kernel of a greedy generation and of its trials is win64 code, called by another or
    by the host through code that checks what Windows asks of it: same logits, same tokens."""
    monkeypatch.setenv("KSHIPRA_ISA", isa)

    def generation():
        model = kshipra.load(device="native", threads=2)
        ids = model.tokenizer.encode("Once upon a time there was a little girl")
        found = [row.tobytes() for row in model.logits(ids)]
        return found, list(model.generate_ids(ids, max_tokens=24, temperature=0)), model.ops.name

    expected, report, outer = generation(), array("q", [0, 0]), {}

    def compile_for_windows(kernels, isa):
        inner = placed(*[kshipra.encode(kernel, isa, "win64") for kernel in kernels])
        where = report.buffer_info()[0]
        return placed(*[checked(target, where) for target in inner.addresses]), None

    def call_windows(target, prototype=kshipra.KERNEL_FUNCTION):
        if target not in outer:
            outer[target] = placed(from_sysv(target)).addresses[0]
        return prototype(outer[target])

    give_way = placed(to_sysv(kshipra.system_yield())).addresses[0]
    monkeypatch.setattr(kshipra, "compile_kernels", compile_for_windows)
    monkeypatch.setattr(kshipra, "KERNEL_FUNCTION", call_windows)
    monkeypatch.setattr(kshipra, "system_yield", lambda: give_way)
    assert generation() == expected and expected[2] == "native"
    assert report[0] == 0 and report[1] > 1000, "what was changed, and the number of calls"
