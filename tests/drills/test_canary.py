"""A small dose of a bad canary under live traffic, as part of the tests; `make drill` gives the whole."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.drills.crew import ROOT
from tests.store.children import unmeasured


@pytest.mark.parametrize(("degrade", "code"), [("quality", "success"), ("errors", "errors")])
def test_a_bad_canary_is_taken_back_by_itself_and_no_request_fails(degrade: str, code: str) -> None:
    command = [sys.executable, "tests/drills/canary.py", "--quick", "--json", "--degrade", degrade]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, env=unmeasured())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads(ran.stdout)
    assert result["holds"] and result["failed"] == [] and result["live"] == "drill@1"
    assert f"canary_breach_{code}" in result["reasons"]
    assert result["requests"] == sum(result["answers"].values()) > 10
    assert result["seconds_to_rollback"] < 300 and result["later_canary_answers"] == 0
    if degrade == "errors":
        assert result["taken_over"] >= 1 and result["canary_answers"] == 0
