"""The one codec: every record that leaves the process is written, read and described here.

A record is a dataclass with a `SCHEMA` version; how each of its types looks as JSON is told by `shapes`. Reading is
strict: what this build does not know is refused, never dropped. Where the text goes is the caller's business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING
from reprlib import Repr
from typing import Any, NoReturn, TypeVar

from holdfast.contracts.budget import BudgetEvent, ThinkingBudget
from holdfast.contracts.commands import Alert, Command
from holdfast.contracts.errors import BadRecord
from holdfast.contracts.evidence import (
    Band,
    Decision,
    Episode,
    Evidence,
    Finding,
    Interval,
    MetricComparison,
    Scores,
    Verdict,
)
from holdfast.contracts.experience import AdvantageBatch, Group, Step, Trajectory, Triplet
from holdfast.contracts.flag import Flag
from holdfast.contracts.judgement import Calibration, EvalItem, JudgeAssignment, Judgement, Label, ReviewRequest
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.release import Experiment, Exposure, Release, ServedRequest
from holdfast.contracts.reward import RewardBreakdown, RewardTerm, Scoring
from holdfast.contracts.rollout import Attempt, Rollout, Task
from holdfast.contracts.run import LedgerEntry, ResourceVersion, RunRecord, Status, WorkerRecord
from holdfast.contracts.shapes import Shape, Unfit, not_a, shape
from holdfast.contracts.task import TaskItem
from holdfast.contracts.trace import ModelCall, Span, ToolCall, Turn

R = TypeVar("R")

DIALECT = "https://json-schema.org/draft/2020-12/schema"
VERSION = "schema_version"

PUBLISHED: Mapping[str, type] = {
    "task": Task,
    "task-item": TaskItem,
    "rollout": Rollout,
    "attempt": Attempt,
    "span": Span,
    "model-call": ModelCall,
    "tool-call": ToolCall,
    "turn": Turn,
    "triplet": Triplet,
    "signal": RewardTerm,
    "sheet": RewardBreakdown,
    "scoring": Scoring,
    "run": RunRecord,
    "status": Status,
    "resource-version": ResourceVersion,
    "worker": WorkerRecord,
    "ledger-entry": LedgerEntry,
    "step": Step,
    "trajectory": Trajectory,
    "group": Group,
    "advantage-batch": AdvantageBatch,
    "checkpoint": Checkpoint,
    "scores": Scores,
    "interval": Interval,
    "comparison": MetricComparison,
    "verdict": Verdict,
    "decision": Decision,
    "episode": Episode,
    "band": Band,
    "finding": Finding,
    "evidence": Evidence,
    "release": Release,
    "trial": Experiment,
    "exposure": Exposure,
    "served": ServedRequest,
    "flag": Flag,
    "budget": ThinkingBudget,
    "budget-event": BudgetEvent,
    "artefact": EvalItem,
    "judgement": Judgement,
    "doubt": ReviewRequest,
    "label": Label,
    "calibration": Calibration,
    "appointment": JudgeAssignment,
    "command": Command,
    "alert": Alert,
}

_shorten = Repr()
_shorten.maxstring = _shorten.maxother = 60


def encode(record: object) -> dict[str, Any]:
    """The record as JSON-ready data. Tuples become lists and enums their values; what JSON cannot hold is refused."""
    cls = type(record)
    version, form = _form(cls)
    try:
        return {VERSION: version, **form.encode(record)}
    except Unfit as unfit:
        _refuse(cls, unfit)
    except RecursionError:
        raise _too_deep(cls) from None


def decode(cls: type[R], data: object) -> R:
    """The record, or BadRecord with the path, the value, the reason and the remedy. No version means version 1."""
    supported, form = _form(cls)
    try:
        if type(data) is not dict:
            raise not_a(data, f"a {cls.__name__} object")
        found = data.get(VERSION, 1)
        if type(found) is not int or found != supported:
            remedy = "read it with a build that knows that version"
            raise Unfit(f"is not a supported version: [{supported}]", remedy, value=found).inside(f".{VERSION}")
        record: R = form.decode({key: value for key, value in data.items() if key != VERSION})
        return record
    except Unfit as unfit:
        _refuse(cls, unfit)
    except RecursionError:
        raise _too_deep(cls) from None


def dumps(record: object) -> str:
    """One line of ASCII JSON; loads gives an equal record back."""
    data = encode(record)
    try:
        return json.dumps(data, allow_nan=False, separators=(",", ":"))
    except ValueError as error:  # a whole number of more digits than Python will print
        raise BadRecord(type(record).__name__, why=f"cannot be written: {error}", remedy="shorten the number") from None


def loads(cls: type[R], text: str | bytes) -> R:
    try:
        data = json.loads(text)
    except RecursionError:
        raise _too_deep(cls) from None
    except ValueError as error:
        raise BadRecord(cls.__name__, why=f"is not JSON: {error}", remedy="give one JSON object") from None
    return decode(cls, data)


def schema(cls: type) -> dict[str, Any]:
    """A JSON Schema (2020-12) of what encode writes and decode reads. Rules between fields are left to decode."""
    version, form = _form(cls)
    defs: dict[str, Any] = {}
    form.schema(defs)
    document = defs.pop(cls.__name__)
    document["properties"] = {VERSION: {"const": version}, **document["properties"]}
    if version != 1:
        document["required"].append(VERSION)
    return {"$schema": DIALECT, **document, **({"$defs": defs} if defs else {})}


def _form(cls: Any) -> tuple[int, Shape]:
    version = getattr(cls, "SCHEMA", None)
    if type(version) is not int:
        raise TypeError(f"{cls.__name__} has no SCHEMA version: it travels inside other records only")
    return version, shape(cls)


def _refuse(cls: type, unfit: Unfit) -> NoReturn:
    if unfit.broken is not None and not unfit.path:
        raise unfit.broken from None
    value = "" if unfit.value is MISSING else f" = {_shorten.repr(unfit.value)}"
    raise BadRecord(f"{cls.__name__}{unfit.path}{value}", why=unfit.why, remedy=unfit.remedy) from None


def _too_deep(cls: type) -> BadRecord:
    return BadRecord(cls.__name__, why="is nested too deeply, or contains itself", remedy="flatten it")
