"""The search for a prompt in a run: from settings to the algorithm, who answers it, and what is told of it afterwards.

The search itself is `learn.prompt_search`'s, the proof the same as everybody's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from holdfast.contracts.agent import load_named
from holdfast.contracts.engine import Complete, Engine
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Evidence
from holdfast.contracts.lines import say
from holdfast.contracts.policy import Policy
from holdfast.contracts.records import loads
from holdfast.contracts.run import RunRecord, RunState, StepRecord
from holdfast.contracts.settings import PromptSearchBlock
from holdfast.contracts.spending import SpendLimit, limited_by
from holdfast.contracts.task import task_texts
from holdfast.learn.prompt_search import Arm, PromptSearch, Race, arms_in, mean_of
from holdfast.learn.proposers import Demonstrations, Edits, Merge, Proposer, Reflection, Regression
from holdfast.pipeline.run import NO_SUCCESS, DurableRun
from holdfast.policies.prompt import LOCAL, Prompt
from holdfast.store.store import Store

SPENDING = "spending"  # the kind of the ledger's entries: what a run may have spent by now
PROOF_SHARE = 2 / 3  # of a budget of rollouts that may be kept for the proof
Connect = Callable[[str, str | None], Complete]  # the model at an address; None: the usual one


# Who answers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """What a chat model wrote, with the tokens that it took: read, written."""

    text: str
    tokens: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TextModel:
    """A model that answers one text, for whoever is no coroutine: steps that learn run in a thread."""

    complete: Complete

    def __call__(self, text: str) -> Reply:
        call = asyncio.run(_asked(self.complete, text))
        return Reply(str(call.response.get("content") or ""), (call.prompt_tokens or 0, call.completion_tokens or 0))


async def _asked(complete: Complete, text: str) -> Any:
    return await complete([{"role": "user", "content": text}])


def connected(algorithm: Any, connect: Connect) -> Any:
    """Connects every reflection to its model; a bad address is found here."""
    if not isinstance(algorithm, PromptSearch) or algorithm.proposers is None:
        return algorithm
    made = [
        replace(proposer, ask=TextModel(connect(proposer.model, proposer.base_url)), model=None)
        if isinstance(proposer, Reflection) and proposer.model is not None
        else proposer
        for proposer in algorithm.proposers
    ]
    return replace(algorithm, proposers=made)


def limit_of(run: DurableRun, algorithm: Any, iterations: int) -> SpendLimit | None:
    """What a run's calls may take by its budget in tokens or money; a run that is taken up goes on from what it may
    have spent. Calls that others make for us are only counted afterwards, which is said."""
    limits = {name: getattr(algorithm, name, None) for name in ("tokens", "money")}
    kept = {name: limit * iterations for name, limit in limits.items() if limit is not None}
    if not kept:
        return None
    if not run.spec.runtime.is_metered:
        say("budget: calls by a capture proxy or worker processes are counted after a round, and may pass it by one")
        return None
    known = [entry.body for entry in run.store.ledger.entries(run=run.id) if entry.kind == SPENDING]

    def note(spent: Mapping[str, float]) -> None:
        run.store.ledger.append(SPENDING, dict(spent), who=run.who, now=run.clock(), run=run.id).result()

    return SpendLimit(kept, algorithm.prices, spent=known[-1] if known else None, note=note)


def limited(algorithm: Any, limit: SpendLimit) -> Any:
    """Holds the calls of the algorithm's reflections to the limit, too."""
    made = [
        replace(proposer, ask=TextModel(limited_by(limit, proposer.ask.complete)))
        if isinstance(proposer, Reflection) and isinstance(proposer.ask, TextModel)
        else proposer
        for proposer in algorithm.proposers or ()
    ]
    return replace(algorithm, proposers=made) if made else algorithm


def local_engine(connect: Callable[[str], Complete | None], *, slots: int, seed: int, deterministic: bool) -> Engine:
    """Models of this machine answer for prompts that name one, others at their address."""
    from holdfast.policies.engine import LocalEngine
    from holdfast.policies.model import Model

    def endpoint(model: str) -> Complete | None:
        if model.startswith(LOCAL):
            return cast(Complete, engine.open_model(Model(model.removeprefix(LOCAL))))
        return connect(model)

    engine = LocalEngine(slots=slots, seed=seed, deterministic=deterministic, endpoint=endpoint)
    return engine


# From settings -------------------------------------------------------------------------------------------------------


