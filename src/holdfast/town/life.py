"""The life of residents: needs, rent, shifts and wages, perturbations, why one has to leave, and who comes instead.

The number of exits a day is limited, and there is a pause between two. Nobody has to leave during a perturbation or
shortly after it. Perturbations begin by chance or by command: there is a pause after each kind and after any, a limit
on how many run at once, and a limit on invitations a resident.
"""

from __future__ import annotations

from typing import Any

from holdfast.town.compiled_rules import (
    BLACKOUT,
    COLLAPSE,
    ENERGY,
    EVICTION,
    FESTIVAL,
    HUNGER,
    HYGIENE,
    JOBLESS,
    MEETING,
    N_ITEMS,
    N_NEEDS,
    N_TROUBLES,
    NEGLECT,
    OUTAGE,
    RAIN,
    SOCIAL,
    SPIKE,
)
from holdfast.town.kernel import ABSENT as TELL_ABSENT
from holdfast.town.kernel import (
    ARRIVAL,
    DEPARTED_EARLY,
    EXIT,
    FIRED,
    HIRED,
    MEETING_STREAM,
    MET,
    MISSED,
    RENT_UNPAID,
    RESTOCK,
    SPAWN_STREAM,
    START_STREAM,
    TROUBLE_BEGINS,
    TROUBLE_ENDS,
    TROUBLE_STREAM,
    below,
    draw,
    index,
    inlined,
    jit,
    tell,
)
from holdfast.town.kernel import LATE as TELL_LATE
from holdfast.town.places import abort, leave_queue
from holdfast.town.relationships import both, drop, rivalry
from holdfast.town.rewards import pay, potential
from holdfast.town.rules import UNIT
from holdfast.town.state import ABSENT, AFTER, BEFORE, DUE, LATE, OFF, ON_TIME

IN_USE, NEVER = -2, -1  # of a slot


@jit
def dawn(law: Any, town: Any, people: Any, ring: Any) -> None:
    """Once a day: rent is due, and counts begin anew."""
    if town.time or town.tick == 0:
        return
    town.exits_today = town.job_exits_today = 0
    for i in range(people.size):
        person = people[i]
        if not person.alive:
            continue
        person.neglect = 0
        if person.money >= law.n.rent:
            person.money -= law.n.rent
            town.treasury += law.n.rent
            person.unpaid = 0
        else:
            person.unpaid = min(person.unpaid + 1, 255)
            tell(town, ring, RENT_UNPAID, i, -1, person.unpaid)


@jit
def deliver(law: Any, town: Any, things: Any, ring: Any) -> None:
    """The truck: everything is filled up at its hour."""
    time = town.time
    for kind in range(law.n.n_types):
        if law.n.stock_hour[kind] != time:
            continue
        brought = 0
        for o in range(law.n.type_first[kind], law.n.type_first[kind] + law.n.type_count[kind]):
            more = max(0, law.n.stock_most[kind] - things[o].stock)
            things[o].stock += more
            brought += more
        town.delivered += brought
        tell(town, ring, RESTOCK, kind, -1, brought)


@inlined
def cause_of(law: Any, town: Any, person: Any) -> int:
    """Why the resident would have to leave, or 0."""
    if person.low_ticks >= law.n.collapse_ticks:
        return COLLAPSE
    if person.unpaid >= law.n.unpaid_days:
        return EVICTION
    if person.neglect >= law.n.neglect_ticks:
        return NEGLECT
    if law.n.with_work and town.tick - person.jobless_since >= law.n.jobless_ticks:
        return JOBLESS
    return 0


@jit
def exits(law: Any, town: Any, people: Any, things: Any, who: Any, slots: Any, ring: Any, rewards: Any) -> None:
    """Needs that were too low for too long are counted, those leave who must and may, and everybody is paid. Who leaves
    changes nothing of what the others are paid for."""
    is_held = is_hard(town) or (town.calm_at > 0 and town.tick - town.calm_at < law.n.exit_grace)
    for i in range(people.size):
        person = people[i]
        person.cause = 0
        if person.alive:
            person.low_ticks = person.low_ticks + 1 if person.need[HUNGER] <= law.n.collapse_below else 0
            for k in range(N_NEEDS):
                if person.need[k] < law.n.neglect_below:
                    person.neglect += 1
                    town.deficit_ticks += 1
                    break
            cause = cause_of(law, town, person)
            is_due = cause and town.mortal and not is_held and town.tick >= town.exit_ready
            if is_due and town.exits_today < law.n.exits_per_day:
                depart(law, town, people, things, who, slots, ring, i, cause)
        rewards[i] = pay(law, town, person)


