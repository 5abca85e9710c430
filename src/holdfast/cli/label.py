"""`holdfast label`: the answers on which judges abstained or disagreed, one by one, for a person to decide.

Each label is kept before the next answer is shown: whoever stops, in any way, goes on where they were.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import show
from holdfast.cli.onward import place
from holdfast.cli.options import DEFAULT_STORE, Json, Limit, Project, StoreAt, existing, who
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.contracts.judgement import EvalItem, ReviewRequest
    from holdfast.store.store import Store

KEYS = {"y": True, "n": False, "u": None}
HELP = "y yes, n no, u cannot be told, s skip, q quit; a reason may follow"
LONGEST = 2000  # characters of one part that are shown
EPILOG = f"""Answer with {HELP}: "n the total is wrong".

Labels are kept at once, with your login as who made them, and are used by 'holdfast judge calibrate'."""


def label(
    limit: Limit = 1000,
    name: Annotated[str | None, typer.Option("--who", metavar="NAME", help="Who labels; else your login.")] = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Decide what judges could not, at a terminal: a label is a person's word. --json only lists what waits."""
    with existing(store, project) as opened:
        waiting = opened.judgements.doubts(most=limit)
        if json:
            show.print_records(waiting)
            return
        if not waiting:
            print("nothing waits for a label")
            return
        if not sys.stdin.isatty():
            remedy = "use a terminal; what a program knows goes in with: holdfast judge calibrate --labels FILE"
            raise BadInput("label", why="a label is a person's word, and the input is no terminal", remedy=remedy)
        done = _ask(opened, waiting, name or who())
        left = opened.judgements.waiting()
    print(
        f"\n{show.count(done, 'label')} kept, {left} to go"
        + (f": holdfast label{place(store, project)}" if left else "")
    )


def _ask(opened: Store, waiting: list[ReviewRequest], name: str) -> int:
    """How many were labelled. The end of the input, and Ctrl-C, end it; what was answered is on disk by then."""
    done, replies = 0, _replies()
    try:
        for place, doubt in enumerate(waiting, 1):
            _show(opened.judgements.artefact(doubt.artefact), doubt, f"{place} of {len(waiting)}")
            reply = next(replies, "q")
            while (key := reply[:1].lower()) not in (*KEYS, "s", "q") or reply[1:2].strip():
                print(HELP)
                reply = next(replies, "q")
            if key == "q":
                break
            if key != "s":
                _keep(opened, doubt, KEYS[key], reply[1:].strip(), name)
                done += 1
    except KeyboardInterrupt:
        print("\n(stopped)", end="")
    return done


def _replies() -> Iterator[str]:
    while True:
        try:
            yield input("holds? [y/n/u/s/q] ").strip()
        except EOFError:
            return


def _keep(opened: Store, doubt: ReviewRequest, holds: bool | None, why: str, name: str) -> None:
    from holdfast.contracts.judgement import Label, Maker

    given = Label(
        artefact=doubt.artefact,
        criterion=doubt.criterion,
        maker=Maker.PERSON,
        who=name,
        holds=holds,
        why=why,
        at=time.time(),
    )
    opened.judgements.label([given]).result()


def _show(artefact: EvalItem, doubt: ReviewRequest, place: str) -> None:
    from holdfast.reward.judges.judge import CRITERIA

    known = CRITERIA.get(doubt.criterion.partition("@")[0])
    print(
        f"\n--- {place} · {doubt.criterion} · {doubt.reason}" + (f" · {show.one_line(doubt.why)}" if doubt.why else "")
    )
    for title, text in (("task", artefact.task), ("context", artefact.context), ("answer", artefact.output)):
        if text or title == "answer":
            print(f"{title}:")
            for line in text[:LONGEST].splitlines() or ["(nothing)"]:
                print("  " + "".join(letter if letter.isprintable() else "�" for letter in line))
            if len(text) > LONGEST:
                print(f"  … and {len(text) - LONGEST} more characters")
    if known is not None:
        print(known.question)
