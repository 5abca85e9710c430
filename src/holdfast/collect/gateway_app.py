"""The model gateway over HTTP: OpenAI's chat completions and responses, Anthropic's messages.

The capture proxy's dialects read the requests; each dialect here adds the writer, whole or as server-sent events.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.collect import endpoint
from holdfast.collect.agent import AttemptEnded, ModelEntry, TokenRegistry, failure
from holdfast.collect.chat_format import (
    Chunks,
    Envelope,
    Piece,
    Request,
    completion,
    finish_reason,
    pieces,
    read_request,
    usage,
)
from holdfast.collect.client import ModelRefused
from holdfast.collect.proxy import anthropic, attribution, dialect, responses
from holdfast.collect.proxy.dialect import ModelRequest, read_object
from holdfast.contracts.errors import BadInput, HoldfastError
from holdfast.contracts.trace import TAG, ModelCall

RAW = "raw_arguments"  # the key for tool arguments that are no JSON object
STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
TAKEN = frozenset({"model", "messages", "stream"})  # fields of the chat form that are no sampling parameters
REMEMBERED = ("previous_response_id", "conversation", "prompt")  # conversations that a vendor stores; we store none


def _request(model_request: ModelRequest, any_sampling: bool, **more: Any) -> Request:
    """The request in chat form; checked to the last field unless the model checks parameters itself."""
    for name in TAKEN.intersection(model_request.sampling):
        raise BadInput(name, why="is no parameter here", remedy="leave it out")
    if any_sampling:
        return Request(
            model=model_request.model,
            messages=model_request.messages,
            sampling=model_request.sampling,
            stream=model_request.is_streamed,
            **more,
        )
    for place, message in enumerate(model_request.messages):
        if message.get("items"):
            kinds = ", ".join(sorted({str(item.get("type"))[:60] for item in message["items"]}))
            raise BadInput(f"messages[{place}]", why=f"has parts that no model here reads: {kinds}")
    body = {
        **model_request.sampling,
        "model": model_request.model,
        "messages": list(model_request.messages),
        "stream": model_request.is_streamed,
    }
    return replace(read_request(body), **more)


class ChatWriter:
    def __init__(self, request: Request, envelope: Envelope) -> None:
        self._chunks = Chunks(request, envelope)

    def begin(self) -> Iterator[bytes]:
        return map(endpoint.sse_data, self._chunks.begin())

    def add(self, new: Piece | ModelCall) -> Iterator[bytes]:
        yield endpoint.sse_data(self._chunks.add(0, new))
        if isinstance(new, ModelCall):
            yield from map(endpoint.sse_data, self._chunks.close())
            yield b"data: [DONE]\n\n"

    def error(self, status: int, message: str) -> Iterator[bytes]:
        yield endpoint.sse_data(endpoint.error_form(status, message))
        yield b"data: [DONE]\n\n"


class Chat:
    stream = ChatWriter
    error = staticmethod(endpoint.error_form)
    path = "chat/completions"

    def read(self, body: bytes, *, any_sampling: bool) -> Request:
        model_request = dialect.Chat().read_request(body)  # refuses several choices, too
        if not any_sampling:
            return read_request(read_object(body))
        given = read_object(body)
        options = given.get("stream_options")
        return _request(
            model_request,
            any_sampling,
            logprobs=given.get("logprobs") is True,
            token_ids=given.get("return_token_ids") is True,
            usage=isinstance(options, dict) and options.get("include_usage") is True,
        )

    def whole(self, request: Request, call: ModelCall, envelope: Envelope) -> dict[str, Any]:
        return completion(request, [call], envelope)


class MessagesWriter:
    """Writes texts as they come, one block for a run of one kind, and tool calls at the end."""

    def __init__(self, request: Request, envelope: Envelope) -> None:
        self._request, self._envelope = request, envelope
        self._place, self._open = -1, ""

    def begin(self) -> Iterator[bytes]:
        message = {**_opened(self._envelope, self._request.model), "content": [], "stop_reason": None}
        message |= {"stop_sequence": None, "usage": {"input_tokens": 0, "output_tokens": 0}}
        yield _event("message_start", message=message)

    def add(self, new: Piece | ModelCall) -> Iterator[bytes]:
        if not isinstance(new, ModelCall):
            yield from self._text("thinking", "thinking_delta", new.get("reasoning_content"))
            yield from self._text("text", "text_delta", new.get("content"))
            return
        for call in new.response.get("tool_calls") or ():
            block = _tool_use(call)
            yield from self._begin_block({**block, "input": {}})
            given = {"type": "input_json_delta", "partial_json": orjson.dumps(block["input"]).decode()}
            yield _event("content_block_delta", index=self._place, delta=given)
        yield from self._end_block()
        yield _event("message_delta", delta=_stopped(new), usage=_anthropic_usage(new))
        yield _event("message_stop")

    def error(self, status: int, message: str) -> Iterator[bytes]:
        yield _event("error", error=Messages().error(status, message)["error"])

    def _text(self, kind: str, delta: str, text: str | None) -> Iterator[bytes]:
        if text:
            if self._open != kind:
                yield from self._begin_block({"type": kind, kind: "", **({"signature": ""} if kind != "text" else {})})
            yield _event("content_block_delta", index=self._place, delta={"type": delta, kind: text})

    def _begin_block(self, block: Mapping[str, Any]) -> Iterator[bytes]:
        yield from self._end_block()
        self._place, self._open = self._place + 1, block["type"]
        yield _event("content_block_start", index=self._place, content_block=block)

    def _end_block(self) -> Iterator[bytes]:
        if self._open:
            yield _event("content_block_stop", index=self._place)
        self._open = ""


class Messages:
    stream = MessagesWriter
    path = "messages"

    def read(self, body: bytes, *, any_sampling: bool) -> Request:
        model_request = anthropic.Messages().read_request(body)
        return _request(replace(model_request, sampling=_thinking(model_request.sampling)), any_sampling)

    def whole(self, request: Request, call: ModelCall, envelope: Envelope) -> dict[str, Any]:
        message = call.response
        blocks: list[dict[str, Any]] = []
        if thought := message.get("reasoning_content"):
            blocks.append({"type": "thinking", "thinking": thought, "signature": ""})
        if text := message.get("content"):
            blocks.append({"type": "text", "text": text})
        blocks += [_tool_use(call) for call in message.get("tool_calls") or ()]
        return {**_opened(envelope, call.model), "content": blocks, **_stopped(call), "usage": _anthropic_usage(call)}

    def error(self, status: int, message: str, param: str | None = None) -> dict[str, Any]:
        kind = endpoint.KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}


def _thinking(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Anthropic's thinking limit under our name."""
    given = sampling.get("thinking")
    if not isinstance(given, dict):
        return dict(sampling)
    rest = {name: value for name, value in sampling.items() if name != "thinking"}
    match given:
        case {"type": "disabled"}:
            return {**rest, "thinking": 0}
        case {"type": "enabled", "budget_tokens": int() as most}:
            return {**rest, "thinking": most}
        case _:
            why = "is neither disabled nor enabled with budget_tokens"
            raise BadInput("thinking", why=why, remedy="leave it out")


