"""Inline elements of XML formats: some stand around text that is translated, all others are kept whole."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from dragoman.documents.markup import Token, escape_text
from dragoman.documents.xml import XMLToken, attributes_of, local

# Codes in two parts, which may cross elements: XLIFF 1.2, XLIFF 2 and TMX name the same thing by these attributes.
BEGIN = {"bpt": "bpt", "bx": "bx", "sc": "sc", "sm": "sm"}
END = {"ept": "bpt", "ex": "bx", "ec": "sc", "em": "sm"}
_REFERENCES = ("startRef", "rid", "i", "id")


def inline_tokens(text: str, tokens: Sequence[XMLToken], around: Collection[str]) -> Iterator[Token]:
    """The content of an element as texts and tags; elements with names in `around` have text inside."""
    opaque: list[XMLToken] = []  # open elements that are kept whole
    kind, name, start = "", "", 0
    for token in tokens:
        raw = text[token.start : token.end]
        if opaque:
            if token.kind == "open":
                opaque.append(token)
            elif token.kind == "close":
                opaque.pop()
                if not opaque:
                    yield Token(kind, name, text[start : token.end])
        elif token.kind == "text":
            yield Token("text", "", raw)
        elif token.kind == "cdata":
            yield Token("text", "cdata", escape_text(raw[9:-3]))
        elif token.kind == "open":
            attributes = attributes_of(raw)
            kept = local(token.name) not in around or attributes.get("translate") == "no"
            kept = kept or attributes.get("mtype") == "protected"
            if kept:
                opaque, start = [token], token.start
                kind, name = _code(token, attributes, "copied")
            else:
                yield Token("open", local(token.name), raw)
        elif token.kind == "empty":
            yield Token(*_code(token, attributes_of(raw), "void"), raw)
        else:
            yield Token("close" if token.kind == "close" else "copied", local(token.name), raw)


def _code(token: XMLToken, attributes: Mapping[str, str], kind: str) -> tuple[str, str]:
    """Kind and name of a code: the two parts of one have the same name."""
    name = local(token.name)
    part = BEGIN.get(name) or END.get(name)
    if part is None:
        return kind, name
    reference = next((attributes[key] for key in _REFERENCES if key in attributes), "")
    return "begin" if name in BEGIN else "end", f"{part} {reference}"
