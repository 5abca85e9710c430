"""How a model behind an endpoint is held to a number of thinking tokens, where it can be, and asked to, where not.

Three ways: the endpoint has a parameter for it; or the answer is stopped at the limit, the thought closed, and the
answer continued (budget forcing; Muennighoff et al. 2025, s1); or the prompt asks for it. Our own models are held to
it while they decode (`policies`). Which way was taken is recorded with the call, under `thinking_mode`. What is put
into an answer is `forced`, and never learnt from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.collect.budget import checked_limit, thinking_tokens
from holdfast.contracts.budget import Mode
from holdfast.contracts.trace import ModelCall

Messages = Sequence[Mapping[str, Any]]
Ask = Callable[[Messages, Mapping[str, Any]], Awaitable[ModelCall]]  # one request to the endpoint, as it is
OPEN, CLOSE = "<think>\n", "\n</think>\n\n"
LENGTHS = ("max_tokens", "max_completion_tokens")  # the names an endpoint may know for the answer's length


@dataclass(frozen=True, slots=True)
class Way:
    """How one endpoint is held to it."""

    mode: Mode
    field: str = "thinking"  # the parameter's name, where there is one


def way_for(owner: str | None, wanted: Mode | None = None) -> Way:
    """By who serves the model, as its list of models tells: what is not known to obey is only asked.

    vLLM's own parameter needs a server that was started for it, and is passed over in silence by others: it is used
    where it is wanted, and else its answers are stopped and continued, which any such server does.
    """
    ours = owner == "holdfast"
    if wanted is None:
        wanted = Mode.PARAMETER if ours else Mode.FORCING if owner in ("vllm", "sglang") else Mode.HINT
    return Way(wanted, "thinking" if ours else "thinking_token_budget")


async def limited(ask: Ask, messages: Messages, sampling: Mapping[str, Any], limit: int, way: Way) -> ModelCall:
    """The answer, with at most so many tokens of thought as far as the way can make it so."""
    limit = checked_limit(limit)
    if way.mode is Mode.PARAMETER:
        call = await ask(messages, {**sampling, way.field: limit})
    elif way.mode is Mode.FORCING:
        call = await _forced(ask, messages, sampling, limit)
    else:
        call = await ask(hinted(messages, limit), sampling)
    return replace(call, sampling={**sampling, "thinking": limit, "thinking_mode": way.mode.value})


def wish(limit: int) -> str:
    """What a model is told that can only be asked."""
    return f"Think for at most {limit} tokens, then answer." if limit else "Answer at once, without thinking."


def hinted(messages: Messages, limit: int) -> list[Mapping[str, Any]]:
    """The conversation with a word on thinking in its system message, the first one that there is."""
    word = wish(limit)
    first = messages[0] if messages else {}
    if first.get("role") not in ("system", "developer"):
        return [{"role": "system", "content": word}, *messages]
    content = first.get("content") or ""
    if isinstance(content, list):
        return [{**first, "content": [*content, {"type": "text", "text": f"\n{word}"}]}, *messages[1:]]
    return [{**first, "content": f"{content}\n{word}".lstrip()}, *messages[1:]]


async def _forced(ask: Ask, messages: Messages, sampling: Mapping[str, Any], limit: int) -> ModelCall:
    """Stop at the limit; if that was within the thought, close it; go on with the answer."""
    whole = next((sampling[name] for name in LENGTHS if sampling.get(name) is not None), None)
    if limit == 0:
        return await ask(_begun(messages, OPEN.rstrip() + CLOSE), {**sampling, **CONTINUED})
    if whole is not None and whole <= limit:
        return await ask(messages, sampling)
    first = await ask(messages, _of_length(sampling, limit))
    if first.finish_reason != "length":
        return first
    thought, said, is_open = _parts(first.response)
    if first.response.get("tool_calls"):  # half a call cannot be continued: it is written anew, after the same thought
        said, is_open = "", False
    begun = f"{OPEN}{thought}{CLOSE}{said}" if thought else said
    if not begun:
        return await ask(messages, sampling)  # nothing that could be continued
    left = None if whole is None else max(1, whole - (first.completion_tokens or limit))
    second = await ask(_begun(messages, begun), {**_of_length(sampling, left), **CONTINUED})
    return _joined(messages, first, second, thought, said, is_open)


CONTINUED: Mapping[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}


def _begun(messages: Messages, text: str) -> list[Mapping[str, Any]]:
    return [*messages, {"role": "assistant", "content": text}]


def _of_length(sampling: Mapping[str, Any], length: int | None) -> dict[str, Any]:
    name = next((name for name in LENGTHS if name in sampling), LENGTHS[0])
    rest = {key: value for key, value in sampling.items() if key not in LENGTHS}
    return rest if length is None else {**rest, name: length}


def _parts(message: Mapping[str, Any]) -> tuple[str, str, bool]:
    """The thought, what was said after it, and whether it broke off within the thought."""
    thought, said = str(message.get("reasoning_content") or message.get("reasoning") or ""), message.get("content")
    said = str(said or "")
    if not thought and said.lstrip().startswith(OPEN.strip()):
        thought, closed, said = said.lstrip().removeprefix(OPEN.strip()).partition(CLOSE.strip())
        return thought.strip("\n"), said.lstrip("\n"), not closed
    return thought.strip("\n"), said, bool(thought) and not said


def _joined(
    messages: Messages, first: ModelCall, second: ModelCall, thought: str, said: str, is_open: bool
) -> ModelCall:
    """One answer of both parts.

    Ids are those that were sampled, with what was put between them; where the second prompt does not begin with what
    the first part was, the second part stands for itself: a prompt that holds the thought, and the answer to it.
    """
    more, after, _ = _parts(second.response)
    if more and not after and not second.response.get("tool_calls"):
        more, after = "", more  # a reader that takes all that is not closed for a thought
    message = {**second.response, "content": said + after}
    message.pop("reasoning", None)
    message.pop("reasoning_content", None)
    if thought or more:
        message["reasoning_content"] = thought + more
    used = (first.completion_tokens or 0) if is_open else thinking_tokens(first)
    counts = (first.completion_tokens, second.completion_tokens)
    call = replace(
        second,
        messages=tuple(dict(one) for one in messages),
        response=message,
        prompt_tokens=first.prompt_tokens,
        completion_tokens=None if None in counts else sum(filter(None, counts)),
        thinking_tokens=used + thinking_tokens(second) if more else used,
    )
    read, wrote, again = first.prompt_ids, first.completion_ids, second.prompt_ids
    if read is None or wrote is None or again is None or second.completion_ids is None:
        return call
    start = len(read) + len(wrote)
    if first.response.get("tool_calls") or again[:start] != (*read, *wrote):
        return replace(call, messages=second.messages)
    put = again[start:]
    known = first.logprobs is not None and second.logprobs is not None
    return replace(
        call,
        prompt_ids=read,
        completion_ids=(*wrote, *put, *second.completion_ids),
        completion_tokens=len(wrote) + len(put) + len(second.completion_ids),
        logprobs=(*(first.logprobs or ()), *[0.0] * len(put), *(second.logprobs or ())) if known else None,
        forced=(
            *first.forced,
            *range(len(wrote), len(wrote) + len(put)),
            *(place + len(wrote) + len(put) for place in second.forced),
        ),
    )
