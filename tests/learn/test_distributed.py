"""One trainer over two processes: the numbers of one process, the files of one process, and the same after a kill."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from holdfast.learn import distributed
from holdfast.learn.batch import Samples
from holdfast.learn.distributed import ShardedTrainer, trainer_of
from holdfast.learn.objective import Objective
from holdfast.learn.train import OptimizerConfig, Settings, Trainer
from holdfast.policies import hub
from holdfast.policies.causal_lm import CausalConfig, CausalLM
from holdfast.policies.chat_template import ByteTemplate
from holdfast.policies.hub import Hub

CONFIG: dict[str, Any] = {
    "model_type": "qwen3", "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}  # fmt: skip
RL = Settings(
    objective=Objective(reference_kl=0.1, entropy=0.01),
    optimizer=OptimizerConfig(learning_rate=3e-3),
    epochs=1,
    minibatch=6,
    max_tokens_per_batch=60,
    max_kl=10.0,
    is_measured=True,
)


def model(lora: int = 0) -> Hub:
    config = CausalConfig.of(CONFIG)
    assert config is not None
    torch.manual_seed(0)
    made = Hub(CausalLM(config), ByteTemplate())
    return hub.adapt(made, lora, seed=0) if lora else made


def batch(step: int) -> Samples:
    """Twelve texts of three to twenty tokens; the second half of each was decided."""
    rng = np.random.default_rng(step)
    lengths = rng.integers(3, 21, 12)
    action_mask = np.concatenate([np.arange(n) >= n // 2 for n in lengths])
    return Samples(
        bounds=np.concatenate(([0], np.cumsum(lengths))),
        ids=rng.integers(61, size=int(lengths.sum())).astype(np.int32),
        action_mask=action_mask,
        rollouts=tuple(map(str, range(12))),
        advantages=np.where(action_mask, rng.normal(size=len(action_mask)), 0.0).astype(np.float32),
    )


def learnt(trainer: Trainer, steps: range) -> list[tuple[float, float, float]]:
    made = [trainer.step(batch(step)) for step in steps]
    assert all(one.updates == 2 and one.restored is None for one in made)
    return [(one.loss or 0.0, one.grad_norm or 0.0, one.delta_norm) for one in made]


def started(settings: Settings, lora: int = 0) -> tuple[Trainer, Hub]:
    own = model(lora)
    return trainer_of(own, settings, seed=7, reference=model() if settings.objective.reference_kl else None), own


def _rank(rank: int, meeting: Path, body: Callable[[Path], Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting / 'met'}", rank=rank, world_size=2)
    if rank:
        distributed.serve()
    else:
        (meeting / "answer").write_bytes(pickle.dumps(body(meeting)))
        distributed.leave()
    os._exit(0)  # a fork: nothing of the parent is cleaned up here


def in_two(body: Callable[[Path], Any], meeting: Path) -> Any:
    import torch.distributed.fsdp  # noqa: F401  (once, before the processes part)

    meeting.mkdir(exist_ok=True)
    (meeting / "met").unlink(missing_ok=True)
    fork = multiprocessing.get_context("fork").Process
    ranks = [fork(target=_rank, args=(rank, meeting, body)) for rank in range(2)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(timeout=60)
        one.kill()
    answer = meeting / "answer"
    return pickle.loads(answer.read_bytes()) if answer.is_file() else None


def whole(own: Hub) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in own.named_parameters() if p.requires_grad}


class Cancelled(Exception):
    pass


def a_step_then_killed(folder: Path) -> None:
    """Saves after a step; the next is cancelled once, and then the process dies in the middle of it."""
    trainer, own = started(RL)
    first, before = learnt(trainer, range(1)), whole(own)
    trainer.save(folder / "saved", created_at=0.0)
    np.savez(folder / "first.npz", numbers=np.array(first), **before)
    pieces = iter(range(4))

    def stop() -> None:
        if next(pieces, None) is None:
            raise Cancelled

    trainer.pause_point = stop
    with pytest.raises(Cancelled):
        trainer.step(batch(1))
    assert all(np.array_equal(before[name], now) for name, now in whole(own).items())
    pieces = iter(range(4))
    trainer.pause_point = lambda: os.kill(os.getpid(), 9) if next(pieces, None) is None else None
    trainer.step(batch(1))


def resumed_and_not(folder: Path) -> dict[str, Any]:
    """From what the killed one left, and once more from the beginning, in other pieces, and with adapters."""
    trainer, own = started(RL)
    trainer.load(folder / "saved")
    found: dict[str, Any] = {"resumed": (learnt(trainer, range(1, 3)), whole(own))}
    trainer, own = started(RL)
    found["through"] = (learnt(trainer, range(3))[1:], whole(own))
    trainer, own = started(replace(RL, max_tokens_per_batch=500))
    found["large pieces"] = (learnt(trainer, range(3))[1:], whole(own))
    trainer, own = started(RL, lora=2)
    found["lora"] = (learnt(trainer, range(1)), whole(own))
    found["logprobs"] = trainer.logprobs(batch(9))
    assert isinstance(trainer, ShardedTrainer)
    return found


def test_two_processes_learn_what_one_learns_and_go_on_after_a_kill(tmp_path: Path) -> None:
    assert in_two(a_step_then_killed, tmp_path) is None  # killed
    found = in_two(resumed_and_not, tmp_path)

    alone, own = started(RL)
    first = np.load(tmp_path / "first.npz")
    np.testing.assert_allclose(first["numbers"], learnt(alone, range(1)), atol=1e-5, rtol=1e-5)
    expected, weights = learnt(alone, range(1, 3)), whole(own)
    for name in ("through", "large pieces"):
        np.testing.assert_allclose(found[name][0], expected, atol=1e-5, rtol=1e-5, err_msg=name)
        for one, there in found[name][1].items():
            np.testing.assert_allclose(there, weights[one], atol=1e-5, err_msg=f"{name} {one}")
    assert found["resumed"][0] == found["through"][0]  # to the last bit
    assert all(np.array_equal(there, found["through"][1][one]) for one, there in found["resumed"][1].items())

    alone, own = started(RL)
    alone.load(tmp_path / "saved")  # what two saved, one goes on with
    np.testing.assert_allclose(learnt(alone, range(1, 3)), expected, atol=1e-5, rtol=1e-5)
    alone, own = started(RL, lora=2)
    np.testing.assert_allclose(found["lora"][0], learnt(alone, range(1)), atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(found["logprobs"], alone.logprobs(batch(9)), atol=1e-5)
