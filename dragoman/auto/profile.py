"""Statistics of the data from which the configuration is chosen, in numbers and in a few lines of text."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.base import Progress, WarningLine
from dragoman.classical import Ragged, lexicon_of_rows
from dragoman.data import DataConfig, Example, Files, file_list, read_examples, source_hash, too_few, usable_examples
from dragoman.data.readers import LARGE_FILE, READERS, ReadOptions
from dragoman.data.tokenizers import find_features, split_features, split_punctuation
from dragoman.scoring import common_length

# --- how the two sides of pairs relate

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


# --- the profile

EXAMINED = 30_000  # pairs whose text is examined, evenly spread; the others are only counted
CHARACTERS_PER_SUBWORD = 3.5  # roughly
# Targets are a formal language if at most these shares of their words are new, and new without being in their source,
# and if at least this share of their rare words is in their source, but at most this share of all words.
NEW_IN_FORMAL, UNEXPLAINED, COPIED_RARE, MOST_COPIED = 0.1, 0.001, 0.5, 0.5
LOOKED_AT, LONG = 10_000, 2000  # pairs, and characters of a text, in which that is looked for
MONOTONE = 0.7  # Kendall's τ from which the order counts as kept
FEW_TARGETS, REPEATED = 30, 20  # at most so many different targets, each so often on average: labels
Unit = Literal["words", "characters", "subwords"]
Split = Callable[[str], list[str]]


@dataclass(frozen=True)
class SideProfile:
    """Statistics of the texts of one side."""

    characters: float  # mean length
    tokens: float  # mean number of space-separated tokens
    spaced: float  # share of texts with a space inside
    alphabet: int  # distinct characters
    types: int  # distinct space-separated tokens
    count: int  # occurrences of tokens
    new: float  # share of the tokens of every tenth text that the other texts lack
    length: float  # mean characters of a token
    punctuated: float  # share of tokens with punctuation attached, as in "end."
    stem: float = 0.0  # mean characters before the features; 0: there are no features
    longest: tuple[float, float] = (0.0, 0.0)  # characters and tokens that 99.5 % of the texts do not exceed
    marks: bool = False  # whether punctuation marks are tokens of their own, not only what spaces separate
    both: float = 0.0  # mean characters of the texts of both sides, where both have several words; 0: one has not

    @property
    def closed(self) -> bool:
        """Whether texts are sequences over a closed set of words or symbols: a held-out text brings no new ones."""
        often = self.count >= 20 * self.types and self.types <= 300
        return (
            self.spaced > 0.7
            and self.tokens >= 2.5
            and self.punctuated < 0.05
            and (self.new <= 0.0015 and self.count >= 5 * self.types if not often else self.new <= 0.003)
        )

    @property
    def symbols(self) -> bool:
        """Whether the closed set consists of short symbols, such as phonemes."""
        return self.closed and self.types <= 300 and self.length <= 5

    @property
    def noun(self) -> str:
        """What people call the members of the closed set."""
        return "symbols" if self.length <= 3 else "words"

    @property
    def units(self) -> str:
        """What the tokens are, where their unit is "words"."""
        return "words and punctuation marks" if self.marks else f"{self.noun} between spaces"

    @property
    def unit(self) -> Unit:
        if self.closed or self.marks:
            return "words"
        short = not self.several_words or (self.both or self.characters) <= 24
        return "characters" if short else "subwords"

    @property
    def several_words(self) -> bool:
        """Whether texts are of several words of an open set."""
        return not (self.closed or self.stem) and self.spaced >= 0.1 and self.tokens >= 3

    def in_units(self, characters: float, tokens: float) -> float:
        """The length of a text in its unit; the number of sub-words is an estimate."""
        subwords = max(tokens, characters / CHARACTERS_PER_SUBWORD)
        return {"words": tokens, "characters": characters, "subwords": subwords}[self.unit]

    @property
    def mean_length(self) -> float:
        return self.in_units(self.characters, self.tokens)


@dataclass(frozen=True)
class PairProfile:
    """Statistics of a set of pairs."""

    pairs: int
    source: SideProfile
    target: SideProfile
    identical: float = 0.0  # share of pairs whose source is the target
    copied: float = 0.0  # share of the target that is copied, in order for characters
    shared_letters: float = 0.0  # share of one side's letters that the other also uses; the larger of both
    shared_words: float = 0.0  # share of the target tokens that occur anywhere on the source side
    monotone: float = 0.0  # Kendall's τ of the alignment: 1 if the order is kept
    duplicates: float = 0.0  # share of pairs that repeat an earlier pair
    ambiguous: float = 0.0  # share of sources with several different targets
    targets: int = 2  # distinct targets
    features: str = ""  # the marks of features at the end of sources, such as " ;"; empty: they have none
    leaked: float | None = None  # share of validation sources that are training sources; None without data.valid
    swapped: bool = False  # whether the columns of data.valid seem to be in the other order

    @property
    def phonemes(self) -> bool:
        """Whether sources are single words and targets sequences of short symbols."""
        return self.target.symbols and self.source.spaced < 0.1

    @property
    def formal(self) -> bool:
        """Whether targets are a formal language, such as SQL, with names and numbers from their sources."""
        return self.source.marks and self.target.marks

    @property
    def joint(self) -> bool:
        """Whether one vocabulary serves both sides: they have the same units and share their spelling."""
        unit = self.source.unit
        if unit != self.target.unit:
            return False
        if self.formal:
            return True
        if unit == "words":
            return self.shared_words > 0.5
        return self.shared_letters > (0.9 if unit == "characters" else 0.7)

    @property
    def longer(self) -> float:
        """Mean number of tokens of the longer side."""
        return max(self.source.mean_length, self.target.mean_length)

    @property
    def longest(self) -> float:
        """How many tokens 99.5 % of the texts of the longer side do not exceed."""
        return max(side.in_units(*side.longest) for side in (self.source, self.target))


class Sample:
    """At most 2 × EXAMINED items, evenly spread over all that were added; which ones depends on their number alone."""

    def __init__(self) -> None:
        self.items: list[tuple[str, str]] = []
        self.seen, self.stride = 0, 1

    def add(self, item: tuple[str, str]) -> None:
        """Take every stride-th item; a full sample drops every other one and doubles the stride."""
        if self.seen % self.stride == 0:
            if len(self.items) == 2 * EXAMINED:
                self.items = self.items[::2]
                self.stride *= 2
            if self.seen % self.stride == 0:
                self.items.append(item)
        self.seen += 1


def profile_pairs(
    files: Files, data: DataConfig | None = None, progress: Progress = lambda doing, count: None
) -> PairProfile:
    """Read all pairs once, or blocks of a large file; faulty lines are an error here if training would stop at them.

    Those of a large file are found when it is read for training.
    """
    data = data or DataConfig(train=files)
    sample, hashes = Sample(), array("Q")
    if (sampled := sample_of_large_file(files, data, progress)) is not None:
        return profile_sample(sampled, data, hashes)

    def later(doing: str, count: int) -> None:
        if count:  # small data need no line
            progress(doing, count)

    for example in usable_examples(data, files, progress=later, doing="looking at the data"):
        sample.add((example.source.strip(), example.references[0].strip()))
        if data.valid is not None:
            hashes.append(source_hash(example))
    if sample.seen < 2:
        raise too_few(files, f"found {sample.seen} pairs")
    return profile_sample(sample, data, hashes)


def sample_of_large_file(files: Files, data: DataConfig, progress: Progress) -> Sample | None:
    """A sample of one large tab-separated file; None: all must be read, as where validation sources are looked up."""
    entries = file_list(files)
    if data.valid is not None or len(entries) != 1 or not isinstance(entries[0], str):
        return None
    if Path(entries[0]).is_file() and Path(entries[0]).stat().st_size >= LARGE_FILE:
        progress("looking at the data", 0)
    reader = READERS.of(entries[0])
    columns = data.columns or (reader.default_columns if data.reading.attributes else ())
    options = ReadOptions(columns, data.header, max_characters=data.max_characters)
    sampled = reader.sample(Path(entries[0]), options)
    if sampled is None:
        return None
    sample, (lines, examples) = Sample(), sampled
    for item in examples:
        sample.add((item.source.strip(), item.references[0].strip()))
    sample.seen = lines
    return sample


def profile_sample(sample: Sample, data: DataConfig, hashes: array[int]) -> PairProfile:
    """The statistics of the sampled pairs; `hashes` are those of all training sources."""
    sources, targets = [source for source, _ in sample.items], [target for _, target in sample.items]
    source, target = profile_side(sources), profile_side(targets)
    split: Split = str.split
    if source.unit == "subwords" and target.unit != "characters" and has_formal_targets(sample.items):
        split = split_punctuation
        source, target = (replace(profile_side(texts, split), marks=True) for texts in (sources, targets))
    features = "" if source.closed else find_features(sources)
    if features:  # the relation to the target is that of the stem
        sources = [split_features(text, features)[0] for text in sources]
        source = replace(source, stem=sum(map(len, sources)) / len(sources))
    if source.several_words and target.several_words:  # one of them a little longer than 24 characters: one unit
        both = (source.characters + target.characters) / 2
        source, target = replace(source, both=both), replace(target, both=both)
    alphabets = [set().union(*texts) for texts in (sources, targets)]
    words = {word for text in sources for word in split(text)}
    by_source: dict[str, set[str]] = defaultdict(set)
    for text, written in sample.items:
        by_source[text].add(written)
    kept = spread(list(zip(sources, targets, strict=True)), ALIGNED)
    as_words = "characters" not in (source.unit, target.unit)
    left, right = (split if as_words or side.closed else list for side in (source, target))
    rows = [(left(text), right(written)) for text, written in kept]
    matches = clipped_matches if as_words else common_length
    matched = sum(matches(tokens[:200], others[:200]) for tokens, others in rows)
    copied = matched / max(1, sum(len(tokens[:200]) for _, tokens in rows))
    leaked, swapped = look_at_validation(data, hashes, sources, targets)
    return PairProfile(
        pairs=sample.seen,
        source=source,
        target=target,
        identical=sum(text == written for text, written in sample.items) / len(sample.items),
        copied=copied,
        shared_letters=shared_letters(sources, targets, alphabets),
        shared_words=sum(word in words for text in targets for word in split(text)) / max(1, target.count),
        monotone=monotonicity(*zip(*rows, strict=True)),
        duplicates=1 - len(set(sample.items)) / len(sample.items),
        ambiguous=sum(len(targets_of_source) > 1 for targets_of_source in by_source.values()) / len(by_source),
        targets=len(set(targets)),
        features=features,
        leaked=leaked,
        swapped=swapped,
    )


def has_formal_targets(pairs: Sequence[tuple[str, str]]) -> bool:
    """Whether nearly all words of new targets are known, and rare ones are in their source, as in SQL queries.

    Targets that mostly repeat their source are edited texts.
    """
    distinct = list({target: (source, target) for source, target in spread(pairs, LOOKED_AT)}.values())
    words = [(split_punctuation(source[:LONG]), split_punctuation(target[:LONG])) for source, target in distinct]
    matched = sum(clipped_matches(source, target) for source, target in words)
    if matched > MOST_COPIED * sum(len(target) for _, target in words):
        return False
    new, unexplained = new_words(words)
    return new <= NEW_IN_FORMAL and unexplained <= UNEXPLAINED and copied_rare_words(words) >= COPIED_RARE


def profile_side(texts: Sequence[str], split: Split = str.split) -> SideProfile:
    """The statistics of one side, with the tokens that `split` finds."""
    held_out, known = Counter[str](), Counter[str]()
    for index, text in enumerate(texts):
        (held_out if index % 10 == 9 else known).update(split(text))
    words = held_out + known
    count = max(1, words.total())
    new = sum(times for word, times in held_out.items() if word not in known)
    return SideProfile(
        characters=sum(map(len, texts)) / len(texts),
        tokens=words.total() / len(texts),
        spaced=sum(" " in text for text in texts) / len(texts),
        alphabet=len(set().union(*texts)),
        types=len(words),
        count=words.total(),
        new=new / max(1, held_out.total()),
        length=sum(len(word) * times for word, times in words.items()) / count,
        punctuated=sum(times for word, times in words.items() if is_punctuated(word)) / count,
        longest=(
            float(np.quantile([len(text) for text in texts], 0.995)),
            float(np.quantile([len(split(text)) for text in texts], 0.995)),
        ),
    )


def is_punctuated(token: str) -> bool:
    """Whether punctuation is attached to a word: "end." or "(see", but not "." alone or "don't"."""
    inside = token[1:-1] or token
    return len(token) > 1 and any(character.isalnum() for character in token) and (
        any(mark in ",;:!?()[]{}\"" for mark in inside) or token[-1] in ".,;:!?)]}\"" or token[0] in "([{\""
    )  # fmt: skip


def spread(items: Sequence[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """At most `count` items, evenly spread."""
    if len(items) <= count:
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]


def look_at_validation(
    data: DataConfig, hashes: array[int], sources: Sequence[str], targets: Sequence[str]
) -> tuple[float | None, bool]:
    """The share of validation sources that are training sources, and whether the columns seem to be swapped."""
    items = read_examples(data, data.valid, several_references=True) if data.valid is not None else iter(())
    examples = [item for item in islice(items, EXAMINED) if isinstance(item, Example)]
    if not examples:
        return None, False
    valid_hashes = np.array([source_hash(example) for example in examples], np.uint64)
    known = np.isin(valid_hashes, np.frombuffer(hashes, np.uint64))
    valid_sources, valid_targets = zip(*((example.source, example.references[0]) for example in examples), strict=True)
    straight = similarity(sources, valid_sources) + similarity(targets, valid_targets)
    crossed = similarity(sources, valid_targets) + similarity(targets, valid_sources)
    return float(known.mean()), crossed > straight + 0.2


def similarity(texts: Sequence[str], others: Sequence[str]) -> float:
    """Overlap of the distributions of character pairs in two samples, between 0 and 1."""
    first, second = (bigrams(sample) for sample in (texts, others))
    return sum(min(share, second.get(pair, 0.0)) for pair, share in first.items())


def bigrams(texts: Sequence[str]) -> dict[str, float]:
    """The share of each pair of adjacent characters in at most 2,000 texts."""
    counts: Counter[str] = Counter()
    for text in texts[:: max(1, len(texts) // 2000)]:
        padded = f" {text} "
        counts.update(padded[index : index + 2] for index in range(len(padded) - 1))
    total = max(1, counts.total())
    return {pair: count / total for pair, count in counts.items()}


def describe(profile: PairProfile) -> list[str]:
    lines = [
        f"data: {profile.pairs:,} pairs; {repetition(profile)}",
        f"source: {side_text(profile.source)}",
        f"target: {side_text(profile.target)}",
        f"relation: {relation_text(profile)}",
    ]
    return lines + [WarningLine(f"warning: {line}") for line in warnings(profile)]


def percent(share: float) -> str:
    """A share as a whole percentage; small ones keep a digit."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 1 or not value else f"{value:.1f} %"


