"""A town that runs: the world, its policy, its narration and its commands.

This is the only module that imports the town. It has no clocks and no sockets: a tick happens when it is called, and
looking changes nothing. What the town refuses is raised as an error with a remedy.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.agent import load_named
from holdfast.contracts.errors import BadInput, Conflict, HoldfastError, NotFound
from holdfast.town import console, frames, health, record, talk
from holdfast.town.env import Env, Seen
from holdfast.town.frames import Pseudonymizer, Recording
from holdfast.town.hook_registry import HOOKS, NoHook
from holdfast.town.hooks import HookFailed
from holdfast.town.kernel import KINDS, is_cold
from holdfast.town.observations import VARIANTS, ObservationSpec, groups, observation_spec
from holdfast.town.record import BadFile, CommandAtTick, ReplayScript
from holdfast.town.rules import GONE, NEEDS, STAGES, TROUBLES, UNIT, BadRules, Rules, hooks_of
from holdfast.town.rules import load as load_rules
from holdfast.town.state import TownState
from holdfast.workloads.townaudit import read_audit

SHIPPED = Path(__file__).with_name("town-stages.jsonl")  # the windows of the default town, stage by stage
KEY_EVERY, KPI_EVERY, TIES_EVERY = 60, 30, 30  # ticks
OBSERVED = "recall"  # what networks see where nothing else is chosen
LEDGER = 5  # of those who left, the last so many are remembered
LIMITS, ROLES, COMMANDS, WINDOW = health.LIMITS, console.ROLES, console.COMMANDS, health.WINDOW

__all__ = [
    "COMMANDS", "KEY_EVERY", "KPI_EVERY", "LEDGER", "LIMITS", "NEEDS", "OBSERVED", "ROLES", "SHIPPED", "STAGES",
    "TROUBLES", "UNIT", "WINDOW", "Env", "Left", "Life", "ObservationSpec", "Pseudonymizer", "Recording", "Rules",
    "Seen", "TownMoment", "TownState", "bench", "check_observation", "command_docs", "contracts", "described",
    "explained", "faults", "fold", "groups", "hook_table", "inspect_script", "inspect_snapshot", "is_cold",
    "may_be_said", "measure_seats", "measure_worlds", "new_recording", "open_recording", "phrase_count", "read_rules",
    "refused_phrases", "replay", "rounded", "rule_faults", "schema", "stage_table", "unlocked_stages", "word",
]  # fmt: skip

faults, word, described = health.faults, talk.doing, console.described
fold = frames.fold
Mind = Callable[[Env], NDArray[np.int64]]  # what everybody does next


@contextmanager
def explained() -> Iterator[None]:
    """Turns the errors of the town into ours."""
    try:
        yield
    except BadRules as error:
        faults = [str(fault) for fault in error.faults]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        bad_input = BadInput(f"rules {error.source}", why=faults[0] + more if faults else "are not whole")
        bad_input.add_note("\n".join(faults))
        raise bad_input from error
    except BadFile as error:
        raise BadInput(error.what, why=error.why, remedy=error.remedy) from error
    except HookFailed as error:
        raise BadInput(error.what, why=error.why, remedy="mend the hook, or leave it out of the rules") from error
    except console.Wrong as error:
        kinds: Mapping[str, type[HoldfastError]] = {"not_found": NotFound, "conflict": Conflict}
        raise kinds.get(error.code, BadInput)(error.what, why=error.why, remedy=error.remedy) from error


def read_rules(
    path: Path | None = None,
    *,
    residents: int | None = None,
    unlocked: Sequence[str] | None = None,
    profile: str | None = None,
) -> Rules:
    """The rules of a file, or the default ones; without the stages that are not unlocked, and with the mix of natures
    that `profile` names. Where nobody says which stages are unlocked, the shipped log does."""
    override: dict[str, Any] = {} if residents is None else {"residents": residents}
    with explained():
        how: dict[str, Any] = {"importer": _import_hook, "profile": profile}
        rules = load_rules(path, override=override, **how)
        allowed = unlocked_stages(SHIPPED, rules["stages"]["green_windows"]) if unlocked is None else unlocked
        on = [stage for stage in rules["stages"]["on"] if stage in allowed]
        if on == rules["stages"]["on"]:
            return rules
        return load_rules(path, override=override | {"stages": {"on": on}}, unlocked=allowed, **how)


def unlocked_stages(log: Path, needed: int, order: Sequence[str] = STAGES) -> tuple[str, ...]:
    """The stages that may be on by a log of windows and overrides, of which `needed` in a row have to be green; without
    a log, only the first."""
    entries = read_audit(log) if log.exists() else []
    windows = [(entry["stage"], entry["green"]) for entry in entries if entry["what"] == "window"]
    forced = [entry["stage"] for entry in entries if entry["what"] == "override"]
    return health.unlocked(order, windows, needed, forced)


def stage_table(log: Path, rules: Rules) -> list[dict[str, Any]]:
    """Each stage: whether the log allows it and the rules have it on, and the green windows it has had in a row."""
    entries, needed = read_audit(log) if log.exists() else [], int(rules["stages"]["green_windows"])
    allowed, found = unlocked_stages(log, needed), []
    for stage in STAGES:
        own = [entry for entry in entries if entry.get("stage") == stage]
        greens = best = 0
        for entry in own:
            greens = greens + 1 if entry["what"] == "window" and entry["green"] else 0
            best = max(best, greens)
        windows = [entry for entry in own if entry["what"] == "window"]
        payload = {
            "windows": len(windows),
            "green_in_a_row": best,
            "needed": needed,
            "on": stage in rules["stages"]["on"],
        }
        why = next((entry["why"] for entry in own if entry["what"] == "override"), None)
        reasons = windows[-1]["reasons"] if windows else []
        found.append({"stage": stage, "allowed": stage in allowed, **payload, "override": why, "reasons": reasons})
    return found


def refused_phrases(rules: Rules) -> list[tuple[str, str]]:
    """What of all that can be said here is not said, because of the words that the rules rule out."""
    refused = talk.refusal(rules.never)
    return [(kind, text) for kind, text in talk.phrases() if refused.search(text)]


def may_be_said(text: str, rules: Rules) -> bool:
    return talk.refusal(rules.never).search(text) is None


def phrase_count() -> int:
    return len(talk.phrases())


def _import_hook(name: str) -> Any:
    try:
        return load_named(name, "hook")
    except BadInput as error:
        raise NoHook(f"{name!r}: {error.why}", error.remedy or "check the function and its file") from error


def hook_table(rules: Rules) -> list[dict[str, str]]:
    """The hooks that some rules use, and those that they could use."""
    used = [
        {"affordance": entry["id"], "stage": stage, "hook": name, "what": rules.hooks[name].summary}
        for entry in rules["affordance"]
        for stage, names in hooks_of(entry).items()
        for name in names
    ]
    unused = [hook for name, hook in HOOKS.items() if name not in rules.hooks]
    free = [
        {"affordance": "", "stage": "/".join(hook.stages), "hook": hook.name, "what": hook.summary} for hook in unused
    ]
    return used + free


def rule_faults(path: Path | None) -> list[dict[str, str]]:
    """Everything that is wrong with a file of rules."""
    try:
        load_rules(path, importer=_import_hook)
    except BadRules as error:
        return [asdict(fault) for fault in error.faults]
    return []


def inspect_snapshot(path: Path) -> dict[str, Any]:
    with explained():
        return record.inspect(path)


def open_recording(path: Path) -> Recording:
    with explained():
        return Recording(path)


def new_recording(path: Path, life: Life) -> Recording:
    with explained():
        return Recording(path, life.legend())


def inspect_script(path: Path) -> dict[str, Any]:
    with explained():
        return asdict(record.read_script(path))


def check_observation(name: str) -> str:
    """The name of a variant; BadInput where there is none of that name."""
    if name not in VARIANTS:
        raise BadInput(f"observation {name!r}", why="is unknown", remedy=f"use {', '.join(VARIANTS)}")
    return name


def contracts(rules: Rules) -> list[ObservationSpec]:
    """What residents of this town can be shown, one contract for each variant."""
    return [observation_spec(rules, name) for name in VARIANTS]


def bench(
    rules: Rules,
    *,
    worlds: int,
    ticks: int,
    seed: int,
    clock: Callable[[], float],
    observation: str = "compact",
) -> dict[str, float]:
    """Agent-steps a second of a batch, scripted; what was compiled before is not counted."""
    env = Env(rules, worlds=worlds, variant=check_observation(observation))
    env.reset(seed)
    env.step(env.scripted())
    began = clock()
    for _ in range(ticks):
        env.step(env.scripted())
    took = clock() - began
    steps = worlds * env.residents * ticks
    payload = {"worlds": float(worlds), "residents": float(env.residents), "ticks": float(ticks), "seconds": took}
    return payload | {"agent_steps_per_s": steps / took, "tick_ms": 1000 * took / ticks}


def measure_worlds(env: Env, step: Callable[[], None], ticks: int) -> list[dict[str, float | None]]:
    """The figures of each world of a batch over so many ticks; `step` lives one of them."""
    tallies = [health.begin(env.state, world) for world in range(env.worlds)]
    for _ in range(ticks):
        step()
        tallies = [health.add(tally, env.law, env.state, world) for world, tally in enumerate(tallies)]
    return [health.kpis(tally, env.law, env.state, world) for world, tally in enumerate(tallies)]


def measure_seats(env: Env) -> dict[str, NDArray[np.float64]]:
    """Of the last tick, for each seat [B, A]: the share of needs that are met, whether the resident starves, is due at
    work, works, and has just left; 0 where nobody sits."""
    people, n = env.state.people, env.law.n
    alive, time = people["alive"] == 1, (env.state.town["tick"][:, None] - 1) % int(n["day"])
    job = np.maximum(people["job"], 0)
    start, end = np.asarray(n["job_start"])[job], np.asarray(n["job_end"])[job]
    found = {
        "met": (people["need"] >= np.asarray(n["low"])).mean(axis=2) * alive,
        "starving": (people["need"][:, :, 0] <= health.STARVING) & alive,
        "due": alive & (people["job"] >= 0) & (start <= time) & (time < end),
        "working": alive & (people["earned"] > 0),
        "left": people["cause"] > 0,
        "alive": alive,
    }
    return {name: np.asarray(values, np.float64) for name, values in found.items()}


def command_docs() -> str:
    return console.docs()


def schema() -> Mapping[str, Any]:
    """The JSON Schema of a frame."""
    return frames.SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class TownMoment:
    """The result of one tick."""

    tick: int
    lines: tuple[talk.Line, ...]
    window: Mapping[str, float | None] | None = None  # of a window that has just ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A resident who had to leave."""

    tick: int
    name: str
    days: float  # lived here
    cause: str  # one of GONE


