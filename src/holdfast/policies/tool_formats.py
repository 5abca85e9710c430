"""Calls of tools in the text of an answer, in the forms that chat templates teach models.

A template is looked at once: a form counts only where the template writes it, so that no answer that happens to be JSON
is taken for a call. What does not parse stays text. Marks are plain text here; ids are `chat_template`'s business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

Call = tuple[str, Any]  # the name of a tool, and its arguments
Reader = Callable[[str], tuple[str, list[Call]]]  # a text without its calls, and the calls

HERMES = re.compile(r"\s*<tool_call>\s*(\{.*?\})\s*</tool_call>\s*", re.DOTALL)
XML = re.compile(r"\s*<tool_call>\s*<function=([^>\s]+)>(.*?)</function>\s*</tool_call>\s*", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
LISTED = re.compile(r"\s*<\|tool_call\|>\s*(\[.*?\])\s*(?:<\|/tool_call\|>|$)\s*", re.DOTALL)
NAMED = re.compile(r"\s*\[TOOL_CALLS\]\s*([\w.-]+)\s*(?:\[ARGS\])?\s*(?=\{)", re.DOTALL)
UNREADABLE = (ValueError, KeyError, TypeError, RecursionError)
MISTRAL, PYTHON_TAG = "[TOOL_CALLS]", "<|python_tag|>"


def reader_of(template: str) -> Reader:
    """The form that a template writes calls in; Hermes' where it shows none that is known."""
    if MISTRAL in template:
        return _mistral
    if "<function=" in template:
        return _xml
    if "<|tool_call|>" in template:
        return _listed
    if "<tool_call>" not in template and (PYTHON_TAG in template or '"parameters": ' in template):
        return _llama
    return _hermes


def _hermes(text: str) -> tuple[str, list[Call]]:
    """<tool_call>{"name": …, "arguments": {…}}</tool_call>: Hermes, Qwen2.5, Qwen3."""
    return _taken(HERMES, text, lambda match: [_call(json.loads(match[1]))])


def _xml(text: str) -> tuple[str, list[Call]]:
    """<tool_call><function=name><parameter=x>…</parameter></function></tool_call>: Qwen3-Coder."""
    return _taken(
        XML, text, lambda match: [(match[1], {one[1]: _value(one[2]) for one in PARAMETER.finditer(match[2])})]
    )


def _listed(text: str) -> tuple[str, list[Call]]:
    """<|tool_call|>[{"name": …, "arguments": {…}}]: Granite, Phi."""
    return _taken(LISTED, text, lambda match: [_call(one) for one in json.loads(match[1])])


def _mistral(text: str) -> tuple[str, list[Call]]:
    """[TOOL_CALLS][{"name": …, "arguments": {…}}], or in later ones [TOOL_CALLS]name[ARGS]{…} for each call."""
    place = text.find(MISTRAL)
    if place < 0:
        return text, []
    rest = text[place:]
    try:
        if NAMED.match(rest):
            return text[:place].rstrip(), list(_named(rest))
        listed, end = json.JSONDecoder().raw_decode(rest[len(MISTRAL) :].lstrip())
        if rest[len(MISTRAL) :].lstrip()[end:].strip():
            return text, []
        return text[:place].rstrip(), [_call(one) for one in listed]
    except UNREADABLE:
        return text, []


def _named(text: str) -> Iterator[Call]:
    while text.strip():
        match = NAMED.match(text)
        if match is None:
            raise ValueError(text)
        arguments, end = json.JSONDecoder().raw_decode(text[match.end() :])
        yield match[1], arguments
        text = text[match.end() + end :]


def _llama(text: str) -> tuple[str, list[Call]]:
    """{"name": …, "parameters": {…}}, the whole of the answer, several with semicolons between them: Llama 3."""
    bare = text.removeprefix(PYTHON_TAG).strip()
    calls: list[Call] = []
    try:
        while bare:
            found, end = json.JSONDecoder().raw_decode(bare)
            calls.append(_call(found, "parameters"))
            bare = bare[end:].lstrip("; \n")
    except UNREADABLE:
        return text, []
    return ("", calls) if calls else (text, [])


class CallForm(NamedTuple):
    """A form that is JSON between two marks: an object, or a list of objects."""

    opening: str
    closing: str
    is_list: bool = False
    arguments: str = "arguments"  # their key


FORMS: Mapping[Reader, CallForm] = {
    _hermes: CallForm("<tool_call>", "</tool_call>"),
    _listed: CallForm("<|tool_call|>", "", is_list=True),
    _llama: CallForm("", "", arguments="parameters"),
}


def _taken(form: re.Pattern[str], text: str, read: Callable[[re.Match[str]], list[Call]]) -> tuple[str, list[Call]]:
    calls: list[Call] = []

    def take(found: re.Match[str]) -> str:
        try:
            calls.extend(read(found))
        except UNREADABLE:
            return found.group()
        return ""

    return form.sub(take, text), calls


def _call(found: Any, arguments: str = "arguments") -> Call:
    given = found.get(arguments, found.get("arguments", {})) if isinstance(found, dict) else {}
    return str(found["name"]), given


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
