"""Reward functions of TRL go through collect, learn and prove unchanged: one of its own, one as its guide writes them.

Run by an interpreter that has Holdfast and the package: `python tests/peers/trl_reward.py`.
"""

from __future__ import annotations

import re
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trl.rewards import get_soft_overlong_punishment

import holdfast as hf


def sentence_reward(prompts: Any, completions: Any, ground_truth: Any, **kwargs: Any) -> list[float]:
    """As it is handed to GRPOTrainer(reward_funcs=[…]): conversational, with a column of the dataset."""
    assert len(prompts) == len(completions) == len(ground_truth) == len(kwargs["level"])
    said = [completion[0]["content"] for completion in completions]
    return [float(re.fullmatch(r"The answer is \d+\.", one) is not None) for one in said]


async def agent(task: Any, ctx: hf.Context) -> str:
    call = await ctx.ask(task["prompt"], max_tokens=24, temperature=1.0)
    return str(call.response.get("content") or "")


def main() -> None:
    print("trl", version("trl"))
    names = ["Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal"]
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{names[n % 8]}{'!' * (n // 8)} What is {n + 10} + {n}?"}],
            "ground_truth": str(2 * n + 10),
            "level": n % 3,
        }
        for n in range(40)
    ]
    tasks = hf.tasks(rows, held_out=0.5, expected="ground_truth", input=["prompt", "level"])
    short = hf.adapters.trl(get_soft_overlong_punishment(16, 8), weight=0.1)
    # Its expected answers are no answers that it pays: it asks for a sentence.
    vars(sentence_reward)["gold_is_answer"] = False
    scorers = [hf.adapters.trl(sentence_reward, gate=True), short]
    with tempfile.TemporaryDirectory() as folder:
        call: dict[str, Any] = {"scorers": scorers, "policy": hf.Model("sprout-weak"), "workers": 8}
        run = hf.collect(agent, tasks.take(4), store=Path(folder) / "one.sqlite", **call)
        assert len(run.rollouts()) == 8
        grpo = hf.GRPO(lr=1e-3, steps=2, tasks=6, samples=6)
        store = Path(folder) / "two.sqlite"
        result = hf.improve(agent, tasks, name="sums", algorithm=grpo, seeds=1, store=store, **call)
        assert result.candidate is not None and result.proof is not None, result
        found = result.proof.comparisons["success"]
        print(f"sentence_reward: {found.difference:+.3f} on {len(tasks.held_out)} held-out tasks; {result.decision}")
        print(f"{len(result.run.rollouts())} rollouts, the last one: {result.run.rollouts()[-1]['answer']!r}")


if __name__ == "__main__":
    main()
