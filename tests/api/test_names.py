"""The door itself: quick to open, typed, and its names are those of the documentation."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.metadata import version
from importlib.resources import files

import pytest

import holdfast as hf

HEAVY = ("torch", "numpy", "sqlalchemy", "pydantic", "aiohttp", "rich", "scipy", "starlette")


def test_the_import_is_quick_because_nothing_heavy_is_loaded() -> None:
    code = f"import sys, holdfast; print([one for one in {HEAVY!r} if one in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_every_name_is_there_documented_and_listed() -> None:
    for name in hf.__all__:
        found = getattr(hf, name)
        assert name in dir(hf)
        assert isinstance(found, str) or inspect.getdoc(found), name
    assert hf.__version__ == version("holdfast")
    assert files("holdfast").joinpath("py.typed").is_file()


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'imporve'"):
        hf.imporve  # noqa: B018


def test_collect_is_a_call_and_still_the_room_of_that_name() -> None:
    import holdfast.collect.tasks as room

    assert callable(hf.collect) and hf.tasks is room.load
    assert list(inspect.signature(hf.collect).parameters)[:2] == ["agent", "tasks"]
    code = "import holdfast.collect.agent, holdfast; print(callable(holdfast.collect), holdfast.collect.agent.__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "holdfast.collect.agent"]


def test_start_takes_what_improve_takes() -> None:
    improved, started = (inspect.signature(call).parameters for call in (hf.improve, hf.start))
    assert list(improved.values()) == list(started.values())
