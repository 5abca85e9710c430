"""Every rule has a bad case that is refused with its exact message, and all faults are told at once."""

from __future__ import annotations

import copy
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.town.rules import DEFAULT, TABLES, TOP, BadRules, checked, load

DEFAULTS = tomllib.loads(DEFAULT.read_text())
GONE = object()  # instead of a value: leave the key out
ITEMS, NEEDS, TRAITS = "raw, meal", "hunger, hygiene, energy, social", "extroversion, forgiveness, ambition"
STAGES = "needs, work, ties, chat_rewards, avoidance_rewards, trouble, personalities"
TYPES = "bed, stove, shower, seat, till, counter, desk, bench"
TROUBLES = "price_spike, blackout, outage, meeting, rain, festival"
AFFORDANCE = "id, object, duration, effects, per_tick, until_full, price, takes, gives, uses, when, hooks"
KNOWN = "energy, hour, hunger, hygiene, meal, on_shift, own, power, queue, raw, social, stock, wallet, water"
LIKE = 'write it like "power and meal < 4"'
ROWS = DEFAULTS["map"]["rows"]


def changed(*changes: tuple[str, Any]) -> dict[str, Any]:
    """The default rules with values put at paths such as "affordance.2.duration"."""
    values = copy.deepcopy(DEFAULTS)
    for path, value in changes:
        *way, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
        table: Any = values
        for part in way:
            table = table[part]
        if value is GONE:
            del table[last]
        else:
            table[last] = value
    return values


def faults(*changes: tuple[str, Any], unlocked: list[str] | None = None) -> list[str]:
    with pytest.raises(BadRules) as caught:
        checked(changed(*changes), unlocked=unlocked)
    return [str(fault) for fault in caught.value.faults]


def row(number: int, old: str, new: str) -> str:
    """The map with one row redrawn."""
    rows = ROWS.strip("\n").splitlines()
    assert rows[number].count(old) >= 1
    rows[number] = rows[number].replace(old, new, 1)
    return "\n".join(rows)


def named(table: str, count: int, **changes: Any) -> list[dict[str, Any]]:
    """So many entries like the first of a table."""
    return [{**DEFAULTS[table][0], "id": f"{table} {k}", **changes} for k in range(count)]


