"""Chapter 14, Matrix kernels.  Every kernel equals chapter 4 to the bit, in every way it runs."""
import ctypes
import functools
import math
import random
import struct
from array import array

import pytest

import kshipra
from kshipra import FORMATS, Tensor

# Of the rows that differ by the group alone, one each here; all have a trial in test_self_check.
ALIKE = {"INT2_G64", "INT2_G128", "INT4_G32", "INT4_G128", "INT8_G32", "INT8_G64"}
QUANTIZED = [f.name for f in FORMATS.values() if f.sub_len and f.name not in ALIKE]
FLOATS = ["F32", "F16", "BF16"]


# How a kernel can run here: interpreted, and natively on each instruction set the machine has.

def interpreted(kernel, args, chunk, scratch):
    kshipra.interpret(kernel, args.buffer_info()[0], chunk, scratch, CALLED)


def interpreted_address(kernel):
    """Something to call the kernel by: never an address of code, so it is only interpreted."""
    CALLED[-1 - id(kernel)] = functools.partial(kshipra.interpret, kernel)
    return -1 - id(kernel)


CALLED = {}
interpreted.full_u8, interpreted.address = True, interpreted_address


def native(isa):
    def run(kernel, args, chunk, scratch):
        compiled(kernel, isa)(args.buffer_info()[0], chunk, scratch)
    run.full_u8 = isa in ("vnni", "avxvnni")
    run.address = lambda kernel: ctypes.cast(compiled(kernel, isa), ctypes.c_void_p).value
    return run


_compiled = {}                          # (id of kernel, isa) -> kernel, code, function


def compiled(kernel, isa):
    key = id(kernel), isa
    if key not in _compiled:
        code, reason = kshipra.compile_kernels([kernel], isa)
        assert code, reason
        _compiled[key] = kernel, code, code.function(0)
    return _compiled[key][2]


RUNS = [pytest.param(interpreted, id="interpreted")] + [
    pytest.param(native(isa), id=isa) for isa in kshipra.host_instruction_sets()[0]]


@functools.lru_cache(maxsize=None)
def kernel(emit, *parameters):
    return kshipra.build(emit, *parameters)


class Buffer:
    """Bytes at a multiple of 64, followed by a canary that must not change."""

    CANARY = bytes(range(64))

    def __init__(self, data):
        self.n_bytes = len(data)
        self.memory = bytearray(64 + self.n_bytes + 64)
        start = ctypes.addressof((ctypes.c_char * 0).from_buffer(self.memory))
        self.first = -start % 64
        self.address = start + self.first
        self.memory[self.first:self.first + self.n_bytes] = data
        self.memory[self.first + self.n_bytes:][:64] = b""
        self.memory[self.first + self.n_bytes:self.first + self.n_bytes + 64] = self.CANARY

    def read(self):
        end = self.first + self.n_bytes
        assert bytes(self.memory[end:end + 64 - self.first]) == self.CANARY[:64 - self.first]
        return bytes(self.memory[self.first:end])


def random_weights(format, shape, seed, awkward=False):
    """A tensor of random bits, its f16 scales finite; some blocks zero, negative, subnormal."""
    rng = random.Random(seed)
    n = math.prod(shape)
    if format.sub_len is None:
        return Tensor("w", format, shape, format.encode(
            array("f", [rng.choice((rng.gauss(0, 1), 0.0, -0.0, rng.gauss(0, 1e-6)))
                        for _ in range(n)])))
    n_blocks = n // format.block_len
    ds, ms = ([rng.choice((rng.gauss(0, 0.01), rng.gauss(0, 1), 0.0, -0.0, 6e-8, -1e-6))
               for _ in range(n_blocks)] for _ in range(2))
    data = bytearray(format.with_scales(rng.randbytes(format.n_bytes(n)), ds, ms))
    for at in range(0, len(data), format.block_bytes):
        if format.d == "e8m0" and rng.random() < 0.3:
            data[at + format.d_off] = rng.choice((0, 1, 2, 100))
        if format.d == "ue4m3":
            data[at:at + 4] = rng.choice(
                (b"\0\x01\x07\x08", b"\x7f\x7e\x80\xff", rng.randbytes(4)))
        if awkward and rng.random() < 0.3:
            data[at:at + format.block_bytes] = rng.choice((b"\0", b"\xff", b"\x80", b"\x7f")) * (
                format.block_bytes)
    return Tensor("w", format, shape, bytes(data))


