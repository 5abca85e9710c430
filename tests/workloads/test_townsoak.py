"""A long life: looks at even distances, what was raised, who left, and a page that says so."""

from __future__ import annotations

from itertools import count

from holdfast.workloads.townlife import Life, read_rules
from holdfast.workloads.townsoak import Soak, page, soak


def lived(life: Life, ticks: int, *, stop_at: int = -1) -> Soak:
    memory, clock = iter([100.0, 104.0, *[104.5] * 20]), count()
    done = count(1)

    def each() -> None:
        if next(done) == stop_at:
            raise KeyboardInterrupt

    return soak(life, ticks, looks=4, memory_mb=lambda: next(memory), clock=lambda: float(next(clock)), each=each)


def test_it_looks_at_even_distances_and_growth_begins_at_the_second_look() -> None:
    life = Life(read_rules(residents=12), seed=3)
    told = lived(life, 800)
    assert [look.tick for look in told.looks] == [200, 400, 600, 800] and told.grown_mb == 0.5
    assert told.looks[-1].state == life.env.state.sha256() and told.windows == 1
    assert len({look.state for look in told.looks}) == 4 and told.looks[0].here == 12


def test_ctrl_c_keeps_what_there_was() -> None:
    told = lived(Life(read_rules(residents=12), seed=3), 800, stop_at=250)
    assert told.ticks == 250 and [look.tick for look in told.looks] == [200, 250]


def test_the_page_tells_hashes_memory_alerts_and_who_left() -> None:
    life = Life(read_rules(residents=12), seed=3)
    life.step()
    for seat in range(4):
        life.order("kill", {"resident": seat, "cause": "neglect"})
    told = lived(life, 720)
    text = page(told, command="holdfast town soak --ticks 720", date="2026-01-01", machine="a machine")
    assert told.left_for == {"neglect": 4} and "4 × neglect" in text and told.looks[-1].state in text
    assert told.alerts and all(f"  - {alert}" in text for alert in told.alerts)  # so many exits in half a day
    assert "| 181 |" in text and "holdfast town soak --ticks 720" in text and "104.5" in text
