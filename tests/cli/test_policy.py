"""`holdfast policy` and `sprout`: models are taught, talked to, served and exported; Hugging Face folders go through
all commands that take a model: run, improve, prove, release."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
import transformers

from holdfast.cli.policy import COMMANDS, ROUNDS, Quit, Talk, record
from holdfast.cli.serving import loader
from holdfast.collect.client import Client
from holdfast.contracts.errors import BadInput, Fault
from holdfast.contracts.release import Stage
from holdfast.contracts.trace import ModelCall
from holdfast.policies.engine import Local
from holdfast.policies.hub import Hub
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.model import Model, folder_of, load
from holdfast.policies.weights import Manifest, save_transformer
from holdfast.store.artifacts import FolderArtifacts
from holdfast.store.store import open_store
from holdfast.workloads.tooluse.tasks import generate, to_input
from holdfast.workloads.tooluse.tools import SPECS, Toolbox, ToolWorld
from tests.cli.conftest import Answer, At, Cli, ended, first_line, running
from tests.workloads.scene import dialogue

QUICK = ("--epochs", 1, "--batch", 4, "--lr", 1e-3, "--held-out", 0.25)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's own: tiny-tools, in a folder of another name."""
    return shutil.copytree(folder_of("tiny-tools"), tmp_path / "mine")


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    shown = [dialogue(10**7 + place, "strong") for place in range(12)]
    rows = [{"messages": list(one.messages), "tools": list(one.tools)} for one in shown]
    (tmp_path / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "examples.jsonl"


def train(cli: Cli, *words: object) -> Answer:
    return cli("policy", "train", *words).done()


def test_a_model_is_taught_shown_and_exported(cli: Cli, folder: Path, examples: Path, at: At, tmp_path: Path) -> None:
    ran = train(cli, folder, examples, "--lora", 4, *QUICK, *at)
    assert "9 to learn from" in ran.out and "3 held out" in ran.out and "nats a token" in ran.out
    assert all(len(line) <= 80 for line in ran.out.partition("next:\n")[0].splitlines())
    version = next(line.split()[1] for line in ran.lines if line.startswith("  version"))
    told = cli("policy", "show", version, *at, "--json").json
    assert (told["model"], told["lora"], told["format"]) == (str(folder), 4, "Hugging Face")
    assert told["line"] == [version] and 0 < told["trained"] < told["parameters"]
    out = tmp_path / "out"
    assert cli("policy", "export", version, out, *at).code == 0
    transformers.AutoModelForCausalLM.from_pretrained(out)
    transformers.AutoTokenizer.from_pretrained(out)
    assert cli("policy", "export", version, out, *at).code == 2  # it is there
    assert "run-1" in cli("runs", *at).out

    more = train(cli, version, examples, *QUICK, *at, "--json").json["result"]
    line = cli("policy", "show", more["version"], *at, "--json").json["line"]
    assert line == [version, more["version"]]
    said = cli("sprout", "chat", "--model", out, "--say", "What is 417 * 23?")
    assert said.code == 0 and "9591" in said.out


def test_bad_examples_are_one_line_and_leave_no_store(cli: Cli, folder: Path, nowhere: At, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}]}\n')
    for words, why in (
        ((folder, file), "bad.jsonl line 1: messages[1] has the role 'robot'"),
        ((), "MODEL: is missing"),
        (("sprout",), "examples: there are none"),
        (("sprout", tmp_path / "none.jsonl"), "no such file"),
        (("sprout", file, "--column", "prompt"), "is not NAME=COLUMN"),
        (("sprout", file, "--lr", "-1"), "sft.lr = -1"),
        (("sprout", file, "--held-out", "1"), "is a share"),
    ):
        assert why in cli("policy", "train", *words, *nowhere).refusal
        assert not Path(nowhere[1]).exists()


