"""Cut HTML into tags, comments and texts as the tokenizer of the HTML standard does (WHATWG, section 13.2.5).

Tokens keep their source text: joined, they are the page. Each is found by one regular expression whose repetitions
never give back what they took, and one that runs to the end of the page ends it. So time is linear for any input.
"""

from __future__ import annotations

import html
import re
import string
from html.entities import html5
from typing import NamedTuple

from dragoman.base import check_interrupted
from dragoman.inference.segments import Token

_SPACE = r"\t\n\f\r "
_ATTRIBUTE = (
    rf"(?P<name>=[^{_SPACE}/>=]*+|[^{_SPACE}/>=]++)"
    rf"(?:[{_SPACE}]*+=[{_SPACE}]*+(?P<value>\"[^\"]*+(?:\"|\Z)|'[^']*+(?:'|\Z)|(?![\"'])[^{_SPACE}>]*+))?+"
)
_ATTRIBUTES = re.compile(_ATTRIBUTE)
_TAG = re.compile(
    rf"<(?P<close>/?)(?P<tag>[A-Za-z][^{_SPACE}/>]*+)(?P<attributes>(?:[{_SPACE}/]++|"
    + re.sub(r"\?P<\w+>", "?:", _ATTRIBUTE)
    + r")*+)>"
)
_COMMENT_END = re.compile(r"--!?>")
_SCRIPT = re.compile(rf"<!--|--++>|<(?P<close>/?)script(?=[{_SPACE}/>])", re.ASCII | re.IGNORECASE)
_ENDS = {
    name: re.compile(rf"</{name}(?=[{_SPACE}/>])", re.ASCII | re.IGNORECASE)
    for name in ("style", "xmp", "iframe", "noembed", "noframes", "title", "textarea")
}
_DOCTYPE = re.compile(r"<!DOCTYPE(?:[^\[\]>\"']|\"[^\"]*\"|'[^']*'|\[[^\]]*\])*+>", re.DOTALL)  # of XML
_REFERENCE = re.compile(r"&(?:#[0-9]++;?|#[xX][0-9a-fA-F]++;?|(?P<name>[A-Za-z][A-Za-z0-9]*+)(?P<end>[;=]?))")
_NUMBER = re.compile(r"&#(?:(?P<digits>[0-9]++)|[xX](?P<hex>[0-9a-fA-F]++));?")
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def tag_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHARED = 1_000  # characters of a token, and tokens
REFERABLE = frozenset({"title", "textarea"})  # text in which references count; that of the others is copied
VOID = tag_names("area base br col embed hr img input link meta param source track wbr")
# In SVG and MathML no element has raw text; these lead back to HTML, from inside and by breaking out.
_INSIDE = tag_names("foreignobject desc title annotation-xml mi mo mn ms mtext")
_OUT = tag_names(
    "b big blockquote body br center code dd div dl dt em embed h1 h2 h3 h4 h5 h6 head hr i img li listing menu meta "
    "nobr ol p pre ruby s small span strong strike sub sup table tt u ul var"
)


class Attribute(NamedTuple):
    """An attribute of a tag: its name in lower case, its value, and where in the tag the value is."""

    name: str
    value: str
    start: int
    end: int
    quote: str  # '"', "'" or none


def attributes_of_tag(tag: str) -> list[Attribute]:
    """The attributes of a start tag in order; of two with one name the first counts."""
    match = _TAG.match(tag)
    attributes: dict[str, Attribute] = {}
    start, end = match.span("attributes") if match else (0, 0)
    for attribute in _ATTRIBUTES.finditer(tag, start, end):
        value = attribute["value"] or ""
        quote = value[:1] if value[:1] in ('"', "'") else ""
        first, last = attribute.span("value") if attribute["value"] is not None else (attribute.end(),) * 2
        name = attribute["name"].translate(_LOWER)
        value = value[1:-1] if quote else value
        first, last = first + len(quote), last - len(quote)
        attributes.setdefault(name, Attribute(name, unescape_attribute(value), first, last, quote))
    return list(attributes.values())


def unescape_text(text: str) -> str:
    """A text with its references resolved, also those that `html.unescape` drops or fails at."""
    return html.unescape(_NUMBER.sub(_number, text)) if "&" in text else text


def _number(match: re.Match[str]) -> str:
    digits = (match["hex"] or match["digits"]).lstrip("0") or "0"
    if len(digits) > 8:
        return "\ufffd"
    code = int(digits, 16 if match["hex"] else 10)
    return f"&#{code};" if html.unescape(f"&#{code};") else chr(code)


