"""Whether an endpoint is fit to be trained on: some hundreds of short questions before any training.

Each check compares the endpoint with itself. With logits x a token has log p(a) = x_a − log Σ exp x. Under temperature
T the log-probs of two tokens differ by (x_a − x_b) / T; raw log-probs differ by x_a − x_b always. Under top-k or top-p
the kept tokens have probability S together, and log-probs in force are those without the filter minus log S. With raw
ones the trainer's importance ratio is off by the factor S, or by a power (TRL issues 6789, 4159).
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Any

from holdfast.collect.endpoint_probe import (
    CHECKS,
    DoctorFinding,
    EndpointProbe,
    EndpointRefused,
    EndpointSession,
    FindingState,
    Heard,
    ProbeAnswer,
    failed,
    skipped,
    unknown,
)
from holdfast.contracts.trace import ModelCall

State = tuple[int, tuple[int, ...]]  # the prompt, and the answer so far
DrawnAnswer = tuple[int, Sequence[int], Sequence[float]]  # the prompt, the answer's ids and their log-probs

LEAST_DRAWS = 8  # of a state, to test them
LEAST = 3  # comparisons needed to tell the meanings apart
MOST = 0.9  # share of them that must fit
MARGIN = 0.02  # of probability: a sum this close to the border may be on either side
SHARPEST = 0.02  # nats: the smallest tolerance


class Meaning(StrEnum):
    IN_FORCE = "in force"  # of the sampled distribution
    RAW = "raw"  # of the model, before temperature and filters
    OTHER = "neither"
    IGNORED = "ignored"  # tokens were drawn that the filter forbids
    UNKNOWN = "unknown"  # too few comparisons


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnStats:
    """The log-probs from answers that were sampled in one way."""

    logprobs: Mapping[State, Mapping[int, tuple[float, ...]]]  # of each next token, every time it was reported

    def known(self, state: State) -> dict[int, float]:
        return {token: math.fsum(told) / len(told) for token, told in self.logprobs.get(state, {}).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedLogprobs:
    meaning: Meaning
    of: int  # comparisons
    error: float = math.nan  # nats, the median distance from the meaning


def drawn(answers: Iterable[DrawnAnswer]) -> DrawnStats:
    found: dict[State, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for prompt, ids, logprobs in answers:
        for place, (token, logprob) in enumerate(zip(ids, logprobs, strict=False)):
            found[prompt, tuple(ids[:place])][token].append(logprob)
    return DrawnStats(
        logprobs={state: {token: tuple(told) for token, told in tokens.items()} for state, tokens in found.items()}
    )


def spread(each: Iterable[DrawnStats]) -> float:
    """The largest difference between two reports of one log-prob (same ids, same sampling)."""
    told = (told for stats in each for tokens in stats.logprobs.values() for told in tokens.values())
    return max((max(some) - min(some) for some in told), default=0.0)


def tolerance(noise: float) -> float:
    return min(max(SHARPEST, 3.0 * noise), 0.2)


def under_temperature(by_temperature: Mapping[float, DrawnStats], tolerance: float) -> JudgedLogprobs:
    """Compares pairs of tokens that were sampled in one state at two temperatures."""
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
    """Differences of log-probs between the likeliest token and others, at both temperatures."""
    for state in cold.logprobs.keys() & hot.logprobs.keys():
        one, other = cold.known(state), hot.known(state)
        common = sorted(one.keys() & other.keys(), key=lambda token: -other[token])
        for token in common[1:]:
            yield one[common[0]] - one[token], other[common[0]] - other[token]


def under_top_k(pairs: Iterable[tuple[DrawnStats, DrawnStats]], tolerance: float, top_k: int) -> JudgedLogprobs:
    """Compares tokens that were sampled in one state without top-k (first) and with it (second).

    If k different tokens were drawn with it, those are the ones it keeps.
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
    """Compares tokens that were sampled in one state without top-p (first) and with it (second)."""
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
    """Distances of the kept tokens from both meanings; none if the meanings are too close to each other."""
    shift = -math.log(min(math.fsum(math.exp(before[token]) for token in kept), 1.0))
    if shift <= 4.0 * tolerance:
        return []
    gaps = [logp - before[token] for token, logp in after.items() if token in kept]
    return [(abs(gap - shift), abs(gap)) for gap in gaps]


