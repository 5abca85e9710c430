"""`holdfast release …`: which versions there are, why one is live, one step further, back, and serving them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import show
from holdfast.cli.decide import decide
from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt, existing, who
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.contracts.evidence import Decision
    from holdfast.contracts.release import Release
    from holdfast.contracts.run import LedgerEntry
    from holdfast.store.store import Store

app = typer.Typer(help="Versions in service.", add_completion=False, no_args_is_help=True, rich_markup_mode=None)

app.command()(decide)

VersionText = Annotated[str, typer.Argument(metavar="VERSION", help="Policy and number, as in tools@3.")]
PolicyText = Annotated[str | None, typer.Argument(metavar="POLICY", help="Which line of versions; else the only one.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="For the ledger.")]


@app.command("list")
def list_(
    policy: PolicyText = None, store: StoreAt = DEFAULT_STORE, project: Project = "default", json: Json = False
) -> None:
    """List the versions and where each of them is, newest first."""
    with existing(store, project) as opened:
        policies = opened.releases.policies() if policy is None else [_policy(opened, policy)]
        found = [release for name in policies for release in opened.releases.of_policy(name)]
        if json:
            show.print_records(found)
            return
        if not found:
            print(f"no versions in project {project}; 'holdfast improve' proposes some")
            return
        columns = ("version", "stage", ">share", "good", "since", "~source")
        show.print_table(columns, [_row(release) for release in found])


def _row(release: Release) -> tuple[object, ...]:
    share = f"{release.share} %" if release.share else ""
    good = "yes" if release.is_known_good else ""
    return release.id, release.stage, share, good, show.moment(release.changed_at)[:16], release.source


@app.command()
def add(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="sprout, a folder of weights, a checkpoint, or resources:N.")
    ],
    policy: Annotated[str, typer.Option("--policy", metavar="NAME", help="The line of versions it belongs to.")],
    parent: Annotated[str | None, typer.Option("--parent", metavar="VERSION", help="What it grew from.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="SOURCE", help="What resources are given to.")] = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Register a version as a candidate. The first of a policy goes live with the next 'promote'."""
    from holdfast.cli.sprout import needing
    from holdfast.contracts.records import encode
    from holdfast.contracts.release import PolicyKind
    from holdfast.store.store import open_store

    with needing("learn"):
        from holdfast.workloads.versions import source_of
    with open_store(store, project=project) as opened:
        named, manifest = source_of(opened, source, model)
        kind = PolicyKind.PROMPT if named.startswith("resources:") else PolicyKind.WEIGHTS
        release = opened.releases.add(
            policy=policy, kind=kind, source=named, parent=parent, manifest=manifest, who=who(), now=time.time()
        ).result()
    if json:
        show.print_json(encode(release))
    else:
        print(f"{release.id}: {release.stage}, {release.source}")


@app.command("show")
def show_(
    version: VersionText, store: StoreAt = DEFAULT_STORE, project: Project = "default", json: Json = False
) -> None:
    """Show one version: where it is, what it grew from, and what its evidence says."""
    from holdfast.contracts.records import encode
    from holdfast.store.find import find_release

    with existing(store, project) as opened:
        release = find_release(opened, version)
        evidence = _evidence(opened, release)
        if json:
            found = None if evidence is None else encode(evidence)
            show.print_json({"release": encode(release), "evidence": found, "guard": _guard(opened, release)})
            return
        print(f"{release.id}: {release.stage}{f' with {release.share} %' if release.share else ''}")
        print(f"  source   {release.source}\n  parent   {release.parent or 'none'}")
        for name, value in release.manifest.items():
            print(f"  {name:<8} {value}" if not isinstance(value, dict) else f"  {name:<8} {len(value)} values")
        for line in _figures(evidence):
            print(f"  {line}")
        if (guard := _guard(opened, release)) is not None:
            for name, reading in guard["readings"].items():
                told = f"live {_number(reading['live'])}, this {_number(reading['canary'])}, {reading['n']} answers"
                print(f"  guard    {name:<8} {reading['state']:<7} {told}")


