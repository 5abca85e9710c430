"""The entry point: the list of commands, older spellings of flags, and how errors reach a person."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from holdfast.cli.options import PLAIN, CommandSet
from holdfast.contracts.errors import HoldfastError
from holdfast.contracts.lines import folded, say

CANONICAL = "--prompt-optimization-"
CONTROL = "--prompt-optimization-control-"
ACTIONS = ("status", "pause", "resume", "cancel")
ALIASES = {
    "--train-config": "--prompt-optimization-config",
    "--train-store-sqlite": "--prompt-optimization-store-sqlite",
    "--train-json": "--prompt-optimization-json",
    "--training-proxy-server": "--prompt-optimization-proxy-server",
    "--training-proxy-bind": "--prompt-optimization-proxy-bind",
    "--training-proxy-upstream-url": "--prompt-optimization-proxy-upstream-url",
    "--training-proxy-state-dir": "--prompt-optimization-proxy-state-dir",
    "--training-proxy-timeout-ms": "--prompt-optimization-proxy-timeout-ms",
}


def alias_warning(old: str) -> str:
    return f"deprecated CLI alias '{old}' detected; use '{ALIASES[old]}' instead"


def rewrite_aliases(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command line in today's words, and the warnings that this deserves, in order.

    Only `optimize` has old names. Without a command, a documented flag means `optimize`, or `control`.
    """
    end = argv.index("--") if "--" in argv else len(argv)
    words, rest = list(argv[:end]), list(argv[end:])
    if not words or not (words[0] == "optimize" or words[0].startswith("-")):
        return list(argv), []
    if (ordered := _ordered(words)) is not None:
        return ordered + rest, []
    found: dict[str, None] = {}
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in ALIASES:
            found[flag] = None
            words[place] = ALIASES[flag] + equals + value
    if words[0] != "optimize" and any(word.startswith(CANONICAL) for word in words):
        words.insert(0, "optimize")
    return words + rest, [alias_warning(old) for old in found]


def _ordered(words: Sequence[str]) -> list[str] | None:
    """The documented flags of control as an order about the newest run; None where there is none of them.

    What has no counterpart today (a principal, a policy file, a second order) stays as it is: it is refused as unknown.
    """
    action, others, left = "", list[str](), iter(words)
    for word in left:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix(CONTROL) if flag.startswith(CONTROL) else ""
        if name in ACTIONS and not action and not equals:
            action = name
        elif name == "json" and not equals:
            others.append("--json")
        elif name == "state-dir":
            others += ["--store", f"{value if equals else next(left, '')}/store.sqlite"]
        else:
            others.append(word)
    if not action:
        return None
    why = [] if action == "status" else ["--why", f"by {CONTROL}{action}"]
    return ["control", action, "newest", *why, *others]


