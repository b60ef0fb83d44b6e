"""Chapter 8, Decoding: the same tokens by every strategy; text cut rightly, shown in time."""
import contextlib
import gc
import itertools
import sys
from array import array
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kshipra
import tiny
from kshipra import Generation, KshipraError, StopStrings, Transcript

HAS_NATIVE = kshipra.choose_isa({})[0] is not None
TOKENIZER = kshipra.tokenizer_from_gguf(tiny.tokenizer_metadata())


def scripted(ids, tokenizer=TOKENIZER, stop_ids=None, stops=(), max_tokens=10 ** 9):
    """A Generation over a script: what a model would say, and then an error if asked for more."""
    def script():
        yield from ids
        raise AssertionError("asked for a token after the end")
    stop_ids = tokenizer.stop_ids if stop_ids is None else stop_ids
    return Generation(script(), [], Transcript(tokenizer, stop_ids, list(stops), max_tokens))


class Pieces:
    """A tokenizer of whole texts: token i is the i-th."""

    stop_ids = {-1}

    def __init__(self, texts):
        self.texts = texts

    def stream(self):
        return self

    def push(self, token):
        return self.texts[token] if token >= 0 else ""

    def flush(self):
        return ""


def said(texts, stops, end=True):
    """Return (pieces shown, finish_reason) of a script of texts and an end token."""
    ids = [*range(len(texts))] + [-1] * end
    generation = scripted(ids, Pieces(texts), stops=stops, max_tokens=len(ids))
    return list(generation), generation.finish_reason


# Stop strings.

def test_nothing_of_a_stop_string_is_sent():
    """P16."""
    assert said(["Hi", "\n", "\nUs", "er:"], ["\n\nUser:"], end=False) == (["Hi"], "stop")
    assert said(["Hi", "\n", "\nUs", "er: more"], ["\n\nUser:"], end=False) == (["Hi"], "stop")


def test_all_is_sent_of_what_does_not_become_one():
    """P16: held back while it may still match, no longer."""
    assert said(["Hi", "\n", "\nUs", "ual"], ["\n\nUser:"]) == (["Hi", "\n\nUsual"], "stop")
    assert said(["a", "a", "a", "b"], ["aab"], end=False) == (["a"], "stop")
    assert said(["a", "a", "a"], ["aab"]) == (["a", "aa"], "stop")
    assert said(["a", "a", "a"], ["aab"], end=False) == (["aaa"], "length")


def test_of_two_stops_the_one_complete_first_counts():
    assert said(["x", "ab", "c"], ["abc", "ab"], end=False)[0] == ["x"]
    assert said(["x", "ab", "d"], ["abc", "d"], end=False)[0] == ["x", "ab"]
    assert said(["xabcd"], ["abcd", "bc"], end=False)[0] == ["xa"]
    assert said(["xa", "bc"], ["abcd", "bc"], end=False)[0] == ["x", "a"]


SPLIT_STOPS = [["ab"], ["aab", "b"], ["abc", "bcd"], ["aba"], ["a", "ab"], ["abab", "baa"], ["é"],
               ["😊b"], ["abcd", "bc"]]


@pytest.mark.parametrize("stops", SPLIT_STOPS, ids=repr)
@pytest.mark.parametrize("text", ["ab", "aab", "abac", "xababaab", "caabcd", "é", "a😊b", "aaaa"])
def test_every_split_shows_the_same(text, stops):
    """P16: cut at every subset of the places."""
    ends = [text.find(s) + len(s) for s in stops if s in text]
    shown = text
    if ends:
        end = min(ends)
        first = max((s for s in stops if text[:end].endswith(s)), key=len)
        shown = text[:end - len(first)]
    for mask in itertools.product((False, True), repeat=len(text) - 1):
        cuts = [0, *(i + 1 for i, cut in enumerate(mask) if cut), len(text)]
        pieces = [text[a:b] for a, b in zip(cuts, cuts[1:])]
        got, reason = said(pieces, stops)
        assert "".join(got) == shown and reason == "stop" and "" not in got


@given(st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=12),
       st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3))
def test_what_is_shown_never_has_a_stop_and_is_never_taken_back(texts, stops):
    filter, shown = StopStrings(stops), ""
    for text in texts:
        shown += filter.push(text)
        assert not any(s in shown for s in stops)
        assert "".join(texts).startswith(shown)
        if filter.found:
            break
    else:
        shown += filter.flush()
        assert shown == "".join(texts)
    assert bool(filter.found) == any(s in "".join(texts) for s in stops)


