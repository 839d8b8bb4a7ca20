"""Captions (FIELD A4): a picture's spatial memory and any decoder; Show, Attend and Tell (Xu et al. 2015)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from dragoman.config.settings import Range, Share, setting
from dragoman.data.batch import Batch
from dragoman.data.tokenizers.base import PAD
from dragoman.layers.attention import observing
from dragoman.layers.augmentation import Augmentation, AugmentationConfig, NoAugmentationConfig
from dragoman.models.contracts import Encoder, Loss, Memory, State, TokenScores
from dragoman.models.decoders.recurrent import FixedContextDecoderConfig, RecurrentDecoderConfig
from dragoman.models.encoder_decoder import DecoderConfig
from dragoman.models.encoders.frames import FramesConfig, FramesEncoder, Standardizer
from dragoman.models.encoders.images import (
    PatchesConfig,
    PatchesEncoder,
    ResNetConfig,
    ResNetEncoder,
    TorchvisionConfig,
    TorchvisionEncoder,
)
from dragoman.models.heads.decoder_head import DecoderHead, decoder_head_problems

ImageEncoderConfig = ResNetConfig | PatchesConfig | TorchvisionConfig
FeatureEncoderConfig = ImageEncoderConfig | FramesConfig
FEATURE_ENCODERS: dict[type, Any] = {
    ResNetConfig: ResNetEncoder,
    PatchesConfig: PatchesEncoder,
    TorchvisionConfig: TorchvisionEncoder,
    FramesConfig: FramesEncoder,
}


@dataclass(frozen=True)
class CaptionerConfig:
    """A reader of pictures, or of any features, and a writer of what is in them."""

    kind: ClassVar[str] = "captioner"
    tie: bool = setting(True, help="target embeddings are the output table too")
    label_smoothing: Share = setting(0.1, help="share of the target probability spread over the vocabulary")
    doubly_stochastic: Annotated[float, Range(0.0, None)] = setting(
        0.0, help="λ: what it costs not to have looked at every place once in all (Xu et al. 2015 eq. 14)"
    )
    augment: AugmentationConfig = setting(NoAugmentationConfig(), help="small changes to the features while training")
    encoder: FeatureEncoderConfig = setting(ResNetConfig(), help="what reads the picture")
    decoder: DecoderConfig = setting(RecurrentDecoderConfig(), help="what writes the caption")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        yield from decoder_head_problems(self.tie, self.decoder)
        if self.doubly_stochastic and isinstance(self.decoder, FixedContextDecoderConfig):
            yield (
                f"doubly_stochastic: found {self.doubly_stochastic}, but a fixed-context decoder has no attention, "
                "expected 0"
            )


def unevenness(weights: Tensor, target_mask: Tensor, memory_mask: Tensor) -> Tensor:
    """Σ_i (1 − Σ_t α_ti)² over the real places i and tokens t of all rows, the mean of the heads: ().

    weights (B, H, T, S), masks (B, T) and (B, S): the second term of Xu et al. 2015, eq. 14, without its λ.
    """
    looked = (weights * target_mask[:, None, :, None]).sum(2)  # (B, H, S)
    return ((1 - looked) ** 2 * memory_mask[:, None]).mean(1).sum()


def attended(model: nn.Module, run: Callable[[], Tensor]) -> tuple[Tensor, list[Tensor]]:
    """What `run` gives, and the weights (B, H, T, S) of every layer of the model that looked at the memory.

    The weights keep their history, so that they can be trained on.
    """
    inside = {id(module) for module in model.modules() if getattr(module, "reads_memory", False)}
    seen: dict[int, list[Tensor]] = {}

    def keep(module: nn.Module, weights: Tensor) -> None:
        if id(module) in inside:
            seen.setdefault(id(module), []).append(weights)

    with observing(keep):
        out = run()
    assert seen, "no attention over the memory was seen; compiled regions show none"
    return out, [torch.cat(steps, 2) for steps in seen.values()]  # recurrent decoders attend once a step


class Captioner(nn.Module):
    """Reads a picture, writes a caption one token after another."""

    encoder: Encoder

    def __init__(self, config: CaptionerConfig, features: int, target_vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.standard = Standardizer(features)
        self.augment = Augmentation(config.augment)
        self.encoder = FEATURE_ENCODERS[type(config.encoder)](config.encoder, features)
        self.decoder_head = DecoderHead(config.decoder, self.encoder.width, target_vocabulary, tie=config.tie)
        if config.doubly_stochastic:
            decoder: Any = self.decoder_head.decoder
            for module in decoder.modules():
                module.compile_in_training = False  # compiled it would not show its attention

    @property
    def max_positions(self) -> int | None:
        """Most tokens it can write; None: any number."""
        return self.decoder_head.max_positions

    @property
    def has_unused_parameters(self) -> bool:
        """Whether a step may leave some parameters without gradients: a fixed context leaves the memory unread."""
        return isinstance(self.config.decoder, FixedContextDecoderConfig)

    @property
    def graph_blockers(self) -> list[str]:
        """Why a training step cannot be captured and repeated by the GPU."""
        return ["model.doubly_stochastic looks at the attention from outside"] if self.config.doubly_stochastic else []

    def set_step(self, step: int) -> None:
        """Nothing in it follows a schedule."""

    def encode(self, source: Tensor, mask: Tensor) -> Memory:
        """Read pictures (B, H, W·3), mask (B, H)."""
        return self.encoder(self.augment(self.standard(source, mask), mask), mask)

    def forward(self, batch: Batch) -> Loss:
        """Summed cross-entropy, and λ times the unevenness of the attention while training; how many tokens."""
        memory, target, config = self.encode(batch.source, batch.source_mask), batch.target, self.config
        smoothing = config.label_smoothing if self.training else 0.0
        if not (config.doubly_stochastic and self.training):
            total = self.decoder_head.loss(memory, target, smoothing)
        else:
            total, layers = attended(self.decoder_head, lambda: self.decoder_head.loss(memory, target, smoothing))
            uneven = [unevenness(weights, target != PAD, memory.mask) for weights in layers]
            total = total + config.doubly_stochastic * torch.stack(uneven).mean()
        return Loss(total, (target != PAD).sum())

    def start(self, batch: Batch, capacity: int | None = None) -> State:
        """Read the pictures and stand before the first target token."""
        return self.decoder_head.start(self.encode(batch.source, batch.source_mask), capacity)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N,) or (N, P); give log-probabilities (N, V) of the next one."""
        return self.decoder_head.step(tokens, state)

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N, P); give log-probabilities (N, P, V) of what follows each of them."""
        return self.decoder_head.read(tokens, state)

    def score(self, batch: Batch) -> TokenScores:
        """Log-probability of every target token, and whether it was the first choice."""
        return self.decoder_head.score(self.encode(batch.source, batch.source_mask), batch.target)
