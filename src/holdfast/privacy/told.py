"""Secrets that the words around them give away: passwords and keys in prose, in forms and in code.

A word for a secret is found first; then everything near it is tried, so that a user's name or a host between the two
hides nothing. All windows are bounded, so that a search takes linear time. Codes of digits are in `numbers`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import ascii_letters, digits

from holdfast.privacy import detect
from holdfast.privacy.detect import Detection, lower_and_words

NEAR, AHEAD, KEY_NEAR = 64, 48, 72  # characters after a word, before it, and before a key
LEAST_VERB, LONGEST_PIECE = 4, 128  # so near "pass" is a noun; characters of a password
CUE = re.compile(
    rf"(?:{detect.PASSWORDS}|login|credentials?|creds|zugangsdaten|identifiants?|credencia\w{{1,3}}|credenziali|zaloguj"
    rf"|inloggning|logg inn|parola d'ordine)[\w-]{{0,24}}|{detect.FAR}"
)
PIECE = re.compile(
    r"(?:[^\s\"'`<>|,;\\\u2e80-\u9fff\uac00-\ud7ff\u0e00-\u0e7f]|[\u2e80-\u9fff](?<=[!-~].)(?=[0-9])){4,128}"
)
_CUT = re.compile(r"\n|(?<=\w)[.?]\s")
_NO_LABEL = re.compile(r"[@.(%&\[$]|\?\w|\|\|")  # in code or in an address
_LABEL_END = re.compile(r"[\s*:\])}\"'|>-]{0,6}\n[\s>*-]{0,8}")
_MARKS = re.compile(r"[\s>*#\d.)(\[{\"'-]{0,8}")
_VERB = (
    r"(?:[\W_]{1,3}[^\W\d_]{1,12}){0,4}[\W_]{0,3}(?:\b(?:is|are|was|ist|war|lautet|est|este|es|era|é|è|jest|to|je|är"
    r"|er|on|adalah|là|hai|είναι|هي|هو|היא|है|คือ|е|на|in|naar|til|till|para|pra|a|zu|auf|na|s|of)\b|[:=])[\W_]{1,4}"
)
_STATED = re.compile(rf"[\W_]{{0,6}}(?:[^\W\d_]{{1,6}} ){{0,2}}|[^\x21-\x7e\n]{{0,16}}|{_VERB}")  # it is said to be one
_SAID = re.compile(_VERB)
_ODD = re.compile(r"[0-9!#$%^&*?~@+=\[]|[^\W\d_A-Z][A-Z]|-[a-z]{1,9}-")  # in all that may be a password
_NAMES_NEXT = re.compile(  # what follows is a name or a number of something else
    r"(?:user(?:name)?|account|host|server|ticket|order|version|issue|bug|id|file|room|model|table|column|error|line"
    r"|port|build|rfc|cve|commit|sha\d*|hash|benutzer|utente|usuario|usuário|utilisateur)\W{1,4}$"
)
_LINK = re.compile(
    r"[\"'`*]{0,2},? (?:as|is|was|als|ist|comme|est|como|es|é|è|come|jako|som|de|olarak)\b[^\n.]{0,24}\Z"
    r"| an? (?:strong|good|safe|secure|weak)(?: enough)? \Z",
    re.IGNORECASE,
)
_HUMPS = re.compile(r"[A-ZÄÖÜ]?[a-zß-ÿ]{2,}(?:[A-ZÄÖÜ][a-zß-ÿ]+){2,5}")


_FIRST = frozenset(opening.split()[0][:4] for opening in detect.NEAR_OPENINGS)
_MINE = re.compile(
    r"\b(?:my|our|mein|unser|mon|notre|mi|nuestra|minha|mia|mijn|moje|mitt|mit|min|benim) (?:\w{1,12} )?\Z"
)


def passwords(text: str) -> Iterator[Detection]:
    """What looks like a password near a word for one, in any of the languages."""
    lower, words = lower_and_words(text)
    openings = detect.NEAR_OPENINGS if lower.isascii() else detect.OPENINGS
    if openings is detect.NEAR_OPENINGS and _FIRST.isdisjoint([word[:4] for word in words]):
        openings = openings[:2]  # these also stand within words
    for opening in openings:
        at = lower.find(opening)
        while at >= 0:
            if cue := CUE.match(lower, at):
                hit = next(_after(text, lower, cue), None) or next(_before(text, lower, cue), None)
                if hit is not None:
                    yield Detection("password", *hit)
            at = lower.find(opening, cue.end() if cue else at + 1)


def _after(text: str, lower: str, cue: re.Match[str]) -> Iterator[tuple[int, int]]:
    """What stands behind the word in its sentence; behind a line with nothing but the word, in the next line."""
    begin = cue.end()
    if _NO_LABEL.match(text, begin):
        return
    label = _LABEL_END.match(lower, begin)
    is_verb = cue.group().endswith("pass")  # mostly that
    line = lower.rfind("\n", 0, cue.start()) + 1
    if label and not is_verb and (label.group().endswith("> ") or _MARKS.fullmatch(lower, line, cue.start())):
        begin = label.end()
    cut = _CUT.search(lower, begin, begin + NEAR)
    stop = cut.start() if cut else begin + NEAR
    for start, end in _pieces(text, begin, stop):
        piece = text[start:end]
        if not _ODD.search(piece):
            is_mine = _SAID.fullmatch(lower, begin, start) and _MINE.search(
                lower, max(0, cue.start() - 24), cue.start()
            )
            if is_mine and piece.isalpha() and detect.is_told_password(piece):
                yield start, end
            continue
        if not detect.is_given(piece):
            return
        is_stated = _STATED.fullmatch(lower, begin, start) is not None
        if (
            (not is_verb or start - begin < LEAST_VERB or lower[begin:start] == " is ")
            and is_prose(piece, is_stated)
            and not _NAMES_NEXT.search(lower, max(0, start - 16), start)
        ):
            yield start, end


def _before(text: str, lower: str, cue: re.Match[str]) -> Iterator[tuple[int, int]]:
    """What stands before the word in its sentence, if something links the two or it has signs as no word has."""
    begin, at = max(0, cue.start() - AHEAD), cue.start()
    if cue.group() == "pass":
        return
    for cut in _CUT.finditer(lower, begin, at):
        begin = cut.end()
    for start, end in _pieces(text, begin, at):
        piece = text[start:end]
        if end <= at and _ODD.search(piece) and is_prose(piece) and (_is_signed(piece) or _LINK.search(text, end, at)):
            yield start, end


def _pieces(text: str, begin: int, stop: int) -> Iterator[tuple[int, int]]:
    """Where the words between the two begin and end, without the marks around them."""
    for piece in PIECE.finditer(text, begin, stop + LONGEST_PIECE):
        if piece.start() >= stop:
            return
        said = piece.group().rstrip(".:)]}*")
        bare = said.lstrip("([{*:=/")
        yield piece.end() - len(piece.group()) + len(said) - len(bare), piece.start() + len(said)


def is_prose(piece: str, is_stated: bool = False) -> bool:
    """Whether it is a password among words: signs or digits in it, cases that take turns, or several words in one."""
    is_humped = is_stated and _HUMPS.fullmatch(piece) and not detect.NAMING.search(piece.lower())
    if re.fullmatch(r"(?!(?:19|20)\d\d\b)\d{4,24}[#*]?", piece):
        return is_stated
    return (
        bool(is_humped)
        or detect.is_phrase(piece)
        or detect.is_prose_password(piece, is_stated)
        or detect.is_random_word(piece)
    )


def _is_signed(piece: str) -> bool:
    kinds = sum(any(map(kind, piece)) for kind in (str.isupper, str.islower, str.isdigit))
    return kinds >= 2 and re.search(r"\w[!$%^&*?~@#]", piece[:-1]) is not None


_KEY_HINTS = """
key token secret cred api auth jeton schlüssel sleutel nyckel nøgle nøkkel klíč kľúč klucz anahtar kulcs avain ključ
cheie clé cle chiave clave chave khóa kunci wallet metamask bearer pat client( webhook hook session ключ токен κλειδ
مفتاح رمز توكن מפתח טוקן टोकन कुंजी คีย์ 密钥 密鑰 金鑰 令牌 キー トークン 키 토큰
"""
KEY_HINTS = tuple(_KEY_HINTS.split())
_VENDORS = (
    r"datadog|\bdd_\w{2,12}|cloudflare|\bcf_\w{2,12}|twilio|heroku|azure ?devops|algolia|mailgun|pagerduty|okta|auth0"
    r"|snyk|codecov|wandb|cohere|mistral|adafruit|dropbox|asana|zendesk|contentful|fastly|netlify|linode|vultr|hetzner"
    r"|sonarqube|artifactory|opsgenie|rollbar|bugsnag|honeycomb|mixpanel|amplitude|intercom|freshdesk|pipedrive|trello"
    r"|clickup|airtable|bitly|giphy|unsplash|openweather\w*|newsapi|alpha ?vantage|finnhub|etherscan|infura|alchemy"
    r"|deepgram|elevenlabs"
)
VENDORS = frozenset(re.findall("[a-z]{4,}", _VENDORS))
_KEY = (
    r"key(?!word|board)|token(?!i[sz])|secret|credential|jeton|schlüssel|sleutel|nyckel|nøgle|nøkkel|klíč|kľúč|klucz"
    r"|anahtar|kulcs|avain|ključ|cheie|\bclé|\bcle\b|chiave|\bclave|\bchave|khóa|kunci|wallet|metamask|bearer|privkey"
    r"|(?<![a-z])pat(?![a-z])|client\(|session(?: ?id)?\b|(?:leak|committ|past|post|expos|publish|push)ed|ключ|токен"
    r"|κλειδ|مفتاح|رمز|توكن|מפתח|טוקן|टोकन|कुंजी|คีย์|密钥|密鑰|金鑰|令牌|キー|トークン|키|토큰"
)
_KEY_BEFORE = re.compile(rf"{_KEY}|{_VENDORS}")
_KEY_AFTER = re.compile(
    rf"[\"'`)]{{0,2}},? ?(?:is|was|as|ist|est|es|é|è|into|in|under|to|for|für|pour|para|per|voor|von|de|di|dla|для|से"
    rf"|σε|の|for my|til|till)\b[^\n.]{{0,32}}?(?:{_KEY}|{_VENDORS}|\b40[13]\b)"
)
_NO_KEY = re.compile(rf"{detect.NO_KEY}\Z")
_PUBLIC = re.compile(
    r"hash|\bsha|md5|digest|checksum|commit|etag|finger|revision|\brev\b|\btree\b|\bblob\b|[ug]uid|trace|span|request"
    r"|correlation|image|layer|version|cache|integrity|public|\bid\b|merge|https?://[^\s?]*\Z"
)
_ASSIGNED = re.compile(r"[:=]\s{0,2}[\"'`]?\Z")
_LETTERS = f"{ascii_letters}{digits}_+/.~-"
LEAST_KEY, LONGEST_KEY = 16, 512


def keys(text: str) -> Iterator[Detection]:
    """What looks random near a word for a key, or near the name of a service whose keys have no form."""
    lower, words = lower_and_words(text)
    if VENDORS.isdisjoint(words) and not any(map(lower.__contains__, KEY_HINTS)):
        return
    end = 0
    for spot in detect.LONG_TOKEN.finditer(text):
        if (at := spot.start()) < end:
            continue
        head, tail = text[max(end, at - LONGEST_KEY) : at], text[at : at + LONGEST_KEY]
        start = at - len(head) + len(head.rstrip(_LETTERS))
        end = at + len(tail) - len(tail.lstrip(_LETTERS))
        end += text.startswith("=", end) + text.startswith("==", end)
        if end - start < LEAST_KEY or text.startswith(("@", "("), end):
            continue
        if detect.is_strong(text[start:end]) and _is_called_key(lower, start, end):
            yield Detection("random_string", start, end)


def _is_called_key(lower: str, start: int, end: int) -> bool:
    is_hex = not set(lower[start:end]) - set("0123456789abcdef-")
    begin = max(0, start - KEY_NEAR)
    if is_hex or not _ASSIGNED.search(lower, begin, start):
        begin = max(begin, lower.rfind("\n", begin, start) + 1, start - AHEAD)
    cues = list(_KEY_BEFORE.finditer(lower, begin, start))
    if cues:
        return not _PUBLIC.search(lower, cues[-1].end(), start) and not _NO_KEY.search(lower, begin, cues[-1].start())
    return _KEY_AFTER.match(lower, end) is not None and not _PUBLIC.search(lower, begin, start)
