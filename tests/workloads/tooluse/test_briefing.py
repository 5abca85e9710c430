"""A model that needs instructions gets the usual ones, and only where there are none."""

from __future__ import annotations

import pytest

from holdfast.policies.local import Local
from holdfast.policies.sprout.shelf import load
from holdfast.workloads.tooluse.briefing import Briefed, briefed
from holdfast.workloads.tooluse.tools import specs

ASKED = [{"role": "user", "content": "What is 417 * 23?"}]


@pytest.mark.parametrize(
    ("tools", "begins"),
    [([{"type": "function"}], "Use tools."), ([], "Use no tools."), (None, "Use no tools.")],
)
def test_instructions_fit_the_tools_that_are_there(tools: object, begins: str) -> None:
    first, *rest = briefed(ASKED, tools)
    assert first["role"] == "system" and str(first["content"]).startswith(begins)
    assert rest == ASKED


@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions_that_are_there_stay(role: str) -> None:
    given = [{"role": role, "content": "Be kind."}, *ASKED]
    assert briefed(given, None) == given


async def test_a_plain_question_with_a_tool_is_answered_by_a_call_at_once_and_as_a_stream() -> None:
    model, _ = load("sprout")
    with Local(model, name="sprout") as local:
        speaker = Briefed(local)
        call = await speaker(ASKED, tools=specs(["calc"]), temperature=0.0)
        assert call.response["tool_calls"][0]["function"] == {"name": "calc", "arguments": '{"expression":"417*23"}'}
        pieces = [piece async for piece in speaker.stream(ASKED, tools=specs(["calc"]), temperature=0.0)]
        assert pieces[-1].completion_ids == call.completion_ids
