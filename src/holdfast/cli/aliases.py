"""Older spellings of the command line, rewritten before it is parsed. They warn, once each; nothing else is touched."""

from __future__ import annotations

from collections.abc import Sequence

CANONICAL = "--prompt-optimization-"
CONTROL = "--prompt-optimization-control-"
ORDERS = ("status", "pause", "resume", "cancel")
ALIASES = {
    "--train-config": "--prompt-optimization-config",
    "--train-store-sqlite": "--prompt-optimization-store-sqlite",
    "--train-json": "--prompt-optimization-json",
    "--training-proxy-server": "--prompt-optimization-proxy-server",
    "--training-proxy-bind": "--prompt-optimization-proxy-bind",
    "--training-proxy-upstream-url": "--prompt-optimization-proxy-upstream-url",
    "--training-proxy-state-dir": "--prompt-optimization-proxy-state-dir",
    "--training-proxy-timeout-ms": "--prompt-optimization-proxy-timeout-ms",
}


def warning(old: str) -> str:
    return f"deprecated CLI alias '{old}' detected; use '{ALIASES[old]}' instead"


def rewrite(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command line in today's words, and the warnings that this deserves, in order.

    Only `optimize` has old names. Without a command, a documented flag means `optimize`, or `control`.
    """
    end = argv.index("--") if "--" in argv else len(argv)
    words, rest = list(argv[:end]), list(argv[end:])
    if not words or not (words[0] == "optimize" or words[0].startswith("-")):
        return list(argv), []
    if (ordered := _ordered(words)) is not None:
        return ordered + rest, []
    found: dict[str, None] = {}
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in ALIASES:
            found[flag] = None
            words[place] = ALIASES[flag] + equals + value
    if words[0] != "optimize" and any(word.startswith(CANONICAL) for word in words):
        words.insert(0, "optimize")
    return words + rest, [warning(old) for old in found]


def _ordered(words: Sequence[str]) -> list[str] | None:
    """The documented flags of control as an order about the newest run; None where there is none of them.

    What has no counterpart today (a principal, a policy file, a second order) stays as it is: it is refused as unknown.
    """
    action, others, left = "", list[str](), iter(words)
    for word in left:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix(CONTROL) if flag.startswith(CONTROL) else ""
        if name in ORDERS and not action and not equals:
            action = name
        elif name == "json" and not equals:
            others.append("--json")
        elif name == "state-dir":
            others += ["--store", f"{value if equals else next(left, '')}/store.sqlite"]
        else:
            others.append(word)
    if not action:
        return None
    why = [] if action == "status" else ["--why", f"by {CONTROL}{action}"]
    return ["control", action, "newest", *why, *others]
