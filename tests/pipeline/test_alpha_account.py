"""The α-account in the store: a test is charged once and before it is measured, whatever is killed and whoever else is
charged meanwhile."""

from __future__ import annotations

import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
import pytest

from holdfast.contracts.evidence import Decision, Evidence, Reason
from holdfast.contracts.records import dumps
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.pipeline.alpha_account import account_of, at_charge, charge_of, charged, digest, is_beside
from holdfast.pipeline.held_out import HeldOut
from holdfast.promote.alpha_account import Charge, level
from holdfast.promote.gate import CHARGED
from holdfast.prove.comparison import ComparisonConfig, verdict
from holdfast.store.store import Store, open_store

TASKS = [{"prompt": f"{n} and {n}?", "expected": 2 * n} for n in range(150)]
OPEN = Decision(open=True, reasons=(Reason(code="promotion_allowed", text="better"),))
EACH_ENGINE = pytest.mark.parametrize("places", ["files", "databases"], indirect=True)


def charge(store: Store, run: str, candidate: str = "weights:c", *, tasks: Any = TASKS, **more: Any) -> Charge:
    given: dict[str, Any] = {
        "alpha": 0.05,
        "run": run,
        "versions": ("weights:live", candidate),
        "who": "ada",
        "now": 1.0,
    }
    held_out = [HeldOut(id=f"t{n}", input=task) for n, task in enumerate(tasks)]
    return asyncio.run(charged(store, "tools", held_out, **given | more))


def test_every_candidate_on_the_same_tasks_is_charged_whoever_measures_it(store: Store) -> None:
    """Fault: fifty null candidates on the same tasks each had the whole α, as they were not the same pair."""
    found = [charge(store, f"run-{n}", f"weights:{n}") for n in range(50)]
    assert [one.number for one in found] == list(range(1, 51))
    assert sum(one.alpha for one in found) <= 0.05
    assert account_of(store, "tools").bound == pytest.approx(0.05 * 50 / 53)
    assert charge(store, "run-60", "weights:60", tasks=[{"prompt": "quite another"}]).alpha == level(0.05, 1)


@EACH_ENGINE
def test_the_same_test_again_is_the_same_charge_and_two_at_once_get_two_places(url: str, store: Store) -> None:
    with open_store(url) as other, ThreadPoolExecutor(8) as pool:
        asked = [(one, f"run-{n % 20}") for n in range(60) for one in (store, other)]
        found = list(pool.map(lambda given: charge(*given), asked))
    by_run = {(one.run, one.number) for one in found}
    assert len(by_run) == 20 and {number for _, number in by_run} == set(range(1, 21))
    assert len(store.releases.charges("tools")) == 20
    store.ledger.verify()


def test_an_iteration_is_a_test_of_its_own(store: Store) -> None:
    assert [charge(store, "run-1", iteration=n).number for n in (0, 1, 0)] == [1, 2, 1]
    assert charge_of(store, "tools", "run-1", 1) is not None and charge_of(store, "tools", "run-2") is None


def test_tasks_are_known_by_their_words_and_not_by_their_names(store: Store) -> None:
    charge(store, "run-1", tasks=[{"id": "t1", "input": "How many, please?", "expected": 3}])
    renamed = [{"id": "other", "input": "how many please", "expected": 3, "split": "val"}]
    assert charge(store, "run-2", tasks=renamed).number == 2
    assert digest("a b") != digest("a c")


STORIES = [
    f"Explain to {who} why the refund of order {n} has not arrived yet, and what {who} can do about it by {day}"
    for n, (who, day) in enumerate(product(("Ann", "Bob", "Eve", "Joe", "Kim"), ("Monday", "Friday", "Easter")), 4711)
]


def test_a_changed_word_in_each_task_starts_no_account_anew_and_other_tasks_of_a_template_do(store: Store) -> None:
    """Fault: the same tasks with one word added, or another word, to each were a fresh set with the α of the first."""
    assert charge(store, "run-1", tasks=STORIES).number == 1
    assert charge(store, "run-2", tasks=[f"{one}, please" for one in STORIES]).number == 2
    again = [one.replace("arrived", "come") for one in STORIES]
    assert charge(store, "run-3", tasks=again).number == 3
    assert charge(store, "run-4", tasks=[one.replace("yet", "so far") for one in again]).number == 4  # step by step
    fresh = [one.replace("47", "58") for one in STORIES]  # other orders: other tasks, though of one template
    assert charge(store, "run-5", tasks=fresh).number == 1
    assert [len(one.charges) for one in account_of(store, "tools").sets] == [4, 1]


WORDS = (
    "invoice",
    "refund",
    "parcel",
    "account",
    "address",
    "order",
    "item",
    "late",
    "seat",
    "report",
    "login",
    "token",
)


def messages(version: int = 0, *, first: int = 0, count: int = 48) -> list[list[str]]:
    """Tasks of 25 words each; of a further version, one word of each is another."""
    drawn = [random.Random(n).choices(WORDS, k=25) for n in range(first, first + count)]
    place = (3 + 4 * version) % 25
    return [[*one[:place], f"zebra{'abcdefgh'[version]}", *one[place + 1 :]] if version else one for one in drawn]


