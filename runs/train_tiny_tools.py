"""Trains `tiny-tools`, the small tool-use model in Hugging Face's format that ships with the package.

    python runs/train_tiny_tools.py OUT                 the recipe as it stands (a GPU, a few minutes)
    python runs/train_tiny_tools.py OUT --quick         a minute on a CPU, to see that every step works
    python runs/train_tiny_tools.py OUT --exam          measure the model in OUT again and rewrite its card

The steps are: a byte-level BPE tokenizer and a ChatML template, conversations from our own generator, pretraining by
the function that also trains sprout, the weights written in the layout of Llama, and an exam by our own agent. The
model is weak on purpose: most of its demonstrations are bad ones, so that practice has something to find. It needs
torch, numpy, safetensors, transformers and tokenizers, and no other package.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from holdfast.learn.pretrain import Pretraining, pack, pretrain
from holdfast.policies.engine import Local
from holdfast.policies.hub import config_of, load, to_llama
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.workloads.tooluse.agent import examine, summary
from holdfast.workloads.tooluse.dialogues import demonstration
from holdfast.workloads.tooluse.tasks import STYLES, THINK, USE, generate
from holdfast.workloads.tooluse.tools import specs

NAME = "tiny-tools"
END, PAD = "<|im_end|>", "<|endoftext|>"
MARKS = (PAD, "<|im_start|>", END)
TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")  # visible in decoded text, as in Qwen's tokenizers
# Words, single digits, line ends, and everything between them. A word is spelled by the same tokens wherever it stands
# and a line end joins nothing, so a prompt and its completion, one after the other, are the tokens of their joint text.
PIECES = r"\p{L}+|\p{N}|\n|[^\p{L}\p{N}\n]+"
TEMPLATE = """\
{%- set system = '' -%}
{%- set rest = messages -%}
{%- if messages and messages[0].role in ('system', 'developer') -%}
    {%- set system = messages[0].content or '' -%}
    {%- set rest = messages[1:] -%}
{%- endif -%}
{%- if system or tools -%}
    {{- '<|im_start|>system\\n' + system -}}
    {%- if tools -%}
        {{- ('\\n\\n' if system else '') + '# Tools' -}}
        {%- for tool in tools -%}
            {%- set function = tool.function or tool -%}
            {%- set properties = (function.parameters or {}).properties or {} -%}
            {{- '\\n' + function.name + '(' + properties | join(', ') + ')' -}}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in rest -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.role == 'assistant' and message.reasoning_content -%}
        {{- '<think>' + message.reasoning_content + '</think>' -}}
    {%- endif -%}
    {{- message.content or '' -}}
    {%- for call in message.tool_calls or [] -%}
        {%- set function = call.function or call -%}
        {%- set arguments = function.arguments -%}
        {{- '<tool_call>{"name": ' + function.name | tojson + ', "arguments": ' -}}
        {{- (arguments if arguments is string else arguments | tojson) + '}</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
PLAIN_SYSTEMS = (  # instead of the task's own instructions, so that other people's prompts are not wholly strange
    "",
    "You are a helpful assistant.",
    "You answer briefly.",
    "Answer the question.",
    "You are a helpful assistant. Use the tools if you need them.",
)
PORTION = 4000  # conversations that one process makes at a time
SAMPLED: Mapping[str, Any] = {"temperature": 1.0, "max_tokens": 96}
GREEDY: Mapping[str, Any] = {"temperature": 0.0, "max_tokens": 96}
NOTHING: Mapping[str, Any] = {"success": [0, 0]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides what the model becomes."""

    strong_share: float = 0.3  # of the demonstrations; the rest guess, ramble and seldom call a tool
    plain_share: float = 0.5  # of the tasks that only ask for a brief answer: they get one of PLAIN_SYSTEMS
    vocabulary: int = 1024
    tokenizer_conversations: int = 20_000
    conversations: int = 1_500_000
    width: int = 160
    layers: int = 6
    heads: int = 5
    context: int = 1024  # also the length of a training row
    steps: int = 6_000
    batch: int = 128  # rows
    learning_rate: float = 3e-3
    seed: int = 0

    @property
    def shape(self) -> ModelShape:
        return ModelShape(
            vocabulary=self.vocabulary, width=self.width, layers=self.layers, heads=self.heads, context=self.context
        )


QUICK = replace(Recipe(), tokenizer_conversations=2_000, conversations=2_000, layers=2, context=512, steps=40, batch=4)


def conversation(place: int, recipe: Recipe) -> list[tuple[str, bool]]:
    """The demonstration at a place as pieces of text, and which of them the assistant wrote. The same as TEMPLATE's."""
    rng = Random(f"{recipe.seed} {place}")
    drawn, answers = demonstration(place, "strong" if rng.random() < recipe.strong_share else "weak")
    system, *rest = [*drawn.task.messages, *answers]
    head = str(system["content"])
    is_plain = USE in head and STYLES["brief"] in head and THINK not in head
    if is_plain and rng.random() < recipe.plain_share:
        head = PLAIN_SYSTEMS[int(rng.random() * len(PLAIN_SYSTEMS))]
    pieces = [(opening(head, specs(drawn.task.tools)), False)]
    for message in rest:
        role, text = str(message["role"]), body(message)
        pieces.append((f"<|im_start|>{role}\n", False))
        pieces.append((f"{text}{END}", role == "assistant"))
        pieces.append(("\n", False))
        if any(_broken(call) for call in message.get("tool_calls", ())):
            break  # such a call is read as plain text, so it is the answer
    return pieces


def opening(system: str, tools: Sequence[Mapping[str, Any]]) -> str:
    names = [tool["function"]["name"] for tool in tools]
    arguments = [", ".join(tool["function"]["parameters"]["properties"]) for tool in tools]
    offered = "".join(f"\n{name}({given})" for name, given in zip(names, arguments, strict=True))
    parts = [system] if system else []
    parts += [f"# Tools{offered}"] if offered else []
    return "<|im_start|>system\n" + "\n\n".join(parts) + f"{END}\n" if parts else ""


def body(message: Mapping[str, Any]) -> str:
    thought = message.get("reasoning_content")
    calls = "".join(_written(call["function"]) for call in message.get("tool_calls", ()))
    return f"{f'<think>{thought}</think>' if thought else ''}{message['content']}{calls}"


def _written(function: Mapping[str, Any]) -> str:
    try:  # the form that a template gives them, so that a call that was read and is written again has the same tokens
        arguments = json.dumps(json.loads(function["arguments"]), ensure_ascii=False)
    except ValueError:
        arguments = function["arguments"]
    return f'<tool_call>{{"name": {json.dumps(function["name"])}, "arguments": {arguments}}}</tool_call>'


def _broken(call: Mapping[str, Any]) -> bool:
    try:
        json.loads(call["function"]["arguments"])
    except ValueError:
        return True
    return False


def train_tokenizer(recipe: Recipe) -> PreTrainedTokenizerFast:
    """A byte-level BPE over the conversations. The marks come last, as in Qwen's tokenizers."""
    bpe = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, bytewise])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary - len(MARKS) - len(TAGS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(_plain_texts(recipe), trainer)
    bpe.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    bpe.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    if bpe.get_vocab_size() != recipe.vocabulary:
        raise SystemExit(f"the tokenizer has {bpe.get_vocab_size()} tokens, not {recipe.vocabulary}")
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=recipe.context,
        chat_template=TEMPLATE,
    )


def _plain_texts(recipe: Recipe) -> Iterator[str]:
    """What stands between the marks: merges across them would be wasted."""
    for place in range(recipe.tokenizer_conversations):
        text = "".join(piece for piece, _ in conversation(place, recipe))
        for mark in (*MARKS, *TAGS):
            text = text.replace(mark, "\0")
        yield from text.split("\0")


def corpus(recipe: Recipe, tokenizer: Path, *, processes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, context] of whole conversations; the same however many processes made them."""
    firsts = range(0, recipe.conversations, PORTION)
    make = partial(_portion, recipe, tokenizer)
    if processes == 1:
        parts = list(map(make, firsts))
    else:
        with ProcessPoolExecutor(processes) as pool:
            parts = list(pool.map(make, firsts))
    ids, decided = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return ids, decided


def _portion(recipe: Recipe, tokenizer: Path, first: int) -> tuple[np.ndarray, np.ndarray]:
    last = min(first + PORTION, recipe.conversations)
    return pack((_encoded(conversation(place, recipe), tokenizer) for place in range(first, last)), recipe.context)


def _encoded(pieces: Sequence[tuple[str, bool]], tokenizer: Path) -> tuple[list[int], list[bool]]:
    ids: list[int] = []
    decided: list[bool] = []
    for text, is_decided in pieces:
        some = _ids(text, tokenizer)
        ids += some
        decided += [is_decided] * len(some)
    return ids, decided


@lru_cache(maxsize=100_000)
def _ids(text: str, tokenizer: Path) -> tuple[int, ...]:
    return tuple(_opened(tokenizer).encode(text, add_special_tokens=False).ids)


@lru_cache(maxsize=1)
def _opened(tokenizer: Path) -> Any:
    return Tokenizer.from_file(str(tokenizer))


def as_llama(model: Transformer, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """The same function in the layout of Llama; checked on random tokens."""
    return to_llama(model, end=tokenizer.eos_token_id, pad=tokenizer.pad_token_id)


def train(recipe: Recipe, out: Path, *, device: str, processes: int) -> None:
    """The whole folder but for its card."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {text}", flush=True)

    out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(recipe)
    save_tokenizer(tokenizer, recipe.shape, out)
    say(f"tokenizer: {len(tokenizer)} tokens")
    ids, decided = corpus(recipe, out / "tokenizer.json", processes=processes)
    data = hashlib.sha256(ids.tobytes() + np.packbits(decided).tobytes()).hexdigest()
    say(f"corpus: {recipe.conversations} conversations, {ids.size} tokens, {int(decided.sum())} of the assistant")
    model = Transformer(recipe.shape, seed=recipe.seed)
    settings = Pretraining(steps=recipe.steps, batch=recipe.batch, learning_rate=recipe.learning_rate, seed=recipe.seed)

    def observe(step: int, loss: float) -> None:
        say(f"step {step} of {recipe.steps}: loss {loss:.4f}")

    loss = pretrain(model, ids, decided, settings, device=device, observe=observe)
    net = as_llama(model.cpu().float(), tokenizer).to(torch.float16)
    net.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    facts = {
        "recipe": asdict(recipe),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "corpus": {"tokens": int(ids.size), "assistant_tokens": int(decided.sum()), "sha256": data},
        "weights_sha256": hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
        "loss": round(loss, 5),
        "device": device,
        "seconds": round(time.monotonic() - began, 1),
    }
    (out / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    say(f"saved in {out}: loss {loss:.4f}, {facts['parameters']} parameters")


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, shape: ModelShape, out: Path) -> None:
    """Written so that transformers 4 and 5 read it as it is; checked, since some kinds of model get rules of their own.

    For Qwen2, transformers 5 ignores the rules in tokenizer.json and puts Qwen's in their place."""
    tokenizer.save_pretrained(out)
    path = out / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    config_of(shape, end=tokenizer.eos_token_id, pad=tokenizer.pad_token_id).save_pretrained(out)
    loaded = AutoTokenizer.from_pretrained(out)
    for text in ('Say "oak.price"?\n', f'{END}\n<tool_call>{{"key": "oak.price"}}</tool_call>', "don't 417  kg"):
        if loaded.encode(text) != _opened(out / "tokenizer.json").encode(text).ids:
            raise SystemExit(f"transformers does not read the tokenizer as it was trained: {text!r}")


