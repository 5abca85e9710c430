"""`holdfast reward …`: attach a reward, show what a rollout was paid for, score a run again, judges, and labels."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from json import loads
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from holdfast.cli import show
from holdfast.cli.options import (
    CommandSet,
    Json,
    Limit,
    Output,
    RolloutText,
    StoreOptions,
    Text,
    needing,
    read_jsonl,
    who,
)
from holdfast.cli.show import count, fold, one_line, pairs
from holdfast.contracts.errors import BadInput, BadRecord
from holdfast.contracts.judgement import EvalItem, Label, Maker, Role
from holdfast.contracts.lines import folded, printable, say
from holdfast.contracts.records import decode
from holdfast.contracts.reward import TURN_REWARD, TURN_SOURCES, RewardBreakdown, RewardTerm
from holdfast.contracts.task import asked_of
from holdfast.contracts.trace import PARTIAL

if TYPE_CHECKING:
    from holdfast.api.stored import Rescoring
    from holdfast.contracts.judgement import Calibration, EvalItem, ReviewRequest
    from holdfast.contracts.rollout import Rollout
    from holdfast.contracts.trace import Span
    from holdfast.reward.judges.calibration import Corrected
    from holdfast.reward.judges.ensemble import Opinion
    from holdfast.reward.judges.judge import Criterion, Judge
    from holdfast.store.store import Store


REWARD_EPILOG = """What was told stands: the same once more changes nothing, another value for the same name, source and
turn is refused (5). A reward counts for what is learnt from then on; steps that were made before stay as they are.

The ledger has who told it: 'holdfast store ledger'."""


def reward(
    rollout: RolloutText,
    name: Annotated[str, Option(metavar="NAME", help="Of the signal, as in success or tone.")],
    value: Annotated[float, Option(metavar="X", help="Any finite number.")],
    source: Annotated[str, Option(metavar="TEXT", help="Who or what measured it, as in person:ann.")],
    at: StoreOptions,
    turn: Annotated[
        int | None, Option(metavar="T", min=0, help="Of one call of the model, from 0; else of all.")
    ] = None,
    weight: Annotated[float, Option(metavar="X", help="How much it counts in the reward; 0: not at all.")] = 1.0,
) -> Output:
    """Attach a reward to a rollout that has ended."""
    from holdfast.store.store import find_rollout

    term = RewardTerm(name=name, value=value, weight=weight, source=source, turn=turn)
    with at.existing() as opened:
        found = find_rollout(opened, rollout)
        after = opened.rewards.attach(found.id, term, who=who(), now=time.time()).result()
    where = "" if turn is None else f" at turn {turn}"
    before = f", was {'none' if found.reward is None else f'{found.reward:g}'}" if after.is_new else ""
    message = f"{term.name}{where} = {term.value:g} × {term.weight:g} ({term.source})"
    again = "" if after.is_new else " was told before"
    return Output(after, f"{after.rollout}: {message}{again}; its reward is {after.reward:g}{before}")


WIDTH = 80
GATED = "gated"  # 1: the guard let nothing through


def rewards(
    rollout: Annotated[str, Argument(metavar="RUN[/NAME]", help="A rollout, or a run; both may be cut short.")],
    at: StoreOptions,
    scoring: Annotated[str | None, Option(metavar="NAME", help="Of a run: what this scoring says.")] = None,
    limit: Limit = 20,
) -> Output:
    """Show what a rollout was paid for: what it did in each turn, every signal with its weight, and the total.

    Scorings that were made later, by 'rescore' or 'evaluate', stand below. Of a run they are listed.
    """
    from holdfast.store.store import find_rollout

    if "/" not in rollout:
        return _scorings(rollout, at, scoring, limit)
    if scoring is not None:
        raise BadInput("--scoring", why="is for a run", remedy="leave it out: a rollout shows all of them")
    with at.existing() as opened:
        found = find_rollout(opened, rollout)
        spans, breakdown, output = read_rewards(opened, found)
        beside = {name: RewardBreakdown(signals=some) for name, some in opened.scorings.of_rollout(found.id).items()}
    total = None if breakdown is None else breakdown.total
    data = {"rollout": found.id, "output": output, "total": total, "sheet": breakdown, "turns": _turns(spans)}
    signals = () if breakdown is None else breakdown.signals
    data["turn_rewards"] = [
        {signal.name: signal.value for signal in signals if signal.turn == turn} for turn in range(len(data["turns"]))
    ]
    lines = [*reward_lines(found, spans, breakdown), *beside_lines(beside)]
    return Output({**data, "scorings": beside}, "\n".join(lines))


def beside_lines(scorings: Mapping[str, RewardBreakdown]) -> Iterator[str]:
    """Shows later scorings, each with its reasons."""
    for name, breakdown in scorings.items():
        yield ""
        yield f"  scored again: {name}"
        yield from _table([signal for signal in breakdown.signals if signal.name != GATED], (), breakdown.total or 0.0)
        yield from _feedback_lines(breakdown.signals)


def _feedback_lines(signals: Sequence[RewardTerm]) -> Iterator[str]:
    """Yields the feedback texts of the signals."""
    for signal in signals:
        if signal.feedback:
            yield fold(f"{signal.name}: {one_line(signal.feedback)}", "  ")


def _scorings(run: str, at: StoreOptions, name: str | None, limit: int) -> Output:
    """The scorings beside a run's own rewards; with a name, what that one says."""
    from holdfast.api.stored import Run, StoreAddress

    with at.existing() as opened:
        found = Run(StoreAddress(at.store, at.project), opened.runs.get(run).id)
    if name is None:
        listed = found.scorings()
        data = {"run": found.id, "scorings": listed}
        if not listed:
            made_by = "'holdfast reward evaluate' and 'holdfast reward rescore' make them"
            return Output(data, folded(f"{found.id} has no scoring beside its own rewards: {made_by}"))
        rows = [(scoring.name, scoring.rollouts, scoring.who, pairs(scoring.scorers)) for scoring in listed]
        following = f"next:\n  holdfast reward show {found.id} --scoring {listed[-1].name}{at}"
        return Output(data, [show.table(("scoring", ">rollouts", "who", "~by"), rows), following])
    scored = found.scoring(name)
    cells = [(one["id"], _number(one["reward"]), one["outcome"], one["feedback"]) for one in scored[:limit]]
    table = show.table(("rollout", ">reward", "answer", "~why"), cells)
    return Output({"run": found.id, "scoring": name, "rollouts": list(scored)}, [table, *show.left_out(scored, limit)])


