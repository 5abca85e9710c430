"""A chat endpoint under examination: raw answers, whole or streamed, and what each check of them found.

Unlike `client`, nothing is retried or tidied: what is wrong with an answer is what `doctor` looks for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from holdfast.collect.client import NO_ANSWER, Client, checked, complaint, hidden, listed_models
from holdfast.collect.proxy.dialect import Chunks, ModelRequest, Splitter
from holdfast.contracts.errors import Fault, HoldfastError
from holdfast.contracts.evidence import Decision, Reason
from holdfast.contracts.trace import ModelCall

CHECKS = {
    "completion": "it answers",
    "token_ids": "ids of the prompt and of the answer come with it",
    "logprobs": "a log-prob comes with each id",
    "ids_of_text": "the ids are those of the text",
    "usage": "tokens are counted right",
    "repeatable": "temperature 0 gives the same answer again",
    "stream": "a stream says what the whole answer says",
    "template": "a later prompt begins with what was read and said before",
    "tool_calls": "calls of tools come back, and go in again unchanged",
    "temperature": "log-probs are those at the temperature in force",
    "top_k": "log-probs are renormalised under top-k",
    "top_p": "log-probs are renormalised under top-p",
    "draws": "tokens are drawn as often as their log-probs say",
    "trainer_gap": "the trainer finds the same log-probs",
}


class FindingState(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"  # could not be determined
    SKIPPED = "skipped"  # not asked for, or useless after an earlier failure


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """What one check found."""

    check: str
    state: FindingState = FindingState.OK
    code: str = "ok"  # stable, for programs
    detail: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


def verdict(findings: Sequence[DoctorFinding]) -> Decision:
    """Whether to train on it: not after a failed or undetermined check, nor if no check was made."""
    bad = [finding for finding in findings if finding.state in (FindingState.FAILED, FindingState.UNKNOWN)]
    if bad:
        return Decision(open=False, reasons=tuple(Reason(code=finding.code, text=finding.detail) for finding in bad))
    if not any(finding.state is FindingState.OK for finding in findings):
        return Decision(open=False, reasons=(Reason(code="nothing_examined", text="no check was made"),))
    passed = sum(finding.state is FindingState.OK for finding in findings)
    return Decision(open=True, reasons=(Reason(code="endpoint_fit", text=f"{passed} checks passed"),))


def failed(check: str, code: str, detail: str, **figures: float) -> DoctorFinding:
    return DoctorFinding(check=check, state=FindingState.FAILED, code=code, detail=detail, figures=figures)


def unknown(check: str, code: str, detail: str) -> DoctorFinding:
    return DoctorFinding(check=check, state=FindingState.UNKNOWN, code=code, detail=detail)


def skipped(check: str, why: str) -> DoctorFinding:
    return DoctorFinding(check=check, state=FindingState.SKIPPED, code="skipped", detail=why)


AT_ONCE = 16  # requests

Heard = Callable[[str], object]  # called with the name of each check as it begins


class EndpointRefused(HoldfastError):
    """The endpoint answered, but not with a completion."""

    def __init__(self, status: int, says: str) -> None:
        super().__init__("endpoint", why=f"HTTP {status}: {says}" if status != 200 else says)
        self.status, self.says = status, says


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """One choice as it came; None for what was missing."""

    asked: Mapping[str, Any]  # the request's body
    message: Mapping[str, Any]
    finish: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    spelled: tuple[bytes, ...] | None = None  # the bytes of each token, if given
    usage: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""

    @property
    def text(self) -> str:
        return str(self.message.get("content") or "")

    @property
    def calls(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.message.get("tool_calls") or ())

    def call(self) -> ModelCall:
        """As it would be recorded."""
        sampling = {name: value for name, value in self.asked.items() if name not in ("model", "messages", "stream")}
        return ModelCall(
            model=self.model,
            messages=tuple(self.asked["messages"]),
            response=self.message,
            finish_reason=self.finish,
            prompt_ids=self.prompt_ids,
            completion_ids=self.ids,
            logprobs=self.logprobs,
            sampling=sampling,
        )


class EndpointProbe:
    """`async with EndpointProbe(url) as probe: await probe.ask(body)`"""

    def __init__(self, base_url: str, *, api_key: str | None = None, timeout_s: float = 60.0) -> None:
        self.url, self._key = checked("endpoint", base_url, example="http://127.0.0.1:8377/v1"), api_key
        self._client = Client("", self.url, api_key=api_key, timeout_s=timeout_s)

    async def __aenter__(self) -> EndpointProbe:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()

    async def models(self) -> list[str]:
        """The names of its models; empty if it lists none."""
        try:
            return [str(one["id"]) for one in listed_models(await self._read("GET", "/models")) if "id" in one]
        except EndpointRefused:
            return []

    async def ask(self, body: Mapping[str, Any]) -> ProbeAnswer:
        return whole(body, await self._read("POST", "/chat/completions", body))

    async def hear(self, body: Mapping[str, Any]) -> ProbeAnswer:
        """The same, streamed and joined."""
        options = {"stream": True, "stream_options": {"include_usage": True}}
        return joined(body, await self._fetch("POST", "/chat/completions", {**body, **options}))

    async def _read(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        text = await self._fetch(method, path, body)
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise EndpointRefused(200, f"not JSON: {complaint(text)}") from None

    async def _fetch(self, method: str, path: str, body: Mapping[str, Any] | None) -> str:
        status, text = await self._client.fetch(method, path, body)
        if status == NO_ANSWER:
            raise Fault(f"endpoint {self.url}", why=text, remedy="is it running and reachable?")
        text = hidden(text, self._key)  # findings are shown
        if status != 200:
            raise EndpointRefused(status, complaint(text))
        return text


class EndpointSession:
    """The endpoint under examination: asks short questions and notes refused fields."""

    def __init__(self, probe: EndpointProbe, model: str, heard: Heard, system: str | None = None) -> None:
        self._probe, self._model, self.heard = probe, model, heard
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self._extras: dict[str, Any] = {"logprobs": True, "return_token_ids": True}
        self._turn = asyncio.Semaphore(AT_ONCE)
        self.refusals: list[str] = []

    async def ask(
        self, messages: Sequence[str | Mapping[str, Any]], *, stream: bool = False, **sampling: Any
    ) -> ProbeAnswer:
        """Asks; plain texts are the user's. Added fields are dropped once the endpoint refuses them."""
        said = [{"role": "user", "content": message} if isinstance(message, str) else message for message in messages]
        usual = {"max_tokens": 64, "temperature": 0.0}
        body = {"model": self._model, "messages": [*self._opening, *said], **usual, **sampling}
        hear = self._probe.hear if stream else self._probe.ask
        while True:
            extras = dict(self._extras)
            try:
                async with self._turn:
                    return await hear(body | extras)
            except EndpointRefused as refused:
                named = [name for name in extras if name.removeprefix("return_") in refused.says]
                if refused.status not in (400, 422) or not named:
                    raise
                self.refusals.append(refused.says)
                for name in named:
                    self._extras.pop(name, None)


