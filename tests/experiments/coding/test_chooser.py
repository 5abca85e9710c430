from __future__ import annotations

import numpy as np
import pytest

from experiments.coding.chooser import FEATURES, Chooser, Lessons, PatchChoice, features, learn
from experiments.coding.tampering import TRICKS
from holdfast.contracts.errors import BadInput
from tests.experiments.coding.scene import SOURCE, TESTS, least_task

TASK = least_task()
GOLD = {"least.py": SOURCE, "test_least.py": TESTS}


def seen(files: dict[str, str], *, is_content: bool = True) -> dict[str, float]:
    return dict(zip(FEATURES, features(TASK, files, is_content=is_content), strict=True))


def test_a_patch_is_seen_by_what_it_changes() -> None:
    small = seen(GOLD)
    assert small["visible tests are content"] == 1.0
    assert small["words added to the code"] == small["words removed from the code"] == pytest.approx(np.log(2))
    assert small["functions added"] == small["words removed from tests"] == small["other files touched"] == 0.0
    larger = seen({**GOLD, "least.py": SOURCE + "\n\ndef spare():\n    # why\n    return 'x'\n"})
    assert larger["functions added"] == larger["strings added"] == larger["lines of comments added"] == np.log(2)
    assert seen({"least.py": "def least(a, b:"})["code no longer parses"] == 1.0


def test_tricks_are_seen_where_they_touch() -> None:
    gone, patched, exits = (TRICKS[kind](TASK) for kind in ("tests deleted", "settings deselect", "exit at import"))
    assert gone is not None and patched is not None and exits is not None
    assert seen(gone)["words removed from tests"] > 2.0
    assert seen(patched)["other files touched"] > 0.0
    assert seen(exits)["statements added outside of functions"] == np.log(2)


def test_what_is_seen_does_not_depend_on_the_hidden_answers() -> None:
    other = least_task()
    assert "gold" not in " ".join(FEATURES)
    assert np.array_equal(features(other, GOLD, is_content=True), features(TASK, GOLD, is_content=True))
    assert len(features(TASK, GOLD, is_content=False)) == len(FEATURES)


def test_the_gradient_is_that_of_small_differences() -> None:
    rng = np.random.default_rng(0)
    x, pulls = rng.normal(size=(5, 4)), rng.normal(size=5)
    chooser = Chooser(x, width=3, rng=rng)

    def value() -> float:
        return float((pulls * np.log(chooser.probabilities(x))).sum())

    for weight, gradient in zip(chooser.weights, chooser.gradient(x, pulls), strict=True):
        for place in np.ndindex(weight.shape):
            weight[place] += 1e-6
            above = value()
            weight[place] -= 2e-6
            below = value()
            weight[place] += 1e-6
            assert gradient[place] == pytest.approx((above - below) / 2e-6, abs=1e-5)


def test_it_learns_what_is_paid_and_holds_to_it_on_what_it_never_saw() -> None:
    rng = np.random.default_rng(1)
    tasks = [rng.normal(size=(6, 4)) for _ in range(60)]
    paid = [
        PatchChoice(seen=x, rewards=(x[:, 1] == x[:, 1].min()).astype(float)) for x in tasks
    ]  # the smallest is right
    chooser = learn(paid[:40], Lessons(steps=200), rng=np.random.default_rng(2))
    chances = [chooser.probabilities(one.seen) @ one.rewards for one in paid[40:]]
    assert np.mean(chances) > 0.7  # 1/6 when drawn blindly
    spread = [chooser.probabilities(one.seen).sum() for one in paid]
    assert np.allclose(spread, 1.0)


def test_the_same_seed_learns_the_same() -> None:
    one = PatchChoice(seen=np.eye(3), rewards=np.array([0.0, 1.0, 0.0]))
    first, second = (learn([one], Lessons(steps=5), rng=np.random.default_rng(0)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first.weights, second.weights, strict=True))


def test_nothing_to_practise_on_is_refused() -> None:
    with pytest.raises(BadInput, match="chooser: there is nothing to practise on"):
        learn([], Lessons(), rng=np.random.default_rng(0))
