"""Text as it comes: always a beginning of what the whole message says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.policies import tokens
from holdfast.policies.chat_template import Deltas

ids = st.lists(
    st.integers(0, tokens.VOCABULARY - 1)
    | st.sampled_from([*"é€".encode(), tokens.THINK, tokens.UNTHINK, tokens.CALL]),
    max_size=40,
)


def test_letters_come_whole() -> None:
    deltas = Deltas()
    assert [deltas.add([byte]) for byte in "hé".encode()] == [{"content": "h"}, {}, {"content": "é"}]


def test_thoughts_and_text_are_kept_apart_and_calls_are_not_shown() -> None:
    message = {
        "reasoning_content": "a sum",
        "content": "wait",
        "tool_calls": [{"function": {"name": "calc", "arguments": "{}"}}],
    }
    assert Deltas().add(tokens.answer(message)) == {"reasoning_content": "a sum", "content": "wait"}


def test_what_may_be_a_stop_string_is_held_back() -> None:
    deltas = Deltas(stop=("\n\n", "END"))
    assert deltas.add(b"ok EN") == {"content": "ok "}
    assert deltas.add(b"ough") == {"content": "ENou"}


@given(ids, st.integers(1, 7))
def test_what_was_shown_begins_the_message(written: list[int], size: int) -> None:
    deltas, shown = Deltas(), {"content": "", "reasoning_content": ""}
    for start in range(0, len(written), size):
        for name, text in deltas.add(written[start : start + size]).items():
            shown[name] += text
    message = tokens.read(written)
    for name, text in shown.items():
        said = message.get(name, "")
        assert said.startswith(text)
        assert len(said) - len(text) <= 3  # at most one letter that never came whole
