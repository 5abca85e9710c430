"""Rollouts from vLLM servers: the stand-in speaks as the recorded real one did, and every answer is by the weights that
it is credited to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

import holdfast as hf
from holdfast.collect.vllm import VllmEngine
from holdfast.contracts.engine import check_engine
from holdfast.contracts.errors import BadInput, Fault
from holdfast.contracts.settings import load_settings, override
from holdfast.learn.batch import SampleFilter
from holdfast.learn.grpo import Grpo, compare
from holdfast.learn.objective import Objective
from holdfast.learn.train import Settings, Trainer, recompute_logprobs
from holdfast.pipeline.spec import improve_spec
from holdfast.policies import hub
from holdfast.policies.engine import Local
from holdfast.policies.model import load
from holdfast.store.artifacts import FolderArtifacts
from holdfast.store.store import open_store
from tests.learn.attempts import attempt, signal
from tests.vllm_server import BASE, EXCHANGE, RANK, Server, filled, folders, serving, versions

RECORDED = json.loads((Path(__file__).parents[1] / "fixtures" / "vllm.json").read_text(encoding="utf-8"))
MESSAGES = [{"role": "user", "content": "What is 4 + 4?"}]


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server()) as found:
        yield found


def test_the_stand_in_answers_as_a_real_vllm_was_recorded_to(server: Server, tmp_path: Path) -> None:
    names = {"BASE": str(BASE), **folders(tmp_path)}

    async def play() -> list[tuple[int, Any]]:
        async with ClientSession() as session:
            found = []
            for method, path, body in EXCHANGE:
                url, asked = server.url.removesuffix("/v1") + path, filled(body, names)
                async with session.request(method, url, json=asked) as response:
                    is_json = response.content_type == "application/json"
                    found.append((response.status, await (response.json() if is_json else response.text())))
            return found

    for (status, answer), kept in zip(asyncio.run(play()), RECORDED, strict=True):
        assert status == kept["status"]
        if status != 200 or isinstance(answer, str):
            assert _mood(answer) == _mood(kept["answer"])
        elif "data" in answer:
            assert _listed(answer) == _listed(kept["answer"])
        elif "choices" not in answer:
            assert answer == kept["answer"]
        else:
            ours, theirs = answer["choices"][0], kept["answer"]["choices"][0]
            assert set(ours) <= set(theirs) and set(ours["logprobs"]) == set(theirs["logprobs"])
            for name in ("token_ids", "finish_reason", "prompt_token_ids", "weight_versions"):
                assert ours.get(name) == theirs.get(name), name
            assert _told(ours) == pytest.approx(_told(theirs), abs=1e-3)


def _told(choice: Any) -> list[float]:
    given = choice["logprobs"]
    return [one["logprob"] for one in given["content"]] if "content" in given else list(given["token_logprobs"])


def _mood(answer: Any) -> Any:
    """The type and the code of an error; the first word of a success."""
    return (answer["error"]["type"], answer["error"]["code"]) if isinstance(answer, dict) else answer.split()[0]


def _listed(answer: Any) -> list[Any]:
    return [(one["owned_by"], one["parent"] is None, one.get("max_model_len")) for one in answer["data"]]


def test_several_versions_at_once_are_each_answered_by_their_own_adapters(server: Server, tmp_path: Path) -> None:
    policies, files = versions(tmp_path, 3), FolderArtifacts(tmp_path)
    check_engine(lambda: VllmEngine([server.url], files=files), policies, seed=5, max_tokens=5)
    assert not server.loaded  # what was loaded is unloaded with its engine


def test_several_versions_at_once_are_each_answered_by_all_of_their_weights(server: Server, tmp_path: Path) -> None:
    policies, files = versions(tmp_path, 3, rank=0), FolderArtifacts(tmp_path)
    check_engine(lambda: VllmEngine([server.url], files=files), policies, seed=5, max_tokens=5)
    assert len(set(server.reloads)) >= 3 and server.running.is_set()
    with pytest.raises(Fault, match="adapters are for those that it was started with; start it anew"):
        VllmEngine([server.url]).open_model(versions(tmp_path, 1)[0])


def test_all_weights_are_loaded_between_calls_and_not_for_each(server: Server, tmp_path: Path) -> None:
    policies, files = versions(tmp_path, 2, rank=0), FolderArtifacts(tmp_path)
    engine = VllmEngine([server.url], files=files)
    old, new = (engine.open_model(policy) for policy in policies)

    async def ask() -> list[Any]:
        given_up = asyncio.ensure_future(new(MESSAGES, max_tokens=4, seed=9))
        asked = [(old if n % 2 else new)(MESSAGES, max_tokens=4, seed=n) for n in range(12)]
        await asyncio.sleep(0)
        given_up.cancel()  # its place is given to nobody, and kept for nobody
        return await asyncio.gather(*asked)

    calls = asyncio.run(ask())
    assert len(server.reloads) <= 4  # once for each half, or once more where some came late
    for n, call in enumerate(calls):
        policy = policies[0] if n % 2 else policies[1]
        assert call.model == policy.version
        assert call.logprobs == pytest.approx(recompute_logprobs(load(policy, files)[0], [call])[0], abs=1e-3)
    engine.close()


def test_tokens_of_other_weights_are_nobodys_sample_and_a_server_that_was_started_anew_gets_its_weights_again(
    server: Server, tmp_path: Path
) -> None:
    policy, files = versions(tmp_path, 2, rank=0)[1], FolderArtifacts(tmp_path)
    engine = VllmEngine([server.url], files=files)
    complete = engine.open_model(policy)
    first = asyncio.run(complete(MESSAGES, max_tokens=6, seed=1))
    server.base, server.weight_version = hub.load(BASE), "default"
    assert asyncio.run(complete(MESSAGES, max_tokens=6, seed=1)).completion_ids == first.completion_ids
    assert len(server.reloads) == 2
    server.answers_as = "somebody-elses"
    with pytest.raises(Fault, match="'somebody-elses' answered, and 'holdfast-"):
        asyncio.run(complete(MESSAGES, max_tokens=2))
    engine.close()


def test_a_server_that_takes_no_weights_says_so_before_any_work(tmp_path: Path) -> None:
    with serving(Server(is_dev=False)) as plain, pytest.raises(Fault, match="VLLM_SERVER_DEV_MODE=1"):
        VllmEngine([plain.url]).open_model(versions(tmp_path, 1, rank=0)[0])


def test_an_answer_has_the_trainers_own_log_probs(server: Server, tmp_path: Path) -> None:
    policy, files = versions(tmp_path, 2)[1], FolderArtifacts(tmp_path)
    engine = VllmEngine([server.url], files=files)
    call = asyncio.run(engine.open_model(policy)(MESSAGES, max_tokens=12, seed=3))
    engine.close()
    assert call.model == policy.version and call.logprobs is not None
    assert call.logprobs == pytest.approx(recompute_logprobs(load(policy, files)[0], [call])[0], abs=1e-3)


def test_a_server_that_was_started_anew_gets_the_adapters_again_and_a_busy_one_is_passed_over(tmp_path: Path) -> None:
    policy, files = versions(tmp_path, 2)[1], FolderArtifacts(tmp_path)
    with serving(Server()) as first, serving(Server()) as second:
        engine = VllmEngine([first.url, second.url], files=files)
        complete = engine.open_model(policy)
        first.loaded.clear()
        asyncio.run(complete(MESSAGES, max_tokens=2))
        [name] = first.loaded  # of the same bytes on both
        assert second.loaded.keys() == {name} and name in first.served and name not in second.served
        first.busy = 1
        asyncio.run(complete(MESSAGES, max_tokens=2))
        assert name in second.served
        engine.close()


def test_what_another_model_answered_is_nobodys_sample(server: Server, tmp_path: Path) -> None:
    engine = VllmEngine([server.url], files=FolderArtifacts(tmp_path))
    complete = engine.open_model(versions(tmp_path, 2)[1])
    server.answers_as = "other"
    with pytest.raises(Fault, match="'other' answered, and 'holdfast-"):
        asyncio.run(complete(MESSAGES, max_tokens=2))
    engine.close()


def test_log_probs_from_before_the_temperature_are_refused(tmp_path: Path) -> None:
    policy = versions(tmp_path, 1)[0]
    with serving(Server(is_raw=True)) as raw, serving(Server()) as processed:
        for server, is_raw in ((raw, True), (processed, False)):
            engine = VllmEngine([server.url])
            complete = engine.open_model(policy)
            assert engine.servers[0].is_raw == is_raw
            if is_raw:
                with pytest.raises(BadInput, match="--logprobs-mode processed_logprobs"):
                    asyncio.run(complete(MESSAGES, temperature=0.7))
            call = asyncio.run(complete(MESSAGES, temperature=1.0 if is_raw else 0.7, max_tokens=1))
            assert call.completion_tokens == 1
            engine.close()


@pytest.mark.parametrize(
    ("policy", "more", "said"),
    [
        (hf.Model("sprout-weak"), {}, "is not in Hugging Face's format"),
        (
            hf.Prompt(system="a"),
            {"model": "m", "base_url": "http://127.0.0.1:9/v1"},
            "is for models whose weights learn",
        ),
        (hf.Model("tiny-tools", lora=4), {"deterministic": True}, "leave one of them out"),
        (hf.Model("tiny-tools", lora=4), {"vllm": ()}, "no server is named"),
        (hf.Model("tiny-tools", lora=4), {"vllm": "ftp://there"}, "is not http"),
    ],
)
def test_what_vllm_cannot_do_is_refused_before_any_work(
    policy: Any, more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    how = {"vllm": "http://127.0.0.1:9/v1", "name": "a", "scorers": [length], "store": tmp_path / "s.sqlite", **more}
    with pytest.raises(BadInput, match=said):
        hf.improve(agent, tasks(), policy=policy, **how)
    assert not (tmp_path / "s.sqlite").exists()


def tasks() -> hf.TaskSet:
    rows = [{"question": f"What is {n} + {n + 1}?", "split": "train" if n < 4 else "test"} for n in range(10)]
    return hf.tasks(rows)


async def agent(task: Any, ctx: hf.Context) -> str:
    call = await ctx.ask([{"role": "user", "content": task.input["question"]}], max_tokens=8, temperature=1.0)
    return str(call.response.get("content") or "")


def length(task: Any, answer: str) -> float:
    return min(1.0, (len(set(answer)) + len(answer) / 100) / 30)


@pytest.mark.parametrize("rank", [RANK, 0])
def test_a_model_learns_from_two_servers_that_get_its_adapters_after_every_update(rank: int, tmp_path: Path) -> None:
    at = tmp_path / "s.sqlite"
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(Server())) for _ in range(2)]
        grpo = hf.GRPO(lr=1e-3, steps=2, tasks=2, samples=4)
        how: dict[str, Any] = {"name": "helper", "scorers": [hf.Scorer(length)], "workers": 8, "seeds": 1, "store": at}
        policy = hf.Model("tiny-tools", lora=rank)
        result = hf.improve(agent, tasks(), policy=policy, algorithm=grpo, vllm=[one.url for one in servers], **how)
    assert result.candidate is not None and result.proof is not None
    with open_store(at, create=False) as store:
        steps = [one.body for one in store.steps.of_run(result.run.id) if one.name.endswith("/learn")]
    asked = [{name for name in one.served if name.startswith("holdfast-")} for one in servers]
    assert len(asked[0] | asked[1]) == 3 and (asked[0] == asked[1] or not rank)  # as it came, and after each update
    assert [step["update"]["trainer_gap"] < 1e-3 for step in steps] == [True, True]
    assert all(step["audit"]["taught"] > 0 for step in steps)


def test_samples_of_other_weights_stop_the_training(tmp_path: Path) -> None:
    """A server that serves another model than the one that learns."""
    policies, files = versions(tmp_path, 2), FolderArtifacts(tmp_path)
    model, _ = load(policies[0], files)
    other = load(policies[1], files)[0]
    with Local(other) as local:
        calls = [asyncio.run(local(MESSAGES, max_tokens=8, seed=n)) for n in range(4)]
    tries = [attempt(f"r{n}", call, signals=[signal(n % 2)], task="t") for n, call in enumerate(calls)]
    batch = compare(tries, SampleFilter(), Grpo()).samples
    assert batch is not None
    settings = Settings(objective=Objective(importance_cap=2.0))
    with pytest.raises(Fault, match="they are not the same weights"):
        Trainer(model, settings, seed=0).step(batch)
    Trainer(other, settings, seed=0).step(batch)


def test_a_config_and_the_flag_name_the_servers_and_weigh_by_importance(server: Server, tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} and one?"} for n in range(4)]
    given = {"model": "local/tiny-tools", "lora": RANK, "vllm": [server.url], "scorers": ["exact"]}
    given |= {"optimize": rows[:2], "validate": [{**row, "expected": "1"} for row in rows[2:]]}
    (tmp_path / "c.json").write_text(json.dumps(given), encoding="utf-8")
    settings = load_settings(tmp_path / "c.json")
    for one, cap in ((settings, 2.0), (override(settings, grpo={"importance_cap": 3.0}), 3.0)):
        spec = improve_spec(one)
        assert isinstance(spec.runtime.engine, VllmEngine)
        assert spec.program.keywords["spec"].algorithm.importance_cap == cap  # type: ignore[attr-defined]
        spec.runtime.close()
    flagged = override(settings, vllm=["http://a:1/v1", "http://b:2/v1"])  # as the flag has them
    assert flagged.vllm == ("http://a:1/v1", "http://b:2/v1")