def test_no_further_version_of_a_small_suite_starts_the_account_anew(store: Store) -> None:
    """Fault: earlier versions made the words of a task common, so that from the sixth on none was known again."""
    found = [charge(store, f"run-{n}", tasks=[" ".join(one) for one in messages(n)]) for n in range(8)]
    assert [one.number for one in found] == list(range(1, 9))
    others = [" ".join(one) for one in messages(first=1000)]
    assert charge(store, "run-8", tasks=others).number == 1


@pytest.mark.parametrize(
    "frames",
    [
        ["{text} version 1", "{text} version 2", "{text} version 3"],
        ["{text}", "{text} item 1{n}", "{text} item 2{n}"],
        [
            "{text}",
            "Read what the customer says and answer in 3 lines: {text}",
            "You are a lawyer. Reply to it: {text}",
        ],
    ],
)
def test_what_is_added_to_every_task_starts_no_account_anew(store: Store, frames: list[str]) -> None:
    """Fault: each constant text, at the beginning or the end of all tasks, gave the α of the first test once more."""

    def framed(frame: str, **which: int) -> list[str]:
        return [frame.format(n=n, text=" ".join(one)) for n, one in enumerate(messages(**which))]

    assert [charge(store, f"run-{frame}", tasks=framed(frame)).number for frame in frames] == [1, 2, 3]
    assert charge(store, "run-others", tasks=framed(frames[-1], first=1000)).number == 1


def test_near_copies_that_are_charged_at_once_get_two_places(url: str, store: Store) -> None:
    """Fault: known tasks were looked up before the charge, so of two versions begun at once both were first."""
    with open_store(url) as other, ThreadPoolExecutor(8) as pool:
        asked = [((store, other)[n % 2], n, [" ".join(one) for one in messages(n)]) for n in range(8)]
        found = list(pool.map(lambda given: charge(given[0], f"run-{given[1]}", tasks=given[2]), asked))
    assert sorted(one.number for one in found) == list(range(1, 9))


def test_a_run_on_near_copies_was_measured_beside(store: Store) -> None:
    mine, near, others = ([" ".join(one) for one in some] for some in (messages(), messages(1), messages(first=1000)))
    assert is_beside(mine, [*others, near[0]]) and not is_beside(mine, others)


def evidence(store: Store, found: Charge) -> str:
    """What a gate was told about the test."""
    manifest = {"run": found.run, CHARGED: {"number": found.number}}
    sides: dict[str, Any] = {
        "policy": "tools",
        "baseline": "tools@1",
        "candidate": "tools@2",
        "suite": "s",
        "primary": "success",
    }
    return store.blobs.put(dumps(Evidence(**sides, episodes=0, manifest=manifest)).encode(), now=1.0)


def two_versions(store: Store) -> dict[str, Any]:
    """The first is live, the second a candidate; how one is moved to live."""
    for source in ("weights:live", "weights:one"):
        made = {"policy": "tools", "kind": PolicyKind.WEIGHTS, "who": "ada", "now": 1.0}
        store.releases.add(source=source, **made).result()
    move = {"to": Stage.LIVE, "expect": Stage.CANDIDATE, "who": "ada", "why": "", "now": time.time()}
    store.releases.move("tools@1", **move).result()
    return move


def test_a_promotion_wins_alpha_back_until_it_is_taken_back(store: Store) -> None:
    first, move = charge(store, "run-1", "weights:one"), two_versions(store)
    assert charge(store, "run-2").promoted == 0
    store.releases.move("tools@2", **move, decision=OPEN, evidence=evidence(store, first)).result()
    assert charge(store, "run-3").alpha == pytest.approx(2 * level(0.05, 3)) and first.promoted == 0
    reasons = [Reason(code="rollback_by_hand", text="slow")]
    back = {"failing": "tools@2", "to": "tools@1", "who": "ada", "why": "", "now": 2.0, "reasons": reasons}
    store.releases.roll_back("tools", **back).result()
    assert charge(store, "run-4").promoted == 0
    assert charge(store, "run-3").promoted == 1  # what was fixed before stays


def test_a_promotion_wins_nothing_back_on_tasks_that_did_not_prove_it(store: Store) -> None:
    """Fault: a candidate that was held on one set and promoted on another raised the α of both."""
    charge(store, "run-1", "weights:one")
    other = [{"prompt": "quite another"}]
    second, move = charge(store, "run-2", "weights:one", tasks=other), two_versions(store)
    store.releases.move("tools@2", **move, decision=OPEN, evidence=evidence(store, second)).result()
    assert (charge(store, "run-3").promoted, charge(store, "run-4", tasks=other).promoted) == (0, 1)
    assert [one.promoted for one in account_of(store, "tools").sets] == [0, 1]


def test_a_charged_comparison_asks_for_more_of_the_gain_and_not_of_safety(store: Store) -> None:
    how = ComparisonConfig()
    for n in range(12):
        last = charge(store, f"run-{n}")
    strict = at_charge(how, last)
    assert (strict.alpha, strict.safety_alpha) == (level(0.05, 12), 0.05) and at_charge(how, None) is how
    assert at_charge(strict, last) == strict  # it is not charged twice
    assert at_charge(ComparisonConfig(alpha=0.01), last).alpha == pytest.approx(last.alpha / 5)
    gains, costs = np.repeat([1.0, 0.0], [8, 92]), np.zeros(100)
    assert (verdict(gains, costs, how).outcome, verdict(gains, costs, strict).outcome) == ("promote", "hold")
    assert "safety_alpha" not in how.record() and strict.record()["safety_alpha"] == 0.05
