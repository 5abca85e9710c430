"""`holdfast prove calibrate` and `prove null`, as a user calls them."""

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
from holdfast.pipeline.prove import InterimAnalysis
from holdfast.prove.calibrate import NULLS, ErrorRates, Null, binary
from holdfast.prove.comparison import ComparisonConfig
from holdfast.store.store import open_store
from tests.cli.conftest import Cli
from tests.conftest import Clock, Files


def test_a_calibration_is_printed_written_and_within(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    ran = cli("prove", "calibrate", "--experiments", 100, "--output", path)
    assert ran.code == 0
    assert max(map(len, ran.lines)) <= 80
    assert "…" not in ran.out
    assert [line.split("  ")[0] for line in ran.lines[2 : 2 + len(NULLS)]] == [shape.name for shape in NULLS]
    assert ran.lines[-1] == "no rate is above its α beyond simulation error"
    text = path.read_text(encoding="utf-8")
    assert "Made by `holdfast prove calibrate --experiments 100 --output docs/calibration.md`" in text
    assert text.count("\n| ---") == 3 and "{" not in text


def test_as_json_it_is_a_record_and_the_options_are_in_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.prove.calibrate.NULLS", NULLS[:2])
    monkeypatch.setattr("holdfast.prove.calibrate.EFFECTS", ())
    ran = cli("prove", "calibrate", "--experiments", 100, "--alpha", 0.9, "--seed", 2, "--json")
    found = decode(ErrorRates, ran.json)
    assert ran.code == 0 and found.is_within
    assert (found.alpha, found.seed, found.experiments) == (0.9, 2, 100)
    assert max(row.rate for row in found.nulls) > 0.5  # that is what such an α promises
    assert "calibrate --experiments 100 --alpha 0.9 --seed 2 --output" in page(found)


def test_a_rate_above_alpha_exits_1_and_names_the_shape(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    gaining = replace(NULLS[0], name="no null", tasks=60, draw=lambda rng, size, _: binary(0.5)(rng, size, 0.3))
    monkeypatch.setattr("holdfast.prove.calibrate.NULLS", (gaining, NULLS[-1]))
    monkeypatch.setattr("holdfast.prove.calibrate.EFFECTS", ())
    ran = cli("prove", "calibrate", "--experiments", 100)
    assert ran.code == 1
    assert ran.lines[-1] == "no null: above α beyond simulation error"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--output", "no/such/folder/page.md"), "there is no folder no/such/folder"),
        (("--output", "."), "is a folder"),
        (("--experiments", 99), "greater than or equal to 100"),
        (("--alpha", 0), "alpha = 0"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(cli: Cli, words: tuple[object, ...], says: str) -> None:
    ran = cli("prove", "calibrate", *words)
    assert ran.code == 2 and says in ran.err and not ran.out


def kept(
    files: Files,
    clock: Clock,
    tasks: int,
    *,
    gain: float = 0.0,
    seeds: int = 1,
    kind: str = "prove",
    is_null: bool = True,
) -> tuple[str, ...]:
    """The words that name a run which compared a version with itself, or with one that gains, in a store."""
    rng = np.random.default_rng(1)
    settings = {"is_null": is_null, "how": asdict(ComparisonConfig())} if kind == "prove" else {}
    episodes: dict[str, list[Any]] = {"baseline": [], "candidate": []}
    for number in range(tasks):
        rate = rng.beta(2.0, 2.0)
        for seed in range(seeds):
            for arm, more in (("baseline", 0.0), ("candidate", gain)):
                success = float(rng.random() < rate + more)
                episodes[arm].append(encode(Episode(task=f"t{number}", seed=seed, reward=success, success=success)))
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
    ran = cli(*words)
    assert ran.code == 0
    assert ran.lines[0] == "200 experiments of 20 tasks, with a look after each"
    assert re.fullmatch(r"promoted  \d+ \(\d\.\d%, 99 % interval \d\.\d\d–\d+\.\d\d%\)", ran.lines[1])
    assert ran.lines[3] == "within α = 0.05: chance explains up to 18 promotions"
    fewer = decode(Null, cli(*words, "--repetitions", 40, "--json").json)
    assert (fewer.pool, fewer.repetitions, fewer.tasks, fewer.is_disjoint) == (4000, 40, 100, True)


def test_few_pairs_are_said_to_be_few(cli: Cli, files: Files, clock: Clock) -> None:
    ran = cli(*kept(files, clock, 100, seeds=3))
    assert ran.code == 0
    assert ran.lines[0].startswith("300 paired episodes, and 4,000 are wanted")
    assert ran.lines[1].startswith("100 tasks, and 4,000 are needed: repetitions share some")


def test_a_null_that_is_none_exits_1(cli: Cli, files: Files, clock: Clock) -> None:
    words = (*kept(files, clock, 2000, gain=0.3), "--repetitions", 50)
    ran = cli(*words)
    assert ran.code == 1 and "above α = 0.05" in ran.lines[-1]
    lax = cli(*words, "--alpha", 0.4, "--json")
    assert lax.code == 1 and decode(Null, lax.json).alpha == 0.4


def test_a_run_that_cannot_tell_is_refused_in_one_line(cli: Cli, files: Files, clock: Clock) -> None:
    refused = {
        "compares two versions": kept(files, clock, 30, is_null=False),
        "is a optimize": kept(files, clock, 0, kind="optimize"),
        "a pool of 5 tasks": kept(files, clock, 5),
        "a pool of 0 tasks": kept(files, clock, 0),
        "alpha = 0.0": (*kept(files, clock, 30), "--alpha", "0"),
        "no-such-run": ("prove", "null", "no-such-run", "--store", files.fresh()),
    }
    for says, words in refused.items():
        ran = cli(*words)
        assert (ran.code, ran.out) == (2, "") and says in ran.err and ran.err.count("\n") == 1
