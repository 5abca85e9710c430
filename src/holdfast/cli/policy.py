"""`holdfast policy …`: teach a model a user's own examples, show what a version is, and write it for other programs.

A version is a model of the package, a folder, a checkpoint of the store, or a release. What is learnt is decided by
`pipeline.sft`; practice and proof have commands of their own (`improve`, `prove`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.onward import folded, left, near, place, step
from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt, needing
from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.contracts.run import Status
    from holdfast.pipeline.run import RunSpec
    from holdfast.pipeline.sft import Taught
    from holdfast.policies.model import Model
    from holdfast.store.store import Store

app = typer.Typer(help="Models and what they learn.", add_completion=False, no_args_is_help=True, rich_markup_mode=None)

VERSION_HELP = "A model of the package, a folder, a checkpoint or a release."
VersionText = Annotated[str, typer.Argument(metavar="VERSION", help=VERSION_HELP)]


@app.command()
def train(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=VERSION_HELP)] = None,
    examples: Annotated[
        Path | None, typer.Argument(metavar="EXAMPLES", help="JSONL, CSV, Parquet, or a `datasets` folder.")
    ] = None,
    from_run: Annotated[
        str | None, typer.Option("--from-run", metavar="RUN", help="Learn from its rollouts in place of a file.")
    ] = None,
    least: Annotated[
        float | None, typer.Option("--least", metavar="X", help="Of a run: the reward from which on it is learnt.")
    ] = None,
    lora: Annotated[
        int | None, typer.Option("--lora", metavar="RANK", min=0, help="Train adapters of this rank; 0: all weights.")
    ] = None,
    lr: Annotated[float, typer.Option("--lr", metavar="X", help="Learning rate.")] = 1e-4,
    epochs: Annotated[int, typer.Option("--epochs", metavar="N", min=1, help="Passes over the examples.")] = 3,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Examples for one update.")] = 16,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", metavar="N", min=1, help="Leave longer examples out.")
    ] = None,
    held_out: Annotated[float, typer.Option("--held-out", metavar="X", help="Share that only measures.")] = 0.1,
    skip: Annotated[
        float, typer.Option("--skip", metavar="X", help="Share that may be left out because it cannot be used.")
    ] = 0.1,
    save_every: Annotated[
        int | None, typer.Option("--save-every", metavar="N", min=1, help="Updates between two checkpoints.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option("--column", metavar="NAME=COLUMN", help="As in prompt=ask; several times.")
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="The first message of rows that have none.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of the split and the order.")] = 0,
    resume: Annotated[str | None, typer.Option("--resume", metavar="RUN", help="Take up a run that stopped.")] = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Teach a model what the assistant says in examples; the result is a checkpoint of the store.

    A row is {"messages": [...], "tools": [...]}, {"prompt": ..., "completion": ...} or {"question": ..., "answer":
    ...}. Ctrl-C stops it; --resume goes on from the last checkpoint.
    """
    from holdfast.store.store import open_store

    with needing("learn"):
        from holdfast.learn.sft import SFT
        from holdfast.pipeline.sft import KIND, resumed_spec, sft_spec
    if (model is None) == (resume is None):
        why = "is missing" if model is None else "and --resume were both given"
        raise BadInput("MODEL", why=why, remedy="name a model and its examples, or give --resume RUN")
    if resume is not None:
        with open_store(store, project=project, create=False) as opened:
            run = opened.runs.get(resume)
            if run.kind != KIND:
                raise BadInput(f"run {run.id}", why=f"is of the kind {run.kind}", remedy="resume it by its own command")
            _drive(opened, resumed_spec(run.settings), run.id, json)
    how = SFT(
        lr=lr,
        epochs=epochs,
        batch=batch,
        max_tokens=max_tokens,
        held_out=held_out,
        skip=skip,
        save_every=save_every,
        seed=seed,
    )
    given: dict[str, Any] = {"run": from_run, "least": least, "columns": _columns(column), "system": system, "how": how}
    named = _by_itself(str(model))
    if named is not None and from_run is None:
        spec = sft_spec(_with_lora(named, lora), examples, **given)  # checked before a store is made
        with open_store(store, project=project) as opened:
            _drive(opened, spec, None, json)
    with open_store(store, project=project, create=False) as opened:
        if from_run is not None:
            given["run"] = opened.runs.get(from_run).id
        policy = named or _policy(opened, str(model))
        _drive(opened, sft_spec(_with_lora(policy, lora), examples, **given), None, json)


