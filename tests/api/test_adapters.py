"""What people have already goes through the same door: TRL reward functions, verifiers environments, DSPy modules."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.api.adapters import Serving
from holdfast.contracts.errors import BadInput, BadRecord
from holdfast.contracts.scorer import Trace, resolve
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from tests.api import peers, scene
from tests.api.scene import at_endpoint, short
from tests.endpoint import Endpoint

CHAT = [{"role": "user", "content": "What is 2 + 2?"}]


def task(**given: Any) -> hf.TaskItem:
    return hf.TaskItem(**{"id": "t", "input": {"prompt": "What is 2 + 2?"}, "expected": "4", **given})


def spans(*calls: tuple[list[dict[str, Any]], str]) -> list[Span]:
    found = []
    for place, (messages, text) in enumerate(calls, 1):
        said = {"role": "assistant", "content": text}
        call = ModelCall(model="m", messages=tuple(messages), response=said, completion_ids=(place, 9))
        found.append(Span(seq=place, kind=SpanKind.MODEL, name="model", started_at=0.0, ended_at=1.0, model=call))
    return found


def improved(made: Any, endpoint: Endpoint, at: Path) -> hf.Result:
    how = short(endpoint, at, scorers=made.scorers, policy=made.policy, seeds=1)
    return hf.improve(made.agent, made.tasks, **how)


# TRL -----------------------------------------------------------------------------------------------------------------


def test_a_trl_function_gets_lists_of_one_with_the_columns_of_the_task() -> None:
    seen: dict[str, Any] = {}

    def reward(prompts: Any, completions: Any, solution: Any, **columns: Any) -> list[float]:
        seen.update(columns, prompts=prompts, completions=completions, solution=solution)
        return [0.25]

    scorer = hf.adapters.trl(reward, weight=0.5)
    given = task(input={"prompt": "What is 2 + 2?", "level": 3}, metadata={"source": "school"})
    assert (scorer.name, scorer.weight, scorer.gate) == ("reward", 0.5, False)
    assert scorer(given, "4", spans(([], "4"))) == hf.Reward(0.25)
    assert seen["prompts"] == ["What is 2 + 2?"] and seen["completions"] == ["4"] and seen["solution"] == ["4"]
    assert seen["level"] == [3] and seen["source"] == ["school"] and seen["completion_ids"] == [[1, 9]]
    assert seen["trainer_state"] is None and "prompt" not in seen


def test_a_trl_function_for_chats_gets_the_messages_that_followed_the_prompt() -> None:
    def last(completions: Any, **_: Any) -> list[float]:
        seen.append(completions[0])
        return [1.0]

    seen: list[Any] = []
    scorer, given = hf.adapters.trl(last), task(input={"prompt": CHAT})
    used = [*CHAT, {"role": "assistant", "content": "a tool"}, {"role": "tool", "content": "4"}]
    scorer(given, "4", spans((CHAT, "a tool"), (used, "4")))
    scorer(given, "another text", spans((CHAT, "4")))
    assert [one["content"] for one in seen[0]] == ["a tool", "4", "4"]
    assert seen[1] == [{"role": "assistant", "content": "another text"}]


def test_a_trl_function_may_be_async_not_apply_and_log() -> None:
    async def later(completions: Any, log_metric: Any, log_extra: Any, **_: Any) -> list[float | None]:
        log_metric("length", len(completions[0]))
        log_extra("said", completions)
        return [None if completions == ["?"] else 1.0]

    scorer = hf.adapters.trl(later, gate=True)
    assert resolve(scorer(task(), "four")) == hf.Reward(1.0, {"length": 4.0}, "said: four")
    assert resolve(scorer(task(), "?")) is None
    nan = hf.adapters.trl(lambda completions: [float("nan")], name="nan")
    assert nan(task(), "4") is None


def test_the_column_of_the_expected_answer_can_be_named() -> None:
    def reward(completions: Any, **columns: Any) -> list[float]:
        return [float(columns["ground_truth"] == completions)]

    assert hf.adapters.trl(reward, expected="ground_truth")(task(), "4") == hf.Reward(1.0)
    with pytest.raises(KeyError):
        hf.adapters.trl(reward)(task(), "4")


def test_what_is_no_trl_function_is_refused() -> None:
    with pytest.raises(BadInput, match="is a model"):
        hf.adapters.trl("org/reward-model")
    with pytest.raises(BadInput, match="not a function"):
        hf.adapters.trl(3)
    with pytest.raises(BadRecord, match="gives 2 rewards for 1 completion"):
        hf.adapters.trl(lambda completions, **_: [1.0, 0.0], name="two")(task(), "4")


def test_a_run_is_scored_by_a_trl_function(endpoint: Endpoint, at: Path) -> None:
    def exact(completions: Any, answer: Any, **_: Any) -> list[float]:
        return [float(one == other) for one, other in zip(completions, answer, strict=True)]

    how = at_endpoint(endpoint, at) | {"scorers": [hf.adapters.trl(exact, gate=True)]}
    run = hf.collect(scene.agent, scene.questions(20, held_out=None), **how)
    assert [row["outcome"] for row in run.rollouts()].count("right") == 8


# verifiers -----------------------------------------------------------------------------------------------------------


def rows(count: int, begin: int = 0) -> list[dict[str, Any]]:
    system = {"role": "system", "content": scene.FAIR}
    asked = [
        ([system, {"role": "user", "content": one.input["question"]}], one.expected)
        for one in scene.questions(begin + count, held_out=None)
    ]
    return [{"prompt": prompt, "answer": answer, "info": {"n": n}} for n, (prompt, answer) in enumerate(asked)][begin:]


def test_an_environment_with_a_dataset_is_improved_unchanged(endpoint: Endpoint, at: Path) -> None:
    env = peers.DatasetEnv(rows(10), evaluation=rows(20, begin=10))
    made = hf.adapters.verifiers(env, gate="correct")
    assert made.policy == hf.Prompt(system=scene.FAIR) and made.tasks is not None
    result = improved(made, endpoint, at)
    assert result.candidate is not None and result.candidate.manifest["texts"] == {"system": scene.GOOD}
    assert result.proof is not None and result.proof.comparisons["success"].difference == pytest.approx(0.5)
    row = result.run.rollouts("outcome == 'right'")[0]
    assert row["answer"]["reply"] == row["expected"] and row["answer"]["rewards"] == {"correct": 1.0, "brief": 1.0}
    assert row["reward"] == pytest.approx(1.1)
    assert env.rubric.cleaned == len(result.run.rollouts())


def test_data_for_evaluation_is_what_is_proved_on() -> None:
    made = hf.adapters.verifiers(peers.DatasetEnv(rows(6), evaluation=rows(4, begin=6)), limit=3)
    assert made.tasks is not None and (len(made.tasks.train), len(made.tasks.held_out)) == (3, 3)
    first = made.tasks.held_out[0]
    assert first.id == "held_out-0" and first.expected == "12" and first.metadata["info"] == {"n": 6}
    assert "12" not in str(first.for_agent().input)
    assert [(one.name, one.gate) for one in made.scorers] == [("reward", False)]


def test_an_attempt_that_the_environment_gave_up_is_a_failure(endpoint: Endpoint, at: Path) -> None:
    env = peers.DatasetEnv(rows(3))
    env.fails_with = RuntimeError("the tool server is gone")
    made = hf.adapters.verifiers(env)
    call: dict[str, Any] = {"model": "tiny", "base_url": endpoint.url, "store": at}
    with pytest.raises(hf.HoldfastError, match="RuntimeError: the tool server is gone"):
        hf.collect(made.agent, made.tasks, scorers=made.scorers, policy=made.policy, **call)


def test_an_environment_with_a_task_set_is_improved_unchanged(
    endpoint: Endpoint, at: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, module in peers.verifiers_modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    data = [
        peers.TaskData(idx=place, prompt=one.input["question"], answer=str(one.expected))
        for place, one in enumerate(scene.questions(24, held_out=None))
    ]
    env = peers.TasksetEnv(peers.Taskset([peers.Task(one) for one in data]))
    made = hf.adapters.verifiers(env, gate="exact", held_out=0.5)
    result = improved(made, endpoint, at)
    assert result.candidate is not None and result.candidate.manifest["texts"] == {"system": scene.GOOD}
    assert env.opened == env.closed > 0 and not [name for name in os.environ if name.startswith("HOLDFAST_KEY_")]
    assert result.run.rollouts()[0]["answer"]["completion"][0]["role"] == "assistant"


def test_what_an_environment_serves_is_held_while_anybody_plays() -> None:
    env, serving = peers.TasksetEnv(peers.Taskset([])), Serving()

    async def play(end: asyncio.Event) -> None:
        async with serving.of(env):
            assert env.opened == env.closed + 1
            await end.wait()

    async def three() -> None:
        first, second, third = (asyncio.Event() for _ in range(3))
        tasks = [asyncio.create_task(play(one)) for one in (first, second)]
        await asyncio.sleep(0.01)
        tasks[0].cancel()
        await asyncio.wait([tasks[0]])
        assert env.opened == env.closed + 1
        second.set()
        await asyncio.sleep(0)  # the last one leaves, and another comes before all is closed
        third.set()
        await asyncio.gather(tasks[1], play(third))

    for count in (2, 4):  # in a second event loop, too
        asyncio.run(three())
        assert (env.opened, env.closed) == (count, count)


@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        (object(), {}, "is none of the verifiers package"),
        (peers.DatasetEnv(rows(3)), {"gate": "right"}, "it has correct, brief"),
        (peers.TasksetEnv(peers.Taskset([peers.Task(peers.TaskData(0, "?", "!"))], bounded=False)), {}, "does not end"),
        (
            peers.TasksetEnv(peers.Taskset([]), {name: peers.SimpleNamespace(harness=None) for name in "ab"}),
            {},
            "has several agents: a, b",
        ),
    ],
)
def test_an_environment_that_cannot_be_taken_is_refused(env: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        hf.adapters.verifiers(env, **options)


# DSPy ----------------------------------------------------------------------------------------------------------------


def exact(example: Any, prediction: Any, trace: Any = None) -> bool:
    return bool(example.answer == prediction.answer)


def test_a_dspy_module_is_improved_unchanged(endpoint: Endpoint, at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dspy", peers.dspy_module())
    examples = [
        peers.Example(question=one.input["question"], answer=one.expected).with_inputs("question")
        for one in scene.questions(24, held_out=None)
    ]
    made = hf.adapters.dspy(peers.Predict(scene.FAIR), metric=exact, examples=examples, held_out=0.5)
    assert made.policy == hf.Prompt({"self": scene.FAIR})
    result = improved(made, endpoint, at)
    assert result.candidate is not None and result.candidate.manifest["texts"] == {"self": scene.GOOD}
    assert result.run.rollouts("outcome == 'right'")[0]["answer"].keys() == {"answer"}


def test_a_dspy_metric_may_give_feedback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dspy", peers.dspy_module())

    def told(gold: Any, pred: Any, trace: Any, pred_name: Any, pred_trace: Any) -> Any:
        return peers.Example(score=0.5, feedback=f"{gold.answer}, not {pred.answer}")

    made = hf.adapters.dspy(peers.Predict(""), metric=told, gate=False)
    given = task(input={"question": "2 + 2"})
    assert made.tasks is None and made.scorers[0](given, {"answer": "5"}, Trace()) == hf.Reward(0.5, {}, "4, not 5")


def test_what_is_no_dspy_module_or_example_is_refused() -> None:
    with pytest.raises(BadInput, match=r"is no dspy\.Module"):
        hf.adapters.dspy(lambda question: question)
    with pytest.raises(BadInput, match="example 1: has no inputs"):
        hf.adapters.dspy(peers.Predict(""), examples=[peers.Example(question="?")])
