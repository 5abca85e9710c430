"""`holdfast town school`, and what it leaves: versions that drive residents, compared and looked into."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from holdfast.cli.options import Output, StoreOptions, needing, who
from holdfast.cli.show import step
from holdfast.contracts.errors import BadInput, NotFound
from holdfast.contracts.evidence import Decision
from holdfast.contracts.lines import folded
from holdfast.contracts.records import decode
from holdfast.contracts.release import Stage, check_name
from holdfast.contracts.run import RunState, Status

if TYPE_CHECKING:
    from holdfast.contracts.policy import Act
    from holdfast.store.store import Store
    from holdfast.workloads.townschool import SchoolReport

RulesAt = Annotated[Path | None, Option("--rules", metavar="FILE", help="TOML that overrides the default rules.")]
Seed = Annotated[int, Option("--seed", metavar="N", min=0, max=2**63 - 1, help="The same seed, the same town.")]
Residents = Annotated[int | None, Option("--residents", metavar="N", min=1, max=256, help="How many live there.")]
Profile = Annotated[
    str | None,
    Option("--profile", metavar="NAME", help="A mix of natures: quiet, outgoing, ambitious, or one of the rules."),
]
SeenAs = Annotated[
    str | None,
    Option(
        "--observation",
        metavar="NAME",
        help="What residents see: compact, recall, hybrid or full; else what the version was trained on, or recall.",
    ),
]


class NetworkKind(StrEnum):
    FEEDFORWARD = "feedforward"
    RECURRENT = "recurrent"


ENOUGH_ACCURACY, ENOUGH_RECALL = 0.90, 0.75  # of a clone, where it was judged


def warn() -> None:
    """Says that the rules are about to be compiled, which takes a minute once."""
    from holdfast.workloads.townlife import is_cold

    if is_cold():
        typer.echo("compiling the rules of the town, once; this takes about a minute …", err=True)


def taught(at: StoreOptions) -> Store:
    """The store with the versions of residents, as it is."""
    try:
        return at.existing()
    except NotFound as error:
        remedy = "check the path; 'holdfast town school' creates one"
        raise NotFound(error.what, why=error.why, remedy=remedy) from None


def school(
    at: StoreOptions,
    seed: Annotated[int, Option(metavar="N", min=0, max=2**15, help="Of all chance.")] = 1,
    quick: Annotated[bool, Option("--quick", help="A short course, of a minute or two; proves little.")] = False,
    rules: RulesAt = None,
    residents: Residents = None,
    name: Annotated[str, Option(metavar="NAME", help="The line of versions.")] = "town",
    profile: Profile = None,
    observation: SeenAs = None,
    network: Annotated[
        NetworkKind | None,
        Option(help="A recurrent one remembers the day so far (a GRU) and takes longer; else feedforward."),
    ] = None,
    stage: Annotated[
        str, Option(metavar="STAGE", help="Where an open gate leads: candidate, shadow, canary or live.")
    ] = "live",
    fresh: Annotated[bool, Option("--fresh", help="Start anew, even if an earlier one can be resumed.")] = False,
) -> Output:
    """Teach residents: clone the scripts, DAgger, pass control over share by share, practise by PPO held to the clone,
    prove the network in towns that nobody learnt in, and promote it by the same gate as any other policy.

    With --stage canary or shadow, 'town run --policy live' then lets it drive a share of the residents, or a copy of
    the town; with --stage candidate it is only accepted, and 'release promote' moves it.

    Ctrl-C or a kill loses nothing: the same command goes on where it stopped. What is live already is taught on, and
    has to be beaten. Exit code 1: nothing was promoted, except with --quick.
    """
    check_name("--name", name)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is read: networks this small are slower on more
    with needing("learn"):
        from holdfast.api.driving import interrupted
        from holdfast.cli.drive import drive, switched_off, switched_off_lines
        from holdfast.operate.switches import snapshot_of
        from holdfast.workloads.towngate import check_signed
        from holdfast.workloads.townlife import OBSERVED
        from holdfast.workloads.townschool import TownMaker, check_line, school_report, school_run
    is_small = quick and rules is None and residents is None
    live = QUICK_RESIDENTS if is_small else residents
    maker = TownMaker(rules_file=rules, residents=live, profile=profile, observation=observation or OBSERVED)
    warn()
    memory = network is NetworkKind.RECURRENT
    spec = school_run(maker, seed=seed, name=name, quick=quick, memory=memory, stage=_stage(stage))
    chosen = {"--profile": profile, "--observation": observation, "--network": network}
    chosen["--stage"] = stage if stage != "live" else None
    again = _again(seed, quick, rules, residents, name, at, chosen)
    with at.open() as opened:
        check_line(opened, maker, name, None if network is None else network is NetworkKind.RECURRENT)
        check_signed(maker, opened, name, who=who(), now=time.time(), at=str(at))
        begun = snapshot_of(opened, clock=time.time, environment=os.environ)
        status, _, code = drive(opened, spec, None if fresh else interrupted(opened, spec))
        report = school_report(opened, status.run_id)
        off = switched_off(opened, status.run_id, spec, begun)
    lines = [*switched_off_lines(off, str(at)), *_lines(status, report, again, str(at), stage)]
    data = {"status": status, **report.plain()}
    return Output(data, "\n".join(lines), code or int(not report.is_promoted and not quick))


QUICK_RESIDENTS = 16


def _stage(named: str) -> Stage | None:
    """Where an open gate leads; None: nowhere, the version stays a candidate."""
    if named not in ("candidate", "shadow", "canary", "live"):
        raise BadInput(f"--stage {named}", why="is no such stage", remedy="use candidate, shadow, canary or live")
    return None if named == "candidate" else Stage(named)


def _again(
    seed: int,
    quick: bool,
    rules: Path | None,
    residents: int | None,
    name: str,
    at: StoreOptions,
    chosen: Mapping[str, str | None] | None = None,
) -> str:
    """The command that goes on with it, as a shell takes it."""
    words = [f" --seed {seed}", " --quick" * quick, f" --rules {shlex.quote(str(rules))}" if rules else ""]
    words += [f" --residents {residents}" if residents else ""]
    words += [f" --name {shlex.quote(name)}" if name != "town" else ""]
    words += [f" {option} {shlex.quote(value)}" for option, value in (chosen or {}).items() if value]
    return f"holdfast town school{''.join(words)}{at}"


def golden(
    at: StoreOptions,
    name: Annotated[str, Option(metavar="NAME", help="The line of versions.")] = "town",
    rules: RulesAt = None,
    residents: Residents = None,
    profile: Profile = None,
    observation: SeenAs = None,
) -> Output:
    """Live the golden towns by the script, and compare what is seen, done and paid with the record; the first time,
    record it.

    A change that nobody has signed keeps the gate closed for every version of the line: exit code 1, and the command
    that signs it.
    """
    check_name("--name", name)
    with needing("learn"):
        from holdfast.cli.calibrate import compared
        from holdfast.prove import golden as goldens
        from holdfast.workloads.towngate import golden_findings, golden_folder, golden_name
        from holdfast.workloads.townlife import OBSERVED
        from holdfast.workloads.townschool import TownMaker
    maker = TownMaker(rules_file=rules, residents=residents, profile=profile, observation=observation or OBSERVED)
    called = golden_name(maker, name)
    warn()
    with at.open() as opened:
        is_new = goldens.known_sha256(opened, called) is None
        findings = golden_findings(maker, opened, name, now=time.time(), who=who())
        kept = goldens.read(golden_folder(opened) / f"{called}.json")
        if is_new:
            text = f"{called} {kept.sha256[:12]} recorded: {kept.suite}"
            return Output(goldens.as_dict(kept), "\n".join(folded(text, hanging="  ")))
        made = goldens.read(golden_folder(opened) / f"{called}{goldens.REPLAY}.json")
    return compared(kept, made, findings)


def audit(
    at: StoreOptions,
    run: Annotated[str | None, Argument(metavar="[RUN]", help="Of the school; else its last one.")] = None,
    rules: RulesAt = None,
    residents: Residents = None,
) -> Output:
    """Audit the demonstrations that a school learnt from: whole on disk, possible, and how much there is of each
    action, hour, need and nature. Exit code 1: something in them would have taught nonsense, or has changed since."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with needing("learn"):
        from holdfast.cli.show import progress, table
        from holdfast.workloads.townschool import TownMaker, data_sets, last_school
    maker = TownMaker(rules_file=rules, residents=residents)
    maker.describe()  # what is wrong with the rules is told before any work
    warn()
    with taught(at) as opened, progress("reading", None):
        name = last_school(opened) if run is None else opened.runs.get(run).id
        sets = data_sets(maker, opened, name)
    wrong = [one for data in sets for one in data.findings if one.count and one.blocks]
    totals: dict[str, Counter[str]] = {}
    for data in sets:
        for part, counts in data.coverage.items():
            if part != "rows":
                totals.setdefault(part, Counter()).update(counts)

    texts = [
        f"{part.replace('_', ' ')}: {', '.join(f'{label} {count}' for label, count in counts.items())}"
        for part, counts in totals.items()
    ]
    texts += [f"{finding.name}: {finding.count} of {finding.of}; {finding.detail}" for finding in wrong]
    texts.append(f"{len(wrong)} checks failed" if wrong else "nothing is wrong with them")
    rounds = table(
        ["round", ">rows", "~checkpoint"],
        [(data_set.phase, data_set.coverage["rows"], data_set.checkpoint) for data_set in sets],
    )
    lines = [line for text in texts for line in folded(text, hanging="  ")]
    payload = {"run": name, "passed": not wrong, "coverage": totals, "sets": [asdict(data_set) for data_set in sets]}
    return Output(payload, (rounds, *lines), int(bool(wrong)))


