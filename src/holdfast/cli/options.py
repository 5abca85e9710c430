"""Options that several commands share, the store they open with them, and files that are there whole or not at all."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeVar, get_type_hints

import typer
import typer.core
from typer import Argument, Option

from holdfast.contracts.errors import BadInput, NotFound

if TYPE_CHECKING:
    from socket import socket

    from holdfast.contracts.run import RunRecord
    from holdfast.contracts.settings import OptimizeSettings
    from holdfast.store.store import Store

DeviceOption = Annotated[
    str | None,
    Option("--device", metavar="NAME", help="Of a Hugging Face model: auto, cpu, cuda or cuda:N; auto takes a GPU."),
]
DtypeOption = Annotated[
    str | None, Option("--dtype", metavar="NAME", help="auto, float32 or bfloat16; auto is bfloat16 on a GPU.")
]


Text = str | Callable[[], object]
Command = TypeVar("Command", bound=Callable[..., "Output | None"])
CONFIG = "holdfast.toml"  # of a project, in its folder
KEYWORD = inspect.Parameter.KEYWORD_ONLY
PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}  # rich help is slow
LONG, GUIDED = "--prompt-optimization-", ("optimize", "start")  # names of the operations guide, and its command
DEFAULT_STORE = ".holdfast/training/store.sqlite"

StoreAt = Annotated[
    str, Option("--store", metavar="STORE", envvar="HOLDFAST_STORE", help="A file, or postgresql://user@host/name.")
]
Project = Annotated[str, Option("--project", metavar="NAME", help="Only what belongs to this project.")]
AnyProject = Annotated[
    str | None, Option("--project", metavar="NAME", help="Only this project; without it, all of them.")
]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
Leave = Annotated[
    list[str] | None,
    Option(
        "--leave",
        metavar="CLASS",
        help="Leave this class as it is when scrubbing, such as ip; may be repeated. Else: `leave` in holdfast.toml.",
    ),
]

Limit = Annotated[int, Option("--limit", metavar="N", min=1, max=10_000, help="At most so many rows.")]
RunText = Annotated[str, Argument(metavar="RUN", help="The run's id, or the beginning of it.")]
RolloutText = Annotated[str, Argument(metavar="RUN/NAME", help="The rollout's id; both parts may be cut short.")]
Host = Annotated[str, Option("--host", metavar="HOST", help="Others than this machine need a token.")]
Port = Annotated[int, Option("--port", metavar="N", min=0, max=65_535, help="0: any that is free.")]
Why = Annotated[str, Option("--why", metavar="TEXT", help="The reason, kept in the ledger.")]


def classes_left(given: list[str] | None) -> tuple[str, ...]:
    """The classes that scrubbing leaves as they are: by --leave, else by `leave` of the config in this folder."""
    if given is not None:
        return tuple(given)
    from holdfast.contracts.settings import left_by

    return left_by(Path(CONFIG))


@dataclass(frozen=True, slots=True)
class Output:
    """What a command has to say: `data` with --json, else `text`: one part or several, each printed or printing itself;
    and its exit code.

    Records in the data are encoded wherever they are.
    """

    data: Any
    text: Text | Iterable[Text]
    code: int = 0
    more: str = ""  # the command that shows the next page; with --json it goes to stderr

    def show(self, *, json: bool = False) -> None:
        from holdfast.cli.show import print_json

        if json:
            print_json(self.data)
        else:
            for part in [self.text] if isinstance(self.text, str) or callable(self.text) else self.text:
                part() if callable(part) else print(part)
        if self.more:
            print(self.more, file=sys.stderr if json else sys.stdout)
        if self.code:
            raise typer.Exit(self.code)


def existing(store: str, project: str = "default") -> Store:
    """The store, as it is: nothing is created or migrated by looking."""
    return StoreOptions(store, project).existing()


def store_flags(store: str, project: str) -> str:
    """The options that find the store again; none where it is the usual one."""
    at = "" if store == DEFAULT_STORE else f" --store {shlex.quote(store)}"
    return at + ("" if project == "default" else f" --project {shlex.quote(project)}")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """What --store and --project say. As text, the options that find the store again."""

    store: StoreAt = DEFAULT_STORE
    project: Project = "default"

    def __str__(self) -> str:
        return store_flags(self.store, self.project)

    def open(self, **how: Any) -> Store:
        from holdfast.store.store import open_store

        return open_store(self.store, project=self.project, **how)

    def existing(self, remedy: str = "") -> Store:
        """The store, as it is: nothing is created or migrated by looking. `remedy` says which command makes one."""
        try:
            return self.open(create=False, migrate=False)
        except NotFound as error:
            raise NotFound(error.what, why=error.why, remedy=remedy or error.remedy) from None


def never_on_command_line(given: str | None, flag: str, name: str) -> str | None:
    """The token that the environment has under this name; one that was given as an option is refused."""
    if given is not None:
        why = "everybody on this machine can read a command line (ps)"
        raise BadInput(flag, why=why, remedy=f"put the token into {name}" + FILES.get(flag, ""))
    return os.environ.get(name) or None


FILES = {"--token": ", or into a file and give --token-file FILE"}


@dataclass(frozen=True, slots=True)
class TokenOptions:
    """What callers of a server send as their API key: from a file, or from HOLDFAST_TOKEN."""

    token: Annotated[str | None, Option("--token", hidden=True)] = None
    token_file: Annotated[
        Path | None,
        Option(
            "--token-file",
            metavar="FILE",
            envvar="HOLDFAST_TOKEN_FILE",
            help="Holds what callers send as their API key; else: HOLDFAST_TOKEN.",
        ),
    ] = None

    def read(self) -> str | None:
        found = never_on_command_line(self.token, "--token", "HOLDFAST_TOKEN")
        if self.token_file is None:
            return found
        try:
            if self.token_file.stat().st_mode & 0o077:
                why, remedy = "others can read it", f"chmod 600 {self.token_file}"
                raise BadInput(f"--token-file {self.token_file}", why=why, remedy=remedy)
            return self.token_file.read_text().strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise BadInput(f"--token-file {self.token_file}", why=why, remedy="give a file of text") from None


def hand_over(token: str, folder: Path, name: str, *, link: str = "") -> str:
    """Shows a new token on the terminal, or else writes it to a private file: output may become a log."""
    if sys.stdout.isatty():
        return f"{link}{token}"
    path = folder / name
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{link}{token}\n")
    return f"what {path} holds, for your eyes only"


class ListedCommand(typer.core.TyperCommand):
    """Lists each option by its own name; the operations guide's long names work all the same, and its own command has
    them in its help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        known = {param.name: param.opts for param in self.params}
        for parameter in self.params if ctx.info_name not in GUIDED else ():
            parameter.opts = [name for name in parameter.opts if not name.startswith(LONG)] or parameter.opts
        try:
            super().format_options(ctx, formatter)
        finally:
            for parameter in self.params:
                parameter.opts = known[parameter.name]


