"""The ledger's releases beside the rows: every way a release goes adds up, and a row that was changed is named."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.evidence import Decision, Reason
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.store.check import check
from holdfast.store.releases import BY_HAND
from holdfast.store.store import Store, open_store
from tests.store.tamper import damage, rewrite

S = Stage
CLOSED = Decision(open=False, reasons=(Reason(code="p_value_above_threshold", text="p 0.2 > 0.05"),))


def served(store: Store) -> None:
    """tools@1 was live, tools@2 took its place by a proof, tools@3 was refused."""
    for source in ("shelf:a", "shelf:b", "shelf:c"):
        add(store, source)
    go(store, 1, S.LIVE, known_good=True)
    proved, other = (store.blobs.put(data, now=1.0) for data in (b"evidence", b"another"))
    go(store, 2, S.LIVE, evidence=proved, known_good=True, expect_live="tools@1")
    store.releases.note("tools@3", CLOSED, evidence=other, who="gate", now=3.0).result()


def add(store: Store, source: str) -> None:
    how: dict[str, Any] = {"policy": "tools", "kind": PolicyKind.WEIGHTS, "manifest": {"sha256": "ab"}}
    store.releases.add(source=source, who="ann", now=1.0, **how).result()


def go(store: Store, number: int, to: Stage, **how: Any) -> None:
    name = f"tools@{number}"
    given = {"expect": store.releases.get(name).stage, "who": "ann", "why": "w", "now": 2.0}
    store.releases.move(name, to, **{**given, **how}).result()


def back(store: Store, failing: int, to: int, code: str) -> None:
    reasons = (Reason(code=code, text="worse"),)
    how: dict[str, Any] = {"who": "ann", "why": "w", "now": 5.0, "reasons": reasons}
    store.releases.roll_back("tools", failing=f"tools@{failing}", to=f"tools@{to}", **how).result()


def test_every_way_that_a_release_goes_adds_up(store: Store) -> None:
    served(store)
    assert store.releases.recount() == []
    steps = [
        lambda: go(store, 3, S.SHADOW),
        lambda: go(store, 3, S.CANARY, share=5),
        lambda: go(store, 3, S.CANARY, share=25),
        lambda: back(store, 3, 2, "canary_breach_success"),
        lambda: go(store, 3, S.CANDIDATE),  # a second try, which begins without evidence
        lambda: go(store, 3, S.REJECTED),
        lambda: back(store, 2, 1, BY_HAND),
        lambda: back(store, 1, 2, BY_HAND),  # undoes the one before
        lambda: back(store, 2, 1, "slo_breach"),
        lambda: store.releases.note("tools@2", CLOSED, evidence=None, who="gate", now=6.0).result(),
    ]
    for step in steps:
        step()
        assert store.releases.recount() == []
    assert store.releases.get("tools@3").evidence is None


SWAP = (
    "UPDATE releases SET stage = 'candidate', share = 0 WHERE number = 2",
    "UPDATE releases SET stage = 'live', share = 100 WHERE number = 1",
)


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        (
            SWAP,
            [
                "release tools@1: stage live by its row, stage retired by the ledger",
                "release tools@1: share 100 by its row, share 0 by the ledger",
                "release tools@2: stage candidate by its row, stage live by the ledger",
                "release tools@2: share 0 by its row, share 100 by the ledger",
            ],
        ),
        (
            ("UPDATE releases SET manifest = '{}', source = 'shelf:weak' WHERE number = 2",),
            [
                "release tools@2: source shelf:weak by its row, source shelf:b by the ledger",
                "release tools@2: its manifest is not the one in the ledger",
            ],
        ),
        (("UPDATE releases SET manifest = '{' WHERE number = 2",), ["release tools@2: its manifest cannot be read"]),
        (
            ("UPDATE releases SET kind = 'prompt', parent = 'tools@1' WHERE number = 3",),
            [
                "release tools@3: kind prompt by its row, kind weights by the ledger",
                "release tools@3: parent tools@1 by its row, no parent by the ledger",
            ],
        ),
        (
            ("UPDATE releases SET is_known_good = 1 WHERE number = 3",),
            ["release tools@3: known to be good by its row, not known to be good by the ledger"],
        ),
        (
            ("UPDATE releases SET number = 9 WHERE number = 3",),
            ["release tools@9: is not in the ledger", "release tools@3: is in the ledger, and not in the store"],
        ),
        (("DELETE FROM releases WHERE number = 3",), ["release tools@3: is in the ledger, and not in the store"]),
    ],
)
def test_a_row_that_was_changed_is_named(store: Store, statements: tuple[str, ...], expected: list[str]) -> None:
    served(store)
    damage(store, *statements)
    assert store.releases.recount() == expected
    assert {part.name: list(part.problems) for part in check(store)}["recount"] == expected


def test_evidence_that_was_exchanged_is_named(store: Store) -> None:
    served(store)
    proved, other = (store.releases.get(f"tools@{n}").evidence or "" for n in (2, 3))
    damage(store, f"UPDATE releases SET evidence = '{other}' WHERE number = 2")
    said = f"release tools@2: evidence {other[:12]} by its row, evidence {proved[:12]} by the ledger"
    assert store.releases.recount() == [said]


def test_an_entry_that_makes_no_sense_is_named(store: Store) -> None:
    served(store)
    rewrite(store, 4, 'UPDATE ledger SET body = \'{"move":"tools@1"}\' WHERE seq = 4')
    assert store.releases.recount()[0] == "ledger: entry 4 says nothing about a release that makes sense"


def test_a_project_counts_its_own(store: Store, url: str) -> None:
    served(store)
    damage(store, "UPDATE releases SET kind = 'prompt' WHERE number = 3")
    with open_store(url, project="other") as elsewhere:
        assert elsewhere.releases.recount() == []
