"""The upstream that every proxy is measured before: it says what is written here, and costs next to nothing.

`python scripted.py` says its port and serves until it is ended. The model `instant` answers at once; `paced` takes
FIRST_S until the first token and PACE_S for each that follows. Token ids and log-probs come when they are asked for, as
from vLLM. Every answer has a number of its own, so that nobody can have seen it before.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

TOKENS = 32
FIRST_S, PACE_S = 0.020, 0.002
WORDS = ("the", "order", "was", "sent", "from", "our", "house", "in", "town", "and", "will", "be", "here", "by", "one")
NUMBER = b"@@@@@@@@"  # where an answer's own number goes
PROMPT_IDS = list(range(1000, 1400))


def pieces() -> list[str]:
    return ["Order " + NUMBER.decode(), *(" " + WORDS[place % len(WORDS)] for place in range(TOKENS - 1))]


def head(kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{NUMBER.decode()}", "object": kind, "created": 1_700_000_000, "model": "scripted"}


def entry(text: str) -> dict[str, Any]:
    return {"token": text, "logprob": -0.25, "bytes": list(text.encode()), "top_logprobs": []}


def whole(has_ids: bool) -> bytes:
    choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": "".join(pieces())}}
    choice["finish_reason"] = "stop"
    answer = head("chat.completion") | {"choices": [choice], "usage": usage()}
    if has_ids:
        choice["logprobs"] = {"content": [entry(text) for text in pieces()]}
        choice["token_ids"] = list(range(2000, 2000 + TOKENS))
        answer["prompt_token_ids"] = PROMPT_IDS
    return json.dumps(answer, separators=(",", ":")).encode()


def usage() -> dict[str, int]:
    return {"prompt_tokens": len(PROMPT_IDS), "completion_tokens": TOKENS, "total_tokens": len(PROMPT_IDS) + TOKENS}


def stream(has_ids: bool) -> list[bytes]:
    """One event a token; the last piece is the end."""
    events = []
    for place, text in enumerate(pieces()):
        choice: dict[str, Any] = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        chunk = head("chat.completion.chunk") | {"choices": [choice]}
        if place == 0:
            choice["delta"]["role"] = "assistant"
        if has_ids:
            choice["logprobs"] = {"content": [entry(text)]}
            choice["token_ids"] = [2000 + place]
            if place == 0:
                chunk["prompt_token_ids"] = PROMPT_IDS
        events.append(chunk)
    events.append(
        head("chat.completion.chunk")
        | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage()}
    )
    lines = [b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n" for event in events]
    return [*lines[:-1], lines[-1] + b"data: [DONE]\n\n"]


class Upstream:
    def __init__(self) -> None:
        self._wholes = {has_ids: whole(has_ids) for has_ids in (False, True)}
        self._streams = {has_ids: stream(has_ids) for has_ids in (False, True)}
        self._numbers = itertools.count(10_000_000)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        asked = json.loads(body)
        number = str(next(self._numbers)).encode()
        has_ids, is_paced = asked.get("return_token_ids") is True, asked["model"] == "paced"
        if is_paced:
            await asyncio.sleep(FIRST_S)
        if asked.get("stream"):
            await self._stream(has_ids, is_paced, number, send)
            return
        if is_paced:
            await asyncio.sleep(PACE_S * (TOKENS - 1))
        answer = self._wholes[has_ids].replace(NUMBER, number)
        await begin(send, b"application/json", [(b"content-length", str(len(answer)).encode())])
        await send({"type": "http.response.body", "body": answer})

    async def _stream(self, has_ids: bool, is_paced: bool, number: bytes, send: Any) -> None:
        await begin(send, b"text/event-stream")
        for place, event in enumerate(self._streams[has_ids]):
            if place:
                await asyncio.sleep(PACE_S if is_paced and place < TOKENS else 0)  # 0: a write of its own all the same
            await send(
                {"type": "http.response.body", "body": event.replace(NUMBER, number), "more_body": place < TOKENS}
            )


async def begin(send: Any, kind: bytes, more: list[tuple[bytes, bytes]] | None = None) -> None:
    headers = [(b"content-type", kind), *(more or [])]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


def main() -> None:
    import socket

    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(
        Upstream(), loop="uvloop", http="httptools", lifespan="off", log_level="error", access_log=False
    )
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
