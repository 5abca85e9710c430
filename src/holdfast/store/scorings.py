"""Scorings: what another set of scorers says about rollouts that a run has stored, beside the rewards they were given.

The rows of a scoring come in several writes, so that others' writes come between; it can be read once the last of them
is there, and the ledger then has the hash of its content. What an interrupted one left is removed by the next of its
name. Who scores, and what follows from a scoring, is the caller's business.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, takewhile
from typing import Any

from sqlalchemy import Integer, and_, bindparam, delete, func, select, tuple_

from holdfast.contracts.errors import BadInput, Conflict, NotFound, StoreCorrupt
from holdfast.contracts.release import check_name
from holdfast.contracts.reward import RewardTerm, Scoring
from holdfast.store import ledger, schema
from holdfast.store.db import Db
from holdfast.store.rows import scoring
from holdfast.store.runs import Runs
from holdfast.store.sql import Transaction, canonical, changing, from_json, given, into, to_json
from holdfast.store.traces import reward_term, signal_values
from holdfast.store.writer import WriteFuture

KIND = "scoring"  # of the ledger's entry
CHUNK = 2_000  # rollouts in one write
PAGE = 5_000  # signals in one read
UNPROVEN = "score the run again under another name"

_c, _s, _r, _l = schema.scorings.c, schema.scored.c, schema.rollouts.c, schema.ledger.c
BEGIN = into(schema.scorings, "project", "run", "name", but=("key", "rollouts", "sha256")).returning(_c.key)
FIND = select(schema.scorings).where(given(schema.scorings, "project", "run", "name"))
STILL = select(_c.key).where(_c.key == bindparam("scoring")).with_for_update(key_share=True)
ADD = into(schema.scored)
UNKNOWN = (
    select(_s.rollout)
    .select_from(
        schema.scored.outerjoin(
            schema.rollouts,
            and_(_r.run == bindparam("of"), _r.name == func.substr(_s.rollout, bindparam("begin", type_=Integer))),
        )
    )
    .where(given(_s, "scoring"), _r.key.is_(None))
    .limit(1)
)
END = changing(schema.scorings, "scoring", rollouts=bindparam("n"), sha256=bindparam("hash"))
OF_RUN = (
    select(schema.scorings).where(given(schema.scorings, "project", "run"), _c.sha256.is_not(None)).order_by(_c.key)
)
AFTER = (
    select(*(column for column in _s if column.name not in ("scoring", schema.CHECKSUM)))
    .where(
        given(_s, "scoring"),
        tuple_(_s.rollout, _s.seq)
        > tuple_(bindparam("rollout", type_=_s.rollout.type), bindparam("seq", type_=_s.seq.type)),
    )
    .order_by(_s.rollout, _s.seq)
    .limit(PAGE)
)
_some = select(_s.rollout).where(given(_s, "scoring")).order_by(_s.rollout).limit(CHUNK)
REMOVE_ROWS = delete(schema.scored).where(given(_s, "scoring"), _s.rollout.in_(_some))
REMOVE = delete(schema.scorings).where(_c.key == bindparam("scoring"))
KEYS = select(_c.key).where(given(schema.scorings, "project", "run")).order_by(_c.key)
EVERY = select(schema.scorings).where(_c.sha256.is_not(None)).order_by(_c.key)
NOTED = select(_l.seq, _l.project, _l.run, _l.body).where(_l.kind == KIND).order_by(_l.seq)
NOTED_OF = NOTED.where(given(_l, "run"))
PRUNED = select(_l.run).where(_l.kind == "prune")

Scored = tuple[str, Sequence[RewardTerm]]  # the id of a rollout, and what the scorers say about it
Kept = tuple[str, list[dict[str, Any]]]


class Scorings:
    def __init__(self, db: Db, runs: Runs) -> None:
        self._db, self._runs = db, runs

    def add(
        self, run: str, name: str, scorers: Mapping[str, Any], rows: Iterable[Scored], *, who: str, now: float
    ) -> Scoring:
        """Keep a scoring of a run under a name; on disk when this returns. A name that is taken is a Conflict.

        Rollouts without a signal are counted in the ledger and are not kept: missing is not zero. When `rows` raises,
        nothing of the scoring stays.
        """
        check_name("scoring", name)
        named = {"project": self._runs.project, "run": run, "name": name}
        of, text = self._runs.key(run), canonical(to_json(scorers))
        self._clear(named)
        key = self._db.write(lambda tx: _begin(tx, {**named, "scorers": text, "who": who, "at": now})).result()
        content, unscored = _Content(text), 0
        try:
            for chunk in _chunks(run, rows):
                kept = _as_kept(chunk)
                unscored += len(chunk) - len(kept)
                content.take(kept)
                self._put(key, kept).result()
            self._end(key, of, named, content, unscored, who, now).result()
        except BaseException:
            self._remove(key)
            raise
        return self.get(run, name)

    def get(self, run: str, name: str) -> Scoring:
        return scoring(self._found(run, name))

    def of_run(self, run: str) -> list[Scoring]:
        """Those that are whole, oldest first."""
        self._runs.key(run)  # refuses what is no run of this project
        return [scoring(row) for row in self._db.all(OF_RUN, {"project": self._runs.project, "run": run})]

    def signals(self, run: str, name: str) -> Iterator[tuple[str, tuple[RewardTerm, ...]]]:
        """What it says, rollout by rollout; those without a signal are not among them."""
        key = self._found(run, name)[0]
        return pages(partial(self._db.all, AFTER), key)

    def of_rollout(self, rollout: str) -> dict[str, tuple[RewardTerm, ...]]:
        """By the name of each scoring what it says of one rollout, oldest first."""
        run, found = rollout.partition("/")[0], dict[str, tuple[RewardTerm, ...]]()
        for row in self._db.all(OF_RUN, {"project": self._runs.project, "run": run}):
            rows = self._db.all(AFTER, {"scoring": row[0], "rollout": rollout, "seq": 0})
            if mine := tuple(reward_term(one) for one in takewhile(lambda one: one[0] == rollout, rows)):
                found[row[3]] = mine
        return found

    def verify(self, run: str, name: str) -> None:
        """StoreCorrupt where it is not as it was when it was kept."""
        row = self._found(run, name)
        noted = _noted(self._db.all(NOTED_OF, {"run": run}))
        why = self._db.reading(lambda view: _wrong(view, row, noted), snapshot=True)
        if why is not None:
            raise StoreCorrupt(f"scoring {name} of {run}", why=why, remedy=UNPROVEN)

    def _found(self, run: str, name: str) -> Any:
        self._runs.key(run)
        row = self._db.one(FIND, {"project": self._runs.project, "run": run, "name": name})
        if row is None or row[8] is None:
            why = "there is none" if row is None else "is being written, or was never finished"
            raise NotFound(f"scoring {name} of {run}", why=why, remedy="score the run again")
        return row

    def _put(self, key: int, kept: Sequence[Kept]) -> WriteFuture[None]:
        params = [
            {"scoring": key, "rollout": rollout, "seq": seq, **values}
            for rollout, told in kept
            for seq, values in enumerate(told, 1)
        ]

        def operation(tx: Transaction) -> None:
            _still(tx, key)
            if params:
                tx.many(ADD, params)

        return self._db.write(operation)

    def _end(
        self, key: int, of: int, named: Mapping[str, str], content: _Content, unscored: int, who: str, now: float
    ) -> WriteFuture[None]:
        run, name = named["run"], named["name"]
        counted = {"rollouts": content.rollouts, "unscored": unscored, "signals": content.signals}
        body = {"name": name, **counted, "sha256": content.sha256}

        def operation(tx: Transaction) -> None:
            _still(tx, key)
            stranger = tx.one(UNKNOWN, {"scoring": key, "of": of, "begin": len(run) + 2})
            if stranger is not None:
                raise NotFound(f"rollout {stranger[0]}", why="there is none", remedy="score what the run has")
            tx.run(END, {"scoring": key, "n": content.rollouts, "hash": content.sha256})
            ledger.append(tx, self._runs.project, run, KIND, who, body, now)

        return self._db.write(operation)

    def _clear(self, named: Mapping[str, str]) -> None:
        """Remove what an interrupted scoring of this name left; Conflict where there is a whole one."""
        row = self._db.one(FIND, dict(named))
        if row is not None and row[8] is not None:
            raise _taken(named)
        if row is not None:
            self._remove(row[0])

    def _remove(self, key: int) -> None:
        while self._db.write(lambda tx: remove(tx, key)).result():
            continue


def remove(tx: Transaction, key: int) -> bool:
    """Remove some of a scoring's rows, and at last the scoring; whether there was more."""
    if tx.run(REMOVE_ROWS, {"scoring": key}).rowcount:
        return True
    tx.run(REMOVE, {"scoring": key})
    return False


