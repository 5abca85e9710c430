"""Prompts that somebody has written, raced against the one in force; and prompts that a program proposes one by one.

The race is by successive halving: in each round all that are left do the same train tasks with the same chance, and
the worse half leaves. Who wins is a candidate and no more: the proof on held-out tasks is the pipeline's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite, log2
from typing import Any, Protocol

from holdfast.contracts.algorithm import AlgorithmState, Batch, LearnContext, Work
from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.policy import Policy
from holdfast.contracts.records import encode
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.task import TaskItem, task_of
from holdfast.learn.quality import Standards, audit
from holdfast.policies.prompt import Prompt

PHASE = "race"
ROUND = 24  # tasks of one round, where no number of rollouts is given
LOOKED_AT = ("decided", "finite_rewards", "held_out_leakage")  # what matters where rollouts choose, and teach nothing
Wording = str | Mapping[str, Any] | Prompt


def prompt_from(given: Any, base: Prompt, where: str = "candidate") -> Prompt:
    """Makes a candidate from a text (where the prompt has one), from texts by name, or from a whole prompt."""
    if isinstance(given, str):
        names = [name for name, text in base.texts.items() if isinstance(text, str)]
        if len(names) != 1:
            why = f"is one text, and the prompt has {len(names)}: {', '.join(names) or 'none'}"
            raise BadInput(where, why=why, remedy='name it, as in {"system": "…"}')
        return base.with_texts({names[0]: given})
    if isinstance(given, Prompt):
        made = Prompt(given.texts, model=given.model or base.model, sampling=given.sampling or base.sampling)
    elif isinstance(given, Mapping):
        made = base.with_texts(given)
    else:
        why = f"is {type(given).__name__}, no prompt"
        raise BadInput(where, why=why, remedy="give a text, texts by name, or hf.Prompt(…)")
    if lacking := [name for name in base.texts if name not in made.texts]:
        raise BadInput(where, why=f"has no text called {lacking[0]!r}", remedy="give every text of the prompt")
    return made


def as_prompt(base: Policy) -> Prompt:
    if not isinstance(base, Prompt):
        why = "is no prompt, and only prompts can be raced"
        raise BadInput(f"policy {base.version}", why=why, remedy='give policy=hf.Prompt(…), or algorithm="grpo"')
    return base


@dataclass(frozen=True)
class Candidates:
    """Prompts of your own: raced on the train tasks, and the winner proved on the held-out ones."""

    prompts: Sequence[Wording]
    rollouts: int | None = field(default=None, kw_only=True)  # of the whole race; None: 24 tasks in each round
    held_out: Sequence[Any] = field(default=(), kw_only=True)  # inputs that must not be among the tasks

    def __post_init__(self) -> None:
        given: Any = self.prompts
        if isinstance(given, str | Mapping) or not isinstance(given, Sequence) or not given:
            raise BadInput("candidates", why="is no list of prompts", remedy='as in hf.Candidates(["…", "…"])')
        if self.rollouts is not None and self.rollouts < 1:
            raise BadInput(f"candidates: rollouts = {self.rollouts}", why="must be at least 1")

    def arms(self, base: Policy) -> list[Prompt]:
        """The current prompt, then every candidate that differs from it."""
        first = as_prompt(base)
        made = [prompt_from(one, first, f"candidate {place}") for place, one in enumerate(self.prompts, 1)]
        return list({one.version: one for one in (first, *made)}.values())

    def least(self, base: Policy) -> int:
        """Rollouts of the shortest race: one task in each round."""
        left, found = len(self.arms(base)), 0
        for _ in range(_rounds(left)):
            found, left = found + left, ceil(left / 2)
        return found

    def start(self, base: Policy) -> AlgorithmState:
        arms = self.arms(base)
        if len(arms) < 2:
            return AlgorithmState(
                base=base, metrics={"phase": PHASE, "skipped": "every candidate is the prompt in force"}
            )
        return AlgorithmState(
            base=base, data={"left": list(range(len(arms))), "sums": [[0, 0.0] for _ in arms], "used": 0}
        )

    def ask(self, state: AlgorithmState, tasks: Sequence[Any]) -> Sequence[Work]:
        arms, left = self.arms(state.base), state.data.get("left", ())
        if len(left) < 2 or not tasks:
            return ()
        per_arm = min(len(tasks), ROUND)
        if self.rollouts is not None:
            per_arm = max(1, self.rollouts // _rounds(len(arms)) // len(left))
        begun, name = int(state.data["used"]), f"{PHASE}-{state.iteration}-{state.step}"
        return [
            Work(
                name=f"{name}-{place}-{arm}",
                input=tasks[(begun + place) % len(tasks)],
                policy=arms[arm],
                group=f"{name}-{place}",
                seed=f"{name}-{place}",  # side by side with the same chance
            )
            for place in range(per_arm)
            for arm in left
        ]

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        experiences = ctx.experiences(batch)
        arms, left = self.arms(state.base), list(state.data["left"])
        sums = [list(one) for one in state.data["sums"]]
        for one in experiences:
            if one.reward is not None:
                arm = int(one.rollout.rpartition("-")[2])
                sums[arm] = [sums[arm][0] + 1, sums[arm][1] + one.reward]
        means = [total / n if n else -inf for n, total in sums]  # what was never measured cannot win
        ranked = sorted(left, key=lambda arm: (-means[arm], arm))
        left = sorted(ranked[: ceil(len(ranked) / 2)])
        told = _told(state, experiences, self.held_out, _finite(means[ranked[0]]))
        told["arms"] = [
            {
                "version": arm.version,
                "rollouts": sums[place][0],
                "reward": _finite(means[place]),
                "is_left": place in left,
            }
            for place, arm in enumerate(arms)
        ]
        used = int(state.data["used"]) + batch.count // max(1, len(state.data["left"]))
        data: dict[str, Any] = {"left": left, "sums": sums, "used": used}
        if len(left) > 1:
            return state.next(metrics=told, **data)
        if left[0] == 0 or means[left[0]] <= means[0]:
            why = "none of the candidates did better than the prompt in force on the train tasks"
            return state.next(metrics={**told, "skipped": why}, **data)
        return state.next(candidate=arms[left[0]], metrics=told, **data)


def _finite(mean: float) -> float | None:
    return mean if isfinite(mean) else None


def _rounds(arms: int) -> int:
    return max(1, ceil(log2(arms)))


def _told(
    state: AlgorithmState, experiences: Sequence[Experience], held_out: Sequence[Any], reward: float | None
) -> dict[str, Any]:
    inputs = {one.rollout: _asked(one.input) for one in experiences}
    found = audit(
        experiences, inputs=inputs, held_out=held_out, standards=Standards(needs_logprobs=False, needs_score=False)
    )
    quality = [encode(one) for one in found.findings if one.name in LOOKED_AT]
    return {
        "phase": PHASE,
        "iteration": state.iteration,
        "reward": reward,
        "rollouts": len(experiences),
        "quality": quality,
    }


def _asked(stored: Any) -> Any:
    task = task_of(stored)
    return task.input if isinstance(task, TaskItem) else task


# Proposed one by one -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One prompt that was tried: what it earned, and what its attempts did."""

    prompt: Prompt
    reward: float | None  # mean; None: nothing was measured
    attempts: tuple[Mapping[str, Any], ...]  # task, answer, reward, feedback


