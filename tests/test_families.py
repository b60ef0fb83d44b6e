"""Chapter 6, the table of families: each row against an independent implementation, each of
its tensors read, both kinds of files alike, and both backends to the bit.

What each fixture is stands in shared/fixtures/README.md; those tests need the directory.
"""
import json
import math
from array import array

import pytest

import kshipra
import tiny
from kshipra import KshipraError
from test_model import cases_of, check_against_oracle, gguf_hparams, hparams, largest_difference

GGUF_AND_HF = ("model.gguf", "hf")
FILES = {
    "llama-gqa-rope3": ("model.gguf", "model-f16.gguf", "model-bf16.gguf", "hf"),
    "llama-mha": ("model.gguf", "hf", "hf-sharded"), "llama-tied": GGUF_AND_HF,
    "llama-yarn": GGUF_AND_HF, "mistral-swa": GGUF_AND_HF,
    "gpt2": ("model.gguf", "hf", "hf-sharded"),
    "qwen2": GGUF_AND_HF, "qwen3": GGUF_AND_HF, "qwen3moe": GGUF_AND_HF, "mixtral": GGUF_AND_HF,
    "gemma": GGUF_AND_HF, "gemma2": GGUF_AND_HF, "gemma2-qpas": ("hf",), "gemma3": GGUF_AND_HF,
    "phi3": GGUF_AND_HF, "phi3-longrope": GGUF_AND_HF, "gpt-neox": GGUF_AND_HF,
    "falcon": GGUF_AND_HF, "starcoder2": GGUF_AND_HF, "olmo2": GGUF_AND_HF,
    "granite": GGUF_AND_HF, "smollm3": GGUF_AND_HF, "gpt-oss": GGUF_AND_HF,
    "gpt-oss-notruncate": ("hf",),
}
ALL_FILES = [(name, file) for name, files in FILES.items() for file in files]
# rope turns pairs in the GGUF files of these, halves in safetensors: sums of other orders
INTERLEAVED = ("llama", "mistral", "mixtral", "granite", "smollm3")
ROUNDED = ("phi3-longrope", "llama-yarn")       # a magnitude is a float32 in the GGUF


@pytest.mark.deep(device="python")
@pytest.mark.parametrize("name, file", ALL_FILES)
def test_against_transformers(shared, name, file, device):
    """Logits of every position within 1e-4 of the largest, greedy tokens equal."""
    names = ("text", "short", "middle", "long") if device == "native" else ("text", "short")
    if name == "phi3-longrope":
        names = [n for n in names if n != "long"]       # a context of its own, below
    elif file not in GGUF_AND_HF:
        names = ("short",)
    check_against_oracle(shared / "fixtures" / "models" / name, file, device, names)


@pytest.mark.parametrize("file", GGUF_AND_HF)
def test_a_context_beyond_the_first_of_phi3_has_factors_of_its_own(shared, file):
    directory = shared / "fixtures" / "models" / "phi3-longrope"
    model = kshipra.load(directory / file, kv_type="f32", ctx_size=1024)
    assert kshipra.load(directory / file).ctx_size == 256
    case, wanted = next((c, rows) for c, rows in cases_of(directory, file) if c["name"] == "long")
    rows = model.logits(case["ids"])[case["logits_first_position"]:]
    assert largest_difference(rows, wanted) < 1e-4
    assert list(model.generate_ids(case["ids"], max_tokens=24, temperature=0,
                                   ignore_eos=True)) == case["greedy"]


@pytest.mark.parametrize("name", [name for name, files in FILES.items() if len(files) > 1])
def test_both_kinds_of_files_are_one_model(shared, name):
    """P04: the same bits, or where pairs lie otherwise, the same but for the order of sums."""
    directory = shared / "fixtures" / "models" / name
    tokens = tiny.ids(40, n_vocab=400)
    rows = [kshipra.load(directory / file, kv_type="f32").logits(tokens) for file in GGUF_AND_HF]
    if name == "mistral-swa":           # its GGUF does not tell of the window
        rows = [some[:8] for some in rows]
    if name.startswith(INTERLEAVED + ROUNDED):
        assert largest_difference(*rows) < 1e-5
    else:
        assert rows[0] == rows[1]


