"""Records refuse what could not have happened, and allow what is just possible: one table for all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from holdfast.contracts.artifacts import Artifact
from holdfast.contracts.budget import Assessment, BudgetEvent, BudgetEventKind, ThinkingBudget, Tier, Traits
from holdfast.contracts.commands import Alert, Command, Overrides, Role, Severity, Token
from holdfast.contracts.errors import BadRecord
from holdfast.contracts.evidence import (
    Band,
    Decision,
    Episode,
    Evidence,
    Finding,
    Interval,
    MetricComparison,
    Outcome,
    Reason,
    Scores,
    Verdict,
)
from holdfast.contracts.experience import (
    AdvantageBatch,
    Group,
    Step,
    StepKind,
    Trajectory,
    Triplet,
    advance,
    begin,
    terminate,
    truncate,
)
from holdfast.contracts.flag import ALL_OFF, ALL_ON, OPERATORS, Condition, Features, Flag, FlagRule
from holdfast.contracts.judgement import (
    Calibration,
    Doubtful,
    EvalItem,
    Grade,
    JudgeAssignment,
    Judgement,
    JudgeStatus,
    Label,
    Maker,
    ReviewRequest,
)
from holdfast.contracts.judgement import Role as JudgeRole
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.release import Experiment, PolicyKind, Release, ServedRequest, Stage
from holdfast.contracts.reward import Reward, RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import Backoff, Task
from holdfast.contracts.run import StepRecord
from holdfast.contracts.trace import DECISIONS, ModelCall, Span, SpanKind, ToolCall, Turn
from tests.contracts.strategies import beyond

NAN, INF = float("nan"), float("inf")
SHA, HASH = "0123456789abcdef" * 4, "a" * 64
CALL, TOOL = ModelCall(model="m", messages=(), response={}), ToolCall(tool="search", arguments={})
SPAN = Span(seq=2, kind=SpanKind.TELEMETRY, name="s", started_at=1.0)
MODEL = replace(SPAN, kind=SpanKind.MODEL, model=CALL)
FIRST, NEXT, LAST = begin(0).act("a"), advance(1.0, 1).act("b"), terminate(2.0, 2)
EPISODE = Trajectory(id="t", task="k", steps=(FIRST, NEXT, LAST), created_at=1.0)
FINE = Reason(code="promotion_allowed", text="p 0.01 < 0.05")
SPREADS = {"p_value_spread": 0.01, "delta_spread": 0.02, "most_p_value_spread": 0.05, "most_delta_spread": 0.1}
ASSESSED = Assessment(tier=Tier.STANDARD, confidence=0.9, reasons=("r",), traits=Traits())
VALID: dict[type, dict[str, Any]] = {
    Interval: {"low": 0.0, "high": 1.0},
    Scores: {"version": "v1", "metric": "reward", "tasks": ("a", "b"), "seeds": (1, 2), "values": ((0.0, 0.5),) * 2},
    MetricComparison: {"metric": "reward", "baseline": "v1", "candidate": "v2", "difference": 0.1, "method": "paired"}
    | {"interval": Interval(low=0.0, high=0.2), "p_value": 0.04, "pairs": 30},
    Verdict: {"outcome": Outcome.PROMOTE, "reasons": ("good",)},
    Reason: {"code": "ok", "text": "fine"},
    Decision: {"open": False, "reasons": (FINE,)},
    Episode: {"task": "add", "seed": 7, "reward": 1.0},
    Band: {"kind": "seed", "within": True, "of": 2, **SPREADS},
    Finding: {"name": "pii", "severity": "error", "count": 0, "of": 3},
    Evidence: {"policy": "p", "baseline": "v1", "candidate": "v2", "suite": "s", "primary": "success", "episodes": 30},
    Trajectory: {"id": "t", "task": "k", "steps": (FIRST, NEXT, LAST), "created_at": 1.0},
    Group: {"task": "k", "trajectories": (EPISODE,)},
    AdvantageBatch: {"id": "b", "trajectory": "t", "advantages": (0.5, -0.5), "returns": (1.0, 2.0)}
    | {"normalized": True, "created_at": 1.0},
    Triplet: {"prompt": "p", "response": "r"},
    Traits: {},
    Assessment: {"tier": Tier.STANDARD, "confidence": 0.9, "reasons": ("r",), "traits": Traits()},
    ThinkingBudget: {"attempt": "a", "assessment": ASSESSED, "ceiling": 2000, "cap": 4000, "allowed": 2000}
    | {"created_at": 1.0, "changed_at": 1.0},
    BudgetEvent: {"attempt": "a", "seq": 1, "kind": BudgetEventKind.SPEND, "at": 1.0}
    | {"allowed": 5, "spent": 0, "overspent": 0},
    Command: {"id": "c1", "action": "pause", "subject": "r", "who": "ann", "why": "noisy", "at": 1.0},
    Overrides: {},
    Alert: {"code": "stalled", "severity": Severity.WARNING, "message": "no claims", "at": 5.0},
    Token: {"id": "tok-1", "label": "ann", "role": Role.OPERATOR, "sha256": HASH, "created_at": 10.0},
    Experiment: {"name": "t", "kind": "experiment", "arms": {"a": 0.5, "b": 0.5}, "salt": "s", "created_at": 1.0},
    ServedRequest: {"id": "r1", "trial": "t", "arm": "a", "unit": "ann", "at": 1.0},
    Flag: {"name": "beta", "variants": {"on": True, "off": False}, "off": "off"},
    FlagRule: {"variant": "on"},
    Condition: {"attribute": "group", "operator": "equals", "value": 1},
    EvalItem: {"task": "t", "output": "o"},
    Judgement: {"judge": "m", "criterion": "c@1", "prompt": HASH, "artefact": HASH, "at": 1.0}
    | {"grade": Grade.YES, "score": 0.9},
    Label: {"artefact": HASH, "criterion": "c@1", "maker": Maker.PERSON, "who": "ann", "holds": True, "at": 1.0},
    ReviewRequest: {"artefact": HASH, "criterion": "c@1", "reason": Doubtful.ASKED, "at": 1.0},
    Calibration: {"judge": "m", "criterion": "c@1", "prompt": HASH, "labels": HASH, "makers": {}, "n": 1, "at": 1.0}
    | {"xs": (0.0, 1.0), "ys": (0.1, 0.9), "measures": {}, "standing": JudgeStatus.TRUSTED},
    JudgeAssignment: {"policy": "p", "judge": "m", "role": JudgeRole.TRAIN, "at": 1.0},
    Checkpoint: {"id": "c", "algorithm": "ppo", "policy_version": "p1", "global_step": 0, "episode_count": 0}
    | {"created_at": 1.0},
    Artifact: {"uri": "f", "sha256": SHA},
    Release: {"id": "sprout@3", "project": "default", "policy": "sprout", "number": 3, "kind": PolicyKind.WEIGHTS}
    | {"source": "shelf:sprout-weak", "stage": Stage.CANDIDATE, "created_at": 1.0, "changed_at": 1.0},
    RewardTerm: {"name": "match", "value": 1.0, "source": "rule:match"},
    Reward: {"value": 1.0},
    Task: {"name": "t", "input": None},
    Backoff: {"initial_s": 1.0, "cap_s": 5.0},
    StepRecord: {
        "run": "run-1",
        "step": 0,
        "name": "base",
        "function": "f",
        "inputs_sha256": "",
        "at": 1.0,
        "body": {},
    },
    Span: {"seq": 2, "kind": SpanKind.TELEMETRY, "name": "s", "started_at": 1.0},
    ModelCall: {"model": "m", "messages": (), "response": {}},
    Turn: {"index": 0, "decision": MODEL},
}


def made(cls: Any, **changes: Any) -> Any:
    return cls(**VALID[cls] | changes)


BLANK, FINITE, RANGE = "must not be blank", "must be finite", "must be a finite number in its range"
ARMS = "trial t: arms: two or more are needed, with weights that add up to 1"
ONCE = "must be there, each of them once"
NAME = "must be 1 to 200 characters without '/' or outer spaces"
LEARNT = "the first step, and no other, is begun"
CUT = "is empty, out of order or beyond"
FILLED: dict[type, str] = {  # fields that must not be blank
    Scores: "version metric",
    MetricComparison: "metric baseline candidate method",
    Reason: "code text",
    Evidence: "suite",
    AdvantageBatch: "id trajectory",
    Command: "id action subject who why",
    Alert: "code message",
    Token: "label",
    Experiment: "name kind salt",
    ServedRequest: "id trial arm unit",
    EvalItem: "task",
    Judgement: "judge criterion",
    Label: "who criterion",
    ReviewRequest: "criterion",
    Calibration: "judge",
    Checkpoint: "id algorithm policy_version parent",
    Release: "source",
    RewardTerm: "name source",
    Trajectory: "id",
    JudgeAssignment: "policy judge",
    Artifact: "uri",
}


def test_a_blank_field_is_refused_by_name() -> None:
    for cls, names in FILLED.items():
        for name, value in itertools.product(names.split(), ("", " ", "\t\n")):
            with pytest.raises(BadRecord, match=f"{name}: must not be blank"):
                made(cls, **{name: value})


UNCHECKED = {(Flag, "expires_at"), (Flag, "changed_at")}
OWN = (Reward, Backoff)  # they check their numbers in their own way: see the table


@pytest.mark.parametrize("cls", [cls for cls in VALID if cls not in OWN])
def test_a_number_that_is_none_and_what_is_beyond_the_declared_bounds_is_refused_by_name(cls: type) -> None:
    for f in fields(cls):
        strange = (NAN, INF, -INF) if f.type in ("float", "float | None") else ()
        for value in () if (cls, f.name) in UNCHECKED else (*strange, *beyond(f.metadata)):
            with pytest.raises(BadRecord) as refusal:
                made(cls, **{f.name: value})
            assert f.name in str(refusal.value) or cls in (Interval, Token, Release), value


REFUSED: list[tuple[type, dict[str, Any], str]] = [
    (Interval, {"low": 2.0}, "interval 2.0 to 1.0: the ends must be finite and in order"),
    (Interval, {"low": -INF}, "interval -inf to 1.0: the ends must be finite and in order"),
    (Interval, {"high": NAN}, "interval 0.0 to nan: the ends must be finite and in order"),
    (Scores, {"values": ((0.0, 0.5),)}, "scores of v1: values: 1 rows for 2 tasks"),
    (Scores, {"values": ((0.0, 0.5), (1.0,))}, "scores of v1: task b: 1 values for 2 seeds"),
    (Scores, {"values": ((0.0, NAN), (1.0, 1.0))}, "scores of v1: task a: must be finite; leave the task out as miss"),
    (Verdict, {"outcome": Outcome.REJECT, "reasons": ("",)}, "verdict reject: a reason must not be blank"),
    (Verdict, {"outcome": Outcome.HOLD}, "verdict hold: needs = None: goes with hold, and hold needs it"),
    (Verdict, {"needs": 5}, "verdict promote: needs = 5: goes with hold, and hold needs it"),
    (Verdict, {"outcome": Outcome.HOLD, "needs": 0}, "verdict hold: needs = 0: must be at least 1"),
    (Decision, {"open": True, "needs": 5}, "decision: needs = 5: goes with a closed gate only"),
    (Episode, {"task": " "}, "episode of   with seed 7: the task must not be blank"),
    (Evidence, {"candidate": "v1"}, "evidence: candidate v1: is compared with itself"),
    (Trajectory, {"steps": (NEXT, LAST)}, f"trajectory t: steps[0]: is advanced; {LEARNT}"),
    (Trajectory, {"steps": (FIRST, FIRST, LAST)}, f"trajectory t: steps[1]: is begun; {LEARNT}"),
    (Trajectory, {"steps": (FIRST, terminate(1.0, 1), LAST)}, "steps[1]: is terminated; only the last step may end"),
    (Trajectory, {"steps": (FIRST, truncate(1.0, 1), LAST)}, "steps[1]: is truncated; only the last step may end"),
    (Trajectory, {"steps": (begin(0), LAST)}, "steps[0]: has no action; every step but the last takes one"),
    (Trajectory, {"steps": (FIRST, NEXT)}, "steps[1]: the last step has an action; add the step it led to, or leave"),
    (Trajectory, {"steps": (FIRST, advance(1e308, 1).act("b"), terminate(1e308, 2))}, "total return: the rewards add"),
    (Group, {"trajectories": (EPISODE, replace(EPISODE, id="u", task="x"))}, "group k: trajectory u is of task x"),
    (Group, {"trajectories": (replace(EPISODE, task=None),)}, "group k: trajectory t is of task None"),
    (Group, {"trajectories": (EPISODE, replace(EPISODE, padding=1))}, "group k: holds a trajectory twice"),
    (AdvantageBatch, {"returns": (1.0,)}, "advantages b: 1 returns for 2 advantages"),
    (AdvantageBatch, {"value_targets": (1.0,)}, "advantages b: 1 value targets for 2 advantages"),
    (AdvantageBatch, {"advantages": (0.5, NAN)}, f"advantages b: advantages: {FINITE}"),
    (AdvantageBatch, {"returns": (INF, 1.0)}, f"advantages b: returns: {FINITE}"),
    (AdvantageBatch, {"value_targets": (1.0, -INF)}, f"advantages b: value_targets: {FINITE}"),
    (ThinkingBudget, {"allowed": 4001}, "4001 tokens are not between its ceiling 2000 and its cap 4000"),
    (ThinkingBudget, {"allowed": 1999}, "1999 tokens are not between its ceiling 2000 and its cap 4000"),
    (ThinkingBudget, {"spent": 1, "overspent": 2}, "budget of a: 2 of 1 tokens cannot be too many"),
    (Command, {"id": "a\tb"}, "command 'a\\tb': id: must be at most 100 letters to be seen"),
    (Command, {"id": "x" * 101}, f"command '{'x' * 100}': id: must be at most 100 letters to be seen"),
    (Overrides, {"enabled": 1}, "enabled: must be true or false"),
    (Overrides, {"update_interval_rollouts": 0}, "update_interval_rollouts = 0: must be a whole number above 0"),
    (Overrides, {"max_rollouts_per_update": True}, "max_rollouts_per_update = True: must be a whole number above 0"),
    (Alert, {"cleared_at": 4.0}, "alert stalled: times 5.0 to 4.0 are not in order"),
    (Token, {"expires_at": 10.0}, "token tok-1: must expire after it was made"),
    (Experiment, {"arms": {}}, ARMS),
    (Experiment, {"arms": {"a": 1.0}}, ARMS),  # nothing to compare with
    (Experiment, {"arms": {"a": 0.5, "b": 0.6}}, ARMS),
    (Experiment, {"arms": {"a": 1.5, "b": -0.5}}, ARMS),
    (Experiment, {"arms": {"a": NAN, "b": 1.0}}, ARMS),
    (Flag, {"name": ""}, "flag '': a name has no blanks in it, and is not empty"),
    (Flag, {"name": "two words"}, "flag 'two words': a name has no blanks in it, and is not empty"),
    (Flag, {"name": "tab\t"}, "flag 'tab\\t': a name has no blanks in it, and is not empty"),
    (Flag, {"variants": {}}, "flag 'beta': variants: there is none"),
    (Flag, {"variants": {"on": True, "off": "no"}}, "flag 'beta': variants: are of more than one type"),
    (Flag, {"variants": {"on": 1, "off": False}}, "flag 'beta': variants: are of more than one type"),  # true is not 1
    (Flag, {"off": "gone"}, "flag 'beta': variant 'gone': is not one of its variants; use on, off"),
    (Flag, {"rules": (FlagRule(variant="x"),)}, "flag 'beta': variant 'x': is not one of its variants; use on, off"),
    (Flag, {"requires": {"beta": "on"}}, "flag 'beta': requires: itself"),
    (
        Condition,
        {"operator": "like"},
        "operator 'like': is unknown; use equals, in, not_in, prefix, suffix, above, bel",
    ),
    (Judgement, {"grade": None}, "a grade and a score go together"),
    (Judgement, {"score": None}, "a grade and a score go together"),
    (Calibration, {"xs": (0.0,)}, "its map must rise"),
    (Calibration, {"ys": (0.9, 0.1)}, "its map must rise"),
    (Calibration, {"ys": (0.1, 1.1)}, "its map must be finite, with values from 0 to 1"),
    (Calibration, {"xs": (1.0, 0.0)}, "its map must rise"),
    (Calibration, {"standing": JudgeStatus.DIAGNOSTIC}, "diagnostic only says why"),
    (Calibration, {"reasons": ("kappa",)}, "diagnostic only says why"),  # trusted, with something against it
    (Release, {"number": 4}, "release sprout@3: must be called sprout@4"),
    (Release, {"policy": "oak"}, "release sprout@3: must be called oak@3"),
    (Release, {"policy": " ", "id": " @3"}, f"release  @3: policy: {BLANK}"),
    (Reward, {"value": NAN}, "reward: value: is not a finite number"),
    (Reward, {"value": INF}, "reward: value: is not a finite number"),
    (Reward, {"value": 10**400}, "reward: value: is not a finite number"),  # no float is so large
    (Reward, {"value": "1"}, "reward: value: is not a finite number"),
    (Reward, {"value": None}, "reward: value: is not a finite number"),
    (Reward, {"terms": {"tone": NAN}}, "reward: terms: tone: is not a finite number"),
    (Reward, {"terms": {" ": 1.0}}, "reward: terms: ' ': is not a name"),
    (Reward, {"terms": [1.0]}, "reward: terms: is list, not an object"),
    (Reward, {"feedback": 3}, "reward: feedback: is int, not text"),
    (Reward, {"turns": {-1: {}}}, "reward: turn -1: is not a whole number from 0"),
    (Reward, {"turns": {"0": {}}}, "reward: turn '0': is not a whole number from 0"),
    (Reward, {"turns": {0: {"x": INF}}}, "reward: turn 0: x: is not a finite number"),
    (Task, {"name": ""}, f"task name '': {NAME}"),
    (Task, {"name": " a"}, f"task name ' a': {NAME}"),
    (Task, {"name": "a/b"}, f"task name 'a/b': {NAME}"),  # the run's own separator
    (Task, {"name": "x" * 201}, NAME),
    (Backoff, {"initial_s": -1.0}, "backoff -1.0 to 5.0 s: must be 0 <= initial <= cap, and finite"),
    (Backoff, {"initial_s": 6.0}, "backoff 6.0 to 5.0 s: must be 0 <= initial <= cap, and finite"),
    (Backoff, {"cap_s": INF}, "backoff 1.0 to inf s: must be 0 <= initial <= cap, and finite"),
    (Span, {"ended_at": 0.5}, "span s: times 1.0 to 0.5 are not in order"),
    (Span, {"parent": 2}, "span s: parent = 2: must be an earlier span than 2"),  # within itself
    (Span, {"kind": SpanKind.MODEL}, "span s: kind model does not fit its model or tool call"),
    (Span, {"model": CALL}, "span s: kind telemetry does not fit its model or tool call"),
    (Span, {"kind": SpanKind.TOOL, "model": CALL, "tool": TOOL}, "span s: kind tool does not fit its model or tool"),
    (Span, {"kind": SpanKind.TOOL}, "span s: kind tool does not fit its model or tool call"),
    (Span, {"kind": SpanKind.MESSAGE, "tool": TOOL}, "span s: kind message does not fit its model or tool call"),
    (ModelCall, {"prompt_ids": (1, -1)}, "model call: prompt_ids: token ids must not be negative"),
    (ModelCall, {"completion_ids": (-1,)}, "model call: completion_ids: token ids must not be negative"),
    (ModelCall, {"logprobs": (-1.0,)}, "model call: logprobs: 1 values for none completion ids"),
    (ModelCall, {"completion_ids": (1, 2), "logprobs": (-1.0,)}, "model call: logprobs: 1 values for 2 completion ids"),
    (ModelCall, {"completion_ids": (1,), "logprobs": (0.1,)}, "logprobs: must be finite and at most 0"),
    (ModelCall, {"completion_ids": (1,), "logprobs": (-INF,)}, "logprobs: must be finite and at most 0"),
    (ModelCall, {"completion_ids": (1, 2), "forced": (2,)}, "model call: forced: must be places in completion_ids"),
    (ModelCall, {"forced": (0,)}, "model call: forced: must be places in completion_ids"),
    (ModelCall, {"scrubbed": ((0, 1),)}, f"model call: scrubbed: (0, 1) {CUT} 0 ids"),
    (ModelCall, {"prompt_ids": (0,), "scrubbed": ((0, 0),)}, f"model call: scrubbed: (0, 0) {CUT} 1 ids"),
    (ModelCall, {"prompt_ids": (0, 0), "scrubbed": ((1, 2), (0, 1))}, f"model call: scrubbed: (0, 1) {CUT} 2 ids"),
    (ModelCall, {"prompt_ids": (0,), "scrubbed": ((0, 2),)}, f"model call: scrubbed: (0, 2) {CUT} 1 ids"),
    (ModelCall, {"prompt_ids": (0,), "scrubbed": ((0,),)}, "model call: scrubbed: (0,) is not a start and an end"),
    (ModelCall, {"prompt_ids": (0, 7), "scrubbed": ((0, 2),)}, "model call: scrubbed: the ids of (0, 2) must be 0"),
    # the model would be blamed for what it did not say
    (
        ModelCall,
        {"prompt_ids": (0,), "completion_ids": (0, 0), "forced": (0,), "scrubbed": ((0, 3),)},
        "model call: scrubbed: completion ids of (0, 3) must be forced",
    ),
    (Turn, {"index": 1, "decision": replace(SPAN, kind=SpanKind.TOOL, tool=TOOL)}, "turn 1: opens with a tool span"),
]


@pytest.mark.parametrize(
    ("cls", "changes", "says"), REFUSED, ids=[f"{cls.__name__}: {says}" for cls, _, says in REFUSED]
)
def test_what_could_not_have_happened_is_refused(cls: type, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        made(cls, **changes)
    assert says in str(refusal.value) and "\n" not in str(refusal.value)


EDGES: list[tuple[type, dict[str, Any]]] = [
    *((cls, {}) for cls in VALID),
    (Interval, {"low": 1.0}),
    (Scores, {"tasks": ("a",), "seeds": (1,), "values": ((0.0,),)}),
    (MetricComparison, {"p_value": 0.0, "pairs": 1}),
    (MetricComparison, {"p_value": 1.0}),
    (Verdict, {"outcome": Outcome.HOLD, "needs": 1}),
    (Decision, {"needs": 1}),
    (Decision, {"open": True}),
    (Episode, {"success": 0.0, "latency_s": 0.0, "tokens": 0}),
    (Trajectory, {"discount": 0.0}),
    (Trajectory, {"discount": 1.0}),
    (AdvantageBatch, {"value_targets": (1.0, 2.0)}),
    (Overrides, {"enabled": False, "update_interval_rollouts": 1, "max_rollouts_per_update": 2**53 - 1}),
    (Alert, {"cleared_at": 5.0}),
    (Experiment, {"arms": {"a": 1.0, "b": 0.0}}),
    (Experiment, {"arms": {"a": 0.1, "b": 0.2, "c": 0.7}}),
    (ServedRequest, {"latency_s": 0.0, "success": 1.0, "reward": -3.0, "safety_cost": 0.0}),
    *((Condition, {"operator": operator}) for operator in OPERATORS),
    (Judgement, {"grade": None, "score": None, "why": "unsure"}),  # who abstains
    (Label, {"holds": None}),
    (Checkpoint, {"artifact": Artifact(uri="blobs/1", sha256=SHA), "mean_reward": -1.0}),
    (RewardTerm, {"turn": 0}),
    (Task, {"name": "x" * 200, "max_attempts": 1, "timeout_s": 0.001}),
    (Task, {"name": "a b", "priority": -1}),
    (Span, {"seq": 1, "ended_at": 1.0}),
    (Span, {"parent": 1}),
    (ModelCall, {"prompt_ids": (0,), "completion_ids": (0,), "logprobs": (0.0,)}),
    (ModelCall, {"prompt_ids": (1, 0), "scrubbed": ((1, 2),)}),
    (ModelCall, {"prompt_ids": (7, 0), "completion_ids": (0, 9), "forced": (0,), "scrubbed": ((1, 3),)}),
]


def test_what_is_just_possible_is_allowed_and_kept_as_it_is() -> None:
    for cls, changes in EDGES:
        record = made(cls, **changes)
        assert {name: getattr(record, name) for name in changes} == changes, cls


DEFAULTS: list[tuple[type, dict[str, Any]]] = [  # what was not measured is missing, and not zero
    (Interval, {"level": 0.95}),
    (Episode, {"success": None, "latency_s": None, "tokens": None}),
    (Evidence, {"verdict": None, "golden": None, "audit": None, "samples": None, "comparisons": {}, "bands": {}}),
    (ServedRequest, dict.fromkeys(("latency_s", "tokens", "success", "reward", "safety_cost")) | {"error": False}),
    (Flag, {"enabled": False, "killed": False, "rules": (), "requires": {}, "expires_at": None}),
    (FlagRule, {"conditions": (), "percent": 100.0}),
    (Trajectory, {"discount": 0.99}),
    (AdvantageBatch, {"value_targets": ()}),
    (Reward, {"terms": {}, "feedback": "", "turns": None}),
]


def test_what_is_left_out_has_its_default() -> None:
    for cls, defaults in DEFAULTS:
        assert {name: getattr(made(cls), name) for name in defaults} == defaults, cls
    assert Features() == ALL_ON and Features.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert [{getattr(some, f.name) for f in fields(Features)} for some in (ALL_ON, ALL_OFF)] == [{True}, {False}]


BAD_STEPS: list[tuple[Callable[[], Any], str]] = [
    (lambda: advance(NAN, 0), f"advanced step: reward = nan: {FINITE}"),
    (lambda: begin(0).act("a", logprob=-INF), f"begun step: logprob = -inf: {FINITE}"),
    (lambda: begin(0).act("a", value=NAN), f"begun step: value = nan: {FINITE}"),
    (
        lambda: Step(kind=StepKind.BEGUN, observation=0, reward=1.0),
        "reward = 1.0: every step has one but the begun one",
    ),
    (lambda: Step(kind=StepKind.TERMINATED, observation=0), "reward = None: every step has one but the begun one"),
    (lambda: terminate(1.0, 0).act("a"), "terminated step: has an action, but the episode ended there"),
    (lambda: truncate(1.0, 0).act("a"), "truncated step: has an action, but the episode ended there"),
    (lambda: terminate(1.0, 0).valued(0.5), "value = 0.5: nothing follows, so it is 0 and not estimated"),
    (lambda: begin(0).act(None), "begun step: None is not an action; name doing nothing, say 'wait'"),
    (lambda: replace(begin(0), logprob=-1.0), "begun step: has a logprob or a span, but no action"),
    (lambda: replace(begin(0), span=1), "begun step: has a logprob or a span, but no action"),
    (lambda: begin(0).act("a").act("b"), "begun step: has its action already: 'a'"),
    (lambda: begin(0).act("a", span=0), "begun step: span = 0: must be at least 1"),
]


@pytest.mark.parametrize(("build", "says"), BAD_STEPS, ids=[says for _, says in BAD_STEPS])
def test_a_step_that_means_nothing_is_refused(build: Callable[[], Any], says: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        build()
    assert says in str(refusal.value)


# What records tell of themselves --------------------------------------------------------------------------------------


def test_model_and_tool_calls_are_the_decisions() -> None:
    assert {SpanKind.MODEL, SpanKind.TOOL} == DECISIONS
    assert MODEL.is_decision and replace(SPAN, kind=SpanKind.TOOL, tool=TOOL).is_decision
    assert not replace(SPAN, kind=SpanKind.MESSAGE).is_decision and not SPAN.is_decision


@pytest.mark.parametrize(
    ("spent", "overspent", "expected"),
    [
        (0, 0, (0, 2000, False)),
        (1999, 0, (1999, 1, False)),
        (2000, 0, (2000, 0, True)),
        (2600, 600, (2000, 0, True)),  # too much was spent, and is not taken back
    ],
)
def test_what_is_left_of_a_budget_and_what_was_wasted(
    spent: int, overspent: int, expected: tuple[int, int, bool]
) -> None:
    budget: ThinkingBudget = made(ThinkingBudget, spent=spent, overspent=overspent)
    assert (budget.consumed, budget.left, budget.is_exhausted) == expected and budget.tier is Tier.STANDARD
    assert (budget.waste(has_failed=True), budget.waste(has_failed=False)) == (spent, overspent)


def test_a_total_is_the_weighted_sum_and_nothing_measured_is_not_zero() -> None:
    signals = (made(RewardTerm, value=2.0, weight=0.5), made(RewardTerm, value=-1.0, turn=0))
    assert RewardBreakdown(signals=signals).total == 0.0
    assert RewardBreakdown(signals=()).total is None


def test_numbers_of_a_reward_become_plain_ones_whatever_library_they_come_from() -> None:
    reward = Reward(np.float32(0.5), {"tone": 1, "flag": np.bool_(True)}, "too long", {0: {"looked_up": True}})
    assert (reward.value, reward.terms, reward.turns) == (0.5, {"tone": 1.0, "flag": 1.0}, {0: {"looked_up": 1.0}})
    assert type(reward.value) is float and type(reward.terms["flag"]) is float


def test_an_item_is_its_content_and_not_its_author() -> None:
    first = made(EvalItem, detail={"b": 1, "a": 2})
    assert first.sha256 == made(EvalItem, detail={"a": 2, "b": 1}, author="ann").sha256
    others = [replace(first, **{name: "x"}) for name in ("task", "output", "context", "expected")]
    assert len({one.sha256 for one in (first, *others, replace(first, detail={}))}) == 6
    assert made(EvalItem, task="ab", output="c").sha256 != made(EvalItem, task="a", output="bc").sha256


def test_a_judgement_is_known_by_what_was_asked_of_whom() -> None:
    first = made(Judgement)
    assert first.id == made(Judgement, grade=Grade.NO, score=0.0, at=9.0, why="else").id
    changes = {"judge": "n", "criterion": "d@1", "prompt": "b" * 64, "artefact": "b" * 64}
    assert len({first.id, *(made(Judgement, **{name: value}).id for name, value in changes.items())}) == 5


@pytest.mark.parametrize(
    ("expires_at", "revoked_at", "now", "is_good"),
    [
        (None, None, 1e12, True),  # for good
        (20.0, None, 19.9, True),
        (20.0, None, 20.0, False),  # at its end it is over
        (None, 15.0, 14.0, False),  # revoked is revoked, whatever the clock says
    ],
)
def test_a_token_is_good_until_it_expires_or_is_revoked(
    expires_at: float | None, revoked_at: float | None, now: float, is_good: bool
) -> None:
    assert made(Token, expires_at=expires_at, revoked_at=revoked_at).is_good(now) is is_good
