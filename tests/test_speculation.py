"""Chapter 8, Speculation: guesses change how long a text takes, never what it says."""
import itertools
import json
import math
import random
import re
from array import array
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kshipra
import tiny
from kshipra import KshipraError, NGrams, PromptLookup, Sequence, Speculation, Window

N_CTX = 48
GREEDY = {"temperature": 0, "ignore_eos": True}
SAMPLED = {"temperature": 1.5, "top_k": 0, "min_p": 0.0, "seed": 11, "repeat_penalty": 1.2,
           "ignore_eos": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("speculation") / "tiny.gguf", format="Q4_0",
                      n_ctx=N_CTX)


@pytest.fixture(scope="module")
def model(path, device):
    with kshipra.load(path, device=device) as model:
        yield model


@pytest.fixture(scope="module")
def draft(tmp_path_factory, device):
    """Another model of the same vocabulary, with a shorter context."""
    path = tiny.write(tmp_path_factory.mktemp("draft") / "draft.gguf", format="Q8_0", n_layers=1,
                      n_ctx=32, seed=2)
    with kshipra.load(path, device=device) as draft:
        yield draft


def outcome(generation):
    text = "".join(generation)
    return generation.ids, text, generation.finish_reason


# Drafters.

class Scripted:
    """A drafter of which each guess is guess(position)."""

    name, costs_nothing, turns = "scripted", False, ()

    def __init__(self, guess, costs_nothing=False):
        self.guess, self.costs_nothing, self.asked = guess, costs_nothing, 0

    def propose(self, tokens, k):
        self.asked += 1
        return map(self.guess, itertools.count(len(tokens))) if self.guess else []  # without end


def adversaries(whole, seed=0):
    """Return drafters for a text: always right, always wrong, and worse."""
    rng = random.Random(seed)

    def right(pos):
        return whole[pos] if pos < len(whole) else 0

    return {
        "right": Scripted(right), "wrong": Scripted(lambda pos: (right(pos) + 1) % 256),
        "random": Scripted(lambda pos: rng.randrange(256)),
        "half right": Scripted(lambda pos: right(pos) if rng.random() < 0.7 else 7, True),
        "no token": Scripted(lambda pos: rng.choice((-1, 1 << 40, right(pos)))),
        "silent": Scripted(None)}


@given(text=st.lists(st.integers(0, 3), max_size=40), n=st.integers(1, 5), k=st.integers(1, 9),
       data=st.data())
def test_prompt_lookup_is_what_it_says(text, n, k, data):
    """Whether the text comes at once or a bit at a time."""
    drafter = PromptLookup(n)
    for end in sorted(data.draw(st.lists(st.integers(1, len(text)), max_size=4))
                      if text else []):
        drafter.propose(text[:end], 1)
    expected = []
    for size in range(max(n, 2), 1, -1):
        starts = [i for i in range(len(text) - size) if text[i:i + size] == text[-size:]]
        if starts:
            at = starts[-1] + size
            expected = list(itertools.islice(itertools.cycle(text[at:]), k))
            break
    assert drafter.propose(text, k) == expected


@given(text=st.lists(st.integers(0, 3), max_size=40), n=st.integers(2, 4), k=st.integers(1, 6),
       data=st.data())
def test_n_grams_are_what_they_say(text, n, k, data):
    drafter = NGrams(n)
    for end in sorted(data.draw(st.lists(st.integers(1, len(text)), max_size=4))
                      if text else []):
        drafter.propose(text[:end], 1)

    def likely(past):
        for size in range(n - 1, 0, -1):
            followed = [text[i + size] for i in range(len(text) - size)
                        if len(past) >= size and text[i:i + size] == past[-size:]]
            if followed:
                counts = Counter(followed)
                last_at = {token: i for i, token in enumerate(followed)}
                return max(counts, key=lambda token: (counts[token], last_at[token]))
        return None

    expected = []
    while len(expected) < k and likely(text + expected) is not None:
        expected.append(likely(text + expected))
    assert drafter.propose(text, k) == expected


# Losslessness.

def drafted_ways(model, draft, whole, seed=0):
    return {**adversaries(whole, seed), "lookup": "lookup", "ngram": "ngram", "self": "self",
            "model": draft}


