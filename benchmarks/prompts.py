"""How many rollouts a better prompt takes: ours with its proof, GEPA, MIPROv2 and random search, on the embedded model.

Five problems, five seeds, three budgets; problems, sentences and settings are in `parts/prompt_problems.py` and
`parts/prompt_searches.py`. A budget of ours pays for search and proof; peers prove nothing, and all they are given is
search. What ours has found counts only where the gate opened: else the prompt in force is what it returns.
Outcomes are kept in build/prompt_outcomes.jsonl: a second run asks the model for what is missing only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from math import exp, log
from statistics import mean
from typing import Any

import numpy as np

from holdfast.prove.estimate import wilson
from parts import report
from parts.peer import Peer, PeerAbsent
from parts.prompt_problems import BASE, HELD_OUT, NULLS, PROBLEMS, WORLDS, Outcomes, Problem, drive
from parts.prompt_searches import VAL, Found, by_chance, by_peer, ours
from parts.report import Figures, progress, rounded

BUDGETS, SEEDS = (150, 300, 600), range(5)
QUICK_SEEDS = range(1)
LONGER = 2  # times the largest budget: so far peers go on, for how many rollouts they need to get where ours is
NULL_BUDGET, NULL_SEEDS = 300, range(40)  # of each null problem; peers have as many seeds as elsewhere
SHARE = 0.9  # of the best gain that is known
CHILDREN = {"gepa": 10, "gepa_informed": 10, "miprov2": 3}
PEERS = {
    "gepa": ("prompts_gepa.py", {}),
    "gepa_informed": ("prompts_gepa.py", {"is_informed": True}),
    "miprov2": ("prompts_mipro.py", {"is_blind": True}),
}
OURS, ANYTIME = "holdfast", ("gepa", "gepa_informed", "random")  # these need not know their budget: one run tells all

MEANINGS = {
    "gain": "held-out success of ours over the first prompt at the largest budget, mean of all problems",
    "gain_interval": "its 95 % interval: seeds and held-out tasks drawn again, the problems as they are",
    "vs_gepa": "rollouts GEPA needs by ours, proof included, for the same held-out success; the harder of two GEPAs",
    "vs": "the same against each peer; geometric mean of problems and budgets, censored at twice the largest budget",
    "vs_search": "the same with the proof left out of ours: what the search found, by its own rollouts",
    "drawn": "the same figures on problems drawn by chance, which need no model",
    "false_promotion": "share of searches on null problems whose gate opened",
    "false_promotion_interval": "its 95 % interval (Wilson)",
    "overspent": "searches of ours that passed their budget",
    "scores": "mean held-out success by method and budget; base is the first prompt",
    "to_target": f"rollouts to {SHARE:.0%} of the best gain known, geometric mean, censored in the same way",
    "reached": "share of searches that got there",
    "null_changed": "share of searches on null problems that return another prompt than the first",
    "by_problem": "held-out success at each budget, mean of seeds, and what ours used",
    "wants": "what is expected, and whether it is so",
}
WANTS = {"vs_gepa": ("at least", 1.5), "false_promotion": ("at most", 0.05), "overspent": ("at most", 0)}

Runs = dict[tuple[str, str, int, int], Found]  # method, problem, seed, budget


@contextmanager
def children(name: str) -> Iterator[list[Peer]]:
    pool = [Peer(PEERS[name][0]) for _ in range(CHILDREN[name])]
    try:
        yield pool
    finally:
        for one in pool:
            one.close()


def measure(quick: bool) -> Figures:
    seeds, problems = (QUICK_SEEDS, PROBLEMS[2:3]) if quick else (SEEDS, PROBLEMS)
    worlds, null_seeds = (WORLDS[:3], range(4)) if quick else (WORLDS, NULL_SEEDS)
    began, outcomes = time.process_time(), Outcomes()
    try:
        runs = searched(outcomes, problems, seeds, BUDGETS, longer=LONGER)
        nulls = searched(outcomes, NULLS, null_seeds, (NULL_BUDGET,))
        drawn = searched(outcomes, worlds, seeds, BUDGETS, longer=LONGER)
        figures = Table(runs, outcomes, problems, seeds).figures() | null_figures(nulls)
        figures["drawn"] = Table(drawn, outcomes, worlds, seeds).figures()
        mine = [(key, one) for some in (runs, nulls, drawn) for key, one in some.items() if key[0] == OURS]
        figures["overspent"] = sum(one.used > key[3] for key, one in mine)
        figures |= {"rollouts_of_the_model": outcomes.asked, "cpu_s": rounded(time.process_time() - began)}
    finally:
        outcomes.close()
    return figures | {"wants": wants(figures)}


def searched(
    outcomes: Outcomes,
    problems: Sequence[Problem],
    seeds: Sequence[int],
    budgets: Sequence[int],
    *,
    longer: int = 1,
) -> Runs:
    """Every method on every problem; a peer that is not installed is left out."""
    runs: Runs = {}
    keys = list(product(problems, seeds, budgets))
    found = drive([(p, ours(p, seed, b)) for p, seed, b in keys], outcomes, at_once=1000, what=OURS)
    runs |= {(OURS, p.name, seed, b): one for (p, seed, b), one in zip(keys, found, strict=True)}
    seeds, most = [seed for seed in seeds if seed in SEEDS], longer * budgets[-1]
    keys = list(product(problems, seeds, (most,)))
    found = drive([(p, by_chance(p, seed, b)) for p, seed, b in keys], outcomes, at_once=1000, what="random")
    runs |= {("random", p.name, seed, b): one for (p, seed, b), one in zip(keys, found, strict=True)}
    for name in PEERS:
        keys = list(product(problems, seeds, (most,) if name in ANYTIME else sorted({*budgets, most})))
        try:
            with children(name) as pool:
                jobs = [(p, by_peer(pool, p, seed, b, **PEERS[name][1])) for p, seed, b in keys]
                found = drive(jobs, outcomes, at_once=len(pool), what=name)
        except PeerAbsent as why:
            progress(f"{name}: {why}")
            continue
        runs |= {(name, p.name, seed, b): one for (p, seed, b), one in zip(keys, found, strict=True)}
    return runs


class Table:
    """Held-out success of what each search returned."""

    def __init__(self, runs: Runs, outcomes: Outcomes, problems: Sequence[Problem], seeds: Sequence[int]) -> None:
        self.runs, self.problems, self.seeds, self.budgets = runs, problems, seeds, BUDGETS
        self.most = LONGER * BUDGETS[-1]
        self.methods = list(dict.fromkeys(key[0] for key in runs))
        self.values: dict[tuple[str, str], list[float]] = {}
        for problem in self.problems:
            found = [one for key, one in runs.items() if key[1] == problem.name]
            paths = [text for one in found for text in (one.candidate, *(text for _, text in one.path))]
            texts = list(dict.fromkeys([BASE, *paths]))
            asked = [(problem, [(text, "held_out", at) for at in range(HELD_OUT)]) for text in texts]
            told = outcomes.of_many(asked)
            self.values |= {(problem.name, text): values for text, values in zip(texts, told, strict=True)}

    def score(self, problem: str, prompt: str) -> float:
        return mean(self.values[problem, prompt])

    def returned(self, method: str, problem: str, seed: int, budget: int) -> str:
        kept = self.most if method in ANYTIME else budget
        return self.runs[method, problem, seed, kept].at(budget)

    def mean_score(self, method: str, problem: str, budget: int) -> float:
        return mean(self.score(problem, self.returned(method, problem, seed, budget)) for seed in self.seeds)

    def used(self, problem: str, budget: int) -> float:
        return mean(self.runs[OURS, problem, seed, budget].used for seed in self.seeds)

    def path(self, method: str, problem: str, seed: int) -> list[tuple[int, float]]:
        """Rollouts, and what would have been returned from then on scores."""
        if method in ANYTIME:
            return [(n, self.score(problem, text)) for n, text in self.runs[method, problem, seed, self.most].path]
        found = [one for key, one in self.runs.items() if key[:3] == (method, problem, seed)]
        return [(one.used, self.score(problem, one.prompt)) for one in found]

    def needed(self, method: str, problem: str, wanted: float) -> int:
        """Rollouts until the mean of all seeds is as high; at least those of its first measurement."""
        paths = [self.path(method, problem, seed) for seed in self.seeds]
        for n in sorted({n for path in paths for n, _ in path}):
            now = [next((score for at, score in reversed(path) if at <= n), None) for path in paths]
            base = self.score(problem, BASE)
            if mean(base if score is None else score for score in now) >= wanted - 1e-9:
                return max(n, VAL)
        return self.most

    def vs(self, method: str) -> float:
        ratios = [
            self.needed(method, p.name, self.mean_score(OURS, p.name, budget)) / self.used(p.name, budget)
            for p, budget in product(self.problems, self.budgets)
        ]
        return geometric(ratios)

    def vs_search(self, method: str) -> float:
        """The same of what our search found, proved or not, by its rollouts without the proof."""
        ratios = []
        for p, budget in product(self.problems, self.budgets):
            found = [self.runs[OURS, p.name, seed, budget] for seed in self.seeds]
            score = mean(self.score(p.name, one.candidate) for one in found)
            ratios.append(self.needed(method, p.name, score) / mean(one.searched for one in found))
        return geometric(ratios)

    def target(self, problem: str) -> float:
        base = self.score(problem, BASE)
        best = max(mean(values) for (name, _), values in self.values.items() if name == problem)
        return base + SHARE * (best - base)

    def to_target(self, method: str) -> tuple[float, float]:
        """Rollouts until what a search returns is as good and stays so, and how many searches get there."""
        counts = []
        for problem, seed in product(self.problems, self.seeds):
            wanted, count = self.target(problem.name), None
            for n, score in self.path(method, problem.name, seed):
                count = (count or n) if score >= wanted - 1e-9 else None
            counts.append(count)
        return geometric([self.most if one is None else one for one in counts]), mean(one is not None for one in counts)

    def gains(self) -> tuple[float, list[float]]:
        rng, draws = np.random.default_rng(0), 2000
        means, drawn = [], []
        for problem in self.problems:
            texts = [self.returned(OURS, problem.name, seed, self.budgets[-1]) for seed in self.seeds]
            d = np.array([self.values[problem.name, text] for text in texts]) - self.values[problem.name, BASE]
            means.append(d.mean())
            by_seed = rng.integers(len(d), size=(draws, len(d), 1))
            by_task = rng.integers(d.shape[1], size=(draws, 1, d.shape[1]))
            drawn.append(d[by_seed, by_task].mean(axis=(1, 2)))
        ends = np.quantile(np.mean(drawn, axis=0), (0.025, 0.975))
        return float(np.mean(means)), [rounded(float(end)) for end in ends]

    def figures(self) -> Figures:
        gain, interval = self.gains()
        others = [one for one in self.methods if one != OURS]
        vs = {one: rounded(self.vs(one)) for one in others}
        gepas = [vs[one] for one in others if one.startswith("gepa")]
        reached = {one: self.to_target(one) for one in self.methods}
        return {
            "gain": rounded(gain),
            "gain_interval": interval,
            "vs_gepa": min(gepas) if gepas else None,
            "vs": vs,
            "vs_search": {one: rounded(self.vs_search(one)) for one in others},
            "scores": {"base": rounded(mean(self.score(p.name, BASE) for p in self.problems))}
            | {one: self.scores(one) for one in self.methods},
            "to_target": {one: rounded(count) for one, (count, _) in reached.items()},
            "reached": {one: rounded(share) for one, (_, share) in reached.items()},
            "by_problem": {p.name: self.row(p.name) for p in self.problems},
        }

    def scores(self, method: str) -> dict[int, float]:
        return {b: rounded(mean(self.mean_score(method, p.name, b) for p in self.problems)) for b in self.budgets}

    def row(self, problem: str) -> dict[str, Any]:
        found: dict[str, Any] = {"base": rounded(self.score(problem, BASE)), "target": rounded(self.target(problem))}
        found |= {one: [rounded(self.mean_score(one, problem, b)) for b in self.budgets] for one in self.methods}
        return found | {"used": [rounded(self.used(problem, budget)) for budget in self.budgets]}


def geometric(values: Sequence[float]) -> float:
    return exp(mean(log(value) for value in values))


def null_figures(runs: Runs) -> Figures:
    mine = [one.is_promoted for key, one in runs.items() if key[0] == OURS]
    interval = wilson(sum(mine), len(mine), level=0.95)
    changed: dict[str, list[bool]] = {}
    for (method, *_), one in runs.items():
        changed.setdefault(method, []).append(one.prompt != BASE)
    return {
        "false_promotion": rounded(mean(mine)),
        "false_promotion_interval": [rounded(interval.low), rounded(interval.high)],
        "null_changed": {method: rounded(mean(some)) for method, some in changed.items()},
        "null_searches": len(mine),
    }


def wants(figures: Figures) -> dict[str, Any]:
    found: dict[str, Any] = {"gain": {"above": 0, "is_met": figures["gain_interval"][0] > 0.0}}
    for name, (word, bound) in WANTS.items():
        value = figures[name]
        is_met = value is not None and (value <= bound if word == "at most" else value >= bound)
        found[name] = {word: bound, "is_met": is_met}
    return found


if __name__ == "__main__":
    report.main(__doc__ or "", measure, MEANINGS)
