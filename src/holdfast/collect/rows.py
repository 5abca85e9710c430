"""Rows from files: JSONL, JSON, CSV, Parquet, `datasets` folders, and any Python iterable.

A row is a JSON object with its place, so that an error names file and line. The caller knows what columns mean.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time
from importlib import import_module
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from holdfast.contracts.errors import BadInput
from holdfast.contracts.shapes import DoubledKey, kind_of, unique_keys
from holdfast.contracts.task import TaskItem

KINDS = ".jsonl, .json, .csv, .tsv, .parquet, or a folder written by `datasets`"
DICT_FILE, STATE_FILE = "dataset_dict.json", "state.json"
NOT_FINITE_REMEDY = "write null or a finite number"
LONGEST_NUMBER = 4000  # digits: Python reads no more of them
BATCH = 4096  # rows of a column file that are in memory at once


@dataclass(frozen=True, slots=True)
class Origin:
    """Where rows come from."""

    name: str  # a path, or "tasks" for a Python list
    unit: str = "line"
    split: str | None = None  # the key of the file or folder where splits lie apart
    absent: tuple[str | None, ...] = ()  # what stands for a missing value where rows cannot leave a column out

    def place(self, number: int) -> str:
        """For errors: the file, and which row of it; 0 is the whole file."""
        return f"{self.name} {self.unit} {number}" if number else self.name


class SourceRow(NamedTuple):
    """One object of a source, as it stood there."""

    origin: Origin
    number: int  # counted from 1
    data: Mapping[str, Any]

    @property
    def place(self) -> str:
        return self.origin.place(self.number)


def read_rows(source: Any, split: str | None = None) -> Iterator[SourceRow]:
    """The rows of a path, of a mapping from split to source, or of an iterable of objects."""
    if isinstance(source, str | Path):
        return _file_rows(Path(source), split)
    if isinstance(source, Mapping):
        if split is not None:
            raise BadInput(f"tasks of {split!r}", why="are a mapping again", remedy="give a path or a list")
        return _split_rows(source)
    if isinstance(source, Iterable) and not isinstance(source, bytes):
        return _python_rows(source, split)
    kind = type(source).__name__
    raise BadInput(f"tasks of type {kind}", why="cannot be read", remedy=f"give a list or a path: {KINDS}")


def _split_rows(sources: Mapping[Any, Any]) -> Iterator[SourceRow]:
    for split, source in sources.items():
        if not isinstance(split, str):
            remedy = 'give names of splits, as in {"train": ..., "held_out": ...}'
            raise BadInput(f"tasks: key {split!r}", why="is not text", remedy=remedy)
        yield from read_rows(source, split)


def _file_rows(path: Path, split: str | None) -> Iterator[SourceRow]:
    if path.is_dir():
        return _folder_rows(path, split)
    if not path.is_file():
        raise BadInput(str(path), why="no such file or folder", remedy="check the path")
    readers: dict[str, Callable[[Path, str | None], Iterator[SourceRow]]] = {
        ".jsonl": _jsonl_rows,
        ".ndjson": _jsonl_rows,
        ".json": _json_rows,
        ".csv": _csv_rows,
        ".tsv": _csv_rows,
        ".parquet": _parquet_rows,
        ".arrow": _arrow_rows,
    }
    if path.suffix.lower() == ".toml":
        raise BadInput(str(path), why="is a file of settings, not of tasks", remedy=f"give the tasks: {KINDS}")
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise BadInput(str(path), why=f"{path.suffix or 'no ending'!r} is not a known format", remedy=f"use {KINDS}")
    return reader(path, split)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    try:
        return unique_keys(pairs)
    except DoubledKey as twice:
        raise _Unfit(f"has the key {str(twice)!r} twice", "remove one: only the last would be read") from None


def _not_finite(text: str) -> NoReturn:
    raise _Unfit(f"{text} is not JSON", NOT_FINITE_REMEDY)


def _finite(text: str) -> float:
    value = float(text)
    return value if isfinite(value) else _not_finite(text)


def _whole(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise _Unfit(f"has a number of {len(text)} digits", "write it as text")
    return int(text)


class _Unfit(ValueError):
    """Python's JSON reader would take it, but it is not JSON or would lose data."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.why, self.remedy = why, remedy


_numbers: Any = {"parse_float": _finite, "parse_int": _whole, "parse_constant": _not_finite}
_decode = json.JSONDecoder(object_pairs_hook=_object, **_numbers).decode