def read_rewards(store: Store, rollout: Rollout) -> tuple[list[Span], RewardBreakdown | None, Any]:
    """Reads the spans, the rewards and the output of the deciding attempt, or else of the last one."""
    from holdfast.operate.conversation import shown_attempt

    decided = shown_attempt(rollout, store.views.attempts(rollout.id))
    if decided is None:
        return [], None, None
    token = decided.token
    return store.traces.spans(token), store.traces.breakdown(token), store.views.output(decided)


def reward_lines(rollout: Rollout, spans: Sequence[Span], breakdown: RewardBreakdown | None) -> Iterator[str]:
    """The breakdown in 80 columns."""
    yield f"{rollout.id}: {rollout.status}"
    yield _cut(f"  asked     {one_line(asked_of(rollout.input))}")
    if isinstance(rollout.input, Mapping) and rollout.input.get("system"):
        yield _cut(f"  told      {one_line(rollout.input['system'])}")
    if isinstance(rollout.input, Mapping) and rollout.input.get("expected") is not None:
        yield _cut(f"  expected  {one_line(rollout.input['expected'])}  (hidden from the agent)")
    signals = () if breakdown is None else breakdown.signals
    for number, done in enumerate(_turns(spans)):
        for line, text in enumerate(done):
            yield _cut(f"  turn {number + 1:<3}  {text}" if not line else f"            {text}")
        if own := [signal for signal in signals if signal.turn == number]:
            yield from _turn_signals(own)
    if breakdown is None or breakdown.total is None:
        yield "  nothing was measured, so there is no reward"
        return
    yield ""
    yield from _table(
        [signal for signal in signals if signal.turn is None and signal.name != GATED], signals, breakdown.total
    )
    yield from _feedback_lines(signals)


