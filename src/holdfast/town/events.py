"""What happens, by number: kernels write it into a ring, views and narration read it. Nobody's future depends on it."""

from __future__ import annotations

from typing import Any

from holdfast.town.jit import jit

KINDS = (
    "none", "started", "finished", "failed", "aborted", "chat", "rebuff", "shared_meal", "help", "conflict",
    "ghost_step", "exit", "arrival", "late", "absent", "fired", "hired", "rent_unpaid", "trouble_begins",
    "trouble_ends", "met", "missed", "restock", "queued", "handover", "departed_early", "avoided",
)  # fmt: skip
(
    NONE, STARTED, FINISHED, FAILED, ABORTED, CHAT, REBUFF, SHARED_MEAL, HELP, CONFLICT, GHOST_STEP, EXIT, ARRIVAL,
    LATE, ABSENT, FIRED, HIRED, RENT_UNPAID, TROUBLE_BEGINS, TROUBLE_ENDS, MET, MISSED, RESTOCK, QUEUED, HANDOVER,
    DEPARTED_EARLY, AVOIDED,
) = range(len(KINDS))  # fmt: skip


EVENTS = 256  # the newest that a world remembers; a power of two


@jit
def tell(town: Any, ring: Any, kind: int, a: int, b: int, value: int) -> None:
    event = ring[town.events & (EVENTS - 1)]
    event.tick, event.kind, event.a, event.b, event.value = town.tick, kind, a, b, value
    town.events += 1
