"""What the tests of kernels share: memory with a margin, and calling a kernel in each way."""
import os
import random
import sys
from array import array

import pytest
from hypothesis import given, strategies as st

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import kshipra  # noqa: E402
import tiny  # noqa: E402

OPS = kshipra.Reference()


class Memory:
    """A piece of memory that kernels may touch, with a margin behind it that they may not."""

    MARGIN = b"\xa5" * 64

    def __init__(self, data):
        data = bytes(data)
        self.n_bytes = len(data)
        self.buf = bytearray(64) + data + self.MARGIN
        self.view = (kshipra.ctypes.c_char * len(self.buf)).from_buffer(self.buf)
        start = kshipra.ctypes.addressof(self.view)
        self.shift = -start % 64
        self.buf[self.shift:self.shift + len(data) + 64] = data + self.MARGIN
        self.address = start + self.shift

    def __bytes__(self):
        end = self.shift + self.n_bytes
        tail = bytes(self.buf[end:self.shift + self.n_bytes + 64])
        assert tail == self.MARGIN[:len(tail)], "a kernel wrote behind its array"
        return bytes(self.buf[self.shift:end])

    def floats(self):
        return array("f", bytes(self))


KERNELS = {}


def kernel_of(emit, *parameters):
    key = emit, parameters
    if key not in KERNELS:
        KERNELS[key] = kshipra.build(emit, *parameters)
    return KERNELS[key]


def interpreted(kernel, args, chunk, scratch):
    kshipra.interpret(kernel, args, chunk, scratch)


ISAS = kshipra.host_instruction_sets()[0]
FUNCTIONS = {}


def native(kernel, args, chunk, scratch):
    if kernel not in FUNCTIONS:
        code, reason = kshipra.compile_kernels([kernel], ISAS[0])
        assert code, reason
        FUNCTIONS[kernel] = code.function(0)
    FUNCTIONS[kernel](args, chunk, scratch)


WAYS = [interpreted, native] if ISAS else [interpreted]
SCRATCH = Memory(bytes(1 << 19))


def call(run, kernel, n_chunks, **values):
    """Run all chunks, last one first: their order must not matter."""
    held = {name: v.address if isinstance(v, Memory) else v for name, v in values.items()}
    args = kernel.args_array(**held)
    for chunk in reversed(range(n_chunks)):
        run(kernel, args.buffer_info()[0], chunk, SCRATCH.address)


def floats_of(rng, n, scale=1.0):
    """Floats of many sizes, some of them zero, small or large."""
    odd = (0.0, -0.0, 1e-30, -3e4, 88.5, -100.0, 1e-40)
    return array("f", [rng.choice(odd) if rng.random() < 0.05 else rng.gauss(0, scale)
                       for _ in range(n)])


def rows_of(flat, n):
    return [flat[i:i + n] for i in range(0, len(flat), n)]


def flat_of(rows):
    return array("f", b"".join([row.tobytes() for row in rows]))


def same(x, y):
    """Equal as numbers; NaN equals NaN."""
    return len(x) == len(y) and all(a == b or (a != a and b != b) for a, b in zip(x, y))


ways = pytest.mark.parametrize("run", WAYS, ids=lambda run: run.__name__)
RANDOMS = st.integers(0, 2**32).map(random.Random)
few = tiny.examples(8)
LENGTHS = st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 100]))
