"""`holdfast release …`: list, explain, decide, promote, roll back, retry and serve versions; and the lines about one.

Flags and A/B experiments have files of their own.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from holdfast.cli import show
from holdfast.cli.options import CommandSet, Host, Output, Port, StoreOptions, Text, TokenOptions, needing, who
from holdfast.cli.report import write_page
from holdfast.cli.show import left, near, step
from holdfast.contracts.commands import LONGEST_WHY
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Decision, Evidence, MetricComparison, Reason, comparison_row
from holdfast.contracts.lines import folded
from holdfast.contracts.records import decode, loads
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.promote.gate import ALLOWED, NAMES, NO_GAIN, Criteria, SpreadLimits
from holdfast.promote.release import HOLDBACK, UNDECIDED, rollback_target

if TYPE_CHECKING:
    from holdfast.contracts.evidence import Finding
    from holdfast.contracts.release import Release
    from holdfast.contracts.run import LedgerEntry
    from holdfast.operate.publication import RecomputedDecision
    from holdfast.pipeline.more import CandidateEvidence
    from holdfast.pipeline.promote import PromotionRequest
    from holdfast.promote.alpha_account import Charge
    from holdfast.prove.comparison import ComparisonConfig
    from holdfast.store.store import Store


STAGES = ("shadow", "canary", "live")
NO_STORE = "check the path; 'holdfast release add' makes one"
STUCK = ("data_quality_", "evidence_missing_", "golden_", "kpi_", "baseline_is_not_live")  # what no episode mends


def decide(
    version: Annotated[str, Argument(metavar="VERSION", help="A candidate, as in tools@3.")],
    run: Annotated[str, Option(metavar="RUN", help="The run of 'prove' or 'improve' that measured it.")],
    at: StoreOptions,
    audit: Annotated[str | None, Option(metavar="RUN", help="The run whose rollouts it learnt from.")] = None,
    untrained: Annotated[
        bool, Option("--untrained", help="It learnt from no rollouts of this store: there is nothing to audit.")
    ] = False,
    golden: Annotated[str | None, Option(metavar="NAME", help="The last replay of this golden counts too.")] = None,
    to: Annotated[str, Option(metavar="STAGE", help="Where an open gate leads.")] = "shadow",
) -> Output:
    """Let the gate decide about a candidate, and carry the decision out.

    Closed is exit code 1; either way it is in the ledger.
    """
    if to not in STAGES:
        raise BadInput(f"--to {to}", why="is no stage ahead", remedy=f"use {', '.join(STAGES)}")
    with needing("learn"):
        from holdfast.pipeline.more import compared, tasks_of
        from holdfast.workloads.tooluse.suite import evaluation_from
    from holdfast.pipeline.leaks import leak_finding
    from holdfast.pipeline.promote import promote
    from holdfast.store.store import find_release

    with at.existing(NO_STORE) as opened:
        release = find_release(opened, version)
        if release.stage is not Stage.CANDIDATE:
            remedy = ""
            if release.stage in (Stage.ROLLED_BACK, Stage.REJECTED):
                remedy = f"'holdfast release retry {release.id}{at}' gives it a second try"
            raise BadInput(f"release {release.id}", why=f"is {release.stage}, not a candidate any more", remedy=remedy)
        findings = _findings(opened, release, audit, golden)
        opened.steps.verify(opened.runs.get(run).id)  # nobody has touched them since
        measured = compared(opened, run, release.id, evaluation_from)
        leaked = leak_finding(opened, release, tasks_of(opened, measured, evaluation_from))
        audits = measured.audit if findings[0] is None else findings[0]
        if audits is not None or leaked.count:  # of one that nobody audited, a leak is known all the same
            audits = (*(audits or ()), leaked)
        request = _request(opened, release, measured, (audits, findings[1]), untrained, Stage(to))
        decided = asyncio.run(promote(opened, request, clock=time.time, who=who()))
        return decision_view(decided, opened.releases.get(release.id), str(at))


def _findings(store: Store, release: Release, audit: str | None, golden: str | None) -> tuple[Any, Any]:
    """Returns the findings about its training data and about changed behaviour; None where nobody looked."""
    from holdfast.pipeline.versions import resolve
    from holdfast.prove import golden as goldens

    data: tuple[Finding, ...] | None = None
    if audit is not None:
        from holdfast.cli.look import audited

        learnt = store.runs.get(audit).id
        if (made_by := release.manifest.get("run")) not in (None, learnt):
            raise BadInput(f"--audit {learnt}", why=f"{release.id} was made by {made_by}", remedy="audit that run")
        data = audited(store, learnt).findings
    changed: tuple[Finding, ...] | None = None
    if golden is not None:
        folder = store.reports.parent / "golden"
        if not goldens.is_name(golden):
            raise BadInput(
                f"--golden {golden}", why="is no name of one", remedy="'holdfast prove golden list' shows them"
            )
        kept, made = (goldens.read(folder / f"{golden}{suffix}.json") for suffix in ("", ".replay"))
        if made.weights_sha256 != resolve(store, release.id).sha256:
            remedy = f"holdfast prove golden replay {golden} --version {release.id}"
            raise BadInput(f"golden {golden}", why=f"its last replay is of {made.version}", remedy=remedy)
        changed = goldens.check(kept, made, signed=goldens.signed(store))
    return data, changed


def _request(
    store: Store, release: Release, found: CandidateEvidence, findings: tuple[Any, Any], is_untrained: bool, to: Stage
) -> PromotionRequest:
    from holdfast.pipeline.alpha_account import at_charge
    from holdfast.pipeline.more import candidate_of
    from holdfast.pipeline.promote import PromotionRequest

    live = _live(store, release, found)
    charge = found.charge or _charge(store, live, release, found)
    about = {"run": found.run, "suite": found.suite, "audit": findings[0], "golden": findings[1], "charge": charge}
    how = at_charge(_strict(found.how), charge)
    criteria = Criteria(
        max_safety_regression=how.max_safety_regression,
        max_p_value=how.uncharged_alpha,
        require_audit=not is_untrained,
        max_seed_spread=SpreadLimits(p_value=how.seed_p_value_spread, delta=how.seed_delta_spread),
        max_sample_spread=SpreadLimits(p_value=how.sample_p_value_spread, delta=how.sample_delta_spread),
    )
    candidate = candidate_of(release, live, found.measured, **about)
    return PromotionRequest(
        candidate=candidate, how=how, criteria=criteria, reports=store.reports, now=time.time(), to=to
    )


def _charge(store: Store, live: Release, release: Release, found: CandidateEvidence) -> Charge:
    """Of a run that was charged nothing, as its baseline was not live, or nobody kept an account: it is charged now,
    when all that was measured beside it is known, and so has a place after that."""
    from holdfast.pipeline.alpha_account import charged
    from holdfast.pipeline.held_out import HeldOut
    from holdfast.pipeline.more import tasks_of, uncharged_beside
    from holdfast.workloads.tooluse.suite import evaluation_from

    tasks = [HeldOut(id=name, input=task) for name, task in tasks_of(store, found, evaluation_from).items()]
    iteration = found.iteration if len(found.runs) == 1 else None
    options: dict[str, Any] = {"run": found.run, "iteration": iteration, "who": who(), "now": time.time()}
    options |= {"alpha": found.how.uncharged_alpha, "versions": (live.source, release.source)}
    beside = uncharged_beside(store, found, evaluation_from)
    return asyncio.run(charged(store, release.policy, tasks, uncharged=beside, **options))


def _live(store: Store, release: Release, found: CandidateEvidence) -> Release:
    """Returns the live version; refuses a run that did not measure the candidate against it."""
    from holdfast.pipeline.versions import resolve

    live = store.releases.live(release.policy)
    if live is None:
        why = "nothing is live, so there is nothing to be better than"
        raise BadInput(f"policy {release.policy}", why=why, remedy=f"holdfast release promote {release.id}")
    if found.is_null or resolve(store, live.id).behaviour == resolve(store, release.id).behaviour:
        why = f"{release.id} is the same as {live.id}: there is nothing to decide"
        raise BadInput(f"run {found.run}", why=why, remedy="measure two versions that differ")
    for one, measured in ((live, found.baseline), (release, found.candidate)):
        if resolve(store, one.id).behaviour != measured.behaviour:
            why = f"measured {measured.name}, which is not {one.id}"
            remedy = f"measure {release.id} against {live.id} with 'prove run'"
            raise BadInput(f"run {found.run}", why=why, remedy=remedy)
    return live


def _strict(how: ComparisonConfig) -> ComparisonConfig:
    """Returns the run's comparison, made no looser than the documented limits."""
    usual = type(how)()
    least = ["alpha", "max_safety_regression", "seed_p_value_spread", "seed_delta_spread"]
    least += ["sample_p_value_spread", "sample_delta_spread"]
    tight = {name: min(getattr(how, name), getattr(usual, name)) for name in least if getattr(how, name) is not None}
    return replace(how, **tight, min_effect=max(how.min_effect, 0.0))