def whole(body: Mapping[str, Any], answer: Any) -> ProbeAnswer:
    """The first choice of a chat completion."""
    try:
        choice = answer["choices"][0]
        return ProbeAnswer(
            asked=body,
            message=dict(choice["message"]),
            finish=choice.get("finish_reason"),
            prompt_ids=_ids(answer.get("prompt_token_ids")),
            usage=dict(answer.get("usage") or {}),
            model=str(answer.get("model") or ""),
            **_tokens(choice.get("token_ids"), (choice.get("logprobs") or {}).get("content")),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise EndpointRefused(
            200, f"not a chat completion ({type(error).__name__}): {complaint(json.dumps(answer))}"
        ) from None


def joined(body: Mapping[str, Any], text: str) -> ProbeAnswer:
    """The first choice of a stream of server-sent events."""
    made = Chunks(ModelRequest(model="", messages=(), body=b""))
    for event in Splitter().feed(text.encode() + b"\n\n"):
        made.feed(event)
        if "error" in made.head:
            raise EndpointRefused(200, complaint(made.head))
        if made.has_holes:
            raise EndpointRefused(200, f"an event that is not JSON, or no chunk: {complaint(event.data)}")
        if made.is_ended:
            break
    if not made.has_choice:
        raise EndpointRefused(200, "a stream without a choice")
    answer = {**made.head, "choices": [{**made.choice, "message": made.message()}]}
    answer["choices"][0] |= {"token_ids": made.ids, "logprobs": {"content": made.entries}}
    return whole(body, answer)


def _tokens(ids: Any, entries: Any) -> dict[str, Any]:
    """Ids, log-probs and bytes of a choice. vLLM can write ids in place of tokens, as in `token_id:17`."""
    found: dict[str, Any] = {"ids": _ids(ids)}
    if entries is None:
        return found
    found["logprobs"] = tuple(float(entry["logprob"]) for entry in entries)
    written = [str(entry.get("token", "")) for entry in entries]
    if written and all(word.startswith("token_id:") for word in written):
        found["ids"] = found["ids"] or tuple(int(word.removeprefix("token_id:")) for word in written)
    elif entries and all(entry.get("bytes") is not None for entry in entries):
        found["spelled"] = tuple(bytes(entry["bytes"]) for entry in entries)
    elif entries and all("token" in entry for entry in entries):
        found["spelled"] = tuple(word.encode() for word in written)
    return found


def _ids(given: Any) -> tuple[int, ...] | None:
    if given is None:
        return None
    if any(isinstance(token, bool) or not isinstance(token, int) for token in given):
        raise ValueError("a token id that is no number")
    return tuple(given)