@app.command()
def history(
    policy: PolicyText = None, store: StoreAt = DEFAULT_STORE, project: Project = "default", json: Json = False
) -> None:
    """List what was decided about the versions of a policy, refusals too, oldest first."""
    with existing(store, project) as opened:
        entries = opened.releases.history(_policy(opened, policy))
        if json:
            show.print_records(entries)
            return
        show.print_table(
            (">entry", "when", "what", "~why"), [(one.seq, show.moment(one.at)[:16], *_told(one)) for one in entries]
        )


@app.command()
def explain(
    version: VersionText, store: StoreAt = DEFAULT_STORE, project: Project = "default", json: Json = False
) -> None:
    """Tell why a version is where it is, from the ledger, and decide once more from the samples.

    The ledger's chain and the hashes of evidence and samples are verified. Exit code 1 when they lead elsewhere.
    """
    from holdfast.contracts.records import encode
    from holdfast.operate.explain import recount
    from holdfast.store.find import find_release

    with existing(store, project) as opened:
        release = find_release(opened, version)
        found = recount(opened, release)
        if json:
            show.print_json(
                {
                    "release": encode(release),
                    "decision": None if found.decision is None else encode(found.decision),
                    "recomputed": None if found.again is None else encode(found.again),
                    "agrees": found.agrees,
                    "ledger_entries": found.entries,
                    "history": [encode(one) for one in found.history],
                    "proof": found.proof,
                }
            )
        else:
            _explain(release, found)
        raise typer.Exit(0 if found.agrees else 1)


def _explain(release: Release, found: Any) -> None:
    from textwrap import wrap

    from holdfast.cli import decision
    from holdfast.contracts.evidence import Reason

    print(f"{release.id} is {release.stage}{f' with {release.share} % of the requests' if release.share else ''}.\n")
    for entry in found.history:
        what, why = _told(entry)
        print(f"  {show.moment(entry.at)[:16]}  {what}, by {entry.who}")
        if "refuse" in entry.body:
            told = (Reason(**reason) for reason in entry.body["decision"]["reasons"])
            print("\n".join(decision.lines(tuple(told), "    ")))
        else:
            print("\n".join(wrap(why, decision.WIDTH, initial_indent="    ", subsequent_indent="    ")))
    for line in _figures(found.evidence):
        print(f"  {line}")
    if found.again is not None:
        verb = "is the same" if found.agrees else "DIFFERS"
        print(f"\ndecided once more from {found.episodes} stored episodes: {_verdict(found.again)}; it {verb}")
        if not found.agrees:
            print("\n".join(decision.lines(found.again.reasons)))
    print(f"ledger: {found.entries} entries, the chain holds")
    if found.proof:
        print(f"proof:  {found.proof}")


@app.command()
def promote(
    version: VersionText,
    why: Why = "by hand",
    to: Annotated[
        str | None, typer.Option("--to", metavar="STAGE", help="shadow, canary or live; else one step.")
    ] = None,
    share: Annotated[
        int | None, typer.Option("--share", metavar="N", min=1, max=100, help="Percent of a canary.")
    ] = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Take a version a step further, if its evidence allows it. A refusal is exit code 1, and is in the ledger."""
    from holdfast.cli.decision import lines
    from holdfast.contracts.records import encode
    from holdfast.contracts.release import Stage
    from holdfast.operate.steps import Refusal, advance

    if to is not None and to not in (Stage.SHADOW, Stage.CANARY, Stage.LIVE):
        raise BadInput(f"--to {to}", why="is no stage ahead", remedy="use shadow, canary or live")
    from holdfast.store.find import find_release

    with existing(store, project) as opened:
        release = find_release(opened, version)
        stage = None if to is None else Stage(to)
        found = advance(opened, release, to=stage, share=share, who=who(), why=why, now=time.time())
        if isinstance(found, Refusal):
            if json:
                show.print_json({"release": encode(release), "decision": encode(found.decision)})
            else:
                print(f"{release.id} stays {release.stage}: {_verdict(found.decision)}")
                print("\n".join(lines(found.decision.reasons)))
            raise typer.Exit(1)
        if json:
            show.print_json({"release": encode(found), "decision": None})
        else:
            print(f"{found.id} is {found.stage} now{f', with {found.share} %' if found.share else ''}")


@app.command()
def rollback(
    policy: PolicyText = None,
    why: Why = "by hand",
    to: Annotated[str | None, typer.Option("--to", metavar="VERSION", help="Else the last known good one.")] = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Take the canary back, or else the live version; services follow at once, and nobody is interrupted."""
    from holdfast.contracts.records import encode
    from holdfast.operate.steps import take_back

    with existing(store, project) as opened:
        failing, target = take_back(opened, _policy(opened, policy), to=to, who=who(), why=why, now=time.time())
        if json:
            show.print_json({"rolled_back": failing.id, "live": encode(target)})
        else:
            print(f"{failing.id} is taken back; {target.id} is live")


@app.command()
def serve(
    policy: PolicyText = None,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Others than this machine need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65_535, help="0: any that is free.")] = 8378,
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="TEXT", envvar="HOLDFAST_TOKEN", help="What callers send as their API key."),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record/--no-record", help="Keep conversations that get feedback, to learn from them.")
    ] = True,
    guard: Annotated[
        bool, typer.Option("--guard/--no-guard", help="Watch canaries here: take them further, or back.")
    ] = True,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
) -> None:
    """Serve the live version of a policy, and its canary to a share of the callers, until Ctrl-C.

    An OpenAI-compatible address. What came of an answer is told to /v1/feedback, by the answer's id.
    """
    from holdfast.cli.sprout import needing

    with needing("serve"):
        from holdfast.collect import endpoint
    with needing("learn"):
        from holdfast.cli.serving import run
    with existing(store, project) as opened, endpoint.listen(host, port, token=token) as listening:
        name = _policy(opened, policy)
        run(opened, name, listening, token=token, is_recorded=record, is_guarded=guard)


