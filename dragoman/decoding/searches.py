"""Batches in, hypotheses out: chooses greedy search, beam search or another method for a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast
from weakref import WeakSet

import torch
from torch import Tensor

from dragoman.base import DataError, DragomanError, check_interrupted
from dragoman.classical import Transducer
from dragoman.data import Batch
from dragoman.decoding.beam import BeamOptions, beam_search
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.constraints.automata import ConstraintAutomaton
from dragoman.decoding.cuda_graphs import graph_beam_search, start_decoding
from dragoman.decoding.greedy import greedy_search
from dragoman.decoding.hypothesis import Hypothesis, Step
from dragoman.decoding.method import AutoregressiveModel, Method, Request
from dragoman.decoding.non_autoregressive import decode_ctc, decode_lengths
from dragoman.decoding.scorer import Scorer
from dragoman.decoding.trace import Trace
from dragoman.decoding.transduction import BEAM_ONLY, refuse_beam_options, transduce
from dragoman.models import CTCEmissions, LengthBeam, NonAutoregressiveModel, decodes
from dragoman.models.kernels import wide

# How the output of a non-autoregressive model becomes hypotheses.
DECODERS: dict[type, Any] = {CTCEmissions: decode_ctc, LengthBeam: decode_lengths}


def limits_for(batch: Batch, config: SearchConfig, ratio: float) -> Tensor:
    """The maximum number of output tokens for every source, <eos> included on both sides."""
    limits: Tensor = config.limit(batch.source.mask.sum(1), ratio)
    return limits


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
        return transduce(untyped, batch.source.data.tolist(), config, n_best, given)
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
        with torch.no_grad():
            emissions = untyped.emissions(batch, limits, max(config.beam, n_best))
        outputs = DECODERS[type(emissions)](emissions, limits, config, n_best)
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


def check_possible(constraints: Sequence[ConstraintAutomaton | None] | None, limits: Tensor) -> None:
    for automaton, limit in zip(constraints or (), limits.tolist(), strict=False):
        if automaton is not None and (needed := automaton.distance(automaton.start)) > limit - 1:
            if math.isinf(needed):
                raise DataError("no output can satisfy the constraints of an input: they contradict each other")
            raise DataError(f"the constraints of an input need {int(needed)} tokens, expected at most {limit - 1}")


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
    options, scorer = BeamOptions.of(config, n_best), Scorer.from_config(config)
    allow_graph = config.beam_groups == 1 and not config.coverage_penalty
    restricted = trace is not None or any(constraints or ()) or config.min_length or config.no_repeat_ngram
    plain = allow_graph and not restricted and options.num_complete is None
    if plain and (outputs := graph_beam_search(model, batch, limits, options, scorer)) is not None:
        return outputs
    decoding = start_decoding(model, batch, limits, options.width, allow_graph)
    with torch.no_grad(), decoding as (decoder, state):
        step = checked_step(model, decoder.step, state)
        if config.beam == 1 and n_best == 1 and plain:
            return [[hypothesis] for hypothesis in greedy_search(step, state, limits, scorer)]
        mask = batch.source.mask
        return beam_search(step, state, limits, options, scorer, constraints=constraints, source_mask=mask, trace=trace)


# --- Checks of a model and of its first step, so that a mistake is one line and not a wrong output. Our own models
# pass them by their laws (`dragoman.testing`); someone's own module meets the search here first.


STATE_METHODS = {
    "select": "select(rows): keep, drop or repeat sources",
    "reorder": "reorder(rows): reorder hypotheses within their source",
    "expand": "expand(hypotheses): copy the hypothesis of every source",
}
TOLERANCE = 1e-3  # of Σ p = 1, in the logarithm: half precision and pruned softmaxes stay within it

_CHECKED: WeakSet[Any] = WeakSet()  # models whose first step was right


def check_model(model: Any) -> None:
    """Raise TypeError unless the model has what a search calls."""
    name = type(model).__name__
    for method, call in (("start", "start(batch) -> state"), ("step", "step(tokens, state) -> (scores, state)")):
        if not callable(getattr(model, method, None)):
            raise TypeError(f"{name}: found no method {method!r}, expected {call}, which the search calls")
    if not hasattr(model, "max_positions"):
        raise TypeError(
            f"{name}: found no attribute 'max_positions', expected how many tokens the model can write "
            "(None: any number)"
        )
    limit = model.max_positions
    if not (limit is None or (isinstance(limit, int) and limit > 0)):
        raise TypeError(f"{name}.max_positions: found {limit!r}, expected a positive number of tokens, or None")


def check_state(state: Any, name: str) -> None:
    """Raise TypeError unless the state has the methods that a search calls."""
    for method, call in STATE_METHODS.items():
        if not callable(getattr(state, method, None)):
            raise TypeError(
                f"{name}.start: found a state of type {type(state).__name__} without the method {method!r}; "
                f"expected {call} (dragoman.models.contracts.State has it)"
            )


def check_scores(scores: Any, rows: int, name: str) -> None:
    """Raise an error unless the scores are normalised log-probabilities (N, V)."""
    if not isinstance(scores, Tensor) or scores.dim() != 2 or scores.shape[0] != rows:
        found = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise TypeError(f"{name}.step: found {found}, expected log-probabilities of shape ({rows}, vocabulary)")
    if not scores.is_floating_point():
        raise TypeError(f"{name}.step: found scores of type {scores.dtype}, expected floating-point log-probabilities")
    # Suppressed tokens (−∞) may leave less than 1. The search itself reports NaN: broken weights, no broken contract.
    totals = scores.to(wide(scores.device)).logsumexp(-1)
    wrong = (totals > TOLERANCE) | ((totals < -TOLERANCE) & ~scores.isneginf().any(-1))
    if wrong.any():
        total = float(totals[wrong][0].exp())
        raise ValueError(
            f"{name}.step: found scores whose exponentials sum to {total:.4g}, expected log-probabilities, which sum "
            "to 1; return logits.log_softmax(-1)"
        )


def checked_step(model: Any, step: Step, state: Any) -> Step:
    """The step, which checks its first result for a model that was not seen before."""
    if model in _CHECKED:
        return step
    name = type(model).__name__
    check_state(state, name)

    def first_checked(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        result = step(tokens, state)
        if model not in _CHECKED:
            if not isinstance(result, tuple) or len(result) != 2:
                found = type(result).__name__
                raise TypeError(f"{name}.step: found {found}, expected a tuple (log-probabilities, state)")
            check_scores(result[0], tokens.shape[0], name)
            check_state(result[1], name)
            _CHECKED.add(model)
        return result

    return first_checked
