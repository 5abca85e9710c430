"""Holdfast: agents that get better, and never slip back.

    import holdfast as hf

    result = hf.improve(agent, hf.tasks("support.jsonl", held_out=0.4), name="support",
                        scorers=[hf.Scorer(correct, gate=True)], policy=hf.Prompt(system="You answer briefly."),
                        algorithm=hf.Candidates(["Answer in one word."]), model="gpt-4o-mini")

Names are loaded when they are first used, so that the import itself costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.api import adapters as adapters
    from holdfast.api.calls import collect as collect
    from holdfast.api.calls import compare as compare
    from holdfast.api.calls import improve as improve
    from holdfast.api.calls import start as start
    from holdfast.api.inputs import Budget as Budget
    from holdfast.api.inputs import Waived as Waived
    from holdfast.api.results import Comparison as Comparison
    from holdfast.api.results import Proof as Proof
    from holdfast.api.results import Result as Result
    from holdfast.api.service import live as live
    from holdfast.api.service import rollback as rollback
    from holdfast.api.stored import Run as Run
    from holdfast.api.stored import Table as Table
    from holdfast.api.stored import import_logs as import_logs
    from holdfast.api.stored import rescore as rescore
    from holdfast.api.stored import runs as runs
    from holdfast.api.teach import dpo as dpo
    from holdfast.api.teach import reward_model as reward_model
    from holdfast.api.teach import sft as sft
    from holdfast.collect.agent import Context as Context
    from holdfast.collect.tasks import TaskSet as TaskSet
    from holdfast.collect.tasks import load

    tasks = load
    from holdfast.contracts.errors import BadInput as BadInput
    from holdfast.contracts.errors import HoldfastError as HoldfastError
    from holdfast.contracts.reward import Reward as Reward
    from holdfast.contracts.task import TaskItem as TaskItem
    from holdfast.learn.constrain import Constraint as Constraint
    from holdfast.learn.control import EnvPPO
    from holdfast.learn.dp import Privacy as Privacy
    from holdfast.learn.grpo import GRPO as GRPO
    from holdfast.learn.prompt_search import Candidates as Candidates
    from holdfast.learn.prompt_search import PromptSearch as PromptSearch
    from holdfast.learn.proposers import Demonstrations as Demonstrations
    from holdfast.learn.proposers import Draft as Draft
    from holdfast.learn.proposers import Edits as Edits
    from holdfast.learn.proposers import Merge as Merge
    from holdfast.learn.proposers import Proposer as Proposer
    from holdfast.learn.proposers import Reflection as Reflection
    from holdfast.learn.proposers import Regression as Regression
    from holdfast.learn.proposers import Tried as Tried
    from holdfast.learn.turns import TurnPPO as TurnPPO
    from holdfast.policies.model import Model as Model
    from holdfast.policies.network import Network as Network
    from holdfast.policies.prompt import Prompt as Prompt
    from holdfast.reward.scorers import Scorer as Scorer

    PPO = EnvPPO
    __version__: str

_PLACES = {  # name → where it is, and what it is called there
    "BadInput": "holdfast.contracts.errors:BadInput",
    "Budget": "holdfast.api.inputs:Budget",
    "Candidates": "holdfast.learn.prompt_search:Candidates",
    "PromptSearch": "holdfast.learn.prompt_search:PromptSearch",
    "Comparison": "holdfast.api.results:Comparison",
    "Constraint": "holdfast.learn.constrain:Constraint",
    "Context": "holdfast.collect.agent:Context",
    "GRPO": "holdfast.learn.grpo:GRPO",
    "HoldfastError": "holdfast.contracts.errors:HoldfastError",
    "Model": "holdfast.policies.model:Model",
    "Network": "holdfast.policies.network:Network",
    "PPO": "holdfast.learn.control:EnvPPO",
    "Privacy": "holdfast.learn.dp:Privacy",
    "Prompt": "holdfast.policies.prompt:Prompt",
    "Proof": "holdfast.api.results:Proof",
    "Result": "holdfast.api.results:Result",
    "Reward": "holdfast.contracts.reward:Reward",
    "Run": "holdfast.api.stored:Run",
    "Scorer": "holdfast.reward.scorers:Scorer",
    "Table": "holdfast.api.stored:Table",
    "TaskItem": "holdfast.contracts.task:TaskItem",
    "TaskSet": "holdfast.collect.tasks:TaskSet",
    "Demonstrations": "holdfast.learn.proposers:Demonstrations",
    "Draft": "holdfast.learn.proposers:Draft",
    "Edits": "holdfast.learn.proposers:Edits",
    "Merge": "holdfast.learn.proposers:Merge",
    "Proposer": "holdfast.learn.proposers:Proposer",
    "Reflection": "holdfast.learn.proposers:Reflection",
    "Regression": "holdfast.learn.proposers:Regression",
    "Tried": "holdfast.learn.proposers:Tried",
    "TurnPPO": "holdfast.learn.turns:TurnPPO",
    "Waived": "holdfast.api.inputs:Waived",
    "adapters": "holdfast.api.adapters",
    "collect": "holdfast.api.calls:collect",
    "compare": "holdfast.api.calls:compare",
    "dpo": "holdfast.api.teach:dpo",
    "reward_model": "holdfast.api.teach:reward_model",
    "import_logs": "holdfast.api.stored:import_logs",
    "improve": "holdfast.api.calls:improve",
    "live": "holdfast.api.service:live",
    "rescore": "holdfast.api.stored:rescore",
    "rollback": "holdfast.api.service:rollback",
    "runs": "holdfast.api.stored:runs",
    "sft": "holdfast.api.teach:sft",
    "start": "holdfast.api.calls:start",
    "tasks": "holdfast.collect.tasks:load",
}
__all__ = [*_PLACES, "__version__"]  # noqa: PLE0604


def _load(name: str) -> Any:
    module, _, attribute = _PLACES[name].partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("holdfast")
    if name == "collect":  # importing the room of that name sets it: see below
        return import_module("holdfast.collect")
    if name not in _PLACES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    found = _load(name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _CallableRoom(ModuleType):
    """A room that is also a call: `hf.collect(agent, tasks)`, and `holdfast.collect.tasks` is still a module."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return _load("collect")(*given, **named)

    @property
    def __signature__(self) -> Any:
        from inspect import signature

        return signature(_load("collect"))


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "collect" and type(value) is ModuleType:
            value.__class__ = _CallableRoom
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
