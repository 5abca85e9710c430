"""Which further tasks a held candidate may be measured on; the command that does it is tested in cli."""

from __future__ import annotations

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.pipeline.more import unmeasured
from holdfast.pipeline.prove import HeldOut

KNOWN = [HeldOut(id="a", input={"q": 1}), HeldOut(id="b", input={"q": 2})]


def test_what_was_measured_is_passed_over_and_names_do_not_collide() -> None:
    new = [HeldOut(id="z", input={"q": 1}), HeldOut(id="a", input={"q": 3}), HeldOut(id="c", input={"q": 3})]
    found = unmeasured(new, KNOWN, [], "more.jsonl")
    assert [(one.id, one.input) for one in found] == [("a+1", {"q": 3})]


def test_what_was_learnt_from_proves_nothing() -> None:
    with pytest.raises(BadInput, match=r"more.jsonl: task n: is one that it learnt from"):
        unmeasured([HeldOut(id="n", input={"q": 9})], KNOWN, [{"q": 9}], "more.jsonl")


def test_nothing_new_is_refused() -> None:
    with pytest.raises(BadInput, match="has no task that is not measured yet"):
        unmeasured(KNOWN, KNOWN, [], "more.jsonl")
