"""The shape of the repository: a test for each module, floors that name each room, no traces of a private machine."""

from __future__ import annotations

import ast
import configparser
import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/holdfast"
MODULES = sorted(
    path.relative_to(PACKAGE)
    for path in PACKAGE.rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py") and "migrations" not in path.parts
)
ROOMS = {path.parts[0].removesuffix(".py") for path in MODULES}
GENERATED = re.compile(r"\.git|\.venv.*|\.holdfast|build|mutants|__pycache__|\..*_cache|\.hypothesis|.*\.egg-info")
A_HOME = re.compile(r"/(?:home/\w|Users/\w|root/)|[A-Z]:\\Users")

FLOORS = configparser.ConfigParser()
FLOORS.read(ROOT / ".importlinter", encoding="utf-8")


def written_files() -> list[Path]:
    """What people wrote: no environments, caches or stores."""
    found = []
    for folder, inner, names in os.walk(ROOT):
        inner[:] = [name for name in inner if not GENERATED.fullmatch(name)]
        found += [Path(folder, name) for name in names if not name.startswith(".coverage")]
    return found


def sources(contract: str) -> set[str]:
    return set(FLOORS[f"importlinter:contract:{contract}"]["source_modules"].split())


# Words that the house had for itself; the field has others (CONTRIBUTING, "Words").
OLD_WORDS = """
    Appointment Artefact Badge Course Crew Deed Desk Door Doorkeeper Doubt Duel Guest Intake Keeper Law Learnt
    Lesson Mute Pace Proposal Pupil Purse Schooling Seat Seated Senses Sheet Sketch Speaker Standing Taste Veil
    Voice Wanted Waves Weighed Weighing Worlds
"""
OLD_MODULES = """
    account anchors changes clone deeds entrance exhibit figures jury keeper law nursery patience purse recount
    reread rivals schooling seats senses shelf sketch sticky temptation ties trouble voices warden weigh words
"""
OLD_NAMES = """
    account anchors artefact chance clone course decided deeds desk doubt duel entrance exhibit figures guest heed
    intake jury keep keeper law learnt lesson mute nursery pace pupil purse recount reread schooling seat senses
    sheet shelf sketch standing sticky taste temptation told trial veil voice wanted warden weighed weighing
    worthwhile worlds
"""  # of functions, methods, fields and constants
KEPT_NAMES = {  # as stored rows, served answers and settings call them; a few in their ordinary sense
    "collect/endpoint_probe.py": {"figures"},
    "contracts/judgement.py": {"artefact", "standing"},
    "contracts/release.py": {"trial"},
    "contracts/run.py": {"lesson", "wanted"},
    "operate/views.py": {"pace"},
    "pipeline/prove.py": {"chance"},
    "promote/experiment.py": {"keep", "told", "worthwhile"},
    "prove/comparison.py": {"worthwhile"},
    "prove/reports/validate.py": {"keep"},
    "reward/judges/ensemble.py": {"artefact", "decided"},
    "reward/judges/judge.py": {"anchors"},
    "store/commands.py": {"standing"},
    "store/dashboard_queries.py": {"told"},
    "store/queue.py": {"wanted"},
    "town/frames.py": {"purse"},
    "town/talk.py": {"seat", "told"},
}


def public_classes() -> list[tuple[str, Path]]:
    return [
        (node.name, path)
        for path in MODULES
        for node in ast.parse((PACKAGE / path).read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def test_a_public_class_name_belongs_to_one_room() -> None:
    rooms: dict[str, set[str]] = {}
    for name, path in public_classes():
        rooms.setdefault(name, set()).add(path.parts[0])
    assert {name: sorted(found) for name, found in rooms.items() if len(found) > 1} == {}


def test_classes_and_modules_have_the_fields_words() -> None:
    old = set(OLD_WORDS.split())
    named = {f"{path}: {name}" for name, path in public_classes() if old & set(re.findall("[A-Z][a-z]*", name))}
    assert named | {str(path) for path in MODULES if path.stem in OLD_MODULES.split()} == set()


def test_functions_and_fields_have_the_fields_words() -> None:
    found: dict[str, set[str]] = {}
    for path in MODULES:
        tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
        for body in [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]:
            names = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
            targets = [node.target for node in body if isinstance(node, ast.AnnAssign)]
            targets += [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
            if old := {name.lower() for name in names} & set(OLD_NAMES.split()):
                found.setdefault(str(path), set()).update(old)
    assert found == KEPT_NAMES


def test_a_page_or_docstring_names_only_modules_that_there_are() -> None:
    pages = [path for path in (ROOT / "docs").glob("*.md") if path.name != "log.md"]
    named = re.compile(rf"`((?:{'|'.join(sorted(ROOMS))})(?:/[\w/]+\.py|(?:\.[a-z_]+)+(?:\.[A-Za-z_]+)?))`")
    absent = []
    for path in [*pages, *(PACKAGE / module for module in MODULES), *(ROOT / "experiments").rglob("*.py")]:
        for name in named.findall(path.read_text(encoding="utf-8")):
            parts = name.removesuffix(".py").replace(".", "/").split("/")
            ends = [parts, parts[:-1], parts[:-2]]  # a module, a name in it, or an attribute of that
            places = [PACKAGE.joinpath(*end) for end in ends if len(end) > 1]
            if not any(place.is_dir() or place.with_suffix(".py").exists() for place in places):
                absent.append(f"{path.relative_to(ROOT)}: {name}")
    assert absent == []


def test_the_contracts_import_nothing_and_the_door_opens_nothing_before_it_is_asked() -> None:
    tree = ast.parse((PACKAGE / "contracts/__init__.py").read_text(encoding="utf-8"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    door = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    found = [node for node in door.body if isinstance(node, ast.Import | ast.ImportFrom)]  # but for those of types
    names = {alias.name for node in found for alias in node.names if isinstance(node, ast.Import)}
    names |= {str(node.module) for node in found if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize(("contract", "allowed"), [("torch", {"policies", "learn"}), ("sql", {"store"})])
def test_the_floors_leave_no_room_unwatched(contract: str, allowed: set[str]) -> None:
    assert sources(contract) == {f"holdfast.{room}" for room in ROOMS - allowed}


def test_the_floors_let_only_settings_among_the_contracts_use_pydantic() -> None:
    contracts = {f"holdfast.contracts.{path.stem}" for path in MODULES if path.parts[0] == "contracts"}
    assert sources("records") == contracts - {"holdfast.contracts.settings"} | {"holdfast.privacy", "holdfast.store"}


def test_the_floors_have_no_exceptions() -> None:
    assert not [name for name in FLOORS.sections() if "ignore_imports" in FLOORS[name]]


def test_no_file_names_a_home_folder() -> None:
    found = []
    for path in written_files():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in A_HOME.finditer(text)]
    assert not found
