"""Masked language models (BERT; Devlin et al. 2019), with optional next-sentence prediction.

15 % of the tokens of a row are predicted. Of these, [MASK] replaces 80 %, a random token replaces 10 %, and 10 % stay.
Their number depends only on the row's length, so all shapes are known without waiting for the GPU. Training samples
their positions with torch's generator. Validation derives them from a hash of the row, so that validations compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import Range, Share, setting
from dragoman.data import Batch, Segment
from dragoman.data.tokenizers import EOS, PAD, SPECIALS
from dragoman.models.contracts import BaseModel, Loss, Memory, TokenScores
from dragoman.models.encoders.bert import BertEncoder, BertEncoderConfig
from dragoman.models.heads.softmax import CrossEntropy, full_precision, token_scores
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.feed_forward import ACTIVATIONS
from dragoman.models.layers.linear import FirstRowsLinear, Linear, glorot
from dragoman.models.transformer import build_norm


@dataclass(frozen=True)
class MaskedLMConfig:
    """A masked language model, to pretrain the encoder of other tasks."""

    kind: ClassVar[str] = "masked-lm"
    mlm_probability: Annotated[float, Range(0.0, 1.0, exclusive_minimum=True)] = setting(
        0.15, help="share of the tokens of a row that are predicted, at least one"
    )
    mask_replace: Annotated[float, Range(0.0, 1.0)] = setting(0.8, help="share of these that [MASK] replaces")
    random_replace: Annotated[float, Range(0.0, 1.0)] = setting(0.1, help="share of these that a random token replaces")
    label_smoothing: Share = setting(0.0, help="share of the target probability spread over the vocabulary")
    next_sentence: bool = setting(
        False, help="next-sentence prediction: rows are two texts; the second is the next one, or another one"
    )
    encoder: BertEncoderConfig = setting(BertEncoderConfig(), help="the encoder that is pretrained")

    def problems(self) -> Iterator[str]:
        if self.mask_replace + self.random_replace > 1.0:
            limit = 1 - self.mask_replace
            yield (
                f"random_replace: found {self.random_replace}, expected at most {limit:g} with "
                f"mask_replace = {self.mask_replace}"
            )
        if self.next_sentence and self.encoder.segments < 2:
            yield f"next_sentence: found true with encoder.segments = {self.encoder.segments}, expected at least 2"


class MaskedBatch(NamedTuple):
    """A batch with some of its tokens masked."""

    source: Tensor  # (B, S) tokens, some of them replaced by random ones
    masked: Tensor  # (B, S) True where [MASK] replaces the token
    positions: Tensor  # (B, K) of the tokens to predict
    target: Tensor  # (B, K) the original tokens; <pad> where a row has fewer than K


def num_masked(lengths: Tensor | NDArray[np.int64], share: float) -> Tensor:
    """How many tokens are predicted of rows with these lengths, counted without <eos>."""
    lengths = torch.as_tensor(lengths)
    wanted = (lengths.double() * share + 0.5).floor().long()
    return torch.minimum(wanted.clamp(min=1), lengths)


RandomDraw = Callable[[int, int], Tensor]  # (stream, width) → numbers (B, width) in [0, 1); streams are independent


GOLDEN = -7046029254386353131  # 2⁶⁴ / φ as a signed number


def splitmix64(bits: Tensor) -> Tensor:
    """Hash 64-bit integers (splitmix64; Steele et al. 2014)."""

    def shifted(x: Tensor, by: int) -> Tensor:
        return (x >> by) & ((1 << (64 - by)) - 1)  # a logical shift: the sign bit is moved too

    bits = bits + GOLDEN
    bits = (bits ^ shifted(bits, 30)) * -4658895280553007687
    bits = (bits ^ shifted(bits, 27)) * -7723592293110705685
    return bits ^ shifted(bits, 31)


class MaskedLM(BaseModel):
    """Predicts the masked tokens of a row."""

    def __init__(self, config: MaskedLMConfig, vocabulary: int) -> None:
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        width = config.encoder.width
        embedding = TokenEmbedding(vocabulary, width, PAD)
        embedding.sides = ("source",)
        self.encoder = BertEncoder(config.encoder, embedding)
        # Not a row of the table, so that the table fits tasks without [MASK].
        self.mask_vector = nn.Parameter(torch.randn(width) * width**-0.5)
        self.transform = Linear(width, width)
        self.activation = ACTIVATIONS[config.encoder.activation]
        self.transform_norm = build_norm(config.encoder.stack)
        self.output = FirstRowsLinear(width, vocabulary)
        self.output.weight = embedding.weight
        self.cross_entropy = CrossEntropy()
        nn.init.zeros_(self.output.bias)
        glorot(self.transform)
        self.pooler = Linear(width, width) if config.next_sentence else None
        self.next_sentence = Linear(width, 2) if config.next_sentence else None
        for linear in (self.pooler, self.next_sentence):
            if linear is not None:
                glorot(linear)

    def mask_tokens(self, source: Tensor, mask: Tensor, counts: Tensor | None = None) -> MaskedBatch:
        """Choose and replace the tokens to predict; counts (B,): how many of each row, else as `num_masked` says."""
        config, device = self.config, source.device
        maskable = mask & (source != EOS)
        size = max(1, int(source.shape[1] * config.mlm_probability + 0.5))  # K: the most that a row can have
        if counts is None:
            counts = num_masked(maskable.sum(1), config.mlm_probability)
        else:
            size = min(size + 1, source.shape[1])  # the numbers of both texts of a row may be rounded up
        draw = self._draw(source, mask)
        priority = draw(0, source.shape[1]).masked_fill(~maskable, 2.0)
        positions = priority.topk(size, largest=False, sorted=True).indices  # (B, K), not maskable ones last
        real = torch.arange(size, device=device) < counts[:, None]
        target = source.gather(1, positions).masked_fill(~real, PAD)
        choice = draw(1, size)
        masked = real & (choice < config.mask_replace)
        replaced = real & (choice >= config.mask_replace) & (choice < config.mask_replace + config.random_replace)
        first = len(SPECIALS)
        others = first + (draw(2, size) * max(1, self.vocabulary - first)).long()
        others = others.clamp(max=self.vocabulary - 1)
        source = source.scatter(1, positions, torch.where(replaced, others, source.gather(1, positions)))
        return MaskedBatch(source, torch.zeros_like(mask).scatter(1, positions, masked), positions, target)

    def _draw(self, rows: Tensor, mask: Tensor) -> RandomDraw:
        """Random numbers from torch's generator in training, from a hash of each row in evaluation."""
        if self.training:
            return lambda stream, width: torch.rand(rows.shape[0], width, device=rows.device)
        positions = torch.arange(rows.shape[1], device=rows.device)
        hashes = (splitmix64(rows * GOLDEN + splitmix64(positions)) * mask).sum(1)  # (B,) of the real tokens

        def uniform(stream: int, width: int) -> Tensor:
            indices = torch.arange(width, device=rows.device) + (stream << 32)
            bits = splitmix64(hashes[:, None] ^ splitmix64(indices))
            return ((bits >> 11) & ((1 << 53) - 1)).double() / float(1 << 53)

        return uniform

    def logits(self, memory: Memory, positions: Tensor) -> Tensor:
        """Logits (B, K, V) of the tokens at positions (B, K)."""
        hidden = memory.values.gather(1, positions[:, :, None].expand(-1, -1, memory.values.shape[2]))
        return self.output(self.transform_norm(self.activation(self.transform(hidden))))

    def _rows(self, batch: Batch | Segment) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Input rows (B, S); with next-sentence prediction also its labels (B,) and how many tokens to mask (B,).

        Of every text as many tokens are masked as if it were alone. Every second text is in exactly one row, so the
        total number does not depend on the swaps.
        """
        if not self.config.next_sentence:
            return batch.source.data, None, None
        first, second = batch.source.data, batch.target
        partners = swap_partners(self._draw(first, first != PAD)(3, 1)[:, 0] >= 0.5)
        is_next = partners == torch.arange(len(partners), device=partners.device)
        second = second[partners]
        texts = ((tokens != PAD) & (tokens != EOS) for tokens in (first, second))
        counts = sum(num_masked(text.sum(1), self.config.mlm_probability) for text in texts)
        assert isinstance(counts, Tensor)
        return concatenate_rows(first, second), is_next, counts

    def _predict(self, batch: Batch | Segment) -> tuple[MaskedBatch, Tensor, Tensor | None, Tensor | None]:
        """The masked batch and its logits; with next-sentence prediction also the logits (B, 2) and labels (B,)."""
        source, is_next, counts = self._rows(batch)
        mask = source != PAD
        masked = self.mask_tokens(source, mask, counts)
        memory = self.encoder(masked.source, mask, masked.masked, self.mask_vector)
        next_logits = None
        if self.pooler is not None and self.next_sentence is not None:
            next_logits = self.next_sentence(torch.tanh(self.pooler(memory.final[0])))  # (B, 2)
        return masked, self.logits(memory, masked.positions), next_logits, is_next

    def forward(self, batch: Batch | Segment) -> Loss:
        """Summed cross-entropy of the masked tokens, and their number.

        The next-sentence loss of a row is weighted with its number of masked tokens, so that the sum stays one over
        tokens.
        """
        masked, logits, next_logits, is_next = self._predict(batch)
        smoothing = self.config.label_smoothing if self.training else 0.0
        total = self.cross_entropy(logits, masked.target, smoothing).sum()
        if next_logits is not None and is_next is not None:
            total = total + self._next_sentence_loss(masked, next_logits, is_next)
        return Loss(total, (masked.target != PAD).sum())

    def _next_sentence_loss(self, masked: MaskedBatch, logits: Tensor, is_next: Tensor) -> Tensor:
        losses = F.cross_entropy(full_precision(logits), is_next.long(), reduction="none")
        return (losses * (masked.target != PAD).sum(1)).sum()

    def score(self, batch: Batch | Segment) -> TokenScores:
        """Score the masked tokens; in evaluation mode the same tokens are masked each time."""
        masked, logits, _, _ = self._predict(batch)
        return token_scores(logits, masked.target)

    def score_pairs(self, batch: Batch | Segment) -> tuple[TokenScores, Tensor, Tensor]:
        """Like `score`, with the summed next-sentence loss and the number of correct next-sentence predictions."""
        masked, logits, next_logits, is_next = self._predict(batch)
        assert next_logits is not None
        assert is_next is not None
        loss = self._next_sentence_loss(masked, next_logits, is_next)
        return token_scores(logits, masked.target), loss, (next_logits.argmax(1) == is_next.long()).sum()

    def fill(self, source: Tensor, mask: Tensor, masked: Tensor) -> Tensor:
        """Log-probabilities (B, S, V) at every position, with [MASK] where `masked` (B, S) is True."""
        memory = self.encoder(source, mask, masked, self.mask_vector)
        positions = torch.arange(source.shape[1], device=source.device).expand_as(source)
        return full_precision(self.logits(memory, positions)).log_softmax(-1)


def swap_partners(chosen: Tensor) -> Tensor:
    """The row (B,) whose second text each row takes: chosen rows rotate them in a ring, others keep their own."""
    rows = torch.arange(len(chosen), device=chosen.device)
    count, rank = chosen.sum(), chosen.cumsum(0) - 1
    ring = rows.new_zeros(len(chosen) + 1)  # the chosen rows in order; the last entry collects all others
    ring = ring.scatter(0, torch.where(chosen, rank, len(chosen)), rows)
    return torch.where(chosen, ring[(rank - 1).remainder(count.clamp(min=1))], rows)


def concatenate_rows(first: Tensor, second: Tensor) -> Tensor:
    """Concatenate the rows of (B, S) and (B, T) without padding between them: (B, S+T)."""
    lengths = (first != PAD).sum(1, keepdim=True)
    width = first.shape[1] + second.shape[1]
    positions = torch.arange(width, device=first.device).expand(first.shape[0], -1)
    left = F.pad(first, (0, width - first.shape[1]), value=PAD)
    offsets = (positions - lengths).clamp(min=0, max=second.shape[1] - 1)
    right = second.gather(1, offsets).masked_fill(positions - lengths >= second.shape[1], PAD)
    return torch.where(positions < lengths, left, right)
