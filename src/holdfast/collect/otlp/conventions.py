"""GenAI's semantic conventions, read and written, and the export of attempts to an OTLP collector.

Read are today's names (semantic conventions 1.38 and after) and the older ones; written are today's. Token ids and
log-probs go under `holdfast.`. An exported span's id is made from its attempt's id and its number.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import aiohttp
import orjson

from holdfast.collect.client import checked, hidden
from holdfast.collect.otlp import wire
from holdfast.collect.otlp.wire import NS, PROTOBUF, OtelEvent, OtelSpan
from holdfast.collect.proxy.dialect import MessageBuilder, count, joined, kind, part, written
from holdfast.contracts.errors import Fault
from holdfast.contracts.reward import RewardBreakdown
from holdfast.contracts.rollout import Attempt, Backoff, Rollout
from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall

MODEL_OPERATIONS = frozenset({"chat", "text_completion", "generate_content"})
OTHER_OPERATIONS = frozenset({"embeddings", "create_agent", "invoke_agent", "invoke_workflow", "retrieval"})
SAMPLING = {  # OpenTelemetry's name → ours
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.top_k": "top_k",
    "gen_ai.request.max_tokens": "max_tokens",
    "gen_ai.request.stop_sequences": "stop",
    "gen_ai.request.frequency_penalty": "frequency_penalty",
    "gen_ai.request.presence_penalty": "presence_penalty",
    "gen_ai.request.seed": "seed",
    "gen_ai.openai.request.seed": "seed",
}
USAGE = {
    "prompt_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    "completion_tokens": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    "thinking_tokens": ("gen_ai.usage.reasoning.output_tokens", "gen_ai.usage.details.reasoning_tokens"),
}
REASONS = {"tool_call": "tool_calls", "end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
ROLES = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
DETAILS = "gen_ai.client.inference.operation.details"
IDS = ("prompt_ids", "completion_ids", "logprobs", "forced")
INDEXED = re.compile(r"gen_ai\.(prompt|completion)\.(\d{1,5})\.(.+)")
# Attributes that a call is read from: they are kept in the call only.
CONTENT_ATTRIBUTES = re.compile(
    r"gen_ai\.(input\.messages|output\.messages|system_instructions|tool\.definitions|prompt|completion)(\.|$)"
    r"|gen_ai\.tool\.call\.(arguments|result)$|gen_ai\.request\.(?!stream$)|gen_ai\.usage\."
    r"|(events|all_messages_events|tool_arguments|tool_response|model_request_parameters|logfire\.json_schema)$"
    r"|holdfast\.(prompt_ids|completion_ids|logprobs|forced|scrubbed|sampling)$"
)


def model_call(span: OtelSpan) -> ModelCall | None:
    """The model call in this span, or None."""
    given = dict(span.attributes)
    for event in span.events:
        if event.name == DETAILS:
            given |= event.attributes
    operation = given.get("gen_ai.operation.name")
    model = given.get("gen_ai.response.model") or given.get("gen_ai.request.model")
    if operation in OTHER_OPERATIONS or operation == "execute_tool" or not isinstance(model, str):
        return None
    messages, response, reason = _conversation(given, span)
    if operation not in MODEL_OPERATIONS and not messages and response is None:
        return None
    reasons = given.get("gen_ai.response.finish_reasons")
    reason = (reasons[0] if isinstance(reasons, list) and reasons else None) or reason
    sampling: dict[str, Any] = _parsed(given.get("holdfast.sampling")) or {}
    sampling |= {ours: given[theirs] for theirs, ours in SAMPLING.items() if given.get(theirs) is not None}
    if tools := [tool for one in _listed(given.get("gen_ai.tool.definitions")) if (tool := _tool(one))]:
        sampling["tools"] = tools
    return ModelCall(
        model=model,
        messages=tuple(messages),
        response=response or {},
        finish_reason=REASONS.get(reason, reason) if isinstance(reason, str) else None,
        sampling=sampling,
        **_usage(given),
        **_ids(given),
    )


def tool_call(span: OtelSpan) -> ToolCall | None:
    """The tool call in this span, or None."""
    given = span.attributes
    name = given.get("gen_ai.tool.name")
    if not isinstance(name, str) or given.get("gen_ai.operation.name", "execute_tool") != "execute_tool":
        return None
    arguments = _parsed(given.get("gen_ai.tool.call.arguments", given.get("tool_arguments")))
    identity = given.get("gen_ai.tool.call.id")
    result = _parsed(given.get("gen_ai.tool.call.result", given.get("tool_response")))
    return ToolCall(
        tool=name,
        arguments=arguments if isinstance(arguments, dict) else {} if arguments is None else {"": arguments},
        result=result,
        error=span.error,
        call_id=identity if isinstance(identity, str) else None,
    )


def _conversation(given: Mapping[str, Any], span: OtelSpan) -> tuple[list[Any], dict[str, Any] | None, Any]:
    """The messages, the answer and the finish reason, from the first convention that the span uses."""
    inputs, outputs = _listed(given.get("gen_ai.input.messages")), _listed(given.get("gen_ai.output.messages"))
    if inputs or outputs:
        instructions = [{"role": "system", "parts": _listed(given.get("gen_ai.system_instructions"))}]
        before = [m for one in [*instructions, *inputs] for m in _from_parts(one)]
        answers = [output for output in outputs if isinstance(output, dict)]
        said = next((m for answer in answers for m in _from_parts(answer) if m["role"] == "assistant"), None)
        return before, said, answers[0].get("finish_reason") if answers else None
    told = [(event.name, event.attributes) for event in span.events]
    told += [(str(one.get("event.name")), one) for one in _listed(given.get("events")) if isinstance(one, dict)]
    messages = [_from_event(ROLES[name], body) for name, body in told if name in ROLES]
    choices = [body for name, body in told if name == "gen_ai.choice"]
    if messages or choices:
        body = choices[0] if choices else {}
        message = _parsed(body.get("message", body.get("gen_ai.event.content")))
        said = _from_event("assistant", message if isinstance(message, dict) else body) if choices else None
        return messages, said, body.get("finish_reason")
    return _from_numbers(given, told)


def _from_numbers(
    given: Mapping[str, Any], told: Iterable[tuple[str, Mapping[str, Any]]]
) -> tuple[list[Any], dict[str, Any] | None, Any]:
    """From `gen_ai.prompt.0.content` and so on, or from whole prompts in attributes or events."""
    everything = dict(given)
    for name, body in told:
        if name in ("gen_ai.content.prompt", "gen_ai.content.completion"):
            everything |= body
    rows: dict[str, dict[int, dict[str, Any]]] = {"prompt": {}, "completion": {}}
    for key, value in everything.items():
        if match := INDEXED.fullmatch(key):
            _put(rows[match[1]].setdefault(int(match[2]), {}), match[3].split("."), value)
        elif key in ("gen_ai.prompt", "gen_ai.completion"):
            whole = _parsed(value)
            for place, one in enumerate(whole if isinstance(whole, list) else [{"content": whole}]):
                if isinstance(one, dict):
                    rows[key.removeprefix("gen_ai.")][place] = one
    messages = [_from_event(row.get("role", "user"), row) for _, row in sorted(rows["prompt"].items())]
    answers = [row for _, row in sorted(rows["completion"].items())]
    said = _from_event("assistant", answers[0]) if answers else None
    return messages, said, answers[0].get("finish_reason") if answers else None


def _put(row: dict[str, Any], path: list[str], value: Any) -> None:
    """Puts `tool_calls.0.name` into the row, by index."""
    if len(path) == 3 and path[1].isdecimal():
        row.setdefault(path[0], {}).setdefault(int(path[1]), {})[path[2]] = value
    else:
        row[".".join(path)] = value


def _from_event(role: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    role = body.get("role") or role
    content, calls = body.get("content"), body.get("tool_calls")
    if isinstance(content, str) and content.startswith("[{"):
        content = _texts(_parsed(content)) or content
    if role == "tool":
        return {"role": "tool", "tool_call_id": body.get("id") or body.get("tool_call_id"), "content": content}
    if role != "assistant":
        return {"role": role if isinstance(role, str) else "user", "content": "" if content is None else content}
    builder = MessageBuilder()
    builder.thought(body.get("reasoning_content") or body.get("reasoning"))
    builder.text(content if isinstance(content, str) else _texts(content))
    calls = [one for _, one in sorted(calls.items())] if isinstance(calls, dict) else _listed(calls)
    for call in calls:
        function = part(call, "function") or call
        builder.call(part(call, "id"), part(function, "name"), _spelled(part(function, "arguments")))
    return builder.message()


def _texts(parts: Any) -> str:
    found = [part(one, "text") or part(one, "content") for one in parts] if isinstance(parts, list) else []
    return "".join(text for text in found if isinstance(text, str))


def _from_parts(message: Any) -> Iterator[dict[str, Any]]:
    """Messages in chat form, where tool results are separate messages."""
    role, parts = part(message, "role"), _listed(part(message, "parts"))
    if role == "assistant":
        builder = MessageBuilder()
        for one in parts:
            _say(builder, one)
        yield builder.message()
        return
    rest: list[dict[str, Any]] = []
    for one in parts:
        if kind(one) == "tool_call_response":
            result = one.get("response", one.get("result"))
            text = result if isinstance(result, str) else "" if result is None else written(result)
            yield {"role": "tool", "tool_call_id": one.get("id"), "content": text}
        elif isinstance(one, dict):
            rest.append(_chat_part(one))
    if rest:
        yield {"role": role if isinstance(role, str) else "user", "content": joined(rest)}


def _say(said: MessageBuilder, one: Any) -> None:
    sort = kind(one)
    if sort == "text":
        said.text(one.get("content"))
    elif sort in ("reasoning", "thinking"):
        said.thought(one.get("content"))
    elif sort == "refusal":
        said.text(one.get("content"), "refusal")
    elif sort == "tool_call":
        said.call(one.get("id"), one.get("name"), _spelled(one.get("arguments")))
    elif isinstance(one, dict):
        said.item(one)


def _chat_part(one: dict[str, Any]) -> dict[str, Any]:
    sort = kind(one, "unknown")
    if sort == "text":
        return {"type": "text", "text": one["content"] if isinstance(one.get("content"), str) else ""}
    if sort == "uri" and one.get("modality") == "image":
        return {"type": "image_url", "image_url": {"url": one.get("uri")}}
    if sort == "blob" and one.get("modality") == "image":
        return {"type": "image_url", "image_url": {"url": f"data:{one.get('mime_type')};base64,{one.get('content')}"}}
    return {**one, "type": sort}


def _spelled(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else "{}" if arguments is None else written(arguments)


def _tool(one: Any) -> dict[str, Any] | None:
    if not isinstance(one, dict):
        return None
    if isinstance(one.get("function"), dict):
        return {"type": "function", "function": one["function"]}
    function = {name: one[name] for name in ("name", "description", "parameters", "strict") if one.get(name)}
    return {"type": "function", "function": function}


def _usage(given: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {ours: [count(given.get(name)) for name in names] for ours, names in USAGE.items()}
    return {ours: next((size for size in found if size is not None), None) for ours, found in sizes.items()}


def _ids(given: Mapping[str, Any]) -> dict[str, Any]:
    ids: dict[str, Any] = {name: tuple(given[f"holdfast.{name}"]) for name in IDS if f"holdfast.{name}" in given}
    if ranges := given.get("holdfast.scrubbed"):
        ids["scrubbed"] = tuple(zip(ranges[::2], ranges[1::2], strict=True))
    return ids


def _parsed(value: Any) -> Any:
    """The value of a JSON text; any other value stays."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def _listed(value: Any) -> list[Any]:
    value = _parsed(value)
    return value if isinstance(value, list) else []


