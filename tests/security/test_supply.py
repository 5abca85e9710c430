"""What is installed has a version, hashes and a licence that we take."""

from __future__ import annotations

from tools.sbom import ROOT, bill, licences, pins, problems

GOOD = "a==1 \\\n    --hash=sha256:" + "0" * 64 + "\n"


def test_a_package_without_a_hash_or_with_another_licence_is_told() -> None:
    assert problems(GOOD, {"a": "MIT"}) == []
    assert problems(GOOD, {"a": "LGPL-3.0-or-later"}) == []
    assert problems("a==1\n", {}) == ["a==1: has no hash; run make lock"]
    assert problems(GOOD, {"a": "AGPL-3.0"}) == ["a: its licence is AGPL-3.0"]
    assert problems(GOOD, {"a": ""}) == ["a: states no licence"]


def test_the_lock_is_sound_and_its_bill_has_every_package() -> None:
    lock, installed = (ROOT / "requirements.lock").read_text(encoding="utf-8"), licences()
    assert problems(lock, installed) == []
    made = bill(lock, installed)
    assert len(made["components"]) == len(list(pins(lock))) > 100
    assert all(part["hashes"] for part in made["components"])
