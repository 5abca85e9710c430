"""Numbers that stand for a person: telephone numbers and national ids, with and without a word that says so.

A form alone decides where it is rare. Ids are checked by python-stdnum where it is installed; without it an id is found
only beside a word that says what it is. `WEAK` forms count only near something else that is personal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import NamedTuple

from holdfast.privacy.detect import Detection, Sign, is_public, luhn, sign, small

NUMBER = re.compile(r"[(\d](?<![\w+.,$€£¥#/=_-].)(?:(?<=\()\d)?(?:[ ./()-]{0,3}\d){6,24}(?![\w%°]|[,:]\d|\.\d|-\w)")
GROUP = re.compile(r"\d+")
EXTENSION = re.compile(r",? ?(?:ext\.?|x|extension|poste|Durchwahl|DW|wew\.|доб\.) ?\d{1,6}\b")
_DATE = re.compile(
    r"(?:19|20)\d\d[-/. ](?:0?[1-9]|1[0-2])[-/. ](?:0?[1-9]|[12]\d|3[01])(?!\d)|(?<!\d)(?:0?[1-9]|[12]\d|3[01])[-/. "
    r"](?:0?[1-9]|[12]\d|3[01])[-/. ](?:19|20)\d\d(?!\d)|(?<![\d/.-])\d{1,2}[-/.]\d{1,2}[-/.]\d{2}(?![\d/.-])"
)
NO_PERSON = re.compile(  # what stands before a number that is nobody's
    r"(?:order|orders|invoice|ticket|ref|reference|case|sku|isbn|issn|doi|ean|upc|gtin|part|serial|tracking|lines?"
    r"|pages?|pp|port|version|build|rev|revision|bytes?|total|sum|amount|price|population|usd|eur|gbp|rows?|id|ids|uid"
    r"|pid|seed|hash|commit|timestamp|epoch|unix|asin|model|item|article|artikel|bestell\w*|rechnung\w*|vorgang\w*"
    r"|commande|facture|pedido|factura|fattura|ordine|zamówieni\w*|faktur\w*|заказ\w*|счет\w*|订单\w*|注文\w*|주문\w*"
    r"|rfc|pr|issue|bug|size|count|max|min|limit|between|than|range|equals|batch|lot|asset|request|trace|job|run"
    r"|sequence|barcode|lat|lon|exp|expires?|flight|room|ref no|file)(?: ?(?:number|no|nr|num|id|code|is))?[ "
    r"\t:=#.\"'(-]{0,4}"
)
PHONE_CUE = re.compile(  # what stands around a number that somebody answers
    r"phone|\btel\b|telefon|mobil|\bcell|whatsapp|hotline|\bcall|\bring\b|\bdial|\btext|\bsms\b|reach|contact|number"
    r"|\bfax|signal|viber|telegram|anruf|erreich|ruf\b|rückruf|nummer|handy|appel|joindre|portable|numéro|llam|móvil"
    r"|celular|número|ligar|ligue|telemóvel|chiam|cellulare|numero|bel(?:len)?\b|nummer|dzwon|komórk|numer|volej|číslo"
    r"|ring|puh|puhelin|soit|ara\b|arayın|cep\b|numara|звон|телефон|номер|дзвон|тел\b|τηλ|κινητό|καλέστε|هاتف|اتصل"
    r"|جوال|موبايل|تلفن|شماره|טלפון|נייד|התקשר|फ़ोन|फोन|मोबाइल|नंबर|কল|ফোন|电话|手机|联系|致电|號碼|号码|電話|携帯"
    r"|番号|전화|연락|휴대폰|번호|điện thoại|gọi|sđt|hubungi|telepon|nomor|\bhp\b|\bwa\b|โทร|เบอร์|hív|szám|sun[aă]"
)
_LABELS = (  # words for a telephone, in lower case
    r"tele?phone|phone|tel|tlf|tlph|mob(?:ile|iel|il|iltelefon)?|cell(?:ulare|ular|phone)?|whats ?app|hotline|fax"
    r"|telefax|telefon\w{0,4}|tel[ée]fono|telefone|telefoon\w{0,8}|handy(?:nummer)?|rufnummer|festnetz|portable"
    r"|t[ée]l[ée]phone|m[óo]vil|telem[óo]vel|celular|kom[óo]rka|puhelin\w{0,6}|puh|cep(?: telefonu)?|viber|signal"
    r"|telegram|telepon|nomor(?: hp| telepon| wa)?|no hp|hp|sđt|số điện thoại|điện thoại|mobilszám|telefonszám|(?:call"
    r"|text|ring|reach|phone|dial) (?:me|us|him|her|them)?(?: back)?(?: at| on| under)?|my (?:phone )?number|meine "
    r"nummer|mon num[ée]ro|mi n[úu]mero|meu n[úu]mero|il mio numero|mijn nummer|m[óo]j numer|тел(?:ефон\w{0,3})?"
    r"|моб(?:ильный|ільний)?|номер|дзвоніть|звоните|τηλ(?:έφωνο)?|κινητό|هاتف|جوال|موبايل|الهاتف|رقم الهاتف|تلفن|شماره"
    r"|موبایل|טלפון|נייד|טל|फ़ोन|फोन|मोबाइल|নম্বর|ফোন|মোবাইল|电话|手机(?:号码?)?|联系(?:电话|方式)|電話(?:番号)?"
    r"|携帯(?:電話)?|手機|전화(?:번호)?|휴대폰|연락처|โทร(?:ศัพท์)?|เบอร์(?:โทร)?"
)
_PHONE_HINTS = (
    "hone|tel|tlf|mob|cell|hats|line|fax|handy|nummer|festnetz|portable|tél|móvil|movil|celular|kom|puh|cep|viber"
    "|signal|hp|nomor|sđt|điện|szám|call|text|ring|reach|dial|number|num|númer|тел|моб|номер|звоніть|звоните|τηλ"
    "|κινητό|هاتف|جوال|موبايل|تلفن|شماره|موبایل|טלפון|נייד|טל|फ|मोबाइल|নম্বর|ফোন|মোবাইল|电话|手机|联系|電話|携帯|手機"
    "|전화|휴대폰|연락처|โทร|เบอร์"
)
SHAPES: Mapping[str, tuple[str, ...]] = {  # how the digits are grouped → whose ids look so
    "3-2-4": ("us.ssn", "us.itin"),
    "3.3.3-2": ("br.cpf",),
    "9-2": ("br.cpf",),
    "11": ("pl.pesel", "no.fodselsnummer", "tr.tckimlik", "ee.ik", "be.nn", "br.cpf", "gr.amka"),
    "6 5": ("no.fodselsnummer",),
    "2 3 3 3": ("de.idnr",),
    "2.3.3-1": ("cl.rut",),
    "2.2.2-3.2": ("be.nn",),
    "3.4.4.2": ("ch.ssn",),
    "13": ("ro.cnp", "za.idnr"),
    "4 4 4": ("in_.aadhaar",),
    "12": ("se.personnummer",),
    "6-4": ("se.personnummer", "dk.cpr"),
    "6+4": ("se.personnummer",),
    "8-4": ("se.personnummer",),
    "6-7": ("kr.rrn",),
    "6/4": ("cz.rc",),
    "6/3": ("cz.rc",),
    "6-2-4": ("my.nric",),
    "1-4-5-2-1": ("th.pin",),
    "1 4 5 2 1": ("th.pin",),
    "18": ("cn.ric",),
    "15": ("fr.nir",),
    "13 2": ("fr.nir",),
    "1 2 2 2 3 3 2": ("fr.nir",),
    "1 2 2 2 3 3": ("fr.nir",),
    "2-8-1": ("ar.cuit",),
    "16": ("id.nik",),
}
_BESIDE = re.compile(r"\d(?:[- (]?[A-Z]|(?<=[A-Z]\d)|(?<=[A-Z][ -]\d))")  # a capital beside a digit
_FOUR = re.compile(r"\d\d ?[A-Z]?\d\d")
LETTERED = re.compile(  # ids with letters: rare enough to be known by form, and checked where there is a check
    r"(?<![\w.-])(?=[A-Z]{0,6}[ -]?\d)(?:(?P<es_dni>\d{8}[- ]?[A-HJ-NP-TV-Z])|(?P<es_nie>[XYZ][- ]?\d{7}[- "
    r"]?[A-HJ-NP-TV-Z])|(?P<it_codicefiscale>[A-Z]{6} ?\d{2}[A-EHLMPRST]\d{2} ?[A-Z]\d{3}[A-Z])"
    r"|(?P<nino>[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D])"
    r"|(?P<fi_hetu>[0-3]\d[01]\d{3}[-+A-FU-Y]\d{3}[0-9A-FHJ-NPR-Y])|(?P<ie_pps>\d{7}[A-W][A-IW]?)"
    r"|(?P<mx_curp>[A-Z]{4}\d{6}[HMX][A-Z]{5}[A-Z0-9]\d)|(?P<mx_rfc>[A-ZÑ&]{4}\d{6}[A-Z0-9]{3})"
    r"|(?P<in__pan>[A-Z]{3}[ABCFGHJLPT][A-Z]\d{4}[A-Z])|(?P<nric>[STFGM]\d{7}[A-Z])|(?P<hkid>[A-Z]{1,2}\d{6}\([\dA]\))"
    r"|(?P<tw>[A-Z][12]\d{8})|(?P<cn_ric>\d{17}X)|(?P<fr_nir>[12] ?\d{2} ?[01]\d ?2[AB] ?\d{3} ?\d{3} ?\d{2})"
    r"|(?P<cl_rut>\d{1,2}\.?\d{3}\.?\d{3}-K)|(?P<rvnr>\d{2} ?[0-3]\d[01]\d{3} ?[A-Z] ?\d{3})"
    r"|(?P<driver>[A-Z9]{5}\d{6}[A-Z9]{2}[\dA-Z]{3}))(?![\w-])"
)
_HINT = re.compile(r"\d{2}")
MRZ = (
    r"(?<![A-Z<])[PIAC][A-Z<][A-Z]{3}[A-Z<]{20,}(?:\r?\n[A-Z0-9<]{28,44}){1,2}"
    r"|(?<![A-Z0-9<])[A-Z0-9<]{9}\d[A-Z]{3}\d{7}[MF<]\d{7}[A-Z0-9<]{2,16}"
)
_IDS = (  # words for ids, in lower case
    r"id (?:number|no\.?|nr\.?)|customer (?:number|no|id|code|ref\w*)|account id|driver licen[cs]e|client (?:number|no"
    r"|id|code)|member(?:ship)? (?:number|no|id)|policy (?:number|no)|contract (?:number|no)|loyalty (?:number|card)"
    r"|frequent flyer|bank account|bsb|clabe|cbu|routing|\baba(?=\W)|national (?:id(?:entity)?|insurance)(?: card)?"
    r"|identity card|id card|passport|driver'?s?(?:'s)? licen[cs]e|driving licen[cs]e|licen[cs]e plate|tax (?:id|file"
    r"|number|identification)|ssn|itin|\btin\b|\bein\b|\bnin\b|\bnino\b|\bsin\b|\btfn\b|\bnhs\b|medicare|health card"
    r"|social (?:security|insurance)|insurance (?:number|no)|resident id|voter id|aadhaa?r|\bpan\b(?: card)?|sort code"
    r"|routing (?:number|no)|account (?:number|no)|kontonummer|imei|\bvin\b|employee id|patient id|medical record"
    r"|\bmrn\b|student id|membership (?:number|no)|steuer-?(?:id|nummer|identifikationsnummer)|idnr"
    r"|personalausweis\w{0,8}|ausweis(?:nummer)?|reisepass\w{0,8}|sozialversicherungsnummer|rentenversicherungsnummer"
    r"|svnr|sv-nummer|versichertennummer|krankenversicherungsnummer|ahv(?:-?nummer|-nr)?|führerschein\w{0,8}"
    r"|carte d'identit[ée]|num[ée]ro de s[ée]curit[ée] sociale|s[ée]curit[ée] sociale|passeport|permis de conduire"
    r"|\bnir\b|num[ée]ro fiscal|num[ée]ro national|\bdni\b|\bnie\b|\bnif\b|c[ée]dula|pasaporte|\bcurp\b|\brfc\b|\brut\b"
    r"|\bcuit\b|\bcuil\b|seguridad social|\bnss\b|\bcpf\b|\bcnh\b|passaporte|cart[ãa]o de cidad[ãa]o|contribuinte"
    r"|\bniss\b|codice fiscale|carta d'identit[àa]|passaporto|tessera sanitaria|patente|\bbsn\b|burgerservicenummer"
    r"|rijksregisternummer|paspoort\w{0,8}|rijbewijs\w{0,8}|sofinummer|\bpesel\b|\bnip\b|dow[óo]d osobisty|nr dowodu"
    r"|paszport|rodn[ée] č[íi]slo|rodn[ée] cislo|občansk[ýé] průkaz\w{0,3}|personnummer|samordningsnummer|\bcpr\b(?:-nr"
    r"|-nummer)?|f[øo]dselsnummer|henkil[öo]tunnus|\bhetu\b|isikukood|asmens kodas|personas kods|szem[ée]lyi (?:sz[áa]m"
    r"|igazolv[áa]ny)|\btaj\b(?:-sz[áa]m)?|ad[óo]azonos[íi]t[óo]|\bcnp\b|buletin|\boib\b|\bjmbg\b|\bemšo\b|\begn\b"
    r"|\bегн\b|t\.?c\.?(?: kimlik)?(?: no| numarası)|kimlik (?:no|numarası)|pasaport|инн|снилс|паспорт\w{0,2}"
    r"|водительск\w{2,4} удостоверени\w|полис\w{0,2}|рнокпп|іпн|посвідчення|αφμ|αμκα|αδτ|ταυτότητα\w?|α\.φ\.μ\.?"
    r"|διαβατήριο|رقم الهوية|الرقم القومي|رقم الجواز|جواز السفر|الرقم الوطني|بطاقة الهوية|کد ملی|شماره ملی|شناسنامه"
    r"|תעודת זהות|ת\.?ז\.?|מספר זהות|דרכון|आधार|पैन|पासपोर्ट|জাতীয় পরিচয়পত্র|এনআইডি|身份证(?:号码?)?|身分證(?:字號)?"
    r"|护照(?:号码?)?|社保号|マイナンバー|個人番号|旅券番号|パスポート(?:番号)?|運転免許証?(?:番号)?|保険証(?:番号)?"
    r"|주민등록번호|주민번호|여권번호|운전면허(?:번호)?|외국인등록번호|\bcmnd\b|\bcccd\b|căn cước(?: công dân)?"
    r"|chứng minh|hộ chiếu|\bnik\b|no\.? ktp|\bktp\b|\bnpwp\b|paspor|เลขประจำตัวประชาชน|บัตรประชาชน|เลขบัตร\w{0,10}"
    r"|หนังสือเดินทาง|mykad|\bnric\b|\bhkid\b|kunden-?(?:nummer|nr)|mitglieds?-?(?:nummer|nr)|vertrags-?(?:nummer|nr)"
    r"|versicherungs-?(?:nummer|schein\w{0,8}|nr)|konto(?:nr|nummer|-nr)|bankverbindung|blz|fahrerlaubnis\w{0,8}"
    r"|ausweis-?nr|pass(?:nummer|-nr|nr)|(?:num[ée]ro|n°|no) (?:de )?(?:client|compte|contrat|s[ée]curit[ée]|permis"
    r"|passeport|adh[ée]rent|immatriculation|dossier)|compte bancaire|r[ée]f[ée]rence client|(?:n[úu]mero|n[ºo]\.?"
    r"|c[óo]digo|num\.?) (?:de )?(?:cliente|cuenta|contrato|socio|pasaporte|licencia|matr[íi]cula|afiliaci[óo]n"
    r"|p[óo]liza)|cuenta bancaria|licencia(?: de conducir)?|permiso de conducir|carn[ée]t?(?: de conducir)?"
    r"|(?:n[úu]mero|n[ºo]\.?|c[óo]digo) (?:do |da |de )?(?:cliente|conta|contrato|s[óo]cio|passaporte)"
    r"|conta (?:corrente|banc[áa]ria)|carta de condu[çc][ãa]o|carteira de motorista|habilita[çc][ãa]o|(?:numero|codice"
    r"|n\.) (?:di )?(?:cliente|conto|contratto|passaporto|patente|polizza|targa)|conto corrente|patente(?: di guida)?"
    r"|klant(?:nummer|nr)|lid(?:nummer|maatschapsnummer)|polisnummer|rekening(?:nummer)?|rijbewijs|(?:numer"
    r"|nr) (?:klienta|konta|rachunku|paszportu|rejestracyjny|prawa jazdy|polisy|umowy|dowodu)|prawo jazdy|(?:č[íi]slo"
    r"|č\.) (?:z[áa]kazn[íi]ka|[úu]čtu|pasu|smlouvy|ř[íi]dičsk[ée]ho průkazu|op)|z[áa]kaznick[ée] č[íi]slo"
    r"|ř[íi]dičsk[ýé] průkaz\w{0,3}|cestovn[íi] pas|pas č|kundnummer|kundenummer|medlems(?:nummer|nr)|konto(?:nummer"
    r"|nr)|registrerings(?:nummer|nr|skylt)|reg\.?nr|k[öo]rkort(?:snummer)?|k[øo]rekort(?:nummer)?"
    r"|f[øo]rerkort(?:nummer)?|passnummer|pas-?nummer|asiakasnumero|tilinumero|rekisterinumero|rekisterikilpi|ajokortti"
    r"|ajokortin numero|passi(?:n numero)?|m[üu]şteri (?:no|numaras[ıi])|hesap (?:no|numaras[ıi])|ehliyet(?: no)?"
    r"|pasaport (?:no|numaras[ıi])|[üu]gyf[ée]lsz[áa]m|sz[áa]mlasz[áa]m|jogos[íi]tv[áa]ny|[úu]tlev[ée]l(?:sz[áa]m)?"
    r"|(?:num[ăa]r(?:ul)?|cod) (?:de )?(?:client|cont|pa[șs]aport|[îi]nmatriculare)|pa[șs]aport|permis (?:auto"
    r"|de conducere)|broj (?:klijenta|ra[čc]una|putovnice|računa)|номер (?:клиента|сч[её]та|машины|автомобиля|договора"
    r"|полиса|паспорта|прав)|лицевой сч[её]т|номер (?:клієнта|рахунку|авто)|αριθμ[όο]ς (?:πελάτη|λογαριασμού"
    r"|διαβατηρίου|κυκλοφορίας)|αρ\. (?:πελάτη|λογαριασμού|διαβατηρίου)|άδεια οδήγησης|δίπλωμα|رقم (?:العميل|الحساب"
    r"|اللوحة|الرخصة|السيارة|البطاقة|العضوية)|رخصة القيادة|شماره (?:مشتری|حساب|پلاک|گذرنامه)|گواهینامه|מספר (?:לקוח"
    r"|חשבון|רכב|רישיון|דרכון)|רישיון נהיגה|ग्राहक (?:संख्या|आईडी)|खाता (?:संख्या|नंबर)|ड्राइविंग लाइसेंस|गाड़ी नंबर"
    r"|वाहन (?:संख्या|नंबर)|গ্রাহক নম্বর|হিসাব নম্বর|客户(?:号|编号)|客戶編號|账号|帐号|帳號|账户|银行卡号?|车牌(?:号码?)?"
    r"|車牌|驾驶证(?:号)?|驾照(?:号)?|会员号|お客様番号|顧客番号|会員番号|口座番号|ナンバー(?:プレート)?|車両番号"
    r"|고객번호|회원번호|계좌번호|차량번호|운전면허번호|면허번호|mã khách hàng|số tài khoản|biển số(?: xe)?"
    r"|giấy phép lái xe|bằng lái|nomor (?:pelanggan|rekening|anggota|paspor|polisi|plat)|plat nomor|no\.? rek(?:ening)?"
    r"|หมายเลขลูกค้า|เลขที่บัญชี|เลขบัญชี|ทะเบียนรถ|ใบขับขี่|เลขหนังสือเดินทาง"
)
_BIRTH = (
    r"date of birth|birth ?date|birthday|\bd\.?o\.?b\.?\b|\bborn\b|geb(?:oren|urtsdatum|urtstag|\.-?datum|\.)|geb\b"
    r"|date de naissance|n[ée](?:e|\(e\))? le|né(?:e|\(e\))? (?:à|en|\d)|bday|b-?day|naissance|fecha de nac\w{0,9}"
    r"|f\. ?nac\w{0,2}\.?|nacid[oa]|naci[óo]\b|nac\.|nacimiento|nascimento|data de nasc\w{0,8}|nascid[oa]|nasceu"
    r"|nasc\.|data di nascita|nat[oa](?:/[ao])? (?:il|a)|nat[oa] a|nascita|geboortedatum|geb\. dat|data urodzenia"
    r"|urodzon[yaą]|ur\.|datum narozen[íi]|narozen[aá]?|nar\.|f[öo]delsedatum|f[öo]dd|f[øo]dselsdato|f[øo]dt"
    r"|syntym[äa]aika|syntynyt|s\. ?aika|do[ğg]um tarihi|do[ğg]umlu|sz[üu]letett|sz[üu]let[ée]si (?:d[áa]tum|id[őo])"
    r"|szül\.?|data na[șs]terii|n[ăa]scut[ăa]?|datum ro[đd]enja|rođen[a]?|syntaika|sünniaeg|gimimo data|дата рождения"
    r"|родил(?:ся|ась)|д\.?р\.?|г\.?р\.?|дата народження|народив(?:ся)?|народилася|дата на раждане|роден[а]?"
    r"|ημερομηνία γέννησης|γεννήθηκ[εα]|γενν\.?|ημ\. γέννησης|تاريخ الميلاد|تاریخ تولد|من مواليد|مواليد|ولد(?:ت)?"
    r"|متولد|תאריך לידה|נולד(?:תי|ה)?|ילי?ד[ת]?|जन्म ?(?:तिथि|तारीख|दिनांक)?|জন্ম ?(?:তারিখ)?|出生日期|出生年月日"
    r"|出生于|出生|生日|生年月日|誕生日|생년월일|생일|출생|ngày sinh|sinh ngày|sinh năm|tanggal lahir|tgl\.? lahir"
    r"|lahir|วันเกิด|เกิดวันที่|เกิดเมื่อ"
)
_BIRTH_WORDS = (
    "birth|birthdate|birthday|bday|day|dob|dateofbirth|geburt|b|born|geboren|geburtsdatum|geburtstag|geb|naissance|né"
    "|née|nacimiento|nacido|nacida|nació|nacio|nac|nascimento|nascido|nascida|nasceu|nasc|nascita|nato|nata"
    "|geboortedatum|urodzenia|urodzony|urodzona|ur|narození|narozeni|narozen|narozena|nar|födelsedatum|fodelsedatum"
    "|född|fodd|fødselsdato|fodselsdato|født|fodt|syntymäaika|syntymaaika|syntynyt|aika|doğum|dogum|doğumlu|dogumlu"
    "|született|szuletett|születési|szül|nașterii|naşterii|nasterii|născut|născută|nascut|rođenja|rođen|rođena|sünniaeg"
    "|gimimo|рождения|родился|родилась|р|др|гр|народження|народився|народилася|раждане|роден|родена|γέννησης|γεννήθηκε"
    "|γεννήθηκα|γενν|الميلاد|تولد|مواليد|ولد|ولدت|متولد|לידה|נולד|נולדתי|נולדה|יליד|ילידת|जन्म|জন্ম|sinh|lahir"
)
_BIRTH_HINTS = "出生|生日|生年|誕生|생년|생일|출생|เกิด|जन्म|জন্ম"
_MONTHS = r"[^\s\d,.;:/()-]{3,14}"
DATE = (
    r"(?:(?:19|20)\d{2}\s?[-/.年년 ]\s?\d{1,2}\s?[-/.月월 ]\s?\d{1,2}\s?[日일]?|\d{1,2}\s?[-/. ]\s?\d{1,2}\s?[-/. "
    r"]\s?(?:19|20)?\d{2}(?!\d)|(?:19|20)\d{6}(?!\d)"
    rf"|\d{{1,2}}(?:st|nd|rd|th|er|º|ª)?\.?,?\s(?:de |of |d')?{_MONTHS}\.?,?\s(?:de |del |von )?(?:19|20)\d{{2}}"
    rf"|{_MONTHS}\.?\s\d{{1,2}}(?:st|nd|rd|th)?,?\s(?:19|20)\d{{2}}|\d{{1,2}}[-/ ]{_MONTHS}[-/ ](?:19|20)?\d{{2}}"
    rf"|(?:19|20)\d{{2}}[. ]\s?{_MONTHS}\s\d{{1,2}}"
    r"|(?:昭和|平成|令和|大正)\d{1,2}年\d{1,2}月\d{1,2}日|\d{1,2} tháng \d{1,2}(?: năm|,)? \d{4}|\d{1,2} เดือน? "
    r"?\S{2,12} \d{4}|(?:13|14|25)\d{2}[-/]\d{1,2}[-/]\d{1,2}|\d{1,2}[-/]\d{1,2}[-/](?:13|14|25)\d{2})"
)


def _is_called_phone(text: str) -> bool:
    """Whether it has 7 to 15 digits after the exit code, and is no date."""
    return 7 <= sum(map(str.isdigit, text.removeprefix("00"))) <= 15 and not _DATE.search(text)


_CODES = (
    r"cvv2?|cvc2?|cv2|card verification\w{0,6}|puk|security code|digits on the back|kartenprüfnummer|prüfziffer"
    r"|cryptogramme(?: visuel)?|код cvv|код cvc|安全码"
)
_ONE_TIME = (  # words for a code that is used once, before it or after it
    r"\botp\b|one[- ]?time|verification|(?<![a-z0-9])[2m]fa|two[- ]factor|\btotp\b|passcode|einmal\w{0,10}"
    r"|verifizierung|\b[mi]?tan\b|usage unique|un solo uso|monouso|eenmalig|jednor[aá]z|jednokrat|eng[åa]ng|kertakäyttö"
    r"|tek kullanım|одноразов|проверочн|μίας χρήσης|یکبار|חד[- ]פעמי|ओटीपी|সত্যা|যাচাই|ওটিপি|ワンタイム|验证码|校验码"
    r"|驗證碼|动态码|認証番号|인증번호|egyszer használ|authenticator|2-?step|never share|not share|don'?t share"
    r"|texted me|geheimzahl|(?<![a-z])pin(?:[ -]?(?:code|nummer|number))?\b(?! (?:to|the|version|it"
    r"|down)\b)[^\n.\d]{0,28}\d{4}|(?:alarm|tresor|digicode|haustür|gate(?!way)|door)\w{0,6}(?: code)?[:=]? ?\d{4}"
    r"|enter \S{4,9} to (?:log|sign|verif|confirm)|(?:your|my|ihr|dein|mein|votre|mon|ton|je|uw|jouw|mijn|din"
    r"|min) (?:(?!promo|discount|zip|post|area|error|status|exit|source|country|order)[\w-]{2,12}[ -])?(?:code"
    r"|kode?)(?: (?:is|ist|lautet|est|är|er))?\W{1,4}(?:g-)?\d|\d\W{1,3}(?:is|ist|est|es) (?:your|my|ihr|dein|votre|ton"
    r"|tu|su) (?:\w{2,12}[ -])?c[oó]d"
)
_ONE_TIME_CUE = re.compile(_ONE_TIME)
_CODE = (
    r"kod(?:e[nr]?|u|ot|a|i|un|om|unuz|et)?|k[óo]d(?:ja|om|ot|od)?|koodi\w{0,3}|codice|c[óo]digo|codul|κωδικ\w{1,2}"
    r"|clave|mã|combination|kombination\w*|код\w{0,3}|пин\b|رمز|كود|کد|קוד|कोड|पिन|コード|코드"
    r"|(?<![号條条编代源乱数扫])[码碼]|รหัส"
)
_CODE_WORD = re.compile(  # any word for a code; the first group is what makes it a code of something else
    r"((?:promo\w*|discount|coupon|voucher|gift|rabatt\w*|zip|post\w{0,3}|area|error|status|exit|return|source|country"
    r"|order|product|item|bar|qr|http|response|reason|fehler|erreur|errore?|kraj\w*|language|colou?r|byte|key|エラー"
    r"|商品|hata|posta|indirim|ürün)[ -]?|de|en|uni|geo|op|trans|shell|char|bit)?"
    rf"(?:pin(?![a-z])|code?(?! ?(?:review|base|path|style|block|snippet|freeze|owner|coverage|change|sample|gen|red))"
    rf"|{_CODE})"
    r"(?! ?(?:postal|fuente|fonte|source|d[ei'] ?(?:err|barr|desc)|promo|fiscal|sconto|errore|cliente?|prod|poczt|błęd"
    r"|rabat|kresk|źród|chyb|ошиб|товар|стран|город|σφάλμ)|[a-z])"
)
_SENT = re.compile(  # how a code comes, what it opens, whose it is and what is done with it
    r"\bsms|смс|\btext|\bmessage|nachricht|\bmail|whats|telegram|signal\b|\bapp\b|re[çc]u|received|\bgot\b|\bsent\b"
    r"|erhalten|bekommen|gekommen|recib|lleg[óo]|cheg[ou]|receb|arrivat|ricevut|ontving|ontvangen|kreeg|gekregen"
    r"|dosta[łl]|otrzyma|przysz|přiš|\bfi(?:c?k|kk)\b|\bsain\b|tuli|tullut|gel(?:di|en)|приш|получ|прий?шо?в|отрим"
    r"|надійш|ήρθε|έλαβα|έστειλ|وصل|جاء|קיבלתי|הגיע|शेयर|आया|मिला|收到|发来|届い|受け取|받은|왔|온 |nhận|terima|kirim"
    r"|ได้รับ|share|weiter|teil|partag|comp[aâ]rt|condiv|delen|deel|udostęp|sdíle|\bdela?\b|jaa|paylaş|никому|сообща"
    r"|повідомл|תשתף|enter|eingeb|saisi|ingres|inser|wpisz|zadej|door|gate(?!way)|alarm|entry|\btür|\btor\b|haus|garage"
    r"|\bsafe\b|tresor|\bporta?\w{0,4}\b|immeuble|puerta|cancello|deur|poort|brama|drzwi|dveř|\bdör|\bdør|\bovi|kapı"
    r"|двер|подъезд|домофон|сейф|сигнализ|πόρτα|συναγερμ|الباب|דלת|אזעקה|门|ドア|玄関|金庫|현관|문 |cửa|pintu|card|kart"
    r"|carta|carte|tarjeta|cartão|kaart|kort|карт|bank|log[ -]?in|sign|v[ée]rifi?[ce]|confirm|unlock|reset (?:your|my)"
    r"|auth|token|backup|recovery|locker|vault|building|bestät|sicher|zugang|anmeld|s[ée]cur|connex|valida|acc?es|segur"
    r"|conferm|sicur|tempor|din[áa]mic|bevestig|beveilig|weryf|potwierdz|bezpiecz|dostęp|ověř|potvr|säker|bekräft"
    r"|sikk?er|bekr[æe]ft|vahvist|turva|doğrula|onay|güvenlik|подтв|безопас|вход|доступ|підтв|безпек|επαλήθ|ασφαλ"
    r"|επιβεβ|تحقق|تأكيد|دخول|تفعيل|تا?أ?یید|אימות|אבטחה|כניסה|सत्याप|认证|認証|確認|인증|확인|xác|bảo mật|verifik"
    r"|keaman|konfirm|ยืนยัน|megerős|ellenőrz|biztons|verific|kontroln|потвърж|\b(?:tu|su|mi|seu|meu|teu|tuo|mio|twój"
    r"|mój|váš|můj|ваш|твой|мой|мій|bạn|anda|saya)\b|σας|μου|ك\b|שלך|שלי|आपका|您的|あなた|ของคุณ|koodisi|kodunuz|kodun\b"
    r"|kódod|codul"
)
_TOLD_CODE = re.compile(  # a code is called so at once before it; the mere word "code" needs a verb
    rf"(?:{_CODE}|[^\W\d_]{{4,}}code[sn]?)[^\n\d.!?]{{0,28}}\Z|(?<![a-z])code[sn]? (?:is|ist|est|lautet|was"
    rf"|:)\W{{1,3}}\Z"
)
ONE_TIME = re.compile(  # a letter or digit first: the search skips to it
    r"[0-9A-Z](?<![A-Za-z0-9_.,/$€£#-].)(?<![0-9]:.)(?:(?<=[0-9])[0-9](?:[0-9](?:[0-9]{1,5}|[ -][0-9]{3,4})|[ "
    r"-][0-9]{2}[ -][0-9]{2})|(?:(?<=G)|(?<=F)B)-[0-9]{3}(?:[0-9]{1,5}|[ -][0-9]{3,4})"
    r"|[A-Z0-9]{4,7}(?<![A-Z]{5}))(?![A-Za-z0-9_/:%$€£°-]|\.\d|,\d{3})"
)
_CARDS = (
    r"card|visa|mastercard|amex|karte|kartennummer|carte|tarjeta|cart[aã]o|carta|kaart|karta|kort|kortti|kart|карт[аы]"
    r"|кредитка|信用卡|卡号|カード|카드|بطاقة|כרטיס|thẻ|kartu|บัตร|कार्ड"
)
_SSNS = r"ssn|social(?: security)?(?: number| no)?"
_IPS = r"ip(?:v4|v6)?(?:[ -]?(?:address|adresse|adres|adress|addr|indirizzo))?"
CANDIDATE = re.compile(
    r"\d(?<!\d.)[\dA-Za-z]*(?:[ ._/()-]{1,3}[A-Za-z]{0,2}\d[\dA-Za-z]*){0,12}(?:[ -][A-Z]\b|\(\w\))?"
)
WINDOW = 64  # characters before a number in which its label stands


class NumberLabel(NamedTuple):
    """A word that says what the number after it is."""

    kind: str
    pattern: re.Pattern[str]  # at the end of what stands before the number
    hints: tuple[str, ...]
    test: Callable[[str], bool]


def _label(kind: str, words: str, hints: str, test: Callable[[str], bool], gap: str = r"[^\n\d]{0,24}") -> NumberLabel:
    pattern = re.compile(rf"(?<![a-zß-ÿ])(?:{words})(?![a-z]{{3}}){gap}$")
    return NumberLabel(kind, pattern, tuple(filter(None, hints.split("|"))), test)


_OPENING = re.compile(r"(?<![a-z])[a-z]{2,3}")


def _openings(words: str, more: str = "") -> frozenset[str]:
    """The first three letters of every word in a pattern; a text with none of them has no such word."""
    plain = re.sub(r"\\[a-z]", " ", words)
    return frozenset(word[:3] for word in re.findall(r"[a-z]{3,}", plain)) | frozenset(more.split())


def _may_hold(text: str, openings: frozenset[str]) -> bool:
    """A cheap test before the pattern: whether some word begins like one of its words. Other scripts always may."""
    return not text.isascii() or not openings.isdisjoint(_OPENING.findall(text))


def _digits(text: str) -> int:
    return sum(map(str.isdigit, text))


def _is_told_id(text: str) -> bool:
    letters = re.sub(r"\W", "", text)
    is_date = _DATE.fullmatch(text) and len(letters) == 8
    has_digits = 4 <= _digits(text) <= 24 or (_digits(text) >= 2 and len(letters) >= 8 and letters == text.upper())
    return has_digits and not is_date and len(letters) >= 6


def _is_plate(text: str) -> bool:
    return 1 <= _digits(text) <= 7 and len(re.findall(r"\w", text)) >= 4 and text == text.upper() and not text.isdigit()


_ACCOUNTS = (
    r"account|acct|a/c|konto|compte|cuenta|conta|conto|rekening|rachunek|účet|hesap|сч[её]т|рахунок"
    r"|λογαριασμ\w{1,2}|حساب|חשבון|खाता|账户|口座|계좌|tài khoản"
)
_PLATES = (
    r"licen[cs]e plate|number plate|plate(?: number| no)?|registration(?: number| plate)?|reg\. no|kennzeichen"
    r"|autokennzeichen|immatriculation|plaque(?: d'immatriculation)?|matr[íi]cula|placa|targa|kenteken|tablica "
    r"rejestracyjna|rejestracj[ai]|nr rej\w{0,10}|spz|\brz\b|registreringsnummer|reg\.?nr|rekisterinumero"
    r"|rekisterikilpi|plaka|rendsz[áa]m|[îi]nmatriculare|госномер|гос\. номер|номер (?:машины|автомобиля|авто)|πινακίδα"
    r"|κυκλοφορίας|لوحة|اللوحة|السيارة|پلاک|רכב|לוחית(?: רישוי)?|गाड़ी नंबर|वाहन (?:संख्या|नंबर)|车牌(?:号码?)?|車牌"
    r"|ナンバー(?:プレート)?|車両番号|차량번호|biển số(?: xe)?|plat nomor|nomor polisi|ทะเบียนรถ"
)


LABELS = (
    _label(
        "password",
        _CODES,
        "pin|security|digits on|cvv|cvc|cv2|cid|csc|verification|puk|tan|prüf|crypto|пин|暗証番号|cvv|cvc|安全码",
        lambda text: text.isdigit() and 3 <= len(text) <= 8,
        r"[^\n\d.!?]{0,24}",
    ),
    _label(
        "password",
        r"pin(?:[ -]?(?:code|number|kode|nummer|kod|koodi))?|пин[- ]?код|kod pin|暗証番号|code pin",
        "pin|пин|暗証",
        lambda text: 4 <= _digits(text) <= 8 and not set(text) - set("0123456789 -"),
        r"(?:\s(?:for|of|für|pour|de|para|di|do) (?:\w{1,8} ){0,2}\w{1,12})?(?:\s(?:is|ist|lautet|est|es|é|è|jest"
        r"|to))?[\s:=#\"'は]{1,4}",
    ),
    _label(
        "told_card",
        _CARDS,
        "card|visa|amex|kart|carte|tarjeta|cart|kaart|kort|карт|кредитка|信用卡|卡号|カード|카드|بطاقة|כרטיס|thẻ|บัตร|कार्ड",
        lambda text: 13 <= _digits(text) <= 19 and luhn(text),
    ),
    _label(
        "told_ssn",
        _SSNS,
        "ssn|ocial",
        lambda text: _digits(text) == 9 and not re.match(r"000|666|9|\d{3}.?00|.*0000$", text),
        r"\W{1,4}(?:is )?",
    ),
    _label("told_ip", _IPS, "ip", lambda text: is_public(text, is_told=True), r"\W{1,4}(?:is |was |ist |est |es |é )?"),
    _label(
        "told_mac",
        r"mac(?:[ -]?(?:address|adresse|addr))?",
        "mac",
        lambda text: bool(re.fullmatch(r"[0-9a-fA-F]{12}", text)),
        r"\W{1,4}(?:is |ist |est )?",
    ),
    _label("told_id", _IDS, "", _is_told_id, r"[^\n\d]{0,24}"),
    _label(
        "told_id",
        _ACCOUNTS,
        "",
        lambda text: 6 <= _digits(text) <= 24 and not _DATE.fullmatch(text),
        r"\s{0,2}(?:(?:is|ist|est|es|é|nr|no|n°|nº|number|num)\.?\s?)?[:#=]?\s{0,2}",
    ),
    _label("plate", _PLATES, "", _is_plate, r"[^\n\d]{0,10}"),
    _label("told_phone", _LABELS, _PHONE_HINTS, _is_called_phone, r"[^\n\d]{0,18}"),
)


_ID_OPENINGS = _openings(
    _IDS + _PLATES + _ACCOUNTS,
    "num cod car pas con cli cue mat lic per rod zak uce rid pol seg ced dir tar tes nac aba acc id kun",
)


def one_time_codes(text: str) -> Iterator[Detection]:
    """Codes that are used once or open something: a few digits with words for such a code shortly before or after."""
    lower = ""
    for match in ONE_TIME.finditer(text):
        lower = lower or small(text)
        around = lower[max(0, match.start() - 48) : match.end() + 40]
        if NO_PERSON_END.search(lower[max(0, match.start() - 32) : match.start()]) or UNIT.match(lower, match.end()):
            continue
        if around.isascii() and not any(map(around.__contains__, _CODE_HINTS)):
            continue
        if not YEAR.fullmatch(match.group()) and _is_code(around, lower, match.start()):
            yield Detection("password", *match.span())


def _is_code(around: str, lower: str, start: int) -> bool:
    if _ONE_TIME_CUE.search(around):
        return True
    words = list(_CODE_WORD.finditer(around))
    if not words or any(word[1] for word in words):
        return False
    return bool(_TOLD_CODE.search(lower, max(0, start - 48), start) or _SENT.search(around))


_CODE_HINT_WORDS = """
cod kod koo kód cód pin otp one-time 2fa mfa totp factor tan einmal ver share geheim alarm tresor door gate
enter combin kombin texted step authent usage uso jednor eng kerta tek
"""
_CODE_HINTS = tuple(_CODE_HINT_WORDS.split())
UNIT = re.compile(
    r"\s?(?:ms|s|sec\w*|min\w*|hours?|days?|kb|mb|gb|items?|rows?|users?|bytes?|tokens?|percent|eur|usd|euros?"
    r"|dollars?|requests?|times|chars?|characters|words|lines|pages|people|steps|calls|errors?|points?)\b"
)
YEAR = re.compile(r"(?:19|20)\d\d")


def labelled(text: str) -> Iterator[Detection]:
    """Numbers with a word before them that says what they are."""
    lower = ""
    for match in CANDIDATE.finditer(text):
        start, end = match.span()
        digits = _digits(match.group())
        if digits < 2 or (digits == 2 and not _CAPITALS.search(text, max(0, start - 4), end + 4)):
            continue
        lower = lower or small(text)
        before = _line_before(lower, start)
        may_be_id = _may_hold(before, _ID_OPENINGS)
        for label in LABELS:
            if any(hint in before for hint in label.hints) if label.hints else may_be_id:
                hit = next(
                    (hit for hit in _readings(text, start, end, label) if _is_labelled(lower, *hit, label)), None
                )
                if hit is not None:
                    yield Detection(label.kind, hit[0], hit[0] + len(hit[1]))
                    break


def _is_labelled(lower: str, start: int, said: str, label: NumberLabel) -> bool:
    return label.test(said) and label.pattern.search(_line_before(lower, start)) is not None


_ASIDE = re.compile(r"\s\([\w. /-]{0,12}\d[\w. /-]{0,12}\)(?=\s?[:=])|[*\"'_]{0,2}\n[>\s\"'*]{0,4}\Z|</?\w{1,6}>")


def _line_before(lower: str, start: int) -> str:
    """What stands before a number as one line of words: passport_no, "passport (2019):", a line with a label alone."""
    before = lower[max(0, start - WINDOW) : start]
    return (_ASIDE.sub(" ", before) if "\n" in before or "(" in before or "<" in before else before).replace("_", " ")


def _readings(text: str, start: int, end: int, label: NumberLabel) -> Iterator[tuple[int, str]]:
    """The number with the letters or signs before it that may belong to it, and without."""
    ahead = _AHEAD[label.kind in ("told_id", "told_mac", "plate")].search(text, max(0, start - 12), start)
    begins = [ahead.start(), start] if ahead else [start]
    if ahead and " " in ahead.group().strip():  # two words before it: the second alone may belong to it
        begins.insert(1, ahead.start() + ahead.group().strip().rindex(" ") + 1)
    if label.kind == "plate" and (more := _PLATE_END.match(text, end)):
        end = more.end()
    for first in begins:
        said = text[first:end]
        if label.kind not in ("told_id", "told_mac", "plate"):
            digits = re.match(r"[+(\d][\d ()._/-]*", said)
            said = digits.group().rstrip(" ()._/-") if digits else said
        yield first, said


_CAPITALS = re.compile(r"[A-ZА-Я]{2}|[A-Z]\d")  # as plates have
_PLATE_END = re.compile(r"[ ·-]?[A-ZА-Я]{1,4}(?![^\W\d_])(?:[ -]?\d{1,4}(?!\d))?")
_AHEAD = (re.compile(r"(?:\+|\(\+?|\+\()$"), re.compile(r"(?<![^\W\d_])(?:[^\W\d_]{1,8}[ ·-]?){1,2}$"))

DATES: Mapping[str, Sign] = {
    "birth_date": sign(
        rf"(?<![a-zß-ÿ])(?:{_BIRTH})[^\n\d]{{0,32}}?(?<![\d.])(?P<it>{DATE}|{_MONTHS}\.?\s\d{{1,2}},?\s(?:19"
        rf"|20)\d{{2}})",
        _BIRTH_HINTS,
        words=_BIRTH_WORDS,
        any_case=True,
        trait=_HINT,
    ),
    "birth_after": sign(
        r"(?<![\d.])(?P<it>\d{1,2}[./-]\d{1,2}[./-](?:19|20)\d{2}|(?:19"
        r"|20)\d{2}[-/.年년]\s?\d{1,2}[-/.月월]\s?\d{1,2}[日일]?)\s?(?:\(?(?:doğumlu|г\. ?р\.|г\.р\.|生まれ|出生|생\b"
        r"|출생|p\.? ?rođ|született|doğum|में जन्म|को जन्म|geboren|születésű|\(?d\.?o\.?b|\(?date of birth|\(?birth)"
        r"|tarihinde doğ|में पैदा)",
        "г.р|г. р|生まれ|出生|생|जन्म|पैदा",
        words="doğumlu|doğum|született|rođ|doğmuş|doğdu|geboren|dob|birth",
        any_case=True,
    ),
    "mrz": sign(MRZ, "<", trait=re.compile("<<")),
}


@cache
def _check(module: str) -> Callable[[str], bool] | None:
    """The library's check of an id; None where the library is not installed or does not know the id."""
    try:
        found: Callable[[str], bool] = import_module(f"stdnum.{module}").is_valid
    except ImportError:
        return None
    return found