def model_attributes(call: ModelCall) -> dict[str, Any]:
    """The attributes of a model call."""
    system = [m for m in call.messages[:1] if m.get("role") == "system" and isinstance(m.get("content"), str)]
    given: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "holdfast",
        "gen_ai.request.model": call.model,
        "gen_ai.response.model": call.model,
        "gen_ai.input.messages": _json([_as_parts(message) for message in call.messages[len(system) :]]),
    }
    if system:
        given["gen_ai.system_instructions"] = _json([{"type": "text", "content": system[0]["content"]}])
    if call.response:
        answer = {**_as_parts({"role": "assistant", **call.response}), "finish_reason": call.finish_reason or ""}
        given["gen_ai.output.messages"] = _json([answer])
    if call.finish_reason is not None:
        given["gen_ai.response.finish_reasons"] = [call.finish_reason]
    given |= {names[0]: getattr(call, ours) for ours, names in USAGE.items()}
    rest = dict(call.sampling)
    if tools := rest.pop("tools", None):
        given["gen_ai.tool.definitions"] = _json([{"type": "function", **tool.get("function", tool)} for tool in tools])
    for theirs, ours in SAMPLING.items():
        if ours in rest:
            given[theirs] = rest.pop(ours)
    if rest:
        given["holdfast.sampling"] = _json(rest)
    given |= {f"holdfast.{name}": list(ids) for name in IDS if (ids := getattr(call, name))}
    if call.scrubbed:
        given["holdfast.scrubbed"] = [place for pair in call.scrubbed for place in pair]
    return {name: value for name, value in given.items() if value is not None}


