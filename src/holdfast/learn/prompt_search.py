"""Searches for a better prompt: proposers write prompts, and a race on the train tasks finds which is worth a proof.

All prompts of a search do the same tasks with the same chance, so they are compared task by task, and what one has done
is never run again. A round goes to those prompts that are expected to gain most over the best one so far; new ones
count by the record of who proposed them. A prompt leaves once a confidence sequence says that it is worse. The last
part of the budget goes to tasks that the search has not seen: what the winners gain there is what a proof may expect.
The proof on held-out tasks is the pipeline's business.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import erf, exp, fsum, isfinite, log, pi, sqrt
from random import Random
from typing import Any

from holdfast.contracts.algorithm import AlgorithmState, Batch, LearnContext, Work
from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.policy import Policy
from holdfast.contracts.records import encode
from holdfast.contracts.task import TaskItem, task_of
from holdfast.learn.proposers import (
    Edits,
    Merge,
    Proposer,
    Regression,
    Tried,
    Wording,
    as_prompt,
    prompt_from,
    prompt_of_draft,
    proposer_name,
)
from holdfast.learn.quality import Standards, audit
from holdfast.policies.prompt import Prompt

GIVEN = ("base", "given")  # who wrote what nobody proposed: the prompt in force, and a user's own
SEARCH, CONFIRM = "search", "confirm"  # phases, and how the names of their rollouts begin
ROLLOUTS = 600  # of a search where nobody gives a number
TASKS = 24  # twice as many rollouts for each prompt of a user's own, where nobody gives a number
BLOCK = 6  # tasks that a prompt is run on at once
STOCK = 2  # prompts of one proposer that wait to be run, at most
WIDTH = 4  # prompts that a round runs, beside those that they are compared with
CONFIRMED = 0.25  # share of the tasks, and of the rollouts at most, that the search leaves for its winners
EXPLORED = 0.6  # share of the search's rollouts after which no new prompt is begun
FINALISTS = 2
LEAST_TASKS = 16  # below, no task is left for the winners
SPREAD = 0.15  # standard deviation of a prompt's gain, before anything was seen of it
CHILD = -0.02  # what a new prompt is expected to gain over the best one; counts as two prompts of its proposer
NOISE = 0.25  # variance of one difference, before any was seen; counts as two tasks
LEVEL = 0.1  # chance that a prompt which is no worse is ever dropped
LOOKED_AT = ("decided", "finite_rewards", "held_out_leakage")  # of the audit: rollouts choose here, and teach nothing
HOPELESS = 0.002  # expected gain below which a prompt gets no more rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One prompt of the search, and what it has earned where."""

    prompt: Prompt
    by: str  # who wrote it
    parents: tuple[int, ...] = ()
    note: str = ""  # why it was written
    quotes: frozenset[int] = frozenset()  # places of tasks that it quotes: it cannot be measured there
    out: str | None = None  # why it was dropped
    values: Mapping[int, float] = field(default_factory=dict)  # by place: the reward less the price of its tokens
    rewards: Mapping[int, float] = field(default_factory=dict)
    tokens: Mapping[int, int] = field(default_factory=dict)
    asked: frozenset[int] = frozenset()  # places it was run at, those without a reward too

    def record(self) -> dict[str, Any]:
        cells = {name: {str(at): value for at, value in getattr(self, name).items()} for name in MEASURED}
        places = {name: sorted(getattr(self, name)) for name in PLACES}
        told = {"by": self.by, "note": self.note, "out": self.out, "parents": list(self.parents)}
        return {"prompt": self.prompt.manifest, **told, **places, **cells}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Arm:
        known: dict[str, Any] = {name: record[name] for name in ("by", "note", "out")}
        known |= {name: frozenset(record[name]) for name in PLACES}
        known |= {name: {int(at): value for at, value in record[name].items()} for name in MEASURED}
        return cls(prompt=Prompt.from_manifest(record["prompt"]), parents=tuple(record["parents"]), **known)


MEASURED, PLACES = ("values", "rewards", "tokens"), ("quotes", "asked")


