from __future__ import annotations

import time
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.privacy.detect import (
    ASSIGNED,
    PERSONAL,
    SECRETS,
    WIDE,
    Detection,
    DetectionRule,
    Search,
    find,
    personal,
    scan,
    secrets,
    texts,
)
from holdfast.privacy.numbers import DATES, ids, labelled, numbers, one_time_codes
from holdfast.privacy.people import FAMILY, GIVEN, NO_NAMES, PLACES, SURE, names
from holdfast.privacy.scrub import _all as everything_in

# In two parts: whoever looks for secrets in this file must find none.
PLANTED = {
    "anthropic_api_key": "sk-" + "ant-api03-" + "aB3_" * 8,
    "openai_api_key": "sk-" + "proj-" + "aB3x" * 8,
    "github_token": "gh" + "p_" + "aB3x" * 9,
    "slack_token": "xo" + "xb-1234567890-abcdef",
    "aws_access_key": "AK" + "IA" + "IOSFODNN7EXAMPL2",
    "google_api_key": "AI" + "za" + "aB3_x" * 7,
    "stripe_key": "sk" + "_live_" + "aB3x" * 6,
    "gitlab_token": "gl" + "pat-" + "aB3x" * 5,
    "huggingface_token": "h" + "f_" + "aB3x" * 8,
    "npm_token": "np" + "m_" + "aB3x" * 9,
    "pypi_token": "py" + "pi-" + "aB3x" * 13,
    "sendgrid_key": "S" + "G." + "aB3x" * 5 + "." + "aB3x" * 10,
    "google_oauth_token": "ya" + "29." + "aB3x" * 6,
    "telegram_token": "123456789:" + "AA" + "aB3x" * 8,
    "digitalocean_token": "do" + "p_v1_" + "a1b2" * 16,
    "slack_webhook": "https://hooks." + "slack.com/services/" + "T0B3/" * 5,
    "webhook": "https://discord" + ".com/api/webhooks/123456789012345678/" + "aB3x_" * 12,
    "vendor_token": "gs" + "k_" + "aB3x7" * 10,
    "twilio_key": "A" + "C" + "0a1b2c3d" * 4,
    "mail_key": "0a1b2c3d" * 4 + "-us14",
    "discord_token": "M" + "aB3x" * 6 + ".aB3x7_." + "aB3x" * 7,
    "azure_secret": "aB3" + "8Q~" + "aB3x" * 8,
    "airtable_token": "pat" + "aB3x7aB3x7aB3x" + "." + "0a1b2c3d" * 8,
    "newrelic_license": "0a1b2c3d" * 4 + "0a1b" + "NRAL",
    "odd_token": "a1b2c3d4e5" + "msh" + "a1b2c3d4e5f6a7b" + "p1" + "a1b2c3" + "jsn" + "a1b2c3d4e5f6",
    "colon_token": "1234567890123456/1234567890123457:" + "0a1b2c3d" * 4,
    "password_hash": "$2" + "b$12$" + "aB3x7" * 10 + "aB3",
    "product_key": "AB3X7-" * 4 + "AB3X7",
    "dsn_key": "https://" + "0a1b2c3d" * 4 + "@sentry/12",
    "stellar_seed": "S" + "AB3X7" * 11,
    "terraform_token": "aB3x7aB3x7aB3x" + ".atlasv1." + "aB3x" * 16,
    "private_key_material": "-----BEGIN " + "RSA PRIVATE KEY-----",
    "url_password": "postgres://app:" + "hu7nter" + "@db/main",
    "jwt_token": "ey" + "JhbGciOiJIUzI1NiJ9." + "ey" + "JzdWIiOiIxMjM0NSJ9." + "dBjftJeZ4CVPmB92K27u",
    "email": "ada.lovelace@analytical.engine.org",
    "phone": "+44 20 7946 0958",
    "social_security_number": "219-09-9999",
    "card_number": "4539 1488 0343 6467",
    "bank_account": "GB82 WEST 1234 5698 7654 32",
}


@pytest.mark.parametrize("name", [*SECRETS, *PERSONAL])
@pytest.mark.parametrize("around", ["{}", "it is {}.", '{{"key": "{}"}}', "a\n{}\nb"])
def test_what_is_planted_is_found_and_called_by_its_name(name: str, around: str) -> None:
    text = around.format(PLANTED[name])
    assert secrets(text) | personal(text) == {name}


