"""Trains one policy for all residents of a town by PPO, and measures it in towns that it never saw.

Each seat of each world is an environment of its own, and all seats share one network. `learn.ppo` does the learning;
here are the environments, the comparisons and what is saved. The caller gives the clock. All policies are compared in
the same held-out towns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.envs import Bools, Observation, Spaces, State, StepResult
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Interval
from holdfast.learn.ppo import PPO, Player, Settings, Update
from holdfast.policies import weights
from holdfast.policies.nets import ActorCritic, Body
from holdfast.prove.estimate import difference, interval
from holdfast.workloads.townlife import Env, Rules, Seen
from holdfast.workloads.townlife import TownState as Town

HELD_OUT = 1 << 40  # seeds from here on are of towns that nobody learns in
CHUNK = 64  # ticks that are played at a time where only the sum is of interest
Numbers = NDArray[np.float64]
Act = Callable[[Env, Observation], NDArray[np.int64]]


class TownVectorEnv:
    """The seats of some towns as environments that begin anew by themselves; `contracts.envs` defines the protocol.

    A seat's episode ends when its resident has to leave. While nobody sits there, there is only waiting, worth nothing,
    in an episode of its own. When the days are over, all are truncated, and the next towns begin. With a `fixed` seed
    they are always the same towns."""

    def __init__(self, rules: Rules, *, worlds: int, days: int = 1, fixed: int | None = None) -> None:
        self.env = Env(rules, worlds=worlds, days=days)
        self.count = worlds * self.env.residents
        self.spaces = Spaces(observation=len(self.env.senses.features), actions=len(self.env.actions))
        self._fixed, self._seed, self._episode = fixed, 0, 0
        self._here: Bools = np.ones(self.count, np.bool_)

    def reset(self, seed: int) -> Observation:
        self._seed, self._episode = seed if self._fixed is None else self._fixed, 0
        return self._begin()

    def step(self, actions: NDArray[Any]) -> StepResult:
        seen = self.env.step(actions.reshape(self.env.worlds, self.env.residents))
        here = seen.alive.ravel()
        terminated = seen.terminated.ravel() | (here & ~self._here)
        truncated = seen.truncated.ravel() & ~terminated
        reward, view = seen.reward.ravel().astype(np.float64), self._view(seen)
        final, self._here = view.values, here
        if truncated.any() or seen.truncated.any():
            final = final.copy()  # the next towns are written to the same place
            self._episode += 1
            view = self._begin()
        return StepResult(view, reward, terminated, truncated, final)

    def state(self) -> State:
        kept = {name: np.frombuffer(array.tobytes(), np.uint8).copy() for name, array in self._arrays().items()}
        return kept | {"here": self._here.copy(), "begun": np.array([self._seed, self._episode], np.int64)}

    def restore(self, state: State) -> Observation:
        arrays = {
            name: np.frombuffer(state[name].tobytes(), array.dtype).reshape(array.shape)
            for name, array in self._arrays().items()
        }
        self._seed, self._episode = (int(one) for one in state["begun"])
        self._here = state["here"].copy()
        return self._view(self.env.restore(Town(**arrays)))

    def _arrays(self) -> Mapping[str, NDArray[Any]]:
        return self.env.state.arrays

    def _begin(self) -> Observation:
        seen = self.env.reset(self._seed, first_world=self._episode * self.env.worlds)
        self._here = seen.alive.ravel()
        return self._view(seen)

    def _view(self, seen: Seen) -> Observation:
        return Observation(seen.features.reshape(self.count, -1), seen.mask.reshape(self.count, -1).view(np.bool_))


# Living in towns that were not learnt in ------------------------------------------------------------------------------


def by_chance(rng: np.random.Generator) -> Act:
    """A uniformly random possible action."""

    def act(_: Env, view: Observation) -> NDArray[np.int64]:
        assert view.mask is not None
        upto = view.mask.cumsum(axis=1)
        pick = (rng.random(len(upto)) * upto[:, -1]).astype(np.int64)
        return np.asarray((upto > pick[:, None]).argmax(axis=1), np.int64)

    return act


def as_planned(env: Env, _: Observation) -> NDArray[np.int64]:
    return env.scripted().ravel()


def returns(towns: TownVectorEnv, act: Act, ticks: int) -> Numbers:
    """The return of each seat after so many ticks: [worlds, residents]."""
    view, total = towns.reset(0), np.zeros(towns.count)
    for _ in range(ticks):
        result = towns.step(act(towns.env, view))
        view = result.observation
        total += result.reward
    return total.reshape(towns.env.worlds, -1)


def returns_of(towns: TownVectorEnv, net: ActorCritic, ticks: int, *, seed: int) -> Numbers:
    """The same for a network that samples its actions."""
    player, total = Player(towns, net, seed=seed), np.zeros(towns.count)
    for done in range(0, ticks, CHUNK):
        total += player.play(min(CHUNK, ticks - done)).rewards.sum(axis=0, dtype=np.float64)
    return total.reshape(towns.env.worlds, -1)


# Few towns and many ticks at a time: of many towns and few ticks, a batch would hold one hour of the day alone.
LESSONS = Settings(steps=256, epochs=3, minibatch=4096, entropy_cost=0.005, lr=2e-3, lr_end=5e-4, updates=150)

# The lesson ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """How much is learnt, and on what it is evaluated."""

    worlds: int = 2  # learnt in at a time
    days: int = 1  # of an episode
    width: int = 64
    ppo: Settings = LESSONS
    exams: int = 8  # looks on the way
    exam_worlds: int = 2  # held-out towns of a look
    final_worlds: int = 8  # held-out towns of the end: others than those of the looks

    def __post_init__(self) -> None:
        for name in ("worlds", "days", "width", "exams", "exam_worlds"):
            if getattr(self, name) < 1:
                raise BadInput(f"course.{name} = {getattr(self, name)}", why="must be at least 1")
        if self.final_worlds < 2:
            raise BadInput(f"course.final_worlds = {self.final_worlds}", why="must be at least 2 for an interval")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPoint:
    """One evaluation during training."""

    update: int
    step: int  # agent-steps learnt from so far
    seconds: float  # spent on learning
    mean_return: float  # a resident and day, in held-out towns
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TownScore:
    """The mean return of a resident and day, in held-out towns."""

    value: float
    interval: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRound:
    """The result of a training."""

    seed: int
    rules: str  # hash
    senses: str  # what the policy sees: it is refused by name under another contract
    updates: int
    steps: int  # agent-steps learnt from
    seconds: float  # of learning, looks not counted
    moved: float  # root mean square by which a parameter is another than in the beginning
    curve: tuple[EvalPoint, ...]
    scores: Mapping[str, TownScore]  # learnt, random, scripted, untaught
    over_random: Interval  # by how much the learnt policy is paid more, the same towns compared
    is_whole: bool  # False: it was ended on the way

    @property
    def is_better(self) -> bool:
        return self.over_random.low > 0.0

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"is_better": self.is_better}


class TownTrainer:
    """Trains one policy: `teach` makes one update, `evaluate` measures, `finish` compares."""

    def __init__(self, rules: Rules, course: TrainingPlan, *, seed: int) -> None:
        self.rules, self.course, self.seed = rules, course, seed
        towns = TownVectorEnv(rules, worlds=course.worlds, days=course.days)
        body = Body(observation=towns.spaces.observation, actions=towns.spaces.actions, width=course.width)
        self.net = ActorCritic(body, seed=seed)
        self._first = _vector(self.net)
        self._ppo = PPO(towns, self.net, course.ppo, seed=seed)
        self._senses = towns.env.senses.id
        self._ticks = course.days * int(rules["ticks_per_day"])
        self._exam = TownVectorEnv(rules, worlds=course.exam_worlds, days=course.days + 1, fixed=HELD_OUT)
        self.updates, self.steps, self.seconds = 0, 0, 0.0
        self.curve: list[EvalPoint] = []

    def teach(self, clock: Callable[[], float]) -> Update:
        began = clock()
        update = self._ppo.step()
        self.updates, self.steps = update.number, update.step
        self.seconds += clock() - began
        return update

    def evaluate(self) -> EvalPoint:
        paid = returns_of(self._exam, self.net, self._ticks, seed=self.seed)
        found = _score(paid.reshape(-1, 1), self.seed)  # of residents: there are few towns
        point = EvalPoint(
            update=self.updates,
            step=self.steps,
            seconds=round(self.seconds, 2),
            mean_return=found.value,
            low=found.interval.low,
            high=found.interval.high,
        )
        self.curve.append(point)
        return point

    def finish(self, *, is_whole: bool = True, each: Callable[[str], None] = lambda name: None) -> TrainingRound:
        """Compares with a random, a scripted and an untrained policy in further towns; `each` gets the name of each."""
        days, worlds = self.course.days + 1, self.course.final_worlds
        final = TownVectorEnv(self.rules, worlds=worlds, days=days, fixed=HELD_OUT + 1)
        untaught = ActorCritic(self.net.body, seed=self.seed)
        exams: dict[str, Callable[[], Numbers]] = {
            "learnt": lambda: returns_of(final, self.net, self._ticks, seed=self.seed),
            "random": lambda: returns(final, by_chance(np.random.default_rng(self.seed)), self._ticks),
            "scripted": lambda: returns(final, as_planned, self._ticks),
            "untaught": lambda: returns_of(final, untaught, self._ticks, seed=self.seed),
        }
        paid = {}
        for name, exam in exams.items():
            paid[name] = exam()
            each(name)
        return TrainingRound(
            seed=self.seed,
            rules=self.rules.sha256,
            senses=self._senses,
            updates=self.updates,
            steps=self.steps,
            seconds=round(self.seconds, 2),
            moved=float(np.sqrt(np.square(_vector(self.net) - self._first).mean())),
            curve=tuple(self.curve),
            scores={name: _score(one, self.seed) for name, one in paid.items()},
            over_random=difference(paid["random"], paid["learnt"], rng=np.random.default_rng(self.seed)),
            is_whole=is_whole,
        )

    def save(self, folder: Path, *, now: float) -> weights.Manifest:
        """Saves the policy, whole or not at all."""
        manifest = weights.Manifest(
            kind="actor-critic",
            shape=asdict(self.net.body),
            step=self.updates,
            data=self.rules.sha256,
            seeds={"school": self.seed},
            created_at=now,
            notes={"senses": self._senses, "steps": self.steps},
        )
        return weights.save(folder, self.net.state_dict(), manifest)


def learn(
    school: TownTrainer, *, seconds: float, clock: Callable[[], float], most: int | None = None
) -> Iterator[Update | EvalPoint]:
    """Updates for so long or so many times, with evaluations at even distances; yields each as it happens."""
    course, began = school.course, school.seconds
    yield school.evaluate()
    looked = 1
    while True:
        update = school.teach(clock)
        yield update
        done = (school.seconds - began) / seconds
        if most is not None:
            done = max(done, update.number / most)
        if done >= looked / course.exams:
            yield school.evaluate()
            looked = int(done * course.exams) + 1
        if done >= 1.0:
            return


def load(folder: Path, env: Env) -> ActorCritic:
    """Loads a saved policy for a town with the same observations and actions."""
    tensors, manifest = weights.load(folder)
    if manifest.kind != "actor-critic" or "senses" not in manifest.notes:
        raise BadInput(str(folder), why="is no policy for a town", remedy="name a folder of `holdfast town learn`")
    if manifest.notes["senses"] != env.senses.id or manifest.shape["actions"] != len(env.actions):
        why = f"was made for senses {manifest.notes['senses']}, and this town gives {env.senses.id}"
        raise BadInput(str(folder), why=why, remedy="give the rules that it learnt with")
    net = ActorCritic(Body(**manifest.shape), seed=0)
    weights.fit(net, tensors, what=str(folder))
    return net


def _score(paid: Numbers, seed: int) -> TownScore:
    return TownScore(value=float(paid.mean()), interval=interval(paid, rng=np.random.default_rng(seed)))


def _vector(net: ActorCritic) -> Numbers:
    parts: Sequence[Any] = [parameter.detach().cpu().numpy().ravel() for parameter in net.parameters()]
    return np.concatenate(parts).astype(np.float64)
