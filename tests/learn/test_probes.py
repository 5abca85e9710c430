"""The tiny worlds pay what they say, when they say it."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput
from tests.learn.probes import CONTINUOUS, DELAYED, ENDLESS, MASKED, MEMORY, TEMPTING, Probes, ProbeWorld


@pytest.mark.parametrize(("probe", "length"), [(MEMORY, 5), (DELAYED, 12)])
def test_the_right_answer_pays_once_at_the_end_and_the_wrong_one_costs(probe: ProbeWorld, length: int) -> None:
    worlds = Probes(probe, 2)
    cue = worlds.reset(1).values[:, 0]
    right = (cue > 0).astype(np.int64)
    answers = np.array([right[0], 1 - right[1]])  # the first is right, the second wrong
    for t in range(length):
        deciding = t == (0 if probe is DELAYED else length - 1)
        result = worlds.step(answers if deciding else 1 - answers)
        last = t == length - 1
        assert result.reward.tolist() == ([1.0, -1.0] if last else [0.0, 0.0])
        assert result.terminated.tolist() == [last, last]
    assert not result.truncated.any()


def test_the_cue_of_the_memory_probe_is_seen_only_at_the_beginning() -> None:
    worlds = Probes(MEMORY, 4)
    assert set(np.abs(worlds.reset(0).values[:, 0])) == {1.0}
    for asked in (0.0, 0.0, 0.0, 1.0):
        seen = worlds.step(np.zeros(4, np.int64)).observation.values
        assert seen.tolist() == [[0.0, asked]] * 4


def test_only_the_highest_allowed_action_pays_and_a_forbidden_one_is_an_error() -> None:
    worlds = Probes(MASKED, 64)
    mask = worlds.reset(0).mask
    assert mask is not None
    assert mask.any(1).all()
    highest = 3 - mask[:, ::-1].argmax(1)
    lowest = mask.argmax(1)
    assert worlds.step(highest).reward.tolist() == [1.0] * 64
    worlds.reset(0)
    assert worlds.step(lowest).reward.tolist() == (lowest == highest).astype(float).tolist()
    mask = worlds.reset(0).mask
    assert mask is not None
    with pytest.raises(BadInput, match="forbidden"):
        worlds.step(np.where(mask.all(1), 0, (~mask).argmax(1)))


def test_the_continuous_probe_pays_by_the_distance_squared() -> None:
    worlds = Probes(CONTINUOUS, 2)
    x = worlds.reset(0).values
    assert worlds.step(-0.5 * x).reward == pytest.approx([0.0, 0.0], abs=1e-12)
    x = worlds.reset(0).values
    assert worlds.step(-0.5 * x + 0.5).reward == pytest.approx([-0.25, -0.25], abs=1e-6)


def test_the_endless_probe_is_cut_and_never_ends() -> None:
    worlds = Probes(ENDLESS, 1)
    worlds.reset(0)
    ends = [worlds.step(np.zeros(1, np.int64)) for _ in range(16)]
    assert [bool(result.truncated[0]) for result in ends] == [False] * 7 + [True] + [False] * 7 + [True]
    assert not any(result.terminated[0] for result in ends)


def test_the_tempting_probe_pays_and_costs_what_is_taken() -> None:
    worlds = Probes(TEMPTING, 3)
    x = (worlds.reset(0).values[:, 0] + 1.0) / 2.0
    result = worlds.step(np.array([1, 0, 1]))
    assert result.cost is not None and result.cost.tolist() == [1.0, 0.0, 1.0]
    assert result.reward == pytest.approx([x[0], 0.0, x[2]], abs=1e-6)
    assert Probes(ENDLESS, 1).step(np.zeros(1, np.int64)).cost is None
