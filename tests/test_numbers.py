"""Chapter 1, Numbers: every format against ggml's bytes and values, and against itself."""
import math
import random
import struct
import zlib
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kshipra
import tiny
from kshipra import FORMAT_BY_ID, FORMATS, KshipraError

BLOCK_FORMATS = [f for f in FORMATS.values() if f.sub_len]
OUR_OWN = [name for name in FORMATS if name == "NF4" or name.startswith("INT")]
WRITTEN = list(kshipra.ENCODE)
SEARCHED = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
ALL_HALVES = array("H", range(65536)).tobytes()


def f32s(data):
    return array("f", data)


def same_bits(a, b):
    return array("f", a).tobytes() == array("f", b).tobytes()


# Known answers.  The vectors are gguf-py's, the same bits as ggml's C code: random valid blocks
# with zero, subnormal and negative scales, all-zero and all-one bits, several blocks in a row.

@pytest.mark.parametrize("name", [name for name in FORMATS if name not in OUR_OWN])
def test_decode_equals_ggml_to_the_bit(name, formats):
    raw = (formats / "dequant" / f"{name}.blocks.bin").read_bytes()
    want = (formats / "dequant" / f"{name}.f32.bin").read_bytes()
    assert FORMATS[name].decode(raw).tobytes() == want


@pytest.mark.parametrize("name", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
                                  "MXFP4", "TQ1_0", "TQ2_0"])
def test_encode_equals_ggml_to_the_byte(name, formats):
    floats = f32s((formats / "quantize" / "input.f32.bin").read_bytes())
    want = (formats / "quantize" / f"{name}.bin").read_bytes()
    assert FORMATS[name].encode(floats) == want


def rms_error(format, data, floats):
    return math.sqrt(math.fsum((x - y) ** 2 for x, y in zip(format.decode(data), floats))
                     / len(floats))


