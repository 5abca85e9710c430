"""Statements, compiled once per engine, and the transaction through which operations run them.

SQLAlchemy Core describes the statements (one text for both engines); the driver executes them directly, because its
own execution layer costs more than the statement does.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, overload

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Delete,
    Executable,
    Table,
    Update,
    and_,
    bindparam,
    func,
    literal_column,
    null,
    or_,
    update,
)
from sqlalchemy import Insert as InsertBase
from sqlalchemy.dialects.postgresql import Insert, insert  # both engines compile its ON CONFLICT
from sqlalchemy.dialects.postgresql.dml import OnConflictDoUpdate
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from holdfast.contracts.errors import BadRecord
from holdfast.store.schema import CHECKSUM, COUNTED, pulse

Params = dict[str, Any]
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode
_encode_ascii = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_encode_sorted = json.JSONEncoder(allow_nan=False, separators=(",", ":"), sort_keys=True).encode
_UNFIT = re.compile("[\x00\ud800-\udfff]")
LONG_ROW = 2**16  # characters
from_json = json.loads
AT_MOST: BindParameter[int] = bindparam("most")  # of a page


def to_json(value: Any) -> str:
    """One line of JSON that both engines can keep, or BadRecord."""
    try:
        text = _encode(value)
        if not text.isascii():
            text.encode()
        return text
    except UnicodeEncodeError:  # half a character, as a model that was cut short gives it: only an escape can keep it
        return _encode_ascii(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRecord("value for the store", why=str(error), remedy="use what JSON can hold") from error


def canonical(text: str) -> str:
    """The same for all ways to write the same JSON."""
    return _encode_sorted(from_json(text))


@overload
def plain_text(text: str) -> str: ...
@overload
def plain_text(text: None) -> None: ...
@overload
def plain_text(text: str | None) -> str | None: ...
def plain_text(text: str | None) -> str | None:
    """Text as both engines can keep it: what Postgres cannot store, and what cannot be encoded, becomes U+FFFD."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return _UNFIT.sub("\ufffd", text)


def number(text: str) -> int | None:
    """The number that the text is, as a person or the store would write one; None when it is none there could be."""
    is_number = text.isascii() and text.isdecimal() and len(text) < 10 and not text.startswith("0")
    return int(text) if is_number else None


def into(table: Table, *keys: str, but: Sequence[str] = ("key",), **fixed: Any) -> Insert:
    """INSERT with a parameter for each column but these; with `keys`, of two with the same ones the first stays."""
    names = [column.name for column in table.c if column.name not in (*but, CHECKSUM)]
    values: dict[str, Any] = {name: bindparam(name) for name in names}
    made = insert(table).values({**values, **fixed})
    return made.on_conflict_do_nothing(index_elements=keys) if keys else made


def changing(table: Table, key: str, *names: str, **values: Any) -> Update:
    """UPDATE of the row with this key, a parameter: these columns get the parameter of their name, others a value."""
    return update(table).where(table.c.key == bindparam(key)).values({name: bindparam(name) for name in names} | values)


def given(table: Table | ReadOnlyColumnCollection[str, Any], *names: str) -> ColumnElement[bool]:
    """Whether each of these columns is what the parameter of its name says."""
    columns = table.c if isinstance(table, Table) else table
    return and_(*(columns[name] == bindparam(name) for name in names))


def checksum(*values: Any) -> int:
    """Of a row's values, as SQLite gives them; 1 and 1.0 are the same, since a column may make the one the other."""
    parts = [
        value if isinstance(value, str) else "\0" if value is None else repr(float(value)) if value == value else "nan"
        for value in values
    ]
    if sum(map(len, parts)) <= LONG_ROW:
        return zlib.crc32("\x1f".join(parts).encode("utf-8", "surrogatepass"))
    total = 0
    for place, part in enumerate(parts):  # of megabytes: no copy of all of it
        total = zlib.crc32(b"\x1f" if place else b"", total)
        for at in range(0, len(part), LONG_ROW):
            total = zlib.crc32(part[at : at + LONG_ROW].encode("utf-8", "surrogatepass"), total)
    return total


def sum_of(table: Table, values: Mapping[str, Any]) -> Any:
    """The checksum of a row of the table with these values."""
    names = sorted(column.name for column in table.c if column.name not in ("key", CHECKSUM))
    return func.hf_checksum(*(_written_out(values[name]) for name in names))


def _written_out(value: Any) -> Any:
    """A fixed value as text: SQLAlchemy gives the parameter that it would be the name of its column, once only."""
    is_fixed = isinstance(value, BindParameter) and not value.required
    return literal_column(_literal(value.value)) if is_fixed else value