def decision_view(record: dict[str, Any], now: Release, at: str) -> Output:
    decision = decode(Decision, record["decision"])
    page = write_page(Path(record["proof"]))
    lines = [
        *decision_lines(now.id, decision, now, at=at),
        *left("page", page),
        "next:",
        *onward(now, decision, at),
    ]
    return Output({**record, "page": page}, "\n".join(lines), int(not decision.open))


app = CommandSet("Versions: list, decide, promote, roll back, serve, flags, experiments.")

app.command()(decide)

VersionText = Annotated[str, Argument(metavar="VERSION", help="Policy and number, as in tools@3.")]
PolicyText = Annotated[str | None, Argument(metavar="POLICY", help="Which line of versions; else the only one.")]
Why = Annotated[str, Option("--why", metavar="TEXT", help="For the ledger.")]


@app.command("list")
def list_(at: StoreOptions, policy: PolicyText = None) -> Output:
    """List the versions and the stage of each, newest first."""
    with at.existing(NO_STORE) as opened:
        policies = opened.releases.policies() if policy is None else [_policy(opened, policy)]
        releases = [release for name in policies for release in opened.releases.of_policy(name)]
        shares = {name: sum(release.share for release in opened.releases.at(name, Stage.CANARY)) for name in policies}
    if not releases:
        register = step(f"holdfast release add SOURCE --policy NAME{at}")
        return Output([], "\n".join([f"no versions in project {at.project}; to register one:", *register]))
    has_good = any(release.is_known_good for release in releases)
    legend = ["\nknown good: was live and nothing was found against it; a rollback leads there"] if has_good else []
    return Output(releases, [*_table([_row(release, shares[release.policy]) for release in releases]), *legend])


