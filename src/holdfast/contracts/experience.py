"""What is learnt from: attempts as read from the store, steps and trajectories, and the adapters from spans to them.

A step is an observation, the reward that came with it, and the decision taken there, so n decisions make n + 1 steps
and the last one is an observation without a decision. Telemetry is never learnt from, and a reward in a trajectory is
always a signal that was scored on purpose. Estimating advantages is left to `learn`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from math import isfinite
from typing import Any, ClassVar, Literal

from holdfast.contracts.errors import BadRecord, check_fields
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.trace import PARTIAL, TRUNCATED, ModelCall, Span, SpanKind, ToolCall, Turn

Ended = Literal["terminated", "truncated"]


class StepKind(StrEnum):
    BEGUN = "begun"
    ADVANCED = "advanced"
    TERMINATED = "terminated"  # nothing follows: the value of what comes is 0
    TRUNCATED = "truncated"  # cut short by a limit: what would have followed still has a value


ENDS = frozenset({StepKind.TERMINATED, StepKind.TRUNCATED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One observation, the reward that came with it, and the decision taken there.

    Built by begin, advance, terminate and truncate; only the codec fills in the fields itself. There is no `done`: an
    end says which of the two it is."""

    SCHEMA: ClassVar[int] = 1

    kind: StepKind
    observation: Any  # any JSON
    reward: float | None = None  # of the decision before; a begun step has none
    action: Any = None  # any JSON but null, which means that nothing was decided here
    logprob: float | None = None  # of the action, when it was sampled; a density may be above 0
    value: float | None = None  # the policy's own estimate of what is still to come
    span: int | None = field(default=None, metadata={"minimum": 1})  # seq of the deciding span: token ids lie there

    def __post_init__(self) -> None:
        check_fields(f"{self.kind} step", self)
        if (self.reward is None) != (self.kind is StepKind.BEGUN):
            raise BadRecord(f"{self.kind} step: reward = {self.reward}", why="every step has one but the begun one")
        if self.kind in ENDS and self.action is not None:
            raise BadRecord(f"{self.kind} step", why="has an action, but the episode ended there")
        if self.kind is StepKind.TERMINATED and self.value is not None:
            why = "nothing follows, so it is 0 and not estimated"
            raise BadRecord(f"terminated step: value = {self.value}", why=why)
        if self.action is None and (self.logprob is not None or self.span is not None):
            raise BadRecord(f"{self.kind} step", why="has a logprob or a span, but no action")

    def act(
        self, action: Any, logprob: float | None = None, value: float | None = None, *, span: int | None = None
    ) -> Step:
        """The step with the decision taken there."""
        if action is None:
            raise BadRecord(f"{self.kind} step", why="None is not an action", remedy="name doing nothing, say 'wait'")
        if self.action is not None:
            raise BadRecord(f"{self.kind} step", why=f"has its action already: {self.action!r}")
        return replace(self, action=action, logprob=logprob, value=self.value if value is None else value, span=span)

    def valued(self, value: float) -> Step:
        """The step with an estimate and no decision: what a learner bootstraps from at a truncated or open end."""
        return replace(self, value=value)


def begin(observation: Any) -> Step:
    return Step(kind=StepKind.BEGUN, observation=observation)


def advance(reward: float, observation: Any) -> Step:
    return Step(kind=StepKind.ADVANCED, observation=observation, reward=reward)


def terminate(reward: float, observation: Any) -> Step:
    """The end: there is no future, so nothing is bootstrapped."""
    return Step(kind=StepKind.TERMINATED, observation=observation, reward=reward)


