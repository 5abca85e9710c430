"""Stores that earlier code wrote stay good: they open, are sound, tell what they told, go on and can be taken back.

How they were written is in `fixtures/stores/README.md`. What is asserted here was true when they were written: ids,
counts, hashes, decisions. How the code below gets there may change, and no sentence that is printed matters.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.operate.auth import digest
from holdfast.store.store import Store, open_store
from tests.cli.conftest import Answer, Cli
from tests.conftest import Databases
from tests.postgres import binary

STORES = Path(__file__).parent / "fixtures" / "stores"
AGENTS = ("support.py", "letters.py")
OPEN = {"queuing", "requeuing", "running"}


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a store held when it was written."""

    name: str
    entries: int  # in the ledger
    head: str  # hash of the last of them
    runs: Mapping[str, tuple[str, str, int]]  # kind, state, rollouts
    stages: Mapping[str, str]  # of its versions


OPTIMIZE = Known(
    name="optimize",
    entries=4,
    head="a8c69fb61292f0b1938181800d61ad64b26901ee9dd7c97dfa0fe47a9cde2a9e",
    runs={"run-1-ef43": ("optimize", "completed", 13), "run-2-7941": ("optimize", "running", 14)},
    stages={},
)
QUICKSTART = Known(
    name="quickstart",
    entries=11,
    head="c359f377c81a2ca8067504ac04a81cc86850491dcd845059c5d5a561e8b63027",
    runs={"run-1-aa64": ("quickstart", "completed", 140)},
    stages={"run-1-aa64@1": "live", "run-1-aa64@2": "candidate"},
)
PRACTICE = Known(
    name="improve-practice",
    entries=2,
    head="9907c60f6ca7f8f79c5159e7d9e97d776a6bc890ddfaeef9cfa34e8d503a2c34",
    runs={"run-1-f08c": ("improve", "running", 48)},
    stages={},
)
PROOF = Known(
    name="improve-proof",
    entries=4,
    head="277fe05cd3e98f3f2ee64b4caa501b560ae57e53758a99150b97aa1c58320d86",
    runs={"run-1-9dff": ("improve", "running", 72)},
    stages={},
)
LIVE = Known(
    name="live",
    entries=29,
    head="86b77453cef18d37a3f7ac8d2b22be5875ff6c88cd45060a2e3bffcd320024a4",
    runs={
        "run-1-5f09": ("prove", "completed", 400),
        "run-2-e3b9": ("optimize", "completed", 12),
        "run-3-ad27": ("prove", "completed", 96),
    },
    stages={"tools@1": "retired", "tools@2": "live", "tools@3": "candidate"},
)
POSTGRES = Known(
    name="postgres",
    entries=11,
    head="33f97731e0a57a7b52e67cedd263996972f1e1c343a5f4e4787b5891c1b44006",
    runs={
        "run-1-3193": ("prove", "completed", 400),
        "run-2-acc4": ("optimize", "completed", 13),
        "run-3-9d86": ("optimize", "running", 14),
    },
    stages={"tools@1": "retired", "tools@2": "live"},
)
ALL = [OPTIMIZE, QUICKSTART, PRACTICE, PROOF, LIVE, POSTGRES]
FIRST_STEP = "d26f643e4b4e3f57c6557ee2c5b4f8d203f51a20f3f67bf1983390256b4e11a0"  # weights after one step of practice
SECOND_STEP = "1d94048a56cb78c8112613fa3a0e6aee0560735998088eb6edebb19c07d64af8"
WARMED_UP = "6883737880f4b1cdd020dd072a77ec4ad176b4166c5fdc67637b19cdd9e04e4a"
PRACTISED = "567ebe5eb28b14723ab7966398239e32d0cbb70f2ebeec5b62e05749f4336ebb"
TOKEN = "hf_2s4QG3W0cmT1vijiUKEVpb-h9GRrEIYTRG4EzD5OB6s"  # what was shown when tok-1 of the live store was made
ON = {"user-3", "user-7", "user-8"}  # of twelve, who has the feature that a quarter of all has
CONTROL = {f"user-{n}" for n in (0, 3, 5, 9, 11)}  # the other seven of twelve have the treatment


