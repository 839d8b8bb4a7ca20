"""Non-autoregressive models: any encoder, then all target tokens in parallel.

The memory is resized to as many positions as the output needs. A stack of layers reads these vectors as an encoder
reads embeddings, and every position predicts on its own. An alignment relates positions to target tokens: CTC over an
upsampled memory (Libovický and Helcl 2018), or a predicted length (after Gu et al. 2018).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from dragoman.base.config import Depth, Share, Size, setting
from dragoman.data import Batch
from dragoman.data.tokenizers import PAD
from dragoman.models.config import TransformerConfig, WidthEmbedding
from dragoman.models.contracts import BaseModel, CTCEmissions, Encoder, LengthBeam, Loss, Memory, TokenScores
from dragoman.models.encoders.recurrent import RecurrentEncoder, RecurrentEncoderConfig
from dragoman.models.encoders.sequence import IdentityEmbedding
from dragoman.models.heads.parallel import CTCConfig, CTCHead, LengthPredictor, LengthPredictorConfig
from dragoman.models.heads.softmax import full_precision
from dragoman.models.kernels.cpu_dropout import Dropout
from dragoman.models.layers.embeddings import WordDropout, build_embedding
from dragoman.models.layers.feed_forward import FeedForward
from dragoman.models.layers.linear import output_layer
from dragoman.models.layers.masking import masked_mean
from dragoman.models.registry import EncoderConfig, build_encoder
from dragoman.models.transformer import TransformerEncoder


@dataclass(frozen=True)
class FeedForwardStackConfig(WidthEmbedding):
    """The same feed-forward layers at every position; positions do not see each other."""

    kind: ClassVar[str] = "feed-forward"
    layers: Depth = setting(1, help="number of feed-forward layers")
    width: Size = setting(512, help="size of the hidden vectors")
    feedforward: Size = setting(2048, help="inner size of the feed-forward layers")
    activation: Literal["relu", "gelu", "silu"] = setting("relu", help="activation of the feed-forward layers")
    dropout: Share = setting(0.1, help="dropout on the input and on the output of each layer")


class FeedForwardStack(Encoder):
    """Pre-norm residual feed-forward layers with a last norm."""

    def __init__(self, config: FeedForwardStackConfig, embedding: nn.Module) -> None:
        super().__init__()
        self.width = config.width
        self.embedding = embedding
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            FeedForward(config.width, config.feedforward, config.activation, 0.0) for _ in range(config.layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(config.layers))
        self.residual_dropout = Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.width)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """source: what the embedding reads; mask (B, S)."""
        x = self.dropout(self.embedding(source))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + self.residual_dropout(layer(norm(x)))
        x = self.norm(x)
        return Memory(keys=x, values=x, mask=mask, final=(masked_mean(x, mask),))


ParallelDecoderConfig = TransformerConfig | RecurrentEncoderConfig | FeedForwardStackConfig
PARALLEL_DECODERS: dict[type, Any] = {
    TransformerConfig: TransformerEncoder,
    RecurrentEncoderConfig: RecurrentEncoder,
    FeedForwardStackConfig: FeedForwardStack,
}
AlignmentConfig = CTCConfig | LengthPredictorConfig
ALIGNMENTS: dict[type, Any] = {
    CTCConfig: CTCHead,
    LengthPredictorConfig: LengthPredictor,
}


@dataclass(frozen=True)
class NonAutoregressiveConfig:
    """An encoder and a decoder that predicts all target tokens in parallel."""

    kind: ClassVar[str] = "non-autoregressive"
    tie: Literal["none", "all"] = setting("none", help="all: the output layer shares the table of source embeddings")
    word_dropout: Share = setting(0.0, help="share of source tokens replaced by <unk> during training")
    label_smoothing: Share = setting(0.0, help="share of the target probability spread over the vocabulary")
    encoder: EncoderConfig = setting(TransformerConfig(), help="encoder of the source")
    decoder: ParallelDecoderConfig = setting(TransformerConfig(), help="layers over the output positions")
    alignment: AlignmentConfig = setting(CTCConfig(), help="how output positions relate to target tokens")

    def problems(self) -> Iterator[str]:
        if self.tie == "all" and self.encoder.embedding != self.decoder.width:
            yield (
                f"tie: 'all' needs a decoder as wide as the source embeddings, found {self.decoder.width} and "
                f"{self.encoder.embedding}"
            )
        if isinstance(self.decoder, RecurrentEncoderConfig) and self.decoder.embedding == 0:
            yield "decoder.embedding: found 0 (one-hot tokens), expected a size: the decoder reads vectors"


class NonAutoregressive(BaseModel):
    """Encodes a source and predicts all target tokens in one pass."""

    decodes = "parallel"
    encoder: Encoder
    decoder: Encoder  # reads vectors in place of tokens
    has_unused_parameters = True  # those behind the encoder's final states
    length_advice = (
        "raise model.alignment.upsample (or model.alignment.max_length), or take smaller units for the source than for "
        "the target"
    )

    def __init__(
        self,
        config: NonAutoregressiveConfig,
        source_vocabulary: int,
        target_vocabulary: int,
        *,
        tags: int = 0,
        space: int | None = None,
    ) -> None:
        """The last `tags` words of the source vocabulary are language tags; `space` is the token between words."""
        super().__init__()
        self.config = config
        self.word_dropout = WordDropout(config.word_dropout, source_vocabulary - tags, space)
        source = build_embedding(source_vocabulary, config.encoder.embedding, PAD, space, tags, ("source",))
        self.encoder = build_encoder(config.encoder, source)
        width = config.decoder.embedding
        self.alignment = ALIGNMENTS[type(config.alignment)](config.alignment, self.encoder.width, width)
        self.decoder = PARALLEL_DECODERS[type(config.decoder)](config.decoder, IdentityEmbedding(width))
        table = None
        if config.tie == "all":
            assert source_vocabulary - tags == target_vocabulary, "tied tables need one vocabulary"
            assert isinstance(source.weight, nn.Parameter)
            table = source.weight
        self.output = output_layer(self.decoder.width, target_vocabulary, table, tags=tags)

    @property
    def max_positions(self) -> int | None:
        return self.alignment.max_positions

    @property
    def graph_blockers(self) -> list[str]:
        return ["model.kind 'non-autoregressive' reads lengths on the CPU"]

    def encode(self, source: Tensor, mask: Tensor) -> Memory:
        return self.encoder(self.word_dropout(source), mask)

    def log_probabilities(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Log-probabilities (B, T, V) of the token at every position (B, T, E), at least float32."""
        scaled = vectors * self.config.decoder.embedding**-0.5  # the size that embeddings have
        return full_precision(self.output(self.decoder(scaled, mask).values)).log_softmax(-1)

    def forward(self, batch: Batch) -> Loss:
        """Summed negative log-probability of the reachable targets, and how many tokens they have."""
        memory = self.encode(batch.source.data, batch.source.mask)
        smoothing = self.config.label_smoothing if self.training else 0.0
        total: Tensor = self.alignment.loss(self.log_probabilities, memory, batch.target, smoothing)
        reachable = self.alignment.reachable(memory.mask, batch.target)
        return Loss(total, ((batch.target != PAD) & reachable[:, None]).sum())

    def emissions(self, batch: Batch, limits: Tensor, candidates: int) -> CTCEmissions | LengthBeam:
        memory = self.encode(batch.source.data, batch.source.mask)
        return self.alignment.emissions(self.log_probabilities, memory, limits, candidates)

    def score(self, batch: Batch) -> TokenScores:
        """Score the targets; the alignment says what a token's score is."""
        memory = self.encode(batch.source.data, batch.source.mask)
        return self.alignment.score(self.log_probabilities, memory, batch.target)

    def positions(self, source: int, target: int) -> int:
        return self.alignment.positions(source, target)

    def reachable(self, batch: Batch) -> Tensor:
        # Some encoders give fewer entries than source tokens.
        memory = self.encode(batch.source.data, batch.source.mask)
        return self.alignment.reachable(memory.mask, batch.target)
