"""The two formulas that `minimality` replaces, to measure it against: the specified one and the original system's."""

from __future__ import annotations

import re
from statistics import mean

from holdfast.reward.diff.edits import Change, compare
from holdfast.reward.diff.minimality import scaffold_amount, scaffolding
from holdfast.reward.diff.trees import kinds, language_of, line_changes, normalise_newlines

LEAST = 0.1  # of both multipliers


def spec_multiplier(
    similarity: float, *, files: int = 1, line_ratio: float = 0.0, scaffolding: float = 0.0, is_equivalent: bool = True
) -> float:
    """m = max(0.1, s − 0.1 (files − 1)⁺ − 2 (lines − 0.1)⁺ − 0.3 scaffolding), and 0.1 for what is not equivalent."""
    if not is_equivalent:
        return LEAST
    return max(LEAST, similarity - max(0, files - 1) * 0.1 - max(0.0, line_ratio - 0.1) * 2.0 - 0.3 * scaffolding)


def spec(change: Change, *, is_equivalent: bool) -> float:
    """The specified multiplier of a change: similarity of whole files by tree edit distance, mean over the files."""
    pairs = [(path, *texts) for path, texts in sorted(change.items()) if texts[0] != texts[1]]
    if not pairs:
        return spec_multiplier(1.0, is_equivalent=is_equivalent)
    alike, touched, lines = [], 0, 0
    for path, before, after in pairs:
        sizes = [len(kinds(text or "", language_of(path))) for text in (before, after)]
        alike.append(max(0.0, 1.0 - compare(before or "", after or "", language_of(path)).cost / max(*sizes, 1)))
        old, new = normalise_newlines(before or "").split("\n"), normalise_newlines(after or "").split("\n")
        touched += sum(max(b1 - b0, a1 - a0) for b0, b1, a0, a1 in line_changes(old, new))
        lines += max(len(old), 1)
    found = min(1.0, scaffold_amount(scaffolding(change)))
    ratio = touched / lines
    return spec_multiplier(
        mean(alike), files=len(pairs), line_ratio=ratio, scaffolding=found, is_equivalent=is_equivalent
    )


def lines_score(lines: int) -> float:
    """What so many more or fewer lines are worth; piecewise linear, and 0 at the least."""
    if lines < 10:
        return 1.0
    if lines <= 50:
        return 0.8 + 0.2 * (50 - lines) / 40
    if lines <= 100:
        return 0.5 + 0.3 * (100 - lines) / 50
    if lines < 500:
        return 0.3 + 0.2 * (500 - lines) / 400
    return max(0.0, 0.1 + 0.2 * min(1000 - lines, 500) / 500)


def original_multiplier(similarity: float, lines: int, scaffolding: float = 0.0) -> float:
    """m = clamp(clamp(0.7 s + 0.3 lines) · (1 − 0.5 scaffolding)), both to 0.1 … 1."""
    base = min(1.0, max(LEAST, 0.7 * similarity + 0.3 * lines_score(lines)))
    return min(1.0, max(LEAST, base * (1.0 - 0.5 * scaffolding)))


def original(change: Change) -> float:
    """The multiplier of the original system: the mean over the files of a change."""
    found = [
        original_multiplier(
            jaccard(before or "", after or "", language_of(path)),
            abs((before or "").count("\n") - (after or "").count("\n")),
            original_scaffolding(after or ""),
        )
        for path, (before, after) in sorted(change.items())
        if before != after
    ]
    return mean(found) if found else 1.0


def jaccard(before: str, after: str, language: str) -> float:
    """Its similarity: the share of node kinds that both files have. Anything but JavaScript and TypeScript is a row of
    lines, which are all of one kind."""
    if language not in ("javascript", "typescript", "tsx"):
        return 1.0
    one, two = set(kinds(before, language)), set(kinds(after, language))
    return len(one & two) / max(1, len(one | two))


def original_scaffolding(after: str) -> float:
    """Its penalty, from the text after alone: comments, imports, blank lines, one empty function; 1 at the most."""
    lines = after.split("\n")
    remarks = sum(line.startswith(("//", "/*")) or line.rstrip().endswith("*/") for line in lines)
    imports = sum(line.startswith("import ") for line in lines)
    blank = sum(not line.strip() for line in lines)
    penalty = 0.3 * (remarks > 0.5 * len(lines)) + 0.2 * (imports > 20) + 0.1 * (blank > 0.3 * len(lines))
    penalty += 0.4 * (re.search(r"function\s+\w+\s*\([^)]*\)\s*\{\s*\}", after) is not None)
    return min(1.0, penalty)
