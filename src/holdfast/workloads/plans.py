"""From settings to a plan: which tasks, which agent, which model, at which pace. What can be wrong is found here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from holdfast.collect.agent import Agent, Score, load_agent
from holdfast.collect.client import Client
from holdfast.collect.plan import Course, Lesson, Plan, Standing, once
from holdfast.collect.pool import Pace
from holdfast.collect.processes import ProcessPlace, Recipe
from holdfast.collect.seats import Home, Seat
from holdfast.contracts.budget import Mode
from holdfast.contracts.errors import BadInput
from holdfast.contracts.features import ALL_ON, Features
from holdfast.contracts.policy import Complete
from holdfast.contracts.rollout import Backoff, Split, Task
from holdfast.contracts.settings import OptimizeSettings
from holdfast.reward.scorers import reward_range, score_from
from holdfast.workloads import questions
from holdfast.workloads.watch import watched

if TYPE_CHECKING:
    from holdfast.workloads.pupil import Pupil

CourseFor = Callable[[Sequence[Task], "Pupil | None"], Course]
LOCAL = "local"
TOOLUSE = "holdfast.workloads.tooluse.agent"
OPENAI = "https://api.openai.com/v1"
ASK_THE_MODEL = "holdfast.workloads.questions:answer"


def plan_for(settings: OptimizeSettings, course_for: CourseFor | None = None, *, features: Features = ALL_ON) -> Plan:
    """A plan that only needs a store to run; another course than the usual one may be made of the same parts."""
    reference = settings.agent or ASK_THE_MODEL
    if settings.agent is None and settings.model is None:
        raise BadInput("these settings", why="name neither an agent nor a model", remedy="give --agent or --model")
    for split, items in (("optimize", settings.train), ("validate", settings.val)):
        for place, item in enumerate(items):
            is_text = settings.scorers is None  # a scorer may expect anything
            questions.check(item, f"{split}[{place}]", is_asked=settings.agent is None, is_text=is_text)
    agent, score = load_agent(reference), watched(_score(reference, features, settings), settings.safety_reward)
    if settings.rl_optimizer is not None and settings.rl_optimizer.enabled:
        _learning()
    pupil = _pupil(settings)
    connect = _connect(settings) if pupil is None else partial(_same, pupil.local)
    connect()  # an address that cannot be used is found here, not by a worker
    tasks = _tasks(settings)
    seats, close = _places(settings, reference, agent, score, connect, settings.thinking_budgets and features.budgets)

    def close_all() -> None:
        close()
        if pupil is not None:
            pupil.close()

    return Plan(
        course=_course(settings, tasks, pupil) if course_for is None else course_for(tasks, pupil),
        resources=settings.resources,
        model_ref=settings.model or f"agent/{settings.agent}",
        settings=settings.record(),
        seats=seats,
        close=close_all,
        workers=settings.worker_count,
        pace=Pace(
            heartbeat_s=settings.heartbeat_interval_ms / 1000,
            lease_s=settings.lease_s,
            backoff=Backoff(initial_s=settings.retry_initial_ms / 1000, cap_s=settings.retry_max_ms / 1000),
        ),
        seed=settings.seed,
        queue_limit=settings.queue_limit,
        timeout_s=settings.completion_timeout_secs,
        look_s=settings.completion_poll_interval_ms / 1000,
    )


def _course(settings: OptimizeSettings, tasks: Sequence[Task], pupil: Pupil | None) -> Course:
    """The rollouts and, where the settings ask for it, what the policy learns from them."""
    block = settings.rl_optimizer
    if block is None or not block.enabled:
        return once(tasks)
    from holdfast.workloads.practice import constraint_of
    from holdfast.workloads.rl import rl_lesson

    def course(standing: Standing) -> Lesson | None:
        if standing.done:
            return None
        held = constraint_of(block.constraint, settings.constraint)
        learn = rl_lesson(block, pupil, standing, seed=settings.seed, constraint=held)
        return Lesson(name="rollouts, then rl_optimizer", tasks=tasks, learn=learn)

    return course


def _pupil(settings: OptimizeSettings) -> Pupil | None:
    """The local model, loaded; None where the model is elsewhere."""
    provider, _, name = (settings.model or "").partition("/")
    if provider != LOCAL:
        return None
    if settings.worker_kind != "tasks":
        raise BadInput(
            f"worker_kind = {settings.worker_kind}",
            why="a local model answers within this process",
            remedy='use "tasks", or serve the model and give --base-url',
        )
    _learning()
    from holdfast.workloads.pupil import Pupil

    # A few more slots than one worker needs: a prompt that begins like an earlier one leaves that one in its slot.
    return Pupil(name, seed=settings.seed, slots=min(settings.worker_count, 256))


def _learning() -> None:
    """What learns and local models need torch, which is an extra: said here, before anything runs."""
    if find_spec("torch") is None or find_spec("safetensors") is None:
        raise BadInput("this run", why="needs PyTorch, which is not installed", remedy="pip install 'holdfast[learn]'")


def _score(reference: str, features: Features, settings: OptimizeSettings | None = None) -> Score:
    """The scorers of the settings, tried on their tasks; without any, the one that lies beside an agent of ours; else
    answers are compared with what was expected."""
    if settings is not None and settings.scorers is not None:

        def connect(model: str, base_url: str | None) -> Callable[[], Complete]:
            try:
                reach = _connect(settings.model_copy(update={"model": model, "base_url": base_url}))
                reach()  # an address that cannot be used is found here
            except BadInput as error:
                raise BadInput(f"scorer: model {model}", why=error.why, remedy="give its base_url") from None
            return cast(Callable[[], Complete], reach)

        return score_from(settings.scorers, (*settings.train, *settings.val), features=features, connect=connect)
    module = reference.partition(":")[0]
    if module == TOOLUSE:
        from holdfast.workloads.tooluse.score import scorer

        return scorer(features)
    return questions.exact_match


def rewards_of(reference: str | None, scorers: Sequence[Mapping[str, Any]] | None = None) -> tuple[float, float]:
    """The least and the most that the scorers give; what an agent pays itself unscored is not known, and neither is
    what scorers without a gate give."""
    if scorers is not None:
        return reward_range(scorers) or (0.0, 1.0)
    if (reference or "").partition(":")[0] == TOOLUSE:
        from holdfast.workloads.tooluse.score import MOST

        return 0.0, MOST
    return 0.0, 1.0


def _tasks(settings: OptimizeSettings) -> list[Task]:
    def task(split: Split, number: int, item: Any) -> Task:
        return Task(
            name=f"{split}-{number}",
            input=item,
            split=split,
            max_attempts=settings.max_attempts,
            timeout_s=settings.attempt_timeout_secs,
        )

    splits = ((Split.TRAIN, settings.train), (Split.VAL, settings.val))
    return [task(split, number, item) for split, items in splits for number, item in enumerate(items, 1)]


def _connect(settings: OptimizeSettings) -> Callable[[], Complete | None]:
    """How to reach the model, in this process or in another one."""
    if settings.model is None:
        return _no_model
    provider, _, name = settings.model.partition("/")
    base_url = settings.base_url or os.environ.get("OPENAI_BASE_URL")
    if base_url is None:
        if provider != "openai":
            raise BadInput(f"--model {settings.model}", why="no endpoint is known for it", remedy="give --base-url")
        base_url = OPENAI
    # Only "openai/" is a mere prefix: names such as "org/model" belong to their endpoints as they are.
    return partial(
        Client,
        name if provider == "openai" else settings.model,
        base_url,
        api_key=os.environ.get("OPENAI_API_KEY"),
        thinking=None if settings.thinking_mode == "auto" else Mode(settings.thinking_mode),
    )


def _no_model() -> None:
    return None


def _same(model: Complete) -> Complete:
    return model


def _places(
    settings: OptimizeSettings,
    reference: str,
    agent: Agent,
    score: Score,
    connect: Callable[[], Complete | None],
    has_budgets: bool,
) -> tuple[Callable[[], Seat], Callable[[], None]]:
    """Where the agents run, and how to let go of what they share."""
    if settings.worker_kind == "processes":
        recipe = Recipe(reference, score, connect, settings.proxy_url, has_budgets)
        return (lambda: Seat(ProcessPlace(recipe))), (lambda: None)
    home = Home(agent, score, connect(), time.time, proxy_url=settings.proxy_url, has_budgets=has_budgets)
    return (lambda: Seat(home.place())), home.close
