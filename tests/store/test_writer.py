"""Group commit with a real session of each engine: everyone gets their own answer, and only after the commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import bindparam, insert, select

from holdfast.contracts.errors import Conflict, StoreError
from holdfast.store import schema
from holdfast.store.db import COMMITS, engine_for
from holdfast.store.sql import Transaction
from holdfast.store.writer import MAX_BATCH, WriteFuture, Writer, settle
from tests.store.scene import once

NOTE = insert(schema.pulse).values(topic=bindparam("topic"), n=bindparam("n"))
_ours = schema.pulse.c.n.between(100, 10**9) & (schema.pulse.c.topic != COMMITS)  # of which there may be so many
NOTES = select(schema.pulse.c.topic).where(_ours).order_by(schema.pulse.c.n)


class Room:
    """A writer on a real database, and how many transactions it has committed."""

    def __init__(self, url: str) -> None:
        self.engine = engine_for(url)
        self.commits = 0
        self.writer = Writer(self.engine.session(), self._committed)

    def _committed(self, transaction: Transaction) -> None:
        self.commits += 1

    def note(self, n: int) -> WriteFuture[int]:
        return self.writer.submit(lambda tx: tx.run(NOTE, {"topic": f"note {n}", "n": 100 + n}) and n)

    def fail(self, n: int) -> WriteFuture[Any]:
        def operation(tx: Transaction) -> None:
            tx.run(NOTE, {"topic": f"failed {n}", "n": 100 + n})
            raise Conflict(f"call {n}")

        return self.writer.submit(operation)

    def kept(self) -> list[str]:
        connection = self.engine.connect(read_only=True)
        try:
            return [row[0] for row in connection.execute(self.engine.book[NOTES]).fetchall()]
        finally:
            connection.close()

    def busy(self) -> threading.Event:
        """Occupy the writer until the event is set, so that what follows gathers into one batch."""
        started, release = threading.Event(), threading.Event()
        self.writer.submit(lambda _: started.set() or release.wait(60))
        assert started.wait(60)
        return release


@pytest.fixture
def room(url: str) -> Iterator[Room]:
    room = Room(url)
    yield room
    room.writer.close()


def test_calls_that_gather_share_one_commit(room: Room) -> None:
    release = room.busy()
    answers = [room.note(n) for n in range(1, 50)]
    assert not any(answer.settled for answer in answers)
    release.set()
    assert [answer.result() for answer in answers] == list(range(1, 50))
    assert room.commits == 2  # the busy one's, and one for all
    assert room.kept() == [f"note {n}" for n in range(1, 50)]


@once
def test_a_batch_has_a_largest_size(room: Room) -> None:
    release = room.busy()
    answers = [room.note(n) for n in range(1, MAX_BATCH + 2)]
    release.set()
    assert answers[-1].result() == MAX_BATCH + 1
    assert room.commits == 3


def test_a_failing_call_harms_no_other_in_its_batch(room: Room) -> None:
    first, kept = 1, list[str]()
    for plan in ("f", "fnnn", "nnfn", "nnnf", "fnfnf", "ffff"):  # alone, at the head, in the middle, at the tail, …
        release = room.busy()
        calls = [(kind, n, room.fail(n) if kind == "f" else room.note(n)) for n, kind in enumerate(plan, first)]
        release.set()
        for kind, n, answer in calls:
            if kind == "f":
                with pytest.raises(Conflict, match=f"^call {n}$"):
                    answer.result()
            else:
                assert answer.result() == n
        kept += [f"note {n}" for kind, n, _ in calls if kind == "n"]
        assert room.kept() == kept
        first += len(plan)


def test_a_failing_statement_fails_alone_too(room: Room) -> None:
    release = room.busy()
    first, twin, last = room.note(1), room.note(1), room.note(2)
    release.set()
    assert (first.result(), last.result()) == (1, 2)
    with pytest.raises(StoreError, match=r"(?i)unique"):
        twin.result()
    assert room.kept() == ["note 1", "note 2"]


def test_callers_in_many_threads_each_get_their_own_answer(room: Room) -> None:
    def caller(thread: int) -> list[int | None]:
        given: list[int | None] = []
        for n in range(thread * 100, thread * 100 + 25):
            try:
                given.append((room.fail(n) if n % 5 == 0 else room.note(n)).result())
            except Conflict as error:
                assert error.what == f"call {n}"
                given.append(None)
        return given

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(caller, range(1, 9)))
    expected = [[None if n % 5 == 0 else n for n in range(t * 100, t * 100 + 25)] for t in range(1, 9)]
    assert answers == expected
    assert len(room.kept()) == 8 * 20


@once
def test_callers_on_one_event_loop_share_commits_and_each_get_their_own_answer(room: Room) -> None:
    async def caller(n: int) -> int | str:
        try:
            return await (room.fail(n) if n % 50 == 0 else room.note(n))
        except Conflict as error:
            return error.what

    async def everyone() -> list[int | str]:
        return await asyncio.gather(*(caller(n) for n in range(1, 201)))

    assert asyncio.run(everyone()) == [f"call {n}" if n % 50 == 0 else n for n in range(1, 201)]
    assert room.commits < 50


@once
def test_calls_in_one_turn_of_an_event_loop_share_one_commit(room: Room) -> None:
    async def everyone() -> list[int]:
        return await asyncio.gather(*(_awaited(room.note(n)) for n in range(1, 201)))

    assert asyncio.run(everyone()) == list(range(1, 201))
    assert room.commits == 1


async def _awaited(answer: WriteFuture[int]) -> int:
    return await answer


@once
def test_a_loop_that_blocks_on_its_own_call_is_answered(room: Room) -> None:
    async def block() -> int:
        room.note(1)
        return room.note(2).result(60)

    assert asyncio.run(block()) == 2
    assert room.kept() == ["note 1", "note 2"]


@once
def test_what_a_loop_handed_over_before_it_ended_is_not_forgotten(room: Room) -> None:
    loop = asyncio.new_event_loop()

    async def hand_over() -> WriteFuture[int]:
        return room.note(1)

    answer = loop.run_until_complete(hand_over())
    loop.close()
    assert answer.result(60) == 1


@once
def test_two_event_loops_may_await_one_answer(room: Room) -> None:
    release = room.busy()
    answer = room.note(1)

    async def wait() -> int:
        return await answer

    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(asyncio.run, wait()) for _ in range(2)]
        release.set()
        assert [one.result() for one in waiting] == [1, 1]
    assert asyncio.run(wait()) == 1  # and once more when it is settled


@once
def test_a_cancelled_wait_leaves_the_work_alone(room: Room) -> None:
    release = room.busy()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await room.note(1)
        release.set()
        await room.note(2)

    asyncio.run(give_up())
    assert room.kept() == ["note 1", "note 2"]


@once
def test_a_loop_that_is_gone_does_not_stop_the_writer(room: Room) -> None:
    release = room.busy()
    loop = asyncio.new_event_loop()
    answer = room.note(1)
    waiting = answer.__await__()

    async def start() -> None:
        next(waiting)

    loop.run_until_complete(start())
    loop.close()
    release.set()
    assert room.note(2).result() == 2
    assert answer.result() == 1


@once
def test_an_answer_that_takes_too_long_is_a_timeout_and_the_work_goes_on(room: Room) -> None:
    release = room.busy()
    answer = room.note(1)
    with pytest.raises(TimeoutError, match=r"^no answer from the store within 0\.01 s$"):
        answer.result(0.01)
    release.set()
    assert answer.result() == 1


def test_a_settled_answer_is_given_again_and_again() -> None:
    pending: WriteFuture[int] = WriteFuture()
    settle([(pending, 3, None)])
    assert pending.settled and pending.result() == pending.result(0) == 3


@once
def test_closing_commits_what_was_handed_over(room: Room) -> None:
    release = room.busy()
    answers = [room.note(n) for n in (1, 2, 3)]
    closing = threading.Thread(target=room.writer.close)
    closing.start()
    release.set()
    closing.join(20)
    assert [answer.result(0) for answer in answers] == [1, 2, 3]
    assert room.kept() == ["note 1", "note 2", "note 3"]


class Collapsing:
    """A session whose connection breaks so badly that not even rolling back works."""

    def begin(self) -> Any:
        return None

    def rollback(self) -> None:
        raise OSError("the disk fell off")

    def close(self) -> None:
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the thread dies aloud
def test_nobody_waits_forever_for_a_writer_that_broke() -> None:
    writer = Writer(Collapsing(), lambda _: None)  # type: ignore[arg-type]
    started, release = threading.Event(), threading.Event()

    def break_down(_: Any) -> None:
        started.set()
        release.wait(60)
        raise Conflict("x")

    first = writer.submit(break_down)
    assert started.wait(60)
    second = writer.submit(lambda _: 1)
    release.set()
    for answer in (first, second):
        with pytest.raises(StoreError, match="the disk fell off"):
            answer.result(60)
    with pytest.raises(StoreError, match="the disk fell off"):
        writer.submit(lambda _: 1)
    writer._thread.join(60)  # its last words are heard in this test, and not in one that follows
    assert not writer._thread.is_alive()
