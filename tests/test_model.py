"""Chapter 6, Model: near an independent implementation; the same bits by whatever road.

What each fixture is stands in shared/fixtures/README.md.  The tests against it need the
directory; tests/data holds two of its models, so that a clone tests a llama and a GPT-2.
"""
import itertools
import json
import math
import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kshipra
import tiny
from kshipra import Engine, HFDirectory, KshipraError, Reference, Sequence

# Near the truth.

def cases_of(directory, file):
    """Yield (case, logits as rows) for one file of a fixture."""
    for case in json.loads((directory / "cases.json").read_text())["cases"]:
        if file.endswith(".gguf"):
            case = {**case, **case.get("gguf", {})}
        flat = array("f", (directory / case["logits_file"]).read_bytes())
        n = case["logits_shape"][1]
        yield case, [flat[i:i + n] for i in range(0, len(flat), n)]


def largest_difference(rows, wanted):
    """Return the largest |difference|, relative to the largest |logit|; every row counts."""
    assert len(rows) == len(wanted)
    top = max(abs(v) for row in wanted for v in row)
    return max(abs(a - b) for x, y in zip(rows, wanted) for a, b in zip(x, y)) / top


def check_against_oracle(directory, file, device, names=("text", "short", "long")):
    model = kshipra.load(directory / file, device=device, kv_type="f32")
    for case, wanted in cases_of(directory, file):
        if "text" in case:
            assert model.tokenizer.encode(case["text"]) == case["ids"]
        if case["name"] in names:
            rows = model.logits(case["ids"])[case.get("logits_first_position", 0):]
            assert largest_difference(rows, wanted) < 1e-4, case["name"]
            greedy = list(model.generate_ids(case["ids"], max_tokens=len(case["greedy"]),
                                             temperature=0, ignore_eos=True))
            assert greedy == case["greedy"], case["name"]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_small_models_against_transformers(models, name, device):
    check_against_oracle(models / name, "model.gguf", device)


QUANTIZED = [("llama", name) for name in (
    "Q2_K", "Q3_K_M", "Q4_0", "Q4_1", "Q4_K_M", "Q4_K_S", "Q5_0", "Q5_1", "Q5_K_M", "Q6_K",
    "Q8_0", "IQ4_NL", "IQ4_XS", "MXFP4")] + [
    ("qwen3", name) for name in ("Q3_K_M", "Q4_1", "Q4_K_M", "Q8_0", "IQ4_XS")]


@pytest.mark.deep(device="python")
@pytest.mark.parametrize("base, name", QUANTIZED)
def test_int8_activations_stay_near_float_ones(shared, base, name, device, capsys):
    """rms <= 0.2 and max <= 1.0, the bounds of the fixtures, at logits of deviation 3."""
    directory = shared / "fixtures" / "quant" / base
    model = kshipra.load(directory / f"{name}.gguf", device=device, kv_type="f32")
    differences, n_greedy, n_equal, n_sure, parted = [], 0, 0, 0, []
    cases = json.loads((directory / f"{name}.json").read_text())["cases"]
    for case in cases:
        flat = array("f", (directory / case["logits_file"]).read_bytes())
        n = case["logits_shape"][1]
        rows = model.logits(case["ids"])[case.get("logits_first_position", 0):]
        assert len(rows) == case["logits_shape"][0]
        for i, row in enumerate(rows):
            wanted = flat[i * n:(i + 1) * n]
            differences += [abs(a - b) for a, b in zip(row, wanted)]
            first, second = sorted(wanted)[:-3:-1]
            if first - second > 1.0:
                n_sure += 1
                assert row.index(max(row)) == wanted.index(first)
        greedy = list(model.generate_ids(case["ids"], max_tokens=len(case["greedy"]),
                                         temperature=0, ignore_eos=True))
        same = next((i for i, (a, b) in enumerate(zip(greedy, case["greedy"])) if a != b), None)
        n_greedy += len(greedy)
        n_equal += len(greedy) if same is None else same
        if same is not None:
            parted.append(case["greedy_margins"][same])
    mean = math.fsum(differences) / len(differences)
    rms = math.sqrt(math.fsum(d * d for d in differences) / len(differences))
    worst = max(differences)
    with capsys.disabled():
        print(f"\n{base:6} {name:7} mean {mean:.4f}  rms {rms:.4f}  max {worst:.4f}  "
              f"sure argmax {n_sure}  greedy {n_equal}/{n_greedy}  "
              f"parted at margins {parted}", end="")
    assert rms <= 0.2 and worst <= 1.0
    assert all(margin <= 2 * worst for margin in parted)     # two logits, each off by as much


# The same bits by every road.

ROADS = [   # architecture and options of a tiny model, each with something of its own
    ("llama", {}),
    ("llama", {"format": "Q4_0", "hidden": 32, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16}),
    ("llama", {"format": "Q5_1", "tied": True, "hidden": 32, "n_heads": 4}),
    ("llama", {"window": 8}),
    ("gpt2", {"format": "Q8_0", "tied": True, "hidden": 32}),
    ("llama", {"format": "IQ4_NL", "tied": True, "hidden": 32, "n_heads": 4}),
    ("mixtral", {"format": "MXFP4", "hidden": 32, "head_dim": 16}),
    ("qwen2", {"format": "BF16"}),
    ("qwen3", {"format": "F16"}),
    ("gemma2", {"tied": True, "window": 8}),
    ("gemma3", {"tied": True, "window": 70, "n_layers": 6}),
    ("llama", {"head_dim": 32}),
    ("mixtral", {"format": "Q8_0", "hidden": 32, "head_dim": 16}),
    ("qwen3moe", {"n_experts": 11, "n_used": 3, "expert_weights_norm": False}),
]
IDS = ["-".join([arch, *(f"{k}={v}" for k, v in more.items())]) for arch, more in ROADS]
N = 75                                  # positions: more than a chunk of attention
SMALL = {"hidden": 16, "n_heads": 2, "n_kv_heads": 1, "ffn": 32, "n_ctx": 128}


