"""A decoder with its output layer: what all models that write token by token share."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dragoman.data.tokenizers import PAD, SOS
from dragoman.models.contracts import Decoder, Memory, State, TokenScores
from dragoman.models.heads.softmax import CrossEntropy, SoftmaxCriterion, log_probabilities, token_scores
from dragoman.models.layers.embeddings import build_embedding
from dragoman.models.layers.linear import output_layer
from dragoman.models.registry import DecoderConfig, build_decoder, decoder_class
from dragoman.models.traits import ModelContext


def teacher_inputs(target: Tensor) -> Tensor:
    """The decoder's inputs under teacher forcing: <sos> and all target tokens but the last."""
    return torch.cat([target.new_full((target.shape[0], 1), SOS), target[:, :-1]], 1)


class TokenWriter(nn.Module):
    """Writes a target one token after another over the memory of any encoder."""

    decoder: Decoder
    prompt: tuple[int, ...] = ()  # tokens that the decoder reads before <sos>

    def set_decoder(self, decoder: Decoder, output: nn.Linear) -> None:
        """Take a decoder and the output layer after it."""
        self.decoder, self.output, self.cross_entropy = decoder, decoder.set_output(output), CrossEntropy()

    @property
    def max_positions(self) -> int | None:
        limit = self.decoder.max_positions
        return None if limit is None else limit - len(self.prompt)

    def start_from(self, memory: Memory, capacity: int | None = None) -> State:
        """The state before <sos>."""
        state = self.decoder.start(memory, capacity if capacity is None else capacity + len(self.prompt))
        if self.prompt:
            tokens = torch.tensor(self.prompt, device=memory.mask.device).expand(len(memory.mask), -1)
            state = self.decoder(tokens, state)[1]
        return state

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        scores, state = self.scores(tokens, state)
        return log_probabilities(scores), state

    def hidden_step(self, tokens: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """Like `step`, with the decoder's vectors (N, D): contrastive search and others compare them."""
        hidden, state = self.decoder(tokens if tokens.dim() == 2 else tokens[:, None], state)
        return log_probabilities(self.decoder.suppress(self.output(hidden[:, -1]), state)), hidden[:, -1], state

    def scores(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Like `step`, with logits (N, V)."""
        hidden, state = self.decoder(tokens if tokens.dim() == 2 else tokens[:, None], state)
        return self.decoder.suppress(self.output(hidden[:, -1]), state), state

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, state = self.decoder(tokens, state)
        return log_probabilities(self.decoder.suppress(self.output(hidden), state)), state


def decoder_head_problems(tie: bool, decoder: DecoderConfig) -> Iterator[str]:
    """Cross-field validation errors of a decoder head."""
    if tie and decoder.embedding != decoder.output_width:
        yield (
            f"tie: found true, which needs equal sizes, found {decoder.embedding} for the embeddings and "
            f"{decoder.output_width} for the decoder's output"
        )
    elif tie and decoder.embedding == 0:
        yield "tie: found true, which needs learned embeddings, found one-hot vectors (embedding = 0)"
    yield from decoder_class(decoder).problems(decoder, ModelContext())


class DecoderHead(TokenWriter):
    """A decoder with its own embeddings, for models whose sources are not tokens (images, audio)."""

    def __init__(
        self, config: DecoderConfig, memory_width: int, vocabulary: int, *, tie: bool, bias: bool = False
    ) -> None:
        """With `tie` the target embeddings are the output layer's weights too; `bias` is that of the output layer."""
        super().__init__()
        embedding = build_embedding(vocabulary, config.embedding, PAD)
        decoder = build_decoder(config, embedding, memory_width)
        table = embedding.weight if tie else None
        assert table is None or isinstance(table, nn.Parameter)
        self.set_decoder(decoder, output_layer(decoder.width, vocabulary, table, bias=bias))

    def loss(self, memory: Memory, target: Tensor, smoothing: float) -> Tensor:
        """The summed loss over real target tokens: ()."""
        criterion = SoftmaxCriterion(self.output, self.cross_entropy, smoothing=smoothing)
        return self.decoder.loss(teacher_inputs(target), target, self.start_from(memory), criterion)

    def logits(self, memory: Memory, target: Tensor) -> Tensor:
        """Logits (B, T, V) of every target token, given the true tokens before it."""
        return self.output(self.decoder(teacher_inputs(target), self.start_from(memory))[0])

    def score(self, memory: Memory, target: Tensor) -> TokenScores:
        return token_scores(self.logits(memory, target), target)
