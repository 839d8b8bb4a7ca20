"""Soft attention → word alignment (FIELD L2), over words whatever the tokens of the model are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dragoman.analysis.attention import cross_attention_weights
from dragoman.data.batch import Batch, batch_of
from dragoman.data.tokenizers.base import Span
from dragoman.data.tokenizers.language_tags import split_tag
from dragoman.errors import ConfigError, DataError, hint
from dragoman.inference.inputs import WINDOW
from dragoman.inference.predictor import Predictor
from dragoman.scoring.alignment import (
    SYMMETRIZATIONS,
    GoldAlignment,
    Link,
    Links,
    alignment_score,
    links_text,
    swap_direction,
)

Pair = tuple[str, str]  # a source as the model reads it, and a target


@dataclass(frozen=True)
class AttentionView:
    """Which attention is read as an alignment."""

    layer: str
    head: int | None = None  # counted from 0; None: the mean of all
    shifted: bool = False  # look at the step that reads a token, not at the one that writes it (Chen et al. 2020)

    def __str__(self) -> str:
        head = "mean of the heads" if self.head is None else f"head {self.head + 1}"
        return f"{self.layer}, {head}, {'when read' if self.shifted else 'when written'}"


@dataclass(frozen=True)
class WordAlignment:
    """The words of a pair and the links between them; str() gives "0-0 1-2", source before target."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    links: Links
    weights: Tensor  # (T, S) attention of each target word to each source word; what <eos> got is missing

    def __str__(self) -> str:
        return links_text(self.links)


# --- from tokens to words


def word_spans(text: str, tags: Sequence[str] = ()) -> list[Span]:
    """Where the words of a text stand, split at whitespace; a tag in front is none."""
    front = len(text) - len(split_tag(text, tags)[1])
    return [match.span() for match in re.compile(r"\S+").finditer(text, front)]


def token_word_shares(parts: Sequence[Span], words: Sequence[Span], rows: int) -> Tensor:
    """How much of each part belongs to each word: (rows, words), zero for spaces and for rows beyond the parts."""
    out = np.zeros((rows, len(words)), np.float32)
    word = 0
    for row, (first, end) in enumerate(parts):
        while word < len(words) and words[word][1] <= first:
            word += 1
        last = word
        while last < len(words) and words[last][0] < max(end, first + 1):  # a byte before the last has no length
            last += 1
        out[row, word:last] = 1 / max(1, last - word)
    return torch.from_numpy(out)


def memory_spans(tokens: Sequence[Span], text: str, entries: int, batch: Batch, padded_words: int) -> Sequence[Span]:
    """What the entries of a memory stand for: tokens or, where characters are read into words, what spaces part."""
    if entries == batch.source.shape[1]:
        return tokens
    if entries == padded_words:
        return space_spans(text)
    raise DataError(
        f"no word alignment: found {entries} entries of the memory for {batch.source.shape[1]} tokens, expected one "
        "for every token or word of the source"
    )


def space_spans(text: str) -> list[Span]:
    """What single spaces part."""
    return [match.span() for match in re.finditer("[^ ]+", text)]


