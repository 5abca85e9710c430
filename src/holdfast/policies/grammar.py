"""Which tokens may come next where an answer must have a form: a JSON object, JSON by a schema, or a call of a tool.

llguidance decides, which is optional (`holdfast[hub]`). Marks of the chat template are drawn only where the form of a
call has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from holdfast.contracts.errors import BadInput
from holdfast.policies.chat_template import ChatTemplate, imported

TEXT, OBJECT = {"type": "text"}, {"type": "object"}
SPACE = {"x-guidance": {"whitespace_pattern": r"[ \n\t]{0,20}"}}  # a weak model would write spaces without an end


def grammar_of(asked: Mapping[str, Any], tools: Sequence[Mapping[str, Any]], template: ChatTemplate) -> str:
    """The grammar of OpenAI's `response_format` or `tool_choice`, as llguidance reads it; BadInput for what is none."""
    form, choice = asked.get("response_format", TEXT), asked.get("tool_choice", "auto")
    matcher = _library().LLMatcher
    if form != TEXT and choice != "auto":
        raise BadInput("sampling.tool_choice", why="and a response_format are both given", remedy="leave one out")
    if form != TEXT:
        what, schema = f"sampling.response_format = {form!r:.60}", _schema(form)
        if schema is None:
            remedy = 'give {"type": "json_object"}, or {"type": "json_schema", "json_schema": {"schema": {…}}}'
            raise BadInput(what, why="is neither json_object nor json_schema", remedy=remedy)
        grammar = str(matcher.grammar_from_json_schema(schema | SPACE))
    else:
        what = f"sampling.tool_choice = {choice!r:.60}"
        grammar = str(matcher.grammar_from_lark(_calling(what, choice, tools, template)))
    if problem := matcher.validate_grammar(grammar):
        raise BadInput(what, why=str(problem).partition("\n")[0][:300], remedy="see llguidance for what it knows")
    return grammar


def _schema(form: Any) -> Any:
    if form == {"type": "json_object"}:
        return OBJECT
    given = form.get("json_schema") if isinstance(form, Mapping) and form.get("type") == "json_schema" else None
    schema = given.get("schema") if isinstance(given, Mapping) else None
    return dict(schema) if isinstance(schema, Mapping) else None


def _calling(what: str, choice: Any, tools: Sequence[Mapping[str, Any]], template: ChatTemplate) -> str:
    """One call of one of the tools, in the form that the template writes calls in."""
    name = choice.get("function", {}).get("name") if isinstance(choice, Mapping) else None
    offered = [tool.get("function", tool) for tool in tools]
    offered = [one for one in offered if name in (None, one.get("name"))]
    if not offered or (name is None and choice != "required"):
        remedy = 'use "auto", "required" or {"type": "function", "function": {"name": …}}, and offer the tool'
        raise BadInput(what, why="names no tool that is offered", remedy=remedy)
    form = template.call_form
    if form is None:
        raise BadInput(what, why="calls in the form of this model's template cannot be forced", remedy="leave it out")
    one = {"anyOf": [_call_schema(tool, form.arguments) for tool in offered]}
    call = {"type": "array", "items": one, "minItems": 1, "maxItems": 1} if form.is_list else one
    before, after = (_mark(template, text) for text in (form.opening, form.closing))
    return f"start: {before} WS? call WS? {after}\ncall: %json {json.dumps(call | SPACE)}\nWS: /[ \\n]{{1,2}}/\n"


def _call_schema(tool: Mapping[str, Any], arguments: str) -> dict[str, Any]:
    given = {"name": {"const": tool["name"]}, arguments: tool.get("parameters") or OBJECT}
    return {**OBJECT, "properties": given, "required": list(given), "additionalProperties": False}


def _mark(template: ChatTemplate, text: str) -> str:
    """A token of its own, or text."""
    ids = template.encode(text)
    if len(ids) == 1 and template.spelled(ids[0] + 1)[ids[0]] is None:
        return f"<[{ids[0]}]>"
    return text and json.dumps(text)


class TokenMask:
    """What may follow in one answer."""

    def __init__(self, template: ChatTemplate, vocabulary: int, grammar: str) -> None:
        if template not in _known:
            _known[template] = _tokenizer(template, vocabulary)
        self._matcher, self._size = _library().LLMatcher(_known[template], grammar), vocabulary

    @property
    def banned(self) -> Tensor:
        """[V], true where a token may not come next. What is complete is over: an end, and nothing else."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            why = str(self._matcher.get_error()).partition("\n")[0][:300]
            raise BadInput("sampling.response_format", why=why, remedy="ask for something simpler")
        return torch.from_numpy(np.unpackbits(bits, count=self._size, bitorder="little") == 0)

    def take(self, token: int) -> None:
        self._matcher.consume_token(token)


_known: WeakKeyDictionary[ChatTemplate, Any] = WeakKeyDictionary()  # a vocabulary's tree is made once


class _Vocabulary:
    """Tokens as llguidance asks for them."""

    bos_token_id = None

    def __init__(self, template: ChatTemplate, size: int) -> None:
        texts = template.spelled(size)
        self.tokens = [f"<|{token}|>".encode() if text is None else text for token, text in enumerate(texts)]
        self.special_token_ids = [token for token, text in enumerate(texts) if text is None]
        self.eos_token_id, self._template = min(template.ends), template

    def __call__(self, text: str | bytes) -> list[int]:
        return self._template.encode(text.decode() if isinstance(text, bytes) else text)


def _tokenizer(template: ChatTemplate, size: int) -> Any:
    wrapped = _library().TokenizerWrapper(_Vocabulary(template, size))
    return _library().LLTokenizer(wrapped, n_vocab=size, eos_token=sorted(template.ends))


def _library() -> Any:
    return imported("llguidance")