def _row(release: Release, canary_share: int) -> tuple[str, ...]:
    """The live one answers what its canary does not, its holdback at the least."""
    share = max(release.share - canary_share, HOLDBACK) if release.stage is Stage.LIVE else release.share
    is_serving = release.stage in (Stage.LIVE, Stage.CANARY)
    good = "yes" if release.is_known_good else ""
    return release.id, str(release.stage), f"{share} %" if is_serving else "", good, _named(release.source)


def _table(rows: list[tuple[str, ...]]) -> Iterator[Text]:
    """Ids are there to be copied, and never cut: where they are too long for a table, each has its own lines."""
    columns = ("version", "stage", ">share", "known good", "source")
    wide = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    if sum(wide) + 2 * len(wide) <= 80:
        yield show.table(columns, rows)
        return
    for version, stage, share, good, source in rows:
        words = ", ".join(word for word in (stage, share, "known good" if good else "") if word)
        yield from (version, f"    {words}", f"    {source}")


@app.command()
def add(
    source: Annotated[
        str, Argument(metavar="SOURCE", help="sprout, a folder of weights, a checkpoint, or resources:N.")
    ],
    policy: Annotated[str, Option(metavar="NAME", help="The line of versions it belongs to.")],
    at: StoreOptions,
    parent: Annotated[str | None, Option(metavar="VERSION", help="What it grew from.")] = None,
    model: Annotated[
        str | None, Option(metavar="SOURCE", help="What resources are given to; PROVIDER/NAME: one elsewhere.")
    ] = None,
) -> Output:
    """Register a version as a candidate.

    The first of a policy goes live with the next 'promote'. What is there already, and not a candidate, is exit code 1.
    """
    from holdfast.store.store import find_release

    with needing("learn"):
        from holdfast.pipeline.versions import source_of
    with at.open() as opened:
        named, manifest = source_of(opened, source, model)
        parent = None if parent is None else find_release(opened, parent).id
        kind = PolicyKind.PROMPT if named.startswith("resources:") else PolicyKind.WEIGHTS
        release = opened.releases.add(
            policy=policy, kind=kind, source=named, parent=parent, manifest=manifest, who=who(), now=time.time()
        ).result()
    is_candidate = release.stage is Stage.CANDIDATE
    added = folded(f"{release.id}: candidate, {_named(release.source)}")
    return Output(
        release, "\n".join(added if is_candidate else _there_already(release, str(at))), int(not is_candidate)
    )


def _named(source: str) -> str:
    kind, _, rest = source.partition(":")
    return f"weights:{near(Path(rest))}" if kind == "weights" else source