def drill(
    rules: RulesAt = None,
    residents: Annotated[int, Option("--residents", metavar="N", min=1, max=256, help="How many live there.")] = 12,
) -> Output:
    """Swap real weights in a running town, and let an anneal hurt, on a scratch store.

    Weights are promoted, damaged and taken back while the town runs by them. Exit code 1: something did not happen that
    has to."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with needing("learn"):
        from holdfast.cli.drive import drive
        from holdfast.store.store import open_store
        from holdfast.workloads.towndrill import drill as perform
        from holdfast.workloads.townschool import TownMaker
    maker = TownMaker(rules_file=rules, residents=None if rules else residents)
    maker.describe()  # what is wrong with the rules is told before any work
    warn()
    with TemporaryDirectory(prefix="town-drill-") as folder, open_store(Path(folder) / "s.db", create=True) as scratch:
        checks = list(perform(scratch, maker, lambda spec: drive(scratch, spec, None)[0].run_id, now=time.time))
    failed = [check for check in checks if not check.holds]
    texts = [f"{'ok' if check.holds else 'FAILED':8}{check.name}: {check.found}" for check in checks]
    lines = [line for text in texts for line in folded(text, hanging=" " * 8)]
    data = {"passed": not failed, "checks": [asdict(check) for check in checks]}
    return Output(data, "\n".join(lines), int(bool(failed)))


def rollout_lines(told: Mapping[str, Any]) -> Iterator[str]:
    """Who drives whom, how the two groups or towns compare, and what the guard did."""
    drives = ", ".join(f"{version} {count}" for version, count in told["residents"].items())
    if told["canary"] is not None:
        yield from folded(f"canary {told['canary']} with {told['share']} %; residents: {drives}")
    elif told["shadow"] is not None:
        yield from folded(f"shadow {told['shadow']} lives in a copy of the town, beside {told['live']}")
    for version, why in told["refused"].items():
        yield from folded(f"{version} could not be loaded: {why}", hanging="  ")
    for one in told.get("guard", {}).get("readings", ()):
        live, ours = ("-" if one[name] is None else f"{one[name]:.3g}" for name in ("live", "canary"))
        state = "undecided" if one["state"] == "open" else one["state"]
        yield f"  {METRIC_NAMES[one['metric']]:12}{state:10}live {live}, this {ours}, {one['n']} days of residents"
    for name, values in told.get("kpis", {}).items():
        live, ours = ("-" if values[who] is None else f"{values[who]:.3g}" for who in ("live", "shadow"))
        yield f"  {name.replace('_', ' '):18}live {live:>8}  shadow {ours:>8}"
    for one in told["moves"]:
        yield from folded(f"tick {one['tick']}, {one['version']}: {one['action']} ({one['why']})", hanging="  ")


METRIC_NAMES = {"reward": "return", "success": "needs met"}


def mind(
    at: StoreOptions,
    policy: Annotated[str, Option(metavar="VERSION", help="A release, or live.")] = "live",
    resident: Annotated[int, Option(metavar="N", min=0, help="Who is looked into.")] = 0,
    tick: Annotated[int, Option(metavar="N", min=0, max=10**6, help="When: ticks lived by that version.")] = 480,
    seed: Seed = 1,
    rules: RulesAt = None,
    residents: Residents = None,
    profile: Profile = None,
) -> Output:
    """Look into the network that drives a resident: what it sees, what it may do and how likely that is, what it
    expects, which numbers made it choose, and what the script would do."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with needing("learn"):
        from holdfast.cli.show import progress
        from holdfast.workloads.townlife import Life, read_rules
        from holdfast.workloads.townschool import mind_of
    known = read_rules(rules, residents=residents, profile=profile)
    warn()
    with taught(at) as opened:
        driven = mind_of(opened, None if policy == "live" else policy, known)
    life = Life(known, seed=seed, mind=driven, variant=driven.observation)
    with progress("living", tick) as advance:
        for _ in range(tick):
            life.step()
            advance()
    found = life.look_into(resident)
    return Output(found, "\n".join(_mind_lines(found)))


