"""`init` writes a project, `quickstart` trains the embedded weak model, `improve` practises, proves and promotes."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from holdfast.cli import show
from holdfast.cli.options import (
    CONFIG,
    DeviceOption,
    DtypeOption,
    Output,
    StoreOptions,
    Text,
    check_torch,
    needing,
    store_flags,
    written_whole,
)
from holdfast.cli.prompts import PROMPT, PromptOptions, held_out_lines, reported, search_lines, searched_in
from holdfast.cli.release import decision_lines, headline, into_service, reason_lines
from holdfast.cli.report import write_page
from holdfast.cli.show import left, near, one_line, progress, step
from holdfast.contracts.errors import BadInput, Lost, NotFound
from holdfast.contracts.evidence import Decision
from holdfast.contracts.lines import folded
from holdfast.contracts.records import decode
from holdfast.contracts.release import PolicyKind, Stage, check_name
from holdfast.contracts.run import DesiredState, RunState

if TYPE_CHECKING:
    from holdfast.contracts.release import Release
    from holdfast.contracts.reward import RewardBreakdown
    from holdfast.contracts.run import RunRecord, Status, StepRecord
    from holdfast.contracts.settings import OptimizeSettings
    from holdfast.contracts.trace import Span
    from holdfast.pipeline.run import RunSpec
    from holdfast.promote.flags import Off
    from holdfast.store.store import Store
    from holdfast.workloads.tooluse.quickstart import Quickstart, Results, SuccessRate


AGENT_PY = '''"""The agent: what is to become better. Any client may be used: ctx.base_url and ctx.api_key answer."""


async def agent(task, ctx):
    messages = [{"role": "system", "content": ctx.prompt("system")}, {"role": "user", "content": task["question"]}]
    call = await ctx.ask(messages, max_tokens=24)
    return call.response.get("content") or ""
'''
SCORE_PY = '''"""The scorer: what an answer is worth, from 0 to 1. It sees `task.expected`, which the agent does not."""


def correct(task, answer):
    return float(answer.strip() == task.expected)
'''
TOML = """\
agent = "agent.py:agent"
scorers = ["score.py:correct"]
model = "local/sprout"  # embedded; a Hugging Face folder is "local/PATH"
worker_count = 32

[tasks]
file = "tasks.jsonl"
held_out = 0.5  # of them are proved on, and never learnt from

[resources]
system = "If unsure: unknown."