@pytest.mark.parametrize(
    "harmless",
    [
        "ada@example.com, bob@mail.example.org, root@localhost.test",  # reserved: they belong to nobody
        "pip install holdfast@1.2.3 and sprout@3",
        "what is 4539148803436467 + 1?".replace("4539148803436467", "4539148803436468"),  # Luhn says no
        "4539.148803436467 and 1234567812345670",  # a fraction; no such issuer
        "12 + 4915 = 4927, 7+123456789012",
        "from 2024-11-15 to 2025-01-20, lines 100-200-3000",
        "000-12-3456, 666-12-3456, 900-12-3456, 219-00-9999",  # never given out
        "GB82 WEST 1234 5698 7654 33",  # its check digits are wrong
        "the sk-learn package, task-force, eyJust a word",
        "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "-----BEGIN PUBLIC KEY-----",
        "uuid 123e4567-e89b-12d3-a456-426614174000",
        "pi is 3.14159265358979, or +3.14159265358979",
    ],
)
def test_what_only_looks_like_it_is_left_alone(harmless: str) -> None:
    assert secrets(harmless) | personal(harmless) == frozenset()


BODY = "\n".join(["MIIEow" + "aB3x" * 14] * 3)
HEAD, FOOT = "-----BEGIN " + "RSA PRIVATE KEY-----", "-----END " + "RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "kind", "thing"),
    [
        # the whole key, however its lines are written, and what there is of one that was cut
        (f"a\n{HEAD}\n{BODY}\n{FOOT}\nb", "private_key_material", f"{HEAD}\n{BODY}\n{FOOT}"),
        (f"{HEAD}\\n{BODY}\\n{FOOT}", "private_key_material", f"{HEAD}\\n{BODY}\\n{FOOT}"),
        (f"{HEAD}\n{BODY}", "private_key_material", f"{HEAD}\n{BODY}"),
        (f"it begins with {HEAD} and then", "private_key_material", HEAD),
        # the password and not the address
        ("redis://:hu7nter@db:6379/0", "url_password", "hu7nter"),
    ],
)
def test_all_of_it_is_found_and_nothing_else(text: str, kind: str, thing: str) -> None:
    (found,) = find(text, SECRETS)
    assert (found.kind, text[found.start : found.end]) == (kind, thing)


@pytest.mark.parametrize(
    ("text", "thing"),
    [
        ("password: winter!23", "winter!23"),
        ("export DB_PASSWORD='tiger2024'", "tiger2024"),
        ('{"client_secret": "q8s7d6f5"}', "q8s7d6f5"),
        ("set your api key to zz91kq7", "zz91kq7"),
        (
            "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG+bPxRfiCYzzzzzzzzzz",
            "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzzzzzzzzzz",
        ),
        ("Authorization: Bearer abcdefgh12345678", "abcdefgh12345678"),
        ("sign it with a7B3k9Zq81LmNo2PqRs5TuVw8XyZa1Bc please", "a7B3k9Zq81LmNo2PqRs5TuVw8XyZa1Bc"),
    ],
)
def test_a_secret_is_found_by_what_it_is_called_or_by_its_disorder(text: str, thing: str) -> None:
    assert {text[found.start : found.end] for found in find(text, ASSIGNED)} == {thing}
    assert secrets(text) == frozenset()  # too wide to refuse data for


@pytest.mark.parametrize(
    "harmless",
    [
        "password = os.environ['DB_PASSWORD']",
        "password: str, token: str",
        "token = get_token(user, password)",
        "api_key = settings.api_key",
        "PASSWORD=<password> TOKEN=$TOKEN SECRET=${SECRET} KEY=***",
        "postgresql://user:password@host/name and https://host:8080/@x",
        "the token is sent by mail; choose a password to continue",
        "max_tokens: 4096, token_count = 512",
        "src/holdfast/contracts/Detect2/patterns/Secrets9.py",
        "call_a7B3k9Zq81LmNo2PqRs5TuVw8XyZa1Bc",
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    ],
)
def test_programs_and_documentation_hold_no_secrets(harmless: str) -> None:
    assert not [*find(harmless, ASSIGNED), *find(harmless, SECRETS)]


