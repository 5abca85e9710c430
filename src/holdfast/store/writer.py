"""One writer thread that commits the work of many callers together, and the answer they wait for.

A caller hands over an operation (a function of a transaction) and gets a `WriteFuture`: plain code takes `.result()`,
async code awaits it. It is settled only after the commit is on disk. While one commit waits for the disk, the next
operations gather, so that concurrent callers share an fsync. What an operation does is its owner's business.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, Protocol, TypeVar, cast

from holdfast.contracts.errors import StoreError

T = TypeVar("T")
MAX_BATCH = 512
TRIES = 5
AGAIN = -1  # in place of an operation's number
PAUSE_S = 0.005  # before the second try, doubled for each after it: time for the rival to end

_gate = threading.Lock()  # orders "is it settled?" against "wake me when it is"


class WriteFuture(Generic[T]):
    """An answer that is on its way."""

    __slots__ = ("_error", "_hurry", "_settled", "_value", "_waiters")

    def __init__(self, hurry: Callable[[], None] | None = None) -> None:
        self._hurry = hurry  # to be called before anyone blocks
        self._settled = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiters: list[threading.Event | tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]] = []

    @property
    def settled(self) -> bool:
        return self._settled

    @property
    def failure(self) -> BaseException | None:
        """Why it failed; None when it did not, or is still on its way."""
        return self._error

    def result(self, timeout: float | None = None) -> T:
        """Block until settled; TimeoutError when that takes longer than `timeout` seconds (the work goes on)."""
        if not self._settled:
            if self._hurry is not None:
                self._hurry()
            event = threading.Event()
            if self._wake_by(event) and not event.wait(timeout):
                raise TimeoutError(f"no answer from the store within {timeout} s")
        return self._answer()

    def __await__(self) -> Generator[Any, None, T]:
        if not self._settled:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            if self._wake_by((loop, future)):
                yield from future
        return self._answer()

    def _wake_by(self, waiter: threading.Event | tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]) -> bool:
        with _gate:
            if not self._settled:
                self._waiters.append(waiter)
                return True
        return False

    def _answer(self) -> T:
        if self._error is not None:
            raise self._error
        return cast(T, self._value)


def settle(answers: Iterable[Answer]) -> None:
    """Give many answers at once: each event loop is woken once, not once an answer."""
    events: list[threading.Event] = []
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[Any]]] = {}
    with _gate:
        for pending, value, error in answers:
            pending._value, pending._error, pending._settled = value, error, True
            for waiter in pending._waiters:
                if isinstance(waiter, tuple):
                    loops.setdefault(waiter[0], []).append(waiter[1])
                else:
                    events.append(waiter)
            pending._waiters.clear()
    for event in events:
        event.set()
    for loop, futures in loops.items():
        if not loop.is_closed():
            try:
                loop.call_soon_threadsafe(_wake, futures)
            except RuntimeError:  # closed between the two lines: nobody is waiting there any more
                continue


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


class WriteSession(Protocol):
    """What the writer needs of an engine: transactions on its one connection."""

    def begin(self) -> Any: ...
    def commit(self, transaction: Any) -> None: ...
    def rollback(self) -> None: ...
    def is_passing(self, error: Exception) -> bool: ...
    def translate(self, error: Exception) -> Exception: ...
    def close(self) -> None: ...


Operation = Callable[[Any], Any]
Item = tuple[Operation, WriteFuture[Any]]
Answer = tuple[WriteFuture[Any], Any, BaseException | None]


class Writer:
    def __init__(self, session: WriteSession, on_commit: Callable[[Any], None]) -> None:
        self._session, self._on_commit = session, on_commit
        self._queue: deque[Item] = deque()
        self._ready = threading.Condition()
        self._closed = False
        self._woken_by: asyncio.AbstractEventLoop | None = None  # the loop that has promised to
        self._broken: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="holdfast-writer", daemon=True)
        self._thread.start()

    def submit(self, operation: Operation) -> WriteFuture[Any]:
        pending: WriteFuture[Any] = WriteFuture(self._wake)
        with self._ready:
            if self._broken is not None:
                raise _broke_down(self._broken)
            if self._closed:
                raise StoreError("the store is closed", why="this write came after close()")
            self._queue.append((operation, pending))
            # From an event loop: wake the writer once all that are ready to run have had their say, so that they share
            # a commit. Others wake it at once, and with it whatever a loop that is blocked by now had handed over.
            loop = asyncio._get_running_loop()
            if loop is None:
                self._ready.notify()
            elif loop is not self._woken_by:
                self._woken_by = loop
                loop.call_soon(self._wake)
        return pending

    def _wake(self) -> None:
        with self._ready:
            self._woken_by = None
            self._ready.notify()

    def close(self) -> None:
        """Commit what was handed over, then stop."""
        with self._ready:
            self._closed = True
            self._ready.notify()
        self._thread.join()

    def _work(self) -> None:
        batch: list[Item] = []
        try:
            while batch := self._take():
                self._settle(batch)
            self._session.close()
        except Exception as error:  # a crash, but nobody may wait for it forever
            with self._ready:
                self._broken = error
                batch += self._queue
                self._queue.clear()
            settle((pending, None, _broke_down(error)) for _, pending in batch if not pending.settled)
            raise

    def _take(self) -> list[Item]:
        with self._ready:
            while not self._queue and not self._closed:
                self._ready.wait()
            if len(self._queue) <= MAX_BATCH:
                batch = list(self._queue)
                self._queue.clear()
            else:
                batch = [self._queue.popleft() for _ in range(MAX_BATCH)]
            return batch

    def _settle(self, batch: list[Item]) -> None:
        """Commit together; where one operation fails, those before it commit, it fails alone, the rest go on."""
        tries = 0
        while batch:
            tries += 1
            failed_at = self._together(batch, is_last=tries >= TRIES)
            if failed_at == AGAIN:
                continue
            if failed_at is None:
                return
            if failed_at:
                self._settle(batch[:failed_at])
            self._alone(batch[failed_at])
            batch = batch[failed_at + 1 :]

    def _together(self, batch: list[Item], *, is_last: bool) -> int | None:
        """One transaction. The place of the operation that failed, or None when all have their answers.

        AGAIN where a trouble of no operation's own may pass, and nothing was kept."""
        answers: list[Answer] = []
        working = False
        try:
            transaction = self._session.begin()
            working = True
            for operation, pending in batch:
                answers.append((pending, operation(transaction), None))
            working = False
            self._session.commit(transaction)
        except Exception as error:
            self._session.rollback()
            if working:
                return len(answers)
            if not is_last and self._session.is_passing(error):
                return AGAIN
            failure = self._session.translate(error)  # no lock to be had, or no room: nobody's own fault
            settle((pending, None, failure) for _, pending in batch)
            return None
        self._on_commit(transaction)
        settle(answers)
        return None

    def _alone(self, item: Item) -> None:
        """Its own transaction, so that the error is its own; passing troubles (a deadlock) get a few more tries."""
        operation, pending = item
        for attempt in range(TRIES):
            if attempt:
                time.sleep(PAUSE_S * 2 ** (attempt - 1))
            try:
                transaction = self._session.begin()
                value = operation(transaction)
                self._session.commit(transaction)
            except Exception as error:
                self._session.rollback()
                if attempt + 1 < TRIES and self._session.is_passing(error):
                    continue
                settle([(pending, None, self._session.translate(error))])
                return
            self._on_commit(transaction)
            settle([(pending, value, None)])
            return


def _broke_down(error: Exception) -> StoreError:
    return StoreError("the store's writer broke down", why=f"{type(error).__name__}: {error}", remedy="open it again")
