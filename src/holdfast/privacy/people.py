"""People in text: names by dictionary and by rule, and postal addresses.

It finds more than `detect` and is less certain: good for replacing, too wide for refusing data. A name that is in no
dictionary (names.txt) is found only if the words around it announce a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from unicodedata import combining, normalize

from holdfast.privacy.detect import Detection, Sign, lower_and_words, sign


def _read() -> dict[str, frozenset[str]]:
    """The sections of names.txt."""
    text = Path(__file__).with_name("names.txt").read_text(encoding="utf-8")
    parts = re.split(r"^\[(\w+)\]$", text, flags=re.MULTILINE)
    return {name: frozenset(words.split()) for name, words in zip(parts[1::2], parts[2::2], strict=True)}


# Never the second half of a name.
_NO_NAMES = """
The A An And Or But If In On At To For From With By Of As Is Are Was Were Be Been Has Have Had Do Does Did Will Would
Can Could Should May Might Must Not No Yes Please Thanks Thank You Your He She It We They I My Our Their This That
These Those There Here What When Where Who Why How Which Monday Tuesday Wednesday Thursday Friday Saturday Sunday
January February March April June July August September October November December Street Avenue Road Lane Drive City
Inc Ltd LLC GmbH Corp Company University Institute School Bank Hotel Hospital Airport Station Church Bridge River Lake
Island Park Prize Award Team Sir Madam All Everyone Everybody Customer Customers Support Service World Friend Friends
Colleague Colleagues User Users Admin Assistant Agent Bot Hiring Manager Office Department API JSON SQL HTTP Python
Java None True False OK Error Unknown Test Null
"""
_LISTS = _read()
COMMON = _LISTS["sure"]  # given names that are nothing else
SURE = COMMON | _LISTS["rare"]
GIVEN = SURE | _LISTS["given"]
SURE_FAMILY = _LISTS["sure_family"]
FAMILY = SURE_FAMILY | _LISTS["family"]
COMMON_FAMILY = _LISTS["common_family"]
FAMILY |= COMMON_FAMILY
KNOWN = GIVEN | FAMILY
NO_NAMES = frozenset(_NO_NAMES.split())
QUIETLY = frozenset(word.lower() for word in SURE)
QUIET_FAMILY = frozenset(word.lower() for word in FAMILY if len(word) > 3)
PARTICLES = (
    r"(?:van|von|der|den|de|da|do|dos|das|del|della|di|la|le|bin|bint|ibn|al|el|ten|ter|zu|zur|af|av|y|e|los|las)"
)
CAPITAL = "[A-ZÀ-ÖØ-ÞĀĂĄĆČĎĐĒĖĘĚĞĪİĹĻŁŃŅŇŌŐŒŔŘŚŞŠŢŤŪŮŰŹŻŽȘȚĐƠƯẠ-ỸΆΈ-ΏΑ-ΫЀ-ЯҐ]"
NAME = rf"(?:[OD]['’])?{CAPITAL}(?:[^\W\d_]*[^\W\d_A-Z])(?:['’-][^\W\d_]+)*"
WORD = re.compile(
    rf"{CAPITAL}(?<![\w@/.$\\-].)(?:(?<=[OD])['’]{CAPITAL})?(?:[^\W\d_]*[^\W\d_A-Z])(?:['’-][^\W\d_]+)*(?![\w@(/]"
    rf"|\.\w)"
)
NEXT = re.compile(rf" (?:{CAPITAL}\. ){{0,2}}(?:{PARTICLES} ){{0,2}}(?P<it>{NAME})(?![\w@(/]|\.\w)")
LISTED = re.compile(rf", (?P<it>{NAME})(?!\w)")
LOUD = re.compile(
    rf"(?P<given>{CAPITAL}(?<!\w.){CAPITAL}{{1,14}}(?:-{CAPITAL}{{2,12}})?)(?= (?:{CAPITAL}\.? )?(?:(?:VAN|VON|DE"
    rf"|DA|DER|DEL|DI|DOS|LA|LE|AL|EL) ){{0,2}}(?P<family>{CAPITAL}{{2,15}}(?:['-]{CAPITAL}{{2,14}})?)(?!\w))"
)
QUIET = re.compile(  # a letter of few kinds first: the search skips to it
    r"[acdefhHimtw](?<!\w.)(?:(?<=a)(?:sk|nd)|(?<=t)(?:ell|hanks|o)|(?<=c)(?:all|ontact|c)|(?<=e)mail|(?<=m)ee?t"
    r"|(?<=[hH])(?:i|ey)|(?<=h)ello|(?<=d)ear|(?<=f)(?:rom|or)|(?<=w)ith|(?<=i)s) "
    r"(?P<it>[a-z]{3,15})\b(?![\w@(/=.]*[\w(=])"
)
PLACE_BEFORE = re.compile(
    r"(?:\bS(?:an|anta|anto|ão|aint|t\.?)|\b(?:Port|Fort|Lake|Mount|North|South|East|West|Los|Las|El|New|Monte"
    r"|Puerto|Villa|La|Le|The|Lady|King|Queen|Prince|Pope|Big)) $"
)
INITIAL = re.compile(rf"(?<!\w){CAPITAL}\. ?(?:{CAPITAL}\. ?)?$")
TAIL = re.compile(rf" {CAPITAL}\.(?!\w)")
_INTRO = (
    r"my name(?:'s| is)|ich hei(?:ß|ss)e|mein name ist|je m'appelle|mon nom est|me llamo|mi nombre es|(?:o )?meu nome "
    r"é|me chamo|chamo-me|mi chiamo|il mio nome è|ik heet|mijn naam is|nazywam się|mam na imię|jmenuj[iu] se|jag heter"
    r"|mitt namn är|jeg hedder|jeg heter|mit navn er|mitt navn er|nimeni on|benim adım|adım|ismim|a nevem|numele meu "
    r"este|mă numesc|mă cheamă|(?:tên tôi|tôi tên) là|nama saya(?: adalah)?|zovem se|moje ime je|меня зовут|моё имя"
    r"|мене звати|моє ім'я|казвам се|με λένε|ονομάζομαι|το όνομά μου είναι|اسمي(?: هو)?|نام من|اسم من|שמי|קוראים לי"
    r"|השם שלי(?: הוא)?|मेरा नाम|আমার নাম|我叫|我的名字是|我是|私の名前は|わたしの名前は|私は|제 이름은|저는|ผมชื่อ"
    r"|ฉันชื่อ|ดิฉันชื่อ|ชื่อของฉันคือ"
)
_NAMED = rf"(?P<it>{NAME}(?: (?:{CAPITAL}\.|(?:{PARTICLES} ){{0,2}}{NAME})){{0,2}})"
_PAIR = rf"(?={NAME} (?:{PARTICLES} ){{0,2}}{NAME})"
CUED = re.compile(
    rf"(?:\b(?:Mr|Mrs|Ms|Miss|Mx|Dr|Prof|Professor|Sir|Madame|Mme|Herrn?|Frau|Señora?|Sra?|Signora?|Monsieur)\.? "
    rf"(?:(?:Dr|Prof)\.? )?|\b(?:Dear|[Ss]incerely,|[Rr]egards,|[Rr]egards from|[Cc]heers,|Yours,)\s|\b(?:[Nn]ame(?:'s"
    rf"| is|d|:|\"?: ?\"| =)|[Cc]alled|[Ii] am|[Ii]'m|[Tt]his is|(?:[Cc]ustomer|[Pp]atient|[Cc]ontact|[Ee]mployee"
    rf"|[Cc]lient|[Aa]ttn|[Aa]ttention|[Aa]uthor|[Ss]igned)(?: by)?:|[Ss]igned(?: by)?|[Ss]poke (?:to|with)|[Mm]et "
    rf"with) ?{_PAIR}){_NAMED}"
)
_CUES = """
mr mrs ms miss mx dr prof professor sir madame mme herr herrn frau señor señora sr sra signor signora monsieur dear
sincerely regards cheers yours name named called i this customer patient contact employee client attn attention author
signed spoke met
"""
CUES = frozenset(_CUES.split())  # a text without any of them has no announced names
GREETINGS = frozenset({"regards", "sincerely", "cheers", "yours"})
TWO = re.compile(rf"{CAPITAL}[\w.'’-]* (?:{PARTICLES} ){{0,2}}{CAPITAL}[^\W\d_]")  # two words with capitals
_FAR_TITLES = (
    "Mlle|Srta|Doña|Dña|Sig|Sig.ra|Dott|Dott.ssa|Dhr|Mevr|Mevrouw|Meneer|Pani|Paní|Fru|Hr|Sayın|Ông|Bà|Bapak|Ibu|Pak"
    "|Dra|Senhor|Senhora|Dona|г-н|г-жа|Господин|господин|господину|Госпожа|госпожа|Пан|пан|Пані|пані|Κύριος|κύριος"
    "|κύριο|Κυρία|κυρία|κ|κα"
)
_FAR_GREETINGS = (
    "Grüße,|Gruß,|Grüßen,|Cordialement,|cordialement,|Saludos,|saludos,|Atentamente,|Abraços,|Atenciosamente,|Saluti,"
    "|saluti,|Groeten,|groet,|Pozdrawiam,|pozdravem,|Hälsningar,|hälsningar,|Hilsen,|hilsen,|Terveisin,|terveisin,"
    "|Saygılarımla,|уважением,|повагою,|εκτίμηση,|Üdvözlettel,|üdvözlettel,|stimă,|trọng,|Hormat saya,|Lieber|Liebe"
    "|Cher|Chère|Querido|Querida|Estimado|Estimada|Caro|Cara|Gentile|Beste|Geachte|Drogi|Droga|Szanowny|Szanowna|Kære"
    "|Kjære|Уважаемый|Уважаемая|Дорогой|Дорогая|Шановний|Шановна|Αγαπητέ|Αγαπητή|Kedves|Dragă|Kính gửi"
)
_FAR_FIELDS = (
    "Nom|Prénom|Nombre|Apellido|Apellidos|Nome|Cognome|Naam|Nachname|Vorname|Kunde|Kundin|Cliente|Paciente|Imię i "
    "nazwisko|Nazwisko|Klient|Pacjent|Jméno|Zákazník|Namn|Kund|Navn|Nimi|Asiakas|Ad Soyad|Müşteri|Név|Ügyfél|Nume|Họ "
    "và tên|Họ tên|Nama|Имя|ФИО|Клиент|Пациент|Ім'я|ПІБ|Клієнт|Όνομα|Ονοματεπώνυμο|Πελάτης|Ime i prezime"
)
CUED_FAR = re.compile(
    rf"\b(?:(?:{_FAR_TITLES.replace('.', '[.]')})\.? (?:(?:Dr|Prof|Ing)\.? )?|(?:{_FAR_GREETINGS})\s"
    rf"|(?:{_FAR_FIELDS})\s?[:=]\s?{_PAIR}){_NAMED}"
)
FAR_CUES = frozenset(re.findall(r"[^\W\d_]+", f"{_FAR_TITLES}|{_FAR_GREETINGS}|{_FAR_FIELDS}".lower())) - {*"iи", "ra"}
INTRODUCED = re.compile(
    rf"(?<![^\W_])(?:{_INTRO})[\s:]{{0,2}}(?P<it>[^\W\d_][\w'-]{{0,24}}(?:[ ・·](?:[^\W\d_][\w'-]{{1,20}})){{0,2}})"
)
_INTROS = "name is|name's|name ist|我叫|我的名字|我是|名前は|私は|제 이름은|저는|ผมชื่อ|ฉันชื่อ|ดิฉันชื่อ|ชื่อของ|मेरा नाम|আমার নাম"
INTROS = tuple(_INTROS.split("|"))
_INTRO_WORDS_WORDS = (
    "heiße heisse appelle nom llamo nombre nome chamo chiamo heet naam nazywam imię jmenuji jmenuju heter namn "
    "hedder navn nimeni adım ismim nevem numele numesc"
    " cheamă tôi nama zovem ime зовут имя звати ім казвам λένε ονομάζομαι όνομά اسمي نام اسم שמי קוראים השם"
)
INTRO_WORDS = frozenset(_INTRO_WORDS_WORDS.split())
_STOPS_WORDS = (
    "und and et y e i og och ja ve и та και و ו और 和 と of from i'm ich je yo eu io ik ja jag jeg je suis est ist "
    "is und but"
)
_STOPS = frozenset(_STOPS_WORDS.split())
STEM = re.compile(r"(?:ого|его|ому|ему|ыми|ими|ой|ей|ым|им|ом|ем|ую|юю|ою|ою|ові|еві|[аяуюеєиіїыйьо])$")
GREEK = re.compile(r"(?:ου|ος|ης|ας|ες|ο|η|α|ε|ά|ή|ό|ού|ής|άς|όν|ην)$")
_RUN = re.compile(r"[\u0590-\u05ff\u0600-\u06ff\u0900-\u09ff\u0e00-\u0e7f]+(?:['\"][\u0590-\u05ff]+)?")
_JOINTS_WORDS = "بن ابن آل أبو ابو عبد בן बिन"
_JOINTS = frozenset(_JOINTS_WORDS.split())
_EAST = re.compile(
    r"[\u3400-\u9fff]{2,}(?:[ 　・·]?[\u3400-\u9fff]+)*|[\uac00-\ud7a3]{2,}|[\u30a0-\u30ff]{2,}(?:[ "
    r"・·][\u30a0-\u30ff]{2,})+"
)
_HONORIFIC = re.compile(
    r"(?P<it>[\u3400-\u9fff\u30a0-\u30ff]{1,4})(?:さん|様|氏|君|ちゃん|先生|女士|小姐)|(?P<ko>[\uac00-\ud7a3]{2,4}) "
    r"?(?:씨|님)(?![\uac00-\ud7a3]{2})"
)
_NOBODY_WORDS = (
    "お客 客 皆 神 仕 同 模 各 奥 王 娘 息子 嫁 店員 医者 店主 有様 様 고객 선생 사장 교수 부장 "
    "과장 대리 손 회원 여러분 형 누 스승 하느 老 这位 那位 那个 各位 某 诸位 母 父 子 おじ"
)
_NOBODY = frozenset(_NOBODY_WORDS.split())
_SURNAMES = (
    "王李张刘陈杨黄赵吴周徐孙马朱胡郭何高林罗郑梁谢宋唐许韩冯邓曹彭曾肖田董潘袁蔡蒋余于杜叶程魏苏吕丁任卢姚沈钟"
    "姜崔谭陆范汪廖石金韦贾夏付方邹熊白孟秦邱江尹薛闫段雷侯龙史陶黎贺顾毛郝龚邵万钱严赖洪武莫孔張劉陳楊黃趙吳孫"
    "馬鄭謝許韓馮鄧蕭葉蘇呂盧鍾陸賈鄒閻賀顧龔萬錢嚴賴"
)
_BEFORE = "叫是找问請请跟和给由与向让我你他她，。、：:；「“\"'( （姓名员人户者"
_AFTER = "的是在说說，。、；！？」”\"')）（ :：也和与與将將已先女昨今明给於于"
_PARTICLE = re.compile(
    r"(?:씨|님|이|가|은|는|을|를|의|에게|입니다|이라고|라고|과|와|도|한테|께|께서|에게서"
    r"|이에요|예요|이고|으로|로)?(?![\uac00-\ud7a3])"
)


def _stem(word: str) -> str:
    return (STEM if word > "Ѐ" else GREEK).sub("", word, count=1)


_OTHER_GIVEN, _OTHER_FAMILY = _LISTS["other_given"], _LISTS["other_family"]
_GIVEN_STEMS = frozenset(_stem(word) for word in _OTHER_GIVEN if "\u0370" < word < "\u0530")
_FAMILY_STEMS = frozenset(_stem(word) for word in _OTHER_FAMILY if "\u0370" < word < "\u0530")
_KNOWN_STEMS = _GIVEN_STEMS | _FAMILY_STEMS
_HAN_COMMON = (  # letters that given names are made of
    "伟芳娜敏静丽强磊军洋勇艳杰娟涛明超秀兰霞平刚桂英华玉萍红玲建国文辉力永健世志义兴良海山波宁贵福龙祥新利"
    "清飞彬富信昌康星光达安岩坚博诚振思豪心乐松庆裕哲江浩亮政奇翰朗宏若朋斌栋维翔旭鹏泽晨辰"
    "家树德泰盛雄冠腾楠航淑惠珠翠雅芝莲雪荣爱香月媛瑞凡佳嘉琼珍莉琳素云巧美慧婷倩颖露瑶怡丹蓉君琴薇梦岚馨韵"
    "聪纯悦冰羽希欣柔竹晓菲阳妮宝小子俊宇轩梓涵浩然雨"
)
_HAN_GIVEN = frozenset(_HAN_COMMON + "".join(word for word in _OTHER_GIVEN if "\u3400" < word < "\u9fff"))
_HANGUL_GIVEN = frozenset(word for word in _OTHER_GIVEN if word >= "\uac00")


def _ascii(word: str) -> str:
    """The word without accents, as the dictionaries have it."""
    if word.isascii():
        return word
    return "".join(letter for letter in normalize("NFKD", word) if not combining(letter))


def names(text: str) -> Iterator[Detection]:
    """Each word of a name separately, so that a later use of one word is found, too."""
    for word in WORD.finditer(text):
        spans = _latin(word, text) if word.group() < "\u0370" else _other(word, text)
        for start, end in spans:
            yield Detection("name", start, end)
    for match in LOUD.finditer(text):
        if _is_loud(match["given"], match["family"]):
            yield from (Detection("name", *match.span(part)) for part in ("given", "family"))
    lower, words = lower_and_words(text)
    if not QUIETLY.isdisjoint(words):
        for match in QUIET.finditer(text):
            if match["it"] in QUIETLY:
                yield Detection("name", *match.span("it"))
    yield from (Detection("name", *span) for span in _quiet(lower, text, words))
    if not CUES.isdisjoint(words) and (not GREETINGS.isdisjoint(words) or TWO.search(text)):
        for match in CUED.finditer(text):
            yield from _told(text, *match.span("it"))
    if not FAR_CUES.isdisjoint(words):
        for match in CUED_FAR.finditer(text):
            yield from _told(text, *match.span("it"))
    if not INTRO_WORDS.isdisjoint(words) or any(map(lower.__contains__, INTROS)):
        for match in INTRODUCED.finditer(lower):
            yield from _told(text, *match.span("it"), is_sure=True)
    if not text.isascii():
        yield from _without_case(text)


def _is_loud(first: str, second: str) -> bool:
    """Whether two words in capitals are a name; in any order, for families come first in many places."""
    one, two = _ascii(first.title()), _ascii(second.title())
    if first > "\u0370":
        one, two = _stem(first.title()), _stem(second.title())
        return (one in _GIVEN_STEMS and two in _KNOWN_STEMS) or (one in _FAMILY_STEMS and two in _GIVEN_STEMS)
    given = any(part in GIVEN for part in one.title().split("-"))
    is_pair = (one in SURE and two in FAMILY) or (given and two in SURE_FAMILY) or (one in SURE_FAMILY and two in SURE)
    return is_pair and two not in NO_NAMES


def _quiet(lower: str, text: str, words: frozenset[str]) -> Iterator[tuple[int, int]]:
    """A given and a family name in lower case, beside each other."""
    if QUIETLY.isdisjoint(words) or QUIET_FAMILY.isdisjoint(words):
        return
    for match in _PAIRS.finditer(lower):
        one, two = _ascii(match["one"]), _ascii(match["two"])
        if (one in QUIETLY and two in QUIET_FAMILY) and text[match.start()].islower():
            yield match.span("one")
            yield match.span("two")


_PAIRS = re.compile(
    r"(?<![\w@./-])(?P<one>[^\W\d_]{3,15})(?= (?:(?:van|von|de|da|der|del|di|dos|la|le|al|el) "
    r"){0,2}(?P<two>[^\W\d_]{3,20})(?![\w@/-]|\.\w))"
)


def _latin(word: re.Match[str], text: str) -> Iterator[tuple[int, int]]:
    """A given name with the word after it, or alone if it is unambiguous; a family name beside a given one."""
    whole = _ascii(word.group())
    parts = whole.split("-")
    is_given = any(part in GIVEN for part in parts)
    if not is_given and whole not in FAMILY and whole in NO_NAMES:
        return
    after = NEXT.match(text, word.end())
    second = _ascii(after["it"]) if after is not None else ""
    if is_given:
        is_sure = len(parts) > 1 or parts[0] in SURE
        if PLACE_BEFORE.search(text[max(0, word.start() - 8) : word.start()]):
            return
        if second and second not in NO_NAMES and (is_sure or second in SURE_FAMILY or second in COMMON_FAMILY):
            yield word.span()
            yield after.span("it") if after else word.span()
            yield from _third(text, after)
            return
        tail = TAIL.match(text, word.end())  # Maria L.
        is_alone = is_sure and (any(part in COMMON for part in parts) or _is_within(text, word.start()))
        if tail is not None or is_alone:
            yield word.start(), tail.end() if tail else word.end()
            return
    if whole in SURE_FAMILY and second and second in GIVEN:
        yield word.span()
        yield after.span("it") if after else word.span()
        yield from _third(text, after)
    elif (
        whole in FAMILY and re.fullmatch(r"[A-Z][a-z]{1,5}-[A-Za-z][a-z]{1,5}", second) and after is not None
    ):  # Kim Min-jun
        yield word.span()
        yield after.span("it")
    elif second in SURE_FAMILY and whole not in NO_NAMES and second not in NO_NAMES and after is not None:
        yield word.span()
        yield after.span("it")
    elif whole in FAMILY:
        listed = LISTED.match(text, word.end())  # Smith, Robert
        is_listed = listed is not None and _ascii(listed["it"]) in SURE
        if is_listed:
            yield word.span()
        elif initial := INITIAL.search(text[max(0, word.start() - 6) : word.start()]):
            yield word.start() - (min(6, word.start()) - initial.start()), word.end()


def _is_within(text: str, at: int) -> bool:
    """Whether a sentence has begun before: there a capital means something."""
    return at > 1 and text[at - 1] == " " and (text[at - 2].islower() or text[at - 2] in ",;")


def _third(text: str, after: re.Match[str] | None) -> Iterator[tuple[int, int]]:
    """The word after a given and a family name, if it is a family name too."""
    more = NEXT.match(text, after.end()) if after is not None else None
    if more is not None and _ascii(more["it"]) in KNOWN:
        yield more.span("it")


def _other(word: re.Match[str], text: str) -> Iterator[tuple[int, int]]:
    """A Cyrillic or Greek name, in any case of the grammar."""
    stem = _stem(word.group())
    after = NEXT.match(text, word.end())
    second = _stem(after["it"]) if after is not None else ""
    if len(stem) < 2:
        return
    is_pair = (stem in _GIVEN_STEMS and len(second) > 2) or (stem in _FAMILY_STEMS and second in _GIVEN_STEMS)
    if is_pair and after is not None:
        yield word.span()
        yield after.span("it")
        more = NEXT.match(text, after.end())
        if more is not None and (
            re.search(r"ови?ч|еви?ч|овн|евн|ична", more["it"]) or _stem(more["it"]) in _KNOWN_STEMS
        ):
            yield more.span("it")
    elif (
        stem in _GIVEN_STEMS
        and len(word.group()) > 3
        and not re.search(r"(?:^|[.!?\n]\s{0,2})$", text[max(0, word.start() - 3) : word.start()])
    ):
        yield word.span()
    elif stem in _GIVEN_STEMS and (tail := TAIL.match(text, word.end())):
        yield word.start(), tail.end()
    elif stem in _FAMILY_STEMS and (
        INITIAL.search(text[max(0, word.start() - 4) : word.start()])
        or re.match(rf" {CAPITAL}\. ?{CAPITAL}\.", text[word.end() : word.end() + 7])
    ):
        yield word.span()


def _without_case(text: str) -> Iterator[Detection]:
    """Names in scripts without capitals: a given name beside another name, or an honorific."""
    before: re.Match[str] | None = None
    joined: list[re.Match[str]] = []
    for run in _RUN.finditer(text):
        is_next = before is not None and text[before.end() : run.start()] == " "
        is_name = run.group() in _OTHER_GIVEN or run.group() in _OTHER_FAMILY
        if not is_next:
            yield from _joined(joined)
            joined = []
        if is_name or (joined and run.group() in _JOINTS):
            joined.append(run)
        else:
            yield from _joined(joined)
            joined = []
        before = run
    yield from _joined(joined)
    for run in _EAST.finditer(text):
        yield from _eastern(text, run)
    for match in _HONORIFIC.finditer(text):
        part = "it" if match["it"] else "ko"
        if match[part] not in _NOBODY and (
            match[part][:1] in _SURNAMES
            or match[part] in _OTHER_FAMILY
            or (part == "ko" and match[part][0] in _OTHER_FAMILY and len(match[part]) > 2)
        ):
            yield Detection("name", *match.span(part))


def _joined(words: list[re.Match[str]]) -> Iterator[Detection]:
    if len(words) >= 2 and any(word.group() in _OTHER_GIVEN for word in words):
        yield from (Detection("name", *word.span()) for word in words)


def _eastern(text: str, run: re.Match[str]) -> Iterator[Detection]:
    """Chinese, Japanese and Korean names: the family name first, then a given one."""
    said = run.group()
    if said[0] >= "\uac00":
        for size in range(3, min(len(said), 4) + 1):
            if said[0] in _OTHER_FAMILY and said[1:size] in _HANGUL_GIVEN and _PARTICLE.match(said, size):
                yield Detection("name", run.start(), run.start() + size)
        return
    for at in range(len(said)):
        for size in (2, 1, 3):
            family = said[at : at + size]
            if family not in _OTHER_FAMILY or (size == 1 and family not in _SURNAMES):
                continue
            gap = at + size + (said[at + size : at + size + 1] in (" ", "　", "・", "·"))
            lengths = [n for n in (2, 3, 1) if gap + n <= len(said) and (n > 1 or size > 1)]
            given = next((n for n in lengths if said[gap : gap + n] in _OTHER_GIVEN), 0)
            if not given and size == 1 and _stands_alone(text, run.start() + at):
                given = next((n for n in (2, 1) if _is_given_han(text, run.start() + gap, n)), 0)
            if given:
                yield Detection("name", run.start() + at, run.start() + gap + given)
                break


def _stands_alone(text: str, at: int) -> bool:
    return at == 0 or not "\u3400" <= text[at - 1] <= "\u9fff" or text[at - 1] in _BEFORE


def _is_given_han(text: str, at: int, size: int) -> bool:
    letters = text[at : at + size]
    after = text[at + size : at + size + 1]
    return (
        len(letters) == size
        and set(letters) <= _HAN_GIVEN
        and (not after or not "\u3400" <= after <= "\u9fff" or after in _AFTER)
    )


def _told(text: str, start: int, end: int, *, is_sure: bool = False) -> Iterator[Detection]:
    """The words of an announced name; in lower case it ends where a sentence goes on."""
    words = [(start + word.start(), start + word.end()) for word in re.finditer(r"[^\W\d_][\w'’-]*", text[start:end])]
    has_capital = bool(words) and text[words[0][0]].isupper()
    if not words or text[slice(*words[0])] in NO_NAMES:
        return
    for place, (a, b) in enumerate(words):
        word = text[a:b]
        if is_sure and (
            word.lower() in _STOPS
            or (place and has_capital and word[0].islower() and not re.fullmatch(PARTICLES, word))
        ):
            return
        if word not in NO_NAMES and not re.fullmatch(PARTICLES, word) and (len(word) > 1 or word > "\u3000"):
            yield Detection("name", a, b)


WAYS = (
    "Street|St|Avenue|Ave|Av|Road|Rd|Boulevard|Blvd|Lane|Ln|Drive|Dr|Court|Ct|Way|Place|Pl|Square|Sq|Terrace|Parkway"
    "|Pkwy|Highway|Hwy|Close|Crescent|Cres|Gardens|Row|Hill|Grove|Mews|Walk|Trail|Circle|Alley|Quay|Marg|Nagar|Layout"
    "|Colony|Sector|Phase|Cross|Main"
)
TOWN = (
    rf"{CAPITAL}[^\W\d_A-Z]+(?:(?:[ -]|['’])(?:(?:de|del|am|an der|im|of|upon|sur|la|le|di|do"
    rf"|da|nad|bei|ob) )?{CAPITAL}[^\W\d_A-Z]+){{0,3}}(?: \d{{1,2}}\b)?"
)
POSTAL = (
    r"(?:[A-Z]{1,3}[ -])?(?:\d{5}-\d{3,4}|\d{4}-\d{3}|\d{3}-\d{4}|\d{3}[ -]\d{2,3}|\d{2}-\d{3}|\d{4} [A-Z]{2}"
    r"|\d{4,7})(?!\d)|[A-Z]{1,2}\d[A-Z\d]? ?\d[A-Z]{2}\b|[A-Z]\d[A-Z] ?\d[A-Z]\d\b|[A-Z]\d{2} ?[A-Z\d]{4}\b"
)
FLAT = (
    r"(?:,? (?:Apt|Apartment|Suite|Ste|Unit|Flat|Floor|Fl|Bldg|Building|#|bus|app|byt|lok|m|kv"
    r"|Wohnung|Top|Esc|Piso|Bloco|apto?|appartement|interno|int|sc|et|ap|bl)\.? ?[\w-]{1,6})"
)
AFTER = (
    rf"{FLAT}{{0,2}}(?:,? \d{{1,2}}[º°ª.]? ?[A-Za-z]{{0,4}}\b(?=,))?(?:(?:,\s{{0,2}}| [-–] ?|\s)(?:(?:{POSTAL})(?:,? "
    rf"[-–]?\s?{TOWN}(?: \([A-Z]{{2}}\))?)?|(?:(?<=[,–-]\s)|(?<=\n)){TOWN}(?:,?\s(?:[A-Z]{{2,3}}\s)?(?:{POSTAL}))?"
    rf"|(?:(?<=,\s)|(?<=\n)){TOWN}|(?<=[,–-]\s)[A-Z]{{2,3}}\b)){{0,4}}"
)
_EAST_WAYS = (
    r"〒?\s?\d{3}-\d{4}[\s,]{0,2}[\u3400-\u9fff][^\s、。,;\"')]{3,50}(?:\s[^\s、。,;\"')]{1,20}\d{1,4}号?室?)?"
    r"|(?:東京都|北海道|京都府|大阪府|[\u3400-\u9fff]{2,3}県)[\u3400-\u9fff\u3040-\u30ff]{1,20}?[\d一二三四"
    r"五六七八九十]{1,4}(?:丁目|番地?|号"
    r"|-\d{1,4})[^\s、。,;\"')]{0,24}"
    r"|[\u3400-\u9fff]{2,8}?(?:省|市|自治区|區|区|縣|县)[\u3400-\u9fff\d]{1,30}?(?:路|街|道|巷|弄|里|村|大道"
    r"|段)\s?\d{1,5}\s?[号號]?(?:[\u3400-\u9fff\d-]{0,20}(?:室|楼|樓|栋|单元|层|座|[号號]))?(?:[\s,]{0,2}(?:邮"
    r"编)?\d{6})?"
    r"|(?:[\uac00-\ud7a3]{2,8}(?:시|도) )(?:[\uac00-\ud7a3]{1,6}(?:구|군|시|읍|면) ){1,2}[\uac00-\ud7a3\d]{1,12}(?:로"
    r"|길"
    r"|동)(?:\d{1,3}번?길)? ?\d{1,5}(?:-\d{1,4})?(?:[ ,]{1,2}[\uac00-\ud7a3\d]{1,12}(?:동"
    r"|호|층)){0,3}(?: ?\(?\d{5}\)?)?"
    rf"|(?:\d{{6}},?\s)?(?:(?:г|м)\.?\s?{TOWN},\s)?(?:ул|улиц[аеыу]|пр-т|проспект\w?|просп|пер|переулок|пл|площадь"
    rf"|наб|бул|бульвар|вул|вулиц[яіюи]|шоссе)\.?\s{CAPITAL}[\w .-]{{2,30}}?,?\s(?:д|дом|буд"
    rf"|будинок)?\.?\s?\d{{1,4}}[а-яa-z]?(?:/\d+)?(?:,?\s(?:корп|к|стр)\.?\s?\d{{1,3}})?(?:,?\s(?:кв|оф"
    rf"|квартира)\.?\s?\d{{1,4}})?(?:,\s(?:г\.\s|м\.\s)?{TOWN})?(?:,\s\d{{5,6}})?"
    r"|(?:\d{1,4}\s)?(?:شارع|طريق|حي|خیابان|بلوار)\s[\u0600-\u06ff ]{2,40}?(?:[،,]?\s?(?:رقم|عمارة|شقة|مبنى"
    r"|پلاک)?\s?\d{1,5})(?:[،,]\s[\u0600-\u06ff ]{2,20}\d{0,6}){0,3}|\d{1,4}\s(?:شارع|طريق)\s[\u0600-\u06ff "
    r"]{2,30}(?:[،,]\s?[\u0600-\u06ff ]{2,20}\d{0,6}){0,3}|(?:רחוב|רח'|שדרות|שד'|דרך)\s[א-ת "
    r"\"'-]{2,25}\s?\d{1,4}(?:,?\s?דירה \d{1,3})?(?:,\s?[א-ת -]{2,18})?(?:,?\s?\d{5,7})?"
    r"|\d{1,4}(?:/\d{1,4})?\s(?:หมู่ ?\d{0,2}\s?)?(?:ถนน|ซอย|ถ\.|ซ\.)\s?[\u0e00-\u0e7f\d ]{2,60}(?:\d{5})?|(?:मकान"
    r"|प्लॉट|फ्लैट|घर)[\u0900-\u097f .]{0,12}\d{1,5}[^\n।;]{2,70}?\d{6}"
)
NUMBERED = re.compile(  # a house or box number: few digits alone, or a number word
    r"[\dFOT](?:(?<=\d)(?<![\w.-].)\d{0,5}[^\W\d_]?(?!\w)|(?<=O)ne|(?<=T)(?:wo|hree|en)|(?<=F)(?:our|ive))"
    r"|[\u0590-\uffff]\d"
)
_FAR = r"[\u0400-\u05ff\u0600-\u06ff\u0900-\u0e7f\u3040-\u9fff\uac00-\ud7a3]"
_FAR_NUMBER = re.compile(_FAR)
_BEFORE_WAY = re.compile(
    rf"(?:[0-9](?:[A-Za-z]|/\d{{1,4}}[A-Z]?)?|One|Two|Three|Four|Five|Ten),? (?:[NSEW]{{1,2}}\.? )?(?:{CAPITAL}|\d)"
)
_BEFORE_RUE = re.compile(r"\d(?: ?[A-D])?,? (?:(?:bis|ter),? )?(?:rue|av|bo|bd|pl|ch|al|im|qu|ro|co|sq|pa)")
_AFTER_STREET = re.compile(  # the last letters of a street's word before a number
    r"[0-9](?<= [0-9])(?<=(?:aße|sse|tr\.|weg|Weg|atz|lee|ing|amm|fer|aat|aan|ein|cht|ade|gel|ijk|tan|gen|änd|ata|ate"
    r"|ten|vei|ien|vej|llé|atu|tie|uja|lku|tca| út|tér|rút| u\.|ice|stí|kak|ağı|esi|ad\.|sk\.) [0-9])"
)
_ARTICLE = re.compile(rf"[AIZUH](?<!\w.)(?:m|n der|n den|uf der|uf dem|n der|um|ur|nter den|inter der) {CAPITAL}")
_CAPITAL_NUMBER = re.compile(r"[0-9](?:(?<=[^\W\d_] [0-9])|(?<=[^\W\d_], [0-9])|(?<=[º°.#] [0-9])|(?<=[º°.#][0-9]))")
_POST_TOWN = re.compile(rf",(?<=[0-9A-Za-z],)\s{{1,2}}(?:[A-Z]{{1,3}}[ -])?[0-9A-Z][0-9A-Z -]{{2,8}} {CAPITAL}")
_TOWN_FIRST = re.compile(rf"[0-9](?<![\w.-].)[0-9]{{3}} {CAPITAL}[^\W\d_]+(?: [^\n,]{{1,20}})?, {CAPITAL}")
# Number first, number last, then national forms: each with the words that it cannot be without.
HOUSES: Mapping[str, Sign] = {
    "address": sign(
        rf"(?:\b(?:Flat|Apt|Apartment|Unit|Suite|House|Plot|Door)\.? (?:No\.? ?)?[\w-]{{1,5}}, )?(?<![\w.-])"
        rf"(?:\d{{1,5}}[A-Za-z]?(?:/\d{{1,4}}[A-Z]?)?|One|Two|Three|Four|Five|Ten),? (?:[NSEW]{{1,2}}\.? )?"
        rf"(?:{CAPITAL}[\w.'’-]{{0,20}} |\d{{1,3}}(?:st|nd|rd|th) ){{1,4}}"
        rf"(?:{WAYS})\b\.?(?: [NSEW]{{1,2}}\b)?{AFTER}",
        words="street|st|avenue|ave|av|road|rd|boulevard|blvd|lane|ln|drive|dr|court|ct|way|place|pl|square|sq"
        "|terrace|parkway|pkwy|highway|hwy|close|crescent|cres|gardens|row|hill|grove|mews|walk|trail|circle|alley"
        "|quay|marg|nagar|layout|colony|sector|phase|cross|main",
        trait=_BEFORE_WAY,
    ),
    "french_address": sign(
        rf"(?<![\w.-])\d{{1,4}}(?: ?[A-D])?,? (?:(?:bis|ter),? )?(?:rue|avenue|av\.|boulevard|bd|place|chemin|allée"
        rf"|impasse|quai|route|cours|square|passage) (?:de |du |des |la |le |les |l['’]|d['’])*{TOWN}{AFTER}",
        words="rue|avenue|av|boulevard|bd|place|chemin|allée|impasse|quai|route|cours|square|passage",
        trait=_BEFORE_RUE,
    ),
    "street_address": sign(
        rf"\b{CAPITAL}[^\W\d_]*(?:[ -](?:van |de |den |der |het |ten |af )?{CAPITAL}?[^\W\d_]*){{0,3}}?"
        rf"(?:stra(?:ß|ss)e|str\.|weg|platz|allee|gasse|ring|damm|ufer|straat|laan|plein|gracht|kade|singel|dijk"
        rf"|gatan|vägen|gränd|gata|gate|gaten|vei|veien|vegen|vej|gade|allé|katu|tie|kuja|polku| utca| út| tér| "
        rf"körút|u\.|ulice|náměstí| sokak| sokağı| caddesi| cad\.| sk\.| Straße| Weg| Platz| Allee| Ring| Damm| Ufer)"
        rf",? (?:n[or]\.? ?|No: ?)?\d{{1,4}}(?:[-/ ]?[a-zA-Z]\b|[-/]\d{{1,3}})?\b\.?{AFTER}",
        trait=_AFTER_STREET,
    ),
    "article_address": sign(
        rf"\b(?:Am|An der|An den|Auf der|Auf dem|Im|In der|Zum|Zur|Unter den|Hinter der) {TOWN} "
        rf"\d{{1,4}}[a-z]?\b(?=[,.;:!?)\"'\n]|$){AFTER}",
        trait=_ARTICLE,
    ),
    "japanese_address": sign(
        rf"(?<![\w.-])\d{{1,2}}-\d{{1,2}}-\d{{1,3}} {CAPITAL}\w+(?:, {CAPITAL}[\w-]+)*(?: {POSTAL})?",
        words="ku|shi|cho|machi|dori|tokyo|osaka|kyoto",
        trait=NUMBERED,
    ),
    "southern_address": sign(
        rf"\b(?=[A-ZŮĐΟΛοuaop])(?:Calle|C/|C\.|Carrer|Avenida|Avda?\.?|Av\.|Plaza|Pza\.|Pl\.|Paseo|Pº|Ronda|Camino"
        rf"|Travesía|Via|Viale|V\.le|Corso|C\.so|Piazza|P\.zza|Vicolo|Largo|Strada|Rua|R\.|Travessa|Praça|Alameda"
        rf"|Estrada|Rodovia|Ulica|[Uu]l\.|[Aa]l\.|[Aa]leja|[Oo]s\.|[Pp]l\.|Str\.|Strada|Bd\.|B-dul|Calea|Aleea"
        rf"|[Ůů]l\.|Jl\.|Jalan|Jln\.?|Gg\.|Οδός|Λεωφ(?:όρος|\.)|οδός|Đường|Phố|Carrera|Cra\.|Transversal|Diagonal) "
        rf"(?:de |del |la |las |los |el |di |da |do |dos |das |dei |delle |della |lui |św\. )*(?:{TOWN}"
        rf"|\d{{1,3}}(?= (?:#|No|n[ºo])))(?:,? ?(?:n[ºo°.]+|nr\.?|No\.?|#|n\.)? ?\d{{1,5}}(?:[-/ ]?[A-Za-z]\b"
        rf"|[-/]\d{{1,4}})*)(?: ?m\.? ?\d{{1,3}}| ?- ?\d{{1,3}}(?!\d)| ?/ ?\d{{1,3}})?{AFTER}",
        words="calle|carrer|avenida|avda|avd|av|plaza|pza|pl|paseo|pº|ronda|camino|travesía|via|viale|corso|piazza"
        "|vicolo|largo|strada|rua|travessa|praça|alameda|estrada|rodovia|ulica|ul|al|aleja|os|str|bd|dul|calea"
        "|aleea|jl|jalan|jln|gg|οδός|λεωφόρος|λεωφ|đường|phố|carrera|cra|transversal|diagonal",
        trait=_CAPITAL_NUMBER,
    ),
    "vietnamese_address": sign(
        rf"(?<![\w.-])(?:Số )?\d{{1,4}}[A-Z]?(?:/\d{{1,4}})* (?:[đĐ]ường |[pP]hố |[nN]gõ )?{TOWN},(?: "
        rf"[^\n,.;]{{2,25}},){{0,2}} (?:[Qq]uận|[Pp]hường|TP\.?|Thành phố|Hà Nội|Đà Nẵng|Hồ Chí "
        rf"Minh)[^\n,.;]{{0,20}}(?:, [^\n,.;]{{2,20}}){{0,2}}",
        words="quận|phường|tp|thành|hà|đà|hồ",
        trait=NUMBERED,
    ),
    "turkish_address": sign(
        rf"\b{TOWN} (?:Mah(?:allesi|\.)|Cad(?:desi|\.)|Sok(?:ak|ağı|\.)|Bulvar[ıi]|Blv\.)[^\n;]{{0,40}}?No ?[:.]? "
        rf"?\d{{1,4}}(?:/\d{{1,4}})?(?:[ ,]{{1,2}}(?:D(?:aire)?[:.] ?\d{{1,3}}|\d{{5}}|{TOWN}(?:/{TOWN})?)){{0,4}}",
        words="mah|mahallesi|cad|caddesi|sok|sokak|sokağı|bulvarı|bulvari|blv",
        trait=NUMBERED,
    ),
    "hungarian_address": sign(
        rf"(?<![\w.-])\d{{4}} {TOWN}, {TOWN}(?: (?:utca|út|útja|tér|körút|köz|u\.|krt\.))? "
        rf"\d{{1,4}}(?:[./-]\w{{1,4}})*",
        gate="digits",
        trait=_TOWN_FIRST,
    ),
    "postal_address": sign(
        rf"\b{CAPITAL}[\w.'’-]{{1,25}}(?: [\w.'’-]{{1,20}}){{0,3}},? (?:n[or]\.? ?|č\.? "
        rf"?)?\d{{1,4}}(?:[/-]\d{{1,4}})?(?: ?[a-zA-Z])?,\s{{1,2}}(?:{POSTAL}) {TOWN}(?:, {TOWN})?",
        gate="digits",
        trait=_POST_TOWN,
    ),
    "box_address": sign(
        rf"\b(?:P\.? ?O\.? Box|Postfach|B\.?P\.?|Apartado|Postbus|Casella Postale|Skrytka|Postboks|Caixa Postal) "
        rf"\d[\d ]{{0,6}}\b(?:, (?:{POSTAL} )?{TOWN}(?:,? [A-Z]{{2}})?(?: {POSTAL})?)?",
        words="box|postfach|bp|b|apartado|postbus|casella|skrytka|postboks|caixa",
        trait=NUMBERED,
    ),
    "eastern_address": sign(
        _EAST_WAYS,
        gate="far",
        trait=_FAR_NUMBER,
    ),
}
_ADDRESSES = (
    r"address|adresse|direcci[óo]n|domicilio|endere[çc]o|morada|indirizzo|residenza|adres(?:a)?"
    r"|anschrift|adress|osoite|c[íi]m|lakcím|địa chỉ|alamat|адрес[ае]?|διεύθυνση|العنوان|عنوان"
    r"|כתובת|पता|ঠিকানা|地址|住址|住所|주소|ที่อยู่|آدرس|نشانی"
)
_LIVES = (
    r"(?:lives?|living|resides?|residing|located|stays) at|wohnhaft(?: in)?|wohn[et]{1,2}(?: in| an)?|habite(?: au| "
    r"à)?|vivo en|vive en|moro n[ao]|mora n[ao]|abit[oa] in|woon(?:t)? (?:op|aan|in)|mieszka[m]? (?:przy|na)"
    r"|bydl[íi][m]?|bor (?:på|i)|asu[un]{1,2}|oturuyor\w*|lakik|lakom|locuie\w{2,4}|sống tại|tinggal di|прожива\w{2,4}"
    r"|живу|живет|(?:ship|send|deliver|mail)(?: it| this| the package)? to"
)
PLACES: Mapping[str, Sign] = {
    **HOUSES,
    "told_address": sign(
        rf"(?<![^\W_])(?<!ip )(?<!mail )(?<!mac )(?<!web )(?<!memory )(?:(?:{_ADDRESSES})(?:\s(?:is|ist|est|es|é|è"
        rf"|jest)\b|[\"']?\s{{0,2}}[:=]|は|是|는|은)|(?:{_LIVES})\b)\s{{0,3}}:?\s{{0,2}}[\"']?(?P<it>[^\n;"
        rf"|\"<>{{}}]{{8,150}}?)(?=[.!?]?(?:[\n;|\"<>]|$)|[.!?]\s)",
        "地址|住址|住所|주소|ที่อยู่|पता|ঠিকানা",
        words="address|adress|adresse|dirección|direccion|domicilio|endereço|endereco|morada|indirizzo|residenza"
        "|adres|adresa|anschrift|wohnhaft|wohne|wohnt|osoite|cím|lakcím|địa|alamat|адрес|адреса|адресе|διεύθυνση"
        "|العنوان|عنوان|כתובת|آدرس|نشانی|lives|live|living|reside|resides|residing|located|stays|habite|vivo|vive|moro"
        "|mora|abito|abita|woon|woont|mieszka|mieszkam|bydlí|bydlím|bor|asun|asuu|oturuyor|oturuyorum|lakik|lakom"
        "|locuiesc|locuiește|sống|tinggal|проживает|проживаю|живу|живет|ship|send|deliver|mail",
        trait=NUMBERED,
        test=lambda text: _is_place(text),
        any_case=True,
    ),
}
_PLACEHOLDER = re.compile(
    r"[@=(){}\[\]\\`]|://|0x|::|\b(?:the|your|this|our|each|any|was|were|will|should|must|and then|please|not)\b"
    r"|\d+\.\d+\.\d+|\d{1,2}:\d{2}",
    re.IGNORECASE,
)


def _is_place(text: str) -> bool:
    """What follows "address:" is one if it has words and a house number or postal code, and reads like no sentence."""
    has_number = re.search(r"(?<![\d.])\d{1,7}(?![\d:%])", text)
    has_words = len(re.findall(r"[^\W\d_]{2,}", text)) >= 1 and (" " in text.strip() or text > "\u3000")
    return bool(has_number and has_words and not _PLACEHOLDER.search(text) and len(text.split()) <= 18)
