"""Durable steps: each is recorded once under its name, with its effects, and never changed; the ledger has its hash."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord, Conflict, NotFound, StaleLease, StoreCorrupt
from holdfast.contracts.run import LEGACY_STEP, StepRecord
from holdfast.store import ledger, schema
from holdfast.store.db import engine_for, upgrade
from holdfast.store.ledger import GENESIS, digest
from holdfast.store.runs import LARGEST
from holdfast.store.sql import Transaction
from holdfast.store.store import Store, open_store
from tests.conftest import Clock, Databases, Files
from tests.store.scene import begin, once, problems, says
from tests.store.tamper import damage, damaged, rewrite


def add(store: Store, run: str, name: str, result: dict[str, Any] | None = None, **how: Any) -> StepRecord:
    given = {"function": "pipeline.learn", "inputs_sha256": "ab", "now": 5.0, **how}
    return store.steps.add(run, name, result or {}, **given).result()


def found(store: Store) -> list[str]:
    return problems(store, "steps", "recorded")


def noted(store: Store, run: str) -> list[Any]:
    return [one for one in store.ledger.entries(run=run) if one.kind in ("update", "step")]


def test_steps_come_back_in_the_order_they_were_recorded(store: Store, clock: Clock) -> None:
    run, other = begin(store, clock), begin(store, clock)
    first = add(store, run, "0/1/learn", {"loss": 0.5, "note": "ü"}, now=7.0)
    add(store, other, "0/1/learn")
    second = add(store, run, "0/0/collect", {"ids": []}, function="pipeline.collect", inputs_sha256="", now=6.0)
    assert store.steps.of_run(run) == [first, second]
    assert first == StepRecord(
        run=run,
        step=1,
        name="0/1/learn",
        function="pipeline.learn",
        inputs_sha256="ab",
        at=7.0,
        body={"loss": 0.5, "note": "ü"},
    )
    assert (second.step, second.function, second.inputs_sha256) == (2, "pipeline.collect", "")
    assert [step.step for step in store.steps.of_run(other)] == [1]


def test_a_step_is_read_by_its_name_and_is_none_while_it_is_not_done(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    assert store.steps.get(run, "base") is None
    made = add(store, run, "base", {"version": "p@1"})
    assert store.steps.get(run, "base") == made
    assert store.steps.get(run, "Base") is None


RESULT = {"a": 1, "b": [2]}


def test_the_same_step_again_is_harmless_and_another_of_its_name_is_refused(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    first = add(store, run, "learn", RESULT)
    assert add(store, run, "learn", {"b": [2], "a": 1}, now=9.0) == first  # the order of keys says nothing
    why = "is there already, with another function, other inputs or another result"
    for other in (
        {"result": {"a": 1.0, "b": [2]}},  # equal in Python, not in JSON
        {"result": {"a": 1}},
        {"result": RESULT, "function": "pipeline.prove"},
        {"result": RESULT, "inputs_sha256": "cd"},
    ):
        with says(Conflict, f"step learn of {run}: {why}; a recorded step is never changed"):
            add(store, run, "learn", **other)  # type: ignore[arg-type]
    assert store.steps.of_run(run) == [first]
    assert len(noted(store, run)) == 1


def test_what_is_no_step_is_refused(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    with pytest.raises(BadRecord):
        add(store, run, "learn", {"loss": float("nan")})
    with pytest.raises(BadRecord):
        add(store, run, "learn", now=float("inf"))
    with pytest.raises(NotFound):
        add(store, "run-9-z", "learn")
    assert store.steps.of_run(run) == []


def test_a_result_refers_to_data_and_does_not_hold_it(store: Store, clock: Clock) -> None:
    run, most = begin(store, clock), "x" * (LARGEST - len('{"text":""}'))
    assert add(store, run, "fits", {"text": most}).body == {"text": most}
    why = "its result has 65537 bytes, 65536 are allowed"
    with says(BadRecord, f"step learn of {run}: {why}; keep the data in a blob and refer to it"):
        add(store, run, "learn", {"text": most + "x"})
    assert store.steps.get(run, "learn") is None


def test_a_driver_that_was_replaced_records_nothing_and_has_no_effect(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    add(store, run, "one", driver=1)
    awake = store.runs.resume(run, who="t", now=clock.advance(100), silent_s=1.0).result()
    with pytest.raises(StaleLease, match="another process has taken it up"):
        add(store, run, "two", {"by": "the sleeper"}, driver=1, effects=[note("asleep")])
    add(store, run, "two", {"by": "the other"}, driver=awake.driver, effects=[note("awake")])
    assert [step.body for step in store.steps.of_run(run)] == [{}, {"by": "the other"}]
    assert effects(store) == ["awake"]


def note(text: str) -> Any:
    def effect(tx: Transaction) -> None:
        ledger.append(tx, "default", None, "note", "test", {"text": text}, 1.0)

    return effect


def effects(store: Store) -> list[str]:
    return [one.body["text"] for one in store.ledger.entries() if one.kind == "note"]


def test_the_effects_of_a_step_happen_with_it_and_once(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    for _ in range(2):
        add(store, run, "decide", effects=[note("first"), note("second")])
    assert effects(store) == ["first", "second"]


def test_when_an_effect_fails_neither_it_nor_the_step_has_happened(store: Store, clock: Clock) -> None:
    run = begin(store, clock)

    def breaks(tx: Transaction) -> None:
        raise Conflict("release p@2", why="another is live")

    with pytest.raises(Conflict, match="another is live"):
        add(store, run, "decide", effects=[note("before"), breaks])
    assert (store.steps.of_run(run), noted(store, run), effects(store)) == ([], [], [])
    assert add(store, run, "decide").step == 1  # and it can be done again


def test_each_step_is_in_the_ledger_once_with_the_hash_of_its_whole_row(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    add(store, run, "0/learn", {"b": "ü", "a": 1}, now=7.0, who="ann")
    add(store, run, "0/learn", {"a": 1, "b": "ü"}, now=8.0)  # the same again
    (entry,) = noted(store, run)
    sha256 = hashlib.sha256(b'0/learn\npipeline.learn\nab\n{"a":1,"b":"\\u00fc"}').hexdigest()
    named = {"step": 1, "name": "0/learn", "function": "pipeline.learn", "inputs_sha256": "ab"}
    assert (entry.kind, entry.body, entry.at, entry.who) == ("step", {**named, "sha256": sha256}, 7.0, "ann")


def learnt(store: Store, clock: Clock) -> str:
    """A run of three steps, and another beside it that has the same."""
    run, other = begin(store, clock), begin(store, clock, salt="b")
    for place in range(3):
        for each in (run, other):
            add(store, each, f"{place}/learn", {"success": 0.0})
    store.steps.verify(run)
    assert found(store) == []
    return run


@once
def test_a_change_behind_its_back_is_found_with_the_step(store: Store, clock: Clock) -> None:
    run = learnt(store, clock)
    changed, second = "was changed after it was written", "WHERE step = 2 AND run = 1"
    for statement, step, why in (
        (f"""UPDATE steps SET body = '{{"success":1.0}}' {second}""", 2, changed),
        (f"UPDATE steps SET name = '7/learn' {second}", 2, changed),
        (f"UPDATE steps SET function = 'pipeline.prove' {second}", 2, changed),
        (f"UPDATE steps SET function = '{LEGACY_STEP}' {second}", 2, changed),
        (f"UPDATE steps SET inputs_sha256 = 'cd' {second}", 2, changed),
        ("DELETE FROM steps WHERE step = 3 AND run = 1", 3, "is in the ledger, and not in the store"),
        ("INSERT INTO steps VALUES (1, 4, 'x', 'f', '', 1.0, '{}', NULL)", 4, "is not in the ledger"),
        (f"INSERT INTO steps VALUES (1, 0, 'x', '{LEGACY_STEP}', '', 1.0, '{{}}', NULL)", 0, "is not in the ledger"),
    ):
        with damaged(store, statement):
            with says(StoreCorrupt, f"step {step} of {run}: {why}; nothing that rests on this run is proven"):
                store.steps.verify(run)
            assert found(store) == [f"step {step} of {run}: {why}"]
            store.steps.verify("run-2-b")


@once
def test_what_was_removed_and_added_again_is_not_what_it_was(store: Store, clock: Clock) -> None:
    run = learnt(store, clock)
    damage(store, "DELETE FROM steps WHERE step = 3 AND run = 1")
    add(store, run, "2/learn", {"success": 1.0})
    with pytest.raises(StoreCorrupt, match=f"^step 3 of {run}: was changed after it was written"):
        store.steps.verify(run)


def lesson(run: int, step: int, body: str = "{}") -> str:
    """A row as the migration makes it of a learning update."""
    return f"INSERT INTO steps VALUES ({run}, {step}, 'lesson-{step}', '{LEGACY_STEP}', '', 1.0, '{body}', NULL)"


@once
def test_lessons_from_before_they_were_noted_are_taken_as_they_are(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    damage(store, lesson(1, 1), lesson(1, 2))
    store.steps.verify(run)
    add(store, run, "0/learn")
    add(store, run, "1/learn")
    store.steps.verify(run)
    assert found(store) == []
    assert [(one.kind, one.body["step"]) for one in noted(store, run)] == [("step", step) for step in (1, 2, 3, 4)]
    damage(store, """UPDATE steps SET body = '{"a":1}' WHERE step = 2 OR step = 4""")
    assert found(store) == [f"step {step} of {run}: was changed after it was written" for step in (2, 4)]


@once
def test_a_lesson_that_the_ledger_has_as_an_update_is_verified_by_its_result(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    sha256 = hashlib.sha256(b'{"loss":0.5}').hexdigest()
    body = {"step": 1, "sha256": sha256}
    store.ledger.append("update", body, who="learner", now=1.0, run=run).result()
    damage(store, lesson(1, 1, '{"loss":0.5}'))
    add(store, run, "0/learn")
    store.steps.verify(run)
    assert found(store) == []
    damage(store, """UPDATE steps SET body = '{"loss":0.4}' WHERE step = 1""")
    assert found(store) == [f"step 1 of {run}: was changed after it was written"]


@once
def test_a_run_that_began_later_is_in_the_ledger_from_its_first_step_on(store: Store, clock: Clock) -> None:
    learnt(store, clock)
    run = begin(store, clock, salt="c")
    damage(store, lesson(3, 1))
    with pytest.raises(StoreCorrupt, match=f"^step 1 of {run}: is not in the ledger"):
        store.steps.verify(run)


@once
def test_a_run_that_nobody_began_is_not_taken_for_an_old_one(store: Store, clock: Clock) -> None:
    run = learnt(store, clock)
    rewrite(store, 1, "UPDATE ledger SET kind = 'note' WHERE run = 'run-1-a'")  # neither begun nor learnt
    with pytest.raises(StoreCorrupt, match=f"^step 1 of {run}: is not in the ledger"):
        store.steps.verify(run)


@once
def test_an_entry_that_makes_no_sense_is_named(store: Store, clock: Clock) -> None:
    run = learnt(store, clock)
    rewrite(store, 3, "UPDATE ledger SET body = '{\"step\":1}' WHERE seq = 3")
    said = "ledger: entry 3 says nothing about a step that makes sense; nothing that rests on this run is proven"
    with pytest.raises(StoreCorrupt) as refused:
        store.steps.verify(run)
    assert (str(refused.value), found(store)) == (said, [said])


class Earlier:
    """A store of revision 0007, written without today's program: it still had learning updates."""

    def __init__(self, url: str) -> None:
        upgrade(engine := engine_for(url), "0007")
        self._connection: Any = engine.connect(read_only=False)
        self._place, self._seq, self._previous = "?" if engine.name == "sqlite" else "%s", 0, GENESIS
        run = (1, "run-1-a", "default", "improve", "running", "running", "m", "{}", 1.0, 1.0)
        columns = "key, id, project, kind, state, wanted, model_ref, settings, created_at, beat_at"
        self.insert("runs", columns, *run)
        self.entry("run", "{}")

    def insert(self, table: str, columns: str, *values: Any) -> None:
        marks = ", ".join([self._place] * len(values))
        self._connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", values)

    def entry(self, kind: str, body: str) -> None:
        self._seq += 1
        values = {"seq": self._seq, "at": 1.0, "project": "default", "run": "run-1-a", "kind": kind, "who": "learner"}
        values |= {"body": body, "previous": self._previous}
        values["sha256"] = self._previous = digest(values)
        self.insert("ledger", ", ".join(values), *values.values())

    def update(self, step: int, body: str) -> None:
        self.insert("updates", "run, step, at, body", 1, step, 1.0, body)
        self.entry("update", f'{{"step":{step},"sha256":"{hashlib.sha256(body.encode()).hexdigest()}"}}')

    def rollout(self, name: str, status: str, *signals: tuple[str, float, str]) -> None:
        key = self._connection.execute("SELECT count(*) FROM rollouts").fetchone()[0] + 1
        columns = "key, run, name, input, status, priority, max_attempts, attempt_count, faults, enqueued_at, ready_at"
        self.insert("rollouts", columns, key, 1, name, "1", "queuing", 0, 3, 1, 0, 1.0, 1.0)
        columns = "key, rollout, number, worker, status, started_at, beat_at, lease_until"
        self.insert("attempts", columns, key, key, 1, "w", "running", 1.0, 1.0, 2.0)
        self._connection.execute(f"UPDATE attempts SET status = '{status}', ended_at = 2 WHERE key = {key}")
        self._connection.execute(f"UPDATE rollouts SET status = 'running' WHERE key = {key}")
        done = f"status = '{status}', ended_at = 2, final = {key}"
        self._connection.execute(f"UPDATE rollouts SET {done} WHERE key = {key}")
        for seq, (signal, value, source) in enumerate(signals, 1):
            self.insert("signals", "attempt, seq, name, value, weight, source", key, seq, signal, value, 1.0, source)

    def close(self) -> None:
        self._connection.close()