def _table(whole: Sequence[RewardTerm], signals: Sequence[RewardTerm], total: float) -> Iterator[str]:
    """Tabulates the signals of the whole attempt, those of turns in one line, and the sum."""
    yield f"  {'signal':<24} {'value':>7}   {'weight':>7}   {'counts':>7}  source"
    for term in whole:
        paid = term.value * term.weight
        yield _cut(f"  {term.name[:24]:<24} {term.value:>7.3g} × {term.weight:>7.3g} = {paid:>7.3g}  {term.source}")
    if of_turns := [signal for signal in signals if signal.turn is not None]:
        paid = sum(of_turn.value * of_turn.weight for of_turn in of_turns)
        many = f"{count(len(of_turns), 'signal')} of turns"
        yield f"  {many:<24} {'':>7}   {'':>7} = {paid:>7.3g}  as above"
    yield f"  {'total':<24} {'':>7}   {'':>7}   {total:>7.3g}"
    for term in signals:
        if term.name == GATED:
            message = "closed, so nothing else is paid" if term.value else "open: the hidden check passed"
            yield _cut(f"  {term.source} is {message}")


def _turn_signals(own: Sequence[RewardTerm]) -> Iterator[str]:
    """Lists a turn's four measures, the signals that count with their weights, and the others."""
    paid = [f"{term.name} {term.value:.3g} × {term.weight:.3g}" for term in own if term.weight]
    parts = [term for term in own if term.source in TURN_SOURCES]
    worth = [part.feedback or f"{part.value:.3g} in all" for part in parts if part.name == TURN_REWARD]
    worth += [f"{part.name} {part.value:.3g}" for part in parts if part.name != TURN_REWARD]
    seen = [f"{term.name} {term.value:.3g}" for term in own if not term.weight and term not in parts]
    for title, words in (("worth:", worth), ("counts:", paid), ("seen:", seen)):
        if words:
            whole = [word.replace(" ", "\u00a0") for word in words]  # a name stays with its number
            folded = [line.replace("\u00a0", " ") for line in wrap(", ".join(whole), WIDTH - 22)]
            yield f"            {title:<8}{folded[0]}"
            yield from (f"{'':<20}{more}" for more in folded[1:])


def _turns(spans: Sequence[Span]) -> list[list[str]]:
    """Describes each model call: its thoughts, its tool calls with results, or its answer."""
    turns: list[list[str]] = []
    for span in sorted(spans, key=lambda span: span.seq):
        if span.model is not None and PARTIAL not in span.attributes:  # as signals count turns
            response = span.model.response
            thought, said = response.get("reasoning_content"), response.get("content")
            turns.append([f"thinks    {one_line(thought)}"] if thought else [])
            if said or not response.get("tool_calls"):
                turns[-1].append(f"answers   {one_line(said or '')}")
        elif span.tool is not None and turns:
            turns[-1].append(f"calls     {span.tool.tool} {pairs(span.tool.arguments)}")
            turns[-1].append(f"is told   {one_line(span.tool.error or span.tool.result)}")
    return [turn or ["says nothing"] for turn in turns]


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


RESCORE_EPILOG = """The rollouts keep their rewards: the second scoring lies beside the first, under its name."""


def rescore(
    run: Annotated[str, Argument(metavar="RUN", help="The run whose rollouts are scored.")],
    scorer: Annotated[list[str], Option(metavar="NAME", help="exact, FILE.py:FUNCTION, or an object as in a config.")],
    at: StoreOptions,
    gate: Annotated[bool, Option("--gate/--no-gate", help="The first scorer says whether an answer is right.")] = True,
    name: Annotated[str | None, Option(metavar="NAME", help="What the scoring is called.")] = None,
    limit: Annotated[int, Option(metavar="N", min=0, max=10_000, help="At most so many that changed.")] = 10,
) -> Output:
    """Score a run's stored rollouts by other scorers, keep that beside the first scoring, and compare the two.

    Told are how far they agree, which rollouts change, and what a proof's verdict would have been.
    """
    from holdfast.api.stored import rescore as scored_again

    blocks = [{"gate": gate and not place, **_block(one)} for place, one in enumerate(scorer)]
    rescoring = scored_again(run, blocks, name=name, store=at.store, project=at.project)
    data = {
        "run": rescoring.run.id,
        "name": rescoring.name,
        "comparison": asdict(rescoring.comparison),
        "errors": rescoring.errors,
    }
    verdicts = {"old_verdict": rescoring.old_verdict, "new_verdict": rescoring.new_verdict}
    return Output({**data, **verdicts}, _changed_lines(rescoring, limit))


