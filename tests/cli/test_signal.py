"""What a run learns from: agents that fail, models beside the policy, foreign sampling; and its published records."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import holdfast as hf
from holdfast.collect.client import Client
from holdfast.contracts.experience import AdvantageBatch, Trajectory
from holdfast.contracts.records import decode, schema
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.weights import Manifest, save_transformer
from holdfast.store.store import open_store
from tests.cli.conftest import Cli
from tests.endpoint import Endpoint, completion, serving

TASKS = [{"id": f"t{n}", "input": {"question": f"{word}?"}} for n, word in enumerate(("red", "blue", "green", "grey"))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> hf.Model:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    net = Transformer(ModelShape(width=16, layers=1, heads=2, context=96), seed=0)
    save_transformer(folder, net, Manifest(kind="transformer", shape={}, created_at=0.0))
    return hf.Model(str(folder))


@pytest.fixture
def at(tmp_path: Path) -> Path:
    return tmp_path / "training" / "store.sqlite"


@pytest.fixture(scope="module")
def far() -> Iterator[Endpoint]:
    """A second model, behind an address."""
    with serving() as endpoint:
        yield endpoint


def practised(
    agent: Any, model: hf.Model, at: Path, score: Any, timeout_s: float = 60.0, **grpo: Any
) -> tuple[str, dict[str, Any]]:
    """The run's id, and what its one step of learning says."""
    tasks = hf.tasks(TASKS, held_out=0.5, seed=1)
    algorithm = hf.GRPO(**{"lr": 1e-3, "steps": 1, "tasks": 1, "samples": 8, **grpo})
    how: dict[str, Any] = {"workers": 4, "seeds": 1, "store": at, "safety": hf.Waived("a test")}
    how |= {"scorers": [hf.Scorer(score)], "timeout_s": timeout_s}
    result = hf.improve(agent, tasks, name="helper", policy=model, algorithm=algorithm, **how)
    with open_store(at, create=False) as store:
        return result.run.id, {one.name: one.body for one in store.steps.of_run(result.run.id)}["0/0/learn"]


def place(ctx: hf.Context) -> int:
    """Which attempt at its task this is."""
    return int(ctx.assignment.rollout.rpartition("-")[2])


def asked(task: Any) -> list[dict[str, str]]:
    return [{"role": "user", "content": task.input["question"]}]


def fine(task: Any, answer: Any) -> float:
    return 1.0


def later(task: Any, answer: Any) -> float:
    """The later attempt is worth more."""
    return float(answer or 0) / 14


def exported(cli: Cli, run: str, kind: type, name: str, at: Path) -> list[Any]:
    """The records of a run, each as its published schema allows it."""
    lines = cli("store", "export", run, "--as", name, "--store", str(at)).done().lines
    for line in lines:
        jsonschema.validate(json.loads(line), schema(kind))
    return [decode(kind, json.loads(line)) for line in lines]


def test_an_agent_that_overflows_its_context_learns_from_it(model: hf.Model, at: Path, cli: Cli) -> None:
    async def overflowing(task: Any, ctx: hf.Context) -> str:
        if place(ctx) == 7:  # before its first call: nothing that the policy did
            raise RuntimeError("context overflow")
        call = await ctx.ask(asked(task), max_tokens=4)
        if place(ctx) == 2:  # till its time is up
            await asyncio.sleep(60.0)
        if place(ctx) < 2:
            raise RuntimeError("context overflow")
        return str(call.response)

    run, told = practised(overflowing, model, at, fine, timeout_s=5.0)
    assert told["reward"] == pytest.approx(4 / 8) and told["update"]["grad_norm"] > 0.0
    audit = told["audit"]
    assert (audit["rollouts"], audit["taught"]) == (8, 7)
    assert audit["reasons"] == {f"{run}/practice-0-0-0-7": "no_trajectory"}
    weights = {
        int(one.trajectory.split("::")[0][-1]): one for one in exported(cli, run, AdvantageBatch, "advantages", at)
    }
    assert {n for n, one in weights.items() if one.advantages[0] < 0.0} == {0, 1, 2}
    assert {n for n, one in weights.items() if one.advantages[0] > 0.0} == {3, 4, 5, 6}


def test_a_second_model_is_context_and_the_policys_own_calls_are_trained_on(
    model: hf.Model, at: Path, far: Endpoint
) -> None:
    async def with_critic(task: Any, ctx: hf.Context) -> str:
        first = await ctx.ask(asked(task), max_tokens=4)
        critic = replace(ctx, complete=Client("far", far.url))
        said = {"role": "user", "content": str(first.response.get("content"))}
        await critic.ask([*asked(task), said])
        await ctx.ask([*asked(task), said], max_tokens=4)
        return str(place(ctx))

    _, told = practised(with_critic, model, at, later)
    assert told["audit"]["counts"] == {} and told["audit"]["taught"] == 8
    assert told["audit"]["left_out"] == {"other_model": 8} and told["update"]["grad_norm"] > 0.0


@pytest.mark.parametrize(("train_on", "taught"), [("plan", 8), ("tiny", 8), ("nobody", 0)])
def test_the_calls_that_are_trained_on_can_be_chosen(model: hf.Model, at: Path, train_on: str, taught: int) -> None:
    async def planner(task: Any, ctx: hf.Context) -> str:
        await ctx.ask(asked(task), max_tokens=4, tag="plan")
        await ctx.ask(asked(task), max_tokens=4, tag="act")
        return str(place(ctx))

    name = model.name if train_on == "tiny" else train_on
    _, told = practised(planner, model, at, later, train_on=name)
    audit = told["audit"]
    assert audit["taught"] == taught
    assert audit["left_out"] == ({"not_chosen": 8} if train_on == "plan" else {})
    assert audit["counts"] == ({} if taught else {"not_chosen": 8})


