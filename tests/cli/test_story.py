"""A version's story: each entry of the ledger in words that are used once and everywhere."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.cli.story import happened
from holdfast.contracts.run import LedgerEntry

CLOSED: dict[str, Any] = {"open": False, "reasons": [{"code": "c", "text": "t"}], "needs": None, "schema_version": 2}
OPEN = {**CLOSED, "open": True, "reasons": [{"code": "c", "text": "all hold"}]}


def entry(body: dict[str, Any]) -> LedgerEntry:
    return LedgerEntry(
        seq=1, at=0.0, who="ann", kind="release", body=body, project="p", run=None, previous="", sha256=""
    )


@pytest.mark.parametrize(
    ("body", "what", "why"),
    [
        ({"add": "a@1", "source": "shelf:sprout"}, "a@1 registered", "shelf:sprout"),
        ({"refuse": "a@1", "decision": CLOSED}, "a@1 refused", "c: t"),
        ({"refuse": "a@1", "decision": {**CLOSED, "needs": 40}}, "a@1 held", "c: t"),
        ({"accept": "a@1", "decision": OPEN}, "a@1 accepted", "all hold"),
        ({"roll_back": "a@2", "to": "a@1", "why": "odd"}, "a@2 taken back, a@1 live", "odd"),
        ({"restore": "a@2", "retired": "a@1", "why": "a slip"}, "a@2 live again, a@1 retired", "a slip"),
        ({"move": "a@2", "from": "rolled_back", "to": "candidate", "why": "new"}, "a@2 gets a second try", "new"),
        ({"move": "a@2", "from": "shadow", "to": "canary", "share": 5, "why": ""}, "a@2 shadow → canary 5 %", ""),
        ({"move": "a@2", "from": "canary", "to": "live", "share": 100, "why": ""}, "a@2 canary → live", ""),
    ],
)
def test_every_entry_says_what_happened_and_why(body: dict[str, Any], what: str, why: str) -> None:
    assert happened(entry(body)) == (what, why)
