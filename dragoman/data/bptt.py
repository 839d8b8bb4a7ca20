"""Truncated back-propagation through time: one long token stream, read as parallel streams, segment by segment.

Every row of a store is a line of the text, and <eos> ends a line: for characters it is the line break itself, for words
what the literature writes <eos>. Stream b continues in segment n+1 where it stopped in segment n, so a model may carry
its state over. The content of a segment follows from (text, streams, segment, seed, epoch, number) alone: exact resume
needs nothing of the data but the number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.base import DataError
from dragoman.data.batch import STAYS, TensorRecord, Tokens
from dragoman.data.collate import Collator
from dragoman.data.store import Column
from dragoman.data.tokenizers.base import EOS, PAD, SPECIALS

INDEXED_LINES = 64  # the start of every 64th line is kept in memory
MAX_IN_MEMORY = 1 << 24  # tokens: a shorter text (64 MB) is kept in memory
ALL = slice(None)


@dataclass(frozen=True)
class Segment(TensorRecord):
    """The next `segment` tokens of every stream, and the state that the model carries over from the last segment.

    The trainer owns `carried`, which the model's `carry` allocates. The model updates it in place, so that a CUDA graph
    of the step can be replayed.
    """

    source: Tokens  # (B, T) input tokens
    target: Tensor  # (B, T) the token after each of them; <pad> beyond the end of the text
    carried: Any = field(default=None, metadata=STAYS)  # tensors, one row per stream; None: the model carries nothing
    fresh: bool = True  # the first segment of an epoch, which ignores `carried`


class SegmentCollator(Collator):
    """Segments in place of batches."""

    def dummy(self, rows: int, source: int, target: int) -> Any:
        tokens = torch.full((rows, source), len(SPECIALS))
        return Segment(Tokens.without_padding(tokens), tokens)


class RunningText:
    """Text as one sequence of tokens: <eos>, then every line followed by <eos>; of a store, or an array of just that.

    The first <eos> is there so that the first word is predicted too. A text of at most MAX_IN_MEMORY tokens is kept in
    memory after the first read. For longer ones only the start of every 64th line is known; the file of offsets has the
    others.
    """

    def __init__(self, text: Column | NDArray[np.int32]) -> None:
        self._tokens: NDArray[np.int32] | None = None
        if isinstance(text, np.ndarray):
            self.length, self._tokens = len(text), text
            return
        self.column = column = text
        self.lines = len(column)
        self.length = column.offset(self.lines) + self.lines + 1
        # The <eos> of the previous line is just before the first token of a line.
        starts = [column.offset(line) + line + 1 for line in range(0, self.lines + 1, INDEXED_LINES)]
        self._indexed_starts = np.array(starts, np.int64)

    def __len__(self) -> int:
        return self.length

    def span(self, start: int, end: int) -> NDArray[np.int64]:
        """The tokens at positions start … end−1."""
        assert 0 <= start <= end <= self.length
        if self._tokens is None:
            if self.length > MAX_IN_MEMORY:
                return self.read(start, end)
            self._tokens = self.read(0, self.length).astype(np.int32)
        return self._tokens[start:end].astype(np.int64)

    def read(self, start: int, end: int) -> NDArray[np.int64]:
        """The tokens at positions start … end−1, always from disk."""
        out = np.full(end - start, EOS, np.int64)
        if start == end:
            return out
        # The last indexed line that starts at or before `start`, or the first line.
        line = max(0, int(np.searchsorted(self._indexed_starts, start, "right")) - 1) * INDEXED_LINES
        # There are no more lines than tokens.
        offsets = self.column.offsets(line, min(self.lines, line + INDEXED_LINES + end - start))
        starts = offsets + np.arange(line + 1, line + 1 + len(offsets))
        first = max(0, int(np.searchsorted(starts, start, "right")) - 1)
        eos_positions = starts[first:] - 1
        is_text = np.ones(end - start, np.bool_)
        is_text[eos_positions[(eos_positions >= start) & (eos_positions < end)] - start] = False
        low = int(offsets[first]) + max(0, start - int(starts[first]))
        out[is_text] = self.column.tokens(low, low + int(is_text.sum()))
        return out


Text = Column | NDArray[np.int32] | RunningText


class BpttPlan:
    """Cuts a token stream into parallel streams and segments; `shuffled` moves the cuts from epoch to epoch.

    Without `shuffled` (validation) every token but the first is predicted exactly once. A shuffled epoch skips some
    tokens at the start and others at the end: as many as a segment has, and those of a last segment that is not full,
    unless they are more than a twentieth of the text.
    """

    def __init__(self, text: Text, streams: int, segment: int, seed: int = 0, *, shuffled: bool = True) -> None:
        text = text if isinstance(text, RunningText) else RunningText(text)
        self.text, self.streams, self.segment, self.seed = text, streams, segment, seed
        count = len(text) - 1
        if count < streams:
            raise DataError(
                f"the text has {count} tokens, expected at least one for each of {streams} streams; "
                "give more text or use fewer streams"
            )
        self.skipped = segment if shuffled and count - segment >= streams else 0
        rest = (count - self.skipped) % (streams * segment)
        if self.skipped and rest <= count // 20:
            self.skipped += rest
        self.count = count - self.skipped  # predictions per epoch

    def __len__(self) -> int:
        """Segments per epoch, the same in every epoch."""
        longest = -(-self.count // self.streams)
        return -(-longest // self.segment)

    def shift(self, epoch: int) -> int:
        """How many tokens an epoch skips at the start."""
        return int(np.random.default_rng([self.seed, epoch]).integers(self.skipped + 1)) if self.skipped else 0

    def spans(self, epoch: int, number: int) -> NDArray[np.int64]:
        """Start and end of every stream's input in segment `number`: (B, 2). Targets are one position later."""
        # Streams differ by one token at most, so that no token at the end of the text is left out.
        bounds = self.shift(epoch) + np.arange(self.streams + 1, dtype=np.int64) * self.count // self.streams
        start = np.minimum(bounds[:-1] + number * self.segment, bounds[1:])
        end = np.minimum(start + self.segment, bounds[1:])
        return np.stack([start, end], 1)

    def tokens(self, epoch: int, number: int, streams: slice = ALL) -> int:
        """How many predictions a segment of these streams has."""
        spans = self.spans(epoch, number)[streams]
        return int((spans[:, 1] - spans[:, 0]).sum())

    def read(self, epoch: int, number: int, streams: slice = ALL) -> Segment:
        """One segment of these streams; the last segment of an epoch is padded to the same shape."""
        spans = self.spans(epoch, number)[streams]
        source = np.full((len(spans), self.segment), PAD, np.int64)
        target = source.copy()
        for stream, (start, end) in enumerate(spans):
            row = self.text.span(int(start), int(end) + 1)
            source[stream, : end - start] = row[:-1]
            target[stream, : end - start] = row[1:]
        return Segment(Tokens.from_padded(torch.from_numpy(source)), torch.from_numpy(target), fresh=number == 0)

    def epoch(self, epoch: int, streams: slice = ALL) -> Iterator[Segment]:
        for number in range(len(self)):
            yield self.read(epoch, number, streams)


