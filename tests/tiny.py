"""Random models of a few kilobytes, in any architecture and number format that has an encoder.

The tensors' names are written out here, not taken from kshipra's tables.
"""
import math
import os
import random
from array import array

import kshipra

# GPT-2's letters for the bytes 0..255.
PLAIN = [*range(33, 127), *range(161, 173), *range(174, 256)]
EXTRA = iter(range(256, 512))
LETTERS = [chr(b) if b in PLAIN else chr(next(EXTRA)) for b in range(256)]
BOS, EOS, EOT = 256, 257, 258
N_TOKENS = 259
REFUSAL = kshipra.choose_isa(os.environ)[1]     # why there is no machine code here, or None
MIXTURES = ("mixtral", "qwen3moe", "qwen2moe", "gpt-oss")      # a GGUF calls the first llama
BIASED = {      # the tensors of a layer that have a bias; the others have none
    "gpt2": "attn_qkv attn_norm attn_output ffn_norm ffn_up ffn_down",
    "gptneox": "attn_qkv attn_norm attn_output ffn_norm ffn_up ffn_down",
    "phi2": "attn_qkv attn_norm attn_output ffn_up ffn_down",
    "falcon": "attn_norm",
    "starcoder2": "attn_q attn_k attn_v attn_norm attn_output ffn_norm ffn_up ffn_down",
    "stablelm": "attn_norm ffn_norm",
    "qwen2": "attn_q attn_k attn_v",
    "qwen2moe": "attn_q attn_k attn_v",
    "gpt-oss": "attn_q attn_k attn_v attn_output ffn_gate_inp ffn_gate_exps ffn_up_exps "
               "ffn_down_exps",
}
LAYER_NORMS = ("gpt2", "gptneox", "phi2", "falcon", "starcoder2", "stablelm")
NO_GATE = ("gpt2", "gptneox", "phi2", "falcon", "starcoder2")
FUSED = ("gpt2", "gptneox", "phi2", "falcon", "phi3")


def tokenizer_metadata(add_bos=True):
    """A byte-level vocabulary: the 256 bytes, then <s>, </s> and <|eot_id|>."""
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": LETTERS + ["<s>", "</s>", "<|eot_id|>"],
        "tokenizer.ggml.token_type": [1] * 256 + [3] * 3,
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": BOS, "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.add_bos_token": add_bos,
    }


def shapes(arch, hidden, n_layers, n_heads, n_kv_heads, head_dim, ffn, n_vocab, n_ctx, tied,
           n_experts):
    """Return {tensor name: shape} of a GGUF."""
    q, kv = n_heads * head_dim, n_kv_heads * head_dim
    out = {"token_embd.weight": (n_vocab, hidden), "output_norm.weight": (hidden,)}
    if not tied:
        out["output.weight"] = (n_vocab, hidden)
    if arch in LAYER_NORMS:
        out["output_norm.bias"] = (hidden,)
    if arch == "gpt2":
        out["position_embd.weight"] = (n_ctx, hidden)
    if arch == "phi2":
        out["output.bias"] = (n_vocab,)
    for i in range(n_layers):
        layer = layer_shapes(arch, hidden, n_heads, q, kv, head_dim, ffn, n_experts)
        layer = {f"{name}.weight": shape for name, shape in layer.items()}
        for name in BIASED.get(arch, "").split():
            shape = layer[f"{name}.weight"]
            layer[f"{name}.bias"] = shape[:-1] if len(shape) > 1 else shape
        out.update({f"blk.{i}.{name}": shape for name, shape in layer.items()})
    return out


def layer_shapes(arch, hidden, n_heads, q, kv, head_dim, ffn, n_experts):
    """Return {name: shape} of the weights of a layer, without their last word."""
    layer = {"attn_norm": (hidden,), "attn_output": (hidden, q), "ffn_norm": (hidden,),
             "ffn_up": (ffn, hidden), "ffn_down": (hidden, ffn)}
    layer.update({"attn_qkv": (q + 2 * kv, hidden)} if arch in FUSED else {
        "attn_q": (q, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden)})
    if arch == "phi3":
        layer["ffn_up"] = (2 * ffn, hidden)
    elif arch not in NO_GATE:
        layer["ffn_gate"] = (ffn, hidden)
    if arch in MIXTURES:
        for name in ("gate", "up", "down"):
            layer[f"ffn_{name}_exps"] = (n_experts, *layer.pop(f"ffn_{name}"))
        layer["ffn_gate_inp"] = (n_experts, hidden)
    if arch == "qwen2moe":
        layer.update({"ffn_gate_inp_shexp": (hidden,), "ffn_gate_shexp": (ffn, hidden),
                      "ffn_up_shexp": (ffn, hidden), "ffn_down_shexp": (hidden, ffn)})
    if arch in ("qwen3", "gemma3", "qwen3moe"):
        layer.update({"attn_q_norm": (head_dim,), "attn_k_norm": (head_dim,)})
    if arch in ("gemma2", "gemma3"):
        layer.update({"post_attention_norm": (hidden,), "post_ffw_norm": (hidden,)})
    if arch == "olmo2":
        del layer["attn_norm"], layer["ffn_norm"]
        layer.update({"attn_q_norm": (q,), "attn_k_norm": (kv,), "post_attention_norm": (hidden,),
                      "post_ffw_norm": (hidden,)})
    if arch in ("falcon", "phi2"):
        del layer["ffn_norm"]
    if arch == "gpt-oss":
        layer.update({"attn_sinks": (n_heads,), "post_attention_norm": layer.pop("ffn_norm")})
    return layer


