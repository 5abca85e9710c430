"""Perturbations: price spikes, outages, meetings, rain and festivals, by chance or by command, within limits.

There is a pause after each kind and after any, a limit on how many run at once, and a limit on invitations a resident.
"""

from __future__ import annotations

from typing import Any

from holdfast.town.compiled_rules import BLACKOUT, MEETING, N_TROUBLES, OUTAGE, SPIKE
from holdfast.town.kernel import (
    MEETING_STREAM,
    MET,
    MISSED,
    TROUBLE_BEGINS,
    TROUBLE_ENDS,
    TROUBLE_STREAM,
    below,
    draw,
    inlined,
    jit,
    tell,
)
from holdfast.town.relationships import both, rivalry

HARD = (SPIKE, BLACKOUT, OUTAGE)  # while one of these lasts, nobody has to leave


@jit
def weather(law: Any, town: Any, people: Any, ring: Any) -> None:
    """What is over ends, and what chance brings begins."""
    if not law.n.with_trouble:
        return
    active = 0
    for kind in range(N_TROUBLES):
        if town.until[kind] == town.tick and town.tick > 0:
            tell(town, ring, TROUBLE_ENDS, kind, -1, 0)
            if kind <= OUTAGE:  # the hard ones come first
                town.calm_at = town.tick
        active += town.until[kind] > town.tick
    if active >= law.n.most_at_once or town.tick < town.trouble_ready:
        return
    chance, kind = below(draw(town.seed, town.tick, TROUBLE_STREAM, 0), 1 << 32), 0
    while kind < N_TROUBLES and chance >= law.n.trouble_chance[kind]:  # one a tick at most
        chance -= law.n.trouble_chance[kind]
        kind += 1
    if kind < N_TROUBLES and town.tick >= town.ready[kind]:
        span = law.n.trouble_high[kind] - law.n.trouble_low[kind] + 1
        length = law.n.trouble_low[kind] + below(draw(town.seed, town.tick, TROUBLE_STREAM, 100 + kind), span)
        begin_trouble(law, town, people, ring, kind, length)


@jit
def begin_trouble(law: Any, town: Any, people: Any, ring: Any, kind: int, length: int) -> bool:
    """Begin one now; false where nobody can be invited."""
    if kind == MEETING and not invite(law, town, people, length):
        return False
    town.until[kind] = town.tick + length
    town.ready[kind] = town.tick + length + law.n.trouble_pause[kind]
    town.trouble_ready = town.tick + law.n.trouble_cooldown
    town.troubles += 1
    tell(town, ring, TROUBLE_BEGINS, kind, town.meeting_a if kind == MEETING else -1, length)
    return True


@jit
def can_meet(law: Any, town: Any, person: Any, length: int) -> bool:
    """Nobody is invited too often, out of bed, or away from work."""
    if not person.alive or person.tokens <= 0 or (person.doing >= 0 and law.n.aff_until[person.doing] >= 0):
        return False
    if person.met_at >= 0 and town.tick - person.met_at < law.n.per_resident:
        return False
    if not law.n.with_work or person.job < 0:
        return True
    time, start = town.time, law.n.job_start[person.job]
    if time >= start:
        return bool(time >= law.n.job_end[person.job] and time + length < start + law.n.day)
    return bool(time + length < start)


@jit
def invite(law: Any, town: Any, people: Any, length: int) -> bool:
    """The two worst rivals of those who may be invited, else two by chance; they have to walk there."""
    if town.meeting_until > town.tick:
        return False
    a, b, worst = -1, -1, 0
    for i in range(people.size):
        person = people[i]
        if not can_meet(law, town, person, length):
            continue
        for k in range(law.n.most_ties):
            j = person.tie_to[k]
            if j >= 0 and person.tie_rivalry[k] > worst and can_meet(law, town, people[j], length):
                a, b, worst = i, j, person.tie_rivalry[k]
    if a < 0:
        start = below(draw(town.seed, town.tick, MEETING_STREAM, 0), people.size)
        for k in range(people.size):
            i = (start + k) % people.size
            if can_meet(law, town, people[i], length):
                if a < 0:
                    a = i
                else:
                    b = i
                    break
        if b < 0:
            return False
    for i in (a, b):
        people[i].tokens -= 1
        people[i].met_at = town.tick
    place = below(draw(town.seed, town.tick, MEETING_STREAM, 1), law.n.meetings)
    town.meeting_a, town.meeting_b, town.met = a, b, 0
    town.meeting_place, town.meeting_until = law.n.first_meeting + place, town.tick + length
    return True


@jit
def gather(law: Any, town: Any, people: Any, ring: Any) -> None:
    """Whether those who were to meet have met, or let it pass."""
    if town.meeting_a < 0:
        return
    a, b = town.meeting_a, town.meeting_b
    far = law.far[town.meeting_place]
    is_there = people[a].alive and people[b].alive and far[people[a].tile] <= 2 and far[people[b].tile] <= 2
    if is_there:
        both(law, people, a, b, law.n.tie_meeting)
        town.meetings += 1
        tell(town, ring, MET, a, b, rivalry(law, people[a], b))
    elif town.tick + 1 < town.meeting_until and people[a].alive and people[b].alive:
        return
    else:
        town.missed_meetings += 1
        tell(town, ring, MISSED, a, b, 0)
    town.meeting_a, town.meeting_b, town.meeting_until = -1, -1, 0
    town.until[MEETING] = min(town.until[MEETING], town.tick + 1)


@inlined
def is_hard(town: Any) -> bool:
    return bool(town.until[SPIKE] > town.tick or town.until[BLACKOUT] > town.tick or town.until[OUTAGE] > town.tick)


@jit
def refill(law: Any, town: Any, people: Any) -> None:
    """Everybody saves up invitations, up to a few."""
    for i in range(people.size):
        person = people[i]
        if person.alive and town.tick >= person.refill_at:
            person.tokens = min(law.n.bucket, person.tokens + 1)
            person.refill_at = town.tick + law.n.refill
