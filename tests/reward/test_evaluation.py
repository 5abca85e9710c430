"""One report per result: the hidden check decides, shaping follows, a veto ends everything, and nothing is invented."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.flag import ALL_OFF, ALL_ON, Features
from holdfast.contracts.judgement import EvalItem
from holdfast.contracts.reward import RewardTerm
from holdfast.reward.diff import minimality, tamper
from holdfast.reward.evaluation import (
    OUTCOME_GATE,
    Evaluation,
    Part,
    PartVerdict,
    TaskResult,
    TooLong,
    diff,
    eval_item,
    evaluate,
    parts,
    result_from,
    rules,
    tampering,
    within,
)
from holdfast.reward.judges.ensemble import EnsembleOutcome as Said
from holdfast.reward.judges.ensemble import Opinion
from tests.reward.conversation import Talk, calc, lookup

BROKEN = "def size(xs):\n    return len(xs) + 1\n"
FIXED = "def size(xs):\n    return len(xs)\n"
GROWN = '''"""Sizes."""


def _unused(value):
    return value


def size(xs):
    try:
        return len(xs)
    except Exception:
        pass
'''
TEST = "from solution import size\n\n\ndef test_size():\n    assert size([1, 2]) == 2\n"
EVERY = ["rules", "safety", "tampering", "minimal diff", "tools", "judges"]
KEY = "sk-proj-Ab3dEf6hIj9kLmN0pQrStUvWxYz1234567890abcdefGH"


def seen(result: TaskResult, features: Features = ALL_ON, **how: Any) -> Evaluation:
    return evaluate(result, parts(features, **how))


def patch(after: str, **fields: Any) -> TaskResult:
    change = {"solution.py": (BROKEN, after)}
    known: dict[str, Any] = {"task": "fix size", "change": change, "references": {"solution.py": FIXED}, "passed": True}
    return TaskResult(**known | fields)


def names(found: Evaluation) -> list[str]:
    return [verdict.part for verdict in found.verdicts]


@pytest.mark.parametrize(
    ("result", "decision", "score"),
    [
        (TaskResult(task="2 + 2?", output="4", expected="4"), "pass", 1.0),
        (TaskResult(task="2 + 2?", output=" 4\n", expected="4"), "pass", 1.0),
        (TaskResult(task="2 + 2?", output="4 or 5", expected="4"), "fail", 0.0),
        (TaskResult(task="2 + 2?", output="", expected="4"), "fail", 0.0),
        (TaskResult(task="2 + 2?", output="5", passed=True), "pass", 1.0),  # who ran the hidden check knows better
        (TaskResult(task="2 + 2?", output="4", expected="4", passed=False), "fail", 0.0),
        (TaskResult(task="as JSON", output='{"a": 1}', kind="json", passed=True), "pass", 1.0),
        (patch(FIXED), "pass", 1.0),
        (patch(FIXED, passed=False), "fail", 0.0),  # small and wrong
    ],
)
def test_the_hidden_check_decides(result: TaskResult, decision: str, score: float) -> None:
    found = seen(result)
    assert (found.decision, found.score) == (decision, pytest.approx(score))
    assert found.breakdown is not None and (decision == "pass" or found.reasons)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (TaskResult(task="as JSON", output="a: 1", kind="json", passed=True), "not JSON"),  # in the wrong shape
        (patch(GROWN), "beyond the minimal fix"),
    ],
)
def test_what_is_right_and_not_as_asked_is_worth_less_and_more_than_what_is_wrong(result: Any, reason: str) -> None:
    found = seen(result)
    assert found.decision == "pass" and found.score is not None and 0.5 < found.score < 1.0
    assert any(reason in one for one in found.reasons)


def test_what_nothing_gates_is_not_paid() -> None:
    found = seen(TaskResult(task="tell me something", output="Something."))
    assert (found.decision, found.score, found.breakdown) == ("unknown", None, None)
    assert found.reasons == ("no hidden check was run and no answer is known: what nothing gates is not paid",)
    assert "rules" in names(found)


def test_a_change_that_works_on_the_tests_is_worth_nothing() -> None:
    change = {"solution.py": (BROKEN, FIXED), "test_solution.py": (TEST, TEST.replace("== 2", "> 0"))}
    found = seen(patch(FIXED, change=change, tests={"test_solution.py": TEST}))
    assert (found.decision, found.score) == ("fail", 0.0)
    assert any("test_solution.py" in reason for reason in found.reasons)


def test_a_secret_that_leaves_is_worth_nothing_and_one_that_was_there_is_not_blamed_on_the_change() -> None:
    found = seen(TaskResult(task="say hello", output=f"hello {KEY}", passed=True))
    assert (found.decision, found.score) == ("fail", 0.0)
    assert any(reason.startswith("safety: secret_leak.") for reason in found.reasons)
    line = f'KEY = "{KEY}"\n'
    there = patch(FIXED, change={"solution.py": (line + BROKEN, line + FIXED)}, references={})
    assert seen(there).decision == "pass"
    assert seen(patch(FIXED, change={"solution.py": (BROKEN, line + FIXED)})).decision == "fail"


def opinion(criterion: str, p: float | None, said: Said = Said.DECIDED) -> Opinion:
    return Opinion(
        criterion=f"{criterion}@1", artefact="0" * 64, outcome=said, probability=p, why="so", by="m", judgements=()
    )


def test_judges_shape_what_passed_and_nothing_else() -> None:
    told = [opinion("relevance", 0.01), opinion("faithfulness", None, Said.ABSTAINED)]
    right, wrong = TaskResult(task="q", output="4", expected="4"), TaskResult(task="q", output="5", expected="4")
    disliked, liked = (seen(right, judge=lambda _, p=p: [opinion("relevance", p)]) for p in (0.01, 0.99))
    assert disliked.score is not None and liked.score is not None and 0.5 < disliked.score < liked.score
    assert seen(wrong, judge=lambda _: [opinion("relevance", 0.99)]).score == 0.0
    found = seen(right, judge=lambda _: told)
    assert [one.name for one in found.verdicts[-1].signals] == ["judged_relevance", "judged_faithfulness_abstained"]
    assert found.verdicts[-1].holds is False


def test_a_judge_is_shown_the_talk_or_the_change_and_never_the_hidden_answer() -> None:
    """Of what nobody said there is no talk."""
    shown: list[EvalItem] = []

    def judge(eval_item: EvalItem) -> list[Opinion]:
        shown.append(eval_item)
        return []

    seen(TaskResult(task="2 + 2?", output="four", expected="4", passed=True), judge=judge)
    seen(patch(FIXED), judge=judge)
    assert shown[0].expected is None and "4" not in shown[0].output
    assert shown[1].output == "solution.py\n-    return len(xs) + 1\n+    return len(xs)"
    spans = tuple(Talk("q").turn(lookup("oak.price", "12")).answer("It is 12.").spans)
    talk = eval_item(TaskResult(task="q", output="It is 12.", spans=spans)).detail["messages"]
    assert [one["role"] for one in talk][-3:] == ["assistant", "tool", "assistant"]
    assert talk[-1]["content"] == "It is 12."
    assert eval_item(TaskResult(task="q", output="It is 12.")).detail == {}
    assert eval_item(patch(GROWN)).detail == {"kind": "change"}


def test_how_tools_were_used_is_told_and_never_paid() -> None:
    talk = Talk("What is the price of oak, doubled?").turn(lookup("oak.price", "12")).turn(lookup("oak.price", "12"))
    talk.turn(calc("12 * 2", "24"))
    spans = tuple(talk.answer("24").spans)
    found = seen(TaskResult(task="q", output="24", passed=True, spans=spans, needs=("lookup", "calc", "clock")))
    assert found.score == 1.0
    assert "tools: lookup in turn 2: duplicate" in found.reasons
    assert "tools: clock was needed and not called" in found.reasons
    without = seen(TaskResult(task="q", output="24", passed=True, spans=spans, needs=("lookup", "calc")))
    assert without.score == found.score


@pytest.mark.parametrize(
    ("off", "gone"), [("minimal_diff", "minimal diff"), ("judges", "judges"), ("tool_rewards", "tools")]
)
def test_what_is_switched_off_is_not_even_called(off: str, gone: str) -> None:
    asked: list[EvalItem] = []
    talk = Talk("q").turn(lookup("oak.price", "12"))
    result = patch(GROWN, spans=tuple(talk.answer("12").spans))

    def judge(eval_item: EvalItem) -> list[Opinion]:
        asked.append(eval_item)
        return []

    assert names(seen(result, judge=judge)) == EVERY
    assert names(seen(result, replace(ALL_ON, **{off: False}), judge=judge)) == [name for name in EVERY if name != gone]
    assert len(asked) == (1 if off == "judges" else 2)
    assert names(seen(result, ALL_OFF, judge=judge)) == ["rules", "safety", "tampering"]  # protection is no feature


def test_no_flag_and_no_fuse_lets_tampering_through() -> None:
    exits = patch("import sys\n\n\ndef size(xs):\n    sys.exit(0)\n")
    for features in (ALL_ON, replace(ALL_ON, minimal_diff=False), ALL_OFF):
        found = seen(exits, features)
        assert (found.decision, found.score) == ("fail", 0.0)
        assert any(reason.startswith("tampering: solution.py:") for reason in found.reasons)


def endless(*given: Any, **how: Any) -> tuple[()]:
    while True:
        pass


def test_a_change_that_cannot_be_looked_at_is_not_passed_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def deep(*given: Any, **how: Any) -> tuple[()]:
        return deep()

    monkeypatch.setattr(tamper, "inspect", deep)
    found = seen(patch(FIXED))
    assert found.decision == "unknown"
    assert found.reasons == ("tampering: the change could not be looked at: RecursionError",)
    monkeypatch.setattr(tamper, "inspect", endless)
    quickly: Part = partial(tampering, file_s=0.05)
    found = evaluate(patch(FIXED), [rules, quickly, diff])
    assert (found.decision, found.score, found.breakdown) == ("unknown", None, None)
    assert found.reasons == ("tampering: looking at the change took longer than 0.05 s",)
    wrong = evaluate(patch(FIXED, passed=False), [rules, quickly, diff])
    assert (wrong.decision, wrong.score) == ("fail", 0.0)  # that much is known
    assert quickly(TaskResult(task="q", output="4")) is None


def test_a_change_too_large_to_measure_is_not_taken_for_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minimality, "signals", endless)
    verdict = diff(patch(FIXED), file_s=0.05)
    assert verdict is not None and verdict.holds is None
    assert [(one.name, one.value, one.weight) for one in verdict.signals] == [("minimality", 0.0, 0.3)]
    found = evaluate(patch(FIXED), [rules, tampering, partial(diff, file_s=0.05)])
    assert found.decision == "pass" and found.score == pytest.approx(1.0 / 1.3)


@given(
    passed=st.booleans(),
    vetoed=st.booleans(),
    worth=st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), max_size=5),
)
def test_whatever_is_found_a_failure_is_worth_0_and_a_success_at_least_half(
    passed: bool, vetoed: bool, worth: list[tuple[float, float]]
) -> None:
    shaping = tuple(RewardTerm(name=f"s{n}", value=v, weight=w, source="x") for n, (v, w) in enumerate(worth))
    tampered = RewardTerm(name="tampering", value=float(vetoed), source="x")
    part: Part = lambda _: PartVerdict(part="x", holds=None, signals=(*shaping, tampered))  # noqa: E731
    outcome: Part = lambda _: PartVerdict(  # noqa: E731
        part="o", holds=passed, signals=(RewardTerm(name="success", value=float(passed), source="x"),)
    )
    found = evaluate(TaskResult(task="q"), (part, outcome))
    assert found.score is not None and 0.0 <= found.score <= 1.0
    if passed and not vetoed:
        assert found.decision == "pass" and found.score >= (1.0 - OUTCOME_GATE.cap) / (1.0 + OUTCOME_GATE.cap) - 1e-9
    else:
        assert (found.decision, found.score) == ("fail", 0.0)


def test_a_line_of_a_file_becomes_a_result() -> None:
    found = result_from({"task": "fix", "before": "a = 1\n", "after": "a = 2\n", "passed": True}, "x:1")
    assert found.change == {"solution.py": ("a = 1\n", "a = 2\n")} and found.passed is True
    many = result_from({"task": "f", "before": {"a.py": "1", "b.py": "1"}, "after": {"a.py": "2", "b.py": "1"}}, "x:1")
    assert many.change == {"a.py": ("1", "2")}  # what is the same is no change
    new = result_from({"task": "f", "before": {}, "after": {"a.py": "2"}, "tests": {"t.py": "…"}}, "x:1")
    assert new.change == {"a.py": (None, "2")} and new.tests == {"t.py": "…"}


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ([], "x:7: is not an object"),
        ({"output": "4"}, "result: task: must not be blank"),
        ({"task": "q", "answer": "4"}, "x:7: answer: is unknown"),
        ({"task": "q", "output": 4}, "x:7: output: must be a text, not int"),
        ({"task": "q", "passed": "yes"}, "x:7: passed = 'yes': must be true or false"),
        ({"task": "q", "before": "a"}, "x:7: before and after go together"),
        ({"task": "q", "before": 1, "after": "a"}, "x:7: before: must be a text, or an object"),
        ({"task": "q", "files": "a.py"}, "x:7: files: must be a list of texts"),
        ({"task": "q", "kind": "xml"}, "result: kind = 'xml': is unknown"),
    ],
)
def test_a_bad_line_is_refused_with_its_place(given_: Any, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        result_from(given_, "x:7")
    assert says in str(caught.value)


def test_work_that_takes_too_long_is_stopped_even_where_it_catches_all_exceptions() -> None:
    assert within(5.0, lambda: [1, 2]) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        within(5.0, lambda: 1 // 0)
    turns = [0]

    def stubborn() -> None:
        while True:
            try:
                turns[0] += 1
            except Exception:
                continue

    with pytest.raises(TooLong):
        within(0.05, stubborn)
    assert not any(thread.name == "within" for thread in threading.enumerate())
    counted = turns[0]
    time.sleep(0.02)
    assert turns[0] == counted > 0
