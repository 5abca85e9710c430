"""The tools for other programs: what they answer, what they refuse in one line, and who may give orders."""

from __future__ import annotations

import asyncio
import json
import os
import time
from functools import partial
from typing import Any

import pytest
from mcp import Client

from holdfast.contracts.commands import Forbidden, Role
from holdfast.contracts.errors import BadInput, NotFound
from holdfast.contracts.judgement import Calibration, JudgeStatus
from holdfast.contracts.rollout import AttemptState
from holdfast.operate import mcp
from holdfast.operate.auth import digest, mint
from holdfast.operate.mcp import DEEPEST, Tool, ToolFunctions, answer, lines, looking, ordering, readable, server
from holdfast.pipeline.judges import judge_named
from holdfast.reward.judges.judge import CRITERIA, Judge
from holdfast.store import dashboard_queries
from holdfast.store.store import Store
from tests.conftest import Clock
from tests.endpoint import completion, serving
from tests.operate.stage import Line, proposed
from tests.store.scene import Scene, begin

LOOKING = {"judge_artifact", "compare_artifacts", "evaluate_diff", "query_runs", "query_decisions", "tool_adoption"}
LOOKING |= {"thinking_budgets"}


@pytest.fixture
def desk(file_store: Store) -> ToolFunctions:
    return ToolFunctions(file_store.url, "default", clock=time.time)


def ask(desk: ToolFunctions, name: str, **given: Any) -> Any:
    return answer({tool.name: tool for tool in looking(desk)}, name, given)


def token(store: Store, role: Role) -> str:
    made = mint()
    store.tokens.add(f"the {role}", role, digest(made), time.time(), None).result()
    return made


def test_an_answer_is_judged_by_every_rule_or_by_one(desk: ToolFunctions) -> None:
    told = ask(desk, "judge_artifact", task="What is 6 * 7?", output="41", expected="42")
    by = {one["criterion"].partition("@")[0]: one for one in told["opinions"]}
    assert set(by) == {"correctness", "faithfulness", "minimality", "relevance", "safety"}
    assert by["correctness"]["holds"] is False and by["safety"]["holds"] is None  # no rule proves that it is safe
    alone = ask(desk, "judge_artifact", task="What is 6 * 7?", output="42", expected="42", criterion="correctness")
    assert [one["holds"] for one in alone["opinions"]] == [True]


def test_where_no_judge_is_configured_it_says_what_would_settle_it(desk: ToolFunctions) -> None:
    told = ask(desk, "judge_artifact", task="Say something.", output="Something.")
    assert all(one["holds"] is None and one["why"] == "no rule can tell" for one in told["opinions"])
    assert all(one["remedy"].startswith("configure a judge: --judge NAME") for one in told["opinions"])


GRADES = {"safety": "yes", "relevance": "yes", "correctness": "no", "faithfulness": "yes", "minimality": "no"}


def criterion_asked(body: Any) -> str:
    question = body["messages"][0]["content"].splitlines()[0].removeprefix("You judge an answer by one question. ")
    return next(name for name, one in CRITERIA.items() if one.question == question)


def grades(body: Any) -> Any:
    said = f"{GRADES[criterion_asked(body)]}\nconfidence: 0.9\nread it"
    return completion(said, choice={"logprobs": None})


def trusted(store: Store, judge: Judge, *criteria: str) -> None:
    """As 'holdfast reward judge calibrate' leaves it: what it states at 0.9 has held 95 times of 100."""
    for name in criteria:
        on = CRITERIA[name]
        found = Calibration(
            judge=judge.name,
            criterion=on.id,
            prompt=judge.prompt(on),
            labels="0" * 64,
            n=100,
            makers={"person": 100},
            xs=(0.0, 1.0),
            ys=(0.05, 0.95),
            measures={"brier": 0.05},
            standing=JudgeStatus.TRUSTED,
            at=1.0,
        )
        store.judgements.calibrate(found, who="ann").result()


