"""Files that are damaged at random: each is used as what it says, or refused in one sentence.

Bytes of a GGUF and of a safetensors file are changed, cut out, doubled and moved; values of
metadata, of a header, of config.json and of tokenizer.json are replaced.  What still loads is
used: text becomes tokens, tokens become logits.  No exception but KshipraError, no file that
takes long, no memory that only a false number asks for, and nothing that a terminal would obey.

KSHIPRA_MUTATIONS=25000 asks for a long run: so many files of each of the four kinds.
"""
import contextlib
import copy
import json
import os
import pathlib
import random
import shutil
import signal
import struct

import pytest

import kshipra
import tiny

N_MUTATIONS = int(os.environ.get(
    "KSHIPRA_MUTATIONS", 2000 if os.environ.get("KSHIPRA_DEEP") else 120))
SEED = int(os.environ.get("KSHIPRA_SEED", 1))
SECONDS, MEGABYTES = 20, 300            # for one file, on a busy machine; for all of them
FAMILIES = ("llama", "gpt2", "gemma3", "mixtral", "qwen2")
NUMBERS = [0, 1, 2, 3, 7, 8, 31, 32, 33, 255, 256, 257, 259, 1 << 15, 1 << 16, (1 << 31) - 1,
           1 << 31, (1 << 32) - 1, 1 << 32, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
VALUES = [None, True, False, -1, *NUMBERS, 10 ** 30, -0.0, 0.5, 1e-45, 1e30, 1e308, float("inf"),
          float("nan"), "", "a", "llama", "\ud800", "\0", "\x1b[31m", "x" * 5000,
          "<0x0A>", [], {},
          [[]], [None], [-1], [1, 2, 3], [0.5] * 40, ["a"], {"a": {}}, {"type": None},
          {"type": "linear", "factor": -1}, {"rope_type": "yarn"}]


@contextlib.contextmanager
def time_limit(what):
    """Fail what does not end.  Where there is no such signal, it is waited for."""
    def late(*_):
        pytest.fail(f"more than {SECONDS} s: {what}")
    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def places(value, here=()):
    """Yield the path of every value in a tree of dict and list, a few of each long list."""
    yield here
    items = value.items() if isinstance(value, dict) else enumerate(value[:6]) \
        if isinstance(value, list) else ()
    for key, inner in list(items)[:60]:
        yield from places(inner, here + (key,))


def mutate_tree(rng, root):
    """Return a copy of a tree of JSON with one to three values replaced, moved or gone."""
    root = copy.deepcopy(root) or {"a": 1}
    for _ in range(rng.choice((1, 1, 2, 3))):
        *path, last = rng.choice([place for place in places(root) if place])
        at = root
        for key in path:
            at = at[key]
        action = rng.randrange(10)
        if action == 0:
            del at[last]
        elif action == 1 and isinstance(at, dict):
            at[str(rng.choice(VALUES))[:50]] = at.pop(last)
        elif action == 2:
            other = root
            for key in rng.choice(list(places(root))):
                other = other[key]
            at[last] = copy.deepcopy(other)
        elif action == 3 and type(at[last]) in (int, float):
            at[last] = at[last] * rng.choice((-1, 2, 0.5, 1 << 40)) + rng.choice((0, 1, -1))
        elif action == 4 and isinstance(at[last], (str, list)):
            at[last] = at[last] * 2 if rng.random() < 0.5 else at[last][:len(at[last]) // 2]
        else:
            at[last] = copy.deepcopy(rng.choice(VALUES))
        if not root:
            break
    return root


def mutate_bytes(rng, data, head):
    """Return `data` changed in one to three places, mostly in its first `head` bytes."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(min(head, len(data)) if rng.random() < 0.9 else len(data) or 1)
        n = rng.choice((1, 1, 2, 4, 8, 16, 100))
        action = rng.randrange(8)
        if action == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif action == 1:
            data[at:at + n] = bytes(rng.randrange(256) for _ in range(n))
        elif action in (2, 3):          # a number, where one may be
            size, kind = rng.choice(((4, "<I"), (8, "<Q")))
            data[at:at + size] = struct.pack(kind, rng.choice(NUMBERS) % (1 << 8 * size))
        elif action == 4:
            del data[at:at + n]
        elif action == 5:
            data[at:at] = data[at:at + n]
        elif action == 6:
            other = rng.randrange(len(data))
            data[at:at + n] = data[other:other + n]
        else:
            del data[at + rng.randrange(len(data)):]
        if len(data) < 8:
            break
    return bytes(data)


def use(path):
    """Load what is at path and use it; return whether that went well."""
    try:
        model = kshipra.load(path, "python", ctx_size=16)
        ids = model.tokenizer.encode("ab <s>é")[:8]
        model.tokenizer.decode(ids)
        if ids and max(ids) < model.hparams.n_vocab:
            model.logits(ids[:3])
        for line in kshipra.describe(path):
            assert line.isprintable(), repr(line)
    except kshipra.KshipraError as error:
        assert str(error) and str(error).isprintable(), repr(str(error))
        return False
    return True


def gguf_makers(place):
    """Return functions of rng that write a damaged GGUF and return its path."""
    path, bases = str(place / "m.gguf"), []
    for family in FAMILIES:
        base = tiny.write(place / f"{family}.gguf", family, n_layers=1, format="Q8_0")
        file = kshipra.GGUF(base)
        numbers = {key: value if isinstance(value, (int, float, str)) else list(value)
                   for key, value in file.metadata.items()}
        bases.append((pathlib.Path(base).read_bytes(), numbers, list(file.tensors.values())))

    def make(rng):
        data, numbers, tensors = rng.choice(bases)
        if rng.random() < 0.3:
            keys = [key for key in numbers if rng.random() < 0.15 and key != "general.alignment"]
            changed = mutate_tree(rng, {key: numbers[key] for key in keys})
            with contextlib.suppress(kshipra.KshipraError):     # no file holds such a value
                kshipra.write_gguf(path, {**{k: v for k, v in numbers.items() if k not in keys},
                                          **changed}, tensors)
                return path
        pathlib.Path(path).write_bytes(mutate_bytes(rng, data, 14000))
        return path
    return make


def hf_makers(place, what):
    """Return a function of rng that damages one file of a directory and returns its path."""
    (place / "hf").mkdir()
    root = hf_files(place / "hf")
    target = place / "hf" / what

    def make(rng):
        if what == "model.safetensors":
            data = root[what]
            if rng.random() < 0.5:
                (n,) = struct.unpack("<Q", data[:8])
                header = json.dumps(mutate_tree(rng, json.loads(data[8:8 + n])))
                header = header.encode("utf-8", "replace")
                target.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + n:])
            else:
                target.write_bytes(mutate_bytes(rng, data, 1500))
        elif rng.random() < 0.2:
            target.write_bytes(mutate_bytes(rng, root[what], 1 << 20))
        else:
            target.write_text(json.dumps(mutate_tree(rng, json.loads(root[what]))))
        return str(place / "hf")
    return make


def hf_files(place):
    """Write a small llama as a directory of Hugging Face; return {file name: bytes}."""
    tensors, letters = tiny.tensors(n_layers=1), tiny.LETTERS + ["<s>", "</s>", "<|eot_id|>"]
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
             "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    out = []
    for name, t in tensors.items():
        part = name.split(".")[-2]
        prefix = "model.layers.0." if name.startswith("blk.0.") else ""
        out.append(kshipra.Tensor(prefix + names[part] + ".weight", t.format, t.shape, t.data))
    kshipra.write_safetensors(str(place / "model.safetensors"), {}, out)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
              "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
              "head_dim": 8, "intermediate_size": 64, "max_position_embeddings": 256,
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 259, "bos_token_id": 256,
              "eos_token_id": [257, 258], "tie_word_embeddings": False, "hidden_act": "silu",
              "torch_dtype": "float32", "rope_scaling": {
                  "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}
    tokenizer = {
        "added_tokens": [{"id": 256 + i, "content": text, "special": True, "lstrip": False,
                          "rstrip": False, "normalized": False, "single_word": False}
                         for i, text in enumerate(letters[256:])],
        "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "unk_token": None, "byte_fallback": False,
                  "ignore_merges": False, "vocab": {t: i for i, t in enumerate(letters[:256])},
                  "merges": [["Ã", "©"]]}}
    (place / "config.json").write_text(json.dumps(config))
    (place / "tokenizer.json").write_text(json.dumps(tokenizer))
    return {path.name: path.read_bytes() for path in place.iterdir()}


KINDS = ("gguf", "model.safetensors", "config.json", "tokenizer.json")


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_used_or_refused(tmp_path, monkeypatch, kind):
    def warn(message):
        assert str(message).isprintable(), repr(message)
    monkeypatch.setattr(kshipra, "warn", warn)
    make = gguf_makers(tmp_path) if kind == "gguf" else hf_makers(tmp_path, kind)
    base = tmp_path / "llama.gguf" if kind == "gguf" else tmp_path / "hf"
    assert use(str(base))
    rng, used = random.Random(f"{kind} {SEED}"), 0
    peak_mb = kshipra.resident_mb()[1]
    for i in range(N_MUTATIONS):
        path = make(rng)
        try:
            with time_limit(f"{kind} {i}"):
                used += use(path)
        except Exception as error:
            kept = pathlib.Path(os.environ.get("KSHIPRA_KEEP", tmp_path / "kept"))
            (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, kept)
            raise AssertionError(f"{kind} {i}, seed {SEED}: {error!r}; see {kept}") from error
    assert 0 < used < N_MUTATIONS       # the damage is neither none nor all
    if peak_mb is not None:
        assert kshipra.resident_mb()[1] - peak_mb < MEGABYTES
    print(f"{kind}: {N_MUTATIONS} files, {used} of them used, the others refused")
