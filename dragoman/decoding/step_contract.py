"""Checks of the first decoding step, so that a mistake in a model is one line and not a wrong output.

Our own models pass these by their laws (`dragoman.testing`). Someone's own module meets the search here first.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from torch import Tensor

from dragoman.decoding.hypothesis import Step

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
    totals = scores.double().logsumexp(-1)
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
    waiting = True

    def first_checked(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        nonlocal waiting
        if not waiting:
            return step(tokens, state)
        result = step(tokens, state)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(f"{name}.step: found {type(result).__name__}, expected a tuple (log-probabilities, state)")
        check_scores(result[0], tokens.shape[0], name)
        check_state(result[1], name)
        waiting = False
        _CHECKED.add(model)
        return result

    return first_checked
