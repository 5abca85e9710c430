"""`holdfast diff`: what a change did to the trees of its files, what that cost, and what of it nobody needed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import show
from holdfast.cli.options import Json
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from rich.text import Text

    from holdfast.reward.diff.edits import Change, EditFinding, EditPart
    from holdfast.reward.diff.minimality import Excess

LARGEST = 5_000_000  # bytes of a file that is read
CONTEXT = 3  # unchanged lines around a hunk on the page
MOST_PARTS = 200  # edits of one file that the terminal shows
IGNORED = frozenset({"__pycache__", "node_modules"})
SIGNS = {"insert": ("+", "green"), "delete": ("-", "red"), "update": ("~", "yellow"), "move": (">", "cyan")}


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    path: str
    cost: float
    parts: tuple[EditPart, ...]
    errors: tuple[int, ...]  # lines after that do not parse
    is_coarse: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """All that is said about a change."""

    files: tuple[_File, ...]
    spent: Excess
    has_reference: bool
    multiplier: float
    scaffolding: tuple[EditFinding, ...]
    vetoes: tuple[EditFinding, ...]

    @property
    def is_minimal(self) -> bool:
        return self.spent.excess == 0.0 and not self.scaffolding and not self.spent.is_broken


def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A file or a folder.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="The same, changed.")],
    reference: Annotated[
        Path | None, typer.Option("--reference", metavar="PATH", help="The least fix, if one is known.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page instead.")] = None,
    json: Json = False,
) -> None:
    """Show how a program was changed, node by node: what was inserted, deleted, updated or moved.

    Python, JavaScript and TypeScript are compared as trees, so that layout costs nothing; other files line by line.
    The last line says what the change cost, what in it looks like scaffolding, and what works on the tests instead of
    on the task.
    """
    change = _change(before, after)
    least = None if reference is None else _references(before, reference, change)
    seen = _look(change, least)
    if html is not None:
        _write(html, _page(change, seen))
    if json:
        show.print_json(_told(seen) | ({} if html is None else {"page": str(html)}))
    elif html is not None:
        print(html)
        print(_summary(seen))
    else:
        _print(seen)


def _change(before: Path, after: Path) -> Change:
    for path in (before, after):
        if not path.exists():
            raise BadInput(str(path), why="does not exist", remedy="give two files, or two folders")
    if before.is_dir() != after.is_dir():
        raise BadInput(f"{before} and {after}", why="are a file and a folder", remedy="give two of one kind")
    if not before.is_dir():
        pairs: Change = {after.name: (_text(before), _text(after))}
    else:
        paths = sorted({*_inside(before), *_inside(after)})
        pairs = {path: (_found(before / path), _found(after / path)) for path in paths}
    return {path: texts for path, texts in pairs.items() if texts[0] != texts[1]}


def _inside(folder: Path) -> list[str]:
    found = []
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part in IGNORED or part.startswith(".") for part in parts):
            found.append("/".join(parts))
    return found


def _found(path: Path) -> str | None:
    """The text of a file in a folder; None where there is none, or no text in it."""
    if not path.is_file() or path.stat().st_size > LARGEST:
        return None
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        return None


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise BadInput(str(path), why=f"is larger than {show.size(LARGEST)}", remedy="compare parts of it")
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        raise BadInput(str(path), why="is not UTF-8 text", remedy="give source text") from None
    except OSError as error:
        raise BadInput(str(path), why=str(error.strerror), remedy="give a file that can be read") from None


def _references(before: Path, reference: Path, change: Change) -> dict[str, str | float]:
    if not reference.exists() or reference.is_dir() != before.is_dir():
        kind = "a folder" if before.is_dir() else "a file"
        raise BadInput(f"--reference {reference}", why=f"is not {kind}", remedy=f"give {kind}, like BEFORE")
    if not reference.is_dir():
        return dict.fromkeys(change, _text(reference))
    found = {path: _found(reference / path) for path in change}
    return {path: text for path, text in found.items() if text is not None}


def _look(change: Change, references: dict[str, str | float] | None) -> _Seen:
    from holdfast.reward.diff import minimality, scaffold, tamper
    from holdfast.reward.diff.edits import compare, outline
    from holdfast.reward.diff.trees import language_of

    files = []
    with show.progress("comparing", len(change)) as advance:
        for path, (before, after) in change.items():
            script = compare(before or "", after or "", language_of(path))
            files.append(
                _File(
                    path=path,
                    cost=script.cost,
                    parts=outline(script, before or "", after or ""),
                    errors=script.both.after.errors,
                    is_coarse=script.both.is_coarse,
                )
            )
            advance(now=path)
        spent = minimality.total_excess(change, references)
        found = minimality.unneeded_scaffolding(change, references)
        vetoes = tamper.inspect(change)
    value = minimality.multiplier(spent.excess, scaffold.amount(found), reference_cost=spent.reference_cost)
    return _Seen(
        files=tuple(files),
        spent=spent,
        has_reference=references is not None,
        multiplier=min(value, minimality.BROKEN) if spent.is_broken else value,
        scaffolding=found,
        vetoes=vetoes,
    )


def _summary(seen: _Seen) -> str:
    if not seen.files:
        return "no change"
    spent = seen.spent
    least = "the least" if seen.has_reference else "a guess at the least"
    verdict = "minimal" if seen.is_minimal else f"×{seen.multiplier:.2f}"
    found = f"scaffolding {len(seen.scaffolding)}, vetoes {len(seen.vetoes)}"
    if spent.cost == 0.0 and not seen.has_reference:  # there is nothing that could be larger than a guess
        return f"cost 0.0, nothing but the layout has changed; {found}"
    return f"cost {spent.cost:.1f}, {least} {spent.reference_cost:.1f}: {verdict}; {found}"


def _print(seen: _Seen) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for file in seen.files:
        console.print(
            Text(f"{file.path}  cost {file.cost:.1f}{_note(file)}", style="bold"), no_wrap=True, overflow="ellipsis"
        )
        for part in file.parts[:MOST_PARTS]:
            console.print(_row(part, console.width), no_wrap=True, overflow="ellipsis")
        if len(file.parts) > MOST_PARTS:
            print(f"  … {len(file.parts) - MOST_PARTS} more; --json and --html have all")
    for title, style, found in (("scaffolding", "yellow", seen.scaffolding), ("veto", "bold red", seen.vetoes)):
        for one in found:
            line = Text(f"{title}: {one.path}:{one.line}  {one.rule}  {show.one_line(one.what)}", style=style)
            console.print(line, no_wrap=True, overflow="ellipsis")
    print(_summary(seen))


def _note(file: _File) -> str:
    if file.errors:
        return f"  does not parse at line {file.errors[0]}: compared word by word"
    return "  too much differs for trees: compared line by line" if file.is_coarse else ""


def _row(part: EditPart, width: int) -> Text:
    from rich.text import Text

    sign, style = SIGNS[part.verb]
    text = f"{part.was} → {part.text}" if part.verb == "update" else part.text
    head = f"  {sign} {part.line:>5}  {part.kind[:22]:<22}  "
    shown = show.one_line(text)
    room = max(8, width - len(head) - 8)
    shown = shown if len(shown) <= room else f"{shown[: room - 1]}…"
    return Text(f"{head}{shown:<{room}} {part.cost:>6.1f}", style=style)


def _told(seen: _Seen) -> dict[str, Any]:
    return {
        "files": [
            {
                "path": file.path,
                "cost": round(file.cost, 4),
                "parse_errors": list(file.errors),
                "is_coarse": file.is_coarse,
                "edits": [asdict(part) for part in file.parts],
            }
            for file in seen.files
        ],
        "cost": round(seen.spent.cost, 4),
        "reference_cost": round(seen.spent.reference_cost, 4) if seen.has_reference else None,
        "excess": round(seen.spent.excess, 4),
        "is_minimal": seen.is_minimal,
        "multiplier": round(seen.multiplier, 4),
        "scaffolding": [asdict(one) for one in seen.scaffolding],
        "vetoes": [asdict(one) for one in seen.vetoes],
    }


def _page(change: Change, seen: _Seen) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(loader=PackageLoader("holdfast.operate"), autoescape=True, undefined=StrictUndefined)
    hunks = {path: _hunks(before or "", after or "") for path, (before, after) in change.items()}
    notes = {file.path: _note(file) for file in seen.files}
    signs = {verb: sign for verb, (sign, _) in SIGNS.items()}
    page = pages.get_template("diff.html")
    return page.render(seen=seen, hunks=hunks, notes=notes, signs=signs, summary=_summary(seen))


def _hunks(before: str, after: str) -> list[list[tuple[str, int, str]]]:
    """Lines that differ with some around them: (kind, number, text). Those that share what is around them are one."""
    from holdfast.reward.diff.trees import line_changes, normalise_newlines

    old, new = normalise_newlines(before).split("\n"), normalise_newlines(after).split("\n")
    found: list[list[tuple[str, int, str]]] = []
    reached = 0  # of the lines after, those that are shown

    def same(start: int, end: int) -> list[tuple[str, int, str]]:
        return [("same", at + 1, new[at]) for at in range(start, end)]

    for b0, b1, a0, a1 in line_changes(old, new):
        if not found or a0 - CONTEXT > reached + CONTEXT:
            if found:
                found[-1] += same(reached, reached + CONTEXT)
            found.append([])
            reached = max(0, a0 - CONTEXT)
        found[-1] += same(reached, a0)
        found[-1] += [("delete", at + 1, old[at]) for at in range(b0, b1)]
        found[-1] += [("insert", at + 1, new[at]) for at in range(a0, a1)]
        reached = a1
    if found:
        found[-1] += same(reached, min(len(new), reached + CONTEXT))
    return found


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--html {path}", why=str(error.strerror), remedy="name a file that can be written") from None