@pytest.mark.parametrize(
    "number", ["378282246310005", "5555555555554444", "4111-1111-1111-1111", "6011-0009-9013-9424"]
)
def test_card_numbers_of_every_issuer_are_found(number: str) -> None:
    for spelt in (number, number.replace("-", " "), f"{number.replace('-', '')}.0, then"):
        assert personal(f"pay with {spelt}") == {"card_number"}
    assert personal(f"pay with {number[:-1]}{(int(number[-1]) + 1) % 10}") == frozenset()
    assert not personal("4539148803436467.05") and not personal("4539148803436467.5")


@given(st.integers(0, 10**18), st.sampled_from("+-*/="), st.integers(0, 10**6))
def test_sums_are_hardly_ever_taken_for_personal_data(one: int, sign: str, other: int) -> None:
    """A number with an issuer's beginning and the right check digit is a card's, also in a sum."""
    assert personal(f"{one} {sign} {other}") <= {"card_number"}


def everything(text: str) -> float:
    """How long it takes to look for everything, in seconds of this process."""
    began = time.process_time()
    everything_in(text, is_encoded=True)
    return time.process_time() - began


PIECES = ["a", "a.", "+1 ", "1-", "sk-", "4", "GB82 ", "eyJ.", "a@", "a@a.", "token=", "-----BEGIN PRIVATE KEY-----"]
PIECES += [
    "password for ",
    "a at b dot ",
    "tel 1",
    "born 12 ",
    "id 12 ",
    "address: a ",
    "Aastraße ",
    "dGVz",
    "王伟",
    "محمد ",
]
PIECES += ["Иван ", "&#65;", "%41", "\u200b", "e\u0301", "1.1.", "ab:", "ул. Ааа ", "北京市路", "seed words: abc "]
PIECES += ["a://b:", "aB3", "Maria ", "A. ", "Aa ", "Aa-", "1 Aa ", "0 1", "(2", "my name is ", "Mr Aa ", "12 Aa St "]


