"""`holdfast sprout …`: talk to the embedded model, serve it to others, read its card.

A model is one that ships with the package, or a folder: our own weights, or one in Hugging Face's format.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import Json

if TYPE_CHECKING:
    from holdfast.cli.talk import Talk
    from holdfast.collect.chat_format import Spell
    from holdfast.contracts.engine import Complete

PORT = 8377
app = typer.Typer(help="The embedded model.", add_completion=False, no_args_is_help=True, rich_markup_mode=None)

Model = Annotated[str, typer.Option("--model", metavar="MODEL", help="sprout, tiny-tools, or a folder with a model.")]


@app.command()
def serve(
    model: Model = "sprout",
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Others than this machine need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65_535, help="0: any that is free.")] = PORT,
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="TEXT", envvar="HOLDFAST_TOKEN", help="What callers send as their API key."),
    ] = None,
) -> None:
    """Put a model behind an OpenAI-compatible endpoint, until Ctrl-C."""
    with needing("serve"):
        from holdfast.collect import endpoint
    with endpoint.listen(host, port, token=token) as listening, opened(model) as (complete, name, spell):
        shown, port = f"[{host}]" if ":" in host else host, listening.getsockname()[1]
        print(f"{name} at http://{shown}:{port}/v1 (Ctrl-C ends it)", flush=True)
        endpoint.server(endpoint.app(complete, name=name, token=token, spell=spell)).run(sockets=[listening])


@app.command()
def chat(
    model: Model = "sprout",
    say: Annotated[
        list[str] | None, typer.Option("--say", metavar="TEXT", help="Say this and end; can be given several times.")
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="Its instructions; without it, sprout's usual ones.")
    ] = None,
    tools: Annotated[bool, typer.Option("--tools/--no-tools", help="Whether it has tools.")] = True,
    think: Annotated[str | None, typer.Option("--think", metavar="N", help="on, off, or at most N tokens.")] = None,
    temperature: Annotated[
        float, typer.Option("--temperature", metavar="X", min=0.0, max=2.0, help="0: no chance.")
    ] = 0.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", metavar="N", min=1, help="In one answer.")] = 256,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of its chance.")] = 0,
    remember: Annotated[
        bool, typer.Option("--remember", help="Keep what was said; sprout itself only knows single questions.")
    ] = False,
    json: Json = False,
) -> None:
    """Talk to a model; its tools really run. Piped lines are taken one by one."""
    from holdfast.cli.main import say as tell
    from holdfast.cli.report_files import fold
    from holdfast.cli.talk import Talk
    from holdfast.workloads.tooluse.tasks import THINK
    from holdfast.workloads.tooluse.tools import SPECS, Toolbox, ToolWorld

    box = Toolbox(ToolWorld(records=RECORDS))
    with opened(model) as (complete, _, _):
        talk = Talk(
            complete,
            tools=SPECS,
            call=box.call,
            write=(lambda text: None) if json else (lambda text: print(text, end="", flush=True)),
            system=usual_instructions(tools=tools) if system is None else system or None,
            think=THINK,
            sampling={"temperature": temperature, "max_tokens": max_tokens, "seed": seed},
        )
        if not tools:
            talk.order("/tools off")
        if think is not None:
            talk.order(f"/think {think}")
        if system is None and not json:
            tell(fold(f"instructions: {talk.opening} (--system gives others)"))
        converse(talk, lines(say), is_json=json, is_strict=say is not None, is_kept=remember)


@app.command()
def card() -> None:
    """Print the card of the models in the package: what they can do, and how they were made."""
    with needing("learn"):
        from holdfast.policies import registry
    print(registry.card().rstrip())


@app.command()
def train(
    output: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the weights go.")],
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="strong (sprout) or weak (sprout-weak).")
    ] = "strong",
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", min=1, help="As in the recipe, or so many.")
    ] = None,
    conversations: Annotated[
        int | None, typer.Option("--conversations", metavar="N", min=1, help="As in the recipe, or so many.")
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", min=1, help="Rows of 512 tokens a step.")] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of its first weights.")] = 0,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu or cuda.")] = "cpu",
    json: Json = False,
) -> None:
    """Make a model like those in the package, from nothing: minutes on one large GPU, hours on a CPU."""
    import time
    from dataclasses import replace

    from holdfast.cli.show import print_json, progress
    from holdfast.contracts.errors import BadInput

    with needing("learn"):
        from holdfast.workloads.pretraining import RECIPES, plant
    if kind not in RECIPES:
        raise BadInput(f"--kind {kind}", why="is unknown", remedy=f"use {' or '.join(RECIPES)}")
    if output.exists() and not (output / "manifest.json").is_file() and any(output.iterdir()):
        raise BadInput(str(output), why="is there and holds no weights", remedy="name another folder")
    usual = RECIPES[kind]
    recipe = replace(
        usual,
        seed=seed,
        steps=steps or usual.steps,
        conversations=conversations or usual.conversations,
        batch=batch or usual.batch,
    )
    with progress(f"training {recipe.kind}", recipe.steps) as advance:
        done = 0

        def observe(step: int, loss: float) -> None:
            nonlocal done
            advance(step - done, now=f"loss {loss:.4f}")
            done = step

        manifest = plant(recipe, output, created_at=time.time(), device=device, observe=observe)
    if json:
        print_json({"folder": str(output), "sha256": manifest.sha256, "notes": manifest.notes})
        return
    print(f"{output}: loss {manifest.notes['loss']:.4f} nats a token, sha256 {manifest.sha256[:16]}…")
    print(f'next:\n  holdfast sprout chat --model {output} --say "What is 417 * 23?"')


def usual_instructions(*, tools: bool) -> str:
    """What sprout was trained under. A caller may send it; no server adds it to a request."""
    from holdfast.workloads.tooluse.tasks import STYLES, USE, USE_NOT

    return f"{USE if tools else USE_NOT} {STYLES['full']}"


RECORDS = {
    "oak.price": "12",
    "oak.color": "brown",
    "ship.owner": "Mara",
    "ship.weight": "340 kg",
    "fair.date": "2031-05-04",
}


def lines(say: list[str] | None) -> Iterator[str]:
    """What is said: given, piped or typed."""
    if say is not None:
        yield from say
    elif not sys.stdin.isatty():
        yield from map(str.strip, sys.stdin)
    else:
        import readline  # noqa: F401  -- input() then has a history and can be edited

        print("/help lists orders, /quit ends")
        while True:
            try:
                yield input("> ").strip()
            except EOFError:
                print()
                return


def converse(talk: Talk, spoken: Iterator[str], *, is_json: bool, is_strict: bool, is_kept: bool) -> None:
    """Line by line, each a conversation of its own unless it is kept. Strictly, a question that fails ends it."""
    import asyncio

    from holdfast.cli.main import say as complain
    from holdfast.cli.talk import Quit, record
    from holdfast.contracts.errors import HoldfastError

    with asyncio.Runner() as runner:
        for line in spoken:
            try:
                if line.startswith("/"):
                    print(talk.order(line), file=sys.stderr if is_json else sys.stdout)
                elif line:
                    if not is_kept:
                        talk.messages.clear()
                    before = len(talk.messages)
                    calls = runner.run(talk.say(line))
                    if is_json:
                        print(record(line, talk.messages[before:], calls, system=talk.opening), flush=True)
            except Quit:
                return
            except HoldfastError as error:
                if is_strict:
                    raise
                complain(f"holdfast: error: {error}")
            except KeyboardInterrupt:
                if not sys.stdin.isatty() or is_strict:
                    raise
                print("(stopped)")


@contextmanager
def opened(model: str) -> Iterator[tuple[Complete, str, Spell]]:
    """The model as something that answers, its name, and how its tokens are spelled."""
    from holdfast.collect.chat_format import spell_byte

    with needing("learn"):
        from holdfast.policies.lm import Transformer
        from holdfast.policies.loading import load
        from holdfast.policies.local import Local
        from holdfast.policies.model import Model as Policy

    net, sha256 = load(Policy(model), None)
    spell = spell_byte if isinstance(net, Transformer) else net.voice.spell
    name = Path(model).resolve().name
    with Local(net, name=name, version=sha256[:12]) as local:
        yield local, name, spell


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """What is not installed is said in one line, with what to install."""
    from holdfast.contracts.errors import BadInput

    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "holdfast":
            raise
        raise BadInput(package, why="is not installed", remedy=f"pip install 'holdfast[{extra}]'") from None