class CommandSet(typer.Typer):
    """A group of commands. A parameter whose type is a dataclass stands for the options that its fields are; a command
    that returns a view has the option --json."""

    def __init__(self, help: str) -> None:
        super().__init__(help=help, add_completion=False, no_args_is_help=True, **PLAIN)

    def command(self, name: str | None = None, **given: Any) -> Callable[[Command], Command]:
        register = super().command(name, **{"cls": ListedCommand, **given})

        def add(function: Command) -> Command:
            register(_expanded(function))
            return function

        return add


def _expanded(function: Callable[..., Output | None]) -> Callable[..., None]:
    """The function with the fields of dataclasses as parameters of its own; --json stays the last option."""
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if is_dataclass(parameter.annotation)
    }
    parameters = [
        parameter.replace(kind=KEYWORD) for name, parameter in signature.parameters.items() if name not in groups
    ]
    for group in groups.values():
        kinds = get_type_hints(group, include_extras=True)
        for field in fields(group):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            parameters.append(inspect.Parameter(field.name, KEYWORD, default=default, annotation=kinds[field.name]))
    if signature.return_annotation is Output:
        parameters.append(inspect.Parameter("json", KEYWORD, default=False, annotation=Json))
    parameters.sort(key=lambda parameter: parameter.name == "json")

    @wraps(function)
    def command(**given: Any) -> None:
        json = {"json": given.pop("json")} if signature.return_annotation is Output else {}
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        if (view := function(**given)) is not None:
            view.show(**json)

    command.__signature__ = signature.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def settings_of(store: Store, run: RunRecord) -> OptimizeSettings:
    """Returns the settings that an `optimize` run was started with."""
    from holdfast.contracts.settings import settings_from

    if run.kind != "optimize":
        why = f"is a {run.kind}, which is driven by its own command"
        raise BadInput(f"run {run.id}", why=why, remedy=f"call 'holdfast {run.kind}' again")
    return settings_from(store.whole(run.settings), f"settings of {run.id}")


def who() -> str:
    """The user's login name."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"


def check_torch(command: str) -> None:
    """Refuses to start where PyTorch or numba is missing."""
    if find_spec("torch") is None or find_spec("numba") is None:
        raise BadInput(command, why="needs PyTorch, which is not installed", remedy="pip install 'holdfast[learn]'")


def address_of(listening: socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block by an exception: by itself it would end us before the last is written."""

    def terminate(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Turns a missing package into one line that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "holdfast":
            raise
        raise BadInput(package, why="is not installed", remedy=f"pip install 'holdfast[{extra}]'") from None


@contextmanager
def written_whole(path: Path) -> Iterator[TextIO]:
    """Write aside, sync, then rename; when the block fails, what was at the path before is still there."""
    path = path.resolve()
    try:
        if path.exists() and not path.is_file():
            if path.is_dir():
                raise BadInput(f"file {path}", why="is a folder", remedy="give the path of a file")
            with path.open("w", encoding="utf-8") as device:  # a pipe or a device: there is nothing to rename
                yield device
            return
        from holdfast.store.artifacts import replacing

        with replacing(path, mode=0o666 & ~_umask()) as file:
            text = TextIOWrapper(file, encoding="utf-8")
            yield text
            text.flush()
            text.detach()  # else it closes the file, which is not its own
    except OSError as error:
        why = f"cannot be written: {error.strerror or error}"
        raise BadInput(f"file {path}", why=why, remedy="make room, or choose another place") from error


LARGEST = 64 * 2**20  # bytes of a file of lines


def read_jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields every line of JSON with its place; one that cannot be read is named."""
    try:
        if path.stat().st_size > LARGEST:
            raise BadInput(str(path), why=f"is larger than {LARGEST // 2**20} MB", remedy="split it")
        # Only "\n" ends a line: JSON may hold what else Unicode breaks lines at. Editors may put a mark in front.
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise BadInput(str(path), why=error.strerror or str(error), remedy="give a file that can be read") from error
    except UnicodeDecodeError as error:
        raise BadInput(str(path), why="is not UTF-8 text", remedy="give one JSON object a line") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield f"{path}:{number}", json.loads(line)
            except (ValueError, RecursionError) as error:  # no JSON, a number of thousands of digits, a deep nest
                why = f"is not JSON: {str(error)[:80]}"
                raise BadInput(f"{path}:{number}", why=why, remedy="give one JSON object a line") from error


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found
