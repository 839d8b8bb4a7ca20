"""Many → one (FIELD A2): any encoder, its states pooled, and one output layer for labels or a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import Share, SizeOrNone, setting
from dragoman.data.batch import Batch
from dragoman.data.tokenizers.base import UNK
from dragoman.layers.blocks import drop_words, glorot
from dragoman.layers.pooling import POOLINGS, MeanConfig, PoolingConfig
from dragoman.models.contracts import ClassifierOutput, Encoder, Loss, TokenScores
from dragoman.models.encoder_decoder import ENCODERS, EncoderConfig
from dragoman.models.encoders.character_words import CharacterWordsConfig
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.heads.softmax import full_precision


@dataclass(frozen=True)
class ClassifierConfig:
    """A reader of one or two texts, or of a series, that gives one answer."""

    kind: ClassVar[str] = "classifier"
    pooling: PoolingConfig = setting(MeanConfig(), help="how the states of a text become one vector")
    texts: Literal["joined", "apart"] = setting(
        "joined",
        help="two texts: read as one with a separator between them, or apart by the same encoder and compared as "
        "[u; v; |u − v|; u ⊙ v]",
    )
    hidden: SizeOrNone = setting(0, help="a layer of this size with tanh before the output; 0: none")
    dropout: Share = setting(0.0, help="on the pooled vector and the hidden layer")
    word_dropout: Share = setting(0.0, help="share of input tokens replaced by <unk> while training")
    label_smoothing: Share = setting(0.0, help="share of the probability spread over all labels")
    encoder: EncoderConfig = setting(RecurrentEncoderConfig(), help="what reads the texts")


def waits(encoder: object) -> list[str]:
    """Why an encoder cannot be captured and repeated by the GPU."""
    counts = isinstance(encoder, CharacterWordsConfig)
    return ["model.encoder 'character-words' counts the words of a batch"] if counts else []


class SeriesInput(nn.Module):
    """Stands where an encoder expects its embeddings: numbers as they are, or each mapped to a vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.randn(width)) if width > 1 else None
        self.register_buffer("like", torch.zeros(()), persistent=False)  # tells the precision the model is in

    like: Tensor

    def forward(self, series: Tensor) -> Tensor:
        """(B, S), NaN where there is none → (B, S, D)."""
        x = series.nan_to_num().to(self.like.dtype)[..., None]
        return x if self.weight is None else x * self.weight


class PooledModel(nn.Module):
    """Reads sources, gives one row of outputs for each."""

    encoder: Encoder
    max_positions = None
    has_unused_parameters = True  # a pooling may leave final states, or all others, unread

    def __init__(self, config: ClassifierConfig, embedding: nn.Module, outputs: int, *, keep_from: int) -> None:
        """Token ids from `keep_from` on are no words and never dropped."""
        super().__init__()
        self.config, self.keep_from = config, keep_from
        self.space: int | None = getattr(embedding, "space", None)
        self.encoder = ENCODERS[type(config.encoder)](config.encoder, embedding)
        self.pooling = POOLINGS[type(config.pooling)](config.pooling, self.encoder.width)
        width = self.pooling.width * (4 if config.texts == "apart" else 1)
        self.dropout = nn.Dropout(config.dropout)
        self.hidden = nn.Linear(width, config.hidden) if config.hidden else None
        self.output = nn.Linear(config.hidden or width, outputs)
        for layer in (self.hidden, self.output):
            if layer is not None:
                glorot(layer)

    @property
    def graph_blockers(self) -> list[str]:
        """Why a training step cannot be captured and repeated by the GPU."""
        return waits(self.config.encoder)

    def set_step(self, step: int) -> None:
        """Nothing in it follows a schedule."""

    def pooled(self, source: Tensor, mask: Tensor) -> Tensor:
        """One vector for each source (B, S): (B, P)."""
        if self.training and self.config.word_dropout:
            share = self.config.word_dropout
            source = drop_words(source, share, UNK, keep_below=4, keep_from=self.keep_from, keep=self.space)
        memory = self.encoder(source, mask)
        out: Tensor = self.pooling(memory.values, memory.mask, memory.final[-1])
        return out

    def outputs(self, batch: Batch) -> Tensor:
        """(B, K), at least float32."""
        source, mask = batch.source, batch.source_mask
        if source.dim() == 3:  # (B, 2, S)
            both = self.pooled(source.flatten(0, 1), mask.flatten(0, 1))
            one, other = both[0::2], both[1::2]
            vector = torch.cat([one, other, (one - other).abs(), one * other], 1)
        else:
            vector = self.pooled(source, mask)
        vector = self.dropout(vector)
        if self.hidden is not None:
            vector = self.dropout(torch.tanh(self.hidden(vector)))
        return full_precision(self.output(vector))


class Classifier(PooledModel):
    """One of several labels; targets (B, 1)."""

    def forward(self, batch: Batch) -> Loss:
        """Summed cross-entropy and how many rows there are."""
        smoothing = self.config.label_smoothing if self.training else 0.0
        truth = batch.target[:, 0]
        total = F.cross_entropy(self.outputs(batch), truth, reduction="sum", label_smoothing=smoothing)
        return Loss(total, torch.ones_like(truth).sum())

    def score(self, batch: Batch) -> TokenScores:
        """Log-probability of each row's label, and whether it was the first choice."""
        outputs = self.outputs(batch)
        chosen = outputs.log_softmax(-1).gather(1, batch.target)
        return TokenScores(chosen, outputs.argmax(-1, keepdim=True) == batch.target, torch.ones_like(chosen).bool())

    def predict(self, batch: Batch) -> ClassifierOutput:
        """The likeliest label (B, 1) and the probabilities of all (B, 1, K)."""
        probabilities = self.outputs(batch).softmax(-1)[:, None]
        return ClassifierOutput(probabilities.argmax(-1), probabilities, torch.ones_like(probabilities[:, :, 0]).bool())


class Regressor(PooledModel):
    """A number; targets (B, 1), scaled as the codec says."""

    def forward(self, batch: Batch) -> Loss:
        """Summed squared error and how many rows there are."""
        total = F.mse_loss(self.outputs(batch), batch.target.to(self.output.weight.dtype), reduction="sum")
        return Loss(total, torch.ones_like(batch.target).sum())

    def score(self, batch: Batch) -> TokenScores:
        """The squared error, negated; no number is ever right."""
        away = self.outputs(batch) - batch.target
        return TokenScores(-away.square(), torch.zeros_like(away).bool(), torch.ones_like(away).bool())

    def predict(self, batch: Batch) -> ClassifierOutput:
        """The number (B, 1)."""
        outputs = self.outputs(batch)
        return ClassifierOutput(outputs, None, torch.ones_like(outputs).bool())