@pytest.fixture(scope="module", params=range(len(ROADS)), ids=IDS)
def road(request, tmp_path_factory, device):
    """Return (load, tokens, logits): load(**options) opens the model; logits of one whole step."""
    arch, options = ROADS[request.param]
    path = tiny.write(tmp_path_factory.mktemp("road") / "tiny.gguf", arch, **{**SMALL, **options})

    def load(**more):
        return kshipra.load(path, device=device, **more)

    tokens = tiny.ids(N, seed=request.param)
    truth = {}
    head_dim = load().hparams.head_dim
    for kv_type, (format, _) in kshipra.KV_TYPES.items():
        if head_dim % format.block_len == 0:
            model = load(kv_type=kv_type)
            truth[kv_type] = step_all(model, Sequence(model.cache), tokens, [N])
    return load, tokens, truth


def step_all(engine, seq, tokens, cuts):
    """Append tokens in steps that end at `cuts`; return the logits of all."""
    out = []
    for end in cuts:
        at = len(seq.tokens)
        out += engine.step([(t, at + i, seq) for i, t in enumerate(tokens[at:end])])
    return out


def idle(model):
    """Check that nothing but the session holds a page."""
    model.session.truncate(0)
    pages = [*model.cache.free, *model.cache.idle]
    return not any(model.cache.refs) and sorted(pages) == list(
        range(model.cache.n_pages))


@pytest.mark.deep(device="python")
@pytest.mark.parametrize("page_size, kv_type", [
    (None, "f16"), (None, "f32"), (None, "q8_0"), (8, "f16"), (8, "q8_0"), (16, "f32"),
    (64, "f32"), (64, "q8_0"), (128, "f16")])
def test_paged_and_chunked_is_contiguous_and_whole(road, page_size, kv_type):
    load, tokens, truth = road
    if kv_type not in truth:
        with pytest.raises(KshipraError, match="head_dim"):
            load(page_size=page_size, kv_type=kv_type)
        return
    model = load(page_size=page_size, kv_type=kv_type)
    seq = Sequence(model.cache)
    rng = random.Random(page_size)
    cuts = sorted(rng.sample(range(1, N), 5)) + [N]
    assert step_all(model, seq, tokens, cuts) == truth[kv_type]
    seq.truncate(0)
    assert idle(model)


def test_token_by_token_is_whole(road):
    load, tokens, truth = road
    model = load(page_size=16)
    assert step_all(model, Sequence(model.cache), tokens, range(1, N + 1)) == truth["f16"]