def is_valid(module: str, text: str) -> bool:
    check = _check(module)
    return check is not None and check(text)


def _is_lettered(kind: str, text: str) -> bool:
    """Kinds that the library does not check are known by their form alone."""
    if kind == "nric":  # Singapore: a weighted sum, modulo 11
        total = sum(int(digit) * weight for digit, weight in zip(text[1:8], (2, 7, 6, 5, 4, 3, 2), strict=True))
        total += {"T": 4, "G": 4, "M": 3}.get(text[0], 0)
        letters = {"S": "JZIHGFEDCBA", "T": "JZIHGFEDCBA", "M": "XWUTRQPNJLK"}.get(text[0], "XWUTRQPNMLK")
        return letters[total % 11] == text[8]
    if kind == "tw":
        code = "ABCDEFGHJKLMNPQRSTUVXYWZIO".index(text[0]) + 10
        return (
            code // 10
            + code % 10 * 9
            + sum(int(d) * w for d, w in zip(text[1:], (8, 7, 6, 5, 4, 3, 2, 1, 1), strict=True))
        ) % 10 == 0
    if kind in ("nino", "hkid", "driver", "rvnr"):
        return not text.startswith(("BG", "GB", "NK", "KN", "TN", "NT", "ZZ"))
    return is_valid(kind.replace("__", "_.") if "__" in kind else kind.replace("_", ".", 1), text)


