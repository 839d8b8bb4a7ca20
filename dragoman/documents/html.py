"""Read HTML: blocks become texts with inline tags; scripts, styles, code, comments and translate="no" are copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dragoman.documents.html_tokens import attributes_of_tag, html_tokens, tag_names, unescape_text
from dragoman.documents.markup import Block, Token, block_of

READABLE = frozenset({"alt", "title", "placeholder", "aria-label"})
SUMMARIES = frozenset({"description", "og:description", "og:title", "twitter:description", "twitter:title"})
INLINE = tag_names(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark math nobr q rb rp rt rtc "
    "ruby s samp small span strike strong sub sup time tt u var wbr"
)
# Code and what only says how its neighbour sounds: a translation has other sounds.
COPIED = tag_names(
    "code kbd math noscript pre rp rt rtc samp script style svg template textarea var xmp iframe noembed noframes"
)


def tokens_of(page: str, xml: bool = False) -> list[Token]:
    """The page cut into tags, copied stretches and texts; their `raw` joined is the page."""
    raw = html_tokens(page, xml)
    ends = _element_ends(raw)
    tokens: list[Token] = []
    index = 0
    while index < len(raw):
        token = raw[index]
        if index in ends and (token.name in COPIED or _stays(token)):
            whole = "".join(part.raw for part in raw[index : ends[index] + 1])
            tokens.append(Token("copied", token.name, whole))
            index = ends[index]
        else:
            tokens.append(token)
        index += 1
    return tokens


def _stays(token: Token) -> bool:
    """Whether a tag says that its content is not translated."""
    if "translate" not in token.raw.lower():
        return False
    attributes = {attribute.name: attribute.value for attribute in attributes_of_tag(token.raw)}
    return attributes.get("translate", "").lower() == "no" or "notranslate" in attributes.get("class", "").split()


def readable_attributes(token: Token) -> Iterator[tuple[int, int]]:
    """Where in a tag the texts are that people read: descriptions of images, tooltips, placeholders, summaries."""
    if (token.kind not in ("open", "void") and token.name != "textarea") or _stays(token):
        return
    attributes = attributes_of_tag(token.raw)
    about = {attribute.name: attribute.value.strip().lower() for attribute in attributes}
    described = token.name == "meta" and (about.get("name") or about.get("property")) in SUMMARIES
    for attribute in attributes:
        if not (attribute.quote and any(map(str.isalpha, attribute.value))):
            continue  # without quotes there is no room for a text
        if attribute.name in READABLE or (described and attribute.name == "content"):
            yield attribute.start, attribute.end


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


def parse_blocks(page: str, xml: bool = False) -> list[Block | str]:
    """The blocks of a page, and between them the tags and other stretches to copy."""
    out: list[Block | str] = []
    waiting: list[Token] = []

    def flush() -> None:
        if any(token.kind == "text" and token.raw.strip() for token in waiting):
            out.append(block_of(waiting, unescape_text))
        else:
            out.extend(token.raw for token in waiting)
        waiting.clear()

    for token in tokens_of(page, xml):
        if token.kind == "text" or token.name in INLINE or (token.kind == "copied" and not token.name):
            waiting.append(token)
        else:
            flush()
            out.append(token.raw)
    flush()
    return out


def placed_blocks(page: str, xml: bool = False) -> Iterator[tuple[int, Block]]:
    """The blocks of a page, each with the place where it starts."""
    place = 0
    for part in parse_blocks(page, xml):
        if isinstance(part, Block):
            yield place, part
        place += len(part.raw if isinstance(part, Block) else part)