def _parsed(raw: bytes, origin: Origin, number: int, encoding: str = "utf-8") -> Any:
    """The JSON value of a line (or, with number 0, of a file), or an error with its address."""
    try:
        return _decode(raw.decode(encoding).strip())
    except _Unfit as unfit:
        key = ""
        with suppress(RecursionError, ValueError):
            key = (_unfit(json.loads(raw.decode(encoding))) or ("",))[0]
        raise BadInput(_join(origin.place(number), key), why=unfit.why, remedy=unfit.remedy) from unfit
    except json.JSONDecodeError as error:
        near = error.doc[max(0, error.pos - 20) : error.pos + 20]
        why = f"is not JSON: {error.msg} at column {error.colno}, near {near!r}"
        remedy = "write one JSON object a line" if origin.unit == "line" else "write [{...}, {...}]"
        raise BadInput(origin.place(number), why=why, remedy=remedy) from error
    except UnicodeDecodeError as error:
        why = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        raise BadInput(origin.place(number), why=why, remedy="save the file as UTF-8") from error
    except RecursionError as error:
        raise BadInput(origin.place(number), why="is nested too deeply", remedy="make it flatter") from error


def _jsonl_rows(path: Path, split: str | None) -> Iterator[SourceRow]:
    origin = Origin(str(path), split=split)
    encoding = "utf-8-sig"  # only the first line may open with a byte-order mark
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if raw.isspace():
                continue
            yield _row(origin, number, _parsed(raw, origin, number, encoding))
            encoding = "utf-8"


def _json_rows(path: Path, split: str | None) -> Iterator[SourceRow]:
    origin = Origin(str(path), unit="item", split=split)
    items = _parsed(path.read_bytes(), origin, 0, "utf-8-sig")
    if isinstance(items, dict) and {"optimize", "validate", "improve", "agent"} & items.keys():
        raise BadInput(str(path), why="is a file of settings, not of tasks", remedy=f"give the tasks: {KINDS}")
    if not isinstance(items, list):
        remedy = "write [{...}, {...}], or one object a line in a .jsonl file"
        raise BadInput(str(path), why=f"holds {kind_of(items)}, not a list", remedy=remedy)
    for number, item in enumerate(items, 1):
        yield _row(origin, number, item)


def _row(origin: Origin, number: int, data: Any) -> SourceRow:
    if not isinstance(data, dict):
        remedy = 'give an object, as in {"input": {"question": "..."}, "expected": "..."}'
        raise BadInput(origin.place(number), why=f"is {kind_of(data)}, not an object", remedy=remedy)
    return SourceRow(origin, number, data)


def _csv_rows(path: Path, split: str | None) -> Iterator[SourceRow]:
    """Every value is text; an empty cell of an optional column is no value."""
    origin = Origin(str(path), split=split, absent=("", None))
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, delimiter=delimiter, strict=True)
            header = _header(next(lines, []), origin)
            number = lines.line_num + 1
            for cells in lines:
                if cells:  # the module gives an empty line as no cells
                    yield SourceRow(origin, number, _record(header, cells, origin, number))
                number = lines.line_num + 1
    except csv.Error as error:
        remedy = 'quote cells that hold quotes or line breaks ("" inside), or use a .jsonl file'
        raise BadInput(origin.place(number), why=f"is not CSV: {error}", remedy=remedy) from error
    except UnicodeDecodeError as error:
        why = f"byte 0x{error.object[error.start]:02x} after line {number} is not UTF-8"
        raise BadInput(str(path), why=why, remedy="save the file as UTF-8") from error


def _header(names: list[str], origin: Origin) -> list[str]:
    times = Counter(names)
    for name in names:
        if not name.strip() or times[name] > 1:
            why = "has no name" if not name.strip() else "stands there twice"
            raise BadInput(f"{origin.place(1)}: column {name!r}", why=why, remedy="name each column once")
    return names


def _record(header: list[str], cells: list[str], origin: Origin, number: int) -> dict[str, Any]:
    if len(cells) != len(header):
        why = f"has {len(cells)} cells where the header has {len(header)}"
        raise BadInput(origin.place(number), why=why, remedy="quote cells that hold the separator or line breaks")
    return dict(zip(header, cells, strict=True))


def _pyarrow(module: str, path: Path) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise BadInput(str(path), why="pyarrow is not installed", remedy="run: pip install pyarrow") from error


def _parquet_rows(path: Path, split: str | None) -> Iterator[SourceRow]:
    parquet = _pyarrow("pyarrow.parquet", path)
    return _batch_rows(path, split, lambda: parquet.ParquetFile(path).iter_batches(batch_size=BATCH))


def _arrow_rows(path: Path, split: str | None) -> Iterator[SourceRow]:
    """`datasets` writes streams; files with a footer are read, too."""
    arrow = _pyarrow("pyarrow", path)

    def batches() -> Iterator[Any]:
        with arrow.memory_map(str(path)) as source:
            if source.read(6) == b"ARROW1":
                source.seek(0)
                reader = arrow.ipc.open_file(source)
                yield from map(reader.get_batch, range(reader.num_record_batches))
            else:
                source.seek(0)
                yield from arrow.ipc.open_stream(source)

    return _batch_rows(path, split, batches)


