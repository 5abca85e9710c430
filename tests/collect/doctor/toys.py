"""A model small enough to be known by heart, behind the real endpoint; and the same with something the matter.

Its first token is drawn from LOGITS, the rest of the word follows by itself: every log-prob can be worked out by hand.
"""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

from holdfast.collect import endpoint
from holdfast.collect.chat_format import Spell, spell_byte
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


class Toy:
    """Tells its log-probs in force, as our own models do."""

    async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
        how = {name: sampling[name] for name in ("temperature", "top_k", "top_p") if name in sampling}
        message, first = self.message(messages, sampling, how)
        prompt, written = self.prompt(messages, sampling.get("tools", ())), tokens.answer(message)
        cut = written[: sampling.get("max_tokens", 64)]
        return ModelCall(
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

    def prompt(self, messages: Any, tools: Any) -> list[int]:
        return tokens.prompt(messages, tools)

    def message(
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

    def told(self, word: str, p: float, how: Mapping[str, Any]) -> float:
        return math.log(p)


class NoIds(Toy):
    async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
        call = await super().__call__(messages, **sampling)
        return replace(call, prompt_ids=None, completion_ids=None, logprobs=None)


class Raw(Toy):
    """Log-probs from before the temperature and the filters, as vLLM tells them unless told otherwise."""

    def told(self, word: str, p: float, how: Mapping[str, Any]) -> float:
        return math.log(chances()[word])


class Unfiltered(Toy):
    """With the temperature, and without renormalising under top-k and top-p."""

    def told(self, word: str, p: float, how: Mapping[str, Any]) -> float:
        return math.log(chances(how.get("temperature") or 1.0)[word])


class Twice(Toy):
    """The temperature applied once more to what it gave."""

    def told(self, word: str, p: float, how: Mapping[str, Any]) -> float:
        heat = how.get("temperature") or 1.0
        return math.log(chances(heat * heat)[word])


class Deaf(Toy):
    """Takes top-k and top-p, and draws as if they were not there."""

    def message(
        self, messages: Any, sampling: Mapping[str, Any], how: Mapping[str, Any]
    ) -> tuple[dict[str, Any], float]:
        return super().message(messages, sampling, {name: how[name] for name in how if name == "temperature"})


class Shifted(Toy):
    """Each draw told with the log-prob of another one."""

    def told(self, word: str, p: float, how: Mapping[str, Any]) -> float:
        return math.log(min(0.999, 1.0 - p))


class Dated(Toy):
    """Writes into the opening how long the conversation is."""

    def prompt(self, messages: Any, tools: Any) -> list[int]:
        return tokens.prompt([{"role": "system", "content": f"{len(messages)} messages"}, *messages], tools)


class Forgetful(Toy):
    """Thinks, and is not shown its thoughts a turn later."""

    def message(self, *given: Any) -> tuple[dict[str, Any], float]:
        message, first = super().message(*given)
        is_greedy = given[2].get("temperature") == 0.0  # else the thought would stand before what is drawn
        return (message | {"reasoning_content": "Well."} if is_greedy else message), first

    def prompt(self, messages: Any, tools: Any) -> list[int]:
        return tokens.prompt([{**one, "reasoning_content": None} for one in messages], tools)


class Merging(Toy):
    """What it once said comes back in other ids, as if a tokenizer had read its text."""

    def prompt(self, messages: Any, tools: Any) -> list[int]:
        ids = tokens.prompt(messages, tools)
        for place in range(len(ids) - 1, 0, -1):
            if ids[place - 1 : place + 1] == list(b"ph") and len(messages) > 1:
                ids[place - 1 : place + 1] = [400]
        return ids


class Elsewhere(Toy):
    """The ids are those of something else."""

    async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
        call = await super().__call__(messages, **sampling)
        other = [*b"Quite another thing.", *b"!" * 64][: len(call.completion_ids or ())]
        return replace(call, completion_ids=tuple(other))


class Mute(Toy):
    """Calls of tools are in its tokens, and never in its message."""

    async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
        call = await super().__call__(messages, **sampling)
        return replace(call, response={name: x for name, x in call.response.items() if name != "tool_calls"})


class Toolless(Toy):
    """Somebody on the way leaves the tools out."""

    async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
        return await super().__call__(messages, **{name: x for name, x in sampling.items() if name != "tools"})


class Inattentive(Toy):
    """Results of tools do not reach it."""

    def prompt(self, messages: Any, tools: Any) -> list[int]:
        return tokens.prompt([{**one, "content": "…"} if one["role"] == "tool" else one for one in messages], tools)


class Miscounting(Toy):
    async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
        call = await super().__call__(messages, **sampling)
        return replace(call, completion_tokens=(call.completion_tokens or 0) + 1)


class Fickle(Toy):
    """Temperature 0 is not taken at its word."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
        if sampling.get("temperature") == 0.0 and "tools" not in sampling:
            self.count += 1
            sampling = {**sampling, "temperature": 1.0, "seed": self.count}
        return await super().__call__(messages, **sampling)


class Stammering(Toy):
    """Streams another answer than it gives whole."""

    async def stream(self, messages: Any, /, **sampling: Any) -> AsyncGenerator[Any, None]:
        call = await self(messages, **sampling)
        said = call.response.get("content", "")
        yield {"content": said[:1]}
        yield replace(call, response={**call.response, "content": said[:1] + said})


class Chatty(Toy):
    """Talks of calculating, and calls nothing."""

    def message(
        self, messages: Any, sampling: Mapping[str, Any], how: Mapping[str, Any]
    ) -> tuple[dict[str, Any], float]:
        if "tools" in sampling:
            return {"role": "assistant", "content": "I would calculate that with calc."}, 0.0
        return super().message(messages, sampling, how)


class Plain(Toy):
    """Knows no top-k, and no temperature above 1."""

    async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
        for name, most in (("top_k", 0), ("temperature", 1.0)):
            if sampling.get(name, 0) > most:
                raise BadInput(name, why="is not known here")
        return await super().__call__(messages, **sampling)


@contextmanager
def serving(complete: Complete, *, spell: Spell | None = spell_byte) -> Iterator[str]:
    """The base URL while the block lasts."""
    with endpoint.listen("127.0.0.1", 0, token=None) as listening:
        server = endpoint.server(endpoint.app(complete, name="toy", spell=spell))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join()