def with_large_k_bias(numbers, weights):
    """Give every block of 32 key channels one whose bias is 100, near fifty times a usual key."""
    for name, tensor in weights.items():
        if name.endswith("attn_k.bias"):
            bias = tensor.floats()
            bias[::32] = array("f", [100.0] * (len(bias) // 32))
            weights[name] = kshipra.Tensor(name, tensor.format, tensor.shape, bias.tobytes())


@pytest.mark.parametrize("change, bounds", [
    (None, {"f32": 0, "f16": 1e-6, "q8_0": 1e-4}),
    (with_large_k_bias, {"f32": 0, "f16": 1e-4, "q8_0": 0.03})])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_kv_types_keep_the_distribution(tmp_path, head_dim, change, bounds):
    """P08: mean KL divergence to the f32 cache, in nats, over 64 positions, each type its bound.

    A large bias takes the precision of all 32 numbers of its block: its 100 leaves them steps
    of 0.8.  The distributions of neighbouring positions are some tenths of a nat apart; the
    means found here are a third of the bounds or less.
    """
    path = tiny.write(tmp_path / "tiny.gguf", "qwen2", change, hidden=64, n_layers=2, n_heads=2,
                      n_kv_heads=1, head_dim=head_dim, scale=0.5)
    found = {}
    for kv_type in kshipra.KV_TYPES:
        found[kv_type] = kshipra.load(path, kv_type=kv_type).logits(tiny.ids(64))
    true = [log_softmax(row) for row in found["f32"]]
    for kv_type, bound in bounds.items():
        mean = math.fsum(divergence(p, log_softmax(row))
                         for p, row in zip(true, found[kv_type])) / 64
        assert mean <= bound, kv_type
    apart = math.fsum(map(divergence, true[1:], true)) / 63
    assert apart > 0.05                 # so the bounds say something


def log_softmax(row):
    top = max(row)
    total = math.log(math.fsum(math.exp(v - top) for v in row))
    return [v - top - total for v in row]


def divergence(p, q):
    """Return the Kullback-Leibler divergence of two distributions, both as logarithms."""
    return math.fsum(math.exp(a) * (a - b) for a, b in zip(p, q))


def test_logits_of_the_model_are_those_of_a_step(road):
    load, tokens, truth = road
    model = load()
    assert model.logits(tokens) == truth["f16"]
    assert model.logits(tokens[:9]) == truth["f16"][:9]


def test_only_wanted_rows_come_back_in_their_order(road):
    load, tokens, truth = road
    model = load(page_size=64)
    seq = Sequence(model.cache)
    assert model.step([(tokens[0], 0, seq)], []) == []
    seq.truncate(0)
    rows = [(t, i, seq) for i, t in enumerate(tokens[:70])]
    assert model.step(rows, [69, 3, 64]) == [truth["f16"][i] for i in (69, 3, 64)]
    assert model.step([]) == []


def test_trimmed_and_continued_is_a_cold_run(road):
    """P22: run 20, trim, continue; a window of 8 has then been left and entered again."""
    load, tokens, truth = road
    model = load(page_size=8)
    trunk = Sequence(model.cache)
    step_all(model, trunk, tokens, [20])
    for trim in (0, 1, 3, 8, 20):
        seq = trunk.fork()
        seq.truncate(20 - trim)
        assert step_all(model, seq, tokens, [22]) == truth["f16"][20 - trim:22]
        seq.truncate(0)
    trunk.truncate(17)                  # the same without a fork that holds the pages
    assert step_all(model, trunk, tokens, [22]) == truth["f16"][17:22]


def test_forks_share_and_do_not_disturb(road):
    load, tokens, truth = road
    model = load(page_size=8)
    trunk = Sequence(model.cache)
    step_all(model, trunk, tokens, [20])
    fork = trunk.fork()
    assert max(model.cache.refs) == 2
    wrong = [(t + 1) % 256 for t in tokens]
    other = step_all(model, fork, tokens[:20] + wrong[20:], [30])     # writes a shared page
    assert step_all(model, trunk, tokens, [25, 40]) == truth["f16"][20:40]
    again = trunk.fork()
    again.truncate(20)
    assert step_all(model, again, tokens[:20] + wrong[20:], [21, 30]) == other
    for seq in (trunk, fork, again):
        seq.truncate(0)
    assert idle(model)


@pytest.mark.deep(device="python")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_sequences_in_one_step_are_independent(road, order):
    """P26: lengths 3, 11, 7, two of one prefix: each row equals its solo run."""
    load, tokens, truth = road
    model = load(page_size=8)
    texts = [tokens[:3], tokens[:11], tokens[50:57]]
    alone = []
    for text in texts:
        seq = Sequence(model.cache)
        alone.append(step_all(model, seq, text, [len(text)]))
        seq.truncate(0)
    assert alone[0] == truth["f16"][:3] and alone[1] == truth["f16"][:11]
    seqs = [Sequence(model.cache) for _ in texts]
    rows, owners = [], []
    for i in range(11):                                 # interleaved, as a batch would be
        for which in order:
            if i < len(texts[which]):
                rows.append((texts[which][i], i, seqs[which]))
                owners.append((which, i))
    for at in range(0, len(rows), 6):
        part = model.step(rows[at:at + 6])
        assert part == [alone[which][i] for which, i in owners[at:at + 6]]
    for seq in seqs:
        seq.truncate(0)
    assert idle(model)


@tiny.examples(5)
@given(data=st.data())
def test_any_schedule_gives_the_same_bits(road, data):
    """Steps of random rows of three sequences, forked and trimmed at random."""
    load, tokens, truth = road
    model = load(page_size=data.draw(st.sampled_from([8, 16])))
    seqs = [Sequence(model.cache)]
    for _ in range(data.draw(st.integers(1, 6))):
        action = data.draw(st.sampled_from(["step", "step", "fork", "trim"]))
        pick = data.draw(st.integers(0, len(seqs) - 1))
        if action == "fork" and len(seqs) < 3:
            seqs.append(seqs[pick].fork())
        elif action == "trim":
            seqs[pick].truncate(data.draw(st.integers(0, len(seqs[pick].tokens))))
        else:
            rows, wanted = [], []
            for seq in seqs:
                at = len(seq.tokens)
                for i in range(at, min(N, at + data.draw(st.integers(0, 9)))):
                    rows.append((tokens[i], i, seq))
                    wanted.append(truth["f16"][i])
            assert model.step(rows) == wanted
    for seq in seqs:
        seq.truncate(0)
    assert idle(model)


def test_matmul_roads_agree_on_a_whole_model(tmp_path):
    path = tiny.write(tmp_path / "tiny.gguf", format="Q4_1", n_layers=1)
    checkpoint = kshipra.GGUF(path)
    results = []
    for kind in ("naive", "tiled", "packed"):
        engine = Engine(checkpoint, Reference(kind))
        results.append(step_all(engine, Sequence(engine.cache), tiny.ids(9), [9]))
    assert results[0] == results[1] == results[2]


# What a step refuses, it has not begun.

@pytest.fixture(scope="module")
def small(tmp_path_factory, device):
    path = tiny.write(tmp_path_factory.mktemp("small") / "tiny.gguf", n_layers=1)
    return kshipra.load(path, device=device, ctx_size=64, page_size=8)


@pytest.mark.parametrize("row, words", [
    ((-1, 5, 0), "token -1 is outside 0..258"), ((259, 5, 0), "token 259 is outside"),
    ((1, 6, 0), "position 6 does not follow the 5"), ((1, 0, 0), "position 0 does not follow"),
    ((1, 64, 0), "position 64 is outside the context of 64"), ((1, -1, 0), "outside")])
def test_a_refused_row_leaves_every_sequence_as_it_was(small, row, words):
    seq, other = Sequence(small.cache), Sequence(small.cache)
    tokens = tiny.ids(8)
    step_all(small, seq, tokens, [5])
    token, pos, _ = row
    with pytest.raises(KshipraError, match=words):
        small.step([(3, 0, other), (token, pos, seq)])
    assert seq.tokens == tokens[:5] and other.tokens == [] and not other.table
    fresh = Sequence(small.cache)
    assert step_all(small, seq, tokens, [8]) == step_all(small, fresh, tokens, [8])[5:]
    seq.truncate(0), fresh.truncate(0)
    assert idle(small)


def test_a_full_pool_leaves_every_sequence_as_it_was(small):
    full, more = Sequence(small.cache), Sequence(small.cache)
    step_all(small, full, tiny.ids(60), [60])
    with pytest.raises(KshipraError, match="in use"):
        small.step([(1, i, more) for i in range(9)])
    assert not more.tokens and not more.table and len(full.tokens) == 60
    full.truncate(0)
    assert idle(small)


# P03: every tensor counts; each tensor of each family stands in test_families.py.

def test_a_tensor_nobody_reads_is_refused(tmp_path, device):
    def more(numbers, weights):
        weights["blk.0.attn_sinks.weight"] = kshipra.Tensor(
            "blk.0.attn_sinks.weight", kshipra.FORMATS["F32"], (4,), bytes(16))
    path = tiny.write(tmp_path / "tiny.gguf", change=more)
    with pytest.raises(KshipraError, match="1 tensors would be ignored.*blk.0.attn_sinks.weight"):
        kshipra.load(path, device=device)


# P04, P09, P14, P25, windows.

def safetensors_twin(tmp_path, numbers, weights, **config):
    """Write the same llama as a Hugging Face directory: q and k rows in halves, not pairs."""
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
             "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    dim, out = numbers["llama.attention.key_length"], []
    for name, t in weights.items():
        parts = name.split(".")
        new = names[parts[-2]] + ".weight"
        new = f"model.layers.{parts[1]}.{new}" if parts[0] == "blk" else new
        values = t.floats()
        if parts[-2] in ("attn_q", "attn_k"):
            n_in, rows = t.shape[1], []
            for head in range(0, t.shape[0], dim):
                rows += [*range(head, head + dim, 2), *range(head + 1, head + dim, 2)]
            values = array("f", itertools.chain.from_iterable(
                values[r * n_in:(r + 1) * n_in] for r in rows))
        out.append(kshipra.Tensor(new, t.format, t.shape, t.format.encode(values)))
    directory = tmp_path / "hf"
    directory.mkdir()
    kshipra.write_safetensors(str(directory / "model.safetensors"), {}, out)
    get = {key.split(".", 1)[1]: value for key, value in numbers.items()}.get
    (directory / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"), "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "head_dim": get("attention.key_length"), "max_position_embeddings": get("context_length"),
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, **config}))
    return directory


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_pairs_in_a_gguf_are_halves_in_safetensors(tmp_path, n_kv_heads):
    """P04: position 0 proves nothing, so eight positions; sums of other orders differ a little."""
    numbers = tiny.metadata(n_kv_heads=n_kv_heads)
    weights = tiny.tensors(n_kv_heads=n_kv_heads)
    kshipra.write_gguf(str(tmp_path / "tiny.gguf"), numbers, list(weights.values()))
    one = Engine(kshipra.GGUF(str(tmp_path / "tiny.gguf")), Reference(), kv_type="f32")
    two = Engine(HFDirectory(str(safetensors_twin(tmp_path, numbers, weights))), Reference(),
                 kv_type="f32")
    tokens = tiny.ids(8)
    rows = [step_all(e, Sequence(e.cache), tokens, [8]) for e in (one, two)]
    assert largest_difference(*rows) < 1e-5


