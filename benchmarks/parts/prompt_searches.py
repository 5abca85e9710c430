"""Searches for prompts by ours, by peers and by chance, each as a generator that asks for outcomes.

Ours is the algorithm of `hf.improve` with its proof, divided as `hf.improve` divides a budget; the store is left out.
All take their sentences from the same bank by the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from holdfast.contracts.algorithm import Batch, Work
from holdfast.contracts.evidence import Episode, Finding
from holdfast.contracts.experience import Experience
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.task import TaskItem
from holdfast.learn.prompt_search import PromptSearch
from holdfast.learn.proposers import Edits, Merge, Proposer, Regression, Tried
from holdfast.pipeline.held_out import HeldOut, batches, mixed
from holdfast.pipeline.promote import evidence_from
from holdfast.pipeline.prompts import proof_part
from holdfast.pipeline.prove import ARMS, InterimAnalysis, ProveConfig, is_enough, judged
from holdfast.policies.prompt import Prompt
from holdfast.promote.gate import WAIVED, Criteria, decide, needs_drawn
from holdfast.prove.comparison import ComparisonConfig, compare_versions
from parts.peer import Peer
from parts.prompt_problems import BANK, BASE, TRAIN, Cell, Problem, Search

ALPHA, LOOK = 0.05, 10  # of the proof; tasks between two looks, as `[improve.prove] batch = 10` has it
VAL = 30  # tasks on which GEPA, MIPROv2 and chance measure a prompt; GEPA reflects on the other train tasks
MOST_EDITS = 8  # of a prompt that is drawn without looking at results


@dataclass(frozen=True)
class Found:
    """What a search would have returned after how many rollouts, its proof included."""

    path: tuple[tuple[int, str], ...]
    used: int
    searched: int = 0  # of ours: without the proof
    candidate: str = BASE  # of ours: what the search found, proved or not
    is_promoted: bool = False

    @property
    def prompt(self) -> str:
        return self.path[-1][1] if self.path else BASE

    def at(self, rollouts: int) -> str:
        return next((prompt for count, prompt in reversed(self.path) if count <= rollouts), BASE)


def rules(seed: int) -> list[Proposer]:
    return [Edits(phrases=BANK, seed=seed), Merge(seed=seed), Regression(phrases=BANK, seed=seed)]


# Ours ----------------------------------------------------------------------------------------------------------------


@dataclass
class Told:
    """What the algorithm reads of a batch: blobs stay in memory."""

    run: str = "bench"
    work: Sequence[Work] = ()
    values: Sequence[float] = ()
    blobs: list[Any] = field(default_factory=list)

    def experiences(self, batch: Batch) -> list[Experience]:
        return [_experience(one, value) for one, value in zip(self.work, self.values, strict=True)]

    def save(self, value: Any) -> str:
        self.blobs.append(value)
        return str(len(self.blobs) - 1)

    def read(self, blob: str) -> Any:
        return self.blobs[int(blob)]


def _experience(work: Work, value: float) -> Experience:
    term = RewardTerm(name="success", value=value, source="rule:bench")
    return Experience(
        rollout=f"bench/{work.name}",
        run="bench",
        task=work.group or work.name,
        split=Split.TRAIN,
        is_final=True,
        state=RolloutState.SUCCEEDED,
        spans=(),
        breakdown=RewardBreakdown(signals=(term,)),
        input=work.input,
    )


def ours(problem: Problem, seed: int, budget: int) -> Search:
    held_out = [HeldOut(id=f"h{at}", input=one.prompt) for at, one in enumerate(problem.tasks["held_out"])]
    kept = proof_part(budget, len(held_out), 1)
    algorithm: Any = PromptSearch(rollouts=budget - kept, seed=seed, proposers=rules(seed))
    rows = [TaskItem(id=f"t{at}", input=f"task {at}").row() for at in range(TRAIN)]
    state, told, used = algorithm.start(Prompt(system=BASE, model="sprout")), Told(), 0
    while work := algorithm.ask(state, rows):
        cells = [(_text(one.policy), "train", int(one.input["input"].split()[1])) for one in work]
        told.values = yield cells
        told.work = work
        used += len(work)
        state = algorithm.tell(state, Batch(run="bench", step=str(state.step), count=len(work)), told)
    if state.candidate is None:
        return Found((), used, used)
    candidate = _text(state.candidate)
    proved, is_open = yield from proof(candidate, held_out[: kept // 2], seed)
    return Found(((used + proved, candidate),) if is_open else (), used + proved, used, candidate, is_open)


def _text(policy: Any) -> str:
    return str(policy.texts["system"])


def proof(candidate: str, tasks: Sequence[HeldOut], seed: int) -> Any:
    """Look after look as `hf.improve` takes them, then the gate; the rollouts of both versions, and whether it opened.
    Greedy decoding has one outcome: one seed. Safety is waived: no problem has any, and no peer looks at it."""
    criteria = Criteria(max_p_value=ALPHA, max_safety_regression=None, require_audit=False)
    how = ComparisonConfig(alpha=ALPHA, max_safety_regression=None)
    config = ProveConfig(how=how, least=criteria.least, batch=LOOK, seeds=(0,))
    sides: tuple[list[Episode], list[Episode]] = ([], [])
    for part in batches(mixed(tasks, seed=str(seed)), config.batch):
        cells: list[Cell] = [(text, "held_out", int(one.id[1:])) for text in (BASE, candidate) for one in part]
        values = yield cells
        for at, one in enumerate(part):
            for side, value in zip(sides, (values[at], values[len(part) + at]), strict=True):
                side.append(Episode(task=one.id, seed=0, reward=value, success=value, safety_cost=0.0, unit=one.unit))
        about: dict[str, Any] = {"number": 1, "iteration": 0, "planned": len(sides[0]), "missing": {}, "episodes": ""}
        if is_enough(InterimAnalysis(**about, **judged(*sides, config)), config):
            break
    rng = np.random.default_rng(config.how.resample_seed)
    found = compare_versions(*sides, config.how, versions=ARMS, rng=rng, drawn=needs_drawn(criteria))
    evidence = replace(
        evidence_from(found, config.how, policy="bench", suite="bench", versions=ARMS),
        missing={"planned": len(sides[0]), **dict.fromkeys(ARMS, 0)},
        audit=(Finding(name="no_secrets", severity="critical", count=0, of=1),),
        manifest={WAIVED: "no problem has any"},
        samples=64 * "0",
    )
    return 2 * len(sides[0]), decide(evidence, criteria).open


# By chance, and peers ------------------------------------------------------------------------------------------------


def order(seed: int) -> list[int]:
    places = list(range(TRAIN))
    Random(f"{seed}/tasks").shuffle(places)
    return places


def drawn(seed: int, number: int) -> str:
    """A prompt by several edits of the first one, none of which looks at results."""
    chance, texts = Random(f"{seed}/drawn/{number}"), [BASE]
    for step in range(chance.randint(1, MOST_EDITS)):
        texts.append(edited(texts, texts[-1], seed * 100_003 + number * 101 + step))
    return texts[-1]


def edited(texts: Sequence[str], parent: str, seed: int) -> str:
    """One edit of this parent that is none of the texts."""
    tried = [Tried(prompt=Prompt(system=text), is_best=text == parent) for text in texts]
    found = Edits(phrases=BANK, seed=seed).propose(tried)
    return parent if found is None else _text(found.prompt)


def by_chance(problem: Problem, seed: int, budget: int) -> Search:
    """The best of random prompts, each measured on the same tasks."""
    places, best, path = order(seed)[TRAIN - VAL :], -1.0, list[tuple[int, str]]()
    for number in range(budget // VAL):
        text = drawn(seed, number) if number else BASE
        values = yield [(text, "train", place) for place in places]
        if sum(values) > best:
            best = sum(values)
            path.append((VAL * (number + 1), text))
    return Found(tuple(path), VAL * (budget // VAL))


@dataclass
class Rules:
    """The proposers of ours for a peer: every second proposal edits the parent that the peer chose, the others come
    from what all its evaluations tell."""

    seed: int
    is_informed: bool  # False: edits of the parent alone
    scores: dict[str, dict[int, float]] = field(default_factory=dict)

    def propose(self, parent: str) -> str:
        texts, number = list(self.scores), len(self.scores)
        if self.is_informed and number > 2:
            tried = [
                Tried(prompt=Prompt(system=text), scores=scores, is_best=text == parent)
                for text, scores in self.scores.items()
            ]
            writer = rules(self.seed)[Random(f"{self.seed}/who/{number}").randrange(3)]
            if (found := writer.propose(tried)) is not None:
                draft: Any = found
                return _text(draft.prompt)
        return edited(texts, parent, self.seed)


def by_peer(
    pool: list[Peer], problem: Problem, seed: int, budget: int, *, is_informed: bool = False, is_blind: bool = False
) -> Search:
    """`is_blind`: proposals are drawn before anything is measured, as MIPROv2 has it."""
    peer, writer, count, places, asked = pool.pop(), Rules(seed, is_informed), 0, order(seed), 0
    job = {"base": BASE, "train": places[: TRAIN - VAL], "val": places[TRAIN - VAL :], "rollouts": budget, "seed": seed}
    said: Mapping[str, Any] = peer.say(job)
    while "done" not in said:
        if "propose" in said:
            asked += 1
            said = peer.say(drawn(seed, asked) if is_blind else writer.propose(said["propose"]["parent"]))
            continue
        text, tasks = said["evaluate"]["prompt"], said["evaluate"]["tasks"]
        values = yield [(text, "train", place) for place in tasks]
        writer.scores.setdefault(text, {}).update(zip(tasks, values, strict=True))
        count += len(tasks)
        said = peer.say(values)
    pool.append(peer)
    path = tuple((rollouts, prompt) for rollouts, prompt in said["done"] if rollouts <= budget)
    return Found(path, count)
