"""Running text (FIELD A5): one long row of tokens, cut into lanes that are read side by side, segment by segment.

Every row of a store is a line of the text, and <eos> stands for the end of a line: with characters it is the line
break itself, with words what the literature writes <eos>. Lane b goes on in segment n+1 where it stopped in segment n,
so a model may carry its state over. What a segment holds follows from (text, lanes, segment, seed, epoch, number)
alone: exact resume needs nothing more of the data than the number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.data.batching import Form
from dragoman.data.store import Column
from dragoman.data.tokenizers.tokenizer import EOS, PAD, SPECIALS
from dragoman.errors import DataError

MARKED = 64  # lines from one that is known in memory to the next
HELD = 1 << 24  # tokens of a text that is held in memory, where reading costs nothing: 64 MB
ALL = slice(None)


class Segment(NamedTuple):
    """A piece of running text for every lane; `carried` is what the model remembers of the pieces before.

    The trainer owns `carried` (made by the model's `carry`) and the model changes it in place, so that a captured step
    can be repeated. A fresh segment begins anew and reads none of it.
    """

    source: Tensor  # (B, T) what is read
    target: Tensor  # (B, T) what follows each of them; <pad>: nothing, at the end of the last segment
    carried: Any = None  # nest of tensors, one row a lane; None: nothing is carried
    fresh: bool = True

    @property
    def source_mask(self) -> Tensor:
        """(B, T), True = real."""
        return self.source != PAD

    def to(self, device: torch.device) -> Segment:
        """The same segment on a device; what is carried stays where it is."""
        source, target = (part.to(device, non_blocking=True) for part in self[:2])
        return self._replace(source=source, target=target)

    def pin(self) -> Segment:
        """The same segment in page-locked memory, so that copying it to a GPU does not wait."""
        return self._replace(source=self.source.pin_memory(), target=self.target.pin_memory())

    @property
    def likeness(self) -> tuple[Any, ...]:
        """What segments have in common that one captured step can read."""
        return self.source.shape, self.target.shape, self.fresh

    def read_from(self, source: Tensor, target: Tensor) -> Segment:
        """The same segment as a captured step reads it; what is carried stays in its place, so it goes on."""
        return self._replace(source=source, target=target)


class RunningForm(Form):
    """Segments in place of batches."""

    def example(self, rows: int, source: int, target: int) -> Any:
        """A segment of `source` tokens, for measuring."""
        tokens = torch.full((rows, source), len(SPECIALS))
        return Segment(tokens, tokens)


class RunningText:
    """A column of a store as one row of tokens, each line followed by <eos>; before the first line stands one too.

    Token 0 is that <eos>, so that the first word is predicted too. A text that is not too long is held in memory once
    something of it was read; of the lines of others only every 64th is known, the rest is found in the file of offsets.
    """

    def __init__(self, column: Column) -> None:
        self.column = column
        self.lines = len(column)
        self.length = column.offset(self.lines) + self.lines + 1
        self._marks = np.array([self._begin(line) for line in range(0, self.lines + 1, MARKED)], np.int64)
        self._whole: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return self.length

    def _begin(self, line: int) -> int:
        """The place of a line's first token; just before it stands the <eos> of the line before."""
        return self.column.offset(line) + line + 1

    def span(self, start: int, end: int) -> NDArray[np.int64]:
        """The tokens at start … end−1."""
        assert 0 <= start <= end <= self.length
        if self.length > HELD:
            return self.read(start, end)
        if self._whole is None:
            self._whole = self.read(0, self.length).astype(np.int32)
        return self._whole[start:end].astype(np.int64)

    def read(self, start: int, end: int) -> NDArray[np.int64]:
        """The same from the files."""
        out = np.full(end - start, EOS, np.int64)
        if start == end:
            return out
        line = max(0, int(np.searchsorted(self._marks, start, "right")) - 1) * MARKED  # begins before, or is the first
        offsets = self.column.offsets(line, min(self.lines, line + MARKED + end - start))  # no more lines than tokens
        begins = offsets + np.arange(line + 1, line + 1 + len(offsets))
        first = max(0, int(np.searchsorted(begins, start, "right")) - 1)
        ends = begins[first:] - 1  # of the lines before: there stands <eos>
        text = np.ones(end - start, np.bool_)
        text[ends[(ends >= start) & (ends < end)] - start] = False
        low = int(offsets[first]) + max(0, start - int(begins[first]))
        out[text] = self.column.tokens(low, low + int(text.sum()))
        return out


class HeldText:
    """Running text that is in memory as a whole, the first <eos> included."""

    def __init__(self, tokens: NDArray[np.int32]) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def span(self, start: int, end: int) -> NDArray[np.int64]:
        """The tokens at start … end−1."""
        return self.tokens[start:end].astype(np.int64)


class RunningPlan:
    """Cuts running text into lanes and segments; `shuffled` moves the cuts from epoch to epoch.

    Validation goes without: then every token but the first is predicted exactly once. A shuffled epoch leaves out some
    tokens at the front and others at the end: as many as a segment has, and what would make a last segment that is not
    full, unless that is more than a twentieth of the text.
    """

    def __init__(
        self, text: RunningText | HeldText, lanes: int, segment: int, seed: int = 0, *, shuffled: bool = True
    ) -> None:
        self.text, self.lanes, self.segment, self.seed = text, lanes, segment, seed
        count = len(text) - 1
        if count < lanes:
            raise DataError(
                f"running text of {count} tokens, expected at least one for each of {lanes} lanes; "
                "give more text or take fewer lanes"
            )
        self.spare = segment if shuffled and count - segment >= lanes else 0
        rest = (count - self.spare) % (lanes * segment)
        if self.spare and rest <= count // 20:
            self.spare += rest
        self.count = count - self.spare  # predictions of an epoch

    def __len__(self) -> int:
        """Segments of an epoch, the same in every one."""
        longest = -(-self.count // self.lanes)
        return -(-longest // self.segment)

    def shift(self, epoch: int) -> int:
        """Tokens at the front that an epoch leaves out."""
        return int(np.random.default_rng([self.seed, epoch]).integers(self.spare + 1)) if self.spare else 0

    def places(self, epoch: int, number: int) -> NDArray[np.int64]:
        """Where every lane's piece begins and ends: (B, 2); predicted is what stands one place later."""
        # Lanes differ by one token at most, so that nothing at the end of the text is left out.
        bounds = self.shift(epoch) + np.arange(self.lanes + 1, dtype=np.int64) * self.count // self.lanes
        begin = np.minimum(bounds[:-1] + number * self.segment, bounds[1:])
        end = np.minimum(begin + self.segment, bounds[1:])
        return np.stack([begin, end], 1)

    def tokens(self, epoch: int, number: int, lanes: slice = ALL) -> int:
        """Predictions in a segment, of all lanes or some."""
        places = self.places(epoch, number)[lanes]
        return int((places[:, 1] - places[:, 0]).sum())

    def read(self, epoch: int, number: int, lanes: slice = ALL) -> Segment:
        """One segment of all lanes or some; the last one of an epoch is padded to the same shape."""
        places = self.places(epoch, number)[lanes]
        source = np.full((len(places), self.segment), PAD, np.int64)
        target = source.copy()
        for lane, (begin, end) in enumerate(places):
            row = self.text.span(int(begin), int(end) + 1)
            source[lane, : end - begin] = row[:-1]
            target[lane, : end - begin] = row[1:]
        return Segment(torch.from_numpy(source), torch.from_numpy(target), fresh=number == 0)

    def epoch(self, epoch: int, lanes: slice = ALL) -> Iterator[Segment]:
        """The segments of an epoch."""
        for number in range(len(self)):
            yield self.read(epoch, number, lanes)


class OverlappingPlan(RunningPlan):
    """Cuts running text for measuring: every token is predicted once, and never without much text before it.

    How many lanes there are follows from the text alone, so that a score does not depend on how many are read at once.
    Each lane but the first begins `before` tokens earlier: what it predicts there counts in the lane before.
    """

    def __init__(
        self, text: RunningText | HeldText, segment: int, *, before: int = 512, least: int = 2048, most: int = 64
    ) -> None:
        super().__init__(text, max(1, min(most, (len(text) - 1) // least)), segment, shuffled=False)
        self.before = before if self.lanes > 1 else 0
        self.reach = -(-(self.count + self.before * (self.lanes - 1)) // self.lanes)  # tokens a lane reads

    def __len__(self) -> int:
        """Segments."""
        return -(-self.reach // self.segment)

    def places(self, epoch: int, number: int) -> NDArray[np.int64]:
        """Where every lane's piece begins and ends: (B, 2)."""
        first = np.arange(self.lanes, dtype=np.int64) * (self.reach - self.before)
        last = np.minimum(first + self.reach, self.count)
        begin = np.minimum(first + number * self.segment, last)
        return np.stack([begin, np.minimum(begin + self.segment, last)], 1)

    def read(self, epoch: int, number: int, lanes: slice = ALL) -> Segment:
        """One segment, with <pad> for targets that count in the lane before."""
        found = super().read(epoch, number, lanes)
        known = max(0, min(self.segment, self.before - number * self.segment))
        later = np.arange(self.lanes)[lanes] > 0
        found.target[torch.from_numpy(later), :known] = PAD
        return found
