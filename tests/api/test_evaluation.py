"""Evaluation as a reward: judges, diffs, rules and tools score a user's own run, and decide what is learnt from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.contracts.trace import ToolCall
from holdfast.store.store import open_store
from tests.api import scene
from tests.endpoint import Endpoint, completion, serving

BEFORE = "def double(x):\n    return x + {n}\n"
LEAST = "def double(x):\n    return x * 2\n"
LARGE = "import os\n\n\ndef twice(x):\n    return x * 2\n\n\ndef double(x):\n    return twice(x)\n"
SMALL, LONG, POOR = "Change as little as you can.", "Write it anew.", "You mend functions."


def coder(body: dict[str, Any]) -> dict[str, Any]:
    """Mends nine functions of ten by a good prompt, four by a poor one; a judge at the same address likes all."""
    messages = body["messages"]
    if body["model"] == "judge":
        return completion("yes\nconfidence: 0.9\nit reads well", choice={"logprobs": None})
    system, number = messages[0]["content"], int(messages[-1]["content"].split()[-1])
    fix = {SMALL: LEAST, LONG: LARGE}.get(system, LEAST)
    return completion(fix if number % 10 < (4 if system == POOR else 9) else BEFORE.format(n=number))


@pytest.fixture
def shop() -> Iterator[Endpoint]:
    with serving() as found:
        found.reply = coder
        yield found


def broken(count: int) -> hf.TaskSet:
    rows = [
        {
            "id": f"t{n}",
            "input": {"question": f"Mend double {n}", "files": {"double.py": BEFORE.format(n=n)}, "needs": ["look"]},
            "expected": {"double.py": LEAST},
        }
        for n in range(count)
    ]
    return hf.tasks(rows, held_out=0.6, seed=0)


async def mends(task: Any, ctx: hf.Context) -> Any:
    asked = [{"role": "system", "content": ctx.prompt("system")}, {"role": "user", "content": task.input["question"]}]
    ctx.trace.tool(ToolCall(tool="look", arguments={"path": "double.py"}, result=task.input["files"]["double.py"]))
    return {"double.py": (await ctx.ask(asked)).response["content"]}


def works(task: Any, answer: Any) -> float:
    """The hidden check: what the function really does."""
    found: dict[str, Any] = {}
    try:
        exec(answer["double.py"], found)
        return float(found["double"](21) == 42 and found["double"](-1) == -2)
    except Exception:
        return 0.0


def scorers(endpoint: Endpoint) -> list[Any]:
    judge = {"scorer": "judge", "model": "judge", "base_url": endpoint.url, "question": "Is it neat?", "weight": 0.1}
    rules = {"scorer": "rules", "criteria": ["relevance", "safety"], "weight": 0.1}
    shaping = [{"scorer": "diff", "weight": 0.2}, {"scorer": "tools", "weight": 0.1}]
    return [hf.Scorer(works, gate=True), judge, rules, *shaping]


def test_a_run_with_a_judge_a_diff_rules_and_tools_learns_and_proves(shop: Endpoint, at: Path) -> None:
    """Both candidates are right equally often; the one that changes less is worth more, and is the one proved."""
    result = hf.improve(
        mends,
        broken(230),
        name="mend",
        scorers=scorers(shop),
        policy=hf.Prompt(system=POOR),
        model="coder",
        base_url=shop.url,
        algorithm=hf.Candidates([LONG, SMALL]),
        budget=hf.Budget(rollouts=700),
        store=at,
    )
    assert result.is_accepted and result.candidate is not None
    assert result.candidate.manifest["texts"] == {"system": SMALL}
    assert sum(one.body["model"] == "judge" for one in shop.asked) > 100
    with open_store(at, create=False) as store:
        page = store.experiences.scored(result.run.id, after=None, most=500)
        found = [{term.name: term for term in one.signals} for one in page]
    right, wrong = ([one for one in found if one["success"].value == value] for value in (1.0, 0.0))
    for name in ("diff", "rules", "judge", "tools"):
        assert right[0][name].weight > 0.0, name
        assert all(one[name].weight == 0.0 for one in wrong), name  # the hidden check gates all shaping
    assert {one["judge"].value for one in wrong} == {0.9}  # whatever the judge thinks of it
    assert {one["judge"].feedback for one in right} == {"it reads well"}
    large = [one["diff"] for one in right if one["diff"].value < 1.0]
    assert large and all("edits beyond the least fix" in str(one.feedback) for one in large)  # the analysis is kept
    assert any("unused_import, os is never used" in str(one.feedback) for one in large)
    assert {row["reward"] for row in result.run.rollouts("outcome == 'wrong'")} == {0.0}


def test_judges_by_name_score_what_is_stored_and_both_scorings_can_be_read_again(
    endpoint: Endpoint, shop: Endpoint, at: Path
) -> None:
    run = scene.collected(endpoint, at, scene.GOOD, count=20)
    judge = {"scorer": "judge", "model": "judge", "base_url": shop.url, "weight": 0.1}
    verifier = {"scorer": "judge", "name": "verifier", "model": "verifier", "weight": 0.1}
    told = hf.rescore(run, [hf.Scorer(scene.correct, gate=True), judge, verifier], name="judged", store=at)
    assert not told.errors and [one.name for one in run.scorings()] == ["judged"]
    rows = run.scoring("judged")
    assert len(rows) == 20 and {row["outcome"] for row in rows} == {"right", "wrong"}
    terms = {one["name"]: one["value"] for one in rows[0]["terms"]}
    assert terms["judge"] == 0.9 and 0.0 <= terms["verifier"] <= 1.0  # it has read the conversation
    first = {row["id"]: row["reward"] for row in run.rollouts()}
    assert set(first.values()) == {0.0, 1.0}  # as they were
    assert {row["reward"] for row in rows if row["outcome"] == "wrong"} == {0.0}


def test_which_model_judges_is_part_of_what_was_scored_by(endpoint: Endpoint, shop: Endpoint, at: Path) -> None:
    run = scene.collected(endpoint, at, scene.GOOD, count=4)
    judge = {"scorer": "judge", "model": "judge", "base_url": shop.url}
    hf.rescore(run, [scene.correct, judge], store=at)
    (kept,) = run.scorings()
    assert "'judge'" in str(kept.scorers["scorers"][1]) and shop.url in str(kept.scorers["scorers"][1])


@pytest.mark.parametrize(
    ("scorer", "says"),
    [
        ({"scorer": "judge"}, "scorer judge: asks a model, and none is named"),
        ({"scorer": "judge", "model": "org/m"}, "model 'org/m': no address is known for it"),
        ({"scorer": "judge", "model": "m", "base_url": "ftp://x"}, "is not http:// or https://"),
        ({"scorer": "tool"}, "scorer 'tool': is unknown; did you mean tools"),
    ],
)
def test_a_judge_that_cannot_be_asked_is_refused_before_anything_begins(
    at: Path, monkeypatch: pytest.MonkeyPatch, scorer: dict[str, Any], says: str
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(hf.BadInput, match=says):
        hf.collect(mends, broken(20), scorers=[hf.Scorer(works, gate=True), scorer], store=at)
    assert not at.exists()
