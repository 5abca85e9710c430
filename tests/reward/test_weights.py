from __future__ import annotations

from math import fsum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.reward.turns import (
    CODE,
    DATA,
    PHASES,
    RESEARCH,
    RUBRIC,
    SETS,
    TOOL,
    TURN,
    TURN_PLAIN,
    CurriculumPosition,
    WeightSet,
    next_position,
    restricted,
    score,
    weigh,
    weights,
)


def signal(name: str, value: float = 1.0, weight: float = 1.0) -> RewardTerm:
    return RewardTerm(name=name, value=value, weight=weight, source="rule:test")


@pytest.mark.parametrize(
    ("surface", "shares"),
    [  # format, tool, task, minimal, cost
        (CODE, (0.20, 0.25, 0.40, 0.10, 0.05)),
        (RESEARCH, (0.15, 0.35, 0.30, 0.05, 0.15)),
        (DATA, (0.25, 0.30, 0.35, 0.05, 0.05)),
    ],
)
def test_the_surfaces_have_their_documented_shares(surface: WeightSet, shares: tuple[float, ...]) -> None:
    assert dict(zip(("format", "tool", "task", "minimal", "cost"), shares, strict=True)) == surface.groups


@pytest.mark.parametrize("name", SETS)
def test_every_set_divides_one_among_its_signals(name: str) -> None:
    assert fsum(SETS[name].shares.values()) == pytest.approx(1.0)
    assert score(dict.fromkeys(SETS[name].shares, 1.0), SETS[name]) == pytest.approx(1.0)


def test_a_turn_is_worth_what_was_worked_by_hand() -> None:
    values = {"information_gain": 0.8, "format": 1.0, "progress": 1.0, "safety": 0.9}
    assert score(values, TURN) == pytest.approx(0.91)  # .4·.8 + .3·1 + .2·1 + .1·.9
    assert score(values, TURN_PLAIN) == pytest.approx(0.92)  # .4·.8 + .3 + .3


def test_a_right_tool_called_well_is_worth_98_hundredths() -> None:
    values = {"choice": 1.0, "structure": 1.0, "utility": 0.9, "error_handling": 1.0}
    assert score(values, TOOL) == pytest.approx(0.98)  # .4 + .3 + .2·.9 + .1


def test_every_term_of_the_rubric_has_a_signal_of_its_own() -> None:
    names = [name for terms in RUBRIC.values() for name in terms.values()]
    assert len(names) == len(set(names)) == 20


def test_weighing_multiplies_and_what_is_not_named_counts_nothing() -> None:
    halves = [signal("choice", weight=0.5), signal("choice", value=0.0, weight=0.5)]
    weighed = weigh([*halves, signal("utility"), signal("colour", value=9.0)], TOOL)
    assert [one.weight for one in weighed] == pytest.approx([0.2, 0.2, 0.2, 0.0])
    assert [one.value for one in weighed] == [1.0, 0.0, 1.0, 9.0]
    assert RewardBreakdown(signals=weighed).total == pytest.approx(0.4)


def test_what_a_workload_cannot_measure_is_shared_among_the_rest() -> None:
    # Of code@1: format .20 to one term, task .40 to two; .60 in all becomes 1.
    few = restricted(CODE, {"format", "success", "progress", "colour"})
    assert few.shares == pytest.approx({"format": 1 / 3, "success": 1 / 3, "progress": 1 / 3})
    assert few.name == "code@1[format,progress,success]"
    with pytest.raises(BadInput, match="nothing of them is measured"):
        restricted(CODE, {"colour"})


def test_a_score_of_what_was_not_measured_is_refused() -> None:
    with pytest.raises(BadInput, match="error_handling was not measured"):
        score({"choice": 1.0, "structure": 1.0, "utility": 1.0}, TOOL)


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        ({"name": "code", "groups": {"a": 1.0}, "terms": {"a": ("x",)}}, "no version"),
        ({"name": "c@1", "groups": {"a": 0.9}, "terms": {"a": ("x",)}}, "add up to 0.9"),
        ({"name": "c@1", "groups": {"a": 2.0, "b": -1.0}, "terms": {"a": ("x",), "b": ("y",)}}, "at least 0"),
        ({"name": "c@1", "groups": {"a": 1.0}, "terms": {}}, "no terms"),
        ({"name": "c@1", "groups": {"a": 0.5, "b": 0.5}, "terms": {"a": ("x",), "b": ("x",)}}, "twice"),
    ],
)
def test_impossible_sets_are_refused(given_: dict[str, object], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        WeightSet(**given_)  # type: ignore[arg-type]


def test_sets_are_found_by_name_with_or_without_a_version() -> None:
    assert weights("code@1") is weights("code") is CODE
    with pytest.raises(BadInput, match="use general@1, code@1"):
        weights("code@9")


def test_the_phases_are_the_documented_ones() -> None:
    assert [(phase.name, phase.first, phase.horizon, phase.least_success) for phase in PHASES] == [
        ("Format Mastery", 0, 3, 0.8),
        ("Tool Integration", 101, 5, 0.7),
        ("Full Autonomy", 501, 10, 0.6),
    ]
    assert PHASES[1].tools == ("read_file", "search", "run_tests") and PHASES[2].tools is None
    assert [phase.weights.groups["format"] for phase in PHASES] == [0.8, 0.4, 0.2]


def test_a_phase_is_left_by_time_and_success_together() -> None:
    assert next_position(CurriculumPosition(), episodes=101, success=0.79, hacked=False) == CurriculumPosition(
        phase=0, episode=101
    )  # not good enough
    assert next_position(CurriculumPosition(), episodes=100, success=1.0, hacked=False) == CurriculumPosition(
        phase=0, episode=100
    )  # too early
    tools = next_position(CurriculumPosition(), episodes=101, success=0.8, hacked=False)
    assert tools == CurriculumPosition(phase=1, episode=101)
    assert next_position(tools, episodes=400, success=0.7, hacked=False) == CurriculumPosition(phase=2, episode=501)
    assert next_position(CurriculumPosition(), episodes=900, success=1.0, hacked=False).phase == 1  # one at a time
    assert next_position(
        CurriculumPosition(phase=2, episode=600), episodes=9, success=1.0, hacked=False
    ) == CurriculumPosition(phase=2, episode=609)


def test_hacking_costs_a_phase_and_its_episodes_however_good_it_looks() -> None:
    assert next_position(
        CurriculumPosition(phase=2, episode=700), episodes=50, success=1.0, hacked=True
    ) == CurriculumPosition(phase=1, episode=101)
    assert next_position(
        CurriculumPosition(phase=0, episode=90), episodes=50, success=1.0, hacked=True
    ) == CurriculumPosition(phase=0, episode=0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 300), st.floats(0, 1), st.booleans()), max_size=30))
def test_a_phase_is_never_entered_before_its_first_episode(steps: list[tuple[int, float, bool]]) -> None:
    place = CurriculumPosition()
    for episodes, success, hacked in steps:
        before, place = place, next_position(place, episodes=episodes, success=success, hacked=hacked)
        assert place.episode >= PHASES[place.phase].first and abs(place.phase - before.phase) <= 1


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(BadInput, match="impossible"):
        next_position(CurriculumPosition(), episodes=1, success=1.5, hacked=False)
