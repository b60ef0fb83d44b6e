"""Chapter 7, Sampling: formulas, their order, edge values, seeds."""
import collections
import itertools
import math
import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kshipra
import tiny
from kshipra import KshipraError, Sampler

LOGITS = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=60).map(
    lambda xs: array("f", xs))
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}


def kept(logits, **options):
    """Return the tokens that the filters leave, best first."""
    return [token for _, token in Sampler(**{**PLAIN, **options}).candidates(array("f", logits))]


# Each filter.

def test_penalty_divides_above_zero_and_multiplies_below():
    """P29."""
    assert list(kshipra.penalize(array("f", [2, -2, 0]), [0, 1], 2.0)) == [1, -4, 0]
    assert list(kshipra.penalize(array("f", [2, -2, 0]), [0, 0, 0], 2.0)) == [1, -2, 0]
    assert list(kshipra.penalize(array("f", [2, -2, 0]), [], 2.0)) == [2, -2, 0]
    assert list(kshipra.penalize(array("f", [2, -2]), [0, 7], 2.0)) == [1, -2]


def test_penalty_sees_the_last_tokens_only():
    logits = array("f", [1.5, 1.0])
    sampler = Sampler(temperature=0, repeat_penalty=2.0)
    assert sampler(logits, [0]) == 1
    assert sampler(logits, [0] + [1] * kshipra.PENALTY_WINDOW) == 0
    assert list(logits) == [1.5, 1.0]           # what the caller holds stays as it is


def test_top_k():
    logits = [1, 5, 3, 5, 4]
    for k in (0, 5, 99):
        assert kept(logits, top_k=k) == [1, 3, 4, 2, 0]
    assert kept(logits, top_k=1) == [1]
    assert kept(logits, top_k=2) == [1, 3]      # of equals the lower id comes first


def test_top_p_takes_the_fewest_that_reach_p():
    logits = [math.log(p) for p in (0.1, 0.5, 0.25, 0.15)]
    assert kept(logits, top_p=0.0) == [1]
    assert kept(logits, top_p=0.49) == [1]
    assert kept(logits, top_p=0.51) == [1, 2]
    assert kept(logits, top_p=0.74) == [1, 2]
    assert kept(logits, top_p=0.76) == [1, 2, 3]
    assert kept(logits, top_p=0.91) == kept(logits, top_p=1.0) == [1, 2, 3, 0]


def test_min_p_keeps_what_is_near_the_best():
    logits = [math.log(p) for p in (0.1, 0.5, 0.25, 0.15)]
    assert kept(logits, min_p=0.0) == [1, 2, 3, 0]
    assert kept(logits, min_p=0.25) == [1, 2, 3]
    assert kept(logits, min_p=0.45) == [1, 2]
    assert kept(logits, min_p=1.0) == [1]
    assert kept([2, 2, 1], min_p=1.0) == [0, 1]


# Their order: penalty, top-k, top-p, min-p, temperature.

def test_top_p_sees_what_top_k_left():
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert kept(logits, top_p=0.5) == [0, 1]
    assert kept(logits, top_p=0.5, top_k=2) == [0]      # 0.4 of 0.7 is more than half


def test_temperature_comes_last():
    """P29: logits 3, 2, 1, T 0.5, top-p 0.8: T last keeps 0 and 1, T first would keep 0 alone."""
    sampler = Sampler(**{**PLAIN, "temperature": 0.5, "top_p": 0.8, "seed": 1})
    logits = array("f", [3, 2, 1])
    assert {sampler(logits, []) for _ in range(300)} == {0, 1}
    hot = Sampler(**{**PLAIN, "temperature": 100.0, "top_k": 2, "seed": 1})
    assert {hot(logits, []) for _ in range(300)} == {0, 1}


def test_penalty_comes_first():
    assert Sampler(**{**PLAIN, "top_k": 1, "repeat_penalty": 4.0})(array("f", [2, 1]), [0]) == 1


# Drawing.

def test_draws_have_the_stated_distribution():
    probs = (0.5, 0.3, 0.15, 0.05)
    logits = array("f", map(math.log, probs))
    sampler = Sampler(**{**PLAIN, "seed": 4})
    n = 8000
    counts = collections.Counter(sampler(logits, []) for _ in range(n))
    chi2 = sum((counts[i] - n * p) ** 2 / (n * p) for i, p in enumerate(probs))
    assert chi2 < 16.3                          # 3 degrees of freedom, 1 in 1000


def test_temperature_raises_probabilities_to_a_power():
    sampler = Sampler(**{**PLAIN, "temperature": 0.5, "seed": 4})
    logits = array("f", [math.log(2), 0.0])     # 2 : 1, squared 4 : 1
    n = 5000
    share = sum(sampler(logits, []) == 0 for _ in range(n)) / n
    assert abs(share - 0.8) < 4 * math.sqrt(0.16 / n)


