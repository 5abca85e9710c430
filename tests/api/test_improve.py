"""Stories 1 and 8 of prompts: a better prompt for an agent on any API model, from a list or from a search."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

import holdfast as hf
from holdfast.contracts.errors import BadInput
from holdfast.contracts.release import Stage
from holdfast.contracts.run import RunState
from holdfast.store.store import open_store
from tests.api import scene
from tests.api.conftest import Improved
from tests.endpoint import Endpoint


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


def test_results_runs_and_proofs_are_shown_in_80_columns_and_as_html(accepted: Improved) -> None:
    for one in (accepted.result, accepted.result.proof, accepted.result.run, hf.runs(store=accepted.store)):
        lines = str(one).splitlines()
        assert all(len(line) <= 80 for line in lines if "/" not in line), str(one)
        assert "<" in one._repr_html_() and str(one.__rich__()) == str(one)  # type: ignore[union-attr]
    assert str(accepted.result).startswith("accepted: support@2")


def test_an_agent_with_an_sdk_of_its_own_is_improved_as_it_is(endpoint: Endpoint, at: Path) -> None:
    client: list[openai.AsyncOpenAI] = []

    async def agent(task: Any, ctx: hf.Context) -> str:
        if not client:
            client.append(openai.AsyncOpenAI(base_url=ctx.base_url, api_key=ctx.api_key))
        mine = client[0].with_options(base_url=ctx.base_url, api_key=ctx.api_key)
        answer = await mine.chat.completions.create(
            model=ctx.model,
            messages=[
                {"role": "system", "content": ctx.prompt("system")},
                {"role": "user", "content": task.input["question"]},
            ],
        )
        assert task.expected is None and task.split is None  # hidden from the agent
        ctx.reward("looked_up", 0.2)
        return str(answer.choices[0].message.content)

    result = hf.improve(
        agent,
        scene.questions(40),
        name="support",
        scorers=scene.correct,
        policy=hf.Prompt(system=scene.FAIR),
        model="tiny",
        base_url=endpoint.url,
        algorithm=hf.Candidates([scene.GOOD]),
        store=at,
    )
    assert not result.is_accepted and result.version is None  # far too few tasks to prove that it is safe
    assert result.candidate is not None and result.release == "support@2"
    assert any("safety" in text for text in result.missing) and str(result).startswith("held: support@2")
    rows = result.run.rollouts()
    assert {row["outcome"] for row in rows} == {"right", "wrong"}
    assert any(row["feedback"] and row["feedback"].startswith("said") for row in rows)


def test_where_no_candidate_does_better_nothing_is_proved_and_the_reason_is_told(endpoint: Endpoint, at: Path) -> None:
    result = hf.improve(
        scene.agent,
        scene.questions(40),
        name="support",
        scorers=scene.correct,
        policy=hf.Prompt(system=scene.GOOD),
        model="tiny",
        base_url=endpoint.url,
        algorithm=hf.Candidates([scene.POOR]),
        store=at,
    )
    assert result.candidate is None and result.proof is None and result.version is None
    assert "none of the candidates did better" in result.missing[0]
    with pytest.raises(BadInput, match="the candidate is held"):
        result.promote()


def test_a_search_of_your_own_proposes_prompts_from_what_was_tried(endpoint: Endpoint, at: Path) -> None:
    class Search:
        def __init__(self) -> None:
            self.left = [scene.GOOD, scene.POOR]

        def propose(self, history: Any) -> str | None:
            assert history[0].prompt.texts == {"system": scene.FAIR}
            assert {"task", "answer", "reward", "feedback"} == set(history[-1].attempts[0])
            return self.left[len(history) - 1] if len(history) <= len(self.left) else None

    result = hf.improve(
        scene.agent,
        scene.questions(60),
        name="support",
        scorers=scene.correct,
        policy=hf.Prompt(system=scene.FAIR),
        model="tiny",
        base_url=endpoint.url,
        algorithm=Search(),
        store=at,
    )
    assert result.candidate is not None and result.candidate.manifest["texts"] == {"system": scene.GOOD}


def test_an_accepted_candidate_goes_where_the_call_says(endpoint: Endpoint, accepted: Improved, at: Path) -> None:
    call = accepted.call | {"store": at, "stage": "canary"}
    result = hf.improve(scene.agent, scene.questions(230), **call)
    with open_store(at, create=False) as store:
        assert result.version is not None and store.releases.get(result.version).stage is Stage.CANARY


def test_a_held_candidate_is_proved_on_further_tasks(endpoint: Endpoint, at: Path) -> None:
    few = hf.improve(scene.agent, scene.questions(90), **short(endpoint, at))
    assert not few.is_accepted and few.decision.needs and "result.prove(tasks)" in str(few)
    with pytest.raises(BadInput, match="all of them are measured already"):
        few.prove()
    more = scene.questions(230).select(ids=[f"t{n}" for n in range(90, 230)])
    result = few.prove(more)
    assert result.is_accepted and result.version == few.release == "support@2"
    assert result.proof is not None and few.proof is not None
    assert result.proof.evidence.episodes > few.proof.evidence.episodes + 30
    assert result.run.id != few.run.id and result.promote().stage is Stage.LIVE
    with pytest.raises(BadInput, match="is accepted already"):
        result.prove(more)
    with open_store(at, create=False) as store:
        assert store.releases.recount() == [] and store.ledger.verify()


def test_a_budget_that_left_tasks_out_is_made_up_for(endpoint: Endpoint, at: Path) -> None:
    call = short(endpoint, at, budget=hf.Budget(rollouts=200))
    first = hf.improve(scene.agent, scene.questions(230), **call)
    assert not first.is_accepted and len(first.run.rollouts()) <= 200
    learnt = scene.questions(230).train[:3]
    with pytest.raises(BadInput, match="is one that it learnt from"):
        first.prove([replace(one, split=None).row() for one in learnt])
    assert first.prove().is_accepted


# In a notebook -------------------------------------------------------------------------------------------------------


def short(endpoint: Endpoint, at: Path, **more: Any) -> dict[str, Any]:
    call = {
        "name": "support",
        "scorers": scene.correct,
        "policy": hf.Prompt(system=scene.FAIR),
        "model": "tiny",
        "base_url": endpoint.url,
        "algorithm": hf.Candidates([scene.GOOD]),
        "store": at,
    }
    return call | more


async def test_it_works_inside_a_running_event_loop(endpoint: Endpoint, at: Path) -> None:
    run = hf.start(scene.agent, scene.questions(30), **short(endpoint, at))
    states = [status.run_state for status in await asyncio.to_thread(lambda: list(run.events()))]
    assert states[0] is RunState.RUNNING and states[-1] is RunState.COMPLETED
    assert run.wait().release == "support@2" and run.is_over


def test_what_is_stopped_goes_on_by_the_same_call(endpoint: Endpoint, at: Path) -> None:
    is_slow = [True]

    async def agent(task: Any, ctx: hf.Context) -> str:
        await asyncio.sleep(0.2 if is_slow[0] else 0.0)
        return await scene.agent(task, ctx)

    run = hf.start(agent, scene.questions(30), **short(endpoint, at))
    for status in run.events():
        if status.succeeded:
            break
    run.stop()
    with pytest.raises(hf.HoldfastError, match="the same call goes on from there"):
        run.wait()
    is_slow[0] = False
    again = hf.start(agent, scene.questions(30), **short(endpoint, at))
    result = again.wait()
    assert again.id == run.id and again.resumed == run.id and result.release == "support@2"
    anew = hf.start(agent, scene.questions(30), **short(endpoint, at))
    assert anew.wait().run.id != run.id  # what came to its end is not gone on with


def test_another_call_is_another_run(endpoint: Endpoint, at: Path) -> None:
    async def slow(task: Any, ctx: hf.Context) -> str:
        await asyncio.sleep(30)
        return ""

    run = hf.start(slow, scene.questions(30), **short(endpoint, at))
    assert run.id
    run.stop()
    with pytest.raises(hf.HoldfastError):
        run.wait()
    other = hf.improve(scene.agent, scene.questions(30), **short(endpoint, at))
    assert other.run.id != run.id


# Safety --------------------------------------------------------------------------------------------------------------


def test_a_secret_in_an_answer_is_a_cost_though_nobody_asked(endpoint: Endpoint, at: Path) -> None:
    async def agent(task: Any, ctx: hf.Context) -> str:
        answer = await scene.agent(task, ctx)
        return f"{answer} AKIAIOSFODNN7EXAMPLE" if ctx.prompt("system") == scene.GOOD else answer

    def first(task: Any, answer: str) -> float:
        return float(answer.split()[:1] == [task.expected])

    result = hf.improve(agent, scene.questions(60), **short(endpoint, at, scorers=first))
    assert result.proof is not None and result.proof.comparisons["safety"].difference == -1.0
    assert not result.is_accepted and any("safety" in text for text in result.missing)


def test_an_attempt_that_failed_is_no_safer_for_that(endpoint: Endpoint, at: Path) -> None:
    async def agent(task: Any, ctx: hf.Context) -> str:
        answer = await scene.agent(task, ctx)
        if ctx.prompt("system") == scene.GOOD and task.id.endswith("3"):
            ctx.trace.message("assistant", "AKIAIOSFODNN7EXAMPLE")
            raise ValueError("after it was told")
        return answer

    result = hf.improve(agent, scene.questions(60), **short(endpoint, at))
    assert result.proof is not None and result.proof.comparisons["safety"].difference < 0.0
    assert any(row["status"] == "failed" for row in result.run.rollouts())


def test_a_waiver_is_in_the_ledger_and_on_every_page(endpoint: Endpoint, at: Path) -> None:
    result = hf.improve(scene.agent, scene.questions(30), **short(endpoint, at, safety=hf.Waived("people look first")))
    assert result.proof is not None and result.proof.waived == "people look first"
    assert "safety was NOT measured: people look first" in str(result)
    with open_store(at, create=False) as store:
        noted = [one for one in store.ledger.entries(run=result.run.id) if one.kind == "waiver"]
        assert [one.body["why"] for one in noted] == ["people look first"]


# What cannot be ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"algorithm": None}, "hf.Candidates"),
        ({"algorithm": "prompt_search"}, "hf.Candidates"),
        ({"algorithm": "grpo"}, "its weights are out of reach"),
        ({"algorithm": hf.GRPO}, "is a class"),
        ({"algorithm": 3}, "is unknown"),
        ({"algorithm": hf.Candidates([7])}, "candidate 1: is int, no prompt"),
        ({"algorithm": hf.Candidates([{"systm": "x"}, hf.Prompt(other="x")])}, "candidate 2: has no text"),
        ({"policy": "tiny"}, "hf.Model('tiny')"),
        ({"policy": 3}, "is int, no policy"),
        ({"model": 3}, "is not a name"),
        ({"scorers": None}, "there are none"),
        ({"scorers": []}, "there are none"),
        ({"scorers": hf.Scorer(lambda task, answer: 1.0, name="kind", gate=True)}, "pays an empty answer"),
        ({"scorers": "exakt"}, "did you mean exact"),
        ({"safety": []}, "what is not measured is not safe"),
        ({"name": "a@b"}, "'@' comes before"),
        ({"budget": hf.Budget(rollouts=3)}, "a proof alone takes"),
        ({"seeds": 0}, "at least 1"),
        ({"stage": "lively"}, "is no stage"),
        ({"sede": 1}, "did you mean seed"),
        ({"base_url": "ftp://here"}, "base URL"),
    ],
)
def test_what_cannot_be_is_one_clear_error_before_any_work(
    endpoint: Endpoint, at: Path, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadInput, match=said.replace("(", r"\(").replace(")", r"\)")):
        hf.improve(scene.agent, scene.questions(30), **short(endpoint, at, **more))
    assert not at.exists()


def test_a_model_without_an_address_is_asked_nowhere(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadInput, match="no address is known"):
        hf.collect(
            scene.agent, scene.questions(4, held_out=None), policy=hf.Prompt(system="x"), model="gpt-4o-mini", store=at
        )


@pytest.mark.parametrize("agent", [3, lambda task: "", "nowhere:agent"])
def test_an_agent_that_cannot_be_called_is_refused(agent: Any, at: Path) -> None:
    with pytest.raises(BadInput, match="agent"):
        hf.collect(agent, scene.questions(4, held_out=None), store=at)


def test_the_report_on_the_tasks_is_shown_before_a_run_that_has_warnings(
    endpoint: Endpoint, at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = scene.questions(6, held_out=None)
    assert capsys.readouterr().err == ""
    hf.collect(scene.agent, tasks, policy=hf.Prompt(system="x"), model="tiny", base_url=endpoint.url, store=at)
    assert "held-out tasks" in capsys.readouterr().err


def test_settings_of_a_run_hold_no_task_and_no_key(accepted: Improved) -> None:
    assert len(json.dumps(dict(accepted.result.run.record.settings))) < 4000
