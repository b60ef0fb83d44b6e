#!/usr/bin/env python3
"""bench: every measurement of kshipra, in one command.

    python bench.py                               the model in the file, under two minutes
    python bench.py --model model.gguf            a model of yours
    python bench.py --shape tinyllama-1.1b:q4_k_m     no weights at hand: random ones

It tells the story of the engine as a ladder, from plain Python to machine code on all cores,
says where time and memory go, and sets the engine beside others where they are installed.
It leaves results.md, results.json and latency_comparison.png in the directory --out.

Read it, top to bottom:

    1. Shapes
    2. Measuring
    3. The ladder
    4. Where time and memory go
    5. Many texts
    6. Peers
    7. Results
    8. The picture
    9. The command
"""
import argparse
import contextlib
import functools
import inspect
import itertools
import json
import math
import os
import platform
import random
import re
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from array import array
from typing import NamedTuple, Optional

import kshipra
from kshipra import FORMATS, KshipraError, aligned, count, duration, resident_mb, short

HERE = os.path.dirname(os.path.abspath(__file__))

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
    "llama":          Shape("llama", 3, 96, 256, 6, 6, 512, 1024),  # a base for --hidden-dim etc.
}

NARROWER = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}    # where n_in is no multiple of 256


def use_more_bits(i, n):
    """Whether Q4_K_M keeps layer i of n in Q6_K: it does at the ends, and every third."""
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


