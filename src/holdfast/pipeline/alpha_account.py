"""The α-account of a policy in its store: a test is charged once, before its first episode, and read from the ledger.

What a test costs is `promote.alpha_account`'s. The same run, iteration and candidate is the same charge: a run that was
killed between charging and measuring finds it again, and two runs at once never get the same place.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from holdfast.contracts.errors import Conflict, NotFound, StoreCorrupt
from holdfast.contracts.evidence import Evidence
from holdfast.contracts.records import loads
from holdfast.contracts.run import LedgerEntry
from holdfast.contracts.similar import normalise, restated, text_of
from holdfast.contracts.task import canonical
from holdfast.pipeline.held_out import HeldOut
from holdfast.pipeline.history import content
from holdfast.pipeline.prove import ProveConfig
from holdfast.promote.alpha_account import (
    ANCHOR,
    CANDIDATE,
    EXPERIMENT,
    Account,
    Charge,
    ReadTasks,
    account_from,
    charge,
)
from holdfast.promote.gate import CHARGED
from holdfast.prove.comparison import ComparisonConfig
from holdfast.store.sql import Transaction
from holdfast.store.store import Store

ANCHOR_EVERY = 10  # promotions after which live is to be measured against its anchor
LABELS = ("id", "case", "split", "family", "metadata")  # of a task: what it is called, and where it belongs


async def charged(
    store: Store,
    policy: str,
    tasks: Iterable[HeldOut],
    *,
    alpha: float,
    run: str,
    versions: tuple[str, str],
    who: str,
    now: float,
    iteration: int | None = None,
    about: str = CANDIDATE,
    continues: Charge | None = None,
    setup: str | None = None,
    uncharged: int = 0,
) -> Charge:
    """The charge of a test of two versions, baseline and candidate, on these tasks; `uncharged` tests on them came
    before it and are in no account."""
    tasks = list(tasks)
    key = f"{run}/{'-' if iteration is None else iteration}/{versions[1]}"
    given: dict[str, Any] = {"key": key, "policy": policy, "run": run, "count": len({task.id for task in tasks})}
    given |= {"baseline": versions[0], "candidate": versions[1], "setup": setup, "iteration": iteration}
    given |= {"alpha": alpha, "about": about, "continues": continues, "uncharged": uncharged}
    while True:
        before = _task_sets(store.releases.charges(policy))
        make = partial(_charge, store, before, {**given, "tasks": _keep(store, before, tasks, now)})
        try:
            return Charge.from_record(await store.releases.charge(policy, key, make, run=run, who=who, now=now))
        except _TasksChargedMeanwhileError:
            continue


class _TasksChargedMeanwhileError(Conflict):
    """Which tasks are known ones was decided before others were charged: it is to be decided again."""


def _keep(store: Store, before: Sequence[str], tasks: Iterable[HeldOut], now: float) -> str:
    """The hash of the list of tasks, each with what it is by its content."""
    tasks = list(tasks)
    known = _named(_said_before(store, before), [task.input for task in tasks])
    names = {
        held_out.id: (name, content(held_out.input), _text(held_out.input))
        for held_out, name in zip(tasks, known, strict=True)
    }
    return store.blobs.put(json.dumps(names, sort_keys=True).encode(), now=now)


def _charge(
    store: Store,
    before: Sequence[str],
    given: Mapping[str, Any],
    known: Sequence[LedgerEntry],
    history: Sequence[LedgerEntry],
) -> Mapping[str, Any]:
    if _task_sets(known) != before:
        raise _TasksChargedMeanwhileError(f"policy {given['policy']}", why="was charged for other tasks meanwhile")
    earlier = [Charge.from_record(entry.body) for entry in known]
    return charge(earlier, promoted(store, earlier, history), reader(store), **given).record()


def charge_experiment(
    store: Store, tx: Transaction, policies: Iterable[str], name: str, *, alpha: float, who: str, now: float
) -> None:
    """An experiment beside the tests of each policy that answers in it: its α is added to what may have gone wrong. It
    takes nothing from held-out tasks, as its units are its own. In the transaction that begins it."""
    for policy in policies:
        about: Any = {"key": f"{EXPERIMENT}/{name}", "policy": policy, "run": "", "baseline": "", "candidate": name}

        def make(known: Sequence[LedgerEntry], history: Sequence[LedgerEntry], about: Any = about) -> Mapping[str, Any]:
            options: dict[str, Any] = {"alpha": alpha, "about": EXPERIMENT, "tasks": "", "count": 0}
            return charge((), (), lambda sha256: None, **options, **about).record()

        store.releases.charge_in(tx, policy, about["key"], make, run=None, who=who, now=now)


def digest(task: Any) -> str:
    """Hashes the words of a task; its name, spacing and punctuation do not count."""
    words = " ".join(re.findall(r"\w+", canonical(_content(task)).casefold()))
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def _content(task: Any) -> Any:
    return {key: task[key] for key in task if key not in LABELS} if isinstance(task, Mapping) else task


def _text(task: Any) -> str:
    return normalise(text_of(_content(task)))


def digests(store: Store, policy: str, tasks: Sequence[Any]) -> list[str]:
    """Of each task. One that says what an earlier test's did, but for a few words or for what is added to all, is that
    one still: whoever changes a word in each task has no fresh tasks. Tasks of one template that share no more than its
    frame are different."""
    return _named(_said_before(store, _task_sets(store.releases.charges(policy))), tasks)


def is_beside(tasks: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether one of the others is, by what it says, one of the tasks."""
    known = [(digest(task), _text(task)) for task in tasks]
    return not {name for name, _ in known}.isdisjoint(_named([known], others))