@pytest.mark.deep(device="python")
@pytest.mark.parametrize("prompt", [[1, 1, 1], tiny.ids(20, 3)], ids=["ones", "random"])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_p28_the_same_tokens_by_every_drafter(model, draft, device, prompt, sampling):
    """To the end of the context, which the draft's own is shorter than; no window changes it."""
    plain = outcome(model.generate(prompt, None, **sampling))
    assert len(plain[0]) == N_CTX - len(prompt) + 1
    sizes = [{"speculate": k} for k in range(1, 9)] + [{}, {"speculate": 7, "adaptive_k": True}]
    for name, way in drafted_ways(model, draft, prompt + plain[0]).items():
        for options in sizes if device == "native" else sizes[3:4]:
            generation = model.generate(prompt, None, draft=way, **options, **sampling)
            assert outcome(generation) == plain, (name, options)
            found = generation.speculation
            assert found.n_accepted <= found.n_drafted
            if name == "right" and len(options) == 1:
                assert found.accept_rate == 1.0 and found.n_steps < len(plain[0]) / 2 + 2
            if name == "wrong":
                assert found.n_accepted == 0


@tiny.examples(10)
@given(seed=st.integers(0, 1 << 30), n=st.integers(1, 30), k=st.integers(1, 8),
       adaptive=st.booleans(), greedy=st.booleans(), chance=st.floats(0, 1),
       limit=st.integers(0, 30))
def test_the_same_tokens_for_any_guesses(model, seed, n, k, adaptive, greedy, chance, limit):
    prompt, rng = tiny.ids(n, seed), random.Random(seed)
    options = dict(max_tokens=limit, **(GREEDY if greedy else {**SAMPLED, "seed": seed}))
    plain = outcome(model.generate(prompt, **options))
    whole = prompt + plain[0]
    drafter = Scripted(lambda pos: whole[pos] if pos < len(whole) and rng.random() < chance
                       else rng.randrange(300), rng.random() < 0.5)
    assert outcome(model.generate(prompt, draft=drafter, speculate=k, adaptive_k=adaptive,
                                  **options)) == plain


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 11])
def test_an_end_among_right_guesses_is_the_end(model, limit):
    """Of tokens; by a stop string; by an end token: nothing behind it is shown."""
    prompt = tiny.ids(8, 5)
    plain = model.generate(prompt, 24, **GREEDY)
    text, whole = "".join(plain), prompt + plain.ids
    right = adversaries(whole)["right"]
    for options in ({"max_tokens": limit}, {"stop": text[limit:limit + 2]},
                    {"stop": [text[limit + 3:limit + 5], text[limit]]}):
        options = {"max_tokens": 24, **options, **GREEDY}
        drafted = model.generate(prompt, draft=right, speculate=8, **options)
        assert outcome(drafted) == outcome(model.generate(prompt, **options))
    try:
        stop_ids, model.tokenizer.stop_ids = model.tokenizer.stop_ids, {plain.ids[limit]}
        options = dict(max_tokens=24, temperature=0)
        drafted = model.generate(prompt, draft=right, speculate=8, **options)
        assert outcome(drafted) == outcome(model.generate(prompt, **options))
        assert drafted.finish_reason == "stop" and len(drafted.ids) <= limit + 1
    finally:
        model.tokenizer.stop_ids = stop_ids


def test_what_follows_a_drafted_text_is_not_disturbed(model):
    """A longer prompt takes up what was accepted, and two texts of one session may alternate."""
    prompt = tiny.ids(8, 6)
    plain = outcome(model.generate(prompt, 20, **GREEDY))
    for way in adversaries(prompt + plain[0]).values():
        a = model.generate(prompt, 20, draft=way, speculate=5, **GREEDY)
        b = model.generate(prompt[:4], 20, draft="ngram", **GREEDY)
        of_a, of_b = a.tokens(), b.tokens()
        for _ in range(10):
            next(of_a), next(of_b)
        list(of_a)
        assert a.ids == plain[0]
        again = model.generate(prompt + plain[0][:7], 13, draft="lookup", **GREEDY)
        list(again)
        assert again.ids == plain[0][7:]