@jit
def depart(law: Any, town: Any, people: Any, things: Any, who: Any, slots: Any, ring: Any, i: int, cause: int) -> None:
    """A resident is gone, with everything that held them here."""
    person = people[i]
    if person.doing >= 0:
        abort(law, town, people, things, ring, i)
    leave_queue(law, town, people, things, ring, i)
    for o in range(things.size):
        if things[o].last_user == i:
            things[o].last_user = -1
    who[person.tile] = -1
    town.outside += person.money
    for k in range(N_ITEMS):
        town.lost += person.item[k]
        person.item[k] = 0
    for j in range(people.size):
        for k in range(law.n.most_ties):
            if people[j].tie_to[k] == i:
                drop(people[j], k)
        if people[j].behind == i:
            people[j].behind = -1
        if people[j].blocker == i:
            people[j].blocker = -1
    for k in range(law.n.most_ties):
        drop(person, k)
    slots[person.slot] = town.tick
    person.money, person.alive, person.cause, person.left_at = 0, 0, cause, town.tick
    person.home, person.job, person.job_slot, person.shift, person.goal = -1, -1, -1, OFF, -1
    span = law.n.respawn_high - law.n.respawn_low + 1
    person.respawn_at = town.tick + law.n.respawn_low + below(draw(town.seed, town.tick, SPAWN_STREAM, i), span)
    town.exits_today += 1
    town.exits += 1
    town.exit_ready = town.tick + law.n.exit_cooldown
    tell(town, ring, EXIT, i, cause, town.tick - person.born)


@jit
def arrivals(law: Any, town: Any, people: Any, things: Any, who: Any, slots: Any, ring: Any) -> None:
    """New residents walk in by the road, when their time, a tile and an identity are there."""
    for i in range(people.size):
        person = people[i]
        if person.alive:
            person.fresh = 0
            continue
        if town.tick < person.respawn_at:
            continue
        slot = free_slot(law, town, slots)
        if slot < 0:
            continue
        for k in range(law.n.n_entries):
            tile = law.n.entries[(i + k) % law.n.n_entries]
            if who[tile] < 0:
                settle(law, town, people, who, slots, i, tile, slot)
                hire_now = below(draw(town.seed, town.tick, SPAWN_STREAM, 1000 + i), 2) == 0
                if law.n.with_work and hire_now:
                    hire(law, town, people, ring, i)
                tell(town, ring, ARRIVAL, i, -1, slot)
                break


@jit
def free_slot(law: Any, town: Any, slots: Any) -> int:
    """One that was never used, else the one that has rested longest; -1 where none has rested enough."""
    best, since = -1, 1 << 60
    for k in range(slots.size):
        if slots[k] == NEVER:
            return k
        if slots[k] >= 0 and slots[k] < since:
            best, since = k, slots[k]
    return best if best >= 0 and town.tick - since >= law.n.slot_cooldown else -1


@jit
def settle(law: Any, town: Any, people: Any, who: Any, slots: Any, i: int, tile: int, slot: int) -> None:
    """A new resident with a starter kit, a nature and a home."""
    person = people[i]
    slots[slot] = IN_USE
    town.births += 1
    town.spawns += 1
    person.alive, person.tile, person.slot, person.born, person.fresh = 1, tile, slot, town.tick, 1
    who[tile] = i
    person.money = law.n.starter_money
    town.outside -= law.n.starter_money
    for k in range(N_ITEMS):
        person.item[k] = law.n.starter[k]
        town.delivered += law.n.starter[k]
    for k in range(N_NEEDS):
        person.need[k] = 600_000 + below(draw(town.seed, town.tick, START_STREAM, 10 * i + k), 350_000)
    nature(law, town, person)
    person.home = free_bed(law, people, i)
    person.job, person.job_slot, person.shift, person.hire_at = -1, -1, OFF, town.tick + law.n.hour
    person.jobless_since = town.tick
    person.doing = person.using = person.queue = person.goal = person.blocker = person.behind = -1
    person.goal_kind = -1
    person.left = person.low_ticks = person.neglect = person.worked = person.away = person.waited = 0
    person.blocked = person.avoided = person.last_action = 0
    person.unpaid = person.cause = person.was_late = person.success = 0
    person.paid = person.earned = person.chat_gain = person.reward = person.returned = 0
    person.met_at = person.left_at = -1
    person.chat_at = person.avoided_at = town.tick - law.n.day
    person.shaped = potential(law, person)
    person.tokens, person.refill_at = 1, town.tick + law.n.refill
    for day in range(7):
        person.absent[day] = 0
    for k in range(person.tie_to.size):
        drop(person, k)


