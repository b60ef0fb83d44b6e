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
    5. Peers
    6. Results
    7. The picture
    8. The command
"""
import argparse
import inspect
import itertools
import json
import math
import os
import platform
import random
import re
import statistics
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
from kshipra import FORMATS, KshipraError

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


def random_pieces(format, shape, seed):
    """Yield the bytes of a random matrix that keeps a vector's length, some megabytes at a time."""
    rng = random.Random(seed)
    source = format if format.sub_len else FORMATS["Q8_0"]      # floats: those of Q8_0 blocks
    d, m = block_scales(source, 1 / math.sqrt(shape[-1]))
    left = math.prod(shape) // source.block_len
    while left:
        n = min(left, PIECE_BLOCKS)
        data = blocks_with(source, rng.randbytes(n * source.block_bytes), d, m)
        yield data if format.sub_len else format.encode(source.decode(data))
        left -= n


def constant_pieces(shape, value):
    return [array("f", [value]) * math.prod(shape)]


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

    def matrix(slot, layer, size):
        name = kshipra.SLOTS[slot][0].format(layer) + ".weight"
        format = shape_format(kind, "lm_head" if slot == "embed" and hp.tied else slot,
                              layer, hp.n_layers, size[-1])
        return name, format, size, random_pieces(format, size, next(seeds))

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
    given = {field: value for field, value in numbers.items() if value is not None}
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


def resident_mb():
    """Return (now, peak) of this process's resident memory in MB, None where unknown."""
    try:
        with open("/proc/self/status") as f:
            kb = dict(line.split(":", 1) for line in f)
        return tuple(round(int(kb[key].split()[0]) / 1024, 1) for key in ("VmRSS", "VmHWM"))
    except OSError:
        pass
    try:
        import resource
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return None, round(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10), 1)
    except ImportError:
        return None, None


def timed(tokens, n, budget_s):
    """Take n tokens from an iterator, fewer if budget_s is used up; return them and seconds each."""
    ids, seconds, begun = [], [], time.perf_counter()
    last = begun
    while len(ids) < n and (len(ids) < 2 or last - begun < budget_s):
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

    def __init__(self, python, opener, job, parts=(), limit_s=3600):
        self.name, self.limit_s = opener.__name__, limit_s
        parts = [resident_mb, timed, serve, *parts, opener]
        source = "import json, os, sys, time\n" + "\n\n".join(map(inspect.getsource, parts)) \
            + f"\n\nserve({opener.__name__})\n"
        self.errors = tempfile.TemporaryFile()
        job = {"mark": MARK, "here": HERE, **job}
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


