"""Secrets and personal data in text: few patterns, each precise, and checked by its own arithmetic where it has one.

A hit is the name of its pattern; the text found is never repeated. `ASSIGNED` and `WIDE` find more, for callers who
replace what they find. Names and addresses of people are in `people`, numbers of people in `numbers`. `DetectionRule`
is a caller's own pattern with the reason that a hit gives.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from math import log2
from typing import Any, NamedTuple

from holdfast.contracts.errors import BadInput

Test = Callable[[str], bool]
MOST_GAPS = 7  # separators in a telephone number
BEFORE = 60  # characters before a hit in which `unless` is searched


class Sign(NamedTuple):
    """The pattern of one kind. A text without any of the hints, or without the trait, is not searched."""

    pattern: re.Pattern[str]  # the group `it`, if any, is the thing; the rest is its context
    test: Test
    hints: tuple[str, ...] = ()  # most texts contain none of them
    trait: re.Pattern[str] | None = None  # matches every such thing and is faster; kinds may share one
    any_case: bool = False  # pattern and hints are in lower case and match any case
    unless: re.Pattern[str] | None = None  # in lower case; what stands right before a hit that is none
    words: frozenset[str] = frozenset()  # whole words in lower case, instead of a hint
    gate: str = ""  # "digits": has four digits in a row; "far": is in another script


def _any(text: str) -> bool:
    return True


def sign(
    pattern: str,
    hints: str = "",
    *,
    test: Test = _any,
    trait: re.Pattern[str] | None = None,
    any_case: bool = False,
    unless: str = "",
    words: str = "",
    gate: str = "",
) -> Sign:
    """Makes a sign; hints and words are separated by bars."""
    before = re.compile(f"(?:{unless})$") if unless else None
    parts = tuple(filter(None, hints.split("|")))
    whole = frozenset(filter(None, words.split("|")))
    return Sign(re.compile(pattern), test, parts, trait, any_case, before, whole, gate)


@dataclass(frozen=True, slots=True)
class Detection:
    """Where in a text something was found, and what kind of thing it is."""

    kind: str
    start: int
    end: int  # before it


def luhn(text: str) -> bool:
    """The check of card numbers: doubling every second digit from the right gives a multiple of 10."""
    digits = [int(letter) for letter in reversed(text) if letter.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _mod97(text: str) -> bool:
    """The check of bank accounts, ISO 13616: first four letters last, letters as 10 to 35, modulo 97 is 1."""
    plain = re.sub(r"[ .-]", "", text)
    return int("".join(str(int(letter, 36)) for letter in plain[4:] + plain[:4])) % 97 == 1


def _is_phone(text: str) -> bool:
    """E.164 allows 15 digits. One dot makes it a decimal; many separators make it a list of numbers."""
    return 8 <= sum(letter.isdigit() for letter in text) <= 15 and text.count(".") != 1 and is_grouped(text)


def is_grouped(text: str) -> bool:
    """Whether it has no more separators than telephone numbers have."""
    return sum(letter in " .-/" for letter in text) <= MOST_GAPS


def _is_somebodys(address: str) -> bool:
    """False for the domains that RFC 2606 reserves for examples, and for the user whom all share on hosts of code."""
    if address.startswith("git@"):
        return False
    domain = re.sub(r"[\s\[\](){}<>]|dot|punkt", "", address.rpartition("@")[2].lower())
    return not re.search(r"(?:^|\.)(?:example(?:\.com|\.net|\.org|\.edu)?|test|invalid|localhost)$", domain)


STAND_IN = re.compile(
    r"<[^<>]*>?|\*+|\.\*.*|\$[A-Za-z_]+|\$[{(].*|[\[{].*|%[sd]|%\(.*|%\w+%|@\w+@|&lt;.*|(?i:user|pass|password|passwd"
    r"|pwd?|secret|token|key|apikey|changeme|change[_-]?it|redacted|null|none|true|false|undefined|hidden|masked|x+|\.+"
    r"|-+|_+)\W?"
)
STAND_INS = re.compile(  # within something longer: no key is so, and no password that anybody should have
    r"(?i)example|placeholder|dummy|your[_-]|[_-]your|yourpass|yourtoken|yourkey|yoursecret|xxxx|redacted|change[_-]?me"
    r"|insert[_-]|replace[_-]|[_-]here\b|\.\.\.|\*\*\*|<[a-z_ -]+>|\{\{|\$\{|\b(?:my|the|some)[_-](?:secret|password"
    r"|token|api)"
)


def is_given(text: str) -> bool:
    """False for placeholders such as <password>, $PASSWORD, ***, YOUR_API_KEY."""
    return not STAND_IN.fullmatch(text) and not STAND_INS.search(text)


def _bits(text: str) -> float:
    """Entropy per character."""
    return -sum(n / len(text) * log2(n / len(text)) for n in Counter(text).values())


_CODE = re.compile(  # a call, an index, an attribute, a constant, an address, a type, a pattern
    r"^[A-Za-z_][A-Za-z_.]*[(\[{]|^[A-Za-z_]+\.[A-Za-z_]+$|^[A-Z][A-Z_]+$|^file:|^[A-Za-z][\w+]{1,20}://|::|\w\.(?:env"
    r"|get|config|environ)\b|^(?:process|os|self|this|config|settings|env|var|secrets|data|module|local)\.|^/[a-z]+(?:/"
    r"|$)|^(?:\.{1,2}|~)/|=>|^\d+[a-z]{1,2}$|\(\?[=!:<]|\[(?:A-Z|a-z|0-9)"
)
_SIGNS = frozenset("!@#$%^&*+=?~")


def _is_mixed(text: str) -> bool:
    return any(letter.isdigit() or letter in _SIGNS for letter in text.rstrip("!?")) and any(map(str.isalpha, text))


def is_password(text: str) -> bool:
    """Not an identifier, a call or a word: letters mixed with digits or signs, or random letters."""
    if not is_given(text) or _CODE.match(text) or _CODE.search(text):
        return False
    return _is_mixed(text) or (len(text) >= 16 and _bits(text) >= 3.5 and not text.islower())


_NO_PASSWORD_WORDS = """
string required optional field input value invalid incorrect wrong missing expired reset forgot forgotten hidden
text default empty enabled disabled unknown boolean number object option options varchar prompt manager generator
policy policies strength confirm confirmation confirmed updated changed minimum maximum length characters should
must cannot please enter your this that there here with from file page change valid protected hashed encrypted
plaintext plain username email login account server database admin client first never always needed stored return
export import class const function async await false while print public private static mandatory nullable before
after again later against using match matches column requirements rules expiry history hash provided available
located according contact unset unchanged rotated above below various something anything nothing random generated
temporary secure strong example sample masked removed omitted skipped accepted rejected verified failed success
correct mismatch denied granted blank numeric alphanumeric ignored erforderlich falsch ungültig vergessen geändert
obligatoire oublié requerida incorrecta obligatorio olvidada inválida obrigatória errata obbligatoria vereist
onjuist wymagane nieprawidłowe bcrypt argon scrypt sha-256 keychain keyring vault secrets environment ansible
terraform
"""
_NO_PASSWORD = frozenset(_NO_PASSWORD_WORDS.split())


def is_told_password(text: str) -> bool:
    """What follows "password:" may also be a word or a few digits, but not one that describes a password."""
    if is_password(text):
        return True
    if not is_given(text) or _CODE.match(text) or _CODE.search(text):
        return False
    if text.isdigit():
        return 4 <= len(text) <= 24
    words = text.split()
    if len(words) > 1:  # a phrase, if quoted
        return len(words) >= 3 and not {"your", "the", "enter", "must", "should", "password", "is", "a", "to"} & {
            *map(str.lower, words)
        }
    is_named = re.search(r"(?i)pass|pwd|secret|token|_|field|input|value|type|param|config|user", text)
    is_word = re.fullmatch(r"[^\W\d_]+(?:-[^\W\d_]+)*[?_-]?", text) and not re.match(r"[a-z]+[A-Z]", text)
    is_random = is_random_word(text)
    bare = text.rstrip("?_-").lower()
    return len(text) >= 6 and not is_named and (bool(is_word) or is_random) and bare not in _NO_PASSWORD


def _has_digit(text: str) -> bool:
    return is_given(text) and any(map(str.isdigit, text))


_TURN = re.compile(r"(?=[A-Za-z]\d|\d[A-Za-z]|[a-z][A-Z]|[A-Z]{2}[a-z])")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def _is_key(text: str) -> bool:
    """Whether what has a vendor's prefix looks random: letters and digits take turns more often than in a name."""
    return is_given(text) and (len(_TURN.findall(text)) >= len(text) / 8 or bool(_UUID.search(text)))


