"""Anthropic's messages, kept in OpenAI's chat form: https://docs.anthropic.com/en/api/messages

What only the upstream can read is left out: signatures, redacted thoughts, cache marks. This API gives no token ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.collect.proxy.dialect import (
    Assembler,
    MessageBuilder,
    ModelRequest,
    count,
    joined,
    kind,
    loads,
    messages_of,
    model_of,
    part,
    read_object,
    text_of,
    written,
)
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ModelCall

# Without influence on the answer, or elsewhere in the record.
APART = frozenset({"model", "messages", "system", "stream", "metadata", "service_tier", "cache_control"})
REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
OPAQUE = frozenset({"redacted_thinking"})
SIZES = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")  # together: the prompt
# The member that each kind of delta adds to.
DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


class Messages:
    path = "/v1/messages"
    key_variable = "ANTHROPIC_API_KEY"
    forwarded = frozenset({"anthropic-version", "anthropic-beta"})

    def credentials(self, key: str) -> Mapping[str, str]:
        """Both forms: `x-api-key` is the older one, today's client sends only the other."""
        return {"x-api-key": key, "Authorization": f"Bearer {key}"}

    def read_request(self, body: bytes) -> ModelRequest:
        given = read_object(body)
        model, messages = model_of(given), messages_of(given)
        try:
            conversation = (*_system(given.get("system")), *(said for m in messages for said in _messages(m)))
        except ValueError as error:
            raise BadInput("messages", why=str(error)) from None
        return ModelRequest(
            model=model,
            messages=conversation,
            sampling=_sampling(given),
            is_streamed=given.get("stream") is True,
            body=body,
        )

    def whole(self, request: ModelRequest, body: bytes) -> ModelCall:
        answer = loads(body)
        if not isinstance(answer, dict) or not isinstance(answer.get("content"), list):
            raise ValueError("no message")
        return _call(request, answer, _assistant(answer["content"]).message(), answer.get("stop_reason"))

    def stream(self, request: ModelRequest) -> Blocks:
        return Blocks(request)


class Blocks(Assembler):
    """The blocks of one streamed message."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__(request)
        self._head: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}  # by block and member; joined in `result`
        self._reason: Any = None

    def _take(self, event: dict[str, Any], name: str) -> None:
        sort = kind(event)
        if sort == "message_start" and isinstance(event.get("message"), dict):
            self._head = event["message"]
            self._count(self._head.get("usage"))
        elif sort == "content_block_start" and isinstance(event.get("content_block"), dict):
            self._blocks[self._place(event)] = event["content_block"]
            self.has_begun |= event["content_block"].get("type") == "tool_use"
        elif sort == "content_block_delta" and isinstance(event.get("delta"), dict):
            self._add(self._place(event), event["delta"])
        elif sort == "message_delta":
            self._count(event.get("usage"))
            self._reason = part(event.get("delta"), "stop_reason") or self._reason
        elif sort == "message_stop":
            self.is_ended = True
        elif sort == "error":
            self.is_ended, self._reason = True, None

    def _place(self, event: dict[str, Any]) -> int:
        index = count(event.get("index"))
        return len(self._blocks) if index is None else index

    def _count(self, usage: Any) -> None:
        """Later usage is cumulative, and may leave out what did not change."""
        if isinstance(usage, dict):
            self._usage |= {name: value for name, value in usage.items() if value is not None}

    def _add(self, place: int, delta: dict[str, Any]) -> None:
        member = DELTAS.get(kind(delta))
        text = None if member is None else delta.get(member)
        if member is not None and isinstance(text, str):
            self._blocks.setdefault(place, {"type": {"partial_json": "tool_use"}.get(member, member)})
            self._pieces.setdefault((place, member), []).append(text)
            self.has_begun |= text != ""

    def result(self) -> ModelCall:
        message = _assistant([self._block(place) for place in sorted(self._blocks)]).message()
        return _call(self._request, {**self._head, "usage": self._usage}, message, self._reason)

    def _block(self, place: int) -> dict[str, Any]:
        block = {name: value for name, value in self._blocks[place].items() if name != "partial_json"}
        for member in ("text", "thinking"):
            if (place, member) in self._pieces:
                before, pieces = block.get(member), self._pieces[place, member]
                block[member] = "".join([before, *pieces] if isinstance(before, str) else pieces)
        given = self._pieces.get((place, "partial_json"))
        text = None if given is None else "".join(given)
        try:
            if text:
                block["input"] = loads(text.encode(errors="surrogatepass"))
            written(block.get("input"))
        except ValueError:
            block["partial_json"] = text or ""
        return block


def _assistant(blocks: list[Any]) -> MessageBuilder:
    builder = MessageBuilder()
    for block in blocks:
        sort = kind(block)
        if sort == "text":
            builder.text(block.get("text"))
        elif sort == "thinking":
            builder.thought(block.get("thinking"))
        elif sort == "tool_use":
            builder.call(block.get("id"), block.get("name"), _arguments(block))
        elif isinstance(block, dict) and sort not in OPAQUE:
            builder.item(block)
    return builder


def _arguments(block: dict[str, Any]) -> str:
    """Tool arguments as text; those of a cut stream are kept as far as they came."""
    text = block.get("partial_json")
    return text if isinstance(text, str) else written(block.get("input", {}))


def _system(system: Any) -> Iterator[dict[str, Any]]:
    text = system if isinstance(system, str) else _text(system)
    if text:
        yield {"role": "system", "content": text}


def _messages(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One message in chat form, where tool results are separate messages."""
    role, content = message.get("role"), message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    if role == "assistant":
        yield _assistant(blocks).message()
        return
    role = role if isinstance(role, str) else "user"
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if kind(block) == "tool_result":
            yield from _spoken(role, parts)
            parts = []
            result = {"tool_call_id": block.get("tool_use_id"), "content": _result(block.get("content"))}
            yield {"role": "tool", **result, **({"is_error": True} if block.get("is_error") is True else {})}
        elif isinstance(block, dict):
            parts.append(_part(block))
    yield from _spoken(role, parts)


