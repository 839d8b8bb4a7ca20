"""Transcribing (FIELD A7): CTC over the memory of frames, alone or together with attention (Watanabe et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor, nn

from dragoman.config.settings import Range, Share, Size, setting
from dragoman.data.batch import Batch
from dragoman.data.tokenizers.base import PAD
from dragoman.layers.augmentation import Augmentation, AugmentationConfig, NoAugmentationConfig
from dragoman.models.contracts import CTCEmissions, Loss, Memory, State, TokenScores
from dragoman.models.decoders.recurrent import RecurrentDecoderConfig
from dragoman.models.encoder_decoder import DecoderConfig
from dragoman.models.encoders.frames import FramesConfig, FramesEncoder, Standardizer
from dragoman.models.heads.decoder_head import DecoderHead, decoder_head_problems
from dragoman.models.heads.softmax import full_precision
from dragoman.models.non_autoregressive import CTCConfig, CTCHead


@dataclass(frozen=True)
class CTCOnlyConfig:
    """CTC alone."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class JointAttentionConfig:
    """A decoder that attends beside CTC; the loss is w · CTC + (1 − w) · cross-entropy."""

    kind: ClassVar[str] = "joint"
    weight: Annotated[float, Range(0.0, 1.0, exclusive_minimum=True, exclusive_maximum=True)] = setting(
        0.3, help="w: the share of CTC"
    )
    tie: bool = setting(True, help="target embeddings are the decoder's output table too")
    label_smoothing: Share = setting(0.1, help="share of the decoder's target probability spread over the vocabulary")
    decoder: DecoderConfig = setting(RecurrentDecoderConfig(), help="what writes the target beside CTC")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        yield from decoder_head_problems(self.tie, self.decoder)


@dataclass(frozen=True)
class TranscriberConfig:
    """A reader of frames that writes by CTC, and perhaps by attention too."""

    kind: ClassVar[str] = "transcriber"
    upsample: Size = setting(1, help="positions that CTC writes for each entry of the memory")
    label_smoothing: Share = setting(
        0.0,
        help="share of CTC's loss that draws every position towards all labels alike, so that it does not settle too "
        "early on where to write (Kim et al. 2018)",
    )
    augment: AugmentationConfig = setting(NoAugmentationConfig(), help="small changes to the features while training")
    encoder: FramesConfig = setting(FramesConfig(), help="what reads the features")
    attention_decoder: CTCOnlyConfig | JointAttentionConfig = setting(CTCOnlyConfig(), help="what writes beside CTC")


def said(vectors: Tensor, mask: Tensor) -> Tensor:
    """Log-probabilities of scores (B, T, V), at least float32."""
    return full_precision(vectors).log_softmax(-1)


class Transcriber(nn.Module):
    """Reads frames; writes all at once by CTC (`emissions`) or, where it has a decoder, token by token (`step`)."""

    def __init__(self, config: TranscriberConfig, features: int, target_vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.standard = Standardizer(features)
        self.augment = Augmentation(config.augment)
        self.encoder = FramesEncoder(config.encoder, features)
        self.ctc = CTCHead(CTCConfig(config.upsample), self.encoder.width, target_vocabulary)
        self.joint = config.attention_decoder if isinstance(config.attention_decoder, JointAttentionConfig) else None
        self.attention_decoder = (
            DecoderHead(self.joint.decoder, self.encoder.width, target_vocabulary, tie=self.joint.tie)
            if self.joint
            else None
        )

    @property
    def max_positions(self) -> int | None:
        """Most tokens it can write, <eos> included; None: any number."""
        return self.attention_decoder.max_positions if self.attention_decoder is not None else None

    @property
    def stride(self) -> float:
        """Frames from one position of CTC to the next."""
        return self.config.encoder.subsampling.stride / self.config.upsample

    @property
    def has_unused_parameters(self) -> bool:
        """Whether a step may leave some parameters without gradients: those of the encoder's final states."""
        return True

    @property
    def graph_blockers(self) -> list[str]:
        """Why a training step cannot be captured and repeated by the GPU."""
        return ["model.kind 'transcriber' looks at lengths on the way"]

    def set_step(self, step: int) -> None:
        """Nothing in it follows a schedule."""

    def encode(self, source: Tensor, mask: Tensor) -> Memory:
        """Read features (B, T, F), mask (B, T)."""
        memory: Memory = self.encoder(self.augment(self.standard(source, mask), mask), mask)
        return memory

    def forward(self, batch: Batch) -> Loss:
        """w · CTC + (1 − w) · cross-entropy, summed, and how many tokens it was summed over.

        A target that has no path gives CTC nothing; without a decoder its tokens are not counted either.
        """
        memory = self.encode(batch.source, batch.source_mask)
        smoothing = self.config.label_smoothing if self.training else 0.0
        total, tokens = self.ctc.loss(said, memory, batch.target, smoothing), batch.target != PAD
        if self.attention_decoder is None or self.joint is None:
            return Loss(total, (tokens & self.ctc.reachable(memory.mask, batch.target)[:, None]).sum())
        smoothing = self.joint.label_smoothing if self.training else 0.0
        beside = self.attention_decoder.loss(memory, batch.target, smoothing)
        return Loss(self.joint.weight * total + (1 - self.joint.weight) * beside, tokens.sum())

    def emissions(self, batch: Batch, limits: Tensor, candidates: int) -> CTCEmissions:
        """What CTC writes for every source, for a search to read."""
        return self.ctc.write(said, self.encode(batch.source, batch.source_mask))

    def score(self, batch: Batch) -> TokenScores:
        """How probable the targets are, as they were trained: CTC's share spread evenly, the decoder's by token."""
        memory = self.encode(batch.source, batch.source_mask)
        by_ctc = self.ctc.score(said, memory, batch.target)
        if self.attention_decoder is None or self.joint is None:
            return by_ctc
        beside, weight = self.attention_decoder.score(memory, batch.target), self.joint.weight
        mixed = weight * by_ctc.log_probabilities + (1 - weight) * beside.log_probabilities
        return TokenScores(mixed * by_ctc.mask, by_ctc.correct, by_ctc.mask)

    def positions(self, source: int, target: int) -> int:
        """At how many positions CTC writes for rows of these lengths while training."""
        return self.ctc.positions(self.config.encoder.subsampling.output_length(source), target)

    def reachable(self, batch: Batch) -> Tensor:
        """Which targets (B,) have a path."""
        memory = self.encode(batch.source, batch.source_mask)
        return self.ctc.reachable(memory.mask, batch.target)

    def start(self, batch: Batch, capacity: int | None = None) -> State:
        """Read the sources and stand before the first target token; only with a decoder."""
        return self._attention_decoder().start(self.encode(batch.source, batch.source_mask), capacity)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N,) or (N, P); give log-probabilities (N, V) of the next one."""
        return self._attention_decoder().step(tokens, state)

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N, P); give log-probabilities (N, P, V) of what follows each of them."""
        return self._attention_decoder().read(tokens, state)

    def _attention_decoder(self) -> DecoderHead:
        assert self.attention_decoder is not None, "CTC alone has no steps"
        return self.attention_decoder
