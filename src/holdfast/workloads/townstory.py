"""Some days of a town as one page: a film of the map, each day told as a story, and how its residents learnt.

The town is lived once; the page needs nothing else and loads nothing. The same town gives the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.workloads.townlife import Life, fold

EVERY = 6  # ticks between two pictures of the film
PARTS = (("In the night", 0), ("In the morning", 6), ("In the afternoon", 12), ("In the evening", 18))
MOST_LINES = 4  # lines of each part of a day, at most
CLOSEST = 2  # pairs of friends that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class TownDay:
    """One day, told."""

    number: int  # from 1
    title: str
    paragraphs: tuple[str, ...]
    kpis: Mapping[str, float | None]  # at its end


@dataclass(frozen=True, slots=True, kw_only=True)
class TownStory:
    legend: Mapping[str, Any]
    version: str  # who drives the residents
    natures: Sequence[int]  # of each resident at the end
    film: Sequence[Sequence[Any]]  # [tick, tile of each resident]; −1: not there
    lines: Sequence[Mapping[str, Any]]
    days: Sequence[TownDay]


def lived_story(life: Life, days: int, *, each: Callable[[], None] = lambda: None) -> TownStory:
    """Lives so many days of a town, and tells them."""
    legend = life.legend()
    day, picture = int(legend["day"]), fold(None, life.frame(key=True))
    film: list[list[Any]] = [[life.tick, *picture["at"]]]
    lines: list[Mapping[str, Any]] = []
    town_days: list[TownDay] = []
    for tick in range(1, days * day + 1):
        life.step()
        each()
        if tick % EVERY == 0 or tick % day == 0:
            frame = life.frame()
            picture = fold(picture, frame)
            lines += frame.get("lines", ())
            film.append([life.tick, *picture["at"]])
        if tick % day == 0:
            today = [line for line in lines if line["tick"] > life.tick - day]
            town_days.append(day_of(len(town_days) + 1, today, picture, dict(life.kpis), day))
    return TownStory(
        legend=legend,
        version=str(getattr(life.mind, "version", "scripts")),
        natures=picture["nature"],
        film=film,
        lines=lines,
        days=town_days,
    )


def day_of(
    number: int, lines: Sequence[Mapping[str, Any]], picture: Mapping[str, Any], kpis: Mapping[str, Any], day: int
) -> TownDay:
    """A day as a story: what was told of each part of it, and how it ended."""
    parts = [(title, hour * day // 24) for title, hour in PARTS]
    paragraphs = []
    for k, (title, first) in enumerate(parts):
        last = parts[k + 1][1] if k + 1 < len(parts) else day
        own = [line for line in lines if first <= (line["tick"] - 1) % day < last]
        if own:
            texts = " ".join(str(line["text"]) for line in _chosen(own))
            paragraphs.append(f"{title}: {texts}")
    return TownDay(
        number=number,
        title=_title(lines),
        paragraphs=(*paragraphs, _ending(picture, kpis)),
        kpis={name: kpis.get(name) for name in ("alive", "needs_met", "attendance", "chats", "exits", "reward")},
    )


def _chosen(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """At most MOST_LINES, in their order: what matters first, then of each kind one before any has two."""
    seen: Counter[str] = Counter()
    ranked = []
    for place, line in enumerate(lines):
        ranked.append((not line["priority"], seen[line["kind"]], place))
        seen[line["kind"]] += 1
    return [lines[place] for place in sorted(place for _, _, place in sorted(ranked)[:MOST_LINES])]


def _title(lines: Sequence[Mapping[str, Any]]) -> str:
    """What nobody expected, else what there was most of."""
    news = [line for line in lines if line["priority"] and line["kind"] != "trouble_ends"]
    if news:
        return str(news[0]["text"]).rstrip(".!")
    kinds = Counter(str(line["kind"]) for line in lines)
    words = {"chat": "A day of talk", "shared_meal": "A day of shared meals", "conflict": "A day of long lines"}
    words |= {"late": "A late start", "help": "A day of kindness"}
    return words.get(kinds.most_common(1)[0][0], "A quiet day") if kinds else "A quiet day"


def _ending(picture: Mapping[str, Any], kpis: Mapping[str, Any]) -> str:
    here = sum(at >= 0 for at in picture["at"])
    text = f"At midnight {here} of {len(picture['at'])} are here"
    if kpis.get("needs_met") is not None and kpis.get("chats") is not None:
        text += f"; {kpis['needs_met']:.0%} of their needs are met, and each talked {kpis['chats']:.0f} times a day"
    names, used = picture["name"], set[int]()
    friends: list[str] = []
    for a, b, trust, known, rivalry in sorted(picture["ties"], key=lambda tie: tie[4] - tie[2] - tie[3]):
        if trust + known > rivalry and not used & {a, b} and len(friends) < CLOSEST:
            friends.append(f"{names[a]} and {names[b]}")
            used |= {a, b}
    return text + (f". The closest by now are {', and '.join(friends)}." if friends else ".")


# The page ------------------------------------------------------------------------------------------------------------

WIDE, HIGH = 640.0, 180.0


def curve_of(learning: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The learning curve as points of a drawing; None where nothing was learnt."""
    points = [] if learning is None else [one for one in learning.get("curve", ()) if one["reward"] is not None]
    if len(points) < 2:
        return None
    base = None if learning is None else learning.get("return_before")
    known = [float(point["reward"]) for point in points] + ([] if base is None else [float(base)])
    low, high, last = min(known), max(known), float(points[-1]["steps"])

    def y(value: float) -> float:
        return round(HIGH - 20.0 - (HIGH - 40.0) * (value - low) / ((high - low) or 1.0), 1)

    drawn = " ".join(f"{round(WIDE * point['steps'] / last, 1)},{y(float(point['reward']))}" for point in points)
    message = f"{points[0]['reward']:+.2f} → {points[-1]['reward']:+.2f} a day"
    return {"points": drawn, "base": None if base is None else y(float(base)), "script": base, "told": message}


def page(story: TownStory, *, learning: Mapping[str, Any] | None = None) -> str:
    """The story as a page that needs nothing else; `learning` is the lineage of the version that drove it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    how: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    sheet = Environment(loader=PackageLoader("holdfast.workloads"), autoescape=True, **how).get_template("story.html")
    names = ("town", "day", "width", "height", "glyphs", "legend", "natures")
    data = {name: story.legend[name] for name in names}
    data |= {"film": story.film, "nature": story.natures}
    data["lines"] = [{"tick": line["tick"], "text": line["text"]} for line in story.lines]
    payload = {"wide": WIDE, "high": HIGH, "curve": curve_of(learning), "learning": learning}
    return str(sheet.render(story=story, data=data, **payload))
