"""From settings to a run: what runs, where, with which model and at which pace; what is wrong is found here."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.collect.questions import exact_match
from holdfast.contracts.errors import BadInput
from holdfast.contracts.executor import Outcome
from holdfast.contracts.flag import ALL_ON, Features
from holdfast.contracts.reward import RewardBreakdown
from holdfast.contracts.rollout import Backoff, Split
from holdfast.contracts.settings import ConstraintBlock, OptimizeSettings, load_settings
from holdfast.learn.constrain import Constraint
from holdfast.pipeline.run import RunSpec
from holdfast.pipeline.spec import constraint_of, improve_spec, optimize_spec, policy_for, score_for, weighing
from holdfast.policies.model import Model
from holdfast.policies.prompt import Prompt
from holdfast.store.store import open_store
from holdfast.workloads.arithmetic import agent as arithmetic
from holdfast.workloads.tooluse.agent import agent as tooluse
from holdfast.workloads.tooluse.score import score as tooluse_score
from tests.collect.scene import assignment
from tests.conftest import Files
from tests.endpoint import Endpoint, serving
from tests.pipeline.scene import ran
from tests.workloads.scene import tiny

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


def planned(features: Features = ALL_ON, **fields: Any) -> RunSpec:
    return optimize_spec(settings(**fields), features)


async def test_tasks_are_named_by_split_and_number(files: Files) -> None:
    with open_store(files.fresh()) as store:
        spec = planned(agent=ARITHMETIC, max_attempts=5, attempt_timeout_secs=9.0, max_faults=7)
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
    assert (plan.pace.heartbeat_s, plan.pace.lease_s) == (0.2, 1.0)  # a lease is five beats
    assert plan.pace.backoff == Backoff(initial_s=0.1, cap_s=0.4)
    assert (plan.timeout_s, plan.look_s, plan.workers, plan.queue_limit, plan.seed) == (7.0, 0.02, 6, 9, 11)
    plan.runtime.close()


def test_a_spec_keeps_its_settings_so_that_it_can_be_made_again() -> None:
    first = optimize_spec(load_settings(EXAMPLE))
    again = optimize_spec(OptimizeSettings.model_validate(first.settings))
    assert (again.settings, again.sha256()) == (first.settings, first.sha256())
    assert first.model_ref == f"agent/{ARITHMETIC}"
    assert planned(agent=ARITHMETIC).sha256() != first.sha256()


async def outcome(plan: RunSpec, task: Any) -> Outcome:
    seat = plan.runtime.seat()
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


@pytest.mark.parametrize("kind", ["tasks", "processes"])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "these settings: name neither an agent nor a model; give --agent or --model"),
        ({"model": "qwen/qwen-3"}, "--model qwen/qwen-3: no endpoint is known for it; give --base-url"),
        ({"agent": "no_such_module:f"}, "agent no_such_module:f: cannot import no_such_module: "),
        (
            {"agent": f"{ARITHMETIC}s"},
            "agent holdfast.workloads.arithmetic:agents: holdfast.workloads.arithmetic has no",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_started(kind: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        planned(worker_kind=kind, **fields)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("kind", ["tasks", "processes"])
def test_a_bad_address_in_the_environment_is_found_before_anything_is_started(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:8000")
    with pytest.raises(BadInput, match="base URL 'localhost:8000': is not http"):
        planned(model="openai/tiny", worker_kind=kind)


def test_the_public_endpoint_is_only_assumed_for_its_own_models() -> None:
    plan = planned(model="openai/tiny")
    assert plan.model_ref == "openai/tiny"
    plan.runtime.close()


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
    for agent, name in ((tooluse, "score"), (arithmetic, "exact_match")):
        assert score_for(settings(agent=ARITHMETIC), agent, ALL_ON).__name__ == name  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["tasks", "processes"])
async def test_answers_are_scored_by_the_scorers_of_the_settings(kind: str) -> None:
    given = {"optimize": [{"prompt": "2 + 2?", "expected": 4}, {"prompt": "3 + 3?", "expected": 6}], "validate": []}
    plan = planned(agent=ARITHMETIC, worker_kind=kind, scorer="numeric", **given)
    found = await outcome(plan, {"prompt": "2 + 2?", "expected": 4})
    assert (found.output, found.reward) == ("The answer is 4.", 1.0)
    assert next((one.name, one.source) for one in found.signals) == ("success", "scorer:numeric")


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
    off = Features(budgets=False)
    for on, features, expected in ((True, ALL_ON, 500), (False, ALL_ON, None), (True, off, None)):
        plan = planned(**fields, thinking_budgets=on, features=features)
        try:
            await plan.runtime.seat().run(assignment({"prompt": "2 + 2?"}), lambda news: None)
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


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("base") / "tiny")


def improving(base: str, **improve: Any) -> OptimizeSettings:
    return settings(model=f"local/{base}", optimize=TRAIN, validate=VAL, improve=improve)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"validate": []}, "validate: is empty; improvement is proved on"),
        ({"validate": VAL[:1]}, "validate: has one task; improvement is proved on"),
        ({"optimize": []}, "optimize: is empty; give tasks to learn from, or a run to follow"),
        ({"model": "openai/gpt"}, "model openai/gpt: its weights are out of reach"),
        ({"model": None, "agent": ARITHMETIC}, "model None: its weights are out of reach"),
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


def test_what_is_asked_of_a_proof_reaches_the_weighing(base: str) -> None:
    given = {"alpha": 0.01, "primary": "reward", "reward_range": [-1, 2], "max_cost": 3, "max_seed_spread": 0.2}
    block = improving(base, prove=given).improve
    assert block is not None
    how = weighing(block.prove)
    assert (how.alpha, how.primary, how.reward_range, how.max_cost) == (0.01, "reward", (-1.0, 2.0), 3.0)
    assert how.seed_delta_spread == 0.2


async def test_tasks_of_a_file_are_kept_with_the_run_and_shown_without_their_answers(
    files: Files, tmp_path: Path
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
    with open_store(files.fresh()) as store:
        status = await ran(store, again)
        rollouts = store.views.rollouts(status.run_id, most=9)
    assert sorted({str(one.split) for one in rollouts}) == ["train", "val"]
    assert [(one.outcome, one.reward) for one in rollouts] == [("right", 1.0)] * 5
