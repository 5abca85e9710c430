"""The α-account of a policy in its store: a test is charged once, before its first episode, and read from the ledger.

What a test costs is `promote.account`'s. The same run, iteration and candidate is the same charge: a run that was
killed between charging and measuring finds it again, and two runs at once never get the same place.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from holdfast.contracts.errors import NotFound, StoreCorrupt
from holdfast.contracts.run import LedgerEntry
from holdfast.contracts.task import canonical
from holdfast.promote.account import CANDIDATE, Account, Charge, ReadTasks, account, charge
from holdfast.prove.comparison import ComparisonConfig
from holdfast.store.store import Store

LABELS = ("id", "case", "split", "family", "metadata")  # of a task: what it is called, and where it belongs


async def charged(
    store: Store,
    policy: str,
    tasks: Iterable[Any],
    *,
    alpha: float,
    run: str,
    versions: tuple[str, str],
    who: str,
    now: float,
    iteration: int | None = None,
    about: str = CANDIDATE,
    continues: Charge | None = None,
) -> Charge:
    """The charge of a test of two versions, baseline and candidate, on the contents of tasks."""
    names = sorted({digest(one) for one in tasks})
    kept = store.blobs.put(json.dumps(names).encode(), now=now)
    key = f"{run}/{'-' if iteration is None else iteration}/{versions[1]}"
    given = {"key": key, "policy": policy, "run": run, "iteration": iteration, "tasks": kept, "count": len(names)}
    given |= {"baseline": versions[0], "candidate": versions[1]}
    read = reader(store)

    def make(known: Sequence[LedgerEntry], history: Sequence[LedgerEntry]) -> Mapping[str, Any]:
        earlier = [Charge.from_record(one.body) for one in known]
        passed = promoted(history)
        return charge(earlier, passed, read, alpha=alpha, about=about, continues=continues, **given).record()

    return Charge.from_record(await store.releases.charge(policy, key, make, run=run, who=who, now=now))


def digest(task: Any) -> str:
    """What a task is by its content: its words, whatever it is called and however they are set apart."""
    content = {key: task[key] for key in task if key not in LABELS} if isinstance(task, Mapping) else task
    words = " ".join(re.findall(r"\w+", canonical(content).casefold()))
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def reader(store: Store) -> ReadTasks:
    @cache
    def read(sha256: str) -> frozenset[str] | None:
        try:
            return frozenset(json.loads(store.blobs.get(sha256)))
        except (NotFound, StoreCorrupt):
            return None

    return read


def promoted(history: Iterable[LedgerEntry]) -> set[str]:
    """The sources of versions that a gate let through, and that were not taken back since."""
    sources: dict[str, str] = {}
    found: set[str] = set()
    for body in (one.body for one in history):
        if "add" in body:
            sources[str(body["add"])] = str(body["source"])
        about = str(body.get("accept") or body.get("move") or body.get("restore") or "")
        if about in sources and ("restore" in body or (body.get("decision") or {}).get("open")):
            found.add(sources[about])
        if (failed := str(body.get("roll_back"))) in sources:
            found.discard(sources[failed])
    return found


def account_of(store: Store, policy: str) -> Account:
    known = [Charge.from_record(one.body) for one in store.releases.charges(policy)]
    return account(policy, known, promoted(store.releases.history(policy)), reader(store))


def charge_of(store: Store, policy: str, run: str, iteration: int | None = None) -> Charge | None:
    """What a run was charged for its test, or for that of one iteration; None: it was charged nothing."""
    known = (Charge.from_record(one.body) for one in store.releases.charges(policy))
    return next((one for one in known if (one.run, one.iteration) == (run, iteration)), None)


def at_charge(how: ComparisonConfig, found: Charge | None) -> ComparisonConfig:
    """The same comparison with the α that its test has. Safety is asked of each candidate alone, at the whole α."""
    if found is None:
        return how
    whole = how.uncharged_alpha  # whoever decides more strictly than was charged is not made looser by it
    return replace(how, alpha=found.alpha * min(1.0, whole / found.of), safety_alpha=whole)
