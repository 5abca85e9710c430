"""`status.json`: the run's status for dashboards and scripts, replaced atomically at every state."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.contracts.errors import BadInput
from holdfast.contracts.records import decode, encode
from holdfast.contracts.run import Status
from holdfast.store.artifacts import write_atomically


def write_status(path: Path, status: Status) -> None:
    write_atomically(path, (json.dumps(encode(status), indent=2, allow_nan=False) + "\n").encode())


def read_status(path: Path) -> Status:
    try:
        return decode(Status, json.loads(path.read_text()))
    except FileNotFoundError:
        raise BadInput(f"status {path}", why="there is none", remedy="'holdfast optimize' writes it") from None
    except ValueError as error:
        raise BadInput(f"status {path}", why=f"is not JSON: {error}") from None
