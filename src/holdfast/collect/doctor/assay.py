"""What an endpoint's log-probs are worth: some hundreds of very short answers are drawn, and weighed by `semantics`.

The trainer's log-probs arrive as a function: where they are there, its distance from the sampler is measured before
anything is learnt.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.collect.doctor.findings import DoctorFinding, FindingState, failed, skipped, unknown
from holdfast.collect.doctor.probe import EndpointRefused, Patient, ProbeAnswer
from holdfast.collect.doctor.semantics import (
    DrawnStats,
    JudgedLogprobs,
    Meaning,
    drawn,
    spread,
    surprise,
    tolerance,
    under_temperature,
    under_top_k,
    under_top_p,
)
from holdfast.contracts.trace import ModelCall

SAMPLES = 24  # answers to each question, for each way of drawing
TEMPERATURES = (1.0, 1.5, 2.0)
BASES = (1.0, 2.0)  # temperatures at which filters are tried: one suits models that are sure, one those that are not
TOP_K, TOP_P = 2, 0.6
UNSTABLE = 0.25  # nats between two tellings of one log-prob
UNLIKELY = 1e-6
GAP = 0.02  # nats, mean distance of the sampler's log-probs from the trainer's
DRAWN = ("temperature", "top_k", "top_p", "draws")
OPENERS = ("Say any word that comes to your mind.", "17", "Say heads or tails.", "Convert 5 to")

Trainer = Callable[[Sequence[ModelCall]], Sequence[Sequence[float]]]  # its own log-probs of each call's completion


async def assay(patient: Patient, samples: int, trainer: Trainer | None) -> list[DoctorFinding]:
    """The findings on temperature, top-k, top-p, draws and the trainer's gap."""
    patient.heard("temperature")
    told = {at: await _draw(patient, samples, temperature=at) for at in TEMPERATURES}
    answers = {at: some for at, some in told.items() if not isinstance(some, EndpointRefused)}
    if isinstance(why := told[1.0], EndpointRefused):
        lost = [unknown(check, "no_samples", f"sampling is refused: {why.says}") for check in DRAWN]
        return [*lost, skipped("trainer_gap", "there are no samples")]
    plain = {at: _drawn(some) for at, some in answers.items()}
    sharp = tolerance(spread(plain.values()))
    heat = under_temperature(plain, sharp)
    found, every = [_meaning("temperature", heat, sharp)], [one for some in answers.values() for one in some]
    # At other temperatures raw log-probs are not those of what was drawn from, and do not say what a filter keeps.
    bases = [at for at in BASES if at in plain and (at == 1.0 or heat.meaning is Meaning.IN_FORCE)]
    for check, value in (("top_k", TOP_K), ("top_p", TOP_P)):
        patient.heard(check)
        kept = {at: await _draw(patient, samples, temperature=at, **{check: value}) for at in bases}
        if isinstance(refused := kept[1.0], EndpointRefused):
            found.append(skipped(check, f"it is not offered: {refused.says}"))
            continue
        pairs = [(plain[at], _drawn(some)) for at, some in kept.items() if not isinstance(some, EndpointRefused)]
        under = under_top_k(pairs, sharp, TOP_K) if check == "top_k" else under_top_p(pairs, sharp, TOP_P)
        found.append(_meaning(check, under, sharp))
        every += [one for some in kept.values() if not isinstance(some, EndpointRefused) for one in some]
    patient.heard("draws")
    return [*found, _draws(plain), _gap(patient, every, trainer)]


async def _draw(patient: Patient, samples: int, **how: Any) -> list[ProbeAnswer] | EndpointRefused:
    """Some answers to each opener, each with a seed of its own: most of what differs is in the first four tokens.

    Some endpoints know no top-k, or no temperature above 1: that is theirs to say.
    """
    (text, seed), *rest = [(text, seed) for text in OPENERS for seed in range(samples)]
    try:
        first = await patient.ask([text], max_tokens=4, seed=seed, **how)  # one, to see whether it is refused
    except EndpointRefused as refused:
        return refused
    others = (patient.ask([text], max_tokens=4, seed=seed, **how) for text, seed in rest)
    return [first, *await asyncio.gather(*others)]


