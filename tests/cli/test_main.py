"""The entry point and what all commands share: quick help, one line an error, documented exit codes, options, how
results look, files that are there whole or not at all."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.cli import show
from holdfast.cli.main import COMMANDS, EXIT_CODES, HEADINGS, HIDDEN, SHORT, main
from holdfast.cli.options import DEFAULT_STORE, existing, store_flags, who, written_whole
from holdfast.contracts import errors
from holdfast.contracts.errors import BadInput, NotFound, StoreError
from holdfast.store.db import REVISIONS, engine_for
from holdfast.store.store import open_store
from tests.cli.conftest import Answer, Cli, ended, running, unfolded
from tests.conftest import Files

GROUPS = ("prove", "prove report", "reward judge", "policy", "release", "release flags", "control", "store", "town")
HEAVY = {"rich", "pydantic", "sqlalchemy", "alembic", "asyncio", "aiohttp", "numpy", "torch"}


def test_help_takes_less_than_three_tenths_of_a_second() -> None:
    """Of the processor, so that what else runs on the machine, the other tests above all, does not count."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("COV")}  # nor does measuring
    took = []
    while not took or (min(took) >= 0.3 and len(took) < 5):
        process = subprocess.Popen([sys.executable, "-m", "holdfast.cli", "--help"], stdout=subprocess.DEVNULL, env=env)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        took.append(usage.ru_utime + usage.ru_stime)
    assert min(took) < 0.3


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from holdfast.cli.main import app\n"
        "try: app(['--help'], prog_name='holdfast')\n"
        "except SystemExit: print(*{name.partition('.')[0] for name in sys.modules})"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ran.stdout.splitlines()[-1].split()) & HEAVY == set()


@pytest.mark.parametrize("words", [["improve", "none.toml"], ["run", "start", "c.jsonl"], ["prove", "plan", "c.json"]])
def test_a_bad_file_is_refused_before_anything_heavy_is_loaded(here: Path, words: list[str]) -> None:
    (here / "c.jsonl").write_text("{}")
    (here / "c.json").write_text("[]")
    code = (
        f"import sys; from holdfast.cli.main import app\n"
        f"try: app({words!r}, prog_name='holdfast')\n"
        "except SystemExit as end: print(end.code, *{name.partition('.')[0] for name in sys.modules})"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    exits, *loaded = ran.stdout.split()
    assert exits == "2" and {"sqlalchemy", "alembic", "aiohttp", "numpy", "torch"} & set(loaded) == set()


@pytest.mark.parametrize("group", ["run", "reward", *GROUPS])
def test_each_command_of_a_list_has_one_line_with_a_whole_sentence(cli: Cli, group: str) -> None:
    listed = cli(*group.split(), "--help").done().out.partition("\nCommands:\n")[2].partition("\n\n")[0]
    assert listed and not re.search(r"(\.\.\.|…)$", listed, re.M)
    assert [line for line in listed.splitlines() if not re.fullmatch(r"  [a-z-]+ +[A-Z].*[.?]", line)] == []
    assert "former name" not in listed  # what is hidden is not listed


def test_help_lists_every_group_and_every_exit_code_in_80_columns(cli: Cli) -> None:
    ran = cli("--help").done()
    listed = [name for names in HEADINGS.values() for name in names]
    assert sorted(listed) == sorted(name for name in COMMANDS if " " not in name)
    for name in listed:
        assert re.search(rf"^  {name} +{re.escape(COMMANDS[name][1])}$", ran.out, re.M)
    for code, meaning in EXIT_CODES.items():
        assert f"  {code:>3}  {meaning}\n" in ran.out + "\n"
    assert ran.page and cli("-h") == ran
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HoldfastError)
    ]
    assert len(kinds) > 10 and {kind.exit_code for kind in kinds} <= set(EXIT_CODES)
    assert cli("--version").out == f"holdfast {version('holdfast')}\n"


