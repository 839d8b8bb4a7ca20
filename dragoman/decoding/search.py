"""Batches in, hypotheses out: chooses greedy search, beam search or another method for a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dragoman.data.batch import Batch
from dragoman.decoding import ctc, length_nat
from dragoman.decoding.beam import BeamOptions, beam_search
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.constraints.automata import ConstraintAutomaton
from dragoman.decoding.cuda_graph_beam import graph_beam_search
from dragoman.decoding.cuda_graph_step import start_decoding
from dragoman.decoding.diverse_beam import group_width
from dragoman.decoding.greedy import greedy_search
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.methods import Method, Request, Writer
from dragoman.decoding.scorer import Scorer
from dragoman.decoding.trace import Trace
from dragoman.errors import ConfigError, DataError, DragomanError
from dragoman.models.contracts import CTCEmissions, LengthBeam, NonAutoregressiveModel

BEAM_ALONE = {"beam_groups": 1, "coverage_penalty": 0.0, "min_length": 0, "no_repeat_ngram": 0}
# How to read what a model writes at once.
READERS: dict[type, Any] = {
    CTCEmissions: ctc.decode,
    LengthBeam: length_nat.decode,
}


def limits_of(lengths: Tensor, config: SearchConfig, ratio: float, max_positions: int | None = None) -> Tensor:
    """How many tokens sources of these lengths (<eos> counts) may be answered with; neighbours have no say."""
    if config.max_length:
        limits = torch.full_like(lengths, config.max_length + 1)
    else:
        limits = (lengths * math.ceil(ratio * 16) // 16) + 12
    return limits if max_positions is None else limits.clamp(max=max_positions)


def limits_for(batch: Batch, config: SearchConfig, ratio: float) -> Tensor:
    """The same for the sources of a batch, whatever the model can write."""
    return limits_of(batch.source_mask.sum(1), config, ratio)


def search(
    model: Writer | NonAutoregressiveModel,
    batch: Batch,
    config: SearchConfig,
    ratio: float,
    n_best: int = 1,
    *,
    method: Method | None = None,
    rules: Sequence[ConstraintAutomaton | None] | None = None,
    trace: Trace | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses for every source of a batch, best first; without a `method` by greedy or beam search.

    `ratio` is how many target tokens the training data have for one source token; it bounds the length of an output
    unless `config.max_length` does. `rules` has the constraints of each source.
    """
    limits = limits_for(batch, config, ratio)
    if rules and not config.max_length:
        needed = [one.distance(one.start) if one else 0 for one in rules]
        limits = limits + limits.new_tensor([int(more) if math.isfinite(more) else 0 for more in needed])
    if model.max_positions is not None:
        limits = limits.clamp(max=model.max_positions)
    if method is not None:
        if any(rules or ()) or trace is not None:
            raise ConfigError("prefixes, phrases and other rules, and a trace, go with beam search alone")
        for name, usual in BEAM_ALONE.items():
            if (value := getattr(config, name)) != usual:
                raise ConfigError(f"search.{name}: found {value}, which goes with beam search alone; expected {usual}")
        found = method.search(Request(model, batch, limits, config, n_best))
    elif isinstance(model, NonAutoregressiveModel):
        check_at_once(config, rules, trace)
        found = at_once(model, batch, limits, config, n_best)
    else:
        check_possible(rules, limits)
        found = in_steps(model, batch, limits, config, n_best, rules, trace)
    if any(not hypotheses or math.isnan(hypotheses[0].score) for hypotheses in found):
        if rules or config.no_repeat_ngram or config.min_length:
            raise DragomanError(
                "found no output for a source: either no output keeps to search.min_length, "
                "search.no_repeat_ngram and the rules, or the model's probabilities are NaN"
            )
        raise DragomanError("found no output for a source: the model's probabilities are NaN; its weights are broken")
    return found


def check_at_once(
    config: SearchConfig, rules: Sequence[ConstraintAutomaton | None] | None, trace: Trace | None
) -> None:
    """Refuse what only a search step by step can do."""
    asked = {
        "rules": rules is not None and any(rules),
        "a trace": trace is not None,
        "coverage_penalty": config.coverage_penalty > 0,
        "min_length": config.min_length > 0,
        "no_repeat_ngram": config.no_repeat_ngram > 0,
        "beam_groups": config.beam_groups > 1,
        "stop": config.stop != "complete",
    }
    if wrong := [name for name, given in asked.items() if given]:
        raise ConfigError(f"found {', '.join(wrong)}, but this model writes all tokens at once, not one by one")


def check_possible(rules: Sequence[ConstraintAutomaton | None] | None, limits: Tensor) -> None:
    """Refuse rules that no output can keep."""
    for one, limit in zip(rules or (), limits.tolist(), strict=False):
        if one is not None and (needed := one.distance(one.start)) > limit - 1:
            if math.isinf(needed):
                raise DataError("no output can keep all the rules of an input: they contradict each other")
            raise DataError(f"the rules of an input need {int(needed)} tokens, expected at most {limit - 1}")


@torch.no_grad()
def at_once(
    model: NonAutoregressiveModel, batch: Batch, limits: Tensor, config: SearchConfig, n_best: int
) -> list[list[Hypothesis]]:
    """What a model without feedback writes."""
    written = model.emissions(batch, limits, max(config.beam, n_best))
    found: list[list[Hypothesis]] = READERS[type(written)](written, limits, config, n_best)
    return found


def in_steps(
    model: Writer,
    batch: Batch,
    limits: Tensor,
    config: SearchConfig,
    n_best: int,
    rules: Sequence[ConstraintAutomaton | None] | None = None,
    trace: Trace | None = None,
) -> list[list[Hypothesis]]:
    """The hypotheses of a model that writes token by token: by greedy search, beam search, or a CUDA graph of it."""
    width = max(config.beam, n_best)
    if config.beam_groups > 1:
        width = group_width(config.beam, config.beam_groups)
    options = BeamOptions(
        width,
        n_best,
        certain=config.stop == "certain",
        min_length=config.min_length,
        no_repeat_ngram=config.no_repeat_ngram,
        groups=config.beam_groups,
    )
    scorer = Scorer.from_config(config)
    allow_graph = config.beam_groups == 1 and not config.coverage_penalty
    restricted = trace is not None or any(rules or ()) or config.min_length or config.no_repeat_ngram
    plain = allow_graph and not restricted
    if plain:
        found = graph_beam_search(model, batch, limits, options, scorer)
        if found is not None:
            return found
    with torch.no_grad(), start_decoding(model, batch, limits, width, allow_graph=allow_graph) as (decoder, state):
        if config.beam == 1 and n_best == 1 and plain:
            return [[hypothesis] for hypothesis in greedy_search(decoder.step, state, limits, scorer)]
        return beam_search(
            decoder.step,
            state,
            limits,
            options,
            scorer,
            constraints=rules,
            source_mask=batch.source_mask,
            trace=trace,
        )
