"""Decoding of a transcriber: CTC, its attention decoder or both (Watanabe et al. 2017), and a language model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from dragoman.base import ConfigError, DataError, RunError
from dragoman.classical import NGramConfig, NGramModel, Ragged, is_arpa, read_arpa
from dragoman.data import pad_tokens, token_batch
from dragoman.data.readers import read_lines
from dragoman.data.tokenizers import EOS, SOS
from dragoman.decoding.beam import BeamOptions, beam_search
from dragoman.decoding.hypothesis import SUPPRESSED_TOKENS, Hypothesis
from dragoman.decoding.method import OpenMethod, Request, distinct
from dragoman.decoding.method_settings import CTCDecoding, LanguageModelFusion, Mode
from dragoman.decoding.non_autoregressive import BLANK, LMFusion, decode_ctc
from dragoman.decoding.scorer import NEG_INF, Scorer
from dragoman.models import CTCEmissions, LanguageModel, State, Transcriber, join_tensors
from dragoman.models.heads import teacher_inputs
from dragoman.models.layers import ctc_log_probability


def open_ctc(settings: CTCDecoding, run: Any, model: Any) -> TranscriberSearch | None:
    """The search of a transcriber; None: CTC alone, which is its own."""
    if not isinstance(model, Transcriber):
        raise ConfigError(
            f'method: ctc goes with task = "transcribe" and CTC (model.kind = "transcriber"); {run.run.folder} has '
            f'task = "{run.config.task}", model.kind = "{getattr(run.config.model, "kind", "")}"'
        )
    fusion = None
    if (language := settings.language_model) is not None:
        fusion = LMFusion(language_scorer(run, language), language.weight, language.bonus)
    if settings.mode == "ctc" and fusion is None:
        return None
    return TranscriberSearch(settings.mode, 0.3 if settings.ctc_weight is None else settings.ctc_weight, fusion)


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


def attention_search(model: Any, request: Request, n_best: int) -> list[list[Hypothesis]]:
    """Beam search with the attention decoder alone."""
    options, scorer = BeamOptions.of(request.config, n_best), Scorer.from_config(request.config)
    return beam_search(model.step, model.start(request.batch), request.limits, options, scorer)


@dataclass(frozen=True)
class TranscriberSearch(OpenMethod):
    """Searches with CTC, with the attention decoder, or with both.

    Both together rank the outputs of either search by w · log p of CTC + (1 − w) · log p of the attention decoder.
    """

    mode: Mode
    ctc_weight: float = 0.3  # w
    fusion: LMFusion | None = None  # takes part in CTC's search and in the rank

    @torch.no_grad()
    def search(self, request: Request) -> list[list[Hypothesis]]:
        model = cast(Any, request.model)
        if self.mode != "ctc" and getattr(model, "attention_decoder", None) is None:
            name = "joint search" if self.mode == "joint" else "search by attention"
            raise ConfigError(
                f"{name} needs a model with CTC and a decoder beside it (model.attention_decoder.kind = 'joint')"
            )
        if self.mode == "attention":
            return attention_search(model, request, request.n_best)
        emissions = model.emissions(request.batch, request.limits, max(request.config.beam, request.n_best))
        if self.mode == "ctc":
            return decode_ctc(emissions, request.limits, request.config, request.n_best, self.fusion)
        return self._by_both(model, emissions, request)

    def _by_both(self, model: Any, emissions: CTCEmissions, request: Request) -> list[list[Hypothesis]]:
        scorer, width = Scorer.from_config(request.config), max(request.config.beam, request.n_best)
        by_ctc = decode_ctc(emissions, request.limits, request.config, width, self.fusion)
        by_attention = attention_search(model, request, width)
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
        self, model: Any, emissions: CTCEmissions, state: State, row: int, texts: list[tuple[int, ...]]
    ) -> list[tuple[float, ...]]:
        """Weighted log-probabilities of every token of one source's texts; CTC's are spread evenly over a text."""
        device = emissions.lengths.device
        target = pad_tokens(texts).to(device)  # (k, L) with <eos>
        sizes = torch.tensor([len(text) for text in texts], device=device)
        log_probabilities, _ = model.read(teacher_inputs(target), state.expand(len(texts)))
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


# --- Language models for shallow fusion


MAX_CACHED = 50_000_000  # log-probabilities that an n-gram model keeps
Text = tuple[int, ...]


class NGramLM:
    """The distribution of the next token after the last n − 1; a `LanguageModelScorer`."""

    def __init__(self, model: NGramModel) -> None:
        self.model = model
        self._cache: dict[Text, Tensor] = {}

    @classmethod
    def of_rows(cls, rows: Iterable[Sequence[int]], vocabulary: int, order: int = 5) -> NGramLM:
        """Count the n-grams of up to `order` tokens in texts (token ids without <eos>)."""
        return cls(NGramModel(NGramConfig(order), vocabulary).fit_rows(Ragged.of(list(rows))))

    def __call__(self, texts: Sequence[Text]) -> Tensor:
        """Log-probabilities (N, V) of the next token of each text, <eos> included; −∞ for tokens never output."""
        return torch.stack([self.next_token(text) for text in texts])

    def next_token(self, text: Text) -> Tensor:
        history = (SOS, *text)[-max(1, self.model.order - 1) :]
        if history not in self._cache:
            if len(self._cache) * self.model.vocabulary > MAX_CACHED:
                self._cache.clear()
            logs = torch.from_numpy(self.model.distribution(history))
            logs[list(SUPPRESSED_TOKENS)] = float("-inf")
            self._cache[history] = logs
        return self._cache[history]


class CachedTexts(NamedTuple):
    """Texts of one length that a neural model has read."""

    rows: dict[Text, int]
    log_probabilities: Tensor  # (N, V) of the next token
    state: State


class NeuralLM:
    """The same by a neural language model, which reads a text as a line of its own.

    Texts of the last call, and those that are one token longer, are not read again from their start.
    """

    def __init__(self, model: Any, name: str = "the language model") -> None:
        """`model` is a LanguageModel in evaluation mode; `name` is for error messages."""
        self.model, self.name = model, name
        self.cached: dict[int, CachedTexts] = {}  # by length

    @torch.no_grad()
    def __call__(self, texts: Sequence[Text]) -> Tensor:
        """Log-probabilities (N, V) of the next token of each text; −∞ for tokens that are never output."""
        by_length: dict[int, list[Text]] = {}
        for text in dict.fromkeys(texts):
            by_length.setdefault(len(text), []).append(text)
        cached: dict[int, CachedTexts] = {}
        for length in sorted(by_length):
            try:
                cached[length] = self._read(by_length[length], cached.get(length - 1))
            except DataError as error:  # longer than the model can read
                raise DataError(f"{self.name}: {error}") from None
        self.cached = cached
        rows = [(cached[len(text)], text) for text in texts]
        out = torch.stack([known.log_probabilities[known.rows[text]] for known, text in rows]).double()
        out[:, list(SUPPRESSED_TOKENS)] = float("-inf")
        return out

    def _read(self, texts: list[Text], shorter: CachedTexts | None) -> CachedTexts:
        """Read texts of one length; `shorter` are texts one token shorter that were read in the same call."""
        length, rest = len(texts[0]), texts
        blocks: list[tuple[list[Text], Tensor, State]] = []
        older = self.cached.get(length - 1)
        for known, size in ((self.cached.get(length), length), (shorter, length - 1), (older, length - 1)):
            if known is not None and (own := [text for text in rest if text[:size] in known.rows]):
                rows = [known.rows[text[:size]] for text in own]
                log_probabilities, state = known.log_probabilities[rows], known.state.select(self._tensor(rows))
                if size < length:
                    log_probabilities, state = self.model.step(self._tensor([text[-1] for text in own]), state)
                blocks.append((own, log_probabilities.cpu(), state))
                rest = [text for text in rest if text[:size] not in known.rows]
        if rest:
            source = torch.full((len(rest), 1), EOS, device=self._device)  # a line begins where the last one ended
            state = self.model.start(token_batch(source))
            log_probabilities, state = self.model.step(self._tensor([[SOS, *text] for text in rest]), state)
            blocks.append((rest, log_probabilities.cpu(), state))
        order, outputs, states = zip(*blocks, strict=True)
        state = states[0]._replace(
            static=join_tensors([state.static for state in states]),
            cache=join_tensors([state.cache for state in states]),
        )
        return CachedTexts({text: row for row, text in enumerate(chain(*order))}, torch.cat(outputs), state)

    @property
    def _device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    def _tensor(self, numbers: Any) -> Tensor:
        return torch.tensor(numbers, device=self._device)
