"""`holdfast reward`: said once, kept once, told in one line."""

from __future__ import annotations

import pytest

from holdfast.contracts.records import decode
from holdfast.contracts.rollout import RolloutState
from holdfast.store.traces import Rewarded
from tests.cli.conftest import Cli
from tests.store.scene import Scene


@pytest.fixture(autouse=True)
def ann(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")


@pytest.fixture
def at(url: str) -> tuple[str, str]:
    return "--store", url


HOW = ("--name", "tone", "--value", "0.5", "--source", "person:ann")


def test_a_reward_is_told_once_and_shown(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    scene.brought_to(RolloutState.SUCCEEDED)
    first = cli("reward", "attach", "run-1/t", *HOW, *at)
    assert (first.code, first.out) == (
        0,
        "run-1-a/t: tone = 0.5 × 1 (person:ann); its reward is 0.5, was none\n",
    )
    again = cli("reward", "attach", "run-1/t", *HOW, *at)
    assert (again.code, again.out) == (0, "run-1-a/t: tone = 0.5 × 1 (person:ann) was told before; its reward is 0.5\n")
    assert "reward tone = 0.5 × 1 (person:ann)" in cli("spans", "run-1/t", *at).out
    entry = list(scene.store.ledger.entries())[-1]
    assert (entry.kind, entry.who) == ("reward", "ann")


def test_a_reward_can_be_answered_with_its_record(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    scene.brought_to(RolloutState.SUCCEEDED)
    made = decode(Rewarded, cli("reward", "attach", "run-1/t", *HOW, "--weight", "2", "--json", *at).json)
    assert (made.is_new, made.reward, made.signal.weight, made.attempt) == (True, 1.0, 2.0, "run-1-a/t:attempt-1")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--value", "0.7"), 5, "person:ann told tone before: 0.5 × 1; what was told stands"),
        (("--value", "nan"), 2, "signal tone: value = nan: must be finite"),
        (("--value", "much"), 2, "Invalid value for '--value': Input should be a valid number"),
        (("--name", " "), 2, "must not be blank"),
        (("--turn", "0"), 2, "turn 0: rollout run-1-a/t has no turns; leave the turn out"),
        (("--turn", "-1"), 2, "Invalid value for '--turn': Input should be greater than or equal to 0"),
    ],
)
def test_what_cannot_be_told_is_said_in_one_line(
    cli: Cli, scene: Scene, at: tuple[str, str], words: tuple[str, ...], code: int, says: str
) -> None:
    scene.brought_to(RolloutState.SUCCEEDED)
    assert cli("reward", "attach", "run-1/t", *HOW, *at).code == 0
    ran = cli("reward", "attach", "run-1/t", *HOW, *words, *at)
    assert ran.code == code and says in " ".join(ran.err.split()) and not ran.out
    assert scene.rollout("t").reward == 0.5


def test_one_that_runs_or_is_not_there_is_refused(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    scene.brought_to(RolloutState.RUNNING)
    ran = cli("reward", "attach", "run-1/t", *HOW, *at)
    assert (ran.code, "is running: its own worker scores it when it ends; wait" in ran.err) == (5, True)
    assert cli("reward", "attach", "run-1/nope", *HOW, *at).code == cli("reward", "attach", "t", *HOW, *at).code == 2
