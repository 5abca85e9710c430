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


@pytest.mark.parametrize(
    ("claim", "complaint"),
    [
        # a promise that nothing shows
        ({"state": "works", "proof": [TEST]}, "works, but no command shows it"),
        # a command and no proof
        ({"state": "works", "command": "make test"}, "works, but nothing proves it"),
        # a target that is not in the Makefile
        ({"state": "works", "command": "make wonders", "proof": [TEST]}, "`make wonders`: the Makefile has no wonders"),
        # a script that is not there
        ({"state": "works", "command": "python a.py", "proof": [TEST]}, "`python a.py`: there is no a.py"),
        # a program of somebody else
        (
            {"state": "works", "command": "curl x", "proof": [TEST]},
            "`curl x`: neither a holdfast command, nor a make target, nor a script of this repository",
        ),
        # two commands in the place of one: only the first would be looked at
        (
            {"state": "works", "command": "make test && make wonders", "proof": [TEST]},
            "`make test && make wonders`: more than one command",
        ),
        # a command that the command line does not know
        (
            {"state": "works", "command": "holdfast prophesy", "proof": [TEST]},
            "`holdfast prophesy`: holdfast does not know it",
        ),
        # a flag that the command does not know
        (
            {"state": "works", "command": "holdfast optimize --wonders", "proof": [TEST]},
            "`holdfast optimize --wonders`: holdfast does not know it",
        ),
        # a test that nobody wrote
        (
            {"state": "works", "command": "make test", "proof": ["tests/test_mission.py::test_wonders"]},
            "proof tests/test_mission.py::test_wonders: tests/test_mission.py has no test_wonders",
        ),
        # an artifact that nobody made
        (
            {"state": "works", "command": "make test", "proof": ["docs/no.md"]},
            "proof docs/no.md: there is no docs/no.md",
        ),
        # a whole file of tests proves whatever one likes
        (
            {"state": "works", "command": "make test", "proof": ["tests/test_mission.py"]},
            "proof tests/test_mission.py: a test file without the name of a test",
        ),
        # half a thing that does not say which half
        (
            {"state": "partly", "command": "make test", "proof": [TEST]},
            "partly, but does not say in one line what is missing",
        ),
        # a whole thing that lacks something
        (
            {"state": "works", "command": "make test", "proof": [TEST], "missing": "the half"},
            "works, but says that something is missing",
        ),
        # nothing yet, and something to show for it
        ({"state": "not yet", "command": "make test"}, "not yet, but names a command"),
        ({"state": "not yet", "proof": [TEST]}, "not yet, but names a proof"),
        # words that are none of ours
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
