"""A model small enough to be known by heart, behind the real endpoint; and the same with something the matter.

Its first token is drawn from LOGITS, the rest of the word follows by itself: every log-prob can be worked out by hand.
"""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from random import Random
from typing import Any

from holdfast.collect import endpoint
from holdfast.collect.chat_format import TokenBytes, spell_byte
from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ModelCall
from holdfast.policies import tokens

LOGITS = {"Alpha": 2.0, "Beta": 1.5, "Gamma": 1.0, "Delta": 0.0}


def chances(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> dict[str, float]:
    """Of each word, in order: temperature, then top-k, then top-p, renormalised."""
    order = sorted(LOGITS, key=lambda word: -LOGITS[word])[: top_k or None]
    weights = {word: math.exp(LOGITS[word] / temperature) for word in order}
    p = {word: weight / sum(weights.values()) for word, weight in weights.items()}
    kept, total = {}, 0.0
    for word in order:
        if total >= top_p:
            break
        kept[word], total = p[word], total + p[word]
    return {word: chance / total for word, chance in kept.items()}


@dataclass
class Toy:
    """Tells its log-probs in force, as our own models do."""

    told: Callable[[str, float, Mapping[str, Any]], float] = lambda word, p, how: math.log(p)
    prompt: Callable[[Any, Any], list[int]] = tokens.prompt
    taking: Callable[[dict[str, Any]], dict[str, Any]] = lambda sampling: sampling  # what it makes of a request
    wording: Callable[[dict[str, Any], bool], dict[str, Any]] = lambda message, is_greedy: message
    saying: Callable[[ModelCall], ModelCall] = lambda call: call  # what it makes of its answer

    async def __call__(self, messages: Any, /, **given: Any) -> ModelCall:
        sampling = self.taking(given)
        how = {name: sampling[name] for name in ("temperature", "top_k", "top_p") if name in sampling}
        message, first = self._message(messages, sampling, how)
        message = self.wording(message, how.get("temperature") == 0.0)
        prompt, written = self.prompt(messages, sampling.get("tools", ())), tokens.answer(message)
        cut = written[: sampling.get("max_tokens", 64)]
        call = ModelCall(
            model="toy@1",
            messages=tuple(messages),
            response=tokens.read(cut) if len(cut) < len(written) else message,
            finish_reason="stop" if cut == written else "length",
            prompt_tokens=len(prompt),
            completion_tokens=len(cut),
            prompt_ids=tuple(prompt),
            completion_ids=tuple(cut),
            logprobs=(first, *([0.0] * (len(cut) - 1))),
            sampling=sampling,
        )
        return self.saying(call)

    def _message(
        self, messages: Any, sampling: Mapping[str, Any], how: Mapping[str, Any]
    ) -> tuple[dict[str, Any], float]:
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": f"It is {messages[-1]['content']}."}, 0.0
        if "tools" in sampling:
            call = {"name": "calc", "arguments": '{"expression": "417*23"}'}
            asked = {"id": "call_1", "type": "function", "function": call}
            return {"role": "assistant", "content": "", "tool_calls": [asked]}, 0.0
        if how.get("temperature") == 0.0:
            word, p = "Alpha", chances()["Alpha"]
        else:
            drawn = chances(**how)
            word = Random(sampling.get("seed", 0)).choices(list(drawn), list(drawn.values()))[0]
            p = drawn[word]
        return {"role": "assistant", "content": word}, self.told(word, p, how)


def without(*names: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return lambda given: {name: value for name, value in given.items() if name not in names}


def heat(how: Mapping[str, Any]) -> float:
    return how.get("temperature") or 1.0


def merged(messages: Any, tools: Any) -> list[int]:
    ids = tokens.prompt(messages, tools)
    for place in range(len(ids) - 1, 0, -1):
        if ids[place - 1 : place + 1] == list(b"ph") and len(messages) > 1:
            ids[place - 1 : place + 1] = [400]
    return ids


def refusing(sampling: dict[str, Any]) -> dict[str, Any]:
    for name, most in (("top_k", 0), ("temperature", 1.0)):
        if sampling.get(name, 0) > most:
            raise BadInput(name, why="is not known here")
    return sampling


def other_ids(call: ModelCall) -> ModelCall:
    ids = [*b"Quite another thing.", *b"!" * 64][: len(call.completion_ids or ())]
    return replace(call, completion_ids=tuple(ids))


def beyond_text(call: ModelCall) -> ModelCall:
    """A byte that begins no letter stands in its second place."""
    ids = list(call.completion_ids or ())
    if len(ids) < 3 or "tool_calls" in call.response:
        return call
    ids[1] = 0xFF
    return replace(call, completion_ids=tuple(ids), response=tokens.read(ids))


NoIds = partial(Toy, saying=lambda call: replace(call, prompt_ids=None, completion_ids=None, logprobs=None))
# Log-probs from before the temperature and the filters, as vLLM tells them unless told otherwise.
Raw = partial(Toy, told=lambda word, p, how: math.log(chances()[word]))
# With the temperature, and without renormalising under top-k and top-p.
Unfiltered = partial(Toy, told=lambda word, p, how: math.log(chances(heat(how))[word]))
# The temperature applied once more to what it gave.
Twice = partial(Toy, told=lambda word, p, how: math.log(chances(heat(how) ** 2)[word]))
# Takes top-k and top-p, and draws as if they were not there.
Deaf = partial(Toy, taking=without("top_k", "top_p"))
# Each draw told with the log-prob of another one.
Shifted = partial(Toy, told=lambda word, p, how: math.log(min(0.999, 1.0 - p)))
# Writes into the opening how long the conversation is.
Dated = partial(
    Toy, prompt=lambda said, tools: tokens.prompt([{"role": "system", "content": f"{len(said)}"}, *said], tools)
)
# Thinks where it does not draw, and is not shown its thoughts a turn later.
Forgetful = partial(
    Toy,
    wording=lambda message, is_greedy: message | ({"reasoning_content": "Well."} if is_greedy else {}),
    prompt=lambda said, tools: tokens.prompt([{**one, "reasoning_content": None} for one in said], tools),
)
# What it once said comes back in other ids, as if a tokenizer had read its text.
Merging = partial(Toy, prompt=merged)
# The ids are those of something else.
Elsewhere = partial(Toy, saying=other_ids)
# Calls of tools are in its tokens, and never in its message.
Mute = partial(Toy, saying=lambda call: replace(call, response=without("tool_calls")(call.response)))
# Somebody on the way leaves the tools out.
Toolless = partial(Toy, taking=without("tools"))
# Results of tools do not reach it.
Inattentive = partial(
    Toy,
    prompt=lambda said, tools: tokens.prompt(
        [{**one, "content": "…"} if one["role"] == "tool" else one for one in said], tools
    ),
)
Miscounting = partial(Toy, saying=lambda call: replace(call, completion_tokens=(call.completion_tokens or 0) + 1))
# Talks of calculating, and calls nothing.
Chatty = partial(
    Toy,
    wording=lambda message, is_greedy: (
        {"role": "assistant", "content": "I would calculate that with calc."} if "tool_calls" in message else message
    ),
)
# Knows no top-k, and no temperature above 1.
Plain = partial(Toy, taking=refusing)


def Fickle() -> Toy:
    """Temperature 0 is not taken at its word."""
    numbers = count(1)

    def take(given: dict[str, Any]) -> dict[str, Any]:
        is_greedy = given.get("temperature") == 0.0 and "tools" not in given
        return {**given, "temperature": 1.0, "seed": next(numbers)} if is_greedy else given

    return Toy(taking=take)


class Stammering(Toy):
    """Streams another answer than it gives whole."""

    async def stream(self, messages: Any, /, **sampling: Any) -> AsyncGenerator[Any, None]:
        call = await self(messages, **sampling)
        said = call.response.get("content", "")
        yield {"content": said[:1]}
        yield replace(call, response={**call.response, "content": said[:1] + said})


@contextmanager
def serving(complete: Complete, *, spell: TokenBytes | None = spell_byte) -> Iterator[str]:
    """The base URL while the block lasts."""
    with endpoint.listen("127.0.0.1", 0, token=None) as listening:
        server = endpoint.server(endpoint.app(complete, name="toy", token_bytes=spell))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join()