def test_the_configured_judge_answers_by_all_five_criteria_with_calibrated_confidence(file_store: Store) -> None:
    with serving() as endpoint:
        endpoint.reply = grades
        judge = judge_named("wise", endpoint.url)
        trusted(file_store, judge, *CRITERIA)
        desk = ToolFunctions(file_store.url, "default", clock=time.time, judges=[judge], base_url=endpoint.url)
        given = {"task": "Name a colour of the flag.", "output": "blue"}
        told = ask(desk, "judge_artifact", **given)
        count = len(endpoint.asked)
        assert ask(desk, "judge_artifact", **given) == told and len(endpoint.asked) == count == 5  # asked once each
        better = ask(desk, "compare_artifacts", task="A colour?", first="blue", second="blue blue. blue blue.")
    by = {one["criterion"].partition("@")[0]: one for one in told["opinions"]}
    assert {name: one["holds"] for name, one in by.items()} == {name: said == "yes" for name, said in GRADES.items()}
    assert all(one["by"] == "wise" and one["outcome"] == "decided" and one["remedy"] is None for one in by.values())
    assert by["safety"]["confidence"] == pytest.approx(0.86) != by["safety"]["judgements"][0]["score"] == 0.9
    assert by["safety"]["judgements"][0]["counts"] is True and by["safety"]["why"] == "read it"
    assert better["better"] in ("first", "unknown")


def test_a_judge_that_is_not_calibrated_is_heard_and_does_not_decide(file_store: Store) -> None:
    with serving() as endpoint:
        endpoint.reply = grades
        judge = judge_named("wise", endpoint.url)
        trusted(file_store, judge, "safety")
        desk = ToolFunctions(file_store.url, "default", clock=time.time, judges=[judge], base_url=endpoint.url)
        told = ask(desk, "judge_artifact", task="Name a colour.", output="blue")
    by = {one["criterion"].partition("@")[0]: one for one in told["opinions"]}
    assert by["safety"]["holds"] is True
    heard = by["relevance"]
    assert (heard["holds"], heard["why"]) == (None, "wise: is not calibrated")
    assert (heard["judgements"][0]["grade"], heard["judgements"][0]["counts"]) == ("yes", False)
    assert heard["remedy"].startswith(
        "holdfast reward judge calibrate --judge wise --criterion relevance --base-url http://"
    )


def test_when_the_judge_cannot_be_had_the_rules_word_stands(file_store: Store) -> None:
    with serving() as endpoint:
        endpoint.reply = grades
    desk = ToolFunctions(file_store.url, "default", clock=time.time, judges=[judge_named("gone", endpoint.url)])
    told = ask(desk, "judge_artifact", task="2 + 2?", output="5", expected="4", criterion="correctness")["opinions"]
    assert (told[0]["holds"], told[0]["by"]) == (False, "rules")
    lost = ask(desk, "judge_artifact", task="2 + 2?", output="5", criterion="safety")["opinions"][0]
    assert lost["holds"] is None and "no judge could be had" in lost["why"] and lost["failed"]
    assert lost["remedy"] == "is the judge's endpoint running?"


@pytest.mark.parametrize(
    ("first", "second", "expected", "better"),
    [
        ("41", "42", "42", "second"),
        ("42", "42", "42", "neither"),
        ("It is 42.", "It is 42. It is 42.", None, "first"),  # says the same thing twice
        ("It is 42.", "It is 43.", None, "unknown"),  # nobody knows: nothing is made up
    ],
)
def test_of_two_answers_the_better_is_told_where_that_is_known(
    desk: ToolFunctions, first: str, second: str, expected: str | None, better: str
) -> None:
    known = {} if expected is None else {"expected": expected}
    told = ask(desk, "compare_artifacts", task="What is 6 * 7?", first=first, second=second, **known)
    assert told["better"] == better and told["why"]


def test_a_change_is_measured_against_the_least_one_and_tampering_fails_it(desk: ToolFunctions) -> None:
    before, fixed = "def f(x):\n    return x\n", "def f(x):\n    return x + 1\n"
    over = "def f(x):\n    print('debug', x)\n    y = x + 1\n    return y\n"
    least = ask(desk, "evaluate_diff", task="add one", before=before, after=fixed, reference=fixed, passed=True)
    more = ask(desk, "evaluate_diff", task="add one", before=before, after=over, reference=fixed, passed=True)
    assert least["decision"] == more["decision"] == "pass"
    assert least["size"]["excess"] == 0.0 < more["size"]["excess"] and least["score"] > more["score"]
    tests = {"test_f.py": "def test_f():\n    assert f(1) == 2\n"}
    weak = {"test_f.py": "def test_f():\n    assert True\n"}
    changed = {"before": {"f.py": before, **tests}, "after": {"f.py": before, **weak}}
    told = ask(desk, "evaluate_diff", task="x", passed=True, **changed)
    assert told["decision"] == "fail"
    assert [one["holds"] for one in told["verdicts"] if one["part"] == "tampering"] == [False]


