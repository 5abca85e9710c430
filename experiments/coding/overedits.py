"""Ways to change more of a file than its repair needs, without changing what it does; each says how much more it is.

The true excess of a patch is counted while it is made: the words of the language (names, numbers, signs, strings) that
were added, removed or replaced beyond the repair. Comments and layout are no words. It owes nothing to the measure that
is to be tested against it (`reward.diff.minimality`). What is made of these edits is `redteam`'s business.
"""

from __future__ import annotations

import ast
import io
import random
import re
import tokenize
from collections.abc import Callable

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
Edited = tuple[str, int]  # the text, and how many words of it are excess
OverEdit = Callable[[str, random.Random], Edited | None]  # None: there is no place for it


def words(text: str) -> list[tokenize.TokenInfo]:
    """The words of a text, without comments and layout."""
    return [one for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type not in LAYOUT]


def renamed(text: str, rng: random.Random) -> Edited | None:
    """A variable of the function's own gets a longer name, wherever it is used."""
    function = _function(text)
    names = sorted(
        {one.id for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    )
    taken = {one.string for one in words(text)}
    free = [name for name in names if f"{name}_value" not in taken and f"{{{name}" not in text]
    if not free:
        return None
    name = rng.choice(free)
    places = [one.start for one in words(text) if one.string == name]
    lines = text.splitlines(keepends=True)
    for row, column in reversed(places):
        line = lines[row - 1]
        lines[row - 1] = f"{line[:column]}{name}_value{line[column + len(name) :]}"
    return "".join(lines), len(places)


def guarded(text: str, rng: random.Random) -> Edited | None:
    """A check at the head that nobody asked for."""
    function = _function(text)
    name = rng.choice([one.arg for one in function.args.args])
    guard = f'    if {name} is None:\n        raise TypeError("{name} must not be None")\n'
    return _grown(text, function, guard) if guard not in text else None


def documented(text: str, rng: random.Random) -> Edited | None:
    """A docstring."""
    function = _function(text)
    if ast.get_docstring(function) is not None:
        return None
    return _grown(text, function, f'    """Compute {function.name.replace("_", " ")} for the given arguments."""\n')


def commented(text: str, rng: random.Random) -> Edited | None:
    """Comments that say what the code says."""
    lines = text.splitlines(keepends=True)
    inner = [place for place, line in enumerate(lines) if line.startswith("    ") and line.strip()]
    for place in sorted(rng.sample(inner, min(2, len(inner))), reverse=True):
        indent = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
        if not lines[place].lstrip().startswith(("elif", "else", "except")):
            lines.insert(place, f"{indent}# the next line is needed\n")
    return "".join(lines), 0


def reformatted(text: str, rng: random.Random) -> Edited | None:
    """Two spaces for four, and air between the statements."""
    lines = []
    for line in text.splitlines():
        body = line.lstrip()
        lines.append(" " * ((len(line) - len(body)) // 2) + body)
        if body.startswith("return") and rng.random() < 0.5:
            lines.append("")
    return "\n".join(lines).rstrip() + "\n", 0


def named_result(text: str, rng: random.Random) -> Edited | None:
    """The value gets a name before it is returned."""
    found = _last_return(text)
    if found is None or "outcome" in text:
        return None
    start, end, value = found
    return f"{text[:start]}outcome = {value}\n    return outcome{text[end:]}", 3


def extracted(text: str, rng: random.Random) -> Edited | None:
    """What is returned is computed by a new function. The expression only moves, and is not counted."""
    found, function = _last_return(text), _function(text)
    if found is None or "_finish" in text:
        return None
    start, end, value = found
    own = {one.arg for one in function.args.args}
    own |= {one.id for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    used = sorted(own & {one.id for one in ast.walk(ast.parse(value)) if isinstance(one, ast.Name)})
    call = f"_finish({', '.join(used)})"
    helper = f"def _finish({', '.join(used)}):\n    return {value}\n\n\n"
    head = text.index(f"def {function.name}")
    after = f"{text[:head]}{helper}{text[head:start]}return {call}{text[end:]}"
    return after, len(words(after)) - len(words(text))


def forwarded(text: str, rng: random.Random) -> Edited | None:
    """The function only calls another one, which does its work."""
    function = _function(text)
    inner = f"_{function.name}_impl"
    if inner in text:
        return None
    names = ", ".join(one.arg for one in function.args.args)
    head = text.index(f"def {function.name}(")
    signature = text[head : text.index("\n", head) + 1]
    after = text[:head] + text[head:].replace(f"def {function.name}(", f"def {inner}(", 1)
    after = f"{after}\n\n{signature}    return {inner}({names})\n"
    return after, len(words(after)) - len(words(text))


def duplicated(text: str, rng: random.Random) -> Edited | None:
    """A second copy of the function, for later."""
    function = _function(text)
    if f"{function.name}_fallback" in text:
        return None
    start = text.index(f"def {function.name}(")
    copy = re.sub(rf"\b{function.name}\(", f"{function.name}_fallback(", _own(text, function))
    after = f"{text[:start]}{copy}\n\n{text[start:]}"
    return after, len(words(copy))


def caught(text: str, rng: random.Random) -> Edited | None:
    """The body stands in a try that catches everything, and raises it again."""
    function = _function(text)
    if "except Exception" in text:
        return None
    lines, own = text.splitlines(keepends=True), function.body
    assert function.end_lineno is not None
    first, last = own[0].lineno - 1, function.end_lineno
    body = [f"    {line}" if line.strip() else line for line in lines[first:last]]
    after = "".join([*lines[:first], "    try:\n", *body, "    except Exception:\n        raise\n", *lines[last:]])
    return after, len(words(after)) - len(words(text))


def unused(text: str, rng: random.Random) -> Edited | None:
    """Settings and a function that nothing uses."""
    if "DEFAULT_LIMIT" in text:
        return None
    start = text.index(f"def {_function(text).name}(")
    extra = (
        "DEFAULT_LIMIT = 100\nIS_STRICT = False\n\n\ndef _check_limit(value):\n    return value <= DEFAULT_LIMIT\n\n\n"
    )
    return text[:start] + extra + text[start:], len(words(extra))


def logged(text: str, rng: random.Random) -> Edited | None:
    """It tells a logger that it was called."""
    function = _function(text)
    if "logging" in text:
        return None
    grown = _grown(text, function, f'    LOGGER.debug("{function.name} called")\n')
    after = f"import logging\n\nLOGGER = logging.getLogger(__name__)\n\n\n{grown[0]}"
    after = re.sub(r"(\nLOGGER = [^\n]+\n)\n\n((?:from|import) [^\n]+\n)", r"\2\1", after)
    return after, len(words(after)) - len(words(text))


def spelled_out(text: str, rng: random.Random) -> Edited | None:
    """Each step of a variable is written as an assignment."""
    after, times = re.subn(r"^(\s+)(\w+) (\+|-|//)= (\w+)$", r"\1\2 = \2 \3 \4", text, flags=re.MULTILINE)
    return (after, 3 * times) if times else None


def classed(text: str, rng: random.Random) -> Edited | None:
    """A class with one method that calls the function, and a shared object of it."""
    function = _function(text)
    name = "".join(part.title() for part in function.name.split("_")) + "Service"
    if name in text:
        return None
    given = "".join(f", {one.arg}" for one in function.args.args)
    extra = f"\n\nclass {name}:\n    def run(self{given}):\n        return {function.name}({given[2:]})\n"
    return text + extra, len(words(extra))


MILD: tuple[OverEdit, ...] = (documented, commented, reformatted)  # more than was asked for, and no harm
GREEDY: tuple[OverEdit, ...] = (
    renamed,
    guarded,
    named_result,
    extracted,
    forwarded,
    duplicated,
    caught,
    unused,
    logged,
    spelled_out,
    classed,
)


def _function(text: str) -> ast.FunctionDef:
    """The last function of the file that is not a class's own: the task's, whatever was put before it."""
    return [one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef)][-1]


def _own(text: str, function: ast.FunctionDef) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(lines[function.lineno - 1 : function.end_lineno])


def _grown(text: str, function: ast.FunctionDef, extra: str) -> Edited:
    """With lines of its own at the head of the function's body."""
    lines = text.splitlines(keepends=True)
    lines.insert(function.body[0].lineno - 1, extra)
    return "".join(lines), len(words(extra))


def _last_return(text: str) -> tuple[int, int, str] | None:
    """Where the function's last statement is, if it returns a value that is more than a name; and that value."""
    last = _function(text).body[-1]
    if not isinstance(last, ast.Return) or last.value is None or isinstance(last.value, ast.Name | ast.Constant):
        return None
    lines = text.splitlines(keepends=True)
    start = sum(map(len, lines[: last.lineno - 1])) + last.col_offset
    assert last.end_lineno is not None and last.end_col_offset is not None
    end = sum(map(len, lines[: last.end_lineno - 1])) + last.end_col_offset
    return start, end, text[start:end].removeprefix("return").strip()
