"""The calls that run an agent: improve, start, compare, collect.

Everything that can be wrong is found before the store is opened. The programs are the pipeline's own; what comes of
them is read by `results`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack

from holdfast.api.driving import Setup, Started, begin, drive_spec, join_others, launch, prepare, run_spec, runtime_for
from holdfast.api.inputs import (
    Budget,
    Options,
    TaskScore,
    agent_from,
    client,
    described,
    held_out,
    measured_on,
    options_of,
    policy_from,
    task_set,
    weighing_of,
)
from holdfast.api.results import Comparison, Proof, Result, compare_stored, comparison_of, result_of
from holdfast.api.stored import Run, StoreAddress, run_of, who
from holdfast.collect.agent import Context
from holdfast.collect.tasks import TaskSet
from holdfast.contracts.agent import Agent, is_async
from holdfast.contracts.algorithm import Algorithm, Work
from holdfast.contracts.errors import BadInput, NotFound
from holdfast.contracts.evidence import Decision, Evidence
from holdfast.contracts.lines import say
from holdfast.contracts.policy import Policy
from holdfast.contracts.records import decode, loads
from holdfast.contracts.release import Stage, check_name
from holdfast.contracts.rollout import Split
from holdfast.contracts.task import TaskItem
from holdfast.learn.prompt_search import PromptSearch
from holdfast.pipeline import improve as loop
from holdfast.pipeline.collect import collect as collect_step
from holdfast.pipeline.control import EnvProof, improve_env
from holdfast.pipeline.held_out import HeldOut, check_cluster
from holdfast.pipeline.more import (
    anchor_sides,
    end_of,
    request_again,
    samples_of,
    tell_anchor,
    unfinished_after,
    unmeasured,
)
from holdfast.pipeline.paired import KIND, Continued, PairedEvaluation, charge_in, how_of, measured, policies_of
from holdfast.pipeline.paired import compare as compare_step
from holdfast.pipeline.plan import forecast_of, tell
from holdfast.pipeline.promote import comparison_config_from, promote
from holdfast.pipeline.prompts import connected, paid_by, proof_part, searching, too_small
from holdfast.pipeline.prove import ProveConfig, prove
from holdfast.pipeline.run import DurableRun as Driven
from holdfast.pipeline.versions import resolve
from holdfast.policies.prompt import Prompt
from holdfast.promote.gate import WAIVED, Criteria
from holdfast.prove.comparison import ComparisonConfig
from holdfast.prove.plan import Forecast, forecast
from holdfast.store.store import Store

T = TypeVar("T")
BATCH = 50  # tasks between two looks
ARMS = ("baseline", "candidate")
OF_PROOF = ("alpha", "min_effect", "max_safety_regression", "reward_range")  # in an environment
PROVING = ("seeds", "alpha", "min_effect", "max_safety_regression", "reward_range", "cluster")


# Improve -------------------------------------------------------------------------------------------------------------


def improve(
    agent: Any = None,
    tasks: Any = None,
    *,
    name: str | None = None,
    scorers: Any = None,
    env: Any = None,
    policy: Policy | None = None,
    algorithm: Any = None,
    model: str | None = None,
    base_url: str | None = None,
    budget: Budget | None = None,
    safety: Any = None,
    **options: Unpack[Options],
) -> Result:
    """Makes a policy better and proves it: collect, learn, prove on held-out tasks, decide.

    The candidate is accepted or held, and nothing moves: `result.promote()` takes it into service. After an
    interrupt the same call goes on where it stopped.

    Args:
        agent: A function of (task, ctx), plain or async, or "module:function".
        tasks: What `hf.tasks` gives; some of them must be held out.
        name: The line of versions to improve. A candidate is proved against the line's live version.
        scorers: Functions of (task, answer[, trace]), names such as "exact", or `hf.Scorer(…)`; one alone is the gate.
        env: Instead of agent, tasks and scorers: a Gymnasium environment in which an `hf.Network()` learns, by its name
            or a function that makes one.
        policy: `hf.Prompt(…)` for a model behind an address, or `hf.Model(…)` whose weights learn.
        algorithm: For prompts "prompt_search" or `hf.PromptSearch(…)` (their default), or `hf.Candidates([…])`; for
            models "grpo" or `hf.GRPO(…)` (their default), "ppo" or `hf.TurnPPO(…)`; or an object of your own with
            `advantages(group)` or `propose(history)`.
        model: A prompt's model, as the endpoint at `base_url` calls it.
        base_url: The address of an OpenAI-compatible endpoint.
        budget: `hf.Budget(rollouts=…)` for learning and proof together.
        safety: Scorers that give a cost (0 is safe), or `hf.Waived("why")`. The default scorers look for secrets told,
            planted instructions obeyed and forbidden tools called.
    """
    return start(
        agent,
        tasks,
        name=name,
        scorers=scorers,
        env=env,
        policy=policy,
        algorithm=algorithm,
        model=model,
        base_url=base_url,
        budget=budget,
        safety=safety,
        **options,
    ).wait()


def start(
    agent: Any = None,
    tasks: Any = None,
    *,
    name: str | None = None,
    scorers: Any = None,
    env: Any = None,
    policy: Policy | None = None,
    algorithm: Any = None,
    model: str | None = None,
    base_url: str | None = None,
    budget: Budget | None = None,
    safety: Any = None,
    **options: Unpack[Options],
) -> Started[Result]:
    """As `improve`, but it returns at once: `run.events()`, `run.wait()`, `run.stop()`."""
    join_others()
    if env is not None:
        given = {"agent": agent, "tasks": tasks, "scorers": scorers, "model": model, "base_url": base_url}
        given |= {"budget": budget, "safety": safety}
        return start_env(env, policy, name=name, algorithm=algorithm, given=given, options=options)
    if name is None:
        raise BadInput("name", why="is missing", remedy='name the line of versions, as in name="support"')
    check_name("name", name)
    if scorers is None:
        raise BadInput("scorers", why="there are none", remedy="give at least one: what is not measured cannot improve")
    chosen = options_of(options, *PROVING, "iterations", "stage")
    task_list, base = task_set(tasks), policy_from(policy, model)
    limits = Budget() if budget is None else budget
    asked = algorithm_for(algorithm, base)
    if "vllm" in chosen:
        from holdfast.pipeline.spec import with_importance_cap

        asked = with_importance_cap(asked)
    learning, proving = _divided(base, asked, task_list, limits, chosen)
    learning = connected(learning, lambda named, at: client(named, at or base_url))
    given = {"name": name, "algorithm": described(asked), "budget": limits.rollouts, **limits.in_tokens}
    setup = prepare(
        given,
        agent=agent,
        tasks=task_list,
        scorers=scorers,
        safety=safety,
        policies=[base],
        base_url=base_url,
        options=chosen,
    )
    assert isinstance(setup.score, TaskScore)
    spec = _improve_spec(setup, name, base, learning, proving, weighing_of(setup.score, chosen))
    tell(_forecast(setup.place, spec))
    read = partial(_result, setup, spec)
    return launch(setup, "improve", partial(_improve, spec), read, model_ref=model or base.version)


def _forecast(place: StoreAddress, spec: loop.Spec) -> Forecast:
    """Forecasts the proof with what the store knows of the line: its account and the live version's rate."""
    try:
        store = place.open()
    except NotFound:  # there is none yet
        return forecast_of(spec)
    with store:
        return forecast_of(spec, store)


