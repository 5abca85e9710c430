"""A small policy that learns which of several patches to hand in, from nothing but what the reward pays.

It sees what one who makes patches can see of them: how much they change and where, and whether the visible tests are
content. It does not see the hidden check, the label, or any finding of the reward's. It is a softmax over a small
network's values, learnt by the policy gradient with the group's own mean as the baseline (GRPO, arXiv:2402.03300).
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.coding.tasks import RepairTask
from holdfast.contracts.errors import BadInput
from holdfast.reward.diff.tamper import is_check

Vector = NDArray[np.float64]
WORD = re.compile(r"\w+|[^\w\s]")
FEATURES = (
    "visible tests are content",
    "words added to the code",
    "words removed from the code",
    "lines of comments added",
    "functions added",
    "classes added",
    "branches added",
    "tries added",
    "imports added",
    "strings added",
    "special methods added",
    "calls added",
    "statements added outside of functions",
    "numbers added that the tests have",
    "words added to tests",
    "words removed from tests",
    "other files touched",
    "code no longer parses",
)


def features(task: RepairTask, files: Mapping[str, str], *, is_content: bool) -> Vector:
    """What can be seen of a patch, as numbers; counts as logarithms."""
    before, after = task.broken, files.get(task.path, "")
    added, removed = _words(before, after)
    tests_added, tests_removed = _words(task.tests, files.get(task.tests_path, ""))
    others = [path for path in files if path not in task.files and is_check(path)]
    old, new = _counts(before), _counts(after)
    grown = [max(0, new[name] - old[name]) for name in new]
    comments = max(0, after.count("#") - before.count("#"))
    shown = set(WORD.findall(task.tests))
    told = [word for word in added if word.isdigit() and word in shown]
    counts = [len(added), len(removed), comments, *grown, len(told), len(tests_added), len(tests_removed), len(others)]
    return np.array([float(is_content), *np.log1p(counts), float(not _parses(after))])


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchChoice:
    """One task to choose for: what is seen of each patch, and what each would earn."""

    seen: Vector  # [patches, features]
    rewards: Vector  # [patches]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """How it is taught."""

    steps: int = 400
    tasks: int = 8  # a step
    samples: int = 8  # a task
    rate: float = 0.02
    entropy: float = 0.002  # what keeps it looking around
    width: int = 16


class Chooser:
    """value(x) = w₂ · tanh(W₁ x + b₁) + w · x, over features that are scaled by what was seen in practice."""

    def __init__(self, seen: Vector, *, width: int, rng: np.random.Generator) -> None:
        self.mean, self.scale = seen.mean(axis=0), seen.std(axis=0) + 1e-6
        size = seen.shape[1]
        self.weights = [
            rng.normal(0.0, 1.0 / np.sqrt(size), (size, width)),
            np.zeros(width),
            rng.normal(0.0, 0.1 / np.sqrt(width), width),
            np.zeros(size),
        ]

    def probabilities(self, seen: Vector) -> Vector:
        """How likely each patch is to be handed in."""
        return self._forward(seen)[2]

    def gradient(self, seen: Vector, pulls: Vector) -> list[Vector]:
        """Of Σ pullsᵢ log πᵢ, for each of the weights."""
        x, hidden, chances = self._forward(seen)
        d_values = pulls - pulls.sum() * chances
        d_hidden = np.outer(d_values, self.weights[2]) * (1.0 - hidden**2)
        return [x.T @ d_hidden, d_hidden.sum(axis=0), hidden.T @ d_values, x.T @ d_values]

    def _forward(self, seen: Vector) -> tuple[Vector, Vector, Vector]:
        x = (seen - self.mean) / self.scale
        hidden = np.tanh(x @ self.weights[0] + self.weights[1])
        values = hidden @ self.weights[2] + x @ self.weights[3]
        chances = np.exp(values - values.max())
        return x, hidden, chances / chances.sum()


def learn(choices: Sequence[PatchChoice], how: Lessons, *, rng: np.random.Generator) -> Chooser:
    """Hand in, be paid, and lean towards what paid more than the rest of the group."""
    if not choices:
        raise BadInput("chooser", why="there is nothing to practise on")
    chooser = Chooser(np.concatenate([one.seen for one in choices]), width=how.width, rng=rng)
    first = [np.zeros_like(one) for one in chooser.weights]
    second = [np.zeros_like(one) for one in chooser.weights]
    for step in range(1, how.steps + 1):
        total = [np.zeros_like(one) for one in chooser.weights]
        for place in rng.integers(len(choices), size=how.tasks):
            pulls = _pulls(chooser, choices[place], how, rng)
            for whole, part in zip(total, chooser.gradient(choices[place].seen, pulls), strict=True):
                whole += part / how.tasks
        for weight, gradient, m, v in zip(chooser.weights, total, first, second, strict=True):  # Adam, uphill
            m += 0.1 * (gradient - m)
            v += 0.001 * (gradient**2 - v)
            weight += how.rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    return chooser


def _pulls(chooser: Chooser, choice: PatchChoice, how: Lessons, rng: np.random.Generator) -> Vector:
    """For each patch, how much its log-probability is to rise: its advantage as often as it was drawn."""
    chances = chooser.probabilities(choice.seen)
    drawn = rng.choice(len(chances), size=how.samples, p=chances)
    rewards = choice.rewards[drawn]
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    pulls = np.bincount(drawn, weights=advantages, minlength=len(chances)) / how.samples
    entropy = -(chances * np.log(chances + 1e-12)).sum()
    bonus: Vector = pulls - how.entropy * chances * (np.log(chances + 1e-12) + entropy)
    return bonus


def _words(before: str, after: str) -> tuple[list[str], list[str]]:
    """Words that came and words that went."""
    old, new = WORD.findall(before), WORD.findall(after)
    added, removed = [], []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            removed += old[i1:i2]
            added += new[j1:j2]
    return added, removed


def _counts(text: str) -> dict[str, int]:
    nodes = list(ast.walk(ast.parse(text))) if _parses(text) else []
    kinds: dict[str, type | tuple[type, ...]] = {
        "functions": ast.FunctionDef,
        "classes": ast.ClassDef,
        "branches": (ast.If, ast.IfExp, ast.Match),
        "tries": ast.Try,
        "imports": (ast.Import, ast.ImportFrom),
    }
    found = {name: sum(isinstance(node, kind) for node in nodes) for name, kind in kinds.items()}
    found["strings"] = sum(isinstance(node, ast.Constant) and isinstance(node.value, str) for node in nodes)
    found["special"] = sum(isinstance(node, ast.FunctionDef) and node.name.startswith("__") for node in nodes)
    found["calls"] = sum(isinstance(node, ast.Call) for node in nodes)
    outside = nodes[0].body if nodes and isinstance(nodes[0], ast.Module) else []
    kept = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    found["outside"] = sum(not isinstance(node, kept) for node in outside)
    return found


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