def test_guesses_take_no_pages_that_others_need(path, device):
    """With one page left, a text goes on as it would alone: the guesses do without."""
    with kshipra.load(path, device=device, page_size=8, ctx_size=32) as model:
        prompt = tiny.ids(8, 7)
        other = Sequence(model.cache)
        model.step([(1, i, other) for i in range(9)])           # two of four pages
        plain = outcome(model.generate(prompt, 9, **GREEDY))
        right = adversaries(prompt + plain[0] + [0] * 20)["right"]
        assert outcome(model.generate(prompt, 9, draft=right, speculate=8, **GREEDY)) == plain


def test_a_guess_that_cannot_be_computed_is_a_wrong_guess(tmp_path, device):
    """Token 7 has an infinite embedding; nobody says it, so nobody may see it."""
    def spoil(numbers, weights):
        embed = weights["token_embd.weight"]
        values = array("f", bytes(embed.data))
        values[7 * 32] = math.inf
        weights["token_embd.weight"] = kshipra.Tensor(embed.name, embed.format, embed.shape,
                                                      values.tobytes())
    path = tiny.write(tmp_path / "spoilt.gguf", change=spoil)
    with kshipra.load(path, device=device) as model:
        prompt = tiny.ids(8, 8)
        prompt = [t for t in prompt if t != 7]
        plain = outcome(model.generate(prompt, 10, **GREEDY))
        if 7 not in plain[0]:
            way = Scripted(lambda pos: 7)
            assert outcome(model.generate(prompt, 10, draft=way, speculate=3, **GREEDY)) == plain


# The distribution.

def chi_square_z(counts, probs, n):
    """Return how many standard deviations a chi-square is above its mean (Wilson, Hilferty)."""
    cells, rest, rest_p = [], 0, 0.0
    for token, p in probs.items():
        if n * p >= 5:
            cells.append((counts[token], n * p))
        else:
            rest, rest_p = rest + counts[token], rest_p + p
    if n * rest_p >= 5:
        cells.append((rest, n * rest_p))
    assert len(cells) > 1 and set(counts) <= set(probs)
    chi2 = math.fsum((found - expected) ** 2 / expected for found, expected in cells)
    dof = len(cells) - 1
    return ((chi2 / dof) ** (1 / 3) - (1 - 2 / (9 * dof))) / math.sqrt(2 / (9 * dof))


@pytest.mark.deep(device="python")
@pytest.mark.parametrize("guess", ["likely", "unlikely"])
def test_draws_follow_the_distribution_of_the_model(model, guess, device):
    """The token after a wrong guess, and the two after a right one: p > 0.001 in each case.

    20,000 draws; 1,000 in plain Python.  The expected probabilities are the softmax of the
    largest 24 logits, made here.
    """
    n = 20000 if device == "native" else 1000
    prompt, temperature = tiny.ids(6, 9), 1.3

    def probabilities(tokens):
        logits = model.logits(tokens)[-1]
        best = sorted(range(len(logits)), key=lambda t: -logits[t])[:24]
        weights = [math.exp((logits[t] - logits[best[0]]) / temperature) for t in best]
        return {t: w / math.fsum(weights) for t, w in zip(best, weights)}

    first = probabilities(prompt)
    guessed = list(first)[0 if guess == "likely" else 2]
    second = probabilities(prompt + [guessed])
    sampler = kshipra.Sampler(temperature, top_k=24, top_p=1.0, min_p=0.0, seed=5, ops=model)
    seq = model.session
    seq.truncate(0)
    kshipra.prefill(model, seq, prompt[:-1])
    speculation = Speculation(Scripted(lambda pos: guessed), Window(1, adaptive=False))
    drawn, drawn_next = Counter(), Counter()
    for _ in range(n):
        new = speculation.round(model, seq, prompt, sampler)
        drawn[new[0]] += 1
        if len(new) > 1:
            drawn_next[new[1]] += 1
        seq.truncate(len(prompt) - 1)
    limit = 3.09                                # of a normal distribution: p = 0.001
    assert chi_square_z(drawn, first, n) < limit
    assert drawn[guessed] == drawn_next.total() if hasattr(Counter, "total") else True
    assert chi_square_z(drawn_next, second, drawn[guessed]) < limit
    assert abs(speculation.accept_rate - first[guessed]) < 5 * math.sqrt(first[guessed] / n)


