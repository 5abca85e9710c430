"""Which entry of the ledger speaks for a version: what put it live, what the gate said of it, and what came after.

What an entry says is `briefs`' business. A canary that is taken back leaves the live version as it was, so that is news
beside it and not the reason why it is live.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.contracts.release import Release, Stage
from holdfast.contracts.run import LedgerEntry
from holdfast.operate.look.briefs import LONGEST, Brief, cut, decision_brief

NAMED = ("move", "refuse", "accept", "roll_back", "restore", "to", "retired")
OPENED = ("promoted", "accepted")  # what an open gate comes to


def last(release_id: str, history: Sequence[LedgerEntry]) -> Brief | None:
    """The last that was decided about it."""
    return next((decision_brief(entry) for entry in reversed(history) if _names(entry, release_id)), None)


def gate(release_id: str, history: Sequence[LedgerEntry]) -> Brief | None:
    """What the gate said of it last, on evidence: neither a guard's move nor a person's is its verdict."""
    entry = _gate(release_id, history)
    return None if entry is None else decision_brief(entry)


def since_gate(release_id: str, history: Sequence[LedgerEntry], most: int = 20) -> list[Brief]:
    """What happened to it after the gate had spoken, the newest first."""
    entry = _gate(release_id, history)
    after = -1 if entry is None else entry.seq
    return [decision_brief(one) for one in reversed(history) if one.seq > after and _names(one, release_id)][:most]


def live(release_id: str, history: Sequence[LedgerEntry]) -> Brief | None:
    """The decision that put the version where it is, live: its sentence is about this version and no other."""
    entry = _put_live(release_id, history)
    return None if entry is None else {**decision_brief(entry), "sentence": _sentence(release_id, entry, history)}


def news(release_id: str, under_way: Release | None, history: Sequence[LedgerEntry]) -> Brief | None:
    """decision + "release": the newest that was decided about another version since this one went live; of what is
    under way, before anything else."""
    put = _put_live(release_id, history)
    after = -1 if put is None else put.seq
    for entry in reversed(history):
        other = _about(entry)
        if entry.seq <= after:
            return None
        if other is None or other == release_id or (under_way is not None and other != under_way.id):
            continue
        return {**decision_brief(entry), "release": other}
    return None


def _names(entry: LedgerEntry, release_id: str) -> bool:
    return release_id in [entry.body.get(name) for name in NAMED]


def _about(entry: LedgerEntry) -> str | None:
    """The version that it decides about; one that was only registered was not decided about."""
    body = entry.body
    names = ("move", "refuse", "accept", "roll_back", "restore")
    return next((str(body[name]) for name in names if name in body), None)


def _gate(release_id: str, history: Sequence[LedgerEntry]) -> LedgerEntry | None:
    for entry in reversed(history):
        if entry.body.get("decision") and entry.body.get("evidence") and _about(entry) == release_id:
            return entry
    return None


def _put_live(release_id: str, history: Sequence[LedgerEntry]) -> LedgerEntry | None:
    return next((entry for entry in reversed(history) if _puts_live(entry.body, release_id)), None)


def _puts_live(body: Mapping[str, Any], release_id: str) -> bool:
    if body.get("roll_back") is not None:
        return body.get("to") == release_id and body.get("from") == Stage.LIVE
    return body.get("restore") == release_id or (body.get("move") == release_id and body.get("to") == Stage.LIVE)


def _sentence(release_id: str, entry: LedgerEntry, history: Sequence[LedgerEntry]) -> str:
    body, why = entry.body, cut(str(entry.body.get("why") or "no reason was given"), LONGEST)
    if "roll_back" in body:
        return _ended(f"{release_id} is live again since {entry.who} took {body['roll_back']} back: {why}")
    if "restore" in body:
        return _ended(f"{release_id} was restored by {entry.who} in place of {body['retired']}: {why}")
    opened = gate(release_id, [one for one in history if one.seq < entry.seq])
    told = str(decision_brief(entry)["sentence"])
    if body.get("decision") or opened is None or opened["outcome"] not in OPENED:
        return told
    proved = opened["sentence"].partition(": ")[2]
    return f"{told} The gate had opened on {proved}"


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "…")) else f"{sentence}."