def _is_random(text: str) -> bool:
    """Whether it looks random, as keys do and names, paths and hex hashes do not."""
    kinds = (str.isupper, str.islower, str.isdigit)
    if not all(any(map(kind, text)) for kind in kinds) or NO_SECRET.match(text):
        return False
    if text.count("/") > max(2, len(text) // 32):  # a path; in base 64 one character in 64 is a slash
        return False
    words = sum(len(word) for word in re.findall(r"[A-Z]?[a-z]{4,}", text))  # of an identifier
    return words < len(text) // 2 and _bits(text) >= 3.7 and sum(letter.isdigit() for letter in text) >= 3


NO_SECRET = re.compile(  # ids of calls; what is public; PNG, JPEG, GIF, WebP, WAV, PDF, MP3, fonts, archives in base 64
    r"(?:call|toolu|chatcmpl|msg|resp|req|run|fc|rs|item|cus|evt|pi|prod|price|sub|in|ch|seti|cs|thread|asst|file|step"
    r"|batch|trace|span|srv|pod|job|task|order|txn)[_-]|iVBORw0KGgo|/9j/|R0lGOD|UklGR|JVBERi0|SUQz|AAAAB3Nza|AAAAC3Nza"
    r"|AAAAE2Vj|sha(?:1|256|384|512)-|d09GM|H4sI|UEsD|AGFzb|PHN2Zy|Qm[1-9A-HJ-Za-km-z]{44}$|baf[ky]|-----BEGIN"
)
_LONG_NUMBER = re.compile(
    r"[0-9]{4}(?:[ ._/-]{0,2}[0-9]{4}[ ._/-]{0,2}[0-9]{2}|[ ._/-][0-9]{6})"
)  # how every card's begins
_COUNTRY = re.compile(
    r"[0-9](?<=[A-Za-z]{2}[0-9])[0-9](?:[ .-]?[A-Za-z0-9]){11}"
)  # a country's two letters and two digits, found by the digits
LONG_TOKEN = re.compile(
    r"[0-9](?:(?<=[A-Za-z][0-9])|[A-Za-z])[A-Za-z0-9_./+=-]{4}"
)  # a digit beside a letter, as in most keys
_DASHED = re.compile(r"-(?<=[0-9A-Za-z]{4}-)[0-9A-Za-z]{4,8}(?:[\s,;-]|$)")  # groups of letters and digits
_AT_DOMAIN = re.compile(r"@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2}")
# Prefixes that vendors give their tokens, for which there is no kind of their own below.
_PREFIXES = r"""
gsk_ pplx- xai- r8_ nvapi- tvly- jina_ fw_ tgp_v1_ lsv2_[a-z]{2}_ pcsk_ csk- e2b_ fc-(?=[0-9a-f]{32})
sk_(?=[0-9a-f]{32}) pk-lf- lin_(?:api|oauth)_ ntn_ secret_(?=[A-Za-z0-9]{24}) fig[duo]h?_ pat-[a-z]{2}\d- tfp_
ops_ dp\.[a-z]{2,5}\. hv[sbr]\. pul- NR(?:AK|JS|IQ|II|RA)- gl(?:c|sa)_ sntry[su]_ dt0[a-z]01\. hc[abx]ik_ HRKU-
vc[pair]_ nf[pco]_ (?:FlyV1\s)?fm[12]r?_ fo1_ rnd_ sbp_ sb_secret_ pscale_[a-z]{2,5}_ dapi(?=[0-9a-f]{32})
sq0[a-z]{3}- EAA[A-Z](?=[A-Za-z0-9_-]{20}) shp(?:at|ca|pa|ss|tka)_ whsec_ (?:pk_(?:live|test|prod)|[rs]k_prod)_
rzp_(?:live|test)_ access-[a-z]{7,11}- (?:live|test)_(?=[A-Za-z0-9]{24}) xkeysib- xsmtpsib- key-(?=[0-9a-f]{32})
GOCSPX- AT(?:ATT3|CTT3|(?:BB|TA)(?=[A-Za-z0-9]{24})) xapp- xoxe[.-] rubygems_ dckr_[po]at_ oy2(?=[a-z0-9]{40})
CLOJARS_ AKCp cmVmd(?=[A-Za-z0-9]{50}) GR1348941 gl(?:rt|rtr|dt|cbt|ptt|ft|soat|imt|agent|oas|ffct|wt)-
AGE-SECRET-KEY-1 LTAI AKID t1\.(?=[A-Za-z0-9_-]{20}) y0_ AQVN YC[OMN] sq[pua]_ CCIP(?:AT|RJ)_ bkua_ PMAK- rdme_
CFPAT- pn[ua]_ shippo_[a-z]{4}_ EZ[AT]K duffel_[a-z]{4}_ fio-u- FLWSECK(?:_TEST)?- tskey-[a-z]{3,7}- sgp_ ico-
tk-us- p8e- ABSK api_org_ cf[ua]t_ v1\.0-(?=[0-9a-f]{24}) sl\.(?:u\.)?(?=[A-Za-z0-9_-]{40}) ph[cxs]_
re_(?=[A-Za-z0-9_]{16}) tr_[a-z]{3,4}_ signkey- api_(?:live|sandbox)\. 1//0(?=[A-Za-z0-9_-]{20})
(?:sec|sub|pub)-c- waka_ 1000\.(?=[0-9a-f]{32}) A3-[A-Z0-9]{6}- A3T[A-Z0-9] (?:ABIA|ACCA)
mfa\.(?=[A-Za-z0-9_-]{20}) oauth: cal_live_ wandb_v1_ rpa_ apify_api_ snyk_ (?:sdk|api|mob)-(?=[0-9a-f]{8}-)
ory_[a-z]{2,3}_ aio_ napi_ sk_sbox_ API-(?=[A-Z0-9]{26}\b) sha256~ sm_[ap]at_ a[ks]-(?=[A-Za-z0-9]{22}\b) os_v2_
(?:secret|public)-(?:live|test)- st\.(?=[0-9a-f]{8}\.) [ps]at\.(?=[\w-]{22}\.) [spt]k\.eyJ s-s4t2ud- esecret_
SCW(?=[A-Z0-9]{17}\b) akab- AstraCS: dbt[cu]_ dnkey- pdl_(?:live|sdbx)_ zpka_ ctx7sk- KEY0(?=[A-Z0-9]{20})
pt[la][ac]_ cio(?=[A-Za-z0-9]{32}\b) bb_(?:live|test)_ v[1-4]\.(?:local|public)\. nsec1 suiprivkey1
edsk(?=[1-9A-Za-z]{50}) [xyztuv]prv(?=[1-9A-Za-z]{60}) APP_USR- sk_(?!live_|test_)(?=[a-z]{2,8}_[A-Za-z0-9]{16})
m0- bfl_ [12]/(?=\d{16}[/:]) R_(?=[0-9a-f]{32}\b) s\.(?=[A-Za-z0-9]{24}\b) vault:v\d: prefect:
AAAA[\w-]{7}:(?=APA91b) key_(?=[0-9a-f]{32}) tok_(?=[A-Za-z0-9]{24}) vk1\.a\.
"""
_VENDORS = "|".join(_PREFIXES.split())
# What follows a repeated part never begins as the part does, so that a search takes linear time.
SECRETS: Mapping[str, Sign] = {
    "anthropic_api_key": sign(r"\bsk-ant-[A-Za-z0-9_-]{20,}", "sk-ant-", test=is_given),
    "openai_api_key": sign(r"\bsk-(?!ant-)(?:[a-z]{2,8}-(?:v1-)?)?[A-Za-z0-9_-]{20,}", "sk-", test=_has_digit),
    "github_token": sign(
        r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})",
        "ghp_|gho_|ghu_|ghs_|ghr_|github_pat_",
        test=is_given,
    ),
    "slack_token": sign(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}", "xox", test=is_given),
    "aws_access_key": sign(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", "AKIA|ASIA", test=is_given),
    "google_api_key": sign(r"\bAIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])", test=is_given, trait=LONG_TOKEN),
    "stripe_key": sign(r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}", "k_live_|k_test_", test=is_given),
    "gitlab_token": sign(r"\bglpat-[A-Za-z0-9_-]{20,}", "glpat-", test=is_given),
    "huggingface_token": sign(r"\bhf_[A-Za-z0-9]{30,}", "hf_", test=is_given),
    "npm_token": sign(r"\bnpm_[A-Za-z0-9]{36}\b", "npm_", test=is_given),
    "pypi_token": sign(r"\bpypi-[A-Za-z0-9_-]{50,}", "pypi-", test=is_given),
    "sendgrid_key": sign(r"\bSG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}", trait=LONG_TOKEN),
    "google_oauth_token": sign(r"\bya29\.[A-Za-z0-9_-]{20,}", trait=LONG_TOKEN),
    "telegram_token": sign(
        r"(?:\b|\bbot)\d{8,10}:[A-Za-z0-9_-]{30,40}\b",
        ":",
        test=_is_key,
        gate="digits",
        trait=re.compile(r":(?<=[0-9]:)[A-Za-z0-9_-]{30}"),
    ),
    "digitalocean_token": sign(r"\bdo[opr]_v1_[a-f0-9]{64}\b", "_v1_"),
    "slack_webhook": sign(
        r"\bhttps://hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/]{20,}", "hooks.slack"
    ),
    "webhook": sign(
        r"\bhttps://(?:(?:ptb\.|canary\.)?discord(?:app)?\.com/api/webhooks/\d{15,20}/[\w-]{30,}"
        r"|[\w.-]{1,80}\.(?:webhook\.office|logic\.azure)\.com[:/][^\s\"'<>]{30,}"
        r"|hooks\.zapier\.com/hooks/catch/[\w/]{8,}|chat\.googleapis\.com/v1/spaces/[^\s\"'<>]{20,})",
        "webhooks/|webhook.office|logic.azure|hooks.zapier|chat.googleapis",
    ),
    "vendor_token": sign(
        rf"(?<![A-Za-z0-9_])(?=[A-Za-z0-9_.=~/+:-]{{18}})(?:{_VENDORS})[A-Za-z0-9_.=~/+:-]{{11,}}[A-Za-z0-9_=-]",
        test=_is_key,
        trait=LONG_TOKEN,
    ),
    "twilio_key": sign(r"\b(?:AC|SK)[0-9a-f]{32}\b", trait=LONG_TOKEN),
    "mail_key": sign(
        r"[0-9a-f](?<!\w.)[0-9a-f]{31}-(?:us\d{1,2}|[0-9a-f]{8}-[0-9a-f]{8})\b",
        "-us|-",
        trait=re.compile(r"-(?<=[0-9a-f]{24}-)"),
    ),
    "discord_token": sign(
        r"\b[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,38}\b", test=_is_key, trait=LONG_TOKEN
    ),
    "azure_secret": sign(r"(?<![\w~.-])[A-Za-z0-9_~.-]{3}\dQ~[A-Za-z0-9_~.-]{31,34}(?![\w~-])", trait=LONG_TOKEN),
    "airtable_token": sign(r"\bpat[A-Za-z0-9]{14}\.[0-9a-f]{64}\b", trait=LONG_TOKEN),
    "newrelic_license": sign(r"\b[0-9a-zA-Z]{34,38}NRAL\b", "NRAL"),
    "odd_token": sign(
        r"[a-z0-9]{10}msh[a-z0-9]{15}p1[a-z0-9]{6}jsn[a-z0-9]{12}\b|\baccess_token\$(?:production"
        r"|sandbox)\$[a-z0-9]{12,20}\$[0-9a-f]{32}|\bv\^1\.1#[^\s\"']{40,}",
        "jsn|$production$|$sandbox$|v^1.1#",
    ),
    "colon_token": sign(
        r"(?<!\d)\d{16}/\d{16}:[0-9a-f]{32}\b|(?<![\w*])[\w*]{1,32}:[\w*]{1,32}\.[0-9a-f]{48,72}\b"
        r"|\b[0-9a-f]{32}:[0-9a-f]{32}:::",
        ":",
        trait=re.compile(r":(?<=[0-9a-f]{6}:)[0-9a-f]{32}|:[\w*]{1,32}\.[0-9a-f]{48}"),
    ),
    "password_hash": sign(
        r"\$(?:2[abxy]|[156y]|apr1|argon2\w{1,2}|sha1|pbkdf2[\w-]{0,12})\$[^\s:\"']{20,256}"
        r"|\bpbkdf2_sha\d{1,3}\$\d+\$[^\s:\"']{20,128}",
        "$",
        test=is_given,
    ),
    "product_key": sign(
        r"\b(?:[A-Z0-9]{5}-){4}[A-Z0-9]{5}\b(?!-)|\b(?:\d{6}-){7}\d{6}\b",
        "-",
        test=lambda text: any(map(str.isdigit, text)) and is_given(text),
        trait=_DASHED,
    ),
    "dsn_key": sign(
        r"://(?P<it>[0-9a-f]{32}(?::[0-9a-f]{32})?)@[\w.-]{0,80}", "@", trait=re.compile(r"://[0-9a-f]{32}")
    ),
    "stellar_seed": sign(r"S(?<!\w.)[A-Z2-7]{55}(?!\w)", trait=LONG_TOKEN, test=lambda text: not text.isalpha()),
    "terraform_token": sign(r"\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,}", trait=LONG_TOKEN),
    "private_key_material": sign(
        r"-----? ?BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)? ?-----?(?:(?:[^-]|-(?!---))+-----? ?END (?:[A-Z0-9]+ "
        r")*PRIVATE KEY(?: BLOCK)? ?-----?|(?:(?:\s|\\+[nr]?|>|[\"'+,]){0,8}(?:(?:Proc-Type|DEK-Info|Version|Comment): "
        r"[^\n\\]{1,60}|[A-Za-z0-9+/=]{16,}+))*(?:(?:\s|\\+[nr]?|>){1,8}[A-Za-z0-9+/]{1,15}={1,2})?)"
        r"|(?<![A-Za-z0-9+/=])(?:[A-Za-z0-9+/=]{16,128}+(?:\s|\\+[nr]?|>){1,6}+){1,60}+-----END (?:[A-Z0-9]+ )*PRIVATE "
        r"KEY(?: BLOCK)?-----|PuTTY-User-Key-File-\d: (?:[^\n]*\n){1,40}?Private-Lines: "
        r"\d+(?:\r?\n[A-Za-z0-9+/=]{16,})*",
        "PRIVATE KEY|PuTTY-User",
    ),
    "url_password": sign(
        r"\b[A-Za-z][A-Za-z0-9+]{1,20}://[^\s:/@]{0,64}:(?P<it>(?!\d{1,5}/)[^\s@\"'<>]{3,256}(?:@[^\s@/\"'<>]{1,64})?)"
        r"@(?=[\w.\[-])",
        "://",
        test=is_given,
    ),
    "jwt_token": sign(
        r"\beyJ[A-Za-z0-9_-]{8,2048}+\.eyJ[A-Za-z0-9_-]{8,16384}+(?:\.[A-Za-z0-9_-]{8,})?"
        r"|\beyJ[A-Za-z0-9_-]{16,2048}+(?:\.[A-Za-z0-9_-]{0,16384}+){4}",
        "eyJ",
    ),
}
_IBANS = {  # letters and digits after the country and the check digits
    11: "NO", 12: "BE", 14: "DK|FI|FO|GL|NL|SD", 15: "MK|SI", 16: "AT|BA|EE|KZ|LT|LU|MN|XK", 17: "CH|CR|HR|LI|LV",
    18: "BG|BH|DE|GB|GE|IE|ME|RS|VA", 19: "AE|GI|IL|IQ|OM|SO|TL", 20: "AD|CZ|ES|MD|PK|RO|SA|SE|SK|TN|VG",
    21: "LY|PT|ST", 22: "IS|TR", 23: "BI|DJ|FR|GR|IT|MC|MR|SM", 24: "AL|AZ|BY|CY|DO|GT|HU|LB|NI|PL|SV",
    25: "BR|EG|PS|QA|UA", 26: "JO|KW|MU|YE", 27: "MT|SC", 28: "LC", 29: "RU",
}  # fmt: skip
_IBAN = "|".join(rf"(?:{which})\d\d(?:[ .-]?[A-Z0-9]){{{length}}}" for length, which in _IBANS.items())
PERSONAL: Mapping[str, Sign] = {
    "email": sign(
        r"\b[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b",
        "@",
        test=_is_somebodys,
        trait=_AT_DOMAIN,
    ),
    "phone": sign(r"\+(?<![\w+.)].)[1-9](?:[ ./-]{0,3}\(?\d\)?){7,14}(?!\w)", "+", test=_is_phone),
    "social_security_number": sign(
        r"[0-8](?<![\d-].)\d\d(?<!000)(?<!666)-(?!00)\d{2}-(?!0000)\d{4}(?![\d-])",
        "-",
        trait=re.compile(r"-[0-9]{2}-[0-9]{4}"),
    ),
    "card_number": sign(
        r"[2-6](?<![\d.-].)(?:(?<=4)\d{3}|(?<=5)[1-5]\d{2}|(?<=6)011|(?<=6)5\d{2}|(?<=2)(?:22[1-9]|2[3-9]\d|[3-6]\d\d"
        r"|7[01]\d|720))([ ./-]?)\d{4}\1\d{4}\1\d{4}(?![\d-]|\.(?!0(?!\d))\d)|3(?<![\d.-].)[47]\d{2}([ "
        r"./-]?)\d{6}\2\d{5}(?![\d-]|\.(?!0(?!\d))\d)",
        test=luhn,
        gate="digits",
        trait=_LONG_NUMBER,
    ),
    "bank_account": sign(rf"(?<!\w)(?:{_IBAN})(?![A-Za-z0-9])", test=_mod97, gate="digits", trait=_COUNTRY),
}
_FOREIGN_KEYS = (
    r"(?:api|secret)[ -]?(?:schlüssel|sleutel|nyckel|nøgle|nøkkel|klíč|kľúč|anahtar\w{0,3}|kulcs|avain|ključ|cheie)"
    r"|(?:cl[ée]|chiave|klíč|kľúč|khóa|kunci|cheia?|ključ|clave|chave)(?: [a-zé]{1,8}){0,2}[ '](?:api|secr?[eè]t[ao]?)"
)
_NAMES = (
    r"api[_ -]?key|apikey|(?:access|auth|account|private|shared|signing|encryption|master|subscription|license|secret"
    r"|service|client|storage|session|consumer|application|app|admin|deploy|webhook|user|root|write|read|ingest"
    r"|publish)[_ -]?key|secret|token|credential|jeton|clave (?:de )?api|chave (?:de )?api|schlüssel|klucz api|bearer"
    r"|x-auth"
    rf"|auth_?code|sas|psk|{_FOREIGN_KEYS}"
)
PASSWORDS = (  # each begins with a letter, so that a search skips to it
    r"passw(?:or)?[dt]e?|passphrase|passcode|pass(?:(?<![a-z]pass)|(?<=dbpass)|(?<=(?:user|root|mail|smtp|auth|wifi"
    r"|test)pass)|(?<=(?:admin|store|redis|proxy|login)pass)|(?<=(?:key|sql|ftp|ssh|new|old)pass)|(?<=requirepass))\b"
    r"|pwd?(?<![a-z]pw)(?<![a-z]pwd)\b|mot de passe|mdp\b|contrase[nñ][ay]|senha|palavra[ -]passe|parol|kennwort"
    r"|zugangscode|wachtwoord|hasł|haslo|hesl[aeou]|l[oö]sen(?:ord(?:et)?)?\b|adgangskode|kodeord|passord|salasan|sifre"
    r"|şifre|jelsz[oó]|lozink|geslo|kata sandi(?:nya)?|mat khau|mật khẩu|slaptažodis|parool|clave\b|masterauth"
    r"|securestring|jelszav|salasõna|parole|lykilorð|contrasinal|kata laluan|nenosiri|pasahitz"
)
_OPENINGS = """
pass pw login logg_inn cred mot_de_pass mdp contrase senha palavra parol parool kennwort zugangs wachtwoord hasł haslo
hesl lösen losen adgangskode kodeord salasan sifre şifre jelsz lozink geslo kata_ mat_khau mật_khẩu slaptaž clave
masterauth securestring lykilorð contrasinal nenosiri pasahitz salasõna identifiant zaloguj inlogg парол лозинк гасло
κωδικ συνθημ كلم رمز عبور باسورد گذر پاس סיסמ पासव कूटश รหัส পাস கடவு 密 口令 パス 暗証 合言 비번 비밀 암호 패스
"""
OPENINGS = tuple(opening.replace("_", " ") for opening in _OPENINGS.split())  # of all words for passwords
NEAR_OPENINGS = tuple(filter(str.isascii, OPENINGS))
_CALLED = (
    "mdp|contraseña|contrasena|senha|parola|parolă|kennwort|zugangscode|wachtwoord|hasło|haslo|heslo|lösenord"
    "|lösenordet|adgangskode|adgangskoden|kodeord|salasana|sifre|şifre|şifresi|jelszó|jelszo|lozinka|geslo|sandi|khau"
    "|khẩu|parool|clave"
)
FAR = (  # scripts whose words are not told from what follows by spaces
    "парол[ьяюе]|паролем|парола|کلمه عبور|باسورد|رمز من|비번|パス(?=[は:])|รหัสไวไฟ|лозинка|κωδικ(?:ός|ό|οί)(?: "
    "πρόσβασης)?|συνθηματικό|密码|密碼|口令|パスワード|暗証番号|合言葉|비밀번호|암호|패스워드|كلم[ةه] (?:المرور|السر)"
    "|رمز عبور|گذرواژه|סיסמ[האת]|पासवर्ड|कूटशब्द|รหัสผ่าน|পাসওয়ার্ড|api密钥|密钥|令牌|apiキー|トークン|کا پاس ورڈ"
    "|پاس ورڈ|கடவுச்சொல்|пароли|гасло|api 키|토큰|المفتاح السري|api कुंजी|คีย์ api|κλειδί api|api ключ(?= )|токен"
    "|ключ api|api[- ]ключ|секретный ключ|מפתח api|مفتاح api|رمز api"
)
_END = r"(?<![.,;:!?)\]}\"'`])"
_TECHNICAL = re.compile(
    r"(?i)sha-?\d|oauth|base-?\d|utf|md5|crypt|argon|pbkdf|hmac|\baes|\brsa|https?:|ipv|win\d|tls|ssl|k8s|ec2|i18n"
    r"|2fa|mfa|sql|mongo|redis|saml|wpa\d|wep\d|^v\d|^\d+(?:st|nd|rd|th)$|unicode|ascii|html|ldap"
)
NO_KEY = (
    r"(?:cache|sort|partition|primary|foreign|public|pub|s3|object|routing|idempotency|dedup\w*|host|lookup|hash|map"
    r"|dict|row|index|group|shard|commit|sha\d*|next|prev\w*|page|cursor|continuation|sync|event|message|trace|build"
    r"|cancel\w*|csrf|md5\w*|etag|registry|finger\w*|ssh-\w+)[ _.-]?"
)
ASSIGNED: Mapping[str, Sign] = {
    "assigned_secret": sign(
        rf"(?:{_NAMES})[\w-]{{0,24}}[\"'`*\])\\]{{0,4}}\s{{0,4}}"
        r"(?:[:=|]{1,2}>?|>(?=[^\s<])|→|->|,(?=\s?[\"'])|\b(?:is|are|was|ist|lautet|est|este|es|é|è|är|er|jest|je|to"
        r"|:)\b:?|\b(?:has been |was |is )?(?:set |changed |reset )?to\b)\s{0,4}(?:[brfu@$]{1,2}(?=[\"'])"
        r"|base64:)?[\"'`*\\]{0,4}(?P<it>(?<=[\"'`])[^\s\"'`<>\\]{6,512}(?=[\"'`])|[^\s\"'`,;|<>&\\]{6,512})",
        "secret|token|key|credential|auth",
        words="jeton|schlüssel|sas|psk|clave|chave|klucz|sleutel|nyckel|nøgle|nøkkel|klíč|kľúč|anahtar|anahtarı|kulcs|avain"
        "|ključ|clé|cle|chiave|khóa|kunci|cheie|cheia",
        test=is_password,
        any_case=True,
    ),
    "password": sign(
        rf"(?:{PASSWORDS})[\w-]{{0,24}}[\"'`*\])\\]{{0,4}}(?:\s(?:in )?(?:hex|base-?64|b64|encoded)"
        rf"|\s\([^()\n]{{1,30}}\)|\s(?:for|of|to|at|on|für|fur|vom|von|zum|de|du|del|do|da|pour|para|per"
        r"|voor|van|do|dla|till|til|for|untuk|cho|icin|için)\s[^\n:=]{1,40}?)?\s{0,4}"
        r"(?:[:=|]{1,2}>?\s{0,8}|>(?=[^\s<])|(?:→|->|(?<!\])[,(](?=\s?[bru@]?[\"'])"
        r"|(?<![\"'])\s(?:(?:is|ist|est|es|é|è|was"
        r"|lautet) )?(?=[\"']))\s{0,8})(?:[brfu@$]{1,2}(?=[\"']))?[\"'`*\\]{0,4}\s?"
        r"(?P<it>(?<=[\"'`])[^\"'`\n<>\\]{4,128}(?=[\"'`\\])|[^\s\"'`,;|<>\\][^\s\"'`,;|<>&\\]{3,511})",
        "pass|pw|kennwort|wachtwoord|lösenord",
        words=_CALLED,
        test=is_told_password,
        any_case=True,
    ),
    "value_of": sign(
        rf"(?:key|name|id|label|title|field|variable|setting)[\"']?\s?[:=]?\s?[\"']?[\w.-]{{0,32}}(?:{PASSWORDS}|{FAR}"
        rf"|{_NAMES}|_pat\b)[\w.-]{{0,16}}[\"']?[\s,;{{]{{0,8}}(?:type\s{{0,4}}=\s?\w{{1,12}}\s{{1,8}})?[\"']?"
        r"(?:value|default|content)[\"']?\s{0,4}[:=]\s{0,2}[\"']?(?P<it>[^\s\"'`,;|<>]{4,512})",
        "pass|pw|secret|token|api|_pat",
        words=_CALLED,
        test=is_told_password,
        any_case=True,
        trait=re.compile(r"(?:[vV]alue|default|content)[\"']?\s{0,4}[:=]"),
    ),
    "commented_password": sign(
        r"\([\"'](?P<it>[^\"'\n]{5,64})[\"']\)[^\n]{0,6}(?:#|//)[^\n]{0,24}?(?:passw|pwd)",
        "passw|pwd",
        test=is_given,
        any_case=True,
    ),
    "use_password": sign(
        r"\b(?:use|enter|type|try|with|mit|avec|con|com|and)\s[\"'`]?(?P<it>[^\s\"'`<>]{5,63})[\"'`]? (?:to (?:log"
        r"|sign|get) ?in|(?:einlogg|anmeld)|to (?:unlock|decrypt|open|connect|authenticate)"
        rf"|(?:when|if|as|at|for|in|into)\b[^\n.]{{0,30}}?(?:{PASSWORDS}))",
        "passw|passph|passc|to log in|to login|to sign in|to get in|to unlock|to decrypt",
        words="einloggen|anmelden",
        test=lambda text: is_prose_password(text) or is_phrase(text),
        any_case=True,
    ),
    "login_pair": sign(
        r"\b(?:(?:login|log in|sign in|credentials?|creds|zugangsdaten|zugang|identifiants?|credenciales|credenciais"
        r"|credenziali|acc(?:ount|t)?|wi-?fi|wlan|ssid)\b[^\n]{0,24}?(?:[:\s])[\w.@-]{2,40}|u(?:ser)?[:=] ?\S{2,40}(?= "
        r"p))(?:\s?/\s?|:|\sand\s|\s-\s|,\s?(?:key|code):?\s|\s\|\s|\sp[:=] ?)[\"'`]?(?P<it>[^\s\"'`<>,;]{6,63})",
        "log in|sign in|wi-fi|u: |u=",
        words="login|credentials|credential|creds|zugangsdaten|zugang|identifiant|identifiants|credenciales|credenciais"
        "|credenziali|wifi|wlan|ssid|acc|acct",
        test=lambda text: _is_pair_password(text),
        any_case=True,
    ),
    "mail_pair": sign(
        r"@[\w-]{1,40}\.[a-z.]{2,12}\s?[:/|]\s?(?P<it>[^\s\"'`<>,;]{6,63})",
        "@",
        test=lambda text: _is_pair_password(text),
        any_case=True,
    ),
    "host_password": sign(
        r"(?<![\w/.@-])[a-z][\w.-]{1,31}:(?P<it>[^\s:@/\"'`<>()]{4,64})@(?=(?:\d{1,3}(?:\.\d{1,3}){3}|localhost"
        r"|[a-z][\w-]{0,62}(?:\.[\w-]{1,63}){1,5})\b)",
        "@",
        test=is_password,
        any_case=True,
        trait=re.compile(r":[^\s:@/]{4,64}@"),
    ),
    "pgpass": sign(
        r"(?<![\w/.:-])[\w.*-]{1,64}:(?:\d{2,5}|\*):[\w*-]{1,64}:[\w*.-]{1,64}:(?P<it>[^\s:]{4,64})",
        ":",
        test=is_given,
        trait=re.compile(r":(?:[0-9]{2,5}|\*):[\w*-]{1,64}:"),
    ),
    "wifi_key": sign(
        r"\b(?:(?:code|cl[ée]|clave|chave|chiave|sandi|key|schlüssel"
        r"|pass)\s(?:d[ueol]l?\s)?wi-?fi(?:\sd[^\n:=]{1,24}?)?|(?:wi-?fi|wlan)[ -]?(?:key|code|schlüssel"
        r"|pass)(?:\s(?:for|of|at|in|für|im)\s[^\n:=]{1,24}?)?"
        r"|(?:wi-?fi|wlan|ssid)\b[^\n]{2,48}?[\s,](?:key|code|schlüssel|clé|clave|chave|chiave|psk))\s?(?:is|est|es|é"
        r"|è|ist|:|=|(?<=el)|(?<=ey))\s{0,3}[\"'`]?(?P<it>[^\s\"'`<>]{5,63})",
        words="wifi|wlan|fi|ssid",
        test=lambda text: _is_pair_password(text) or (text.isdigit() and len(text) >= 8),
        any_case=True,
    ),
    "device_password": sign(
        r"(?<!\w)(?:enable (?:secret|password)(?: \d)?|snmp-server community|key-string(?: \d)?|pre-shared-key(?: "
        r"\w{5,9})?|(?:password|secret) [05]|wpa2?(?:-psk)?:|psk:?|unlock code:?|password 7|iwconfig \w{2,12} key"
        r"|option key|usermod -p|security answer:|rclone obscure|-u [\w.-]{1,32}%|jdbc:oracle:\w{3,4}:[\w.]{1,32}/"
        r"|kinit [\w@.-]{1,40} <<<|net use \w: \S{1,60}|net user [\w.-]{1,32}|community(?: string)?:"
        r"|snmp\w{3,8}\b[^\n]{0,60}? -[ax]|openssl enc\b[^\n]{0,60}? -(?:k|pass)|az\s[^\n]{0,60}? -p) "
        r"?[\"']?(?P<it>(?![-/\\])[^\s\"'|]{4,64})",
        "enable secret|enable password|snmp-server|community|key-string|shared-key|unlock code|net use|password 7"
        "|password 0|option key|security answer|az sql|az login",
        words="wpa|psk|rclone|smbclient|oracle|kinit|snmpwalk|snmpget|snmpbulkwalk|openssl|iwconfig|usermod",
        test=lambda text: is_password(text) or is_phrase(text),
        any_case=True,
    ),
    "far_password": sign(
        rf"(?:{FAR})[^\x21-\x7e\n]{{0,12}}[:=]{{1,2}}>?\s{{0,3}}[\"'`]{{0,3}}(?P<it>[\x21-\x7e]{{3,127}}{_END}[-!?]?)",
        test=lambda text: is_told_password(text) or bool(re.fullmatch(r"[A-Za-z]{8,}[-_!?]?", text)),
        gate="far",
        any_case=True,
    ),
    "flag_secret": sign(
        rf"--?[\w-]{{0,20}}(?:{_NAMES}|passw(?:or)?d|passphrase|pwd|pass|key)[\w-]{{0,10}}[ "
        rf"=][\"']?(?P<it>[^\s\"'`,;|-][^\s\"'`,;|]{{4,511}})",
        words="password|passwd|passphrase|pwd|pass|key|secret|token|apikey|credential|credentials|jeton|psk|sas",
        test=is_told_password,
        any_case=True,
        trait=re.compile(r"--?[A-Za-z]"),
    ),
    "command_password": sign(
        r"\b(?:curl|wget|httpie|xh)\b[^\n|]{0,120}?\s(?:-u|--user|-a|--auth)[ "
        r"=]?[\"']?[^\s:\"']{1,64}:(?P<it>[^\s\"'@]{3,128})",
        words="curl|wget|httpie|xh",
        test=is_given,
    ),
    "option_password": sign(
        r"\b(?:mysql\w*|mariadb\w*|sshpass|docker login|podman login|helm registry login|mongo\w*|zip|7za?|unzip"
        r"|redis-cli|ldap\w+|sqlcmd|plink|pscp|smbclient|openssl|keytool|expect|xfreerdp|htpasswd|az login|npm login"
        r"|svn|isql|bcp|net use|psexec|ansible\w*|gpg|borg|restic|vncpasswd|kinit|mosquitto_\w+|amqp\w*|cqlsh"
        r"|clickhouse\w*|vault login|snowsql|impala-shell|beeline)\b[^\n|]{0,120}?\s[-/](?:p|P|w|a|pw|pass(?:word)?"
        r"|storepass|keypass|passin pass)[ :=]{0,2}[\"']?(?P<it>(?!-)[^\s\"'|]{4,128})",
        words="mysql|mysqldump|mysqladmin|mariadb|sshpass|login|mongo|mongosh|mongodump|zip|7z|7za|z|za|unzip"
        "|redis|ldapsearch|ldapadd|sqlcmd|plink|pscp|smbclient|openssl|keytool|xfreerdp|htpasswd|svn|isql|bcp|net"
        "|psexec|ansible|gpg|borg|restic|kinit|mosquitto|cqlsh|clickhouse|vault|snowsql|impala|beeline",
        test=lambda text: is_given(text) and not text.isdigit() and not _CODE.search(text),
    ),
    "sql_password": sign(
        r"(?:\bidentified\s+(?:with\s+\w+\s+)?(?:by|as)\s+(?:password\s+)?"
        r"|= ?password\s?\(\s?)[\"'](?P<it>[^\"'\n]{3,128})",
        "identified|password",
        test=is_given,
        any_case=True,
    ),
    "go_password": sign(r"\b[\w.-]{1,40}:(?P<it>[^\s:@/\"']{3,64})@(?:tcp|unix|udp)\(", "@", test=is_given),
    "known_user": sign(
        r"(?<![\w.])(?:root|admin|administrator|postgres|sa|guest|ubuntu|oracle)(?::\s?|\s/\s)"
        r"(?P<it>(?=\S{0,30}\d\d)(?=\S{0,30}[a-z]{3})[^\s\"'`,;|<>:/@()\[\]]{7,40})(?![^\s.,;)\"'])",
        words="root|admin|administrator|postgres|sa|guest|ubuntu|oracle",
        test=lambda text: _is_pair_password(text),
        any_case=True,
    ),
    "bearer_token": sign(
        r"\b(?:bearer|basic(?: auth)?:?|token|apikey|api-key|ssws|geniekey|splunk"
        r"|jwt)\s{1,4}(?P<it>[a-z0-9._~+/:-]{12,}={0,2})",
        words="bearer|basic|token|apikey|key|ssws|geniekey|splunk|jwt",
        test=lambda text: (
            is_password(text) and len(text) >= 16 and (sum(map(str.isdigit, text)) >= 2 or len(text) >= 24)
        ),
        any_case=True,
    ),
    "cookie": sign(
        r"(?:sess(?:ion)?(?:[_-]?id|[_-]?token)?|sid|auth[\w-]{0,12}|remember_\w{1,12}|csrf\w{0,12}|xsrf[\w-]{0,12}|jwt"
        r"|token|appid|response|sig|signature|verifier|secret)=(?P<it>[^\s\"'`,;|<>&\\]{12,4096})",
        trait=re.compile(r"=[^\s\"'`,;|<>&]{12}"),
        test=lambda text: is_password(text) and sum(map(str.isdigit, text)) >= (1 if len(text) >= 16 else 2),
        any_case=True,
    ),
    "paired_password": sign(
        r"\b(?:auth|login|credentials?|networkcredential|connect|authenticate|basicauth|httpbasicauth|sign_?in"
        r"|wifi\.begin"
        r"|logon|usernamepasswordcredentials"
        r"|userpass)\w{0,12}\s?[=(]{1,2}\s?\(?\s?[\"'][^\"'\n]{1,64}[\"'],\s?[\"'](?P<it>[^\"'\n]{4,128})[\"']",
        words="begin|auth|login|credential|credentials|networkcredential|connect|authenticate|basicauth|httpbasicauth"
        "|signin|logon|usernamepasswordcredentials|userpass",
        test=is_given,
        any_case=True,
    ),
    "call_password": sign(  # the password is the last of two, three or four arguments
        r"(?<![a-z])(?:(?:authenticate|(?:set_?)?basic_?auth)\(|(?:pdo|mysqli(?:_connect)?"
        r"|getconnection)\((?:[^,()\n]{1,80},){1}"
        r"|real_connect\((?:[^,()\n]{1,80},){2})[^,()\n]{1,80},\s?(?:some\()?[\"']?(?P<it>(?!\$)[^\s\"',()]{4,128})",
        "authenticate(|basicauth(|basic_auth(|pdo(|mysqli(|mysqli_connect(|getconnection(|real_connect(",
        test=lambda text: is_prose_password(text, is_stated=True) or is_phrase(text),
        any_case=True,
    ),
    "security_answer": sign(
        r"\b(?:security (?:question|answer|word)|my secret (?:word|answer)"
        r"|sicherheitsfrage)\b[^\n]{0,60}?(?:\b(?:answer|antwort)"
        r"\b[^\n\w]{1,4}|\b(?:is|was|ist) (?=\S{3,40}\s{0,3}(?:\n|$)))(?P<it>[^\s\"'<>,;:?]{3,40})(?<![.!])",
        words="security|secret|sicherheitsfrage",
        test=lambda text: is_given(text) and text.lower() not in _NO_PASSWORD,
        any_case=True,
    ),
    "authenticator_key": sign(
        r"\b(?i:[ht]otp\(|(?:2fa|mfa|totp|setup|scan|authenticator)\b[^\n]{0,32}?(?:key|secret|seed)(?: is)?\W)\W{0,3}"
        r"(?P<it>[A-Z2-7]{16,64})\b",
        words="totp|hotp|fa|mfa|setup|scan|authenticator",
    ),
    "recovery_codes": sign(
        r"(?:recovery|backup|rescue|scratch|emergency|wiederherstellungs|notfall|secours|recuperación"
        r"|recuperação)[ -]?(?:codes?|key)\b[^\n]{0,16}?[:\s]"
        r"(?P<it>(?:[a-z0-9]{4,8}-[a-z0-9]{4,8}(?:-[a-z0-9]{4,8}){0,6}[\s,;]{0,3}){1,16}|\d{4} \d{4}\b"
        r"|(?=[a-z]{1,14}\d|\d{1,14}[a-z])[a-z0-9]{8,16}\b)",
        words="recovery|backup|rescue|scratch|emergency|secours|recuperación|recuperação|wiederherstellungscode"
        "|wiederherstellungscodes|notfallcode|notfallcodes",
        test=lambda text: any(map(str.isdigit, text)),
        any_case=True,
    ),
    "app_password": sign(
        r"\bapp(?:[- ]specific)?[- ]?(?:password"
        r"|passwort)\b[^\n]{0,24}?[:\s](?P<it>[a-z]{4}([ -])[a-z]{4}\2[a-z]{4}\2[a-z]{4})\b",
        "passw",
        any_case=True,
    ),
    "license_key": sign(
        r"\b(?:licen[cs]e|lizenz|licencia|licenza|product|produkt|activation|aktivierung|serial|registration)\w{0,12}[ "
        r"-]?(?:key|code|schlüssel|number|no)?\W{1,3}(?:is\s)?(?P<it>[a-z0-9]{4,6}(?:-[a-z0-9]{4,6}){2,7})\b",
        words="license|licence|lizenz|lizenzschlüssel|licencia|licenza|product|produkt|produktschlüssel|activation|aktivierungscode|serial|registration",
        test=lambda text: sum(map(str.isdigit, text)) >= 2 and any(map(str.isalpha, text)) and is_given(text),
        any_case=True,
        trait=_DASHED,
    ),
    "link_token": sign(
        r"/(?:reset|invite|verify|confirm|magic|activate|recover|join|password|unsubscribe|hooks?|webhooks?|key|token"
        r"|auth)[\w-]{0,24}/(?:[\w-]{1,40}/){0,3}(?P<it>[\w-]{16,128})(?![\w/.-])",
        "://",
        test=lambda text: is_strong(text),
        trait=LONG_TOKEN,
    ),
    "form_value": sign(
        r"\bvalue=[\"'](?P<it>[^\"'\n]{3,128})[\"'][^<>]{0,160}?type=[\"']?password",
        words="password",
        test=is_given,
        any_case=True,
    ),
    "wifi_password": sign(r"WIFI:(?:[^;\n]{0,80};){1,4}?P:(?P<it>[^;\n]{3,64});", "WIFI:", test=is_given),
    "piped_password": sign(
        r"\becho\s+(?:-n\s+)?[\"']?(?:[\w.-]{1,32}:)?(?P<it>[^\s\"'|]{4,128})[\"']?\s*\|\s*(?:sudo|docker login"
        r"|podman login|passwd|chpasswd|su\b|gh auth|kinit|cryptsetup|openssl|gpg)",
        words="echo",
        test=is_given,
    ),
    "oauth_code": sign(
        r"[?&](?:code|ticket|nonce|assertion|samlresponse)=(?P<it>[^\s\"'`&#<>]{12,512})",
        "code=|ticket=|assertion=|samlresponse=",
        test=lambda text: is_password(text) and sum(map(str.isdigit, text)) >= 2,
        any_case=True,
    ),
    "seed_phrase": sign(  # one kind of divider between all words
        r"(?<![a-z])(?<![a-z][ ,-])[a-z]{3,8}( |, ?|-|\n)(?:[a-z]{3,8}\1){10,22}[a-z]{3,8}(?![a-z]|[ ,-][a-z])",
        trait=re.compile(r"(?:^|[:\n\"'`(>.?!]|[^\x00-\x7f])[ \n]?(?:[a-z]{3,8}[ ,\n-]{1,2}){11}"),
        test=lambda text: _is_seed(text),
    ),
    "numbered_seed": sign(r"\b1[.):]\s?[a-z]{3,8}(?:[\s,]{1,3}\d{1,2}[.):]\s?[a-z]{3,8}){11,23}", "2.|2)|2:"),
    "told_seed": sign(
        r"\b(?:seed|recovery|mnemonic|backup|wallet|secret|ledger|trezor|metamask|(?:12|24) \w{4,8}|frase|phrase"
        r"|semilla|wiederherstellungs\w{0,8})[^\n]{0,60}?(?:[:=\n\"]|\b(?:is|are|ist|sind|est|es|sont|são|é|è|to"
        r"|words|entered)\b)\s{0,3}[\"'`]?(?P<it>(?:[a-z]{3,8}[ ,\n-]{1,2}){11,23}[a-z]{3,8})\b",
        words="seed|phrase|frase|semilla|mnemonic|recovery|ledger|trezor|metamask|words|wallet",
        any_case=True,
    ),
    "passphrase_line": sign(
        r"pass ?phrase\s?[:=]\s?(?P<it>[^\W\d_]+(?: [^\W\d_]+){2,9})\s{0,3}(?=\n|$)",
        words="passphrase|phrase",
        test=is_told_password,
        any_case=True,
    ),
    "random_string": sign(
        r"[A-Za-z0-9+/_-](?<![A-Za-z0-9+/_=-].)[A-Za-z0-9+/_-]{31,}+={0,2}(?![A-Za-z0-9+/_-])",
        test=_is_random,
        trait=LONG_TOKEN,
        unless=r"https?://[^\s\"'<>?]*|[?&](?:id|v|list|h|ref|utm_\w+|page_?token|cursor|version|rev|commit|sha\d*"
        r"|\w*hash)=|(?:etag|hash|digest|checksum|integrity|cid|fingerprint|h1|sha-?\d+|ssh-(?:rsa|ed25519)|trace|span"
        r"|request|correlation)[\w-]{0,8}\W{1,3}",
    ),
}


