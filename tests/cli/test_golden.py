"""`holdfast golden`: recorded once, replayed, and changed only by a signature in the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.weights import Manifest, save_transformer
from holdfast.store.store import open_store
from tests.cli.conftest import Answer, Cli
from tests.conftest import Files

SUITE = Path(__file__).resolve().parents[2] / "examples/suites/tool-use-suite.json"


@pytest.fixture
def weights(tmp_path: Path) -> list[str]:
    made = []
    for seed in (0, 1):
        folder = tmp_path / f"w{seed}"
        model = Transformer(ModelShape(width=16, layers=1, heads=2, context=512), seed=seed)
        save_transformer(folder, model, Manifest(kind="transformer", shape={}, created_at=0.0))
        made.append(str(folder))
    return made


class Goldens:
    def __init__(self, cli: Cli, store: str) -> None:
        self._cli, self.store = cli, store

    def __call__(self, *words: object) -> Answer:
        return self._cli("golden", *words, "--store", self.store)


@pytest.fixture
def golden(cli: Cli, files: Files) -> Goldens:
    return Goldens(cli, files.fresh())


def test_a_change_blocks_until_it_is_signed_and_then_is_the_golden(golden: Goldens) -> None:
    old, new = "sprout-weak", "sprout"  # one guesses, the other calls the tools and sees what they say
    made = golden("record", SUITE, "--version", old)
    assert made.code == 0, made.err
    assert made.lines[0].startswith("tool-use-suite ")
    assert golden("replay", SUITE, "--version", old).code == 0

    changed = golden("replay", SUITE, "--version", new, "--json")
    assert changed.code == 1
    assert changed.json["golden"] != changed.json["replay"]
    findings = {one["name"]: one for one in changed.json["findings"]}
    assert findings["action_hash"]["count"] == 2
    blocking = {name for name, one in findings.items() if one["count"] and one["blocks"]}
    assert blocking >= {"observation_hash", "reward_hash", "kpi_tokens"}
    assert "action_hash" not in blocking
    assert [one["case_id"] for one in changed.json["changes"]] == ["look-up-then-compute", "busy-calendar"]

    shown = golden("diff", "tool-use-suite")
    assert shown.code == 1
    assert shown.lines[-1] == "if this is wanted: holdfast golden sign tool-use-suite --why '…'"
    assert all(len(line) <= 80 for line in shown.lines if not line.startswith("tool-use-suite: "))

    signed = golden("sign", "tool-use-suite", "--why", "the new one is wanted", "--json").json
    assert (signed["sha256"], signed["before"]) == (changed.json["replay"], changed.json["golden"])
    assert golden("replay", SUITE, "--version", new).code == 0
    assert golden("replay", SUITE, "--version", old).code == 1
    (listed,) = golden("list", "--json").json
    assert (listed["sha256"], listed["signed_by"]) == (signed["sha256"], signed["who"])
    assert golden("list").lines[1].split()[0] == "tool-use-suite"
    with open_store(golden.store) as store:
        (entry,) = [one for one in store.ledger.entries() if one.kind == "golden"]
        assert entry.body["why"] == "the new one is wanted"


def test_a_golden_is_not_recorded_over(golden: Goldens, weights: list[str]) -> None:
    assert golden("record", SUITE, "--version", weights[0]).code == 0
    again = golden("record", SUITE, "--version", weights[1])
    assert again.code == 2
    assert "is there already" in again.err
    assert golden("record", SUITE, "--version", weights[1], "--name", "second").code == 0
    apart = golden("diff", "tool-use-suite", "second", "--json")
    assert apart.code == 0  # they say other things, and see and earn the same
    assert [one["what"] for one in apart.json["changes"]] == [["action"], ["action"]]
    early = golden("sign", "second", "--why", "wanted")  # there is nothing new to accept
    assert early.code == 2 and "was not replayed since it was recorded; 'holdfast golden replay second" in early.err
    assert "'holdfast golden replay tool-use-suite --version VERSION'" in golden("diff", "tool-use-suite").err
    assert golden("replay", "second", "--version", weights[1]).code == 0  # it knows its suite
    assert golden("sign", "second", "--why", " ").code == 2 and golden("sign", "second", "--why", "w").code == 0
    assert golden("replay", "tool-use-suite", "--version", weights[0]).code == 0
    assert golden("diff", SUITE).code == 0 and golden("sign", SUITE, "--why", "the suite is its name too").code == 0


def test_what_cannot_be_replayed_is_said_in_one_line(golden: Goldens, weights: list[str]) -> None:
    begin = f"holdfast golden record SUITE --version VERSION --store {golden.store}"
    assert golden("list").lines == [f"no goldens; make one: {begin}"]
    for words, said in (
        (["replay", SUITE, "--version", weights[0]], "golden tool-use-suite: is missing; 'holdfast golden list'"),
        (["record", SUITE, "--version", "oak"], "version 'oak': is no model"),
        (["record", SUITE, "--version", weights[0], "--name", "../x"], "golden '../x': must be letters"),
        (["diff", "none"], "golden none: is missing"),
    ):
        ran = golden(*words)
        assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
        assert said in ran.err
    golden("record", SUITE, "--version", weights[0])
    other = golden("replay", "tooluse:2", "--version", weights[0], "--name", "tool-use-suite")
    assert other.code == 2
    assert "is of another suite: tool-use-suite@1" in other.err
