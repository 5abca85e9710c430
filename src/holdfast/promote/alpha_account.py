"""The α-account of a policy: how surely each further candidate has to be proved, so that errors hold over all of them.

Candidates that are measured on the same held-out tasks share one α. Candidate t of a set of tasks is promoted when its
evidence reaches 1/αₜ, αₜ = α γₜ (D + 1), where D counts those of the set that were promoted before (e-LOND, Xu and
Ramdas, arXiv:2311.06412). Whatever they have in common, tasks and the tries of the live version included: while no
candidate is better, the chance of any promotion is at most Σ αₜ ≤ α (family-wise); once some are, the expected share
of false ones among the promoted is what is held (false discovery rate). Tasks that no candidate of the policy was
measured on begin a set of their own. What is charged is kept in the ledger, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

HALF = 3  # candidates after which half of the α of a set is spent; 10 in versions before, with which it adds up to less
# What a test is about: a candidate against live, live against an anchor, or arms of traffic that nothing else is about.
CANDIDATE, ANCHOR, EXPERIMENT = "candidate", "anchor", "experiment"

ReadTasks = Callable[[str], frozenset[str] | None]  # the tasks of a set by its hash; None: they cannot be read any more


def share(number: int) -> float:
    """γₜ = c/((t + c − 1)(t + c)): all of them add up to 1, and the first t to t/(t + c)."""
    return HALF / ((number + HALF - 1) * (number + HALF))


def level(alpha: float, number: int, promoted: int = 0) -> float:
    """αₜ = α γₜ (D + 1)."""
    return alpha * share(number) * (promoted + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One test and the α that it has, fixed before its first episode; as the ledger keeps it."""

    SCHEMA: ClassVar[int] = 1

    key: str  # run, iteration and candidate: the same test again is the same charge
    policy: str
    run: str
    candidate: str  # its source
    baseline: str
    number: int  # of the tests on these tasks, this one included
    promoted: int = 0  # of them, those that were promoted before
    of: float  # α of all of them
    alpha: float  # of this one
    tasks: str  # hash of the list of tasks
    count: int  # of these tasks
    about: str = CANDIDATE
    iteration: int | None = None
    continues: str | None = None  # the key of the test that goes on here: no further one
    setup: str | None = None  # hash of the agent and the scorer

    def record(self) -> dict[str, Any]:
        payload = {name: value for name, value in asdict(self).items() if value is not None}
        return {"charge": payload.pop("key"), **payload}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Charge:
        payload = {name: value for name, value in record.items() if name != "charge"}
        return cls(key=record["charge"], **payload)

    @property
    def share(self) -> float:
        """γ, as it was when it was charged."""
        return self.alpha / (self.of * (self.promoted + 1))

    @property
    def text(self) -> str:
        """For people."""
        if self.about == EXPERIMENT:
            return f"α of this experiment {self.alpha:.2g}: on units of its own"
        which = f"test {self.number} of live against its anchor" if self.about == ANCHOR else _candidates(self.number)
        won = f", {self.promoted} accepted before" if self.promoted else ""
        anew = "; fresh held-out tasks would start anew" if self.about == CANDIDATE and self.number > 1 else ""
        return f"α of this test {self.alpha:.2g} of {self.of:g}: {which}{won}{anew}"


