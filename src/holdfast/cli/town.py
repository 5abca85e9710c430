"""`holdfast town`: run a town, watch it in 80 columns or as a page, replay it, teach its residents."""

from __future__ import annotations

import atexit
import platform
import secrets
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from holdfast.cli import town_school
from holdfast.cli.options import (
    DEFAULT_STORE,
    CommandSet,
    Output,
    Port,
    Project,
    StoreAt,
    StoreOptions,
    address_of,
    ended_by_sigterm,
    hand_over,
    needing,
    never_on_command_line,
    who,
    written_whole,
)
from holdfast.cli.show import print_table, progress, table
from holdfast.cli.town_school import Profile, Residents, RulesAt, Seed, SeenAs, warn
from holdfast.contracts.errors import BadInput
from holdfast.contracts.lines import folded

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from holdfast.workloads.townaudit import AuditFile
    from holdfast.workloads.townlife import Life, Recording, Rules
    from holdfast.workloads.townobserver import Soak, StaticToken, TownAlarms
    from holdfast.workloads.townretention import Expired


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
) -> Output:
    """Simulate a town for very long, and check that memory stays flat and residents stay."""
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
    is_bad = done.grown_mb > MOST_MB or not done.looks[-1].here
    return Output(done.plain(), lambda: _print_soak(done), 130 if done.ticks < ticks else int(is_bad))


def _print_soak(done: Soak) -> None:
    rows = [(look.tick, look.seconds, look.memory_mb, look.here, look.state[:12]) for look in done.looks]
    print_table([">tick", ">s", ">mb", ">here", "state"], rows)
    print(f"memory grew by {done.grown_mb:.1f} MB; {done.green} of {done.windows} windows were green")
    print(f"left: {', '.join(f'{count} for {cause}' for cause, count in done.left_for.items()) or 'nobody'}")


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * 4096 / 1e6, 1)


HOST, PORT = "127.0.0.1", 8790
SPEED = 8.0  # ticks a second
SHARES = ("alive", "needs_met", "starving", "attendance", "failures")  # numbers that are parts of a whole