def figure(values):
    """Return what is reported of repeated measurements of one thing."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
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


def usable_cores():
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
        "processor": processor_name(), "cores": usable_cores(),
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


def default_rungs():
    """Return the names of the rungs that can run here, from the lowest up."""
    if "native" in kshipra.DEVICES:
        return ["naive", "tiled", "simd", "cache", "fused", "threads"]
    return ["naive", "tiled", "packed", "python"]


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
    """Return the Model of a rung.   job: fields of Rung, and path, ctx_size"""
    if job["device"] != "python":
        return kshipra.load(job["path"], device=job["device"], threads=job["threads"],
                            ctx_size=job["ctx_size"])
    checkpoint = kshipra.open_checkpoint(job["path"])
    return kshipra.Model(checkpoint, kshipra.tokenizer_of(checkpoint),
                         kshipra.Reference(job["matmul"]), ctx_size=job["ctx_size"])


def open_rung(job):
    """Serve a rung: its tokens, its memory, its time by operation."""
    sys.path.insert(0, job["here"])
    import bench
    base_mb = resident_mb()[0]
    model = bench.open_model(job)

    def stream(prompt):
        model.session.truncate(0)       # nothing of the last run is reused
        return model.generate_ids(prompt, ignore_eos=True, strategy=job["strategy"],
                                  temperature=0)

    return {
        "stream": stream,
        "estimate": lambda: bench.estimate_row_s(model, job["matmul"]),
        "ledger": lambda **sizes: bench.ledger(model, base_mb, **sizes),
        "profile": lambda **sizes: bench.profile(model, **sizes),
        "batch": lambda **sizes: bench.batch_tokens_per_s(model, **sizes),
        "facts": lambda: {"device": model.ops.name, "isa": model.ops.isa,
                          "threads": model.ops.n_threads},
    }


def matrices(model):
    """Return the matrices that every row is multiplied by."""
    layers = [w for layer in model.weights.layers for w in vars(layer).values()
              if isinstance(w, kshipra.Tensor) and len(w.shape) == 2]
    fused = {id(layer.wqkv) for layer in model.weights.layers}      # its three parts are there too
    return [w for w in layers if id(w) not in fused] + [model.weights.lm_head]


def estimate_row_s(model, matmul, rows=8):
    """Return the seconds that one row of activations takes in plain Python: its matrices only.

    A few rows of one matrix of each shape and format are multiplied, the rest is in proportion.
    """
    total, known = 0.0, {}
    for w in matrices(model):
        key = w.format.name, w.shape
        if key not in known:
            part = w[:rows]
            x = [array("f", [1.0]) * w.shape[1]]
            unpacked = kshipra.PackedWeight(part) if matmul == "packed" and w.format.sub_len \
                else part
            multiply = kshipra.matmul_packed if unpacked is not part else \
                kshipra.matmul_naive if matmul == "naive" else kshipra.matmul_tiled
            begun = time.perf_counter()
            multiply(unpacked, x)
            known[key] = (time.perf_counter() - begun) * w.shape[0] / min(rows, w.shape[0])
        total += known[key]
    return total


def batch_tokens_per_s(model, prompt, n, n_sequences):
    """Return the tokens a second of n_sequences texts that decode side by side, one step each."""
    pool_size = model.ctx_size
    model.session.truncate(0)
    if n_sequences * (len(prompt) + n) > pool_size:
        raise KshipraError(f"{n_sequences} sequences of {len(prompt) + n} do not fit in "
                           f"{pool_size} positions")
    sequences = [kshipra.Sequence(model.cache) for _ in range(n_sequences)]
    try:
        last = []
        for seq in sequences:
            last.append(model.ops.argmax(kshipra.prefill(model, seq, prompt)))
        begun = time.perf_counter()
        for i in range(n - 1):
            rows = [(t, len(prompt) + i, seq) for t, seq in zip(last, sequences)]
            last = [model.ops.argmax(row) for row in model.step(rows)]
        return n_sequences * (n - 1) / (time.perf_counter() - begun)
    finally:
        for seq in sequences:
            seq.truncate(0)


def estimated_run(row_s, n_prompt, n, strategy):
    """Return what `timed` would: seconds for each token when a row takes row_s."""
    rows = [n_prompt + i for i in range(n)] if strategy == "baseline" else [n_prompt] + [1] * (n - 1)
    return {"tokens": [], "token_s": [row_s * r for r in rows]}


def measure_rung(rung, paths, prompt, n, ctx_size, settings, say):
    """Return the result of one rung.

    paths: {"file": path or None, "f32": path}   settings: budget_s, repeats
    """
    job = {**rung._asdict(), "path": paths[rung.weights], "ctx_size": ctx_size}
    with Process(sys.executable, open_rung, job) as process:
        facts = process.ask("facts")
        say(f"{rung.name}: running")
        row_s = process.ask("estimate") if rung.device == "python" else 0.0
        n_ahead = len(prompt)
        estimated = row_s * (2 * n_ahead + 1) > 2 * settings["budget_s"]
        if estimated:
            runs = [estimated_run(row_s, n_ahead, n, rung.strategy)]
        else:
            runs, used_s = [], 0.0
            while len(runs) < settings["repeats"] and used_s < settings["budget_s"]:
                run = process.ask("generate", prompt=prompt, n=n, budget_s=settings["budget_s"])
                used_s += math.fsum(run["token_s"])
                if not runs and settings["repeats"] > 1 and used_s < settings["budget_s"] / 4:
                    run = process.ask("generate", prompt=prompt, n=n)     # the first one warmed up
                runs.append(run)
        now_mb, peak_mb = process.ask("memory")
        ledger_mb = process.ask("ledger", n_prompt=n_ahead, n=len(runs[0]["token_s"]))
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
        "total_s": [statistics.median(math.fsum(run["token_s"][:i + 1]) for run in runs)
                    for i in range(n_done)],
        "tokens": runs[0]["tokens"], "rss_mb": peak_mb, "ledger_mb": ledger_mb,
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
# 5. Peers
#
# Other engines on the same file with the same threads: llama.cpp by its Python binding, and
# transformers on PyTorch, which turns the file's weights into floats.  They are asked for by
# the interpreter that has them (--peer-python) and skipped by name where they are missing.
# Both processes stay up and take turns, so a ratio compares two runs that stand side by side
# in time; it is given with its range over all pairs.

def open_kshipra(job):
    """Serve this engine as a program would use it."""
    sys.path.insert(0, job["here"])
    import kshipra
    model = kshipra.load(job["path"], device=job["device"], threads=job["threads"],
                         ctx_size=job["ctx_size"])

    def stream(prompt):
        model.session.truncate(0)
        return model.generate_ids(prompt, ignore_eos=True, temperature=0)

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

    def version(keep=(quiet, model)):
        return f"llama.cpp, llama-cpp-python {api.__version__}"

    return {"stream": stream, "version": version}


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
    short = prompt[:5]
    with Process(*sides[0]) as a, Process(*sides[1]) as b:
        versions = [a.ask("version"), b.ask("version")]
        for i in range(repeats + 1):                    # the first round only warms up
            for side, process in enumerate((a, b)):
                say(f"{names[side]}: round {i} of {repeats}")
                run = process.ask("generate", prompt=short, n=n)
                read = process.ask("generate", prompt=long_prompt, n=1)
                if i:
                    values["decode_tok_s"][side].append(tokens_per_s(run))
                    values["prefill_tok_s"][side].append(len(long_prompt) / read["token_s"][0])
        for side, process in enumerate((a, b)):
            values["rss_mb"][side].append(process.ask("memory")[1])
    for i in range(repeats):
        for side in (0, 1):
            say(f"{names[side]}: start {i + 1} of {repeats}")
            values["first_s"][side].append(first_token_s(*sides[side], short))
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
# 6. Results
#
# What was measured is one object, written as results.json: its shape is SCHEMA, and the
# version in it grows when a reader of the old one would stumble.  The tables on the terminal
# and in results.md are made from that object and nothing else.

SCHEMA_NAME = "kshipra-bench/1"

# A value, said by an example of its type: a list holds things like its one element, an
# object has these keys, None is allowed beside whatever else a tuple names.
NUMBER = (int, float)
FIGURE = {"median": NUMBER, "min": NUMBER, "max": NUMBER, "n": int}
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
    "batches": [{"rung": str, "sequences": int, "tok_s": FIGURE}],
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


def short(x, unit=""):
    """Return a number in three digits or so, as people write it."""
    if x is None:
        return "-"
    if x == 0:
        return "0" + unit
    digits = max(0, 2 - math.floor(math.log10(abs(x)))) if abs(x) < 1000 else 0
    return f"{x:,.{min(digits, 6)}f}{unit}"


def duration(seconds):
    """Return seconds in the unit that keeps them short."""
    for least, factor, unit in ((1, 1, " s"), (1e-3, 1e3, " ms"), (0, 1e6, " us")):
        if seconds >= least:
            return short(seconds * factor, unit)
    return "-"


def count(x, unit=""):
    """Return a large number with a metric prefix."""
    for least, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= least:
            return f"{short(x / least)} {prefix}{unit}"
    return f"{short(x)} {unit}".strip()


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
    ceilings = results["ceilings"]
    total = math.fsum(line["seconds"] for line in part["lines"])
    rows = []
    for line in sorted(part["lines"], key=lambda line: -line["seconds"]):
        share, intensity = line["seconds"] / total, line["operations"] / max(1, line["bytes"])
        row = [line["operation"], str(line["calls"]), duration(line["seconds"]), f"{share:.1%}",
               count(line["bytes"], "B"), count(line["operations"], "op"), short(intensity)]
        if ceilings:
            percent, bound = against_ceiling(line, ceilings)
            row += [f"{percent:.0f}%", bound]
        rows.append(row)
    heads = ["<operation", "calls", "time", "share", "moved", "done", "op/B"]
    if ceilings:
        heads += ["of limit", "<limit"]
    limits = "" if not ceilings else (
        f"  Limits measured here on {ceilings['threads']} threads: reading "
        f"{count(ceilings['read_bytes_s'], 'B/s')}, int8 {count(ceilings['int8_ops_s'], 'op/s')}, "
        f"float32 {count(ceilings['f32_ops_s'], 'op/s')}.")
    return Table(f"Where the time of {part['phase']} goes",
                 f"rung {part['rung']}, {part['rows']} rows a step.{limits}", heads, rows)


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
                 "is better.  " + "  ".join(notes + results["skipped"]),
                 ["<peer", "<figure", "kshipra", "peer", "ratio (range)", "<"], rows)


def batch_table(results):
    rows = [[b["rung"], str(b["sequences"]), range_text(b["tok_s"])] for b in results["batches"]]
    return Table("Side by side", "texts that are decoded together, a step for all of them.",
                 ["<rung", "sequences", "tokens/s"], rows)


# Figures that the first engines of this project's kind published, each for a machine of its
# own: they set the scale, and are no comparison.
PUBLISHED = {
    "gpt2-124m:q8_0": "a torch engine of the same shape: first token 0.1263 s, 5.52 tokens/s, "
                      "799 MB",
    "llama hidden=96 n_layers=3 n_heads=6:q4_0": "a NumPy engine with 4-bit weights, 48 tokens: "
                                                 "137 tokens/s greedy, 426 in a batch of 4",
}


def tables(results):
    """Return the Tables of a result, those without rows left out."""
    made = [ladder_table(results), ledger_table(results), batch_table(results)]
    made += [profile_table(results, part) for part in results["profile"]]
    made.append(peer_table(results))
    return [t for t in made if t.rows or (t.title == "Beside others" and results["skipped"])]


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
    if results["warning"]:
        lines.append("Warning: " + results["warning"])
    return lines


def table_text(table):
    """Return a table in aligned columns."""
    left = [head.startswith("<") for head in table.heads]
    rows = [[head.lstrip("<") for head in table.heads]] + table.rows
    widths = [max(len(row[i]) for row in rows) for i in range(len(left))]
    lines = ["  ".join(cell.ljust(w) if to_left else cell.rjust(w)
                       for cell, w, to_left in zip(row, widths, left)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(["", f"{table.title}.  {table.note}", "", *lines])


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
        yield f"{batch['rung']}: {batch['sequences']} side by side, tokens/s", batch["tok_s"], True
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