def test_mxfp4_is_one_model_in_both_kinds_of_files(shared):
    """Activations are int8 then: within 5 %; llama.cpp is off by 0.3 of about 7."""
    directory = shared / "fixtures" / "models" / "gpt-oss"
    case, wanted = next(cases_of(directory, "hf"))
    one, two = (kshipra.load(directory / file, kv_type="f32").logits(case["ids"])
                for file in ("hf-mxfp4", "model-mxfp4.gguf"))
    assert one == two and largest_difference(one, wanted) < 0.05


@pytest.mark.deep
@pytest.mark.parametrize("name, file", [*ALL_FILES, ("gpt-oss", "hf-mxfp4"),
                                        ("gpt-oss", "model-mxfp4.gguf")])
def test_every_fixture_has_the_same_bits_on_both_backends(shared, name, file):
    path, tokens = shared / "fixtures" / "models" / name / file, tiny.ids(40, n_vocab=400)
    one, two = (kshipra.load(path, device=device).logits(tokens) for device in
                ("python", "native"))
    assert one == two


# Small models of every family.

FAMILIES = ["llama", "gpt2", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "mixtral", "qwen3moe",
            "phi2", "phi3", "gptneox", "falcon", "starcoder2", "stablelm", "olmo2", "granite",
            "smollm3", "qwen2moe", "gpt-oss"]
TIED = ("gpt2", "gemma", "gemma2", "gemma3", "falcon", "starcoder2", "smollm3")
WINDOWS = {"gemma2": 3, "gemma3": 3, "gpt-oss": 3}


def numbers_and_weights(arch, n_used=2, **more):
    sizes = {"n_layers": 2, "hidden": 16, "n_heads": 2, "n_kv_heads": 1, "ffn": 24, **more}
    return (tiny.metadata(arch, window=WINDOWS.get(arch, 0), n_used=n_used, **sizes),
            tiny.tensors(arch, tied=arch in TIED, **sizes))


def load_tiny(tmp_path, numbers, weights, device):
    path = str(tmp_path / "tiny.gguf")
    kshipra.write_gguf(path, numbers, list(weights.values()))
    return kshipra.load(path, device=device)


def test_every_family_but_one_name_for_llama_is_here():
    assert set(FAMILIES) == set(kshipra.ARCHITECTURES) - {"mistral"}


@pytest.mark.parametrize("arch", FAMILIES)
def test_dropping_a_tensor_is_refused_by_its_name(tmp_path, arch):
    """P03."""
    numbers, weights = numbers_and_weights(arch)
    for name in weights:
        kept = {n: t for n, t in weights.items() if n != name}
        if name == "output.weight" and arch not in ("phi2", "gptneox"):     # then it is tied
            load_tiny(tmp_path, numbers, kept, "python")
            continue
        with pytest.raises(KshipraError) as caught:
            load_tiny(tmp_path, numbers, kept, "python")
        # A missing optional bias is told by another layer's, which nothing would read.
        assert name in str(caught.value) or name.replace("blk.0", "blk.1") in str(caught.value)


@pytest.mark.parametrize("arch", FAMILIES)
def test_changing_a_tensor_changes_the_logits(tmp_path, arch):
    """P03; and a tensor more, which nobody reads, is refused."""
    numbers, weights = numbers_and_weights(arch, n_used=4)
    tokens, seen = tiny.ids(5), []
    for name in [None, *weights]:
        changed = dict(weights)
        if name is not None:
            t = weights[name]
            values = t.floats()
            values[::2] = array("f", [v * 1.5 for v in values[::2]])    # a norm undoes more
            changed[name] = kshipra.Tensor(name, t.format, t.shape, t.format.encode(values))
        model = load_tiny(tmp_path, numbers, changed, "python")
        seen.append(model.logits(tokens)[-1].tobytes())
    assert seen[0] not in seen[1:]
    extra = kshipra.Tensor("blk.1.novelty.weight", kshipra.FORMATS["F32"], (4,), bytes(16))
    with pytest.raises(KshipraError, match="1 tensors would be ignored.*blk.1.novelty.weight"):
        load_tiny(tmp_path, numbers, {**weights, extra.name: extra}, "python")