class Life:
    """One town, tick by tick. `hear` is called with the figures of each finished window, `lived` after each tick."""

    def __init__(
        self,
        rules: Rules,
        *,
        seed: int,
        mind: Mind = Env.scripted,
        variant: str = "compact",  # of what the mind sees
        veil: Pseudonymizer | None = None,
        hear: Callable[[Mapping[str, float | None]], None] | None = None,
        lived: Callable[[Life], None] | None = None,
    ) -> None:
        self.rules, self.seed, self.veil, self._hear, self._lived = rules, seed, veil or Pseudonymizer(), hear, lived
        self.env = Env(rules, variant=variant)
        self.env.reset(seed)
        self.mind = mind
        self._order = self.veil.order(self.env.residents)
        self._places = {seat: shown for shown, seat in enumerate(self._order)} | {-1: -1}
        self._limiter, self._seen = talk.NarrationState(), 0
        self._refused = talk.refusal(rules.never)
        self._tally = health.begin(self.env.state)
        self.commands: list[CommandAtTick] = []
        self.kpis: dict[str, float | None] = self._measure(self._tally)
        self._pending: dict[str, list[Any]] = {"events": [], "lines": [], "says": []}
        self._before: frames.Picture | None = None
        self._seq, self._last_key, self._kpis_at, self._ties_at = -1, 0, -KPI_EVERY, 0
        self.lost = 0  # events that were gone before they were read
        self._playing = talk.SceneQueue()
        self._heard: dict[int, talk.Heard] = {}  # what residents were told of others, by seat
        self.left: deque[Left] = deque(maxlen=LEDGER)  # who left last
        self.left_for: Counter[str] = Counter()  # and what all left for, since this began

    # Living ----------------------------------------------------------------------------------------------------------

    @property
    def tick(self) -> int:
        return int(self.env.state.town["tick"][0])

    def step(self) -> TownMoment:
        """One tick."""
        with explained():
            self.env.step(self.mind(self.env))
        lines = self._listen()
        state, law = self.env.state, self.env.law
        self._tally = health.add(self._tally, law, state)
        window = None
        if self._tally.ticks >= WINDOW:
            window = self._measure(self._tally)
            self._tally = health.begin(state)
            self.kpis = window
            if self._hear is not None:
                self._hear(window)
        elif self._tally.ticks >= WINDOW // 12 and self.tick % KPI_EVERY == 0:
            self.kpis = self._measure(self._tally)
        if self._lived is not None:
            self._lived(self)
        return TownMoment(tick=self.tick, lines=lines, window=window)

    def _measure(self, tally: health.HealthCounts) -> dict[str, float | None]:
        return health.kpis(tally, self.env.law, self.env.state)

    def _listen(self) -> tuple[talk.Line, ...]:
        found, lost = frames.events_since(self.env.state, self._seen)
        self.lost += lost
        self._seen = int(self.env.state.town["events"][0])
        self._limiter, lines = talk.narrate(self._limiter, found, self.name, refused=self._refused)
        for event in found:
            self._stage(event)
            a, b, kind = int(event["a"]), int(event["b"]), int(event["kind"])
            if KINDS[kind] in talk.TEMPLATES:  # what nobody would tell is not shown either
                about = KINDS[kind] not in ("trouble_begins", "trouble_ends", "restock")
                shown = self._places[a] if about else a
                other = self._places[b] if KINDS[kind] in talk.PAIRS else b
                value = int(event["value"]) if self.veil.key is None else 0  # of an arrival it is the identity
                self._pending["events"].append([int(event["tick"]), kind, shown, other, value])
            said = talk.converse(event, self.name, self._ties, self._heard, self._refused)
            if said is not None:
                self._pending["says"].append([self._places[said[0]], said[1]])
                if said[2] is not None:
                    self._heard[b] = said[2]
        self._playing, beats = talk.due(self._playing, self.tick)
        how: dict[str, Any] = {"kind": "vignette", "b": -1, "priority": True}
        beats = tuple(beat for beat in beats if not self._refused.search(beat.text))
        lines += tuple(talk.Line(tick=beat.tick, text=beat.text, a=beat.seat, **how) for beat in beats)
        self._pending["lines"] += [self._line(line) for line in lines]
        for kept in self._pending.values():
            del kept[:-64]  # who looks seldom sees the newest
        return lines

    def _ties(self, seat: int) -> list[tuple[int, float]]:
        """Whom a resident knows, and how well they get on."""
        person = self.env.state.people[0, seat]
        worth = (person["tie_trust"] + person["tie_familiarity"] - person["tie_rivalry"]) / UNIT
        return [(int(other), float(how)) for other, how in zip(person["tie_to"], worth, strict=True) if other >= 0]

    def _stage(self, event: Any) -> None:
        """Records an arrival or an exit, and starts its scene."""
        kind, tick, seat = KINDS[int(event["kind"])], int(event["tick"]), int(event["a"])
        if kind in ("arrival", "exit"):  # another sits there now, who was told nothing and whom nobody spoke of
            self._heard = {who: heard for who, heard in self._heard.items() if seat not in (who, heard.about)}
        if kind == "arrival":
            self._playing = talk.arrival(self._playing, tick=tick, seat=seat, name=self.name(seat))
        elif kind == "exit":
            cause, days = GONE[int(event["b"]) - 1], int(event["value"]) / int(self.env.law.n["day"])
            left = Left(tick=tick, name=self.name(seat), days=round(days, 2), cause=cause)
            self.left.append(left)
            self.left_for[cause] += 1
            why = talk.LEAVES_FOR[cause]
            self._playing = talk.departure(self._playing, tick=tick, seat=seat, name=left.name, days=days, why=why)

    def _line(self, line: talk.Line) -> dict[str, Any]:
        about = line.kind not in ("trouble_begins", "trouble_ends", "restock")
        return asdict(line) | {"a": self._places[line.a] if about else -1, "b": self._places[line.b]}

    def name(self, seat: int) -> str:
        return self.veil.name(int(self.env.state.people["slot"][0, seat]))

    # Looking ---------------------------------------------------------------------------------------------------------

    def legend(self) -> dict[str, Any]:
        if self.veil.key is not None:
            return frames.legend(self.rules, private=True)
        names = [talk.resident(slot) for slot in range(int(self.env.law.n["slots"]))]
        return frames.legend(self.rules, seed=self.seed, names=list(dict.fromkeys(names)))

    def frame(self, *, key: bool = False) -> frames.Frame:
        """The changes since the last frame, or a key frame when one is due."""
        is_key = key or self._before is None or self.tick - self._last_key >= KEY_EVERY
        with_ties = is_key or self.tick - self._ties_at >= TIES_EVERY
        now = frames.picture(self.rules, self.env.state, self.veil, with_ties=with_ties)
        self._seq += 1
        more: dict[str, Any] = {name: list(kept) for name, kept in self._pending.items()}
        for kept in self._pending.values():
            kept.clear()
        if is_key or self.tick - self._kpis_at >= KPI_EVERY:
            self._kpis_at = self.tick
            more["kpis"] = rounded(self.kpis)
        if with_ties:
            self._ties_at = self.tick
        if is_key:
            self._last_key = self.tick
            frame = frames.key_frame(now, self._seq, **more)
        else:
            assert self._before is not None
            frame = frames.delta(self._before, now, self._seq, with_ties=with_ties, **more)
        self._before = now
        return frame

    def look_into(self, place: int) -> dict[str, Any]:
        """What the mind of a resident makes of this moment. Residents are numbered as they are shown."""
        look = getattr(self.mind, "look", None)
        if look is None:
            why, remedy = "residents follow their script, and have no network", "watch with --policy VERSION"
            raise NotFound("mind", why=why, remedy=remedy)
        if not 0 <= place < len(self._order):
            raise BadInput(f"resident {place}", why=f"is not one of {len(self._order)}", remedy="count from 0")
        seat = self._order[place]
        if not self.env.state.people["alive"][0, seat]:
            raise NotFound(f"resident {place}", why="has left town")
        payload: dict[str, Any] = look(self.env, seat)
        return {"resident": place, "name": self.name(seat), **payload}

    # Ordering --------------------------------------------------------------------------------------------------------

    def _world(self) -> console.TownView:
        return console.TownView(rules=self.rules, compiled=self.env.law, state=self.env.state)

    def plan(self, name: str, args: Mapping[str, Any]) -> console.CommandPlan:
        """What an order would do now. Residents are numbered as they are shown."""
        with self._refusing(name):
            return console.plan(self._world(), name, self._seats(name, args))

    @contextmanager
    def _refusing(self, name: str) -> Iterator[None]:
        """A refusal names seats; with a pseudonymizer it only says its kind."""
        with explained():
            try:
                yield
            except console.Wrong as error:
                if self.veil.key is None:
                    raise
                raise console.Wrong(name[:40], f"is refused ({error.code})", "", code=error.code) from None

    def order(self, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """Carries an order out before the next tick, and returns its answer."""
        seats = self._seats(name, args)
        with self._refusing(name):
            plan = console.plan(self._world(), name, seats)
            console.do(self._world(), plan.actions)
        if plan.actions:
            self.commands.append(CommandAtTick(tick=self.tick, name=name, args=seats))
        return self.answer(plan, name, args)

    def answer(self, plan: console.CommandPlan, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to an order; with a pseudonymizer, without seats."""
        if self.veil.key is None:
            return {"said": plan.summary, "actions": [asdict(action) for action in plan.actions], "told": plan.answer}
        return {"said": f"{name} is done" if plan.actions else name, "actions": [], "told": None}

    def _seats(self, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
        if self.veil.key is None or name not in COMMANDS:
            return dict(args)
        found = dict(args)
        for arg in COMMANDS[name].args:
            place = str(found.get(arg.name, ""))
            if arg.kind == "resident" and place.isdecimal() and int(place) < len(self._order):
                found[arg.name] = self._order[int(place)]
        return found

    # Keeping ---------------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> str:
        """Saves the whole world and the state of the narration."""
        notes = {"limiter": self._limiter.plain(), "vignettes": self._playing.plain(), "seen": self._seen}
        notes |= {"seed": self.seed, "commands": [asdict(command) for command in self.commands]}
        notes["heard"] = [[who, heard.about, heard.is_good] for who, heard in self._heard.items()]
        return record.save(path, self.env.state, self.rules, notes)

    def restore(self, path: Path) -> None:
        """Goes on from a snapshot; a new window and a new key frame begin."""
        with explained():
            state, notes = record.load(path, self.rules)
        try:
            self.env.restore(state)
        except ValueError as error:
            raise BadInput(str(path), why=str(error), remedy="give the rules that it was made with") from error
        self.seed, self._seen = notes["seed"], notes["seen"]
        self.commands = [CommandAtTick(**one) for one in notes["commands"]]
        self._limiter = talk.limiter(notes["limiter"])
        self._playing = talk.scene_queue(notes["vignettes"]) if "vignettes" in notes else talk.SceneQueue()
        self._heard = {who: talk.Heard(about, is_good) for who, about, is_good in notes.get("heard", ())}
        self._begin_window()

    def go_on(self, state: TownState) -> None:
        """Goes on from a copy of another town's state; what was told there is not told again."""
        self.env.restore(state)
        self._seen = int(state.town["events"][0])
        self._begin_window()

    def _begin_window(self) -> None:
        self._tally = health.begin(self.env.state)
        self.kpis, self._before = self._measure(self._tally), None

    def script(self) -> ReplayScript:
        """The seed and the commands: enough to run it again."""
        hashes = {"rules": self.rules.sha256, "state": self.env.state.sha256()}
        return ReplayScript(seed=self.seed, commands=tuple(self.commands), ticks=self.tick, **hashes)

    def write_script(self, path: Path) -> None:
        record.write_script(path, self.script())


def rounded(numbers: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 4) for name, value in numbers.items()}


def replay(
    path: Path,
    rules: Rules,
    *,
    upto: int | None = None,
    mind: Mind = Env.scripted,
    each: Callable[[], None] | None = None,
) -> tuple[Life, bool | None]:
    """Runs a script again and says whether it ended in the same state; None where the script has no final state,
    or was not run to its end."""
    with explained():
        script = record.read_script(path)
        if script.rules != rules.sha256:
            why = f"is of a town with rules {script.rules[:12]}, and these are {rules.sha256[:12]}"
            raise BadFile(f"{path}: rules", why, "give the rules that it was made with")
    life, waiting = Life(rules, seed=script.seed, mind=mind), list(script.commands)
    end = script.ticks if upto is None else min(upto, script.ticks)
    for tick in range(end + 1):
        while waiting and waiting[0].tick == tick:
            given = waiting.pop(0)
            life.order(given.name, given.args)
        if tick < end:
            life.step()
            if each is not None:
                each()
    is_whole = end == script.ticks and script.state is not None
    return life, life.env.state.sha256() == script.state if is_whole else None