def tool_attributes(call: ToolCall) -> dict[str, Any]:
    given = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.tool,
        "gen_ai.tool.call.id": call.call_id,
        "gen_ai.tool.call.arguments": _json(call.arguments),
        "gen_ai.tool.call.result": None if call.result is None else _json(call.result),
    }
    return {name: value for name, value in given.items() if value is not None}


def _as_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    role, content = message.get("role", "user"), message.get("content")
    if role == "tool":
        return {
            "role": role,
            "parts": [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}],
        }
    parts: list[dict[str, Any]] = []
    if thought := message.get("reasoning_content"):
        parts.append({"type": "reasoning", "content": thought})
    if isinstance(content, list):
        parts += [_otel_part(one) for one in content]
    elif content is not None:
        parts.append({"type": "text", "content": content})
    if refusal := message.get("refusal"):
        parts.append({"type": "refusal", "content": refusal})
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        text = function.get("arguments") or ""
        arguments = _parsed(text)
        exact = arguments if isinstance(arguments, dict) and written(arguments) == text else text
        parts.append({"type": "tool_call", "id": call.get("id"), "name": function.get("name"), "arguments": exact})
    return {"role": role, "parts": parts + list(message.get("items") or ())}


def _otel_part(one: Any) -> dict[str, Any]:
    if kind(one) == "text":
        return {"type": "text", "content": one.get("text")}
    if kind(one) == "image_url":
        return {"type": "uri", "modality": "image", "uri": part(one.get("image_url"), "url")}
    return one if isinstance(one, dict) else {"type": "unknown", "content": one}


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return json.dumps(value)