class PairAttention(NamedTuple):
    """All attention behind one pair, and which words its rows and columns belong to."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    layers: dict[str, Tensor]  # name → (H, T + 1, S); the last row writes <eos>
    rows: Tensor  # (T, target words): each word's column sums to 1
    columns: Tensor  # (S, source words)

    def over_words(self, view: AttentionView) -> Tensor:
        """Weights summed over the entries of a source word, averaged over the tokens of a target word."""
        heads = self.layers[view.layer]
        weights = heads.mean(0) if view.head is None else heads[view.head]
        weights = weights[1:] if view.shifted else weights[:-1]
        return self.rows.T @ weights @ self.columns  # (target words, source words)

    def aligned(self, view: AttentionView, threshold: float | None) -> WordAlignment:
        """The links that one view shows."""
        weights = self.over_words(view)
        return WordAlignment(self.source, self.target, links_from_weights(weights, threshold), weights)


def links_from_weights(weights: Tensor, threshold: float | None = None) -> Links:
    """Each target word with the source word it looks at most, or with all that get at least `threshold`."""
    if not weights.numel():
        return frozenset()
    if threshold is not None:
        return frozenset((source, target) for target, source in (weights >= threshold).nonzero().tolist())
    most, places = (part.tolist() for part in weights.max(1))
    return frozenset(
        (source, target) for target, source in enumerate(places) if most[target] > 0
    )  # a local window may have seen no word at all


def pair_attention(
    predictor: Predictor, pairs: Sequence[Pair], batch_size: int = 32
) -> Iterator[tuple[int, PairAttention]]:
    """(place, attention) of every pair that has words on both sides, batched by length."""
    tags = predictor.tags
    source_words = [word_spans(text, tags) for text, _ in pairs]
    target_words = [word_spans(text) for _, text in pairs]
    kept = [place for place in range(len(pairs)) if source_words[place] and target_words[place]]
    sources = dict(zip(kept, predictor.source_tokenizer.encode_batch([pairs[p][0] for p in kept]), strict=True))
    targets = dict(zip(kept, predictor.target_tokenizer.encode_batch([pairs[p][1] for p in kept]), strict=True))
    order = sorted(kept, key=lambda place: (len(targets[place]), len(sources[place])))
    for start in range(0, len(order), batch_size):
        places = order[start : start + batch_size]
        batch = batch_of([sources[place] for place in places], [targets[place] for place in places])
        layers = cross_attention_weights(predictor.model, batch.to(predictor.device))
        steps, entries = next(iter(layers.values())).shape[2:]
        if steps != batch.target.shape[1]:
            raise DataError(
                f"no word alignment: found {steps} positions for {batch.target.shape[1]} tokens, expected a model "
                "that writes one token after another"
            )
        padded_words = max(len(space_spans(pairs[place][0])) for place in places) + 1  # <eos>
        for row, place in enumerate(places):
            source, target = pairs[place]
            tokens = predictor.source_tokenizer.spans(source)
            columns = memory_spans(tokens, source, entries, batch, padded_words)
            size = len(columns) + 1
            length = len(targets[place])
            rows = token_word_shares(predictor.target_tokenizer.spans(target), target_words[place], length)
            yield (
                place,
                PairAttention(
                    source=tuple(source[first:end] for first, end in source_words[place]),
                    target=tuple(target[first:end] for first, end in target_words[place]),
                    layers={name: weights[row, :, : length + 1, :size] for name, weights in layers.items()},
                    rows=rows / rows.sum(0).clamp(min=1e-9),
                    columns=token_word_shares(columns, source_words[place], size),
                ),
            )


# --- which attention to read


def attention_layers(predictor: Predictor) -> dict[str, int]:
    """The layers whose attention reads the source and their heads, first to last."""
    tags = predictor.tags
    source = predictor.source_tokenizer.encode(f"<2{tags[0]}> a" if tags else "a")
    batch = batch_of([source], [predictor.target_tokenizer.encode("a")]).to(predictor.device)
    return {name: weights.shape[1] for name, weights in cross_attention_weights(predictor.model, batch).items()}


def select_view(
    predictor: Predictor, layer: str | int | None = None, head: int | None = None, shifted: bool = False
) -> AttentionView:
    """The view that a layer's name or number (from 1) and a head's number (from 1) mean.

    Unless told it is the mean of the heads of the last layer; of three or more the last but one, where deep
    Transformers align best (Garg et al. 2019).
    """
    layers = attention_layers(predictor)
    names = list(layers)
    if layer is None:
        name = names[-2] if len(names) > 2 else names[-1]
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


def all_views(predictor: Predictor, *, heads: bool = False) -> list[AttentionView]:
    """Everything that could be read as an alignment; with `heads` each head alone too."""
    return [
        AttentionView(name, head, shifted)
        for name, count in attention_layers(predictor).items()
        for head in (None, *(range(count) if heads and count > 1 else ()))
        for shifted in (False, True)
    ]


def links_by_view(
    predictor: Predictor,
    pairs: Sequence[Pair],
    views: Sequence[AttentionView],
    threshold: float | None,
    batch_size: int,
) -> dict[AttentionView, list[Links]]:
    """The links of every pair in every view."""
    found: dict[AttentionView, list[Links]] = {view: [frozenset()] * len(pairs) for view in views}
    for place, seen in pair_attention(predictor, pairs, batch_size):
        for view in views:
            found[view][place] = links_from_weights(seen.over_words(view), threshold)
    return found


def views_by_error_rate(
    predictor: Predictor,
    pairs: Sequence[Pair],
    truth: Sequence[GoldAlignment],
    *,
    heads: bool = False,
    threshold: float | None = None,
    batch_size: int = 32,
) -> list[tuple[AttentionView, float]]:
    """Every view with its alignment error rate, the best first."""
    found = links_by_view(predictor, pairs, all_views(predictor, heads=heads), threshold, batch_size)
    rates = [(view, alignment_score(links, truth).error_rate) for view, links in found.items()]
    return sorted(rates, key=lambda item: item[1])


def most_agreeing_views(
    forward: Predictor,
    backward: Predictor,
    pairs: Sequence[Pair],
    back: Sequence[Pair],
    *,
    threshold: float | None = None,
    batch_size: int = 32,
) -> tuple[AttentionView, AttentionView, float]:
    """The two views that agree best where no hand-made links are known, and their agreement (F₁ of the links).

    `back` are the pairs as the backward run reads them, target first.
    """
    ahead = links_by_view(forward, pairs, all_views(forward), threshold, batch_size)
    behind = links_by_view(backward, back, all_views(backward), threshold, batch_size)
    turned = {
        view: [GoldAlignment(swap_direction(one), swap_direction(one)) for one in links]
        for view, links in behind.items()
    }
    rates = [
        (alignment_score(links, truth).error_rate, one, other)
        for one, links in ahead.items()
        for other, truth in turned.items()
    ]
    rate, one, other = min(rates, key=lambda item: item[0])
    return one, other, 1 - rate


# --- links of many pairs


def align_pairs(
    predictor: Predictor,
    pairs: Iterable[Pair],
    *,
    view: AttentionView | None = None,
    threshold: float | None = None,
    tag: str | None = None,
    batch_size: int = 32,
) -> Iterator[WordAlignment]:
    """The word alignment of every pair, in order and in bounded memory; a pair without words has no links."""
    view = view or select_view(predictor)
    stream = iter(pairs)
    while together := list(islice(stream, WINDOW)):
        texts = list(predictor.read_as([source for source, _ in together], tag))
        window = [(source, target) for source, (_, target) in zip(texts, together, strict=True)]
        found = {place: seen.aligned(view, threshold) for place, seen in pair_attention(predictor, window, batch_size)}
        for place, (source, target) in enumerate(window):
            yield found.get(place) or without_links(source, target, predictor.tags)


def without_links(source: str, target: str, tags: Sequence[str]) -> WordAlignment:
    """A pair that cannot have links."""
    left, right = split_tag(source, tags)[1].split(), target.split()
    return WordAlignment(tuple(left), tuple(right), frozenset(), torch.zeros(len(right), len(left)))


def symmetrize(forward: WordAlignment, backward: WordAlignment, how: str = "grow-diag") -> WordAlignment:
    """One alignment from both directions; the weights are those of the forward one."""
    if how not in SYMMETRIZATIONS:
        raise ConfigError(f"combination: found '{how}'. {hint(how, SYMMETRIZATIONS)}")
    links: frozenset[Link] = SYMMETRIZATIONS[how](forward.links, swap_direction(backward.links))
    return WordAlignment(forward.source, forward.target, links, forward.weights)