def random_rows(n_rows, n, seed):
    """Activations with blocks that are zero, tiny, huge, and with one large value."""
    rng = random.Random(seed)
    rows = []
    for _ in range(n_rows):
        row = array("f")
        while len(row) < n:
            size = rng.choice((1.0, 1.0, 1e-3, 1e-38, 1e10, 0.0))
            block = [rng.gauss(0, size) for _ in range(32)]
            if rng.random() < 0.2:
                block[rng.randrange(32)] = 1000 * size
            row.extend(block)
        rows.append(row[:n])
    return rows


def flat(rows):
    return b"".join([row.tobytes() for row in rows])


def same(found, wanted):
    """Whether two float buffers hold the same bits, any NaN being the same as any other."""
    a, b = array("f", found), array("f", wanted)
    return len(a) == len(b) and all(x == y if x == x else y != y for x, y in zip(a, b)) and (
        [math.copysign(1, x) for x in a if x == x] == [math.copysign(1, x) for x in b if x == x])


def quantized(run, rows, group=6):
    """The rows as records, written by emit_quantize."""
    n_rows, n_blocks = len(rows), len(rows[0]) // 32
    x, xq = Buffer(flat(rows)), Buffer(bytes(64 * n_blocks * n_rows))
    k = kernel(kshipra.emit_quantize)
    args = k.args_array(x=x.address, xq=xq.address, n_blocks=n_blocks, n_rows=n_rows,
                        group=group)
    for chunk in range(n_rows):
        run(k, args, chunk, 0)
    return xq


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("n_rows, n_blocks, group", [
    (1, 1, 6), (1, 5, 1), (3, 4, 6), (3, 4, 3), (6, 2, 6), (13, 2, 6), (5, 3, 1)])
def test_quantize_equals_its_reference(run, n_rows, n_blocks, group):
    rows = random_rows(n_rows, 32 * n_blocks, n_rows)
    rows[0][:32] = array("f", [i - 15.5 for i in range(31)] + [127.0])      # halves, scaled by 1
    found = quantized(run, rows, group).read()
    for r, row in enumerate(rows):
        codes, scales = kshipra.quantize_activations(row)
        for b, scale in enumerate(scales):
            block = codes[32 * b:32 * b + 32]
            low, high = sum(block[:16]), sum(block[16:])
            f = kshipra.f32
            wanted = struct.pack("<32bff3i2fi", *block, scale, f(scale * (low + high)), -low,
                                 -high,
                                 -low - high, f(scale * low), f(scale * high), 0)
            first = r // group * group
            record = found[64 * (first * len(scales) + b * min(group, n_rows - first)
                                 + r - first):][:64]
            assert record[:32] == wanted[:32] and record[40:52] == wanted[40:52]
            assert same(record[32:40], wanted[32:40]) and same(record[52:], wanted[52:])


