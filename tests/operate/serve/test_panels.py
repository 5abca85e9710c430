"""What may be asked of a panel, and what is refused before any view is asked."""

from __future__ import annotations

import inspect

import pytest
from starlette.datastructures import QueryParams

from holdfast.contracts.errors import BadInput
from holdfast.operate.serve.panels import PANELS, Panel

BY_NAME = {panel.name: panel for panel in PANELS}


def test_every_view_takes_what_its_panel_reads() -> None:
    for panel in PANELS:
        taken = inspect.signature(panel.view).parameters
        names = {param.into or param.name for param in panel.takes}
        assert names <= set(taken), panel.name
        needed = {name for name, one in taken.items() if one.default is one.empty} - {"store", "now"}
        assert needed == {param.into or param.name for param in panel.takes if param.is_needed}, panel.name


@pytest.mark.parametrize(
    ("panel", "query", "read"),
    [
        ("runs", "", {}),
        ("runs", "most=20&before=run-3", {"most": 20, "before": "run-3"}),
        ("rollouts", "run=run-1&status=dead&least=-0.5", {"run_id": "run-1", "status": "dead", "least": -0.5}),
        ("group", "run=r&group=a%2Fb&near=0", {"run_id": "r", "name": "a/b", "near": 0}),
    ],
)
def test_a_question_is_read(panel: str, query: str, read: dict[str, object]) -> None:
    assert BY_NAME[panel].read(QueryParams(query)) == read


@pytest.mark.parametrize(
    ("panel", "query", "why"),
    [
        ("run", "", "run: is missing"),
        ("runs", "most=201", "from 1 to 200"),
        ("runs", "most=-1", "from 1 to 200"),
        ("runs", "most=²", "from 1 to 200"),
        ("runs", "most=1&most=2", "is given twice"),
        ("runs", "before=", "1 to 300 letters"),
        ("rollouts", "run=r&split=all", "one of train, val, test"),
        ("rollouts", "run=r&least=inf", "must be a number"),
        ("overview", "run=r", "overview takes nothing"),
    ],
)
def test_what_makes_no_sense_is_refused_and_named(panel: str, query: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        BY_NAME[panel].read(QueryParams(query))


def test_what_is_told_of_a_panel_is_what_it_reads() -> None:
    told = BY_NAME["rollout"].told()
    assert [(one["name"], one["required"]) for one in told.headers] == [("rollout", True), ("attempt", False)]
    assert {200, 400, 401, 404, 429} <= set(told.gives)
    assert isinstance(BY_NAME["rollout"], Panel) and len(BY_NAME) == len(PANELS)
