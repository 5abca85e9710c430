"""Where the agents of a run are executed, and who answers for each version of a policy.

A policy is opened before its work is enqueued; attempts ask for it by the version that their rollout carries. How an
agent is interrupted is `collect.seats`' business, and what it may ask a model is `collect.agent`'s.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.collect.agent import Score
from holdfast.collect.episodes import EpisodePlayer
from holdfast.collect.executors import AgentRuntime, Slot
from holdfast.contracts.agent import Agent
from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.engine import Complete, Engine
from holdfast.contracts.errors import Fault
from holdfast.contracts.executor import Executor
from holdfast.contracts.policy import Actor, Policy


class Endpoints:
    """The engine of runs whose models are all behind an address: nothing of ours is loaded."""

    def __init__(self, connect: Callable[[str], Complete | None] = lambda model: None) -> None:
        self.files: Artifacts | None = None
        self._connect = connect

    def open_model(self, policy: Any) -> Complete:
        raise Fault(f"policy {policy.version}", why="its weights are ours, and this run loads none")

    def open_endpoint(self, model: str) -> Complete | None:
        return self._connect(model)

    def close(self) -> None:
        """There is nothing to let go of."""


class Runtime:
    """Of one run, in this process."""

    def __init__(
        self,
        agent: Agent,
        score: Score,
        engine: Engine,
        *,
        executor: Callable[[], Executor] | None = None,  # makes one; None: agents run in this process
        proxy_url: str | None = None,
        has_budgets: bool = False,
        player: EpisodePlayer | None = None,  # policies that act in environments play there
    ) -> None:
        self.engine, self.score, self.player = engine, score, player
        self.tools: Sequence[Mapping[str, Any]] = getattr(agent, "tools", ())  # that tasks may name
        self._actors: dict[str, Actor] = {}
        self._lock = threading.Lock()
        self._home = AgentRuntime(agent, score, self.complete, time.time, proxy_url=proxy_url, has_budgets=has_budgets)
        self._executor = executor or self._home.executor

    def attach(self, files: Artifacts) -> None:
        """The store's artifacts, among which are the checkpoints of policies."""
        self.engine.files = files

    def open(self, policy: Policy) -> Actor:
        """The policy, ready to act: attempts of its version find it from now on."""
        actor = policy.open(self.engine)
        with self._lock:
            self._actors[policy.version] = actor
        return actor

    def versions(self) -> list[str]:
        """Those that can be answered for here: work of any other is left to whoever has opened it."""
        with self._lock:
            return list(self._actors)

    def complete(self, version: str | None) -> Complete | None:
        """Who answers for a version; a rollout from before versions were carried is answered by the last one opened."""
        with self._lock:
            if version is None:
                return next((one.complete for one in reversed(self._actors.values())), None)
            if version not in self._actors:
                why, remedy = "nobody has opened it in this process", "let the process that drives the run do this work"
                raise Fault(f"policy {version}", why=why, remedy=remedy)
            return self._actors[version].complete

    def seat(self) -> Slot:
        return Slot(self._executor())

    def close(self) -> None:
        self._home.close()
        self.engine.close()
