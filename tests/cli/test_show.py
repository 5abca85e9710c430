"""Tables that fit, text that prints, a bar that waits two seconds."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from holdfast.cli import show
from tests.cli.conftest import Cli


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"),
        (0.0, "0"),
        (1 / 3, "0.3333"),
        (3, "3"),
        ("two\n lines\tand more", "two lines and more"),
        ("bell\a and escape\x1b[31m", "bell� and escape�[31m"),
        ({"a": ["ä"]}, '{"a": ["ä"]}'),
        ("[bold]not markup[/]", "[bold]not markup[/]"),
        ("x" * 1000, "x" * 200),
    ],
)
def test_any_value_becomes_one_printable_line(value: object, expected: str) -> None:
    assert show.one_line(value) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, "-"),
        (0.0, "0.0 ms"),
        (0.0042, "4.2 ms"),
        (0.5, "500 ms"),
        (1.25, "1.2 s"),
        (90, "90.0 s"),
        (150, "2 min"),
        (7200, "2 h"),
        (200_000, "2 d"),
    ],
)
def test_a_span_of_time_has_its_unit(seconds: float | None, expected: str) -> None:
    assert show.span_of_time(seconds) == expected


@pytest.mark.parametrize(
    ("n", "expected"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e6, "2.5 MB"), (3e9, "3.0 GB"), (4e12, "4.0 TB")],
)
def test_a_size_has_its_unit(n: float, expected: str) -> None:
    assert show.size(n) == expected


def test_a_moment_is_local_time(cli: Cli) -> None:
    assert show.moment(1_000_000.0) == "1970-01-12 13:46:40"
    assert show.moment(None) == "-"


@pytest.mark.parametrize(
    ("wide", "soft", "room", "expected"),
    [
        ([5, 5], [False, False], 20, [5, 5]),  # there is room
        ([5, 30], [False, True], 20, [5, 15]),  # the soft one gives way
        ([30, 30], [True, True], 40, [20, 20]),  # two soft ones share
        ([30, 30], [False, True], 30, [22, 8]),  # a soft one keeps 8, then the others give
        ([3, 3, 3], [False] * 3, 2, [1, 1, 1]),  # never less than one
    ],
)
def test_columns_share_the_room(wide: list[int], soft: list[bool], room: int, expected: list[int]) -> None:
    assert show.fit(wide, soft, room) == expected


def test_a_table_fits_whatever_is_in_it(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("id", 12, "long " * 50), ("漢字" * 30, None, "[red]"), ("a\nb", 0.5, "")]
    show.print_table(("name", ">n", "~text"), rows)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(Console().measure(line).maximum <= 80 for line in lines)
    assert lines[0].split() == ["name", "n", "text"]
    assert lines[1].split()[:2] == ["id", "12"] and lines[1].rstrip().endswith("…")
    assert "[red]" in lines[2]


@pytest.mark.parametrize(
    ("room", "kept"),
    [(40, [0, 1, 2, 3]), (37, [0, 1, 3]), (30, [0, 3])],  # the soft one may shrink to 8; the last marked goes first
)
def test_a_column_that_can_be_spared_goes_before_any_is_cut(room: int, kept: list[int]) -> None:
    assert show.keep(("a", "?b", "?>c", "~d"), [16, 4, 4, 20], room) == kept


def test_the_next_page_is_a_command_that_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    show.next_page("rollouts", "run-1", quiet=False, status=None, after="a b", store="x.db")
    show.next_page("runs", quiet=True, limit=3)
    shown = capsys.readouterr()
    assert shown.out == "more: holdfast rollouts run-1 --after 'a b' --store x.db\n"
    assert shown.err == "more: holdfast runs --limit 3\n"


def terminal(kind: str) -> Console:
    return Console(file=io.StringIO(), force_terminal=kind == "terminal", width=80)


@pytest.mark.parametrize(
    ("kind", "after_s", "shown"),
    [("terminal", 0.1, True), ("terminal", 60.0, False), ("file", 0.1, False)],
)
def test_a_bar_appears_after_a_while_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, kind: str, after_s: float, shown: bool
) -> None:
    assert show.PATIENCE_S == 2.0
    monkeypatch.setattr(show, "PATIENCE_S", after_s)
    console = terminal(kind)
    text, until = "", time.monotonic() + (60.0 if shown else 0.3)
    with show.progress("counting", 10, console) as advance:
        advance(3, now="sheep")
        while "3/10" not in text and time.monotonic() < until:
            time.sleep(0.02)
            text = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("counting: sheep" in text and "3/10" in text) == shown
    assert shown or text == ""


def test_a_bar_is_taken_away_when_the_work_fails() -> None:
    console = terminal("terminal")
    with pytest.raises(KeyError), show.progress("counting", 1, console):
        raise KeyError
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
