"""Searches for a better prompt: proposers write prompts, and a race on the train tasks finds which is worth a proof.

All prompts of a search do the same tasks with the same chance, so they are compared task by task, and what one has done
is never run again. A round goes to those prompts that are expected to gain most over the best one so far; new ones
count by the record of who proposed them. A prompt leaves once a confidence sequence says that it is worse. The last
part of the budget goes to tasks that the search has not seen: what the winners gain there is what a proof may expect.
The proof on held-out tasks is the pipeline's business.
"""

from __future__ import annotations

import json
import lzma
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import erf, exp, fsum, isfinite, log, pi, sqrt
from random import Random
from typing import Any

from holdfast.contracts.algorithm import LATER, AlgorithmState, Batch, LearnContext, Work
from holdfast.contracts.errors import BadInput, HoldfastError
from holdfast.contracts.experience import Experience
from holdfast.contracts.policy import Policy
from holdfast.contracts.records import encode
from holdfast.contracts.spending import Taken, bound, price
from holdfast.contracts.task import TaskItem, task_of, task_texts
from holdfast.contracts.trace import SpanKind
from holdfast.learn.proposers import (
    Draft,
    Edits,
    Merge,
    PromptRules,
    Proposer,
    Regression,
    Tried,
    Wording,
    as_prompt,
    front,
    prompt_from,
    prompt_of_draft,
    proposer_name,
)
from holdfast.learn.quality import Standards, audit
from holdfast.policies.prompt import Prompt

GIVEN = ("base", "given")  # who wrote what nobody proposed: the prompt in force, and a user's own
SEARCH, CONFIRM = "search", "confirm"  # phases, and how the names of their rollouts begin
ROLLOUTS = 600  # of a search where nobody gives a number
MOST_ROLLOUTS = 4000  # of a search: what is known of more would not go into the record of a step
LARGE = 24_000  # characters of that record from which on it is packed
SEARCH_SHARE = 1 / 3  # of a budget in tokens or money: the rest is for the proof
MARGIN = 2  # times what the largest rollout so far took: so much the next one may take
TASKS = 24  # twice as many rollouts for each prompt of a user's own, where nobody gives a number
BLOCK = 6  # tasks that a prompt is run on at once
STOCK = 2  # prompts of one proposer that wait to be run, at most
WIDTH = 4  # prompts that a round runs, beside those that they are compared with
CONFIRMED = 0.25  # share of the tasks, and of the rollouts at most, that the search leaves for its winners
EXPLORED = 0.6  # share of the search's rollouts after which no new prompt is begun, once one gains
FINALISTS = 2
LEAST_TASKS = 16  # below, no task is left for the winners
SPREAD = 0.15  # standard deviation of a prompt's gain, before anything was seen of it
CHILD = -0.02  # what a new prompt is expected to gain over the best one; counts as two prompts of its proposer
NOISE = 0.25  # variance of one difference, before any was seen; counts as two tasks
LEVEL = 0.1  # chance that a prompt which is no worse is ever dropped
LOOKED_AT = ("decided", "finite_rewards", "held_out_leakage")  # of the audit: rollouts choose here, and teach nothing
MOST_ROWS, MOST_NOTE = 60, 120  # of the table of prompts, and characters of a note in it
MOST_FRONT = 12  # prompts that status.json names, with on how many tasks nobody beats them
MOST_REFUSED = 40  # of the refusals, the last ones are kept
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
    values: Mapping[int, float] = field(default_factory=dict)  # by place: the reward less the price of tokens and time
    rewards: Mapping[int, float] = field(default_factory=dict)
    tokens: Mapping[int, int] = field(default_factory=dict)
    seconds: Mapping[int, float] = field(default_factory=dict)
    asked: frozenset[int] = frozenset()  # places it was run at, those without a reward too

    def record(self) -> dict[str, Any]:
        measured = {name: getattr(self, name) for name in MEASURED}
        cells = {name: {str(at): value for at, value in some.items()} for name, some in measured.items()}
        places = {name: sorted(getattr(self, name)) for name in PLACES}
        payload = {"by": self.by, "note": self.note, "out": self.out, "parents": list(self.parents)}
        return {"prompt": self.prompt.manifest, **payload, **places, **cells}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Arm:
        known: dict[str, Any] = {name: record[name] for name in ("by", "note", "out")}
        known |= {name: frozenset(record[name]) for name in PLACES}
        known |= {name: {int(at): value for at, value in record.get(name, {}).items()} for name in MEASURED}
        return cls(prompt=Prompt.from_manifest(record["prompt"]), parents=tuple(record["parents"]), **known)


