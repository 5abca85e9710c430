"""A run that really learns, proves and promotes, and that is the same every time: the model is tiny, what it is asked
to learn from is scripted, and a hook is told how far it is."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.store.updates import Updates
from holdfast.workloads.practice import practise

from holdfast.collect.agent import Context
from holdfast.collect.plan import Learnt, Lesson, Plan, Proposal, Standing
from holdfast.collect.seats import Home, Seat
from holdfast.contracts.evidence import Decision, Evidence
from holdfast.contracts.experience import Experience
from holdfast.contracts.release import Stage
from holdfast.contracts.reward import Signal
from holdfast.contracts.rollout import Split, Task
from holdfast.contracts.run import RunState, Status
from holdfast.contracts.trace import ModelCall
from holdfast.learn.grpo import OBJECTIVE
from holdfast.learn.train import Pace, Settings, Trainer
from holdfast.loop import Control, optimize
from holdfast.policies import tokens
from holdfast.store.store import Store, open_store
from holdfast.workloads.pupil import Pupil
from tests.collect.scene import PACE, PATIENCE_S
from tests.workloads.test_promotion import BETTER, POLICY, proposal

LESSONS = 2
Hook = Callable[[str], None]


def nothing(at: str) -> None:
    pass


class Script:
    """A model that says what it was told to; its calls carry the version of the pupil's weights."""

    def __init__(self, pupil: Pupil) -> None:
        self._pupil = pupil

    async def __call__(self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        said = str(messages[-1]["content"])
        completion = (*said.encode(), tokens.END)
        return ModelCall(
            model=self._pupil.version,
            messages=tuple(messages),
            response={"role": "assistant", "content": said},
            finish_reason="stop",
            prompt_ids=tuple(tokens.prompt(messages)),
            completion_ids=completion,
            logprobs=(-5.0,) * len(completion),
            sampling={"temperature": 1.0},
        )


def success(task: Any, output: Any, spans: Any) -> tuple[Signal, ...]:
    return (Signal(name="success", value=float(output), source="rule:test"),)


def trainer(model: Any) -> Trainer:
    """Several minibatches a step, shuffled: whoever loses its place among them ends elsewhere."""
    pace = Pace(learning_rate=1e-2, schedule="linear", total=LESSONS)
    return Trainer(model, Settings(objective=OBJECTIVE, pace=pace, minibatch=2, epochs=2), seed=5)


class Course:
    """Two lessons of practice, and one that measures what came of them and proposes it."""

    def __init__(self, store: Store, pupil: Pupil, hook: Hook, to: Stage) -> None:
        self._store, self._pupil, self._hook, self._to = store, pupil, hook, to

    def __call__(self, standing: Standing) -> Lesson | None:
        self._pupil.be_at(standing)
        number = len(standing.done)
        if number > LESSONS:
            return None
        return self._practice(standing, number) if number < LESSONS else self._proof(standing)

    def _practice(self, standing: Standing, number: int) -> Lesson:
        calls = 0

        def between() -> None:
            nonlocal calls
            calls += 1
            self._hook(f"learn {number} {calls}")
            standing.between()

        def learn(experiences: Sequence[Experience]) -> Learnt:
            calm = replace(standing, between=between)
            return practise(self._pupil, calm, "practice", experiences, trainer)

        tasks = [
            Task(
                name=f"p{number}-{team}-{place}",
                input={"prompt": f"{number} {team} {place}", "won": place % 2},
                split=Split.TRAIN,
                max_attempts=1,
                metadata={"group": f"p{number}-{team}"},
            )
            for team in range(2)
            for place in range(4)
        ]
        return Lesson(name=f"practice {number + 1}", tasks=tasks, learn=learn)

    def _proof(self, standing: Standing) -> Lesson:
        def learn(experiences: Sequence[Experience]) -> Learnt:
            made = str(standing.done[-1].body["checkpoint"])
            asked = replace(proposal(self._store, standing.run, BETTER, checkpoint=made), to=self._to, share=5)
            asked = asked if self._to is Stage.CANARY else replace(asked, share=None)
            return Learnt(body={"phase": "prove", "seen": len(experiences)}, proposal=self._hooked(asked))

        tasks = [
            Task(name=f"v{n}", input={"prompt": f"prove {n}", "won": 1}, split=Split.VAL, max_attempts=1)
            for n in range(3)
        ]
        return Lesson(name="proof", tasks=tasks, learn=learn)

    def _hooked(self, asked: Proposal) -> Proposal:
        def weigh(*given: str) -> Evidence:
            self._hook("weigh")
            return asked.weigh(*given)

        def publish(evidence: Evidence, decision: Decision) -> Mapping[str, Any]:
            self._hook("publish")
            return asked.publish(evidence, decision)

        return replace(asked, weigh=weigh, publish=publish)


def plan_of(store: Store, base: str, hook: Hook = nothing, *, to: Stage = Stage.LIVE, **fields: Any) -> Plan:
    pupil = Pupil(base, seed=0, slots=2)

    async def agent(task: Mapping[str, Any], context: Context) -> int:
        hook(f"run {task['prompt']}")
        await context.ask([{"role": "user", "content": task["prompt"]}])
        return int(task["won"])

    script = Script(pupil)
    home = Home(agent, success, lambda version: script, time.time)

    def close() -> None:
        home.close()
        pupil.close()

    given: dict[str, Any] = {
        "course": Course(store, pupil, hook, to),
        "resources": {},
        "model_ref": "local/tiny",
        "policy": POLICY,
        "settings": {},
        "seats": lambda: Seat(home.place()),
        "close": close,
        "workers": 2,
        "pace": PACE,
        "report_s": 0.05,
        "look_s": 0.01,
    }
    return Plan(**{**given, **fields})


async def run(store: Store, plan: Plan, control: Control | None = None, resume: str | None = None) -> Status:
    going = optimize(
        store,
        plan,
        control or Control(),
        clock=time.time,
        observe=lambda status: None,
        who="test",
        salt="ab",
        resume=resume,
    )
    return await asyncio.wait_for(going, PATIENCE_S)


def is_whole(store: Store, run: str, made: Sequence[str]) -> None:
    """Nothing is lost, nothing is there twice, and the weights are those of a run that nobody disturbed."""
    assert store.runs.get(run).state is RunState.COMPLETED
    assert [one.step for one in store.steps.of_run(run)] == [1, 2, 3]
    checkpoints = store.checkpoints.of_run(run)
    assert [one.artifact.sha256 for one in checkpoints if one.artifact is not None] == list(made)
    rollouts = store.views.rollouts(run, most=100)
    assert len(rollouts) == len({one.name for one in rollouts}) == 8 * LESSONS + 3
    for one in rollouts:
        assert [str(tried.status) for tried in store.views.attempts(one.id)].count("succeeded") == 1
    store.ledger.verify()
    store.steps.verify(run)


def drive_until_killed(url: str, base: str, at: str, to: str) -> None:
    """A driver that is killed as soon as it comes to a certain place."""

    def die(*ignored: Any, **ignored_too: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def hook(place: str) -> None:
        if place == at:
            die()

    add = Updates.add
    if at == "kept":  # the last lesson is decided upon, and not on record
        Updates.add = lambda self, run, step, *a, **how: (  # type: ignore[method-assign]
            die() if step == LESSONS + 1 else add(self, run, step, *a, **how)
        )
    with open_store(url) as store:
        asyncio.run(run(store, plan_of(store, base, hook, to=Stage(to))))


def main(base: str, *cases: str) -> int:
    """One driver after another, each killed in a process of its own: `url|place|stage`. 0 when all of them were."""
    for case in cases:
        url, at, to = case.split("|")
        child = os.fork()  # nothing runs beside us yet, and what was imported need not be again
        if not child:
            drive_until_killed(url, base, at, to)
            os._exit(1)
        if os.waitpid(child, 0)[1] != signal.SIGKILL:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
