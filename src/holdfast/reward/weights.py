"""How much each signal counts: named, versioned weight sets, and the phases of a curriculum.

A set divides 1 among groups of terms, and a group's share evenly among its terms. It is fixed before anything is
measured: an attempt cannot gain by what is missing from it. What passed, and what is vetoed, is the guard's (`sheet`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import fsum, isclose, isfinite

from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import RewardTerm

# The rubric's terms by group, and the signal that measures each; 1 is always the good end.
RUBRIC: Mapping[str, Mapping[str, str]] = {
    "format": {"jsonValid": "format", "xmlTags": "tags", "deterministic": "deterministic"},
    "tool": {
        "signatureValid": "structure",
        "errorRate": "error_handling",
        "deduplication": "choice",  # a duplicate call is never the right choice
        "latencyCap": "tool_latency",
        "evidenceOverlap": "information_gain",
    },
    "task": {"testPassRatio": "tests", "oracleCorrectness": "success", "subgoalProgress": "progress"},
    "minimal": {"astSimilarity": "minimality", "fileTouchCount": "files", "scaffoldingPenalty": "scaffolding"},
    "cost": {"tokenEfficiency": "tokens", "apiCallCount": "calls", "wallClockTime": "latency"},
    "safety": {"permissionCheck": "permission", "policyAdherence": "safety", "escalationCorrect": "escalation"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSet:
    """One weight set: shares of groups that add up to 1, and the signals that each group is made of."""

    name: str  # with its version, as in code@1: other numbers are another version
    groups: Mapping[str, float]
    terms: Mapping[str, tuple[str, ...]]  # names of signals by group

    def __post_init__(self) -> None:
        if not self.name.partition("@")[2]:
            raise BadInput(f"weights {self.name!r}", why="have no version", remedy="name them as in code@1")
        if any(not isfinite(share) or share < 0.0 for share in self.groups.values()):
            raise BadInput(f"weights {self.name}", why="a share must be finite and at least 0")
        if not isclose(fsum(self.groups.values()), 1.0, abs_tol=1e-9):
            raise BadInput(f"weights {self.name}", why=f"the shares add up to {fsum(self.groups.values()):g}, not 1")
        if missing := [group for group in self.groups if not self.terms.get(group)]:
            raise BadInput(f"weights {self.name}: {missing[0]}", why="has no terms", remedy="name its signals")
        named = [name for group in self.groups for name in self.terms[group]]
        if twice := sorted({name for name in named if named.count(name) > 1}):
            raise BadInput(f"weights {self.name}: {twice[0]}", why="stands there twice")

    @property
    def shares(self) -> dict[str, float]:
        """How much of 1 each signal has."""
        return {
            name: share / len(self.terms[group]) for group, share in self.groups.items() for name in self.terms[group]
        }


def rubric(name: str, **groups: float) -> WeightSet:
    """A set over the rubric's own groups."""
    return WeightSet(name=name, groups=groups, terms={group: tuple(RUBRIC[group].values()) for group in groups})


def _single(name: str, **shares: float) -> WeightSet:
    """A set whose groups have one term each, of the same name."""
    return WeightSet(name=name, groups=shares, terms={group: (group,) for group in shares})


GENERAL = rubric("general@1", format=0.25, tool=0.30, task=0.35, cost=0.10)
CODE = rubric("code@1", format=0.20, tool=0.25, task=0.40, minimal=0.10, cost=0.05)
RESEARCH = rubric("research@1", format=0.15, tool=0.35, task=0.30, minimal=0.05, cost=0.15)
DATA = rubric("data@1", format=0.25, tool=0.30, task=0.35, minimal=0.05, cost=0.05)
TURN = _single("turn@1", information_gain=0.4, format=0.3, progress=0.2, safety=0.1)
TURN_PLAIN = _single("turn-plain@1", information_gain=0.4, format=0.3, progress=0.3)
TOOL = _single("tool@1", choice=0.4, structure=0.3, utility=0.2, error_handling=0.1)
SETS: Mapping[str, WeightSet] = {one.name: one for one in (GENERAL, CODE, RESEARCH, DATA, TURN, TURN_PLAIN, TOOL)}


