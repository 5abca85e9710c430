"""`holdfast judge …`: ask judges about answers, measure how far they may be believed, and report it."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from holdfast.cli import show
from holdfast.cli.options import CommandSet, Json, StoreOptions, needing, who
from holdfast.cli.show import fold
from holdfast.contracts.errors import BadInput, BadRecord
from holdfast.contracts.judgement import EvalItem, Label, Maker, Role
from holdfast.contracts.records import decode, encode

if TYPE_CHECKING:
    from holdfast.contracts.judgement import Calibration
    from holdfast.reward.judges.ensemble import Opinion
    from holdfast.reward.judges.judge import Criterion, Judge
    from holdfast.store.store import Store

app = CommandSet("Judges.")

VERIFIER = "verifier"
READS = "detail.messages: the talk, the answer last"
READS_WITH = {VERIFIER: "sprout"}  # whose answers are a judge's own
ANCHORS = 100  # labelled answers that a judge is asked about again, to see whether it has changed
BY_FILE = "told by file"  # why a label is believed whose maker only a file names
FIELDS = {"task", "output", "context", "expected", "author", "detail"}
JudgeNames = Annotated[
    list[str], Option("--judge", metavar="NAME", help="verifier, a folder of 'judge train', or a model of --base-url.")
]
On = Annotated[
    str, Option("--criterion", metavar="NAME", help="faithfulness, relevance, minimality, safety, correctness.")
]
BaseUrl = Annotated[
    str | None, Option("--base-url", metavar="URL", envvar="OPENAI_BASE_URL", help="An OpenAI-compatible endpoint.")
]
Own = Annotated[Path | None, Option("--own", metavar="FILE", help="A criterion of one's own, as JSON.")]


@app.command()
def run(
    file: Annotated[Path, Argument(metavar="FILE", help="Answers: a line of JSON each, with task and output.")],
    judge: JudgeNames,
    at: StoreOptions,
    criterion: On = "correctness",
    own: Own = None,
    base_url: BaseUrl = None,
    policy: Annotated[str | None, Option(metavar="NAME", help="Whose answers these are.")] = None,
    role: Annotated[str, Option(metavar="ROLE", help="train or audit: no judge is both for a policy.")] = "audit",
    json: Json = False,
) -> None:
    """Ask: the rules first, then each judge in turn until one is sure. What stays open waits for 'holdfast label'."""
    on, artefacts = _criterion(criterion, own), answers(file)
    if role not in tuple(Role):
        raise BadInput(f"--role {role}", why="is unknown", remedy=f"use {' or '.join(Role)}")
    with at.open(migrate=False) as opened:
        judges = [judge_named(name, base_url) for name in judge]
        for each in judges if policy is not None else ():
            opened.judgements.appoint(str(policy), each.name, Role(role), who=who(), now=time.time()).result()
        with show.progress("judging", len(artefacts)) as advance:
            opinions = asyncio.run(_opinions(opened, on, artefacts, judges, advance))
    if any(is_verifier(name) for name in judge) and (bare := sum(not one.detail.get("messages") for one in artefacts)):
        lacking = f"{bare} of {show.count(len(artefacts), 'answer')} without detail.messages"
        print(f"{lacking}, which is all that the verifier reads", file=sys.stderr)
    if json:
        show.print_json([_told(one) for one in opinions])
        return
    rows = [(one.artefact[:8], one.outcome, _number(one.probability), one.by or None, one.why) for one in opinions]
    show.print_table(("answer", "outcome", ">p", "by", "~why"), rows)
    counts = {
        outcome: sum(one.outcome == outcome for one in opinions) for outcome in ("decided", "abstained", "disputed")
    }
    cost = sum(one.cost for one in opinions)
    print(f"\n{on.id}: " + ", ".join(f"{n} {name}" for name, n in counts.items()) + f"; cost {cost:g}")
    if counts["abstained"] + counts["disputed"]:
        print(f"next:\n  holdfast label{at}")


@app.command()
def calibrate(
    at: StoreOptions,
    judge: Annotated[str, Option(metavar="NAME", help="verifier, a folder of 'judge train', or a model.")] = VERIFIER,
    criterion: On = "correctness",
    own: Own = None,
    base_url: BaseUrl = None,
    tooluse: Annotated[
        int, Option(metavar="N", min=0, max=5000, help="First add N tool-use tasks, labelled by a program.")
    ] = 0,
    labels: Annotated[
        Path | None, Option(metavar="FILE", help="First add these: answers with holds, maker and who.")
    ] = None,
    json: Json = False,
) -> None:
    """Compare a judge with the labels there are, test it for bias and drift, and decide whether it counts."""
    on = _criterion(criterion, own)
    taken = None if labels is None else labelled(labels, on.id)
    with at.open(migrate=False) as opened:
        if taken is not None:
            _keep(opened, *taken)
        if tooluse:
            _add_tooluse(opened, on.id, tooluse)
        asked = judge_named(judge, base_url)
        made = asyncio.run(_calibrate(opened, on, asked))
        opened.judgements.calibrate(made, who=who()).result()
    if json:
        show.print_record(made)
    else:
        _print(made)


@app.command()
def report(at: StoreOptions, json: Json = False) -> None:
    """Which judges there are, who made the labels they were measured on, and which of them count."""
    with at.existing() as opened:
        found, asked = opened.judgements.calibrations(), opened.judgements.asked()
        roles, waiting = opened.judgements.appointments(), opened.judgements.waiting()
    if json:
        counts = [
            {"judge": name, "criterion": on, "prompt": prompt, "n": n, "cost": cost, "last_at": at}
            for name, on, prompt, n, cost, at in asked
        ]
        told = {"calibrations": [encode(one) for one in found], "asked": counts, "waiting": waiting}
        show.print_json({**told, "appointments": [encode(one) for one in roles]})
        return
    if not found:
        print(f"no judge is calibrated; to begin:\n  holdfast judge calibrate --tooluse 300{at}")
    for one in found:
        _print(one)
        print()
    for name, on, _, n, cost, _ in asked:
        print(f"{name} on {on}: {show.count(n, 'judgement')} kept, cost {cost:g}")
    for given in roles:
        print(f"{given.judge} is the {given.role} judge of {given.policy}")
    print(f"{show.count(waiting, 'answer')} to label" + (f": holdfast label{at}" if waiting else ""))


@app.command()
def train(
    output: Annotated[Path, Argument(metavar="FOLDER", help="Where the verifier goes.")],
    tasks: Annotated[int | None, Option(metavar="N", min=4, help="As in the recipe, or so many.")] = None,
    seed: Annotated[int, Option(metavar="N", min=0, help="Of its first weights.")] = 0,
    json: Json = False,
) -> None:
    """Make the embedded verifier again: the models answer, a program says what is right. Minutes on a CPU."""
    with needing("learn"):
        from holdfast.workloads.tooluse.verifier import VerifierRecipe, gathered, plant
    _make(output)
    recipe = replace(VerifierRecipe(seed=seed), tasks=tasks or VerifierRecipe().tasks)
    with show.progress("answering", 2 * recipe.tasks * len(recipe.splits)) as advance:
        found = gathered(recipe, done=lambda n: advance(n))
    with show.progress("learning", None):
        manifest = plant(found, output, recipe, created_at=time.time())
    if json:
        show.print_json({"folder": str(output), "sha256": manifest.sha256, "notes": manifest.notes})
    else:
        print(f"{output}: from {manifest.notes['answers']} answers, sha256 {manifest.sha256[:16]}…")
        print(f"next:\n  holdfast judge calibrate --tooluse 300 --judge {shlex.quote(str(output))}")


def _make(folder: Path) -> None:
    """Before minutes of work: a folder that weights can be put into."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_other = not (folder / "manifest.json").is_file() and any(folder.iterdir())
        is_locked = not os.access(folder, os.W_OK)
    except OSError as error:
        raise BadInput(str(folder), why=error.strerror or str(error), remedy="name a folder") from None
    if is_other or is_locked:
        why = "is there and holds no weights" if is_other else "cannot be written to"
        raise BadInput(str(folder), why=why, remedy="name another folder")


