"""GEPA on problems that another process holds; run by the peers' interpreter.

Says `{"version": …}`, then each line on stdin is one search: `{"base": …, "train": […], "val": […], "rollouts": …,
"seed": …}`, tasks by number. On the way it asks `{"evaluate": {"prompt": …, "tasks": […]}}` and
`{"propose": {"parent": …}}`, each answered by one line. The end is `{"done": [[rollouts, prompt], …]}`: which prompt it
would have returned after how many. All settings are its defaults. Its cache stays
off, as it is by default: it takes tasks of the training and of the validation set with the same index for the same.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version

answers, sys.stdout = sys.stdout, sys.stderr  # whatever is printed is not an answer

import gepa  # noqa: E402
from gepa.core.adapter import EvaluationBatch  # noqa: E402

NAME = "system"


class Silent:
    def log(self, message: str, *_: object, **__: object) -> None:
        pass


class Adapter:
    """Tells every prompt's outcome from the table, and counts."""

    def __init__(self, val: list[int]) -> None:
        self.val, self.count, self.means, self.path = val, 0, {}, []

    def evaluate(self, batch: list[int], candidate: dict[str, str], capture_traces: bool = False) -> EvaluationBatch:
        prompt = candidate[NAME]
        scores = ask({"evaluate": {"prompt": prompt, "tasks": list(batch)}})
        self.count += len(batch)
        if list(batch) == self.val:
            self.means[prompt] = sum(scores) / len(scores)
            self.path.append((self.count, max(self.means, key=self.means.get)))  # the first of the best, as it does
        traces = list(zip(batch, scores, strict=True)) if capture_traces else None
        return EvaluationBatch(outputs=list(scores), scores=list(scores), trajectories=traces)

    def make_reflective_dataset(self, candidate, eval_batch, components):
        rows = [{"Inputs": task, "Feedback": f"score {score}"} for task, score in eval_batch.trajectories]
        return {NAME: rows}

    def propose_new_texts(self, candidate, reflective_dataset, components_to_update):
        return {NAME: ask({"propose": {"parent": candidate[NAME]}})}


def ask(question: dict[str, object]) -> object:
    print(json.dumps(question), file=answers, flush=True)
    return json.loads(sys.stdin.readline())


def search(job: dict) -> list[tuple[int, str]]:
    adapter = Adapter(job["val"])
    gepa.optimize(
        seed_candidate={NAME: job["base"]},
        trainset=job["train"],
        valset=job["val"],
        adapter=adapter,
        max_metric_calls=job["rollouts"],
        seed=job["seed"],
        logger=Silent(),
    )
    return adapter.path


print(json.dumps({"version": version("gepa")}), file=answers, flush=True)
while line := sys.stdin.readline():
    print(json.dumps({"done": search(json.loads(line))}), file=answers, flush=True)