# End tokens and limits.

def test_an_end_token_ends_and_is_not_shown():
    """P17: the turn-closing token is in the stop set though only the vocabulary names it."""
    for token in (tiny.EOS, tiny.EOT):
        generation = scripted([72, 105, token, 33])
        assert "".join(generation) == "Hi"
        assert generation.finish_reason == "stop" and generation.ids == [72, 105, token]


def test_an_end_token_may_be_ignored():
    generation = scripted([72, tiny.EOS, 105], stop_ids=(), max_tokens=3)
    assert "".join(generation) == "Hi" and generation.finish_reason == "length"
    assert generation.ids == [72, tiny.EOS, 105]


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_length(limit):
    generation = scripted([72, 105, 33][:limit], max_tokens=limit)
    assert generation.finish_reason == (None if limit else "length")
    assert "".join(generation) == "Hi!"[:limit] == generation.text
    assert generation.finish_reason == "length" and len(generation.ids) == limit


def test_a_stop_string_that_the_last_bytes_complete_is_a_stop():
    """The detokenizer may hold the text back until the end."""
    class Late(Pieces):
        def push(self, token):
            return ""

        def flush(self):
            return "Hi\n"
    generation = scripted([0], Late([]), stops=["\n"], max_tokens=1)
    assert "".join(generation) == "Hi" and generation.finish_reason == "stop"


def test_what_was_held_back_is_shown_at_the_end():
    assert said(["Hi", "\n"], ["\n\n"]) == (["Hi", "\n"], "stop")
    assert said(["Hi", "\n"], ["\n\n"], end=False) == (["Hi", "\n"], "length")


# Characters over several tokens.

@pytest.mark.parametrize("text", ["é", "歪", "😊", "a😊b", "👨‍👩‍👧‍👦", "e\u0301", "Ελληνικά"])
def test_characters_cut_anywhere_come_whole(text):
    """P15: one byte a token."""
    pieces = list(scripted([*text.encode(), tiny.EOS]))
    assert "".join(pieces) == text and "\ufffd" not in "".join(pieces)
    assert all(p for p in pieces)


@pytest.mark.parametrize("data, text", [
    (b"\xff", "\ufffd"), (b"a\xf0\x9f", "a\ufffd"), (b"\xc3", "\ufffd"), (b"\xc3a", "\ufffda")])
def test_invalid_bytes_are_marked_once_and_never_raise(data, text):
    """P15."""
    for end in ([tiny.EOS], []):
        generation = scripted([*data, *end], max_tokens=len(data) + len(end))
        assert "".join(generation) == text


@given(st.binary(max_size=30))
def test_streamed_bytes_decode_as_a_whole_does(data):
    generation = scripted([*data, tiny.EOS])
    assert "".join(generation) == TOKENIZER.decode(list(data))


def test_a_stop_string_within_a_cut_character_waits_for_it():
    assert "".join(scripted([*"x😊y".encode()][:-1], stops=["😊"])) == "x"


# Strategies on a model.

@pytest.fixture(scope="module", params=[("llama", "Q4_0"), ("gpt2", "F32"), ("gemma2", "F16")],
                ids=lambda p: "-".join(p))
def path(request, tmp_path_factory):
    arch, format = request.param
    shape = {} if format == "Q4_0" else {"hidden": 16, "n_heads": 2, "n_kv_heads": 1, "ffn": 32}
    return tiny.write(tmp_path_factory.mktemp("decoding") / "tiny.gguf", arch, format=format,
                      n_ctx=128, window=8, n_layers=2, tied=arch != "llama", **shape)


GREEDY = {"temperature": 0, "ignore_eos": True}
SAMPLED = {"temperature": 1.2, "seed": 5, "ignore_eos": True, "repeat_penalty": 1.3}


def test_baseline_is_cached(path, device):
    for page_size, options in itertools.product((None, 16), (GREEDY, SAMPLED)):
        model = kshipra.load(path, device=device, page_size=page_size)
        for n in (1, 9):
            prompt = tiny.ids(n, seed=n)
            cold = list(model.generate_ids(prompt, max_tokens=8, strategy="baseline", **options))
            assert cold == list(model.generate_ids(prompt, max_tokens=8, **options))
            assert len(cold) == 8