@pytest.mark.parametrize("name", SEARCHED)
def test_a_search_loses_no_more_than_that_of_ggml(name, formats):
    """Row by row.  The bytes are those of ggml's C code, which fuses some of its steps."""
    format, n_row = FORMATS[name], FORMATS[name].n_bytes(256)
    floats = f32s((formats / "quantize" / "input.f32.bin").read_bytes())
    theirs = (formats / "quantize" / f"{name}.bin").read_bytes()
    ours = format.encode(floats)
    n_same = 0
    for i in range(len(floats) // 256):
        row = floats[256 * i:256 * i + 256]
        a, b = ours[n_row * i:n_row * i + n_row], theirs[n_row * i:n_row * i + n_row]
        assert rms_error(format, a, row) <= 1.01 * rms_error(format, b, row)
        n_same += a == b
    assert n_same >= 7                          # of twelve


def test_formats_have_ggml_numbers_and_sizes():
    """Source: ggml.h, enum ggml_type; ggml-common.h, the block structs."""
    assert {f.name: (f.type_id, f.block_len, f.block_bytes) for f in FORMATS.values()
            if f.type_id is not None} == {
        "F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2),
        "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24),
        "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110),
        "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210),
        "IQ2_XXS": (16, 256, 66), "IQ2_XS": (17, 256, 74), "IQ3_XXS": (18, 256, 98),
        "IQ1_S": (19, 256, 50), "IQ4_NL": (20, 32, 18), "IQ3_S": (21, 256, 110),
        "IQ2_S": (22, 256, 82), "IQ4_XS": (23, 256, 136), "IQ1_M": (29, 256, 56),
        "TQ1_0": (34, 256, 54), "TQ2_0": (35, 256, 66), "MXFP4": (39, 32, 17),
        "NVFP4": (40, 64, 36)}
    assert [f.name for f in FORMATS.values() if f.type_id is None] == OUR_OWN
    assert all(row is FORMATS[row.name] and row.type_id == i for i, row in FORMAT_BY_ID.items())
    assert len(FORMAT_BY_ID) == len(FORMATS) - len(OUR_OWN)


# The plain floats.

def half_by_hand(bits):
    """The value of an f16 from its sign, exponent and fraction."""
    sign, exponent, fraction = bits >> 15, (bits >> 10) & 31, bits & 1023
    if exponent == 31:
        return math.nan if fraction else math.inf * (1 - 2 * sign)
    size = fraction * 2.0 ** -24 if exponent == 0 else (1024 + fraction) * 2.0 ** (exponent - 25)
    return math.copysign(size, -sign or 1)


def test_every_f16_pattern_is_read_exactly_and_written_back():
    values = kshipra.f16_to_f32(ALL_HALVES)
    for bits, value in enumerate(values):
        want = half_by_hand(bits)
        assert (math.isnan(value) and math.isnan(want)) or same_bits([value], [want])
    finite = array("H", [b for b in range(65536) if (b >> 10) & 31 != 31]).tobytes()
    assert kshipra.f32_to_f16(kshipra.f16_to_f32(finite)) == finite
    assert FORMATS["F16"].encode(FORMATS["F16"].decode(finite)) == finite


def test_every_bf16_pattern_is_the_upper_half_of_an_f32():
    values = kshipra.bf16_to_f32(ALL_HALVES)
    assert array("I", values.tobytes()) == array("I", [b << 16 for b in range(65536)])
    finite = array("H", [b for b in range(65536) if (b >> 7) & 255 != 255]).tobytes()
    assert FORMATS["BF16"].encode(FORMATS["BF16"].decode(finite)) == finite


@pytest.mark.parametrize("value, bits", [
    (65504.0, 0x7BFF), (65519.0, 0x7BFF), (65520.0, 0x7BFF), (1e9, 0x7BFF), (math.inf, 0x7BFF),
    (-65520.0, 0xFBFF), (-math.inf, 0xFBFF), (0.0, 0x0000), (-0.0, 0x8000),
    (2.0 ** -24, 0x0001), (2.0 ** -25, 0x0000), (1.5 * 2.0 ** -24, 0x0002),
    (1 + 2.0 ** -11, 0x3C00), (1 + 3 * 2.0 ** -11, 0x3C02)])
def test_f32_to_f16_clamps_and_rounds_half_to_even(value, bits):
    for around in ([], [1.0]):                  # alone, and beside a number that needs nothing
        data = kshipra.f32_to_f16(array("f", [value] + around))
        assert struct.unpack_from("<H", data)[0] == bits


def test_f32_to_f16_keeps_nan_among_numbers_to_clamp():
    got = kshipra.f16_to_f32(kshipra.f32_to_f16([1.0, math.nan, math.inf, 2.0]))
    assert math.isnan(got[1]) and list(got[2:]) == [65504.0, 2.0] and got[0] == 1.0


@given(st.lists(st.floats(width=32, min_value=-2.0 ** 127, max_value=2.0 ** 127), max_size=40))
def test_bf16_is_the_nearest_and_even_on_a_tie(values):
    got = FORMATS["BF16"].decode(FORMATS["BF16"].encode(values))
    for x, y in zip(values, got):
        bits = struct.unpack("<I", struct.pack("<f", x))[0]
        low, high = (struct.unpack("<f", struct.pack("<I", (bits >> 16) + up << 16))[0]
                     for up in (0, 1))
        odd = (bits >> 16) & 1
        nearer = min((abs(low - x), odd, low), (abs(high - x), 1 - odd, high))
        assert same_bits([y], [nearer[2]])


# The block formats: what unpack says, decode must say; slowly, a weight at a time.

def code_bits(format, block, i):
    """The code of weight i, unsigned, read bit by bit as the layouts are drawn."""
    name, low, high = format.name, i % 128 // 32, i % 32
    if name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        qs = block[-16:]
        code = qs[i % 16] >> (4 * (i // 16)) & 15
        if name[1] == "5":
            code |= (block[-20 + i // 8] >> (i % 8) & 1) << 4
        return code
    if name == "Q8_0":
        return (block[2 + i] ^ 128)             # as if the bias were 128
    if name == "Q2_K":
        return block[16 + 32 * (i // 128) + high] >> (2 * low) & 3
    if name == "Q3_K":
        return (block[32 + 32 * (i // 128) + high] >> (2 * low) & 3
                | (block[high] >> (i // 32) & 1) << 2)
    if name == "Q4_K":
        return block[16 + 32 * (i // 64) + high] >> (4 * (i // 32 % 2)) & 15
    if name == "Q5_K":
        return (block[48 + 32 * (i // 64) + high] >> (4 * (i // 32 % 2)) & 15
                | (block[16 + high] >> (i // 32) & 1) << 4)
    return (block[64 * (i // 128) + i % 64] >> (4 * (i // 64 % 2)) & 15
            | (block[128 + 32 * (i // 128) + high] >> (2 * low) & 3) << 4)


BIAS = {"Q4_0": 8, "Q5_0": 16, "Q8_0": 128, "Q3_K": 4, "Q6_K": 32}


def integer(block, byte, n_bytes, shift, width):
    """Bits of a little-endian integer in a block."""
    return int.from_bytes(block[byte:byte + n_bytes], "little") >> shift & ((1 << width) - 1)


def grid_code(format, block, i):
    """The code of weight i of a format with a grid, from the C structs of ggml-common.h."""
    name, group, eight, four = format.name, i // 32, i // 8, i // 4
    shift = even = None
    if name == "IQ2_XXS":                       # uint16_t qs[32], in words of 32 bits
        index = block[2 + 8 * group + eight % 4]
        even = integer(block, 6 + 8 * group, 4, 7 * (eight % 4), 7)
    elif name == "IQ2_XS":                      # uint16_t qs[32]
        index, even = (integer(block, 2 + 2 * eight, 2, *bits) for bits in ((0, 9), (9, 7)))
    elif name == "IQ2_S":                       # qs[32], signs[32], qh[8]
        index = block[2 + eight] | integer(block, 66 + group, 1, 2 * (eight % 4), 2) << 8
        signs = block[34 + eight]
    elif name == "IQ3_XXS":                     # qs[64], uint32_t[8]
        index, even = block[2 + four], integer(block, 66 + 4 * group, 4, 7 * (eight % 4), 7)
    elif name == "IQ3_S":                       # qs[64], qh[8], signs[32]
        index, signs = block[2 + four] | integer(block, 66 + group, 1, four % 8, 1) << 8, \
            block[74 + eight]
    elif name == "IQ1_S":                       # qs[32], uint16_t qh[8]
        index = block[2 + eight] | integer(block, 34 + 2 * group, 2, 3 * (eight % 4), 3) << 8
        shift = -1 if integer(block, 34 + 2 * group, 2, 15, 1) else 1
    else:                                       # IQ1_M: qs[32], qh[16]
        nibble = integer(block, 32 + eight // 2, 1, 4 * (eight % 2), 4)
        index, shift = block[eight] | (nibble & 7) << 8, -1 if nibble & 8 else 1
    pattern = kshipra.grid("IQ1_S" if shift else name)
    length = 4 if name.startswith("IQ3") else 8
    code = pattern[length * index + i % length]
    if shift:
        return code + shift
    if even is not None:
        signs = even | bin(even).count("1") % 2 << 7
    return -code if signs >> (i % 8) & 1 else code


def code(format, block, i):
    """The code of weight i, by the layout's drawing."""
    name = format.name
    if name == "NF4":
        return format.codes.book[block[2 + 16 * (i // 32) + i % 16] >> (4 * (i % 32 // 16)) & 15]
    if name.startswith("INT2"):
        quarter = format.block_len // 4
        return block[4 + i % quarter] >> (2 * (i // quarter)) & 3
    if name.startswith("INT4"):
        return block[4 + 16 * (i // 32) + i % 16] >> (4 * (i % 32 // 16)) & 15
    if name.startswith("INT8"):
        return (block[4 + i] ^ 128) - 128
    if name in ("IQ4_NL", "MXFP4"):
        return format.codes.book[block[-16 + i % 16] >> (4 * (i // 16)) & 15]
    if name == "NVFP4":
        return format.codes.book[block[4 + 8 * (i // 16) + i % 8] >> (4 * (i % 16 // 8)) & 15]
    if name == "IQ4_XS":
        return format.codes.book[block[8 + 16 * (i // 32) + i % 16] >> (4 * (i % 32 // 16)) & 15]
    if name == "TQ2_0":
        return (block[32 * (i // 128) + i % 32] >> (2 * (i % 128 // 32)) & 3) - 1
    if name == "TQ1_0":
        byte, digit = ((i % 32, i // 32) if i < 160 else (32 + i % 16, (i - 160) // 16)
                       if i < 240 else (48 + i % 4, (i - 240) // 4))
        return ((block[byte] * 3 ** digit & 255) * 3 >> 8) - 1
    if name.startswith("IQ"):
        return grid_code(format, block, i)
    return code_bits(format, block, i) - BIAS.get(name, 0)


@pytest.mark.parametrize("format", BLOCK_FORMATS, ids=lambda f: f.name)
@tiny.examples(10)
@given(data=st.data())
def test_unpack_reads_every_bit_and_decode_agrees(format, data):
    """P06: for any bytes in 0 to 3 blocks, the codes of the drawings; weight = s * code + m."""
    n_blocks = data.draw(st.integers(0, 3))
    size = n_blocks * format.block_bytes
    raw = data.draw(st.binary(min_size=size, max_size=size))
    codes, scales, mins = format.unpack(memoryview(raw))
    assert codes.typecode == "b" and len(codes) == n_blocks * format.block_len
    assert len(scales) == len(codes) // format.sub_len
    assert (mins is None) == (format.m_off is None)
    blocks = [raw[i:i + format.block_bytes] for i in range(0, size, format.block_bytes)]
    assert list(codes) == [code(format, block, i)
                           for block in blocks for i in range(format.block_len)]
    weights = format.decode(raw)
    for i, weight in enumerate(weights):
        sub = i // format.sub_len
        want = scales[sub] * codes[i]
        if mins:
            want += mins[sub]
        want = array("f", [want])[0]            # MXFP4's largest scale times 12 is infinite
        assert math.isnan(want) and math.isnan(weight) or same_bits([want], [weight])


@pytest.mark.parametrize("format", BLOCK_FORMATS, ids=lambda f: f.name)
def test_parts_join_without_a_seam(format, monkeypatch):
    """Long data is coded a part at a time; where it is cut must not show."""
    n = 2048 // format.block_len
    raw = format.with_scales(random.Random(1).randbytes(n * format.block_bytes),
                             [0.25 * i for i in range(n)], [float(i) for i in range(n)])
    whole = format.decode(raw), format.unpack(raw)
    floats = array("f", [x for x in whole[0] if abs(x) < 6000][:1536])
    written = format.encode(floats) if format.name in WRITTEN else None
    monkeypatch.setattr(kshipra, "_PART_LEN", 256)
    assert same_bits(format.decode(raw), whole[0])
    assert format.unpack(raw) == whole[1]
    assert written is None or format.encode(floats) == written


@pytest.mark.parametrize("name", kshipra._GRIDS)
def test_a_grid_has_its_checksum(name):
    """The table was copied once: its bits, unpacked, still have the sum noted beside it."""
    length, values, checksum, packed = kshipra._GRIDS[name]
    bits = zlib.decompress(kshipra.base64.b85decode(packed), -15)
    assert zlib.crc32(bits) == checksum and len(bits) == -(-len(values) ** length // 8)
    patterns = kshipra.grid(name)
    assert len(patterns) == length * {"IQ2_XXS": 256, "IQ2_XS": 512, "IQ2_S": 1024,
                                      "IQ3_XXS": 256, "IQ3_S": 512, "IQ1_S": 2048}[name]
    assert set(patterns) == set(values)


@pytest.mark.parametrize("e, value", [(0, 2.0 ** -128), (1, 2.0 ** -127), (2, 2.0 ** -126),
                                      (127, 0.5), (128, 1.0), (255, 2.0 ** 127)])
def test_mxfp4_scales_are_powers_of_two(e, value):
    assert FORMATS["MXFP4"].unpack(bytes([e]) + bytes(16))[1][0] == value


def test_a_row_that_the_kernels_cannot_read_is_no_format():
    field = kshipra.Field([(4, 16, 0, 4), (4, 16, 4, 4)])
    odd = kshipra.Field([(4, 16, 0, 4), (4, 16, 4, 4)], bias=7)
    short = kshipra.Field([(4, 16, 0, 4)])
    split = kshipra.Field([(4, 15, 0, 4), (4, 15, 4, 4), (19, 1, 0, 4), (19, 1, 4, 4)])
    for wrong in (dict(sub_len=64), dict(m_off=4), dict(codes=odd), dict(mins=field),
                  dict(codes=short), dict(codes=split), dict(scales=field)):
        with pytest.raises(AssertionError):
            kshipra.Format("wrong", None, 32, 20, **{"sub_len": 32, "d_off": 0, "m_off": 2,
                                                     "codes": field, **wrong})


# What encoding costs.  d is rounded to f16, by at most 2**-11 of itself; a code is off by at most
# half a step (a whole one at the end where the codes run out), so the error is within
# d * (1 + 2**-11 * most codes), and a hair for the f32 steps.

STEPS = {"Q8_0": 254, "Q4_0": 16, "Q5_0": 32, "Q4_1": 15, "Q5_1": 31}
FLOATS = st.floats(width=32, min_value=-1000, max_value=1000)


@pytest.mark.parametrize("name", STEPS)
@given(block=st.lists(FLOATS, min_size=32, max_size=32))
def test_decode_of_encode_is_within_a_step(name, block):
    span = max(block) - min(block) if name.endswith("1") else 2 * max(map(abs, block))
    step = span / STEPS[name]
    bound = step * (1 + STEPS[name] * 2.0 ** -11) + 2.0 ** -10 * max(map(abs, block)) + 1e-5
    got = FORMATS[name].decode(FORMATS[name].encode(block))
    assert all(abs(x - y) <= bound for x, y in zip(block, got))
    assert all(map(math.isfinite, got))


NORMAL = array("f", map(random.Random(3).gauss, [0.0] * 1024, [1.0] * 1024))


def test_what_is_written_in_more_bits_loses_less():
    """Error over the deviation of normal weights: what a bit buys, format by format."""
    lost = {name: rms_error(FORMATS[name], FORMATS[name].encode(NORMAL), NORMAL)
            for name in WRITTEN if FORMATS[name].sub_len}
    for less, more in zip(SEARCHED[1:5], SEARCHED[:4]):
        assert lost[less] < 0.6 * lost[more]
    assert lost["Q4_K"] < lost["Q4_1"] < 0.1 and lost["IQ4_XS"] < lost["Q4_0"] < 0.11
    assert lost["NF4"] < 0.11 and lost["MXFP4"] < 0.13
    for group in (32, 64, 128):
        two, four, eight = [lost[f"INT{bits}_G{group}"] for bits in (2, 4, 8)]
        assert 12 * eight < four and 3.5 * four < two < 0.4
        assert group == 32 or four > lost[f"INT4_G{group // 2}"]


@pytest.mark.parametrize("name", SEARCHED)
def test_a_search_heeds_importance(name):
    """What counts a hundredfold loses less than it does when all count alike."""
    format, importance = FORMATS[name], array("f", [100.0, 1.0, 1.0, 1.0] * 256)
    plain = format.decode(format.encode(NORMAL))
    heeded = format.decode(format.encode(NORMAL, importance))
    lost = [math.fsum((x - y) ** 2 for x, y in zip(got[::4], NORMAL[::4]))
            for got in (plain, heeded)]
    assert lost[1] < 0.9 * lost[0]
    some = array("f", [0.0] * 512 + [1.0] * 512)            # P07: zeros make no NaN and no zeros
    for zeros in (array("f", [0.0] * 1024), some):
        got = format.decode(format.encode(NORMAL, zeros))
        assert rms_error(format, format.encode(NORMAL, zeros), NORMAL) < 0.5
        assert all(map(math.isfinite, got)) and any(got[:256])
    for wrong in (array("f", [1.0] * 1023), array("f", [-1.0] * 1024),
                  array("f", [math.nan] * 1024)):
        with pytest.raises(KshipraError, match="importance is 102[34] numbers for 1024 weights"):
            format.encode(NORMAL, wrong)


@pytest.mark.parametrize("format", [f for f in BLOCK_FORMATS if isinstance(f.codes, kshipra.Field)
                                    and f.codes.book is None], ids=lambda f: f.name)
def test_pack_puts_back_what_unpack_finds(format):
    raw = random.Random(2).randbytes(8 * format.block_bytes)
    raw = format.with_scales(raw, [0.5] * 8, [2.0] * 8)
    stored = [bytes([(v + getattr(field, "bias", 0)) & 255 for v in field.read(
        raw, format.block_bytes)])
        for field in (format.codes, format.scales, format.mins) if field]
    assert format.pack(stored[0], [0.5] * 8, [2.0] * 8, *stored[1:]) == raw


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("fill", [0.0, -0.0])
def test_zeros_stay_zeros(name, fill):
    got = FORMATS[name].decode(FORMATS[name].encode([fill] * 256))
    assert len(got) == 256 and not any(got)


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("block", [
    [5.0] * 32, [-5.0] * 32, [0.0] * 31 + [7.0], [-7.0] + [0.0] * 31, [1e-45] * 32,
    [1e-39, -1e-45] * 16, [1e-30] * 31 + [3.0], [4.0, -4.0] * 16])
def test_odd_blocks_give_finite_weights_of_the_right_size(name, block):
    """Constants, a spike, denormals, a tie of signs."""
    got = FORMATS[name].decode(FORMATS[name].encode(block + [0.0] * 96 + block * 4))
    assert all(map(math.isfinite, got))
    assert max(map(abs, got)) <= 1.2 * max(map(abs, block)) + 1e-7


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("at", [0, 31, 40])
def test_infinities_and_nan_are_refused_by_place(name, bad, at):
    floats = [1.0] * 256
    floats[at] = bad
    with pytest.raises(KshipraError, match=f"weight {at} is {bad}.*{name}"):
        FORMATS[name].encode(floats)


@pytest.mark.parametrize("name", [name for name in WRITTEN if name not in ("F32", "MXFP4")])
@pytest.mark.parametrize("size", [3.4028234663852886e38, 1e12])
def test_what_would_become_infinite_is_refused(name, size):
    if name == "BF16" and size == 1e12:
        return
    with pytest.raises(KshipraError, match=f"e\\+[13][82] are beyond the range of {name};"):
        FORMATS[name].encode([size, -size] + [0.0] * 254)


@pytest.mark.parametrize("name", [f.name for f in BLOCK_FORMATS])
def test_a_cut_block_is_refused_by_size(name):
    format = FORMATS[name]
    for read in (format.decode, format.unpack):
        with pytest.raises(KshipraError, match=f"{name} data of {format.block_bytes - 1} bytes"):
            read(bytes(format.block_bytes - 1))
    if name in WRITTEN:
        with pytest.raises(KshipraError, match=f"33 weights are no whole number of {name} blocks"):
            format.encode([1.0] * 33)
        assert format.encode([]) == b""


def test_unwritten_and_unread_formats_are_refused_by_name():
    with pytest.raises(KshipraError, match="does not write IQ2_S; it writes F32 F16 .*Q8_0"):
        FORMATS["IQ2_S"].encode([0.0] * 256)
    with pytest.raises(KshipraError, match="F16 is not a block format"):
        FORMATS["F16"].unpack(b"12")
    with pytest.raises(KshipraError, match="F8_E4M3 is not a block format that kshipra reads"):
        kshipra.LISTED_FORMATS["F8_E4M3"].decode(bytes(36))


@pytest.mark.parametrize("format", BLOCK_FORMATS, ids=lambda f: f.name)
def test_scales_are_put_where_they_are_read(format):
    blocks = bytes(range(7, 251)) * format.block_bytes
    blocks = blocks[:format.block_bytes * 244]
    ds, ms = [2.0 ** (i % 9 - 4) for i in range(244)], [i / 8 for i in range(244)]
    made = format.with_scales(blocks, ds, ms)
    found, codes = format._read_d(made), format.unpack(made)[0]
    if format.d == "ue4m3":                     # one a sub-block
        assert found[0::4] == found[1::4] == found[2::4] == found[3::4]
        found = found[::4]
    assert list(found) == ds and codes == format.unpack(blocks)[0]
    if format.m_off is not None:
        assert list(kshipra._read_f16(made, format.block_bytes, format.m_off)) == ms
