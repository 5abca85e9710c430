"""One known-good function: its text, examples that an author would show, and calls that nobody is shown.

The functions themselves are in `known`; how they are broken is `breakage`'s business. The hidden calls are drawn, and
what they must give is what the known-good function gives: an oracle, so there is no list of answers to leak.
"""

from __future__ import annotations

import ast
import copy
import inspect
import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from experiments.coding.sandbox import Calls, SandboxAnswer
from experiments.coding.trial import encode

HIDDEN_CALLS = 60
Arguments = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function that is right, with examples of what it gives and a way to draw more of them."""

    call: Callable[..., Any]
    examples: tuple[tuple[Arguments, Any], ...]  # arguments, and what comes back; an error's class, if it raises
    draw: Callable[[random.Random], Arguments]

    @property
    def name(self) -> str:
        return self.call.__name__


def source(function: Function) -> str:
    """The file it lives in when it is a task: its own text, under the imports it uses."""
    text = textwrap.dedent(inspect.getsource(function.call))
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    module = inspect.getmodule(function.call)
    assert module is not None
    imports = []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__":
            names = [one for one in node.names if (one.asname or one.name) in used]
            if names:
                kept = copy.copy(node)
                kept.names = names
                imports.append(ast.unparse(kept))
    head = "\n".join(imports)
    return f"{head}\n\n\n{text}" if head else text


def visible_tests(function: Function) -> str:
    """The test file that comes with the task: one test an example."""
    raises = any(isinstance(gives, type) for _, gives in function.examples)
    lines = ["import pytest", ""] if raises else []
    lines += [f"from {function.name} import {function.name}", ""]
    for number, (arguments, gives) in enumerate(function.examples, start=1):
        called = f"{function.name}({', '.join(map(repr, arguments))})"
        lines += ["", f"def test_example_{number}():"]
        if isinstance(gives, type):
            lines += [f"    with pytest.raises({gives.__name__}):", f"        {called}", ""]
        elif isinstance(gives, float):
            lines += [f"    assert abs({called} - {gives!r}) < 1e-9", ""]
        else:
            lines += [f"    assert {called} == {gives!r}", ""]
    text = "\n".join(lines)
    return f"import datetime\n\n{text}" if "datetime.date(" in text else text


def hidden_calls(function: Function, *, rng: random.Random, calls: int = HIDDEN_CALLS) -> Calls:
    """The examples, then drawn calls, with what the known-good function gives."""
    drawn = [arguments for arguments, _ in function.examples] + [function.draw(rng) for _ in range(calls)]
    answers = tuple(answer(function.call, arguments) for arguments in drawn)
    return Calls(module=function.name, function=function.name, arguments=tuple(drawn), expected=answers)


def answer(call: Callable[..., Any], arguments: Arguments) -> SandboxAnswer:
    """What a function of ours gives; foreign ones are only called in the sandbox."""
    try:
        return SandboxAnswer(kind="value", what=encode(call(*copy.deepcopy(arguments))))
    except Exception as error:
        return SandboxAnswer(kind="error", what=type(error).__name__)
