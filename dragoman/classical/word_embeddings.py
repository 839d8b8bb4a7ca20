"""Word embeddings learnt by negative sampling: skip-gram and continuous bag of words (Mikolov et al. 2013).

For a word o near the input vector h, the loss is −log σ(u_o · h) − Σ log σ(−u_n · h) over `negative` random words n. In
skip-gram h is the vector of one word, in CBOW the mean of the vectors of all words in the window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.base import DataError, atomic_write, hint
from dragoman.base.config import Limited, Range, Size, SizeOrNone, setting
from dragoman.classical.rows import Floats, Ints
from dragoman.data import all_word_vectors
from dragoman.data.readers import read_lines

SMOOTHING = 0.75  # power of the counts from which random words are drawn
LAST_RATE = 1e-4
EXAMPLES = 128  # of one update at most; twice the words where they are few, or updates of one word would add up
COUNT = 10  # neighbours that are shown


@dataclass(frozen=True)
class EmbeddingOptions(Limited):
    """How word vectors are learnt."""

    method: Literal["skip-gram", "cbow"] = setting(
        "skip-gram",
        flag="--method",
        help="predict each neighbour from a word, or a word from the mean of its neighbours",
    )
    width: Size = setting(100, flag="--width", help="size of the vectors")
    window: Size = setting(5, flag="--window", help="most words to either side")
    negative: Size = setting(5, flag="--negative", help="random words beside each true one")
    epochs: Size = setting(5, flag="--epochs", help="passes over the text")
    min_count: SizeOrNone = setting(5, flag="--min-count", help="leave out words that occur less often")
    sample: Annotated[float, Range(0.0)] = setting(
        1e-3, flag="--sample", help="words more frequent than this share are often skipped; 0: none"
    )
    rate: Annotated[float, Range(0.0, exclusive_minimum=True)] = setting(
        0.025, flag="--rate", help="first learning rate; it falls linearly"
    )
    seed: Annotated[int, Range(0)] = setting(1, flag="--seed", help="seed of the random numbers")


class Neighbour(NamedTuple):
    """A word and the cosine of its vector with what was asked for."""

    word: str
    cosine: float


class WordEmbeddings:
    """Words with their vectors (V, D), in the order of their frequency."""

    def __init__(self, words: Sequence[str], vectors: NDArray[Any]) -> None:
        self.words, self.vectors = tuple(words), vectors
        self.ids = {word: number for number, word in enumerate(words)}
        self._unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

    @classmethod
    def read(cls, path: str | Path) -> WordEmbeddings:
        """Vectors of a file of word2vec, GloVe or fastText."""
        return cls(*all_word_vectors(path))

    def save(self, path: str | Path) -> None:
        """Write them as word2vec's text, which `train.vectors` and other programs read."""
        with atomic_write(path, with_folder=True) as beside, beside.open("w", encoding="utf-8", newline="\n") as file:
            file.write(f"{len(self.words)} {self.vectors.shape[1]}\n")
            for word, vector in zip(self.words, self.vectors, strict=True):
                file.write(f"{word} {' '.join(f'{number:.6g}' for number in vector)}\n")

    def _id(self, word: str) -> int:
        if word not in self.ids:
            raise DataError(f"found the word {word!r}, which has no vector. {hint(word, self.words)}")
        return self.ids[word]

    def nearest(self, word: str, count: int = COUNT) -> list[Neighbour]:
        """The words whose vectors have the largest cosines with that of a word."""
        return self._nearest(self._unit[self._id(word)], {word}, count)

    def analogy(self, first: str, second: str, third: str, count: int = COUNT) -> list[Neighbour]:
        """What is to `third` as `second` is to `first`: the words nearest to second − first + third (3CosAdd)."""
        one, two, three = (self._unit[self._id(word)] for word in (first, second, third))
        return self._nearest(two - one + three, {first, second, third}, count)

    def _nearest(self, vector: NDArray[Any], left_out: set[str], count: int) -> list[Neighbour]:
        cosines = self._unit @ (vector / max(float(np.linalg.norm(vector)), 1e-12))
        order = (int(number) for number in np.argsort(-cosines, kind="stable"))
        found = (Neighbour(self.words[number], float(cosines[number])) for number in order)
        return [one for one in found if one.word not in left_out][:count]


