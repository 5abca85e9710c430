"""An order is obeyed once: the deed, the answer and the ledger's line are one transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.commands import Alert, Command, Overrides, Role, Severity, Token
from holdfast.contracts.errors import BadInput, BadRecord, Conflict, IllegalMove, NotFound, StoreCorrupt
from holdfast.contracts.records import encode
from holdfast.contracts.run import DesiredState
from holdfast.store.commands import Act, CommandResult, OverridesFile, fingerprint
from holdfast.store.sql import Transaction
from holdfast.store.store import Store, open_store
from tests.conftest import Clock
from tests.store.scene import at_once, begin, once, says

PAUSE = Command(id="c1", action="pause", subject="run-1-a", who="ann", why="lunch", at=5.0, args={"a": "1", "b": "2"})


def pausing(store: Store, run: str) -> Act:
    def act(tx: Transaction) -> Mapping[str, Any]:
        return {"wanted": store.runs.want_in(tx, run, DesiredState.PAUSED, who="ann", why="lunch", now=5.0).wanted}

    return act


def test_an_order_is_obeyed_and_noted_together(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    answer = store.commands.once(PAUSE, "operator", pausing(store, run), run=run).result()
    assert answer == CommandResult(body={"wanted": "paused"}, again=False)
    assert store.runs.get(run).wanted is DesiredState.PAUSED
    entry = list(store.ledger.entries(run=run))[-1]
    assert (entry.kind, entry.who, entry.at) == ("command", "ann", 5.0)
    assert entry.body == {
        "id": "c1", "action": "pause", "subject": "run-1-a", "args": {"a": "1", "b": "2"}, "role": "operator",
        "why": "lunch", "answer": {"wanted": "paused"},
    }  # fmt: skip


def test_the_same_order_again_does_nothing_and_has_the_same_answer(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    store.commands.once(PAUSE, "operator", pausing(store, run)).result()
    store.runs.want(run, DesiredState.RUNNING, who="bob", why="back", now=6.0).result()
    before = store.ledger.verify()
    later = replace(PAUSE, at=9.0, args={"b": "2", "a": "1"})  # neither the hour nor the order of words is content
    assert store.commands.known(later) == CommandResult(body={"wanted": "paused"}, again=True)
    assert store.commands.once(later, "operator", pausing(store, run)).result().again
    assert store.runs.get(run).wanted is DesiredState.RUNNING
    assert store.ledger.verify() == before


def test_a_known_id_with_other_content_is_refused(store: Store) -> None:
    store.commands.once(PAUSE, "operator", lambda tx: {}).result()
    said = "order c1: was another one: pause run-1-a by ann; give each order its own id"
    for change in ({"action": "drain"}, {"subject": "run-2"}, {"why": "w"}, {"who": "eve"}, {"args": {}}):
        other = replace(PAUSE, **change)  # type: ignore[arg-type]
        with says(Conflict, said):
            store.commands.once(other, "operator", lambda tx: {}).result()
        with says(Conflict, said):
            store.commands.known(other)


def test_a_deed_that_fails_leaves_nothing_and_its_id_free(store: Store, clock: Clock) -> None:
    run = begin(store, clock)

    def act(tx: Transaction) -> Mapping[str, Any]:
        pausing(store, run)(tx)
        raise BadInput("no", why="not so")

    before = store.ledger.verify()
    with pytest.raises(BadInput):
        store.commands.once(PAUSE, "operator", act).result()
    assert (store.runs.get(run).wanted, store.ledger.verify(), store.commands.known(PAUSE)) == ("running", before, None)
    assert not store.commands.once(PAUSE, "operator", pausing(store, run)).result().again


def test_a_refusal_is_noted_and_its_id_stays_free(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    store.commands.refused(PAUSE, "viewer", "pause: is for operators", run=run).result()
    entry = list(store.ledger.entries(run=run))[-1]
    assert (entry.kind, entry.who, entry.body["refused"]) == ("refusal", "ann", "pause: is for operators")
    assert entry.body["role"] == "viewer"
    assert store.commands.known(PAUSE) is None


def test_an_order_is_known_in_its_own_project_and_whatever_it_says(store: Store, url: str) -> None:
    odd = replace(PAUSE, subject="a\0b", why="half \ud800 a letter", args={"x": "\0"})
    assert not store.commands.once(odd, "operator", lambda tx: {"said": "\0"}).result().again
    assert store.commands.once(odd, "operator", lambda tx: {}).result() == CommandResult(
        body={"said": "\0"}, again=True
    )
    with open_store(url, project="other") as elsewhere:
        assert elsewhere.commands.known(odd) is None


def test_of_many_who_give_the_same_order_at_once_one_is_obeyed(store: Store, url: str) -> None:
    def give(name: str) -> CommandResult:
        with open_store(url) as mine:
            return mine.commands.once(PAUSE, "operator", lambda tx: {"by": name}).result()

    answers = at_once(give, *"abcd")
    assert [one.again for one in answers].count(False) == 1
    assert len({one.body["by"] for one in answers}) == 1
    assert [one.kind for one in store.ledger.entries()] == ["command"]


A, B, C = "aa" * 32, "bb" * 32, "cc" * 32


def add_token(store: Store, clock: Clock, sha256: str = A, **how: float) -> Token:
    return store.tokens.add("ann", Role.OPERATOR, sha256, clock.now, how.get("expires_at"), who="root").result()


def test_a_token_is_found_by_its_hash_and_by_nothing_else(store: Store, url: str, clock: Clock) -> None:
    made = add_token(store, clock)
    assert made == Token(id="tok-1", label="ann", role=Role.OPERATOR, sha256=A, created_at=clock.now)
    assert store.tokens.find(A) == made
    assert store.tokens.find(B) is None
    assert store.tokens.all() == [made]
    with open_store(url, project="other") as elsewhere:
        assert elsewhere.tokens.find(A) is None and elsewhere.tokens.all() == []
        with pytest.raises(NotFound, match="there is none in project 'other'"):
            elsewhere.tokens.revoke("tok-1", "eve", "w", clock.now).result()
        with pytest.raises(BadInput, match="known already"):  # a token is one project's
            add_token(elsewhere, clock)


@once
def test_what_is_not_the_id_of_a_token_is_refused(store: Store, clock: Clock) -> None:
    add_token(store, clock)
    for name in ("tok-2", "tok-01", "1", "tok-x", "", "tok-" + "9" * 30, A):
        with pytest.raises(NotFound, match="'holdfast control tokens list' shows them"):
            store.tokens.revoke(name, "root", "w", clock.now).result()


def test_a_token_is_revoked_once_and_stays_so(store: Store, clock: Clock) -> None:
    add_token(store, clock)
    gone = store.tokens.revoke("tok-1", "root", "lost", clock.advance(5)).result()
    assert gone.revoked_at == clock.now and not gone.is_good(clock.now)
    assert store.tokens.find(A) == gone
    for call in (
        lambda: store.tokens.revoke("tok-1", "root", "again", clock.now).result(),
        lambda: store.tokens.rotate("tok-1", B, "root", clock.now).result(),
    ):
        with pytest.raises(IllegalMove, match="was revoked, and stays so"):
            call()


def test_a_rotated_token_is_good_for_a_while_beside_the_new_one(store: Store, clock: Clock) -> None:
    add_token(store, clock)
    new = store.tokens.rotate("tok-1", B, "root", clock.now, grace_s=60.0).result()
    old = store.tokens.all()[0]
    assert (new.id, new.label, new.role, new.sha256, new.expires_at) == ("tok-2", "ann", Role.OPERATOR, B, None)
    assert old.is_good(clock.now + 59) and not old.is_good(clock.now + 60)
    # a second rotation does not lengthen the life of the first
    store.tokens.rotate("tok-1", C, "root", clock.advance(30), grace_s=3600.0).result()
    assert store.tokens.all()[0].expires_at == old.expires_at
    with pytest.raises(IllegalMove, match="has expired"):
        store.tokens.rotate("tok-1", "dd" * 32, "root", clock.advance(31)).result()
    with pytest.raises(BadInput, match="must be finite"):
        store.tokens.rotate("tok-2", "dd" * 32, "root", clock.now, grace_s=-1.0)


def test_the_new_one_lives_as_long_as_the_old_one_was_to(store: Store, clock: Clock) -> None:
    add_token(store, clock, expires_at=clock.now + 100)
    new = store.tokens.rotate("tok-1", B, "root", clock.advance(40)).result()
    assert new.expires_at == clock.now + 100
    again = store.tokens.rotate("tok-2", C, "root", clock.advance(5), expires_at=clock.now + 7).result()
    assert again.expires_at == clock.now + 7


@once
def test_a_token_is_revoked_for_a_reason_that_people_can_read(store: Store, clock: Clock) -> None:
    add_token(store, clock)
    for why in ("", " ", "x" * 2001):
        with pytest.raises(BadInput, match="token: why"):
            store.tokens.revoke("tok-1", "root", why, clock.now)
    assert store.tokens.all()[0].is_good(clock.now)


def test_the_ledger_has_every_change_and_no_hash(store: Store, clock: Clock) -> None:
    add_token(store, clock, expires_at=clock.now + 100)
    store.tokens.rotate("tok-1", B, "bob", clock.now, grace_s=10.0).result()
    store.tokens.revoke("tok-2", "eve", "lost", clock.now).result()
    entries = list(store.ledger.entries())
    assert [(one.kind, one.who) for one in entries] == [("token", "root"), ("token", "bob"), ("token", "eve")]
    assert entries[0].body == {"add": "tok-1", "label": "ann", "role": "operator", "expires_at": clock.now + 100} | {
        "fingerprint": fingerprint(A)
    }
    assert entries[1].body["rotate"] == "tok-1" and entries[1].body["old_expires_at"] == clock.now + 10
    assert entries[2].body == {"revoke": "tok-2", "why": "lost"}
    told = json.dumps([encode(one) for one in entries])
    assert A not in told and B not in told


BACKLOG = Alert(code="backlog", severity=Severity.WARNING, message="100 wait", at=5.0)
OF_RUN = replace(BACKLOG, run="run-1-a")


def raised(store: Store, *alerts: Alert) -> list[Alert]:
    return [store.alerts.raise_(one).result() for one in alerts]


def acknowledge(store: Store, *given: Any, **more: Any) -> Alert:
    return store.db.write(lambda tx: store.alerts.acknowledge_in(tx, *given, **more)).result()


def bodies(store: Store) -> list[tuple[str | None, str, object]]:
    return [(one.run, one.who, one.body) for one in store.ledger.entries() if one.kind == "alert"]


def test_an_alert_stands_once_for_each_code_and_run(store: Store, url: str) -> None:
    first, second = raised(store, BACKLOG, OF_RUN)
    assert (first.id, second.id) == ("alert-1", "alert-2")
    assert raised(store, replace(BACKLOG, message="101 wait", at=6.0)) == [first]  # it stands as it was raised
    assert store.alerts.standing() == [second, first]
    assert (first.run, second.run) == (None, "run-1-a")
    assert len(bodies(store)) == 2
    with open_store(url, project="other") as elsewhere:
        assert elsewhere.alerts.standing() == elsewhere.alerts.history() == []


def test_an_alert_that_grows_worse_is_nobodys_news_any_more(store: Store) -> None:
    raised(store, BACKLOG)
    acknowledge(store, "backlog", None, "ann", 6.0)
    (worse,) = raised(store, replace(BACKLOG, severity=Severity.CRITICAL, message="9000 wait", at=7.0))
    assert (worse.id, worse.severity, worse.message, worse.at) == ("alert-1", Severity.CRITICAL, "9000 wait", 5.0)
    assert (worse.acknowledged_by, worse.acknowledged_at) == (None, None)


def test_who_knew_first_is_kept(store: Store) -> None:
    raised(store, BACKLOG)
    known = acknowledge(store, "backlog", None, "ann", 6.0, why="on it")
    assert (known.acknowledged_by, known.acknowledged_at) == ("ann", 6.0)
    assert acknowledge(store, "backlog", None, "bob", 7.0) == known
    with pytest.raises(NotFound, match="alert 'backlog' of run-1-a: does not stand"):
        acknowledge(store, "backlog", "run-1-a", "ann", 6.0)


def test_what_is_cleared_is_history_and_may_be_raised_again(store: Store) -> None:
    raised(store, BACKLOG, OF_RUN)
    over = store.alerts.clear("backlog", at=9.0).result()
    assert over is not None and (over.id, over.cleared_at) == ("alert-1", 9.0)
    assert store.alerts.clear("backlog", at=10.0).result() is None
    (again,) = raised(store, replace(BACKLOG, at=20.0))
    early = store.alerts.clear("backlog", "run-1-a", at=1.0).result()  # by a clock that was set back
    assert early is not None and early.cleared_at == 5.0
    assert store.alerts.standing() == [again]
    history = store.alerts.history()
    assert history == [again, early, over]
    assert store.alerts.history(2) + store.alerts.history(2, before=early.id) == history
    with pytest.raises(NotFound, match="is not the id of one"):
        store.alerts.history(2, before="alert-x")


def test_the_ledger_has_each_change_with_who_made_it(store: Store) -> None:
    raised(store, OF_RUN)
    acknowledge(store, "backlog", "run-1-a", "ann", 6.0, why="on it")
    store.alerts.clear("backlog", "run-1-a", at=7.0).result()
    assert bodies(store) == [
        ("run-1-a", "watch", {"raise": "backlog", "severity": "warning", "message": "100 wait"}),
        ("run-1-a", "ann", {"acknowledge": "backlog", "why": "on it"}),
        ("run-1-a", "watch", {"clear": "backlog"}),
    ]


def test_two_watchmen_raise_one_alert(store: Store, url: str) -> None:
    def watch(_: int) -> Alert:
        with open_store(url) as mine:
            return mine.alerts.raise_(BACKLOG).result()

    assert {one.id for one in at_once(watch, *range(4))} == {one.id for one in store.alerts.standing()}
    assert len(store.alerts.standing()) == len(bodies(store)) == 1


def test_each_is_kept_upon_the_others_in_the_documented_shape(tmp_path: Path) -> None:
    kept = OverridesFile(tmp_path, "default")
    assert kept.get() == Overrides()
    kept.put({"enabled": False, "update_interval_rollouts": 3}, now=1.0)
    assert kept.put({"enabled": True}, now=2.0) == {"enabled": True, "update_interval_rollouts": 3}
    assert kept.get() == Overrides(enabled=True, update_interval_rollouts=3)
    assert kept.path == tmp_path / "training-config-overrides.json"
    assert json.loads(kept.path.read_bytes()) == {
        "schema_version": 1, "updated_unix_ms": 2000,
        "pending_overrides": {"enabled": True, "update_interval_rollouts": 3},
    }  # fmt: skip
    with pytest.raises(BadRecord, match="must be a whole number above 0"):
        kept.put({"update_interval_rollouts": 0}, now=3.0)
    assert kept.get() == Overrides(enabled=True, update_interval_rollouts=3)
    assert OverridesFile(tmp_path, "other").get() == Overrides()  # one project does not hear another's


def test_of_two_who_write_at_once_neither_is_lost(tmp_path: Path) -> None:
    def write(name: str) -> list[int]:
        kept, lost = OverridesFile(tmp_path, "default"), []
        for value in range(1, 40):
            kept.put({name: value}, now=1.0)
            if getattr(kept.get(), name) != value:
                lost.append(value)
        return lost

    assert at_once(write, "update_interval_rollouts", "max_rollouts_per_update") == [[], []]


def test_a_file_of_before_is_read_and_a_broken_one_is_named(tmp_path: Path) -> None:
    kept = OverridesFile(tmp_path, "default")
    kept.path.write_text('{"pending_overrides": {"enabled": false, "store_path": "x", "max_failure_streak": 3}}')
    assert kept.get() == Overrides(enabled=False)
    for text in ("{", "[]", '{"pending_overrides": 5}', '{"pending_overrides": {"enabled": 1}}'):
        kept.path.write_text(text)
        with pytest.raises(StoreCorrupt, match="is not what was written"):
            kept.get()