# Mixtures of experts.

def expert_by_expert(weights, rename):
    """Return the tensors with those of all experts cut apart; rename(name, expert, or None)."""
    out = []
    for name, t in weights.items():
        whole = len(t.shape) < 3
        parts = [(None, t)] if whole else [(i, t[i]) for i in range(t.shape[0])]
        out += [kshipra.Tensor(rename(name, i), t.format, part.shape, bytes(part.data))
                for i, part in parts]
    return out


def test_the_first_gguf_files_of_mixtral_held_each_expert_apart(tmp_path, device):
    path = tiny.write(tmp_path / "tiny.gguf", "mixtral", format="Q4_0")
    checkpoint = kshipra.GGUF(path)
    apart = str(tmp_path / "apart.gguf")
    kshipra.write_gguf(apart, checkpoint.metadata, expert_by_expert(
        checkpoint.tensors, lambda name, i: name.replace("_exps", f".{i}")))
    tokens = tiny.ids(9)
    assert kshipra.load(apart, device=device).logits(tokens) == kshipra.load(
        path, device=device).logits(tokens)


@pytest.mark.parametrize("normalize", [True, False, None])
def test_qwen3moe_in_safetensors_is_that_in_a_gguf(tmp_path, device, normalize):
    """The same bits; without norm_topk_prob Qwen's own code does not normalize."""
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
             "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
             "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
             "ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.experts.{}.gate_proj",
             "ffn_up_exps": "mlp.experts.{}.up_proj", "ffn_down_exps": "mlp.experts.{}.down_proj"}

    def rename(name, expert):
        *block, name, kind = name.split(".")
        return ".".join((f"model.layers.{block[1]}." if block else "", names[name].format(expert),
                         kind)).lstrip(".").replace("..", ".")

    tokens = tiny.ids(9)
    options = {} if normalize else {"expert_weights_norm": False}
    path = tiny.write(tmp_path / "tiny.gguf", "qwen3moe", format="F16", n_used=3, **options)
    checkpoint, directory = kshipra.GGUF(path), tmp_path / "hf"
    directory.mkdir()
    kshipra.write_safetensors(str(directory / "model.safetensors"), {}, expert_by_expert(
        checkpoint.tensors, rename))
    (directory / "config.json").write_text(json.dumps({
        "model_type": "qwen3_moe", "hidden_size": 32, "intermediate_size": 192,
        "moe_intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "num_experts": 4, "num_experts_per_tok": 3,
        "decoder_sparse_step": 1, "mlp_only_layers": [],
        **({} if normalize is None else {"norm_topk_prob": normalize})}))
    ops = kshipra.choose_backend(device, 1, 0)
    engine = Engine(HFDirectory(str(directory)), ops)
    assert step_all(engine, Sequence(engine.cache), tokens, [9]) == kshipra.load(
        path, device=device).logits(tokens)


def test_experts_of_different_types_are_refused(tmp_path, device):
    checkpoint = kshipra.GGUF(tiny.write(tmp_path / "tiny.gguf", "mixtral"))
    tensors = expert_by_expert(checkpoint.tensors, lambda name, i: name.replace("_exps", f".{i}"))
    at = next(i for i, t in enumerate(tensors) if t.name == "blk.1.ffn_up.2.weight")
    f16 = kshipra.FORMATS["F16"]
    tensors[at] = kshipra.Tensor(tensors[at].name, f16, tensors[at].shape,
                                 f16.encode(tensors[at].floats()))
    path = str(tmp_path / "mixed.gguf")
    kshipra.write_gguf(path, checkpoint.metadata, tensors)
    with pytest.raises(KshipraError, match="blk.1.ffn_up.2.weight.*F16.*F32.*one type"):
        kshipra.load(path, device=device)