def _mind_lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found['name']} at tick {found['tick']}, driven by {found['version']}"
    yield f"the script would: {found['scripted']}"
    if "value" in found:
        scaled = f" (a return of {found['expected']:+.2f})" if "expected" in found else ""
        yield f"expects {found['value']:+.2f}{scaled}; 0: the usual return, 1: its spread"
    if "advantage" in found:
        yield f"the last tick was {found['advantage']:+.4f} better than expected (advantage)"
    yield "may do"
    for one in found["actions"][:8]:
        share = "" if one["p"] is None else f"{one['p']:7.1%}  {'█' * round(30 * one['p'])}"
        yield f"  {one['name']:16}{share}"
    for title, parts in (("sees", found["seen"]), ("why", found.get("why", {}))):
        if parts:
            yield title
        for group, value in parts.items():
            text = f"{value:+.2f}" if isinstance(value, float) else ", ".join(f"{k} {v:g}" for k, v in value.items())
            yield from folded(f"  {group:14}{text}") if text else ()
    if found.get("strongest"):
        yield from folded("most: " + ", ".join(f"{one['name']} {one['share']:+.2f}" for one in found["strongest"]))


def _lines(status: Status, report: SchoolReport, again: str, at: str, stage: str) -> Iterator[str]:
    yield f"{status.run_id} {status.run_state.replace('_', ' ')} in {status.elapsed_s:.0f} s"
    if report.bc_accuracy is not None and report.bc_macro_recall is not None:
        yield f"  clone      agrees at {report.bc_accuracy:.1%}, recall over actions {report.bc_macro_recall:.2f}"
    if report.anneal is not None:
        yield f"  anneal     {_passed(report.anneal)}"
    if report.return_before is not None and report.return_learnt is not None:
        yield f"  before     {report.return_before:+.2f} a resident and day, {report.towns} unseen towns"
        yield f"  learnt     {report.return_learnt:+.2f}"
    if report.gain is not None:
        yield f"  gain       {report.gain:+.2f} ({report.gain_low:+.2f} to {report.gain_high:+.2f}), town by town"
    for nature, one in report.by_nature.items():
        span = "" if one["gain_low"] is None else f" ({one['gain_low']:+.2f} to {one['gain_high']:+.2f})"
        yield f"    {nature:13}{one['before']:+.2f} → {one['learnt']:+.2f}, gain {one['gain']:+.2f}{span}"
    if status.run_state is not RunState.COMPLETED:
        why = f" ({status.error})" if status.error else ""
        yield from (f"stopped at {status.lesson or 'the beginning'}{why}", "next:")
        yield from step(again, "goes on where it stopped")
        return
    yield from _decided(report, at, stage)