def _there_already(release: Release, at: str) -> list[str]:
    from holdfast.operate.canary_controller import FALLEN

    message = f"{release.id} is there already, and {release.stage.replace('_', ' ')}"
    if release.stage in FALLEN:
        return [message, *step(f"holdfast release retry {release.id}{at}", "gives it a second try")]
    if release.stage is Stage.RETIRED:
        again = f"holdfast release rollback {release.policy} --to {release.id}{at}"
        return [message, *step(again, "makes it live again")]
    return [f"{message}: there is nothing to add"]


@app.command()
def retry(version: VersionText, at: StoreOptions, why: Why = "by hand") -> Output:
    """Make a version that was rolled back or rejected a candidate again.

    It is a candidate again, and what it was proved by before counts no more.
    """
    from holdfast.operate.canary_controller import try_again
    from holdfast.store.store import find_release

    with at.existing(NO_STORE) as opened:
        release = try_again(opened, find_release(opened, version), who=who(), why=why, now=time.time())
        live = opened.releases.live(release.policy)
    lines = [f"{release.id} is a candidate again, without evidence"]
    if live is not None:
        lines += ["next:", *step(f"holdfast prove run SUITE --baseline {live.id} --candidate {release.id}{at}")]
    return Output(release, "\n".join(lines))


@app.command("show")
def show_(version: VersionText, at: StoreOptions) -> Output:
    """Show one version: its stage and the evidence for it."""
    from holdfast.store.store import find_release

    with at.existing(NO_STORE) as opened:
        release = find_release(opened, version)
        decided = last_decision(opened, release)
        evidence, guard = evidence_of(opened, release), guard_of(opened, release)
    decision = None if decided is None else decided[0]
    data = {"release": release, "decision": decision, "evidence": evidence, "guard": guard}
    return Output(data, "\n".join(version_lines(release, decided, evidence, guard)))


@app.command()
def history(at: StoreOptions, policy: PolicyText = None) -> Output:
    """List the decisions about a policy's versions, oldest first."""
    from holdfast.operate.briefs import happened

    with at.existing(NO_STORE) as opened:
        entries = opened.releases.history(_policy(opened, policy))
    lines = []
    for entry in entries:
        what, why = happened(entry)
        first, *more = folded(show.one_line(f"{show.local_time(entry.at)[:16]} {what}, by {entry.who}"), " " * 7)
        lines += [f"{entry.seq:>5}  {first.lstrip()}", *more, *folded(show.one_line(why, LONGEST_WHY), " " * 9)]
    return Output(entries, "\n".join(lines))


@app.command("account")
def alpha_account(at: StoreOptions, policy: PolicyText = None) -> Output:
    """Show a policy's α-account: which tests its candidates had, what is spent, and what the next one gets.

    Candidates that are measured on the same held-out tasks share one α; fresh tasks begin anew, and promotions win
    some of it back.
    """
    from holdfast.pipeline.alpha_account import account_record

    with at.existing(NO_STORE) as opened:
        found = account_record(opened, _policy(opened, policy))
    return Output(found, _account_lines(found, str(at)))


def _account_lines(account: dict[str, Any], at: str) -> Iterator[Text]:
    tests = show.count(account["tests"], "candidate")
    yield f"{account['policy']}: {tests} tested, {account['promoted']} accepted by the gate"
    if account["experiments"]:
        names = ", ".join(f"{one['name']} (α {one['alpha']:g})" for one in account["experiments"])
        yield from folded(f"experiments while it answered: {names}")
    if account["sets"] or account["experiments"]:
        bound = f"were none of them better, the chance of any promotion so far is at most {account['bound']:.3g}"
        yield from folded(bound)
    if account["sets"]:
        forms = {"tasks": "d", "tests": "d", "spent": ".0%", "left": ".0%", "next_alpha": ".2g"}
        rows = [[format(one[name], form) for name, form in forms.items()] for one in account["sets"]]
        yield show.table((">held-out tasks", ">tests", ">spent", ">left", ">α of the next"), rows)
    if (anchor := account["anchor"]) is not None:
        outcomes = {"reject": "live is proved worse", "promote": "live is proved better"}
        outcome = outcomes.get(anchor["outcome"], "undecided")
        yield f"against its anchor {anchor['against']}: {outcome} ({anchor['run']})"
    if account["anchor_due"] is not None:
        yield f"{account['anchor_due']} promotions since live was measured against its anchor:"
        yield from step(f"holdfast prove anchor {account['policy']}{at}")


