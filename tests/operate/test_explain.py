"""Explaining a version: the gate's decision follows once more from the samples, and what was changed is named."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.contracts.errors import NotFound, StoreCorrupt
from holdfast.contracts.evidence import Decision, Evidence, Reason
from holdfast.contracts.records import decode, dumps, loads
from holdfast.contracts.release import Stage
from holdfast.operate.canary_controller import advance
from holdfast.operate.publication import recompute_decision
from holdfast.store.store import Store
from tests.operate.stage import Line, proposed


@pytest.mark.parametrize(("rate", "is_open"), [(1.0, True), (0.1, False), (0.3, False)])
def test_the_decision_follows_from_the_samples_once_more(file_store: Store, rate: float, is_open: bool) -> None:
    line = Line(file_store, 2)
    made = asyncio.run(proposed(file_store, rate=rate))
    found = recompute_decision(file_store, line.at(2))
    assert found.decision is not None and found.decision.open == is_open
    assert found.again == found.decision and found.agrees
    assert (found.episodes, found.entries) == (400, file_store.ledger.verify())
    assert found.proof == made["proof"] and Path(made["proof"]).is_file()
    assert found.evidence is not None and found.evidence.candidate == "sprout@2"


async def test_a_decision_that_the_samples_do_not_bear_out_is_noticed(file_store: Store) -> None:
    line = Line(file_store, 2)
    made = await proposed(file_store, rate=0.1)
    waved = Decision(open=True, reasons=(Reason(code="open", text="trust me"),))
    line.go(2, Stage.LIVE, evidence=made["evidence"], decision=waved)
    found = recompute_decision(file_store, line.at(2))
    assert found.decision == waved and found.again is not None and not found.again.open
    assert not found.agrees


async def test_a_closed_decision_for_other_reasons_is_another_decision(file_store: Store) -> None:
    line = Line(file_store, 2)
    made = await proposed(file_store, rate=0.1)
    other = Decision(open=False, reasons=(Reason(code="audit_failed", text="it says"),))
    file_store.releases.note("sprout@2", other, evidence=made["evidence"], who="x", now=60.0).result()
    assert not recompute_decision(file_store, line.at(2)).agrees


async def test_what_a_guard_or_a_person_said_later_is_not_the_gates_decision(file_store: Store) -> None:
    line = Line(file_store, 2)
    await proposed(file_store, to=Stage.CANARY)
    advance(file_store, line.at(2), to=None, share=None, who="ann", why="now", now=60.0)  # refused by the guard
    found = recompute_decision(file_store, line.at(2))
    assert found.agrees and found.decision is not None and found.decision.open
    assert [next(iter(one.body)) for one in found.history] == ["add", "move", "refuse"]


async def test_the_history_says_who_took_its_place_and_who_brought_it_back(file_store: Store) -> None:
    line = Line(file_store, 2)
    await proposed(file_store)
    line.back(2, 1)
    first, second = (recompute_decision(file_store, line.at(number)).history for number in (1, 2))
    assert [next(iter(one.body)) for one in first] == ["add", "move", "move", "roll_back"]
    assert first[2].body["retired"] == "sprout@1" and first[3].body["to"] == "sprout@1"
    assert [next(iter(one.body)) for one in second] == ["add", "move", "roll_back"]


def test_a_version_without_a_gate_has_a_history_and_nothing_to_decide(file_store: Store) -> None:
    line = Line(file_store)
    found = recompute_decision(file_store, line.at(1))
    assert (found.decision, found.again, found.evidence, found.proof, found.agrees) == (None, None, None, None, True)
    assert len(found.history) == 2


def test_a_proof_that_is_gone_is_not_pointed_at(file_store: Store) -> None:
    line = Line(file_store, 2)
    made = asyncio.run(proposed(file_store))
    Path(made["proof"]).unlink()
    assert recompute_decision(file_store, line.at(2)).proof is None


@pytest.mark.parametrize("which", ["evidence", "samples"])
async def test_a_blob_that_was_changed_is_named(file_store: Store, which: str) -> None:
    line = Line(file_store, 2)
    evidence = (await proposed(file_store))["evidence"]
    found = recompute_decision(file_store, line.at(2)).evidence
    assert found is not None and found.samples is not None
    path = file_store.blobs.path(evidence if which == "evidence" else found.samples)
    path.chmod(0o600)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"1.0", b"0.9", 1))
    with pytest.raises(StoreCorrupt, match=str(path)):
        recompute_decision(file_store, line.at(2))
    path.write_bytes(whole)
    assert recompute_decision(file_store, line.at(2)).agrees
    path.unlink()
    with pytest.raises(NotFound, match=f"no file {path}"):
        recompute_decision(file_store, line.at(2))


async def test_other_evidence_under_a_hash_of_its_own_does_not_pass_for_what_was_decided_on(file_store: Store) -> None:
    """Whoever swaps the row's evidence for another, well-formed one: the ledger names what the decision rested on."""
    line = Line(file_store, 2)
    made = await proposed(file_store)
    evidence = loads(Evidence, file_store.blobs.get(made["evidence"]))
    other = file_store.blobs.put(dumps(evidence).encode() + b"\n", now=70.0)
    with sqlite3.connect(file_store.url) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE releases SET evidence = ? WHERE number = 2", (other,))
    assert line.at(2).evidence == other
    assert recompute_decision(file_store, line.at(2)).evidence == evidence