def _opened(envelope: Envelope, model: str) -> dict[str, Any]:
    return {"id": f"msg_{envelope.id}", "type": "message", "role": "assistant", "model": model}


def _stopped(call: ModelCall) -> dict[str, Any]:
    reason = finish_reason(call)
    return {"stop_reason": STOPS.get(reason, reason), "stop_sequence": None}


def _anthropic_usage(call: ModelCall) -> dict[str, Any]:
    return {"input_tokens": call.prompt_tokens or 0, "output_tokens": call.completion_tokens or 0}


def _tool_use(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    given = _parsed(function.get("arguments") or "{}")
    if not isinstance(given, dict):
        given = {RAW: function["arguments"]}
    return {"type": "tool_use", "id": call.get("id"), "name": function["name"], "input": given}


class ResponsesWriter:
    """Writes texts as they come, one item for each kind, and tool calls at the end."""

    def __init__(self, request: Request, envelope: Envelope) -> None:
        self._request, self._envelope = request, envelope
        self._number = 0
        self._output: list[dict[str, Any]] = []
        self._open: _Open | None = None

    def begin(self) -> Iterator[bytes]:
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, response=_response(self._request, self._envelope, None, ()))

    def add(self, new: Piece | ModelCall) -> Iterator[bytes]:
        if not isinstance(new, ModelCall):
            yield from self._text("reasoning", new.get("reasoning_content"))
            yield from self._text("message", new.get("content"))
            return
        yield from self._end_item()
        for item in _items(new):
            if item["type"] == "function_call":
                yield from self._call(item)
            elif item["type"] not in {one["type"] for one in self._output}:  # an empty answer
                yield from self._text(item["type"], "", begin=True)
                yield from self._end_item()
        whole = _response(self._request, self._envelope, new, self._output)
        yield self._event(f"response.{whole['status']}", response=whole)

    def error(self, status: int, message: str) -> Iterator[bytes]:
        yield self._event("error", code=endpoint.CODES.get(status), message=message, param=None)

    def _text(self, kind: str, text: str | None, *, begin: bool = False) -> Iterator[bytes]:
        if not text and not begin:
            return
        if self._open is None or self._open.kind != kind:
            yield from self._end_item()
            self._open = _Open(kind, _identity(kind))
            yield self._placed("response.output_item.added", item=self._unfinished())
            yield self._within("response.content_part.added", part={**self._item()["content"][0], "text": ""})
        if text:
            self._open.text += text
            yield self._within(f"{self._open.event}.delta", delta=text, **self._open.extra)

    def _end_item(self) -> Iterator[bytes]:
        if self._open is None:
            return
        item = self._item()
        yield self._within(f"{self._open.event}.done", text=self._open.text, **self._open.extra)
        yield self._within("response.content_part.done", part=item["content"][0])
        yield self._placed("response.output_item.done", item=item)
        self._output.append(item)
        self._open = None

    def _call(self, item: dict[str, Any]) -> Iterator[bytes]:
        yield self._placed("response.output_item.added", item={**item, "arguments": "", "status": "in_progress"})
        named, name = {"item_id": item["id"]}, "response.function_call_arguments"
        yield self._placed(f"{name}.delta", delta=item["arguments"], **named)
        yield self._placed(f"{name}.done", arguments=item["arguments"], name=item["name"], **named)
        yield self._placed("response.output_item.done", item=item)
        self._output.append(item)

    def _item(self) -> dict[str, Any]:
        assert self._open is not None
        return _item(self._open.kind, self._open.text, self._open.id)

    def _unfinished(self) -> dict[str, Any]:
        item = {**self._item(), "content": []}
        return {**item, "status": "in_progress"} if item["type"] == "message" else item

    def _within(self, name: str, /, **members: Any) -> bytes:
        assert self._open is not None
        return self._placed(name, item_id=self._open.id, content_index=0, **members)

    def _placed(self, name: str, /, **members: Any) -> bytes:
        return self._event(name, output_index=len(self._output), **members)

    def _event(self, name: str, /, **members: Any) -> bytes:
        self._number += 1
        return _event(name, sequence_number=self._number - 1, **members)


