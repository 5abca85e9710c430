"""Shifts: who is in time, late or absent; wages and fines; jobs lost and found."""

from __future__ import annotations

from typing import Any

from holdfast.town.kernel import ABSENT as TELL_ABSENT
from holdfast.town.kernel import DEPARTED_EARLY, FIRED, HIRED, inlined, jit, tell
from holdfast.town.kernel import LATE as TELL_LATE
from holdfast.town.state import ABSENT, AFTER, BEFORE, DUE, LATE, OFF, ON_TIME

SOON = 60  # ticks before a shift in which one should set out


@inlined
def is_at_work(law: Any, person: Any) -> bool:
    return bool(person.job >= 0 and law.tile[person.tile].venue == law.n.job_venue[person.job])


@inlined
def is_on_shift(law: Any, town: Any, person: Any) -> bool:
    time = town.time
    return bool(person.job >= 0 and law.n.job_start[person.job] <= time < law.n.job_end[person.job])


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


@jit
def shifts(law: Any, town: Any, people: Any, ring: Any) -> None:
    if not law.n.with_work:
        return
    time = town.time
    for i in range(people.size):
        person = people[i]
        if not person.alive:
            continue
        if person.job < 0:
            person.shift = OFF
            if town.tick >= person.hire_at:
                hire(law, town, people, ring, i)
            continue
        start, end = law.n.job_start[person.job], law.n.job_end[person.job]
        if time < start:
            person.shift = DUE if time >= start - SOON else BEFORE
            if time == 0:
                person.worked, person.away, person.was_late = 0, 0, 0
        elif time >= end:
            if time == end and ON_TIME <= person.shift <= LATE and not is_at_work(law, person):
                tell(town, ring, DEPARTED_EARLY, i, person.job, person.worked)
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
