"""`holdfast town soak`: figures, a page, and an exit code."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Cli


def test_a_soak_tells_figures_and_writes_a_page(cli: Cli, tmp_path: Path) -> None:
    soaked = cli("town", "soak", "--ticks", 1000, "--report", tmp_path / "soak.md", "--json")
    assert soaked.code == 0 and soaked.json["ticks"] == 1000 and soaked.json["lost_events"] == 0
    assert len(soaked.json["looks"]) == 20 and soaked.json["looks"][-1]["memory_mb"] > 10
    page = (tmp_path / "soak.md").read_text()
    assert "`holdfast town soak --ticks 1000 --seed 1`" in page and soaked.json["looks"][-1]["state"] in page


def test_a_page_that_could_not_be_kept_is_refused_first(cli: Cli, tmp_path: Path) -> None:
    ran = cli("town", "soak", "--ticks", 1000, "--report", tmp_path / "none/soak.md")
    assert ran.code == 2 and "its folder does not exist" in ran.err