SOURCE = "holdfast.exported."  # where it came from; not `holdfast.rollout`, which would name a running attempt
PASSING = frozenset({429, 502, 503, 504})
BATCH = 200  # spans in one request
EXAMPLE = "http://127.0.0.1:4318"


def given(
    rollout: Rollout, attempt: Attempt, spans: Sequence[Span], breakdown: RewardBreakdown | None = None
) -> list[OtelSpan]:
    """An attempt's spans in order. The root comes last: it tells the receiver that all has come."""
    resource = {"service.name": "holdfast", f"{SOURCE}rollout": rollout.id, f"{SOURCE}attempt": attempt.id}
    ids = {span.seq: _identity(attempt, span) for span in spans}
    trace, root = _made(attempt.id, 16), _made(f"{attempt.id} root", 8)
    scores = tuple(_score(signal, attempt) for signal in breakdown.signals) if breakdown is not None else ()
    made = [_given(span, ids, root, resource) for span in spans]
    if any(span.trace_id != trace for span in made) and not any(span.trace_id == trace for span in made):
        return [span if span.parent_id else replace(span, events=span.events + scores) for span in made]
    begun = min([attempt.started_at, *(span.started_at for span in spans)])
    ended = max([attempt.ended_at or begun, *(span.ended_at or span.started_at for span in spans)])
    agent = OtelSpan(
        trace_id=trace,
        span_id=root,
        name=f"invoke_agent {rollout.name}",
        started_ns=round(begun * NS),
        ended_ns=round(ended * NS),
        attributes={"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": rollout.name},
        events=scores,
        error=attempt.error,
        resource=resource,
    )
    return [*made, agent]