app = CommandSet("A simulated town.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TownOptions:
    """Which town it is, how far it may go, and what is kept of it."""

    seed: Seed = 1
    rules: RulesAt = None
    residents: Residents = None
    profile: Profile = None
    start: Annotated[Path | None, Option("--from", metavar="SNAPSHOT", help="Go on from a snapshot.")] = None
    record: Annotated[Path | None, Option(metavar="FILE", help="Keep frames, to look at any moment.")] = None
    privacy: Annotated[
        bool, Option("--privacy", "--streamer", help="Pseudonyms wherever residents are named or listed.")
    ] = False
    stages: Annotated[
        Path | None, Option(metavar="FILE", help="The log that says which stages may be on; else the shipped one.")
    ] = None
    unlock: Annotated[str | None, Option(metavar="STAGE", help="Allow a stage by hand; kept in the log.")] = None
    why: Annotated[str, Option(metavar="TEXT", help="The reason for --unlock.")] = ""
    policy: Annotated[
        str | None,
        Option(
            metavar="VERSION", help="Who drives the residents: a release, or live, which is followed; else scripts."
        ),
    ] = None
    observation: SeenAs = None
    guard: Annotated[
        bool, Option("--guard/--no-guard", help="With --policy live: move a canary or shadow on, or take it back.")
    ] = True
    store: StoreAt = DEFAULT_STORE
    project: Project = "default"


def _life(how: TownOptions, *written: Path | None) -> Life:
    """A town whose windows are written down where there is a log of stages; `written` are files to come."""
    from holdfast.workloads.townlife import Life, Pseudonymizer, read_rules

    audit, allowed = _stages(how.stages, how.unlock, how.why)
    rules = read_rules(how.rules, residents=how.residents, unlocked=allowed, profile=how.profile)
    check_writable(*written, how.record)
    warn()
    veil = Pseudonymizer(key=secrets.token_bytes(32) if how.privacy else None)
    hear = None if audit is None else partial(_note, audit, rules)
    life = Life(rules, seed=how.seed, veil=veil, hear=hear, **_driven_by(how, rules))
    if how.start is not None:
        life.restore(how.start)
    return life


def _driven_by(how: TownOptions, rules: Rules) -> dict[str, Any]:
    """What drives the residents of a life and what it sees, where it is not the script and the compact row."""
    if not how.guard and how.policy != "live":
        raise BadInput("--no-guard", why="only what is live is guarded", remedy="add --policy live, or leave it out")
    if how.policy is None:
        from holdfast.workloads.townlife import check_observation

        return {} if how.observation is None else {"variant": check_observation(how.observation)}
    with needing("learn"):
        from holdfast.workloads.townschool import mind_of
        from holdfast.workloads.townservice import LiveMind
    opened = town_school.taught(StoreOptions(how.store, how.project))
    if how.policy == "live":  # it is looked at again and again, until the command ends
        atexit.register(opened.close)
        live = LiveMind(opened, rules, clock=time.time, is_guarded=how.guard, observation=how.observation)
        return {"mind": live, "variant": live.observation, "lived": live.lived}
    with opened:
        mind = mind_of(opened, how.policy, rules, observation=how.observation)
    return {"mind": mind, "variant": mind.observation}


@app.command("run")
def run(
    how: TownOptions,
    days: Annotated[float, Option(metavar="N", min=0.001, max=10_000, help="How long.")] = 1.0,
    save: Annotated[Path | None, Option(metavar="FILE", help="Write a snapshot of the end.")] = None,
    replay: Annotated[Path | None, Option(metavar="FILE", help="Write what it takes to live it again.")] = None,
) -> Output:
    """Simulate residents for some days, by scripts or by a version, and report how the town did."""
    from holdfast.workloads.townlife import faults, new_recording, rounded
    from holdfast.workloads.townobserver import TownAlarms

    life = _life(how, save, replay)
    rules = life.rules
    watch, news, windows = TownAlarms(), [], []
    ticks = max(1, round(days * rules["ticks_per_day"]))
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
    data = {
        "state": state,
        "rules": rules.sha256,
        "seed": life.seed,
        "tick": life.tick,
        "stages": rules["stages"]["on"],
    }
    data["observation"] = life.env.senses.id
    data |= {"alerts": [alert.message for alert in watch.active], "left": [asdict(left) for left in life.left]}
    data |= {"kpis": rounded(life.kpis), "faults": why_not, "windows": windows}
    rollout = getattr(life.mind, "rollout", None)
    if rollout is not None:
        data["rollout"] = rollout
    return Output(data, lambda: _print_life(life, news[-8:], state, why_not, rollout))


def _print_life(life: Life, news: list[str], state: str, why_not: list[str], rollout: Mapping[str, Any] | None) -> None:
    for text in news:
        print(text)
    rows = [
        (name.replace("_", " "), value if value is None or name not in SHARES else f"{value * 100:.3g} %")
        for name, value in life.kpis.items()
    ]
    print_table(["what", ">value"], rows)
    for left in life.left:
        print(f"left on tick {left.tick}: {left.name}, after {left.days:g} days ({left.cause})")
    if rollout is not None:
        print("\n".join(town_school.rollout_lines(rollout)))
    print("healthy" if not why_not else "\n".join(why_not))
    print(f"state {state[:12]} after {life.tick} ticks")


def _stages(path: Path | None, unlock: str | None, why: str) -> tuple[AuditFile | None, tuple[str, ...] | None]:
    """The log, and which stages it allows; without one, what the shipped log says."""
    if path is None:
        if unlock is not None:
            raise BadInput(f"--unlock {unlock}", why="there is no log to keep it in", remedy="give --stages FILE")
        return None, None

    from holdfast.workloads.townaudit import AuditFile
    from holdfast.workloads.townlife import STAGES, read_rules, unlocked_stages
    from holdfast.workloads.townobserver import override

    audit = AuditFile(path)
    if unlock is not None:
        override(audit, stage=unlock, who=who(), why=why, order=STAGES, at=time.time())
    return audit, unlocked_stages(path, int(read_rules()["stages"]["green_windows"]))


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
    host: Annotated[str, Option(metavar="HOST", help="Others than this machine need HOLDFAST_TOWN_TOKEN.")] = HOST,
    port: Port = PORT,
    token: Annotated[str | None, Option(hidden=True)] = None,
    operator: Annotated[str | None, Option(hidden=True)] = None,
    admin: Annotated[str | None, Option(hidden=True)] = None,
    audit: Annotated[Path, Option(metavar="FILE", help="Where commands are recorded.")] = Path(
        ".holdfast/town/audit.jsonl"
    ),
) -> None:
    """Watch a town live: in the terminal, or, with --web, as a page in a browser. With --policy a network drives the
    residents. Ctrl-C ends it.

    The page's tokens are read from HOLDFAST_TOWN_TOKEN (viewers), HOLDFAST_TOWN_OPERATOR and HOLDFAST_TOWN_ADMIN.
    """
    _check_way(web=web, host=host, port=port, ticks=ticks)
    options = {"viewer": (token, "token"), "operator": (operator, "operator"), "admin": (admin, "admin")}
    given = {
        role: never_on_command_line(value, f"--{name}", f"HOLDFAST_TOWN_{name.upper()}")
        for role, (value, name) in options.items()
    }
    life = _life(how)
    if web:
        serve(life, how.record, address=(host, port), tokens=given, audit=audit, speed=speed)
    else:
        watch_here(life, how.record, speed=speed, ticks=ticks)


