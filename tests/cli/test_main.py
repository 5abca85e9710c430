"""The entry point: quick help, one line an error, documented exit codes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from holdfast.cli.main import COMMANDS, EXIT_CODES, HEADINGS, HIDDEN, SHORT
from holdfast.contracts import errors
from holdfast.store.store import open_store
from tests.cli.conftest import Cli

HEAVY = {"rich", "pydantic", "sqlalchemy", "alembic", "asyncio", "aiohttp", "numpy", "torch"}


def test_help_takes_less_than_three_tenths_of_a_second() -> None:
    """Of the processor, so that what else runs on the machine, the other tests above all, does not count."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("COV")}  # nor does measuring
    took = []
    for _ in range(5):
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


def test_help_lists_every_group_and_every_exit_code_in_80_columns(cli: Cli) -> None:
    ran = cli("--help")
    assert ran.code == 0
    listed = [name for names in HEADINGS.values() for name in names]
    assert sorted(listed) == sorted(name for name in COMMANDS if " " not in name)
    for name in listed:
        assert re.search(rf"^  {name} +{re.escape(COMMANDS[name][1])}$", ran.out, re.M)
    for code, meaning in EXIT_CODES.items():
        assert f"  {code:>3}  {meaning}\n" in ran.out + "\n"
    assert max(map(len, ran.lines)) <= 80
    assert cli("-h") == ran


@pytest.mark.parametrize(
    "command",
    [
        *(name.split() for name in (*COMMANDS, *SHORT, *HIDDEN)),
        *(["store", name] for name in ("check", "migrate", "stats", "export", "prune")),
        ["compat", "check"],
    ],
    ids=" ".join,
)
def test_every_command_explains_itself_in_80_columns(cli: Cli, command: list[str]) -> None:
    ran = cli(*command, "--help")
    assert ran.code == 0
    assert ran.lines[0].startswith(f"Usage: holdfast {' '.join(command)}")
    assert max(map(len, ran.lines)) <= 80


def test_the_version_is_the_packages(cli: Cli) -> None:
    assert cli("--version").out == f"holdfast {version('holdfast')}\n"


def test_every_error_has_a_documented_exit_code() -> None:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HoldfastError)
    ]
    assert len(kinds) > 10
    assert {kind.exit_code for kind in kinds} <= set(EXIT_CODES)


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
    ],
)
def test_a_wrong_command_line_exits_2_with_the_usage(cli: Cli, words: list[str], said: str) -> None:
    ran = cli(*words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("Usage: holdfast") and ran.err.rstrip().endswith(f"Error: {said}")


def test_an_unknown_flag_fails_with_the_documented_form_too(cli: Cli, tmp_path: Path) -> None:
    ran = cli.real("--prompt-optimization-config", "f", "--prompt-optimization-confg", "f", cwd=tmp_path)
    assert ran.code == 2
    assert "No such option: --prompt-optimization-confg" in ran.err
    assert not list(tmp_path.iterdir())


def test_the_documented_form_reads_its_config(cli: Cli, tmp_path: Path) -> None:
    ran = cli.real("--model", "openai/gpt-4o-mini", "--prompt-optimization-config", "f.json", cwd=tmp_path)
    assert (ran.code, ran.err) == (2, "holdfast: error: f.json: there is no such file; check the path\n")


def test_the_warning_comes_before_anything_else(cli: Cli, tmp_path: Path) -> None:
    ran = cli.real("--train-config", "f.json", "--train-config=g.json", cwd=tmp_path)
    assert ran.err.splitlines() == [
        "deprecated CLI alias '--train-config' detected; use '--prompt-optimization-config' instead",
        "holdfast: error: g.json: there is no such file; check the path",
    ]


def test_an_unexpected_failure_keeps_its_traceback_and_exits_1() -> None:
    code = (
        "import sys, types, holdfast.cli.main as main\n"
        "def broken(): raise RuntimeError('a bug')\n"
        "sys.modules['holdfast.cli.broken'] = types.SimpleNamespace(broken=broken)\n"
        "main.COMMANDS['broken'] = ('broken.broken', '')\n"
        "sys.argv = ['holdfast', 'broken']\n"
        "main.main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.startswith("Traceback") and ran.stderr.endswith("RuntimeError: a bug\n")


@pytest.mark.parametrize("first", ["", "raise KeyboardInterrupt"])
def test_ctrl_c_while_python_puts_its_things_away_is_no_news(first: str) -> None:
    code = (
        "import atexit, os, signal, sys, types, holdfast.cli.main as main\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        f"def over(): {first or 'pass'}\n"
        "sys.modules['holdfast.cli.over'] = types.SimpleNamespace(over=over)\n"
        "main.COMMANDS['over'] = ('over.over', '')\n"
        "sys.argv = ['holdfast', 'over']\n"
        "main.main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == ((130, "holdfast: interrupted\n") if first else (0, ""))


def test_ctrl_c_exits_130_with_one_line(tmp_path: Path) -> None:
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "holdfast.cli", "optimize", "--config", str(pipe)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process, pipe.open("w"):  # which opens once the command reads it
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "holdfast: interrupted\n")


@pytest.mark.parametrize("words", [["schema"], ["schema", "trajectory"], ["--help"]])
def test_a_reader_that_left_is_no_reason_to_complain(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    ran = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *words], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert ran.stderr == ""
    assert ran.returncode == (141 if words[0] == "schema" else 1)  # help is written by typer, before any command


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["schema"], ["runs", "--store", "s.db"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_under_stdout_is_one_line(words: list[str], unbuffered: str, tmp_path: Path) -> None:
    open_store(tmp_path / "s.db").close()
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "holdfast.cli", *words]
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=env)
    why = "No space left on device; make room, or write it elsewhere"
    assert (ran.returncode, ran.stderr) == (1, f"holdfast: error: the output cannot be written: {why}\n")


def test_a_closed_stdout_is_no_reason_to_complain(tmp_path: Path) -> None:
    open_store(tmp_path / "s.db").close()
    command = f"exec {shlex.quote(sys.executable)} -m holdfast.cli runs --store s.db >&-"
    ran = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("words", [[b"\xff"], [b"runs", b"--store", b"\xff"], [b"rollouts", b"caf\xe9"]])
def test_an_argument_that_is_not_utf_8_is_refused_in_one_line(words: list[bytes]) -> None:
    command = [sys.executable.encode(), b"-m", b"holdfast.cli", *words]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    why = "is not UTF-8; write it so, or rename what it names"
    assert ran.stderr == f"holdfast: error: argument {words[-1]!r}: {why}\n"


def test_the_shell_can_complete_commands_and_flags(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    script = cli.real("--show-completion", "bash")
    assert script.code == 0 and "_HOLDFAST_COMPLETE=complete_bash" in script.out
    for typed, found in (
        ("holdfast ro", "rollouts"),
        ("holdfast store st", "stats"),
        ("holdfast runs --lim", "--limit"),
    ):
        words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_HOLDFAST_COMPLETE": "complete_bash"}
        assert cli.real(env=os.environ | words).out.split() == [found]