def weights(name: str) -> WeightSet:
    """The set with this name; without a version, its newest."""
    found = [known for known in SETS if known == name or known.partition("@")[0] == name]
    if not found:
        raise BadInput(f"weights {name!r}", why="are unknown", remedy=f"use {', '.join(SETS)}")
    return SETS[max(found, key=lambda known: int(known.partition("@")[2]))]


def weigh(signals: Iterable[RewardTerm], by: WeightSet) -> tuple[RewardTerm, ...]:
    """Each signal's own weight times its share; what the set does not name is kept and counts 0.

    A signal's own weight is its part among signals of one name: those who measure turns or calls divide 1 among them.
    """
    shares = by.shares
    return tuple(replace(one, weight=one.weight * shares.get(one.name, 0.0)) for one in signals)


def score(values: Mapping[str, float], by: WeightSet) -> float:
    """The rubric's own number: the shares times the values of signals that are all there."""
    shares = by.shares
    if missing := [name for name in shares if name not in values]:
        raise BadInput(f"score by {by.name}", why=f"{missing[0]} was not measured", remedy="take `limited` weights")
    return fsum(share * values[name] for name, share in shares.items())


def limited(by: WeightSet, measured: Collection[str]) -> WeightSet:
    """The set for a workload that can only measure some of it: a group's share goes to its terms that are left, and
    the share of a group without any to the other groups. To be done once for a workload, never for an attempt."""
    terms = {group: tuple(name for name in by.terms[group] if name in measured) for group in by.groups}
    left = {group: share for group, share in by.groups.items() if terms[group]}
    whole = fsum(left.values())
    if whole <= 0.0:
        raise BadInput(f"weights {by.name}", why="nothing of them is measured", remedy="choose another set")
    groups = {group: share / whole for group, share in left.items()}
    return WeightSet(
        name=f"{by.name}[{','.join(sorted(by.shares.keys() & set(measured)))}]", groups=groups, terms=terms
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One stretch of a curriculum."""

    name: str
    first: int  # the episode from which on it may be entered
    horizon: int  # turns of an episode
    tools: tuple[str, ...] | None  # None: all there are
    weights: WeightSet
    least_success: float  # what must be reached before the next phase


PHASES = (
    Phase(
        name="Format Mastery",
        first=0,
        horizon=3,
        tools=("read_file",),
        weights=rubric("format-mastery@1", format=0.8, tool=0.1, task=0.1),
        least_success=0.8,
    ),
    Phase(
        name="Tool Integration",
        first=101,
        horizon=5,
        tools=("read_file", "search", "run_tests"),
        weights=rubric("tool-integration@1", format=0.4, tool=0.4, task=0.2),
        least_success=0.7,
    ),
    Phase(
        name="Full Autonomy",
        first=501,
        horizon=10,
        tools=None,
        weights=rubric("full-autonomy@1", format=0.2, tool=0.3, task=0.4, minimal=0.1),
        least_success=0.6,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumPosition:
    """Where in the curriculum a policy stands."""

    phase: int = 0  # index into the phases
    episode: int = 0  # played so far; set back with the phase


def onward(
    place: CurriculumPosition, *, episodes: int, success: float, hacked: bool, phases: tuple[Phase, ...] = PHASES
) -> CurriculumPosition:
    """The place after some more episodes: a phase back where a reward was hacked, on where enough was reached.

    Success is that of the hidden check over these episodes. One phase at a time; who is set back begins that phase
    anew, so that hacking costs the episodes as well. Time alone moves nobody.
    """
    if episodes < 1 or not 0.0 <= success <= 1.0 or not 0 <= place.phase < len(phases):
        raise BadInput(
            f"curriculum: phase {place.phase}, {episodes} episodes, success {success}", why="impossible numbers"
        )
    if hacked:
        back = max(place.phase - 1, 0)
        return CurriculumPosition(phase=back, episode=phases[back].first)
    played = place.episode + episodes
    is_last = place.phase + 1 == len(phases)
    if not is_last and played >= phases[place.phase + 1].first and success >= phases[place.phase].least_success:
        return CurriculumPosition(phase=place.phase + 1, episode=played)
    return CurriculumPosition(phase=place.phase, episode=played)