def _check_way(*, web: bool, host: str, port: int, ticks: int | None) -> None:
    """Refuses options of the other way to watch, which would mean nothing."""
    if web and ticks is not None:
        raise BadInput("--ticks", why="a page is served until Ctrl-C", remedy="leave out --ticks or --web")
    for name, given, usual in (("host", host, HOST), ("port", port, PORT)):
        if not web and given != usual:
            raise BadInput(f"--{name} {given}", why="belongs to the page", remedy="add --web")


@app.command("replay")
def replay(
    file: Annotated[Path, Argument(metavar="FILE", help="Of --replay, or of --record.")],
    rules: RulesAt = None,
    residents: Residents = None,
    profile: Profile = None,
    tick: Annotated[int | None, Option(metavar="N", min=0, help="Only to, or from, this tick.")] = None,
    speed: Annotated[float, Option(metavar="N", min=0.1, max=4096, help="Of a recording.")] = 32.0,
) -> Output:
    """Run a town again and check that it ends in the same state, or play a recording."""
    from holdfast.workloads.townlife import inspect_script, read_rules, rounded
    from holdfast.workloads.townlife import replay as again

    if _kind(file) == "recording":
        return _play(file, tick or 0, speed)
    script = inspect_script(file)
    warn()
    known = read_rules(rules, residents=residents, profile=profile)
    with progress("living again", min(script["ticks"], tick or script["ticks"])) as advance:
        life, is_same = again(file, known, upto=tick, each=advance)
    count, word = len(script["commands"]), {True: "the same, bit by bit", False: "NOT the same", None: "not compared"}
    data = {"tick": life.tick, "state": life.env.state.sha256(), "same": is_same, "kpis": rounded(life.kpis)}
    message = f"{life.tick} ticks, {count} commands: {word[is_same]}"
    return Output(data | {"commands": count}, message, int(is_same is False))


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


def _play(file: Path, tick: int, speed: float) -> Output:
    """As JSON, the first frame."""
    from holdfast.workloads.townlife import open_recording

    with open_recording(file) as recording:
        first = next(recording.frames(tick, most=1), None)
    return Output(first, lambda: _print_frames(file, tick, speed))


def _print_frames(file: Path, tick: int, speed: float) -> None:
    from rich.console import Console

    from holdfast.workloads.townlife import open_recording

    console = Console(highlight=False)
    with open_recording(file) as recording:
        frames = recording.frames(tick, most=10**9)
        if console.is_terminal:
            animate(console, recording.legend, lambda: next(frames), speed=speed, ticks=None)
        else:
            for frame in frames:
                for line in frame.get("lines", ()):
                    print(f"{clock_time(recording.legend, line['tick'])}  {line['text']}")


@app.command("story")
def story(
    how: TownOptions,
    days: Annotated[int, Option(metavar="N", min=1, max=14, help="How many are told.")] = 3,
    out: Annotated[Path, Option(metavar="FILE", help="The page that is written.")] = Path("town-story.html"),
) -> Output:
    """Make a page of some days: a film of the map, each day told as a story and, with --policy, how it learnt."""
    from holdfast.workloads.townstory import lived_story
    from holdfast.workloads.townstory import page as written

    if how.record is not None:
        raise BadInput("--record", why="a story is a page", remedy="'holdfast town run --record FILE' keeps frames")
    life = _life(how, out)
    with progress("living", days * int(life.rules["ticks_per_day"])) as advance:
        town_story = lived_story(life, days, each=advance)
    with written_whole(out) as file:
        file.write(written(town_story, learning=getattr(life.mind, "lineage", None)))
    data = {"page": str(out), "version": town_story.version, "days": [asdict(day) for day in town_story.days]}
    lines = [line for day in town_story.days for line in (f"Day {day.number}: {day.title}", *day.paragraphs, "")]
    return Output(data, "\n".join((*(part for line in lines for part in wrap(line, 80) or [""]), f"page  {out}")))


