"""Releases as the ledger tells them, beside the rows that serve: what other hands changed is named.

Whether the ledger itself is whole is its own `verify`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import select

from holdfast.store import schema
from holdfast.store.sql import Transaction, from_json

Told = dict[str, Any]
Key = tuple[str, str]  # project, release
_c, _l = schema.releases.c, schema.ledger.c
TOLD = ("kind", "source", "parent", "manifest", "stage", "share", "is_known_good", "evidence")
ROWS = select(_c.project, _c.policy, _c.number, *(_c[name] for name in TOLD)).order_by(_c.key)
ENTRIES = select(_l.seq, _l.project, _l.body).where(_l.kind == "release").order_by(_l.seq)
FIRST = {"stage": "candidate", "share": 0, "is_known_good": False, "evidence": None}


def recount(view: Transaction, project: str | None = None) -> Iterator[str]:
    """What is wrong with the project's releases, or with all, a sentence each."""
    told: dict[Key, Told] = {}
    for seq, owner, body in view.all(ENTRIES, {}):
        if project in (None, owner):
            try:
                _follow(told, owner, from_json(body))
            except (KeyError, TypeError, ValueError, AttributeError):
                yield f"ledger: entry {seq} says nothing about a release that makes sense"
    for owner, policy, number, *values in view.all(ROWS, {}):
        if project in (None, owner):
            name = f"{policy}@{number}"
            known = told.pop((owner, name), None)
            if known is None:
                yield f"release {name}: is not in the ledger"
            else:
                yield from _differences(name, dict(zip(TOLD, values, strict=True)), known)
    yield from (f"release {name}: is in the ledger, and not in the store" for _, name in told)


def _follow(told: dict[Key, Told], project: str, body: Mapping[str, Any]) -> None:
    """One entry more: the same that `releases` did to the rows when it wrote it."""

    def put(name: str, stage: str, share: int, *, is_good: bool) -> None:
        told[project, name] |= {"stage": stage, "share": share, "is_known_good": is_good}

    if "add" in body:
        fixed = {name: body[name] for name in ("kind", "source", "parent", "manifest")}
        told[project, body["add"]] = {**fixed, **FIRST}
    elif "move" in body:
        put(body["move"], body["to"], body["share"], is_good=body["known_good"])
        if body["retired"] is not None:
            put(body["retired"], "retired", 0, is_good=True)
        if body["evidence"] is not None or body["to"] == "candidate":
            told[project, body["move"]]["evidence"] = body["evidence"]
    elif "roll_back" in body:
        put(body["roll_back"], "rolled_back", 0, is_good=False)
        put(body["to"], "live", 100, is_good=told[project, body["to"]]["is_known_good"])
    elif "restore" in body:
        put(body["retired"], "retired", 0, is_good=True)
        put(body["restore"], "live", 100, is_good=body["known_good"])
    elif body["evidence"] is not None:
        told[project, body["accept"] if "accept" in body else body["refuse"]]["evidence"] = body["evidence"]


def _differences(name: str, row: Told, known: Told) -> Iterator[str]:
    row["is_known_good"] = bool(row["is_known_good"])
    try:
        row["manifest"] = from_json(row["manifest"])
    except ValueError:
        yield f"release {name}: its manifest cannot be read"
        return
    for part in TOLD:
        if row[part] != known[part]:
            if part == "manifest":
                yield f"release {name}: its manifest is not the one in the ledger"
            else:
                yield f"release {name}: {_words(part, row[part])} by its row, {_words(part, known[part])} by the ledger"


def _words(part: str, value: Any) -> str:
    if part == "is_known_good":
        return "known to be good" if value else "not known to be good"
    if value is None:
        return f"no {part}"
    return f"{part} {value[:12] if part == 'evidence' else value}"
