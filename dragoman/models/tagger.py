"""Many → many, aligned (FIELD A3): any encoder, one tag a word, with or without a chain over tags."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import Share, setting
from dragoman.data.batch import Batch
from dragoman.data.collate import NO_TAG
from dragoman.data.tokenizers.base import EOS, PAD, UNK
from dragoman.layers.blocks import drop_words, glorot
from dragoman.layers.crf import LinearChain
from dragoman.models.classifier import waits
from dragoman.models.contracts import ClassifierOutput, Encoder, Loss, TokenScores
from dragoman.models.encoder_decoder import ENCODERS, EncoderConfig
from dragoman.models.encoders.character_words import CharacterWordsConfig
from dragoman.models.encoders.dense import DenseEncoderConfig
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.heads.softmax import full_precision


@dataclass(frozen=True)
class TaggerConfig:
    """A reader of words that are spelled in any units."""

    kind: ClassVar[str] = "tagger"
    read: Literal["first", "mean"] = setting(
        "first", help="a word of several tokens is read at its first one, or as the mean of them"
    )
    crf: bool = setting(False, help="neighbouring tags know each other: a linear-chain conditional random field")
    dropout: Share = setting(0.3, help="on the vectors of words")
    word_dropout: Share = setting(0.0, help="share of input tokens replaced by <unk> while training")
    label_smoothing: Share = setting(0.0, help="share of the probability spread over all tags; not with crf")
    encoder: EncoderConfig = setting(RecurrentEncoderConfig(), help="what reads the sentence")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        if self.crf and self.label_smoothing:
            yield f"label_smoothing: found {self.label_smoothing}, expected 0 with crf, which smooths no labels"
        if isinstance(self.encoder, DenseEncoderConfig):
            yield "encoder: 'dense' leaves no entry of its own for a word, expected another kind"
        if isinstance(self.encoder, CharacterWordsConfig) and self.read == "mean":
            yield "read: found 'mean', but 'character-words' makes one vector a word already; leave it out"


class Tagger(nn.Module):
    """Reads a sentence, gives every word a tag; targets (B, 2, W) are tags and the places of words."""

    encoder: Encoder
    max_positions = None
    has_unused_parameters = True  # nothing reads the encoder's final states

    def __init__(self, config: TaggerConfig, embedding: nn.Module, tags: int, *, keep_from: int) -> None:
        """Token ids from `keep_from` on are no words and never dropped."""
        super().__init__()
        self.config, self.keep_from = config, keep_from
        self.space: int | None = getattr(embedding, "space", None)
        self.encoder = ENCODERS[type(config.encoder)](config.encoder, embedding)
        self.by_word = isinstance(config.encoder, CharacterWordsConfig)  # the memory has one entry a word
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(self.encoder.width, tags)
        glorot(self.output)
        self.chain = LinearChain(tags) if config.crf else None

    @property
    def graph_blockers(self) -> list[str]:
        """Why a training step cannot be captured and repeated by the GPU."""
        return waits(self.config.encoder)

    def set_step(self, step: int) -> None:
        """Nothing in it follows a schedule."""

    def words(self, batch: Batch) -> Tensor:
        """One vector for each word: (B, W, D)."""
        source, places = batch.source, batch.target[:, 1]
        if self.training and self.config.word_dropout:
            share = self.config.word_dropout
            source = drop_words(source, share, UNK, keep_below=4, keep_from=self.keep_from, keep=self.space)
        memory = self.encoder(source, batch.source_mask)
        states = memory.values
        if self.by_word:
            words = places.shape[1]
            # Rounded up, a batch may be wider than its longest sentence; what is added there is never read.
            return F.pad(states, (0, 0, 0, max(0, words - states.shape[1])))[:, :words]
        if self.config.read == "first":
            return states.gather(1, places[:, :, None].expand(-1, -1, states.shape[2]))
        return self.means(states, batch.source, batch.target)

    def means(self, states: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """The mean over the tokens of each word, spaces and <eos> left out."""
        tags, places = target[:, 0], target[:, 1]
        source = source[:, : states.shape[1]]  # some encoders leave out columns of padding
        begins = torch.where(tags == NO_TAG, source.shape[1], places)  # beyond every token
        here = torch.arange(source.shape[1], device=source.device).expand_as(source).contiguous()
        word = torch.searchsorted(begins, here, right=True) - 1  # (B, S)
        inside = (source != EOS) & (source != PAD) & (word >= 0)
        if self.space is not None:
            inside = inside & (source != self.space)
        share = inside.to(states.dtype)[:, :, None]
        index = word.clamp(min=0)[:, :, None]
        totals = states.new_zeros(*places.shape, states.shape[2])
        totals = totals.scatter_add(1, index.expand_as(states), (states * share).to(totals.dtype))
        counts = states.new_zeros(*places.shape, 1).scatter_add(1, index, share)
        return totals / counts.clamp(min=1)

    def outputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What every word says of its tag (B, W, K), at least float32, and which words are real (B, W)."""
        return full_precision(self.output(self.dropout(self.words(batch)))), batch.target[:, 0] != NO_TAG

    def forward(self, batch: Batch) -> Loss:
        """Summed negative log-probability of the tags, or of the paths, and how many words there are."""
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
        """Log-probability of every tag, with a chain that over all paths, and whether it would be the answer."""
        found, tags = self.predict(batch), batch.target[:, 0]
        assert found.probabilities is not None
        chosen = found.probabilities.gather(2, tags.clamp(min=0)[:, :, None])[:, :, 0]
        logs = chosen.clamp(min=torch.finfo(chosen.dtype).tiny).log() * found.mask
        return TokenScores(logs, (found.values == tags) & found.mask, found.mask)

    def predict(self, batch: Batch) -> ClassifierOutput:
        """The likeliest tag of every word, or the likeliest path (B, W), and probabilities (B, W, K)."""
        scores, mask = self.outputs(batch)
        if self.chain is None:
            return ClassifierOutput(scores.argmax(-1), scores.softmax(-1), mask)
        return ClassifierOutput(self.chain.best(scores, mask), self.chain.marginals(scores, mask), mask)
