"""The pointer-generator: any decoder with attention, which may also copy source tokens (See et al. 2017).

    p(y) = p_gen P_vocab(y) + (1 − p_gen) Σ_{i: x_i = y} a_i                  (eq. 9)
    p_gen = σ(w_c · c + w_h · h + w_x · x + b)                                (eq. 8)

    P_vocab = softmax(V (h + W c))                                            (eq. 4)

Source and target tokens are equal if their texts are. Source tokens that the target vocabulary lacks extend it, as in
section 2.2 of the paper: copy j of a source is the token V + j, which is read as <unk> (data/tokenizers/pair_codec.py).

The paper points with the attention of its one recurrent layer.
Here the pointer is an attention of its own over the encoder's output, with context c, since a Transformer or ConvS2S
has many, one per layer and head. The softmax reads c too, as in the paper: otherwise it cannot know which source token
it replaces, and learns slowly once the pointer copies well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import Share, SizeOrNone, setting
from dragoman.data.tokenizers import MAX_COPIES, PAD, UNK
from dragoman.models.config import TransformerConfig
from dragoman.models.contracts import Criterion, Decoder, Encoder, Memory, State
from dragoman.models.convs2s import ConvS2SDecoder, ConvS2SDecoderConfig
from dragoman.models.decoders.recurrent import (
    LuongDecoder,
    LuongDecoderConfig,
    RecurrentDecoder,
    RecurrentDecoderConfig,
)
from dragoman.models.heads.softmax import full_precision
from dragoman.models.layers.embeddings import Embedding
from dragoman.models.layers.linear import LogProbabilities
from dragoman.models.traits import ModelContext
from dragoman.models.transformer import TransformerDecoder

InnerConfig = RecurrentDecoderConfig | LuongDecoderConfig | TransformerConfig | ConvS2SDecoderConfig
INNER: dict[type, Any] = {
    RecurrentDecoderConfig: RecurrentDecoder,
    LuongDecoderConfig: LuongDecoder,
    TransformerConfig: TransformerDecoder,
    ConvS2SDecoderConfig: ConvS2SDecoder,
}


@dataclass(frozen=True)
class PointerGeneratorConfig:
    """A decoder that writes a word of the vocabulary or copies one of the source."""

    kind: ClassVar[str] = "pointer-generator"
    pointer: SizeOrNone = setting(0, help="size of the pointer's queries and keys; 0: that of the hidden vectors")
    generation: Share = setting(
        0.0,
        help="share of the loss that the softmax has alone, as if there were no pointer; above 0 it goes on learning "
        "from tokens that the pointer copies well",
    )
    inner: InnerConfig = setting(RecurrentDecoderConfig(), help="the decoder")

    @property
    def embedding(self) -> int:
        return self.inner.embedding

    @property
    def output_width(self) -> int:
        return self.inner.output_width


class Source:
    """The fields of the static state, one row per source."""

    def __init__(self, static: Any) -> None:
        self.inner, self.keys, self.values, self.mask, self.tokens = static


class PointerGenerator(Decoder):
    """Mixes the softmax over the vocabulary with attention over source tokens.

    A source position without a token to copy (<eos>, a language tag) counts as <unk>, so all probabilities sum to 1.
    """

    own_likelihood = True
    copies_words = True
    output: nn.Linear
    inner: Decoder

    def __init__(self, config: PointerGeneratorConfig, embedding: Embedding, memory_width: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.inner = INNER[type(config.inner)](config.inner, embedding, memory_width)
        self.width, self.generation = self.inner.width, config.generation
        self.max_positions = self.inner.max_positions
        self.unused_memory, self.shares_cache = self.inner.unused_memory, self.inner.shares_cache
        size = config.pointer or self.width
        self.query = nn.Linear(self.width, size, bias=False)
        self.key = nn.Linear(memory_width, size, bias=False)
        self.context = nn.Linear(memory_width, self.width, bias=False)
        self.gate = nn.Linear(self.width + memory_width + embedding.width, 1)

    @classmethod
    def problems(cls, config: PointerGeneratorConfig, around: ModelContext) -> Iterator[str]:
        for problem in INNER[type(config.inner)].problems(config.inner, around):
            yield problem.replace("decoder.", "decoder.inner.", 1)
        if config.generation and around.in_chunks:
            yield "decoder.generation: truncate and word-by-word forcing see no softmax alone; expected 0"

    def connect(self, encoder: Encoder, *, share_cells: bool = False) -> None:
        self.inner.connect(encoder, share_cells=share_cells)

    def set_output(self, layer: nn.Linear) -> LogProbabilities:
        self.output = layer
        self.vocabulary = layer.out_features  # V
        self.width = self.vocabulary + MAX_COPIES
        return LogProbabilities(self.width)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """static = (that of the inner decoder, keys, values, mask, target token of each position)."""
        state = self.inner.start(memory, capacity)
        tokens = torch.zeros_like(memory.mask, dtype=torch.long) if memory.tokens is None else memory.tokens
        tokens = tokens.masked_fill(tokens == PAD, UNK)  # (B, S)
        static = (state.static, self.key(memory.keys), memory.values, memory.mask, tokens)
        return state._replace(static=static)

    def without_cache(self, state: State) -> State:
        inner = self.inner.without_cache(state._replace(static=Source(state.static).inner))
        return inner._replace(static=state.static)

    def _read(self, tokens: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor, State]:
        """Logits (N, T, V), attention (N, T, S) and logit of p_gen (N, T, 1) after tokens (N, T)."""
        source = Source(state.static)
        tokens = tokens.masked_fill(tokens >= self.vocabulary, UNK)
        hidden, after = self.inner(tokens, state._replace(static=source.inner))
        rows, length = tokens.shape
        query = self.query(hidden).view(source.keys.shape[0], -1, source.keys.shape[2])  # (B, k·T, P)
        scores = full_precision(query @ source.keys.transpose(1, 2)) * source.keys.shape[2] ** -0.5
        attention = scores.masked_fill(~source.mask[:, None], -torch.inf).softmax(-1)  # (B, k·T, S)
        context = (attention.to(source.values.dtype) @ source.values).view(rows, length, -1)
        gate = full_precision(self.gate(torch.cat([context, hidden, self.embedding(tokens)], -1)))
        logits = full_precision(self.output(hidden + self.context(context)))
        return logits, attention.view(rows, length, -1), gate, after._replace(static=state.static)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens (N, T) → log-probabilities (N, T, V + copies) of the next tokens."""
        logits, attention, gate, after = self._read(tokens, state)
        return self._mixture(logits, attention, gate, state), after

    def _mixture(self, logits: Tensor, attention: Tensor, gate: Tensor, state: State) -> Tensor:
        """What `_read` gives → log-probabilities (N, T, V + copies)."""
        copied = Source(state.static).tokens  # (B, S)
        weights = (attention * (-gate).sigmoid()).view(copied.shape[0], -1, copied.shape[1])  # (B, k·T, S)
        generated = F.pad(logits.softmax(-1) * gate.sigmoid(), (0, MAX_COPIES))
        mixed = generated.view(*weights.shape[:2], -1)  # (B, k·T, V + copies)
        mixed = mixed.scatter_add(2, copied[:, None].expand_as(weights), weights)
        tiny = torch.finfo(mixed.dtype).tiny
        return mixed.clamp(min=tiny).log().view(*logits.shape[:2], -1)

    def suppress(self, scores: Tensor, state: State) -> Tensor:
        """Suppress the copies that a source does not have, in place."""
        tokens = Source(state.static).tokens
        numbers = (tokens - self.vocabulary + 1).clamp(min=0)  # (B, S), 0 for other tokens
        absent = torch.ones(len(tokens), 1 + MAX_COPIES, dtype=torch.bool, device=tokens.device)
        absent = absent.scatter(1, numbers, False)[:, None, 1:]  # (B, 1, copies)
        scores.view(len(tokens), -1, self.width)[:, :, self.vocabulary :].masked_fill_(absent, -torch.inf)
        return scores

    def loss(self, inputs: Tensor, target: Tensor, state: State, criterion: Criterion) -> Tensor:
        """Σ −log p of the target tokens alone, which needs no distribution over the vocabulary but the softmax's.

        Label smoothing spreads its share over the softmax, not over the mixture.
        """
        logits, attention, gate, _ = self._read(inputs, self.without_cache(state))
        return self._losses(logits, attention, gate, target, state, criterion.smoothing).sum()

    def scored_losses(
        self, inputs: Tensor, target: Tensor, state: State, criterion: Criterion
    ) -> tuple[Tensor, Tensor]:
        logits, attention, gate, _ = self._read(inputs, self.without_cache(state))
        losses = self._losses(logits, attention, gate, target, state, criterion.smoothing)
        return losses, self._mixture(logits, attention, gate, state)

    def _losses(
        self, logits: Tensor, attention: Tensor, gate: Tensor, target: Tensor, state: State, smoothing: float
    ) -> Tensor:
        """What `_read` gives → the loss of every token (N, T), zero on padding."""
        copied = Source(state.static).tokens
        same = copied[:, None] == target.reshape(copied.shape[0], -1, 1)  # (B, k·T, S)
        copy = (attention * same.view_as(attention)).sum(-1)  # (N, T)
        normaliser = logits.logsumexp(-1)
        known = target < self.vocabulary
        chosen = logits.gather(-1, (target * known)[:, :, None])[:, :, 0] - normaliser
        share = gate[:, :, 0]
        tiny = torch.finfo(copy.dtype).tiny
        mixed = chosen.exp() * known * share.sigmoid() + copy * (-share).sigmoid()
        likelihood = mixed.clamp(min=tiny).log()
        if self.training and self.generation:
            # The mixture teaches the softmax in proportion to what it adds: where the pointer is right, hardly at all.
            likelihood = torch.lerp(likelihood, torch.where(known, chosen, likelihood), self.generation)
        losses: Tensor = -(1 - smoothing) * likelihood
        if smoothing:
            losses = losses - smoothing * (logits.mean(-1) - normaliser)
        return losses * (target != PAD)

    def loss_of(self, outputs: Tensor, target: Tensor, criterion: Criterion) -> Tensor:
        """From log-probabilities (N, T, V + copies); label smoothing covers the vocabulary, not the copies."""
        chosen = outputs.gather(-1, target[:, :, None])[:, :, 0]
        spread = outputs[:, :, : self.vocabulary].mean(-1)
        losses = -(1 - criterion.smoothing) * chosen - criterion.smoothing * spread
        return (losses * (target != PAD)).sum()