class Responses:
    stream = ResponsesWriter
    error = staticmethod(endpoint.error_form)
    path = "responses"

    def read(self, body: bytes, *, any_sampling: bool) -> Request:
        model_request = responses.Responses().read_request(body)
        return _request(replace(model_request, sampling=_as_chat(model_request.sampling)), any_sampling)

    def whole(self, request: Request, call: ModelCall, envelope: Envelope) -> dict[str, Any]:
        return _response(request, envelope, call, _items(call))


def _as_chat(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of responses under the names of chat completions; neutral ones are left out."""
    found = dict(sampling)
    for name in REMEMBERED:
        if name in found:
            raise BadInput(name, why="nothing is remembered here", remedy="send the whole conversation as input")
    for name, neutral in (("truncation", "disabled"), ("background", False)):
        if name in found and found.pop(name) != neutral:
            raise BadInput(name, why="is not supported here", remedy="leave it out")
    text = _object(found.pop("text", None), "text")
    if text.get("format"):
        found["response_format"] = _format(_object(text["format"], "text.format"))
    if text.get("verbosity") not in (None, "medium"):
        found["verbosity"] = text["verbosity"]
    reasoning = _object(found.pop("reasoning", None), "reasoning")
    if reasoning.get("effort") is not None:
        found["reasoning_effort"] = reasoning["effort"]
    return found


def _format(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("type") != "json_schema":
        return dict(given)
    return {"type": "json_schema", "json_schema": {name: given[name] for name in given if name != "type"}}


def _object(given: Any, name: str) -> dict[str, Any]:
    if given is not None and not isinstance(given, dict):
        raise BadInput(name, why="is not an object", remedy="leave it out")
    return given or {}


def _items(call: ModelCall) -> list[dict[str, Any]]:
    message = call.response
    items: list[dict[str, Any]] = []
    if thought := message.get("reasoning_content"):
        items.append(_item("reasoning", thought))
    if (text := message.get("content")) or not (items or message.get("tool_calls")):
        items.append(_item("message", text or ""))
    return [*items, *(_function_call(one) for one in message.get("tool_calls") or ())]


def _item(kind: str, text: str, identity: str | None = None) -> dict[str, Any]:
    identity = identity or _identity(kind)
    if kind == "reasoning":
        return {"type": kind, "id": identity, "summary": [], "content": [{"type": "reasoning_text", "text": text}]}
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": kind, "id": identity, "role": "assistant", "status": "completed", "content": [part]}


def _function_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    named = {"call_id": call.get("id"), "name": function["name"], "arguments": function.get("arguments") or ""}
    return {"type": "function_call", "id": _identity("function_call"), **named, "status": "completed"}


def _identity(kind: str) -> str:
    return f"{ {'reasoning': 'rs', 'message': 'msg', 'function_call': 'fc'}[kind] }_{secrets.token_hex(12)}"


def _response(
    request: Request, envelope: Envelope, call: ModelCall | None, output: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A response object; without a call, one in progress."""
    cut = None if call is None else CUT.get(finish_reason(call))
    counted = None if call is None else usage([call])
    return {
        "id": f"resp_{envelope.id}",
        "object": "response",
        "created_at": envelope.created,
        "model": request.model if call is None else call.model,
        "status": "in_progress" if call is None else "completed" if cut is None else "incomplete",
        "incomplete_details": None if cut is None else {"reason": cut},
        "error": None,
        "instructions": None,
        "metadata": {},
        "output": list(output),
        "parallel_tool_calls": True,
        "temperature": request.sampling.get("temperature"),
        "top_p": request.sampling.get("top_p"),
        "tool_choice": "auto",
        "tools": [],
        "usage": None if counted is None else _responses_usage(counted),
    }


def _responses_usage(counted: Mapping[str, Any]) -> dict[str, Any]:
    thought = (counted.get("completion_tokens_details") or {}).get("reasoning_tokens", 0)
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": counted["total_tokens"],
    }


