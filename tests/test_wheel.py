"""What is built is whole: the wheel made from the source archive, installed by itself in an empty folder, runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
BUILT_FROM = ("src", "pyproject.toml", "README.md", "LICENSE")
CHECK = """
import holdfast, pathlib, sys
assert pathlib.Path(holdfast.__file__).is_relative_to(sys.argv[1]), holdfast.__file__
sys.argv = ["holdfast", "policy", "show", "sprout-weak"]
from holdfast.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in BUILT_FROM:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, source / name, **({"ignore": _skipped} if (ROOT / name).is_dir() else {}))
    build = [sys.executable, "-c", "import setuptools.build_meta as b, sys; b.build_sdist(sys.argv[1])", str(folder)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (archive,) = folder.glob("holdfast-*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(archive)], check=True, capture_output=True)
    (built,) = folder.glob("holdfast-*.whl")
    return built


def _skipped(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "__pycache__" or name.endswith(".egg-info")]


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        packed = set(opened.namelist())
    package = ROOT / "src" / "holdfast"
    files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    files = [path for path in files if path.suffix != ".mako"]  # a template for writing migrations
    assert {path.relative_to(ROOT / "src").as_posix() for path in files} <= packed


def test_the_program_runs_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", str(installed)]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    env = os.environ | {"PYTHONPATH": str(installed)}
    ran = subprocess.run(
        [sys.executable, "-c", CHECK, str(installed)], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert "sprout-weak" in ran.stdout


def test_the_lock_has_the_same_pins_with_hashes() -> None:
    def pins(name: str) -> dict[str, str]:
        return {
            canonicalize_name(package): version
            for package, version in re.findall(r"^([\w.-]+)(?:\[\w+\])?==([^\s;\\]+)", (ROOT / name).read_text(), re.M)
        }

    torch_brings = {"torch", "mpmath", "networkx", "setuptools", "sympy"}  # its builds differ from machine to machine
    pinned, locked = pins("constraints.txt"), pins("requirements.lock")
    assert {name: version for name, version in pinned.items() if name not in torch_brings} == locked
    for requirement in re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text().strip()):
        assert "--hash=sha256:" in requirement, requirement