@dataclass(frozen=True, kw_only=True)
class PromptSearch:
    """Proposes prompts and races them on the train tasks within a number of rollouts; the best is the candidate.

    Args:
        proposers: Objects with `propose(history)`: what was tried so far goes in, a prompt or None comes out. Without
            them prompts are edited by rule, which needs no model.
        prompts: Your own, to begin with.
        rollouts: Of the whole search, never passed.
        token_price: Reward that a thousand tokens of an answer cost.
        forbidden: Strings that no proposed prompt may contain.
    """

    proposers: Sequence[Proposer] | None = None  # None: by rule, which needs no model
    prompts: Sequence[Wording] = ()  # yours, to begin with
    rollouts: int | None = (
        None  # of the whole search, never passed; None: 600, or 48 for each prompt where nobody proposes
    )
    token_price: float = 0.0  # reward that a thousand tokens of an answer cost
    forbidden: Sequence[str] = ()  # strings that no proposed prompt may contain
    seed: int = 0
    held_out: Sequence[Any] = ()  # inputs that must not be among the tasks

    def __post_init__(self) -> None:
        given: Any = self.prompts
        if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
            raise BadInput("candidates", why="is no list of prompts", remedy='as in hf.Candidates(["…", "…"])')
        if self.rollouts is not None and self.rollouts < 1:
            raise BadInput(f"prompt_search: rollouts = {self.rollouts}", why="must be at least 1")
        if not (isfinite(self.token_price) and self.token_price >= 0.0):
            raise BadInput(f"prompt_search: token_price = {self.token_price}", why="must be finite and not negative")

    @property
    def writers(self) -> dict[str, Proposer]:
        """Who proposes, by name."""
        own = (Edits(seed=self.seed), Merge(seed=self.seed), Regression(seed=self.seed))
        given = own if self.proposers is None else self.proposers
        return {proposer_name(one, place): one for place, one in enumerate(given)}

    @property
    def budget(self) -> int:
        if self.rollouts is not None:
            return self.rollouts
        return ROLLOUTS if self.writers else 2 * TASKS * (1 + len(self.prompts))

    def arms(self, base: Policy) -> list[Prompt]:
        """The prompt in force, then every prompt of yours that differs from it."""
        first = as_prompt(base)
        given = [prompt_from(one, first, f"candidate {place}") for place, one in enumerate(self.prompts, 1)]
        return list({one.version: one for one in (first, *given)}.values())

    def least(self, base: Policy) -> int:
        """Rollouts of the shortest search: every prompt on two tasks, one of them for the winners."""
        return 2 * len(self.arms(base)) + (2 if self.writers else 0)

    def start(self, base: Policy) -> AlgorithmState:
        prompts = self.arms(base)
        if not self.prompts and not self.writers:
            why = "there is no prompt to try, and nobody who proposes one"
            raise BadInput("prompt_search", why=why, remedy="give prompts or proposers")
        if len(prompts) < 2 and not self.writers:
            skipped = {"phase": SEARCH, "skipped": "every candidate is the prompt in force"}
            return AlgorithmState(base=base, data={"arms": [], "is_over": True}, metrics=skipped)
        arms = [Arm(prompt=one, by=GIVEN[min(place, 1)]) for place, one in enumerate(prompts)]
        return AlgorithmState(base=base, data={"arms": [one.record() for one in arms], "attempts": [], "spent": 0})

    def ask(self, state: AlgorithmState, tasks: Sequence[Any]) -> Sequence[Work]:
        data = self._data(state)
        if data.get("is_over") or not tasks:
            return ()
        race = Race([Arm.from_record(one) for one in data["arms"]])
        phase, plan = race.plan(len(tasks), self.budget - int(data["spent"]), self.budget)
        order = list(range(len(tasks)))
        Random(f"{self.seed}/order").shuffle(order)  # a file that begins with one family must not decide
        return [
            Work(
                name=f"{phase}-{state.iteration}-{state.step}-{place}-{arm}",
                input=tasks[order[place]],
                policy=race.arms[arm].prompt,
                group=f"{SEARCH}-{state.iteration}-{place}",
                seed=f"{SEARCH}-{state.iteration}-{place}",  # the same chance for every prompt
            )
            for arm, place in plan
        ]

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        data, experiences = self._data(state), ctx.experiences(batch)
        arms = [Arm.from_record(one) for one in data["arms"]]
        kept, phase, fresh = list[dict[str, Any]](), SEARCH, set[int]()
        for one in experiences:
            phase, _, _, place, arm = one.rollout.rpartition("/")[2].split("-")
            arms[int(arm)] = _measured(arms[int(arm)], int(place), one, self.token_price)
            kept.append({"arm": int(arm), "place": int(place), **_attempt(one)})
            fresh.add(int(place))
        attempts, race, is_over = [*data["attempts"], ctx.save(kept)], Race(arms), phase == CONFIRM
        race.drop()
        best, gain = race.confirmed(fresh) if is_over else race.best()
        refused: list[str] = []
        if self.writers and not is_over and race.arms[0].values:  # nobody proposes from nothing
            done = [one for blob in attempts for one in ctx.read(blob)]
            refused = self._extend(race, done)
        spent = int(data["spent"]) + batch.count
        told = _metrics(state, experiences, self.held_out) | {"phase": phase, "reward": race.mean(best), "gain": gain}
        told |= {"arms": race.table(best), "spent": spent, "budget": self.budget, "refused": refused}
        if not best:
            tried = sum(bool(one.asked) for one in race.arms) - 1
            told["skipped"] = f"no prompt of {tried} did better than the prompt in force on the train tasks"
        following = state.next(
            metrics=told, arms=[one.record() for one in race.arms], attempts=attempts, spent=spent, is_over=is_over
        )
        return replace(following, candidate=race.arms[best].prompt if best else None)

    def _data(self, state: AlgorithmState) -> Mapping[str, Any]:
        """A race that a version before had begun begins anew: it knew other figures."""
        return state.data if "arms" in state.data else self.start(state.base).data

    def _extend(self, race: Race, done: Sequence[Mapping[str, Any]]) -> list[str]:
        """One more prompt from everybody whose last ones were run; why proposals were refused."""
        answers: dict[str, int | None] = {one["expected"]: one["place"] for one in done if one["expected"]}
        answers |= {answer: None for one in self.held_out if (answer := _expected(one))}
        history, refused = race.history(done), list[str]()
        numbers = [arm for arm, one in enumerate(race.arms) if one.asked]  # of those in the history
        for name, writer in self.writers.items():
            if sum(one.by == name and not one.asked for one in race.arms) >= STOCK:
                continue
            try:
                given = writer.propose(history)
                if given is None:
                    continue
                prompt, draft = prompt_of_draft(given, name, history, forbidden=self.forbidden, answers=answers)
                if prompt.version in {one.prompt.version for one in race.arms}:
                    raise BadInput(name, why="proposes what was tried")
            except BadInput as error:
                refused.append(f"{name}: {error.why}")
                continue
            parents = tuple(numbers[at] for at in draft.parents)
            race.arms.append(Arm(prompt=prompt, by=name, parents=parents, note=draft.note, quotes=draft.quotes))
        return refused