@dataclass(slots=True)
class _Open:
    """An output item whose text is being streamed."""

    kind: str
    id: str
    text: str = ""

    @property
    def event(self) -> str:
        return "response.reasoning_text" if self.kind == "reasoning" else "response.output_text"

    @property
    def extra(self) -> dict[str, Any]:
        return {} if self.kind == "reasoning" else {"logprobs": []}


GatewayDialect = Chat | Messages | Responses
StreamWriter = ChatWriter | MessagesWriter | ResponsesWriter
DIALECTS: Mapping[str, GatewayDialect] = {one.path: one for one in (Chat(), Responses(), Messages())}


def as_written(
    messages: Sequence[Mapping[str, Any]], tool_calls: Sequence[Mapping[str, Any]]
) -> tuple[Mapping[str, Any], ...]:
    """The conversation with tool-call arguments exactly as the model wrote them.

    Clients parse arguments and write them with other spaces, so the model would not read what it wrote. `tool_calls`
    are those of this attempt's answers; only equal arguments are restored.
    """
    return tuple(
        {**message, "tool_calls": [_call_as_written(call, tool_calls) for call in message["tool_calls"]]}
        if message.get("role") == "assistant" and isinstance(message.get("tool_calls"), list)
        else message
        for message in messages
    )


def _call_as_written(call: Any, tool_calls: Sequence[Mapping[str, Any]]) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    given = _parsed(function["arguments"])
    for tool_call in reversed(tool_calls):
        theirs = tool_call["function"]
        if tool_call.get("id") == call.get("id") and theirs["name"] == function.get("name"):
            text = theirs.get("arguments") or ""
            if text == function["arguments"]:
                return call
            if given is not None and given in (_parsed(text or "{}"), {RAW: text}):
                return {**call, "function": {**function, "arguments": text}}
    return call


