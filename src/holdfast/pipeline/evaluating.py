"""Evaluated results become stored rollouts, and an evaluation becomes a reward.

Results of a file are rollouts of a run of their own, scrubbed like everything that comes from outside; their reward is
the evaluation's breakdown. Looking at results is `reward.evaluation`'s business.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.collect.episodes import record
from holdfast.contracts.executor import Outcome
from holdfast.contracts.experience import ScoredRollout
from holdfast.contracts.reward import RewardTerm, is_own
from holdfast.contracts.rollout import AttemptState, Task
from holdfast.contracts.task import asked_of
from holdfast.pipeline.importing import ending
from holdfast.privacy.scrub import Scrub, key_in
from holdfast.reward.evaluation import EVALUATION, SOURCE, Evaluation, TaskResult, as_rollout, result_of, terms_of
from holdfast.reward.rescore import is_right
from holdfast.reward.scorers import task_view
from holdfast.store.store import Store

KIND = "evaluate"
PAID = f"{SOURCE}:paid"  # the source of what is paid for an evaluation
CHUNK = 500  # results that are stored at a time
WAIT_S = 0.05
Clock = Callable[[], float]


def stored_result(one: ScoredRollout) -> TaskResult:
    """What a rollout did, judged by what its hidden check said: no agent is its own check."""
    measured = [term for term in one.signals if not is_own(term)]
    name = one.rollout.partition("/")[2]
    asked = " ".join(str(asked_of(one.input)).split())
    view = task_view(one.input)
    return result_of(view, one.output, name=name, asked=asked, passed=is_right(measured), spans=one.spans)


def keep_results(
    store: Store,
    results: Sequence[tuple[TaskResult, Evaluation]],
    settings: Mapping[str, Any],
    *,
    who: str,
    clock: Clock,
) -> str:
    """Store results with their evaluations as the finished rollouts of a new run; its id."""
    about: dict[str, Any] = {"kind": KIND, "model_ref": KIND, "settings": settings, "salt": secrets.token_hex(2)}
    run, scrub = store.runs.begin(**about, who=who, now=clock()).result(), Scrub(key_in(store.folder))

    async def write() -> None:
        for start in range(0, len(results), CHUNK):
            step = f"{KIND}-{start // CHUNK}"
            made = [_rollout(*one, start + n, step, scrub) for n, one in enumerate(results[start : start + CHUNK])]
            await store.queue.enqueue(run.id, [task for task, _ in made], now=clock())
            outcomes = {task.name: outcome for task, outcome in made}
            await record(store, run.id, step, outcomes, clock=clock, go_on=_go_on, wait_s=WAIT_S)
            await store.runs.beat(run.id, driver=run.driver, now=clock())

    with ending(store, run, who, clock):
        asyncio.run(write())
    return run.id


async def _go_on() -> None:
    """Nobody else drives this run: there is nothing to wait for."""


def _rollout(result: TaskResult, evaluation: Evaluation, place: int, step: str, scrub: Scrub) -> tuple[Task, Outcome]:
    terms = terms_of(evaluation)
    given, output, said = scrub.value([*as_rollout(result), [term.feedback for term in terms]])
    signals = tuple(replace(term, feedback=text) for term, text in zip(terms, said, strict=True))
    kept = {"decision": evaluation.decision, "reasons": scrub.value(list(evaluation.reasons))}
    task = Task(name=f"result-{place + 1:06}", input=given, step=step, max_attempts=1, metadata={KIND: kept})
    return task, Outcome(state=AttemptState.SUCCEEDED, output=output, signals=signals)


def pay(
    store: Store, decided: Iterable[ScoredRollout], scores: Mapping[str, float], weight: float, *, who: str, now: float
) -> tuple[int, int]:
    """Attach the scores to their rollouts as a reward. How many were paid, and how many had been before: what was told
    stands. What failed its hidden check scores 0, so that no evaluation lifts a failure above a success."""
    known = {rollout.rollout for rollout in decided if any(term.source == PAID for term in rollout.signals)}
    paid = [
        store.rewards.attach(
            rollout, RewardTerm(name=EVALUATION, value=score, weight=weight, source=PAID), who=who, now=now
        )
        for rollout, score in scores.items()
        if rollout not in known
    ]
    for future in paid:
        future.result()
    return len(paid), len(known & set(scores))
