"""Chapter 12, arm64: the words against GNU as, the recipes, the listing.

Here nothing is run; tests/arm64_check.py runs every operation and needs an arm64 Python.
"""
import hashlib
import itertools
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import pytest

import kshipra
from kshipra import Arm64, OPS

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import arm64_check  # noqa: E402

ISAS = ["neon", "neon_dot"]
WORD = kshipra._W

# Two for each row of the table: name, operands, the word that GNU as 2.40 (aarch64, armv8.2-a with
# dotprod) makes of the text, the text.
ENCODINGS = """
movz      3 5 1            d2a000a3  movz x3, #0x5, lsl #16
movz      30 65535 3       d2fffffe  movz x30, #0xffff, lsl #48
movn      3 5 1            92a000a3  movn x3, #0x5, lsl #16
movn      30 4660 3        92e2469e  movn x30, #0x1234, lsl #48
movk      3 5 1            f2a000a3  movk x3, #0x5, lsl #16
movk      30 65535 3       f2fffffe  movk x30, #0xffff, lsl #48
mov.x     3 7              aa0703e3  mov x3, x7
mov.x     30 17            aa1103fe  mov x30, x17
add.x     3 7 11           8b0b00e3  add x3, x7, x11
add.x     30 17 9          8b09023e  add x30, x17, x9
sub.x     3 7 11           cb0b00e3  sub x3, x7, x11
sub.x     30 17 9          cb09023e  sub x30, x17, x9
and.x     3 7 11           8a0b00e3  and x3, x7, x11
and.x     30 17 9          8a09023e  and x30, x17, x9
orr.x     3 7 11           aa0b00e3  orr x3, x7, x11
orr.x     30 17 9          aa09023e  orr x30, x17, x9
eor.x     3 7 11           ca0b00e3  eor x3, x7, x11
eor.x     30 17 9          ca09023e  eor x30, x17, x9
cmp.x     3 7              eb07007f  cmp x3, x7
cmp.x     30 17            eb1103df  cmp x30, x17
mul.x     3 7 11           9b0b7ce3  mul x3, x7, x11
mul.x     30 17 9          9b097e3e  mul x30, x17, x9
msub.x    3 7 11 28        9b0bf0e3  msub x3, x7, x11, x28
msub.x    30 17 9 22       9b09da3e  msub x30, x17, x9, x22
udiv.x    3 7 11           9acb08e3  udiv x3, x7, x11
udiv.x    30 17 9          9ac90a3e  udiv x30, x17, x9
csel.x    3 7 11 11        9a8bb0e3  csel x3, x7, x11, lt
csel.x    30 17 9 8        9a89823e  csel x30, x17, x9, hi
sub.sp    5                d10017ff  sub sp, sp, #5
sub.sp    4095             d13fffff  sub sp, sp, #4095
add.sp    5                910017ff  add sp, sp, #5
add.sp    4095             913fffff  add sp, sp, #4095
cmp.i     3 5              f100147f  cmp x3, #5
cmp.i     30 4095          f13fffdf  cmp x30, #4095
cmn.i     3 5              b100147f  cmn x3, #5
cmn.i     30 4095          b13fffdf  cmn x30, #4095
add.i     3 7 5            910014e3  add x3, x7, #5
add.i     30 17 4095       913ffe3e  add x30, x17, #4095
add.i12   3 7 5            914014e3  add x3, x7, #5, lsl #12
add.i12   30 17 4095       917ffe3e  add x30, x17, #4095, lsl #12
sub.i     3 7 5            d10014e3  sub x3, x7, #5
sub.i     30 17 4095       d13ffe3e  sub x30, x17, #4095
sub.i12   3 7 5            d14014e3  sub x3, x7, #5, lsl #12
sub.i12   30 17 4095       d17ffe3e  sub x30, x17, #4095, lsl #12
subs.i    3 7 5            f10014e3  subs x3, x7, #5
subs.i    30 17 4095       f13ffe3e  subs x30, x17, #4095
and.i     3 7 7943         927c1ce3  and x3, x7, #0xff0
and.i     30 17 133        9202163e  and x30, x17, #0xc000000fc000000f
orr.i     3 7 7943         b27c1ce3  orr x3, x7, #0xff0
orr.i     30 17 133        b202163e  orr x30, x17, #0xc000000fc000000f
eor.i     3 7 7943         d27c1ce3  eor x3, x7, #0xff0
eor.i     30 17 133        d202163e  eor x30, x17, #0xc000000fc000000f
lsr.i     3 7 5            d345fce3  lsr x3, x7, #5
lsr.i     30 17 63         d37ffe3e  lsr x30, x17, #63
asr.i     3 7 5            9345fce3  asr x3, x7, #5
asr.i     30 17 63         937ffe3e  asr x30, x17, #63
lsl.i     3 7 60 61        d37df0e3  lsl x3, x7, #3
lsl.i     30 17 0 1        d341023e  lsl x30, x17, #63
str.h     3 7 5            790014e3  strh w3, [x7, #10]
str.h     30 17 4095       793ffe3e  strh w30, [x17, #8190]
str.hu    3 7 5            780050e3  sturh w3, [x7, #5]
str.hu    30 17 -256       7810023e  sturh w30, [x17, #-256]
ldr.h     3 7 5            794014e3  ldrh w3, [x7, #10]
ldr.h     30 17 4095       797ffe3e  ldrh w30, [x17, #8190]
ldr.hu    3 7 5            784050e3  ldurh w3, [x7, #5]
ldr.hu    30 17 -256       7850023e  ldurh w30, [x17, #-256]
ldrs.h    3 7 5            798014e3  ldrsh x3, [x7, #10]
ldrs.h    30 17 4095       79bffe3e  ldrsh x30, [x17, #8190]
ldrs.hu   3 7 5            788050e3  ldursh x3, [x7, #5]
ldrs.hu   30 17 -256       7890023e  ldursh x30, [x17, #-256]
str.w     3 7 5            b90014e3  str w3, [x7, #20]
str.w     30 17 4095       b93ffe3e  str w30, [x17, #16380]
str.wu    3 7 5            b80050e3  stur w3, [x7, #5]
str.wu    30 17 -256       b810023e  stur w30, [x17, #-256]
ldr.w     3 7 5            b94014e3  ldr w3, [x7, #20]
ldr.w     30 17 4095       b97ffe3e  ldr w30, [x17, #16380]
ldr.wu    3 7 5            b84050e3  ldur w3, [x7, #5]
ldr.wu    30 17 -256       b850023e  ldur w30, [x17, #-256]
ldrs.w    3 7 5            b98014e3  ldrsw x3, [x7, #20]
ldrs.w    30 17 4095       b9bffe3e  ldrsw x30, [x17, #16380]
ldrs.wu   3 7 5            b88050e3  ldursw x3, [x7, #5]
ldrs.wu   30 17 -256       b890023e  ldursw x30, [x17, #-256]
str.x     3 7 5            f90014e3  str x3, [x7, #40]
str.x     30 17 4095       f93ffe3e  str x30, [x17, #32760]
str.xu    3 7 5            f80050e3  stur x3, [x7, #5]
str.xu    30 17 -256       f810023e  stur x30, [x17, #-256]
ldr.x     3 7 5            f94014e3  ldr x3, [x7, #40]
ldr.x     30 17 4095       f97ffe3e  ldr x30, [x17, #32760]
ldr.xu    3 7 5            f84050e3  ldur x3, [x7, #5]
ldr.xu    30 17 -256       f850023e  ldur x30, [x17, #-256]
ldr.vh    3 7 5            7d4014e3  ldr h3, [x7, #10]
ldr.vh    31 17 4095       7d7ffe3f  ldr h31, [x17, #8190]
ldr.vhu   3 7 5            7c4050e3  ldur h3, [x7, #5]
ldr.vhu   31 17 -256       7c50023f  ldur h31, [x17, #-256]
ldr.s     3 7 5            bd4014e3  ldr s3, [x7, #20]
ldr.s     31 17 4095       bd7ffe3f  ldr s31, [x17, #16380]
ldr.su    3 7 5            bc4050e3  ldur s3, [x7, #5]
ldr.su    31 17 -256       bc50023f  ldur s31, [x17, #-256]
str.s     3 7 5            bd0014e3  str s3, [x7, #20]
str.s     31 17 4095       bd3ffe3f  str s31, [x17, #16380]
str.su    3 7 5            bc0050e3  stur s3, [x7, #5]
str.su    31 17 -256       bc10023f  stur s31, [x17, #-256]
ldr.d     3 7 5            fd4014e3  ldr d3, [x7, #40]
ldr.d     31 17 4095       fd7ffe3f  ldr d31, [x17, #32760]
ldr.du    3 7 5            fc4050e3  ldur d3, [x7, #5]
ldr.du    31 17 -256       fc50023f  ldur d31, [x17, #-256]
str.d     3 7 5            fd0014e3  str d3, [x7, #40]
str.d     31 17 4095       fd3ffe3f  str d31, [x17, #32760]
str.du    3 7 5            fc0050e3  stur d3, [x7, #5]
str.du    31 17 -256       fc10023f  stur d31, [x17, #-256]
ldr.q     3 7 5            3dc014e3  ldr q3, [x7, #80]
ldr.q     31 17 4095       3dfffe3f  ldr q31, [x17, #65520]
ldr.qu    3 7 5            3cc050e3  ldur q3, [x7, #5]
ldr.qu    31 17 -256       3cd0023f  ldur q31, [x17, #-256]
str.q     3 7 5            3d8014e3  str q3, [x7, #80]
str.q     31 17 4095       3dbffe3f  str q31, [x17, #65520]
str.qu    3 7 5            3c8050e3  stur q3, [x7, #5]
str.qu    31 17 -256       3c90023f  stur q31, [x17, #-256]
ldp.q     3 7 11 5         ad429d63  ldp q3, q7, [x11, #80]
ldp.q     31 18 9 -64      ad60493f  ldp q31, q18, [x9, #-1024]
stp.q     3 7 11 5         ad029d63  stp q3, q7, [x11, #80]
stp.q     31 18 9 -64      ad20493f  stp q31, q18, [x9, #-1024]
stp.x     3 7 5            a9029fe3  stp x3, x7, [sp, #40]
stp.x     30 17 -64        a92047fe  stp x30, x17, [sp, #-512]
ldp.x     3 7 5            a9429fe3  ldp x3, x7, [sp, #40]
ldp.x     30 17 -64        a96047fe  ldp x30, x17, [sp, #-512]
stp.d     3 7 5            6d029fe3  stp d3, d7, [sp, #40]
stp.d     31 18 -64        6d204bff  stp d31, d18, [sp, #-512]
ldp.d     3 7 5            6d429fe3  ldp d3, d7, [sp, #40]
ldp.d     31 18 -64        6d604bff  ldp d31, d18, [sp, #-512]
prfm.l1   3 5              f9801460  prfm pldl1keep, [x3, #40]
prfm.l1   30 4095          f9bfffc0  prfm pldl1keep, [x30, #32760]
prfm.l2   3 5              f9801462  prfm pldl2keep, [x3, #40]
ldar      3 7              c8dffce3  ldar x3, [x7]
ldar      30 17            c8dffe3e  ldar x30, [x17]
ldaxr     3 7              c85ffce3  ldaxr x3, [x7]
ldaxr     30 17            c85ffe3e  ldaxr x30, [x17]
stlxr     3 7 11           c803fd67  stlxr w3, x7, [x11]
stlxr     30 17 9          c81efd31  stlxr w30, x17, [x9]
ldr.qlit  3 5              9c0000a3  ldr q3, .+20
ldr.qlit  31 -262144       9c80001f  ldr q31, .-1048576
ld1.s     3 1 1 7          4ddf90e3  ld1 {v3.s}[3], [x7], #4
ld1.s     31 1 1 17        4ddf923f  ld1 {v31.s}[3], [x17], #4
st1.s     3 1 1 7          4d9f90e3  st1 {v3.s}[3], [x7], #4
st1.s     31 1 1 17        4d9f923f  st1 {v31.s}[3], [x17], #4
b         5                14000005  b .+20
b         -33554432        16000000  b .-134217728
b.if      11 5             540000ab  b.lt .+20
b.if      8 -262144        54800008  b.hi .-1048576
cbnz      3 5              b50000a3  cbnz x3, .+20
cbnz      30 -262144       b580001e  cbnz x30, .-1048576
blr       3                d63f0060  blr x3
blr       30               d63f03c0  blr x30
ret                        d65f03c0  ret
isb                        d5033fdf  isb
mrs.fpcr  17               d53b4411  mrs x17, fpcr
zero.fpcr                  d51b441f  msr fpcr, xzr
msr.fpcr  17               d51b4411  msr fpcr, x17
mov.16b   3 7              4ea71ce3  mov v3.16b, v7.16b
mov.16b   31 18            4eb21e5f  mov v31.16b, v18.16b
and.16b   3 7 11           4e2b1ce3  and v3.16b, v7.16b, v11.16b
and.16b   31 18 9          4e291e5f  and v31.16b, v18.16b, v9.16b
bic.16b   3 7 11           4e6b1ce3  bic v3.16b, v7.16b, v11.16b
bic.16b   31 18 9          4e691e5f  bic v31.16b, v18.16b, v9.16b
orr.16b   3 7 11           4eab1ce3  orr v3.16b, v7.16b, v11.16b
orr.16b   31 18 9          4ea91e5f  orr v31.16b, v18.16b, v9.16b
eor.16b   3 7 11           6e2b1ce3  eor v3.16b, v7.16b, v11.16b
eor.16b   31 18 9          6e291e5f  eor v31.16b, v18.16b, v9.16b
bsl.16b   3 7 11           6e6b1ce3  bsl v3.16b, v7.16b, v11.16b
bsl.16b   31 18 9          6e691e5f  bsl v31.16b, v18.16b, v9.16b
bit.16b   3 7 11           6eab1ce3  bit v3.16b, v7.16b, v11.16b
bit.16b   31 18 9          6ea91e5f  bit v31.16b, v18.16b, v9.16b
bif.16b   3 7 11           6eeb1ce3  bif v3.16b, v7.16b, v11.16b
bif.16b   31 18 9          6ee91e5f  bif v31.16b, v18.16b, v9.16b
mvn.16b   3 7              6e2058e3  mvn v3.16b, v7.16b
mvn.16b   31 18            6e205a5f  mvn v31.16b, v18.16b
movi.16b  3 5 5            4f05e4a3  movi v3.16b, #0xa5
movi.16b  31 7 31          4f07e7ff  movi v31.16b, #0xff
dup.h     3 7 5            4e1604e3  dup v3.8h, v7.h[5]
dup.h     31 18 7          4e1e065f  dup v31.8h, v18.h[7]
dup.s     3 7 1            4e0c04e3  dup v3.4s, v7.s[1]
dup.s     31 18 3          4e1c065f  dup v31.4s, v18.s[3]
dup.d     3 7 1            4e1804e3  dup v3.2d, v7.d[1]
dup.d     31 18 1          4e18065f  dup v31.2d, v18.d[1]
dup.w     3 7              4e040ce3  dup v3.4s, w7
dup.w     31 17            4e040e3f  dup v31.4s, w17
umov.d    3 7 1            4e183ce3  mov x3, v7.d[1]
umov.d    30 18 1          4e183e5e  mov x30, v18.d[1]
smov.s    3 7 1            4e0c2ce3  smov x3, v7.s[1]
smov.s    30 18 3          4e1c2e5e  smov x30, v18.s[3]
ins.w     3 1 7            4e0c1ce3  ins v3.s[1], w7
ins.w     31 3 17          4e1c1e3f  ins v31.s[3], w17
ins.s     3 1 7 1          6e0c24e3  ins v3.s[1], v7.s[1]
ins.s     31 3 18 3        6e1c665f  ins v31.s[3], v18.s[3]
zip1.4s   3 7 11           4e8b38e3  zip1 v3.4s, v7.4s, v11.4s
zip1.4s   31 18 9          4e893a5f  zip1 v31.4s, v18.4s, v9.4s
zip1.2d   3 7 11           4ecb38e3  zip1 v3.2d, v7.2d, v11.2d
zip1.2d   31 18 9          4ec93a5f  zip1 v31.2d, v18.2d, v9.2d
zip2.4s   3 7 11           4e8b78e3  zip2 v3.4s, v7.4s, v11.4s
zip2.4s   31 18 9          4e897a5f  zip2 v31.4s, v18.4s, v9.4s
zip2.2d   3 7 11           4ecb78e3  zip2 v3.2d, v7.2d, v11.2d
zip2.2d   31 18 9          4ec97a5f  zip2 v31.2d, v18.2d, v9.2d
ext.16b   3 7 11 5         6e0b28e3  ext v3.16b, v7.16b, v11.16b, #5
ext.16b   31 18 9 15       6e097a5f  ext v31.16b, v18.16b, v9.16b, #15
rev64.4s  3 7              4ea008e3  rev64 v3.4s, v7.4s
rev64.4s  31 18            4ea00a5f  rev64 v31.4s, v18.4s
tbl.16b   3 7 11           4e0b00e3  tbl v3.16b, {v7.16b}, v11.16b
tbl.16b   31 18 9          4e09025f  tbl v31.16b, {v18.16b}, v9.16b
fadd.4s   3 7 11           4e2bd4e3  fadd v3.4s, v7.4s, v11.4s
fadd.4s   31 18 9          4e29d65f  fadd v31.4s, v18.4s, v9.4s
fsub.4s   3 7 11           4eabd4e3  fsub v3.4s, v7.4s, v11.4s
fsub.4s   31 18 9          4ea9d65f  fsub v31.4s, v18.4s, v9.4s
fmul.4s   3 7 11           6e2bdce3  fmul v3.4s, v7.4s, v11.4s
fmul.4s   31 18 9          6e29de5f  fmul v31.4s, v18.4s, v9.4s
fdiv.4s   3 7 11           6e2bfce3  fdiv v3.4s, v7.4s, v11.4s
fdiv.4s   31 18 9          6e29fe5f  fdiv v31.4s, v18.4s, v9.4s
faddp.4s  3 7 11           6e2bd4e3  faddp v3.4s, v7.4s, v11.4s
faddp.4s  31 18 9          6e29d65f  faddp v31.4s, v18.4s, v9.4s
fcmeq.4s  3 7 11           4e2be4e3  fcmeq v3.4s, v7.4s, v11.4s
fcmeq.4s  31 18 9          4e29e65f  fcmeq v31.4s, v18.4s, v9.4s
fcmge.4s  3 7 11           6e2be4e3  fcmge v3.4s, v7.4s, v11.4s
fcmge.4s  31 18 9          6e29e65f  fcmge v31.4s, v18.4s, v9.4s
fcmgt.4s  3 7 11           6eabe4e3  fcmgt v3.4s, v7.4s, v11.4s
fcmgt.4s  31 18 9          6ea9e65f  fcmgt v31.4s, v18.4s, v9.4s
fsqrt.4s  3 7              6ea1f8e3  fsqrt v3.4s, v7.4s
fsqrt.4s  31 18            6ea1fa5f  fsqrt v31.4s, v18.4s
frintn.4s 3 7              4e2188e3  frintn v3.4s, v7.4s
frintn.4s 31 18            4e218a5f  frintn v31.4s, v18.4s
frintm.4s 3 7              4e2198e3  frintm v3.4s, v7.4s
frintm.4s 31 18            4e219a5f  frintm v31.4s, v18.4s
scvtf.4s  3 7              4e21d8e3  scvtf v3.4s, v7.4s
scvtf.4s  31 18            4e21da5f  scvtf v31.4s, v18.4s
fcvtns.4s 3 7              4e21a8e3  fcvtns v3.4s, v7.4s
fcvtns.4s 31 18            4e21aa5f  fcvtns v31.4s, v18.4s
fcvtl.4s  3 7              0e2178e3  fcvtl v3.4s, v7.4h
fcvtl.4s  31 18            0e217a5f  fcvtl v31.4s, v18.4h
fcvtl2.4s 3 7              4e2178e3  fcvtl2 v3.4s, v7.8h
fcvtl2.4s 31 18            4e217a5f  fcvtl2 v31.4s, v18.8h
fcvtn.4h  3 7              0e2168e3  fcvtn v3.4h, v7.4s
fcvtn.4h  31 18            0e216a5f  fcvtn v31.4h, v18.4s
fcvtn2.8h 3 7              4e2168e3  fcvtn2 v3.8h, v7.4s
fcvtn2.8h 31 18            4e216a5f  fcvtn2 v31.8h, v18.4s
add.4s    3 7 11           4eab84e3  add v3.4s, v7.4s, v11.4s
add.4s    31 18 9          4ea9865f  add v31.4s, v18.4s, v9.4s
sub.4s    3 7 11           6eab84e3  sub v3.4s, v7.4s, v11.4s
sub.4s    31 18 9          6ea9865f  sub v31.4s, v18.4s, v9.4s
mul.4s    3 7 11           4eab9ce3  mul v3.4s, v7.4s, v11.4s
mul.4s    31 18 9          4ea99e5f  mul v31.4s, v18.4s, v9.4s
umax.4s   3 7 11           6eab64e3  umax v3.4s, v7.4s, v11.4s
umax.4s   31 18 9          6ea9665f  umax v31.4s, v18.4s, v9.4s
umin.16b  3 7 11           6e2b6ce3  umin v3.16b, v7.16b, v11.16b
umin.16b  31 18 9          6e296e5f  umin v31.16b, v18.16b, v9.16b
cmgt.4s   3 7 11           4eab34e3  cmgt v3.4s, v7.4s, v11.4s
cmgt.4s   31 18 9          4ea9365f  cmgt v31.4s, v18.4s, v9.4s
addp.8h   3 7 11           4e6bbce3  addp v3.8h, v7.8h, v11.8h
addp.8h   31 18 9          4e69be5f  addp v31.8h, v18.8h, v9.8h
addv.4s   3 7              4eb1b8e3  addv s3, v7.4s
addv.4s   31 18            4eb1ba5f  addv s31, v18.4s
umaxv.4s  3 7              6eb0a8e3  umaxv s3, v7.4s
umaxv.4s  31 18            6eb0aa5f  umaxv s31, v18.4s
shl.4s    3 7 5            4f2554e3  shl v3.4s, v7.4s, #5
shl.4s    31 18 31         4f3f565f  shl v31.4s, v18.4s, #31
sshr.4s   3 7 5            4f2504e3  sshr v3.4s, v7.4s, #27
sshr.4s   31 18 31         4f3f065f  sshr v31.4s, v18.4s, #1
ushr.4s   3 7 5            6f2504e3  ushr v3.4s, v7.4s, #27
ushr.4s   31 18 31         6f3f065f  ushr v31.4s, v18.4s, #1
sxtl.8h   3 7              0f08a4e3  sxtl v3.8h, v7.8b
sxtl.8h   31 18            0f08a65f  sxtl v31.8h, v18.8b
sxtl.4s   3 7              0f10a4e3  sxtl v3.4s, v7.4h
sxtl.4s   31 18            0f10a65f  sxtl v31.4s, v18.4h
sxtl2.4s  3 7              4f10a4e3  sxtl2 v3.4s, v7.8h
sxtl2.4s  31 18            4f10a65f  sxtl2 v31.4s, v18.8h
shll.4s   3 7              2e6138e3  shll v3.4s, v7.4h, #16
shll.4s   31 18            2e613a5f  shll v31.4s, v18.4h, #16
shll2.4s  3 7              6e6138e3  shll2 v3.4s, v7.8h, #16
shll2.4s  31 18            6e613a5f  shll2 v31.4s, v18.8h, #16
sqxtn.4h  3 7              0e6148e3  sqxtn v3.4h, v7.4s
sqxtn.4h  31 18            0e614a5f  sqxtn v31.4h, v18.4s
sqxtn2.8h 3 7              4e6148e3  sqxtn2 v3.8h, v7.4s
sqxtn2.8h 31 18            4e614a5f  sqxtn2 v31.8h, v18.4s
sqxtn.8b  3 7              0e2148e3  sqxtn v3.8b, v7.8h
sqxtn.8b  31 18            0e214a5f  sqxtn v31.8b, v18.8h
smull.8h  3 7 11           0e2bc0e3  smull v3.8h, v7.8b, v11.8b
smull.8h  31 18 9          0e29c25f  smull v31.8h, v18.8b, v9.8b
smull2.8h 3 7 11           4e2bc0e3  smull2 v3.8h, v7.16b, v11.16b
smull2.8h 31 18 9          4e29c25f  smull2 v31.8h, v18.16b, v9.16b
sadalp.4s 3 7              4e6068e3  sadalp v3.4s, v7.8h
sadalp.4s 31 18            4e606a5f  sadalp v31.4s, v18.8h
sdot.4s   3 7 11           4e8b94e3  sdot v3.4s, v7.16b, v11.16b
sdot.4s   31 18 9          4e89965f  sdot v31.4s, v18.16b, v9.16b
sdot.4b   3 7 11 1 1       4fabe8e3  sdot v3.4s, v7.16b, v11.4b[3]
sdot.4b   31 18 9 1 1      4fa9ea5f  sdot v31.4s, v18.16b, v9.4b[3]
"""