def _result(setup: Setup, spec: loop.Spec, store: Store, run: Run) -> Result:
    return replace(
        result_of(store, run), more=partial(prove_more, setup, spec), anchored=partial(prove_anchor, setup, spec)
    )


async def _improve(spec: loop.Spec, run: Driven) -> None:
    await loop.improve(run, spec)


def _improve_spec(
    setup: Setup, name: str, base: Policy, algorithm: Algorithm, proving: Sequence[HeldOut], how: ComparisonConfig
) -> loop.Spec:
    options = setup.options
    check_cluster(proving, options.get("cluster"))
    criteria = Criteria(max_p_value=options["alpha"], max_safety_regression=how.max_safety_regression)
    return loop.Spec(
        line=name,
        policy=base,
        algorithm=algorithm,
        tasks=[item.row() for item in setup.tasks.train],
        held_out=proving,
        prove=replace(_prove_config(options, how), least=criteria.least),
        criteria=criteria,
        iterations=options["iterations"],
        stage=None if options["stage"] is None else Stage(options["stage"]),
        timeout_s=options["timeout_s"],
        manifest={} if setup.waived is None else {WAIVED: setup.waived},
        suite=(name, "1"),
    )


def _prove_config(options: Options, how: ComparisonConfig) -> ProveConfig:
    return ProveConfig(
        how=how,
        seeds=tuple(range(options["seeds"])),
        batch=BATCH,
        cluster=options.get("cluster"),
        chance=str(options["seed"]),
        timeout_s=options["timeout_s"],
        is_timed=not options["deterministic"],
    )


