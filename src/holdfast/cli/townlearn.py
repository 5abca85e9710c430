"""`holdfast town learn`: a policy for residents, taught by PPO, examined in towns that it never saw."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.onward import left, step
from holdfast.cli.options import Json
from holdfast.cli.townoptions import Residents, RulesAt, check_writable, warn
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.workloads.townschool import School, TrainingPlan, TrainingRound

MINUTES = 1.5
QUICK = 30  # updates: enough to see residents learn, whatever the machine
PICTURE, NUMBERS = "curve.png", "lesson.json"  # in the folder, beside the weights
KEPT = Path(".holdfast/town")
EXAMS = 4  # who is examined at the end: the learnt, chance, scripts, the untaught


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
        Path | None,
        typer.Option("--out", metavar="FOLDER", help=f"For weights, numbers and the picture; else one in {KEPT}."),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help="Draw the curve, .png or .svg; else beside the weights."),
    ] = None,
    json: Json = False,
) -> None:
    """Teach residents by PPO on one core, and tell what they are paid in towns they never saw, beside chance and
    scripts. Ctrl-C ends the lesson; what was learnt is examined and kept all the same."""
    import os
    from math import inf

    from holdfast.cli.options import needing
    from holdfast.cli.show import print_json

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is read: networks this small are slower on more
    with needing("learn"):
        from holdfast.workloads import schooling
        from holdfast.workloads.townlife import read_rules
        from holdfast.workloads.townschool import School

    told = read_rules(rules, residents=residents)
    if picture is not None:
        schooling.check_picture(picture)
    kept = _folder(seed) if out is None else out
    _check_kept(kept, picture)
    warn()
    school = School(told, _course(quick), seed=seed)
    most = updates or (QUICK if quick else None)
    seconds = inf if minutes is None and most is not None else 60.0 * (minutes or MINUTES)
    is_whole = _teach(school, kept, seconds=seconds, most=most, quiet=json)
    lesson = _examine(school, is_whole=is_whole)
    _keep(lesson, kept, picture)
    if json:
        print_json(lesson.plain())
    else:
        _print(lesson, schooling.line_of(lesson))
        longer = f"holdfast town learn --minutes {max(10, round(4 * (minutes or MINUTES)))} --seed {seed}"
        given = (f" --rules {shlex.quote(str(rules))}" if rules else "") + (
            f" --residents {residents}" if residents else ""
        )
        print("\n".join([*left("kept in", kept), "next:", *step(longer + given, "a longer lesson pays more")]))
    if not is_whole:
        raise typer.Exit(130)
    if not lesson.is_better:
        raise typer.Exit(1)


def _folder(seed: int) -> Path:
    """One of its own, in the state folder: what was learnt is never thrown away."""
    import time

    try:
        KEPT.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(str(KEPT), why=error.strerror or str(error), remedy="give --out FOLDER") from None
    return KEPT / f"learn-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{seed}"


def _check_kept(out: Path, picture: Path | None) -> None:
    """Whether what comes of the lesson can be written, by writing there: it may take hours to come."""
    import tempfile

    check_writable(out, picture)
    if out.exists() and not out.is_dir():
        raise BadInput(str(out), why="is a file", remedy="name a folder")
    for path, folder in ((out, out), (picture, picture and picture.resolve().parent)):
        if path is None or folder is None:
            continue
        try:
            folder.mkdir(exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            why = f"cannot be written: {error.strerror or error}"
            raise BadInput(str(path), why=why, remedy="choose another place") from None


def _course(quick: bool) -> TrainingPlan:
    from holdfast.workloads.townschool import TrainingPlan

    return TrainingPlan(exams=3, exam_worlds=1, final_worlds=3) if quick else TrainingPlan()


def _teach(school: School, out: Path, *, seconds: float, most: int | None, quiet: bool) -> bool:
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
                school.save(out, now=time.time())
        except KeyboardInterrupt:
            is_whole = False
            typer.echo("ended; examining what was learnt (Ctrl-C again leaves that out)", err=True)
        school.save(out, now=time.time())
    return is_whole


def _examine(school: School, *, is_whole: bool) -> TrainingRound:
    from holdfast.cli.show import progress

    with progress("examining", EXAMS) as advance:
        return school.finish(is_whole=is_whole, each=lambda name: advance(now=f"{name} done"))


def _keep(lesson: TrainingRound, out: Path, picture: Path | None) -> None:
    import json

    from holdfast.cli.files import written_whole
    from holdfast.workloads import schooling

    with written_whole(out / NUMBERS) as file:
        file.write(json.dumps(lesson.plain(), indent=2) + "\n")
    schooling.draw(out / PICTURE if picture is None else picture, lesson)


def _print(lesson: TrainingRound, line: str) -> None:
    from holdfast.cli.show import print_table

    rows = [
        (name, score.value, f"{score.interval.low:.2f} to {score.interval.high:.2f}")
        for name, score in sorted(lesson.scores.items(), key=lambda item: -item[1].value)
    ]
    print_table(["who", ">paid a day", "95 %"], rows)
    print("paid a day: a resident's rewards of a day, less its troubles; more is better")
    print(f"on the way  {line}")
    gain = lesson.over_random
    word = "better than chance" if lesson.is_better else "NOT shown to be better than chance"
    print(f"{word}: {gain.low:+.2f} to {gain.high:+.2f} a day in the same towns")
    print(f"{lesson.updates} updates, {lesson.steps:,} agent-steps, {lesson.seconds:.0f} s of learning")