@dataclass(frozen=True)
class Old:
    """A store of then in the hands of today's commands, in a folder of its own."""

    cli: Cli
    url: str

    def __call__(self, *words: object) -> Answer:
        return self.cli(*words, "--store", self.url)

    def says(self, *words: object) -> str:
        ran = self(*words)
        assert ran.code == 0, f"{words}: {ran.out}{ran.err}"
        return ran.out

    def json(self, *words: object) -> Any:
        ran = self(*words, "--json")
        assert ran.code == 0, f"{words}: {ran.out}{ran.err}"
        return ran.json

    def open(self) -> Store:
        return open_store(self.url)

    def rollouts(self, run: str) -> dict[str, dict[str, Any]]:
        found = self.json("rollouts", run, "--limit", 1000)
        return {one["name"]: {key: one[key] for key in one if key not in ASKED_BY} for one in found}

    def stages(self) -> dict[str, str]:
        return {one["id"]: one["stage"] for one in self.json("release", "list")}


ASKED_BY = ("step", "version")  # which step asks for a rollout: one that is resumed takes in what is there
Unpack = Callable[[Known], Old]


@pytest.fixture
def unpack(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Unpack:
    """Opens an old store as its user does after an upgrade: in its folder, migrated first."""
    monkeypatch.setenv("LOGNAME", "ann")
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "path", [*sys.path])  # agents are looked for in the current folder

    def unpacked(known: Known) -> Old:
        folder = tmp_path / "moved" / known.name  # not where it was written
        with tarfile.open(STORES / f"{known.name}.tar.xz") as packed:
            packed.extractall(folder, filter="data")
        for agent in AGENTS:
            shutil.copy(STORES / agent, folder)
        monkeypatch.chdir(folder)
        url = "store.sqlite"
        if known is POSTGRES:
            databases: Databases = request.getfixturevalue("databases")
            url = databases.blank()
            load(url)
        old = Old(Cli(), url)
        old.says("store", "migrate")
        return old

    return unpacked


def load(url: str) -> None:
    dump = lzma.decompress((STORES / "postgres.sql.xz").read_bytes())
    command = [binary("psql"), "--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", url]
    subprocess.run(command, input=dump, check=True, capture_output=True)


def finished(rollouts: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: one for name, one in rollouts.items() if one["status"] not in OPEN}


def successes(old: Old, run: str) -> Counter[str]:
    """How often each rollout was brought to its end with an answer."""
    found: Counter[str] = Counter()
    with old.open() as store:
        for one in store.views.rollouts(run, most=1000):
            states = [str(attempt.status) for attempt in store.views.attempts(one.id)]
            found[one.name] = states.count("succeeded")
            if one.final_attempt is not None:
                assert [attempt.id for attempt in store.views.attempts(one.id)][-1] == one.final_attempt
    return found


def checkpoints(old: Old, run: str) -> list[tuple[str, str, str | None]]:
    """Of the run, in their order: id, hash, parent; what lies on the disk has that hash."""
    with old.open() as store:
        made = store.checkpoints.of_run(run)
    found = []
    for one in made:
        assert one.artifact is not None
        (weights,) = Path(one.artifact.uri).glob("*.safetensors")
        assert hashlib.sha256(weights.read_bytes()).hexdigest() == one.artifact.sha256
        found.append((one.id, one.artifact.sha256, one.parent))
    return found


def is_explained(old: Old, version: str, *, is_open: bool) -> dict[str, Any]:
    """The decision of then, computed once more from the samples of then, is the same one."""
    told: dict[str, Any] = old.json("release", "explain", version)
    assert told["agrees"] is True
    assert told["decision"]["open"] is told["recomputed"]["open"] is is_open
    return told


@pytest.mark.parametrize("known", ALL, ids=lambda known: known.name)
def test_an_old_store_is_migrated_is_sound_and_tells_what_it_holds(unpack: Unpack, known: Known) -> None:
    old = unpack(known)
    assert old.json("store", "check")["ok"] is True
    assert {one["id"]: (one["kind"], one["state"]) for one in old.json("runs")} == {
        run: (kind, state) for run, (kind, state, _) in known.runs.items()
    }
    listed = old.says("runs")
    for run, (_, _, rollouts) in known.runs.items():
        assert run in listed
        assert len(old.rollouts(run)) == rollouts
        assert run in old.says("rollouts", run, "--limit", 5)
    entries = old.json("ledger", "--limit", 1000)
    assert entries[known.entries - 1]["sha256"] == known.head
    assert [one["seq"] for one in entries] == list(range(1, len(entries) + 1))
    assert set(known.runs) <= {one["run"] for one in entries}
    assert old.stages() == known.stages
    assert all(version in old.says("release", "list") for version in known.stages)


