"""`holdfast doctor`: whether an endpoint is fit to be trained on, told before anything is trained."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import show
from holdfast.cli.options import Json
from holdfast.cli.report_files import fold
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.collect.doctor import Trainer
    from holdfast.collect.endpoint_probe import DoctorFinding
    from holdfast.contracts.evidence import Decision

LOCAL = "local/"
EPILOG = """Exit codes: 0 it is fit, 1 it is not or is not there, 2 nothing could be asked.

The key for an endpoint is taken from OPENAI_API_KEY. About 700 very short answers are asked for."""


def doctor(
    target: Annotated[str, typer.Argument(metavar="URL|local/NAME", help="An endpoint, or a model of this machine.")],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which of the endpoint's models; without it, its first.")
    ] = None,
    tools: Annotated[bool, typer.Option("--tools/--no-tools", help="Whether agents will call tools.")] = True,
    samples: Annotated[int, typer.Option(metavar="N", min=8, max=1000, help="Answers to each opener.")] = 24,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="For each answer.")] = 60.0,
    system: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Instructions to ask under; models like sprout have usual ones."),
    ] = None,
    json: Json = False,
) -> None:
    """Ask an endpoint some hundreds of short questions, and say whether its answers can be learnt from."""
    from holdfast.cli.sprout import needing, usual_instructions

    with needing("serve"):
        from holdfast.collect.endpoint_probe import verdict
    if target.startswith(LOCAL):
        if model is not None:
            raise BadInput("--model", why=f"{target} names the model already", remedy="leave it out")
        with needing("learn"):
            from holdfast.policies.loading import is_foreign
            from holdfast.policies.registry import folder_of
        if system is None and not is_foreign(folder_of(target.removeprefix(LOCAL))):
            system = usual_instructions(tools=tools)
    how = {"with_tools": tools, "samples": samples, "system": system}
    if target.startswith(LOCAL):
        with serving(target.removeprefix(LOCAL)) as (url, name, trainer):
            asked, found = asyncio.run(examined(url, name, timeout, trainer=trainer, **how))
    else:
        asked, found = asyncio.run(examined(target, model, timeout, **how))
    decision = verdict(found)
    if json:
        from dataclasses import asdict

        from holdfast.contracts.records import encode

        rows = [asdict(one) for one in found]
        told = {"endpoint": target, "model": asked, "system": system}
        show.print_json({**told, "decision": encode(decision), "findings": rows})
    else:
        _tell(f"{asked} at {target}", found, decision, system)
    if not decision.open:
        raise typer.Exit(1)


def _tell(who: str, found: Sequence[DoctorFinding], decision: Decision, system: str | None) -> None:
    show.print_table(("check", "state", "~found"), [(one.check, one.state.value, one.detail) for one in found])
    print()
    if system is not None:
        print(fold(f"asked under the instructions: {show.one_line(system)}"))
    print(f"{who}: {'fit' if decision.open else 'not fit'} to be trained on")
    if not decision.open:
        print("\n".join(f"  {reason.code}: {reason.text}" for reason in decision.reasons))


async def examined(url: str, model: str | None, timeout_s: float, **how: Any) -> tuple[str, tuple[DoctorFinding, ...]]:
    """Which model was asked, and what was found."""
    import os

    from holdfast.collect.doctor import examine
    from holdfast.collect.endpoint_probe import CHECKS, EndpointProbe

    key = os.environ.get("OPENAI_API_KEY") if "trainer" not in how else None  # ours asks for none
    async with EndpointProbe(url, api_key=key, timeout_s=timeout_s) as probe:
        name = model or next(iter(await probe.models()), None)
        if name is None:
            raise BadInput(f"endpoint {url}", why="does not say which models it has", remedy="give --model NAME")
        with show.progress("examining", len(CHECKS)) as bar:
            found = await examine(probe, name, heard=lambda check: bar(now=check), **how)
    return name, found


@contextmanager
def serving(model: str) -> Iterator[tuple[str, str, Trainer]]:
    """A model of this machine behind an endpoint of its own, with what the trainer says of its answers."""
    import threading

    from holdfast.cli.sprout import needing, opened
    from holdfast.collect import endpoint

    with needing("learn"):
        from holdfast.learn.recompute_logprobs import recompute_logprobs
        from holdfast.policies.loading import load
        from holdfast.policies.model import Model
    with endpoint.listen("127.0.0.1", 0, token=None) as listening, opened(model) as (complete, name, spell):
        net = load(Model(model), None)[0]
        server = endpoint.server(endpoint.app(complete, name=name, spell=spell))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield (
                f"http://127.0.0.1:{listening.getsockname()[1]}/v1",
                name,
                lambda calls: recompute_logprobs(net, calls),
            )
        finally:
            server.should_exit = True
            thread.join()