def _block(text: str) -> dict[str, Any]:
    """A scorer by its name, or as a JSON object: {"scorer": "judge", "model": …, "base_url": …}."""
    if not text.lstrip().startswith("{"):
        return {"scorer": text}
    try:
        given = loads(text)
    except ValueError as error:
        raise BadInput(f"--scorer {text[:60]}", why=f"is not JSON: {error}", remedy="quote it whole") from None
    return dict(given)


def _changed_lines(rescoring: Rescoring, limit: int) -> Iterator[Text]:
    yield str(rescoring)
    changed = rescoring.changed
    if changed and limit:
        yield f"\n{count(len(changed), 'rollout')} changed, the largest change first:"
        rows = []
        for row in changed[:limit]:
            answer = f"{_word(row['was_right'])} → {_word(row['is_right'])}"
            rows.append((row["id"], _number(row["old"]), _number(row["new"]), answer))
        yield show.table(("~rollout", ">was", ">is", "answer"), rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _word(is_right: object) -> str:
    return "not checked" if is_right is None else "right" if is_right else "wrong"


KEYS = {"y": True, "n": False, "u": None}
HELP = "y yes, n no, u cannot be told, s skip, q quit; a reason may follow"
LONGEST = 2000  # characters of one part that are shown
LABEL_EPILOG = f"""Answer with {HELP}: "n the total is wrong".

Labels are kept at once, with your login as who made them, and are used by 'holdfast reward judge calibrate'."""


def label(
    at: StoreOptions,
    limit: Limit = 1000,
    name: Annotated[str | None, Option("--who", metavar="NAME", help="Who labels; else your login.")] = None,
    json: Json = False,
) -> None:
    """Label what the judges could not decide, at a terminal. --json only lists what waits."""
    with at.existing() as opened:
        waiting = opened.judgements.doubts(most=limit)
        if json:
            show.print_json(waiting)
            return
        if not waiting:
            print("nothing waits for a label")
            return
        if not sys.stdin.isatty():
            remedy = "use a terminal; what a program knows goes in with: holdfast reward judge calibrate --labels FILE"
            raise BadInput("label", why="a label is a person's word, and the input is no terminal", remedy=remedy)
        done = _ask(opened, waiting, name or who())
        left = opened.judgements.waiting()
    print(f"\n{show.count(done, 'label')} kept, {left} to go" + (f": holdfast reward label{at}" if left else ""))


def _ask(opened: Store, waiting: list[ReviewRequest], name: str) -> int:
    """Asks for labels and counts them. End of input or Ctrl-C stops it; answers are on disk by then."""
    done, replies = 0, _replies()
    try:
        for place, doubt in enumerate(waiting, 1):
            _show(opened.judgements.item(doubt.artefact), doubt, f"{place} of {len(waiting)}")
            reply = next(replies, "q")
            while (key := reply[:1].lower()) not in (*KEYS, "s", "q") or reply[1:2].strip():
                print(HELP)
                reply = next(replies, "q")
            if key == "q":
                break
            if key != "s":
                _keep(opened, doubt, KEYS[key], reply[1:].strip(), name)
                done += 1
    except KeyboardInterrupt:
        print("\n(stopped)", end="")
    return done


def _replies() -> Iterator[str]:
    while True:
        try:
            yield input("holds? [y/n/u/s/q] ").strip()
        except EOFError:
            return


def _keep(opened: Store, doubt: ReviewRequest, holds: bool | None, why: str, name: str) -> None:
    given = Label(
        artefact=doubt.artefact,
        criterion=doubt.criterion,
        maker=Maker.PERSON,
        who=name,
        holds=holds,
        why=why,
        at=time.time(),
    )
    opened.judgements.label([given]).result()


def _show(artefact: EvalItem, doubt: ReviewRequest, place: str) -> None:
    from holdfast.reward.judges.judge import CRITERIA

    known = CRITERIA.get(doubt.criterion.partition("@")[0])
    print(
        f"\n--- {place} · {doubt.criterion} · {doubt.reason}" + (f" · {show.one_line(doubt.why)}" if doubt.why else "")
    )
    for title, text in (("task", artefact.task), ("context", artefact.context), ("answer", artefact.output)):
        if text or title == "answer":
            print(f"{title}:")
            for line in text[:LONGEST].splitlines() or ["(nothing)"]:
                print(f"  {printable(line)}")
            if len(text) > LONGEST:
                print(f"  … and {len(text) - LONGEST} more characters")
    if known is not None:
        print(known.question)


judge_app = CommandSet("Judges.")

VERIFIER = "verifier"
READS_WITH = {VERIFIER: "sprout"}  # whose answers are a judge's own
RECHECKED = 100  # labelled answers that a judge is asked about again, to see whether it has changed
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    """One judge, and what it is asked."""

    judge: Annotated[str, Option(metavar="NAME", help="verifier, a folder of 'judge train', or a model.")] = VERIFIER
    criterion: On = "correctness"
    own: Own = None
    base_url: BaseUrl = None

    def load(self) -> Judge:
        return named([self.judge], self.base_url)[0]


@judge_app.command("run")
def run_judges(
    file: Annotated[Path, Argument(metavar="FILE", help="Answers: a line of JSON each, with task and output.")],
    judge: JudgeNames,
    at: StoreOptions,
    criterion: On = "correctness",
    own: Own = None,
    base_url: BaseUrl = None,
    policy: Annotated[str | None, Option(metavar="NAME", help="Whose answers these are.")] = None,
    role: Annotated[str, Option(metavar="ROLE", help="train or audit: no judge is both for a policy.")] = "audit",
) -> Output:
    """Ask the rules first, then each judge in turn until one is sure.

    What stays open waits for 'holdfast reward label'.
    """
    from holdfast.pipeline.judges import is_verifier

    on, artefacts = _criterion(criterion, own), answers(file)
    if role not in tuple(Role):
        raise BadInput(f"--role {role}", why="is unknown", remedy=f"use {' or '.join(Role)}")
    with at.open(migrate=False) as opened:
        judges = named(judge, base_url)
        for each in judges if policy is not None else ():
            opened.judgements.appoint(str(policy), each.name, Role(role), who=who(), now=time.time()).result()
        with show.progress("judging", len(artefacts)) as advance:
            opinions = asyncio.run(_opinions(opened, on, artefacts, judges, advance))
    if any(map(is_verifier, judge)) and (bare := sum(not artefact.detail.get("messages") for artefact in artefacts)):
        lacking = f"{bare} of {show.count(len(artefacts), 'answer')} without detail.messages"
        say(f"{lacking}, which is all that the verifier reads")
    rows = [
        (opinion.artefact[:8], opinion.outcome, _figure(opinion.probability), opinion.by or None, opinion.why)
        for opinion in opinions
    ]
    counts = Counter(str(opinion.outcome) for opinion in opinions)
    counted = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("decided", "abstained", "disputed"))
    summary = f"\n{on.id}: {counted}; cost {sum(opinion.cost for opinion in opinions):g}"
    following = [f"next:\n  holdfast reward label{at}"] if counts["abstained"] + counts["disputed"] else []
    table = show.table(("answer", "outcome", ">p", "by", "~why"), rows)
    return Output([_opinion_record(opinion) for opinion in opinions], [table, summary, *following])