def _named(known: Sequence[Sequence[tuple[str, str]]], tasks: Sequence[Any]) -> list[str]:
    names, texts = list(map(digest, tasks)), list(map(_text, tasks))
    name_of = {text: name for some in reversed(known) for name, text in some}
    taken = set(name_of.values())
    exact = [name if name in taken else name_of.get(text) for name, text in zip(names, texts, strict=True)]
    near = exact if all(exact) else restated(known, texts)
    return [one or other or name for one, other, name in zip(exact, near, names, strict=True)]


def _task_sets(charges: Iterable[LedgerEntry]) -> list[str]:
    return list(dict.fromkeys(str(entry.body["tasks"]) for entry in charges))


def _said_before(store: Store, task_sets: Iterable[str]) -> list[list[tuple[str, str]]]:
    """The digest and the text of each task of the sets; versions before kept no texts."""
    found = []
    for sha256 in task_sets:
        try:
            kept = json.loads(store.blobs.get(sha256)).values()
        except (NotFound, StoreCorrupt):
            continue
        found.append([(one[0], one[2]) for one in kept if len(one) > 2])
    return found


def reader(store: Store) -> ReadTasks:
    @cache
    def read(sha256: str) -> frozenset[str] | None:
        try:
            return frozenset(one[0] for one in json.loads(store.blobs.get(sha256)).values())
        except (NotFound, StoreCorrupt):
            return None

    return read


def promoted(
    store: Store, known: Iterable[Charge], history: Iterable[LedgerEntry], *, is_ever: bool = False
) -> set[str]:
    """The keys of the tests whose own decision opened a gate, for versions that were not taken back since, or ever."""
    tests = {(one.run, one.number): one.continues or one.key for one in known if one.about == CANDIDATE}
    found: dict[str, set[str]] = defaultdict(set)  # by version
    taken_back: dict[str, set[str]] = {}
    for body in (entry.body for entry in history):
        about = str(body.get("accept") or body.get("move"))
        if (body.get("decision") or {}).get("open") and body.get("evidence"):
            test = _test_of(store, str(body["evidence"]))
            found[about] |= {tests[test]} if test in tests else set()
        if (failed := str(body.get("roll_back"))) in found and not is_ever:
            taken_back[failed] = found.pop(failed)
        if (again := str(body.get("restore"))) in taken_back:
            found[again] |= taken_back.pop(again)
    return {key for keys in found.values() for key in keys}


def _test_of(store: Store, evidence: str) -> tuple[str, int]:
    """The run and the number of the test that the evidence is of; what is lost, or was charged nothing, is of none."""
    try:
        manifest = loads(Evidence, store.blobs.get(evidence)).manifest
    except (NotFound, StoreCorrupt):
        return "", 0
    return str(manifest.get("run")), int(manifest.get(CHARGED, {}).get("number", 0))


