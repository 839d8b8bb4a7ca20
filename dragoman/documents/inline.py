"""Inline elements of XML formats: some stand around text that is translated, all others are kept whole."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from dragoman.documents.markup import Token, escape_text
from dragoman.documents.xml import XMLToken, attributes_of, local


def inline_tokens(text: str, tokens: Sequence[XMLToken], around: Collection[str]) -> Iterator[Token]:
    """The content of an element as texts and tags; elements with names in `around` have text inside."""
    opaque: list[XMLToken] = []  # open elements that are kept whole
    start = 0
    for token in tokens:
        raw = text[token.start : token.end]
        if opaque:
            if token.kind == "open":
                opaque.append(token)
            elif token.kind == "close":
                opaque.pop()
                if not opaque:
                    yield Token("copied", local(token.name), text[start : token.end])
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
            else:
                yield Token("open", local(token.name), raw)
        else:
            yield Token({"close": "close", "empty": "void"}.get(token.kind, "copied"), local(token.name), raw)