@pytest.mark.parametrize("temperature", [0, 1e-320, 1e-8, 1, 1e3, 1e300])
def test_edge_values_give_a_valid_id(temperature):
    """P30, with one finite logit, with huge ones, with equal ones."""
    for top_k, top_p, min_p, penalty in itertools.product(
            (0, 1, 10 ** 9), (0, 0.5, 1), (0, 0.5, 1), (1, 1e-6, 1e6)):
        sampler = Sampler(temperature, top_k, top_p, min_p, penalty, seed=2)
        for logits in ([-math.inf, 2, -math.inf], [3e38, -3e38, 0], [0, 0, 0], [-3e38],
                       [1e-45, 0]):
            token = sampler(array("f", logits), [0, 0])
            assert 0 <= token < len(logits)
            if logits[0] == -math.inf and temperature <= 1:
                assert token == 1


@given(LOGITS, st.floats(0, 1e3), st.integers(0, 70), st.floats(0, 1), st.floats(0, 1),
       st.floats(0.01, 100), st.lists(st.integers(0, 80), max_size=80), st.integers(0, 2 ** 64),
       st.integers(1, 70))
def test_a_token_is_always_valid(logits, temperature, top_k, top_p, min_p, penalty, past, seed,
                                 n_vocab):
    sampler = Sampler(temperature, top_k, top_p, min_p, penalty, seed)
    assert 0 <= sampler(logits, past, n_vocab) < min(len(logits), n_vocab)


@given(LOGITS, st.integers(0, 70), st.floats(0, 1), st.floats(0, 1))
def test_filters_shrink_and_keep_the_best_first(logits, top_k, top_p, min_p):
    order = kept(logits)
    assert order == sorted(range(len(logits)), key=lambda t: (-logits[t], t))
    for options in ({"top_k": top_k}, {"top_p": top_p}, {"min_p": min_p},
                    {"top_k": top_k, "top_p": top_p, "min_p": min_p}):
        some = kept(logits, **options)
        assert some and some == order[:len(some)]
    assert len(kept(logits, top_p=top_p)) <= len(kept(logits, top_p=max(top_p, 0.9)))
    assert len(kept(logits, min_p=min_p)) >= len(kept(logits, min_p=max(min_p, 0.9)))


@tiny.examples(8)
@given(st.integers(0, 99), st.integers(1, 1500))
def test_long_and_short_selections_agree(seed, top_k):
    """Few candidates come from a heap, many from a sort."""
    rng = random.Random(seed)
    logits = array("f", [rng.randrange(50) for _ in range(1600)])
    assert kept(logits, top_k=top_k) == kept(logits)[:top_k]


def test_greedy_takes_the_lowest_of_equals_and_draws_nothing():
    sampler = Sampler(temperature=0, seed=1)
    before = sampler.random.getstate()
    assert sampler(array("f", [1, 3, 3, 2]), []) == 1
    assert sampler.random.getstate() == before


# Seeds.

def texts(seed, n=40, between=None):
    rng, sampler = random.Random(9), Sampler(temperature=1.5, seed=seed)
    out = []
    for _ in range(n):
        out.append(sampler(array("f", [rng.gauss(0, 2) for _ in range(50)]), out))
        if between:
            between()
    return out


def test_a_seed_repeats_and_nothing_else_disturbs_it():
    """P30: another request in between, and the global generator, change nothing."""
    other = Sampler(seed=3)

    def disturb():
        random.random()
        other(array("f", range(9)), [])
    assert texts(7) == texts(7) == texts(7, between=disturb)
    assert texts(7) != texts(8)
    assert texts(None) != texts(None)


def test_a_seed_does_not_change_the_settings():
    """P30: a seed at temperature 0 stays greedy."""
    assert all(Sampler(temperature=0, seed=s)(array("f", [0, 1]), []) == 1 for s in range(20))


def test_seeded_draws_are_the_same_on_every_machine_and_python():
    """The exp is our own, the generator is Python's Mersenne Twister, kept since 2.3."""
    assert texts(7, 12) == [33, 19, 21, 16, 43, 45, 2, 32, 46, 44, 7, 9]


@pytest.mark.parametrize("options, words", [
    ({"temperature": -1}, "temperature is -1"), ({"temperature": math.nan}, "temperature is nan"),
    ({"temperature": math.inf}, "temperature is inf"),
    ({"temperature": "0"}, "temperature is '0'"),
    ({"temperature": None}, "temperature is None"), ({"temperature": True}, "temperature is True"),
    ({"top_k": -1}, "top_k is -1"), ({"top_k": 2.5}, "top_k is 2.5; a whole number"),
    ({"top_p": 1.1}, "top_p is 1.1"), ({"top_p": -0.1}, "top_p is -0.1"),
    ({"min_p": 2}, "min_p is 2"), ({"min_p": math.nan}, "min_p is nan"),
    ({"repeat_penalty": 0}, "repeat_penalty is 0"), ({"repeat_penalty": math.inf}, "is inf"),
    ({"temperature": -1}, "a number from 0 up"), ({"top_p": 2}, "a number of 0 to 1"),
    ({"seed": -1}, "seed is -1; a whole number"), ({"seed": "a"}, "seed is 'a'"),
    ({"seed": 1.5}, "seed is 1.5")])
def test_values_out_of_range_are_refused(options, words):
    with pytest.raises(KshipraError, match=words):
        Sampler(**options)
