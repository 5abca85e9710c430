"""The calls that teach a model by examples or preferences: a user's own, or the rollouts of a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from holdfast.api.driving import begin, join_others
from holdfast.api.stored import Run, StoreAddress
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.contracts.artifacts import Artifacts
    from holdfast.learn.dp import Privacy
    from holdfast.pipeline.sft import Taught
    from holdfast.policies.model import Model
    from holdfast.store.store import Store


class SftOptions(TypedDict, total=False):
    """How it is learnt. All of it has a default; see `holdfast policy train --help`."""

    lr: float  # 1e-4; of preferences 1e-5
    epochs: int  # passes over the examples; 3, of preferences 1
    batch: int  # examples for one update; 16
    max_tokens: int | None  # longer examples are left out; None: what the model can read
    held_out: float  # share of the examples that only measures; 0.1
    warm_up: float  # share of the updates; 0.05
    save_every: int | None  # updates between two checkpoints; None: ten checkpoints in all
    skip: float  # share of the examples that may be left out because they cannot be used; 0.1
    seed: int  # of the split and the order; 0
    privacy: Privacy | None  # hf.Privacy(epsilon=8): how much the weights may give away of one conversation or user


class DpoOptions(SftOptions, total=False):
    """The same for preferences."""

    beta: float  # how hard the model is held to where it began; 0.1


def sft(
    policy: Model,
    examples: Any = None,
    *,
    run: Run | str | None = None,
    least: float | None = None,
    columns: Mapping[str, str] | None = None,
    system: str | None = None,
    store: str | Path | None = None,
    project: str = "default",
    **how: Unpack[SftOptions],
) -> Model:
    """Teach a model what the assistant says in examples; the model that it has become.

    policy    `hf.Model(…)`, with `lora=` to train adapters alone
    examples  a file (JSONL, CSV, Parquet), a `datasets` folder, or rows: {"messages": [...], "tools": [...]},
              {"prompt": …, "completion": …} or {"question": …, "answer": …}
    run       in place of examples: the good rollouts of a run, or imported logs
    least     of a run, the reward from which on a rollout is learnt from
    columns   names of columns that are called otherwise, as in {"prompt": "ask", "completion": "reply"}
    system    the first message of rows that have none

    With `privacy=hf.Privacy(epsilon=8)` it learns with differential privacy. What was measured before and after, what
    was spent, and what was left out is told on stderr. Interrupted, the same call goes on from the last checkpoint.
    """
    source = {"run": run, "least": least, "columns": columns, "system": system}
    return _learn("sft", SftOptions, policy, examples, source, StoreAddress.of(store, project), how)


def dpo(
    policy: Model,
    pairs: Any = None,
    *,
    run: Run | str | None = None,
    columns: Mapping[str, str] | None = None,
    system: str | None = None,
    store: str | Path | None = None,
    project: str = "default",
    **how: Unpack[DpoOptions],
) -> Model:
    """Teach a model which of two answers is preferred (DPO); the model that it has become.

    policy   `hf.Model(…)`: also the reference that it is held to
    pairs    a file, a `datasets` folder, or rows: {"prompt": …, "chosen": …, "rejected": …}, texts or messages
    run      in place of pairs: of each of its tasks, the rollouts with the best and the worst reward

    Everything else is as in `hf.sft`.
    """
    source = {"run": run, "columns": columns, "system": system}
    return _learn("dpo", DpoOptions, policy, pairs, source, StoreAddress.of(store, project), how)


def reward_model(
    policy: Model,
    pairs: Any = None,
    *,
    run: Run | str | None = None,
    columns: Mapping[str, str] | None = None,
    system: str | None = None,
    store: str | Path | None = None,
    project: str = "default",
    **how: Unpack[SftOptions],
) -> dict[str, Any]:
    """Teach a copy of a model to score answers as they are preferred; a scorer to go among `scorers`.

    policy   `hf.Model(…)`: what the reward model begins with; the model itself stays as it is
    pairs    rows as in `hf.dpo`; `run` in place of them: of each of its tasks, the best and the worst rollout

    The scorer gives the probability that an answer is preferred to a middling one. It is a judge: put it beside a gate,
    with a weight, as in `[works, hf.reward_model(…) | {"weight": 0.2}]`, and measure it before you trust it
    (`holdfast reward judge calibrate`). Everything else is as in `hf.sft`.
    """
    source = {"run": run, "columns": columns, "system": system}
    taught = _learn("reward_model", SftOptions, policy, pairs, source, StoreAddress.of(store, project), how)
    return {"scorer": "judge", "model": str(taught.folder(taught.artifacts))}


def _learn(
    kind: str, options: Any, policy: Any, examples: Any, source: dict[str, Any], place: StoreAddress, how: Any
) -> Model:
    from holdfast.pipeline.spec import needs_torch

    needs_torch()
    join_others()
    from holdfast.pipeline.sft import KINDS, sft_spec
    from holdfast.policies.model import Model

    if not isinstance(policy, Model):
        why = f"is {type(policy).__name__}, and has no weights of ours"
        raise BadInput("policy", why=why, remedy='give a model, as in hf.Model("./my-model", lora=16)')
    known = list(options.__annotations__)
    if unknown := [name for name in how if name not in known]:
        raise BadInput(f"option {unknown[0]}", why="is unknown here", remedy=f"there are {', '.join(known)}")
    run = source["run"]
    name, place = (run.id, run.place) if isinstance(run, Run) else (run, place)
    spec = sft_spec(policy, examples, **{**source, "run": name}, how=KINDS[kind](**how))
    create = run is None and policy.checkpoint is None
    taught, home = begin(place, spec, _taught, create=create, policies=[policy], run=name).wait()
    print(described(taught), file=sys.stderr)
    return replace(taught.policy, artifacts=home)


def _taught(store: Store, run: Run) -> tuple[Taught, Artifacts]:
    """Reads the result of the run, and where its weights lie."""
    from holdfast.pipeline.sft import result_of

    return result_of(store, run.id), store.files


def described(taught: Taught) -> str:
    """One line: what was learnt, what that did to the loss, and what was left out."""
    from holdfast.pipeline.sft import spending

    data = taught.prepared
    parts = [f"{taught.run}: {data.sequences} examples, {taught.updates} updates"]
    if taught.before is not None and taught.after is not None:
        parts.append(f"held-out loss {taught.before:.4f} → {taught.after:.4f}{taught.measure}")
    if taught.privacy is not None:
        parts.append(spending(taught.privacy))
    if data.skipped:
        parts.append("left out " + ", ".join(f"{count} ({reason})" for reason, count in data.skipped.items()))
    if taught.why is not None:
        parts.append(f"nothing was learnt: {taught.why}")
    return "; ".join(parts)