MANY_TYPES = {**DEFAULTS["map"]["objects"], **{glyph: f"thing {glyph}" for glyph in "ABCDEFGHI"}}
LONG = " and ".join(["power"] * 300)
WALLED_IN = row(46, "####", "#n##")
BAD: list[tuple[str, Any, str]] = [
    # the file as a whole
    ("schema", 2, "schema: is 2; this version reads 1"),
    ("schema", GONE, "schema: is missing; see the default rules for what belongs there"),
    ("weather", {}, f"weather: is unknown; use {', '.join(TOP)}"),
    ("ticks_per_day", 23, "ticks_per_day: 23 is out of range; give one from 24 to 100000"),
    ("ticks_per_day", 1440.0, "ticks_per_day: 1440.0 is not a whole number; give one from 24 to 100000"),
    ("ticks_per_day", 1441, "ticks_per_day: 1441 cannot be divided into hours; take a multiple of 24"),
    ("residents", 0, "residents: 0 is out of range; give one from 1 to 256"),
    ("residents", True, "residents: True is not a whole number; give one from 1 to 256"),
    ("residents", 65, "residents: 65 for 64 beds; draw more beds, or take fewer in"),
    # stages
    ("stages.order", GONE, "stages: order: is missing; give it"),
    ("stages.pace", 1, "stages: pace: is unknown; use order, on, green_windows"),
    ("stages.order", ["needs"], f"stages.order: ['needs'] is not all of them; give {STAGES}"),
    ("stages.on", ["needs", "flight"], f"stages.on: 'flight' is unknown; use {STAGES}"),
    ("stages.on", ["needs", "ties"], "stages.on: ties: comes after work, which is off; switch work on"),
    ("stages.green_windows", 0, "stages.green_windows: 0 is out of range; give one from 1 to 10"),
    # the map
    ("map.doors", GONE, "map: doors: is missing; give it"),
    ("map.water", "~", "map: water: is unknown; use walls, doors, ground, entry, objects, rows"),
    ("map.rows", "###\n##\n###", "map.rows: the rows are not all of one length; draw a rectangle"),
    ("map.rows", "", "map.rows: the rows are not all of one length; draw a rectangle"),
    ("map.rows", "###\n###", "map.rows: is 3 × 2; draw from 3 × 3 up to 250 × 250"),
    ("map.rows", "\n".join(["#" * 251] * 3), "map.rows: is 251 × 3; draw from 3 × 3 up to 250 × 250"),
    ("map.rows", row(1, ".", "~"), "map.rows: row 1, column 1: '~' is unknown; use #+._=\"bswtgcdn"),
    ("map.entry", "x", "map.entry: 'x' is nowhere on the edge; let a road leave the town"),
    ("map.rows", "\n".join(["=" * 200, *["b" * 200] * 21]), "map.rows: has 4200 objects; draw at most 4096"),
    ("map.rows", WALLED_IN, "map.rows: bench at row 46, column 3: cannot be reached; open a way to it"),
    ("map.objects", MANY_TYPES, "map.objects: has 17 types; give at most 16"),
    # venues
    ("venue", [], "venue: has no entries; give at least one [[venue]]"),
    ("venue.1.id", GONE, "venue[1]: has no id; give it a name of its own"),
    ("venue.1.id", " ", "venue[1]: has no id; give it a name of its own"),
    ("venue.1.id", "north_west", "venue[1] north_west: is there twice; give each a name of its own"),
    ("venue.0.area", GONE, "venue[0] north_west: area: is missing; give it"),
    ("venue.0.roof", 1, "venue[0] north_west: roof: is unknown; use id, kind, area"),
    ("venue.0.kind", "castle", "venue[0] north_west: kind: 'castle' is unknown; use home, shop, cafe, work, park"),
    ("venue.0.area", [1, 2, 3], "venue[0] north_west: area: [1, 2, 3] is no rectangle; give [left, top, right,"),
    ("venue.0.area", [2, 1, 48, 13], "venue[0] north_west: area: is not on the map; stay within 48 × 48"),
    ("venue.0.area", [9, 1, 2, 13], "venue[0] north_west: area: is not on the map; stay within 48 × 48"),
    ("venue.0.area", [0, 0, 5, 0], "venue[0] north_west: cannot be reached; open a way to it"),
    # needs, items, prices
    ("needs.thirst", {}, f"needs.thirst: is unknown; use {NEEDS}"),
    ("needs.hunger", GONE, "needs.hunger: is missing; give it"),
    ("needs.hunger", 3, "needs.hunger: 3 is not a table; give decay, weight, low"),
    ("needs.hunger.low", 1.5, "needs.hunger.low: 1.5 is out of range; give one from 0 to 1"),
    ("needs.hunger.decay", "much", "needs.hunger.decay: 'much' is not a number; give one from 0 to 50"),
    ("needs.hunger.decay", float("nan"), "needs.hunger.decay: nan is out of range; give one from 0 to 50"),
    ("items.gold", 1, f"items.gold: is unknown; use {ITEMS}"),
    ("items.raw", 1.5, "items.raw: 1.5 is not a whole number; give one from 0 to 1000"),
    ("prices.shower", -1, "prices.shower: -1 is out of range; give one from 0 to 10000"),
    # affordances
    ("affordance", [], "affordance: has no entries; give at least one [[affordance]]"),
    ("affordance.2.duration", GONE, "affordance[2] cook: duration: is missing; give it"),
    ("affordance.2.colour", 1, f"affordance[2] cook: colour: is unknown; use {AFFORDANCE}"),
    ("affordance.2.duration", 0, "affordance[2] cook: duration: 0 is out of range; give one from 1 to 10000"),
    ("affordance.2.object", "kiln", f"affordance[2] cook: object: 'kiln' is unknown; use {TYPES}"),
    ("affordance.2.effects", {"joy": 1}, f"affordance[2] cook: effects.joy: is unknown; use {NEEDS}"),
    ("affordance.2.effects.energy", -2, "affordance[2] cook: effects.energy: -2 is out of range; give one from -1 to"),
    ("affordance.2.takes", {"gold": 1}, f"affordance[2] cook: takes.gold: is unknown; use {ITEMS}"),
    ("affordance.2.gives.meal", -1, "affordance[2] cook: gives.meal: -1 is out of range; give one from 0 to 100"),
    ("affordance.2.uses", -1, "affordance[2] cook: uses: -1 is out of range; give one from 0 to 100"),
    ("affordance.2.uses", 1, "affordance[2] cook: uses: stove has no stock; give [stock] stove"),
    ("affordance.1.price", "gold", "affordance[1] shower: price: 'gold' is unknown; use groceries, coffee_meal,"),
    ("affordance.0.until_full", "joy", f"affordance[0] sleep: until_full: 'joy' is unknown; use {NEEDS}"),
    ("affordance.3.hooks", ["sing"], "affordance[3] eat: hooks: 'sing' is unknown; use shared_meal"),
    ("affordance.3.when", "hunger", f"affordance[3] eat: when: hunger is a number: compare it with one; {LIKE}"),
    ("affordance.3.when", "thirst < 1", f"affordance[3] eat: when: thirst is unknown; there are {KNOWN}; {LIKE}"),
    ("affordance.3.when", LONG, "affordance: when: the conditions are too long together; ask for less"),
    ("affordance", named("affordance", 33), "affordance: has 33 entries; give at most 32"),
    # stock
    ("stock.kiln", {"most": 1, "start": 1, "hour": 1}, f"stock.kiln: 'kiln' is unknown; use {TYPES}"),
    ("stock.till.hour", 24, "stock.till.hour: 24 is out of range; give one from 0 to 23"),
    ("stock.till.most", GONE, "stock.till.most: is missing; give it"),
    # jobs
    ("job", [], "job: has no entries; give at least one [[job]]"),
    ("job.0.wage", GONE, "job[0] grocer_early: wage: is missing; give it"),
    ("job.0.boss", 1, "job[0] grocer_early: boss: is unknown; use id, venue, start, end, wage, slots"),
    ("job.0.venue", "mine", "job[0] grocer_early: venue: 'mine' is unknown; use north_west, north_east, south_west,"),
    ("job.0.end", 1441, "job[0] grocer_early: end: 1441 is out of range; give one from 0 to 1440"),
    ("job.0.end", 420, "job[0] grocer_early: end: 420 is not after the start 420; let it end later"),
    ("job.0.slots", 0, "job[0] grocer_early: slots: 0 is out of range; give one from 1 to 256"),
    ("job.0.wage", -1, "job[0] grocer_early: wage: -1 is out of range; give one from 0 to 10"),
    # 420 ticks × 0.005; rent 0.8 + 3 meals of 0.5 + a shower of 0.05, × 1.1 / 420
    ("job.0.wage", 0.005, "job[0] grocer_early: wage: earns 2.10 a day and a day costs 2.35; pay at least 0.00615"),
    ("job", named("job", 33), "job: has 33 entries; give at most 32"),
    # trouble and natures
    ("trouble", [], "trouble: has no entries; give at least one [[trouble]]"),
    ("trouble.0.id", "dragon", f"trouble[0] dragon: id: 'dragon' is unknown; use {TROUBLES}"),
    ("trouble.0.per_day", GONE, "trouble[0] price_spike: per_day: is missing; give it"),
    ("trouble.0.per_day", 25, "trouble[0] price_spike: per_day: 25 is out of range; give one from 0 to 24"),
    ("trouble.0.duration", [9, 2], "trouble[0] price_spike: duration: [9, 2] is no span; give [least, most] in"),
    ("trouble.0.cooldown", -1, "trouble[0] price_spike: cooldown: -1 is out of range; give one from 0 to 1e+06"),
    ("trouble.0.factor", 0, "trouble[0] price_spike: factor: 0 is out of range; give one from 0.1 to 10"),
    ("trouble.0.who", 1, "trouble[0] price_spike: who: is unknown; use id, per_day, duration, cooldown, factor"),
    ("profile.0.traits", GONE, "profile[0] balanced: traits: is missing; give it"),
    ("profile.0.traits.ambition", GONE, "profile[0] balanced: traits.ambition: is missing; give it"),
    ("profile.0.traits.wit", 1, f"profile[0] balanced: traits.wit: is unknown; use {TRAITS}"),
    ("profile.0.traits.ambition", 2, "profile[0] balanced: traits.ambition: 2 is out of range; give one from -1 to 1"),
    ("profile.1.decay.social", 0, "profile[1] socialite: decay.social: 0 is out of range; give one from 0.1 to 10"),
    ("profile", [], "profile: has no entries; give at least one [[profile]]"),
    ("profile.0.share", 2, "profile[0] balanced: share: 2 is out of range; give one from 0 to 1"),
    ("profile.0.share", 0.5, "profile: share: the shares sum to 1.1; make them sum to 1"),
    ("profile", named("profile", 17, share=1 / 17), "profile: has 17 entries; give at most 16"),
    # tables of numbers
    ("lifecycle.slots", 63, "lifecycle.slots: 63 for 64 residents; give each resident one at least"),
    ("queues", 3, "queues: 3 is not a table; give reach, hold, cooldown, ghost_after, conflict_after"),
    ("lifecycle.respawn", [5], "lifecycle.respawn: [5] is no span; give [least, most] in ticks, least at least 1"),
    ("lifecycle.respawn", [0, 5], "lifecycle.respawn: [0, 5] is no span; give [least, most] in ticks, least at least"),
    ("lifecycle.starter_items.gold", 1, f"lifecycle.starter_items.gold: is unknown; use {ITEMS}"),
    ("ties.most", 9, "ties.most: 9 is out of range; give one from 1 to 8"),
    ("ties.chat.base", GONE, "ties.chat.base: is missing; give it"),
    ("ties.chat.cooldown", 0, "ties.chat.cooldown: 0 is out of range; give one from 1 to 1440"),
    ("ties.conflict.rivalry", GONE, "ties.conflict.rivalry: is missing; give it"),
    ("ties.help.love", 1, "ties.help.love: is unknown; use trust, familiarity, rivalry"),
    ("rewards.terminal.collapse", 1, "rewards.terminal.collapse: 1 is out of range; give one from -100 to 0"),
    ("rewards.gamma", 1.1, "rewards.gamma: 1.1 is out of range; give one from 0.5 to 1"),
    # of another kind
    ("ticks_per_day", "long", "ticks_per_day: 'long' is not a whole number; give one from 24 to 100000"),
    ("name", 3, "name: 3 is no text; write it in quotes"),
    ("stages", [], "stages: [] is not a table; write it as [stages]"),
    ("map", 3, "map: 3 is not a table; write it as [map]"),
    ("prices", 3, "prices: 3 is not a table; write it as [prices]"),
    ("stock", None, "stock: None is not a table; write it as [stock]"),
    ("stages.on", "needs", 'stages.on: \'needs\' is no list of names; write it like ["one", "other"]'),
    ("stages.order", 3, 'stages.order: 3 is no list of names; write it like ["one", "other"]'),
    ("map.rows", 3, "map.rows: 3 is no text; write it in quotes"),
    ("map.objects", {"b": 3}, "map.objects: {'b': 3} is no table of names; write it like { b = \"bed\" }"),
    ("venue", 3, "venue: has no entries; give at least one [[venue]]"),
    ("affordance.3.hooks", 3, 'affordance[3] eat: hooks: 3 is no list of names; write it like ["one", "other"]'),
    ("affordance.3.per_tick", 1, "affordance[3] eat: per_tick: 1 is not true or false; write true or false"),
]