def _policy(store: Store, policy: str | None) -> str:
    """The one that was named, which may be cut short, or the only one there is."""
    known = store.releases.policies()
    if policy is not None:
        fits = [name for name in known if name.startswith(policy)]
        if policy not in known and len(fits) == 1:
            return fits[0]
        if policy not in known:
            raise BadInput(f"policy {policy!r}", why="has no versions", remedy=f"there is {', '.join(known) or 'none'}")
        return policy
    if len(known) != 1:
        why = "there is none" if not known else f"there are {len(known)}"
        raise BadInput(
            "POLICY", why=why, remedy=f"name one: {', '.join(known)}" if known else "propose a version first"
        )
    return known[0]


def _evidence(store: Store, release: Release) -> Any:
    from holdfast.contracts.evidence import Evidence
    from holdfast.contracts.records import loads

    return None if release.evidence is None else loads(Evidence, store.blobs.get(release.evidence))


def _guard(store: Store, release: Release) -> dict[str, Any] | None:
    from dataclasses import asdict

    from holdfast.contracts.release import Stage
    from holdfast.operate.keeper import judge
    from holdfast.prove.guard import Limits

    live = store.releases.live(release.policy)
    if live is None or release.stage not in (Stage.CANARY, Stage.SHADOW):
        return None
    return asdict(judge(store, release, live, Limits()))


def _figures(evidence: Any) -> list[str]:
    if evidence is None:
        return []
    lines = [f"evidence: {evidence.episodes} tasks of {evidence.suite}, against {evidence.baseline}"]
    for name, one in evidence.comparisons.items():
        margin = f", may be {one.margin:g} worse" if one.margin else ""
        lines.append(
            f"  {name:<8} {one.difference:+.3f} ({one.interval.level:.0%}: {one.interval.low:+.3f} to "
            f"{one.interval.high:+.3f}), p {one.p_value:.2g}{margin}"
        )
    return lines


def _told(entry: LedgerEntry) -> tuple[str, str]:
    """What an entry of the ledger says, and why."""
    body = entry.body
    if "add" in body:
        return f"{body['add']} registered", str(body.get("source", ""))
    if "refuse" in body:
        reasons = body["decision"]["reasons"]
        return f"{body['refuse']} refused", "; ".join(f"{one['code']}: {one['text']}" for one in reasons)
    if "roll_back" in body:
        return f"{body['roll_back']} taken back, {body['to']} live", str(body.get("why", ""))
    share = f" {body['share']} %" if body.get("share") and body.get("to") == "canary" else ""
    return f"{body.get('move')} {body.get('from')} → {body.get('to')}{share}", str(body.get("why", ""))


def _verdict(decision: Decision) -> str:
    if decision.open:
        return "open"
    return "closed" if decision.needs is None else f"closed, about {decision.needs} more episodes may open it"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