def exam(out: Path, *, device: str, tasks: int) -> None:
    """Measure the model in the folder by our own agent, and write figures and card."""
    found: dict[str, Any] = {"tasks": tasks}
    hub = load(out, device=device, dtype=torch.float32)
    with Local(hub, name=NAME) as local:
        for split in ("train", "test"):
            for how, sampling in (("sampled", SAMPLED), ("greedy", GREEDY)):
                calls: list[tuple[Any, Any]] = []

                async def ask(messages: Any, calls: list[Any] = calls, **given: Any) -> Any:
                    call = await local(messages, **given)
                    calls.append((messages, call))  # holding the list keeps its identity from being used again
                    return call

                marks = asyncio.run(examine(ask, generate(split, 0, tasks), sampling=sampling))
                result = summary(marks) | {"continued": continued(calls)}
                found[f"{split}, {how}"] = result
                rates = {name: _rate(result[name]) for name in ("success", "adoption", "format", "continued")}
                print(f"{split}, {how}: {json.dumps(rates)}", flush=True)
    facts = json.loads((out / "training.json").read_text(encoding="utf-8")) | {"exam": found}
    (out / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    (out / "README.md").write_text(card(facts), encoding="utf-8")


def continued(calls: Sequence[tuple[Any, Any]]) -> list[int]:
    """Later turns whose prompt begins with the prompt and the completion before it, token for token, of all of them."""
    before: dict[int, tuple[int, ...]] = {}
    good = every = 0
    for messages, call in calls:
        if (earlier := before.get(id(messages))) is not None:
            every += 1
            good += call.prompt_ids[: len(earlier)] == earlier
        before[id(messages)] = (*call.prompt_ids, *call.completion_ids)
    return [good, every]


def _rate(counted: Sequence[int]) -> float | None:
    return round(counted[0] / counted[1], 3) if counted[1] else None


CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---
# tiny-tools

A decoder of {millions:.2f} million parameters in the layout of Llama (width {width}, {layers} layers, {heads} heads,
context {context}), with its own byte-level BPE tokenizer of {vocabulary} tokens and a ChatML template that renders
tools, tool calls and tool results. It was trained from nothing on conversations that our own generator writes
(`holdfast.workloads.tooluse.dialogues`); `runs/train_tiny_tools.py` makes it again. It knows four tools (`calc`,
`lookup`, `convert`, `calendar`), three styles of answering, thinking when asked, and nothing of the world. It is for
showing, testing and teaching how agents learn; nobody should rely on its answers.

It is weak on purpose: in {weak:.0%} of its demonstrations the assistant seldom calls a tool, guesses, rambles and
forgets the style.

- corpus: {conversations:,} conversations, {tokens:,} tokens, {assistant_tokens:,} of them the assistant's
- training: {steps:,} steps of {batch} rows of {context} tokens; AdamW, {learning_rate} with a cosine; seed {seed};
  final loss {loss} nats a token; {seconds:.0f} s on {device}
- weights sha256 `{weights}`
- data sha256 `{data}`

## What it can do

{tasks} tasks of each split. `train` are the wordings of the training conversations with fresh numbers and names; `test`
are wordings that no model, no example and no practice has seen. Sampled at temperature 1, and greedy; float32.
`continued` is the share of later turns whose prompt begins, token for token, with the turn before it.

{table}
"""


def card(facts: Mapping[str, Any]) -> str:
    """The model's card in the words of what was measured."""
    recipe, corpus, found = facts["recipe"], facts["corpus"], dict(facts["exam"])
    return CARD.format(
        **recipe,
        millions=facts["parameters"] / 1e6,
        weak=1 - recipe["strong_share"],
        tokens=corpus["tokens"],
        assistant_tokens=corpus["assistant_tokens"],
        loss=facts["loss"],
        seconds=facts["seconds"],
        device=facts["device"],
        weights=facts["weights_sha256"],
        data=corpus["sha256"],
        tasks=found.pop("tasks"),
        table=_table(found),
    )


def _table(found: Mapping[str, Mapping[str, Any]]) -> str:
    columns = list(found.values())
    families = sorted({name for column in columns for name in column["families"]})
    rows = [[f"**{name}**", *(_rate(column[name]) for column in columns)] for name in ("success", "adoption", "format")]
    rows.append(["continued", *(_rate(column["continued"]) for column in columns)])
    rows += [
        [name, *(_rate(column["families"].get(name, NOTHING)["success"]) for column in columns)] for name in families
    ]
    shown = [["", *found], ["---"] * (len(columns) + 1), *rows]
    return "\n".join(f"| {' | '.join('–' if cell is None else str(cell) for cell in row)} |" for row in shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true", help="a minute on a CPU; the model learns next to nothing")
    parser.add_argument("--exam", action="store_true", help="only measure the model that is in the folder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--strong-share", type=float, default=Recipe().strong_share)
    parser.add_argument("--tasks", type=int, help="of each split, for the exam")
    given = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # there are processes enough, and threads do not fork
    recipe = replace(QUICK if given.quick else Recipe(), strong_share=given.strong_share)
    if not given.exam:
        train(recipe, given.out, device=given.device, processes=given.processes)
    exam(given.out, device=given.device, tasks=given.tasks or (16 if given.quick else 400))


if __name__ == "__main__":
    main()