def matmul(run, emit, w, rows, chunk_rows):
    """x times w transposed by a kernel, chunk by chunk, the last one first."""
    n_out, n_in = w.shape
    format, n_rows = w.format, len(rows)
    if format.sub_len:
        k = kernel(emit, format, n_in, min(8, n_out),
                   run.full_u8 if emit is kshipra.emit_matmul else n_rows)
        x = quantized(run, rows)
    else:
        k, x = kernel(emit, format, n_in), Buffer(flat(rows))
    scratch_bytes = kshipra.matmul_scratch_bytes(format, n_in, chunk_rows) if (
        emit is kshipra.emit_matmul) else 4096
    scratch = Buffer(b"\xff" * scratch_bytes)
    weights, y = Buffer(bytes(w.data)), Buffer(b"\xff" * (4 * n_out * n_rows))
    args = k.args_array(w=weights.address, x=x.address, y=y.address, n_out=n_out,
                        chunk_rows=chunk_rows, n_rows=n_rows, y_stride=4 * n_out)
    for chunk in reversed(range(-(-n_out // chunk_rows))):
        run(k, args, chunk, scratch.address)
    scratch.read()
    return y.read()


@functools.lru_cache(maxsize=None)
def problem(name, n_out, n_in, n_rows, seed, awkward):
    """Return (weights, rows, their product by the reference), made once for all runs."""
    w = random_weights(FORMATS[name], (n_out, n_in), seed, awkward)
    rows = random_rows(n_rows, n_in, seed)
    return w, rows, flat(kshipra.matmul_tiled(w, rows))


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("n_out, n_rows", [(1, 1), (7, 2), (8, 1), (9, 4), (17, 1), (17, 3)])
def test_matvec_equals_its_reference(run, name, n_out, n_rows):
    format = FORMATS[name]
    n_rows = min(n_rows, kshipra.matvec_rows(format))
    n_in = format.block_len * (2 if format.block_len == 256 else 5)
    for awkward in (False, True):
        w, rows, wanted = problem(name, n_out, n_in, n_rows, n_out, awkward)
        assert same(matmul(run, kshipra.emit_matvec, w, rows, 8), wanted)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("n_out, n_rows, chunk_rows", [
    (8, 1, 8), (1, 2, 8), (9, 3, 8), (17, 4, 16), (7, 5, 8), (17, 8, 16), (24, 13, 32)])
def test_matmul_equals_its_reference(run, name, n_out, n_rows, chunk_rows):
    format = FORMATS[name]
    n_in = format.block_len * (1 if format.block_len == 256 else 3)
    w, rows, wanted = problem(name, n_out, n_in, n_rows, n_rows, bool(n_rows % 2))
    assert same(matmul(run, kshipra.emit_matmul, w, rows, chunk_rows), wanted)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("n_out, n_rows, n_in, chunk_rows", [
    (1, 1, 8, 1), (7, 1, 40, 4), (9, 4, 24, 5), (5, 3, 7, 8), (8, 7, 13, 8), (17, 5, 64, 6)])
def test_float_matmul_equals_its_reference(run, name, n_out, n_rows, n_in, chunk_rows):
    w = random_weights(FORMATS[name], (n_out, n_in), n_out)
    rows = random_rows(n_rows, n_in, n_out)
    wanted = flat(kshipra.matmul_naive(w, rows))
    assert same(matmul(run, kshipra.emit_matmul_float, w, rows, chunk_rows), wanted)


def picked(run, weights, rows, route, chunk_rows):
    """matmul with a route, chunk by chunk, the last one first."""
    format, (n_out, n_in) = weights[0].format, weights[0].shape
    n_picks = len(route.experts)
    if format.sub_len:
        one, x = kernel(kshipra.emit_matvec, format, n_in, min(8, n_out), 1), quantized(
            run, rows, 1)
    else:
        one, x = kernel(kshipra.emit_matmul_float, format, n_in), Buffer(flat(rows))
    k = kernel(kshipra.emit_pick, format, n_in)
    held = [Buffer(bytes(w.data)) for w in weights]
    table = Buffer(array("q", [w.address for w in held]).tobytes())
    experts = Buffer(array("i", route.experts).tobytes())
    y, scratch = Buffer(b"\xff" * (4 * n_out * n_picks)), Buffer(b"\xff" * (4096 + 56))
    args = k.args_array(kernel=run.address(one), table=table.address, x=x.address, y=y.address,
                        n_out=n_out, chunk_rows=chunk_rows, y_stride=4 * n_out,
                        experts=experts.address, n_picks=n_picks, per_row=n_picks // len(rows))
    for chunk in reversed(range(-(-n_out // chunk_rows) * n_picks)):
        run(k, args, chunk, scratch.address)
    scratch.read()
    return y.read()


def deep_for_grids(test):
    """Mark as deep what takes long to interpret: the kernels of the formats with grids."""
    for name, format in FORMATS.items():
        if isinstance(format.codes, kshipra.GridCodes):
            test = pytest.mark.deep(run=interpreted, name=name)(test)
    return test


@deep_for_grids
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", FLOATS + QUANTIZED)
@pytest.mark.parametrize("n_out, n_rows, n_used, each, chunk_rows", [
    (1, 1, 1, 1, 8), (9, 1, 3, 3, 8), (17, 4, 2, 2, 8), (17, 4, 2, 1, 16), (7, 3, 4, 1, 8)])
def test_picks_meet_the_weights_of_their_experts(run, name, n_out, n_rows, n_used, each,
                                                 chunk_rows):
    """each: picks that share a row of x; an expert is picked by several rows, or by none."""
    format, rng = FORMATS[name], random.Random(n_out)
    n_in = format.block_len * 2 if format.sub_len else 13
    weights = [random_weights(format, (n_out, n_in), seed) for seed in range(5)]
    experts = [e for _ in range(n_rows) for e in rng.sample(range(5), n_used)]
    route = kshipra.Route(n_used, experts, None)
    rows = random_rows(n_rows * n_used // each, n_in, n_out)
    wanted = flat([kshipra.matmul_tiled(weights[e], [rows[pick // each]])[0]
                   for pick, e in enumerate(experts)])
    assert same(picked(run, weights, rows, route, chunk_rows), wanted)
    assert same(flat(kshipra.Reference().matmul(weights, rows, route)), wanted)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", FLOATS + QUANTIZED)
@pytest.mark.parametrize("n_blocks", [1, 3, 8, 11])
def test_embedding_equals_decode(run, name, n_blocks):
    format = FORMATS[name]
    n_in = n_blocks * format.block_len
    w = random_weights(format, (5, n_in), n_blocks, awkward=True)
    tokens = array("i", [3, 0, 4, 4])
    ids, weights = Buffer(tokens.tobytes()), Buffer(bytes(w.data))
    y, scratch = Buffer(b"\xff" * (4 * n_in * len(tokens))), Buffer(bytes(4096))
    k = kernel(kshipra.emit_embed, format, n_in)
    args = k.args_array(tokens=ids.address, w=weights.address, y=y.address, y_stride=4 * n_in)
    for chunk in range(len(tokens)):
        run(k, args, chunk, scratch.address)
    scratch.read()
    assert same(y.read(), flat([w[t].floats() for t in tokens]))


def test_kernels_read_nothing_outside_their_buffers(monkeypatch):
    """The interpreter's loads of weights stay inside the tensor, of every format."""
    buffers = []

    class Watched(Buffer):
        def __init__(self, data):
            super().__init__(data)
            buffers.append((self.address, self.address + self.n_bytes))

    def load(address, n_bytes):
        assert any(a <= address and address + n_bytes <= b for a, b in buffers)
        return ctypes.string_at(address, n_bytes)

    def run(k, args, chunk, scratch):
        at = args.buffer_info()[0]
        buffers.append((at, at + 8 * len(args)))
        interpreted(k, args, chunk, scratch)

    run.full_u8, run.address = False, interpreted_address
    monkeypatch.setattr(kshipra, "_load", load)
    monkeypatch.setitem(globals(), "Buffer", Watched)
    for name, format in FORMATS.items():
        n_in = format.block_len if format.sub_len else 13
        w, rows = random_weights(format, (9, n_in), 1), random_rows(2, n_in, 1)
        if isinstance(format.codes, kshipra.GridCodes):
            table, n = kshipra.grid_table(format).buffer_info()
            buffers.append((table, table + n))
        if format.sub_len:
            matmul(run, kshipra.emit_matvec, w, rows[:1], 8)
            matmul(run, kshipra.emit_matmul, w, rows, 8)
        else:
            matmul(run, kshipra.emit_matmul_float, w, rows, 8)
        picked(run, [w, w, w], rows, kshipra.Route(2, [2, 0, 1, 2], None), 8)


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("near_bytes", [0, 1 << 20])
def test_every_line_is_fetched_before_it_is_read(monkeypatch, name, near_bytes):
    """Of narrow rows and of wide ones: all of the next eight."""
    monkeypatch.setattr(kshipra, "NEAR_BYTES", near_bytes)
    format, fetched = FORMATS[name], set()
    monkeypatch.setattr(kshipra.OPS["prefetch"], "meaning",
                        lambda base, disp: fetched.add((base + disp) // 64))
    n_in = 4 * 256
    w, x = Buffer(bytes(16 * format.n_bytes(n_in))), Buffer(bytes(2 * n_in))
    y, scratch = Buffer(bytes(64)), Buffer(bytes(4096))
    k = kshipra.build(kshipra.emit_matvec, format, n_in)
    args = k.args_array(w=w.address, x=x.address, y=y.address, n_out=16, chunk_rows=8, n_rows=1,
                        y_stride=64)
    interpreted(k, args, 0, scratch.address)
    row_bytes = format.n_bytes(n_in)
    wanted = range(w.address + 8 * row_bytes, w.address + 16 * row_bytes)
    assert {at // 64 for at in wanted} <= fetched


@pytest.mark.parametrize("run", RUNS[1:])
@pytest.mark.parametrize("name", ["Q4_1", "Q6_K"])
def test_wide_rows(run, name):
    """Rows so wide that the other way of fetching ahead is taken."""
    format, n_in = FORMATS[name], 4096
    assert 8 * format.n_bytes(n_in) > kshipra.NEAR_BYTES
    w, rows = random_weights(format, (9, n_in), 1), random_rows(7, n_in, 1)
    for emit, n_rows in ((kshipra.emit_matvec, 1), (kshipra.emit_matmul, 7)):
        wanted = flat(kshipra.matmul_tiled(w, rows[:n_rows]))
        assert same(matmul(run, emit, w, rows[:n_rows], 8), wanted)
