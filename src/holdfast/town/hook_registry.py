"""The registry of hooks: what a function must be for rules to name it, and the search for one by its name.

Ours are in `town.hooks`, which the package imports, so that they are registered before any rules are read.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOOK_STAGES = BEFORE, AFTER, FAIL = ("before", "after", "fail")
SHARED_MEAL = "shared_meal"  # the hook that a kernel does
Function = Callable[[Any], Any]  # of a `town.hooks.HookCall`


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A function that rules can name."""

    name: str
    stages: tuple[str, ...]  # in which it may be named
    function: Function | None  # None: a kernel does it
    summary: str
    source_sha256: str = ""  # of a user's own: of the file that it is in


HOOKS: dict[str, Hook] = {
    SHARED_MEAL: Hook(name=SHARED_MEAL, stages=(AFTER,), function=None,
                      summary="Who ends a meal near others who eat has shared it with each of them.")
}  # fmt: skip


def hook(*stages: str, name: str | None = None) -> Callable[[Function], Function]:
    """Registers a function under a name that rules can use; its docstring says what it does."""
    if not stages or set(stages) - set(HOOK_STAGES):
        raise ValueError(f"stages {stages!r}: give some of {', '.join(HOOK_STAGES)}")

    def registered(function: Function) -> Function:
        called = name or function.__name__
        if called in HOOKS:
            raise ValueError(f"hook {called!r} is registered already")
        HOOKS[called] = _made(called, function, stages)
        return function

    return registered


def _made(name: str, function: Function, stages: tuple[str, ...], **more: str) -> Hook:
    summary = (inspect.getdoc(function) or "").partition("\n")[0]
    return Hook(name=name, stages=stages, function=function, summary=summary, **more)


class NoHook(ValueError):
    """Why a name is refused, and what would be right."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why}; {remedy}")
        self.why, self.remedy = why, remedy


def find(name: str, stage: str, load: Callable[[str], Any] | None = None) -> Hook:
    """The hook of this name for this stage. `load` imports what `module:function` names; without it nothing is."""
    known = ", ".join(one.name for one in HOOKS.values() if stage in one.stages)
    if name in HOOKS:
        if stage not in HOOKS[name].stages:
            stages = " or ".join(HOOKS[name].stages)
            raise NoHook(f"{name!r} is no hook for {stage!r}, but for {stages}", f"use {known}, or module:function")
        return HOOKS[name]
    if ":" not in name or load is None:
        raise NoHook(f"{name!r} is unknown", f"use {known}, or module:function")
    function = load(name)
    if not callable(function):
        raise NoHook(f"{name!r} is a {type(function).__name__}", "name a function")
    return _made(name, function, HOOK_STAGES, source_sha256=_source(function))


def _source(function: Any) -> str:
    """Of the whole file: what a function calls is mostly beside it."""
    try:
        path = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:
        path = None
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""
