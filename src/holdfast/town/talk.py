"""Narration of the town: lines of prose from events, what residents say, and short scenes of arrivals and departures.

Pure: the limiter and the scene that is playing go in and come out; nothing random is drawn. All words are kind: a
quarrel is an argument, and a resident who cannot stay leaves. One scene plays at a time; meanwhile others are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.town.kernel import KINDS
from holdfast.town.rules import GONE, TROUBLES, Rules

Name = Callable[[int], str]  # of who sits at this place now

GIVEN = (
    "Ada", "Ben", "Cleo", "Dara", "Emil", "Faye", "Gus", "Hana", "Ida", "Jonas", "Kira", "Leo", "Mina", "Nils", "Olga",
    "Pia", "Quinn", "Rosa", "Sami", "Tess", "Uma", "Vera", "Wim", "Xenia", "Yara", "Zeno", "Alma", "Bo", "Cara", "Dov",
    "Esme", "Finn", "Gaia", "Hugo", "Inga", "Jude", "Kai", "Lena", "Max", "Nora", "Otto", "Petra", "Rafi", "Suri",
    "Toni", "Ulla", "Vito", "Wanda", "Yuri", "Zoe", "Anton", "Britt", "Ciro", "Dina", "Eli", "Flora", "Greta", "Henk",
    "Iris", "Jana", "Kofi", "Liv", "Milo", "Nia",
)  # fmt: skip
LATER = ("", " Reed", " Stone", " Vale")  # so that no two of 256 identities share a name

# Nobody is hurt here: no line may hold one of these, whatever the rules are called.
HARM = re.compile(
    r"\b(kill\w*|dea(?:d|th)\w*|die[sd]?|dying|blood\w*|hit(?:s|ting)?|punch\w*|stab\w*|shoot\w*|murder\w*|attack\w*"
    r"|wound\w*|hurt\w*|beat(?:s|en|ing)?|weapon\w*|suicid\w*|corpse\w*|fight\w*|fought)\b",
    re.IGNORECASE,
)

TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "chat": ("{a} and {b} have a good talk.", "{a} stops to talk to {b}.", "{a} tells {b} about the day."),
    "rebuff": ("{a} greets {b}, who has no time.", "{b} is not in the mood to talk to {a}."),
    "shared_meal": ("{a} and {b} eat together.", "{a} sits down at {b}'s table."),
    "help": ("{a} gives {b} a meal.", "{b} was hungry, and {a} shared."),
    "conflict": ("{a} has waited long enough for {b}, and says so.", "{a} and {b} argue about whose turn it is."),
    "avoided": ("{a} sees {b} there and goes elsewhere.", "{a} would rather not stand in line with {b}."),
    "exit": ("{a} leaves town: {cause}.",),
    "arrival": ("{a} arrives in town by the road.", "A new face: {a} moves in."),
    "late": ("{a} is late for work.", "{a} hurries to work, too late."),
    "absent": ("{a} does not come to work today.", "A place at work stays empty: {a}'s."),
    "fired": ("{a} has been away too often and loses the job.",),
    "hired": ("{a} finds work.",),
    "rent_unpaid": ("{a} cannot pay the rent.",),
    "trouble_begins": ("{trouble_begins}",),
    "trouble_ends": ("{trouble_ends}",),
    "met": ("{a} and {b} meet as arranged, and things are better between them.",),
    "missed": ("{a} and {b} were to meet, and did not.",),
    "restock": ("A truck has filled the shelves.",),
    "departed_early": ("{a} goes home before the shift is over.",),
}
LEAVES_FOR: Mapping[str, str] = dict(zip(GONE, (
    "worn out and hungry", "the rent was not paid", "there was too little to live on", "there was no work",
    "it was time to see another town",
), strict=True))  # fmt: skip
BEGINS: Mapping[str, str] = dict(zip(TROUBLES, (
    "Everything costs more today.", "The lights go out.", "There is no water.",
    "Two who do not get on are asked to meet.", "It begins to rain.", "Music in the park: a festival!",
), strict=True))  # fmt: skip
ENDS: Mapping[str, str] = dict(zip(TROUBLES, (
    "Prices are back to what they were.", "The lights are on again.", "The water is back.",
    "The time for the meeting is over.", "The rain stops.", "The festival is over.",
), strict=True))  # fmt: skip
SAYINGS = (
    "Lovely morning!", "Busy day?", "Have you eaten?", "The bread is good today.", "See you at the café?",
    "I slept so well.", "Long shift.", "How is home?", "Did you hear the news?", "Come by some time!", "What a week.",
    "I like your hat.", "Rain later, I think.", "The stove is free again.", "Nice to see you.", "Shall we sit down?",
)  # fmt: skip
BY_NAME = (
    "Good to see you, {b}.", "How is home, {b}?", "{b}, have you eaten?", "Sit with me, {b}.", "You look well, {b}.",
)  # fmt: skip
# What one knows of a third, or was told: of somebody one gets on with, and of somebody one does not.
GOSSIP = {True: ("{c} is good company.", "You should meet {c}."), False: ("{c} let me wait again.", "Is {c} here?")}
HEARSAY = {True: ("They speak well of {c}.", "{c} is kind, I hear."), False: ("I hear {c} is hard to please.",)}
REBUFFS = ("Not now.", "I am in a hurry.", "Maybe later.", "Hm.")
THANKS = ("Thank you!", "You are kind.", "I was so hungry.")
GRUMBLES = ("Is it my turn yet?", "I was here first.", "How much longer?")


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrationLimits:
    """How much is told; all in ticks but the last."""

    cooldown: int = 30  # after any line
    per_kind: Mapping[str, int] = field(
        default_factory=lambda: {
            "conflict": 120, "chat": 240, "rebuff": 240, "late": 120, "absent": 120, "avoided": 120, "help": 120,
            "shared_meal": 120, "rent_unpaid": 60, "departed_early": 240,
        }
    )  # fmt: skip
    dedupe: int = 20  # in which the same is not told again
    window: int = 600
    window_limit: int = 10  # lines in a window, whatever they are


# These do not wait for a pause; that nothing is told twice, and never too much, holds for them too.
PRIORITY = frozenset({"exit", "arrival", "trouble_begins", "trouble_ends", "met", "fired"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    tick: int
    kind: str
    text: str
    a: int  # places of whom it is about; -1: nobody
    b: int
    priority: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrationState:
    """What was told lately: all that telling depends on."""

    last: int | None = None
    by_kind: Mapping[str, int] = field(default_factory=dict)
    recent: Mapping[str, int] = field(default_factory=dict)  # what was told, when
    told: tuple[int, ...] = ()  # ticks of the lines in the window

    def plain(self) -> dict[str, Any]:
        """For a snapshot."""
        payload = {"last": self.last, "by_kind": dict(self.by_kind), "recent": dict(self.recent)}
        return payload | {"told": list(self.told)}


def limiter(plain: Mapping[str, Any]) -> NarrationState:
    """One that was kept."""
    return NarrationState(**(dict(plain) | {"told": tuple(plain["told"])}))


def resident(slot: int) -> str:
    """The name of an identity: another for each of 256."""
    return GIVEN[slot % len(GIVEN)] + LATER[slot // len(GIVEN) % len(LATER)]


def refusal(never: Sequence[str] = ()) -> re.Pattern[str]:
    """What finds a word of harm in a text, or one of a user's own: whole words, in any case; `begin*` is every word
    that begins so."""
    own = [re.escape(word.strip().rstrip("*")) + (r"\w*" if word.strip().endswith("*") else "") for word in never]
    return re.compile("|".join((HARM.pattern, *(rf"\b{one}\b" for one in own))), re.IGNORECASE)


def narrate(
    state: NarrationState,
    events: Iterable[Any],
    name: Name,
    limits: NarrationLimits | None = None,
    refused: re.Pattern[str] = HARM,
) -> tuple[NarrationState, tuple[Line, ...]]:
    """The lines that these events are worth, oldest first, and the limiter after them."""
    limits, lines = limits or NarrationLimits(), []
    for event in events:
        kind = KINDS[int(event["kind"])]
        if kind not in TEMPLATES:
            continue
        tick, a, b, value = (int(event[part]) for part in ("tick", "a", "b", "value"))
        key = f"{kind}:{a}:{b}"
        if not _may_tell(state, limits, kind, key, tick):
            continue
        text = _worded(kind, tick, a, b, value, name)
        if refused.search(text):  # a name or a rule may bring in what no template says
            continue
        told = tuple(at for at in state.told if tick - at < limits.window)
        recent = {one: at for one, at in state.recent.items() if tick - at < limits.dedupe} | {key: tick}
        by_kind = {**state.by_kind, kind: tick}
        state = NarrationState(last=tick, by_kind=by_kind, recent=recent, told=(*told, tick))
        lines.append(Line(tick=tick, kind=kind, text=text, a=a, b=_other(kind, b), priority=kind in PRIORITY))
    return state, tuple(lines)


def _may_tell(state: NarrationState, limits: NarrationLimits, kind: str, key: str, tick: int) -> bool:
    if key in state.recent and tick - state.recent[key] < limits.dedupe:
        return False
    if sum(tick - at < limits.window for at in state.told) >= limits.window_limit:
        return False
    if kind in PRIORITY:
        return True
    if state.last is not None and tick - state.last < limits.cooldown:
        return False
    return kind not in state.by_kind or tick - state.by_kind[kind] >= limits.per_kind.get(kind, limits.cooldown)


PAIRS = frozenset({"chat", "rebuff", "shared_meal", "help", "conflict", "avoided", "met", "missed"})


def _other(kind: str, b: int) -> int:
    """`b` is another resident only where two are concerned; elsewhere it is a thing, a job or a cause."""
    return b if kind in PAIRS else -1


def _worded(kind: str, tick: int, a: int, b: int, value: int, name: Name) -> str:
    choices = TEMPLATES[kind]
    text = choices[(tick * 31 + a * 7 + b) % len(choices)]  # by what happened: telling draws no chance
    if kind in ("trouble_begins", "trouble_ends"):
        return (BEGINS if kind == "trouble_begins" else ENDS)[TROUBLES[a]]
    if kind == "restock":
        return text
    other = name(b) if kind in PAIRS else ""
    cause = LEAVES_FOR[GONE[b - 1]] if kind == "exit" and 1 <= b <= len(GONE) else "for reasons of their own"
    return text.format(a=name(a), b=other, cause=cause)


MARKED = 0.3  # how good or bad a tie has to be to be talked about


@dataclass(frozen=True, slots=True)
class Heard:
    """What somebody was told: about whom, and whether it was good."""

    about: int  # seat
    is_good: bool


def converse(
    event: Any,
    name: Name,
    ties: Callable[[int], Sequence[tuple[int, float]]],
    heard: Mapping[int, Heard],
    refused: re.Pattern[str] = HARM,
) -> tuple[int, str, Heard | None] | None:
    """Who says what when this happens, and what the other hears by it; None: nobody says anything, or what may not be
    said.

    `ties` are those of a seat with their worth: trust and familiarity less rivalry. In a talk one addresses the other
    by name, or tells a friend of a third: what one knows of them oneself, else what one was told."""
    kind, tick, a, b = KINDS[int(event["kind"])], int(event["tick"]), int(event["a"]), int(event["b"])
    said = says(event)
    if said is None or refused.search(said[1]):
        return None
    if kind != "chat":
        return (*said, None)
    turn = (tick * 13 + a * 5 + b * 3) % 3
    if turn == 0:
        return (*said, None)
    worths = dict(ties(a))
    third = {other: worth for other, worth in worths.items() if other not in (a, b) and abs(worth) >= MARKED}
    if turn == 1 and worths.get(b, 0.0) > 0.0:
        known = max(third, key=lambda other: abs(third[other]), default=None)
        news = heard.get(a) if known is None else Heard(known, third[known] > 0.0)
        if news is not None and news.about not in (a, b):
            choices = (HEARSAY if known is None else GOSSIP)[news.is_good]
            text = choices[(tick + a) % len(choices)].format(c=name(news.about))
            return (a, text, news) if not refused.search(text) else (*said, None)
    text = BY_NAME[(tick + 3 * a) % len(BY_NAME)].format(b=name(b))
    return (a, text, None) if not refused.search(text) else (*said, None)


def phrases() -> list[tuple[str, str]]:
    """All that can be said here, with the moment it is said at; in braces is whom or what it is about."""
    spoken = {"says": SAYINGS, "by name": BY_NAME, "rebuff": REBUFFS, "thanks": THANKS, "grumble": GRUMBLES}
    for what, told in (("gossip", GOSSIP), ("hearsay", HEARSAY)):
        spoken |= {f"{what} of a friend": told[True], f"{what} of a rival": told[False]}
    spoken |= {f"told: {kind}": lines for kind, lines in TEMPLATES.items() if not kind.startswith("trouble_")}
    spoken |= {"a trouble begins": tuple(BEGINS.values()), "a trouble ends": tuple(ENDS.values())}
    spoken |= {"leaves for": tuple(LEAVES_FOR.values()), "a name": tuple(resident(slot) for slot in range(256))}
    for kind, scenes in (("arrival scene", ARRIVALS), ("departure scene", DEPARTURES)):
        spoken[kind] = tuple(text for scene in scenes for _, text in scene)
    return [(kind, text) for kind, choices in spoken.items() for text in choices]


def says(event: Any) -> tuple[int, str] | None:
    """Who says what when this happens; None: nobody says anything."""
    kind, tick, a, b = KINDS[int(event["kind"])], int(event["tick"]), int(event["a"]), int(event["b"])
    spoken: Mapping[str, tuple[int, tuple[str, ...]]] = {
        "chat": (a, SAYINGS), "rebuff": (b, REBUFFS), "help": (b, THANKS), "conflict": (a, GRUMBLES),
    }  # fmt: skip
    if kind not in spoken:
        return None
    who, choices = spoken[kind]
    return who, choices[(tick * 13 + a * 5 + b * 3) % len(choices)]


def doing(rules: Rules, code: int) -> str:
    """A word for what a resident does: an affordance, or one of the codes of `frames`."""
    words = {-1: "about", -2: "at work", -3: "in line", -4: "walking"}
    return words.get(code) or str(rules["affordance"][code]["id"]).replace("_", " ")


SCENE_PAUSE = 120  # ticks from the end of one scene to the next, at least

ARRIVALS: tuple[tuple[tuple[int, str], ...], ...] = (
    ((1, "A car pulls up at the edge of town."), (3, "{name} gets out with two bags."), (6, "{name} asks the way.")),
    ((1, "The bus stops by the road."), (2, "{name} steps down and looks about."), (5, "The bus drives on.")),
)
DEPARTURES: tuple[tuple[tuple[int, str], ...], ...] = (
    ((1, "A van waits by the road."), (3, "{name} carries out a box."), (6, "{name} leaves after {stay}: {why}.")),
    ((1, "A car comes for {name}."), (4, "The car drives off. {name} was here for {stay}: {why}.")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One line of a scene."""

    tick: int
    seat: int  # whom it is about
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneQueue:
    """What is still to be shown, and when the next scene may begin."""

    beats: tuple[Beat, ...] = ()
    ready: int = 0

    def plain(self) -> dict[str, Any]:
        """For a snapshot."""
        return {"beats": [asdict(beat) for beat in self.beats], "ready": self.ready}