@pytest.mark.parametrize("arch, change, words", [
    ("mixtral", {"expert_count": 5}, r"blk.0.ffn_gate_inp.weight' has shape \(4, 32\)"),
    ("mixtral", {"expert_count": 3}, r"blk.0.ffn_gate_inp.weight' has shape \(4, 32\)"),
    ("mixtral", {"expert_count": 0}, "blk.0.ffn_gate.*is missing"),
    ("mixtral", {"expert_count": 513}, "llama.expert_count.* is 513: 1 to 512"),
    ("mixtral", {"expert_count": 2 ** 31}, "llama.expert_count"),
    ("mixtral", {"expert_count": -1}, "llama.expert_count"),
    ("mixtral", {"expert_count": "4"}, "llama.expert_count"),
    ("mixtral", {"expert_used_count": 0}, "llama.expert_used_count.* is 0"),
    ("mixtral", {"expert_used_count": 5}, "llama.expert_used_count.* is 5: of 4 experts"),
    ("mixtral", {"expert_used_count": None}, "llama.expert_used_count.*missing"),
    ("mixtral", {"feed_forward_length": 32}, "blk.0.ffn_gate_exps.weight' has shape"),
    ("mixtral", {"expert_gating_func": 2}, "llama.expert_gating_func is 2"),
    ("mixtral", {"expert_weights_scale": 2.5}, "llama.expert_weights_scale is 2.5"),
    ("qwen3moe", {"expert_count": 0}, "qwen3moe.expert_count.* is 0: 1 to 512"),
    ("qwen3moe", {"expert_count": None}, "qwen3moe.expert_count.* is 0: 1 to 512"),
    ("qwen3moe", {"expert_feed_forward_length": None},
     "qwen3moe.expert_feed_forward_length.*missing"),
    ("qwen3moe", {"expert_weights_norm": 1}, "qwen3moe.expert_weights_norm.* is 1: true or false"),
    ("gemma", {"expert_count": 4}, "gemma.expert_count.*mixtures of experts mixtral, .*qwen3moe"),
])
def test_counts_of_experts_are_checked(tmp_path, arch, change, words):
    def edit(numbers, _):
        for key, value in change.items():
            key = numbers["general.architecture"] + "." + key
            numbers.pop(key, None)
            if value is not None:
                numbers[key] = value
    path = tiny.write(tmp_path / "tiny.gguf", arch, change=edit, tied=arch == "gemma")
    with pytest.raises(KshipraError, match=words) as caught:
        kshipra.load(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_experts_that_every_row_uses_are_refused(tmp_path, device):
    def more(numbers, weights):
        t = kshipra.Tensor("blk.0.ffn_up_shexp.weight", kshipra.FORMATS["F32"], (4,), bytes(16))
        weights[t.name] = t
    path = tiny.write(tmp_path / "tiny.gguf", "qwen3moe", change=more)
    with pytest.raises(KshipraError, match="ignored.*blk.0.ffn_up_shexp.weight"):
        kshipra.load(path, device=device)


def test_residuals_beyond_f16_stay_finite(tmp_path, device):
    """P09: embeddings of 1e5 and a feed-forward that adds more."""
    def louder(numbers, weights):
        for name in ("token_embd.weight", "blk.0.ffn_down.weight"):
            t = weights[name]
            values = array("f", [v * 1e6 for v in t.floats()])
            weights[name] = kshipra.Tensor(name, t.format, t.shape, t.format.encode(values))
    for arch in ("llama", "gemma3"):
        path = tiny.write(tmp_path / f"{arch}.gguf", arch, change=louder, window=4)
        for row in kshipra.load(path, device=device).logits(tiny.ids(6)):
            assert all(map(math.isfinite, row))


@pytest.mark.deep(device="python")
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("format", ["F32", "Q4_0"])
def test_damaged_weights_are_refused_wherever_they_are(tmp_path, bad, format, device):
    """In every tensor: as a value of a float one, as a scale of a quantized one."""
    for arch in ("llama", "gemma2", "mixtral"):
        numbers, weights = tiny.metadata(arch, n_layers=1, window=4, n_used=4), tiny.tensors(
            arch, n_layers=1, format=format)
        for name, t in weights.items():
            data = bytearray(t.data)
            if t.format.sub_len:
                data[0:2] = array("H", [0x7e00 if math.isnan(bad) else 0x7c00]).tobytes()
            else:
                data[0:4] = array("f", [bad]).tobytes()
            changed = {**weights, name: kshipra.Tensor(name, t.format, t.shape, bytes(data))}
            path = tmp_path / "tiny.gguf"
            kshipra.write_gguf(str(path), numbers, list(changed.values()))
            with pytest.raises(KshipraError, match="finite|infinite"):
                kshipra.load(path, device=device).logits([0, 1, 2])


@pytest.mark.parametrize("wanted", [[], [2], [0, 1, 2]])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_cached_key_that_is_not_finite_is_refused_whoever_is_asked_for(tmp_path, device, layer,
                                                                         wanted):
    """Rows whose logits nobody wants see it; the others of the step are of another sequence."""
    model = kshipra.load(tiny.write(tmp_path / "tiny.gguf"), device=device, kv_type="f16",
                         page_size=8)
    seq, other, cache = Sequence(model.cache), Sequence(model.cache), model.cache
    model.step([(5, 0, seq), (6, 1, seq)])
    at = cache.offset(layer, seq.table[0], 0, 0, 1)
    cache.arena[at:at + 2] = b"\x00\x7c"
    others = [(t, pos, other) for pos, t in enumerate((3, 1, 4))]
    assert len(model.step(others, wanted)) == len(wanted)
    rows = [(t, pos, other) for pos, t in enumerate((3, 1, 4), 3)] + [(7, 2, seq)]
    with pytest.raises(KshipraError, match="infinite"):
        model.step(rows, wanted)


def test_learned_positions_go_on_with_the_cache_and_end_with_length(tmp_path, device):
    """P25: GPT-2 with 10 positions."""
    path = tiny.write(tmp_path / "tiny.gguf", "gpt2", n_ctx=10, tied=True)
    model = kshipra.load(path, device=device)
    assert model.ctx_size == 10
    tokens = tiny.ids(10)
    whole, halves = Sequence(model.cache), Sequence(model.cache)
    want = step_all(model, whole, tokens, [10])
    whole.truncate(0)
    assert step_all(model, halves, tokens, [5, 6, 7, 8, 9, 10]) == want
    halves.truncate(0)
    generation = model.generate(tokens[:5], temperature=0, ignore_eos=True)
    list(generation)
    assert generation.finish_reason == "length" and len(generation.ids) == 6
    with pytest.raises(KshipraError, match="ctx_size is 11, more than the 10 positions"):
        kshipra.load(path, device=device, ctx_size=11)


def test_a_window_ends_what_a_layer_sees(tmp_path, device):
    """One layer, window 4: token 0 cannot influence position 4 and later, but does position 3."""
    path = tiny.write(tmp_path / "tiny.gguf", n_layers=1, window=4)
    model = kshipra.load(path, device=device)
    tokens = tiny.ids(80)
    other = [tokens[0] ^ 1] + tokens[1:]
    one, two = model.logits(tokens), model.logits(other)
    assert [a == b for a, b in zip(one, two)] == [False] * 4 + [True] * 76


# Rope scaling, as far as the fixtures do not show it.

LLAMA_CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5}