def encodings():
    """Return {name: [(operands, word, text)]}."""
    found = {}
    for line in ENCODINGS.strip().splitlines():
        columns = re.fullmatch(r"(\S+) +((?:-?\d+ )*) *([0-9a-f]{8})  (.*)", line)
        name, operands, word, text = columns.groups()
        found.setdefault(name, []).append((list(map(int, operands.split())), int(word, 16), text))
    return found


@pytest.mark.parametrize("name, examples", encodings().items(), ids=encodings())
def test_word_is_that_of_gnu_as(name, examples):
    for operands, word, text in examples:
        assert f"{WORD[name](*operands):08x}" == f"{word:08x}", text
        assert Arm64.disassemble(struct.pack("<I", word)) == text


def test_every_picture_has_an_example():
    assert set(encodings()) == set(kshipra._A64Words.pictures)


def test_pictures_have_32_bits():
    for name, picture, _ in kshipra._A64_ROWS:
        assert len(picture.replace(" ", "")) == 32, name


def test_bit_masks():
    """There are 5334, and GNU as makes the same words of `and x1, x2, #mask` in their order."""
    words = []
    for bits in range(1 << 13):
        if bits >> 12 or bits & 0b111110 != 0b111110:   # else the element has one bit or none
            value = kshipra._bitmask_value(bits)
            if kshipra._bitmask_bits(value) == bits:
                words.append(WORD["and.i"](1, 2, bits))
    assert len(words) == 5334
    assert hashlib.sha256(struct.pack("<5334I", *words)).hexdigest() == \
        "fd65eb1e8f68d895d9c8c47141709300b93957050f6296740d64657d3fb1d8ef"