def _parsed(text: str) -> Any:
    """None if it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _event(name: str, /, **members: Any) -> bytes:
    return b"event: " + name.encode() + b"\n" + endpoint.sse_data({"type": name, **members})


# Clients add /v1 to a path, or expect it in their base URL, or both.
PATH = re.compile(r"/a/(?P<token>[\w.-]+)(?:/v1)*/(?P<what>.+)")
FINAL = {"x-should-retry": "false"}  # obeyed by OpenAI's and Anthropic's clients: our own retries are done


class GatewayApp:
    def __init__(self, register: TokenRegistry, clock: Callable[[], float]) -> None:
        self._register, self._clock = register, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        http_request = HttpRequest(scope, receive)
        match = PATH.fullmatch(scope["path"])
        what = "" if match is None else match["what"]
        dialect = DIALECTS.get(what, DIALECTS["chat/completions"])
        try:
            entry = None if match is None else self._register.find(match["token"])
            if entry is None:
                raise HTTPException(404, "there is nothing at this address; use ctx.base_url as it is")
            response = await self._respond(entry, what, http_request)
        except ClientDisconnect:
            response = Response(status_code=endpoint.NOBODY)
        except Exception as error:
            status, message = _told(error)
            response = endpoint.json_response(dialect.error(status, message, endpoint.param_of(error)), status, FINAL)
        await response(scope, receive, send)

    async def _respond(self, entry: ModelEntry, what: str, http_request: HttpRequest) -> Response:
        reader = endpoint.RequestReader(name=entry.context.model, token=entry.access.key)
        reader.admit(http_request)
        if what == "models" and http_request.method == "GET":
            created = int(self._clock())
            model = {"id": entry.context.model, "object": "model", "created": created, "owned_by": endpoint.OWNER}
            return endpoint.json_response({"object": "list", "data": [model]})
        if what not in DIALECTS or http_request.method != "POST":
            spoken = ", ".join(f"POST /{path}" for path in DIALECTS)
            raise HTTPException(404, f"{http_request.method} /{what[:100]} is not answered here; there are {spoken}")
        dialect, body = DIALECTS[what], await reader.content(http_request)
        if entry.context.complete is None:
            raise BadInput("this run", why="has no model", remedy="give --model")
        request = dialect.read(body, any_sampling=entry.any_sampling)
        request = replace(request, messages=as_written(request.messages, entry.tool_calls))
        if (tag := attribution.tag_of(dict(http_request.headers.raw))) is not None:
            request = replace(request, sampling={**request.sampling, TAG: tag})  # `ask` takes it out again
        envelope = Envelope(id=secrets.token_hex(12), created=int(self._clock()))
        return await endpoint.unless_left(http_request.receive, _answered(entry, dialect, request, envelope))


async def _answered(entry: ModelEntry, dialect: GatewayDialect, request: Request, envelope: Envelope) -> Response:
    try:
        if not request.stream:
            call = await entry(request.messages, **request.sampling)
            return endpoint.json_response(dialect.whole(request, call, envelope))
        answer = pieces(entry, request.messages, **request.sampling)
        first = await anext(answer)  # so that a call that cannot begin gets an HTTP status
    except Exception as error:
        _keep(entry, error)
        raise
    return endpoint.Events(_events(entry, first, answer, dialect.stream(request, envelope)))


async def _events(
    entry: ModelEntry, first: Piece | ModelCall, answer: AsyncGenerator[Piece | ModelCall, None], writer: StreamWriter
) -> AsyncIterator[bytes]:
    """The status has been sent, so later errors become events."""
    async with aclosing(answer):
        try:
            for event in (*writer.begin(), *writer.add(first)):
                yield event
            async for new in answer:
                for event in writer.add(new):
                    yield event
        except Exception as error:
            _keep(entry, error)
            for event in writer.error(*_told(error)):
                yield event


def _keep(entry: ModelEntry, error: Exception) -> None:
    """Keeps a foreign exception in the trace; the agent's client only learns its type."""
    if not isinstance(error, HoldfastError):
        entry.context.trace.event("model.failed", **failure(error))


def _told(error: Exception) -> tuple[int, str]:
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    if isinstance(error, AttemptEnded):
        return 410, str(error)
    return 400 if isinstance(error, ModelRefused) else endpoint.status_of(error), endpoint.says(error)
