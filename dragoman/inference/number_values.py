"""Whether two texts have the same numbers: by value, in the notation of each language, in digits or in words.

A number may be written as a word ("two", "zwei"), a date with the name of a month, a time with twelve hours or 24.
All of this is read leniently: a number counts as missing only if nothing in the other text can stand for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from dragoman.data import short_code
from dragoman.inference.numbers import Notation, notation_of

# Digits with what groups them or parts their decimals; a plain space groups only threes.
_NUMBER = re.compile(
    r"(?<!\d)(?:\d{1,3}(?: \d{3})++(?![\d\u00a0\u202f])(?:,\d++)?|\d++(?:[.,'’\u00a0\u2009\u202f]\d++)*+)"
)
_SEPARATORS = re.compile(r"[.,'’\u00a0\u2009\u202f ]")
_SPACES = "\u00a0\u2009\u202f "

# For each language the beginnings of words for numbers, with ordinals and other forms. A beginning of up to three
# letters is a whole word. 21 is also found as its parts, as in "einundzwanzig".
_WORDS = {
    "en": "0:zero,null,midnight,noon 1:one,once,first,single,an,a,firstly 2:two,twice,second,couple,both,double,pair "
    "3:three,third,triple,thrice 4:four 5:five,fifth,fift 6:six,sixth 7:seven 8:eight 9:nine,ninth 10:ten,tenth "
    "11:eleven 12:twel,dozen,noon,midnight 13:thirteen 14:fourteen 15:fifteen,quarter 16:sixteen 17:seventeen "
    "18:eighteen 19:nineteen 20:twent 30:thirt,half 40:fort,fourt 45:quarter 50:fift,half 60:sixt 70:sevent "
    "80:eight 90:ninet 100:hundred 1000:thousand 1000000:million,millionth 1000000000:billion",
    "de": "0:null,kein,mitternacht 1:ein,eins,eine,einen,einem,einer,eines,einmal,erste,erster,ersten,erstes "
    "2:zwei,zweit,zwo,beid,doppel,paar 3:drei,dritt 4:vier 5:fünf 6:sechs 7:sieb 8:acht 9:neun 10:zehn "
    "11:elf,elft,elfte,elften 12:zwölf,dutzend,mittag,mitternacht 13:dreizehn 14:vierzehn 15:fünfzehn,viertel "
    "16:sechzehn 17:siebzehn 18:achtzehn 19:neunzehn 20:zwanzig 30:dreißig,dreissig,halb 40:vierzig "
    "45:viertel,dreiviertel 50:fünfzig,halb,hälfte 60:sechzig 70:siebzig 80:achtzig 90:neunzig "
    "100:hundert,einhundert 1000:tausend,eintausend 1000000:million 1000000000:milliard",
    "fr": "0:zéro,minuit 1:un,une,premi,unièm 2:deux,second,doubl,paire,couple 3:trois,tripl 4:quatr 5:cinq 6:six,sixi "
    "7:sept,septi 8:huit 9:neuf,neuv 10:dix,dixi 11:onze,onzi 12:douz,midi,minuit 13:treiz 14:quatorz "
    "15:quinz,quart 16:seiz 17:dix-sept 18:dix-huit 19:dix-neuf,dix-neuv 20:vingt 30:trent,demi 40:quarant "
    "45:quart 50:cinquant,demi,moitié 60:soixant 70:soixante-dix,septant 80:quatre-vingt,huitant,octant "
    "90:quatre-vingt-dix,nonant 100:cent,centi,cents 1000:mille,milli,mil 1000000:million 1000000000:milliard",
    "es": "0:cero,medianoche 1:un,uno,una,primer 2:dos,segund,ambos,ambas,doble,par 3:tres,tercer 4:cuatr,cuart "
    "5:cinco,quint 6:seis,sext 7:siete,sépti 8:ocho,octav 9:nueve,noven 10:diez,décim 11:once,undécim "
    "12:doce,docen,mediodía,medianoche 13:trece 14:catorce 15:quince,cuarto 16:dieciséis 17:diecisiete "
    "18:dieciocho 19:diecinueve 20:veint 30:treint,media 40:cuarent 45:cuarto 50:cincuent,mitad 60:sesent "
    "70:setent 80:ochent 90:novent 100:cien 1000:mil,miles,miléc 1000000:millon,millón",
    "it": "0:zero,mezzanott 1:un,uno,una,prim,primo,prima 2:due,second,entramb,doppi,paio 3:tre,terz,terza,terzo "
    "4:quattr,quart 5:cinque,quint 6:sei,sest 7:sette,settim 8:otto,ottav 9:nove,nono,nona 10:dieci,decim "
    "11:undici 12:dodici,dozzin,mezzogiorno 13:tredici 14:quattordici 15:quindici,quarto 16:sedici 17:diciassette "
    "18:diciotto 19:diciannove 20:vent 30:trent,mezza 40:quarant 45:quarti 50:cinquant,metà 60:sessant 70:settant "
    "80:ottant 90:novant 100:cento,centin 1000:mille,mila 1000000:milion 1000000000:miliard",
    "pt": "0:zero 1:um,uma,primeir 2:dois,duas,segund,ambos,ambas,dobro,par 3:três,terceir 4:quatro,quart 5:cinco,"
    "quint 6:seis,sext 7:sete,sétim 8:oito,oitav 9:nove,nono,nona 10:dez,décim 11:onze 12:doze,dúzia 13:treze "
    "14:catorze,quatorze 15:quinze 16:dezesseis,dezasseis 17:dezessete,dezassete 18:dezoito 19:dezenove,dezanove "
    "20:vint 30:trint,meia 40:quarent 50:cinquent,metade 60:sessent 70:setent 80:oitent 90:novent "
    "100:cem,cento,centen 1000:mil,milha 1000000:milhão,milhões",
    "nl": "0:nul,nuls 1:een,één,eerst,eens 2:twee,twed,beid,paar 3:drie,derd 4:vier 5:vijf 6:zes,zesde 7:zeven 8:acht "
    "9:neg 10:tien 11:elf,elfde 12:twaalf,dozijn 13:dertien 14:veertien 15:vijftien,kwart 16:zestien 17:zeventien "
    "18:achttien 19:negentien 20:twintig 30:dertig,half 40:veertig 50:vijftig,helft 60:zestig 70:zeventig "
    "80:tachtig 90:negentig 100:honderd 1000:duizend 1000000:miljoen 1000000000:miljard",
    "cs": "0:nula,nulo,nult 1:jeden,jedn,prvn 2:dva,dvě,dvou,dvěm,druh,oba,obě,dvoj,pár 3:tři,třet,tří,třem "
    "4:čtyř,čtvrt 5:pět,pěti,pát 6:šest 7:sedm 8:osm,osmi,osmý 9:devět,devít,devat,devát 10:deset,desít,desát "
    "11:jedenáct 12:dvanáct,tucet 13:třináct 14:čtrnáct 15:patnáct,čtvrt 16:šestnáct 17:sedmnáct 18:osmnáct "
    "19:devatenáct 20:dvacet,dvacát,dvacít 30:třicet,třicát,půl 40:čtyřicet,čtyřicát 50:padesát,půl 60:šedesát "
    "70:sedmdesát 80:osmdesát 90:devadesát 100:sto,stov,sta,set 1000:tisíc 1000000:milion 1000000000:miliard",
    "sv": "0:noll 1:en,ett,först 2:två,andra,båda,dubbel,par 3:tre,tredje 4:fyra,fjärd 5:fem,femte 6:sex,sjätt "
    "7:sju,sjunde 8:åtta,ått 9:nio,nionde 10:tio,tionde 11:elva,elfte 12:tolv,dussin 13:tretton 14:fjorton "
    "15:femton,kvart 16:sexton 17:sjutton 18:arton 19:nitton 20:tjugo 30:trettio,halv 40:fyrtio 50:femtio,hälft "
    "60:sextio 70:sjuttio 80:åttio 90:nittio 100:hundra 1000:tusen 1000000:miljon 1000000000:miljard",
    "pl": "0:zero 1:jeden,jedn,pierwsz 2:dwa,dwie,dwóch,dwoje,drug,oba,obie,dwoma,para 3:trzy,trzec,trzech,troje "
    "4:czter,czwart 5:pięć,pięci,piąt 6:sześ,szóst 7:siedem,siedmi,siódm 8:osiem,ośmi,ósm "
    "9:dziewięć,dziewięci,dziewiąt 10:dziesięć,dziesięci,dziesiąt 11:jedenast 12:dwunast,dwanaście,tuzin "
    "13:trzynaście,trzynast 14:czternaście,czternast 15:piętnaście,piętnast,kwadrans 16:szesnaście,szesnast "
    "17:siedemnaście,siedemnast 18:osiemnaście,osiemnast 19:dziewiętnaście,dziewiętnast 20:dwadzieścia,dwudziest "
    "30:trzydzie,pół 40:czterdzie 50:pięćdziesiąt,połow 60:sześćdziesiąt 70:siedemdziesiąt 80:osiemdziesiąt "
    "90:dziewięćdziesiąt 100:sto,stu,setk 1000:tysiąc,tysięc 1000000:milion 1000000000:miliard",
    "ru": "0:ноль,ноля,нуль,нуля,полноч 1:один,одн,перв,раз 2:два,две,двух,двум,двое,втор,оба,обе,пара,дважды "
    "3:три,трёх,трех,трет,трое,трём 4:четыр,четвёр,четвер 5:пять,пяти,пят 6:шест 7:семь,семи,седьм 8:восем,восьм "
    "9:девят 10:десят 11:одиннадцат 12:двенадцат,дюжин,полдень,полноч 13:тринадцат 14:четырнадцат "
    "15:пятнадцат,четверть 16:шестнадцат 17:семнадцат 18:восемнадцат 19:девятнадцат 20:двадцат 30:тридцат,полов "
    "40:сорок 45:четверти 50:пятьдесят,пятидесят,полов 60:шестьдесят,шестидесят 70:семьдесят,семидесят "
    "80:восемьдесят,восьмидесят 90:девянос 100:сто,сотн,сот,ста 1000:тысяч 1000000:миллион 1000000000:миллиард",
}
_MONTHS = """
    jan,gen,ene,led,sty,янв,січ fév,feb,fev,úno,lut,фев,лют mar,mär,maa,bře,мар,бер apr,avr,abr,dub,kwi,апр,кві
    may,mai,mag,mei,maj,kvě,мая,май,тра jun,jui,giu,čer,cze,июн,чер jul,jui,lug,čer,lip,июл,лип
    aug,aoû,aou,ago,srp,sie,авг,сер sep,set,zář,wrz,сен,вер oct,okt,ott,out,říj,paź,окт,жов
    nov,lis,ноя,лис dec,déc,dez,dic,pro,gru,дек,гру
