"""What we install: a CycloneDX bill of materials from requirements.lock, and a check of its hashes and licences.

`python tools/sbom.py` checks; `python tools/sbom.py FILE` writes the bill as well. It needs no network: licences are
those that the installed packages state.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PIN = re.compile(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)(.*)", re.MULTILINE)
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
# Of what is linked into a program that others get; weaker ones (LGPL, MPL) may be used as they are.
REFUSED = re.compile(r"\bA?GPL|General Public License|SSPL|proprietary|commercial", re.IGNORECASE)
LESSER = re.compile(r"LGPL|Lesser General|Library or Lesser", re.IGNORECASE)


def pins(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Name, version and hashes of every package in a lock."""
    for found in PIN.finditer(text.replace("\\\n", " ")):
        yield re.sub(r"[-_.]+", "-", found[1]).lower(), found[2], HASH.findall(found[3])


def licence(package: Distribution) -> str:
    about = package.metadata
    said = about.get("License-Expression") or ""
    classes = [one for one in about.get_all("Classifier") or [] if one.startswith("License ::")]
    named = [one.rpartition("::")[2].strip() for one in classes]
    text = (about.get("License") or "").strip().partition("\n")[0]
    return said or " OR ".join(named) or text[:80]


def problems(lock: str, installed: dict[str, str]) -> list[str]:
    """What is wrong with a lock, given the licences of what is installed."""
    found = []
    for name, version, hashes in pins(lock):
        if not hashes:
            found.append(f"{name}=={version}: has no hash; run make lock")
        said = installed.get(name)
        if said is not None and not said:
            found.append(f"{name}: states no licence")
        elif said and REFUSED.search(LESSER.sub("", said)):
            found.append(f"{name}: its licence is {said}")
    return found


def bill(lock: str, installed: dict[str, str]) -> dict[str, Any]:
    parts = [
        {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "hashes": [{"alg": "SHA-256", "content": one} for one in hashes],
            **({"licenses": [{"license": {"name": installed[name]}}]} if installed.get(name) else {}),
        }
        for name, version, hashes in pins(lock)
    ]
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": parts}


def licences() -> dict[str, str]:
    """Of everything that is installed here."""
    return {re.sub(r"[-_.]+", "-", one.name).lower(): licence(one) for one in distributions() if one.name}


if __name__ == "__main__":
    lock, installed = (ROOT / "requirements.lock").read_text(encoding="utf-8"), licences()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(bill(lock, installed), indent=1) + "\n", encoding="utf-8")
    wrong = problems(lock, installed)
    print("\n".join(wrong) or f"{sum(1 for _ in pins(lock))} packages, each with its hashes and a licence that we take")
    sys.exit(bool(wrong))