@judge_app.command("calibrate")
def calibrate_judge(
    at: StoreOptions,
    how: JudgeOptions,
    tooluse: Annotated[
        int, Option(metavar="N", min=0, max=5000, help="First add N tool-use tasks, labelled by a program.")
    ] = 0,
    labels: Annotated[
        Path | None, Option(metavar="FILE", help="First add these: answers with holds, maker and who.")
    ] = None,
) -> Output:
    """Compare a judge with the labels there are, test it for bias and drift, and decide whether it counts."""
    on = _criterion(how.criterion, how.own)
    taken = None if labels is None else labelled(labels, on.id)
    with at.open(migrate=False) as opened:
        if taken is not None:
            _keep_labels(opened, *taken)
        if tooluse:
            _add_tooluse(opened, on.id, tooluse)
        made = asyncio.run(_calibrate(opened, on, how.load()))
        opened.judgements.calibrate(made, who=who()).result()
    return Output(made, "\n".join(_calibration_lines(made)))


@judge_app.command("estimate")
def estimate_share(
    file: Annotated[Path, Argument(metavar="FILE", help="Answers: a line of JSON each, with task and output.")],
    at: StoreOptions,
    how: JudgeOptions,
    noise: Annotated[
        float | None, Option(metavar="X", help="Share of the labels that is wrong; else up to 0.1 of a person's.")
    ] = None,
) -> Output:
    """Estimate the share of answers that holds, with the judge's errors taken out and an interval.

    Labels of these very answers ('holdfast reward label', 50 or more, drawn by chance) and the judge are used together,
    by PPI++. Without them the judge's calibration on other answers corrects its mean, by Rogan and Gladen.
    """
    on, artefacts = _criterion(how.criterion, how.own), answers(file)
    with at.open(migrate=False) as opened:
        asked = how.load()
        with show.progress(f"asking {asked.name}", len(artefacts)) as advance:
            corrected, silent = asyncio.run(_estimated(opened, on, artefacts, asked, noise, advance))
    left_out = f"; {show.count(silent, 'answer')} without a score left out" if silent else ""
    payload = {**asdict(corrected), "judge": asked.name, "criterion": on.id, "without_score": silent}
    return Output(payload, fold(f"{on.id}: {corrected.text}{left_out}; the judge alone says {corrected.raw:.3f}"))


