"""Fills the [MASK] tokens of texts with a masked language model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from dragoman.data.batch import Batch
from dragoman.data.formats.texts import MASK_ID
from dragoman.data.tokenizers.base import EOS, PAD, SPECIALS
from dragoman.decoding.labels import LabelPrediction
from dragoman.errors import ConfigError, DragomanError
from dragoman.scoring.metric import OutputKind

NUM_SHOWN = 5  # candidates per [MASK]


class MaskDecoder:
    """The most probable token for every [MASK], each as if the others stayed masked."""

    outputs: OutputKind = "masked tokens"

    @torch.no_grad()
    def decode(self, model: Any, batch: Batch, codec: Any) -> list[LabelPrediction]:
        """Filled texts, and the most probable candidates of every [MASK]."""
        if not hasattr(model, "fill"):
            kind = model.config.kind
            raise ConfigError(f'model.kind: found "{kind}", which cannot fill [MASK], expected "masked-lm"')
        masked = (batch.source.data == MASK_ID) & batch.source.mask
        scores = model.fill(batch.source.data, batch.source.mask, masked)
        if not bool(scores[masked].isfinite().all()):
            raise DragomanError("found no answer: the model's outputs are NaN or infinite; its weights are broken")
        scores[:, :, : len(SPECIALS)] = -math.inf  # they are no text
        best = scores.topk(min(NUM_SHOWN, scores.shape[2] - len(SPECIALS)), -1)
        predictions = []
        for row, source in enumerate(batch.source.data.tolist()):
            masks = []
            for position, token in enumerate(source):
                if token != MASK_ID:
                    continue
                tokens = best.indices[row, position].tolist()
                probabilities = best.values[row, position].exp().tolist()
                masks.append(
                    [
                        {"token": piece, "text": codec.decode([token]), "probability": probability}
                        for token, piece, probability in zip(tokens, codec.pieces(tokens), probabilities, strict=True)
                    ]
                )
                source[position] = tokens[0]
            text = "\t".join(codec.decode(tokens) for tokens in split_texts(source))
            predictions.append(LabelPrediction(text, text, {"masks": masks}))
        return predictions

    def references(self, batch: Batch, codec: Any) -> list[Any]:
        """There are none: `masked_lm_scores` measures the model instead."""
        return [None] * len(batch.source)

    def parse_reference(self, text: str) -> Any:
        return None

    def report(self, predicted: Sequence[Any], references: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Tokens are too many to report one by one."""
        return {}


def split_texts(row: Sequence[int]) -> list[list[int]]:
    """The tokens of each text of a row; <eos> ends one."""
    texts: list[list[int]] = [[]]
    for token in row:
        if token == PAD:
            break
        if token == EOS:
            texts.append([])
        else:
            texts[-1].append(token)
    return texts[:-1] if not texts[-1] else texts