class OverlappingBpttPlan(BpttPlan):
    """Cuts a token stream for evaluation: every token is predicted once, with at least `context` tokens before it.

    The number of streams follows from the text alone, so a score does not depend on how many streams are read at once.
    Each stream but the first starts `context` tokens early; those predictions count in the stream before.
    """

    def __init__(
        self,
        text: Text,
        segment: int,
        *,
        context: int = 512,
        min_tokens: int = 2048,
        max_streams: int = 64,
    ) -> None:
        text = text if isinstance(text, RunningText) else RunningText(text)
        super().__init__(text, max(1, min(max_streams, (len(text) - 1) // min_tokens)), segment, shuffled=False)
        self.context = context if self.streams > 1 else 0
        self.stream_tokens = -(-(self.count + self.context * (self.streams - 1)) // self.streams)

    def __len__(self) -> int:
        return -(-self.stream_tokens // self.segment)

    def spans(self, epoch: int, number: int) -> NDArray[np.int64]:
        first = np.arange(self.streams, dtype=np.int64) * (self.stream_tokens - self.context)
        last = np.minimum(first + self.stream_tokens, self.count)
        start = np.minimum(first + number * self.segment, last)
        return np.stack([start, np.minimum(start + self.segment, last)], 1)

    def read(self, epoch: int, number: int, streams: slice = ALL) -> Segment:
        """One segment, with <pad> for targets that count in the stream before."""
        segment = super().read(epoch, number, streams)
        context = max(0, min(self.segment, self.context - number * self.segment))
        has_context = np.arange(self.streams)[streams] > 0
        segment.target[torch.from_numpy(has_context), :context] = PAD
        return segment