MEASURED, PLACES = ("values", "rewards", "tokens", "seconds"), ("quotes", "asked")


def arms_in(data: Mapping[str, Any]) -> list[Arm]:
    """The prompts that the state of a search holds."""
    kept = data["arms"]
    records = json.loads(lzma.decompress(b64decode(kept))) if isinstance(kept, str) else kept
    return [Arm.from_record(record) for record in records]


def _packed(arms: Sequence[Arm]) -> Any:
    """Prompts of a search are much alike: where they are many or long they are kept as one packed text."""
    records = [arm.record() for arm in arms]
    text = json.dumps(records, sort_keys=True)
    return records if len(text) <= LARGE else b64encode(lzma.compress(text.encode(), preset=1)).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a search has used up, its proposers included."""

    rollouts: int = 0
    tokens: int = 0
    money: float = 0.0
    largest_tokens: int = 0  # of one rollout
    largest_money: float = 0.0
    reserved_tokens: int = 0  # the most that one call could have taken: so much has to be there for the next
    reserved_money: float = 0.0

    def after(
        self, rollouts: int, each: Sequence[Taken], prices: tuple[float, float], bounds: Sequence[Taken] = ()
    ) -> Spent:
        """With so many more rollouts; `each` has the tokens that were read and written, of all that took some, and
        `bounds` what could have been, of each call."""
        tokens, costs = [sum(one) for one in each], [price(one, prices) for one in each]
        return Spent(
            rollouts=self.rollouts + rollouts,
            tokens=self.tokens + sum(tokens),
            money=self.money + fsum(costs),
            largest_tokens=max([self.largest_tokens, *tokens]),
            largest_money=max([self.largest_money, *costs]),
            reserved_tokens=max([self.reserved_tokens, *map(sum, bounds)]),
            reserved_money=max([self.reserved_money, *(price(one, prices) for one in bounds)]),
        )


LEAST = {"rollouts": "at least 1", "tokens": "at least 1", "money": "a number, and not negative"}


@dataclass(frozen=True, kw_only=True)
class PromptSearch:
    """Proposes prompts and races them on the train tasks within a number of rollouts; the best is the candidate.

    Args:
        proposers: Objects with `propose(history)`: what was tried so far goes in, a prompt or None comes out. Without
            them prompts are edited by rule, which needs no model.
        prompts: Your own, to begin with.
        rollouts: Of the whole search, never passed.
        tokens: That search and proof may take together, read and written; a third of them are the search's.
        money: The same in money, at these `prices`.
        prices: Of a million tokens that are read, and of a million that are written.
        token_price: Reward that a thousand tokens of an answer cost: equal quality in fewer tokens wins.
        second_price: Reward that a second of a rollout costs: equal quality in less time wins.
        forbidden: Strings that no proposed prompt may contain.
        allowed: Expected answers that a prompt may name all the same, as the labels of a classification.
    """

    proposers: Sequence[Proposer] | None = None  # None: by rule, which needs no model
    prompts: Sequence[Wording] = ()  # yours, to begin with
    rollouts: int | None = (
        None  # of the whole search, never passed; None: 600, or 48 for each prompt where nobody proposes
    )
    token_price: float = 0.0  # reward that a thousand tokens of an answer cost
    forbidden: Sequence[str] = ()  # strings that no proposed prompt may contain
    allowed: Sequence[str] = field(default=(), metadata=LATER)
    tokens: int | None = field(default=None, metadata=LATER)
    money: float | None = field(default=None, metadata=LATER)
    prices: tuple[float, float] | None = field(default=None, metadata=LATER)
    second_price: float = field(default=0.0, metadata=LATER)
    is_timed: bool = field(default=True, metadata=LATER)  # False: the same bytes each time, so no durations
    seed: int = 0
    held_out: Sequence[Any] = ()  # inputs that must not be among the tasks

    def __post_init__(self) -> None:
        given: Any = self.prompts
        if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
            raise BadInput("candidates", why="is no list of prompts", remedy='as in hf.Candidates(["…", "…"])')
        for name in ("rollouts", "tokens", "money"):
            if (limit := getattr(self, name)) is not None and not (isfinite(limit) and limit >= (name != "money")):
                raise BadInput(f"prompt_search: {name} = {limit}", why=f"must be {LEAST[name]}")
        if self.rollouts is not None and self.rollouts > MOST_ROLLOUTS:
            why = f"a search takes {MOST_ROLLOUTS} at most"
            raise BadInput(f"prompt_search: rollouts = {self.rollouts}", why=why, remedy="give fewer, or iterations")
        if self.money is not None and self.prices is None:
            why, remedy = "what tokens cost is not known", "give prices, as in prices=(0.15, 0.60) for a million each"
            raise BadInput(f"prompt_search: money = {self.money:g}", why=why, remedy=remedy)
        for name in ("token_price", "second_price"):
            if not (isfinite(price := getattr(self, name)) and price >= 0.0):
                raise BadInput(f"prompt_search: {name} = {price}", why="must be finite and not negative")
        if self.second_price and not self.is_timed:
            why = "a deterministic run measures no time"
            raise BadInput(f"prompt_search: second_price = {self.second_price:g}", why=why, remedy="leave one out")

    @property
    def writers(self) -> dict[str, Proposer]:
        """Who proposes, by name."""
        own = (Edits(seed=self.seed), Merge(seed=self.seed), Regression(seed=self.seed))
        given = own if self.proposers is None else self.proposers
        return {proposer_name(proposer, place): proposer for place, proposer in enumerate(given)}

    @property
    def budget(self) -> int:
        if self.rollouts is not None:
            return self.rollouts
        return ROLLOUTS if self.writers else 2 * TASKS * (1 + len(self.prompts))

    def within(self, rollouts: int) -> PromptSearch:
        """The same with so many rollouts, or as many as a search can take."""
        return replace(self, rollouts=min(rollouts, MOST_ROLLOUTS))

    def arms(self, base: Policy) -> list[Prompt]:
        """The prompt in force, then every prompt of yours that differs from it."""
        first = as_prompt(base)
        given = [prompt_from(one, first, f"candidate {place}") for place, one in enumerate(self.prompts, 1)]
        return list({prompt.version: prompt for prompt in (first, *given)}.values())

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
        arms = [Arm(prompt=prompt, by=GIVEN[min(place, 1)]) for place, prompt in enumerate(prompts)]
        return AlgorithmState(base=base, data={"arms": [arm.record() for arm in arms], "attempts": [], "spent": 0})

    def ask(self, state: AlgorithmState, tasks: Sequence[Any]) -> Sequence[Work]:
        data = self._data(state)
        if data.get("is_over") or not tasks:
            return ()
        race, spent = Race(arms_in(data)), self._spent(data)
        left = self.left(spent)
        phase, plan = race.plan(len(tasks), left, min(self.budget, spent.rollouts + left))
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

    def left(self, spent: Spent) -> int:
        """Rollouts that the search may still run, if each takes as much as the largest so far and again that much."""
        return min(self.budget - spent.rollouts, *self._paid(spent, SEARCH_SHARE), MOST_ROLLOUTS)

    def left_for_proof(self, state: AlgorithmState) -> int | None:
        """Rollouts that the rest of a budget in tokens or money pays for; None: there is no such budget."""
        paid = self._paid(self._spent(state.data), 1.0)
        return min(paid) if paid else None

    def _paid(self, spent: Spent, share: float) -> list[int]:
        """Rollouts that each such budget pays for; before the first one nobody knows what they take."""
        found = []
        for limit, used, largest, kept in (
            (self.tokens, spent.tokens, spent.largest_tokens, spent.reserved_tokens),
            (self.money, spent.money, spent.largest_money, spent.reserved_money),
        ):
            if limit is not None:
                free = min(share * limit, limit - kept) - used
                found.append(max(0, int(free / (MARGIN * largest))) if largest else 1)
        return found

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        data, experiences = self._data(state), ctx.experiences(batch)
        arms = arms_in(data)
        kept, phase, fresh = list[dict[str, Any]](), SEARCH, set[int]()
        for experience in experiences:
            phase, _, _, place, arm = experience.rollout.rpartition("/")[2].split("-")
            arms[int(arm)] = self._measured(arms[int(arm)], int(place), experience)
            kept.append({"arm": int(arm), "place": int(place), **_attempt(experience)})
            fresh.add(int(place))
        attempts, race, is_over = [*data["attempts"], ctx.save(kept)], Race(arms), phase == CONFIRM
        race.drop()
        best, gain = race.confirmed(fresh) if is_over else race.best()
        refused, taken = list[str](), [_tokens(experience) for experience in experiences]
        self._check_counted(taken)
        if self.writers and not is_over and race.arms[0].values:  # nobody proposes from nothing
            done = [one for blob in attempts for one in ctx.read(blob)]
            refused = self._extend(race, done, taken)
        bounds = [bound(call.messages, call.sampling) for experience in experiences for call in experience.calls]
        used, prices = [one for one in taken if any(one)], self.prices or (0.0, 0.0)
        spent = self._spent(data).after(batch.count, used, prices, bounds if self.tokens or self.money else ())
        metrics = _metrics(state, experiences, self.held_out) | {
            "phase": phase,
            "reward": race.mean(best),
            "gain": gain,
        }
        metrics |= {"arms": race.table(best), "spent": spent.rollouts, "budget": self.budget, "refused": refused}
        metrics["prompt_search"] = {**self._figures(spent), **race.summary(best), "round": state.step + 1}
        if not best:
            tried = sum(bool(arm.asked) for arm in race.arms) - 1
            metrics["skipped"] = f"no prompt of {tried} did better than the prompt in force on the train tasks"
        kept_data: dict[str, Any] = {
            "attempts": attempts,
            "spent": spent.rollouts,
            "used": asdict(spent),
            "is_over": is_over,
        }
        kept_data |= {"refused": [*data.get("refused", ()), *refused][-MOST_REFUSED:], "fresh": sorted(fresh)}
        following = state.next(metrics=metrics, arms=_packed(race.arms), **kept_data)
        return replace(following, candidate=race.arms[best].prompt if best else None)

    def _measured(self, arm: Arm, place: int, one: Experience) -> Arm:
        """What nobody scored is missing; it was paid for all the same, and is not asked for again."""
        asked = arm.asked | {place}
        if one.reward is None:
            return replace(arm, asked=asked)
        tokens, seconds = _tokens(one)[1], one.latency_s if self.is_timed else None
        cost = self.token_price * tokens / 1000.0 + self.second_price * (seconds or 0.0)
        return replace(
            arm,
            asked=asked,
            rewards={**arm.rewards, place: one.reward},
            tokens={**arm.tokens, place: tokens},
            seconds=arm.seconds if seconds is None else {**arm.seconds, place: float(f"{seconds:.3g}")},
            values={**arm.values, place: one.reward - cost},
        )

    def _figures(self, spent: Spent) -> dict[str, Any]:
        """What is spent of what, in the units of the budget."""
        limits = {"rollouts": self.budget, "tokens": self.tokens, "money": self.money}
        used = {name: getattr(spent, name) for name in ("rollouts", "tokens")}
        used |= {} if self.prices is None else {"money": round(spent.money, 6)}
        return {"spent": used, "budget": {name: limit for name, limit in limits.items() if limit is not None}}

    def _spent(self, data: Mapping[str, Any]) -> Spent:
        return Spent(**data["used"]) if "used" in data else Spent(rollouts=int(data.get("spent", 0)))

    def _check_counted(self, taken: Sequence[tuple[int, int]]) -> None:
        name = "tokens" if self.money is None else "money"
        if getattr(self, name) is not None and taken and not any(map(any, taken)):
            why = "the model's answers do not say how many tokens they took"
            raise BadInput(f"budget: {name} = {getattr(self, name):g}", why=why, remedy="give a number of rollouts")

    def _data(self, state: AlgorithmState) -> Mapping[str, Any]:
        """A race that a version before had begun begins anew: it knew other figures."""
        return state.data if "arms" in state.data else self.start(state.base).data

    def _extend(self, race: Race, done: Sequence[Mapping[str, Any]], taken: list[tuple[int, int]]) -> list[str]:
        """One more prompt from everybody whose last ones were run; why proposals were refused. What those took who
        wrote them goes to `taken`."""
        history, refused, rules = race.history(done), list[str](), self._rules(done)
        numbers = [arm for arm, one in enumerate(race.arms) if one.asked]  # of those in the history
        for name, writer in self.writers.items():
            if sum(arm.by == name and not arm.asked for arm in race.arms) >= STOCK:
                continue
            try:
                given = writer.propose(history)
                if given is None:
                    continue
                taken.append(given.tokens if isinstance(given, Draft) else (0, 0))
                prompt, draft = prompt_of_draft(given, name, history, rules)
                if prompt.version in {arm.prompt.version for arm in race.arms}:
                    raise BadInput(
                        name, why="proposes what was tried" if draft.parents or not draft.note else draft.note
                    )
            except HoldfastError as error:  # also of an endpoint that does not answer: the others go on
                refused.append(f"{name}: {error.why}")
                continue
            parents = tuple(numbers[at] for at in draft.parents)
            race.arms.append(Arm(prompt=prompt, by=name, parents=parents, note=draft.note, quotes=draft.quotes))
        return refused

    def _rules(self, done: Sequence[Mapping[str, Any]]) -> PromptRules:
        """From the tasks that were run, and from the held-out ones, which nobody may quote."""
        answers: dict[str, int | None] = {one["expected"]: one["place"] for one in done if one["expected"]}
        answers |= {answer: None for one in self.held_out if (answer := _expected(one))}
        tasks: dict[str, int | None] = {task_texts(one["task"])[0]: one["place"] for one in done}
        tasks |= {task_texts(one)[0]: None for one in self.held_out}
        return PromptRules(forbidden=self.forbidden, answers=answers, tasks=tasks, allowed=self.allowed)


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
    inputs = {experience.rollout: _asked(experience.input) for experience in experiences}
    standards = Standards(needs_logprobs=False, needs_score=False)
    report = audit(experiences, inputs=inputs, held_out=[_asked(one) for one in held_out], standards=standards)
    quality = [encode(finding) for finding in report.findings if finding.name in LOOKED_AT]
    return {"iteration": state.iteration, "rollouts": len(experiences), "quality": quality}


def _asked(stored: Any) -> Any:
    """What an agent is asked: what is expected is the scorer's alone."""
    task = task_of(stored)
    given = task.input if isinstance(task, TaskItem) else task
    return {name: value for name, value in given.items() if name != "expected"} if isinstance(given, Mapping) else given


