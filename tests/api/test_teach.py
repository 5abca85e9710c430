"""`hf.sft`: a model that has learnt a user's own examples, ready for practice and for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

import holdfast as hf
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.weights import Manifest, save_transformer

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
    def agent(task: Any, ctx: hf.Context) -> str:
        asked = [{"role": "user", "content": task.input["question"]}]
        return str(ctx.wait(ctx.ask(asked, max_tokens=4)).response["content"])

    def even(task: Any, answer: Any) -> float:
        return float(bool(answer) and int(task.input["question"].split()[0]) % 2 == 0)

    at = tmp_path / "store.sqlite"
    run = hf.collect(agent, ROWS, scorers=even, policy=model, store=at, safety=hf.Waived("a test"))
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
    assert not at.exists()
    taught = hf.sft(model, ROWS, store=at, **HOW)
    with pytest.raises(hf.BadInput, match="is not in the store .*other.sqlite; give the store that it was trained in"):
        hf.collect(lambda task, ctx: "", ROWS, policy=taught, store=tmp_path / "other.sqlite")
