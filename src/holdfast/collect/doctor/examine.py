"""Whether an endpoint is fit to be trained on: asked before any training, in some hundreds of short questions.

Each check compares the endpoint with itself, so no tokenizer and no weights are needed: what it says twice must agree.
What its log-probs mean is `assay`'s part, raw answers come from `probe`, and what it all amounts to is told by
`findings.verdict`.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from holdfast.collect.doctor.assay import SAMPLES, UNSTABLE, Trainer, assay
from holdfast.collect.doctor.findings import CHECKS, DoctorFinding, FindingState, failed, skipped, unknown
from holdfast.collect.doctor.probe import EndpointProbe, EndpointRefused, Heard, Patient, ProbeAnswer

ECHO = 0.5  # share of an answer's text whose ids must come back when it is read
TALK = ("What is 2 + 2?", "And what is the opposite of hot?", "Thank you. Anything else?")
COUNTED = ("prompt_tokens", "completion_tokens")
WRITTEN = re.compile(r"\bcalc\b.*\bexpression\b", re.DOTALL)  # a call that stayed text
SUM = "What is 417 * 23? Use the tool."  # some models call none unless they are asked to
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
    """One finding for each of CHECKS, in their order. A connection that is lost is a Fault.

    `system` is what every question is asked under: a small model may know no conversation without instructions."""
    patient = Patient(probe, model, heard, system)
    try:
        first = await patient.ask(TALK[:1])
    except EndpointRefused as refused:
        return _all_skipped(failed("completion", "no_completion", refused.why), after="nothing was answered")
    found = [DoctorFinding(check="completion", detail=f"answered by {first.model or model}"), *_tokens(patient, first)]
    if any(one.state is FindingState.FAILED for one in found):
        return _all_skipped(*found, after="there are no ids and log-probs to look at")
    found += [await _ids_of_text(patient, first), _usage(first)]
    found.append(repeated := await _repeatable(patient, first))
    found.append(await _stream(patient, first, with_tools, repeated.state is FindingState.OK))
    if found[3].state is FindingState.FAILED:
        return _all_skipped(*found, after="the ids are those of another text")
    found.append(await _template(patient))
    found.append(await _tool_calls(patient) if with_tools else skipped("tool_calls", "not asked for"))
    return (*found, *await assay(patient, samples, trainer))


# What comes with an answer -------------------------------------------------------------------------------------------


def _tokens(patient: Patient, answer: ProbeAnswer) -> list[DoctorFinding]:
    patient.heard("token_ids")
    told = f" ({patient.refusals[0]})" if patient.refusals else ""
    missing = [name for name, ids in (("prompt", answer.prompt_ids), ("answer", answer.ids)) if not ids]
    ids = DoctorFinding(
        check="token_ids", detail=f"{len(answer.prompt_ids or ())} read, {len(answer.ids or ())} written"
    )
    if missing:
        ids = failed("token_ids", "no_token_ids", f"no token ids of the {' and the '.join(missing)}{told}")
    count, values = len(answer.ids or ()), answer.logprobs
    logprobs = DoctorFinding(check="logprobs", detail="one for each id")
    if values is None:
        logprobs = failed("logprobs", "no_logprobs", f"no log-probs came{told}")
    elif answer.ids and len(values) != count:
        logprobs = failed("logprobs", "bad_logprobs", f"{len(values)} log-probs for {count} ids")
    elif not all(math.isfinite(value) and value < 1e-3 for value in values):
        logprobs = failed("logprobs", "bad_logprobs", "a log-prob is above 0 or not finite")
    return [ids, logprobs]


async def _ids_of_text(patient: Patient, answer: ProbeAnswer) -> DoctorFinding:
    """The answer's text, sent back as a question, must be read in the ids it was written in."""
    patient.heard("ids_of_text")
    code, text = "ids_of_other_text", answer.text.strip() or str(answer.message.get("reasoning_content") or "").strip()
    if answer.spelled is not None:
        letters = b"".join(answer.spelled).decode(errors="replace")
        if text not in letters:
            return failed("ids_of_text", code, f"the tokens spell {letters[:40]!r}, the text is {text[:40]!r}")
    if not text:
        return unknown("ids_of_text", "no_text", "the answer has no text to compare")
    echo, blank = await asyncio.gather(patient.ask([text], max_tokens=1), patient.ask(["."], max_tokens=1))
    own = _middle(echo.prompt_ids or (), blank.prompt_ids or ())
    blocks = SequenceMatcher(None, own, answer.ids or (), autojunk=False).get_matching_blocks()
    least = min(3, len(own))
    matched = sum(block.size for block in blocks if block.size >= least)
    share = matched / max(len(own), 1)
    seen = f"of {len(own)} ids that its text is read in, {matched} stand in the answer"
    if share < ECHO:
        return failed("ids_of_text", code, seen, share=share)
    return DoctorFinding(check="ids_of_text", detail=seen, figures={"share": share})


def _middle(long: Sequence[int], short: Sequence[int]) -> tuple[int, ...]:
    """What is between the beginning and the end that two prompts have in common."""
    limit = min(len(long), len(short))
    head = next((place for place in range(limit) if long[place] != short[place]), limit)
    tail = next((place for place in range(limit - head) if long[-1 - place] != short[-1 - place]), limit - head)
    return tuple(long[head : len(long) - tail])


