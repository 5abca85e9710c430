from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Reason
from holdfast.contracts.release import MOVES, SHARES, PolicyKind, Release, Stage
from holdfast.promote.release import (
    HOLDBACK,
    WATCHED,
    Routing,
    choose,
    held_back,
    is_counted,
    next_step,
    respond,
    rollback_target,
    route,
)

BREACH = Reason(code="canary_breach_success", text="success 0.61 of 0.80")


def release(number: int = 1, stage: Stage = Stage.CANDIDATE, *, share: int = 0, good: bool = False) -> Release:
    return Release(
        id=f"sprout@{number}",
        project="default",
        policy="sprout",
        number=number,
        kind=PolicyKind.WEIGHTS,
        source=f"checkpoint:run-1-{number}",
        stage=stage,
        share=share,
        is_known_good=good,
        created_at=float(number),
        changed_at=float(number),
    )


def test_a_candidate_comes_to_be_live_step_by_step_and_every_step_is_legal() -> None:
    one, seen = release(), []
    while (step := next_step(one)) is not None:
        assert step[0] in MOVES[one.stage]
        one = replace(one, stage=step[0], share=step[1])
        seen.append(step)
    canary = [(Stage.CANARY, share) for share in SHARES]
    assert seen == [(Stage.SHADOW, 0), *canary, (Stage.LIVE, 100)]


def test_a_canary_with_a_share_of_its_own_goes_on_to_the_next_larger_one() -> None:
    assert next_step(release(stage=Stage.CANARY, share=10)) == (Stage.CANARY, 25)


@pytest.mark.parametrize("stage", [Stage.LIVE, Stage.RETIRED, Stage.ROLLED_BACK, Stage.REJECTED])
def test_nothing_lies_ahead_of_a_version_that_is_live_or_out(stage: Stage) -> None:
    assert next_step(release(stage=stage)) is None


def test_a_live_version_gives_way_to_the_one_that_was_live_before_it_and_was_good() -> None:
    lines = [
        release(1, Stage.RETIRED, good=True),
        release(2, Stage.RETIRED, good=True),
        release(3, Stage.RETIRED),  # was live, and nobody knows how well
        release(4, Stage.ROLLED_BACK, good=True),
        release(5, Stage.REJECTED, good=True),
        failing := release(6, Stage.LIVE, good=True),
    ]
    target = rollback_target(lines, failing)
    assert target is not None and target.id == "sprout@2"


def test_the_last_good_one_is_the_one_retired_last_and_not_the_one_with_the_highest_number() -> None:
    restored = replace(release(1, Stage.RETIRED, good=True), changed_at=90.0)
    target = rollback_target([restored, release(2, Stage.RETIRED, good=True)], release(3, Stage.LIVE))
    assert target == restored


def test_a_failing_canary_leaves_the_live_version_in_service() -> None:
    lines = [release(1, Stage.RETIRED, good=True), release(2, Stage.LIVE), failing := release(3, Stage.CANARY)]
    target = rollback_target(lines, failing)
    assert target is not None and target.id == "sprout@2"


def test_a_version_is_never_rolled_back_to_itself_nor_to_another_policy() -> None:
    failing = release(2, Stage.LIVE, good=True)
    as_it_was = replace(failing, stage=Stage.RETIRED)
    other = replace(release(1, Stage.RETIRED, good=True), id="town@1", policy="town")
    assert rollback_target([failing, as_it_was, other], failing) is None


@given(st.lists(st.tuples(st.sampled_from(Stage), st.booleans()), min_size=1, max_size=8), st.data())
def test_a_target_is_another_one_that_serves_or_is_known_good(
    lines: list[tuple[Stage, bool]], data: st.DataObject
) -> None:
    releases = [release(n, stage, good=good) for n, (stage, good) in enumerate(lines, 1)]
    failing = data.draw(st.sampled_from(releases))
    target = rollback_target(releases, failing)
    others = [one for one in releases if one != failing]
    can_serve = [one for one in others if one.stage is Stage.LIVE or (one.stage is Stage.RETIRED and one.is_known_good)]
    assert target in can_serve if can_serve else target is None