[improve]
policy = "{name}"  # the line of versions: {name}@1, {name}@2 ...
steps = 12
step_tasks = 8
samples = 8
# With so few tasks two seeds differ by about 0.05 for no reason: the defaults (0.05, 0.08) are for larger sets.
prove = {{ max_seed_spread = 0.15, max_sample_spread = 0.15 }}
"""
WORDS = """
apple arrow autumn basket bell bird blanket boat book bottle branch bread brick bridge broom brush bucket butter
button cable cake candle carpet castle cedar chair chalk cheese cherry circle clock cloud coffee copper coral corn
cotton cradle crown curtain desk diamond dinner door drum eagle engine feather fence field finger flag flower forest
fork garden gate glass glove grape hammer harbor hill honey horse house iron island jacket juice kettle kitchen kite
ladder lake lamp leaf lemon letter lime lion maple market meadow melon mirror monkey moon morning mountain nail needle
north oak ocean olive orange oven paint paper pencil pepper piano pillow pine planet plate pocket pond potato radio
rain ribbon ring river road rocket roof rope rose sail salt school seed shell ship shoe silver snow soap soup spoon
spring star station stone storm sugar summer sun table tea thread ticket tiger tomato tower train tree trumpet valley
violin wagon wall water wheel wind window winter wolf yard
"""


def files(name: str) -> dict[str, str]:
    """Returns the files of a new project by path."""
    tasks = "".join(f'{{"question": "Please write {word}.", "expected": "{word}"}}\n' for word in WORDS.split())
    return {"agent.py": AGENT_PY, "score.py": SCORE_PY, "tasks.jsonl": tasks, CONFIG: TOML.format(name=name)}


def init(
    folder: Annotated[Path, Argument(metavar="NAME", help="The folder to make; its name is the policy's.")],
) -> Output:
    """Write a project of four short files, agent.py, score.py, tasks.jsonl and holdfast.toml, that runs at once.

    Nothing that is there is overwritten.
    """
    name = folder.resolve().name
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        plain = re.sub(r"[^\w.-]+", "-", name).strip("-._") or "support"
        why = "a project's name has letters, digits, '-', '_' and '.' alone"
        raise BadInput(f"NAME {name!r}", why=why, remedy=f"for example {plain}")
    check_name("NAME", name)
    made = {folder / file: text for file, text in files(name).items()}
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"NAME {folder}", why="is a file", remedy="give another name")
    if taken := [path for path in made if path.exists()]:
        raise BadInput(f"{taken[0]}", why="is there already, and nothing is overwritten", remedy="give another name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"NAME {folder}", why=f"cannot be made: {error.strerror}") from error
    for path, text in made.items():
        with written_whole(path) as file:
            file.write(text)
    command = f"holdfast improve {shlex.quote(str(folder / CONFIG))}"
    width, about = (
        max(len(str(path)) for path in made),
        ("the agent", "what an answer is worth", "the tasks", "the settings"),
    )
    lines = [f"{path!s:<{width}}  {what}" for path, what in zip(made, about, strict=True)]
    lines += ["next:", *step(command, "about a minute")]
    return Output({"files": list(made), "next": command}, "\n".join(lines))


ENOUGH = 500  # rollouts of practice, before anybody should expect something of it
LOOK_AT = 60  # rollouts, for one that is worth showing
SEED = 0  # of the bootstrap: the same run always gives the same report


def quickstart(
    at: StoreOptions,
    quick: Annotated[bool, Option("--quick", help="A minute instead of minutes; proves little.")] = False,
    seed: Annotated[int, Option(metavar="N", min=0, max=10**6, help="Other tasks, other chance.")] = 0,
    turn_credit: Annotated[
        float, Option(metavar="X", min=0, max=1, help="Share of a turn's own reward in its credit.")
    ] = 0.0,
    fresh: Annotated[bool, Option("--fresh", help="Start anew, even if an earlier one can be resumed.")] = False,
    prompts: Annotated[
        bool, Option("--prompts", help="Search for a better prompt instead; trains nothing, a minute or two.")
    ] = False,
) -> Output:
    """Train the embedded weak model to use tools, measure it on held-out tasks before and after, and decide.

    Baseline, warm-up by examples, practice by GRPO, the same held-out tasks again, and the gate: promoted with its
    reasons, or held with the episodes still needed. Ctrl-C stops it; a second call goes on where it stopped.

    With --prompts the embedded model stays as it is, and a better prompt is searched for, proved on unseen tasks and
    promoted.
    """
    check_torch("quickstart")
    if prompts:
        if turn_credit:
            raise BadInput("--turn-credit", why="is of training, and --prompts trains nothing", remedy="leave it out")
        return _quickstart_prompts(at, quick=quick, seed=seed, fresh=fresh)
    from holdfast.cli.drive import drive, switched_off, switched_off_lines
    from holdfast.operate.switches import snapshot_of
    from holdfast.workloads.tooluse.quickstart import COMPARISON, QUICK, Quickstart, spec_for, turned

    settings = replace(QUICK if quick else Quickstart(), seed=seed, turn_credit=turn_credit)
    words = [" --quick" if quick else "", f" --seed {seed}" if seed else ""]
    again = f"holdfast quickstart{''.join(words)}{f' --turn-credit {turn_credit:g}' if turn_credit else ''}{at}"
    with at.open() as opened:
        resume = None if fresh else _unfinished(opened, settings)
        begun, spec = snapshot_of(opened, clock=time.time, environment=os.environ), spec_for(settings)
        try:
            status, _, code = drive(opened, spec, resume)
        except Lost as lost:
            remedy = f"restore it from a copy, or begin anew: {again} --fresh"
            raise Lost(lost.what, why=lost.why, remedy=remedy) from lost
        results, picture, page, breakdown, right = None, None, None, list[str](), list[tuple[str, str]]()
        updates = opened.steps.of_run(status.run_id)
        off = switched_off(opened, status.run_id, spec, begun)
        if status.run_state is RunState.COMPLETED:
            results, picture = _results(opened, status)
            proposed = _proposed(updates)
            page = None if proposed is None else write_page(Path(proposed["proof"]), COMPARISON)
            right = turned(opened, updates)
            breakdown = _breakdown(opened, right)
        folder = opened.folder

    data = _record(status, results, picture, updates) | {"page": page} | _switched_off(off)
    shown = switched_off_lines(off, str(at))
    if results is None or picture is None:
        why = "" if status.error is None else f" ({status.error})"
        shown.append(f"{status.run_id} {status.run_state.replace('_', ' ')} at {status.lesson}{why}")
        return Output(data, [*shown, f"next:\n  {again}   # goes on where it stopped"], code)
    left_behind = _left_lines(status, picture, updates, page, folder, right)
    return Output(data, [*shown, *_result_lines(status, results, updates), "", *breakdown, *left_behind], code)


def _quickstart_prompts(at: StoreOptions, *, quick: bool, seed: int, fresh: bool) -> Output:
    from holdfast.cli.drive import drive
    from holdfast.workloads.tooluse.prompts import KIND, QUICK, PromptQuickstart, spec_for
    from holdfast.workloads.tooluse.quickstart import COMPARISON

    settings = replace(QUICK if quick else PromptQuickstart(), seed=seed)
    with at.open() as opened:
        known = [run for run in opened.runs.newest(most=50) if run.kind == KIND and run.settings == asdict(settings)]
        is_open = bool(known) and known[0].state is not RunState.COMPLETED
        is_open = is_open and known[0].wanted is not DesiredState.CANCELLED
        status, _, code = drive(opened, spec_for(settings), known[0].id if is_open and not fresh else None)
        searched = searched_in(opened, status.run_id)
        decided = _proposed(opened.steps.of_run(status.run_id))
        page = None if decided is None else write_page(Path(decided["proof"]), COMPARISON)
        release = None if decided is None else opened.releases.get(decided["release"])
    data = {"status": status, "prompt_optimization": [reported(*one) for one in searched], "proof": page}

    def lines() -> Iterator[str]:
        yield f"{status.run_id} {status.run_state.replace('_', ' ')} in {status.elapsed_s:.0f} s"
        if status.run_state is not RunState.COMPLETED:
            words = f"{' --quick' if quick else ''}{f' --seed {seed}' if seed else ''}"
            yield from ("next:", *step(f"holdfast quickstart --prompts{words}{at}", "goes on where it stopped"))
            return
        for one in searched:
            yield from search_lines(*one)
        if decided is None or release is None:
            yield from held_out_lines(searched[-1][0]) if searched else ()
            return
        yield from decision_lines(release.id, decode(Decision, dict(decided["decision"])), release, "  ", str(at))
        yield from () if page is None else left("proof", page, "  ")
        yield "next:"
        yield from step(f"holdfast policy diff {release.id}{at}", "what changed")
        if release.stage is Stage.LIVE:
            yield from step(f"holdfast release rollback {release.policy} --why test{at}", "take it back")

    return Output(data, "\n".join(lines()), code)


def _switched_off(off: Sequence[Off]) -> dict[str, Any]:
    return {"switched_off": [asdict(one) for one in off]} if off else {}


def _unfinished(store: Store, settings: Quickstart) -> str | None:
    """The newest run of the same settings, if it did not come to its end, its report, and may still do so."""
    for run in store.runs.newest(most=50):
        if run.kind == "quickstart" and {"turn_credit": 0.0, **run.settings} == asdict(settings):
            is_told = run.state is RunState.COMPLETED and _picture(store, run.id).exists()
            return None if is_told or run.wanted is DesiredState.CANCELLED else run.id
    return None


def _results(store: Store, status: Status) -> tuple[Results | None, Path | None]:
    import numpy as np

    from holdfast.workloads.plots import draw_quickstart
    from holdfast.workloads.tooluse.quickstart import results

    found = results(store, store.steps.of_run(status.run_id), rng=np.random.default_rng(SEED))
    if found is None:
        return None, None
    path = _picture(store, status.run_id)
    draw_quickstart(path, found, f"{status.model_ref}, {found.practised} practice rollouts ({status.run_id})")
    return found, path


def _picture(store: Store, run: str) -> Path:
    return store.reports / f"{run}.png"


def _proposed(updates: list[StepRecord]) -> Mapping[str, Any] | None:
    """Finds the step with the gate's decision; None where nothing came before the gate."""
    return next((update.body for update in updates if "decision" in update.body), None)


