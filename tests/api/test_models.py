"""Stories 2 and 8 of models: a local model learns from an agent as it is, by our algorithm or by yours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

import holdfast as hf
from holdfast.contracts.errors import BadInput
from holdfast.policies import reward_model
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.model import Model
from holdfast.policies.weights import Manifest, save_transformer
from holdfast.store.store import open_store

WORDS = ("red", "blue", "green", "grey", "pink", "gold", "teal", "navy")


def tasks(count: int = 24) -> hf.TaskSet:
    rows = [
        {"id": f"t{n}", "input": {"question": f"{WORDS[n % 8]} {'x' * (n // 8)}?"}, "expected": WORDS[n % 8]}
        for n in range(count)
    ]
    return hf.tasks(rows, held_out=0.4, seed=1)


async def agent(task: Any, ctx: hf.Context) -> str:
    call = await ctx.ask([{"role": "user", "content": task.input["question"]}], max_tokens=8, temperature=1.0)
    return str(call.response.get("content") or "")


def letters(task: Any, answer: str) -> float:
    """Any two answers differ in it: there is always something to learn."""
    return min(1.0, (len(set(answer)) + len(answer) / 100) / 30)


def practised(policy: hf.Model, algorithm: Any, at: Path, **more: Any) -> hf.Result:
    how = {"name": "helper", "scorers": [hf.Scorer(letters)], "workers": 8, "seeds": 1, "store": at, **more}
    return hf.improve(agent, tasks(), policy=policy, algorithm=algorithm, **how)


@pytest.mark.parametrize(("name", "lora"), [("tiny-tools", 4), ("sprout-weak", 0)])
def test_a_local_model_learns_and_its_candidate_is_measured(name: str, lora: int, at: Path) -> None:
    grpo = hf.GRPO(lr=1e-3, steps=1, tasks=3, samples=4, turn_credit=0.3)
    result = practised(hf.Model(name, lora=lora), grpo, at)
    candidate = result.candidate
    assert isinstance(candidate, Model) and candidate.checkpoint is not None and candidate.lora == lora
    assert result.proof is not None and "reward" in result.proof.comparisons and result.release == "helper@2"
    with open_store(at, create=False) as store:
        steps = {one.name: one.body for one in store.steps.of_run(result.run.id)}
        assert steps["0/0/learn"]["update"] and store.checkpoints.get(candidate.checkpoint)


def test_a_critic_judges_the_turns_of_a_model_and_is_told(at: Path) -> None:
    algorithm = hf.TurnPPO(steps=3, tasks=3, samples=2, ppo={"learning_rate": 1e-3}, gae={"lambda": 0.9})
    result = practised(hf.Model("sprout-weak"), algorithm, at)
    assert isinstance(result.candidate, Model) and result.proof is not None
    with open_store(at, create=False) as store:
        learnt = [one.body for one in store.steps.of_run(result.run.id) if one.name.endswith("/learn")]
    told = [body["rl_optimizer"] for body in learnt]
    assert len(told) == 3 and told[0]["explained_variance"] == 0.0
    assert all(one["value_loss"] > 0.0 and one["parameter_delta_norm"] > 0.0 for one in told)
    assert told[1]["explained_variance"] != 0.0


def test_advantages_of_your_own_decide_what_becomes_likelier(at: Path) -> None:
    seen: list[int] = []

    class LeaveOneOut:
        lr, steps, tasks, samples = 1e-3, 1, 2, 4

        def advantages(self, group: Any) -> list[float]:
            rewards = [one.reward for one in group]
            seen.append(len(rewards))
            others = [(sum(rewards) - one) / (len(rewards) - 1) for one in rewards]
            return [one - other for one, other in zip(rewards, others, strict=True)]

    result = practised(hf.Model("sprout-weak"), LeaveOneOut(), at)
    assert seen == [4, 4] and result.candidate is not None


def test_advantages_that_are_no_numbers_end_the_run_with_the_reason(at: Path) -> None:
    class Short:
        steps, tasks, samples = 1, 1, 2

        def advantages(self, group: Any) -> list[float]:
            return [1.0]

    with pytest.raises(BadInput, match="gives 1 numbers for 2 attempts"):
        practised(hf.Model("sprout-weak"), Short(), at)


def test_a_budget_bounds_learning_and_proof_together(at: Path) -> None:
    grpo = hf.GRPO(steps=8, tasks=2, samples=2)
    result = practised(hf.Model("sprout-weak"), grpo, at, budget=hf.Budget(rollouts=26))
    assert len(result.run.rollouts()) <= 26
    assert len(result.run.rollouts("split == 'train'")) in (8, 12)
    with pytest.raises(BadInput, match="one step takes 128"):
        practised(hf.Model("sprout-weak"), "grpo", at, budget=hf.Budget(rollouts=60))
    with pytest.raises(BadInput, match="one step takes 128"):
        practised(hf.Model("sprout-weak"), "ppo", at, budget=hf.Budget(rollouts=60))


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        (hf.Model("no-such-model"), {}, "neither in the package nor a folder"),
        (hf.Model("sprout-weak", lora=4), {}, "adapters are for Hugging Face models"),
        (hf.Model("sprout-weak"), {"model": "gpt-4o-mini"}, "a model of its own"),
        (hf.Model("sprout-weak"), {"algorithm": hf.Candidates(["x"])}, "only prompts can be raced"),
    ],
)
def test_a_model_that_cannot_be_is_refused_before_any_work(
    model: hf.Model, more: dict[str, Any], said: str, at: Path
) -> None:
    with pytest.raises(BadInput, match=said):
        practised(model, more.pop("algorithm", "grpo"), at, **more)
    assert not at.exists()


ROWS = [{"question": f"{n} and one?", "answer": f"{n + 1}."} for n in range(24)]
HOW: dict[str, Any] = {"lr": 1e-2, "epochs": 1, "batch": 4}


@pytest.fixture
def model(tmp_path: Path) -> hf.Model:
    net = Transformer(ModelShape(width=16, layers=1, heads=2, context=96), seed=0)
    save_transformer(tmp_path / "tiny", net, Manifest(kind="transformer", shape={}, created_at=0.0))
    return hf.Model(str(tmp_path / "tiny"))


def test_the_result_is_a_policy_that_goes_on_and_out(
    model: hf.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, at = tmp_path / "examples.jsonl", tmp_path / "store.sqlite"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*ROWS, {"question": "no answer"}]))
    taught = hf.sft(model, file, store=at, **HOW)
    said = capsys.readouterr().err
    assert "held-out loss" in said and "left out 1 (it is none of" in said
    assert taught.checkpoint is not None and taught != model
    again = hf.sft(taught, ROWS, store=at, **HOW)
    assert again.checkpoint != taught.checkpoint
    assert again.export(tmp_path / "out") == tmp_path / "out"
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert [one.record.kind for one in hf.runs(store=at)] == ["sft", "sft"]


def test_the_good_rollouts_of_a_run_are_learnt_from(tmp_path: Path, model: hf.Model) -> None:
    def asks(task: Any, ctx: hf.Context) -> str:
        asked = [{"role": "user", "content": task.input["question"]}]
        return str(ctx.wait(ctx.ask(asked, max_tokens=4)).response["content"])

    def even(task: Any, answer: Any) -> float:
        return float(bool(answer) and int(task.input["question"].split()[0]) % 2 == 0)

    at = tmp_path / "store.sqlite"
    run = hf.collect(asks, ROWS, scorers=even, policy=model, store=at, safety=hf.Waived("a test"))
    taught = hf.sft(model, run=run, least=1.0, **HOW)
    assert taught.checkpoint is not None
    with pytest.raises(hf.BadInput, match="nothing in it is to be learnt from: .*below 2"):
        hf.sft(model, run=run, least=2.0, **HOW)


def test_what_is_wrong_is_said_before_anything_begins(model: hf.Model, tmp_path: Path) -> None:
    at = tmp_path / "store.sqlite"
    with pytest.raises(hf.BadInput, match="policy: is Prompt, and has no weights of ours"):
        hf.sft(hf.Prompt(system="a"), ROWS, store=at)  # type: ignore[arg-type]
    with pytest.raises(hf.BadInput, match="option learning_rate: is unknown here; there are lr"):
        hf.sft(model, ROWS, store=at, learning_rate=1.0)  # type: ignore[call-arg]
    with pytest.raises(hf.BadInput, match="examples: there are none"):
        hf.sft(model, store=at)
    with pytest.raises(hf.BadInput, match=r"privacy = 8: is no budget; give hf.Privacy\(epsilon=8\)"):
        hf.sft(model, ROWS, store=at, privacy=8)  # type: ignore[arg-type]
    assert not at.exists()
    taught = hf.sft(model, ROWS, store=at, **HOW)
    with pytest.raises(hf.BadInput, match="is not in the store .*other.sqlite; give the store that it was trained in"):
        hf.collect(lambda task, ctx: "", ROWS, policy=taught, store=tmp_path / "other.sqlite")


def test_preferences_and_a_privacy_budget_are_reached_from_python(
    model: hf.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at, pairs = (
        tmp_path / "store.sqlite",
        [{"prompt": r["question"], "chosen": r["answer"], "rejected": "?"} for r in ROWS],
    )
    preferring = hf.dpo(model, pairs, store=at, beta=0.5, **HOW)
    assert preferring.checkpoint is not None and "nats a pair" in capsys.readouterr().err
    private = hf.sft(preferring, ROWS, store=at, privacy=hf.Privacy(epsilon=3.0), **HOW)
    said = capsys.readouterr().err
    assert "epsilon 3 of 3 at delta 1e-05" in said and "conversations; noise" in said
    hf.dpo(private, pairs, store=at, privacy=hf.Privacy(epsilon=1.0), **HOW)
    assert "with 1 private run before it" in capsys.readouterr().err
    assert [one.record.kind for one in hf.runs(store=at)] == ["dpo", "sft", "dpo"]


LETTERS = "Did the clerk answer all of the letters that the mayor wrote to him in the winter of 1904?"


def test_the_best_and_the_worst_rollout_of_each_task_are_pairs(model: hf.Model, tmp_path: Path) -> None:
    at, file = tmp_path / "store.sqlite", tmp_path / "chats.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": text}], "reward": worth}
        for ask in (LETTERS, *(f"{n}?" for n in range(8)))
        for text, worth in (("yes", 1.0), ("no", 0.0))
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = hf.import_logs(file, store=at)
    preferring = hf.dpo(model, run=run, **HOW)
    assert preferring.checkpoint is not None
    with pytest.raises(hf.BadInput, match="made of two conversations"):
        hf.dpo(model, run=run, privacy=hf.Privacy(epsilon=1.0), **HOW)

    scorer = hf.reward_model(model, run=run, epochs=8, lr=1e-2, batch=4, store=at)
    reader = reward_model.load(scorer["model"])
    talks = [
        ([{"role": "user", "content": "9?"}, {"role": "assistant", "content": text}], ()) for text in ("yes", "no")
    ]
    preferred, other = reader.rewards(talks)
    assert preferred is not None and other is not None and preferred > other + 1.0  # of a task that nobody compared

    async def says(task: Any, ctx: hf.Context) -> str:
        await ctx.ask([{"role": "user", "content": task.input["question"]}], max_tokens=2)
        return "yes" if task.input["question"] == "9?" else "no"

    scorers = [
        hf.Scorer(lambda task, answer: float(answer == task.expected), name="gate", gate=True),
        {**scorer, "weight": 0.5},
    ]
    asked = [{"id": n, "input": {"question": f"{n}?"}, "expected": text} for n, text in (("9", "yes"), ("8", "no"))]
    scored = hf.collect(says, asked, scorers=scorers, policy=model, store=at, safety=hf.Waived("a test"))
    with open_store(at, create=False) as store:
        found = [store.experiences.get(one.id) for one in store.views.every(scored.id)]
    terms = {one.calls[0].messages[0]["content"]: one.breakdown for one in found if one is not None}
    said = {asked: next(t.value for t in some.signals if t.name == "judge") for asked, some in terms.items() if some}
    assert said["9?"] > 0.5 > said["8?"]
    split = [{**one, "split": "train"} for one in asked]
    split += [{"id": ask.split()[0], "input": {"question": ask}, "split": "test"} for ask in (LETTERS, "Or not?")]
    with pytest.raises(BadInput, match="1 held-out tasks: the reward model has learnt them: Did"):
        hf.improve(says, hf.tasks(split), name="p", scorers=scorers, policy=model, store=at, safety=hf.Waived("a test"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"privacy": "much"}, "privacy: only sft and dpo learn privately.*hf.sft or hf.dpo"),
        ({"algorithm": "dpo"}, r"algorithm 'dpo': learns from examples, not from practice; hf.dpo\(policy"),
    ],
)
def test_practice_refuses_a_privacy_budget_and_names_the_call_for_preferences(
    more: dict[str, Any], said: str, at: Path, model: hf.Model
) -> None:
    with pytest.raises(BadInput, match=said):
        practised(model, more.pop("algorithm", "grpo"), at, **more)
    assert not at.exists()
