"""Sequence tagging: any encoder and one tag per word, with or without a linear-chain CRF."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import Share, setting
from dragoman.data import NO_TAG, Batch
from dragoman.data.tokenizers import EOS, PAD
from dragoman.models.contracts import ClassifierOutput, Loss, TokenScores
from dragoman.models.encoders.character_words import CharacterWordsConfig
from dragoman.models.encoders.dense import DenseEncoderConfig
from dragoman.models.encoders.frames import FramesConfig
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.heads.softmax import full_precision
from dragoman.models.layers.augmentation import AugmentationConfig, NoAugmentationConfig
from dragoman.models.layers.crf import LinearChainCRF
from dragoman.models.layers.linear import glorot
from dragoman.models.registry import AnyEncoderConfig
from dragoman.models.sources import LabelModel


@dataclass(frozen=True)
class TaggerConfig:
    """One tag per word, step of a series or frame of a recording; words may consist of several tokens."""

    kind: ClassVar[str] = "tagger"
    read: Literal["first", "mean"] = setting(
        "first", help="vector of a word of several tokens: that of its first token, or the mean of all"
    )
    crf: bool = setting(False, help="linear-chain conditional random field over the tags")
    dropout: Share = setting(0.3, help="dropout on the vectors of words")
    word_dropout: Share = setting(0.0, help="share of input tokens replaced by <unk> during training")
    label_smoothing: Share = setting(0.0, help="share of the target probability spread over all tags; not with crf")
    augment: AugmentationConfig = setting(
        NoAugmentationConfig(), help="data augmentation of recordings during training"
    )
    encoder: AnyEncoderConfig = setting(RecurrentEncoderConfig(), help="encoder of the sentence, series or recording")

    def problems(self) -> Iterator[str]:
        if self.crf and self.label_smoothing:
            yield f"label_smoothing: found {self.label_smoothing}, expected 0 with crf"
        if isinstance(self.encoder, DenseEncoderConfig):
            yield "encoder: 'dense' has no entry per word; take another kind, such as model.encoder.kind=recurrent"
        if isinstance(self.encoder, FramesConfig) and self.read == "mean":
            yield "read: found 'mean', but frames have one vector each; leave it out"
        if isinstance(self.encoder, CharacterWordsConfig) and self.read == "mean":
            yield "read: found 'mean', but 'character-words' gives one vector per word; leave it out"


class Tagger(LabelModel):
    """Tags words, steps or frames; targets (B, 2, W) are tags, and the first token of each word."""

    def __init__(self, config: TaggerConfig, inputs: nn.Module, tags: int, *, keep_from: int) -> None:
        super().__init__(config, inputs, keep_from)
        # how many frames of a recording one entry of the memory stands for
        self.stride = config.encoder.subsampling.stride if isinstance(config.encoder, FramesConfig) else 1
        self.by_word = isinstance(config.encoder, CharacterWordsConfig)  # the memory has one entry per word
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(self.encoder.width, tags)
        glorot(self.output)
        self.chain = LinearChainCRF(tags) if config.crf else None

    def words(self, batch: Batch) -> Tensor:
        """One vector (B, W, D) per word."""
        starts = batch.target[:, 1]
        states = self.encoder(self.word_dropout(batch.source.data), batch.source.mask).values
        if self.by_word:
            words = starts.shape[1]
            # A batch may be wider than its longest sentence; the zeros added there are never read.
            return F.pad(states, (0, 0, 0, max(0, words - states.shape[1])))[:, :words]
        if self.stride > 1:
            starts = (starts // self.stride).clamp(max=states.shape[1] - 1)
        if self.config.read == "first":
            return states.gather(1, starts[:, :, None].expand(-1, -1, states.shape[2]))
        return self.means(states, batch.source.data, batch.target)

    def means(self, states: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """The mean over the tokens of each word, without spaces and <eos>."""
        tags, starts = target[:, 0], target[:, 1]
        source = source[:, : states.shape[1]]  # some encoders drop columns of padding
        starts = torch.where(tags == NO_TAG, source.shape[1], starts)  # padding lies beyond every token
        positions = torch.arange(source.shape[1], device=source.device).expand_as(source).contiguous()
        word = torch.searchsorted(starts, positions, right=True) - 1  # (B, S) the word of each token
        inside = (source != EOS) & (source != PAD) & (word >= 0)
        if self.space is not None:
            inside = inside & (source != self.space)
        weight = inside.to(states.dtype)[:, :, None]
        index = word.clamp(min=0)[:, :, None]
        totals = states.new_zeros(*starts.shape, states.shape[2])
        totals = totals.scatter_add(1, index.expand_as(states), (states * weight).to(totals.dtype))
        counts = states.new_zeros(*starts.shape, 1).scatter_add(1, index, weight)
        return totals / counts.clamp(min=1)

    def outputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (B, W, K) of every word's tag, at least float32, and the mask (B, W)."""
        return full_precision(self.output(self.dropout(self.words(batch)))), batch.target[:, 0] != NO_TAG

    def forward(self, batch: Batch) -> Loss:
        """Summed negative log-probability of the tags, or of the CRF's tag sequences, and the number of words."""
        scores, mask = self.outputs(batch)
        tags = batch.target[:, 0]
        if self.chain is not None:
            return Loss(-self.chain.log_probability(scores, tags, mask).sum(), mask.sum())
        smoothing = self.config.label_smoothing if self.training else 0.0
        losses = F.cross_entropy(
            scores.flatten(0, 1), tags.flatten(), ignore_index=NO_TAG, reduction="sum", label_smoothing=smoothing
        )
        return Loss(losses, mask.sum())

    def score(self, batch: Batch) -> TokenScores:
        """Log-probability of every tag (with a CRF its marginal), and whether it is the prediction."""
        output, tags = self.predict(batch), batch.target[:, 0]
        assert output.probabilities is not None
        chosen = output.probabilities.gather(2, tags.clamp(min=0)[:, :, None])[:, :, 0]
        logs = chosen.clamp(min=torch.finfo(chosen.dtype).tiny).log() * output.mask
        return TokenScores(logs, (output.values == tags) & output.mask, output.mask)

    def predict(self, batch: Batch) -> ClassifierOutput:
        """The most probable tag of each word, or tag sequence of the CRF (B, W), and probabilities (B, W, K)."""
        scores, mask = self.outputs(batch)
        if self.chain is None:
            return ClassifierOutput(scores.argmax(-1), scores.softmax(-1), mask)
        return ClassifierOutput(self.chain.viterbi(scores, mask), self.chain.marginals(scores, mask), mask)