def _record(status: Status, found: Results | None, picture: Path | None, updates: list[StepRecord]) -> dict[str, Any]:
    results, decided = None, _proposed(updates)
    if found is not None:
        results = asdict(found) | {"is_lifted": {name: change.is_lifted for name, change in found.changes.items()}}
    if decided is not None:
        decided = {name: decided.get(name) for name in ("release", "decision", "evidence", "proof")}
    about = {"status": status, "results": results, "picture": picture, "checkpoint": _newest(updates)}
    return {**about, "proposed": decided}


def _breakdown(store: Store, right: list[tuple[str, str]]) -> list[str]:
    """Shows the rewards of a rollout that was wrong before and is right now: the one with the most tool calls."""
    from holdfast.cli.reward import read_rewards, reward_lines

    found = [(before, read_rewards(store, store.views.rollout(after)), after) for before, after in right[:LOOK_AT]]
    if not found:
        return []
    before, (spans, breakdown, _), after = max(found, key=lambda one: _richness(*one[1][:2]))
    _, old, said = read_rewards(store, store.views.rollout(before))
    paid = 0.0 if old is None or old.total is None else old.total
    first, *rest = reward_lines(store.views.rollout(after), spans, breakdown)
    was = f"  before    {one_line(said) if said else 'no answer'}  ({paid:.3g})"
    return ["one reward, turn by turn", first, was if len(was) <= 80 else f"{was[:79]}…", *rest]