def hparams(**config):
    class Config:
        path, metadata = "x", {}
    checkpoint = Config()
    checkpoint.config = {**LLAMA_CONFIG, **config}
    return kshipra.Hparams(checkpoint)


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_llama3_scaling(key):
    """P20: wavelengths above 8192 divided by the factor, below 2048 unchanged, between blended."""
    scaling = {key: "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}
    hp = hparams(rope_scaling=scaling, head_dim=128, rope_theta=500000.0)
    table = kshipra.rope_table(hp)
    kinds = set()
    for i, got in enumerate(table.freqs):
        f = 500000.0 ** (-2 * i / 128)
        wavelength = 2 * math.pi / f
        if wavelength > 8192:
            assert got == f / 8
            kinds.add("slow")
        elif wavelength < 2048:
            assert got == f
            kinds.add("fast")
        else:
            smooth = (8192 / wavelength - 1) / 3
            assert got == pytest.approx((1 - smooth) * f / 8 + smooth * f, rel=1e-12)
            kinds.add("between")
    assert kinds == {"slow", "fast", "between"}


def test_gemma3_has_two_bases_and_two_kinds_of_layers(tmp_path):
    """P21: five local layers to one global, each with its base; scaling on the global ones only.

    transformers 5 writes one rope object for each kind of layer.
    """
    scaled = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0,
              "gemma3.rope.freq_base": 1e6}
    path = tiny.write(tmp_path / "tiny.gguf", "gemma3", n_layers=6, window=5, tied=True,
                      change=lambda numbers, _: numbers.update(scaled))
    engine = Engine(kshipra.GGUF(path), Reference())
    assert [layer.attention.window for layer in engine.weights.layers] == [5, 5, 5, 5, 5, 0]
    assert [layer.rope.freqs[1] for layer in engine.weights.layers] == pytest.approx(
        [1e4 ** -0.25] * 5 + [1e6 ** -0.25 / 8])
    hp = hparams(model_type="gemma3_text", num_hidden_layers=6, sliding_window=5,
                 query_pre_attn_scalar=16, rope_parameters={
                     "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                     "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}})
    assert hp.number("rope_base") == 1e6 and hp.number("local_base") == 2e4
    assert kshipra.rope_scaling(hp)["factor"] == 8.0


# Hyperparameters that would give a wrong answer, or none.

QWEN3_MOE = {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
             "moe_intermediate_size": 32}


