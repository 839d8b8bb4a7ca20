"""Any encoder with any decoder (FIELD C10): the tables of both, and the whole they make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.data.batches import Batch
from dragoman.data.tokenizers import PAD, SOS, UNK
from dragoman.layers.blocks import TokenEmbedding, drop_words
from dragoman.models.characters import CharacterWordsConfig, CharacterWordsEncoder
from dragoman.models.convolutional import ConvolutionalDecoder, ConvolutionalDecoderConfig
from dragoman.models.core import Decoder, Encoder, Loss, Memory, State, TokenScores
from dragoman.models.encoders import ROW_ENCODERS, RowEncoderConfig
from dragoman.models.recurrent import RecurrentDecoder, RecurrentDecoderConfig
from dragoman.models.transformer import Share, TransformerConfig, TransformerDecoder
from dragoman.settings import setting

EncoderConfig = RowEncoderConfig | CharacterWordsConfig
DecoderConfig = TransformerConfig | RecurrentDecoderConfig | ConvolutionalDecoderConfig

ENCODERS: dict[type, Any] = {
    **ROW_ENCODERS,
    CharacterWordsConfig: CharacterWordsEncoder,
}
DECODERS: dict[type, Any] = {
    TransformerConfig: TransformerDecoder,
    RecurrentDecoderConfig: RecurrentDecoder,
    ConvolutionalDecoderConfig: ConvolutionalDecoder,
}


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """A source reader and a target writer."""

    kind: ClassVar[str] = "encoder-decoder"
    tie: Literal["none", "target", "all"] = setting(
        "target", help="share embeddings: none; target input with output; all: the source table too"
    )
    word_dropout: Share = setting(0.0, help="share of input tokens replaced by <unk> while training")
    label_smoothing: Share = setting(0.1, help="share of the target probability spread over the vocabulary")
    encoder: EncoderConfig = setting(TransformerConfig(), help="what reads the source")
    decoder: DecoderConfig = setting(TransformerConfig(), help="what writes the target")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        if self.tie == "all" and self.encoder.embedding != self.decoder.embedding:
            yield (
                f"tie: 'all' needs equal embedding sizes, found {self.encoder.embedding} in the encoder "
                f"and {self.decoder.embedding} in the decoder"
            )
        given = getattr(self.decoder, "output", None) or self.decoder.embedding
        if self.tie != "none" and given != self.decoder.embedding:
            yield (
                f"tie: {self.tie!r} needs decoder.output = decoder.embedding, found {given} and "
                f"{self.decoder.embedding}"
            )


def full_precision(x: Tensor) -> Tensor:
    """At least float32: probabilities are never computed in half precision."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


class EncoderDecoder(nn.Module):
    """Reads a source, writes a target one token after another."""

    encoder: Encoder
    decoder: Decoder

    def __init__(
        self,
        config: EncoderDecoderConfig,
        source_vocabulary: int,
        target_vocabulary: int,
        source_space: int | None = None,  # the id of the token that parts source words, where there is one
    ) -> None:
        super().__init__()
        self.config = config
        source = TokenEmbedding(source_vocabulary, config.encoder.embedding, PAD, source_space)
        if config.tie == "all":
            assert source_vocabulary == target_vocabulary, "tied tables need one vocabulary"
            target = source
        else:
            target = TokenEmbedding(target_vocabulary, config.decoder.embedding, PAD)
        self.encoder = ENCODERS[type(config.encoder)](config.encoder, source)
        self.decoder = DECODERS[type(config.decoder)](config.decoder, target, self.encoder.width)
        self.output = nn.Linear(self.decoder.width, target_vocabulary, bias=False)
        if config.tie != "none":
            self.output.weight = target.weight
        else:
            nn.init.normal_(self.output.weight, std=self.decoder.width**-0.5)

    @property
    def maximum(self) -> int | None:
        """Most tokens it can write; None: any number."""
        return self.decoder.maximum

    def encode(self, source: Tensor, mask: Tensor) -> Memory:
        """Read sources (B, S)."""
        if self.training:
            source = drop_words(source, self.config.word_dropout, UNK, keep_below=4)
        return self.encoder(source, mask)

    def logits(self, batch: Batch) -> Tensor:
        """Teacher forcing (FIELD G1): scores of every target token given the true ones before it; (B, T, V)."""
        state = self.decoder.start(self.encode(batch.source, batch.source_mask))
        begin = batch.target.new_full((batch.target.shape[0], 1), SOS)
        inputs = torch.cat([begin, batch.target[:, :-1]], 1)
        if self.training:
            inputs = drop_words(inputs, self.config.word_dropout, UNK, keep_below=4)
        hidden, _ = self.decoder(inputs, state)
        out: Tensor = self.output(hidden)
        return out

    def forward(self, batch: Batch) -> Loss:
        """Summed cross-entropy over real target tokens (FIELD G3, G5) and how many there are."""
        logits = self.logits(batch)
        total = F.cross_entropy(
            full_precision(logits).flatten(0, 1),
            batch.target.flatten(),
            ignore_index=PAD,
            reduction="sum",
            label_smoothing=self.config.label_smoothing if self.training else 0.0,
        )
        return Loss(total, (batch.target != PAD).sum())

    def start(self, batch: Batch, capacity: int | None = None) -> State:
        """Read the sources and stand before the first target token."""
        return self.decoder.start(self.encode(batch.source, batch.source_mask), capacity)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N,) or (N, P); give log-probabilities (N, V) of the next one."""
        hidden, state = self.decoder(tokens if tokens.dim() == 2 else tokens[:, None], state)
        return full_precision(self.output(hidden[:, -1])).log_softmax(-1), state

    def score(self, batch: Batch) -> TokenScores:
        """Log-probability of every target token, and whether it was the first choice."""
        logits = self.logits(batch)
        mask = batch.target != PAD
        chosen = full_precision(logits).log_softmax(-1).gather(-1, batch.target[:, :, None])[:, :, 0]
        return TokenScores(
            log_probabilities=chosen * mask,
            correct=(logits.argmax(-1) == batch.target) & mask,
            mask=mask,
        )
