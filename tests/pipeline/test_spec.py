"""From settings to a run: what runs, where, with which model and at which pace; what is wrong is found here."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.inputs import TaskScore
from holdfast.collect.agent import Context, OwnScore, Tracer, no_model
from holdfast.collect.executors import InProcess, plainly, run_one
from holdfast.collect.processes import ProcessExecutor, ProcessRecipe
from holdfast.collect.questions import exact_match
from holdfast.contracts.agent import Agent
from holdfast.contracts.errors import BadInput, Fault
from holdfast.contracts.executor import Assignment, Outcome
from holdfast.contracts.flag import ALL_ON, Features
from holdfast.contracts.reward import RewardBreakdown
from holdfast.contracts.rollout import AttemptState, Backoff, RolloutState, Split
from holdfast.contracts.settings import (
    ConstraintBlock,
    GrpoBlock,
    OptimizeSettings,
    SafetyReward,
    load_settings,
    settings_from,
)
from holdfast.learn.constrain import Constraint
from holdfast.pipeline.context import Endpoints, Runtime
from holdfast.pipeline.run import RunSpec
from holdfast.pipeline.spec import (
    SafeguardedScorer,
    comparison_config,
    constraint_of,
    improve_spec,
    optimize_spec,
    policy_for,
    score_for,
    watched,
)
from holdfast.policies.model import Model
from holdfast.policies.prompt import Prompt
from holdfast.reward import ready
from holdfast.reward.safety import SafetyPolicy
from holdfast.reward.scorers import Scorer, combine, with_safety
from holdfast.store.artifacts import FolderArtifacts
from holdfast.store.store import Store, open_store
from holdfast.workloads.arithmetic import agent as arithmetic
from holdfast.workloads.tooluse.agent import agent as tooluse
from holdfast.workloads.tooluse.score import score as tooluse_score
from tests.collect.agents import no_score
from tests.collect.scene import assignment
from tests.endpoint import Endpoint, completion, serving
from tests.pipeline.driving import echo
from tests.pipeline.scene import ran

ARITHMETIC = "holdfast.workloads.arithmetic:agent"
TOOLUSE = "holdfast.workloads.tooluse.agent:agent"
EXAMPLE = Path(__file__).parents[2] / "examples/arithmetic.json"


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving() as found:
        yield found


def settings(**fields: Any) -> OptimizeSettings:
    given = {"optimize": [{"prompt": "2 + 2?", "expected": "4"}, "3 + 3?"], "validate": ["4 + 4?"]}
    return OptimizeSettings.model_validate({**given, **fields})


def planned(**fields: Any) -> RunSpec:
    return optimize_spec(settings(**fields))


async def test_tasks_are_named_by_split_and_number(store: Store) -> None:
    off = {"enabled": False}
    spec = planned(agent=ARITHMETIC, max_attempts=5, attempt_timeout_secs=9.0, max_faults=7, rl_optimizer=off)
    status = await ran(store, spec)
    rollouts = store.views.rollouts(status.run_id, most=9)
    steps = store.steps.of_run(status.run_id)
    assert [(one.name, one.split) for one in rollouts] == [
        ("train-1", Split.TRAIN),
        ("train-2", Split.TRAIN),
        ("val-1", Split.VAL),
    ]
    assert rollouts[0].input == {"prompt": "2 + 2?", "expected": "4"}
    assert {(one.max_attempts, one.timeout_s, one.max_faults) for one in rollouts} == {(5, 9.0, 7)}
    assert [one.name for one in steps] == ["begin", "collect"]  # and nothing is learnt


def test_the_pace_is_that_of_the_settings() -> None:
    plan = planned(
        agent=ARITHMETIC,
        heartbeat_interval_ms=200,
        retry_initial_ms=100,
        retry_max_ms=400,
        completion_timeout_secs=7.0,
        completion_poll_interval_ms=20,
        worker_count=6,
        queue_limit=9,
        seed=11,
    )
    assert (plan.timing.heartbeat_s, plan.timing.lease_s) == (0.2, 1.0)  # a lease is five beats
    assert plan.timing.backoff == Backoff(initial_s=0.1, cap_s=0.4)
    assert (plan.timeout_s, plan.look_s, plan.workers, plan.queue_limit, plan.seed) == (7.0, 0.02, 6, 9, 11)
    plan.runtime.close()


def test_a_spec_keeps_its_settings_so_that_it_can_be_made_again() -> None:
    first = optimize_spec(load_settings(EXAMPLE))
    again = optimize_spec(OptimizeSettings.model_validate(first.settings))
    assert (again.settings, again.sha256()) == (first.settings, first.sha256())
    assert first.model_ref == f"agent/{ARITHMETIC}"
    assert planned(agent=ARITHMETIC).sha256() != first.sha256()


async def outcome(plan: RunSpec, task: Any) -> Outcome:
    seat = plan.runtime.slot()
    await seat.prepare()
    found = await seat.run(assignment(task), lambda span: None)
    seat.close()
    plan.runtime.close()
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["tasks", "processes"])
async def test_the_agent_answers_and_is_scored_by_the_expected_text(kind: str) -> None:
    found = await outcome(planned(agent=ARITHMETIC, worker_kind=kind), {"prompt": "2 + 2?", "expected": "4"})
    assert (found.output, found.reward) == ("The answer is 4.", 0.0)


@pytest.mark.parametrize("kind", ["tasks", "processes"])
async def test_a_model_is_asked_at_its_endpoint_with_the_key_from_the_environment(
    kind: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    plan = planned(model="openai/tiny", base_url=endpoint.url, worker_kind=kind)
    assert plan.model_ref == "openai/tiny"
    found = await outcome(plan, {"prompt": "hi", "expected": "echo: hi"})
    assert (found.output, found.reward) == ("echo: hi", 1.0)
    assert endpoint.asked[0].body["model"] == "tiny"  # only openai/ is a prefix
    assert endpoint.asked[0].headers["Authorization"] == "Bearer s3cret"


@pytest.mark.parametrize("kind", ["tasks", "processes"])
async def test_agents_are_told_where_the_proxy_is(kind: str) -> None:
    plan = planned(agent="tests.collect.agents:do", worker_kind=kind, proxy_url="http://127.0.0.1:8788")
    found = await outcome(plan, {"do": "where"})
    assert found.output[0] == "http://127.0.0.1:8788/rollout/run-1%2Ft/attempt/1/v1"


async def test_a_model_of_another_house_keeps_its_whole_name(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
    await outcome(planned(model="qwen/qwen-3"), {"prompt": "hi"})
    assert endpoint.asked[0].body["model"] == "qwen/qwen-3"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "these settings: name neither an agent nor a model; give --agent or --model"),
        ({"model": "qwen/qwen-3"}, "--model qwen/qwen-3: no endpoint is known for it; give --base-url URL, or name"),
        ({"agent": "no_such_module:f"}, "agent no_such_module:f: cannot import no_such_module: "),
        (
            {"agent": f"{ARITHMETIC}s"},
            "agent holdfast.workloads.arithmetic:agents: holdfast.workloads.arithmetic has no",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_started(fields: dict[str, Any], message: str) -> None:
    for kind in ("tasks", "processes"):
        with pytest.raises(BadInput, match=f"^{re.escape(message)}"):
            planned(worker_kind=kind, **fields)


@pytest.mark.parametrize("kind", ["tasks", "processes"])
def test_a_bad_address_in_the_environment_is_found_before_anything_is_started(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:8000")
    with pytest.raises(BadInput, match="base URL 'localhost:8000': is not http"):
        planned(model="openai/tiny", worker_kind=kind)
    monkeypatch.delenv("OPENAI_BASE_URL")
    planned(model="openai/tiny", worker_kind=kind).runtime.close()  # the public address, for its own models


# Models of our own


async def test_a_local_model_answers_within_the_process() -> None:
    plan = planned(model="local/sprout", attempt_timeout_secs=30.0)
    assert plan.model_ref == "local/sprout"
    found = await outcome(plan, {"prompt": "hi", "expected": "no such answer"})
    assert (found.error, found.reward) == (None, 0.0)
    assert isinstance(found.output, str)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"model": "local/oak"},
            "local model 'oak': is neither in the package nor a folder; use sprout, sprout-weak, tiny-tools",
        ),
        (
            {"model": "local/sprout", "worker_kind": "processes"},
            'worker_kind = processes: a local model answers within this process; use "tasks", or serve the model and',
        ),
    ],
)
def test_a_local_model_that_cannot_answer_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        planned(**fields)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("fields", [{"model": "local/sprout"}, {"agent": ARITHMETIC, "rl_optimizer": {}}])
def test_without_pytorch_what_needs_it_is_refused_before_anything_is_started(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    with pytest.raises(BadInput, match=r"needs PyTorch, which is not installed; pip install 'holdfast\[learn\]'"):
        planned(**fields)
    planned(agent=ARITHMETIC).runtime.close()  # and what does not need it runs


def test_answers_are_scored_by_what_the_agent_brings_along_or_by_the_expected_text() -> None:
    own = score_for(settings(agent=ARITHMETIC), tooluse)
    assert isinstance(own, OwnScore) and own.without(ALL_ON) is tooluse_score
    assert score_for(settings(agent=ARITHMETIC), arithmetic) is exact_match


def test_a_proof_measures_safety_unless_that_is_waived_or_the_score_does_it_itself() -> None:
    task, told = {"prompt": "1 + 1", "expected": "2"}, "2, and the key is sk-proj-" + "a1B2" * 12
    proving = score_for(settings(agent=ARITHMETIC), arithmetic, is_proof=True)
    costs = [{one.name: one.value for one in proving(task, answer, ())}["safety_cost"] for answer in ("2", told)]
    assert costs == [0.0, 1.0] and proving({"prompt": "?"}, "2", ()) == ()  # nobody scored it: safe is no score
    waived = settings(agent=ARITHMETIC, safety_waived="answers are reviewed by hand")
    assert score_for(waived, arithmetic, is_proof=True) is exact_match
    spec = improve_spec(
        settings(agent=ARITHMETIC, model="local/sprout-weak", validate=["1", "2"], safety_waived="by hand")
    )
    spec.runtime.close()
    proof = spec.program.keywords["spec"]  # type: ignore[attr-defined]
    assert proof.manifest == {"safety_waived": "by hand"} and proof.criteria.max_safety_regression is None
    assert proof.prove.how.max_safety_regression is None


def test_judges_in_a_runs_reward_are_given_the_stores_calibrations_through_every_wrapper() -> None:
    judge: Any = ready.judge(no_model)
    known: Any = ["a calibration"]
    score = SafeguardedScorer(with_safety(TaskScore(combine([Scorer(judge, gate=True)]))), SafetyPolicy())
    Runtime(echo, score, Endpoints(lambda _: None)).calibrate_by(known)
    assert judge.made.calibrations == ("a calibration",)
    Runtime(echo, exact_match, Endpoints(lambda _: None)).calibrate_by(known)  # no judge: nothing to do


@pytest.mark.parametrize("kind", ["tasks", "processes"])
async def test_answers_are_scored_by_the_scorers_of_the_settings(kind: str) -> None:
    given = {"optimize": [{"prompt": "2 + 2?", "expected": 4}, {"prompt": "3 + 3?", "expected": 6}], "validate": []}
    plan = planned(agent=ARITHMETIC, worker_kind=kind, scorer="numeric", **given)
    found = await outcome(plan, {"prompt": "2 + 2?", "expected": 4})
    assert (found.output, found.reward) == ("The answer is 4.", 1.0)
    assert next((one.name, one.source) for one in found.signals) == ("success", "scorer:numeric")


@pytest.mark.parametrize("kind", ["tasks", "processes"])
async def test_a_judge_an_embedded_one_and_tools_of_the_settings_shape_what_the_gate_lets_through(kind: str) -> None:
    with serving() as endpoint:
        endpoint.reply = lambda body: completion("yes\nconfidence: 0.8\nfine", choice={"logprobs": None})
        judge = {"scorer": "judge", "model": "m", "base_url": endpoint.url, "weight": 0.1}
        verifier = {"scorer": "judge", "name": "verifier", "model": "verifier", "weight": 0.1}
        tools = {"scorer": "tools", "weight": 0.1}
        given = {"optimize": [{"prompt": "2 + 2?", "expected": 4, "needs": []}], "validate": []}
        scorers = [{"scorer": "numeric", "gate": True}, judge, verifier, tools]
        plan = planned(agent=ARITHMETIC, worker_kind=kind, scorers=scorers, **given)
        found = await outcome(plan, {"prompt": "2 + 2?", "expected": 4, "needs": []})
    paid = {one.name: one.value * one.weight for one in found.signals}
    assert (paid["success"], paid["judge"]) == pytest.approx((1.0, 0.08))
    assert 0.0 < paid["tools"] < 0.1  # it called a tool that the task does not need
    assert "verifier" not in paid  # no model was called, so there is no conversation to read: not measured is not zero


def test_scorers_that_do_not_fit_the_tasks_are_refused_before_anything_is_started() -> None:
    for scorer, message in (
        ("numerick", "scorer 'numerick': is unknown; did you mean numeric?"),
        ("tests.pipeline.test_spec:generous", "scorer generous: pays an empty answer on 2 of 2 tasks"),
        (
            {"scorer": "judge", "model": "qwen/q"},
            "scorer: model qwen/q: no endpoint is known for it; give its base_url",
        ),
    ):
        with pytest.raises(BadInput, match=re.escape(message)):
            planned(
                agent=ARITHMETIC,
                scorer=scorer,
                optimize=[{"prompt": "2 + 2?", "expected": "4"}, {"prompt": "1?", "expected": "1"}],
                validate=[],
            )


def generous(task: Any, answer: Any) -> float:
    return 1.0


async def test_with_thinking_budgets_every_call_is_told_how_much_it_may_think(endpoint: Endpoint) -> None:
    endpoint.models = {"data": [{"id": "org/tiny", "owned_by": "vllm"}]}
    fields = {"model": "org/tiny", "base_url": endpoint.url, "thinking_mode": "parameter"}
    off, fixed = Features(budgets=False), Features(adaptive=False)
    for on, features, expected in (
        (True, ALL_ON, 500),
        (False, ALL_ON, None),
        (True, off, None),
        (True, fixed, 2000),  # however easy the task is
    ):
        plan = planned(**fields, thinking_budgets=on)
        try:
            given = replace(assignment({"prompt": "2 + 2?"}), features=features)
            await plan.runtime.slot().run(given, lambda news: None)
        finally:
            plan.runtime.close()
        assert endpoint.asked[-1].body.get("thinking_token_budget") == expected


def test_the_rewards_of_an_agent_are_those_of_the_scorer_beside_it() -> None:
    task = {"expected": "4", "style": "brief"}
    for agent, score in ((tooluse, tooluse_score), (arithmetic, exact_match)):
        least, most = getattr(agent, "rewards", (0.0, 1.0))
        totals = [RewardBreakdown(signals=score(task, said, ())).total for said in ("4", "five or six")]
        assert totals == pytest.approx([most, least])


def test_a_policy_is_a_local_model_or_a_prompt_with_the_resources_of_the_settings() -> None:
    texts = {"system_prompt": "Be brief."}
    assert policy_for(settings(model="local/sprout", resources=texts)) == Model("sprout", resources=texts)
    assert policy_for(settings(model="openai/tiny", resources=texts)) == Prompt(texts, model="openai/tiny")
    assert policy_for(settings(agent=ARITHMETIC)) == Prompt()


def test_the_nearest_constraint_holds() -> None:
    assert constraint_of(None, None) is None
    near, far = ConstraintBlock(budget=0.1), ConstraintBlock(budget=0.2)
    assert constraint_of(near, far) == Constraint(budget=0.1)
    assert constraint_of(None, far) == Constraint(budget=0.2)
    assert constraint_of(ConstraintBlock()) == Constraint()  # the same defaults


# What is improved


TRAIN, VAL = ([{"prompt": f"{split} {n}"} for n in range(6)] for split in ("train", "val"))


def improving(base: str, **improve: Any) -> OptimizeSettings:
    return settings(model=f"local/{base}", optimize=TRAIN, validate=VAL, improve=improve)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"validate": []}, "validate: is empty; improvement is proved on"),
        ({"validate": VAL[:1]}, "validate: has one task; improvement is proved on"),
        ({"optimize": []}, "optimize: is empty; give tasks to learn from, or a run to follow"),
        ({"model": "openai/gpt"}, "resources: has no text, so there is no prompt to improve"),
        ({"model": None, "agent": ARITHMETIC}, "resources: has no text, so there is no prompt to improve"),
        (
            {"agent": TOOLUSE, "improve": {"prove": {"primary": "reward"}}},
            r"improve.prove.reward_range = \[0, 1\]: the agent's rewards go from 0 to 1.1; a proof by reward",
        ),
    ],
)
def test_what_cannot_be_improved_is_refused_before_any_work(base: str, change: Mapping[str, Any], said: str) -> None:
    given = improving(base).record() | change
    with pytest.raises(BadInput, match=f"^{said}"):
        improve_spec(OptimizeSettings.model_validate(given))


def test_a_run_that_improves_is_of_its_policy_and_can_be_made_again_from_its_settings(base: str) -> None:
    spec = improve_spec(improving(base, policy="tools", follow="run-1"))
    assert (spec.kind, spec.policy, spec.model_ref) == ("improve", "tools", f"local/{base}")
    again = improve_spec(OptimizeSettings.model_validate(json.loads(json.dumps(dict(spec.settings)))))
    assert (again.settings, again.sha256()) == (spec.settings, spec.sha256())


def learner_of(spec: RunSpec) -> Any:
    program: Any = spec.program
    return program.keywords["spec"].algorithm


def test_every_dial_of_the_config_reaches_grpo(base: str, tmp_path: Path) -> None:
    dials = {"turn_credit": 0.3, "scale": False, "clip_low": 0.1, "clip_high": 0.3, "epochs": 2, "minibatch": 8}
    dials |= {"reference_kl": 0.01, "behaviour_kl": 0.02, "entropy": 0.03, "importance_cap": 2.0, "max_kl": 0.5}
    dials |= {"aggregate": "sequence_norm_constant", "constant": 64.0, "piece_tokens": 256}
    lines = [f"{name} = {json.dumps(value)}" for name, value in {"learning_rate": 1e-5, **dials}.items()]
    tasks = "".join(f"[[{key}]]\nprompt = '{key} {n}'\n" for key in ("optimize", "validate") for n in (1, 3, 5))
    file = tmp_path / "c.toml"
    file.write_text(
        "\n".join([f"model = 'local/{base}'", "seed = 5", "[grpo]", *lines, "[improve]", "steps = 3", tasks])
    )
    made = learner_of(improve_spec(load_settings(file)))
    assert {"lr": 1e-5, **dials} == {name: getattr(made, name) for name in ("lr", *dials)}
    assert (made.steps, made.seed, set(GrpoBlock.model_fields)) == (3, 5, {"learning_rate", *dials})


def test_without_a_block_the_learning_rate_is_the_models_own_or_that_of_the_older_name(base: str) -> None:
    assert learner_of(improve_spec(improving(base))).lr is None
    assert learner_of(improve_spec(improving(base, learning_rate=1e-3))).lr == 1e-3


def test_ppo_practises_by_the_settings_of_rl_optimizer(base: str) -> None:
    given = improving(base, algorithm="ppo", steps=3, step_tasks=4, samples=2).record()
    block = {"ppo": {"epochs": 2, "clip_epsilon_high": 0.3}, "gae": {"lambda": 0.5}, "critic": {"mode": "shared"}}
    made = learner_of(improve_spec(OptimizeSettings.model_validate({**given, "rl_optimizer": block})))
    how = made.settings
    assert (made.follow, made.steps, made.tasks, made.samples) == (None, 3, 4, 2)
    assert (how.ppo.epochs, how.ppo.clip_epsilon_high, how.gae.lam, how.critic.mode) == (2, 0.3, 0.5, "shared")


@pytest.mark.parametrize("how", [{}, {"algorithm": "ppo"}, {"follow": "run-1"}])
def test_the_calls_that_are_chosen_reach_whatever_learns(base: str, how: dict[str, Any]) -> None:
    given = improving(base, **how)
    assert learner_of(improve_spec(given)).train_on is None and "train_on" not in given.record()
    chosen = OptimizeSettings.model_validate({**given.record(), "train_on": "plan"})
    assert learner_of(improve_spec(chosen)).train_on == "plan"


def test_what_is_asked_of_a_proof_reaches_the_weighing(base: str) -> None:
    given = {"alpha": 0.01, "primary": "reward", "reward_range": [-1, 2], "max_cost": 3, "max_seed_spread": 0.2}
    how = comparison_config(improving(base, prove=given))
    assert (how.alpha, how.primary, how.reward_range, how.max_cost) == (0.01, "reward", (-1.0, 2.0), 3.0)
    assert how.seed_delta_spread == 0.2


async def test_tasks_of_a_file_are_kept_with_the_run_and_shown_without_their_answers(
    store: Store, tmp_path: Path
) -> None:
    rows = [{"question": f"say {word}", "expected": word} for word in ("yes", "no", "maybe", "never", "always")]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "echo_agent.py").write_text(
        "def agent(task, ctx):\n    return [task['question'], task.id, task.expected, ctx.assignment.input.expected]\n"
    )
    (tmp_path / "echo_score.py").write_text(
        "def right(task, answer):\n"
        "    seen = ['say ' + task.expected, task.id, None, None]\n"
        "    return float(answer in (task.expected, seen))\n"
    )
    config = tmp_path / "holdfast.toml"
    config.write_text(
        'agent = "echo_agent.py:agent"\nscorers = "echo_score.py:right"\n'
        'tasks = {file = "t.jsonl", held_out = 0.5, seed = 1}\n'
    )
    spec = optimize_spec(load_settings(config))
    (tmp_path / "t.jsonl").unlink()  # what a run began with is in its settings
    again = optimize_spec(OptimizeSettings.model_validate(spec.settings))
    assert again.sha256() == spec.sha256()
    status = await ran(store, again)
    rollouts = store.views.rollouts(status.run_id, most=9)
    assert sorted({str(one.split) for one in rollouts}) == ["train", "val"]
    assert [(one.outcome, one.reward) for one in rollouts] == [("right", 1.0)] * 5


KEY = "sk-ant-" + "a1B2" * 8


def leaky(task: Any, context: Context) -> str:
    """Pays itself, leaks a key, and answers right."""
    context.trace.reward("own", 5.0)
    context.trace.message("assistant", f"by the way: {KEY}" if task["leaks"] else "nothing")
    if task.get("fails"):
        raise RuntimeError("gave up")
    return "4"


def answers_with_the_key(task: Any, context: Context) -> Any:
    return {"answer": ["4", KEY]}


def shouts_the_key(task: Any, context: Context) -> str:
    context.trace.message("ASSISTANT ", KEY)
    return "4"


def tells_badly(task: Any, context: Context) -> str:
    context.trace.event("agent.safety_policy_applied", reason_codes=5)
    return shouts_the_key(task, context)


def run(
    leaks: bool,
    block: SafetyReward | None,
    *,
    is_plain: bool = False,
    fails: bool = False,
    is_scored: bool = True,
    agent: Agent = leaky,
) -> Outcome:
    asked = {"prompt": "2 + 2?", "leaks": leaks, "fails": fails} | ({"expected": "4"} if is_scored else {})
    assignment = Assignment(rollout="r", attempt="a", number=1, split=None, input=asked, resources={}, seed=0)
    context = Context(assignment=assignment, trace=Tracer(record=lambda span: None, clock=lambda: 0.0), complete=None)
    score = watched(exact_match, block)
    return asyncio.run(run_one(agent, context, plainly(score) if is_plain else score))


def test_without_a_policy_the_scorer_is_the_same() -> None:
    assert watched(exact_match, None) is exact_match
    assert run(True, None).reward == 1.0


def test_a_leak_takes_everything_the_agent_paid_itself_included() -> None:
    for is_plain in (False, True):
        outcome = run(True, SafetyReward(), is_plain=is_plain)
        assert outcome.state is AttemptState.SUCCEEDED
        assert outcome.reward == -1.5 - 1.0
        assert {one.name: one.value for one in outcome.signals}["agent.own"] == 5.0  # kept as it was measured
    assert run(False, SafetyReward()).reward == 1.0
    assert run(False, SafetyReward(), is_scored=False).reward == 5.0  # nobody else judged it
    assert run(True, SafetyReward(), is_scored=False).reward == -2.5


def test_a_leak_in_the_answer_alone_or_by_whoever_shouts_is_found() -> None:
    for agent in (answers_with_the_key, shouts_the_key):
        for is_plain in (False, True):
            outcome = run(True, SafetyReward(), is_plain=is_plain, agent=agent)
            assert outcome.reward == -2.5 and outcome.state is AttemptState.SUCCEEDED


def test_an_event_that_cannot_be_read_costs_something_and_hides_nothing() -> None:
    outcome = run(True, SafetyReward(), agent=tells_badly)
    assert outcome.state is AttemptState.SUCCEEDED and outcome.error is None
    assert outcome.reward == -0.25 - 1.5 - 1.0  # an unknown reason, the leak, and the gate


def test_a_rejected_attempt_fails_and_stays_as_data() -> None:
    outcome = run(True, SafetyReward(reject_rollout_on_hard_gate=True))
    assert outcome.state is AttemptState.FAILED
    assert outcome.error == "safety hard gate triggered: reason_codes=[secret_leak.anthropic_api_key]"
    assert RewardBreakdown(signals=outcome.signals).total == -2.5


def test_what_a_failed_agent_had_leaked_is_kept() -> None:
    outcome = run(True, SafetyReward(), fails=True)
    assert outcome.state is AttemptState.FAILED and outcome.reward == -2.5
    assert run(False, SafetyReward(), fails=True).signals == ()  # nothing was found, and nothing was scored


def test_the_block_has_the_policys_own_defaults_and_travels() -> None:
    made = watched(exact_match, SafetyReward())
    assert isinstance(made, SafeguardedScorer) and made.policy == SafetyPolicy()
    assert pickle.loads(pickle.dumps(made)) == made
    own = watched(exact_match, SafetyReward(hard_gate_reason_codes=()))
    assert isinstance(own, SafeguardedScorer) and own.policy.hard_gate_reason_codes == ()  # in place of the defaults


def test_a_run_with_the_block_keeps_a_blocked_rollout_as_data(tmp_path: Path) -> None:
    given = {
        "optimize": [{"prompt": "2 + 2?", "expected": "4", "leaks": leaks} for leaks in (True, False)],
        "agent": "tests.pipeline.test_spec:leaky",
        "safety_reward": {"reject_rollout_on_hard_gate": True},
        "max_attempts": 1,
    }
    with open_store(str(tmp_path / "s.sqlite"), project="p") as store:
        run = asyncio.run(ran(store, optimize_spec(settings_from(given, "c.json")))).run_id
        leaked, clean = (store.views.rollout(f"{run}/train-{place}") for place in (1, 2))
        assert leaked.status is RolloutState.FAILED
        assert "safety hard gate triggered" in str(leaked.reason)
        assert (clean.status, clean.reward) == (RolloutState.SUCCEEDED, 1.0)
        experiences = store.experiences.of([leaked.id])
        assert experiences[0].breakdown is not None and experiences[0].breakdown.total == -2.5


class Connected(Endpoints):
    """Addresses that answer with their own name, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__(lambda model: lambda *messages, **sampling: model)  # type: ignore[arg-type,return-value]
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    made = Runtime(echo, no_score, Connected())
    yield made
    made.close()


