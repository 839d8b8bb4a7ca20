"""Speculative decoding: a small model proposes tokens, the large one reads them all in one call and keeps what it
would have written itself (Stern et al. 2018; Leviathan et al. 2023 for the greedy case).

The output is the large model's greedy output whatever the draft says; a good draft only saves calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dragoman.data.batch import Batch
from dragoman.data.tokenizers.base import EOS, PAD, SOS
from dragoman.decoding.hypothesis import Hypothesis, allowed, divisor
from dragoman.decoding.methods import Request, Writer
from dragoman.errors import ConfigError
from dragoman.models.contracts import NonAutoregressiveModel

SETTLED = 16  # tokens that are certain for all rows before their states are brought up to them


@dataclass
class Saved:
    """What a draft was good for."""

    calls: int = 0  # of the large model
    greedy_calls: int = 0  # that greedy search over the same batches would have made
    proposed: int = 0  # tokens
    kept: int = 0

    def __str__(self) -> str:
        share = 100 * self.kept / max(1, self.proposed)
        return (
            f"{self.calls:,} calls of the model in place of {self.greedy_calls:,}; "
            f"{self.kept:,} of {self.proposed:,} proposed tokens kept ({share:.0f} %)"
        )


class Reader:
    """A model that stands, in all rows, before tokens that are certain, and reads ahead without moving.

    A state is a value: reading what turns out wrong leaves nothing to undo. Rows are filled up at their ends, which
    no earlier token sees. What is certain is read again in each round until `settle` moves the state behind it.
    """

    def __init__(self, model: Writer, batch: Batch) -> None:
        self.model = model
        self.state: Any = model.start(batch)
        self.device = batch.source.device
        self.behind = 0  # tokens the state has read
        self.calls = 0

    def ahead(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Log-probabilities (B, P, V) after each token of whole rows, of which `behind` tokens are not read again."""
        self.calls += 1
        return self.model.read(self._unread(rows), self.state)[0]

    def settle(self, certain: Sequence[Sequence[int]]) -> None:
        """Move behind what is certain in all rows, but for one token, if it is much."""
        common = min(len(row) for row in certain) - 1
        if common - self.behind >= SETTLED:
            self.calls += 1
            _, self.state = self.model.step(self._unread([row[:common] for row in certain]), self.state)
            self.behind = common

    def select(self, rows: Tensor) -> None:
        """Keep some rows."""
        self.state = self.state.select(rows)

    def _unread(self, rows: Sequence[Sequence[int]]) -> Tensor:
        width = max(len(row) for row in rows)
        padded = [[*row[self.behind :], *[PAD] * (width - len(row))] for row in rows]
        return torch.tensor(padded, dtype=torch.long, device=self.device)


