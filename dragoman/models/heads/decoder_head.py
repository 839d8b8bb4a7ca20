"""A decoder with its embeddings and output layer, for models whose sources are not tokens (images, audio)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dragoman.data.tokenizers.base import PAD, SOS
from dragoman.layers.embeddings import build_embedding
from dragoman.models.contracts import Decoder, Memory, State, TokenScores
from dragoman.models.heads.softmax import (
    CrossEntropy,
    FullSoftmaxConfig,
    connect_output,
    log_probabilities,
    summed_loss,
    token_scores,
)
from dragoman.models.registry import DecoderConfig, build_decoder


def decoder_head_problems(tie: bool, decoder: DecoderConfig) -> Iterator[str]:
    """Cross-field validation errors of a decoder head."""
    if tie and decoder.embedding != decoder.output_width:
        yield (
            f"tie: found true, which needs equal sizes, found {decoder.embedding} for the embeddings and "
            f"{decoder.output_width} for the decoder's output"
        )
    elif tie and decoder.embedding == 0:
        yield "tie: found true, which needs learned embeddings, found one-hot vectors (embedding = 0)"
    if getattr(decoder, "begin", "") == "copy":
        yield "decoder.begin: 'copy' needs an encoder of tokens, expected 'project' or 'zero'"


class DecoderHead(nn.Module):
    """Writes a target one token after another over the memory of any encoder."""

    decoder: Decoder
    prompt: tuple[int, ...] = ()  # tokens that the decoder reads before <sos>

    def __init__(
        self, config: DecoderConfig, memory_width: int, vocabulary: int, *, tie: bool, bias: bool = False
    ) -> None:
        """With `tie` the target embeddings are the output layer's weights too; `bias` is that of the output layer."""
        super().__init__()
        embedding = build_embedding(vocabulary, config.embedding, PAD)
        self.decoder = build_decoder(config, embedding, memory_width)
        output = nn.Linear(self.decoder.width, vocabulary, bias=bias)
        if bias:
            nn.init.zeros_(output.bias)
        self.cross_entropy = CrossEntropy()
        if tie:
            assert isinstance(embedding.weight, nn.Parameter)
            output.weight = embedding.weight
        else:
            nn.init.normal_(output.weight, std=self.decoder.width**-0.5)
        self.output = connect_output(self.decoder, output)

    @property
    def max_positions(self) -> int | None:
        limit = self.decoder.max_positions
        return None if limit is None else limit - len(self.prompt)

    def hidden(self, memory: Memory, target: Tensor) -> Tensor:
        """Hidden vectors (B, T, D) under teacher forcing with target (B, T)."""
        inputs = torch.cat([target.new_full((target.shape[0], 1), SOS), target[:, :-1]], 1)
        return self.decoder(inputs, self.start(memory))[0]

    def loss(self, memory: Memory, target: Tensor, smoothing: float) -> Tensor:
        """Summed cross-entropy over real target tokens: ()."""
        hidden = self.hidden(memory, target)
        return summed_loss(FullSoftmaxConfig(), hidden, target, self.output, smoothing, self.cross_entropy)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        state = self.decoder.start(memory, capacity if capacity is None else capacity + len(self.prompt))
        if self.prompt:
            tokens = torch.tensor(self.prompt, device=memory.mask.device).expand(len(memory.mask), -1)
            state = self.decoder(tokens, state)[1]
        return state

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, state = self.decoder(tokens if tokens.dim() == 2 else tokens[:, None], state)
        return log_probabilities(self.output(hidden[:, -1])), state

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, state = self.decoder(tokens, state)
        return log_probabilities(self.output(hidden)), state

    def score(self, memory: Memory, target: Tensor) -> TokenScores:
        return token_scores(self.output(self.hidden(memory, target)), target)
