"""A sound endpoint passes; each wrong one is rejected, for what is wrong with it and for nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.collect.chat_format import spell_byte
from holdfast.collect.doctor import examine, parting
from holdfast.collect.endpoint_probe import CHECKS, DoctorFinding, EndpointProbe, FindingState, ProbeAnswer, verdict
from tests.collect.doctor import toys


def found(toy: toys.Toy, *, spell: Any = spell_byte, **how: Any) -> dict[str, DoctorFinding]:
    async def asking(url: str) -> tuple[DoctorFinding, ...]:
        async with EndpointProbe(url) as probe:
            return await examine(probe, "toy", **{"samples": 12, **how})

    with toys.serving(toy, spell=spell) as url:
        findings = asyncio.run(asking(url))
    assert [one.check for one in findings] == list(CHECKS)
    return {one.check: one for one in findings}


def codes(findings: dict[str, DoctorFinding]) -> list[str]:
    decision = verdict(list(findings.values()))
    assert decision.open is ([reason.code for reason in decision.reasons] == ["endpoint_fit"])
    return [reason.code for reason in decision.reasons]


def test_a_sound_endpoint_passes_every_check() -> None:
    findings = found(toys.Toy(), trainer=lambda calls: [call.logprobs or () for call in calls])
    assert {check: one.state for check, one in findings.items()} == dict.fromkeys(CHECKS, FindingState.OK)
    assert codes(findings) == ["endpoint_fit"]


@pytest.mark.parametrize(
    ("toy", "reasons"),
    [
        (toys.NoIds(), ["no_token_ids", "no_logprobs"]),
        (toys.Raw(), ["logprobs_raw_under_temperature", "logprobs_raw_under_top_k", "logprobs_raw_under_top_p"]),
        (toys.Unfiltered(), ["logprobs_raw_under_top_k", "logprobs_raw_under_top_p"]),
        (toys.Dated(), ["template_rewrites", "tool_calls_rewritten"]),
        (toys.Forgetful(), ["template_rewrites", "tool_calls_rewritten"]),
        (toys.Merging(), ["retokenised"]),
        (toys.Elsewhere(), ["ids_of_other_text"]),
        (toys.Mute(), ["tool_calls_lost"]),
        (toys.Toolless(), ["tools_unseen"]),
        (toys.Inattentive(), ["tool_results_lost"]),
        (toys.Deaf(), ["logprobs_ignored_under_top_k", "logprobs_ignored_under_top_p"]),
        (toys.Stammering(), ["stream_differs"]),
        (toys.Chatty(), ["no_tool_call"]),
        (toys.Miscounting(), ["usage_differs"]),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, toys.Toy) else "",
)
def test_a_wrong_endpoint_is_rejected_for_what_is_wrong_with_it(toy: toys.Toy, reasons: list[str]) -> None:
    assert codes(found(toy)) == reasons


def test_a_temperature_that_is_applied_twice_fits_no_meaning() -> None:
    assert "logprobs_neither_under_temperature" in codes(found(toys.Twice()))


def test_log_probs_of_other_tokens_do_not_fit_what_is_drawn() -> None:
    assert "draws_differ" in codes(found(toys.Shifted()))


def test_ids_of_another_text_are_found_without_the_spelling_of_tokens() -> None:
    assert codes(found(toys.Elsewhere(), spell=None)) == ["ids_of_other_text"]
    assert codes(found(toys.Toy(), spell=None)) == ["endpoint_fit"]


def test_lost_calls_are_found_without_the_spelling_of_tokens() -> None:
    assert codes(found(toys.Mute(), spell=None)) == ["tool_calls_lost"]


def test_what_an_endpoint_does_not_offer_is_left_out() -> None:
    findings = found(toys.Plain())
    assert findings["top_k"].state is FindingState.SKIPPED and "top_k: is not known here" in findings["top_k"].detail
    assert findings["top_p"].state is FindingState.OK
    assert findings["temperature"].state is FindingState.UNKNOWN  # one temperature says nothing of another
    assert codes(findings) == ["logprobs_unknown_under_temperature"]


def test_an_answer_that_differs_at_temperature_0_is_worth_a_warning() -> None:
    findings = found(toys.Fickle(), with_tools=False)
    assert (findings["repeatable"].state, findings["repeatable"].code) == (FindingState.WARNING, "not_repeatable")
    assert findings["stream"].state is not FindingState.FAILED  # it differs as two whole answers do


def test_a_trainer_that_finds_other_log_probs_is_told_with_the_distance() -> None:
    findings = found(toys.Toy(), trainer=lambda calls: [[p - 0.25 for p in call.logprobs or ()] for call in calls])
    gap = findings["trainer_gap"]
    assert (gap.state, gap.code) == (FindingState.FAILED, "trainer_gap")
    assert gap.figures["mean"] == pytest.approx(0.25) and gap.figures["kl"] == pytest.approx(0.0288, abs=1e-4)
    short = found(toys.Toy(), trainer=lambda calls: [])["trainer_gap"]
    assert short.state is FindingState.FAILED and "gave 0 log-probs" in short.detail


def test_tools_need_not_be_asked_for() -> None:
    findings = found(toys.Mute(), with_tools=False)
    assert findings["tool_calls"].state is FindingState.SKIPPED and codes(findings) == ["endpoint_fit"]


def test_an_endpoint_that_refuses_everything_has_one_reason() -> None:
    async def asking(url: str) -> tuple[DoctorFinding, ...]:
        async with EndpointProbe(url) as probe:
            return await examine(probe, "another")

    with toys.serving(toys.Toy()) as url:
        findings = asyncio.run(asking(url))
    assert [one.state for one in findings] == [FindingState.FAILED, *[FindingState.SKIPPED] * (len(CHECKS) - 1)]
    assert "HTTP 404: model 'another': is not served here" in findings[0].detail


def answer(prompt: list[int], ids: list[int], finish: str = "stop") -> ProbeAnswer:
    return ProbeAnswer(asked={}, message={}, finish=finish, prompt_ids=tuple(prompt), ids=tuple(ids))


@pytest.mark.parametrize(
    ("later", "says"),
    [
        ([1, 2, 3, 4, 5, 9], None),
        ([1, 9, 3, 4, 5], "the opening is written differently a turn later, from token 1 on"),
        ([1, 2, 9, 4, 5], "what was answered is written differently a turn later, from its first token on"),
        ([1, 2, 3, 9, 5], "the answer comes back in other ids, from token 1 of 3 on"),
        ([1, 2, 3, 4, 9], "the answer's end is marked differently a turn later"),
        ([1, 2, 3], "the answer comes back in other ids, from token 1 of 3 on"),  # it is cut
    ],
)
def test_where_a_later_prompt_parts_is_told(later: list[int], says: str | None) -> None:
    why = parting(answer([1, 2], [3, 4, 5]), answer(later, [7]))
    assert (why and why[1]) == says
