#!/usr/bin/env python3
"""bench: every measurement of kshipra, one command.

    python bench.py                             the demo model, under two minutes
    python bench.py --model model.gguf          your model
    python bench.py --shape tinyllama-1.1b:q4_k_m     no weights at hand: random ones

Read it, top to bottom:

    1. Shapes
"""
import array
import itertools
import math
import os
import random
import struct
from typing import NamedTuple

import kshipra
from kshipra import FORMATS, KshipraError

# ---------------------------------------------------------------------------------------
# 1. Shapes
#
# Speed depends on a model's shape and formats, hardly on its weights.  So a machine without
# weights can still be measured: a file of the right shape is filled with random blocks, in
# seconds.  Any bytes are valid codes; only a block's f16 scale and minimum are chosen, so
# that weights have mean 0 and variance 1 / n_in and logits stay finite.  The mix of formats
# is llama.cpp's.  Source: llama.cpp, src/llama-quant.cpp, llama_tensor_get_type.


class Shape(NamedTuple):
    """The counts of a model, in the words of the glossary; tied: lm_head is the embedding."""
    arch: str
    n_layers: int
    hidden: int
    ffn: int
    n_heads: int
    n_kv_heads: int
    n_vocab: int
    n_ctx: int
    tied: bool = True
    head_dim: int = 0                   # 0: hidden / n_heads
    rope_base: float = 10000.0
    window: int = 0


SHAPES = {
    "tinyllama-1.1b": Shape("llama", 22, 2048, 5632, 32, 4, 32000, 2048, tied=False),
    "gpt2-124m":      Shape("gpt2", 12, 768, 3072, 12, 12, 50257, 1024),
    "smollm2-135m":   Shape("llama", 30, 576, 1536, 9, 3, 49152, 8192, rope_base=100000.0),
    "gemma3-270m":    Shape("gemma3", 18, 640, 2048, 4, 1, 262144, 32768, head_dim=256,
                            rope_base=1000000.0, window=512),
    "llama":          Shape("llama", 3, 96, 256, 6, 6, 512, 1024),      # a base for --hidden-dim etc.
}

NARROWER = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}    # where n_in is no multiple of 256


def use_more_bits(i, n):
    """Whether layer i of n is one of those that Q4_K_M keeps in Q6_K: the ends, and every third."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def shape_format(kind, slot, layer, n_layers, n_in):
    """Return the Format of one matrix.   kind: a name of FORMATS, or "Q4_K_M"; any case"""
    kind = kind.upper()
    name = "Q4_K" if kind == "Q4_K_M" else kind
    if name not in FORMATS:
        raise KshipraError(f"{kind!r} is no type of weights; use Q4_K_M or one of "
                           + " ".join(FORMATS))
    if slot == "lm_head" and name not in ("F32", "F16", "BF16", "Q8_0"):
        name = "Q6_K"
    elif kind == "Q4_K_M" and slot in ("wv", "w_down") and use_more_bits(layer, n_layers):
        name = "Q6_K"
    elif kind == "Q4_K_M" and slot == "wqkv":
        name = "Q5_K"
    if n_in % FORMATS[name].block_len:
        name = NARROWER.get(name, "Q8_0")
    if n_in % FORMATS[name].block_len:
        name = "F16"
    return FORMATS[name]


def blocks_with(format, data, d, m):
    """Return blocks whose f16 scale is d and minimum m, all else as in `data`."""
    data = bytearray(data)
    for at, value in ((format.d_off, d), (format.m_off, m)):
        if at is not None:
            low, high = struct.pack("<e", value)
            n_blocks = len(data) // format.block_bytes
            data[at::format.block_bytes] = bytes([low]) * n_blocks
            data[at + 1::format.block_bytes] = bytes([high]) * n_blocks
    return bytes(data)


def block_scales(format, deviation):
    """Return (d, m) for which random blocks have mean 0 and the given standard deviation."""
    sample = random.Random(0).randbytes(256 * format.block_bytes)
    codes, scales, mins = format.unpack(blocks_with(format, sample, 1.0, 1.0))
    weights = [c * scales[i // format.sub_len] for i, c in enumerate(codes)]
    m = 0.0
    if mins:
        m = -math.fsum(weights) / len(weights) / (math.fsum(mins) / len(mins))
        weights = [w + m * mins[i // format.sub_len] for i, w in enumerate(weights)]
    d = deviation / math.sqrt(math.fsum(w * w for w in weights) / len(weights))
    return d, m * d


PIECE_BLOCKS = 1 << 14


def random_pieces(format, shape, seed, deviation=None):
    """Yield the bytes of a random matrix, some megabytes at a time.

    deviation: of the weights; None: 1 / sqrt(n_in), so that a matrix keeps a vector's length
    """
    rng = random.Random(seed)
    deviation = deviation or 1 / math.sqrt(shape[-1])
    source = format if format.sub_len else FORMATS["Q8_0"]      # floats: those of Q8_0 blocks
    d, m = block_scales(source, deviation)
    left = math.prod(shape) // source.block_len
    while left:
        n = min(left, PIECE_BLOCKS)
        data = blocks_with(source, rng.randbytes(n * source.block_bytes), d, m)
        yield data if format.sub_len else format.encode(source.decode(data))
        left -= n


def constant_pieces(shape, value):
    return [array.array("f", [value]) * math.prod(shape)]


def shape_tensors(shape, kind):
    """Yield (name, format, shape, pieces) for every tensor that kshipra's tables ask for."""
    hp, arch = shape, kshipra.ARCHITECTURES[shape.arch]
    head_dim = hp.head_dim or hp.hidden // hp.n_heads
    q_dim, kv_dim = hp.n_heads * head_dim, hp.n_kv_heads * head_dim
    sizes = {
        "wqkv": (q_dim + 2 * kv_dim, hp.hidden), "wq": (q_dim, hp.hidden),
        "wk": (kv_dim, hp.hidden), "wv": (kv_dim, hp.hidden), "wo": (hp.hidden, q_dim),
        "w_gate": (hp.ffn, hp.hidden), "w_up": (hp.ffn, hp.hidden), "w_down": (hp.hidden, hp.ffn),
        "q_norm": (head_dim,), "k_norm": (head_dim,),
    }
    f32, seeds = FORMATS["F32"], itertools.count()

    def matrix(slot, layer, size, **how):
        name = kshipra.SLOTS[slot][0].format(layer) + ".weight"
        format = shape_format(kind, "lm_head" if slot == "embed" and hp.tied else slot,
                              layer, hp.n_layers, size[-1])
        return name, format, size, random_pieces(format, size, next(seeds), **how)

    # Embeddings multiply sqrt(hidden) in gemma, so theirs are small enough to come out as 1.
    yield matrix("embed", None, (hp.n_vocab, hp.hidden))
    if arch.rope is None:
        yield ("position_embd.weight", f32, (hp.n_ctx, hp.hidden),
               random_pieces(f32, (hp.n_ctx, hp.hidden), next(seeds)))
    for layer in range(hp.n_layers):
        for word in arch.slots.split():
            slot, bias = word.rstrip("+?b") if word.endswith(("+b", "?b")) else word, "+b" in word
            size = sizes.get(slot, (hp.hidden,))
            name = kshipra.SLOTS[slot][0].format(layer)
            if len(size) == 2:
                yield matrix(slot, layer, size)
            else:
                yield name + ".weight", f32, size, constant_pieces(size, 1.0)
            if bias:
                yield name + ".bias", f32, size[:1], constant_pieces(size[:1], 0.0)
    yield "output_norm.weight", f32, (hp.hidden,), constant_pieces((hp.hidden,), 1.0)
    if arch.norm == "layer":
        yield "output_norm.bias", f32, (hp.hidden,), constant_pieces((hp.hidden,), 0.0)
    if not hp.tied:
        yield matrix("lm_head", None, (hp.n_vocab, hp.hidden))


