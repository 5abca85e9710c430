"""`holdfast improve`: iterations of practice, proof and promotion, and what came of each."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from holdfast.cli.init import CONFIG
from holdfast.cli.options import Json, StoreOptions, existing, needing
from holdfast.cli.report import write_page
from holdfast.cli.show import left, print_json, step
from holdfast.cli.story import told
from holdfast.contracts.errors import BadInput, NotFound
from holdfast.contracts.evidence import Decision
from holdfast.contracts.records import decode, encode
from holdfast.contracts.release import PolicyKind, Stage

if TYPE_CHECKING:
    from holdfast.contracts.release import Release
    from holdfast.contracts.run import RunRecord, Status, StepRecord
    from holdfast.contracts.settings import OptimizeSettings
    from holdfast.pipeline.run import RunSpec
    from holdfast.promote.features import Off
    from holdfast.store.store import Store


def improve(
    at: StoreOptions,
    config: Annotated[Path | None, Argument(metavar="CONFIG", help="The settings; else holdfast.toml.")] = None,
    env: Annotated[
        str | None, Option(metavar="NAME", help="An environment of Gymnasium, for a network, in place of CONFIG.")
    ] = None,
    reward_range: Annotated[
        tuple[float, float] | None, Option(metavar="LOW HIGH", help="All that an episode of it can return.")
    ] = None,
    model: Annotated[
        str | None, Option(metavar="local/NAME", help="To begin with: a model, a checkpoint, a release.")
    ] = None,
    agent: Annotated[str | None, Option(metavar="MODULE:FUNCTION", help="An agent, or FILE.py:FUNCTION.")] = None,
    policy: Annotated[str | None, Option(metavar="NAME", help="Which line of versions is improved.")] = None,
    iterations: Annotated[int | None, Option(metavar="N", min=1, max=10_000, help="How many.")] = None,
    follow: Annotated[
        str | None, Option(metavar="RUN", help="Learn from this run's conversations as they arrive.")
    ] = None,
    budget: Annotated[
        float | None, Option(metavar="SECONDS", min=0.001, help="Of learning; what is there then is proved.")
    ] = None,
    resume: Annotated[str | None, Option(metavar="RUN", help="Take up a run that stopped.")] = None,
    json: Json = False,
) -> None:
    """Practise on the `optimize` tasks, prove the candidate on the `validate` tasks, and promote it if that allows it.
    With --env a network learns by playing, and is proved on episodes with seeds of their own.

    What is live is what the next iteration begins with. A candidate that is not proved better and no less safe is
    held or refused, with the reason and, where more would help, the number of episodes still needed.
    """
    from holdfast.cli.drive import drive, new_salt, switched_off, switched_off_records, wanted_features
    from holdfast.contracts.settings import ImproveBlock, load_settings
    from holdfast.operate.switches import key_of, snapshot_at

    with needing("learn"):
        from holdfast.pipeline.control import env_spec_from
        from holdfast.pipeline.spec import improve_spec, weighing
    if config is None and env is None and resume is None and Path(CONFIG).is_file():
        config = Path(CONFIG)
    flags = {"policy": policy, "iterations": iterations, "follow": follow, "budget_s": budget}
    _check(config, env, resume, {"model": model, "agent": agent, **flags}, reward_range)
    settings = None if config is None else _with(load_settings(config), model, agent, flags)
    settings = None if settings is None else _found(settings, at.store, at.project)
    salt, flags_now = new_salt(), snapshot_at(at.store, at.project, clock=time.time, environment=os.environ)
    key = salt
    # All is checked before the store is touched.
    spec = None if settings is None else improve_spec(settings, flags_now.features(key))
    if env is not None:
        spec = _in_env(env, policy, iterations or 1, budget, reward_range)
    is_new = spec is not None and (settings is None or _followed(settings) is None)
    with at.open(create=is_new) as opened:
        if resume is not None:
            run = opened.runs.get(resume)
            settings, resume, key = _of(opened, run), run.id, key_of(run.id)
            spec = (
                env_spec_from(opened.whole(run.settings))
                if settings is None
                else improve_spec(settings, flags_now.features(key))
            )
        assert spec is not None
        if settings is not None and (other := _followed(settings)) is not None:
            opened.runs.get(other)  # it is there
        status, _, code = drive(opened, spec, resume, salt)
        updates = opened.steps.of_run(status.run_id)
        decided = [update.body for update in updates if "proposed" in update.body]
        how = None if settings is None else weighing((settings.improve or ImproveBlock()).prove)
        pages = [str(write_page(Path(body["proof"]), how)) if "proof" in body else None for body in decided]
        now = {body["release"]: opened.releases.get(body["release"]) for body in decided if "release" in body}
        off = switched_off(
            opened, status.run_id, flags_now.off(key), () if settings is None else wanted_features(settings)
        )
    if json:
        told = [{name: body.get(name) for name in TOLD} for body in decided]
        seen = {"switched_off": switched_off_records(off)} if off else {}
        print_json({"status": encode(status), "iterations": told, "pages": pages, **seen})
    else:
        _tell(status, updates, list(zip(decided, pages, strict=True)), now, str(at), off)
    raise typer.Exit(code)


TOLD = ("iteration", "release", "decision", "evidence", "proof", "verdict", "why")


def _with(settings: OptimizeSettings, model: str | None, agent: str | None, flags: dict[str, Any]) -> OptimizeSettings:
    """The settings with the given options in place of the file's."""
    from holdfast.contracts.settings import ImproveBlock, override

    block = (settings.improve or ImproveBlock()).model_dump() | {k: v for k, v in flags.items() if v is not None}
    return override(settings, model=model, agent=agent, improve=block)


