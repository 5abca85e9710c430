"""Planted test items for a scrubber of personal data and secrets, written without sight of any detection code.

planted(n, seed) gives messages that each hold one known item; clean(n, seed) gives messages that hold near-misses only.
All values are random, with the vendors' prefixes and lengths and right check digits. Phrases, carriers and formats
are in planted_tables.txt beside this file; README says which choices were made.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import string
import unicodedata
import urllib.parse
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from random import Random


@dataclass(frozen=True)
class Item:
    text: str
    secret: str
    kind: str
    group: str  # "secret", "personal" or "name"
    language: str


@dataclass(frozen=True)
class Draft:
    kind: str
    language: str
    secret: str
    body: str
    block: bool = False  # the body is code, a log or a form rather than a sentence


IBANS = """AT16n BE12n BG4a6n8c CH5n12c CZ20n DE18n DK14n EE16n ES20n FI14n FR10n11c2n GB4a14n GR7n16c HR17n HU24n
IE4a14n IL19n IT1a10n12c LT16n LU3n13c LV4a13c NL4a10n NO11n PL24n PT21n RO4a16c SA2n18c SE20n SK20n TR6n16c UA6n19c
AE19n"""
MAIL_DOMAINS = """gmail.com gmx.de web.de orange.fr libero.it hotmail.com outlook.com yahoo.co.uk wp.pl seznam.cz
mail.ru ukr.net qq.com 163.com naver.com rediffmail.com proton.me icloud.com bakker-bouw.nl nordlicht-it.de"""
FIELD_KEYS = {
    "email": "email user_email contactEmail",
    "phone": "phone mobile tel_no",
    "iban": "iban bank_account",
    "id": "national_id tax_id personal_no",
    "birth": "dob birth_date dateOfBirth",
    "address": "address ship_to",
    "ip": "client_ip remote_addr ip",
    "mac": "mac hwaddr",
    "imei": "imei device_imei",
    "geo": "location latlng",
    "customer": "customer_no member_id account_id",
    "passport": "passport_no",
    "licence": "driver_license",
    "plate": "license_plate",
    "account": "account_number",
    "handle": "username profile social",
    "card": "card pan",
}
SPECIAL_CARRIERS = {
    "ip": [
        '{S} - - [{ts}] "GET /cart HTTP/1.1" 200 {n4}',
        "sshd[{n4}]: Failed password for root from {S} port {n5} ssh2",
        "X-Forwarded-For: {S}",
        "{ts} DROP IN=eth0 SRC={S} PROTO=TCP DPT=22",
        "traceroute to {S}, 30 hops max",
    ],
    "mac": [
        "dhcpd: DHCPACK on 10.0.0.{n2} to {S} via eth1",
        "    link/ether {S} brd ff:ff:ff:ff:ff:ff",
        "MAC: {S}",
        "wlan0: associated with {S}",
    ],
    "imei": ["IMEI: {S}", "IMEI {S} is blocked, please unlock the phone", "*#06# shows {S} (IMEI 1)"],
    "handle": [
        "my profile is {S}",
        "follow me: {S}",
        "DM {S} on insta for details",
        "social: {S}",
        "ping {S} on telegram",
    ],
    "email": [
        "mailto:{S}?subject=Invoice",
        "From: <{S}>",
        "To: {S}\nSubject: Re: ticket {n4}",
        "git config user.email {S}",
        "Reply-To: {S}",
        "{ts} postfix/smtp: to=<{S}>, relay={host}, status=sent",
        "ssh-keygen -t ed25519 -C {S}",
    ],
    "geo": ["GPS: {S}", "coordinates: {S}", "lat/lon = {S}", "geo:{S}", "my location is {S}", "Koordinaten: {S}"],
}
ID_CARRIERS = [
    "my {L} is {S}",
    "{L}: {S}",
    "{L} {S}",
    "{L}={S}",
    "({L} {S})",
    '"{L}": "{S}"',
    "{L} - {S}",
    "{L}\t{S}",
    "form 3/7\n{L}\n{S}",
    "{L}, {S}, {date}",
]
NEUTRAL_FRAMES = [
    "{X}",
    "{X}",
    "> {X}",
    "User: {X}",
    "[{hm}] customer: {X}\n[{hm}] agent: ...",
    "Subject: Re: #{n5}\n\n{X}\n\n--\nsent from mobile",
    "JSON:content",
    "JSON:result",
    "{X}\n\n(ticket {n5}, {date})",
    "Q: {X}\nA:",
    "{ts} chat: {X}",
    "```\n{X}\n```",
    '"{X}"',
    "* {X}",
]
CLASSES = {
    "h": "0123456789abcdef",
    "H": "0123456789ABCDEF",
    "d": string.digits,
    "n": "123456789",
    "m": "23456789",
    "w": string.ascii_letters + string.digits,
    "u": string.ascii_uppercase + string.digits,
    "a": string.ascii_letters,
    "l": string.ascii_lowercase + string.digits,
    "A": "ABCDEGHJKLMNPRSTUVWXYZ",
    "b": string.ascii_letters + string.digits + "-_",
    "B": string.ascii_letters + string.digits + "+/",
    "c": string.ascii_uppercase + "234567",
    "e": "abcdefghijklmnopqrstuvwxyz234567",
    "X": "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L",
}
BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
HOSTS = ["api.shopcore.io", "data.kontor-cloud.net", "git.fabrikam.dev", "mail.nordwerk.eu", "app.tienda-sur.es"]
FILES = ["main.py", "server.go", "handlers/cart.ts", "lib/queue.rb", "src/parser.rs", "app/Http/Kernel.php", "utils.js"]


def read_tables() -> dict[str, list[str]]:
    """The sections of planted_tables.txt, each a list of its lines without notes and blank lines."""
    sections = (Path(__file__).resolve().parent / "planted_tables.txt").read_text("utf-8").split("## ")[1:]
    split = [section.split("\n") for section in sections]
    return {lines[0].strip(): [x for x in lines[1:] if x.strip() and not x.startswith("#: ")] for lines in split}


def unescaped(carrier: str) -> str:
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), carrier)


def parse_languages(entries: list[str]) -> dict[str, dict[str, list[str]]]:
    out: dict[str, dict[str, list[str]]] = {}
    slots: dict[str, list[str]] = {}
    for entry in entries:
        if entry.startswith("== "):
            slots = out.setdefault(entry[3:].strip(), {})
        else:
            slot, _, rest = entry.partition(": ")
            phrases = rest.split(";" if slot == "lab" else " | ")
            slots.setdefault(slot, []).extend(p.strip() for p in phrases)
    return out


def rows_of(table: str, separator: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split(separator)] for line in TABLES[table]]


TABLES = read_tables()
LABELS = [
    "password",
    "phone",
    "email",
    "birth",
    "address",
    "customer",
    "passport",
    "licence",
    "plate",
    "ip",
    "otp",
    "account",
    "card",
    "geo",
]
LANGS = parse_languages(TABLES["LANGUAGE_DATA"])
LANG_CODES = list(LANGS)
CODE, DATA, LABEL, CLEAN_LINES = (
    [unescaped(line) for line in TABLES[f"{name}_CARRIERS"]] for name in ["CODE", "DATA", "LABEL", "CLEAN"]
)
PASSWORDS = [
    (kind, unescaped(text)) for kind, _, text in (line.partition(" | ") for line in TABLES["PASSWORD_CARRIERS"])
]
VENDOR_ROWS = rows_of("VENDORS", " | ")
PHONE_ROWS, PAPER_ROWS, ADDRESS_ROWS = rows_of("PHONES", " ; "), rows_of("PAPERS", " ; "), rows_of("ADDRESSES", " ; ")
BIP39_STEP = 7
BIP39_WORDS = " ".join(TABLES["BIP39_WORDS"]).split()
SAMPLES: dict[str, Callable[[Random], str]] = {
    "ts": lambda r: f"{day(r, 2022, 2025)}T{r.randrange(24):02}:{r.randrange(60):02}:{r.randrange(60):02}Z",
    "date": lambda r: str(day(r, 2022, 2025)),
    "host": lambda r: r.choice(HOSTS),
    "file": lambda r: r.choice(FILES),
    "ver": lambda r: f"{r.randrange(9)}.{r.randrange(30)}.{r.randrange(20)}",
    "port": lambda r: r.choice(["8080", "3000", "5173", "9090"]),
    "price": lambda r: r.choice(["{} EUR", "€{}", "${}", "{} kr", "£{}"]).format(
        f"{r.randrange(5, 900)}.{r.randrange(100):02}"
    ),
    "hm": lambda r: f"{r.randrange(24):02}:{r.randrange(60):02}",
    "q": lambda r: str(r.randint(1, 4)),
    "uuid": lambda r: fill(r, "{h8}-{h4}-4{h3}-9{h3}-{h12}"),
    "isbn": lambda r: ean13([9, 7, 8, *digits(r, 9)]),
    **{f"n{i}": (lambda r, i=i: fill(r, f"{{n1}}{{d{i - 1}}}") if i > 1 else fill(r, "{n1}")) for i in range(1, 6)},
    **{f"sha{i}": (lambda r, i=i: fill(r, f"{{h{i}}}")) for i in (4, 6, 7, 8, 24, 32, 40, 64)},
    "b86": lambda r: fill(r, "{B86}"),
}
SAMPLE_RE = re.compile(r"\{([A-Za-z]+\d*)\}")


def fill(r: Random, pattern: str) -> str:
    def run(m: re.Match[str]) -> str:
        low = int(m[2])
        return "".join(r.choices(CLASSES[m[1]], k=r.randint(low, int(m[3] or low))))

    return re.sub(r"\{([hHdnmwualAbBceX])(\d+)(?:-(\d+))?\}", run, pattern)


def render(r: Random, template: str, **values: str) -> str:
    """One pass over the {name} places of a template, so that nothing inside a planted value is expanded again."""

    def sub(m: re.Match[str]) -> str:
        return values[m[1]] if m[1] in values else SAMPLES[m[1]](r) if m[1] in SAMPLES else m[0]

    return SAMPLE_RE.sub(sub, template)


def day(r: Random, first: int, last: int) -> date:
    return date(first, 1, 1) + timedelta(days=r.randrange(365 * (last - first + 1)))


def b64(data: bytes, url: bool = False) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=") if url else base64.b64encode(data).decode()


def digits(r: Random, k: int) -> list[int]:
    return [r.randrange(10) for _ in range(k)]


def dot(weights: str | list[int], values: list[int]) -> int:
    return sum(int(w) * v for w, v in zip(weights, values, strict=False))


def join(values: list[int]) -> str:
    return "".join(map(str, values))


def luhn(body: str) -> str:
    total = sum(sum(divmod(int(c) * (2 if i % 2 == 0 else 1), 10)) for i, c in enumerate(reversed(body)))
    return str(-total % 10)


def ean13(body: list[int]) -> str:
    return join(body) + str(-dot("131313131313", body) % 10)


# ---- national ids: label, language and a generator with the country's own check digits ----
def until(make: Callable[[], str | None]) -> str:
    while (value := make()) is None:
        pass
    return value


def de_steuer(r: Random) -> str:
    first = r.sample(range(10), 9)
    body = [*first, r.choice(first)]
    while True:
        r.shuffle(body)
        if body[0] and not any(a == b == c for a, b, c in zip(body, body[1:], body[2:], strict=False)):
            break
    product = 10
    for v in body:
        product = ((product + v) % 10 or 10) * 2 % 11
    return join(body) + str((11 - product) % 10)


def fr_nir(r: Random) -> str:
    head = f"{r.randint(1, 2)}{ymd(r, '%y%m')}{r.randint(1, 95):02}{r.randint(1, 900):03}{r.randint(1, 999):03}"
    key = f"{97 - int(head) % 97:02}"
    return r.choice([head + key, f"{head[0]} {head[1:3]} {head[3:5]} {head[5:7]} {head[7:10]} {head[10:]} {key}"])


def it_cf(r: Random) -> str:
    d = day(r, 1945, 2004)
    born = f"{d.year % 100:02}{'ABCDEHLMPRST'[d.month - 1]}{d.day + r.choice([0, 40]):02}"
    head = fill(r, "{A6}" + born + "H{d3}")
    odd = dict(
        zip(
            string.digits + string.ascii_uppercase,
            [
                1,
                0,
                5,
                7,
                9,
                13,
                15,
                17,
                19,
                21,
                1,
                0,
                5,
                7,
                9,
                13,
                15,
                17,
                19,
                21,
                2,
                4,
                18,
                20,
                11,
                3,
                6,
                8,
                12,
                14,
                16,
                10,
                22,
                25,
                24,
                23,
            ],
            strict=False,
        )
    )
    even = {c: i % 10 if i < 10 else i - 10 for i, c in enumerate(string.digits + string.ascii_uppercase)}
    return head + chr(65 + sum(odd[c] if i % 2 == 0 else even[c] for i, c in enumerate(head)) % 26)


def aadhaar(r: Random) -> str:
    table = [
        [
            (i + j) % 5
            if i < 5 and j < 5
            else (i - j) % 5
            if i > 4 and j > 4
            else 5 + ((i - j) if i > 4 else (i + j)) % 5
            for j in range(10)
        ]
        for i in range(10)
    ]
    perm = [list(range(10)), [1, 5, 7, 6, 2, 8, 3, 0, 9, 4]]
    for _ in range(6):
        perm.append([perm[-1][perm[1][i]] for i in range(10)])
    body, c = [r.randint(2, 9), *digits(r, 10)], 0
    for i, v in enumerate(reversed(body)):
        c = table[c][perm[(i + 1) % 8][v]]
    s = join(body) + str(next(j for j in range(10) if table[c][j] == 0))
    return r.choice([s, f"{s[:4]} {s[4:8]} {s[8:]}"])


def cn_id(r: Random) -> str:
    body = r.choice(["110105", "310115", "440304", "510107"]) + day(r, 1950, 2005).strftime("%Y%m%d") + fill(r, "{d3}")
    return body + "10X98765432"[dot([7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2], list(map(int, body))) % 11]


def no_fnr(r: Random) -> str | None:
    body = list(map(int, day(r, 1950, 1999).strftime("%d%m%y") + f"{r.randrange(500):03}"))
    body.append(-dot([3, 7, 6, 1, 8, 9, 4, 5, 2], body) % 11)
    body.append(-dot([5, 4, 3, 2, 7, 6, 5, 4, 3, 2], body) % 11)
    return join(body[:6]) + r.choice(["", " "]) + join(body[6:]) if max(body) < 10 else None


def cpf(r: Random) -> str:
    body = digits(r, 9)
    for start in (10, 11):
        rest = sum((start - i) * v for i, v in enumerate(body)) * 10 % 11
        body.append(rest % 10)
    s = join(body)
    return r.choice([s, f"{s[:3]}.{s[3:6]}.{s[6:9]}-{s[9:]}"])


def weighted(r: Random, k: int, weights: list[int], mod: int, first: int = 1) -> str | None:
    """Digits whose whole weighted sum is 0 modulo mod, found by trying the last digit."""
    body = [r.randint(first, 9), *digits(r, k - 2)]
    last = [c for c in range(10) if dot(weights, [*body, c]) % mod == 0]
    return join([*body, last[0]]) if last else None


def ymd(r: Random, form: str = "%y%m%d") -> str:
    return day(r, 1950, 1999).strftime(form)


def dated(r: Random, form: str, k: int, weights: list[int], mod: int) -> str | None:
    body = [int(c) for c in ymd(r, form)] + digits(r, k)
    last = [c for c in range(10) if dot(weights, [*body, c]) % mod == 0]
    return join([*body, last[0]]) if last else None


def tckn(r: Random) -> str:
    b = [r.randint(1, 9), *digits(r, 8)]
    b.append((sum(b[0:9:2]) * 7 - sum(b[1:8:2])) % 10)
    return join([*b, sum(b) % 10])


def dni(r: Random) -> str:
    n, lead = r.randrange(10**7, 10**8), r.choice(["", "", "X", "Y", "Z"])
    n = n if not lead else n % 10**7
    check = "TRWAGMYFPDXBNJZSQVHLCKE"[(n + 10**7 * max("XYZ".find(lead), 0)) % 23]
    return f"{lead}{n:0{7 if lead else 8}}{r.choice(['', '-'])}{check}"


def hetu(r: Random) -> str:
    d, k = ymd(r, "%d%m%y"), f"{r.randint(2, 899):03}"
    return f"{d}-{k}{'0123456789ABCDEFHJKLMNPRSTUVWXY'[int(d + k) % 31]}"


def snils(r: Random) -> str:
    b = [r.randint(1, 9), *digits(r, 8)]
    s = join(b) + f"{dot('987654321', b) % 101 % 100:02}"
    return f"{s[:3]}-{s[3:6]}-{s[6:9]} {s[9:]}"


def with_luhn(body: str, cut: int = 0, sep: str = "") -> str:
    s = body + luhn(body)
    return s[:cut] + sep + s[cut:]


def my_number(r: Random) -> str:
    b = digits(r, 11)
    rest = sum(v * (i + 1 if i <= 6 else i - 5) for i, v in enumerate(reversed(b), start=1)) % 11
    return join(b) + str(0 if rest <= 1 else 11 - rest)


def rut(r: Random) -> str:
    n = r.randrange(5 * 10**6, 25 * 10**6)
    k = -sum(int(c) * (2 + i % 6) for i, c in enumerate(reversed(str(n)))) % 11
    return f"{n:,}".replace(",", ".") + "-" + "0123456789K"[k]


NATIONAL_IDS: list[tuple[str, str, str, Callable[[Random], str | None]]] = [
    ("us_ssn", "en", "SSN", lambda r: f"{r.randint(1, 665):03}-{r.randint(1, 99):02}-{r.randint(1, 9999):04}"),
    ("uk_nino", "en", "NI number", lambda r: fill(r, r.choice(["AB{d6}C", "JK {d2} {d2} {d2} A", "PX{d6}D"]))),
    ("de_steuer_id", "de", "Steuer-ID", de_steuer),
    ("fr_nir", "fr", "n° de sécurité sociale", fr_nir),
    ("es_dni_nie", "es", "DNI/NIE", dni),
    ("it_codice_fiscale", "it", "codice fiscale", it_cf),
    ("nl_bsn", "nl", "BSN", lambda r: weighted(r, 9, [9, 8, 7, 6, 5, 4, 3, 2, -1], 11)),
    ("pl_pesel", "pl", "PESEL", lambda r: dated(r, "%y%m%d", 4, [1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1], 10)),
    ("br_cpf", "pt", "CPF", cpf),
    ("in_aadhaar", "hi", "आधार", aadhaar),
    ("in_pan", "en", "PAN", lambda r: fill(r, "{A3}P{A1}{d4}{A1}")),
    ("cn_resident_id", "zh", "身份证号", cn_id),
    ("jp_my_number", "ja", "マイナンバー", my_number),
    ("kr_rrn", "ko", "주민등록번호", lambda r: kr_rrn(r)),
    ("se_personnummer", "sv", "personnummer", lambda r: with_luhn(ymd(r) + fill(r, "{d3}"), 6, "-")),
    ("ca_sin", "en", "SIN", lambda r: (lambda s: f"{s[:3]} {s[3:6]} {s[6:]}")(with_luhn(fill(r, "{n1}{d7}")))),
    ("au_tfn", "en", "TFN", lambda r: weighted(r, 9, [1, 4, 3, 7, 5, 8, 6, 9, 10], 11)),
    ("fi_hetu", "fi", "henkilötunnus", hetu),
    ("za_id", "en", "SA ID number", lambda r: with_luhn(ymd(r) + fill(r, "{d4}08"))),
    ("tr_tckn", "tr", "T.C. kimlik no", tckn),
    ("no_fnr", "no", "fødselsnummer", no_fnr),
    ("dk_cpr", "da", "CPR-nr.", lambda r: cut(dated(r, "%d%m%y", 3, [4, 3, 2, 7, 6, 5, 4, 3, 2, 1], 11), 6, "-")),
    (
        "cz_rodne_cislo",
        "cs",
        "rodné číslo",
        lambda r: cut(
            until(lambda: (lambda s: s if int(s) % 11 == 0 and s > "54" else None)(ymd(r) + fill(r, "{d4}"))), 6, "/"
        ),
    ),
    ("be_nn", "fr", "numéro national", lambda r: (lambda s: f"{s}{97 - int(s) % 97:02}")(ymd(r) + fill(r, "{d3}"))),
    (
        "pt_nif",
        "pt",
        "NIF",
        lambda r: (lambda b: join(b) + str((lambda x: 0 if x > 9 else x)(11 - dot("98765432", b) % 11)))(
            [2, *digits(r, 7)]
        ),
    ),
    (
        "ro_cnp",
        "en",
        "CNP",
        lambda r: (lambda b: join(b) + "01234567891"[dot("279146358279", b) % 11])(
            [1, *map(int, ymd(r)), 1, 2, *digits(r, 3)]
        ),
    ),
    ("gr_amka", "el", "ΑΜΚΑ", lambda r: with_luhn(ymd(r, "%d%m%y") + fill(r, "{d4}"))),
    ("il_tz", "he", "תעודת זהות", lambda r: with_luhn(fill(r, "{d8}"))),
    ("ru_snils", "ru", "СНИЛС", snils),
    (
        "ua_rnokpp",
        "uk",
        "РНОКПП",
        lambda r: (lambda b: join(b) + str(dot([-1, 5, 7, 9, 4, 6, 10, 5, 7], b) % 11 % 10))([3, *digits(r, 8)]),
    ),
    (
        "ch_ahv",
        "de",
        "AHV-Nr.",
        lambda r: re.sub(r"(...)(....)(....)(..)", r"\1.\2.\3.\4", ean13([7, 5, 6, *digits(r, 9)])),
    ),
    ("cl_rut", "es", "RUT", rut),
    (
        "sg_nric",
        "en",
        "NRIC",
        lambda r: (lambda b: "S" + join(b) + "JZIHGFEDCBA"[dot("2765432", b) % 11])(digits(r, 7)),
    ),
]


def kr_rrn(r: Random) -> str:
    b = [int(c) for c in ymd(r)] + [r.randint(1, 2), *digits(r, 5)]
    return join(b[:6]) + "-" + join(b[6:]) + str((11 - dot("234567892345", b) % 11) % 10)


def cut(s: str | None, at: int, sep: str) -> str | None:
    return s and s[:at] + sep + s[at:]


# ---- values ----
TRANSLIT = str.maketrans({"ß": "ss", "ł": "l", "Ł": "L", "ø": "o", "Ø": "O", "æ": "ae", "ı": "i", "'": "", " ": ""})


def person(r: Random, lang: str) -> tuple[str, str]:
    """A first and a last name that agree in gender."""
    slots, side = LANGS[lang], r.randrange(2)
    firsts, lasts = slots["first"][0].split(" / "), slots["last"][0].split(" / ")
    return r.choice(firsts[side].split(", ")), r.choice(lasts[side % len(lasts)].split(", "))


def roman(r: Random, lang: str) -> tuple[str, str]:
    if "rom" in LANGS[lang]:
        first, last = r.choice(LANGS[lang]["rom"][0].split(", ")).split(" ")
    else:
        first, last = (
            unicodedata.normalize("NFKD", p.translate(TRANSLIT)).encode("ascii", "ignore").decode()
            for p in person(r, lang)
        )
    return first.lower(), last.lower()


def email(r: Random, lang: str) -> str:
    first, last = roman(r, lang)
    local = r.choice(
        [
            f"{first}.{last}",
            f"{first}{last[0]}{r.randrange(60, 99)}",
            f"{first[0]}.{last}",
            f"{first}_{last}",
            f"{last}{first[0]}",
        ]
    )
    return f"{local}@{r.choice(MAIL_DOMAINS.split())}"


def email_form(r: Random, lang: str, form: str) -> str:
    local, domain = email(r, lang).split("@")
    return {
        "plain": f"{local}@{domain}",
        "plus": f"{local}+{r.choice(['news', 'shop', 'test1'])}@{domain}",
        "upper": f"{local}@{domain}".upper(),
        "at_dot": f"{local.replace('.', ' dot ')} at {domain.replace('.', ' dot ')}",
        "quoted": f'"{local.replace(".", " ")}"@{domain}',
        "bracket_at": f"{local}{r.choice(['[at]', ' [at] ', '(at)', ' (at) ', '{at}'])}{domain}",
        "spaced": f"{local} @ {domain}",
        "bracket_dot": f"{local}[at]{domain.replace('.', '[dot]')}",
        "subdomain": f"{local}@mail.{r.choice(['uni-kassel', 'nordwerk', 'kontor'])}.eu",
        "idn": f"{local}@{r.choice(['müller-bau.de', 'почта.рф', 'xn--mller-brf.de', '例え.jp'])}",
        "idn_local": f"{r.choice(['jürgen', 'иван.петров', 'josé', 'użytkownik', '田中'])}@{domain}",
    }[form]


def phone(r: Random, lang: str) -> str:
    return fill(r, r.choice(r.choice([row[1:] for row in PHONE_ROWS if row[0] == lang])))


def iban(r: Random) -> str:
    spec = r.choice(IBANS.split())
    parts = re.findall(r"(\d+)([nac])", spec[2:])
    bban = "".join(fill(r, "{{{}{}}}".format({"n": "d", "a": "A", "c": "u"}[t], k)) for k, t in parts)
    value = int("".join(str(int(c, 36)) for c in bban + spec[:2] + "00"))
    s = f"{spec[:2]}{98 - value % 97:02}{bban}"
    return r.choice(
        [
            s,
            " ".join(s[i : i + 4] for i in range(0, len(s), 4)),
            " ".join(s[i : i + 4] for i in range(0, len(s), 4)),
            s.lower(),
        ]
    )


CARDS = {
    "visa": ("4", 16),
    "mastercard": ("51 52 53 54 55 2221 2500 2720", 16),
    "amex": ("34 37", 15),
    "discover": ("6011 65 644", 16),
    "jcb": ("3528 3566 3589", 16),
    "diners": ("36 38 300", 14),
    "unionpay": ("62", 16),
    "unionpay19": ("6228", 19),
    "mir": ("2200 2204", 16),
    "maestro": ("5018 6304 6759", 16),
    "rupay": ("6521 8172", 16),
    "elo": ("636368 506699", 16),
}


def card(r: Random, network: str, sep: str | None = None) -> str:
    prefix, size = CARDS[network]
    body = r.choice(prefix.split())
    body += join(digits(r, size - 1 - len(body)))
    s, sep = body + luhn(body), r.choice(["", " ", " ", "-"]) if sep is None else sep
    if size in (14, 15):
        return sep.join([s[:4], s[4:10], s[10:]])
    return sep.join(s[i : i + 4] for i in range(0, size, 4))


def password(r: Random, lang: str, url_safe: bool = False) -> str:
    word = r.choice(
        [
            "Sommer",
            "Kaffee",
            "tiger",
            "Dragon",
            "sunset",
            "Lisboa",
            "pingvin",
            "Wroclaw",
            "guitar",
            "mozzarella",
            "sakura",
        ]
    )
    forms = [
        f"{word}{r.randrange(1960, 2026)}{r.choice('!.-_')}",
        fill(r, "{w12}"),
        fill(r, "{w6}-{w5}_{w4}"),
        f"{word.lower()}{r.randrange(10, 999)}",
        "-".join(r.sample(BIP39_WORDS, 4)),
        fill(r, "{b20}"),
        f"{word[:3]}0{word[3:]}.{fill(r, '{d2}')}",
        fill(r, "{w16}"),
    ]
    tricky = [
        f"{word}#{r.randrange(99)}!",
        fill(r, "{w4}$%{w4}^&{w3}"),
        f"P@ss{word}{r.randrange(100)}",
        fill(r, "{w5}@{w3}*{w4}!"),
        f"{word}!{r.choice(['ñ', 'ü', 'ж', '密'])}{r.randrange(1000)}",
        fill(r, "{w3}?{w6}+={w2}"),
    ]
    return r.choice(forms if url_safe else forms + tricky)


def recovery_phrase(r: Random, count: int) -> str:
    """BIP-39 words whose checksum bits are right (every BIP39_STEP-th word of the English list is known here)."""
    check = count // 3
    while True:
        picks = [r.randrange(len(BIP39_WORDS)) for _ in range(count)]
        bits = "".join(f"{p * BIP39_STEP:011b}" for p in picks)
        entropy = int(bits[:-check], 2).to_bytes((len(bits) - check) // 8, "big")
        if f"{int.from_bytes(hashlib.sha256(entropy).digest(), 'big'):0256b}"[:check] == bits[-check:]:
            return " ".join(BIP39_WORDS[p] for p in picks)


def wif(r: Random) -> str:
    raw = b"\x80" + r.randbytes(32) + b"\x01"
    n, out = int.from_bytes(raw + hashlib.sha256(hashlib.sha256(raw).digest()).digest()[:4], "big"), ""
    while n:
        n, k = divmod(n, 58)
        out = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"[k] + out
    return out


def checked_token(r: Random, prefix: str) -> str:
    """GitHub's and npm's form: 30 characters and the base-62 CRC-32 of them in 6."""
    body, n, tail = fill(r, "{w30}"), 0, ""
    n = zlib.crc32(body.encode())
    for _ in range(6):
        n, k = divmod(n, 62)
        tail = BASE62[k] + tail
    return prefix + body + tail


def jwt(r: Random) -> str:
    head = json.dumps({"alg": r.choice(["HS256", "RS256", "ES256"]), "typ": "JWT"}, separators=(",", ":"))
    body = json.dumps(
        {"sub": fill(r, "{n1}{d8}"), "iat": r.randrange(1650000000, 1750000000), "scope": "read"}, separators=(",", ":")
    )
    return f"{b64(head.encode(), True)}.{b64(body.encode(), True)}.{b64(r.randbytes(32), True)}"


PEMS = {
    "rsa": ("RSA PRIVATE KEY", "MIIEpAIBAAKCAQEA", 1580),
    "pkcs8": ("PRIVATE KEY", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", 1600),
    "ec": ("EC PRIVATE KEY", "MHcCAQEEI", 155),
    "openssh": ("OPENSSH PRIVATE KEY", "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAAB", 330),
    "dsa": ("DSA PRIVATE KEY", "MIIBuwIBAAKBgQD", 590),
    "encrypted": ("ENCRYPTED PRIVATE KEY", "MIIFHDBOBgkqhkiG9w0BBQ0wQTApBgkqhkiG9w0BBQwwHAQI", 1500),
    "pgp": ("PGP PRIVATE KEY BLOCK", "lQOYBG", 900),
}


def pem(r: Random, form: str) -> tuple[str, list[str]]:
    title, start, size = PEMS[form]
    body = start + fill(r, f"{{B{size - len(start)}}}") + r.choice(["=", "=="])
    rows = [body[i : i + 64] for i in range(0, len(body), 64)]
    return "\n".join(
        [f"-----BEGIN {title}-----", *([""] if form == "pgp" else []), *rows, f"-----END {title}-----"]
    ), rows


VALUES: dict[str, Callable[[Random], str]] = {
    "AZ": lambda r: b64(r.randbytes(64)),
    "AZ32": lambda r: b64(r.randbytes(32)),
    "SIG": lambda r: urllib.parse.quote(b64(r.randbytes(32)), safe=""),
    "BASIC": lambda r: b64(f"{r.choice(['admin', 'ci', 'deploy'])}:{password(r, 'en')}".encode()),
    "TOK": lambda r: fill(r, r.choice(["{w40}", "{h48}", "{b43}", "{h32}"])),
    "JWT": jwt,
    "SESS": lambda r: fill(r, r.choice(["{l32}", "{h40}", "{w26}"])),
    "SESS26": lambda r: fill(r, "{l26}"),
    "SESSH": lambda r: fill(r, "{H32}"),
    "SID": lambda r: fill(r, "{b32}.{w43}"),
    "TOTP": lambda r: fill(r, "{c32}"),
    "STS": lambda r: "IQoJb3JpZ2luX2VjE" + fill(r, "{B300-340}") + "==",
}
VENDOR_MAKERS: list[tuple[str, str, str, Callable[[Random], str]]] = [
    *((k, v, e, lambda r, p=p: fill(r, r.choice(p.split(" ")))) for k, v, e, p in VENDOR_ROWS),
    *(
        (f"github_{k}", "GitHub", "GITHUB_TOKEN", lambda r, p=p: checked_token(r, p))
        for k, p in [
            ("classic", "ghp_"),
            ("oauth", "gho_"),
            ("app_server", "ghs_"),
            ("app_user", "ghu_"),
            ("refresh", "ghr_"),
        ]
    ),
    ("github_fine_grained", "GitHub", "GH_TOKEN", lambda r: fill(r, "github_pat_11{u7}0{w12}_{w59}")),
    ("npm", "npm", "NPM_TOKEN", lambda r: checked_token(r, "npm_")),
    ("bitcoin_wif", "Bitcoin wallet", "WALLET_PRIVATE_KEY", wif),
    ("discord_bot", "Discord", "BOT_TOKEN", lambda r: b64(fill(r, "1{d18}").encode(), True) + fill(r, ".G{b5}.{b38}")),
    (
        "mapbox",
        "Mapbox",
        "MAPBOX_SECRET",
        lambda r: fill(r, "sk." + b64(fill(r, '{"u":"shop","a":"cl{l23}"}').encode(), True) + ".{b22}"),
    ),
]


# ---- drafts: a value within its nearest words ----
def lang_of(r: Random) -> str:
    return "en" if r.random() < 0.2 else r.choice(LANG_CODES)


def typed(r: Random, kind: str, lang: str, secret: str, field: str, slot: str = "", label: str = "") -> Draft:
    """A personal value in a sentence of its slot, in a carrier special to its field, after a label or in data."""
    label = label or (LANGS[lang]["lab"][LABELS.index(field)] if field in LABELS else field.upper())
    choice = r.random()
    if slot and choice < 0.5:
        return Draft(kind, lang, secret, render(r, r.choice(LANGS[lang][slot]), S=secret))
    if field in SPECIAL_CARRIERS and choice < 0.6:
        return Draft(kind, lang, secret, render(r, r.choice(SPECIAL_CARRIERS[field]), S=secret), True)
    if field == "handle" or choice < 0.8:
        return Draft(kind, lang, secret, render(r, r.choice(LABEL), S=secret, L=label))
    return Draft(kind, lang, secret, render(r, r.choice(DATA), S=secret, k=r.choice(FIELD_KEYS[field].split())), True)


def vendor_draft(r: Random, kind: str, vendor: str, env: str, make: Callable[[Random], str]) -> Draft:
    lang, secret = lang_of(r), make(r)
    if r.random() < 0.3:
        return Draft(kind, lang, secret, render(r, r.choice(LANGS[lang]["key"]), S=secret, V=vendor))
    return Draft(kind, lang, secret, render(r, r.choice(CODE), S=secret, K=env, k=env.lower(), V=vendor), True)


def password_draft(r: Random, kind: str, carrier: str) -> Draft:
    name = next((m[1] for m in re.finditer(r"\{([A-Z]+\d*)\}", carrier) if m[1] in VALUES), "S")
    secret = (
        VALUES[name](r)
        if name in VALUES
        else password(r, "en", url_safe=not re.search("json|yaml|env|html|csv|log", kind))
    )
    return Draft(kind, lang_of(r), secret, render(r, carrier, **{name: secret}), True)


def prose_password(r: Random) -> Draft:
    lang = r.choice(LANG_CODES)
    secret = password(r, lang)
    body = r.choice(LANGS[lang]["pw"]) if r.random() < 0.75 else r.choice(LABEL)
    return Draft("password_prose", lang, secret, render(r, body, S=secret, L=LANGS[lang]["lab"][0]))


def otp_draft(r: Random) -> Draft:
    lang = r.choice(LANG_CODES)
    secret = fill(r, r.choice(["{d6}", "{d6}", "{d6}", "{n1}{d3}", "{d8}", "{d3} {d3}", "{d3}-{d3}", "G-{d6}", "{u6}"]))
    body = r.choice(LANGS[lang]["otp"]) if r.random() < 0.8 else r.choice(LABEL)
    return Draft("otp", lang, secret, render(r, body, S=secret, L=LANGS[lang]["lab"][LABELS.index("otp")]))


def card_draft(r: Random, network: str) -> Draft:
    lang, secret = lang_of(r), card(r, network)
    if r.random() < 0.4:
        body = r.choice(
            [
                "{S} exp 0{n1}/27",
                "card {S}, valid thru 0{n1}/28",
                "charge it to {S} please",
                "{S}",
                "PAN={S}&exp=0{n1}29",
                "visa/mc: {S}",
            ]
        )
        return Draft(f"card_{network}", lang, secret, render(r, body, S=secret))
    return typed(r, f"card_{network}", lang, secret, "card")


def cvv_draft(r: Random) -> Draft:
    lang, secret = lang_of(r), fill(r, r.choice(["{d3}", "{d3}", "{d4}"]))
    body = r.choice(
        [
            "CVV {S}",
            "CVC: {S}",
            "the security code on the back is {S}",
            "cvv2={S}",
            '{"exp": "09/27", "cvc": "{S}"}',
            "card verification value: {S}",
            "Prüfnummer (CVC) {S}",
            "cryptogramme visuel (CVV) : {S}",
            "código de seguridad (CVV): {S}",
            "CVC-код {S}",
            "セキュリティコード(CVV) {S}",
        ]
    )
    return Draft("cvv", lang, secret, render(r, body, S=secret))


def phrase_draft(r: Random, count: int) -> Draft:
    lang, secret = lang_of(r), recovery_phrase(r, count)
    body = r.choice(
        [
            "my wallet recovery phrase: {S}",
            "seed phrase = {S}",
            "{S}",
            'MNEMONIC="{S}"',
            "Wiederherstellungswörter: {S}",
            "restore wallet with\n{S}",
            "phrase de récupération : {S}",
            "мнемоническая фраза: {S}",
            "助记词：{S}",
            "frase de recuperación: {S}",
            '{"mnemonic": "{S}"}',
        ]
    )
    return Draft(f"recovery_phrase_{count}", lang, secret, render(r, body, S=secret))


def pem_draft(r: Random, form: str, mode: str) -> Draft:
    text, rows = pem(r, form)
    secret = {"block": text, "line": r.choice(rows[1:-1]), "escaped": text.replace("\n", "\\n")}[mode]
    body = (
        text
        if mode != "escaped"
        else r.choice(['{"type": "service_account", "private_key": "%s"}', 'PRIVATE_KEY="%s"', "key: '%s'"]) % secret
    )
    if mode != "escaped":
        body = (
            r.choice(
                [
                    "%s",
                    "$ cat ~/.ssh/id_rsa\n%s",
                    "cat > key.pem <<'END'\n%s\nEND",
                    "tls.key:\n%s\n",
                    "server.pem\n%s\n200 OK",
                ]
            )
            % body
        )
    return Draft(f"pem_{form}_{mode}", lang_of(r), secret, body, True)


def birth(r: Random, lang: str) -> str:
    d = day(r, 1940, 2006)
    forms = {
        "en": ["%m/%d/%Y", "%d/%m/%Y", "%B %d, %Y", "%d %b %Y", "%Y-%m-%d"],
        "zh": ["%Y年%m月%d日", "%Y-%m-%d"],
        "ja": ["%Y年%m月%d日", "%Y/%m/%d"],
        "ko": ["%Y년 %m월 %d일", "%Y.%m.%d"],
        "sv": ["%Y-%m-%d"],
        "nl": ["%d-%m-%Y"],
        "hi": ["%d/%m/%Y", "%d-%m-%Y"],
    }
    latin = (
        ["%d/%m/%Y", "%d-%m-%Y"]
        if lang in ("fr", "es", "it", "pt", "el", "ar")
        else ["%d.%m.%Y", "%d.%m.%y", "%d. %m. %Y"]
    )
    return d.strftime(r.choice(forms.get(lang, latin)))


def address_draft(r: Random, mode: str) -> Draft:
    lang, streets, places, order = r.choice(ADDRESS_ROWS)
    number = str(r.randint(1, 240)) + r.choice(
        ["", "", "", "a", "B"] if lang in ("de", "nl", "da", "no", "sv") else [""]
    )
    street = re.sub(
        r"[sn]", lambda m: fill(r, r.choice(re.split(r",(?! )", streets))) if m[0] == "s" else number, order
    )
    place = fill(r, r.choice(places.split("/")))
    sep = {"zh": "", "ja": " ", "ko": " "}.get(lang, ", ") if mode != "multiline" else "\n"
    full = street + sep + place
    if mode == "street":  # the planted item is the street line, the place follows it
        draft = typed(r, "address_street", lang, full, "address", "addr")
        return Draft("address_street", lang, street, draft.body, draft.block)
    return typed(r, "address" if mode == "line" else "address_multiline", lang, full, "address", "addr")


def handle(r: Random, lang: str) -> tuple[str, str]:
    first, last = roman(r, lang)
    nick = r.choice(
        [
            f"{first}_{last}",
            f"{first}.{last}{r.randrange(70, 99)}",
            f"{first}{last[:3]}{r.randrange(10, 99)}",
            f"the_{first}_{last[:4]}",
        ]
    )
    site = r.choice(
        [
            "https://www.linkedin.com/in/",
            "https://github.com/",
            "instagram.com/",
            "https://t.me/",
            "https://x.com/",
            "https://www.facebook.com/",
            "https://vk.com/",
            "https://www.tiktok.com/@",
            "@",
            "@",
            "https://mastodon.social/@",
        ]
    )
    return ("handle" if site == "@" else "profile_url"), site + nick


def geo(r: Random) -> str:
    lat, lon = r.uniform(-60, 68), r.uniform(-170, 175)
    north, east, (m, k) = "NS"[lat < 0], "EW"[lon < 0], (r.randint(10, 59), r.randint(10, 59))
    return r.choice(
        [
            f"{lat:.5f}, {lon:.5f}",
            f"{lat:.6f},{lon:.6f}",
            f"{abs(lat):.4f}°{north}, {abs(lon):.4f}°{east}",
            f"{int(abs(lat))}°{m}'{k}\"{north} {int(abs(lon))}°{k}'{m}\"{east}",
        ]
    )


def network_value(r: Random, form: str) -> str:
    first = r.choice(["5", "23", "31", "46", "62", "77", "81", "84", "91", "109", "176", "185", "188", "213", "217"])
    sep = r.choice([":", ":", "-"])
    return {
        "ipv4": f"{first}.{r.randrange(256)}.{r.randrange(256)}.{r.randint(1, 254)}",
        "ipv6": fill(
            r,
            r.choice(
                [
                    "2a02:8108:{h4}:{h4}:{h4}:{h4}:{h4}:{h4}",
                    "2a01:4f8:{n1}{h2}:{n1}{h3}::{n1}",
                    "2003:e{h1}:{n1}{h3}:{n1}{h3}::{n1}{h3}",
                    "2600:1F18:{H4}:{H4}::{H4}",
                ]
            ),
        ),
        "mac": r.choice(
            [
                sep.join(fill(r, "{h2}") for _ in range(6)),
                sep.join(["3C", *(fill(r, "{H2}") for _ in range(5))]),
                fill(r, "{h4}.{h4}.{h4}"),
            ]
        ),
        "imei": (lambda b: b + luhn(b))("35" + fill(r, "{d12}")),
    }[form]


def account_draft(r: Random) -> Draft:
    lang = lang_of(r)
    secret = fill(r, r.choice(["{n1}{d9}", "{n1}{d7}", "{d2}-{d2}-{d2} {d8}", "{n1}{d11}", "{d4} {d4} {d2} {d4}"]))
    if r.random() < 0.3:
        body = r.choice(["routing 0{n5}{n3}, acct {S}", "wire it to account no. {S}", "a/c {S}", "debit account {S}"])
        return Draft("bank_account", "en", secret, render(r, body, S=secret))
    return typed(r, "bank_account", lang, secret, "account")


HOMOGLYPHS = str.maketrans("aeocpxi", "аеосрхі")
ENCODERS: dict[str, tuple[str, Callable[[Random, str], str]]] = {  # encoding: (bases it fits, function)
    "base64": ("email key phone card", lambda r, s: b64(s.encode())),
    "base64url": ("email key", lambda r, s: b64(f"user={s}&ok=1".encode(), True)),
    "percent": ("email", lambda r, s: urllib.parse.quote(s, safe="")),
    "percent_all": ("email phone", lambda r, s: "".join(f"%{b:02X}" for b in s.encode())),
    "percent_double": ("email", lambda r, s: urllib.parse.quote(urllib.parse.quote(s, safe=""), safe="")),
    "hex": ("email key", lambda r, s: s.encode().hex()),
    "html_decimal": ("email phone", lambda r, s: "".join(f"&#{ord(c)};" for c in s)),
    "html_hex": ("email", lambda r, s: "".join(f"&#x{ord(c):x};" for c in s)),
    "html_at": ("email", lambda r, s: s.replace("@", r.choice(["&#64;", "&commat;", "&#x40;"]))),
    "unicode_escape": ("email", lambda r, s: s.replace("@", "\\u0040")),
    "zero_width": (
        "email phone card iban key",
        lambda r, s: (lambda k, z: s[:k] + z + s[k:])(
            r.randrange(3, len(s) - 2), r.choice("\u200b\u200c\u200d\u2060\ufeff")
        ),
    ),
    "soft_hyphen": ("email iban", lambda r, s: s[:4] + "\u00ad" + s[4:]),
    "homoglyph": ("email", lambda r, s: s.translate(HOMOGLYPHS)),
    "fullwidth": (
        "email phone card iban",
        lambda r, s: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in s),
    ),
    "math_digits": ("phone card", lambda r, s: "".join(chr(0x1D7CE + int(c)) if c.isdigit() else c for c in s)),
    "arabic_digits": ("phone card", lambda r, s: "".join(chr(0x660 + int(c)) if c.isdigit() else c for c in s)),
    "odd_spaces": ("phone card iban", lambda r, s: re.sub(r"[ -]", r.choice("\u00a0\u2009\u202f\u2007\u3000"), s)),
    "odd_hyphens": ("phone card", lambda r, s: re.sub(r"[ -]", r.choice("\u2010\u2011\u2013\u2212\uff0d"), s)),
    "dotted": ("card", lambda r, s: re.sub(r"[ -]", ".", s)),
}
ENCODED_CARRIERS = [
    "payload={S}",
    "can you decode {S} for me",
    '{"data": "{S}"}',
    "https://{host}/track?u={S}&c={n3}",
    "X-User: {S}",
    "<p>{S}</p>",
    "  value: {S}",
    "{ts} INFO cookie uid={S}",
    "contact: {S}",
    "curl -d 'q={S}' https://{host}/find",
    "note to self: {S}",
    "{n4},{S},{date}",
]


def encoded_draft(r: Random, encoding: str, base: str) -> Draft:
    lang = lang_of(r)
    grouped = encoding in ("odd_spaces", "odd_hyphens", "dotted")
    plain = {
        "email": lambda: email(r, lang),
        "phone": lambda: until(lambda: (lambda p: p if not grouped or " " in p or "-" in p else None)(phone(r, lang))),
        "card": lambda: card(r, r.choice(["visa", "mastercard", "amex"]), " " if grouped else None),
        "iban": lambda: until(lambda: (lambda s: s if " " in s else None)(iban(r))),
        "key": lambda: r.choice(VENDOR_MAKERS)[3](r),
    }[base]()
    secret, kind = ENCODERS[encoding][1](r, plain), f"enc_{encoding}_{base}"
    slot = {"email": "mail", "phone": "tel"}.get(base)
    if slot and r.random() < 0.4 and not re.match("base64|hex|percent|html", encoding):
        return Draft(kind, lang, secret, render(r, r.choice(LANGS[lang][slot]), S=secret))
    return Draft(kind, lang, secret, render(r, r.choice(ENCODED_CARRIERS), S=secret))


def name_draft(r: Random, form: str) -> Draft:
    lang = r.choice(LANG_CODES)
    foreign = [c for c in LANG_CODES if c not in ("zh", "ja", "ko", "ar", "he", "hi", lang)]
    source = r.choice(foreign) if form == "foreign" else lang
    first, last = person(r, source)
    gap = r.choice(["", " "]) if source == "ja" else ""
    full = last + gap + first if source in ("zh", "ja", "ko") else f"{first} {last}"
    if source in ("zh", "ja", "ko", "ar", "he", "hi") and form in ("lower", "upper", "initial"):
        form = "full"
    secret = {"lower": full.lower(), "upper": full.upper(), "initial": f"{first[0]}. {last}", "first": first}.get(
        form, full
    )
    body = render(r, r.choice(LANGS[lang]["name"]), S=secret)
    return Draft(f"name_{form}", lang, secret, body.lower() if form == "lower" else body)


Maker = Callable[[Random], Draft]


def phone_draft(r: Random, labelled: bool) -> Draft:
    lang = r.choice(LANG_CODES)
    secret = phone(r, lang)
    if labelled:
        return typed(r, "phone_labelled", lang, secret, "phone")
    body = r.choice(LANGS[lang]["tel"]) if r.random() < 0.6 else r.choice(["{S}", "{C} {S}", "{S} - {C}", "{C}\n{S}"])
    return Draft(
        "phone_unlabelled", lang, secret, render(r, body, S=secret, C=render(r, r.choice(LANGS[lang]["clean"])))
    )


def makers() -> dict[str, list[Maker]]:
    """Every maker of drafts by group, repeated where a kind deserves more than one place in the deck."""

    def paper(column: int, field: str) -> Maker:
        return lambda r: (lambda row: typed(r, field, row[0], fill(r, r.choice(row[column].split("~"))), field))(
            r.choice(PAPER_ROWS)
        )

    def simple(kind: str, field: str, make: Callable[[Random, str], str], slot: str = "") -> Maker:
        return lambda r: (lambda lang: typed(r, kind, lang, make(r, lang), field, slot))(lang_of(r))

    def national(kind: str, lang: str, label: str, make: Callable[[Random], str | None]) -> Maker:
        def run(r: Random) -> Draft:
            secret = until(lambda: make(r))
            if r.random() < 0.6:
                carrier = r.choice(ID_CARRIERS[lang != "en" :])  # the first carrier is an English sentence
                return Draft(f"id_{kind}", lang, secret, render(r, carrier, S=secret, L=label))
            return typed(r, f"id_{kind}", lang, secret, "id", label=label)

        return run

    encoded = {
        b: [(lambda r, e=e, b=b: encoded_draft(r, e, b)) for e, (bases, _) in ENCODERS.items() if b in bases.split()]
        for b in ["email", "phone", "iban", "card", "key"]
    }
    secret: list[Maker] = [
        *((lambda r, row=row: vendor_draft(r, *row)) for row in VENDOR_MAKERS),
        *((lambda r, row=row: password_draft(r, *row)) for row in PASSWORDS),
        *[prose_password] * 24,
        *[otp_draft] * 16,
        *((lambda r, n=n: card_draft(r, n)) for n in CARDS),
        *[cvv_draft] * 5,
        *((lambda r, c=c: phrase_draft(r, c)) for c in (12, 24, 12, 24)),
        *encoded["card"],
        *encoded["key"],
        *(
            (lambda r, f=f, m=m: pem_draft(r, f, m))
            for f, m in [
                ("rsa", "block"),
                ("pkcs8", "escaped"),
                ("ec", "block"),
                ("openssh", "block"),
                ("openssh", "line"),
                ("dsa", "line"),
                ("encrypted", "block"),
                ("pgp", "block"),
                ("rsa", "line"),
                ("rsa", "escaped"),
            ]
        ),
    ]
    personal: list[Maker] = [
        *(
            simple(f"email_{f}", "email", lambda r, lang, f=f: email_form(r, lang, f), "mail")
            for f in (
                "plain "
                * 5
                + "plus plus upper at_dot at_dot bracket_at bracket_at bracket_dot quoted spaced subdomain "
                "idn idn idn_local"
            ).split()
        ),
        *[lambda r: phone_draft(r, True)] * 20,
        *[lambda r: phone_draft(r, False)] * 20,
        *[simple("iban", "iban", lambda r, lang: iban(r))] * 16,
        *(national(*row) for row in NATIONAL_IDS),
        *[paper(1, "passport")] * 9,
        *[paper(2, "licence")] * 6,
        *[paper(3, "plate")] * 9,
        *[lambda r: address_draft(r, "line")] * 14,
        *[lambda r: address_draft(r, "multiline")] * 4,
        *[lambda r: address_draft(r, "street")] * 8,
        *[simple("date_of_birth", "birth", birth)] * 14,
        *[simple("ipv4", "ip", lambda r, lang: network_value(r, "ipv4"))] * 8,
        *[simple("ipv6", "ip", lambda r, lang: network_value(r, "ipv6"))] * 6,
        *[simple("mac", "mac", lambda r, lang: network_value(r, "mac"))] * 5,
        *[simple("imei", "imei", lambda r, lang: network_value(r, "imei"))] * 4,
        *[simple("geo", "geo", lambda r, lang: geo(r))] * 6,
        *[account_draft] * 8,
        *[
            simple(
                "customer_number",
                "customer",
                lambda r, lang: fill(r, r.choice(["{n1}{d7}", "K-{d6}", "{A2}{d6}", "C{d4}-{d4}", "{n1}{d9}"])),
            )
        ]
        * 9,
        *[
            lambda r: (
                lambda lang: (lambda kv: typed(r, kv[0], lang, kv[1], "handle", label="Profile"))(handle(r, lang))
            )(lang_of(r))
        ]
        * 10,
        *encoded["email"],
        *encoded["phone"],
        *encoded["iban"],
    ]
    forms = ("full " * 7 + "lower upper initial first first foreign foreign").split()
    names = [lambda r, f=f: name_draft(r, f) for f in forms]
    return {"secret": secret, "personal": personal, "name": names}


# ---- messages ----
def wrap(r: Random, lang: str, body: str, block: bool) -> str:
    slots = LANGS[lang]
    if block:
        fence = r.choice(["{X}", "{X}", "```\n{X}\n```", "~~~\n{X}\n~~~"]).replace("{X}", body)
        text = r.choice(
            [
                f"{r.choice(slots['lead'])}\n{fence}",
                f"{fence}\n\n{r.choice(slots['lead'])}",
                f"{r.choice(slots['lead'])} {body}",
                fence,
            ]
        )
    else:
        text = body
        for _ in range(r.choice([0, 0, 0, 1, 2])):
            extra = render(r, r.choice(slots["clean"]))
            text = r.choice([f"{extra} {text}", f"{text}\n{extra}", f"{text} {extra}"])
    frame = r.choice(slots["frame"]) if r.random() < 0.35 else r.choice(NEUTRAL_FRAMES)
    if frame.startswith("JSON:"):
        message = (
            {"role": "user", "content": text}
            if frame.endswith("content")
            else {"tool": "get_ticket", "ok": True, "result": {"body": text}}
        )
        return json.dumps(message, ensure_ascii=False)
    return render(r, frame, X=text)


def once(text: str, secret: str) -> bool:
    at = text.find(secret)
    return at >= 0 and text.find(secret, at + 1) < 0


def planted(n: int, seed: int) -> list[Item]:
    r = Random(seed)
    pools, decks = makers(), {"secret": [], "personal": [], "name": []}
    groups = ["secret"] * round(n * 0.40) + ["name"] * round(n * 0.15)
    groups += ["personal"] * (n - len(groups))
    r.shuffle(groups)
    out: list[Item] = []
    seen: set[str] = set()
    for group in groups:
        if not decks[group]:
            decks[group] = r.sample(pools[group], len(pools[group]))
        make = decks[group].pop()
        while True:  # a frame may escape the value, a short value may recur: draw again
            draft = make(r)
            text = wrap(r, draft.language, draft.body, draft.block)
            if text not in seen and once(text, draft.secret):
                break
        seen.add(text)
        out.append(Item(text, draft.secret, draft.kind, group, draft.language))
    return out


def clean(n: int, seed: int) -> list[str]:
    r = Random(f"clean-{seed}")
    out = []
    holders = [
        "<your-key>",
        "${SECRET}",
        "********",
        "[REDACTED]",
        "xxxxxxxx",
        "null",
        "process.env.KEY",
        "YOUR_TOKEN_HERE",
    ]
    for _ in range(n):
        lang, choice = lang_of(r), r.random()
        if choice < 0.35:
            near = r.choice(["", "", f" {r.choice(CLEAN_LINES)}", f"\n{r.choice(CLEAN_LINES)}"])
            text = wrap(r, lang, render(r, r.choice(LANGS[lang]["clean"]) + near), False)
        elif choice < 0.85:
            text = wrap(r, lang, "\n".join(render(r, c) for c in r.sample(CLEAN_LINES, r.choice([1, 1, 2, 3]))), True)
        elif choice < 0.95:
            text = wrap(
                r,
                lang,
                render(r, r.choice(CODE), S=r.choice(holders), K=r.choice(["API_KEY", "AUTH_TOKEN"]), k="api_key"),
                True,
            )
        else:
            number = r.choice(
                [render(r, "{n4}"), render(r, "{ver}"), render(r, "{uuid}"), render(r, "{price}"), "OK", "true"]
            )
            text = wrap(
                r,
                lang,
                render(r, r.choice(DATA), S=number, k=r.choice(["total", "version", "request_id", "amount", "status"])),
                True,
            )
        out.append(text)
    return out


def self_test(n: int = 3000, seed: int = 7) -> None:
    items = planted(n, seed)
    assert items == planted(n, seed) and clean(n, seed) == clean(n, seed), "not deterministic"
    assert len(items) == n and all(once(i.text, i.secret) for i in items), "an item is not there exactly once"
    assert all(
        i.group in ("secret", "personal", "name") and i.language in LANGS and i.secret.strip() == i.secret
        for i in items
    )
    assert not any(re.search(r"\{(S|X|K|k|L|V|C)\}", i.text) for i in items), "an unfilled place"
    assert all(len(s["lab"]) == len(LABELS) for s in LANGS.values()) and len(LANGS) >= 20
    carriers = sum(
        len(v) for s in LANGS.values() for k, v in s.items() if k not in ("lab", "first", "last", "rom", "clean")
    )
    carriers += sum(map(len, (CODE, DATA, LABEL, PASSWORDS, ENCODED_CARRIERS, ID_CARRIERS, *SPECIAL_CARRIERS.values())))
    assert carriers >= 200 and len({i.text for i in items}) == n
    print(
        f"ok: {n} items, {len({i.kind for i in items})} kinds, {len(LANGS)} languages, {carriers} carriers, "
        f"{len(VENDOR_MAKERS)} vendor key forms, {len(clean(n, seed))} clean"
    )
    for name in ("group", "language", "kind"):
        print(name, dict(sorted(Counter(getattr(i, name) for i in items).items())))


if __name__ == "__main__":
    self_test()