def test_the_updates_of_an_earlier_store_become_steps_that_verify(places: Files | Databases) -> None:
    earlier = Earlier(url := places.blank())
    earlier.update(1, '{"loss":0.5}')
    earlier.update(2, '{"checkpoint":"c-2","phase":"practice"}')
    earlier.close()
    with open_store(url) as store:
        first, second = store.steps.of_run("run-1-a")
        assert (first.step, first.name, first.function, first.inputs_sha256) == (1, "lesson-1", LEGACY_STEP, "")
        assert (first.body, second.body) == ({"loss": 0.5}, {"checkpoint": "c-2", "phase": "practice"})
        store.steps.verify("run-1-a")
        assert problems(store) == []
        assert add(store, "run-1-a", "0/learn").step == 3
        store.steps.verify("run-1-a")
        damage(store, """UPDATE steps SET body = '{"loss":0.1}' WHERE step = 1""")
        with pytest.raises(StoreCorrupt, match="^step 1 of run-1-a: was changed after it was written"):
            store.steps.verify("run-1-a")
        assert "updates" not in {table.name for table in schema.metadata.sorted_tables}


OUTCOMES: list[tuple[str, list[tuple[str, float, str]], str | None]] = [
    ("succeeded", [("success", 1.0, "env")], "right"),
    ("succeeded", [("success", 0.99, "env")], "wrong"),
    ("succeeded", [("exact_match", 0.0, "rule:exact_match"), ("success", 1.0, "env")], "right"),  # success is first
    ("succeeded", [("exact_match", 1.0, "rule:exact_match")], "right"),
    ("succeeded", [("success", 0.0, "env"), ("success", 1.0, "human")], "right"),  # the last that was told
    ("succeeded", [("success", 1.0, "agent")], None),  # an agent's own word is no check
    ("succeeded", [("success", 1.0, "agent:me")], None),
    ("succeeded", [("tone", 1.0, "judge:tone@1")], None),
    ("succeeded", [], None),
    ("failed", [], "wrong"),
    ("failed", [("success", 1.0, "env")], "wrong"),  # it did not finish: what was measured before is no answer
]


def test_the_outcomes_of_an_earlier_store_follow_from_its_rewards(places: Files | Databases) -> None:
    earlier = Earlier(url := places.blank())
    for place, (status, signals, _) in enumerate(OUTCOMES):
        earlier.rollout(f"t{place}", status, *signals)
    earlier.close()
    with open_store(url) as store:
        found = store.views.rollouts("run-1-a")
        assert [rollout.outcome for rollout in found] == [outcome for _, _, outcome in OUTCOMES]
        assert {(one.step, one.version, one.max_faults, one.interruptions) for one in found} == {(None, None, 5, 0)}
        assert problems(store) == []
