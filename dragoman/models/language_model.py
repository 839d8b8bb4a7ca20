"""Language models (FIELD A5, K1): what comes next, on running text or line by line.

There is no <sos> in running text: a line begins after the <eos> of the one before. A search always begins with <sos>,
and here it stands for the last token of the prompt; so every way of searching can complete a text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from dragoman.config.settings import Range, Share, Size, SizeOrNone, setting
from dragoman.data.batch import Batch
from dragoman.data.bptt import Segment
from dragoman.data.tokenizers.base import PAD, SOS
from dragoman.errors import DataError
from dragoman.layers.positions import LearnedConfig
from dragoman.layers.rnn import VariationalDropout
from dragoman.layers.self_attention import SegmentsConfig
from dragoman.models.contracts import Loss, State, TokenScores, map_tensors
from dragoman.models.decoders.causal import (
    CausalTransformer,
    DroppedEmbedding,
    RecurrentStack,
    RecurrentStackConfig,
    memory_problems,
)
from dragoman.models.heads.softmax import CrossEntropy, FullSoftmaxConfig, SoftmaxConfig, full_precision, summed_loss
from dragoman.models.transformer import TransformerConfig

StackConfig = RecurrentStackConfig | TransformerConfig
STACKS: dict[type, Any] = {
    RecurrentStackConfig: RecurrentStack,
    TransformerConfig: CausalTransformer,
}
Penalty = Annotated[float, Range(0.0, None)]
SCORES = {"cpu": 1 << 21, "cuda": 1 << 27}  # at a time where they are only measured: what a cache holds, or half a GB


@dataclass(frozen=True)
class LanguageModelConfig:
    """Predicts every token from those before it."""

    kind: ClassVar[str] = "language-model"
    tie: bool = setting(True, help="embeddings and output share one table")
    output_bias: bool = setting(True, help="one learned number per word in the output layer")
    embedding_dropout: Share = setting(0.0, help="share of the words whose embeddings are dropped in a step, whole")
    output_dropout: Share = setting(0.0, help="before the output layer, one mask for all steps of a segment")
    activation_penalty: Penalty = setting(0.0, help="α: mean square of what the output layer sees (Merity et al. 2017)")
    change_penalty: Penalty = setting(0.0, help="β: mean square of its change from a token to the next")
    label_smoothing: Share = setting(0.0, help="share of the target probability spread over the vocabulary")
    softmax: SoftmaxConfig = setting(FullSoftmaxConfig(), help="which words the training loss compares")
    segment: Size = setting(128, help="tokens of running text that are read at once; a gradient goes no farther back")
    memory: SizeOrNone = setting(
        0, help="positions a Transformer carries over from one segment to the next (Transformer-XL); 0: none"
    )
    stack: StackConfig = setting(TransformerConfig(), help="what reads the text")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        stack = self.stack
        if self.tie and stack.embedding != stack.output_width:
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
        """Why running text cannot be cut into segments of so many tokens."""
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


class LanguageModel(nn.Module):
    """Reads tokens, says what comes next."""

    def __init__(self, config: LanguageModelConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        embedding = DroppedEmbedding(vocabulary, config.stack.embedding, PAD, config.embedding_dropout)
        self.stack = STACKS[type(config.stack)](config.stack, embedding, config.memory)
        self.dropout = VariationalDropout(config.output_dropout)
        self.output = nn.Linear(self.stack.width, vocabulary, bias=config.output_bias)
        self.cross_entropy = CrossEntropy()
        if config.output_bias:
            nn.init.zeros_(self.output.bias)
        if config.tie:
            self.output.weight = embedding.weight
        else:
            nn.init.normal_(self.output.weight, std=self.stack.width**-0.5)

    # ------------------------------------------------------------------ what every whole has

    @property
    def max_positions(self) -> int | None:
        """Most tokens it can read, a prompt included; None: any number."""
        most: int | None = self.stack.max_positions
        return most

    @property
    def has_unused_parameters(self) -> bool:
        """Every step uses all parameters."""
        return False

    @property
    def graph_blockers(self) -> list[str]:
        """Why a training step cannot be captured and repeated by the GPU."""
        return []

    def set_step(self, step: int) -> None:
        """Nothing here follows a schedule."""

    # ------------------------------------------------------------------ training

    def carry(self, lanes: int) -> Any:
        """Room for what is carried over from segment to segment: a nest of tensors, or None."""
        return self.stack.carry(lanes)

    def forward(self, batch: Segment | Batch) -> Loss:
        """Summed cross-entropy of a segment of running text, or of the targets of a batch line by line."""
        target = batch.target
        if isinstance(batch, Segment):
            raw = self._segment(batch)
        else:
            raw, _ = self.stack(*self._given(batch))
        hidden = self.dropout(raw)
        if not self.training:
            return Loss(
                summed_loss(FullSoftmaxConfig(), hidden, target, self.output, 0.0, self.cross_entropy),
                (target != PAD).sum(),
            )
        config = self.config
        total = summed_loss(config.softmax, hidden, target, self.output, config.label_smoothing, self.cross_entropy)
        return Loss(total + self._penalties(raw, hidden, target != PAD), (target != PAD).sum())

    def _segment(self, segment: Segment) -> Tensor:
        """Hidden vectors (B, T, D) of a segment; what it carries is read and then replaced in place."""
        if segment.fresh or segment.carried is None:
            state = self.stack.start(segment.source.shape[0])
        else:
            # A copy, for the gradient needs what was read after it has been replaced.
            half = torch.is_autocast_enabled(segment.source.device.type)
            dtype = torch.get_autocast_dtype(segment.source.device.type) if half else self.output.weight.dtype
            state = self.stack.resumed(map_tensors(segment.carried, lambda part: part.to(dtype, copy=True)))
        hidden: Tensor
        hidden, state = self.stack(segment.source, state)
        if segment.carried is not None:
            with torch.no_grad():
                replace_tensors(segment.carried, self.stack.kept(state))
        return hidden

    def _penalties(self, raw: Tensor, hidden: Tensor, real: Tensor) -> Tensor | float:
        """α Σ ‖dropped h_t‖² / D + β Σ ‖h_t − h_{t−1}‖² / D (Merity, McCann and Socher 2017).

        The means of the paper times the tokens: totals, like the loss.
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

    # ------------------------------------------------------------------ searching and scoring

    def start(self, batch: Batch, capacity: int | None = None) -> State:
        """Read the prompts (batch.source) but for their last tokens, which <sos> will stand for.

        Every prompt of a batch has the same length, at least one: <eos> for the beginning of a line.
        """
        source = batch.source
        if source.shape[1] > 1 and not bool(batch.source_mask.all()):
            lengths = sorted(set(batch.source_mask.sum(1).tolist()))
            raise DataError(f"prompts of {lengths} tokens in one batch, expected all of one length")
        state: State = self.stack.start(source.shape[0], capacity)
        if source.shape[1] > 1:
            _, state = self.stack(source[:, :-1], state)
        return state._replace(static=(source[:, -1],))

    def _spelt(self, tokens: Tensor, state: State) -> Tensor:
        """Tokens (N, T) with the last token of the prompt in place of <sos>."""
        (last,) = state.static
        return torch.where(tokens == SOS, last.repeat_interleave(state.hypotheses)[:, None], tokens)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N,) or (N, P); give log-probabilities (N, V) of the next one."""
        tokens = self._spelt(tokens if tokens.dim() == 2 else tokens[:, None], state)
        hidden, state = self.stack(tokens, state)
        return full_precision(self.output(self.dropout(hidden)[:, -1])).log_softmax(-1), state

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N, P); give log-probabilities (N, P, V) of what follows each of them."""
        hidden, state = self.stack(self._spelt(tokens, state), state)
        return full_precision(self.output(self.dropout(hidden))).log_softmax(-1), state

    def _given(self, batch: Batch) -> tuple[Tensor, State]:
        """What is read so that the targets of a batch follow (teacher forcing), and the state before it."""
        target, state = batch.target, self.start(batch)
        inputs = torch.cat([target.new_full((target.shape[0], 1), SOS), target[:, :-1]], 1)
        return self._spelt(inputs, state), state

    def logits(self, batch: Batch) -> Tensor:
        """Scores of every target token given the prompt and the true ones before it; (B, T, V)."""
        out: Tensor = self.output(self.dropout(self.stack(*self._given(batch))[0]))
        return out

    def score(self, batch: Batch | Segment) -> TokenScores:
        """Log-probability of every target token, and whether it was the first choice; so many scores at a time."""
        hidden = self._segment(batch) if isinstance(batch, Segment) else self.stack(*self._given(batch))[0]
        target, mask = batch.target, batch.target != PAD
        rows, wanted = self.dropout(hidden).flatten(0, 1), target.flatten()
        size = max(1, SCORES[target.device.type] // self.output.out_features)
        parts = [
            self._chosen(rows[first : first + size], wanted[first : first + size])
            for first in range(0, len(wanted), size)
        ]
        chosen, first = (torch.cat(found).view_as(target) for found in zip(*parts, strict=True))
        return TokenScores(log_probabilities=chosen * mask, correct=(first == target) & mask, mask=mask)

    def _chosen(self, hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Of rows (n, D) the log-probabilities of targets (n,), and the first choices."""
        logits = full_precision(self.output(hidden))
        highest, first = logits.max(1)
        chosen = logits.gather(1, target[:, None])[:, 0] - highest
        return chosen - (logits - highest[:, None]).exp_().sum(1).log(), first


def replace_tensors(into: Any, values: Any) -> None:
    """Copy a nest of tensors into another of the same shapes."""
    if isinstance(into, Tensor):
        into.copy_(values)
        return
    for mine, theirs in zip(into, values, strict=True):
        replace_tensors(mine, theirs)


def carried_tensors(carried: Any, place: str = "carried") -> dict[str, Tensor]:
    """What is carried by name, for checkpoints: with it a run goes on exactly where it stopped."""
    if isinstance(carried, Tensor):
        return {place: carried}
    found: dict[str, Tensor] = {}
    for number, part in enumerate(carried or ()):
        found |= carried_tensors(part, f"{place}.{number}")
    return found


def restore_carried(carried: Any, tensors: dict[str, Tensor], place: str = "carried") -> None:
    """Give back what `carried_tensors` took."""
    for name, part in carried_tensors(carried, place).items():
        part.copy_(tensors[name])