@app.command("inspect")
def inspect(file: Annotated[Path, Argument(metavar="FILE", help="A snapshot, a replay or a recording.")]) -> Output:
    """Show what a file is and which town it belongs to."""
    from holdfast.workloads.townlife import inspect_script, inspect_snapshot, open_recording

    kind = _kind(file)
    if kind == "snapshot":
        payload = inspect_snapshot(file)
    elif kind == "replay":
        payload = inspect_script(file)
        payload["commands"] = len(payload["commands"])
    else:
        with open_recording(file) as recording:
            payload = _about(recording)
    payload = {"kind": kind, **payload}
    return Output(payload, table(["what", "~value"], payload.items()))


def _about(recording: Recording) -> dict[str, Any]:
    first, last = recording.ticks
    legend = recording.legend
    payload = {key: legend[key] for key in ("schema", "town", "rules", "day")}
    return payload | {"first_tick": first, "last_tick": last, "private": bool(legend.get("private"))}


@app.command("validate")
def validate(
    file: Annotated[Path | None, Argument(metavar="[FILE]", help="Rules; without it, the default ones.")] = None,
) -> Output:
    """Check a file of rules, and list everything that is wrong with it."""
    from holdfast.workloads.townlife import contracts, hook_table, read_rules, rule_faults

    faults = rule_faults(file)
    if faults:
        lines = [f"{fault['where']}: {fault['why']}; {fault['remedy']}" for fault in faults]
        return Output({"valid": False, "rules": None, "faults": faults}, "\n".join(lines), 1)
    rules = read_rules(file)
    used = [f"{one['hook']} ({one['stage']} {one['affordance']})" for one in hook_table(rules) if one["affordance"]]
    ids = [spec.id for spec in contracts(rules)]
    counts = {name: len(rules[name]) for name in ("affordance", "job", "venue", "profile")}
    told = [", ".join(f"{name} {count}" for name, count in counts.items())]
    told += [f"stages: {', '.join(rules['stages']['on'])}", f"hooks: {', '.join(used) or 'none'}"]
    told.append(f"observations: {', '.join(ids)}")
    data = {"valid": True, "rules": rules.sha256, "faults": [], "counts": counts, "hooks": used, "observations": ids}
    lines = [f"the rules are whole: {rules.sha256}", *(line for text in told for line in folded(text, hanging="  "))]
    return Output(data, "\n".join(lines))


@app.command("stages")
def stages(
    log: Annotated[Path | None, Option("--log", metavar="FILE", help="Of windows and overrides; else ours.")] = None,
    earn: Annotated[
        Path | None, Option(metavar="FILE", help="Run the town stage by stage, and write its windows to this log.")
    ] = None,
    seed: Seed = 1,
    rules: RulesAt = None,
    residents: Residents = None,
) -> Output:
    """Show which stages may be on and why: each needs two green windows of the one before it. Every command goes by the
    log that comes with the package, or by the one that --stages names.

    With --earn the town itself shows how far it gets. Exit code 1: not to the last stage.
    """
    from holdfast.workloads.townaudit import AuditFile
    from holdfast.workloads.townlife import SHIPPED, STAGES, WINDOW, read_rules, stage_table
    from holdfast.workloads.townobserver import earn as run_stages

    if earn is not None and log is not None:
        raise BadInput("--log", why="--earn names the log", remedy="give one of the two")
    if earn is not None:
        if earn.exists():
            raise BadInput(f"--earn {earn}", why="is there already", remedy="name a new file")
        check_writable(earn)

        def with_stages(on: Sequence[str]) -> Rules:
            return read_rules(rules, residents=residents, unlocked=on)

        with_stages(STAGES)  # what is wrong with the rules is told before any work
        warn()
        with progress("living", 2 * len(STAGES) * WINDOW) as advance:
            run_stages(AuditFile(earn), with_stages, seed=seed, clock=time.time, each=advance)
    path = earn or log or SHIPPED
    if not path.exists():
        raise BadInput(f"--log {path}", why="there is no such file", remedy="--earn FILE makes one")
    found = stage_table(path, read_rules(rules, residents=residents, unlocked=STAGES))
    rows = [
        (
            one["stage"],
            "yes" if one["allowed"] else "no",
            f"{one['green_in_a_row']} of {one['needed']}",
            f"by hand: {one['override']}" if one["override"] else "; ".join(one["reasons"]) or "-",
        )
        for one in found
    ]
    shown = table(["stage", "allowed", "green windows", "~why"], rows)
    return Output({"log": str(path), "stages": found}, shown, int(earn is not None and not found[-1]["allowed"]))


