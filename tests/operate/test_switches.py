"""Switches: one snapshot at a time, whoever flips them meanwhile; and fuses that blow once, with their reason."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.flag import ALL_ON, Features, FlagRule, run_unit
from holdfast.contracts.run import StepRecord
from holdfast.operate.alerts import QUIET, AlarmRule
from holdfast.operate.switches import (
    DIVERGENCE,
    LATENCY,
    Fuse,
    divergence,
    flag_reader,
    p95,
    pull,
    snapshot_at,
    snapshot_of,
    trip,
)
from holdfast.promote.flags import SWITCHES, features
from holdfast.reward.evaluation import TaskResult, evaluate, parts
from holdfast.store.store import Store
from holdfast.workloads.tooluse.score import scorer
from tests.conftest import Files

AT: dict[str, Any] = {"clock": lambda: 5.0, "environment": {}}
KEY = "ab12"


def reading(store: Store, **how: Any) -> Callable[[Sequence[StepRecord]], Features]:
    """The features of the run KEY, as its driver reads them before each step."""
    read = flag_reader(store, **how)
    return lambda done: read(done).features(KEY)


SOME = {"who": "ann", "why": "test", "now": 1.0}


def switch_on(store: Store) -> None:
    for flag in features({}, owner="ann"):
        store.flags.put(flag, **SOME).result()


def killed(store: Store) -> set[str]:
    return {flag.name for flag in store.flags.all() if flag.killed}


def test_a_store_says_what_is_on_and_one_that_is_not_there_says_nothing(file_store: Store, files: Files) -> None:
    assert snapshot_of(file_store, **AT).features(KEY) == ALL_ON
    switch_on(file_store)
    pull(file_store, LATENCY["judges"], why="slow", now=2.0, environment={})
    for found in (snapshot_of(file_store, **AT), snapshot_at(file_store.url, "default", **AT)):
        assert found.features(KEY) == Features(judges=False)
    nowhere = files.blank()
    assert snapshot_at(nowhere, "default", **AT).features(KEY) == ALL_ON
    dead = {"HOLDFAST_KILL_INTELLIGENTEVALUATION_MODELJUDGES": "1"}
    found = snapshot_at(nowhere, "default", clock=lambda: 0.0, environment=dead)
    assert found.features(KEY) == Features(judges=False)


def test_flags_flipped_under_load_never_mix_within_one_piece_of_work(file_store: Store) -> None:
    """Workers take a snapshot and work by it, while every flag is flipped over and over: no report is of two kinds."""
    switch_on(file_store)
    flags = {flag.name: flag for flag in file_store.flags.all()}
    seen: list[tuple[Features, set[str], set[str]]] = []
    over, errors = threading.Event(), list[BaseException]()
    task = {"expected": "4", "style": "brief"}
    result = TaskResult(task="q", output="4", expected="4", change={"a.py": ("a = 1\n", "a = 2\n")})

    def work() -> None:
        try:
            while not over.is_set():
                now = snapshot_of(file_store, **AT).features(KEY)
                found = evaluate(result, parts(now, judge=lambda _: []))
                signals = {one.name for one in scorer(now)(task, "4", ())}
                seen.append((now, {one.part for one in found.verdicts}, signals))
        except BaseException as error:  # told by the test, not by a thread that nobody hears
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for turn in range(6):
        done = len(seen)
        for name in SWITCHES.values():
            file_store.flags.put(replace(flags[name], killed=turn % 2 == 0), **SOME).result()
        while len(seen) < done + 3 and not errors:  # every turn is met by some, however busy the machine is
            time.sleep(0.01)
    over.set()
    for worker in workers:
        worker.join()
    assert not errors and len(seen) > 10
    for now, looked_at, signals in seen:
        assert ("minimal diff" in looked_at) == now.minimal_diff
        assert ("judges" in looked_at) == now.judges
        assert ("efficiency" in signals) == now.tool_rewards
        assert {"rules", "safety"} <= looked_at and {"success", "format"} <= signals
    assert len({tuple(asdict(now).values()) for now, _, _ in seen}) > 1  # it was flipped while they worked
    assert snapshot_of(file_store, **AT).features(KEY) == ALL_ON


def test_a_fuse_blows_after_a_while_once_and_says_why(file_store: Store) -> None:
    switch_on(file_store)
    fuse, state = LATENCY["minimal_diff"], QUIET
    looks = [(0.0, 500.0, 19), (10.0, 500.0, 40), (60.0, 500.0, 40), (65.0, 190.0, 40)]  # too few; it must hold; a dip
    looks += [(70.0, 300.0, 40), (129.0, 300.0, 40)]
    for now, value, n in looks:
        state, alert = trip(file_store, fuse, state, value, n=n, now=now, environment={})
        assert alert is None and not killed(file_store)
    state, alert = trip(file_store, fuse, state, 300.0, n=40, now=130.0, environment={})
    assert alert is not None and alert.message == "minimal-diff-slow: 300 is above 200 (of 40)"
    assert killed(file_store) == {"rewardHackingPrevention.astAnalysis"}
    assert snapshot_of(file_store, **AT).features(KEY) == Features(minimal_diff=False)
    (entry,) = [one for one in file_store.ledger.entries() if one.who == "guard"]
    assert entry.body["why"] == alert.message

    revived = replace(file_store.flags.get("rewardHackingPrevention.astAnalysis"), killed=False)
    file_store.flags.put(revived, **SOME).result()
    state, alert = trip(file_store, fuse, state, 180.0, n=40, now=300.0, environment={})
    assert alert is None and not killed(file_store)  # between the limits nothing changes, or is killed again
    for now in (400.0, 460.0):
        state, alert = trip(file_store, fuse, state, 100.0, n=40, now=now, environment={})
    assert alert is not None and alert.cleared_at == 460.0 and not killed(file_store)


def test_a_fuse_makes_the_flag_that_nobody_had_set_and_a_person_revives_it(file_store: Store) -> None:
    made = pull(file_store, DIVERGENCE, why="it diverges", now=1.0, environment={})
    assert snapshot_of(file_store, **AT).features(KEY) == Features(learning=False)
    file_store.flags.put(replace(made, killed=False), **SOME).result()
    assert snapshot_of(file_store, **AT).features(KEY) == ALL_ON


def test_a_run_has_its_share_as_a_whole_from_before_it_has_a_number_until_it_is_resumed(file_store: Store) -> None:
    switch_on(file_store)
    flag = file_store.flags.get(SWITCHES["learning"])
    file_store.flags.put(replace(flag, rules=(FlagRule(variant="on", percent=90.0),)), **SOME).result()
    keys = [f"{number:04x}" for number in range(60)]
    begun = [snapshot_of(file_store, **AT).features(key) for key in keys]
    assert 48 <= sum(one.learning for one in begun) < 60
    for key, one in zip(keys, begun, strict=True):
        assert flag_reader(file_store, **AT)([]).features(run_unit(f"run-7-{key}")) == one


def test_there_is_a_fuse_for_every_feature_with_a_documented_limit_and_none_for_others() -> None:
    assert {*LATENCY, DIVERGENCE.feature} == {"budgets", "minimal_diff", "judges", "tool_rewards", "learning"}
    with pytest.raises(BadInput, match="fuse of 'dashboard': there is no such feature; use budgets, "):
        Fuse(feature="dashboard", rule=AlarmRule(name="x", fires_above=1.0, clears_at=0.5))


def updates(*restored: bool | None, at: float = 0.0) -> list[StepRecord]:
    """None: an iteration that moved nothing."""
    bodies = [{} if one is None else {"update": {"restored": "KL 9 > 1" if one else None}} for one in restored]
    how: dict[str, Any] = {"run": "run-1", "function": "learn", "inputs_sha256": "", "at": at}
    return [StepRecord(step=n, name=f"0/{n}/learn", body=body, **how) for n, body in enumerate(bodies)]


def test_learning_that_is_taken_back_again_and_again_is_switched_off(file_store: Store) -> None:
    assert divergence(updates(None, None)) == (None, 0)
    assert divergence(updates(True, None, False)) == (0.5, 2)
    assert divergence(updates(*[True] * 6, *[False] * 6)) == (0.0, 6)  # only the last ones count
    read = reading(file_store, **AT)
    assert read(updates()) == read(updates(False, True)) == read(updates(True, True)) == ALL_ON  # too few
    assert read(updates(False, True, True)) == Features(learning=False)
    assert killed(file_store) == {"agenticRL.trainingPipeline"}


def test_learning_that_was_revived_is_judged_by_what_came_after(file_store: Store) -> None:
    switch_on(file_store)
    name, old = SWITCHES["learning"], updates(True, True, True, True, at=2.0)
    read = reading(file_store, **AT)
    assert read(old) == Features(learning=False)
    flag = file_store.flags.get(name)
    file_store.flags.put(replace(flag, killed=False), who="ann", why="it is mended", now=10.0).result()
    later: dict[str, Any] = {"clock": lambda: 20.0, "environment": {}}
    resumed = reading(file_store, **later)
    for look in (read, resumed):
        assert look(old) == look([*old, *updates(True, True, at=11.0)]) == ALL_ON  # two are too few
    described = replace(file_store.flags.get(name), description="of the pipeline")
    file_store.flags.put(described, who="ann", why="words", now=15.0).result()  # no revival: the two still count
    assert resumed([*old, *updates(True, True, True, at=11.0)]) == Features(learning=False)
    assert file_store.flags.drop(name, who="ann", why="away with it", now=30.0).result().killed
    assert reading(file_store, **later)([*old, *updates(True, True, True, at=11.0)]) == ALL_ON


def test_in_one_process_new_trouble_after_a_revival_kills_again(file_store: Store) -> None:
    switch_on(file_store)
    read, old = reading(file_store, **AT), updates(True, True, True, at=2.0)
    assert read(old) == Features(learning=False)
    flag = file_store.flags.get(SWITCHES["learning"])
    file_store.flags.put(replace(flag, killed=False), who="ann", why="it is mended", now=10.0).result()
    assert read([*old, *updates(True, True, True, at=11.0)]) == Features(learning=False)


def test_the_95th_percentile_is_of_what_was_timed() -> None:
    assert p95([]) is None and p95([3.0]) == 3.0 and p95([float(n) for n in range(100)]) == 95.0