@pytest.mark.parametrize("value", [0, -1, 2**64 - 1, 5, 0x1234567890, 0b1011, 0xFF00FF00FF00FF01])
def test_no_bit_mask(value):
    assert kshipra._bitmask_bits(value) is None


def texts(words):
    return [Arm64.disassemble(struct.pack("<I", word)) for word in words]


@pytest.mark.parametrize("value, expected", [
    (0, ["movz x3, #0x0, lsl #0"]),
    (-1, ["movn x3, #0x0, lsl #0"]),
    (0x12345, ["movz x3, #0x2345, lsl #0", "movk x3, #0x1, lsl #16"]),
    (1 << 40, ["movz x3, #0x100, lsl #32"]),
    (-0x12345, ["movn x3, #0x2344, lsl #0", "movk x3, #0xfffe, lsl #16"]),
    (-2**63, ["movz x3, #0x8000, lsl #48"]),
])
def test_constant(value, expected):
    assert texts(kshipra._constant_words(3, value)) == expected


@pytest.mark.parametrize("number, expected", [
    (0, ["add x1, x2, #0"]),
    (4095, ["add x1, x2, #4095"]),
    (-4095, ["sub x1, x2, #4095"]),
    (4096, ["add x1, x2, #1, lsl #12"]),
    (-4097, ["sub x1, x2, #1, lsl #12", "sub x1, x1, #1"]),
    (1 << 24, ["movz x16, #0x100, lsl #16", "add x1, x2, x16"]),
])
def test_sum(number, expected):
    assert texts(kshipra._sum_words(1, 2, number)) == expected


