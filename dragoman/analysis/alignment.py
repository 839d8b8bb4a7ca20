"""Word alignments by attention, for any tokenization (Bahdanau et al. 2015; Garg et al. 2019), also of whole files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dragoman.analysis.attention import cross_attention_weights
from dragoman.data.batch import Batch, batch_of
from dragoman.data.config import DataConfig, paths_of
from dragoman.data.examples import Fault, Pairs
from dragoman.data.readers.lines import read_lines
from dragoman.data.rows import batches_of_indices
from dragoman.data.source_reader import Span
from dragoman.data.split import read_examples, summarize_faults
from dragoman.data.tokenizers.language_tags import split_tag
from dragoman.errors import ConfigError, DataError, hint
from dragoman.inference.inputs import WINDOW
from dragoman.inference.predictor import Predictor
from dragoman.layers.attention import alignment_layer
from dragoman.scoring.alignment import GoldAlignment, Links, alignment_score, links_text, swap_direction
from dragoman.scoring.symmetrization import METHODS, symmetrize_links

Segment = Callable[[str], Sequence[Span]]  # the words of a text
Pair = tuple[str, str]  # a source as the model reads it, with its language tag, and a target
AGREEMENT_PAIRS = 1000  # sentence pairs on which the agreement of two directions is measured


@dataclass(frozen=True)
class AttentionView:
    """Which attention weights are read as an alignment."""

    layer: str
    head: int | None = None  # index; None: the mean over heads
    shifted: bool = False  # use the step whose input is the token, not the one that predicts it (Chen et al. 2020)

    def __str__(self) -> str:
        head = "mean over heads" if self.head is None else f"head {self.head + 1}"
        return f"{self.layer}, {head}, {'token as input' if self.shifted else 'token as output'}"


@dataclass(frozen=True)
class WordAlignment:
    """The words of a sentence pair and the links between them; str() gives Pharaoh format, "0-0 1-2"."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    links: Links
    weights: Tensor  # (target words, source words); the weight on <eos> is missing

    def __str__(self) -> str:
        return links_text(self.links)

    def as_json_line(self) -> str:
        """One JSON object on one line; `weights` has a row for each target word."""
        weights = [[round(weight, 4) for weight in row] for row in self.weights.tolist()]
        table = {"source": self.source, "target": self.target, "links": sorted(self.links), "weights": weights}
        return json.dumps(table, ensure_ascii=False)


# --- from tokens to words


def word_spans(
    text: str, tags: Sequence[str] = (), letters: bool = False, segment: Segment | None = None
) -> list[Span]:
    """The character spans of words, by default between white space, or of letters, without a leading language tag."""
    start = len(text) - len(split_tag(text, tags)[1])
    if segment is not None:
        return [(first + start, end + start) for first, end in segment(text[start:])]
    return [match.span() for match in re.compile(r"\S" if letters else r"\S+").finditer(text, start)]


def token_word_shares(tokens: Sequence[Span], words: Sequence[Span], rows: int) -> Tensor:
    """The share of each token in each word: (rows, words); zero for spaces and for rows beyond the last token."""
    out = np.zeros((rows, len(words)), np.float32)
    word = 0
    for row, (first, end) in enumerate(tokens):
        while word < len(words) and words[word][1] <= first:
            word += 1
        last = word
        while last < len(words) and words[last][0] < max(end, first + 1):  # byte tokens may have no length
            last += 1
        out[row, word:last] = 1 / max(1, last - word)
    return torch.from_numpy(out)


def memory_spans(tokens: Sequence[Span], text: str, entries: int, batch: Batch, padded_words: int) -> Sequence[Span]:
    """The spans of the memory entries: tokens or, with a character-to-word encoder, space-separated words."""
    length = batch.source.data.shape[1]
    if entries == length:
        return tokens
    if entries == padded_words:
        return space_spans(text)
    raise DataError(
        f"no word alignment: found {entries} memory entries for {length} tokens, expected one for every "
        "token or word of the source"
    )


def space_spans(text: str) -> list[Span]:
    return [match.span() for match in re.finditer("[^ ]+", text)]


