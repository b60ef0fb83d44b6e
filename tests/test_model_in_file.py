"""Chapter 23, The model in the file: it says what it was trained to say.

demo_expected.json was made with float activations.  Activations in int8 may leave its path where
the two best logits lie close; where that happens is listed.  Sampled stories are judged by
check_stories.py, which prints the same judgement of any number of them.
"""
import json
import pathlib

import pytest

import check_stories
import kshipra

PROMPTS = json.loads((pathlib.Path(__file__).parent / "demo_expected.json").read_text())["prompts"]
SURE = 30                               # so many first tokens have to be equal
SMALL_MARGIN = 0.2                      # of two logits: what int8 activations were seen to move


@pytest.fixture(scope="module")
def model(device):
    return kshipra.load(device=device)


@pytest.mark.parametrize("case", PROMPTS, ids=[case["prompt"] for case in PROMPTS])
def test_the_story_is_the_expected_one(model, case, capsys):
    assert model.tokenizer.encode(case["prompt"]) == case["prompt_ids"]
    want = case["greedy_ids"]
    got = list(model.generate_ids(case["prompt_ids"], max_tokens=len(want), temperature=0))
    same = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    if same == len(want):
        assert len(got) == len(want)
        assert model.tokenizer.decode(got) == case["text"]
        return
    row = model.logits(case["prompt_ids"] + want[:same])[-1]
    margin = max(row) - row[want[same]]
    with capsys.disabled():
        print(f"\n{case['prompt']!r}: token {same} is {got[same]} instead of {want[same]}, "
              f"{margin:.3f} below", end="")
    assert same >= SURE
    assert margin <= SMALL_MARGIN


@pytest.mark.parametrize("case", PROMPTS, ids=[case["prompt"] for case in PROMPTS])
def test_the_first_logits_are_near_those_of_float_activations(model, case):
    row = model.logits(case["prompt_ids"])[-1]
    assert len(row) == len(case["logits"])
    assert max(abs(a - b) for a, b in zip(row, case["logits"])) < 1.0


@pytest.mark.deep(device="python")
def test_sampled_stories_hold_together(model):
    """They end, know no other words than the corpus, and keep their hero."""
    number = 40 if isinstance(model.ops, kshipra.Native) else 4
    stories = list(check_stories.sample(model, number))
    found = [check_stories.faults(text) for text, ended in stories]
    assert sum(ended for text, ended in stories) >= number * 0.9
    assert sum(not unknown for cast, unknown in found) >= number * 0.9, found
    assert sum(not cast for cast, unknown in found) >= number * 0.9, found


@pytest.mark.parametrize("story, cast, unknown", [
    ("Once upon a time, there was a little fox named Tom. He ran. Tom smiled.", "", []),
    ("Once upon a time, there was a little fox named Tom. She ran. Tom smiled.", "Tom: She", []),
    ("Once upon a time, there was a fox named Luna. Tom hid her hat.", "names: Luna, Tom", []),
    ("Once upon a time, there was a litle fox.", "no hero", ["litle"]),
])
def test_what_the_judge_of_stories_sees(story, cast, unknown):
    assert check_stories.faults(story) == (cast, unknown)


@pytest.mark.parametrize("text", [kshipra.DEMO_MODEL, kshipra.DRAFT_MODEL], ids=["demo", "draft"])
def test_both_packed_models_load_and_share_a_vocabulary(text, model):
    checkpoint = kshipra.GGUF("packed", data=kshipra.unpack_model(text))
    engine = kshipra.Engine(checkpoint, kshipra.Reference())
    row, = engine.step([(0, 0, kshipra.Sequence(engine.cache))])
    assert len(row) == model.hparams.n_vocab == 768
    tokenizer = kshipra.tokenizer_from_gguf(checkpoint.metadata)
    for token in range(768):
        assert tokenizer.piece(token) == model.tokenizer.piece(token)


def test_the_packed_text_is_wrapped_ascii():
    for text in (kshipra.DEMO_MODEL, kshipra.DRAFT_MODEL):
        assert text.isascii() and max(map(len, text.split("\n"))) <= 99