@functools.lru_cache(None)
def block_scales(format):
    """Return (d, m) for which random blocks have mean 0 and standard deviation 1."""
    sample = random.Random(0).randbytes(256 * format.block_bytes)
    codes, scales, mins = format.unpack(format.with_scales(sample, [1.0] * 256, [1.0] * 256))
    weights = [c * scales[i // format.sub_len] for i, c in enumerate(codes)]
    m = 0.0
    if mins:
        m = -math.fsum(weights) / len(weights) / (math.fsum(mins) / len(mins))
        weights = [w + m * mins[i // format.sub_len] for i, w in enumerate(weights)]
    d = 1 / math.sqrt(math.fsum(w * w for w in weights) / len(weights))
    return d, m * d


PIECE_BLOCKS = 1 << 14


def random_pieces(format, shape, seed):
    """Yield the bytes of a random matrix that keeps a vector's length, piece by piece."""
    rng = random.Random(seed)
    source = format if format.sub_len else FORMATS["Q8_0"]      # floats: those of Q8_0 blocks
    d, m = (x / math.sqrt(shape[-1]) for x in block_scales(source))
    left = math.prod(shape) // source.block_len
    while left:
        n = min(left, PIECE_BLOCKS)
        ds = [d] * n
        if source.m_off is None:                # codes of two bits are -1 .. 2: every other d < 0
            ds = [d if i % 2 else -d for i in range(n)]
        data = source.with_scales(rng.randbytes(n * source.block_bytes), ds, [m] * n)
        yield data if format.sub_len else format.encode(source.decode(data))
        left -= n


def constant_pieces(shape, value):
    return [array("f", [value]) * math.prod(shape)]


def shape_tensors(shape, kind):
    """Yield (name, format, shape, pieces) for every tensor that kshipra's tables ask for."""
    arch = kshipra.ARCHITECTURES[shape.arch]
    hp = shape._replace(head_dim=shape.head_dim or shape.hidden // shape.n_heads)
    sizes = kshipra.slot_shapes(hp, arch)
    f32, seeds = FORMATS["F32"], itertools.count()

    def name_of(slot, layer):
        names = kshipra.GGUF_NAMES
        return (names["layers"].format(layer) if layer is not None else "") + names[slot]

    def matrix(slot, layer, size):
        name = name_of(slot, layer) + ".weight"
        format = shape_format(kind, "lm_head" if slot == "embed" and hp.tied else slot,
                              layer, hp.n_layers, size[-1])
        return name, format, size, random_pieces(format, size, next(seeds))

    yield matrix("embed", None, (hp.n_vocab, hp.hidden))
    if arch.rope is None:
        yield ("position_embd.weight", f32, (hp.n_ctx, hp.hidden),
               random_pieces(f32, (hp.n_ctx, hp.hidden), next(seeds)))
    for layer in range(hp.n_layers):
        for slot, _, bias in kshipra.slots_of(arch):
            size, name = sizes[slot], name_of(slot, layer)
            if len(size) == 2:
                yield matrix(slot, layer, size)
            else:
                yield name + ".weight", f32, size, constant_pieces(size, 1.0)
            if bias == "+b":
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
    if hp.window or kshipra.ARCHITECTURES[hp.arch].window_every:
        numbers["attention.sliding_window"] = hp.window or hp.n_ctx
    tokens, merges = shape_vocabulary(hp.n_vocab)
    end = hp.n_vocab - 1
    return {
        "general.architecture": hp.arch, "general.name": f"random weights, shape {name}",
        **{f"{hp.arch}.{key}": value for key, value in numbers.items()},
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges or ["a b"],
        "tokenizer.ggml.token_type": array("i", [1] * end + [3]),
        "tokenizer.ggml.bos_token_id": end, "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
    }


def write_shape(path, name, kind, shape):
    """Write a GGUF of random weights.   kind: type of weights, see shape_format"""
    kshipra.write_gguf(path, shape_metadata(name, shape), shape_tensors(shape, kind))


def parse_shape(text, numbers):
    """Return (name, type, Shape) of "NAME:TYPE" with numbers put in place.

    numbers: {field of Shape: value or None}
    """
    name, _, kind = text.partition(":")
    if name not in SHAPES:
        raise KshipraError(f"shape {name!r} is unknown; use one of " + ", ".join(SHAPES))
    given = {field: numbers[field] for field in Shape._fields if numbers.get(field) is not None}
    shape = SHAPES[name]._replace(**given)
    if "n_heads" in given and "n_kv_heads" not in given:
        shape = shape._replace(n_kv_heads=shape.n_heads)
    if "hidden" in given and "ffn" not in given:
        shape = shape._replace(ffn=-(-8 * shape.hidden // 3 // 32) * 32 if shape.arch != "gpt2"
                               else 4 * shape.hidden)
    if given:
        name += " " + " ".join(f"{field}={value}" for field, value in given.items())
    return name, kind or "q4_0", shape


# ---------------------------------------------------------------------------------------
# 2. Measuring
#
# Each configuration runs in a process of its own, so that its memory is its own, and stays
# up between runs, so that several can take turns: A B A B ... in one sitting, on a machine
# that may slow down or speed up meanwhile.  The process reads commands from its standard
# input and answers on its standard output, a line of JSON each.  The code of such a process
# is functions of this file, so that another Python, which has other engines installed, can
# be handed their source.

MARK = "@kshipra-bench "                # an answer; all else on the line is somebody's chatter


def timed(tokens, n, budget_s):
    """Take n tokens from an iterator and return them, and the seconds for each.

    budget_s: after the first token; once it is used up there are fewer, but two at least
    """
    ids, seconds, last = [], [], time.perf_counter()
    while len(ids) < min(n, 2) or (len(ids) < n and sum(seconds[1:]) < budget_s):
        ids.append(next(tokens))
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
    if hasattr(tokens, "close"):
        tokens.close()
    return {"tokens": ids, "token_s": seconds}


def serve(open_engine):
    """Be the process of one engine: open what sys.argv[1] describes, then answer commands.

    open_engine(job) -> {command: function}; "stream" is a function from a prompt's ids to an
    iterator of greedy tokens, the others return what JSON can hold.
    """
    job = json.loads(sys.argv[1])
    base_mb = resident_mb()[0]
    begun = time.perf_counter()
    engine = open_engine(job)

    def answer(value):
        sys.stdout.write("\n" + job["mark"] + json.dumps(value) + "\n")
        sys.stdout.flush()

    if job.get("first"):                # the first token of this prompt, and nothing else
        answer(timed(engine["stream"](job["first"]), 1, 0))
        return
    answer({"load_s": time.perf_counter() - begun, "base_mb": base_mb})
    for line in sys.stdin:
        command = json.loads(line)
        do = command.pop("do")
        if do == "generate":
            stream = engine["stream"](command["prompt"])
            answer(timed(stream, command["n"], command.get("budget_s", 1e9)))
        elif do == "memory":
            answer(resident_mb())
        else:
            answer(engine[do](**command))


class Process:
    """An engine in a process of its own; ask(do, ...) sends a command and returns the answer."""

    def __init__(self, python, opener, job, limit_s=3600):
        self.name, self.limit_s = opener.__name__, limit_s
        ours = map(globals().get, PARTS.get(opener.__name__, ()))
        parts = [resident_mb, timed, serve, *ours, opener]
        source = "import contextlib, json, os, sys, time\n"
        if opener.__name__ in PARTS:        # of ours; another engine shall not pay for it
            source += f"sys.path.insert(0, {HERE!r})\nimport kshipra\n"
            source += ("import math, random\nfrom array import array\n"
                       "from kshipra import KshipraError\n")
        source += "\n\n".join(map(inspect.getsource, parts)) + f"\n\nserve({opener.__name__})\n"
        self.errors = tempfile.TemporaryFile()
        job = {"mark": MARK, **job}
        self.process = subprocess.Popen([python, "-c", source, json.dumps(job)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors)
        self.opened = self._answer()

    def _answer(self):
        watch = threading.Timer(self.limit_s, self.process.kill)
        watch.start()
        try:
            for line in self.process.stdout:
                if line.startswith(MARK):
                    return json.loads(line[len(MARK):])
        finally:
            watch.cancel()
        self.close()
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines() or ["no message"]
        raise KshipraError(f"{self.name}: its process ended: {lines[-1]}")

    def ask(self, do, **command):
        try:
            self.process.stdin.write(json.dumps({"do": do, **command}) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass                        # it has ended; _answer says why
        return self._answer()

    def close(self):
        """End the process and wait for it."""
        try:
            self.process.stdin.close()
            self.process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self.errors.close()


PARTS = {       # the processes of ours, and the functions each of them calls
    "open_kshipra": [], "open_ceilings": [],
    "open_rung": ["open_model", "matrices", "estimate_s", "median", "batch_tokens_per_s",
                  "traffic", "percentile", "served", "serve_together", "serve_in_turn",
                  "serve_requests", "guess_times", "figure", "ledger_mb", "profile"],
}


def median(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def figure(values):
    """Return what is reported of repeated measurements of one thing."""
    return {"median": median(values), "min": min(values), "max": max(values),
            "n": len(values)}


def spread(f):
    """Return the width of a figure's range as a share of its median."""
    return (f["max"] - f["min"]) / f["median"] if f["median"] else 0.0


def tokens_per_s(run):
    """Return the speed after the first token of what `timed` returned, None for one token."""
    later = run["token_s"][1:]
    return len(later) / math.fsum(later) if later else None


NOISE_LIMIT = 0.10                      # a spread above which nothing can be concluded


def noise():
    """Return how steady this machine is now: the same work, many times, and who else runs."""
    def work():
        begun = time.perf_counter()
        total = 0
        for i in range(100000):
            total += i
        return time.perf_counter() - begun

    seconds = sorted(work() for _ in range(40))
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"spread": (seconds[35] - seconds[4]) / seconds[20], "load": load}


def noise_warning(samples):
    """Return a sentence when the machine was too noisy to conclude, else None."""
    worst = max(sample["spread"] for sample in samples)
    if worst <= NOISE_LIMIT:
        return None
    load = samples[0]["load"]
    return (f"this machine is too noisy to conclude: the same work varied by {worst:.0%}"
            + (f", load {load:.1f} before the first run" if load is not None else "")
            + "; close what else runs and measure again")


def processor_name():
    """Return the processor's name as the system tells it."""
    try:
        with open("/proc/cpuinfo") as f:
            found = re.search(r"model name\s*:\s*(.+)", f.read())
        if found:
            return found.group(1).strip()
    except OSError:
        pass
    if sys.platform == "darwin":
        done = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if done.stdout.strip():
            return done.stdout.strip()
    return platform.processor() or platform.machine()


def commit():
    """Return the commit of this checkout, "+" behind it when files differ; None if unknown."""
    def git(*words):
        return subprocess.run(["git", "-C", HERE, *words], text=True, check=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()
    try:
        return git("rev-parse", "--short=12", "HEAD") + "+" * bool(
            git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None


def machine_facts():
    """Return what a number means nothing without."""
    memory = kshipra.free_memory_bytes()
    return {
        "system": f"{platform.system()} {platform.release()}", "machine": platform.machine(),
        "processor": processor_name(), "cores": kshipra.usable_cores(),
        "free_memory_mb": memory and round(memory / 1e6),
        "python": platform.python_version(), "commit": commit(),
    }


# ---------------------------------------------------------------------------------------
# 3. The ladder
#
# The same model and prompt, each rung one idea further.  A rung is a configuration that
# anybody can choose: the device, how the reference multiplies, how many threads, the decoding
# strategy, and whether weights stay quantized or were dequantized to a file of floats.
#
# Rungs below may be ten thousand times slower than those above.  So a rung gets a budget of
# seconds, and fewer tokens if it cannot do all; and where even the first token would not come
# in time, it is estimated from a few rows of each matrix.  Either is said in the table.  The
# factor over the rung before compares the time for the tokens that both have done.


class Rung(NamedTuple):
    """One configuration; threads None: all that pay; weights "file" or "f32"."""
    name: str
    title: str
    device: str = "native"
    matmul: Optional[str] = None        # of the reference: "naive", "tiled", "packed"
    threads: Optional[int] = None
    strategy: str = "cached"
    weights: str = "file"
    why: str = ""


RUNGS = {rung.name: rung for rung in (
    Rung("naive", "plain Python", "python", "naive", 1, "baseline",
         why="one multiply-add at a time; the interpreter takes a hundred instructions for each"),
    Rung("tiled", "+ tiles", "python", "tiled", 1, "baseline",
         why="a tile of weights is unpacked once for all rows, and a row is multiplied in bulk"),
    Rung("packed", "+ big integers", "python", "packed", 1, "baseline",
         why="all outputs of a column are multiplied by one product of two long integers"),
    Rung("python", "+ KV cache", "python", "packed", 1,
         why="each position is computed once, all of it still in plain Python"),
    Rung("simd", "machine code, float32", threads=1, strategy="baseline", weights="f32",
         why="eight float multiply-adds an instruction, but the whole text anew for each token"),
    Rung("cache", "+ KV cache", threads=1, weights="f32",
         why="each position is computed once; now every weight is read for a single row, so "
             "reading them is what takes time"),
    Rung("fused", "+ quantized weights", threads=1,
         why="a weight is unpacked, used and forgotten: several times fewer bytes to read"),
    Rung("threads", "+ all cores",
         why="cores share out the rows of each matrix; together they reach the memory's limit"),
)}


def native_refusal():
    """Return why machine code cannot be used here, or None."""
    return kshipra.choose_isa(os.environ)[1]


F32_LIMIT = 400_000_000                 # weights; above, a file of floats takes minutes to write


def default_rungs(n_weights):
    """Return (names of the rungs for this machine and model, from the lowest up; line or None).

    The line says what was left out, and why.
    """
    if native_refusal():
        return ["naive", "tiled", "packed", "python"], None
    names = ["naive", "tiled", "simd", "cache", "fused", "threads"]
    if n_weights <= F32_LIMIT:
        return names, None
    return [name for name in names if RUNGS[name].weights != "f32"], (
        "rungs simd and cache left out: writing so many weights as floats takes minutes; ask for "
        "them with --rung")


def numerics(rung):
    """Return a name for the arithmetic of a rung: rungs of one name give identical tokens."""
    return "float weights" if rung["weights"] == "f32" else "as in the file"


def float_copy(path, out):
    """Write the GGUF at path again with every matrix in F32."""
    def pieces(t):
        step = max(t.row_bytes, (1 << 20) // t.row_bytes * t.row_bytes)
        for at in range(0, t.n_bytes, step):
            yield t.format.decode(t.data[at:at + step]).tobytes()

    source = kshipra.open_checkpoint(path)
    if not isinstance(source, kshipra.GGUF):
        raise KshipraError("only GGUF files are dequantized for the rungs of float32; leave out "
                           "--rung simd and --rung cache", source.path)
    kshipra.write_gguf(out, source.metadata, [
        (t.name, FORMATS["F32"], t.shape, pieces(t)) for t in source.tensors.values()])


def open_model(job):
    """Return the Model of a rung.   job: fields of Rung, and path, ctx_size, perhaps page_size"""
    sizes = {"ctx_size": job["ctx_size"], "page_size": job.get("page_size")}
    if job["device"] != "python":
        return kshipra.load(job["path"], device=job["device"], threads=job["threads"], **sizes)
    checkpoint = kshipra.open_checkpoint(job["path"])
    return kshipra.Model(checkpoint, kshipra.tokenizer_of(checkpoint),
                         kshipra.Reference(job["matmul"]), **sizes)


def open_rung(job):
    """Serve a rung: its tokens, its memory, its time by operation."""
    base_mb = resident_mb()[0]
    model = open_model(job)

    def stream(prompt):
        model.session.truncate(0)       # nothing of the last run is reused
        return model.generate_ids(prompt, None, ignore_eos=True, strategy=job["strategy"],
                                  temperature=0)

    return {
        "stream": stream,
        "estimate": lambda: estimate_s(model, job["matmul"]),
        "ledger": lambda **sizes: ledger_mb(model, base_mb, **sizes),
        "profile": lambda **sizes: profile(model, **sizes),
        "batch": lambda **sizes: batch_tokens_per_s(model, **sizes),
        "serve": lambda **sizes: serve_requests(model, **sizes),
        "guess": lambda **sizes: guess_times(model, **sizes),
        "facts": lambda: {"device": model.ops.name, "isa": model.ops.isa,
                          "threads": model.ops.n_threads},
    }


def matrices(model):
    """Return (matrix, how many of its kind multiply a row): of experts, those that are used."""
    found = [(model.weights.lm_head, 1)]
    for layer in model.weights.layers:
        for w in vars(layer).values():
            if isinstance(w, kshipra.Tensor) and len(w.shape) == 2:
                found.append((w, 1))
            elif isinstance(w, list) and len(w[0].shape) == 2:
                found.append((w[0], model.hparams.n_used))
    return found


def estimate_s(model, matmul, n_rows=8):
    """Return (seconds a step, seconds a row) that the matrices take in plain Python.

    A few rows of one matrix of each shape and format are multiplied, by one row of
    activations and by three, and the rest is taken in proportion.
    """
    step_s = row_s = 0.0
    known = {}
    for w, n_used in matrices(model):
        key = w.format.name, w.shape
        if key not in known:
            part, share = w[:n_rows], w.shape[0] / min(n_rows, w.shape[0])
            multiply = kshipra.matmul_naive if matmul == "naive" else kshipra.matmul_tiled
            if matmul == "packed" and w.format.sub_len:
                part, multiply = kshipra.PackedWeight(part), kshipra.matmul_packed
            seconds = []
            for rows in (1, 3):
                x = [array("f", [1.0]) * w.shape[1]] * rows
                begun = time.perf_counter()
                multiply(part, x)
                seconds.append(share * (time.perf_counter() - begun))
            a_row = max(0.0, (seconds[1] - seconds[0]) / 2)
            known[key] = max(0.0, seconds[0] - a_row), a_row
        step_s, row_s = step_s + n_used * known[key][0], row_s + n_used * known[key][1]
    return step_s, row_s


def estimated_run(cost, n_prompt, n, strategy):
    """Return what `timed` would when steps and rows take `cost`, of estimate_s."""
    rows = [n_prompt + i for i in range(n)] if strategy == "baseline" \
        else [n_prompt] + [1] * (n - 1)
    steps = [-(-r // kshipra.Reference.prefill_rows) for r in rows]
    return {"tokens": [], "token_s": [cost[0] * s + cost[1] * r for s, r in zip(steps, rows)]}


def measure_rung(rung, paths, prompt, n, ctx_size, settings, say):
    """Return the result of one rung.

    paths: {"file": path or None, "f32": path}   settings: budget_s, repeats
    """
    job = {**rung._asdict(), "path": paths[rung.weights], "ctx_size": ctx_size}
    with Process(sys.executable, open_rung, job) as process:
        facts = process.ask("facts")
        say(f"{rung.name}: running")
        n_ahead, estimated = len(prompt), False
        if rung.device == "python":
            guess = estimated_run(process.ask("estimate"), n_ahead, n, rung.strategy)
            estimated = math.fsum(guess["token_s"][:2]) > 2 * settings["budget_s"]
        if estimated:
            runs = [guess]
        else:
            runs, used_s = [], 0.0
            while len(runs) < settings["repeats"] and used_s < settings["budget_s"]:
                run = process.ask("generate", prompt=prompt, n=n, budget_s=settings["budget_s"])
                used_s += math.fsum(run["token_s"])
                if not runs and settings["repeats"] > 1 and used_s < settings["budget_s"] / 4:
                    run = process.ask("generate", prompt=prompt, n=n)     # the first one warmed up
                runs.append(run)
        now_mb, peak_mb = process.ask("memory")
        held_mb = process.ask("ledger", n_prompt=n_ahead, n=len(runs[0]["token_s"]))
    if any(run["tokens"] != runs[0]["tokens"][:len(run["tokens"])] for run in runs):
        raise KshipraError(f"rung {rung.name}: two greedy runs gave different tokens; this is a "
                           "fault of kshipra, so report it with this machine's results.json")
    n_done = min(len(run["token_s"]) for run in runs)
    return {
        "name": rung.name, "title": rung.title, "why": rung.why, "weights": rung.weights,
        "strategy": rung.strategy, **facts, "estimated": estimated, "n_tokens": n_done,
        "load_s": process.opened["load_s"],
        "ttft_s": figure([run["token_s"][0] for run in runs]),
        "token_ms": figure([1000 / tokens_per_s(run) for run in runs]),
        "total_s": [median(math.fsum(run["token_s"][:i + 1]) for run in runs)
                    for i in range(n_done)],
        "tokens": runs[0]["tokens"], "rss_mb": peak_mb, "ledger_mb": held_mb,
    }


def add_factors(rungs):
    """Put into each result its factor over the one before, for the tokens that both did."""
    for before, after in zip([None] + rungs, rungs):
        after["factor"] = None
        if before:
            n = min(before["n_tokens"], after["n_tokens"])
            after["factor"] = before["total_s"][n - 1] / after["total_s"][n - 1]


def refuse_different_tokens(rungs):
    """Raise where two rungs of the same arithmetic gave different tokens."""
    first = {}
    for rung in rungs:
        other = first.setdefault(numerics(rung), rung)
        if not other["tokens"]:
            first[numerics(rung)] = rung
        elif any(a != b for a, b in zip(other["tokens"], rung["tokens"])):
            raise KshipraError(f"rungs {other['name']} and {rung['name']} gave different tokens; "
                               "this is a fault of kshipra, so report it with this machine's "
                               "processor")


# ---------------------------------------------------------------------------------------
# 4. Where time and memory go
#
# The ledger names what a process holds; what it cannot name is "rest".  The profile runs the
# operations of a prompt and of a few tokens one by one, and sets what each one moved and did
# against what this machine can do (kshipra, chapter 20): an operation that does few
# operations for each byte waits for memory, one that does many for the arithmetic units.

def ledger_mb(model, base_mb, n_prompt, n):
    """Return {name: MB} of what a process holds after n tokens; base_mb: before the model."""
    held = {name: round(n_bytes / 1e6, 3)
            for name, n_bytes in kshipra.ledger(model, n_prompt, n_prompt + n).items()}
    if base_mb is not None:
        held["Python"] = base_mb
        held["rest"] = round(max(0.0, resident_mb()[1] - sum(held.values())), 1)
    return held


def profile(model, prompt, n):
    """Return the profile of reading prompt and of n tokens after it, as SCHEMA has it."""
    model.session.truncate(0)
    rows = {"prefill": min(model.prefill_rows, len(prompt)), "decode": 1}
    return [{"phase": phase, "rows": rows[phase], "lines": lines}
            for phase, lines in kshipra.profile(model, prompt, n).items()]


# ---------------------------------------------------------------------------------------
# 5. Many texts
#
# A step reads the weights once for all of its rows.  Two measurements show what that is worth:
# texts that decode side by side, and requests that arrive whenever they like (a Poisson
# process), which the scheduler of kshipra's chapter 9 serves together, compared with serving
# them one after another in order of arrival.

def batch_tokens_per_s(model, prompt, n, n_sequences):
    """Return the tokens a second of n_sequences texts that decode side by side, one step each."""
    pool = model.new_pool(n_sequences * (-(-(len(prompt) + n) // 64) * 64), 64)
    sequences = [kshipra.Sequence(pool) for _ in range(n_sequences)]
    choose, best = kshipra.Sampler(temperature=0), []
    last = [choose(kshipra.prefill(model, seq, prompt), prompt) for seq in sequences]
    for i in range(n - 1):
        begun = time.perf_counter()
        rows = [(t, len(prompt) + i, seq) for t, seq in zip(last, sequences)]
        last = [choose(row, prompt) for row in model.step(rows)]
        best.append(time.perf_counter() - begun)
    del best[:1]                                # it records the program
    return n_sequences / median(best or [math.inf])


def traffic(n_requests, n_vocab, mean_gap_s, seed=1):
    """Return [(arrival in s, prompt ids, tokens to generate)], the same for the same seed."""
    rng, at, requests = random.Random(seed), 0.0, []
    for _ in range(n_requests):
        at += rng.expovariate(1 / mean_gap_s)
        prompt = [rng.randrange(n_vocab) for _ in range(rng.choice((8, 16, 32, 64, 128, 256)))]
        requests.append((at, prompt, rng.choice((16, 24, 32, 48, 64))))
    return requests


def percentile(values, p):
    """Return the smallest value that p % of them do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * p / 100) - 1)]


def served(requests, ends):
    """Return the figures of requests that were served.

    ends: for each (first token, last token, tokens), times since the arrivals began
    """
    first = [begun - at for (at, *_), (begun, _, _) in zip(requests, ends)]
    each = [(end - begun) / (n - 1) for begun, end, n in ends if n > 1]
    return {"tok_s": sum(n for *_, n in ends) / max(end for _, end, _ in ends),
            **{f"{name}_p{p}_ms": 1000 * percentile(values, p)
               for name, values in (("ttft", first), ("token", each)) for p in (50, 99)}}


def serve_together(model, requests):
    """Return (figures, tokens of each, what pages were held for) of the scheduler."""
    model.scheduler.pool.n_asked = model.scheduler.pool.n_found = 0
    scheduler, pool, handles, waste = model.scheduler, model.scheduler.pool, [], []
    begun = time.perf_counter()
    more = True
    while more or len(handles) < len(requests):
        now = time.perf_counter() - begun
        while len(handles) < len(requests) and requests[len(handles)][0] <= now:
            _, prompt, n = requests[len(handles)]
            handle = model._request(prompt, max_tokens=n, ignore_eos=True, temperature=0)
            handle.arrived_s = time.perf_counter() - begun
            handles.append(handle)
            scheduler.add(handle)
        more = scheduler.step()
        if scheduler.running:
            held = sum(len(r.seq.tokens) for r in scheduler.running)
            paged = pool.page_size * sum(1 for n in pool.refs if n)
            waste.append((paged / held, model.ctx_size * len(scheduler.running) / held))
        elif len(handles) < len(requests):
            time.sleep(max(0.0, requests[len(handles)][0] - now))
    ends = [(h.arrived_s + h.ttft_s, h.arrived_s + h.ttft_s + h.decode_s, len(h.ids))
            for h in handles]
    paged, contiguous = ([w[i] for w in waste] for i in (0, 1))
    return (served(requests, ends), [h.ids for h in handles],
            {"paged": median(paged), "contiguous": median(contiguous)})


def serve_in_turn(model, requests):
    """Return (figures, tokens of each) of one after another."""
    ends, ids, begun = [], [], time.perf_counter()
    for at, prompt, n in requests:
        time.sleep(max(0.0, begun + at - time.perf_counter()))
        start = time.perf_counter() - begun
        generation = model.generate(prompt, max_tokens=n, ignore_eos=True, temperature=0)
        for _ in generation:
            pass
        ends.append((start + generation.ttft_s, start + generation.ttft_s + generation.decode_s,
                     len(generation.ids)))
        ids.append(generation.ids)
    return served(requests, ends), ids


def serve_requests(model, n_requests, load=2.0):
    """Return the "serving" part of the results: the same requests served in both ways.

    They arrive `load` times as fast as they could be served one after another.
    """
    n_vocab = min(model.hparams.n_vocab, 1000)
    trial, begun = traffic(8, n_vocab, 1e-9, seed=2), time.perf_counter()
    serve_in_turn(model, trial)
    gap_s = (time.perf_counter() - begun) / len(trial) / load
    serve_together(model, traffic(n_requests, n_vocab, gap_s, seed=3))  # programs are recorded
    requests = traffic(n_requests, n_vocab, gap_s)
    together, ids, pages = serve_together(model, requests)
    in_turn, ids_in_turn = serve_in_turn(model, requests)
    if ids != ids_in_turn:
        raise KshipraError("a request served among others said something else; report it")
    return {"requests": n_requests, "load": load, "gap_ms": 1000 * gap_s, "together": together,
            "in_turn": in_turn, "pages_per_token": pages}


# Guesses: the same text with and without each drafter of kshipra's 8.2, in turns.  The tokens are
# the same, so time is all there is to compare; what it gains depends on how much a text repeats.

CODE = """def area(width, height):
    \"\"\"Return the area of a rectangle.\"\"\"
    return width * height


def volume(width, height, depth):
    \"\"\"Return the volume of a box.\"\"\"
    return width * height * depth


def surface(width, height, depth):
    \"\"\"Return the surface of a box.\"\"\"
    return 2 * (width * height + height * depth + depth * width)
"""
NEWS = ("The river rises in the hills of the north, where the snow lies until May. It passes "
        "through four towns, and at the last of them it is wide enough for ships. In summer the "
        "children swim in it, and in winter they skate on it when the frost is hard.")
TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}"
GUESSED = {
    "editing code": TURN.format("Rename width to w in this code:\n```python\n" + CODE + "```",
                                "```python\n" + CODE[:60]),
    "quoting": TURN.format(f'Quote the text word for word.\nText: "{NEWS}"',
                           'The text says: "The river rises in'),
    "not repeating": TURN.format("Tell me about the planets.", "")}
DRAFTERS = ("greedy", "lookup", "ngram", "self")
GUESS_CTX = 1024


def guess_times(model, texts, modes, n, repeats):
    """Return {text, mode, tokens, seconds, accept_rate} of each text by each drafter."""
    rows = []
    if model.hparams.n_layers == 1:             # it has no first layers that could go ahead
        modes = [mode for mode in modes if mode != "self"]
    for text, prompt in texts.items():
        if len(model.prompt_ids(prompt)) + n > model.ctx_size:
            continue                            # a small context has no room for it
        seconds, ids, rates = {mode: [] for mode in modes}, {}, {}
        for _ in range(repeats + 1):            # the first time writes programs
            for mode in modes:
                model.session.truncate(0)
                generation = model.generate(prompt, n, temperature=0, ignore_eos=True,
                                            draft=None if mode == "greedy" else mode)
                ids[mode] = list(generation.tokens())
                seconds[mode].append(generation.decode_s)
                rates[mode] = generation.speculation and generation.speculation.accept_rate
                if ids[mode] != ids["greedy"]:
                    raise ValueError(f"{mode} changes what is said of {text}: a fault of kshipra")
        rows += [{"text": text, "mode": mode, "tokens": len(ids[mode]) - 1,
                  "seconds": figure(seconds[mode][1:]), "accept_rate": rates[mode]}
                 for mode in modes]
    return rows


# ---------------------------------------------------------------------------------------
# 6. Peers
#
# Other engines on the same file with the same threads: llama.cpp by its Python binding, and
# transformers on PyTorch, which turns the file's weights into floats.  They are asked for by
# the interpreter that has them (--peer-python) and skipped by name where they are missing.
# Both processes stay up and take turns, so a ratio compares two runs that stand side by side
# in time; it is given with its range over all pairs.

def open_kshipra(job):
    """Serve this engine as a program would use it."""
    model = kshipra.load(job["path"], device=job["device"], threads=job["threads"],
                         ctx_size=job["ctx_size"])

    def stream(prompt):
        model.session.truncate(0)
        return model.generate_ids(prompt, None, ignore_eos=True, temperature=0)

    return {"stream": stream, "version": lambda: "kshipra, " + model.ops.isa}


def open_llama_cpp(job):
    """Serve llama.cpp by its C interface, mapped file, f16 cache, flash attention as it likes."""
    import ctypes
    import llama_cpp as api
    import numpy
    quiet = api.llama_log_callback(lambda level, text, data: None)
    api.llama_log_set(quiet, ctypes.c_void_p(0))
    model = api.llama_model_load_from_file(job["path"].encode(), api.llama_model_default_params())
    if not model:
        raise ValueError("llama.cpp cannot load " + job["path"])
    params = api.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = job["ctx_size"], 512, 512
    params.n_threads = params.n_threads_batch = job["threads"]
    params.n_seq_max = job.get("sequences", 1)
    context = api.llama_init_from_model(model, params)
    memory = api.llama_get_memory(context)
    n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))

    def step(tokens):
        for at in range(0, len(tokens), 512):
            part = tokens[at:at + 512]
            ids = (api.llama_token * len(part))(*part)      # the batch holds its address only
            status = api.llama_decode(context, api.llama_batch_get_one(ids, len(part)))
            if status:
                raise ValueError(f"llama_decode: status {status}")
        logits = api.llama_get_logits_ith(context, -1)
        return int(numpy.ctypeslib.as_array(logits, shape=(n_vocab,)).argmax())

    def stream(prompt):
        api.llama_memory_clear(memory, True)
        token = step(prompt)
        while True:
            yield token
            token = step([token])

    def batch(prompt, n, n_sequences):
        """As batch_tokens_per_s, of llama.cpp."""
        api.llama_memory_clear(memory, True)
        rows, seconds = api.llama_batch_init(512, 0, 1), []

        def decode(entries):
            rows.n_tokens = len(entries)
            for i, (token, pos, seq, wanted) in enumerate(entries):
                rows.token[i], rows.pos[i], rows.logits[i] = token, pos, wanted
                rows.n_seq_id[i], rows.seq_id[i][0] = 1, seq
            if api.llama_decode(context, rows):
                raise ValueError("llama_decode failed")

        for seq in range(n_sequences):
            decode([(t, i, seq, i == len(prompt) - 1) for i, t in enumerate(prompt)])
        for i in range(n - 1):
            begun = time.perf_counter()
            decode([(prompt[seq % len(prompt)], len(prompt) + i, seq, True)
                    for seq in range(n_sequences)])
            for seq in range(n_sequences):
                logits = api.llama_get_logits_ith(context, seq)
                numpy.ctypeslib.as_array(logits, shape=(n_vocab,)).argmax()
            seconds.append(time.perf_counter() - begun)
        api.llama_batch_free(rows)
        del seconds[:1]
        return n_sequences / sorted(seconds)[len(seconds) // 2]

    def version(keep=(quiet, model)):
        return f"llama.cpp, llama-cpp-python {api.__version__}"

    return {"stream": stream, "version": version, "batch": batch}


def open_transformers(job):
    """Serve transformers on PyTorch: weights dequantized to float32, its own cache."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers
    torch.set_num_threads(job["threads"])
    place, file = os.path.split(os.path.abspath(job["path"]))
    transformers.utils.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(place, gguf_file=file,
                                                              dtype=torch.float32)
    model.eval()

    def stream(prompt):
        ids, past = torch.tensor([prompt]), None
        while True:
            with torch.inference_mode():
                out = model(ids, past_key_values=past, use_cache=True, logits_to_keep=1)
            past, token = out.past_key_values, int(out.logits[0, -1].argmax())
            yield token
            ids = torch.tensor([[token]])

    return {"stream": stream, "version": lambda: f"transformers {transformers.__version__}, "
                                                 f"torch {torch.__version__}"}


PEER_PROMPT = "The capital of France is"        # its first five tokens

PEERS = {       # name: the modules it needs, and what serves it
    "llama.cpp": ("llama_cpp numpy", open_llama_cpp),
    "transformers": ("transformers torch gguf", open_transformers),
}


def find_peers(names, pythons):
    """Return ({name: interpreter}, [a line for each that is missing]).

    pythons: interpreters to look in, in order
    """
    found, missing = {}, []
    for name in names:
        modules = PEERS[name][0].split()
        code = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
        for python in pythons:
            try:
                done = subprocess.run([python, "-c", code, *modules], stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL)
            except OSError as e:
                raise KshipraError(f"cannot be run: {e.strerror}", python) from None
            if done.returncode == 0:
                found[name] = python
                break
        else:
            missing.append(f"{name} skipped: no interpreter given has {' and '.join(modules)} "
                           "(--peer-python)")
    return found, missing


def first_token_s(python, opener, job, prompt):
    """Return the seconds from starting a process until it has the first token of prompt."""
    begun = time.perf_counter()
    with Process(python, opener, {**job, "first": prompt}):
        return time.perf_counter() - begun


FIGURES = {     # name: (title, unit, whether more is better)
    "decode_tok_s":  ("decode", "tokens/s", True),
    "prefill_tok_s": ("prefill", "tokens/s", True),
    "first_s":       ("process start to first token", "s", False),
    "rss_mb":        ("peak resident memory", "MB", False),
}


def measure_pair(names, sides, prompt, long_prompt, n, repeats, say):
    """Measure two engines in turns.

    sides: two of (interpreter, opener, job)   -> {figure name: [values of A, values of B]}
    """
    values = {name: ([], []) for name in FIGURES}
    with Process(*sides[0]) as a, Process(*sides[1]) as b:
        versions = [a.ask("version"), b.ask("version")]
        for i in range(repeats + 1):                    # the first round only warms up
            for side, process in enumerate((a, b)):
                say(f"{names[side]}: round {i} of {repeats}")
                run = process.ask("generate", prompt=prompt, n=n)
                read = process.ask("generate", prompt=long_prompt, n=1)
                if i:
                    values["decode_tok_s"][side].append(tokens_per_s(run))
                    values["prefill_tok_s"][side].append(len(long_prompt) / read["token_s"][0])
        for side, process in enumerate((a, b)):
            values["rss_mb"][side].append(process.ask("memory")[1])
    for i in range(repeats):
        for side in (0, 1):
            say(f"{names[side]}: start {i + 1} of {repeats}")
            values["first_s"][side].append(first_token_s(*sides[side], prompt))
    return versions, values


def compare_pair(values):
    """Return {figure name: both figures and the ratio by which A is better, with its range}."""
    out = {}
    for name, (a, b) in values.items():
        if None in a + b:
            continue
        ratios = [x / y if FIGURES[name][2] else y / x for x, y in zip(a, b)]
        out[name] = {"ours": figure(a), "theirs": figure(b), "ratio": figure(ratios)}
    return out


def verdict(ratio):
    """Return in words what a ratio with its range allows to say."""
    if ratio["min"] <= 1 <= ratio["max"] and ratio["n"] > 1:
        return "no difference that can be told"
    return "better" if ratio["median"] > 1 else "worse"


def measure_peers(found, path, device, threads, prompt, prefill, n, repeats, say):
    """Return a result for each peer: versions, and each figure of both with its ratio."""
    results = []
    job = {"path": path, "device": device, "threads": threads,
           "ctx_size": -(-max(prefill + 1, len(prompt) + n + 1) // 64) * 64}
    for name, python in found.items():
        sides = (sys.executable, open_kshipra, job), (python, PEERS[name][1], job)
        result = {"name": name, "threads": threads, "prefill_tokens": prefill, "decode_tokens": n,
                  "failed": None, "versions": [], "figures": {}}
        try:
            versions, values = measure_pair(["kshipra", name], sides, prompt,
                                            [1 + i % 200 for i in range(prefill)], n, repeats, say)
            result.update(versions=versions, figures=compare_pair(values))
        except KshipraError as e:       # a peer that cannot load this file is a finding too
            result["failed"] = str(e)
        results.append(result)
    return results


# ---------------------------------------------------------------------------------------
# 7. Results
#
# What was measured is one object, written as results.json: its shape is SCHEMA, and the
# version in it grows when a reader of the old one would stumble.  The tables on the terminal
# and in results.md are made from that object and nothing else.

SCHEMA_NAME = "kshipra-bench/3"

# A value, said by an example of its type: a list holds things like its one element, an
# object has these keys, None is allowed beside whatever else a tuple names.
NUMBER = (int, float)
FIGURE = {"median": NUMBER, "min": NUMBER, "max": NUMBER, "n": int}
SERVED = {"tok_s": NUMBER, "ttft_p50_ms": NUMBER, "ttft_p99_ms": NUMBER, "token_p50_ms": NUMBER,
          "token_p99_ms": NUMBER}
LINE = {"operation": str, "calls": int, "seconds": NUMBER, "bytes": NUMBER, "operations": NUMBER}
SCHEMA = {
    "schema": str, "when": str,
    "machine": {"system": str, "machine": str, "processor": str, "cores": int,
                "free_memory_mb": (int, None), "python": str, "commit": (str, None)},
    "model": {"name": str, "architecture": str, "weights": NUMBER, "file_mb": NUMBER,
              "types": str},
    "work": {"prompt_tokens": int, "max_tokens": int, "ctx_size": int, "repeats": int,
             "budget_s": NUMBER, "threads": (int, None)},
    "noise": [{"spread": NUMBER, "load": (float, None)}],
    "warning": (str, None),
    "ladder": [{
        "name": str, "title": str, "why": str, "weights": str, "strategy": str, "device": str,
        "isa": str, "threads": int, "estimated": bool, "n_tokens": int, "load_s": NUMBER,
        "ttft_s": FIGURE, "token_ms": FIGURE, "total_s": [NUMBER], "tokens": [int],
        "rss_mb": (int, float, None), "ledger_mb": {}, "factor": (int, float, None)}],
    "batches": [{"name": str, "sequences": int, "tok_s": FIGURE}],
    "serving": ({"requests": int, "load": NUMBER, "gap_ms": NUMBER, "together": SERVED,
                 "in_turn": SERVED, "pages_per_token": {"paged": NUMBER, "contiguous": NUMBER}},
                None),
    "guesses": [{"text": str, "mode": str, "tokens": int, "seconds": FIGURE,
                 "accept_rate": (int, float, None)}],
    "ceilings": ({"read_bytes_s": NUMBER, "int8_ops_s": NUMBER, "f32_ops_s": NUMBER,
                  "threads": int}, None),
    "profile": [{"phase": str, "rows": int, "rung": str, "lines": [LINE]}],
    "peers": [{"name": str, "threads": int, "prefill_tokens": int, "decode_tokens": int,
               "failed": (str, None), "versions": [str], "figures": {}}],
    "skipped": [str],
}


def check_results(value, schema=SCHEMA, where="results"):
    """Raise KshipraError naming the place where `value` is not of the shape of `schema`."""
    choices = schema if isinstance(schema, tuple) else (schema,)
    if value is None and None in choices:
        return
    for choice in choices:
        if isinstance(choice, dict) and isinstance(value, dict):
            if choice and set(choice) != set(value):
                odd = sorted(set(choice) ^ set(value))
                raise KshipraError(f"{where}: {', '.join(odd)} missing or not known in "
                                   f"{SCHEMA_NAME}; measure again with this bench.py")
            for key in choice:
                check_results(value[key], choice[key], f"{where}.{key}")
            return
        if isinstance(choice, list) and isinstance(value, list):
            for i, item in enumerate(value):
                check_results(item, choice[0], f"{where}[{i}]")
            return
        if isinstance(choice, type) and isinstance(value, choice) \
                and isinstance(value, bool) == (choice is bool) \
                and (not isinstance(value, float) or math.isfinite(value)):
            return
    raise KshipraError(f"{where} is {value!r:.60}, which is not of {SCHEMA_NAME}; measure again "
                       "with this bench.py")


def read_results(path):
    """Return the object of a results.json, checked."""
    try:
        with open(path, encoding="utf-8") as f:
            value = json.load(f)
    except OSError as e:
        raise KshipraError(f"cannot be read: {e.strerror}", path) from None
    except ValueError as e:
        raise KshipraError(f"is not JSON ({e}); give a results.json", path) from None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA_NAME:
        found = value.get("schema") if isinstance(value, dict) else type(value).__name__
        raise KshipraError(f"schema {found!r} is not {SCHEMA_NAME!r}; measure again with this "
                           "bench.py", path)
    check_results(value)
    return value


def range_text(f, scale=1.0):
    """Return a figure as median and how far its range reaches to both sides."""
    if f["n"] < 2:
        return short(f["median"] * scale)
    return f"{short(f['median'] * scale)} ±{100 * spread(f) / 2:.0f}%"


class Table(NamedTuple):
    """A title, a sentence, column heads ("<" before one: text, to the left) and rows of str."""
    title: str
    note: str
    heads: list
    rows: list


def ladder_table(results):
    rows = []
    for rung in results["ladder"]:
        ms = rung["token_ms"]
        n, asked = rung["n_tokens"], results["work"]["max_tokens"]
        remark = "estimated from some rows" if rung["estimated"] else \
            f"{n} of {asked} tokens" if n < asked else ""
        rows.append([rung["name"], rung["title"], rung["isa"], str(rung["threads"]),
                     duration(rung["ttft_s"]["median"]), range_text(ms),
                     short(1000 / ms["median"]), short(rung["rss_mb"]),
                     "" if rung["factor"] is None else "x " + short(rung["factor"]), remark])
    work = results["work"]
    return Table(
        "The ladder", f"{work['prompt_tokens']} tokens of prompt, {work['max_tokens']} generated, "
        f"greedy; medians of up to {work['repeats']} runs and half their range.  factor: over the "
        "rung before, for the tokens that both did.",
        ["<rung", "<what", "<isa", "threads", "first token", "ms/token", "tokens/s", "peak MB",
         "factor", "<"], rows)


def ledger_table(results):
    names = list(dict.fromkeys(name for rung in results["ladder"] for name in rung["ledger_mb"]))
    rows = [[rung["name"]] + [short(rung["ledger_mb"].get(name)) for name in names]
            + [short(rung["rss_mb"])] for rung in results["ladder"]]
    return Table("Memory, in MB", "weights are mapped from the file, so the system can drop them; "
                 "rest is the peak less everything named: code, temporary lists, the allocator.",
                 ["<rung", *names, "peak"], rows)


def profile_table(results, part):
    """Return the table of one phase: where its time goes, and against what limit it runs."""
    heads, rows = kshipra.profile_rows(part["lines"], results["ceilings"])
    return Table(f"Where the time of {part['phase']} goes",
                 f"rung {part['rung']}, rows a step: {part['rows']}; "
                 f"{kshipra.limits_text(results['ceilings'])}.", heads, rows)


def peer_table(results):
    rows = []
    for peer in results["peers"]:
        if peer["failed"]:
            rows.append([peer["name"], "failed", "", "", "", peer["failed"]])
        for name, found in peer["figures"].items():
            title, unit, _ = FIGURES[name]
            ratio = found["ratio"]
            rows.append([peer["name"], f"{title}, {unit}", range_text(found["ours"]),
                         range_text(found["theirs"]),
                         f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})",
                         verdict(ratio)])
    notes = [f"{peer['name']}: {' beside '.join(peer['versions'])}, {peer['threads']} threads, "
             f"{peer['decode_tokens']} tokens decoded, {peer['prefill_tokens']} read."
             for peer in results["peers"]]
    return Table("Beside others", "same file, same threads, runs in turns; ratio above 1: kshipra "
                 "is better.  " + "  ".join(notes),
                 ["<peer", "<figure", "kshipra", "peer", "ratio (range)", "<"], rows)


def batch_table(results):
    rows, alone = [], {}
    for b in results["batches"]:
        speed = b["tok_s"]["median"] / b["sequences"]
        alone.setdefault(b["name"], speed if b["sequences"] == 1 else None)
        gain = alone[b["name"]] and b["tok_s"]["median"] / alone[b["name"]]
        rows.append([b["name"], str(b["sequences"]), range_text(b["tok_s"]),
                     f"x {short(gain)}" if gain else ""])
    return Table("Side by side", "texts that are decoded together, a step for all of them; gain: "
                 "over one text of the same engine.",
                 ["<engine", "texts", "tokens/s", "gain"], rows)


def serving_table(results):
    found, rows, note = results["serving"], [], ""
    if found:
        held = found["pages_per_token"]
        note = (f"{found['requests']} requests of 8 to 256 tokens, each continued by 16 to 64, "
                f"arriving {short(found['load'])} times as fast as they can be served in turn. "
                "Memory held for a token: "
                f"{held['paged']:.2f} positions in pages, {held['contiguous']:.2f} if each text "
                "had a context of its own.")
        for name, way in (("together", "together"), ("one after another", "in_turn")):
            f = found[way]
            rows.append([name, short(f["tok_s"])] + [duration(f[key] / 1000) for key in (
                "ttft_p50_ms", "ttft_p99_ms", "token_p50_ms", "token_p99_ms")])
    return Table("Requests that come and go", note, [
        "<served", "tokens/s", "first token, median", "99 %", "each token, median", "99 %"], rows)


def guess_table(results):
    rows, plain = [], None
    for g in results["guesses"]:
        speed = g["tokens"] / g["seconds"]["median"]
        plain = speed if g["mode"] == "greedy" else plain
        rate = g["accept_rate"]
        rows.append([g["text"], g["mode"], "contiguous", "1", str(g["tokens"]),
                     range_text(g["seconds"]), short(speed), f"x {short(speed / plain)}",
                     "" if rate is None else f"{rate:.0%}"])
    return Table("Guesses", "the same tokens, some of them guessed ahead; greedy: none.",
                 ["<text", "<mode", "<cache", "batch", "tokens", "seconds", "tokens/s", "gain",
                  "accepted"], rows)


# Figures that the first engines of this project's kind published, each for a machine of its
# own: they set the scale, and are no comparison.
PUBLISHED = {
    "gpt2-124m:q8_0": "a torch engine of the same shape: first token 0.1263 s, 5.52 tokens/s, "
                      "799 MB",
    "llama n_layers=3 hidden=96 n_heads=6:q4_0": "a NumPy engine with 4-bit weights, 48 tokens: "
                                                 "137 tokens/s greedy, 426 in a batch of 4",
}


def tables(results):
    """Return the Tables of a result, those without rows left out."""
    made = [ladder_table(results), ledger_table(results), batch_table(results),
            serving_table(results), guess_table(results)]
    made += [profile_table(results, part) for part in results["profile"]]
    made.append(peer_table(results))
    return [t for t in made if t.rows]


def headline(results):
    """Return lines that say what was measured on what."""
    machine, model = results["machine"], results["model"]
    lines = [
        f"{model['name']}: {model['architecture']}, {count(model['weights'])} weights, "
        f"{short(model['file_mb'])} MB, {model['types']}",
        f"{machine['processor']}, {machine['cores']} cores, {machine['system']}, "
        f"Python {machine['python']}, commit {machine['commit'] or 'unknown'}, {results['when']}"]
    if model["name"] in PUBLISHED:
        lines.append("Published elsewhere, for another machine: " + PUBLISHED[model["name"]])
    lines += results["skipped"]
    if results["warning"]:
        lines.append("Warning: " + results["warning"])
    return lines


def table_text(table):
    """Return a table in aligned columns."""
    return "\n".join(["", f"{table.title}.  {table.note}", "", aligned(table.heads, table.rows)])


def table_markdown(table):
    """Return a table in Markdown."""
    def line(cells):
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    heads = [head.lstrip("<") for head in table.heads]
    rules = ["---" if head.startswith("<") else "---:" for head in table.heads]
    return "\n".join(["", f"## {table.title}", "", table.note, "", line(heads), line(rules),
                      *map(line, table.rows)])


def results_markdown(results):
    """Return results.md."""
    lines = ["# kshipra, measured", "", *(line + "  " for line in headline(results)), "",
             "![milliseconds per token, rung by rung](latency_comparison.png)"]
    for table in tables(results):
        lines.append(table_markdown(table))
        if table.title == "The ladder":
            lines += ["", *(f"- {rung['name']}: {rung['why']}." for rung in results["ladder"])]
    return "\n".join(lines) + "\n"


def comparable(results):
    """Yield (what, figure, whether more is better) for everything that two results may share."""
    for rung in results["ladder"]:
        if not rung["estimated"]:
            yield f"{rung['name']}: ms per token", rung["token_ms"], False
            yield f"{rung['name']}: first token, s", rung["ttft_s"], False
        if rung["rss_mb"]:
            yield f"{rung['name']}: peak MB", figure([rung["rss_mb"]]), False
    for batch in results["batches"]:
        yield f"{batch['name']}: {batch['sequences']} side by side, tokens/s", batch["tok_s"], True
    for peer in results["peers"]:
        for name, found in peer["figures"].items():
            yield f"against {peer['name']}: {FIGURES[name][0]}, ratio", found["ratio"], True


def compare(a, b):
    """Return (Table of all shared figures, [names of those that got worse]).

    A figure got worse when its median did by more than 5 % and the ranges do not overlap.
    """
    for key in ("model", "work"):
        if a[key] != b[key]:
            raise KshipraError(f"the two measured different work: {key} is {a[key]} and {b[key]}; "
                               "measure one of them again")
    after, rows, worse = dict((w, f) for w, f, _ in comparable(b)), [], []
    for what, old, more in comparable(a):
        new = after.get(what)
        if new is None or not old["median"]:
            continue
        change = new["median"] / old["median"] - 1
        apart = new["max"] < old["min"] if more else new["min"] > old["max"]
        bad = apart and (-change if more else change) > 0.05
        rows.append([what, range_text(old), range_text(new), f"{change:+.1%}",
                     "worse" if bad else ""])
        if bad:
            worse.append(what)
    note = "the same machine" if a["machine"]["processor"] == b["machine"]["processor"] \
        else f"two machines: {a['machine']['processor']}; {b['machine']['processor']}"
    warnings = [r["warning"] for r in (a, b) if r["warning"]]
    return Table("A against B", "; ".join([note, *warnings]),
                 ["<figure", "A", "B", "change", "<"], rows), worse


# ---------------------------------------------------------------------------------------
# 8. The picture
#
# A PNG file is a header, the rows of pixels run through zlib, and a check sum on each part;
# that needs no library.  Letters are drawn from a small bitmap font: each dot of a letter is
# a point, neighbouring dots are joined by strokes, and a pixel is as dark as it is near to
# one, so the same dots give smooth letters at any size.
# Source: PNG specification, third edition (2025), sections 5 and 11.

# Ten lines a row of letters: the letters, each over its first column, then their dots.  Two
# columns lie between letters; the last two lines are below the baseline.
FONT_DOTS = r"""
!  "    #      $      %      &      '  (    )    *      +      ,   -     .
#  # #   # #     #    ##  #   ##    #    #  #
#  # #   # #    ####  ##  #  #  #   #   #    #     #      #
#       #####  # #       #   # #       #      #  # # #    #
#        # #    ###     #     #        #      #   ###   #####      ####
#       #####    # #   #     # # #     #      #  # # #    #
         # #   ####   #  ##  #  #       #    #     #      #     #
#        # #     #    #  ##   ## #       #  #                   #        #
                                                               #

/      0      1      2      3      4      5      6      7      8      9      :  ;   <
    #   ###     #     ###    ###      #   #####   ###   #####   ###    ###             #
    #  #   #   ##    #   #  #   #    ##   #      #          #  #   #  #   #           #
   #   #   #  # #        #      #   # #   ####   #         #   #   #  #   #  #   #   #
  #    #   #    #       #     ##   #  #       #  ####     #     ###    ####         #
 #     #   #    #      #        #  #####      #  #   #    #    #   #      #          #
#      #   #    #     #     #   #     #   #   #  #   #   #     #   #      #  #   #    #
#       ###   #####  #####   ###      #    ###    ###    #      ###    ###       #     #
                                                                                #

=     >     ?      @      A      B      C      D      E      F      G      H      I    J
      #      ###    ###     #    ####    ###   ####   #####  #####   ###   #   #  ###     #
       #    #   #  #   #   # #   #   #  #   #  #   #  #      #      #   #  #   #   #      #
####    #       #  # ###  #   #  #   #  #      #   #  #      #      #      #   #   #      #
         #     #   # # #  #   #  ####   #      #   #  ####   ####   # ###  #####   #      #
####    #     #    # ###  #####  #   #  #      #   #  #      #      #   #  #   #   #      #
       #           #      #   #  #   #  #   #  #   #  #      #      #   #  #   #   #   #  #
      #       #     ###   #   #  ####    ###   ####   #####  #       ###   #   #  ###   ##


K      L      M      N      O       P      Q       R      S      T      U      V      W      X
#   #  #      #   #  #   #   ####   ####    ####   ####    ####  #####  #   #  #   #  #   #  #   #
#  #   #      ## ##  ##  #  #    #  #   #  #    #  #   #  #        #    #   #  #   #  #   #  #   #
# #    #      # # #  # # #  #    #  #   #  #    #  #   #  #        #    #   #  #   #  #   #   # #
##     #      # # #  #  ##  #    #  ####   #    #  ####    ###     #    #   #   # #   # # #    #
# #    #      #   #  #   #  #    #  #      #  # #  # #        #    #    #   #   # #   # # #   # #
#  #   #      #   #  #   #  #    #  #      #   #   #  #       #    #    #   #   # #   ## ##  #   #
#   #  #####  #   #  #   #   ####   #       ### #  #   #  ####     #     ###     #    #   #  #   #


Y      Z      [    \      ]    ^      _      `   a      b      c     d      e      f
#   #  #####  ###  #      ###    #           #          #                #           ##
#   #      #  #    #        #   # #           #         #                #          #
 # #      #   #     #       #  #   #              ###   ####    ###   ####   ###   ###
  #      #    #      #      #                        #  #   #  #     #   #  #   #   #
  #     #     #       #     #                     ####  #   #  #     #   #  #####   #
  #    #      #        #    #                    #   #  #   #  #     #   #  #       #
  #    #####  ###      #  ###         #####       ####  ####    ###   ####   ####   #


g      h      i  j    k     l   m        n      o      p      q      r     s     t
       #      #    #  #     #                                                     #
       #              #     #                                                     #
 ####  ####   #    #  #  #  #   ### ##   ####    ###   ####    ####  # ##   ###  ####
#   #  #   #  #    #  # #   #   #  #  #  #   #  #   #  #   #  #   #  ##    #      #
#   #  #   #  #    #  ##    #   #  #  #  #   #  #   #  #   #  #   #  #      ##    #
#   #  #   #  #    #  # #   #   #  #  #  #   #  #   #  #   #  #   #  #        #   #
 ####  #   #  #    #  #  #   #  #  #  #  #   #   ###   ####    ####  #     ###     ##
    #              #                                   #          #
 ###             ##                                    #          #
u      v      w      x      y      z     {    |  }    ~
                                           #  #  #
                                          #   #   #
#   #  #   #  #   #  #   #  #   #  ####   #   #   #    #
#   #  #   #  #   #   # #   #   #     #  #    #    #  # # #
#   #   # #   # # #    #    #   #   ##    #   #   #      #
#   #   # #   # # #   # #   #   #  #      #   #   #
 ####    #     # #   #   #   ####  ####    #  #  #
                                #             #
                             ###              #
"""
GLYPH_LINES = 9
BASELINE = 7                            # lines of dots above it


def read_font(text):
    """Return {letter: (width in dots, strokes)}; a stroke joins two dots (x, y, x, y)."""
    lines, font = text.strip("\n").split("\n"), {" ": (3, [])}
    for at in range(0, len(lines), 1 + GLYPH_LINES):
        head = lines[at]
        starts = [i for i, letter in enumerate(head) if letter != " "]
        ends = [start - 2 for start in starts[1:]] + [None]
        for start, end in zip(starts, ends):
            dots = {(x, y) for y, line in enumerate(lines[at + 1:at + 1 + GLYPH_LINES])
                    for x, dot in enumerate(line[start:end]) if dot == "#"}
            font[head[start]] = 1 + max(x for x, _ in dots), strokes(dots)
    return font


def strokes(dots):
    """Return the strokes between neighbouring dots; a lone dot is a stroke of no length.

    Diagonal neighbours are joined where no dot beside them joins them already.
    """
    found, joined = [], set()
    for x, y in sorted(dots):
        for dx, dy in ((1, 0), (0, 1), (1, 1), (1, -1)):
            other = (x + dx, y + dy)
            if other in dots and not (dx and dy and {(x + dx, y), (x, y + dy)} & dots):
                found.append((x, y, *other))
                joined |= {(x, y), other}
    return found + [(x, y, x, y) for x, y in sorted(dots - joined)]


FONT = read_font(FONT_DOTS)


def from_stroke(x, y, stroke):
    """Return the distance of a point from a stroke."""
    ax, ay, bx, by = stroke
    dx, dy = bx - ax, by - ay
    length = dx * dx + dy * dy
    t = max(0.0, min(1.0, ((x - ax) * dx + (y - ay) * dy) / length)) if length else 0.0
    return math.hypot(x - ax - t * dx, y - ay - t * dy)


class Canvas:
    """An image of RGB bytes, drawn on from the top left; colours are (r, g, b)."""

    def __init__(self, width, height, colour):
        self.width, self.height = width, height
        self.rgb = bytearray(bytes(colour) * (width * height))
        self.glyphs = {}

    def blend(self, x, y, colour, cover):
        """Put a colour over `cover`, 0 to 1, of one pixel."""
        if 0 <= x < self.width and 0 <= y < self.height:
            at = 3 * (y * self.width + x)
            for i, c in enumerate(colour):
                self.rgb[at + i] = round(self.rgb[at + i] + cover * (c - self.rgb[at + i]))

    def fill(self, x, y, width, height, colour):
        """Fill a rectangle whose right side may lie inside a pixel."""
        whole = int(width)
        for line in range(y, y + height):
            at = 3 * (line * self.width + x)
            self.rgb[at:at + 3 * whole] = bytes(colour) * whole
            if width > whole:
                self.blend(x + whole, line, colour, width - whole)

    def glyph(self, letter, dot, weight):
        """Return (pixels, advance) of a letter; pixels: [(x, y, cover)].   dot, weight: pixels"""
        key = letter, dot, weight
        if key not in self.glyphs:
            width, lines = FONT.get(letter, FONT["?"])
            pixels = []
            for y in range(-1, math.ceil(GLYPH_LINES * dot) + 1):
                for x in range(-1, math.ceil(width * dot) + 1):
                    # Dots are the middles of their squares.
                    u, v = (x + 0.5) / dot - 0.5, (y + 0.5) / dot - 0.5
                    near = min((from_stroke(u, v, s) for s in lines), default=math.inf) * dot
                    cover = min(1.0, weight / 2 - near + 0.5)
                    if cover > 0:
                        pixels.append((x, y, cover))
            self.glyphs[key] = pixels, (width + 1.5) * dot
        return self.glyphs[key]

    def text_width(self, text, height):
        return sum(self.glyph(c, height / BASELINE, height / 7)[1] for c in text)

    def text(self, x, y, text, height, colour, align="left", bold=False):
        """Write text whose capitals stand `height` pixels high on y; align: of x."""
        dot, weight = height / BASELINE, height / (5.5 if bold else 7.5)
        letters = [self.glyph(c, dot, weight) for c in text]
        width = sum(advance for _, advance in letters)
        x -= {"left": 0, "right": width, "middle": width / 2}[align]
        for pixels, advance in letters:
            for px, py, cover in pixels:
                self.blend(round(x) + px, y - height + py, colour, cover)
            x += advance

    def png(self):
        """Return the image as the bytes of a PNG file."""
        def chunk(kind, data):
            body = kind + data
            return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

        stride = 3 * self.width
        rows = b"".join(b"\0" + self.rgb[at:at + stride]       # 0: no filter
                        for at in range(0, len(self.rgb), stride))
        head = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) \
            + chunk(b"IDAT", zlib.compress(bytes(rows), 9)) + chunk(b"IEND", b"")


INK, SOFT, RULE, PAPER = (28, 32, 40), (110, 118, 130), (226, 229, 234), (255, 255, 255)
COLOURS = {"python": (124, 133, 149), "native": (20, 120, 200), "peer": (214, 126, 44)}


class Bar(NamedTuple):
    """One line of the chart."""
    label: str
    detail: str
    ms: float
    kind: str                           # of COLOURS
    remark: str


def bars(results):
    """Return the chart's bars: the ladder, then the peers where they decoded."""
    made = []
    for rung in results["ladder"]:
        ms = rung["token_ms"]["median"]
        remark = f"{short(1000 / ms)} tokens/s"
        if rung["estimated"]:
            remark += ", estimated"
        if rung["factor"]:
            remark += f"   x {short(rung['factor'])}"
        threads = f"{rung['threads']} thread" + "s" * (rung["threads"] > 1)
        made.append(Bar(rung["title"], f"{rung['isa']}, {threads}", ms,
                        "python" if rung["device"] == "python" else "native", remark))
    for peer in results["peers"]:
        found = peer["figures"].get("decode_tok_s")
        if found:
            speed = found["theirs"]["median"]
            made.append(Bar(peer["name"], f"peer, {peer['threads']} threads", 1000 / speed, "peer",
                            f"{short(speed)} tokens/s"))
    return made


def axis(values):
    """Return (function from a value to 0..1, ticks): logarithmic where values differ tenfold."""
    low, high = min(values), max(values)
    if high <= 10 * low:
        step = 10 ** math.floor(math.log10(high))
        step = next(s for s in (step / 5, step / 2, step, 2 * step) if high / s <= 6)
        end = step * math.ceil(high / step)
        return lambda v: v / end, [step * i for i in range(math.ceil(high / step) + 1)]
    first, last = math.floor(math.log10(low) - 0.2), math.ceil(math.log10(high))
    return (lambda v: (math.log10(v) - first) / (last - first),
            [10.0 ** e for e in range(first, last + 1)])


def tick_text(ms):
    """Return a tick's milliseconds as a person would say them."""
    return f"{ms / 1000:,.6g} s" if ms >= 1000 else f"{ms:,.6g} ms" if ms >= 0.1 or ms == 0 \
        else f"{ms * 1000:,.6g} us"


WIDTH, HEIGHT = 1200, 800
CHART_LEFT, CHART_RIGHT, CHART_TOP, CHART_BOTTOM = 290, 1000, 150, 716


def serving_bars(results):
    """Return the bars of serving.png: both ways of serving, by each of their times."""
    found, made = results["serving"], []
    for key, label in (("ttft_p50_ms", "first token, median"),
                       ("ttft_p99_ms", "first token, 99 %"),
                       ("token_p50_ms", "each token, median"),
                       ("token_p99_ms", "each token, 99 %")):
        for way, detail, kind in (("together", "together", "native"),
                                  ("in_turn", "one after another", "peer")):
            remark = ""
            if way == "together":
                remark = f"x {short(found['in_turn'][key] / found[way][key])}"
            made.append(Bar(label, detail, found[way][key], kind, remark))
    return made


def picture(results):
    """Return latency_comparison.png: milliseconds per token, a bar for each rung and peer."""
    return chart(results, "Time for one token", bars(results), {
        "python": "plain Python", "native": "machine code written by Python",
        "peer": "another engine"})


def serving_picture(results):
    """Return serving.png: how long requests wait when they are served together and in turn."""
    found = results["serving"]
    title = f"{found['requests']} requests that come and go"
    return chart(results, title, serving_bars(results), {
        "native": f"together: {short(found['together']['tok_s'])} tokens/s",
        "peer": f"one after another: {short(found['in_turn']['tok_s'])} tokens/s"})


def chart(results, title, lines, kinds):
    """Return a PNG of bars, with the model, the machine and what the colours mean."""
    canvas = Canvas(WIDTH, HEIGHT, PAPER)
    model, machine = results["model"], results["machine"]
    canvas.text(40, 62, title, 28, INK, bold=True)
    canvas.text(40, 94, f"{model['name']}, {count(model['weights'])} weights, {model['types']}",
                14, SOFT)
    place, ticks = axis([bar.ms for bar in lines])
    scale = "logarithmic scale" if ticks[0] else "linear scale"
    canvas.text(WIDTH - 40, 62, f"shorter is faster, {scale}", 14, SOFT, "right")
    width = CHART_RIGHT - CHART_LEFT
    for tick in ticks:
        x = round(CHART_LEFT + width * place(tick))
        canvas.fill(x, CHART_TOP - 12, 1, CHART_BOTTOM - CHART_TOP + 12, RULE)
        canvas.text(x, CHART_TOP - 20, tick_text(tick), 12, SOFT, "middle")
    step = (CHART_BOTTOM - CHART_TOP) / max(1, len(lines))
    thick = min(44, round(step * 0.62))
    for i, bar in enumerate(lines):
        top = round(CHART_TOP + step * i + (step - thick) / 2)
        length = max(3.0, width * place(bar.ms))
        canvas.fill(CHART_LEFT, top, length, thick, COLOURS[bar.kind])
        middle = top + thick // 2
        canvas.text(CHART_LEFT - 16, middle - 2, bar.label, 14, INK, "right", bold=True)
        canvas.text(CHART_LEFT - 16, middle + 17, bar.detail, 11, SOFT, "right")
        label, right = duration(bar.ms / 1000), round(CHART_LEFT + length)
        label_width = round(canvas.text_width(label, 15)) + 14
        remark_width = round(canvas.text_width(bar.remark, 13))
        if length > label_width + remark_width + 30:            # all of it fits into the bar
            canvas.text(right - 12 - remark_width - 14, middle + 7, label, 15, PAPER, "right",
                        bold=True)
            canvas.text(right - 12, middle + 6, bar.remark, 13, PAPER, "right")
        else:
            # The paper behind the words hides the rules.
            canvas.fill(right + 12, middle - 8, label_width + remark_width, 16, PAPER)
            canvas.text(right + 12, middle + 7, label, 15, INK, bold=True)
            canvas.text(right + 12 + label_width, middle + 6, bar.remark, 13, SOFT)
    canvas.fill(CHART_LEFT, CHART_TOP - 12, 2, CHART_BOTTOM - CHART_TOP + 12, INK)
    x = 40
    for kind, title in kinds.items():
        if any(bar.kind == kind for bar in lines):
            canvas.fill(x, HEIGHT - 58, 14, 14, COLOURS[kind])
            canvas.text(x + 22, HEIGHT - 45, title, 13, INK)
            x += 22 + round(canvas.text_width(title, 13)) + 30
    canvas.text(40, HEIGHT - 18, f"{machine['processor']}, {machine['cores']} cores, Python "
                f"{machine['python']}" + (", on a noisy machine" if results["warning"] else ""),
                12, SOFT)
    return canvas.png()


# ---------------------------------------------------------------------------------------
# 9. The command

def build_parser():
    """Return the argparse parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="bench.py", description="Measure kshipra on this machine: the ladder from plain "
        "Python to machine code, memory, limits, other engines.")
    add = parser.add_argument
    add("-m", "--model", metavar="PATH", help="GGUF file (default: the model in kshipra.py)")
    add("--shape", metavar="NAME:TYPE", help="random weights in the shape of "
        + ", ".join(SHAPES) + "; TYPE: Q4_K_M, Q8_0 ... (default: Q4_0)")
    for option, field in (("--hidden-dim", "hidden"), ("--n-layers", "n_layers"),
                          ("--n-heads", "n_heads"), ("--n-kv-heads", "n_kv_heads"),
                          ("--ffn-dim", "ffn"), ("--vocab-size", "n_vocab")):
        add(option, type=int, metavar="N", dest=field, help=f"{field} of the shape")
    add("--keep", metavar="PATH", help="write the shape's file there and keep it")
    add("-p", "--prompt", default="Once upon a time", metavar="TEXT",
        help="(default: Once upon a time)")
    add("--prompt-tokens", type=int, metavar="N", help="N arbitrary tokens as the prompt")
    add("-n", "--max-tokens", type=int, default=48, metavar="N",
        help="tokens to generate on each rung (default: 48)")
    add("-t", "--threads", type=int, metavar="N", help="threads (default: all that pay)")
    add("--rung", action="append", choices=RUNGS, metavar="NAME",
        help="only this rung, may be given several times: " + ", ".join(RUNGS))
    add("--no-ladder", action="store_true", help="measure peers only")
    add("--repeats", type=int, default=3, metavar="N", help="runs of each (default: 3)")
    add("--budget", type=float, default=8.0, metavar="S",
        help="seconds for a rung, more or less (default: 8)")
    add("--batch", type=int, action="append", default=[], metavar="N",
        help="also decode N texts side by side on the uppermost rung")
    add("--serve", type=int, default=0, metavar="N",
        help="also serve N requests that arrive at random, together and one after another")
    add("--guess", action="store_true",
        help="also let drafters guess tokens ahead, on texts that repeat and on one that does not")
    add("--peers", action="append", choices=PEERS, metavar="NAME",
        help="only this peer, may be given several times: " + ", ".join(PEERS))
    add("--no-peers", action="store_true", help="leave the other engines out")
    add("--peer-python", action="append", metavar="PATH", default=[],
        help="interpreter that has peers, may be given several times (default: this one)")
    add("--prefill", type=int, default=512, metavar="N",
        help="tokens that peers and we read (default: 512)")
    add("--decode", type=int, default=128, metavar="N",
        help="tokens that peers and we decode (default: 128)")
    add("--out", default="results", metavar="DIR",
        help="where results.md, results.json and latency_comparison.png go (default: results)")
    add("--compare", nargs=2, metavar=("A.json", "B.json"),
        help="measure nothing; print what changed from A to B and name what got worse")
    return parser


def progress_line(stream=None):
    """Return say(text), which shows what runs now on a terminal's last line."""
    stream = stream or sys.stderr

    def say(text):
        if stream.isatty():
            stream.write("\r\x1b[K" + text[:78])
            stream.flush()
    return say


def model_facts(path, name):
    """Return the "model" part of the results."""
    checkpoint = kshipra.open_checkpoint(path)
    tensors, numbers = checkpoint.tensors.values(), checkpoint
    numbers = checkpoint.metadata if isinstance(checkpoint, kshipra.GGUF) else checkpoint.config
    matrices = [t for t in tensors if len(t.shape) > 1]
    by_type = {}
    for t in matrices:
        by_type[t.format.name] = by_type.get(t.format.name, 0) + t.n_bytes
    types = sorted(by_type, key=by_type.get, reverse=True)
    return {"name": name, "architecture": str(numbers.get("general.architecture")
                                              or numbers.get("model_type")),
            "weights": sum(t.size for t in tensors),
            "file_mb": round(sum(t.n_bytes for t in tensors) / 1e6, 1), "types": " ".join(types)}


def prompt_ids(path, args):
    """Return the prompt's tokens."""
    if args.prompt_tokens:
        return [1 + i % 200 for i in range(args.prompt_tokens)]
    return kshipra.tokenizer_of(kshipra.open_checkpoint(path)).encode(args.prompt)


def chosen_rungs(args, results):
    """Return the Rungs to measure, refusing those that cannot run here."""
    names, left_out = args.rung, None
    if not names:
        names, left_out = default_rungs(results["model"]["weights"])
    results["skipped"] += [left_out] * bool(left_out)
    rungs, refusal = [RUNGS[name] for name in names], native_refusal()
    for i, rung in enumerate(rungs):
        if rung.device == "native" and refusal:
            raise KshipraError(f"rung {rung.name} needs machine code: {refusal}; leave it out")
        if rung.threads is None and args.threads:
            rungs[i] = rung._replace(threads=args.threads)
    return rungs


def ladder_results(args, path, prompt, place, results, say):
    """Fill in "ladder", "batches", "profile" and "ceilings"."""
    rungs = chosen_rungs(args, results)
    paths = {"file": path}
    ctx_size = results["work"]["ctx_size"]
    settings = {"budget_s": args.budget, "repeats": args.repeats}
    for i, rung in enumerate(rungs):
        if rung.weights == "f32" and "f32" not in paths:
            say("dequantizing the weights to a file of float32")
            paths["f32"] = os.path.join(place, "float32.gguf")
            float_copy(path, paths["f32"])
        results["ladder"].append(measure_rung(
            rung, paths, prompt, args.max_tokens, ctx_size, settings,
            lambda text: say(f"rung {i + 1} of {len(rungs)}, {text}")))
    add_factors(results["ladder"])
    refuse_different_tokens(results["ladder"])
    top = rungs[-1]
    if results["ladder"][-1]["estimated"]:
        return
    say("the profile")
    job = {**top._asdict(), "path": paths[top.weights],
           "ctx_size": max(ctx_size, 512 if args.serve else 0, GUESS_CTX if args.guess else 0)}
    with Process(sys.executable, open_rung, job) as process:
        for phase in process.ask("profile", prompt=prompt, n=min(16, args.max_tokens)):
            results["profile"].append({**phase, "rung": top.name})
        batch_results(args, job, process, prompt, results, say)
        if args.serve:
            say(f"{args.serve} requests that come and go")
            results["serving"] = process.ask("serve", n_requests=args.serve)
        if args.guess:
            say("tokens guessed ahead")
            results["guesses"] = process.ask("guess", texts=GUESSED, modes=DRAFTERS,
                                             n=args.max_tokens, repeats=args.repeats)
    if top.device != "python":
        say("the limits of this machine")
        with Process(sys.executable, open_ceilings,
                     {"threads": results["ladder"][-1]["threads"]}) as process:
            results["ceilings"] = process.ask("ceilings")


def batch_results(args, job, process, prompt, results, say):
    """Fill in "batches": of ours, and in turns with it of llama.cpp where it is at hand."""
    with contextlib.ExitStack() as stack:
        sides = {results["ladder"][-1]["name"]: process}
        found = {} if args.no_peers or not job["path"] or not args.batch else find_peers(
            ["llama.cpp"], args.peer_python or [sys.executable])[0]
        if found:
            each = -(-(len(prompt) + args.max_tokens) // 256) * 256
            own = {"path": job["path"], "threads": results["ladder"][-1]["threads"],
                   "ctx_size": max(args.batch) * each, "sequences": max(args.batch)}
            sides["llama.cpp"] = stack.enter_context(
                Process(found["llama.cpp"], open_llama_cpp, own))
        speeds = {(name, n): [] for name in sides for n in args.batch}
        for n, _ in itertools.product(args.batch, range(args.repeats)):
            for name, side in sides.items():
                say(f"{n} side by side, {name}")
                speeds[name, n].append(side.ask("batch", prompt=prompt, n=args.max_tokens,
                                                n_sequences=n))
        for (name, n), values in speeds.items():
            results["batches"].append({"name": name, "sequences": n, "tok_s": figure(values)})


def open_ceilings(job):
    """Serve the limits of this machine; a process of its own, since they take a lot of memory."""
    return {"ceilings": lambda: kshipra.ceilings(job["threads"])}


def peer_results(args, path, results, say):
    """Fill in "peers" and "skipped"."""
    found, missing = find_peers(args.peers or PEERS, args.peer_python or [sys.executable])
    results["skipped"] += missing
    if not found:
        return
    if path is None:
        results["skipped"].append(" and ".join(found) + " skipped: the model inside kshipra.py is "
                                  "no file to give them; take --model or --shape")
        return
    device = "python" if native_refusal() else "native"
    checkpoint = kshipra.open_checkpoint(path)
    n_ctx = kshipra.Hparams(checkpoint).n_ctx
    prompt = (kshipra.tokenizer_of(checkpoint).encode(PEER_PROMPT) * 5)[:5]
    prefill, decode = min(args.prefill, n_ctx - 1), min(args.decode, n_ctx - 6)
    results["peers"] = measure_peers(found, path, device, args.threads or kshipra.usable_cores(),
                                     prompt, prefill, decode, args.repeats, say)


def measure(args, path, name, place, say):
    """Return the results of everything that was asked for.   place: directory for large files"""
    prompt = prompt_ids(path, args)
    ctx_size = -(-(len(prompt) + args.max_tokens) // 64) * 64
    results = {
        "schema": SCHEMA_NAME, "when": time.strftime("%Y-%m-%d %H:%M"),
        "machine": machine_facts(), "model": model_facts(path, name),
        "work": {"prompt_tokens": len(prompt), "max_tokens": args.max_tokens, "ctx_size": ctx_size,
                 "repeats": args.repeats, "budget_s": args.budget, "threads": args.threads},
        "noise": [noise()], "warning": None, "ladder": [], "batches": [], "serving": None,
        "guesses": [],
        "ceilings": None,
        "profile": [], "peers": [], "skipped": []}
    if not args.no_ladder:
        ladder_results(args, path, prompt, place, results, say)
    if not args.no_peers:
        peer_results(args, path, results, say)
    results["noise"].append(noise())
    results["warning"] = noise_warning(results["noise"])
    say("")
    check_results(results)
    return results


def write_results(results, out):
    """Write results.json, results.md and latency_comparison.png into the directory out."""
    try:
        os.makedirs(out, exist_ok=True)
        with open(os.path.join(out, "results.json"), "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)
            f.write("\n")
        with open(os.path.join(out, "results.md"), "w", encoding="utf-8") as f:
            f.write(results_markdown(results))
        if bars(results):
            with open(os.path.join(out, "latency_comparison.png"), "wb") as f:
                f.write(picture(results))
        if results["serving"]:
            with open(os.path.join(out, "serving.png"), "wb") as f:
                f.write(serving_picture(results))
    except OSError as e:
        raise KshipraError(f"cannot be written: {e.strerror}", e.filename or out) from None


def run(args):
    """Do what the command line asks for; return the exit status."""
    if args.compare:
        table, worse = compare(*map(read_results, args.compare))
        print(table_text(table))
        print("\nworse: " + ("; ".join(worse) or "nothing"))
        return 1 if worse else 0
    for name, least in (("max_tokens", 2), ("repeats", 1), ("prefill", 1), ("decode", 2)):
        if getattr(args, name) < least:
            raise KshipraError(f"--{name.replace('_', '-')} is {getattr(args, name)}; {least} or "
                               "more are needed")
    numbers = {field: getattr(args, field) for field in Shape._fields if hasattr(args, field)}
    say = progress_line()
    with tempfile.TemporaryDirectory(prefix="kshipra-bench-") as place:
        path, name = args.model, args.model and os.path.basename(args.model)
        if args.shape or any(value is not None for value in numbers.values()):
            if path:
                raise KshipraError("--model and a shape exclude each other; give one of them")
            name, kind, shape = parse_shape(args.shape or "llama", numbers)
            path, say_name = args.keep or os.path.join(place, "shape.gguf"), f"{name}:{kind}"
            say(f"writing {say_name}")
            write_shape(path, name, kind, shape)
            name = say_name
        results = measure(args, path, name or "the model in kshipra.py", place, say)
        write_results(results, args.out)
    for line in headline(results):
        print(line)
    for table in tables(results):
        print(table_text(table))
    print(f"\nresults.md, results.json and latency_comparison.png are in {args.out}")
    return 0


def main(argv=None):
    """Run the command line; return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    args = build_parser().parse_args(argv)
    try:
        return run(args)
    except KshipraError as e:
        print(f"bench.py: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
