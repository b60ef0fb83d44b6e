"""Chapter 11, x86-64: bytes and text of each rule of the encoding, the calling conventions."""
import re
import shutil
import subprocess
import sys

import pytest

import kshipra
from kshipra import X86, build
from test_instructions import CONSTANTS, TESTED, emit_one, encode

# Recorded from GNU as 2.40, one for each rule of the encoding.

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
     ("evv", "vpdpbusd.e", 1, 2, 3), "vpdpbusd ymm1, ymm2, ymm3", "62 f2 6d 28 50 cb"),
    ("EVEX, registers from 8 on",
     ("evv", "vpdpbusd.e", 9, 10, 11), "vpdpbusd ymm9, ymm10, ymm11", "62 52 2d 28 50 cb"),
    ("EVEX, broadcast",
     ("evm", "vpdpbusd.e", 1, 2, 6, 0),
     "vpdpbusd ymm1, ymm2, dword ptr [rsi]{1to8}", "62 f2 6d 38 50 0e"),
    ("EVEX, displacement in units of 4",
     ("evm", "vpdpbusd.e", 9, 10, 8, 508),
     "vpdpbusd ymm9, ymm10, dword ptr [r8 + 508]{1to8}", "62 52 2d 38 50 48 7f"),
    ("EVEX, displacement of no whole unit",
     ("evm", "vpdpbusd.e", 1, 2, 6, 2),
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
     ("rm", "mov.mw", 9, 6, 0), "mov [rsi], r9w", "66 44 89 0e"),
    ("lock before REX",
     ("rm", "lock_xadd", 0, 9, 8), "lock xadd [r9 + 8], rax", "f0 49 0f c1 41 08"),
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
                    or kshipra.MACHINE != "x86-64", reason="needs GNU as for x86-64")
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
