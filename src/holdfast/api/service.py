"""Into service and back: an accepted version is promoted, production reads the one in force, a bad one is taken back.

The moves are the store's, each with its entry in the ledger; which are legal is in `contracts.release`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.api.stored import StoreAddress, who
from holdfast.contracts.errors import BadInput, NotFound, StoreError
from holdfast.contracts.evidence import Decision, Reason
from holdfast.contracts.policy import Policy, policy_from
from holdfast.contracts.release import Release, Stage
from holdfast.pipeline.promote import adopt
from holdfast.policies.prompt import Prompt
from holdfast.promote.release import Routing, choose, rollback_target, route
from holdfast.store.releases import BY_HAND

FRESH_S = 0.5  # so old may be what production knows of the releases


# Promoting -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A version that a gate has accepted, and what that rests on."""

    version: str
    baseline: str  # the release that it was measured against
    decision: Decision
    evidence: str  # sha256
    proof: str | None  # sha256 of the published one


def promote(place: StoreAddress, accepted: Accepted, *, canary: float | None, shadow: bool, why: str) -> Release:
    """Move an accepted version, with the evidence that it was accepted by."""
    if canary is not None and (shadow or isinstance(canary, bool) or not 0.0 < canary <= 1.0):
        raise BadInput(
            f"canary = {canary!r}", why="is a share of the callers, above 0 and at most 1", remedy="try 0.05"
        )
    to = Stage.SHADOW if shadow else Stage.LIVE if canary is None else Stage.CANARY
    share = None if canary is None else max(1, round(canary * 100))
    with place.open() as store:
        release = store.releases.get(accepted.version)
        if store.releases.live(release.policy) is None:
            adopt(store, store.releases.get(accepted.baseline), who=who(), now=time.time()).result()
        return store.releases.move(
            release.id,
            to,
            expect=release.stage,
            expect_live=accepted.baseline,
            share=share,
            who=who(),
            why=why,
            now=time.time(),
            evidence=accepted.evidence,
            decision=accepted.decision,
            proof=accepted.proof,
            known_good=True if to is Stage.LIVE else None,
        ).result()


def rollback(
    name: str, *, to: str | None = None, why: str = "by hand", store: str | Path | None = None, project: str = "default"
) -> Release:
    """Take the canary back, or else the live version; the one that is live then.

    Without `to` the last version that is known to be good serves again. `hf.live` follows within a second.
    """
    with StoreAddress.of(store, project).open() as opened:
        releases = opened.releases.of_policy(name)
        at = {release.stage: release for release in releases}
        failing = at.get(Stage.CANARY) or at.get(Stage.LIVE)
        if failing is None:
            raise BadInput(f"rollback of {name!r}", why="nothing of it is in service", remedy="result.promote() first")
        target = rollback_target(releases, failing) if to is None else opened.releases.get(to)
        if target is None:
            remedy = "promote another one first"
            raise BadInput(f"rollback of {failing.id}", why="no other version is known to be good", remedy=remedy)
        return opened.releases.roll_back(
            name,
            failing=failing.id,
            to=target.id,
            who=who(),
            why=why,
            now=time.time(),
            reasons=(Reason(code=BY_HAND, text=why),),
        ).result()


# In production -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Seen:
    """The releases of a line at one moment."""

    at: float  # monotonic seconds
    policies: Mapping[str, Policy]  # by release
    routing: Routing


class Live:
    """What is in force of a line of versions. It follows releases, canaries and rollbacks within a second.

    Safe to use from any thread. Should the store be out of reach, what was known last stays in force.
    """

    def __init__(self, name: str, place: StoreAddress) -> None:
        self.name, self.is_closed = name, False
        self._store = place.open()
        self._lock = threading.Lock()
        self._seen: _Seen | None = None
        try:
            self._now()
        except BaseException:
            self.close()
            raise

    def version(self, key: str = "") -> str:
        """The release that answers, as in "support@3". A key (a user's id, say) always meets the same one."""
        return choose(self._now().routing, key)

    def policy(self, key: str = "") -> Policy:
        """The policy of the release that answers this key."""
        seen = self._now()
        return seen.policies[choose(seen.routing, key)]

    def prompt(self, name: str, key: str = "") -> str:
        """A named text of the version that answers this key."""
        policy = self.policy(key)
        texts: Mapping[str, Any] = policy.texts if isinstance(policy, Prompt) else getattr(policy, "resources", {})
        found = texts.get(name)
        if not isinstance(found, str):
            known = ", ".join(sorted(one for one, text in texts.items() if isinstance(text, str)))
            raise BadInput(f"prompt {name!r}", why=f"{self.version(key)} has none", remedy=f"it has: {known or 'none'}")
        return found

    def model(self, key: str = "") -> str | None:
        """The name of the model that the version was proved with."""
        policy = self.policy(key)
        return policy.model if isinstance(policy, Prompt) else getattr(policy, "name", None)

    def sampling(self, key: str = "") -> Mapping[str, Any]:
        """The sampling options that the version was proved with."""
        return dict(getattr(self.policy(key), "sampling", {}))

    def close(self) -> None:
        self.is_closed = True
        self._store.close()

    def __repr__(self) -> str:
        routing = self._now().routing
        canary = f", canary {routing.canary} with {routing.share} %" if routing.canary else ""
        return f"live {routing.live}{canary}"

    def _now(self) -> _Seen:
        with self._lock:
            if self._seen is None or time.monotonic() - self._seen.at > FRESH_S:
                try:
                    self._seen = self._look()
                except NotFound:
                    raise
                except StoreError:
                    if self._seen is None:
                        raise
                    self._seen = replace(self._seen, at=time.monotonic())
            return self._seen

    def _look(self) -> _Seen:
        releases = self._store.releases.of_policy(self.name)
        routing = route(releases)
        if routing is None:
            why = "nothing of it is live" if releases else "there is no such line of versions"
            raise NotFound(f"policy {self.name!r}", why=why, remedy="result.promote() takes a version into service")
        serving = {release.id: release for release in releases if release.id in (routing.live, routing.canary)}
        return _Seen(time.monotonic(), {one: _policy(release) for one, release in serving.items()}, routing)


def _policy(release: Release) -> Policy:
    kept = release.manifest.get("policy")
    if not isinstance(kept, Mapping) or "type" not in kept:
        why = f"is {release.source}, which says nothing of its texts"
        raise BadInput(f"release {release.id}", why=why, remedy="'holdfast release serve' serves it")
    return policy_from(kept)


_open: dict[tuple[str, str, str], Live] = {}  # one store for all requests of a process
_opening = threading.Lock()


def live(name: str, *, store: str | Path | None = None, project: str = "default") -> Live:
    """The version in force, for production: `hf.live("support").prompt("system", key=user)`.

    To be called as often as one likes: all calls share one open store.
    """
    place = StoreAddress.of(store, project)
    where = place.store if "://" in place.store else str(Path(place.store).absolute())
    with _opening:
        found = _open.get((name, where, project))
        if found is None or found.is_closed:
            found = _open[name, where, project] = Live(name, place)
        return found