def account_of(store: Store, policy: str) -> Account:
    known = [Charge.from_record(entry.body) for entry in store.releases.charges(policy)]
    won = promoted(store, known, store.releases.history(policy))
    return account_from(policy, known, won, reader(store))


def ever_promoted(store: Store, policy: str) -> set[str]:
    """The keys of the tests that opened a gate, whatever became of the version. Their tries are not like others: the
    one was lucky, or the other unlucky."""
    known = [Charge.from_record(entry.body) for entry in store.releases.charges(policy)]
    return promoted(store, known, store.releases.history(policy), is_ever=True)


def account_record(store: Store, policy: str) -> dict[str, Any]:
    """{"policy", "tests", "promoted", "bound", "experiments": [{"name", "alpha"}], "sets": [{"tasks", "tests",
    "promoted", "alpha", "spent", "left", "next_alpha", "last": charge}],
    "anchor": {"run", "against", "alpha", "number", "outcome"}|None,
    "anchor_due": promotions since the last test against an anchor, where there are ten or more, else None}"""
    account = account_of(store, policy)
    sets: list[dict[str, Any]] = [
        {
            "tasks": use.charges[-1].count,
            "tests": len(use.charges),
            "promoted": use.promoted,
            "alpha": use.alpha,
            "spent": use.spent,
            "left": max(0.0, 1.0 - use.spent),
            "next_alpha": use.next_alpha,
            "last": use.charges[-1].record(),
        }
        for use in account.sets
    ]
    tests, won = (sum(one[name] for one in sets) for name in ("tests", "promoted"))
    payload: dict[str, Any] = {"policy": policy, "tests": tests, "promoted": won, "bound": account.bound, "sets": sets}
    payload["experiments"] = [
        {"name": experiment.candidate, "alpha": experiment.alpha} for experiment in account.experiments
    ]
    return {**payload, **_anchor(store, policy, account.anchor_tests)}


def _anchor(store: Store, policy: str, anchors: Sequence[Charge]) -> dict[str, Any]:
    """The last test of live against an anchor, and whether the next is due."""
    entries = store.releases.charges(policy)
    since = next((entry.at for entry in reversed(entries) if entry.body.get("about") == ANCHOR), 0.0)
    moves = [entry for entry in store.releases.history(policy) if entry.at > since and entry.body.get("to") == "live"]
    due = {"anchor_due": len(moves) if len(moves) >= ANCHOR_EVERY else None}
    if not anchors:
        return {"anchor": None, **due}
    last = anchors[-1]
    try:
        bodies = [step.body for step in store.steps.of_run(last.run) if step.body.get("verdict")]
        settings = store.runs.get(last.run).settings
    except NotFound:  # pruned
        bodies, settings = [], {}
    against = settings.get("baseline", {}).get("name", last.baseline)
    outcome = bodies[-1]["verdict"]["outcome"] if bodies else None
    payload = {"run": last.run, "against": against, "alpha": last.alpha, "number": last.number, "outcome": outcome}
    return {"anchor": payload, **due}


def charge_of(store: Store, policy: str, run: str, iteration: int | None = None) -> Charge | None:
    """Finds the charge of a run's test, or of one iteration's; None: it was charged nothing."""
    known = (Charge.from_record(entry.body) for entry in store.releases.charges(policy))
    return next((one for one in known if (one.run, one.iteration) == (run, iteration)), None)


def at_charge(how: ComparisonConfig, test: Charge | None) -> ComparisonConfig:
    """Gives a comparison the α of its test. Safety is asked of each candidate alone, at the whole α."""
    if test is None:
        return how
    whole = how.uncharged_alpha  # whoever decides more strictly than was charged is not made looser by it
    return replace(how, alpha=test.alpha * min(1.0, whole / test.of), safety_alpha=whole)


def at_test(config: ProveConfig, test: Charge | None) -> ProveConfig:
    """Gives every further test on the same tasks seeds of its own: what both versions draw is the same,
    and what the live version drew before is not drawn once more."""
    if test is None or test.number == 1:
        return config
    return replace(config, chance=f"{config.chance}~{test.number}")