def algorithm_for(given: Any, base: Policy) -> Any:
    """Ours by name or as an object, or somebody's own with `advantages` or `propose`."""
    is_prompt = isinstance(base, Prompt)
    if given == "prompt_search" or (given is None and is_prompt):
        given = PromptSearch()
    elif given is None or given == "grpo":
        from holdfast.learn.grpo import GRPO

        given = GRPO()
    elif given == "ppo":
        from holdfast.learn.turns import TurnPPO

        given = TurnPPO()
    if isinstance(given, type):
        raise BadInput(f"algorithm {given.__name__}", why="is a class", remedy=f"make one: {given.__name__}()")
    if callable(getattr(given, "advantages", None)):
        given = _by_advantages(given)
    elif callable(getattr(given, "propose", None)) and not hasattr(given, "tell"):
        given = PromptSearch(proposers=[given])
    if not all(callable(getattr(given, name, None)) for name in ("start", "ask", "tell")):
        what = repr(given) if isinstance(given, str) else type(given).__name__
        remedy = (
            'use "grpo", "ppo", "prompt_search", hf.GRPO(…), hf.TurnPPO(…), hf.PromptSearch(…), hf.Candidates([…]), '
        )
        remedy += "or an object with advantages(group) or propose(history)"
        if given in ("sft", "dpo", "reward_model"):
            why, call = "learns from examples, not from practice", f"hf.{given}(policy, …)"
            raise BadInput(f"algorithm {what}", why=why, remedy=f"{call} gives the policy to go on with")
        raise BadInput(f"algorithm {what}", why="is unknown", remedy=remedy)
    given.start(base)  # what it cannot learn from is found here
    return given


def _by_advantages(given: Any) -> Any:
    """GRPO with somebody's own advantages; its other settings are attributes of the same names, where there are any."""
    from holdfast.learn.grpo import GRPO, GrpoDials

    credit = given.advantages
    if isinstance(given, GRPO):
        return replace(given, credit=credit)
    names = ("steps", "tasks", "samples", "train_on", *(field.name for field in fields(GrpoDials)))
    return GRPO(credit=credit, **{name: getattr(given, name) for name in names if hasattr(given, name)})


