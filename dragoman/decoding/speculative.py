"""Speculative decoding, the greedy case (Stern et al. 2018; Leviathan et al. 2023).

A small draft model proposes tokens; the large model reads them all in one call and accepts those it would have
chosen itself. The output is the large model's greedy output whatever the draft proposes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from dragoman.base import ConfigError, check_interrupted
from dragoman.data import Batch
from dragoman.data.tokenizers import EOS, PAD, SOS
from dragoman.decoding.hypothesis import Hypothesis, suppress_tokens
from dragoman.decoding.method import AutoregressiveModel, OpenMethod, Request
from dragoman.decoding.method_settings import Draft as Draft
from dragoman.decoding.scorer import Scorer
from dragoman.models import decodes

MIN_ADVANCE = 16  # accepted tokens of all rows after which the states move behind them


def open_draft(draft: Draft, run: Any) -> Speculative:
    small = run.companion(draft.run, "a draft")
    if run.codec.copies and not small.codec.copies:
        raise ConfigError(f"draft: {draft.run} cannot copy words that it does not know, as {run.run.folder} can")
    return Speculative(small.model, draft.tokens)


@dataclass
class SpeculationStats:
    """How much a draft saved."""

    calls: int = 0  # of the large model
    greedy_calls: int = 0  # that greedy search over the same batches would have made
    proposed: int = 0  # tokens
    accepted: int = 0

    def __str__(self) -> str:
        share = 100 * self.accepted / max(1, self.proposed)
        return (
            f"{self.calls:,} calls of the model in place of {self.greedy_calls:,}; "
            f"{self.accepted:,} of {self.proposed:,} proposed tokens accepted ({share:.0f} %)"
        )


class PrefixReader:
    """A model whose state is before the accepted tokens of all rows, and which reads ahead without moving.

    A state is a value: reading rejected tokens leaves nothing to undo. Rows are padded at their ends, which no earlier
    token sees. Accepted tokens are read again in each round until `advance` moves the state behind them.
    """

    def __init__(self, model: AutoregressiveModel, batch: Batch) -> None:
        self.model = model
        self.state: Any = model.start(batch)
        self.device = batch.source.device
        self.length = 0  # tokens that the state has read
        self.calls = 0

    def read(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Log-probabilities (B, P, V) after each token of whole rows, from the state's length on."""
        self.calls += 1
        return self.model.read(self._unread(rows), self.state)[0]

    def advance(self, accepted: Sequence[Sequence[int]]) -> None:
        """Move the state behind the tokens that are accepted in all rows, but for the last one, if they are many."""
        common = min(len(row) for row in accepted) - 1
        if common - self.length >= MIN_ADVANCE:
            self.calls += 1
            _, self.state = self.model.step(self._unread([row[:common] for row in accepted]), self.state)
            self.length = common

    def select(self, rows: Tensor) -> None:
        self.state = self.state.select(rows)

    def _unread(self, rows: Sequence[Sequence[int]]) -> Tensor:
        width = max(len(row) for row in rows)
        padded = [[*row[self.length :], *[PAD] * (width - len(row))] for row in rows]
        return torch.tensor(padded, dtype=torch.long, device=self.device)


