"""`holdfast town`: run a town, watch it, replay it, teach its residents, and inspect what was kept."""

from __future__ import annotations

import json
import os
import platform
import secrets
import shlex
import tempfile
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from holdfast.cli.options import CommandSet, Json, Port, needing, who, written_whole
from holdfast.cli.show import left, print_json, print_table, progress, step
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.workloads.townlife import Life, Recording, Rules
    from holdfast.workloads.townobserver import AuditFile
    from holdfast.workloads.townschool import TownTrainer, TrainingRound


RulesAt = Annotated[Path | None, Option("--rules", metavar="FILE", help="TOML that overrides the default rules.")]
Seed = Annotated[int, Option("--seed", metavar="N", min=0, max=2**63 - 1, help="The same seed, the same town.")]
Residents = Annotated[int | None, Option("--residents", metavar="N", min=1, max=256, help="How many live there.")]


def warn() -> None:
    """Says that the rules are about to be compiled, which takes a minute once."""
    from holdfast.workloads.townlife import is_cold

    if is_cold():
        typer.echo("compiling the rules of the town, once; this takes about a minute …", err=True)


def check_writable(*paths: Path | None) -> None:
    """Refuses paths whose folder does not exist, before any work."""
    for path in paths:
        if path is not None and not path.resolve().parent.is_dir():
            raise BadInput(str(path), why="its folder does not exist", remedy="make it first")


MOST_MB = 16.0  # that memory may grow by


def soak(
    ticks: Annotated[int, Option(metavar="N", min=1000, help="How many.")] = 1_000_000,
    seed: Seed = 1,
    rules: RulesAt = None,
    report: Annotated[Path | None, Option(metavar="FILE", help="Write a page about it.")] = None,
    json: Json = False,
) -> None:
    """Let a town live for very long, and see that memory stays flat and residents stay."""
    from holdfast.workloads import townobserver
    from holdfast.workloads.townlife import Life, read_rules

    told = read_rules(rules)
    check_writable(report)
    warn()
    with progress("living", ticks) as advance:
        done = townobserver.soak(
            Life(told, seed=seed), ticks, looks=20, memory_mb=memory_mb, clock=time.monotonic, each=advance
        )
    if report is not None:
        given = f"holdfast town soak --ticks {ticks} --seed {seed}" + (f" --rules {rules}" if rules else "")
        machine = f"Python {platform.python_version()} on {platform.machine()}"
        text = townobserver.page(done, command=given, date=f"{datetime.now(UTC):%Y-%m-%d}", machine=machine)
        with written_whole(report) as file:
            file.write(text)
    if json:
        print_json(done.plain())
    else:
        rows = [(look.tick, look.seconds, look.memory_mb, look.here, look.state[:12]) for look in done.looks]
        print_table([">tick", ">s", ">mb", ">here", "state"], rows)
        print(f"memory grew by {done.grown_mb:.1f} MB; {done.green} of {done.windows} windows were green")
        print(f"left: {', '.join(f'{count} for {cause}' for cause, count in done.left_for.items()) or 'nobody'}")
    if done.ticks < ticks:
        raise typer.Exit(130)
    if done.grown_mb > MOST_MB or not done.looks[-1].here:
        raise typer.Exit(1)


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * 4096 / 1e6, 1)


MINUTES = 1.5
QUICK = 30  # updates: enough to see residents learn, whatever the machine
PICTURE, NUMBERS = "curve.png", "lesson.json"  # in the folder, beside the weights
KEPT = Path(".holdfast/town")
EXAMS = 4  # who is examined at the end: the learnt, chance, scripts, the untaught


