"""bench.py: the shapes, the processes, the ladder, the profile, the results and the picture."""
import json
import math
import struct
import sys
import types
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bench
import kshipra
import tiny as tiny_models

TINY = bench.Shape("llama", 2, 64, 96, 4, 2, 300, 256)
HAS_NATIVE = bench.native_refusal() is None
RUNGS = [rung for rung in bench.RUNGS.values() if HAS_NATIVE or rung.device == "python"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A file of TINY in Q4_1, and its copy in F32."""
    place = tmp_path_factory.mktemp("shape")
    paths = {"file": str(place / "tiny.gguf"), "f32": str(place / "float32.gguf")}
    bench.write_shape(paths["file"], "tiny", "q4_1", TINY)
    bench.float_copy(paths["file"], paths["f32"])
    return paths


# 1. Shapes

def plan(name, kind):
    """Return {tensor name: (format name, shape)} of a shape, no weight made."""
    return {t: (f.name, shape) for t, f, shape, _ in bench.shape_tensors(bench.SHAPES[name], kind)}


def test_tinyllama_has_the_mix_and_the_size_of_the_real_file():
    """As tinyllama-1.1b-chat-v1.0.Q4_K_M.gguf: 668 MB, Q6_K where it matters."""
    made = plan("tinyllama-1.1b", "q4_k_m")
    n_bytes = sum(kshipra.FORMATS[f].n_bytes(math.prod(shape)) for f, shape in made.values())
    assert 666e6 < n_bytes < 669e6
    finer = [i for i in range(22) if made[f"blk.{i}.ffn_down.weight"][0] == "Q6_K"]
    assert finer == [0, 1, 4, 7, 10, 13, 16, 19, 20, 21]
    assert finer == [i for i in range(22) if made[f"blk.{i}.attn_v.weight"][0] == "Q6_K"]
    assert made["output.weight"] == ("Q6_K", (32000, 2048))
    assert made["token_embd.weight"] == ("Q4_K", (32000, 2048))


def test_gemma_falls_back_where_rows_are_no_multiple_of_256():
    """As in the file of the real model: 640 columns take Q5_0 and Q8_0."""
    made = plan("gemma3-270m", "Q4_K_M")
    assert made["token_embd.weight"][0] == "Q8_0"
    assert made["blk.0.attn_q.weight"][0] == "Q5_0"
    assert made["blk.0.attn_v.weight"][0] == "Q8_0" and made["blk.2.attn_v.weight"][0] == "Q5_0"
    assert made["blk.0.ffn_down.weight"][0] == "Q6_K"
    assert made["blk.2.ffn_down.weight"][0] == "Q4_K"
    assert made["blk.0.attn_output.weight"][0] == "Q4_K"


def test_smollm2_in_q4_1_keeps_a_fine_embedding():
    made = plan("smollm2-135m", "q4_1")
    assert made["token_embd.weight"] == ("Q8_0", (49152, 576)) and "output.weight" not in made
    assert {f for t, (f, shape) in made.items() if "blk" in t and len(shape) == 2} == {"Q4_1"}


@pytest.mark.parametrize("kind", [*kshipra.FORMATS, "Q4_K_M"])
def test_random_weights_have_mean_0_and_keep_lengths(kind):
    """Mean near 0 and deviation near 1 / sqrt(n_in), whatever the type."""
    format = bench.shape_format(kind, "w_up", 0, 2, 256)
    data = b"".join(bytes(p) for p in bench.random_pieces(format, (64, 256), seed=3))
    weights = format.decode(data)
    mean = math.fsum(weights) / len(weights)
    deviation = math.sqrt(math.fsum(w * w for w in weights) / len(weights))
    assert len(weights) == 64 * 256
    assert abs(mean) < 0.15 / 16 and 0.7 / 16 < deviation < 1.4 / 16


@pytest.mark.parametrize("arch", ["llama", "gpt2", "gemma3", "qwen2", "qwen3"])
def test_a_shape_of_any_family_loads_and_has_finite_logits(arch, tmp_path):
    path = tmp_path / "shape.gguf"
    bench.write_shape(path, arch, "q8_0", TINY._replace(arch=arch))
    model = kshipra.load(path, device="python", ctx_size=64)
    assert all(map(math.isfinite, model.logits([1, 2, 3])[-1]))
    assert model.tokenizer.decode(model.tokenizer.encode("Once upon a time")) == "Once upon a time"


def test_every_token_of_a_made_vocabulary_is_another():
    for n_vocab in (257, 300, 20000):
        tokens, merges = bench.shape_vocabulary(n_vocab)
        assert len(set(tokens)) == len(tokens) == n_vocab and len(merges) == n_vocab - 257


def test_shapes_are_refused_by_name():
    with pytest.raises(kshipra.KshipraError, match="shape 'gpt5' is unknown; use one of tiny"):
        bench.parse_shape("gpt5:q8_0", {})
    with pytest.raises(kshipra.KshipraError, match="'Q9' is no type of weights"):
        bench.shape_format("q9", "wq", 0, 1, 32)
    with pytest.raises(kshipra.KshipraError, match="no room for 256 bytes"):
        bench.shape_vocabulary(100)


def test_numbers_replace_those_of_a_shape():
    name, kind, shape = bench.parse_shape("llama", {"hidden": 96, "n_layers": 3, "n_heads": 6})
    assert (shape.hidden, shape.n_layers, shape.n_heads, shape.n_kv_heads) == (96, 3, 6, 6)
    assert kind == "q4_0" and f"{name}:{kind}" in bench.PUBLISHED


# 2. Measuring

def test_median_and_spread():
    f = bench.figure([3.0, 1.0, 2.0])
    assert f == {"median": 2.0, "min": 1.0, "max": 3.0, "n": 3} and bench.spread(f) == 1.0
    assert bench.median([4, 1, 2, 3]) == 2.5


def test_timed_takes_n_or_what_the_budget_allows_but_two():
    assert bench.timed(iter(range(9)), 4, 1e9)["tokens"] == [0, 1, 2, 3]
    run = bench.timed(iter(range(9)), 4, 0.0)
    assert run["tokens"] == [0, 1] and len(run["token_s"]) == 2


def open_broken(job):
    """Serve nothing: fail as an engine would that cannot read a file."""
    raise ValueError("this file is not for me")


def test_a_process_that_ends_says_why():
    with pytest.raises(kshipra.KshipraError, match="open_broken: its process ended: ValueError: "
                                                   "this file is not for me"):
        bench.Process(sys.executable, open_broken, {})


def test_a_noisy_machine_is_called_so():
    quiet, loud = {"spread": 0.02, "load": 0.1}, {"spread": 0.4, "load": None}
    assert bench.noise_warning([quiet, quiet]) is None
    assert "too noisy to conclude: the same work varied by 40%" in bench.noise_warning(
        [quiet, loud])


def test_absent_peers_are_skipped_by_name():
    found, missing = bench.find_peers(["llama.cpp"], [])
    assert not found and missing[0].startswith("llama.cpp skipped")
    with pytest.raises(kshipra.KshipraError, match="/no/python: cannot be run"):
        bench.find_peers(["llama.cpp"], ["/no/python"])


# 3. The ladder

def test_rungs_of_the_same_numerics_give_identical_tokens(tiny):
    """Every rung, in this process: one sequence of tokens for each kind of weights."""
    seen = {}
    for rung in RUNGS:
        job = {**rung._asdict(), "path": tiny[rung.weights], "ctx_size": 64}
        model = bench.open_model(job)
        tokens = list(model.generate_ids([1, 2, 3], 6, ignore_eos=True, temperature=0,
                                         strategy=rung.strategy))
        assert len(tokens) == 6
        assert seen.setdefault(bench.numerics(job), tokens) == tokens, rung.name
    assert seen


def test_the_default_ladder_suits_machine_and_model(monkeypatch):
    monkeypatch.setattr(bench, "native_refusal", lambda: None)
    assert bench.default_rungs(1e6)[0] == ["naive", "tiled", "simd", "cache", "fused", "threads"]
    names, left_out = bench.default_rungs(1.1e9)
    assert names == ["naive", "tiled", "fused", "threads"]
    assert "simd and cache left out" in left_out
    monkeypatch.setattr(bench, "native_refusal", lambda: "no AVX2")
    assert bench.default_rungs(1e6) == (["naive", "tiled", "packed", "python"], None)


def result_of(name, tokens, seconds=1.0, weights="file"):
    """Return what add_factors and refuse_different_tokens read of a rung's result."""
    return {"name": name, "weights": weights, "tokens": tokens, "n_tokens": len(tokens),
            "total_s": [seconds * (i + 1) for i in range(len(tokens))]}


def test_different_tokens_of_the_same_numerics_are_a_fault():
    bench.refuse_different_tokens([result_of("a", [1, 2]), result_of("b", [1, 2, 3]),
                                   result_of("c", [7, 8], weights="f32")])
    with pytest.raises(kshipra.KshipraError, match="rungs a and b gave different tokens"):
        bench.refuse_different_tokens([result_of("a", [1, 2]), result_of("b", [1, 3])])


def test_factors_compare_the_tokens_that_both_did():
    rungs = [result_of("a", [1, 2], 10.0), result_of("b", [1, 2, 3, 4], 2.0)]
    bench.add_factors(rungs)
    assert rungs[0]["factor"] is None and rungs[1]["factor"] == 5.0


def test_a_rung_without_time_is_estimated(tiny):
    result = bench.measure_rung(bench.RUNGS["naive"], tiny, [1, 2, 3], 5, 64,
                                {"budget_s": 1e-6, "repeats": 3}, lambda text: None)
    assert result["estimated"] and result["tokens"] == [] and result["n_tokens"] == 5
    assert bench.estimated_run((0.5, 2.0), 3, 4, "baseline")["token_s"] == [6.5, 8.5, 10.5, 12.5]
    assert bench.estimated_run((0.5, 2.0), 65, 3, "cached")["token_s"] == [131.0, 2.5, 2.5]


@pytest.mark.parametrize("matmul", ["naive", "tiled", "packed"])
def test_an_estimate_counts_every_matrix_and_the_experts_that_are_used(monkeypatch, tmp_path,
                                                                       matmul):
    """On a clock that a multiplication moves on: by 3 for a weight, and by 2 more for each row."""
    now = [0]

    def multiply(w, x):
        now[0] += w.size * (3 + 2 * len(x))

    model = kshipra.load(tiny_models.write(tmp_path / "m.gguf", "mixtral", format="Q8_0",
                                           n_experts=5, n_used=2), device="python")
    monkeypatch.setattr(bench, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(kshipra, "matmul_" + matmul, multiply)
    if matmul == "packed":              # of the router, which is not quantized
        monkeypatch.setattr(kshipra, "matmul_tiled", multiply)
        monkeypatch.setattr(kshipra, "PackedWeight", lambda part: part)
    attention, experts, router = 2 * 32 * 32 + 2 * 16 * 32, 2 * 3 * 64 * 32, 5 * 32
    n = 2 * (attention + experts + router) + tiny_models.N_TOKENS * 32
    assert bench.estimate_s(model, matmul) == pytest.approx((3 * n, 2 * n))


# 4. Where time and memory go: of a profile, tests/test_tools.py

def test_the_profile_of_a_rung_begins_without_a_cache(tiny):
    model = bench.open_model({"device": "python", "matmul": "packed", "path": tiny["file"],
                              "ctx_size": 64})
    for n_prompt in (3, 3, 2):
        parts = {part["phase"]: part for part in bench.profile(model, [1, 2, 3][:n_prompt], 2)}
        assert parts["prefill"]["rows"] == n_prompt and parts["decode"]["rows"] == 1
        lines = {line["operation"]: line for line in parts["prefill"]["lines"]}
        assert lines["embed"]["operations"] == n_prompt * 64


# 5. Many texts

@pytest.mark.parametrize("device", ["python"] + ["native"] * HAS_NATIVE)
def test_texts_side_by_side_are_decoded(tiny, device):
    job = {"device": device, "matmul": "packed", "threads": 1, "path": tiny["file"],
           "ctx_size": 256}
    model = bench.open_model(job)
    steps, step = [], model.step
    model.step = lambda rows, *wanted: steps.append(len(rows)) or step(rows, *wanted)
    assert bench.batch_tokens_per_s(model, [1, 2, 3], 4, 3) > 0
    assert steps == [3] * 3 + [3] * 3           # three prompts, then a row of each


def test_traffic_is_a_poisson_process_and_repeats():
    requests = bench.traffic(400, 100, 0.5)
    assert requests == bench.traffic(400, 100, 0.5) != bench.traffic(400, 100, 0.5, seed=2)
    gaps = [b[0] - a[0] for a, b in zip(requests, requests[1:])]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert 0.4 < mean < 0.6 and 0.7 < variance ** 0.5 / mean < 1.3     # exponential: equal


def test_figures_of_served_requests():
    requests = [(0.0, [1], 3), (1.0, [1], 2)]
    found = bench.served(requests, [(0.5, 2.5, 3), (3.0, 4.0, 2)])
    assert found == {"tok_s": 1.25, "ttft_p50_ms": 500, "ttft_p99_ms": 2000, "token_p50_ms": 1000,
                     "token_p99_ms": 1000}
    assert [bench.percentile([3, 1, 2, 4], p) for p in (0, 25, 50, 99)] == [1, 1, 2, 4]


# 6. Peers

def test_two_engines_are_measured_in_turns(tiny):
    """Both sides are this engine, so every figure exists and neither side can be told apart."""
    job = {"path": tiny["file"], "device": "python", "threads": 1, "ctx_size": 64}
    side = (sys.executable, bench.open_kshipra, job)
    versions, values = bench.measure_pair(["a", "b"], (side, side), [1, 2, 3], [4, 5, 6, 7], 3, 2,
                                          lambda text: None)
    assert versions == ["kshipra, python"] * 2
    found = bench.compare_pair(values)
    assert set(found) >= {"decode_tok_s", "prefill_tok_s", "first_s"}
    for name, f in found.items():
        assert f["ours"]["median"] > 0 and f["ratio"]["min"] <= f["ratio"]["median"], name


def test_a_ratio_says_how_much_it_knows():
    assert bench.verdict(bench.figure([0.9, 1.2])) == "no difference that can be told"
    assert bench.verdict(bench.figure([1.1, 1.2])) == "better"
    assert bench.verdict(bench.figure([0.7, 0.9])) == "worse"


# 7. Results

@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The directory of a quick run of the command on a small shape."""
    out = tmp_path_factory.mktemp("results")
    words = ["--shape", "llama:q4_0", "--hidden-dim", "32", "--n-heads", "2", "--n-layers", "1",
             "--vocab-size", "260", "-n", "3", "--repeats", "2", "--budget", "0.5", "--batch", "2",
             "--serve", "3", "--guess", "--no-peers", "--out", str(out)]
    names = ["tiled", "python"] + ["fused", "threads"] * HAS_NATIVE
    assert bench.main(words + [w for name in names for w in ("--rung", name)]) == 0
    return out


def test_the_table_of_guesses(measured):
    rows = bench.read_results(measured / "results.json")["guesses"]
    assert {row["mode"] for row in rows} == ({"greedy", "lookup", "ngram"} if HAS_NATIVE
                                             else set())        # of one layer, none goes ahead
    assert all(row["tokens"] == 2 and row["seconds"]["n"] == 2 for row in rows)
    assert "## Guesses" in (measured / "results.md").read_text() or not rows


def test_results_json_is_of_its_schema(measured):
    results = bench.read_results(measured / "results.json")
    assert [r["name"] for r in results["ladder"]][:2] == ["tiled", "python"]
    assert results["model"]["name"].endswith(":q4_0") and results["batches"][0]["sequences"] == 2
    assert results["ladder"][1]["factor"] > 0 and len(results["profile"]) == 2
    assert (results["ceilings"] is not None) == HAS_NATIVE


def test_requests_served_together_and_in_turn_are_in_the_results(measured):
    found = bench.read_results(measured / "results.json")["serving"]
    assert found["requests"] == 3 and found["pages_per_token"]["paged"] >= 1
    for way in ("together", "in_turn"):
        assert found[way]["ttft_p50_ms"] <= found[way]["ttft_p99_ms"]
    width, height, pixels = decode_png((measured / "serving.png").read_bytes())
    assert len(bar_lengths(pixels)) == 8


def test_results_md_holds_every_table(measured):
    text = (measured / "results.md").read_text()
    for title in ("The ladder", "Memory, in MB", "Side by side", "Requests that come and go",
                  "Where the time of decode goes"):
        assert f"## {title}" in text


def places(value, at=()):
    """Yield the path of every value inside a result."""
    yield at
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) \
            if isinstance(value, list) else ():
        yield from places(item, (*at, key))


def test_a_result_with_any_key_gone_or_value_odd_is_refused(measured):
    whole = (measured / "results.json").read_text()
    results = json.loads(whole)
    free = ("ledger_mb", "figures")             # whose keys the schema leaves open
    for at in [p for p in places(results) if p and not set(p) & set(free)]:
        changed = json.loads(whole)
        holder = changed
        for key in at[:-1]:
            holder = holder[key]
        holder[at[-1]] = {"not": "this"}
        with pytest.raises(kshipra.KshipraError, match="measure again with this bench.py"):
            bench.check_results(changed)
        if isinstance(holder, dict):
            del holder[at[-1]]
            with pytest.raises(kshipra.KshipraError, match=f"{at[-1]} missing or not known"):
                bench.check_results(changed)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "results.json"
    path.write_text('{"schema": "kshipra-bench/0"}')
    with pytest.raises(kshipra.KshipraError, match="schema 'kshipra-bench/0' is not 'kshipra"):
        bench.read_results(path)
    path.write_text("[1")
    with pytest.raises(kshipra.KshipraError, match="is not JSON"):
        bench.read_results(path)
    with pytest.raises(kshipra.KshipraError, match="cannot be read"):
        bench.read_results(tmp_path / "none.json")


def test_compare_names_what_got_worse(measured, tmp_path, capsys):
    old = json.loads((measured / "results.json").read_text())
    for rung in old["ladder"]:
        rung["token_ms"] = {"median": 10.0, "min": 9.9, "max": 10.1, "n": 3}
    new = json.loads(json.dumps(old))
    new["ladder"][0]["token_ms"] = {"median": 12.0, "min": 11.9, "max": 12.1, "n": 3}
    new["ladder"][1]["token_ms"] = {"median": 12.0, "min": 10.0, "max": 12.1, "n": 3}   # overlaps
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, value in zip(paths, (old, new)):
        path.write_text(json.dumps(value))
    assert bench.main(["--compare", str(paths[0]), str(paths[1])]) == 1
    assert "worse: tiled: ms per token\n" in capsys.readouterr().out
    assert bench.main(["--compare", str(paths[0]), str(paths[0])]) == 0
    assert "worse: nothing" in capsys.readouterr().out
    new["work"]["max_tokens"] = 99
    with pytest.raises(kshipra.KshipraError, match="measured different work: work is"):
        bench.compare(old, new)


@pytest.mark.parametrize("x, text", [(0, "0"), (0.00617, "0.00617"), (1.234, "1.23"),
                                     (12.34, "12.3"), (123.4, "123"), (43210.9, "43,211"),
                                     (None, "-"), (0.09, "0.09")])
def test_numbers_are_short(x, text):
    assert kshipra.short(x) == text


def test_units_fit_the_number():
    assert kshipra.duration(0.0123) == "12.3 ms" and kshipra.duration(2.5e-6) == "2.50 us"
    assert kshipra.count(2.5e9, "B/s") == "2.50 GB/s" and kshipra.count(7, "op") == "7.00 op"


# 8. The picture

def decode_png(data):
    """Return (width, height, rows of RGB bytes) of a PNG without filters; check every sum."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        n, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 4:at + 8 + n]
        assert struct.unpack_from(">I", data, at + 8 + n)[0] == zlib.crc32(body)
        chunks[kind] = body[4:]
        at += 12 + n
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, kind, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, kind, rest) == (8, 2, [0, 0, 0])
    raw, stride = zlib.decompress(chunks[b"IDAT"]), 1 + 3 * width
    assert len(raw) == height * stride and not any(raw[::stride])
    return width, height, [raw[y * stride + 1:(y + 1) * stride] for y in range(height)]


def bar_lengths(rows):
    """Return (kind, pixels) of each bar, from the top: runs of lines that begin in its colour."""
    found = []
    for row in rows[bench.CHART_TOP:bench.CHART_BOTTOM]:
        at = 3 * (bench.CHART_LEFT + 2)
        kinds = [k for k, c in bench.COLOURS.items() if bytes(c) == row[at:at + 3]]
        n = 0
        while kinds and row[at + 3 * n:at + 3 * n + 3] == bytes(bench.COLOURS[kinds[0]]):
            n += 1
        found.append((kinds[0], n + 2) if kinds else None)
    bars = [b for b, before in zip(found, [None] + found) if b and not before]
    return bars


def test_the_picture_of_a_run_decodes_and_has_a_bar_a_rung(measured):
    width, height, rows = decode_png((measured / "latency_comparison.png").read_bytes())
    assert (width, height) == (1200, 800) == (bench.WIDTH, bench.HEIGHT)
    results = bench.read_results(measured / "results.json")
    kinds = ["python" if r["device"] == "python" else "native" for r in results["ladder"]]
    bars = bar_lengths(rows)
    assert [kind for kind, _ in bars] == kinds
    assert all(n > 2 for _, n in bars)


@pytest.fixture(scope="module")
def rung_result(measured):
    return bench.read_results(measured / "results.json")


@tiny_models.examples(4)
@given(ms=st.lists(st.floats(1e-4, 1e7), min_size=1, max_size=8))
def test_longer_times_have_longer_bars(rung_result, ms):
    """For any times: every bar is there, inside the chart, and in the order of the times."""
    results = json.loads(json.dumps(rung_result))
    row = results["ladder"][0]
    results["ladder"] = [{**row, "token_ms": bench.figure([value])} for value in ms]
    bars = bar_lengths(decode_png(bench.picture(results))[2])
    assert len(bars) == len(ms)
    lengths = [n for _, n in bars]
    assert all(2 < n <= bench.CHART_RIGHT - bench.CHART_LEFT for n in lengths)
    for (a, x), (b, y) in zip(zip(ms, lengths), list(zip(ms, lengths))[1:]):
        assert (a <= b) or (x >= y), "a shorter time has a longer bar"


@given(low=st.floats(1e-4, 1e6), ratio=st.floats(1, 1e6))
def test_an_axis_holds_its_values(low, ratio):
    place, ticks = bench.axis([low, low * ratio])
    assert 0 < place(low) <= place(low * ratio) <= 1 + 1e-9
    assert 2 <= len(ticks) <= 14 and 0 <= place(ticks[0] or 1e-9) and place(ticks[-1]) <= 1 + 1e-9


def test_the_font_has_every_letter_once():
    """All printable ASCII, no two alike, and each within its lines."""
    assert set(bench.FONT) == set(map(chr, range(32, 127)))
    drawn = {letter: tuple(sorted(lines)) for letter, (_, lines) in bench.FONT.items()}
    assert len(set(drawn.values())) == len(drawn)
    for letter, (width, lines) in bench.FONT.items():
        for ax, ay, bx, by in lines:
            assert max(ax, bx) < width <= 7 and max(ay, by) < bench.GLYPH_LINES, letter


# 9. The command

def test_wrong_use_is_refused_in_one_line(capsys, tmp_path):
    for words, message in (
            (["--max-tokens", "1"], "--max-tokens is 1; 2 or more are needed"),
            (["--model", "x.gguf", "--shape", "llama"], "exclude each other"),
            (["--model", str(tmp_path / "none.gguf")], "none.gguf"),
            (["--compare", "/none/a.json", "/none/b.json"], "cannot be read")):
        assert bench.main(words + ["--out", str(tmp_path)]) == 1
        err = capsys.readouterr().err
        assert err.startswith("bench.py: ") and message in err and err.count("\n") == 1
