"""The call that teaches a model by examples: a user's own, or the good rollouts of a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from holdfast.api.driving import begin
from holdfast.api.stored import Run, StoreAddress
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.contracts.artifacts import Artifacts
    from holdfast.pipeline.sft import Taught
    from holdfast.policies.model import Model
    from holdfast.store.store import Store


class SftOptions(TypedDict, total=False):
    """How it is learnt. All of it has a default; see `holdfast policy train --help`."""

    lr: float  # 1e-4
    epochs: int  # passes over the examples; 3
    batch: int  # examples for one update; 16
    max_tokens: int | None  # longer examples are left out; None: what the model can read
    held_out: float  # share of the examples that only measures; 0.1
    warm_up: float  # share of the updates; 0.05
    save_every: int | None  # updates between two checkpoints; None: ten checkpoints in all
    skip: float  # share of the examples that may be left out because they cannot be used; 0.1
    seed: int  # of the split and the order; 0


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

    What was measured before and after, and what was left out, is told on stderr. Interrupted, the same call goes on
    from the last checkpoint.
    """
    from holdfast.pipeline.spec import needs_torch

    needs_torch()
    from holdfast.learn.sft import SFT
    from holdfast.pipeline.sft import sft_spec
    from holdfast.policies.model import Model

    given: Any = policy
    if not isinstance(given, Model):
        why = f"is {type(given).__name__}, and has no weights of ours"
        raise BadInput("policy", why=why, remedy='give a model, as in hf.Model("./my-model", lora=16)')
    if unknown := [name for name in how if name not in SftOptions.__annotations__]:
        raise BadInput(
            f"option {unknown[0]}", why="is unknown here", remedy=f"there are {', '.join(SftOptions.__annotations__)}"
        )
    name, place = (run.id, run.place) if isinstance(run, Run) else (run, StoreAddress.of(store, project))
    spec = sft_spec(policy, examples, run=name, least=least, columns=columns, system=system, how=SFT(**how))
    create = run is None and policy.checkpoint is None
    taught, home = begin(place, spec, _taught, create=create, policies=[policy], run=name).wait()
    print(described(taught), file=sys.stderr)
    return replace(taught.policy, artifacts=home)


def _taught(store: Store, run: Run) -> tuple[Taught, Artifacts]:
    """What came of it, and where its weights lie."""
    from holdfast.pipeline.sft import result_of

    return result_of(store, run.id), store.files


def described(taught: Taught) -> str:
    """One line: what was learnt, what that did to the loss, and what was left out."""
    data = taught.prepared
    parts = [f"{taught.run}: {data.sequences} examples, {taught.updates} updates"]
    if taught.before is not None and taught.after is not None:
        parts.append(f"held-out loss {taught.before:.4f} → {taught.after:.4f} nats a token")
    if data.skipped:
        parts.append("left out " + ", ".join(f"{count} ({reason})" for reason, count in data.skipped.items()))
    if taught.why is not None:
        parts.append(f"nothing was learnt: {taught.why}")
    return "; ".join(parts)
