"""The settings of the Transformer and of the encoder-decoder. Nothing here imports torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Protocol

from dragoman.base.config import Depth, ImportedTable, Range, Share, Size, setting
from dragoman.models.layers.config import (
    FullConfig,
    LinearConfig,
    PositionsConfig,
    RelativePositionsConfig,
    SelfAttentionConfig,
    SinusoidalConfig,
)
from dragoman.models.traits import DecoderTraits, EncoderTraits, ModelContext

Probability = Annotated[float, Range(0.0, 1.0)]
Steps = Annotated[float, Range(0.0, None, exclusive_minimum=True)]


class EncoderConfig(Protocol):
    """What other code reads of any encoder's settings."""

    kind: ClassVar[str]

    @property
    def embedding(self) -> int:
        """Width of the embeddings that the encoder reads; 0: one-hot vectors."""


class DecoderConfig(Protocol):
    """What other code reads of any decoder's settings."""

    kind: ClassVar[str]

    @property
    def embedding(self) -> int:
        """Width of the target embeddings; 0: one-hot vectors."""

    @property
    def output_width(self) -> int:
        """Width of the hidden vectors that the output layer reads; 0: the size of the target vocabulary."""


class WidthEmbedding:
    """Settings of layers whose embeddings have the width of the hidden vectors."""

    width: int

    @property
    def embedding(self) -> int:
        return self.width


@dataclass(frozen=True)
class TransformerConfig(WidthEmbedding):
    """A stack of Transformer blocks: an encoder, a decoder, or a language model."""

    kind: ClassVar[str] = "transformer"
    layers: Depth = setting(6, help="number of Transformer blocks")
    width: Size = setting(512, help="size of the hidden vectors (d_model)")
    heads: Size = setting(8, help="number of attention heads; must divide width")
    feedforward: Size = setting(2048, help="inner size of the feed-forward layers")
    dropout: Share = setting(0.1, help="dropout on embeddings and on the output of each layer")
    attention_dropout: Share = setting(
        0.0, help="dropout on attention weights; above 0 no fused attention kernel is used"
    )
    feedforward_dropout: Share = setting(0.0, help="dropout inside the feed-forward layers")
    norm: Literal["pre", "post"] = setting("pre", help="pre-norm, or post-norm as in the paper")
    norm_kind: Literal["layer", "rms"] = setting("layer", help="layer norm, or the RMS norm of T5 and Llama")
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = setting("relu", help="of the feed-forward layers")
    gated: bool = setting(False, help="gated feed-forward layers: SwiGLU with silu, GEGLU with gelu")
    bias: bool = setting(True, help="biases in linear layers and layer norms")
    positions: PositionsConfig = setting(SinusoidalConfig(), help="position encoding")
    attention: SelfAttentionConfig = setting(FullConfig(), help="full, local, segment-wise or linear self-attention")
    score: Literal["scaled-dot", "dot", "cosine"] = setting(
        "scaled-dot", help="score of a query and a key in self- and cross-attention"
    )
    key_heads: Annotated[int, Range(0, None)] = setting(
        0, help="grouped-query attention: number of key and value heads; 0: as many as heads"
    )
    head_width: Annotated[int, Range(0, None)] = setting(0, help="size of one attention head; 0: width / heads")
    scale_embedding: bool = setting(True, help="multiply token embeddings by √width, as in the paper")
    embedding_norm: bool = setting(False, help="a layer norm after the embeddings, as in mBART")
    norm_epsilon: Annotated[float, Range(0.0, 1.0)] = setting(
        0.0, help="what the norms add to the variance; 0: 1e-5 for layer norm, 1e-6 for RMS norm"
    )

    def problems(self) -> Iterator[str]:
        if self.width % self.heads and not self.head_width:
            yield f"heads: found {self.heads}, expected a divisor of width = {self.width}"
        elif self.positions.kind == "rotary" and self.depth % 2:
            yield f"positions: 'rotary' needs heads of an even size, found {self.depth}"
        if self.key_heads and self.heads % self.key_heads:
            yield f"key_heads: found {self.key_heads}, expected 0 or a divisor of heads = {self.heads}"
        if isinstance(self.attention, LinearConfig):
            if isinstance(self.positions, RelativePositionsConfig):
                yield (
                    f"positions: found {self.positions.kind!r}, but linear attention has no scores of single keys, "
                    "expected 'sinusoidal', 'learned' or 'none'"
                )
            if self.attention_dropout:
                yield (
                    f"attention_dropout: found {self.attention_dropout}, but linear self-attention has no "
                    "attention weights, expected 0"
                )
            if self.score != "scaled-dot":
                yield f"score: found {self.score!r}, but linear attention has no scores, expected 'scaled-dot'"

    @property
    def depth(self) -> int:
        return self.head_width or self.width // self.heads

    @property
    def epsilon(self) -> float:
        """What the norms add to the variance."""
        return self.norm_epsilon or (1e-6 if self.norm_kind == "rms" else 1e-5)

    @property
    def output_width(self) -> int:
        return self.width