def learn(
    minutes: Annotated[
        float | None, Option(metavar="N", min=0.01, max=600, help=f"Of learning; {MINUTES:g} if nothing else ends it.")
    ] = None,
    updates: Annotated[int | None, Option(metavar="N", min=1, help="End after so many: the same, bit by bit.")] = None,
    quick: Annotated[bool, Option("--quick", help=f"{QUICK} updates, and a short exam.")] = False,
    seed: Annotated[int, Option(metavar="N", min=0, max=2**31 - 1, help="Of all chance.")] = 1,
    rules: RulesAt = None,
    residents: Residents = None,
    out: Annotated[
        Path | None, Option(metavar="FOLDER", help=f"For weights, numbers and the picture; else one in {KEPT}.")
    ] = None,
    picture: Annotated[
        Path | None, Option(metavar="FILE", help="Draw the curve, .png or .svg; else beside the weights.")
    ] = None,
    json: Json = False,
) -> None:
    """Teach residents by PPO on one core, and tell what they are paid in towns they never saw, beside chance and
    scripts. Ctrl-C ends the lesson; what was learnt is examined and kept all the same."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is read: networks this small are slower on more
    with needing("learn"):
        from holdfast.workloads import plots
        from holdfast.workloads.townlife import read_rules
        from holdfast.workloads.townschool import TownTrainer, TrainingPlan

    told = read_rules(rules, residents=residents)
    if picture is not None:
        plots.check_picture(picture)
    kept = _folder(seed) if out is None else out
    _check_kept(kept, picture)
    warn()
    plan = TrainingPlan(exams=3, exam_worlds=1, final_worlds=3) if quick else TrainingPlan()
    school = TownTrainer(told, plan, seed=seed)
    most = updates or (QUICK if quick else None)
    seconds = inf if minutes is None and most is not None else 60.0 * (minutes or MINUTES)
    is_whole = _teach(school, kept, seconds=seconds, most=most, quiet=json)
    with progress("examining", EXAMS) as advance:
        lesson = school.finish(is_whole=is_whole, each=lambda name: advance(now=f"{name} done"))
    _keep(lesson, kept, picture)
    if json:
        print_json(lesson.plain())
    else:
        _print(lesson, plots.training_line(lesson))
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
    try:
        KEPT.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(str(KEPT), why=error.strerror or str(error), remedy="give --out FOLDER") from None
    return KEPT / f"learn-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{seed}"


def _check_kept(out: Path, picture: Path | None) -> None:
    """Whether what comes of the lesson can be written, by writing there: it may take hours to come."""
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


def _teach(school: TownTrainer, out: Path, *, seconds: float, most: int | None, quiet: bool) -> bool:
    """The lesson, with what has been learnt written down at every look; False where Ctrl-C has ended it."""
    from holdfast.workloads.townschool import EvalPoint
    from holdfast.workloads.townschool import learn as taught

    is_whole = True
    with progress("learning", most) as advance:
        try:
            for news in taught(school, seconds=seconds, clock=time.monotonic, most=most):
                if not isinstance(news, EvalPoint):
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


def _keep(lesson: TrainingRound, out: Path, picture: Path | None) -> None:
    from holdfast.workloads import plots

    with written_whole(out / NUMBERS) as file:
        file.write(json.dumps(lesson.plain(), indent=2) + "\n")
    plots.draw_training(out / PICTURE if picture is None else picture, lesson)


def _print(lesson: TrainingRound, line: str) -> None:
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


HOST, PORT = "127.0.0.1", 8790
SPEED = 8.0  # ticks a second
SHARES = ("alive", "needs_met", "starving", "attendance", "failures")  # numbers that are parts of a whole

app = CommandSet("A town to live in.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TownOptions:
    """Which town it is, how far it may go, and what is kept of it."""

    seed: Seed = 1
    rules: RulesAt = None
    residents: Residents = None
    start: Annotated[Path | None, Option("--from", metavar="SNAPSHOT", help="Go on from a snapshot.")] = None
    record: Annotated[Path | None, Option(metavar="FILE", help="Keep frames, to look at any moment.")] = None
    privacy: Annotated[bool, Option("--privacy", help="Pseudonyms wherever residents are named or listed.")] = False
    stages: Annotated[Path | None, Option(metavar="FILE", help="The log that says which stages may be on.")] = None
    unlock: Annotated[str | None, Option(metavar="STAGE", help="Allow a stage by hand; kept in the log.")] = None
    why: Annotated[str, Option(metavar="TEXT", help="The reason for --unlock.")] = ""


def _life(how: TownOptions, *written: Path | None) -> Life:
    """A town whose windows are written down where there is a log of stages; `written` are files to come."""
    from holdfast.workloads.townlife import Life, Pseudonymizer, read_rules

    audit, allowed = _stages(how.stages, how.unlock, how.why)
    rules = read_rules(how.rules, residents=how.residents, unlocked=allowed)
    check_writable(*written, how.record)
    warn()
    veil = Pseudonymizer(key=secrets.token_bytes(32) if how.privacy else None)
    life = Life(rules, seed=how.seed, veil=veil, hear=None if audit is None else partial(_note, audit, rules))
    if how.start is not None:
        life.restore(how.start)
    return life


@app.command("run")
def run(
    how: TownOptions,
    days: Annotated[float, Option(metavar="N", min=0.001, max=10_000, help="How long.")] = 1.0,
    save: Annotated[Path | None, Option(metavar="FILE", help="Write a snapshot of the end.")] = None,
    replay: Annotated[Path | None, Option(metavar="FILE", help="Write what it takes to live it again.")] = None,
    json: Json = False,
) -> None:
    """Let scripted residents live for some days, and tell how the town did."""
    from holdfast.workloads.townlife import faults, new_recording, rounded
    from holdfast.workloads.townobserver import TownAlarms

    life = _life(how, save, replay)
    told = life.rules
    watch, news, windows = TownAlarms(), [], []
    ticks = max(1, round(days * told["ticks_per_day"]))
    with (
        nullcontext() if how.record is None else new_recording(how.record, life) as recording,
        progress("living", ticks) as advance,
    ):
        for _ in range(ticks):
            moment = life.step()
            news += [line.text for line in moment.lines]
            if recording is not None:
                recording.add(life.frame())
            if moment.window is not None:
                windows.append(rounded(moment.window) | {"tick": moment.tick, "faults": list(faults(moment.window))})
                watch.update(moment.window, moment.tick)
            advance()
    state = life.save(save) if save is not None else life.env.state.sha256()
    if replay is not None:
        life.write_script(replay)
    why_not = list(faults(life.kpis))
    if json:
        kept = {
            "state": state,
            "rules": told.sha256,
            "seed": life.seed,
            "tick": life.tick,
            "stages": told["stages"]["on"],
        }
        kept |= {"alerts": [one.message for one in watch.active], "left": [asdict(one) for one in life.left]}
        print_json(kept | {"kpis": rounded(life.kpis), "faults": why_not, "windows": windows})
        return
    for text in news[-8:]:
        print(text)
    rows = [
        (name.replace("_", " "), value if value is None or name not in SHARES else f"{value * 100:.3g} %")
        for name, value in life.kpis.items()
    ]
    print_table(["what", ">value"], rows)
    for one in life.left:
        print(f"left on tick {one.tick}: {one.name}, after {one.days:g} days ({one.cause})")
    print("healthy" if not why_not else "\n".join(why_not))
    print(f"state {state[:12]} after {life.tick} ticks")


def _stages(path: Path | None, unlock: str | None, why: str) -> tuple[AuditFile | None, tuple[str, ...] | None]:
    """The log, and which stages it allows; without a log, what the rules say."""
    if path is None:
        if unlock is not None:
            raise BadInput(f"--unlock {unlock}", why="there is no log to keep it in", remedy="give --stages FILE")
        return None, None

    from holdfast.workloads import townobserver as observer
    from holdfast.workloads.townlife import STAGES, read_rules

    audit = observer.AuditFile(path)
    if unlock is not None:
        observer.override(audit, stage=unlock, who=who(), why=why, order=STAGES, at=time.time())
    return audit, observer.stages(path, STAGES, int(read_rules()["stages"]["green_windows"]))


def _note(audit: AuditFile, rules: Rules, window: Mapping[str, float | None]) -> None:
    from holdfast.workloads.townlife import faults
    from holdfast.workloads.townobserver import note_window

    note_window(audit, stage=rules["stages"]["on"][-1], reasons=faults(window), at=time.time())


@app.command("watch")
def watch(
    how: TownOptions,
    web: Annotated[bool, Option("--web", help="Show it as a live page instead.")] = False,
    speed: Annotated[float, Option(metavar="N", min=0.1, max=4096, help="Ticks a second.")] = SPEED,
    ticks: Annotated[int | None, Option(metavar="N", min=1, help="End after so many.")] = None,
    host: Annotated[str, Option(metavar="HOST", help="Others than this machine need --token.")] = HOST,
    port: Port = PORT,
    token: Annotated[str | None, Option(metavar="TEXT", envvar="HOLDFAST_TOWN_TOKEN", help="To see the page.")] = None,
    operator: Annotated[
        str | None, Option(metavar="TEXT", envvar="HOLDFAST_TOWN_OPERATOR", help="Operators' token.")
    ] = None,
    admin: Annotated[str | None, Option(metavar="TEXT", envvar="HOLDFAST_TOWN_ADMIN", help="Admins' token.")] = None,
    audit: Annotated[Path, Option(metavar="FILE", help="Where orders are written down.")] = Path(
        ".holdfast/town/audit.jsonl"
    ),
) -> None:
    """Watch a town live: in the terminal, or, with --web, as a page in a browser. Ctrl-C ends it."""
    from holdfast.cli.townview import look, serve

    life = _life(how)
    if web:
        given = {"viewer": token, "operator": operator, "admin": admin}
        serve(life, how.record, address=(host, port), tokens=given, audit=audit, speed=speed)
    else:
        look(life, how.record, speed=speed, ticks=ticks)


@app.command("replay")
def replay(
    file: Annotated[Path, Argument(metavar="FILE", help="Of --replay, or of --record.")],
    rules: RulesAt = None,
    residents: Residents = None,
    tick: Annotated[int | None, Option(metavar="N", min=0, help="Only to, or from, this tick.")] = None,
    speed: Annotated[float, Option(metavar="N", min=0.1, max=4096, help="Of a recording.")] = 32.0,
    json: Json = False,
) -> None:
    """Live a town again and see that it comes to the same end; or play a recording."""
    from holdfast.workloads.townlife import inspect_script, read_rules, rounded
    from holdfast.workloads.townlife import replay as again

    if _kind(file) == "recording":
        _play(file, tick or 0, speed, json)
        return
    script = inspect_script(file)
    warn()
    with progress("living again", min(script["ticks"], tick or script["ticks"])) as advance:
        life, is_same = again(file, read_rules(rules, residents=residents), upto=tick, each=advance)
    if json:
        told = {"tick": life.tick, "state": life.env.state.sha256(), "same": is_same, "kpis": rounded(life.kpis)}
        print_json(told | {"commands": len(script["commands"])})
    else:
        words = {True: "the same, bit by bit", False: "NOT the same", None: "not compared"}
        print(f"{life.tick} ticks, {len(script['commands'])} commands: {words[is_same]}")
    if is_same is False:
        raise typer.Exit(1)


def _kind(file: Path) -> str:
    """What a file of ours is, by how it begins."""
    try:
        with file.open("rb") as opened:
            head = opened.read(200)
    except OSError as error:
        raise BadInput(str(file), why=error.strerror or str(error), remedy="name a file that can be read") from None
    if head.startswith(b"PK"):
        return "snapshot"
    return "replay" if head.startswith(b'{"replay"') else "recording"


def _play(file: Path, tick: int, speed: float, json: bool) -> None:
    from rich.console import Console

    from holdfast.cli.townview import animate, moment
    from holdfast.workloads.townlife import open_recording

    console = Console(highlight=False)
    with open_recording(file) as recording:
        frames = recording.frames(tick, most=10**9)
        if json:
            print_json(next(frames, None))
        elif console.is_terminal:
            animate(console, recording.legend, lambda: next(frames), speed=speed, ticks=None)
        else:
            for frame in frames:
                for line in frame.get("lines", ()):
                    print(f"{moment(recording.legend, line['tick'])}  {line['text']}")


@app.command("inspect")
def inspect(
    file: Annotated[Path, Argument(metavar="FILE", help="A snapshot, a replay or a recording.")], json: Json = False
) -> None:
    """Tell what a file is, and of which town."""
    from holdfast.workloads.townlife import inspect_script, inspect_snapshot, open_recording

    kind = _kind(file)
    if kind == "snapshot":
        told = inspect_snapshot(file)
    elif kind == "replay":
        told = inspect_script(file)
        told["commands"] = len(told["commands"])
    else:
        with open_recording(file) as recording:
            told = _about(recording)
    told = {"kind": kind, **told}
    if json:
        print_json(told)
    else:
        print_table(["what", "~value"], list(told.items()))


def _about(recording: Recording) -> dict[str, Any]:
    first, last = recording.ticks
    legend = recording.legend
    told = {key: legend[key] for key in ("schema", "town", "rules", "day")}
    return told | {"first_tick": first, "last_tick": last, "private": bool(legend.get("private"))}


@app.command("validate")
def validate(
    file: Annotated[Path | None, Argument(metavar="[FILE]", help="Rules; without it, the default ones.")] = None,
    json: Json = False,
) -> None:
    """Check a file of rules, and list everything that is wrong with it."""
    from holdfast.workloads.townlife import read_rules, rule_faults

    faults = rule_faults(file)
    sha256 = None if faults else read_rules(file).sha256
    if json:
        print_json({"valid": not faults, "rules": sha256, "faults": faults})
    elif faults:
        for fault in faults:
            print(f"{fault['where']}: {fault['why']}; {fault['remedy']}")
    else:
        print(f"the rules are whole: {sha256}")
    if faults:
        raise typer.Exit(1)


@app.command("orders")
def orders(json: Json = False) -> None:
    """List what can be ordered of a town that is watched, and who may."""
    from holdfast.workloads.townlife import described

    told = described()
    if json:
        print_json(told)
    else:
        print_table(["~order", "role", "~what"], [(one["usage"], one["role"], one["what"]) for one in told])


@app.command("bench")
def bench(
    worlds: Annotated[int, Option(metavar="N", min=1, max=4096, help="At once.")] = 64,
    ticks: Annotated[int, Option(metavar="N", min=1, help="How many.")] = 100,
    seed: Seed = 1,
    rules: RulesAt = None,
    json: Json = False,
) -> None:
    """Measure how fast the town is on one core: scripted residents, compact observations."""
    from holdfast.workloads.townlife import bench as measure
    from holdfast.workloads.townlife import read_rules

    warn()
    with progress("measuring", None):
        told = measure(read_rules(rules), worlds=worlds, ticks=ticks, seed=seed, clock=time.process_time)
    if json:
        print_json(told)
    else:
        print_table(["what", ">value"], [(name.replace("_", " "), value) for name, value in told.items()])


app.command("soak")(soak)
app.command("learn")(learn)
