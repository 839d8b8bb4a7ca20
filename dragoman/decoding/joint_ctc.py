"""Decoding of a transcriber: CTC, its attention decoder or both (Watanabe et al. 2017), and a language model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from dragoman.classical.arpa import is_arpa, read_arpa
from dragoman.classical.ngram import NGramModel
from dragoman.config.settings import Range, setting
from dragoman.data.batch import pad_tokens
from dragoman.data.readers.lines import read_lines
from dragoman.data.tokenizers.base import EOS, SOS
from dragoman.decoding import ctc
from dragoman.decoding.beam import BeamOptions, beam_search, enough_complete
from dragoman.decoding.ctc import BLANK, LMFusion
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.method import Method, OpenMethod, Request, distinct
from dragoman.decoding.ngram import NeuralLM, NGramLM
from dragoman.decoding.scorer import NEG_INF, Scorer
from dragoman.decoding.shortlist import PathLike
from dragoman.errors import ConfigError, DataError, RunError
from dragoman.layers.ctc import ctc_log_probability
from dragoman.models.contracts import CTCEmissions, State
from dragoman.models.language_model import LanguageModel
from dragoman.models.transcriber import Transcriber


@dataclass(frozen=True)
class LanguageModelFusion:
    """Shallow fusion in CTC prefix search: add weight · log p of a language model, and a bonus for every token."""

    model: PathLike = setting(help="a text or ARPA file of n-grams, or a language-model run with the same vocabulary")
    weight: Annotated[float, Range(0.0, exclusive_minimum=True)] = setting(0.3, help="weight of its log-probability")
    bonus: float = setting(0.0, help="bonus for every output token")
    order: Annotated[int, Range(1, 100)] | None = setting(None, help="n of the n-grams of a text file; none: 5")


@dataclass(frozen=True)
class CTCDecoding(Method):
    """What finds the text of a transcriber: CTC, its attention decoder, or both."""

    kind: ClassVar[str] = "ctc"
    names_files: ClassVar[bool] = True
    remote: ClassVar[bool] = False
    uses_beam: ClassVar[bool] = True
    mode: Literal["ctc", "attention", "joint"] = setting(
        "ctc", help="what decodes; attention and joint need model.attention_decoder"
    )
    ctc_weight: Annotated[float, Range(0.0, 1.0, exclusive_minimum=True, exclusive_maximum=True)] | None = setting(
        None, help="weight of CTC in the score of mode joint; none: 0.3"
    )
    language_model: LanguageModelFusion | None = setting(None, help="shallow fusion with a language model")

    def problems(self) -> Iterator[str]:
        """Settings that another mode reads."""
        if self.ctc_weight is not None and self.mode != "joint":
            yield f'ctc_weight: goes with mode = "joint", found mode = "{self.mode}"'
        if self.language_model is not None and self.mode == "attention":
            yield 'language_model: helps CTC, found mode = "attention", expected ctc or joint'

    def open(self, run: Any, model: Any) -> Method | None:
        if not isinstance(model, Transcriber):
            raise ConfigError(
                f'method: ctc goes with task = "transcribe" and CTC (model.kind = "transcriber"); {run.run.folder} has '
                f'task = "{run.config.task}", model.kind = "{getattr(run.config.model, "kind", "")}"'
            )
        fusion = None
        if (language := self.language_model) is not None:
            fusion = LMFusion(language_scorer(run, language), language.weight, language.bonus)
        if self.mode == "attention":
            return AttentionSearch()
        if self.mode == "joint":
            return JointSearch(0.3 if self.ctc_weight is None else self.ctc_weight, fusion)
        return CTCFusionSearch(fusion) if fusion is not None else None


def language_scorer(run: Any, language: LanguageModelFusion) -> NGramLM | NeuralLM:
    """A language model of the run's target tokens: n-grams of a text file, or a trained run."""
    target, path = run.target_tokenizer, language.model
    if not Path(path).is_dir():
        if is_arpa(path):
            return NGramLM(read_arpa(path, target, language.order))
        rows = [target.encode(line) for line in read_lines(path) if line.strip()]
        if not rows:
            raise DataError(f"{path}: found no text, expected lines to count n-grams of")
        return NGramLM.of_rows(rows, len(target), language.order or 5)
    if language.order is not None:
        raise ConfigError("method.language_model.order goes with a text file, found a run")
    other = run.run_at(path)
    model = other.model(run.device)
    if not isinstance(model, LanguageModel | NGramModel):
        raise RunError(f'{path}: found task = "{other.config.task}", expected a text file or a run of "language-model"')
    theirs = other.tokenizers()[1]
    if theirs.fingerprint() != target.fingerprint():
        raise RunError(
            f"{path}: found a vocabulary of {len(theirs):,} {theirs.kind}, expected the very same as the targets of "
            f"{run.run.folder} ({len(target):,} {target.kind})"
        )
    return NGramLM(model) if isinstance(model, NGramModel) else NeuralLM(model, str(path))


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
class CTCFusionSearch(OpenMethod):
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
class AttentionSearch(OpenMethod):
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
class JointSearch(OpenMethod):
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