def is_strong(text: str) -> bool:
    """Whether what stands beside a word for a key is one: long, random, and neither a name nor a path."""
    if not is_given(text) or NO_SECRET.match(text) or _CODE.search(text) or text.count("/") > max(1, len(text) // 24):
        return False
    digits, letters = sum(map(str.isdigit, text)), sum(map(str.isalpha, text))
    words = sum(
        len(word) for word in re.findall(r"[A-Z]?[a-z]{4,}", text) if not re.search(r"[b-df-hj-np-tv-xz]{4}", word)
    )
    is_dated = re.search(r"(?:19|20)\d\d-?[01]\d-?[0-3]\d", text)
    return (
        (digits >= 3 or (digits >= 1 and len(re.findall(r"[a-z][A-Z]", text)) >= 4))
        and letters >= 3
        and words < len(text) // 2
        and not is_dated
        and len(_TURN.findall(text)) >= len(text) / 6
    )


_PHRASE = re.compile(r"[a-z]{3,9}(?:[-_.+][a-z]{3,9}){3,7}\d{0,4}[!?]?")
NAMING = re.compile(
    r"pass|pwd|user|name|(?<!mon)(?<!hoc)(?<!tur)(?<!don)key|hash|file|form|input|reset|login|auth|token|secret|text"
    r"|type|field|cred|error|exception|ident|config|\bthe\b|\band\b|\bfor\b"
)


def is_phrase(text: str) -> bool:
    """Four words or more in one, as password managers make them, and not the name of a field or a file."""
    return bool(_PHRASE.fullmatch(text)) and not NAMING.search(text)


def is_random_word(text: str) -> bool:
    """Letters only, but in a mixture of cases that no name has."""
    if (
        not is_given(text)
        or not re.sub("[_-]", "", text).isalpha()
        or len(text) < 8
        or len(re.findall(r"[a-z][A-Z]", text)) < 2
    ):
        return False
    spoken = sum(len(run) for run in re.findall(r"[a-z]{3,}", text) if re.search(r"[aeiou]", run))
    return spoken <= 0.45 * len(text)


def _is_pair_password(text: str) -> bool:
    """What stands after a user's name: letters and digits or signs, and not a path, a date or a technical word."""
    return (
        is_password(text)
        and not _TECHNICAL.search(text)
        and not re.search(r"[/\\]|\.\w{2,4}$|^[\d.:-]+\w{0,2}$|^\W", text)
    )


_COMMON_WORDS = (
    "the and for with was are not but from have has had were will would your our his her its can all any into than "
    "these those which been each them"
)
_COMMON = frozenset(_COMMON_WORDS.split())


def _is_seed(text: str) -> bool:
    """Whether it is a recovery phrase: as many words as BIP 39 has, none of them a word that joins others."""
    words = re.split(r"[ ,\n-]+", text)
    return len(words) in (12, 15, 18, 21, 24) and not _COMMON & set(words) and len(set(words)) >= len(words) * 2 // 3


_WORD_WITH_NUMBER = re.compile(  # or the name of a variable, or what is assigned to one
    r"[A-Za-z]{1,4}-?\d{1,4}|[^\W\d_]+\d|\d+[a-z]{1,4}|[A-Z]+(?:-\d+)+|[A-Za-z]+(?:_[A-Za-z]+\d?)+|\w+=[\w\"'./<$-]\S*"
)


def is_prose_password(text: str, is_stated: bool = False) -> bool:
    """In prose a password shows itself by digits or signs among its letters, beyond what words and dates have; where
    it is said that this is one, a word and a number will do."""
    is_free = len(text) >= 6 and (is_stated or len(_TURN.findall(text)) >= 4) and not NAMING.search(text.lower())
    is_plain = (not is_free and _WORD_WITH_NUMBER.fullmatch(text)) or re.fullmatch(
        r"[^\W\d_]+(?:['’-][^\W\d_]+)*[?!.]*|[\d.,:/-]+\w{0,3}|v?\d+(?:\.[\w-]+)*\w{0,2}|[\w.-]+\.[a-z]\w{1,3}"
        r"|[a-z]+\d+(?:\.\d+)+|[a-z_]+|[\w.+-]+@[\w-]+\.[\w.-]+|[a-z]+(?:_[a-z0-9]+){3,}"
        r"|--?[\w-]+|(?-i:[a-z_]+(?:[A-Z][a-z]+)*)=[\w\"'./<$-]\S*|[(\[{<\"'/.@-]+[\w.]+\W*|~?/.*|\d+e-\d+",
        text,
        re.IGNORECASE,
    )
    digits = len(re.findall(r"\d", text))
    has_sign = (
        digits >= 2 - is_stated
        or any(letter in "!#$%^&*?~@" for letter in text)
        or (digits and len(_TURN.findall(text)) >= 4)
    )
    return not is_plain and bool(has_sign) and not _TECHNICAL.search(text) and is_password(text)


_DOT = (
    r"\s{0,3}(?:[\[({<]\s?(?:dot|punkt|point|punto|ponto|kropka|tečka|nokta|точка|\.)\s?[\])}>]"
    r"|\.|(?<=\s)(?:dot|punkt|point|punto|ponto|kropka|nokta|точка|piste|stip)(?=\s)|_dot_|-dot-)\s{0,3}"
)
_AT = (
    r"(?:\s{0,3}[\[({<]\s?(?:at|ät|@|arroba|arobase|chiocciola|małpa|malpa|zavináč|собака|kukac|apenstaartje|snabel-?a"
    r"|krøllalfa|et)\s?[\])}>]\s{0,3}|\s{1,3}(?:at|arroba|arobase|chiocciola|małpa|malpa|zavináč|собака|kukac"
    r"|apenstaartje|et)\s{1,3}|_at_|-at-|\s{1,2}@\s{0,2}|@\s{1,2})"
)
_TOLD_AT = re.compile(
    r"[\[({<]\s?(?:at|ät|@|arroba|arobase|chiocciola|ma[łl]pa|zavináč|собака|kukac|apenstaartje|snabel-?a"
    r"|krøllalfa|et|dot|\.)\s?[\])}>]|[_-](?:at|dot)[_-]",
    re.IGNORECASE,
)
_WORDED_AT = re.compile(
    r"(?i)\s(?:at|arroba|arobase|chiocciola|ma[łl]pa|zavináč|собака|kukac|apenstaartje|et|ät)\s|@|[\])}>]|_at_"
)
_TOLD_EMAIL = (
    rf"(?<![\w.+-])[\w.+-]{{1,64}}(?:{_DOT}[\w+-]{{1,40}}){{0,2}}{_AT}"
    rf"[\w-]{{1,63}}(?:{_DOT}[a-z][\w-]{{1,62}}){{1,4}}(?!\w)"
)
WIDE: Mapping[str, Sign] = {  # other forms of what PERSONAL holds
    "extended_phone": sign(
        r"\+(?<![\w+.)].)[1-9](?:[ ./-]{0,3}\(?\d\)?){7,14},? ?(?:ext\.?|x|extension) ?\d{1,6}(?!\w)", "+"
    ),
    "wide_email": sign(
        r"[\w.%+'-]{1,64}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}|\"[^\"\n@]{1,40}\"@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}",
        "@",
        test=_is_somebodys,
        trait=_AT_DOMAIN,
    ),
    "told_email": sign(
        _TOLD_EMAIL,
        "at)|at]|at}|at>|at )|at ]|(@|[@|( @|dot)|[.]|(.)|_at_|-at-|ät)",
        words="arroba|arobase|małpa|malpa|собака|chiocciola|zavináč|kukac|apenstaartje",
        test=lambda text: _is_told_email(text),
        any_case=True,
        trait=_TOLD_AT,
    ),
    "worded_email": sign(
        _TOLD_EMAIL,
        words="dot|punkt|point|punto|ponto|kropka|nokta|точка|piste|stip|tečka|pont",
        test=lambda text: _is_told_email(text),
        any_case=True,
        trait=_WORDED_AT,
    ),
    "spaced_email": sign(
        r"(?<![\w.+-])[\w.+-]{1,64}(?:\s@\s?|@\s)[\w-]{1,63}(?:\s?\.\s?[a-z][\w-]{1,62}){1,4}(?!\w)",
        " @|@ ",
        test=lambda text: _is_told_email(text),
        any_case=True,
    ),
    "profile": sign(
        r"(?:https?://)?(?:(?:www|m|mobile|old|[a-z]{2})\.)?(?<![\w-])(?:linkedin\.com/(?:in|pub)/"
        r"|facebook\.com/(?:profile\.php\?id=)?|fb\.com/|fb\.me/|instagram\.com/|twitter\.com/|x\.com/|tiktok\.com/@"
        r"|t\.me/|telegram\.me/|vk\.com/|ok\.ru/(?:profile/)?|xing\.com/profile/|(?:github|gitlab|bitbucket)\.(?:com"
        r"|org)/(?=[\w.-]+/?(?:[\s\"')>,;!?]|\.?$|\.\s))|medium\.com/@|youtube\.com/(?:@|user/)|reddit\.com/u(?:ser)?/"
        r"|threads\.net/@|bsky\.app/profile/|wa\.me/|keybase\.io/|soundcloud\.com/|pinterest\.\w{2,3}/"
        r"|snapchat\.com/add/|weibo\.com/u?/?|strava\.com/athletes/|about\.me/|orcid\.org/|mastodon\.\w{2,8}/@"
        r"|stackoverflow\.com/users/\d+/|behance\.net/|dribbble\.com/|twitch\.tv/|steamcommunity\.com/(?:id|profiles)/"
        r"|flickr\.com/people/|researchgate\.net/profile/)(?!(?:share|sharer|intent|home|login|pages|groups|hashtag"
        r"|search|features|explore|about|help|jobs|in|p|reel|watch|status|i|settings|marketplace|sponsors|topics|orgs"
        r"|apps|pricing|docs|blog)\b)[\w.%-]{3,60}(?<![.])/?",
        ".com/|.me/|.ru/|.net/|.io/|.org/|.app/|.tv/",
        test=lambda text: not text.endswith((".html", ".php", ".md")),
        any_case=True,
    ),
    "handle": sign(
        r"\b(?:twitter|insta(?:gram)?|telegram|tiktok|snap(?:chat)?|discord|mastodon|threads|bluesky|bsky|handle"
        r"|user ?name|nickname|nick|skype|ig|weibo|wechat|微信号?|line id|github)\b[^\n@\w]{0,6}(?:(?:is|handle"
        r"|account|id|name|ist|est|es|:)\W{1,3}){0,2}(?P<it>@[\w.]{3,30}|[\w.]{2,32}#\d{4})(?![\w@])",
        words="twitter|insta|instagram|telegram|tiktok|snap|snapchat|discord|mastodon|threads|bluesky|bsky|handle"
        "|username|nickname|nick|skype|ig|weibo|wechat|github",
        trait=re.compile(r"@[A-Za-z]|#[0-9]{4}"),
        any_case=True,
    ),
    "coordinates": sign(
        r"(?<![\w.,-])(?<!\d, )[-+]?\d{1,2}\.\d{5,8}°? ?[NS]?[,;] ?[-+]?\d{1,3}\.\d{5,8}°? ?[EWO]?(?![\w.]|, ?-?\d)"
        r"|\b\d{1,2}° ?\d{1,2}['′] ?\d{1,2}(?:[.,]\d+)?[\"″]? ?[NS][,; ]{1,2}\d{1,3}° ?\d{1,2}['′] "
        r"?\d{1,2}(?:[.,]\d+)?[\"″]? ?[EWO]",
        test=lambda text: _is_place_on_earth(text),
        gate="digits",
        trait=re.compile(r"\.[0-9]{5,8}°? ?[NS]?[,;] ?[-+]?[0-9]{1,3}\.[0-9]{5}|[0-9]° ?[0-9]"),
    ),
    "called_coordinates": sign(
        r"(?:gps|location|position|standort|ubicación|ubicacion|localização|posizione|pozycja|poloha|konum"
        r"|координаты|координати|坐标|位置|座標|좌표|위치|geo:|/@|[?&]q=|ll=|loc:|home|live|wohne"
        r"|meet)[^\n\d]{0,24}?(?P<it>[-+]?\d{1,2}\.\d{3,8}°? ?[ns]?[,;] ?[-+]?\d{1,3}\.\d{3,8}°? ?[ewo]?(?![\w.]|, "
        r"?-?\d))",
        test=lambda text: _is_place_on_earth(text),
        any_case=True,
        gate="digits",
        trait=re.compile(r"\.[0-9]{3,8}°? ?[NS]?[,;] ?[-+]?[0-9]{1,3}\.[0-9]{3}"),
    ),
    "told_coordinates": sign(
        r"\b(?:lat(?:itude)?|breite"
        r"|latitud)[\"']?\s?[:=]?\s?(?P<it>[-+]?\d{1,2}\.\d{3,8}[^\d\n]{1,24}[-+]?\d{1,3}\.\d{3,8})",
        words="lat|latitude|breite|latitud",
        any_case=True,
    ),
    "wide_card": sign(
        r"3(?<![\w.-].)(?:0[0-5]|[68]\d)\d([ ./-]?)\d{6}\1\d{4}(?![\w-]|\.\d)|[2-6](?<![\w.-].)(?:(?<=3)5(?:2[89]"
        r"|[3-8]\d)|(?<=6)2\d\d|(?<=6)4[4-9]\d|(?<=5)[06-8]\d\d|(?<=6)[37]\d\d|(?<=2)20[0-4]|(?<=4)\d{3}"
        r"|(?<=5)[1-5]\d\d|(?<=6)(?:011|5\d\d))([ ._/-]{0,2})\d{4}\2\d{4}\2\d{4}(?:\2\d{1,3})?(?![\w-]|\.\d)"
        r"|3(?<![\w.-].)[47]\d\d([ ._/-]{0,2})\d{4}\3\d{4}\3\d{3}(?![\w-]|\.\d)",
        test=luhn,
        gate="digits",
        trait=_LONG_NUMBER,
    ),
    "spaced_card": sign(
        r"[3-6](?<![\w.-].)(?<!\d ..)(?: \d){12,18}(?! ?\d|\w)",
        test=luhn,
        gate="digits",
        trait=re.compile(r"[0-9] [0-9] [0-9] [0-9] [0-9]"),
    ),
    "wide_iban": sign(
        rf"(?<!\w)(?:{_IBAN.lower().replace('a-z0-9', 'a-z0-9')})(?![a-z0-9])".replace("[ .-]", "[ ._/-]"),
        test=lambda text: _mod97(re.sub(r"[_/]", "", text).upper()),
        gate="digits",
        trait=_COUNTRY,
        any_case=True,
    ),
    "ip": sign(
        r"\d(?<![\w.+=~^-].)\d{0,2}(?:\.\d{1,3}){3}(?![\w-]|\.\d)",
        ".",
        trait=re.compile(r"\.\d{1,3}\.\d{1,3}\."),
        test=lambda text: is_public(text),
        unless=r"(?:\bv|version|ver\.?|release[ds]?|build|firmware|update|section|chapter|clause|figure|table|§"
        r"|package|kernel|driver|chrome/|tag|\d[\d.]* (?:to|->|→)|>=|<=|==|@|sdk|app)\W{0,3}",
    ),
    "ipv6": sign(
        r"(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?:/\d{1,3})?(?![\w:])",
        ":",
        trait=re.compile(r":[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:]"),
        test=lambda text: _is_ipv6(text),
        any_case=True,
    ),
    "mac": sign(
        r"(?<![\w:.-])(?:[0-9a-f]{2}([:-]))(?:[0-9a-f]{2}\1){4}[0-9a-f]{2}(?![\w:-])"
        r"|(?<![\w.])[0-9a-f]{4}\.[0-9a-f]{4}\.[0-9a-f]{4}(?![\w.])",
        trait=re.compile(r"[:-][0-9A-Fa-f]{2}[:-][0-9A-Fa-f]{2}[:-]|\.[0-9A-Fa-f]{4}\."),
        test=lambda text: len(set(re.sub(r"\W", "", text))) > 1,
        any_case=True,
    ),
}
_KNOWN_IPS = frozenset(("8.8.8.8", "8.8.4.4", "1.1.1.1", "1.0.0.1", "9.9.9.9", "1.2.3.4", "4.3.2.1", "4.4.4.4"))


def _is_place_on_earth(text: str) -> bool:
    """Two numbers that are a latitude and a longitude, and not two small ones that could be anything."""
    if "°" in text and "'" in text.replace("′", "'"):
        return True
    one, two = (abs(float(number)) for number in re.findall(r"\d+\.\d+", text)[:2])
    return 1 <= one <= 90 and 1 <= two <= 180


def _is_told_email(text: str) -> bool:
    """Words that spell an address: it ends as domains do, and what stands for the at is not only a word."""
    text = text.lower()
    domain = re.sub(rf"{_DOT}", ".", text)
    ending = re.search(r"\.([a-z]{2,12})\W*$", domain)
    is_spelt = re.search(r"@|[\[({<]\s?\w|_at_|-at-", text) or re.search(
        _DOT.replace("|\\.|", "|"), text[len(text) // 3 :]
    )
    return ending is not None and bool(is_spelt) and ending[1] in _ENDINGS and _is_somebodys(domain)


_ENDINGS_WORDS = """
com org net edu gov io dev app info biz me co uk us ca au nz ie za in pk bd de at ch li fr be lu nl es pt it gr cy
mt pl cz sk hu ro bg si hr rs ba mk al se dk no fi is ee lv lt ru ua by kz ge am az tr il ir iq sa ae qa kw eg ma
dz tn ng ke gh cn tw hk jp kr vn th id my sg ph br ar cl mx pe ve ec uy eu asia online site xyz tech ai cloud
email name pro travel mail museum jobs mobi tv cc la ly to gg be
"""
_ENDINGS = frozenset(_ENDINGS_WORDS.split())


def is_public(text: str, is_told: bool = False) -> bool:
    """An address on the internet that belongs to somebody: not private, not reserved, not a version with four parts."""
    try:
        address = IPv4Address(text)
    except AddressValueError:
        return False
    is_version = not is_told and max(map(int, text.split("."))) < 10
    return address.is_global and not address.is_multicast and not is_version and text not in _KNOWN_IPS


def _is_ipv6(text: str) -> bool:
    try:
        address = IPv6Address(text.partition("/")[0])
    except AddressValueError:
        return False
    is_documented = text.lower().startswith("2001:db8")
    return address.is_global and not address.is_multicast and not is_documented and text.count(":") >= 3


def small(text: str) -> str:
    """The text in lower case, with every character in its place."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.replace("İ", "I").lower()


def secrets(text: str) -> frozenset[str]:
    """The names of the patterns that the text contains."""
    return _hits(text, SECRETS)


def personal(text: str) -> frozenset[str]:
    return _hits(text, PERSONAL)


def _hits(text: str, signs: Mapping[str, Sign]) -> frozenset[str]:
    return frozenset(found.kind for found in find(text, signs))


def find(text: str, signs: Mapping[str, Sign]) -> Iterator[Detection]:
    """All hits, sign by sign; hits of different signs may overlap."""
    there = [(name, sign) for name, sign in signs.items() if sign.trait is None or sign.trait.search(text)]
    return _found(text, *lower_and_words(text), there)


_WORD, _ASCII_WORD = re.compile(r"[^\W\d_]+"), re.compile(r"[a-z]+")


@lru_cache(maxsize=8)
def lower_and_words(text: str) -> tuple[str, frozenset[str]]:
    """The text in lower case, and the words in it."""
    lower = small(text)
    return lower, frozenset((_ASCII_WORD if lower.isascii() else _WORD).findall(lower))


def _found(text: str, lower: str, words: frozenset[str], signs: Iterable[tuple[str, Sign]]) -> Iterator[Detection]:
    for name, sign in signs:
        searched = lower if sign.any_case else text
        if sign.words.isdisjoint(words):
            for hint in sign.hints:
                if hint in searched:
                    break
            else:
                if sign.hints or sign.words:
                    continue
        part = "it" if "it" in sign.pattern.groupindex else 0
        for match in sign.pattern.finditer(searched):
            start, end = match.span(part)
            if sign.test(text[start:end]) and not (
                sign.unless and sign.unless.search(lower[max(0, match.start() - BEFORE) : match.start()])
            ):
                yield Detection(name, start, end)


PUBLIC = re.compile(  # long random letters that are no secret
    r"-----BEGIN (?:CERTIFICATE|(?:[A-Z]{2,8} )?PUBLIC KEY|PGP [A-Z ]{6,17})-----(?:[^-]|-(?!----))*-----END"
)


_PASSWORD_SIGN = "senha"
FOUR_DIGITS = re.compile(r"[0-9](?:[ ._/-]{0,2}[0-9]){3}")


class Search:
    """Finds many signs at once with the result of `find`; cheap tests that most texts fail come first."""

    def __init__(self, *groups: Mapping[str, Sign]) -> None:
        alike: dict[tuple[Any, ...], list[tuple[str, Sign]]] = {}
        for group in groups:
            for name, sign in group.items():
                is_free = not (sign.hints or sign.words)
                is_password = _PASSWORD_SIGN in sign.words  # apart from the others: most texts have no such word
                key = _common(sign), sign.trait, sign.any_case, is_free, sign.gate, is_password
                alike.setdefault(key, []).append((name, sign))
        self._alike = [
            (
                *(gate, letter, trait, any_case),
                _fewest(hint for _, sign in signs for hint in sign.hints) or (("",) if is_free else ()),
                frozenset(word for _, sign in signs for word in sign.words),
                signs,
            )
            for (letter, trait, any_case, is_free, gate, _), signs in alike.items()
        ]

    def find(self, text: str) -> list[Detection]:
        lower, words = lower_and_words(text)
        has, has_small, found = text.__contains__, lower.__contains__, list[Detection]()
        tried: dict[int, bool] = {}  # by trait: kinds share some
        gates = {"": True, "digits": FOUR_DIGITS.search(text) is not None, "far": not text.isascii()}
        for gate, letter, trait, any_case, hints, whole, signs in self._alike:
            if not gates[gate]:
                continue
            if letter not in text or (whole.isdisjoint(words) and not any(map(has_small if any_case else has, hints))):
                continue
            if trait is None:
                found += _found(text, lower, words, signs)
                continue
            if (key := id(trait)) not in tried:
                tried[key] = trait.search(text) is not None
            if tried[key]:
                found += _found(text, lower, words, signs)
        if "-----BEGIN" in text:
            public = [match.span() for match in PUBLIC.finditer(text)]
            found = [hit for hit in found if not any(a <= hit.start and hit.end <= b for a, b in public)]
        return found


def _fewest(hints: Iterable[str]) -> tuple[str, ...]:
    """The hints that contain no other one: a text with any of them has one of these."""
    every = dict.fromkeys(hints)
    return tuple(hint for hint in every if not any(other in hint for other in every if other != hint))


def _common(sign: Sign) -> str:
    """A character that is rare in prose and in every hint; empty if there is none."""
    hints = () if sign.words else sign.hints
    return next((letter for letter in "$_-:@+" if hints and all(letter in hint for hint in hints)), "")


def texts(data: Any) -> Iterator[str]:
    """Every text in a JSON value, keys included; without recursion, since the depth is unbounded."""
    left = [data]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            left += one


LONGEST_PATTERN = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionRule:
    """A literal text (any case) or a pattern to find, and the reason that a hit gives."""

    rule_id: str
    reason_code: str  # "prompt_injection.ignore_instructions"
    pattern: str
    matcher: str = "literal"  # or regex
    enabled: bool = True
    hints: tuple[str, ...] = ()  # in lower case: a text without any of them is not searched
    unless: str = ""  # pattern right before a hit that cancels it: "do not" ignore …

    def __post_init__(self) -> None:
        if not self.rule_id.strip() or not self.reason_code.strip():
            raise BadInput(f"safety rule {self.rule_id!r}", why="rule_id and reason_code must not be blank")
        if self.matcher not in ("literal", "regex"):
            what = f"safety rule {self.rule_id}: matcher = {self.matcher!r}"
            raise BadInput(what, why="is unknown", remedy="use literal or regex")
        if not 0 < len(self.pattern) <= LONGEST_PATTERN:
            why = f"has {len(self.pattern)} characters, and may have 1 to {LONGEST_PATTERN}"
            raise BadInput(f"safety rule {self.rule_id}: pattern", why=why)
        try:
            compiled = self.compiled()
        except re.error as error:
            what, why = f"safety rule {self.rule_id}: pattern", f"is no regular expression: {error}"
            raise BadInput(what, why=why, remedy="correct it, or use literal") from None
        if compiled.match("") is not None:
            raise BadInput(f"safety rule {self.rule_id}: pattern", why="matches nothing at all, and so everywhere")

    def compiled(self) -> re.Pattern[str]:
        """The compiled pattern; `re` caches it."""
        return re.compile(re.escape(self.pattern) if self.matcher == "literal" else self.pattern, re.IGNORECASE)


def scan(text: str, rules: Iterable[DetectionRule]) -> Iterator[Detection]:
    """All hits of the enabled rules; a hit's kind is the reason code."""
    small = text.lower()
    for rule in rules:
        if not rule.enabled or (rule.hints and not any(hint in small for hint in rule.hints)):
            continue
        unless = re.compile(f"(?:{rule.unless})$", re.IGNORECASE) if rule.unless else None
        for match in rule.compiled().finditer(text):
            start = match.start()
            if unless is None or not unless.search(text[max(0, start - BEFORE) : start]):
                yield Detection(rule.reason_code, start, match.end())