@pytest.mark.parametrize("arch", FAMILIES)
@pytest.mark.parametrize("format", ["F32", "Q8_0"])
def test_both_backends_give_the_same_bits(tmp_path, arch, format):
    numbers, weights = numbers_and_weights(arch, hidden=32, ffn=64, head_dim=16)
    if format != "F32":
        weights = tiny.tensors(arch, tied=arch in TIED, n_layers=2, hidden=32, n_heads=2,
                               n_kv_heads=1, ffn=64, head_dim=16, format=format)
    tokens = tiny.ids(9)
    one, two = (load_tiny(tmp_path, numbers, weights, device).logits(tokens)
                for device in ("python", "native"))
    assert one == two


@pytest.mark.parametrize("arch", FAMILIES)
def test_residuals_beyond_f16_stay_finite(tmp_path, arch):
    """P09: embeddings of 1e5 and a feed-forward that adds more."""
    numbers, weights = numbers_and_weights(arch)
    for name in ("token_embd.weight", *[n for n in weights if n.startswith("blk.0.ffn_down")
                                        and n.endswith(("down.weight", "exps.weight"))]):
        t = weights[name]
        values = array("f", [v * 1e6 for v in t.floats()])
        weights[name] = kshipra.Tensor(name, t.format, t.shape, t.format.encode(values))
    for row in load_tiny(tmp_path, numbers, weights, "native").logits(tiny.ids(6)):
        assert all(map(math.isfinite, row))


# P21: what a layer has of its own.

def test_layers_know_their_windows_and_whether_they_turn():
    hp = gguf_hparams("gpt-oss", n_layers=4, window=3)
    assert [hp.layer_window(i) for i in range(4)] == [3, 0, 3, 0]
    hp = gguf_hparams("smollm3", n_layers=8)
    assert [hp.layer_has_rope(i) for i in range(8)] == [True, True, True, False] * 2
    smollm3 = dict(model_type="smollm3", num_hidden_layers=3)
    for more, wanted in (({"no_rope_layers": [0, 1, 0]}, [False, True, False]),
                         ({"no_rope_layer_interval": 2}, [True, False, True]),
                         ({}, [True, True, True])):
        hp = hparams(**smollm3, **more)
        assert [hp.layer_has_rope(i) for i in range(3)] == wanted
    hp = hparams(model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2)
    table = kshipra.rope_table(hp)
    assert hp.window == 128 and table.magnitude == pytest.approx(0.1 * math.log(32) + 1)