async def _opinions(
    opened: Store, on: Criterion, artefacts: Sequence[EvalItem], judges: Sequence[Judge], advance: Any
) -> list[Opinion]:
    from holdfast.reward.judges.ensemble import cascade, doubt
    from holdfast.reward.judges.judge import Kept
    from holdfast.reward.judges.rules import RuleJudge

    kept = [[Kept(each, opened.judgements)] for each in judges]
    rules, found = RuleJudge(clock=time.time), []
    for one in artefacts:
        opinion = await cascade(on, one, kept, rules=rules, calibrated=opened.judgements.calibration)
        if (waits := doubt(opinion, now=time.time())) is not None:
            await opened.judgements.doubt(one, waits)
        found.append(opinion)
        advance()
    return found


async def _calibrate(opened: Store, on: Criterion, asked: Judge) -> Calibration:
    from holdfast.reward.judges.bias import probe, self_preference
    from holdfast.reward.judges.calibration import calibrate, drift, truth
    from holdfast.reward.judges.judge import JudgeFailed, Kept

    known = truth(opened.judgements.labels(on.id))
    if not known:
        remedy = "add some: --tooluse N, --labels FILE, or holdfast label"
        raise BadInput(f"labels on {on.id}", why="there are none in the store", remedy=remedy)
    artefacts = [opened.judgements.artefact(sha256) for sha256 in sorted(known)]
    before = opened.judgements.of(on.id, judge=asked.name, prompt=asked.prompt(on))
    then = {one.artefact: one.score for one in before if one.score is not None and one.artefact in known}
    given, keeping, failed = [], Kept(asked, opened.judgements), list[str]()
    with show.progress(f"asking {asked.name}", len(artefacts)) as advance:
        for one in artefacts:
            try:
                given.append(await keeping.ask(on, one))
            except JudgeFailed as error:
                failed.append(str(error))
            advance()
    if not given:
        raise JudgeFailed(f"judge {asked.name}", why=failed[0], remedy="is its endpoint running?")
    reasons, biases = [], dict[str, Any]()
    if then:
        anchors = set(list(then)[:ANCHORS])
        changed = drift(then, await _again(on, asked, [one for one in artefacts if one.sha256 in anchors]))
        biases["drift"] = {"n": changed.n, "changed": changed.changed, "alarm": changed.alarm}
        reasons += [f"drift: {changed.why}"] if changed.alarm else []
    authors = {one.sha256: one.author for one in artefacts}
    own = READS_WITH.get(asked.name.partition("@")[0], asked.name)
    mine = self_preference(given, authors, known, own=own)
    with show.progress(f"testing {asked.name} for bias", None) as advance:
        found = await probe(asked, on, artefacts, own=mine, done=advance)
    told = {**biases, **found.told, **({"failed": len(failed)} if failed else {})}
    if by_file := sum(one.why == BY_FILE for one in known.values()):
        told[BY_FILE] = {"labels": by_file}
    return calibrate(on, given, known, now=time.time(), biases=told, reasons=[*reasons, *found.reasons])


