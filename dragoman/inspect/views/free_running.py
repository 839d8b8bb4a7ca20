"""Teacher forcing against free running: accuracy with right and with own inputs, and how an error spreads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.data import Batch
from dragoman.data.tokenizers import EOS, PAD
from dragoman.decoding import SUPPRESSED_TOKENS, SearchConfig, search
from dragoman.inference import Predictor, forced_batches
from dragoman.inspect.views.next_tokens import next_tokens
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View
from dragoman.models import decodes

MIN_SHARE = 0.05  # of the targets that must reach a position, so that its accuracy says something
MAX_SPREAD = 64  # tokens of a target


class FreeRunning(NamedTuple):
    """Shares of right tokens, <eos> included, by position and by distance from the first error."""

    targets: int
    tokens: int  # of all targets, <eos> included
    right_forced: int  # of them
    counts: Tensor  # (P,) targets with such a position
    forced: Tensor  # (P,) right with the reference as input
    free: Tensor  # (P,) right with the model's own tokens as input
    starts: Tensor  # (P,) share of all targets whose first error in free running is here
    after_counts: Tensor  # (D,) targets with a token so far behind the first error; D = 0 is the error itself
    after_forced: Tensor  # (D,)
    after_free: Tensor  # (D,)


def runs_freely(model: Any) -> bool:
    """Whether a model writes token by token, each after its own earlier ones."""
    return decodes(model) == "stepwise" and hasattr(model, "score")


@torch.no_grad()
def free_running(predictor: Predictor, sources: Sequence[str], targets: Sequence[str], size: int = 32) -> FreeRunning:
    """Compare each reference with what the model writes after its own tokens, by greedy search, position by position.

    A token counts as right only at its own position, so an inserted or missing word makes all that follows wrong.
    """
    model, rows = predictor.model, predictor.codec.encode_pairs(sources, targets)
    longest = max(map(len, rows[1])) + 1  # <eos>
    right = torch.zeros(2, len(sources), longest, dtype=torch.bool)  # forced, free
    real = torch.zeros(len(sources), longest, dtype=torch.bool)
    greedy = SearchConfig(beam=1, max_length=predictor.search.max_length)
    pairs = list(zip(*rows, strict=True))
    for indices, batch in forced_batches(pairs, predictor.collator.collate, predictor.device, size):
        scores = model.score(batch)
        width = scores.mask.shape[1]
        real[indices, :width] = scores.mask.cpu()
        right[0, indices, :width] = (scores.correct & scores.mask).cpu()
        written = own_tokens(model, batch, greedy, predictor.length_ratio)[:, :width]
        right[1, indices, : written.shape[1]] = (written == batch.target[:, : written.shape[1]]).cpu()
    right &= real
    counts = real.sum(0)
    kept = int((counts >= max(1.0, MIN_SHARE * len(sources))).sum())
    wrong = real & ~right[1]
    failed = wrong.any(1).nonzero()[:, 0]
    first = wrong.float().argmax(1)  # of those that failed
    starts = torch.bincount(first[failed], minlength=longest)
    # Rows that failed, shifted so that the first error is in column 0.
    places = first[failed, None] + torch.arange(longest)
    inside = places < longest
    places = places.clamp(max=longest - 1)
    behind = inside & real[failed].gather(1, places)
    after = [(right[way, failed].gather(1, places) & behind).sum(0) for way in (0, 1)]
    near = int((behind.sum(0) >= max(1.0, MIN_SHARE * len(failed))).sum())
    among = behind.sum(0)[:near]
    return FreeRunning(
        len(sources), int(real.sum()), int(right[0].sum()), counts[:kept], right[0].sum(0)[:kept] / counts[:kept],
        right[1].sum(0)[:kept] / counts[:kept], starts[:kept] / len(sources), among, after[0][:near] / among,
        after[1][:near] / among,
    )  # fmt: skip


def own_tokens(model: Any, batch: Batch, config: SearchConfig, ratio: float) -> Tensor:
    """What greedy search writes for every source (B, T), padded."""
    found = [best.tokens for best, *_ in search(model, batch, config, ratio)]
    width = max(map(len, found))
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in found], device=batch.target.device)


class Forcing(NamedTuple):
    """One example: what the model says after the right tokens, what it writes alone, and how single errors spread."""

    forced: Tensor  # (T,) most probable tokens after the right ones
    forced_scores: Tensor  # (T,) log-probabilities of the right tokens after the right ones
    free: Tensor  # (T',) what it writes alone
    errors: Tensor  # (E,) the most probable wrong token at each of the first positions
    spread: Tensor  # (E, T) change of the log-probability of each later right token after the error; 0 before it


@torch.no_grad()
def forcing(subject: Subject) -> Forcing | None:
    """None: the model does not write token by token."""
    model, batch, loaded = subject.model, subject.batch, subject.loaded
    if not isinstance(loaded, Predictor) or not runs_freely(model) or (table := next_tokens(subject, 8)) is None:
        return None
    target = batch.target[0]
    greedy = SearchConfig(beam=1, max_length=loaded.search.max_length)
    free = own_tokens(model, batch, greedy, loaded.length_ratio)[0].cpu()
    refused = (*SUPPRESSED_TOKENS, EOS)
    others = [
        next((token for token in row if token != right and token not in refused), right)
        for row, right in zip(table.tokens.tolist(), target.tolist(), strict=True)
    ][: min(len(target) - 1, MAX_SPREAD)]
    before = subject.log_probabilities().float()
    wrong = target.repeat(len(others), 1)
    wrong[range(len(others)), range(len(others))] = torch.tensor(others, device=target.device)
    spread = []
    for row in wrong:  # one by one: decoders may keep what belongs to the source, such as words to copy
        spread.append(subject.log_probabilities(replace(batch, target=row[None])).float() - before)
    after = torch.ones(len(others), len(target), device=target.device).triu(1)
    changed = torch.stack(spread) * after if spread else after
    return Forcing(table.tokens[:, 0], before.cpu(), free, torch.tensor(others), changed.cpu())


def forcing_view(subject: Subject) -> View | None:
    """The right target beside what the model says after right and after its own tokens."""
    if not subject.given or (found := forcing(subject)) is None or subject.source is None:
        return None
    pieces = subject.pieces
    return View(
        "forcing",
        "Teacher forcing",
        "With teacher forcing the model reads the right token at every step, whatever it would have written itself. In "
        "free running it reads its own tokens, so that one error can spread. The picture below puts one wrong token "
        "into the input and shows how much less probable the right tokens become after it.",
        {
            "target": subject.target.as_dict(),
            "forced": pieces(found.forced.tolist()),
            "right_forced": (found.forced == subject.batch.target[0].cpu()).tolist(),
            "log_probabilities": found.forced_scores,
            "free": pieces(found.free.tolist()),
            "right_free": [
                own == right for own, right in zip(found.free.tolist(), subject.batch.target[0].tolist(), strict=False)
            ],
            "errors": pieces(found.errors.tolist()),
            "spread": found.spread,
        },
    )