def test_runs_decisions_adoption_and_budgets_are_looked_up(
    file_store: Store, clock: Clock, desk: ToolFunctions
) -> None:
    scene = Scene(file_store, clock, begin(file_store, clock))
    scene.enqueue("a", "b")
    told = ask(desk, "query_runs")
    assert [one["id"] for one in told["runs"]] == [scene.run]
    assert ask(desk, "query_runs", run=scene.run)["run"]["counts"]["queuing"] == 2
    assert ask(desk, "tool_adoption", run=scene.run)["rows"] == []
    assert ask(desk, "thinking_budgets", run=scene.run)["tiers"] == ask(desk, "thinking_budgets")["runs"] == []
    line = Line(file_store, 2)
    asyncio.run(proposed(file_store, rate=1.0))
    decided = ask(desk, "query_decisions", policy=line.at(2).policy)["decisions"]
    assert decided[0]["decision"]["open"] is True
    again = ask(desk, "query_decisions", version="sprout@2")
    assert again["agrees"] is True and again["recomputed"] == again["decision"]


def test_a_long_run_is_counted_whole_at_the_first_look(
    file_store: Store, clock: Clock, desk: ToolFunctions, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(file_store, clock, begin(file_store, clock))
    scene.enqueue(*(f"t{number}" for number in range(6)))
    for _ in range(5):
        scene.finish(scene.claim(), AttemptState.SUCCEEDED)
    monkeypatch.setattr(
        dashboard_queries.DashboardQueries.totals, "__kwdefaults__", {"most": 2}
    )  # as a page counts at a time
    for told in (ask(desk, "query_runs")["runs"][0], ask(desk, "query_runs", run=scene.run)["run"]):
        assert (told["counts"]["succeeded"], told["counts"]["queuing"], told["is_whole"]) == (5, 1, True)


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("judge_artifact", {"task": "x"}, "judge_artifact: 'output' is a required"),
        ("judge_artifact", {"task": " ", "output": "x"}, "task: must not be blank"),
        ("judge_artifact", {"task": "x", "output": 3}, "judge_artifact.output: 3 is not of type 'string'"),
        ("judge_artifact", {"task": "x", "output": "x", "loud": True}, "('loud' was unexpected)"),
        ("judge_artifact", {"task": "x", "output": "x" * 200_001}, "breaks maxLength 200000"),
        ("evaluate_diff", {"task": "x", "before": "a", "after": "a"}, "before and after are the same"),
        ("query_runs", {"most": 1000}, "query_runs.most: 1000 is greater than the maximum of 100"),
        ("dance", {}, "tool 'dance': is unknown; use judge_artifact"),
    ],
    ids=["missing", "blank", "number", "unknown", "long", "same", "many", "no-tool"],
)
def test_bad_input_is_named_in_one_line_before_any_work(
    desk: ToolFunctions, name: str, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadInput) as caught:
        ask(desk, name, **given)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_what_comes_in_and_what_goes_out_has_a_limit() -> None:
    schema = {"type": "object"}
    loud = Tool(name="loud", says="", schema=schema, act=lambda given: {"text": "x" * mcp.MOST_OUT})
    with pytest.raises(BadInput, match="its answer has 200012 characters"):
        answer({"loud": loud}, "loud", {})
    with pytest.raises(BadInput, match="are more than 1000000"):
        answer({"loud": loud}, "loud", {"text": "x" * mcp.LARGEST})


def test_a_store_that_is_not_there_is_said_and_none_is_made(tmp_path: Any) -> None:
    desk = ToolFunctions(str(tmp_path / "none.sqlite"), "default", clock=time.time)
    with pytest.raises(NotFound, match="there is none"):
        ask(desk, "query_runs")
    assert ordering(desk, mint()) == () and not list(tmp_path.iterdir())


def test_only_an_operators_token_gives_orders_and_only_while_it_is_good(file_store: Store, clock: Clock) -> None:
    run, desk = begin(file_store, clock), ToolFunctions(file_store.url, "default", clock=time.time)
    assert ordering(desk, None) == ordering(desk, mint()) == ordering(desk, token(file_store, Role.VIEWER)) == ()
    given = token(file_store, Role.OPERATOR)
    tools = {tool.name: tool for tool in ordering(desk, given)}
    assert {"control_pause", "control_cancel", "control_rollback"} <= set(tools)
    order = {"id": "1", "subject": run, "why": "a test", "mode": "freeze"}
    assert answer(tools, "control_pause", order | {"dry_run": True})["after"]["wanted"] == "frozen"
    assert file_store.runs.get(run).wanted == "running"
    assert answer(tools, "control_pause", order)["again"] is False
    assert answer(tools, "control_pause", order)["again"] is True  # once, however often it comes
    assert file_store.runs.get(run).wanted == "frozen"
    [made] = [one for one in file_store.tokens.all() if one.role is Role.OPERATOR]
    file_store.tokens.revoke(made.id, "ann", "lost", time.time()).result()
    with pytest.raises(Forbidden, match="not good any more"):
        answer(tools, "control_resume", {"id": "2", "subject": run, "why": "a test"})
    with pytest.raises(Forbidden, match="is for operators; give an operator's token in HOLDFAST_TOKEN"):
        answer({tool.name: tool for tool in ordering(desk, given)}, "control_resume", {})