async def _again(on: Criterion, asked: Judge, anchors: Sequence[EvalItem]) -> dict[str, float]:
    """What it says now of what it was asked before."""
    found = {}
    with show.progress(f"asking {asked.name} again", len(anchors)) as advance:
        for one in anchors:
            found[one.sha256] = (await asked.ask(on, one)).score
            advance()
    return {sha: score for sha, score in found.items() if score is not None}


def _add_tooluse(opened: Store, criterion: str, n: int) -> None:
    with needing("learn"):
        from holdfast.workloads.tooluse import verifier
    with show.progress("answering", 2 * n) as advance:
        found = verifier.answered("test", n, first=5, done=lambda n: advance(n))
    _keep(opened, [verifier.artefact(one) for one in found], verifier.labels(found, criterion, now=time.time()))


def _keep(opened: Store, artefacts: Sequence[EvalItem], labels: Sequence[Label]) -> None:
    opened.judgements.keep(artefacts, now=time.time()).result()
    opened.judgements.label(labels).result()


def is_verifier(name: str) -> bool:
    """The embedded one, or one in a folder."""
    return name == VERIFIER or (Path(name) / "manifest.json").is_file()


def judge_named(name: str, base_url: str | None) -> Judge:
    """The embedded verifier, one that `train` has put into a folder, or a model behind an endpoint."""
    from holdfast.reward.judges.judge import FunctionJudge, LlmJudge

    if is_verifier(name):
        with show.progress(f"loading {name}", None), needing("learn"):
            from holdfast.policies.verifier import load
            from holdfast.workloads.tooluse.verifier import probabilities

            using = load() if name == VERIFIER else load(Path(name))
        called = VERIFIER if name == VERIFIER else f"{VERIFIER}@{using.version}"
        about: dict[str, Any] = {"name": called, "version": using.version, "clock": time.time, "reads": READS}
        return FunctionJudge(**about, probabilities=lambda some: probabilities(using, some))
    if base_url is None:
        raise BadInput(f"--judge {name}", why="needs an endpoint", remedy=f"give --base-url, or use --judge {VERIFIER}")
    from holdfast.collect.client import Client

    client = Client(name, base_url, api_key=os.environ.get("OPENAI_API_KEY"), tries=2)
    return LlmJudge(name=name, complete=client, clock=time.time)


