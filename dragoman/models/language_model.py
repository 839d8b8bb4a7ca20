"""Language models: predict the next token, on running text or line by line; and their recurrent layers.

Running text has no <sos>: a line starts after the <eos> of the line before. Every search starts with <sos>, and the
model replaces it by the last token of the prompt. So every search can continue a text.

A stack follows the contract of decoders, `stack(tokens, state) -> (hidden, state)`, without a memory. Its carry is what
a segment of running text passes on to the next segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dragoman.base import DataError
from dragoman.base.config import Depth, Range, Share, Size, SizeOrNone, setting
from dragoman.data import Batch, Segment
from dragoman.data.tokenizers import PAD, SOS
from dragoman.models.config import FullSoftmaxConfig, SoftmaxConfig, TransformerConfig
from dragoman.models.contracts import BaseModel, Loss, State, TokenScores, map_tensors
from dragoman.models.heads.decoder_head import teacher_inputs
from dragoman.models.heads.softmax import CrossEntropy, MixtureOfSoftmaxes, SoftmaxCriterion, full_precision
from dragoman.models.kernels.cpu_dropout import dropout
from dragoman.models.layers.cells import CellConfig, LSTMConfig, build_cell
from dragoman.models.layers.config import LearnedConfig, SegmentsConfig
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.linear import output_layer
from dragoman.models.layers.recurrence import Cell, CellState
from dragoman.models.layers.rnn import VariationalDropout
from dragoman.models.transformer import CausalTransformer, memory_problems


class EmbeddingDropout(TokenEmbedding):
    """Drops whole words in training: a word is zero wherever it occurs in the batch (Gal and Ghahramani 2016, 4.2).

    Only the embeddings of the batch are multiplied, not the table.
    """

    def __init__(self, vocabulary: int, width: int, pad: int, rate: float) -> None:
        super().__init__(vocabulary, width, pad)
        self.rate = rate

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = super().forward(tokens)
        if not self.training or self.rate == 0.0:
            return embedded
        keep = self.weight.new_empty(self.weight.shape[0]).bernoulli_(1 - self.rate) / (1 - self.rate)
        return embedded * keep[tokens][..., None]


@dataclass(frozen=True)
class RecurrentStackConfig:
    """Recurrent layers with the regularisation of AWD-LSTM (Merity et al. 2018)."""

    kind: ClassVar[str] = "recurrent"
    cell: CellConfig = setting(LSTMConfig(), help="recurrent cell")
    layers: Depth = setting(3, help="number of layers")
    embedding: Size = setting(400, help="size of the embeddings")
    width: Size = setting(1150, help="size of all layers except the last")
    last: SizeOrNone = setting(0, help="size of the last layer; 0: that of the embeddings, so that both can be tied")
    input_dropout: Share = setting(0.65, help="dropout on embeddings, one mask for all steps of a segment")
    dropout: Share = setting(0.2, help="dropout between layers, one mask for all steps of a segment")
    weight_dropout: Share = setting(0.5, help="DropConnect on W_hh, one mask for all rows and steps of a segment")

    @property
    def output_width(self) -> int:
        return self.last or self.embedding

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.embedding, *(self.width,) * (self.layers - 1), self.output_width)


class WeightDropout(nn.Module):
    """DropConnect on the hidden-to-hidden weights of a cell (Wan et al. 2013; Merity et al. 2018, eq. 1).

    All steps of a call share one mask, so a fused kernel can still run the whole sequence.
    """

    def __init__(self, cell: Cell, rate: float) -> None:
        super().__init__()
        self.sequence, self.rate = nn.ModuleDict({"cell": cell}), rate  # the names of parameters in checkpoints

    @property
    def cell(self) -> Cell:
        cell = self.sequence["cell"]
        assert isinstance(cell, Cell)
        return cell

    def forward(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """x (N, T, I) → outputs (N, T, D) and the state after them."""
        if not self.training or self.rate == 0.0:
            out: tuple[Tensor, CellState] = self.cell(x, state)
            return out
        weights = {"hidden_weight": dropout(self.cell.hidden_weight, self.rate)}
        return functional_call(self.cell, weights, (x, state))


class RecurrentStack(nn.Module):
    """Embedding and recurrent layers; the carry is the state of every layer."""

    max_positions = None

    def __init__(self, config: RecurrentStackConfig, embedding: TokenEmbedding, memory: int = 0) -> None:
        super().__init__()
        self.embedding = embedding
        self.width = config.output_width
        self.input_dropout = VariationalDropout(config.input_dropout)
        self.dropout = VariationalDropout(config.dropout)
        sizes = config.sizes
        self.layers = nn.ModuleList(
            WeightDropout(build_cell(config.cell, inputs, width), config.weight_dropout)
            for inputs, width in pairwise(sizes)
        )

    def start(self, rows: int, capacity: int | None = None) -> State:
        """Make the state before the first token; it needs no capacity."""
        return State(static=(), cache=tuple(layer.cell.start(rows) for layer in self._layers()), length=0)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        x = self.input_dropout(self.embedding(tokens))
        after = []
        for number, (layer, before) in enumerate(zip(self._layers(), state.cache, strict=True)):
            x, last = layer(x if number == 0 else self.dropout(x), before)
            after.append(last)
        return x, state._replace(cache=tuple(after), length=state.length + tokens.shape[1])

    def empty_carry(self, rows: int) -> Any:
        return self.start(rows).cache

    def carry_of(self, state: State) -> Any:
        """The part of a state that the next segment starts from."""
        return state.cache

    def resume(self, carry: Any) -> State:
        return State(static=(), cache=carry, length=0)

    def _layers(self) -> list[WeightDropout]:
        return [layer for layer in self.layers if isinstance(layer, WeightDropout)]


StackConfig = RecurrentStackConfig | TransformerConfig
STACKS: dict[type, Any] = {
    RecurrentStackConfig: RecurrentStack,
    TransformerConfig: CausalTransformer,
}
Penalty = Annotated[float, Range(0.0, None)]
MAX_LOGITS = {"cpu": 1 << 21, "cuda": 1 << 27}  # computed at once by `score`: they fit the CPU cache, or 0.5 GB


@dataclass(frozen=True)
class LanguageModelConfig:
    """A model that predicts every token from those before it."""

    kind: ClassVar[str] = "language-model"
    tie: bool = setting(True, help="embeddings and output layer share one table")
    output_bias: bool = setting(True, help="the output layer has a bias")
    embedding_dropout: Share = setting(
        0.0, help="share of the words that are dropped in a training step, wherever they occur"
    )
    output_dropout: Share = setting(0.0, help="dropout before the output layer, one mask for all steps of a segment")
    activation_penalty: Penalty = setting(
        0.0, help="α of activation regularisation: weight of the mean square of the hidden vectors"
    )
    change_penalty: Penalty = setting(
        0.0, help="β of temporal regularisation: weight of their mean square change per step"
    )
    label_smoothing: Share = setting(0.0, help="share of the target probability spread over the vocabulary")
    softmax: SoftmaxConfig = setting(FullSoftmaxConfig(), help="softmax over all words, or over a sample in training")
    mixture: SizeOrNone = setting(
        0, help="mixture of so many softmaxes as output layer (Yang et al. 2018); 0: one softmax"
    )
    mixture_dropout: Share = setting(0.0, help="dropout on the vectors of the mixture, one mask for all steps")
    segment: Size = setting(128, help="tokens of running text per step of truncated back-propagation")
    memory: SizeOrNone = setting(
        0, help="positions that a Transformer carries over to the next segment (Transformer-XL); 0: none"
    )
    stack: StackConfig = setting(TransformerConfig(), help="the layers of the language model")

    def problems(self) -> Iterator[str]:
        stack = self.stack
        if self.mixture and not isinstance(self.softmax, FullSoftmaxConfig):
            yield f"softmax: found {self.softmax.kind!r}, expected 'full' with mixture = {self.mixture}"
        if self.tie and not self.mixture and stack.embedding != stack.output_width:
            yield (
                f"tie: found true, which needs equal sizes, found {stack.embedding} for the embeddings and "
                f"{stack.output_width} for the last layer"
            )
        segment, memory = self.segment, self.memory
        if isinstance(stack, TransformerConfig):
            yield from memory_problems(stack, memory)
        elif memory:
            yield f"memory: found {memory}, expected 0: recurrent layers always carry their state over"
        if memory > segment:
            yield f"segment: found {segment}, expected at least memory = {memory}"
        align = memory if memory and isinstance(getattr(stack, "attention", None), SegmentsConfig) else 1
        if segment % align:
            yield f"segment: found {segment}, expected a multiple of stack.attention.length = {align}"
        positions = getattr(stack, "positions", None)
        if isinstance(positions, LearnedConfig) and positions.max_positions < segment:
            longest = positions.max_positions
            yield f"segment: found {segment}, expected at most stack.positions.max_positions = {longest}"


class LanguageModel(BaseModel):
    """Predicts the next token of running text, or of texts after a prompt."""

    decodes = "stepwise"

    def __init__(self, config: LanguageModelConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        embedding = EmbeddingDropout(vocabulary, config.stack.embedding, PAD, config.embedding_dropout)
        embedding.sides = ("source", "target")
        self.stack = STACKS[type(config.stack)](config.stack, embedding, config.memory)
        self.dropout = VariationalDropout(config.output_dropout)
        table = embedding.weight if config.tie else None
        self.mixture: MixtureOfSoftmaxes | None = None
        width = self.stack.width
        if config.mixture:
            self.mixture = MixtureOfSoftmaxes(width, config.stack.embedding, config.mixture, config.mixture_dropout)
            width = config.stack.embedding
        self.output = output_layer(width, vocabulary, table, bias=config.output_bias)
        self.cross_entropy = CrossEntropy()

    @property
    def max_positions(self) -> int | None:
        """How many tokens it can read, the prompt included; None: no limit."""
        return self.stack.max_positions

    def empty_carry(self, rows: int) -> Any:
        """Zeros for the carry between segments, nested tuples of tensors; None: nothing is carried."""
        return self.stack.empty_carry(rows)

    def forward(self, batch: Segment | Batch) -> Loss:
        """Summed cross-entropy of a segment of running text, or of the targets of a batch line by line."""
        target = batch.target
        if isinstance(batch, Segment):
            raw = self._segment(batch)
        else:
            raw, _ = self.stack(*self._teacher_inputs(batch))
        hidden, config, real = self.dropout(raw), self.config, target != PAD
        if self.mixture is not None:
            smoothing = config.label_smoothing if self.training else 0.0
            total = self.mixture.loss(hidden, target, self.output, smoothing)
            return Loss(total + (self._penalties(raw, hidden, real) if self.training else 0.0), real.sum())
        criterion = SoftmaxCriterion(self.output, self.cross_entropy)
        if not self.training:
            return Loss(criterion(hidden, target), real.sum())
        criterion = replace(criterion, softmax=config.softmax, smoothing=config.label_smoothing)
        return Loss(criterion(hidden, target) + self._penalties(raw, hidden, real), real.sum())

    def _segment(self, segment: Segment) -> Tensor:
        """Hidden vectors (B, T, D) of a segment; its carry is read and then overwritten in place."""
        if segment.fresh or segment.carried is None:
            state = self.stack.start(len(segment.source))
        else:
            # A copy: the backward pass needs the old carry after it has been overwritten.
            half = torch.is_autocast_enabled(segment.source.device.type)
            dtype = torch.get_autocast_dtype(segment.source.device.type) if half else self.output.weight.dtype
            state = self.stack.resume(map_tensors(segment.carried, lambda tensor: tensor.to(dtype, copy=True)))
        hidden: Tensor
        hidden, state = self.stack(segment.source.data, state)
        if segment.carried is not None:
            with torch.no_grad():
                replace_tensors(segment.carried, self.stack.carry_of(state))
        return hidden

    def _penalties(self, raw: Tensor, hidden: Tensor, real: Tensor) -> Tensor | float:
        """Activation and temporal regularisation: α Σ ‖dropout(h_t)‖² / D + β Σ ‖h_t − h_{t−1}‖² / D.

        Merity, McCann and Socher 2017 have means; these are totals over tokens, like the loss.
        """
        total: Tensor | float = 0.0
        width = hidden.shape[-1]
        if self.config.activation_penalty:
            squares = full_precision(hidden).square().sum(-1) * real
            total = total + self.config.activation_penalty / width * squares.sum()
        if self.config.change_penalty:
            changes = full_precision(raw[:, 1:] - raw[:, :-1]).square().sum(-1) * real[:, 1:]
            total = total + self.config.change_penalty / width * changes.sum()
        return total

    def start(self, batch: Batch, capacity: int | None = None) -> State:
        """Read the prompts (batch.source) except their last tokens, which replace <sos> later.

        All prompts of a batch have the same length, at least 1: <eos> for the start of a line.
        """
        source = batch.source.data
        if source.shape[1] > 1 and not bool(batch.source.mask.all()):
            lengths = sorted(set(batch.source.mask.sum(1).tolist()))
            raise DataError(f"prompts of {lengths} tokens in one batch, expected prompts of one length")
        state: State = self.stack.start(source.shape[0], capacity)
        if source.shape[1] > 1:
            _, state = self.stack(source[:, :-1], state)
        return state._replace(static=(source[:, -1],))

    def _replace_sos(self, tokens: Tensor, state: State) -> Tensor:
        """Tokens (N, T) with <sos> replaced by the last token of the prompt."""
        (last,) = state.static
        return torch.where(tokens == SOS, last.repeat_interleave(state.hypotheses)[:, None], tokens)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        tokens = self._replace_sos(tokens if tokens.dim() == 2 else tokens[:, None], state)
        hidden, state = self.stack(tokens, state)
        return full_precision(self.logits_of(self.dropout(hidden)[:, -1])).log_softmax(-1), state

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, state = self.stack(self._replace_sos(tokens, state), state)
        return full_precision(self.logits_of(self.dropout(hidden))).log_softmax(-1), state

    def _teacher_inputs(self, batch: Batch) -> tuple[Tensor, State]:
        state = self.start(batch)
        return self._replace_sos(teacher_inputs(batch.target), state), state

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, T, V) of every target token, given the prompt and the true tokens before it."""
        return self.logits_of(self.dropout(self.stack(*self._teacher_inputs(batch))[0]))

    def logits_of(self, hidden: Tensor) -> Tensor:
        """(…, D) → (…, V); a mixture has log-probabilities, which are logits too."""
        if self.mixture is not None:
            return self.mixture.log_probabilities(hidden, self.output)
        logits: Tensor = self.output(hidden)
        return logits

    def score(self, batch: Batch | Segment) -> TokenScores:
        """Score every target token; logits are computed in chunks."""
        hidden = self._segment(batch) if isinstance(batch, Segment) else self.stack(*self._teacher_inputs(batch))[0]
        target, mask = batch.target, batch.target != PAD
        rows, targets = self.dropout(hidden).flatten(0, 1), target.flatten()
        size = max(1, MAX_LOGITS[target.device.type] // (self.output.out_features * max(1, self.config.mixture)))
        chunks = [
            self._score_chunk(rows[first : first + size], targets[first : first + size])
            for first in range(0, len(targets), size)
        ]
        chosen, best = (torch.cat(tensors).view_as(target) for tensors in zip(*chunks, strict=True))
        return TokenScores(log_probabilities=chosen * mask, correct=(best == target) & mask, mask=mask)

    def _score_chunk(self, hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of targets (n,) after hidden vectors (n, D), and the most probable tokens."""
        logits = full_precision(self.logits_of(hidden))
        highest, best = logits.max(1)
        chosen = logits.gather(1, target[:, None])[:, 0] - highest
        return chosen - (logits - highest[:, None]).exp_().sum(1).log(), best


def replace_tensors(into: Any, values: Any) -> None:
    """Copy nested tuples of tensors into others of the same shapes."""
    if isinstance(into, Tensor):
        into.copy_(values)
        return
    for tensor, value in zip(into, values, strict=True):
        replace_tensors(tensor, value)


def carried_tensors(carry: Any, name: str = "carried") -> dict[str, Tensor]:
    """The tensors of a carry by name, for checkpoints: exact resume needs them."""
    if isinstance(carry, Tensor):
        return {name: carry}
    tensors: dict[str, Tensor] = {}
    for index, inner in enumerate(carry or ()):
        tensors |= carried_tensors(inner, f"{name}.{index}")
    return tensors


def restore_carried(carry: Any, tensors: dict[str, Tensor], name: str = "carried") -> None:
    """Copy tensors from a checkpoint into a carry."""
    for key, tensor in carried_tensors(carry, name).items():
        tensor.copy_(tensors[key])
