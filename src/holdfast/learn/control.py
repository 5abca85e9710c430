"""PPO as an algorithm: a network plays in environments, learns from what it played, and plays on.

What it plays is learnt from at once and kept nowhere. A step of the loop is several updates, after which all it takes
to go on bit by bit (network, optimiser, environments, chance) lies beside the checkpoint. The mathematics are `ppo`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.contracts.algorithm import SWITCHED_OFF, AlgorithmState, Batch, LearnContext, Segment
from holdfast.contracts.envs import VectorEnv
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Finding
from holdfast.contracts.policy import Policy, files_of
from holdfast.contracts.records import encode
from holdfast.learn.checkpoints import TRAINER, save
from holdfast.learn.constrain import Constraint
from holdfast.learn.ppo import PPO, KLAnchor, Settings, Update
from holdfast.policies import weights
from holdfast.policies.model import lost_if_damaged
from holdfast.policies.nets import one_thread
from holdfast.policies.network import DISCOUNT, KIND, VALUE_SCALE, Network
from holdfast.policies.weights import Manifest

PHASE = "play"
SEEDS = (
    2**30
)  # environments that are learnt in have seeds from 0 to this and their number; others are free to be held out
MOST_ENVS = 2**16
CHOSEN = ("lr", "gamma", "entropy_cost", "updates", "step_updates", "envs", "budget_s", "seed")
LATER_CHOSEN = {"anchor_cost": 0.0, "warmup": 0}  # recorded where they are not this: older runs have none


class LearnerSession:
    """The learner in memory, kept from one step to the next: only a restart reads it from disk."""

    def __init__(self) -> None:
        self.ppo: PPO | None = None
        self.at: tuple[Any, ...] = ()  # the policy and the phase that it has come to

    def forget(self) -> None:
        """Drops the state in memory after a step that did not finish: it is not what is recorded."""
        self.ppo, self.at = None, ()


@dataclass(frozen=True, kw_only=True)
class EnvPPO:
    """Proximal policy optimisation of a network in environments."""

    lr: float = 3e-3
    gamma: float = 0.99
    entropy_cost: float = 0.0
    updates: int = 60  # in each iteration
    step_updates: int = 15  # between two checkpoints: about two seconds' work, so that being durable costs little
    envs: int = 64  # side by side
    settings: Settings | None = None  # all of PPO's own, in place of the first three; `updates` stays ours
    budget_s: float | None = None  # of learning, in each iteration; None: as much as it takes
    anchor_cost: float = 0.0  # of KL(base‖π): holds it to what it began with; 0: it is free
    warmup: int = 0  # updates of an iteration in which only the critic learns
    constraint: Constraint | None = None  # the most that an episode may cost on average, by `info["cost"]` of its steps
    seed: int = 0
    env: str = ""  # what it is called
    make: Callable[[int], VectorEnv] | None = None  # so many environments; given with `env`, by who knows it
    held_out: Sequence[int] = ()  # seeds of environments that must not be learnt in
    session: LearnerSession = field(default_factory=LearnerSession, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, most in (("updates", 10**9), ("step_updates", 10**9), ("envs", MOST_ENVS)):
            if not 1 <= getattr(self, name) <= most:
                raise BadInput(f"ppo.{name} = {getattr(self, name)}", why=f"must be from 1 to {most}")
        if not (0.0 <= self.anchor_cost < float("inf") and 0 <= self.warmup < self.updates):
            why = f"the cost must be finite and not negative, the warm-up shorter than {self.updates} updates"
            raise BadInput(f"ppo.anchor_cost = {self.anchor_cost}, ppo.warmup = {self.warmup}", why=why)
        _ = self.dials  # what PPO refuses is refused here

    @property
    def dials(self) -> Settings:
        given = self.settings or Settings(
            lr=self.lr, lr_end=self.lr / 3, gamma=self.gamma, entropy_cost=self.entropy_cost
        )
        return replace(given, updates=self.updates)

    def within(self, env: str, make: Callable[[int], VectorEnv], held_out: Sequence[int]) -> EnvPPO:
        """The same settings in a given environment."""
        return replace(self, env=env, make=make, held_out=held_out, session=LearnerSession())

    def record(self) -> dict[str, Any]:
        """All that a user chooses, as plain JSON."""
        kept = {name: getattr(self, name) for name in CHOSEN}
        kept |= {name: getattr(self, name) for name, usual in LATER_CHOSEN.items() if getattr(self, name) != usual}
        kept |= {} if self.constraint is None else {"constraint": asdict(self.constraint)}
        return {**kept, "settings": None if self.settings is None else asdict(self.settings)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> EnvPPO:
        kept = record["settings"]
        dials = None if kept is None else Settings(**{**kept, "normalise": tuple(kept["normalise"])})
        bound = {"constraint": Constraint(**record["constraint"])} if "constraint" in record else {}
        return cls(**{**record, **bound, "settings": dials})

    def start(self, base: Policy) -> AlgorithmState:
        if not isinstance(base, Network):
            why = "is no network, and acts in no environment"
            raise BadInput(f"policy {base.version}", why=why, remedy="give hf.Network()")
        if self.make is None:
            raise BadInput("ppo", why="has no environment to learn in", remedy="name one, as in env='CartPole-v1'")
        return AlgorithmState(base=base)

    def ask(self, state: AlgorithmState, tasks: Sequence[Any]) -> Sequence[Segment]:
        count = min(self.step_updates, self.updates - state.step * self.step_updates)
        if count < 1 or self._is_spent(state):
            return ()
        steps = count * self.dials.steps * self.envs
        seed = self._env_seed(state)
        return [Segment(env=self.env, steps=steps, seed=seed, policy=state.policy.version)]

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        try:
            with one_thread():
                return self._learn(state, batch, ctx)
        except BaseException:
            self.session.forget()
            raise

    def _is_spent(self, state: AlgorithmState) -> bool:
        return self.budget_s is not None and float(state.data.get("learning_s", 0.0)) >= self.budget_s

    def _env_seed(self, state: AlgorithmState) -> int:
        """The seed of the first environment: below SEEDS, and different in each iteration."""
        return int(np.random.SeedSequence([self.seed, state.iteration, 1]).generate_state(1)[0]) % SEEDS

    def _learn(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        began, phase = time.perf_counter(), f"{PHASE} {state.iteration + 1}"
        assert batch.segment is not None
        metrics: dict[str, Any] = {"phase": phase, "iteration": state.iteration, "env": self.env, "rollouts": 0}
        if not ctx.features.learning:
            return state.next(metrics={**metrics, "skipped": SWITCHED_OFF})
        ppo = self._ppo(state, phase, ctx)
        updates = []
        for _ in range(batch.segment.steps // (self.dials.steps * self.envs)):
            ctx.check()
            updates.append(ppo.step())
        last = updates[-1]
        saved, trainer = self._save(state, ppo, last, ctx)
        is_moved = state.candidate is not None or any(update.restored is None for update in updates)
        self.session.at = (saved, phase)
        if is_moved:
            metrics["checkpoint"] = saved.checkpoint
        spent = round(time.perf_counter() - began - ctx.held_s, 3)  # a pause is nobody's learning
        metrics |= {
            "reward": last.mean_return,
            "env_seed": batch.segment.seed,
            "env_steps": last.step,
            "episodes_played": last.episodes,
            "update": _plain(updates),
            "quality": [encode(finding) for finding in self._audit(batch.segment, updates)],
            "learning_s": spent,
        }
        learning_s = round(float(state.data.get("learning_s", 0.0)) + spent, 3)
        candidate, undone = (saved, None) if is_moved else (None, saved.checkpoint)
        return state.next(candidate=candidate, metrics=metrics, trainer=trainer, learning_s=learning_s, undone=undone)

    def _ppo(self, state: AlgorithmState, phase: str, ctx: LearnContext) -> PPO:
        """The learner in memory, or after a restart the saved one. An iteration begins with a new one."""
        policy = self._reached(state)
        assert self.make is not None
        if self.session.ppo is not None and self.session.at == (policy, phase):
            return self.session.ppo
        seed = int(np.random.SeedSequence([self.seed, state.iteration]).generate_state(1)[0])
        net, envs = policy.load(ctx.files), self.make(self.envs)
        anchor = None
        if self.anchor_cost:
            assert isinstance(state.base, Network)
            anchor = KLAnchor(state.base.load(ctx.files), self.anchor_cost)
        first = self._env_seed(state)
        how: dict[str, Any] = {"anchor": anchor, "warmup": self.warmup, "constraint": self.constraint}
        ppo = PPO(envs, net, self.dials, seed=seed, env_seed=first, **how)
        if state.step > 0 and policy != state.base:
            saved = files_of(str(policy.checkpoint), ctx.files) / TRAINER
            with lost_if_damaged(policy.checkpoint):
                _restore(ppo, saved, state.data["trainer"])
        self.session.ppo = ppo
        return ppo

    def _reached(self, state: AlgorithmState) -> Network:
        """The checkpoint to go on from. Where all updates so far were undone it is no candidate, and holds what was
        played in vain: the next step plays on."""
        policy, undone = state.policy, state.data.get("undone")
        assert isinstance(policy, Network)
        return policy if undone is None else policy.at(undone)

    def _save(self, state: AlgorithmState, ppo: PPO, last: Update, ctx: LearnContext) -> tuple[Network, str]:
        """Saves network and learner; gives the candidate and the hash of the learner's state."""
        policy, trainer = self._reached(state), ""

        def write(folder: Path, step: int, now: float) -> str:
            nonlocal trainer
            shape, seeds = asdict(ppo.net.body), {"ppo": self.seed}
            scale = {VALUE_SCALE: [ppo.scale.mean, ppo.scale.std], DISCOUNT: self.dials.gamma}  # what the value means
            notes = {"env": self.env, **scale}
            net = Manifest(kind=KIND, shape=shape, step=step, seeds=seeds, created_at=now, notes=notes)
            rest = Manifest(kind="trainer", shape=shape, step=step, seeds=seeds, created_at=now)
            saved = weights.save(folder, ppo.net.state_dict(), net)
            trainer = weights.save(folder / TRAINER, ppo.state(), rest).sha256
            return saved.sha256

        identity, _ = save(
            ctx, write, parent=policy.checkpoint, algorithm="ppo", mean_reward=last.mean_return, episodes=last.episodes
        )
        return policy.at(identity), trainer

    def leaked(self, first: int) -> Finding:
        """How many of the environments with seeds from `first` on are held out."""
        leaked = sum(first <= seed < first + self.envs for seed in self.held_out)
        return Finding(name="held_out_seeds", severity="error", count=leaked, of=self.envs, blocks=True)

    def _audit(self, segment: Segment, updates: Sequence[Update]) -> list[Finding]:
        """The data findings that the promotion gate reads."""
        undone = [update.restored for update in updates if update.restored is not None]
        return [
            self.leaked(segment.seed),
            Finding(
                name="updates_undone",
                severity="warning",
                count=len(undone),
                of=len(updates),
                detail=undone[0] if undone else "",
                blocks=False,
            ),
        ]


def _restore(ppo: PPO, folder: Path, sha256: str) -> None:
    """Environments may have been pickled, and unpickling runs code: only what the run recorded is restored."""
    tensors, manifest = weights.load(folder)
    if manifest.sha256 != sha256:
        why = f"hashes to {manifest.sha256[:12]}…, and the run recorded {sha256[:12]}…"
        raise BadInput(str(folder), why=why, remedy="restore it from a copy")
    ppo.restore(tensors)


def _plain(updates: Sequence[Update]) -> dict[str, Any]:
    """The last update as plain JSON; `restored` is that of the last update that was undone."""
    payload = {
        name: value if not isinstance(value, float) or isfinite(value) else None
        for name, value in asdict(updates[-1]).items()
    }
    undone = [update.restored for update in updates if update.restored is not None]
    return {**payload, "restored": undone[-1] if undone else None}
