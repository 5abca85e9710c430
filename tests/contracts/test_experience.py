"""What is learnt from: terminated is not truncated, spans become decisions in order, and an attempt knows its calls."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadRecord
from holdfast.contracts.experience import (
    Ended,
    Experience,
    Group,
    Step,
    StepKind,
    Trajectory,
    Triplet,
    advance,
    begin,
    messages,
    terminate,
    trajectory,
    triplets,
    truncate,
    turns,
    window,
)
from holdfast.contracts.records import decode, encode
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.trace import PARTIAL, ModelCall, Span, SpanKind, ToolCall

ENDINGS = {"terminated": terminate, "truncated": truncate, None: advance}


def episode(decisions: int = 3, end: str | None = "terminated", **changes: Any) -> Trajectory:
    """Seen 0, 1, 2, …; the i-th decision is "a<i>" and earns i + 1."""
    middle = (advance(float(i), i).act(f"a{i}", -0.5, 0.25) for i in range(1, decisions))
    steps = (begin(0).act("a0"), *middle, ENDINGS[end](float(decisions), decisions))
    return Trajectory(**{"id": "t", "task": "k", "steps": steps, "created_at": 1.0, **changes})


def test_a_step_is_built_by_what_it_means_and_there_is_no_done() -> None:
    assert begin("x") == Step(kind=StepKind.BEGUN, observation="x", reward=None)
    assert advance(1.0, "x") == Step(kind=StepKind.ADVANCED, observation="x", reward=1.0)
    assert terminate(1.0, "x") == Step(kind=StepKind.TERMINATED, observation="x", reward=1.0)
    assert truncate(1.0, "x") == Step(kind=StepKind.TRUNCATED, observation="x", reward=1.0)
    assert "done" not in {f.name for f in (*fields(Step), *fields(Trajectory))} and not hasattr(begin(0), "done")


def test_a_step_gets_its_decision_once_and_keeps_what_was_seen_and_estimated() -> None:
    step = advance(1.0, "x").act("go", -0.5, 0.25, span=1)
    assert (step.observation, step.reward) == ("x", 1.0)
    assert (step.action, step.logprob, step.value, step.span) == ("go", -0.5, 0.25, 1)
    assert truncate(1.0, "x").valued(0.5).value == 0.5
    assert begin("x").valued(0.5).act("go").value == 0.5
    assert begin("x").valued(0.5).act("go", value=0.75).value == 0.75
    for action in (0, "", False, [], {}):  # anything but None
        assert begin(0).act(action).action == action


@pytest.mark.parametrize("end", ENDINGS)
def test_a_trajectory_adds_up_its_rewards_pairs_its_steps_and_says_how_it_ended(end: str | None) -> None:
    assert episode(3, end).total_return == 1.0 + 2.0 + 3.0  # not discounted
    found = [(s.observation, s.action, n.reward, n.observation) for s, n in episode(2, end).transitions]
    assert found == [(0, "a0", 1.0, 1), (1, "a1", 2.0, 2)]
    assert episode(2, end).end == end
    assert Group(task="k", trajectories=(episode(3, end),)).trajectories == (episode(3, end),)


def test_a_window_keeps_the_last_transitions_and_begins_anew() -> None:
    cut = window(episode(5), 2)
    assert [step.observation for step in cut.steps] == [3, 4, 5]
    assert cut.steps[0] == begin(3).act("a3", -0.5, 0.25)
    assert cut.total_return == 4.0 + 5.0
    assert cut.padding == 0


WINDOWS = [
    # decisions, size, pad, transitions left, padding
    (3, 5, False, 3, 0),  # shorter
    (3, 5, True, 3, 2),  # shorter, padded
    (3, 3, True, 3, 0),  # exact
    (3, 3, False, 3, 0),
    (4, 3, True, 3, 0),  # longer: there is nothing to pad
    (4, 1, False, 1, 0),  # only the last one
]


@pytest.mark.parametrize("end", ENDINGS)
@pytest.mark.parametrize(("decisions", "size", "pad", "left", "padding"), WINDOWS)
def test_a_window_ends_nothing(decisions: int, size: int, pad: bool, left: int, padding: int, end: str | None) -> None:
    cut = window(episode(decisions, end), size, pad)
    assert (len(cut.transitions), cut.padding) == (left, padding)
    assert cut.end == end
    assert cut.steps[-1] == episode(decisions, end).steps[-1]


def test_a_window_counts_its_own_padding_leaves_what_fits_and_is_of_something() -> None:
    padded = episode(2, padding=7)
    assert window(padded, 3, pad=True).padding == 1
    assert window(padded, 3).padding == 0
    assert window(episode(3), 3) == episode(3)
    with pytest.raises(BadRecord, match="^window of 0: must be at least 1$"):
        window(episode(), 0)


@given(st.integers(1, 8), st.integers(1, 10), st.booleans(), st.sampled_from(list(ENDINGS)))
def test_windowing_twice_is_windowing_once(decisions: int, size: int, pad: bool, end: str | None) -> None:
    once = window(episode(decisions, end), size, pad)
    assert window(once, size, pad) == once
    assert len(once.transitions) + once.padding == (size if pad else min(size, decisions))


# From spans ----------------------------------------------------------------------------------------------------------

HI = {"role": "user", "content": "hi"}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def model(seq: int, answer: str = "ho", logprobs: tuple[float, ...] | None = None, **attributes: Any) -> Span:
    ids = None if logprobs is None else tuple(range(len(logprobs)))
    call = ModelCall(model="m", messages=(HI,), response=said(answer), completion_ids=ids, logprobs=logprobs)
    return Span(seq=seq, kind=SpanKind.MODEL, name="chat", started_at=float(seq), model=call, attributes=attributes)


def tool(seq: int, result: Any = 42, error: str | None = None, call_id: str | None = None, **attributes: Any) -> Span:
    call = ToolCall(tool="add", arguments={"n": seq}, result=result, error=error, call_id=call_id)
    return Span(seq=seq, kind=SpanKind.TOOL, name="add", started_at=float(seq), tool=call, attributes=attributes)


def message(seq: int, **attributes: Any) -> Span:
    return Span(seq=seq, kind=SpanKind.MESSAGE, name="message", started_at=float(seq), attributes=attributes)


def telemetry(seq: int, **attributes: Any) -> Span:
    return Span(seq=seq, kind=SpanKind.TELEMETRY, name="backoff", started_at=float(seq), attributes=attributes)


def signal(value: float = 1.0, turn: int | None = None, weight: float = 1.0) -> RewardTerm:
    return RewardTerm(name="match", value=value, weight=weight, source="rule:match", turn=turn)


ASKED = {"prompt": [HI], "response": said("ho")}
TRIPLETS: list[tuple[list[Span], list[dict[str, Any]]]] = [
    # nothing happened
    ([], []),
    # the model call itself
    ([model(1)], [ASKED]),
    # attributes come before the call, the first name before the others
    ([model(1, prompt="p", input="i", response="r", output="o")], [{"prompt": "p", "response": "r"}]),
    ([model(1, input="i", assistant_text="t", output="o")], [{"prompt": "i", "response": "t"}]),
    ([model(1, output=0)], [{"prompt": [HI], "response": 0}]),
    # null is as good as missing
    ([model(1, prompt=None, input="i")], [{"prompt": "i", "response": said("ho")}]),
    # a message that carries both, and one that carries a half
    ([message(1, input="i", output="o"), message(2, input="i")], [{"prompt": "i", "response": "o"}]),
    # an empty half is a missing half
    ([model(1, prompt="", response="r"), model(2, response="")], []),
    # a tool's input and output are no prompt and response
    ([tool(1, input="i", output="o")], []),
    # telemetry is never learnt from
    ([telemetry(1, prompt="p", response="r")], []),
    # the order is that of the attempt
    ([model(2, "b"), model(1, "a")], [{**ASKED, "response": said("a")}, {**ASKED, "response": said("b")}]),
    # its own reward, by either name
    ([model(1, reward=0.5, reward_value=9)], [{**ASKED, "reward": 0.5}]),
    ([model(1, reward_value=2), model(2, reward=3)], [{**ASKED, "reward": 2.0}, {**ASKED, "reward": 3.0}]),
    # the first reward after it, and none from before
    ([model(1), tool(2, reward=0.25), message(3, reward=0.75), model(4)], [{**ASKED, "reward": 0.25}, ASKED]),
    # a reward of telemetry is passed over: milliseconds are not worth anything
    ([model(1), telemetry(2, reward=175), tool(3, reward=-1)], [{**ASKED, "reward": -1.0}]),
]


@pytest.mark.parametrize(("spans", "expected"), TRIPLETS)
def test_triplets_hold_what_was_asked_answered_and_earned(spans: list[Span], expected: list[dict[str, Any]]) -> None:
    assert triplets(spans) == tuple(Triplet(**parts) for parts in expected)


@pytest.mark.parametrize("reward", ["high", True, float("nan"), [1]])
def test_a_reward_that_is_no_number_is_refused_and_not_passed_over(reward: Any) -> None:
    with pytest.raises(BadRecord, match="^span chat: reward or reward_value = .*: must be a finite number$"):
        triplets([model(1, reward=reward), tool(2, reward=1.0)])


NAMED = {"tool_call_id": "c1", "tool_name": "add"}
UNNAMED = {"tool_call_id": "tool-call", "tool_name": "tool"}
MESSAGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"role": "system", "content": "s"}, {"role": "system", "content": "s"}),
    ({"role": "user", "text": "u"}, {"role": "user", "content": "u"}),
    ({"role": "assistant", "content": "c", "text": "t"}, {"role": "assistant", "content": "c"}),
    # a role nobody knows, and none at all
    ({"role": "oracle", "text": "x"}, {"role": "assistant", "content": "x"}),
    ({"text": "x"}, {"role": "assistant", "content": "x"}),
    ({"role": ["user"], "text": "x"}, {"role": "assistant", "content": "x"}),
    # nothing said
    ({"role": "user"}, {"role": "user", "content": ""}),
    # a tool, with everything and with nothing
    (
        {"role": "tool", "text": "4", **NAMED, "is_error": True},
        {"role": "tool", **NAMED, "content": "4", "is_error": True},
    ),
    ({"role": "tool", "is_error": "no"}, {"role": "tool", **UNNAMED, "content": "", "is_error": False}),
]


@pytest.mark.parametrize(("attributes", "expected"), MESSAGES)
def test_a_message_span_becomes_a_message(attributes: dict[str, Any], expected: dict[str, Any]) -> None:
    assert messages([message(1, **attributes)]) == (expected,)


def test_only_message_spans_are_messages_and_they_keep_their_order() -> None:
    spans = [message(4, role="user", text="b"), model(3), telemetry(2, role="user", text="x"), message(1, text="a")]
    assert [found["content"] for found in messages(spans)] == ["a", "b"]


def test_a_turn_is_a_model_call_with_all_that_follows_it() -> None:
    spans = [message(1), model(2), tool(3), telemetry(4), model(5), model(6), tool(7)]
    for shuffled in (spans, spans[::-1]):
        found = turns(shuffled)
        assert [(t.index, t.decision.seq, [s.seq for s in t.effects]) for t in found] == [
            (0, 2, [3, 4]), (1, 5, []), (2, 6, [7]),
        ]  # fmt: skip
    assert turns([tool(1), telemetry(2)]) == ()  # there is none without a model call


def test_spans_of_two_attempts_are_not_mixed() -> None:
    for adapter in (triplets, messages, turns):
        with pytest.raises(BadRecord, match="^span add: seq = 1: is there twice; give one attempt's spans$"):
            adapter([model(1), tool(1)])


def test_a_trajectory_has_a_transition_for_each_turn_and_none_for_telemetry() -> None:
    spans = [
        telemetry(1, reward=175, done=True),
        model(2, "let me add", logprobs=(-0.25, -0.5)),
        tool(3, result=5, call_id="c1"),
        message(4, role="tool", text="5"),
        model(5, "five", logprobs=()),
        telemetry(6, reward=1.0),
    ]
    learnt = trajectory("r", "r:attempt-1", spans, [signal(0.5, turn=0), signal(1.0)], ended="terminated", task="k")
    assert learnt.steps == (
        begin([HI]).act(said("let me add"), -0.75, span=2),
        advance(0.5, [HI]).act(said("five"), 0.0, span=5),
        terminate(1.0, [HI, said("five")]),
    )
    assert (learnt.id, learnt.rollout, learnt.attempt, learnt.task) == ("r::r:attempt-1", "r", "r:attempt-1", "k")
    assert (learnt.discount, learnt.padding, learnt.created_at, learnt.metadata) == (0.99, 0, 6.0, {})


def test_a_trajectory_that_was_cut_short_is_truncated() -> None:
    learnt = trajectory("r", "a", [model(1)], [signal()], ended="truncated", discount=0.5)
    assert learnt.steps[-1] == truncate(1.0, [HI, said("ho")])
    assert (learnt.end, learnt.discount, learnt.task) == ("truncated", 0.5, None)


def test_a_trajectory_holds_what_its_rewards_are_made_of_and_one_from_before_does_not() -> None:
    measured = [signal(0.5, turn=0), signal(1.0), replace(signal(9.0), name="style")]
    learnt = trajectory("r", "a", [model(1)], measured, ended="terminated", channels=(measured[0].name,))
    assert (learnt.signals, learnt.total_return, learnt.turn_count) == (tuple(measured), 1.5, 1)
    old = {key: value for key, value in encode(learnt).items() if key != "signals"}
    assert decode(Trajectory, old) == replace(learnt, signals=())


def test_a_call_that_was_cut_short_is_no_turn() -> None:
    spans = [model(1), model(2, partial="nobody listened to its end"), model(3)]
    learnt = trajectory("r", "a", spans, [signal(1.0, turn=1)], ended="terminated")
    assert [step.span for step in learnt.steps] == [1, 3, None]


def test_the_last_observation_holds_what_the_tools_gave_back() -> None:
    spans = [model(1), tool(2, result={"sum": 3}, call_id="c1"), tool(3, result=None, error="no such tool")]
    assert trajectory("r", "a", spans, [signal()], ended="truncated").steps[-1].observation == [
        HI,
        said("ho"),
        {"role": "tool", "tool_call_id": "c1", "tool_name": "add", "content": {"sum": 3}, "is_error": False},
        {"role": "tool", "tool_call_id": "tool-call", "tool_name": "add", "content": "no such tool", "is_error": True},
    ]


def test_where_no_model_was_called_the_tool_calls_are_the_decisions() -> None:
    spans = [telemetry(1), tool(2, result="door"), message(3), tool(4, error="locked", state="at the door")]
    learnt = trajectory("r", "a", spans, [signal(2.0, turn=0), signal(3.0, turn=1)], ended="terminated")
    assert learnt.steps == (
        begin(None).act({"tool": "add", "arguments": {"n": 2}}, span=2),
        advance(2.0, "at the door").act({"tool": "add", "arguments": {"n": 4}}, span=4),
        terminate(3.0, "locked"),
    )


def test_a_tool_caller_sees_what_came_of_the_call_before() -> None:
    learnt = trajectory("r", "a", [tool(1, result="door"), tool(2)], [signal()], ended="terminated")
    assert [step.observation for step in learnt.steps] == [None, "door", 42]


ATTRIBUTES: list[tuple[Span, dict[str, Any]]] = [
    # what was seen, by its names in order
    (model(1, observation="o", state="s", prompt="p"), {"observation": "o"}),
    (model(1, state="s", prompt="p"), {"observation": "s"}),
    (model(1, prompt="p", input="i"), {"observation": "p"}),
    (model(1, input="i"), {"observation": "i"}),
    (tool(1, observation="o", state="s"), {"observation": "o"}),
    # a tool's input is what was decided
    (tool(1, input="i", prompt="p"), {"observation": None}),
    # what was decided, by its names in order
    (model(1, action="a", tool_call="c"), {"action": "a"}),
    (model(1, tool_call="c", response="r"), {"action": "c"}),
    (model(1, response="r", assistant_text="t"), {"action": "r"}),
    (model(1, assistant_text="t", output="o"), {"action": "t"}),
    (model(1, output="o", text="x"), {"action": "o"}),
    (model(1, text="x"), {"action": "x"}),
    (tool(1, action="a", tool_call="c"), {"action": "a"}),
    # a tool's output is what came of it
    (tool(1, output="o", response="r"), {"action": {"tool": "add", "arguments": {"n": 1}}}),
    # numbers
    (model(1, logprob=-1, action_logprob=-2), {"logprob": -1.0}),
    (tool(1, action_logprob=-2), {"logprob": -2.0}),
    (model(1, logprobs=(-0.5, -0.5), logprob=-9), {"logprob": -1.0}),  # what was sampled comes first
    (model(1), {"logprob": None, "value": None}),  # missing is not zero
    (model(1, value_estimate=0.5, value=0.1), {"value": 0.5}),
    (model(1, value=0.1), {"value": 0.1}),
]


@pytest.mark.parametrize(("span", "expected"), ATTRIBUTES)
def test_a_step_asks_attributes_in_order_and_then_the_call(span: Span, expected: dict[str, Any]) -> None:
    step = trajectory("r", "a", [span], [signal()], ended="terminated").steps[0]
    assert {name: getattr(step, name) for name in expected} == expected


CREDITED: list[tuple[list[RewardTerm], list[float]]] = [
    # of the whole attempt: to the last transition
    ([signal(1.0)], [0.0, 0.0, 1.0]),
    # of a turn: to its transition
    ([signal(1.0, turn=0), signal(2.0, turn=1)], [1.0, 2.0, 0.0]),
    # several in one place, with their weights
    ([signal(1.0, turn=2), signal(4.0, weight=0.25), signal(3.0, turn=2, weight=-1.0)], [0.0, 0.0, -1.0]),
    # measured, and worth nothing
    ([signal(0.0, turn=1)], [0.0, 0.0, 0.0]),
]


@pytest.mark.parametrize(("signals", "rewards"), CREDITED)
def test_rewards_are_signals_and_go_where_they_belong(signals: list[RewardTerm], rewards: list[float]) -> None:
    spans = [model(1, reward=9), telemetry(2, reward=9), model(3), tool(4, reward=9), model(5)]
    for order in permutations(signals):
        learnt = trajectory("r", "a", spans, order, ended="terminated")
        assert [step.reward for step in learnt.steps] == [None, *rewards]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"spans": []}, "attempt a: has no decision among its 0 spans; record model or tool calls"),
    ({"spans": [telemetry(1), message(2)]}, "attempt a: has no decision among its 2 spans; record model or tool calls"),
    ({"signals": []}, "attempt a: has no signal, and a missing reward is not zero; score it first"),
    ({"signals": [signal(turn=1)]}, "attempt a: signal match: turn = 1: there are only 1 turns"),
    ({"ended": "done"}, "attempt a: ended = 'done': must be 'terminated' or 'truncated'"),
    ({"spans": [model(1, logprob="low")]}, "span chat: logprob or action_logprob = 'low': must be a finite number"),
    ({"spans": [model(1, value=True)]}, "span chat: value_estimate or value = True: must be a finite number"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_an_attempt_that_cannot_be_learnt_from_is_refused(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"spans": [model(1)], "signals": [signal()], "ended": "terminated", **changes}
    with pytest.raises(BadRecord) as refusal:
        trajectory("r", "a", **given)
    assert str(refusal.value) == message


def test_a_trajectory_is_dated_by_its_last_sign_of_life() -> None:
    ended = Span(seq=2, kind=SpanKind.TELEMETRY, name="x", started_at=3.0, ended_at=9.5)
    assert trajectory("r", "a", [model(1), ended, telemetry(5)], [signal()], ended="terminated").created_at == 9.5


# An attempt as it is read from the store ------------------------------------------------------------------------------


def attempt(*finishes: str, ended: Ended | None = None) -> Experience:
    calls = [ModelCall(model="m", messages=(), response={}, finish_reason=finish) for finish in finishes]
    spans = [
        Span(seq=2 * n + 1, kind=SpanKind.MODEL, name="m", started_at=1.0, model=call) for n, call in enumerate(calls)
    ]
    given = {"rollout": "run-1/a", "run": "run-1", "task": "a", "split": Split.TRAIN, "is_final": True}
    done = {
        "breakdown": None,
        "state": RolloutState.SUCCEEDED,
        "spans": tuple(reversed([*spans, tool(2)])),
        "ended": ended,
    }
    return Experience(**given, **done)  # type: ignore[arg-type]


def test_its_model_calls_come_in_order_without_tool_calls_and_what_was_cut_short() -> None:
    assert [c.finish_reason for c in attempt("tool_calls", "stop").calls] == ["tool_calls", "stop"]
    whole = attempt("stop", "stop")
    cut = replace(whole.spans[-1], attributes={PARTIAL: "the client left"})
    assert [c.finish_reason for c in replace(whole, spans=(*whole.spans[:-1], cut)).calls] == ["stop"]


@pytest.mark.parametrize(
    ("finishes", "ended", "is_truncated"),
    [
        (("stop",), None, False),
        (("stop", "length"), None, True),  # the last call ran into its limit
        (("length", "stop"), None, False),  # an earlier one did, and it went on
        ((), None, False),
        (("stop",), "truncated", True),  # what is said goes over what is guessed
        (("length",), "terminated", False),
    ],
)
def test_it_was_cut_short_when_its_last_call_was_or_when_it_says_so(
    finishes: tuple[str, ...], ended: Ended | None, is_truncated: bool
) -> None:
    assert attempt(*finishes, ended=ended).is_truncated is is_truncated