@dataclass(frozen=True)
class Candidates(PromptSearch):
    """Prompts of your own: raced on the train tasks, and the winner proved on the held-out ones."""

    prompts: Sequence[Wording] = ()
    proposers: Sequence[Proposer] | None = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.prompts:
            raise BadInput("candidates", why="is no list of prompts", remedy='as in hf.Candidates(["…", "…"])')


def _metrics(state: AlgorithmState, experiences: Sequence[Experience], held_out: Sequence[Any]) -> dict[str, Any]:
    inputs = {one.rollout: _asked(one.input) for one in experiences}
    standards = Standards(needs_logprobs=False, needs_score=False)
    found = audit(experiences, inputs=inputs, held_out=held_out, standards=standards)
    quality = [encode(one) for one in found.findings if one.name in LOOKED_AT]
    return {"iteration": state.iteration, "rollouts": len(experiences), "quality": quality}


def _asked(stored: Any) -> Any:
    task = task_of(stored)
    return task.input if isinstance(task, TaskItem) else task


def _expected(stored: Any) -> str | None:
    task = task_of(stored)
    found = task.expected if isinstance(task, TaskItem) else None
    return found if isinstance(found, str) else None


def _attempt(one: Experience) -> dict[str, Any]:
    signals = () if one.breakdown is None else one.breakdown.signals
    return {
        "task": _asked(one.input),
        "expected": _expected(one.input),
        "answer": one.calls[-1].response.get("content") if one.calls else None,
        "reward": one.reward,
        "feedback": "; ".join(signal.feedback for signal in signals if signal.feedback),
    }


def _measured(arm: Arm, place: int, one: Experience, price: float) -> Arm:
    """What nobody scored is missing; it was paid for all the same, and is not asked for again."""
    asked = arm.asked | {place}
    if one.reward is None:
        return replace(arm, asked=asked)
    tokens = sum(len(call.completion_ids or ()) for call in one.calls)
    return replace(
        arm,
        asked=asked,
        rewards={**arm.rewards, place: one.reward},
        tokens={**arm.tokens, place: tokens},
        values={**arm.values, place: one.reward - price * tokens / 1000.0},
    )