class Speculative(OpenMethod):
    """Greedy search with a draft model that shares the vocabularies; `stats` counts over all calls of `search`."""

    def __init__(self, draft: AutoregressiveModel, tokens: int = 4) -> None:
        """The draft proposes `tokens` at a time."""
        if decodes(draft) == "parallel":
            raise ConfigError("a draft model must write token by token; this one writes all at once")
        if tokens < 1:
            raise ConfigError(f"draft tokens: found {tokens}, expected at least 1")
        self.draft = draft
        self.tokens = tokens
        self.stats = SpeculationStats()

    def report(self) -> str:
        return f"draft: {self.stats}"

    def search(self, request: Request) -> list[list[Hypothesis]]:
        if request.n_best > 1:
            raise ConfigError(f"n_best: found {request.n_best}, expected 1 with a draft: greedy search has one output")
        model, scorer = request.stepwise("a draft"), Scorer.from_config(request.config)
        outputs = self.decode(model, request.batch, request.limits.tolist(), scorer)
        return [[hypothesis] for hypothesis in outputs]

    @torch.no_grad()
    def decode(
        self,
        model: AutoregressiveModel,
        batch: Batch,
        limits: Sequence[int],
        scorer: Scorer = Scorer(),  # noqa: B008  (frozen)
    ) -> list[Hypothesis]:
        """Rounds of proposing and verifying; each row accepts its own number of tokens and leaves when it ends."""
        large, small = PrefixReader(model, batch), PrefixReader(self.draft, batch)
        rows = [[SOS] for _ in limits]
        scores: list[list[float]] = [[] for _ in limits]
        sources = list(range(len(limits)))
        while sources:
            check_interrupted()
            accepted = [rows[source] for source in sources]
            own_limits = [limits[source] for source in sources]
            large.advance(accepted)
            proposals = self.propose(small, accepted, own_limits)
            whole = [[*row, *proposal] for row, proposal in zip(accepted, proposals, strict=True)]
            tokens, token_scores = greedy_choices(large.read(whole), large.length, own_limits)
            for number, (source, proposal) in enumerate(zip(sources, proposals, strict=True)):
                first = len(rows[source]) - 1 - large.length
                choice = tokens[number][first : first + len(proposal) + 1]
                agreed = takewhile(lambda pair: pair[0] == pair[1], zip(proposal, choice, strict=False))
                count = sum(1 for _ in agreed)
                rows[source] += choice[: count + 1]
                scores[source] += token_scores[number][first : first + count + 1]
                self.stats.proposed += len(proposal)
                self.stats.accepted += count
            going = [index for index, source in enumerate(sources) if rows[source][-1] != EOS]
            if len(going) < len(sources):
                sources = [sources[index] for index in going]
                if sources:
                    kept = torch.tensor(going, device=batch.source.device)
                    large.select(kept)
                    small.select(kept)
        self.stats.calls += large.calls
        self.stats.greedy_calls += max((len(row) - 1 for row in rows), default=0)
        return [scorer.hypothesis(row[1:], row_scores) for row, row_scores in zip(rows, scores, strict=True)]

    def propose(self, small: PrefixReader, accepted: Sequence[Sequence[int]], limits: Sequence[int]) -> list[list[int]]:
        """The draft's greedy continuation of every row, up to its <eos>, which is not proposed, or its limit."""
        max_lengths = [min(limit, small.model.max_positions or limit) for limit in limits]
        if all(len(row) > length for row, length in zip(accepted, max_lengths, strict=True)):
            return [[] for _ in accepted]  # the draft can read no further
        small.advance([row[:length] for row, length in zip(accepted, max_lengths, strict=True)])
        proposals: list[list[int]] = [[] for _ in accepted]
        open_rows = set(range(len(accepted)))
        for _ in range(self.tokens):
            whole = [[*row, *more] for row, more in zip(accepted, proposals, strict=True)]
            # The last token of a row at its limit can only be <eos>: nothing to propose.
            open_rows = {index for index in open_rows if len(whole[index]) < max_lengths[index]}
            if not open_rows:
                break
            # Rows that are done are read with the others, cut to what the draft can read.
            readable = [row[:length] for row, length in zip(whole, max_lengths, strict=True)]
            log_probabilities = small.read(readable)
            ends = [len(row) - 1 - small.length for row in readable]
            after = log_probabilities[torch.arange(len(ends)), torch.tensor(ends)]
            tokens = suppress_tokens(after.clone(), None).argmax(-1).tolist()
            for index in sorted(open_rows):
                if tokens[index] == EOS:
                    open_rows.discard(index)
                else:
                    proposals[index].append(tokens[index])
        return proposals


def greedy_choices(
    log_probabilities: Tensor, before: int, limits: Sequence[int]
) -> tuple[list[list[int]], list[list[float]]]:
    """The greedy token and its score at every position of log-probabilities (B, P, V), after `before` positions."""
    rows, positions, vocabulary = log_probabilities.shape
    flat, device = log_probabilities.reshape(-1, vocabulary), log_probabilities.device
    lengths = torch.arange(before + 1, before + positions + 1, device=device)
    at_limit = torch.tensor(limits, device=device)[:, None] <= lengths  # (B, P)
    tokens = suppress_tokens(flat.clone(), at_limit.flatten()).argmax(-1)
    scores = flat.gather(1, tokens[:, None])
    return tokens.view(rows, positions).tolist(), scores.view(rows, positions).tolist()
