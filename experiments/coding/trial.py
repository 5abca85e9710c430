"""What happens inside the sandbox: foreign files are written to the work tree and called, or their tests are run.

Only the standard library is used here, because nothing else is in reach. Nothing here judges: a call gives back what
was returned as plain data, and whether that is right is decided outside, where the right answers are (`sandbox`). The
tests that lie in the tree are run as their author would run them, so their exit status can be forged, and is only good
for showing what a careless grader would have paid.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import sys
import types
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DEEPEST = 40  # of nested values: a value that holds itself must not hang us


class TestSkipped(Exception):
    """A test that did not want to run."""


def encode(value: Any, depth: int = 0) -> Any:
    """A value as JSON that keeps its exact type; what is no plain data keeps only the name of its type."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return {"float": repr(value)}
    if kind is datetime.date:
        return {"date": value.isoformat()}
    if depth > DEEPEST:
        return {"other": "too deep"}
    if kind is list:
        return [encode(one, depth + 1) for one in value]
    if kind is tuple:
        return {"tuple": [encode(one, depth + 1) for one in value]}
    if kind is dict:
        return {"dict": _sorted([[encode(key, depth + 1), encode(one, depth + 1)] for key, one in value.items()])}
    if kind is set:
        return {"set": _sorted([encode(one, depth + 1) for one in value])}
    return {"other": kind.__name__}


def decode(data: Any) -> Any:
    """The value that `encode` wrote."""
    if isinstance(data, list):
        return [decode(one) for one in data]
    if not isinstance(data, dict):
        return data
    ((kind, inner),) = data.items()
    if kind == "float":
        return float(inner)
    if kind == "date":
        return datetime.date.fromisoformat(inner)
    if kind == "tuple":
        return tuple(decode(one) for one in inner)
    if kind == "dict":
        return {decode(key): decode(one) for key, one in inner}
    if kind == "set":
        return {decode(one) for one in inner}
    raise ValueError(f"{kind} is no plain data")


def work(request: Mapping[str, Any], answers: int) -> int:
    """Do what was asked in the current folder; answers go line by line to that file descriptor. The exit status."""
    for path, text in request["files"].items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")
    sys.path.insert(0, str(Path.cwd()))
    if request["mode"] == "tests":
        return run_tests(sorted(request["files"]))
    function = getattr(importlib.import_module(request["module"]), request["function"])
    for place, arguments in enumerate(request["calls"]):
        line = json.dumps([place, *_called(function, decode(arguments))])
        os.write(answers, line.encode() + b"\n")
    return 0


def run_tests(paths: list[str]) -> int:
    """The tests of the tree, as pytest would run them: 0 when none failed. It can be forged; see the head."""
    sys.modules["pytest"] = _pytest()
    hooks = importlib.import_module("conftest") if "conftest.py" in paths else None
    failed = 0
    for path in paths:
        name = path.removesuffix(".py").replace("/", ".")
        if not name.rpartition(".")[2].startswith("test_"):
            continue
        try:
            module = importlib.import_module(name)
        except TestSkipped:
            continue
        except Exception:
            return 1
        if hasattr(module, "pytestmark"):
            continue
        found = [one for called, one in vars(module).items() if called.startswith("test") and callable(one)]
        getattr(hooks, "pytest_collection_modifyitems", len)(found)
        failed += sum(not _is_passed(test) for test in found)
    return int(failed > 0)


def _called(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return "value", encode(function(*arguments))
    except Exception as error:
        return "error", type(error).__name__


def _is_passed(test: Callable[[], Any]) -> bool:
    is_expected_to_fail = getattr(test, "xfail", False)
    try:
        if not getattr(test, "skip", False):
            test()
    except TestSkipped:
        return True
    except Exception:
        return bool(is_expected_to_fail)
    return True


def _pytest() -> types.ModuleType:
    """As much of pytest as a small test file uses: raises, approx, skip, and the marks that switch tests off."""
    shim: Any = types.ModuleType("pytest")

    def mark(name: str) -> Callable[..., Any]:
        def marked(*given: Any, **_: Any) -> Any:
            def put(test: Any) -> Any:
                setattr(test, name, True)
                return test

            return put(given[0]) if given and callable(given[0]) else put

        return marked

    def skip(*_: Any, **__: Any) -> None:
        raise TestSkipped

    @contextmanager
    def raises(kind: type[BaseException], **_: Any) -> Any:
        try:
            yield
        except kind:
            return
        raise AssertionError(f"{kind.__name__} was not raised")

    shim.mark = types.SimpleNamespace(skip=mark("skip"), xfail=mark("xfail"), skipif=mark("skip"))
    shim.skip, shim.raises, shim.approx = skip, raises, lambda value, **_: _Near(value)
    return shim  # type: ignore[no-any-return]


class _Near:
    def __init__(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and abs(other - self.value) <= 1e-6 * max(1.0, abs(self.value))

    def __hash__(self) -> int:
        return hash(self.value)


def _sorted(items: list[Any]) -> list[Any]:
    return sorted(items, key=json.dumps)
