"""Constraints inside a beam search: the automaton state of every hypothesis, and the candidates that it allows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

import torch
from torch import Tensor

from dragoman.data.tokenizers import EOS
from dragoman.decoding.constraints.automata import ConstraintAutomaton
from dragoman.decoding.constraints.constraint import AutomatonState
from dragoman.decoding.scorer import NEG_INF

NEAR_LIMIT = 4  # so near the length limit, every allowed token is checked for whether the output can still end in time


@dataclass(frozen=True)
class ConstraintTracker:
    """The automaton of every source (None: unconstrained) and the state of each of its hypotheses.

    Candidates are flat indices hypothesis · V + token of a source's scores (k, V). `remaining` tells for every source
    how many more tokens may follow the next one, <eos> not counted.
    """

    automata: Sequence[ConstraintAutomaton | None]
    states: list[list[AutomatonState]]
    width: int

    @classmethod
    def start(cls, automata: Sequence[ConstraintAutomaton | None], width: int) -> ConstraintTracker:
        """As in the search, one real hypothesis of each source at the start; None: there is no hypothesis."""
        starts = [automaton.start if automaton else None for automaton in automata]
        return cls(automata, [[state, *[None] * (width - 1)] for state in starts], width)

    def __bool__(self) -> bool:
        return any(automaton is not None for automaton in self.automata)

    @property
    def requires_phrases(self) -> list[bool]:
        return [automaton is not None and automaton.requires_phrases for automaton in self.automata]

    def choose(
        self, preferred: Tensor, fallback: Tensor | None, count: int, remaining: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores and flat indices (B, count) of the best candidates, and which of them may become complete.

        They are the best of the scores (B, k, V) that can be completed within the limit. Where no preferred candidate
        can, they come from the `fallback` scores.
        """
        scores, best, index = self._completable(preferred, count, remaining)
        constrained = torch.tensor([automaton is not None for automaton in self.automata], device=best.device)
        if fallback is not None and (stuck := (best[:, 0] == NEG_INF) & constrained).any():
            scores, best, index = self._completable(
                torch.where(stuck[:, None, None], fallback, preferred), count, remaining
            )
        may_complete = (torch.arange(count, device=best.device) < self.width).expand_as(best)
        sources = [source for source, required in enumerate(self.requires_phrases) if required]
        if sources:
            may_complete, best, index = may_complete.clone(), best.clone(), index.clone()
            rows = torch.tensor(sources, device=best.device)
            may_complete[rows] = True  # the allocation already dropped the others that end
            best[rows], index[rows] = self._allocate(sources, scores, index, remaining)
        return best, index, may_complete

    def restrict(self, scores: Tensor, remaining: Sequence[int]) -> Tensor:
        """Set the scores (B, k, V) of tokens that are not allowed to −∞, in place, as far as the token lists reach."""
        vocabulary = scores.shape[2]
        allowed_index: list[int] = []  # flat indices that stay in rows with few allowed tokens
        rows: list[int] = []
        forbidden_index: list[int] = []
        for source, automaton in enumerate(self.automata):
            for hypothesis, state in enumerate(self.states[source]):
                if automaton is None or state is None:
                    continue
                row = source * self.width + hypothesis
                allowed, forbidden = _token_lists(automaton, state, remaining[source])
                if allowed is None:
                    forbidden_index += [row * vocabulary + token for token in forbidden]
                else:
                    rows.append(row)
                    allowed_index += [row * vocabulary + token for token in allowed]
        flat, device = scores.view(-1), scores.device
        if rows:
            index = torch.tensor(allowed_index, dtype=torch.long, device=device)
            values = flat[index]
            scores.view(-1, vocabulary)[torch.tensor(rows, device=device)] = NEG_INF
            flat[index] = values
        if forbidden_index:
            flat[torch.tensor(forbidden_index, device=device)] = NEG_INF
        return scores

    def _completable(self, scores: Tensor, count: int, remaining: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Scores without the candidates that cannot be completed in time, as far as these are among the best."""
        scores = self.restrict(scores, remaining)
        vocabulary = scores.shape[2]
        best, index = scores.flatten(1).topk(count, 1)
        while late := self._too_late(best, index, vocabulary, remaining):
            scores.view(-1)[torch.tensor(late, device=scores.device)] = NEG_INF
            best, index = scores.flatten(1).topk(count, 1)
        return scores, best, index

    def _too_late(self, best: Tensor, index: Tensor, vocabulary: int, remaining: Sequence[int]) -> list[int]:
        """Flat indices into (B, k, V) of candidates that cannot be completed within the limit."""
        late = []
        scores, candidates = best.tolist(), index.tolist()
        for source, automaton in enumerate(self.automata):
            if automaton is None:
                continue
            for score, candidate in zip(scores[source], candidates[source], strict=True):
                hypothesis, token = divmod(candidate, vocabulary)
                if not score > NEG_INF or token == EOS:  # NaN is not greater either
                    continue
                if not _in_time(automaton, self.states[source][hypothesis], token, remaining[source]):
                    late.append(source * self.width * vocabulary + candidate)
        return late

    # --- Dynamic beam allocation for required phrases (Post and Vilar 2018)

    def _allocate(
        self, sources: Sequence[int], scores: Tensor, index: Tensor, remaining: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Scores and flat indices (n, count) of the candidates of sources with required phrases.

        Scores are read and written for all sources at once, since every access synchronises with the GPU.
        """
        count, size, vocabulary = index.shape[1], scores[0].numel(), scores.shape[2]
        best_two = scores.topk(min(2, vocabulary), 2).indices.tolist()
        best = index.tolist()
        candidates = [self._candidates(source, best[source], best_two[source], vocabulary) for source in sources]
        flat = [source * size + candidate for source, own in zip(sources, candidates, strict=True) for candidate in own]
        values = iter(scores.view(-1)[torch.tensor(flat, device=scores.device)].tolist())
        score_rows, index_rows = [], []
        for source, own in zip(sources, candidates, strict=True):
            score_of = {candidate: next(values) for candidate in own}
            chosen = self._share_beam(source, score_of, vocabulary, remaining[source])
            padding = count - len(chosen)
            score_rows.append([*(score_of[candidate] for candidate in chosen), *([NEG_INF] * padding)])
            index_rows.append([*chosen, *([0] * padding)])
        return (
            torch.tensor(score_rows, dtype=scores.dtype, device=scores.device),
            torch.tensor(index_rows, dtype=torch.long, device=scores.device),
        )

    def _candidates(self, source: int, best: list[int], best_two: list[list[int]], vocabulary: int) -> list[int]:
        """The best candidates of the source, the best two of each hypothesis, and those that continue a phrase."""
        automaton, states = self.automata[source], self.states[source]
        assert automaton is not None
        candidates = dict.fromkeys(best)
        for hypothesis, tokens in enumerate(best_two):
            if states[hypothesis] is not None:
                more = [*tokens, *automaton.tokens_towards_end(states[hypothesis])]
                candidates |= dict.fromkeys(hypothesis * vocabulary + token for token in more)
        return list(candidates)

    def _share_beam(self, source: int, score_of: dict[int, float], vocabulary: int, remaining: int) -> list[int]:
        """Share the beam among banks of candidates with equal distance from the end.

        The best candidate of every bank is chosen, then the second best of every bank, and so on. Where the beam has
        fewer places than banks, the bank nearest to the end comes first, then the most probable ones.
        """
        automaton, states = self.automata[source], self.states[source]
        assert automaton is not None
        banks: dict[float, list[tuple[float, int]]] = defaultdict(list)
        for candidate, score in score_of.items():
            if score > NEG_INF:
                state, token = states[candidate // vocabulary], candidate % vocabulary
                if token == EOS:
                    banks[0].append((-score, candidate))
                elif _in_time(automaton, state, token, remaining):
                    banks[automaton.distance(automaton.next_state(state, token))].append((-score, candidate))
        ending = [candidate for _, candidate in sorted(banks[0])[: self.width] if candidate % vocabulary == EOS]
        ordered = [sorted(bank) for _, bank in sorted(banks.items())]
        open_banks = [[pair for pair in bank if pair[1] % vocabulary != EOS] for bank in ordered]
        open_banks = [bank for bank in open_banks if bank]
        by_rank = zip_longest(*open_banks[:1], *sorted(open_banks[1:]))
        chosen = [pair[1] for pair in chain.from_iterable(by_rank) if pair is not None]
        return chosen[: self.width] + ending

    # --- Following the search

    def advance(self, totals: Tensor, parents: Tensor, tokens: Tensor) -> None:
        """Take the states of the hypotheses that the search keeps: all (B, k)."""
        rows = zip(totals.tolist(), parents.tolist(), tokens.tolist(), strict=True)
        for source, (scores, own_parents, own_tokens) in enumerate(rows):
            automaton = self.automata[source]
            if automaton is not None:
                states = self.states[source]
                self.states[source] = [
                    automaton.next_state(states[parent], token) if score > NEG_INF else None
                    for score, parent, token in zip(scores, own_parents, own_tokens, strict=True)
                ]

    def select(self, sources: Sequence[int]) -> ConstraintTracker:
        automata, states = [self.automata[source] for source in sources], [self.states[source] for source in sources]
        return ConstraintTracker(automata, states, self.width)

    def of_slots(self, slots: Sequence[int]) -> ConstraintTracker:
        """A tracker of one hypothesis of each source, to choose by as a beam of one does."""
        states = [[states[slot]] for states, slot in zip(self.states, slots, strict=True)]
        return ConstraintTracker(self.automata, states, 1)


def _token_lists(
    automaton: ConstraintAutomaton, state: AutomatonState, remaining: int
) -> tuple[list[int] | None, list[int]]:
    """As `automaton.token_lists`, with a list of allowed tokens also where other tokens would take too long."""
    allowed, forbidden = automaton.token_lists(state)
    if allowed is None:
        if automaton.distance(automaton.default_state(state)) > remaining:
            end = [EOS] if automaton.may_end(state) else []
            allowed = [*automaton.tokens_towards_end(state), *end]
    elif automaton.distance(state) + NEAR_LIMIT > remaining:
        allowed = [token for token in allowed if token == EOS or _in_time(automaton, state, token, remaining)]
    return allowed, forbidden


def _in_time(automaton: ConstraintAutomaton, state: AutomatonState, token: int, remaining: int) -> bool:
    """Whether the output can end within the limit after a token."""
    after = automaton.next_state(state, token)
    return after is not None and automaton.distance(after) <= remaining
