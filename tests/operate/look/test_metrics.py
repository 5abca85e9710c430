from __future__ import annotations

import re
from math import inf

import pytest

from holdfast.operate.metrics import MetricFamily, metrics, written
from holdfast.store.store import Store
from tests.operate.conftest import LIVED_AT
from tests.store.filled import IMAGE, SCRIPT

HELP = re.compile(r"# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) ([^\n]*)")
TYPE = re.compile(r"# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram|summary|untyped)")
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (-?[0-9][0-9.e+-]*)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
Labels = tuple[tuple[str, str], ...]


def parsed(text: str) -> dict[str, dict[Labels, float]]:
    """A strict reading of the text format: HELP, then TYPE, then samples; every one of them once."""
    assert text.endswith("\n")
    found: dict[str, dict[Labels, float]] = {}
    helped = ""
    for line in text.removesuffix("\n").split("\n"):
        if match := HELP.fullmatch(line):
            helped = match.group(1)
            assert helped not in found and match.group(2)
        elif match := TYPE.fullmatch(line):
            assert match.group(1) == helped
            found[helped] = {}
        else:
            match = SAMPLE.fullmatch(line)
            assert match and match.group(1) == helped, line
            labels = _labels(match.group(2) or "")
            assert labels not in found[helped], line
            found[helped][labels] = float(match.group(3))
    return found


def _labels(text: str) -> Labels:
    pairs, place = list[tuple[str, str]](), 0
    while place < len(text):
        match = LABEL.match(text, place)
        assert match, text
        plain = re.sub(r"\\(.)", lambda one: "\n" if one.group(1) == "n" else one.group(1), match.group(2))
        pairs.append((match.group(1), plain))
        place = match.end()
    assert len({name for name, _ in pairs}) == len(pairs)
    return tuple(pairs)


def test_the_numbers_of_the_views_are_there(lived_in: Store) -> None:
    found = parsed(metrics(lived_in, now=LIVED_AT))
    assert all(name.startswith("holdfast_") for name in found)
    run = ("run", lived_in.runs.newest(most=1)[0].id)
    assert found["holdfast_run_rollouts"][run, ("status", "succeeded")] == 828.0
    assert found["holdfast_run_outcomes"][run, ("outcome", "wrong")] == 314.0
    assert found["holdfast_run_right_ratio"][run, ("bound", "value")] == pytest.approx(469 / 828)
    assert found["holdfast_run_success_ratio"][run, ("bound", "value")] == pytest.approx(828 / 891)
    assert found["holdfast_learning_step"][(run,)] == 60.0
    share = found["holdfast_release_share_percent"]
    assert share[("policy", "sprout"), ("release", "sprout@2"), ("stage", "canary")] == 5.0
    alerts = found["holdfast_alerts_standing"]
    assert alerts == {(("code", "told-by-hand"), ("severity", "warning"), run): 1.0}
    assert sum(found["holdfast_health"].values()) == 1.0
    assert found["holdfast_ledger_entries_total"][(("kind", "release"),)] >= 3.0


def test_an_empty_store_has_metrics_too(file_store: Store) -> None:
    assert parsed(metrics(file_store, now=1.0))["holdfast_health"][(("state", "unknown"),)] == 1.0


@pytest.mark.parametrize("text", [SCRIPT, IMAGE, 'a\\b"c', "two\nlines", "", "ünï"])
def test_labels_come_back_as_they_were(text: str) -> None:
    family = MetricFamily("x", "two\nlines \\ here", [({"run": text, "b": "1"}, 0.1), ({}, 1e-9)])
    assert parsed(written([family])) == {"holdfast_x": {(("run", text), ("b", "1")): 0.1, (): 1e-9}}


def test_what_is_no_number_is_left_out() -> None:
    assert written([MetricFamily("x", "x", [({}, inf)])]) == "\n"
