"""Goldens: any change of what a policy saw, did or earned shows, and blocks until somebody has signed it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput, BadRecord
from holdfast.contracts.evidence import Finding
from holdfast.contracts.experience import Experience
from holdfast.contracts.records import decode, encode
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import RolloutState
from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall
from holdfast.prove.golden import (
    Golden,
    KpiLimit,
    as_dict,
    case_of,
    check,
    diff,
    golden_of,
    read,
    sign,
    signed,
    with_bands,
    write,
)
from holdfast.prove.suite import Suite, SuiteCase
from holdfast.store.store import open_store
from tests.conftest import Clock, Files

SUITE = Suite(
    suite_id="sums",
    family="reasoning",
    description="Adding up.",
    cases=tuple(
        SuiteCase(case_id=name, seed=1, prompt="?", expected_outcome="2", scoring_rubric={"a": 1.0})
        for name in ("one", "two")
    ),
)


def call(said: str, *seen: str, ids: tuple[int, ...] = (1, 2)) -> ModelCall:
    messages = tuple({"role": "user", "content": text} for text in seen)
    response = {"role": "assistant", "content": said}
    counts: dict[str, Any] = {"prompt_tokens": len(ids), "completion_tokens": 3, "prompt_ids": ids}
    return ModelCall(model="m", messages=messages, response=response, finish_reason="stop", **counts)


def experience(task: str, *calls: ModelCall, reward: float = 1.0, tools: int = 0) -> Experience:
    spans = [
        Span(seq=place, kind=SpanKind.MODEL, name="m", started_at=0.0, ended_at=1.0, model=one)
        for place, one in enumerate(calls, 1)
    ]
    spans += [
        Span(seq=10 + place, kind=SpanKind.TOOL, name="t", started_at=0.0, tool=ToolCall(tool="calc", arguments={}))
        for place in range(tools)
    ]
    signals = (
        RewardTerm(name="success", value=reward, source="rule"),
        RewardTerm(name="safety_cost", value=0.0, weight=0.0, source="rule"),
    )
    about: dict[str, Any] = {"rollout": f"run-1/{task}", "run": "run-1", "task": task, "split": None, "is_final": True}
    breakdown = RewardBreakdown(signals=signals)
    return Experience(**about, state=RolloutState.SUCCEEDED, spans=tuple(spans), breakdown=breakdown)


ONE = experience("one", call("2", "1 + 1?"), tools=2)
TWO = experience("two", call("4", "2 + 2?"), call("4!", "2 + 2?", "really?"), reward=0.5)


def golden(*experiences: Experience, **how: Any) -> Golden:
    given = {"name": "sums", "version": ("v1", "a" * 64), "sampling": {"temperature": 0.0}, "now": 5.0, **how}
    return golden_of(SUITE, experiences or (ONE, TWO), **given)


def failed(findings: tuple[Finding, ...]) -> dict[str, tuple[int, bool]]:
    return {one.name: (one.count, one.blocks) for one in findings if one.count}


def test_a_golden_has_every_case_in_the_order_of_the_suite_with_its_figures() -> None:
    found = golden(TWO, ONE)
    assert [case.case_id for case in found.cases] == ["one", "two"]
    assert found.suite_sha256 == SUITE.fixture_sha256
    assert found.cases[0].kpis == {
        "success": 1.0,
        "safety_cost": 0.0,
        "reward": 1.0,
        "model_calls": 1.0,
        "tool_calls": 2.0,
        "tokens": 5.0,  # two read, three written
    }
    assert found.kpis["reward"] == 0.75
    assert found.kpis["tokens"] == 7.5


CHANGES: list[tuple[str, Experience, dict[str, bool]]] = [
    ("it read another message", experience("one", call("2", "1 + 1 =?"), tools=2), {"observation": True}),
    (
        "its template or its tools changed",
        experience("one", call("2", "1 + 1?", ids=(1, 3)), tools=2),
        {"observation": True},
    ),
    ("it answered differently", experience("one", call("two", "1 + 1?"), tools=2), {"action": False}),
    ("it earned less", experience("one", call("2", "1 + 1?"), reward=0.95, tools=2), {"reward": True}),
    (
        "it asked once more",
        experience("one", call("2", "1 + 1?"), call("2", "1 + 1?", "sure?"), tools=2),
        {"observation": True, "action": False},
    ),
]


@pytest.mark.parametrize(("_", "other", "changed"), CHANGES, ids=[what for what, *_ in CHANGES])
def test_what_changed_is_named_and_only_what_it_did_may_change_unsigned(
    _: str, other: Experience, changed: dict[str, bool]
) -> None:
    kept, again = golden(), golden(other, TWO)
    hashes = {name: found for name, found in failed(check(kept, again)).items() if name.endswith("_hash")}
    assert hashes == {f"{name}_hash": (1, blocks) for name, blocks in changed.items()}
    (change,) = diff(kept, again)
    assert change.case_id == "one"
    assert set(change.what) == set(changed)
    assert not any(blocks for _, blocks in failed(check(kept, again, signed={again.sha256})).values())
    assert again.sha256 != kept.sha256


def test_nothing_changed_and_still_one_sees_what_was_checked() -> None:
    findings = check(golden(), golden())
    assert not failed(findings)
    names = {one.name for one in findings}
    assert {"golden_missing", "observation_hash", "action_hash", "reward_hash", "kpi_reward", "kpi_tokens"} <= names
    assert diff(golden(), golden()) == ()


def test_the_same_behaviour_has_the_same_hash_and_the_signature_of_another_does_not_count() -> None:
    assert golden(version=("v2", "b" * 64), name="other", now=9.0).sha256 == golden().sha256  # whoever recorded it
    again = golden(CHANGES[0][1], TWO)
    assert failed(check(golden(), again, signed={golden().sha256}))["observation_hash"] == (1, True)
    assert "reward" not in case_of(replace(ONE, breakdown=None)).kpis  # no breakdown is no reward, and not zero
    assert case_of(replace(ONE, breakdown=None)).reward != case_of(ONE).reward


def test_another_suite_or_a_missing_case_blocks_signed_or_not() -> None:
    other, short = replace(golden(), suite_sha256="f" * 64), replace(golden(), cases=golden().cases[:1])
    assert failed(check(golden(), other, signed={other.sha256})) == {"golden_suite": (1, True)}
    assert failed(check(golden(), short, signed={short.sha256}))["golden_missing"] == (1, True)
    with pytest.raises(BadInput, match="1 of 2 cases have no answer: two"):
        golden(ONE)


def test_a_band_is_open_on_the_better_side() -> None:
    bands = with_bands(golden()).bands
    assert bands["reward"] == KpiLimit(low=pytest.approx(0.675))  # 0.75 less a tenth of it
    assert bands["tokens"] == KpiLimit(high=pytest.approx(8.25))
    assert "tool_calls" not in bands  # more may be better or worse
    assert bands["reward"].holds(1.0)
    assert not bands["reward"].holds(0.67)


def test_a_figure_outside_its_band_blocks_until_it_is_signed() -> None:
    worse = golden(
        replace(ONE, breakdown=RewardBreakdown(signals=(RewardTerm(name="success", value=0.5, source="rule"),))), TWO
    )
    found = failed(check(golden(), worse))
    assert found["kpi_success"] == (1, True)
    assert found["kpi_reward"] == (1, True)
    assert failed(check(golden(), worse, signed={worse.sha256}))["kpi_reward"] == (1, False)
    (detail,) = [one.detail for one in check(golden(), worse) if one.name == "kpi_reward"]
    assert detail == "0.5, and the band is 0.675 to -"


def test_a_signature_is_in_the_ledger_with_who_and_why(files: Files, clock: Clock) -> None:
    store, found = open_store(files.fresh()), golden()
    with pytest.raises(BadInput, match="needs a reason"):
        sign(store, found, who="ada", why="  ", now=clock.now)
    assert signed(store) == {}
    sign(store, found, who="ada", why="better at sums", now=clock.now, before="0" * 64).result()
    assert signed(store) == {found.sha256: "ada"}
    (entry,) = [one for one in store.ledger.entries() if one.kind == "golden"]
    assert entry.body["why"] == "better at sums"
    assert entry.body["before"] == "0" * 64
    store.ledger.verify()
    store.close()


def test_a_golden_comes_back_from_its_file_and_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "golden/sums.json"
    write(path, golden())
    assert read(path) == golden()
    assert decode(Golden, encode(golden())).sha256 == golden().sha256
    assert as_dict(golden())["sha256"] == golden().sha256
    with pytest.raises(BadInput, match="is missing"):
        read(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(BadRecord):
        read(tmp_path / "bad.json")
