"""A way on for a candidate that is held: the same two versions on further tasks, and the gate is asked again.

The run that measures them continues the one before, so that the test goes on where it stood. Only the process that ran
the first one can do it: it has the agent and the scorers.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.api.inputs import described, task_set
from holdfast.api.results import Proof, Result
from holdfast.api.setup import Setup, drive_spec, run_spec, runtime_for
from holdfast.api.stored import Run, who
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Decision, Evidence
from holdfast.contracts.records import decode, loads
from holdfast.contracts.task import TaskItem, canonical
from holdfast.pipeline import improve as loop
from holdfast.pipeline.more import candidate_of, end_of, samples_of, unfinished_after
from holdfast.pipeline.paired import KIND, Continued, PairedEvaluation, compare, measured, policies_of
from holdfast.pipeline.promote import PromotionRequest, comparison_config_from, criteria_from, promote
from holdfast.pipeline.prove import HeldOut
from holdfast.pipeline.versions import resolve
from holdfast.store.store import Store


def prove_more(setup: Setup, spec: loop.Spec, result: Result, tasks: Any) -> Result:
    assert result.release is not None
    with setup.place.open() as store:
        evaluation = _evaluation(setup, spec, result, tasks, store)
        policies = policies_of(store, evaluation)
        files = store.files
    runtime = runtime_for(setup.agent, setup.score, policies, setup.base_url, setup.options, files)
    again = replace(setup, runtime=runtime, settings=evaluation.settings)
    made = run_spec(again, KIND, partial(compare, evaluation, policies), f"{result.release}, further tasks")
    return drive_spec(again, made, partial(_decided, setup, spec, result, evaluation)).wait()


def _evaluation(setup: Setup, spec: loop.Spec, result: Result, tasks: Any, store: Store) -> PairedEvaluation:
    assert result.release is not None
    last, unfinished = end_of(store, result.run.id, result.release)
    iteration = int(result.details["iteration"]) if last == result.run.id and "iteration" in result.details else None
    so_far = measured(store, last, iteration=iteration)
    evidence = loads(Evidence, store.blobs.get(str(result.details["evidence"])))
    kept = samples_of(store, store.releases.get(result.release)) or {}
    fresh = _fresh(setup, tasks, {one.task for one in so_far.before})
    name, version, sha256 = kept["suite"]
    suite = (name, version, loop.sha256_of([sha256, *(one.record() for one in fresh)]))
    options = setup.options
    source = {
        "api": setup.settings["api"],
        "root": result.run.id,
        "tasks": [one.record() for one in fresh],
        "seeds": list(spec.prove.seeds),
        "evidence": list(suite),
        "agent": setup.settings["agent"],
        "scorers": setup.settings["scorers"],
    }
    made = PairedEvaluation(
        tasks=tuple(fresh),
        seeds=tuple(spec.prove.seeds),
        suite=suite,
        baseline=resolve(store, evidence.baseline),
        candidate=resolve(store, evidence.candidate),
        how=comparison_config_from(kept["weighing"]),  # as it was judged: stricter where it was not the first try
        batch=spec.prove.batch,
        stop_early=True,
        least=spec.prove.least,
        seed=options["seed"],
        workers=options["workers"],
        timeout_s=options["timeout_s"],
        source=described(source),
        continues=Continued(run=last, iteration=iteration, planned=so_far.planned, looks=so_far.looks),
    )
    if unfinished is not None and store.whole(unfinished.settings) != json.loads(json.dumps(made.settings)):
        raise unfinished_after(last, unfinished, "finish it first, by the same call that began it")
    return made


def _fresh(setup: Setup, given: Any, done: set[str]) -> list[HeldOut]:
    """The tasks that nobody has measured yet. What was learnt from proves nothing."""
    offered: Sequence[TaskItem] = setup.tasks.held_out
    if given is not None:
        found = task_set(given)
        offered = found.held_out or found.train
    taught = {canonical(one.input) for one in setup.tasks.train}
    seen = {canonical(one.input) for one in setup.tasks.held_out if one.id in done}
    fresh = []
    for one in offered:
        text = canonical(one.input)
        if text in taught:
            raise BadInput(f"task {one.id}", why="is one that it learnt from", remedy="leave it out")
        if one.id in done or text in seen:
            continue
        seen.add(text)
        fresh.append(HeldOut(id=one.id, input=one.row()))
    if not fresh:
        remedy = "give others, as in result.prove(hf.tasks(…))"
        raise BadInput("tasks", why="all of them are measured already", remedy=remedy)
    return fresh


def _decided(
    setup: Setup, spec: loop.Spec, result: Result, evaluation: PairedEvaluation, store: Store, run: Run
) -> Result:
    """All that is measured by now, judged as it was judged before."""
    assert result.release is not None
    last = loads(Evidence, store.blobs.get(str(result.details["evidence"])))
    release = store.releases.get(result.release)
    kept = samples_of(store, release) or {}
    candidate = candidate_of(store, release, last, measured(store, run.id), run=run.id, suite=evaluation.suite)
    request = PromotionRequest(
        candidate=candidate,
        how=evaluation.how,
        criteria=criteria_from(kept["criteria"]),
        reports=store.reports,
        now=time.time(),
        to=spec.stage,
    )
    told = asyncio.run(promote(store, request, clock=time.time, who=who()))
    evidence = loads(Evidence, store.blobs.get(str(told["evidence"])))
    return Result(
        run,
        decode(Decision, told["decision"]),
        result.candidate,
        Proof(evidence, Path(told["proof"])),
        result.release,
        told,
        result.more,
    )
