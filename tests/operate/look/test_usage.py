from __future__ import annotations

from typing import Any

import pytest

from holdfast.operate.look.lessons import names, records, schemas_in
from holdfast.store.store import Store


def test_what_was_needed_and_called_is_read_from_stored_rollouts(lived_in: Store) -> None:
    run = lived_in.runs.newest(most=1)[0].id
    found = records(lived_in, lived_in.figures.scored(run, 30))
    talking = [one for one in found if one.model is not None]  # those that failed have no spans
    assert talking and all(one.needs == ("search",) and one.offered == ("search", "sum") for one in found)
    assert {(one.model, one.version) for one in talking} == {("sprout", "2")}
    assert all([mark.tool for mark in one.marks] == ["search"] for one in talking)


@pytest.mark.parametrize(("given", "read"), [(["a"], ("a",)), ([], ()), ([1], None), ("a", None), (None, None)])
def test_names_are_a_list_of_texts_or_unknown(given: Any, read: tuple[str, ...] | None) -> None:
    assert names(given) == read


def test_schemas_are_those_written_in_the_task_or_of_the_workload() -> None:
    written = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    assert schemas_in({"tools": [written]}) == {"f": {"type": "object"}}
    assert schemas_in({"tools": [{"no": "name"}]}) is None and schemas_in({"tools": ["f"]}) is None
