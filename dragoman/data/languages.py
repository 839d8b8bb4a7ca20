"""Names of languages, and the language that a text is written in."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

from dragoman.base import MissingExtraError

UNKNOWN = "und"  # ISO 639-2: undetermined
NAMES: dict[str, str] = dict(
    re.findall(
        r"(\w+):([^,]+)",
        "af:Afrikaans,ar:Arabic,az:Azerbaijani,be:Belarusian,bg:Bulgarian,bn:Bengali,bs:Bosnian,ca:Catalan,cs:Czech,"
        "cy:Welsh,da:Danish,de:German,el:Greek,en:English,eo:Esperanto,es:Spanish,et:Estonian,eu:Basque,fa:Persian,"
        "fi:Finnish,fr:French,ga:Irish,gl:Galician,gu:Gujarati,he:Hebrew,hi:Hindi,hr:Croatian,hu:Hungarian,hy:Armenian,"
        "id:Indonesian,is:Icelandic,it:Italian,ja:Japanese,ka:Georgian,kk:Kazakh,km:Khmer,kn:Kannada,ko:Korean,"
        "ky:Kyrgyz,la:Latin,lo:Lao,lt:Lithuanian,lv:Latvian,mk:Macedonian,ml:Malayalam,mn:Mongolian,mr:Marathi,"
        "ms:Malay,mt:Maltese,my:Burmese,nb:Norwegian,ne:Nepali,nl:Dutch,no:Norwegian,pa:Punjabi,pl:Polish,"
        "pt:Portuguese,ro:Romanian,ru:Russian,si:Sinhala,sk:Slovak,sl:Slovenian,sq:Albanian,sr:Serbian,sv:Swedish,"
        "sw:Swahili,ta:Tamil,te:Telugu,th:Thai,tl:Tagalog,tr:Turkish,uk:Ukrainian,ur:Urdu,uz:Uzbek,vi:Vietnamese,"
        "zh:Chinese,zu:Zulu",
    )
)
THREE_LETTERS: dict[str, str] = dict(
    re.findall(
        r"(\w+):(\w+)",
        "afr:af ara:ar aze:az bel:be bul:bg ben:bn bos:bs cat:ca ces:cs cze:cs cym:cy wel:cy dan:da deu:de ger:de "
        "ell:el gre:el eng:en epo:eo spa:es est:et eus:eu baq:eu fas:fa per:fa fin:fi fra:fr fre:fr gle:ga glg:gl "
        "guj:gu heb:he hin:hi hrv:hr hun:hu hye:hy arm:hy ind:id isl:is ice:is ita:it jpn:ja kat:ka geo:ka kaz:kk "
        "khm:km kan:kn kor:ko kir:ky lat:la lao:lo lit:lt lav:lv mkd:mk mac:mk mal:ml mon:mn mar:mr msa:ms may:ms "
        "mlt:mt mya:my bur:my nob:nb nep:ne nld:nl dut:nl nor:no pan:pa pol:pl por:pt ron:ro rum:ro rus:ru sin:si "
        "slk:sk slo:sk slv:sl sqi:sq alb:sq srp:sr swe:sv swa:sw tam:ta tel:te tha:th tgl:tl tur:tr ukr:uk urd:ur "
        "uzb:uz vie:vi zho:zh chi:zh zul:zu",
    )
)
MAX_DETECTED = 2_000  # characters: more do not change the answer, and take seconds
# How many times as probable another language must be for a text to be in none of some languages. Of 6,000 sentences of
# Multi30k and Tatoeba in English and German, none had another that was 10 times as probable.
CLEAR = 100.0
_LOCK = threading.Lock()
_CODE = re.compile(r"[A-Za-z]{2,3}(?:-[A-Za-z0-9]{1,8})*")
_PAIR = re.compile(r"(?:^|[._])([a-z]{2,3})(?:-|_|2|_to_)([a-z]{2,3})(?:$|[._-])")


def languages_of_name(name: str) -> tuple[str, str]:
    """Source and target language by the name of a run, such as "de-en"; empty where it does not say."""
    match = _PAIR.search(name.lower())
    return (short_code(match[1]), short_code(match[2])) if match else ("", "")


def short_code(code: str) -> str:
    """The two-letter code of a language where it has one: "de" for "deu"."""
    return THREE_LETTERS.get(code.lower(), code)


def normal_code(code: str) -> str:
    """A language code with hyphens: "pt-BR" for "pt_BR", "sr" for "sr@latin"; empty: it names no language."""
    code = code.strip().partition("@")[0].replace("_", "-")
    return code if _CODE.fullmatch(code) and code.lower() not in (UNKNOWN, "mul", "zxx", "mis") else ""


def language_name(code: str) -> str:
    """The English name of a language; its code where the name is not known."""
    base, _, region = code.partition("-")
    name = NAMES.get(short_code(base).lower())
    if name is None:
        return "Unknown" if code == UNKNOWN else code
    return f"{name} ({region})" if region else name


def same_language(first: str, second: str) -> bool:
    """Whether two codes name the same language: "de" and "DE-AT" do, "pt-BR" and "pt-PT" do not."""
    left, right = first.lower().split("-"), second.lower().split("-")
    if short_code(left[0]) != short_code(right[0]):
        return False
    return len(left) == 1 or len(right) == 1 or left == right


def load_identifier(purpose: str, extra: str) -> Any:
    """A naive Bayes model over bytes (Lui and Baldwin 2012); reading it takes seconds."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise MissingExtraError(purpose, "py3langid", extra) from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@cache
def _identifier() -> Any:
    return load_identifier("detecting the language of a text", "serve")


def detect(text: str, languages: Sequence[str]) -> list[tuple[str, float]]:
    """The languages of a text, likeliest first, each with its probability among `languages`; it reads the beginning.

    A text that is clearly in none of them has one language, which is not among `languages`.
    """
    text = text[:MAX_DETECTED]
    codes = sorted({short_code(code.split("-")[0]) for code in languages} - {UNKNOWN})
    if len(codes) == 1:
        return [(codes[0], 1.0 if text.strip() else 0.0)]
    with _LOCK:  # read once
        identifier = _identifier()
    ranked = {code: float(share) for code, share in identifier.rank(text)}
    known = {code: ranked[code] for code in codes if code in ranked}
    if not known or not text.strip():
        return [(languages[0], 0.0)]
    other = max(NAMES.keys() & ranked.keys(), key=ranked.__getitem__)
    if len(known) == len(codes) and ranked[other] > CLEAR * max(known.values()):
        return [(other, ranked[other])]
    total = sum(known.values()) or 1.0
    return sorted(((code, share / total) for code, share in known.items()), key=lambda entry: -entry[1])