@pytest.mark.parametrize("name, disp, expected", [
    ("ldr.q", 65520, ["ldr q1, [x2, #65520]"]),
    ("ldr.q", -16, ["ldur q1, [x2, #-16]"]),
    ("ldr.q", 18, ["ldur q1, [x2, #18]"]),
    ("ldr.q", 65536, ["add x16, x2, #16, lsl #12", "ldr q1, [x16, #0]"]),
    ("ldr.q", 274, ["add x16, x2, #274", "ldr q1, [x16, #0]"]),
    ("ldr.s", 70004, ["add x16, x2, #17, lsl #12", "ldr s1, [x16, #372]"]),
    ("str.h", -2, ["sturh w1, [x2, #-2]"]),
    ("ldrs.h", 8190, ["ldrsh x1, [x2, #8190]"]),
    ("ldr.x", -300, ["sub x16, x2, #300", "ldr x1, [x16, #0]"]),
])
def test_access(name, disp, expected):
    assert texts(kshipra._access(name, 1, 2, disp)) == expected


@pytest.mark.parametrize("disp, expected", [
    (1008, ["ldp q2, q3, [x9, #1008]"]),
    (-1024, ["ldp q2, q3, [x9, #-1024]"]),
    (1024, ["ldr q2, [x9, #1024]", "ldr q3, [x9, #1040]"]),
    (34, ["ldur q2, [x9, #34]", "ldur q3, [x9, #50]"]),
    (240, ["ldp q2, q3, [x9, #240]"]),
    (239, ["ldur q2, [x9, #239]", "ldur q3, [x9, #255]"]),
    (241, ["add x16, x9, #241", "ldp q2, q3, [x16, #0]"]),
])
def test_access_pair(disp, expected):
    assert texts(kshipra._access_pair("ldp.q", 2, 9, disp)) == expected