@pytest.mark.parametrize("piece", PIECES)
def test_a_long_text_is_read_in_no_time(piece: str) -> None:
    assert everything(piece * (40_000 // len(piece))) < 4.0  # far more than it takes, even when it is traced


@pytest.mark.parametrize(
    "piece",
    [
        "+1" + "1" * 44 + "a ",  # many ways to group the digits, and none that fits
        "001" + "1" * 44 + "a\n",
        "ey" + "Jaaaaaaaa-",  # each could begin a token that goes on to the end
        "x://" + "a" * 60 + ":" + "b" * 200 + " ",
        "aB3x" * 40 + "=a",
        "-----BEGIN " + "PRIVATE KEY-----\n" + "A" * 40,
        "name: Aa" + "'Aa" * 17 + ".\n",  # each capital could be read in two ways
        "12 rue de la ",
        "Am Aa Aa ",
    ],
)
def test_a_longer_text_takes_longer_by_as_much(piece: str) -> None:
    few = everything(piece * (20_000 // len(piece)))
    assert few < 1.0
    assert everything(piece * (160_000 // len(piece))) < 16 * few + 0.2


@pytest.mark.parametrize("letters", [40, 600, 4096, 4097, 50_000])
def test_random_letters_are_found_however_many_they_are(letters: int) -> None:
    text = "".join(
        Random(letters).choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", k=letters)
    )
    (found,) = find(f"it is {text} now", ASSIGNED)
    assert (found.kind, found.end - found.start) == ("random_string", letters)


def test_pictures_and_paths_are_no_secrets() -> None:
    letters = "".join(Random(1).choices("ABCdefgh0123456789+", k=6000))
    for begins in ("iVBORw0KGgo", "/9j/", "UklGR", "JVBERi0"):
        assert not list(find(f"data:;base64,{begins}{letters}", ASSIGNED))
    assert not list(find("/usr/Local/lib64/python3/Site-packages/numpy1/core/Include9" * 3, ASSIGNED))


def test_every_text_within_a_value_is_found_keys_included_and_however_deep() -> None:
    deep: object = "bottom"
    for _ in range(5000):
        deep = [deep]
    assert set(texts({"a": ["b", {"c": 1, "d": None}], "e": ("f",), "g": deep})) == set("abcdefg") | {"bottom"}


def rule(pattern: str, matcher: str = "literal", **more: Any) -> DetectionRule:
    return DetectionRule(rule_id="r", reason_code="house.word", pattern=pattern, matcher=matcher, **more)


def test_a_literal_is_found_in_any_case_and_means_what_it_says() -> None:
    assert list(scan("say SESAME, sesame", [rule("Sesame")])) == [
        Detection("house.word", 4, 10),
        Detection("house.word", 12, 18),
    ]
    assert list(scan("a.b", [rule("a.b")])) and not list(scan("axb", [rule("a.b")]))
    assert list(scan("axb", [rule("a.b", "regex")]))
    assert not list(scan("sesame", [rule("sesame", enabled=False)]))
    order = rule("open", "regex", unless=r"never\s+", hints=("open",))  # what stands before it
    assert [hit.start for hit in scan("open it, never open it", [order])] == [0]
    assert not list(scan("Open", [rule("open", hints=("shut",))]))  # not even searched


@pytest.mark.parametrize(
    ("pattern", "matcher", "why"),
    [
        ("", "literal", "has 0 characters"),
        ("x" * 4097, "literal", "has 4097 characters"),
        ("(", "regex", "is no regular expression"),
        ("a*", "regex", "matches nothing at all"),
        ("a", "glob", "is unknown"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(pattern: str, matcher: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        rule(pattern, matcher)
    with pytest.raises(BadInput, match="must not be blank"):
        DetectionRule(rule_id=" ", reason_code="x", pattern="y")


OTHERS = """my password is hu7nter!|KEY=aB3xaB3x9|it76 weSt 1234|gb82 west 1234 5698 7654 32|3530111333300000
12 Elm Street|One Elm Road, |Lindenweg 7a|PO Box 123456|5 rue de Lyon|lives at 7b old mill lane|order 10000123
call me at 020 7946 0958|(415) 555-2671|ssn 219 09 9999|joan [at] mail [dot] org"""


def test_a_search_for_all_signs_at_once_finds_what_one_after_another_finds() -> None:
    """Hints and traits only spare work: whatever a pattern matches has them, wherever it stands."""
    groups, every = (SECRETS, ASSIGNED, PERSONAL, WIDE, PLACES, DATES), 0
    search, random = Search(*groups), Random(3)
    parts = [*PLANTED.values(), *OTHERS.replace("\n", "|").split("|")]
    for _ in range(3_000):
        text = random.choice(["", " ", "\n", ": ", "-"]).join(random.sample(parts, random.randint(1, 3)))
        text = random.choice([str, str, str.upper, str.lower])(text)
        one_by_one = [found for group in groups for found in find(text, group)]
        assert Counter(search.find(text)) == Counter(one_by_one), text
        every += len(one_by_one)
    assert every > 3_000


def named(text: str) -> list[str]:
    return sorted({text[found.start : found.end] for found in names(text)})


@pytest.mark.parametrize(
    ("text", "who"),
    [
        # by dictionary: a given name alone, or with whatever stands after it
        ("ask Maria about it", ["Maria"]),
        ("Maria Xylander has the file", ["Maria", "Xylander"]),
        ("it was Anna-Lena B. von der Heide.", ["Anna-Lena", "Heide"]),
        ("J. Smith and K. L. Nguyen", ["J. Smith", "K. L. Nguyen"]),
        # names that are words too: only with a family name
        ("Grace Miller will know", ["Grace", "Miller"]),
        ("Mark Johnson", ["Johnson", "Mark"]),
        # by what is said before them
        ("Mrs. Okwuosa called", ["Okwuosa"]),
        ("my name is Thandiwe", ["Thandiwe"]),
        ("my name is zbigniew mbeki.", ["mbeki", "zbigniew"]),
        ("Dear Xiomara,", ["Xiomara"]),
        ("I am Tsering Quispe and", ["Quispe", "Tsering"]),
        ("Kind regards,\nEluned", ["Eluned"]),
        ("Patient: Ngozi de la Haddad", ["Haddad", "Ngozi"]),
        ("Meneer Vandersloot belde gisteren.", ["Vandersloot"]),
        ("Pozdrawiam, Brzezanski", ["Brzezanski"]),
        # the family's first, as in Korea
        ("ask Park Ji-woo about it", ["Ji-woo", "Park"]),
    ],
)
def test_a_person_is_found_by_each_word_of_the_name(text: str, who: list[str]) -> None:
    assert named(text) == who


@pytest.mark.parametrize(
    "text",
    [
        "Grace Period, Mark All, May Day, Will You",
        "Dear Customer, Dear Sir or Madam, Dear All",
        "I am Sure, this is Important",
        "Adam and Adagrad are optimisers",
        "class MariaService: def Maria(self)",
        "MariaDB, maria.db, /data/Maria, user@Maria, $Maria",
        "name: Path, named Tuple, called False",
        "The Washington Post wrote in March",
    ],
)
def test_nobody_is_found_where_nobody_is_meant(text: str) -> None:
    assert named(text) == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("address", "12 Maple Street"),
        ("address", "1600 Old Mill Rd., Apt 4b, Oak Park, OR 97201"),
        ("address", "221B Baker Street, London NW1 6XE"),
        ("address", "Goethestraße 12a, 60313 Frankfurt"),
        ("address", "Berliner Straße 5"),
        ("address", "14 rue de la Paix, 75002 Paris"),
        ("address", "Calle de Alcalá 48, 28014 Madrid"),
        ("address", "P.O. Box 1207"),
        ("phone", "(415) 555-2671"),
        ("phone", "415-555-2671"),
        ("phone", "030 2345678"),
        ("phone", "0049 151 23456789"),
        ("phone", "06 23 45 67 89"),
        ("phone", "8 (912) 345-67-89"),
        ("phone", "(11) 91234-5678"),
        ("phone", "090-1234-5678"),
        ("address", "ul. Długa 5/7, 00-238 Warszawa"),
        ("address", "Rua Augusta, 1500 - Bela Vista, São Paulo - SP, 01304-001"),
        ("address", "Dlouhá 12, 110 00 Praha 1"),
        ("address", "東京都千代田区丸の内1-1-1"),
        ("address", "서울특별시 강남구 테헤란로 123"),
        ("address", "ул. Ленина, д. 5, кв. 10, Москва, 101000"),
        ("address", "12 MG Road, Bengaluru 560001"),
    ],
)
@pytest.mark.parametrize("around", ["{}", "it is {}, thanks", '"{}"', "a\n{}\nb"])
def test_where_people_live_and_how_they_are_called(kind: str, text: str, around: str) -> None:
    said = around.format(text)
    found = [*find(said, PLACES)] if kind == "address" else [*numbers(said)]
    assert (text, kind) in [(said[hit.start : hit.end], hit.kind.rpartition("_")[2]) for hit in found]


@pytest.mark.parametrize(
    "text",
    [
        "on 2024-11-15, from 100-200-3000 to 10.0.0.12",
        "version 0.12.1, 1204 lines, 0.5 of 3,898,747",
        "3 Ways to learn, 2 Drive letters, 5 stars",
        "uuid 123e4567-e89b-12d3-a456-426614174000",
        "the way to the street, 20 rue",
        "phone 12",
    ],
)
def test_numbers_and_words_are_left_alone(text: str) -> None:
    assert not [*find(text, PLACES), *numbers(text), *labelled(text), *ids(text), *one_time_codes(text)]
    (found,) = labelled("phone number: 5552671 and order 5552672")  # what is called a number needs no form
    assert (found.kind, found.start, found.end) == ("told_phone", 14, 21)
    assert len(GIVEN) > 400 and len(FAMILY) > 400 and not SURE & NO_NAMES  # no ordinary words


NUMBERS = "+14155552671|+1 (415) 555-2671|+44 (0)20 7946 0958|+49 30 12 34 56 78 90|+1.415.555.2671"
ABROAD = "001415555267|0049 (0)151 23456789|0044-20-7946-0958|0033 1 42 68 53 00"


@pytest.mark.parametrize("number", [*NUMBERS.split("|"), *ABROAD.split("|")])
def test_a_telephone_number_is_found_whole_however_it_is_grouped(number: str) -> None:
    text = f"call {number}, please"
    found = find(text, PERSONAL) if number.startswith("+") else numbers(text)
    assert ("phone", len(number)) in [(hit.kind, hit.end - hit.start) for hit in found]
    assert not personal("+1 2 3 4 5 6 7 8 9 10") and not personal("+" + "1" * 16)


def read(text: str) -> set[str]:
    """What a text gives away, as it reads and in what it encodes."""
    return {text[hit.start : hit.end] for hit in everything_in(text, is_encoded=True)}


CONTEXTS = [  # a number by the word beside it, in the languages of those who write it
    ("482913", "482913 is your verification code"),
    ("482913", "Ihr Bestätigungscode lautet 482913"),
    ("482913", "您的验证码是482913，5分钟内有效"),
    ("731", "cvv: 731"),
    ("12.03.1985", "geboren am 12.03.1985"),
    ("12 de marzo de 1985", "nacido el 12 de marzo de 1985"),
    ("1985年3月12日", "生年月日：1985年3月12日"),
    ("B-MW 1234", "Kennzeichen: B-MW 1234"),
    ("12345678", "customer number 12345678"),
    ("943 476 5919", "NHS number 943 476 5919"),
    ("4510 123456", "паспорт 4510 123456"),
    ("3c22fb129a0e", "MAC address 3c22fb129a0e"),
    ("pass2023!", "パスワードはpass2023!です"),
    ("qwerty123", "пароль от почты — qwerty123"),
    ("hunter22x", "user,password\nbob,hunter22x"),
    ("hunter22x", "WIFI:T:WPA;S:Home;P:hunter22x;;"),
    ("hunter22x", 'requests.get(u, auth=("bob", "hunter22x"))'),
    ("84.23.119.7", "request of 84.23.119.7"),
    ("3c:22:fb:12:9a:0e", "seen 3c:22:fb:12:9a:0e twice"),
    ("https://github.com/annaschmidt", "see https://github.com/annaschmidt for more"),
    ("52.520008, 13.404954", "at 52.520008, 13.404954"),
]


@pytest.mark.parametrize(("thing", "text"), CONTEXTS)
def test_a_word_beside_it_or_a_form_of_its_own_gives_a_thing_away(thing: str, text: str) -> None:
    assert thing in read(text)


CHECKED = ["44051401359", "111.444.777-35", "12345678Z", "RSSMRA85T10A562S", "756.9217.0769.85", "110101199003070177"]


@pytest.mark.parametrize("number", CHECKED)
def test_a_national_id_is_known_by_its_check_digits_alone_and_without_the_library_by_a_word(
    number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("stdnum")
    assert number in read(f"it is {number}")
    monkeypatch.setattr("holdfast.privacy.numbers.is_valid", lambda module, text: False)  # as where it is not installed
    assert number not in read(f"it is {number}")
    assert any(number.startswith(hit[:8]) for hit in read(f"national id {number}"))


SPELT = ["anna＠gmail.com", "an\u200bna@gmail.com", "anna%40gmail.com", "anna&#64;gmail.com", "anna\\u0040gmail.com"]
SPELT += [
    "YW5uYS5zY2htaWR0QGdtYWlsLmNvbQ==",
    "616e6e6140676d61696c2e636f6d",
    "аnnа@gmail.com",
    "anna [at] gmail [dot] com",
]


@pytest.mark.parametrize("mail", SPELT)
def test_an_address_is_found_in_every_spelling_and_encoding(mail: str) -> None:
    assert mail in read(f"to {mail} today")


HARMLESS = """sha512-v2kDEe57lecTulaDIuNTPy3Ry4gLGJ6Z1O3vE1krgXZNrsQ+LFTGHVxVjcXPs17LhbZVGedAJv8XZ1tvj5FvSg==
Chrome/120.0.6099.109, version 10.4.19.2, from 2.14.0 to 2.15.1.3
AKIAIOSFODNN7EXAMPLE, YOUR_API_KEY, ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
https://docs.google.com/document/d/1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgvE2upms/edit
127.0.0.1, 10.0.0.5, 192.0.2.7, 2001:db8::1, ff:ff:ff:ff:ff:ff
The password must have 12 characters and is stored as PBKDF2-HMAC-SHA256
Order #4815162342, ISBN 978-3-16-148410-0, EAN 5901234123457, 1731666600123
San Francisco, Monte Carlo, Apache Kafka, Markov chain
pin the version to 2024; verification took 4213 ms"""


@pytest.mark.parametrize("text", HARMLESS.split("\n"))
def test_what_only_resembles_it_is_left_alone_in_every_spelling(text: str) -> None:
    assert read(text) == set()
