"""The attention of every layer and head of any model, with the texts that its rows and columns belong to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dragoman.analysis.attention import memory_labels, record_attention
from dragoman.analysis.subject import Axis, Subject, plain_axis
from dragoman.classical.model import FittedModel

AttentionKind = Literal["cross", "encoder", "decoder", "pooling"]
ABOUT: dict[AttentionKind, str] = {
    "cross": "output over input",
    "encoder": "input over input",
    "decoder": "output over earlier output",
    "pooling": "the whole input for one label",
}

ENDS = ("<eos>", "[SEP]")


@dataclass(frozen=True)
class AttentionLayer:
    """The weights of one attention module for one example."""

    name: str
    kind: AttentionKind
    weights: Tensor  # (H, T, S)
    rows: Axis
    columns: Axis

    @property
    def sums_to_one(self) -> bool:
        """Whether every row is a distribution; learned weights of steps may be negative."""
        sums = self.weights.sum(-1)
        return bool((self.weights >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)

    def entropy(self) -> Tensor:
        """The mean entropy over rows of each head (H,) in bits: 0 looks at one entry, log₂ S at all alike."""
        return -(self.weights * self.weights.clamp(min=1e-30).log2()).sum(-1).mean(-1)

    def max_entropy(self) -> float:
        """The entropy of equal weights over all columns."""
        return math.log2(max(1, self.weights.shape[2]))

    def summaries(self) -> list[str]:
        """Where each head looks most, if that is over half of its weight: the token before, itself, the end, …"""
        rows, columns = self.weights.shape[1:]
        if not self.sums_to_one or min(rows, columns) < 3:
            return [""] * len(self.weights)
        at, over = torch.arange(rows)[:, None], torch.arange(columns)
        ends = torch.tensor([token in ENDS for token in self.columns.tokens])
        places = {"first token": over == 0, "end": ends}
        if self.kind != "cross" and rows == columns:
            places |= {"previous token": over == at - 1, "same position": over == at, "next token": over == at + 1}
        shares = {name: (self.weights * where).sum(-1).mean(-1) for name, where in places.items()}  # (H,)
        names = []
        for head in range(len(self.weights)):
            name = max(shares, key=lambda name: float(shares[name][head]))
            names.append(f"{name} {float(shares[name][head]):.0%}" if shares[name][head] > 0.5 else "")
        return names


def merge_words(weights: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    """Attention over words: summed over the tokens of a column's word, averaged over those of a row's word.

    weights (…, T, S); `rows` and `columns` give the word of each token. Clark et al. 2019, section 4.1.
    """
    row_share = _membership(rows).to(weights)  # (T, words)
    return (row_share / row_share.sum(0).clamp(min=1)).T @ weights @ _membership(columns).to(weights)


def over_words(weights: Tensor, rows: Axis, columns: Axis) -> tuple[Tensor, tuple[str, ...], tuple[str, ...]]:
    """The weights (…, T, S) over words, with their labels; over tokens where a side is but one word and <eos>."""
    if min(len(rows.words), len(columns.words)) <= 2:
        return weights, rows.tokens, columns.tokens
    return merge_words(weights, rows.word_of, columns.word_of), rows.words, columns.words


def _membership(words: Sequence[int]) -> Tensor:
    index = torch.tensor(words, dtype=torch.long)
    return torch.nn.functional.one_hot(index, int(index.max()) + 1).float()


@torch.no_grad()
def attention_layers(subject: Subject) -> list[AttentionLayer]:
    """Every attention that scoring the target computes, in the order of computation; empty: the model has none."""
    modules = dict(subject.model.named_modules())
    if isinstance(subject.model, FittedModel):
        if not subject.model.shows_alignment:
            return []
        weights = subject.model.attention(subject.batch)[0]
        return [AttentionLayer("alignment", "cross", weights, *_axes(subject, "cross", weights))]
    with record_attention(subject.model) as recorded:
        subject.log_probabilities()
    inside = {id(module) for module in subject.encoder.modules()} if subject.encoder is not None else set()
    layers = []
    for name, parts in recorded.items():
        module = modules[name]
        if any(part.shape[0] != 1 for part in parts):
            continue  # two texts that are encoded apart, or words made of characters: not one row of tokens
        widest = max(part.shape[3] for part in parts)
        weights = torch.cat([torch.nn.functional.pad(part, (0, widest - part.shape[3])) for part in parts], 2)
        weights = weights[0].float().cpu()
        kind: AttentionKind = "decoder"
        if getattr(module, "is_cross_attention", False):
            kind = "cross"
        elif id(module) in inside:
            kind = "encoder"
        elif subject.source is not None and weights.shape[1] <= 8 and "pooling" in name:
            kind = "pooling"
        elif id(module) not in inside and subject.source is not None and not hasattr(subject.model, "decoder"):
            kind = "encoder"
        layers.append(AttentionLayer(name, kind, weights, *_axes(subject, kind, weights)))
    return layers


def _axes(subject: Subject, kind: AttentionKind, weights: Tensor) -> tuple[Axis, Axis]:
    """Rows and columns; where the memory has other entries than the source has tokens, numbers stand for them."""
    _, rows, columns = weights.shape
    source, encoded = subject.source or plain_axis([]), subject.encoded or plain_axis([])
    target = subject.target
    if kind == "decoder":
        return _fitting(target.shifted(), rows), _fitting(target.shifted(), columns)
    if kind == "encoder":
        return _fitting(encoded, rows), _fitting(encoded, columns)
    over = _fitting(source, columns)
    if kind == "pooling":
        return plain_axis([f"query {number}" for number in range(1, rows + 1)] if rows > 1 else ["pooled"]), over
    return _fitting(target, rows), over


def _fitting(axis: Axis, size: int) -> Axis:
    if len(axis) == size:
        return axis
    return plain_axis(memory_labels(axis.tokens or ("",), axis.text, size))
