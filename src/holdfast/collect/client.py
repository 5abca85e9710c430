"""A model behind any OpenAI-compatible chat endpoint, as a `Complete`; and the checks of addresses that we call.

A lost connection, 429 and 5xx are retried and then raise a Fault; a request that the endpoint refuses is the agent's
own error. Addresses are shown and logged, so keys go into headers, and are hidden in what comes back.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import copy
from typing import Any

import aiohttp
from yarl import URL

from holdfast.collect.thinking import ThinkingControl, limited, way_for
from holdfast.contracts.budget import Mode
from holdfast.contracts.errors import BadInput, BadRecord, Fault, HoldfastError, reason_of
from holdfast.contracts.records import encode
from holdfast.contracts.rollout import Backoff
from holdfast.contracts.spending import LENGTHS, Reservation, SpendLimit, taken_by
from holdfast.contracts.trace import ModelCall

HOST = re.compile(r"[A-Za-z0-9._:-]+")
UNFIT = re.compile(r"[\x00-\x20\x7f\\]")
LEAST_SECRET = 6  # characters: a shorter one would hide common words


def checked(what: str, url: str, *, example: str = "http://127.0.0.1:8000/v1") -> str:
    """The address without a slash at its end; BadInput shows it without password, query and fragment."""
    shown = re.split(r"[?#]", url)[0].rpartition("@")[2]
    why = _wrong(url)
    if why is not None:
        raise BadInput(f"{what} {shown!r}", why=why, remedy=f"for example {example}")
    return url.rstrip("/")


def hidden(text: str, *secrets: str | None) -> str:
    """A text from the other side, with our secrets blanked out."""
    for secret in secrets:
        for part in (secret, *secret.split()) if secret else ():
            if len(part) >= LEAST_SECRET:
                text = text.replace(part, "…")
    return text


def _wrong(url: str) -> str | None:
    if not url.startswith(("http://", "https://")):
        return "is not http:// or https://"
    if "@" in url:
        return "has a name or a password in it, and addresses are shown: send them in a header"
    if "?" in url or "#" in url:
        return "has a query or a fragment in it, and addresses are shown: send keys in a header"
    if UNFIT.search(url):
        return "has a letter in it that no address can hold"
    try:
        parsed = URL(url)
        host, port = parsed.raw_host or "", parsed.port
    except ValueError:
        return "is no address with a port from 1 to 65535"
    return None if HOST.fullmatch(host) and port else "is no address of a host"


REACH_S = 5.0  # for a connection, before anything is begun
NO_ANSWER = 0  # in place of an HTTP status
LARGEST = 64 * 2**20  # bytes of an answer
BUSY = frozenset({408, 409, 425, 429})
EXTRAS: Mapping[str, Any] = {"logprobs": True, "return_token_ids": True}  # learning needs both
PROBE: Mapping[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
NO_MODEL = re.compile(r"model_not_found|\bmodel\b.*(?:not exist|not found)|unknown model", re.IGNORECASE)
OURS = frozenset({401, 403, 404, 405})  # a wrong key, address or model name is not the agent's error


class ModelRefused(HoldfastError):
    """The endpoint understood the request and will not answer it."""


class Client:
    any_sampling = True  # unknown parameters are passed on: the endpoint takes or refuses them

    def __init__(
        self,
        model: str,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 120.0,
        tries: int = 4,
        backoff: Backoff = Backoff(initial_s=0.25, cap_s=8.0),
        thinking: Mode | None = None,
    ) -> None:
        """`thinking` is how the endpoint is held to a number of thinking tokens; None: by who serves it."""
        self.model = model
        self._base, self._key = checked("base URL", base_url), api_key
        self._url = f"{self._base}/chat/completions"
        self._wanted, self._way = (
            thinking,
            (None if thinking not in (Mode.FORCING, Mode.HINT) else ThinkingControl(thinking)),
        )
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._tries, self._backoff = tries, backoff
        self._extras: Mapping[str, Any] = EXTRAS
        self._chance = random.Random()  # spreads retries; no result depends on it
        self._sessions: dict[asyncio.AbstractEventLoop, tuple[Sessions, aiohttp.ClientSession]] = {}
        self.limit: SpendLimit | None = None  # of what its calls may take together with others

    def within(self, limit: SpendLimit) -> Client:
        """The same, with each request held to the limit."""
        client = copy(self)
        client.limit = limit
        return client

    async def __call__(
        self, messages: Sequence[Mapping[str, Any]], /, *, thinking: int | None = None, **sampling: Any
    ) -> ModelCall:
        if thinking is None:
            return await self._ask(messages, sampling)
        return await limited(self._ask, messages, sampling, thinking, await self._way_to_limit())

    async def _ask(self, messages: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]) -> ModelCall:
        is_ours = False
        if self.limit is not None:
            sampling, is_ours = self.limit.bounded(sampling)
        body = {"model": self.model, "messages": list(messages), **sampling}
        status, answer = NO_ANSWER, None
        for number in range(1, self._tries + 1):
            status, answer = await self._reserved(messages, sampling, body)
            if isinstance(answer, ModelCall):
                whole = body.get(LENGTHS[0])
                return answer if self.limit is None else self.limit.check_whole(answer, whole, is_ours=is_ours)
            if not _may_pass(status):
                break
            if number < self._tries:
                await asyncio.sleep(self._backoff.delay_s(number, self._chance.random()))
        says = hidden(complaint(answer), self._key)
        why = says if status == NO_ANSWER else f"HTTP {status}: {says}"
        if _may_pass(status):
            raise Fault(
                f"model endpoint {self._url}", why=f"{why} ({self._tries} tries)", remedy="is it running and reachable?"
            )
        if status in OURS or 300 <= status < 400:  # a redirect is not followed: it would get our key
            raise Fault(f"model endpoint {self._url}", why=why, remedy="check --base-url, --model and the API key")
        raise ModelRefused(f"model {self.model}", why=why)

    async def _reserved(
        self, messages: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any], body: Mapping[str, Any]
    ) -> tuple[int, Any]:
        """One request within the limit, if there is one: the call where it was answered, else what was said."""
        within = nullcontext(Reservation()) if self.limit is None else self.limit.reserve(messages, sampling)
        async with within as held:
            status, answer = await self._exactly(body)
            if status == 200:
                answer = _model_call(self.model, messages, sampling, answer, self._url)
                held.taken = taken_by(answer)
            elif not _may_pass(status) or status in BUSY:
                held.taken = (0, 0)  # what is refused is not paid; where nothing came back it may have been
        return status, answer

    async def _way_to_limit(self) -> ThinkingControl:
        """Read once from the list of models; a server that it does not name is only asked to think less."""
        if self._way is not None:
            return self._way
        status, text = await self.fetch("GET", "/models")
        try:
            owner = _owner(json.loads(text), self.model) if status == 200 else None
        except (ValueError, RecursionError):
            return way_for(None, self._wanted)
        way = way_for(owner, self._wanted)
        if not _may_pass(status):
            self._way = way
        return way

    async def check_reachable(self) -> None:
        """BadInput where nothing listens at the address, or where it does not know the model; nothing is retried."""
        host, port = URL(self._base).raw_host, URL(self._base).port
        try:
            async with asyncio.timeout(REACH_S):
                _, writer = await asyncio.open_connection(host, port)
            writer.close()
        except (OSError, TimeoutError) as error:
            number = getattr(error, "errno", None) or 0  # of a name that nobody knows it is below 0
            says = os.strerror(number) if number > 0 else str(error) or f"no answer in {REACH_S:g} s"
            remedy = "start its server, or check the address (--base-url, base_url, OPENAI_BASE_URL)"
            what = f"model {self.model} at {self._base}"
            raise BadInput(what, why=f"cannot be reached: {says}", remedy=remedy) from error
        with suppress(TimeoutError):  # what takes longer is left to the work itself
            async with asyncio.timeout(REACH_S):
                await self._check_known()

    async def _check_known(self) -> None:
        """A model that is in no list of models is asked for a token: a list may leave out aliases, or not be there."""
        status, text = await self.fetch("GET", "/models")
        try:
            names = [str(one.get("id")) for one in listed_models(json.loads(text))] if status == 200 else []
        except (ValueError, RecursionError):
            names = []
        if self.model in names or status in (NO_ANSWER, *BUSY):
            return
        status, answer = await self._exactly({"model": self.model, **PROBE})
        remedy = None
        if status in (400, 404) and NO_MODEL.search(json.dumps(answer)):
            remedy = f"it has {', '.join(names[:5])}" if names else "check the name (--model, model)"
        elif status in (401, 403):
            remedy = "check the API key (OPENAI_API_KEY)"
        elif status in (404, 405):
            remedy = "check the address (--base-url, base_url, OPENAI_BASE_URL): most end in /v1"
        if remedy is not None:
            why = f"HTTP {status}: {hidden(complaint(answer), self._key)}"
            raise BadInput(f"model {self.model} at {self._base}", why=why, remedy=remedy)

    async def close(self) -> None:
        """Closes this event loop's connections now, not at the loop's end."""
        kept = self._sessions.get(asyncio.get_running_loop())
        if kept is not None:
            await kept[0].aclose()

    async def _exactly(self, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Also asks for ids and log-probs, until the endpoint refuses them by name."""
        extras = self._extras
        status, answer = await self._post({**extras, **body})
        if status in (400, 422) and "max_tokens" in body and "max_completion_tokens" in complaint(answer):
            body = {("max_completion_tokens" if name == "max_tokens" else name): body[name] for name in body}
            status, answer = await self._post({**extras, **body})
        if extras and status in (400, 422) and any(name in complaint(answer) for name in ("token_ids", "logprobs")):
            self._extras = {}
            status, answer = await self._post(body)
        return status, answer

    async def _post(self, body: Mapping[str, Any]) -> tuple[int, Any]:
        status, text = await self.fetch("POST", "/chat/completions", body)
        try:
            return status, json.loads(text) if status != NO_ANSWER else text
        except (ValueError, RecursionError):
            text = hidden(text, self._key)
            return (NO_ANSWER, f"not JSON: {text}") if status == 200 else (status, text)

    async def fetch(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, str]:
        """The status and the text of one answer; NO_ANSWER and the reason if none came."""
        session = await self._session()
        try:
            async with session.request(method, self._base + path, json=body, allow_redirects=False) as response:
                content = bytearray()
                async for part in response.content.iter_any():
                    content += part
                    if len(content) > LARGEST:
                        return NO_ANSWER, f"an answer of more than {LARGEST} bytes"
                return response.status, content.decode(errors="replace")
        except aiohttp.ClientConnectorError as error:
            return NO_ANSWER, f"cannot connect: {reason_of(error.os_error)}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return NO_ANSWER, f"{type(error).__name__}: {error}".rstrip(": ")

    async def _session(self) -> aiohttp.ClientSession:
        """The session of the running event loop: agents may call from several."""
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            sessions = self._open(loop)
            self._sessions[loop] = sessions, await anext(sessions)
        return self._sessions[loop][1]

    async def _open(self, loop: asyncio.AbstractEventLoop) -> Sessions:
        """A generator, because asyncio closes a loop's generators with the loop."""
        try:
            async with aiohttp.ClientSession(headers=self._headers, timeout=self._timeout) as session:
                yield session
        finally:
            del self._sessions[loop]


