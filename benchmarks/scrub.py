"""What scrubbing finds of planted secrets and people, what it takes from text that holds none, and how fast it is.

The recalls are over `parts.planted`: 1,000 items in the forms of 23 languages, and 1,000 clean near misses. It was
written without sight of the rules, and is a development set since its misses were read: its figures flatter the rules.
Six characters in a row that are left count as a miss, as does a word of a name. `canaries` are the forms that the rules
were made for. All classes are on, as they are by default.
"""

from __future__ import annotations

import time
from collections import Counter

from holdfast.privacy.scrub import PSEUDONYM, Scrub
from parts import canaries, planted, report
from parts.report import ROOT, Figures, rounded

MANY, QUICK, EACH = 1000, 300, 100
SEED = 16
LEAST = 6  # characters in a row that give a thing away
MEANINGS = {
    "secret_recall": "of planted secrets: keys, passwords, codes, cards; at least 0.95 is wanted",
    "personal_recall": "of planted personal data that has a form; at least 0.85 is wanted",
    "name_recall": "of planted names; at least 0.6 is wanted, for no language model reads along",
    "false_alarms": "share of clean near misses that were changed; at most 0.01 is wanted",
    "known_recall": "of forms that the rules were made for, the worst kind",
    "false_per_mb_repository": "replaced in this repository's documentation and source, per million letters",
    "mb_per_s": "of this repository's documentation and source, not seen before; CPU time",
    "us_per_turn_seen": "for a conversation of 40 messages that was seen before",
}


def measure(quick: bool) -> Figures:
    many = QUICK if quick else MANY
    scrub, there, found = Scrub(b"benchmark" * 4), Counter[str](), Counter[str]()
    for item in planted.planted(many, SEED):
        there[item.group] += 1
        found[item.group] += not is_left(item, scrub.text(item.text))
    clean = planted.clean(many, SEED)
    false_alarms = sum(scrub.text(text) != text for text in clean)
    return {
        **{f"{group}_recall": rounded(found[group] / there[group]) for group in ("secret", "personal", "name")},
        "false_alarms": rounded(false_alarms / len(clean)),
        "known_recall": _known(scrub, EACH // 5 if quick else EACH),
        **_speed(8 if quick else 1),
        "planted": sum(there.values()),
        "clean": len(clean),
    }


def is_left(item: planted.Item, scrubbed: str) -> bool:
    """Whether a part of what was planted is still there that stands nowhere else in the text."""
    if item.group == "name":
        parts = [word for word in item.secret.replace("-", " ").split() if len(word) > 1] or [item.secret]
    else:
        parts = [item.secret[n : n + LEAST] for n in range(max(1, len(item.secret) - LEAST + 1))]
    rest = item.text.replace(item.secret, "\0", 1)
    scrubbed = PSEUDONYM.sub("\0", scrubbed)  # "secret" in a pseudonym is no part of "secret_…"
    return any(part in scrubbed for part in [part for part in parts if part not in rest] or [item.secret])


def _known(scrub: Scrub, each: int) -> float:
    kinds = (*canaries.SECRETS, *canaries.PERSONAL)
    hits = Counter[str]()
    for canary in canaries.canaries(seed=2, each=each):
        hits[canary.kind] += not canaries.is_left(canary, scrub.value(canary.message))
    return min(hits[kind] / each for kind in kinds)


def _speed(every: int) -> Figures:
    files = [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), *ROOT.glob("src/holdfast/**/*.py")]
    texts = [
        path.read_text(encoding="utf-8")
        for path in files
        if "privacy" not in path.parts[-2:] and path.stem != "privacy"
    ]
    pieces = [text[n : n + 1000] for text in texts for n in range(0, len(text), 1000)][::every]
    fresh, letters = Scrub(b"benchmark" * 4), sum(map(len, pieces))
    began = time.process_time()
    falsely = sum(len(fresh.detections(piece)) for piece in pieces)
    took = time.process_time() - began
    talk = [{"role": "user", "content": text} for text in (canaries.TOOL_USE * 3)[:40]]
    fresh.messages(talk)
    began = time.process_time()
    for _ in range(100):
        fresh.messages(talk)
    return {
        "false_per_mb_repository": rounded(falsely / letters * 1e6),
        "mb_per_s": rounded(letters / took / 1e6),
        "us_per_turn_seen": rounded((time.process_time() - began) / 100 * 1e6),
    }


if __name__ == "__main__":
    report.main(__doc__ or "", measure, MEANINGS)
