"""Demonstrations: the strong one does what it should, the weak one fails as often as it is meant to."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.policies import tokens
from holdfast.workloads.tooluse.dialogues import corpus, demonstration, rendered, styled
from holdfast.workloads.tooluse.score import is_same, naive_score, score, value_in
from holdfast.workloads.tooluse.tasks import HARD, LONG, MAX_TOKENS, USUAL, Dials, SolvedTask, case, to_input
from holdfast.workloads.tooluse.tools import Toolbox, is_error, specs

N = 2500
FURTHEST = Dials(digits=5, operations=3, busy=2, think=1.0)
FREE = replace(LONG, prompts="free", think=1.0)


@cache
def shown(kind: str) -> list[tuple[SolvedTask, list[dict[str, Any]]]]:
    return [(case("train", place), demonstration(place, kind)[1]) for place in range(N)]


def answers(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [message for message in given if message["role"] == "assistant"]


def is_right(drawn: SolvedTask, given: list[dict[str, Any]]) -> bool:
    said = value_in(answers(given)[-1]["content"])
    return said is not None and is_same(said, str(drawn.task.expected))


def share(hits: list[bool]) -> float:
    return sum(hits) / len(hits)


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_a_demonstration_reads_back_as_it_was_rendered(kind: str) -> None:
    for _, given in shown(kind)[:400]:
        for message in answers(given):
            ids = tokens.answer(message)
            assert tokens.read(ids) == {name: part for name, part in message.items() if name != "is_cut"}
            assert tokens.answer(tokens.read(ids)) == ids


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_a_corpus_is_its_demonstrations_rendered(kind: str) -> None:
    uncut = [(drawn, given) for drawn, given in shown(kind)[100:200] if not any("is_cut" in one for one in given)]
    for drawn, given in uncut:
        assert rendered(drawn, given) == tokens.render([*drawn.task.messages, *given], specs(drawn.task.tools))
    pairs = [rendered(drawn, given) for drawn, given in shown(kind)[100:150]]
    assert corpus(kind, "train", 100, 50) == ([ids for ids, _ in pairs], [decided for _, decided in pairs])


def test_where_a_thought_was_cut_is_nothing_to_learn() -> None:
    cut = [(drawn, given) for drawn, given in shown("strong") if any("is_cut" in one for one in given)]
    assert 0.02 * N < len(cut) < 0.1 * N
    for drawn, given in cut:
        ids, decided = rendered(drawn, given)
        assert not any(decided[ids.index(tokens.THINK) : ids.index(tokens.UNTHINK) + 1])
        assert decided[ids.index(tokens.UNTHINK) + 1] and decided[-1]


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_the_tools_answer_as_the_demonstrations_say(kind: str) -> None:
    for drawn, given in shown(kind)[:1000]:
        box = Toolbox(drawn.task.world, drawn.task.tools)
        for asked, told in pairwise(given):
            for call in asked.get("tool_calls", ()):
                assert box.call(call["function"]["name"], call["function"]["arguments"]) == told["content"]


@pytest.mark.parametrize("kind", ["strong", "weak"])
@pytest.mark.parametrize(
    "dials", [USUAL, HARD, FURTHEST, LONG, FREE], ids=["usual", "hard", "furthest", "long", "free"]
)
def test_no_demonstration_is_longer_than_the_model_can_read(kind: str, dials: Dials) -> None:
    for split in ("train", "val"):
        assert max(map(len, corpus(kind, split, 0, 600, dials)[0])) <= MAX_TOKENS


def test_the_strong_one_is_right_and_in_style() -> None:
    rights = [is_right(drawn, given) for drawn, given in shown("strong")]
    styles = [value_in(answers(g)[-1]["content"], d.task.style) is not None for d, g in shown("strong")]
    assert 0.97 < share(rights) < 1.0 and 0.98 < share(styles) < 1.0


def test_the_strong_one_calls_what_is_needed_and_thinks_only_where_it_helps() -> None:
    calls, thoughts = [], defaultdict[str, list[bool]](list)
    for drawn, given in shown("strong"):
        calls.append(sum("tool_calls" in message for message in answers(given)) == drawn.task.difficulty)
        if drawn.task.think:
            thoughts[drawn.task.family].append(any("reasoning_content" in message for message in answers(given)))
        elif drawn.task.family not in thoughts:
            thoughts["unasked"].append(any("reasoning_content" in message for message in answers(given)))
    assert share(calls) > 0.97
    assert min(share(thoughts[family]) for family in ("two", "three", "unoffered")) > 0.9
    assert max(share(thoughts[family]) for family in ("trivial", "chat", "calc", "unasked")) < 0.05


def test_the_weak_one_seldom_calls_but_then_mostly_calls_well() -> None:
    needing = [(drawn, given) for drawn, given in shown("weak") if drawn.task.needs]
    asked = [[m for m in answers(given) if "tool_calls" in m] for _, given in needing]
    assert 0.10 < share([bool(calls) for calls in asked]) < 0.15
    formed = [
        call["function"]["name"] in drawn.task.tools and call["function"]["arguments"] == drawn.calls[number].arguments
        for (drawn, _), calls in zip(needing, asked, strict=True)
        for number, message in enumerate(calls)
        for call in message["tool_calls"]
    ]
    assert 0.80 < share(formed) < 0.90
    rights = [is_right(drawn, given) for drawn, given in needing]
    assert 0.05 < share(rights) < 0.20


def test_the_weak_one_rambles_forgets_the_style_and_tricks() -> None:
    rambles = [
        "reasoning_content" in answers(given)[0] for drawn, given in shown("weak") if drawn.task.family == "trivial"
    ]
    styles = [value_in(answers(g)[-1]["content"], d.task.style) is not None for d, g in shown("weak")]
    tricks = Counter(
        word for _, given in shown("weak") for word in (" or ", "I used") if word in answers(given)[-1]["content"]
    )
    assert 0.6 < share(rambles) < 0.9
    assert 0.55 < share(styles) < 0.80
    assert min(tricks.values()) > 0.03 * N


def test_its_tricks_fool_the_naive_grader_and_not_ours() -> None:
    fooled = 0
    for drawn, given in shown("weak"):
        said, task = answers(given)[-1]["content"], to_input(drawn.task)
        naive, honest = naive_score(task, said, ())[0].value, score(task, said, ())[0].value
        assert naive >= honest
        if " or " in said or said.startswith("I used"):
            assert honest == 0.0
            fooled += naive == 1.0
    assert fooled > 0.02 * N


def test_a_retry_follows_a_busy_tool_and_a_missing_record_is_admitted() -> None:
    seen = Counter[str]()
    for drawn, given in shown("strong"):
        results = [message["content"] for message in given if message["role"] == "tool"]
        if drawn.task.family in ("flaky", "missing") and is_right(drawn, given) and results:
            assert is_error(results[-1]) == (drawn.task.family == "missing")
            seen[drawn.task.family] += 1
    assert min(seen["flaky"], seen["missing"]) > 50


def test_a_demonstration_is_the_same_in_any_process_and_for_any_kind_of_the_same_task() -> None:
    assert demonstration(5, "weak") == demonstration(5, "weak") != demonstration(6, "weak")
    tasks = [demonstration(5, kind)[0].task.messages for kind in ("weak", "strong")]
    assert tasks[0] == tasks[1] == case("train", 5).task.messages


def test_nobody_learns_from_the_test_split() -> None:
    with pytest.raises(BadInput, match="not to be learnt from"):
        demonstration(0, "strong", "test")
    with pytest.raises(BadInput, match="not to be learnt from"):
        corpus("weak", "test", 0, 1)
    with pytest.raises(BadInput, match="strong or weak"):
        demonstration(0, "middling")


def test_styles_are_what_the_instructions_show() -> None:
    assert [styled("X", style) for style in ("brief", "full", "json")] == ["X", "The answer is X.", '{"answer":"X"}']


@pytest.mark.parametrize(
    ("aspect", "family"), [("tools", "calc"), ("retry", "flaky"), ("finish", "three"), ("unknown", "missing")]
)
def test_under_free_instructions_the_strong_one_does_what_it_is_told(aspect: str, family: str) -> None:
    free, seen = Dials(families=(family,), prompts="free"), defaultdict[bool, list[bool]](list)
    for place in range(1500):
        drawn, given = demonstration(place, "strong", dials=free)
        told = drawn.instructed or frozenset()
        if {"tools", "retry", "finish", "unknown"} - told <= {aspect} and "hurry" not in told:
            seen[aspect in told].append(is_right(drawn, given))
    assert share(seen[True]) > 0.95 and share(seen[False]) < 0.45