async def _estimated(
    opened: Store, on: Criterion, artefacts: Sequence[EvalItem], asked: Judge, noise: float | None, advance: Any
) -> tuple[Corrected, int]:
    from holdfast.reward.judges.calibration import best_labels, estimated
    from holdfast.reward.judges.judge import CachedJudge

    known, keeping = best_labels(opened.judgements.labels(on.id)), CachedJudge(asked, opened.judgements)
    scores: dict[str, float] = {}
    for artefact in artefacts:
        given = await keeping.ask(on, artefact)
        if given.score is not None:
            scores[artefact.sha256] = given.score
        advance()
    calibration = opened.judgements.calibration(asked.name, on.id, asked.prompt(on))
    return estimated(scores, known, calibration, noise=noise), len(artefacts) - len(scores)


@judge_app.command("report")
def report_judges(at: StoreOptions) -> Output:
    """List the judges, who made the labels that they were measured on, and which judges count."""
    with at.existing() as opened:
        calibrations, asked = opened.judgements.calibrations(), opened.judgements.asked()
        roles, waiting = opened.judgements.appointments(), opened.judgements.waiting()
    counts = [dict(zip(("judge", "criterion", "prompt", "n", "cost", "last_at"), one, strict=True)) for one in asked]
    lines = (
        []
        if calibrations
        else [f"no judge is calibrated; to begin:\n  holdfast reward judge calibrate --tooluse 300{at}"]
    )
    for calibration in calibrations:
        lines += [*_calibration_lines(calibration), ""]
    for name, on, _, n, cost, _ in asked:
        lines.append(f"{name} on {on}: {show.count(n, 'judgement')} kept, cost {cost:g}")
    lines += [f"{given.judge} is the {given.role} judge of {given.policy}" for given in roles]
    lines.append(f"{show.count(waiting, 'answer')} to label" + (f": holdfast reward label{at}" if waiting else ""))
    data = {"calibrations": calibrations, "asked": counts, "waiting": waiting, "appointments": roles}
    return Output(data, "\n".join(lines))