@dataclass(frozen=True)
class FullSoftmaxConfig:
    """Compare every word of the vocabulary."""

    kind: ClassVar[str] = "full"


@dataclass(frozen=True)
class SampledSoftmaxConfig:
    """Compare the words of the batch and a random sample of others; evaluation always compares all words.

    Every batch has its own sample (Jean et al. 2015). A sampled word stands for several words that were not sampled:
    the log of their number is added to its logit, so that the loss estimates the full one.
    """

    kind: ClassVar[str] = "sampled"
    size: Annotated[int, Range(1, None)] = setting(8192, help="number of sampled words, besides those of the batch")


@dataclass(frozen=True)
class PartitionedSoftmaxConfig:
    """Compare the words of a part of the corpus; evaluation always compares all words (Jean et al. 2015).

    The corpus is cut into consecutive parts. Part i has its own vocabulary V_i, which holds all its target words. Every
    batch is from one part, and its softmax and label smoothing run over V_i.
    """

    kind: ClassVar[str] = "partitioned"
    size: Annotated[int, Range(2, None)] = setting(30_000, help="largest number of words of a part")


SoftmaxConfig = FullSoftmaxConfig | SampledSoftmaxConfig | PartitionedSoftmaxConfig


@dataclass(frozen=True)
class TeacherForcingConfig:
    """Always read the true tokens."""

    kind: ClassVar[str] = "teacher"
    passes: ClassVar[int] = 1  # one call of the decoder reads the whole target

    def teacher_probability(self, step: int) -> float:
        return 1.0


@dataclass(frozen=True)
class _ScheduledSamplingConfig:
    passes: Annotated[int, Range(0, None)] = setting(
        0,
        help="0: sample word by word, exact (Bengio et al. 2015); n: sample all words in parallel, n times, each time "
        "from the mixed words of the last pass, fast (Duckworth et al. 2019)",
    )


@dataclass(frozen=True)
class LinearDecayConfig(_ScheduledSamplingConfig):
    """Read the true token with probability max(floor, 1 − step / steps)."""

    kind: ClassVar[str] = "linear"
    steps: Steps = setting(10_000.0, help="step at which the probability would reach zero without a floor")
    floor: Probability = setting(0.25, help="smallest probability of the true token")

    def teacher_probability(self, step: int) -> float:
        return max(self.floor, 1.0 - step / self.steps)


@dataclass(frozen=True)
class ExponentialDecayConfig(_ScheduledSamplingConfig):
    """Read the true token with probability rate^step."""

    kind: ClassVar[str] = "exponential"
    rate: Annotated[float, Range(0.0, 1.0, exclusive_maximum=True)] = setting(0.9999, help="base of the power")

    def teacher_probability(self, step: int) -> float:
        return float(self.rate**step)


@dataclass(frozen=True)
class InverseSigmoidDecayConfig(_ScheduledSamplingConfig):
    """Read the true token with probability k / (k + exp(step / k))."""

    kind: ClassVar[str] = "inverse-sigmoid"
    k: Annotated[float, Range(1.0, None)] = setting(1000.0, help="a larger k makes the decay later and slower")

    def teacher_probability(self, step: int) -> float:
        return self.k / (self.k + math.exp(min(700.0, step / self.k)))


