"""How results, runs and tables look: plain text of at most 80 columns, the same in a rich terminal, HTML in a notebook.

What is shown is a list of blocks: sentences, and grids of cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

WIDTH = 80


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows under columns; a column whose name begins with ">" is set to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


Block = str | TextTable


class Shown:
    """Whatever says of itself in blocks what there is to see."""

    __slots__ = ()

    def blocks(self) -> Sequence[Block]:
        raise NotImplementedError

    def __str__(self) -> str:
        return text(self.blocks())

    def __repr__(self) -> str:
        return str(self)

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(str(self))

    def _repr_html_(self) -> str:
        return html(self.blocks())


def text(blocks: Sequence[Block]) -> str:
    found: list[str] = []
    for block in blocks:
        if isinstance(block, TextTable):
            found += _grid(block)
        else:
            indent = len(block) - len(block.lstrip())
            found += wrap(
                block, WIDTH, subsequent_indent=" " * (indent + 2), break_on_hyphens=False, break_long_words=False
            ) or [""]
    return "\n".join(found)


def _grid(grid: TextTable) -> list[str]:
    names = [name.removeprefix(">") for name in grid.columns]
    cells = [names, *grid.rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(names))]
    while sum(widths) + 2 * (len(widths) - 1) > WIDTH - 2 and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in cells:
        shown = []
        for at, cell in enumerate(row):
            cut = cell if len(cell) <= widths[at] else cell[: widths[at] - 1] + "…"
            shown.append(cut.rjust(widths[at]) if grid.columns[at].startswith(">") else cut.ljust(widths[at]))
        lines.append(("  " + "  ".join(shown)).rstrip())
    return lines


def html(blocks: Sequence[Block]) -> str:
    found = []
    for block in blocks:
        if isinstance(block, str):
            found.append(f"<div>{escape(block)}</div>")
            continue
        right = [name.startswith(">") for name in block.columns]
        align = ["right" if one else "left" for one in right]
        head = "".join(
            f'<th style="text-align:{side}">{escape(name.removeprefix(">"))}</th>'
            for name, side in zip(block.columns, align, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f'<td style="text-align:{side}">{escape(cell)}</td>' for cell, side in zip(row, align, strict=True)
            )
            + "</tr>"
            for row in block.rows
        )
        found.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    return "".join(found)