@pytest.mark.parametrize("isa", ISAS)
def test_every_operation_has_a_row(isa):
    recipes = Arm64(isa, "aapcs64").recipes
    assert all(callable(recipes[name][0]) for name in OPS)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_recipe_reads_operands_before_it_writes_over_them(op):
    """The result may be one of the operands: what was written of it must not be read as theirs."""
    for text in op.arm64.values() if isinstance(op.arm64, dict) else [op.arm64]:
        written = set()
        for step in [] if text[0] == "_" else text.split(";"):
            _, *tokens = step.split() or [None]
            is_result = op.sets and bool(tokens) and tokens[0][0] == "d"
            for token in tokens[is_result:]:
                if re.fullmatch(r"[abc][01]?", token):
                    assert not (written & {"d" + token[1:]}), text
            if "*" in tokens:
                assert op.lane != "i" or not written, text
            if is_result and not op.updates:
                written.add(tokens[0])


@pytest.mark.parametrize("isa", ISAS)
def test_code_of_every_operation(isa):
    """All words are in the table, and GNU as, if it is here, makes them of their text."""
    words = []
    for op in OPS.values():
        if op.meaning is None or op.name.endswith("_mode"):
            continue
        ways = itertools.product(arm64_check.aliases(op), arm64_check.cases(op))
        for alias, (values, disp) in ways:
            kernel = kshipra.build(arm64_check.emit_op, op, values, disp, alias)
            encoder = Arm64(isa, "aapcs64")
            kshipra._emit(kernel, encoder)
            code = encoder.finish()
            words += [code[i:i + 4] for i in range(0, encoder.n_code_bytes, 4)]
    known = {word: Arm64.disassemble(word) for word in set(words)}
    assert not [text for text in known.values() if text.startswith(".word")]
    if shutil.which("aarch64-linux-gnu-as"):
        assert assemble(known.values()) == b"".join(known)


