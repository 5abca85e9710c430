"""Overrides for learners that follow others, in a file beside the store, in its documented shape.

Written whole, one writer at a time. A learner reads it on the machine where it runs: with a database elsewhere, the
folder has to be the same one. What an override means is for `workloads.following` to say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import orjson

from holdfast.contracts.commands import Overrides
from holdfast.contracts.errors import BadRecord, StoreCorrupt
from holdfast.store.blobs import write_atomically
from holdfast.store.locks import locked

SCHEMA = 1
NAME = "training-config-overrides"
NAMES = frozenset(one.name for one in fields(Overrides))


class OverridesFile:
    def __init__(self, folder: Path, project: str) -> None:
        # The documented name is the default project's; others must not be heard by its learners.
        mark = "" if project == "default" else f"-{hashlib.sha256(project.encode()).hexdigest()[:12]}"
        self.path = folder / f"{NAME}{mark}.json"

    def get(self) -> Overrides:
        try:
            kept = orjson.loads(self.path.read_bytes())["pending_overrides"]
            return Overrides(**{name: value for name, value in kept.items() if name in NAMES})  # older ones had more
        except FileNotFoundError:
            return Overrides()
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, BadRecord) as error:
            raise StoreCorrupt(f"{self.path}", why=f"is not what was written: {error}", remedy="remove it") from None

    def put(self, given: Mapping[str, Any], *, now: float) -> dict[str, Any]:
        """What is pending then: what was, and what is given upon it."""
        with locked(self.path.with_suffix(".lock")):
            pending = pending_of(self.get()) | dict(given)
            Overrides(**pending)  # refused before anything is written
            kept = {"schema_version": SCHEMA, "updated_unix_ms": round(now * 1000), "pending_overrides": pending}
            write_atomically(self.path, orjson.dumps(kept, option=orjson.OPT_INDENT_2) + b"\n")
        return pending


def pending_of(overrides: Overrides) -> dict[str, Any]:
    """Those that are set."""
    return {name: value for name, value in asdict(overrides).items() if value is not None}
