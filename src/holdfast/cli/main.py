"""The entry point: the list of commands, and how their errors reach a person."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast.cli import aliases
from holdfast.contracts.errors import HoldfastError

COMMANDS = {  # name → where it is, what it does; a command's file is read only when the command is called
    "init": ("init.init", "Write a project of four short files that runs at once."),
    "quickstart": ("quickstart.quickstart", "Train the embedded weak model to use tools; offline, in minutes."),
    "optimize": ("optimize.optimize", "Run the rollouts of a config file and record how well they did."),
    "improve": ("improve.improve", "Practise, prove it on held-out tasks, promote it; again."),
    "release": ("release.app", "Versions in service: list, explain, promote, roll back, serve."),
    "proxy": ("proxy.proxy", "Pass model calls on, and keep them as spans."),
    "work": ("work.work", "Help with a run that another process drives."),
    "runs": ("look.runs", "List the runs, newest first."),
    "rollouts": ("look.rollouts", "List the rollouts of a run."),
    "spans": ("look.spans", "Show what happened in one attempt at a rollout."),
    "workers": ("look.workers", "List the processes that work, or worked, on rollouts."),
    "ledger": ("look.ledger", "List who decided what."),
    "rewards": ("rewards.rewards", "Show what a rollout was paid for, turn by turn."),
    "control": ("control.app", "Orders to runs, rollouts and policies; obeyed once, and kept."),
    "tokens": ("tokens.app", "Who may look and give orders over HTTP: add, rotate, revoke."),
    "reward": ("reward.reward", "Say what a finished rollout was worth."),
    "rescore": ("rescore.rescore", "Another scorer on stored rollouts, beside the first scoring."),
    "compare": ("compare.compare", "Say whether one run, model or prompt is better than another."),
    "prove": ("prove.app", "Prove on a suite that one version is better than another."),
    "experiment": ("experiment.app", "Experiments with rewards: what does each of them teach?"),
    "evaluate": ("evaluate.evaluate", "Judge results by rules, judges, minimal diff and safety."),
    "report": ("report.app", "Published proofs and reports: list, check, archive, show."),
    "golden": ("golden.app", "Keep what a version does on a suite, and see when it changes."),
    "policy": ("policy.app", "Models: teach them examples, show what they are, export them."),
    "sprout": ("sprout.app", "Talk to the embedded model, or serve it to others."),
    "store": ("stores.app", "Check, migrate, measure, export or prune a store."),
    "traces": ("traces.app", "Spans to a collector of OpenTelemetry's, or from a file."),
    "import": ("importing.take_in", "Take in chat logs, without secrets and names, to learn from."),
    "doctor": ("doctor.doctor", "Tell whether an endpoint is fit to be trained on."),
    "diff": ("diff.diff", "Show what a change did, what it cost, and what nobody needed."),
    "quality": ("quality.quality", "Tell whether what a run collected is fit to be learnt from."),
    "budgets": ("budgets.budgets", "Thinking budgets: what was allowed, used and wasted."),
    "adoption": ("adoption.adoption", "Tools: used where tasks need them, and only there?"),
    "judge": ("judge.app", "Judges: ask them, calibrate them, report which of them count."),
    "label": ("label.label", "Decide what judges could not; labels feed their calibration."),
    "flags": ("flags.app", "Feature flags: switch them, for whom, and see why they are so."),
    "ab": ("ab.app", "Experiments: assign arms, record outcomes, ask for a verdict."),
    "serve": ("serve.serve", "The control room: pages, orders and an API for one store."),
    "town": ("town.app", "A town to live in: run it, watch it live, live it again."),
    "mcp": ("mcp.mcp", "Answer programs that speak MCP: judge, compare, look things up."),
    "drill": ("drill.app", "Crash, roll back, pause, fill the disk, upgrade: for real."),
    "schema": ("schema.schema", "Print the JSON Schema of a published record."),
    "compat": ("compat.app", "Check that older names of flags still work."),
}
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
# Of a file without a name, that is of stdout: the store and all files that we name have errors of their own.
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
EPILOG = "Exit codes:\n\n\b\n" + "\n".join(f"{code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
PLAIN: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
}  # rich help costs more than all else


class CommandGroup(TyperGroup):
    """Finds the command, runs it, and turns the end of it into an exit code and at most one line."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(".")
        file = import_module(f"holdfast.cli.{module}")
        found = getattr(file, name)
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        alone = typer.Typer(add_completion=False, **PLAIN)
        alone.command(cmd_name, epilog=getattr(file, "EPILOG", None))(found)
        return typer.main.get_command(alone)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:
        try:
            answer = super().invoke(ctx)
            _flush()
            return answer
        except HoldfastError as error:
            say(f"holdfast: error: {error}")
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            say("holdfast: interrupted")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            _let_go_of_stdout()
            raise typer.Exit(141) from None


def _flush() -> None:
    if sys.stdout is not None:  # closed by our caller
        sys.stdout.flush()


def _let_go_of_stdout() -> None:
    """Python would try once more to write what is left when it ends, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(line: str) -> None:
    """One line on stderr, whatever the text holds."""
    with contextlib.suppress(OSError):  # nobody there to read it, or no room for it
        print(" ".join(line.splitlines()), file=sys.stderr, flush=True)


app = typer.Typer(
    cls=CommandGroup,
    epilog=EPILOG,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    **PLAIN,
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


def main() -> None:
    for word in sys.argv[1:]:
        try:
            word.encode()
        except UnicodeEncodeError:  # nothing could print it, or look it up in a store
            say(f"holdfast: error: argument {os.fsencode(word)!r}: is not UTF-8; write it so, or rename what it names")
            sys.exit(2)
    argv, warnings = aliases.rewrite(sys.argv[1:])
    for line in warnings:
        say(line)
    try:
        try:
            app(args=argv, prog_name="holdfast")
        finally:  # most commands end by raising their exit code
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is over: Ctrl-C would only hit Python putting things away
            _flush()
    except BrokenPipeError:
        _let_go_of_stdout()
        sys.exit(141)
    except OSError as error:
        if error.errno not in NO_ROOM or error.filename is not None:
            raise
        say(f"holdfast: error: the output cannot be written: {error.strerror}; make room, or write it elsewhere")
        _let_go_of_stdout()
        sys.exit(1)
