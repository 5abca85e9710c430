"""`holdfast town`: live in a town, watch it, live it again, and see what is kept of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import townlearn, townsoak
from holdfast.cli.main import PLAIN
from holdfast.cli.options import Json
from holdfast.cli.townoptions import Residents, RulesAt, Seed, check_writable, warn
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.workloads.townlife import Life, Recording, Rules
    from holdfast.workloads.townobserver import AuditFile

HOST, PORT = "127.0.0.1", 8790
SPEED = 8.0  # ticks a second
SHARES = ("alive", "needs_met", "starving", "attendance", "failures")  # numbers that are parts of a whole

app = typer.Typer(add_completion=False, no_args_is_help=True, help="A town to live in.", **PLAIN)

Privacy = Annotated[bool, typer.Option("--privacy", help="Pseudonyms wherever residents are named or listed.")]
Record = Annotated[Path | None, typer.Option("--record", metavar="FILE", help="Keep frames, to look at any moment.")]
From = Annotated[Path | None, typer.Option("--from", metavar="SNAPSHOT", help="Go on from a snapshot.")]
Stages = Annotated[
    Path | None, typer.Option("--stages", metavar="FILE", help="The log that says which stages may be on.")
]
Unlock = Annotated[
    str | None, typer.Option("--unlock", metavar="STAGE", help="Allow a stage by hand; kept in the log.")
]
Reason = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason for --unlock.")]


def _life(rules: Rules, seed: int, start: Path | None, privacy: bool, audit: AuditFile | None = None) -> Life:
    """A town whose windows are written down where there is a log of stages."""
    import secrets
    from functools import partial

    from holdfast.workloads.townlife import Life, Pseudonymizer

    warn()
    veil = Pseudonymizer(key=secrets.token_bytes(32) if privacy else None)
    life = Life(rules, seed=seed, veil=veil, hear=None if audit is None else partial(_note, audit, rules))
    if start is not None:
        life.restore(start)
    return life


@app.command("run")
def run(
    days: Annotated[float, typer.Option("--days", metavar="N", min=0.001, max=10_000, help="How long.")] = 1.0,
    seed: Seed = 1,
    rules: RulesAt = None,
    residents: Residents = None,
    start: From = None,
    save: Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Write a snapshot of the end.")] = None,
    replay: Annotated[
        Path | None, typer.Option("--replay", metavar="FILE", help="Write what it takes to live it again.")
    ] = None,
    record: Record = None,
    privacy: Privacy = False,
    stages: Stages = None,
    unlock: Unlock = None,
    why: Reason = "",
    json: Json = False,
) -> None:
    """Let scripted residents live for some days, and tell how the town did."""
    from contextlib import nullcontext
    from dataclasses import asdict

    from holdfast.cli.show import print_json, progress
    from holdfast.workloads.townlife import faults, new_recording, read_rules, rounded
    from holdfast.workloads.townobserver import TownAlarms

    audit, allowed = _stages(stages, unlock, why)
    told = read_rules(rules, residents=residents, unlocked=allowed)
    check_writable(save, replay, record)
    life = _life(told, seed, start, privacy, audit)
    watch, news, windows = TownAlarms(), [], []
    ticks = max(1, round(days * told["ticks_per_day"]))
    with (
        nullcontext() if record is None else new_recording(record, life) as recording,
        progress("living", ticks) as advance,
    ):
        for _ in range(ticks):
            moment = life.step()
            news += [line.text for line in moment.lines]
            if recording is not None:
                recording.add(life.frame())
            if moment.window is not None:
                windows.append(rounded(moment.window) | {"tick": moment.tick, "faults": list(faults(moment.window))})
                watch.look(moment.window, moment.tick)
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
        kept |= {"alerts": [one.message for one in watch.standing], "left": [asdict(one) for one in life.left]}
        print_json(kept | {"kpis": rounded(life.kpis), "faults": why_not, "windows": windows})
        return
    for text in news[-8:]:
        print(text)
    _print_kpis(life)
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
    import time

    from holdfast.cli.options import who
    from holdfast.workloads import townobserver as observer
    from holdfast.workloads.townlife import STAGES, read_rules

    audit = observer.AuditFile(path)
    if unlock is not None:
        observer.override(audit, stage=unlock, who=who(), why=why, order=STAGES, at=time.time())
    return audit, observer.stages(path, STAGES, int(read_rules()["stages"]["green_windows"]))


def _note(audit: AuditFile, rules: Rules, window: Mapping[str, float | None]) -> None:
    import time

    from holdfast.workloads.townlife import faults
    from holdfast.workloads.townobserver import note_window

    note_window(audit, stage=rules["stages"]["on"][-1], reasons=faults(window), at=time.time())


def _print_kpis(life: Life) -> None:
    from holdfast.cli.show import print_table

    rows = [(name.replace("_", " "), _told(name, value)) for name, value in life.kpis.items()]
    print_table(["what", ">value"], rows)


def _told(name: str, value: float | None) -> object:
    return value if value is None or name not in SHARES else f"{value * 100:.3g} %"


@app.command("watch")
def watch(
    web: Annotated[bool, typer.Option("--web", help="Show it as a live page instead.")] = False,
    speed: Annotated[float, typer.Option("--speed", metavar="N", min=0.1, max=4096, help="Ticks a second.")] = SPEED,
    ticks: Annotated[int | None, typer.Option("--ticks", metavar="N", min=1, help="End after so many.")] = None,
    seed: Seed = 1,
    rules: RulesAt = None,
    residents: Residents = None,
    start: From = None,
    record: Record = None,
    privacy: Privacy = False,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="Others than this machine need --token.")] = HOST,
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65_535, help="0: any that is free.")] = PORT,
    token: Annotated[
        str | None, typer.Option("--token", metavar="TEXT", envvar="HOLDFAST_TOWN_TOKEN", help="To see the page.")
    ] = None,
    operator: Annotated[
        str | None,
        typer.Option("--operator", metavar="TEXT", envvar="HOLDFAST_TOWN_OPERATOR", help="Operators' token."),
    ] = None,
    admin: Annotated[
        str | None, typer.Option("--admin", metavar="TEXT", envvar="HOLDFAST_TOWN_ADMIN", help="Admins' token.")
    ] = None,
    audit: Annotated[Path, typer.Option("--audit", metavar="FILE", help="Where orders are written down.")] = Path(
        ".holdfast/town/audit.jsonl"
    ),
    stages: Stages = None,
    unlock: Unlock = None,
    why: Reason = "",
) -> None:
    """Watch a town live: in the terminal, or, with --web, as a page in a browser. Ctrl-C ends it."""
    from holdfast.cli.townwatch import look, serve
    from holdfast.workloads.townlife import read_rules

    log, allowed = _stages(stages, unlock, why)
    told = read_rules(rules, residents=residents, unlocked=allowed)
    check_writable(record)
    life = _life(told, seed, start, privacy, log)
    if web:
        given = {"viewer": token, "operator": operator, "admin": admin}
        serve(life, record, address=(host, port), tokens=given, audit=audit, speed=speed)
    else:
        look(life, record, speed=speed, ticks=ticks)


@app.command("replay")
def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Of --replay, or of --record.")],
    rules: RulesAt = None,
    residents: Residents = None,
    tick: Annotated[int | None, typer.Option("--tick", metavar="N", min=0, help="Only to, or from, this tick.")] = None,
    speed: Annotated[float, typer.Option("--speed", metavar="N", min=0.1, max=4096, help="Of a recording.")] = 32.0,
    json: Json = False,
) -> None:
    """Live a town again and see that it comes to the same end; or play a recording."""
    from holdfast.cli.show import print_json, progress
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

    from holdfast.cli.show import print_json
    from holdfast.cli.townview import moment
    from holdfast.cli.townwatch import animate
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
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A snapshot, a replay or a recording.")],
    json: Json = False,
) -> None:
    """Tell what a file is, and of which town."""
    from holdfast.cli.show import print_json, print_table
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
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Rules; without it, the default ones.")] = None,
    json: Json = False,
) -> None:
    """Check a file of rules, and list everything that is wrong with it."""
    from holdfast.cli.show import print_json
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
    from holdfast.cli.show import print_json, print_table
    from holdfast.workloads.townlife import described

    told = described()
    if json:
        print_json(told)
    else:
        print_table(["~order", "role", "~what"], [(one["usage"], one["role"], one["what"]) for one in told])


@app.command("bench")
def bench(
    worlds: Annotated[int, typer.Option("--worlds", metavar="N", min=1, max=4096, help="At once.")] = 64,
    ticks: Annotated[int, typer.Option("--ticks", metavar="N", min=1, help="How many.")] = 100,
    seed: Seed = 1,
    rules: RulesAt = None,
    json: Json = False,
) -> None:
    """Measure how fast the town is on one core: scripted residents, compact observations."""
    import time

    from holdfast.cli.show import print_json, print_table, progress
    from holdfast.workloads.townlife import bench as measure
    from holdfast.workloads.townlife import read_rules

    warn()
    with progress("measuring", None):
        told = measure(read_rules(rules), worlds=worlds, ticks=ticks, seed=seed, clock=time.process_time)
    if json:
        print_json(told)
    else:
        print_table(["what", ">value"], [(name.replace("_", " "), value) for name, value in told.items()])


app.command("soak")(townsoak.soak)
app.command("learn")(townlearn.learn)
