"""`holdfast golden`: what a version does on a suite, as hashes; replayed, compared, and signed when it may change."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from holdfast.cli.options import CommandSet, Json, StoreOptions, who
from holdfast.cli.show import fold, moment, near, print_json, print_table
from holdfast.contracts.errors import BadInput, HoldfastError
from holdfast.contracts.records import encode

if TYPE_CHECKING:
    from holdfast.contracts.evidence import Finding
    from holdfast.prove.golden import Golden, GoldenChange
    from holdfast.prove.suite import Suite
    from holdfast.store.store import Store

SHOWN = 20  # cases of a difference

app = CommandSet("Keep what a version does on a suite, and see when it changes.")

SuiteAt = Annotated[str, Argument(metavar="SUITE", help="A file, or tooluse:COUNT[:SEED].")]
VersionOf = Annotated[
    str, Option("--version", metavar="VERSION", help="sprout, a folder, a checkpoint, or policy@number.")
]
Called = Annotated[str | None, Option("--name", metavar="NAME", help="Of the golden; the suite's if not given.")]
Known = Annotated[
    str, Argument(metavar="NAME", help="A golden, as 'holdfast golden list' has it, or the suite it is of.")
]


@app.command("record")
def record(suite: SuiteAt, version: VersionOf, at: StoreOptions, name: Called = None, json: Json = False) -> None:
    """Do every case once with nothing left to chance, and keep what was seen, done and earned."""
    from holdfast.prove.golden import told, write
    from holdfast.workloads.tooluse.suite import suite_of

    cases = suite_of(suite)
    called = _name(cases.suite_id if name is None else name)
    with at.open() as opened:
        path = _folder(opened) / f"{called}.json"
        if path.exists():
            remedy = f"'holdfast golden replay {called} --version …', then 'holdfast golden sign {called}', or --name"
            raise BadInput(f"golden {called}", why=f"is there already, in {near(path)}", remedy=remedy)
        made = replace(_replayed(opened, cases, version, called), suite_at=_whole(suite))
        write(path, made)
    if json:
        print_json(told(made))
        return
    print(fold(f"{made.name} {made.sha256[:12]}: {made.version} on {made.suite}, {len(made.cases)} cases"))
    print(fold(", ".join(f"{name} {value:.4g}" for name, value in made.kpis.items()), "  "))
    print(f"  {near(path)}")


@app.command("replay")
def replay(golden: Known, version: VersionOf, at: StoreOptions, name: Called = None, json: Json = False) -> None:
    """Do every case again, and compare with the golden. Exits 1 when something changed that nobody has signed."""
    from holdfast.prove.golden import REPLAY, check, diff, read, signed, write
    from holdfast.workloads.tooluse.suite import suite_of

    with at.open(create=False) as opened:
        called = _known(golden, _folder(opened)) if name is None else _name(name)
        kept = read(_folder(opened) / f"{called}.json")
        suite = kept.suite_at if golden == called else golden
        if not suite:
            remedy = f"give the suite: 'holdfast golden replay SUITE --name {called} --version {version}'"
            raise BadInput(f"golden {called}", why=f"does not say where its suite lies, {kept.suite}", remedy=remedy)
        cases = suite_of(suite)
        if kept.suite_sha256 != cases.fixture_sha256:
            why = f"is of another suite: {kept.suite}, not {cases.title}"
            raise BadInput(f"golden {called}", why=why, remedy="give that suite, or record this one by another --name")
        made = replace(_replayed(opened, cases, version, called), suite_at=_whole(suite))
        write(_folder(opened) / f"{called}{REPLAY}.json", made)
        findings = check(kept, made, signed=signed(opened))
    _compare(kept, made, findings, diff(kept, made), json)
    if any(one.count and one.blocks for one in findings):
        raise typer.Exit(1)


@app.command("diff")
def diff(
    name: Known,
    at: StoreOptions,
    other: Annotated[str | None, Argument(metavar="OTHER", help="Another one; its last replay.")] = None,
    json: Json = False,
) -> None:
    """Show what is different between a golden and its last replay, or another golden. Exits 1 as replay does."""
    from holdfast.prove import golden as goldens

    with at.existing() as opened:
        folder = _folder(opened)
        called = _known(name, folder)
        one = goldens.read(folder / f"{called}.json")
        file = f"{called}{goldens.REPLAY}" if other is None else _known(other, folder)
        two = goldens.read(folder / f"{file}.json")
        findings = goldens.check(one, two, signed=goldens.signed(opened))
    _compare(one, two, findings, goldens.diff(one, two), json)
    if any(found.count and found.blocks for found in findings):
        raise typer.Exit(1)


@app.command("sign")
def sign(
    name: Known,
    why: Annotated[str, Option(metavar="TEXT", help="Why the change is wanted; kept in the ledger.")],
    at: StoreOptions,
    json: Json = False,
) -> None:
    """Accept the last replay as the new golden, with who and why in the ledger."""
    from holdfast.prove import golden as goldens

    with at.open(create=False) as opened:
        called = _known(name, _folder(opened))
        path = _folder(opened) / f"{called}.json"
        last = path.with_name(f"{called}{goldens.REPLAY}.json")
        kept, new = goldens.read(path), goldens.read(last)
        before = None if new.sha256 == kept.sha256 else kept.sha256
        goldens.sign(opened, new, who=who(), why=why, now=time.time(), before=before).result()
        last.replace(path)  # the ledger first: what is in place unsigned would be a change that nobody answers for
    if json:
        told = {"golden": new.name, "sha256": new.sha256, "before": before, "version": new.version}
        print_json({**told, "who": who(), "why": why})
    else:
        print(fold(f"{new.name} {new.sha256[:12]} of {new.version} signed by {who()}"))


@app.command("list")
def list_(at: StoreOptions, json: Json = False) -> None:
    """List the goldens, and who signed them."""
    from holdfast.prove import golden as goldens

    with at.existing() as opened:
        folder, by = _folder(opened), goldens.signed(opened)
    found = [goldens.read(path) for path in sorted(folder.glob("*.json")) if not path.stem.endswith(goldens.REPLAY)]
    if json:
        print_json([{**goldens.told(one), "signed_by": by.get(one.sha256)} for one in found])
        return
    if not found:
        print(f"no goldens; make one: holdfast golden record SUITE --version VERSION{at}")
        return
    rows = [
        (
            g.name,
            len(g.cases),
            g.suite,
            g.version,
            g.kpis.get("success"),
            moment(g.recorded_at)[:16],
            by.get(g.sha256),
        )
        for g in found
    ]
    print_table(("name", ">cases", "~suite", "~version", ">success", "recorded", "signed by"), rows)


def _name(name: str) -> str:
    from holdfast.prove.golden import is_name

    if not is_name(name):
        raise BadInput(f"golden {name!r}", why="must be letters, digits, - and _", remedy="give another --name")
    return name


def _known(what: str, folder: Path) -> str:
    """A golden by its name, or by the suite that it is of: the id, a file, or tooluse:COUNT[:SEED]."""
    from holdfast.prove.golden import is_name
    from holdfast.workloads.tooluse.suite import is_generated, suite_of

    if is_name(what) and (folder / f"{what}.json").exists():
        return what
    if is_generated(what) or what.endswith(".json") or "/" in what:
        return _name(suite_of(what).suite_id)
    return _name(what)


def _whole(suite: str) -> str:
    """So that it is found from any folder."""
    from holdfast.workloads.tooluse.suite import is_generated

    return suite if is_generated(suite) else str(Path(suite).absolute())


def _folder(store: Store) -> Path:
    return store.reports.parent / "golden"


def _replayed(store: Store, suite: Suite, version: str, name: str) -> Golden:
    """One pass over the suite as a run of the store."""
    from holdfast.cli.drive import drive
    from holdfast.pipeline.golden import golden_in
    from holdfast.pipeline.versions import resolve
    from holdfast.workloads.tooluse.suite import replay_of, replay_spec

    spec = replay_spec(store, replay_of(suite, resolve(store, version), name=name))
    status, _, code = drive(store, spec, None)
    found = golden_in(store, store.steps.of_run(status.run_id))
    if found is not None:
        return found
    if code in (130, 143):
        raise typer.Exit(code)
    why = status.error or f"the run is {status.run_state}"
    raise HoldfastError(f"golden {name}", why=why, remedy=f"see 'holdfast rollouts {status.run_id}'")


def _compare(
    one: Golden, two: Golden, findings: tuple[Finding, ...], changes: tuple[GoldenChange, ...], json: bool
) -> None:
    if json:
        told = [{"case_id": c.case_id, "what": list(c.what), "kpis": dict(c.kpis)} for c in changes]
        versions = {"golden": one.sha256, "replay": two.sha256, "version": two.version}
        print_json({**versions, "findings": [encode(found) for found in findings], "changes": told})
        return
    print(fold(f"{one.name}: {one.version} ({one.sha256[:12]}) against {two.version} ({two.sha256[:12]})") + "\n")
    print_table(
        ("check", ">changed", ">of", "", "~first"),
        [(f.name, f.count, f.of, "blocks" if f.count and f.blocks else "", f.detail) for f in findings],
    )
    if changes:
        print()
        rows = [(c.case_id, ", ".join(c.what), _moved(c)) for c in changes[:SHOWN]]
        print_table(("~case", "changed", "~from → to"), rows)
    if len(changes) > SHOWN:
        print(f"and {len(changes) - SHOWN} more: --json has them all")
    blocking = any(found.count and found.blocks for found in findings)
    if blocking:
        print(f"\nif this is wanted: holdfast golden sign {one.name} --why '…'")


def _moved(change: GoldenChange) -> str:
    return ", ".join(f"{name} {before:g} → {after:g}" for name, (before, after) in change.kpis.items())
