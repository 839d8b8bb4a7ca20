"""A decoder with its tables (FIELD C10), for wholes whose sources are not tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dragoman.data.tokenizers.base import PAD, SOS
from dragoman.layers.blocks import build_embedding
from dragoman.models.contracts import Decoder, Memory, State, TokenScores
from dragoman.models.encoder_decoder import DECODERS, DecoderConfig
from dragoman.models.heads.softmax import CrossEntropy, FullSoftmaxConfig, full_precision, summed_loss


def decoder_head_problems(tie: bool, decoder: DecoderConfig) -> Iterator[str]:
    """What the settings of a writer cannot say one by one."""
    if tie and decoder.embedding != decoder.output_width:
        yield (
            f"tie: found true, which needs equal sizes, found {decoder.embedding} for the embeddings and "
            f"{decoder.output_width} for what the decoder writes"
        )
    elif tie and decoder.embedding == 0:
        yield "tie: found true, which needs learned embeddings, found one-hot vectors (embedding = 0)"
    if getattr(decoder, "begin", "") == "copy":
        yield "decoder.begin: 'copy' needs an encoder of tokens, expected 'project' or 'zero'"


class DecoderHead(nn.Module):
    """Writes a target one token after another over the memory of any encoder."""

    decoder: Decoder

    def __init__(self, config: DecoderConfig, memory_width: int, vocabulary: int, *, tie: bool) -> None:
        """tie: the target embeddings are the output table too."""
        super().__init__()
        embedding = build_embedding(vocabulary, config.embedding, PAD)
        self.decoder = DECODERS[type(config)](config, embedding, memory_width)
        self.output = nn.Linear(self.decoder.width, vocabulary, bias=False)
        self.costs = CrossEntropy()
        if tie:
            assert isinstance(embedding.weight, nn.Parameter)
            self.output.weight = embedding.weight
        else:
            nn.init.normal_(self.output.weight, std=self.decoder.width**-0.5)

    @property
    def max_positions(self) -> int | None:
        """Most tokens it can write; None: any number."""
        return self.decoder.max_positions

    def hidden(self, memory: Memory, target: Tensor) -> Tensor:
        """What the output layer sees of true targets (B, T): (B, T, D)."""
        inputs = torch.cat([target.new_full((target.shape[0], 1), SOS), target[:, :-1]], 1)
        return self.decoder(inputs, self.start(memory))[0]

    def loss(self, memory: Memory, target: Tensor, smoothing: float) -> Tensor:
        """Summed cross-entropy over real target tokens: ()."""
        hidden = self.hidden(memory, target)
        return summed_loss(FullSoftmaxConfig(), hidden, target, self.output, smoothing, self.costs)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """Stand before the first target token."""
        return self.decoder.start(memory, capacity)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N,) or (N, P); give log-probabilities (N, V) of the next one."""
        hidden, state = self.decoder(tokens if tokens.dim() == 2 else tokens[:, None], state)
        return full_precision(self.output(hidden[:, -1])).log_softmax(-1), state

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N, P); give log-probabilities (N, P, V) of what follows each of them."""
        hidden, state = self.decoder(tokens, state)
        return full_precision(self.output(hidden)).log_softmax(-1), state

    def score(self, memory: Memory, target: Tensor) -> TokenScores:
        """Log-probability of every target token, and whether it was the first choice."""
        logits, mask = full_precision(self.output(self.hidden(memory, target))), target != PAD
        chosen = logits.log_softmax(-1).gather(-1, target[:, :, None])[:, :, 0]
        return TokenScores(chosen * mask, (logits.argmax(-1) == target) & mask, mask)