def _divided(
    base: Policy, algorithm: Any, tasks: TaskSet, limits: Budget, options: Options
) -> tuple[Any, Sequence[HeldOut]]:
    """The algorithm and the held-out tasks, within a budget; two thirds of it at most are the proof's."""
    proving, rollouts = held_out(tasks), limits.rollouts
    if not tasks.train:
        raise BadInput("tasks", why="there are none to learn from", remedy="hold out fewer, as in held_out=0.4")
    if isinstance(algorithm, PromptSearch):
        rows = [item.row() for item in tasks.held_out]  # with what is expected: no prompt may name it
        algorithm = replace(algorithm, held_out=rows, seed=options["seed"], is_timed=not options["deterministic"])
        if limits.in_tokens:
            algorithm = paid_by(algorithm, limits.tokens, limits.money, limits.prices, options["iterations"])
    elif hasattr(algorithm, "held_out"):
        algorithm = replace(algorithm, held_out=[item.input for item in tasks.held_out], seed=options["seed"])
    if limits.in_tokens and not isinstance(algorithm, PromptSearch):
        name, limit = next(iter(limits.in_tokens.items()))
        raise BadInput(f"budget: {name} = {limit:g}", why="bounds the search for prompts alone", remedy="give rollouts")
    if rollouts is None:
        return algorithm, proving
    each = 2 * options["seeds"]
    kept = proof_part(rollouts, len(proving), options["seeds"])
    learning = (rollouts - kept) // options["iterations"]
    if isinstance(algorithm, PromptSearch):
        algorithm = searching(algorithm, base, rollouts, learning)
    elif hasattr(algorithm, "steps") and hasattr(algorithm, "samples"):
        step = algorithm.tasks * algorithm.samples
        if learning < step:
            raise too_small(rollouts, f"{learning} are left to learn from, and one step takes {step}")
        algorithm = replace(algorithm, steps=min(algorithm.steps, learning // step))
    return algorithm, proving[: kept // each]


# Collect -------------------------------------------------------------------------------------------------------------


def collect(
    agent: Any,
    tasks: Any,
    *,
    scorers: Any = None,
    policy: Policy | None = None,
    model: str | None = None,
    base_url: str | None = None,
    safety: Any = None,
    **options: Unpack[Options],
) -> Run:
    """Run the agent on all tasks, once with each seed, and keep what it did: nothing is learnt.

    The run's `rollouts()` are a table; `hf.compare` compares it with another one, `hf.rescore` scores it again.
    """
    chosen = options_of({"seeds": 1, **options}, "seeds")
    base = policy_from(policy, model)
    setup = prepare(
        {}, agent=agent, tasks=tasks, scorers=scorers, safety=safety, policies=[base], base_url=base_url, options=chosen
    )
    program = partial(_collect, setup, base)
    return launch(setup, "collect", program, lambda store, run: Run(run.place, run.id), model or base.version).wait()


async def _collect(setup: Setup, policy: Policy, run: Driven) -> None:
    options = setup.options
    work = [
        Work(
            name=f"task-{place}-{seed}",
            input=task.row(),
            policy=policy,
            group=task.id,
            split=task.split or Split.TRAIN,
            seed=f"{options['seed']}/{task.id}/{seed}",
        )
        for place, task in enumerate(setup.tasks)
        for seed in range(options["seeds"])
    ]
    run.planned = len(work)
    await run.step("collect", collect_step, work, 1, options["timeout_s"], title="collecting")


# Compare -------------------------------------------------------------------------------------------------------------


def compare(
    a: Any,
    b: Any,
    tasks: Any = None,
    *,
    agent: Any = None,
    scorers: Any = None,
    policy: Policy | None = None,
    model: str | None = None,
    base_url: str | None = None,
    safety: Any = None,
    **options: Unpack[Options],
) -> Comparison:
    """Whether b is better than a: on the same tasks with the same chance, with a verdict that holds at every look.

    `compare("run-3", "run-5")` compares two stored runs, task by task, and runs nothing. With tasks, a and b are two
    agents, two policies (`hf.Prompt`, `hf.Model`) or the names of two models; for the last two give the `agent`. The
    held-out tasks are used; all of them, where none are held out.
    """
    chosen = options_of(options, *PROVING)
    if tasks is None:
        if callable(a) or callable(b) or agent is not None or scorers is not None:
            raise BadInput("compare", why="there are no tasks", remedy="give tasks; without any, give two stored runs")
        place = StoreAddress(str(chosen["store"]), chosen["project"])
        payload: dict[str, Any] = {
            name: chosen.get(name) for name in ("alpha", "max_safety_regression", "reward_range")
        }
        return compare_stored(run_of(a, place), run_of(b, place), **payload)
    if scorers is None:
        raise BadInput("scorers", why="there are none", remedy="give at least one: what is not measured has no better")
    arms = _arms(a, b, agent, policy, model)
    setup = prepare(
        {"arms": list(arms.names)},
        agent=arms.agents,
        made=arms.agent,
        tasks=tasks,
        scorers=scorers,
        safety=safety,
        policies=arms.policies,
        base_url=base_url,
        options=chosen,
    )
    assert isinstance(setup.score, TaskScore)
    check_cluster(measured_on(setup.tasks), chosen.get("cluster"))
    how = weighing_of(setup.score, chosen)
    foreseen = forecast(how, tasks=len(measured_on(setup.tasks)), seeds=chosen["seeds"])
    if not foreseen.is_provable:
        for line in foreseen.lines:
            say(f"warning: {line}")
    program = partial(_compare, setup, how)
    read = partial(comparison_of, names=arms.names, how=how, waived=setup.waived)
    return launch(setup, "compare", program, read, f"{arms.names[1]} against {arms.names[0]}").wait()


async def _compare(setup: Setup, how: ComparisonConfig, run: Driven) -> None:
    a, b = setup.policies
    found, config = measured_on(setup.tasks), _prove_config(setup.options, how)
    run.planned = 2 * len(found) * len(config.seeds)
    await prove(run, "prove", a, b, found, config)
    run.planned = 0  # those that an early verdict made needless are not waited for


@dataclass(frozen=True, kw_only=True)
class Arms:
    names: tuple[str, str]
    policies: tuple[Policy, Policy]
    agents: tuple[Any, ...]
    agent: Agent


def _arms(a: Any, b: Any, agent: Any, policy: Policy | None, model: str | None) -> Arms:
    """Two agents with one policy, or one agent with two policies or models."""
    if agent is None:
        if not (callable(a) and callable(b)):
            why = "an agent is needed to try two policies or models"
            raise BadInput("agent", why=why, remedy="give agent=…, or two agents as the first arguments")
        base = policy_from(policy, model)
        names = _distinct(*(str(getattr(one, "__name__", type(one).__name__)) for one in (a, b)))
        return Arms(names=names, policies=(base, base), agents=(a, b), agent=_either(agent_from(a), agent_from(b)))
    policies = [policy_from(policy, one) if isinstance(one, str) else policy_from(one, model) for one in (a, b)]
    if policies[0].version == policies[1].version:
        raise BadInput("compare", why="both are the same policy", remedy="give two that differ")
    names = _distinct(*(one if isinstance(one, str) else _title(one) for one in (a, b)))
    return Arms(names=names, policies=(policies[0], policies[1]), agents=(agent,), agent=agent_from(agent))


def _title(policy: Policy) -> str:
    return "prompt" if isinstance(policy, Prompt) else policy.version


def _distinct(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a != b else (f"{a} (a)", f"{b} (b)")


def _either(a: Agent, b: Agent) -> Agent:
    """The agent of the arm that a rollout belongs to, by its name."""

    def choose(ctx: Context) -> Agent:
        return a if ctx.assignment.rollout.partition("/")[2].startswith(ARMS[0]) else b

    def now(row: Any, ctx: Context) -> Any:
        return choose(ctx)(row, ctx)

    async def later(row: Any, ctx: Context) -> Any:
        chosen = choose(ctx)
        return await chosen(row, ctx) if is_async(chosen) else await asyncio.to_thread(chosen, row, ctx)

    return later if is_async(a) or is_async(b) else now


# In an environment of Gymnasium --------------------------------------------------------------------------------------


def start_env(
    env: Any, policy: Any, *, name: str | None, algorithm: Any, given: dict[str, Any], options: Options
) -> Started[Result]:
    """`given` is what belongs to agents and tasks: an environment has none of it."""
    if strange := [key for key, value in given.items() if value is not None]:
        why = "is for agents and tasks, and an environment has neither"
        raise BadInput(strange[0], why=why, remedy="leave it out, or leave env out")
    chosen = options_of(options, *OF_PROOF, "iterations", "stage")
    of_proof: dict[str, Any] = {option: chosen.get(option) for option in OF_PROOF}
    proof = EnvProof(**{option: value for option, value in of_proof.items() if value is not None})
    spec = improve_env(
        env,
        policy,
        name=name,
        algorithm=algorithm,
        proof=proof,
        iterations=chosen["iterations"],
        stage=None if chosen["stage"] is None else Stage(chosen["stage"]),
        seed=chosen["seed"],
    )
    return begin(StoreAddress(str(chosen["store"]), chosen["project"]), spec, result_of)


# A way on for a candidate that is held: further tasks, measured by the process that has the agent and the scorers ----


def prove_more(setup: Setup, spec: loop.Spec, result: Result, tasks: Any) -> Result:
    assert result.release is not None
    with setup.place.open() as store:
        evaluation = _evaluation(setup, spec, result, tasks, store)
        policies = policies_of(store, evaluation)
        files = store.files
    runtime = runtime_for(setup.agent, setup.score, policies, setup.base_url, setup.options, files)
    again = replace(setup, runtime=runtime, settings=evaluation.settings)
    made = run_spec(again, KIND, partial(compare_step, evaluation, policies), f"{result.release}, further tasks")
    return drive_spec(again, made, partial(_decided, setup, spec, result, evaluation)).wait()


def prove_anchor(setup: Setup, spec: loop.Spec, against: str | None) -> Comparison:
    """Measures the live version against its anchor on the held-out tasks, with an α of its own."""
    suite = (*spec.suite, loop.sha256_of([one.record() for one in spec.held_out]))
    with setup.place.open() as store:
        sides, files = anchor_sides(store, spec.line, against), store.files
        made = PairedEvaluation(
            **sides,
            **_as_measured(setup, spec, tuple(spec.held_out), suite, str(spec.line)),
            how=spec.prove.how,
            is_charged=True,
            anchor_of=spec.line,
        )
        policies = policies_of(store, made)
    runtime = runtime_for(setup.agent, setup.score, policies, setup.base_url, setup.options, files)
    again = replace(setup, runtime=runtime, settings=made.settings)

    def read(store: Store, run: Run) -> Comparison:
        if (message := tell_anchor(store, made, run.id, who=who(), now=time.time())) is not None:
            say(message)
        return comparison_of(store, run, made.versions, how_of(store, run.id), setup.waived)

    title = f"{made.candidate.name} against its anchor"
    return drive_spec(again, run_spec(again, KIND, partial(compare_step, made, policies), title), read).wait()


def _as_measured(
    setup: Setup, spec: loop.Spec, tasks: tuple[HeldOut, ...], suite: tuple[str, str, str], root: str
) -> dict[str, Any]:
    """Builds the fields of an evaluation that uses the agent, scorers and proof of a call."""
    options, seeds = setup.options, tuple(spec.prove.seeds)
    source = {
        "api": setup.settings["api"],
        "root": root,
        "tasks": [task.record() for task in tasks],
        "seeds": list(seeds),
        "evidence": list(suite),
        "agent": setup.settings["agent"],
        "scorers": setup.settings["scorers"],
    }
    return {
        "tasks": tasks,
        "seeds": seeds,
        "suite": suite,
        "batch": spec.prove.batch,
        "stop_early": True,
        "cluster": spec.prove.cluster,
        "seed": options["seed"],
        "workers": options["workers"],
        "timeout_s": options["timeout_s"],
        "source": described(source),
    }


def _evaluation(setup: Setup, spec: loop.Spec, result: Result, tasks: Any, store: Store) -> PairedEvaluation:
    assert result.release is not None
    last, unfinished = end_of(store, result.run.id, result.release)
    iteration = int(result.details["iteration"]) if last == result.run.id and "iteration" in result.details else None
    so_far = measured(store, last, iteration=iteration)
    evidence = loads(Evidence, store.blobs.get(str(result.details["evidence"])))
    kept = samples_of(store, store.releases.get(result.release)) or {}
    fresh = _fresh(setup, tasks, {episode.task for episode in so_far.before}, store, last, spec.prove.cluster)
    name, version, sha256 = kept["suite"]
    suite = (name, version, loop.sha256_of([sha256, *(one.record() for one in fresh)]))
    made = PairedEvaluation(
        **_as_measured(setup, spec, tuple(fresh), suite, result.run.id),
        baseline=resolve(store, evidence.baseline),
        candidate=resolve(store, evidence.candidate),
        how=comparison_config_from(kept["weighing"]),  # as it was judged
        least=spec.prove.least,
        continues=Continued(run=last, iteration=iteration, planned=so_far.planned, looks=so_far.looks),
        is_charged=charge_in(store, last, iteration) is not None,
    )
    if unfinished is not None and store.whole(unfinished.settings) != json.loads(json.dumps(made.settings)):
        raise unfinished_after(last, unfinished, "finish it first, by the same call that began it")
    return made


def _fresh(setup: Setup, given: Any, done: set[str], store: Store, last: str, cluster: str | None) -> Sequence[HeldOut]:
    """The tasks that nobody has measured yet, copies of measured ones left out, as by 'holdfast prove more'."""
    offered: Sequence[TaskItem] = setup.tasks.held_out
    if given is not None:
        found = task_set(given)
        offered = found.held_out or found.train
    known = [HeldOut(id=item.id, input=item.row()) for item in setup.tasks.held_out if item.id in done]
    run = store.runs.get(last)
    while (continued := run.settings.get("continues")) is not None:
        known += map(HeldOut.from_record, store.whole(run.settings)["tasks"])
        run = store.runs.get(continued["run"])
    tasks = [HeldOut(id=item.id, input=item.row()) for item in offered]
    learnt, remedy = [item.row() for item in setup.tasks.train], "give others, as in result.prove(hf.tasks(…))"
    return unmeasured(tasks, known, learnt, "tasks", cluster, remedy=remedy)


def _decided(
    setup: Setup, spec: loop.Spec, result: Result, evaluation: PairedEvaluation, store: Store, run: Run
) -> Result:
    """Asks the gate again with all that is measured by now."""
    release, charge = store.releases.get(str(result.release)), charge_in(store, run.id)
    about: dict[str, Any] = {"run": run.id, "suite": evaluation.suite, "charge": charge, "to": spec.stage}
    request = request_again(store, release, measured(store, run.id), **about, now=time.time())
    published = asyncio.run(promote(store, request, clock=time.time, who=who()))
    evidence = loads(Evidence, store.blobs.get(str(published["evidence"])))
    decision, proof = decode(Decision, published["decision"]), Proof(evidence, Path(published["proof"]))
    return replace(result, run=run, decision=decision, proof=proof, details=published)
