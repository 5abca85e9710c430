"""Replaces secrets and personal data by pseudonyms before anything is stored.

The same thing gets the same pseudonym everywhere in a store, and it cannot be told without the store's key. Messages,
tool arguments and results keep their structure. Token ids of replaced text are removed and the range is marked; if
those ids are not known, all ids of the call are removed. `detect` and `people` say what is found.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, chain, islice
from pathlib import Path
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

import orjson

from holdfast.contracts.errors import BadInput, BadRecord
from holdfast.contracts.trace import NEUTRAL, ModelCall, Span, ToolCall
from holdfast.privacy import detect, numbers, people, spelling, told
from holdfast.privacy.detect import Detection

K = TypeVar("K", str, bytes)
V = TypeVar("V")
TokenBytes = Callable[[int], bytes]  # the bytes of a token

KEY_FILE, KEY_BYTES = "scrub.key", 32
LEAST_BESIDE = 4  # letters and digits that stand beside a pseudonym and are replaced with it
DIGITS = 8  # of a pseudonym: among ten thousand things two share one with a chance of 1 %
WORDS: Mapping[str, str] = {  # the word for each kind; of two overlapping hits the first decides
    **dict.fromkeys([*detect.SECRETS, *detect.ASSIGNED], "secret"),
    **dict.fromkeys(["email", "wide_email", "told_email", "worded_email", "spaced_email"], "email"),
    **dict.fromkeys(["card_number", "wide_card", "spaced_card", "told_card"], "card"),
    **dict.fromkeys(["bank_account", "wide_iban", "told_iban"], "iban"),
    **dict.fromkeys(["social_security_number", "told_ssn"], "ssn"),
    **dict.fromkeys(["id", "told_id", "mrz", "plate"], "id"),
    **dict.fromkeys(["phone", "told_phone", "weak_phone", "extended_phone"], "phone"),
    **dict.fromkeys(["birth_date", "birth_after"], "birth"),
    **dict.fromkeys(["ip", "told_ip", "ipv6"], "ip"),
    **dict.fromkeys(["mac", "told_mac"], "mac"),
    **dict.fromkeys(["profile", "handle"], "profile"),
    **dict.fromkeys(["coordinates", "told_coordinates", "called_coordinates"], "location"),
    **dict.fromkeys(people.PLACES, "address"),
    "name": "name",
    (TOO_MANY := "too_many"): "secret",  # a text of a call with more than can be held
}
ENCODED = "encoded"  # the class of everything else that is written in base 64, in hex or with escapes
CLASSES = frozenset({*WORDS.values(), ENCODED})
SEARCH = detect.Search(detect.SECRETS, detect.ASSIGNED, detect.PERSONAL, detect.WIDE, people.PLACES, numbers.DATES)
KEY_SEARCH = detect.Search(detect.SECRETS)
HEAD_CELL = re.compile(r"[\w .-]{0,24}")
LONGEST_HEAD = 400  # characters of a table's first line
LONG_DIGITS = re.compile(r"(?<!\d)\d(?:[ -]?\d){12,18}(?!\d)")
NEAR, CUE_BEFORE, CUE_AFTER = 60, 40, 20  # characters in which something makes a weak hit a hit
USER_AND_PASSWORD = re.compile(r"[\w.@+-]{2,64}:[^\s:/]{4,128}")  # as basic authentication encodes it
RANK = {word: place for place, word in enumerate(dict.fromkeys(WORDS.values()))}
PSEUDONYM = re.compile(rf"<(?:{'|'.join(RANK)}):[0-9a-f]{{{DIGITS}}}>")
PLAIN = frozenset({"role", "type", "id", "tool_call_id"})  # fields that link the parts of a conversation
KEYS = {  # keys of JSON objects that say what their value is
    "assigned_secret": re.compile(
        rf"(?:.*_)?(?:{detect.PASSWORDS}|{detect.FAR}|secret|api_?key|secret_?key|private_?key|access_?key|credentials?"
        r"|mot_de_passe|cvv|cvc|otp|pin|pat)(?:_(?:field|input|box))?|(?:.*_)token|authorization"
    ),
    "told_phone": re.compile(r"(?:.*_)?(?:phone|mobile|telephone|fax|cell)(?:_?(?:number|no))?"),
    "address": re.compile(r"(?:.*_)?(?:address|street)(?:_?(?:line)?_?\d)?"),
    "name": re.compile(
        r"(?:.*_)?(?:first|last|full|given|family|middle|customer|patient|contact|employee)_?names?|surname"
    ),
    "told_id": re.compile(
        r"(?:.*_)?(?:ssn|passport|national_?id|tax_?id|social_security|identity_card|driver_?s?_?licen[cs]e)"
        r"(?:_?(?:number|no))?|iban|cpf|dni|pesel|bsn|aadhaar|personnummer"
    ),
    "birth_date": re.compile(r"(?:.*_)?(?:dob|birth_?date|birthday|date_of_birth|born(?:_on)?)"),
}
STRUCTURE = PLAIN | {
    "content",
    "text",
    "name",
    "tool_calls",
    "function",
    "arguments",
    "parameters",
    "reasoning_content",
}
# keys whose value says what the value beside it is
NAMING = ("name", "key", "label", "field", "title", "question", "selector", "placeholder", "element")
NAMED = frozenset({"value", "content", "default", "val", "answer", "text"})
TABLE_HEAD = re.compile(r"[,;|\t][ \"']{0,2}(?:passw\w{2,6}|pwd)[ \"']{0,2}[,;|\t\r\n]", re.IGNORECASE)
HAS_DIGIT, LONGEST_LABELLED = re.compile("[0-9]"), 64  # characters of a value that is read behind its key
LEAST_NUMBER, MOST_NUMBER = 10**8, 10**4000  # smaller numbers are harmless; larger ones Python does not print
LONGEST_LITERAL, MOST_NODES = 2**16, 100_000  # characters of what is looked for with others at once; their branches
LEAST_SECRET = 6  # characters: shorter ones are replaced only where they were found
MOST_KEPT = 4_000_000  # characters of remembered texts: a conversation comes again with every turn
LONGEST_PIECE, OVERLAP = 2**17, 2**14  # characters of a long text that are searched at once, and those searched twice
NEAR_GAP = 2**10  # characters before a border in which a space is looked for
LONGEST_KEY = 2**16  # characters by which a piece is longer that would end amid a private key
CONTEXT = 2**8  # characters before a thing that may say what it is
MOST_FOUND = 40_000  # things in one call; with more of them all its texts are replaced as a whole
MOST_JSON = 150_000  # brackets and commas of a text in JSON; with more of them its call keeps no texts either
REST = re.compile(r"\S*")  # of a token that goes on
KEY_BLOCKS = (("-----BEGIN", "-----END"), ("---- BEGIN", "---- END"), ("PuTTY-User-Key-File", "Private-MAC"))
LONGEST_MARK = 2 + max(map(len, RANK)) + 1 + DIGITS  # characters of a pseudonym
MOST_CLEAN, MARK = 50_000, 32  # clean values that are remembered, by a hash of so many bytes
TOKEN = re.compile(r"\w+|\W")
STRICTLY = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS


def key_in(folder: Path) -> bytes:
    """The key in the store's folder; made at first use, readable by its owner only."""
    path = folder / KEY_FILE
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        aside = folder / f".{KEY_FILE}-{secrets.token_hex(8)}"
        try:
            with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):  # another process made it just now: that one counts
                os.link(aside, path)
        finally:
            aside.unlink(missing_ok=True)
    if path.stat().st_mode & 0o077:
        raise BadInput(f"key {path}", why="others can read it", remedy=f"chmod 600 {path}")
    try:
        key = bytes.fromhex(path.read_text())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise BadInput(f"key {path}", why=f"is not {KEY_BYTES} bytes in hex", remedy="restore it from a copy")
    return key


