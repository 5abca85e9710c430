"""Alerts stand once for each code and run, are known to somebody, and are cleared; each of that is in the ledger."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from holdfast.contracts.commands import Alert, Severity
from holdfast.contracts.errors import NotFound
from holdfast.store.store import Store, open_store

BACKLOG = Alert(code="backlog", severity=Severity.WARNING, message="100 wait", at=5.0)
OF_RUN = replace(BACKLOG, run="run-1-a")


def raised(store: Store, *alerts: Alert) -> list[Alert]:
    return [store.alerts.raise_(one).result() for one in alerts]


def bodies(store: Store) -> list[tuple[str | None, str, object]]:
    return [(one.run, one.who, one.body) for one in store.ledger.entries() if one.kind == "alert"]


def test_an_alert_stands_once_for_each_code_and_run(store: Store, url: str) -> None:
    first, second = raised(store, BACKLOG, OF_RUN)
    assert (first.id, second.id) == ("alert-1", "alert-2")
    assert raised(store, replace(BACKLOG, message="101 wait", at=6.0)) == [first]  # it stands as it was raised
    assert store.alerts.standing() == [second, first]
    assert (store.alerts.find("backlog"), store.alerts.find("backlog", "run-1-a")) == (first, second)
    assert len(bodies(store)) == 2
    with open_store(url, project="other") as elsewhere:
        assert elsewhere.alerts.standing() == elsewhere.alerts.history() == []


def test_an_alert_that_grows_worse_is_nobodys_news_any_more(store: Store) -> None:
    raised(store, BACKLOG)
    store.alerts.acknowledge("backlog", None, "ann", 6.0).result()
    (worse,) = raised(store, replace(BACKLOG, severity=Severity.CRITICAL, message="9000 wait", at=7.0))
    assert (worse.id, worse.severity, worse.message, worse.at) == ("alert-1", Severity.CRITICAL, "9000 wait", 5.0)
    assert (worse.acknowledged_by, worse.acknowledged_at) == (None, None)


def test_who_knew_first_is_kept(store: Store) -> None:
    raised(store, BACKLOG)
    known = store.alerts.acknowledge("backlog", None, "ann", 6.0, why="on it").result()
    assert (known.acknowledged_by, known.acknowledged_at) == ("ann", 6.0)
    assert store.alerts.acknowledge("backlog", None, "bob", 7.0).result() == known
    with pytest.raises(NotFound, match="alert 'backlog' of run-1-a: does not stand"):
        store.alerts.acknowledge("backlog", "run-1-a", "ann", 6.0).result()


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
    store.alerts.acknowledge("backlog", "run-1-a", "ann", 6.0, why="on it").result()
    store.alerts.clear("backlog", "run-1-a", at=7.0).result()
    assert bodies(store) == [
        ("run-1-a", "watch", {"raise": "backlog", "severity": "warning", "message": "100 wait"}),
        ("run-1-a", "ann", {"acknowledge": "backlog", "why": "on it"}),
        ("run-1-a", "watch", {"clear": "backlog"}),
    ]


def test_two_watchmen_raise_one_alert(store: Store, url: str) -> None:
    def watch() -> None:
        with open_store(url) as mine:
            mine.alerts.raise_(BACKLOG).result()

    threads = [threading.Thread(target=watch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.id is not None for one in store.alerts.standing()] == [True]
    assert len(bodies(store)) == 1
