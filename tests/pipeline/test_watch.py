"""A scorer under a safety policy: the last word is over the agent's own signals as well."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

from holdfast.collect.agent import Context, Tracer
from holdfast.collect.executors import plainly, run_one
from holdfast.collect.questions import exact_match
from holdfast.contracts.agent import Agent
from holdfast.contracts.executor import Assignment, Outcome
from holdfast.contracts.reward import RewardBreakdown
from holdfast.contracts.rollout import AttemptState, RolloutState
from holdfast.contracts.settings import SafetyReward, settings_from
from holdfast.pipeline.spec import optimize_spec
from holdfast.pipeline.watch import SafeguardedScorer, watched
from holdfast.reward.safety import SafetyPolicy
from holdfast.store.store import open_store
from tests.pipeline.scene import ran

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
        "agent": "tests.pipeline.test_watch:leaky",
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
        assert experiences[0].sheet is not None and experiences[0].sheet.total == -2.5