@jit
def nature(law: Any, town: Any, person: Any) -> None:
    """Natures come in their shares, spread evenly over the births: the bits of their number in reverse."""
    count, turned = town.births, 0
    for _ in range(32):
        turned = (turned << 1) | (count & 1)
        count >>= 1
    profile = 0
    while profile + 1 < law.n.n_profiles and turned >= law.n.profile_upto[profile]:
        profile += 1
    person.profile = profile
    for k in range(person.trait.size):
        person.trait[k] = law.n.traits[profile, k] if law.n.with_traits else 0


@jit
def free_bed(law: Any, people: Any, i: int) -> int:
    for turn in range(law.n.bed_count):
        bed = law.n.bed_first + (i + turn) % law.n.bed_count
        is_taken = False
        for j in range(people.size):
            if j != i and people[j].alive and people[j].home == bed:
                is_taken = True
                break
        if not is_taken:
            return int(bed)
    return -1


@jit
def first_morning(law: Any, town: Any, people: Any, things: Any, who: Any, slots: Any, ring: Any) -> None:
    """The first morning: everybody is at home and has work."""
    town.mortal, town.meeting_a, town.meeting_b, town.meeting_place = 1, -1, -1, -1
    for o in range(things.size):
        kind = law.place[o].kind
        things[o].holder = things[o].held_for = things[o].last_user = -1
        things[o].stock = law.n.stock_start[kind]
        town.delivered += law.n.stock_start[kind]
        things[o].used_at = -1
    for i in range(people.size):
        home = law.n.bed_first + i % law.n.bed_count
        tile, least = -1, 1 << 30
        for one in range(law.n.tiles):
            if law.tile[one].walk and who[one] < 0 and law.far[home, one] < least:
                tile, least = one, law.far[home, one]
        settle(law, town, people, who, slots, i, tile, i % slots.size)
        if law.n.with_work:
            hire(law, town, people, ring, i)


@jit
def pass_by(law: Any, town: Any, people: Any, ring: Any) -> None:
    """A tick passes by for everybody: needs run down, and shifts go on."""
    is_raining, is_feast = town.until[RAIN] > town.tick, town.until[FESTIVAL] > town.tick
    for i in range(people.size):
        if people[i].alive:
            wear(law, people[i], is_raining, is_feast)
            if law.n.with_work:
                shift(law, town, people, ring, i)


@inlined
def wear(law: Any, person: Any, is_raining: bool, is_feast: bool) -> None:
    profile, here = person.profile if law.n.with_traits else 0, law.tile[index(person.tile)]
    is_wet = is_raining and not here.is_indoors
    for k in range(N_NEEDS):
        if k == SOCIAL and not law.n.with_ties:
            continue  # alone it could never be met
        loss = law.n.decay[profile, k]
        if is_wet and (k in (HYGIENE, ENERGY)):
            loss = loss * 3 // 2
        if is_feast and k == SOCIAL and here.is_park:
            loss = -4 * loss
        value = person.need[k] - loss
        person.need[k] = 0 if value < 0 else UNIT if value > UNIT else value


SOON = 60  # ticks before a shift in which one should set out


@inlined
def is_at_work(law: Any, person: Any) -> bool:
    job = person.job
    return bool(job >= 0 and law.tile[index(person.tile)].venue == law.n.job_venue[job])


@inlined
def is_on_shift(law: Any, town: Any, person: Any) -> bool:
    time, job = town.time, person.job
    return bool(job >= 0 and law.n.job_start[job] <= time < law.n.job_end[job])


@inlined
def can_earn(law: Any, town: Any, person: Any) -> bool:
    """There, in time, and not already counted as absent for the day."""
    if law.n.with_work == 0 or person.shift == ABSENT:
        return False
    return is_on_shift(law, town, person) and is_at_work(law, person)