class Scrub:
    """Replaces what is found. `token_bytes` gives the bytes of a token; without it a scrubbed call loses its ids."""

    def __init__(self, key: bytes, *, token_bytes: TokenBytes | None = None, leave: Iterable[str] = ()) -> None:
        """`leave` names the classes that stay as they are."""
        self._key, self._token_bytes, self._classes = key, token_bytes, CLASSES - set(leave)
        if unknown := set(leave) - CLASSES:
            remedy = f"take some of {', '.join(sorted(CLASSES))}"
            raise BadInput(f"leave {' '.join(sorted(unknown))}", why="there is no such class", remedy=remedy)
        self._seen = _Memory[str, tuple[Detection, ...]](MOST_KEPT)
        self._clean = _Memory[bytes, bool](MOST_CLEAN * MARK)

    def text(self, text: str) -> str:
        return str(self.value(text))

    def value(self, value: Any) -> Any:
        """A JSON value of the same structure; a number that is personal becomes a text."""
        return self._over([value])[0][0]

    def name(self, name: str) -> str:
        """The name of a model, tool or event; names that only look random or personal stay."""
        return name if _is_plain(name) else self.text(name)

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[Any]:
        """A conversation; what is found once is replaced everywhere in it."""
        return self._over(messages, is_chat=True)[0]

    def call(self, call: ModelCall) -> ModelCall:
        """The scrubbed call; the same object if nothing was found."""
        model, reason = self.name(call.model), call.finish_reason and self.name(call.finish_reason)
        if (model, reason) != (call.model, call.finish_reason):
            call = replace(call, model=model, finish_reason=reason)
        try:
            if self._is_clean(call):
                ids = self._ids(call, _Reading())
                return replace(call, **ids) if ids else call
            (*messages, response), reading = self._over([*call.messages, call.response], is_chat=True)
            sampling = _Pass(self, reading, has_numbers=False).value(dict(call.sampling))
        except RecursionError:
            raise BadRecord("model call", why="is nested too deeply to be scrubbed", remedy="flatten it") from None
        ids = self._ids(call, reading)
        return replace(call, messages=tuple(messages), response=response, sampling=sampling, **ids)

    def _is_clean(self, call: ModelCall) -> bool:
        """Whether nothing is found, apart from ids. Values that were clean a turn ago are not searched again."""
        for place, value in enumerate([call.sampling, *call.messages, call.response]):
            is_chat = place > 0
            if is_chat and (text := _bare_text(value)) is not None:
                if self.detections(text):
                    return False
                continue
            if not value:
                continue
            try:
                mark = blake2b(orjson.dumps([is_chat, value], option=STRICTLY), digest_size=MARK).digest()
            except orjson.JSONEncodeError:  # a lone surrogate, say: searched every time
                mark = None
            if mark is not None and self._clean.get(mark):
                continue
            reading = _Reading()
            _Pass(self, reading, is_chat=is_chat, has_numbers=is_chat).value(value)
            if reading.has_found:
                return False
            if mark is not None:
                self._clean.put(mark, True)
        return True

    def span(self, span: Span) -> Span:
        """The scrubbed span: its call, tool arguments and result, attributes and events."""
        changes: dict[str, Any] = {"name": self.text(span.name), "attributes": self.value(dict(span.attributes))}
        changes["events"] = tuple(
            replace(event, name=self.name(event.name), attributes=self.value(dict(event.attributes)))
            for event in span.events
        )
        for place in ("trace_id", "span_id"):
            foreign = getattr(span, place)
            if foreign is not None and detect.secrets(foreign):  # a plain number may be an id
                changes[place] = self.text(foreign)
        if span.model is not None:
            changes["model"] = self.call(span.model)
        if span.tool is not None:
            changes["tool"] = self._tool(span.tool)
        return replace(span, **changes)

    def _tool(self, tool: ToolCall) -> ToolCall:
        arguments, result, error = self._over([dict(tool.arguments), tool.result, tool.error])[0]
        changes: dict[str, Any] = {"tool": self.name(tool.tool), "arguments": arguments, "result": result}
        return replace(tool, **changes, error=error, call_id=tool.call_id and self.name(tool.call_id))

    def _over(self, values: Sequence[Any], *, is_chat: bool = False) -> tuple[list[Any], _Reading]:
        """The scrubbed values, in two passes: what one place gives away may appear bare in another."""
        reading = _Reading()
        once = [_Pass(self, reading, is_chat=is_chat).value(value) for value in values]
        if not reading.has_found:
            return once, reading
        again, was_full = _Pass(self, reading.closed(), is_chat=is_chat), reading.is_full
        twice = [again.value(value) for value in values]
        if reading.is_full and not was_full:
            twice = [again.value(value) for value in values]
        return twice, reading

    def pseudonym(self, kind: str, text: str) -> str:
        word = WORDS[kind]
        plain = _plain(word, text) if len(text) <= LONGEST_PIECE else text
        told = f"{word}\0{plain}".encode("utf-8", "surrogatepass")
        return f"<{word}:{hmac.new(self._key, told, 'sha256').hexdigest()[:DIGITS]}>"

    def detections(self, text: str) -> tuple[Detection, ...]:
        """All hits in order, without overlaps."""
        known = self._seen.get(text)
        if known is None:
            places = self._all(text)
            known = merged(text, places) if len(text) <= LONGEST_PIECE else _joined(places)
            self._seen.put(text, known)
        return known

    def _all(self, text: str) -> list[Detection]:
        """All hits of the classes, in every spelling of the text.

        A long text is searched piece by piece: what a search holds in memory is many times as long as what it reads."""
        is_encoded = ENCODED in self._classes
        if len(text) <= LONGEST_PIECE:
            return self._wanted(_all(text, is_encoded=is_encoded))
        found, table, over = list[Detection](), None, 0
        for start, end, following in _pieces(text):
            if end <= over:  # all of it goes already
                continue
            piece = text[start:end]
            hits = self._wanted(_all(piece, is_encoded=is_encoded, has_blobs=not piece.isascii()))
            table, cells = _going_on(piece, table, is_start=start == 0)
            for hit in merged(piece, (*hits, *self._wanted(cells))):
                at, stop = start + hit.start, start + hit.end
                if stop == end < len(text) and not piece[-1].isspace():  # it may be cut
                    if at >= following + CONTEXT:
                        continue  # all of it is in the next piece
                    rest = REST.match(text, stop)
                    stop = over = rest.end() if rest else stop
                found.append(Detection(hit.kind, at, stop))
            if len(found) > MOST_FOUND:
                return _too_many(text)
        blobs = _encoded(spelling.same(text)) if is_encoded else ()
        found += islice((hit for hit in blobs if WORDS[hit.kind] in self._classes), MOST_FOUND)
        return found if len(found) < MOST_FOUND else _too_many(text)

    def _wanted(self, places: Iterable[Detection]) -> list[Detection]:
        return [place for place in places if WORDS[place.kind] in self._classes]

    def _ids(self, call: ModelCall, reading: _Reading) -> dict[str, Any]:
        if self._token_bytes is None and not reading.has_found:
            return {}
        ids = (*(call.prompt_ids or ()), *(call.completion_ids or ()))
        if not ids:
            return {}
        nothing: dict[str, Any] = dict.fromkeys(("prompt_ids", "completion_ids", "logprobs"))
        nothing |= {"forced": (), "scrubbed": ()}
        if self._token_bytes is None:
            return nothing
        try:
            text, begins, ends = _spelled(ids, self._token_bytes)
        except (LookupError, ValueError, TypeError, OverflowError):  # tokens of another model
            return nothing if reading.has_found else {}
        plain = _unescaped(text)
        every = [self._all(text), reading.within(text, is_escaped=True)]
        every += [] if plain == text else [self._all(plain), reading.within(plain, is_escaped=True)]
        if reading.is_full or any(len(places) > MOST_FOUND or is_too_many(places) for places in every):
            return nothing
        places = merged(text, chain.from_iterable(every))
        if not places and not reading.has_found:
            return {}
        if not _is_spoken(call.response, text) or reading.hides_in(text, places):
            return nothing
        ranges = [  # from the token of the first byte to that of the last
            (bisect_right(ends, begins[place.start]), bisect_right(ends, begins[place.end] - 1) + 1) for place in places
        ]
        return _cut(call, ids, ranges) if ranges else {}