@pytest.mark.parametrize("change, words", [
    ({"model_type": "bert"}, "architecture 'bert'.*not supported"),
    ({"model_type": None}, "architecture None"),
    ({"model_type": ["llama"]}, "architecture"),
    ({"num_hidden_layers": 0}, "num_hidden_layers.*is 0"),
    ({"num_hidden_layers": 2 ** 31}, "num_hidden_layers"),
    ({"num_hidden_layers": True}, "num_hidden_layers.*True"),
    ({"num_hidden_layers": 2.0}, "num_hidden_layers.*2.0"),
    ({"hidden_size": -64}, "hidden_size.*-64"),
    ({"hidden_size": None}, "hidden_size.*missing"),
    ({"num_attention_heads": 3}, "num_attention_heads.*3"),
    ({"num_key_value_heads": 3}, "num_key_value_heads.*3"),
    ({"rms_norm_eps": 0}, "rms_norm_eps.*above 0"),
    ({"rms_norm_eps": 1e-60}, "rms_norm_eps.*above 0"),
    ({"rms_norm_eps": 10 ** 400}, "rms_norm_eps"),
    ({"rms_norm_eps": -1e-5}, "rms_norm_eps"),
    ({"rms_norm_eps": "1e-5"}, "rms_norm_eps.*number"),
    ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
    ({"num_local_experts": 8}, "num_local_experts.*mixtures"),
    ({"model_type": "mixtral"}, "num_local_experts.* is 0: 1 to 512"),
    ({"model_type": "mixtral", "num_local_experts": 8}, "num_experts_per_tok.*missing"),
    ({"model_type": "mixtral", "num_local_experts": 128, "num_experts_per_tok": 65},
     "num_experts_per_tok.* is 65: of 128 experts a row can use 1 to 64"),
    ({"model_type": "qwen3_moe", "num_experts": 600, "num_experts_per_tok": 8},
     "num_experts .* is 600"),
    ({"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2},
     "moe_intermediate_size.*missing"),
    ({**QWEN3_MOE, "norm_topk_prob": "yes"}, "norm_topk_prob.* is 'yes': true or false"),
    ({**QWEN3_MOE, "decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
    ({**QWEN3_MOE, "mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor.* is 0.5"),
    ({"model_type": "qwen3", "use_sliding_window": True}, "use_sliding_window is True"),
    ({"model_type": "gpt2", "layer_norm_epsilon": 1e-5, "scale_attn_by_inverse_layer_idx": True},
     "scale_attn_by_inverse_layer_idx"),
    ({"sliding_window_pattern": 4}, "sliding_window_pattern.* is 4"),
    ({"model_type": "gemma3_text", "sliding_window_pattern": -1}, "window_pattern.* is -1"),
    ({"layer_types": ["sliding_attention", "full_attention"]}, "layer_types"),
])
def test_hyperparameters_are_refused_by_name(change, words):
    with pytest.raises(KshipraError, match=words) as caught:
        hparams(**change)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize("scaling, words", [
    ({"rope_type": "longrope"}, "'longrope' has short_factor = None"),
    ({"rope_type": ["linear"]}, "is not supported"),
    ("linear", "not an object"),
    ({"rope_type": "linear"}, "factor = None"),
    ({"rope_type": "linear", "factor": 0}, "factor = 0"),
    ({"rope_type": "linear", "factor": 1e-300}, "factor = 1e-300"),
    ({"rope_type": "linear", "factor": True}, "factor = True"),
    ({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
      "original_max_position_embeddings": 64}, "must be smaller"),
    ({"rope_type": "yarn", "factor": 4, "mscale": 0.7}, "mscale"),
    ({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 1e-300}, "original"),
    ({"rope_type": "yarn", "factor": 4, "beta_fast": "32"}, "beta_fast"),
])
def test_rope_scalings_are_refused_by_name(scaling, words):
    with pytest.raises(KshipraError, match=words):
        kshipra.rope_table(hparams(rope_scaling=scaling))


@pytest.mark.parametrize("base", [0.0, 1.0, 1e-300, 1e29])
def test_rope_bases_are_refused(base):
    with pytest.raises(KshipraError, match="rope_theta.*rope_base"):
        kshipra.rope_table(hparams(rope_theta=base))


def test_gemma_27b_divides_scores_by_another_number():
    """A GGUF does not say so; 2304 / 32 and 5376 / 32 are the published models' numbers."""
    for arch, layers, hidden, want in (("gemma2", 46, 4608, 144), ("gemma3", 62, 5376, 168),
                                       ("gemma2", 42, 3584, 128)):
        class Fake(kshipra.GGUF):
            def __init__(self):
                self.path, self.tensors = "x", {}
                self.metadata = tiny.metadata(arch, hidden=hidden, n_layers=layers, n_heads=32,
                                              n_kv_heads=16, head_dim=128, window=4096)
        assert kshipra.Hparams(Fake()).attn_scale == kshipra.f32(1 / math.sqrt(want))


# Keys that change the answer: read, or refused by name.

def gguf_hparams(arch="llama", **keys):
    """Return the Hparams of a GGUF; a key that is None is left out, __ stands for a dot."""
    class Fake(kshipra.GGUF):
        def __init__(self):
            self.path, self.tensors = "x", {}
            self.metadata = {key: value for key, value in tiny.metadata(arch, **keys).items()
                             if value is not None}
    return kshipra.Hparams(Fake())


@pytest.mark.parametrize("pattern, windows", [
    (None, {"gemma2": [5, 0, 5, 0, 5, 0], "gemma3": [5, 5, 5, 5, 5, 0]}),
    (2, [5, 0, 5, 0, 5, 0]), (3, [5, 5, 0, 5, 5, 0]), (1, [0] * 6), (0, [5] * 6),
    ([True, False, False, True, True, False], [5, 0, 0, 5, 5, 0])])
@pytest.mark.parametrize("arch", ["gemma2", "gemma3"])
def test_a_gguf_says_which_layers_have_a_window(arch, pattern, windows):
    """R07: a number n, every n-th layer sees all; or a list."""
    hp = gguf_hparams(arch, n_layers=6, window=5, attention__sliding_window_pattern=pattern)
    wanted = windows[arch] if isinstance(windows, dict) else windows
    assert [hp.layer_window(i) for i in range(6)] == wanted


def test_config_json_says_which_layers_have_a_window():
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    hp = hparams(model_type="gemma3_text", num_hidden_layers=3, sliding_window=5,
                 layer_types=kinds)
    assert [hp.layer_window(i) for i in range(3)] == [0, 5, 0]
    hp = hparams(model_type="mistral", sliding_window=None)
    assert hp.layer_window(0) == 0
    assert hparams(model_type="gemma3_text", sliding_window=5, num_hidden_layers=3,
                   sliding_window_pattern=3).layer_window(2) == 0


@pytest.mark.parametrize("config, wanted", [
    ({"model_type": "mistral"}, {"window": 4096}),
    ({"model_type": "mistral", "sliding_window": None}, {"window": 0}),
    ({"model_type": "gemma2"}, {"window": 4096, "attn_cap": 50.0, "final_cap": 30.0,
                                "attn_scale": 0.0625}),
    ({"model_type": "gemma2", "attn_logit_softcapping": None}, {"attn_cap": 0.0}),
    ({"model_type": "gemma3_text"}, {"window": 4096, "attn_scale": 0.0625, "attn_cap": 0.0}),
    ({"model_type": "qwen3", "sliding_window": 8}, {"window": 0}),
])
def test_a_missing_key_of_config_json_is_the_family_s_default(config, wanted):
    hp = hparams(**config)
    assert {name: getattr(hp, name) for name in wanted} == wanted


@pytest.mark.parametrize("model_type, base", [
    ("llama", 1e4), ("mixtral", 1e6), ("gemma2", 1e4), ("gemma3_text", 1e6), ("qwen3", 1e4)])
def test_a_missing_rope_base_is_the_family_s_default(model_type, base):
    """R10: and that of a GGUF is 10000, but where the family's own is another."""
    hp = hparams(model_type=model_type, num_local_experts=4 * (model_type == "mixtral"),
                 num_experts_per_tok=2)
    assert hp.number("rope_base") == base
    assert gguf_hparams("mixtral", rope__freq_base=None).number("rope_base") == 1e4


def test_a_gemma_gguf_without_a_window():
    """U17, as llama.cpp has it: Gemma 3 sees all, Gemma 2 looks back 4096 positions."""
    assert gguf_hparams("gemma3").layer_window(0) == 0
    hp = gguf_hparams("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (hp.layer_window(0), hp.layer_window(1)) == (4096, 0)
    assert (hp.attn_cap, hp.final_cap) == (50.0, 30.0)


def test_yarn_s_magnitude_in_both_kinds_of_files():
    """R08: yarn_attn_factor is it, attn_factor multiplies it."""
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0,
            "rope__scaling__original_context_length": 64}
    usual = 0.1 * math.log(4) + 1

    def magnitude(**more):
        return kshipra.rope_table(gguf_hparams(**yarn, **more)).magnitude

    assert magnitude() == pytest.approx(usual)
    assert magnitude(rope__scaling__yarn_attn_factor=0.6) == 0.6
    assert magnitude(rope__scaling__attn_factor=0.6) == pytest.approx(0.6 * usual)
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    for more, wanted in (({}, usual), ({"attention_factor": 0.6}, 0.6),
                         ({"attn_factor": 0.6}, 0.6 * usual)):
        hp = hparams(rope_scaling={**scaling, **more})
        assert kshipra.rope_table(hp).magnitude == pytest.approx(wanted)


@pytest.mark.parametrize("keys, factor", [
    ({"rope__scaling__factor": 4.0}, 4), ({"rope__scale_linear": 4.0}, 4),
    ({"rope__scaling__factor": 0.0}, 1), ({"rope__scaling__type": "none",
                                            "rope__scaling__factor": 4.0}, 1),
    ({"rope__scaling__type": "linear", "rope__scaling__factor": 2.0}, 2)])
def test_a_factor_without_a_type_is_linear(keys, factor):
    """R09."""
    plain, table = kshipra.rope_table(gguf_hparams()), kshipra.rope_table(gguf_hparams(**keys))
    assert table.freqs == [f / factor for f in plain.freqs]


@pytest.mark.parametrize("keys, words", [
    ({"attention__causal": False}, "llama.attention.causal is False"),
    ({"attention__clamp_kqv": 8.0}, "llama.attention.clamp_kqv is 8.0"),
    ({"attention__max_alibi_bias": 8.0}, "max_alibi_bias is 8.0"),
    ({"logit_scale": 0.5}, "llama.logit_scale.* is 0.5"),
    ({"residual_scale": 0.5}, "llama.residual_scale.* is 0.5"),
    ({"embedding_scale": 12.0}, "llama.embedding_scale.* is 12.0"),
    ({"attention__scale": -1.0}, "llama.attention.scale.* is -1.0"),
    ({"attention__sliding_window_pattern": 2, "window": 4}, "sliding_window_pattern"),
    ({"attention__sliding_window_pattern": [True], "window": 4}, "pattern"),
    ({"rope__scaling__yarn_ext_factor": 0.5}, "yarn_ext_factor is 0.5"),
    ({"rope__scaling__yarn_log_multiplier": 0.1}, "yarn_log_multiplier is 0.1"),
])
def test_keys_of_a_gguf_that_change_the_answer_are_refused_by_name(keys, words):
    with pytest.raises(KshipraError, match=words):
        gguf_hparams(**keys)


def test_the_scale_of_scores_is_read():
    assert gguf_hparams(attention__scale=0.125).attn_scale == 0.125
    assert gguf_hparams(attention__scale=0.0).attn_scale == kshipra.f32(1 / math.sqrt(8))


@pytest.mark.parametrize("config, words", [
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
     "partial_rotary_factor.* is 0.5"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2, "partial_rotary_factor": 0.5}},
     "partial_rotary_factor.* is 0.5"),
    ({"logits_scaling": 2.0}, "logits_scaling.* is 2.0"),
    ({"residual_multiplier": 0.5}, "residual_multiplier.* is 0.5"),
    ({"embedding_multiplier": 12}, "embedding_multiplier.* is 12"),
    ({"attention_multiplier": 0.1}, "attention_multiplier.* is 0.1"),
    ({"clip_qkv": 8.0}, "clip_qkv is 8.0"), ({"is_causal": False}, "is_causal is False"),
    ({"no_rope_layers": [1, 0]}, r"no_rope_layers is \[1, 0\]"),
    ({"alibi": True}, "alibi is True"), ({"logit_scale": 0.25}, "logit_scale is 0.25"),
])
def test_keys_of_config_json_that_change_the_answer_are_refused_by_name(config, words):
    with pytest.raises(KshipraError, match=words):
        hparams(**config)


def test_gemma3_s_local_layers_are_scaled_as_they_say():
    hp = hparams(model_type="gemma3_text", rope_parameters={
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}})
    table = kshipra.rope_table(hp, "sliding_attention")
    assert table.freqs == [1e4 ** (-i / 8) / 2 for i in range(8)]


