"""`holdfast policy`, and Hugging Face folders through all commands that take a model: run, improve, prove, release."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from holdfast.cli.serving import loader
from holdfast.contracts.release import Stage
from holdfast.policies.engine import Local
from holdfast.policies.hub import Hub
from holdfast.policies.loading import load
from holdfast.policies.model import Model
from holdfast.policies.registry import folder_of
from holdfast.store.artifacts import FolderArtifacts
from holdfast.store.store import open_store
from holdfast.workloads.tooluse.tasks import generate, to_input
from tests.cli.conftest import Answer, Cli
from tests.workloads.scene import dialogue

QUICK = ("--epochs", 1, "--batch", 4, "--lr", 1e-3, "--held-out", 0.25)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's own: tiny-tools, in a folder of another name."""
    return shutil.copytree(folder_of("tiny-tools"), tmp_path / "mine")


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    shown = [dialogue(10**7 + place, "strong") for place in range(12)]
    rows = [{"messages": list(one.messages), "tools": list(one.tools)} for one in shown]
    (tmp_path / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "examples.jsonl"


@pytest.fixture
def at(tmp_path: Path) -> tuple[str, str]:
    return "--store", str(tmp_path / "store" / "store.sqlite")


def train(cli: Cli, *words: object) -> Answer:
    ran = cli("policy", "train", *words)
    assert ran.code == 0, ran.err
    return ran


def test_a_model_is_taught_shown_and_exported(
    cli: Cli, folder: Path, examples: Path, at: tuple[str, str], tmp_path: Path
) -> None:
    ran = train(cli, folder, examples, "--lora", 4, *QUICK, *at)
    assert "9 to learn from" in ran.out and "3 held out" in ran.out and "nats a token" in ran.out
    assert all(len(line) <= 80 for line in ran.out.partition("next:\n")[0].splitlines())
    version = next(line.split()[1] for line in ran.lines if line.startswith("  version"))
    told = cli("policy", "show", version, *at, "--json").json
    assert (told["model"], told["lora"], told["format"]) == (str(folder), 4, "Hugging Face")
    assert told["line"] == [version] and 0 < told["trained"] < told["parameters"]
    out = tmp_path / "out"
    assert cli("policy", "export", version, out, *at).code == 0
    transformers.AutoModelForCausalLM.from_pretrained(out)
    transformers.AutoTokenizer.from_pretrained(out)
    assert cli("policy", "export", version, out, *at).code == 2  # it is there
    assert "run-1" in cli("runs", *at).out

    more = train(cli, version, examples, *QUICK, *at, "--json").json["result"]
    line = cli("policy", "show", more["version"], *at, "--json").json["line"]
    assert line == [version, more["version"]]
    said = cli("sprout", "chat", "--model", out, "--say", "What is 417 * 23?")
    assert said.code == 0 and "9591" in said.out


def test_bad_examples_are_one_line_and_leave_no_store(
    cli: Cli, folder: Path, at: tuple[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}]}\n')
    ran = cli("policy", "train", folder, file, *at)
    assert ran.code == 2 and "bad.jsonl line 1: messages[1] has the role 'robot'" in ran.err
    assert ran.err.count("\n") == 1 and not Path(at[1]).exists()
    for words, why in (
        ((), "MODEL: is missing"),
        (("sprout",), "examples: there are none"),
        (("sprout", tmp_path / "none.jsonl"), "no such file"),
        (("sprout", file, "--column", "prompt"), "is not NAME=COLUMN"),
        (("sprout", file, "--lr", "-1"), "sft.lr = -1"),
        (("sprout", file, "--held-out", "1"), "is a share"),
    ):
        ran = cli("policy", "train", *words, *at)
        assert ran.code == 2 and why in ran.err, ran.err
        assert not Path(at[1]).exists()