def _richness(spans: Sequence[Span], breakdown: RewardBreakdown | None) -> tuple[int, float]:
    """Many tool calls, and much that was paid for."""
    paid = 0.0 if breakdown is None or breakdown.total is None else breakdown.total
    return sum(span.tool is not None for span in spans), paid


def _result_lines(status: Status, found: Results, updates: list[StepRecord]) -> Iterator[Text]:
    """At most 80 columns."""
    from holdfast.workloads.plots import blocks
    from holdfast.workloads.tooluse.quickstart import RATES

    yield f"{status.run_id} {status.run_state} in {status.elapsed_s:.0f} s\n"
    if found.practised < ENOUGH:
        yield "(so little practice shows that everything runs, not that anything was learnt)\n"
    yield show.table(
        ("held-out tasks", "baseline", "95 %", "trained", "95 %", ""),
        [
            (RATES[name], *_cells(change.baseline), *_cells(change.trained), "lifted" if change.is_lifted else "")
            for name, change in found.changes.items()
        ],
    )
    yield f"\ntasks solved, paired by task: +{found.gain.low:.2f} to +{found.gain.high:.2f} (95 %)".replace("+-", "-")
    yield "\non the way (warm-up on validation tasks, then GRPO on train tasks)"
    for name in ("success", "adoption"):
        values = [getattr(point, name) for point in found.curve]
        known = [value for value in values if value is not None]
        ends = f"{known[0]:.2f} → {known[-1]:.2f}" if known else ""
        yield f"  {RATES[name]:<14} {blocks(values)}  {ends}"
    silent = sum(found.silent.values())
    reasons = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in found.silent.items())
    yield f"  {found.practised} practice rollouts, {silent} without a gradient{f': {reasons}' if reasons else ''}"
    proposed = _proposed(updates)
    if proposed is not None:
        decision = decode(Decision, dict(proposed["decision"]))
        yield f"\nthe gate  {headline(proposed['release'], decision)}"
        yield from reason_lines(decision.reasons)