def _passed(anneal: Mapping[str, Any]) -> str:
    shares = ", ".join(f"{one['share']:.0%} {one['action']}" for one in anneal["windows"])
    return f"share {anneal['share']:.0%} ({shares})"


def _decided(report: SchoolReport, at: str, stage: str) -> Iterator[str]:
    if report.decision is None:
        yield from folded(report.why or "nothing was learnt")
        return
    from holdfast.cli.release import reason_lines

    done = {"live": "promoted", "candidate": "accepted; it stays candidate"}.get(stage, f"promoted to {stage}")
    yield f"{report.release}: {done if report.is_promoted else 'held'}"
    yield from reason_lines(decode(Decision, report.decision).reasons)
    yield "next:"
    release = shlex.quote(report.release or "")
    if report.is_promoted and stage == "candidate":
        yield from step(f"holdfast release promote {release} --to canary{at}", "or to shadow, or live")
    elif report.is_promoted and stage != "live":
        yield from step(f"holdfast town run --policy live{at}", "lives days by it, which decide it")
    yield from step(f"holdfast town watch --policy {release}{at}", "see them live")
    yield from step(f"holdfast town mind --policy {release}{at}", "look into one")
    yield from step(f"holdfast release show {release}{at}")


Towns = Annotated[
    int, Option("--towns", metavar="N", min=3, max=512, help="How many are lived in; an interval takes 3.")
]