@app.command("words")
def words(
    text: Annotated[str | None, Argument(metavar="[TEXT]", help="Whether this may be said.")] = None,
    rules: RulesAt = None,
) -> Output:
    """Check what residents and lines may say: no word of harm, and none that the rules rule out ([talk] never). Without
    a text, all that can be said is checked, and what is left out because of the rules is listed. Exit code 1: the text
    may not be said."""
    from holdfast.workloads.townlife import may_be_said, phrase_count, read_rules, refused_phrases

    known = read_rules(rules)
    if text is not None:
        may = may_be_said(text, known)
        return Output({"text": text, "may_be_said": may}, "may be said" if may else "may not be said", int(not may))
    refused, total = refused_phrases(known), phrase_count()
    data = {"phrases": total, "never": list(known.never), "refused": [{"when": k, "text": t} for k, t in refused]}

    def shown() -> None:
        if refused:
            print_table(["when", "~never said"], refused)
        print(f"{total - len(refused)} of {total} phrases may be said; {len(known.never)} words of your own never are")

    return Output(data, shown)


@app.command("prune")
def prune(
    at: StoreOptions,
    folders: Annotated[
        list[Path] | None, Argument(metavar="[FOLDER]...", help="Where files of towns lie; else .holdfast/town.")
    ] = None,
    recordings: Annotated[float, Option(metavar="DAYS", min=0, help="That recordings are kept.")] = 30.0,
    orders: Annotated[float, Option(metavar="DAYS", min=0, help="That orders in audit files are kept.")] = 90.0,
    demonstrations: Annotated[float, Option(metavar="DAYS", min=0, help="Beside checkpoints of a school.")] = 90.0,
    snapshots: Annotated[float, Option(metavar="DAYS", min=0, help="And replays.")] = 180.0,
    yes: Annotated[bool, Option("--yes", help="Really remove them; without it they are only listed.")] = False,
) -> Output:
    """Remove what towns have left behind for longer than it is kept: recordings, snapshots and replays in the folders,
    orders in audit files, and the demonstrations of finished schools in the store. Weights, stages and the ledger stay.
    """
    from holdfast.workloads import townretention as retention

    kept = retention.TownRetention(
        recordings=recordings, orders=orders, demonstrations=demonstrations, snapshots=snapshots
    )
    usual, now = Path(".holdfast/town"), time.time()
    given = folders if folders else [usual] if usual.is_dir() else []
    for folder in given:
        if not folder.is_dir():
            raise BadInput(str(folder), why="is no folder", remedy="name one that is there")
    found = [expired for folder in given for expired in retention.expired_files(folder, kept, now=now)]
    for expired in found if yes else ():
        retention.remove(expired, kept, who=who(), now=now)
    if at.store != DEFAULT_STORE or Path(at.store).exists():  # without a school there is no store, and that is no fault
        with at.existing() as opened:
            old = retention.expired_demonstrations(opened, kept, now=now)
            for run, _ in old if yes else ():
                retention.remove_demonstrations(opened, run, who=who(), now=now)
        found += [expired for _, expired in old]
    data = {"removed": yes, "kept_for_days": asdict(kept), "found": [asdict(expired) for expired in found]}
    return Output(data, lambda: _print_expired(found, is_done=yes))


def _print_expired(found: list[Expired], *, is_done: bool) -> None:
    if not found:
        print("nothing is older than it is kept")
        return
    for expired in found:  # a path that is cut short could not be found
        size = f"{expired.size / 1e6:>8.2f} MB"
        print(f"{expired.kind:15}{expired.count:>4}  {expired.days:>6.0f} days old  {size}  {expired.where}")
    print("removed" if is_done else "would go; add --yes to remove them")


@app.command("observations")
def observations(rules: RulesAt = None, residents: Residents = None) -> Output:
    """List what residents can be shown: a contract for each variant, with its names and its id.

    A version is trained on one of them, and refused where the town shows another. --json names every number.
    """
    from holdfast.workloads.townlife import OBSERVED, contracts, groups, read_rules

    specs = contracts(read_rules(rules, residents=residents))
    data = [
        {
            "variant": spec.variant,
            "id": spec.id,
            "version": spec.version,
            "numbers": spec.size,
            "features": list(spec.features),
            "channels": list(spec.channels),
            "window": spec.window if spec.channels else None,
            "groups": {name: [places.start, places.stop] for name, places in groups(spec).items()},
        }
        for spec in specs
    ]
    rows = [
        (
            spec.variant + " (usual)" * (spec.variant == OBSERVED),
            spec.size,
            len(spec.features),
            f"{len(spec.channels)} of {spec.window} × {spec.window}" if spec.channels else "-",
            spec.id,
        )
        for spec in specs
    ]
    return Output(data, table(["variant", ">numbers", ">features", "~map", "id"], rows))


