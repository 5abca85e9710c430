"""A sound store is called sound, and each kind of damage is found and named."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.artifacts import Artifact
from holdfast.contracts.release import PolicyKind
from holdfast.contracts.rollout import AttemptState, RolloutState
from holdfast.contracts.run import RunState
from holdfast.store.check import MOST, check
from holdfast.store.store import Store, open_store
from tests.conftest import Clock, Files
from tests.store.scene import AT_ONCE, JUDGED, Scene, begin, checkpoint, judged, ordered, serving, signal, span
from tests.store.tamper import damage


def problems(store: Store, **how: Any) -> dict[str, list[str]]:
    return {part.name: list(part.problems) for part in check(store, **how) if part.problems}


@pytest.fixture
def lived(scene: Scene) -> Scene:
    """One rollout in each state, and some with a history."""
    for state in sorted(RolloutState, key=lambda state: state is RolloutState.QUEUING):  # last: else it is claimed next
        scene.brought_to(state, str(state))
    scene.enqueue("late", max_attempts=1, timeout_s=1.0, priority=1)
    scene.finish(scene.claim(), AttemptState.TIMEOUT)
    scene.enqueue("tried", max_attempts=3, priority=1)
    claim = scene.claim()
    scene.store.traces.add(claim.attempt, [span(1), span(2)], now=scene.clock.now).result()
    scene.finish(claim, AttemptState.FAULT, backoff=AT_ONCE)
    claim = scene.claim()
    scene.store.traces.score(claim.attempt, [signal()], now=scene.clock.now).result()
    scene.finish(claim, AttemptState.SUCCEEDED, reward=1.0)
    scene.requeue("failed")
    scene.store.blobs.put(b"bytes", now=1.0)
    (file := scene.store.folder / "checkpoints/first/weights-1.safetensors").parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    saved = Artifact(uri="checkpoints/first", sha256=WEIGHTS)
    scene.store.checkpoints.add(checkpoint("root", artifact=saved), now=1.0)
    scene.store.checkpoints.add(checkpoint("leaf", parent="root"), scene.run, now=1.0)
    serving(scene.store, "checkpoint:leaf")
    judged(scene.store)
    ordered(scene.store)
    for step in (1, 2):
        scene.store.steps.add(scene.run, f"{step}/learn", {"loss": 0.5}, function="f", now=1.0).result()
    scene.store.scorings.add(scene.run, "again", {}, [(f"{scene.run}/tried", [signal()])], who="t", now=1.0)
    scene.store.runs.end(begin(scene.store, scene.clock, salt="b"), RunState.COMPLETED, who="t", now=2.0).result()
    return scene


@pytest.mark.parametrize("quick", [False, True])
def test_a_store_that_has_lived_is_sound(lived: Scene, quick: bool) -> None:
    assert problems(lived.store, quick=quick) == {}


def test_every_part_is_looked_at(store: Store) -> None:
    names = ["runs", "leases", "rollouts", "attempts", "spans", "signals", "budgets", "steps"]
    names += [
        "scorings",
        "checkpoints",
        "releases",
        "trials",
        "labels",
        "guards",
        "sources",
        "arms",
        "flags",
        "judgements",
        "orders",
        "recorded",
    ]
    names += ["scored", "recount", "ledger", "blobs", "weights"]
    if store.db.engine.name == "sqlite":
        names = ["file", "references", *names]
    assert [part.name for part in check(store)] == names


def of(name: str) -> str:
    return f"(SELECT key FROM rollouts WHERE name = '{name}')"


def tried(name: str) -> str:
    return f"(SELECT key FROM attempts WHERE rollout = {of(name)})"


ALSO = {
    "leases": {"attempts"},
    "steps": {"references", "recorded"},
    "trials": {"references"},
    "releases": {"sources", "recount"},
    "sources": {"recount"},
}
WAITING = ("1 judgements", "1 doubts", "1 labels")
WEIGHTS = hashlib.sha256(b"weights").hexdigest()
BROKEN_CHAIN = "compare with an exported copy; decisions after that place are not proven"


@pytest.mark.parametrize(
    ("statement", "part", "expected"),
    [
        (
            "UPDATE runs SET ended_at = NULL WHERE state = 'completed'",
            "runs",
            ["run run-2-b: state completed, wanted running and its end do not fit together"],
        ),
        (
            "UPDATE runs SET wanted = 'sleeping' WHERE state = 'running'",
            "runs",
            ["run run-1-a: state running, wanted sleeping and its end do not fit together"],
        ),
        (
            f"UPDATE attempts SET status = 'fault', ended_at = 1 WHERE rollout = {of('running')}",
            "leases",
            ["rollout run-1-a/running: is running with 0 running attempts, not 1"],
        ),
        (
            f"UPDATE attempts SET status = 'running', ended_at = NULL WHERE rollout = {of('dead')}",
            "leases",
            ["rollout run-1-a/dead: is dead, yet its attempt 1 is running"],
        ),
        (
            "UPDATE rollouts SET status = 'lost' WHERE name = 'queuing'",
            "rollouts",
            ["rollout run-1-a/queuing: has the unknown status 'lost'"],
        ),
        (
            "UPDATE rollouts SET ended_at = NULL WHERE name = 'cancelled'",
            "rollouts",
            ["rollout run-1-a/cancelled: is cancelled, and its time of ending says otherwise"],
        ),
        (
            "UPDATE rollouts SET final = NULL WHERE name = 'succeeded'",
            "rollouts",
            ["rollout run-1-a/succeeded: is succeeded, but no succeeded attempt of its own decided it"],
        ),
        # ran out of time, and is no success
        (
            "UPDATE rollouts SET status = 'succeeded' WHERE name = 'late'",
            "rollouts",
            ["rollout run-1-a/late: is succeeded, but no succeeded attempt of its own decided it"],
        ),
        # a fault of ours never decides
        (
            f"UPDATE attempts SET status = 'fault' WHERE rollout = {of('late')}",
            "rollouts",
            ["rollout run-1-a/late: is failed, but no failed attempt of its own decided it"],
        ),
        # the attempt of another rollout
        (
            f"UPDATE rollouts SET final = {tried('succeeded')} WHERE name = 'tried'",
            "rollouts",
            ["rollout run-1-a/tried: is succeeded, but no succeeded attempt of its own decided it"],
        ),
        (
            f"UPDATE rollouts SET final = {tried('dead')} WHERE name = 'dead'",
            "rollouts",
            ["rollout run-1-a/dead: is dead, yet names a deciding attempt"],
        ),
        (
            "UPDATE rollouts SET resources = 7 WHERE name = 'queuing'",
            "rollouts",
            ["rollout run-1-a/queuing: names resources-7, which is not there"],
        ),
        (
            f"UPDATE attempts SET number = 3 WHERE number = 2 AND rollout = {of('tried')}",
            "attempts",
            ["rollout run-1-a/tried: has 2 attempts, the last is number 3, and says 2"],
        ),
        (
            "UPDATE rollouts SET attempt_count = 1 WHERE name = 'queuing'",
            "attempts",
            ["rollout run-1-a/queuing: has 0 attempts, the last is number 0, and says 1"],
        ),
        (
            f"UPDATE attempts SET ended_at = NULL WHERE rollout = {of('dead')}",
            "attempts",
            ["rollout run-1-a/dead: attempt 1 is 'fault', and its time of ending says otherwise"],
        ),
        ("UPDATE spans SET attempt = 99", "spans", ["attempt 99: is not there, but has 2 spans"]),
        ("UPDATE signals SET attempt = 98", "signals", ["attempt 98: is not there, but has 1 signals"]),
        ("UPDATE steps SET run = 97", "steps", ["run 97: is not there, but has 2 steps"]),
        ("DELETE FROM steps WHERE step = 1", "steps", ["run run-1-a: step 1 is missing"]),
        ("UPDATE steps SET step = 5 WHERE step = 2", "steps", ["run run-1-a: steps 2 to 4 are missing"]),
        (
            "UPDATE checkpoints SET parent = 'gone' WHERE id = 'leaf'",
            "checkpoints",
            ["checkpoint leaf: its parent gone is not there"],
        ),
        (
            "UPDATE releases SET share = 50",
            "releases",
            ["release sprout@1: live with 50 % and weights do not fit together"],
        ),
        (
            "UPDATE releases SET kind = 'dream', evidence = NULL",
            "releases",
            ["release sprout@1: live with 100 % and dream do not fit together"],
        ),
        (
            "UPDATE releases SET evidence = 'abcdefabcdefabcdef'",
            "releases",
            ["release sprout@1: its evidence abcdefabcdef is not there"],
        ),
        (
            "UPDATE releases SET source = 'checkpoint:gone'",
            "sources",
            ["release sprout@1: its source checkpoint:gone is not there"],
        ),
        (
            "UPDATE releases SET source = 'resources:7'",
            "sources",
            ["release sprout@1: its source resources:7 is not there"],
        ),
        (
            "UPDATE releases SET parent = 'sprout@9'",
            "sources",
            ["release sprout@1: its parent sprout@9 is not there"],
        ),
        ("DELETE FROM artefacts", "labels", [f"artefact {JUDGED}: is not there, but has {n}" for n in WAITING]),
        (
            "UPDATE labels SET version = 3",
            "labels",
            [f"label of {JUDGED} on correctness@1 by ann: version 3 is the last of 1"],
        ),
        (
            "UPDATE artefacts SET body = replace(body, '2 + 2', '2 + 3')",
            "judgements",
            [f"artefact {JUDGED}: is not what it was when it was kept"],
        ),
        (
            "UPDATE calibrations SET judge = 'n'",
            "judgements",
            ["calibration of n on correctness@1: its record is of m on correctness@1"],
        ),
        ("UPDATE exposures SET trial = 99", "trials", ["trial 99: is not there, but has 1 exposures"]),
        ("UPDATE served SET trial = 98", "trials", ["trial 98: is not there, but served 2 requests"]),
        (
            "UPDATE served SET project = 'other' WHERE id = 'r1'",
            "trials",
            ["request r1: of project other, its trial t of default"],
        ),
        (
            "UPDATE exposures SET arm = 'blue'",
            "arms",
            ["trial t: 1 units were given 'blue', which is not one of its arms"],
        ),
        (
            "UPDATE served SET arm = 'blue' WHERE id = 'r2'",
            "arms",
            ["trial t: 1 requests were answered by 'blue', which is not one of its arms"],
        ),
        ("UPDATE flags SET name = 'gamma'", "flags", ["flag gamma: its record is of beta at 1.0"]),
        ("UPDATE commands SET id = 'c9'", "orders", ["order c9: is not the one that the ledger has"]),
        ("UPDATE commands SET answer = '{}'", "orders", ["order c1: is not the one that the ledger has"]),
        (
            "UPDATE ledger SET who = 'nobody' WHERE seq = 2",
            "ledger",
            [f"ledger: entry 2 was changed after it was written; {BROKEN_CHAIN}"],
        ),
    ],
)
def test_damage_is_found_and_named(lived: Scene, statement: str, part: str, expected: list[str]) -> None:
    damage(lived.store, statement)
    found = problems(lived.store)
    assert found[part] == expected
    assert set(found) <= {part} | ALSO.get(part, set())  # one cause, found twice


@pytest.mark.parametrize("quick", [False, True])
def test_weights_that_are_gone_or_other_ones_are_found(lived: Scene, quick: bool) -> None:
    folder = lived.store.folder / "checkpoints/first"
    said = {"weights": [f"checkpoint root: its weights are not in {folder}"]}
    (folder / "weights-1.safetensors").write_bytes(b"others")
    assert problems(lived.store, quick=quick) == ({} if quick else said)  # quickly, nothing is read
    (folder / "weights-1.safetensors").unlink()
    assert problems(lived.store, quick=quick) == said


def test_a_blob_that_rotted_or_went_is_found(store: Store) -> None:
    for data in (b"one", b"two"):
        store.blobs.put(data, now=1.0)
    rotten, gone = sorted(path for path in store.blobs.folder.rglob("*") if path.is_file())
    rotten.write_bytes(b"else")
    gone.unlink()
    found = problems(store)["blobs"]
    assert found == [
        f"blob {rotten}: its content does not match its name; restore it from a copy",
        f"blob {gone.parent.name}{gone.name[:10]}: no file {gone}; restore it from a copy",
    ]


def test_two_live_releases_of_one_policy_are_found(store: Store) -> None:
    serving(store)
    add = store.releases.add(policy="sprout", kind=PolicyKind.PROMPT, source="shelf:b", who="t", now=1.0)
    add.result()
    damage(store, "DROP INDEX ux_releases_live", "UPDATE releases SET stage = 'live', share = 100")
    assert problems(store) == {
        "releases": ["policy sprout: 2 releases are live at once"],
        "guards": ["index ux_releases_live: is not there"],
        "recount": [
            "release sprout@2: stage live by its row, stage candidate by the ledger",
            "release sprout@2: share 100 by its row, share 0 by the ledger",
        ],
    }


def test_a_flag_or_a_trial_that_cannot_be_read_is_found(store: Store) -> None:
    serving(store)
    damage(store, "UPDATE flags SET body = '{}'", "UPDATE trials SET arms = '[]'")
    found = problems(store)
    assert set(found) == {"arms", "flags"}
    assert found["flags"][0].startswith("a stored flag: cannot be read: ")
    assert found["arms"][0].startswith("a stored trial: cannot be read: ")


def test_references_to_nothing_are_found_in_a_file(files: Files, clock: Clock) -> None:
    with open_store(files.fresh()) as store:
        scene = Scene(store, clock, begin(store, clock))
        scene.enqueue("t")
        damage(store, "DELETE FROM runs")
        assert problems(store)["references"] == ["rollouts 1: refers to a row of runs that is not there"]


def test_many_problems_of_one_kind_are_cut_short(scene: Scene) -> None:
    scene.enqueue(*(f"t{n}" for n in range(MOST + 5)))
    damage(scene.store, "UPDATE rollouts SET ended_at = 1")
    found = problems(scene.store)["rollouts"]
    assert len(found) == MOST + 1
    assert found[-1] == "… and more of the same kind: only the first 20 are listed"


def torn(path: Path, keep: Callable[[int], bool]) -> None:
    """Overwrite pages with noise, all but those to keep."""
    data, noise = bytearray(path.read_bytes()), random.Random(1)
    for page in range(len(data) // 4096):
        if not keep(page):
            data[page * 4096 : (page + 1) * 4096] = noise.randbytes(4096)
    path.write_bytes(data)


def test_a_torn_file_is_a_finding_and_the_rest_is_still_looked_at(files: Files, clock: Clock) -> None:
    path = Path(files.fresh())
    with open_store(path) as store:
        scene = Scene(store, clock, begin(store, clock))
        scene.enqueue(*(f"t{n}" for n in range(300)), input="x" * 200)
    pages = path.stat().st_size // 4096
    torn(path, lambda page: page < pages - 20)  # the schema lies at the front, the rollouts at the back
    with open_store(path) as store:
        found = problems(store)
    assert found["file"]
    assert all("\n" not in problem for part in found.values() for problem in part)
    assert "signals" not in found