def league(
    at: StoreOptions,
    versions: Annotated[
        list[str] | None, Argument(metavar="[VERSION]...", help="Releases, live or checkpoints; else all of the line.")
    ] = None,
    towns: Towns = 16,
    days: Annotated[int, Option(metavar="N", min=1, max=30, help="Of each town.")] = 1,
    name: Annotated[str, Option(metavar="NAME", help="The line of versions.")] = "town",
    rules: RulesAt = None,
    residents: Residents = None,
    profile: Profile = None,
) -> Output:
    """Let scripts, chance and versions live in the same towns, which nobody learnt in, and compare what they earn."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with needing("learn"):
        from holdfast.cli.show import progress, table
        from holdfast.policies.network import Scripted
        from holdfast.workloads.townschool import TownMaker, act_of, entrants, lived, made_for, standings
    maker = TownMaker(rules_file=rules, residents=residents, days=days, profile=profile)
    maker.describe()  # what is wrong with the rules is told before any work
    warn()
    with taught(at) as opened:
        known = entrants(opened, versions, name)
        acts = {"scripts": (maker, act_of(opened, Scripted(env=maker.name))), "chance": (maker, None)}
        acts |= {who: (made_for(maker, policy), act_of(opened, policy)) for who, policy in known.items()}
    with progress("living", len(acts) * maker.ticks) as advance:
        paid = {who: lived(own, act, towns=towns, each=advance) for who, (own, act) in acts.items()}
    found = standings(paid)
    rows = [
        (one["who"], one["return"], _span(one, "low", "high"), _span(one, "gain_low", "gain_high")) for one in found
    ]
    shown = table(["~who", ">a day", "95 %", "over scripts, 95 %"], rows)
    return Output({"towns": towns, "days": days, "standings": found}, shown)


def _span(one: Mapping[str, Any], low: str, high: str) -> str:
    return f"{one[low]:+.2f} to {one[high]:+.2f}"


def balance(
    at: StoreOptions,
    towns: Towns = 50,
    days: Annotated[int, Option(metavar="N", min=1, max=30, help="Of each town.")] = 1,
    policy: Annotated[str | None, Option(metavar="VERSION", help="A release, or live; else scripts.")] = None,
    rules: RulesAt = None,
    residents: Residents = None,
    profile: Profile = None,
) -> Output:
    """Measure what residents of each nature are paid, whether natures are balanced (within 10 % of the mean), and how
    each fares against its targets, which are the limits of the town's alerts. Exit code 1: a target is missed."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with needing("learn"):
        from holdfast.cli.show import print_table, progress
        from holdfast.policies.network import ScriptedAct
        from holdfast.workloads.townschool import (
            BALANCED,
            TARGETS,
            TownMaker,
            act_of,
            check_natures,
            lived,
            made_for,
            missed_targets,
            natures_of,
            policy_in,
        )
    maker = TownMaker(rules_file=rules, residents=residents, days=days, profile=profile)
    known = maker.rules
    warn()
    check_natures(maker)
    if policy is None:
        act: Act = ScriptedAct(maker.name)
    else:
        with taught(at) as opened:
            driver = policy_in(opened, None if policy == "live" else policy)[1]
            act, maker = act_of(opened, driver), made_for(maker, driver)
    with progress("living", maker.ticks) as advance:
        found = natures_of(lived(maker, act, towns=towns, each=advance), known)
    out = {name: one["from_mean"] for name, one in found.items() if abs(one["from_mean"]) > BALANCED}
    rows = [
        (name, one["residents"], one["return"], _span(one, "low", "high"), f"{one['from_mean']:+.1%}")
        for name, one in found.items()
    ]

    missed = missed_targets(found)
    wanted = [f">{target.title} {_bound(target.least, target.most)}" for target in TARGETS]
    fared = [(name, *(_figure(one["kpis"][target.kpi]) for target in TARGETS)) for name, one in found.items()]

    def shown() -> None:
        print_table(["nature", ">residents", ">a day", "95 %", ">from mean"], rows)
        print_table(["nature", *wanted], fared)
        print("\n".join(folded(_verdict(out, BALANCED), hanging="  ")))
        print("\n".join(folded(f"targets missed: {'; '.join(missed)}" if missed else "every nature meets its targets")))

    targets = {target.kpi: {"least": target.least, "most": target.most} for target in TARGETS}
    data = {"towns": towns, "days": days, "balanced": not out, "limit": BALANCED, "natures": found}
    return Output(data | {"targets": targets, "missed": missed}, shown, int(bool(out or missed)))


def _bound(least: float | None, most: float | None) -> str:
    return f"≥ {least:g}" if least is not None else f"≤ {most:g}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _verdict(out: Mapping[str, float], limit: float) -> str:
    """`out` are the natures that differ from the mean by more than the limit."""
    if not out:
        return f"balanced: every nature within {limit:.0%} of the mean".replace("%", " %")
    far = ", ".join(f"{name} {share:+.1%}" for name, share in out.items())
    return f"not balanced: {far} (limit {limit:.0%} of the mean)".replace("%", " %")
