"""The versions of a line in a running town: the live one drives the residents, a canary its share of them, and a shadow
lives in a copy of the town.

A resident keeps the version that the hash of all canaries gives it (`promote.bucketing`), and a growing share only adds
residents. A resident's day counts as a request does in a service: its return, and the share of its needs that were met.
The guard of all canaries (`operate.canary_controller`) compares the groups, moves the version on or takes it back, and
the ledger has it. The shadow's town has the same state to begin with and takes the same orders; nothing of it reaches
the live one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.errors import Conflict, HoldfastError
from holdfast.contracts.release import Experiment, Release, ServedRequest
from holdfast.operate.canary_controller import GUARD, NO_SERVICE, Looked, check_canary, lacking
from holdfast.operate.service import trial_of
from holdfast.promote.release import Routing, choose, route
from holdfast.prove.guard import GuardLimits
from holdfast.store.store import Store
from holdfast.workloads.towngate import SCRIPTS
from holdfast.workloads.townlife import KPI_EVERY, LIMITS, UNIT, Env, Life, Rules, rounded
from holdfast.workloads.townschool import LINE, RETURNS, TownMind, mind_of

FOLLOWED = 10  # ticks between two looks at what is live
APART_S = 1e-3  # between two outcomes of one evening: neighbours are compared, so they come in the order of their seats
GUARDED: Mapping[str, Any] = {  # of GuardLimits: what a group of residents may lose; no answer is waited for
    **NO_SERVICE, "success": 0.10, "reward": 0.15, "mature_after": 0.0, "caller_window_s": APART_S,
}  # fmt: skip
DAY = 1440  # ticks of the day that RETURNS are of
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ResidentDay:
    """What a day came to for one resident."""

    unit: str  # the resident
    place: int  # in the town, among its residents
    reward: float  # the return
    success: float  # share of the needs that were met, over the ticks of a day


class ResidentDays:
    """Counts the days of a town's residents. Who moved in during the day counts from the next one on; who had to leave
    counts at once, and who was sent away by order does not."""

    def __init__(self, env: Env, day: int) -> None:
        self._env, self._day = env, day  # ticks
        self._town = f"{env.rules.sha256[:8]}-{int(env.state.town['seed'][0]):x}"
        self.begin()

    def begin(self) -> None:
        """A new day begins with this tick."""
        people = self._env.state.people[0]
        self._who = self._identities()
        self._paid, self._met = people["returned"].copy(), np.zeros(self._env.residents)
        self._is_whole: Bools = people["alive"] == 1
        self._left: list[ResidentDay] = []
        self.ticks = 0

    @property
    def is_over(self) -> bool:
        return self.ticks >= self._day

    def unit(self, seat: int) -> str:
        """A resident by name: the town, the identity and the tick of the arrival."""
        slot, born = self._who[:, seat]
        return f"{self._town}-{slot}-{born}"

    def add(self) -> Bools:
        """Counts a tick that was just lived; the seats in which somebody new sits."""
        people, who = self._env.state.people[0], self._identities()
        is_new: Bools = (who != self._who).any(axis=0)
        self._who, self._paid = who, np.where(is_new, 0, self._paid)
        self._met[is_new] = 0.0
        needs = people["need"] >= np.asarray(self._env.law.n["low"])
        self._met += np.where(people["alive"] == 1, needs.mean(axis=1), 0.0)
        self._left += [self._of(int(seat)) for seat in np.flatnonzero(people["cause"] > 0)]
        self._is_whole &= ~is_new & (people["alive"] == 1)
        self.ticks += 1
        return is_new

    def ended(self) -> list[ResidentDay]:
        """The days of all who left and of all who were there from the beginning, in the order of their seats."""
        stayed = [self._of(int(seat)) for seat in np.flatnonzero(self._is_whole)]
        return sorted((*self._left, *stayed), key=lambda day: day.place)

    def _of(self, seat: int) -> ResidentDay:
        paid = int(self._env.state.people["returned"][0, seat]) - int(self._paid[seat])
        return ResidentDay(self.unit(seat), seat, paid / UNIT, float(self._met[seat]) / self._day)

    def _identities(self) -> NDArray[np.int64]:
        people = self._env.state.people[0]
        return np.stack((people["slot"], people["born"])).astype(np.int64)


class ShadowTown:
    """A copy of a town that another version drives. It takes the orders of the town that it copies."""

    def __init__(self, env: Env, mind: TownMind, day: int) -> None:
        self.life = Life(env.rules, seed=0, mind=mind, variant=mind.observation)
        self.life.go_on(env.state)
        self.days = ResidentDays(self.life.env, day)
        self._obeyed: int | None = None  # how many of the orders; None: those so far are in the state that was copied

    def follow(self, life: Life) -> None:
        """One tick, after the same orders; one that is not possible here is left out."""
        for given in life.commands[self._obeyed :] if self._obeyed is not None else ():
            with suppress(HoldfastError):
                self.life.order(given.name, given.args)
        self._obeyed = len(life.commands)
        self.life.step()
        self.days.add()


class LiveMind:
    """Drives a running town by the versions of a line. A promotion or a rollback reaches the residents between two
    ticks; a live version that cannot be loaded is left aside, and the one before it goes on. `lived` is told of each
    tick: it counts, compares and, with a guard, moves the canary or shadow."""

    def __init__(
        self,
        store: Store,
        rules: Rules,
        *,
        clock: Callable[[], float],
        line: str = LINE,
        every: int = FOLLOWED,
        is_guarded: bool = True,
        observation: str | None = None,  # what residents see; else what the live version was trained on
        day: int | None = None,  # ticks that are compared as one; else the town's day
    ) -> None:
        self._store, self._rules, self._line, self._every = store, rules, line, every
        self._clock, self._is_guarded = clock, is_guarded
        self._day = day or int(rules["ticks_per_day"])
        self._worst, best = (end * self._day / DAY for end in RETURNS)
        self._limits = {**GUARDED, "reward_range": (self._worst, best)}
        self._mind = mind_of(store, None, rules, line, observation=observation)
        self.observation = self._mind.observation  # of the town, for as long as it runs
        self.swaps: list[tuple[int, str]] = []  # tick, and the version that is live from then on
        self.refused: dict[str, str] = {}  # versions that cannot drive this town, and why
        self.moves: list[dict[str, Any]] = []  # what the guard did: tick, version, action, why
        self.rollout: Mapping[str, Any] | None = None  # who drives whom and how they compare; None: live drives all
        self._routing: Routing | None = None
        self._trial: Experiment | None = None
        self._beside: TownMind | None = None  # the canary
        self._shadow: ShadowTown | None = None
        self._days: ResidentDays | None = None
        self._is_canarys: Bools = np.zeros(int(rules["residents"]), np.bool_)
        self._looked: Looked | None = None
        self._is_due = False  # the guard has moved a version

    @property
    def version(self) -> str:
        return self._mind.version

    @property
    def lineage(self) -> Mapping[str, Any] | None:
        return self._mind.lineage

    def __call__(self, env: Env) -> NDArray[np.int64]:
        tick = int(env.state.town["tick"][0])
        if self._is_due or tick % self._every == 0:
            self._is_due = False
            self._follow(env, tick)
        chosen = self._mind(env)
        return chosen if self._beside is None else np.where(self._is_canarys, self._beside(env), chosen)

    def look(self, env: Env, seat: int) -> dict[str, Any]:
        mind = self._mind if self._beside is None or not self._is_canarys[seat] else self._beside
        return mind.look(env, seat)

    def lived(self, life: Life) -> None:
        """One tick was lived."""
        if self._days is None:
            return
        if self._days.add().any():
            self._divide()
        if self._shadow is not None:
            self._shadow.follow(life)
        is_over = self._days.is_over
        if is_over:
            self._settle(life)
        if is_over or life.tick % KPI_EVERY == 0:
            self._tell(life)

    # Who drives whom -------------------------------------------------------------------------------------------------

    def _follow(self, env: Env, tick: int) -> None:
        releases = {release.id: release for release in self._store.releases.of_policy(self._line)}
        routing = route(releases.values())
        name = SCRIPTS if routing is None else routing.live
        if name != self._mind.version and name not in self.refused:
            try:
                self._mind = mind_of(self._store, None, self._rules, self._line, observation=self.observation)
                self.swaps.append((tick, name))
            except HoldfastError as error:
                self.refused[name] = str(error)
        trial = None
        if routing is not None and routing.live == self._mind.version:  # else nothing that drives is live
            newcomer = routing.canary or routing.shadow
            trial = None if newcomer is None else trial_of(releases[newcomer], releases[routing.live])
        if (routing, trial) != (self._routing, self._trial):
            self._routing, self._trial = routing, trial
            self._compare(env, releases)

    def _compare(self, env: Env, releases: Mapping[str, Release]) -> None:
        """What was counted of a comparison that is over, or has changed, is let go; the new one begins with a day."""
        self._beside, self._shadow, self._days, self._looked, self.rollout = None, None, None, None, None
        if self._trial is None or self._routing is None:
            return
        begun = replace(self._trial, settings={GUARD: self._limits})
        with suppress(Conflict):  # it has ended already: somebody moved the version a moment ago
            self._store.trials.begin(begun, who=f"town of {self._line}", now=self._clock()).result()
        newcomer = self._routing.canary or self._routing.shadow
        assert newcomer is not None
        try:
            mind = mind_of(self._store, newcomer, self._rules, self._line, observation=self.observation)
            self.refused.pop(newcomer, None)
            if self._routing.canary is not None:
                self._beside = mind
            else:
                self._shadow = ShadowTown(env, mind, self._day)
        except HoldfastError as error:  # its residents are the live version's, and its days count as failed
            self.refused[newcomer] = str(error)
        self._days = ResidentDays(env, self._day)
        self._divide()

    def _divide(self) -> None:
        assert self._days is not None and self._routing is not None
        seats = range(self._is_canarys.size)
        self._is_canarys = np.array([self._arm(self._days.unit(seat)) == self._routing.canary for seat in seats])

    def _arm(self, unit: str) -> str:
        assert self._routing is not None
        return choose(self._routing, unit)

    # What comes of it ------------------------------------------------------------------------------------------------

    def _settle(self, life: Life) -> None:
        """A day is over: what came of it is written down, and the guard looks at all days so far."""
        assert self._days is not None and self._trial is not None and self._routing is not None
        served = list(self._served(life.tick))
        self._store.trials.record(served).result()
        self._days.begin()
        if self._shadow is not None:
            self._shadow.days.begin()
        if not self._is_guarded:
            return
        self._looked = asyncio.run(check_canary(self._store, self._line, GuardLimits(), clock=self._clock))
        if self._looked is not None and self._looked.response.step is not None:
            response = self._looked.response
            payload = {"version": self._looked.release.id, "action": response.action, "why": response.reasons[0].text}
            self.moves.append({"tick": life.tick, **payload})
            self._is_due = True

    def _served(self, tick: int) -> Iterable[ServedRequest]:
        """A copy that could not be made, like a canary that could not be loaded, has failed on every day."""
        assert self._days is not None and self._trial is not None and self._routing is not None
        days = self._days.ended()
        found = [(self._arm(day.unit), day) for day in days]
        if self._routing.canary is None and self._routing.shadow is not None:
            copied = days if self._shadow is None else self._shadow.days.ended()
            found += [(self._routing.shadow, day) for day in copied]
        found.sort(key=lambda one: one[1].place)
        began = self._clock() - APART_S * len(found)
        for place, (arm, day) in enumerate(found):
            is_failed = arm in self.refused
            yield ServedRequest(
                id=f"{self._trial.name}|{arm}|{day.unit}|{tick}",  # the same town lived again adds nothing
                trial=self._trial.name,
                arm=arm,
                unit=day.unit,
                at=began + APART_S * place,
                error=is_failed,
                success=0.0 if is_failed else day.success,
                reward=self._worst if is_failed else day.reward,
            )

    def _tell(self, life: Life) -> None:
        """For people, and for other threads: a new record each time."""
        assert self._routing is not None and self._days is not None
        routing, looked, days = self._routing, self._looked, self._days
        here = np.flatnonzero(life.env.state.people["alive"][0]).tolist()
        shares = Counter(self._arm(days.unit(seat)) for seat in here)
        payload: dict[str, Any] = {"live": routing.live, "canary": routing.canary, "share": routing.share}
        payload |= {"shadow": routing.shadow, "residents": dict(shares), "refused": dict(self.refused)}
        payload["moves"] = list(self.moves)
        if looked is not None:
            payload["guard"] = {
                "is_clear": looked.watch.is_clear,
                "readings": [
                    {name: getattr(reading, name) for name in ("metric", "state", "live", "canary", "n", "needs")}
                    for reading in looked.watch.readings.values()
                ],
                "lacks": list(lacking(looked.watch, GuardLimits(), looked.release.kind)),
            }
        if self._shadow is not None:
            named = {limit.kpi for limit in LIMITS} | {"reward", "chats"}
            both = ((name, (life.kpis.get(name), value)) for name, value in self._shadow.life.kpis.items())
            payload["kpis"] = {
                name: rounded({"live": values[0], "shadow": values[1]}) for name, values in both if name in named
            }
        self.rollout = payload
