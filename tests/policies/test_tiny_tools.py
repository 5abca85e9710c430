"""The packaged tool-use model and the script that makes it: one rendering of a chat, turns that continue one another,
a small folder that is what its card says, and answers that our own agent can use."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from holdfast.policies import hub
from holdfast.policies.chat_template import JinjaTemplate
from holdfast.policies.engine import Local
from holdfast.policies.model import card, folder_of
from holdfast.workloads.tooluse.agent import examine
from holdfast.workloads.tooluse.tasks import EASY, generate
from holdfast.workloads.tooluse.tools import SPECS
from tests.workloads.scene import dialogue

ROOT = Path(__file__).resolve().parents[2]
FOLDER = folder_of("tiny-tools")
FILES = {
    "README.md",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "training.json",
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_tiny_tools", ROOT / "runs/train_tiny_tools.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tokenizer(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer made by the recipe from fewer conversations, saved and loaded as a user would."""
    import transformers

    folder = tmp_path_factory.mktemp("tokenizer")
    recipe = replace(script.Recipe(), tokenizer_conversations=600)
    script.save_tokenizer(script.train_tokenizer(recipe), recipe.shape, folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def template(tokenizer: Any) -> JinjaTemplate:
    return JinjaTemplate(tokenizer, frozenset({tokenizer.eos_token_id}))


def test_the_script_and_the_template_write_a_chat_in_the_same_tokens(
    script: ModuleType, tokenizer: Any, template: JinjaTemplate
) -> None:
    """Demonstrations are rendered by the script, since templates are slow; prompts by the template."""
    recipe = replace(script.Recipe(), strong_share=1.0, plain_share=0.0)
    for place in range(200):
        shown, pieces = dialogue(place, "strong"), script.conversation(place, recipe)
        if any(script._broken(call) for message in shown.messages for call in message.get("tool_calls", ())):
            continue
        trained = [token for text, _ in pieces for token in tokenizer.encode(text, add_special_tokens=False)]
        prompt = template.prompt(shown.messages, shown.tools)
        asked = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
        assert prompt == trained + asked


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_a_prompt_begins_with_the_prompt_and_the_answer_of_the_turn_before(
    kind: str, tokenizer: Any, template: JinjaTemplate, script: ModuleType
) -> None:
    """What was sampled is read, sent back by the agent and rendered again: not one token may change."""
    turns = 0
    for place in range(200):
        shown = dialogue(place, kind)
        for at, message in enumerate(shown.messages[:-1]):
            if message["role"] != "assistant" or any(script._broken(call) for call in message.get("tool_calls", ())):
                continue
            thought = message.get("reasoning_content") or ""
            if thought != thought.rstrip():  # it was cut after a space, which chat templates drop
                continue
            before = template.prompt(shown.messages[:at], shown.tools)
            written = tokenizer.encode(script.body(message) + script.END, add_special_tokens=False)
            again = [*shown.messages[:at], template.read(written), shown.messages[at + 1]]
            assert template.prompt(again, shown.tools)[: len(before) + len(written)] == before + written
            turns += 1
    assert turns > 20


def test_a_call_is_read_as_it_was_written(tokenizer: Any, template: JinjaTemplate) -> None:
    text = '<think>first the key</think><tool_call>{"name": "lookup", "arguments": {"key": "oák.price"}}</tool_call>'
    message = template.read(tokenizer.encode(text + "<|im_end|>"))
    assert (message["content"], message["reasoning_content"]) == ("", "first the key")
    assert message["tool_calls"][0]["function"] == {"name": "lookup", "arguments": '{"key": "oák.price"}'}


@pytest.mark.parametrize(
    ("messages", "tools", "text"),
    [
        ([{"role": "user", "content": "hi"}], [], "<|im_start|>user\nhi<|im_end|>\n"),
        (
            [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}],
            [SPECS["convert"]],
            (
                "<|im_start|>system\nBe brief.\n\n# Tools\nconvert(value, from, to)<|im_end|>\n"
                "<|im_start|>user\nhi<|im_end|>\n"
            ),
        ),
        (  # no instructions, and a tool without arguments
            [{"role": "user", "content": "hi"}],
            [{"type": "function", "function": {"name": "now", "description": "The time."}}],
            "<|im_start|>system\n# Tools\nnow()<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n",
        ),
    ],
    ids=["plain", "instructed", "tools alone"],
)
def test_the_template_takes_chats_of_other_shapes(
    messages: Any, tools: Any, text: str, tokenizer: Any, template: JinjaTemplate
) -> None:
    assert tokenizer.decode(template.prompt(messages, tools)) == text + "<|im_start|>assistant\n"


def test_any_text_survives_the_tokens(tokenizer: Any) -> None:
    for text in ("  two  spaces\n\nlines ", "żółć 漢字 🙂", '{"a": [1.5, null]}\t', "don't  stop.\r\n"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_weights_in_their_new_layout_are_the_same_function(script: ModuleType, tokenizer: Any) -> None:
    shape = replace(script.Recipe().shape, width=64, layers=2, heads=2)
    model = script.Transformer(shape, seed=3)
    net, ids = script.as_llama(model, tokenizer), torch.randint(1024, (1, 300))
    assert torch.allclose(net(input_ids=ids).logits, model(ids), atol=1e-4)
    assert [net.config.model_type, net.generation_config.eos_token_id] == ["llama", tokenizer.eos_token_id]


def test_what_ships_is_small_whole_and_what_its_card_says() -> None:
    assert {path.name for path in FOLDER.iterdir()} == FILES
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 5_000_000
    facts = json.loads((FOLDER / "training.json").read_text(encoding="utf-8"))
    sha256 = hashlib.sha256((FOLDER / "model.safetensors").read_bytes()).hexdigest()
    assert facts["weights_sha256"] == sha256 and sha256 in card("tiny-tools")


def test_what_ships_was_made_by_this_script(script: ModuleType) -> None:
    facts = json.loads((FOLDER / "training.json").read_text(encoding="utf-8"))
    assert script.Recipe(**facts["recipe"]) == script.Recipe()
    assert (FOLDER / "chat_template.jinja").read_text(encoding="utf-8") == script.TEMPLATE
    assert card("tiny-tools") == script.card(facts)


def test_it_calls_tools_and_leaves_room_to_learn() -> None:
    """Sampled on easy tasks: some right, many wrong, and some of the needed tools called."""
    model = hub.load(FOLDER)
    with Local(model, seed=0) as local:
        tasks = generate("train", 7, 48, EASY)
        marks = asyncio.run(examine(local, tasks, sampling={"temperature": 1.0, "max_tokens": 80}))
    adopted = [mark.adoption for mark in marks if mark.adoption is not None]
    assert 5 <= sum(mark.success for mark in marks) <= 40
    assert sum(adopted) >= 4


def test_transformers_alone_writes_with_it() -> None:
    """What a user does without us: the same log-probs come out of `generate`'s own scores."""
    import transformers

    net = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    reader = transformers.AutoTokenizer.from_pretrained(FOLDER)
    messages = generate("train", 7, 1)[0].messages
    ids = reader.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    out = net.generate(ids, do_sample=False, max_new_tokens=96, attention_mask=torch.ones_like(ids))
    with torch.no_grad():
        ours = hub.load(FOLDER)(out[:, :-1])
    assert ours[0, ids.shape[1] - 1 :].argmax(-1).tolist() == out[0, ids.shape[1] :].tolist()
    assert out[0, -1] == reader.eos_token_id