Sessions = AsyncGenerator[aiohttp.ClientSession, None]


def _may_pass(status: int) -> bool:
    return status == NO_ANSWER or status in BUSY or status >= 500


def _model_call(
    model: str, messages: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any], answer: Any, url: str
) -> ModelCall:
    try:
        choice = answer["choices"][0]
        usage = answer.get("usage") or {}
        logprobs = _logprobs(choice)
        ids = choice.get("token_ids")
        call = ModelCall(
            model=str(answer.get("model") or model),
            messages=tuple(dict(message) for message in messages),
            response=dict(choice["message"]),
            finish_reason=choice.get("finish_reason"),
            prompt_tokens=usage.get("prompt_tokens"),
            completion_tokens=usage.get("completion_tokens"),
            thinking_tokens=(usage.get("completion_tokens_details") or {}).get("reasoning_tokens"),
            prompt_ids=None if answer.get("prompt_token_ids") is None else tuple(answer["prompt_token_ids"]),
            completion_ids=None if ids is None else tuple(ids),
            logprobs=logprobs if ids is not None and logprobs is not None and len(ids) == len(logprobs) else None,
            forced=() if ids is None else tuple(choice.get("forced") or ()),
            sampling={**(choice.get("sampling") or {}), **sampling},
        )
        encode(call)
        return call
    except (LookupError, TypeError, ValueError, AttributeError, BadRecord) as error:
        raise Fault(
            f"model endpoint {url}", why=f"not a chat completion ({type(error).__name__}: {error}): {complaint(answer)}"
        ) from error