def _expected(stored: Any) -> str | None:
    task = task_of(stored)
    held = task.get("expected") if isinstance(task, Mapping) else None
    found = task.expected if isinstance(task, TaskItem) else held
    return str(found) if isinstance(found, str | int | float) and not isinstance(found, bool) else None


def _tokens(one: Experience) -> tuple[int, int]:
    """Read and written."""
    read = sum(call.prompt_tokens or len(call.prompt_ids or ()) for call in one.calls)
    return read, sum(call.completion_tokens or len(call.completion_ids or ()) for call in one.calls)


def _attempt(one: Experience) -> dict[str, Any]:
    signals = () if one.breakdown is None else one.breakdown.signals
    return {
        "task": _asked(one.input),
        "expected": _expected(one.input),
        "answer": one.calls[-1].response.get("content") if one.calls else None,
        "reward": one.reward,
        "feedback": "; ".join(signal.feedback for signal in signals if signal.feedback),
        "tools": _has_tools(one) if one.calls else None,
    }


def _has_tools(one: Experience) -> bool:
    """Whether tools were offered or used in any way that a recorded call shows, also as text in the messages."""
    return any(span.kind is SpanKind.TOOL for span in one.spans) or any(
        call.sampling.get("tools") or call.response.get("tool_calls") or "tool" in str(call.messages).lower()
        for call in one.calls
    )