ForcingConfig = TeacherForcingConfig | LinearDecayConfig | ExponentialDecayConfig | InverseSigmoidDecayConfig


# The tables of `models.registry`. Without torch they know the settings of the Transformer, which engines run too.
ENCODERS = ImportedTable("dragoman.models.registry", "ENCODERS", {TransformerConfig.kind: TransformerConfig})
DECODERS = ImportedTable("dragoman.models.registry", "DECODERS", {TransformerConfig.kind: TransformerConfig})


def encoder_traits(config: EncoderConfig) -> type[EncoderTraits]:
    """What the encoder of some settings declares; that of a Transformer, which has the defaults, is not imported."""
    return EncoderTraits if type(config) is TransformerConfig else ENCODERS.of(config).module


def decoder_traits(config: DecoderConfig) -> type[DecoderTraits]:
    return DecoderTraits if type(config) is TransformerConfig else DECODERS.of(config).module


# Which of three weight matrices are one: source embeddings, target embeddings, output layer.
TIES = {
    "none": (0, 1, 2),
    "inputs": (0, 0, 2),
    "target": (0, 1, 1),
    "source": (0, 1, 0),
    "all": (0, 0, 0),
}


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """An encoder and an autoregressive decoder."""

    kind: ClassVar[str] = "encoder-decoder"
    tie: Literal["none", "inputs", "target", "source", "all"] = setting(
        "target",
        help="weight tying: target embeddings with the output layer (target), source with target embeddings (inputs), "
        "source embeddings with the output layer (source), all three (all), or none",
    )
    output_bias: bool = setting(False, help="the output layer has a bias")
    word_dropout: Share = setting(0.0, help="share of input tokens replaced by <unk> during training")
    label_smoothing: Share = setting(0.1, help="share of the target probability spread over the vocabulary")
    softmax: SoftmaxConfig = setting(
        FullSoftmaxConfig(), help="softmax over all words, or in training over a sample or those of a part"
    )
    forcing: ForcingConfig = setting(TeacherForcingConfig(), help="teacher forcing or scheduled sampling")
    truncate: Annotated[int, Range(0, None)] = setting(
        0, help="truncated back-propagation through time: stop gradients every n target tokens; 0: never"
    )
    share_cells: bool = setting(False, help="encoder and decoder share their recurrent layers")
    prompt: tuple[int, ...] = setting(
        (), help="token ids that the decoder reads before <sos>; of imported models such as M2M-100"
    )
    encoder: Annotated[EncoderConfig, ENCODERS] = setting(TransformerConfig(), help="encoder of the source")
    decoder: Annotated[DecoderConfig, DECODERS] = setting(TransformerConfig(), help="decoder of the target")

    def problems(self) -> Iterator[str]:
        names = ("the encoder's embeddings", "the decoder's embeddings", "the decoder's output")
        widths = (self.encoder.embedding, self.decoder.embedding, self.decoder.output_width)
        ties = TIES[self.tie]
        for index in (1, 2):
            first = ties.index(ties[index])
            if widths[index] != widths[first]:
                yield (
                    f"tie: {self.tie!r} needs equal sizes, found {widths[first]} for {names[first]} "
                    f"and {widths[index]} for {names[index]}"
                )
            elif first != index and widths[index] == 0:
                yield f"tie: {self.tie!r} needs learned embeddings, found one-hot vectors (embedding = 0)"
        decoder = decoder_traits(self.decoder)
        if decoder.own_likelihood and not isinstance(self.softmax, FullSoftmaxConfig):
            yield f"softmax: found {self.softmax.kind!r}, expected 'full' with decoder.kind = {self.decoder.kind!r}"
        cells = encoder_traits(self.encoder).cell_layout(self.encoder)
        in_chunks = bool(self.truncate) or self.forcing.passes == 0
        yield from decoder.problems(self.decoder, ModelContext(cells, self.share_cells, in_chunks))
