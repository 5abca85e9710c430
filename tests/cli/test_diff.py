"""`holdfast reward diff`: what a change did, on a terminal, on a page and for programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli

BASE = "def f(a, b):\n    total = 0\n    for x in a:\n        if x > b:\n            total += x\n    return total\n"
FIX = BASE.replace("x > b", "x >= b")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(BASE)
    after.write_text(FIX)
    return before, after


def test_a_fix_is_one_line_and_a_summary(cli: Cli, files: tuple[Path, Path]) -> None:
    head, edit, summary = cli("diff", *files, "--reference", files[1]).done().lines
    assert head == "after.py  cost 0.5"
    assert edit.split() == ["~", "4", "operator", ">", "→", ">=", "0.5"]
    assert summary == "cost 0.5, the least 0.5: minimal; scaffolding 0, vetoes 0"
    told = cli("diff", *files, "--json").json
    assert told["cost"] == 0.5 and told["vetoes"] == [] and told["reference_cost"] is None
    (one,) = told["files"][0]["edits"]
    assert (one["verb"], one["was"], one["text"], one["line"]) == ("update", ">", ">=", 4)


def test_scaffolding_and_vetoes_are_named_and_nothing_is_wider_than_the_terminal(
    cli: Cli, files: tuple[Path, Path]
) -> None:
    files[1].write_text(
        f"import sys\n\n{FIX}\n\ntry:\n    f([1] * 30, 2)\nexcept Exception:\n    sys.exit(0)  # {'long ' * 30}\n"
    )
    ran = cli("diff", *files)
    assert any(line.startswith("scaffolding: after.py:13  swallow_all") for line in ran.page)
    assert any(line.startswith("veto: after.py:14  exit") for line in ran.lines)
    assert ran.lines[-1].endswith("scaffolding 1, vetoes 1")


def test_folders_are_compared_file_by_file(cli: Cli, tmp_path: Path) -> None:
    for name, text in (("a", BASE), ("b", FIX)):
        (tmp_path / name / "src").mkdir(parents=True)
        (tmp_path / name / "src" / "m.py").write_text(text)
        (tmp_path / name / "same.py").write_text("x = 1\n")
        (tmp_path / name / "picture.png").write_bytes(b"\x89PNG\xff")
    (tmp_path / "b" / "tests").mkdir()
    (tmp_path / "a" / "test_m.py").write_text("def test_f():\n    assert f([1], 0) == 1\n")
    told = cli("diff", tmp_path / "a", tmp_path / "b", "--json").json
    assert [file["path"] for file in told["files"]] == ["src/m.py", "test_m.py"]
    assert [one["rule"] for one in told["vetoes"]] == ["test_deleted"]


def test_the_page_has_everything_and_no_script(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    files[1].write_text(FIX.replace("total = 0", "total = '<script>alert(1)</script>'"))
    page = tmp_path / "diff.html"
    ran = cli("diff", *files, "--html", page)
    assert ran.lines[0] == str(page)
    text = page.read_text()
    assert "<script>" not in text and "&lt;script&gt;" in text
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    assert 'class="insert"' in text and 'class="delete"' in text
    assert cli("diff", *files, "--html", page, "--json").json["page"] == str(page)


def test_what_does_not_parse_is_said_and_of_no_change_nothing_is_guessed(
    cli: Cli, files: tuple[Path, Path], tmp_path: Path
) -> None:
    files[1].write_text(BASE.replace("return total", "return total)"))
    assert "does not parse at line 6: compared word by word" in cli("diff", *files).lines[0]
    assert cli("diff", files[0], files[0]).lines == ["no change"]
    assert cli("diff", tmp_path, tmp_path).lines == ["no change"]
    files[1].write_text(BASE.replace("x > b", "x  >  b"))
    said = cli("diff", *files).lines[-1]
    assert said == "cost 0.0, nothing but the layout has changed; scaffolding 0, vetoes 0"


def test_no_line_stands_on_the_page_twice(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    """Two changes near one another share what is around them; one that is far from them has its own."""
    lines = [f"line_{n:02} = {n}" for n in range(40)]
    files[0].write_text("\n".join(lines))
    files[1].write_text("\n".join("changed = 1" if n in (5, 9, 16, 30) else line for n, line in enumerate(lines)))
    cli("diff", *files, "--html", page := tmp_path / "diff.html")
    tables = page.read_text().split('aria-label="changed lines"')[1:]
    shown = [[line for line in lines if f"  {line}<" in table] for table in tables]
    kept = [[*range(2, 5), *range(6, 9), *range(10, 16), *range(17, 20)], [*range(27, 30), *range(31, 34)]]
    assert shown == [[lines[n] for n in some] for some in kept]
    assert all(page.read_text().count(f"  {line}<") == 1 for some in shown for line in some)


def test_bad_input_is_one_line(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    binary = tmp_path / "binary.py"
    binary.write_bytes(b"\xff\xfe")
    for words, said in (
        ((files[0], tmp_path / "none.py"), "does not exist"),
        ((files[0], tmp_path), "are a file and a folder"),
        ((files[0], binary), "is not UTF-8 text"),
        ((*files, "--reference", tmp_path), "is not a file"),
        ((*files, "--html", tmp_path / "no" / "page.html"), "No such file or directory"),
    ):
        assert said in cli("diff", *words).refusal
