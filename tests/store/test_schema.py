"""The schema is the sum of the migrations, and the database keeps the life cycles that the contracts tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
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
from holdfast.store.db import engine_for
from tests.conftest import Files

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

    def run(self, statement: str) -> Any:
        return self._connection.execute(statement)

    def refuses(self, statement: str) -> str | None:
        """What the database says against it, None when it lets it pass."""
        try:
            self._connection.execute(statement)
        except Exception as error:  # two drivers, two kinds of error
            return str(error)
        return None

    def rollout(self, status: str = "queuing") -> int:
        key = next(self._numbers)
        self.run(
            "INSERT INTO rollouts (key, run, name, input, status, priority, max_attempts, attempt_count, faults, "
            f"enqueued_at, ready_at) VALUES ({key}, 1, 't{key}', '1', '{status}', 0, 1, 0, 0, 1, 1)"
        )
        return key

    def attempt(self, rollout: int, status: str = "running", number: int = 1) -> int:
        key = next(self._numbers)
        self.run(
            "INSERT INTO attempts (key, rollout, number, worker, status, started_at, beat_at, lease_until) "
            f"VALUES ({key}, {rollout}, {number}, 'w', '{status}', 1, 1, 2)"
        )
        return key

    def release(self, policy: str, stage: str = "candidate", number: int = 1, share: int = 0) -> int:
        key = next(self._numbers)
        self.run(
            "INSERT INTO releases (key, project, policy, number, kind, source, stage, share, is_known_good, manifest, "
            f"created_at, changed_at) VALUES ({key}, 'default', '{policy}', {number}, 'prompt', 's{key}', '{stage}', "
            f"{share}, 0, '{{}}', 1, 1)"
        )
        return key

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


def test_the_database_allows_exactly_the_moves_of_a_rollout_in_the_table(raw: Raw) -> None:
    wrong = []
    for old, new in product(RolloutState, repeat=2):
        key = raw.rollout()
        for step in way_to(TRANSITIONS, RolloutState.QUEUING, old):
            raw.run(f"UPDATE rollouts SET status = '{step}' WHERE key = {key}")
        refusal = raw.refuses(f"UPDATE rollouts SET status = '{new}' WHERE key = {key}")
        if (refusal is None) != (new in TRANSITIONS[old]) or (refusal and "illegal move of rollouts" not in refusal):
            wrong.append((old, new, refusal))
    assert wrong == []


def test_the_database_allows_exactly_the_moves_of_an_attempt_in_the_table(raw: Raw) -> None:
    wrong = []
    for old, new in product(AttemptState, repeat=2):
        key = raw.attempt(raw.rollout())
        for step in way_to(ATTEMPT_TRANSITIONS, AttemptState.RUNNING, old):
            raw.run(f"UPDATE attempts SET status = '{step}' WHERE key = {key}")
        refusal = raw.refuses(f"UPDATE attempts SET status = '{new}' WHERE key = {key}")
        legal = new in ATTEMPT_TRANSITIONS[old]
        if (refusal is None) != legal or (refusal and "illegal move of attempts" not in refusal):
            wrong.append((old, new, refusal))
    assert wrong == []


def percent(stage: StrEnum) -> int:
    return {Stage.LIVE: 100, Stage.CANARY: 5}.get(Stage(stage), 0)


def test_the_database_allows_exactly_the_moves_of_a_release_in_the_table(raw: Raw) -> None:
    wrong = []
    for old, new in product(Stage, repeat=2):
        key = raw.release(f"{old}-{new}")
        for step in way_to(MOVES, Stage.CANDIDATE, old):
            raw.run(f"UPDATE releases SET stage = '{step}', share = {percent(step)} WHERE key = {key}")
        refusal = raw.refuses(f"UPDATE releases SET stage = '{new}', share = {percent(new)} WHERE key = {key}")
        if (refusal is None) != (new in MOVES[old]) or (refusal and "illegal move of releases" not in refusal):
            wrong.append((old, new, refusal))
    assert wrong == []


@pytest.mark.parametrize("stage", list(Stage))
def test_a_release_is_born_a_candidate_that_answers_nothing(raw: Raw, stage: Stage) -> None:
    if stage is Stage.CANDIDATE:
        assert raw.release("p", stage)
        with pytest.raises(Exception, match="illegal birth of releases"):
            raw.release("q", stage, share=5)
        return
    with pytest.raises(Exception, match="illegal birth of releases"):
        raw.release("p", stage, share=percent(stage))


@pytest.mark.parametrize(
    ("stage", "shares"),
    [(Stage.SHADOW, {0}), (Stage.REJECTED, {0}), (Stage.CANARY, {1, 50, 100}), (Stage.LIVE, {100})],
)
def test_the_database_lets_a_stage_have_its_share_only(raw: Raw, stage: Stage, shares: set[int]) -> None:
    allowed = set()
    for share in (-1, 0, 1, 50, 100, 101):
        key = raw.release(f"p{share + 1}")
        refusal = raw.refuses(f"UPDATE releases SET stage = '{stage}', share = {share} WHERE key = {key}")
        if refusal is None:
            allowed.add(share)
        else:
            assert "illegal share of releases" in refusal
    assert allowed == shares


@pytest.mark.parametrize("stage", [Stage.LIVE, Stage.CANARY])
def test_one_release_of_a_policy_at_most_is_live_or_a_canary(raw: Raw, stage: Stage) -> None:
    keys = [raw.release("p"), raw.release("q"), raw.release("p", number=2)]
    move = f"UPDATE releases SET stage = '{stage}', share = {percent(stage)} WHERE key = "
    assert [raw.refuses(f"{move}{key}") for key in keys[:2]] == [None, None]
    refusal = raw.refuses(f"{move}{keys[2]}")
    assert refusal is not None and "unique" in refusal.lower()


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
JUDGEMENT = "INSERT INTO judgements VALUES ('p', 'i', 'm', 'c@1', 'a', 'b', {grade}, {score}, '', 0, 0, 0, 1)"
LABEL = "INSERT INTO labels VALUES ('p', 'a', 'c@1', '{maker}', 'ann', {version}, {holds}, '', 1)"
APPOINTMENT = "INSERT INTO appointments VALUES ('p', 'sprout', 'm', '{}', 1)"
JUDGED = (
    JUDGEMENT.format(grade="'yes'", score=0.5),
    LABEL.format(maker="person", version=1, holds=1),
    APPOINTMENT.format("train"),
    "INSERT INTO artefacts VALUES ('p', 'a', '{}', 1)",
    "INSERT INTO doubts VALUES ('p', 'a', 'c@1', 'asked', '', 1)",
    "INSERT INTO calibrations VALUES (1, 'p', 'm', 'c@1', 'a', 'b', '{}', 1)",
)
TOKEN = "INSERT INTO tokens VALUES ({}, 'p', 'ann', '{}', '{}', 1, 9, NULL)"
ALERT = "INSERT INTO alerts VALUES ({}, 'p', '{}', '', '{}', 'm', 1, NULL, NULL, NULL)"
ORDERED = (
    TOKEN.format(1, "admin", "a"),
    "INSERT INTO commands VALUES ('p', 'c1', '{}', 'admin', '{}', 1)",
    ALERT.format(1, "backlog", "warning"),
)


@pytest.mark.parametrize("table", list(FIXED))
def test_what_something_is_never_changes(raw: Raw, table: str) -> None:
    raw.release("p")
    for statement in (TRIAL, "INSERT INTO exposures VALUES (1, 'u', 'a', 1)", SERVED, *JUDGED, *ORDERED):
        raw.run(statement)
    raw.run(BUDGET.format(allowed=2000, spent=50, overspent=0))
    raw.run("INSERT INTO steps VALUES (1, 1, 'n', 'f', '', 1, '{}')")
    raw.run("INSERT INTO scorings VALUES (1, 'p', 'run-1-x', 'n', '{}', 'ann', 1, 1, 'a')")
    raw.run("INSERT INTO scored VALUES (1, 'run-1-x/t', 1, 'success', 1, 1, 'rule:exact', NULL, NULL)")
    raw.run("INSERT INTO budget_events VALUES (1, 1, 'allocate', 1, 2000, 2000, 0, 0, NULL)")
    message, fixed, free = FIXED[table]
    assert {*fixed.split(), *free.split(), "key"} >= {column.name for column in schema.metadata.tables[table].c}
    for column in fixed.split():
        refusal = raw.refuses(f"UPDATE {table} SET {column} = {column}")
        assert refusal is not None and message in refusal, column


def test_a_release_is_never_removed(raw: Raw) -> None:
    raw.release("p")
    refusal = raw.refuses("DELETE FROM releases")
    assert refusal is not None and "a release is never removed" in refusal


def test_a_trial_ends_once_and_feedback_is_told_once(raw: Raw) -> None:
    raw.run(TRIAL)
    raw.run(SERVED)
    assert raw.refuses("UPDATE trials SET ended_at = 5") is None
    for late in ("6", "NULL"):
        assert "a trial ends once" in (raw.refuses(f"UPDATE trials SET ended_at = {late}") or "")
    assert raw.refuses("UPDATE served SET success = 1, reward = 0.5") is None  # the same again is harmless
    for change in ("success = 0", "success = NULL", "reward = 0.25"):
        assert "feedback is told once" in (raw.refuses(f"UPDATE served SET {change}") or "")


@pytest.mark.parametrize(
    ("given", "is_fine"),
    [
        ({"allowed": 2000, "spent": 0, "overspent": 0}, True),
        ({"allowed": 4000, "spent": 9000, "overspent": 5000}, True),  # what was spent is not the limit's to hide
        ({"allowed": 4001, "spent": 0, "overspent": 0}, False),
        ({"allowed": 1999, "spent": 0, "overspent": 0}, False),
        ({"allowed": 2000, "spent": 1, "overspent": 2}, False),
    ],
)
def test_a_budget_is_born_within_its_limits(raw: Raw, given: dict[str, int], is_fine: bool) -> None:
    refusal = raw.refuses(BUDGET.format(**given))
    assert (refusal is None) == is_fine
    assert is_fine or "a budget beyond its limits" in str(refusal)


def test_nothing_of_a_budget_is_taken_back(raw: Raw) -> None:
    raw.run(BUDGET.format(allowed=3000, spent=100, overspent=10))
    for change in ("allowed = 2999", "spent = 99", "overspent = 9", "calls = 0", "events = 1"):
        assert "nothing of a budget is taken back" in (raw.refuses(f"UPDATE budgets SET {change}") or ""), change
    assert raw.refuses("UPDATE budgets SET allowed = 4000, spent = 101, overspent = 11, calls = 2, events = 3") is None
    assert "a budget beyond its limits" in (raw.refuses("UPDATE budgets SET allowed = 4001") or "")


@pytest.mark.parametrize(
    ("grade", "score", "is_fine"),
    [
        ("'yes'", "1", True),
        ("'partly'", "0.5", True),
        ("'no'", "0", True),
        ("NULL", "NULL", True),  # it abstained
        ("NULL", "0.5", False),
        ("'yes'", "NULL", False),
        ("'maybe'", "0.5", False),
        ("'yes'", "1.01", False),
        ("'no'", "-0.01", False),
    ],
)
def test_a_judgement_has_a_grade_and_a_score_or_neither(raw: Raw, grade: str, score: str, is_fine: bool) -> None:
    refusal = raw.refuses(JUDGEMENT.format(grade=grade, score=score))
    assert (refusal is None) == is_fine
    assert is_fine or "a judgement that says nothing" in str(refusal)


@pytest.mark.parametrize(
    ("maker", "version", "holds", "is_fine"),
    [
        ("program", 1, "0", True),
        ("model", 2, "1", True),
        ("person", 1, "NULL", True),  # it cannot be told
        ("human", 1, "1", False),
        ("person", 0, "1", False),
        ("person", 1, "2", False),
    ],
)
def test_a_label_says_who_made_it_and_stays(raw: Raw, maker: str, version: int, holds: str, is_fine: bool) -> None:
    refusal = raw.refuses(LABEL.format(maker=maker, version=version, holds=holds))
    assert (refusal is None) == is_fine
    assert is_fine or "a label of nobody" in str(refusal)
    if is_fine:
        assert "a label is never removed" in (raw.refuses("DELETE FROM labels") or "")


def test_a_judge_has_one_role_for_a_policy_for_good(raw: Raw) -> None:
    assert "an unknown role" in (raw.refuses(APPOINTMENT.format("both")) or "")
    raw.run(APPOINTMENT.format("train"))
    assert "unique" in (raw.refuses(APPOINTMENT.format("audit")) or "").lower()
    assert "an appointment is for good" in (raw.refuses("DELETE FROM appointments") or "")


def test_the_life_of_a_token_is_only_ever_shortened(raw: Raw) -> None:
    assert "an unknown role" in (raw.refuses(TOKEN.format(2, "king", "b")) or "")
    raw.run(TOKEN.format(1, "admin", "a"))
    assert "unique" in (raw.refuses(TOKEN.format(2, "viewer", "a")) or "").lower()
    assert raw.refuses("UPDATE tokens SET expires_at = 8") is None
    for longer in ("9", "NULL"):
        assert "only ever shortened" in (raw.refuses(f"UPDATE tokens SET expires_at = {longer}") or "")
    assert raw.refuses("UPDATE tokens SET revoked_at = 5") is None
    for later in ("NULL", "6"):
        assert "a token is revoked once" in (raw.refuses(f"UPDATE tokens SET revoked_at = {later}") or "")
    assert "a token is never removed" in (raw.refuses("DELETE FROM tokens") or "")


def test_of_one_code_one_alert_stands_and_what_is_over_stays_so(raw: Raw) -> None:
    assert "an unknown severity" in (raw.refuses(ALERT.format(1, "backlog", "grave")) or "")
    raw.run(ALERT.format(1, "backlog", "warning"))
    assert "unique" in (raw.refuses(ALERT.format(2, "backlog", "info")) or "").lower()
    raw.run("UPDATE alerts SET cleared_at = 3")
    raw.run(ALERT.format(2, "backlog", "info"))
    for change in ("cleared_at = NULL", "severity = 'info'", "acknowledged_by = 'ann'"):
        assert "an alert is cleared once" in (raw.refuses(f"UPDATE alerts SET {change} WHERE key = 1") or "")
    for table, what in (("alerts", "an alert"), ("commands", "a command")):
        raw.run(ORDERED[1]) if table == "commands" else None
        assert f"{what} is never removed" in (raw.refuses(f"DELETE FROM {table}") or "")


def test_a_state_that_the_table_does_not_know_is_refused(raw: Raw) -> None:
    rollout, attempt = raw.rollout(), raw.attempt(raw.rollout())
    assert raw.refuses(f"UPDATE rollouts SET status = 'wandering' WHERE key = {rollout}")
    assert raw.refuses(f"UPDATE attempts SET status = 'wandering' WHERE key = {attempt}")
    assert raw.refuses(f"UPDATE rollouts SET status = NULL WHERE key = {rollout}")
    assert raw.refuses(f"UPDATE releases SET stage = 'wandering' WHERE key = {raw.release('p')}")


@pytest.mark.parametrize("state", list(RolloutState))
def test_a_rollout_is_born_queuing(raw: Raw, state: RolloutState) -> None:
    if state is RolloutState.QUEUING:
        assert raw.rollout(state)
        return
    with pytest.raises(Exception, match="illegal birth of rollouts"):
        raw.rollout(state)


@pytest.mark.parametrize("state", list(AttemptState))
def test_an_attempt_is_born_running(raw: Raw, state: AttemptState) -> None:
    rollout = raw.rollout()
    if state is AttemptState.RUNNING:
        assert raw.attempt(rollout, state)
        return
    with pytest.raises(Exception, match="illegal birth of attempts"):
        raw.attempt(rollout, state)


@pytest.mark.parametrize(
    ("first", "allowed"),
    [(state, state not in (AttemptState.RUNNING, AttemptState.SUCCEEDED)) for state in AttemptState],
)
def test_one_attempt_at_most_holds_or_has_won_a_rollout(raw: Raw, first: AttemptState, allowed: bool) -> None:
    rollout = raw.rollout()
    attempt = raw.attempt(rollout)
    if first is not AttemptState.RUNNING:
        raw.run(f"UPDATE attempts SET status = '{first}' WHERE key = {attempt}")
    if allowed:
        assert raw.attempt(rollout, number=2)
        return
    with pytest.raises(Exception, match=r"(?i)unique"):
        raw.attempt(rollout, number=2)


NEW_ROLLOUT = (
    "INSERT INTO rollouts (key, run, name, input, status, priority, max_attempts, attempt_count, faults, "
    "enqueued_at, ready_at) VALUES (9001, {run}, '{name}', '1', 'queuing', 0, 1, 0, 0, 1, 1)"
)
NEW_ATTEMPT = (
    "INSERT INTO attempts (key, rollout, number, worker, status, started_at, beat_at, lease_until) "
    "VALUES (9001, {rollout}, 1, 'w', 'running', 1, 1, 2)"
)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (NEW_ROLLOUT.format(run=1, name="t1"), "unique"),  # two rollouts of one name in a run
        (NEW_ROLLOUT.format(run=99, name="x"), "foreign key"),  # a rollout of no run
        (NEW_ATTEMPT.format(rollout=99), "foreign key"),  # an attempt at nothing
        (RUN.replace("(1, 'run-1-x'", "(2, 'run-1-x'"), "unique"),  # a run under another's name
    ],
)
def test_names_and_references_hold(raw: Raw, statement: str, why: str) -> None:
    raw.rollout()
    refusal = raw.refuses(statement)
    assert refusal is not None and why in refusal.lower()


def test_a_number_is_never_given_twice(raw: Raw) -> None:
    """A fencing token that came back would let a zombie in."""
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
    return head + "".join(sorted(re.split(r", (?=CONSTRAINT|\w+ [A-Z])", body.replace(" )", ")").strip("() "))))


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
    assert {row[0] for row in raw.run("SELECT topic FROM pulse").fetchall()} == set(notifications.TOPICS)
