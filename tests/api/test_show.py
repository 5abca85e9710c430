"""How things look: 80 columns of text, and HTML that says the same."""

from __future__ import annotations

from holdfast.api.show import Shown, TextTable, html, text

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
