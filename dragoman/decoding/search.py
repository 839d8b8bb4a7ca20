"""Batches in, hypotheses out: chooses greedy search, beam search or another method for a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from dragoman.classical.model import ScoredTokens, Transducer, rows_of
from dragoman.data.batch import Batch
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding import ctc, length_nat
from dragoman.decoding.beam import BeamOptions, beam_search, enough_complete
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.constraints.automata import ConstraintAutomaton
from dragoman.decoding.cuda_graph_beam import graph_beam_search
from dragoman.decoding.cuda_graph_step import start_decoding
from dragoman.decoding.diverse_beam import group_width
from dragoman.decoding.greedy import greedy_search
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.method import AutoregressiveModel, Method, Request
from dragoman.decoding.scorer import Scorer
from dragoman.decoding.step_contract import check_model, checked_step
from dragoman.decoding.trace import Trace
from dragoman.errors import ConfigError, DataError, DragomanError
from dragoman.models.contracts import CTCEmissions, LengthBeam, NonAutoregressiveModel, decodes
from dragoman.progress import check_interrupted

BEAM_ONLY = ("beam_groups", "coverage_penalty", "min_length", "no_repeat_ngram")
# How the output of a non-autoregressive model becomes hypotheses.
DECODERS: dict[type, Any] = {
    CTCEmissions: ctc.decode,
    LengthBeam: length_nat.decode,
}


def limits_of(lengths: Tensor, config: SearchConfig, ratio: float, max_positions: int | None = None) -> Tensor:
    """The maximum number of output tokens for sources of these lengths, <eos> included on both sides."""
    if config.max_length:
        limits = torch.full_like(lengths, config.max_length + 1)
    else:
        limits = (lengths * math.ceil(ratio * 16) // 16) + 12
    return limits if max_positions is None else limits.clamp(max=max_positions)


def limits_for(batch: Batch, config: SearchConfig, ratio: float) -> Tensor:
    """`limits_of` the sources of a batch."""
    return limits_of(batch.source.mask.sum(1), config, ratio)


def search(
    model: AutoregressiveModel | NonAutoregressiveModel | Transducer,
    batch: Batch,
    config: SearchConfig,
    ratio: float,
    n_best: int = 1,
    *,
    method: Method | None = None,
    text: Callable[[Sequence[int]], str] = str,
    constraints: Sequence[ConstraintAutomaton | None] | None = None,
    trace: Trace | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses for every source of a batch, best first; without a `method` by greedy or beam search.

    `ratio` is how many target tokens the training data have for one source token; it bounds the length of an output
    unless `config.max_length` does. `text` gives the text of tokens, which a method may compare. `constraints` has the
    constraints of each source. The search may end between two steps (`progress.interruptible`).
    """
    check_interrupted()
    way, untyped = decodes(model), cast(Any, model)
    given = {"constraints": any(constraints or ()), "a trace": trace is not None}
    if way == "own-search":
        given["another decoding method"] = method is not None
        refuse_beam_options(given, config, BEAM_ONLY, "this model has no neural network and searches on its own")
        return transduce(untyped, batch, config, n_best)
    if way != "parallel":
        check_model(model)
    limits = limits_for(batch, config, ratio)
    if constraints and not config.max_length:
        needed = [automaton.distance(automaton.start) if automaton else 0 for automaton in constraints]
        limits = limits + limits.new_tensor([int(more) if math.isfinite(more) else 0 for more in needed])
    if model.max_positions is not None:
        limits = limits.clamp(max=model.max_positions)
    if method is not None:
        refuse_beam_options(given, config, BEAM_ONLY, "these go with beam search alone, not with another method")
        request = Request(untyped, batch, limits, config, n_best, text)
        if method.needs_hidden:
            request.hidden_step(method.kind)  # refuses a model without them, before any work
        outputs = method.search(request)
    elif way == "parallel":
        names = (*BEAM_ONLY, "stop", "num_complete")
        refuse_beam_options(given, config, names, "this model outputs all tokens at once, not one by one")
        outputs = decode_at_once(untyped, batch, limits, config, n_best)
    else:
        check_possible(constraints, limits)
        outputs = autoregressive_search(untyped, batch, limits, config, n_best, constraints, trace)
    if any(not hypotheses or math.isnan(hypotheses[0].score) for hypotheses in outputs):
        if constraints or config.no_repeat_ngram or config.min_length:
            raise DragomanError(
                "found no output for a source: either no output satisfies search.min_length, "
                "search.no_repeat_ngram and the constraints, or the model's probabilities are NaN"
            )
        raise DragomanError("found no output for a source: the model's probabilities are NaN; its weights are broken")
    return outputs


