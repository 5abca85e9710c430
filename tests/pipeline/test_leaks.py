"""What a candidate learnt from is compared with what it is proved on, along its line of checkpoints and runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.release import PolicyKind
from holdfast.contracts.rollout import Split, Task
from holdfast.pipeline.held_out import HeldOut
from holdfast.pipeline.leaks import leak_finding, refuse_leaks, refuse_taught
from holdfast.store.store import Store

NOW = 1_700_000_000.0
ASKED = "How many of the letters that Ann wrote to her sister in 1904 were never answered by her?"
CHANGED = "how many of the letters that Ann wrote to her sister, in 1904, were never answered by her"
OTHER = "Which of the three bridges over the river was the first one to be closed after the flood of 1910?"
HELD = [HeldOut(id="letters", input={"prompt": ASKED, "expected": "7"}), HeldOut(id="bridge", input={"prompt": OTHER})]


def test_held_out_tasks_among_those_to_be_learnt_from_are_refused_by_name() -> None:
    with pytest.raises(BadInput, match=r"1 held-out tasks: .*letters = optimize\[1\]"):
        refuse_leaks([{"prompt": "What is 2 + 2?"}, {"prompt": CHANGED}], HELD, "optimize")
    refuse_leaks([{"prompt": CHANGED.replace("1904", "1905")}], HELD, "optimize")  # another task


async def made(store: Store, kind: str, settings: dict[str, Any], parent: str | None = None) -> tuple[str, str]:
    """A run and the checkpoint that it left."""
    run = await store.runs.begin(kind=kind, model_ref="m", settings=settings, salt="ab12", who="ann", now=NOW)
    name = f"{run.id}-3-abcdef01"
    checkpoint = Checkpoint(
        id=name, algorithm=kind, policy_version=name, global_step=1, episode_count=1, parent=parent, created_at=NOW
    )
    await store.checkpoints.add(checkpoint, run.id, now=NOW)
    return run.id, name


async def test_a_release_is_asked_what_its_whole_line_learnt(store: Store) -> None:
    practised, first = await made(store, "improve", {})
    tasks = [("a", CHANGED, Split.TRAIN), ("b", OTHER, Split.VAL)]
    asked = [Task(name=name, input={"prompt": text}, split=split) for name, text, split in tasks]
    await store.queue.enqueue(practised, asked, now=NOW)
    later, second = await made(store, "improve", {"again": True}, parent=first)
    release = await store.releases.add(
        policy="p", kind=PolicyKind.WEIGHTS, source=f"checkpoint:{second}", manifest={"run": later}, who="ann", now=NOW
    )
    found = leak_finding(store, release, {one.id: one.input for one in HELD})
    assert (found.count, found.of, found.blocks, found.severity) == (1, 2, True, "error")
    assert found.detail == f"letters (in {practised})"
    with pytest.raises(BadInput, match="the model has learnt them: letters"):
        refuse_taught(store, later, second, HELD)
    refuse_taught(store, later, second, HELD[1:])


async def test_what_examples_taught_counts_and_what_is_not_kept_is_told(store: Store) -> None:
    taught, checkpoint = await made(store, "sft", {"source": {"path": "x.jsonl"}})
    release = await store.releases.add(
        policy="p", kind=PolicyKind.WEIGHTS, source=f"checkpoint:{checkpoint}", manifest={}, who="ann", now=NOW
    )
    found = leak_finding(store, release, {one.id: one.input for one in HELD})
    assert found.count == 0 and found.severity == "warning" and "is not kept" in found.detail
    texts = store.blobs.put(json.dumps([f"{CHANGED}\nSeven of them."]).encode(), now=NOW)
    await store.steps.add(taught, "prepare", {"texts": texts}, function="prepare", now=NOW)
    known = leak_finding(store, release, {one.id: one.input for one in HELD})
    assert (known.count, known.severity) == (1, "error") and "letters" in known.detail


async def test_what_a_reward_model_learnt_counts_for_whoever_it_scores(store: Store, tmp_path: Path) -> None:
    taught, judge = await made(store, "reward_model", {"source": {"path": "pairs.jsonl"}})
    texts = store.blobs.put(json.dumps([f"{CHANGED}\nSeven of them."]).encode(), now=NOW)
    await store.steps.add(taught, "prepare", {"texts": texts}, function="prepare", now=NOW)
    scorers = ["exact", {"scorer": "judge", "model": str(tmp_path / "checkpoints" / judge), "weight": 0.2}]
    run, checkpoint = await made(store, "improve", {"scorers": scorers})
    with pytest.raises(BadInput, match=rf"the reward model has learnt them: letters \(in {taught}\)"):
        refuse_taught(store, run, None, HELD)
    refuse_taught(store, run, None, HELD[1:])
    release = await store.releases.add(
        policy="p", kind=PolicyKind.WEIGHTS, source=f"checkpoint:{checkpoint}", manifest={}, who="ann", now=NOW
    )
    found = leak_finding(store, release, {one.id: one.input for one in HELD})
    assert (found.count, found.severity, found.detail) == (1, "error", f"letters (in {taught})")


async def test_a_reward_model_of_another_store_is_named(store: Store, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    _, checkpoint = await made(store, "improve", {"scorers": {"with": [{"made": str(tmp_path)}]}})
    release = await store.releases.add(
        policy="p", kind=PolicyKind.WEIGHTS, source=f"checkpoint:{checkpoint}", manifest={}, who="ann", now=NOW
    )
    found = leak_finding(store, release, {one.id: one.input for one in HELD})
    assert (found.count, found.severity, found.detail) == (0, "warning", f"what {tmp_path} learnt from is not kept")
