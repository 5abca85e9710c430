"""The schema is the sum of the migrations, and the database keeps the life cycles that the contracts tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from itertools import count, product
from typing import Any

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from holdfast.contracts.release import MOVES, Stage
from holdfast.contracts.rollout import ATTEMPT_TRANSITIONS, TRANSITIONS, AttemptState, RolloutState
from holdfast.store import notifications, schema
from holdfast.store.db import COMMITS, engine_for
from tests.conftest import Files

S = Stage
RUN = (
    "INSERT INTO runs (key, id, project, kind, state, wanted, model_ref, settings, created_at, beat_at) "
    "VALUES (1, 'run-1-x', 'default', 'k', 'running', 'running', 'm', '{}', 1, 1)"
)


class Raw:
    """The database without our code in between."""

    def __init__(self, url: str) -> None:
        self._connection = engine_for(url).connect(read_only=False)
        self._numbers = count(1)
        self.run(RUN)

    def run(self, *statements: str) -> Any:
        return [self._connection.execute(statement) for statement in statements][-1]

    def refuses(self, statement: str) -> str:
        """What the database says against it, blank when it lets it pass."""
        try:
            self._connection.execute(statement)
        except Exception as error:  # two drivers, two kinds of error
            return str(error)
        return ""

    def insert(self, table: str, **values: Any) -> int:
        """A row with a key of its own, which is the answer; texts are quoted."""
        values["key"] = key = next(self._numbers)
        shown = ", ".join(f"'{value}'" if isinstance(value, str) else str(value) for value in values.values())
        self.run(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({shown})")
        return key

    def rollout(self, status: str = "queuing", **given: Any) -> int:
        times = {"enqueued_at": 1, "ready_at": 1}
        counts = {"priority": 0, "max_attempts": 1, "attempt_count": 0, "faults": 0}
        values = {"run": 1, "name": f"t{next(self._numbers)}", "input": "1", "status": status, **counts, **times}
        return self.insert("rollouts", **values | given)

    def attempt(self, status: str = "running", **given: Any) -> int:
        rollout = given.pop("rollout", None) or self.rollout()
        values = {"rollout": rollout, "number": 1, "worker": "w", "status": status, "started_at": 1, "beat_at": 1}
        return self.insert("attempts", **values | given, lease_until=2)

    def release(self, stage: str = "candidate", policy: str = "", share: int = 0) -> int:
        source = f"s{(number := next(self._numbers))}"
        values = {"project": "default", "policy": policy or source, "number": number, "kind": "prompt"}
        values |= {"source": source, "stage": stage, "share": share, "is_known_good": 0, "manifest": "{}"}
        return self.insert("releases", **values, created_at=1, changed_at=1)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def raw(url: str) -> Iterator[Raw]:
    raw = Raw(url)
    yield raw
    raw.close()


def way_to(table: Mapping[Any, frozenset[Any]], first: StrEnum, goal: StrEnum) -> list[StrEnum]:
    """The shortest legal way to a state, the first one left out."""
    ways: list[list[StrEnum]] = [[first]]
    for way in ways:
        if way[-1] == goal:
            return way[1:]
        ways += [[*way, following] for following in sorted(table[way[-1]]) if following not in way]
    raise AssertionError(f"no way to {goal}")


def percent(stage: str) -> int:
    return {"live": 100, "canary": 5}.get(stage, 0)


LIVES: dict[str, tuple[str, type[StrEnum], Mapping[Any, frozenset[Any]], Callable[[Raw, Any], int]]] = {
    "rollouts": ("status", RolloutState, TRANSITIONS, Raw.rollout),
    "attempts": ("status", AttemptState, ATTEMPT_TRANSITIONS, Raw.attempt),
    "releases": ("stage", Stage, MOVES, Raw.release),
}


@pytest.mark.parametrize("table", LIVES)
def test_the_database_allows_exactly_the_births_and_moves_in_the_table(raw: Raw, table: str) -> None:
    column, states, moves, make = LIVES[table]
    first, *others = states
    for state in others:
        with pytest.raises(Exception, match=f"illegal birth of {table}"):
            make(raw, state)

    def moving(key: int, to: str) -> str:
        share = f", share = {percent(to)}" if table == "releases" else ""
        return f"UPDATE {table} SET {column} = '{to}'{share} WHERE key = {key}"

    for old, new in product(states, [*states, "wandering"]):
        key = make(raw, first)
        raw.run("SELECT 1", *(moving(key, step) for step in way_to(moves, first, old)))
        refusal = raw.refuses(moving(key, new))
        assert (refusal == "") == (new in moves[old]) and (not refusal or f"illegal move of {table}" in refusal)
    assert raw.refuses(f"UPDATE {table} SET {column} = NULL WHERE key = {make(raw, first)}")


def test_the_database_lets_a_stage_have_its_share_only(raw: Raw) -> None:
    with pytest.raises(Exception, match="illegal birth of releases"):
        raw.release(share=5)
    for stage, shares in {S.SHADOW: {0}, S.REJECTED: {0}, S.CANARY: {1, 50, 100}, S.LIVE: {100}}.items():
        for share in (-1, 0, 1, 50, 100, 101):
            refusal = raw.refuses(f"UPDATE releases SET stage = '{stage}', share = {share} WHERE key = {raw.release()}")
            assert refusal == "" if share in shares else "illegal share of releases" in refusal


def test_one_release_of_a_policy_at_most_is_live_or_a_canary(raw: Raw) -> None:
    for stage in (S.LIVE, S.CANARY):
        keys = [raw.release(policy=policy) for policy in (f"p-{stage}", f"q-{stage}", f"p-{stage}")]
        move = f"UPDATE releases SET stage = '{stage}', share = {percent(stage)} WHERE key = "
        assert [raw.refuses(f"{move}{key}") for key in keys[:2]] == ["", ""]
        assert "unique" in raw.refuses(f"{move}{keys[2]}").lower()


TRIAL = (
    "INSERT INTO trials (key, project, name, kind, arms, salt, created_at, settings) "
    "VALUES (1, 'default', 't', 'canary', '{}', 's', 1, '{}')"
)
SERVED = (
    "INSERT INTO served (key, project, trial, id, arm, unit, at, error, reward) "
    "VALUES (1, 'default', 1, 'r', 'a', 'u', 1, 0, 0.5)"
)
FIXED = {
    "releases": (
        "a release is immutable",
        "project policy number kind source parent manifest created_at",
        "stage share is_known_good evidence changed_at",
    ),
    "trials": ("a trial is immutable", "project name kind arms salt settings created_at", "ended_at"),
    "exposures": ("an exposure is immutable", "trial unit arm at", ""),
    "served": (
        "a served request is immutable",
        "project trial id arm unit at error latency_s tokens",
        "success reward safety_cost",
    ),
    "budgets": (
        "a budget is immutable",
        "attempt tier assessment ceiling cap created_at",
        "allowed spent overspent calls escalations escalated_at mode events changed_at",
    ),
    "budget_events": ("a budget event is immutable", "attempt seq kind at tokens allowed spent overspent body", ""),
    "steps": ("a recorded step is immutable", "run step name function inputs_sha256 at body", ""),
    "scorings": ("a scoring is immutable", "project run name scorers who at rollouts sha256", ""),
    "scored": ("a scoring is immutable", "scoring rollout seq name value weight source turn feedback", ""),
    "artefacts": ("an artefact is immutable", "project sha256 body at", ""),
    "judgements": (
        "a judgement is immutable",
        "project id judge criterion prompt artefact grade score why tokens cost latency_s at",
        "",
    ),
    "doubts": ("a doubt is immutable", "project artefact criterion reason why at", ""),
    "labels": ("a label is immutable", "project artefact criterion maker who version holds why at", ""),
    "calibrations": ("a calibration is immutable", "project judge criterion prompt labels body at", ""),
    "appointments": ("an appointment is immutable", "project policy judge role at", ""),
    "tokens": ("a token is immutable", "project label role sha256 created_at", "expires_at revoked_at"),
    "commands": ("a command is immutable", "project id body role answer at", ""),
    "alerts": (
        "an alert is immutable",
        "project code run at",
        "severity message acknowledged_at acknowledged_by cleared_at",
    ),
}
BUDGET = (
    "INSERT INTO budgets (attempt, tier, assessment, ceiling, cap, allowed, spent, overspent, calls, escalations, "
    "escalated_at, events, created_at, changed_at) "
    "VALUES (1, 'standard', '{{}}', 2000, 4000, {allowed}, {spent}, {overspent}, 1, 0, '{{}}', 2, 1, 1)"
)
JUDGEMENT = "INSERT INTO judgements VALUES ('p', 'i', 'm', 'c@1', 'a', 'b', {grade}, {score}, '', 0, 0, 0, 1, NULL)"
LABEL = "INSERT INTO labels VALUES ('p', 'a', 'c@1', '{maker}', 'ann', {version}, {holds}, '', 1, NULL)"
APPOINTMENT = "INSERT INTO appointments VALUES ('p', 'sprout', 'm', '{}', 1, NULL)"
JUDGED = (
    JUDGEMENT.format(grade="'yes'", score=0.5),
    LABEL.format(maker="person", version=1, holds=1),
    APPOINTMENT.format("train"),
    "INSERT INTO artefacts VALUES ('p', 'a', '{}', 1, NULL)",
    "INSERT INTO doubts VALUES ('p', 'a', 'c@1', 'asked', '', 1, NULL)",
    "INSERT INTO calibrations VALUES (1, 'p', 'm', 'c@1', 'a', 'b', '{}', 1, NULL)",
)
TOKEN = "INSERT INTO tokens VALUES ({}, 'p', 'ann', '{}', '{}', 1, 9, NULL, NULL)"
ALERT = "INSERT INTO alerts VALUES ({}, 'p', '{}', '', '{}', 'm', 1, NULL, NULL, NULL, NULL)"
ORDERED = (
    TOKEN.format(1, "admin", "a"),
    "INSERT INTO commands VALUES ('p', 'c1', '{}', 'admin', '{}', 1, NULL)",
    ALERT.format(1, "backlog", "warning"),
)


def test_what_something_is_never_changes(raw: Raw) -> None:
    raw.release()
    raw.run(TRIAL, "INSERT INTO exposures VALUES (1, 'u', 'a', 1, NULL)", SERVED, *JUDGED, *ORDERED)
    raw.run(BUDGET.format(allowed=2000, spent=50, overspent=0))
    raw.run("INSERT INTO steps VALUES (1, 1, 'n', 'f', '', 1, '{}', NULL)")
    raw.run("INSERT INTO scorings VALUES (1, 'p', 'run-1-x', 'n', '{}', 'ann', 1, 1, 'a', NULL)")
    raw.run("INSERT INTO scored VALUES (1, 'run-1-x/t', 1, 'success', 1, 1, 'rule:exact', NULL, NULL, NULL)")
    raw.run("INSERT INTO budget_events VALUES (1, 1, 'allocate', 1, 2000, 2000, 0, 0, NULL, NULL)")
    for table, (message, fixed, free) in FIXED.items():
        assert {*fixed.split(), *free.split(), "key", "checksum"} >= {
            column.name for column in schema.metadata.tables[table].c
        }
        for column in fixed.split():
            assert message in raw.refuses(f"UPDATE {table} SET {column} = {column}"), (table, column)
    for table, message in {
        "releases": "a release is never removed",
        "labels": "a label is never removed",
        "appointments": "an appointment is for good",
        "tokens": "a token is never removed",
        "alerts": "an alert is never removed",
        "commands": "a command is never removed",
    }.items():
        assert message in raw.refuses(f"DELETE FROM {table}")


def test_a_trial_ends_once_and_feedback_is_told_once(raw: Raw) -> None:
    raw.run(TRIAL, SERVED)
    assert raw.refuses("UPDATE trials SET ended_at = 5") == ""
    for late in ("6", "NULL"):
        assert "a trial ends once" in raw.refuses(f"UPDATE trials SET ended_at = {late}")
    assert raw.refuses("UPDATE served SET success = 1, reward = 0.5") == ""  # the same again is harmless
    for change in ("success = 0", "success = NULL", "reward = 0.25"):
        assert "feedback is told once" in raw.refuses(f"UPDATE served SET {change}")


def test_a_budget_is_born_within_its_limits_and_nothing_of_it_is_taken_back(raw: Raw) -> None:
    for allowed, spent, overspent in ((4001, 0, 0), (1999, 0, 0), (2000, 1, 2)):
        refusal = raw.refuses(BUDGET.format(allowed=allowed, spent=spent, overspent=overspent))
        assert "a budget beyond its limits" in refusal
    # What was spent is not the limit's to hide.
    for allowed, spent, overspent in ((2000, 0, 0), (4000, 9000, 5000), (3000, 100, 10)):
        raw.run("DELETE FROM budgets", BUDGET.format(allowed=allowed, spent=spent, overspent=overspent))
    for change in ("allowed = 2999", "spent = 99", "overspent = 9", "calls = 0", "events = 1"):
        assert "nothing of a budget is taken back" in raw.refuses(f"UPDATE budgets SET {change}"), change
    assert raw.refuses("UPDATE budgets SET allowed = 4000, spent = 101, overspent = 11, calls = 2, events = 3") == ""
    assert "a budget beyond its limits" in raw.refuses("UPDATE budgets SET allowed = 4001")


def test_a_judgement_has_a_grade_and_a_score_or_neither(raw: Raw) -> None:
    for grade, score, is_fine in (
        ("'yes'", "1", True),
        ("'partly'", "0.5", True),
        ("'no'", "0", True),
        ("NULL", "NULL", True),  # it abstained
        ("NULL", "0.5", False),
        ("'yes'", "NULL", False),
        ("'maybe'", "0.5", False),
        ("'yes'", "1.01", False),
        ("'no'", "-0.01", False),
    ):
        refusal = raw.refuses(JUDGEMENT.format(grade=grade, score=score))
        assert refusal == "" if is_fine else "a judgement that says nothing" in refusal
        raw.run("DELETE FROM judgements")


def test_a_label_says_who_made_it(raw: Raw) -> None:
    for maker, version, holds, is_fine in (
        ("program", 1, "0", True),
        ("model", 2, "1", True),
        ("person", 1, "NULL", True),  # it cannot be told
        ("human", 1, "1", False),
        ("person", 0, "1", False),
        ("person", 1, "2", False),
    ):
        refusal = raw.refuses(LABEL.format(maker=maker, version=version, holds=holds))
        assert refusal == "" if is_fine else "a label of nobody" in refusal


def test_a_judge_has_one_role_for_a_policy_for_good(raw: Raw) -> None:
    assert "an unknown role" in raw.refuses(APPOINTMENT.format("both"))
    raw.run(APPOINTMENT.format("train"))
    assert "unique" in raw.refuses(APPOINTMENT.format("audit")).lower()


def test_the_life_of_a_token_is_only_ever_shortened(raw: Raw) -> None:
    assert "an unknown role" in raw.refuses(TOKEN.format(2, "king", "b"))
    raw.run(TOKEN.format(1, "admin", "a"))
    assert "unique" in raw.refuses(TOKEN.format(2, "viewer", "a")).lower()
    assert raw.refuses("UPDATE tokens SET expires_at = 8") == ""
    for longer in ("9", "NULL"):
        assert "only ever shortened" in raw.refuses(f"UPDATE tokens SET expires_at = {longer}")
    assert raw.refuses("UPDATE tokens SET revoked_at = 5") == ""
    for later in ("NULL", "6"):
        assert "a token is revoked once" in raw.refuses(f"UPDATE tokens SET revoked_at = {later}")


def test_of_one_code_one_alert_stands_and_what_is_over_stays_so(raw: Raw) -> None:
    assert "an unknown severity" in raw.refuses(ALERT.format(1, "backlog", "grave"))
    raw.run(ALERT.format(1, "backlog", "warning"))
    assert "unique" in raw.refuses(ALERT.format(2, "backlog", "info")).lower()
    raw.run("UPDATE alerts SET cleared_at = 3", ALERT.format(2, "backlog", "info"))
    for change in ("cleared_at = NULL", "severity = 'info'", "acknowledged_by = 'ann'"):
        assert "an alert is cleared once" in raw.refuses(f"UPDATE alerts SET {change} WHERE key = 1")


def test_one_attempt_at_most_holds_or_has_won_a_rollout(raw: Raw) -> None:
    for first in AttemptState:
        attempt = raw.attempt(rollout=(rollout := raw.rollout()))
        if first is not AttemptState.RUNNING:
            raw.run(f"UPDATE attempts SET status = '{first}' WHERE key = {attempt}")
        if first not in (AttemptState.RUNNING, AttemptState.SUCCEEDED):
            assert raw.attempt(rollout=rollout, number=2)
            continue
        with pytest.raises(Exception, match=r"(?i)unique"):
            raw.attempt(rollout=rollout, number=2)


def test_names_and_references_hold_and_a_number_is_never_given_twice(raw: Raw) -> None:
    """A fencing token that came back would let a zombie in."""
    raw.rollout(name="taken")
    for why, make in (
        ("unique", lambda: raw.rollout(name="taken")),  # two rollouts of one name in a run
        ("foreign key", lambda: raw.rollout(run=99)),  # a rollout of no run
        ("foreign key", lambda: raw.attempt(rollout=99)),  # an attempt at nothing
        ("unique", lambda: raw.run(RUN.replace("(1, 'run-1-x'", "(2, 'run-1-x'"))),  # a run under another's name
    ):
        with pytest.raises(Exception, match=f"(?i){why}"):
            make()
    insert = (
        "INSERT INTO attempts (rollout, number, worker, status, started_at, beat_at, lease_until) "
        "VALUES ({}, 1, 'w', 'running', 1, 1, 2) RETURNING key"
    )
    rollouts = [raw.rollout() for _ in range(3)]
    tokens = [raw.run(insert.format(rollout)).fetchone()[0] for rollout in rollouts[:2]]
    raw.run("DELETE FROM attempts")
    assert raw.run(insert.format(rollouts[2])).fetchone()[0] > max(tokens)


def bound_to(url: str) -> sqlalchemy.Engine:
    engine = engine_for(url)
    scheme = "sqlite://" if engine.name == "sqlite" else "postgresql+psycopg://"
    return sqlalchemy.create_engine(
        scheme, creator=lambda: engine.connect(read_only=False), poolclass=sqlalchemy.NullPool
    )


def test_the_schema_is_the_sum_of_the_migrations(url: str) -> None:
    engine = bound_to(url)
    # Alembic cannot read a descending index of SQLite back; the next test compares it to the letter.
    blind = {"ix_rollouts_queue"} if engine.dialect.name == "sqlite" else set()
    opts = {"compare_type": True, "include_object": lambda _, name, *rest: name not in blind}
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=opts)
        assert compare_metadata(context, schema.metadata) == []


def test_the_sum_is_the_same_to_the_letter(files: Files) -> None:
    """Also what alembic does not compare: partial indexes, AUTOINCREMENT, WITHOUT ROWID."""
    migrated, created = bound_to(files.fresh()), bound_to(files.blank())
    schema.metadata.create_all(created)

    def letters(engine: sqlalchemy.Engine) -> dict[str, str]:
        with engine.connect() as connection:
            found = connection.execute(
                sqlalchemy.text("SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'index') AND sql <> ''")
            )
            return {name: _sorted_parts(sql) for name, sql in found if name != "alembic_version"}

    assert letters(migrated) == letters(created)


def _sorted_parts(sql: str) -> str:
    """Constraints may stand in any order."""
    head, _, body = " ".join(sql.split()).partition("(")
    parts = re.split(r", (?=CONSTRAINT|\w+ [A-Z])", body.replace(" )", ")").strip("() "))
    return head + "".join(sorted(part.strip() for part in parts))


def test_the_indexes_are_the_same_on_postgres(databases: Any) -> None:
    """Also their conditions and directions."""
    migrated, created = bound_to(databases.fresh()), bound_to(databases.blank())
    schema.metadata.create_all(created)

    def letters(engine: sqlalchemy.Engine) -> dict[str, str]:
        with engine.connect() as connection:
            query = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"
            found = connection.execute(sqlalchemy.text(query))
            return {name: text for name, text in found if not name.startswith("alembic")}

    assert letters(migrated) == letters(created)


def test_every_topic_has_its_counter(raw: Raw) -> None:
    found = raw.run("SELECT topic FROM pulse WHERE topic NOT LIKE '% of %'").fetchall()
    assert {row[0] for row in found} == {*notifications.TOPICS, COMMITS}