def test_prefill_pieces_do_not_matter(path, device):
    want = None
    for rows in (1, 7, 64, 1000):
        model = kshipra.load(path, device=device)
        model.prefill_rows = min(rows, model.prefill_rows)
        got = list(model.generate_ids(tiny.ids(80), max_tokens=8, **GREEDY))
        want = want or got
        assert got == want


@pytest.mark.parametrize("page_size", [None, 8])
def test_a_prompt_seen_before_gives_the_same_answer(path, device, page_size):
    """P23: lengths around the page; something is always left to compute."""
    model = kshipra.load(path, device=device, page_size=page_size)
    size = page_size or 16
    for n in (1, size - 1, size, size + 1, min(2 * size, 100)):
        prompt = tiny.ids(n, seed=n)
        fresh = kshipra.load(path, device=device, page_size=page_size)
        cold = list(fresh.generate_ids(prompt, max_tokens=5, **GREEDY))
        for _ in range(2):
            assert model.session.common_prefix(prompt) <= n - 1
            assert list(model.generate_ids(prompt, max_tokens=5, **GREEDY)) == cold
        model.session.truncate(n)                       # exactly the prompt is cached
        assert list(model.generate_ids(prompt, max_tokens=5, **GREEDY)) == cold
        longer = prompt + cold + tiny.ids(3)            # the next turn of a chat
        fresh.session.truncate(0)
        assert list(model.generate_ids(longer, max_tokens=3, **GREEDY)) == list(
            fresh.generate_ids(longer, max_tokens=3, **GREEDY))
    model.session.truncate(0)
    assert not any(model.cache.refs)


@pytest.mark.parametrize("page_size", [None, 8])
def test_generations_that_take_turns_do_not_meet(path, device, page_size):
    """P26: two texts of one length on one model, a token each in turn."""
    model = kshipra.load(path, device=device, page_size=page_size)
    prompts = [tiny.ids(9, seed=s) for s in (1, 2)]
    alone = [list(model.generate_ids(p, max_tokens=6, **GREEDY)) for p in prompts]
    together = [model.generate_ids(p, max_tokens=6, strategy=s, **GREEDY)
                for p, s in zip(prompts, ("cached", "baseline"))]
    assert [list(turn) for turn in zip(*together)] == [list(turn) for turn in zip(*alone)]
    together = [model.generate_ids(p, max_tokens=6, **GREEDY) for p in prompts]
    assert [list(turn) for turn in zip(*together)] == [list(turn) for turn in zip(*alone)]


def test_an_abandoned_generation_does_not_hold_the_model(path, device):
    model = kshipra.load(path, device=device)
    abandoned = model.generate(tiny.ids(5), **GREEDY)
    next(abandoned)
    want = list(model.generate_ids(tiny.ids(7), max_tokens=4, **GREEDY))
    abandoned.close()
    assert list(abandoned) == []
    assert list(model.generate_ids(tiny.ids(7), max_tokens=4, **GREEDY)) == want


def test_a_seed_repeats_through_a_model(path, device):
    """P30."""
    model = kshipra.load(path, device=device)
    one = list(model.generate_ids(tiny.ids(5), max_tokens=10, **SAMPLED))
    list(model.generate_ids(tiny.ids(4), max_tokens=3, temperature=1.0, seed=77))
    assert one == list(model.generate_ids(tiny.ids(5), max_tokens=10, **SAMPLED))


@pytest.mark.parametrize("strategy", ["cached", "baseline"])
def test_the_context_is_used_to_its_end_and_no_further(path, device, strategy):
    """P27: ctx-1, ctx and ctx+1 tokens; the last token generated needs no place."""
    model = kshipra.load(path, device=device, ctx_size=20)
    for n, limit in itertools.product((19, 20), (0, 1, 10 ** 9, None)):
        room = 20 - n + 1
        generation = model.generate(tiny.ids(n), max_tokens=limit, strategy=strategy, **GREEDY)
        list(generation)
        want = room if limit is None else min(limit, room)
        assert len(generation.ids) == want and generation.finish_reason == "length"
    with pytest.raises(KshipraError, match="prompt has 21 tokens but the context holds 20"):
        model.generate(tiny.ids(21), strategy=strategy, **GREEDY)
    with pytest.raises(KshipraError, match="the prompt is empty"):
        model.generate([], strategy=strategy, **GREEDY)