def pages(read: Callable[[dict[str, Any]], list[Any]], key: int) -> Iterator[tuple[str, tuple[RewardTerm, ...]]]:
    """The signals of each rollout, from pages that may end in the midst of one."""

    def every() -> Iterator[Any]:
        params = {"scoring": key, "rollout": "", "seq": 0}
        while page := read(dict(params)):
            yield from page
            params |= {"rollout": page[-1][0], "seq": page[-1][1]}

    for rollout, found in groupby(every(), key=lambda row: row[0]):
        yield str(rollout), tuple(reward_term(row) for row in found)


def changed(view: Transaction) -> Iterator[str]:
    """What is wrong with all scorings, a sentence each."""
    noted = _noted(view.all(NOTED, {}))
    for row in view.all(EVERY, {}):
        why = _wrong(view, row, noted)
        noted.pop(tuple(row[1:4]), None)
        if why is not None:
            yield f"scoring {row[3]} of {row[2]}: {why}"
    pruned = {row[0] for row in view.all(PRUNED, {})}
    for _, run, name in noted:
        if run not in pruned:
            yield f"scoring {name} of {run}: is in the ledger, and not in the store"


def _noted(entries: Iterable[Any]) -> dict[tuple[str, ...], str]:
    """Project, run and name of each scoring in the ledger, and the hash of its content."""
    noted: dict[tuple[str, ...], str] = {}
    for seq, project, run, body in entries:
        try:
            told = from_json(body)
            noted.setdefault((project, run, str(told["name"])), str(told["sha256"]))
        except (KeyError, TypeError, ValueError) as error:
            why = f"entry {seq} says nothing about a scoring that makes sense"
            raise StoreCorrupt("ledger", why=why, remedy=UNPROVEN) from error
    return noted