class _Memory(Generic[K, V]):
    """A least-recently-used cache that is limited by the total length of its keys."""

    def __init__(self, most: int) -> None:
        self._known: OrderedDict[K, V] = OrderedDict()
        self._kept, self._most, self._lock = 0, most, Lock()

    def get(self, text: K) -> V | None:
        with self._lock:
            found = self._known.get(text)
            if found is not None:
                self._known.move_to_end(text)
            return found

    def put(self, text: K, found: V) -> None:
        """Adds a key; another thread may have added it since."""
        with self._lock:
            self._kept += 0 if text in self._known else len(text)
            self._known[text] = found
            while self._kept > self._most:
                self._kept -= len(self._known.popitem(last=False)[0])


class _Literals:
    """Finds texts as whole words, the longest first, with a tree of tokens: there may be thousands.

    A branch that only one text takes is that text. Very long ones are few, and are looked for one by one."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._tree: dict[str, Any] = {}
        self._long, self._nodes = list[str](), 0
        for text in texts:
            if len(text) > LONGEST_LITERAL:
                self._long.append(text)
            elif not self.is_full:
                self._add(text)

    @property
    def is_full(self) -> bool:
        """Not all of them are in it: too many begin alike for long."""
        return self._nodes > MOST_NODES

    def _add(self, text: str) -> None:
        node, at = self._tree, 0
        while token := TOKEN.match(text, at):
            at = token.end()
            below = node.setdefault(token.group(), text)
            if below == text:
                return
            if isinstance(below, str):  # another text goes this way: both go on from here
                next_token = TOKEN.match(below, at)
                below = node[token.group()] = {next_token.group() if next_token else "": below}
                self._nodes += 1
            node = below
        node[""] = text  # it ends here

    def within(self, text: str) -> Iterator[tuple[int, int]]:
        for one in self._long:
            at = text.find(one)
            while at >= 0:
                yield at, at + len(one)
                at = text.find(one, at + len(one))
        reached = 0
        for token in TOKEN.finditer(text) if self._tree else ():
            start = token.start()
            if start >= reached and token.group() in self._tree and not _is_word(text, start - 1):
                end = self._end(text, start)
                if end > start:
                    yield start, end
                    reached = end

    def _end(self, text: str, start: int) -> int:
        end, at, node = start, start, self._tree
        while (token := TOKEN.match(text, at)) and (below := node.get(token.group())) is not None:
            at = token.end()
            if isinstance(below, str):
                stop = start + len(below)
                return stop if text.startswith(below, start) and not _is_word(text, stop) else end
            node = below
            if "" in node and not _is_word(text, at):
                end = at
        return end


def _is_word(text: str, at: int) -> bool:
    return 0 <= at < len(text) and (text[at].isalnum() or text[at] == "_")


@dataclass
class _Reading:
    """What was found in one call; it is then searched in all of it, ids included."""

    literals: dict[str, str] = field(default_factory=dict)  # text → kind
    tree: _Literals | None = None
    is_full: bool = False  # there is more than can be searched for: nothing of the call is kept

    @property
    def has_found(self) -> bool:
        return self.is_full or bool(self.literals)

    def note(self, text: str, kind: str) -> None:
        if len(self.literals) < MOST_FOUND:
            self.literals.setdefault(text, kind)
        elif text not in self.literals:
            self.is_full = True

    def closed(self) -> _Reading:
        self.tree = _Literals(
            text
            for text, kind in self.literals.items()
            if (len(text) >= LEAST_SECRET if WORDS[kind] != "name" else len(text) > 2 and text[0].isupper())
        )
        self.is_full |= self.tree.is_full
        return self

    def within(self, text: str, *, is_escaped: bool = False) -> list[Detection]:
        tree, kinds = self.tree, self.literals
        if is_escaped and self.literals:  # as escaped in JSON; short ones, too, since only ids are lost here
            kinds = {form: kind for text, kind in self.literals.items() for form in (text, *_escaped(text))}
            tree = _Literals(kinds)
            self.is_full |= tree.is_full
        spans = () if tree is None else islice(tree.within(text), MOST_FOUND + 1)  # one more than can be held
        return [Detection(kinds[text[start:end]], start, end) for start, end in spans]

    def hides_in(self, text: str, places: Sequence[Detection]) -> bool:
        """Whether something is left in another form, for instance with other spaces."""
        left, at = [], 0
        for place in places:
            left.append(text[at : place.start])
            at = place.end
        rest = _squeezed("\n".join([*left, text[at:]]))
        hidden = {_squeezed(text) for text, kind in self.literals.items() if WORDS[kind] != "name"}
        begins = {one[:LEAST_SECRET] for one in hidden if len(one) >= LEAST_SECRET}
        begun = {piece for at in range(len(rest)) if (piece := rest[at : at + LEAST_SECRET]) in begins}
        return any(one[:LEAST_SECRET] in begun and one in rest for one in hidden)


class _Pass:
    """One walk over values."""

    def __init__(self, scrub: Scrub, reading: _Reading, *, is_chat: bool = False, has_numbers: bool = True) -> None:
        self._scrub, self._reading, self._is_chat, self._has_numbers = scrub, reading, is_chat, has_numbers

    def value(self, value: Any, key: str = "") -> Any:
        if isinstance(value, str):
            return self._text(value, key)
        if isinstance(value, Mapping):
            return self._object(value)
        if isinstance(value, list | tuple):
            self._note_pieces(value)
            return [self.value(one, key) for one in value]
        if isinstance(value, int | float) and self._has_numbers and LEAST_NUMBER <= abs(value) < MOST_NUMBER:
            whole = str(int(value)) if value == int(value) else str(value)
            shown = self._text(whole, key)
            return value if shown == whole else shown
        return value

    def _note_pieces(self, parts: Sequence[Any]) -> None:
        """Notes the pieces of a secret that goes on from one part of a message to the next."""
        texts = [one["text"] for one in parts if isinstance(one, Mapping) and isinstance(one.get("text"), str)]
        if len(texts) < 2:
            return
        ends = list(accumulate(map(len, texts)))
        places = self._scrub.detections("".join(texts))
        self._reading.is_full |= is_too_many(places)
        for place in places:
            for text, end in zip(texts, ends, strict=True):
                start = end - len(text)
                piece = text[max(place.start - start, 0) : max(place.end - start, 0)]
                if 0 < len(piece) < place.end - place.start and WORDS[place.kind] == "secret":
                    self._reading.note(piece, place.kind)

    def _object(self, value: Mapping[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        times = Counter[str]()
        names = () if "role" in value else NAMING
        called_so = next((name for key in names if isinstance(name := value.get(key), str)), "")
        for key, item in value.items():
            is_fixed = self._reading.is_full and key in STRUCTURE
            called = once = key if is_fixed else self._replaced(key)
            while called in out:  # two spellings of one thing
                times[once] += 1
                called = f"{once}'{times[once] if times[once] > 1 else ''}"
            is_kept = self._is_chat and key in PLAIN and isinstance(item, str) and _is_plain(item)
            out[called] = item if is_kept else self.value(item, called_so if key in NAMED and called_so else key)
        return out

    def _text(self, text: str, key: str) -> str:
        if self._reading.is_full:
            return self._whole(text)
        kind = _told(key, text) if key else None
        if kind == "name":
            return re.sub(r"[^\W\d_][\w'’-]+", lambda match: self._one("name", match.group()), text)
        if kind is not None:
            return self._one(kind, text)
        if _looks_like_json(text):
            if sum(map(text.count, "[{,")) > MOST_JSON:
                self._reading.is_full = True
                return self._whole(text)
            with suppress(ValueError, RecursionError):
                return self._json(text)
        replaced = self._replaced(text)
        if key and key not in NAMED and replaced == text and len(text) <= LONGEST_LABELLED and HAS_DIGIT.search(text):
            label = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_:]", " ", key) + ": "
            if not self._scrub.detections(label):
                shown = self._replaced(label + text)
                return shown.partition(": ")[2] or shown  # what the key holds may have been replaced, too
        return replaced

    def _json(self, text: str) -> str:
        """Scrubs a JSON text; it is rewritten only if something in it was replaced."""
        hidden: list[Any] = []

        def read(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            out: dict[str, Any] = {}
            for key, value in pairs:
                if key in out:  # readers take the last of a doubled key, but the text would keep all
                    hidden.append({key: out[key]})
                out[key] = value
            return out

        data = json.loads(text, object_pairs_hook=read)
        inner = _Pass(self._scrub, self._reading)
        clean = inner.value(data)
        if clean == data and inner.value(hidden) == hidden:
            return text
        separators = None if re.search(r'[,:] ["\d\[{tfn-]', text) else (",", ":")
        return json.dumps(clean, ensure_ascii=text.isascii(), separators=separators)

    def _replaced(self, text: str) -> str:
        places: Sequence[Detection] = self._scrub.detections(text)
        more = self._reading.within(text)
        if is_too_many(places) or len(more) > MOST_FOUND:
            self._reading.is_full = True
        if self._reading.is_full:
            return self._whole(text)
        if more:
            places = merged(text, (*places, *more))
        if not places:
            return text
        parts, at = [], 0
        for place in places:
            parts += [text[at : place.start], self._one(place.kind, text[place.start : place.end])]
            at = place.end
        return "".join([*parts, text[at:]])

    def _whole(self, text: str) -> str:
        return self._scrub.pseudonym(TOO_MANY, text) if any(map(str.isalnum, text)) else text

    def _one(self, kind: str, text: str) -> str:
        self._reading.note(text, kind)
        return self._scrub.pseudonym(kind, text)


def _bare_text(message: Mapping[str, Any]) -> str | None:
    """The text of a message that is only a role and a text, as nearly all are; else None."""
    if type(message) is not dict or len(message) != 2:
        return None
    role, text = message.get("role"), message.get("content")
    if type(role) is not str or type(text) is not str or not _is_plain(role) or _looks_like_json(text):
        return None
    return text


def _looks_like_json(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[")


def merged(text: str, places: Iterable[Detection]) -> tuple[Detection, ...]:
    """Overlapping hits become one, of the more important kind; pseudonyms are left alone, and what is beside them
    is not: anybody can write one behind a secret."""
    taken = list(places)
    if taken and PSEUDONYM.search(text):
        taken = [part for place in taken for part in _beside(text, place)]
    return _joined(taken)


def _joined(places: Iterable[Detection]) -> tuple[Detection, ...]:
    out: list[Detection] = []
    for place in sorted(places, key=lambda place: (place.start, place.end)):
        if out and place.start < out[-1].end:
            kind = min(out[-1].kind, place.kind, key=lambda kind: RANK[WORDS[kind]])
            out[-1] = Detection(kind, out[-1].start, max(out[-1].end, place.end))
        else:
            out.append(place)
    return tuple(out)


def _beside(text: str, place: Detection) -> Iterator[Detection]:
    """What a hit holds besides pseudonyms, if it is more than signs and the words around them."""
    at, end = place.start, place.end
    around = PSEUDONYM.finditer(text, max(at - LONGEST_MARK, 0), end + LONGEST_MARK)
    inside = [match.span() for match in around if match.end() > at and match.start() < end]
    if not inside:
        yield place
        return
    for start, stop in [*inside, (end, end)]:
        piece = text[at:start]
        if sum(map(str.isalnum, piece)) >= LEAST_BESIDE and len(piece.split()) == 1:
            yield Detection(place.kind, at, start)
        at = max(at, stop)


def count(scrubbed: Any) -> Counter[str]:
    """How many pseudonyms of each kind a value contains."""
    marks = (match.group() for text in detect.texts(scrubbed) for match in PSEUDONYM.finditer(text))
    return Counter(mark[1:].partition(":")[0] for mark in marks)


def _pieces(text: str) -> Iterator[tuple[int, int, int]]:
    """Where the pieces of a text start and end, and where the next one starts: between words, if there are any, and
    each with the end of the last. None ends within a private key, unless it is very long."""
    start, end = 0, 0
    while end < len(text):
        end = start + LONGEST_PIECE
        end = _gap(text, end - NEAR_GAP, end) or end if end < len(text) else len(text)
        for opening, closing in KEY_BLOCKS:
            begun = text.rfind(opening, start, end)
            over = -1 if begun < 0 else text.find(closing, begun, end + LONGEST_KEY)
            end = max(end, min(over + NEAR_GAP, len(text)) if over >= 0 else 0)
        following = _gap(text, end - OVERLAP, end - OVERLAP + NEAR_GAP) or end - OVERLAP
        yield start, end, following
        start = following


def _gap(text: str, start: int, end: int) -> int:
    return max(text.rfind(" ", start, end), text.rfind("\n", start, end)) + 1


def _too_many(text: str) -> list[Detection]:
    return [Detection(TOO_MANY, 0, len(text))]


def is_too_many(places: Sequence[Detection]) -> bool:
    return len(places) == 1 and places[0].kind == TOO_MANY


def _all(text: str, *, is_encoded: bool, has_blobs: bool = True) -> list[Detection]:
    """All hits in the text as it reads, and in what its escapes and encodings say."""
    plain = spelling.plain(text)
    found = [Detection(hit.kind, *plain.span(hit.start, hit.end)) for hit in _within(plain.text)]
    if not is_encoded:
        return found
    if plain.text != text:
        places = (plain.span(hit.start, hit.end) for hit in numbers.numbers(plain.text))
        found += [Detection("weak_phone", *place) for place in places if not text[slice(*place)].isascii()]
    if (latin := spelling.latin(plain.text)) is not None:
        found += [Detection(hit.kind, *plain.span(hit.start, hit.end)) for hit in SEARCH.find(latin)]
    if (other := spelling.unescaped(plain.text)) is not None:
        found += [Detection(hit.kind, *plain.span(*other.span(hit.start, hit.end))) for hit in _within(other.text)]
        spans = [(other.span(hit.start, hit.end), hit) for hit in numbers.numbers(other.text)]  # hidden: on purpose
        found += [
            Detection(hit.kind, *plain.span(*span)) for span, hit in spans if span[1] - span[0] > hit.end - hit.start
        ]
    for search, whole in ((SEARCH, spelling.together(plain.text)), (KEY_SEARCH, spelling.undivided(plain.text))):
        if whole is None:
            continue
        for hit in search.find(whole.text):
            start, end = whole.span(hit.start, hit.end)
            if WORDS[hit.kind] == "secret" and end - start > hit.end - hit.start:
                found.append(Detection(hit.kind, *plain.span(start, end)))
    return [*found, *_encoded(plain)] if has_blobs else found


def _encoded(plain: spelling.Spelling) -> Iterator[Detection]:
    """What is written in base 64 or in hex and has something in it."""
    for start, end, said in spelling.blobs(plain.text):
        if hits := _hidden(said):
            kind = min((hit.kind for hit in hits), key=lambda kind: RANK[WORDS[kind]])
            yield Detection(kind, *plain.span(start, end))


class _Table(NamedTuple):
    """Where the rows of a table begin, what divides them, and what each column holds."""

    at: int
    divider: str
    kinds: Sequence[str | None]
    is_of_passwords: bool

    def in_next(self, text: str) -> _Table:
        """As it goes on in the next piece, from its first whole line on."""
        return self._replace(at=text.find("\n") + 1 or len(text))


def _columns(text: str) -> Iterator[Detection]:
    """Values in a table whose head calls them a password, a name, an id: commas, semicolons, tabs or bars."""
    return _rows(text, _table(text))


def _table(text: str, *, is_start: bool = True) -> _Table | None:
    """The head is the first line, or the first with a column of passwords; words before it may stand in its line."""
    at, found = 0, TABLE_HEAD.search(text) if "pass" in text or "Pass" in text else None
    if found is not None:
        at = text.rfind("\n", 0, found.start() + 1) + 1
    elif not is_start:
        return None
    stop = text.find("\n", at, at + LONGEST_HEAD + 1)
    head = text[at : max(stop, at)]
    divider = next((mark for mark in ("\t", ";", "|", ",") if mark in head), None)
    if divider is None or stop + 1 == len(text):
        return None
    heads = [cell.strip(" \"'\r") for cell in head.split(divider)]
    is_head = (at == 0 and is_start) or all(map(HEAD_CELL.fullmatch, heads[1:]))
    kinds = list(map(_means, heads)) if is_head else []
    return _Table(stop + 1, divider, kinds, found is not None) if any(kinds) else None


def _going_on(piece: str, table: _Table | None, *, is_start: bool) -> tuple[_Table | None, list[Detection]]:
    """The first table of a text in pieces, or the first of passwords, and what it says of this one."""
    plain = spelling.plain(piece)
    if table is None or not table.is_of_passwords:
        table = _table(plain.text, is_start=is_start) or (table and table.in_next(plain.text))
    else:
        table = table.in_next(plain.text)
    return table, [Detection(hit.kind, *plain.span(hit.start, hit.end)) for hit in _rows(plain.text, table)]


def _rows(text: str, table: _Table | None) -> Iterator[Detection]:
    if table is None:
        return
    stop, divider, kinds = table.at - 1, table.divider, table.kinds
    while stop < len(text):
        at = start = stop + 1
        stop = text.find("\n", at)
        stop = stop if stop >= 0 else len(text)
        cells = text[at:stop].split(divider, len(kinds))
        more = max(0, len(kinds) - len(cells))  # words before the head
        for kind, cell in zip(kinds[more:], cells, strict=False):
            value = cell.strip(" \"'\r")
            is_row = len(cells) == len(kinds) or (
                len(cells) > 2 and kind == "assigned_secret" and detect.is_password(value)
            )
            if kind is not None and is_row and set(value) - set("-: ") and _fits(kind, value):
                begin = start + cell.index(value)
                yield Detection(kind, begin, begin + len(value))
            start += len(cell) + len(divider)


def _hidden(text: str) -> list[Detection]:
    """All hits in what somebody has encoded; there also a number without any context counts."""
    cards = [
        Detection("wide_card", *match.span()) for match in LONG_DIGITS.finditer(text) if detect.luhn(match.group())
    ]
    pair = [Detection("password", 0, len(text))] if USER_AND_PASSWORD.fullmatch(text) else []
    return [*_within(text), *numbers.numbers(text), *cards, *pair]


def _within(text: str) -> list[Detection]:
    """All hits in one spelling; a weak one counts where a word, or something else that is personal, stands near."""
    found = [
        *SEARCH.find(text),
        *people.names(text),
        *numbers.ids(text),
        *numbers.labelled(text),
        *numbers.one_time_codes(text),
        *told.passwords(text),
        *told.keys(text),
        *_columns(text),
    ]
    weak = list[Detection]()
    for hit in numbers.numbers(text):
        (weak if hit.kind == "weak_phone" else found).append(hit)
    sure = [hit for hit in found if WORDS[hit.kind] not in ("secret", "ip")]
    for hit in weak:
        around = detect.small(text[max(0, hit.start - CUE_BEFORE) : hit.end + CUE_AFTER])
        is_near = any(hit.start - NEAR < other.end and other.start < hit.end + NEAR for other in sure)
        if is_near or numbers.PHONE_CUE.search(around):
            found.append(hit)
    return found


@lru_cache(maxsize=4096)  # most are "user", "assistant" or ids that come again
def _is_plain(text: str) -> bool:
    return not detect.secrets(text) | detect.personal(text)


def _plain(word: str, text: str) -> str:
    """The common form of all spellings of a thing."""
    text = spelling.plain(text).text
    if word in ("phone", "card", "ssn"):
        return "".join(filter(str.isdigit, text)).lstrip("0")
    if word in ("iban", "id", "mac"):
        return "".join(filter(str.isalnum, text)).casefold()
    return text if word == "secret" else text.casefold()


def _told(key: str, text: str) -> str | None:
    """The kind of a value by its key; None if the key does not say or the value does not fit."""
    kind = _means(key) or _means(key.replace(" ", "_"))
    if kind is None or not any(map(str.isalnum, PSEUDONYM.sub("", text))):
        return None
    return kind if _fits(kind, text) else None


def _fits(kind: str, text: str) -> bool:
    digits = sum(map(str.isdigit, text))
    fits = {
        "assigned_secret": detect.is_given(text),
        "told_phone": 7 <= digits <= 15 and len(text) < 25,
        "address": digits > 0 and " " in text.strip() and len(text) < 200,
        "name": len(text) < 80 and text not in people.NO_NAMES,
        "told_id": digits >= 5 and len(text) < 40,
        "birth_date": 4 <= digits <= 14 and len(text) < 40,
    }
    return fits[kind]


@lru_cache(maxsize=4096)
def _means(key: str) -> str | None:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace("-", "_").casefold()
    return next((kind for kind, pattern in KEYS.items() if pattern.fullmatch(name)), None)


def _escaped(text: str) -> set[str]:
    return {json.dumps(text, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False)}


def _squeezed(text: str) -> str:
    return re.sub(r"[\W_]+", "", text).casefold()


def _spelled(ids: Sequence[int], token_bytes: TokenBytes) -> tuple[str, Sequence[int], list[int]]:
    """The text of the ids, the first byte of each character, and the end byte of each token."""
    pieces = [token_bytes(token) for token in ids]
    text = b"".join(pieces).decode("utf-8", "surrogateescape")  # an invalid byte becomes one character
    ends = list(accumulate(map(len, pieces)))
    if not ends or len(text) == ends[-1]:
        return text, range(len(text) + 1), ends
    return text, [0, *accumulate(len(letter.encode("utf-8", "surrogateescape")) for letter in text)], ends


def _unescaped(text: str) -> str:
    """The text with JSON escapes blanked out, of the same length: else \\n would join the next word."""
    return re.sub(r"\\[nrtbf\"/]", "  ", text)


def _is_spoken(response: Mapping[str, Any], text: str) -> bool:
    """Whether the ids belong to this answer: they contain its texts and the names of its tools."""
    calls = response.get("tool_calls")
    functions = [one.get("function") for one in calls if isinstance(one, Mapping)] if isinstance(calls, list) else []
    names = [one.get("name") for one in functions if isinstance(one, Mapping)]
    said = [response.get("content"), response.get("reasoning_content"), *names]
    spoken = _squeezed(text)
    pieces = (piece for one in said if isinstance(one, str) for piece in PSEUDONYM.split(one))
    return all(_squeezed(piece) in spoken for piece in pieces)


def _cut(call: ModelCall, ids: Sequence[int], ranges: Iterable[tuple[int, int]]) -> dict[str, Any]:
    """The call's ids without those in the ranges, which are marked, together with earlier ones."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted([*ranges, *((one[0], one[1]) for one in call.scrubbed)]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    gone = {place for start, end in joined for place in range(start, end)}
    kept = tuple(NEUTRAL if place in gone else token for place, token in enumerate(ids))
    before = len(call.prompt_ids or ())
    forced = {*call.forced, *(place - before for place in gone if place >= before)}
    logprobs = call.logprobs
    if logprobs is not None:
        logprobs = tuple(0.0 if before + place in gone else value for place, value in enumerate(logprobs))
    return {
        "prompt_ids": None if call.prompt_ids is None else kept[:before],
        "completion_ids": None if call.completion_ids is None else kept[before:],
        "logprobs": logprobs,
        "forced": tuple(sorted(forced)),
        "scrubbed": tuple(joined),
    }