@judge_app.command("train")
def train_verifier(
    output: Annotated[Path, Argument(metavar="FOLDER", help="Where the verifier goes.")],
    tasks: Annotated[int | None, Option(metavar="N", min=4, help="As in the recipe, or so many.")] = None,
    seed: Annotated[int, Option(metavar="N", min=0, help="Of its first weights.")] = 0,
) -> Output:
    """Train the embedded verifier again, on answers of the embedded models that a program checks. Minutes on a CPU."""
    with needing("learn"):
        from holdfast.workloads.tooluse.verifier import VerifierRecipe, gathered, plant
    _make(output)
    recipe = replace(VerifierRecipe(seed=seed), tasks=tasks or VerifierRecipe().tasks)
    with show.progress("answering", 2 * recipe.tasks * len(recipe.splits)) as advance:
        found = gathered(recipe, done=lambda n: advance(n))
    with show.progress("learning", None):
        manifest = plant(found, output, recipe, created_at=time.time())
    made = f"{output}: from {manifest.notes['answers']} answers, sha256 {manifest.sha256[:16]}…"
    following = f"next:\n  holdfast reward judge calibrate --tooluse 300 --judge {shlex.quote(str(output))}"
    return Output({"folder": output, "sha256": manifest.sha256, "notes": manifest.notes}, f"{made}\n{following}")


def _make(folder: Path) -> None:
    """Checks before minutes of work that weights can be written to the folder."""
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
    from holdfast.reward.judges.ensemble import cascade, review_request
    from holdfast.reward.judges.judge import CachedJudge, RuleJudge

    kept = [[CachedJudge(judge, opened.judgements)] for judge in judges]
    rules, opinions = RuleJudge(clock=time.time), []
    for artefact in artefacts:
        opinion = await cascade(on, artefact, kept, rules=rules, calibrated=opened.judgements.calibration)
        if (waits := review_request(opinion, now=time.time())) is not None:
            await opened.judgements.request_review(artefact, waits)
        opinions.append(opinion)
        advance()
    return opinions


async def _calibrate(opened: Store, on: Criterion, asked: Judge) -> Calibration:
    from holdfast.reward.judges.calibration import best_labels, calibrate, drift, probe, self_preference
    from holdfast.reward.judges.judge import CachedJudge, JudgeFailed

    known = best_labels(opened.judgements.labels(on.id))
    if not known:
        remedy = "add some: --tooluse N, --labels FILE, or holdfast reward label"
        raise BadInput(f"labels on {on.id}", why="there are none in the store", remedy=remedy)
    artefacts = [opened.judgements.item(sha256) for sha256 in sorted(known)]
    before = opened.judgements.of(on.id, judge=asked.name, prompt=asked.prompt(on))
    then = {
        judgement.artefact: judgement.score
        for judgement in before
        if judgement.score is not None and judgement.artefact in known
    }
    given, keeping, failed = [], CachedJudge(asked, opened.judgements), list[str]()
    with show.progress(f"asking {asked.name}", len(artefacts)) as advance:
        for artefact in artefacts:
            try:
                given.append(await keeping.ask(on, artefact))
            except JudgeFailed as error:
                failed.append(str(error))
            advance()
    if not given:
        raise JudgeFailed(f"judge {asked.name}", why=failed[0], remedy="is its endpoint running?")
    reasons, biases = [], dict[str, Any]()
    if then:
        anchors = set(list(then)[:RECHECKED])
        changed = drift(
            then, await _again(on, asked, [artefact for artefact in artefacts if artefact.sha256 in anchors])
        )
        biases["drift"] = {"n": changed.n, "changed": changed.changed, "alarm": changed.alarm}
        reasons += [f"drift: {changed.why}"] if changed.alarm else []
    authors = {artefact.sha256: artefact.author for artefact in artefacts}
    own = READS_WITH.get(asked.name.partition("@")[0], asked.name)
    mine = self_preference(given, authors, known, own=own)
    with show.progress(f"testing {asked.name} for bias", None) as advance:
        found = await probe(asked, on, artefacts, own=mine, done=advance)
    payload = {**biases, **found.payload, **({"failed": len(failed)} if failed else {})}
    if by_file := sum(one.why == BY_FILE for one in known.values()):
        payload[BY_FILE] = {"labels": by_file}
    return calibrate(on, given, known, now=time.time(), biases=payload, reasons=[*reasons, *found.reasons])


