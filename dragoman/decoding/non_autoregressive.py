"""Decoding of models that output all positions at once: CTC, or a predicted length.

CTC has the best path, and prefix beam search over texts. A hypothesis scores the log-probability of its text, summed
over all its paths, whatever paths the search saw. No token has a score of its own: `token_scores` spread the score
evenly over the tokens and <eos>, which costs nothing itself because the positions end by themselves.

A language model may take part in the ranking (shallow fusion, Hannun et al. 2014): `LMFusion` adds
λ log p(text) + γ · tokens to the rank of a text. The score of a hypothesis stays that of CTC alone.

With a predicted length positions are independent, so the k best texts of one length are found exactly. A token scores
its log-probability at its position, and <eos> that of the length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dragoman.base import check_interrupted
from dragoman.data.tokenizers import EOS, PAD
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.hypothesis import SUPPRESSED_TOKENS, Hypothesis
from dragoman.decoding.scorer import NEG_INF, Scorer
from dragoman.models import CTCEmissions, LengthBeam
from dragoman.models.layers import collapse, ctc_log_probability

BLANK = PAD
FORBIDDEN = tuple({*SUPPRESSED_TOKENS, EOS} - {BLANK})  # symbols that no path may contain

LanguageModelScorer = Callable[[Sequence[tuple[int, ...]]], Tensor]  # texts → next-token log-probabilities (N, V)


@dataclass(frozen=True)
class LMFusion:
    """Shallow fusion: a language model adds weight · log p(text) + bonus · tokens to the rank of a text.

    The scorer may be an n-gram table or a neural model (joint_ctc.py). The search asks for all texts of its beam at
    once, and at the next position for these and others that are one token longer.
    """

    scorer: LanguageModelScorer
    weight: float  # λ, above 0
    bonus: float = 0.0  # γ, makes up for the language model's preference for short texts

    def __post_init__(self) -> None:
        assert self.weight > 0

    def next_token_scores(self, texts: Sequence[tuple[int, ...]]) -> Tensor:
        """What each next token adds to the rank of texts (N, V); <eos> has no bonus, since it is no token of a text."""
        scores = self.weight * self.scorer(texts) + self.bonus  # a new tensor: the scorer may cache its own
        scores[:, EOS] -= self.bonus
        return scores

    def next_token_scores_of(self, texts: Tensor, sizes: Tensor, like: Tensor) -> Tensor:
        """The same for padded texts (B, k, L) of these sizes (B, k): (B, k, V), each distinct text scored once."""
        rows = [
            tuple(text[:size])
            for row, lengths in zip(texts.tolist(), sizes.tolist(), strict=True)
            for text, size in zip(row, lengths, strict=True)
        ]
        index = {text: number for number, text in enumerate(dict.fromkeys(rows))}
        scores = self.next_token_scores(list(index))[[index[text] for text in rows]]
        return scores.view(*sizes.shape, -1).to(like)

    def total(self, text: Sequence[int]) -> float:
        """What it adds to the rank of a whole text, <eos> included."""
        tokens = [*text, EOS]
        scores = self.next_token_scores([tuple(tokens[:size]) for size in range(len(tokens))])
        return float(scores[range(len(tokens)), tokens].sum())


@torch.no_grad()
def decode_ctc(
    emissions: CTCEmissions, limits: Tensor, config: SearchConfig, n_best: int, fusion: LMFusion | None = None
) -> list[list[Hypothesis]]:
    """The best texts of every source, best first; limits (B,) count <eos>. A beam of one takes the best path.

    With `fusion` even a beam of one runs the prefix search, since the best path ignores the language model.
    """
    scorer = Scorer.from_config(config)
    log_probabilities = emissions.log_probabilities.clone()
    log_probabilities[:, :, list(FORBIDDEN)] = NEG_INF
    emissions = emissions._replace(log_probabilities=log_probabilities)
    width = max(config.beam, n_best)
    if width == 1 and fusion is None:
        best = best_path(emissions, limits - 1)
    else:
        best = prefix_beam_search(emissions, limits - 1, width, fusion)
    scores = ctc_log_probability(log_probabilities, emissions.lengths, best.texts, best.sizes, BLANK)
    scores = scores.masked_fill(best.totals == NEG_INF, NEG_INF)
    outputs = []
    for row in zip(*(tensor.tolist() for tensor in (best.texts, best.sizes, scores, best.fusion)), strict=True):
        hypotheses = []
        for text, size, score, bonus in zip(*row, strict=True):
            if score != NEG_INF:
                normalised = (score + bonus) / scorer.divisor(size + 1)
                token_scores = (score / (size + 1),) * (size + 1)
                hypotheses.append(Hypothesis((*text[:size], EOS), token_scores, score, normalised))
        outputs.append(sorted(hypotheses, key=lambda hypothesis: -hypothesis.normalised)[:n_best])
    return outputs


class Prefixes(NamedTuple):
    """The k best distinct texts of every source so far, with the probability of their paths.

    Paths that end in the blank are separate from those that end in the text's last symbol: after the first the same
    symbol starts a new token, after the second it continues the old one (Graves 2012; Hannun et al. 2014, algorithm 1).
    """

    texts: Tensor  # (B, k, L), padded with the blank
    sizes: Tensor  # (B, k)
    blank: Tensor  # (B, k) log-probability of paths that end in the blank
    symbol: Tensor  # (B, k) of those that end in the last symbol
    fusion: Tensor  # (B, k) what the language model adds to the rank

    @property
    def totals(self) -> Tensor:
        """Log-probability of each text so far, −∞ where there is no text."""
        return torch.logaddexp(self.blank, self.symbol)


def best_path(emissions: CTCEmissions, limits: Tensor) -> Prefixes:
    """The text of the most probable symbol at every position, one per source, cut at its limit; without its paths."""
    texts, sizes = collapse(emissions.log_probabilities.argmax(-1), emissions.lengths, BLANK)
    sizes = sizes.minimum(limits.clamp(min=0))
    beyond = torch.arange(texts.shape[1], device=texts.device) >= sizes[:, None]
    none = torch.zeros(len(sizes), 1, dtype=torch.float64, device=sizes.device)
    return Prefixes(texts.masked_fill(beyond, BLANK)[:, None], sizes[:, None], none, none, none)


@torch.no_grad()
def prefix_beam_search(emissions: CTCEmissions, limits: Tensor, width: int, fusion: LMFusion | None = None) -> Prefixes:
    """The `width` most probable distinct texts of every source; rows do not depend on each other."""
    frames, lengths = emissions
    rows, positions, _ = frames.shape
    max_length = min(positions, max(1, int(limits.max()))) if rows else 1
    none = frames.new_full((rows, width), NEG_INF)
    start = none.clone()
    start[:, 0] = 0.0
    blanks = torch.full((rows, width, max_length), BLANK, dtype=torch.long, device=frames.device)
    prefixes = Prefixes(blanks, blanks.new_zeros(rows, width), start, none, torch.zeros_like(none))
    for position in range(positions):
        check_interrupted()
        inside = position < lengths
        next_scores = fusion.next_token_scores_of(prefixes.texts, prefixes.sizes, frames) if fusion else None
        extended = extend(prefixes, frames[:, position], limits, next_scores)
        prefixes = Prefixes(
            *(
                torch.where(inside.view(-1, *[1] * (old.dim() - 1)), new, old)
                for new, old in zip(extended, prefixes, strict=True)
            )
        )
    if fusion is None:
        return prefixes
    at_end = fusion.next_token_scores_of(prefixes.texts, prefixes.sizes, frames)[:, :, EOS]
    return prefixes._replace(fusion=prefixes.fusion + at_end)


def extend(prefixes: Prefixes, frame: Tensor, limits: Tensor, next_scores: Tensor | None = None) -> Prefixes:
    """The best texts after one more position.

    frame (B, V) holds its log-probabilities, next_scores (B, k, V) what a next token adds to the rank.
    """
    texts, sizes, blank, symbol, fusion = prefixes
    width, max_length, vocabulary = *texts.shape[1:], frame.shape[1]
    totals = prefixes.totals
    end = (sizes - 1).clamp(min=0)[:, :, None]
    last = texts.gather(2, end)[:, :, 0]  # (B, k), the blank where the text is empty
    last_score = frame.gather(1, last)

    # A text stays the same by a blank, or by its last symbol going on.
    stay_blank = totals + frame[:, BLANK, None]
    stay_symbol = (symbol + last_score).masked_fill(sizes == 0, NEG_INF)
    # It grows by a symbol; by its last one only after a blank.
    grown = totals[:, :, None] + frame[:, None]  # (B, k, V)
    grown.scatter_(2, last[:, :, None], (blank + last_score)[:, :, None])
    grown[:, :, BLANK] = NEG_INF
    grown.masked_fill_((sizes >= limits[:, None])[:, :, None], NEG_INF)

    # Where text i grows into text j of the beam, both are one: j takes the probability.
    stem = texts.scatter(2, end, BLANK)
    is_child = (texts[:, :, None] == stem[:, None]).all(3)  # (B, i, j)
    is_child &= (sizes > 0)[:, None] & (totals > NEG_INF)[:, None] & (totals > NEG_INF)[:, :, None]
    step = last[:, None].expand(-1, width, -1)
    into = grown.gather(2, step)
    stay_symbol = torch.logaddexp(stay_symbol, into.masked_fill(~is_child, NEG_INF).logsumexp(1))
    grown.scatter_reduce_(2, step, into.masked_fill(is_child, NEG_INF), "amin")  # two texts may end in one symbol

    stay = torch.logaddexp(stay_blank, stay_symbol)
    scores = torch.cat([stay, grown.flatten(1)], 1)
    if next_scores is None:
        best, index = scores.topk(width, 1)
        empty, new_fusion = best == NEG_INF, fusion
    else:
        added = torch.cat([fusion, (fusion[:, :, None] + next_scores).flatten(1)], 1)
        ranks, index = (scores + added).topk(width, 1)
        best, new_fusion, empty = scores.gather(1, index), added.gather(1, index), ranks == NEG_INF
    stays = (index < width) | empty
    grows = (index - width).clamp(min=0)
    parent = torch.where(index < width, index, grows // vocabulary)
    new_sizes = sizes.gather(1, parent).masked_fill(empty, 0)
    new_texts = texts.gather(1, parent[:, :, None].expand(-1, -1, max_length)).masked_fill(empty[:, :, None], BLANK)
    at = new_sizes.clamp(max=max_length - 1)[:, :, None]
    token = torch.where(stays, new_texts.gather(2, at)[:, :, 0], grows % vocabulary)
    return Prefixes(
        new_texts.scatter(2, at, token[:, :, None]),
        new_sizes + ~stays,
        torch.where(stays, stay_blank.gather(1, parent), NEG_INF).masked_fill(empty, NEG_INF),
        torch.where(stays, stay_symbol.gather(1, parent), best).masked_fill(empty, NEG_INF),
        new_fusion.masked_fill(empty, 0.0),
    )


@torch.no_grad()
def decode_lengths(beam: LengthBeam, limits: Tensor, config: SearchConfig, n_best: int) -> list[list[Hypothesis]]:
    """The best texts of every source over its candidate lengths, best first; the model keeps lengths within limits."""
    scorer = Scorer.from_config(config)
    log_probabilities = beam.log_probabilities.clone()
    log_probabilities[..., [*SUPPRESSED_TOKENS, EOS]] = NEG_INF
    tensors = k_best(log_probabilities, beam.lengths, n_best)
    outputs = []
    for row in range(len(beam.lengths)):
        hypotheses = []
        for index, size in enumerate(beam.lengths[row].tolist()):
            length_score = float(beam.length_scores[row, index])
            for tokens, token_scores, total in zip(*(tensor[row, index].tolist() for tensor in tensors), strict=True):
                total += length_score
                if total != NEG_INF:
                    scores = (*token_scores[:size], length_score)
                    normalised = total / scorer.divisor(size + 1)
                    hypotheses.append(Hypothesis((*tokens[:size], EOS), scores, total, normalised))
        outputs.append(sorted(hypotheses, key=lambda hypothesis: -hypothesis.normalised)[:n_best])
    return outputs


def k_best(log_probabilities: Tensor, lengths: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k best sequences of independent positions: tokens and scores (B, N, k, T), sums (B, N, k), −∞ for none.

    log_probabilities (B, N, T, V) and lengths (B, N) are those of N candidate lengths per source.
    """
    rows, candidates, positions, vocabulary = log_probabilities.shape
    best_scores, best_tokens = log_probabilities.topk(min(k, vocabulary), -1)  # (B, N, T, c)
    totals = log_probabilities.new_full((rows, candidates, k), NEG_INF)
    totals[:, :, 0] = 0.0
    tokens = best_tokens.new_zeros(rows, candidates, k, positions)
    scores = log_probabilities.new_zeros(rows, candidates, k, positions)
    for position in range(positions):
        check_interrupted()
        inside = (position < lengths)[:, :, None]
        sums = totals[:, :, :, None] + best_scores[:, :, None, position]  # (B, N, k, c)
        best, index = sums.flatten(2).topk(k, 2)
        parent, choice = index // best_scores.shape[3], index % best_scores.shape[3]
        deep = parent[..., None].expand(-1, -1, -1, positions)
        new_tokens, new_scores = tokens.gather(2, deep), scores.gather(2, deep)
        new_tokens[..., position] = best_tokens[:, :, position].gather(2, choice)
        new_scores[..., position] = best_scores[:, :, position].gather(2, choice)
        totals = torch.where(inside, best, totals)
        tokens = torch.where(inside[..., None], new_tokens, tokens)
        scores = torch.where(inside[..., None], new_scores, scores)
    return tokens, scores, totals