def listed_models(answer: Any) -> list[Mapping[str, Any]]:
    """The entries of a list of models; none if it is no such list."""
    models = answer.get("data") if isinstance(answer, Mapping) else None
    return [model for model in models if isinstance(model, Mapping)] if isinstance(models, list) else []


def _owner(listed: Any, model: str) -> str | None:
    """Who serves this model, or any of the list."""
    known = sorted(listed_models(listed), key=lambda one: one.get("id") != model)
    owner = known[0].get("owned_by") if known else None
    return owner if isinstance(owner, str) else None


def _logprobs(choice: Mapping[str, Any]) -> tuple[float, ...] | None:
    content = (choice.get("logprobs") or {}).get("content")
    if content is None:
        return None
    values = [float(entry["logprob"]) for entry in content]
    return tuple(0.0 if 0.0 < value < 1e-3 else value for value in values)  # just above 0 is a rounding error


def complaint(answer: Any) -> str:
    """The message of an error, from its JSON or its text, on one short line."""
    if isinstance(answer, str | bytes):
        with suppress(ValueError, RecursionError):
            answer = json.loads(answer)
    if isinstance(answer, bytes):
        answer = answer.decode(errors="replace")
    if isinstance(answer, Mapping):
        error = answer.get("error", answer)
        answer = error.get("message", error) if isinstance(error, Mapping) else error
    text = " ".join(str(answer).split())
    return text if len(text) <= 300 else text[:299] + "…"
