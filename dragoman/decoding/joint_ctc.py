"""Searches of a model with CTC and an attention decoder (Watanabe et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dragoman.data.batch import pad_tokens
from dragoman.data.tokenizers.base import EOS, SOS
from dragoman.decoding import ctc
from dragoman.decoding.beam import BeamOptions, beam_search, enough_complete
from dragoman.decoding.ctc import BLANK, LMFusion
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.methods import Request, distinct
from dragoman.decoding.scorer import NEG_INF, Scorer
from dragoman.errors import ConfigError
from dragoman.layers.ctc import ctc_log_probability
from dragoman.models.contracts import CTCEmissions, State


class JointModel(Protocol):
    """A Transcriber with an attention decoder."""

    attention_decoder: Any

    def start(self, batch: Any) -> State:
        """The decoder's state before the first token."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """The decoder's log-probabilities of the next token."""

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """The decoder's log-probabilities after every token."""

    def emissions(self, batch: Any, limits: Tensor, candidates: int) -> CTCEmissions:
        """The outputs of CTC."""


def joint_model(request: Request, method: str) -> Any:
    """The request's model, which must have both."""
    if getattr(request.model, "attention_decoder", None) is None or not hasattr(request.model, "emissions"):
        raise ConfigError(
            f"{method} needs a model with CTC and a decoder beside it (model.attention_decoder.kind = 'joint')"
        )
    return request.model


@dataclass(frozen=True)
class CTCFusionSearch:
    """CTC prefix beam search with a language model."""

    fusion: LMFusion

    @torch.no_grad()
    def search(self, request: Request) -> list[list[Hypothesis]]:
        """The n best texts of every source."""
        emissions = None
        if hasattr(request.model, "emissions"):
            width = max(request.config.beam, request.n_best)
            emissions = request.model.emissions(request.batch, request.limits, width)
        if not isinstance(emissions, CTCEmissions):
            raise ConfigError("a language model beside CTC needs a model that was trained by CTC")
        return ctc.decode(emissions, request.limits, request.config, request.n_best, self.fusion)


@dataclass(frozen=True)
class AttentionSearch:
    """Beam search with the attention decoder alone."""

    @torch.no_grad()
    def search(self, request: Request) -> list[list[Hypothesis]]:
        """The n best hypotheses of every source."""
        model, config = joint_model(request, "search by attention"), request.config
        complete = enough_complete(config, request.n_best)
        options = BeamOptions(max(config.beam, request.n_best), request.n_best, complete, stop=config.stop)
        scorer = Scorer(config.length_penalty, config.normalisation)
        return beam_search(model.step, model.start(request.batch), request.limits, options, scorer)


@dataclass(frozen=True)
class JointSearch:
    """The outputs of both searches, ranked by w · log p of CTC + (1 − w) · log p of the attention decoder."""

    ctc_weight: float = 0.3
    fusion: LMFusion | None = None  # takes part in CTC's search and in the rank

    @torch.no_grad()
    def search(self, request: Request) -> list[list[Hypothesis]]:
        """The n best of all outputs of either search."""
        model, config = joint_model(request, "joint search"), request.config
        scorer = Scorer.from_config(config)
        width = max(config.beam, request.n_best)
        emissions = model.emissions(request.batch, request.limits, width)
        by_ctc = ctc.decode(emissions, request.limits, config, width, self.fusion)
        by_attention = AttentionSearch().search(request._replace(n_best=width))
        outputs = []
        state = model.start(request.batch)
        for row, (ctc_outputs, attention_outputs) in enumerate(zip(by_ctc, by_attention, strict=True)):
            texts = sorted({hypothesis.tokens[:-1] for hypothesis in (*ctc_outputs, *attention_outputs)})
            source = torch.tensor([row], device=emissions.lengths.device)
            scores = self._token_scores(model, emissions, state.select(source), row, texts)
            hypotheses = [
                scorer.hypothesis((*text, EOS), token_scores, self.fusion.total(text) if self.fusion else 0.0)
                for text, token_scores in zip(texts, scores, strict=True)
            ]
            possible = [hypothesis for hypothesis in hypotheses if hypothesis.score > NEG_INF]
            # An output of the decoder without a CTC path counts only where there is no other output.
            outputs.append(distinct(possible or ctc_outputs or attention_outputs, request.n_best))
        return outputs

    def _token_scores(
        self, model: JointModel, emissions: CTCEmissions, state: State, row: int, texts: list[tuple[int, ...]]
    ) -> list[tuple[float, ...]]:
        """Weighted log-probabilities of every token of one source's texts; CTC's are spread evenly over a text."""
        device = emissions.lengths.device
        target = pad_tokens(texts).to(device)  # (k, L) with <eos>
        sizes = torch.tensor([len(text) for text in texts], device=device)
        inputs = torch.cat([target.new_full((len(texts), 1), SOS), target[:, :-1]], 1)
        log_probabilities, _ = model.read(inputs, state.expand(len(texts)))
        attention_scores = log_probabilities.gather(2, target[:, :, None])[:, :, 0].tolist()
        frames = emissions.log_probabilities[row : row + 1]
        beyond = torch.arange(target.shape[1] - 1, device=device) >= sizes[:, None]
        labels = target[None, :, :-1].masked_fill(beyond, BLANK)
        lengths = emissions.lengths[row : row + 1]
        ctc_scores = ctc_log_probability(frames, lengths, labels, sizes[None], BLANK)[0].tolist()
        weight = self.ctc_weight
        return [
            tuple(weight * ctc_score / (len(text) + 1) + (1 - weight) * score for score in scores[: len(text) + 1])
            for text, ctc_score, scores in zip(texts, ctc_scores, attention_scores, strict=True)
        ]