class Speculative:
    """Greedy search with a draft model that shares the vocabularies; `saved` counts over all calls of `search`."""

    def __init__(self, draft: Writer | NonAutoregressiveModel, tokens: int = 4) -> None:
        """`tokens` are proposed at a time."""
        if isinstance(draft, NonAutoregressiveModel):
            raise ConfigError("a draft model must write token by token; this one writes all at once")
        if tokens < 1:
            raise ConfigError(f"draft tokens: found {tokens}, expected at least 1")
        self.draft = draft
        self.tokens = tokens
        self.saved = Saved()

    def search(self, request: Request) -> list[list[Hypothesis]]:
        """The greedy output of every source."""
        if request.n_best > 1:
            raise ConfigError(f"found {request.n_best} outputs asked for; a draft serves greedy search, which has one")
        model = request.stepwise("a draft")
        config = request.config
        found = self.decode(model, request.batch, request.limits.tolist(), config.length_penalty, config.normalisation)
        return [[one] for one in found]

    @torch.no_grad()
    def decode(
        self,
        model: Writer,
        batch: Batch,
        limits: Sequence[int],
        length_penalty: float = 1.0,
        normalisation: str = "power",
    ) -> list[Hypothesis]:
        """Rounds of proposing and reading; rows accept each as many as they like, and leave when they end."""
        large, small = Reader(model, batch), Reader(self.draft, batch)
        rows = [[SOS] for _ in limits]
        scores: list[list[float]] = [[] for _ in limits]
        live = list(range(len(limits)))
        while live:
            certain = [rows[row] for row in live]
            ends = [limits[row] for row in live]
            large.settle(certain)
            proposals = self.propose(small, certain, ends)
            log_probabilities = large.ahead([[*row, *more] for row, more in zip(certain, proposals, strict=True)])
            spans = [(len(row) - 1 - large.behind, len(more) + 1) for row, more in zip(certain, proposals, strict=True)]
            choices = chosen(log_probabilities, spans, certain, ends)
            for row, proposal, choice in zip(live, proposals, choices, strict=True):
                kept = accepted(proposal, [token for token, _ in choice])
                rows[row] += [token for token, _ in choice[: kept + 1]]
                scores[row] += [score for _, score in choice[: kept + 1]]
                self.saved.proposed += len(proposal)
                self.saved.kept += kept
            going = [place for place, row in enumerate(live) if rows[row][-1] != EOS]
            if len(going) < len(live):
                live = [live[place] for place in going]
                if live:
                    index = torch.tensor(going, device=batch.source.device)
                    large.select(index)
                    small.select(index)
        self.saved.calls += large.calls
        self.saved.greedy_calls += max((len(row) - 1 for row in rows), default=0)
        return [
            Hypothesis(
                tuple(row[1:]),
                tuple(parts),
                sum(parts),
                sum(parts) / divisor(len(parts), length_penalty, normalisation),
            )
            for row, parts in zip(rows, scores, strict=True)
        ]

    def propose(self, small: Reader, certain: Sequence[Sequence[int]], ends: Sequence[int]) -> list[list[int]]:
        """The draft's greedy continuation of every row, up to its <eos>, which needs no reading, or its limit."""
        longest = [min(end, small.model.max_positions or end) for end in ends]
        if all(len(row) > most for row, most in zip(certain, longest, strict=True)):
            return [[] for _ in certain]  # the draft can read no further
        small.settle([row[:most] for row, most in zip(certain, longest, strict=True)])
        proposals: list[list[int]] = [[] for _ in certain]
        open_rows = set(range(len(certain)))
        for _ in range(self.tokens):
            whole = [[*row, *more] for row, more in zip(certain, proposals, strict=True)]
            # The last token of a row at its limit can only be <eos>: nothing to propose.
            open_rows = {place for place in open_rows if len(whole[place]) < longest[place]}
            if not open_rows:
                break
            # Rows that are done are read with the others, cut to what the draft can read.
            log_probabilities = small.ahead([row[:most] for row, most in zip(whole, longest, strict=True)])
            spots = [min(len(row), most) - 1 - small.behind for row, most in zip(whole, longest, strict=True)]
            after = log_probabilities[torch.arange(len(spots)), torch.tensor(spots)]
            tokens = allowed(after.clone(), None).argmax(-1).tolist()
            for place in sorted(open_rows):
                if tokens[place] == EOS:
                    open_rows.discard(place)
                else:
                    proposals[place].append(tokens[place])
        return proposals


def chosen(
    log_probabilities: Tensor, spans: Sequence[tuple[int, int]], certain: Sequence[Sequence[int]], ends: Sequence[int]
) -> list[list[tuple[int, float]]]:
    """What greedy search would write, and its score, at every spot of each row's span (first, count)."""
    device = log_probabilities.device
    where = [(place, first + more) for place, (first, count) in enumerate(spans) for more in range(count)]
    last = [
        ends[place] <= len(certain[place]) + more for place, (_, count) in enumerate(spans) for more in range(count)
    ]
    index = torch.tensor(where, device=device)
    flat = log_probabilities[index[:, 0], index[:, 1]]  # (spots, V)
    tokens = allowed(flat.clone(), torch.tensor(last, device=device)).argmax(-1)
    pairs = list(zip(tokens.tolist(), flat.gather(1, tokens[:, None])[:, 0].tolist(), strict=True))
    out, begin = [], 0
    for _, count in spans:
        out.append(pairs[begin : begin + count])
        begin += count
    return out


def accepted(proposal: Sequence[int], choice: Sequence[int]) -> int:
    """How many proposed tokens the large model would have written, one after another."""
    for place, token in enumerate(proposal):
        if choice[place] != token:
            return place
    return len(proposal)
