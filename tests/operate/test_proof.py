"""The page of a proof: all figures are there, nothing comes from elsewhere, and names from outside stay text."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Decision, Reason
from holdfast.operate.proof import (
    AxisScale,
    around,
    band,
    box,
    dot,
    level,
    line,
    paired,
    render,
    sequence_plot,
    thin,
    ticks,
    upright,
)
from holdfast.operate.proof_view import MetricSequence, ProofTask
from holdfast.workloads.plots import AFTER, BEFORE, COURSES, INK
from tests.operate.views import OUTCOMES, comparison, view

HOSTILE = """'"><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}</title></style>]]>-->"""
VOID = {"meta", "path", "br", "img", "input", "link", "hr"}


class Seen(HTMLParser):
    """Every tag with its attributes, and all text outside of the styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self._open = "", list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text += data


@pytest.mark.parametrize("kind", OUTCOMES)
def test_the_page_says_the_verdict_the_figures_and_where_they_come_from(kind: str) -> None:
    made = view(kind)
    text = Seen(render(made)).text
    assert made.decision is not None
    wanted = [made.run, "Every metric", "Criteria", "Safety cost: confidence", *made.facts.values(), *made.how]
    wanted += [reason.code for reason in made.decision.reasons] + [criterion.name for criterion in made.criteria]
    wanted += [made.tasks[0].name, "p_value_above_threshold" if kind in ("hold", "reject") else "✓ met"]
    assert [words for words in wanted if words not in text] == []


def test_the_page_is_one_file_without_scripts() -> None:
    page = render(view())
    assert page.startswith("<!doctype html>\n")
    tags = Seen(page).tags
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in tags}
    named = {name for _, attributes in tags for name in attributes}
    assert not [name for name in named if name.startswith("on") or name in ("src", "href")]
    assert not re.search(r"url\(|@import|https?:", page)
    policy = [each["content"] for tag, each in tags if tag == "meta" and "http-equiv" in each]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_the_page_speaks_the_colours_of_the_pictures_and_has_the_same_bytes_every_time() -> None:
    page = render(view())
    wanted = {"ink": INK, "before": BEFORE, "after": AFTER, "f0": COURSES["success"], "f1": COURSES["adoption"]}
    assert [name for name, colour in wanted.items() if f"--{name}: {colour};" not in page] == []
    assert render(view()) == page


@pytest.mark.parametrize("name", ["tooluse-{}", "<&>" * 3000 + "{}"], ids=["short", "long and escaped"])
def test_five_hundred_tasks_are_less_than_300_kB_whatever_they_are_called(name: str) -> None:
    made = view(tasks=500)
    tasks = [replace(task, name=name.format(n)) for n, task in enumerate(made.tasks)]
    assert len(render(replace(made, tasks=tasks)).encode()) < 300_000


def test_no_text_from_outside_becomes_markup() -> None:
    made, harmless = view("blocked"), view("blocked")
    tasks = [
        replace(task, name=f"{n} {HOSTILE}", family=f"{task.family} {HOSTILE}") for n, task in enumerate(made.tasks)
    ]
    reason = Reason(code=f"golden_{HOSTILE}", text=HOSTILE)
    hostile = replace(
        made,
        **dict.fromkeys(("run", "baseline", "candidate"), HOSTILE),
        tasks=tasks,
        decision=Decision(open=False, reasons=(reason,)),
        comparisons={HOSTILE: comparison(HOSTILE, 0.1, 0.05), **made.comparisons},
        criteria=[replace(each, name=HOSTILE, measured=HOSTILE, is_met=False, code=HOSTILE) for each in made.criteria],
        facts={HOSTILE: HOSTILE},
        how=[HOSTILE],
        missing=[HOSTILE] * 30,
    )
    seen = Seen(render(hostile))
    assert {tag for tag, _ in seen.tags} == {tag for tag, _ in Seen(render(harmless)).tags}
    known = {name for _, attributes in Seen(render(harmless)).tags for name in attributes}
    assert {name for _, attributes in seen.tags for name in attributes} == known
    assert HOSTILE in seen.text  # as it was written: nothing of it was evaluated
    assert "and 10 more" in seen.text


def test_a_name_that_is_half_a_letter_or_turns_the_line_can_be_written() -> None:
    made = view()
    page = render(replace(made, tasks=[replace(task, name="\ud800\u202e\n") for task in made.tasks]))
    assert "���" in page.encode().decode()


def test_each_task_is_a_bar_and_those_that_are_the_same_are_none() -> None:
    tasks = [ProofTask(name=str(gain), baseline=0.5, candidate=0.5 + gain) for gain in (-0.5, 0.0, 0.5, 0.25, 0.0)]
    drawn = paired(tasks, "reward")
    bars = [(mark.name, mark.kind) for mark in drawn.marks if mark.kind in ("better", "worse")]
    assert bars == [("0.5: +0.500", "better"), ("0.25: +0.250", "better"), ("-0.5: −0.500", "worse")]
    assert [word.text for word in drawn.below] == ["2 better", "2 the same", "1 worse"]


@pytest.mark.parametrize(
    ("many", "colours"),
    [
        (1, {"better", "worse"}),  # one family is none
        (8, {f"family-{n}" for n in range(8)}),
        (9, {"better", "worse"}),  # more than can be told apart: they are listed all the same
    ],
)
def test_families_have_colours_while_these_can_be_told_apart(many: int, colours: set[str]) -> None:
    made = view(families=False, tasks=400)
    tasks = [replace(task, family=f"kind {n % many}") for n, task in enumerate(made.tasks)]
    seen = Seen(render(replace(made, tasks=tasks)))
    kinds = {str(attributes["class"]) for tag, attributes in seen.tags if tag == "path"}
    assert {kind for kind in kinds if kind.startswith("family") or kind in ("better", "worse")} == colours
    assert ("kind 1" in seen.text and "swatch family" not in seen.text) is (many > 1)


def test_the_course_shows_where_the_bar_was_passed() -> None:
    ends = {"low": (-1.0, -0.4, -0.1, 0.1), "high": (1.0, 1.0, 0.9, 0.8)}
    ends |= {"differences": (1.0, 0.0, 0.5, 0.5)}
    drawn = sequence_plot(MetricSequence(metric="success", bar=0.0, proved_at=4, **ends))
    paths = {mark.kind: mark.path for mark in drawn.marks}
    assert paths["proved"] == "M1000 0V1000" and paths["dot"].startswith("M1000 ")
    assert [(word.text, word.kind) for word in drawn.within] == [("proved after 4", "end")]
    assert [word.text for word in drawn.below] == ["1", "2", "3", "4"]
    assert "zero" not in paths  # the bar is there
    assert "proved after 4 tasks" in drawn.described


def test_a_course_of_one_task_and_one_that_never_moves_can_be_drawn() -> None:
    for count in (1, 2, 5):
        flat = MetricSequence(
            metric="safety", differences=(0.0,) * count, low=(-1.0,) * count, high=(1.0,) * count, bar=-0.05
        )
        assert {mark.kind for mark in sequence_plot(flat).marks} == {"grid", "band", "zero", "bar", "mean"}


def test_a_page_without_a_gate_without_safety_and_without_levels_is_whole_and_names_what_was_left_out() -> None:
    given = {"decision": None, "safety": None, "means": {}, "adjusted": {}, "criteria": (), "missing": ("one", "two")}
    text = Seen(render(view(**given))).text
    assert "Safety cost: confidence sequence" not in text and "Criteria" not in text and "–" in text
    assert "no result for every seed: one, two." in text


UNIT = AxisScale(low=0.0, high=1.0)
VALUES = st.floats(-1e6, 1e6)


def numbers(path: str) -> list[float]:
    return [float(word) for word in re.findall(r"-?\d+(?:\.\d+)?", path)]


def test_shapes_are_drawn_from_the_lower_left() -> None:
    x = AxisScale(low=0.0, high=4.0)
    assert line([0, 2, 4], [0.0, 0.5, 1.0], x, UNIT) == "M0 1000L500 500L1000 0"
    assert band([0, 4], [0.0, 0.25], [1.0, 0.75], x, UNIT) == "M0 0L1000 250L1000 750L0 1000Z"
    assert box(1, 2, 0.0, 0.5, x=x, y=UNIT) == "M250 1000H500V500H250Z"
    assert (level(0.25, UNIT), upright(1, x), dot(1, 0.5, x, UNIT)) == ("M0 750H1000", "M250 0V1000", "M250 500h0")
    assert line([], [], UNIT, UNIT) == "" == band([], [], [], UNIT, UNIT)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=30))
def test_nothing_leaves_the_frame(points: list[tuple[float, float]]) -> None:
    across, up = zip(*points, strict=True)
    assert all(0.0 <= number <= 1000.0 for number in numbers(line(across, up, UNIT, UNIT)))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-1.0, 1.0, [-1.0, -0.5, 0.0, 0.5, 1.0]),
        (-0.13, 0.29, [-0.1, 0.0, 0.1, 0.2]),
        (1.0, 200.0, [50.0, 100.0, 150.0, 200.0]),
        (0.0, 0.3, [0.0, 0.1, 0.2, 0.3]),  # and not 0.30000000000000004
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(AxisScale(low=low, high=high)) == expected


@given(VALUES, st.floats(1e-3, 1e6))
def test_there_are_some_ticks_and_not_too_many_and_all_lie_on_the_scale(low: float, reach: float) -> None:
    scale = AxisScale(low=low, high=low + reach)
    found = ticks(scale)
    assert 1 <= len(found) <= 6
    slack = 1e-9 * max(1.0, abs(low), reach)
    assert all(scale.low - slack <= value <= scale.high + slack for value in found)


@given(st.lists(VALUES, min_size=1))
def test_a_scale_has_room_for_all_values_even_if_they_are_one(values: list[float]) -> None:
    scale = around(values)
    assert all(scale.low < value < scale.high for value in values)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0), (nan, 1.0), (0.0, inf)])
def test_a_scale_without_a_length_is_refused(low: float, high: float) -> None:
    with pytest.raises(BadInput, match="must be finite, and apart"):
        AxisScale(low=low, high=high)


def test_a_short_line_keeps_every_point_and_a_long_one_its_ends_and_what_matters() -> None:
    assert thin(400) == list(range(400))
    places = thin(10_000, keep=[4321, 20_000])
    assert len(places) in (400, 401) and places == sorted(set(places))
    assert {0, 4321, 9_999} <= set(places) and 20_000 not in places
