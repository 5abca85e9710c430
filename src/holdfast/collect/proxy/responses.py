"""OpenAI's responses, kept in chat form: https://platform.openai.com/docs/api-reference/responses

An assistant's adjacent items become one message. Of a conversation that the upstream stores only what is sent can be
kept; the reference is among the sampling. This API gives no token ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.collect.proxy.dialect import (
    Assembler,
    MessageBuilder,
    ModelRequest,
    OpenAiKey,
    count,
    joined,
    kind,
    loads,
    model_of,
    part,
    read_object,
    text_of,
)
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ModelCall

# Without influence on the answer, or elsewhere in the record.
APART = frozenset({"model", "input", "instructions", "stream", "stream_options", "user", "metadata", "store"}) | {
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "include",
    "service_tier",
    "top_logprobs",
}
CALLS = {"function_call": "arguments", "custom_tool_call": "input"}  # the member with the tool's arguments
OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
CUT = {"max_output_tokens": "length", "max_tokens": "length", "content_filter": "content_filter"}
TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
# Event → item type, the list in it, the index field, and the part's type and member.
DELTAS = {
    "response.output_text.delta": ("message", "content", "content_index", "output_text", "text"),
    "response.refusal.delta": ("message", "content", "content_index", "refusal", "refusal"),
    "response.reasoning_text.delta": ("reasoning", "content", "content_index", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("reasoning", "summary", "summary_index", "summary_text", "text"),
}
ARGUMENTS = {
    "response.function_call_arguments.delta": "function_call",
    "response.custom_tool_call_input.delta": "custom_tool_call",
}
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})


class Responses(OpenAiKey):
    path = "/v1/responses"

    def read_request(self, body: bytes) -> ModelRequest:
        given = read_object(body)
        model, said = model_of(given), given.get("input")
        if isinstance(said, str):
            said = [{"role": "user", "content": said}]
        if said is not None and (not isinstance(said, list) or not all(isinstance(item, dict) for item in said)):
            raise BadInput("input", why="is no text and no list of objects", remedy="give a text or items")
        instructions = given.get("instructions")
        system = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
        return ModelRequest(
            model=model,
            messages=(*system, *_messages(said or ())),
            sampling=_sampling(given),
            is_streamed=given.get("stream") is True,
            body=body,
        )

    def whole(self, request: ModelRequest, body: bytes) -> ModelCall:
        """ValueError for a failed or background response, too."""
        answer = loads(body)
        if not isinstance(answer, dict) or not isinstance(answer.get("output"), list):
            raise ValueError("no response")
        call = _call(request, answer, answer["output"])
        if call.finish_reason is None:
            raise ValueError(f"a response that is {answer.get('status')}")
        return call

    def stream(self, request: ModelRequest) -> Items:
        return Items(request)


class Items(Assembler):
    """The items of one streamed response. The final form of an item replaces its deltas."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__(request)
        self._answer: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}  # whole ones, or their beginnings
        self._pieces: dict[int, dict[tuple[str, int, str, str], list[str]]] = {}

    def _take(self, event: dict[str, Any], name: str) -> None:
        sort = kind(event, name)
        if isinstance(event.get("response"), dict):
            self._answer = event["response"]
        if sort in ENDS:
            self.is_ended = True
            self.has_holes &= not self._answer.get("output")  # the last event repeats everything
            if sort == "error":
                self._answer = {**self._answer, "status": "failed"}
        elif sort in ("response.output_item.added", "response.output_item.done"):
            if isinstance(event.get("item"), dict):
                place = self._place(event)
                self._items[place] = event["item"]
                self.has_begun |= kind(event["item"]) in CALLS
                if sort.endswith("done"):
                    self._pieces.pop(place, None)
        elif sort in DELTAS:
            item, into, index, text, member = DELTAS[sort]
            self._add(event, item, (into, count(event.get(index)) or 0, text, member))
        elif sort in ARGUMENTS:
            self._add(event, ARGUMENTS[sort], ("", 0, "", CALLS[ARGUMENTS[sort]]))

    def _place(self, event: dict[str, Any]) -> int:
        index = count(event.get("output_index"))
        return len(self._items) if index is None else index

    def _add(self, event: dict[str, Any], item: str, where: tuple[str, int, str, str]) -> None:
        delta, place = event.get("delta"), self._place(event)
        if isinstance(delta, str):
            self._items.setdefault(place, {"type": item})
            self._pieces.setdefault(place, {}).setdefault(where, []).append(delta)
            self.has_begun |= delta != ""

    def result(self) -> ModelCall:
        whole = self._answer.get("output")
        if self.is_ended and isinstance(whole, list) and whole:
            return _call(self._request, self._answer, whole)
        return _call(self._request, self._answer, [self._item(place) for place in sorted(self._items)])

    def _item(self, place: int) -> dict[str, Any]:
        item = dict(self._items[place])
        for (into, _, text, member), pieces in sorted(self._pieces.get(place, {}).items()):
            joined = "".join(pieces)
            if not into:
                item[member] = joined
            else:
                before = item.get(into)
                item[into] = [*(before if isinstance(before, list) else ()), {"type": text, member: joined}]
        return item