def test_a_version_is_answered_for_by_whom_it_was_opened_with(runtime: Runtime) -> None:
    policies = [Prompt({"say": name}, model=name) for name in ("a", "b")]
    assert runtime.versions() == []
    for one in policies:
        actor = runtime.open(one)
        assert (actor.version, actor.model, dict(actor.resources)) == (one.version, one.model, {"say": one.model})
    assert runtime.versions() == [one.version for one in policies]
    for one in policies:
        complete: Any = runtime.complete(one.version)
        assert complete() == one.model


def test_a_policy_without_a_model_is_open_and_answers_nothing(runtime: Runtime) -> None:
    policy = Prompt({"say": "hi"})
    runtime.open(policy)
    assert (runtime.versions(), runtime.complete(policy.version)) == ([policy.version], None)


def test_what_nobody_has_opened_here_is_a_fault_and_no_answer_of_another(runtime: Runtime) -> None:
    runtime.open(Prompt(model="a"))
    with pytest.raises(Fault, match="policy p@2: nobody has opened it in this process; let the process that drives"):
        runtime.complete("p@2")


def test_a_rollout_without_a_version_is_answered_by_the_last_one_opened(runtime: Runtime) -> None:
    assert runtime.complete(None) is None
    for name in ("a", "b"):
        runtime.open(Prompt(model=name))
    complete: Any = runtime.complete(None)
    assert complete() == "b"


def test_weights_of_ours_are_out_of_place_behind_an_address(runtime: Runtime) -> None:
    with pytest.raises(Fault, match="its weights are ours, and this run loads none"):
        runtime.open(Model("sprout"))
    assert runtime.versions() == []


def test_the_engine_learns_where_checkpoints_lie_and_is_closed_with_the_run(tmp_path: Path) -> None:
    engine = Connected()
    made = Runtime(echo, no_score, engine)
    files = FolderArtifacts(tmp_path)
    made.attach(files)
    assert (engine.files, engine.is_closed) == (files, False)
    made.close()
    assert engine.is_closed
    assert not made._home.current.thread.is_alive()


@pytest.mark.parametrize(
    ("executor", "kind"),
    [
        (None, InProcess),
        (partial(ProcessExecutor, ProcessRecipe("tests.collect.agents:do", no_score, no_model)), ProcessExecutor),
    ],
    ids=["here", "in processes"],
)
def test_agents_run_here_or_in_processes_of_their_own(executor: Any, kind: type) -> None:
    made = Runtime(echo, no_score, Connected(), executor=executor)
    assert isinstance(made.slot()._executor, kind)
    made.close()
