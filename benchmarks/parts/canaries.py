"""Planted secrets and people, each with the words it was said in, and conversations that hold neither.

Everything is made up from a seed, in forms that people and programs really use, and half of the names from outside of
any dictionary of ours. What is planted must not be there after scrubbing; what is clean should come through as it was.
"""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

LETTERS, HEX = string.ascii_letters + string.digits, "0123456789abcdef"
SECRETS = ("api_key", "cloud_key", "token", "password", "private_key", "url_password", "random")
PERSONAL = ("email", "phone", "card", "iban", "ssn", "address", "name")
UNLISTED = "unlisted_name"  # without a word around it that says so: no rule can know; told, not promised
FAMILY = ("Lindqvist", "Okwuosa", "Abernathy", "Szczepanik", "Vandenberg", "Quispe", "Haddad", "Mbeki", "Drăgulescu")
GIVEN = ("Thandiwe", "Zbigniew", "Oluwaseun", "Siobhan", "Saoirse", "Xiomara", "Bartholomew", "Ngozi", "Tsering")
LISTED = (
    "Maria",
    "Thomas",
    "Fatima",
    "Wei-Ling",
    "Priya",
    "Johanna",
    "Ahmed",
    "Olga",
    "Carlos",
    "Sarah",
    "Anna",
    "James",
)
LISTED_FAMILY = (
    "Smith",
    "Garcia",
    "Nguyen",
    "Kowalski",
    "Patel",
    "Rossi",
    "Khan",
    "Ivanova",
    "Johnson",
    "Brown",
    "Kim",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    kind: str
    planted: str  # what must not be left
    message: Mapping[str, Any]  # of a chat


def is_left(canary: Canary, scrubbed: Any) -> bool:
    """Whether six letters in a row of what was planted are still there, or a word of a name."""
    texts = list(_texts(scrubbed))
    if canary.kind in ("name", UNLISTED):
        return any(word in text for word in canary.planted.split() for text in texts)
    planted = canary.planted
    pieces = {planted[n : n + 6] for n in range(max(1, len(planted) - 5))}
    return any(piece in text for piece in pieces for text in texts)


def _texts(value: Any) -> Iterator[str]:
    """As they are read in the end: JSON in a text is opened."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str) and value[:1] in ("{", "["):
        yield from _texts(json.loads(value))
    else:
        yield str(value)


def canaries(seed: int, each: int) -> list[Canary]:
    """So many of every kind, in text, in the arguments of tools and in their results."""
    rng = random.Random(seed)
    return [_canary(rng, kind) for kind in (*SECRETS, *PERSONAL, UNLISTED) for _ in range(each)]


def _canary(rng: random.Random, kind: str) -> Canary:
    planted, shown = MAKERS[kind](rng)
    place = rng.choice(("text", "text", "text", "arguments", "result", "lines"))
    if place == "arguments":
        arguments = json.dumps({"to": "it", "text": f"As asked:\n{shown}", "deep": [{"n": 1}]})
        call = {"id": "call_0", "type": "function", "function": {"name": "send", "arguments": arguments}}
        return Canary(kind=kind, planted=planted, message={"role": "assistant", "content": "", "tool_calls": [call]})
    if place == "result":
        content = json.dumps({"rows": [{"note": shown, "ok": True}], "count": 1}, ensure_ascii=rng.random() < 0.5)
        return Canary(
            kind=kind, planted=planted, message={"role": "tool", "tool_call_id": "call_0", "content": content}
        )
    before = rng.choice(("", "Here it is: ", "Please note that\n", "- ", "As I said before, and once more: "))
    after = rng.choice(("", ".", "\nThank you!", " (see above)", ", that is all."))
    if place == "lines":
        shown = f"first line\n{shown}\nlast line"
    return Canary(kind=kind, planted=planted, message={"role": "user", "content": f"{before}{shown}{after}"})


def _of(rng: random.Random, letters: str, count: int) -> str:
    return "".join(rng.choices(letters, k=count))


def _api_key(rng: random.Random) -> tuple[str, str]:
    key = rng.choice(
        [
            lambda: "sk-" + "ant-api03-" + _of(rng, LETTERS + "_-", 40),
            lambda: "sk-" + "proj-" + _of(rng, LETTERS, 48),
            lambda: "gh" + "p_" + _of(rng, LETTERS, 36),
            lambda: "xo" + "xb-" + _of(rng, string.digits, 12) + "-" + _of(rng, LETTERS, 24),
            lambda: "sk_" + "live_" + _of(rng, LETTERS, 24),
            lambda: "gl" + "pat-" + _of(rng, LETTERS, 20),
            lambda: "hf" + "_" + _of(rng, LETTERS, 34),
            lambda: "np" + "m_" + _of(rng, LETTERS, 36),
            lambda: "S" + "G." + _of(rng, LETTERS, 22) + "." + _of(rng, LETTERS, 43),
        ]
    )()
    return key, rng.choice(("{}", "use {} for now", "OPENAI_API_KEY={}", "key: '{}'")).format(key)


def _cloud_key(rng: random.Random) -> tuple[str, str]:
    if rng.random() < 0.5:
        key = "AK" + "IA" + _of(rng, string.ascii_uppercase + string.digits, 16)
        return key, f"aws access key {key}"
    key = _of(rng, LETTERS + "+/", 40)
    return key, rng.choice(("aws_secret_access_key = {}", '"SecretAccessKey": "{}"', "AccountKey={}")).format(key)


def _token(rng: random.Random) -> tuple[str, str]:
    if rng.random() < 0.5:
        part = base64.urlsafe_b64encode(json.dumps({"sub": _of(rng, LETTERS, 9)}).encode()).decode().rstrip("=")
        key = "ey" + "JhbGciOiJIUzI1NiJ9." + part + "." + _of(rng, LETTERS + "_-", 43)
        return key, rng.choice(("{}", "Authorization: Bearer {}")).format(key)
    key = _of(rng, LETTERS, rng.randint(20, 60))
    return key, rng.choice(("Authorization: Bearer {}", "curl -H 'authorization: bearer {}'", "token={}")).format(key)


def _password(rng: random.Random) -> tuple[str, str]:
    words = ("winter", "tiger", "correct", "Horse", "Blau", "summer")
    key = rng.choice(words) + rng.choice(("!", "#", "_", "")) + _of(rng, string.digits, rng.randint(2, 5))
    if rng.random() < 0.4:
        key = _of(rng, LETTERS + "!#%+", rng.randint(10, 20)) + "7a"
    forms = (
        "password: {}",
        "my password is {}",
        'PASSWORD="{}"',
        "passwd={}",
        "the passphrase is {}",
        "DB_PASSWORD={}",
    )
    return key, rng.choice(forms).format(key)


def _private_key(rng: random.Random) -> tuple[str, str]:
    body = [_of(rng, LETTERS + "+/", 64) for _ in range(rng.randint(3, 12))]
    kind = rng.choice(("RSA ", "EC ", "OPENSSH ", ""))
    ends = ["-----BEGIN " + f"{kind}PRIVATE KEY-----", "-----END " + f"{kind}PRIVATE KEY-----"]
    return rng.choice(body), "\n".join([ends[0], *body, ends[1]])


def _url_password(rng: random.Random) -> tuple[str, str]:
    key = _of(rng, LETTERS, rng.randint(8, 20))
    return key, f"{rng.choice(('postgresql', 'https', 'redis', 'amqp'))}://app:{key}@db.internal:5432/main"


def _random(rng: random.Random) -> tuple[str, str]:
    key = "a7B3k9" + _of(rng, LETTERS, rng.randint(30, 60))
    return key, rng.choice(("{}", "X-Signature: {}", "put {} in the header")).format(key)


def _email(rng: random.Random) -> tuple[str, str]:
    user = rng.choice(("{g}.{f}", "{g}{n}", "{f}", "{g}_{f}", "{g}+news")).format(
        g=rng.choice(LISTED).lower(), f=rng.choice(LISTED_FAMILY).lower(), n=rng.randint(1, 99)
    )
    key = f"{user}@{rng.choice(('gmail.com', 'mail.acme-corp.co.uk', 'posteo.de', 'uni.edu', 'outlook.com'))}"
    key = key.upper() if rng.random() < 0.05 else key
    return key, rng.choice(("{}", "write to {}", "<{}>", "mailto:{}", "{} is me")).format(key)


def _phone(rng: random.Random) -> tuple[str, str]:
    form = rng.choice(
        (
            *(
                "+1 ### ### ####",
                "(###) ###-####",
                "###-###-####",
                "###.###.####",
                "+44 20 #### ####",
                "+49 30 #######",
            ),
            *(
                "030 #######",
                "0###/######",
                "0049 ### #######",
                "+33 6 ## ## ## ##",
                "06 ## ## ## ##",
                "+91-#####-#####",
            ),
            *("+86###########", "020 #### ####"),
        )
    )
    key = "".join(rng.choice("23456789") if letter == "#" else letter for letter in form)
    return key, rng.choice(("{}", "call {} after six", "tel. {}", "my number: {}")).format(key)


def _luhn(digits: str) -> str:
    odd = sum(map(int, digits[-2::-2]))
    doubled = sum(sum(divmod(2 * int(digit), 10)) for digit in digits[-1::-2])
    return str(-(odd + doubled) % 10)


def _card(rng: random.Random) -> tuple[str, str]:
    if rng.random() < 0.2:
        body = rng.choice(("34", "37")) + _of(rng, string.digits, 12)
        key = body + _luhn(body)
        key = f"{key[:4]} {key[4:10]} {key[10:]}" if rng.random() < 0.5 else key
    else:
        body = rng.choice(("4", "51", "55", "6011")) + _of(rng, string.digits, 15)
        key = body[:15] + _luhn(body[:15])
        key = rng.choice(("", " ", "-")).join(key[n : n + 4] for n in range(0, 16, 4))
    return key, rng.choice(("{}", "card {}", "pay with {} please", "card number: {}")).format(key)


def _iban(rng: random.Random) -> tuple[str, str]:
    country, length = rng.choice((("DE", 18), ("FR", 23), ("ES", 20), ("NL", 14), ("GB", 18)))
    body = ("ABNA" if country == "NL" else "WEST" if country == "GB" else "") + _of(rng, string.digits, 23)
    body = body[:length]
    spelled = "".join(str(int(letter, 36)) for letter in f"{body}{country}00")
    key = f"{country}{98 - int(spelled) % 97:02d}{body}"
    key = " ".join(key[n : n + 4] for n in range(0, len(key), 4)) if rng.random() < 0.5 else key
    return key, rng.choice(("{}", "IBAN {}", "to account {}")).format(key)


def _ssn(rng: random.Random) -> tuple[str, str]:
    key = f"{rng.randint(101, 665)}-{rng.randint(10, 99)}-{rng.randint(1000, 9999)}"
    return key, rng.choice(("{}", "SSN {}", "social security number {}")).format(key)


def _address(rng: random.Random) -> tuple[str, str]:
    n, m, zip_code = rng.randint(1, 9999), rng.randint(1, 200), rng.randint(10001, 99950)
    town = rng.choice(("Springfield", "Oak Park", "Bristol", "Leeds", "Portland"))
    way = rng.choice(("Street", "St", "Avenue", "Ave", "Road", "Rd", "Lane", "Blvd", "Drive", "Court", "Way"))
    street = f"{rng.choice(('Maple', 'King', 'Elm Tree', 'Abbey', 'Old Mill', '42nd', 'St. James'))} {way}"
    key = rng.choice(
        (
            f"{n} {street}",
            f"{n} {street}, {town}",
            f"{n} {street}, Apt {m}, {town}, OR {zip_code}",
            f"{m} {street}, London SW1A 1AA",
            f"{rng.choice(('Haupt', 'Goethe', 'Linden'))}{rng.choice(('straße', 'str.', 'strasse'))} {m}",
            f"Berliner Straße {m}a",
            f"Lindenweg {m}, {zip_code} Hamburg",
            f"{m} rue de {rng.choice(('Rivoli', 'Lyon', 'Vaugirard'))}, 75001 Paris",
            f"Calle {rng.choice(('Mayor', 'Serrano'))} {m}, 28013 Madrid",
            f"Beukenstraat {m}",
            f"P.O. Box {n}",
        )
    )
    return key, rng.choice(("{}", "I live at {}", "ship it to {}", "address: {}")).format(key)


def _name(rng: random.Random) -> tuple[str, str]:
    """Known ones anywhere, unknown ones where the words around them say so."""
    if rng.random() < 0.5:
        key = rng.choice((rng.choice(LISTED), f"{rng.choice(LISTED)} {rng.choice((*LISTED_FAMILY, *FAMILY))}"))
        return key, rng.choice(
            ("ask {} about it", "{} has the file", "hi {}, how are you?", "it was {} who called")
        ).format(key)
    key = f"{rng.choice(GIVEN)} {rng.choice(FAMILY)}"
    forms = (
        "my name is {}",
        "Dear {},",
        "Mrs. {} called",
        "Dr. {} is out",
        "Patient: {}",
        "Kind regards,\n{}",
        "I am {}",
    )
    return key, rng.choice(forms).format(key)


def _unlisted(rng: random.Random) -> tuple[str, str]:
    key = f"{rng.choice(GIVEN)} {rng.choice(FAMILY)}"
    return key, rng.choice(("ask {} about it", "{} has the file", "it was {} who called")).format(key)


MAKERS: Mapping[str, Callable[[random.Random], tuple[str, str]]] = {
    "api_key": _api_key,
    "cloud_key": _cloud_key,
    "token": _token,
    "password": _password,
    "private_key": _private_key,
    "url_password": _url_password,
    "random": _random,
    "email": _email,
    "phone": _phone,
    "card": _card,
    "iban": _iban,
    "ssn": _ssn,
    "address": _address,
    "name": _name,
    UNLISTED: _unlisted,
}
TOOL_USE = (
    "What is 417 * 23?",
    "The result is 9591, computed with the calculator tool.",
    "Convert 2024-11-15T10:30:00Z to Tokyo time; the offset is +09:00.",
    "The file src/app/main.py has 1,204 lines; the function parse_tokens() begins at line 88.",
    '{"city": "Paris", "days": 3, "units": "metric", "token_count": 512}',
    "error: timeout after 30000 ms (request req_8f14e45fceea167a5a36dedd4bea2543)",
    "Commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b merged into main; version 2.14.0 is out.",
    "Order 100-2003-4417 was shipped on 12/04/2024; the total is 1,299.00 EUR including 19 % tax.",
    "See RFC 2606, section 3, and ISO 13616; page 114-120.",
    "New York has 8,804,190 people, Los Angeles 3,898,747; the ratio is 2.2585.",
    "uuid 123e4567-e89b-12d3-a456-426614174000, port 8080, 10.0.0.12, 192.168.0.1",
    "The API returned 200 OK. Thank You for the clear question; Please tell me more.",
    "Monday to Friday, 9:00-17:30; closed in August.",
    "To reset the password, choose Settings, then Security; the token is sent by mail.",
)
CODE = (
    "def login(user: str, password: str) -> Token:\n    token = get_token(user, password)\n    return Token(token)",
    "password = os.environ['DB_PASSWORD']\napi_key = settings.api_key\nsecret = None",
    "SELECT id, email, phone FROM users WHERE created_at > '2024-01-01' LIMIT 100;",
    "import numpy as np\nx = np.linspace(0, 1, 1000)\nassert abs(x.mean() - 0.5) < 1e-9",
    "const MAX_TOKENS = 4096; const tokens = tokenizer.encode(text).length;",
    "git clone https://github.com/acme/widgets.git && cd widgets && make test",
    "class UserRepository(Base):\n    def find_by_email(self, email: str) -> User | None: ...",
    "for (let i = 0; i < 10_000; i++) { total += prices[i] * 1.19; }",
    "@app.get('/items/{item_id}')\nasync def read(item_id: int, token: str = Depends(auth)): ...",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "Authorization: Bearer <token>\nX-Api-Key: $API_KEY\npostgresql://user:password@host/name",
    "tests/cli/test_quality.py::test_a_clean_run_is_ready_to_be_learnt_from PASSED [ 42%]",
)


def _by_hand(kind: str, planted: str, text: str) -> Canary:
    return Canary(kind=kind, planted=planted, message={"role": "user", "content": text.format(planted)})


# Written by hand. The first rules knew 6 of 18 secrets and 14 of 34 people here; they were widened after that.
KNOWN = (
    _by_hand("password", "Sonne2019!", "login is jdoe / {}"),
    _by_hand("password", "kT9-pq-77x", "pw: {}"),
    _by_hand("password", "Fr33dom#Rings", "Your temporary password has been set to {} - change it"),
    _by_hand("password", "letmein99", "mysql -u root -p{}"),
    _by_hand("password", "gr8Day2day", "| user | ann |\n| password | {} |"),
    _by_hand("password", "s3cr3tSauce", "--password {} --host db"),
    _by_hand("password", "tr0ub4dor", "Passwort: {}"),
    _by_hand("password", "Xk7!mmQ2", "credentials are admin:{}"),
    _by_hand("api_key", "4f9d1c7ab2e84d6fa1c3b5d7e9f01234", "X-API-KEY: {}"),
    _by_hand("api_key", "4f9d1c7ab2e84d6fa1c3b5d7e9f01235", "?apikey={}&q=1"),
    _by_hand("api_key", "r8" + "_Hw3kPq9sLz2XcVb7Nm4Jd6Fg8Ty1Ru5Io0Ke", "replicate {}"),
    _by_hand("api_key", "dop" + "_v1_" + "9a8b7c6d" * 8, "doctl auth init -t {}"),
    _by_hand("api_key", "E" + "AACEdEose0cBA" + "x7Kp2Qz9Lm4" * 4, "fb token {}"),
    _by_hand("token", "123456789:AA" + "Hq9zX2kLmNpQrStUvWxYz0123456789abc", "bot {}"),
    _by_hand("token", "nk7hQ2x9Lp4w", "JWT_SECRET: {}"),
    _by_hand(
        "cloud_key",
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr==",
        "AccountKey={};Endpoint",
    ),
    _by_hand("url_password", "p%40ss9w", "mongodb+srv://svc:{}@cluster0.ab1cd.mongodb.net/"),
    _by_hand("private_key", "b3BlbnNzaC1rZXktdjEAAAAABG5vbmU", "ssh key: {}AAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZWQ5"),
    _by_hand("email", "o'brien.sean@irishmail.ie", "cc {}"),
    _by_hand("email", "anna (at) posteo (dot) de", "reach me: {}"),
    _by_hand("email", "jürgen@müller.de", "Mail an {}"),
    _by_hand("email", "x_y-z@sub.domain.travel", "From: X <{}>"),
    _by_hand("phone", "1-800-555-0199", "our hotline {}"),
    _by_hand("phone", "+1 (415) 555-2671 ext. 12", "ring {}"),
    _by_hand("phone", "07911 123456", "mob {}"),
    _by_hand("phone", "+358 40 1234567", "Puh. {}"),
    _by_hand("phone", "11 98765-4321", "WhatsApp {}"),
    _by_hand("phone", "4155552671", "text me: {}"),
    _by_hand("card", "5105105105105100", "CC#{} exp 09/27"),
    _by_hand("card", "30569309025904", "diners {}"),
    _by_hand("card", "3530111333300000", "JCB {}"),
    _by_hand("iban", "CH9300762011623852957", "Konto {}"),
    _by_hand("iban", "pl61109010140000071219812874", "iban={}"),
    _by_hand("ssn", "219 09 9999", "SSN: {}"),
    _by_hand("ssn", "219099999", "social: {}"),
    _by_hand("address", "742 Evergreen Terrace", "send to {}"),
    _by_hand("address", "Flat 2, 10 Downing Street, London", "at {}"),
    _by_hand("address", "One Microsoft Way", "HQ is {}"),
    _by_hand("address", "Via Roma 12, 00184 Roma", "abito in {}"),
    _by_hand("address", "Am Alten Markt 7", "wohnt {}"),
    _by_hand("address", "123 main st apt 4", "i live at {}"),
    _by_hand("address", "4-2-8 Shibakoen, Minato-ku", "office: {}"),
    _by_hand("address", "Kungsgatan 5, 111 43 Stockholm", "Adress {}"),
    _by_hand("name", "Jean-Luc Picard", "spoke with {} today"),
    _by_hand("name", "María José", "gracias, {}"),
    _by_hand("name", "JOHN SMITH", "NAME ON CARD {}"),
    _by_hand("name", "sarah", "can you ask {} to call"),
    _by_hand("name", "Nguyen Van An", "signed {}"),
    _by_hand("name", "Smith, Robert", "listed as {}"),
    _by_hand("name", "Angela Merkel", "letter to Dr. {}"),
    _by_hand("name", "Björn Ulvaeus", "from {}"),
    _by_hand("name", "Tom", "hey {}!"),
)

# Written by hand after the rules were widened, and the rules were not changed for these: how far they carry.
UNSEEN = (
    _by_hand("password", "Vogel!88haus", "the wifi password at home: {}"),
    _by_hand("password", "qwertz1234", "user=bob pass={}"),
    _by_hand("password", "Tulip#404", "I changed my password from {} yesterday"),
    _by_hand("password", "n0tTheSame", "PGPASSWORD={} psql -h db"),
    _by_hand("password", "Qx8-11-zz", "PIN/password combination {}"),
    _by_hand("password", "marmalade7", "<password>{}</password>"),
    _by_hand("api_key", "AC" + "1f2e3d4c5b6a79881f2e3d4c5b6a7988", "account sid {} for twilio"),
    _by_hand("api_key", "ghs" + "_" + "Zx9Yw8Vu7T" * 4, "GITHUB_TOKEN is {}"),
    _by_hand("api_key", "c2Vjb25kLWtleS1mb3ItdGVzdGluZw", "api-key {}"),
    _by_hand("api_key", "NRAK-9ZK3QX7P2LM4VB8TR6WY1CD5FGH", "new relic: {}"),
    _by_hand("token", "f3a9c1d27b5e4860", "CSRF token: {}"),
    _by_hand("token", "7Qz-11kP_x92LmNv", "set-cookie: session={}; HttpOnly"),
    _by_hand("token", "ZXlKMGVYQWlPaUpLVjFRaUxDSmhiR2NpT2lK", "Authorization: Basic {}"),
    _by_hand("cloud_key", "GOOG1EXAMPLE7KQ2ZL9M4XV8BT6RW3YD5CF1GH", "gcs hmac {}"),
    _by_hand("url_password", "hunter2hunter", "ftp://joe:{}@files.internal/"),
    _by_hand("private_key", "MIIBVQIBADANBgkqhkiG9w0BAQEFAASC", "-----BEGIN " + "ENCRYPTED PRIVATE KEY-----\\n{}\\n"),
    _by_hand("random", "Jk29xLq0PzR7vTn4YbW8sEd1UcGh5MaF", "nonce {}"),
    _by_hand("email", "first.last+tag@company.museum", "Subject: hi\nTo: {}"),
    _by_hand("email", "info@日本.jp", "mail {}"),
    _by_hand("email", "bob[at]gmail[dot]com", "write {}"),
    _by_hand("email", "alice AT wonderland DOT net", "I am {}"),
    _by_hand("phone", "+61 2 9374 4000", "Sydney {}"),
    _by_hand("phone", "(0)171 2345678", "erreichbar unter {}"),
    _by_hand("phone", "02-2345-6789", "Seoul {}"),
    _by_hand("phone", "08 123 45 67", "ring {}"),
    _by_hand("phone", "91234567", "my number is {}"),
    _by_hand("phone", "+1.212.555.0147", "fax: {}"),
    _by_hand("card", "4000 0566 5566 5556", "visa {} cvc 123"),
    _by_hand("card", "2223003122003222", "mastercard {}"),
    _by_hand("card", "6759649826438453", "maestro {}"),
    _by_hand("iban", "NO93 8601 1117 947", "konto {}"),
    _by_hand("iban", "BE68-5390-0754-7034", "IBAN {}"),
    _by_hand("ssn", "574-21-8830", "her social is {}"),
    _by_hand("address", "88 Rue du Faubourg Saint-Honoré", "près de {}"),
    _by_hand("address", "1 Infinite Loop", "visit {}"),
    _by_hand("address", "Schillerplatz 3, A-1010 Wien", "Büro: {}"),
    _by_hand("address", "55 Broadway, New York, NY 10006", "meet at {}"),
    _by_hand("address", "Rua Augusta 1500, 01304-001 São Paulo", "fica na {}"),
    _by_hand("address", "Oude Gracht 12, 3511 AB Utrecht", "bij {}"),
    _by_hand("address", "Apartment 9, 22 St Mary's Close", "c/o {}"),
    _by_hand("name", "Lisa Marie Walker", "the owner, {}, agreed"),
    _by_hand("name", "O'Connor", "Mr O'Connor"),
    _by_hand("name", "Kenji Watanabe", "{}-san joined"),
    _by_hand("name", "michael", "michael said no"),
    _by_hand("name", "Renée Dubois", "merci {}"),
    _by_hand("name", "Anil K. Gupta", "by {}"),
    _by_hand("name", "Friedrich Nietzsche", "quoting {}"),
    _by_hand("name", "Ludmila Ferreira-Pinto", "see {}"),
    _by_hand("name", "Hassan al-Rashid", "met {}"),
    _by_hand("name", "Kim Min-jun", "from {}"),
)
