"""Every kernel there is, over all formats, kinds of cache, widths and clocks."""
import inspect

import kshipra

PACKED = [f for f in kshipra.FORMATS.values() if f.sub_len]
HEAD_DIMS = 4, 32, 37, 40, 64, 80, 128, 256
PLAIN = [f for f in kshipra.FORMATS.values() if not f.sub_len]


def _widths(format):
    """Rows of one block and of several, and so wide that memory is fetched ahead another way."""
    if not format.sub_len:
        return 32, 37
    wide = 256
    while 8 * format.n_bytes(wide) <= kshipra.NEAR_BYTES:
        wide += 256
    return format.block_len, 512, wide


def _caches():
    """Every kind of cache with every width of a head that it can have."""
    return [(name, n) for name, kind in kshipra.KV_TYPES.items() for n in HEAD_DIMS
            if n % kind.format.block_len == 0]


# For each emit function with parameters: function that returns an iterable of their tuples.
PARAMETERS = {
    "emit_matvec": lambda: [(f, n, lanes, n_rows) for f in PACKED for n in _widths(f)
                            for lanes in (8, 3)
                            for n_rows in range(1, kshipra.matvec_rows(f) + 1)],
    "emit_matmul": lambda: [(f, n, lanes, full_u8) for f in PACKED for n in _widths(f)
                            for lanes in (8, 3) for full_u8 in (False, True)],
    "emit_matmul_float": lambda: [(f, n) for f in PLAIN for n in _widths(f)],
    "emit_embed": lambda: [(f, n) for f in PACKED + PLAIN for n in _widths(f)],
    "emit_pick": lambda: [(f, n) for f in PACKED + PLAIN for n in _widths(f)],
    "emit_encode": lambda: [(f, n * f.block_len, errors)
                            for f in PACKED + PLAIN for n in (1, 8, 9)
                            for errors in ("alike", "weighted")
                            if kshipra.has_encoder(f, n * f.block_len)],
    "emit_rope": lambda: [("half",), ("interleaved",)],
    "emit_kv_store": lambda: _caches(),
    "emit_attention": lambda: [(*cache, cap) for cache in _caches() for cap in (False, True)],
    "emit_attention_merge": lambda: [(head_dim,) for head_dim in HEAD_DIMS],
    "emit_run": lambda: [(), ((1 << 40, None),), ((1 << 40, 1),)],
    "emit_read_only": lambda: [(), (kshipra.READ_AHEAD,)],
}


def every_kernel():
    """Yield (emit, parameters) of each; what emits parts of kernels takes other parameters."""
    for name, emit in vars(kshipra).items():
        if not name.startswith("emit_"):
            continue
        if name in PARAMETERS:
            for parameters in PARAMETERS[name]():
                yield emit, parameters
        elif list(inspect.signature(emit).parameters) == ["k"]:
            yield emit, ()