@app.command()
def explain(version: VersionText, at: StoreOptions) -> Output:
    """Explain why a version is at its stage, and recompute the decision.

    From the ledger, and from the samples: the ledger's chain and the hashes of evidence and samples are verified. Exit
    code 1 when they lead elsewhere.
    """
    from holdfast.operate.publication import recompute_decision
    from holdfast.store.store import find_release

    with at.existing(NO_STORE) as opened:
        release = find_release(opened, version)
        decision = recompute_decision(opened, release)
        lines = explained(release, decision, _way_back(opened, release, str(at)))
    data: dict[str, Any] = {"release": release, "decision": decision.decision, "recomputed": decision.again}
    data |= {"agrees": decision.agrees, "problems": decision.problems, "ledger_entries": decision.entries}
    return Output(
        {**data, "history": decision.history, "proof": decision.proof}, "\n".join(lines), int(not decision.agrees)
    )


def _way_back(store: Store, release: Release, at: str) -> list[str]:
    """The command that takes it back, for one that answers people."""
    if release.stage not in (Stage.LIVE, Stage.CANARY):
        return []
    releases = store.releases.of_policy(release.policy)
    canary = next((one for one in releases if one.stage is Stage.CANARY and one.id != release.id), None)
    target = rollback_target(releases, release)
    if target is None:
        return ["it cannot be taken back: no other version is known to be good"]
    about = f"then {target.id} answers" if canary is None else f"first the canary {canary.id}, and again: this one"
    return ["take it back:", *step(f"holdfast release rollback {release.policy}{at}", about)]


@app.command()
def promote(
    version: VersionText,
    at: StoreOptions,
    why: Why = "by hand",
    to: Annotated[str | None, Option(metavar="STAGE", help="shadow, canary or live; else one step.")] = None,
    share: Annotated[int | None, Option(metavar="N", min=1, max=100, help="Percent of a canary.")] = None,
) -> Output:
    """Move a version one stage up if its evidence allows it.

    A refusal is exit code 1, and is in the ledger.
    """
    from holdfast.operate.canary_controller import Refusal, advance

    if to is not None and to not in (Stage.SHADOW, Stage.CANARY, Stage.LIVE):
        raise BadInput(f"--to {to}", why="is no stage ahead", remedy="use shadow, canary or live")
    from holdfast.store.store import find_release

    with at.existing(NO_STORE) as opened:
        release = find_release(opened, version)
        stage = None if to is None else Stage(to)
        found = advance(opened, release, to=stage, share=share, who=who(), why=why, now=time.time())
        live = opened.releases.live(release.policy)
    if isinstance(found, Refusal):
        data = {"release": release, "decision": found.decision}
        return Output(data, "\n".join(decision_lines(release.id, found.decision, release, at=str(at))), 1)
    lines = [f"{found.id} is {found.stage} now{f', with {found.share} %' if found.share else ''}"]
    if live is not None and found.stage is Stage.SHADOW:
        lines[0] += f"; {live.id} answers the callers meanwhile"
    if release.stage is Stage.CANDIDATE:
        following = list(_serving(found, str(at)))
        lines += ["next:", *following] if following else []
    return Output({"release": found, "decision": None}, "\n".join(lines))


def _serving(release: Release, at: str) -> Iterator[str]:
    """The command behind which it serves; a network serves in a town, and other environments have no service."""
    if release.kind is not PolicyKind.NETWORK:
        yield from step(f"holdfast release serve {release.policy}{at}")
    elif _drives_residents(release):
        yield from step(f"holdfast town run --policy live{at}", "lives days by it, which decide it")


def _drives_residents(release: Release) -> bool:
    policy = release.manifest.get("policy")
    env = str(policy["manifest"].get("env", "")) if isinstance(policy, dict) else ""
    return release.kind is PolicyKind.NETWORK and env.partition("-")[0] == "town"


@app.command()
def rollback(
    at: StoreOptions,
    policy: PolicyText = None,
    why: Why = "by hand",
    to: Annotated[str | None, Option(metavar="VERSION", help="Else the last known good one.")] = None,
) -> Output:
    """Roll back the canary, or the live version if there is no canary.

    Services follow at once, and nobody is interrupted. With --to a version that was live until it was taken back by
    hand, that is undone: it is live as it was, and who served meanwhile is retired.
    """
    from holdfast.cli.control import give

    with at.existing(NO_STORE) as opened:
        told = give(opened, "rollback", _policy(opened, policy), why, to=to)
        failing, live = opened.releases.get(told["taken_back"]), told["live"]
    if failing.stage is Stage.RETIRED:
        data = {"rolled_back": None, "retired": failing.id, "live": live}
        return Output(data, f"{live['id']} is live again; {failing.id} is retired")
    return Output({"rolled_back": failing.id, "live": live}, f"{failing.id} is taken back; {live['id']} is live")


