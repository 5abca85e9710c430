"""Runs: begun, found, ordered about, ended and taken up again, within their project and with a line in the ledger."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput, IllegalMove, NotFound, StaleLease, StoreError
from holdfast.contracts.run import DesiredState, Process, RunRecord, RunState, WorkerRecord
from holdfast.store.runs import HELD, DesiredStates
from holdfast.store.sql import to_json
from holdfast.store.store import Store, open_store
from tests.collect.scene import PATIENCE_S, until
from tests.conftest import Clock
from tests.store.scene import begin, once, says


def want(store: Store, run: str, wanted: DesiredState, clock: Clock) -> RunRecord:
    return store.runs.want(run, wanted, who="op", why="because", now=clock.now).result()


def end(store: Store, run: str, state: RunState, clock: Clock, error: str | None = None) -> RunRecord:
    return store.runs.end(run, state, who="op", now=clock.now, error=error).result()


def resume(store: Store, run: str, clock: Clock) -> RunRecord:
    return store.runs.resume(run, who="op", now=clock.now, silent_s=10.0).result()


def bodies(store: Store, run: str) -> list[Any]:
    return [(entry.kind, entry.who, entry.body) for entry in store.ledger.entries(run=run)]


def test_a_new_run_is_numbered_and_noted(store: Store, clock: Clock) -> None:
    given: dict[str, Any] = {"kind": "optimize", "model_ref": "m-1", "settings": {"b": [1], "a": "ü"}, "queue_limit": 7}
    run = store.runs.begin(**given, salt="xyz", who="me", now=clock.now).result()
    states: dict[str, Any] = {"state": RunState.RUNNING, "wanted": DesiredState.RUNNING, "error": None, "driver": 1}
    times = {"created_at": clock.now, "beat_at": clock.now, "ended_at": None}
    assert run == RunRecord(id="run-1-xyz", project="default", **given, **states, **times)
    assert store.runs.get(run.id) == run
    assert store.runs.queue_limit(run.id) == 7
    settings = hashlib.sha256(to_json(given["settings"]).encode()).hexdigest()
    assert bodies(store, run.id) == [("run", "me", {"begin": "optimize", "model_ref": "m-1", "settings": settings})]


def test_a_run_is_found_by_the_beginning_of_its_name(store: Store, clock: Clock) -> None:
    for salt in ("abc", "abd", *"xxxxxxx", "k"):
        begin(store, clock, salt=salt)
    for text, found in {
        "run-1-abc": "run-1-abc",  # in full
        "run-1-a": "run-1-abc",  # cut short
        "run-2": "run-2-abd",
        "run-1": "run-1-abc",  # a whole number: not run 10
    }.items():
        assert store.runs.get(text).id == found
    none = "there is none in project 'default'"
    several = "several start so: run-1-abc, run-2-abd, run-3-x"
    for text, why in {
        "run-": several,
        "": several,
        "RUN-2": none,  # letters are what they are
        "run_2": none,  # no sign is a wildcard
        "run-%abd": none,
        "run-99": none,
    }.items():
        with says(NotFound, f"run {text!r}: {why}; 'holdfast run list' lists them"):
            store.runs.get(text)


def test_the_newest_come_first_page_by_page_and_each_has_its_number(store: Store, clock: Clock) -> None:
    ids = [begin(store, clock) for _ in range(5)]
    assert ids == [f"run-{number}-a" for number in range(1, 6)]
    assert [store.runs.key(run) for run in ids * 2] == [1, 2, 3, 4, 5] * 2
    first = [run.id for run in store.runs.newest(most=2)]
    second = [run.id for run in store.runs.newest(most=2, before=first[-1])]
    third = [run.id for run in store.runs.newest(most=2, before=second[-1])]
    assert first + second + third == ids[::-1]


def test_an_order_is_kept_and_noted_with_who_and_why(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    answer = want(store, run, DesiredState.PAUSED, clock)
    assert answer.wanted is store.runs.get(run).wanted is DesiredState.PAUSED
    want(store, run, DesiredState.RUNNING, clock)
    assert bodies(store, run)[1:] == [
        ("order", "op", {"wanted": "paused", "before": "running", "why": "because"}),
        ("order", "op", {"wanted": "running", "before": "paused", "why": "because"}),
    ]


def test_a_cancelled_run_stays_cancelled(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    want(store, run, DesiredState.CANCELLED, clock)
    want(store, run, DesiredState.CANCELLED, clock)  # again is harmless
    before = bodies(store, run)
    for wanted in (DesiredState.RUNNING, DesiredState.PAUSED, DesiredState.DRAINING):
        with says(IllegalMove, f"run {run}: is cancelled; start a new run"):
            want(store, run, wanted, clock)
    assert bodies(store, run) == before
    with pytest.raises(IllegalMove, match="was cancelled for good"):
        resume(store, run, clock)


def test_an_ended_run_takes_no_orders_but_to_be_cancelled(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    with pytest.raises(BadInput, match=f"^run {run}: running is not an end$"):
        end(store, run, RunState.RUNNING, clock)
    end(store, run, RunState.FAILED, clock)
    with says(IllegalMove, f"run {run}: is failed, not running; the command that began it takes it up again"):
        want(store, run, DesiredState.PAUSED, clock)
    assert want(store, run, DesiredState.CANCELLED, clock).wanted is DesiredState.CANCELLED


def test_an_end_is_kept_and_noted_and_a_run_that_stopped_is_taken_up_again(store: Store, clock: Clock) -> None:
    for state in (RunState.FAILED, RunState.CANCELLED, RunState.TIMED_OUT, RunState.COMPLETED):
        run = begin(store, clock)
        want(store, run, DesiredState.DRAINING, clock)
        clock.advance(5)
        ended = end(store, run, state, clock, error="a\x00b")
        assert ended == store.runs.get(run)
        assert (ended.state, ended.ended_at, ended.beat_at, ended.error) == (state, clock.now, clock.now, "a\ufffdb")
        assert bodies(store, run)[-1] == ("run", "op", {"end": str(state), "error": "a\ufffdb"})
        clock.advance(1)
        again = resume(store, run, clock)
        assert again == store.runs.get(run)
        assert (again.state, again.wanted, again.ended_at, again.error) == ("running", "running", None, None)
        assert bodies(store, run)[-1] == ("run", "op", {"resume": str(state)})


def test_a_run_whose_process_died_is_taken_up_once_it_has_been_silent(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    clock.advance(9.9)
    why = "another process drives it (last sign of life 9.9 s ago)"
    with says(IllegalMove, f"run {run}: {why}; stop that process, or wait 1 s if it is dead"):
        resume(store, run, clock)
    clock.advance(0.1)
    assert resume(store, run, clock).beat_at == clock.now


def test_a_run_whose_process_is_known_to_be_gone_is_taken_up_at_once(store: Store, clock: Clock) -> None:
    first, second = (Process(machine="here", pid=pid) for pid in (1001, 1002))
    begun = {"kind": "optimize", "model_ref": "m", "settings": {}, "salt": "a", "who": "op"}
    run = store.runs.begin(**begun, now=clock.now, process=first).result().id  # type: ignore[arg-type]
    gone: list[Process] = []

    def take_up() -> RunRecord:
        clock.advance(1)
        again = {"who": "op", "now": clock.now, "silent_s": 10.0, "process": second, "is_gone": gone.__contains__}
        return store.runs.resume(run, **again).result()  # type: ignore[arg-type]

    with pytest.raises(IllegalMove, match="or wait 9 s if it is dead"):
        take_up()
    gone.append(first)
    assert take_up().driver == 2
    assert bodies(store, run)[-1][2]["process"] == {"machine": "here", "pid": 1002, "started": ""}
    with pytest.raises(IllegalMove, match="another process drives it"):
        take_up()  # it is the second one's now, which lives
    unnoted = begin(store, clock, salt="b")
    with pytest.raises(IllegalMove, match="another process drives it"):
        store.runs.resume(unnoted, who="op", now=clock.now, silent_s=10.0, is_gone=lambda process: True).result()


def test_who_slept_while_another_took_the_run_up_neither_beats_nor_ends_it(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    asleep = store.runs.get(run).driver
    clock.advance(10)
    awake = resume(store, run, clock)
    assert awake.driver == asleep + 1
    ledger = bodies(store, run)
    for call in (
        lambda: store.runs.beat(run, driver=asleep, now=clock.now + 5),
        lambda: store.runs.end(run, RunState.FAILED, who="asleep", now=clock.now + 5, driver=asleep),
    ):
        why = "another process has taken it up, and this one may not go on"
        with says(StaleLease, f"run {run}: {why}; 'holdfast run list' shows how the other fares"):
            call().result()
    assert store.runs.get(run) == awake
    assert bodies(store, run) == ledger
    assert store.runs.beat(run, driver=awake.driver, now=clock.now + 5).result() is None
    assert store.runs.get(run).beat_at == clock.now + 5
    ended = store.runs.end(run, RunState.COMPLETED, who="awake", now=clock.now + 5, driver=awake.driver).result()
    assert (ended.state, ended.driver) == (RunState.COMPLETED, awake.driver)


def test_each_that_takes_a_run_up_has_a_number_of_its_own(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    drivers = [store.runs.get(run).driver]
    for _ in range(3):
        end(store, run, RunState.FAILED, clock)
        drivers.append(resume(store, run, clock).driver)
    assert drivers == [1, 2, 3, 4]


def test_an_operators_word_ends_a_run_whoever_drives_it(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    clock.advance(10)
    resume(store, run, clock)
    assert end(store, run, RunState.CANCELLED, clock).state is RunState.CANCELLED


def begun(store: Store) -> str:
    return store.runs.begin(kind="k", model_ref="m", settings={}, salt="a", who="t", now=time.time()).result().id


async def test_what_another_process_orders_is_known_soon(store: Store, url: str) -> None:
    run, other = begun(store), begun(store)
    orders = DesiredStates(store.runs, store.changes)
    assert (orders.of(run), orders.of(other)) == (DesiredState.RUNNING, DesiredState.RUNNING)
    with open_store(url) as operator:
        for wanted in (DesiredState.PAUSED, DesiredState.FROZEN, DesiredState.RUNNING, DesiredState.CANCELLED):
            operator.runs.want(run, wanted, who="ann", why="w", now=time.time()).result()
            await until(lambda now=wanted: orders.of(run) is now)  # type: ignore[misc]
    assert orders.of(other) is DesiredState.RUNNING
    assert frozenset({DesiredState.PAUSED, DesiredState.FROZEN}) == HELD
    with pytest.raises(NotFound):
        orders.of("run-99")


@once
def test_nothing_is_read_while_nothing_was_ordered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run, orders, read = begun(store), DesiredStates(store.runs, store.changes), list[str]()
    get = store.runs.get

    def counted(name: str) -> object:
        read.append(name)
        return get(name)

    monkeypatch.setattr(store.runs, "get", counted)
    patience = time.monotonic() + PATIENCE_S
    before = -1
    while len(read) != before:  # the first look at the file is news to whoever begins to watch it
        assert time.monotonic() < patience
        before = len(read)
        for _ in range(50):
            orders.of(run)
            time.sleep(0.005)
    assert before <= 2
    store.runs.want(run, DesiredState.PAUSED, who="ann", why="w", now=time.time()).result()
    assert orders.of(run) is DesiredState.PAUSED  # our own order is known at once


@once
def test_whoever_waits_wakes_with_the_next_order(store: Store) -> None:
    run, orders, woke = begun(store), DesiredStates(store.runs, store.changes), threading.Event()
    orders.of(run)

    def wait() -> None:
        while orders.of(run) is DesiredState.RUNNING:
            orders.wait(PATIENCE_S)
        woke.set()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert not woke.wait(0.1)
    store.runs.want(run, DesiredState.FROZEN, who="ann", why="w", now=time.time()).result()
    assert woke.wait(PATIENCE_S / 2)
    orders.wait(0.0)  # not for ever


def register(store: Store, worker: str, clock: Clock) -> None:
    store.workers.register(worker, host="reef", pid=42, slots=8, now=clock.now).result()


def test_a_worker_is_born_beats_and_stops(store: Store, clock: Clock) -> None:
    began = clock.now
    for worker in ("w0", "w1", "w2"):
        register(store, worker, clock)
    born = {"host": "reef", "pid": 42, "slots": 8, "started_at": began, "beat_at": began, "stopped_at": None}
    workers = [WorkerRecord(id=worker, **born) for worker in ("w2", "w1", "w0")]  # type: ignore[arg-type]
    assert (store.workers.newest(), store.workers.newest(2)) == (workers, workers[:2])
    assert store.workers.beat("w1", now=clock.advance(2)).result() is None
    assert store.workers.newest() == [workers[0], replace(workers[1], beat_at=clock.now), workers[2]]
    assert store.workers.stop("w1", now=clock.advance(3)).result() is None
    assert store.workers.newest()[1] == replace(workers[1], beat_at=clock.now, stopped_at=clock.now)
    with pytest.raises(StoreError, match=r"(?i)unique"):  # two cannot have one name
        register(store, "w1", clock)
    assert len(store.workers.newest()) == 3
