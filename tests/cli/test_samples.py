from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.report import read_samples, with_penalties
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Episode


def saved(folder: Path, data: Any) -> Path:
    path = folder / "samples.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_numbers_are_rewards_paired_by_their_place(tmp_path: Path) -> None:
    assert read_samples(saved(tmp_path, [0.5, 1]), "reward") == [
        Episode(task="sample-1", seed=1, reward=0.5),
        Episode(task="sample-2", seed=1, reward=1.0),
    ]


def test_numbers_can_be_penalties(tmp_path: Path) -> None:
    first, second = read_samples(saved(tmp_path, [0.25, 0]), "safety_penalty")
    assert (first.safety_cost, first.reward, second.safety_cost) == (0.25, 0.0, 0.0)


def test_objects_say_more(tmp_path: Path) -> None:
    rows = [{"task": task, "seed": 7, "reward": 0.5, "safety_penalty": 0.1, "success": 1, "tokens": 3} for task in "ab"]
    assert read_samples(saved(tmp_path, rows), "reward")[1] == Episode(
        task="b", seed=7, reward=0.5, safety_cost=0.1, success=1, tokens=3
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("[0.1, ", "is not JSON"),
        ("{}", "is not a list, or an empty one; give a list such as"),
        ("[]", "is not a list, or an empty one"),
        ("[0.5]", "two tasks or more are needed"),
        ("[0.5, NaN]", "$[1].reward = nan: must be a finite number"),
        ("[0.5, true]", "$[1].reward = True: must be a finite number"),
        ('[0.5, "1"]', "$[1].reward = '1': must be a finite number"),
        ('[{"task": "a", "seed": 1, "reward": 1}, {"task": "b", "seed": 1}]', "$[1].reward = None: is missing"),
        ('[{"seed": 1, "reward": 1}]', "$[0].task = None: is missing"),
        ('[{"task": "a", "reward": 1, "rewards": 1}]', "$[0].rewards: is unknown; use task, seed"),
        ('[{"task": "a", "reward": 1, "seed": 1.5}]', "$[0].seed = 1.5: must be a whole number"),
    ],
)
def test_a_sample_that_cannot_be_used_is_named(tmp_path: Path, data: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_samples(saved(tmp_path, data), "reward")
    assert said in str(caught.value) and str(tmp_path) in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file or directory; check the path"):
        read_samples(tmp_path / "none.json", "reward")


def test_penalties_belong_to_rewards_one_by_one(tmp_path: Path) -> None:
    rewards = read_samples(saved(tmp_path, [0.5, 1]), "reward")
    penalties = read_samples(saved(tmp_path, [0.1, 0.2]), "safety_penalty")
    assert [one.safety_cost for one in with_penalties(rewards, penalties[::-1], tmp_path)] == [0.1, 0.2]
    with pytest.raises(BadInput, match="1 penalties do not belong to the 2 rewards one by one"):
        with_penalties(rewards, penalties[:1], tmp_path)
