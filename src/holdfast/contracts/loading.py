"""Functions by name: `module:function`, or `path/to/file.py:function`."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.contracts.errors import BadInput, told


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
        public = ", ".join(n for n, v in vars(module).items() if inspect.isfunction(v) and not n.startswith("_"))
        raise BadInput(f"{what} {reference}", why=f"{source} has no {name}", remedy=f"it has: {public or 'none'}")
    return found


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
        raise BadInput(what, why=f"importing {source} failed: {told(error)}") from error


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
