"""How many stored rollouts a second a changed scorer goes over: read, scored, kept beside, compared.

What is expected is expected of the processor, so that what else runs on the machine does not count; the clock's figure
stands beside it.
The rollouts are collected by an agent without a model, so that each has its row, attempt, spans and signals as a run
leaves them.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import holdfast as hf
from parts import report
from parts.report import Figures, progress, rounded

WANTED = 5_000.0  # a second
MEANINGS = {
    "rescored_per_cpu_s": "stored rollouts a second of one core under a plain scorer, from reading to comparison",
    "rescored_per_s": "the same by the clock, on this machine as busy as it was",
    "rollouts": "that were scored again",
    "rescore_s": "what it took by the clock, the best of five",
    "collect_s": "what it took to collect them",
    "changed": "rollouts that the two scorers see differently",
    "wants": "what is expected, and whether it is so",
}


def agent(task: hf.TaskItem, ctx: hf.Context) -> str:
    number = int(task["number"])
    return f"{number}." if number % 10 == 0 else str(number)


def exact(task: hf.TaskItem, answer: str) -> float:
    return float(answer == task.expected)


def lenient(task: hf.TaskItem, answer: str) -> float:
    return float(answer.rstrip(".") == task.expected)


def measure(quick: bool) -> Figures:
    count = 1_000 if quick else 10_000
    rows = [{"number": number, "expected": str(number)} for number in range(count)]
    with TemporaryDirectory() as folder:
        store = str(Path(folder) / "store.sqlite")
        progress(f"collecting {count:,} rollouts")
        began = time.perf_counter()
        run = hf.collect(agent, rows, scorers=[hf.Scorer(exact, gate=True)], safety=hf.Waived("numbers"), store=store)
        collect_s = time.perf_counter() - began
        took, busy, changed = [], [], 0
        for _ in range(5):
            began, spent = time.perf_counter(), time.process_time()
            found = hf.rescore(run, [hf.Scorer(lenient, gate=True)])
            took.append(time.perf_counter() - began)
            busy.append(time.process_time() - spent)
            changed = found.comparison.became_right
    rate = count / min(busy)
    return {
        "rescored_per_cpu_s": rounded(rate),
        "rescored_per_s": rounded(count / min(took)),
        "rollouts": count,
        "rescore_s": rounded(min(took)),
        "collect_s": rounded(collect_s),
        "changed": changed,
        "wants": {"rescored_per_cpu_s": {"at least": WANTED, "is_so": rate >= WANTED}},
    }


if __name__ == "__main__":
    report.main("How fast stored rollouts are scored again.", measure, MEANINGS)