@pytest.mark.parametrize(("path", "value", "message"), BAD, ids=[f"{path}-{k}" for k, (path, _, _) in enumerate(BAD)])
def test_a_bad_value_is_refused_with_its_exact_message(path: str, value: Any, message: str) -> None:
    assert any(fault.startswith(message) for fault in faults((path, value)))


def numbers(table: Any, where: str) -> list[tuple[str, tuple[float, float]]]:
    """Every number that the tables declare, with its range."""
    if isinstance(table, tuple):
        return [(where, table)]
    inner = table.items() if isinstance(table, dict) else []
    return [one for key, shape in inner for one in numbers(shape, f"{where}.{key}")]


@pytest.mark.parametrize(("path", "bounds"), [one for name, shape in TABLES.items() for one in numbers(shape, name)])
def test_every_number_of_every_table_has_a_least_and_a_most(path: str, bounds: tuple[float, float]) -> None:
    least, most = bounds
    remedy = f"give one from {least:g} to {most:g}"
    for beyond in (least - 1, most + 1):
        assert faults((path, beyond)) == [f"{path}: {beyond!r} is out of range; {remedy}"]
    kind = "a whole number" if isinstance(least, int) and isinstance(most, int) else "a number"
    assert faults((path, "some")) == [f"{path}: 'some' is not {kind}; {remedy}"]


