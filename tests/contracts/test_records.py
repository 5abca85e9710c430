"""The codec: exact round trips of every published record, and refusals that say where, what, why and the remedy."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import IntEnum, StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import holdfast.contracts
from holdfast.contracts.commands import Alert, Role, Token
from holdfast.contracts.errors import BadRecord
from holdfast.contracts.evidence import Decision, Reason
from holdfast.contracts.experience import Trajectory, advance, begin, terminate
from holdfast.contracts.records import PUBLISHED, decode, dumps, encode, loads, schema
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import Claim, Split, Task
from holdfast.contracts.run import RunState, Status, WorkerRecord
from holdfast.contracts.shapes import Unfit, shape
from holdfast.contracts.trace import ModelCall, Span, SpanEvent, SpanKind, Turn
from tests.contracts.strategies import RECORDS, beyond

MODULES = [f"holdfast.contracts.{module.name}" for module in pkgutil.iter_modules(holdfast.contracts.__path__)]
STDLIB_ONLY = [name for name in MODULES if not name.endswith((".settings", ".checks"))]
EVERY = pytest.mark.parametrize("kind", PUBLISHED)
seldom = settings(deadline=None, suppress_health_check=list(HealthCheck))

EVENTS = (SpanEvent(name="a", at=1.0), SpanEvent(name="b", at=1.5))
SPAN = Span(seq=2, kind=SpanKind.TELEMETRY, name="wait", started_at=1.0, events=EVENTS)
CALL = ModelCall(model="m", messages=({"role": "user", "content": "hi"},), response={"content": "ho"})
TURN = Turn(index=0, decision=Span(seq=1, kind=SpanKind.MODEL, name="chat", started_at=1.0, model=CALL))


@cache
def validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(schema(PUBLISHED[kind]))


@EVERY
@settings(seldom, max_examples=20)
@given(data=st.data())
def test_a_record_comes_back_exactly_from_its_text(kind: str, data: st.DataObject) -> None:
    record = data.draw(RECORDS[kind])
    text = dumps(record)
    assert loads(PUBLISHED[kind], text) == record
    assert dumps(loads(PUBLISHED[kind], text)) == text
    validator(kind).validate(json.loads(text))


@EVERY
@settings(seldom, max_examples=2)
@given(data=st.data())
def test_schema_and_codec_refuse_the_same_broken_records(kind: str, data: st.DataObject) -> None:
    written = encode(data.draw(RECORDS[kind]))
    for broken in ways_to_break(PUBLISHED[kind], written):
        assert not validator(kind).is_valid(broken), broken
        with pytest.raises(BadRecord):
            decode(PUBLISHED[kind], broken)


def ways_to_break(cls: Any, written: dict[str, Any]) -> Iterator[dict[str, Any]]:
    document = schema(cls)
    for name in document["required"]:
        yield {key: value for key, value in written.items() if key != name}
    for name, rule in document["properties"].items():
        if rule.keys() - {"default"}:  # a field of any JSON cannot be given the wrong type
            yield {**written, name: ["wrong", ["type"]]}
            takes_object = any(one.get("type") == "object" for one in (rule, *rule.get("anyOf", ())))
            yield {**written, name: "type" if takes_object else {"wrong": {"type": 1}}}
        yield from ({**written, name: value} for value in beyond(rule))
    yield {**written, "extra": 1}


@EVERY
def test_a_record_is_frozen_described_and_of_one_version(kind: str) -> None:
    cls: Any = PUBLISHED[kind]
    assert cls.__dataclass_params__.frozen and "__dict__" not in dir(cls) and all(f.kw_only for f in fields(cls))
    document = schema(cls)
    Draft202012Validator.check_schema(document)
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert document["properties"]["schema_version"] == {"const": cls.SCHEMA}
    for part in (document, *document.get("$defs", {}).values()):
        assert part["title"] and part["description"] and part["additionalProperties"] is False
    with pytest.raises(BadRecord, match=rf"^{cls.__name__}.schema_version = 7: .*: \[{cls.SCHEMA}\]; read it with"):
        decode(cls, {"schema_version": 7})


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """A record of a time when there is a second version."""

    SCHEMA: ClassVar[int] = 2

    id: str


def test_a_missing_version_means_the_first_and_a_version_is_a_whole_number() -> None:
    assert decode(RewardBreakdown, {"signals": []}) == RewardBreakdown(signals=())
    for version in ("1", True, 1.0, None, 0):
        with pytest.raises(
            BadRecord, match=r"^RewardBreakdown\.schema_version = .*: is not a supported version: \[1\]"
        ):
            decode(RewardBreakdown, {"schema_version": version, "signals": []})
    with pytest.raises(BadRecord, match=r"^Later\.schema_version = 1: is not a supported version: \[2\]"):
        decode(Later, {"id": "x"})
    assert schema(Later)["required"] == ["id", "schema_version"]
    assert loads(Later, dumps(Later(id="x"))) == Later(id="x")


def test_records_of_earlier_versions_are_read_or_refused() -> None:
    with pytest.raises(BadRecord, match=r"schema_version = 1: is not a supported version: \[2\]"):
        decode(Decision, {"open": True, "reasons": []})  # their reasons were sentences without codes
    assert encode(Decision(open=True, reasons=(Reason(code="ok", text="fine"),)))["schema_version"] == 2
    assert decode(RewardTerm, {"name": "n", "value": 1.0, "source": "env"}).feedback is None
    counts = dict.fromkeys(("total_rollouts", "succeeded", "failed", "cancelled", "dead", "running", "waiting"), 0)
    names = dict.fromkeys(("run_id", "project", "model_ref", "store_path"), "x")
    rest: dict[str, Any] = {"resources_id": None, "rewards": {}, "elapsed_s": 0.5, "updated_unix_ms": 1}
    status = Status(**names, **counts, **rest, run_state=RunState.RUNNING)
    written = encode(replace(status, outcomes={"right": 1}))
    assert decode(Status, written).outcomes == {"right": 1}
    del written["outcomes"]  # of before they were counted
    assert decode(Status, written) == status


def test_every_record_with_a_version_is_published_once_and_has_a_strategy() -> None:
    found = set()
    for name in STDLIB_ONLY:
        module = importlib.import_module(name)
        found |= {cls for cls in vars(module).values() if is_dataclass(cls) and hasattr(cls, "SCHEMA")}
    assert found == set(PUBLISHED.values()) and len(PUBLISHED) == len(found) and set(RECORDS) == set(PUBLISHED)


def span_with(**changes: Any) -> dict[str, Any]:
    return encode(SPAN) | changes


NOON = [{"name": "a", "at": 1}, {"name": "b", "at": 1}, {"name": "c", "at": "noon"}]
NUMBER, WHOLE, FINITE = "give a number", "give a whole number", "is not finite; give a finite number, or leave the rec"
CHOICES = "is not one of its values; use one of: model, tool, message, telemetry"
REFUSED: list[tuple[type, Any, str]] = [
    (Span, [1], "Span = [1]: is a list, not a Span object; give a Span object"),
    (
        RewardBreakdown,
        {"signals": [], "sum": 3},
        "RewardBreakdown.sum = 3: is not a field of RewardBreakdown; remove it",
    ),
    (RewardBreakdown, {}, "RewardBreakdown.signals: is missing; give a list"),
    (Span, span_with(events=[{"name": "a"}]), f"Span.events[0].at: is missing; {NUMBER}"),  # deep inside
    # a missing key of a choice says what may stand there
    (Alert, {"code": "c", "message": "m", "at": 1}, "Alert.severity: is missing; give one of: critical, warning, info"),
    (Span, span_with(events=NOON), f"Span.events[2].at = 'noon': is text, not a number; {NUMBER}"),
    (Span, span_with(started_at=True), f"Span.started_at = True: is true or false, not a number; {NUMBER}"),
    (Span, span_with(seq=True), f"Span.seq = True: is true or false, not a whole number; {WHOLE}"),
    (Span, span_with(seq=2.0), f"Span.seq = 2.0: is a number, not a whole number; {WHOLE}"),
    (Span, span_with(name=None), "Span.name = None: is null, not text; give text"),
    (Span, span_with(started_at=float("inf")), f"Span.started_at = inf: {FINITE}"),
    (Span, span_with(attributes={"a": [1, {"b": float("nan")}]}), f"Span.attributes['a'][1]['b'] = nan: {FINITE}"),
    # a key that JSON would silently turn into text
    (Span, span_with(attributes={1: 2}), "Span.attributes[1]: has a key that is not text; write every key as text"),
    (Span, span_with(kind="dream"), f"Span.kind = 'dream': {CHOICES}"),
    (Span, span_with(seq="x" * 500), f"Span.seq = '{'x' * 27}...{'x' * 28}': is text, not a whole number; {WHOLE}"),
    (Turn, {"index": 0, "decision": 1}, "Turn.decision = 1: is a whole number, not a Span object; give a Span object"),
    # a nested record carries no version of its own
    (Turn, {"index": 0, "decision": encode(SPAN)}, "Turn.decision.schema_version = 1: is not a field of Span; remove"),
    (Span, span_with(seq=0), "span wait: seq = 0: must be at least 1"),  # the record's own rule
]


@pytest.mark.parametrize(("cls", "data", "message"), REFUSED, ids=[message[:40] for _, _, message in REFUSED])
def test_a_refusal_names_the_path_the_value_the_reason_and_the_remedy(cls: type, data: object, message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        decode(cls, data)
    assert str(refusal.value).startswith(message)


def test_a_broken_rule_of_a_nested_record_is_told_with_its_path() -> None:
    written = encode(TURN)
    written["decision"]["model"]["logprobs"] = [-1.0]
    with pytest.raises(
        BadRecord, match="^Turn.decision.model: model call: logprobs: 1 values for none completion ids$"
    ):
        decode(Turn, written)


UNWRITABLE: list[tuple[Any, str]] = [
    (replace(SPAN, attributes={"a": float("nan")}), "Span.attributes['a'] = nan: is not finite; "),
    (replace(SPAN, attributes={"a": {1}}), "Span.attributes['a'] = {1}: is of type set, not a JSON value; "),
    # it could never be read again
    (replace(SPAN, name=3), "Span.name = 3: is a whole number, not text; "),  # type: ignore[arg-type]
    (RewardBreakdown(signals=(SPAN,)), "RewardBreakdown.signals[0] = Span(seq=2"),  # type: ignore[arg-type]
    (RewardBreakdown(signals=3), "RewardBreakdown.signals = 3: is a whole number, not a list; "),  # type: ignore[arg-type]
    (replace(SPAN, attributes=3), "Span.attributes = 3: is a whole number, not an object; "),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("record", "message"), UNWRITABLE, ids=[message[:30] for _, message in UNWRITABLE])
def test_what_could_not_be_read_again_is_not_written(record: object, message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        encode(record)
    assert str(refusal.value).startswith(message)


def test_a_record_is_written_as_plain_data_in_the_order_of_its_fields() -> None:
    task = Task(name="t", input=(1, Split.VAL), split=Split.TRAIN, priority=2, timeout_s=3)
    known = {"schema_version": 1, "name": "t", "input": [1, "val"], "split": "train", "priority": 2, "max_attempts": 3}
    rest = {"timeout_s": 3.0, "resources": None, "metadata": {}, "step": None, "version": None, "max_faults": 5}
    assert encode(task) == known | rest and list(encode(task)) == [*known, *rest]
    assert type(encode(task)["split"]) is str
    assert dumps(RewardBreakdown(signals=())) == '{"schema_version":1,"signals":[]}'


def test_what_was_read_or_written_shares_nothing_with_its_source() -> None:
    attributes = {"a": [1]}
    written = encode(replace(SPAN, attributes=attributes))
    read = decode(Span, written)
    attributes["a"].append(2)
    written["attributes"]["a"].append(3)
    assert read.attributes == {"a": [1]}


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(BadRecord, match=r"^Span: is not JSON: Expecting value: line 1 column 1"):
        loads(Span, "oops")
    with pytest.raises(BadRecord, match=r"^RewardBreakdown: is not JSON: "):
        loads(RewardBreakdown, b"\xff\xfe\xfa")
    for number in ("NaN", "Infinity", "1e999"):
        with pytest.raises(BadRecord, match=r"^Task\.input\[0\] = (nan|inf): is not finite; "):
            loads(Task, f'{{"name": "t", "input": [{number}]}}')


def test_nesting_without_end_and_numbers_of_too_many_digits_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for refused in (
        lambda: encode(Task(name="t", input=endless)),
        lambda: decode(Task, {"name": "t", "input": endless}),
        lambda: loads(Task, "[" * 100_000),
    ):
        with pytest.raises(BadRecord, match="^Task: is nested too deeply, or contains itself; flatten it$"):
            refused()
    with pytest.raises(BadRecord, match=r"^Task: cannot be written: Exceeds the limit .*; shorten the number$"):
        dumps(Task(name="t", input=10**5000))


def test_text_survives_whatever_characters_it_holds() -> None:
    task = Task(name="t", input="é 🜁 \ud800 \x00")
    assert dumps(task).isascii()
    assert loads(Task, dumps(task)) == task


def test_a_record_without_a_version_does_not_travel_alone() -> None:
    token = Token(id="tok-1", label="ann", role=Role.OPERATOR, sha256="a" * 64, created_at=10.0)
    for refused in (lambda: decode(Claim, {}), lambda: encode(EVENTS[0]), lambda: schema(Claim), lambda: encode(token)):
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
    assert document["properties"]["discount"] == {"type": "number", "minimum": 0, "maximum": 1, "default": 0.99}
    assert document["properties"]["steps"] == {"type": "array", "items": {"$ref": "#/$defs/Step"}, "minItems": 2}
    assert document["required"] == ["id", "steps", "created_at"]
    reward = document["$defs"]["Step"]["properties"]["reward"]
    assert reward == {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None}
    assert "$defs" not in schema(WorkerRecord)


SHARES, HEX = {"minimum": 0, "maximum": 1}, {"pattern": "^[0-9a-f]{64}$"}
BOUNDS: list[tuple[dict[str, Any], str]] = [
    ({"x-later": True}, """
        Episode.unit Episode.is_missing Evidence.interaction MetricComparison.corrected Verdict.gain Verdict.safety
        Status.prompt_search"""),
    ({"minimum": 0}, """
        Task.max_faults Turn.index Trajectory.padding Checkpoint.global_step Checkpoint.episode_count
        MetricComparison.margin Episode.safety_cost Episode.latency_s Episode.tokens Band.p_value_spread
        Band.delta_spread Band.most_p_value_spread Band.most_delta_spread Finding.count Finding.of Evidence.episodes
        ServedRequest.latency_s ServedRequest.safety_cost
        ThinkingBudget.ceiling ThinkingBudget.cap ThinkingBudget.allowed ThinkingBudget.spent
        ThinkingBudget.overspent ThinkingBudget.calls ThinkingBudget.escalations BudgetEvent.tokens BudgetEvent.allowed
        BudgetEvent.spent BudgetEvent.overspent Judgement.tokens Judgement.cost Judgement.latency_s
        Calibration.n Calibration.abstained"""),
    ({"minimum": 1}, """
        Task.max_attempts Span.seq Span.parent Step.span MetricComparison.pairs Verdict.needs Decision.needs
        Release.number ThinkingBudget.events BudgetEvent.seq Label.version"""),
    ({"minimum": 2}, "Band.of"),
    (SHARES, "Trajectory.discount MetricComparison.p_value Episode.success ServedRequest.success Judgement.score"),
    ({"minimum": 0, "maximum": 100}, "Release.share"),
    ({"minimum": 0, "maximum": 2**31 - 1}, "RewardTerm.turn"),
    ({"exclusiveMinimum": 0}, "Task.timeout_s"),
    ({"exclusiveMinimum": 0, "exclusiveMaximum": 1}, "Interval.level"),
    ({"minItems": 1}, """
        Group.trajectories AdvantageBatch.advantages AdvantageBatch.returns Verdict.reasons Decision.reasons"""),
    ({"minItems": 2}, "Trajectory.steps"),
    ({"minItems": 1, "uniqueItems": True}, "Scores.tasks Scores.seeds"),
    (HEX, """
        Judgement.prompt Judgement.artefact ReviewRequest.artefact Label.artefact
        Calibration.prompt Calibration.labels"""),
]  # fmt: skip


def test_the_published_bounds_are_these() -> None:
    found = {f"{cls.__name__}.{f.name}": dict(f.metadata) for cls in PUBLISHED.values() for f in fields(cls)}
    expected = {name: bounds for bounds, names in BOUNDS for name in names.split()}
    assert {name: bounds for name, bounds in found.items() if bounds} == expected


def test_a_trajectory_written_by_hand_is_read() -> None:
    text = """{"id": "t", "created_at": 0, "steps": [
        {"kind": "begun", "observation": 1, "action": "go"},
        {"kind": "advanced", "observation": 2, "reward": 0.5, "action": "stop", "logprob": -0.1},
        {"kind": "terminated", "observation": null, "reward": 1}]}"""
    steps = (begin(1).act("go"), advance(0.5, 2).act("stop", -0.1), terminate(1, None))
    assert loads(Trajectory, text) == Trajectory(id="t", created_at=0.0, steps=steps)


LOADED = """
import importlib, sys
before = set(sys.modules)
for name in sys.argv[1:]:
    for known in [known for known in sys.modules if known.startswith("holdfast")]:
        del sys.modules[known]
    importlib.import_module(name)
