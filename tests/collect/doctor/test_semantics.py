"""What log-probs mean, on distributions that are known: four tokens with logits 2, 1.5, 1 and 0, as in `toys`."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from holdfast.collect.doctor import (
    DrawnStats,
    Meaning,
    drawn,
    spread,
    surprise,
    tolerance,
    under_temperature,
    under_top_k,
    under_top_p,
)
from tests.collect.doctor.toys import chances

WORDS = ["Alpha", "Beta", "Gamma", "Delta"]
SHARP = tolerance(0.0)
Telling = Callable[..., dict[str, float]]


def in_force(temperature: float = 1.0, **filters: float) -> dict[str, float]:
    return chances(temperature, **filters)  # type: ignore[arg-type]


def raw(temperature: float = 1.0, **filters: float) -> dict[str, float]:
    return {word: chances()[word] for word in chances(temperature, **filters)}  # type: ignore[arg-type]


def unfiltered(temperature: float = 1.0, **filters: float) -> dict[str, float]:
    return {word: chances(temperature)[word] for word in chances(temperature, **filters)}  # type: ignore[arg-type]


def told(p: dict[str, float], prompts: int = 3) -> DrawnStats:
    """Every token once, after each of some prompts."""
    return drawn((n, [WORDS.index(word)], [math.log(p[word])]) for n in range(prompts) for word in p)


def test_by_hand() -> None:
    """At T = 2 the log-probs of the first two differ by 0.25, at T = 1 by 0.5; the two likeliest of T = 1 hold 0.76."""
    hot, cold = chances(2.0), chances(1.0)
    assert math.log(hot["Alpha"] / hot["Beta"]) == pytest.approx(0.25)
    assert math.log(cold["Alpha"] / cold["Beta"]) == pytest.approx(0.5)
    kept = chances(1.0, top_k=2)
    assert math.log(kept["Alpha"]) == pytest.approx(math.log(cold["Alpha"]) - math.log(cold["Alpha"] + cold["Beta"]))


@pytest.mark.parametrize(
    ("telling", "heat", "filters"),
    [(in_force, "in force", "in force"), (raw, "raw", "raw"), (unfiltered, "in force", "raw")],
)
def test_each_meaning_is_recognised(telling: Telling, heat: str, filters: str) -> None:
    plain = {at: told(telling(at)) for at in (1.0, 1.5, 2.0)}
    assert under_temperature(plain, SHARP).meaning == heat
    assert under_top_k([(plain[1.0], told(telling(1.0, top_k=2)))], SHARP, 2).meaning == filters
    assert under_top_p([(plain[1.0], told(telling(1.0, top_p=0.6)))], SHARP, 0.6).meaning == filters


def test_a_filter_that_is_not_applied_is_seen_by_what_is_drawn() -> None:
    plain = told(chances())
    assert under_top_k([(plain, plain)], SHARP, 2).meaning is Meaning.IGNORED
    assert under_top_p([(plain, plain)], SHARP, 0.6).meaning is Meaning.IGNORED


def test_a_constant_that_is_added_is_no_meaning() -> None:
    plain, kept = chances(), chances(top_k=2)
    off = {word: p * 0.8 for word, p in kept.items()}
    assert under_top_k([(told(plain), told(off))], SHARP, 2).meaning is Meaning.OTHER


@pytest.mark.parametrize("words", [["Alpha"], ["Beta", "Gamma"]])
def test_what_too_few_draws_do_not_tell_is_not_guessed(words: list[str]) -> None:
    seen = told({word: chances()[word] for word in words})  # something likelier may not have been seen
    assert under_top_p([(seen, seen)], SHARP, 0.6).meaning is Meaning.UNKNOWN
    assert under_temperature({1.0: told({"Alpha": 0.5})}, SHARP).meaning is Meaning.UNKNOWN


def test_noise_widens_what_is_called_the_same() -> None:
    noisy = drawn([(0, [1], [-1.0]), (0, [1], [-1.05]), (1, [1], [-1.0])])
    assert spread([noisy]) == pytest.approx(0.05) and tolerance(spread([noisy])) == pytest.approx(0.15)
    assert noisy.known((0, ())) == {1: pytest.approx(-1.025)}
    assert spread([]) == 0.0


def draws(hits: int, count: int, p: float) -> DrawnStats:
    """The likeliest token so often, the other for the rest."""
    tokens = [0] * hits + [1] * (count - hits)
    return drawn((0, [token], [math.log(p if token == 0 else 1.0 - p)]) for token in tokens)


@pytest.mark.parametrize("hits", [5, 12, 13, 15, 24])
@pytest.mark.parametrize("p", [0.55, 0.9, 1.0 - 1e-9])
def test_draws_are_held_against_their_log_probs(hits: int, p: float) -> None:
    """As often as Binomial(24, p) says, by scipy's tails; certainty that fails is as good as impossible."""
    p_value, states = surprise(draws(hits, 24, p))
    tails = (binom.cdf(hits, 24, p), binom.sf(hits - 1, 24, p))
    assert states == 1 and p_value == pytest.approx(min(1.0, 2.0 * min(tails)), rel=1e-6, abs=1e-12)


def test_probabilities_that_add_up_to_more_than_one_are_impossible() -> None:
    assert surprise(drawn((0, [token], [math.log(0.6)]) for token in (0, 1) * 5)) == (0.0, 1)
    assert surprise(drawn([(0, [1], [-1.0])])) == (1.0, 0)  # too few to say anything


logits = st.lists(st.floats(-3.0, 3.0), min_size=3, max_size=8, unique_by=lambda x: round(x, 1))


@settings(max_examples=60, deadline=None)
@given(logits, st.floats(0.3, 0.9), st.floats(1.2, 2.0))
def test_in_force_is_never_taken_for_raw_nor_raw_for_in_force(x: list[float], cold: float, hot: float) -> None:
    def at(heat: float) -> list[float]:
        total = math.log(sum(math.exp(one / heat) for one in x))
        return [one / heat - total for one in x]

    def state(values: list[float]) -> DrawnStats:
        return drawn((0, [token], [value]) for token, value in enumerate(values))

    true = under_temperature({cold: state(at(cold)), hot: state(at(hot))}, SHARP).meaning
    false = under_temperature({cold: state(at(1.0)), hot: state(at(1.0))}, SHARP).meaning
    assert true in (Meaning.IN_FORCE, Meaning.UNKNOWN) and false in (Meaning.RAW, Meaning.UNKNOWN)
