"""The search for a prompt by commands: on a user's agent and endpoint, by the documented flags, within a budget, with a
report, a page and a family of versions; and what is refused before any work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.improve import ImproveOptions
from holdfast.cli.options import StoreOptions
from holdfast.cli.prompts import PromptOptions, rows_shown
from holdfast.contracts.records import loads
from holdfast.contracts.run import Status
from holdfast.operate.learning_views import search
from holdfast.store.store import open_store
from tests.cli.conftest import Cli
from tests.endpoint import Endpoint, completion, serving

WORDS = ("Answer with only the word.", "Be kind.", "Think.")
AGENT = """
async def agent(task, ctx):
    messages = [{"role": "system", "content": ctx.prompt("system")}, {"role": "user", "content": task["prompt"]}]
    return (await ctx.ask(messages)).response["content"]
"""
OWN = '''
class Shouting:
    """Says the best prompt so far more loudly."""

    name = "shouting"

    def propose(self, history):
        best = max(history, key=lambda tried: tried.reward or 0.0)
        failed = [one for one in best.attempts if one["reward"] == 0.0]
        assert all("expected" not in one["task"] for one in failed)
        return best.prompt.texts["system"].upper() if failed else None
'''


def model(body: dict[str, Any]) -> dict[str, Any]:
    """Says the word alone where its prompt asks for that; the one that reflects writes such a prompt."""
    said, asked = (body["messages"][place]["content"] for place in (0, -1))
    if body["model"] == "thinker":
        return completion("It chats. <prompt>Say only the word.</prompt>")
    word = asked.rpartition(" ")[2].upper()
    return completion(word if "only the word" in said.lower() else f"It is {word}.")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving() as found:
        found.reply = model
        yield found


def config(folder: Path, *, name: str = "system_prompt", **more: Any) -> Path:
    items = [{"prompt": f"Please shout word{n}x", "expected": f"WORD{n}X"} for n in range(120)]
    known = {"optimize": items[:24], "validate": items[24:], "resources": {name: "You are helpful."}}
    waived = {"safety_waived": "a test", "worker_count": 8, "improve": {"prove": {"seeds": 1}}}
    path = folder / "config.json"
    path.write_text(json.dumps({**known, **waived, **more}))
    return path


def test_a_prompt_is_found_proved_shown_and_taken_into_service(cli: Cli, here: Path, endpoint: Endpoint) -> None:
    (here / "agent.py").write_text(AGENT)
    path = config(
        here, name="system", agent="agent.py:agent", prompt_search={"proposers": ["edits"], "phrases": ["Be kind."]}
    )
    to = ("--model", "small", "--base-url", endpoint.url, "--store", "s.db")
    words = ("--policy", "prompt", "--rollouts", "160", "--reflection-model", "thinker")
    ran = cli("improve", path, *to, *words).done()
    assert "prompt@2: accepted" in ran.out and "> system: Say only the word." in ran.out
    assert "holdfast release promote prompt@2 --to live" in ran.out
    assert all(len(line) <= 80 for line in ran.lines if not line.startswith(("  page", "  holdfast", "  prompts", ".")))
    assert "It chats.: the best of the search" in " ".join(ran.out.split())
    rollouts = [one for one in endpoint.asked if one.body["model"] == "small"]
    assert len(rollouts) <= 160
    thought = next(one.body["messages"][0]["content"] for one in endpoint.asked if one.body["model"] == "thinker")
    assert "You are helpful." in thought and "It is WORD" in thought and "expected" not in thought
    status = loads(Status, (here / "status.json").read_bytes())
    assert status.prompt_search is not None and status.prompt_search["round"] >= 2
    assert status.prompt_search["spent"]["rollouts"] <= status.prompt_search["budget"]["rollouts"]
    page = next((here / "reports").glob("*-prompts-1.html")).read_text()
    assert "It chats." in page and "proved" in page and "<script" not in page and "://" not in page
    with open_store(here / "s.db") as store:
        assert store.releases.get("prompt@2").manifest["policy"]["manifest"]["texts"] == {
            "system": "Say only the word."
        }
        (shown,) = search(store, status.run_id, now=0.0)["searches"]  # in the control room
    assert shown["round"] == len(shown["gains"]) and "proved" in shown["headline"]
    best = next(one for one in shown["prompts"] if one["is_best"])
    assert best["texts"] == {"system": "Say only the word."} and best["on_front"] and best["seconds"] > 0.0

    shown = cli("policy", "show", "prompt@2", "--store", "s.db", "--json").done().json
    assert shown["texts"] == {"system": "Say only the word."} and shown["model"] == "small"
    changed = cli("policy", "diff", "prompt@2", "--store", "s.db").done()
    assert "[-You are helpful.-]{+Say only the word.+}" in "".join(changed.lines[2:])
    both = cli("policy", "diff", "prompt@2", "prompt@1", "--store", "s.db").done()
    assert both.lines[0] == "prompt@2 → prompt@1" and "[-Say only the word.-]" in both.out
    run = status.run_id
    assert cli("policy", "diff", f"{run}#0", f"{run}#0", "--store", "s.db").done().lines[-1] == "the texts are the same"
    assert "It chats." in cli("policy", "show", run, "--store", "s.db").done().out
    cli("policy", "export", "prompt@2", "out", "--store", "s.db").done()
    assert (here / "out/system.txt").read_text() == "Say only the word."
    assert "nothing is overwritten" in cli("policy", "export", "prompt@2", "out", "--store", "s.db").refusal
    assert "cannot be made" in cli("policy", "export", "prompt@2", "out/system.txt/x", "--store", "s.db").refusal
    assert "which has none" in cli("policy", "export", "prompt@2", "new", "--adapters", "--store", "s.db").refusal
    assert not (here / "new").exists()
    assert "is no prompt" in cli("policy", "diff", "sprout", "--store", "s.db").refusal
    assert "has prompts 0 to" in cli("policy", "show", f"{run}#99", "--store", "s.db").refusal
    for name, like in (("promt@2", "prompt@2"), ("sprot", "sprout"), ("prompt@7", "prompt@")):
        assert f"did you mean {like}" in cli("policy", "show", name, "--store", "s.db").refusal
    assert "'holdfast policy train'" in cli("policy", "show", "prompt@2", "--store", "none.db").refusal


def test_the_quickstart_for_prompts_searches_and_proves_offline(cli: Cli, here: Path) -> None:
    told = cli("quickstart", "--prompts", "--quick", "--store", "s.db", "--json").done().json
    (found,) = told["prompt_optimization"]
    assert found["spent"]["rollouts"] <= 60 and found["candidates"][0]["prompt"]["system"].startswith("You are")
    assert found["held_out"] is not None or found["nothing_found"]
    assert Path(found["page"]).is_file()


def test_the_documented_flags_search_and_say_so_also_where_nothing_is_better(
    cli: Cli, here: Path, endpoint: Endpoint
) -> None:
    path = config(here, prompt_search={"phrases": ["Be kind.", "Think."]})
    flags = ("--prompt-optimization-config", path, "--prompt-optimization-store-sqlite", "s.db")
    words = ("--prompt-optimization-json", "--model", "small", "--base-url", endpoint.url)
    told = cli("optimize", *flags, *words, "--prompt-optimization-rollouts", "90").done().json
    found = told["prompt_optimization"]
    assert found["optimized_prompt"] is None and found["held_out"] is None and found["baseline_prompt"]
    assert "no prompt of" in found["nothing_found"] and told["total_rollouts"] == len(endpoint.asked) <= 90
    assert all(one["dropped"] and "score" in one and one["prompt"] for one in found["candidates"][1:])
    again = cli("optimize", "--config", path, "--store", "t.db", *words[1:], "--rollouts", "90").done()
    assert "No better prompt was found" in again.out and "against the prompt in force" in " ".join(again.out.split())


def test_the_winner_and_whom_rows_name_are_shown_however_many_were_tried() -> None:
    def row(number: int, **more: Any) -> dict[str, Any]:
        why = "worse than number 25 by 0.5" if number == 3 else "no gain"
        return {"number": number, "parents": [], "why": why, "is_best": False, **more}

    tried = [row(n, parents=[19], is_best=True) if n == 28 else row(n) for n in range(30)]
    assert [one["number"] for one in rows_shown(tried)] == [*range(12), 19, 25, 28]


def test_a_search_that_failed_is_not_told_as_one_that_goes_on_or_found_nothing(
    cli: Cli, here: Path, endpoint: Endpoint
) -> None:
    (here / "agent.py").write_text("async def agent(task, ctx):\n    raise RuntimeError('no such table')\n")
    path = config(here, name="system", agent="agent.py:agent", prompt_search={"rollouts": 60})
    ran = cli("improve", path, "--model", "small", "--base-url", endpoint.url, "--store", "s.db")
    run = loads(Status, (here / "status.json").read_bytes()).run_id
    shown = cli("policy", "show", run, "--store", "s.db").done().out
    assert ran.code != 0 and "The search failed: " in " ".join(shown.split()) and "no such table" in shown
    assert "it stays" not in shown and "goes on" not in shown


@pytest.mark.parametrize(("named", "line"), [({"policy": "sums"}, "sums"), ({"algorithm": "grpo"}, "prompt")])
def test_policy_prompt_searches_and_keeps_the_name_of_the_line_that_the_file_gives(
    here: Path, named: dict[str, str], line: str
) -> None:
    path = config(here, improve=named, model="small", base_url="http://127.0.0.1:9/v1")
    found = ImproveOptions(policy="prompt").settings(path, StoreOptions(), PromptOptions()).improve
    assert found is not None and (found.policy, found.algorithm) == (line, "prompt_search")


@pytest.mark.parametrize(("how", "most"), [({"tokens": 1500}, 1500), ({"money": 0.002, "prices": [1.0, 2.0]}, 1400)])
def test_a_budget_in_tokens_or_money_is_never_passed(
    cli: Cli, here: Path, endpoint: Endpoint, how: dict[str, Any], most: int
) -> None:
    """An answer takes 7 tokens: 4 are read and 3 written."""
    path = config(here, prompt_search={"phrases": list(WORDS), **how})
    told = cli("improve", path, "--model", "small", "--base-url", endpoint.url, "--store", "s.db", "--json").done().json
    assert most / 4 < 7 * len(endpoint.asked) <= most
    (found,) = told["prompt_optimization"]
    name = next(iter(how))
    assert 0 < found["spent"][name] <= found["budget"][name] / 3 and found["held_out"]["tasks"] >= 2


def test_an_answer_that_is_suddenly_long_cannot_pass_a_budget(cli: Cli, here: Path, endpoint: Endpoint) -> None:
    """For 60 calls 3 tokens are written, then as many as the call allows, or 5,000 where it allows any number."""
    used = []

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        wrote = 3 if len(used) < 60 else min(5000, body.get("max_tokens", 5000))
        used.append(4 + wrote)
        usage = {"prompt_tokens": 4, "completion_tokens": wrote}
        is_cut = wrote == body.get("max_tokens")
        return model(body) | completion("IT", usage=usage, choice={"finish_reason": "length" if is_cut else "stop"})

    endpoint.reply = reply
    path = config(here, prompt_search={"phrases": list(WORDS), "tokens": 6000})
    asked = ("improve", path, "--model", "small", "--base-url", endpoint.url, "--store", "s.db")
    stopped = cli(*asked, "--json")
    assert sum(used) <= 6000 and len(used) > 60
    error = stopped.json["status"]["error"]
    assert stopped.code == 3 and "budget: tokens = 6,000: an answer was longer than the 750 tokens" in error
    kept = [one for one in cli("store", "ledger", "--store", "s.db", "--json").done().json if one["kind"] == "spending"]
    assert kept[0]["body"]["tokens"] > 0 and sum(used) <= kept[-1]["body"]["tokens"] <= 6000


def test_a_proposer_of_ones_own_is_named_in_the_settings(cli: Cli, here: Path, endpoint: Endpoint) -> None:
    (here / "own.py").write_text(OWN)
    (here / "agent.py").write_text(AGENT)
    block = {"proposers": ["own.py:Shouting"], "candidates": ["Be kind."], "rollouts": 60}
    path = config(here, name="system", agent="agent.py:agent", prompt_search=block)
    told = cli("improve", path, "--model", "small", "--base-url", endpoint.url, "--store", "s.db", "--json").done().json
    by = {one["by"]: one["prompt"]["system"] for one in told["prompt_optimization"][0]["candidates"]}
    assert by["given"] == "Be kind." and by["shouting"] == "YOU ARE HELPFUL."


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        ({"resources": {}}, (), "resources: has no text, so there is no prompt to improve; give the prompt"),
        ({"prompt_search": {"proposers": ["magic"]}}, (), "prompt_search.proposers: magic: is unknown; use edits, "),
        ({"prompt_search": {"money": 1.0}}, (), "prompt_search.money = 1: what tokens cost is not known; give prices"),
        ({"improve": {"algorithm": "grpo"}}, (), "improve.algorithm = grpo: the weights of small are out of reach"),
        ({}, ("--rollouts", "3"), "budget: rollouts = 3: a proof alone takes 4 for each held-out task"),
        ({}, ("--candidate", " "), "candidate 1: is empty; give the text of a prompt"),
        ({}, ("--reflection-url", "http://x/v1"), "--reflection-url: is the address of a model that is not named"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_any_work(
    cli: Cli, here: Path, change: dict[str, Any], words: tuple[str, ...], said: str
) -> None:
    path = config(here, **{"improve": {}, **change})
    refused = cli("improve", path, "--model", "small", "--base-url", "http://127.0.0.1:9/v1", *words).refusal
    assert said in refused and not (here / ".holdfast").exists()
    assert (
        "is of the search for a prompt; add --search"
        in cli("optimize", "--config", config(here), "--model", "openai/x", "--tokens", "9").refusal
    )
