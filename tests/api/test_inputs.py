"""What a user brings: every bad input is one clear error before any work; the door's names; and how results look."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.api.stored import Shown, TextTable, html, text
from holdfast.contracts.errors import BadInput
from holdfast.store.store import open_store
from tests.api import scene
from tests.api.conftest import Improved
from tests.api.scene import short
from tests.endpoint import Endpoint


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"algorithm": "prompt search"}, '"prompt_search"'),
        ({"algorithm": hf.PromptSearch(proposers=[])}, "nobody who proposes"),
        ({"algorithm": "grpo"}, "its weights are out of reach"),
        ({"algorithm": hf.GRPO}, "is a class"),
        ({"algorithm": 3}, "is unknown"),
        ({"algorithm": hf.Candidates([7])}, "candidate 1: is int, no prompt"),
        ({"algorithm": hf.Candidates([{"systm": "x"}, hf.Prompt(other="x")])}, "candidate 2: has no text"),
        ({"policy": "tiny"}, "hf.Model('tiny')"),
        ({"policy": 3}, "is int, no policy"),
        ({"model": 3}, "is not a name"),
        ({"scorers": None}, "there are none"),
        ({"scorers": []}, "there are none"),
        ({"scorers": hf.Scorer(lambda task, answer: 1.0, name="kind", gate=True)}, "pays an empty answer"),
        ({"scorers": "exakt"}, "did you mean exact"),
        ({"safety": []}, "what is not measured is not safe"),
        ({"name": "a@b"}, "'@' comes before"),
        ({"budget": hf.Budget(rollouts=3)}, "a proof alone takes"),
        ({"seeds": 0}, "at least 1"),
        ({"stage": "lively"}, "is no stage"),
        ({"sede": 1}, "did you mean seed"),
        ({"base_url": "ftp://here"}, "base URL"),
    ],
)
def test_what_cannot_be_is_one_clear_error_before_any_work(
    endpoint: Endpoint, at: Path, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadInput, match=said.replace("(", r"\(").replace(")", r"\)")):
        hf.improve(scene.agent, scene.questions(30), **short(endpoint, at, **more))
    assert not at.exists()


def test_a_model_without_an_address_is_asked_nowhere(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadInput, match="no address is known"):
        hf.collect(
            scene.agent, scene.questions(4, held_out=None), policy=hf.Prompt(system="x"), model="gpt-4o-mini", store=at
        )


@pytest.mark.parametrize("agent", [3, lambda task: "", "nowhere:agent"])
def test_an_agent_that_cannot_be_called_is_refused(agent: Any, at: Path) -> None:
    with pytest.raises(BadInput, match="agent"):
        hf.collect(agent, scene.questions(4, held_out=None), store=at)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"agent": lambda task, ctx: 1}, "^agent: is for agents and tasks"),
        ({"scorers": ["exact"]}, "^scorers: is for agents and tasks"),
        ({"model": "gpt"}, "^model: is for agents and tasks"),
        ({"budget": hf.Budget(rollouts=10)}, "^budget: is for agents and tasks"),
        ({"policy": hf.Prompt(system="x")}, r"give hf.Network\(\)"),
        ({"env": None, "agent": lambda task, ctx: 1, "tasks": [{"id": "a", "input": {}}]}, "^name: is missing"),
    ],
)
def test_what_is_for_agents_is_refused_beside_an_environment(given: dict[str, Any], said: str, at: Path) -> None:
    with pytest.raises(BadInput, match=said):
        hf.improve(**{"env": "CartPole-v1", "policy": hf.Network(), "store": at, **given})
    assert not at.exists()


HEAVY = ("torch", "numpy", "sqlalchemy", "pydantic", "aiohttp", "rich", "scipy", "starlette")


def test_the_import_is_quick_because_nothing_heavy_is_loaded() -> None:
    code = f"import sys, holdfast; print([one for one in {HEAVY!r} if one in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_who_improves_a_prompt_waits_for_nothing_that_models_need() -> None:
    """And can do without it: torch is an extra, which `import holdfast.api.calls` needed."""
    names = ("torch", "numba", "safetensors", "scipy.stats", "psycopg")
    code = f"""import sys, holdfast as hf
hf.improve, hf.collect, hf.compare, hf.Prompt, hf.Candidates, hf.live, hf.runs
print([one for one in {names!r} if one in sys.modules])"""
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


def test_a_waiver_is_in_the_ledger_and_on_every_page(endpoint: Endpoint, at: Path) -> None:
    result = hf.improve(scene.agent, scene.questions(30), **short(endpoint, at, safety=hf.Waived("people look first")))
    assert result.proof is not None and result.proof.waived == "people look first"
    assert "safety was NOT measured: people look first" in str(result)
    with open_store(at, create=False) as store:
        noted = [one for one in store.ledger.entries(run=result.run.id) if one.kind == "waiver"]
        assert [one.body["why"] for one in noted] == ["people look first"]


def test_the_report_on_the_tasks_is_shown_before_a_run_that_has_warnings(
    endpoint: Endpoint, at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = scene.questions(30)
    assert capsys.readouterr().err == ""
    hf.improve(scene.agent, tasks, **short(endpoint, at))
    assert "these tasks can promote no candidate" in " ".join(capsys.readouterr().err.split())


def test_what_proves_nothing_by_a_split_does_not_ask_for_one(
    endpoint: Endpoint, at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"scorers": scene.correct, "model": "tiny", "base_url": endpoint.url, "store": at}
    tasks = scene.questions(6, held_out=None)
    fair, good = hf.Prompt(system=scene.FAIR), hf.Prompt(system=scene.GOOD)
    hf.collect(scene.agent, tasks, policy=fair, **given)
    hf.compare(fair, good, tasks, agent=scene.agent, **given)
    assert "held-out" not in capsys.readouterr().err
    twice = hf.tasks([{"question": "Twice 1?", "expected": "2"}, {"question": "Twice 1?", "expected": "2"}])
    hf.collect(scene.agent, twice, policy=fair, **given)
    assert "! Dropped 1 duplicates" in capsys.readouterr().err  # what concerns every run is still said


def test_settings_of_a_run_hold_no_task_and_no_key(accepted: Improved) -> None:
    assert len(json.dumps(dict(accepted.result.run.record.settings))) < 4000


WIDE = TextTable(("name", ">number"), [("x" * 200, "1"), ("y", "1000")])


class Page(Shown):
    def blocks(self) -> list[str | TextTable]:
        return ["one <b>", WIDE]


def test_text_is_folded_and_cells_are_cut_to_80_columns() -> None:
    lines = text(["  " + "word " * 40, WIDE]).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("  word") and lines[1].startswith("    word")
    assert "…" in lines[-2] and lines[-1].endswith("1000") and lines[-2].endswith("   1")


def test_html_escapes_what_people_wrote() -> None:
    found = html(["one <b>", TextTable(("<i>",), [("&",)])])
    assert "one &lt;b&gt;" in found and "&lt;i&gt;" in found and "<td" in found and "&amp;" in found


def test_the_same_is_shown_as_text_by_rich_and_in_a_notebook() -> None:
    page = Page()
    assert str(page) == repr(page) == page.__rich__().plain and "<table>" in page._repr_html_()


def test_a_path_is_never_cut() -> None:
    path = "/a" * 60
    assert path in text([f"report: {path}"])
