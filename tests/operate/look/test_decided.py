from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.evidence import Decision, Reason
from holdfast.contracts.records import encode
from holdfast.contracts.release import Stage
from holdfast.contracts.run import LedgerEntry
from holdfast.operate.look import briefs
from holdfast.store.store import Store
from tests.operate.stage import Line

OPENED = Decision(open=True, reasons=(Reason(code="promotion_allowed", text="success +0.4; all 14 checks are met"),))
UNDECIDED = Decision(open=False, reasons=(Reason(code="guard_undecided", text="no answers yet"),))
FIRST = {"move": "s@1", "from": "candidate", "to": "live", "why": "the first version", "decision": None}
GATE = {"move": "s@2", "from": "candidate", "to": "shadow", "evidence": "e", "decision": encode(OPENED)}
ACCEPTED = {"accept": "s@2", "stage": "candidate", "evidence": "e", "decision": encode(OPENED)}
HELD = {"refuse": "s@2", "stage": "shadow", "evidence": None, "decision": encode(UNDECIDED)}
WITHIN = "within every limit; next is live with 100 %"
GUARD = {"move": "s@2", "from": "canary", "to": "live", "retired": "s@1", "why": WITHIN, "decision": None}
BACK = {"roll_back": "s@2", "from": "live", "to": "s@1", "why": "it slips"}
AGAIN = {"restore": "s@2", "from": "rolled_back", "retired": "s@1", "why": "it was right"}
CANARY = {"roll_back": "s@2", "from": "canary", "to": "s@1", "why": "errors"}


def history(*bodies: dict[str, Any]) -> list[LedgerEntry]:
    told: dict[str, Any] = {
        "project": "p",
        "run": None,
        "kind": "release",
        "who": "ann",
        "previous": "0" * 64,
        "sha256": "1" * 64,
    }
    return [LedgerEntry(seq=seq, at=float(seq), body=body, **told) for seq, body in enumerate(bodies, start=1)]


@pytest.mark.parametrize(
    ("bodies", "live", "sentence", "news"),
    [
        ([FIRST], "s@1", "s@1 went from candidate to live: the first version.", None),
        ([FIRST, {"add": "s@2"}], "s@1", "s@1 went from candidate to live: the first version.", None),
        ([FIRST, GATE, HELD], "s@1", "s@1 went from candidate to live: the first version.", "s@2 was held"),
        ([FIRST, GATE, CANARY], "s@1", "s@1 went from candidate to live: the first version.", "s@2 was taken back"),
        (
            [FIRST, GATE, HELD, GUARD],
            "s@2",
            f"s@2 went from canary to live: within every limit. The gate had opened on {OPENED.reasons[0].text}.",
            None,
        ),
        (
            [FIRST, ACCEPTED, GUARD],
            "s@2",
            f"s@2 went from canary to live: within every limit. The gate had opened on {OPENED.reasons[0].text}.",
            None,
        ),
        ([FIRST, ACCEPTED], "s@1", "s@1 went from candidate to live: the first version.", "s@2 was accepted"),
        ([FIRST, GATE, GUARD, BACK], "s@1", "s@1 is live again since ann took s@2 back: it slips.", None),
        ([FIRST, GUARD, BACK, AGAIN], "s@2", "s@2 was restored by ann in place of s@1: it was right.", None),
    ],
    ids=[
        "first",
        "registered",
        "held",
        "canary taken back",
        "guard",
        "accepted, then guard",
        "accepted",
        "taken back",
        "restored",
    ],
)
def test_what_put_a_version_live_is_told_of_it_and_of_no_other(
    bodies: list[dict[str, Any]], live: str, sentence: str, news: str | None
) -> None:
    found = history(*bodies)
    told, beside = briefs.live_decision(live, found), briefs.newest_other_decision(live, None, found)
    assert told is not None and told["sentence"] == sentence
    assert (None if beside is None else beside["sentence"].split(";")[0].split(":")[0]) == news


def test_what_the_gate_said_is_not_what_came_after() -> None:
    found = history(FIRST, GATE, HELD, GUARD, BACK)
    gate = briefs.gate_decision("s@2", found)
    assert gate is not None and (gate["outcome"], gate["seq"]) == ("promoted", 2)
    assert [one["outcome"] for one in briefs.decisions_since_gate("s@2", found)] == ["taken back", "moved", "held"]
    assert briefs.gate_decision("s@1", found) is None
    last = briefs.last_decision("s@1", found)
    assert last is not None and last["outcome"] == "taken back"


def test_a_store_tells_it_the_same_way(file_store: Store) -> None:
    line = Line(file_store, versions=2)
    line.go(2, Stage.CANARY, share=5)
    line.back(failing=2, to=1)
    found, _ = file_store.figures.decisions("sprout")
    told, beside = briefs.live_decision("sprout@1", found), briefs.newest_other_decision("sprout@1", None, found)
    assert told is not None and told["sentence"].startswith("sprout@1 went from candidate to live")
    assert beside is not None and (beside["release"], beside["outcome"]) == ("sprout@2", "taken back")
