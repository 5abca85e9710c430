"""What each further candidate on the same held-out tasks has to reach; the numbers are worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.promote.alpha_account import ANCHOR, EXPERIMENT, Charge, ReadTasks, account_from, charge, level, share

SETS = {"a": frozenset("123"), "b": frozenset("456"), "ab": frozenset("16"), "c": frozenset("789")}


def charged(
    known: list[Charge],
    tasks: str,
    candidate: str = "",
    promoted: tuple[str, ...] = (),
    read: ReadTasks = SETS.get,
    **more: Any,
) -> Charge:
    name = candidate or f"c{len(known)}"
    given: dict[str, Any] = {"key": name, "policy": "p", "run": "r", "candidate": name, "baseline": "live", "count": 3}
    made = charge(known, promoted, read, alpha=0.05, tasks=tasks, **given, **more)
    known.append(made)
    return made


def test_the_shares_of_all_candidates_add_up_to_one() -> None:
    assert [share(n) for n in (1, 2, 3)] == pytest.approx([1 / 4, 3 / 20, 1 / 10])
    assert sum(map(share, range(1, 4))) == pytest.approx(1 / 2)  # half is spent after three
    assert sum(map(share, range(1, 10_000))) == pytest.approx(1.0, abs=2e-3)
    assert level(0.05, 12, promoted=1) == pytest.approx(0.05 * 3 / (14 * 15) * 2)


def test_an_account_that_began_with_other_shares_never_spends_more_than_all() -> None:
    """Versions before gave test t 10/((t + 9)(t + 10)) of α: what was charged stays, and what comes adds up to less."""
    for before in (1, 5, 40):
        known: list[Charge] = []
        for number in range(1, before + 1):
            made = charged(known, "a")
            known[-1] = replace(made, alpha=0.05 * 10 / ((number + 9) * (number + 10)))
        spent = account_from("p", known, (), SETS.get).sets[0].spent
        assert spent == pytest.approx(before / (before + 10))
        assert spent + sum(map(share, range(before + 1, 10_000))) < 1.0
        assert charged(known, "a").alpha == level(0.05, before + 1)


def test_an_experiment_has_its_alpha_to_itself_and_is_part_of_the_bound() -> None:
    known: list[Charge] = []
    charged(known, "a"), charged(known, "", about=EXPERIMENT), charged(known, "", about=EXPERIMENT)
    found = account_from("p", known, (), SETS.get)
    assert [one.alpha for one in found.experiments] == [0.05, 0.05] and len(found.sets) == 1
    assert found.bound == pytest.approx(0.05 / 4 + 2 * 0.05)
    assert charged(known, "a").number == 2 and "on units of its own" in known[1].text


def test_candidates_on_the_same_tasks_share_alpha_and_fresh_tasks_begin_anew() -> None:
    known: list[Charge] = []
    assert [charged(known, "a").number for _ in range(3)] == [1, 2, 3]
    assert charged(known, "b").alpha == level(0.05, 1)  # no task of it was used before
    assert charged(known, "c").number == 1
    assert charged(known, "ab").number == 5  # a task of each of two sets: it comes after all of both
    assert charged(known, "a").number == charged([*known[:-1]], "b").number == 6  # which are one set from then on
    assert charged(known, "c").number == 2


def test_a_set_whose_tasks_cannot_be_read_any_more_is_not_fresh() -> None:
    known: list[Charge] = []
    charged(known, "a"), charged(known, "b")
    assert charged(known, "lost").number == 3


def test_promotions_win_alpha_back_and_only_on_their_own_tasks() -> None:
    known: list[Charge] = []
    charged(known, "a", "good")
    second = charged(known, "a", promoted=("good",))
    assert second.alpha == pytest.approx(level(0.05, 2) * 2)
    assert "2nd candidate on these tasks, 1 accepted before;" in second.text
    assert charged(known, "b", "good again", promoted=("good",)).alpha == level(0.05, 1)
    assert charged(known, "a", promoted=("good again",)).promoted == 0  # proved on other tasks
    assert charged(known, "a").promoted == 0  # taken back since


def test_a_test_that_goes_on_keeps_its_alpha_and_uses_up_no_place() -> None:
    known: list[Charge] = []
    first = charged(known, "a")
    more = charged(known, "b", continues=first)
    assert (more.alpha, more.number, more.continues) == (first.alpha, 1, first.key)
    assert charged(known, "c", continues=more).continues == first.key
    assert charged(known, "b").number == charged(known[:-1], "a").number == 2  # and has used the tasks of all of them


def test_further_tasks_that_others_used_leave_a_test_no_more_than_the_next_one_on_them_has() -> None:
    """Fault: fifty candidates, each first on two fresh tasks and then on the same many, were all the first on those."""
    fresh = {f"f{n}": frozenset({f"{n}x", f"{n}y"}) for n in range(50)}
    known: list[Charge] = []
    for name in fresh:
        first = charged(known, name, name, read=(SETS | fresh).get)
        more = charged(known, "b", f"{name}+", continues=first, read=(SETS | fresh).get)
        assert first.alpha == level(0.05, 1) and more.continues == name
    assert (more.number, more.alpha) == (50, level(0.05, 50))
    assert charged(known, "b", "next", read=(SETS | fresh).get).number == 51
    found = account_from("p", known, {"f3"}, (SETS | fresh).get)
    assert [(len(one.charges), one.promoted) for one in found.sets] == [(51, 1)]


def test_a_test_that_is_charged_late_comes_after_all_that_were_measured_beside_it() -> None:
    known: list[Charge] = []
    charged(known, "a")
    assert charged(known, "a", uncharged=9).number == 11
    assert charged(known, "a", uncharged=8).number == 12 and charged(known, "a").alpha == level(0.05, 13)
    assert charged(known, "b").number == 1


def test_the_account_tells_what_is_spent_and_what_the_next_one_gets() -> None:
    known: list[Charge] = []
    for tasks in ("a", "a", "b"):
        charged(known, tasks)
    anchor = charged(known, "a", about=ANCHOR)
    found = account_from("p", known, {"c0"}, SETS.get)
    assert [len(one.charges) for one in found.sets] == [2, 1] and found.anchor_tests == (anchor,)
    assert found.sets[0].spent == pytest.approx(2 / 5) and found.sets[0].promoted == 1
    assert found.sets[0].next_alpha == pytest.approx(level(0.05, 3, promoted=1))
    assert found.bound == pytest.approx(0.05 * (2 / 5 + 1 / 4))
    assert anchor.number == 1 and charged(known, "c", about=ANCHOR).alpha == level(0.05, 2)


def test_a_charge_is_read_back_as_it_was_written_and_says_what_it_is() -> None:
    known: list[Charge] = []
    for _ in range(12):
        last = charged(known, "a")
    assert Charge.from_record(last.record()) == last and "continues" not in last.record()
    assert last.text == (
        "α of this test 0.00071 of 0.05: the 12th candidate on these tasks; fresh held-out tasks would start anew"
    )
    assert "fresh" not in known[0].text and "the 1st candidate" in known[0].text