def _left_lines(
    status: Status,
    picture: Path,
    updates: list[StepRecord],
    page: Path | None,
    folder: Path,
    right: list[tuple[str, str]],
) -> Iterator[Text]:
    """Lists what the run left behind, and what to look at next."""
    at, proposed = store_flags(status.store_path, status.project), _proposed(updates)
    yield f"\n  picture     {near(picture)}"
    weights = None
    if (checkpoint := _newest(updates)) is not None:
        weights = Path(near(folder.absolute())) / "checkpoints" / checkpoint
        yield f"  checkpoint  {weights}"
    if page is not None:
        yield f"  proof       {near(page)}"
    yield f"  store       {status.store_path}\nnext:"
    if proposed is not None:
        yield f"  holdfast release explain {proposed['release']}{at}   # why, from the ledger"
    if weights is not None:
        yield f"  holdfast policy chat \\\n    --model {shlex.quote(str(weights))}"
    yield f"  holdfast run rollouts {status.run_id} --limit 5{at}   # every try with its reward"
    seen = right[0][1] if right else f"{status.run_id}/proof-0-candidate-0-0"
    yield f"  holdfast reward show {seen}{at}   # what it was paid for"
    yield f"  holdfast run spans {seen}{at}   # what it did"


def _newest(updates: list[StepRecord]) -> str | None:
    """The checkpoint that the run ended with; None where nothing was learnt."""
    made = [str(update.body["checkpoint"]) for update in updates if "checkpoint" in update.body]
    return made[-1] if made else None