@pytest.mark.parametrize(
    "command",
    [
        *(name.split() for name in (*COMMANDS, *SHORT, *HIDDEN)),
        *(["store", name] for name in ("check", "migrate", "stats", "export", "prune")),
        *(["sprout", name] for name in ("serve", "chat", "card")),
        ["compat", "check"],
    ],
    ids=" ".join,
)
def test_every_command_explains_itself_in_80_columns(cli: Cli, command: list[str]) -> None:
    ran = cli(*command, "--help").done()
    assert ran.lines[0].startswith(f"Usage: holdfast {' '.join(command)}")
    assert max(map(len, ran.lines)) <= 80


STORE = "check, seal, backup, restore, migrate, stats, export, prune, ledger, traces, schema"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bogus"], "No such command 'bogus'."),
        (["optimise"], "No such command 'optimise'. Did you mean 'optimize'?"),
        (["--bogus"], "No such option: --bogus"),
        (["runs", "--bogus"], "No such option: --bogus"),
        (["runs", "--limit", "0"], "Invalid value for '--limit': Input should be greater than or equal to 1"),
        (["rollouts"], "Missing argument 'RUN'."),
        (["control", "pause", "r"], "Missing option '--why'."),
        (["store", "bogus"], f"No such command 'bogus'. There are {STORE}."),
    ],
)
def test_a_wrong_command_line_exits_2_with_the_usage(cli: Cli, words: list[str], said: str) -> None:
    ran = cli(*words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("Usage: holdfast") and ran.err.rstrip().endswith(f"Error: {said}")


NO_FILE = "there is no such file; check the path\n"
WARNING = "deprecated CLI alias '--train-config' detected; use '--prompt-optimization-config' instead\n"


def test_the_module_is_the_program(here: Path) -> None:
    command = [sys.executable, "-m", "holdfast.cli", "runs", "--store", "none.sqlite"]
    ran = subprocess.run(command, capture_output=True, text=True)
    why = "there is none; check the path; 'holdfast run start' creates one"
    assert (
        Answer(ran.returncode, ran.stdout, unfolded(ran.stderr)).refusal
        == f"holdfast: error: store none.sqlite: {why}\n"
    )
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model openai/gpt-4o-mini --prompt-optimization-config f.json", f"holdfast: error: f.json: {NO_FILE}"),
        ("--train-config f.json --train-config=g.json", f"{WARNING}holdfast: error: g.json: {NO_FILE}"),
    ],
)
def test_the_documented_form_reads_its_config_and_a_warning_comes_before_anything_else(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["holdfast", *words.split()])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # at its end the program hears no Ctrl-C any more
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out, unfolded(err)) == (2, "", said)