def _batch_rows(path: Path, split: str | None, batches: Callable[[], Iterable[Any]]) -> Iterator[SourceRow]:
    """Columns know no absent value, so null stands for it."""
    arrow = _pyarrow("pyarrow", path)
    origin = Origin(str(path), unit="row", split=split, absent=(None,))
    try:
        rows = (data for batch in batches() for data in batch.to_pylist())
        for number, data in enumerate(rows, 1):
            yield SourceRow(origin, number, _as_json(data, origin, number))
    except (arrow.ArrowException, OSError) as error:
        why = f"cannot be read: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        raise BadInput(str(path), why=why, remedy="write the file again") from error


def _folder_rows(path: Path, split: str | None) -> Iterator[SourceRow]:
    """The layout of `save_to_disk`: arrow files named by state.json, or one such folder for each split."""
    if (path / DICT_FILE).is_file():
        names = _json_file(path / DICT_FILE).get("splits")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadInput(str(path / DICT_FILE), why="names no splits", remedy="write the folder again")
        for name in names:
            if split is not None:
                remedy = f"give {path} alone, or {path / name}"
                raise BadInput(f"tasks of {split!r}: {path}", why="has splits of its own", remedy=remedy)
            yield from _folder_rows(_inside(path, name), name)
        return
    if not (path / STATE_FILE).is_file():
        why = f"has neither {DICT_FILE} nor {STATE_FILE}"
        raise BadInput(str(path), why=why, remedy="give a file, or a folder written by save_to_disk of `datasets`")
    state = _json_file(path / STATE_FILE)
    if state.get("_indices_data_files"):
        why, remedy = "its rows are picked by an index file", "call flatten_indices() before save_to_disk"
        raise BadInput(str(path), why=why, remedy=remedy)
    files = state.get("_data_files")
    if not isinstance(files, list) or not all(isinstance(file, dict) and "filename" in file for file in files):
        raise BadInput(str(path / STATE_FILE), why="names no data files", remedy="write the folder again")
    for file in files:
        yield from _arrow_rows(_inside(path, str(file["filename"])), split)


def _json_file(path: Path) -> dict[str, Any]:
    found = _parsed(path.read_bytes(), Origin(str(path), unit="item"), 0)
    return found if isinstance(found, dict) else {}


def _inside(folder: Path, name: str) -> Path:
    """A file named by the folder's own list; it must lie in the folder."""
    path = folder / name
    if Path(name).name != name or not path.exists():
        raise BadInput(str(path), why="is named by the folder and is not in it", remedy="write the folder again")
    return path


def _python_rows(items: Iterable[Any], split: str | None) -> Iterator[SourceRow]:
    if hasattr(items, "to_dict") and hasattr(items, "columns"):
        raise BadInput("tasks", why="are a data frame", remedy='give its rows: frame.to_dict("records")')
    origin = Origin("tasks" if split is None else f"tasks of {split!r}", unit="item", split=split)
    for number, item in enumerate(items, 1):
        data = item.row() if isinstance(item, TaskItem) else dict(item) if isinstance(item, Mapping) else item
        yield _row(origin, number, _as_json(data, origin, number))


def _as_json(data: Any, origin: Origin, number: int) -> Any:
    """A copy that holds only JSON: what the caller changes later changes no task."""
    try:
        return json.loads(_encode(data))
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_json(data, origin.place(number)) from error


def _not_json(data: Any, place: str) -> BadInput:
    try:
        key, value = _unfit(data) or ("", data)
    except RecursionError:
        return BadInput(place, why="is nested too deeply, or holds itself", remedy="make it flatter")
    if isinstance(value, float):
        return BadInput(_join(place, key), why=f"{value!r} is not JSON", remedy=NOT_FINITE_REMEDY)
    remedy = "leave the column out, or turn it into text"
    return BadInput(_join(place, key), why=f"is {kind_of(value)}, which is not JSON", remedy=remedy)


def _other(value: Any) -> Any:
    """What tables hold beside JSON, and what it is in JSON."""
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, Integral):  # of numpy
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError


_encode = json.JSONEncoder(allow_nan=False, default=_other).encode


def _unfit(value: Any, path: str = "") -> tuple[str, Any] | None:
    """The first value within that is not JSON, and the keys that lead to it."""
    if isinstance(value, Mapping):
        parts = [(f"{path}.{key}" if path else str(key), part) for key, part in value.items()]
        for key in value:
            if not isinstance(key, str | int | float | None):
                return path, key
    elif isinstance(value, list | tuple):
        parts = [(f"{path}[{place}]", part) for place, part in enumerate(value)]
    else:
        try:
            _encode(value)
        except (TypeError, ValueError):
            return path, value
        return None
    return next((found for key, part in parts if (found := _unfit(part, key)) is not None), None)


def _join(place: str, key: str) -> str:
    return f"{place}: {key}" if key else place
