"""The stories of the examples folder run as written, each in a folder of its own, and print what they promise.

Where a local model learns, the quick form is run: that its weights move is promised, how far is not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.children import unmeasured

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
STORIES = sorted(EXAMPLES.glob("story*.py"))
PATIENCE_S = 600  # alone each takes some seconds; other tests run beside them

# What each prints at the least, in this order; numbers that depend on chance or the machine are left out.
PROMISED: dict[tuple[str, ...], list[str]] = {
    ("story1_prompt.py",): ["accepted: capitals@2", "the winner: Answer with only the word.", "version: capitals@2"],
    ("story2_model.py", "--quick"): ["parameters moved: True", "held-out success: "],
    ("story2_clients.py", "anthropic", "--quick"): ["anthropic parameters moved: True"],
    ("story2_clients.py", "pydantic-ai", "--quick"): ["pydantic-ai parameters moved: True"],
    ("story5_compare.py",): ["is better than", "better: True +0.84", "stored: True", "agents: True", "alike: None"],
    ("story6_service.py",): [
        "capitals@2 is canary",
        "live: capitals@2 says 'Give only the word.'",
        "live: capitals@1 says 'You are helpful.'",
    ],
    ("story7_stored.py",): [
        "84 of 100 are wrong, as in 'Of course! It is BABABA.'",
        "became right: 84 of 100",
        "kept as: rescored-1",
    ],
    ("story8_algorithm.py", "--quick"): ["parameters moved: True", "success: "],
}


def told(folder: Path, *words: str) -> str:
    env = unmeasured() | {"PYTHONPATH": os.pathsep.join(sys.path)}
    env = {name: value for name, value in env.items() if not name.startswith(("OPENAI_", "ANTHROPIC_", "HOLDFAST_"))}
    ran = subprocess.run(
        [sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.timeout(PATIENCE_S + 60)
@pytest.mark.parametrize("words", PROMISED, ids=" ".join)
def test_a_story_prints_what_it_promises(words: tuple[str, ...], tmp_path: Path) -> None:
    out = told(tmp_path, str(EXAMPLES / words[0]), *words[1:])
    assert re.search(".*".join(map(re.escape, PROMISED[words])), out, re.S), out


def test_every_story_is_short_and_knows_only_the_door() -> None:
    assert {words[0] for words in PROMISED} <= {path.name for path in STORIES}
    for path in STORIES:
        text = path.read_text(encoding="utf-8")
        written = [line for line in text.splitlines() if line.strip()]
        assert len(written) < 40 and "from holdfast" not in text, path.name


@pytest.mark.timeout(PATIENCE_S + 60)
def test_the_project_that_init_writes_is_improved_at_once(tmp_path: Path) -> None:
    told(tmp_path, "-m", "holdfast.cli", "init", "demo")
    out = told(tmp_path, "-m", "holdfast.cli", "improve", "demo/holdfast.toml")
    assert "demo@2: accepted" in out
