from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.cli.report import ReportsOptions, moment_of
from holdfast.contracts.errors import BadInput
from holdfast.store.store import open_store


@pytest.mark.parametrize("place", ["training/store.sqlite", "store.db", "deeper/training/s.db"])
def test_reports_are_looked_for_where_the_store_says_they_are(tmp_path: Path, place: str) -> None:
    with open_store(tmp_path / place) as store:
        assert ReportsOptions(None, str(tmp_path / place)).folder == store.reports


def test_the_default_is_beside_the_default_store() -> None:
    assert ReportsOptions(None, ".holdfast/training/store.sqlite").folder == Path(".holdfast/reports")
    assert ReportsOptions(None, "postgresql://someone@host/name").folder == Path(".holdfast/reports")
    assert ReportsOptions(Path("elsewhere/reports"), "any").folder == Path("elsewhere/reports")


def test_a_moment_is_read_or_is_now() -> None:
    assert moment_of("2026-07-01T12:00:00Z") == datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert abs((moment_of(None) - datetime.now(UTC)).total_seconds()) < 60
    with pytest.raises(BadInput, match="--generated-at '1 July': must be a moment in UTC"):
        moment_of("1 July")