# What `holdfast --help` lists, under its headings.
HEADINGS = {
    "Begin": ("init", "quickstart", "doctor"),
    "Improve": ("run", "improve", "compare", "prove", "reward", "policy"),
    "Put into service": ("release", "serve", "proxy"),
    "Operate": ("control", "store", "town"),
}
COMMANDS = {  # name → its function or Typer and what it does; a file is read only when its command is called
    "init": ("improve.init", "Write a project of four short files that runs at once."),
    "quickstart": ("improve.quickstart", "Train the embedded weak model to use tools; offline, in minutes."),
    "doctor": ("doctor.doctor", "Check whether an endpoint's answers can be trained on."),
    "run": ("", "Runs: start, list, rollouts, spans, workers, quality."),
    "run start": ("run.optimize", "Run the rollouts of a config file and record how well they did."),
    "run list": ("look.runs", "List the runs, newest first."),
    "run rollouts": ("look.rollouts", "List the rollouts of a run."),
    "run spans": ("look.spans", "Show what happened in one attempt at a rollout."),
    "run work": ("run.work", "Add a worker to a run that another process drives."),
    "run workers": ("look.workers", "List the processes that work, or worked, on rollouts."),
    "run import": ("run.import_", "Import chat logs, without secrets and names, to train on."),
    "run quality": ("look.quality", "Check whether what a run collected can be trained on."),
    "run budgets": ("look.budgets", "Thinking budgets: what was allowed, used and wasted."),
    "run adoption": ("look.adoption", "Tools: used where tasks need them, and only there?"),
    "improve": ("improve.improve", "Train, prove the result on held-out tasks, accept or hold it; repeat."),
    "compare": ("prove.compare", "Test whether one run, model or prompt is better than another."),
    "prove": ("prove.app", "Prove on a suite that one version is better than another."),
    "prove report": ("report.app", "Published proofs and reports: list, check, archive, show."),
    "prove golden": ("calibrate.golden_app", "Record what a version does on a suite and detect when it changes."),
    "reward": ("", "Rewards: show, attach, score again, judge, evaluate."),
    "reward show": ("reward.rewards", "Show what a rollout was paid for, turn by turn."),
    "reward attach": ("reward.reward", "Attach a reward to a finished rollout."),
    "reward rescore": ("reward.rescore", "Another scorer on stored rollouts, beside the first scoring."),
    "reward evaluate": ("evaluate.evaluate", "Judge results by rules, judges, minimal diff and safety."),
    "reward diff": ("evaluate.diff", "Show what a change did, what it cost, and what nobody needed."),
    "reward judge": ("reward.judge_app", "Judges: ask them, calibrate them, report which of them count."),
    "reward label": ("reward.label", "Label what judges could not decide; labels calibrate them."),
    "policy": ("policy.app", "Models and prompts: chat, train, serve, show, diff, export."),
    "release": ("release.app", "Versions: list, explain, promote, roll back, serve; flags, A/B."),
    "release flags": ("flags.app", "Feature flags: switch, roll out by share, explain."),
    "release experiment": ("ab.app", "A/B experiments about a feature or two versions, with a verdict."),
    "serve": ("serve.serve", "The control room: pages, commands and an API for one store."),
    "proxy": ("serve.proxy", "Pass model calls on and record them as spans."),
    "control": ("control.app", "Commands to runs, rollouts and policies: pause, cancel, roll back."),
    "control tokens": ("control.tokens_app", "Access tokens for HTTP: add, rotate, revoke."),
    "control drill": ("doctor.drill_app", "Crash, roll back, pause, fill the disk, upgrade: for real."),
    "control mcp": ("serve.mcp", "Serve MCP clients: judge, compare, look things up."),
    "store": ("store.app", "Check, back up, migrate, measure, export or prune a store."),
    "store ledger": ("look.ledger", "List who decided what."),
    "store traces": ("store.traces_app", "Export spans to an OpenTelemetry collector, or import a file."),
    "store schema": ("store.schema", "Print the JSON Schema of a published record."),
    "town": ("town.app", "A simulated town: run, watch, replay, train its residents."),
}
# Names that work and are not listed: the operations guide's, and the last word of what lies in a group.
OTHER = {"run start": "optimize", "run list": "runs", "reward show": "rewards", "release experiment": "ab"}
SHORT = {OTHER.get(path, path.split()[1]): path for path in COMMANDS if " " in path}
HIDDEN = {"compat": "doctor.compat_app", "sprout": "policy.sprout_app"}
EXIT_CODES = {
    0: "done",
    1: "unexpected failure, or a check that did not pass",
    2: "bad input: a flag, a file, a name; nothing was started",
    3: "the run ended in vain: no rollout succeeded, or its budget was spent",
    4: "the run timed out",
    5: "the store: locked, full, damaged, newer, or it refused the change",
    130: "interrupted (Ctrl-C)",
    141: "the reader of the output went away",
    143: "terminated",
}
# Of a file without a name, that is of stdout: the store and all files that we name have errors of their own.
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
WHOLE, SHORTEST = 500, 15  # characters of a sentence, and of a part of it that says enough
EPILOG = "Exit codes:\n\n\b\n" + "\n".join(f"{code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())


def load(path: str, name: str) -> Any:
    """The command at a path of COMMANDS, called `name`."""
    place = HIDDEN.get(path) or COMMANDS[path][0]
    module, _, attribute = place.partition(".")
    file = import_module(f"holdfast.cli.{module}") if place else None
    found = getattr(file, attribute) if place else CommandSet(COMMANDS[path][1])
    if isinstance(found, typer.Typer):
        return Branch(path, typer.main.get_group(found))
    alone = CommandSet(COMMANDS[path][1])
    alone.command(name, epilog=getattr(file, f"{attribute.strip('_').upper()}_EPILOG", None))(found)
    return typer.main.get_command(alone)


class Branch(TyperGroup):
    """A group with what lies under its path in COMMANDS, which is read only when it is called."""

    def __init__(self, path: str, group: Any) -> None:
        about = {"help": group.help, "no_args_is_help": True, "rich_markup_mode": None}
        super().__init__(name=group.name, commands=group.commands, **about)
        self.inner = {one.removeprefix(f"{path} "): one for one in COMMANDS if one.startswith(f"{path} ")}

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.commands, *self.inner]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """`release experiment FEATURE --for 7d` is `release experiment start FEATURE --for 7d`."""
        names = self.list_commands(ctx)
        if "start" in self.commands and args[0] not in names and any(one.partition("=")[0] == "--for" for one in args):
            args = ["start", *args]
        elif args[0] not in names and not get_close_matches(args[0], names):  # else it is told which one is like it
            ctx.fail(f"No such command {args[0]!r}. There are {', '.join(names)}.")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load(self.inner[cmd_name], cmd_name) if cmd_name in self.inner else self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = {
            name: command.get_short_help_str(WHOLE) for name, command in self.commands.items() if not command.hidden
        }
        commands |= {name: COMMANDS[path][1] for name, path in self.inner.items()}
        room = formatter.width - max(map(len, commands)) - 4
        with formatter.section("Commands"):
            formatter.write_dl([(name, clause(sentence, room)) for name, sentence in commands.items()])