# The window.

def run_window(window, right, seconds, n=300, guess_s=0.0):
    """Let a window choose n times; return its choices, and tokens a second after the first 100."""
    rng, ks, tokens, passed = random.Random(4), [], 0, 0.0
    for i in range(n):
        k = window.choose()
        n_right = next((j for j in range(k) if rng.random() >= right), k)
        step_s = seconds(k + 1)
        window.note_time(k, k * guess_s, k + 1, step_s)
        if k:
            window.note(n_right, min(n_right + 1, k))
        ks.append(k)
        if i >= 100:
            tokens, passed = tokens + n_right + 1, passed + step_s + k * guess_s
    return ks, tokens / passed


@pytest.mark.parametrize("right", [0.05, 0.3, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("slope", [0.01, 0.1, 0.4, 1.0])
def test_the_window_finds_what_pays(right, slope):
    """Within a fifth of the best size there is, and 0.97 of no guesses at all times."""
    def seconds(n_rows):
        return 1 + slope * (n_rows - 1)

    best = max((1 - right ** (k + 1)) / (1 - right) / seconds(k + 1) for k in kshipra.SIZES[:5])
    ks, speed = run_window(Window(), right, seconds)
    assert speed > 0.8 * best and speed > 0.97
    if slope == 1.0:
        assert Counter(ks[100:])[0] > 150


def test_the_window_is_off_where_guessing_does_not_pay():
    window = Window()
    ks, speed = run_window(window, 0.5, lambda n_rows: 1.0, guess_s=2.0)
    assert window.n_off > 200 and speed > 0.95
    ks, _ = run_window(window, 0.95, lambda n_rows: 1 + 0.02 * n_rows, n=600)
    assert ks[-1] >= 7                          # and on again when it does


def test_statistics_say_what_became_of_the_guesses(model):
    prompt = tiny.ids(8, 5)
    whole = prompt + outcome(model.generate(prompt, 21, **GREEDY))[0]
    ways = adversaries(whole)
    model.session.truncate(0)
    right = model.generate(prompt, 21, draft=ways["right"], speculate=4, **GREEDY)
    list(right)
    assert str(right.speculation) == (
        "scripted: 16 of 16 guesses right (100%), 20 tokens in 4 steps")
    assert model.generate(prompt, 4, **GREEDY).speculation is None
    alone = model.generate(prompt, 4, draft="lookup", **GREEDY)
    list(alone)
    assert alone.speculation.accept_rate is None or alone.speculation.n_drafted
    assert Window(5).most == 5


# Refusals.

def test_a_draft_of_another_vocabulary_is_refused(model, tmp_path, device):
    def swap(numbers, weights):
        texts = numbers["tokenizer.ggml.tokens"]
        texts[65], texts[66] = texts[66], texts[65]
    with kshipra.load(tiny.write(tmp_path / "a.gguf", change=swap), device="python") as other:
        with pytest.raises(KshipraError, match=r"its token 65 is 'B', and the model's is 'A'"):
            model.generate("a", draft=other)
    with pytest.raises(KshipraError, match="the draft model in kshipra.py.* another vocabulary"):
        model.generate("a", draft="model")


@pytest.mark.parametrize("options, message", [
    ({"draft": "oracle"}, "draft 'oracle' is unknown"), ({"draft": 3}, "draft 3 is unknown"),
    ({"draft": "ngram", "ngram_n": 1}, "ngram_n is 1"),
    ({"draft": "lookup", "lookup_n": 0}, "lookup_n is 0"),
    ({"draft": "lookup", "speculate": 0}, "speculate is 0"),
    ({"draft": "lookup", "speculate": 1.5}, "speculate is 1.5"),
    ({"draft": "lookup", "strategy": "baseline"}, "takes no draft")])
def test_parameters_are_refused_by_name(model, options, message):
    with pytest.raises(KshipraError, match=message):
        model.generate("a", **options)


def test_a_model_of_one_layer_does_not_go_ahead_of_itself(draft):
    with pytest.raises(KshipraError, match="1 of 1 layers cannot go ahead"):
        draft.generate("a", draft="self")
    plain = outcome(draft.generate("a", 5, **GREEDY))
    assert outcome(draft.generate("a", 5, early_exit=0.0, **GREEDY)) == plain


def test_a_model_is_not_its_own_draft(model):
    with pytest.raises(KshipraError, match="its own draft"):
        model.generate("a", draft=model)


def test_the_draft_in_the_file_goes_ahead_of_the_model_in_the_file(device):
    with kshipra.load(device=device) as model:
        plain = outcome(model.generate("Once upon a time", 20, temperature=0))
        drafted = model.generate("Once upon a time", 20, temperature=0, draft="model",
                                 speculate=3)
        assert outcome(drafted) == plain
        assert drafted.speculation.n_accepted > 0


# Ranges of layers.

@tiny.examples(12)
@given(cuts=st.lists(st.integers(1, 3), max_size=5), wrong=st.booleans(), n=st.integers(1, 5),
       seed=st.integers(0, 99))
def test_layers_in_parts_equal_layers_in_one_go(deep_model, cuts, wrong, n, seed):
    """Rows begun at several depths, in one step to the end: logits, k and v to the bit.

    A begun token that turns out to be another one is computed anew, and so are those after it.
    """
    model, seq = deep_model, deep_model.session
    tokens = tiny.ids(7 + n, seed)
    seq.truncate(0)
    kshipra.prefill(model, seq, tokens[:7])
    rows = [(token, 7 + i, seq) for i, token in enumerate(tokens[7:])]
    expected = model.step(rows)
    arena = bytes(model.cache.arena)
    seq.truncate(7)
    kshipra.prefill(model, seq, [])
    depth = 4
    for i, cut in enumerate(cuts[:n]):          # each not deeper than the one before
        depth = min(depth, cut)
        token = (rows[i][0] + 1) % 256 if wrong and i == 1 else rows[i][0]
        for part in range(1, depth + 1):
            begun, = model.step([(token, 7 + i, seq)], None, part)
    assert len(seq.begun) == min(n, len(cuts)) and len(seq.tokens) == 7
    assert model.step(rows) == expected and seq.begun == []
    assert bytes(model.cache.arena) == arena


@pytest.fixture(scope="module")
def deep_model(tmp_path_factory, device):
    path = tiny.write(tmp_path_factory.mktemp("deep") / "deep.gguf", format="Q8_0", n_ctx=32,
                      n_layers=4, arch="qwen3", seed=6)
    with kshipra.load(path, device=device) as model:
        yield model


def test_no_position_is_begun_out_of_turn(deep_model):
    model, seq = deep_model, deep_model.session
    seq.truncate(0)
    model.step([(1, 0, seq)], None, 2)
    model.step([(2, 1, seq)], None, 2)
    with pytest.raises(KshipraError, match="position 3 does not follow the 2 tokens"):
        model.step([(3, 3, seq)], None, 2)
    with pytest.raises(KshipraError, match="position 2 does not follow the 0 tokens"):
        model.step([(3, 2, seq)])
    with pytest.raises(KshipraError, match="n_layers is 5"):
        model.step([(3, 2, seq)], None, 5)
    seq.truncate(0)


# Early exit.

def test_a_threshold_of_one_is_the_whole_model(deep_model):
    prompt = tiny.ids(5, 3)
    plain = outcome(deep_model.generate(prompt, 12, **GREEDY))
    generation = deep_model.generate(prompt, 12, early_exit=1.0, **GREEDY)
    assert outcome(generation) == plain
    assert str(generation.early_exit) == ("early exit: 4.0 of 4 layers on average; left after "
                                          "4: 11")


def test_tokens_leave_where_the_shared_head_is_sure(deep_model):
    """Where they leave is recomputed here, from the layers one by one; k and v are filled in."""
    model, prompt = deep_model, tiny.ids(5, 4)
    generation = model.generate(prompt, 10, early_exit=0.02, **GREEDY)
    ids = outcome(generation)[0]
    exits = Counter()
    seq = model.session
    seq.truncate(0)
    kshipra.prefill(model, seq, prompt)
    for i, token in enumerate(ids[:-1]):
        for n in (2, 3, 4):
            logits, = model.step([(token, len(seq.tokens), seq)], None, n)
            top = max(logits)
            if n == 4 or 1 / math.fsum(math.exp(x - top) for x in logits) >= 0.02:
                break
        exits[n] += 1
        if n < 4:
            model.leave(seq)
        assert logits.index(top) == ids[i + 1]
    assert exits == generation.early_exit.exits and exits[2] + exits[3]
    seq.truncate(0)


def test_what_was_filled_in_is_for_nobody_else(path, device, tmp_path):
    """Neither a longer prompt, nor a fork, nor a saved session, nor a shared page has it."""
    with kshipra.load(path, device=device, page_size=8) as model:
        prompt = tiny.ids(9, 5)
        early = model.generate(prompt, 24, early_exit=0.0, **GREEDY)
        longer = prompt + outcome(early)[0]
        assert early.early_exit.exits == {1: 23}
        assert len(model.session.tokens) > 30 and model.session.n_exact == 9
        assert model.session.common_prefix(longer) == 9
        assert Sequence(model.cache).adopt(longer) <= 8
        assert len(model.fork()[0].tokens) == 9
        model.save_session(tmp_path / "session")
        assert len(model.session.tokens) == 9
        plain = outcome(model.generate(longer, 8, **GREEDY))
    with kshipra.load(path, device=device) as model:
        assert outcome(model.generate(longer, 8, **GREEDY)) == plain


def test_the_profile_of_early_exit(capsys):
    assert kshipra.main(["Once upon a time", "-n", "20", "--profile", "--early-exit",
                         "0.5,1"]) == 0
    heads, _, *rows = capsys.readouterr().out.splitlines()
    assert heads.split() == ["threshold", "tokens/s", "layers", "agree", "left", "after"]
    assert [row.split()[0] for row in rows] == ["0.5", "1.0", "none"]
    assert [row.split()[3] for row in rows[1:]] == ["100.0%", "100.0%"]


@pytest.mark.parametrize("value, message", [
    ("0.5,0.9", "only with --profile"), ("high", "--early-exit is 'high'"),
    ("1.5", "early_exit is 1.5|--early-exit is 1.5")])
def test_thresholds_that_are_none_are_refused(value, message, capsys):
    assert kshipra.main(["a", "-n", "2", "--early-exit", value]) == 1
    assert re.search(message, capsys.readouterr().err)


# The command line.

@pytest.mark.parametrize("options", [
    "--draft-mode lookup --lookup-n 2", "--draft-mode ngram --ngram-n 4 --speculate 3",
    "--draft-mode model --speculate 4", "--draft-mode model --speculate 4 --adaptive-k",
    "--draft-mode greedy"])
def test_the_command_line_says_how_many_guesses_were_right(options, capsys):
    def answer(*more):
        assert kshipra.main(["Once upon a time", "-n", "24", "--seed", "4", "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)
    plain, drafted = answer(), answer(*options.split())
    assert drafted["tokens"] == plain["tokens"] and "accept_rate" not in plain
    if "greedy" in options:
        assert "accept_rate" not in drafted
    else:
        assert drafted["accept_rate"] is None or 0 <= drafted["accept_rate"] <= 1
        assert drafted["speculation"].startswith(options.split()[1])


def test_a_draft_from_a_file(path, tmp_path, capsys):
    other = tiny.write(tmp_path / "draft.gguf", n_layers=1, seed=3)
    options = ["-m", path, "-p", "ab", "-n", "9", "--temp", "0", "--json"]
    assert kshipra.main(options) == 0
    plain = json.loads(capsys.readouterr().out)
    assert kshipra.main([*options, "--draft-checkpoint", other, "--speculate", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == plain["tokens"]


@pytest.mark.parametrize("options, message", [
    ("--speculate 3", "--draft-mode greedy does not heed --speculate"),
    ("--draft-mode ngram --lookup-n 3", "--draft-mode ngram does not heed --lookup-n"),
    ("--draft-mode lookup --draft x.gguf", "--draft-mode lookup and --draft exclude"),
    ("--draft-mode lookup --batch-prompts a|b", "--batch-prompts and --draft-mode exclude"),
    ("--draft-mode lookup --profile", "--profile does not heed --draft-mode")])
def test_options_that_would_be_ignored_are_refused(options, message, capsys):
    with pytest.raises(SystemExit):
        kshipra.main(options.split())
    assert message in capsys.readouterr().err
