"""TRL's GRPOTrainer on a tiny Llama with random weights; run by the peers' interpreter.

Says `{"version": …, "folder": …, …}` once it has put the weights there, with the sizes of a step and the log-probs of a
probe, so that ours can take the same weights and prove it. Then each line on stdin is a number of steps, answered by
one JSON line with the CPU seconds and the sampled tokens of each, after one that only warms up. One thread, float32,
everything on that costs nothing and off that costs time: no reference model, no checkpoints, no logs.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
answers, sys.stdout = sys.stdout, sys.stderr  # whatever the imports print is not an answer

import numpy as np  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from transformers import (  # noqa: E402
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

BATCH, GROUP, PROMPT, COMPLETION = 64, 8, 32, 32  # answers a step, answers to a prompt, tokens, tokens at most
VOCABULARY, END = 264, 263  # bytes, then marks; the last ends an answer
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": END,
    "pad_token_id": 0,
}


def weights(folder: Path) -> list[list[float]]:
    """Put a model of 1.04 M parameters there; the log-probs it gives after each token of a probe."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**LLAMA))
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    with torch.no_grad():
        return model(torch.arange(32, 64)[None]).logits[0].log_softmax(-1).tolist()


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte is a token. Bytes that cannot be printed are written as the alphabet of byte-level tokenizers has it."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    ids = {names[byte]: byte for byte in range(256)} | {f"<{n}>": n for n in range(256, VOCABULARY)}
    plain = Tokenizer(models.BPE(vocab=ids, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=f"<{END}>", pad_token=names[0])


class Clock(TrainerCallback):
    """CPU time when each step is over."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, args, state, control, **_) -> None:
        self.times.append(time.process_time())


def train(folder: Path, steps: int) -> dict[str, object]:
    torch.set_num_threads(1)
    rng, clock, tokens = np.random.default_rng(steps), Clock(), []
    asked = [bytes(row).decode() for row in rng.integers(33, 127, ((steps + 1) * BATCH // GROUP, PROMPT), np.uint8)]

    def even(completion_ids: list[list[int]], **_) -> list[float]:
        """The share of even tokens: every group has spread."""
        tokens.append(sum(map(len, completion_ids)))
        return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]

    trainer = GRPOTrainer(
        model=LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32),
        processing_class=PreTrainedTokenizerFast.from_pretrained(folder),
        reward_funcs=even,
        train_dataset=Dataset.from_dict({"prompt": asked}),
        callbacks=[clock],
        args=settings(folder, steps + 1),
    )
    trainer.train()
    read = {len(ids) for ids in trainer.processing_class(asked)["input_ids"]}
    assert read == {PROMPT}, f"prompts of {read} tokens"
    return {"cpu_s": np.diff(clock.times).tolist(), "tokens": tokens[1:], "steps": steps}


def settings(folder: Path, steps: int) -> GRPOConfig:
    return GRPOConfig(
        output_dir=str(folder / "out"),
        use_cpu=True,
        bf16=False,
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        num_generations=GROUP,
        steps_per_generation=1,
        max_completion_length=COMPLETION,
        temperature=1.0,
        top_k=0,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
    place = Path(name)
    probe = weights(place)
    sizes = {"batch": BATCH, "group": GROUP, "prompt": PROMPT, "completion": COMPLETION}
    say({"version": version("trl"), "folder": name, "sizes": sizes, "probe": probe})
    for line in sys.stdin:
        say(train(place, int(line)))
