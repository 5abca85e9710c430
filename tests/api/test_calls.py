"""Stories 1 and 8 of prompts: a better prompt for an agent on any API model, from a list or from a search."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import openai
import pytest

import holdfast as hf
from holdfast.contracts.errors import BadInput
from holdfast.contracts.release import Stage
from holdfast.contracts.rollout import RolloutState
from holdfast.contracts.settings import OptimizeSettings
from holdfast.pipeline.alpha_account import account_record
from holdfast.pipeline.spec import optimize_spec
from holdfast.promote.alpha_account import level
from holdfast.store.store import open_store
from tests.api import scene
from tests.api.conftest import Improved
from tests.api.scene import short
from tests.endpoint import Endpoint
from tests.pipeline.scene import drive


def test_the_better_of_two_prompts_is_found_proved_and_accepted(accepted: Improved) -> None:
    result = accepted.result
    assert result.is_accepted and result.version == "support@2" and result.missing == ()
    assert result.candidate is not None and result.candidate.manifest["texts"] == {"system": scene.GOOD}
    assert result.proof is not None and result.proof.verdict is not None
    assert result.proof.comparisons["success"].difference == pytest.approx(0.5, abs=0.15)
    assert result.proof.path is not None and result.proof.path.is_file()
    with open_store(accepted.store, create=False) as store:
        assert store.releases.live("support") is None  # nothing moves by itself
        assert sum(store.views.counts(result.run.id).values()) <= 700
        assert store.ledger.verify() > 0


def test_an_agent_with_an_sdk_of_its_own_is_improved_as_it_is(endpoint: Endpoint, at: Path) -> None:
    client: list[openai.AsyncOpenAI] = []

    async def agent(task: Any, ctx: hf.Context) -> str:
        if not client:
            client.append(openai.AsyncOpenAI(base_url=ctx.base_url, api_key=ctx.api_key))
        mine = client[0].with_options(base_url=ctx.base_url, api_key=ctx.api_key)
        asked = {"system": ctx.prompt("system"), "user": task.input["question"]}
        messages: Any = [{"role": role, "content": text} for role, text in asked.items()]
        answer = await mine.chat.completions.create(model=ctx.model, messages=messages)
        assert task.expected is None and task.split is None  # hidden from the agent
        ctx.reward("looked_up", 0.2)
        return str(answer.choices[0].message.content)

    result = hf.improve(agent, scene.questions(40), **short(endpoint, at))
    assert not result.is_accepted and result.version is None  # far too few tasks to prove that it is safe
    assert result.candidate is not None and result.release == "support@2"
    assert any("safety" in text for text in result.missing) and str(result).startswith("held: support@2")
    rows = result.run.rollouts()
    assert {row["outcome"] for row in rows} == {"right", "wrong"}
    assert any(row["feedback"] and row["feedback"].startswith("said") for row in rows)


@pytest.mark.usefixtures("untraced")
def test_the_same_call_once_more_is_another_test_on_the_same_tasks_and_is_charged(endpoint: Endpoint, at: Path) -> None:
    """Or whoever repeats a call until the gate opens would get a bad candidate through, sooner or later."""
    call = short(endpoint, at)
    found = [hf.improve(scene.agent, scene.questions(90), **call) for _ in range(3)]
    assert [one.release for one in found] == ["support@2"] * 3 and len({one.run.id for one in found}) == 3
    with open_store(at, create=False) as store:
        kept = [json.loads(store.blobs.get(str(one.proof.evidence.samples))) for one in found if one.proof]
    assert [one["weighing"]["alpha"] for one in kept] == [level(0.05, n) for n in (1, 2, 3)]
    assert [one["weighing"]["safety_alpha"] for one in kept] == [0.05] * 3  # asked of each alone
    assert [one.proof.evidence.manifest["account"]["number"] for one in found if one.proof] == [1, 2, 3]
    more = found[2].prove(scene.questions(230).select(ids=[f"t{n}" for n in range(90, 230)]))
    with open_store(at, create=False) as store:
        assert more.proof is not None
        last = json.loads(store.blobs.get(str(more.proof.evidence.samples)))
    assert last["weighing"]["alpha"] == level(0.05, 3)  # further tasks are the same test
    other = hf.improve(scene.agent, scene.questions(90), **{**call, "policy": hf.Prompt(system=scene.POOR)})
    assert other.proof is not None  # another candidate, or another base: one more on the same tasks
    assert other.proof.evidence.manifest["account"]["number"] == 4


def test_where_no_candidate_does_better_nothing_is_proved_and_the_reason_is_told(
    endpoint: Endpoint, at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worse = {"policy": hf.Prompt(system=scene.GOOD), "algorithm": hf.Candidates([scene.POOR])}
    worse |= {"max_safety_regression": 0.2}  # which so few tasks can prove
    result = hf.improve(scene.agent, scene.questions(60), **short(endpoint, at, **worse))
    assert result.candidate is None and result.proof is None and result.version is None
    assert "did better than the prompt in force" in result.missing[0]
    assert capsys.readouterr().err.startswith("28 tasks, 2 tries each: a true gain of ")
    with pytest.raises(BadInput, match="the candidate is held"):
        result.promote()


def test_a_search_of_your_own_proposes_prompts_from_what_was_tried(endpoint: Endpoint, at: Path) -> None:
    class Search:
        def __init__(self) -> None:
            self.left = [scene.GOOD, scene.POOR]

        def propose(self, history: Any) -> str | None:
            assert history[0].prompt.texts == {"system": scene.FAIR}
            assert {"task", "answer", "reward", "feedback", "place", "tools"} == set(history[-1].attempts[0])
            return self.left[len(history) - 1] if len(history) <= len(self.left) else None

    result = hf.improve(scene.agent, scene.questions(60), **short(endpoint, at, algorithm=Search()))
    assert result.candidate is not None and result.candidate.manifest["texts"] == {"system": scene.GOOD}


@pytest.mark.usefixtures("untraced")
def test_an_accepted_candidate_goes_where_the_call_says(endpoint: Endpoint, accepted: Improved, at: Path) -> None:
    call = accepted.call | {"store": at, "stage": "canary"}
    result = hf.improve(scene.agent, scene.questions(230), **call)
    with open_store(at, create=False) as store:
        assert result.version is not None and store.releases.get(result.version).stage is Stage.CANARY


def test_a_secret_in_an_answer_is_a_cost_though_nobody_asked(
    endpoint: Endpoint, at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def agent(task: Any, ctx: hf.Context) -> str:
        answer = await scene.agent(task, ctx)
        return f"{answer} AKIAIOSFODNN7EXAMPL2" if ctx.prompt("system") == scene.GOOD else answer

    def first(task: Any, answer: str) -> float:
        return float(answer.split()[:1] == [task.expected])

    result = hf.improve(agent, scene.questions(60), **short(endpoint, at, scorers=first))
    assert result.proof is not None and result.proof.comparisons["safety"].difference == -1.0
    assert not result.is_accepted and any("safety" in text for text in result.missing)
    warned = capsys.readouterr().err  # before anything ran
    assert warned.startswith("warning: these tasks can promote no candidate") and "28 tasks cannot prove" in warned
    assert max(map(len, warned.splitlines())) <= 80


def test_an_attempt_that_failed_is_no_safer_for_that(endpoint: Endpoint, at: Path) -> None:
    async def agent(task: Any, ctx: hf.Context) -> str:
        answer = await scene.agent(task, ctx)
        if ctx.prompt("system") == scene.GOOD and task.id.endswith("3"):
            ctx.trace.message("assistant", "AKIAIOSFODNN7EXAMPL2")
            raise ValueError("after it was told")
        return answer

    result = hf.improve(agent, scene.questions(60), **short(endpoint, at))
    assert result.proof is not None and result.proof.comparisons["safety"].difference < 0.0
    assert any(row["status"] == "failed" for row in result.run.rollouts())


@pytest.mark.usefixtures("untraced")
def test_a_held_candidate_is_proved_on_further_tasks(endpoint: Endpoint, at: Path) -> None:
    few_tasks = scene.questions(90)
    few = hf.improve(scene.agent, few_tasks, **short(endpoint, at))
    assert not few.is_accepted and few.decision.needs and "result.prove(tasks)" in str(few)
    copied = [
        {"question": f"{one.input['question'].upper()} !", "expected": one.expected} for one in few_tasks.held_out
    ]
    for given in (None, hf.tasks(copied)):  # a near copy of a measured task is no further evidence
        with pytest.raises(BadInput, match="has no task that is not measured yet"):
            few.prove(given)
    more = scene.questions(230).select(ids=[f"t{n}" for n in range(90, 230)])
    result = few.prove(more)
    assert result.is_accepted and result.version == few.release == "support@2"
    assert result.proof is not None and few.proof is not None
    assert result.proof.evidence.episodes > few.proof.evidence.episodes + 30
    assert result.run.id != few.run.id and result.promote().stage is Stage.LIVE
    with pytest.raises(BadInput, match="is accepted already"):
        result.prove(more)
    anchored = result.anchor()  # what is live, against what was live first
    assert anchored.comparisons["success"].difference > 0.3
    with open_store(at, create=False) as store:
        assert store.releases.recompute() == [] and store.ledger.verify()
        told = account_record(store, "support")
    assert (told["anchor"]["against"], told["anchor"]["outcome"]) == ("support@1", anchored.verdict.outcome)
    assert told["anchor"]["alpha"] == level(0.05, 1) and told["tests"] == 1  # an α of its own


def test_a_budget_that_left_tasks_out_is_made_up_for(endpoint: Endpoint, at: Path) -> None:
    call = short(endpoint, at, budget=hf.Budget(rollouts=200))
    first = hf.improve(scene.agent, scene.questions(230), **call)
    assert not first.is_accepted and len(first.run.rollouts()) <= 200
    learnt = scene.questions(230).train[:3]
    with pytest.raises(BadInput, match="is one that it learnt from"):
        first.prove([replace(one, split=None).row() for one in learnt])
    assert first.prove().is_accepted


def unlucky(task: Any, ctx: Any) -> str:
    """Right half the time; when it is wrong, it raises, and hopes to be asked again."""
    if random.random() < 0.5:
        raise ValueError("another try, please")
    return str(2 * int(task["question"].split()[-1].rstrip("?")))


def steady(task: Any, ctx: Any) -> str:
    return str(2 * int(task["question"].split()[-1].rstrip("?")))


@pytest.mark.parametrize("way", ["improve", "compare", "stored", "settings"])
def test_raising_buys_no_retry_with_new_chance(way: str, at: Path, tmp_path: Path) -> None:
    """It was 0.88 instead of 0.5: right at one of three attempts."""
    tasks, store = scene.questions(160), {"store": at}
    if way == "improve":
        how = {"algorithm": hf.Candidates([scene.GOOD]), "policy": hf.Prompt(system=scene.FAIR)}
        result = hf.improve(unlucky, tasks, name="luck", scorers=scene.correct, **how, **store)
        rate = mean(row["outcome"] == "right" for row in result.run.rollouts())
    elif way == "compare":
        rate = 1.0 - hf.compare(unlucky, steady, tasks, scorers=scene.correct, **store).difference
    else:
        rows = [{"question": f"what is twice {n}?", "expected": str(2 * n)} for n in range(120)]
        learning = {"rl_optimizer": {"enabled": True}} if way == "settings" else {}
        runs = []
        for name in ("unlucky", "steady"):
            agent = {"agent": f"tests.api.test_calls:{name}", "scorers": ["exact"]}
            pace = {"max_attempts": 3, "retry_initial_ms": 1, "worker_count": 32, **learning}
            spec = optimize_spec(OptimizeSettings.model_validate({"optimize": rows, **agent, **pace}))
            with open_store(at) as opened:
                runs.append(drive(opened, spec).run_id)
        if way == "settings":
            with open_store(at, create=False) as opened:
                done = [one.status for one in opened.views.every(runs[0])]
            rate = mean(one is RolloutState.SUCCEEDED for one in done)
        else:
            rate = 1.0 - hf.compare(*runs, **store).difference
    assert rate == pytest.approx(0.5, abs=0.15)