def _given(span: Span, ids: Mapping[int, tuple[str, str]], root: str, resource: Mapping[str, Any]) -> OtelSpan:
    trace_id, span_id = ids[span.seq]
    is_own = span.span_id is None
    attributes = dict(span.attributes)
    parent: str | None = attributes.pop("parent_span_id", None) if not is_own else root
    if span.parent is not None and span.parent in ids:
        parent = ids[span.parent][1]
    if span.kind is SpanKind.MESSAGE:
        attributes["holdfast.kind"] = "message"
    if span.model is not None:
        attributes |= model_attributes(span.model)
    if span.tool is not None:
        attributes |= tool_attributes(span.tool)
    return OtelSpan(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent,
        name=span.name,
        started_ns=round(span.started_at * NS),
        ended_ns=round((span.ended_at or span.started_at) * NS),
        attributes=attributes,
        events=tuple(
            OtelEvent(name=event.name, at_ns=round(event.at * NS), attributes=event.attributes) for event in span.events
        ),
        error=span.tool.error if span.tool is not None else None,
        resource=resource,
    )


def _score(signal: Any, attempt: Attempt) -> OtelEvent:
    return OtelEvent(
        name="gen_ai.evaluation.result",
        at_ns=round((attempt.ended_at or attempt.started_at) * NS),
        attributes={
            "gen_ai.evaluation.name": signal.name,
            "gen_ai.evaluation.score.value": float(signal.value),
            "holdfast.weight": float(signal.weight),
            "holdfast.source": signal.source,
        },
    )


def _identity(attempt: Attempt, span: Span) -> tuple[str, str]:
    if span.trace_id is not None and span.span_id is not None:
        return span.trace_id, span.span_id
    return _made(attempt.id, 16), _made(f"{attempt.id} {span.seq}", 8)


def _made(text: str, size: int) -> str:
    return blake2b(text.encode(), digest_size=size).hexdigest()


def batches(spans: Iterable[OtelSpan], size: int = BATCH) -> Iterator[list[OtelSpan]]:
    """The spans in requests that our own receiver takes, as far as one span does not have too many values."""
    batch: list[OtelSpan] = []
    values = 0
    for span in spans:
        held = sum(len(attribute) for attribute in span.attributes.values() if isinstance(attribute, list | tuple))
        if batch and (len(batch) == size or values + held > wire.MOST_MESSAGES // 2):
            yield batch
            batch, values = [], 0
        batch.append(span)
        values += held
    if batch:
        yield batch


async def send(
    url: str,
    spans: Iterable[OtelSpan],
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
    tries: int = 5,
    backoff: Backoff = Backoff(initial_s=0.5, cap_s=8.0),
) -> int:
    """Sends spans to a collector, at `URL/v1/traces` unless the address ends so; returns how many it took."""
    at = checked("address", url, example=EXAMPLE)
    at = at if at.endswith("/v1/traces") else f"{at}/v1/traces"
    head = {"Content-Type": PROTOBUF, "Content-Encoding": "gzip", **(headers or {})}
    taken = 0
    async with aiohttp.ClientSession(headers=head, timeout=aiohttp.ClientTimeout(total=timeout_s)) as session:
        for batch in batches(spans):
            body = gzip.compress(wire.written(batch, PROTOBUF))
            taken += len(batch) - await _post(session, at, body, tries, backoff)
    return taken


async def _post(session: aiohttp.ClientSession, url: str, body: bytes, tries: int, backoff: Backoff) -> int:
    """Posts a batch, with retries; returns how many spans were refused."""
    why = ""
    for number in range(1, tries + 1):
        try:
            async with session.post(url, data=body, allow_redirects=False) as response:
                content = await response.read()
                if response.status < 300:
                    return _refused(content)
                given = (value for name, value in session.headers.items() if not name.startswith("Content-"))
                message = hidden(content.decode(errors="replace"), *given)
                why = f"HTTP {response.status}: {message[:200]}"
                if response.status not in PASSING:
                    break
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = f"{type(error).__name__}: {error}"
        if number < tries:
            await asyncio.sleep(backoff.delay_s(number, 0.5))
    raise Fault(f"collector {url}", why=why, remedy="is it running, and does it take OTLP over HTTP?")


def _refused(content: bytes) -> int:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    response = ExportTraceServiceResponse()
    try:
        response.ParseFromString(content)
    except DecodeError:
        return 0  # the status said that it took them
    return int(response.partial_success.rejected_spans)
