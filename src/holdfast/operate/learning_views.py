"""How a run learns: curves, rollouts without a gradient, the lineage of checkpoints, and tool use.

A step reports what its learner measures; a missing value is None and leaves a gap in the curve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.release import Release
from holdfast.contracts.rollout import Rollout
from holdfast.contracts.run import StepRecord
from holdfast.contracts.trace import Span
from holdfast.operate.briefs import Brief, pick
from holdfast.reward.evidence import with_tool_calls
from holdfast.reward.tools import ToolAttempt, marks, names, schemas_in, split_version
from holdfast.store.store import Store

CURVES: Mapping[str, tuple[tuple[str, ...], ...]] = {  # where a step has the value: the first that exists
    "reward": (("reward",), ("mean_reward",)),
    "loss": (("update", "loss"), ("loss",), ("rl_optimizer", "mean_total_loss")),
    "kl": (("update", "approx_kl"), ("approx_kl",), ("rl_optimizer", "observed_approx_kl")),
    "entropy": (("update", "entropy"), ("entropy",), ("rl_optimizer", "entropy")),
    "clip_fraction": (("update", "clip_fraction"), ("clip_fraction",), ("rl_optimizer", "clip_fraction")),
    "trainer_gap": (("update", "trainer_gap"),),
    "explained_variance": (("rl_optimizer", "explained_variance"),),
    "grad_norm": (("update", "grad_norm"), ("grad_norm",), ("rl_optimizer", "grad_norm")),
    "delta_norm": (("update", "delta_norm"), ("rl_optimizer", "parameter_delta_norm")),
    "lr": (("update", "lr"),),
}
POINTS = 2_000  # of one curve; of more, the newest
CHECKPOINTS = 200


def learning(store: Store, run_id: str, *, now: float) -> Brief:
    """{"run": id, "steps": n, "is_whole",
     "points": [{"step", "at", "lesson", "phase", "reward", "loss", "kl", "entropy", "clip_fraction",
                 "trainer_gap", "explained_variance", "length", "grad_norm", "delta_norm", "lr", "taught", "rollouts",
                 "stopped_early", "restored", "skipped",
                 "checkpoint", "release"}], in order, 2,000 at most,
     "ranges": {curve: [least, most]},
     "audit": {"step", "rollouts", "taught", "counts": {reason: n}, "tokens", "idle_tokens", "shares": {signal: share},
               "dominant", "zero_gradient", "breaks", "left_out", "constraint", "lines": [sentence]}|None (the last),
     "silent": {reason: n} (over all steps), "findings": [{"name", "severity", "count", "of", "detail"}] (the last),
     "checkpoints": [{"id", "parent", "step", "episodes", "reward", "algorithm", "version", "at", "sha256",
                      "release"|None, "stage"|None}], newest first, 200 at most,
     "edges": [[parent, child]]}

    `length`: sampled tokens per sample. `taught`: rollouts that gave a gradient, of `rollouts`.
    """
    run = store.runs.get(run_id)
    steps, is_whole = store.figures.steps(run.id)
    points = [point(step) for step in steps[-POINTS:]]
    kept = store.figures.checkpoints(run.id, CHECKPOINTS)
    serving = _serving(store)
    known = {checkpoint.id for checkpoint in kept}
    silent: dict[str, int] = {}
    for step in steps:
        for reason, n in (
            _part(step.body, "audit", "counts") or _part(step.body, "rl_optimizer", "no_gradient")
        ).items():
            silent[reason] = silent.get(reason, 0) + int(n)
    return {
        "run": run.id,
        "steps": len(steps),
        "is_whole": is_whole,
        "points": points,
        "ranges": {name: _range(one[name] for one in points) for name in (*CURVES, "length")},
        "audit": _audit(steps),
        "silent": dict(sorted(silent.items(), key=lambda one: -one[1])),
        "findings": next((list(step.body["quality"]) for step in reversed(steps) if "quality" in step.body), []),
        "checkpoints": [_checkpoint(checkpoint, serving) for checkpoint in kept],
        "edges": [[checkpoint.parent, checkpoint.id] for checkpoint in kept if checkpoint.parent in known],
    }


def search(store: Store, run_id: str, *, now: float) -> Brief:
    """{"run": id, "searches": [search]}, one for each iteration; see `pipeline.prompts.searches`. The tasks and what
    each prompt earned where are on the page that `improve` and `policy show` write."""
    from holdfast.operate.prompt_page import headline
    from holdfast.pipeline.prompts import searches

    run = store.runs.get(run_id)
    told = [{**one, "headline": headline(one)} for one in searches(store, run.id)]
    return {"run": run.id, "searches": [_without(one) for one in told]}


def _without(search: Mapping[str, Any]) -> Brief:
    prompts = [{name: value for name, value in one.items() if name != "cells"} for one in search["prompts"]]
    return {**{name: value for name, value in search.items() if name != "tasks"}, "prompts": prompts}


def has_curves(store: Store, run_id: str) -> bool:
    """Whether any of its steps has a value to draw; a proof's only step, for one, has none."""
    steps, _ = store.figures.steps(run_id)
    return any(_number(step.body, places) is not None for step in reversed(steps) for places in CURVES.values())