@app.command("hooks")
def hooks(rules: RulesAt = None) -> Output:
    """List which hooks the affordances of the rules have, and which others there are.

    A hook is a function that is asked before an affordance begins, or called after it has ended or failed: one of ours,
    or your own as module:function in the rules, `hooks = { before = ["my_town:is_open"] }`.
    """
    from holdfast.workloads.townlife import hook_table, read_rules

    found = hook_table(read_rules(rules))
    rows = [(one["affordance"] or "-", one["stage"], one["hook"], one["what"]) for one in found]
    return Output(found, table(["affordance", "stage", "~hook", "~what"], rows))


@app.command("commands")
def list_commands() -> Output:
    """List the commands that a watched town takes, and the role that each needs."""
    from holdfast.workloads.townlife import described

    found = described()
    return Output(
        found, table(["~command", "role", "~what"], [(one["usage"], one["role"], one["what"]) for one in found])
    )


@app.command("bench")
def bench(
    worlds: Annotated[int, Option(metavar="N", min=1, max=4096, help="At once.")] = 64,
    ticks: Annotated[int, Option(metavar="N", min=1, help="How many.")] = 100,
    seed: Seed = 1,
    rules: RulesAt = None,
    observation: Annotated[
        str, Option(metavar="NAME", help="What residents are shown: compact, recall, hybrid or full.")
    ] = "compact",
) -> Output:
    """Measure how fast the town is on one core, with scripted residents."""
    from holdfast.workloads.townlife import bench as measure
    from holdfast.workloads.townlife import check_observation, read_rules

    known, seen = read_rules(rules), check_observation(observation)
    warn()
    with progress("measuring", None):
        payload = measure(known, worlds=worlds, ticks=ticks, seed=seed, clock=time.process_time, observation=seen)
    return Output(
        payload, table(["what", ">value"], [(name.replace("_", " "), value) for name, value in payload.items()])
    )


app.command("soak")(soak)
app.command("school")(town_school.school)
app.command("audit")(town_school.audit)
app.command("drill")(town_school.drill)
app.command("golden")(town_school.golden)
app.command("mind")(town_school.mind)
app.command("league")(town_school.league)
app.command("balance")(town_school.balance)
app.command("learn", hidden=True, help="The former name of `town school`.")(town_school.school)


# On a terminal of 80 columns, line by line in a pipe, or as a page ---------------------------------------------------

NATURES = ("#4f9fe0", "#e0709f", "#e09a3f", "#5fb878", "#a98fe0", "#9aa8b0")
GROUND = {
    "wall": "#5f6f78", "door": "#9a8050", "road": "#3a4348", "grass": "#2b4a38", "floor": "#262f34", "out": "#1c2428",
    "thing": "#6f7f88",
}  # fmt: skip
NEEDS = {"hunger": "#e98c50", "hygiene": "#5fb0dd", "energy": "#d9bf46", "social": "#d884c6"}
BESIDE = 30  # columns
SHOWN = (
    ("alive", "here", "{:.0%}"),
    ("needs_met", "needs met", "{:.0%}"),
    ("attendance", "at work", "{:.0%}"),
    ("chats", "talks a day", "{:.1f}"),
    ("queue_wait", "in line, min", "{:.0f}"),
    ("lateness", "late a day", "{:.2f}"),
    ("exits", "left a day", "{:.3f}"),
)


def clock_time(legend: Mapping[str, Any], tick: int) -> str:
    minutes = tick % legend["day"] * 1440 // legend["day"]
    return f"day {tick // legend['day'] + 1}, {minutes // 60:02}:{minutes % 60:02}"


def town(
    legend: Mapping[str, Any],
    frame: Mapping[str, Any],
    *,
    news: Sequence[Mapping[str, Any]] = (),
    alerts: Sequence[str] = (),
    state: str = "",
    is_coloured: bool = True,
) -> Table:
    """Everything at one moment; `frame` is a folded one."""
    from rich.table import Table

    shown = Table.grid(padding=(0, 1))
    shown.add_column(width=legend["width"], no_wrap=True)
    shown.add_column(width=BESIDE, no_wrap=True, overflow="ellipsis")
    drawn = _coloured(legend, frame) if is_coloured else _plain(legend, frame)
    rows = (legend["height"] + 1) // 2
    shown.add_row(drawn, _beside(legend, frame, news, alerts, state, rows))
    return shown


