"""DSPy's MIPROv2 on problems that another process holds; run by the peers' interpreter. It speaks as prompts_gepa does.

Zero-shot: it searches instructions alone. Who writes them is the common proposer, so neither its examples for a
proposing model nor that model are needed. As its automatic mode does for so few tasks, each trial takes all of them;
trials and candidates are in the ratio that it recommends.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from importlib.metadata import version

answers, sys.stdout = sys.stdout, sys.stderr  # whatever is printed is not an answer
warnings.filterwarnings("ignore")

import dspy  # noqa: E402

logging.disable(logging.CRITICAL)


def ask(question: dict[str, object]) -> object:
    print(json.dumps(question), file=answers, flush=True)
    return json.loads(sys.stdin.readline())


class Nobody(dspy.BaseLM):
    """A model that is never asked."""

    def __init__(self) -> None:
        super().__init__(model="none")

    def forward(self, prompt=None, messages=None, **_):
        raise AssertionError("nobody is asked")


class Agent(dspy.Module):
    def __init__(self, base: str) -> None:
        super().__init__()
        self.answer = dspy.Predict(dspy.Signature("task -> score", base))

    def forward(self, task: int) -> dspy.Prediction:
        return dspy.Prediction(score=known(self.answer.signature.instructions, task))


table: dict[str, dict[int, float]] = {}
tasks: list[int] = []  # of the search that runs


def known(prompt: str, task: int) -> float:
    """All tasks of a trial are asked for at once, at its first one."""
    if prompt not in table:
        scores = ask({"evaluate": {"prompt": prompt, "tasks": tasks}})
        table[prompt] = dict(zip(tasks, scores, strict=True))
    return table[prompt][task]


class Mipro(dspy.MIPROv2):
    def _bootstrap_fewshot_examples(self, *_: object, **__: object) -> None:
        return None

    def _propose_instructions(self, program, *_: object, num_instruct_candidates: int, **__: object):
        base = program.answer.signature.instructions
        return {0: [base, *(ask({"propose": {"parent": base}}) for _ in range(num_instruct_candidates - 1))]}


def search(job: dict) -> list[tuple[int, str]]:
    table.clear()
    tasks[:] = job["val"]
    trials = job["rollouts"] // len(tasks) - 1  # after one of the prompt to begin with
    optimizer = Mipro(
        metric=lambda example, prediction, trace=None: prediction.score,
        auto=None,
        num_candidates=max(2, int(trials / 1.5)),
        max_bootstrapped_demos=0,
        max_labeled_demos=0,
        num_threads=1,
        seed=job["seed"] + 1,
    )
    examples = [dspy.Example(task=task).with_inputs("task") for task in tasks]
    best = optimizer.compile(Agent(job["base"]), trainset=examples, valset=examples, num_trials=trials, minibatch=False)
    return [(len(tasks) * (trials + 1), best.answer.signature.instructions)]


dspy.configure(lm=Nobody())
print(json.dumps({"version": version("dspy")}), file=answers, flush=True)
while line := sys.stdin.readline():
    print(json.dumps({"done": search(json.loads(line))}), file=answers, flush=True)