print(*{name.partition(".")[0] for name in set(sys.modules) - before})
"""


def test_each_contract_loads_with_nothing_but_the_standard_library() -> None:
    ran = subprocess.run([sys.executable, "-c", LOADED, *STDLIB_ONLY], capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) - sys.stdlib_module_names == {"holdfast"}


# Types ----------------------------------------------------------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1


class Text(str):
    __slots__ = ()


class Number(float):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    left: int
    right: Colour = Colour.RED

    def __post_init__(self) -> None:
        if self.left == 13:
            raise BadRecord("pair: left = 13", why="brings bad luck", remedy="take 12")


FITTING = [
    # hint, in Python, as JSON
    (str, "a", "a"),
    (str, "", ""),
    (bool, True, True),
    (bool, False, False),
    (int, -3, -3),
    (int, 10**30, 10**30),
    (float, 0.1, 0.1),
    (Any, None, None),
    (Any, {"a": [1, 2.5, "x", None, True]}, {"a": [1, 2.5, "x", None, True]}),
    (int | None, None, None),
    (int | None, 4, 4),
    (None | int, 4, 4),
    (tuple[int, ...], (), []),
    (tuple[int, ...], (1, 2), [1, 2]),
    (tuple[float, ...], (1.0, 2.5), [1.0, 2.5]),
    (tuple[tuple[float, ...], ...], ((1.0,), (2.0,)), [[1.0], [2.0]]),
    (tuple[str, ...] | None, ("a",), ["a"]),
    (Mapping[str, int], {"a": 1}, {"a": 1}),
    (Mapping[str, Any], {"a": {"b": []}}, {"a": {"b": []}}),
    (Colour, Colour.BLUE, "blue"),
    (Literal["on", "off"], "on", "on"),
    (Pair, Pair(left=1), {"left": 1, "right": "red"}),
    (Mapping[str, Pair], {"p": Pair(left=1)}, {"p": {"left": 1, "right": "red"}}),
]


@pytest.mark.parametrize(("hint", "value", "written"), FITTING, ids=str)
def test_a_value_is_written_and_read_again(hint: Any, value: Any, written: Any) -> None:
    assert shape(hint).encode(value) == written
    assert shape(hint).decode(written) == value
    assert type(shape(hint).decode(written)) is type(value)


UNREADABLE = [
    # hint, what was found, path, why
    (str, 1, "", "is a whole number, not text"),
    (str, None, "", "is null, not text"),
    (bool, 1, "", "is a whole number, not true or false"),
    (bool, "true", "", "is text, not true or false"),
    (int, True, "", "is true or false, not a whole number"),
    (int, 1.0, "", "is a number, not a whole number"),
    (int, Size.SMALL, "", "is of type Size, not a whole number"),
    (float, True, "", "is true or false, not a number"),
    (float, "1", "", "is text, not a number"),
    (float, float("-inf"), "", "is not finite"),
    (float, 2**53 + 1, "", "is too large to be kept exactly"),
    (float, 10**400, "", "is too large to be kept exactly"),
    (Any, {1}, "", "is of type set, not a JSON value"),
    (Any, [0, b"x"], "[1]", "is of type bytes, not a JSON value"),
    (Any, {"a": {2: 3}}, "['a'][2]", "has a key that is not text"),
    (int | None, "1", "", "is text, not a whole number"),
    (tuple[int, ...], (1,), "", "is of type tuple, not a list"),  # a tuple is what we write from, never what JSON gave
    (tuple[int, ...], [1, 2, "3"], "[2]", "is text, not a whole number"),
    (tuple[int, ...], [1, True], "[1]", "is true or false, not a whole number"),
    (tuple[float, ...], [1.0, float("nan")], "[1]", "is not finite"),
    (tuple[tuple[int, ...], ...], [[1], [2, None]], "[1][1]", "is null, not a whole number"),
    (Mapping[str, int], [], "", "is a list, not an object"),
    (Mapping[str, int], {"a": "b"}, "['a']", "is text, not a whole number"),
    (Colour, "green", "", "is not one of its values"),
    (Colour, 1, "", "is not one of its values"),
    (Colour, ["red"], "", "is not one of its values"),
    (Literal["on"], "off", "", "is not one of its values"),
    (Pair, {"left": 1, "middle": 2}, ".middle", "is not a field of Pair"),
    (Pair, {"right": "red"}, ".left", "is missing"),
    (Pair, {"left": 13}, "", "pair: left = 13: brings bad luck"),
]


@pytest.mark.parametrize(("hint", "found", "path", "why"), UNREADABLE, ids=str)
def test_a_value_of_another_type_is_refused_with_its_place(hint: Any, found: Any, path: str, why: str) -> None:
    with pytest.raises(Unfit) as refusal:
        shape(hint).decode(found)
    assert (refusal.value.path, refusal.value.why) == (path, why)


def test_a_refusal_carries_the_remedy() -> None:
    def remedy(hint: Any, found: Any) -> str:
        with pytest.raises(Unfit) as refusal:
            shape(hint).decode(found)
        return refusal.value.remedy

    assert remedy(int | None, "x") == "give a whole number"
    assert remedy(Colour, "green") == "use one of: red, blue"
    assert remedy(Pair, {"left": 1, "middle": 2}) == "remove it: the fields are left, right"
    assert remedy(Pair, {}) == "give a whole number"
    assert remedy(Pair, {"left": 13}) == "take 12"
    assert remedy(Mapping[str, Pair], {"p": {}}) == "give a whole number"


def test_what_is_written_is_plain_whatever_kind_of_text_number_or_mapping_it_was() -> None:
    for hint in (str, Any):
        assert type(shape(hint).encode(Colour.RED)) is str
        assert type(shape(hint).encode(Text("x"))) is str
    for hint in (float, Any):
        assert type(shape(hint).encode(Number(1.5))) is float
    assert type(shape(float).encode(3)) is float
    assert type(shape(Mapping[str, Any]).encode(MappingProxyType({"a": MappingProxyType({})}))["a"]) is dict
    assert type(shape(Colour).encode("red")) is str
    assert shape(Any).encode((1, (2,))) == [1, [2]]


def test_whole_numbers_that_a_float_holds_exactly_are_read_as_numbers() -> None:
    read = shape(tuple[float, ...]).decode([1, 2.5, 2**53])
    assert read == (1.0, 2.5, 2.0**53) and {type(value) for value in read} == {float}


def test_only_its_own_record_is_written() -> None:
    with pytest.raises(Unfit, match=r"^is an object, not a Pair$"):
        shape(Pair).encode({"left": 1})
    assert shape(Span) is shape(Span)  # and its shape is worked out once


DESCRIBED = [
    (str, {"type": "string"}),
    (bool, {"type": "boolean"}),
    (int, {"type": "integer"}),
    (float, {"type": "number"}),
    (Any, {}),
    (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    (tuple[str, ...], {"type": "array", "items": {"type": "string"}}),
    (Mapping[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
    (Colour, {"enum": ["red", "blue"]}),
    (Literal["on", "off"], {"enum": ["on", "off"]}),
    (Pair, {"$ref": "#/$defs/Pair"}),
]


@pytest.mark.parametrize(("hint", "document"), DESCRIBED, ids=str)
def test_a_type_has_its_json_schema(hint: Any, document: Any) -> None:
    assert shape(hint).schema({}) == document


def test_a_nested_record_is_described_once_and_without_the_docstring_that_python_makes_up() -> None:
    defs: dict[str, Any] = {}
    shape(tuple[Pair, ...]).schema(defs)
    shape(Pair | None).schema(defs)
    assert defs == {
        "Pair": {
            "title": "Pair",
            "type": "object",
            "properties": {"left": {"type": "integer"}, "right": {"enum": ["red", "blue"], "default": "red"}},
            "required": ["left"],
            "additionalProperties": False,
        }
    }


@pytest.mark.parametrize("hint", [set, list[int], tuple[int, int], int | str, Mapping[int, str], Size, bytes], ids=str)
def test_a_type_that_no_record_needs_is_a_mistake_of_ours(hint: Any) -> None:
    with pytest.raises(TypeError, match="records hold text, numbers, flags, enums, records, tuples and mappings"):
        shape(hint)