def _wrong(view: Transaction, row: Any, noted: Mapping[tuple[str, ...], str]) -> str | None:
    """What became of a scoring; None: it is as it was."""
    kept, due = scoring(row), noted.get(tuple(row[1:4]))
    if due is None:
        return "is not in the ledger"
    content = _Content(row[4])
    content.take(_as_kept(pages(partial(view.all, AFTER), row[0])))
    is_same = (content.sha256, content.rollouts) == (kept.sha256, kept.rollouts) and kept.sha256 == due
    return None if is_same else "was changed after it was written"


class _Content:
    """The hash of a scoring: of its scorers, and of what each rollout was given, in whatever order they come."""

    def __init__(self, scorers: str) -> None:
        self._scorers, self._digests, self.signals = scorers, list[bytes](), 0

    def take(self, some: Iterable[Kept]) -> None:
        for rollout, told in some:
            self.signals += len(told)
            text = json.dumps([rollout, [list(values.values()) for values in told]])
            self._digests.append(hashlib.sha256(text.encode()).digest())

    @property
    def rollouts(self) -> int:
        return len(self._digests)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(b"".join((self._scorers.encode(), *sorted(self._digests)))).hexdigest()


def _begin(tx: Transaction, values: dict[str, Any]) -> int:
    row = tx.one(BEGIN, values)
    if row is None:
        raise _taken(values)
    key: int = row[0]
    return key


def _still(tx: Transaction, key: int) -> None:
    if tx.one(STILL, {"scoring": key}) is None:
        raise Conflict("scoring", why="another process began it anew under the same name", remedy="use another name")


def _taken(named: Mapping[str, Any]) -> Conflict:
    what = f"scoring {named['name']} of {named['run']}"
    return Conflict(what, why="is there already", remedy="what was scored stands; give this one another name")


def _chunks(run: str, rows: Iterable[Scored]) -> Iterator[list[Scored]]:
    chunk, seen = list[Scored](), set[str]()
    for rollout, signals in rows:
        if not rollout.startswith(f"{run}/") or rollout in seen:
            why = "was scored twice" if rollout in seen else f"is no rollout of {run}"
            raise BadInput(f"rollout {rollout}", why=why, remedy="score each rollout of the run once")
        seen.add(rollout)
        chunk.append((rollout, signals))
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _as_kept(scored: Iterable[Scored]) -> list[Kept]:
    """Those that have a signal, as the columns hold it."""
    return [(rollout, [signal_values(signal) for signal in signals]) for rollout, signals in scored if signals]
