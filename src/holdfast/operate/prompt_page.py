"""The page of one search for a prompt, in one HTML file: the family of prompts, who won where, why each was dropped.

It needs no network and no script, and every text in it is data: prompts, tasks and reflections come from outside.
`pipeline.prompts.searches` says what a search is made of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from typing import Any

from holdfast.operate.proof import pages

MOST_TASKS, MOST_COLUMNS = 80, 40  # of the table of tasks and prompts
LONGEST_TASK = 90  # characters that are shown of a task
WORDS = re.compile(r"\S+\s*|\s+")
Piece = tuple[str, str]  # "same", "added" or "dropped", and the text


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptNode:
    """One prompt of the family tree with what changed, and those that were made from it."""

    prompt: Mapping[str, Any]
    changes: tuple[tuple[str, tuple[Piece, ...]], ...]  # by the name of the text
    children: tuple[PromptNode, ...]


def text_changes(before: str, after: str) -> tuple[Piece, ...]:
    """Compares two texts word by word."""
    old, new = WORDS.findall(before), WORDS.findall(after)
    # Spaces are no part of a word: else the last one would change where text is appended.
    words, now = [one.rstrip() for one in old], [one.rstrip() for one in new]
    found = list[Piece]()
    for kind, a, b, c, d in SequenceMatcher(None, words, now, autojunk=False).get_opcodes():
        if kind != "equal":
            found += [("dropped", "".join(old[a:b])), ("added", "".join(new[c:d]))]
            continue
        for one, two in zip(old[a:b], new[c:d], strict=True):
            word = one if one == two else one.rstrip()
            found += [("same", word), ("dropped", one[len(word) :]), ("added", two[len(word) :])]
    return tuple(_gathered(piece for piece in found if piece[1]))


def _gathered(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Between two words that stay, all that was dropped is one piece and all that was added another."""
    for is_same, some in groupby(pieces, key=lambda piece: piece[0] == "same"):
        run = list(some)
        for kind in ("same",) if is_same else ("dropped", "added"):
            if text := "".join(text for way, text in run if way == kind):
                yield kind, text


def prompt_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[tuple[str, tuple[Piece, ...]], ...]:
    """Lists the changes of every text that differs."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return tuple((name, text_changes(str(before.get(name, "")), str(after.get(name, "")))) for name in names)


def family(prompts: Sequence[Mapping[str, Any]]) -> PromptNode:
    """The tree of the prompts that were run, each below its first parent; what has none is below the one in force."""
    played = [prompt for prompt in prompts if prompt["rollouts"] or prompt["number"] == 0]
    known = {one["number"] for one in played}
    below: dict[int, list[Mapping[str, Any]]] = {}
    for one in played[1:]:
        parent = one["parents"][0] if one["parents"] and one["parents"][0] in known else 0
        below.setdefault(parent, []).append(one)

    def node(one: Mapping[str, Any], before: Mapping[str, Any] | None) -> PromptNode:
        changes = () if before is None else prompt_changes(before["texts"], one["texts"])
        children = tuple(node(child, one) for child in below.get(one["number"], ()))
        return PromptNode(prompt=one, changes=changes, children=children)

    return node(played[0], None)


def grid(search: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], list[tuple[str, list[tuple[str, str, bool]]]]]:
    """Prompts as columns and tasks as rows: each cell's reward, its shade, and whether nobody did better."""
    columns = [one for one in search["prompts"] if one["cells"]]
    if len(columns) > MOST_COLUMNS:
        columns = sorted(columns, key=lambda one: -len(one["cells"]))[:MOST_COLUMNS]
        columns.sort(key=lambda one: one["number"])
    rows = list(_rows(search, columns))
    rows.sort(key=lambda row: -len({cell[0] for cell in row[1] if cell[0]}))  # where they differ comes first
    return columns, rows[:MOST_TASKS]


def _rows(
    search: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, list[tuple[str, str, bool]]]]:
    for place, asked in search["tasks"].items():
        values = [column["cells"].get(place) for column in columns]
        known = [value for value in values if value is not None]
        if not known:
            continue
        top, is_told = max(known), max(known) > min(known)
        cells = [
            ("", "none", False)
            if value is None
            else (f"{value:.2g}", f"s{round(4 * min(1.0, max(0.0, value)))}", is_told and value == top)
            for value in values
        ]
        yield (asked if len(asked) <= LONGEST_TASK else f"{asked[:LONGEST_TASK]}…"), cells


def render(search: Mapping[str, Any]) -> str:
    """The page. The same search gives the same bytes."""
    base, best = search["prompts"][0], next((one for one in search["prompts"] if one["is_best"]), None)
    columns, rows = grid(search)
    return str(
        pages()
        .get_template("prompts.html")
        .render(
            search=search,
            base=base,
            best=best,
            headline=headline(search),
            changes=() if best is None else prompt_changes(base["texts"], best["texts"]),
            tree=family(search["prompts"]),
            columns=columns,
            rows=rows,
            idle=[one for one in search["prompts"] if not one["rollouts"] and one["number"]],
        )
    )


def headline(search: Mapping[str, Any]) -> str:
    """Sums up a search in one sentence."""
    tried = sum(bool(one["rollouts"]) for one in search["prompts"]) - 1
    held = search["held_out"]
    if held is None:
        if search["stopped"] is not None:
            return f"The search {search['stopped'].rstrip('.')}. Of its prompts {max(0, tried)} were tried."
        if not search["is_over"]:
            return f"The search goes on: {tried} prompts were tried so far."
        return f"No better prompt was found: {tried} were tried. {search['nothing'] or ''}".strip()
    if "difference" not in held:
        return f"{held['release']} could not be measured on held-out tasks."
    gain = f"{held['difference']:+.2f} on {held['tasks']} held-out tasks"
    if held["is_accepted"]:
        return f"A better prompt was found and proved: {held['release']}, {gain}."
    return f"A prompt was found, and it is held: {held['release']}, {gain}."
