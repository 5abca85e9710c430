from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Finding
from holdfast.contracts.experience import Experience
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall
from holdfast.learn.quality import (
    BLOCKING,
    GATES,
    QualityReport,
    Standards,
    audit,
)

SECRET = "AK" + "IA" + "IOSFODNN7EXAMPL2"
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "kelp", "lotus", "maple")


def call(question: str = "How many?", answer: str = "Forty-two.", **given: Any) -> ModelCall:
    return ModelCall(
        **{
            "model": "sprout-1",
            "messages": ({"role": "system", "content": "Be brief."}, {"role": "user", "content": question}),
            "response": {"role": "assistant", "content": answer},
            "finish_reason": "stop",
            "completion_tokens": 2,
            "completion_ids": (5, 6),
            "logprobs": (-0.1, -0.2),
            **given,
        }
    )


def model_span(model: ModelCall, seq: int = 1, **given: Any) -> Span:
    return Span(
        **{
            "seq": seq,
            "kind": SpanKind.MODEL,
            "name": "chat",
            "started_at": 1.0,
            "ended_at": 2.0,
            "model": model,
            **given,
        }
    )


def breakdown(**values: float) -> RewardBreakdown:
    return RewardBreakdown(
        signals=tuple(RewardTerm(name=name, value=value, source="rule:test") for name, value in values.items())
    )


def experience(name: str = "a", **given: Any) -> Experience:
    question = f"What of {name}, {' and '.join(name + word for word in WORDS)}?"
    return Experience(
        **{
            "rollout": f"run-1/{name}",
            "run": "run-1",
            "task": name,
            "split": Split.TRAIN,
            "is_final": True,
            "state": RolloutState.SUCCEEDED,
            "spans": (model_span(call(question)),),
            "breakdown": breakdown(success=1.0),
            "version": "sprout-1",
            **given,
        }
    )


def found(audited: QualityReport, name: str) -> Finding:
    (one,) = [finding for finding in audited.findings if finding.name == name]
    return one


def failed(audited: QualityReport) -> dict[str, int]:
    return {finding.name: finding.count for finding in audited.findings if finding.count}


def good(count: int = 12) -> list[Experience]:
    """Rewards differ, so that there is something to learn."""
    return [experience(f"n{place}", breakdown=breakdown(success=float(place % 2))) for place in range(count)]


def test_every_gate_reports_even_when_nothing_is_wrong() -> None:
    audited = audit(good())
    assert [finding.name for finding in audited.findings] == list(GATES)
    assert failed(audited) == {} and audited.is_clean and not audited.quarantined
    assert audited.ready == tuple(f"run-1/n{place}" for place in range(12))
    asked = {finding.name for finding in audited.findings if finding.of}
    assert set(GATES) - asked == {"rubric_scores", "version_fresh", "held_out_leakage", "tenant_hashed"}


def test_nothing_to_look_at_is_not_a_clean_look() -> None:
    audited = audit([])
    assert {finding.of for finding in audited.findings} == {0} and audited.ready == ()