def test_columns_of_other_names_are_mapped_and_a_csv_will_do(cli: Cli, at: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("ask,reply\n" + "".join(f"What is {n} + 1?,{n + 1}\n" for n in range(8)))
    words = ("--column", "prompt=ask", "--column", "completion=reply", "--system", "Be brief.")
    told = train(cli, "sprout-weak", file, *words, *QUICK, *at, "--json").json
    assert told["result"]["examples"]["sequences"] == 6
    with open_store(at[1]) as store:
        assert store.runs.newest()[0].settings["source"]["columns"] == {"prompt": "ask", "completion": "reply"}


def test_imported_logs_are_learnt_from(cli: Cli, at: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "logs.jsonl"
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"How many legs have {n} cats?"},
                {"role": "assistant", "content": f"{4 * n}"},
            ],
            "reward": float(n % 2),
        }
        for n in range(2, 14)
    ]
    file.write_text("".join(json.dumps(one) + "\n" for one in chats))
    assert cli("import", file, *at).code == 0
    with open_store(at[1]) as store:
        run = store.runs.newest()[0].id
    told = train(cli, "tiny-tools", "--from-run", run, "--least", 1, *QUICK, *at, "--json").json["result"]
    assert told["examples"]["examples"] == 6 and told["examples"]["skipped"] == {"its reward is below 1": 6}
    ran = cli("policy", "train", "tiny-tools", "--from-run", run, "--least", 2, *at)
    assert ran.code == 2 and "12: its reward is below 2" in ran.err


# Hugging Face folders through the other commands ---------------------------------------------------------------------


def config(tmp_path: Path, **more: Any) -> Path:
    def tasks(split: str, count: int) -> list[dict[str, Any]]:
        return [
            {**to_input(one), "sampling": {"temperature": 1.0, "max_tokens": 64}} for one in generate(split, 0, count)
        ]

    told = {
        "agent": "holdfast.workloads.tooluse.agent:agent",
        "worker_count": 16,
        "optimize": tasks("train", 4),
        "validate": tasks("val", 4),
        **more,
    }
    (tmp_path / "config.json").write_text(json.dumps(told))
    return tmp_path / "config.json"


def test_a_run_is_answered_by_a_folder(
    cli: Cli, folder: Path, at: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli("optimize", "--config", config(tmp_path), "--model", "local/mine", *at)
    assert ran.code == 0, ran.err
    with open_store(at[1]) as store:
        run = store.runs.newest()[0].id
        [calls] = [one.calls for one in store.experiences.of([f"{run}/train-1"])]
        assert calls[0].model == f"local/{folder}@0" and calls[0].completion_ids


def test_a_folder_is_improved_compared_and_released(
    cli: Cli, folder: Path, at: tuple[str, str], tmp_path: Path
) -> None:
    proof = {"seeds": 1, "batch": 4, "reward_range": [0, 1.1]}
    how = {"policy": "tools", "steps": 1, "step_tasks": 4, "samples": 4, "learning_rate": 1e-3, "prove": proof}
    ran = cli("improve", config(tmp_path, improve=how), "--model", f"local/{folder}", *at)
    assert ran.code == 0, ran.err
    with open_store(at[1]) as store:
        [made] = store.checkpoints.of_run(store.runs.newest()[0].id)
        assert made.algorithm == "grpo"
    proved = cli("prove", "run", "tooluse:4", "--baseline", folder, "--candidate", made.id, "--batch", 4, *at)
    assert proved.code == 0, proved.err
    assert f"{made.id} against {folder}" in " ".join(proved.out.split())

    assert cli("release", "add", folder, "--policy", "mine", *at).code == 0
    assert cli("release", "promote", "mine@1", *at).code == 0
    assert cli("release", "add", made.id, "--policy", "mine", "--parent", "mine@1", *at).code == 0
    with open_store(at[1]) as store:
        first, second = (store.releases.get(name) for name in ("mine@1", "mine@2"))
        assert first.stage is Stage.LIVE
        for release, policy in ((first, Model(str(folder))), (second, Model(str(folder), checkpoint=made.id))):
            served, proved_by = (
                answered(speaker) for speaker in (loader(store, None)(release), opened(policy, store.folder))
            )
            assert served == proved_by and served


def opened(policy: Model, store: Path) -> Any:
    net, _ = load(policy, FolderArtifacts(store))
    assert isinstance(net, Hub)
    return Local(net, slots=4, seed=0)


def answered(speaker: Any) -> tuple[int, ...]:
    try:
        asked = [{"role": "user", "content": "What is 12 * 12?"}]
        found: tuple[int, ...] = asyncio.run(speaker(asked, seed=3, temperature=1.0, max_tokens=40)).completion_ids
        return found
    finally:
        speaker.close()
