"""Data hallucination: made-up training pairs whose stems are random letters (Anastasopoulos and Neubig 2019).

A run of three or more letters that source and target share is taken for a piece of the stem. Replacing it on both sides
keeps the affixes and the features: "sehen V;PTCP → gesehen" gives "kofbn V;PTCP → gekofbn". A model of few pairs so
learns to copy stems.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher

from dragoman.data.examples import Example
from dragoman.data.tokenizers.characters import split_features

SHORTEST = 3  # letters of a run that is taken for a piece of the stem
Run = tuple[int, int, int]  # beginning in the stem, beginning in the target, length


def shared_runs(stem: str, target: str) -> list[Run]:
    """The runs of `SHORTEST` or more letters that both texts have, in the same order."""
    blocks = SequenceMatcher(None, stem, target, autojunk=False).get_matching_blocks()
    return [(block.a, block.b, block.size) for block in blocks if block.size >= SHORTEST]


def hallucinate(examples: Iterable[Example], count: int, marks: str = "", seed: int = 1) -> Iterator[Example]:
    """`count` made-up examples, each from a random one of these; none if no example has a stem.

    `marks` describes the layout of features at the end of the sources (see `split_features`).
    """
    usable = []
    letters: dict[bool, set[str]] = {False: set(), True: set()}  # small and capital ones
    for example in examples:
        stem = split_features(example.source, marks)[0] if marks else example.source
        if runs := shared_runs(stem, example.references[0]):
            usable.append((example, runs))
            for start, _, size in runs:
                for letter in filter(str.isalpha, stem[start : start + size]):
                    letters[letter.isupper()].add(letter)
    alphabets = {case: sorted(found) for case, found in letters.items()}
    draw = random.Random(seed)
    for _ in range(count if usable else 0):
        example, runs = draw.choice(usable)
        source, target = list(example.source), list(example.references[0])
        for start, other, size in runs:
            for offset in range(size):
                letter = source[start + offset]
                if letter.isalpha():
                    source[start + offset] = target[other + offset] = draw.choice(alphabets[letter.isupper()])
        yield example._replace(source="".join(source), references=("".join(target),))