def ids(text: str) -> Iterator[Detection]:
    """National ids by their form and check digits."""
    if not _FOUR.search(text) or not _BESIDE.search(text):
        return
    for match in LETTERED.finditer(text):
        before = small(text[max(0, match.start() - 32) : match.start()])
        if _is_lettered(match.lastgroup or "", match.group()) and not NO_PERSON_END.search(before):
            yield Detection("id", *match.span())


def numbers(text: str) -> Iterator[Detection]:
    """Telephone numbers and national ids in digits; `weak_phone` where only the words around it can decide."""
    lower = ""
    for match in NUMBER.finditer(text):
        lower = lower or small(text)
        if not NO_PERSON_END.search(lower[max(0, match.start() - 32) : match.start()]):
            yield from _among(match.group(), match.start())
            if ext := EXTENSION.match(text, match.end()):
                yield Detection("weak_phone", *ext.span())


NO_PERSON_END = re.compile(rf"(?<![^\W_]){NO_PERSON.pattern}\Z")


def _among(text: str, offset: int) -> Iterator[Detection]:
    """The persons' numbers in a row of digits: the longest group from the left that is one."""
    groups = [match.span() for match in GROUP.finditer(text)]
    at = 0
    while at < len(groups):
        for last in range(min(len(groups), at + 8) - 1, at - 1, -1):
            start, end = groups[at][0], groups[last][1]
            if not _is_apart(text, groups, at, last):
                continue
            if at == 0 and text[0] == "(":
                start = 0
            kind = _kind(text[start:end], [b - a for a, b in groups[at : last + 1]])
            if kind is not None:
                yield Detection(kind, offset + start, offset + end)
                at = last
                break
        at += 1