@app.command()
def export(
    version: VersionText,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where it goes; nothing may be there.")],
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Write a version as a whole model that transformers and vLLM read, adapters merged into the weights."""
    with needing("learn"):
        from holdfast.policies.loading import export as write
    named = _by_itself(version)
    if named is not None:
        write(named, None, folder)
    else:
        with _existing(store, project) as opened:
            write(_policy(opened, version), opened.files, folder)
    if json:
        from holdfast.cli.show import print_json

        print_json({"version": version, "folder": str(folder.absolute()), "files": sorted(_files(folder))})
        return
    print("\n".join(left(f"{version} written to", folder)))
    print("next:")
    print("\n".join(step(f"holdfast sprout chat --model {near(folder)}", "talk to it")))


@app.command("show")
def show_(
    version: VersionText, store: StoreAt = DEFAULT_STORE, project: Project = "default", json: Json = False
) -> None:
    """Show what a version is made of: the model it began as, what was trained, and which checkpoints led to it."""
    from holdfast.cli.show import print_json

    named = _by_itself(version)
    if named is not None:
        told = _told(named, None, [])
    else:
        with _existing(store, project) as opened:
            policy = _policy(opened, version)
            line = [] if policy.checkpoint is None else opened.checkpoints.lineage(policy.checkpoint)
            told = _told(policy, opened.files, [one.id for one in line])
    if json:
        print_json(told)
        return
    for name, value in told.items():
        if value not in (None, [], {}):
            shown = " → ".join(value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else value
            print("\n".join(folded(f"{name.replace('_', ' '):<12} {shown}")))


# Finding what is meant -----------------------------------------------------------------------------------------------


def _by_itself(name: str) -> Model | None:
    """A model that is found without a store: one of the package, or a folder."""
    with needing("learn"):
        from holdfast.policies import registry
        from holdfast.policies.model import Model

    return Model(name) if name in registry.NAMES or Path(name).is_dir() else None


def _existing(store: str, project: str) -> Store:
    from holdfast.cli.options import existing

    return existing(store, project)


def _policy(store: Store, name: str) -> Model:
    from holdfast.pipeline.versions import policy_for, resolve
    from holdfast.policies.model import Model
    from holdfast.store.find import find_release

    found = policy_for(store, resolve(store, find_release(store, name).id if "@" in name else name))
    if not isinstance(found, Model):
        why = "it is a prompt: its model answers from an address"
        raise BadInput(f"version {name}", why=why, remedy="name one with weights")
    return found


def _with_lora(policy: Model, lora: int | None) -> Model:
    from dataclasses import replace

    if lora is None or lora == policy.lora:
        return policy
    if policy.checkpoint is not None:
        what = f"--lora {lora}"
        why = f"checkpoint {policy.checkpoint} was trained with {policy.lora or 'none'}"
        raise BadInput(what, why=why, remedy="leave it out, or export the checkpoint first")
    return replace(policy, lora=lora)


def _columns(given: list[str] | None) -> dict[str, str]:
    found = {}
    for one in given or ():
        name, is_pair, column = one.partition("=")
        if not is_pair or not column:
            raise BadInput(f"--column {one}", why="is not NAME=COLUMN", remedy="as in --column prompt=question")
        found[name] = column
    return found


# What is told --------------------------------------------------------------------------------------------------------


def _drive(store: Store, spec: RunSpec, resume: str | None, json: bool) -> None:
    from holdfast.cli.drive import drive
    from holdfast.contracts.run import RunState
    from holdfast.pipeline.sft import result_of

    status, _, code = drive(store, spec, resume)
    found = result_of(store, status.run_id) if status.run_state is RunState.COMPLETED else None
    if json:
        from holdfast.cli.show import print_json
        from holdfast.contracts.records import encode

        print_json({"status": encode(status), "result": None if found is None else _record(found)})
    else:
        _print(store, status, found)
    raise typer.Exit(code)


def _record(found: Taught) -> dict[str, Any]:
    return {
        "version": found.policy.checkpoint,
        "policy": found.policy.manifest,
        "examples": found.prepared.record(),
        "updates": found.updates,
        "held_out_loss": {"before": found.before, "after": found.after, "each": list(found.losses)},
        "taken_back": found.taken_back,
        "why": found.why,
    }


def _print(store: Store, status: Status, found: Taught | None) -> None:
    at = place(store.url, store.project)
    why = f" ({status.error}, at {status.lesson})" if status.error else ""
    line = f"{status.run_id} {status.run_state.replace('_', ' ')} in {status.elapsed_s:.0f} s{why}"
    print("\n".join(folded(line)))
    if found is None:
        print("next:")
        print("\n".join(step(f"holdfast policy train --resume {status.run_id}{at}", "go on where it stopped")))
        return
    data = found.prepared
    counted = f"{data.sequences} to learn from with {data.tokens:,} tokens of the assistant's, {data.held_out} held out"
    print("\n".join(folded(f"examples    {counted}", "  ")))
    for reason, count in data.skipped.items():
        print("\n".join(folded(f"left out    {count}: {reason} (first: {data.first[reason]})", "  ")))
    if found.policy.checkpoint is None or found.why is not None:
        print("\n".join(folded(f"learnt      nothing: {found.why}", "  ")))
        return
    print(f"  learnt      {found.updates} updates, {found.taken_back} taken back")
    if found.before is not None and found.after is not None:
        worse = ": it is worse; try fewer epochs or a smaller --lr" if found.after > found.before else ""
        print("\n".join(folded(f"held out    loss {found.before:.4f} → {found.after:.4f} nats a token{worse}", "  ")))
    print("\n".join(folded(f"version     {found.policy.checkpoint}", "  ")))
    print("next:")
    print("\n".join(step(f"holdfast policy export {found.policy.checkpoint} FOLDER{at}", "for other programs")))
    print("\n".join(step(f"holdfast release add {found.policy.checkpoint} --policy NAME{at}", "into service")))


def _told(policy: Model, files: Artifacts | None, line: list[str]) -> dict[str, Any]:
    from holdfast.policies import loading

    where = policy.folder(files)
    net, sha256 = loading.load(policy, files)
    trained = sum(one.numel() for one in net.parameters() if one.requires_grad)
    return {
        "model": policy.name,
        "format": "Hugging Face" if loading.is_foreign(where) else "holdfast",
        "checkpoint": policy.checkpoint,
        "line": line,
        "lora": policy.lora or None,
        "parameters": sum(one.numel() for one in net.parameters()),
        "trained": trained if policy.checkpoint is not None else None,
        "folder": near(where),
        "sha256": sha256,
        "resources": dict(policy.resources),
    }


def _files(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]