def test_keys_that_nobody_has_looked_at_are_named_in_one_line(tmp_path, capsys):
    change = {"llama.attention.novelty": 3, "llama.vocab_size": tiny.N_TOKENS}
    path = tiny.write(tmp_path / "tiny.gguf", change=lambda numbers, _: numbers.update(change))
    kshipra.load(path, device="python")
    assert capsys.readouterr().err == (
        "kshipra: not known here, so not heeded: 'llama.attention.novelty'\n")
    kshipra.load(tiny.write(path), device="python")
    assert capsys.readouterr().err == ""


def test_a_vocab_size_that_is_not_the_embedding_s_is_refused(tmp_path):
    path = tiny.write(tmp_path / "tiny.gguf", change=lambda numbers, _: numbers.update(
        {"llama.vocab_size": 300}))
    with pytest.raises(KshipraError, match="llama.vocab_size.* is 300: the embedding has 259"):
        kshipra.load(path, device="python")


@pytest.mark.parametrize("shape", [(), (64,)])
def test_a_plan_refuses_an_embedding_that_is_no_matrix_as_load_does(tmp_path, shape):
    t = kshipra.Tensor("model.embed_tokens.weight", kshipra.FORMATS["F32"], shape,
                       bytes(4 * math.prod(shape)))
    kshipra.write_safetensors(str(tmp_path / "model.safetensors"), {}, [t])
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    for use in (lambda path: Engine(HFDirectory(path), Reference()),
                lambda path: list(kshipra.describe(path))):
        with pytest.raises(KshipraError, match="embed_tokens.weight', a matrix, is missing"):
            use(str(tmp_path))
