"""Releases: which versions of a policy there are, which of them serves, and every move with who wanted it and why.

Each move is one transaction with its entry in the ledger. Whether a version may move is `promote`'s decision; here
only the table of legal moves is kept, and that one version at most is live and one a canary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, func, select, text

from holdfast.contracts.errors import BadInput, Conflict, IllegalMove, NotFound
from holdfast.contracts.evidence import Decision, Reason
from holdfast.contracts.records import encode
from holdfast.contracts.release import PolicyKind, Release, Stage, check_name, move
from holdfast.contracts.run import LedgerEntry
from holdfast.store import artifacts, ledger, notifications, rows, schema, sql
from holdfast.store.ledger import OfProject
from holdfast.store.sql import Transaction, changing, from_json, given, into, to_json
from holdfast.store.writer import WriteFuture

Parts = dict[str, Any]
Key = tuple[str, str]  # project, release
_c, _l = schema.releases.c, schema.ledger.c
PARTS = ("kind", "source", "parent", "manifest", "stage", "share", "is_known_good", "evidence")
ROWS = select(_c.project, _c.policy, _c.number, *(_c[name] for name in PARTS)).order_by(_c.key)
ENTRIES = select(_l.seq, _l.project, _l.body).where(_l.kind == "release").order_by(_l.seq)
SOURCE = "source_sha256"  # of the record that says which weights, or which texts, a version has
FIRST = {"stage": "candidate", "share": 0, "is_known_good": False, "evidence": None}


def recompute(view: Transaction, project: str | None = None) -> Iterator[str]:
    """What is wrong with the project's releases, or with all, a sentence each."""
    due: dict[Key, Parts] = {}
    for seq, owner, body in view.all(ENTRIES, {}):
        if project in (None, owner):
            try:
                _follow(due, owner, from_json(body))
            except (KeyError, TypeError, ValueError, AttributeError):
                yield f"ledger: entry {seq} says nothing about a release that makes sense"
    for owner, policy, number, *values in view.all(ROWS, {}):
        if project in (None, owner):
            name = f"{policy}@{number}"
            known = due.pop((owner, name), None)
            if known is None:
                yield f"release {name}: is not in the ledger"
            else:
                yield from _differences(name, dict(zip(PARTS, values, strict=True)), known)
                kept = source_text(view, owner, known["source"])
                if kept is not None and known[SOURCE] not in (None, hash_of(kept)):
                    yield f"release {name}: its source {known['source']} is not what it was"
    yield from (f"release {name}: is in the ledger, and not in the store" for _, name in due)


def _follow(told: dict[Key, Parts], project: str, body: Mapping[str, Any]) -> None:
    """One entry more: the same that `releases` did to the rows when it wrote it."""

    def put(name: str, stage: str, share: int, *, is_good: bool) -> None:
        told[project, name] |= {"stage": stage, "share": share, "is_known_good": is_good}

    if "add" in body:
        fixed = {name: body[name] for name in ("kind", "source", "parent", "manifest")}
        told[project, body["add"]] = {**fixed, **FIRST, SOURCE: body.get(SOURCE)}
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


def _differences(name: str, row: Parts, known: Parts) -> Iterator[str]:
    row["is_known_good"] = bool(row["is_known_good"])
    try:
        row["manifest"] = from_json(row["manifest"])
    except ValueError:
        yield f"release {name}: its manifest cannot be read"
        return
    for part in PARTS:
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


_c = schema.releases.c
_mine = given(_c, "project")
_policy = given(_c, "policy")
_first = {"stage": "candidate", "share": 0, "is_known_good": 0, "created_at": bindparam("now")}
ADD = into(schema.releases, but=("key", "evidence"), **_first, changed_at=bindparam("now"))
SAME = select(schema.releases).where(_mine, _policy, given(_c, "source"))
NUMBER = select(func.coalesce(func.max(_c.number), 0) + 1).where(_mine, _policy)
FIND = select(schema.releases).where(_mine, _policy, given(_c, "number"))
OF_POLICY = select(schema.releases).where(_mine, _policy).order_by(_c.number.desc())
AT = OF_POLICY.where(given(_c, "stage"))
POLICIES = select(_c.policy).where(_mine).distinct().order_by(_c.policy)
MOVE = changing(schema.releases, "release", "stage", "share", "is_known_good", "evidence", "changed_at")
REST_ON = changing(schema.releases, "release", "evidence", "changed_at")
BLOB = select(schema.blobs.c.size).where(schema.blobs.c.sha256 == bindparam("sha256"))
HISTORY = (
    select(schema.ledger)
    .where(schema.ledger.c.project == bindparam("project"), schema.ledger.c.kind == "release")
    .order_by(schema.ledger.c.seq)
)
CHARGES = (
    select(schema.ledger)
    .where(schema.ledger.c.project == bindparam("project"), schema.ledger.c.kind == "account")
    .order_by(schema.ledger.c.seq)
)
LOCK = text("LOCK TABLE releases IN SHARE ROW EXCLUSIVE MODE")  # Postgres: one move at a time, looked at afresh
AGAIN = "another was faster: look again"
BY_HAND = "rollback_by_hand"  # the code of a person's rollback: the one that can be undone