@pytest.mark.parametrize(("known", "run"), [(OPTIMIZE, "run-1-ef43"), (POSTGRES, "run-2-acc4")], ids=["sqlite", "pg"])
def test_rollouts_of_then_keep_their_outcomes_spans_and_resources(unpack: Unpack, known: Known, run: str) -> None:
    old = unpack(known)
    found = old.rollouts(run)
    right = {"train-1", "train-2", "train-3", "train-4", "train-5", "val-1"}
    wrong = {"train-6", "train-7", "train-8", "val-2"}
    assert {name for name, one in found.items() if one["reward"] == 1.0} == right
    assert {name for name, one in found.items() if one["status"] == "succeeded"} == right | wrong
    assert all(found[name]["reward"] == 0.0 for name in wrong)
    for name in ("train-9", "train-10"):  # the agent raised, at each of two tries
        assert (found[name]["status"], found[name]["attempt_count"]) == ("failed", 2)
        assert "KeyError" in found[name]["reason"]
    assert (found["val-3"]["status"], found["val-3"]["attempt_count"]) == ("dead", 2)  # it never answered
    spans = old.json("spans", f"{run}/train-1")
    assert [one["tool"]["result"] for one in spans if one["kind"] == "tool"] == ["12"]
    with old.open() as store:
        assert store.versions.get(1).resources["system_prompt"] == "Answer with the number alone."
        assert {one.resources for one in store.views.rollouts(run, most=100)} == {1}


KILLED = [
    (OPTIMIZE, "run-2-7941", {"succeeded": 4, "requeuing": 1, "running": 3, "queuing": 6}),
    (POSTGRES, "run-3-9d86", {"succeeded": 4, "failed": 1, "running": 3, "queuing": 6}),
]


@pytest.mark.parametrize(("known", "run", "states"), KILLED, ids=["sqlite", "pg"])
def test_a_run_that_was_killed_then_is_resumed_now_to_its_end(
    unpack: Unpack, known: Known, run: str, states: Mapping[str, int]
) -> None:
    old = unpack(known)
    before = old.rollouts(run)
    assert Counter(one["status"] for one in before.values()) == states
    old.says("optimize", "--resume", run)
    after = old.rollouts(run)
    assert set(after) == set(before)  # nothing is lost, and nothing is there that nobody asked for
    assert finished(after) == after
    done = finished(before)
    assert {name: after[name] for name in done} == done  # nor was anything run again
    right = {f"train-{n}" for n in (1, 2, 3, 6, 7, 8, 9, 10, 11, 12)} | {"val-1"}
    assert {name for name, one in after.items() if one["reward"] == 1.0} == right
    counts = successes(old, run)
    assert {name for name, times in counts.items() if times == 1} == right | {"train-4", "val-2"}  # and two wrong ones
    assert max(counts.values()) == 1
    assert {one["id"]: one["state"] for one in old.json("runs")}[run] == "completed"
    assert old.json("store", "check")["ok"] is True
    old("optimize", "--resume", run)
    assert old.rollouts(run) == after  # it has come to its end


def ends_with_a_decision(old: Old, run: str, made: str) -> None:
    """Six tasks prove nothing: the version it began with is live, and the candidate is held."""
    assert {one["id"]: one["state"] for one in old.json("runs")} == {run: "completed"}
    assert finished(found := old.rollouts(run)) == found
    assert max(successes(old, run).values()) == 1
    assert old.stages() == {"letters@1": "live", "letters@2": "candidate"}
    told = is_explained(old, "letters@2", is_open=False)
    assert told["release"]["source"] == f"checkpoint:{made}"
    assert old.json("store", "check")["ok"] is True


def test_practice_that_was_killed_in_its_second_step_goes_on_from_the_first_to_a_decision(unpack: Unpack) -> None:
    run, first = "run-1-f08c", "run-1-f08c-1-d26f643e"
    old = unpack(PRACTICE)
    before = finished(old.rollouts(run))
    assert len(before) == 30  # 24 of the first step, which is on record, and six of the second
    assert checkpoints(old, run) == [(first, FIRST_STEP, None)]
    old.says("improve", "--resume", run)
    after = old.rollouts(run)
    assert {name: after[name] for name in before} == before
    kept, made = checkpoints(old, run)  # had the first step been run again, there would be another
    assert kept == (first, FIRST_STEP, None)
    assert made[2] == first and made[1] != FIRST_STEP
    ends_with_a_decision(old, run, made[0])


def test_a_proof_that_was_killed_in_its_midst_is_brought_to_a_decision_about_the_same_weights(unpack: Unpack) -> None:
    run = "run-1-9dff"
    made = [
        ("run-1-9dff-1-d26f643e", FIRST_STEP, None),
        ("run-1-9dff-2-1d94048a", SECOND_STEP, "run-1-9dff-1-d26f643e"),
    ]
    old = unpack(PROOF)
    before = finished(old.rollouts(run))
    assert len(before) == 66  # two steps of 24, twelve of what is live, six of the candidate
    assert checkpoints(old, run) == made
    old.says("improve", "--resume", run)
    after = old.rollouts(run)
    assert {name: after[name] for name in before} == before
    assert sum(one["split"] == "train" for one in after.values()) == 48  # no step was run again
    assert checkpoints(old, run) == made
    ends_with_a_decision(old, run, made[-1][0])


