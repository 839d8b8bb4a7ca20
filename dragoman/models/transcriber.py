"""Transcribing (FIELD A7): CTC over the memory of frames, alone or together with attention (Watanabe et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor, nn

from dragoman.config.settings import Range, Share, Size, setting
from dragoman.data.batching import Batch
from dragoman.data.tokenizers.tokenizer import PAD
from dragoman.layers.augmentation import Augmentation, AugmentationConfig, NoAugmentationConfig
from dragoman.models.contracts import Emissions, Loss, Memory, State, TokenScores
from dragoman.models.decoders.recurrent import RecurrentDecoderConfig
from dragoman.models.encoder_decoder import DecoderConfig
from dragoman.models.encoders.frames import FramesConfig, FramesEncoder, Standard
from dragoman.models.heads.decoder_head import Writer, writer_problems
from dragoman.models.heads.softmax import full_precision
from dragoman.models.non_autoregressive import CTC, CTCConfig


@dataclass(frozen=True)
class NoWriterConfig:
    """CTC alone."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class JointConfig:
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
        yield from writer_problems(self.tie, self.decoder)


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
    writer: NoWriterConfig | JointConfig = setting(NoWriterConfig(), help="what writes beside CTC")


def said(vectors: Tensor, mask: Tensor) -> Tensor:
    """Log-probabilities of scores (B, T, V), at least float32."""
    return full_precision(vectors).log_softmax(-1)


class Transcriber(nn.Module):
    """Reads frames; writes all at once by CTC (`emissions`) or, where it has a decoder, token by token (`step`)."""

    def __init__(self, config: TranscriberConfig, features: int, target_vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.standard = Standard(features)
        self.augment = Augmentation(config.augment)
        self.encoder = FramesEncoder(config.encoder, features)
        self.ctc = CTC(CTCConfig(config.upsample), self.encoder.width, target_vocabulary)
        self.joint = config.writer if isinstance(config.writer, JointConfig) else None
        self.writer = (
            Writer(self.joint.decoder, self.encoder.width, target_vocabulary, tie=self.joint.tie)
            if self.joint
            else None
        )

    @property
    def maximum(self) -> int | None:
        """Most tokens it can write, <eos> included; None: any number."""
        return self.writer.maximum if self.writer is not None else None

    @property
    def stride(self) -> float:
        """Frames from one position of CTC to the next."""
        return self.config.encoder.front.stride / self.config.upsample

    @property
    def partly_used(self) -> bool:
        """Whether a step may leave some parameters without gradients: those of the encoder's final states."""
        return True

    @property
    def obstacles(self) -> list[str]:
        """Why a training step cannot be captured and repeated by the GPU."""
        return ["model.kind 'transcriber' looks at lengths on the way"]

    def at_step(self, step: int) -> None:
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
        if self.writer is None or self.joint is None:
            return Loss(total, (tokens & self.ctc.reachable(memory.mask, batch.target)[:, None]).sum())
        smoothing = self.joint.label_smoothing if self.training else 0.0
        beside = self.writer.loss(memory, batch.target, smoothing)
        return Loss(self.joint.weight * total + (1 - self.joint.weight) * beside, tokens.sum())

    def emissions(self, batch: Batch, limits: Tensor, candidates: int) -> Emissions:
        """What CTC writes for every source, for a search to read."""
        return self.ctc.write(said, self.encode(batch.source, batch.source_mask))

    def score(self, batch: Batch) -> TokenScores:
        """How probable the targets are, as they were trained: CTC's share spread evenly, the decoder's by token."""
        memory = self.encode(batch.source, batch.source_mask)
        by_ctc = self.ctc.score(said, memory, batch.target)
        if self.writer is None or self.joint is None:
            return by_ctc
        beside, weight = self.writer.score(memory, batch.target), self.joint.weight
        mixed = weight * by_ctc.log_probabilities + (1 - weight) * beside.log_probabilities
        return TokenScores(mixed * by_ctc.mask, by_ctc.correct, by_ctc.mask)

    def positions(self, source: int, target: int) -> int:
        """At how many positions CTC writes for rows of these lengths while training."""
        return self.ctc.positions(self.config.encoder.front.shorter(source), target)

    def reachable(self, batch: Batch) -> Tensor:
        """Which targets (B,) have a path."""
        memory = self.encode(batch.source, batch.source_mask)
        return self.ctc.reachable(memory.mask, batch.target)

    def start(self, batch: Batch, capacity: int | None = None) -> State:
        """Read the sources and stand before the first target token; only with a decoder."""
        return self._writer().start(self.encode(batch.source, batch.source_mask), capacity)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N,) or (N, P); give log-probabilities (N, V) of the next one."""
        return self._writer().step(tokens, state)

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N, P); give log-probabilities (N, P, V) of what follows each of them."""
        return self._writer().read(tokens, state)

    def _writer(self) -> Writer:
        assert self.writer is not None, "CTC alone has no steps"
        return self.writer
