"""README, guide, maintenance and workshop keep their word: their commands run as printed; the tree of files is true.

Lines that need a network or build the environment (make, git clone, cd, pip install) are not run; the targets
they name must exist.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.store.children import unmeasured
from tools.mission import make_targets
from tools.tree import PAGE, sentence, written

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [(ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("guide", "maintenance", "workshop")]
COPIED = ("examples", "benchmarks", "runs", "tools")
NOT_RUN = re.compile(r"(make|git clone|cd|(python -m )?pip install)\b")
SHELL = re.compile(r"[|<>$&;`]")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Shown:
    command: str
    exits: int  # 0, or what a comment "# exits 3" behind the command says


def shown_commands(text: str) -> list[Shown]:
    """Every command in the text's bash and sh blocks; a backslash carries it on, a comment ends it."""
    found = []
    for language, body in BLOCK.findall(text):
        if language not in ("bash", "sh"):
            continue
        for line in body.replace("\\\n", " ").splitlines():
            command, _, comment = line.strip().removeprefix("$ ").partition(" #")
            if command and not command.startswith("#"):
                code = re.search(r"exits (\d+)", comment)
                found.append(Shown(command.strip(), int(code.group(1)) if code else 0))
    return found


def ran(command: str) -> tuple[int, str]:
    """In this process, where it is a command of ours alone: to start sixty of them takes minutes."""
    words = shlex.split(command)
    if words[0] == "holdfast" and not SHELL.search(command):
        answer = Cli()(*words[1:])
        return answer.code, answer.out + answer.err
    env = unmeasured() | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(1800)  # on a machine that may be busy
def test_the_commands_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in COPIED:
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    commands = [shown for shown in shown_commands(README + "".join(PAGES)) if not NOT_RUN.match(shown.command)]
    assert commands, "the README shows no command of ours"
    for shown in dict.fromkeys(commands):
        code, said = ran(shown.command)
        assert code == shown.exits, f"{shown.command}\n{said}"


def test_the_readme_is_short_and_the_make_targets_exist() -> None:
    assert len(README.splitlines()) <= 220
    lines = [shown.command.split() for shown in shown_commands(README)]
    named = {word for words in lines if words[0] == "make" for word in words[1:] if "=" not in word}
    assert named <= make_targets()


def test_the_tree_in_the_architecture_page_is_the_tree_there_is() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "<!-- tree -->" in page
    assert written(page) == page, "run python tools/tree.py"


def test_every_file_says_what_it_is_for() -> None:
    silent = [
        path for path in (ROOT / "src/holdfast").rglob("*.py") if path.name != "__init__.py" and not sentence(path)
    ]
    assert [path for path in silent if path.name != "__main__.py" and path.parent.name != "versions"] == []


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        # a prompt, a comment of its own, an empty line
        ("$ holdfast runs\n\n# then\nholdfast spans\n", [Shown("holdfast runs", 0), Shown("holdfast spans", 0)]),
        # a command over two lines
        ("holdfast optimize \\\n  --json\n", [Shown("holdfast optimize    --json", 0)]),
        # a failure that is meant to be seen
        ("holdfast runs --limit 0  # exits 2: limits begin at 1\n", [Shown("holdfast runs --limit 0", 2)]),
    ],
)
def test_commands_are_read_as_a_person_reads_them(block: str, expected: list[Shown]) -> None:
    assert shown_commands(f"text\n```bash\n{block}```\n```json\nholdfast\n```\n") == expected
