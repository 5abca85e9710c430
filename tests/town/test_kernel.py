"""Chance without state, and compiled code that is kept until any file of the town changes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from holdfast.town import kernel
from holdfast.town.kernel import below, draw, mix, world_seed
from tests.town.reference.world import draw as plain

SEED = np.uint64(0x1234_5678_9ABC_DEF0)


def bits(tick: int, who: int) -> np.uint64:
    return np.uint64(draw(SEED, tick, 1, who))


def test_the_mixer_is_that_of_splitmix64() -> None:
    # The first outputs of the published generator for seed 0: state = golden, 2 golden, 3 golden.
    golden = 0x9E3779B97F4A7C15
    outputs = [int(mix(np.uint64(golden * k % 2**64))) for k in (1, 2, 3)]
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_a_number_depends_on_every_part_of_the_question() -> None:
    asked = [(SEED, 5, 2, 7), (SEED + np.uint64(1), 5, 2, 7), (SEED, 6, 2, 7), (SEED, 5, 3, 7), (SEED, 5, 2, 8)]
    assert len({int(draw(*one)) for one in asked}) == len(asked)
    assert int(draw(*asked[0])) == int(draw(*asked[0]))


def test_the_reference_draws_the_same() -> None:
    for tick in (0, 1, 12_345):
        for stream, name in ((1, "order"), (2, "chat"), (7, "start")):
            for who in (0, 64, 1063):
                assert int(draw(SEED, tick, stream, who)) >> 32 == plain(int(SEED), tick, name, who)


def test_below_is_even() -> None:
    counts = np.bincount([below(bits(tick, 0), 7) for tick in range(7000)], minlength=7)
    assert counts.size == 7
    assert stats.chisquare(counts).pvalue > 0.001
    assert below(np.uint64(2**64 - 1), 2**32) == 2**32 - 1


def test_neighbours_in_time_and_number_are_not_alike() -> None:
    series = np.array([below(bits(tick, 3), 1000) for tick in range(3000)])
    people = np.array([below(bits(9, who), 1000) for who in range(3000)])
    for one in (series, people):
        assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.06


def test_worlds_have_seeds_of_their_own() -> None:
    seeds = [world_seed(3, world) for world in range(1000)] + [world_seed(4, world) for world in range(1000)]
    assert len(set(seeds)) == 2000
    assert all(0 <= seed < 2**64 for seed in seeds)


LOOK = """
import sys; sys.path.insert(0, {folder!r})
import kernel
"""


def fresh(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", LOOK.format(folder=str(folder))], check=True, cwd=folder)


def test_compiled_code_goes_when_a_file_changes_and_stays_otherwise(tmp_path: Path) -> None:
    shutil.copy(Path(kernel.__file__), tmp_path / "kernel.py")
    (tmp_path / "other.py").write_text("A = 1\n")
    cache = tmp_path / "__pycache__"
    fresh(tmp_path)
    kept = [cache / "other.f.nbi", cache / "other.f.1.nbc"]
    for path in kept:
        path.write_text("compiled")
    fresh(tmp_path)
    assert all(path.exists() for path in kept)
    (tmp_path / "other.py").write_text("A = 2\n")
    fresh(tmp_path)
    assert not any(path.exists() for path in kept)
    assert (cache / kernel.STAMP).is_file()


def test_what_is_compiled_is_exact_and_counts_as_numpy_does() -> None:
    @kernel.jit
    def halves(a: int, b: int) -> int:
        return a // b

    assert [halves(-7, 2), halves(7, 2)] == [-4, 3]
    assert not halves.targetoptions.get("fastmath")


def test_it_is_cold_until_a_tick_was_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "HERE", tmp_path)
    assert kernel.is_cold()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "env.advance-1.py311.nbi").touch()
    assert not kernel.is_cold()
