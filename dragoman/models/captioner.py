"""Image captioning (Show, Attend and Tell; Xu et al. 2015) and speech to text: an encoder of features, any decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from dragoman.base.config import Range, Share, setting
from dragoman.data import Batch
from dragoman.data.tokenizers import PAD
from dragoman.models.config import TransformerConfig
from dragoman.models.contracts import Loss, State, TokenScores
from dragoman.models.decoders.recurrent import RecurrentDecoderConfig
from dragoman.models.encoders.frames import FramesConfig
from dragoman.models.encoders.images import ResNetConfig
from dragoman.models.heads.decoder_head import DecoderHead, decoder_head_problems
from dragoman.models.layers.attention import observe_attention
from dragoman.models.layers.augmentation import AugmentationConfig, NoAugmentationConfig
from dragoman.models.registry import DecoderConfig, FeatureEncoderConfig, has_attention
from dragoman.models.sources import FeatureModel


@dataclass(frozen=True)
class CaptionerConfig:
    """An encoder of images, or of other features, and a decoder of captions."""

    kind: ClassVar[str] = "captioner"
    tie: bool = setting(True, help="target embeddings and output layer share one table")
    output_bias: bool = setting(False, help="the output layer has a bias")
    label_smoothing: Share = setting(0.1, help="share of the target probability spread over the vocabulary")
    doubly_stochastic: Annotated[float, Range(0.0, None)] = setting(
        0.0,
        help="λ, weight of doubly stochastic attention: every image region gets attention 1 (Xu et al. 2015, eq. 14)",
    )
    augment: AugmentationConfig = setting(NoAugmentationConfig(), help="data augmentation during training")
    encoder: FeatureEncoderConfig = setting(ResNetConfig(), help="encoder of the image")
    decoder: DecoderConfig = setting(RecurrentDecoderConfig(), help="decoder of the caption")

    def problems(self) -> Iterator[str]:
        yield from decoder_head_problems(self.tie, self.decoder)
        if self.doubly_stochastic and not has_attention(self.decoder):
            yield (
                f"doubly_stochastic: found {self.doubly_stochastic}, expected 0: decoder.kind = {self.decoder.kind!r} "
                "has no attention"
            )


def doubly_stochastic_penalty(weights: Tensor, target_mask: Tensor, memory_mask: Tensor) -> Tensor:
    """Σ_i (1 − Σ_t α_ti)² over real image regions i and tokens t, averaged over heads, summed over rows: ().

    weights (B, H, T, S), masks (B, T) and (B, S): the second term of Xu et al. 2015, eq. 14, without its λ.
    """
    attention = (weights * target_mask[:, None, :, None]).sum(2)  # (B, H, S)
    return ((1 - attention) ** 2 * memory_mask[:, None]).mean(1).sum()


def with_attention(model: nn.Module, run: Callable[[], Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The result of `run`, and the attention weights (B, H, T, S) of every layer that attends over the memory.

    The weights keep their autograd graph, so that a loss may use them.
    """
    inside = {id(module) for module in model.modules() if getattr(module, "is_cross_attention", False)}
    seen: dict[int, list[Tensor]] = {}

    def keep(module: nn.Module, weights: Tensor) -> None:
        if id(module) in inside:
            seen.setdefault(id(module), []).append(weights)

    with observe_attention(keep):
        out = run()
    assert seen, "no attention over the memory was observed; compiled blocks show none"
    return out, [torch.cat(steps, 2) for steps in seen.values()]  # recurrent decoders attend once per step


class Captioner(FeatureModel):
    """Encodes an image and writes a caption one token after another."""

    decodes = "stepwise"

    def __init__(self, config: CaptionerConfig, features: int, target_vocabulary: int) -> None:
        super().__init__(config, features)
        self.decoder_head = DecoderHead(
            config.decoder, self.encoder.width, target_vocabulary, tie=config.tie, bias=config.output_bias
        )

    @property
    def max_positions(self) -> int | None:
        return self.decoder_head.max_positions

    @property
    def has_unused_parameters(self) -> bool:
        return not has_attention(self.config.decoder)

    @property
    def graph_blockers(self) -> list[str]:
        own = ["model.doubly_stochastic observes the attention with a hook"] if self.config.doubly_stochastic else []
        return own + super().graph_blockers

    def forward(self, batch: Batch) -> Loss:
        """Summed cross-entropy, in training with the doubly stochastic term, and the number of tokens."""
        memory, target, config = self.encode(batch.source.data, batch.source.mask), batch.target, self.config
        smoothing = config.label_smoothing if self.training else 0.0
        if not (config.doubly_stochastic and self.training):
            total = self.decoder_head.loss(memory, target, smoothing)
        else:
            total, layers = with_attention(self.decoder_head, lambda: self.decoder_head.loss(memory, target, smoothing))
            penalties = [doubly_stochastic_penalty(weights, target != PAD, memory.mask) for weights in layers]
            total = total + config.doubly_stochastic * torch.stack(penalties).mean()
        return Loss(total, (target != PAD).sum())

    def start(self, batch: Batch, capacity: int | None = None) -> State:
        return self.decoder_head.start_from(self.encode(batch.source.data, batch.source.mask), capacity)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return self.decoder_head.step(tokens, state)

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return self.decoder_head.read(tokens, state)

    def score(self, batch: Batch) -> TokenScores:
        return self.decoder_head.score(self.encode(batch.source.data, batch.source.mask), batch.target)


@dataclass(frozen=True)
class SpeechToTextConfig(CaptionerConfig):
    """An encoder of frames and a decoder of their text."""

    kind: ClassVar[str] = "speech-to-text"
    prompt: tuple[int, ...] = setting((), help="token ids that the decoder reads before <sos>; of imported models")
    suppress: tuple[int, ...] = setting((), help="token ids that no search writes; of imported models")
    suppress_first: tuple[int, ...] = setting((), help="token ids that no text begins with; of imported models")
    encoder: FeatureEncoderConfig = setting(FramesConfig(), help="encoder of the frames")
    decoder: DecoderConfig = setting(TransformerConfig(), help="decoder of the text")


class SpeechToText(Captioner):
    """Encodes frames and writes their text one token after another."""

    never: Tensor
    never_first: Tensor

    def __init__(self, config: SpeechToTextConfig, features: int, target_vocabulary: int) -> None:
        super().__init__(config, features, target_vocabulary)
        self.decoder_head.prompt = config.prompt
        for name, tokens in (("never", config.suppress), ("never_first", config.suppress_first)):
            chosen = torch.zeros(target_vocabulary, dtype=torch.bool)
            chosen[list(tokens)] = True
            self.register_buffer(name, chosen, persistent=False)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        scores, after = super().step(tokens, state)
        first = after.length == len(self.decoder_head.prompt) + 1  # <sos> was the last token that was read
        return scores.masked_fill(self.never | (self.never_first & first), -torch.inf), after