LATE = Span(seq=2, kind=SpanKind.TELEMETRY, name="late", started_at=9.0, ended_at=9.5, parent=1)
TOOL = Span(
    seq=2,
    kind=SpanKind.TOOL,
    name="mail",
    started_at=1.5,
    ended_at=1.6,
    tool=ToolCall(tool="mail", arguments={"to": [{"who": "ada@analytical.engine.org"}]}),
)
CASES: list[tuple[str, dict[str, Any], Standards]] = [
    ("required_fields", {"task": " "}, Standards()),
    ("required_fields", {"breakdown": None}, Standards()),
    ("required_fields", {"breakdown": RewardBreakdown(signals=())}, Standards()),
    ("required_fields", {"spans": ()}, Standards()),
    ("decided", {"is_final": False}, Standards()),
    ("decided", {"state": RolloutState.DEAD}, Standards()),
    ("rubric_scores", {"breakdown": breakdown(success=0.0, accuracy=0.5)}, Standards(rubric=("accuracy", "tone"))),
    ("numeric_bounds", {"breakdown": breakdown(success=0.0, bonus=3.0)}, Standards(reward_range=(0.0, 1.0))),
    ("numeric_bounds", {"breakdown": breakdown(success=1.5)}, Standards()),
    ("numeric_bounds", {"spans": (model_span(call(completion_tokens=-1)),)}, Standards()),
    ("numeric_bounds", {"spans": (model_span(call(completion_tokens=3)),)}, Standards()),  # two are there
    ("known_values", {"spans": (model_span(call(finish_reason="because")),)}, Standards()),
    ("known_values", {"spans": (model_span(call(messages=({"role": "oracle", "content": "x"},))),)}, Standards()),
    ("finite_rewards", {"breakdown": breakdown(success=0.0, huge=1.7e308, more=1.7e308)}, Standards()),
    ("logprobs", {"spans": (model_span(call(logprobs=None)),)}, Standards()),
    ("version_fresh", {"version": "sprout-0"}, Standards(versions=("sprout-1", "sprout-2"))),
    ("version_fresh", {"version": None}, Standards(versions=("sprout-1",))),  # nobody knows which acted
    ("held_out_leakage", {"split": Split.TEST}, Standards()),
    ("first_action_in_time", {"spans": (model_span(call()), LATE)}, Standards()),
    ("no_pii", {"spans": (model_span(call("Call +44 20 7946 0958 for me")),)}, Standards()),
    ("no_pii", {"spans": (model_span(call()), TOOL)}, Standards()),
    ("no_secrets", {"spans": (model_span(call(answer=f"The key is {SECRET}.")),)}, Standards()),
    ("no_secrets", {"spans": (model_span(call(), attributes={"headers": {"auth": SECRET}}),)}, Standards()),
    ("tenant_hashed", {"spans": (model_span(call(), attributes={"tenant_id": "acme"}),)}, Standards()),
    ("success_consistent", {"breakdown": breakdown(success=1.0, quality=0.4)}, Standards()),
    ("success_consistent", {"breakdown": breakdown(success=0.0, quality=0.9)}, Standards()),
    ("tools_or_thoughts", {"spans": (model_span(call(completion_tokens=101, completion_ids=None, logprobs=None)),)},
     Standards(needs_logprobs=False)),
    ("latency_outlier", {"spans": (model_span(call(), ended_at=9.0),)}, Standards()),  # eight times all others
    ("token_outlier", {"spans": (model_span(call(completion_tokens=7, completion_ids=None, logprobs=None)),)},
     Standards(needs_logprobs=False)),
]  # fmt: skip


@pytest.mark.parametrize(("gate", "wrong", "standards"), CASES)
def test_each_gate_finds_its_fault_and_keeps_it_out_if_it_is_an_error(
    gate: str, wrong: dict[str, Any], standards: Standards
) -> None:
    bad = experience("bad", **wrong)
    rubric = dict.fromkeys(standards.rubric, 0.5)
    others = [experience(f"n{n}", breakdown=breakdown(success=float(n % 2), **rubric)) for n in range(12)]
    audited = audit([*others, bad], standards=standards)
    one = found(audited, gate)
    assert one.count == 1 and one.of >= 1 and one.detail.startswith("run-1/bad: ")
    is_blocking = GATES[gate] in BLOCKING
    assert one.blocks == is_blocking
    assert (gate in audited.quarantined.get("run-1/bad", ())) == is_blocking
    assert ("run-1/bad" in audited.ready) == ("run-1/bad" not in audited.quarantined)
    assert {f"run-1/n{n}" for n in range(12)} <= set(audited.ready)


def test_every_gate_but_the_ones_about_many_has_such_a_case() -> None:
    assert {gate for gate, _, _ in CASES} == set(GATES) - {"near_duplicate", "reward_varies"}


def test_a_secret_is_never_repeated_by_what_reports_it() -> None:
    audited = audit([experience("bad", spans=(model_span(call(answer=SECRET)),))])
    assert found(audited, "no_secrets").detail == "run-1/bad: aws_access_key"
    assert SECRET not in repr(audited)


def test_a_hashed_tenant_passes() -> None:
    one = experience(spans=(model_span(call(), attributes={"tenantId": "0f" * 32}),))
    assert (found(audit([one]), "tenant_hashed").count, found(audit([one]), "tenant_hashed").of) == (0, 1)