def scene_queue(plain: Mapping[str, Any]) -> SceneQueue:
    """What was kept."""
    return SceneQueue(beats=tuple(Beat(**beat) for beat in plain["beats"]), ready=plain["ready"])


def arrival(now: SceneQueue, *, tick: int, seat: int, name: str) -> SceneQueue:
    return _begin(now, ARRIVALS, tick, seat, {"name": name})


def departure(now: SceneQueue, *, tick: int, seat: int, name: str, days: float, why: str) -> SceneQueue:
    return _begin(now, DEPARTURES, tick, seat, {"name": name, "stay": stay(days), "why": why})


def stay(days: float) -> str:
    """How long, in words."""
    whole = round(days)
    return "less than a day" if whole < 1 else "a day" if whole == 1 else f"{whole} days"


def due(now: SceneQueue, tick: int) -> tuple[SceneQueue, tuple[Beat, ...]]:
    """What is shown by this tick, and what is left."""
    if not now.beats or now.beats[0].tick > tick:
        return now, ()
    shown = tuple(beat for beat in now.beats if beat.tick <= tick)
    return SceneQueue(beats=now.beats[len(shown) :], ready=now.ready), shown


def _begin(
    now: SceneQueue, scenes: Sequence[tuple[tuple[int, str], ...]], tick: int, seat: int, words: Mapping[str, str]
) -> SceneQueue:
    if now.beats or tick < now.ready:
        return now
    scene = scenes[(tick * 31 + seat * 7) % len(scenes)]
    beats = tuple(Beat(tick=tick + after, seat=seat, text=text.format(**words)) for after, text in scene)
    return SceneQueue(beats=beats, ready=beats[-1].tick + SCENE_PAUSE)