def as_command(body: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """What becomes of a command with this body."""
    code = (
        f"import atexit, os, signal, sys, types, holdfast.cli.main as main\n{before}\n"
        f"def planted(): {body}\n"
        "sys.modules['holdfast.cli.planted'] = types.SimpleNamespace(planted=planted)\n"
        "main.COMMANDS['planted'] = ('planted.planted', '')\n"
        "sys.argv = ['holdfast', 'planted']\n"
        "main.main()"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_an_error_is_as_wide_as_the_terminal_and_what_is_copied_stays_whole(columns: int) -> None:
    command = "holdfast prove run --resume run-1-abcd --store /a/place/that/is/far/away.sqlite"
    path, install = f"/{'long/' * 30}store.sqlite", "pip install 'holdfast[learn]'"
    why = f"the agent's words are many, {'and more ' * 9}of them; see {path} or {install}"
    ran = as_command(
        f"raise main.HoldfastError('the agent', why={why!r}, remedy={command!r})",
        f"os.environ['COLUMNS'] = '{columns}'",
    )
    lines = ran.stderr.splitlines()
    assert [line for line in lines if len(line) > columns and path not in line and command not in line] == []
    assert all(any(whole in line for line in lines) for whole in (path, install, command))
    assert " ".join(ran.stderr.split()) == f"holdfast: error: the agent: {why}; {command}"


def test_an_unexpected_failure_keeps_its_traceback_and_exits_1() -> None:
    ran = as_command("raise RuntimeError('a bug')")
    assert ran.returncode == 1
    assert ran.stderr.startswith("Traceback") and ran.stderr.endswith("RuntimeError: a bug\n")


@pytest.mark.parametrize("body", ["pass", "raise KeyboardInterrupt"])
def test_ctrl_c_while_python_puts_its_things_away_is_no_news(body: str) -> None:
    ran = as_command(body, "atexit.register(os.kill, os.getpid(), signal.SIGINT)")
    assert (ran.returncode, ran.stderr) == ((0, "") if body == "pass" else (130, "holdfast: interrupted\n"))


def test_ctrl_c_exits_130_with_one_line(tmp_path: Path) -> None:
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    with running("optimize", "--config", pipe) as child, pipe.open("w"):  # which opens once the command reads it
        child.send_signal(signal.SIGINT)
        ran = ended(child)
    assert (ran.code, ran.out, ran.err) == (130, "", "holdfast: interrupted\n")


@pytest.mark.parametrize(("words", "code"), [("schema", 141), ("schema trajectory", 141), ("--help", 1)])
def test_a_reader_that_left_is_no_reason_to_complain(words: str, code: int) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "holdfast.cli", *words.split()]
    ran = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (ran.stderr, ran.returncode) == ("", code)  # help is written by typer, before any command


@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [("--version", ""), ("--version", "1"), ("--help", ""), ("schema", "1"), ("runs --store s.db", "")],
)
def test_a_full_disk_under_stdout_is_one_line(words: str, unbuffered: str, here: Path, template: Path) -> None:
    (here / "s.db").write_bytes(template.read_bytes())
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "holdfast.cli", *words.split()]
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    why = "No space left on device; make room, or write it elsewhere"
    said = unfolded(ran.stderr)
    assert (ran.returncode, said) == (1, f"holdfast: error: the output cannot be written: {why}\n")


def test_a_closed_stdout_is_no_reason_to_complain(here: Path) -> None:
    open_store("s.db").close()
    command = f"exec {shlex.quote(sys.executable)} -m holdfast.cli runs --store s.db >&-"
    ran = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("words", [[b"\xff"], [b"rollouts", b"caf\xe9"]])
def test_an_argument_that_is_not_utf_8_is_refused_in_one_line(words: list[bytes]) -> None:
    command = [sys.executable.encode(), b"-m", b"holdfast.cli", *words]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    why = "is not UTF-8; write it so, or rename what it names"
    assert unfolded(ran.stderr) == f"holdfast: error: argument {words[-1]!r}: {why}\n"