class PairAttention(NamedTuple):
    """The cross-attention of one sentence pair, and the matrices that map its rows and columns to words."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    layers: dict[str, Tensor]  # name → (H, T + 1, S); the last row predicts <eos>
    rows: Tensor  # (T, target words); each column sums to 1
    columns: Tensor  # (S, source words)

    def over_words(self, view: AttentionView) -> Tensor:
        """Weights summed over the entries of each source word and averaged over the tokens of each target word."""
        heads = self.layers[view.layer]
        weights = heads.mean(0) if view.head is None else heads[view.head]
        weights = weights[1:] if view.shifted else weights[:-1]
        return self.rows.T @ weights @ self.columns  # (target words, source words)

    def aligned(self, view: AttentionView, threshold: float | None) -> WordAlignment:
        weights = self.over_words(view)
        return WordAlignment(self.source, self.target, links_from_weights(weights, threshold), weights)


def links_from_weights(weights: Tensor, threshold: float | None = None) -> Links:
    """Link each target word to its source word of highest weight, or to all with a weight of at least `threshold`."""
    if not weights.numel():
        return frozenset()
    if threshold is not None:
        return frozenset((source, target) for target, source in (weights >= threshold).nonzero().tolist())
    highest, sources = (values.tolist() for values in weights.max(1))
    # With local attention a row may have no weight on any word.
    return frozenset((source, target) for target, source in enumerate(sources) if highest[target] > 0)


def pair_attention(
    predictor: Predictor, pairs: Sequence[Pair], batch_size: int = 32, segment: Segment | None = None
) -> Iterator[tuple[int, PairAttention]]:
    """(index, attention) of every pair with words on both sides, in batches of similar lengths."""
    tags = predictor.tags
    letters = predictor.by_letter  # there is nothing to align between one word and another but their letters
    source_words = [word_spans(text, tags, letters[0], segment) for text, _ in pairs]
    target_words = [word_spans(text, (), letters[1], segment) for _, text in pairs]
    kept = [index for index in range(len(pairs)) if source_words[index] and target_words[index]]
    encoded = predictor.codec.encode_pairs([pairs[index][0] for index in kept], [pairs[index][1] for index in kept])
    sources, targets = (dict(zip(kept, side, strict=True)) for side in encoded)
    for places in batches_of_indices([(len(targets[index]), len(sources[index])) for index in kept], batch_size):
        indices = [kept[place] for place in places]
        batch = batch_of([sources[index] for index in indices], [targets[index] for index in indices])
        layers = cross_attention_weights(predictor.model, batch.to(predictor.device))
        steps, entries = next(iter(layers.values())).shape[2:]
        if steps != batch.target.shape[1]:
            raise DataError(
                f"no word alignment: found {steps} positions for {batch.target.shape[1]} tokens, expected an "
                "autoregressive model"
            )
        padded_words = max(len(space_spans(pairs[index][0])) for index in indices) + 1  # <eos>
        for row, index in enumerate(indices):
            source, target = pairs[index]
            tokens = predictor.source_tokenizer.spans(source)
            columns = memory_spans(tokens, source, entries, batch, padded_words)
            size = len(columns) + 1
            length = len(targets[index])
            rows = token_word_shares(predictor.target_tokenizer.spans(target), target_words[index], length)
            yield (
                index,
                PairAttention(
                    source=tuple(source[first:end] for first, end in source_words[index]),
                    target=tuple(target[first:end] for first, end in target_words[index]),
                    layers={name: weights[row, :, : length + 1, :size] for name, weights in layers.items()},
                    rows=rows / rows.sum(0).clamp(min=1e-9),
                    columns=token_word_shares(columns, source_words[index], size),
                ),
            )


# --- which attention to read


def heads_by_layer(predictor: Predictor) -> dict[str, int]:
    """The layers with cross-attention, first to last, and their numbers of heads."""
    tags = predictor.tags
    source = predictor.source_tokenizer.encode(f"<2{tags[0]}> a" if tags else "a")
    batch = batch_of([source], [predictor.target_tokenizer.encode("a")]).to(predictor.device)
    return {name: weights.shape[1] for name, weights in cross_attention_weights(predictor.model, batch).items()}


def select_view(
    predictor: Predictor, layer: str | int | None = None, head: int | None = None, shifted: bool = False
) -> AttentionView:
    """The view of a layer, by name or number from 1 (default: `alignment_layer`), and a head (default: their mean)."""
    layers = heads_by_layer(predictor)
    names = list(layers)
    if layer is None:
        name = alignment_layer(names)
    elif str(layer).lstrip("-").isdigit():
        if not 1 <= int(layer) <= len(names):
            raise ConfigError(f"layer: found {layer}, expected 1 to {len(names)}")
        name = names[int(layer) - 1]
    else:
        name = str(layer)
        if name not in layers:
            raise ConfigError(f"layer: found '{name}'. {hint(name, names)}")
    if head is not None and not 1 <= head <= layers[name]:
        raise ConfigError(f"head: found {head}, expected 1 to {layers[name]}")
    return AttentionView(name, None if head is None else head - 1, shifted)


def all_views(predictor: Predictor) -> list[AttentionView]:
    """The mean over heads of each layer, shifted and not."""
    return [AttentionView(name, None, shifted) for name in heads_by_layer(predictor) for shifted in (False, True)]


# --- links of many pairs


def align_pairs(
    predictor: Predictor,
    pairs: Iterable[Pair],
    *,
    view: AttentionView | None = None,
    threshold: float | None = None,
    tag: str | None = None,
    batch_size: int = 32,
    segment: Segment | None = None,
) -> Iterator[WordAlignment]:
    """The word alignment of every pair, in order and with bounded memory; a pair without words has no links.

    `segment` gives the words of a text; by default they are between white space, or letters in a run of single words.
    """
    view = view or select_view(predictor)
    stream = iter(pairs)
    while chunk := list(islice(stream, WINDOW)):
        texts = list(predictor.read_as([source for source, _ in chunk], tag))
        window = [(source, target) for source, (_, target) in zip(texts, chunk, strict=True)]
        attentions = pair_attention(predictor, window, batch_size, segment)
        aligned = {index: attention.aligned(view, threshold) for index, attention in attentions}
        for index, (source, target) in enumerate(window):
            yield aligned.get(index) or without_links(source, target, predictor, segment)


def without_links(source: str, target: str, predictor: Predictor, segment: Segment | None = None) -> WordAlignment:
    """The alignment of a pair where one side has no words."""
    first, second = predictor.by_letter
    left = [source[slice(*span)] for span in word_spans(source, predictor.tags, first, segment)]
    right = [target[slice(*span)] for span in word_spans(target, (), second, segment)]
    return WordAlignment(tuple(left), tuple(right), frozenset(), torch.zeros(len(right), len(left)))


def symmetrize(forward: WordAlignment, backward: WordAlignment, method: str = "grow-diag") -> WordAlignment:
    """One alignment from both directions; the weights are those of the forward alignment."""
    if method not in METHODS:
        raise ConfigError(f"symmetrization: found '{method}'. {hint(method, METHODS)}")
    links = symmetrize_links(forward.links, swap_direction(backward.links), method)
    return WordAlignment(forward.source, forward.target, links, forward.weights)


# --- files of pairs


@dataclass(frozen=True)
class FilePairs:
    """The sentence pairs of a file, read anew every time; a faulty line is an error once all are read."""

    data: DataConfig
    files: str | Pairs

    def __iter__(self) -> Iterator[Pair]:
        faults = list[Fault]()
        for item in read_examples(self.data, self.files):
            if isinstance(item, Fault):
                faults.append(item)
            else:
                yield item.model_input, item.references[0]
        if faults:
            raise DataError(summarize_faults(faults, len(faults)))


def read_raw_pairs(files: str | Pairs) -> Iterable[Pair]:
    """All sentence pairs of a file, with the default settings of data; they can be read again and again."""
    pairs = FilePairs(DataConfig(train="", max_characters=100_000), files)
    return pairs if all(Path(path).is_file() for path in paths_of(files)) else list(pairs)  # a pipe is read once


def predict_pairs(predictor: Predictor, file: str | None, tag: str | None) -> list[Pair]:
    """Every line of a file or of standard input with the run's output for it, on one line."""
    sources = list(read_lines(file))
    outputs = predictor.stream(sources, tag=tag)
    return [(text, " ".join(output.text.splitlines())) for text, output in zip(sources, outputs, strict=True)]


