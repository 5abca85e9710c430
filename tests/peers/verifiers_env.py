"""Environments of the verifiers package go through collect, learn and prove unchanged.

Run by an interpreter that has Holdfast and the package: `python tests/peers/verifiers_env.py`. Which kinds are played
depends on the release: task sets (verifiers.v1), and datasets with a rubric until 0.3.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import holdfast as hf

SAMPLING = {"max_tokens": 24, "temperature": 1.0}


def task_set() -> Any:
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    config = {"taskset": {"id": "sums_v1"}, "agent": {"runtime": {"type": "subprocess"}}}
    return load_environment(resolve_env_config(config))


def sentence(completion: Any, **_: Any) -> float:
    return float(re.fullmatch(r"The answer is \d+\.", str(completion[-1]["content"])) is not None)


def brief(completion: Any, **_: Any) -> float:
    return float(0 < len(str(completion[-1]["content"])) < 24)


def dataset() -> Any:
    import verifiers as vf
    from datasets import Dataset

    rows = [
        {"question": f"Case {'ab' * (n % 7)}{n}: what is {n + 10} + {2 * n}?", "answer": str(3 * n + 10)}
        for n in range(60)
    ]
    rubric = vf.Rubric(funcs=[sentence, brief], weights=[1.0, 0.1])
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=rubric)


def tools() -> Any:
    import verifiers as vf
    from datasets import Dataset

    def calc(expression: str) -> str:
        """Evaluate an arithmetic expression.

        Args:
            expression: such as 17 + 25
        """
        return str(eval(expression, {"__builtins__": {}}))

    def used(completion: Any, **_: Any) -> float:
        return float(any(one["role"] == "tool" for one in completion))

    def right(completion: Any, answer: str, **_: Any) -> float:
        return float(answer in str(completion[-1]["content"]))

    rows = [{"question": f"What is {n + 10} * {n + 3}?", "answer": str((n + 10) * (n + 3))} for n in range(60)]
    rubric = vf.Rubric(funcs=[right, used], weights=[1.0, 0.2])
    return vf.ToolEnv(tools=[calc], max_turns=4, dataset=Dataset.from_list(rows), rubric=rubric)


def through(name: str, env: Any, gate: str, folder: Path) -> None:
    begun = time.perf_counter()
    made = hf.adapters.verifiers(env, gate=gate, held_out=0.5, limit=40, sampling=SAMPLING)
    assert made.tasks is not None
    model: dict[str, Any] = {"policy": hf.Model("sprout-weak"), "store": folder / f"{name}.sqlite", "workers": 8}
    run = hf.collect(made.agent, made.tasks.take(4), scorers=made.scorers, **model)
    assert len(run.rollouts()) == 8, run
    grpo = hf.GRPO(lr=1e-3, steps=2, tasks=6, samples=6)
    result = hf.improve(made.agent, made.tasks, scorers=made.scorers, name=name, algorithm=grpo, seeds=1, **model)
    assert result.candidate is not None and result.proof is not None, result
    found = result.proof.comparisons["success"]
    print(f"{name}: {type(env).__name__}, {len(result.run.rollouts())} rollouts, {time.perf_counter() - begun:.0f} s")
    print(f"  {gate}: {found.difference:+.3f} on {len(made.tasks.held_out)} held-out tasks; {result.decision}")
    print(f"  an answer: {result.run.rollouts()[-1]['answer']}")


def main() -> None:
    print("verifiers", version("verifiers"))
    sys.path.insert(0, str(Path(__file__).parent))
    chosen = sys.argv[1:]
    makers = {"sums": (task_set, "sentence")}
    if find_spec("verifiers.legacy") or find_spec("verifiers.envs"):
        makers |= {"dataset": (dataset, "sentence"), "tools": (tools, "right")}
    with tempfile.TemporaryDirectory() as folder:
        for name, (make, gate) in makers.items():
            if not chosen or name in chosen:
                through(name, make(), gate, Path(folder))


if __name__ == "__main__":
    main()