# The race ------------------------------------------------------------------------------------------------------------


class Race:
    """What is known of all prompts, and who runs next. Number 0 is the prompt in force."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        self.arms, self.block = list(arms), BLOCK

    def mean(self, arm: int) -> float | None:
        rewards = self.arms[arm].rewards.values()
        return fsum(rewards) / len(rewards) if rewards else None

    def differences(self, arm: int, other: int, places: Collection[int] | None = None) -> list[float]:
        """Of one prompt over another, on every task that both have done."""
        one, two = self.arms[arm].values, self.arms[other].values
        return [one[at] - two[at] for at in one if at in two and (places is None or at in places)]

    def gain(self, arm: int, other: int, prior: float = 0.0) -> tuple[float, float]:
        """Of one prompt over another: the mean and the standard deviation of what is believed, drawn towards the
        prior as long as little was seen."""
        return posterior(self.differences(arm, other), prior)

    def best(self) -> tuple[int, float]:
        """Whose gain over the prompt in force is believed to be the highest, and that gain; 0 where none gains."""
        gains = {arm: self.gain(arm, 0)[0] for arm, one in enumerate(self.arms) if arm and one.out is None}
        found = max(gains, key=lambda arm: (gains[arm], -arm), default=0)
        return (found, gains[found]) if found and gains[found] > 0.0 else (0, 0.0)

    def drop(self) -> None:
        """Whoever is worse than the best one by a confidence sequence leaves, and keeps its reason."""
        best, _ = self.best()
        for arm, one in enumerate(self.arms):
            if arm in (0, best) or one.out is not None:
                continue
            d = self.differences(arm, best)
            if d and (high := upper(d)) < 0.0:
                why = f"worse than number {best} by {-fsum(d) / len(d):.2f} on {len(d)} tasks, at least {-high:.2f}"
                self.arms[arm] = replace(one, out=why)

    def plan(self, tasks: int, left: int, budget: int) -> tuple[str, list[tuple[int, int]]]:
        """Which prompts are run on which places next, within the rollouts that are left."""
        given = sum(one.by in GIVEN for one in self.arms)
        self.block = max(1, min(BLOCK, budget // (4 * (given + 1))))
        final = self._final(tasks)
        reserved = min(int(CONFIRMED * budget), len(final) * (FINALISTS + 1))
        is_open = budget - left < EXPLORED * (budget - reserved)
        found = self._searched(range(tasks - len(final)), left - reserved, has_new=is_open)
        if found:
            return SEARCH, found
        return CONFIRM, self._confirming(final, left)

    def _final(self, tasks: int) -> range:
        return range(tasks - int(CONFIRMED * tasks), tasks) if tasks >= LEAST_TASKS else range(0)

    def _searched(self, places: range, left: int, *, has_new: bool) -> list[tuple[int, int]]:
        """A block of tasks for each of those that are expected to gain most; whom they are compared with does them,
        too."""
        if not self.arms[0].asked:  # what goes wrong now is what proposers read
            return [(0, at) for at in places[: min(2 * self.block, left)]]
        best, _ = self.best()
        hopes = {
            arm: self._hope(arm, best)
            for arm, one in enumerate(self.arms)
            if arm != best and one.out is None and (has_new or one.asked)
        }
        ranked = sorted((arm for arm in hopes if hopes[arm] > HOPELESS), key=lambda arm: (-hopes[arm], arm))
        found: dict[tuple[int, int], None] = {}
        runs = 0
        for arm in ranked:
            block = self._block(arm, places)
            more = {(one, at): None for at in block for one in (0, best, arm) if self._is_new(one, at)}
            if not block or len({**found, **more}) > left:
                continue
            found |= more
            runs += 1
            if runs == WIDTH:
                break
        return list(found)

    def _is_new(self, arm: int, place: int) -> bool:
        one = self.arms[arm]
        return place not in one.asked and place not in one.quotes

    def _block(self, arm: int, places: range) -> list[int]:
        new = [at for at in places if self._is_new(arm, at)]
        return new[: self.block]

    def _hope(self, arm: int, best: int) -> float:
        """How much it is expected to gain over the best one, counting what it may lose as nothing."""
        if arm == 0:
            return 0.0
        return expected_gain(*self.gain(arm, best, self.record_of(self.arms[arm].by)[0]))

    def record_of(self, writer: str) -> tuple[float, float]:
        """The mean and the spread of what the prompts of one proposer gained over their parents."""
        gains = [
            self.gain(arm, one.parents[0] if one.parents else 0)[0]
            for arm, one in enumerate(self.arms)
            if arm and one.by == writer and one.values
        ]
        mean = (fsum(gains) + 2 * CHILD) / (len(gains) + 2)
        spread = sqrt((fsum((gain - mean) ** 2 for gain in gains) + 2 * SPREAD**2) / (len(gains) + 2))
        return mean, spread

    def _confirming(self, places: range, left: int) -> list[tuple[int, int]]:
        """The winners and the prompt in force, on tasks that the search has not seen."""
        gains = {arm: self.gain(arm, 0)[0] for arm, one in enumerate(self.arms) if arm and one.out is None}
        final = sorted((arm for arm in gains if gains[arm] > 0.0), key=lambda arm: (-gains[arm], arm))[:FINALISTS]
        if not final:
            return []
        each = (0, *final)
        return [(arm, at) for at in places[: left // len(each)] for arm in each if self._is_new(arm, at)]

    def confirmed(self, fresh: Collection[int]) -> tuple[int, float]:
        """Who gains most on these tasks, which the search had not seen, and how much. What the search believed counts
        for half: it chose the winners for it."""
        gains = {}
        for arm, one in enumerate(self.arms):
            if arm and (d := self.differences(arm, 0, fresh)):
                searched = self.differences(arm, 0, one.values.keys() - set(fresh))
                gains[arm] = posterior(d, posterior(searched, 0.0)[0] / 2)[0]
        found = max(gains, key=lambda arm: (gains[arm], -arm), default=0)
        return (found, gains[found]) if found and gains[found] > 0.0 else (0, 0.0)

    # For people and for proposers ------------------------------------------------------------------------------------

    def history(self, attempts: Sequence[Mapping[str, Any]]) -> list[Tried]:
        """Every prompt that was run, with what its attempts did; the best one is marked."""
        best, _ = self.best()
        by_arm: dict[int, list[Mapping[str, Any]]] = {}
        for one in attempts:
            shown = {name: value for name, value in one.items() if name not in ("arm", "expected")}
            by_arm.setdefault(one["arm"], []).append(shown)
        return [
            Tried(
                prompt=one.prompt,
                reward=self.mean(arm),
                attempts=tuple(by_arm.get(arm, ())),
                by=one.by,
                scores=dict(one.values),
                is_best=arm == best,
                out=one.out,
            )
            for arm, one in enumerate(self.arms)
            if one.asked
        ]

    def table(self, best: int) -> list[dict[str, Any]]:
        return [
            {
                "version": one.prompt.version,
                "by": one.by,
                "parents": list(one.parents),
                "note": one.note,
                "rollouts": len(one.asked),
                "reward": self.mean(arm),
                "gain": self.gain(arm, 0)[0] if one.values else None,
                "tokens": fsum(one.tokens.values()) / len(one.tokens) if one.tokens else None,
                "is_best": arm == best,
                "dropped": one.out,
            }
            for arm, one in enumerate(self.arms)
        ]


def posterior(d: Sequence[float], prior: float) -> tuple[float, float]:
    """Mean and standard deviation of a gain, N(prior, SPREAD²) before the differences were seen."""
    mean = fsum(d) / len(d) if d else 0.0
    noise = (fsum((x - mean) ** 2 for x in d) + 2 * NOISE) / (len(d) + 2)
    precision = 1.0 / SPREAD**2 + len(d) / noise
    return (prior / SPREAD**2 + fsum(d) / noise) / precision, sqrt(1.0 / precision)


def expected_gain(mean: float, deviation: float) -> float:
    """E[max(g, 0)] of a normal g."""
    z = mean / deviation
    return deviation * exp(-z * z / 2) / sqrt(2 * pi) + mean * (1 + erf(z / sqrt(2))) / 2


def upper(d: Sequence[float]) -> float:
    """The upper end of a one-sided confidence sequence for the mean, by a normal mixture over √n (Robbins 1970), with
    the variance estimated: an aid to the search, where the proof takes no such liberty."""
    n, mean = len(d), fsum(d) / len(d)
    spent = fsum((x - mean) ** 2 for x in d) + 2 * NOISE
    return mean + sqrt((spent + 1.0) * log((spent + 1.0) / LEVEL**2)) / n
