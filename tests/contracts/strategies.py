"""Valid records of every published kind, for the property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from holdfast.contracts.artifacts import Artifact
from holdfast.contracts.budget import (
    Assessment,
    BudgetEvent,
    BudgetEventKind,
    Mode,
    ThinkingBudget,
    Tier,
    Traits,
    Trigger,
)
from holdfast.contracts.commands import Alert, Command, Severity
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
    Trajectory,
    Triplet,
    advance,
    begin,
    terminate,
    truncate,
)
from holdfast.contracts.flag import OPERATORS, Condition, Flag, FlagRule
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
    Role,
)
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.release import Experiment, Exposure, PolicyKind, Release, ServedRequest, Stage
from holdfast.contracts.reward import MAX_TURN, RewardBreakdown, RewardTerm, Scoring
from holdfast.contracts.rollout import Attempt, AttemptState, Rollout, RolloutState, Split, Task
from holdfast.contracts.run import (
    DesiredState,
    LedgerEntry,
    ResourceVersion,
    RunRecord,
    RunState,
    SplitRewards,
    Status,
    WorkerRecord,
)
from holdfast.contracts.task import TaskItem
from holdfast.contracts.trace import ModelCall, Span, SpanEvent, SpanKind, ToolCall, Turn

text = st.text(max_size=8)
name = text.filter(str.strip)
finite = st.floats(allow_nan=False, allow_infinity=False)
reward = st.floats(-1e6, 1e6)
time = st.floats(0, 4e9)
count = st.integers(0, 2**63)
number = st.integers(1, 2**63)
level = st.floats(0, 1)
hexes = st.text("0123456789abcdef", min_size=64, max_size=64)
json = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
mapping = st.dictionaries(text, json, max_size=3)
message = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": text})


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def many(strategy: st.SearchStrategy[Any], least: int = 0, most: int = 3, **kwargs: Any) -> st.SearchStrategy[Any]:
    return st.lists(strategy, min_size=least, max_size=most, **kwargs).map(tuple)


@st.composite
def model_calls(draw: st.DrawFn) -> ModelCall:
    ids = draw(maybe(many(count)))
    scrubbed = draw(many(st.just(0), 1)) if ids is None else ()  # a prompt of which nothing is left
    return ModelCall(
        model=draw(text),
        messages=draw(many(message)),
        response=draw(message),
        finish_reason=draw(maybe(text)),
        prompt_tokens=draw(maybe(count)),
        completion_tokens=draw(maybe(count)),
        thinking_tokens=draw(maybe(count)),
        prompt_ids=scrubbed or draw(maybe(many(count))),
        completion_ids=ids,
        scrubbed=((0, len(scrubbed)),) if scrubbed else (),
        logprobs=None if ids is None else draw(maybe(many(st.floats(-1e6, 0), len(ids), len(ids)))),
        sampling=draw(mapping),
    )


tool_calls = st.builds(ToolCall, tool=text, arguments=mapping, result=json, error=maybe(text), call_id=maybe(text))
events = st.builds(SpanEvent, name=text, at=time, attributes=mapping)


@st.composite
def spans(draw: st.DrawFn, kinds: tuple[SpanKind, ...] = tuple(SpanKind)) -> Span:
    kind, seq, started_at = draw(st.sampled_from(kinds)), draw(number), draw(time)
    return Span(
        seq=seq,
        kind=kind,
        name=draw(text),
        started_at=started_at,
        ended_at=draw(maybe(st.floats(started_at, 5e9))),
        parent=draw(maybe(st.integers(1, seq - 1))) if seq > 1 else None,
        attributes=draw(mapping),
        events=draw(many(events)),
        model=draw(model_calls()) if kind is SpanKind.MODEL else None,
        tool=draw(tool_calls) if kind is SpanKind.TOOL else None,
        trace_id=draw(maybe(text)),
        span_id=draw(maybe(text)),
    )


@st.composite
def steps(draw: st.DrawFn, kinds: str = "begin advance terminate truncate") -> Step:
    kind, seen = draw(st.sampled_from(kinds.split())), draw(json)
    if kind == "begin":
        step = begin(seen)
    else:
        step = {"advance": advance, "terminate": terminate, "truncate": truncate}[kind](draw(reward), seen)
    if kind in ("begin", "advance"):
        action = json.filter(lambda action: action is not None)
        return step.act(draw(action), draw(maybe(finite)), draw(maybe(finite)), span=draw(maybe(number)))
    return step.valued(draw(finite)) if kind == "truncate" and draw(st.booleans()) else step


@st.composite
def trajectories(draw: st.DrawFn, task: str | None = None) -> Trajectory:
    last = st.builds(advance, reward, json) | steps("terminate truncate")
    return Trajectory(
        id=draw(name),
        rollout=draw(maybe(text)),
        attempt=draw(maybe(text)),
        task=draw(maybe(text)) if task is None else task,
        steps=(draw(steps("begin")), *draw(many(steps("advance"), most=2)), draw(last)),
        discount=draw(level),
        padding=draw(count),
        created_at=draw(time),
        metadata=draw(mapping),
    )


@st.composite
def groups(draw: st.DrawFn) -> Group:
    task = draw(text)
    return Group(task=task, trajectories=draw(many(trajectories(task), 1, 2, unique_by=lambda t: t.id)))


@st.composite
def advantage_batches(draw: st.DrawFn) -> AdvantageBatch:
    size = draw(st.integers(1, 3))
    column = many(finite, size, size)
    return AdvantageBatch(
        id=draw(name),
        trajectory=draw(name),
        advantages=draw(column),
        returns=draw(column),
        value_targets=draw(st.just(()) | column),
        normalized=draw(st.booleans()),
        created_at=draw(time),
        metadata=draw(mapping),
    )


@st.composite
def scores(draw: st.DrawFn) -> Scores:
    tasks, seeds = draw(many(text, 1, unique=True)), draw(many(st.integers(), 1, unique=True))
    rows = many(many(finite, len(seeds), len(seeds)), len(tasks), len(tasks))
    return Scores(version=draw(name), metric=draw(name), tasks=tasks, seeds=seeds, values=draw(rows))


signals = st.builds(
    RewardTerm,
    name=name,
    value=finite,
    weight=finite,
    source=name,
    turn=maybe(st.integers(0, MAX_TURN)),
    feedback=maybe(text),
)
scorings = st.builds(Scoring, run=text, name=text, scorers=mapping, who=text, at=time, rollouts=count, sha256=hexes)
intervals = st.builds(
    lambda ends, level: Interval(low=min(ends), high=max(ends), level=level),
    st.tuples(finite, finite),
    st.floats(0, 1, exclude_min=True, exclude_max=True),
)
verdicts = st.builds(Verdict, outcome=st.sampled_from([Outcome.PROMOTE, Outcome.REJECT]), reasons=many(name, 1))
holds = st.builds(Verdict, outcome=st.just(Outcome.HOLD), reasons=many(name, 1), needs=number)
commands = st.builds(
    Command, id=name.filter(str.isprintable), action=name, subject=name, who=name, why=name, at=time, args=mapping
)
alerts = st.builds(
    Alert,
    code=name,
    severity=st.sampled_from(Severity),
    message=name,
    at=time,
    run=maybe(text),
    cleared_at=maybe(st.floats(4e9, 5e9)),
    id=maybe(name),
    acknowledged_at=maybe(time),
    acknowledged_by=maybe(name),
)
tasks = st.builds(
    Task,
    name=name.filter(lambda text: text == text.strip() and "/" not in text),
    input=json,
    split=maybe(st.sampled_from(Split)),
    priority=st.integers(),
    max_attempts=number,
    timeout_s=maybe(st.floats(0, 1e9, exclude_min=True)),
    resources=maybe(count),
    metadata=mapping,
    **dict.fromkeys(["step", "version"], maybe(text)),
    max_faults=count,
)
task_items = st.builds(
    TaskItem,
    id=name.filter(lambda text: text == text.strip() and "/" not in text),
    input=json,
    expected=json,
    has_expected=st.booleans(),
    split=maybe(st.sampled_from(Split)),
    family=maybe(text),
    metadata=mapping,
)
rollouts = st.builds(
    Rollout,
    **dict.fromkeys(["id", "run", "name"], text),
    input=json,
    split=maybe(st.sampled_from(Split)),
    status=st.sampled_from(RolloutState),
    priority=st.integers(),
    **dict.fromkeys(["max_attempts", "attempt_count", "faults"], count),
    resources=maybe(count),
    metadata=mapping,
    **dict.fromkeys(["enqueued_at", "ready_at"], time),
    **dict.fromkeys(["timeout_s", "started_at", "ended_at", "reward"], maybe(finite)),
    **dict.fromkeys(["reason", "final_attempt", "step", "version", "outcome"], maybe(text)),
    **dict.fromkeys(["max_faults", "interruptions"], count),
)
attempts = st.builds(
    Attempt,
    **dict.fromkeys(["id", "rollout", "worker"], text),
    **dict.fromkeys(["number", "token"], count),
    status=st.sampled_from(AttemptState),
    **dict.fromkeys(["started_at", "beat_at", "lease_until"], time),
    **dict.fromkeys(["deadline", "ended_at"], maybe(time)),
    error=maybe(text),
)
runs = st.builds(
    RunRecord,
    **dict.fromkeys(["id", "project", "kind", "model_ref"], text),
    state=st.sampled_from(RunState),
    wanted=st.sampled_from(DesiredState),
    settings=mapping,
    queue_limit=maybe(count),
    **dict.fromkeys(["created_at", "beat_at"], time),
    ended_at=maybe(time),
    error=maybe(text),
)
statuses = st.builds(
    Status,
    **dict.fromkeys(["run_id", "project", "model_ref", "store_path"], text),
    run_state=st.sampled_from(RunState),
    **dict.fromkeys(["resources_id", "error"], maybe(text)),
    **dict.fromkeys(["updated_unix_ms", "total_rollouts", "succeeded", "failed", "cancelled"], count),
    **dict.fromkeys(["dead", "running", "waiting"], count),
    rewards=st.dictionaries(text, st.builds(SplitRewards, total=count, rewarded=count, mean_reward=maybe(finite))),
    elapsed_s=finite,
    outcomes=st.dictionaries(text, count),
)
workers = st.builds(
    WorkerRecord,
    **dict.fromkeys(["id", "host"], text),
    **dict.fromkeys(["pid", "slots"], count),
    **dict.fromkeys(["started_at", "beat_at"], time),
    stopped_at=maybe(time),
)
versions = st.builds(
    ResourceVersion, id=text, project=text, version=count, sha256=hexes, resources=mapping, created_at=time
)
entries = st.builds(
    LedgerEntry,
    **dict.fromkeys(["project", "kind", "who", "previous", "sha256"], text),
    seq=count,
    at=time,
    run=maybe(text),
    body=mapping,
)
checkpoints = st.builds(
    Checkpoint,
    **dict.fromkeys(["id", "algorithm", "policy_version"], name),
    **dict.fromkeys(["global_step", "episode_count"], count),
    mean_reward=maybe(finite),
    artifact=maybe(st.builds(Artifact, uri=name, sha256=hexes)),
    parent=maybe(name),
    created_at=time,
    metadata=mapping,
)

positive = st.floats(0, 1e9)
comparisons = st.builds(
    MetricComparison,
    **dict.fromkeys(["metric", "baseline", "candidate", "method"], name),
    difference=finite,
    interval=intervals,
    p_value=level,
    pairs=number,
    margin=positive,
)
reasons = many(st.builds(Reason, code=name, text=name), 1)
decisions = st.builds(Decision, open=st.booleans(), reasons=reasons)
closed = st.builds(Decision, open=st.just(False), reasons=reasons, needs=number)
episodes = st.builds(
    Episode,
    task=name,
    seed=st.integers(),
    reward=finite,
    safety_cost=positive,
    success=maybe(level),
    latency_s=maybe(positive),
    tokens=maybe(count),
    rollout=maybe(text),
)
bands = st.builds(
    Band,
    kind=text,
    within=st.booleans(),
    **dict.fromkeys(["p_value_spread", "delta_spread", "most_p_value_spread", "most_delta_spread"], positive),
    of=st.integers(2, 99),
)
findings = st.builds(Finding, name=text, severity=text, count=count, of=count, detail=text, blocks=st.booleans())


@st.composite
def evidence(draw: st.DrawFn) -> Evidence:
    baseline, candidate = draw(st.lists(name, min_size=2, max_size=2, unique=True))
    return Evidence(
        policy=draw(name),
        baseline=baseline,
        candidate=candidate,
        suite=draw(name),
        primary=draw(name),
        episodes=draw(count),
        comparisons=draw(st.dictionaries(text, comparisons, max_size=2)),
        verdict=draw(maybe(verdicts | holds)),
        bands=draw(st.dictionaries(text, bands, max_size=2)),
        missing=draw(maybe(st.dictionaries(text, count, max_size=2))),
        golden=draw(maybe(many(findings, most=2))),
        audit=draw(maybe(many(findings, most=2))),
        samples=draw(maybe(hexes)),
        manifest=draw(mapping),
    )


@st.composite
def releases(draw: st.DrawFn) -> Release:
    policy, n = draw(name), draw(number)
    return Release(
        id=f"{policy}@{n}",
        project=draw(text),
        policy=policy,
        number=n,
        kind=draw(st.sampled_from(PolicyKind)),
        source=draw(name),
        parent=draw(maybe(text)),
        stage=draw(st.sampled_from(Stage)),
        share=draw(st.integers(0, 100)),
        is_known_good=draw(st.booleans()),
        evidence=draw(maybe(hexes)),
        manifest=draw(mapping),
        created_at=draw(time),
        changed_at=draw(time),
    )


@st.composite
def trials(draw: st.DrawFn) -> Experiment:
    arms, share = draw(many(text, 2, 2, unique=True)), draw(st.integers(0, 100))
    return Experiment(
        name=draw(name),
        kind=draw(name),
        arms=dict(zip(arms, (share / 100, (100 - share) / 100), strict=True)),
        salt=draw(name),
        created_at=draw(time),
        ended_at=draw(maybe(time)),
        settings=draw(mapping),
    )


@st.composite
def flags(draw: st.DrawFn) -> Flag:
    called = draw(name.filter(lambda text: not any(c.isspace() for c in text)))
    value = draw(st.sampled_from([st.booleans(), text, st.integers(), finite, st.dictionaries(text, json, max_size=2)]))
    variants = draw(st.dictionaries(text, value, min_size=1, max_size=3))
    one = st.sampled_from(sorted(variants))
    conditions = st.builds(Condition, attribute=text, operator=st.sampled_from(OPERATORS), value=json)
    rules = st.builds(FlagRule, variant=one, conditions=many(conditions, most=2), percent=st.floats(0, 100))
    return Flag(
        name=called,
        variants=variants,
        off=draw(one),
        enabled=draw(st.booleans()),
        killed=draw(st.booleans()),
        rules=draw(many(rules, most=2)),
        requires=draw(st.dictionaries(text.filter(lambda other: other != called), text, max_size=2)),
        **{field: draw(text) for field in ("salt", "description", "owner")},
        expires_at=draw(maybe(time)),
        changed_at=draw(time),
    )


served = st.builds(
    ServedRequest,
    **dict.fromkeys(["id", "trial", "arm", "unit"], name),
    at=time,
    error=st.booleans(),
    latency_s=maybe(positive),
    tokens=maybe(count),
    success=maybe(level),
    reward=maybe(finite),
    safety_cost=maybe(positive),
)

tokens = st.integers(0, 10**6)
assessments = st.builds(
    Assessment,
    tier=st.sampled_from(Tier),
    confidence=level,
    reasons=many(text),
    traits=st.builds(Traits, **dict.fromkeys(["tool_count", "context_size", "step_count"], count)),
)


@st.composite
def budgets(draw: st.DrawFn) -> ThinkingBudget:
    ceiling, more, room = draw(st.tuples(tokens, tokens, tokens))
    spent = draw(tokens)
    return ThinkingBudget(
        attempt=draw(text),
        assessment=draw(assessments),
        ceiling=ceiling,
        allowed=ceiling + more,
        cap=ceiling + more + room,
        spent=spent,
        overspent=draw(st.integers(0, spent)),
        calls=draw(count),
        escalations=draw(count),
        escalated_at=draw(st.dictionaries(st.sampled_from([str(one) for one in Trigger]), time, max_size=2)),
        mode=draw(maybe(st.sampled_from(Mode))),
        events=draw(number),
        created_at=draw(time),
        changed_at=draw(time),
    )


budget_events = st.builds(
    BudgetEvent,
    attempt=text,
    seq=number,
    kind=st.sampled_from(BudgetEventKind),
    at=time,
    **dict.fromkeys(["tokens", "allowed", "spent", "overspent"], count),
    mode=maybe(st.sampled_from(Mode)),
    trigger=maybe(st.sampled_from(Trigger)),
    confidence=maybe(finite),
    why=text,
)

artefacts = st.builds(
    EvalItem,
    task=name,
    output=text,
    context=text,
    expected=maybe(text),
    author=text,
    detail=mapping,
)


@st.composite
def judgements(draw: st.DrawFn) -> Judgement:
    grade = draw(maybe(st.sampled_from(Grade)))
    return Judgement(
        judge=draw(name),
        criterion=draw(name),
        prompt=draw(hexes),
        artefact=draw(hexes),
        grade=grade,
        score=None if grade is None else draw(level),
        why=draw(text),
        tokens=draw(count),
        cost=draw(positive),
        latency_s=draw(positive),
        at=draw(time),
    )


@st.composite
def calibrations(draw: st.DrawFn) -> Calibration:
    points = draw(st.integers(0, 3))
    standing = draw(st.sampled_from(JudgeStatus))
    return Calibration(
        **{field: draw(name) for field in ("judge", "criterion")},
        **{field: draw(hexes) for field in ("prompt", "labels")},
        makers=draw(st.dictionaries(text, count, max_size=2)),
        n=draw(count),
        abstained=draw(count),
        xs=tuple(sorted(draw(st.lists(finite, min_size=points, max_size=points)))),
        ys=tuple(sorted(draw(st.lists(level, min_size=points, max_size=points)))),
        measures=draw(st.dictionaries(text, maybe(finite), max_size=2)),
        biases=draw(mapping),
        standing=standing,
        reasons=draw(many(text, 1)) if standing is JudgeStatus.DIAGNOSTIC else (),
        at=draw(time),
    )


labels = st.builds(
    Label,
    artefact=hexes,
    criterion=name,
    maker=st.sampled_from(Maker),
    who=name,
    version=number,
    holds=maybe(st.booleans()),
    why=text,
    at=time,
)
doubts = st.builds(ReviewRequest, artefact=hexes, criterion=name, reason=st.sampled_from(Doubtful), why=text, at=time)
appointments = st.builds(JudgeAssignment, policy=name, judge=name, role=st.sampled_from(Role), at=time)

RECORDS: dict[str, st.SearchStrategy[Any]] = {
    "task": tasks,
    "task-item": task_items,
    "rollout": rollouts,
    "attempt": attempts,
    "span": spans(),
    "model-call": model_calls(),
    "tool-call": tool_calls,
    "turn": st.builds(Turn, index=count, decision=spans((SpanKind.MODEL,)), effects=many(spans(), most=2)),
    "triplet": st.builds(Triplet, prompt=json, response=json, reward=maybe(finite)),
    "signal": signals,
    "sheet": st.builds(RewardBreakdown, signals=many(signals)),
    "scoring": scorings,
    "run": runs,
    "status": statuses,
    "resource-version": versions,
    "worker": workers,
    "ledger-entry": entries,
    "step": steps(),
    "trajectory": trajectories(),
    "group": groups(),
    "advantage-batch": advantage_batches(),
    "checkpoint": checkpoints,
    "scores": scores(),
    "interval": intervals,
    "comparison": comparisons,
    "verdict": verdicts | holds,
    "decision": decisions | closed,
    "episode": episodes,
    "band": bands,
    "finding": findings,
    "evidence": evidence(),
    "release": releases(),
    "trial": trials(),
    "exposure": st.builds(Exposure, trial=text, unit=text, arm=text, at=time),
    "served": served,
    "flag": flags(),
    "budget": budgets(),
    "budget-event": budget_events,
    "artefact": artefacts,
    "judgement": judgements(),
    "doubt": doubts,
    "label": labels,
    "calibration": calibrations(),
    "appointment": appointments,
    "command": commands,
    "alert": alerts,
}
