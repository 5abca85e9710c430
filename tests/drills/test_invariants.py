"""The checker finds what is planted: each case breaks a sound store behind its back, and is named."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import bindparam, update

from holdfast.contracts.errors import StaleLease, StoreError
from holdfast.contracts.rollout import AttemptState, Backoff, Claim
from holdfast.store import queue, schema
from holdfast.store.store import Store, open_store
from tests.conftest import Files
from tests.drills import journal, picture, roles
from tests.drills.invariants import Findings, examine
from tests.drills.journal import Journal, Witness

AT_ONCE = Backoff(initial_s=0.0, cap_s=0.0)


@dataclass
class Story:
    """Three rollouts: one finished at once, one after its first worker was written off, one after a failure."""

    url: str
    folder: Path
    journal: Journal
    run: str
    zombie: Claim

    def findings(self, *, is_over: bool = True) -> Findings:
        return examine(journal.read(self.folder), picture.take(self.url), is_over=is_over)

    def plant(self, *statements: str) -> None:
        """Change the file as nobody may: without the store, and without the guards in the schema."""
        connection = sqlite3.connect(self.url, isolation_level=None)
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DROP INDEX IF EXISTS ux_attempts_holder")
        for statement in statements:
            connection.execute(statement)
        connection.close()


@pytest.fixture
def story(files: Files, tmp_path: Path) -> Story:
    url, folder = files.fresh(), tmp_path / "journals"
    folder.mkdir()
    with open_store(url) as opened:
        return tell(opened, url, folder)


def tell(opened: Store, url: str, folder: Path) -> Story:
    begun = opened.runs.begin(kind="drill", model_ref="none", settings={}, salt="d", who="drill", now=time.time())
    run, written = begun.result().id, Journal(folder, "story")
    store = Witness(opened, written)
    store.queue.enqueue(run, [roles.task(name) for name in ("a", "b", "c")], now=time.time()).result()
    store.ledger.append("note", {"note": "one"}, who="story", now=time.time()).result()
    a, b, c = store.queue.claim(run, "zombie", now=time.time(), lease_s=30.0, most=3).result()
    finish(store, a)
    store.queue.finish(c.attempt, AttemptState.FAILED, now=time.time(), backoff=AT_ONCE).result()
    store.queue.sweep(now=time.time() + 40.0, backoff=AT_ONCE).result()
    for claim in store.queue.claim(run, "next", now=time.time() + 40.0, lease_s=60.0, most=3).result():
        finish(store, claim)
    for write in (store.traces.add(b.attempt, [roles.span(7)], now=time.time()), roles.succeed(store, b.attempt)):
        with pytest.raises(StaleLease):
            write.result()
    return Story(url, folder, written, run, b)


def finish(store: Witness, claim: Claim) -> None:
    attempt, now, spans = claim.attempt, time.time(), [roles.span(1), roles.span(2)]
    writes = [store.traces.add(attempt, spans, now=now), store.traces.score(attempt, [roles.REWARD], now=now)]
    store.queue.finish(attempt, AttemptState.SUCCEEDED, now=now, reward=1.0, after=writes).result()
    for write in writes:
        write.result()


def test_a_sound_store_has_no_findings(story: Story) -> None:
    found = story.findings()
    assert found.problems == []
    assert (found.rollouts, found.chain, found.written_off, found.tried_stale) == (3, 2, 1, 2)


WRONG_ROOT = (
    "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'runs')"
    " WHERE name = 'ix_runs_project_key'"
)
PLANTED = [
    # what is done to the file, the list in which it must turn up, and a word of the finding
    (("DELETE FROM attempts WHERE rollout = 1", "DELETE FROM rollouts WHERE key = 1"), "lost", "enqueued by"),
    (("DELETE FROM attempts WHERE key = 2",), "lost", "attempt 1 of"),
    (("DELETE FROM spans WHERE attempt = 1 AND seq = 2",), "lost", "spans [2] of attempt 1"),
    (("DELETE FROM signals WHERE attempt = 1",), "lost", "signals [1] of attempt 1"),
    (("UPDATE rollouts SET status = 'queuing' WHERE key = 1",), "lost", "is queuing"),
    (("UPDATE rollouts SET reward = 0 WHERE key = 1",), "lost", "success of"),
    (("UPDATE attempts SET status = 'fault' WHERE key = 1",), "lost", "acknowledged to story"),
    (("DELETE FROM ledger WHERE seq = 2",), "lost", "ledger entry"),
    (("UPDATE attempts SET status = 'succeeded' WHERE key = 2",), "twice", "2 attempts succeeded"),
    (("UPDATE rollouts SET final = 1 WHERE key = 2",), "twice", "not one that succeeded"),
    (("INSERT INTO spans SELECT 2, 7, kind, name, 0, 0, NULL, NULL FROM spans LIMIT 1",), "other", "StaleLease"),
    (("UPDATE attempts SET number = 5 WHERE key = 2",), "other", "are numbered"),
    (("UPDATE rollouts SET faults = 3 WHERE key = 2",), "other", "the rollout says 3 and"),
    (("UPDATE rollouts SET interruptions = 0 WHERE key = 2",), "other", "1 faults of ours, the rollout says 0 and 0"),
    (("UPDATE attempts SET status = 'running' WHERE key = 2",), "other", "1 running attempts"),
    (("UPDATE ledger SET who = 'nobody' WHERE seq = 1",), "other", "ledger entry 1"),
    (("UPDATE ledger SET body = '{}' WHERE seq = 2",), "other", "ledger entry 2"),
    (("PRAGMA writable_schema = ON", WRONG_ROOT), "other", "the database says"),
]


@pytest.mark.parametrize(("statements", "kind", "word"), PLANTED, ids=[word for _, _, word in PLANTED])
def test_what_is_planted_is_found(story: Story, statements: tuple[str, ...], kind: str, word: str) -> None:
    story.plant(*statements)
    assert any(word in text for text in getattr(story.findings(), kind))


def test_a_worker_that_writes_past_the_fence_is_found(story: Story) -> None:
    """It asks nobody: a span and an end by plain SQL, which it takes for accepted."""
    token, now = story.zombie.attempt.token, time.time()
    number = story.journal.asks("add", token=token, now=now, seqs=[9])
    body = f'{{"attributes":{{"made_ns":{time.monotonic_ns()}}}}}'
    story.plant(f"INSERT INTO spans VALUES ({token}, 9, 'telemetry', 'late', 0, 0, '{body}', NULL)")
    story.journal.told(number)
    stale = story.findings().stale
    assert any(text.startswith(f"add of attempt {token}") for text in stale)  # from the journal
    assert any(text.startswith(f"span 9 of attempt {token}") for text in stale)  # and from the store alone


def test_a_late_end_that_the_schema_alone_refuses_is_found(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    unfenced = update(schema.attempts).where(schema.attempts.c.key == bindparam("token"))
    ended = {"status": bindparam("status"), "ended_at": bindparam("now"), "error": bindparam("error")}
    unfenced = unfenced.values(**ended, output=bindparam("output")).returning(schema.attempts.c.rollout)
    monkeypatch.setattr(queue, "END_ATTEMPT", unfenced)
    with open_store(story.url) as opened, pytest.raises(StoreError, match="illegal move"):
        roles.succeed(Witness(opened, story.journal), story.zombie.attempt).result()
    (stale,) = story.findings().stale
    assert stale.startswith(f"finish of attempt {story.zombie.attempt.token} by story") and "no fence" in stale


def test_a_worker_that_was_written_off_and_writes_before_anybody_has_its_rollout_is_found(story: Story) -> None:
    with open_store(story.url) as opened:
        store = Witness(opened, story.journal)
        store.queue.enqueue(story.run, [roles.task("d")], now=time.time()).result()
        (claim,) = store.queue.claim(story.run, "zombie", now=time.time(), lease_s=30.0).result()
        token = claim.attempt.token
        store.queue.beat(story.run, [token], now=time.time() + 31.0, lease_s=30.0).result()  # late, and still its own
        assert not story.findings(is_over=False).stale
        store.queue.sweep(now=time.time() + 70.0).result()
    number = story.journal.asks("beat", tokens=[token], now=time.time() + 70.0, until=time.time() + 100.0)
    story.journal.told(number, [token])
    (stale,) = story.findings(is_over=False).stale
    assert stale.startswith(f"beat of attempt {token} by story")


def test_what_the_journal_alone_shows_is_found(story: Story) -> None:
    facts = {"token": 1, "rollout": f"{story.run}/a", "now": time.time(), "state": "succeeded", "reward": 1.0}
    story.journal.told(story.journal.asks("finish", **facts), "succeeded")
    number = story.journal.asks("add", token=1, now=time.time(), seqs=[3])
    story.journal.refused(number, StaleLease("attempt", why="its lease ran out 1.0 s ago"))
    story.journal.notes(crash="ValueError: oh")
    path = next(story.folder.glob("*.journal"))
    with path.open("a") as file:
        file.write('{"t":1,"n":99,"call":"enq')  # cut in two by a kill: not read
    found = story.findings()
    assert f"{story.run}/a: success acknowledged 2 times" in found.twice
    assert all(any(word in one for one in found.other) for word in ("yet it succeeded", "crashed: ValueError: oh"))


@pytest.mark.parametrize(
    ("up_to", "found"),
    [
        (False, 1),  # all of them or none: one of two is a half
        (True, 0),  # as many as there was room for: one of two may be all there was
    ],
)
def test_half_of_an_unanswered_call_is_found(story: Story, up_to: bool, found: int) -> None:
    with open_store(story.url) as opened:
        opened.queue.enqueue(story.run, [roles.task("half")], now=time.time()).result()
    story.journal.asks("enqueue", ids=[f"{story.run}/half", f"{story.run}/other"], up_to=up_to)
    assert len(story.findings(is_over=False).other) == found