def summed(statement: Executable) -> Executable:
    """The same statement, which also keeps the checksum of each row that it writes, as SQLite computes it."""
    if not isinstance(statement, InsertBase | Update):
        return statement
    table = statement.table
    if not isinstance(table, Table) or CHECKSUM not in table.c:
        return statement
    named: dict[str, Any] = {str(getattr(key, "name", key)): value for key, value in (statement._values or {}).items()}
    if isinstance(statement, Update):
        return statement.values({CHECKSUM: sum_of(table, {**{c.name: c for c in table.c}, **named})})
    defaults = {column.name: _default(column) for column in table.c}
    if statement.select is None:
        made = statement.values({CHECKSUM: sum_of(table, {**defaults, **named})})
    else:
        names, chosen = list(statement._select_names or ()), statement.select
        given: dict[str, Any] = dict(
            zip(names, (getattr(one, "element", one) for one in chosen.selected_columns), strict=True)
        )
        source = chosen.add_columns(sum_of(table, {**defaults, **given}))
        made = insert(table).from_select([*names, CHECKSUM], source)
        made._post_values_clause, made._returning = statement._post_values_clause, statement._returning
    if isinstance(clause := made._post_values_clause, OnConflictDoUpdate):
        new = dict(clause.update_values_to_set)
        changed: dict[str, Any] = {str(getattr(key, "name", key)): value for key, value in new.items()}
        clause = copy(clause)
        total = sum_of(table, {**{c.name: c for c in table.c}, **changed})
        clause.update_values_to_set = {**new, CHECKSUM: total}
        made._post_values_clause = clause
    return made


def _default(column: Column[Any]) -> Any:
    return null() if column.server_default is None else column.server_default.arg  # type: ignore[attr-defined]


class Book(dict[Executable, str]):
    """Statement → text in one engine's dialect, filled on first use."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.is_sqlite = dialect.name == "sqlite"

    def __missing__(self, statement: Executable) -> str:
        assert isinstance(statement, ClauseElement)
        text_of: Any = summed(statement) if self.is_sqlite else statement
        compiled = text_of.compile(dialect=self._dialect, compile_kwargs={"render_postcompile": True})
        text = str(compiled)
        for name, bind in getattr(compiled, "binds", {}).items():
            if not bind.required:  # a fixed value: written out, since partial indexes are only used when it is
                mark = rf":{name}\b" if self.is_sqlite else rf"%\({name}\)s"
                text = re.sub(mark, _literal(bind.value), text)
        self[statement] = text
        return text


def among(column: ColumnElement[Any], *values: str) -> ColumnElement[bool]:
    """Whether it is one of these; `IN` has marks of its own that are not written out."""
    return or_(*(column == value for value in values))


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        assert value.isidentifier(), value  # our own state names: nothing of a user's ever comes here
        return f"'{value}'"
    return repr(value)


_counter = update(pulse).where(pulse.c.topic == bindparam("counter"))
_COUNT_OUT = _counter.values(n=pulse.c.n - bindparam("gone"))


class Transaction:
    """What an operation gets: run statements, and say which topics it touched."""

    __slots__ = ("_book", "_connection", "_execute", "entry", "topics")

    def __init__(self, connection: Any, book: Book) -> None:
        self._connection, self._execute, self._book = connection, connection.execute, book
        self.topics: dict[str, int] = {}
        self.entry: tuple[int, str] | None = None  # of the ledger, that it added last: number and hash

    @property
    def is_sqlite(self) -> bool:
        return self._book.is_sqlite

    def run(self, statement: Executable, params: Params) -> Any:
        cursor = self._execute(self._book[statement], params)
        if isinstance(statement, Delete):
            self._count_out(statement, cursor.rowcount)
        return cursor

    def _count_out(self, statement: Delete, gone: int) -> None:
        """A trigger counts what comes; what goes is counted here, so that nobody else can take a row unnoticed."""
        if self.is_sqlite and gone:
            self.run(_COUNT_OUT, {"counter": COUNTED.format(statement.table.description), "gone": gone})

    def many(self, statement: Executable, params: Sequence[Params]) -> int:
        """Run one statement for each set of values, in one go; how many rows it touched."""
        if len(params) == 1:  # Postgres' driver takes more round trips for a batch, however small
            alone: int = self.run(statement, params[0]).rowcount
            return alone
        cursor = self._connection.cursor()
        cursor.executemany(self._book[statement], params)
        touched: int = cursor.rowcount
        if isinstance(statement, Delete):
            self._count_out(statement, touched)
        return touched

    def one(self, statement: Executable, params: Params) -> Any:
        return self._execute(self._book[statement], params).fetchone()

    def all(self, statement: Executable, params: Params) -> list[Any]:
        rows: list[Any] = self._execute(self._book[statement], params).fetchall()
        return rows

    def touch(self, topic: str) -> None:
        self.topics[topic] = 0