def answers(file: Path) -> list[EvalItem]:
    """A line of JSON each; the whole file is read before anybody is asked."""
    return [_artefact(data, where) for data, where in _lines(file)]


def labelled(file: Path, criterion: str) -> tuple[list[EvalItem], list[Label]]:
    """Answers with what is known of them: `holds`, by which kind of `maker`, and `who`."""
    artefacts, labels = [], []
    for data, where in _lines(file):
        holds, maker, name = data.pop("holds", None), data.pop("maker", None), data.pop("who", None)
        if not isinstance(holds, bool) or maker not in tuple(Maker) or not isinstance(name, str) or not name.strip():
            remedy = f"give holds (true or false), maker ({', '.join(Maker)}) and who"
            raise BadInput(where, why="does not say what is known, and by whom", remedy=remedy)
        artefacts.append(_artefact(data, where))
        about: dict[str, Any] = {"artefact": artefacts[-1].sha256, "criterion": criterion, "at": time.time()}
        labels.append(Label(**about, maker=Maker(maker), who=name, holds=holds, why=BY_FILE))
    return artefacts, labels


def _lines(file: Path) -> list[tuple[dict[str, Any], str]]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(str(file), why=f"cannot be read: {error}") from None
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            data = loads(line)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{file}:{number}", why=f"is not JSON: {error}") from None
        if not isinstance(data, dict):
            raise BadInput(f"{file}:{number}", why="is not an object", remedy='write {"task": …, "output": …}')
        found.append((data, f"{file}:{number}"))
    if not found:
        raise BadInput(str(file), why="has no answers in it")
    return found


def _artefact(data: Mapping[str, Any], where: str) -> EvalItem:
    if unknown := sorted(set(data) - FIELDS):
        raise BadInput(f"{where}: {unknown[0]}", why="is unknown", remedy=f"use {', '.join(sorted(FIELDS))}")
    try:
        return decode(EvalItem, dict(data))
    except BadRecord as error:
        raise BadInput(f"{where}: {error.what}", why=error.why, remedy=error.remedy) from None


def _criterion(name: str, own: Path | None) -> Criterion:
    from holdfast.reward.judges.judge import criterion_from, criterion_named

    if own is None:
        return criterion_named(name)

    try:
        return criterion_from(loads(own.read_text(encoding="utf-8")), str(own))
    except (OSError, ValueError) as error:
        raise BadInput(str(own), why=f"cannot be read: {error}") from None


def _told(one: Opinion) -> dict[str, Any]:
    plain = {name: getattr(one, name) for name in ("criterion", "artefact", "probability", "why", "by", "cost")}
    plain |= {"outcome": one.outcome.value, "holds": one.holds, "failed": list(one.failed)}
    return {**plain, "judgements": [encode(given) for given in one.judgements]}


def _print(one: Calibration) -> None:
    """Within 80 columns."""
    makers = ", ".join(f"{n} by a {maker}" for maker, n in one.makers.items())
    got = {name: _number(value) for name, value in one.measures.items()}
    print(fold(f"{one.judge} on {one.criterion}: {one.standing}" + "".join(f"; {why}" for why in one.reasons)))
    print(f"  labels   {one.n} ({makers}), {one.abstained} abstained; base rate {got.get('base_rate', '-')}")
    if one.measures:
        kappa = f"{got['kappa']} ({got['kappa_low']} to {got['kappa_high']})"
        print(f"  agrees   kappa {kappa}, accuracy {got['accuracy']}, AUROC {got['auroc']}")
        print(f"  error    ECE {got['ece_raw']} raw, {got['ece']} mapped; Brier {got['brier_raw']}, {got['brier']}")
    for name, told in one.biases.items():
        if isinstance(told, Mapping):
            pairs = {key: round(value, 4) if isinstance(value, float) else value for key, value in told.items()}
            print(f"  {name[:12]:<12} {show.pairs(pairs)}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
