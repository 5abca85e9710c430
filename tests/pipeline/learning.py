"""Runs that really learn, prove and promote, and that are the same every time: of a prompt, a tiny model, a network.

A hook is told how far they are. As a program it drives them in children that are killed, and prints what came of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.collect.agent import Context
from holdfast.contracts.algorithm import AlgorithmState, Batch, LearnContext, Work
from holdfast.contracts.engine import Engine
from holdfast.contracts.policy import Policy
from holdfast.contracts.release import Stage
from holdfast.contracts.run import RunState
from holdfast.learn.control import EnvPPO
from holdfast.learn.grpo import GRPO
from holdfast.learn.ppo import Settings as PpoSettings
from holdfast.learn.prompt_search import Candidates, PromptSearch
from holdfast.learn.proposers import PHRASES
from holdfast.pipeline.control import EnvProof, improve_env
from holdfast.pipeline.held_out import HeldOut
from holdfast.pipeline.improve import Spec, improve
from holdfast.pipeline.prove import ProveConfig
from holdfast.pipeline.run import DurableRun, RunSpec
from holdfast.policies.engine import LocalEngine
from holdfast.policies.model import Model
from holdfast.policies.network import Network
from holdfast.policies.prompt import Prompt
from holdfast.promote.gate import Criteria, SpreadLimits
from holdfast.prove.comparison import ComparisonConfig
from holdfast.store.runs import Steps
from holdfast.store.store import Store, open_store
from tests.collect.environments import Signpost
from tests.collect.scene import PACE, fall_silent
from tests.pipeline.scene import ran, spec_of, success

LINE = "tools"
LEARNT = 2  # steps of learning, in a run of the model
HELD_OUT = 12
STEPS = 11  # on record: begin, base, start, 2 × (collect, learn), live, order, prove, decide
LAX = Criteria(
    max_safety_regression=0.6,
    min_episodes=10,
    require_seed_reproducibility=False,
    max_sample_spread=SpreadLimits(p_value=1.0, delta=1.0),
    require_audit=False,
)
WEIGHING = ComparisonConfig(max_safety_regression=0.6, sample_p_value_spread=1, sample_delta_spread=1)
Hook = Callable[[str], None]


def nothing(at: str) -> None:
    pass


def _spec(
    policy: Policy,
    algorithm: Any,
    agent: Any,
    *,
    stage: Stage = Stage.LIVE,
    engine: Engine | None = None,
    tasks: int = 4,
    **fields: Any,
) -> RunSpec:
    spec = Spec(
        line=LINE,
        policy=policy,
        algorithm=algorithm,
        tasks=[{"ask": f"practice {n}"} for n in range(tasks)],
        held_out=[HeldOut(id=f"v{n}", input={"ask": f"prove {n}"}) for n in range(HELD_OUT)],
        prove=ProveConfig(how=WEIGHING, seeds=(0,), timeout_s=None, is_timed=False),
        criteria=LAX,
        stage=stage,
        timeout_s=None,
    )

    async def program(run: DurableRun) -> None:
        await improve(run, spec)

    return spec_of(program, agent, success, engine, kind="improve", policy=LINE, **fields)


# A model


class Held:
    """The context of a learning step that tells a hook before each check."""

    def __init__(self, ctx: LearnContext, hook: Hook, at: str) -> None:
        self._ctx, self._hook, self._at, self._calls = ctx, hook, at, 0

    def check(self) -> None:
        self._calls += 1
        self._hook(f"learn {self._at} {self._calls}")
        self._ctx.check()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


@dataclass(frozen=True)
class Hooked:
    """An algorithm whose steps tell a hook how far they are."""

    algorithm: GRPO
    hook: Hook

    def start(self, base: Policy) -> AlgorithmState:
        return self.algorithm.start(base)

    def ask(self, state: AlgorithmState, tasks: Sequence[Any]) -> Sequence[Work]:
        self.hook(f"ask {state.step}")
        return self.algorithm.ask(state, tasks)

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        held: Any = Held(ctx, self.hook, str(state.step))
        return self.algorithm.tell(state, batch, held)


def model_spec(base: str, hook: Hook = nothing, **fields: Any) -> RunSpec:
    """The tiny model answers noise, every second attempt is right, and what has learnt is better in the proof."""

    async def agent(task: Mapping[str, Any], context: Context) -> float:
        hook(f"run {task['ask']}")
        asked = [{"role": "user", "content": task["ask"]}]
        call = await context.ask(asked, max_tokens=6, seed=context.assignment.seed)
        if task["ask"].startswith("prove"):
            return float(not call.model.endswith("@0"))
        return float(int(context.assignment.rollout[-1]) % 2)

    # Several minibatches a step, shuffled: whoever loses its place among them ends elsewhere.
    algorithm = GRPO(lr=1e-2, steps=LEARNT, tasks=2, samples=4, seed=5, minibatch=2, epochs=2)
    engine = LocalEngine(slots=2, seed=0, deterministic=True)
    return _spec(Model(base), Hooked(algorithm, hook), agent, engine=engine, **fields)


# A prompt


def prompt_spec(base: str, hook: Hook = nothing, **fields: Any) -> RunSpec:
    """The agent does what its prompt says, more or less often."""

    async def agent(task: Mapping[str, Any], context: Context) -> float:
        hook(f"run {task['ask']}")
        await asyncio.sleep(0.002)
        return float(random.Random(context.assignment.seed).random() < context.resources["share"])

    prompts = [Prompt({"share": share}) for share in (0.97, 0.5, 0.4)]
    return _spec(Prompt({"share": 0.1}), Candidates(prompts), agent, **fields)


SEARCHED = 150  # rollouts of a search for a prompt


def search_spec(base: str, hook: Hook = nothing, **fields: Any) -> RunSpec:
    """Some sentences of the bank help the agent, and some hinder it."""

    async def agent(task: Mapping[str, Any], context: Context) -> float:
        hook(f"run {task['ask']}")
        await asyncio.sleep(0.002)
        text = context.resources["system"]
        worth = 0.02 + sum(0.45 if place < 4 else -0.05 for place, one in enumerate(PHRASES) if one in text)
        return float(random.Random(context.assignment.seed).random() < worth)

    algorithm = PromptSearch(rollouts=SEARCHED, seed=5)
    return _spec(Prompt(system="You answer questions."), algorithm, agent, tasks=24, **fields)


# A network


def network_spec(base: str, hook: Hook = nothing, *, stage: Stage = Stage.LIVE) -> RunSpec:
    settings = PpoSettings(steps=16, minibatch=32, lr=2e-2, lr_end=1e-2)
    algorithm = EnvPPO(updates=8, step_updates=2, envs=8, settings=settings)
    proof = EnvProof(episodes=150, batch=75, reward_range=(0.0, 3.0))
    spec = improve_env(Signpost, Network(width=16), name=LINE, algorithm=algorithm, proof=proof, stage=stage)
    return replace(spec, timing=PACE)


SPECS: Mapping[str, Callable[..., RunSpec]] = {
    "prompt": prompt_spec,
    "search": search_spec,
    "model": model_spec,
    "network": network_spec,
}


# What became of a run


def made(store: Store, run: str) -> list[str]:
    """The hashes of its weights, in their order."""
    return [one.artifact.sha256 for one in store.checkpoints.of_run(run) if one.artifact is not None]


def came_of(store: Store, run: str) -> dict[str, Any]:
    """Weights, token ids, rewards, evidence and decision, as JSON; times and durations are no part of it."""
    decided = store.steps.get(run, "0/decide")
    assert decided is not None
    found = {
        "state": str(store.runs.get(run).state),
        "steps": [(one.step, one.name, one.function) for one in store.steps.of_run(run)],
        "weights": made(store, run),
        "rollouts": {one.name: _did(store, one.id) for one in store.views.rollouts(run, most=1000)},
        "evidence": decided.body["evidence"],  # its hash
        "decision": decided.body["decision"],
        "releases": [(one.id, str(one.stage), one.source) for one in store.releases.of_policy(LINE)],
        "moves": [one.body["move"] for one in store.releases.history(LINE) if "move" in one.body],
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def _did(store: Store, rollout: str) -> dict[str, Any]:
    one, tried = store.views.rollout(rollout), store.views.attempts(rollout)
    assert [str(attempt.status) for attempt in tried].count("succeeded") == 1
    calls = [span.model for span in store.traces.spans(tried[-1].token) if span.model is not None]
    return {
        "status": str(one.status),
        "reward": one.reward,
        "version": one.version,
        "output": store.views.output(tried[-1]),
        "tokens": [(call.prompt_ids, call.completion_ids, call.logprobs) for call in calls],
    }


def is_whole(store: Store, run: str, weights: Sequence[str], steps: int = STEPS) -> None:
    """Nothing is lost, nothing is there twice, and the weights are those of a run that nobody disturbed."""
    assert store.runs.get(run).state is RunState.COMPLETED
    assert [one.step for one in store.steps.of_run(run)] == list(range(1, steps + 1))
    assert made(store, run) == list(weights)
    rollouts = store.views.rollouts(run, most=1000)
    assert len(rollouts) == len({one.name for one in rollouts}) == 8 * LEARNT + 2 * HELD_OUT
    for one in rollouts:
        assert [str(tried.status) for tried in store.views.attempts(one.id)].count("succeeded") == 1
    store.ledger.verify()
    store.steps.verify(run)


# Killed


def die(*ignored: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _as_it_records(step: str | None, *, is_recorded: bool) -> None:
    """This process is killed as it records this step, or its first one, or as soon as it has."""
    add = Steps.add

    def killed(self: Steps, run: str, name: str, *given: Any, **how: Any) -> Any:
        recording = add(self, run, name, *given, **how) if is_recorded or step not in (None, name) else None
        if step not in (None, name):
            return recording
        if recording is not None:
            recording.result()
        return die()

    Steps.add = killed  # type: ignore[method-assign]


def _drive(kind: str, base: str, url: str, at: str, stage: Stage) -> None:
    """Begin the run, or take it up, and drive it to its end or to the place where it is killed."""
    if at in ("before", "after"):
        _as_it_records(None, is_recorded=at == "after")
    elif at.startswith("record "):
        _as_it_records(at.removeprefix("record "), is_recorded=False)
    with open_store(url) as store:
        known = store.runs.newest()
        if known and known[0].state is RunState.RUNNING:
            fall_silent(store, known[0].id)
        hook = partial(lambda wanted, place: die() if place == wanted else None, at)
        spec = SPECS[kind](base, hook, stage=stage)
        asyncio.run(ran(store, spec, resume=known[0].id if known else None))


def child(kind: str, base: str, url: str, at: str = "", stage: Stage = Stage.LIVE, *, after_s: float = 0.0) -> bool:
    """A process of its own that drives the run, killed at this place or after so long; whether it was."""
    forked = os.fork()  # nothing runs beside us yet, and what was imported need not be again
    if not forked:
        code = 1
        try:
            _drive(kind, base, url, at, stage)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if after_s:
        time.sleep(after_s)
        os.kill(forked, signal.SIGKILL)
    ended = os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])
    if ended not in (0, -signal.SIGKILL):
        raise RuntimeError(f"a driver of {url} ended with {ended}")
    return ended != 0


@dataclass
class Ended:
    """One run that was driven to its end, however often it was killed on the way."""

    kills: int
    seconds: float
    came: dict[str, Any] = field(default_factory=dict)


def through(
    kind: str, base: str, url: str, instants: Sequence[float] | None = None, *, is_short: bool = False
) -> Ended:
    """Killed at every boundary of a step, before it is recorded (unless `is_short`) and after, or after so many seconds
    each time."""
    began, kills = time.monotonic(), 0
    if instants is None:
        while (not is_short and child(kind, base, url, "before")) | child(kind, base, url, "after"):
            kills += 1 if is_short else 2
    else:
        kills = sum(child(kind, base, url, after_s=seconds) for seconds in instants)
        assert not child(kind, base, url)
    with open_store(url) as store:
        (run,) = store.runs.newest()
        store.ledger.verify()
        store.steps.verify(run.id)
        return Ended(kills, time.monotonic() - began, came_of(store, run.id))


NAMED = ("boundaries", "records")


def main(base: str, *cases: str) -> int:
    """What became of each case, one JSON object a line.

    `url|kind|place|stage` is killed at that place. `url|kind|` is not killed; `url|kind|boundaries` is, at each,
    `url|kind|records` after each record, and `url|kind|0.3,0.7` after these shares of the time that the unbroken run
    before it took."""
    took: dict[str, float] = {}
    for case in cases:
        url, kind, at, *rest = case.split("|")
        if rest:
            print(json.dumps({"killed": child(kind, base, url, at, Stage(rest[0]))}), flush=True)
            continue
        shares = [float(share) for share in at.split(",") if at not in ("", *NAMED)]
        instants = None if at in NAMED else [share * took[kind] for share in shares]
        ended = through(kind, base, url, instants, is_short=at == "records")
        took.setdefault(kind, ended.seconds)
        print(json.dumps({"kills": ended.kills, "seconds": ended.seconds, "came": ended.came}), flush=True)
    return 0


def told(base: str, *cases: str, timeout_s: float) -> list[dict[str, Any]]:
    """`main` in a process that has no threads yet."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "tests.pipeline.learning", base, *cases]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=root)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
