"""Suites of tool-use tasks: from a file or generated, as held-out tasks that versions are measured on, and replayed.

Each case is scored by its rubric, which its agent is not shown. How two versions are compared on them is
`pipeline.paired`'s business, and what a replay keeps is `pipeline.golden`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.collect.agent import Score
from holdfast.contracts.errors import BadInput
from holdfast.contracts.policy import Policy
from holdfast.contracts.reward import Signal
from holdfast.contracts.trace import Span
from holdfast.pipeline.golden import GREEDY, Replay, golden_spec
from holdfast.pipeline.paired import PairedEvaluation, paired_spec, policies_of, settled
from holdfast.pipeline.prove import HeldOut
from holdfast.pipeline.run import RunSpec
from holdfast.pipeline.runtime import Endpoints, Models, Runtime
from holdfast.pipeline.spec import connect_to
from holdfast.pipeline.versions import Version, policy_for
from holdfast.policies.engine import LocalEngine
from holdfast.policies.model import Model
from holdfast.prove.suite import Case, Suite, from_document, load, to_document
from holdfast.store.store import Store
from holdfast.workloads.tooluse import rubric
from holdfast.workloads.tooluse.agent import agent
from holdfast.workloads.tooluse.tasks import PER_SEED, SEEDS, from_input, generate, to_input

GENERATED = "tooluse"  # `tooluse:COUNT[:SEED]` names a suite of generated tasks
RUBRIC = {"task_completion": 0.9, "constraint_compliance": 0.1}
SAMPLING = {"temperature": 1.0, "max_tokens": 80}
MAX_TURNS = 5


def suite_of(source: str) -> Suite:
    """The suite in a file, or a generated one of COUNT held-out tasks: `tooluse:COUNT[:SEED]`."""
    suite = _generated(source) if is_generated(source) else load(Path(source))
    for place, case in enumerate(suite.cases):
        rubric.check(case.scoring_rubric, f"{source}: cases[{place}].scoring_rubric")
        try:
            from_input(case.given)
        except BadInput as error:
            raise BadInput(f"{source}: cases[{place}].input", why=f"{error.what} {error.why}") from None
    return suite


def is_generated(source: str) -> bool:
    return source.partition(":")[0] == GENERATED


def held_out(suite: Suite, **dials: Any) -> list[HeldOut]:
    """The cases as tasks. `dials` are of the sampling, and win over those that a case brings along."""
    return [_task(case, dials) for case in suite.cases]


def _task(case: Case, dials: Mapping[str, Any]) -> HeldOut:
    given = case.given
    sampling = {**SAMPLING, **(given.get("sampling") or {}), **dials}
    task = {"max_turns": MAX_TURNS, **given, "case": case.case_id, "sampling": sampling}
    return HeldOut(id=case.case_id, input=task, chance=f"{case.seed}/{case.case_id}")


def scorer(suite: Suite) -> Score:
    """By the rubric of each case, which its agent is not shown."""
    rubrics = {case.case_id: case.scoring_rubric for case in suite.cases}

    def score(task: Any, output: Any, spans: Sequence[Span]) -> tuple[Signal, ...]:
        return rubric.measured(rubrics[task["case"]], task, output, spans)

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
    suite = _kept(settings)
    made = evaluation_of(suite, settings["suite"].get("source"), **settled(settings))
    tasks = settings.get("tasks")
    if tasks is None:
        return made
    names: Any = tuple(settings["evidence"])
    kept = {"tasks": tasks, "evidence": settings["evidence"]}
    return replace(
        made, tasks=tuple(map(HeldOut.from_record, tasks)), suite=names, source={**made.source, **kept}
    )


def evaluation_spec(store: Store, evaluation: PairedEvaluation) -> RunSpec:
    policies = policies_of(store, evaluation)
    engine = _engine(policies, workers=evaluation.workers, seed=evaluation.seed)
    return paired_spec(evaluation, policies, Runtime(agent, scorer(_kept(evaluation.source)), engine))


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
    engine = _engine([policy], workers=replay.workers, seed=0, deterministic=True)
    return golden_spec(replay, policy, Runtime(agent, scorer(replay.suite), engine))


def _engine(policies: Sequence[Policy], *, workers: int, seed: int, deterministic: bool = False) -> Models:
    if not any(isinstance(one, Model) for one in policies):
        return Endpoints(connect_to)
    return LocalEngine(slots=workers, seed=seed, deterministic=deterministic, endpoint=connect_to)


def _generated(source: str) -> Suite:
    dials = source.split(":")[1:]
    if not 1 <= len(dials) <= 2 or not all(word.isdecimal() for word in dials):
        raise BadInput(f"suite {source}", why="is not tooluse:COUNT[:SEED]", remedy="for example tooluse:500")
    count, seed = int(dials[0]), int(dials[1]) if len(dials) > 1 else 0
    if not 1 <= count <= 10**5 or (seed + 1) * PER_SEED > len(SEEDS["test"]):
        raise BadInput(f"suite {source}", why="has from 1 to 100000 tasks, and a seed below 2 to the 32nd")
    cases = []
    for place, task in enumerate(generate("test", seed, count)):
        given = to_input(task)
        prompt, expected = given.pop("prompt"), given.pop("expected")
        name = f"{task.family}-{place:05d}"
        cases.append(
            Case(
                case_id=name,
                seed=place + 1,
                prompt=prompt,
                expected_outcome=expected,
                scoring_rubric=RUBRIC,
                input=given,
            )
        )
    return Suite(
        suite_id=f"{GENERATED}-{seed}",
        family="tool_use",
        description=f"The first {count} held-out tool-use tasks of seed {seed}.",
        cases=tuple(cases),
    )