def _spoken(role: str, parts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    if parts:
        yield {"role": role, "content": joined(parts)}


def _result(content: Any) -> Any:
    """A tool's result: text if possible, else parts."""
    if isinstance(content, list):
        return joined([_part(block) for block in content if isinstance(block, dict)])
    return content if isinstance(content, str) else ""


def _part(block: dict[str, Any]) -> dict[str, Any]:
    """A part in chat form; one without a chat form stays as it is."""
    sort, source = kind(block, "unknown"), block.get("source")
    if sort == "text":
        return {"type": "text", "text": block["text"] if isinstance(block.get("text"), str) else ""}
    if sort == "image" and isinstance(source, dict):
        url = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    return {**block, "type": sort}


def _text(blocks: Any) -> str:
    parts = [part(block, "text") for block in blocks] if isinstance(blocks, list) else []
    return "".join(text for text in parts if isinstance(text, str))


def _sampling(given: dict[str, Any]) -> dict[str, Any]:
    """Sampling parameters under the names of chat completions, if they have one."""
    sampling = {name: value for name, value in given.items() if name not in APART and value is not None}
    if "stop_sequences" in sampling:
        sampling["stop"] = sampling.pop("stop_sequences")
    if isinstance(sampling.get("tools"), list):
        sampling["tools"] = [_tool(tool) for tool in sampling["tools"]]
    choice = sampling.get("tool_choice")
    if isinstance(choice, dict):
        if kind(choice) == "tool":
            sampling["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
        elif kind(choice) in CHOICES:
            sampling["tool_choice"] = CHOICES[kind(choice)]
        if choice.get("disable_parallel_tool_use") is True:
            sampling["parallel_tool_calls"] = False
    return sampling


def _tool(tool: Any) -> Any:
    """A function tool in chat form; the upstream's own tools stay as they are."""
    if not isinstance(tool, dict) or "input_schema" not in tool:
        return tool
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool["input_schema"]}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _call(request: ModelRequest, answer: Mapping[str, Any], message: dict[str, Any], reason: Any) -> ModelCall:
    usage = answer.get("usage")
    sizes = [count(part(usage, name)) for name in SIZES]
    return ModelCall(
        model=text_of(answer.get("model"), request.model),
        messages=request.messages,
        response=message,
        finish_reason=REASONS.get(reason, reason) if isinstance(reason, str) else None,
        prompt_tokens=None if sizes[0] is None else sum(size or 0 for size in sizes),
        completion_tokens=count(part(usage, "output_tokens")),
        thinking_tokens=count(part(part(usage, "output_tokens_details"), "thinking_tokens")),
        sampling=request.sampling,
    )
