"""From settings to a plan: which tasks, which agent, which model, at which pace. What can be wrong is found here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.collect.agent import Agent, load_agent
from holdfast.collect.client import Client
from holdfast.collect.plan import Plan
from holdfast.collect.pool import Pace
from holdfast.collect.processes import ProcessPlace, Recipe
from holdfast.collect.seats import Home, Seat
from holdfast.contracts.errors import BadInput
from holdfast.contracts.policy import Complete
from holdfast.contracts.rollout import Backoff, Split, Task
from holdfast.contracts.settings import OptimizeSettings
from holdfast.workloads import questions

OPENAI = "https://api.openai.com/v1"
ASK_THE_MODEL = "holdfast.workloads.questions:answer"


def plan_for(settings: OptimizeSettings) -> Plan:
    """A plan that only needs a store to run."""
    reference = settings.agent or ASK_THE_MODEL
    connect = _connect(settings)
    if settings.agent is None and settings.model is None:
        raise BadInput("these settings", why="name neither an agent nor a model", remedy="give --agent or --model")
    for split, items in (("optimize", settings.train), ("validate", settings.val)):
        for place, item in enumerate(items):
            questions.check(item, f"{split}[{place}]", is_asked=settings.agent is None)
    agent = load_agent(reference)
    connect()  # an address that cannot be used is found here, not by a worker
    seats, close = _places(settings, reference, agent, connect)
    return Plan(
        tasks=_tasks(settings),
        resources=settings.resources,
        model_ref=settings.model or f"agent/{settings.agent}",
        settings=settings.record(),
        seats=seats,
        close=close,
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
    if provider == "local":
        raise BadInput(
            f"--model {settings.model}",
            why="this version has no local models",
            remedy="give an endpoint with --base-url, and the model's name there",
        )
    base_url = settings.base_url or os.environ.get("OPENAI_BASE_URL")
    if base_url is None:
        if provider != "openai":
            raise BadInput(f"--model {settings.model}", why="no endpoint is known for it", remedy="give --base-url")
        base_url = OPENAI
    # Only "openai/" is a mere prefix: names such as "org/model" belong to their endpoints as they are.
    return partial(
        Client, name if provider == "openai" else settings.model, base_url, api_key=os.environ.get("OPENAI_API_KEY")
    )


def _no_model() -> None:
    return None


def _places(
    settings: OptimizeSettings, reference: str, agent: Agent, connect: Callable[[], Complete | None]
) -> tuple[Callable[[], Seat], Callable[[], None]]:
    """Where the agents run, and how to let go of what they share."""
    if settings.worker_kind == "processes":
        recipe = Recipe(reference, questions.exact_match, connect)
        return (lambda: Seat(ProcessPlace(recipe))), (lambda: None)
    home = Home(agent, questions.exact_match, connect(), time.time)
    return (lambda: Seat(home.place())), home.close
