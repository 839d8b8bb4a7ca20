"""Record attention weights with a hook. Models need no code for it, and training keeps the fused kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.base import DataError
from dragoman.classical import FittedModel
from dragoman.data import Batch, SourceReader
from dragoman.data.tokenizers import EOS, UNK
from dragoman.decoding import Ensemble
from dragoman.inference.predictor import Predictor
from dragoman.inference.unseen import ignore_unknown
from dragoman.models.layers import alignment_layer, observe_attention


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Collect the weights of every attention computed inside the `with` block, by module name: (N, H, T, S) each."""
    names = {id(module): name for name, module in model.named_modules()}
    recorded: dict[str, list[Tensor]] = {}

    def record(module: nn.Module, weights: Tensor) -> None:
        if id(module) in names:  # another model may run in the same block
            recorded.setdefault(names[id(module)], []).append(weights.detach())

    with observe_attention(record):
        yield recorded


@dataclass(frozen=True)
class AttentionMap:
    """The cross-attention of one output: a row for each output token, a column for each entry of the memory."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    layers: dict[str, Tensor]  # name → (H, T, S)
    texts: tuple[str, str] = ("", "")  # input and output

    def mean(self, layer: str | None = None) -> Tensor:
        """The mean over the heads of one layer, by default the last: (T, S)."""
        return self.layers[layer or list(self.layers)[-1]].mean(0)


def token_labels(tokenizer: SourceReader, text: str, ids: Sequence[int]) -> list[str]:
    """The tokens of a text as labels: an unknown token has its own text in place of <unk>, a space is ␣."""
    pieces = list(tokenizer.pieces(ids))
    if UNK in ids:
        try:
            spans = tokenizer.spans(text)
        except NotImplementedError:
            spans = []
        if len(spans) == len(ids):
            tokens = zip(pieces, ids, spans, strict=True)
            pieces = [text[slice(*span)] if token == UNK else piece for piece, token, span in tokens]
    return ["␣" if piece.isspace() else piece for piece in pieces]


def memory_labels(tokens: Sequence[str], text: str, entries: int) -> tuple[str, ...]:
    """Labels of the memory entries: tokens, words or, if there are as many of neither, numbers."""
    words = (*(word for word in text.split(" ") if word), tokens[-1])
    numbers = tuple(str(number) for number in range(1, entries + 1))
    return next(names for names in (tuple(tokens), words, numbers) if len(names) == entries)


@torch.no_grad()
def cross_attention_weights(model: Any, batch: Batch) -> dict[str, Tensor]:
    """The cross-attention of each decoder layer for the targets of a batch: (B, H, T, S), S entries of the memory."""
    if isinstance(model, Ensemble):
        return {f"mean of {len(model.models)} models": mean_attention(model, batch)}
    kinds = dict(model.named_modules())
    if isinstance(model, FittedModel):
        if model.shows_alignment:
            return {"alignment": model.attention(batch)}
        raise DataError("no attention to show: this model has no neural network; align --model hmm aligns raw pairs")
    with record_attention(model) as recorded:
        model.score(batch)
    layers = {
        name: torch.cat(parts, 2).float().cpu()  # recurrent decoders attend once per step
        for name, parts in recorded.items()
        if getattr(kinds[name], "is_cross_attention", False)
    }
    if not layers:
        raise DataError("no attention to show: this model has no attention from output to source")
    return layers


def mean_attention(model: Ensemble, batch: Batch) -> Tensor:
    """The mean over the members of an ensemble that attend of their usual layers: (B, 1, T, S)."""
    means, reason = [], DataError("no attention to show: found an ensemble without members")
    for member in model.models:
        try:
            layers = cross_attention_weights(member, batch)
        except DataError as error:
            reason = error
        else:
            means.append(layers[alignment_layer(list(layers))].mean(1, keepdim=True))
    if not means:
        raise reason
    if len({mean.shape for mean in means}) > 1:
        raise DataError("no attention to show: the members of this ensemble attend to different parts of the source")
    return torch.stack(means).mean(0)


def attention_map(predictor: Predictor, text: str, output: str | None = None) -> AttentionMap:
    """The cross-attention for an output, by default the predicted one."""
    source = predictor.source_tokenizer.encode(text)
    if output is None:
        (prediction,) = predictor.stream([text], split_long=False, on_unknown=ignore_unknown)
        output = prediction.text
    target = predictor.target_tokenizer.encode(output)
    batch = predictor.collator.collate(*predictor.codec.encode_pairs([text], [output])).to(predictor.device)
    layers = {name: weights[0] for name, weights in cross_attention_weights(predictor.model, batch).items()}
    end = predictor.source_tokenizer.pieces([EOS])
    tokens = [*token_labels(predictor.source_tokenizer, text, source), *end]
    entries = next((weights.shape[2] for weights in layers.values()), len(tokens))
    return AttentionMap(
        source=memory_labels(tokens, text, entries),
        target=(*token_labels(predictor.target_tokenizer, output, target), *end),
        layers=layers,
        texts=(text, output),
    )