class Releases(OfProject):
    def add(
        self,
        *,
        policy: str,
        kind: PolicyKind,
        source: str,
        parent: str | None = None,
        manifest: Mapping[str, Any] | None = None,
        who: str,
        now: float,
    ) -> WriteFuture[Release]:
        """A new candidate with the policy's next number; the same source again is the release that is there."""
        check_name("policy", policy)
        if not source.strip():
            raise BadInput(f"release of {policy}: source {source!r}", why="must not be blank")
        body: dict[str, Any] = {"policy": policy, "kind": str(PolicyKind(kind)), "source": source, "parent": parent}
        values = {"project": self._project, **body, "manifest": to_json(manifest or {}), "now": now}

        def operation(tx: Transaction) -> Release:
            self._alone(tx)
            if parent is not None:
                self._row(tx, parent)
            row = tx.one(SAME, values)
            if row is not None:
                return rows.release(row)
            kept = source_text(tx, self._project, source)
            if kept is None:
                raise self._none(f"source {source}")
            number = tx.one(NUMBER, values)[0]
            tx.run(ADD, {**values, "number": number})
            proven = {SOURCE: hash_of(kept)} if kept else {}
            self._note(tx, who, {"add": f"{policy}@{number}", **body, "manifest": manifest or {}, **proven}, now)
            return rows.release(tx.one(SAME, values))

        return self._db.write(operation)

    def move(
        self,
        release_id: str,
        to: Stage,
        *,
        expect: Stage,
        share: int | None = None,
        who: str,
        why: str,
        now: float,
        evidence: str | None = None,
        decision: Decision | None = None,
        known_good: bool | None = None,
        expect_live: str | None = None,
        proof: str | None = None,
        fence: Callable[[Transaction], None] | None = None,
    ) -> WriteFuture[Release]:
        """To another stage, or a canary to another share; a Conflict when it is not at `expect` any more.

        With `expect_live`, what it was measured against, a Conflict also when another is live by now (blank: when one
        is). `proof` is the sha256 of the published proof.

        Who becomes live retires who was: that one is known to be good, or it would have been rolled back. Without
        `evidence` the last one stays, but for a second try, which begins with none.
        """
        percent = _share(release_id, to, share)

        def operation(tx: Transaction) -> Release:
            if fence is not None:  # a run's driver that another has replaced moves nothing
                fence(tx)
            self._alone(tx)
            row = self._row(tx, release_id)
            release = rows.release(row)
            if release.stage is not expect:
                raise Conflict(f"release {release_id}", why=f"is {release.stage} by now, not {expect}", remedy=AGAIN)
            self._still_live(tx, release, expect_live)
            move(release, to)
            if release.stage is to and release.share == percent:
                raise Conflict(f"release {release_id}", why=f"has {percent} % of the requests already", remedy=AGAIN)
            self._known(tx, evidence)
            is_good = _is_good(release, to, known_good)
            body = {
                "move": release_id,
                "policy": release.policy,
                "from": release.stage,
                "to": to,
                "share_before": release.share,
                "share": percent,
                "known_good": is_good,
                "retired": self._make_room(tx, release, to, now),
                "why": why,
                "evidence": evidence,
                "proof": proof,
                "decision": None if decision is None else encode(decision),
            }
            rests_on = evidence or (None if to is Stage.CANDIDATE else release.evidence)
            self._put(tx, row[0], to, percent, is_good, rests_on, now)
            self._note(tx, who, body, now)
            return rows.release(self._row(tx, release_id))

        return self._db.write(operation)

    def roll_back(
        self, policy: str, *, failing: str, to: str, who: str, why: str, now: float, reasons: Sequence[Reason]
    ) -> WriteFuture[Release]:
        """Take a live release or a canary back; the answer is the one that is live then, `to`.

        `to` is one that was live before, or still is (a canary taken back leaves it alone). Where it was live until a
        person took it back, this undoes that: it is live as it was, and who served meanwhile is retired.
        """
        told = tuple(reasons)
        return self._db.write(
            lambda tx: self.roll_back_in(tx, policy, failing=failing, to=to, who=who, why=why, now=now, reasons=told)
        )

    def check_rollback(self, policy: str, *, failing: str, to: str) -> None:
        """Refuse what `roll_back` would refuse, as things are; nothing is written."""

        def view(view: Transaction) -> None:
            bad, good = (rows.release(self._row(view, name)) for name in (failing, to))
            self._check_rollback(view, policy, bad, good)

        self._db.reading(view)

    def roll_back_in(
        self,
        tx: Transaction,
        policy: str,
        *,
        failing: str,
        to: str,
        who: str,
        why: str,
        now: float,
        reasons: Sequence[Reason],
    ) -> Release:
        self._alone(tx)
        found = [self._row(tx, name) for name in (failing, to)]
        bad, good = map(rows.release, found)
        taken = self._check_rollback(tx, policy, bad, good)
        told = [{"code": reason.code, "text": reason.text} for reason in reasons]
        if taken is not None:
            self._put(tx, found[0][0], move(bad, Stage.RETIRED), 0, True, bad.evidence, now)
            is_good = bool(taken.get("known_good"))
            # By the table of moves, which knows no other way from here: with nothing lost, and in one transaction.
            self._put(tx, found[1][0], move(good, Stage.CANDIDATE), 0, False, good.evidence, now)
            self._put(tx, found[1][0], Stage.LIVE, 100, is_good, good.evidence, now)
            body = {"restore": to, "policy": policy, "from": good.stage, "retired": failing, "known_good": is_good}
            self._note(tx, who, {**body, "why": why, "reasons": told}, now)
            return rows.release(self._row(tx, to))
        self._put(tx, found[0][0], Stage.ROLLED_BACK, 0, False, bad.evidence, now)
        if good.stage is not Stage.LIVE:
            self._put(tx, found[1][0], move(good, Stage.LIVE), 100, good.is_known_good, good.evidence, now)
        body = {"roll_back": failing, "policy": policy, "from": bad.stage, "share_before": bad.share, "to": to}
        body["known_good"] = bad.is_known_good
        self._note(tx, who, {**body, "why": why, "reasons": told}, now)
        return rows.release(self._row(tx, to))

    def note(
        self,
        release_id: str,
        decision: Decision,
        *,
        evidence: str | None,
        who: str,
        now: float,
        proof: str | None = None,
        fence: Callable[[Transaction], None] | None = None,
    ) -> WriteFuture[Release]:
        """Note that a gate accepts a release or refuses it, and what that rests on; the release stays where it is."""

        def operation(tx: Transaction) -> Release:
            if fence is not None:
                fence(tx)
            self._alone(tx)
            row = self._row(tx, release_id)
            release = rows.release(row)
            self._known(tx, evidence)
            if evidence is not None:
                tx.run(REST_ON, {"release": row[0], "evidence": evidence, "changed_at": now})
            word = "accept" if decision.open else "refuse"
            body = {word: release_id, "policy": release.policy, "stage": release.stage}
            self._note(tx, who, {**body, "evidence": evidence, "proof": proof, "decision": encode(decision)}, now)
            return rows.release(self._row(tx, release_id))

        return self._db.write(operation)

    def charge(
        self,
        policy: str,
        key: str,
        make: Callable[[Sequence[LedgerEntry], Sequence[LedgerEntry]], Mapping[str, Any]],
        *,
        run: str | None,
        who: str,
        now: float,
    ) -> WriteFuture[Mapping[str, Any]]:
        """Enter a test into the policy's α-account. The same key again is the entry that is there; else `make` gets
        the account and the history so far and says what is entered, while nobody else can enter anything."""
        return self._db.write(lambda tx: self.charge_in(tx, policy, key, make, run=run, who=who, now=now))

    def charge_in(
        self,
        tx: Transaction,
        policy: str,
        key: str,
        make: Callable[[Sequence[LedgerEntry], Sequence[LedgerEntry]], Mapping[str, Any]],
        *,
        run: str | None,
        who: str,
        now: float,
    ) -> Mapping[str, Any]:
        self._alone(tx)
        known, history = (self._of_policy_in(tx, policy, query) for query in (CHARGES, HISTORY))
        for entry in known:
            if entry.body.get("charge") == key:
                return entry.body
        body = make(known, history)
        ledger.append(tx, self._project, run, "account", who, body, now)
        tx.touch(notifications.RELEASES)
        return body

    def charges(self, policy: str) -> list[LedgerEntry]:
        """The policy's α-account, oldest entry first."""
        return self._db.reading(lambda view: self._of_policy_in(view, policy, CHARGES))

    def get(self, release_id: str) -> Release:
        return rows.release(self._db.reading(lambda view: self._row(view, release_id)))

    def of_policy(self, policy: str) -> list[Release]:
        """Newest first."""
        return [rows.release(row) for row in self._db.all(OF_POLICY, self._of(policy=policy))]

    def policies(self) -> list[str]:
        return [row[0] for row in self._db.all(POLICIES, self._of())]

    def live(self, policy: str) -> Release | None:
        return next(iter(self.at(policy, Stage.LIVE)), None)

    def at(self, policy: str, stage: Stage) -> list[Release]:
        """Newest first."""
        params = self._of(policy=policy, stage=str(stage))
        return [rows.release(row) for row in self._db.all(AT, params)]

    def history(self, policy: str) -> list[LedgerEntry]:
        """What was decided about the policy's releases, oldest first."""
        return self._db.reading(lambda view: self._of_policy_in(view, policy, HISTORY))

    def recompute(self) -> list[str]:
        """Where the releases of this project are not what the ledger makes of them, a sentence each."""
        return self._db.reading(lambda view: list(recompute(view, self._project)), snapshot=True)

    def _still_live(self, tx: Transaction, release: Release, expected: str | None) -> None:
        if expected is None:
            return
        row = tx.one(AT, self._of(policy=release.policy, stage="live"))
        live = "" if row is None else rows.release(row).id
        if live != expected:
            why = f"{live or 'nothing'} is live by now, not {expected or 'nothing'}"
            raise Conflict(f"release {release.id}", why=why, remedy=AGAIN)

    def _make_room(self, tx: Transaction, release: Release, to: Stage, now: float) -> str | None:
        """Retire who is live when another becomes it: its id. Of canaries, the second is refused."""
        if to not in (Stage.LIVE, Stage.CANARY):
            return None
        row = tx.one(AT, self._of(policy=release.policy, stage=str(to)))
        if row is None or row[3] == release.number:
            return None
        other = rows.release(row)
        if to is Stage.CANARY:
            why = f"{other.id} is the canary of {release.policy} already"
            raise Conflict(f"release {release.id}", why=why, remedy="take that one live, or back, before")
        self._put(tx, row[0], move(other, Stage.RETIRED), 0, True, other.evidence, now)
        return other.id

    def _check_rollback(self, tx: Transaction, policy: str, bad: Release, good: Release) -> Mapping[str, Any] | None:
        """What the ledger says of the rollback that this one undoes; None when it undoes none."""
        if bad.id == good.id:
            raise BadInput(f"release {bad.id}", why="cannot be rolled back to itself", remedy="name the one before it")
        for release in (bad, good):
            if release.policy != policy:
                raise BadInput(f"release {release.id}", why=f"is not one of {policy}")
        if bad.stage is Stage.ROLLED_BACK:
            raise Conflict(f"release {bad.id}", why="is rolled back by now", remedy=AGAIN)
        move(bad, Stage.ROLLED_BACK)
        live = tx.one(AT, self._of(policy=policy, stage="live"))
        if live is not None and live[3] not in (bad.number, good.number):
            why = f"{policy}@{live[3]} is live, and is not what fails"
            raise IllegalMove(f"release {good.id}", why=why, remedy=f"roll back to {policy}@{live[3]}")
        if good.stage in (Stage.LIVE, Stage.RETIRED):
            return None
        taken = None
        if good.stage is Stage.ROLLED_BACK:
            found = map(rows.ledger_entry, tx.all(HISTORY, self._of()))
            taken = taken_back(list(found), good.id)
            if taken is not None and is_undoable(taken):
                return taken
        raise _no_way_back(good, taken)

    def _put(
        self, tx: Transaction, key: int, stage: Stage, share: int, is_good: bool, evidence: str | None, now: float
    ) -> None:
        values = {"stage": str(stage), "share": share, "is_known_good": int(is_good)}
        tx.run(MOVE, {"release": key, **values, "evidence": evidence, "changed_at": now})

    def _note(self, tx: Transaction, who: str, body: Mapping[str, Any], now: float) -> None:
        ledger.append(tx, self._project, None, "release", who, body, now)
        tx.touch(notifications.RELEASES)

    def _alone(self, tx: Transaction) -> None:
        if not tx.is_sqlite:
            tx.run(LOCK, {})

    def _known(self, tx: Transaction, evidence: str | None) -> None:
        if evidence is not None and tx.one(BLOB, {"sha256": evidence}) is None:
            raise NotFound(
                f"evidence {evidence[:12]}", why="there is no such blob", remedy="put it into the store first"
            )

    def _of_policy_in(self, view: Transaction, policy: str, query: Any) -> list[LedgerEntry]:
        found = map(rows.ledger_entry, view.all(query, self._of()))
        return [entry for entry in found if entry.body.get("policy") == policy]

    def _row(self, view: Transaction, release_id: str) -> Any:
        policy, _, number = release_id.rpartition("@")
        params = self._of(policy=policy)
        n = sql.number(number)
        row = None if n is None else view.one(FIND, {**params, "number": n})
        if row is not None:
            return row
        raise self._none(f"release {release_id!r}", "'holdfast release list' shows them")