# The race ------------------------------------------------------------------------------------------------------------


class Race:
    """What is known of all prompts, and who runs next. Number 0 is the prompt in force."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        self.arms, self.block = list(arms), BLOCK

    def mean(self, arm: int) -> float | None:
        return mean_of(self.arms[arm].rewards)

    def differences(self, arm: int, other: int, places: Collection[int] | None = None) -> list[float]:
        """Of one prompt over another, on every task that both have done."""
        return _paired(self.arms[arm].values, self.arms[other].values, places)

    def gain(self, arm: int, other: int, prior: float = 0.0) -> tuple[float, float]:
        """Of one prompt over another: the mean and the standard deviation of what is believed, drawn towards the
        prior as long as little was seen."""
        return posterior(self.differences(arm, other), prior)

    def best(self) -> tuple[int, float]:
        """Whose gain over the prompt in force is believed to be the highest, and that gain; 0 where none gains."""
        gains = {arm: self.gain(arm, 0)[0] for arm, one in enumerate(self.arms) if arm and one.out is None}
        found = max(gains, key=lambda arm: (gains[arm], -arm), default=0)
        return (found, gains[found]) if found and gains[found] > 0.0 else (0, 0.0)

    def pareto(self) -> list[int]:
        """The prompts that no other beats in reward, tokens and seconds together, each as its difference to the prompt
        in force on the tasks that both have done. What was hardly tried is not among them."""
        known = {arm: self._objectives(arm) for arm, one in enumerate(self.arms) if one.out is None and one.rewards}
        tried = {arm for arm in known if len(self.arms[arm].rewards) >= min(BLOCK, len(self.arms[0].rewards))}
        return [
            arm
            for arm in sorted(tried)
            if not any(known[other] != known[arm] and _is_beaten(known[arm], known[other]) for other in tried)
        ]

    def _objectives(self, arm: int) -> tuple[float, ...]:
        """Reward, tokens and seconds; more is better in each."""
        return tuple(
            sign * fsum(d) / len(d)
            if (d := _paired(getattr(self.arms[arm], name), getattr(self.arms[0], name)))
            else 0.0
            for name, sign in (("rewards", 1.0), ("tokens", -1.0), ("seconds", -1.0))
        )

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
        given = sum(arm.by in GIVEN for arm in self.arms)
        self.block = max(1, min(BLOCK, budget // (4 * (given + 1))))
        final = self._final(tasks)
        reserved = min(int(CONFIRMED * budget), len(final) * (FINALISTS + 1))
        # While none gains there is nothing to refine: what would be left over goes to new ones.
        is_open = self.best()[0] == 0 or budget - left < EXPLORED * (budget - reserved)
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
        for attempt in attempts:
            shown = {name: value for name, value in attempt.items() if name not in ("arm", "expected")}
            by_arm.setdefault(attempt["arm"], []).append(shown)
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
        """The figures of every prompt; of very many, of those that gain most."""
        rows: list[dict[str, Any]] = [
            {
                "version": one.prompt.version,
                "by": one.by,
                "parents": list(one.parents),
                "note": one.note[:MOST_NOTE],
                "rollouts": len(one.asked),
                "reward": self.mean(arm),
                "gain": self.gain(arm, 0)[0] if one.values else None,
                "tokens": mean_of(one.tokens),
                "seconds": mean_of(one.seconds),
                "is_best": arm == best,
                "dropped": one.out,
            }
            for arm, one in enumerate(self.arms)
        ]
        return rows if len(rows) <= MOST_ROWS else sorted(rows, key=lambda row: -(row["gain"] or 0.0))[:MOST_ROWS]

    def summary(self, best: int) -> dict[str, Any]:
        """How far the search has come, for status.json."""
        tried = [arm for arm, one in enumerate(self.arms) if one.asked]
        wins = sorted(front(self.history(())).items(), key=lambda one: -one[1])[:MOST_FRONT]
        return {
            "candidates": len(self.arms) - 1,
            "dropped": sum(arm.out is not None for arm in self.arms),
            "front": {self.arms[tried[at]].prompt.version: n for at, n in wins if at < len(tried)},
            "pareto": [self.arms[arm].prompt.version for arm in self.pareto()][:MOST_FRONT],
            "best": self.arms[best].prompt.version if best else None,
        }

    def fate(self, arm: int, best: int, fresh: Collection[int] = ()) -> str:
        """Why a prompt was dropped, or that it was not, in one sentence; `fresh` are the places kept for winners."""
        one = self.arms[arm]
        d, last = self.differences(arm, 0), self.differences(arm, 0, fresh)
        if arm == 0:
            return "in force" if best else "in force, and it stays: nothing did better"
        if arm == best:
            return "the best of the search, for the proof to decide"
        if one.out is not None:
            return one.out
        if not d:
            return "not run: the rollouts went to more promising ones" if not one.asked else "nothing was measured"
        gain = fsum(d) / len(d)
        if last:
            shown = f"{fsum(last) / len(last):+.2f} on {len(last)} tasks kept for the winners"
            ahead = fsum(self.differences(best, arm, fresh)) if best else 0.0
            if not best:
                return f"{shown}: no gain"
            return f"{shown}, where number {best} {'did better' if ahead > 0 else 'did as well and is preferred'}"
        message = f"{gain:+.2f} against the prompt in force on {len(d)} tasks"
        return message if gain <= 0.0 else f"{message}, behind the winners of the search"


def _paired(one: Mapping[int, float], two: Mapping[int, float], places: Collection[int] | None = None) -> list[float]:
    return [one[at] - two[at] for at in one if at in two and (places is None or at in places)]


def _is_beaten(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(mine <= theirs for mine, theirs in zip(one, other, strict=True))


def mean_of(cells: Mapping[int, float]) -> float | None:
    return fsum(cells.values()) / len(cells) if cells else None


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
