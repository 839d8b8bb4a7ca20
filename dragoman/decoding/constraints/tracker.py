"""Rules inside a beam search (FIELD H9): each source has its own, and they go with it when others leave the batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from dragoman.data.tokenizers.tokenizer import EOS
from dragoman.decoding.constraints.automata import Rules, Standing

NOTHING = float("-inf")
NEAR = 4  # so near the limit every single continuation is asked whether it leaves time enough


class Guides:
    """Where every hypothesis stands under the rules of its source."""

    def __init__(self, rules: Sequence[Rules | None], width: int) -> None:
        self.rules = list(rules)
        self.width = width
        # As in the search, one real hypothesis at the start; None: there is none in this place.
        nobody: list[Standing] = [None] * (width - 1)
        self.standing: list[list[Standing]] = [[one.start if one else None, *nobody] for one in rules]

    def __bool__(self) -> bool:
        return any(one is not None for one in self.rules)

    @property
    def required(self) -> list[bool]:
        """Which sources have phrases that must be written."""
        return [one is not None and one.requires for one in self.rules]

    def restricted(self, candidates: Tensor, left: Sequence[int]) -> Tensor:
        """Scores (B, k, V) with −∞, written in place, for what the rules do not let be written.

        `left` says for every source how many more tokens may follow the next one, <eos> not counted.
        """
        vocabulary = candidates.shape[2]
        only: list[int] = []  # flat places that stay in rows where little may be written
        rows: list[int] = []
        never: list[int] = []
        for source, rules in enumerate(self.rules):
            for place, state in enumerate(self.standing[source]):
                if rules is None or state is None:
                    continue
                row = source * self.width + place
                allowed, barred = rules.lists(state)
                if allowed is None and not self._in_time(rules, state, left[source]):
                    allowed = [*rules.wanted(state), *([EOS] if rules.may_end(state) else [])]
                elif allowed is not None and rules.distance(state) + NEAR > left[source]:
                    allowed = [
                        token for token in allowed if token == EOS or self._reaches(rules, state, token, left[source])
                    ]
                if allowed is None:
                    never += [row * vocabulary + token for token in barred]
                else:
                    rows.append(row)
                    only += [row * vocabulary + token for token in allowed]
        flat, device = candidates.view(-1), candidates.device
        if rows:
            kept = torch.tensor(only, dtype=torch.long, device=device)
            values = flat[kept]
            candidates.view(-1, vocabulary)[torch.tensor(rows, device=device)] = NOTHING
            flat[kept] = values
        if never:
            flat[torch.tensor(never, device=device)] = NOTHING
        return candidates

    @staticmethod
    def _reaches(rules: Rules, state: Standing, token: int, left: int) -> bool:
        after = rules.after(state, token)
        return after is not None and rules.distance(after) <= left

    @staticmethod
    def _in_time(rules: Rules, state: Standing, left: int) -> bool:
        """Whether a token that leads nowhere leaves time for all that must still be written."""
        others = tuple(rule.otherwise(part) for rule, part in zip(rules.rules, state, strict=True))
        return rules.distance(others) <= left

    def choose(
        self, wished: Tensor, unwished: Tensor | None, looked: int, left: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The continuations that are looked at: scores and flat places (B, 2k), and which may become complete.

        They are the best of the candidates (B, k, V) that can be completed in time; where no wished one can, an
        unwished one is taken.
        """
        candidates, best, index = self._possible(wished, looked, left)
        if unwished is not None and (lost := (best[:, 0] == NOTHING) & self._guided(best)).any():
            candidates, best, index = self._possible(torch.where(lost[:, None, None], unwished, wished), looked, left)
        ahead = (torch.arange(looked, device=best.device) < self.width).expand_as(best)
        sources = [source for source, required in enumerate(self.required) if required]
        if sources:
            ahead, best, index = ahead.clone(), best.clone(), index.clone()
            rows = torch.tensor(sources, device=best.device)
            ahead[rows] = True  # what does not end among the first was left out already
            best[rows], index[rows] = self._shared_out(sources, candidates, index, left)
        return best, index, ahead

    def _shared_out(
        self, sources: Sequence[int], candidates: Tensor, index: Tensor, left: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Scores and flat places (n, 2k) of what is looked at of sources with required phrases.

        All sources are read and written at once: a GPU waits for every single question.
        """
        looked, size = index.shape[1], candidates[0].numel()
        two = candidates.topk(min(2, candidates.shape[2]), 2).indices.tolist()
        found = index.tolist()
        asked = [self._looked_at(source, found[source], two[source], candidates.shape[2]) for source in sources]
        places = [source * size + place for source, mine in zip(sources, asked, strict=True) for place in mine]
        scores = iter(candidates.view(-1)[torch.tensor(places, device=candidates.device)].tolist())
        best, index_rows = [], []
        for source, mine in zip(sources, asked, strict=True):
            scored = {place: next(scores) for place in mine}
            chosen = self._shared(source, scored, candidates.shape[2], left[source])
            rest = looked - len(chosen)
            best.append([*(scored[place] for place in chosen), *([NOTHING] * rest)])
            index_rows.append([*chosen, *([0] * rest)])
        return (
            torch.tensor(best, dtype=candidates.dtype, device=candidates.device),
            torch.tensor(index_rows, dtype=torch.long, device=candidates.device),
        )

    def _guided(self, like: Tensor) -> Tensor:
        return torch.tensor([one is not None for one in self.rules], device=like.device)

    def _possible(self, candidates: Tensor, looked: int, left: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Candidates (B, k, V) without those that cannot be completed in time, as far as they were looked at."""
        candidates = self.restricted(candidates, left)
        vocabulary = candidates.shape[2]
        best, index = candidates.flatten(1).topk(looked, 1)
        while late := self._late(best, index, vocabulary, left):
            candidates.view(-1)[torch.tensor(late, device=candidates.device)] = NOTHING
            best, index = candidates.flatten(1).topk(looked, 1)
        return candidates, best, index

    def _late(self, best: Tensor, index: Tensor, vocabulary: int, left: Sequence[int]) -> list[int]:
        """Flat places of continuations that cannot be completed within what is left."""
        found = []
        scores, places = best.tolist(), index.tolist()
        for source, rules in enumerate(self.rules):
            if rules is None:
                continue
            for score, place in zip(scores[source], places[source], strict=True):
                if not score > NOTHING or place % vocabulary == EOS:  # NaN is not above anything either
                    continue
                if not self._reaches(
                    rules, self.standing[source][place // vocabulary], place % vocabulary, left[source]
                ):
                    found.append(source * self.width * vocabulary + place)
        return found

    def _looked_at(self, source: int, index: list[int], two: list[list[int]], vocabulary: int) -> list[int]:
        """The best continuations of all hypotheses, the best two of each, and those that write what is required."""
        rules, standing = self.rules[source], self.standing[source]
        assert rules is not None
        places = dict.fromkeys(index)
        for row, tokens in enumerate(two):
            if standing[row] is not None:
                more = [*tokens, *rules.wanted(standing[row])]
                places |= dict.fromkeys(row * vocabulary + token for token in more)
        return list(places)

    def _shared(self, source: int, scored: dict[int, float], vocabulary: int, left: int) -> list[int]:
        """Places shared out among hypotheses that have come equally far (dynamic beam allocation, Post & Vilar 2018).

        How far one has come is its distance from the end. Of every such group the best takes a place, then the second
        best and so on; where places are fewer than groups, the farthest comes first.
        """
        rules, standing = self.rules[source], self.standing[source]
        assert rules is not None
        groups: dict[float, list[tuple[float, int]]] = defaultdict(list)
        for place, score in scored.items():
            if score > NOTHING:
                state, token = standing[place // vocabulary], place % vocabulary
                if token == EOS:
                    groups[0].append((-score, place))
                elif (after := rules.after(state, token)) is not None and (far := rules.distance(after)) <= left:
                    groups[far].append((-score, place))
        ends, ways = list[int](), list[list[tuple[float, int]]]()
        for _, group in sorted(groups.items()):
            group.sort()
            ends += [place for _, place in group[: self.width] if place % vocabulary == EOS]
            ways.append([pair for pair in group if pair[1] % vocabulary != EOS])
        ways = [group for group in ways if group]
        ways = ways[:1] + sorted(ways[1:])  # after the farthest the most probable
        chosen = list[int]()
        depth = 0
        while len(chosen) < self.width and any(len(group) > depth for group in ways):
            chosen += [group[depth][1] for group in ways if len(group) > depth][: self.width - len(chosen)]
            depth += 1
        return chosen + ends

    def advance(self, totals: Tensor, origin: Tensor, token: Tensor) -> None:
        """Follow the hypotheses that live on: all (B, k)."""
        rows = zip(totals.tolist(), origin.tolist(), token.tolist(), strict=True)
        for source, (scores, origins, tokens) in enumerate(rows):
            rules = self.rules[source]
            if rules is not None:
                standing = self.standing[source]
                self.standing[source] = [
                    rules.after(standing[parent], symbol) if score > NOTHING else None
                    for score, parent, symbol in zip(scores, origins, tokens, strict=True)
                ]

    def of(self, sources: Sequence[int]) -> Guides:
        """Those of some sources alone, to choose by."""
        part = Guides([], self.width)
        part.rules = [self.rules[source] for source in sources]
        part.standing = [self.standing[source] for source in sources]
        return part

    def select(self, sources: Sequence[int]) -> None:
        """Keep some sources."""
        self.rules = [self.rules[source] for source in sources]
        self.standing = [self.standing[source] for source in sources]
