"""The trigram HMM tagger (Brants 2000, "TnT"): task `tag` with model.kind = "hmm"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from dragoman.base import DataError, RunError
from dragoman.base.config import Range, setting
from dragoman.classical.hmm import second_order_posteriors, second_order_score, second_order_viterbi
from dragoman.classical.model import (
    Arrays,
    FittedLabeler,
    LabelOutput,
    Note,
    TensorSpec,
    Tokens,
    row_arrays,
    row_specs,
    stored_rows,
)
from dragoman.classical.rows import Bools, Floats, Ints, Ragged
from dragoman.data import NO_TAG, Rows, SourceReader
from dragoman.data.tokenizers import EOS, PAD

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.data import Batch, Corpus
    from dragoman.models import TokenScores

MAX_TAGS = 150  # trigrams of tags are a table of their third power
CHUNK = 4096  # sentences read at a time
CELLS = 10_000_000  # (word, tag, tag) handled at a time
CASES = (-1, -2)  # marks of suffixes: of other words, and of capitalised ones


@dataclass(frozen=True)
class HMMTaggerConfig:
    """A trigram hidden Markov model with a suffix model for unknown words (Brants 2000)."""

    kind: ClassVar[str] = "hmm"
    fitted: ClassVar[bool] = True
    order: Annotated[int, Range(1, 2)] = setting(2, help="tags before a tag that decide it")
    suffix: Annotated[int, Range(1)] = setting(10, help="longest suffix of the unknown-word model, in tokens")
    smoothing: Annotated[float, Range(0.0, None)] = setting(
        0.5, help="weight of the suffix model for known words, in occurrences of the word"
    )
    rare: Annotated[int, Range(1)] = setting(10, help="words seen at most so often teach suffixes")


class HMMTagger(FittedLabeler):
    """p(words, tags) = Π p(tag | two tags before) · p(word | tag). Words are rows of tokens, best characters."""

    def __init__(self, config: HMMTaggerConfig, source: SourceReader, tags: int) -> None:
        super().__init__()
        self.config, self.tags, self.space = config, tags, source.space
        if tags > MAX_TAGS:
            raise DataError(f"found {tags} tags, expected at most {MAX_TAGS} for a trigram HMM")
        pieces = source.pieces(range(len(source)))
        self.upper = np.array([piece[:1].isupper() for piece in pieces])
        ids = {piece: token for token, piece in enumerate(pieces)}
        self.lower = [ids.get(piece.lower(), token) for token, piece in enumerate(pieces)]

    def tensor_specs(self) -> dict[str, TensorSpec]:
        kind = np.float64
        return {
            "transitions": TensorSpec(kind, (self.tags + 1,) * 3),
            **row_specs("words", "word_offsets", "W", len(self.lower)),
            "emissions": TensorSpec(kind, ("W", self.tags)),
            **row_specs("suffixes", "suffix_offsets", "N", len(self.lower), min(CASES)),
            "endings": TensorSpec(kind, ("N", self.tags)),
        }

    # --- training

    def fit(self, corpus: Corpus, note: Note) -> list[float]:
        counts: dict[Tokens, Ints] = {}
        grams: list[Counter[Tokens]] = [Counter(), Counter(), Counter()]
        store, size = corpus.train, len(corpus.train)
        for first in range(0, size, CHUNK):
            note("counting tags", first)
            rows = np.arange(first, min(first + CHUNK, size))
            for source, target in zip(store.source.rows(rows), store.target.rows(rows), strict=True):
                tags, starts = np.split(target.astype(np.int64), 2)
                words = self.words_of(source.tolist(), starts.tolist())
                for word, tag in zip(words, tags.tolist(), strict=True):
                    counts.setdefault(word, np.zeros(self.tags, np.int64))[tag] += 1
                padded = (self.tags, self.tags, *tags.tolist(), self.tags)
                for n in (1, 2, 3):
                    grams[n - 1].update(padded[place - n : place] for place in range(3, len(padded) + 1))
        table = np.stack(list(counts.values())).astype(np.float64)  # (words, K)
        prior = (table.sum(0) + 1) / (table.sum() + self.tags)
        suffixes, endings = self.fit_suffixes(counts, prior)
        places = suffixes.places()
        likely = np.exp(endings)[[self.longest_suffix(word, places) for word in counts]] * prior  # p(tag | suffix)
        shares = (table + self.config.smoothing * likely) / (table.sum(1, keepdims=True) + self.config.smoothing)
        with np.errstate(divide="ignore"):
            transitions, emissions = np.log(interpolated(grams, self.tags, self.config.order)), np.log(shares / prior)
        self.store(
            {
                "transitions": transitions,
                **row_arrays("words", "word_offsets", Ragged.of(list(counts))),
                "emissions": emissions,
                **row_arrays("suffixes", "suffix_offsets", suffixes),
                "endings": endings,
            }
        )
        return []

    def fit_suffixes(self, counts: Mapping[Tokens, Ints], prior: Floats) -> tuple[Ragged, Floats]:
        """log p(tag | suffix) / p(tag) of all suffixes of rare words: (N, K).

        p(tag | suffix) is smoothed with that of the shorter suffix; θ is the deviation of the tags' probabilities.
        Capitalised words have suffixes of their own.
        """
        counts_of: dict[Tokens, Ints] = {}
        for word, row in counts.items():
            if row.sum() <= self.config.rare:
                for suffix in self.suffixes_of(word):
                    counts_of[suffix] = counts_of.get(suffix, 0) + row
        theta = float(prior.std())
        smooth: dict[Tokens, Floats] = {}
        for suffix in sorted(counts_of, key=len):  # the shorter ones first
            shorter = smooth[suffix[1:]] if len(suffix) > 1 else prior
            row = counts_of[suffix]
            smooth[suffix] = (row / row.sum() + theta * shorter) / (1 + theta)
        for mark in CASES:
            smooth.setdefault((mark,), prior)  # a word without a known ending
        return Ragged.of(list(smooth)), np.log(np.stack(list(smooth.values()))) - np.log(prior)

    def suffixes_of(self, word: Tokens) -> Sequence[Tokens]:
        """Suffixes of the word in lower case, each with a first mark for its case, written last; shortest first."""
        mark = CASES[bool(word) and bool(self.upper[word[0]])]
        lower = tuple(self.lower[token] for token in word)
        return [(*lower[len(lower) - size :], mark) for size in range(min(len(lower), self.config.suffix) + 1)]

    def longest_suffix(self, word: Tokens, places: Mapping[Tokens, int]) -> int:
        known = (places[suffix] for suffix in reversed(self.suffixes_of(word)) if suffix in places)
        if (row := next(known, None)) is None:
            raise RunError("the weights are damaged: suffixes has none for words without a known ending")
        return row

    # --- prediction

    def words_of(self, tokens: list[int], starts: list[int]) -> list[Tokens]:
        end = next((place for place, token in enumerate(tokens) if token in (PAD, EOS)), len(tokens))
        bounds = [*starts, end]
        return [tuple(token for token in tokens[first:last] if token != self.space) for first, last in pairwise(bounds)]

    def load(self, tensors: Arrays) -> None:
        super().load(tensors)
        names = ("transitions", "emissions", "endings")
        self.transitions, self.emissions, self.endings = (tensors[name] for name in names)
        self.known = stored_rows("words", "word_offsets", tensors).places()
        self.known_suffixes = stored_rows("suffixes", "suffix_offsets", tensors).places()

    def emission(self, word: Tokens) -> Floats:
        """log p(word | tag) (K,), up to a term that all tags share: p(word | tag) ∝ p(tag | word) / p(tag)."""
        row = self.known.get(word, self.known.get(tuple(self.lower[token] for token in word)))
        if row is not None:
            return np.asarray(self.emissions[row])
        return np.asarray(self.endings[self.longest_suffix(word, self.known_suffixes)])

    def rows(self, batch: Batch) -> tuple[Rows, Rows]:
        targets = batch.target.cpu().numpy()  # (B, 2, W)
        return batch.source.data.tolist(), [target[:, target[0] != NO_TAG].ravel() for target in targets]

    def lattice(self, sources: Rows, targets: Rows) -> tuple[Floats, Ints, Bools]:
        """Log-emissions (B, W, K), tags (B, W) and mask (B, W) of rows of n tags and n starts of words."""
        counts = np.array([len(target) // 2 for target in targets])
        mask = np.arange(counts.max()) < counts[:, None]
        tags = np.full(mask.shape, NO_TAG, np.int64)
        out = np.zeros((*mask.shape, self.tags))
        for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
            own, starts = np.split(np.asarray(target, np.int64), 2)
            tags[row, : len(own)] = own
            for place, word in enumerate(self.words_of(list(source), starts.tolist())):
                out[row, place] = self.emission(word)
        return out, tags, mask

    def parts(self, emissions: Floats, mask: Bools) -> Iterator[tuple[Floats, Floats, Bools]]:
        """Log-emissions, log-transitions and masks of sentences whose tables of tag pairs fit into memory together."""
        size = max(1, CELLS // (mask.shape[1] * (self.tags + 1) ** 2))
        for first in range(0, len(mask), size):
            yield emissions[first : first + size], self.transitions, mask[first : first + size]

    def predict_rows(self, sources: Rows, targets: Rows | None) -> LabelOutput:
        """The most probable tag sequence (B, W), and p(tag | sentence) (B, W, K)."""
        assert targets is not None
        emissions, _, mask = self.lattice(sources, targets)
        values = np.concatenate([second_order_viterbi(*part) for part in self.parts(emissions, mask)])
        shares = np.concatenate([second_order_posteriors(*part)[0] for part in self.parts(emissions, mask)])
        return LabelOutput(values, shares, mask)

    def total_loss(self, sources: Rows, targets: Rows) -> tuple[float, int]:
        emissions, tags, mask = self.lattice(sources, targets)
        joint = second_order_score(emissions, self.transitions, tags, mask)
        total = np.concatenate([second_order_posteriors(*part)[1] for part in self.parts(emissions, mask)])
        return float((total - joint).sum()), int(mask.sum())

    def score(self, batch: Batch) -> TokenScores:
        """The log-probability of every tag given the sentence, and whether it is the prediction."""
        from dragoman.models import TokenScores

        output, tags = self.predict(batch), batch.target[:, 0]
        assert output.probabilities is not None
        chosen = output.probabilities.gather(2, tags.clamp(min=0)[:, :, None])[:, :, 0]
        logs: Tensor = chosen.clamp(min=1e-30).log() * output.mask
        return TokenScores(logs, (output.values == tags) & output.mask, output.mask)


def interpolated(grams: list[Counter[Tokens]], tags: int, order: int) -> Floats:
    """p(tag | two before) (K+1, K+1, K+1), interpolated with shorter contexts by deleted interpolation."""
    size = tags + 1
    counts = [np.zeros((size,) * n) for n in (1, 2, 3)]
    for table, counter in zip(counts, grams, strict=True):
        for gram, count in counter.items():
            table[gram] = count
    singles, pairs, triples = counts
    total = singles.sum()
    contexts = [total, pairs.sum(1), triples.sum(2)]  # of nothing, of one tag, of two

    # Each trigram votes for the context length that predicts it best without itself: hence the − 1.
    def share(count: float, context: float) -> float:
        return (count - 1) / (context - 1) if context > 1 else 0.0

    weights = np.full(3, 1e-9)
    for (a, b, c), count in grams[2].items():
        cases = [share(singles[c], total), share(pairs[b, c], contexts[1][b]), share(count, contexts[2][a, b])]
        weights[: order + 1][int(np.argmax(cases[: order + 1]))] += count
    weights[order + 1 :] = 0.0
    weights /= weights.sum()
    smooth = (singles + 0.1) / (singles + 0.1).sum()
    bigrams = pairs / np.maximum(contexts[1], 1)[:, None]
    trigrams = triples / np.maximum(contexts[2], 1)[:, :, None]
    return np.asarray(weights[0] * smooth + weights[1] * bigrams[None] + weights[2] * trigrams)
