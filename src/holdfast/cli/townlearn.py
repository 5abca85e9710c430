"""`holdfast town learn`: a policy for residents, taught by PPO, examined in towns that it never saw."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import Json
from holdfast.cli.townoptions import Residents, RulesAt, check_writable, warn
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.workloads.townschool import Course, Lesson, School

MINUTES = 1.5
QUICK = 30  # updates: enough to see residents learn, whatever the machine
PICTURE, NUMBERS = "curve.png", "lesson.json"  # in the folder, beside the weights


def learn(
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes", metavar="N", min=0.01, max=600, help=f"Of learning; {MINUTES:g} if nothing else ends it."
        ),
    ] = None,
    updates: Annotated[
        int | None, typer.Option("--updates", metavar="N", min=1, help="End after so many: the same, bit by bit.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help=f"{QUICK} updates, and a short exam.")] = False,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**31 - 1, help="Of all chance.")] = 1,
    rules: RulesAt = None,
    residents: Residents = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Keep weights, numbers and the picture there.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Draw the curve, .png or .svg; else into --out.")
    ] = None,
    json: Json = False,
) -> None:
    """Teach residents by PPO on one core, and tell what they are paid in towns they never saw, beside chance and
    scripts. Ctrl-C ends the lesson; what was learnt is examined and kept all the same."""
    import os
    from math import inf

    from holdfast.cli.show import print_json
    from holdfast.cli.sprout import needing

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is read: networks this small are slower on more
    with needing("learn"):
        from holdfast.operate import schooling
        from holdfast.workloads.townlife import read_rules
        from holdfast.workloads.townschool import School

    told = read_rules(rules, residents=residents)
    check_writable(out, picture)
    if out is not None and out.exists() and not out.is_dir():
        raise BadInput(str(out), why="is a file", remedy="name a folder")
    if picture is not None:
        schooling.check_picture(picture)
    warn()
    school = School(told, _course(quick), seed=seed)
    most = updates or (QUICK if quick else None)
    seconds = inf if minutes is None and most is not None else 60.0 * (minutes or MINUTES)
    is_whole = _teach(school, out, seconds=seconds, most=most, quiet=json)
    lesson = school.finish(is_whole=is_whole)
    _keep(lesson, out, picture)
    if json:
        print_json(lesson.plain())
    else:
        _print(lesson, schooling.line_of(lesson))
        if out is not None:
            print(f"kept in {out}")
    if not is_whole:
        raise typer.Exit(130)
    if not lesson.is_better:
        raise typer.Exit(1)


def _course(quick: bool) -> Course:
    from holdfast.workloads.townschool import Course

    return Course(exams=3, exam_worlds=1, final_worlds=3) if quick else Course()


def _teach(school: School, out: Path | None, *, seconds: float, most: int | None, quiet: bool) -> bool:
    """The lesson, with what has been learnt written down at every look; False where Ctrl-C has ended it."""
    import time

    from holdfast.cli.show import progress
    from holdfast.workloads.townschool import Point
    from holdfast.workloads.townschool import learn as taught

    is_whole = True
    with progress("learning", most) as advance:
        try:
            for news in taught(school, seconds=seconds, clock=time.monotonic, most=most):
                if not isinstance(news, Point):
                    advance(now=f"{school.seconds:.0f} s")
                    continue
                if not quiet:
                    span = f"{news.low:.2f} to {news.high:.2f}"
                    typer.echo(f"{news.step:>11,} steps  {news.mean_return:8.2f}  ({span})", err=True)
                if out is not None:
                    school.save(out, now=time.time())
        except KeyboardInterrupt:
            is_whole = False
            typer.echo("ended; examining what was learnt (Ctrl-C again leaves that out)", err=True)
        if out is not None:
            school.save(out, now=time.time())
    return is_whole


def _keep(lesson: Lesson, out: Path | None, picture: Path | None) -> None:
    import json

    from holdfast.cli.files import written_whole
    from holdfast.operate import schooling

    if out is not None:
        with written_whole(out / NUMBERS) as file:
            file.write(json.dumps(lesson.plain(), indent=2) + "\n")
    for path in (picture, None if out is None or picture is not None else out / PICTURE):
        if path is not None:
            schooling.draw(path, lesson)


def _print(lesson: Lesson, line: str) -> None:
    from holdfast.cli.show import print_table

    rows = [
        (name, score.value, f"{score.interval.low:.2f} to {score.interval.high:.2f}")
        for name, score in sorted(lesson.scores.items(), key=lambda item: -item[1].value)
    ]
    print_table(["who", ">paid a day", "95 %"], rows)
    print(f"on the way  {line}")
    gain = lesson.over_random
    word = "better than chance" if lesson.is_better else "NOT shown to be better than chance"
    print(f"{word}: {gain.low:+.2f} to {gain.high:+.2f} a day in the same towns")
    print(f"{lesson.updates} updates, {lesson.steps:,} agent-steps, {lesson.seconds:.0f} s of learning")
