"""Reads source text as compact trees that do not depend on layout, and finds the lines in which two texts differ.

Python, JavaScript, TypeScript and TSX are parsed by tree-sitter; any other text, and text that does not parse, becomes
lines of words. Punctuation, quotes and brackets that the shape implies are left out. Of two texts only what differs is
walked: `both` folds unchanged lines into single leaves. Stars that are valid Python but that the grammar rejects
(`a[*b]`, `return *a, b`) are replaced by a plus, which keeps every position.
"""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate, islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from unicodedata import normalize

from holdfast.contracts.errors import HoldfastError

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Parser
    from tree_sitter import Tree as Parsed

MOST_STEPS = 100  # lines that may differ where none is unique; beyond that they are not compared one by one
MOST_TRIES = 200  # stretches of lines that may take so many steps; those after them are one gap each

Gap = tuple[int, int, int, int]  # lines from and to before, lines from and to after


def normalise_newlines(source: str) -> str:
    return source.replace("\r\n", "\n").replace("\r", "\n")


def line_changes(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[Gap]:
    """The line ranges that differ, as (from, to) before and (from, to) after: a patience diff. Lines that occur once on
    both sides are anchors; between anchors Myers, which is fast while little differs."""
    gaps: list[Gap] = []
    tries = 0
    todo = [(0, len(before), 0, len(after))]
    while todo:
        b0, b1, a0, a1 = todo.pop()
        while b0 < b1 and a0 < a1 and before[b0] == after[a0]:
            b0, a0 = b0 + 1, a0 + 1
        while b0 < b1 and a0 < a1 and before[b1 - 1] == after[a1 - 1]:
            b1, a1 = b1 - 1, a1 - 1
        if b0 == b1 and a0 == a1:
            continue
        anchors = _anchors(before[b0:b1], after[a0:a1]) if b0 < b1 and a0 < a1 else []
        if anchors:
            edges = [(b0, a0), *((b0 + b, a0 + a) for b, a in anchors), (b1, a1)]
            todo += [(p, r, q, u) for (p, q), (r, u) in zip(edges[-2::-1], edges[:0:-1], strict=True)]
        else:
            is_long = b1 - b0 + a1 - a0 > MOST_STEPS
            tries += is_long
            is_over = is_long and tries > MOST_TRIES
            found = [(0, b1 - b0, 0, a1 - a0)] if is_over else _few(before[b0:b1], after[a0:a1])
            gaps += [(b0 + i, b0 + j, a0 + k, a0 + m) for i, j, k, m in found]
    return gaps


def _anchors(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Pairs of equal lines that are unique on both sides, as many as keep one order."""
    once = _unique(before)
    other = _unique(after)
    pairs = [(at, other[line]) for line, at in once.items() if line in other]
    return [pairs[at] for at in longest_increasing([a for _, a in pairs])]


def _few(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[Gap]:
    """The shortest script of lines where no line is unique; Myers 1986. Beyond MOST_STEPS it is all one gap."""
    many, other = len(before), len(after)
    reach, trail = {1: 0}, []
    for steps in range(min(many + other, MOST_STEPS) + 1):
        trail.append(dict(reach))
        for diagonal in range(-steps, steps + 1, 2):
            is_down = diagonal == -steps or (diagonal != steps and reach[diagonal - 1] < reach[diagonal + 1])
            b = reach[diagonal + 1] if is_down else reach[diagonal - 1] + 1
            a = b - diagonal
            while b < many and 0 <= a < other and before[b] == after[a]:
                b, a = b + 1, a + 1
            reach[diagonal] = b
            if b >= many and a >= other:
                return _gaps(trail, many, other)
    return [(0, many, 0, other)]


def _gaps(trail: Sequence[Mapping[int, int]], b: int, a: int) -> list[Gap]:
    found: list[Gap] = []
    for steps in range(len(trail) - 1, 0, -1):
        reach, diagonal = trail[steps], b - a
        is_down = diagonal == -steps or (diagonal != steps and reach[diagonal - 1] < reach[diagonal + 1])
        from_b = reach[diagonal + (1 if is_down else -1)]
        from_a = from_b - diagonal - (1 if is_down else -1)
        to_b, to_a = (from_b, from_a + 1) if is_down else (from_b + 1, from_a)
        if found and found[-1][0] == to_b and found[-1][2] == to_a:
            found[-1] = (from_b, found[-1][1], from_a, found[-1][3])
        else:
            found.append((from_b, to_b, from_a, to_a))
        b, a = from_b, from_a
    return found[::-1]


def _unique(lines: Sequence[Hashable]) -> dict[Hashable, int]:
    places: dict[Hashable, int] = {}
    for at, line in enumerate(lines):
        places[line] = -1 if line in places else at
    return {line: at for line, at in places.items() if at >= 0}


def longest_increasing(values: Sequence[int]) -> list[int]:
    """Positions of a longest rising subsequence; Fredman 1975."""
    tails: list[int] = []
    ends: list[int] = []
    back: list[int] = []
    for at, value in enumerate(values):
        place = bisect_right(ends, value)
        if place and ends[place - 1] == value:
            place -= 1  # strictly rising
        back.append(tails[place - 1] if place else -1)
        if place == len(ends):
            ends.append(value)
            tails.append(at)
        else:
            ends[place], tails[place] = value, at
    found, at = [], tails[-1] if tails else -1
    while at >= 0:
        found.append(at)
        at = back[at]
    return found[::-1]


LONGEST = 400_000  # characters: the interpreter's own parser takes much memory


def parsed(source: str) -> ast.Module | None:
    """What Python itself reads; None where it refuses."""
    if len(source) > LONGEST:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def without_stars(source: str) -> str | None:
    """The same text without such stars; None where there are none, or where it is no Python."""
    module = parsed(source)
    places = [] if module is None else _stars(module)
    if not places:
        return None
    lines = [line.encode("utf-8", errors="replace") for line in source.split("\n")]
    for row, column in places:
        line = lines[row - 1]
        if line[column : column + 1] == b"*":
            lines[row - 1] = line[:column] + b"+" + line[column + 1 :]
    return b"\n".join(lines).decode("utf-8", errors="replace")


def unparsed(source: str) -> str:
    """All of it as the interpreter would write it; empty where it is no Python. Places are not kept."""
    module = parsed(source)
    try:
        return "" if module is None else ast.unparse(module)
    except RecursionError:
        return ""


def _stars(module: ast.Module) -> list[tuple[int, int]]:
    """The places of starred values in tuples that are read, not assigned to."""
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
            found += [(elt.lineno, elt.col_offset) for elt in node.elts if isinstance(elt, ast.Starred)]
        elif isinstance(node, ast.arg) and isinstance(node.annotation, ast.Starred):
            found.append((node.annotation.lineno, node.annotation.col_offset))
    return found


def names(text: str) -> frozenset[str]:
    """The words of a list that is written as one text."""
    return frozenset(text.split())


LANGUAGES = dict.fromkeys((".py", ".pyi"), "python") | {".tsx": "tsx"}
LANGUAGES |= dict.fromkeys((".js", ".jsx", ".mjs", ".cjs"), "javascript")
LANGUAGES |= dict.fromkeys((".ts", ".mts", ".cts"), "typescript")
TEXT = "text"  # any other language: lines of words
FOLDED = "unchanged"  # the kind of a leaf that stands for equal lines on both sides
REMARKS = frozenset({"comment", "docstring", "html_comment", "hash_bang_line"})
MOST_LINES = 8_000  # of both sides that differ, and
MOST_NODES = 25_000  # of one side, and
MOST_DEPTH = 250  # of nodes in nodes; beyond that lines are compared, so that time stays bounded
MOST_BYTES = 300_000  # of a text that is parsed at all

_IMPLIED = names(  # by the kind of the node they stand in
    "( ) [ ] { } , : ; . = => -> @ ` ${ \" ' \\ def class return if else elif for while try except finally with import"
    " as lambda function export new throw raise assert del global nonlocal catch switch case interface extends"
    " implements pass break continue do print match enum namespace |"
)
_WHOLE = frozenset({"predefined_type", "regex", "escape_sequence", "is not", "not in"})
_STRINGS = frozenset({"string", "template_string"})
_UNWRAPPED = frozenset({"parenthesized_expression"})
_WORDS = re.compile(r"\w+|[^\w\s]")


class NoParser(HoldfastError):
    """The grammars are not installed."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Nodes in the order of the text, a parent before its children: node i and all below it are i … i + size[i] − 1."""

    language: str
    kind: Sequence[str]
    text: Sequence[str]  # of a leaf; empty for what has children
    parent: Sequence[int]  # −1: the root
    line: Sequence[int]  # where it starts, from 1
    end: Sequence[int]  # where it ends
    size: Sequence[int]
    height: Sequence[int]  # 0: a leaf
    hash: Sequence[int]  # equal below equal nodes, in this process
    shape: Sequence[int]  # the same without the texts
    errors: tuple[int, ...] = ()  # lines that do not parse

    def __len__(self) -> int:
        return len(self.kind)

    def children(self, node: int) -> list[int]:
        found, at, end = [], node + 1, node + self.size[node]
        while at < end:
            found.append(at)
            at += self.size[at]
        return found

    def within(self, node: int) -> range:
        """The node and all below it."""
        return range(node, node + self.size[node])

    def above(self, node: int) -> Iterator[int]:
        """Its parent, the parent of that, and so on."""
        while (node := self.parent[node]) >= 0:
            yield node

    def leaves(self, node: int = 0) -> Iterator[int]:
        return (one for one in self.within(node) if not self.height[one])

    def words(self, node: int) -> str:
        """The texts below a node, with spaces between: to look at and to compare, not to run."""
        return " ".join(self.text[leaf] for leaf in self.leaves(node) if self.text[leaf])

    def first_words(self, node: int, most: int = 40) -> str:
        """The same of the first leaves only: what is asked of each node must not read all that is below it."""
        return " ".join(islice((self.text[leaf] for leaf in self.leaves(node) if self.text[leaf]), most))


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """Two trees, the pairs of nodes that are known to belong together, and how exactly they were read."""

    before: Tree
    after: Tree
    pairs: tuple[tuple[int, int], ...]
    is_coarse: bool = False  # too much differs to be walked: whole lines


def language_of(path: str) -> str:
    return LANGUAGES.get(PurePosixPath(path).suffix.lower(), TEXT)


def parse(source: str, language: str) -> Tree:
    """The whole tree of one text. With errors it is made of lines and words, and says where they are."""
    source = normalise_newlines(source)
    if language == TEXT or is_large(source):
        return _by_lines(source, ())
    root = _parsed(source, language).root_node
    errors = _errors(root)
    if errors:
        return _by_lines(source, errors)
    return _compact(root, language, {})[0]


def partial(source: str, language: str) -> Tree:
    """The tree with whatever the grammar made of what does not parse: to look for things in, not to compare."""
    root = _parsed(normalise_newlines(source), language).root_node
    return _compact(root, language, {})[0]


def is_large(source: str) -> bool:
    """Too large to be parsed; it is read as lines of words."""
    return len(source) > MOST_BYTES


def kinds(source: str, language: str) -> list[str]:
    """The grammar's own kinds of all nodes, tokens too; of any other text, a line is a line."""
    source = normalise_newlines(source)
    if language == TEXT or is_large(source):
        return ["line"] * len(source.split("\n"))
    found, todo = [], [_parsed(source, language).root_node]
    while todo:
        node = todo.pop()
        found.append(node.type)
        todo += node.children
    return found


def both(before: str, after: str, language: str, *, fold: bool = True) -> Both:
    """Two texts side by side, without what is equal between them where `fold`."""
    before, after = normalise_newlines(before), normalise_newlines(after)
    lines = before.split("\n"), after.split("\n")
    gaps = line_changes(*lines)
    if language == TEXT or is_large(before) or is_large(after):
        return _lines_of_both(*lines, gaps, ((), ()), is_coarse=language != TEXT)
    old = _parsed(before, language)
    new = _read(_again(old, _parser(language), *lines, gaps), after, language)
    errors = _errors(old.root_node), _errors(new.root_node)
    if any(errors):
        return _lines_of_both(*lines, gaps, errors)
    if sum(b1 - b0 + a1 - a0 for b0, b1, a0, a1 in gaps) > MOST_LINES:
        return _lines_of_both(*lines, gaps, errors, is_coarse=True)
    folds, same = _fold(old.root_node, new.root_node, gaps, len(lines[0])) if fold else (({}, {}), [])
    old_tree, places_before = _compact(old.root_node, language, folds[0], MOST_NODES)
    new_tree, places_after = _compact(new.root_node, language, folds[1], MOST_NODES)
    if max(len(old_tree), len(new_tree)) > MOST_NODES or max(old_tree.height[0], new_tree.height[0]) > MOST_DEPTH:
        return _lines_of_both(*lines, gaps, errors, is_coarse=True)
    known = ((places_before.get(a), places_after.get(b)) for a, b in same)
    pairs = tuple((a, b) for a, b in known if a is not None and b is not None)
    return Both(before=old_tree, after=new_tree, pairs=((0, 0), *pairs))


@cache
def _grammar(language: str) -> Language:
    try:
        import tree_sitter
        import tree_sitter_javascript
        import tree_sitter_python
        import tree_sitter_typescript
    except ImportError as error:
        raise NoParser(f"{language} source", why=str(error), remedy="pip install 'holdfast[reward]'") from error
    grammars: dict[str, Any] = {
        "python": tree_sitter_python.language,
        "javascript": tree_sitter_javascript.language,
        "typescript": tree_sitter_typescript.language_typescript,
        "tsx": tree_sitter_typescript.language_tsx,
    }
    if language not in grammars:
        raise NoParser(f"language {language}", why=f"is none of {', '.join(grammars)} and {TEXT}")
    return tree_sitter.Language(grammars[language]())


def _parser(language: str) -> Parser:
    """A new one each time: a parser belongs to one thread."""
    grammar = _grammar(language)
    from tree_sitter import Parser

    return Parser(grammar)


@lru_cache(maxsize=4)  # the text before is compared with the text after, and with the least fix
def _parsed(source: str, language: str) -> Parsed:
    return _read(_parser(language).parse(_bytes(source)), source, language)


def _read(parsed: Parsed, source: str, language: str) -> Parsed:
    """The same tree or, where the grammar stumbled over what is right Python, that of the mended text."""
    if language != "python" or not parsed.root_node.has_error:
        return parsed
    other = without_stars(source)
    again = parsed if other is None else _parser(language).parse(_bytes(other))
    return parsed if again.root_node.has_error else again


def _bytes(source: str) -> bytes:
    return source.encode("utf-8", errors="replace")


def _again(old: Parsed, parser: Parser, before: Sequence[str], after: Sequence[str], gaps: Sequence[Gap]) -> Parsed:
    """The tree of the text after. What no edit touched is taken from the tree before, which saves most of the time."""
    if not gaps:
        return old
    whole = _bytes("\n".join(after))
    touched = sum(b1 - b0 + a1 - a0 for b0, b1, a0, a1 in gaps)
    if 2 * touched > len(after) or gaps[-1][1] == len(before) or gaps[-1][3] == len(after):
        return parser.parse(whole)
    ends = [0, *accumulate(len(line.encode("utf-8", errors="replace")) + 1 for line in before)]
    edited = old.copy()
    for b0, b1, a0, a1 in reversed(gaps):  # from the end, so that what is still to come keeps its place
        added = sum(len(_bytes(line)) + 1 for line in after[a0:a1])
        edited.edit(ends[b0], ends[b1], ends[b0] + added, (b0, 0), (b1, 0), (b0 + a1 - a0, 0))
    return parser.parse(whole, edited)


def _errors(root: Node) -> tuple[int, ...]:
    found, todo = [], [root] if root.has_error else []
    while todo:
        node = todo.pop()
        if node.is_error or node.is_missing:
            found.append(node.start_point[0] + 1)
        todo += [child for child in node.children if child.has_error or child.is_missing or child.is_error]
    return tuple(sorted(set(found)))


class _Rows(NamedTuple):
    """The arrays of a tree that is being read."""

    kind: list[str]
    text: list[str]
    parent: list[int]
    line: list[int]
    end: list[int]


Folds = dict[int, int]  # node → the number of its fold; −1: inside the fold before it


def _fold(old: Node, new: Node, gaps: Sequence[Gap], lines: int) -> tuple[tuple[Folds, Folds], list[tuple[int, int]]]:
    """The nodes in equal lines under parents that belong together, and these parents."""
    ends = [0, *(gap[1] for gap in gaps)]  # of the gaps: where equal blocks start
    shifts = [0, *(gap[3] - gap[1] for gap in gaps)]
    starts = [*(gap[0] for gap in gaps), lines]
    one: Folds = {}
    two: Folds = {}
    same: list[tuple[int, int]] = []
    number, todo = 0, [(old, new)]
    while todo:
        left, right = todo.pop()
        same.append((left.id, right.id))
        olds, news = left.children, right.children
        places = {(tuple(child.start_point), tuple(child.end_point), child.type): at for at, child in enumerate(news)}
        rest, taken, last = [], set(), (-2, -2)
        for at, child in enumerate(olds):
            start, stop = child.start_point, child.end_point
            row, end = start[0], stop[0]
            block = bisect_right(ends, row) - 1
            shift = shifts[block]
            twin = places.get(((row + shift, start[1]), (end + shift, stop[1]), child.type))
            if twin is None or end >= starts[block] or twin in taken:
                rest.append(child)
                continue
            is_run = last == (at - 1, twin - 1)
            number += not is_run
            one[child.id] = two[news[twin].id] = -1 if is_run else number
            taken.add(twin)
            last = (at, twin)
        others = [child for at, child in enumerate(news) if at not in taken]
        if [child.type for child in rest] == [child.type for child in others]:
            todo += [(a, b) for a, b in zip(rest, others, strict=True) if _is_tall(a) and _is_tall(b)]
    return (one, two), same


def _is_tall(node: Node) -> bool:
    return node.end_point[0] > node.start_point[0]


def _compact(root: Node, language: str, folds: Folds, most: int | None = None) -> tuple[Tree, dict[int, int]]:
    """The arrays, and where each node of the parser went. One node more than `most` is where it stops."""
    kind, text, parent, line, end = rows = _Rows([], [], [], [], [])
    places: dict[int, int] = {}
    todo: list[tuple[Node, int]] = [(root, -1)]
    while todo and (most is None or len(kind) <= most):
        node, above = todo.pop()
        name, label = node.type, folds.get(node.id) if folds else None
        children: list[Node] = []
        if label is None and name in _UNWRAPPED:
            todo += [(child, above) for child in reversed(node.children) if child.is_named]
            continue
        if label is not None:
            if label < 0:
                end[-1] = node.end_point[0] + 1
                continue
            name, words = FOLDED, f"#{label}"
        elif not node.is_named:
            if _is_implied(name, kind[above]):
                continue
            name, words = "operator", " ".join(_said(node).split())
        else:
            name, words, children = _named(node, name)
            if name == "identifier" and language == "python" and not words.isascii():
                words = normalize("NFKC", words)  # as the interpreter does
        here = places[node.id] = len(kind)
        kind.append(name)
        text.append(words)
        parent.append(above)
        line.append(node.start_point[0] + 1)
        end.append(node.end_point[0] + 1)
        if children:
            todo += [(child, here) for child in reversed(children)]
    return _tree(language, rows), places


def _is_implied(name: str, above: str) -> bool:
    if name == "in":
        return above in ("for_statement", "for_in_clause")
    if name == "from":
        return above != "yield"
    if name == ";" or name in _IMPLIED:
        return not (name == "|" and above.startswith("binary"))
    return False


def _named(node: Node, name: str) -> tuple[str, str, list[Node]]:
    """What a node is called here, its text, and the children that are still to be walked."""
    if not node.child_count or name in _WHOLE:
        return name, _said(node), []
    children = node.children
    if name in _STRINGS and not any(child.type in ("interpolation", "template_substitution") for child in children):
        return "string", _quoted(_said(node)), []
    if name == "string":
        return name, "", [child for child in children if child.type not in ("string_start", "string_end")]
    if name == "expression_statement" and len(children) == 1 and children[0].type == "string":
        only = _said(children[0])
        if not only.startswith(("f", "F")):
            return "docstring", _quoted(only), []
    if len(children) == 1 and not children[0].is_named and children[0].type in _IMPLIED:
        return name, "", []  # pass, break: the kind says it all
    return name, "", children


def _said(node: Node) -> str:
    text = node.text
    return "" if text is None else text.decode("utf-8", errors="replace")


def _quoted(text: str) -> str:
    """A string in one kind of quotes."""
    body = text.lstrip("rRbBuUfF")
    prefix = text[: len(text) - len(body)].lower()
    for quote in ('"""', "'''", '"', "'", "`"):
        if body.startswith(quote) and body.endswith(quote) and len(body) >= 2 * len(quote):
            return f'{prefix}"{body[len(quote) : -len(quote)]}"'
    return text


def _lines_of_both(
    before: Sequence[str],
    after: Sequence[str],
    gaps: Sequence[Gap],
    errors: tuple[tuple[int, ...], ...],
    *,
    is_coarse: bool = False,
) -> Both:
    """Only the lines that differ, as words; with too many words a line is one node, with too many lines several are."""
    old = [(at, before[at]) for gap in gaps for at in range(gap[0], gap[1])]
    new = [(at, after[at]) for gap in gaps for at in range(gap[2], gap[3])]
    most = max(_count(old), _count(new))
    is_coarse = is_coarse or most > MOST_NODES
    old_tree, new_tree = (_line_tree(_joined(side), errors[at], is_coarse) for at, side in enumerate((old, new)))
    return Both(before=old_tree, after=new_tree, pairs=((0, 0),), is_coarse=is_coarse)


def _count(numbered: Sequence[tuple[int, str]]) -> int:
    """About how many words there are; a text without spaces may be made of as many as letters."""
    return sum(len(content) // 4 + 1 for _, content in numbered)


def _joined(numbered: Sequence[tuple[int, str]]) -> Sequence[tuple[int, str]]:
    step = 1 + len(numbered) // MOST_NODES
    if step == 1:
        return numbered
    pieces = (numbered[at : at + step] for at in range(0, len(numbered), step))
    return [(piece[0][0], " ".join(content for _, content in piece)) for piece in pieces]


def _by_lines(source: str, errors: tuple[int, ...]) -> Tree:
    return _line_tree(list(enumerate(source.split("\n"))), errors)


def _line_tree(numbered: Sequence[tuple[int, str]], errors: tuple[int, ...], is_coarse: bool = False) -> Tree:
    kind, text, parent, line = ["text"], [""], [-1], [1]
    for at, content in numbered:
        words = _WORDS.findall(content)
        if not words:
            continue
        above, inner = len(kind), [] if is_coarse else words
        kind += ["line", *["word"] * len(inner)]
        text += [" ".join(words) if is_coarse else "", *inner]
        parent += [0, *[above] * len(inner)]
        line += [at + 1] * (1 + len(inner))
    return _tree(TEXT, _Rows(kind, text, parent, line, list(line)), errors)


def _tree(language: str, rows: _Rows, errors: tuple[int, ...] = ()) -> Tree:
    kind, text, parent, many = rows.kind, rows.text, rows.parent, len(rows.kind)
    size, height, hashes, shapes = [1] * many, [0] * many, [0] * many, [0] * many
    below: list[list[int]] = [[] for _ in range(many)]
    outline: list[list[int]] = [[] for _ in range(many)]
    for at in range(many - 1, -1, -1):
        hashes[at] = hash((kind[at], text[at], tuple(below[at])))
        shapes[at] = hash((kind[at], tuple(outline[at])))
        above = parent[at]
        if above >= 0:
            size[above] += size[at]
            height[above] = max(height[above], height[at] + 1)
            below[above].append(hashes[at])
            outline[above].append(shapes[at])
    known: dict[str, Any] = {"size": size, "height": height, "hash": hashes, "shape": shapes}
    return Tree(language=language, errors=errors, **rows._asdict(), **known)