@pytest.mark.parametrize(
    "path", [f"{name}.{key}" for name, shape in TABLES.items() for key in shape], ids=lambda path: str(path)
)
def test_every_key_of_every_table_has_to_be_there(path: str) -> None:
    assert faults((path, GONE)) == [f"{path}: is missing; give it"]


def test_all_faults_are_told_at_once() -> None:
    several = faults(("residents", 0), ("queues.hold", 0), ("job.0.wage", GONE), ("affordance.3.when", "thirst"))
    assert several == [
        "residents: 0 is out of range; give one from 1 to 256",
        "queues.hold: 0 is out of range; give one from 1 to 100",
        f"affordance[3] eat: when: thirst is unknown; there are {KNOWN}; {LIKE}",
        "job[0] grocer_early: wage: is missing; give it",
    ]


def test_unreachable_things_and_a_day_too_dear_are_told_together() -> None:
    told = faults(("map.rows", WALLED_IN), ("economy.rent", 9.0), ("residents", 60))
    assert told[0].startswith("map.rows: bench at row 46, column 3")
    assert len(told) == 1 + len(DEFAULTS["job"])
    assert told[1] == "job[0] grocer_early: wage: earns 3.99 a day and a day costs 10.55; pay at least 0.02763"


def test_an_affordance_of_a_thing_that_is_nowhere_is_refused() -> None:
    assert faults(("map.rows", ROWS.replace("n", '"'))) == [
        "affordance[6] relax: object: there is no bench on the map; draw one"
    ]


