"""What an attempt may think is granted before a call and settled after it, whoever calls at the same time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast.collect.thinking import BudgetAction, BudgetTracker, mode_of
from holdfast.contracts.budget import BudgetChange, BudgetEventKind, Mode, Tier
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ModelCall
from tests.conftest import Clock

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "add"}}


def purse_of(clock: Clock, task: Any = "hello") -> tuple[BudgetTracker, list[BudgetChange]]:
    kept: list[BudgetChange] = []
    return BudgetTracker("run-1/t:attempt-1", task, kept.append, lambda: clock.now), kept


def thought(tokens: int, mode: str | None = "hard", **more: Any) -> ModelCall:
    how = {} if mode is None else {"thinking_mode": mode}
    given = {"model": "m", "messages": (), "response": {"role": "assistant", "content": "x"}, "sampling": how}
    return ModelCall(**given, thinking_tokens=tokens, **more)


def test_the_first_call_decides_how_hard_it_is(clock: Clock) -> None:
    purse, kept = purse_of(clock)
    assert purse.budget is None
    granted = purse.grant(HELLO, [TOOL])
    assert granted == 2000
    purse.settle(granted, thought(10))
    assert purse.grant(HELLO, [TOOL] * 5) == 1990  # a later one does not
    assert purse.budget is not None and purse.budget.tier is Tier.STANDARD
    assert [event.kind for change in kept for event in change.events] == ["allocate", "spend"]
    assert kept[-1].budget is purse.budget


def test_a_call_gets_what_it_wants_of_what_is_left(clock: Clock) -> None:
    purse, _ = purse_of(clock)
    assert purse.grant(HELLO, (), 100) == 100
    purse.settle(100, thought(100))
    assert purse.grant(HELLO, (), 5000) == 400
    with pytest.raises(BadInput, match="thinking = -3"):
        purse.grant(HELLO, (), -3)


def test_calls_at_the_same_time_share_what_there_is(clock: Clock) -> None:
    purse, _ = purse_of(clock)
    first = purse.grant(HELLO, (), 400)
    second = purse.grant(HELLO, ())
    assert (first, second, purse.grant(HELLO, ())) == (400, 100, 0)
    purse.settle(first, None)  # failed: nobody knows of anything it thought
    assert purse.grant(HELLO, ()) == 400


def test_many_threads_never_get_more_than_there_is(clock: Clock) -> None:
    purse, kept = purse_of(clock)
    total, lock = [0], threading.Lock()

    def work() -> None:
        for _ in range(20):
            granted = purse.grant(HELLO, (), 3)
            purse.settle(granted, thought(granted))
            with lock:
                total[0] += granted

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert purse.budget is not None
    assert (total[0], purse.budget.spent, purse.budget.overspent, purse.budget.calls) == (500, 500, 0, 320)
    numbers = [event.seq for change in kept for event in change.events]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_span_is_told_what_was_granted_used_and_by_what_it_was_held(clock: Clock) -> None:
    purse, _ = purse_of(clock)
    granted = purse.grant(HELLO, ())
    told = purse.settle(granted, thought(600, "hint"))
    standing = {"tier": "trivial", "left": 0, "overspent": 100}
    assert told == {"granted": 500, "used": 600, "mode": "hint", "action": "exhaust", **standing}
    assert purse.budget is not None and purse.budget.mode is Mode.HINT


def test_an_unsure_answer_near_the_end_makes_it_larger(clock: Clock) -> None:
    purse, kept = purse_of(clock)
    unsure = thought(480, completion_ids=(1,), logprobs=(-3.0,))
    told = purse.settle(purse.grant(HELLO, ()), unsure)
    assert (told["action"], told["left"]) == ("escalate", 270)
    assert kept[-1].events[-1].kind is BudgetEventKind.ESCALATE
    assert kept[-1].events[-1].confidence == pytest.approx(0.0498, abs=1e-4)


def test_an_agent_may_ask_for_more_and_is_told_why_not(clock: Clock) -> None:
    purse, kept = purse_of(clock, {"prompt": "x", "traits": {"step_count": 5}})
    assert purse.escalate("verifier-rejection") is BudgetAction.CONTINUE  # all of it is left
    purse.settle(purse.grant(HELLO, ()), thought(8000))
    assert purse.escalate("verifier-rejection", 0.3) is BudgetAction.ESCALATE
    assert purse.grant(HELLO, ()) == 4000
    assert [event.why for change in kept for event in change.events if event.kind == "refuse"] == [
        "8000 of 8000 tokens are left"
    ]
    with pytest.raises(BadInput, match="trigger 'boredom': is unknown; use low-confidence, partial-success, verif"):
        purse.escalate("boredom")


@pytest.mark.parametrize(("said", "mode"), [("forcing", Mode.FORCING), (None, None), ("magic", None)])
def test_a_mode_that_nobody_knows_is_none(said: str | None, mode: Mode | None) -> None:
    assert mode_of(thought(1, said)) is mode