class Proposer(Protocol):
    """A user's own search: gives the next prompt to try from what was tried so far, or None to stop."""

    def propose(self, history: Sequence[Tried], /) -> Wording | None: ...


@dataclass(frozen=True, kw_only=True)
class Proposals:
    """Runs every proposed prompt on the same train tasks; the best becomes the candidate."""

    proposer: Proposer
    rollouts: int | None = None  # of all prompts together; None: ten prompts
    tasks: int = ROUND  # that each prompt is tried on
    held_out: Sequence[Any] = ()

    def start(self, base: Policy) -> AlgorithmState:
        return AlgorithmState(base=base, data={"next": dict(as_prompt(base).manifest), "tried": [], "best": None})

    def ask(self, state: AlgorithmState, tasks: Sequence[Any]) -> Sequence[Work]:
        count, manifest = min(self.tasks, len(tasks)), state.data["next"]
        most = 10 if self.rollouts is None or not count else self.rollouts // count
        if manifest is None or state.step >= most:
            return ()
        policy, name = Prompt.from_manifest(manifest), f"try-{state.iteration}"
        return [
            Work(
                name=f"{name}-{state.step}-{place}",
                input=tasks[place],
                policy=policy,
                group=f"{name}-{state.step}-{place}",
                seed=f"{name}-{place}",
            )
            for place in range(count)
        ]

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        experiences = ctx.experiences(batch)
        rewards = [one.reward for one in experiences if one.reward is not None]
        mean = sum(rewards) / len(rewards) if rewards else None
        kept = {"prompt": state.data["next"], "reward": mean, "attempts": [_attempt(one) for one in experiences]}
        tried = [*state.data["tried"], ctx.save(kept)]
        best = state.data["best"]
        is_best = mean is not None and (best is None or mean > best)
        told = _told(state, experiences, self.held_out, mean) | {"phase": "proposals"}
        history = [_tried(ctx.read(blob)) for blob in tried]
        given = self.proposer.propose(history)
        base = as_prompt(state.base)
        following = None if given is None else dict(prompt_from(given, base, "what propose gives").manifest)
        data = {"tried": tried, "best": mean if is_best else best, "next": following}
        candidate = Prompt.from_manifest(state.data["next"]) if is_best and state.step else None
        if candidate is None and state.candidate is None:
            told["skipped"] = "nothing that was proposed did better than the prompt in force"
        return state.next(candidate=candidate, metrics=told, **data)


def _attempt(one: Experience) -> dict[str, Any]:
    signals: Sequence[RewardTerm] = () if one.breakdown is None else one.breakdown.signals
    calls = one.calls
    return {
        "task": _asked(one.input),
        "answer": calls[-1].response.get("content") if calls else None,
        "reward": one.reward,
        "feedback": "; ".join(signal.feedback for signal in signals if signal.feedback),
    }


def _tried(kept: Mapping[str, Any]) -> Tried:
    return Tried(prompt=Prompt.from_manifest(kept["prompt"]), reward=kept["reward"], attempts=tuple(kept["attempts"]))


def within(algorithm: Candidates | Proposals, rollouts: int) -> Candidates | Proposals:
    """Sets the number of rollouts where the algorithm has none of its own."""
    return algorithm if algorithm.rollouts is not None else replace(algorithm, rollouts=rollouts)
