"""Rows of every kind of file, and errors that name file, line and key."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from holdfast.collect.rows import read_rows
from holdfast.contracts.errors import BadInput

DATASETS = Path(__file__).parent / "datasets"  # written by save_to_disk of `datasets` 5.2


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def data(source: Any) -> list[dict[str, Any]]:
    return [dict(row.data) for row in read_rows(source)]


def places(source: Any) -> list[str]:
    return [row.place for row in read_rows(source)]


def refused(source: Any) -> str:
    with pytest.raises(BadInput) as refusal:
        data(source)
    assert refusal.value.why and refusal.value.remedy
    return str(refusal.value)


def test_jsonl_keeps_its_line_numbers_over_empty_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '\ufeff{"q": "é\\u2028"}\r\n\n  \n{"q": 2, "deep": {"x": [null]}}')
    assert data(path) == data(str(path)) == [{"q": "é\u2028"}, {"q": 2, "deep": {"x": [None]}}]
    assert places(path) == [f"{path} line 1", f"{path} line 4"]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"q": 1', r" line 2: is not JSON: Expecting ',' delimiter at column 8, near '{\"q\": 1'; write one JSON"),
        (b"[1]", " line 2: is a list, not an object; give an object"),
        (b'{"a": {"b": [1, NaN]}}', r" line 2: a.b\[1\]: NaN is not JSON; write null or a finite number"),
        (b'{"a": -Infinity}', " line 2: a: -Infinity is not JSON"),
        (b'{"a": 1e999}', " line 2: a: 1e999 is not JSON"),
        (b'{"a": {"b": 1, "b": 2}}', " line 2: has the key 'b' twice; remove one"),
        (b'{"a": "\xff"}', " line 2: byte 0xff is not UTF-8; save the file as UTF-8"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", " line 2: is nested too deeply"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: bytes, error: str) -> None:
    path = write(tmp_path / "a.jsonl", b'{"q": 1}\n' + line + b"\n")
    with pytest.raises(BadInput, match=error) as refusal:
        data(path)
    assert str(refusal.value).startswith(str(path))


def test_rows_come_one_by_one(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"q": 1}\nbroken\n')
    assert next(read_rows(path)).data == {"q": 1}


def test_a_json_list_numbers_its_items(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", '[{"q": 1},\n {"q": 2}]')
    assert data(path) == [{"q": 1}, {"q": 2}] and places(path)[1] == f"{path} item 2"
    assert "holds an object, not a list" in refused(write(path, '{"q": 1}'))
    assert "item 1: is text, not an object" in refused(write(path, '["a"]'))
    assert "is not JSON: Extra data" in refused(write(path, '{"q": 1}\n{"q": 2}'))


def test_csv_is_text_with_the_line_at_which_a_row_begins(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", '\ufeffq,expected\r\n"two\r\nlines, one ""cell""",1\r\n\r\nb,\r\n')
    assert data(path) == [{"q": 'two\r\nlines, one "cell"', "expected": "1"}, {"q": "b", "expected": ""}]
    assert places(path) == [f"{path} line 2", f"{path} line 5"]
    assert data(write(tmp_path / "a.tsv", "q\tr\na,b\tc\n")) == [{"q": "a,b", "r": "c"}]
    assert data(write(tmp_path / "empty.csv", "")) == []


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("q,a\n1,2\n1,2,3\n", "line 3: has 3 cells where the header has 2"),
        ("q,a\n1\n", "line 2: has 1 cells where the header has 2"),
        ("q,q\n1,2\n", "line 1: column 'q': stands there twice"),
        ("q,\n1,2\n", "line 1: column '': has no name"),
        ('q,a\n1,"2"3\n', "line 2: is not CSV"),
        ('q,a\n1,2\n1,"2\n', "line 3: is not CSV"),
        (b"q,a\n1,\xe9\n", "byte 0xe9 .* is not UTF-8"),
    ],
)
def test_broken_csv_is_named(tmp_path: Path, text: str | bytes, error: str) -> None:
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(BadInput, match=error):
        data(path)


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    return path


def test_parquet_gives_json(tmp_path: Path) -> None:
    rows = [
        {"q": "a", "n": 1, "when": datetime(2026, 1, 2, 3, tzinfo=UTC), "deep": {"x": [1.5]}},
        {"q": None},
        {"q": "c"},
    ]
    path = table(tmp_path / "a.parquet", rows)
    found = data(path)
    assert found[0] == {"q": "a", "n": 1, "when": "2026-01-02T03:00:00+00:00", "deep": {"x": [1.5]}}
    assert found[1] == {"q": None, "n": None, "when": None, "deep": None}
    assert places(path) == [f"{path} row {number}" for number in (1, 2, 3)]