SAMPLINGS: list[tuple[dict[str, Any], str | None]] = [
    ({"temperature": 1}, None),
    ({"temperature": 1, "top_k": -1, "top_p": 1.0, "min_p": 0.0, "presence_penalty": 0, "logit_bias": {}}, None),
    ({"temperature": 1, "min_p": 0.1}, "min_p"),
    ({"temperature": 1, "frequency_penalty": 0.5}, "penalties"),
    ({"temperature": 1, "logit_bias": {"5": 2}}, "logit_bias"),
    ({"temperature": 1, "response_format": {"type": "json_object"}}, "guided_decoding"),
    ({"temperature": 1, "guided_regex": "[ab]+"}, "guided_decoding"),
    ({"temperature": 1, "tool_choice": "required"}, "guided_decoding"),
    ({"temperature": 1, "top_k": 20}, "top_k_top_p"),
    ({"temperature": 1, "top_p": 0.9}, "top_k_top_p"),
    ({"temperature": 0.7}, "foreign_temperature"),
    ({}, "server_defaults"),
    ({"temperature": 1, "mirostat": 2}, "unknown_sampling"),
    ({"temperature": 0}, "greedy"),
]


def test_foreign_sampling_has_its_reason_and_is_not_trained_on(model: hf.Model, at: Path, far: Endpoint) -> None:
    far.reply = lambda body: completion("said", model="far")

    async def elsewhere(task: Any, ctx: hf.Context) -> str:
        await replace(ctx, complete=Client("far", far.url)).ask(asked(task), **SAMPLINGS[place(ctx) % 14][0])
        return str(place(ctx))

    run, told = practised(elsewhere, model, at, later, train_on="far", samples=len(SAMPLINGS))
    expected = {f"{run}/practice-0-0-0-{n}": why for n, (_, why) in enumerate(SAMPLINGS) if why is not None}
    assert told["audit"]["reasons"] == expected
    assert told["audit"]["counts"] == Counter(expected.values()) and told["audit"]["taught"] == 2


def test_any_run_gives_its_trajectories_and_the_advantages_of_its_groups(
    model: hf.Model, at: Path, cli: Cli, tmp_path: Path
) -> None:
    async def agent(task: Any, ctx: hf.Context) -> str:
        if place(ctx) == 2 and task.id == "t0":
            raise RuntimeError("context overflow")
        call = await ctx.ask(asked(task), max_tokens=4)
        return str(call.response)

    def mark(task: Any, answer: Any) -> float:
        return float(len(answer) % 7) / 7

    run = hf.collect(
        agent, TASKS, scorers=[hf.Scorer(mark)], policy=model, store=at, seeds=3, safety=hf.Waived("a test")
    ).id
    made = exported(cli, run, Trajectory, "trajectories", at)
    assert len(made) == 11 and all(one.turn_count == 1 and one.signals for one in made)
    groups: dict[str, list[AdvantageBatch]] = {}
    for one in exported(cli, run, AdvantageBatch, "advantages", at):
        groups.setdefault(one.metadata["group"], []).append(one)
    assert {task: len(some) for task, some in groups.items()} == {"t0": 2, "t1": 3, "t2": 3, "t3": 3}
    assert all(sum(one.advantages[0] for one in some) == pytest.approx(0.0, abs=1e-6) for some in groups.values())
    assert {one.trajectory for some in groups.values() for one in some} == {one.id for one in made}
    file = tmp_path / "out.jsonl"
    told = cli("store", "export", run, "--as", "trajectories", "--output", file, "--json", "--store", str(at)).done()
    assert told.json["lines"] == {"trajectory": 11} and told.json["left_out"] == {"no_trajectory": 1}
    jsonschema.validate(told.json, cli("schema", "store-export").json)


def test_no_calls_can_be_chosen_by_an_empty_name_or_for_a_network(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "c.json"
    config.write_text(json.dumps({"model": "local/sprout-weak", "optimize": [{"prompt": "a"}], "validate": []}))
    assert "--train-on" in cli("improve", config, "--train-on", " ").refusal
    assert "--train-on: means nothing to a network" in cli("improve", "--env", "X-v1", "--train-on", "a").refusal
    with pytest.raises(hf.BadInput, match=r"grpo\.train_on: is empty"):
        hf.GRPO(train_on=" ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run-9", "--as", "trajectories"), "run 'run-9': there is none"),
        (("--as", "advantages"), "--as advantages: these are of one run; name it: holdfast store export RUN --as"),
        (("RUN", "--run", "run-9"), "--run run-9: another run, "),
        (("RUN", "--as", "trajectories"), ": has no trajectories: 4 no trajectory; 'holdfast run rollouts"),
    ],
)
def test_what_cannot_be_exported_is_said_in_one_line(cli: Cli, at: Path, words: tuple[str, ...], said: str) -> None:
    run = hf.collect(lambda task, ctx: "x", TASKS, scorers=[hf.Scorer(fine)], policy=hf.Prompt(), store=at).id
    given = [run if word == "RUN" else word for word in words]
    assert said in cli("store", "export", *given, "--store", str(at)).refusal