def transduce(model: Transducer, batch: Batch, config: SearchConfig, n_best: int) -> list[list[Hypothesis]]:
    """The hypotheses of a fitted model, which searches on its own."""

    def hypothesis(output: ScoredTokens) -> Hypothesis:
        score = math.fsum(output.token_scores)
        return Hypothesis((*output.tokens, EOS), output.token_scores, score, score)

    outputs = model.transduce(rows_of(batch.source.data), max(config.beam, n_best), n_best)
    return [[hypothesis(output) for output in row] for row in outputs]


def refuse_beam_options(given: dict[str, bool], config: SearchConfig, names: Sequence[str], reason: str) -> None:
    """Raise an error for what was given, and settings without their default, where only beam search has them."""
    default = SearchConfig()
    unusable = [name for name, is_given in given.items() if is_given]
    unusable += [name for name in names if getattr(config, name) != getattr(default, name)]
    if unusable:
        raise ConfigError(f"found {', '.join(unusable)}, but {reason}")


def check_possible(constraints: Sequence[ConstraintAutomaton | None] | None, limits: Tensor) -> None:
    """Raise an error for constraints that no output can satisfy."""
    for automaton, limit in zip(constraints or (), limits.tolist(), strict=False):
        if automaton is not None and (needed := automaton.distance(automaton.start)) > limit - 1:
            if math.isinf(needed):
                raise DataError("no output can satisfy the constraints of an input: they contradict each other")
            raise DataError(f"the constraints of an input need {int(needed)} tokens, expected at most {limit - 1}")


@torch.no_grad()
def decode_at_once(
    model: NonAutoregressiveModel, batch: Batch, limits: Tensor, config: SearchConfig, n_best: int
) -> list[list[Hypothesis]]:
    """The hypotheses of a non-autoregressive model."""
    output = model.emissions(batch, limits, max(config.beam, n_best))
    outputs: list[list[Hypothesis]] = DECODERS[type(output)](output, limits, config, n_best)
    return outputs


def autoregressive_search(
    model: AutoregressiveModel,
    batch: Batch,
    limits: Tensor,
    config: SearchConfig,
    n_best: int,
    constraints: Sequence[ConstraintAutomaton | None] | None = None,
    trace: Trace | None = None,
) -> list[list[Hypothesis]]:
    """The hypotheses of a model that writes token by token: by greedy search, beam search, or a CUDA graph of it."""
    width = max(config.beam, n_best)
    if config.beam_groups > 1:
        width = group_width(config.beam, config.beam_groups)
    options = BeamOptions(
        width,
        n_best,
        enough_complete(config, n_best),
        stop=config.stop,
        min_length=config.min_length,
        no_repeat_ngram=config.no_repeat_ngram,
        groups=config.beam_groups,
    )
    scorer = Scorer.from_config(config)
    allow_graph = config.beam_groups == 1 and not config.coverage_penalty
    restricted = trace is not None or any(constraints or ()) or config.min_length or config.no_repeat_ngram
    plain = allow_graph and not restricted and options.num_complete is None
    if plain:
        outputs = graph_beam_search(model, batch, limits, options, scorer)
        if outputs is not None:
            return outputs
    with torch.no_grad(), start_decoding(model, batch, limits, width, allow_graph=allow_graph) as (decoder, state):
        step = checked_step(model, decoder.step, state)
        if config.beam == 1 and n_best == 1 and plain:
            return [[hypothesis] for hypothesis in greedy_search(step, state, limits, scorer)]
        return beam_search(
            step,
            state,
            limits,
            options,
            scorer,
            constraints=constraints,
            source_mask=batch.source.mask,
            trace=trace,
        )
