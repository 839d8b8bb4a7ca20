"""How the two sides of pairs relate: what is copied, and whether the order is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman.classical import Ragged, lexicon_of_rows

ALIGNED = 500  # pairs that are aligned
LONGEST = 60  # tokens; longer texts are cut before they are aligned
FEWEST_WORDS = 100  # of held-out targets that say something about new words
RARE, FEWEST_RARE = 5, 5  # words that occur so often at most are rare, and how many of them say something
Tokens = Sequence[str]


def clipped_matches(source: Tokens, target: Tokens) -> int:
    """How many target tokens also occur in the source; a token counts at most as often as it occurs there."""
    return sum((Counter(target) & Counter(source)).values())


def shared_letters(sources: Iterable[str], targets: Iterable[str], alphabets: Sequence[set[str]]) -> float:
    """The share of the letters of one side that are letters of the other, of the side that shares more.

    A side without letters, such as numbers, shares none; 1 if neither has any.
    """
    shares = [coverage(sources, alphabets[1]), coverage(targets, alphabets[0])]
    return max((share for share in shares if share is not None), default=1.0)


def coverage(texts: Iterable[str], alphabet: set[str]) -> float | None:
    """The share of letters that belong to an alphabet; None if there are no letters."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    letters = {letter: count for letter, count in counts.items() if letter.isalpha()}
    total = sum(letters.values())
    return sum(count for letter, count in letters.items() if letter in alphabet) / total if total else None


def new_words(pairs: Sequence[tuple[Tokens, Tokens]]) -> tuple[float, float]:
    """Of the target words of every tenth pair, the share that other targets lack, and that their source lacks as well.

    Both are 1 if there are too few words to tell.
    """
    known = {word for index, (_, target) in enumerate(pairs) if index % 10 != 9 for word in target}
    held_out = [(set(source), target) for source, target in pairs[9::10]]
    count = sum(len(target) for _, target in held_out)
    if count < FEWEST_WORDS:
        return 1.0, 1.0
    new = [word in source for source, target in held_out for word in target if word not in known]
    return len(new) / count, (len(new) - sum(new)) / count


def copied_rare_words(pairs: Sequence[tuple[Tokens, Tokens]]) -> float:
    """The share of the rare target words that their own source contains; 0 if hardly any are rare."""
    counts = Counter(word for _, target in pairs for word in target)
    rare = [word in set(source) for source, target in pairs for word in target if counts[word] <= RARE]
    return sum(rare) / len(rare) if len(rare) >= FEWEST_RARE else 0.0


def _numbered(texts: Sequence[Tokens]) -> tuple[list[NDArray[np.int64]], int]:
    numbers: dict[str, int] = {}
    rows = [np.array([numbers.setdefault(token, len(numbers)) for token in text[:LONGEST]], np.int64) for text in texts]
    return rows, len(numbers)


def monotonicity(sources: Sequence[Tokens], targets: Sequence[Tokens]) -> float:
    """Kendall's τ between the positions of target tokens and of the source tokens that they align to.

    1: the order is always kept, 0: no relation, −1: always reversed. IBM model 1 aligns; among equally probable source
    tokens the one nearest to the diagonal is taken.
    """
    (source, size), (target, _) = _numbered(sources), _numbered(targets)
    lexicon = lexicon_of_rows(Ragged.of_rows(source), Ragged.of_rows(target), size)
    keys = (lexicon.sources << 32) + lexicon.targets
    table = dict(zip(keys.tolist(), lexicon.probabilities.tolist(), strict=True))
    concordant = discordant = 0
    for row, column in zip(source, target, strict=True):
        places = _aligned(row, column, table)
        later = places[None, :] - places[:, None]  # (T, T): place of j minus place of i
        above = np.triu(np.ones_like(later, dtype=bool), 1)
        concordant += int(((later > 0) & above).sum())
        discordant += int(((later < 0) & above).sum())
    return (concordant - discordant) / max(1, concordant + discordant)


def _aligned(source: NDArray[np.int64], target: NDArray[np.int64], table: dict[int, float]) -> NDArray[np.float64]:
    """For each target token the place of its source token, as a share of the source length."""
    places = []
    for index, token in enumerate(target.tolist()):
        weights = np.array([table.get((word << 32) + token, 0.0) for word in source.tolist()])
        diagonal = np.abs((np.arange(len(source)) + 0.5) / len(source) - (index + 0.5) / len(target))
        best = weights >= 0.9 * weights.max()
        places.append(int(np.where(best, diagonal, 2.0).argmin()))
    return np.array(places, np.float64) / max(1, len(source))
