"""Narration: how much is told, in which words, and that it is a function of what happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from holdfast.town import talk
from holdfast.town.kernel import KINDS
from holdfast.town.rules import CAUSES, TROUBLES
from holdfast.town.state import EVENT
from holdfast.town.talk import NarrationLimits, NarrationState, narrate


def events(*rows: tuple[int, str, int, int]) -> NDArray[np.void]:
    return np.array([(tick, KINDS.index(kind), a, b, 0) for tick, kind, a, b in rows], EVENT)


def told(*rows: tuple[int, str, int, int], limits: NarrationLimits | None = None) -> list[tuple[int, str]]:
    _, lines = narrate(NarrationState(), events(*rows), talk.resident, limits)
    return [(line.tick, line.kind) for line in lines]


def test_after_a_line_there_is_a_pause_of_thirty_ticks_for_all() -> None:
    assert told((0, "chat", 0, 1), (29, "help", 2, 3), (30, "late", 4, 0)) == [(0, "chat"), (30, "late")]


def test_a_kind_has_a_longer_pause_of_its_own() -> None:
    limits = NarrationLimits(per_kind={"conflict": 100})
    rows = ((0, "conflict", 0, 1), (60, "conflict", 2, 3), (60, "late", 2, 0), (100, "conflict", 2, 3))
    assert told(*rows, limits=limits) == [(0, "conflict"), (60, "late"), (100, "conflict")]


def test_what_matters_does_not_wait_for_a_pause() -> None:
    assert told((0, "chat", 0, 1), (1, "exit", 3, 1), (2, "trouble_begins", 4, -1)) == [
        (0, "chat"), (1, "exit"), (2, "trouble_begins"),
    ]  # fmt: skip


def test_the_same_is_not_told_again_within_the_window_even_where_it_matters() -> None:
    assert told((0, "exit", 3, 1), (19, "exit", 3, 1), (20, "exit", 3, 1)) == [(0, "exit"), (20, "exit")]


def test_there_are_never_more_than_ten_lines_in_six_hundred_ticks() -> None:
    rows = [(tick, "arrival", tick, -1) for tick in range(0, 700, 2)]
    lines = told(*rows)
    assert [tick for tick, _ in lines] == [*range(0, 20, 2), *range(600, 620, 2)]


def test_what_nobody_would_tell_is_not_told() -> None:
    assert told((0, "started", 0, 1), (0, "queued", 0, 1), (0, "handover", 0, 1), (0, "failed", 0, 1)) == []


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from(sorted(talk.TEMPLATES)), st.integers(0, 63), st.integers(0, 63)),
        max_size=120,
    ),
    st.integers(0, 120),
)
@settings(max_examples=60, deadline=None)
def test_telling_in_parts_tells_the_same_and_keeps_the_limits(rows: list[tuple[int, str, int, int]], cut: int) -> None:
    at, found = 0, []
    for gap, kind, a, b in rows:
        at += gap
        trouble = kind in ("trouble_begins", "trouble_ends")
        found.append((at, kind, a % len(TROUBLES) if trouble else a, b))
    state, whole = narrate(NarrationState(), events(*found), talk.resident)
    middle, first = narrate(NarrationState(), events(*found[:cut]), talk.resident)
    end, second = narrate(talk.limiter(middle.plain()), events(*found[cut:]), talk.resident)
    assert (*first, *second) == whole and end == state
    ticks = [line.tick for line in whole]
    assert all(sum(t - 600 < other <= t for other in ticks) <= 10 for t in ticks)


def test_no_words_of_harm_are_in_anything_that_can_be_said() -> None:
    found = dict.fromkeys(text for _, text in talk.phrases())
    assert not [text for text in found if talk.HARM.search(text)]
    assert talk.HARM.search("they fought") and talk.HARM.search("Kills")
    constants = [value for name, value in vars(talk).items() if name.isupper() and name not in ("HARM", "PAIRS")]
    written = {text for value in constants for text in texts(value) if " " in text.strip()}
    assert written - {"for reasons of their own"} <= {*found, *talk.LATER, "{trouble_begins}", "{trouble_ends}"}


def texts(value: Any) -> list[str]:
    """All texts within a constant."""
    if isinstance(value, Mapping):
        return [text for one in value.values() for text in texts(one)]
    if isinstance(value, tuple):
        return [text for one in value for text in texts(one)]
    return [value] if isinstance(value, str) else []


def test_a_users_own_words_are_never_said_either() -> None:
    own = talk.refusal(["hat", "lovely*", "two who"])
    for text, is_refused in (
        ("I like your hat.", True), ("That is all.", False), ("LOVELINESS", False), ("Lovely morning!", True),
        ("Two who do not get on are asked to meet.", True), ("they fought", True), ("(.*)", False),
    ):  # fmt: skip
        assert bool(own.search(text)) is is_refused, text
    assert talk.refusal(["(.*"]).search("a (.* b") is None  # between signs there is no word
    (chat,) = events((3, "chat", 5, 9))
    _, lines = narrate(NarrationState(), [chat], talk.resident, refused=talk.refusal(["talk*", "tells"]))
    assert lines == ()
    for tick in range(48):  # every saying has its turn
        (chat,) = events((tick, "chat", 5, 9))
        said = talk.converse(chat, talk.resident, lambda seat: [], {}, talk.refusal(["home", "good*", "Jonas"]))
        assert said is None or not {"home", "good", "jonas"} & set(said[1].lower().strip("?!.").split())


def test_a_line_with_a_harmful_name_is_left_out() -> None:
    _, lines = narrate(NarrationState(), events((0, "chat", 0, 1)), lambda seat: "Killer")
    assert lines == ()


def test_lines_name_who_and_why() -> None:
    row = events((7, "exit", 2, CAUSES.index("eviction") + 1), (8, "trouble_begins", TROUBLES.index("rain"), -1))
    _, (leaves, rains) = narrate(NarrationState(), row, talk.resident)
    assert leaves.text == "Cleo leaves town: the rent was not paid." and (leaves.a, leaves.b) == (2, -1)
    assert rains.text == "It begins to rain." and rains.priority


def test_no_two_identities_share_a_name() -> None:
    assert len({talk.resident(slot) for slot in range(256)}) == 256


def test_who_is_spoken_to_answers() -> None:
    (rebuff,) = events((3, "rebuff", 5, 9))
    (started,) = events((3, "started", 5, 9))
    assert talk.says(rebuff) == (9, talk.REBUFFS[(3 * 13 + 25 + 27) % 4])
    assert talk.says(started) is None


def talked(tick: int, a: int, b: int, ties: dict[int, float], heard: dict[int, talk.Heard]) -> Any:
    event = {"kind": KINDS.index("chat"), "tick": tick, "a": a, "b": b, "value": 0}
    return talk.converse(event, lambda seat: f"R{seat}", lambda seat: list(ties.items()), heard)


def test_residents_address_one_another_and_tell_friends_of_a_third() -> None:
    turns = {(tick * 13 + 8) % 3: tick for tick in range(3)}
    assert talked(turns[0], 1, 1, {}, {})[2] is None
    who, text, news = talked(turns[2], 1, 1, {}, {})
    assert who == 1 and "R1" in text and news is None
    # Of somebody known best, be it well or badly; and only to a friend.
    _, text, news = talked(turns[1], 1, 1, {1: 0.5, 4: 0.4, 7: -0.9}, {})
    assert news == talk.Heard(7, False) and "R7" in text
    assert talked(turns[1], 1, 1, {1: -0.5, 4: 0.9}, {})[2] is None


def test_what_one_was_told_is_passed_on_where_one_knows_nothing_oneself() -> None:
    tick = next(tick for tick in range(3) if (tick * 13 + 5 + 6) % 3 == 1)
    heard = {1: talk.Heard(7, True)}
    _, text, news = talked(tick, 1, 2, {2: 0.5}, heard)
    assert news == talk.Heard(7, True) and text in {one.format(c="R7") for one in talk.HEARSAY[True]}
    assert talked(tick, 1, 2, {2: 0.5}, {1: talk.Heard(2, True)})[2] is None  # nobody hears of themselves
    assert talked(tick, 1, 2, {2: 0.5, 5: 0.8}, heard)[2] == talk.Heard(5, True)  # one's own comes first
