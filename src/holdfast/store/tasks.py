"""A run's tasks in a sealed ledger: at its end, how many it was given and a hash of them, so that a change shows.

What a task is never changes once it is enqueued; where it stands does, and is not part of the hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from sqlalchemy import bindparam, select

from holdfast.store import schema
from holdfast.store.sql import AT_MOST, Transaction, from_json, given, to_json

KIND = "tasks"  # of the entry
PAGE = 1000
CONTENT = ("name", "input", "split", "priority", "max_attempts", "timeout_s", "resources", "metadata")
_r, _l, _u = schema.rollouts.c, schema.ledger.c, schema.runs.c
_content = select(_r.key, *(_r[name] for name in CONTENT))
AFTER = _content.where(given(_r, "run"), _r.key > bindparam("after")).order_by(_r.key).limit(AT_MOST)
NOTED = select(_l.run, _l.body).where(_l.kind == KIND).order_by(_l.seq)
KEY = select(_u.key).where(given(_u, "id"))
CLOSED = select(_l.seq).where(given(_l, "run"), _l.kind == "prune").limit(1)


def of_run(tx: Transaction, run: int, last: int | None = None) -> dict[str, Any] | None:
    """What is noted of the tasks of a run, up to the one with this key; None where it has none."""
    digest, count, after = hashlib.sha256(), 0, 0
    while page := tx.all(AFTER, {"run": run, "after": after, "most": PAGE}):
        for key, *values in page:
            if last is not None and key > last:
                return {"count": count, "last": last, "sha256": digest.hexdigest()}
            digest.update(f"{to_json(values)}\n".encode())
            count, after = count + 1, key
    return {"count": count, "last": last or after, "sha256": digest.hexdigest()} if count else None


def changed(view: Transaction) -> Iterator[str]:
    """Runs whose tasks are not those that were noted, a sentence each."""
    noted = {run: from_json(text) for run, text in view.all(NOTED, {})}  # the last of each run has all of it
    for run, told in noted.items():
        key = view.one(KEY, {"id": run})
        if key is None or view.one(CLOSED, {"run": run}) is not None:
            continue
        kept = of_run(view, key[0], told["last"]) or {"count": 0}
        if kept != told:
            same = kept["count"] == told["count"]
            yield f"run {run}: " + (
                "a task was changed after it was given" if same else f"has {kept['count']} of its {told['count']} tasks"
            )
