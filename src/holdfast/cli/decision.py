"""A gate's decision as lines for 80 columns: what became of a version, and why."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from holdfast.contracts.evidence import Decision, Reason

WIDTH = 79


def outcome(decision: Decision) -> str:
    """In one word: what may still come is held, what may not is refused."""
    return "promoted" if decision.open else "refused" if decision.needs is None else "held"


def headline(release: str, decision: Decision) -> str:
    needs = "" if decision.needs is None else f"; about {decision.needs} more episodes may open the gate"
    return f"{release}: {outcome(decision)}{needs}"


def lines(reasons: tuple[Reason, ...], indent: str = "  ") -> Iterator[str]:
    """Each reason with its code, folded."""
    for reason in reasons:
        yield f"{indent}{reason.code}"
        yield from wrap(reason.text, WIDTH, initial_indent=f"{indent}  ", subsequent_indent=f"{indent}  ")