def side_text(side: SideProfile) -> str:
    if side.unit == "words":
        return (
            f"{side.tokens:.1f} {side.units} on average, {side.types:,} different ones; "
            f"{percent(side.new)} of those in a held-out tenth are new"
        )
    text = f"{side.characters:.0f} characters on average, {side.alphabet:,} different ones"
    if side.spaced < 0.1:
        return f"{text}; no spaces"
    return f"{text}; {side.tokens:.1f} words, of which {percent(side.new)} are new in a held-out tenth"


def repetition(profile: PairProfile) -> str:
    parts = [f"{percent(profile.duplicates)} repeat an earlier pair" if profile.duplicates else "no duplicates"]
    if profile.ambiguous:
        share = percent(profile.ambiguous)
        parts.append(f"{share} of the sources have several targets, which validation takes as references")
    if profile.leaked is not None:
        parts.append(f"{percent(profile.leaked)} of the validation sources are also training sources")
    return "; ".join(parts)


def relation_text(profile: PairProfile) -> str:
    copied = f"{percent(profile.copied)} of the target is copied from the source"
    if profile.formal:
        copied += ", among it most of its rare words"
    if profile.identical:
        copied += f" ({percent(profile.identical)} of the pairs are equal)"
    order = (
        "the order is kept" if profile.monotone >= MONOTONE
        else "the order is partly kept" if profile.monotone >= 0.4
        else "the order changes" if profile.monotone > -0.4
        else "the order is reversed"
    )  # fmt: skip
    ratio = profile.target.mean_length / max(0.1, profile.source.mean_length)
    shared = "; one spelling for both sides" if profile.joint else ""
    return f"{copied}; {order} (τ {profile.monotone:.2f}); {ratio:.2g} target tokens per source token{shared}"


def warnings(profile: PairProfile) -> Iterator[str]:
    """What a practitioner would look at before training."""
    if profile.targets == 1:
        yield "all targets are the same text; a model can only learn to write it"
    if profile.identical == 1:
        yield "every source equals its target; a model can only learn to copy"
    if profile.swapped:
        yield (
            "the columns of data.valid seem to be in the other order: its sources look like the training targets; "
            "check them, or choose with data.columns"
        )
    if profile.leaked is not None and profile.leaked > 0.5 and profile.duplicates < 0.1:
        yield (
            f"{percent(profile.leaked)} of the validation sources are also training sources, so validation measures "
            "memory rather than new inputs"
        )


def label_advice(profile: PairProfile) -> str:
    """Advice if the targets are labels rather than texts; empty otherwise."""
    few = 1 < profile.targets <= FEW_TARGETS and profile.pairs >= REPEATED * profile.targets
    if not few or profile.target.tokens > 2:
        return ""
    return (
        f"only {profile.targets} different targets occur in {profile.pairs:,} pairs: if they are labels, a classifier "
        "is smaller and better; add task=classify"
    )