def test_a_held_out_task_is_recognised_by_its_input_or_by_what_was_asked() -> None:
    asked = experience("asked", spans=(model_span(call("How  MANY moons has Mars?")),))
    given = experience("given")
    clean = experience("clean")
    held_out = [{"prompt": "how many moons has mars?"}, {"question": "?", "seed": 3}]
    audited = audit([asked, given, clean], inputs={"run-1/given": {"seed": 3, "question": "?"}}, held_out=held_out)
    assert set(audited.quarantined) == {"run-1/asked", "run-1/given"}
    assert found(audited, "held_out_leakage").of == 3


def test_one_mark_or_word_more_does_not_hide_a_held_out_task() -> None:
    question = "How many of the moons of Mars were seen before the year 1900, and by whom were they seen first?"
    copied = experience("copied", spans=(model_span(call(question.replace(",", ";") + "!")),))
    other = experience("other", spans=(model_span(call(question.replace("1900", "1950"))),))
    audited = audit([copied, other], held_out=[{"prompt": question}])
    assert set(audited.quarantined) == {"run-1/copied"}


def test_answers_alike_are_duplicates_between_tasks_and_not_among_tries_at_one() -> None:
    spans = experience("a").spans
    first, again = experience("a-1", task="a", spans=spans), experience("a-2", task="a", spans=spans)
    other = experience("b", spans=spans)
    audited = audit([first, again, other])
    assert found(audited, "near_duplicate").detail == "run-1/b: repeats run-1/a-1"
    assert failed(audited)["near_duplicate"] == 1 and audited.is_clean
    assert failed(audit([first, first]))["near_duplicate"] == 1  # the same rollout, given twice


def test_rewards_that_are_all_the_same_are_told_but_keep_nothing_out() -> None:
    audited = audit([experience(name) for name in "abc"])
    assert failed(audited) == {"reward_varies": 3} and audited.is_clean
    assert found(audited, "reward_varies").detail == "run-1/a: all 3 rewards are 1"
    assert failed(audit([experience("a")])) == {}  # one reward says nothing


def test_a_few_values_have_no_outliers() -> None:
    slow = experience("slow", spans=(model_span(call(), ended_at=99.0),))
    assert found(audit([*good(8), slow]), "latency_outlier") == Finding(
        name="latency_outlier", severity="warning", count=0, of=0, blocks=False
    )


def test_two_of_three_hundred_are_outliers_by_the_99th_percentile() -> None:
    slow = [experience(name, spans=(model_span(call(), ended_at=9.0),)) for name in ("s1", "s2")]
    assert found(audit([*good(298), *slow]), "latency_outlier").count == 2


@given(st.lists(st.sampled_from(CASES), max_size=6))
def test_what_is_quarantined_and_what_is_ready_make_up_everything(
    cases: list[tuple[str, dict[str, Any], Standards]],
) -> None:
    every = [experience(f"x{n}", **wrong) for n, (_, wrong, _) in enumerate(cases)] + good(3)
    audited = audit(every)
    assert set(audited.ready) | set(audited.quarantined) == {one.rollout for one in every}
    assert not set(audited.ready) & set(audited.quarantined)
    assert audited.is_clean == (not audited.quarantined)
    ready = [one for one in every if one.rollout in audited.ready]
    assert audit(ready).is_clean  # what is left can be learnt from


@pytest.mark.parametrize(
    "wrong", [{"reward_range": (1.0, 0.0)}, {"reward_range": (0.0, float("inf"))}, {"likeness": 0.0}, {"likeness": 1.1}]
)
def test_standards_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        Standards(**wrong)


def test_a_thousand_experiences_take_a_moment() -> None:
    many = good(1000)
    began = time.process_time()
    audit(many)
    assert time.process_time() - began < 5.0


def test_what_is_scored_later_needs_no_score_yet() -> None:
    bare = experience(breakdown=None)
    assert audit([bare]).quarantined == {bare.rollout: ("required_fields",)}
    assert audit([bare], standards=Standards(needs_score=False)).ready == (bare.rollout,)
