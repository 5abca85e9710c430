"""The lesson of `rl_optimizer`: after the rollouts, GAE and PPO over the turns of this run's train split.

Where the model's weights are ours they are moved; where they are not, what could have been learnt from is counted, and
the summary says that nothing was moved. A step that was taken back leaves no checkpoint, and the run goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast.collect.plan import Learnt, Standing
from holdfast.contracts.experience import Experience
from holdfast.contracts.settings import RlOptimizer
from holdfast.learn.batch import Intake, Reason
from holdfast.learn.constrain import Constraint, Multiplier, from_dict
from holdfast.learn.turns import GaeSettings, PpoSettings, RlSettings, optimize_turns
from holdfast.workloads.practice import SWITCHED_OFF
from holdfast.workloads.pupil import Pupil, where


def rl_lesson(
    block: RlOptimizer,
    pupil: Pupil | None,
    standing: Standing,
    *,
    seed: int,
    run: str | None = None,
    constraint: Constraint | None = None,
) -> Callable[[Sequence[Experience]], Learnt]:
    """What to do with the experiences of the run (this one, unless another is named), once they are there.

    The multiplier of a constraint goes on from the last step that is on record."""
    settings = RlSettings(gae=GaeSettings(**block.gae.model_dump()), ppo=PpoSettings(**block.ppo.model_dump()))
    intake = Intake(run=run or standing.run, channels=block.channels)

    def learn(experiences: Sequence[Experience]) -> Learnt:
        if not standing.features.learning:
            return Learnt(body={"phase": "rl_optimizer", "skipped": SWITCHED_OFF})  # as without the block
        model = None if pupil is None else pupil.model
        held = None if constraint is None else (constraint, _multiplier(standing))
        between = standing.between if pupil is None else partial(pupil.between, standing)
        summary = optimize_turns(experiences, model, settings, seed=seed, intake=intake, held=held, between=between)
        told: dict[str, Any] = summary.to_dict()
        reasons = {
            rollout: why for rollout, why in told.pop("reasons").items() if why != Reason.WRONG_SPLIT
        }  # nobody expects to learn from validation
        told["no_gradient"] = dict(Counter(reasons.values()).most_common())
        checkpoint = None
        if pupil is not None and summary.executed and summary.restored is None:
            checkpoint = pupil.keep(standing, algorithm="ppo")
            told |= {"checkpoint": checkpoint.id, "weights": str(where(standing.folder, checkpoint.id))}
        body = {"phase": "rl_optimizer", "rl_optimizer": told, "reasons": reasons}
        return Learnt(body=body, checkpoint=checkpoint)

    return learn


def _multiplier(standing: Standing) -> Multiplier:
    kept = None
    for update in standing.done:
        told = update.body.get("rl_optimizer") or {}
        kept = (told.get("constraint") or {}).get("multiplier", kept)
    return from_dict(kept)
