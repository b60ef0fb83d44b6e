#!/usr/bin/env python3
"""kshipra: a complete LLM inference engine in one file that needs nothing but Python.

Run it:

    python kshipra.py --prompt "Once upon a time"
    python kshipra.py --model model.gguf --prompt "The capital of France is"

Call it:

    import kshipra
    model = kshipra.load("model.gguf")
    print("".join(model.generate("The capital of France is", max_tokens=16)))

Read it, top to bottom:

    1. Numbers
    2. Files
    3. Text
    4. Reference
    5. Machine code
    6. Cache
    7. Model
    8. Sampling
    9. Decoding
    12. Front doors
    13. The model in the file

Glossary.  n_layers, n_heads, n_kv_heads, n_vocab, n_ctx: counts.  head_dim, hidden, ffn:
the width of a head, of the residual stream, of the inside of the feed-forward network.
R: the rows of a batch; a row is one (token, position, sequence) and its line in every
activation.  S: the positions that a row can see.  token: an id; piece: its bytes; text: a
str.  Weight matrices are (n_out, n_in).  block: a run of quantized weights; page: the unit
of the cache.  `_bytes`, `_bits`, `_s`: units; `_off`: bytes from the start of a file.

MIT License; see the file LICENSE.
"""
import sys


class KshipraError(ValueError):
    """Something a user can meet: what is wrong, where, and what to do.

    path: the file concerned; offset: the byte in it; both are kept as attributes.
    """

    def __init__(self, message, path=None, offset=None):
        where = f"{path}, byte {offset:#x}: " if offset is not None else f"{path}: " if path else ""
        super().__init__(where + message)
        self.path, self.offset = path, offset


# ---------------------------------------------------------------------------------------
# 1. Numbers


# ---------------------------------------------------------------------------------------
# 2. Files


# ---------------------------------------------------------------------------------------
# 3. Text


# ---------------------------------------------------------------------------------------
# 4. Reference


# ---------------------------------------------------------------------------------------
# 5. Machine code


# ---------------------------------------------------------------------------------------
# 6. Cache


# ---------------------------------------------------------------------------------------
# 7. Model


# ---------------------------------------------------------------------------------------
# 8. Sampling


# ---------------------------------------------------------------------------------------
# 9. Decoding


# ---------------------------------------------------------------------------------------
# 12. Front doors


# ---------------------------------------------------------------------------------------
# 13. The model in the file