def search_from(
    block: PromptSearchBlock,
    base: Prompt,
    *,
    held_out: Sequence[Any],
    seed: int,
    iterations: int,
    is_timed: bool = True,
) -> PromptSearch:
    """The algorithm that a block of settings asks for, on this prompt; reflections are not connected yet."""
    if not any(isinstance(text, str) for text in base.texts.values()):
        remedy = "give the prompt to begin with: [resources] system_prompt = 'You are helpful.' (TOML), or as JSON"
        raise BadInput("resources", why="has no text, so there is no prompt to improve", remedy=remedy)
    algorithm = PromptSearch(
        proposers=_proposers(block, seed),
        prompts=block.candidates,
        token_price=block.token_price,
        second_price=block.second_price,
        is_timed=is_timed,
        forbidden=block.forbidden,
        allowed=block.allowed,
        seed=seed,
        held_out=held_out,
    )
    algorithm.arms(base)  # candidates that do not fit are found here
    return paid_by(algorithm, block.tokens, block.money, block.prices, iterations)


def paid_by(
    algorithm: PromptSearch,
    tokens: int | None,
    money: float | None,
    prices: tuple[float, float] | None,
    iterations: int,
) -> PromptSearch:
    """Gives the search a budget of tokens or money; each iteration gets its share."""
    return replace(
        algorithm,
        tokens=None if tokens is None else tokens // iterations,
        money=None if money is None else money / iterations,
        prices=prices,
    )


def _proposers(block: PromptSearchBlock, seed: int) -> list[Proposer] | None:
    """Makes the named proposers; without names those by rule, and reflection if a model is named for it."""
    own: dict[str, Callable[[], Proposer]] = {
        "edits": lambda: Edits(phrases=block.phrases, seed=seed),
        "merge": lambda: Merge(seed=seed),
        "regression": lambda: Regression(phrases=block.phrases, seed=seed),
        "demonstrations": lambda: Demonstrations(seed=seed),
    }
    names = list(block.proposers) if block.proposers is not None else ["edits", "merge", "regression"]
    if block.proposers == () and not block.candidates and block.reflection is None:
        raise BadInput("prompt_search.proposers", why="is empty, and there are no candidates", remedy="leave it out")
    made = [own[name]() if name in own else _own(name, own) for name in names if name != "reflection"]
    if "reflection" in names and block.reflection is None:
        remedy = 'name it: "reflection": {"model": "…"}'
        raise BadInput("prompt_search.proposers", why="names reflection, which has no model", remedy=remedy)
    if block.reflection is not None:
        made.append(Reflection(model=block.reflection.model, base_url=block.reflection.base_url, seed=seed))
    return made


def _own(reference: str, known: Mapping[str, Any]) -> Proposer:
    """A proposer of the user's: an object, or a class that needs nothing."""
    if ":" not in reference:
        remedy = f"use {', '.join((*known, 'reflection'))}, or FILE.py:CLASS"
        raise BadInput(f"prompt_search.proposers: {reference}", why="is unknown", remedy=remedy)
    found = load_named(reference, "proposer")
    made = found() if isinstance(found, type) else found
    if not callable(getattr(made, "propose", None)):
        remedy = "give a class with propose(history)"
        raise BadInput(f"prompt_search.proposers: {reference}", why="has no propose(history)", remedy=remedy)
    return cast(Proposer, made)


def proof_part(rollouts: int, tasks: int, seeds: int) -> int:
    """Rollouts of a budget that are kept for the proof: two thirds of them at most, and whole tasks."""
    each = 2 * seeds
    kept = min(each * tasks, int(rollouts * PROOF_SHARE)) // each * each
    if kept < 2 * each:
        raise too_small(rollouts, f"a proof alone takes {each} for each held-out task")
    return kept


def searching(algorithm: PromptSearch, base: Policy, rollouts: int, learning: int) -> PromptSearch:
    """Fits the search into its part of a budget of rollouts."""
    if learning < algorithm.least(base):
        raise too_small(rollouts, f"{learning} are left for a race that takes {algorithm.least(base)}")
    return algorithm if algorithm.rollouts is not None else algorithm.within(learning)


def too_small(rollouts: int, why: str) -> BadInput:
    return BadInput(f"budget: rollouts = {rollouts}", why=why, remedy="give more, or fewer seeds or candidates")


# What is told of it --------------------------------------------------------------------------------------------------