def test_a_house_without_a_door_cannot_be_reached() -> None:
    rows = ROWS.strip("\n").splitlines()
    closed = "\n".join([*rows[:13], rows[13].replace("+", "#"), *rows[14:]])
    told = faults(("map.rows", closed))
    assert "venue[0] north_west: cannot be reached; open a way to it" in told
    assert "map.rows: bed at row 2, column 3: cannot be reached; open a way to it" in told


def test_a_stage_stays_off_until_the_one_before_is_green() -> None:
    (locked,) = faults(unlocked=["needs", "work", "ties", "chat_rewards", "avoidance_rewards", "trouble"])
    assert locked.startswith("stages.on: personalities: its stage before has not had 2 green windows; leave it off, or")
    two = ["needs", "work"]
    assert load(override={"stages": {"on": two}}, unlocked=two)["stages"]["on"] == two


def test_wages_that_just_feed_a_resident_are_enough() -> None:
    just = 1.1 * 2.35 / 420
    assert checked(changed(("job.0.wage", just)))
    assert faults(("job.0.wage", just * 0.999))


def test_a_file_overrides_only_what_it_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\n[queues]\nhold = 9\n')
    rules = load(path, override={"residents": 3})
    assert (rules["name"], rules["queues"]["hold"], rules["queues"]["reach"], rules["residents"]) == ("mine", 9, 2, 3)
    assert rules.source == str(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    with pytest.raises(BadRules) as caught:
        load(path)
    assert str(caught.value) == f"{path}: file: No such file or directory; name a file that can be read"
    path.write_text("a = = 1")
    with pytest.raises(BadRules, match="Invalid value .*; write it as TOML"):
        load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadRules, match="name a file that can be read"):
        load(path)


def test_the_same_rules_have_the_same_hash_however_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "same.toml"
    path.write_text("residents = 64\n")
    assert load(path).sha256 == load().sha256
    path.write_text("residents = 63\n")
    assert load(path).sha256 != load().sha256


def places(value: Any, way: tuple[str, ...] = ()) -> list[str]:
    """Every place in the rules to which something else could be written; of entries alike, the first two."""
    keys = value if isinstance(value, dict) else range(min(2, len(value))) if isinstance(value, list) else ()
    inner = [one for key in keys for one in places(value[key], (*way, str(key)))]
    return [".".join(way), *inner] if way else inner


@pytest.mark.usefixtures("untraced")
def test_nothing_that_is_written_anywhere_breaks_the_check() -> None:
    for value in (None, 3, -5, "x", True, [], {}, [1], float("nan")):
        for path in places(DEFAULTS):
            with suppress(BadRules):
                checked(changed((path, value)))