@app.command()
def serve(
    at: StoreOptions,
    tokens: TokenOptions,
    policy: PolicyText = None,
    host: Host = "127.0.0.1",
    port: Port = 8378,
    record: Annotated[
        bool, Option("--record/--no-record", help="Keep conversations that get feedback, to learn from them.")
    ] = True,
    scrub: Annotated[
        bool, Option("--scrub/--no-scrub", help="Take secrets and personal data out of what is kept.")
    ] = True,
    guard: Annotated[
        bool, Option("--guard/--no-guard", help="Watch canaries here: take them further, or back.")
    ] = True,
    holdback: Annotated[
        bool,
        Option("--holdback/--no-holdback", help="5 % of the callers stay with the version before, to compare with."),
    ] = True,
    upstream: Annotated[
        str | None, Option(metavar="URL", help="Where models elsewhere answer, as in http://…/v1.")
    ] = None,
) -> None:
    """Serve the live version, its canary and its shadow, until Ctrl-C.

    An OpenAI-compatible address: a share of the callers is answered by the canary, and the shadow's answers are seen
    by nobody. What came of an answer is told to /v1/feedback, by the answer's id; /health says that it is up.
    Requests for a version whose model is elsewhere are passed on to --upstream, with OPENAI_API_KEY as their key;
    a prompt for a model of this machine (local/…) needs none.
    """
    with needing("serve"):
        from holdfast.collect import endpoint
    with needing("learn"):
        from holdfast.cli.serving import ServiceOptions, run
    token = tokens.read()
    with at.existing(NO_STORE) as opened, endpoint.listen(host, port, token=token) as listening:
        name = _policy(opened, policy)
        how: dict[str, Any] = {"token": token, "is_recorded": record, "is_scrubbed": scrub, "is_guarded": guard}
        how |= {"upstream": upstream, "keeps_holdback": holdback}
        key = os.environ.get("OPENAI_API_KEY") or None
        run(opened, name, listening, ServiceOptions(**how, key=key))


def _policy(store: Store, policy: str | None) -> str:
    """The one that was named, which may be cut short, or the only one there is."""
    from holdfast.store.store import find_policy

    if policy is not None:
        return find_policy(store, policy)
    known = store.releases.policies()
    if len(known) != 1:
        why = "there is none" if not known else f"there are {len(known)}"
        raise BadInput(
            "POLICY", why=why, remedy=f"name one: {', '.join(known)}" if known else "propose a version first"
        )
    return known[0]


# Lines about a version, for 80 columns --------------------------------------------------------------------------------

SERVES = {
    Stage.SHADOW: "it serves nobody yet",
    Stage.CANARY: "it answers {share} % of the callers",
    Stage.LIVE: "it answers the callers",
}


def outcome(decision: Decision, now: Release | None = None) -> str:
    """Names the outcome: held may still pass, refused may not, accepted has not moved yet."""
    if decision.open:
        return "accepted" if now is not None and now.stage is Stage.CANDIDATE else "promoted"
    is_open = decision.needs is not None or decision.reasons[0].code == UNDECIDED or _has_no_gain(decision)
    return "held" if is_open else "refused"


def _has_no_gain(decision: Decision) -> bool:
    return any(reason.code == NO_GAIN for reason in decision.reasons)


WITHOUT = "without a service: its proof decides"


def into_service(release: str, kind: PolicyKind, at: str = "") -> Iterator[str]:
    """The commands that take an accepted candidate into service. Where no service of ours stands, stages that wait for
    answers would wait for ever; a network acts elsewhere."""
    promote = f"holdfast release promote {release}"
    yield from step(f"{promote} --to live{at}", "into service, for all callers")
    if kind is not PolicyKind.NETWORK:
        yield from step(f"{promote}{at}", "or as a shadow behind 'holdfast release serve'")


def onward(now: Release, decision: Decision, at: str) -> Iterator[str]:
    """The commands that come next; of what is held, `decision_lines` names another before them."""
    if not decision.open:
        yield from step(f"holdfast release explain {now.id}{at}")
    elif now.stage is Stage.CANDIDATE:
        yield from into_service(now.id, now.kind, at)
    else:
        yield from step(f"holdfast release serve {now.policy}{at}")


def is_measurable(decision: Decision) -> bool:
    """Whether more episodes may open the gate; what a guard waits for is answers to callers."""
    return decision.needs is not None and decision.reasons[0].code != UNDECIDED