def test_a_quickstart_of_then_has_its_checkpoints_its_decision_and_its_reports(unpack: Unpack) -> None:
    run = "run-1-aa64"
    old = unpack(QUICKSTART)
    assert sum(one["reward"] for one in old.rollouts(run).values()) == pytest.approx(4.35)
    assert checkpoints(old, run) == [
        ("run-1-aa64-2-68837378", WARMED_UP, None),
        ("run-1-aa64-4-567ebe5e", PRACTISED, "run-1-aa64-2-68837378"),
    ]
    told = is_explained(old, f"{run}@2", is_open=False)
    assert told["release"]["source"] == "checkpoint:run-1-aa64-4-567ebe5e"
    assert Path(told["proof"]).is_file()  # where the store lies now
    assert old.cli("report", "validate", "reports").code == 0


@pytest.mark.parametrize("known", [LIVE, POSTGRES], ids=["sqlite", "pg"])
def test_a_live_version_is_explained_and_taken_back_to_the_one_before(unpack: Unpack, known: Known) -> None:
    old = unpack(known)
    told = is_explained(old, "tools@2", is_open=True)
    assert told["release"]["source"] == "shelf:sprout"
    shown = old.json("release", "show", "tools@2")["evidence"]
    assert (shown["baseline"], shown["candidate"], shown["episodes"]) == ("tools@1", "tools@2", 100)
    assert shown["comparisons"]["success"]["difference"] == pytest.approx(0.53)
    history = old.json("release", "history", "tools")
    back = old.json("release", "rollback", "tools", "--why", "odd answers")
    assert (back["rolled_back"], back["live"]["id"]) == ("tools@2", "tools@1")
    assert old.stages() == {**known.stages, "tools@1": "live", "tools@2": "rolled_back"}
    *earlier, last = old.json("release", "history", "tools")
    assert earlier == history
    assert (last["seq"], last["previous"]) == (known.entries + 1, known.head)
    assert old.json("release", "explain", "tools@1")["agrees"] is True
    assert old.json("store", "check")["ok"] is True
    undone = old.json("release", "rollback", "tools", "--to", "tools@2", "--why", "it was the network")
    assert undone["live"]["id"] == "tools@2"


def test_the_way_of_a_canary_and_a_refusal_are_in_the_ledger(unpack: Unpack) -> None:
    old = unpack(LIVE)
    bodies = [one["body"] for one in old.json("release", "history", "tools")]
    moves = [(one["move"], one["from"], one["to"], one["share"]) for one in bodies if "move" in one]
    assert moves == [
        ("tools@1", "candidate", "live", 100),
        ("tools@2", "candidate", "canary", 5),
        ("tools@2", "canary", "canary", 25),
        ("tools@2", "canary", "live", 100),
    ]
    assert [one["refuse"] for one in bodies if "refuse" in one] == ["tools@2", "tools@3"]  # the first was too early
    is_explained(old, "tools@3", is_open=False)
    with old.open() as store:
        canaries = [one for one in store.trials.all() if one.kind == "canary"]
        served = [Counter(request.arm for request in store.trials.served(one.name)) for one in canaries]
    assert served == [{"tools@1": 300, "tools@2": 300}] * 2


def test_who_had_a_feature_an_arm_or_a_key_has_it_still(unpack: Unpack) -> None:
    old = unpack(LIVE)
    units = [f"user-{n}" for n in range(12)]
    assert {unit for unit in units if old.json("flags", "eval", "parser", "--key", unit)["value"]} == ON
    assert old.json("flags", "eval", "parser", "--key", "user-0", "--attr", "group=staff")["value"] is True
    assert old.json("flags", "eval", "old-parser")["value"] is False  # it was killed
    assert {unit for unit in units if old.says("ab", "assign", "greeting", unit).strip() == "control"} == CONTROL
    ruling = old.json("ab", "show", "greeting")["ruling"]
    assert (ruling["exposed"], ruling["told"]) == ({"control": 5, "treatment": 7},) * 2
    assert ruling["means"] == {"control": 0.4, "treatment": 1.0}
    assert {one["label"]: one["good"] for one in old.json("tokens", "list")} == {"ann": True, "bob": False}
    with old.open() as store:
        found = store.tokens.find(digest(TOKEN))
    assert found is not None and (found.label, found.role) == ("ann", "operator")
