"""Lines that fit 80 columns: sentences that are folded, the commands that come next, and the files that were left."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from holdfast.cli.options import DEFAULT_STORE

WIDTH = 79


def folded(text: str, indent: str = "") -> list[str]:
    from textwrap import wrap

    return wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def place(store: str, project: str) -> str:
    """The options that find the store again; none where it is the usual one."""
    at = "" if store == DEFAULT_STORE else f" --store {shlex.quote(store)}"
    return at + ("" if project == "default" else f" --project {shlex.quote(project)}")


def step(command: str, about: str = "", indent: str = "  ") -> Iterator[str]:
    """A command with what it is for: beside it where there is room, else above; one that is too long is carried on."""
    beside = f"{indent}{command}   # {about}"
    if about and len(beside) <= WIDTH:
        yield beside
        return
    if about:
        yield f"{indent}# {about}"
    first, *options = command.split(" --")
    line = indent + first
    for word in options:
        if len(line) + len(f" --{word} \\") > WIDTH:
            yield f"{line} \\"
            line = f"{indent}  --{word}"
        else:
            line += f" --{word}"
    yield line


def left(what: str, path: Path | str, indent: str = "") -> list[str]:
    """Where a file lies; on a line of its own where it would be too wide beside what it is: a path is not folded."""
    shown = near(path)
    beside = f"{indent}{what}  {shown}"
    return [beside] if len(beside) <= WIDTH else [f"{indent}{what}", shown]


def near(path: Path | str) -> str:
    """As short as it can be told from here."""
    found, here = Path(path).absolute(), Path.cwd()
    return str(found.relative_to(here)) if found.is_relative_to(here) else str(path)
