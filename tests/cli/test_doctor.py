"""Whether an endpoint is fit, as people and programs are told."""

from __future__ import annotations

import pytest

from holdfast.collect.endpoint_probe import CHECKS
from tests.cli.conftest import Cli
from tests.collect.doctor.toys import Mute, NoIds, Toy, serving


def test_sprout_is_fit_by_every_check_and_its_trainer_agrees(cli: Cli) -> None:
    told = cli("doctor", "local/sprout", "--json").done().json
    assert {one["check"]: one["state"] for one in told["findings"]} == dict.fromkeys(CHECKS, "ok")
    assert told["decision"]["open"] and told["model"] == "sprout"
    assert told["system"].startswith("Use tools.")  # it is told under which instructions it was asked
    gap = told["findings"][-1]["figures"]
    assert gap["tokens"] > 1000 and gap["mean"] < 1e-5 and gap["most"] < 1e-3


def test_an_endpoint_that_is_fit_is_a_table_of_80_columns(cli: Cli) -> None:
    with serving(Toy()) as url:
        ran = cli("doctor", url, "--samples", 12).done()
    assert [line.split()[:2] for line in ran.page[1 : len(CHECKS)]] == [[check, "ok"] for check in list(CHECKS)[:-1]]
    assert ran.lines[len(CHECKS)].split()[:2] == ["trainer_gap", "skipped"]
    assert ran.lines[-1] == f"toy at {url}: fit to be trained on"


def test_one_that_is_not_is_told_why_and_the_command_fails(cli: Cli) -> None:
    with serving(NoIds()) as url:
        ran = cli("doctor", url)
    assert ran.code == 1
    assert ran.lines[-3:] == [
        f"toy at {url}: not fit to be trained on",
        "  no_token_ids: no token ids of the prompt and the answer",
        "  no_logprobs: no log-probs came",
    ]


def test_tools_can_be_left_out(cli: Cli) -> None:
    with serving(Mute()) as url:
        assert cli("doctor", url, "--samples", 8, "--json").json["decision"]["reasons"][0]["code"] == "tool_calls_lost"
        assert cli("doctor", url, "--samples", 8, "--no-tools").code == 0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["http://127.0.0.1:9/v1"], 1, "is it running and reachable?"),
        (["http://127.0.0.1:9/v1", "--model", "x"], 1, "is it running and reachable?"),
        (["http://me:tell-nobody@127.0.0.1:9/v1"], 2, "a name or a password"),
        (["http://127.0.0.1:99999/v1"], 2, "a port from 1 to 65535"),
        (["localhost:9"], 2, "is not http:// or https://"),
        (["local/nothing"], 2, "is neither in the package nor a folder"),
        (["local/sprout", "--model", "x"], 2, "names the model already"),
    ],
)
def test_what_cannot_be_asked_is_one_line(cli: Cli, words: list[str], code: int, says: str) -> None:
    ran = cli("doctor", *words)
    assert (ran.code, ran.out) == (code, "") and says in ran.err and ran.err.count("\n") == 1
    assert "tell-nobody" not in ran.err
