"""Shifts, wages and jobs, as `town.work` has them."""

from __future__ import annotations

from tests.town.reference.world import Person, World, coins


def is_at_work(w: World, person: Person) -> bool:
    venue = w.layout.venue.get(person.tile)
    return person.job is not None and venue is not None and venue["id"] == w.rules["job"][person.job]["venue"]


def is_on_shift(w: World, person: Person) -> bool:
    if person.job is None:
        return False
    job = w.rules["job"][person.job]
    return bool(job["start"] <= w.time < job["end"])


def earn(w: World, person: Person) -> bool:
    if person.job is None or person.shift == "absent" or not (is_on_shift(w, person) and is_at_work(w, person)):
        return False
    wage = coins(w.rules["job"][person.job]["wage"])
    person.money += wage
    w.town.treasury -= wage
    person.earned += wage
    person.worked += 1
    person.jobless_since = w.town.tick
    w.count("worked")
    return True


def fine(w: World, person: Person, meals: float) -> None:
    taken = min(coins(meals), person.money)
    person.money -= taken
    w.town.treasury += taken


def shifts(w: World) -> None:
    for i, person in enumerate(w.people):
        if not person.alive:
            continue
        if person.job is None:
            person.shift = "off"
            if w.town.tick >= person.hire_at:
                hire(w, i)
            continue
        job = w.rules["job"][person.job]
        if w.time < job["start"]:
            person.shift = "due" if w.time >= job["start"] - 60 else "before"
            if w.time == 0:
                person.worked = person.away = person.was_late = 0
        elif w.time >= job["end"]:
            if w.time == job["end"] and person.shift in ("on_time", "late") and not is_at_work(w, person):
                w.tell("departed_early", i, person.job, person.worked)
            person.shift = "after"
        else:
            on_shift(w, i, w.time - job["start"])


def on_shift(w: World, i: int, since: int) -> None:
    person, rules = w.people[i], w.rules["employment"]
    weekday = w.town.tick // w.rules["ticks_per_day"] % 7
    if since == 0:
        person.worked = 1 if person.earned > 0 else 0
        person.away = person.was_late = person.absent[weekday] = 0
        person.shift = "due"
    if person.shift == "absent":
        return
    if is_at_work(w, person):
        person.away = 0
        if person.shift not in ("on_time", "late"):
            is_late = since > rules["grace"] or person.was_late
            person.shift = "late" if is_late else "on_time"
            if is_late and not person.was_late:
                late(w, i)
        return
    person.away += 1
    if since > rules["grace"] and person.shift == "due" and not person.was_late:
        late(w, i)
    if person.away > rules["absent_after"]:
        person.shift, person.absent[weekday] = "absent", 1
        fine(w, person, rules["absent_fine"])
        w.count("absences")
        w.tell("absent", i, person.job, person.away)
        missed = sum(person.absent)
        if missed >= rules["most_absences"] and w.town.job_exits_today < rules["exits_per_day"]:
            w.town.job_exits_today += 1
            w.tell("fired", i, person.job, missed)
            quit_job(w, person)


def late(w: World, i: int) -> None:
    person = w.people[i]
    person.was_late = 1
    fine(w, person, w.rules["employment"]["late_fine"])
    w.count("lates")
    w.tell("late", i, person.job)


def quit_job(w: World, person: Person) -> None:
    person.job, person.job_slot, person.shift = None, None, "off"
    person.hire_at = w.town.tick + w.rules["employment"]["rehire_after"]
    person.absent = [0] * 7


def hire(w: World, i: int) -> bool:
    """The first free place, beginning with another job for each resident."""
    jobs, person = w.rules["job"], w.people[i]
    taken = {(other.job, other.job_slot) for other in w.people if other.alive}
    for turn in range(len(jobs)):
        job = (i + turn) % len(jobs)
        for slot in range(jobs[job]["slots"]):
            if (job, slot) not in taken:
                person.job, person.job_slot, person.shift = job, slot, "before"
                w.tell("hired", i, job, slot)
                return True
    person.hire_at = w.town.tick + w.rules["ticks_per_day"] // 24
    person.jobless_since = w.town.tick  # nobody is blamed for that
    return False