@pytest.mark.parametrize(
    ("stage", "breached", "clear", "action", "step"),
    [
        (Stage.CANARY, True, False, "rollback", (Stage.ROLLED_BACK, 0)),
        (Stage.CANARY, True, True, "rollback", (Stage.ROLLED_BACK, 0)),  # a breach outweighs all that is clear
        (Stage.LIVE, True, False, "rollback", (Stage.ROLLED_BACK, 0)),
        (Stage.SHADOW, True, False, "rollback", (Stage.REJECTED, 0)),  # nobody was ever answered by it
        (Stage.CANARY, False, True, "advance", (Stage.CANARY, 25)),
        (Stage.SHADOW, False, True, "advance", (Stage.CANARY, 5)),
        (Stage.CANARY, False, False, "hold", None),
        (Stage.LIVE, False, True, "hold", None),
        (Stage.CANDIDATE, False, True, "hold", None),  # the gate is its way, not the guard
        (Stage.CANDIDATE, True, False, "hold", None),
        (Stage.ROLLED_BACK, True, False, "hold", None),  # outcomes that came late
        (Stage.RETIRED, False, True, "hold", None),
    ],
)
def test_what_a_guard_found_leads_to_a_rollback_a_step_or_nothing(
    stage: Stage, breached: bool, clear: bool, action: str, step: tuple[Stage, int] | None
) -> None:
    one = release(2, stage, share=5 if stage is Stage.CANARY else 0)
    response = respond(one, [BREACH] if breached else [], clear)
    assert (response.action, response.step) == (action, step)
    assert response.reasons
    if action == "rollback":
        assert response.reasons == (BREACH,)
    if step is not None:
        assert step[0] in MOVES[stage]


def test_a_key_stays_with_the_canary_once_it_has_it_while_the_share_grows() -> None:
    keys = [f"user-{n}" for n in range(2000)]
    before: set[str] = set()
    for share in (0, *SHARES):
        routing = Routing(live="sprout@1", canary="sprout@2", share=share, salt="sprout@2")
        served = {key for key in keys if choose(routing, key) == "sprout@2"}
        assert before <= served
        assert abs(len(served) - 20 * min(share, 100 - HOLDBACK)) <= 90  # four deviations of 2000 keys
        before = served
    live = Routing(live="sprout@2", holdback="sprout@1", salt="sprout@2")
    assert {key for key in keys if choose(live, key) == "sprout@2"} == before  # a few stay behind, always the same


def test_what_is_counted_could_have_met_either_version() -> None:
    canary = Routing(live="sprout@1", canary="sprout@2", share=5, salt="sprout@2")
    live = Routing(live="sprout@2", holdback="sprout@1", salt="sprout@2")
    keys = [f"user-{n}" for n in range(4000)]
    assert not is_counted(canary, "") and not is_counted(live, " ")
    assert all(is_counted(canary, key) for key in keys)
    counted = [key for key in keys if is_counted(live, key)]
    assert abs(len(counted) - 4000 * WATCHED / 100) <= 110
    held = [key for key in counted if choose(live, key) == "sprout@1"]
    assert held == [key for key in keys if choose(live, key) == "sprout@1"]  # all of those are
    assert abs(len(held) - 4000 * HOLDBACK / 100) <= 60


def test_only_what_the_live_version_took_the_place_of_is_held_back() -> None:
    live = replace(release(3, Stage.LIVE), changed_at=9.0)
    before = replace(release(2, Stage.RETIRED, good=True), changed_at=9.0)
    older = replace(release(1, Stage.RETIRED, good=True), changed_at=5.0)
    assert held_back([live, before, older], live) == before
    assert held_back([live, older], live) is None  # after a rollback, say
    expected = Routing(live="sprout@3", holdback="sprout@2", salt="sprout@3")
    assert route([live, before, older], keeps_holdback=True) == expected
    assert route([live, before, older]) == Routing(live="sprout@3", salt="sprout")
    canary = release(4, Stage.CANARY, share=5)
    routing = route([canary, live, before], keeps_holdback=True)
    assert routing is not None and routing.holdback is None  # one comparison at a time


def test_the_next_canary_meets_other_keys() -> None:
    keys = [f"user-{n}" for n in range(4000)]
    first, second = (
        {key for key in keys if choose(Routing(live="a@1", canary=name, share=25, salt=name), key) == name}
        for name in ("a@2", "a@3")
    )
    assert 190 <= len(first & second) <= 310  # 250 would meet both by chance


def test_requests_without_a_key_are_answered_by_the_live_version() -> None:
    routing = Routing(live="sprout@1", canary="sprout@2", share=100, salt="s")
    assert {choose(routing, key) for key in ("", "  ")} == {"sprout@1"}
    assert choose(routing, "ada") == "sprout@2"


def test_a_routing_is_read_off_the_stages() -> None:
    lines = [
        release(5, Stage.SHADOW),
        release(4, Stage.SHADOW),
        release(3, Stage.CANARY, share=25),
        release(2, Stage.LIVE),
        release(1, Stage.RETIRED),
    ]
    expected = Routing(live="sprout@2", canary="sprout@3", share=25, shadow="sprout@5", salt="sprout@3")
    assert route(lines) == expected
    assert route(lines[3:]) == Routing(live="sprout@2", salt="sprout")
    assert route(lines[:3]) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"live": " "},
        {"live": "a@1", "canary": "a@1", "share": 5},
        {"live": "a@1", "shadow": "a@1"},
        {"live": "a@1", "holdback": "a@1"},
        {"live": "a@1", "canary": "a@2", "share": 101},
        {"live": "a@1", "canary": "a@2", "share": -1},
    ],
)
def test_a_routing_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        Routing(**wrong)  # type: ignore[arg-type]