def _is_apart(text: str, groups: list[tuple[int, int]], first: int, last: int) -> bool:
    """Whether some of the groups stand apart from the others: what divides them is not what joins them."""
    inner = {text[groups[n][1] : groups[n + 1][0]] for n in range(first, last)}
    outer = {text[groups[n][1] : groups[n + 1][0]] for n in (first - 1, last) if 0 <= n < len(groups) - 1}
    return not inner & outer and not (outer & {"-", "."})


def _kind(text: str, sizes: list[int]) -> str | None:
    digits = sum(sizes)
    if not 7 <= digits <= 18:
        return None
    shape = GROUP.sub(lambda group: str(len(group.group())), text)
    if any(is_valid(module, text) for module in SHAPES.get(shape, ())) and not re.match(r"1[5-7]\d{11}$", text):
        return "id"
    if shape == "3-3-3 2" and _is_snils(text):
        return "id"
    return _phone_kind(text, sizes, shape)


def _is_snils(text: str) -> bool:
    """Russia: nine digits weighted by 9 to 1, modulo 101, in the last two."""
    digits = [int(letter) for letter in text if letter.isdigit()]
    return sum(digit * (9 - place) for place, digit in enumerate(digits[:9])) % 101 % 100 == digits[9] * 10 + digits[10]