def test_padded_ids_are_never_generated(tmp_path, device):
    """P14: more rows in the embedding than tokens in the vocabulary, and the padding is likely."""
    def pad_wins(numbers, weights):
        name = "output.weight"
        values = weights[name].floats()
        for i in range(tiny.N_TOKENS * 32, len(values)):
            values[i] *= 30
        weights[name] = kshipra.Tensor(name, weights[name].format, weights[name].shape,
                                       weights[name].format.encode(values))
    path = tiny.write(tmp_path / "tiny.gguf", n_vocab=288, change=pad_wins)
    model = kshipra.load(path, device=device)
    row = model.logits([1, 2, 3])[-1]
    assert len(row) == 288 and row.index(max(row)) >= tiny.N_TOKENS
    for options in (GREEDY, SAMPLED):
        ids = list(model.generate_ids([1, 2, 3, 280], max_tokens=20, **options))
        assert len(ids) == 20 and max(ids) < tiny.N_TOKENS
    assert model.tokenizer.decode([280]) == ""


def test_progress_counts_the_prompt_up(path, device):
    model = kshipra.load(path, device=device)
    model.prefill_rows = 16
    seen = []
    generation = model.generate(tiny.ids(40), max_tokens=3, progress=lambda *at: seen.append(at),
                                **GREEDY)
    list(generation)
    assert seen == [(0, 40), (16, 40), (32, 40), (40, 40)]


@pytest.mark.parametrize("options, words", [
    ({"max_tokens": -1}, "max_tokens is -1"), ({"strategy": "magic"}, "strategy 'magic'"),
    ({"stop": ""}, "a stop string is empty"), ({"stop": ["a", ""]}, "a stop string is empty"),
    ({"temperature": -1}, "temperature is -1"), ({"max_tokens": 2.5}, "max_tokens is 2.5"),
    ({"max_tokens": "9"}, "max_tokens is '9'"), ({"seed": -1}, "seed is -1")])
def test_parameters_are_refused_before_anything_runs(path, options, words):
    with pytest.raises(KshipraError, match=words):
        kshipra.load(path, device="python").generate([1], **options)


@pytest.mark.parametrize("prompt", [b"ab", bytearray(b"ab"), [1.0, 2.0], ["a"], None])
def test_a_prompt_is_text_or_whole_numbers(path, prompt):
    """Bytes are a sequence of small numbers, but nobody means those by them."""
    model = kshipra.load(path, device="python")
    for call in (model.generate, model.generate_ids, model.logits):
        with pytest.raises(TypeError):
            call(prompt)
    assert list(model.generate_ids(array("i", tiny.ids(4)), max_tokens=2, **GREEDY)) \
        == list(model.generate_ids(tiny.ids(4), max_tokens=2, **GREEDY))


class Number:
    """A number of another library, such as numpy's."""

    def __init__(self, value):
        self.value = value

    def __float__(self):
        return float(self.value)

    def __index__(self):
        return self.value


def test_numbers_of_other_libraries_are_numbers(path):
    model = kshipra.load(path, device="python", ctx_size=Number(64), threads=Number(1),
                         page_size=Number(8))
    options = {"temperature": 0.8, "top_k": 40, "top_p": 1, "seed": 3, "max_tokens": 5}
    others = {**{key: Number(value) for key, value in options.items() if key != "temperature"},
              "temperature": Fraction(4, 5)}
    assert model.ctx_size == 64
    assert list(model.generate_ids([1, 2], **others)) == list(
        model.generate_ids([1, 2], **options))


@pytest.mark.parametrize("options, words", [
    ({"temperature": 10 ** 400}, "temperature is 1000"), ({"top_k": 2.5}, "top_k is 2.5"),
    ({"temperature": "1"}, "temperature is '1'"), ({"temperature": b"1"}, "temperature is b'1'"),
    ({"temperature": 1j}, "temperature is 1j"), ({"top_p": [0.5]}, r"top_p is \[0.5\]"),
    ({"max_tokens": 2.0}, "max_tokens is 2.0"), ({"max_tokens": True}, "max_tokens is True"),
    ({"strategy": []}, r"strategy \[\]"), ({"stop": [5]}, "stop string is 5"),
    ({"stop": b"ab"}, "stop is b'ab'"), ({"stop": 7}, "stop is 7"),
    ({"seed": 1.5}, "seed is 1.5")])
