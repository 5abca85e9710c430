"""The way of a version into service and back: which step comes next, what a breach leads to, and who is served by whom.

Nothing moves here: the store keeps the stages, `contracts.release` says which moves are legal, and what the outcomes of
a canary mean is told by a guard.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Reason
from holdfast.contracts.release import SHARES, Release, Stage
from holdfast.promote.bucketing import bucket

Action = Literal["rollback", "advance", "hold"]
Step = tuple[Stage, int]  # where to, and the percent of the requests it answers there
HOLDBACK = 5  # percent of the keys that stay with the version before, so that there is one to compare with at any time
WATCHED = 20  # percent of the keys, with those held back, whose answers are counted once a version is live


def next_step(release: Release) -> Step | None:
    """candidate → shadow → canary with 5, 25, 50, 100 % → live; None where there is no step ahead."""
    if release.stage is Stage.CANDIDATE:
        return Stage.SHADOW, 0
    if release.stage is Stage.SHADOW:
        return Stage.CANARY, SHARES[0]
    if release.stage is Stage.CANARY:
        larger = [share for share in SHARES if share > release.share]
        return (Stage.CANARY, larger[0]) if larger else (Stage.LIVE, 100)
    return None


def rollback_target(releases: Iterable[Release], failing: Release) -> Release | None:
    """The release that serves once the failing one is gone; None when there is none.

    For a canary it is the live one; for a live one the last that is known to be good and was not taken back.
    """
    others = [release for release in releases if release.policy == failing.policy and release.id != failing.id]
    for other in others:
        if other.stage is Stage.LIVE:
            return other
    good = [release for release in others if release.stage is Stage.RETIRED and release.is_known_good]
    return max(good, key=lambda release: (release.changed_at, release.number), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What a guard's findings lead to, and why."""

    action: Action
    reasons: tuple[Reason, ...]
    step: Step | None = None  # None: it stays where it is


UNDECIDED = "guard_undecided"


def respond(release: Release, breaches: Sequence[Reason], is_clear: bool, lacks: Sequence[str] = ()) -> Response:
    """One proved breach takes a version back, whatever else is clear; one that is clear goes a step further.

    `lacks` says in words, metric by metric, what the guard still waits for."""
    message = f"{release.id} is {release.stage}"
    if release.stage not in (Stage.SHADOW, Stage.CANARY, Stage.LIVE):
        return _hold("not_watched", f"{message}: nothing that it answers is counted")
    if breaches:
        # What never answered anybody cannot be taken back: it is refused.
        to = Stage.REJECTED if release.stage is Stage.SHADOW else Stage.ROLLED_BACK
        return Response(action="rollback", reasons=tuple(breaches), step=(to, 0))
    if not is_clear:
        texts = (f"{message}: neither a breach nor its absence is proved yet", *lacks)
        return Response(action="hold", reasons=tuple(Reason(code=UNDECIDED, text=text) for text in texts))
    step = next_step(release)
    if step is None:
        return _hold("guard_clear", f"{message}, within every limit, and there is no step ahead")
    ahead = f"{step[0]} with {step[1]} %" if step[1] else step[0]
    why = Reason(code="guard_clear", text=f"{message} and proved to be within every limit; next is {ahead}")
    return Response(action="advance", reasons=(why,), step=step)


def _hold(code: str, text: str) -> Response:
    return Response(action="hold", reasons=(Reason(code=code, text=text),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Which release answers. It is an immutable value: a change does not disturb running requests."""

    live: str
    canary: str | None = None
    share: int = 0  # percent of the keys that the canary answers
    shadow: str | None = None  # gets a copy of each request, and nobody sees its answers
    salt: str = ""
    holdback: str | None = None  # the version before the live one, which a few keys stay with

    def __post_init__(self) -> None:
        if not self.live.strip():
            raise BadInput("routing", why="no live release", remedy="promote one first")
        if not 0 <= self.share <= 100:
            raise BadInput(f"routing: share = {self.share}", why="must be from 0 to 100")
        if self.live in (self.canary, self.shadow, self.holdback):
            raise BadInput(f"routing: {self.live}", why="is live, and canary, shadow or holdback of itself")


def route(releases: Iterable[Release], *, keeps_holdback: bool = False) -> Routing | None:
    """The routing of a policy's releases; None without a live one. A holdback is for who counts what comes of it.

    The canary's own id is the salt: keys keep their place while it grows, and when it is live; the next canary meets
    others."""
    known = sorted(releases, key=lambda release: release.number)
    at = {release.stage: release for release in known}  # of several shadows the newest
    live, canary, shadow = (at.get(stage) for stage in (Stage.LIVE, Stage.CANARY, Stage.SHADOW))
    if live is None:
        return None
    before = held_back(known, live) if keeps_holdback and canary is None and shadow is None else None
    return Routing(
        live=live.id,
        canary=None if canary is None else canary.id,
        share=0 if canary is None else canary.share,
        shadow=None if shadow is None else shadow.id,
        salt=canary.id if canary is not None else live.policy if before is None else live.id,
        holdback=None if before is None else before.id,
    )


def held_back(releases: Iterable[Release], live: Release) -> Release | None:
    """The version that the live one took the place of, in the same moment; None where there was none, or after a
    rollback."""
    before = [
        release
        for release in releases
        if release.stage is Stage.RETIRED and release.is_known_good and release.changed_at == live.changed_at
    ]
    return before[0] if len(before) == 1 else None


def choose(routing: Routing, key: str) -> str:
    """The release that answers this key: always the same one, and while the share grows keys only join the canary.

    Requests without a key would all fall into one place, so they are answered by the live one. A few keys never join:
    they stay with the version before, at 100 % and when it is live."""
    newer, older = (routing.canary, routing.live) if routing.canary is not None else (routing.live, routing.holdback)
    if older is None or not key.strip():
        return routing.live
    share = routing.share if routing.canary is not None else 100
    return newer if bucket(key, routing.salt) * 100 < min(share, 100 - HOLDBACK) else older


def is_counted(routing: Routing, key: str) -> bool:
    """Whether what comes of this key's requests is compared: only keys that could have met either version are, and of
    a live one a part of them, always the same, which is enough for as long as it is live."""
    if not key.strip():
        return False
    return routing.canary is not None or bucket(key, routing.salt) * 100 >= 100 - WATCHED
