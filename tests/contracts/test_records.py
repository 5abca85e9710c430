"""The codec: exact round trips of every published record, and refusals that say where, what, why and the remedy."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import holdfast.contracts
from holdfast.contracts.commands import Alert
from holdfast.contracts.errors import BadRecord
from holdfast.contracts.experience import Trajectory, advance, begin, terminate
from holdfast.contracts.records import PUBLISHED, decode, dumps, encode, loads, schema
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import Claim, Split, Task
from holdfast.contracts.run import WorkerRecord
from holdfast.contracts.shapes import shape
from holdfast.contracts.trace import ModelCall, Span, SpanEvent, SpanKind, Turn
from tests.contracts.strategies import RECORDS

MODULES = [f"holdfast.contracts.{module.name}" for module in pkgutil.iter_modules(holdfast.contracts.__path__)]
STDLIB_ONLY = [name for name in MODULES if not name.endswith((".settings", ".checks"))]
EVERY = pytest.mark.parametrize("kind", PUBLISHED)
moderately = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))

SPAN = Span(
    seq=2,
    kind=SpanKind.TELEMETRY,
    name="wait",
    started_at=1.0,
    events=(SpanEvent(name="a", at=1.0), SpanEvent(name="b", at=1.5)),
)
CALL = ModelCall(model="m", messages=({"role": "user", "content": "hi"},), response={"content": "ho"})
TURN = Turn(index=0, decision=Span(seq=1, kind=SpanKind.MODEL, name="chat", started_at=1.0, model=CALL))


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """A record of a time when there is a second version."""

    SCHEMA: ClassVar[int] = 2

    id: str


@cache
def validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(schema(PUBLISHED[kind]))


@EVERY
@moderately
@given(data=st.data())
def test_a_record_comes_back_exactly_from_its_text(kind: str, data: st.DataObject) -> None:
    record = data.draw(RECORDS[kind])
    text = dumps(record)
    assert loads(PUBLISHED[kind], text) == record
    assert dumps(loads(PUBLISHED[kind], text)) == text


@EVERY
@moderately
@given(data=st.data())
def test_a_written_record_keeps_its_published_schema(kind: str, data: st.DataObject) -> None:
    written = json.loads(dumps(data.draw(RECORDS[kind])))
    assert written["schema_version"] == PUBLISHED[kind].SCHEMA  # type: ignore[attr-defined]
    validator(kind).validate(written)


@EVERY
@moderately
@given(data=st.data())
def test_schema_and_codec_refuse_the_same_broken_records(kind: str, data: st.DataObject) -> None:
    cls = PUBLISHED[kind]
    broken = data.draw(st.sampled_from(list(ways_to_break(cls, encode(data.draw(RECORDS[kind]))))))
    assert not validator(kind).is_valid(broken)
    with pytest.raises(BadRecord, match=f"^{cls.__name__}[.:]"):
        decode(cls, broken)


def ways_to_break(cls: Any, written: dict[str, Any]) -> Iterator[dict[str, Any]]:
    document = schema(cls)
    for name in document["required"]:
        yield {key: value for key, value in written.items() if key != name}
    for name, rule in document["properties"].items():
        if rule.keys() - {"default"}:  # a field of any JSON cannot be given the wrong type
            yield {**written, name: ["wrong", ["type"]]}
            takes_object = any(one.get("type") == "object" for one in (rule, *rule.get("anyOf", ())))
            yield {**written, name: "type" if takes_object else {"wrong": {"type": 1}}}
    yield {**written, "extra": 1}


@EVERY
def test_the_schema_is_a_sound_document_with_a_title_and_a_description(kind: str) -> None:
    document = schema(PUBLISHED[kind])
    Draft202012Validator.check_schema(document)
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    for part in (document, *document.get("$defs", {}).values()):
        assert part["title"]
        assert part["description"]
        assert part["additionalProperties"] is False


@EVERY
def test_another_version_is_refused_with_the_supported_list(kind: str) -> None:
    cls: Any = PUBLISHED[kind]
    with pytest.raises(BadRecord) as refusal:
        decode(cls, {"schema_version": 7})
    why = f"is not a supported version: [{cls.SCHEMA}]; read it with a build that knows that version"
    assert str(refusal.value) == f"{cls.__name__}.schema_version = 7: {why}"


@pytest.mark.parametrize("version", ["1", True, 1.0, None, 0])
def test_a_version_that_is_not_the_whole_number_one_is_refused(version: object) -> None:
    with pytest.raises(BadRecord, match=r"^RewardBreakdown\.schema_version = .*: is not a supported version: \[1\]; "):
        decode(RewardBreakdown, {"schema_version": version, "signals": []})


def test_a_missing_version_means_the_first() -> None:
    assert decode(RewardBreakdown, {"signals": []}) == RewardBreakdown(signals=())
    with pytest.raises(BadRecord, match=r"^Later\.schema_version = 1: is not a supported version: \[2\]"):
        decode(Later, {"id": "x"})
    assert schema(Later)["required"] == ["id", "schema_version"]
    assert loads(Later, dumps(Later(id="x"))) == Later(id="x")


def test_every_record_with_a_version_is_published_once_and_has_a_strategy() -> None:
    found = set()
    for name in STDLIB_ONLY:
        module = importlib.import_module(name)
        found |= {cls for cls in vars(module).values() if is_dataclass(cls) and hasattr(cls, "SCHEMA")}
    assert found == set(PUBLISHED.values())
    assert len(PUBLISHED) == len(found)
    assert set(RECORDS) == set(PUBLISHED)


def span_with(**changes: Any) -> dict[str, Any]:
    return encode(SPAN) | changes


REFUSED = [
    # not an object at all
    (Span, [1], "Span = [1]: is a list, not a Span object; give a Span object"),
    # an unknown key
    (
        RewardBreakdown,
        {"signals": [], "sum": 3},
        "RewardBreakdown.sum = 3: is not a field of RewardBreakdown; remove it: the fields are signals",
    ),
    # a missing key
    (RewardBreakdown, {}, "RewardBreakdown.signals: is missing; give a list"),
    # a missing key, deep inside
    (Span, span_with(events=[{"name": "a"}]), "Span.events[0].at: is missing; give a number"),
    # a missing key of a choice says what may stand there
    (
        Alert,
        {"code": "c", "message": "m", "at": 1},
        "Alert.severity: is missing; give one of: critical, warning, info",
    ),
    # text for a number, with the place in the list
    (
        Span,
        span_with(events=[{"name": "a", "at": 1}, {"name": "b", "at": 1}, {"name": "c", "at": "noon"}]),
        "Span.events[2].at = 'noon': is text, not a number; give a number",
    ),
    # a flag is not a number
    (Span, span_with(started_at=True), "Span.started_at = True: is true or false, not a number; give a number"),
    # a flag is not a whole number
    (Span, span_with(seq=True), "Span.seq = True: is true or false, not a whole number; give a whole number"),
    # a fraction is not a whole number, not even 2.0
    (Span, span_with(seq=2.0), "Span.seq = 2.0: is a number, not a whole number; give a whole number"),
    # null where nothing is optional
    (Span, span_with(name=None), "Span.name = None: is null, not text; give text"),
    # not finite
    (
        Span,
        span_with(started_at=float("inf")),
        "Span.started_at = inf: is not finite; give a finite number, or leave the record out",
    ),
    # not finite, deep inside any JSON
    (
        Span,
        span_with(attributes={"a": [1, {"b": float("nan")}]}),
        "Span.attributes['a'][1]['b'] = nan: is not finite; give a finite number, or leave the record out",
    ),
    # a key that JSON would silently turn into text
    (Span, span_with(attributes={1: 2}), "Span.attributes[1]: has a key that is not text; write every key as text"),
    # a value that an enum does not have
    (
        Span,
        span_with(kind="dream"),
        "Span.kind = 'dream': is not one of its values; use one of: model, tool, message, telemetry",
    ),
    # a long value is shortened
    (
        Span,
        span_with(seq="x" * 500),
        f"Span.seq = '{'x' * 27}...{'x' * 28}': is text, not a whole number; give a whole number",
    ),
    # a nested record is not an object
    (Turn, {"index": 0, "decision": 1}, "Turn.decision = 1: is a whole number, not a Span object; give a Span object"),
    # a nested record carries no version of its own
    (
        Turn,
        {"index": 0, "decision": encode(SPAN)},
        "Turn.decision.schema_version = 1: is not a field of Span; remove it: the fields are "
        + ", ".join(encode(SPAN))[16:],
    ),
    # the record's own rule, at the top
    (Span, span_with(seq=0), "span wait: seq = 0: must be at least 1"),
]


@pytest.mark.parametrize(("cls", "data", "message"), REFUSED, ids=[message[:40] for _, _, message in REFUSED])
def test_a_refusal_names_the_path_the_value_the_reason_and_the_remedy(cls: type, data: object, message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        decode(cls, data)
    assert str(refusal.value) == message


def test_a_broken_rule_of_a_nested_record_is_told_with_its_path() -> None:
    written = encode(TURN)
    written["decision"]["model"]["logprobs"] = [-1.0]
    with pytest.raises(BadRecord) as refusal:
        decode(Turn, written)
    assert str(refusal.value) == "Turn.decision.model: model call: logprobs: 1 values for none completion ids"


UNWRITABLE = [
    # not finite
    (replace(SPAN, attributes={"a": float("nan")}), "Span.attributes['a'] = nan: is not finite; "),
    # something that is no JSON
    (replace(SPAN, attributes={"a": {1}}), "Span.attributes['a'] = {1}: is of type set, not a JSON value; "),
    # the wrong type in a field: it could never be read again
    (replace(SPAN, name=3), "Span.name = 3: is a whole number, not text; "),  # type: ignore[arg-type]
    # the wrong record inside
    (RewardBreakdown(signals=(SPAN,)), "RewardBreakdown.signals[0] = Span(seq=2"),  # type: ignore[arg-type]
    # a list that is none
    (RewardBreakdown(signals=3), "RewardBreakdown.signals = 3: is a whole number, not a list; "),  # type: ignore[arg-type]
    # an object that is none
    (replace(SPAN, attributes=3), "Span.attributes = 3: is a whole number, not an object; "),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("record", "message"), UNWRITABLE, ids=[message[:30] for _, message in UNWRITABLE])
def test_what_could_not_be_read_again_is_not_written(record: object, message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        encode(record)
    assert str(refusal.value).startswith(message)


def test_a_record_is_written_as_plain_data_in_the_order_of_its_fields() -> None:
    task = Task(name="t", input=(1, Split.VAL), split=Split.TRAIN, priority=2, timeout_s=3)
    assert encode(task) == {
        "schema_version": 1,
        "name": "t",
        "input": [1, "val"],
        "split": "train",
        "priority": 2,
        "max_attempts": 3,
        "timeout_s": 3.0,
        "resources": None,
        "metadata": {},
        "step": None,
        "version": None,
        "max_faults": 5,
    }
    assert list(encode(task))[:3] == ["schema_version", "name", "input"]
    assert type(encode(task)["split"]) is str
    assert dumps(RewardBreakdown(signals=())) == '{"schema_version":1,"signals":[]}'


def test_what_was_read_or_written_shares_nothing_with_its_source() -> None:
    attributes = {"a": [1]}
    span = replace(SPAN, attributes=attributes)
    written = encode(span)
    read = decode(Span, written)
    attributes["a"].append(2)
    written["attributes"]["a"].append(3)
    assert read.attributes == {"a": [1]}


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(BadRecord, match=r"^Span: is not JSON: Expecting value: line 1 column 1"):
        loads(Span, "oops")
    with pytest.raises(BadRecord, match=r"^RewardBreakdown: is not JSON: "):
        loads(RewardBreakdown, b"\xff\xfe\xfa")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_numbers_that_are_none_do_not_come_in_through_text(number: str) -> None:
    with pytest.raises(BadRecord, match=r"^Task\.input\[0\] = (nan|inf): is not finite; "):
        loads(Task, f'{{"name": "t", "input": [{number}]}}')


def test_nesting_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    deep = "[" * 100_000
    for refused in (
        lambda: encode(Task(name="t", input=endless)),
        lambda: decode(Task, {"name": "t", "input": endless}),
        lambda: loads(Task, deep),
    ):
        with pytest.raises(BadRecord) as refusal:
            refused()
        assert str(refusal.value) == "Task: is nested too deeply, or contains itself; flatten it"


def test_a_number_of_too_many_digits_is_refused() -> None:
    with pytest.raises(BadRecord, match=r"^Task: cannot be written: Exceeds the limit .*; shorten the number$"):
        dumps(Task(name="t", input=10**5000))


def test_text_survives_whatever_characters_it_holds() -> None:
    task = Task(name="t", input="é 🜁 \ud800 \x00")
    assert dumps(task).isascii()
    assert loads(Task, dumps(task)) == task


def test_a_record_without_a_version_does_not_travel_alone() -> None:
    for refused in (lambda: decode(Claim, {}), lambda: encode(SpanEvent(name="a", at=1.0)), lambda: schema(Claim)):
        with pytest.raises(TypeError, match="has no SCHEMA version: it travels inside other records only"):
            refused()


def test_defaults_fill_in_for_missing_keys() -> None:
    signal = decode(RewardTerm, {"name": "n", "value": 1, "source": "env"})
    assert signal == RewardTerm(name="n", value=1.0, source="env", weight=1.0, turn=None)
    assert type(signal.value) is float


def test_the_schema_tells_bounds_defaults_and_nested_records() -> None:
    document = schema(Trajectory)
    assert document["title"] == "Trajectory"
    assert document["description"].startswith("One episode, or a part of one, with at least one decision")
    assert document["properties"]["schema_version"] == {"const": 1}
    assert document["properties"]["discount"] == {"type": "number", "minimum": 0, "maximum": 1, "default": 0.99}
    assert document["properties"]["steps"] == {"type": "array", "items": {"$ref": "#/$defs/Step"}, "minItems": 2}
    assert document["required"] == ["id", "steps", "created_at"]
    assert document["$defs"]["Step"]["properties"]["reward"] == {
        "anyOf": [{"type": "number"}, {"type": "null"}],
        "default": None,
    }
    assert "$defs" not in schema(WorkerRecord)


BOUNDED = [(cls, f) for cls in PUBLISHED.values() for f in fields(cls) if "minimum" in f.metadata]


@pytest.mark.parametrize(("cls", "field"), BOUNDED, ids=[f"{cls.__name__}.{f.name}" for cls, f in BOUNDED])
def test_a_minimum_in_the_schema_is_kept_by_the_record_itself(cls: Any, field: Any) -> None:
    kind = next(kind for kind, published in PUBLISHED.items() if published is cls)
    least = field.metadata["minimum"]

    @settings(moderately, max_examples=5)
    @given(RECORDS[kind])
    def check(record: Any) -> None:
        below = encode(record) | {field.name: least - 1}
        assert not validator(kind).is_valid(below)
        with pytest.raises(BadRecord):
            replace(record, **{field.name: least - 1})

    check()


def test_the_published_bounds_are_these() -> None:
    found = {f"{cls.__name__}.{f.name}": dict(f.metadata) for cls in PUBLISHED.values() for f in fields(cls)}
    assert {name: bounds for name, bounds in found.items() if bounds} == {
        "Task.max_attempts": {"minimum": 1},
        "Task.timeout_s": {"exclusiveMinimum": 0},
        "Task.max_faults": {"minimum": 0},
        "Span.seq": {"minimum": 1},
        "Span.parent": {"minimum": 1},
        "Turn.index": {"minimum": 0},
        "RewardTerm.turn": {"minimum": 0, "maximum": 2**31 - 1},
        "Step.span": {"minimum": 1},
        "Trajectory.steps": {"minItems": 2},
        "Trajectory.discount": {"minimum": 0, "maximum": 1},
        "Trajectory.padding": {"minimum": 0},
        "Group.trajectories": {"minItems": 1},
        "AdvantageBatch.advantages": {"minItems": 1},
        "AdvantageBatch.returns": {"minItems": 1},
        "Checkpoint.global_step": {"minimum": 0},
        "Checkpoint.episode_count": {"minimum": 0},
        "Scores.tasks": {"minItems": 1, "uniqueItems": True},
        "Scores.seeds": {"minItems": 1, "uniqueItems": True},
        "Interval.level": {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
        "MetricComparison.p_value": {"minimum": 0, "maximum": 1},
        "MetricComparison.pairs": {"minimum": 1},
        "MetricComparison.margin": {"minimum": 0},
        "Verdict.reasons": {"minItems": 1},
        "Verdict.needs": {"minimum": 1},
        "Decision.reasons": {"minItems": 1},
        "Decision.needs": {"minimum": 1},
        "Episode.safety_cost": {"minimum": 0},
        "Episode.success": {"minimum": 0, "maximum": 1},
        "Episode.latency_s": {"minimum": 0},
        "Episode.tokens": {"minimum": 0},
        "Band.p_value_spread": {"minimum": 0},
        "Band.delta_spread": {"minimum": 0},
        "Band.most_p_value_spread": {"minimum": 0},
        "Band.most_delta_spread": {"minimum": 0},
        "Band.of": {"minimum": 2},
        "Finding.count": {"minimum": 0},
        "Finding.of": {"minimum": 0},
        "Evidence.episodes": {"minimum": 0},
        "Release.number": {"minimum": 1},
        "Release.share": {"minimum": 0, "maximum": 100},
        "ServedRequest.success": {"minimum": 0, "maximum": 1},
        "ServedRequest.safety_cost": {"minimum": 0},
        "ThinkingBudget.ceiling": {"minimum": 0},
        "ThinkingBudget.cap": {"minimum": 0},
        "ThinkingBudget.allowed": {"minimum": 0},
        "ThinkingBudget.spent": {"minimum": 0},
        "ThinkingBudget.overspent": {"minimum": 0},
        "ThinkingBudget.calls": {"minimum": 0},
        "ThinkingBudget.escalations": {"minimum": 0},
        "ThinkingBudget.events": {"minimum": 1},
        "BudgetEvent.seq": {"minimum": 1},
        "BudgetEvent.tokens": {"minimum": 0},
        "BudgetEvent.allowed": {"minimum": 0},
        "BudgetEvent.spent": {"minimum": 0},
        "BudgetEvent.overspent": {"minimum": 0},
        "Judgement.prompt": {"pattern": "^[0-9a-f]{64}$"},
        "Judgement.artefact": {"pattern": "^[0-9a-f]{64}$"},
        "Judgement.score": {"minimum": 0, "maximum": 1},
        "Judgement.tokens": {"minimum": 0},
        "Judgement.cost": {"minimum": 0},
        "Judgement.latency_s": {"minimum": 0},
        "ReviewRequest.artefact": {"pattern": "^[0-9a-f]{64}$"},
        "Label.artefact": {"pattern": "^[0-9a-f]{64}$"},
        "Label.version": {"minimum": 1},
        "Calibration.prompt": {"pattern": "^[0-9a-f]{64}$"},
        "Calibration.labels": {"pattern": "^[0-9a-f]{64}$"},
        "Calibration.n": {"minimum": 0},
        "Calibration.abstained": {"minimum": 0},
    }


@EVERY
def test_a_record_is_frozen_slotted_and_built_by_name(kind: str) -> None:
    cls: Any = PUBLISHED[kind]
    assert cls.__dataclass_params__.frozen
    assert "__dict__" not in dir(cls)
    assert all(f.kw_only for f in fields(cls))


def test_a_trajectory_written_by_hand_is_read() -> None:
    text = """{"id": "t", "created_at": 0, "steps": [
        {"kind": "begun", "observation": 1, "action": "go"},
        {"kind": "advanced", "observation": 2, "reward": 0.5, "action": "stop", "logprob": -0.1},
        {"kind": "terminated", "observation": null, "reward": 1}]}"""
    steps = (begin(1).act("go"), advance(0.5, 2).act("stop", -0.1), terminate(1, None))
    assert loads(Trajectory, text) == Trajectory(id="t", created_at=0.0, steps=steps)


def test_the_shape_of_a_record_is_worked_out_once() -> None:
    assert shape(Span) is shape(Span)


@pytest.mark.parametrize("module", STDLIB_ONLY)
def test_a_contract_loads_with_nothing_but_the_standard_library(module: str) -> None:
    code = f"""
import sys
before = set(sys.modules)
import {module}
print(*{{name.partition(".")[0] for name in set(sys.modules) - before}})
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) - sys.stdlib_module_names == {"holdfast"}