def learn_embeddings(
    files: Sequence[str | Path],
    options: EmbeddingOptions | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> WordEmbeddings:
    """Learn vectors from files of text; words are what stands between spaces, and a line is a sentence."""
    options = options or EmbeddingOptions()
    sentences = [line.split() for file in files for line in read_lines(file)]
    counts = Counter(word for sentence in sentences for word in sentence)
    kept = sorted((word for word, count in counts.items() if count >= options.min_count), key=lambda w: (-counts[w], w))
    if len(kept) < 2:
        raise DataError(
            f"{', '.join(map(str, files))}: found {len(kept)} words that occur {options.min_count} times or more, "
            "expected 2 or more; give more text or a smaller --min-count"
        )
    ids = {word: number for number, word in enumerate(kept)}
    rows = [np.array([ids[word] for word in sentence if word in ids], np.int64) for sentence in sentences]
    total = np.array([counts[word] for word in kept], np.float64)
    rng = np.random.default_rng(options.seed)
    inputs = (rng.random((len(kept), options.width)) - 0.5) / options.width
    outputs = np.zeros_like(inputs)
    noise = np.cumsum(total**SMOOTHING)
    share = total / total.sum()
    keep = (
        np.minimum(1.0, np.sqrt(options.sample / share) + options.sample / share) if options.sample else share * 0 + 1
    )
    for epoch in range(options.epochs):
        order, losses, seen = rng.permutation(len(rows)), 0.0, 0
        for contexts, mask, centres, done in _examples(rows, order, keep, options, rng):
            progress = (epoch + done) / options.epochs
            rate = max(LAST_RATE, options.rate * (1 - progress))
            random = np.searchsorted(noise, rng.random((len(centres), options.negative)) * noise[-1])
            losses += update(inputs, outputs, contexts, mask, centres, random, rate)
            seen += len(centres)
        say(f"epoch {epoch + 1} of {options.epochs}: loss {losses / max(1, seen):.3f}")
    return WordEmbeddings(kept, inputs.astype(np.float32))


def _examples(
    rows: Sequence[Ints], order: Ints, keep: Floats, options: EmbeddingOptions, rng: np.random.Generator
) -> Iterator[tuple[Ints, Floats, Ints, float]]:
    """Batches of input words (B, C), which of them count (B, C), words to predict (B,), and the share of the text read.

    Every word has a window of its own, drawn up to the largest, so that near words count more.
    """
    width = 1 if options.method == "skip-gram" else 2 * options.window
    size, held = min(EXAMPLES, 2 * len(keep)), list[tuple[Ints, int]]()

    def batch(done: float) -> tuple[Ints, Floats, Ints, float]:
        contexts, mask = np.zeros((len(held), width), np.int64), np.zeros((len(held), width))
        for place, (words, _) in enumerate(held):
            contexts[place, : len(words)], mask[place, : len(words)] = words, 1.0
        found = contexts, mask, np.array([centre for _, centre in held]), done
        held.clear()
        return found

    for number, index in enumerate(order):
        row = rows[index]
        row = row[rng.random(len(row)) < keep[row]]
        for place, reach in enumerate(rng.integers(1, options.window + 1, len(row)).tolist()):
            near = np.concatenate([row[max(0, place - reach) : place], row[place + 1 : place + 1 + reach]])
            if width > 1:
                held.extend([(near, int(row[place]))] if len(near) else [])
            else:
                held.extend((near[one : one + 1], int(row[place])) for one in range(len(near)))
        while len(held) >= size:
            rest = held[size:]
            del held[size:]
            yield batch(number / len(order))
            held.extend(rest)
    if held:
        yield batch(1.0)


def gradients(
    inputs: NDArray[Any], outputs: NDArray[Any], contexts: Ints, mask: Floats, centres: Ints, random: Ints
) -> tuple[float, Floats, Ints, Floats]:
    """The summed loss; its gradients by h (B, D); the output words (B, 1 + n) and the gradients by their vectors.

    A random word that is the true one counts nothing.
    """
    hidden = (inputs[contexts] * mask[:, :, None]).sum(1) / mask.sum(1)[:, None]  # (B, D)
    words = np.concatenate([centres[:, None], random], 1)
    vectors, signs = outputs[words], np.where(np.arange(words.shape[1]) == 0, 1.0, -1.0)
    counted = np.concatenate([np.ones((len(centres), 1)), random != centres[:, None]], 1)
    scores = signs * np.einsum("bnd,bd->bn", vectors, hidden)
    loss = float((counted * np.logaddexp(0, -scores)).sum())
    slopes = -signs * counted * np.exp(-np.logaddexp(0, scores))  # ∂ −log σ(s) / ∂ u·h = −sign · σ(−s)
    return loss, np.einsum("bn,bnd->bd", slopes, vectors), words, slopes[:, :, None] * hidden[:, None]


def update(
    inputs: NDArray[Any], outputs: NDArray[Any], contexts: Ints, mask: Floats, centres: Ints, random: Ints, rate: float
) -> float:
    """One step of stochastic gradient descent on some examples, in place; returns their summed loss."""
    loss, by_hidden, words, by_outputs = gradients(inputs, outputs, contexts, mask, centres, random)
    by_input = by_hidden[:, None] * (mask / mask.sum(1)[:, None])[:, :, None]  # h is a mean
    np.add.at(outputs, words, -rate * by_outputs)
    np.add.at(inputs, contexts, -rate * by_input)
    return loss
