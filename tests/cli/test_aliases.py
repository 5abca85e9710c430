"""Older spellings become today's, with one warning each; nothing else changes."""

from __future__ import annotations

import pytest

from holdfast.cli.main import ALIASES, rewrite_aliases

DOCUMENTED = [  # seed 002, "Flag Notes"
    ("--train-config", "--prompt-optimization-config"),
    ("--train-store-sqlite", "--prompt-optimization-store-sqlite"),
    ("--train-json", "--prompt-optimization-json"),
    ("--training-proxy-server", "--prompt-optimization-proxy-server"),
    ("--training-proxy-bind", "--prompt-optimization-proxy-bind"),
    ("--training-proxy-upstream-url", "--prompt-optimization-proxy-upstream-url"),
    ("--training-proxy-state-dir", "--prompt-optimization-proxy-state-dir"),
    ("--training-proxy-timeout-ms", "--prompt-optimization-proxy-timeout-ms"),
]


def test_the_documented_aliases_are_all_there() -> None:
    assert list(ALIASES.items()) == DOCUMENTED


@pytest.mark.parametrize(("old", "new"), DOCUMENTED)
@pytest.mark.parametrize("spelling", ["{} value", "{}=value", "{}=a=b", "{}="])
def test_an_alias_becomes_todays_flag_and_warns(old: str, new: str, spelling: str) -> None:
    words, warnings = rewrite_aliases(["optimize", *spelling.format(old).split(" ")])
    assert words == ["optimize", *spelling.format(new).split(" ")]
    assert warnings == [f"deprecated CLI alias '{old}' detected; use '{new}' instead"]


def test_an_alias_given_twice_warns_once_and_warnings_keep_their_order() -> None:
    words, warnings = rewrite_aliases(["--train-json", "--train-config", "a", "--train-config=b"])
    assert words == [
        "optimize",
        "--prompt-optimization-json",
        "--prompt-optimization-config",
        "a",
        "--prompt-optimization-config=b",
    ]
    assert [warning.split("'")[1] for warning in warnings] == ["--train-json", "--train-config"]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--help"],
        ["--version"],
        ["--bogus", "x"],
        ["runs", "--limit", "3"],
        # only optimize has older names: elsewhere they are as unknown as any other
        ["runs", "--train-config", "x"],
        ["optimise", "--train-config", "x"],
        ["optimize", "--train-configs", "x"],
        ["optimize", "--config", "train-config"],
        # behind -- nothing is a flag
        ["optimize", "--", "--train-config", "x"],
        ["--", "--train-config", "--prompt-optimization-json"],
    ],
)
def test_everything_else_stays_as_it_is(words: list[str]) -> None:
    assert rewrite_aliases(words) == (words, [])


@pytest.mark.parametrize(
    "words",
    [
        ["--model", "openai/gpt-4o-mini", "--prompt-optimization-config", "f", "--prompt-optimization-json"],
        ["--prompt-optimization-config=f"],
        ["--prompt-optimization-bogus"],
        # a value that is spelled like a command is still a value
        ["--model", "runs", "--prompt-optimization-config", "f"],
    ],
)
def test_without_a_command_a_documented_flag_means_optimize(words: list[str]) -> None:
    assert rewrite_aliases(words) == (["optimize", *words], [])


def test_the_words_behind_the_two_dashes_stay_while_those_before_change() -> None:
    words, warnings = rewrite_aliases(["--train-json", "--", "--train-json"])
    assert words == ["optimize", "--prompt-optimization-json", "--", "--train-json"]
    assert len(warnings) == 1


C = "--prompt-optimization-control-"


@pytest.mark.parametrize(
    ("words", "becomes"),
    [
        ([f"{C}status"], ["control", "status", "newest"]),
        (
            [f"{C}json", f"{C}pause", f"{C}state-dir", "d"],
            ["control", "pause", "newest", "--why", f"by {C}pause", "--json", "--store", "d/store.sqlite"],
        ),
        ([f"{C}state-dir=d", f"{C}status"], ["control", "status", "newest", "--store", "d/store.sqlite"]),
        # one order at a time, and nothing that is no order: both are refused as unknown
        ([f"{C}status", f"{C}pause"], ["control", "status", "newest", f"{C}pause"]),
        (
            [f"{C}resume", f"{C}principal", "x"],
            ["control", "resume", "newest", "--why", f"by {C}resume", f"{C}principal", "x"],
        ),
        ([f"{C}rollback", "f"], ["optimize", f"{C}rollback", "f"]),
        ([f"{C}json"], ["optimize", f"{C}json"]),
        (["runs", f"{C}status"], ["runs", f"{C}status"]),
    ],
)
def test_the_documented_flags_of_control_are_orders_about_the_newest_run(words: list[str], becomes: list[str]) -> None:
    assert rewrite_aliases(words) == (becomes, [])
