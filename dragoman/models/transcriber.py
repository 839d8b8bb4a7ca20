"""Speech and line recognition: CTC over frames, alone or with an attention decoder (Watanabe et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from dragoman.base.config import Range, Share, Size, setting
from dragoman.data import Batch
from dragoman.data.tokenizers import PAD
from dragoman.models.contracts import CTCEmissions, Loss, State, TokenScores
from dragoman.models.decoders.recurrent import RecurrentDecoderConfig
from dragoman.models.encoders.frames import FramesConfig
from dragoman.models.heads.decoder_head import DecoderHead, decoder_head_problems
from dragoman.models.heads.parallel import CTCConfig, CTCHead
from dragoman.models.heads.softmax import full_precision
from dragoman.models.layers.augmentation import AugmentationConfig, NoAugmentationConfig
from dragoman.models.registry import DecoderConfig
from dragoman.models.sources import FeatureModel


@dataclass(frozen=True)
class CTCOnlyConfig:
    """CTC without a decoder."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class JointAttentionConfig:
    """An attention decoder beside CTC; the loss is w · CTC + (1 − w) · cross-entropy."""

    kind: ClassVar[str] = "joint"
    weight: Annotated[float, Range(0.0, 1.0, exclusive_minimum=True, exclusive_maximum=True)] = setting(
        0.3, help="w, the weight of CTC in the loss"
    )
    tie: bool = setting(True, help="target embeddings and the decoder's output layer share one table")
    label_smoothing: Share = setting(0.1, help="share of the decoder's target probability spread over the vocabulary")
    decoder: DecoderConfig = setting(RecurrentDecoderConfig(), help="the attention decoder")

    def problems(self) -> Iterator[str]:
        yield from decoder_head_problems(self.tie, self.decoder)


@dataclass(frozen=True)
class TranscriberConfig:
    """An encoder of frames with a CTC output layer, and optionally an attention decoder."""

    kind: ClassVar[str] = "transcriber"
    upsample: Size = setting(1, help="CTC output positions per memory entry")
    label_smoothing: Share = setting(
        0.0,
        help="share of the CTC loss that pulls every position towards the uniform distribution, against early peaky "
        "alignments (Kim et al. 2018)",
    )
    augment: AugmentationConfig = setting(NoAugmentationConfig(), help="data augmentation during training")
    encoder: FramesConfig = setting(FramesConfig(), help="encoder of the features")
    attention_decoder: CTCOnlyConfig | JointAttentionConfig = setting(
        CTCOnlyConfig(), help="attention decoder beside CTC"
    )


def predict(logits: Tensor, mask: Tensor) -> Tensor:
    """Log-probabilities of logits (B, T, V), at least float32: the memory is projected straight to the vocabulary."""
    return full_precision(logits).log_softmax(-1)


class Transcriber(FeatureModel):
    """Encodes frames; writes in parallel by CTC (`emissions`) or token by token with the decoder (`step`)."""

    decodes = "parallel"
    has_unused_parameters = True  # those behind the encoder's final states
    length_advice = "raise model.upsample, lower model.encoder.subsampling, or take larger units for the target"

    def __init__(self, config: TranscriberConfig, features: int, target_vocabulary: int) -> None:
        super().__init__(config, features)
        self.ctc = CTCHead(CTCConfig(config.upsample), self.encoder.width, target_vocabulary)
        self.joint = config.attention_decoder if isinstance(config.attention_decoder, JointAttentionConfig) else None
        self.attention_decoder = (
            DecoderHead(self.joint.decoder, self.encoder.width, target_vocabulary, tie=self.joint.tie)
            if self.joint
            else None
        )

    @property
    def max_positions(self) -> int | None:
        return self.attention_decoder.max_positions if self.attention_decoder is not None else None

    @property
    def stride(self) -> float:
        return float(self.config.encoder.subsampling.stride / self.config.upsample)

    @property
    def graph_blockers(self) -> list[str]:
        return ["model.kind 'transcriber' reads lengths on the CPU"]

    def forward(self, batch: Batch) -> Loss:
        """Summed loss w · CTC + (1 − w) · cross-entropy, and the number of tokens.

        A target without a CTC alignment has no CTC loss; without a decoder its tokens are not counted either.
        """
        memory = self.encode(batch.source.data, batch.source.mask)
        smoothing = self.config.label_smoothing if self.training else 0.0
        total, tokens = self.ctc.loss(predict, memory, batch.target, smoothing), batch.target != PAD
        if self.attention_decoder is None or self.joint is None:
            return Loss(total, (tokens & self.ctc.reachable(memory.mask, batch.target)[:, None]).sum())
        smoothing = self.joint.label_smoothing if self.training else 0.0
        attention = self.attention_decoder.loss(memory, batch.target, smoothing)
        return Loss(self.joint.weight * total + (1 - self.joint.weight) * attention, tokens.sum())

    def emissions(self, batch: Batch, limits: Tensor, candidates: int) -> CTCEmissions:
        return self.ctc.emissions(predict, self.encode(batch.source.data, batch.source.mask))

    def score(self, batch: Batch) -> TokenScores:
        """Score the targets with the weights of the loss: CTC's score split evenly, the decoder's token by token."""
        memory = self.encode(batch.source.data, batch.source.mask)
        by_ctc = self.ctc.score(predict, memory, batch.target)
        if self.attention_decoder is None or self.joint is None:
            return by_ctc
        by_attention, weight = self.attention_decoder.score(memory, batch.target), self.joint.weight
        mixed = weight * by_ctc.log_probabilities + (1 - weight) * by_attention.log_probabilities
        return TokenScores(mixed * by_ctc.mask, by_ctc.correct, by_ctc.mask)

    def positions(self, source: int, target: int) -> int:
        return self.ctc.positions(self.config.encoder.subsampling.output_length(source), target)

    def reachable(self, batch: Batch) -> Tensor:
        """Which targets (B,) have a CTC alignment."""
        memory = self.encode(batch.source.data, batch.source.mask)
        return self.ctc.reachable(memory.mask, batch.target)

    def start(self, batch: Batch, capacity: int | None = None) -> State:
        return self._attention_decoder().start_from(self.encode(batch.source.data, batch.source.mask), capacity)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return self._attention_decoder().step(tokens, state)

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return self._attention_decoder().read(tokens, state)

    def _attention_decoder(self) -> DecoderHead:
        assert self.attention_decoder is not None, "CTC alone has no steps"
        return self.attention_decoder
