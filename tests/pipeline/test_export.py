"""What is exported is what was trained: plain transformers gives the same log-probs, and chooses the same tokens."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from holdfast.contracts.errors import BadInput, Lost
from holdfast.contracts.features import ALL_ON
from holdfast.contracts.trace import ModelCall
from holdfast.learn.clone import sequences
from holdfast.learn.sft import SFT
from holdfast.learn.train import Settings, Trainer
from holdfast.pipeline.run import Control, drive
from holdfast.pipeline.sft import result_of, sft_spec
from holdfast.policies import tokens
from holdfast.policies.hub import Hub
from holdfast.policies.loading import export, load
from holdfast.policies.local import Local
from holdfast.policies.model import Model
from holdfast.policies.registry import folder_of
from holdfast.policies.voices import ByteVoice
from holdfast.policies.weights import Manifest, save_transformer
from holdfast.store.store import Store, open_store
from holdfast.workloads.tooluse.dialogues import dialogue
from tests.policies.small import small

COUNT = 50
SHOWN = [dialogue(10**7 + place, "strong") for place in range(COUNT)]
HOW = SFT(lr=3e-3, epochs=1, batch=4, held_out=0.25)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.sqlite")) as opened:
        yield opened


def taught(store: Store, model: Model, examples: int = 16) -> Model:
    rows = [{"messages": list(one.messages), "tools": list(one.tools)} for one in SHOWN[:examples]]
    how: dict[str, Any] = {"clock": time.time, "observe": lambda status: None, "who": "test", "salt": "ab"}
    spec = sft_spec(model, rows, how=HOW)
    return result_of(
        store, asyncio.run(drive(store, spec, Control(), features=lambda done: ALL_ON, **how)).run_id
    ).policy


def answers(model: Any, **sampling: Any) -> list[ModelCall]:
    """To the first question of each conversation."""

    async def ask() -> list[ModelCall]:
        with Local(model, slots=COUNT) as local:
            asked = [
                local(one.messages[:2], tools=one.tools, seed=seed, max_tokens=48, **sampling)
                for seed, one in enumerate(SHOWN)
            ]
            return await asyncio.gather(*asked)

    return asyncio.run(ask())


def pairs(calls: Sequence[ModelCall]) -> list[tuple[list[int], list[int]]]:
    return [(list(call.prompt_ids or ()), list(call.completion_ids or ())) for call in calls]


@torch.no_grad()
def plain_logprobs(net: Any, calls: Sequence[ModelCall]) -> list[float]:
    """Each completion's tokens, by nothing but transformers."""
    found = []
    for prompt, completion in pairs(calls):
        logits = net(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1].float()
        found += logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0].tolist()
    return found


def own_logprobs(model: Any, calls: Sequence[ModelCall]) -> list[float]:
    """The same, by the trainer."""
    some = [
        (prompt + completion, [False] * len(prompt) + [True] * len(completion)) for prompt, completion in pairs(calls)
    ]
    samples = sequences(some)
    found: list[float] = Trainer(model, Settings(), seed=0).logprobs(samples)[samples.decided].tolist()
    return found


def check_same(policy: Model, store: Store | None, out: Path) -> None:
    folder = None if store is None else store.folder
    export(policy, folder, out)
    net = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    model, _ = load(policy, folder)
    sampled = answers(model, temperature=1.0)
    assert len({call.completion_ids for call in sampled}) > COUNT // 2
    np.testing.assert_allclose(plain_logprobs(net, sampled), own_logprobs(model, sampled), atol=1e-4)
    for prompt, completion in pairs(answers(model, temperature=0.0))[:5]:
        chosen = net.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=48)[0, len(prompt) :]
        assert chosen.tolist() == completion


def test_adapters_are_merged_into_the_exported_weights(store: Store, tmp_path: Path) -> None:
    policy = taught(store, Model("tiny-tools", lora=4))
    check_same(policy, store, tmp_path / "out")
    sets = [{*_state(folder)} for folder in (folder_of("tiny-tools"), tmp_path / "out")]
    assert sets[0] == sets[1]  # the names of a plain model: no adapters
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    own, messages = load(Model("tiny-tools"), None)[0], [dict(one) for one in SHOWN[0].messages[:2]]
    assert isinstance(own, Hub)
    ids = tokenizer.apply_chat_template(messages, tools=SHOWN[0].tools, add_generation_prompt=True, return_dict=False)
    assert ids == own.voice.prompt(messages, SHOWN[0].tools)


def _state(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return state


def test_a_model_that_is_trained_whole_is_exported_whole(store: Store, tmp_path: Path) -> None:
    check_same(taught(store, Model("tiny-tools"), 8), store, tmp_path / "out")


def test_our_own_transformer_is_exported_in_the_layout_of_llama_with_its_bytes(tmp_path: Path) -> None:
    check_same(Model("sprout"), None, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for one in SHOWN:
        for place, message in enumerate(one.messages):
            if message["role"] == "assistant":
                before = [dict(some) for some in one.messages[:place]]
                ids = tokenizer.apply_chat_template(
                    before, tools=one.tools, add_generation_prompt=True, return_dict=False
                )
                assert ids == tokens.prompt(before, one.tools)
    again, _ = load(Model(str(tmp_path / "out")), None)
    assert isinstance(again, Hub) and isinstance(
        again.voice, ByteVoice
    )  # calls of tools are read as sprout writes them
    export(Model(str(tmp_path / "out")), None, tmp_path / "twice")
    twice = transformers.AutoTokenizer.from_pretrained(tmp_path / "twice")
    assert twice.encode("four <|end|>") == tokenizer.encode("four <|end|>") == [*b"four ", tokens.END]


def test_every_byte_is_a_token_of_the_exported_tokenizer(tmp_path: Path) -> None:
    save_transformer(tmp_path / "own", small(), Manifest(kind="transformer", shape={}, created_at=0.0))
    export(Model(str(tmp_path / "own")), None, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "".join(map(chr, range(256))) + "€ 𝄞\n  <|call|>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == [*text.removesuffix("<|call|>").encode(), tokens.CALL]
    assert tokenizer.decode(ids) == text


def test_a_folder_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is there already"):
        export(Model("sprout"), None, tmp_path)


def test_a_checkpoint_is_a_model_by_its_folder_with_its_adapters_merged(store: Store, tmp_path: Path) -> None:
    policy = taught(store, Model("tiny-tools", lora=4), 8)
    merged, _ = load(Model(str(policy.folder(store.folder))), None)
    assert isinstance(merged, Hub) and not merged.is_adapted
    ids = torch.arange(40)[None]
    with torch.no_grad():
        apart = (merged(ids) - load(policy, store.folder)[0](ids)).abs().max()
        moved = (merged(ids) - load(Model("tiny-tools"), None)[0](ids)).abs().max()
    assert apart < 1e-4 < moved


def test_a_checkpoint_over_a_folder_that_changed_is_refused(store: Store, tmp_path: Path) -> None:
    """The template, too, decides what the model is asked: another one would be another policy."""
    shutil.copytree(folder_of("tiny-tools"), tmp_path / "base")
    policy = taught(store, Model(str(tmp_path / "base"), lora=4), 8)
    load(policy, store.folder)
    template = tmp_path / "base" / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    with pytest.raises(Lost, match="was trained from other files"):
        load(policy, store.folder)


def test_a_model_by_its_folder_is_found_wherever_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder_of("tiny-tools"), tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    policy = Model("base")
    monkeypatch.chdir("/")
    assert policy.name == str(tmp_path / "base") and Model.from_manifest(policy.manifest) == policy
    load(policy, None)
