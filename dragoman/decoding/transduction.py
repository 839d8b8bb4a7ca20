"""Outputs of fitted models without torch: transducers search on their own, n-grams continue a text greedily."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dragoman.base import ConfigError, check_interrupted
from dragoman.classical import NGramModel, ScoredTokens, Transducer, line_of
from dragoman.data.tokenizers import EOS, PAD
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.hypothesis import SUPPRESSED_TOKENS, Hypothesis
from dragoman.decoding.scorer import Scorer

BEAM_ONLY = ("beam_groups", "coverage_penalty", "min_length", "no_repeat_ngram")


def transduce(
    model: Transducer,
    sources: Sequence[Sequence[int]],
    config: SearchConfig,
    n_best: int = 1,
    given: Mapping[str, bool] | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses for every source (token ids, with <eos> or without), best first.

    `given` says which options of other searches a caller has set: they are an error.
    """
    check_interrupted()
    refuse_beam_options(given or {}, config, BEAM_ONLY, "this model has no neural network and searches on its own")
    rows = [tuple(token for token in source if token not in (PAD, EOS)) for source in sources]
    outputs = model.transduce(rows, max(config.beam, n_best), n_best)
    return [[_hypothesis(output) for output in several] for several in outputs]


def continue_greedily(model: NGramModel, context: Sequence[int], max_length: int, one_line: bool) -> Hypothesis:
    """What `greedy_search` writes after a context, at most `max_length` tokens; `one_line` stops at <eos>."""
    tokens: list[int] = []
    scores: list[float] = []
    while len(tokens) < max_length and not (one_line and tokens and tokens[-1] == EOS):
        check_interrupted()
        read = [*context, *tokens]
        logs = model.distribution(line_of(read[max(0, len(read) - model.order + 1) :]))
        logs[list(SUPPRESSED_TOKENS)] = -np.inf
        tokens.append(int(logs.argmax()))
        scores.append(float(logs[tokens[-1]]))
    return Scorer().hypothesis(tokens, scores)


def _hypothesis(output: ScoredTokens) -> Hypothesis:
    score = math.fsum(output.token_scores)
    return Hypothesis((*output.tokens, EOS), output.token_scores, score, score)


def refuse_beam_options(given: Mapping[str, bool], config: SearchConfig, names: Sequence[str], reason: str) -> None:
    """Raise an error for what was given, and settings without their default, where only beam search has them."""
    default = SearchConfig()
    unusable = [name for name, is_given in given.items() if is_given]
    unusable += [name for name in names if getattr(config, name) != getattr(default, name)]
    if unusable:
        raise ConfigError(f"found {', '.join(unusable)}, but {reason}")