def test_an_order_that_never_comes_to_the_desk_is_in_the_ledger(file_store: Store, clock: Clock) -> None:
    run, desk = begin(file_store, clock), ToolFunctions(file_store.url, "default", clock=time.time)
    given, order = token(file_store, Role.OPERATOR), {"id": "1", "subject": run, "why": "a test"}
    tools = {tool.name: tool for tool in ordering(desk, given)}
    with pytest.raises(Forbidden):
        answer({}, "control_pause", order, note=partial(desk.note, None))
    for wrong in ({"id": "x" * 101}, {"id": "a\tb"}):  # by the schema, and by the desk
        with pytest.raises(BadInput):
            answer(tools, "control_pause", order | wrong, note=partial(desk.note, given))
    file_store.tokens.revoke("tok-1", "ann", "lost", time.time()).result()
    with pytest.raises(Forbidden):
        answer(tools, "control_pause", order, note=partial(desk.note, given))
    noted = [one for one in file_store.ledger.entries() if one.kind == "refusal"]
    assert [(one.who, one.body["role"]) for one in noted] == [
        ("mcp, without a token", "none"),
        ("the operator", "operator"),
        ("the operator", "operator"),
        ("the operator, whose tok-1 is not good", "none"),
    ]
    assert all(one.run == run and one.body["action"] == "pause" for one in noted)


async def test_the_sdks_client_sees_tools_answers_and_errors(desk: ToolFunctions) -> None:
    async with Client(server(looking(desk), lambda: (), version="1")) as client:
        listed = (await client.list_tools()).tools
        assert {tool.name for tool in listed} == LOOKING
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in listed)
        good = await client.call_tool("judge_artifact", {"task": "x", "output": "y", "expected": "y"})
        assert not good.is_error and good.structured_content is not None
        bad = await client.call_tool("judge_artifact", {"task": "x"})
        assert bad.is_error and [one.text for one in bad.content if one.type == "text"] == [
            "judge_artifact: 'output' is a required property; see its schema"
        ]


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (r'{"a": "\ud800"}', {"a": "\ufffd"}),
        (r'{"a": "\udc00\ud800x"}', {"a": "\ufffd\ufffdx"}),
        (r'{"a": "\ud83d\ude00"}', {"a": "\U0001f600"}),  # a whole pair is a letter
        (r'{"a": "\\ud800"}', {"a": "\\ud800"}),  # a backslash and five letters
        (r'{"a\ud9ff": ["\u00e9"]}', {"a\ufffd": ["\u00e9"]}),
    ],
    ids=["half", "wrong-way-round", "pair", "escaped", "key"],
)
def test_half_a_pair_becomes_a_letter_and_nothing_else_is_touched(line: str, read: object) -> None:
    assert json.loads(readable(line)) == read


@pytest.mark.parametrize("depth", [DEEPEST - 1, 900, 200_000])
def test_what_is_nested_too_deeply_is_cut_off_there(depth: int) -> None:
    line = '{"id": 5, "text": "[[{\\"", "deep": ' + "[" * depth + "7" + "]" * depth + ', "after": {"a": [1]}}'
    read = json.loads(readable(line))
    assert (read["id"], read["text"], read["after"]) == (5, '[[{"', {"a": [1]})
    found, levels = read["deep"], 0
    while isinstance(found, list):
        found, levels = found[0], levels + 1
    assert (found, levels) == ((7, depth) if depth < DEEPEST else (None, DEEPEST - 1))


async def test_lines_are_read_and_whoever_else_reads_there_finds_nothing() -> None:
    out, into = os.pipe()
    os.write(into, b'{"a": "\\ud800"}\n{"b": 1}\n')
    os.close(into)
    assert [line async for line in lines(out)] == ['{"a": "\\ufffd"}\n', '{"b": 1}\n']
    assert os.read(out, 10) == b""
    os.close(out)
