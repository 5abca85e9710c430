"""What the log-probs of an endpoint mean, told by closed forms from short answers that were drawn in several ways.

With logits x a token has log p(a) = x_a − log Σ exp x. Under temperature T the log-probs of two tokens differ by
(x_a − x_b) / T, so T times the difference is the same for every T; log-probs from before the temperature differ by
x_a − x_b always. Under top-k or top-p the tokens that are kept have probability S together, and log-probs in force are
those without the filter minus log S. Our trainer recomputes them in force: with raw ones the importance ratio is off by
the factor S, or by a power (TRL issues 6789 and 4159). Nothing is asked here: `assay` does that.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

State = tuple[int, tuple[int, ...]]  # which prompt, and what was answered so far
Told = tuple[int, Sequence[int], Sequence[float]]  # which prompt, the answer's ids and their log-probs

LEAST = 3  # comparisons that can tell the meanings apart
MOST = 0.9  # share of them that must fit
MARGIN = 0.02  # probability: a border that is nearer to a sum than this may lie on either side of it
SHARPEST = 0.02  # nats: no endpoint is held to less


class Meaning(StrEnum):
    IN_FORCE = "in force"  # of the distribution that was drawn from
    RAW = "raw"  # of the model's own, before temperature and filters
    OTHER = "neither"
    IGNORED = "ignored"  # what was drawn could not have been drawn
    UNKNOWN = "unknown"  # the answers do not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnStats:
    """What was told of the answers to one way of drawing."""

    logprobs: Mapping[State, Mapping[int, tuple[float, ...]]]  # of each token that followed, every time it was told

    def known(self, state: State) -> dict[int, float]:
        return {token: math.fsum(told) / len(told) for token, told in self.logprobs.get(state, {}).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedLogprobs:
    meaning: Meaning
    of: int  # comparisons that could tell
    error: float = math.nan  # nats, the middle one, from the meaning it has


def drawn(answers: Iterable[Told]) -> DrawnStats:
    found: dict[State, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for prompt, ids, logprobs in answers:
        for place, (token, logprob) in enumerate(zip(ids, logprobs, strict=False)):
            found[prompt, tuple(ids[:place])][token].append(logprob)
    return DrawnStats(
        logprobs={state: {token: tuple(told) for token, told in tokens.items()} for state, tokens in found.items()}
    )


def spread(each: Iterable[DrawnStats]) -> float:
    """The largest difference between two tellings of one log-prob: the same ids, the same way of drawing."""
    told = (told for one in each for tokens in one.logprobs.values() for told in tokens.values())
    return max((max(some) - min(some) for some in told), default=0.0)


def tolerance(noise: float) -> float:
    return min(max(SHARPEST, 3.0 * noise), 0.2)


def under_temperature(by_temperature: Mapping[float, DrawnStats], tolerance: float) -> JudgedLogprobs:
    """From pairs of tokens that were drawn in one state at two temperatures."""
    errors = []
    temperatures = sorted(by_temperature)
    for place, cold in enumerate(temperatures):
        for hot in temperatures[place + 1 :]:
            for at_cold, at_hot in _gaps(by_temperature[cold], by_temperature[hot]):
                in_force, raw = at_hot * hot / cold, at_hot
                if abs(in_force - raw) > 4.0 * tolerance:
                    errors.append((abs(at_cold - in_force), abs(at_cold - raw)))
    return _judged(errors, tolerance)


def _gaps(cold: DrawnStats, hot: DrawnStats) -> Iterator[tuple[float, float]]:
    """Differences of log-probs between the likeliest token and another, in both."""
    for state in cold.logprobs.keys() & hot.logprobs.keys():
        one, other = cold.known(state), hot.known(state)
        common = sorted(one.keys() & other.keys(), key=lambda token: -other[token])
        for token in common[1:]:
            yield one[common[0]] - one[token], other[common[0]] - other[token]


def under_top_k(pairs: Iterable[tuple[DrawnStats, DrawnStats]], tolerance: float, top_k: int) -> JudgedLogprobs:
    """From tokens that were drawn in one state without top-k (first) and with it (second).

    Where k different ones were drawn with it, those are the ones it keeps, whatever else there is.
    """
    errors, outside = list[tuple[float, float]](), 0
    for base, filtered in pairs:
        for state in base.logprobs.keys() & filtered.logprobs.keys():
            before, after = base.known(state), filtered.known(state)
            outside += max(len(after) - top_k, 0)
            if len(after) == top_k and after.keys() <= before.keys():
                errors += _errors(before, after, after.keys(), tolerance)
    return _filtered(errors, outside, tolerance)


def under_top_p(pairs: Iterable[tuple[DrawnStats, DrawnStats]], tolerance: float, top_p: float) -> JudgedLogprobs:
    """From tokens that were drawn in one state without top-p (first) and with it (second)."""
    errors, outside = list[tuple[float, float]](), 0
    for base, filtered in pairs:
        for state in base.logprobs.keys() & filtered.logprobs.keys():
            before, after = base.known(state), filtered.known(state)
            kept = _nucleus({token: math.exp(logp) for token, logp in before.items()}, top_p)
            if kept is not None:
                outside += len(after.keys() - kept)
                errors += _errors(before, after, kept, tolerance)
    return _filtered(errors, outside, tolerance)


def _errors(
    before: Mapping[int, float], after: Mapping[int, float], kept: Collection[int], tolerance: float
) -> list[tuple[float, float]]:
    """Distances of the tokens that are kept from both meanings; none where these are too close to one another."""
    shift = -math.log(min(math.fsum(math.exp(before[token]) for token in kept), 1.0))
    if shift <= 4.0 * tolerance:
        return []
    gaps = [logp - before[token] for token, logp in after.items() if token in kept]
    return [(abs(gap - shift), abs(gap)) for gap in gaps]


def _nucleus(p: Mapping[int, float], top_p: float) -> set[int] | None:
    """The smallest set of the likeliest tokens that holds top_p; None where too little is known to say."""
    unseen = 1.0 - math.fsum(p.values())
    kept, total = set[int](), 0.0
    for token in sorted(p, key=lambda token: -p[token]):
        if p[token] <= unseen:  # one that was not seen may stand before it
            return None
        kept.add(token)
        total += p[token]
        if abs(total - top_p) < MARGIN:
            return None
        if total > top_p:
            return kept
    return None


def _filtered(errors: Sequence[tuple[float, float]], outside: int, tolerance: float) -> JudgedLogprobs:
    count = outside + len(errors)
    is_ignored = outside > 0.05 * count  # a few may stand on the border
    return JudgedLogprobs(meaning=Meaning.IGNORED, of=count) if is_ignored else _judged(errors, tolerance)


def _judged(errors: Sequence[tuple[float, float]], tolerance: float) -> JudgedLogprobs:
    """Each error is the distance from the meaning in force, and from the raw one."""
    if len(errors) < LEAST:
        return JudgedLogprobs(meaning=Meaning.UNKNOWN, of=len(errors))
    for meaning, place in ((Meaning.IN_FORCE, 0), (Meaning.RAW, 1)):
        mine = sorted(error[place] for error in errors)
        if sum(error <= tolerance for error in mine) >= MOST * len(mine):
            return JudgedLogprobs(meaning=meaning, of=len(mine), error=mine[len(mine) // 2])
    return JudgedLogprobs(
        meaning=Meaning.OTHER, of=len(errors), error=sorted(error[0] for error in errors)[len(errors) // 2]
    )


def surprise(plain: DrawnStats, *, least: int = 8) -> tuple[float, int]:
    """How unlikely the draws are if the log-probs are theirs: the smallest exact p-value, times the number of tests.

    In each state the token that is said to be likeliest came so often; so many times is Binomial(n, p). The other
    number is that of the states that were looked at.
    """
    values = []
    for state, tokens in plain.logprobs.items():
        known, count = plain.known(state), sum(map(len, tokens.values()))
        if count < least:
            continue
        likeliest = max(known, key=lambda token: known[token])
        if math.fsum(map(math.exp, known.values())) > 1.0 + MARGIN:
            return 0.0, 1  # more than everything
        values.append(_tail(len(tokens[likeliest]), count, min(math.exp(known[likeliest]), 1.0)))
    return (min(1.0, min(values) * len(values)), len(values)) if values else (1.0, 0)


def _tail(hits: int, count: int, p: float) -> float:
    """Twice the smaller tail, the hits included."""

    def chance(k: int) -> float:
        return math.comb(count, k) * p**k * (1.0 - p) ** (count - k)

    low, high = math.fsum(map(chance, range(hits + 1))), math.fsum(map(chance, range(hits, count + 1)))
    return min(1.0, 2.0 * min(low, high))
