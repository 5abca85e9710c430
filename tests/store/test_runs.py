"""Runs: begun, found, ordered about, ended and taken up again, within their project and with a line in the ledger."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.errors import BadInput, IllegalMove, NotFound, StaleLease
from holdfast.contracts.run import DesiredState, Process, RunRecord, RunState
from holdfast.store.store import Store, open_store
from tests.conftest import Clock
from tests.store.scene import begin


def want(store: Store, run: str, wanted: DesiredState, clock: Clock) -> RunRecord:
    return store.runs.want(run, wanted, who="op", why="because", now=clock.now).result()


def end(store: Store, run: str, state: RunState, clock: Clock, error: str | None = None) -> RunRecord:
    return store.runs.end(run, state, who="op", now=clock.now, error=error).result()


def resume(store: Store, run: str, clock: Clock) -> RunRecord:
    return store.runs.resume(run, who="op", now=clock.now, silent_s=10.0).result()


def bodies(store: Store, run: str) -> list[Any]:
    return [(entry.kind, entry.who, entry.body) for entry in store.ledger.entries(run=run)]


def test_a_new_run_is_numbered_and_noted(store: Store, clock: Clock) -> None:
    run = store.runs.begin(
        kind="optimize",
        model_ref="m-1",
        settings={"b": [1], "a": "ü"},
        salt="xyz",
        who="me",
        now=clock.now,
        queue_limit=7,
    ).result()
    assert run == RunRecord(
        id="run-1-xyz",
        project="default",
        kind="optimize",
        state=RunState.RUNNING,
        wanted=DesiredState.RUNNING,
        model_ref="m-1",
        settings={"b": [1], "a": "ü"},
        queue_limit=7,
        created_at=clock.now,
        beat_at=clock.now,
        ended_at=None,
        error=None,
        driver=1,
    )
    assert store.runs.get(run.id) == run
    assert store.runs.queue_limit(run.id) == 7
    assert bodies(store, run.id) == [("run", "me", {"begin": "optimize", "model_ref": "m-1"})]


def test_runs_with_the_same_salt_have_different_names(store: Store, clock: Clock) -> None:
    assert [begin(store, clock), begin(store, clock)] == ["run-1-a", "run-2-a"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("run-1-abc", "run-1-abc"),  # in full
        ("run-1-a", "run-1-abc"),  # cut short
        ("run-2", "run-2-abd"),
        ("run-1", "run-1-abc"),  # a whole number: not run 10
        ("run-", "several start so: run-1-abc, run-2-abd, run-3-x"),
        ("RUN-2", "there is none in project 'default'"),  # letters are what they are
        ("run_2", "there is none in project 'default'"),  # no sign is a wildcard
        ("run-%abd", "there is none in project 'default'"),
        ("run-99", "there is none in project 'default'"),
        ("", "several start so: run-1-abc, run-2-abd, run-3-x"),
    ],
)
def test_a_run_is_found_by_the_beginning_of_its_name(store: Store, clock: Clock, text: str, found: str) -> None:
    for salt in ("abc", "abd", *"xxxxxxx", "k"):
        begin(store, clock, salt=salt)
    if found.startswith("run-"):
        assert store.runs.get(text).id == found
        return
    with pytest.raises(NotFound) as refused:
        store.runs.get(text)
    assert str(refused.value) == f"run {text!r}: {found}; 'holdfast runs' lists them"


def test_the_newest_come_first_page_by_page(store: Store, clock: Clock) -> None:
    ids = [begin(store, clock) for _ in range(5)]
    first = [run.id for run in store.runs.newest(most=2)]
    second = [run.id for run in store.runs.newest(most=2, before=first[-1])]
    third = [run.id for run in store.runs.newest(most=2, before=second[-1])]
    assert first + second + third == ids[::-1]


def test_a_project_sees_its_own_runs_only(store: Store, url: str, clock: Clock) -> None:
    mine = begin(store, clock)
    with open_store(url, project="other") as elsewhere:
        theirs = begin(elsewhere, clock)
        assert [run.id for run in elsewhere.runs.newest()] == [theirs]
        assert [run.id for run in store.runs.newest()] == [mine]
        for call in (
            lambda: elsewhere.runs.get(mine),
            lambda: elsewhere.runs.key(mine),
            lambda: want(elsewhere, mine, DesiredState.PAUSED, clock),
            lambda: end(elsewhere, mine, RunState.FAILED, clock),
            lambda: resume(elsewhere, mine, clock),
            lambda: elsewhere.runs.beat(mine, driver=1, now=1.0),
            lambda: elsewhere.runs.newest(before=mine),
        ):
            with pytest.raises(NotFound, match="there is none in project 'other'"):
                call()
    assert store.runs.get(mine).state is RunState.RUNNING


def test_an_order_is_kept_and_noted_with_who_and_why(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    answer = want(store, run, DesiredState.PAUSED, clock)
    assert answer.wanted is store.runs.get(run).wanted is DesiredState.PAUSED
    want(store, run, DesiredState.RUNNING, clock)
    assert bodies(store, run)[1:] == [
        ("order", "op", {"wanted": "paused", "before": "running", "why": "because"}),
        ("order", "op", {"wanted": "running", "before": "paused", "why": "because"}),
    ]


@pytest.mark.parametrize("wanted", [DesiredState.RUNNING, DesiredState.PAUSED, DesiredState.DRAINING])
def test_a_cancelled_run_stays_cancelled(store: Store, clock: Clock, wanted: DesiredState) -> None:
    run = begin(store, clock)
    want(store, run, DesiredState.CANCELLED, clock)
    want(store, run, DesiredState.CANCELLED, clock)  # again is harmless
    before = bodies(store, run)
    with pytest.raises(IllegalMove) as refused:
        want(store, run, wanted, clock)
    assert str(refused.value) == f"run {run}: is cancelled; start a new run"
    assert bodies(store, run) == before
    with pytest.raises(IllegalMove, match="was cancelled for good"):
        resume(store, run, clock)


def test_an_ended_run_takes_no_orders_but_to_be_cancelled(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    end(store, run, RunState.FAILED, clock)
    with pytest.raises(IllegalMove) as refused:
        want(store, run, DesiredState.PAUSED, clock)
    assert str(refused.value) == (f"run {run}: is failed, not running; the command that began it takes it up again")
    assert want(store, run, DesiredState.CANCELLED, clock).wanted is DesiredState.CANCELLED


@pytest.mark.parametrize("state", [s for s in RunState if s is not RunState.RUNNING])
def test_an_end_is_kept_and_noted(store: Store, clock: Clock, state: RunState) -> None:
    run = begin(store, clock)
    clock.advance(5)
    answer = end(store, run, state, clock, error="a\x00b")
    assert answer == store.runs.get(run)
    assert (answer.state, answer.ended_at, answer.beat_at, answer.error) == (state, clock.now, clock.now, "a\ufffdb")
    assert bodies(store, run)[-1] == ("run", "op", {"end": str(state), "error": "a\ufffdb"})


def test_running_is_not_an_end(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    with pytest.raises(BadInput, match=f"^run {run}: running is not an end$"):
        end(store, run, RunState.RUNNING, clock)


def test_a_beat_is_a_sign_of_life(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    assert store.runs.beat(run, driver=1, now=clock.advance(3)).result() is None
    assert store.runs.get(run).beat_at == clock.now


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED, RunState.TIMED_OUT])
def test_a_run_that_stopped_is_taken_up_again(store: Store, clock: Clock, state: RunState) -> None:
    run = begin(store, clock)
    want(store, run, DesiredState.DRAINING, clock)
    end(store, run, state, clock, error="stopped")
    clock.advance(1)
    answer = resume(store, run, clock)
    assert answer == store.runs.get(run)
    assert (answer.state, answer.wanted, answer.ended_at, answer.error) == (
        RunState.RUNNING,
        DesiredState.RUNNING,
        None,
        None,
    )
    assert bodies(store, run)[-1] == ("run", "op", {"resume": str(state)})


def test_a_run_whose_process_died_is_taken_up_once_it_has_been_silent(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    clock.advance(9.9)
    with pytest.raises(IllegalMove) as refused:
        resume(store, run, clock)
    assert str(refused.value) == (
        f"run {run}: another process drives it (last sign of life 9.9 s ago); "
        "stop that process, or wait 1 s if it is dead"
    )
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
    assert bodies(store, run)[-1][2]["process"] == {"machine": "here", "pid": 1002}
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
        with pytest.raises(StaleLease) as refused:
            call().result()
        assert str(refused.value) == (
            f"run {run}: another process has taken it up, and this one may not go on; "
            "'holdfast runs' shows how the other fares"
        )
    assert store.runs.get(run) == awake
    assert bodies(store, run) == ledger
    store.runs.beat(run, driver=awake.driver, now=clock.now + 5).result()
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


def test_the_number_of_a_run_does_not_change(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    assert store.runs.key(run) == store.runs.key(run) == 1
