"""What scrubbing finds of planted secrets and people, what it takes from text that holds none, and how long it takes.

Recall is over what `parts.canaries` plants: six letters in a row that are left count as a miss. The rules were adjusted
on its generated forms, so those written by hand after the rules are told apart. The clean text is the same file's talk
and programs, and this repository's own documentation and source.
"""

from __future__ import annotations

import time
from collections import Counter

from holdfast.privacy.scrub import Scrub
from parts import canaries, report
from parts.report import ROOT, Figures, rounded

EACH, QUICK = 1000, 100
MEANINGS = {
    "recall_secrets": "of planted secrets, the worst kind",
    "recall_personal": "of planted personal data, the worst kind",
    "recall_unseen_secrets": "of secrets in forms that were written after the rules",
    "recall_unseen_personal": "of personal data in forms that were written after the rules",
    "recall_unlisted_names": "of names that no dictionary holds and nothing announces: not promised",
    "false_per_mb_talk": "replaced in clean tool-use talk, per million letters",
    "false_per_mb_code": "replaced in clean programs, per million letters",
    "false_per_mb_repository": "replaced in this repository's documentation and source, per million letters",
    "ms_per_message": "for one message with something planted in it",
    "us_per_kb_clean": "for a thousand letters that were not seen before",
    "us_per_turn_seen": "for a conversation of 40 messages that was seen before",
}


def measure(quick: bool) -> Figures:
    scrub, planted, found = Scrub(b"benchmark" * 4), Counter[str](), Counter[str]()
    every = canaries.canaries(seed=2, each=QUICK if quick else EACH)
    began = time.perf_counter()
    clean = [scrub.value(canary.message) for canary in every]
    took = time.perf_counter() - began
    for canary, scrubbed in zip(every, clean, strict=True):
        planted[canary.kind] += 1
        found[canary.kind] += not canaries.is_left(canary, scrubbed)
    recall = {kind: found[kind] / planted[kind] for kind in planted}
    files = [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), *ROOT.glob("src/holdfast/**/*.py")]
    texts = [path.read_text(encoding="utf-8") for path in files if path.name not in ("people.py", "privacy.md")]
    pieces = [text[n : n + 1000] for text in texts for n in range(0, len(text), 1000)]
    fresh = Scrub(b"benchmark" * 4)
    began = time.perf_counter()
    falsely = sum(len(fresh.found(piece)) for piece in pieces)
    per_kb = (time.perf_counter() - began) / sum(map(len, pieces)) * 1e3
    talk = [{"role": "user", "content": text} for text in (canaries.TOOL_USE * 3)[:40]]
    scrub.messages(talk)
    began = time.perf_counter()
    for _ in range(100):
        scrub.messages(talk)
    return {
        "recall_secrets": min(recall[kind] for kind in canaries.SECRETS),
        "recall_personal": min(recall[kind] for kind in canaries.PERSONAL),
        "recall_unseen_secrets": _unseen(scrub, canaries.SECRETS),
        "recall_unseen_personal": _unseen(scrub, canaries.PERSONAL),
        "recall_unlisted_names": recall[canaries.UNLISTED],
        "false_per_mb_talk": _per_mb(scrub, canaries.TOOL_USE),
        "false_per_mb_code": _per_mb(scrub, canaries.CODE),
        "false_per_mb_repository": rounded(falsely / sum(map(len, pieces)) * 1e6),
        "ms_per_message": rounded(took / len(every) * 1e3),
        "us_per_kb_clean": rounded(per_kb * 1e6),
        "us_per_turn_seen": rounded((time.perf_counter() - began) / 100 * 1e6),
        "planted": len(every),
    }


def _unseen(scrub: Scrub, kinds: tuple[str, ...]) -> float:
    hits = [not canaries.is_left(one, scrub.value(one.message)) for one in canaries.UNSEEN if one.kind in kinds]
    return rounded(sum(hits) / len(hits))


def _per_mb(scrub: Scrub, texts: tuple[str, ...]) -> float:
    return rounded(sum(len(scrub.found(text)) for text in texts) / sum(map(len, texts)) * 1e6)


if __name__ == "__main__":
    report.main(__doc__ or "", measure, MEANINGS)
