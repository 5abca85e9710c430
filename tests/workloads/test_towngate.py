"""What a town asks of a version beside its return: green windows with people in them, and signed golden towns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Evidence
from holdfast.pipeline.control import improve_env
from holdfast.policies.network import ScriptedAct
from holdfast.promote.gate import FEW, Criteria, checks
from holdfast.prove import golden as goldens
from holdfast.store.store import open_store
from holdfast.workloads.towngate import (
    GREEN,
    bands,
    check_signed,
    golden_findings,
    golden_folder,
    golden_name,
    kpis_of,
    windows_of,
)
from holdfast.workloads.townlife import faults
from holdfast.workloads.townschool import TownMaker

MAKER = TownMaker(residents=12)


def unmet(kpis: dict[str, dict[str, object]]) -> list[tuple[str, str]]:
    """The checks of the gate on these figures that are not met: their codes and what they say."""
    evidence = Evidence(
        policy="town", baseline="town@1", candidate="town@2", suite="town@1 x", primary="reward", episodes=1,
        manifest={"kpis": kpis},
    )  # fmt: skip
    found = checks(evidence, Criteria(kpis=bands(MAKER)))
    return [(one.code, one.text) for one in found if "green_windows" in one.text + one.code and not one.is_met]


Windows = list[list[dict[str, float | None]]]


@pytest.fixture(scope="module")
def well() -> Windows:
    """Of towns that the script lives."""
    return windows_of(MAKER, ScriptedAct("town"))


def test_the_script_has_two_green_windows_and_its_figures_are_told(well: Windows) -> None:
    kpis = kpis_of(well)
    assert kpis["green_windows"] == {"value": GREEN, "of": 48, "detail": ""} and unmet(kpis) == []
    assert 0.8 <= kpis["attendance"]["value"] <= 1.0 and kpis["starving"]["of"] == 48


def test_an_empty_town_passes_nothing_and_neither_does_one_with_too_few(well: Windows) -> None:
    nobody = [[dict.fromkeys(one) | {"residents": 0.0} for one in window] for window in well]
    assert {code for code, _ in unmet(kpis_of(nobody))} == {FEW, "kpi_out_of_band_green_windows"}
    few = [[{**one, "residents": 9.0} for one in window] for window in well]  # 36 of 48, and 39 are needed
    assert [code for code, _ in unmet(kpis_of(few))] == [FEW]
    assert {code for code, _ in unmet({})} == {"evidence_missing_kpi_green_windows"}


def test_windows_have_to_be_green_one_after_the_other_and_the_fault_is_named(well: Windows) -> None:
    hungry, red = [{**one, "starving": 0.5} for one in well[1]], "window 2: starvation: starving 0.5 is above 0.02"
    assert faults(hungry[0])
    assert kpis_of([well[0], hungry])["green_windows"]["value"] == 0
    assert kpis_of([hungry, well[1]])["green_windows"]["value"] == 1
    ((code, text),) = unmet(kpis_of([well[0], hungry]))
    assert code == "kpi_out_of_band_green_windows" and red in text


def test_a_changed_town_is_refused_until_it_is_signed(tmp_path: Path) -> None:
    changed = TownMaker(residents=12, rules_file=_paying(tmp_path, 0.06))
    name = golden_name(MAKER, "town")
    with open_store(tmp_path / "store.db", create=True) as store:
        check_signed(MAKER, store, "town", who="me", now=1.0)
        check_signed(MAKER, store, "town", who="me", now=2.0)  # the same again
        command = f"holdfast prove golden sign {name} --why WHY --store here"
        with pytest.raises(BadInput, match=command):
            check_signed(changed, store, "town", who="me", now=3.0, at=" --store here")
        check_signed(changed, store, "other", who="me", now=3.0)  # another line has another golden
        folder = golden_folder(store)
        new = goldens.read(folder / f"{name}{goldens.REPLAY}.json")
        goldens.sign(store, new, who="me", why="wages rose", now=4.0).result()
        (folder / f"{name}{goldens.REPLAY}.json").replace(folder / f"{name}.json")
        check_signed(changed, store, "town", who="me", now=5.0)
        with pytest.raises(BadInput, match="what they are paid changed since it was recorded, and nobody has signed"):
            check_signed(TownMaker(residents=12, rules_file=_paying(tmp_path, 0.07)), store, "town", who="me", now=6.0)


def _paying(folder: Path, chat: float) -> Path:
    path = folder / f"{chat}.toml"
    path.write_text(f"[rewards]\nchat = {chat}\n")
    return path


def test_a_golden_that_was_removed_or_rewritten_opens_nothing(tmp_path: Path) -> None:
    other = TownMaker(residents=12, rules_file=_paying(tmp_path, 0.06))
    with open_store(tmp_path / "store.db", create=True) as store:
        golden_findings(MAKER, store, "town", now=1.0)
        golden_findings(other, store, "two", now=1.0)
        path = golden_folder(store) / f"{golden_name(MAKER, 'town')}.json"
        path.write_bytes(path.with_name(f"{golden_name(other, 'two')}.json").read_bytes())
        with pytest.raises(BadInput, match="is not the one that the ledger knows"):
            check_signed(other, store, "town", who="me", now=2.0)
        path.unlink()
        with pytest.raises(BadInput, match="is missing"):
            check_signed(other, store, "town", who="me", now=3.0)


def test_every_way_into_the_loop_asks_for_both() -> None:
    spec = improve_env(MAKER)
    asked = spec.program.keywords["spec"]  # type: ignore[attr-defined]
    assert asked.accept is MAKER and asked.criteria.require_golden
    assert asked.criteria.kpis["green_windows"].least == int(np.ceil(0.8 * 48))