def shape_vocabulary(n_vocab):
    """Return (tokens, merges) of a byte-level vocabulary: bytes, then pairs, triples ..., an end.

    Every merge joins a token of the level before and a byte, so each token can be reached.
    """
    chars = [kshipra.BYTE_TO_CHAR[b] for b in range(256)]
    if n_vocab <= len(chars):
        raise KshipraError(f"a vocabulary of {n_vocab} has no room for 256 bytes and an end "
                           "token; use --vocab-size 257 or more")
    def joined():
        level = chars
        while True:
            pairs = [(left, char) for left in level for char in chars]
            yield from pairs
            level = [left + char for left, char in pairs]

    pairs = list(itertools.islice(joined(), n_vocab - len(chars) - 1))
    tokens = chars + [left + right for left, right in pairs] + ["<|endoftext|>"]
    return tokens, [f"{left} {right}" for left, right in pairs]


def shape_metadata(name, shape):
    """Return the GGUF metadata of a shape, tokenizer included."""
    hp, head_dim = shape, shape.head_dim or shape.hidden // shape.n_heads
    norm = kshipra.ARCHITECTURES[hp.arch].norm
    eps = "attention.layer_norm_epsilon" if norm == "layer" else "attention.layer_norm_rms_epsilon"
    numbers = {
        "block_count": hp.n_layers, "context_length": hp.n_ctx, "embedding_length": hp.hidden,
        "feed_forward_length": hp.ffn, "attention.head_count": hp.n_heads,
        "attention.head_count_kv": hp.n_kv_heads, eps: 1e-5, "vocab_size": hp.n_vocab,
    }
    if hp.head_dim:
        numbers.update({"attention.key_length": head_dim, "attention.value_length": head_dim})
    if kshipra.ARCHITECTURES[hp.arch].rope:
        numbers.update({"rope.freq_base": hp.rope_base, "rope.dimension_count": head_dim})
    if hp.window:
        numbers["attention.sliding_window"] = hp.window
    tokens, merges = shape_vocabulary(hp.n_vocab)
    end = hp.n_vocab - 1
    return {
        "general.architecture": hp.arch, "general.name": f"random weights, shape {name}",
        **{f"{hp.arch}.{key}": value for key, value in numbers.items()},
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges or ["a b"],
        "tokenizer.ggml.token_type": array.array("i", [1] * end + [3]),
        "tokenizer.ggml.bos_token_id": end, "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
    }


def write_shape(path, name, kind, shape):
    """Write a GGUF of random weights.   kind: type of weights, see shape_format"""
    kshipra.write_gguf(path, shape_metadata(name, shape), shape_tensors(shape, kind))