def truncate(reward: float, observation: Any) -> Step:
    """Cut short by a limit of ours: the future was there, so it is bootstrapped."""
    return Step(kind=StepKind.TRUNCATED, observation=observation, reward=reward)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One episode, or a part of one, with at least one decision and what came of it.

    It may stay open, its last step neither terminated nor truncated: a part of an episode that goes on elsewhere, as
    when a world that never stops is read in pieces. A learner bootstraps there as after a truncation; what differs is
    that an open episode can be continued, so nobody may count it as finished."""

    SCHEMA: ClassVar[int] = 1

    id: str
    rollout: str | None = None
    attempt: str | None = None  # or the episode's own name, where there is no rollout
    task: str | None = None  # what was tried: trajectories with the same key can be compared in a group
    steps: tuple[Step, ...] = field(metadata={"minItems": 2})
    signals: tuple[RewardTerm, ...] = ()  # what its rewards are the sums of, and what was measured beside them
    discount: float = field(default=0.99, metadata={"minimum": 0, "maximum": 1})
    padding: int = field(default=0, metadata={"minimum": 0})  # transitions missing on the right; no fake steps
    created_at: float  # unix seconds
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"trajectory {self.id}"
        check_fields(where, self, filled=("id",))
        for index, step in enumerate(self.steps):
            _check_place(f"{where}: steps[{index}]", step, first=index == 0, last=index == len(self.steps) - 1)
        if not isfinite(self.total_return):
            raise BadRecord(f"{where}: total return", why="the rewards add up to more than a number can hold")

    @property
    def end(self) -> Ended | None:
        """How it ended; None while it is open."""
        kind = self.steps[-1].kind
        if kind is StepKind.TERMINATED:
            return "terminated"
        return "truncated" if kind is StepKind.TRUNCATED else None

    @property
    def turn_count(self) -> int:
        """How many decisions it has."""
        return len(self.steps) - 1

    @property
    def total_return(self) -> float:
        """The sum of the rewards, not discounted."""
        return sum(step.reward for step in self.steps if step.reward is not None)

    @property
    def transitions(self) -> tuple[tuple[Step, Step], ...]:
        """The step that decided with the step it led to, whose reward is the decision's."""
        return tuple(pairwise(self.steps))


def _check_place(where: str, step: Step, *, first: bool, last: bool) -> None:
    if first != (step.kind is StepKind.BEGUN):
        raise BadRecord(where, why=f"is {step.kind}", remedy="the first step, and no other, is begun")
    if step.kind in ENDS and not last:
        raise BadRecord(where, why=f"is {step.kind}", remedy="only the last step may end the episode")
    if last and step.action is not None:
        remedy = "add the step it led to, or leave the action out"
        raise BadRecord(where, why="the last step has an action", remedy=remedy)
    if not last and step.action is None:
        raise BadRecord(where, why="has no action", remedy="every step but the last takes one")