_STRONG = re.compile(  # how numbers are grouped by people who mean a telephone; the digits are in the test below
    r"\(\d\) ?\d[-. ]\d|1[-. ]?\(3\) ?3[-. ]4|\(3\) ?3[-. ]4|(?:1[-. ])?3([-. ])3\1 ?4|1 3 3 2 2|\(?3\)?[- ]3-2-2"
    r"|1[- ]\(?3\)?[- ]3[- ]2[- ]2|\(?2\)? ?[45]-4|2 5[- ]4|3 4 4|3-4-4|5 5|5-5|\(2\) ?4[- ]4|2-4-4|2 4 4"
)


def _phone_kind(text: str, sizes: list[int], shape: str) -> str | None:
    """A telephone number by its form, a weak one, or none."""
    digits = "".join(filter(str.isdigit, text))
    total = len(digits)
    if (
        _DATE.search(text)
        or digits in "01234567890123456789"
        or len(set(digits)) < 3
        or ("/" in text.strip("0123456789") and text.count("/") > 1)
    ):
        return None
    if text.count(".") == 1 and "(" not in text:
        return None
    if digits.startswith("00") and digits[2:3] not in ("0", "") and 10 <= total <= 17:
        return "phone"
    first = sizes[0]
    if digits[0] == "0":
        is_national = digits[1] != "0" and 9 <= total <= 12 and (first >= 2 or text[0] == "(") and min(sizes) >= 2
        if len(sizes) == 1:
            return "phone" if total in (10, 11) and digits[1] != "0" else None
        return "phone" if is_national and len(sizes) <= 6 else None
    if _STRONG.fullmatch(shape):
        return "phone" if _fits(digits, sizes, shape) else None
    if len(sizes) == 1:
        return "weak_phone" if 8 <= total <= 11 else None
    return (
        "weak_phone"
        if re.fullmatch(
            r"3 3 3|3-3-3|2 2 2 2|3 2 3|3 2 2 2|2 3 2 2|4 4|4-4|3 3 2 2|2 7|3 6|4 6|2 3 4|3-4|3 4|3 7|\(\d\) ?\d.*"
            r"|[12] \d \d \d|3-2-2",
            shape,
        )
        else None
    )


def _fits(digits: str, sizes: list[int], shape: str) -> bool:
    """Whether the digits of a strong form are a telephone's."""
    if "(" in shape:
        return 8 <= len(digits) <= 11
    if shape[:2] in ("1-", "1 ", "1."):
        return digits[0] in "178"
    if sizes == [3, 3, 4]:
        return digits[0] in "23456789"
    if sizes == [3, 4, 4]:
        return digits[0] == "1" and digits[1] in "3456789"
    if sizes == [5, 5]:
        return digits[0] in "6789"
    if sizes in ([2, 5, 4], [2, 4, 4]):
        return digits[0] in "123456789"
    return True