def _tiles(legend: Mapping[str, Any]) -> list[str]:
    table = legend["legend"]
    kinds = []
    for glyph in legend["glyphs"]:
        if glyph in table["walls"]:
            kinds.append("wall")
        elif glyph in table["doors"]:
            kinds.append("door")
        elif glyph in table["objects"]:
            kinds.append("thing")
        else:
            kinds.append({table["entry"]: "road", '"': "grass", "_": "floor"}.get(glyph, "out"))
    return kinds


def _coloured(legend: Mapping[str, Any], frame: Mapping[str, Any]) -> Text:
    """▀ has the upper tile's colour before that of the lower one."""
    from rich.text import Text

    width, height = legend["width"], legend["height"]
    colours = [GROUND[kind] for kind in _tiles(legend)]
    for place, tile in enumerate(frame["at"]):
        if tile >= 0:
            colours[tile] = NATURES[frame["nature"][place] % len(NATURES)]
    drawn = Text()
    for y in range(0, height, 2):
        for x in range(width):
            low = colours[(y + 1) * width + x] if y + 1 < height else GROUND["out"]
            drawn.append("▀", style=f"{colours[y * width + x]} on {low}")
        drawn.append("\n")
    drawn.rstrip()
    return drawn


def _plain(legend: Mapping[str, Any], frame: Mapping[str, Any]) -> Text:
    """For terminals without colours: of two tiles, the one with more to tell."""
    from rich.text import Text

    width, height = legend["width"], legend["height"]
    signs = {"wall": "#", "door": "+", "road": ".", "grass": '"', "floor": " ", "out": " ", "thing": "o"}
    ranks = ' ."+#o@'
    glyphs = [signs[kind] for kind in _tiles(legend)]
    for tile in frame["at"]:
        if tile >= 0:
            glyphs[tile] = "@"
    rows = []
    for y in range(0, height, 2):
        pairs = ((glyphs[y * width + x], glyphs[min(y + 1, height - 1) * width + x]) for x in range(width))
        rows.append("".join(max(pair, key=ranks.index) for pair in pairs))
    return Text("\n".join(rows))


def _beside(
    legend: Mapping[str, Any],
    frame: Mapping[str, Any],
    news: Sequence[Mapping[str, Any]],
    alerts: Sequence[str],
    state: str,
    rows: int,
) -> Text:
    from rich.text import Text

    lines = [Text(f"{legend['town']} · {clock_time(legend, frame['tick'])}", style="bold")]
    troubles = [name for name, until in zip(legend["troubles"], frame["until"], strict=True) if until > frame["tick"]]
    lines.append(Text(", ".join(filter(None, (state, *troubles))) or "a quiet hour", style="yellow"))
    here = [place for place, tile in enumerate(frame["at"]) if tile >= 0]
    for k, need in enumerate(legend["needs"]):
        mean = sum(frame["needs"][len(legend["needs"]) * place + k] for place in here) / (255 * max(1, len(here)))
        filled = round(mean * 12)
        bar = (
            Text(f"{need:8} ").append("━" * filled, style=NEEDS.get(need, "")).append("╌" * (12 - filled), style="dim")
        )
        lines.append(bar.append(f" {mean:4.0%}"))
    numbers = frame.get("kpis", {})
    for name, title, form in SHOWN:
        value = numbers.get(name)
        lines.append(Text(f"{title:14}{'-' if value is None else form.format(value):>12}"))
    lines += [Text(f"! {alert}", style="bold red") for alert in alerts[:2]]
    lines.append(Text("─" * (BESIDE - 1), style="dim"))
    texts: list[Text] = []
    for line in reversed(news):
        texts = [*_folded(f"{clock_time(legend, line['tick'])[-5:]} {line['text']}", BESIDE), *texts]
        if len(texts) >= rows - len(lines):
            break
    lines += texts[-max(0, rows - len(lines)) :] if rows > len(lines) else []
    return Text("\n").join(lines[:rows])


def _folded(text: str, width: int) -> list[Text]:
    """In lines of this width; all but the first stand further right."""
    from rich.text import Text

    return [Text(line) for line in wrap(text, width, subsequent_indent=" " * 6, break_on_hyphens=False)]