def window(trajectory: Trajectory, size: int, pad: bool = False) -> Trajectory:
    """At most the last `size` transitions, for a learner with a fixed width; `pad` counts what is missing on the right.

    How it ended stays as it was: cutting the front off, or padding, ends nothing. The step that becomes the first loses
    its reward, which belonged to a decision that is no longer there. The id stays, so a window is not for the store."""
    if size < 1:
        raise BadRecord(f"window of {size}", why="must be at least 1")
    steps = trajectory.steps
    if len(steps) > size + 1:
        first, *rest = steps[-size - 1 :]
        steps = (replace(first, kind=StepKind.BEGUN, reward=None), *rest)
    return replace(trajectory, steps=steps, padding=size - len(steps) + 1 if pad else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trajectories of one task, to be compared with one another."""

    SCHEMA: ClassVar[int] = 1

    task: str
    trajectories: tuple[Trajectory, ...] = field(metadata={"minItems": 1})

    def __post_init__(self) -> None:
        check_fields(f"group {self.task}", self)
        for trajectory in self.trajectories:
            if trajectory.task != self.task:
                raise BadRecord(f"group {self.task}", why=f"trajectory {trajectory.id} is of task {trajectory.task}")
        if len({trajectory.id for trajectory in self.trajectories}) < len(self.trajectories):
            raise BadRecord(f"group {self.task}", why="holds a trajectory twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageBatch:
    """The advantages and returns of one trajectory, one of each per transition."""

    SCHEMA: ClassVar[int] = 1

    id: str
    trajectory: str
    advantages: tuple[float, ...] = field(metadata={"minItems": 1})
    returns: tuple[float, ...] = field(metadata={"minItems": 1})
    value_targets: tuple[float, ...] = ()  # empty where no value function is trained
    normalized: bool  # whether the advantages were
    created_at: float  # unix seconds
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where, count = f"advantages {self.id}", len(self.advantages)
        check_fields(where, self, filled=("id", "trajectory"))
        if len(self.returns) != count:
            raise BadRecord(where, why=f"{len(self.returns)} returns for {count} advantages")
        if self.value_targets and len(self.value_targets) != count:
            raise BadRecord(where, why=f"{len(self.value_targets)} value targets for {count} advantages")
        for name in ("advantages", "returns", "value_targets"):
            if not all(map(isfinite, getattr(self, name))):
                raise BadRecord(f"{where}: {name}", why="must be finite")


# Attributes are asked in this order; where a span has none of them, its model or tool call answers.
PROMPT = ("prompt", "input")
RESPONSE = ("response", "assistant_text", "output")
REWARD = ("reward", "reward_value")
CONTENT = ("content", "text")
LOGPROB = ("logprob", "action_logprob")
VALUE = ("value_estimate", "value")
OBSERVATION = {  # of a tool span, the input is what was decided and the output what came of it
    SpanKind.MODEL: ("observation", "state", *PROMPT),
    SpanKind.TOOL: ("observation", "state"),
}
ACTION = {
    SpanKind.MODEL: ("action", "tool_call", *RESPONSE, "text"),
    SpanKind.TOOL: ("action", "tool_call"),
}
ROLES = ("system", "user", "assistant")
NOTHING: tuple[Any, ...] = (None, "", [], {})

Cut = tuple[Span, tuple[Span, ...]]  # a decision and what followed it


@dataclass(frozen=True, slots=True, kw_only=True)
class Triplet:
    """What was asked, what was answered, and what it was worth."""

    SCHEMA: ClassVar[int] = 1

    prompt: Any
    response: Any
    reward: float | None = None  # None: nothing was measured

    def __post_init__(self) -> None:
        check_fields("triplet", self)


def triplets(spans: Iterable[Span]) -> tuple[Triplet, ...]:
    """One for each model call, and for each message that carries a prompt and its response; a half is left out.

    The reward is the span's own, else that of the first span after it that has one. A tool's input and output are no
    prompt and response: an agent must not learn to invent results."""
    found: list[Triplet] = []
    reward: float | None = None
    for span in reversed(_in_order(spans)):
        if span.kind is SpanKind.TELEMETRY:
            continue
        own = _number(span, REWARD)
        reward = reward if own is None else own
        call = span.model
        prompt = _first(span, PROMPT, _plain(call.messages) if call else None)
        response = _first(span, RESPONSE, dict(call.response) if call else None)
        if span.kind is not SpanKind.TOOL and prompt not in NOTHING and response not in NOTHING:
            found.append(Triplet(prompt=prompt, response=response, reward=reward))
    return tuple(reversed(found))


def messages(spans: Iterable[Span]) -> tuple[dict[str, Any], ...]:
    """The conversation, from its message spans. A role that is unknown is taken as the assistant's."""
    found = []
    for span in _in_order(spans):
        if span.kind is not SpanKind.MESSAGE:
            continue
        role, content = span.attributes.get("role"), _first(span, CONTENT, "")
        if role == "tool":
            call_id, tool = _first(span, ("tool_call_id",), "tool-call"), _first(span, ("tool_name",), "tool")
            found.append(_tool_message(call_id, tool, content, is_error=span.attributes.get("is_error") is True))
        else:
            found.append({"role": role if role in ROLES else "assistant", "content": content})
    return tuple(found)


def turns(spans: Iterable[Span]) -> tuple[Turn, ...]:
    """Each model call with all that follows it up to the next; what came before the first belongs to no turn."""
    cut = _cut(_in_order(spans), SpanKind.MODEL)
    return tuple(Turn(index=i, decision=decision, effects=effects) for i, (decision, effects) in enumerate(cut))


def trajectory(
    rollout_id: str,
    attempt_id: str,
    spans: Iterable[Span],
    signals: Iterable[RewardTerm],
    *,
    ended: Ended,
    task: str | None = None,
    discount: float = 0.99,
    channels: tuple[str, ...] | None = None,
) -> Trajectory:
    """One transition for each turn; where no model was called at all, one for each tool call.

    A tool called within a turn is what the turn's decision led to, not a second decision. Signals of a turn go to its
    transition, those of the whole attempt to the last one; without any signal there is no reward, which is not zero.
    `channels` are the names of signals that count; None: all."""
    where = f"attempt {attempt_id}"
    if ended not in ("terminated", "truncated"):
        raise BadRecord(f"{where}: ended = {ended!r}", why="must be 'terminated' or 'truncated'")
    ordered, measured = _in_order(spans), tuple(signals)
    cut = _cut(ordered, SpanKind.MODEL) or _cut(ordered, SpanKind.TOOL)
    counted = [term for term in measured if channels is None or term.name in channels]
    if not cut:
        why = f"has no decision among its {len(ordered)} spans"
        raise BadRecord(where, why=why, remedy="record model or tool calls")
    return Trajectory(
        id=f"{rollout_id}::{attempt_id}",
        rollout=rollout_id,
        attempt=attempt_id,
        task=task,
        steps=_steps(cut, _credit(where, counted, len(cut)), terminate if ended == "terminated" else truncate),
        signals=measured,
        discount=discount,
        created_at=max(span.started_at if span.ended_at is None else span.ended_at for span in ordered),
    )


def _in_order(spans: Iterable[Span]) -> tuple[Span, ...]:
    ordered = tuple(sorted(spans, key=lambda span: span.seq))
    for one, other in pairwise(ordered):
        if one.seq == other.seq:
            what = f"span {other.name}: seq = {other.seq}"
            raise BadRecord(what, why="is there twice", remedy="give one attempt's spans")
    return ordered


def _cut(spans: Sequence[Span], kind: SpanKind) -> list[Cut]:
    """Each whole span of that kind with those after it, up to the next of the kind."""
    starts = [i for i, span in enumerate(spans) if span.kind is kind and PARTIAL not in span.attributes]
    return [(spans[a], tuple(spans[a + 1 : b])) for a, b in pairwise([*starts, len(spans)])]


def _credit(where: str, signals: Iterable[RewardTerm], count: int) -> list[float]:
    parts: list[list[float]] = [[] for _ in range(count)]
    for signal in signals:
        if signal.turn is not None and signal.turn >= count:
            raise BadRecord(f"{where}: signal {signal.name}: turn = {signal.turn}", why=f"there are only {count} turns")
        parts[-1 if signal.turn is None else signal.turn].append(signal.value * signal.weight)
    if not any(parts):
        raise BadRecord(where, why="has no signal, and a missing reward is not zero", remedy="score it first")
    return [sum(part, 0.0) for part in parts]


def _steps(cut: Sequence[Cut], rewards: Sequence[float], finish: Callable[[float, Any], Step]) -> tuple[Step, ...]:
    steps = []
    step = begin(_observation(cut[0][0], None))
    for (decision, effects), (following, _), reward in zip(cut, cut[1:], rewards, strict=False):
        steps.append(_decide(step, decision))
        step = advance(reward, _observation(following, _outcome(decision, effects)))
    decision, effects = cut[-1]
    return (*steps, _decide(step, decision), finish(rewards[-1], _outcome(decision, effects)))


def _decide(step: Step, span: Span) -> Step:
    call = span.model
    action = _first(span, ACTION[span.kind], dict(call.response) if call else _order(span.tool))
    logprob = sum(call.logprobs) if call and call.logprobs is not None else _number(span, LOGPROB)
    return step.act(action, logprob, _number(span, VALUE), span=span.seq)


def _observation(decision: Span, before: Any) -> Any:
    """What the decision was taken on: a model saw its messages, a tool's caller saw what came of the call before."""
    return _first(decision, OBSERVATION[decision.kind], _plain(decision.model.messages) if decision.model else before)


def _outcome(decision: Span, effects: Iterable[Span]) -> Any:
    """What stood there after the decision: the conversation with the answer and the tools' results, or one result."""
    if decision.model is None:
        return _result(decision.tool)
    results = [span.tool for span in effects if span.tool is not None]
    told = [
        _tool_message(call.call_id or "tool-call", call.tool, _result(call), is_error=call.error is not None)
        for call in results
    ]
    return [*_plain(decision.model.messages), dict(decision.model.response), *told]


def _order(call: ToolCall | None) -> dict[str, Any] | None:
    return None if call is None else {"tool": call.tool, "arguments": dict(call.arguments)}


def _result(call: ToolCall | None) -> Any:
    return None if call is None else call.result if call.error is None else call.error


def _tool_message(call_id: Any, tool: Any, content: Any, *, is_error: bool) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "tool_name": tool, "content": content, "is_error": is_error}