def _cells(rate: SuccessRate) -> tuple[str, str]:
    return f"{rate.value:.2f}", f"{rate.interval.low:.2f}-{rate.interval.high:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImproveOptions:
    """What is to be improved, and how far; each option goes over what the settings say."""

    env: Annotated[
        str | None, Option(metavar="NAME", help="An environment of Gymnasium, for a network, in place of CONFIG.")
    ] = None
    reward_range: Annotated[
        tuple[float, float] | None, Option(metavar="LOW HIGH", help="All that an episode of it can return.")
    ] = None
    cost_budget: Annotated[
        float | None, Option(metavar="X", min=0, help="The most that an episode of it may cost on average.")
    ] = None
    model: Annotated[
        str | None, Option(metavar="NAME", help="To begin with: local/NAME, a checkpoint, a release; or an API model.")
    ] = None
    base_url: Annotated[str | None, Option(metavar="URL", help="An OpenAI-compatible endpoint.")] = None
    lora: Annotated[int | None, Option(metavar="RANK", min=0, help="Train adapters of this rank; 0: all weights.")] = (
        None
    )
    device: DeviceOption = None
    dtype: DtypeOption = None
    vllm: Annotated[
        list[str] | None, Option(metavar="URL", help="A vLLM server that samples; repeat it for several.")
    ] = None
    agent: Annotated[str | None, Option(metavar="MODULE:FUNCTION", help="An agent, or FILE.py:FUNCTION.")] = None
    policy: Annotated[
        str | None, Option(metavar="NAME", help="Which line of versions is improved; prompt: as --search.")
    ] = None
    iterations: Annotated[int | None, Option(metavar="N", min=1, max=10_000, help="How many.")] = None
    follow: Annotated[str | None, Option(metavar="RUN", help="Learn from this run's conversations as they arrive.")] = (
        None
    )
    train_on: Annotated[
        str | None, Option(metavar="MODEL|TAG", help="Train on these calls alone; else on the policy's own.")
    ] = None
    waive_safety: Annotated[
        str | None, Option(metavar="WHY", help="Prove without measuring safety; the ledger and every page say why.")
    ] = None
    max_safety_regression: Annotated[
        float | None, Option(metavar="X", min=0, help="How much safety cost an episode may add; 0.05 unless set.")
    ] = None
    budget: Annotated[
        float | None, Option(metavar="SECONDS", min=0.001, help="Of learning; what is there then is proved.")
    ] = None

    def check(self, config: Path | None, resume: str | None) -> None:
        """Checks that one thing is to be done, and that every option means something for it."""
        ways = (("CONFIG", config), ("--env", self.env), ("--resume", resume))
        given = [name for name, value in ways if value is not None]
        if len(given) != 1:
            why = f"and {given[1]} were both given" if given else "is missing"
            remedy = "give the file with the settings, --env NAME or --resume RUN"
            raise BadInput(given[0] if given else "CONFIG", why=why, remedy=remedy)
        if resume is not None and any(getattr(self, field.name) is not None for field in fields(self)):
            raise BadInput("--resume", why="a run keeps the settings it began with", remedy="give no other option")
        of_env = {"reward_range": "improve.prove.reward_range", "cost_budget": "the block constraint"}
        for name, place in of_env.items():
            if config is not None and getattr(self, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise BadInput(flag, why="is of an environment", remedy=f"a file has {place}")
        of_tasks = ("model", "base_url", "lora", "device", "dtype", "vllm", "agent", "follow", "train_on")
        for name in (*of_tasks, "waive_safety"):
            if self.env is not None and getattr(self, name) is not None:
                raise BadInput(
                    f"--{name.replace('_', '-')}",
                    why="means nothing to a network in an environment",
                    remedy="leave it out",
                )

    def settings(self, config: Path, at: StoreOptions, search: PromptOptions) -> OptimizeSettings:
        """Returns the settings of the file, overridden by the options."""
        from holdfast.contracts.settings import ImproveBlock, load_settings, override

        settings = load_settings(config)
        flags = {"policy": self.policy, "iterations": self.iterations, "follow": self.follow, "budget_s": self.budget}
        kept = settings.improve or ImproveBlock()
        if self.policy == PROMPT and "policy" in kept.model_fields_set:
            flags["policy"] = None  # the word says what is searched for: the line keeps the name that the file gives
        block = kept.model_dump() | {k: v for k, v in flags.items() if v is not None}
        if self.max_safety_regression is not None:
            if self.waive_safety is not None:
                raise BadInput("--max-safety-regression", why="safety is waived", remedy="keep one of the two options")
            block["prove"] = {**block["prove"], "max_safety_regression": self.max_safety_regression}
        if search.search or self.policy == PROMPT:
            block["algorithm"] = "prompt_search"
        names = ("model", "base_url", "lora", "device", "dtype", "vllm", "agent", "train_on")
        named = {"safety_waived": self.waive_safety, **{name: getattr(self, name) for name in names}}
        settings = override(settings, improve=block, **named)
        with progress("loading", None):
            from holdfast.pipeline.spec import searches_prompts
        is_search = searches_prompts(settings)
        settings = search.over(settings, is_asked=is_search)
        return settings if is_search else _with_folder(settings, at.store, at.project)

    def in_env(self, env: str) -> RunSpec:
        from holdfast.learn.constrain import Constraint
        from holdfast.learn.control import EnvPPO
        from holdfast.pipeline.control import GIVE_RANGE, MARGIN, EnvProof, improve_env

        constraint = None if self.cost_budget is None else Constraint(budget=self.cost_budget)
        margin = MARGIN if self.max_safety_regression is None else self.max_safety_regression
        proof = EnvProof(reward_range=self.reward_range, max_safety_regression=margin)
        algorithm = EnvPPO(budget_s=self.budget, constraint=constraint)
        iterations = self.iterations or 1
        try:
            return improve_env(env, name=self.policy, algorithm=algorithm, proof=proof, iterations=iterations)
        except BadInput as error:
            if error.remedy != GIVE_RANGE:
                raise
            raise BadInput(
                error.what, why=error.why, remedy="--reward-range LOW HIGH of an episode's return"
            ) from error


def improve(
    at: StoreOptions,
    how: ImproveOptions,
    search: PromptOptions,
    config: Annotated[Path | None, Argument(metavar="CONFIG", help="The settings; else holdfast.toml.")] = None,
    resume: Annotated[str | None, Option(metavar="RUN", help="Take up a run that stopped.")] = None,
) -> Output:
    """Practise on the `optimize` tasks, prove the candidate on the `validate` tasks, accept or hold it, and repeat.
    With --env a network learns by playing, and is proved on episodes with seeds of their own.

    Nothing moves unless a stage is set (improve.stage): 'release promote' takes what is accepted into service. A
    candidate that is not proved better and no less safe is held or refused, with the reason and, where more would
    help, the number of episodes still needed. The next iteration begins with what is live or accepted.

    Where the weights are out of reach (an API model), and with --search or --policy prompt, it is the prompt that is
    improved: prompts are proposed and raced on the `optimize` tasks, and the best one is proved.

    CONFIG says how it learns: by GRPO, by PPO with a critic or by prompt_search (improve.algorithm), with every dial in
    the blocks grpo, rl_optimizer and prompt_search; docs/config.md lists them.
    """
    if config is None and how.env is None and resume is None and Path(CONFIG).is_file():
        config = Path(CONFIG)
    how.check(config, resume)
    if config is None:
        search.refuse("--resume" if resume is not None else "--env")
    settings = None if config is None else how.settings(config, at, search)
    with progress("loading", None), needing("learn"):  # the files first: to load what learns takes seconds
        from holdfast.cli.drive import drive, switched_off
        from holdfast.operate.switches import snapshot_of
        from holdfast.pipeline.control import env_spec_from
        from holdfast.pipeline.plan import forecast_of, tell
        from holdfast.pipeline.spec import comparison_config, improve_spec
    # All is checked before the store is touched.
    spec = None if how.env is None else how.in_env(how.env)
    spec = spec if settings is None else improve_spec(settings)
    with at.open(create=spec is not None and _followed(settings) is None) as opened:
        if resume is not None:
            run = opened.runs.get(resume)
            settings, resume = _of(opened, run), run.id
            if settings is None:
                spec = env_spec_from(opened.whole(run.settings))
            else:
                spec = improve_spec(settings)
        assert spec is not None
        if (other := _followed(settings)) is not None:
            opened.runs.get(other)  # it is there
        if settings is not None and resume is None:
            tell(forecast_of(getattr(spec.program, "keywords", {})["spec"], opened))
        begun = snapshot_of(opened, clock=time.time, environment=os.environ)
        status, _, code = drive(opened, spec, resume)
        updates = opened.steps.of_run(status.run_id)
        decided = [update.body for update in updates if "proposed" in update.body]
        prove = None if settings is None else comparison_config(settings)
        pages = [write_page(Path(body["proof"]), prove) if "proof" in body else None for body in decided]
        now = {body["release"]: opened.releases.get(body["release"]) for body in decided if "release" in body}
        off = switched_off(opened, status.run_id, spec, begun)
        searched = searched_in(opened, status.run_id)
    iterations = [{name: body.get(name) for name in REPORTED} for body in decided]
    data = {"status": status, "iterations": iterations, "pages": pages, **_switched_off(off)}
    data |= {"prompt_optimization": [reported(*one) for one in searched]} if searched else {}
    lines = _improve_lines(status, updates, list(zip(decided, pages, strict=True)), now, str(at), off, searched)
    return Output(data, "\n".join(lines), code)


REPORTED = ("iteration", "release", "decision", "evidence", "proof", "verdict", "why")


def _with_folder(settings: OptimizeSettings, store: str, project: str) -> OptimizeSettings:
    """Replaces a model that is a checkpoint or a release of this store by the folder of its weights."""
    from holdfast.pipeline.spec import LOCAL
    from holdfast.pipeline.versions import weights_of

    provider, _, name = (settings.model or "").partition("/")
    if provider != LOCAL or Path(name).is_dir():
        return settings
    try:
        opened = StoreOptions(store, project).existing()
    except NotFound:  # there is none yet, so it holds no weights
        return settings
    with opened:
        return settings.model_copy(update={"model": f"{LOCAL}/{weights_of(opened, name)}"})


def _of(store: Store, run: RunRecord) -> OptimizeSettings | None:
    """None: of a run in an environment."""
    from holdfast.contracts.settings import settings_from
    from holdfast.pipeline.control import is_env_run

    if run.kind == "improve" and is_env_run(run.settings):
        return None
    if run.kind != "improve":
        raise BadInput(f"run {run.id}", why=f"is of kind {run.kind}", remedy="resume it with its own command")
    return settings_from(store.whole(run.settings), f"settings of {run.id}")


def _followed(settings: OptimizeSettings | None) -> str | None:
    return None if settings is None or settings.improve is None else settings.improve.follow


def _improve_lines(
    status: Status,
    updates: list[StepRecord],
    decided: list[tuple[Any, Path | None]],
    now: Mapping[str, Release],
    at: str,
    off: Sequence[Off],
    searched: Sequence[tuple[Mapping[str, Any], Path]] = (),
) -> Iterator[str]:
    """At most 80 columns. `decided` has each iteration with its page, `now` where its version is, `searched` the search
    for a prompt of each with its page."""
    from holdfast.cli.drive import switched_off_lines
    from holdfast.pipeline.run import NO_SUCCESS

    yield f"{status.run_id} {status.run_state.replace('_', ' ')} in {status.elapsed_s:.0f} s"
    yield from switched_off_lines(off, at)
    if status.error is not None:
        is_vain, is_spent = status.error.startswith(NO_SUCCESS), status.error.startswith("budget: ")
        yield from folded(status.error if is_vain or is_spent else f"{status.error}, at {status.lesson}")
        yield "next:"
        following = f"holdfast improve --resume {status.run_id}{at}"
        if is_vain or (is_spent and not searched):
            following = f"holdfast run rollouts {status.run_id} --status failed{at}"
        elif is_spent:  # taken up, it would stop again
            following = f"holdfast policy show {status.run_id}{at}"
        yield from step(following, "what was tried" if is_spent else "")
        return
    practised = [update.body for update in updates if "learning_s" in update.body]
    rewards = [body["reward"] for body in practised if body.get("reward") is not None]
    prompts = {search["iteration"]: (search, page) for search, page in searched}
    if rewards:
        moved = f"mean reward {rewards[0]:.3f} → {rewards[-1]:.3f} (of other tasks each step)"
        yield f"practice: {len(practised)} steps, {moved}"
    told = [body.get("rl_optimizer", {}).get("explained_variance") for body in practised]
    if explained := [one for one in told if one is not None]:
        yield f"critic: explained variance of the returns {explained[0]:.2f} → {explained[-1]:.2f}"
    for body, page in decided:
        yield f"\niteration {body['iteration'] + 1}"
        yield from search_lines(*prompts[body["iteration"]]) if body["iteration"] in prompts else ()
        if "decision" not in body:
            yield from folded(str(body["why"]), "  ")
            continue
        yield from decision_lines(body["release"], decode(Decision, body["decision"]), now[body["release"]], "  ", at)
        yield from () if page is None else left("page", page, "  ")
    if made := [body for body, _ in decided if "release" in body]:
        yield "next:"
        last = now[made[-1]["release"]]
        if last.stage is Stage.CANDIDATE and decode(Decision, made[-1]["decision"]).open:
            yield from into_service(last.id, last.kind, at)
        elif last.stage is not Stage.CANDIDATE and last.kind is not PolicyKind.NETWORK:  # which acts elsewhere
            yield from step(f"holdfast release serve {last.policy}{at}", "the live version")
        yield from step(f"holdfast release explain {last.id}{at}", "why, from the ledger")