def searches(store: Store, run: str) -> list[dict[str, Any]]:
    """Every search of a run, one for each iteration, as plain data for reports, pages and commands:

    {"run", "iteration", "round", "is_over", "spent", "budget",
     "prompts": [{"number", "version", "texts", "by", "parents", "note", "rollouts", "score", "gain", "tokens",
                  "seconds", "why", "is_best", "on_front", "cells": {place: reward}}],
     "gains": [of the best so far, by round], "refused": [sentence], "tasks": {place: what was asked},
     "optimized": {name: text}|None,
     "held_out": {"release", "is_accepted", "difference", "corrected", "interval", "p_value", "tasks", "reasons"}|None,
     "nothing": why there was nothing to prove|None, "stopped": how and why the run ended before it was decided|None}"""
    steps = store.steps.of_run(run)
    by_iteration: dict[int, StepRecord] = {}
    for step in steps:
        if "prompt_search" in step.body:
            by_iteration[int(step.body["state"]["iteration"])] = step
    decided = {int(step.body["iteration"]): step.body for step in steps if step.name.endswith("/decide")}
    gains: dict[int, list[float]] = {}
    for step in steps:
        if "prompt_search" in step.body:
            gains.setdefault(int(step.body["state"]["iteration"]), []).append(float(step.body.get("gain") or 0.0))
    return [
        {**_search(store, store.runs.get(run), n, step.body, decided.get(n)), "gains": gains[n]}
        for n, step in sorted(by_iteration.items())
    ]


def _search(
    store: Store, run: RunRecord, iteration: int, body: Mapping[str, Any], decided: Mapping[str, Any] | None
) -> dict[str, Any]:
    data = body["state"]["data"]
    race = Race(arms_in(data))
    versions = [arm.prompt.version for arm in race.arms]
    best = versions.index(body["prompt_search"]["best"]) if body["prompt_search"]["best"] else 0
    fresh = data["fresh"] if data["is_over"] else ()
    attempts = [one for blob in data["attempts"] for one in json.loads(store.blobs.get(blob))]
    is_over = data["is_over"] or decided is not None
    stopped = _stopped(run, is_decided=decided is not None)
    prompts = [_prompt(race, number, best, fresh) for number in range(len(race.arms))]
    if stopped is not None or not is_over:
        prompts[0]["why"] = "in force"  # whether it stays is not known
    return {
        "run": run.id,
        "iteration": iteration,
        **{name: body["prompt_search"][name] for name in ("round", "spent", "budget")},
        "is_over": is_over,
        "prompts": prompts,
        "refused": list(data["refused"]),
        "tasks": {str(attempt["place"]): task_texts(attempt["task"])[0] for attempt in attempts},
        "optimized": dict(race.arms[best].prompt.texts) if best else None,
        "held_out": None if decided is None or "decision" not in decided else _held_out(store, decided),
        "nothing": None if decided is None else decided.get("why"),
        "stopped": stopped,
    }


def _stopped(run: RunRecord, *, is_decided: bool) -> str | None:
    """Says how and why a run ended without a decision; one without any success has decided nothing."""
    is_told = is_decided and not (run.error or "").startswith(NO_SUCCESS)
    if is_told or run.state in (RunState.RUNNING, RunState.COMPLETED):
        return None
    why = f": {run.error}" if run.error else ""
    return f"{'was ' if run.state is RunState.CANCELLED else ''}{run.state.replace('_', ' ')}{why}"


def _prompt(race: Race, number: int, best: int, fresh: Sequence[int]) -> dict[str, Any]:
    arm: Arm = race.arms[number]
    return {
        "number": number,
        "version": arm.prompt.version,
        "texts": dict(arm.prompt.texts),
        "by": arm.by,
        "parents": list(arm.parents),
        "note": arm.note,
        "rollouts": len(arm.asked),
        "score": race.mean(number),
        "gain": race.gain(number, 0)[0] if number and arm.values else None,
        "tokens": mean_of(arm.tokens),
        "seconds": mean_of(arm.seconds),
        "on_front": number in race.pareto(),
        "why": race.fate(number, best, fresh),
        "is_best": number == best and best > 0,
        "cells": {str(place): value for place, value in sorted(arm.rewards.items())},
    }


def _held_out(store: Store, decided: Mapping[str, Any]) -> dict[str, Any]:
    evidence = loads(Evidence, store.blobs.get(str(decided["evidence"])))
    metric = evidence.comparisons.get(evidence.primary)
    payload: dict[str, Any] = {"release": decided["release"], "is_accepted": bool(decided["decision"]["open"])}
    payload["reasons"] = [one["text"] for one in decided["decision"]["reasons"]]
    if metric is not None:
        payload |= {name: getattr(metric, name) for name in ("metric", "difference", "corrected", "p_value")}
        payload |= {"interval": [metric.interval.low, metric.interval.high], "tasks": metric.pairs}
    return payload