def point(update: StepRecord) -> Brief:
    """One step of learning as a point on each curve."""
    body, audit = update.body, _part(update.body, "audit")
    payload: Brief = {"step": update.step, "at": update.at}
    payload |= {name: body.get(name) for name in ("lesson", "phase", "skipped", "checkpoint", "release")}
    payload |= {name: _number(body, places) for name, places in CURVES.items()}
    tokens, samples = _number(body, (("update", "tokens"),)), _number(body, (("update", "samples"),))
    payload["length"] = tokens / samples if tokens is not None and samples else None
    payload["taught"], payload["rollouts"] = audit.get("taught"), audit.get("rollouts", body.get("rollouts"))
    for name in ("stopped_early", "restored"):
        payload[name] = _part(body, "update").get(name) or _part(body, "rl_optimizer").get(name)
    return payload


def _audit(steps: Sequence[StepRecord]) -> Brief | None:
    for step in reversed(steps):
        audit = _part(step.body, "audit")
        if audit:
            names = ("rollouts", "taught", "tokens", "idle_tokens", "dominant", "zero_gradient", "constraint")
            payload: Brief = {"step": step.step, **{name: audit.get(name) for name in names}}
            payload |= {name: dict(audit.get(name) or {}) for name in ("counts", "shares", "breaks", "left_out")}
            return {**payload, "lines": _lines(payload)}
    return None


def _lines(told: Mapping[str, Any]) -> list[str]:
    """The audit in sentences, as `learn.quality.audit` writes them."""
    lines = [f"{told['taught']} of {told['rollouts']} rollouts gave a gradient, by {told['tokens']} tokens"]
    lines += [f"{n} gave none: {reason.replace('_', ' ')}" for reason, n in told["counts"].items()]
    lines += [f"{n} of their calls not trained on: {why.replace('_', ' ')}" for why, n in told["left_out"].items()]
    if told["zero_gradient"]:
        lines.append("the gradient was exactly zero")
    if told["dominant"] is not None and told["dominant"] in told["shares"]:
        share = told["shares"][told["dominant"]]
        lines.append(f"the reward is nearly all {told['dominant']}: {share:.0%} of its variance")
    return lines


def _checkpoint(one: Checkpoint, serving: Mapping[str, Release]) -> Brief:
    release = serving.get(one.id)
    return {
        **pick(one, "id parent algorithm"),
        "step": one.global_step,
        "episodes": one.episode_count,
        "reward": one.mean_reward,
        "version": one.policy_version,
        "at": one.created_at,
        "sha256": None if one.artifact is None else one.artifact.sha256,
        "release": None if release is None else release.id,
        "stage": None if release is None else str(release.stage),
    }


def _serving(store: Store) -> dict[str, Release]:
    """The release made from each checkpoint."""
    releases = [
        release for policy in store.releases.policies()[:50] for release in store.releases.of_policy(policy)[:500]
    ]
    return {
        release.source.removeprefix("checkpoint:"): release
        for release in reversed(releases)
        if release.source.startswith("checkpoint:")
    }


def _part(body: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    found: Any = body
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _number(body: Mapping[str, Any], places: Iterable[tuple[str, ...]]) -> float | None:
    for *outer, last in places:
        found = _part(body, *outer).get(last)
        if isinstance(found, int | float) and not isinstance(found, bool) and isfinite(found):
            return float(found)
    return None


def _range(values: Iterable[float | None]) -> list[float] | None:
    known = [one for one in values if one is not None]
    return [min(known), max(known)] if known else None


Tools = Sequence[Mapping[str, Any]]  # as OpenAI writes them


def records(store: Store, rollouts: Iterable[tuple[Rollout, int]]) -> list[ToolAttempt]:
    """One for each rollout, from the spans of its deciding attempt, whose token is given."""
    found = [(rollout, store.traces.spans(token)) for rollout, token in rollouts]
    known = {run: catalog(store, run) for run in {rollout.run for rollout, _ in found}}
    return [record(rollout, spans, known[rollout.run]) for rollout, spans in found]


def catalog(store: Store, run: str) -> Tools:
    """The tools that the tasks of a run may name: those of its agent."""
    begun = store.steps.get(run, "begin")
    return () if begun is None else tuple(begun.body.get("tools", ()))


def record(rollout: Rollout, spans: Sequence[Span], tools: Tools = ()) -> ToolAttempt:
    task = rollout.input if isinstance(rollout.input, Mapping) else {}
    needs, schemas, offered = names(task.get("needs")), schemas_in(task, tools), names(task.get("tools"))
    models = {span.model.model for span in spans if span.model is not None}
    made = ToolAttempt(
        task=f"{rollout.run}/{rollout.metadata.get('group', rollout.name)}",
        model=models.pop() if len(models) == 1 else None,
        version=None,
        at=rollout.ended_at if rollout.ended_at is not None else rollout.enqueued_at,
        needs=needs,
        offered=tuple(schemas) if offered is None and schemas is not None else offered,
        marks=marks(with_tool_calls(spans), needs=needs, schemas=schemas),
    )
    return split_version(made)