def clause(sentence: str, room: int) -> str:
    """Cuts a sentence to one line, at a colon or else at a comma. The command's own help has it whole."""
    if len(sentence) <= room:
        return sentence
    stops, commas = ([match.start() for match in re.finditer(mark, sentence[:room])] for mark in ("[;:] ", ", "))
    ends = [at for at in stops if at >= SHORTEST] or commas or stops
    return f"{sentence[: max(ends)]}." if ends else sentence


class CommandGroup(TyperGroup):
    """Finds the command, runs it, and turns the end of it into an exit code and at most one line."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = dict.fromkeys([name for name in (*COMMANDS, *SHORT, *HIDDEN) if " " not in name])  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        path = SHORT.get(cmd_name, cmd_name)
        return load(path, cmd_name) if path in COMMANDS or path in HIDDEN else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, names in HEADINGS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])

    def make_context(self, *given: Any, **extra: Any) -> Any:
        with _usage_folded():
            return super().make_context(*given, **extra)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _usage_folded():
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


@contextmanager
def _usage_folded() -> Iterator[None]:
    """Folds usage errors to 80 columns."""
    try:
        yield
    except Exception as error:
        if (tell := getattr(error, "format_message", None)) is not None:
            message = "\n".join(folded(f"Error: {tell()}", hanging="  ")).removeprefix("Error: ")
            error.format_message = lambda: message  # type: ignore[attr-defined]
        raise


def _flush() -> None:
    if sys.stdout is not None:  # closed by our caller
        sys.stdout.flush()


def _let_go_of_stdout() -> None:
    """Python would try once more to write what is left when it ends, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Makes agents better and never lets them slip back; everything durable, in one store."""


def main() -> None:
    for word in sys.argv[1:]:
        try:
            word.encode()
        except UnicodeEncodeError:  # nothing could print it, or look it up in a store
            say(f"holdfast: error: argument {os.fsencode(word)!r}: is not UTF-8; write it so, or rename what it names")
            sys.exit(2)
    if "TORCHELASTIC_RUN_ID" in os.environ:  # before anything is printed or opened several times
        from holdfast.api.driving import join_others

        join_others()
    argv, warnings = rewrite_aliases(sys.argv[1:])
    for line in warnings:  # as documented, word by word: a script may look for the whole line
        print(line, file=sys.stderr)
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
