from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.task import TaskItem
from holdfast.pipeline.held_out import HeldOut, batches, check_cluster, mixed

PLANTS = ("oak", "elm", "fir", "yew", "ash", "box", "fig", "bay", "tea", "rye", "hop", "pea", "oat", "nut", "gum")


def task(name: str, asked: Any, **given: Any) -> HeldOut:
    return HeldOut(id=name, input=TaskItem(id=name, input=asked, **given).row())


def names(tasks: list[HeldOut]) -> list[str]:
    return [one.id for one in tasks]


def units(tasks: list[HeldOut]) -> int:
    return len({one.unit or one.id for one in tasks})


def test_the_order_is_by_the_seed_and_every_part_of_it_has_each_family_by_its_share() -> None:
    file = [task(f"a{n}", f"add {n}", family="add") for n in range(100)]
    file += [task(f"s{n}", f"spell {n}", family="spell") for n in range(300)]
    found = mixed(file, seed="1")
    assert sorted(names(found)) == sorted(names(file)) and names(found) != names(file)
    assert names(found) == names(mixed(file, seed="1")) != names(mixed(file, seed="2"))
    for part in batches(found, 40):
        assert sum(one.id.startswith("a") for one in part) == pytest.approx(10, abs=2)  # no luck of the draw
    assert [one.unit for one in found] == [None] * 400


def test_copies_of_a_task_are_one_unit_though_a_mark_a_space_or_a_word_of_many_differs() -> None:
    long = " ".join(f"Clause {word} of the contract holds for every {word} party." for word in PLANTS)
    copies = [f"Name a bird of the {PLANTS[n % 15]}{'!' * (n // 15)}" for n in range(150)]
    copies += [f"{long} Who signs?", f"{long} Who signs it?"]
    found = mixed([task(f"t{n}", text) for n, text in enumerate(copies)], seed="0")
    assert units(found) == 16
    at = {one.id: place for place, one in enumerate(found)}
    assert abs(at["t150"] - at["t151"]) == 1  # measured one after the other
    assert {one.unit for one in found if one.id in ("t150", "t151")} == {"t150"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"asked": "What is 17 + 25?"}, {"asked": "What is 17 + 26?"}),
        ({"asked": "What is 3 - 2?"}, {"asked": "What is 3 + 2?"}),
        ({"asked": "Is it so?", "expected": "yes"}, {"asked": "is it so", "expected": "no"}),
        ({"asked": {"env": "maze", "seed": 1}}, {"asked": {"env": "maze", "seed": 2}}),
    ],
)
def test_what_has_another_number_sign_or_answer_is_no_copy(one: dict[str, Any], other: dict[str, Any]) -> None:
    tasks = [task(f"t{n}", given.pop("asked"), **given) for n, given in enumerate((one, other))]
    assert units(mixed(tasks, seed="0")) == 2


def test_tasks_of_one_document_or_user_are_one_unit_and_an_option_names_any_other_key() -> None:
    tasks = [
        task(f"t{n}", {"asked": f"q {n}", "shop": f"s{n % 2}"}, metadata={"document": f"d{n // 4}"}) for n in range(12)
    ]
    assert units(mixed(tasks, seed="0")) == 3
    assert units(mixed(tasks, seed="0", cluster="shop")) == 2
    check_cluster(tasks, "shop")
    with pytest.raises(BadInput, match="all 12 held-out tasks are of one"):
        check_cluster([task(f"t{n}", {"asked": f"q {n}", "shop": "s"}) for n in range(12)], "shop")
    with pytest.raises(BadInput, match="none of 12 held-out tasks has it"):
        check_cluster(tasks, "street")


def test_no_unit_is_in_two_batches() -> None:
    tasks = [task(f"t{n}", f"q {n}", metadata={"user": f"u{n // 3}"}) for n in range(12)]
    parts = batches(mixed(tasks, seed="0"), 4)
    assert [len(part) for part in parts] == [6, 6]
    assert not {one.unit for one in parts[0]} & {one.unit for one in parts[1]}
