"""What stands behind each [MASK] of a text (FIELD A6), and how well a model knows what was hidden from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from dragoman.data.batch import Batch
from dragoman.data.formats.masked_text import MASK_ID
from dragoman.data.tokenizers.base import EOS, PAD, SPECIALS
from dragoman.decoding.direct import Answer
from dragoman.errors import ConfigError, DragomanError
from dragoman.scoring.metric import OutputKind

SHOWN = 5  # answers for every [MASK]


class FillReadout:
    """The likeliest token for every [MASK], each as if the others stayed hidden."""

    outputs: OutputKind = "masked tokens"

    @torch.no_grad()
    def read(self, model: Any, batch: Batch, codec: Any) -> list[Answer]:
        """Texts filled in, and of every [MASK] the likeliest answers."""
        if not hasattr(model, "fill"):
            kind = model.config.kind
            raise ConfigError(
                f'predict fills [MASK] by model.kind = "masked-lm"; this run has "{kind}", which fills none'
            )
        hidden = (batch.source == MASK_ID) & batch.source_mask
        scores = model.fill(batch.source, batch.source_mask, hidden)
        if not bool(scores[hidden].isfinite().all()):
            raise DragomanError("found no answer: the model's outputs are NaN or infinite; its weights are broken")
        scores[:, :, : len(SPECIALS)] = -math.inf  # no text says them
        likeliest = scores.topk(min(SHOWN, scores.shape[2] - len(SPECIALS)), -1)
        out = []
        for row, source in enumerate(batch.source.tolist()):
            masks = []
            for place, token in enumerate(source):
                if token != MASK_ID:
                    continue
                tokens = likeliest.indices[row, place].tolist()
                sure = likeliest.values[row, place].exp().tolist()
                masks.append(
                    [
                        {"token": piece, "text": codec.decode([token]), "probability": probability}
                        for token, piece, probability in zip(tokens, codec.pieces(tokens), sure, strict=True)
                    ]
                )
                source[place] = tokens[0]
            text = "\t".join(codec.decode(part) for part in texts_of(source))
            out.append(Answer(text, text, {"masks": masks}))
        return out

    def truths(self, batch: Batch, codec: Any) -> list[Any]:
        """A text is its own truth; nothing is compared."""
        return [None] * len(batch.source)

    def truth(self, text: str) -> Any:
        """The same."""
        return None

    def report(self, found: Sequence[Any], expected: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Tokens are too many to be told one by one."""
        return {}


def texts_of(row: Sequence[int]) -> list[list[int]]:
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


@torch.no_grad()
def hidden_scores(
    model: Any, batches: Iterable[Batch], interrupted: Callable[[], bool] = lambda: False
) -> dict[str, float] | None:
    """Mean loss, share of tokens and of pairs that are known, pseudo-perplexity; None if interrupted."""
    total, extra, correct, count, known, pairs = 0.0, 0.0, 0, 0, 0, 0
    several = getattr(model.config, "pairs", False)
    for batch in batches:
        if interrupted():
            return None
        if several:
            scores, weighed, right = model.relations(batch)
            extra, known, pairs = extra + float(weighed), known + int(right), pairs + len(batch.source)
        else:
            scores = model.score(batch)
        total -= float(scores.log_probabilities.sum(dtype=torch.float64))
        correct += int(scores.correct.sum())
        count += int(scores.mask.sum())
    tokens = total / count
    found = {
        "loss": (total + extra) / count,
        "accuracy": correct / count,
        "pseudo_perplexity": math.exp(min(tokens, 700)),
    }
    return found | ({"pair_accuracy": known / pairs} if several else {})