def taken_back(history: Sequence[LedgerEntry], release_id: str) -> Mapping[str, Any] | None:
    """What the ledger says of the last rollback that took it back."""
    return next((entry.body for entry in reversed(history) if entry.body.get("roll_back") == release_id), None)


def is_undoable(taken: Mapping[str, Any]) -> bool:
    """Whether a person took back what was live; what a guard found is not undone by asking."""
    return taken.get("from") == Stage.LIVE and [one["code"] for one in taken.get("reasons", ())] == [BY_HAND]


def _no_way_back(release: Release, taken: Mapping[str, Any] | None) -> IllegalMove:
    """Why a release cannot be rolled back to, and what may be done instead."""
    again = f"'holdfast release retry {release.id}' makes it a candidate again"
    if release.stage is Stage.ROLLED_BACK:
        codes = [one["code"] for one in (taken or {}).get("reasons", ())]
        of = f" ({', '.join(codes)})" if codes else ""
        what = "while it was a canary" if (taken or {}).get("from") == Stage.CANARY else "while it was live"
        return IllegalMove(f"release {release.id}", why=f"was taken back{of} {what}", remedy=again)
    if release.stage is Stage.REJECTED:
        return IllegalMove(f"release {release.id}", why="was rejected, and not live", remedy=again)
    why = f"is {release.stage}, and not one that was live until another took its place"
    return IllegalMove(f"release {release.id}", why=why, remedy=f"'holdfast release promote {release.id}' goes on")