def _usage(answer: ProbeAnswer) -> DoctorFinding:
    counts = dict(zip(COUNTED, (len(answer.prompt_ids or ()), len(answer.ids or ())), strict=True))
    told = {name: answer.usage.get(name) for name in COUNTED}
    wrong = [f"{name} = {told[name]}, {count} ids" for name, count in counts.items() if told[name] != count]
    if wrong:
        return failed("usage", "usage_differs", "; ".join(wrong))
    return DoctorFinding(check="usage", detail="as many as there are ids")


async def _repeatable(patient: Patient, first: ProbeAnswer) -> DoctorFinding:
    patient.heard("repeatable")
    again = await asyncio.gather(*(patient.ask(TALK[:1]) for _ in range(3)))
    differing = sum(one.ids != first.ids for one in again)
    if differing:
        detail = f"{differing} of 3 answers at temperature 0 differ from the first"
        return DoctorFinding(check="repeatable", state=FindingState.WARNING, code="not_repeatable", detail=detail)
    pairs = [(a, b) for one in again for a, b in zip(first.logprobs or (), one.logprobs or (), strict=False)]
    apart = max((abs(a - b) for a, b in pairs), default=0.0)
    return DoctorFinding(check="repeatable", detail=f"log-probs within {apart:.1g} nats", figures={"apart": apart})


async def _stream(patient: Patient, first: ProbeAnswer, with_tools: bool, is_repeatable: bool) -> DoctorFinding:
    patient.heard("stream")
    try:
        wrong = _differing(await patient.ask(TALK[:1], stream=True), first)
        if with_tools:
            asked = (patient.ask([SUM], tools=[CALC], stream=stream) for stream in (True, False))
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
    """What a stream says otherwise than the whole answer."""
    parts = {"the ids of the answer": "ids", "the ids of the prompt": "prompt_ids", "the reason it ended": "finish"}
    wrong = [what for what, name in parts.items() if getattr(heard, name) != getattr(whole, name)]
    if heard.text != whole.text:
        wrong.append("the text")
    if list(map(_function, heard.calls)) != list(map(_function, whole.calls)):
        wrong.append("the calls")
    pairs = list(zip(heard.logprobs or (), whole.logprobs or (), strict=False))
    if len(heard.logprobs or ()) != len(whole.logprobs or ()) or any(abs(a - b) > UNSTABLE for a, b in pairs):
        wrong.append("the log-probs")
    if heard.usage and any(heard.usage.get(name) != whole.usage.get(name) for name in COUNTED):
        wrong.append("the usage")
    return wrong


# What a later turn begins with ---------------------------------------------------------------------------------------


async def _template(patient: Patient) -> DoctorFinding:
    patient.heard("template")
    messages: list[str | Mapping[str, Any]] = []
    before: ProbeAnswer | None = None
    for text in TALK:
        answer = await patient.ask([*messages, text])
        if before is not None and (why := parting(before, answer)) is not None:
            code, detail = why
            return failed("template", code, detail)
        messages += [text, answer.message]
        before = answer
    return DoctorFinding(check="template", detail=f"over {len(TALK)} turns")


def parting(before: ProbeAnswer, after: ProbeAnswer) -> tuple[str, str] | None:
    """Why the later prompt does not begin with the earlier prompt and its answer: a code, and a sentence."""
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


async def _tool_calls(patient: Patient) -> DoctorFinding:
    patient.heard("tool_calls")
    try:
        bare, first = await asyncio.gather(patient.ask([SUM]), patient.ask([SUM], tools=[CALC]))
        if bare.prompt_ids == first.prompt_ids:
            return failed("tool_calls", "tools_unseen", "the prompt is the same with tools as without: they are lost")
        tries = [first]
        if not first.calls:
            drawing = (patient.ask([SUM], tools=[CALC], temperature=1.0, seed=seed) for seed in range(SAMPLES))
            tries += await asyncio.gather(*drawing)
        called = next((answer for answer in tries if answer.calls), None)
        return _uncalled(tries) if called is None else await _round_trip(patient, called)
    except EndpointRefused as refused:
        return failed("tool_calls", "tools_refused", f"a request with tools is refused: {refused.says}")


def _uncalled(tries: Sequence[ProbeAnswer]) -> DoctorFinding:
    """Whether calls were written and got lost, or there were none."""
    for answer in tries:
        letters = b"".join(answer.spelled or ()).decode(errors="replace")
        if answer.finish == "tool_calls" or any(map(WRITTEN.search, (letters, answer.text))):
            return failed("tool_calls", "tool_calls_lost", "a call is in the answer's tokens and not in its message")
        is_thought = answer.message.get("reasoning_content") or answer.message.get("reasoning")
        if not answer.text and len(answer.ids or ()) > 1 and not is_thought:
            lost = f"{len(answer.ids or ())} tokens, and a message with neither text nor call"
            return failed("tool_calls", "tool_calls_lost", lost)
    return unknown("tool_calls", "no_tool_call", f"no call came in {len(tries)} answers: skip it if it has no tools")


async def _round_trip(patient: Patient, called: ProbeAnswer) -> DoctorFinding:
    call, code = called.calls[0], "tool_calls_malformed"
    function = _function(call)
    if function[0] != "calc" or not call.get("id"):
        return failed("tool_calls", code, f"a call without its name or id: {json.dumps(call)[:80]}")
    try:
        json.loads(function[1])
    except ValueError:
        return failed("tool_calls", code, f"the arguments are not JSON: {function[1][:60]}")
    asked: list[str | Mapping[str, Any]] = [SUM, called.message]
    ends = [
        [{"role": "tool", "tool_call_id": one.get("id"), "content": text} for one in called.calls]
        for text in ("9591", "12")
    ]
    right, other = await asyncio.gather(*(patient.ask([*asked, *end], tools=[CALC]) for end in ends))
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
