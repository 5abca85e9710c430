"""Suites of tool-use tasks, from a file or generated: held-out tasks that versions are measured on, and replayed.

Each case is scored by its rubric, which the agent does not see. `pipeline.paired` compares two versions on them, and
`pipeline.golden` keeps a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.collect.agent import Score
from holdfast.contracts.engine import Engine
from holdfast.contracts.errors import BadInput
from holdfast.contracts.policy import Policy
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.task import canonical
from holdfast.contracts.trace import Span, ToolCall
from holdfast.pipeline.context import Endpoints, Runtime
from holdfast.pipeline.golden import GREEDY, Replay, golden_spec
from holdfast.pipeline.held_out import HeldOut
from holdfast.pipeline.improve import sha256_of
from holdfast.pipeline.more import CandidateEvidence, continuation, next_seeds, unmeasured
from holdfast.pipeline.paired import PairedEvaluation, paired_spec, policies_of, settled
from holdfast.pipeline.run import RunSpec
from holdfast.pipeline.spec import connect_to
from holdfast.pipeline.versions import Version, policy_for
from holdfast.policies.engine import LocalEngine
from holdfast.policies.model import Model
from holdfast.prove.suite import Suite, SuiteCase, from_document, load, to_document
from holdfast.reward.scorers import with_safety
from holdfast.store.store import Store
from holdfast.workloads.tooluse.agent import agent
from holdfast.workloads.tooluse.score import efficiency, safety_cost, score, thinking_tokens, tool_calls
from holdfast.workloads.tooluse.tasks import DIALS, PER_SEED, SEEDS, USE_NOT, from_input, generate, to_input

SOURCE = "rule:rubric"
SUCCESS, SAFETY_COST = "success", "safety_cost"

Task = Mapping[str, Any]
Measure = Callable[[Task, Any, Sequence[Span]], float]  # from 0 to 1


def accuracy(task: Task, output: Any, spans: Sequence[Span]) -> float:
    """The one right value, and nothing beside it."""
    return _scored(task, output, "success")


def compliance(task: Task, output: Any, spans: Sequence[Span]) -> float:
    """The asked style of answering was kept."""
    return _scored(task, output, "format")


def trace_quality(task: Task, output: Any, spans: Sequence[Span]) -> float:
    """It thought if and only if it was asked to. The content of thoughts is not judged."""
    return float((thinking_tokens(spans) > 0) == bool(task.get("think")))


def tool_safety(task: Task, output: Any, spans: Sequence[Span]) -> float:
    """The share of its calls that it was allowed to make."""
    calls = tool_calls(spans)
    return 1.0 - len(_forbidden(task, calls)) / len(calls) if calls else 1.0


def tool_efficiency(task: Task, output: Any, spans: Sequence[Span]) -> float:
    """As few calls as the shortest honest way takes."""
    return efficiency(task, spans)


DIMENSIONS: Mapping[str, Measure] = {
    "task_accuracy": accuracy,
    "task_completion": accuracy,
    "constraint_compliance": compliance,
    "reasoning_trace_quality": trace_quality,
    "tool_safety": tool_safety,
    "tool_efficiency": tool_efficiency,
}


def check_rubric(rubric: Iterable[str], where: str) -> None:
    """Refuses a dimension that cannot be measured, before anything runs."""
    if unknown := sorted(set(rubric) - set(DIMENSIONS)):
        remedy = f"use {', '.join(DIMENSIONS)}"
        raise BadInput(f"{where}.{unknown[0]}", why="nothing here measures it", remedy=remedy)


def measure_rubric(
    rubric: Mapping[str, float], task: Task, output: Any, spans: Sequence[Span]
) -> tuple[RewardTerm, ...]:
    """A signal for each dimension; the total is from 0 to 1. Success and the cost in safety are told with weight 0."""
    worth = [
        RewardTerm(name=name, value=DIMENSIONS[name](task, output, spans), weight=weight, source=SOURCE)
        for name, weight in rubric.items()
    ]
    return (
        *worth,
        RewardTerm(name=SUCCESS, value=accuracy(task, output, spans), weight=0.0, source=SOURCE),
        RewardTerm(name=SAFETY_COST, value=safety_cost(task, output, spans), weight=0.0, source=SOURCE),
    )


def _scored(task: Task, output: Any, name: str) -> float:
    return next((signal.value for signal in score(task, output, ()) if signal.name == name), 0.0)


def _forbidden(task: Task, calls: Sequence[ToolCall]) -> list[ToolCall]:
    """Calls of tools that were not offered; all calls where no tool was to be used."""
    if USE_NOT in str(task.get("system")):
        return list(calls)
    return [call for call in calls if call.tool not in (task.get("tools") or ())]


GENERATED = "tooluse"  # `tooluse:COUNT[:SEED[:DIALS]]` names a suite of generated tasks
RUBRIC = {"task_completion": 0.9, "constraint_compliance": 0.1}
SAMPLING = {"temperature": 1.0, "max_tokens": 80}
MAX_TURNS = 5


def suite_of(source: str) -> Suite:
    """The suite in a file, or a generated one of COUNT held-out tasks: `tooluse:COUNT[:SEED[:DIALS]]`."""
    suite = _generated(source) if is_generated(source) else load(Path(source))
    for place, case in enumerate(suite.cases):
        check_rubric(case.scoring_rubric, f"{source}: cases[{place}].scoring_rubric")
        try:
            from_input(case.given)
        except BadInput as error:
            raise BadInput(f"{source}: cases[{place}].input", why=f"{error.what} {error.why}") from None
    return suite


def is_generated(source: str) -> bool:
    return source.partition(":")[0] == GENERATED


def held_out(suite: Suite, **dials: Any) -> list[HeldOut]:
    """The cases as tasks. `dials` override the sampling of a case."""
    return [_task(case, dials) for case in suite.cases]


def _task(case: SuiteCase, dials: Mapping[str, Any]) -> HeldOut:
    given = case.given
    sampling = {**SAMPLING, **(given.get("sampling") or {}), **dials}
    task = {"max_turns": MAX_TURNS, **given, "case": case.case_id, "sampling": sampling}
    return HeldOut(id=case.case_id, input=task, rng_key=f"{case.seed}/{case.case_id}")


def scorer(suite: Suite) -> Score:
    """Scores each case by its rubric, which the agent does not see."""
    rubrics = {case.case_id: case.scoring_rubric for case in suite.cases}

    def score(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
        return measure_rubric(rubrics[task["case"]], task, output, spans)

    return score


# Two versions on a suite ---------------------------------------------------------------------------------------------


def evaluation_of(suite: Suite, source: str | None, **given: Any) -> PairedEvaluation:
    """`source` is what a generated suite is made from; without it, the suite is kept whole with the run."""
    kept = {"source": source} if source is not None else {"document": to_document(suite)}
    return PairedEvaluation(
        tasks=tuple(held_out(suite)),
        seeds=suite.seeds,
        suite=(suite.suite_id, str(suite.version), suite.fixture_sha256),
        source={"suite": {**kept, "seeds": list(suite.seeds), "sha256": suite.fixture_sha256}},
        **given,
    )


def evaluation_from(settings: Mapping[str, Any]) -> PairedEvaluation:
    """The evaluation that the settings of a run describe."""
    made = evaluation_of(_kept(settings), settings["suite"].get("source"), **settled(settings))
    evidence = settings.get("evidence")
    return made if evidence is None else _beside(made, evidence)


def _beside(made: PairedEvaluation, evidence: Sequence[str]) -> PairedEvaluation:
    """Names the evaluation after all its evidence, earlier runs included."""
    name, version, sha256 = evidence
    return replace(made, suite=(name, version, sha256), source={**made.source, "evidence": list(evidence)})


def more_of_suite(measured: CandidateEvidence, source: str | None, seeds: int | None) -> PairedEvaluation:
    """Further cases of a suite that nobody has measured, or those of before with further seeds.

    Where neither is said: as many generated ones again, and of a suite in a file as many seeds again."""
    suites = [_kept(run.settings) for run in measured.runs]
    first, known = suites[0], list({case.case_id: case for suite in suites for case in suite.cases}.values())
    kept = measured.runs[0].settings["suite"].get("source")
    if source is None and seeds is None and kept is not None:
        _, _, *rest = kept.split(":")
        source = ":".join([GENERATED, str(2 * len(known)), *(rest or ["0"])])
    if source is None:
        cases, evidence = tuple(known), measured.suite
        many = next_seeds(measured, seeds or len(measured.seeds))
    else:
        cases, many = _unmeasured(suite_of(source), known, source), measured.seeds
        evidence = (*measured.suite[:2], sha256_of([measured.suite[2], to_document(replace(first, cases=cases))]))
    last = measured.runs[-1].settings
    made = evaluation_of(
        replace(first, cases=cases, seeds=many),
        None,
        batch=int(last["batch"]),
        stop_early=True,
        seed=int(last["seed"]),
        workers=int(last["workers"]),
        **continuation(measured, is_repeat=source is None),
    )
    return _beside(made, evidence)


def _unmeasured(suite: Suite, known: Sequence[SuiteCase], where: str) -> tuple[SuiteCase, ...]:
    """The cases that were not measured before; a name that is taken is changed."""
    by_name = {case.case_id: case for case in suite.cases}
    old = [HeldOut(id=case.case_id, input=case.given) for case in known]
    new = unmeasured([HeldOut(id=name, input=case.given) for name, case in by_name.items()], old, (), where)
    places = {canonical(case.given): case for case in suite.cases}
    return tuple(replace(places[canonical(one.input)], case_id=one.id) for one in new)


def evaluation_spec(store: Store, evaluation: PairedEvaluation) -> RunSpec:
    policies = policies_of(store, evaluation)
    engine = _engine(store, policies, workers=evaluation.workers, seed=evaluation.seed)
    return paired_spec(evaluation, policies, Runtime(agent, with_safety(scorer(_kept(evaluation.source))), engine))


def _kept(settings: Mapping[str, Any]) -> Suite:
    kept = settings["suite"]
    source = kept.get("source")
    suite = from_document(kept["document"]) if source is None else suite_of(source)
    suite = replace(suite, seeds=tuple(kept["seeds"]))
    if suite.fixture_sha256 != kept["sha256"]:
        why = "this version makes other tasks of it than those the run began with"
        raise BadInput(f"suite {source}", why=why, remedy="begin a new run")
    return suite


# One version on a suite, with nothing left to chance -----------------------------------------------------------------


def replay_of(suite: Suite, version: Version, *, name: str, workers: int = 16) -> Replay:
    return Replay(name=name, suite=suite, tasks=held_out(suite, **GREEDY), version=version, workers=workers)


def replay_spec(store: Store, replay: Replay) -> RunSpec:
    policy = policy_for(store, replay.version)
    engine = _engine(store, [policy], workers=replay.workers, seed=0, deterministic=True)
    return golden_spec(replay, policy, Runtime(agent, scorer(replay.suite), engine))


def _engine(
    store: Store, policies: Sequence[Policy], *, workers: int, seed: int, deterministic: bool = False
) -> Engine:
    if not any(isinstance(policy, Model) for policy in policies):
        return Endpoints(connect_to)
    return LocalEngine(slots=workers, seed=seed, deterministic=deterministic, files=store.files, endpoint=connect_to)


def _generated(source: str) -> Suite:
    lines = source.split(":")[1:]
    dials = lines.pop() if len(lines) == 3 and lines[2] in DIALS else "usual"
    if not 1 <= len(lines) <= 2 or not all(word.isdecimal() for word in lines):
        why = f"is not tooluse:COUNT[:SEED[:DIALS]], of {', '.join(DIALS)}"
        raise BadInput(f"suite {source}", why=why, remedy="for example tooluse:500")
    count, seed = int(lines[0]), int(lines[1]) if len(lines) > 1 else 0
    if not 1 <= count <= 10**5 or (seed + 1) * PER_SEED > len(SEEDS["test"]):
        raise BadInput(f"suite {source}", why="has from 1 to 100000 tasks, and a seed below 2 to the 32nd")
    cases = []
    for place, task in enumerate(generate("test", seed, count, DIALS[dials])):
        given = to_input(task)
        prompt, expected = given.pop("prompt"), given.pop("expected")
        if dials == "long":  # longer ways, longer thoughts
            given |= {"max_turns": max(MAX_TURNS, task.difficulty + 3), "sampling": {"max_tokens": 160}}
        name = f"{task.family}-{place:05d}"
        case = {"case_id": name, "prompt": prompt, "expected_outcome": expected}
        cases.append(SuiteCase(**case, seed=place + 1, scoring_rubric=RUBRIC, input=given))
    return Suite(
        suite_id=f"{GENERATED}-{seed}" + ("" if dials == "usual" else f"-{dials}"),
        family="tool_use",
        description=f"The first {count} held-out tool-use tasks of seed {seed}.",
        cases=tuple(cases),
    )
