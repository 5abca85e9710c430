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

import holdfast as hf
from holdfast.api.results import result_of
from holdfast.api.stored import decided_of
from holdfast.contracts.rollout import Split
from holdfast.policies.model import load
from tests.store.children import unmeasured
from tests.warm import Warm, ran

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
BASE = hf.Model("tiny-tools")
STORIES = sorted(EXAMPLES.glob("story*.py"))
PATIENCE_S = 600  # alone each takes some seconds; other tests run beside them

# What each prints at the least, in this order; numbers that depend on chance or the machine are left out.
PROMISED: dict[tuple[str, ...], list[str]] = {
    ("story1_prompt.py",): ["accepted: writer@2", "Reply: The answer is X.", "taken back: 'You are helpful.'"],
    ("story1_prompt.py", "pydantic-ai"): ["accepted: writer@2", "writer@2\nsays\n", "taken back: 'You are helpful.'"],
    ("story4_environment.py",): [
        "accepted: CartPole-v1@2",
        "version: CartPole-v1@2",
        "steps that the pole stays up: +",
    ],
    ("story5_compare.py",): ["is better than", "better: True +0.8", "stored: True", "agents: True", "alike: None"],
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

# Story 2 by each client: the whole of it by one, and as much as moves the weights by the others.
CLIENTS: tuple[tuple[str, ...], ...] = (
    ("story2_model.py",),
    ("story2_anthropic.py", "--quick"),
    ("story2_frameworks.py", "pydantic-ai", "openai-agents", "langgraph", "--quick"),
)
EXPORTED = "story3_examples.py"


def told(folder: Path, *words: str) -> str:
    env = unmeasured() | {"PYTHONPATH": os.pathsep.join(sys.path)}
    env = {name: value for name, value in env.items() if not name.startswith(("OPENAI_", "ANTHROPIC_", "HOLDFAST_"))}
    done = ran(words, cwd=folder, env=env, timeout_s=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(PATIENCE_S + 60)
@pytest.mark.parametrize("words", PROMISED, ids=" ".join)
def test_a_story_prints_what_it_promises(words: tuple[str, ...], tmp_path: Path) -> None:
    out = told(tmp_path, str(EXAMPLES / words[0]), *words[1:])
    assert re.search(".*".join(map(re.escape, PROMISED[words])), out, re.S), out


@pytest.mark.timeout(PATIENCE_S + 60)
@pytest.mark.parametrize("words", CLIENTS, ids=" ".join)
def test_a_model_learns_from_what_a_client_asked_it(words: tuple[str, ...], tmp_path: Path) -> None:
    out = told(tmp_path, str(EXAMPLES / words[0]), *words[1:])
    runs = hf.runs(store=tmp_path / ".holdfast/training/store.sqlite")
    assert len(runs) == max(len(words) - 2, 1)
    for run in runs:
        result = learnt(run)
    was, became = list(map(float, re.findall(r"held-out success (?:before|after): ([\d.]+)", out)))[-2:]
    if "--quick" not in words:
        assert result.is_accepted and became > was + 0.3


@pytest.mark.timeout(PATIENCE_S + 60)
def test_a_better_prompt_is_found_for_the_embedded_model_behind_an_address(tmp_path: Path) -> None:
    words = ["-m", "holdfast.cli", "policy", "serve", "--model", "sprout", "--port", "0"]
    with Warm(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None
            out = told(tmp_path, str(EXAMPLES / "story1_prompt.py"), "openai", found[0], "sprout")
        finally:
            server.terminate()
    assert "accepted: writer@2" in out and "Reply: The answer is X." in out and "taken back: 'You are helpful.'" in out


def learnt(run: hf.Run) -> hf.Result:
    """Of a run whose weights have moved, and by what the client had asked, to which nothing was added."""
    with run.place.open() as store:
        result = result_of(store, run)
        learnt_from = [one for one in decided_of(store, run.id, spans=True) if one.split is Split.TRAIN]
        before, after = (load(policy, store.files)[0].state_dict() for policy in (BASE, result.candidate))
    for one in learnt_from:
        (call, *_) = [span.model for span in one.spans if span.model is not None]
        assert call.prompt_ids and call.completion_ids and call.logprobs is not None
        assert call.messages == ({"role": "user", "content": one.input["input"]["question"]},)
    assert learnt_from and any(not value.equal(after[name]) for name, value in before.items())
    return result


@pytest.mark.timeout(PATIENCE_S + 60)
def test_a_model_is_taught_practises_and_is_written_out_as_it_became(tmp_path: Path) -> None:
    out = told(tmp_path, str(EXAMPLES / EXPORTED), "--quick")
    before, taught, _ = map(float, re.findall(r"(?:before|taught|practised): ([\d.]+)", out))
    assert before < taught
    (run,) = (one for one in hf.runs(store=tmp_path / "story3/store.sqlite") if one.record.kind == "improve")
    with run.place.open() as store:
        trained = load(result_of(store, run).candidate, store.files)[0].state_dict()
    written = load(hf.Model(str(tmp_path / "story3/model")), None)[0]
    assert all(value.equal(trained[name]) for name, value in written.named_parameters())


def test_every_story_is_short_is_run_here_and_knows_only_the_door() -> None:
    assert {words[0] for words in (*PROMISED, *CLIENTS, (EXPORTED,))} == {path.name for path in STORIES}
    for path in EXAMPLES.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) < 40 and "from holdfast" not in text, path.name


@pytest.mark.timeout(PATIENCE_S + 60)
def test_the_project_that_init_writes_is_improved_at_once(tmp_path: Path) -> None:
    told(tmp_path, "-m", "holdfast.cli", "init", "demo")
    out = told(tmp_path, "-m", "holdfast.cli", "improve", "demo/holdfast.toml")
    assert "demo@2: accepted" in out