def _drawn(answers: Sequence[ProbeAnswer]) -> DrawnStats:
    place = {text: number for number, text in enumerate(OPENERS)}
    return drawn((place[one.asked["messages"][-1]["content"]], one.ids or (), one.logprobs or ()) for one in answers)


MEANT = {
    Meaning.RAW: "are raw: they do not change with {}, and a trainer recomputes those that were drawn from",
    Meaning.OTHER: "fit neither the model's own distribution nor the one that was drawn from under {}",
    Meaning.IGNORED: "say nothing of {}: it is taken and not applied, and tokens outside of it are drawn",
    Meaning.UNKNOWN: "could not be told apart under {}: its answers hardly differ, ask with more samples",
}


def _meaning(check: str, judged: JudgedLogprobs, sharp: float) -> DoctorFinding:
    figures = {"comparisons": float(judged.of), "tolerance": sharp}
    if math.isfinite(judged.error):
        figures["error"] = judged.error
    if judged.meaning is Meaning.IN_FORCE:
        detail = f"in force, within {judged.error:.1g} nats in {judged.of} comparisons"
        return DoctorFinding(check=check, detail=detail, figures=figures)
    detail = "log-probs " + MEANT[judged.meaning].format(check.replace("_", "-"))
    state = FindingState.UNKNOWN if judged.meaning is Meaning.UNKNOWN else FindingState.FAILED
    code = f"logprobs_{judged.meaning}_under_{check}"
    return DoctorFinding(check=check, state=state, code=code, detail=detail, figures=figures)


def _draws(plain: Mapping[float, DrawnStats]) -> DoctorFinding:
    apart = spread(plain.values())
    if apart > UNSTABLE:
        detail = f"the log-prob of one token after the same ids differs by up to {apart:.2g} nats"
        return failed("draws", "logprobs_unstable", detail, apart=apart)
    p_value, states = surprise(plain[1.0])
    if not states:
        return unknown("draws", "no_repeats", "no two answers began alike")
    if p_value < UNLIKELY:
        detail = f"tokens do not come as often as their log-probs say (p = {p_value:.1g})"
        return failed("draws", "draws_differ", detail, p_value=p_value)
    detail = f"in {states} places, p = {p_value:.2g}"
    return DoctorFinding(check="draws", detail=detail, figures={"p_value": p_value, "apart": apart})


def _gap(patient: Patient, answers: Sequence[ProbeAnswer], trainer: Trainer | None) -> DoctorFinding:
    """The distance of the sampler's log-probs from the trainer's, before anything is learnt."""
    patient.heard("trainer_gap")
    if trainer is None:
        return skipped("trainer_gap", "the trainer's log-probs were not given")
    calls = [answer.call() for answer in answers]
    told = [value for call in calls for value in call.logprobs or ()]
    own = [value for values in trainer(calls) for value in values]
    if len(told) != len(own):
        return failed("trainer_gap", "trainer_gap", f"the trainer gave {len(own)} log-probs for {len(told)} tokens")
    gaps = [mine - theirs for mine, theirs in zip(own, told, strict=True)]
    if not gaps or not all(map(math.isfinite, gaps)):
        return failed("trainer_gap", "trainer_gap", "the trainer's log-probs are not finite, or there are none")
    mean, most = math.fsum(map(abs, gaps)) / len(gaps), max(map(abs, gaps))
    kl = math.fsum(math.expm1(min(gap, 50.0)) - gap for gap in gaps) / len(gaps)  # k3: Schulman 2020
    figures = {"mean": mean, "most": most, "kl": kl, "tokens": float(len(gaps))}
    detail = f"mean {mean:.1g}, most {most:.1g} nats over {len(gaps)} tokens"
    if mean > GAP:
        return failed("trainer_gap", "trainer_gap", f"sampler and trainer differ: {detail}", **figures)
    return DoctorFinding(check="trainer_gap", detail=detail, figures=figures)
