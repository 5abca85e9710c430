from __future__ import annotations

import pytest

from holdfast.contracts.errors import NotFound
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState, RolloutState, Task
from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall
from holdfast.operate.conversation import group, rollout
from holdfast.store.store import Store
from tests.operate.conftest import LIVED_AT
from tests.store.filled import SCRIPT


def talked(store: Store) -> str:
    """One that failed once, and then asked, called a tool and answered in bytes."""
    run = store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="a", who="t", now=1.0).result().id
    store.queue.enqueue(run, [Task(name="t", input={"prompt": "why?"}, max_attempts=2)], now=1.0).result()
    (first,) = store.queue.claim(run, "w", now=1.0, lease_s=9.0).result()
    store.queue.finish(first.attempt, AttemptState.FAULT, now=2.0, error="gone").result()
    (claim,) = store.queue.claim(run, "w", now=99.0, lease_s=9.0).result()
    asked = {"role": "user", "content": [{"type": "text", "text": "why?"}]}
    call = {"id": "c", "function": {"name": "search", "arguments": '{"q": 1}'}}
    said = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]}
    told = {"role": "tool", "content": SCRIPT}
    more = {"role": "user", "content": "go on"}
    ids = tuple("né".encode())
    spans = [
        Span(seq=1, kind=SpanKind.MODEL, name="chat", started_at=99.0, ended_at=99.5,
             model=ModelCall(model="m@1", messages=(asked,), response=said)),
        Span(seq=2, kind=SpanKind.TOOL, name="search", started_at=99.5, ended_at=99.6, parent=1,
             tool=ToolCall(tool="search", arguments={"q": 1}, result=SCRIPT, call_id="c")),
        Span(seq=3, kind=SpanKind.MODEL, name="chat", started_at=99.6, ended_at=99.9,
             model=ModelCall(model="m@1", messages=(asked, said, told, more), finish_reason="stop",
                             response={"role": "assistant", "content": "né"}, prompt_ids=(1,),
                             completion_ids=ids, logprobs=(-0.1, -0.2, -0.3), forced=(0,))),
    ]  # fmt: skip
    store.traces.add(claim.attempt, spans, now=99.0)
    breakdown = [
        RewardTerm(name="exact", value=0.5, weight=2.0, source="env"),
        RewardTerm(name="form", value=1.0, source="r", turn=1),
    ]
    store.traces.score(claim.attempt, breakdown, now=99.0)
    store.queue.finish(claim.attempt, AttemptState.SUCCEEDED, now=100.0, reward=2.0, output="né").result()
    return f"{run}/t"


def test_a_rollout_reads_turn_by_turn(file_store: Store) -> None:
    told = rollout(file_store, talked(file_store), now=200.0)
    assert told["rollout"]["status"] == "succeeded" and told["rollout"]["input"] == {"prompt": "why?"}
    assert [(one["number"], one["status"], one["is_final"], one["is_shown"]) for one in told["attempts"]] == [
        (1, "fault", False, False),
        (2, "succeeded", True, True),
    ]
    assert [(one["role"], one["text"]) for one in told["opening"]] == [("user", "why?")]
    first, second = told["turns"]
    assert (first["thinking"], first["text"], first["tool_calls"][0]["arguments"]) == ("hm", "", '{"q": 1}')
    assert first["calls"][0]["result"] == SCRIPT and first["tokens"] is None
    assert [one["text"] for one in second["heard"]] == ["go on"] and second["text"] == "né"
    assert [(one["text"], one["logprob"], one["is_forced"]) for one in second["tokens"]] == [
        ("n", -0.1, True),
        ("é", -0.2, False),
        ("", -0.3, False),
    ]
    assert [one["name"] for one in second["signals"]] == ["form"] and first["signals"] == []
    assert told["sheet"]["total"] == 2.0 and told["sheet"]["signals"][0]["paid"] == 1.0
    assert told["output"] == "né" and told["budget"] is None and told["scorings"] == {}
    assert [(one["seq"], one["depth"]) for one in told["timeline"]] == [(1, 0), (2, 1), (3, 0)]


def test_what_later_scorings_say_stands_beside_the_reward_with_its_reasons(file_store: Store) -> None:
    name = talked(file_store)
    run = name.partition("/")[0]
    term = RewardTerm(name="minimality", value=0.5, weight=0.2, source="rule:diff", feedback="3 edits too many")
    file_store.scorings.add(run, "evaluated-1", {}, [(name, (term,))], who="ann", now=1.0)
    told = rollout(file_store, name, now=200.0)
    assert told["sheet"]["total"] == 2.0 and told["scorings"]["evaluated-1"]["total"] == 0.1
    assert told["scorings"]["evaluated-1"]["signals"][0]["feedback"] == "3 edits too many"


def test_exceptions_are_shown_with_their_whole_tracebacks(file_store: Store) -> None:
    run = file_store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="a", who="t", now=1.0).result().id
    file_store.queue.enqueue(run, [Task(name="t", input={})], now=1.0).result()
    told = rollout(file_store, f"{run}/t", now=2.0)  # nobody has tried it
    assert told["shown"] is None and told["turns"] == [] and told["sheet"] is None
    assert group(file_store, run, "t", now=2.0)["rollouts"][0]["advantage"] is None
    (claim,) = file_store.queue.claim(run, "w", now=1.0, lease_s=9.0).result()
    text = "Traceback (most recent call last):\n" + '  File "agent.py", line 1, in f\n' * 300 + "KeyError: 1\n"
    kept = {"error": "KeyError: 1 (agent.py:1, in f)", "traceback": text}
    spans = [
        Span(seq=1, kind=SpanKind.TELEMETRY, name="agent.run", started_at=1.0, ended_at=2.0, attributes=kept),
        Span(seq=2, kind=SpanKind.TELEMETRY, name="other", started_at=1.0, ended_at=2.0, attributes={"error": "no"}),
    ]
    file_store.traces.add(claim.attempt, spans, now=1.0).result()
    assert rollout(file_store, f"{run}/t", now=2.0)["failures"] == [{"seq": 1, "name": "agent.run", **kept}]


def test_an_earlier_attempt_is_shown_when_it_is_asked_for(file_store: Store) -> None:
    name = talked(file_store)
    told = rollout(file_store, name, now=200.0, attempt=1)
    assert told["shown"] == 1 and told["turns"] == [] and told["sheet"]["total"] is None
    with pytest.raises(NotFound, match="it has 2"):
        rollout(file_store, name, now=200.0, attempt=3)
    with pytest.raises(NotFound):
        rollout(file_store, f"{name}x", now=200.0)


def test_a_group_stands_side_by_side_the_best_first(lived_in: Store) -> None:
    run = lived_in.runs.newest(most=1)[0].id
    key, one = lived_in.figures.page(run, most=40, status=RolloutState.SUCCEEDED).rollouts[-1]
    told = group(lived_in, run, str(one.metadata["group"]), now=LIVED_AT, near=key)
    rewards = [each["reward"] for each in told["rollouts"] if each["reward"] is not None]
    assert len(told["rollouts"]) == 8 and rewards == sorted(rewards, reverse=True)
    advantages = [each["advantage"] for each in told["rollouts"] if each["advantage"] is not None]
    assert sum(advantages) == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(NotFound, match="none of it is where"):
        group(lived_in, run, "other", now=LIVED_AT)
    best = told["rollouts"][0]
    assert best["turns"] == 2 and best["calls"] == ["search"] and best["answer"].startswith("It is")
    budget = rollout(lived_in, one.id, now=LIVED_AT)["budget"]
    assert budget["allowed"] == 200 and budget["mode"] == "hard" and budget["events"] == []