def assemble(lines):
    """Return the code that GNU as makes of the lines."""
    with tempfile.TemporaryDirectory() as folder:
        source, made, code = [os.path.join(folder, name) for name in ("a.s", "a.o", "a.bin")]
        with open(source, "w") as f:
            f.write("\n".join(lines) + "\n")
        for command in (["as", "-march=armv8.2-a+dotprod", "-o", made, source],
                        ["objcopy", "-O", "binary", "-j", ".text", made, code]):
            subprocess.run(["aarch64-linux-gnu-" + command[0], *command[1:]], check=True)
        with open(code, "rb") as f:
            return f.read()


def emit_small(k):
    x, n = k.args("x", "n")
    total = k.zero_f32x8()
    with k.loop(n):
        total += k.load_f32x8(x) * k.const_f32x8([1, 2, 3, 4, 5, 6, 7, 8])
        k.advance(x=32)
    k.store_f32(x, k.hsum_f32(total))


def test_listing():
    text = kshipra.listing(kshipra.build(emit_small), "neon", "aapcs64").splitlines()
    assert text[0] == "; emit_small for neon, aapcs64: 128 bytes"
    assert text[1:3] == ["; begin", "; load_i64 i3, i0, 0"]
    assert text[3].split(None, 5)[5] == "ldr x1, [x0, #0]"
    assert any(re.search(r"  fmul v\d+\.4s, v\d+\.4s, v\d+\.4s$", line) for line in text)
    assert text[-2].endswith("ret")
    assert "constants: " in text[-1]


def test_kernel_too_long_is_refused():
    def emit_long(k):
        x = k.args("x")
        for i in range(140_000):
            k.store_i64(x, x, 70_000)
    with pytest.raises(ValueError, match="kernel emit_long has .*, but arm64 jumps reach 1 MiB"):
        kshipra.encode(kshipra.build(emit_long), "neon", "aapcs64")
