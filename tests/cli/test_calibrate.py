"""`prove calibrate` and `null`: how often a proof is wrong; `golden`: what a version does."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.cli.calibrate import page
from holdfast.contracts.evidence import Episode
from holdfast.contracts.records import decode, encode
from holdfast.pipeline.calibrate import ATTACKS, POWERS
from holdfast.pipeline.prove import InterimAnalysis
from holdfast.prove.calibrate import NULLS, ErrorRates, Null, binary
from holdfast.prove.comparison import ComparisonConfig
from holdfast.prove.guard import METRICS
from holdfast.store.store import open_store
from tests.cli.conftest import Cli, Group
from tests.conftest import Clock, Files


@pytest.mark.usefixtures("untraced")
def test_a_calibration_is_printed_written_and_within(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    ran = cli("prove", "calibrate", "--experiments", 100, "--output", path).done()
    assert "…" not in ran.out
    assert [line.split("  ")[0] for line in ran.page[2 : 2 + len(NULLS)]] == [shape.name for shape in NULLS]
    assert ran.lines[-1] == "no rate is above its α beyond simulation error"
    text = path.read_text(encoding="utf-8")
    assert "Made by `holdfast prove calibrate --experiments 100 --output docs/calibration.md`" in text
    assert text.count("\n| ---") == 5 and "{" not in text
    assert all(f"| {row.name} |" in text and row.name in ran.out for row in (*ATTACKS, *POWERS))


def test_as_json_it_is_a_record_and_a_rate_above_alpha_exits_1(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.prove.calibrate.NULLS", NULLS[:2])
    monkeypatch.setattr("holdfast.prove.calibrate.EFFECTS", ())
    monkeypatch.setattr("holdfast.prove.calibrate.STEPS", 2 + len(METRICS))
    monkeypatch.setattr("holdfast.pipeline.calibrate.STEPS", 2)
    monkeypatch.setattr("holdfast.pipeline.calibrate.ATTACKS", ATTACKS[:1])
    monkeypatch.setattr("holdfast.pipeline.calibrate.POWERS", POWERS[-1:])
    told = cli("prove", "calibrate", "--experiments", 100, "--alpha", 0.4, "--seed", 2, "--json").done().json
    (attack,), (gain,) = told.pop("attacks").values(), told.pop("gates").values()
    assert told.pop("traffic") == {}  # so few experiments send none
    assert (attack["name"], attack["experiments"], gain["effect"]) == ("equal", 20, 0.1)
    found = decode(ErrorRates, told)
    assert (found.is_within, found.alpha, found.seed, found.experiments) == (True, 0.4, 2, 100)
    assert max(row.rate for row in found.nulls) > 0.2  # that is what such an α promises
    assert "calibrate --experiments 100 --alpha 0.4 --seed 2 --output" in page(found, [])
    gaining = replace(NULLS[0], name="no null", tasks=60, draw=lambda rng, size, _: binary(0.5)(rng, size, 0.3))
    monkeypatch.setattr("holdfast.prove.calibrate.NULLS", (gaining, NULLS[-1]))
    ran = cli("prove", "calibrate", "--experiments", 100)
    assert (ran.code, ran.lines[-1]) == (1, "no null: above α beyond simulation error")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--output", "no/such/folder/page.md"), "there is no folder no/such/folder"),
        (("--output", "."), "is a folder"),
        (("--experiments", 99), "greater than or equal to 100"),
        (("--alpha", 0), "alpha = 0"),
        (("--alpha", 0.5), "alpha = 0.5"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(cli: Cli, words: tuple[object, ...], says: str) -> None:
    ran = cli("prove", "calibrate", *words)
    assert ran.code == 2 and says in ran.err and not ran.out


def kept(
    files: Files, clock: Clock, tasks: int, *, gain: float = 0.0, seeds: int = 1, kind: str = "prove", null: bool = True
) -> tuple[str, ...]:
    """The words that name a run which compared a version with itself, or with one that gains, in a store."""
    rng = np.random.default_rng(1)
    settings = {"is_null": null, "how": asdict(ComparisonConfig())} if kind == "prove" else {}
    episodes: dict[str, list[Any]] = {"baseline": [], "candidate": []}
    for number in range(tasks):
        rate = rng.beta(2.0, 2.0)
        for seed in range(seeds):
            for arm, more in (("baseline", 0.0), ("candidate", gain)):
                success = float(rng.random() < rate + more)
                episodes[arm].append(
                    encode(Episode(task=f"t{number}", seed=seed, reward=success, success=success, safety_cost=0.0))
                )
    url = files.fresh()
    with open_store(url) as store:
        began = store.runs.begin(kind=kind, model_ref="m", settings=settings, salt="a", who="test", now=clock.now)
        run = began.result().id
        blob = store.blobs.put(json.dumps(episodes).encode(), now=clock.now)
        none = {"baseline": 0, "candidate": 0}
        look = InterimAnalysis(number=1, iteration=0, tasks=tasks, planned=tasks * seeds, missing=none, episodes=blob)
        store.steps.add(run, "prove/0", look.record(), function="look", now=clock.now).result()
    return "prove", "null", run, "--store", url


def test_promotions_of_a_version_against_itself_are_counted(cli: Cli, files: Files, clock: Clock) -> None:
    words = kept(files, clock, 4000)
    shown = cli(*words).done().lines
    assert shown[0] == "200 experiments of 20 tasks, with a look after each"
    assert re.fullmatch(r"promoted  \d+ \(\d\.\d%, 99 % interval \d\.\d\d–\d+\.\d\d%\)", shown[1])
    assert shown[3] == "within α = 0.05: chance explains up to 18 promotions"
    fewer = decode(Null, cli(*words, "--repetitions", 40, "--json").json)
    assert (fewer.pool, fewer.repetitions, fewer.tasks, fewer.is_disjoint) == (4000, 40, 100, True)


def test_few_pairs_are_said_to_be_few_and_a_null_that_is_none_exits_1(cli: Cli, files: Files, clock: Clock) -> None:
    shown = cli(*kept(files, clock, 100, seeds=3)).done().lines
    assert shown[0].startswith("300 paired episodes, and 4,000 are wanted")
    assert shown[1].startswith("100 tasks, and 4,000 are needed: repetitions share some")
    words = (*kept(files, clock, 2000, gain=0.3), "--repetitions", 50)
    ran = cli(*words)
    assert ran.code == 1 and "above α = 0.05" in ran.lines[-1]
    lax = cli(*words, "--alpha", 0.4, "--json")
    assert lax.code == 1 and decode(Null, lax.json).alpha == 0.4


def test_a_run_that_cannot_tell_is_refused_in_one_line(cli: Cli, files: Files, clock: Clock) -> None:
    refused = {
        "compares two versions": kept(files, clock, 30, null=False),
        "is a optimize": kept(files, clock, 0, kind="optimize"),
        "a pool of 5 tasks": kept(files, clock, 5),
        "a pool of 0 tasks": kept(files, clock, 0),
        "alpha = 0.0": (*kept(files, clock, 30), "--alpha", "0"),
        "no-such-run": ("prove", "null", "no-such-run", "--store", files.fresh()),
    }
    for says, words in refused.items():
        assert says in cli(*words).refusal


# Goldens

SUITE = Path(__file__).resolve().parents[2] / "examples/suites/tool-use-suite.json"


@pytest.fixture
def golden(cli: Cli, files: Files) -> Group:
    return Group(cli, "golden", files.fresh())


def test_a_change_blocks_until_it_is_signed_and_then_is_the_golden(golden: Group) -> None:
    old, new = "sprout-weak", "sprout"  # one guesses, the other calls the tools and sees what they say
    assert golden("record", SUITE, "--version", old).done().lines[0].startswith("tool-use-suite ")
    golden("replay", SUITE, "--version", old).done()

    changed = golden("replay", SUITE, "--version", new, "--json")
    assert changed.code == 1
    assert changed.json["golden"] != changed.json["replay"]
    findings = {one["name"]: one for one in changed.json["findings"]}
    assert findings["action_hash"]["count"] == 2
    blocking = {name for name, one in findings.items() if one["count"] and one["blocks"]}
    assert blocking >= {"observation_hash", "reward_hash", "kpi_tokens"} and "action_hash" not in blocking
    assert [one["case_id"] for one in changed.json["changes"]] == ["look-up-then-compute", "busy-calendar"]

    shown = golden("diff", "tool-use-suite")
    assert shown.code == 1
    assert shown.lines[-1] == "if this is wanted: holdfast prove golden sign tool-use-suite --why '…'"
    assert all(len(line) <= 80 for line in shown.lines if not line.startswith("tool-use-suite: "))

    signed = golden("sign", "tool-use-suite", "--why", "the new one is wanted", "--json").json
    assert (signed["sha256"], signed["before"]) == (changed.json["replay"], changed.json["golden"])
    golden("replay", SUITE, "--version", new).done()
    assert golden("replay", SUITE, "--version", old).code == 1
    (listed,) = golden("list", "--json").json
    assert (listed["sha256"], listed["signed_by"]) == (signed["sha256"], signed["who"])
    assert golden("list").lines[1].split()[0] == "tool-use-suite"
    with open_store(golden.url) as store:
        (entry,) = [one for one in store.ledger.entries() if one.kind == "golden"]
        assert entry.body["why"] == "the new one is wanted"


def test_a_golden_is_not_recorded_over(golden: Group, weights: tuple[str, str]) -> None:
    first, second = weights
    golden("record", SUITE, "--version", first).done()
    assert "is there already" in golden("record", SUITE, "--version", second).refusal
    golden("record", SUITE, "--version", second, "--name", "second").done()
    apart = golden("diff", "tool-use-suite", "second", "--json").done()  # they say other things, see and earn the same
    assert [one["what"] for one in apart.json["changes"]] == [["action"], ["action"]]
    early = golden("sign", "second", "--why", "wanted").refusal  # there is nothing new to accept
    assert "was not replayed since it was recorded; 'holdfast prove golden replay second" in early
    assert "'holdfast prove golden replay tool-use-suite --version VERSION'" in golden("diff", "tool-use-suite").err
    golden("replay", "second", "--version", second).done()  # it knows its suite
    assert golden("sign", "second", "--why", " ").code == 2 and golden("sign", "second", "--why", "w").code == 0
    golden("replay", "tool-use-suite", "--version", first).done()
    golden("diff", SUITE).done()
    golden("sign", SUITE, "--why", "the suite is its name too").done()


def test_what_cannot_be_replayed_is_said_in_one_line(golden: Group, weights: tuple[str, str]) -> None:
    begin = f"holdfast prove golden record SUITE --version VERSION --store {golden.url}"
    assert golden("list").lines == [f"no goldens; make one: {begin}"]
    for words, said in (
        (["replay", SUITE, "--version", weights[0]], "golden tool-use-suite: is missing; 'holdfast prove golden list'"),
        (["record", SUITE, "--version", "oak"], "version 'oak': is no model"),
        (["record", SUITE, "--version", weights[0], "--name", "../x"], "golden '../x': must be letters"),
        (["diff", "none"], "golden none: is missing"),
    ):
        assert said in golden(*words).refusal
    golden("record", SUITE, "--version", weights[0]).done()
    other = golden("replay", "tooluse:2", "--version", weights[0], "--name", "tool-use-suite").refusal
    assert "is of another suite: tool-use-suite@1" in other
