"""The published records of learning from the rollouts of any run: trajectories, and the advantages of their turns.

Advantages that a run learnt with are read from its record. Of a run that learnt nothing they are what attempts at one
task are worth beside one another, as GRPO compares them by default.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.contracts.errors import BadRecord
from holdfast.contracts.experience import AdvantageBatch, Group, Trajectory
from holdfast.contracts.records import decode, encode, schema
from holdfast.learn.batch import SkipReason
from holdfast.store.store import Store

LeftOut = Counter[str]  # rollouts without a record, by reason
Records = Callable[[Store, str, LeftOut], Iterator[Any]]


def trajectories(store: Store, run: str, left_out: LeftOut) -> Iterator[Trajectory]:
    """Yields the trajectory of each decided and scored rollout, in order."""
    for rollout in store.views.every(run):
        made = _trajectory(store, rollout.id)
        if isinstance(made, Trajectory):
            yield made
        else:
            left_out[made] += 1


def advantages(store: Store, run: str, left_out: LeftOut) -> Iterator[AdvantageBatch]:
    """Yields the advantages that the run learnt with, step by step; else those of its groups."""
    kept = [step.body["advantages"]["blob"] for step in store.steps.of_run(run) if "advantages" in step.body]
    for blob in kept:
        yield from (decode(AdvantageBatch, one) for one in json.loads(store.blobs.get(blob)))
    if kept:
        return
    from holdfast.learn.grpo import Grpo, group_advantages

    groups: dict[str, list[str]] = {}
    for rollout in store.views.every(run):
        groups.setdefault(str(rollout.metadata.get("group", rollout.name)), []).append(rollout.id)
    for task, ids in groups.items():
        made = [_trajectory(store, one) for one in ids]
        found = tuple(trajectory for trajectory in made if isinstance(trajectory, Trajectory))
        left_out.update(str(reason) for reason in made if not isinstance(reason, Trajectory))
        if len(found) > 1:
            yield from group_advantages(Group(task=task, trajectories=found), Grpo())
        else:
            left_out[SkipReason.ALONE] += len(found)


RECORDS: Mapping[str, tuple[str, type, Records]] = {  # what they are called, the published name, type and source
    "trajectories": ("trajectory", Trajectory, trajectories),
    "advantages": ("advantage-batch", AdvantageBatch, advantages),
}


def lines(store: Store, run: str, kind: str, left_out: LeftOut) -> Iterator[str]:
    """Writes each record as a line of JSON and checks it against its published schema."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

    name, cls, records = RECORDS[kind]
    validator = Draft202012Validator(schema(cls))
    for record in records(store, run, left_out):
        data = encode(record)
        if (error := next(validator.iter_errors(data), None)) is not None:
            raise BadRecord(f"{name} {record.id}", why=f"{error.json_path} {error.message}"[:300])
        yield json.dumps(data, allow_nan=False, separators=(",", ":")) + "\n"


def _trajectory(store: Store, rollout: str) -> Trajectory | SkipReason:
    """The trajectory of a rollout, or why there is none."""
    experience = store.experiences.get(rollout)
    if experience is None:
        return SkipReason.FAULT
    if not any(span.is_decision for span in experience.spans):
        return SkipReason.NO_TRAJECTORY
    if experience.reward is None:
        return SkipReason.NO_REWARD
    try:
        return experience.trajectory()
    except BadRecord:
        return SkipReason.BAD_RECORD