def _found(settings: OptimizeSettings, store: str, project: str) -> OptimizeSettings:
    """The same with the folder of the weights, where the model is a checkpoint or a release of this store."""
    from holdfast.pipeline.spec import LOCAL
    from holdfast.pipeline.versions import weights_of

    provider, _, name = (settings.model or "").partition("/")
    if provider != LOCAL or Path(name).is_dir():
        return settings
    try:
        opened = existing(store, project)
    except NotFound:  # there is none yet, so it holds no weights
        return settings
    with opened:
        return settings.model_copy(update={"model": f"{LOCAL}/{weights_of(opened, name)}"})


def _check(
    config: Path | None,
    env: str | None,
    resume: str | None,
    flags: Mapping[str, Any],
    reward_range: tuple[float, float] | None,
) -> None:
    """That one thing is to be done, and that every option means something for it."""
    given = [name for name, value in (("CONFIG", config), ("--env", env), ("--resume", resume)) if value is not None]
    if len(given) != 1:
        why = f"and {given[1]} were both given" if given else "is missing"
        remedy = "give the file with the settings, --env NAME or --resume RUN"
        raise BadInput(given[0] if given else "CONFIG", why=why, remedy=remedy)
    if resume is not None and any(value is not None for value in (*flags.values(), reward_range)):
        raise BadInput("--resume", why="a run keeps the settings it began with", remedy="give no other option")
    if env is None and reward_range is not None:
        raise BadInput("--reward-range", why="is of an environment", remedy="a file has improve.prove.reward_range")
    for name in ("model", "agent", "follow"):
        if env is not None and flags[name] is not None:
            raise BadInput(f"--{name}", why="means nothing to a network in an environment", remedy="leave it out")


def _in_env(
    env: str, name: str | None, iterations: int, budget_s: float | None, reward_range: tuple[float, float] | None
) -> RunSpec:
    from holdfast.learn.control import EnvPPO
    from holdfast.pipeline.control import EnvProof, improve_env

    proof, algorithm = EnvProof(reward_range=reward_range), EnvPPO(budget_s=budget_s)
    return improve_env(env, name=name, algorithm=algorithm, proof=proof, iterations=iterations)


def _of(store: Store, run: RunRecord) -> OptimizeSettings | None:
    """None: of a run in an environment."""
    from holdfast.contracts.settings import settings_from
    from holdfast.pipeline.control import is_env_run

    if run.kind == "improve" and is_env_run(run.settings):
        return None
    if run.kind != "improve":
        raise BadInput(f"run {run.id}", why=f"is of kind {run.kind}", remedy="resume it with its own command")
    return settings_from(store.whole(run.settings), f"settings of {run.id}")


def _followed(settings: OptimizeSettings) -> str | None:
    return None if settings.improve is None else settings.improve.follow


def _tell(
    status: Status,
    updates: list[StepRecord],
    decided: list[tuple[Any, str | None]],
    now: Mapping[str, Release],
    at: str,
    off: Sequence[Off],
) -> None:
    """At most 80 columns. `decided` has each iteration with its page, `now` where its version is."""
    from holdfast.cli.drive import switched_off_lines

    print(f"{status.run_id} {status.run_state.replace('_', ' ')} in {status.elapsed_s:.0f} s")
    if off:
        print("\n".join(switched_off_lines(off, at)))
    if status.error is not None:
        print(f"{status.error}, at {status.lesson}\nnext:")
        print("\n".join(step(f"holdfast improve --resume {status.run_id}{at}")))
        return
    practised = [update.body for update in updates if "learning_s" in update.body]
    rewards = [body["reward"] for body in practised if body.get("reward") is not None]
    if rewards:
        print(f"practice: {len(practised)} steps, mean reward {rewards[0]:.3f} → {rewards[-1]:.3f}")
    for body, page in decided:
        print(f"\niteration {body['iteration'] + 1}")
        if "decision" not in body:
            print(f"  {body['why']}")
            continue
        decision = decode(Decision, body["decision"])
        print("\n".join(told(body["release"], decision, now[body["release"]], "  ", at)))
        if page is not None:
            print("\n".join(left("page", page, "  ")))
    if made := [body for body, _ in decided if "release" in body]:
        print("next:")
        last = now[made[-1]["release"]]
        if last.stage is Stage.CANDIDATE and decode(Decision, made[-1]["decision"]).open:
            print("\n".join(step(f"holdfast release promote {last.id}{at}", "into service")))
        elif last.stage is not Stage.CANDIDATE and last.kind is not PolicyKind.NETWORK:  # which acts elsewhere
            print("\n".join(step(f"holdfast release serve {last.policy}{at}", "the live version")))
        print("\n".join(step(f"holdfast release explain {last.id}{at}", "why, from the ledger")))