def test_columns_of_other_names_are_mapped_and_a_csv_will_do(cli: Cli, at: At, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("ask,reply\n" + "".join(f"What is {n} + 1?,{n + 1}\n" for n in range(8)))
    words = ("--column", "prompt=ask", "--column", "completion=reply", "--system", "Be brief.")
    told = train(cli, "sprout-weak", file, *words, *QUICK, *at, "--json").json
    assert told["result"]["examples"]["sequences"] == 6
    with open_store(at[1]) as store:
        assert store.runs.newest()[0].settings["source"]["columns"] == {"prompt": "ask", "completion": "reply"}


def test_imported_logs_are_learnt_from(cli: Cli, at: At, tmp_path: Path) -> None:
    file = tmp_path / "logs.jsonl"
    for n in range(2, 14):
        asked = {"role": "user", "content": f"How many legs have {n} cats?"}
        chat = {"messages": [asked, {"role": "assistant", "content": f"{4 * n}"}], "reward": float(n % 2)}
        with file.open("a") as lines:
            lines.write(json.dumps(chat) + "\n")
    run = cli("import", file, *at, "--json").done().json["run"]
    told = train(cli, "tiny-tools", "--from-run", run, "--least", 1, *QUICK, *at, "--json").json["result"]
    assert told["examples"]["examples"] == 6 and told["examples"]["skipped"] == {"its reward is below 1": 6}
    said = cli("policy", "train", "tiny-tools", "--from-run", run, "--least", 2, *at).refusal
    assert "12: its reward is below 2" in said


def rows_of_users(tmp_path: Path, **ends: str) -> Path:
    file = tmp_path / "rows.jsonl"
    rows = [
        {"prompt": f"{n}?", "customer": f"c{n % 8}", **{k: v.format(n) for k, v in ends.items()}} for n in range(24)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_budget_of_privacy_is_kept_and_told(cli: Cli, at: At, tmp_path: Path) -> None:
    file = rows_of_users(tmp_path, completion="{} it is")
    words = ("--epsilon", 4, "--unit", "user", "--column", "user=customer", "--epochs", 2, "--batch", 2, "--lora", 2)
    told = train(cli, "tiny-tools", file, *words, *at, "--json").json["result"]
    spent = told["privacy"]
    assert 3.9 < spent["epsilon"] <= 4.0 and spent["steps"] == told["updates"] and spent["unit"] == "user"
    assert spent["units"] <= 8 and spent["sampling_rate"] == 2 / spent["units"] and spent["delta"] == 1e-5
    out = train(cli, told["version"], file, "--epsilon", 1, *at, "--epochs", 1).out
    assert "privacy     epsilon 1 (4." in out and "with 1 private run before it)" in " ".join(out.split())
    assert all(len(line) <= 80 for line in out.partition("next:")[0].splitlines())
    shown = cli("policy", "show", next(line.split()[1] for line in out.splitlines() if "version" in line), *at)
    assert [line.split()[:2] for line in shown.lines if "epsilon" in line] == [["privacy", "epsilon"]] * 2


def test_a_config_says_what_is_learnt_and_how_and_options_go_over_it(cli: Cli, at: At, tmp_path: Path) -> None:
    rows_of_users(tmp_path, chosen="{} it is", rejected="no idea")
    config = tmp_path / "train.toml"
    config.write_text(
        'model = "sprout-weak"\nseed = 3\n[dpo]\nexamples = "rows.jsonl"\nepochs = 2\nbeta = 0.2\n'
        "[privacy]\nepsilon = 8.0\nclip = 0.5\n"
    )
    told = train(cli, "--config", config, "--epochs", 1, "--batch", 8, *at, "--json").json["result"]
    assert told["privacy"]["budget"] == 8.0 and told["privacy"]["clip"] == 0.5 and told["examples"]["units"] <= 24
    with open_store(at[1]) as store:
        kept = store.runs.newest()[0]
    assert kept.kind == "dpo" and (kept.settings["dpo"]["epochs"], kept.settings["dpo"]["beta"]) == (1, 0.2)
    assert kept.settings["dpo"]["seed"] == 3 and kept.settings["dpo"]["privacy"]["epsilon"] == 8.0


def test_what_cannot_be_private_is_refused_before_anything_begins(cli: Cli, nowhere: At, tmp_path: Path) -> None:
    file = rows_of_users(tmp_path, completion="{} it is")
    (tmp_path / "two.toml").write_text("[sft]\n[dpo]\n")
    (tmp_path / "odd.toml").write_text("[sft]\nexample = 1\n")
    for words, why in (
        (("sprout", file, "--epsilon", "0"), "privacy.epsilon = 0.0: must be finite and above 0"),
        (("sprout", file, "--epsilon", "1", "--unit", "token"), "privacy.unit = 'token': is unknown"),
        (("sprout", file, "--epsilon", "1", "--unit", "user"), "names no user, and privacy.unit is user"),
        (("sprout", file, "--delta", "1e-5"), "--delta: there is no budget; add --epsilon"),
        (("sprout", file, "--algorithm", "ppo"), "--algorithm ppo: is unknown; use sft or dpo or reward_model"),
        (("sprout", file, "--algorithm", "dpo"), "it is none of"),
        (("sprout", file, "--beta", "1"), "--beta 1: is of dpo"),
        (("--config", tmp_path / "two.toml"), "sft, dpo, reward_model: are there together (sft and dpo)"),
        (("--config", tmp_path / "odd.toml"), "sft.example = 1: unknown key; did you mean examples?"),
    ):
        assert why in cli("policy", "train", *words, *nowhere).refusal
        assert not Path(nowhere[1]).exists()
    said = cli("optimize", "--config", config(tmp_path, privacy={"epsilon": 8}), "--model", "local/sprout", *nowhere)
    assert "privacy: only sft and dpo learn privately" in said.refusal
    assert not Path(nowhere[1]).exists()


# Hugging Face folders through the other commands ---------------------------------------------------------------------


def config(tmp_path: Path, **more: Any) -> Path:
    def tasks(split: str, count: int) -> list[dict[str, Any]]:
        return [
            {**to_input(one), "sampling": {"temperature": 1.0, "max_tokens": 64}} for one in generate(split, 0, count)
        ]

    told = {
        "agent": "holdfast.workloads.tooluse.agent:agent",
        "worker_count": 16,
        "optimize": tasks("train", 4),
        "validate": tasks("val", 4),
        **more,
    }
    (tmp_path / "config.json").write_text(json.dumps(told))
    return tmp_path / "config.json"


def test_a_run_is_answered_by_a_folder(cli: Cli, folder: Path, at: At, here: Path) -> None:
    cli("optimize", "--config", config(here), "--model", "local/mine", *at).done()
    with open_store(at[1]) as store:
        run = store.runs.newest()[0].id
        [calls] = [one.calls for one in store.experiences.of([f"{run}/train-1"])]
        assert calls[0].model == f"local/{folder}@0" and calls[0].completion_ids


def test_a_folder_is_improved_compared_and_released(cli: Cli, folder: Path, at: At, tmp_path: Path) -> None:
    proof = {"seeds": 1, "batch": 4, "reward_range": [0, 1.1]}
    how = {"policy": "tools", "steps": 1, "step_tasks": 4, "samples": 4, "learning_rate": 1e-3, "prove": proof}
    cli("improve", config(tmp_path, improve=how), "--model", f"local/{folder}", *at).done()
    with open_store(at[1]) as store:
        [made] = store.checkpoints.of_run(store.runs.newest()[0].id)
        assert made.algorithm == "grpo"
    proved = cli("prove", "run", "tooluse:4", "--baseline", folder, "--candidate", made.id, "--batch", 4, *at).done()
    assert f"{made.id} against {folder}" in " ".join(proved.out.split())

    cli("release", "add", folder, "--policy", "mine", *at).done()
    cli("release", "promote", "mine@1", *at).done()
    cli("release", "add", made.id, "--policy", "mine", "--parent", "mine@1", *at).done()
    with open_store(at[1]) as store:
        first, second = (store.releases.get(name) for name in ("mine@1", "mine@2"))
        assert first.stage is Stage.LIVE
        for release, policy in ((first, Model(str(folder))), (second, Model(str(folder), checkpoint=made.id))):
            served, proved_by = (
                tokens_of(speaker) for speaker in (loader(store, None)(release), opened(policy, store.folder))
            )
            assert served == proved_by and served


def opened(policy: Model, store: Path) -> Any:
    net, _ = load(policy, FolderArtifacts(store))
    assert isinstance(net, Hub)
    return Local(net, slots=4, seed=0)


def tokens_of(speaker: Any) -> tuple[int, ...]:
    try:
        asked = [{"role": "user", "content": "What is 12 * 12?"}]
        found: tuple[int, ...] = asyncio.run(speaker(asked, seed=3, temperature=1.0, max_tokens=40)).completion_ids
        return found
    finally:
        speaker.close()


# Talking to a model, and serving it

HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with random weights that can read its tools."""
    folder = tmp_path_factory.mktemp("weights") / "tiny"
    model = Transformer(ModelShape(width=16, layers=1, heads=2, context=1024), seed=0)
    save_transformer(folder, model, Manifest(kind="transformer", shape={}, created_at=0.0))
    return str(folder)


def test_it_answers_what_is_said_and_ends(cli: Cli, small: str) -> None:
    said = cli("sprout", "chat", "--model", small, "--say", "hi", "--say", "and?", "--json", "--max-tokens", 40)
    assert said.code == 0
    first, second = (json.loads(line) for line in said.out.splitlines())
    assert (first["say"], second["say"]) == ("hi", "and?")
    assert first["messages"][0] == {"role": "user", "content": "hi"}
    assert first["messages"][1]["content"] == first["answer"]
    assert first["model"].startswith("tiny@") and first["tokens"] >= 1
    again = cli("sprout", "chat", "--model", small, "--say", "hi", "--say", "and?", "--json", "--max-tokens", 40)
    assert again == said  # greedy, or seeded: the same conversation


def test_piped_lines_are_taken_one_by_one(cli: Cli, small: str) -> None:
    ran = cli.real(
        *("sprout", "chat", "--model", small, "--temperature", 1),
        input="/tools off\n\n/think off\n/bye\nhi\n/quit\nnever\n",
    )
    assert ran.code == 0
    assert ran.err.endswith("\nholdfast: error: /bye: is no order; /help lists them\n")
    assert [line[:4] for line in ran.lines[:4]] == ["off "] * 4 and ran.lines[4] == "thinking: off"
    assert len(ran.lines) > 5 and "never" not in ran.out


def test_instructions_of_its_own_are_said_and_those_that_are_given_replace_them(cli: Cli, small: str) -> None:
    words = ("sprout", "chat", "--model", small, "--say", "hi", "--max-tokens", 4)
    for tools, begins in (("--tools", "instructions: Use tools."), ("--no-tools", "instructions: Use no tools.")):
        assert cli(*words, tools).err.startswith(begins)
        assert str(cli(*words, tools, "--json").json["system"]).startswith(begins.partition(" ")[2])
    for given in ("Be kind.", ""):
        ran = cli(*words, "--system", given, "--json")
        assert (ran.json["system"], ran.err) == (given or None, "")


def test_a_question_that_does_not_fit_ends_what_was_said_at_once(cli: Cli, small: str) -> None:
    ran = cli("sprout", "chat", "--model", small, "--system", "", "--say", "x" * 2000)
    assert ran.code == 2
    assert ran.err.startswith("holdfast: error: a prompt of ") and "the context is 1024" in ran.err


def test_it_is_served_to_the_official_client_and_to_ours(small: str) -> None:
    with running("sprout", "serve", "--model", small, "--port", "0") as process:
        said = first_line(process)
        assert said.startswith("tiny at http://127.0.0.1:") and said.endswith("/v1 (Ctrl-C ends it)\n")
        url = said.split()[2]
        with openai.OpenAI(base_url=url, api_key="none", timeout=40) as client:
            how: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 24, "seed": 5, "logprobs": True}
            whole = client.chat.completions.create(**how, extra_body={"return_token_ids": True})
            parts = list(client.chat.completions.create(**how, stream=True, extra_body={"return_token_ids": True}))
        call = asyncio.run(ask(url))
        process.send_signal(signal.SIGINT)
        ran = ended(process)
    assert (ran.code, ran.out, ran.err) == (130, "", "holdfast: interrupted\n")
    (choice,) = whole.choices
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert call.completion_ids == tuple(choice.token_ids)  # type: ignore[attr-defined]
    assert call.logprobs == tuple(entry.logprob for entry in choice.logprobs.content)
    assert call.prompt_ids == tuple(whole.prompt_token_ids)  # type: ignore[attr-defined]
    assert "".join(part.choices[0].delta.content or "" for part in parts) == choice.message.content
    streamed = [token for part in parts for token in getattr(part.choices[0], "token_ids", None) or ()]
    assert streamed == list(call.completion_ids)
    logprobs = [part.choices[0].logprobs for part in parts]
    assert [entry.logprob for part in logprobs for entry in (part and part.content) or ()] == list(call.logprobs)


async def ask(url: str) -> ModelCall:
    client = Client("tiny", url)
    try:
        return await client(HELLO, max_tokens=24, seed=5, logprobs=True, return_token_ids=True)
    finally:
        await client.close()


def test_who_may_not_be_served_and_what_is_no_model_are_one_line(cli: Cli, small: str, tmp_path: Path) -> None:
    said = cli("sprout", "serve", "--model", small, "--host", "0.0.0.0", "--port", 0).refusal
    assert "host 0.0.0.0: everyone who reaches this machine could use the model; give a token" in said
    said = cli("sprout", "chat", "--model", tmp_path / "nothing", "--say", "hi").refusal
    assert "nothing': is neither in the package nor a folder; use sprout, sprout-weak, tiny-tools" in said


@pytest.mark.parametrize(
    ("words", "missing", "says"),
    [
        (["chat", "--say", "hi"], "torch", "torch: is not installed; pip install 'holdfast[learn]'"),
        (["serve"], "starlette", "starlette: is not installed; pip install 'holdfast[serve]'"),
    ],
)
def test_what_is_not_installed_is_said_in_one_line(tmp_path: Path, words: list[str], missing: str, says: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        f"sys.argv = ['holdfast', 'sprout', *{words!r}]\n"
        "from holdfast.cli.main import main; main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"holdfast: error: {says}\n")


# A conversation with a scripted model: what is shown, what is remembered, which orders are obeyed


class Script:
    """Answers in turn; keeps what it was asked."""

    def __init__(self, *answers: Mapping[str, Any] | Exception) -> None:
        self.answers, self.asked = list(answers), list[tuple[list[Any], dict[str, Any]]]()

    async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
        self.asked.append((list(messages), sampling))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        response = {"role": "assistant", "content": "", **answer}
        return ModelCall(
            model="script", messages=tuple(messages), response=response, finish_reason="stop", completion_tokens=3
        )


def calls(name: str, arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"id": "a", "type": "function", "function": {"name": name, "arguments": arguments}}]}


class Conversation:
    def __init__(self, *answers: Mapping[str, Any] | Exception, **how: Any) -> None:
        self.script, self.shown = Script(*answers), ""
        box = Toolbox(ToolWorld(records={"oak.price": "12"}))
        how = {"tools": SPECS, "call": box.call, "sampling": {}, "think": "Think first.", **how}
        self.talk = Talk(self.script, write=self.write, **how)

    def write(self, text: str) -> None:
        self.shown += text


async def test_a_tool_really_runs_and_its_result_is_read() -> None:
    seen = Conversation(
        {"reasoning_content": "a sum", **calls("calc", '{"expression": "2+2"}')}, {"content": "It is 4."}
    )
    made = await seen.talk.say("What is 2+2?")
    assert seen.shown == '(a sum)\n-> calc {"expression": "2+2"}\n<- 4\nIt is 4.\n'
    assert [message["role"] for message in seen.talk.messages] == ["user", "assistant", "tool", "assistant"]
    assert seen.script.asked[1][0] == seen.talk.messages[:3]
    assert [tool["function"]["name"] for tool in seen.script.asked[0][1]["tools"]] == list(SPECS)
    line = json.loads(record("What is 2+2?", seen.talk.messages, made, system="Be brief."))
    assert (line["answer"], line["tokens"], line["finish_reason"]) == ("It is 4.", 6, "stop")
    assert line["system"] == "Be brief."
    assert line["messages"][2] == {"role": "tool", "tool_call_id": "a", "content": "4"}


async def test_a_tool_that_is_off_is_neither_offered_nor_run() -> None:
    seen = Conversation(calls("lookup", '{"key": "oak.price"}'), {"content": "I do not know."})
    assert seen.talk.order("/tools calc").startswith("on  calc: ")
    await seen.talk.say("How much is an oak?")
    assert "<- error: unknown tool\n" in seen.shown
    assert [tool["function"]["name"] for tool in seen.script.asked[0][1]["tools"]] == ["calc"]


async def test_without_tools_none_are_mentioned() -> None:
    seen = Conversation({"content": "Hi."})
    seen.talk.order("/tools off")
    await seen.talk.say("Hello")
    assert seen.script.asked == [([{"role": "user", "content": "Hello"}], {})]
    seen.talk.order("/tools on")
    assert seen.talk.offered == list(SPECS)


async def test_a_model_that_calls_for_ever_is_stopped() -> None:
    seen = Conversation(*[calls("calc", "{}")] * (ROUNDS + 1))
    assert len(await seen.talk.say("Go")) == ROUNDS


async def test_instructions_and_thinking_stand_in_the_system_message() -> None:
    seen = Conversation(*[{"content": "ok"}] * 4, system="Be brief.")
    for order in ("/think on", "/think off", "/think 32", "/system"):
        seen.talk.order(order)
        await seen.talk.say("Hello")
    openings = [messages[0] for messages, _ in seen.script.asked]
    assert [opening["content"] for opening in openings] == [
        "Think first. Be brief.",
        "Be brief.",
        "Think first. Be brief.",
        "Think first.",
    ]
    assert [how.get("thinking") for _, how in seen.script.asked] == [None, 0, 32, 32]


async def test_a_seed_gives_each_answer_its_own_chance() -> None:
    seen = Conversation(calls("calc", "{}"), {"content": "a"}, {"content": "b"}, sampling={"seed": 5})
    await seen.talk.say("one")
    await seen.talk.say("two")
    assert len({how["seed"] for _, how in seen.script.asked}) == 3


async def test_a_question_that_fails_is_taken_back() -> None:
    seen = Conversation({"content": "Hi."}, calls("calc", "{}"), Fault("model", why="is closed"), {"content": "Again."})
    await seen.talk.say("Hello")
    before = list(seen.talk.messages)
    with pytest.raises(Fault):
        await seen.talk.say("What is 2+2?")
    assert seen.talk.messages == before
    await seen.talk.say("Hello?")
    assert seen.talk.messages[-1]["content"] == "Again."


async def test_what_a_terminal_would_obey_is_not_printed() -> None:
    seen = Conversation({"content": "red\x1b[31m\nnext"})
    await seen.talk.say("Hello")
    assert seen.shown == "red�[31m\nnext\n"


def test_orders_are_listed_and_others_refused() -> None:
    talk = Conversation().talk
    assert [line.split()[0] for line in talk.order("/help").splitlines()] == [order.split()[0] for order in COMMANDS]
    assert talk.order("/system Be  brief. ") == "instructions: Be  brief."
    with pytest.raises(Quit):
        talk.order("/quit")
    for order, says in (
        ("/bye", "/bye: is no order; /help lists them"),
        ("/think much", "/think much: is not a number; give on, off or a number of tokens"),
        ("/tools hammer", "tool hammer: is unknown; there are calc, lookup, convert, calendar"),
    ):
        with pytest.raises(BadInput) as caught:
            talk.order(order)
        assert str(caught.value) == says


async def test_what_was_said_can_be_forgotten() -> None:
    seen = Conversation({"content": "Hi."})
    await seen.talk.say("Hello")
    assert seen.talk.order("/new") == "forgotten"
    assert seen.talk.messages == []
