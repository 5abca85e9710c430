"""The stage that services are tested on: a line of versions in a real store, and speakers that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from holdfast.contracts.commands import Command, Role
from holdfast.contracts.evidence import Episode, Finding
from holdfast.contracts.release import PolicyKind, Release, ServedRequest, Stage
from holdfast.contracts.trace import ModelCall
from holdfast.operate import control
from holdfast.operate.auth import Caller
from holdfast.operate.canary_controller import compared
from holdfast.operate.service import Service, trial_of
from holdfast.pipeline.promote import Candidate, PromotionRequest, promote
from holdfast.promote.gate import Criteria
from holdfast.prove.comparison import ComparisonConfig
from holdfast.store.store import Store

POLICY = "sprout"
REQUEST: ContextVar[str] = ContextVar("request")
LONG_AGO = -1e6
HELLO: list[dict[str, str]] = [{"role": "user", "content": "hi"}]


@dataclass(eq=False)
class Voice:
    """Answers with its version's name, as soon as it may; everything that is done to it is kept."""

    name: str
    fails: Exception | None = None  # before the first piece
    breaks: Exception | None = None  # after it
    is_short: bool = False  # its stream ends without the call
    may: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0
    under_way: int = 0
    closed: int = 0
    asked_when_closed: int = 0
    closed_when_busy: int = 0

    def __post_init__(self) -> None:
        self.may.set()

    async def __call__(self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        return [piece async for piece in self.stream(messages, **sampling)][-1]

    async def stream(self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> AsyncGenerator[Any, None]:
        self.asked += 1
        self.asked_when_closed += bool(self.closed)
        self.under_way += 1
        try:
            await self.may.wait()
            if self.fails is not None:
                raise self.fails
            if not self.is_short:
                yield {"content": self.name}
            if self.breaks is not None:
                raise self.breaks
            await asyncio.sleep(0)
            if not self.is_short:
                yield call(self.name, messages)
        finally:
            self.under_way -= 1

    def close(self) -> None:
        self.closed += 1
        self.closed_when_busy += bool(self.under_way)


def call(name: str, messages: Sequence[Mapping[str, Any]] = HELLO) -> ModelCall:
    return ModelCall(
        model=name,
        messages=tuple(messages),
        response={"role": "assistant", "content": name},
        finish_reason="stop",
        prompt_ids=(1, 2),
        completion_ids=(3, 4, 5),
        logprobs=(-0.1, -0.2, -0.3),
    )


class Line:
    """The versions of one policy; each step is at another moment."""

    def __init__(self, store: Store, versions: int = 1) -> None:
        self.store, self._moments = store, count(1)
        for _ in range(versions):
            self.add()
        self.go(1, Stage.LIVE, known_good=True)

    @property
    def now(self) -> float:
        return float(next(self._moments))

    def add(self) -> Release:
        source = f"shelf:{len(self.store.releases.of_policy(POLICY)) + 1}"
        how: dict[str, Any] = {"kind": PolicyKind.WEIGHTS, "source": source, "who": "test"}
        return self.store.releases.add(policy=POLICY, now=self.now, **how).result()

    def at(self, number: int) -> Release:
        return self.store.releases.get(f"{POLICY}@{number}")

    def go(self, number: int, to: Stage, share: int | None = None, **how: Any) -> Release:
        given = {"expect": self.at(number).stage, "share": share, "who": "test", "why": "told", "now": self.now, **how}
        return self.store.releases.move(f"{POLICY}@{number}", to, **given).result()

    def back(self, failing: int, to: int) -> Release:
        by: dict[str, Any] = {"who": "test", "why": "told", "now": self.now, "reasons": ()}
        ends = {"failing": f"{POLICY}@{failing}", "to": f"{POLICY}@{to}"}
        return self.store.releases.roll_back(POLICY, **ends, **by).result()

    def trial(self, number: int) -> str:
        found = trial_of(self.at(number), self.at(self.live))
        assert found is not None
        return found.name

    @property
    def live(self) -> int:
        found = self.store.releases.live(POLICY)
        assert found is not None
        return found.number

    def beside(self, number: int) -> int:
        """What it is compared with: the live one, or the one that the live one took the place of."""
        found = compared(self.store.releases.of_policy(POLICY))
        return found[1].number if found is not None and found[0].number == number else self.live

    def serve(self, number: int, outcomes: Sequence[Mapping[str, Any]], arm: int, start: float = 0.0) -> None:
        """Requests as a service would have noted them, one after the other from `start` on, in this version's trial;
        long ago, so that all that was told of them counts."""
        begun = trial_of(self.at(number), self.at(self.beside(number)))
        assert begun is not None
        self.store.trials.begin(begun, who="test", now=self.now).result()
        known = len(self.store.trials.served(begun.name))
        of: dict[str, Any] = {"trial": begun.name, "arm": f"{POLICY}@{arm}"}
        served = [
            ServedRequest(
                id=f"{begun.name}-{arm}-{known + n}",
                unit=f"{arm}-u{known + n}",
                **{"at": LONG_AGO + start + n, **of, **outcome},
            )
            for n, outcome in enumerate(outcomes)
        ]
        self.store.trials.record(served).result()


@dataclass
class House:
    """A service of the line, with the voices that it loaded."""

    store: Store
    voices: dict[str, list[Voice]] = field(default_factory=dict)
    unloadable: set[str] = field(default_factory=set)
    time: float = 100.0
    heard: list[tuple[str, str]] = field(default_factory=list)
    numbers: Any = field(default_factory=lambda: count(1))

    def service(self) -> Service:
        def heard(identity: str, release: str, messages: Any, made: ModelCall) -> None:
            self.heard.append((identity, release))

        return Service(self.store, POLICY, self.load, REQUEST.get, lambda: self.time, heard)

    def load(self, release: Release) -> Voice:
        if release.id in self.unloadable:
            raise OSError("no such weights")
        made = Voice(release.id)
        self.voices.setdefault(release.id, []).append(made)
        return made

    def voice(self, number: int) -> Voice:
        return self.voices[f"{POLICY}@{number}"][-1]

    async def ask(self, service: Service, key: str, *, is_streamed: bool = False) -> str:
        """What a caller gets: the name of the version."""
        REQUEST.set(f"r{next(self.numbers)}-{key}")
        chosen = service.choose_version(key)
        await asyncio.sleep(0)  # as at the endpoint, where a task of its own asks
        if not is_streamed:
            return str((await chosen(HELLO)).response["content"])
        pieces = [piece async for piece in chosen.stream(HELLO)]
        assert [type(piece) for piece in pieces] == [dict, ModelCall]
        return str(pieces[-1].response["content"])


async def over(*tasks: asyncio.Task[None]) -> None:
    """They are cancelled, and end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def keys(service: Service, release: int, most: int = 1) -> list[str]:
    """Callers that this version answers."""
    found = (key for key in map(str, count()) if service.choose_version(key).version.release == f"{POLICY}@{release}")
    return [next(found) for _ in range(most)]


def episodes(rate: float, tasks: int = 100, seeds: int = 2) -> list[Episode]:
    """Of every ten tasks so many are solved, with every seed."""
    return [
        Episode(task=f"t{task}", seed=seed, reward=value, success=value, safety_cost=0.0, latency_s=1.0, tokens=10)
        for task in range(tasks)
        for seed in range(seeds)
        for value in [float(task % 10 < 10 * rate)]
    ]


async def proposed(
    store: Store, *, rate: float = 1.0, to: Stage | None = Stage.LIVE, now: float = 50.0
) -> dict[str, Any]:
    """A candidate with real evidence, brought before the gate as a run does it; the live one solves three of ten."""
    audit = (Finding(name="no_secrets", severity="critical", count=0, of=200),)
    candidate = Candidate(
        run="run-1-ab12",
        policy=POLICY,
        suite=("small", "1", "3f2a" * 16),
        baseline="shelf:1",
        candidate="shelf:2",
        before=episodes(0.3),
        after=episodes(rate),
        planned=len(episodes(rate)),
        audit=audit,
    )
    request = PromotionRequest(
        candidate=candidate, how=ComparisonConfig(), criteria=Criteria(), reports=store.reports, now=now, to=to
    )
    return await promote(store, request, clock=lambda: now, who="loop")


def take_back(store: Store, to: str | None, why: str, now: float) -> tuple[Release, Release]:
    """By a person's order: what became of the one that was taken back, and who is live then."""
    args = {} if to is None else {"to": to}
    command = Command(id=f"{why} {now}", action="rollback", subject=POLICY, who="?", why=why, at=now, args=args)
    told = control.take(store, command, Caller(label="ann", role=Role.OPERATOR))
    return store.releases.get(told["taken_back"]), store.releases.get(told["live"]["id"])
