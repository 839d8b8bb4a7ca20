"""Searches for a model that has both CTC and an attending decoder (FIELD A7, H8; Watanabe et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dragoman.data.batch import pad_tokens
from dragoman.data.tokenizers.base import EOS, SOS
from dragoman.decoding import ctc
from dragoman.decoding.beam import beam
from dragoman.decoding.ctc import BLANK, Fusion
from dragoman.decoding.hypothesis import Hypothesis, divisor
from dragoman.decoding.methods import Request, distinct
from dragoman.errors import ConfigError
from dragoman.layers.ctc import text_log_probability
from dragoman.models.contracts import CTCEmissions, State


class Both(Protocol):
    """What these searches need: a Transcriber with a decoder."""

    attention_decoder: Any

    def start(self, batch: Any) -> State:
        """The state before the first token."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Log-probabilities of the next token."""

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Those after every token."""

    def emissions(self, batch: Any, limits: Tensor, candidates: int) -> CTCEmissions:
        """What CTC writes."""


def both(request: Request, name: str) -> Any:
    """The model, which must have both."""
    if getattr(request.model, "attention_decoder", None) is None or not hasattr(request.model, "emissions"):
        raise ConfigError(
            f"{name} needs a model with CTC and a decoder beside it (model.attention_decoder.kind = 'joint')"
        )
    return request.model


@dataclass(frozen=True)
class Fused:
    """Prefix beam search over CTC with a language model's help."""

    fusion: Fusion

    @torch.no_grad()
    def search(self, request: Request) -> list[list[Hypothesis]]:
        """See Method."""
        model: Any = request.model
        if not hasattr(model, "emissions"):
            raise ConfigError("a language model beside CTC needs a model that was trained by CTC")
        written = model.emissions(request.batch, request.limits, max(request.config.beam, request.n_best))
        if not isinstance(written, CTCEmissions):
            raise ConfigError("a language model beside CTC needs a model that was trained by CTC")
        return ctc.read(written, request.limits, request.config, request.n_best, self.fusion)


@dataclass(frozen=True)
class Attending:
    """Beam search with the decoder alone."""

    @torch.no_grad()
    def search(self, request: Request) -> list[list[Hypothesis]]:
        """See Method."""
        model, config = both(request, "search by attention"), request.config
        return beam(
            model.step,
            model.start(request.batch),
            request.limits,
            width=max(config.beam, request.n_best),
            length_penalty=config.length_penalty,
            normalisation=config.normalisation,
            most=request.n_best,
            certain=config.stop == "certain",
        )


@dataclass(frozen=True)
class Joint:
    """What either search finds, ranked by both: w · log p by CTC + (1 − w) · log p by attention."""

    weight: float = 0.3  # of CTC
    fusion: Fusion | None = None  # helps CTC's search, and counts for the rank

    @torch.no_grad()
    def search(self, request: Request) -> list[list[Hypothesis]]:
        """See Method."""
        model, config = both(request, "joint search"), request.config
        width = max(config.beam, request.n_best)
        written = model.emissions(request.batch, request.limits, width)
        by_ctc = ctc.read(written, request.limits, config, width, self.fusion)
        by_attention = Attending().search(request._replace(n_best=width))
        texts = [
            sorted({one.tokens[:-1] for one in (*left, *right)})
            for left, right in zip(by_ctc, by_attention, strict=True)
        ]
        found = []
        state = model.start(request.batch)
        for row, candidates in enumerate(texts):
            one = torch.tensor([row], device=written.lengths.device)
            scores = self._scores(model, written, state.select(one), row, candidates)
            hypotheses = [
                self._hypothesis(text, parts, request) for text, parts in zip(candidates, scores, strict=True)
            ]
            possible = [one for one in hypotheses if one.score > float("-inf")]
            # A text of attention's that CTC has no path for is left only where nothing else is.
            found.append(distinct(possible or by_ctc[row] or by_attention[row], request.n_best))
        return found

    def _scores(
        self, model: Both, written: CTCEmissions, state: State, row: int, texts: list[tuple[int, ...]]
    ) -> list[tuple[float, ...]]:
        """Log-probability of every token of texts of one source, CTC's spread evenly over a text."""
        device = written.lengths.device
        target = pad_tokens(texts).to(device)  # (k, L) with <eos>
        sizes = torch.tensor([len(text) for text in texts], device=device)
        inputs = torch.cat([target.new_full((len(texts), 1), SOS), target[:, :-1]], 1)
        following, _ = model.read(inputs, state.expand(len(texts)))
        beside = following.gather(2, target[:, :, None])[:, :, 0].tolist()
        frames = written.log_probabilities[row : row + 1]
        labels = target[None, :, :-1].masked_fill(
            torch.arange(target.shape[1] - 1, device=device) >= sizes[:, None], BLANK
        )
        whole = text_log_probability(frames, written.lengths[row : row + 1], labels, sizes[None], BLANK)[0].tolist()
        return [
            tuple(
                self.weight * ours / (len(text) + 1) + (1 - self.weight) * theirs for theirs in tokens[: len(text) + 1]
            )
            for text, ours, tokens in zip(texts, whole, beside, strict=True)
        ]

    def _hypothesis(self, text: tuple[int, ...], scores: tuple[float, ...], request: Request) -> Hypothesis:
        config, score = request.config, sum(scores)
        more = self.fusion.total(list(text)) if self.fusion else 0.0
        divided = divisor(len(text) + 1, config.length_penalty, config.normalisation)
        return Hypothesis((*text, EOS), scores, score, (score + more) / divided)
