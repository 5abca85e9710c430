"""Whether a run's data may be learnt from, as people and programs are told."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.evidence import Finding
from holdfast.contracts.records import PUBLISHED, decode
from holdfast.contracts.rollout import AttemptState, Split
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.learn.quality import GATES
from tests.cli.conftest import Cli
from tests.store.scene import Scene, signal

SECRET = "AK" + "IA" + "IOSFODNN7EXAMPL2"


def answered(scene: Scene, name: str, answer: str = "42", *, split: Split = Split.TRAIN, **how: Any) -> None:
    """One rollout from the queue to its score."""
    prompt = how.get("prompt", f"question {name}")
    scene.enqueue(name, split=split, input={"prompt": prompt})
    held = scene.claim()
    model = ModelCall(
        model="sprout-1",
        messages=({"role": "user", "content": prompt},),
        response={"role": "assistant", "content": answer},
        completion_ids=(1,),
        logprobs=how.get("logprobs", (-0.5,)),
    )
    spans = [Span(seq=1, kind=SpanKind.MODEL, name="chat", started_at=1.0, ended_at=2.0, model=model)]
    scene.store.traces.add(held.attempt, spans, now=scene.clock.now).result()
    scene.store.traces.score(held.attempt, [signal(value=how.get("reward", 1.0))], now=scene.clock.now).result()
    scene.finish(held, AttemptState.SUCCEEDED)


@pytest.fixture
def at(url: str) -> tuple[str, str]:
    return "--store", url


def test_a_clean_run_is_ready_to_be_learnt_from(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    answered(scene, "a")
    answered(scene, "b", reward=0.0)
    answered(scene, "v", split=Split.VAL)  # not learnt from, so not looked at
    ran = cli("quality", scene.run, *at)
    assert ran.code == 0, ran.err
    assert ran.lines[0] == f"{scene.run}: 2 of 2 rollouts ready to be learnt from, 0 quarantined"
    assert [line.split()[0] for line in ran.lines[2:]] == list(GATES)
    assert max(map(len, ran.lines)) <= 80


def test_what_blocks_is_named_first_and_the_command_fails(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    answered(scene, "a", reward=0.0)
    answered(scene, "leaky", f"take {SECRET}")
    answered(scene, "taught", prompt="the exam")
    answered(scene, "exam", prompt="The  Exam", split=Split.TEST)
    ran = cli("quality", scene.run, *at)
    assert ran.code == 1
    assert ran.lines[0] == f"{scene.run}: 1 of 3 rollouts ready to be learnt from, 2 quarantined"
    assert [line.split()[0] for line in ran.lines[2:4]] == ["held_out_leakage", "no_secrets"]
    assert ran.lines[-2].split() == ["leaky", "no_secrets"]
    assert ran.lines[-1].split() == ["taught", "held_out_leakage"]
    assert SECRET not in ran.out and max(map(len, ran.lines)) <= 80
    short = cli("quality", scene.run, *at, "--limit", 1)
    assert short.lines[-1] == "and 1 more; --limit 2 shows them all"


def test_programs_get_records(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    answered(scene, "a", reward=0.0)
    answered(scene, "bare", logprobs=None)
    ran = cli("quality", scene.run, *at, "--json")
    assert ran.code == 1
    assert (ran.json["run"], ran.json["is_clean"]) == (scene.run, False)
    assert ran.json["quarantined"] == {f"{scene.run}/bare": ["logprobs"]}
    assert ran.json["ready"] == [f"{scene.run}/a"]
    findings: list[Finding] = [decode(PUBLISHED["finding"], one) for one in ran.json["findings"]]
    assert [finding.name for finding in findings] == list(GATES)
    assert cli("quality", scene.run, *at, "--no-logprobs").code == 0


def test_standards_come_as_options(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    answered(scene, "a", reward=0.0)
    answered(scene, "b", reward=2.0)
    assert cli("quality", scene.run, *at).code == 0
    assert cli("quality", scene.run, *at, "--reward-range", 0, 1).code == 1
    assert cli("quality", scene.run, *at, "--rubric", "exact").code == 1  # 2 is no score
    assert cli("quality", scene.run, *at, "--rubric", "exact,tone").code == 1
    assert cli("quality", scene.run, *at, "--versions", "sprout-1, sprout-2").code == 0
    assert cli("quality", scene.run, *at, "--versions", "sprout-2").code == 1


def test_bad_input_is_one_line_and_changes_nothing(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    scene.enqueue("open")
    for words, said in (
        (("run-99",), "run 'run-99'"),
        ((scene.run,), f"experiences of {scene.run}: none of its 1 rollouts is for training and decided"),
        ((scene.run, "--reward-range", 1, 0), "reward_range = (1.0, 0.0): must be finite and in order"),
    ):
        ran = cli("quality", *words, *at)
        assert (ran.code, ran.out) == (2, "") and said in ran.err and ran.err.count("\n") == 1
