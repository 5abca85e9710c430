"""Valid records of every published kind, made from their own type hints and bounds; rules between fields are here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from holdfast.contracts.budget import Assessment, ThinkingBudget, Trigger
from holdfast.contracts.commands import Alert
from holdfast.contracts.evidence import Decision, Evidence, Interval, Outcome, Scores, Verdict
from holdfast.contracts.experience import AdvantageBatch, Group, Step, Trajectory, advance, begin, terminate, truncate
from holdfast.contracts.flag import OPERATORS, Condition, Flag, FlagRule
from holdfast.contracts.judgement import Calibration, Grade, Judgement, JudgeStatus
from holdfast.contracts.records import PUBLISHED
from holdfast.contracts.release import Experiment, Release, ServedRequest
from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall, Turn

Strategy = st.SearchStrategy[Any]
text = st.text(max_size=8)
word = st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters="/"), min_size=1, max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)
number = st.floats(-1e9, 1e9)
time = st.floats(0, 4e9)
level = st.floats(0, 1)
json = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)


def maybe(strategy: Strategy) -> Strategy:
    return st.none() | strategy


def many(strategy: Strategy, least: int = 0, most: int = 2, **kwargs: Any) -> Strategy:
    return st.lists(strategy, min_size=least, max_size=max(least, most), **kwargs).map(tuple)


def beyond(bounds: Mapping[str, Any]) -> list[Any]:
    """Values that a field with these bounds must not have."""
    least = {"minimum": -1, "maximum": 1, "exclusiveMinimum": 0, "exclusiveMaximum": 0}
    found: list[Any] = [bounds[name] + more for name, more in least.items() if name in bounds]
    found += ["A" * 64, "a" * 63] if "pattern" in bounds else []
    return [*found, []] if "minItems" in bounds else found


def of(hint: Any, bounds: Mapping[str, Any]) -> Strategy:
    """Values of a field with this type and these keywords of JSON Schema."""
    args = get_args(hint)
    if NoneType in args:
        return maybe(of(next(arg for arg in args if arg is not NoneType), bounds))
    if get_origin(hint) is tuple:
        return many(of(args[0], {}), bounds.get("minItems", 0), unique=bounds.get("uniqueItems", False))
    if get_origin(hint) is Mapping:
        return st.dictionaries(text, of(args[1], {}), max_size=2)
    if hint is str:
        return st.text("0123456789abcdef", min_size=64, max_size=64) if "pattern" in bounds else word
    if hint is int:
        return st.integers(bounds.get("minimum", 0), bounds.get("maximum", 2**63))
    if hint is float:
        low, high = bounds.get("minimum", bounds.get("exclusiveMinimum", -1e9)), bounds.get("maximum", 1e9)
        return st.floats(low, high, exclude_min="exclusiveMinimum" in bounds)
    if hint is Any:
        return json
    if is_dataclass(hint):
        return st.deferred(lambda: SPECIAL[hint] if hint in SPECIAL else record(hint))
    return st.booleans() if hint is bool else st.sampled_from(list(hint) if issubclass(hint, Enum) else args)


def record(cls: Any, **given: Strategy) -> Strategy:
    """Records of a class; what is given goes over what its fields say."""
    hints = get_type_hints(cls)
    return st.builds(
        cls, **{f.name: of(hints[f.name], f.metadata) for f in fields(cls) if f.name not in given}, **given
    )


@st.composite
def model_calls(draw: st.DrawFn) -> Any:
    ids = draw(maybe(many(st.integers(0, 2**63))))
    scrubbed = draw(many(st.just(0), 1)) if ids is None else ()  # a prompt of which nothing is left
    logprobs = None if ids is None else draw(maybe(many(st.floats(-1e6, 0), len(ids), len(ids))))
    given = {"completion_ids": ids, "logprobs": logprobs, "forced": (), "scrubbed": ()}
    if scrubbed:
        given |= {"prompt_ids": scrubbed, "scrubbed": ((0, len(scrubbed)),)}
    return draw(record(ModelCall, **{name: st.just(value) for name, value in given.items()}))


@st.composite
def spans(draw: st.DrawFn, kinds: tuple[SpanKind, ...] = tuple(SpanKind)) -> Any:
    kind, seq, began = draw(st.sampled_from(kinds)), draw(st.integers(1, 2**63)), draw(time)
    return draw(
        record(
            Span,
            seq=st.just(seq),
            kind=st.just(kind),
            started_at=st.just(began),
            ended_at=maybe(st.floats(began, 5e9)),
            parent=maybe(st.integers(1, seq - 1)) if seq > 1 else st.none(),
            model=model_calls() if kind is SpanKind.MODEL else st.none(),
            tool=record(ToolCall) if kind is SpanKind.TOOL else st.none(),
        )
    )


@st.composite
def steps(draw: st.DrawFn, kinds: str = "begin advance terminate truncate") -> Step:
    kind, seen = draw(st.sampled_from(kinds.split())), draw(json)
    if kind == "begin":
        step = begin(seen)
    else:
        step = {"advance": advance, "terminate": terminate, "truncate": truncate}[kind](draw(number), seen)
    if kind in ("begin", "advance"):
        action = draw(json.filter(lambda action: action is not None))
        return step.act(action, draw(maybe(number)), draw(maybe(number)), span=draw(maybe(st.integers(1, 99))))
    return step.valued(draw(number)) if kind == "truncate" and draw(st.booleans()) else step


def trajectories(task: Strategy | None = None) -> Strategy:
    last = st.builds(advance, number, json) | steps("terminate truncate")
    walked = st.tuples(steps("begin"), many(steps("advance")), last).map(lambda parts: (parts[0], *parts[1], parts[2]))
    return record(Trajectory, steps=walked, **({} if task is None else {"task": task}))


@st.composite
def groups(draw: st.DrawFn) -> Any:
    task = draw(word)
    return Group(task=task, trajectories=draw(many(trajectories(st.just(task)), 1, unique_by=lambda one: one.id)))


@st.composite
def of_one_size(draw: st.DrawFn) -> Any:
    size = draw(st.integers(1, 3))
    column = many(finite, size, size)
    return draw(record(AdvantageBatch, advantages=column, returns=column, value_targets=st.just(()) | column))


@st.composite
def scores(draw: st.DrawFn) -> Any:
    tasks, seeds = draw(many(text, 1, unique=True)), draw(many(st.integers(), 1, unique=True))
    rows = many(many(finite, len(seeds), len(seeds)), len(tasks), len(tasks))
    return draw(record(Scores, tasks=st.just(tasks), seeds=st.just(seeds), values=rows))


@st.composite
def releases(draw: st.DrawFn) -> Any:
    policy, n = draw(word), draw(st.integers(1, 2**63))
    return draw(record(Release, id=st.just(f"{policy}@{n}"), policy=st.just(policy), number=st.just(n)))


@st.composite
def flags(draw: st.DrawFn) -> Any:
    value = draw(st.sampled_from([st.booleans(), text, st.integers(), finite, st.dictionaries(text, json, max_size=2)]))
    variants = draw(st.dictionaries(text, value, min_size=1, max_size=3))
    one = st.sampled_from(sorted(variants))
    name, conditions = draw(word), record(Condition, operator=st.sampled_from(OPERATORS))
    return draw(
        record(
            Flag,
            name=st.just(name),
            variants=st.just(variants),
            off=one,
            rules=many(record(FlagRule, variant=one, conditions=many(conditions))),
            requires=st.dictionaries(text.filter(lambda other: other != name), text, max_size=2),
        )
    )


@st.composite
def budgets(draw: st.DrawFn) -> Any:
    tokens = st.integers(0, 10**6)
    ceiling, more, room, spent = draw(st.tuples(tokens, tokens, tokens, tokens))
    whole = {"ceiling": ceiling, "allowed": ceiling + more, "cap": ceiling + more + room, "spent": spent}
    triggers = st.dictionaries(st.sampled_from([str(one) for one in Trigger]), time, max_size=2)
    return draw(
        record(
            ThinkingBudget,
            **{name: st.just(value) for name, value in whole.items()},
            overspent=st.integers(0, spent),
            escalated_at=triggers,
            assessment=record(Assessment, confidence=level),
        )
    )


def rising(values: Strategy, size: int) -> Strategy:
    return many(values, size, size).map(sorted).map(tuple)


@st.composite
def calibrations(draw: st.DrawFn) -> Any:
    size, status = draw(st.integers(0, 3)), draw(st.sampled_from(JudgeStatus))
    reasons = many(text, 1) if status is JudgeStatus.DIAGNOSTIC else st.just(())
    maps = {"xs": rising(finite, size), "ys": rising(level, size)}
    return draw(record(Calibration, **maps, standing=st.just(status), reasons=reasons))


ARMS = st.integers(0, 100).map(lambda share: {"a": share / 100, "b": (100 - share) / 100})
SPECIAL: dict[type, Strategy] = {
    ModelCall: model_calls(),
    Span: spans(),
    Step: steps(),
    Trajectory: trajectories(),
    Group: groups(),
    AdvantageBatch: of_one_size(),
    Scores: scores(),
    Release: releases(),
    Flag: flags(),
    ThinkingBudget: budgets(),
    Calibration: calibrations(),
    Turn: record(Turn, decision=spans((SpanKind.MODEL,)), effects=many(spans())),
    Interval: st.builds(
        lambda low, more, level: Interval(low=low, high=low + more, level=level),
        number,
        st.floats(0, 1e9),
        st.floats(0, 1, exclude_min=True, exclude_max=True),
    ),
    Verdict: record(Verdict, outcome=st.sampled_from([Outcome.PROMOTE, Outcome.REJECT]), needs=st.none())
    | record(Verdict, outcome=st.just(Outcome.HOLD), needs=st.integers(1, 99)),
    Decision: record(Decision, needs=st.none()) | record(Decision, open=st.just(False)),
    Experiment: record(Experiment, arms=ARMS),
    ServedRequest: record(ServedRequest, latency_s=maybe(level)),
    Alert: record(Alert, at=time, cleared_at=maybe(st.floats(4e9, 5e9))),
    Judgement: record(Judgement, grade=st.none(), score=st.none())
    | record(Judgement, grade=st.sampled_from(Grade), score=level),
    Evidence: record(Evidence, baseline=word.map("{}-1".format), candidate=word.map("{}-2".format)),
}
RECORDS = {kind: SPECIAL[cls] if cls in SPECIAL else record(cls) for kind, cls in PUBLISHED.items()}