def _candidates(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"the {number}{ending} candidate on these tasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSetUse:
    """The tests on one set of held-out tasks, the first one first."""

    charges: tuple[Charge, ...]
    promoted: int  # candidates, and not taken back since
    next_alpha: float

    @property
    def alpha(self) -> float:
        """Of all tests on these tasks: the largest that one of them was given a share of."""
        return max(one.of for one in self.charges)

    @property
    def spent(self) -> float:
        """The share of α that is spent: t/(t + c)."""
        return sum(one.share for one in self.charges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """All tests of one policy's candidates."""

    policy: str
    sets: tuple[TaskSetUse, ...]
    anchor_tests: tuple[Charge, ...] = field(default=())
    experiments: tuple[Charge, ...] = field(default=())

    @property
    def bound(self) -> float:
        """Were no candidate ever better, and no arm: at most so likely has any of them been promoted, over the whole
        history."""
        charges = (*(one for part in self.sets for one in part.charges), *self.experiments)
        return min(1.0, sum(one.of * one.share for one in charges))


def charge(
    known: Sequence[Charge],
    promoted: Collection[str],
    read: ReadTasks,
    *,
    alpha: float,
    about: str = CANDIDATE,
    continues: Charge | None = None,
    uncharged: int = 0,
    **given: Any,
) -> Charge:
    """The charge of the next test. `promoted` are the keys of the tests whose own decision opened a gate; `given` says
    which test it is. One that continues another keeps its α, unless its further tasks were used by others and leave
    less: then it has that. `uncharged` are tests on these tasks that came before and that no account knows."""
    candidates = [one for one in known if one.about == CANDIDATE]
    if continues is not None:
        root = continues.continues or continues.key
        payload = {name: getattr(continues, name) for name in ("number", "promoted", "of", "alpha")}
        others = (
            [candidate for candidate in candidates if root not in (candidate.key, candidate.continues)]
            if about == CANDIDATE
            else []
        )
        if others := _same_tasks(others, str(given["tasks"]), read):
            payload = min(payload, _next(others, promoted, continues.of), key=lambda one: float(one["alpha"]))
        return Charge(**given, **payload, about=about, continues=root)
    if about == ANCHOR:
        number = 1 + sum(one.about == ANCHOR and one.continues is None for one in known)
        return Charge(**given, number=number, of=alpha, alpha=level(alpha, number), about=ANCHOR)
    if about == EXPERIMENT:  # its units are nobody else's, and so is its α
        return Charge(**given, number=1, of=alpha, alpha=alpha, about=EXPERIMENT)
    earlier = _same_tasks(candidates, str(given["tasks"]), read)
    return Charge(**given, **_next(earlier, promoted, alpha, uncharged))


def account_from(policy: str, known: Sequence[Charge], promoted: Collection[str], read: ReadTasks) -> Account:
    """What the charges in the ledger come to."""
    left, sets = [one for one in known if one.about == CANDIDATE], []
    while left:
        tests = _same_tasks(left, left[0].tasks, read)
        keys = {test.continues or test.key for test in tests}
        left = [one for one in left if (one.continues or one.key) not in keys]
        payload = _next(tests, promoted, max(test.of for test in tests))
        sets.append(TaskSetUse(charges=tuple(tests), promoted=payload["promoted"], next_alpha=payload["alpha"]))
    anchors = tuple(one for one in known if one.about == ANCHOR and one.continues is None)
    experiments = tuple(one for one in known if one.about == EXPERIMENT)
    return Account(policy=policy, sets=tuple(sets), anchor_tests=anchors, experiments=experiments)


def _next(tests: Sequence[Charge], promoted: Collection[str], alpha: float, uncharged: int = 0) -> dict[str, Any]:
    """What the test after these on a set of tasks is charged; nobody has a place before one that was taken."""
    number = 1 + max([len(tests) + uncharged, *(test.number for test in tests)])
    won = _promoted(tests, promoted)
    return {"number": number, "promoted": won, "of": alpha, "alpha": level(alpha, number, won)}


def _promoted(tests: Iterable[Charge], promoted: Collection[str]) -> int:
    """D: candidates that were promoted for what one of these tests found; what another set proved counts there."""
    return len({test.candidate for test in tests if test.key in promoted})


def _same_tasks(known: Sequence[Charge], tasks: str, read: ReadTasks) -> list[Charge]:
    """The tests on tasks of which some are among these, or among those of another that is found so; a test has used
    the tasks of all charges that continue it. Each is told by its first charge, once. What cannot be read any more
    counts as the same: nobody starts anew by losing a file."""
    first: dict[str, Charge] = {}
    used: dict[str, frozenset[str] | None] = {}
    for one in known:
        key = one.continues or one.key
        first.setdefault(key, one)
        used[key] = _union(used.get(key, frozenset()), read(one.tasks))
    found, reached = set[str](), read(tasks)
    new = {one.continues or one.key for one in known if one.tasks == tasks}
    while new := new | {key for key in used if key not in found and _touches(used[key], reached)}:
        for key in new:
            reached = _union(reached, used[key])
        found, new = found | new, set()
    return [one for key, one in first.items() if key in found]


def _union(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    return None if one is None or other is None else one | other


def _touches(one: frozenset[str] | None, other: frozenset[str] | None) -> bool:
    return one is None or other is None or not one.isdisjoint(other)
