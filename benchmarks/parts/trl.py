"""A GRPO step of ours and one of TRL's GRPOTrainer, taking turns, on the same weights and the same sizes.

The peer makes a tiny Llama; ours takes its weights, and must give the same log-probs for a probe before anything is
timed. Both sample from the model, reward the share of even tokens and update once, in float32 on one thread; in both a
prompt is new in every step. What only ours is given is in `parts/grpo.py`.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from holdfast.learn.grpo import GRPO
from holdfast.learn.train import OptimizerConfig, Settings, Trainer
from holdfast.policies.decoder import Decoder
from holdfast.policies.lm import Transformer
from holdfast.policies.sampling import Sampling
from parts.grpo import TINY, Work, learn, timed
from parts.llama import transformer
from parts.peer import Peer, PeerAbsent
from parts.report import Figures, progress, rounded

MEANINGS = {
    "grpo_vs_trl": "times fewer CPU-seconds a step than TRL: same Llama weights, 64 answers by 8, 32 + 32 tokens",
    "grpo_vs_trl_tokens": "the same by sampled tokens per CPU-second; answers may end early",
    "grpo_step_s_beside_trl": "CPU-seconds of our step with those weights, in turns with it",
    "grpo_tokens_per_s_beside_trl": "our sampled tokens per CPU-second of the whole step",
    "trl_step_s": "its CPU-seconds a step: sampling with transformers, reward, loss, update",
    "trl_tokens_per_s": "its sampled tokens per CPU-second of the whole step",
    "trl": "its version, or why it was not measured",
}


def measure(quick: bool) -> Figures:
    torch.set_num_threads(1)
    rounds, steps = (2, 3) if quick else (5, 4)
    progress("grpo: TRL")
    try:
        peer = Peer("grpo_trl.py")
        ours, theirs = laps(peer, rounds, steps)
        peer.close()
    except PeerAbsent as absent:
        return dict.fromkeys(MEANINGS) | {"trl": str(absent)}
    (our_s, our_rate), (their_s, their_rate) = map(typical, (ours, theirs))
    figures = (their_s / our_s, our_rate / their_rate, our_s, our_rate, their_s, their_rate)
    return dict(zip(MEANINGS, map(rounded, figures), strict=False)) | {"trl": peer.about["version"]}


def laps(peer: Peer, rounds: int, steps: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    work = Work(shape=TINY, **peer.about["sizes"])
    model = transformer(work.shape, load_file(Path(peer.about["folder"]) / "model.safetensors"))
    probe = model(torch.arange(32, 64)[None])[0].log_softmax(-1)
    assert torch.allclose(probe, torch.tensor(peer.about["probe"]), atol=1e-4), "the weights are not the same"
    step = Step(model, work)
    step.lap(2)  # compiles the kernels
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(peer.lap(steps))
        ours.append(step.lap(steps))
    return ours, theirs


class Step:
    """Ours, as a run has it: one decoder that takes over the moved weights, one trainer."""

    def __init__(self, model: Transformer, work: Work) -> None:
        self.model, self.work, self.rng = model, work, np.random.default_rng(0)
        self.decoder = Decoder(model, slots=work.batch)
        self.trainer = Trainer(
            model, Settings(objective=GRPO().objective, optimizer=OptimizerConfig(learning_rate=1e-5)), seed=0
        )

    def lap(self, steps: int) -> dict[str, Any]:
        laps = [timed(self._one) for _ in range(steps)]
        return {"tokens": [tokens for tokens, _ in laps], "cpu_s": [cpu_s for _, cpu_s in laps]}

    def _one(self) -> int:
        work = self.work
        asked = self.rng.integers(33, 127, (work.batch // work.group, work.prompt)).repeat(work.group, axis=0).tolist()
        keys = self.rng.integers(0, 2**31, work.batch).tolist()
        self.decoder.load(self.model)
        answers = self.decoder.generate(asked, Sampling(max_tokens=work.completion), keys)
        learn(self.trainer, asked, answers, work)
        return sum(len(answer.ids) for answer in answers)


def typical(laps: list[dict[str, Any]]) -> tuple[float, float]:
    """CPU-seconds of a step, and tokens per CPU-second."""
    cpu_s = [one for lap in laps for one in lap["cpu_s"]]
    tokens = [one for lap in laps for one in lap["tokens"]]
    return median(cpu_s), median(n / s for n, s in zip(tokens, cpu_s, strict=True))
