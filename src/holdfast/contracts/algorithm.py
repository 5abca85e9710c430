"""The seam of learning: an algorithm asks for work, is told what came of it, and leaves a candidate.

All three are pure functions of small records of references, so that a run that was killed goes on from the last one
that is recorded. What work is run by, and how it is scored, is the pipeline's business.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.checks import require
from holdfast.contracts.experience import Experience
from holdfast.contracts.flag import Features
from holdfast.contracts.policy import Checkpoint, Policy, policy_from, policy_record
from holdfast.contracts.rollout import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One rollout to run: a task, the policy that acts, and its chance."""

    name: str  # unique within the run
    input: Any  # what the agent and the scorer get; any JSON
    policy: Policy
    group: str  # attempts at one task are compared with one another
    split: Split = Split.TRAIN
    seed: str | None = None  # names its chance: equal seeds, equal draws; None: its own name

    def record(self) -> dict[str, Any]:
        known = {"name": self.name, "input": self.input, "policy": self.policy.version, "group": self.group}
        return {**known, "split": str(self.split), "seed": self.seed}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTail:
    """Rewarded train rollouts of another run, as they arrive: wait until there are so many, or that run is over."""

    run: str
    least: int
    taken: tuple[str, ...] = ()  # sha256 of the blobs that list what was taken before: each is learnt from once

    def record(self) -> dict[str, Any]:
        return {"run": self.run, "least": self.least, "taken": list(self.taken)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Steps to play in environments: who learns from them plays them itself, and keeps what it needs to go on."""

    env: str
    steps: int  # in all environments together
    seed: int  # of the first environment; the i-th has seed + i
    policy: str  # the version that acts at first

    def record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one step collected: a reference to its rollouts, never the rollouts."""

    run: str
    step: str  # the durable step that they belong to
    count: int
    ids: str | None = None  # sha256 of the blob that lists them, where they are another run's
    segment: Segment | None = None  # to be played by who learns from it

    def record(self) -> dict[str, Any]:
        segment = {} if self.segment is None else {"segment": self.segment.record()}
        return {"run": self.run, "step": self.step, "rollouts": self.count, "ids": self.ids, **segment}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Batch:
        return cls(
            run=record["run"],
            step=record["step"],
            count=record["rollouts"],
            ids=record.get("ids"),
            segment=Segment(**record["segment"]) if "segment" in record else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmState:
    """How far an algorithm has come in one iteration: references and small numbers."""

    base: Policy  # what it learns from
    candidate: Policy | None = None  # what it has made; None: nothing moved yet
    iteration: int = 0
    step: int = 0  # batches that it was told of
    data: Mapping[str, Any] = field(default_factory=dict)  # the algorithm's own, plain JSON
    metrics: Mapping[str, Any] = field(default_factory=dict)  # of the last batch, for people

    @property
    def policy(self) -> Policy:
        """Who acts now."""
        return self.candidate or self.base

    def next(self, *, candidate: Policy | None = None, metrics: Mapping[str, Any], **data: Any) -> AlgorithmState:
        """After one more batch; without a candidate the last one stays."""
        made, data = candidate or self.candidate, {**self.data, **data}
        return replace(self, candidate=made, step=self.step + 1, data=data, metrics=metrics)

    def record(self) -> dict[str, Any]:
        """Figures stand at the top, where whoever looks at a step finds them."""
        state = {
            "base": policy_record(self.base),
            "candidate": None if self.candidate is None else policy_record(self.candidate),
            "iteration": self.iteration,
            "step": self.step,
            "data": dict(self.data),
        }
        return {**self.metrics, "state": state}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> AlgorithmState:
        kept = record["state"]
        return cls(
            base=policy_from(kept["base"]),
            candidate=None if kept["candidate"] is None else policy_from(kept["candidate"]),
            iteration=kept["iteration"],
            step=kept["step"],
            data=kept["data"],
            metrics={name: value for name, value in record.items() if name != "state"},
        )


class LearnContext(Protocol):
    """What an algorithm may use while it is told of a batch."""

    @property
    def run(self) -> str: ...
    @property
    def folder(self) -> Path:
        """The store's own, for what is written before it is put among the artifacts."""
        ...

    @property
    def files(self) -> Artifacts:
        """The store's artifacts: checkpoints are among them."""
        ...

    @property
    def features(self) -> Features: ...
    @property
    def seed(self) -> int: ...
    def experiences(self, batch: Batch) -> list[Experience]:
        """What the rollouts of the batch did, in the order of the work."""
        ...

    def check(self) -> None:
        """To be called between pieces and before each write: waits while the run is paused, Interrupted at its end."""
        ...

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Record it together with the step; its files are on disk already."""
        ...

    def save(self, value: Any) -> str:
        """Data that is too large for a step's result, as a blob: its hash."""
        ...

    def read(self, sha256: str) -> Any:
        """What was kept under this hash."""
        ...

    @property
    def held_s(self) -> float:
        """How long this step has waited for a paused run: no part of its work."""
        ...

    def now(self) -> float: ...


Asked: TypeAlias = Work | RolloutTail | Segment  # what an algorithm may ask for


class Algorithm(Protocol):
    """Learns from batches until it asks for no more."""

    def start(self, base: Policy) -> AlgorithmState: ...

    def ask(self, state: AlgorithmState, tasks: Sequence[Any]) -> Sequence[Asked]:
        """The next batch; empty: there is nothing more to learn."""
        ...

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState: ...


SWITCHED_OFF = "learning is switched off"
LATER = {"later": True}  # of a setting that older runs do not know: at its default it is no part of what is compared


# The kit for whoever writes another one


def check_algorithm(
    make: Callable[[], Algorithm],
    base: Policy,
    tasks: Sequence[Any],
    context: Callable[[str, Sequence[Asked]], LearnContext],
    *,
    most: int = 100,
) -> None:
    """It asks the same of the same state, comes to an end, and goes on from its record as if nothing had happened.

    `context(line, work)` gives what it is told of this work with; each line of its two lines of steps has a folder of
    its own. One line is made by one object; in the other every step is another process's, which knows the record only.
    """
    algorithm = make()
    whole = _line(lambda: algorithm, base, tasks, partial(context, "whole"), most)
    broken = _line(make, base, tasks, partial(context, "broken"), most)
    require(len(whole) > 1, "it asks for nothing: nothing was checked")
    for number, (at, resumed) in enumerate(zip(whole, broken, strict=False)):
        says = f"step {number}: a process that was killed goes on with {resumed!r:.120}, not {at!r:.120}"
        require(at == resumed, says)
    require(len(whole) == len(broken), f"it takes {len(whole) - 1} steps, and {len(broken) - 1} where it is killed")


def _line(
    make: Callable[[], Algorithm],
    base: Policy,
    tasks: Sequence[Any],
    context: Callable[[Sequence[Asked]], LearnContext],
    most: int,
) -> list[Any]:
    """What it asks for at each step, and whom it has made by then."""
    state, found, names = make().start(base), list[Any](), set[str]()
    is_fresh = (state.base.version, state.candidate, state.step) == (base.version, None, 0)
    require(is_fresh, f"it starts with {state!r:.120}, not with the base and nothing learnt")
    while True:
        state, algorithm = _again(state), make()
        before = json.dumps(state.record())
        work, again = ([one.record() for one in algorithm.ask(state, tasks)] for _ in range(2))
        is_same = work == again and json.dumps(state.record()) == before
        require(is_same, f"step {state.step}: asking changes what is asked")
        found.append((work, state.policy.version))
        if not work:
            return found
        require(state.step < most, f"it asks for more after {most} steps")
        asked = [one["name"] for one in work if "name" in one]
        twice = len({*asked}) < len(asked) or not names.isdisjoint(asked)
        require(not twice, f"step {state.step}: asks for work under a name that is taken")
        names.update(asked)
        given = algorithm.ask(state, tasks)
        segment = next((segment for segment in given if isinstance(segment, Segment)), None)
        batch = Batch(run="kit", step=f"{state.step}", count=len(given), segment=segment)
        told = algorithm.tell(state, batch, context(given))
        is_next = (told.step, told.base.version) == (state.step + 1, state.base.version)
        require(is_next, f"step {state.step}: is followed by step {told.step} from {told.base.version}")
        state = told


def _again(state: AlgorithmState) -> AlgorithmState:
    """As a restart reads it."""
    try:
        return AlgorithmState.from_record(json.loads(json.dumps(state.record(), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"step {state.step}: its state is not plain JSON: {error}") from error
