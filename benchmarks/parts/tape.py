"""The ceiling: what bare sqlite3 does with the same statements, in the same order, with the same commit points.

A life cycle is run once on a store whose connections write down each statement with its parameters, the writer's and
the readers' on one tape, BEGIN and COMMIT included. The tape is then played on a copy of the file as it was before,
through two plain sqlite3 connections with the same settings: no threads, no event loop, no records, no JSON. The rows,
keys, batches and fsyncs are those of the recording, so what is left between the two is our own cost.
"""

from __future__ import annotations

import gc
import sqlite3
import time
from pathlib import Path
from typing import Any

from holdfast.store.db import SQLite

Entry = tuple[bool, str, Any]  # is it a reader's?, the text, its parameters


class Taped(SQLite):
    """Our SQLite, with every statement on a tape."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.tape: list[Entry] = []

    def connect(self, *, read_only: bool) -> Any:
        return TapedConnection(super().connect(read_only=read_only), self.tape, read_only)


class TapedConnection:
    def __init__(self, connection: sqlite3.Connection, tape: list[Entry], read_only: bool) -> None:
        self._connection, self._tape, self._read_only = connection, tape, read_only
        self.close = connection.close

    def execute(self, text: str, params: Any = ()) -> sqlite3.Cursor:
        self._tape.append((self._read_only, text, params))
        return self._connection.execute(text, params)

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction


def commits(tape: list[Entry]) -> int:
    return sum(text == "COMMIT" for _, text, _ in tape)


def play(tape: list[Entry], path: Path) -> float:
    """CPU-seconds of the tape on bare connections to the file."""
    engine = SQLite(path)
    writer, reader = engine.connect(read_only=False), engine.connect(read_only=True)
    steps = [((reader if is_read else writer).execute, text, _plain(params)) for is_read, text, params in tape]
    gc.collect()
    gc.freeze()  # the tape is not part of the work: its thousands of objects are not looked through meanwhile
    cpu = time.process_time()
    for execute, text, params in steps:
        execute(text, params).fetchall()
    cpu_s = time.process_time() - cpu
    gc.unfreeze()
    writer.close()
    reader.close()
    return cpu_s


def _plain(params: Any) -> Any:
    """Enums as their text: sqlite3 binds a plain str faster, and the ceiling is what can be had."""
    if not params:
        return params
    return {name: str(value) if isinstance(value, str) else value for name, value in params.items()}
