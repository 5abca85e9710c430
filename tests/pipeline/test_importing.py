"""Chat logs that become rollouts, from a program: what the command does more is tested with the command."""

from __future__ import annotations

from typing import Any

from holdfast.contracts.rollout import RolloutState, Split
from holdfast.pipeline.importing import import_logs
from holdfast.store.store import Store


def rows(*answers: str) -> list[tuple[int, dict[str, Any]]]:
    asked = {"role": "user", "content": "Which colour has the sky today?"}
    return [
        (line, {"messages": [asked, {"role": "assistant", "content": answer}], "reward": 0.5})
        for line, answer in enumerate(answers, 1)
    ]


def test_conversations_are_stored_once_and_counted(store: Store) -> None:
    how: Any = {"split": Split.TRAIN, "model": "old", "scrub": True, "who": "ada", "clock": lambda: 1_000.0}
    first = import_logs(store, rows("Blue.", "Grey, and mail me at ada@analytical-engine.org"), **how)
    assert (first.stored, first.repeated, first.is_fruitless) == (2, 0, False) and sum(first.scrubbed.values()) == 1
    again = import_logs(store, rows("Blue.", "Green."), **how)
    assert (again.run, again.stored, again.repeated) == (first.run, 1, 1)
    found = store.views.rollouts(str(first.run))
    assert {one.status for one in found} == {RolloutState.SUCCEEDED} and [one.reward for one in found] == [0.5] * 3
    breakdown = store.traces.breakdown(store.views.attempts(found[0].id)[0].token)
    assert "turn_reward" in {one.name for one in breakdown.signals if one.turn == 0}
