"""Whether what a candidate learnt from holds tasks that it is proved on: by its line of checkpoints and runs.

Texts are compared by `contracts.similar`: a copy is found though punctuation, case or a few words were changed. What a
run learnt from is its rollouts for training, its examples, or the rollouts of the run that it was taught; and what the
reward models learnt from that scored it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.contracts.errors import BadInput, HoldfastError, NotFound
from holdfast.contracts.evidence import Finding
from holdfast.contracts.release import Release
from holdfast.contracts.rollout import Split
from holdfast.contracts.similar import leaks
from holdfast.contracts.task import leaked_tasks, task_texts
from holdfast.pipeline.held_out import HeldOut
from holdfast.store.store import Store

NAME = "proof_task_leakage"
SHOWN = 5
TAUGHT = ("sft", "dpo", "reward_model")  # kinds of runs that learn from examples


def refuse_leaks(taught: Sequence[Any], held_out: Sequence[HeldOut], where: str) -> None:
    """BadInput with the names of held-out tasks that are among those to be learnt from."""
    if found := leaked_tasks(taught, [one.input for one in held_out]):
        pairs = ", ".join(f"{held_out[place].id} = {where}[{min(at)}]" for place, at in list(found.items())[:SHOWN])
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        why = f"the same input, or nearly the same, is learnt from and held out: {pairs}{more}"
        raise BadInput(f"{len(found)} held-out tasks", why=why, remedy="take them out of one of the two")


def refuse_taught(store: Store, run: str, checkpoint: str | None, held_out: Sequence[HeldOut]) -> None:
    """BadInput where the weights to begin with, or a reward model that scores the run, learnt held-out tasks before."""
    tasks = {one.id: one.input for one in held_out}
    for runs, who in ((_runs_of(store, checkpoint), "model"), (_scored_by(store, run), "reward model")):
        if (finding := _finding(store, runs, tasks)).count:
            why, remedy = f"the {who} has learnt them: {finding.detail}", f"hold out other tasks, or take another {who}"
            raise BadInput(f"{finding.count} held-out tasks", why=why, remedy=remedy)


def leak_finding(store: Store, release: Release, tasks: Mapping[str, Any]) -> Finding:
    """Counts the tasks that the release learnt from, for the gate, which such a finding closes."""
    checkpoint = release.manifest.get("checkpoint")
    if checkpoint is None and release.source.startswith("checkpoint:"):
        checkpoint = release.source.partition(":")[2]
    own = release.manifest.get("run")
    return _finding(store, [*_runs_of(store, checkpoint), *([str(own)] if own else [])], tasks)


def _runs_of(store: Store, checkpoint: str | None) -> list[str]:
    """The runs that led to a checkpoint; their names begin its own and those that it grew from."""
    try:
        line = [] if checkpoint is None else store.checkpoints.lineage(checkpoint)
    except HoldfastError:  # pruned: what is left of it says nothing
        line = []
    return [checkpoint.id.rpartition("-")[0].rpartition("-")[0] for checkpoint in line]


def _scored_by(store: Store, run: str) -> list[str]:
    """The runs behind the reward models among a run's scorers, which are named by the folders of their checkpoints; a
    folder that this store knows nothing of by itself."""
    try:
        scorers = store.runs.get(run).settings.get("scorers")
    except NotFound:
        return []
    found: list[str] = []
    for text in dict.fromkeys(_texts(scorers)):
        runs = _runs_of(store, Path(text).name)
        found += runs or ([text] if (Path(text) / "manifest.json").is_file() else [])
    return found


def _texts(record: Any) -> Iterator[str]:
    if isinstance(record, str):
        yield record
    elif isinstance(record, Mapping | list | tuple):
        for one in record.values() if isinstance(record, Mapping) else record:
            yield from _texts(one)


def _finding(store: Store, runs: Iterable[str], tasks: Mapping[str, Any]) -> Finding:
    names, inputs = list(tasks), list(tasks.values())
    asked = [task_texts(one)[0] for one in inputs]
    found: dict[str, str] = {}
    unknown: list[str] = []
    learnt = list(dict.fromkeys(runs))
    for run in dict.fromkeys([*learnt, *(judge for one in learnt for judge in _scored_by(store, one))]):
        practised, texts, is_known = _taught(store, run)
        unknown += [] if is_known else [run]
        found |= {names[place]: run for place in leaked_tasks(practised, inputs)}
        found |= {names[place]: run for place in leaks(texts, asked)} if texts else {}
    shown = ", ".join(f"{name} (in {run})" for name, run in list(found.items())[:SHOWN])
    lacking = f"what {', '.join(unknown)} learnt from is not kept" if unknown else ""
    detail = "; ".join(part for part in (shown, lacking) if part)
    severity = "error" if found or not unknown else "warning"
    return Finding(name=NAME, severity=severity, count=len(found), of=len(names), detail=detail)


def _taught(store: Store, run: str) -> tuple[list[Any], list[str], bool]:
    """The tasks that a run practised, the texts that it was taught, and whether that is all."""
    try:
        record = store.runs.get(run)
    except NotFound:
        return [], [], False
    if record.kind not in TAUGHT:
        return list(_practised(store, run)), [], True
    source = record.settings.get("source") or {}
    if source.get("run"):
        return list(_practised(store, str(source["run"]), every=True)), [], True
    step = store.steps.get(run, "prepare")
    kept = None if step is None else step.body.get("texts")
    return [], [] if kept is None else json.loads(store.blobs.get(str(kept))), kept is not None


def _practised(store: Store, run: str, *, every: bool = False) -> Iterator[Any]:
    """Yields each practised task once, however often it was tried."""
    seen: set[str] = set()
    for rollout in store.views.every(run):
        if every or rollout.split in (Split.TRAIN, None):
            text = json.dumps(rollout.input, sort_keys=True, default=str)
            if text not in seen:
                seen.add(text)
                yield rollout.input