""".split()  # noqa: SIM905
_CLOCK = re.compile(
    r"\d\s?[:h]|\b(?:[ap]\.?\s?m\b|o'clock|uhr|heure|hodin|hora|ore\b|uur|klockan|noon|midnight)", re.IGNORECASE
)
_SCALE = re.compile(
    r"\s?(?:k\b|m\b|bn\b|mio|mrd|mill|mil\b|bil|tri|thousand|tausend|tis|тыс|млн|млрд|милл|[万亿億千百兆만억천])",
    re.IGNORECASE,
)
_ROMAN = (
    (1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"),
    (9, "ix"), (5, "v"), (4, "iv"), (1, "i"),
)  # fmt: skip
_IDEOGRAPHS = "〇一二三四五六七八九十"
_MAX_DIGITS = 10  # of numbers that words may stand for


class Number(NamedTuple):
    """A number of a text, or a part of one, such as the month of a date."""

    digits: str  # 0 to 9, with what separates them
    written: str  # the whole number as it stands in the text
    notation: Notation | None = None
    scaled: bool = False  # a word such as "million" follows
    clock: bool = False  # its text or the other tells a time


Key = Callable[[Number], Sequence[str]]  # what a number may mean: two are the same if they share a meaning


def compare_numbers(source: str, output: str, languages: tuple[str, str]) -> tuple[list[str], list[str]]:
    """The numbers of a source that an output lacks, and those of the output that the source lacks."""
    clock = _CLOCK.search(source) is not None or _CLOCK.search(output) is not None
    left, right = numbers_of(source, languages[0], clock), numbers_of(output, languages[1], clock)
    left, right = _unpaired(left, right, lambda number: (number.digits,))
    left, right = _unpaired(left, right, values_of)
    left, right = _unpaired(left, right, _scaled, _plain)
    left, right = _unpaired(left, right, _plain, _scaled)
    if left and right:
        left, right = _parts_of(left), _parts_of(right)
        left, right = _unpaired(left, right, lambda part: (part.digits, part.digits.lstrip("0") or "0"))
        for short, long in ((_year, _century), (_morning, _afternoon)):
            if clock or short is not _morning:
                left, right = _unpaired(left, right, short, long)
                left, right = _unpaired(left, right, long, short)
    return _unexplained(left, output, languages[1]), _unexplained(right, source, languages[0])


def numbers_of(text: str, language: str = "", clock: bool = False) -> list[Number]:
    notation = notation_of(language) if language else None
    return [
        Number(_ascii(match[0]), match[0], notation, _SCALE.match(text, match.end()) is not None, clock)
        for match in _NUMBER.finditer(text)
    ]


def _ascii(number: str) -> str:
    """A number with the digits 0 to 9 in place of those of another script."""
    return number if number.isascii() else "".join(str(int(char)) if char.isdecimal() else char for char in number)


def _unpaired(
    left: list[Number], right: list[Number], left_key: Key, right_key: Key | None = None
) -> tuple[list[Number], list[Number]]:
    """What is left of both sides when each number has been paired with one that may mean the same."""
    if not left or not right:
        return left, right
    places: dict[str, list[int]] = {}
    for index in range(len(right) - 1, -1, -1):
        for meaning in (right_key or left_key)(right[index]):
            places.setdefault(meaning, []).append(index)
    taken, rest = set[int](), list[Number]()
    for number in left:
        for meaning in left_key(number):
            known = places.get(meaning, [])
            while known and known[-1] in taken:
                known.pop()
            if known:
                taken.add(known.pop())
                break
        else:
            rest.append(number)
    return rest, [number for index, number in enumerate(right) if index not in taken]


# --- what a number may mean


def values_of(number: Number) -> tuple[str, ...]:
    """The values that a number may have, each written in one way; only one if the notation decides it."""
    marks, parts = _SEPARATORS.findall(number.digits), _SEPARATORS.split(number.digits)
    if not marks:
        return (_value(number.digits),)
    kinds = ["\u00a0" if mark in _SPACES else mark for mark in marks]
    regular = 1 <= len(parts[0]) <= 3 and parts[0][0] != "0" and all(len(part) == 3 for part in parts[1:-1])
    grouped = decimal = ""
    if regular and len(parts[-1]) == 3 and len({*kinds}) == 1:
        grouped = "".join(parts)
    if kinds[-1] in ".," and kinds[-1] not in kinds[:-1] and (len(kinds) == 1 or (regular and len({*kinds}) == 2)):
        decimal = _value("".join(parts[:-1]), parts[-1])
    if grouped and decimal and number.notation is not None:  # 1.234 is one or the other
        return (decimal,) if kinds[-1] == number.notation.decimal else (grouped,)
    return tuple(filter(None, (grouped, decimal))) or (number.digits,)


def _value(whole: str, fraction: str = "") -> str:
    fraction = fraction.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")


def _parts_of(numbers: Sequence[Number]) -> list[Number]:
    """The parts of dates, times and versions as numbers of their own."""
    return [number._replace(digits=part) for number in numbers for part in _SEPARATORS.split(number.digits)]


def _year(number: Number) -> Sequence[str]:
    return (number.digits,) if len(number.digits) == 2 else ()


def _century(number: Number) -> Sequence[str]:
    return (number.digits[2:],) if len(number.digits) == 4 and number.digits < "2100" else ()


def _morning(number: Number) -> Sequence[str]:
    return (str(int(number.digits)),) if number.clock and len(number.digits) <= 2 else ()


def _afternoon(number: Number) -> Sequence[str]:
    late = number.clock and len(number.digits) == 2 and 12 <= int(number.digits) <= 24
    return (str(int(number.digits) - 12),) if late else ()


def _scaled(number: Number) -> Sequence[str]:
    return (_SEPARATORS.sub("", number.digits).rstrip("0"),) if number.scaled else ()


def _plain(number: Number) -> Sequence[str]:
    return () if number.scaled else (_SEPARATORS.sub("", number.digits).rstrip("0"),)


# --- words for numbers


def _unexplained(numbers: Sequence[Number], text: str, language: str) -> list[str]:
    """The numbers, as they are written, that no word of the other text can stand for."""
    if not numbers:
        return []
    text = text.lower()
    missing = (number.written for number in numbers if not any(_readings_in_words(number, text, language)))
    return list(dict.fromkeys(missing))


def _readings_in_words(number: Number, text: str, language: str) -> Iterator[bool]:
    """Whether a text in lower case may have a number in words, for each way to write it."""
    yield number.clock and number.digits == "00"
    base = short_code(re.split("[-_]", language)[0].lower())
    languages = [base] if language else [*_WORDS]
    for reading in values_of(number):
        if not reading.isdecimal() or len(reading) > _MAX_DIGITS:
            continue
        value = int(reading)
        if 0 < value < 4000:
            yield _roman_pattern(value).search(text) is not None
        if 1 <= value <= 10:
            yield _IDEOGRAPHS[value] in text
        if 1 <= value <= 12:
            yield _month_pattern(value).search(text) is not None
        # Half past two is halb drei; ten in the evening is vingt-deux heures.
        hours = (value + 1, value + 12, value - 12) if number.clock and value <= 24 else ()
        for code in languages:
            if code in _WORDS:
                yield any(_in_words(word, text, code) for word in (value, *hours) if word >= 0)


def _in_words(value: int, text: str, language: str) -> bool:
    table = _table(language)
    if value in table and _word_pattern(table[value]).search(text):
        return True
    if value % 10 == 0 and 1900 <= value < 2000 and _in_words(value - 1900, text, language):  # the fifties
        return True
    return any(
        len(parts) > 1 and all(any(word in text for word in table[part]) for part in parts) for parts in _parts(value)
    )


def _parts(value: int) -> Iterator[list[int]]:
    """The numbers whose words the word of a number is made of, for each way that languages have."""
    if value >= 1_000_000:
        return
    if value >= 1000:
        before = [[1000]] if value < 2000 else [[1000, *parts] for parts in _parts(value // 1000)]
        yield from ([*high, *low] for high in before for low in _parts(value % 1000))
        if value < 2000 and value % 1000 >= 100:  # nineteen hundred, where hundred may be left out
            yield from ([value // 100, *low] for low in _parts(value % 100))
    elif value >= 100:
        yield from ([100, *([value // 100] if value >= 200 else ()), *low] for low in _parts(value % 100))
    elif value <= 20 or value % 10 == 0:
        yield [value] if value else []
    else:
        yield [value // 10 * 10, value % 10]
    if 70 < value < 80 or 90 < value < 100:  # soixante-treize, quatre-vingt-dix-sept
        yield [value // 10 * 10 - 10, value % 10 + 10]


@cache
def _table(language: str) -> dict[int, tuple[str, ...]]:
    entries = (entry.split(":") for entry in _WORDS[language].split())
    return {int(value): tuple(words.split(",")) for value, words in entries}


@cache
def _word_pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(r"\b(?:" + "|".join(word if len(word) > 3 else rf"{word}\b" for word in words) + ")")


@cache
def _month_pattern(month: int) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{_MONTHS[month - 1].replace(',', '|')})")


@cache
def _roman_pattern(value: int) -> re.Pattern[str]:
    letters, rest = "", value
    for size, numeral in _ROMAN:
        count, rest = divmod(rest, size)
        letters += numeral * count
    return re.compile(rf"(?<!\w){letters}(?:e|è|ème|er|th|st|nd|rd)?(?!\w)")
