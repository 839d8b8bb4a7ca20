"""Texts out of CTC emissions (FIELD H8): the best path, and prefix beam search over texts.

A hypothesis scores the log-probability of its text, summed over all its paths whatever the search saw of them. No
token has a share of its own in it: `token_scores` spread it evenly over the tokens, <eos> included, which itself
costs nothing since the positions end by themselves.

A language model may help to choose: a `Fusion` adds λ log p(text) + γ · tokens to what texts are ranked by (shallow
fusion, Hannun et al. 2014); the score of a hypothesis stays that of CTC alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dragoman.data.tokenizers.base import EOS, PAD
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.hypothesis import NEVER_WRITTEN, Hypothesis, divisor
from dragoman.layers.ctc import NOTHING, collapsed, text_log_probability
from dragoman.models.contracts import CTCEmissions

BLANK = PAD
SILENT = tuple({*NEVER_WRITTEN, EOS} - {BLANK})  # symbols that no path may have

Scorer = Callable[[Sequence[tuple[int, ...]]], Tensor]  # texts → log-probabilities (N, V) of what follows, <eos> too


@dataclass(frozen=True)
class Fusion:
    """What a language model adds to the rank of a text: weight · log p(text) + bonus · tokens.

    The scorer may be anything that tells what follows texts, an n-gram table or a neural model. A search asks for all
    texts of its beam at once, and at its next position for these and others that are one token longer.
    """

    scorer: Scorer
    weight: float  # above 0
    bonus: float = 0.0  # makes up for the language model's liking of short texts

    def __post_init__(self) -> None:
        assert self.weight > 0

    def after(self, texts: Sequence[tuple[int, ...]]) -> Tensor:
        """What each token after texts adds (N, V); <eos>, which is no token of them, has no bonus."""
        added = self.weight * self.scorer(texts) + self.bonus  # a new tensor: the scorer may keep its own
        added[:, EOS] -= self.bonus
        return added

    def following(self, texts: Tensor, sizes: Tensor, like: Tensor) -> Tensor:
        """The same for texts (B, k, L): (B, k, V)."""
        asked = [
            tuple(text[:size])
            for row, lengths in zip(texts.tolist(), sizes.tolist(), strict=True)
            for text, size in zip(row, lengths, strict=True)
        ]
        places = {text: place for place, text in enumerate(dict.fromkeys(asked))}
        found = self.after(list(places))[[places[text] for text in asked]]
        return found.view(*sizes.shape, -1).to(like)

    def total(self, text: list[int]) -> float:
        """What it adds to a whole text, <eos> included."""
        tokens = [*text, EOS]
        added = self.after([tuple(tokens[:place]) for place in range(len(tokens))])
        return float(added[range(len(tokens)), tokens].sum())


@torch.no_grad()
def read(
    emissions: CTCEmissions, limits: Tensor, config: SearchConfig, most: int, fusion: Fusion | None = None
) -> list[list[Hypothesis]]:
    """The best texts of every source, best first; limits (B,) count <eos>. A beam of one takes the best path.

    With `fusion` even a beam of one searches, since the best path knows nothing of it.
    """
    log_probabilities = emissions.log_probabilities.clone()
    log_probabilities[:, :, list(SILENT)] = NOTHING
    emissions = emissions._replace(log_probabilities=log_probabilities)
    width = max(config.beam, most)
    if width == 1 and fusion is None:
        texts, sizes, real, more = best_path(emissions, limits - 1)
    else:
        texts, sizes, real, more = prefix_beam(emissions, limits - 1, width, fusion)
    scores = text_log_probability(log_probabilities, emissions.lengths, texts, sizes, BLANK).masked_fill(~real, NOTHING)
    found = []
    rows = (texts.tolist(), sizes.tolist(), scores.tolist(), more.tolist())
    for row, lengths, totals, priors in zip(*rows, strict=True):
        hypotheses = [
            hypothesis(
                text[:length],
                total,
                divisor(length + 1, config.length_penalty, config.normalisation),
                prior,
            )
            for text, length, total, prior in zip(row, lengths, totals, priors, strict=True)
            if total != NOTHING
        ]
        found.append(sorted(hypotheses, key=lambda one: -one.normalised)[:most])
    return found


def hypothesis(text: list[int], score: float, divided: float, more: float = 0.0) -> Hypothesis:
    """A text with its score spread over its tokens; `more` counts for its rank alone."""
    size = len(text) + 1
    return Hypothesis((*text, EOS), (score / size,) * size, score, (score + more) / divided)


class Texts(NamedTuple):
    """What a search found."""

    texts: Tensor  # (B, k, L) filled up with the blank
    sizes: Tensor  # (B, k)
    real: Tensor  # (B, k)
    more: Tensor  # (B, k) what a language model adds to the rank


def best_path(emissions: CTCEmissions, limits: Tensor) -> Texts:
    """The text of the most probable symbol at every position, one a source; cut where it is too long."""
    texts, sizes = collapsed(emissions.log_probabilities.argmax(-1), emissions.lengths, BLANK)
    sizes = sizes.minimum(limits.clamp(min=0))
    beyond = torch.arange(texts.shape[1], device=texts.device) >= sizes[:, None]
    sizes = sizes[:, None]
    nothing = torch.zeros(sizes.shape, dtype=torch.float64, device=sizes.device)
    return Texts(texts.masked_fill(beyond, BLANK)[:, None], sizes, torch.ones_like(sizes, dtype=torch.bool), nothing)


class Prefixes(NamedTuple):
    """The k texts of every source that are looked at, all different, and their probability so far.

    Paths that end in the blank are kept apart from those that end in the text's last symbol: after the first the
    same symbol begins anew, after the second it only lasts (Graves 2012; Hannun et al. 2014, algorithm 1).
    """

    texts: Tensor  # (B, k, L), filled up with the blank
    sizes: Tensor  # (B, k)
    parted: Tensor  # (B, k) log-probability of paths that end in the blank
    lasting: Tensor  # (B, k) of those that end in the last symbol
    prior: Tensor  # (B, k) what a language model adds to the rank

    @property
    def totals(self) -> Tensor:
        """Log-probability of each text so far, −∞ where no text is."""
        return torch.logaddexp(self.parted, self.lasting)


@torch.no_grad()
def prefix_beam(emissions: CTCEmissions, limits: Tensor, width: int, fusion: Fusion | None = None) -> Texts:
    """The `width` texts of every source that were found most probable, all different; rows do not see each other."""
    frames, lengths = emissions
    rows, positions, _ = frames.shape
    longest = min(positions, max(1, int(limits.max()))) if rows else 1
    nothing = frames.new_full((rows, width), NOTHING)
    start = nothing.clone()
    start[:, 0] = 0.0
    blanks = torch.full((rows, width, longest), BLANK, dtype=torch.long, device=frames.device)
    prefixes = Prefixes(blanks, blanks.new_zeros(rows, width), start, nothing, torch.zeros_like(nothing))
    for place in range(positions):
        going = place < lengths
        following = fusion.following(prefixes.texts, prefixes.sizes, frames) if fusion else None
        later = extended(prefixes, frames[:, place], limits, following)
        prefixes = Prefixes(
            *(
                torch.where(going.view(-1, *[1] * (old.dim() - 1)), new, old)
                for new, old in zip(later, prefixes, strict=True)
            )
        )
    more = prefixes.prior
    if fusion is not None:
        more = more + fusion.following(prefixes.texts, prefixes.sizes, frames)[:, :, EOS]
    return Texts(prefixes.texts, prefixes.sizes, prefixes.totals != NOTHING, more)


def extended(prefixes: Prefixes, frame: Tensor, limits: Tensor, following: Tensor | None = None) -> Prefixes:
    """The best texts after one more position, frame (B, V); following (B, k, V): what a next token adds to the rank."""
    texts, sizes, parted, lasting, prior = prefixes
    width, longest, vocabulary = *texts.shape[1:], frame.shape[1]
    totals = prefixes.totals
    end = (sizes - 1).clamp(min=0)[:, :, None]
    last = texts.gather(2, end)[:, :, 0]  # (B, k), the blank where the text is empty
    spoken = frame.gather(1, last)

    # A text stays by a blank, or by its last symbol going on.
    stay_parted = totals + frame[:, BLANK, None]
    stay_lasting = (lasting + spoken).masked_fill(sizes == 0, NOTHING)
    # It grows by a symbol; by its last one only after a blank.
    grown = totals[:, :, None] + frame[:, None]  # (B, k, V)
    grown.scatter_(2, last[:, :, None], (parted + spoken)[:, :, None])
    grown[:, :, BLANK] = NOTHING
    grown.masked_fill_((sizes >= limits[:, None])[:, :, None], NOTHING)

    # Where text i grows into text j, which is looked at already, both are one: j takes the probability.
    stem = texts.scatter(2, end, BLANK)
    child = (texts[:, :, None] == stem[:, None]).all(3)  # (B, i, j)
    child &= (sizes > 0)[:, None] & (totals > NOTHING)[:, None] & (totals > NOTHING)[:, :, None]
    step = last[:, None].expand(-1, width, -1)
    into = grown.gather(2, step)
    stay_lasting = torch.logaddexp(stay_lasting, into.masked_fill(~child, NOTHING).logsumexp(1))
    grown.scatter_reduce_(2, step, into.masked_fill(child, NOTHING), "amin")  # two texts may end in one symbol

    stay = torch.logaddexp(stay_parted, stay_lasting)
    scores = torch.cat([stay, grown.flatten(1)], 1)
    if following is None:
        best, index = scores.topk(width, 1)
        nothing, priors = best == NOTHING, prior
    else:
        added = torch.cat([prior, (prior[:, :, None] + following).flatten(1)], 1)
        ranks, index = (scores + added).topk(width, 1)
        best, priors, nothing = scores.gather(1, index), added.gather(1, index), ranks == NOTHING
    # Where there are fewer texts than places those stay empty.
    stays = (index < width) | nothing
    grows = (index - width).clamp(min=0)
    origin = torch.where(index < width, index, grows // vocabulary)
    new_sizes = sizes.gather(1, origin).masked_fill(nothing, 0)
    new_texts = texts.gather(1, origin[:, :, None].expand(-1, -1, longest)).masked_fill(nothing[:, :, None], BLANK)
    at = new_sizes.clamp(max=longest - 1)[:, :, None]
    symbol = torch.where(stays, new_texts.gather(2, at)[:, :, 0], grows % vocabulary)
    return Prefixes(
        new_texts.scatter(2, at, symbol[:, :, None]),
        new_sizes + ~stays,
        torch.where(stays, stay_parted.gather(1, origin), NOTHING).masked_fill(nothing, NOTHING),
        torch.where(stays, stay_lasting.gather(1, origin), best).masked_fill(nothing, NOTHING),
        priors.masked_fill(nothing, 0.0),
    )