def unescape_attribute(value: str) -> str:
    """A value with its references resolved; `&copy=1` and `&copyx` are part of an address, not references."""

    def resolved(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None or (match["end"] == ";" and f"{name};" in html5):
            return unescape_text(match[0])
        return html5[name] + match["end"] if name in html5 and match["end"] != "=" else match[0]

    return _REFERENCE.sub(resolved, value)


class _Foreign:
    """Whether a place is inside SVG or MathML."""

    def __init__(self) -> None:
        self.stack: list[str] = []

    def __bool__(self) -> bool:
        return bool(self.stack) and self.stack[-1] in ("svg", "math")

    def open(self, name: str) -> None:
        if self and name in _OUT:
            while self:
                self.stack.pop()
        elif name in ("svg", "math") or (self and name in _INSIDE):
            self.stack.append(name)

    def close(self, name: str) -> None:
        if name in self.stack[-100:]:  # deeper ones are no page that anybody wrote
            while self.stack.pop() != name:
                pass


def html_tokens(page: str, xml: bool = False) -> list[Token]:
    """Tags, comments and texts in the order of the page; with `xml`, as XML has them.

    The text of scripts and styles has the kind `copied` and the name `#raw`.
    """
    tokens: list[Token] = []
    shared: dict[Token, Token] = {}  # equal tokens are one
    foreign = _Foreign()
    start = place = 0  # of the text that is not yet a token, and of the search

    def add(token: Token, begin: int) -> None:
        for one in (Token("text", "", page[start:begin]), token) if begin > start else (token,):
            tokens.append(shared.setdefault(one, one) if len(one.raw) < SHARED else one)
        if len(shared) > SHARED or not len(tokens) % SHARED:
            check_interrupted()
            shared.clear()

    while (place := page.find("<", place)) >= 0:
        follows = page[place + 1 : place + 3]
        if _letter(follows[:1]) or (follows[:1] == "/" and _letter(follows[1:])):
            match = _TAG.match(page, place)
            if match is None:  # the page ends inside a tag, which a browser drops
                add(Token("copied", "", page[place:]), place)
                return tokens
            token = _tag(match, xml or (bool(foreign) and match["tag"].translate(_LOWER) not in _OUT))
            add(token, place)
            place = start = match.end()
            if token.kind == "close":
                foreign.close(token.name)
            elif token.kind == "open":
                raw = not xml and not foreign
                foreign.open(token.name)
                if raw and (end := _raw_end(page, place, token.name)) > place:
                    kind = ("text", "") if token.name in REFERABLE else ("copied", "#raw")
                    tokens.append(Token(*kind, page[place:end]))
                    place = start = end
        elif follows[:1] in ("!", "?") or (follows[:1] == "/" and len(follows) > 1):
            end = _markup_end(page, place, xml or bool(foreign), xml)
            add(Token("copied", "", page[place:end]), place)
            place = start = end
        else:
            place += 1
    if start < len(page):
        tokens.append(Token("text", "", page[start:]))
    return tokens


def _letter(character: str) -> bool:
    return character.isascii() and character.isalpha()


def _tag(match: re.Match[str], closes: bool) -> Token:
    """The token of a tag; `closes`: a slash at its end counts."""
    name = match["tag"].translate(_LOWER)
    if match["close"]:
        return Token("close", name, match[0])
    slash = closes and match["attributes"].endswith("/")
    return Token("void" if slash or name in VOID else "open", name, match[0])


def _markup_end(page: str, place: int, sections: bool, xml: bool) -> int:
    """Where a comment, a declaration, an instruction or a CDATA section ends."""
    if page.startswith("<!--", place):
        if not xml and page.startswith((">", "->"), place + 4):
            return page.index(">", place + 4) + 1
        match = _COMMENT_END.search(page, place + 4)
        return match.end() if match else len(page)
    ending = ">"
    if sections and page.startswith("<![CDATA[", place):
        ending = "]]>"
    elif xml and page.startswith("<?", place):
        ending = "?>"
    elif xml and (match := _DOCTYPE.match(page, place)):
        return match.end()
    end = page.find(ending, place)
    return end + len(ending) if end >= 0 else len(page)


def _raw_end(page: str, place: int, name: str) -> int:
    """Where the raw text of an element ends; `place` for elements without."""
    if name == "plaintext":
        return len(page)
    if name in _ENDS:
        match = _ENDS[name].search(page, place)
        return match.start() if match else len(page)
    if name != "script":
        return place
    escaped, doubly = False, False  # inside <!--, and inside a <script> in it
    while match := _SCRIPT.search(page, place):
        place = match.end()
        if match[0] == "<!--":
            escaped, place = True, place - 2  # <!--> ends at once
        elif match[0].endswith(">"):
            escaped = doubly = False
        elif match["close"] and not doubly:
            return match.start()
        elif match["close"]:
            doubly = False
        else:
            doubly = escaped
    return len(page)
