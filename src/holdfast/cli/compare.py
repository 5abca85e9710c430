"""`holdfast compare A B`: was that change better? Two stored runs, or two models or prompts on a file of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.api.results import Comparison

EPILOG = """Without --tasks A and B are runs, and nothing is run again. With --tasks they are models, as in local/sprout
or gpt-4o-mini; and with --model, too, they are prompts for that model: texts, or files as in @brief.txt."""
LOCAL = "local/"


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="What was: a run, a model or a prompt.")],
    b: Annotated[str, typer.Argument(metavar="B", help="What it became.")],
    tasks: Annotated[Path | None, typer.Option(metavar="FILE", help="Measure both on these: JSONL, CSV, ...")] = None,
    agent: Annotated[str | None, typer.Option(metavar="MODULE:FUNCTION", help="An agent, or FILE.py:FUNCTION.")] = None,
    scorer: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="exact, FILE.py:FUNCTION, ...; may be repeated.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="A and B are prompts for this model.")] = None,
    prompt: Annotated[str, typer.Option(metavar="NAME", help="What the agent calls that prompt.")] = "system",
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="An OpenAI-compatible endpoint.")] = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, max=100, help="Tries at each task, by either.")] = 2,
    alpha: Annotated[float, typer.Option(metavar="X", help="Chance of calling better what is not.")] = 0.05,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Say whether B is better than A: paired by task and seed, with a verdict that holds however often one looks.

    Nothing is trained, and no release moves.
    """
    from holdfast.api.calls import compare as compared

    options: dict[str, Any] = {"alpha": alpha, "store": store, "project": project}
    if tasks is None:
        for name, value in (("--agent", agent), ("--scorer", scorer), ("--model", model), ("--base-url", base_url)):
            if value:
                raise BadInput(name, why="is for what is measured now", remedy="give --tasks FILE, or two runs alone")
        found = compared(a, b, **options)
    else:
        if agent is None:
            raise BadInput("--agent", why="is missing", remedy="name the agent that is tried with A and with B")
        policies = [_policy(one, model, prompt) for one in (a, b)]
        given: dict[str, Any] = {"agent": agent, "scorers": scorer or ["exact"], "base_url": base_url, "seeds": seeds}
        if all(isinstance(one, str) or hasattr(one, "texts") for one in policies):
            given["model"] = model
        found = compared(policies[0], policies[1], str(tasks), **given, **options)
    if json:
        from holdfast.cli.show import print_json

        print_json(record(found))
    else:
        print(found)


def _policy(given: str, model: str | None, name: str) -> Any:
    """A model of ours, the name of one elsewhere, or a prompt."""
    if model is not None:
        from holdfast.policies.prompt import Prompt

        return Prompt({name: _text(given)})
    if not given.startswith(LOCAL):
        return given
    from holdfast.cli.options import needing

    with needing("learn"):
        from holdfast.policies.model import Model
    return Model(given.removeprefix(LOCAL))


def _text(given: str) -> str:
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not UTF-8"
        raise BadInput(f"prompt {given}", why=f"cannot be read: {why}", remedy="check the path") from None


def record(found: Comparison) -> dict[str, Any]:
    from holdfast.contracts.records import encode

    return {
        "a": found.names[0],
        "b": found.names[1],
        "is_better": found.is_better,
        "metric": found.how.primary,
        "difference": found.difference,
        "verdict": encode(found.verdict),
        "comparisons": {name: encode(one) for name, one in found.comparisons.items()},
        "left_out": found.left_out,
        "unfinished": dict(found.unfinished),
        "run": None if found.run is None else found.run.id,
    }
