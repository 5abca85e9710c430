"""PPO with GAE over the turns of a language model as an algorithm (`rl_optimizer`), on a batch or on a followed run.

Where the model's weights are ours they are moved; where they are not, what could have been learnt from is counted, and
the summary says that nothing was moved. A step that was taken back leaves no checkpoint, and the run goes on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.contracts.algorithm import SWITCHED_OFF, AlgorithmState, Batch, LearnContext, RolloutTail, Work
from holdfast.contracts.experience import Experience
from holdfast.contracts.policy import FOLDER, Policy
from holdfast.contracts.records import encode
from holdfast.learn.batch import SampleFilter, SkipReason
from holdfast.learn.checkpoints import Learner
from holdfast.learn.constrain import Constraint, Multiplier, from_dict
from holdfast.learn.practice import INLINE, PHASE, mean_reward, sift
from holdfast.learn.turns import PpoSummary, RlSettings, optimize_turns
from holdfast.policies.model import Model


@dataclass(frozen=True, kw_only=True)
class TurnPPO:
    """The documented optimizer, with its settings as they are documented."""

    settings: RlSettings = field(default_factory=RlSettings)
    channels: tuple[str, ...] | None = None  # names of signals to learn from; None: all
    constraint: Constraint | None = None
    seed: int = 0
    steps: int = 1
    follow: str | None = None  # learn from the finished rollouts of this run, as they arrive
    follow_least: int = 128  # of them, for one step
    budget_s: float | None = None
    held_out: Sequence[Any] = ()
    learner: Learner = field(default_factory=Learner, compare=False, repr=False)

    def start(self, base: Policy) -> AlgorithmState:
        return AlgorithmState(base=base)

    def ask(self, state: AlgorithmState, tasks: Sequence[Any]) -> Sequence[Work | RolloutTail]:
        spent = float(state.data.get("learning_s", 0.0))
        if self.follow is None or state.step >= self.steps or (self.budget_s is not None and spent >= self.budget_s):
            return ()
        return [RolloutTail(run=self.follow, least=self.follow_least, taken=tuple(state.data.get("taken", ())))]

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        """One step on conversations that have nothing beside them to be compared with: a critic judges them."""
        began, experiences = time.perf_counter(), ctx.experiences(batch)
        clean, findings = sift(experiences, self.held_out)
        told, candidate, multiplier = self.learn(clean, state.policy, state.data.get("multiplier"), ctx)
        spent = round(time.perf_counter() - began - ctx.held_s, 3)
        metrics = {
            **told,
            "phase": f"{PHASE} {state.iteration + 1}",
            "iteration": state.iteration,
            "rollouts": len(experiences),
            "reward": mean_reward(experiences),
            "quality": [encode(one) for one in findings],
            "learning_s": spent,
        }
        taken = [*state.data.get("taken", ()), *([] if batch.ids is None else [batch.ids])]
        learnt_s = round(float(state.data.get("learning_s", 0.0)) + spent, 3)
        return state.next(candidate=candidate, metrics=metrics, taken=taken, learning_s=learnt_s, multiplier=multiplier)

    def learn(
        self, experiences: Sequence[Experience], policy: Policy, multiplier: Any, ctx: LearnContext
    ) -> tuple[dict[str, Any], Policy | None, Any]:
        """What is told of the step, the policy that came of it, and the constraint's multiplier to go on with."""
        if not ctx.features.learning:
            return {"phase": "rl_optimizer", "skipped": SWITCHED_OFF}, None, multiplier  # as without the block
        try:
            return self._learn(experiences, policy, multiplier, ctx)
        except BaseException:
            self.learner.forget()
            raise

    def _learn(
        self, experiences: Sequence[Experience], policy: Policy, multiplier: Any, ctx: LearnContext
    ) -> tuple[dict[str, Any], Policy | None, Any]:
        model = self.learner.load(policy, ctx.files) if isinstance(policy, Model) else None
        held: tuple[Constraint, Multiplier] | None = None
        if self.constraint is not None:
            held = self.constraint, from_dict(multiplier)
        intake = SampleFilter(run=self.follow or ctx.run, channels=self.channels)
        summary = optimize_turns(
            experiences, model, self.settings, seed=self.seed, intake=intake, held=held, between=ctx.check
        )
        told: dict[str, Any] = summary.to_dict()
        reasons = {
            rollout: why for rollout, why in told.pop("reasons").items() if why != SkipReason.WRONG_SPLIT
        }  # nobody expects to learn from validation
        told["no_gradient"] = dict(Counter(reasons.values()).most_common())
        candidate = self._kept(summary, ctx) if model is not None else None
        body: dict[str, Any] = {"phase": "rl_optimizer", "rl_optimizer": told}
        body["reasons"] = reasons if len(reasons) <= INLINE else {"blob": ctx.keep(reasons)}
        if candidate is not None:
            body["checkpoint"] = candidate.checkpoint
            told |= {
                "checkpoint": candidate.checkpoint,
                "weights": str(ctx.folder / FOLDER / str(candidate.checkpoint)),
            }
        return body, candidate, (told.get("constraint") or {}).get("multiplier", multiplier)

    def _kept(self, summary: PpoSummary, ctx: LearnContext) -> Model | None:
        if not summary.executed or summary.restored is not None:
            self.learner.forget()
            return None
        return self.learner.save(ctx, algorithm="ppo")
