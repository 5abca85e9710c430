"""A better prompt for the embedded model at using tools: search on validation tasks, proof on test tasks.

The model answers as well as its instructions let it. It begins with a prompt that says nothing of tools; sentences that
help are to be found among others. Wordings of the train split are left out: there all prompts do well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.collect.agent import OwnScore
from holdfast.contracts.release import Stage
from holdfast.learn.prompt_search import PromptSearch
from holdfast.learn.proposers import PHRASES, Edits, Merge, Proposer, Regression
from holdfast.pipeline.improve import improve
from holdfast.pipeline.prompts import local_engine
from holdfast.pipeline.run import DurableRun, RunSpec
from holdfast.policies.prompt import Prompt
from holdfast.workloads.tooluse.quickstart import MAX_TURNS, learning_spec, training_spec
from holdfast.workloads.tooluse.score import scorer
from holdfast.workloads.tooluse.tasks import Dials, generate, to_input

KIND = "quickstart-prompts"
BEGIN = "You are a helpful assistant."
BANK = (*PHRASES, "Use no tools.", "If unsure: unknown.", "Be polite.")
FAMILIES = ("calendar", "calendar", "two", "two", "flaky", "missing", "lookup")  # where instructions matter
SAMPLING = {"temperature": 0.0, "max_tokens": 80}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptQuickstart:
    """The settings of `quickstart --prompts`."""

    model: str = "sprout"
    system: str = BEGIN
    seed: int = 0
    rollouts: int = 480  # of the search
    search_tasks: int = 120
    test_tasks: int = 240
    batch: int = 60  # test tasks between two looks
    workers: int = 64


QUICK = PromptQuickstart(rollouts=60, search_tasks=24, test_tasks=20, batch=20)


def spec_for(settings: PromptQuickstart) -> RunSpec:
    """Models that answer within this process, many attempts at once."""
    engine = local_engine(lambda model: None, slots=settings.workers, seed=settings.seed, deterministic=False)
    return training_spec(KIND, settings, OwnScore(scorer), partial(quickstart_prompts, settings), engine)


async def quickstart_prompts(settings: PromptQuickstart, run: DurableRun) -> None:
    """Searches, proves on held-out tasks and promotes."""
    tests = _given("test", settings.seed, settings.test_tasks)
    run.planned = settings.rollouts + 2 * settings.test_tasks
    search = PromptSearch(
        proposers=_proposers(settings.seed),
        rollouts=settings.rollouts,
        allowed=("unknown",),
        seed=settings.seed,
        held_out=tests,
    )
    policy, tasks = (
        Prompt(system=settings.system, model=f"local/{settings.model}"),
        _given("val", settings.seed, settings.search_tasks),
    )
    await improve(run, learning_spec(run.id, policy, search, tasks, tests, batch=settings.batch, stage=Stage.LIVE))


def _proposers(seed: int) -> list[Proposer]:
    return [Edits(phrases=BANK, seed=seed), Merge(seed=seed), Regression(phrases=BANK, seed=seed)]


def _given(split: str, seed: int, count: int) -> list[dict[str, Any]]:
    tasks = generate(split, seed, count, Dials(families=FAMILIES))
    return [{**to_input(task), "sampling": SAMPLING, "max_turns": MAX_TURNS} for task in tasks]
