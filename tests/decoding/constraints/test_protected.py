"""Texts to copy are found as a pattern of all of them would find them."""

from __future__ import annotations

import random
import re

from dragoman.decoding.constraints.source import protected_spans, without_protected


def test_spans_are_those_of_one_pattern() -> None:
    draw = random.Random(0)
    for _ in range(3000):
        texts = list({"".join(draw.choices("ab1", k=draw.randint(1, 4))) for _ in range(draw.randint(0, 4))})
        text = "".join(draw.choices("ab1 ", k=draw.randint(0, 20)))
        pattern = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")
        assert list(protected_spans(text, texts)) == [match.span() for match in pattern.finditer(text)]
        assert without_protected(text, texts) == pattern.sub("", text)
