"""`holdfast sprout`: a tiny model with random weights is talked to and served as the shipped ones are."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from holdfast.collect.client import Client
from tests.cli.conftest import Cli

HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from holdfast.policies.lm import ModelShape, Transformer
    from holdfast.policies.weights import Manifest, save_transformer

    folder = tmp_path_factory.mktemp("weights") / "tiny"
    model = Transformer(ModelShape(width=16, layers=1, heads=2, context=1024), seed=0)
    save_transformer(folder, model, Manifest(kind="transformer", shape={}, created_at=0.0))
    return folder


def test_it_answers_what_is_said_and_ends(cli: Cli, folder: Path) -> None:
    said = cli("sprout", "chat", "--model", folder, "--say", "hi", "--say", "and?", "--json", "--max-tokens", 40)
    assert said.code == 0
    first, second = (json.loads(line) for line in said.out.splitlines())
    assert (first["say"], second["say"]) == ("hi", "and?")
    assert first["messages"][0] == {"role": "user", "content": "hi"}
    assert first["messages"][1]["content"] == first["answer"]
    assert first["model"].startswith("tiny@") and first["tokens"] >= 1
    again = cli("sprout", "chat", "--model", folder, "--say", "hi", "--say", "and?", "--json", "--max-tokens", 40)
    assert again == said  # greedy, or seeded: the same conversation


def test_piped_lines_are_taken_one_by_one(cli: Cli, folder: Path) -> None:
    ran = cli.real(
        *("sprout", "chat", "--model", folder, "--temperature", 1),
        input="/tools off\n\n/think off\n/bye\nhi\n/quit\nnever\n",
    )
    assert ran.code == 0
    assert ran.err.endswith("\nholdfast: error: /bye: is no order; /help lists them\n")
    assert [line[:4] for line in ran.lines[:4]] == ["off "] * 4 and ran.lines[4] == "thinking: off"
    assert len(ran.lines) > 5 and "never" not in ran.out


def test_instructions_of_its_own_are_said_and_those_that_are_given_replace_them(cli: Cli, folder: Path) -> None:
    words = ("sprout", "chat", "--model", folder, "--say", "hi", "--max-tokens", 4)
    for tools, begins in (("--tools", "instructions: Use tools."), ("--no-tools", "instructions: Use no tools.")):
        assert cli(*words, tools).err.startswith(begins)
        assert str(cli(*words, tools, "--json").json["system"]).startswith(begins.partition(" ")[2])
    for given in ("Be kind.", ""):
        ran = cli(*words, "--system", given, "--json")
        assert (ran.json["system"], ran.err) == (given or None, "")


def test_a_question_that_does_not_fit_ends_what_was_said_at_once(cli: Cli, folder: Path) -> None:
    ran = cli("sprout", "chat", "--model", folder, "--system", "", "--say", "x" * 2000)
    assert ran.code == 2
    assert ran.err.startswith("holdfast: error: a prompt of ") and "the context is 1024" in ran.err


def test_it_is_served_to_the_official_client_and_to_ours(folder: Path) -> None:
    command = [sys.executable, "-m", "holdfast.cli", "sprout", "serve", "--model", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("tiny at http://127.0.0.1:") and said.endswith("/v1 (Ctrl-C ends it)\n")
        url = said.split()[2]
        with openai.OpenAI(base_url=url, api_key="none", timeout=40) as client:
            how = {"model": "tiny", "messages": HELLO, "max_tokens": 24, "seed": 5, "logprobs": True}
            whole = client.chat.completions.create(**how, extra_body={"return_token_ids": True})
            parts = list(client.chat.completions.create(**how, stream=True, extra_body={"return_token_ids": True}))
        call = asyncio.run(ask(url))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=40)
    assert (process.returncode, out, err) == (130, "", "holdfast: interrupted\n")
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


async def ask(url: str):  # type: ignore[no-untyped-def]
    client = Client("tiny", url)
    try:
        return await client(HELLO, max_tokens=24, seed=5, logprobs=True, return_token_ids=True)
    finally:
        await client.close()


def test_others_than_this_machine_need_a_token(cli: Cli, folder: Path) -> None:
    ran = cli("sprout", "serve", "--model", folder, "--host", "0.0.0.0", "--port", 0)
    assert (ran.code, ran.out) == (2, "")
    assert "host 0.0.0.0: everyone who reaches this machine could use the model; give a token" in ran.err


def test_an_unknown_model_is_named(cli: Cli, tmp_path: Path) -> None:
    ran = cli("sprout", "chat", "--model", tmp_path / "nothing", "--say", "hi")
    assert ran.code == 2
    assert "nothing': is neither in the package nor a folder; use sprout, sprout-weak, tiny-tools" in ran.err


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


@pytest.mark.parametrize("command", ["serve", "chat", "card"])
def test_every_command_explains_itself_in_80_columns(cli: Cli, command: str) -> None:
    ran = cli("sprout", command, "--help")
    assert ran.code == 0
    assert ran.lines[0].startswith(f"Usage: holdfast sprout {command}")
    assert max(map(len, ran.lines)) <= 80