async def _again(on: Criterion, asked: Judge, anchors: Sequence[EvalItem]) -> dict[str, float]:
    """Asks the judge again what it was asked before."""
    found = {}
    with show.progress(f"asking {asked.name} again", len(anchors)) as advance:
        for anchor in anchors:
            found[anchor.sha256] = (await asked.ask(on, anchor)).score
            advance()
    return {sha: score for sha, score in found.items() if score is not None}


def _add_tooluse(opened: Store, criterion: str, n: int) -> None:
    with needing("learn"):
        from holdfast.workloads.tooluse import verifier
    with show.progress("answering", 2 * n) as advance:
        found = verifier.answered("test", n, first=5, done=lambda n: advance(n))
    _keep_labels(
        opened, [verifier.eval_item(answer) for answer in found], verifier.labels(found, criterion, now=time.time())
    )


def _keep_labels(opened: Store, artefacts: Sequence[EvalItem], labels: Sequence[Label]) -> None:
    opened.judgements.save(artefacts, now=time.time()).result()
    opened.judgements.label(labels).result()


def named(names: Sequence[str], base_url: str | None) -> list[Judge]:
    """Judges by their names; the embedded verifier takes a moment to load."""
    from holdfast.pipeline.judges import judge_named

    with show.progress("loading judges", None):
        return [judge_named(name, base_url) for name in names]


def answers(file: Path) -> list[EvalItem]:
    """A line of JSON each; the whole file is read before anybody is asked."""
    return [_artefact(data, where) for where, data in _answers(file)]


def labelled(file: Path, criterion: str) -> tuple[list[EvalItem], list[Label]]:
    """Answers with what is known of them: `holds`, by which kind of `maker`, and `who`."""
    artefacts, labels = [], []
    for where, data in _answers(file):
        holds, maker, name = data.pop("holds", None), data.pop("maker", None), data.pop("who", None)
        if not isinstance(holds, bool) or maker not in tuple(Maker) or not isinstance(name, str) or not name.strip():
            remedy = f"give holds (true or false), maker ({', '.join(Maker)}) and who"
            raise BadInput(where, why="does not say what is known, and by whom", remedy=remedy)
        artefacts.append(_artefact(data, where))
        about: dict[str, Any] = {"artefact": artefacts[-1].sha256, "criterion": criterion, "at": time.time()}
        labels.append(Label(**about, maker=Maker(maker), who=name, holds=holds, why=BY_FILE))
    return artefacts, labels


def _answers(file: Path) -> list[tuple[str, dict[str, Any]]]:
    found = list(read_jsonl(file))
    if not found:
        raise BadInput(str(file), why="has no answers in it")
    for where, data in found:
        if not isinstance(data, dict):
            raise BadInput(where, why="is not an object", remedy='write {"task": …, "output": …}')
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


def _opinion_record(one: Opinion) -> dict[str, Any]:
    plain = {name: getattr(one, name) for name in ("criterion", "artefact", "probability", "why", "by", "cost")}
    plain |= {"outcome": one.outcome.value, "holds": one.holds, "failed": list(one.failed)}
    return {**plain, "judgements": one.judgements}


def _calibration_lines(one: Calibration) -> Iterator[str]:
    """Within 80 columns."""
    makers = ", ".join(f"{n} by a {maker}" for maker, n in one.makers.items())
    got = {name: _figure(value) for name, value in one.measures.items()}
    yield fold(f"{one.judge} on {one.criterion}: {one.standing}" + "".join(f"; {why}" for why in one.reasons))
    yield f"  labels   {one.n} ({makers}), {one.abstained} abstained; base rate {got.get('base_rate', '-')}"
    if one.measures:
        kappa = f"{got['kappa']} ({got['kappa_low']} to {got['kappa_high']})"
        yield f"  agrees   kappa {kappa}, accuracy {got['accuracy']}, AUROC {got['auroc']}"
        yield f"  error    ECE {got['ece_raw']} raw, {got['ece']} mapped; Brier {got['brier_raw']}, {got['brier']}"
    for name, bias in one.biases.items():
        if isinstance(bias, Mapping):
            pairs = {key: round(value, 4) if isinstance(value, float) else value for key, value in bias.items()}
            yield f"  {name[:12]:<12} {show.pairs(pairs)}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