def _nucleus(p: Mapping[int, float], top_p: float) -> set[int] | None:
    """The smallest set of the likeliest tokens with top_p together; None if too little is known."""
    unseen = 1.0 - math.fsum(p.values())
    kept, total = set[int](), 0.0
    for token in sorted(p, key=lambda token: -p[token]):
        if p[token] <= unseen:  # an unseen token may be likelier
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
    is_ignored = outside > 0.05 * count  # a few may be on the border
    return JudgedLogprobs(meaning=Meaning.IGNORED, of=count) if is_ignored else _judged(errors, tolerance)


def _judged(errors: Sequence[tuple[float, float]], tolerance: float) -> JudgedLogprobs:
    """The meaning that most comparisons fit. An error is the pair of distances from in-force and raw."""
    if len(errors) < LEAST:
        return JudgedLogprobs(meaning=Meaning.UNKNOWN, of=len(errors))
    for meaning, place in ((Meaning.IN_FORCE, 0), (Meaning.RAW, 1)):
        mine = sorted(error[place] for error in errors)
        if sum(error <= tolerance for error in mine) >= MOST * len(mine):
            return JudgedLogprobs(meaning=meaning, of=len(mine), error=mine[len(mine) // 2])
    return JudgedLogprobs(
        meaning=Meaning.OTHER, of=len(errors), error=sorted(error[0] for error in errors)[len(errors) // 2]
    )


def surprise(plain: DrawnStats) -> tuple[float, int]:
    """The smallest exact p-value of the draws given their log-probs (Bonferroni), and the number of states tested.

    In each state the count of the likeliest token is Binomial(n, p).
    """
    values = []
    for state, tokens in plain.logprobs.items():
        known, count = plain.known(state), sum(map(len, tokens.values()))
        if count < LEAST_DRAWS:
            continue
        likeliest = max(known, key=lambda token: known[token])
        if math.fsum(map(math.exp, known.values())) > 1.0 + MARGIN:
            return 0.0, 1  # probabilities above 1
        values.append(_tail(len(tokens[likeliest]), count, min(math.exp(known[likeliest]), 1.0)))
    return (min(1.0, min(values) * len(values)), len(values)) if values else (1.0, 0)


def _tail(hits: int, count: int, p: float) -> float:
    """The two-sided p-value: twice the smaller tail."""

    def chance(k: int) -> float:
        return math.comb(count, k) * p**k * (1.0 - p) ** (count - k)

    low, high = math.fsum(map(chance, range(hits + 1))), math.fsum(map(chance, range(hits, count + 1)))
    return min(1.0, 2.0 * min(low, high))


SAMPLES = 24  # answers to each question, for each kind of sampling
TEMPERATURES = (1.0, 1.5, 2.0)
BASES = (1.0, 2.0)  # temperatures for the filters: one for confident models, one for others
TOP_K, TOP_P = 2, 0.6
UNSTABLE = 0.25  # nats between two reports of one log-prob
UNLIKELY = 1e-6
GAP = 0.02  # nats, mean distance between sampler and trainer
DRAWN = ("temperature", "top_k", "top_p", "draws")
OPENERS = ("Say any word that comes to your mind.", "17", "Say heads or tails.", "Convert 5 to")

Trainer = Callable[[Sequence[ModelCall]], Sequence[Sequence[float]]]  # its own log-probs of each call's completion


async def assay(session: EndpointSession, samples: int, trainer: Trainer | None) -> list[DoctorFinding]:
    """The findings on temperature, top-k, top-p, draws and the trainer's gap."""
    session.heard("temperature")
    drawn = {at: await _draw(session, samples, temperature=at) for at in TEMPERATURES}
    answers = {at: some for at, some in drawn.items() if not isinstance(some, EndpointRefused)}
    if isinstance(why := drawn[1.0], EndpointRefused):
        lost = [unknown(check, "no_samples", f"sampling is refused: {why.says}") for check in DRAWN]
        return [*lost, skipped("trainer_gap", "there are no samples")]
    plain = {at: _drawn(some) for at, some in answers.items()}
    sharp = tolerance(spread(plain.values()))
    heat = under_temperature(plain, sharp)
    findings, every = [_meaning("temperature", heat, sharp)], [answer for some in answers.values() for answer in some]
    # Raw log-probs at other temperatures do not say what a filter keeps.
    bases = [at for at in BASES if at in plain and (at == 1.0 or heat.meaning is Meaning.IN_FORCE)]
    for check, value in (("top_k", TOP_K), ("top_p", TOP_P)):
        session.heard(check)
        kept = {at: await _draw(session, samples, temperature=at, **{check: value}) for at in bases}
        if isinstance(refused := kept[1.0], EndpointRefused):
            findings.append(skipped(check, f"it is not offered: {refused.says}"))
            continue
        pairs = [(plain[at], _drawn(some)) for at, some in kept.items() if not isinstance(some, EndpointRefused)]
        under = under_top_k(pairs, sharp, TOP_K) if check == "top_k" else under_top_p(pairs, sharp, TOP_P)
        findings.append(_meaning(check, under, sharp))
        every += [answer for some in kept.values() if not isinstance(some, EndpointRefused) for answer in some]
    session.heard("draws")
    return [*findings, _draws(plain), _gap(session, every, trainer)]


async def _draw(session: EndpointSession, samples: int, **how: Any) -> list[ProbeAnswer] | EndpointRefused:
    """Answers of four tokens to each opener, each with its own seed; or the refusal of an endpoint that does not
    offer the parameter."""
    (text, seed), *rest = [(text, seed) for text in OPENERS for seed in range(samples)]
    try:
        first = await session.ask([text], max_tokens=4, seed=seed, **how)  # first one alone: it may be refused
    except EndpointRefused as refused:
        return refused
    others = (session.ask([text], max_tokens=4, seed=seed, **how) for text, seed in rest)
    return [first, *await asyncio.gather(*others)]


def _drawn(answers: Sequence[ProbeAnswer]) -> DrawnStats:
    place = {text: number for number, text in enumerate(OPENERS)}
    return drawn(
        (place[answer.asked["messages"][-1]["content"]], answer.ids or (), answer.logprobs or ()) for answer in answers
    )


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


def _gap(session: EndpointSession, answers: Sequence[ProbeAnswer], trainer: Trainer | None) -> DoctorFinding:
    """The distance between the sampler's and the trainer's log-probs."""
    session.heard("trainer_gap")
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


ECHO = 0.5  # share of an answer's ids that must come back when its text is read
TALK = ("What is 2 + 2?", "And what is the opposite of hot?", "Thank you. Anything else?")
NO_TEXT = "\ufffd"  # stands where tokens spell no UTF-8: models of bytes may say such, and no text brings it back
COUNTED = ("prompt_tokens", "completion_tokens")
WRITTEN = re.compile(r"\bcalc\b.*\bexpression\b", re.DOTALL)  # a tool call that stayed text
SUM = "What is 417 * 23? Use the tool."  # some models call a tool only if asked to
CALC: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "calc",
        "description": "Compute an arithmetic expression.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}


async def examine(
    probe: EndpointProbe,
    model: str,
    *,
    with_tools: bool = True,
    trainer: Trainer | None = None,
    samples: int = SAMPLES,
    system: str | None = None,
    heard: Heard = lambda check: None,
) -> tuple[DoctorFinding, ...]:
    """One finding for each of CHECKS, in order; Fault if the connection is lost.

    `system` is the system prompt of every question: a small model may need one."""
    session = EndpointSession(probe, model, heard, system)
    try:
        first = await session.ask(TALK[:1])
    except EndpointRefused as refused:
        return _all_skipped(failed("completion", "no_completion", refused.why), after="nothing was answered")
    findings = [
        DoctorFinding(check="completion", detail=f"answered by {first.model or model}"),
        *_tokens(session, first),
    ]
    if any(finding.state is FindingState.FAILED for finding in findings):
        return _all_skipped(*findings, after="there are no ids and log-probs to look at")
    findings += [await _ids_of_text(session, first), _usage(first)]
    findings.append(repeated := await _repeatable(session, first))
    findings.append(await _stream(session, first, with_tools, repeated.state is FindingState.OK))
    if findings[3].state is FindingState.FAILED:
        return _all_skipped(*findings, after="the ids are those of another text")
    findings.append(await _template(session))
    findings.append(await _tool_calls(session) if with_tools else skipped("tool_calls", "not asked for"))
    return (*findings, *await assay(session, samples, trainer))


def _tokens(session: EndpointSession, answer: ProbeAnswer) -> list[DoctorFinding]:
    session.heard("token_ids")
    message = f" ({session.refusals[0]})" if session.refusals else ""
    missing = [name for name, ids in (("prompt", answer.prompt_ids), ("answer", answer.ids)) if not ids]
    ids = DoctorFinding(
        check="token_ids", detail=f"{len(answer.prompt_ids or ())} read, {len(answer.ids or ())} written"
    )
    if missing:
        ids = failed("token_ids", "no_token_ids", f"no token ids of the {' and the '.join(missing)}{message}")
    count, values = len(answer.ids or ()), answer.logprobs
    logprobs = DoctorFinding(check="logprobs", detail="one for each id")
    if values is None:
        logprobs = failed("logprobs", "no_logprobs", f"no log-probs came{message}")
    elif answer.ids and len(values) != count:
        logprobs = failed("logprobs", "bad_logprobs", f"{len(values)} log-probs for {count} ids")
    elif not all(math.isfinite(value) and value < 1e-3 for value in values):
        logprobs = failed("logprobs", "bad_logprobs", "a log-prob is above 0 or not finite")
    return [ids, logprobs]


async def _ids_of_text(session: EndpointSession, answer: ProbeAnswer) -> DoctorFinding:
    """The answer's text, sent back as a question, must be read as the ids it was written in."""
    session.heard("ids_of_text")
    code, text = "ids_of_other_text", _words(answer)
    for question in TALK[1:]:
        if NO_TEXT not in text:
            break
        answer = await session.ask([question])
        text = _words(answer)
    if NO_TEXT in text:
        return skipped("ids_of_text", "its answers hold bytes that are no UTF-8, which no text can bring back")
    if answer.spelled is not None:
        letters = b"".join(answer.spelled).decode(errors="replace")
        if text not in letters:
            return failed("ids_of_text", code, f"the tokens spell {letters[:40]!r}, the text is {text[:40]!r}")
    if not text:
        return unknown("ids_of_text", "no_text", "the answer has no text to compare")
    echo, blank = await asyncio.gather(session.ask([text], max_tokens=1), session.ask(["."], max_tokens=1))
    own = _middle(echo.prompt_ids or (), blank.prompt_ids or ())
    blocks = SequenceMatcher(None, own, answer.ids or (), autojunk=False).get_matching_blocks()
    least = min(3, len(own))
    matched = sum(block.size for block in blocks if block.size >= least)
    share = matched / max(len(own), 1)
    seen = f"of {len(own)} ids that its text is read in, {matched} stand in the answer"
    if share < ECHO:
        return failed("ids_of_text", code, seen, share=share)
    return DoctorFinding(check="ids_of_text", detail=seen, figures={"share": share})


def _words(answer: ProbeAnswer) -> str:
    return answer.text.strip() or str(answer.message.get("reasoning_content") or "").strip()


def _middle(long: Sequence[int], short: Sequence[int]) -> tuple[int, ...]:
    """The long prompt without the beginning and end that both share."""
    limit = min(len(long), len(short))
    head = next((place for place in range(limit) if long[place] != short[place]), limit)
    tail = next((place for place in range(limit - head) if long[-1 - place] != short[-1 - place]), limit - head)
    return tuple(long[head : len(long) - tail])


def _usage(answer: ProbeAnswer) -> DoctorFinding:
    counts = dict(zip(COUNTED, (len(answer.prompt_ids or ()), len(answer.ids or ())), strict=True))
    usage = {name: answer.usage.get(name) for name in COUNTED}
    wrong = [f"{name} = {usage[name]}, {count} ids" for name, count in counts.items() if usage[name] != count]
    if wrong:
        return failed("usage", "usage_differs", "; ".join(wrong))
    return DoctorFinding(check="usage", detail="as many as there are ids")


async def _repeatable(session: EndpointSession, first: ProbeAnswer) -> DoctorFinding:
    session.heard("repeatable")
    again = await asyncio.gather(*(session.ask(TALK[:1]) for _ in range(3)))
    differing = sum(answer.ids != first.ids for answer in again)
    if differing:
        detail = f"{differing} of 3 answers at temperature 0 differ from the first"
        return DoctorFinding(check="repeatable", state=FindingState.WARNING, code="not_repeatable", detail=detail)
    pairs = [(a, b) for answer in again for a, b in zip(first.logprobs or (), answer.logprobs or (), strict=False)]
    apart = max((abs(a - b) for a, b in pairs), default=0.0)
    return DoctorFinding(check="repeatable", detail=f"log-probs within {apart:.1g} nats", figures={"apart": apart})


async def _stream(session: EndpointSession, first: ProbeAnswer, with_tools: bool, is_repeatable: bool) -> DoctorFinding:
    session.heard("stream")
    try:
        wrong = _differing(await session.ask(TALK[:1], stream=True), first)
        if with_tools:
            asked = (session.ask([SUM], tools=[CALC], stream=stream) for stream in (True, False))
            wrong += _differing(*await asyncio.gather(*asked))
    except EndpointRefused as refused:
        return failed("stream", "stream_refused", f"streams are refused: {refused.says}")
    if not wrong:
        return DoctorFinding(check="stream", detail="the same text, calls, ids and log-probs")
    detail = f"streamed, {', '.join(dict.fromkeys(wrong))} differ from the whole answer"
    if is_repeatable:
        return failed("stream", "stream_differs", detail)
    detail = f"{detail}: as two whole answers do"
    return DoctorFinding(check="stream", state=FindingState.WARNING, code="not_repeatable", detail=detail)


def _differing(heard: ProbeAnswer, whole: ProbeAnswer) -> list[str]:
    """The parts of a stream that differ from the whole answer."""
    parts = {"the ids of the answer": "ids", "the ids of the prompt": "prompt_ids", "the reason it ended": "finish"}
    wrong = [what for what, name in parts.items() if getattr(heard, name) != getattr(whole, name)]
    if heard.text.replace(NO_TEXT, "") != whole.text.replace(NO_TEXT, ""):
        wrong.append("the text")
    if list(map(_function, heard.calls)) != list(map(_function, whole.calls)):
        wrong.append("the calls")
    pairs = list(zip(heard.logprobs or (), whole.logprobs or (), strict=False))
    if len(heard.logprobs or ()) != len(whole.logprobs or ()) or any(abs(a - b) > UNSTABLE for a, b in pairs):
        wrong.append("the log-probs")
    if heard.usage and any(heard.usage.get(name) != whole.usage.get(name) for name in COUNTED):
        wrong.append("the usage")
    return wrong


async def _template(session: EndpointSession) -> DoctorFinding:
    session.heard("template")
    messages: list[str | Mapping[str, Any]] = []
    before: ProbeAnswer | None = None
    for text in TALK:
        answer = await session.ask([*messages, text])
        if before is not None and (why := parting(before, answer)) is not None:
            code, detail = why
            if code == "retokenised" and NO_TEXT in _words(before):
                return skipped("template", "an answer holds bytes that are no UTF-8, which no text can bring back")
            return failed("template", code, detail)
        messages += [text, answer.message]
        before = answer
    return DoctorFinding(check="template", detail=f"over {len(TALK)} turns")


def parting(before: ProbeAnswer, after: ProbeAnswer) -> tuple[str, str] | None:
    """A code and a sentence if the later prompt does not begin with the earlier prompt and its answer."""
    read, written, later = before.prompt_ids or (), before.ids or (), after.prompt_ids or ()
    whole = (*read, *written)
    place = next((at for at, token in enumerate(whole) if at >= len(later) or later[at] != token), None)
    if place is None:
        return None
    if place < len(read):
        return "template_rewrites", f"the opening is written differently a turn later, from token {place} on"
    if place == len(read):
        return "template_rewrites", "what was answered is written differently a turn later, from its first token on"
    if place == len(whole) - 1 and before.finish != "length":
        return "template_rewrites", "the answer's end is marked differently a turn later"
    inside = place - len(read)
    return "retokenised", f"the answer comes back in other ids, from token {inside} of {len(written)} on"


async def _tool_calls(session: EndpointSession) -> DoctorFinding:
    session.heard("tool_calls")
    try:
        bare, first = await asyncio.gather(session.ask([SUM]), session.ask([SUM], tools=[CALC]))
        if bare.prompt_ids == first.prompt_ids:
            return failed("tool_calls", "tools_unseen", "the prompt is the same with tools as without: they are lost")
        tries = [first]
        if not first.calls:
            drawing = (session.ask([SUM], tools=[CALC], temperature=1.0, seed=seed) for seed in range(SAMPLES))
            tries += await asyncio.gather(*drawing)
        called = next((answer for answer in tries if answer.calls), None)
        return _uncalled(tries) if called is None else await _round_trip(session, called)
    except EndpointRefused as refused:
        return failed("tool_calls", "tools_refused", f"a request with tools is refused: {refused.says}")


def _uncalled(tries: Sequence[ProbeAnswer]) -> DoctorFinding:
    """Whether tool calls were written and lost, or none came."""
    for answer in tries:
        letters = b"".join(answer.spelled or ()).decode(errors="replace")
        if answer.finish == "tool_calls" or any(map(WRITTEN.search, (letters, answer.text))):
            return failed("tool_calls", "tool_calls_lost", "a call is in the answer's tokens and not in its message")
        is_thought = answer.message.get("reasoning_content") or answer.message.get("reasoning")
        if not answer.text and len(answer.ids or ()) > 1 and not is_thought:
            lost = f"{len(answer.ids or ())} tokens, and a message with neither text nor call"
            return failed("tool_calls", "tool_calls_lost", lost)
    return unknown("tool_calls", "no_tool_call", f"no call came in {len(tries)} answers: skip it if it has no tools")


async def _round_trip(session: EndpointSession, called: ProbeAnswer) -> DoctorFinding:
    call, code = called.calls[0], "tool_calls_malformed"
    function = _function(call)
    if function[0] != "calc" or not call.get("id"):
        return failed("tool_calls", code, f"a call without its name or id: {json.dumps(call)[:80]}")
    try:
        json.loads(function[1])
    except (ValueError, RecursionError):
        return failed("tool_calls", code, f"the arguments are not JSON: {function[1][:60]}")
    asked: list[str | Mapping[str, Any]] = [SUM, called.message]
    ends = [
        [{"role": "tool", "tool_call_id": call.get("id"), "content": text} for call in called.calls]
        for text in ("9591", "12")
    ]
    right, other = await asyncio.gather(*(session.ask([*asked, *end], tools=[CALC]) for end in ends))
    if (why := parting(called, right)) is not None:
        return failed("tool_calls", "tool_calls_rewritten", f"after a call, {why[1]}")
    if right.prompt_ids == other.prompt_ids:
        return failed("tool_calls", "tool_results_lost", "the prompt is the same whatever the tool's result")
    return DoctorFinding(check="tool_calls", detail="called, answered, and read back in the same ids")


def _function(call: Any) -> tuple[str, str]:
    function = call.get("function") if isinstance(call, Mapping) else None
    given = function if isinstance(function, Mapping) else {}
    return str(given.get("name") or ""), str(given.get("arguments") or "")


def _all_skipped(*found: DoctorFinding, after: str) -> tuple[DoctorFinding, ...]:
    return (*found, *(skipped(check, after) for check in list(CHECKS)[len(found) :]))