def headline(release: str, decision: Decision, now: Release | None = None) -> str:
    """Says what was decided and, where known, where the version is now."""
    needs = ""
    if decision.needs is not None:
        is_guard = decision.reasons[0].code == UNDECIDED
        what = "answers may decide it" if is_guard else "episodes may open the gate"
        needs = f"; about {decision.needs} more {what}"
    elif _has_no_gain(decision):
        needs = "; no gain yet, more episodes will not help"
    return f"{release}: {outcome(decision, now)}{_whereabouts(decision, now)}{needs}"


def _whereabouts(decision: Decision, now: Release | None) -> str:
    if now is None:
        return ""
    if not decision.open or now.stage is Stage.CANDIDATE:
        return f"; it stays {now.stage}"
    serves = SERVES.get(now.stage)
    return f"; it is {now.stage} by now" if serves is None else f" to {now.stage}; {serves.format(share=now.share)}"


def decision_lines(
    release: str, decision: Decision, now: Release | None = None, indent: str = "", at: str = ""
) -> Iterator[str]:
    """The headline and the reasons; of what is held, the command that adds what is missing. `at` finds the store."""
    yield from folded(headline(release, decision, now), indent)
    yield from reason_lines(decision.reasons, f"{indent}  ")
    if is_measurable(decision) and (now is None or now.kind is not PolicyKind.NETWORK):
        stuck = list(dict.fromkeys(reason.code for reason in decision.reasons if reason.code.startswith(STUCK)))
        if stuck:
            yield from folded(f"more episodes alone would not open it: {', '.join(stuck)}", f"{indent}  ")
        yield from step(f"holdfast prove more {release} --tasks FILE{at}", "more episodes for it", f"{indent}  ")
    if now is not None and decision.reasons[0].code == UNDECIDED and _drives_residents(now):
        yield from step(f"holdfast town run --policy live{at}", "days of residents decide it", f"{indent}  ")
    elif now is not None and decision.reasons[0].code == UNDECIDED and now.kind is not PolicyKind.NETWORK:
        yield from step(f"holdfast release serve {now.policy}{at}", "its callers' requests decide it", f"{indent}  ")
        is_silent = all(reason.text.endswith("no answers yet") for reason in decision.reasons[1:])
        if now.stage is Stage.SHADOW and is_silent:
            yield from step(f"holdfast release promote {release} --to live{at}", WITHOUT, f"{indent}  ")


def reason_lines(reasons: tuple[Reason, ...], indent: str = "  ") -> Iterator[str]:
    """Sentences first, and the one that says that nothing helps before all; the stable codes last, each once. An open
    gate gets its summary alone; the JSON has every check that was met."""
    if reasons and reasons[0].code == ALLOWED:
        yield from folded(reasons[0].text, indent)
        return
    for reason in sorted(reasons, key=lambda reason: reason.code != NO_GAIN):
        yield from folded(reason.text, indent, hanging="  ")
    yield from folded(f"codes: {', '.join(dict.fromkeys(reason.code for reason in reasons))}", indent, hanging="  ")


def metric_name(metric: str) -> str:
    """Returns the name of the metric with its unit."""
    return NAMES.get(metric, metric)


def metric_line(comparison: MetricComparison) -> str:
    """A comparison on one line, in the metric's own units, with a word that says whether that is better."""
    row = comparison_row(comparison)
    corrected = f", {row.corrected} corrected" if row.corrected else ""
    figures = f"{row.difference} {row.candidate} ({row.sure}){corrected}, p {comparison.p_value:.2g}"
    return f"{row.metric:<11} {figures}"


STATES = {"open": "undecided"}  # of a guard's reading; a gate alone is open or closed


def evidence_of(store: Store, release: Release) -> Evidence | None:
    return None if release.evidence is None else loads(Evidence, store.blobs.get(release.evidence))


def guard_of(store: Store, release: Release) -> dict[str, Any] | None:
    """Returns the guard's reading of the version; None where nothing of it is watched."""
    from holdfast.operate.canary_controller import compared, judge
    from holdfast.prove.guard import GuardLimits

    pair = compared(store.releases.of_policy(release.policy))
    if pair is None or pair[0].id != release.id:
        return None
    return {"beside": pair[1].id, **asdict(judge(store, *pair, GuardLimits(), time.time()))}


def last_decision(store: Store, release: Release) -> tuple[Decision, LedgerEntry] | None:
    """The last one about it, of a gate or a guard, and its entry."""
    for entry in reversed(store.releases.history(release.policy)):
        is_about = release.id in [entry.body.get(name) for name in ("move", "refuse", "accept")]
        if is_about and entry.body.get("decision"):
            return decode(Decision, dict(entry.body["decision"])), entry
    return None


