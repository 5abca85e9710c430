"""docs/mission.md from docs/mission.toml: each row of the mission, its state, and what shows and proves it.

    python tools/mission.py           write the page
    python tools/mission.py --check   fail when a row claims more than its evidence, or the page is stale
    python tools/mission.py --run     run every row's command in an empty folder, and say what became of each

Whether the evidence is good is for its own tests to say; here it only has to exist.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from typer.testing import CliRunner

from holdfast.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
STATES = ("works", "partly", "not yet")
FIELDS = {"title", "promise", "state", "command", "proof", "missing"}
PARTS = {
    "From Tau": [f"T{n}" for n in range(1, 13)],
    "From Agent Agency V2": [f"A{n}" for n in range(1, 16)],
    "From Townlet": [f"M{n}" for n in range(1, 10)] + ["X"],
    "Ours alone": [f"H{n}" for n in range(1, 10)],
}
IDS = [row for part in PARTS.values() for row in part]
FIRST = (  # what other rows look at
    "holdfast quickstart --quick",
    "holdfast ab create tone --arms control:0.5,friendly:0.5 --metric success",
)
FOUND = {"holdfast evaluate run-1 --limit 50": 1}  # a command that ends with another code than 0: some were wrong
COPIED = (
    "examples",
    "benchmarks",
    "experiments",
    "tools",
    "tests",
    "Makefile",
    "pyproject.toml",
    "constraints.txt",
    "src",
)


def load() -> dict[str, dict[str, Any]]:
    return tomllib.loads((ROOT / "docs/mission.toml").read_text(encoding="utf-8"))


def complaints(row: dict[str, Any]) -> list[str]:
    """Why this row may not stand as it is: every claim must point at something that exists."""
    found = [f"unknown field {name}" for name in sorted(set(row) - FIELDS)]
    found += [f"{name} is empty" for name in ("title", "promise") if not row.get(name)]
    state, command, proof, missing = (row.get(name) for name in ("state", "command", "proof", "missing"))
    if state not in STATES:
        return [*found, f"state {state!r} is none of {', '.join(STATES)}"]
    if state == "not yet":
        return found + [f"not yet, but names a {name}" for name in ("command", "proof", "missing") if row.get(name)]
    if not command:
        found.append(f"{state}, but no command shows it")
    elif "--help" in command:
        found.append(f"`{command}` shows what could be run, and no result")
    elif reason := command_is_absent(command):
        found.append(reason)
    if not proof:
        found.append(f"{state}, but nothing proves it")
    found += [reason for item in proof or [] if (reason := proof_is_absent(item))]
    if state == "partly" and (not missing or "\n" in missing):
        found.append("partly, but does not say in one line what is missing")
    if state == "works" and missing:
        found.append("works, but says that something is missing")
    return found


def command_is_absent(command: str) -> str | None:
    """A reason, or None when it is a `holdfast` command with its flags, a make target, or a script of ours."""
    program, *words = shlex.split(command)
    if {"&&", "||", "|", ";", ">"} & set(words):
        return f"`{command}`: more than one command"
    if program == "holdfast" and words:
        # The parser refuses unknown commands and flags before --help is obeyed, so nothing runs.
        ran = CliRunner().invoke(app, [*words, "--help"])
        return None if ran.exit_code == 0 else f"`{command}`: holdfast does not know it"
    if program == "make" and words:
        unknown = [word for word in words if word not in make_targets()]
        return f"`{command}`: the Makefile has no {', '.join(unknown)}" if unknown else None
    if program == "python" and words:
        return None if (ROOT / words[0]).is_file() else f"`{command}`: there is no {words[0]}"
    return f"`{command}`: neither a holdfast command, nor a make target, nor a script of this repository"


def make_targets() -> set[str]:
    return set(re.findall(r"^## ([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def proof_is_absent(item: str) -> str | None:
    """A reason, or None when the file is there and, for `file::test`, holds that test."""
    name, _, test = item.partition("::")
    path = ROOT / name
    if not path.is_file() or not path.stat().st_size:
        return f"proof {item}: there is no {name}"
    if test:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        return None if test.partition("[")[0] in functions else f"proof {item}: {name} has no {test}"
    return f"proof {item}: a test file without the name of a test" if path.name.startswith("test_") else None


def page(rows: dict[str, dict[str, Any]]) -> str:
    count = {state: sum(row["state"] == state for row in rows.values()) for state in STATES}
    lines = [
        "<!-- Written by tools/mission.py from docs/mission.toml: edit that file and run it again. -->",
        "# The mission, row by row",
        "",
        "What Holdfast has promised, and how far each promise is kept: the command that shows it, and the test or",
        "artifact that proves it. A test refuses a row that claims more than its evidence.",
        "",
        f"{len(rows)} rows: " + ", ".join(f"{count[state]} {state}" for state in STATES) + ".",
    ]
    for part, ids in PARTS.items():
        lines += [
            "",
            f"## {part}",
            "",
            "| row | what must work | state | shown by | proved by |",
            "|---|---|---|---|---|",
        ]
        for row in ids:
            entry = rows[row]
            state = f"partly: {entry['missing']}" if entry["state"] == "partly" else entry["state"]
            command = f"`{entry['command']}`" if entry.get("command") else ""
            proof = "<br>".join(f"`{item}`" for item in entry.get("proof", []))
            cells = [f"**{row}** {entry['title']}", entry["promise"], state, command, proof]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def run_all(rows: dict[str, dict[str, Any]]) -> int:
    """Run each command once, in a folder of its own with a copy of the repository; 1 if any ends as it should not."""
    named: dict[str, list[str]] = {command: [] for command in FIRST}
    for row, entry in rows.items():
        if entry.get("command"):
            named.setdefault(entry["command"], []).append(row)
    failed = 0
    with TemporaryDirectory() as folder:
        for name in COPIED:
            (Path(folder) / name).symlink_to(ROOT / name)
        (Path(folder) / ".venv").symlink_to(ROOT / ".venv")
        env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        for command, ids in named.items():
            began = time.monotonic()
            ran = subprocess.run(shlex.split(command), cwd=folder, env=env, capture_output=True, text=True, check=False)
            is_right = ran.returncode == FOUND.get(command, 0)
            failed += not is_right
            lines = (ran.stdout if is_right else ran.stderr).strip().splitlines()
            print(
                f"{'ok' if is_right else 'FAILED':<6} {time.monotonic() - began:6.1f} s  {', '.join(ids):<10} {command}"
            )
            print("".join(f"         {line}\n" for line in lines[-3:]), end="", flush=True)
    print(f"{len(named)} commands, {failed} failed")
    return min(failed, 1)


def main(arguments: list[str]) -> int:
    if "--run" in arguments:
        return run_all(load())
    rows, target = load(), ROOT / "docs/mission.md"
    problems = [f"no row {row}" for row in IDS if row not in rows]
    problems += [f"{row}: no such row in the mission" for row in rows if row not in IDS]
    problems += [f"{row}: {reason}" for row in rows for reason in complaints(rows[row])]
    if not problems and "--check" in arguments and (not target.exists() or target.read_text("utf-8") != page(rows)):
        problems.append("docs/mission.md is stale; run python tools/mission.py")
    for problem in problems:
        print(f"docs/mission.toml: {problem}", file=sys.stderr)
    if not problems and "--check" not in arguments:
        target.write_text(page(rows), encoding="utf-8")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
