"""The seam of agents: a function `agent(task, ctx)`, async or plain, loaded by name, and the kit that it passes.

`ctx` is a `collect.agent.Context`: the model, the prompts and the rewards of one attempt. How an agent is run and
interrupted is left to `contracts.executor`.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import importlib
import inspect
import json
import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from copy import deepcopy
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from holdfast.contracts.checks import require
from holdfast.contracts.errors import BadInput, BadRecord, error_line
from holdfast.contracts.shapes import Unfit, shape

MOST_FILES = 100  # of a user's code whose hashes are kept with a run


def load_named(reference: str, what: str) -> Any:
    """What has this name; `what` says in errors what it is meant to be."""
    source, _, name = reference.rpartition(":")
    if not source or not name:
        raise BadInput(
            f"{what} {reference!r}",
            why="is not of the form module:function",
            remedy="for example my_agents:answer, or agents/mine.py:answer",
        )
    module = _module(f"{what} {reference}", source)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        public = ", ".join(n for n, v in vars(module).items() if _is_offered(v, module) and not n.startswith("_"))
        raise BadInput(f"{what} {reference}", why=f"{source} has no {name}", remedy=f"it has: {public or 'none'}")
    return found


def _is_offered(value: Any, module: ModuleType) -> bool:
    """What a module defines itself and can be called: functions, classes, instances with a call."""
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _module(what: str, source: str) -> ModuleType:
    """The module of this name or in this file, imported."""
    file = Path(source).resolve() if source.endswith(".py") or "/" in source else None
    if file is not None and not file.is_file():
        raise BadInput(what, why=f"there is no file {source}", remedy="check the path")
    _search_first(Path.cwd() if file is None else file.parent)
    try:
        with redirect_stdout(sys.stderr):  # stdout is the report's
            return importlib.import_module(source) if file is None else _from_file(file)
    except ImportError as error:
        raise BadInput(what, why=f"cannot import {source}: {error}", remedy="check the name and the folder") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # foreign code may throw anything
        raise BadInput(what, why=f"importing {source} failed: {error_line(error)}") from error


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _from_file(file: Path) -> ModuleType:
    """Under its own name, so that what it defines can be pickled; one that is taken gets the path's hash behind it."""
    name = file.stem
    for known in (name, taken := f"{name}_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"):
        if getattr(sys.modules.get(known), "__file__", None) == str(file):
            return sys.modules[known]
    if not name.isidentifier() or name in sys.modules or getattr(find_spec(name), "origin", None) != str(file):
        name = taken
    spec = spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def own_code(agent: Any) -> dict[str, str]:
    """Hashes of the files of the user's code: the agent's own, and what was imported from its folder or below it.

    Empty where the agent came with a package."""
    while isinstance(agent, functools.partial):
        agent = agent.func
    own = getattr(agent, "__module__", None) or type(agent).__module__
    file = _file_of(sys.modules.get(own)) if isinstance(own, str) else None
    if file is None or _is_packaged(file):
        return {}
    folder, mine = f"{Path(file).parent}{os.sep}", {}
    for name, module in sys.modules.copy().items():  # another thread may import
        path = _file_of(module)
        if path is not None and path.startswith(folder) and not _is_packaged(path):
            mine[Path(path).name if name == "__main__" else f"{str(name).replace('.', '/')}.py"] = Path(path)
    found = {}
    for name in sorted(mine, key=lambda name: (str(mine[name]) != file, name))[:MOST_FILES]:
        with suppress(OSError, ValueError):
            found[name] = hashlib.sha256(mine[name].read_bytes()).hexdigest()[:16]
    return found


def _file_of(module: Any) -> str | None:
    try:
        file = getattr(module, "__file__", None)
    except Exception:  # a module that is loaded when it is used may throw anything
        return None
    return file if isinstance(file, str) and file.endswith(".py") else None


def _is_packaged(file: str) -> bool:
    """Whether it is Python's, ours or of an installed package."""
    return f"{os.sep}site-packages{os.sep}" in file or file.startswith(_homes())


@functools.cache
def _homes() -> tuple[str, ...]:
    homes = [str(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib")]
    return tuple(f"{home}{os.sep}" for home in (*homes, Path(__file__).parents[1]))


class Agent(Protocol):
    """Answers a task with any JSON, or an awaitable of it.

    An exception is a failed try, and is data. An attempt that our infrastructure ended is tried again with the same
    seed, and many attempts run at once: an agent keeps nothing of one for another."""

    def __call__(self, task: Any, ctx: Any, /) -> Any: ...


def is_async(agent: Agent) -> bool:
    """Whether calling it gives a coroutine, so that it can share one event loop with others."""
    return inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(getattr(agent, "__call__", None))  # noqa: B004


def refuse_uncallable(agent: Any, name: str) -> None:
    """BadInput where it cannot be called as agents are."""
    try:
        inspect.signature(agent).bind({}, None)
    except ValueError:
        pass  # some of those written in C do not say what they take
    except TypeError as error:
        raise BadInput(f"agent {name}", why=f"cannot be called with (task, context): {error}") from error


def answer_of(output: Any) -> Any:
    """The answer as plain JSON data, which can then be stored; BadRecord where it is none."""
    try:
        plain = shape(Any).encode(output)
        json.dumps(plain)
    except Unfit as unfit:
        raise BadRecord(f"the agent's answer{unfit.path}", why=unfit.why, remedy="return JSON") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a list within itself
        raise BadRecord("the agent's answer", why=str(error), remedy="return JSON") from None
    return plain


# The kit for whoever writes an agent


def check_agent(agent: Agent, tasks: Sequence[Any], context: Callable[[Any], Any]) -> None:
    """It can be called, answers in JSON, and says the same of a task again and beside others.

    `context` makes a new one for each attempt at a task, with the same seed and a model that says the same to the same
    messages. What fails is an AssertionError that names the task."""
    require(len(tasks) > 1, "fewer than two tasks: whether attempts disturb one another was not checked")
    try:
        refuse_uncallable(agent, type(agent).__name__)
    except BadInput as error:
        raise AssertionError(str(error)) from error

    async def attempts(chosen: Sequence[Any]) -> list[Any]:
        return list(await asyncio.gather(*(_attempt(agent, task, context(task)) for task in chosen)))

    alone = [asyncio.run(attempts([task]))[0] for task in tasks]
    for task, first in zip(tasks, alone, strict=True):
        again = asyncio.run(attempts([task]))[0]
        require(again == first, f"task {task!r:.60}: the same chance gives {again!r:.60} after {first!r:.60}")
    together = asyncio.run(attempts(tasks))
    for task, first, beside in zip(tasks, alone, together, strict=True):
        require(beside == first, f"task {task!r:.60}: answers {beside!r:.60} beside others, {first!r:.60} alone")


async def _attempt(agent: Agent, task: Any, ctx: Any) -> Any:
    shown = deepcopy(task)
    try:
        output = agent(shown, ctx) if is_async(agent) else await asyncio.to_thread(agent, shown, ctx)
        return answer_of(await output if inspect.isawaitable(output) else output)
    except Exception as error:  # foreign code may raise anything
        raise AssertionError(f"task {task!r:.60}: {error_line(error)}") from error