def test_odd_parameters_are_refused_at_the_door(path, options, words):
    model = kshipra.load(path, device="python")
    for call in (model.generate, model.generate_ids):
        with pytest.raises(KshipraError, match=words):
            call([1], **options)


def test_both_doors_take_the_same_and_end_alike(tmp_path):
    """An end token is among the ids of both, and in the text of neither."""
    def end_wins(numbers, weights):
        t = "output_norm.weight"
        weights[t] = kshipra.Tensor(t, weights[t].format, (32,), bytes(128))
    model = kshipra.load(tiny.write(tmp_path / "tiny.gguf", change=end_wins), device="python")
    # all logits are 0, so each token is as likely: some seed ends the text early
    options = {"max_tokens": 9, "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}
    seed = next(seed for seed in range(999) if tiny.EOS in list(model.generate_ids(
        [1, 2], seed=seed, ignore_eos=True, **options)))
    options.update(seed=seed, stop=None, progress=None)
    generation = model.generate([1, 2], **options)
    text = "".join(generation)
    assert generation.ids == list(model.generate_ids([1, 2], **options))
    assert generation.ids[-1] == tiny.EOS and generation.finish_reason == "stop"
    assert generation.text == text and "</s>" not in text
    assert repr(generation) == f"<Generation: {len(generation.ids)} tokens, stop, {text!r}>"


def test_a_stop_string_ends_ids_too(path):
    model = kshipra.load(path, device="python")
    ids = list(model.generate_ids([1, 2], 12, **GREEDY))
    text = model.tokenizer.decode(ids)
    stop = text[len(text) // 2]
    generation = model.generate([1, 2], 12, stop=stop, **GREEDY)
    assert generation.ids == [] and "going on" in repr(generation)
    assert "".join(generation) == generation.text == text[:text.index(stop)]
    stopped = list(model.generate_ids([1, 2], 12, stop=stop, **GREEDY))
    assert stopped == generation.ids == ids[:len(stopped)] and len(stopped) < 12


def test_both_doors_generate_as_much_unless_told(path):
    model = kshipra.load(path, device="native" if HAS_NATIVE else "python", ctx_size=128)
    assert kshipra.MAX_TOKENS == 256
    assert len(list(model.generate_ids([1], **GREEDY))) == 128
    assert kshipra.parse_arguments([]) == {}        # the command line leaves it to the API


def test_a_closed_model_says_so_and_gives_its_file_back(path, device):
    with kshipra.load(path, device=device) as model:
        begun = model.generate([1], 4, **GREEDY)
        next(begun)
        assert list(model.generate_ids([1], 4, **GREEDY))
    for call in (lambda: model.generate("a"), lambda: model.logits([1]), lambda: list(begun)):
        with pytest.raises(KshipraError, match="the model is closed"):
            call()
    del begun
    gc.collect()
    if sys.platform == "linux":
        with open("/proc/self/maps") as maps:
            assert path not in maps.read()
    model.close()


def test_a_context_beyond_the_training_is_warned_of(path, capsys):
    gpt2 = "gpt2" in kshipra.GGUF(path).metadata["general.architecture"]
    with pytest.raises(KshipraError, match="has learned") if gpt2 else contextlib.nullcontext():
        kshipra.load(path, device="python", ctx_size=129)
        assert "ctx_size is 129, more than the 128 positions" in capsys.readouterr().err
    kshipra.load(path, device="python", ctx_size=128)
    assert not capsys.readouterr().err


def test_a_misspelt_parameter_is_refused(path):
    with pytest.raises(TypeError, match="temprature"):
        kshipra.load(path, device="python").generate([1], temprature=1)


# How many of the beginning tokens.

@pytest.mark.parametrize("add_bos", [True, False])
def test_bos_is_there_as_often_as_the_model_says(tmp_path, add_bos, device):
    """P18: raw text, and text that spells the token itself."""
    path = tiny.write(tmp_path / "tiny.gguf", add_bos=add_bos, n_layers=1)
    model = kshipra.load(path, device=device)
    for text in ("Hi", "<s>Hi", ""):
        if text or add_bos:
            ids = model.generate(text, max_tokens=0).prompt_ids
            assert ids.count(tiny.BOS) == max(add_bos, text.count("<s>")), (text, ids)
