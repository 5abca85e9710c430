"""How hard a task is, what that is worth, when it grows, and what is granted before a call and settled after it."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collect.thinking import (
    LIMITS,
    BudgetAction,
    BudgetTracker,
    allocate,
    assess,
    checked_limit,
    confidence_of,
    escalate,
    mode_of,
    monitor,
    spend,
    thinking_tokens,
    traits_of,
)
from holdfast.contracts.budget import (
    Assessment,
    BudgetChange,
    BudgetEventKind,
    Mode,
    ThinkingBudget,
    Tier,
    Traits,
    Trigger,
)
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ModelCall
from tests.conftest import Clock

LOW, PARTIAL, REJECTED = Trigger.LOW_CONFIDENCE, Trigger.PARTIAL_SUCCESS, Trigger.VERIFIER_REJECTION
traits = st.builds(
    Traits,
    tool_count=st.integers(0, 6),
    context_size=st.integers(0, 8000),
    step_count=st.integers(0, 8),
    multi_turn=st.booleans(),
    external_calls=st.booleans(),
)


def fresh(tier: Tier, now: float = 100.0) -> ThinkingBudget:
    assessment = Assessment(tier=tier, confidence=0.9, reasons=("r",), traits=Traits())
    return allocate("a", assessment, now=now).budget


def tool(name: str, description: str = "") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {}}}


def call(**fields: Any) -> ModelCall:
    given = {"model": "m", "messages": (), "response": {"role": "assistant", "content": "yes"}}
    return ModelCall(**{**given, **fields})


@pytest.mark.parametrize(
    ("given", "tier", "confidence"),
    [
        ({}, "trivial", 0.95),
        ({"context_size": 499}, "trivial", 0.95),
        ({"context_size": 500}, "trivial", 0.8),
        ({"context_size": 999}, "trivial", 0.8),
        ({"multi_turn": True}, "trivial", 0.95),  # several turns alone make nothing harder
        ({"context_size": 1000}, "standard", 0.75),
        ({"tool_count": 1}, "standard", 0.75),
        ({"tool_count": 2, "context_size": 1000}, "standard", 0.9),
        ({"tool_count": 2, "context_size": 4999}, "standard", 0.9),
        ({"step_count": 2}, "standard", 0.65),
        ({"step_count": 4}, "standard", 0.65),
        ({"external_calls": True}, "standard", 0.65),
        ({"tool_count": 3}, "complex", 0.95),
        ({"context_size": 5000}, "complex", 0.95),
        ({"step_count": 5}, "complex", 0.95),
        ({"multi_turn": True, "external_calls": True}, "complex", 0.7),
        ({"multi_turn": True, "external_calls": True, "step_count": 5}, "complex", 0.95),
    ],
)
def test_the_tier_and_its_confidence_are_those_of_the_table(
    given: dict[str, Any], tier: str, confidence: float
) -> None:
    found = assess(Traits(**given))
    assert (found.tier, found.confidence) == (tier, confidence)
    assert found == assess(Traits(**given)) and found.traits == Traits(**given)


def test_the_reasons_name_every_rule_that_held() -> None:
    found = assess(Traits(tool_count=4, context_size=6000, multi_turn=True, external_calls=True))
    assert found.reasons == ("tool_count 4 ≥ 3", "context_size 6000 ≥ 5000", "multi_turn and external_calls")
    assert assess(Traits(tool_count=1)).reasons == ("tool_count 1 ≥ 1",)
    assert assess(Traits()).reasons == ("no rule for more",)


@given(traits, st.sampled_from(["tool_count", "context_size", "step_count"]), st.integers(1, 5000))
def test_more_of_anything_is_never_easier(one: Traits, name: str, more: int) -> None:
    order = list(Tier)
    harder = assess(replace(one, **{name: getattr(one, name) + more}))
    assert order.index(harder.tier) >= order.index(assess(one).tier)
    assert 0 <= harder.confidence <= 1


USER = {"role": "user", "content": "What is 2 + 2?"}


@pytest.mark.parametrize(
    ("task", "messages", "tools", "expected"),
    [
        ("What is 2 + 2?", [], [], Traits(context_size=4)),
        ({"prompt": "x" * 4001}, [], [], Traits(context_size=1001)),
        (None, [USER], [], Traits(context_size=4)),
        (None, [USER, {"role": "assistant", "content": "4"}, USER], [], Traits(context_size=8, multi_turn=True)),
        ({"turns": ["a", "b"], "prompt": "a"}, [], [], Traits(context_size=1, multi_turn=True)),
        ({"steps": 7, "prompt": "a"}, [], [], Traits(context_size=1, step_count=7)),
        ({"steps": ["a", "b"], "prompt": "a"}, [], [], Traits(context_size=1, step_count=2)),
        ("1. add\n2. halve\n3) tell", [], [], Traits(context_size=6, step_count=3)),
        ("Add them, then halve it and finally tell me", [], [], Traits(context_size=11, step_count=3)),
        ("the 3.5 litres - all of it", [], [], Traits(context_size=7)),  # neither a number nor a dash within a line
        (None, [{"role": "user", "content": [{"type": "text", "text": "12345678"}]}], [], Traits(context_size=2)),
        ({"prompt": "a", "traits": {"step_count": 9, "external_calls": True}}, [USER], [],
         Traits(context_size=4, step_count=9, external_calls=True)),
    ],
)  # fmt: skip
def test_what_a_task_is_like_is_read_from_it(task: Any, messages: Any, tools: Any, expected: Traits) -> None:
    assert traits_of(task, messages, tools) == expected


@pytest.mark.parametrize(
    ("offered", "external"),
    [
        (tool("add", "adds two numbers"), False),
        (tool("lookup", "finds a word in the dictionary"), False),
        (tool("fetch_url"), True),
        (tool("lookup", "asks the weather API"), True),
        (tool("send", "sends an e-mail"), True),
        ({"name": "web_search"}, True),
        ("download", True),
    ],
)
def test_tools_are_counted_and_say_whether_they_reach_outside(offered: Any, external: bool) -> None:
    found = traits_of("q", [USER], [offered, tool("add")])
    assert (found.tool_count, found.external_calls) == (2, external)
    assert found.context_size > traits_of("q", [USER]).context_size  # their descriptions are read too


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ([], "the task's traits: are not an object; use tool_count"),
        ({"size": 1}, "the task's traits.size: is unknown; use tool_count"),
        ({"step_count": True}, "the task's traits.step_count = True: is not a whole number"),
        ({"multi_turn": 1}, "the task's traits.multi_turn = 1: is not true or false"),
    ],
)
def test_what_a_task_says_of_itself_must_make_sense(told: Any, message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        traits_of({"traits": told})
    assert str(refusal.value).startswith(message)


@pytest.mark.parametrize(
    ("tier", "ceiling", "cap"), [("trivial", 500, 1000), ("standard", 2000, 4000), ("complex", 8000, 16000)]
)
def test_a_tier_is_worth_what_is_documented(tier: str, ceiling: int, cap: int) -> None:
    budget = fresh(Tier(tier))
    assert (budget.ceiling, budget.allowed, budget.left, budget.cap) == (ceiling, ceiling, ceiling, cap)
    assert (budget.spent, budget.calls, budget.escalations, budget.events) == (0, 0, 0, 1)


def test_an_allocation_is_an_event_that_says_why() -> None:
    change = allocate("a", assess(Traits(tool_count=1)), now=5.0)
    (born,) = change.events
    assert (born.seq, born.kind, born.tokens, born.at) == (1, BudgetEventKind.ALLOCATE, 2000, 5.0)
    assert born.why == "standard: tool_count 1 ≥ 1"


def test_overspending_is_measured_and_not_erased() -> None:
    first = spend(fresh(Tier.TRIVIAL), 450, now=101.0, mode=Mode.HINT, confidence=0.9)
    assert [event.kind for event in first.events] == ["spend", "warn"]  # 450 of 500 is more than four fifths
    second = spend(first.budget, 300, now=102.0)
    assert [(event.seq, event.kind, event.tokens) for event in second.events] == [(4, "spend", 300), (5, "exhaust", 0)]
    budget = second.budget
    assert (budget.spent, budget.overspent, budget.consumed, budget.left) == (750, 250, 500, 0)
    assert (budget.calls, budget.mode, budget.events) == (2, Mode.HINT, 5)
    third = spend(budget, 100, now=103.0)
    assert (third.budget.spent, third.budget.overspent, len(third.events)) == (850, 350, 1)
    with pytest.raises(BadInput, match="is negative"):
        spend(budget, -1, now=1.0)


@pytest.mark.parametrize(
    ("tier", "trigger", "more"),
    [
        (Tier.TRIVIAL, LOW, 250),
        (Tier.TRIVIAL, PARTIAL, None),
        (Tier.TRIVIAL, REJECTED, None),
        (Tier.STANDARD, LOW, 1000),
        (Tier.STANDARD, PARTIAL, 1000),
        (Tier.STANDARD, REJECTED, None),
        (Tier.COMPLEX, LOW, 2000),
        (Tier.COMPLEX, PARTIAL, 4000),
        (Tier.COMPLEX, REJECTED, 4000),
    ],
)
def test_each_tier_listens_to_its_own_triggers(tier: Tier, trigger: Trigger, more: int | None) -> None:
    used = spend(fresh(tier), LIMITS[tier].ceiling - 1, now=101.0).budget
    action, change = escalate(used, trigger, now=102.0, confidence=0.2)
    (event,) = change.events
    assert (event.trigger, event.confidence, event.seq) == (trigger, 0.2, used.events + 1 == event.seq and event.seq)
    if more is None:
        assert (action, event.kind, change.budget.allowed) == (BudgetAction.CONTINUE, "refuse", used.allowed)
        assert event.why == f"{trigger} is nothing that makes a {tier} budget larger"
    else:
        assert (action, event.kind, event.tokens) == (BudgetAction.ESCALATE, "escalate", more)
        assert (change.budget.allowed, change.budget.escalations) == (used.allowed + more, 1)


def test_there_is_time_between_two_escalations_by_one_trigger() -> None:
    budget = spend(fresh(Tier.COMPLEX), 8000, now=100.0).budget
    _, change = escalate(budget, LOW, now=100.0)
    budget = spend(change.budget, 2000, now=101.0).budget
    action, refused = escalate(budget, LOW, now=109.5)
    assert (action, refused.events[0].kind) == (BudgetAction.EXHAUST, "refuse")
    assert refused.events[0].why == "the last one was 9.5 s ago, and 10 s lie between two"
    assert escalate(refused.budget, PARTIAL, now=109.5)[0] is BudgetAction.ESCALATE  # which has a time of its own
    assert escalate(refused.budget, LOW, now=110.0)[0] is BudgetAction.ESCALATE
    assert escalate(refused.budget, LOW, now=50.0)[0] is BudgetAction.ESCALATE  # the clock was set back


def test_what_has_enough_left_gets_no_more_and_nothing_goes_beyond_the_cap() -> None:
    rich = spend(fresh(Tier.STANDARD), 1500, now=1.0).budget
    _, change = escalate(rich, LOW, now=2.0)
    assert change.events[0].why == "500 of 2000 tokens are left"
    budget, now = spend(rich, 9000, now=2.0).budget, 100.0
    for expected in (3000, 4000, 4000):
        _, change = escalate(budget, LOW, now=now)
        budget, now = change.budget, now + 100
        assert budget.allowed == expected
    assert change.events[0].why == "it is at its cap of 4000"


@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize("pause_s", [0.0, 60.0])
def test_a_hundred_unsure_iterations_end_at_the_cap(tier: Tier, pause_s: float) -> None:
    budget, now, actions, events = fresh(tier), 100.0, [], 1
    for _ in range(100):
        action, change = monitor(budget, 1000, now=now, confidence=0.1)
        budget, now = change.budget, now + pause_s
        actions.append(action)
        events += len(change.events)
    assert budget.consumed <= budget.cap == LIMITS[tier].cap
    assert 0 < budget.escalations < 10
    assert (budget.spent, budget.calls, budget.events) == (100_000, 100, events)
    assert budget.overspent == 100_000 - budget.consumed
    assert actions[-1] is BudgetAction.EXHAUST


@given(
    st.sampled_from(Tier),
    st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 1), st.sampled_from([None, *Trigger]), st.floats(0, 40))),
)
def test_whatever_happens_the_events_tell_all_of_it(tier: Tier, story: list[Any]) -> None:
    budget, now = fresh(tier), 100.0
    told = 0
    for tokens, confidence, trigger, pause_s in story:
        now += pause_s
        before = budget
        _, change = monitor(before, tokens, now=now, confidence=confidence, trigger=trigger)
        budget = change.budget
        assert [event.seq for event in change.events] == list(range(before.events + 1, budget.events + 1))
        last = change.events[-1]
        assert (last.allowed, last.spent, last.overspent) == (budget.allowed, budget.spent, budget.overspent)
        told += sum(event.tokens for event in change.events if event.kind is BudgetEventKind.SPEND)
        assert before.allowed <= budget.allowed <= budget.cap
    assert told == budget.spent == sum(tokens for tokens, *_ in story)
    assert 0 <= budget.consumed <= budget.cap


def test_a_sure_answer_asks_for_nothing() -> None:
    action, change = monitor(fresh(Tier.TRIVIAL), 450, now=1.0, confidence=0.5)
    assert (action, change.budget.allowed) == (BudgetAction.CONTINUE, 500)
    action, change = monitor(fresh(Tier.TRIVIAL), 10, now=1.0, confidence=0.1)
    assert (action, [event.kind for event in change.events]) == (BudgetAction.CONTINUE, ["spend"])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"thinking_tokens": 7, "completion_tokens": 100}, 7),
        ({"completion_tokens": 100}, 0),  # nothing was thought
        ({"response": {"content": "x" * 25, "reasoning_content": "y" * 73}, "completion_tokens": 100}, 73),
        ({"response": {"content": "", "reasoning": "y" * 9}, "completion_tokens": 3}, 3),
        ({"response": {"content": "x", "reasoning_content": "y" * 9}}, 3),  # four letters a token
    ],
)
def test_tokens_inside_thoughts_are_counted_or_estimated(fields: dict[str, Any], expected: int) -> None:
    assert thinking_tokens(call(**fields)) == pytest.approx(expected, abs=2 if "x" * 25 in str(fields) else 0)


def test_confidence_is_the_mean_of_what_was_drawn() -> None:
    assert confidence_of(call()) is None
    drawn = call(completion_ids=(1, 2, 3), logprobs=(math.log(0.5), 0.0, math.log(0.125)), forced=(1,))
    assert confidence_of(drawn) == pytest.approx(0.25)
    assert confidence_of(call(completion_ids=(1,), logprobs=(0.0,), forced=(0,))) is None


@pytest.mark.parametrize("limit", [-1, True, 2.0, "5"])
def test_a_limit_is_a_whole_number(limit: Any) -> None:
    with pytest.raises(BadInput, match=f"thinking = {limit!r}: is not a whole number of tokens; give 0 or more"):
        checked_limit(limit)
    assert checked_limit(0) == 0


def test_an_allocation_takes_far_less_than_fifty_milliseconds() -> None:
    """From a large task with many tools to its budget, at the 95th of 100."""
    tools = [tool(f"tool_{n}", "does something " * 20) for n in range(50)]
    messages = [{"role": "user", "content": "word " * 20_000}] * 5
    took = []
    for _ in range(100):
        began = time.process_time()
        allocate("a", assess(traits_of({"prompt": "q"}, messages, tools)), now=1.0)
        took.append(time.process_time() - began)
    assert sorted(took)[94] < 0.05


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


def test_an_endpoint_that_can_only_be_asked_is_stopped_where_its_budget_ends(clock: Clock) -> None:
    """Three calls of 600 tokens were 1,800 on a budget of 500."""
    purse, _ = purse_of(clock)
    purse.settle(purse.grant(HELLO, ()), thought(600, "hint"))
    with pytest.raises(BadInput, match="thinking budget: 600 of 500 tokens are spent"):
        purse.grant(HELLO, ())
    kept, _ = purse_of(clock)
    kept.settle(kept.grant(HELLO, ()), thought(500, "hint"))
    assert kept.grant(HELLO, ()) == 0  # it kept to its limit: it may answer without thinking


def test_a_small_model_gets_its_part_of_every_tier_and_of_every_escalation() -> None:
    for tier, (ceiling, cap, more) in {Tier.TRIVIAL: (5, 10, 2), Tier.COMPLEX: (80, 160, 20)}.items():
        assessment = Assessment(tier=tier, confidence=0.9, reasons=("r",), traits=Traits())
        budget = allocate("a", assessment, now=0.0, scale=0.01).budget
        assert (budget.ceiling, budget.allowed, budget.cap) == (ceiling, ceiling, cap)
        action, grown = escalate(spend(budget, ceiling, now=0.0).budget, LOW, now=0.0)
        assert (action, grown.budget.allowed) == (BudgetAction.ESCALATE, ceiling + more)


def test_a_thought_that_was_cut_makes_the_budget_larger_and_what_is_thought_again_is_not_counted(clock: Clock) -> None:
    purse, _ = purse_of(clock)
    cut = thought(500, "hard", completion_ids=(1, 2), logprobs=(0.0, 0.0), forced=(1,))
    told = purse.settle(purse.grant(HELLO, ()), cut)
    assert (told["action"], told["cut"], told["left"]) == ("escalate", True, 250)
    again = purse.settle(purse.grant(HELLO, ()), thought(700, "hard"), repeated=500)
    assert purse.budget is not None and (purse.budget.spent, again["left"]) == (700, 50) and "cut" not in again


def test_the_tier_is_that_of_the_allocation_where_there_is_one(clock: Clock) -> None:
    asked: list[str] = []

    def hardest(traits: Traits, attempt: str) -> Assessment:
        asked.append(attempt)
        return Assessment(tier=Tier.COMPLEX, confidence=0.9, reasons=("r",), traits=traits)

    purse = BudgetTracker("a", "What is 2 + 2?", lambda change: None, lambda: clock.now, allocation=hardest)
    assert (purse.grant(HELLO, ()), asked) == (8000, ["a"])
