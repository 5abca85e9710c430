"""Doing as was done: demonstrations and good attempts as samples whose decided tokens are to become more likely.

Supervised fine-tuning takes written conversations, behaviour cloning takes recorded ones and may weigh each by what it
was worth. The loss sees decided tokens only: prompts, tool results and forced tokens teach nothing. When a warm-up has
gone far enough is for the loop to say (by sampled accuracy, not by a number of steps).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.learn.batch import PLAIN, Sample, SampleFilter, Samples, SkipReason, gather, pack, reward


def sequences(
    pairs: Iterable[tuple[Sequence[int], Sequence[bool]]],
    *,
    weights: Sequence[float] | None = None,
    max_tokens: int | None = None,
) -> Samples:
    """Token ids with which of them were decided; a weight for each sequence, 1 where none is given.

    A sequence over max_tokens is left out whole: a cut one would teach to stop in mid-sentence."""
    kept: list[tuple[NDArray[np.int32], NDArray[np.bool_], float]] = []
    for number, (ids, decided) in enumerate(pairs):
        if len(ids) != len(decided):
            raise BadInput(f"sequence {number}", why=f"{len(ids)} ids, {len(decided)} marks")
        weight = 1.0 if weights is None else float(weights[number])
        if not isfinite(weight):
            raise BadInput(f"sequence {number}: weight = {weight}", why="must be finite")
        if max_tokens is None or len(ids) <= max_tokens:
            kept.append((np.asarray(ids, dtype=np.int32), np.asarray(decided, dtype=np.bool_), weight))
    if not kept:
        raise BadInput("no sequence", why="there is none, or all are too long", remedy=f"max_tokens is {max_tokens}")
    lengths = [len(ids) for ids, _, _ in kept]
    is_decided = np.concatenate([marks for _, marks, _ in kept])
    each = np.repeat(np.asarray([weight for _, _, weight in kept], dtype=np.float32), lengths)
    return Samples(
        bounds=np.concatenate(([0], np.cumsum(lengths))),
        ids=np.concatenate([ids for ids, _, _ in kept]),
        decided=is_decided,
        weights=np.where(is_decided, each, np.float32(0.0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationConfig:
    """Which attempts are imitated, and how much."""

    least: float | None = None  # reward below which an attempt is left out
    temperature: float | None = None  # weight exp((reward − best) / temperature); None: all the same


def imitate(
    experiences: Iterable[Experience], intake: SampleFilter, taste: ImitationConfig | None = None
) -> tuple[Samples | None, dict[str, SkipReason | None]]:
    """The attempts worth imitating as samples, or None; and for each rollout why it is not among them.

    With a temperature this is advantage-weighted regression (Peng et al. 2019, arXiv:1910.00177) with the best reward
    as its baseline."""
    taste = taste or ImitationConfig()
    is_scored = taste.least is not None or taste.temperature is not None
    intake = replace(intake, is_scored=is_scored, is_sampled=False)
    gathered = gather(experiences, intake)
    reasons = dict(gathered.reasons)
    found: list[tuple[Sample, float]] = []
    for experience, reading in gathered.kept:
        worth = reward(experience, intake.channels) or 0.0
        if taste.least is not None and worth < taste.least:
            reasons[experience.rollout] = SkipReason.ZERO_WEIGHT
        else:
            found += [(sample, worth) for sample in reading.samples]
    if not found:
        return None, reasons
    best = max(worth for _, worth in found)
    return pack([_weighed(one, _weight(worth, best, taste.temperature)) for one, worth in found]), reasons


def _weight(worth: float, best: float, temperature: float | None) -> float:
    return 1.0 if temperature is None else exp((worth - best) / temperature)


def _weighed(sample: Sample, weight: float) -> Sample:
    """However it was sampled, it is the plain distribution that is to say it."""
    weights = np.where(sample.decided, np.float32(weight), np.float32(0.0))
    return replace(sample, rules=(PLAIN,), logprobs=None, weights=weights)


def portions(samples: Samples, size: int, *, seed: int, start: int = 0) -> Iterator[Samples]:
    """Portion start, start + 1, … of endless passes, each in its own order: where one stopped, another goes on."""
    if size < 1:
        raise BadInput(f"portions of {size}", why="must be at least 1")
    a_pass = max(1, len(samples) // size)
    number = start
    while True:
        order = np.random.default_rng((seed, number // a_pass)).permutation(len(samples))
        for place in range(number % a_pass, a_pass):
            yield samples.pick(order[place * size : (place + 1) * size])
            number += 1