def _plain(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [dict(message) for message in messages]


def _first(span: Span, keys: Iterable[str], default: Any) -> Any:
    return next((span.attributes[key] for key in keys if span.attributes.get(key) is not None), default)


def _number(span: Span, keys: Iterable[str]) -> float | None:
    """A number that is there but cannot be used is refused: passing over it would credit the span with another's."""
    number = _first(span, keys, None)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not isfinite(number):
        raise BadRecord(f"span {span.name}: {' or '.join(keys)} = {number!r}", why="must be a finite number")
    return float(number)


def _is_whole(span: Span) -> bool:
    return span.kind is SpanKind.MODEL and PARTIAL not in span.attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """One attempt as read from the store: a learner's intake, which makes a `Trajectory` of it."""

    rollout: str
    run: str
    task: str  # attempts at one task are compared with one another
    split: Split | None
    is_final: bool  # the attempt that decided its rollout
    state: RolloutState
    spans: tuple[Span, ...]
    breakdown: RewardBreakdown | None  # None: never scored
    version: str | None = None  # of the policy that acted; None: each call says which model answered it
    input: Any = None  # what was asked, with what was hidden from the agent
    ended: Ended | None = None  # None: truncated where the agent said so, or the last call ran into its limit of tokens
    attempt: str | None = None  # its id; None: the rollout has no other

    @property
    def decisions(self) -> tuple[Span, ...]:
        """The spans of its model calls in order: the i-th is turn i."""
        return tuple(sorted(filter(_is_whole, self.spans), key=lambda span: span.seq))

    @property
    def calls(self) -> tuple[ModelCall, ...]:
        """The model calls in order: call i is turn i. One that was cut short decided nothing, and is no turn."""
        return tuple(span.model for span in self.decisions if span.model is not None)

    @property
    def turn_count(self) -> int:
        return len(self.calls)

    @property
    def signals(self) -> tuple[RewardTerm, ...]:
        return () if self.breakdown is None else self.breakdown.signals

    @property
    def latency_s(self) -> float | None:
        """From its first span's beginning to its last one's end; None: nothing was timed."""
        ends = [span.ended_at for span in self.spans if span.ended_at is not None]
        return max(0.0, max(ends) - min(span.started_at for span in self.spans)) if ends else None

    def trajectory(self, channels: tuple[str, ...] | None = None, *, discount: float = 0.99) -> Trajectory:
        """Its published record; BadRecord where it decided nothing, or nothing that counts was measured."""
        return trajectory(
            self.rollout,
            self.attempt or self.rollout,
            self.spans,
            self.signals,
            ended="truncated" if self.is_truncated else "terminated",
            task=self.task,
            discount=discount,
            channels=channels,
        )

    @property
    def reward(self) -> float | None:
        """The weighted sum of all that was measured; None: nothing was."""
        return None if self.breakdown is None else self.breakdown.total

    @property
    def is_truncated(self) -> bool:
        if self.ended is not None:
            return self.ended == "truncated"
        calls = self.calls
        is_told = any(span.kind is SpanKind.TELEMETRY and span.name == TRUNCATED for span in self.spans)
        is_over = self.state is RolloutState.FAILED  # an agent that raised or ran out of time has nothing to come
        return not is_over and bool(calls) and (is_told or calls[-1].finish_reason == "length")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRollout:
    """A rollout that an attempt decided: all that a scorer needs to judge it again."""

    rollout: str  # id
    input: Any
    output: Any  # None: the attempt failed, or answered nothing
    error: str | None  # why it failed
    split: Split | None
    status: RolloutState  # succeeded or failed
    metadata: Mapping[str, Any]
    reward: float | None
    outcome: str | None
    step: str | None
    version: str | None  # of the policy that had to act
    signals: tuple[RewardTerm, ...]  # of the deciding attempt, in their order
    spans: tuple[Span, ...] = ()  # only where they were asked for
