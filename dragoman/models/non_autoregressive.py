"""Instant decoding (FIELD C6): no feedback, the whole output at once, over the memory of any encoder.

The memory is given as many positions as the output needs, a stack of layers reads these vectors as an encoder
reads embeddings, and every position writes on its own. What differs is how positions meet tokens: CTC over an
upsampled memory (Libovický and Helcl 2018), or a length that is predicted first (after Gu et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import Share, Size, setting
from dragoman.data.batch import Batch
from dragoman.data.tokenizers.base import EOS, PAD, SOS, UNK
from dragoman.layers.blocks import (
    FeedForward,
    FirstRows,
    Residual,
    TokenEmbedding,
    build_embedding,
    drop_words,
    mean_over,
)
from dragoman.layers.ctc import collapsed, needed_positions
from dragoman.layers.resampling import Upsample, resized
from dragoman.models.contracts import CTCEmissions, Encoder, LengthBeam, Loss, Memory, TokenScores
from dragoman.models.encoder_decoder import ENCODERS, EncoderConfig
from dragoman.models.encoders.character_words import Vectors
from dragoman.models.encoders.recurrent import RecurrentEncoder, RecurrentEncoderConfig
from dragoman.models.heads.softmax import full_precision
from dragoman.models.transformer import TransformerConfig, TransformerEncoder


@dataclass(frozen=True)
class FeedForwardStackConfig:
    """Feed-forward layers at every position alike; only the encoder lets positions see each other."""

    kind: ClassVar[str] = "feed-forward"
    layers: Size = setting(1, help="feed-forward layers in the stack")
    width: Size = setting(512, help="size of the vectors that flow through")
    feedforward: Size = setting(2048, help="inner size of the feed-forward layers")
    activation: Literal["relu", "gelu", "silu"] = setting("relu", help="inside the feed-forward layers")
    dropout: Share = setting(0.1, help="on the input and on what each layer adds")

    @property
    def embedding(self) -> int:
        """Width of the vectors this stack reads."""
        return self.width


@dataclass(frozen=True)
class CTCConfig:
    """Connectionist temporal classification (FIELD G6, Graves et al. 2006) over an upsampled memory.

    A target with more tokens (and blanks between equal neighbours) than `upsample` × entries of the memory, which are
    the source tokens with <eos> for most encoders, has no path: it gives no loss and no scores, and `dragoman check`
    counts such pairs. The blank is the output of <pad>, which is never written otherwise: no class is added, and tied
    tables keep their size.
    """

    kind: ClassVar[str] = "ctc"
    upsample: Size = setting(3, help="positions written for each source token")


@dataclass(frozen=True)
class LengthPredictorConfig:
    """The length first, then one token a position.

    A longer target than `longest` gives no loss and no scores, and `dragoman check` counts such pairs.
    """

    kind: ClassVar[str] = "length"
    longest: Size = setting(256, help="most tokens that can be written")


ParallelDecoderConfig = TransformerConfig | RecurrentEncoderConfig | FeedForwardStackConfig
AlignmentConfig = CTCConfig | LengthPredictorConfig


@dataclass(frozen=True)
class NonAutoregressiveConfig:
    """A source reader, and a writer of the whole target at once."""

    kind: ClassVar[str] = "non-autoregressive"
    tie: Literal["none", "all"] = setting("none", help="share embeddings: none; all: the output is the source table")
    word_dropout: Share = setting(0.0, help="share of source tokens replaced by <unk> while training")
    label_smoothing: Share = setting(0.0, help="share of the probability spread over the vocabulary")
    encoder: EncoderConfig = setting(TransformerConfig(), help="what reads the source")
    decoder: ParallelDecoderConfig = setting(TransformerConfig(), help="what reads the positions and writes the target")
    alignment: AlignmentConfig = setting(CTCConfig(), help="how positions meet target tokens")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        if self.tie == "all" and self.encoder.embedding != self.decoder.width:
            yield (
                f"tie: 'all' needs a decoder as wide as the source embeddings, found {self.decoder.width} and "
                f"{self.encoder.embedding}"
            )
        if isinstance(self.decoder, RecurrentEncoderConfig) and self.decoder.embedding == 0:
            yield "decoder.embedding: found 0, expected a size: positions have no number of their own"


class FeedForwardStack(nn.Module):
    """Residual feed-forward layers with a norm before each and one at the end."""

    def __init__(self, config: FeedForwardStackConfig, embedding: nn.Module) -> None:
        super().__init__()
        self.width = config.width
        self.embedding = embedding
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            FeedForward(config.width, config.feedforward, config.activation, 0.0) for _ in range(config.layers)
        )
        self.around = nn.ModuleList(Residual(config.width, "pre", config.dropout) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """source is what the embedding reads, mask (B, S)."""
        x = self.dropout(self.embedding(source))
        for layer, around in zip(self.layers, self.around, strict=True):
            assert isinstance(around, Residual)
            x = around.leave(x, layer(around.enter(x)))
        x = self.norm(x)
        return Memory(keys=x, values=x, mask=mask, final=(mean_over(x, mask),))


Write = Callable[[Tensor, Tensor], Tensor]  # vectors (B, T, E) and their mask → log-probabilities (B, T, V)


class CTCHead(nn.Module):
    """Every source position becomes several; a text is as probable as all its paths together."""

    max_positions = None

    def __init__(self, config: CTCConfig, memory_width: int, width: int) -> None:
        super().__init__()
        self.upsample = Upsample(memory_width, width, config.upsample)

    def write(self, write: Write, memory: Memory) -> CTCEmissions:
        """What every position says."""
        vectors, mask = self.upsample(memory.values, memory.mask)
        return CTCEmissions(write(vectors, mask), mask.sum(1))

    def emissions(self, write: Write, memory: Memory, limits: Tensor, candidates: int) -> CTCEmissions:
        """The same; how many tokens it makes is for the search to find out."""
        return self.write(write, memory)

    def positions(self, source: int, target: int) -> int:
        """Several for each source position."""
        return self.upsample.factor * source

    def reachable(self, memory_mask: Tensor, target: Tensor) -> Tensor:
        """Which targets (B,) have a path."""
        return needed_positions(target, sizes_of(target)) <= self.upsample.factor * memory_mask.sum(1)

    def loss(self, write: Write, memory: Memory, target: Tensor, smoothing: float) -> Tensor:
        """−log p of every row, mixed with the cross-entropy to the uniform distribution at every position; ()."""
        written = self.write(write, memory)
        total = self.negative_log_probability(written, target).sum()
        if smoothing:
            real = torch.arange(written.log_probabilities.shape[1], device=target.device) < written.lengths[:, None]
            real = real & self.reachable(memory.mask, target)[:, None]
            uniform = -(written.log_probabilities.mean(-1) * real).sum()
            total = (1 - smoothing) * total + smoothing * uniform
        return total

    def score(self, write: Write, memory: Memory, target: Tensor) -> TokenScores:
        """A text's log-probability spread evenly over its tokens, <eos> included, for no token has one of its own.

        A token is correct if the text of the best path has it at the same place, <eos> if both end there.
        """
        written = self.write(write, memory)
        mask = (target != PAD) & self.reachable(memory.mask, target)[:, None]
        each = -self.negative_log_probability(written, target) / (target != PAD).sum(1)
        never = torch.tensor([SOS, EOS], device=target.device)  # no label is one of these
        path = written.log_probabilities.index_fill(-1, never, float("-inf")).argmax(-1)
        best, sizes = collapsed(path, written.lengths, PAD)
        longest = target.shape[1]
        best = F.pad(best, (0, max(0, longest - best.shape[1])), value=PAD)[:, :longest]
        best = best.masked_fill(torch.arange(longest, device=target.device) == sizes[:, None], EOS)
        return TokenScores(each[:, None] * mask, (best == target) & mask, mask)

    def negative_log_probability(self, written: CTCEmissions, target: Tensor) -> Tensor:
        """−log p of every row (B,), 0 for one without a path."""
        return F.ctc_loss(
            written.log_probabilities.transpose(0, 1),
            target,
            written.lengths,
            sizes_of(target),
            blank=PAD,
            reduction="none",
            zero_infinity=True,
        )


class LengthPredictor(nn.Module):
    """p(text) = p(length) ∏ p(token | length): the memory is resized to the length, one token a position."""

    def __init__(self, config: LengthPredictorConfig, memory_width: int, width: int) -> None:
        super().__init__()
        self.longest = config.longest
        self.max_positions = config.longest + 1
        self.length = nn.Linear(memory_width, config.longest + 1)
        self.enter = nn.Linear(memory_width, width)
        for linear in (self.length, self.enter):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def lengths(self, memory: Memory) -> Tensor:
        """Log-probabilities (B, longest + 1) of every number of tokens, <eos> not counted."""
        return full_precision(self.length(mean_over(memory.values, memory.mask))).log_softmax(-1)

    def write(self, write: Write, values: Tensor, mask: Tensor, sizes: Tensor, longest: int) -> Tensor:
        """What the positions say (B, longest, V) when a text has `sizes` tokens."""
        sizes = sizes.clamp(min=1)  # a stack needs something to read, though nothing of it is used
        vectors = self.enter(resized(values, mask.sum(1), sizes, longest))
        return write(vectors, torch.arange(longest, device=sizes.device) < sizes[:, None])

    def emissions(self, write: Write, memory: Memory, limits: Tensor, candidates: int) -> LengthBeam:
        """The most probable lengths within the limits, and what is written for each."""
        lengths = self.lengths(memory)
        beyond = torch.arange(lengths.shape[1], device=limits.device) >= limits[:, None]
        scores, sizes = lengths.masked_fill(beyond, float("-inf")).topk(min(candidates, lengths.shape[1]), 1)
        sizes = sizes.minimum((limits - 1).clamp(min=0)[:, None])  # those of −∞ may be long, and would cost
        several = sizes.shape[1]
        values, mask = (part.repeat_interleave(several, 0) for part in (memory.values, memory.mask))
        longest = max(1, int(sizes.max())) if sizes.numel() else 1
        written = self.write(write, values, mask, sizes.flatten(), longest)
        return LengthBeam(written.view(*sizes.shape, longest, -1), sizes, scores)

    def positions(self, source: int, target: int) -> int:
        """One for each target token."""
        return target

    def reachable(self, memory_mask: Tensor, target: Tensor) -> Tensor:
        """Which targets (B,) are short enough."""
        return sizes_of(target) <= self.longest

    def loss(self, write: Write, memory: Memory, target: Tensor, smoothing: float) -> Tensor:
        """Cross-entropy of the tokens, where the length is the true one, and of the length; ()."""
        within = self.reachable(memory.mask, target)
        sizes = sizes_of(target).clamp(max=self.longest)
        written = self.write(write, memory.values, memory.mask, sizes, target.shape[1])
        chosen = self.chosen(written, target)
        if smoothing:
            chosen = (1 - smoothing) * chosen + smoothing * written.mean(-1)
        tokens = (target != PAD) & (target != EOS) & within[:, None]
        length = self.lengths(memory).gather(1, sizes[:, None])[:, 0]
        return -(chosen * tokens).sum() - (length * within).sum()

    def score(self, write: Write, memory: Memory, target: Tensor) -> TokenScores:
        """Log-probability of every token given the true length; <eos> has that of the length."""
        sizes = sizes_of(target).clamp(max=self.longest)
        written = self.write(write, memory.values, memory.mask, sizes, target.shape[1])
        lengths = self.lengths(memory)
        mask = (target != PAD) & self.reachable(memory.mask, target)[:, None]
        ends = target == EOS
        chosen = torch.where(ends, lengths.gather(1, sizes[:, None]), self.chosen(written, target))
        right = torch.where(ends, (lengths.argmax(-1) == sizes)[:, None], written.argmax(-1) == target)
        return TokenScores(chosen * mask, right & mask, mask)

    def chosen(self, written: Tensor, target: Tensor) -> Tensor:
        """Log-probability (B, T) of each target token at its position."""
        return written.gather(-1, target[:, :, None])[:, :, 0]


def sizes_of(target: Tensor) -> Tensor:
    """Tokens of each row without <eos> and padding: (B,)."""
    return (target != PAD).sum(1) - 1


DECODERS: dict[type, Any] = {
    TransformerConfig: TransformerEncoder,
    RecurrentEncoderConfig: RecurrentEncoder,
    FeedForwardStackConfig: FeedForwardStack,
}
ALIGNMENTS: dict[type, Any] = {
    CTCConfig: CTCHead,
    LengthPredictorConfig: LengthPredictor,
}


class NonAutoregressive(nn.Module):
    """Reads a source, writes the target in one go."""

    encoder: Encoder
    decoder: Encoder  # of vectors in place of tokens

    def __init__(
        self,
        config: NonAutoregressiveConfig,
        source_vocabulary: int,
        target_vocabulary: int,
        *,
        tags: int = 0,
        space: int | None = None,
    ) -> None:
        """The last `tags` words of the source vocabulary are tags (FIELD G10); `space` is the token between words."""
        super().__init__()
        self.config = config
        self.first_tag = source_vocabulary - tags
        self.space = space
        source = build_embedding(source_vocabulary, config.encoder.embedding, PAD, space)
        if tags and isinstance(source, TokenEmbedding):
            source.first_tag = self.first_tag
        self.encoder = ENCODERS[type(config.encoder)](config.encoder, source)
        width = config.decoder.embedding
        self.alignment = ALIGNMENTS[type(config.alignment)](config.alignment, self.encoder.width, width)
        self.decoder = DECODERS[type(config.decoder)](config.decoder, Vectors(width))
        layer = FirstRows if tags else nn.Linear  # a table shared with the source ends in tags: they are not written
        self.output = layer(self.decoder.width, target_vocabulary, bias=False)
        if config.tie == "all":
            assert self.first_tag == target_vocabulary, "tied tables need one vocabulary"
            assert isinstance(source.weight, nn.Parameter)
            self.output.weight = source.weight
        else:
            nn.init.normal_(self.output.weight, std=self.decoder.width**-0.5)

    @property
    def max_positions(self) -> int | None:
        """Most tokens it can write, <eos> included; None: any number."""
        longest: int | None = self.alignment.max_positions
        return longest

    @property
    def has_unused_parameters(self) -> bool:
        """Whether a step may leave some parameters without gradients: those of the encoder's final states."""
        return True

    @property
    def graph_blockers(self) -> list[str]:
        """Why a training step cannot be captured and repeated by the GPU."""
        return ["model.kind 'instant' looks at lengths on the way"]

    def set_step(self, step: int) -> None:
        """Nothing in it follows a schedule."""

    def encode(self, source: Tensor, mask: Tensor) -> Memory:
        """Read sources (B, S)."""
        if self.training:
            share = self.config.word_dropout
            source = drop_words(source, share, UNK, keep_below=4, keep_from=self.first_tag, keep=self.space)
        return self.encoder(source, mask)

    def write(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Log-probabilities (B, T, V) of what every position (B, T, E) says, at least float32."""
        scaled = vectors * self.config.decoder.embedding**-0.5  # as embeddings are, whose place they take
        return full_precision(self.output(self.decoder(scaled, mask).values)).log_softmax(-1)

    def forward(self, batch: Batch) -> Loss:
        """Summed negative log-probability of the targets that can be written, and how many tokens they have."""
        memory = self.encode(batch.source, batch.source_mask)
        smoothing = self.config.label_smoothing if self.training else 0.0
        total: Tensor = self.alignment.loss(self.write, memory, batch.target, smoothing)
        written = self.alignment.reachable(memory.mask, batch.target)
        return Loss(total, ((batch.target != PAD) & written[:, None]).sum())

    def emissions(self, batch: Batch, limits: Tensor, candidates: int) -> CTCEmissions | LengthBeam:
        """What is written for every source, for a search to read."""
        memory = self.encode(batch.source, batch.source_mask)
        written: CTCEmissions | LengthBeam = self.alignment.emissions(self.write, memory, limits, candidates)
        return written

    def score(self, batch: Batch) -> TokenScores:
        """How probable the targets are, spread over their tokens as the alignment says."""
        memory = self.encode(batch.source, batch.source_mask)
        scores: TokenScores = self.alignment.score(self.write, memory, batch.target)
        return scores

    def positions(self, source: int, target: int) -> int:
        """At how many positions it writes for rows of these lengths while training."""
        count: int = self.alignment.positions(source, target)
        return count

    def reachable(self, batch: Batch) -> Tensor:
        """Which targets (B,) could be written at all."""
        memory = self.encode(batch.source, batch.source_mask)  # some encoders leave fewer entries than were read
        found: Tensor = self.alignment.reachable(memory.mask, batch.target)
        return found
