"""Whole runs of the pipeline, small: of settings, or of a program with a scripted agent and a scripted engine."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.collect.agent import Context
from holdfast.contracts.agent import Agent
from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.engine import Complete, Engine
from holdfast.contracts.errors import Fault
from holdfast.contracts.flag import ALL_ON, Features
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.run import Status
from holdfast.contracts.trace import ModelCall
from holdfast.pipeline.context import Endpoints, Runtime
from holdfast.pipeline.run import Control, RunSpec
from holdfast.pipeline.run import drive as drive_run
from holdfast.policies import tokens
from holdfast.store.store import Store
from tests.collect.agents import no_score
from tests.collect.scene import PACE, PATIENCE_S
from tests.conftest import Files


async def ran(
    store: Store,
    spec: RunSpec,
    control: Control | None = None,
    *,
    resume: str | None = None,
    features: Features = ALL_ON,
    clock: Callable[[], float] = time.time,
) -> Status:
    """The spec, driven to its end."""
    going = drive_run(
        store,
        spec,
        control or Control(),
        clock=clock,
        observe=lambda status: None,
        who="test",
        salt="ab",
        resume=resume,
        features=lambda done: features,
    )
    return await asyncio.wait_for(going, PATIENCE_S)


def drive(store: Store, spec: RunSpec, *, later_s: float = 0.0, **how: Any) -> Status:
    """The same from outside of an event loop; `later_s`: when leases of before are over."""
    return asyncio.run(ran(store, spec, clock=lambda: time.time() + later_s, **how))


@dataclass
class Script:
    """An engine whose models say what was asked of them; each call carries the version that answered."""

    opened: list[str] = field(default_factory=list)
    files: Artifacts | None = None

    def open_model(self, policy: Any) -> Complete:
        self.opened.append(policy.version)

        async def complete(messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
            said = str(messages[-1]["content"])
            completion = (*said.encode(), tokens.END)
            return ModelCall(
                model=policy.version,
                messages=tuple(messages),
                response={"role": "assistant", "content": said},
                finish_reason="stop",
                prompt_ids=tuple(tokens.prompt(messages)),
                completion_ids=completion,
                logprobs=(-5.0,) * len(completion),
                sampling={"temperature": 1.0},
            )

        return complete

    def open_endpoint(self, model: str) -> Complete | None:
        return None

    def close(self) -> None:
        pass


async def echo(task: Any, context: Context) -> Any:
    return task


def worth(task: Any, output: Any, spans: Any) -> tuple[RewardTerm, ...]:
    return (RewardTerm(name="worth", value=float(output), source="rule:test"),)


def success(task: Any, output: Any, spans: Any) -> tuple[RewardTerm, ...]:
    """Whether it was right; and it was safe."""
    right = RewardTerm(name="success", value=float(output), source="rule:test")
    return right, RewardTerm(name="safety_cost", value=0.0, weight=0.0, source="rule:test")


def spec_of(
    program: Callable[..., Any], agent: Agent = echo, score: Any = no_score, engine: Engine | None = None, **fields: Any
) -> RunSpec:
    given: dict[str, Any] = {
        "kind": "optimize",
        "program": program,
        "model_ref": "agent/test",
        "settings": {},
        "runtime": Runtime(agent, score, engine or Endpoints()),
        "workers": 2,
        "timing": PACE,
        "report_s": 0.05,
        "look_s": 0.01,
    }
    return RunSpec(**{**given, **fields})


def scripted(signals: Callable[[str], Mapping[str, float] | None], **weights: float) -> Runtime:
    """Agents ask once, and then have the signals that are said of their rollout; None: a fault of ours."""

    async def agent(task: Any, context: Context) -> Any:
        name = context.assignment.rollout.partition("/")[2]
        await context.ask([{"role": "user", "content": f"{name}?"}])
        found = signals(name)
        if found is None:
            raise Fault("endpoint", why="is down")
        return dict(found)

    def score(task: Any, output: Any, spans: Any) -> tuple[RewardTerm, ...]:
        return tuple(
            RewardTerm(name=name, value=value, weight=weights.get(name, 1.0), source="rule:test")
            for name, value in output.items()
        )

    return Runtime(agent, score, Script())


def fresh_in(folder: Path, files: Files) -> Path:
    """The path of an empty store with a folder, and so with checkpoints, of its own."""
    folder.mkdir()
    return Path(shutil.move(files.fresh(), folder / "s.db"))
