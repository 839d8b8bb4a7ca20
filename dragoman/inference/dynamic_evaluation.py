"""Dynamic evaluation (Krause et al. 2018): a language model goes on learning from the text that it has just predicted.

Every segment is scored before the weights change, so no token is seen before its prediction counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dragoman.base import ConfigError
from dragoman.data.tokenizers import PAD
from dragoman.decoding import check_at_least
from dragoman.scoring import TextLikelihood, TextSize

if TYPE_CHECKING:  # the options are read where no torch is needed
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

STREAMS, BATCHES = 100, 500  # of the gradients of training text
EPSILON = 2e-5  # added to the root mean squares of gradients


@dataclass(frozen=True)
class DynamicEvaluation:
    """θ ← θ − η g / (RMS + ε) + λ R (θ₀ − θ) after every segment (equations 6 to 8 of the paper).

    RMS is the root mean square of the gradients of training segments; R is RMS as a multiple of its mean, at most 1/λ:
    weights with large gradients return faster to the trained ones, θ₀.
    """

    rate: float = 1.2e-4  # η
    decay: float = 0.008  # λ
    segment: int = 20  # tokens between two updates

    def __post_init__(self) -> None:
        check_at_least(1, segment=self.segment)
        if not (self.rate >= 0 and 0 <= self.decay <= 1):
            raise ConfigError(
                f"dynamic evaluation: found rate {self.rate:g} and decay {self.decay:g}, expected a rate of 0 or more "
                "and a decay from 0 to 1"
            )


def gradients_of(model: Any, segment: Any, weights: list[Tensor]) -> tuple[Any, tuple[Tensor, ...]]:
    """The scores of a segment, and the gradients of its mean loss; the model is in evaluation mode."""
    import torch

    with torch.enable_grad():
        scores = model.score(segment)
        loss = -scores.log_probabilities.sum() / scores.mask.sum()
        return scores, torch.autograd.grad(loss, weights)


def gradient_sizes(model: Any, text: NDArray[np.int32], segment: int, device: torch.device) -> list[Tensor]:
    """The root mean square of the gradient of every weight over segments of training text."""
    import torch

    from dragoman.data import BpttPlan

    plan = BpttPlan(text, max(1, min(STREAMS, (len(text) - 1) // segment)), segment, shuffled=False)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    squares, count = [torch.zeros_like(weight) for weight in weights], 0
    carried = model.empty_carry(plan.streams)
    for part in plan.epoch(0):
        _, gradients = gradients_of(model, replace(part.to(device), carried=carried), weights)
        torch._foreach_addcmul_(squares, gradients, gradients)
        count += 1
        if count == BATCHES:
            break
    torch._foreach_div_(squares, count)
    return list(torch._foreach_sqrt(squares))


def dynamic_likelihood(
    model: Any,  # a LanguageModel in evaluation mode, whose weights are what they were in the end
    text: NDArray[np.int32],
    sizes: list[Tensor],  # of `gradient_sizes`
    options: DynamicEvaluation,
    size: TextSize,
    device: torch.device,
    progress: Callable[[int], None] = lambda tokens: None,
) -> tuple[TextLikelihood, float]:
    """The likelihood of the text and the accuracy, in one stream from its first token to its last."""
    import torch

    from dragoman.data import BpttPlan

    plan = BpttPlan(text, 1, options.segment, shuffled=False)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    first = [weight.detach().clone() for weight in weights]
    mean = torch.stack([part.mean() for part in sizes]).mean()
    back = [(options.decay * part / mean).clamp(max=1.0) for part in sizes]  # λ R
    steps = torch._foreach_add(sizes, EPSILON)
    nats = torch.zeros((), dtype=torch.float64, device=device)
    correct = torch.zeros((), dtype=torch.long, device=device)
    carried = model.empty_carry(1)
    try:
        for part in plan.epoch(0):
            scores, gradients = gradients_of(model, replace(part.to(device), carried=carried), weights)
            with torch.no_grad():
                nats -= scores.log_probabilities.sum(dtype=torch.float64)
                correct += scores.correct.sum()
                away = torch._foreach_sub(first, weights)
                torch._foreach_addcmul_(weights, back, away)
                torch._foreach_addcdiv_(weights, gradients, steps, -options.rate)
            progress(int((part.target != PAD).sum()))
    finally:
        with torch.no_grad():
            torch._foreach_copy_(weights, first)
    return TextLikelihood(float(nats), plan.count, size), int(correct) / max(1, plan.count)
