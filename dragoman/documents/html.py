"""Read HTML: blocks become texts with inline tags; scripts, styles, code, comments and translate="no" are copied."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dragoman.documents.markup import Block, Token, block_of

# Bounded repetitions: a hostile text must not make matching quadratic.
_ATTRIBUTES = r"""(?:[^<>"']|"[^"]{0,8000}"|'[^']{0,8000}'){0,2000}+"""
_TAG = re.compile(rf"<(?P<close>/?)(?P<name>[A-Za-z][A-Za-z0-9:-]{{0,60}}+)(?P<attributes>{_ATTRIBUTES})>", re.DOTALL)
_DECLARATION = re.compile(r"<[!?][^<>]{0,8000}>")
_NO_TRANSLATE = re.compile(r"""translate\s*=\s*["']?no\b|class\s*=\s*["'][^"']*\bnotranslate\b""", re.IGNORECASE)
_ATTRIBUTE = re.compile(
    r"""\s(?P<name>[^\s=<>"'/]{1,100}+)(?:\s*+=\s*+(?P<value>"[^"]*+"|'[^']*+'|[^\s"'<>=]++))?""", re.DOTALL
)
READABLE = frozenset({"alt", "title", "placeholder", "aria-label"})
SUMMARIES = frozenset({"description", "og:description", "og:title", "twitter:description", "twitter:title"})
INLINE = frozenset(
    re.findall(
        r"\w+",
        "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark q s samp small span "
        "strike strong sub sup time tt u var wbr",
    )
)
VOID = frozenset(re.findall(r"\w+", "area base br col embed hr img input link meta param source track wbr"))
COPIED = frozenset(re.findall(r"\w+", "code kbd math noscript pre samp script style svg template textarea var"))


def tokens_of(document: str) -> list[Token]:
    """The document cut into tags, copied stretches and texts; their `raw` joined is the document."""
    raw = _raw_tokens(document)
    ends = _element_ends(raw)
    found: list[Token] = []
    index = 0
    while index < len(raw):
        token = raw[index]
        if token.kind == "open" and (token.name in COPIED or _NO_TRANSLATE.search(token.raw)) and index in ends:
            whole = "".join(one.raw for one in raw[index : ends[index] + 1])
            found.append(Token("copied", token.name, whole))
            index = ends[index]
        else:
            found.append(token)
        index += 1
    return found


def readable_attributes(token: Token) -> Iterator[tuple[int, int]]:
    """Where in a tag the texts are that people read: descriptions of images, tooltips, placeholders, summaries."""
    if token.kind not in ("open", "void") and token.name != "textarea":
        return
    tag = _TAG.match(token.raw)
    if tag is None or _NO_TRANSLATE.search(tag["attributes"]):
        return
    found = [(match["name"].lower(), match) for match in _ATTRIBUTE.finditer(tag["attributes"])]
    about = {name: (match["value"] or "").strip("\"'").lower() for name, match in found}
    described = token.name == "meta" and (about.get("name") or about.get("property")) in SUMMARIES
    for name, match in found:
        value = match["value"] or ""
        if not (value.startswith(("'", '"')) and any(map(str.isalpha, value))):
            continue  # without quotes there is no room for a text
        if name in READABLE or (described and name == "content"):
            first, last = match.span("value")
            yield tag.start("attributes") + first + 1, tag.start("attributes") + last - 1


def _raw_tokens(document: str) -> list[Token]:
    """Tags, comments and texts in the order of the document; texts of scripts are one token."""
    found: list[Token] = []
    place = start = 0  # of the search, and of the text that is not yet a token
    comments = True  # whether a comment may still end
    while (place := document.find("<", place)) >= 0:
        if comments and document.startswith("<!--", place):
            end = document.find("-->", place + 4)
            comments = end >= 0
            token = Token("copied", "", document[place : end + 3]) if comments else None
        elif match := _TAG.match(document, place):
            name = match["name"].lower()
            kind = "close" if match["close"] else "void" if name in VOID or match[0].endswith("/>") else "open"
            token = Token(kind, name, match[0])
        else:
            declaration = _DECLARATION.match(document, place)
            token = Token("copied", "", declaration[0]) if declaration else None
        if token is None:
            place += 1
            continue
        if place > start:
            found.append(Token("text", "", document[start:place]))
        found.append(token)
        place = start = place + len(token.raw)
        if token.kind == "open" and token.name in ("script", "style"):
            end = document.lower().find(f"</{token.name}", place)
            place = end if end >= 0 else len(document)
    if start < len(document):
        found.append(Token("text", "", document[start:]))
    return found


def _element_ends(tokens: Sequence[Token]) -> dict[int, int]:
    """The index of the closing tag of every opening tag that has one."""
    waiting: dict[str, list[int]] = {}
    ends: dict[int, int] = {}
    for index, token in enumerate(tokens):
        if token.kind == "open":
            waiting.setdefault(token.name, []).append(index)
        elif token.kind == "close" and waiting.get(token.name):
            ends[waiting[token.name].pop()] = index
    return ends


def parse_blocks(document: str) -> list[Block | str]:
    """The blocks of a document, and between them the tags and other stretches to copy."""
    out: list[Block | str] = []
    waiting: list[Token] = []

    def flush() -> None:
        if any(token.kind == "text" and token.raw.strip() for token in waiting):
            out.append(block_of(waiting))
        else:
            out.extend(token.raw for token in waiting)
        waiting.clear()

    for token in tokens_of(document):
        if token.kind == "text" or token.name in INLINE or (token.kind == "copied" and not token.name):
            waiting.append(token)
        else:
            flush()
            out.append(token.raw)
    flush()
    return out
