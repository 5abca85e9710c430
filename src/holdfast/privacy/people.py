"""People in text: names by dictionary and by rule, postal addresses, telephone numbers in national form.

It finds more than `detect` and is less certain: good for replacing, too wide for refusing data. A name that is in no
dictionary is found only if the words around it announce a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from unicodedata import combining, normalize

from holdfast.privacy.detect import Detection, Sign, is_grouped, sign

_GIVEN = """
Alex Andy Becky Ben Cathy Charlie Chris Dan Danny Dave Doug Eddie Fred Greg Jeff Jenny Jerry Jim Jimmy Joe Joey Ken
Larry Liz Matt Mike Nick Pete Phil Rick Ron Sam Steve Sue Ted Tim Tom Tony Vicky Walt Zach
Aaron Abdul Abigail Adam Ada Adriana Adrian Agnes Ahmad Ahmed Aisha Akira Alan Alberto Alejandra Alejandro Aleksander
Alessandro Alexander Alexandra Alexis Alfred Ali Alice Alicia Alisha Alison Allison Amanda Amelia Amina Amir Amy Ana
Anastasia Anders Andrea Andreas Andrei Andrew Angela Angelina Anil Anita Anja Anna Annabel Anne Annette Annie Anthony
Antoine Anton Antonia Antonio Anya Arjun Arthur Asha Ashley Astrid Audrey Aurora Ayesha Barbara Beatrice Beatriz
Benjamin Bernard Bernardo Bernd Bernhard Beth Bethany Betty Bianca Birgit Bjorn Bob Boris Brandon Brenda Brian Brigitte
Bruno Bryan Camila Camille Carla Carlos Carmen Carol Carolina Caroline Catherine Cecilia Chandra Charles Charlotte Chen
Cheryl Chiara Chloe Christian Christina Christine Christoph Christopher Claire Clara Claudia Claus Colin Connor Craig
Cristina Cynthia Daisuke Daniel Daniela Danielle Darius David Deborah Deepak Denise Dennis Derek Diana Diego Dieter
Dimitri Dmitri Dominic Dominik Donald Donna Dorothy Douglas Dylan Edith Eduardo Edward Edwin Eileen Elaine Eleanor
Elena Elias Elif Elijah Elisa Elisabeth Elizabeth Ella Ellen Elsa Emilia Emilie Emily Emma Emmanuel Enrique Eric Erica
Erik Erika Ernesto Esther Ethan Eugene Eva Evelyn Fabian Farah Fatima Fatma Felix Fernanda Fernando Fiona Florian
Frances Francesca Francesco Francisco Frank Franz Frederick Friedrich Fumiko Gabriel Gabriela Gareth Gary Geoffrey
George Georgia Gerald Gerhard Giovanni Giulia Giuseppe Gloria Gonzalo Gordon Graham Greta Gregory Guillermo Gunther
Gustavo Hamza Hana Hannah Hans Haruto Harold Harriet Hassan Heather Hector Heidi Heinrich Helen Helena Helga Henri
Henry Hiroshi Hugo Hussein Ian Ibrahim Igor Ingrid Irene Irina Isaac Isabel Isabella Ivan Jacob Jacqueline Jakub James
Jamie Jan Jane Janet Janice Jasmine Jason Javier Jean Jeffrey Jennifer Jeremy Jessica Joan Joanna Joao Joaquin Joel
Johan Johanna Johannes John Jonas Jonathan Jorge Jose Josef Joseph Joshua Joyce Juan Juana Judith Julia Julian Juliana
Julie Julien Jun Jurgen Justin Kaito Karen Karim Karin Karl Katarina Kate Katherine Kathleen Katja Katrin Kavita Keith
Kelly Kenji Kenneth Kevin Khalid Kimberly Klaus Krishna Kristen Kristina Kumar Kwame Lakshmi Lars Laura Lauren Laurent
Lea Leila Lena Leonard Leonardo Leticia Liam Lina Linda Lisa Logan Lorenzo Louis Louise Luca Lucas Lucia Lucy Luigi
Luis Luisa Lukas Lydia Madison Magdalena Mahmoud Manuel Manuela Marcel Marcia Marco Marcos Marcus Margaret Maria Mariam
Marie Marina Mario Markus Marta Martha Martin Martina Mary Maryam Mateo Mathilde Matteo Matthew Matthias Maureen
Maurice Max Maximilian Maya Megan Mehmet Mei Melanie Melissa Mia Michael Michelle Miguel Mikhail Mila Ming Miriam
Mohamed Mohammad Mohammed Monica Monika Monique Mustafa Nadia Nancy Naomi Natalia Natalie Natasha Nathan Neha Nicholas
Nicola Nicolas Nicole Niklas Nikolai Nina Noah Noor Nora Norma Oleg Olga Oliver Olivia Omar Oscar Oskar Otto Owen Pablo
Pamela Paola Paolo Patricia Patrick Paul Paula Paulina Pavel Pedro Peter Petra Philip Philipp Phillip Pierre Piotr
Priya Rachel Rafael Rahul Raj Ralf Ralph Ramon Raquel Rashid Ravi Raymond Rebecca Renata Ricardo Richard Rita Robert
Roberto Rodrigo Roger Roland Ronald Rosa Rosemary Roxana Ruben Rudolf Ruth Ryan Sabine Sakura Salma Samantha Samira
Samuel Sandra Sanjay Sara Sarah Satoshi Scott Sean Sebastian Sergei Sergio Shannon Sharon Sheila Shirley Silvia Simon
Simone Sofia Sonia Sophia Sophie Stefan Stefano Stephan Stephanie Stephen Steven Stuart Suresh Susan Susanne Svetlana
Sven Sylvia Takashi Tamara Tanya Tatiana Teresa Terry Theodore Theresa Thomas Tiffany Timothy Tomas Tomasz Tyler Ulrich
Ursula Valentina Valeria Vanessa Veronica Victoria Viktor Vincent Viola Virginia Vladimir Walter Wanda Wei Wendy Werner
Wilhelm William Wolfgang Xavier Xin Yasmin Yan Yuki Yuri Yusuf Yvonne Zachary Zainab Zoe Zoltan
"""
_FAMILY = """
Abbott Abe Acosta Adams Aguilar Ahmed Alexander Ali Allen Almeida Alvarez Andersen Anderson Andersson Andrews Armstrong
Arnold Bailey Baker Barnes Barros Bauer Baumann Becker Bell Bennett Berger Bergmann Bianchi Bishop Black Blanc Bonnet
Boyd Bradley Brandt Braun Brooks Brown Bruno Bryant Burke Burns Butler Campbell Cardoso Carlson Carpenter Carroll
Carter Castillo Castro Chan Chang Chapman Chavez Chen Cheng Choi Chopra Chowdhury Clark Clarke Cohen Cole Coleman
Collins Colombo Cook Cooper Costa Cox Crawford Cruz Cunningham Das Davies Davis Delgado Desai Diaz Dietrich Dixon
Dubois Duncan Dunn Dupont Durand Edwards Ellis Engel Esposito Evans Fernandes Fernandez Ferrari Ferreira Fischer Fisher
Flores Ford Foster Fournier Fox Franke Fraser Freeman Friedman Fuchs Fujita Garcia Gardner Garza Gibson Gomes Gomez
Gonzalez Goldberg Gordon Graham Grant Gray Green Greene Griffin Gruber Gupta Gustafsson Gutierrez Haas Hall Hamilton
Han Hansen Hansson Harris Harrison Hart Hartmann Harvey Hasegawa Hayashi Hayes Henderson Hernandez Herrera Hill Hoffman
Hoffmann Holmes Horvat Horvath Hosseini Howard Huang Huber Hughes Hunt Hunter Hussain Ibrahim Inoue Ito Ivanov Ivanova
Iyer Jackson Jacobs Jansen Janssen Jenkins Jensen Jimenez Johansson Johnson Johnston Jones Jordan Joshi Kaiser Kapoor
Karlsson Kato Kaur Keller Kelly Kennedy Khan Kim Kimura King Klein Knight Kobayashi Koch Kowalczyk Kowalski Kozlov
Kramer Krause Kruger Kumar Kuznetsov Lang Lange Larsen Larsson Laurent Lawson Le Lee Lefebvre Lehmann Leroy Lewandowski
Lewis Li Lim Lin Lindberg Liu Long Lopez Lovelace Ludwig Luo Maier Malik Marchetti Marino Marshall Martin Martinez
Martins Mason Matthews Mayer McCarthy McDonald McKenzie Medina Mehta Meier Mendes Mendoza Mensah Meyer Michel Miller
Mills Mitchell Moore Morales Moreau Moreno Moretti Morgan Mori Morris Morrison Mueller Muller Murphy Murray Myers
Nakamura Nelson Neumann Newman Nguyen Nielsen Nilsson Novak Nowak Ochoa Okafor Okonkwo Oliveira Olsen Olsson Ortega
Ortiz Osei Owens Palmer Papadopoulos Park Parker Patel Patterson Pedersen Pereira Perez Perry Persson Peters Petersen
Peterson Petrov Pham Phillips Popescu Popov Porter Powell Price Ramirez Ramos Rao Reddy Reed Reid Reyes Reynolds
Ribeiro Ricci Rice Richards Richardson Richter Rivera Roberts Robertson Robinson Rodrigues Rodriguez Rogers Rojas
Romano Romero Rose Ross Rossi Roth Rousseau Roux Ruiz Russell Russo Ryan Saito Salazar Sanchez Sanders Santos Sasaki
Sato Schmid Schmidt Schmitt Schneider Scholz Schroeder Schubert Schulz Schulze Schwartz Schwarz Scott Sharma Shaw Silva
Simmons Simon Simpson Singh Smirnov Smith Snyder Sokolov Sousa Spencer Stephens Stevens Stewart Stone Sullivan Sun
Suzuki Svensson Szabo Takahashi Tanaka Tang Taylor Thompson Torres Tran Tremblay Tucker Turner Vargas Vasquez Vega
Verma Vidal Vogel Volkov Wagner Walker Wallace Walsh Wang Ward Warren Washington Watanabe Watson Weaver Webb Weber
Weiss Wells Werner West Wheeler White Williams Williamson Willis Wilson Winkler Winter Wolf Wong Wood Woods Wright Wu
Xu Yamada Yamamoto Yang Yilmaz Young Yu Zhang Zhao Zheng Zhou Zhu Ziegler Zimmermann
"""
# Also words, months, places and things: names only beside another name.
_AMBIGUOUS = """
Ada Adam April Art August Bill Chase Chen Christian Dale Dawn Drew Frank Gene Georgia Glen Grace Grant Hope Ian Iris Ivy
Jack Jade Jan Jasmine Jean Joy Jun June Kelly Kumar Lance Logan Madison Mark Max May Mei Miles Ming Pat Penny Ray Rich
Rob Robin Rose Ruby Scott Sky Summer Sandy Terry Tyler Victor Viola Virginia Victoria Wei Will Wolf Xin Yan Aurora
Oscar Felix Otto
"""
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
GIVEN, FAMILY = frozenset(_GIVEN.split()), frozenset(_FAMILY.split())
AMBIGUOUS, NO_NAMES = frozenset(_AMBIGUOUS.split()), frozenset(_NO_NAMES.split())
SURE = GIVEN - AMBIGUOUS
QUIETLY = frozenset(word.lower() for word in SURE)
PARTICLES = r"(?:van|von|der|den|de|da|do|dos|del|della|di|la|le|bin|ibn|al|el|ten|zu)"
CAPITAL = r"[A-ZÀ-ÖØ-ÞĀĂĄĆČĎĐĒĖĘĚĞĪİĹĻŁŃŅŇŌŐŒŔŘŚŞŠŢŤŪŮŰŹŻŽȘȚ]"
NAME = rf"{CAPITAL}(?:[^\W\d_]*[^\W\d_A-Z])(?:['’-][^\W\d_]+)*"
WORD = re.compile(rf"{CAPITAL}(?<![\w@/.$\\-].)(?:[^\W\d_]*[^\W\d_A-Z])(?:['’-][^\W\d_]+)*(?![\w@(/]|\.\w)")
NEXT = re.compile(rf" (?:{CAPITAL}\. )?(?:{PARTICLES} ){{0,2}}(?P<it>{NAME})(?![\w@(/]|\.\w)")
LISTED = re.compile(rf", (?P<it>{NAME})(?!\w)")
LOUD = re.compile(r"(?P<given>[A-Z](?<!\w.)[A-Z]{2,14})(?= (?:[A-Z]\.? )?(?P<family>[A-Z]{2,15})\b)")
QUIET = re.compile(  # a letter of few kinds first: the search skips to it
    r"[acdefhHimtw](?<!\w.)(?:(?<=a)(?:sk|nd)|(?<=t)(?:ell|hanks|o)|(?<=c)(?:all|ontact|c)|(?<=e)mail|(?<=m)ee?t"
    r"|(?<=[hH])(?:i|ey)|(?<=h)ello|(?<=d)ear|(?<=f)(?:rom|or)|(?<=w)ith|(?<=i)s) "
    r"(?P<it>[a-z]{3,15})\b(?![\w@(/=.]*[\w(=])"
)
INITIAL = re.compile(rf"(?<!\w){CAPITAL}\. ?$")
CUED = re.compile(
    rf"(?:\b(?:Mr|Mrs|Ms|Miss|Mx|Dr|Prof|Professor|Sir|Madame|Mme|Herr|Frau|Señora?|Sra?|Signora?|Monsieur)\.? "
    rf"|\b[Mm]y name(?:'s| is) |\b(?:Dear|[Ss]incerely,|[Rr]egards,|[Rr]egards from|[Cc]heers,|Yours,)\s"
    rf"|\b(?:[Nn]ame(?:'s| is|d|:|\"?: ?\"| =)|[Cc]alled|[Ii] am|[Ii]'m|[Tt]his is"
    rf"|(?:[Cc]ustomer|[Pp]atient|[Cc]ontact|[Ee]mployee|[Cc]lient|[Aa]ttn|[Aa]ttention|[Aa]uthor|[Ss]igned)"
    rf"(?: by)?:|[Ss]igned(?: by)?|[Ss]poke (?:to|with)|[Mm]et with) ?"
    rf"(?={NAME} (?:{PARTICLES} ){{0,2}}{NAME}))"
    rf"(?P<it>{NAME}(?: (?:{CAPITAL}\.|(?:{PARTICLES} ){{0,2}}{NAME})){{0,2}})"
)
TITLE = re.compile(r"M(?:r|s|iss|x|me|onsieur)|D(?:r|ear)|Prof|S(?:ir|eñor|r|ignor)|Herr|Frau|Yours|I(?: am|'m)")
CUES = (  # a text without any of them, or of the titles, has no announced names
    *("ame", "egards", "incerely", "heers", "alled", "i am", "i'm", "his is"),
    *("ustomer", "atient", "ontact", "mployee", "lient", "ttn", "ttention", "uthor", "igned"),
)
LOWER = re.compile(r"(?i)\bmy name is (?P<it>[^\W\d_]{2,20}(?: [^\W\d_]{2,20})?)(?=[.,;!?\n]|$| and\b)")


def _ascii(word: str) -> str:
    """The word without accents, as the dictionaries have it."""
    if word.isascii():
        return word
    return "".join(letter for letter in normalize("NFKD", word) if not combining(letter))


def names(text: str) -> Iterator[Detection]:
    """Each word of a name separately, so that a later use of one word is found, too."""
    for word in WORD.finditer(text):
        for start, end in _dictionary(word, text):
            yield Detection("name", start, end)
    for match in LOUD.finditer(text):
        if match["given"].title() in GIVEN and match["family"].title() in FAMILY:
            yield from (Detection("name", *match.span(part)) for part in ("given", "family"))
    for match in QUIET.finditer(text):
        if match["it"] in QUIETLY:
            yield Detection("name", *match.span("it"))
    has = text.__contains__
    if TITLE.search(text) or any(map(has, CUES)):
        for match in CUED.finditer(text):
            yield from _told(text, *match.span("it"))
    if has("y name is") or has("Y NAME IS"):
        for match in LOWER.finditer(text):
            yield from _told(text, *match.span("it"))


def _dictionary(word: re.Match[str], text: str) -> Iterator[tuple[int, int]]:
    """A given name with the word after it, or alone if it is unambiguous; a family name after an initial."""
    whole = _ascii(word.group())
    parts = whole.split("-")
    if any(part in GIVEN or part in AMBIGUOUS for part in parts):
        is_sure = len(parts) > 1 or parts[0] not in AMBIGUOUS
        after = NEXT.match(text, word.end())
        if after is not None and after["it"] not in NO_NAMES and (is_sure or _ascii(after["it"]) in FAMILY):
            yield word.span()
            yield after.span("it")
        elif is_sure:
            yield word.span()
    elif whole in FAMILY:
        after = LISTED.match(text, word.end())  # Smith, Robert
        is_listed = after is not None and _ascii(after["it"]) in SURE
        if is_listed or INITIAL.search(text[max(0, word.start() - 4) : word.start()]):
            yield word.span()


def _told(text: str, start: int, end: int) -> Iterator[Detection]:
    """The words of an announced name."""
    words = [(start + word.start(), start + word.end()) for word in re.finditer(r"[^\W\d_][\w'’-]+", text[start:end])]
    if words and text[slice(*words[0])] not in NO_NAMES:
        for a, b in words:
            if text[a:b] not in NO_NAMES and not re.fullmatch(PARTICLES, text[a:b]):
                yield Detection("name", a, b)


def _is_number(text: str) -> bool:
    """Whether it has 7 to 15 digits after the exit code, and is no date."""
    return 7 <= sum(map(str.isdigit, text.removeprefix("00"))) <= 15 and not re.search(
        r"\b(?:19|20)\d\d[-/. ]\d\d?[-/. ]\d\d?\b", text
    )


def _is_grouped_number(text: str) -> bool:
    return _is_number(text) and is_grouped(text)


WAYS = (
    "Street|St|Avenue|Ave|Road|Rd|Boulevard|Blvd|Lane|Ln|Drive|Dr|Court|Ct|Way|Place|Pl|Square|Sq|Terrace|Parkway|Pkwy|"
    "Highway|Hwy|Close|Crescent|Gardens|Row|Hill|Grove|Mews|Walk|Trail|Circle|Alley|Quay"
)
TOWN = rf"{CAPITAL}[^\W\d_A-Z]+(?:[ -]{CAPITAL}[^\W\d_A-Z]+){{0,2}}"
AFTER = (
    rf"(?:,? (?:Apt|Apartment|Suite|Ste|Unit|Flat|Floor|#)\.? ?[\w-]{{1,6}})?"
    rf"(?:,\s{{0,2}}(?:\d{{4,6}} )?{TOWN})?(?:,? [A-Z]{{2}}(?= \d))?"
    rf"(?:,? (?:\d{{5}}(?:-\d{{4}})?|[A-Z]{{1,2}}\d[A-Z\d]? \d[A-Z]{{2}}))?"
)
CODE = r"(?:[A-Z]{1,2}-)?(?:\d{3} \d{2}|\d{4,5})(?: [A-Z]{2}\b)?"
HOUSE = (  # number first, number last, then national forms
    rf"(?:\b(?:Flat|Apt|Apartment|Unit|Suite) [\w-]{{1,5}}, )?(?<![\w.-])"
    rf"(?:\d{{1,5}}[A-Za-z]?|One|Two|Three|Four|Five|Ten),? (?:[NSEW]\.? )?"
    rf"(?:{CAPITAL}[\w.'’-]{{0,20}} |\d{{1,3}}(?:st|nd|rd|th) ){{1,4}}"
    rf"(?:{WAYS})\b\.?{AFTER}"
    rf"|(?<![\w.-])\d{{1,4}},? (?:bis |ter )?(?:rue|avenue|boulevard|place|chemin|allée|impasse|quai) "
    rf"(?:de |du |des |la |le |l['’]|d['’])*{TOWN}(?:,? \d{{5}}(?: {TOWN})?)?"
    rf"|\b{CAPITAL}[^\W\d_]*(?:[ -]{CAPITAL}[^\W\d_]*){{0,2}}"
    rf"(?:straße|strasse|str\.|[Ww]eg|[Pp]latz|[Aa]llee|gasse|ring|damm|ufer|straat|laan|plein|gatan|vägen| Straße)"
    rf" \d{{1,4}}[a-z]?\b"
    rf"(?:,? {CODE}(?: {TOWN})?)?"
    rf"|\b(?:Am|An der|An den|Auf der|Auf dem|Im|In der|Zum|Zur) {TOWN} \d{{1,4}}[a-z]?\b(?:,? {CODE}(?: {TOWN})?)?"
    rf"|(?<![\w.-])\d{{1,2}}-\d{{1,2}}-\d{{1,3}} {CAPITAL}\w+(?:, {CAPITAL}[\w-]+)*"
    rf"|\b(?:Calle|Avenida|Plaza|Paseo|Via|Viale|Piazza|Rua|Ulica|ul\.) (?:de |del |la |las |los |di |da |do )*{TOWN}"
    rf",? \d{{1,4}}\b(?:,? \d{{4,5}}(?:-\d{{3}})?(?: {TOWN})?)?"
    rf"|\bP\.? ?O\.? Box \d{{1,6}}\b(?:, {TOWN}(?:,? [A-Z]{{2}})?(?: \d{{5}})?)?"
)
NUMBERED = re.compile(  # a house or box number: few digits alone, or a number word
    r"[\dFOT](?:(?<=\d)(?<![\w.-].)\d{0,5}[^\W\d_]?(?!\w)|(?<=O)ne|(?<=T)(?:wo|hree|en)|(?<=F)(?:our|ive))"
)
_PLACES = (  # an address holds one of them
    "Street| St|Ave|Road| Rd|Boulevard|Blvd| Lane| Ln| Drive| Dr|Court| Ct| Way| Place| Pl|Square| Sq|Terrace|"
    "Parkway|Pkwy|Highway|Hwy| Close|Crescent|Gardens| Row| Hill| Grove| Mews| Walk| Trail|Circle| Alley| Quay|"
    "traße|trasse|str.|weg |Weg |latz |llee |gasse |ring |damm |ufer |straat|laan |plein |gatan|vägen| rue |"
    " avenue | boulevard | place | chemin | allée | impasse | quai |Calle |Avenida |Plaza |Paseo |Via |Viale |"
    "Piazza |Rua |Ulica |ul. | Box |-ku|-shi|-cho|Am |An d|Auf d|Im |In der|Zum |Zur "
)
PLACES: Mapping[str, Sign] = {
    "address": sign(HOUSE, _PLACES, trait=NUMBERED),
    "told_address": sign(
        r"(?i)\b(?:lives? at|address(?: is)?|(?:ship|send|deliver)(?: it)? to|located at)[: ]{1,3}"
        rf"(?P<it>\d{{1,5}}[a-z]? (?:[\w.'’-]{{1,20}} ){{1,3}}(?:{WAYS})\b\.?"
        r"(?:,? (?:apt|unit|suite|flat|#)\.? ?[\w-]{1,6})?)",
        "live|Live|ddress|DDRESS|ship|Ship|send|Send|eliver|ocated at",
        trait=NUMBERED,
    ),
    "phone": sign(
        r"[+(\d](?<![\w.+/-].)(?:"  # a letter of one kind first: the search skips to it
        r"(?:(?:(?<=\+)1|(?<=1))[ .-]?(?:\([2-9]\d\d\) ?|[2-9]\d\d[-. ])|(?<=\()[2-9]\d\d\) ?|(?<=[2-9])\d\d[-. ])"
        r"[2-9]\d\d[-. ]\d{4}(?:,? ?(?:ext\.?|x) ?\d{1,6})?(?![\w-]|\.\d)"
        r"|(?<=0)0[1-9](?:[ .-]?\(?\d\)?){4,14}(?!\w)"
        r"|(?:(?<=\()0|(?<=0))[1-9]\d{0,3}\)?[ /-]\(?\d{2,8}(?:[ -]\d{2,6}){0,4}(?![\w-]|\.\d))",
        test=_is_grouped_number,
    ),
    "told_phone": sign(
        r"(?i)\b(?:phone|tel(?:ephone)?|mob(?:ile)?|cell|whatsapp|hotline|fax"
        r"|(?:call|text|ring|reach) me(?: at| on)?)"
        r"\b(?: number)?(?: is|:|=|\.)?[ \"':]{0,4}"
        r"(?P<it>[+(]?\d[\d ()./-]{5,18}\d)(?!\w)",
        "hone|tel|hats|line| me|mob|cell|fax",
        test=_is_number,
        any_case=True,
    ),
}
