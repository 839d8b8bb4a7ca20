"""Decoding of non-autoregressive models that predict a length and then every position independently.

Since positions are independent, the k best texts of one length are found exactly. A token scores its log-probability
at its position, and <eos> that of the length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.hypothesis import SUPPRESSED_TOKENS, Hypothesis
from dragoman.decoding.scorer import NEG_INF, Scorer
from dragoman.models.contracts import LengthBeam
from dragoman.progress import check_interrupted


@torch.no_grad()
def decode(beam: LengthBeam, limits: Tensor, config: SearchConfig, n_best: int) -> list[list[Hypothesis]]:
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
