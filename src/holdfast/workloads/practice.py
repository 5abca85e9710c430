"""One step of practice: several attempts at each of some tasks; what did better than the others becomes likelier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.collect.plan import Learnt, Standing
from holdfast.contracts.evidence import Finding
from holdfast.contracts.experience import Experience
from holdfast.contracts.records import encode
from holdfast.contracts.settings import ConstraintBlock
from holdfast.learn.audit import audit
from holdfast.learn.batch import Intake
from holdfast.learn.constrain import Constraint, Price, describe, from_dict, mean_cost
from holdfast.learn.grpo import Grpo, compare
from holdfast.learn.train import Trainer
from holdfast.learn.turns import fitted
from holdfast.learn import quality
from holdfast.workloads.pupil import Pupil

SWITCHED_OFF = "learning is switched off"
MULTIPLIER = "multiplier"  # where a trainer keeps it


def practise(
    pupil: Pupil,
    standing: Standing,
    phase: str,
    experiences: Sequence[Experience],
    make: Callable[[Any], Trainer],
    *,
    held_out: Iterable[Any] = (),
    constraint: Constraint | None = None,
) -> Learnt:
    """Learn from the attempts of the run; `held_out` are inputs that must not be among their tasks.

    What the data gates put aside is not learnt from, but what it cost counts. Where nothing gives a gradient nothing
    moves, the multiplier of a constraint neither, and the audit says why.
    """
    pupil.heed()
    clean, findings = sift(experiences, held_out)
    told: dict[str, Any] = {"phase": phase, "reward": mean_reward(experiences)}
    if not standing.features.learning:
        return Learnt(body={**told, "skipped": SWITCHED_OFF, "quality": [encode(one) for one in findings]})
    intake = fitted(Intake(run=standing.run, versions=(pupil.version,)), pupil.model)
    held = price = None
    if constraint is not None:
        before = from_dict(pupil.trainer(standing, phase, make).beside.get(MULTIPLIER))
        mean = mean_cost(experiences, intake, constraint.cost)
        held = before.follow(mean, constraint)
        price = Price(cost=constraint.cost, multiplier=held.value)
        told["constraint"] = describe(constraint, held, mean)
    compared = compare(clean, intake, Grpo(), price)
    checkpoint = update = None
    if compared.samples is not None:
        trainer = pupil.trainer(standing, phase, make)
        if held is not None:
            trainer.beside[MULTIPLIER] = held.to_dict()
        update = trainer.step(compared.samples)
        told["update"] = update.to_dict()
        checkpoint = pupil.keep(standing, algorithm="grpo", mean_reward=told["reward"])
    found = audit(
        clean,
        compared.reasons,
        compared.samples,
        breaks=compared.breaks,
        update=update,
        constraint=told.get("constraint"),
    )
    told |= {"audit": found.to_dict(), "quality": [encode(one) for one in findings]}
    return Learnt(body=told, checkpoint=checkpoint)


def constraint_of(*blocks: ConstraintBlock | None) -> Constraint | None:
    """The first that is there, as the learner takes it."""
    block = next((one for one in blocks if one is not None), None)
    return None if block is None else Constraint(**block.model_dump())


def sift(
    experiences: Sequence[Experience], held_out: Iterable[Any] = ()
) -> tuple[list[Experience], tuple[Finding, ...]]:
    """What may be learnt from, and what the data gates say of that; what they put aside is only counted.

    A gate later asks what was learnt from: that some of it had to be put aside is worth knowing, and no reason to stay
    closed.
    """
    kept_out = list(held_out)
    aside = quality.audit(experiences, held_out=kept_out).quarantined
    clean = [one for one in experiences if one.rollout not in aside]
    first = next((f"{rollout}: {', '.join(names)}" for rollout, names in aside.items()), "")
    counted = Finding(
        name="put_aside", severity="warning", count=len(aside), of=len(experiences), detail=first, blocks=False
    )
    return clean, (*quality.audit(clean, held_out=kept_out).findings, counted)


def mean_reward(experiences: Sequence[Experience]) -> float | None:
    totals = [one.sheet.total for one in experiences if one.sheet is not None and one.sheet.total is not None]
    return sum(totals) / len(totals) if totals else None