@dataclass(frozen=True)
class Aligner:
    """Aligns words with one run, or with two runs of opposite directions."""

    forward: Predictor
    backward: Predictor | None = None
    view: AttentionView | None = None  # of the forward run; None: the default
    backward_view: AttentionView | None = None
    threshold: float | None = None
    symmetrization: str = "grow-diag"
    tag: str | None = None  # target language of a multilingual forward run
    batch_size: int = 32

    def __call__(self, pairs: Sequence[Pair]) -> Iterator[WordAlignment]:
        forward = align_pairs(
            self.forward, pairs, view=self.view, threshold=self.threshold, tag=self.tag, batch_size=self.batch_size
        )
        if self.backward is None:
            return forward
        reversed_pairs = [(target, source) for source, target in pairs]
        backward = align_pairs(
            self.backward, reversed_pairs, view=self.backward_view, threshold=self.threshold, batch_size=self.batch_size
        )
        return (symmetrize(*both, self.symmetrization) for both in zip(forward, backward, strict=True))

    def choose_view(
        self,
        pairs: Sequence[Pair],
        layer: str | int | None,
        head: int | None,
        shifted: bool,
        gold: Sequence[GoldAlignment] | None,
        log: Callable[[str], None],
    ) -> Aligner:
        """The aligner with its views chosen by layer and head, by gold links or by the agreement of two directions."""
        named = layer is not None or head is not None or shifted
        if gold is not None and named:
            raise DataError("--gold chooses the layer by gold links: leave out --layer, --head and --shift, or --gold")
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        if gold is not None:
            read = list(zip(self.forward.read_as(sources, self.tag), targets, strict=True))
            view, rate = self.views_by_error_rate(read, gold)[0]
            log(f"read: {view} (error rate {100 * rate:.2f} % on these pairs)")
            return replace(self, view=view)
        if self.backward is not None and not named:
            sources, targets = sources[:AGREEMENT_PAIRS], targets[:AGREEMENT_PAIRS]
            ahead = list(zip(self.forward.read_as(sources, self.tag), targets, strict=True))
            behind = list(zip(self.backward.read_as(targets), sources, strict=True))
            view, back, agreement = self.most_agreeing_views(ahead, behind)
            log(f"read: {view}; reverse: {back} (agreement {100 * agreement:.2f} %)")
            return replace(self, view=view, backward_view=back)
        return replace(self, view=select_view(self.forward, layer, head, shifted))

    def views_by_error_rate(
        self, pairs: Sequence[Pair], gold: Sequence[GoldAlignment]
    ) -> list[tuple[AttentionView, float]]:
        """Every view of the forward run with its alignment error rate, the best first."""
        predicted = self._links_by_view(self.forward, pairs)
        rates = [(view, alignment_score(links, gold).error_rate) for view, links in predicted.items()]
        return sorted(rates, key=lambda item: item[1])

    def most_agreeing_views(
        self, pairs: Sequence[Pair], backward_pairs: Sequence[Pair]
    ) -> tuple[AttentionView, AttentionView, float]:
        """The two views that agree best, for use without gold links, and their agreement (F₁ of the links).

        `backward_pairs` are the pairs as the backward run reads them, target first.
        """
        assert self.backward is not None
        forward_links = self._links_by_view(self.forward, pairs)
        swapped = {
            view: [GoldAlignment(turned, turned) for turned in map(swap_direction, links)]
            for view, links in self._links_by_view(self.backward, backward_pairs).items()
        }
        rates = [
            (alignment_score(links, truth).error_rate, view, other)
            for view, links in forward_links.items()
            for other, truth in swapped.items()
        ]
        rate, view, other = min(rates, key=lambda item: item[0])
        return view, other, 1 - rate

    def _links_by_view(self, predictor: Predictor, pairs: Sequence[Pair]) -> dict[AttentionView, list[Links]]:
        links: dict[AttentionView, list[Links]] = {view: [frozenset()] * len(pairs) for view in all_views(predictor)}
        for index, attention in pair_attention(predictor, pairs, self.batch_size):
            for view in links:
                links[view][index] = links_from_weights(attention.over_words(view), self.threshold)
        return links
