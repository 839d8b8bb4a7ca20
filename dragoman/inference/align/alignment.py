"""Word alignments by attention, for any tokenization (Bahdanau et al. 2015; Garg et al. 2019), also of whole files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dragoman.base import ConfigError, DataError, hint
from dragoman.data import Batch, DataConfig, Fault, Pairs, Span, batch_of, paths_of, read_examples, summarize_faults
from dragoman.data.tokenizers import PairCodec, check_tag, split_tag
from dragoman.inference.align.alignments import WordAlignment
from dragoman.inference.align.attention import cross_attention_weights
from dragoman.inference.inputs import StreamOptions, Warn
from dragoman.inference.long_inputs import InputTooLongError
from dragoman.inference.pipeline import Done, Row, stream_outputs
from dragoman.inference.predictor import Predictor
from dragoman.inference.target_scores import QUIET, PairWork, pair_inputs
from dragoman.models.layers import alignment_layer
from dragoman.scoring import METHODS, GoldAlignment, Links, alignment_score, swap_direction, symmetrize_links

Segment = Callable[[str], Sequence[Span]]  # the words of a text
Words = tuple[list[Span], list[Span]]  # of source and target
Pair = tuple[str, str]  # a source as the model reads it, with its language tag, and a target
NO_ALIGNMENT = WordAlignment((), (), frozenset(), torch.zeros(0, 0))  # of a pair that cannot be read
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


@dataclass(frozen=True)
class AlignWork(PairWork[tuple[WordAlignment, ...]]):
    """The words of pairs linked by attention, once for every view."""

    run: Predictor
    codec: PairCodec
    views: tuple[AttentionView, ...]
    threshold: float | None = None
    tag: str | None = None
    batch_size: int = 32
    segment: Segment | None = None

    empty = ()

    def read_text(self, row: Row) -> str:
        return row.text  # without its context, whose words are none of the pair's

    def check_source(self, row: Row, warn: Warn) -> None:
        super().check_source(row, warn)
        longest, size = self.run.model.max_positions, len(row.source[1]) + 1
        if longest is not None and size > longest:
            problem = f"target: found {size} tokens, <eos> included"
            raise InputTooLongError(row.name, row.text, (problem, longest), f"expected at most {longest}")

    def outputs(self, rows: Sequence[Row], done: Done) -> list[tuple[WordAlignment, ...]]:
        source_letters, target_letters = self.run.by_letter  # all that there is to align in one word and another
        words = [
            (
                word_spans(row.text, self.run.tags, source_letters, self.segment),
                word_spans(row.item.target or "", (), target_letters, self.segment),
            )
            for row in rows
        ]
        out: list[tuple[WordAlignment, ...]] = [()] * len(rows)
        for index, (row, spans) in enumerate(zip(rows, words, strict=True)):
            if not all(spans):
                left, right = words_of_pair(row, spans)
                none = WordAlignment(left, right, frozenset(), torch.zeros(len(right), len(left)))
                out[index] = (none,) * len(self.views)
                done(row)
        kept = [index for index, spans in enumerate(words) if all(spans)]
        for places, batch in self.batches([rows[index] for index in kept]):
            indices = [kept[place] for place in places]
            attentions = self._attentions([(rows[index], words[index]) for index in indices], batch)
            for index, attention in zip(indices, attentions, strict=True):
                out[index] = tuple(attention.aligned(view, self.threshold) for view in self.views)
                done(rows[index])
        return out

    def _attentions(self, rows: Sequence[tuple[Row, Words]], batch: Batch) -> Iterator[PairAttention]:
        layers = cross_attention_weights(self.run.model, batch)
        steps, entries = next(iter(layers.values())).shape[2:]
        if steps != batch.target.shape[1]:
            raise DataError(
                f"no word alignment: found {steps} positions for {batch.target.shape[1]} tokens, expected an "
                "autoregressive model"
            )
        padded_words = max(len(space_spans(row.text)) for row, _ in rows) + 1  # <eos>
        for number, (row, (source_words, target_words)) in enumerate(rows):
            tokens = self.run.source_tokenizer.spans(row.text)
            columns = memory_spans(tokens, row.text, entries, batch, padded_words)
            size, length = len(columns) + 1, len(row.source[1])
            shares = token_word_shares(self.run.target_tokenizer.spans(row.item.target or ""), target_words, length)
            left, right = words_of_pair(row, (source_words, target_words))
            yield PairAttention(
                source=left,
                target=right,
                layers={name: weights[number, :, : length + 1, :size] for name, weights in layers.items()},
                rows=shares / shares.sum(0).clamp(min=1e-9),
                columns=token_word_shares(columns, source_words, size),
            )


def words_of_pair(row: Row, spans: Words) -> tuple[tuple[str, ...], tuple[str, ...]]:
    source, target = row.text, row.item.target or ""
    return tuple(source[slice(*span)] for span in spans[0]), tuple(target[slice(*span)] for span in spans[1])


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
    stream: StreamOptions = QUIET,
) -> Iterator[WordAlignment]:
    """The word alignment of every pair, in order and with bounded memory; a pair without words has no links.

    `segment` gives the words of a text; by default they are between white space, or letters in a run of single words.
    """
    if tag is not None:
        check_tag(tag, predictor.tags)
    views = (view or select_view(predictor),)
    work = AlignWork(predictor, predictor.codec, views, threshold, tag, batch_size, segment)
    return (aligned[0] if aligned else NO_ALIGNMENT for aligned in stream_outputs(work, pair_inputs(pairs), stream))


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

    def __call__(self, pairs: Sequence[Pair], stream: StreamOptions = QUIET) -> Iterator[WordAlignment]:
        how: Any = {"threshold": self.threshold, "batch_size": self.batch_size}
        forward = align_pairs(self.forward, pairs, view=self.view, tag=self.tag, stream=stream, **how)
        if self.backward is None:
            return forward
        turned = [(target, source) for source, target in pairs]
        backward = align_pairs(self.backward, turned, view=self.backward_view, **how)
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
        if gold is not None:
            view, rate = self.views_by_error_rate(pairs, gold)[0]
            log(f"read: {view} (error rate {100 * rate:.2f} % on these pairs)")
            return replace(self, view=view)
        if self.backward is not None and not named:
            view, back, agreement = self.most_agreeing_views(pairs[:AGREEMENT_PAIRS])
            log(f"read: {view}; reverse: {back} (agreement {100 * agreement:.2f} %)")
            return replace(self, view=view, backward_view=back)
        return replace(self, view=select_view(self.forward, layer, head, shifted))

    def views_by_error_rate(
        self, pairs: Sequence[Pair], gold: Sequence[GoldAlignment]
    ) -> list[tuple[AttentionView, float]]:
        """Every view of the forward run with its alignment error rate, the best first."""
        predicted = self._links_by_view(self.forward, pairs, self.tag)
        rates = [(view, alignment_score(links, gold).error_rate) for view, links in predicted.items()]
        return sorted(rates, key=lambda item: item[1])

    def most_agreeing_views(self, pairs: Sequence[Pair]) -> tuple[AttentionView, AttentionView, float]:
        """The two views that agree best, for use without gold links, and their agreement (F₁ of the links)."""
        assert self.backward is not None
        forward_links = self._links_by_view(self.forward, pairs, self.tag)
        turned = [(target, source) for source, target in pairs]
        swapped = {
            view: [GoldAlignment(turned, turned) for turned in map(swap_direction, links)]
            for view, links in self._links_by_view(self.backward, turned).items()
        }
        rates = [
            (alignment_score(links, truth).error_rate, view, other)
            for view, links in forward_links.items()
            for other, truth in swapped.items()
        ]
        rate, view, other = min(rates, key=lambda item: item[0])
        return view, other, 1 - rate

    def _links_by_view(
        self, predictor: Predictor, pairs: Sequence[Pair], tag: str | None = None
    ) -> dict[AttentionView, list[Links]]:
        views = tuple(all_views(predictor))
        work = AlignWork(predictor, predictor.codec, views, self.threshold, tag, self.batch_size)
        aligned = list(stream_outputs(work, pair_inputs(pairs), QUIET))
        return {view: [several[number].links for several in aligned] for number, view in enumerate(views)}
