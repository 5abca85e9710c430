"""The entry point: the list of commands, and how their errors reach a person."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast.cli import aliases, compat, look, optimize, orders, schema, stores
from holdfast.contracts.errors import HoldfastError

EXIT_CODES = {
    0: "done",
    1: "unexpected failure, or a check that did not pass",
    2: "bad input: a flag, a file, a name; nothing was started",
    3: "the run finished, and no rollout succeeded",
    4: "the run timed out",
    5: "the store: locked, full, damaged, newer, or it refused the change",
    130: "interrupted (Ctrl-C)",
    141: "the reader of the output went away",
    143: "terminated",
}
EPILOG = "Exit codes:\n\n\b\n" + "\n".join(f"{code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())


class Commands(TyperGroup):
    """Runs the command, and turns the end of it into an exit code and at most one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
            return answer
        except HoldfastError as error:
            say(f"holdfast: error: {error}")
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            say("holdfast: interrupted")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # Python would try once more to write what is left when it ends, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None


def say(line: str) -> None:
    """One line on stderr, whatever the line holds."""
    with contextlib.suppress(BrokenPipeError):
        print(" ".join(line.splitlines()), file=sys.stderr, flush=True)


app = typer.Typer(
    cls=Commands,
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: rich would cost more than everything else here
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"holdfast {version('holdfast')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Makes agents better and never lets them slip back; everything durable, in one store."""


app.command(epilog=optimize.EPILOG)(optimize.optimize)
for command in (look.runs, look.rollouts, look.spans, look.ledger, look.workers):
    app.command()(command)
for command in (orders.order, orders.requeue, orders.cancel):
    app.command()(command)
app.add_typer(stores.app, name="store")
app.command()(schema.schema)
app.add_typer(compat.app, name="compat")


def main() -> None:
    argv, warnings = aliases.rewrite(sys.argv[1:])
    for line in warnings:
        say(line)
    app(args=argv, prog_name="holdfast")