@pytest.mark.parametrize(
    ("statement", "place"),
    [
        ("UPDATE ledger SET who = 'mallory' WHERE seq = 2", "entry 2 was changed"),
        ("UPDATE ledger SET body = replace(body, 'sprout@2', 'sprout@3') WHERE seq = 4", "entry 4 was changed"),
        ("DELETE FROM ledger WHERE seq = 3", "entry 3 is missing"),
    ],
)
async def test_a_ledger_that_was_changed_is_named_with_the_place(file_store: Store, statement: str, place: str) -> None:
    line = Line(file_store, 2)
    await proposed(file_store)
    release = line.at(2)
    with sqlite3.connect(file_store.url) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        assert connection.execute(statement).rowcount == 1
    with pytest.raises(StoreCorrupt, match=f"ledger: {place}"):
        recompute_decision(file_store, release)


async def test_a_proof_that_is_not_the_published_one_is_named(file_store: Store) -> None:
    line = Line(file_store, 2)
    made = await proposed(file_store)
    assert recompute_decision(file_store, line.at(2)).problems == ()
    path = Path(made["proof"])
    path.write_bytes(path.read_bytes() + b" ")  # noqa: ASYNC240
    found = recompute_decision(file_store, line.at(2))
    assert not found.agrees and found.problems == (f"proof of sprout@2: {path} is not the one that was published",)
    path.unlink()  # noqa: ASYNC240
    assert "nor in the archive" in recompute_decision(file_store, line.at(2)).problems[0]


async def test_figures_that_the_samples_do_not_give_are_named(file_store: Store) -> None:
    line = Line(file_store, 2)
    made = await proposed(file_store, rate=0.3)
    evidence = loads(Evidence, file_store.blobs.get(made["evidence"]))
    better = replace(evidence.comparisons["success"], difference=0.99)
    false = replace(evidence, suite="another@9 1234", comparisons={**evidence.comparisons, "success": better})
    blob = file_store.blobs.put(dumps(false).encode(), now=1.0)
    decision = decode(Decision, made["decision"])
    await file_store.releases.note(line.at(2).id, decision, evidence=blob, who="eve", now=70.0)
    found = recompute_decision(file_store, line.at(2))
    assert not found.agrees
    assert [one.partition(": ")[2].split()[0] for one in found.problems][:2] == ["suite", "comparisons"]
