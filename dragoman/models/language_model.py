"""Language models: predict the next token, on running text or line by line.

Running text has no <sos>: a line starts after the <eos> of the line before. Every search starts with <sos>, and the
model replaces it by the last token of the prompt. So every search can continue a text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from dragoman.base import DataError
from dragoman.base.config import Range, Share, Size, SizeOrNone, setting
from dragoman.data import Batch, Segment
from dragoman.data.tokenizers import PAD, SOS
from dragoman.models.config import FullSoftmaxConfig, SoftmaxConfig, TransformerConfig
from dragoman.models.contracts import BaseModel, Loss, State, TokenScores, map_tensors
from dragoman.models.decoders.recurrent_stack import EmbeddingDropout, RecurrentStack, RecurrentStackConfig
from dragoman.models.decoders.transformer import CausalTransformer, memory_problems
from dragoman.models.heads.mixture import MixtureOfSoftmaxes
from dragoman.models.heads.softmax import CrossEntropy, SoftmaxCriterion, full_precision
from dragoman.models.layers.config import LearnedConfig, SegmentsConfig
from dragoman.models.layers.linear import output_layer
from dragoman.models.layers.rnn import VariationalDropout

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
        if isinstance(stack, TransformerConfig):
            yield from memory_problems(stack, self.memory)
        else:
            yield from stack.memory_problems(self.memory)
        yield from self._segment_problems()

    def _segment_problems(self) -> Iterator[str]:
        segment, memory = self.segment, self.memory
        if memory > segment:
            yield f"segment: found {segment}, expected at least memory = {memory}"
        align = memory if memory and isinstance(getattr(self.stack, "attention", None), SegmentsConfig) else 1
        if segment % align:
            yield f"segment: found {segment}, expected a multiple of stack.attention.length = {align}"
        positions = getattr(self.stack, "positions", None)
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
        target, state = batch.target, self.start(batch)
        inputs = torch.cat([target.new_full((target.shape[0], 1), SOS), target[:, :-1]], 1)
        return self._replace_sos(inputs, state), state

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