def _messages(items: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Messages in chat form; an assistant's adjacent items are one message."""
    builder: MessageBuilder | None = None
    for item in items:
        sort = kind(item, "message")
        if sort in OUTPUTS or (sort == "message" and item.get("role") != "assistant"):
            if builder is not None:
                yield builder.message()
                builder = None
            yield _result(item) if sort in OUTPUTS else _message(item)
        else:
            builder = builder or MessageBuilder()
            _say(builder, item)
    if builder is not None:
        yield builder.message()


def _say(said: MessageBuilder, item: Any) -> None:
    sort = kind(item, "message")
    if not isinstance(item, dict):
        return
    if sort == "message":
        content = item.get("content")
        for one in content if isinstance(content, list) else [{"type": "output_text", "text": content}]:
            if kind(one) == "refusal":
                said.text(one.get("refusal"), "refusal")
            else:
                said.text(part(one, "text"))
    elif sort == "reasoning":
        said.thought(_joined(item.get("content")) or _joined(item.get("summary")))
    elif sort in CALLS:
        given = item.get(CALLS[sort])
        said.call(item.get("call_id"), item.get("name"), given if isinstance(given, str) else "")
    else:
        said.item(item)


def _message(item: dict[str, Any]) -> dict[str, Any]:
    role, content = item.get("role"), item.get("content")
    return {"role": role if isinstance(role, str) else "user", "content": _content(content)}


def _result(item: dict[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": item.get("call_id"), "content": _content(item.get("output"))}


def _content(content: Any) -> Any:
    """Text if possible, else parts in chat form."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    return joined([_part(one) for one in content if isinstance(one, dict)])


def _part(one: dict[str, Any]) -> dict[str, Any]:
    if kind(one) in TEXTS:
        return {"type": "text", "text": one["text"] if isinstance(one.get("text"), str) else ""}
    if kind(one) == "input_image" and isinstance(one.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": one["image_url"]}}
    return one


def _joined(parts: Any) -> str:
    texts = [part(one, "text") for one in parts] if isinstance(parts, list) else []
    return "\n\n".join(text for text in texts if isinstance(text, str))


def _sampling(given: dict[str, Any]) -> dict[str, Any]:
    """Sampling parameters under the names of chat completions, if they have one."""
    sampling = {name: value for name, value in given.items() if name not in APART and value is not None}
    if "max_output_tokens" in sampling:
        sampling["max_tokens"] = sampling.pop("max_output_tokens")
    if isinstance(sampling.get("tools"), list):
        sampling["tools"] = [_tool(tool) for tool in sampling["tools"]]
    choice = sampling.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        sampling["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    return sampling


def _tool(tool: Any) -> Any:
    """A function tool in chat form; the upstream's own tools stay as they are."""
    if not isinstance(tool, dict) or tool.get("type") != "function" or "name" not in tool:
        return tool
    function = {name: tool[name] for name in ("name", "description", "parameters", "strict") if tool.get(name)}
    return {"type": "function", "function": function}


def _call(request: ModelRequest, answer: Mapping[str, Any], output: Iterable[Any]) -> ModelCall:
    builder = MessageBuilder()
    for item in output:
        _say(builder, item)
    usage = answer.get("usage")
    return ModelCall(
        model=text_of(answer.get("model"), request.model),
        messages=request.messages,
        response=builder.message(),
        finish_reason=_reason(answer, bool(builder.calls)),
        prompt_tokens=count(part(usage, "input_tokens")),
        completion_tokens=count(part(usage, "output_tokens")),
        thinking_tokens=count(part(part(usage, "output_tokens_details"), "reasoning_tokens")),
        sampling=request.sampling,
    )


def _reason(answer: Mapping[str, Any], has_calls: bool) -> str | None:
    """The finish reason; None if it is not finished or failed."""
    if answer.get("status") == "completed":
        return "tool_calls" if has_calls else "stop"
    if answer.get("status") == "incomplete":
        reason = part(answer.get("incomplete_details"), "reason")
        return CUT.get(reason, reason) if isinstance(reason, str) else "length"
    return None