@inlined
def earn(law: Any, town: Any, person: Any) -> bool:
    """One tick of work, paid at once."""
    if not can_earn(law, town, person):
        return False
    wage = law.n.job_wage[person.job]
    person.money += wage
    town.treasury -= wage
    person.earned += wage
    person.worked += 1
    person.jobless_since = town.tick
    town.worked += 1
    return True


@jit
def fine(town: Any, person: Any, amount: int) -> None:
    """As much of it as there is: nobody owes money."""
    taken = min(amount, person.money)
    person.money -= taken
    town.treasury += taken


@inlined
def shift(law: Any, town: Any, people: Any, ring: Any, i: int) -> None:
    person, time, job = people[i], town.time, people[i].job
    if job < 0:
        person.shift = OFF
        if town.tick >= person.hire_at:
            hire(law, town, people, ring, i)
        return
    start, end = law.n.job_start[job], law.n.job_end[job]
    if time < start:
        person.shift = DUE if time >= start - SOON else BEFORE
        if time == 0:
            person.worked, person.away, person.was_late = 0, 0, 0
    elif time >= end:
        if time == end and ON_TIME <= person.shift <= LATE and not is_at_work(law, person):
            tell(town, ring, DEPARTED_EARLY, i, job, person.worked)
        person.shift = AFTER
    else:
        on_shift(law, town, person, ring, i, time - start)


@inlined
def on_shift(law: Any, town: Any, person: Any, ring: Any, i: int, since: int) -> None:
    if since == 0:
        person.worked = 1 if person.earned > 0 else 0  # this tick's work is done already
        person.away, person.was_late = 0, 0
        person.shift = DUE
        person.absent[town.tick // law.n.day % 7] = 0
    if person.shift == ABSENT:
        return
    if is_at_work(law, person):
        person.away = 0
        if person.shift != ON_TIME and person.shift != LATE:
            person.shift = ON_TIME if since <= law.n.grace and not person.was_late else LATE
            if person.shift == LATE and not person.was_late:
                late(law, town, person, ring, i)
        return
    person.away += 1
    if since > law.n.grace and person.shift == DUE and not person.was_late:
        late(law, town, person, ring, i)
    if person.away > law.n.absent_after:
        person.shift = ABSENT
        person.absent[town.tick // law.n.day % 7] = 1
        fine(town, person, law.n.absent_fine)
        town.absences += 1
        tell(town, ring, TELL_ABSENT, i, person.job, person.away)
        review(law, town, person, ring, i)


@jit
def late(law: Any, town: Any, person: Any, ring: Any, i: int) -> None:
    person.was_late = 1
    fine(town, person, law.n.late_fine)
    town.lates += 1
    tell(town, ring, TELL_LATE, i, person.job, 0)


@jit
def review(law: Any, town: Any, person: Any, ring: Any, i: int) -> None:
    """Too many absences in seven days cost the job, but only so many residents lose theirs in a day."""
    count = 0
    for day in range(7):
        count += person.absent[day]
    if count >= law.n.most_absences and town.job_exits_today < law.n.job_exits:
        town.job_exits_today += 1
        tell(town, ring, FIRED, i, person.job, count)
        quit_job(law, town, person)


@jit
def quit_job(law: Any, town: Any, person: Any) -> None:
    person.job, person.job_slot, person.shift = -1, -1, OFF
    person.hire_at = town.tick + law.n.rehire_after
    for day in range(7):
        person.absent[day] = 0


@jit
def hire(law: Any, town: Any, people: Any, ring: Any, i: int) -> bool:
    """The first free place, beginning with another job for each resident, so that all jobs fill alike. Where there is
    none, nobody is blamed for having no wage."""
    for turn in range(law.n.n_jobs):
        job = (i + turn) % law.n.n_jobs
        for slot in range(law.n.job_slots[job]):
            is_taken = False
            for j in range(people.size):
                if people[j].alive and people[j].job == job and people[j].job_slot == slot:
                    is_taken = True
                    break
            if not is_taken:
                people[i].job, people[i].job_slot, people[i].shift = job, slot, BEFORE
                tell(town, ring, HIRED, i, job, slot)
                return True
    people[i].hire_at = town.tick + law.n.hour
    people[i].jobless_since = town.tick
    return False


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