def badges(tokens: dict[str, str | None]) -> tuple[list[StaticToken], str]:
    """Whom to let in, and the token for the link that is printed; an operator's is made up where none is given."""
    from holdfast.workloads.townobserver import StaticToken

    made = tokens["admin"] or tokens["operator"] or secrets.token_urlsafe(24)
    if not (tokens["admin"] or tokens["operator"]):
        tokens = tokens | {"operator": made}
    return [StaticToken(role=role, token=text, label=role) for role, text in tokens.items() if text], made


def serve(
    life: Life,
    record: Path | None,
    *,
    address: tuple[str, int],
    tokens: dict[str, str | None],
    audit: Path,
    speed: float,
) -> None:
    with needing("serve"):
        from holdfast.collect import endpoint
        from holdfast.workloads.townaudit import AuditFile
        from holdfast.workloads.townpage import Runner
        from holdfast.workloads.townpage import app as page
    from holdfast.workloads.townlife import new_recording

    if tokens["viewer"] is None and not endpoint.is_loopback(address[0]):
        why = "everyone who reaches this machine could watch"
        raise BadInput(f"host {address[0]}", why=why, remedy="set HOLDFAST_TOWN_TOKEN, or listen at 127.0.0.1")
    admitted, link = badges(tokens)
    with (
        endpoint.listen(*address, token=tokens["viewer"]) as listening,
        tempfile.TemporaryDirectory(prefix="town-") as folder,
    ):
        # The recording is closed after the town has ended: it writes to it until then.
        with (
            new_recording(record or Path(folder) / "town.frames", life) as recording,
            Runner(life, recording, audit=AuditFile(audit), speed=speed) as runner,
        ):
            url = f"http://{address_of(listening)}/"
            where = hand_over(link, audit.parent, "operator-link", link=f"{url}#token=")
            print(f"town at {url} (Ctrl-C ends it)\n  operators: {where}", flush=True)
            with ended_by_sigterm():
                endpoint.server(page(runner, admitted)).run(sockets=[listening])
        if runner.error is not None:
            raise runner.error


def watch_here(life: Life, record: Path | None, *, speed: float, ticks: int | None) -> None:
    from rich.console import Console

    from holdfast.workloads.townlife import new_recording
    from holdfast.workloads.townobserver import TownAlarms

    alarms = TownAlarms()
    console = Console(highlight=False)
    with nullcontext() if record is None else new_recording(record, life) as recording:

        def step() -> dict[str, Any]:
            moment = life.step()
            if moment.window is not None:
                alarms.update(moment.window, moment.tick)
            frame = life.frame()
            if recording is not None:
                recording.add(frame)
            return frame

        if console.is_terminal:
            animate(console, life.legend(), step, speed=speed, ticks=ticks, alerts=alarms)
        else:
            tell_lines(life, step, ticks)


def tell_lines(life: Life, step: Callable[[], dict[str, Any]], ticks: int | None) -> None:
    """Where nobody looks at a screen: a line for each thing that is told, as fast as it goes."""
    legend, done = life.legend(), 0
    while ticks is None or done < ticks:
        for line in step().get("lines", ()):
            print(f"{clock_time(legend, line['tick'])}  {line['text']}", flush=True)
        done += 1


def animate(
    console: Any,
    legend: dict[str, Any],
    step: Callable[[], dict[str, Any]],
    *,
    speed: float,
    ticks: int | None,
    alerts: TownAlarms | None = None,
) -> None:
    """Frame after frame on the terminal, until the last, or Ctrl-C; the terminal is left as it was."""
    from rich.live import Live

    from holdfast.workloads.townlife import fold

    is_coloured = console.color_system is not None and not console.no_color
    news: deque[Any] = deque(maxlen=30)
    seen: dict[str, Any] | None = None
    done, due = 0, time.monotonic()
    each = max(1, round(speed / 15))
    try:
        with Live(console=console, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
            while ticks is None or done < ticks:
                for _ in range(each):
                    frame = step()
                    seen = fold(seen, frame)
                    news.extend(frame.get("lines", ()))
                    done += 1
                assert seen is not None
                codes = [alert.code for alert in alerts.active] if alerts is not None else []
                shown = town(legend, seen, news=news, alerts=codes, state=f"{speed:g}×", is_coloured=is_coloured)
                live.update(shown, refresh=True)
                due = max(due + each / speed, time.monotonic() - 0.5)
                time.sleep(max(0.0, due - time.monotonic()))
    except StopIteration:
        pass
    except KeyboardInterrupt:
        console.print("the town goes on without you")