@pytest.mark.parametrize("config, n_rot", [
    ({"model_type": "gpt_neox", "layer_norm_eps": 1e-5}, 4),
    ({"model_type": "gpt_neox", "layer_norm_eps": 1e-5, "rotary_pct": 0.5}, 8),
    ({"model_type": "gpt_neox", "layer_norm_eps": 1e-5,
      "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, 8),
    ({"model_type": "phi", "layer_norm_eps": 1e-5}, 8),
    ({"model_type": "stablelm", "layer_norm_eps": 1e-5}, 4),
    ({"model_type": "phi3", "partial_rotary_factor": 0.75}, 12), ({"model_type": "phi3"}, 16)])
def test_a_part_of_a_head_turns(config, n_rot):
    assert hparams(**config).n_rot == n_rot


def test_only_some_scale_and_only_gpt_oss_has_its_limits():
    hp = hparams(model_type="granite", logits_scaling=4.0, residual_multiplier=0.5)
    assert (hp.logit_scale, hp.residual_scale, hp.attn_scale) == (0.25, 0.5, 1.0)
    gpt_oss = dict(model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2)
    with pytest.raises(KshipraError, match="swiglu_limit is 5.0"):
        hparams(**gpt_oss, swiglu_limit=5.0)
    for config, words in (({"parallel_attn": False}, "parallel_attn is False"),
                          ({"alibi": True}, "alibi is True")):
        with pytest.raises(KshipraError, match=words):
            hparams(model_type="falcon", layer_norm_epsilon=1e-5, **config)


# Fused tensors.

@pytest.mark.parametrize("multi_query, new, n_kv_heads", [
    (True, False, 1), (False, False, 4), (True, True, 2), (False, True, 2)])
def test_falcon_s_heads_lie_by_the_head_of_keys_that_they_share(tmp_path, multi_query, new,
                                                                n_kv_heads):
    """Rows of queries, of a key and of a value for every head of keys; a GGUF has them sorted."""
    sizes = dict(n_layers=1, hidden=32, n_heads=4, n_kv_heads=n_kv_heads, head_dim=8, ffn=128)
    numbers, weights = tiny.metadata("falcon", **sizes), tiny.tensors("falcon", tied=True, **sizes)
    path = tmp_path / "hf"
    path.mkdir()
    names = {"token_embd": "word_embeddings", "output_norm": "ln_f",
             "attn_norm": "h.0.input_layernorm", "attn_output": "h.0.self_attention.dense",
             "attn_qkv": "h.0.self_attention.query_key_value", "ffn_up": "h.0.mlp.dense_h_to_4h",
             "ffn_down": "h.0.mlp.dense_4h_to_h"}
    out = []
    for name, t in weights.items():
        kind, values = name.split(".")[-2:], t.floats()
        if kind[0] == "attn_qkv":
            group, order = 4 // n_kv_heads, []
            for head in range(n_kv_heads):
                order += [*range(8 * group * head, 8 * group * (head + 1)),
                          *range(32 + 8 * head, 40 + 8 * head),
                          *range(32 + 8 * (n_kv_heads + head), 40 + 8 * (n_kv_heads + head))]
            values = array("f", [v for row in order for v in values[32 * row:32 * row + 32]])
        out.append(kshipra.Tensor(f"transformer.{names[kind[0]]}.{kind[1]}", t.format, t.shape,
                                  t.format.encode(values)))
    kshipra.write_safetensors(str(path / "model.safetensors"), {}, out)
    (path / "config.json").write_text(json.dumps({
        "model_type": "falcon", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 259,
        "num_attention_heads": 4, "num_kv_heads": n_kv_heads, "multi_query": multi_query,
        "new_decoder_architecture": new, "layer_norm_epsilon": 1e-5,
        "max_position_embeddings": 256}))
    engine = kshipra.Engine(kshipra.HFDirectory(str(path)), kshipra.Reference())
    seq, tokens = kshipra.Sequence(engine.cache), tiny.ids(6)
    rows = engine.step([(t, i, seq) for i, t in enumerate(tokens)])
    assert rows == load_tiny(tmp_path, numbers, weights, "python").logits(tokens)


@pytest.mark.parametrize("files", ["fused", "apart"])
def test_a_fused_tensor_may_come_in_its_parts(tmp_path, files):
    """Phi 2's GGUF files: the first are fused, the later not."""
    numbers, weights = numbers_and_weights("phi2")
    whole = load_tiny(tmp_path, numbers, weights, "python").logits(tiny.ids(5))
    if files == "apart":
        for i in range(2):
            for kind in ("weight", "bias"):
                t = weights.pop(f"blk.{i}.attn_qkv.{kind}")
                for name, a, b in (("q", 0, 16), ("k", 16, 24), ("v", 24, 32)):
                    name = f"blk.{i}.attn_{name}.{kind}"
                    weights[name] = kshipra.Tensor(name, t.format, t[a:b].shape,
                                                   bytes(t[a:b].data))
    assert load_tiny(tmp_path, numbers, weights, "python").logits(tiny.ids(5)) == whole


def test_a_stablelm_is_parallel_where_it_has_one_norm(tmp_path):
    """Converters write use_parallel_residual = true of models that are not."""
    def load(change):
        numbers, weights = numbers_and_weights("stablelm")
        change(numbers, weights)
        return load_tiny(tmp_path, numbers, weights, "python")

    def says_parallel(numbers, weights):
        numbers["stablelm.use_parallel_residual"] = True

    def one_norm(numbers, weights):
        for name in [name for name in weights if "ffn_norm" in name]:
            del weights[name]

    tokens = tiny.ids(5)
    plain = load(lambda *_: None)
    assert load(says_parallel).logits(tokens) == plain.logits(tokens)
    one = load(one_norm)
    assert one.hparams.parallel and one.logits(tokens) != plain.logits(tokens)


# Families without a fixture: their safetensors hold what their GGUF files hold.

LLAMA_TWIN = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
TWINS = {   # how the tensors are called, and what config.json says beside the usual
    "phi2": ({**LLAMA_TWIN, "output_norm": "model.final_layernorm",
              "attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
             {"model_type": "phi", "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5,
              "hidden_act": "gelu_new"}),
    "stablelm": (LLAMA_TWIN, {"model_type": "stablelm", "layer_norm_eps": 1e-5,
                              "partial_rotary_factor": 0.5}),
    "qwen2moe": ({**LLAMA_TWIN, "ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.experts.{}."
                  "gate_proj", "ffn_up_exps": "mlp.experts.{}.up_proj",
                  "ffn_down_exps": "mlp.experts.{}.down_proj",
                  "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
                  "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
                  "ffn_up_shexp": "mlp.shared_expert.up_proj",
                  "ffn_down_shexp": "mlp.shared_expert.down_proj"},
                 {"model_type": "qwen2_moe", "moe_intermediate_size": 24, "num_experts": 4,
                  "shared_expert_intermediate_size": 24, "num_experts_per_tok": 2}),
}


@pytest.mark.parametrize("arch", TWINS)
def test_safetensors_of_families_without_a_fixture(tmp_path, monkeypatch, arch, device):
    """Converted, they are that GGUF again."""
    names, config = TWINS[arch]
    numbers, weights = numbers_and_weights(arch, head_dim=8)
    out = []
    for name, t in weights.items():
        block, kind = name.split(".")[:-2], name.split(".")[-1]
        parts = {name.split(".")[-2]: t}
        if "attn_qkv" in parts:
            parts = {"attn_q": t[:16], "attn_k": t[16:24], "attn_v": t[24:]}
        elif len(t.shape) == 3:
            parts = {f"{name.split('.')[-2]} {i}": t[i] for i in range(t.shape[0])}
        for part, piece in parts.items():
            part, _, expert = part.partition(" ")
            new = (f"model.layers.{block[1]}." if block else "") + names[part].format(expert)
            shape = (1, *piece.shape) if part == "ffn_gate_inp_shexp" else piece.shape
            out.append(kshipra.Tensor(f"{new}.{kind}", t.format, shape, bytes(piece.data)))
    path = tmp_path / "hf"
    path.mkdir()
    kshipra.write_safetensors(str(path / "model.safetensors"), {}, out)
    (path / "config.json").write_text(json.dumps({
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 8,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5, **config}))
    ops = kshipra.choose_backend(device, 1, 0)
    engine = kshipra.Engine(kshipra.HFDirectory(str(path)), ops)
    seq, tokens = kshipra.Sequence(engine.cache), tiny.ids(6)
    rows = engine.step([(t, i, seq) for i, t in enumerate(tokens)])
    assert rows == load_tiny(tmp_path, numbers, weights, device).logits(tokens)
    for name in ("tokenizer_of", "_gguf_tokenizer"):            # it has none
        monkeypatch.setattr(kshipra, name, lambda *_: {})
    kshipra.convert(path, tmp_path / "out.gguf", "F32")
    found = kshipra.Engine(kshipra.GGUF(tmp_path / "out.gguf"), ops)
    seq = kshipra.Sequence(found.cache)
    assert found.step([(t, i, seq) for i, t in enumerate(tokens)]) == rows