def test_the_shell_can_complete_commands_and_flags(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert "_HOLDFAST_COMPLETE=complete_bash" in cli.real("--show-completion", "bash").done().out
    for typed, found in (("ro", "rollouts"), ("store st", "stats"), ("runs --lim", "--limit")):
        words = {"COMP_WORDS": f"holdfast {typed}", "COMP_CWORD": str(len(typed.split()))}
        env = os.environ | words | {"_HOLDFAST_COMPLETE": "complete_bash"}
        assert cli.real(env=env).out.split() == [found]


# Options that several commands share


def test_the_store_may_come_from_the_environment_and_looking_for_one_creates_none(
    cli: Cli, files: Files, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFound):
        existing(DEFAULT_STORE)
    assert list(here.iterdir()) == [] and who() == "ann"
    monkeypatch.setenv("HOLDFAST_STORE", files.fresh())
    assert cli("runs").code == 0
    assert cli("runs", "--store", files.blank()).code == 2  # a flag wins
    assert store_flags(DEFAULT_STORE, "default") == ""
    assert store_flags("my store.db", "mine") == " --store 'my store.db' --project mine"


def test_looking_at_an_older_store_does_not_change_it(files: Files) -> None:
    path = files.fresh()
    connection = engine_for(path).connect(read_only=False)
    connection.execute("UPDATE alembic_version SET version_num = ?", (REVISIONS[0],))
    connection.close()
    with pytest.raises(StoreError) as caught:
        existing(path)
    expected = f"its schema is {REVISIONS[0]}, not {REVISIONS[-1]}; run 'holdfast store migrate'"
    assert str(caught.value) == f"store {path}: {expected}"


@pytest.mark.parametrize("project", ["", " ", "x" * 101])
def test_a_project_has_a_name(cli: Cli, files: Files, project: str) -> None:
    said = cli("runs", "--store", files.fresh(), "--project", project).refusal
    assert said == f"holdfast: error: project {project!r}: must be 1 to 100 characters, not blank\n"


# Files that are there whole or not at all


def test_the_file_appears_with_its_whole_content_and_ordinary_rights(tmp_path: Path) -> None:
    path, link = tmp_path / "new" / "folder" / "report.md", tmp_path / "link.md"
    with written_whole(path) as file:
        file.write("first\n")
        assert not path.exists()
        file.write("last ä\n")
    assert path.read_text(encoding="utf-8") == "first\nlast ä\n"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    link.symlink_to(path)
    with written_whole(link) as file:
        file.write("after")
    assert link.is_symlink() and path.read_text() == "after"  # a link keeps pointing where it did


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text("before")
    with pytest.raises(TypeError), written_whole(path) as file:
        file.writelines(["half", 3])  # type: ignore[list-item]
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    with written_whole(pipe) as file:
        file.write("through")
    reader.join()
    assert read == ["through"] and pipe.is_fifo()


def test_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, why in (
        (tmp_path, "is a folder; give the path of a file"),
        (tmp_path / "file" / "below.md", "cannot be written: File exists; make room, or choose another place"),
    ):
        with pytest.raises(BadInput) as caught, written_whole(path):
            pass
        assert str(caught.value) == f"file {path}: {why}"


# How results look


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"),
        (0.0, "0"),
        (1 / 3, "0.3333"),
        (3, "3"),
        ("two\n lines\tand more", "two lines and more"),
        ("bell\a and escape\x1b[31m", "bell� and escape�[31m"),
        ({"a": ["ä"]}, '{"a": ["ä"]}'),
        ("[bold]not markup[/]", "[bold]not markup[/]"),
        ("x" * 1000, "x" * 200),
    ],
)
def test_any_value_becomes_one_printable_line(value: object, expected: str) -> None:
    assert show.one_line(value) == expected


def test_times_and_sizes_have_their_units(cli: Cli) -> None:
    spans = {None: "-", 0.0: "0.0 ms", 0.0042: "4.2 ms", 0.5: "500 ms", 1.25: "1.2 s", 90: "90.0 s"}
    spans |= {150: "2 min", 7200: "2 h", 200_000: "2 d"}
    assert {seconds: show.span_of_time(seconds) for seconds in spans} == spans
    sizes = {0: "0 B", 999: "999 B", 1500: "1.5 kB", 2.5e6: "2.5 MB", 3e9: "3.0 GB", 4e12: "4.0 TB"}
    assert {n: show.size(n) for n in sizes} == sizes
    assert show.local_time(1_000_000.0) == "1970-01-12 13:46:40" and show.local_time(None) == "-"  # local time


@pytest.mark.parametrize(
    ("wide", "soft", "room", "expected"),
    [
        ([5, 5], [False, False], 20, [5, 5]),  # there is room
        ([5, 30], [False, True], 20, [5, 15]),  # the soft one gives way
        ([30, 30], [True, True], 40, [20, 20]),  # two soft ones share
        ([30, 30], [False, True], 30, [22, 8]),  # a soft one keeps 8, then the others give
        ([3, 3, 3], [False] * 3, 2, [1, 1, 1]),  # never less than one
    ],
)
def test_columns_share_the_room(wide: list[int], soft: list[bool], room: int, expected: list[int]) -> None:
    assert show.fit(wide, soft, room) == expected