def test_what_parquet_holds_beside_json_is_named(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", [{"q": 1.0}, {"q": float("nan")}])
    assert refused(path) == f"{path} row 2: q: nan is not JSON; write null or a finite number"
    path = table(tmp_path / "b.parquet", [{"picture": {"bytes": b"\x89PNG"}}])
    assert "row 1: picture.bytes: is of type bytes, which is not JSON" in refused(path)
    assert "cannot be read" in refused(write(tmp_path / "c.parquet", "no table"))


def test_folders_of_datasets_are_read_shard_by_shard() -> None:
    found = list(read_rows(DATASETS / "single"))
    assert [row.data["id"] for row in found] == [f"one-{number}" for number in range(5)]
    assert found[0].data["input"] == {"question": "one question a", "choices": ["x", "y"]}
    assert found[4].place.endswith("data-00001-of-00002.arrow row 2") and found[4].origin.split is None
    found = list(read_rows(DATASETS / "splits"))
    assert [(row.origin.split, row.data["id"]) for row in found] == [
        ("train", "train-0"),
        ("train", "train-1"),
        ("train", "train-2"),
        ("validation", "held-0"),
        ("validation", "held-1"),
    ]


def test_arrow_files_with_a_footer_are_read(tmp_path: Path) -> None:
    import pyarrow

    rows = pyarrow.Table.from_pylist([{"q": 1}, {"q": 2}])
    with pyarrow.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pyarrow.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    assert data(tmp_path / "a.arrow") == [{"q": 1}, {"q": 2}]


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    assert "has neither dataset_dict.json nor state.json" in refused(tmp_path)
    folder = copytree(DATASETS / "single", tmp_path / "single")
    shard = folder / "data-00001-of-00002.arrow"
    shard.write_bytes(b"no arrow here")
    assert f"{shard}: cannot be read" in refused(folder)
    shard.unlink()
    assert f"{shard}: is named by the folder and is not in it" in refused(folder)
    write(folder / "state.json", '{"_data_files": [{"filename": "../splits/dataset_dict.json"}]}')
    assert "is named by the folder and is not in it" in refused(folder)
    write(folder / "state.json", '{"_data_files": [], "_indices_data_files": [{"filename": "indices.arrow"}]}')
    assert "flatten_indices" in refused(folder)
    write(folder / "state.json", "{}")
    assert "names no data files" in refused(folder)
    write(folder / "dataset_dict.json", "[]")
    assert "names no splits" in refused(folder)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_without_pyarrow_the_remedy_is_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    path = write(tmp_path / name, "")
    assert refused(path) == f"{path}: pyarrow is not installed; run: pip install pyarrow"


def test_python_objects_are_copied_into_json() -> None:
    mine = {"q": ("a", 1), "day": date(2026, 1, 2), "n": np.int64(3), "x": np.float32(0.5)}
    found = data(iter([mine]))
    assert found == [{"q": ["a", 1], "day": "2026-01-02", "n": 3, "x": 0.5}]
    nested: dict[str, Any] = {"q": {"deep": [1]}}
    copied = data([nested])
    nested["q"]["deep"].append(2)
    assert copied == [{"q": {"deep": [1]}}]
    assert places([mine]) == ["tasks item 1"]


def test_splits_may_lie_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"q": 1}\n')
    found = list(read_rows({"train": path, "held_out": [{"q": 2}]}))
    assert [(row.origin.split, row.place) for row in found] == [
        ("train", f"{path} line 1"),
        ("held_out", "tasks of 'held_out' item 1"),
    ]


class Frame:
    columns = ("q",)

    def to_dict(self, orient: str) -> list[dict[str, int]]:
        return [{"q": 1}]

    def __iter__(self) -> Any:
        return iter(self.columns)


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (["a"], "tasks item 1: is text, not an object"),
        ([{"q": 1}, {"q": {"x": float("inf")}}], "tasks item 2: q.x: inf is not JSON"),
        ([{"q": Decimal(1)}], "tasks item 1: q: is of type Decimal, which is not JSON"),
        ([{"q": {("a", "b"): 1}}], "tasks item 1: q: is of type tuple, which is not JSON"),
        ([{"q": {1, 2}}], "tasks item 1: q: is of type set"),
        ({"train": {"train": []}}, "tasks of 'train': are a mapping again"),
        ({1: []}, "tasks: key 1: is not text"),
        (b"a.jsonl", "tasks of type bytes: cannot be read"),
        (7, "tasks of type int: cannot be read"),
        (Frame(), r'tasks: are a data frame; give its rows: frame.to_dict\("records"\)'),
        ("nowhere.jsonl", "nowhere.jsonl: no such file or folder"),
        ({"train": DATASETS / "splits"}, "has splits of its own"),
    ],
)
def test_other_sources_are_refused(source: Any, error: str) -> None:
    with pytest.raises(BadInput, match=error):
        data(source)


def test_a_list_that_holds_itself_is_refused() -> None:
    assert "tasks item 1" in refused([{"q": LOOP}])


def test_an_unknown_ending_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    assert ".jsonl, .json, .csv" in refused(write(tmp_path / "a.yaml", "q: 1"))