def source_text(view: Transaction, project: str, source: str) -> str | None:
    """The record of the checkpoint or of the resources; None where there is none.

    Of what lies outside the store nothing can be said: it is blank."""
    kind, _, name = source.partition(":")
    if kind == "checkpoint":
        row = view.one(artifacts.FIND_CHECKPOINT, {"project": project, "id": name})
    elif kind == "resources":
        number = sql.number(name)
        row = None if number is None else view.one(artifacts.BODY, {"project": project, "version": number})
    else:
        return ""
    return None if row is None else str(row[0])


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _share(release_id: str, to: Stage, share: int | None) -> int:
    """Percent of the requests at that stage."""
    if to is Stage.CANARY:
        if share is None or not 1 <= share <= 100:
            why = "a canary answers from 1 to 100 percent of the requests"
            raise BadInput(f"release {release_id}: share = {share}", why=why, remedy="begin with 5")
        return share
    due = 100 if to is Stage.LIVE else 0
    if share not in (None, due):
        why = f"{to} goes with {due} percent"
        raise BadInput(f"release {release_id}: share = {share}", why=why, remedy="leave the share out")
    return due


def _is_good(release: Release, to: Stage, told: bool | None) -> bool:
    """What was taken back or refused is not known to be good, whatever it was before."""
    if to in (Stage.ROLLED_BACK, Stage.REJECTED, Stage.CANDIDATE):
        return False
    return release.is_known_good if told is None else told
