"""The mission page tells the truth: every row is there, and none claims more than its evidence."""

from __future__ import annotations

from typing import Any

import pytest

from tools import mission

ROWS = mission.load()
TEST = "tests/test_mission.py::test_every_row_of_the_mission_is_there"


def test_every_row_of_the_mission_is_there() -> None:
    assert list(ROWS) == mission.IDS


@pytest.mark.parametrize("row", mission.IDS)
def test_a_row_claims_no_more_than_its_evidence(row: str) -> None:
    assert mission.complaints(ROWS[row]) == []


def test_the_page_is_up_to_date() -> None:
    assert (mission.ROOT / "docs/mission.md").read_text(encoding="utf-8") == mission.page(ROWS)


WORKS = {"state": "works", "proof": [TEST]}
SHOWN = {"state": "works", "command": "make test"}
HERE = "tests/test_mission.py"


@pytest.mark.parametrize(
    ("claim", "complaint"),
    [
        (WORKS, "works, but no command shows it"),
        (SHOWN, "works, but nothing proves it"),
        (WORKS | {"command": "make wonders"}, "`make wonders`: the Makefile has no wonders"),
        (WORKS | {"command": "python a.py"}, "`python a.py`: there is no a.py"),
        (
            WORKS | {"command": "curl x"},
            "`curl x`: neither a holdfast command, nor a make target, nor a script of this repository",
        ),
        # of two commands in the place of one only the first would be looked at
        (WORKS | {"command": "make test && make wonders"}, "`make test && make wonders`: more than one command"),
        (WORKS | {"command": "holdfast prophesy"}, "`holdfast prophesy`: holdfast does not know it"),
        (
            WORKS | {"command": "holdfast optimize --wonders"},
            "`holdfast optimize --wonders`: holdfast does not know it",
        ),
        (SHOWN | {"proof": [f"{HERE}::test_wonders"]}, f"proof {HERE}::test_wonders: {HERE} has no test_wonders"),
        (SHOWN | {"proof": ["docs/no.md"]}, "proof docs/no.md: there is no docs/no.md"),
        # a whole file of tests proves whatever one likes
        (SHOWN | {"proof": [HERE]}, f"proof {HERE}: a test file without the name of a test"),
        (SHOWN | WORKS | {"state": "partly"}, "partly, but does not say in one line what is missing"),
        (SHOWN | WORKS | {"missing": "the half"}, "works, but says that something is missing"),
        ({"state": "not yet", "command": "make test"}, "not yet, but names a command"),
        ({"state": "not yet", "proof": [TEST]}, "not yet, but names a proof"),
        ({"state": "nearly"}, "state 'nearly' is none of works, partly, not yet"),
        ({"state": "not yet", "progress": "68 %"}, "unknown field progress"),
    ],
)
def test_a_row_that_claims_too_much_is_refused(claim: dict[str, Any], complaint: str) -> None:
    assert mission.complaints({"title": "t", "promise": "p", **claim}) == [complaint]


@pytest.mark.parametrize(
    "command", ["make test", "python tools/mission.py --check", "holdfast optimize --config examples/arithmetic.json"]
)
def test_a_row_with_command_and_proof_may_stand(command: str) -> None:
    row = {"title": "t", "promise": "p", "state": "works", "command": command, "proof": [TEST, "LICENSE"]}
    assert mission.complaints(row) == []