@pytest.mark.parametrize(
    ("room", "kept"),
    [(40, [0, 1, 2, 3]), (37, [0, 1, 3]), (30, [0, 3])],  # the soft one may shrink to 8; the last marked goes first
)
def test_a_column_that_can_be_spared_goes_before_any_is_cut(room: int, kept: list[int]) -> None:
    assert show.kept_columns(("a", "?b", "?>c", "~d"), [16, 4, 4, 20], room) == kept


def test_a_table_fits_whatever_is_in_it(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("id", 12, "long " * 50), ("漢字" * 30, None, "[red]"), ("a\nb", 0.5, "")]
    show.print_table(("name", ">n", "~text"), rows)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(Console().measure(line).maximum <= 80 for line in lines)
    assert lines[0].split() == ["name", "n", "text"]
    assert lines[1].split()[:2] == ["id", "12"] and lines[1].rstrip().endswith("…")
    assert "[red]" in lines[2]


def test_the_next_page_is_a_command_that_can_be_pasted() -> None:
    line = show.next_page("run rollouts", "run-1", status=None, after="a b", store="x.db")
    assert line == "more: holdfast run rollouts run-1 --after 'a b' --store x.db"


def test_a_command_has_its_purpose_beside_it_or_above_and_is_carried_on_as_a_shell_takes_it() -> None:
    assert list(show.step("holdfast run list", "all of them")) == ["  holdfast run list   # all of them"]
    assert list(show.step("holdfast run list")) == ["  holdfast run list"]
    long = "holdfast release decide tools@2 --run run-1-d4a3 --untrained"
    assert list(show.step(long, "let the gate decide")) == ["  # let the gate decide", f"  {long}"]
    longer = f"{long} --store /a/folder/of/some/length/store.sqlite"
    lines = list(show.step(longer))
    assert max(map(len, lines)) <= 80 and len(lines) == 2
    assert " ".join("".join(lines).replace("\\", " ").split()) == longer


def test_sentences_are_folded_and_paths_are_short_and_never_folded(here: Path) -> None:
    assert show.near(here / "a/b.html") == "a/b.html" and show.near("/elsewhere/c") == "/elsewhere/c"
    assert show.left("page", "a.html", "  ") == ["  page  a.html"]
    assert show.left("page", f"{'x' * 78}", "  ") == ["  page", "x" * 78]
    found = show.folded(f"{'word ' * 20}{'y' * 100}", "  ")
    assert found[-1] == f"  {'y' * 100}" and max(map(len, found[:-1])) <= 80


def terminal(kind: str) -> Console:
    return Console(file=io.StringIO(), force_terminal=kind == "terminal", width=80)


@pytest.mark.parametrize(
    ("kind", "after_s", "shown"), [("terminal", 0.1, True), ("terminal", 60.0, False), ("file", 0.1, False)]
)
def test_a_bar_appears_after_a_while_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, kind: str, after_s: float, shown: bool
) -> None:
    assert show.PATIENCE_S == 2.0
    monkeypatch.setattr(show, "PATIENCE_S", after_s)
    console = terminal(kind)
    text, until = "", time.monotonic() + (60.0 if shown else 0.3)
    with show.progress("counting", 10, console) as advance:
        advance(3, now="sheep")
        while "3/10" not in text and time.monotonic() < until:
            time.sleep(0.02)
            text = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("counting: sheep" in text and "3/10" in text) == shown
    assert shown or text == ""


def test_a_bar_is_taken_away_when_the_work_fails() -> None:
    console = terminal("terminal")
    with pytest.raises(KeyError), show.progress("counting", 1, console):
        raise KeyError
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
