"""Speech recognition by an encoder and a decoder, without CTC (Chan et al. 2016; Whisper, Radford et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dragoman.config.settings import setting
from dragoman.models.captioner import Captioner, CaptionerConfig
from dragoman.models.contracts import State
from dragoman.models.encoders.frames import FramesConfig
from dragoman.models.registry import DecoderConfig, FeatureEncoderConfig
from dragoman.models.transformer import TransformerConfig


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
        return self._suppress(scores, after), after

    def _suppress(self, scores: Tensor, after: State) -> Tensor:
        """Scores (N, V) after a step without tokens that must not be written; the others stay as they are."""
        first = after.length == len(self.decoder_head.prompt) + 1  # <sos> was the last token that was read
        return scores.masked_fill(self.never | (self.never_first & first), -torch.inf)
