"""From an environment's script to a network that beats it: cloning, DAgger, anneal, then PPO held to the clone.

Each is one or more steps of the loop, and each step is a function of what the last one kept: a checkpoint with its
demonstrations, or the learner's whole state. An anneal that hurts goes back to the script by itself, and then there is
no candidate. Where a network is live already, only PPO is left to do, held to that one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.contracts.algorithm import SWITCHED_OFF, AlgorithmState, Batch, LearnContext, Segment
from holdfast.contracts.envs import VectorEnv
from holdfast.contracts.errors import BadInput
from holdfast.contracts.policy import DEMONSTRATIONS, Policy, files_of
from holdfast.contracts.records import encode
from holdfast.learn.anneal import AnnealPlan, AnnealState, advance, has_passed
from holdfast.learn.checkpoints import save
from holdfast.learn.control import SEEDS, EnvPPO
from holdfast.learn.imitate import (
    KIND as CAPTURED,
)
from holdfast.learn.imitate import (
    Samples,
    agreement,
    audit,
    check_samples,
    coverage,
    demonstrate,
    fit,
    script_of,
)
from holdfast.learn.ppo import Adam, Settings
from holdfast.policies import weights
from holdfast.policies.model import lost_if_damaged
from holdfast.policies.nets import ActorCritic, VectorActor, one_thread
from holdfast.policies.network import KIND, Network, Scripted
from holdfast.policies.weights import Manifest

DATA = DEMONSTRATIONS  # the folder of what was captured, within a checkpoint's
CLONE, DAGGER, ANNEAL, PRACTICE = "clone", "dagger", "anneal", "practice"
UNSEEN, WATCHED = SEEDS + 2**20, SEEDS + 2**21  # first seeds of what clones are judged in, and of the anneal
LATER_RATE = 0.5  # of the learning rate, in the rounds after the first

PRACTISED = EnvPPO(
    updates=60,
    step_updates=5,
    envs=8,
    settings=Settings(steps=256, epochs=3, minibatch=4096, gamma=0.999, lam=0.98, lr=2e-4, lr_end=5e-5),
    anchor_cost=0.05,
    warmup=12,
)


PASSED_OVER = AnnealPlan()


class SchoolSession:
    """The demonstrations in memory, from one step to the next: only a restart reads them from disk."""

    def __init__(self) -> None:
        self.samples: list[Samples] = []
        self.at: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class School:
    """What a network is taught, and for how long."""

    width: int = 64
    memory: bool = False  # whether the network remembers the episode so far (a GRU)
    rounds: int = 6  # of DAgger, after the first cloning
    epochs: int = 4  # passes over all demonstrations in each round
    minibatch: int = 1024
    lr: float = 2e-3
    lr_end: float = 1e-4
    label_rate: float = 0.15  # share of the steps at which the script is asked
    day: int = 1440  # steps of a round, and of a window of the anneal
    anneal: AnnealPlan = PASSED_OVER
    anneal_envs: int = 2
    practice: EnvPPO = PRACTISED
    seed: int = 0
    make: Callable[[int], VectorEnv] | None = None
    session: SchoolSession = field(default_factory=SchoolSession, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("width", "epochs", "minibatch", "day", "anneal_envs"):
            if getattr(self, name) < 1:
                raise BadInput(f"school.{name} = {getattr(self, name)}", why="must be at least 1")
        if self.rounds < 0 or not 0.0 < self.label_rate <= 1.0 or not 0.0 <= self.lr_end <= self.lr:
            why = "rounds must not be negative, label_rate above 0 and at most 1, lr_end from 0 to lr"
            raise BadInput(
                f"school.rounds = {self.rounds}, label_rate = {self.label_rate}, lr_end = {self.lr_end}", why=why
            )

    def within(self, env: str, make: Callable[[int], VectorEnv], held_out: Sequence[int]) -> School:
        """The same in a given environment."""
        practice = replace(self.practice.within(env, make, held_out), seed=self.seed)
        return replace(self, practice=practice, make=make, session=SchoolSession())

    def record(self) -> dict[str, Any]:
        """All that a user chooses, as plain JSON."""
        names = ("width", "rounds", "epochs", "minibatch", "lr", "lr_end", "label_rate", "day", "anneal_envs", "seed")
        kept = {name: getattr(self, name) for name in names} | ({"memory": True} if self.memory else {})
        return {"school": kept, "anneal": asdict(self.anneal), "practice": self.practice.record()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> School:
        plan = AnnealPlan(**{**record["anneal"], "shares": tuple(record["anneal"]["shares"])})
        return cls(**record["school"], anneal=plan, practice=EnvPPO.from_record(record["practice"]))

    # The loop's side -------------------------------------------------------------------------------------------------

    def phases(self, base: Policy) -> tuple[str, ...]:
        lessons = (CLONE, *[DAGGER] * self.rounds, ANNEAL) if isinstance(base, Scripted) else ()
        return (*lessons, *[PRACTICE] * -(-self.practice.updates // self.practice.step_updates))

    def title(self, state: AlgorithmState) -> str:
        """What the next step is, for people."""
        phases = self.phases(state.base)
        phase = phases[state.step]
        number = f"{phases[: state.step + 1].count(phase)} of {phases.count(phase)}"
        return {DAGGER: f"DAgger round {number}", PRACTICE: f"PPO {number}"}.get(phase, phase)

    def start(self, base: Policy) -> AlgorithmState:
        if self.make is None:
            why, remedy = "has no environment to learn in", "give env="
            raise BadInput("the school", why=why, remedy=remedy)
        if not isinstance(base, Scripted | Network):
            raise BadInput(f"policy {base.version}", why="acts in no environment", remedy="give hf.Network()")
        return AlgorithmState(base=base)

    def ask(self, state: AlgorithmState, tasks: Sequence[Any]) -> Sequence[Segment]:
        phases = self.phases(state.base)
        if state.step >= len(phases) or state.data.get("gone_back"):
            return ()
        if phases[state.step] == PRACTICE:
            return self.practice.ask(self._practised(state), tasks)
        envs = self.anneal_envs if phases[state.step] == ANNEAL else self.practice.envs
        env, version = self.practice.env, state.policy.version
        return [Segment(env=env, steps=envs * self.day, seed=self._env_seed(state), policy=version)]

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        phase = self.phases(state.base)[state.step]
        if phase == PRACTICE:
            return self._practise(state, batch, ctx)
        began = time.perf_counter()
        metrics: dict[str, Any] = {"phase": f"{phase} {state.step + 1}", "iteration": state.iteration, "rollouts": 0}
        if not ctx.features.learning:
            return state.next(metrics={**metrics, "skipped": SWITCHED_OFF})
        with one_thread():
            made, data = (self._anneal if phase == ANNEAL else self._imitate)(state, ctx, metrics)
        metrics["learning_s"] = round(time.perf_counter() - began - ctx.held_s, 3)
        if phase == ANNEAL and data.get("gone_back"):
            return replace(state.next(metrics=metrics, **data), candidate=None)
        return state.next(candidate=made, metrics=metrics, **data)

    def _env_seed(self, state: AlgorithmState) -> int:
        drawn = np.random.SeedSequence([self.seed, state.iteration, 2, state.step]).generate_state(1)[0]
        return int(drawn) % SEEDS

    # Imitation -------------------------------------------------------------------------------------------------------

    def _imitate(
        self, state: AlgorithmState, ctx: LearnContext, told: dict[str, Any]
    ) -> tuple[Network | None, dict[str, Any]]:
        """One round: where the network goes, what the script would do there, and learning from all rounds so far."""
        assert self.make is not None
        rng = np.random.default_rng([self.seed, state.iteration, state.step])
        envs, rounds = self.make(self.practice.envs), list(state.data.get("rounds", ()))
        samples = self._samples(rounds, ctx)
        policy = state.candidate
        if policy is None:
            net = self._first(envs).load(None)
        else:
            assert isinstance(policy, Network)
            net = policy.load(ctx.files)
        first = self._env_seed(state)
        how: dict[str, Any] = {
            "steps": self.day,
            "label_rate": self.label_rate,
            "seed": first,
            "rng": rng,
            "check": ctx.check,
            "memory": self.memory,
        }
        new = demonstrate(envs, net if rounds else None, share=1.0, **how)
        check_samples(new)
        samples = [*samples, new]
        rate = self.lr * (LATER_RATE if rounds else 1.0)
        adam = Adam([*([] if net.gru is None else net.gru.parameters()), *net.actor.parameters()])
        sizes = {"epochs": self.epochs, "minibatch": self.minibatch}
        loss = fit(net, adam, samples, **sizes, lr=(rate, self.lr_end), rng=rng, check=ctx.check)
        names = _names(envs)
        covered = coverage(new, names, _labels(envs, new))
        made = self._save(state, self._first(envs), net, new, covered, ctx)
        self.session.samples, self.session.at = samples, (*rounds, made.checkpoint)
        told |= {"loss": round(loss, 4), "samples": sum(map(len, samples)), "coverage": covered, "env_seed": first}
        told |= {
            "agreement": self._judged(net, samples[0], names, ctx),
            "quality": [encode(finding) for finding in (self.practice.leaked(first), *audit(new, covered))],
        }
        told["checkpoint"] = made.checkpoint
        return made, {"rounds": [*rounds, made.checkpoint]}

    def _first(self, envs: VectorEnv) -> Network:
        policy = Network(width=self.width, memory=self.memory, seed=self.seed, sampled=True)
        return policy.fitted(self.practice.env, envs.spaces)

    def _samples(self, rounds: Sequence[str], ctx: LearnContext) -> list[Samples]:
        if self.session.at == (*rounds,):
            return list(self.session.samples)
        samples = []
        for checkpoint in rounds:
            with lost_if_damaged(checkpoint):
                samples.append(Samples.load(files_of(checkpoint, ctx.files) / DATA))
        return samples

    def _judged(self, net: ActorCritic, shown: Samples, names: Sequence[str], ctx: LearnContext) -> dict[str, Any]:
        """Agreement on the script's own days in environments that nobody learns in."""
        assert self.make is not None
        rng = np.random.default_rng(UNSEEN)
        envs = self.make(max(1, self.practice.envs // 4))
        how: dict[str, Any] = {"share": 0.0, "label_rate": 1.0, "check": ctx.check, "memory": self.memory}
        unseen = demonstrate(envs, None, steps=self.day, seed=UNSEEN, rng=rng, **how)
        return agreement(net, unseen, names, np.bincount(shown.rows().actions, minlength=len(names))).plain()

    def _save(
        self,
        state: AlgorithmState,
        policy: Network,
        net: ActorCritic,
        new: Samples,
        covered: Mapping[str, Any],
        ctx: LearnContext,
    ) -> Network:
        """The network, and beside it what was new in this round."""

        def write(folder: Path, step: int, now: float) -> str:
            seeds = {"school": self.seed}
            kept = Manifest(kind=KIND, shape=asdict(net.body), step=step, seeds=seeds, created_at=now)
            saved = weights.save(folder, net.state_dict(), replace(kept, notes={"env": self.practice.env}))
            seeds = {"school": self.seed, "env": self._env_seed(state)}
            data = Manifest(kind=CAPTURED, shape={}, step=step, seeds=seeds, created_at=now)
            new.save(folder / DATA, replace(data, notes={"env": self.practice.env, "coverage": dict(covered)}))
            return saved.sha256

        parent = None if state.candidate is None else getattr(state.candidate, "checkpoint", None)
        identity, _ = save(ctx, write, parent=parent, algorithm=self.phases(state.base)[state.step])
        return policy.at(identity)

    # Mixed control ---------------------------------------------------------------------------------------------------

    def _anneal(
        self, state: AlgorithmState, ctx: LearnContext, told: dict[str, Any]
    ) -> tuple[Network | None, dict[str, Any]]:
        policy = state.candidate
        assert isinstance(policy, Network) and self.make is not None
        net, rng = policy.load(ctx.files), np.random.default_rng([self.seed, state.iteration, state.step])
        script = mixed_control(self.make(self.anneal_envs), None, 0.0, self.day, WATCHED, rng, ctx.check)
        found = AnnealState()
        while not found.is_over:
            seed = WATCHED + self.anneal_envs * (1 + len(found.windows))
            envs, share = self.make(self.anneal_envs), found.share(self.anneal)
            found = advance(found, mixed_control(envs, net, share, self.day, seed, rng, ctx.check), script, self.anneal)
        told["anneal"] = found.plain(self.anneal) | {"script": script}
        if has_passed(found):
            return policy, {}
        last = found.windows[-1]
        why = f"{last.worst} lost {last.loss:.0%} at a share of {last.share:g}"
        told["update"] = {"skipped_reason": f"the anneal went back to a share of {found.share(self.anneal):g}: {why}"}
        return None, {"gone_back": True}

    # Practice --------------------------------------------------------------------------------------------------------

    def _practised(self, state: AlgorithmState) -> AlgorithmState:
        """As PPO sees it: what it is held to is the base, and its own steps are counted from 0."""
        phases = self.phases(state.base)
        step, anchor = state.step - phases.index(PRACTICE), state.data.get("anchor")
        policy = state.policy
        assert isinstance(policy, Network)
        base = policy if anchor is None else policy.at(anchor)
        return replace(state, base=base, candidate=None if anchor is None else policy, step=step)

    def _practise(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        inner = self._practised(state)
        after = self.practice.tell(inner, batch, ctx)
        assert isinstance(inner.base, Network)
        data = {**after.data, "anchor": inner.base.checkpoint}
        candidate = after.candidate or state.candidate
        return replace(after, base=state.base, candidate=candidate, step=state.step + 1, data=data)


def mixed_control(
    envs: VectorEnv,
    net: ActorCritic | None,
    share: float,
    steps: int,
    seed: int,
    rng: np.random.Generator,
    check: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Figures of a window in which `share` of the seats are the network's, of those seats alone (without a network, of
    all): the return of a seat, and the share of seats that nobody had to leave. Higher is better."""
    view, total = envs.reset(seed), np.zeros(envs.count)
    is_own = np.ones(envs.count, np.bool_) if net is None else rng.permutation(envs.count) < share * envs.count
    first, stayed = np.ones(envs.count, np.bool_), np.ones(envs.count, np.bool_)
    playing = None if net is None else VectorActor(net, envs.count, rng)
    for step in range(steps):
        if step % 64 == 0:
            check()
        scripted = script_of(view)
        actions = scripted if playing is None else np.where(is_own, playing(view, first), scripted)
        result = envs.step(actions)
        view, first = result.observation, result.terminated | result.truncated
        total += result.reward
        stayed &= ~result.terminated
    return {"return": float(total[is_own].mean()), "stayed": float(stayed[is_own].mean())}


def _names(envs: VectorEnv) -> Sequence[str]:
    """The actions by name; by number where the environment names none."""
    found: Sequence[str] = getattr(envs, "action_names", [str(one) for one in range(envs.spaces.actions)])
    return found


def _labels(envs: VectorEnv, samples: Samples) -> Mapping[str, Any]:
    """What each sample tells of, by the environment's own words, where it has some."""
    describe = getattr(envs, "labels", None)
    found: Mapping[str, Any] = {} if describe is None else describe(samples.rows().observations)
    return found