def version_lines(
    release: Release,
    decided: tuple[Decision, LedgerEntry] | None,
    evidence: Evidence | None,
    guard: dict[str, Any] | None,
) -> Iterator[str]:
    """Describes one version as it is now."""
    yield f"{release.id}: {release.stage}{f' with {release.share} %' if release.share else ''}"
    yield from _line("since", show.local_time(release.changed_at)[:16])
    yield from _line("source", release.source)
    yield from _line("parent", release.parent or "none")
    for key, value in release.manifest.items():
        yield from _line(key, f"{len(value)} values" if isinstance(value, dict) else str(value))
    if decided is not None:
        decision, entry = decided
        word = "accepted" if "accept" in entry.body else headline(release.id, decision).partition(": ")[2]
        yield from _line("decision", f"{word} ({show.local_time(entry.at)[:16]}, by {entry.who})")
    for line in _evidence_lines(evidence):
        yield f"  {line}"
    if guard is not None:
        yield from _guard_lines(guard)
    elif release.stage is Stage.LIVE:
        yield from _line("guard", "compared with nothing: no version before it is held back")


def _guard_lines(guard: dict[str, Any]) -> Iterator[str]:
    """Describes the guard: what is compared, how many outcomes were told, and the state of each metric."""
    yield from _line("guard", f"compared with {guard['beside']}, on callers that could have met either")
    for reason in guard["void"]:
        yield from folded(reason["text"], "           ")
    for metric, one in guard["readings"].items():
        reading = f"that {_number(one['live'])}, this {_number(one['canary'])}, {one['n']} answers"
        yield f"  guard    {metric_name(metric):<11} {STATES.get(one['state'], one['state']):<9} {reading}"
        if one["canary_told"] is not None and (one["live_told"], one["canary_told"]) != (1.0, 1.0):
            yield f"           told of that {one['live_told'] or 0.0:.0%}, of this {one['canary_told']:.0%}"
        for at in one["quantiles"]:
            figures = f"that {_number(at['live'])}, this {_number(at['canary'])}"
            beyond = f"that {at['live_beyond']:.1%}, this {at['canary_beyond']:.1%}"
            yield f"           p{100 * at['quantile']:<10g} {figures}; beyond the limit {beyond}"


def explained(release: Release, recomputed: RecomputedDecision, way_back: list[str]) -> Iterator[str]:
    """Explains how the version got to its stage, and whether the samples still give the same decision."""
    from holdfast.operate.briefs import happened

    serves = SERVES.get(release.stage, "it serves nobody").format(share=release.share)
    yield f"{release.id} is {release.stage}; {serves}\n"
    for entry in recomputed.history:
        what, why = happened(entry)
        yield from folded(f"{show.local_time(entry.at)[:16]}  {what}, by {entry.who}", "  ")
        if entry.body.keys() & {"refuse", "accept"}:
            yield from reason_lines(decode(Decision, dict(entry.body["decision"])).reasons, "    ")
        else:
            yield from folded(why, "    ")
    for line in _evidence_lines(recomputed.evidence):
        yield f"  {line}"
    if recomputed.again is not None:
        verb = "is the same" if recomputed.is_same else "DIFFERS"
        gate = "open" if recomputed.again.open else "closed"
        yield f"\ndecided once more from {recomputed.episodes} stored episodes: {gate}; it {verb}"
        if not recomputed.is_same:
            yield from reason_lines(recomputed.again.reasons)
    yield f"ledger: {recomputed.entries} entries, the chain holds"
    for problem in recomputed.problems:
        yield from folded(f"CHANGED: {problem}", "")
    if recomputed.proof:
        yield from left("proof:", recomputed.proof)
    yield from way_back


def _evidence_lines(evidence: Evidence | None) -> list[str]:
    if evidence is None:
        return []
    about = f"evidence: {evidence.episodes} tasks of {evidence.suite}, against {evidence.baseline}"
    levels = {comparison.interval.level for comparison in evidence.comparisons.values()}
    about += f" (at {', '.join(f'{100 * level:g} %' for level in sorted(levels))})" if levels else ""
    return folded(about) + [f"  {metric_line(comparison)}" for comparison in evidence.comparisons.values()]


def _line(key: str, text: str) -> list[str]:
    first, *more = folded(text, " " * 11) or [" " * 11 + "-"]
    return [f"  {key:<8} {first.strip()}", *more]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