def tensors(arch="llama", seed=1, format="F32", hidden=32, n_layers=2, n_heads=4, n_kv_heads=2,
            head_dim=8, ffn=64, n_vocab=N_TOKENS, n_ctx=256, tied=False, scale=1.0, n_experts=4):
    """Return {name: Tensor}: matrices in `format`, vectors and routers in F32."""
    if arch == "gpt2":
        n_kv_heads, head_dim = n_heads, hidden // n_heads
    rng, out = random.Random(seed), {}
    for name, shape in shapes(arch, hidden, n_layers, n_heads, n_kv_heads, head_dim, ffn,
                              n_vocab, n_ctx, tied, n_experts).items():
        n = math.prod(shape)
        if len(shape) == 1:
            values, kind = [rng.uniform(0.5, 1.5) for _ in range(n)], "F32"
        else:
            spread = scale * 2 / shape[-1] ** 0.5
            values = [rng.gauss(0, spread) for _ in range(n)]
            kind = "F32" if "ffn_gate_inp" in name or name.endswith("bias") else format
        kind = kshipra.FORMATS[kind]
        out[name] = kshipra.Tensor(name, kind, shape, kind.encode(array("f", values)))
    return out


def metadata(arch="llama", hidden=32, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, ffn=64,
             n_ctx=256, window=0, add_bos=True, n_experts=4, n_used=2, **more):
    """Return the metadata of a GGUF; more: keys of the architecture, with __ for a dot."""
    if arch == "gpt2":
        n_kv_heads, head_dim = n_heads, hidden // n_heads
    own = {"block_count": n_layers, "embedding_length": hidden, "feed_forward_length": ffn,
           "attention.head_count": n_heads, "attention.head_count_kv": n_kv_heads,
           "attention.key_length": head_dim, "attention.value_length": head_dim,
           "context_length": n_ctx, "attention.layer_norm_rms_epsilon": 1e-5,
           "attention.layer_norm_epsilon": 1e-5, "rope.freq_base": 10000.0}
    if window:
        own["attention.sliding_window"] = window
    if arch == "gemma2":
        own.update({"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0})
    if arch in MIXTURES:
        own.update({"expert_count": n_experts, "expert_used_count": n_used})
    if arch == "qwen3moe":
        own.update({"feed_forward_length": 3 * ffn, "expert_feed_forward_length": ffn})
    if arch in ("qwen2moe", "gpt-oss"):
        own["expert_feed_forward_length"] = ffn
    if arch == "qwen2moe":
        own["expert_shared_feed_forward_length"] = ffn
    if arch in ("gptneox", "phi2", "stablelm"):
        own["rope.dimension_count"] = head_dim // 4 * 2
    if arch in ("gptneox", "stablelm"):
        own["use_parallel_residual"] = arch == "gptneox"
    if arch == "granite":
        own.update({"attention.scale": 0.3, "embedding_scale": 3.0, "residual_scale": 0.7,
                    "logit_scale": 2.0})
    own.update({key.replace("__", "."): value for key, value in more.items()})
    arch = "llama" if arch == "mixtral" else arch
    return {"general.architecture": arch, **{f"{arch}.{key}": v for key, v in own.items()},
            **tokenizer_metadata(add_bos)}


SHAPE = ("hidden", "n_layers", "n_heads", "n_kv_heads", "head_dim", "ffn", "n_ctx", "n_experts")


def write(path, arch="llama", change=None, **options):
    """Write a random model and return its path as a str.

    options: those of `tensors` and of `metadata`; change(metadata, tensors) edits both
    """
    shape = {key: options[key] for key in SHAPE if key in options}
    own = {key: options.pop(key) for key in ("seed", "format", "n_vocab", "tied", "scale")
           if key in options}
    numbers, weights = metadata(arch, **options), tensors(arch, **shape, **own)
    if change:
        change(numbers, weights)
    kshipra.write_gguf(str(path), numbers, list(weights.values()))
    return str(path)


def examples(n, **options):
    """Return hypothesis's settings for n examples of a property, 10 n in a deep run."""
    from hypothesis import settings         # here: arm64_check.py uses this module without it
    return settings(max_examples=10 * n if os.environ.get("KSHIPRA_DEEP") else n, **options)


def ids(n, seed=0, n_vocab=256):
    """Return n random token ids."""
    rng = random.Random(seed)
    return [rng.randrange(n_vocab) for _ in range(n)]
