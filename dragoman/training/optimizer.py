"""AdamW, its learning-rate schedules and the averages of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from dragoman.config.settings import Range, Share, setting
from dragoman.errors import RunError

Positive = Annotated[float, Range(0.0, None, exclusive_minimum=True)]


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter 2019)."""

    learning_rate: Positive = setting(1e-3, help="the highest rate of the schedule")
    schedule: Literal["inverse-sqrt", "cosine", "constant"] = setting(
        "inverse-sqrt", help="after the warm-up: ~1/√step, half a cosine down to zero, or level"
    )
    warmup: Annotated[int, Range(0, None)] = setting(1000, help="steps over which the rate rises from zero")
    beta1: Share = setting(0.9, help="memory of the mean of gradients")
    beta2: Share = setting(0.98, help="memory of their squares")
    epsilon: Positive = setting(1e-9, help="added to the root in the denominator")
    weight_decay: Annotated[float, Range(0.0, None)] = setting(0.0, help="pull of matrices towards zero")


def learning_rate_at(config: OptimizerConfig, step: int, steps: int) -> float:
    """The learning rate of a step, counted from 1: a pure function, so nothing of it needs saving."""
    if step <= config.warmup:
        return config.learning_rate * step / config.warmup
    if config.schedule == "constant":
        return config.learning_rate
    if config.schedule == "cosine":
        done = (step - config.warmup) / max(1, steps - config.warmup)
        return config.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return config.learning_rate * math.sqrt(max(1, config.warmup) / step)


def build_optimizer(
    config: OptimizerConfig, model: nn.Module, factors: Mapping[str, float] | None = None
) -> torch.optim.AdamW:
    """AdamW over a model; vectors (biases, norms) are not decayed.

    `factors` of the learning rate by name; a group keeps its own, for whoever sets the rate of a step.
    """
    groups: dict[tuple[bool, float], dict[str, Any]] = {}
    for name, part in model.named_parameters():
        if part.requires_grad:
            factor, decayed = (factors or {}).get(name, 1.0), part.dim() >= 2
            decay = config.weight_decay if decayed else 0.0
            group = {"params": [], "weight_decay": decay, "factor": factor}
            groups.setdefault((not decayed, factor), group)["params"].append(part)
    on_gpu = any(part.is_cuda for part in model.parameters())
    optimizer = torch.optim.AdamW(
        [groups[key] for key in sorted(groups)],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
        capturable=on_gpu,
    )
    # Captured or plain, step by step as it suits: torch need not warn of the latter.
    optimizer._warned_capturable_if_run_uncaptured = True
    return optimizer


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state by parameter name."""
    names = {id(part): name for name, part in model.named_parameters()}
    return {
        f"{names[id(part)]}.{key}": value
        for part, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give back what `optimizer_tensors` took."""
    for name, part in model.named_parameters():
        state = {key.rpartition(".")[2]: value for key, value in tensors.items() if key.rpartition(".")[0] == name}
        if state:
            # torch keeps the step count beside the fused kernel's other state, as float32 on the same device
            optimizer.state[part] = {key: value.to(part.device).clone() for key, value in state.items()}


@dataclass(frozen=True)
class NoAverageConfig:
    """The weights as they are."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class MovingAverageConfig:
    """An exponential moving average of the weights, used for validation and kept in the run."""

    kind: ClassVar[str] = "ema"
    decay: Share = setting(0.999, help="memory of the average")


@dataclass(frozen=True)
class BestAverageConfig:
    """The mean of the best few checkpoints."""

    kind: ClassVar[str] = "best"
    count: Annotated[int, Range(1, None)] = setting(5, help="how many checkpoints")


AverageConfig = NoAverageConfig | MovingAverageConfig | BestAverageConfig


class MovingAverage:
    """Keeps the exponential moving average of a model's weights."""

    def __init__(self, config: MovingAverageConfig, model: nn.Module) -> None:
        self.decay = config.decay
        self.parts = {name: part.detach().clone() for name, part in model.named_parameters()}

    def share(self, step: int) -> float:
        """How far the average moves at a step; early on farther, to forget the start."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, model: nn.Module, share: Tensor | float) -> None:
        """Move towards the weights after a step."""
        parts, current = list(self.parts.values()), [part.detach() for _, part in model.named_parameters()]
        if isinstance(share, Tensor):  # lerp over lists wants a plain number
            way = torch._foreach_sub(current, parts)
            torch._foreach_mul_(way, share)
            torch._foreach_add_(parts, way)
        else:
            torch._foreach_lerp_(parts, current, share)


def mean_weights(parts: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several sets of weights, summed in float64."""
    return {
        name: (torch.stack([weights[name].double() for weights in parts]).mean(0)).to(parts[0][name].dtype)
        for name in parts[0]
    }


Restore = Callable[[], None]


@torch.no_grad()
def swap_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> Restore:
    """Put other weights into a model; call the result to put the old ones back."""
    before = {name: part.detach().clone() for name, part in model.named_parameters()}
    load_weights(model, weights)
    return lambda: load_weights(model, before)


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy named weights into a model; a RunError if they belong to another one."""
    own = {name: tuple(part.shape) for name, part in model.named_parameters()}
    given = {name: tuple(part.shape) for name, part in weights.items()}
    for name in sorted(own.keys() | given.keys()):
        if own.get(name) != given.get(name):
            raise RunError(
                f"the weights do not fit the configuration: {name} has shape {given.get(name, 'none')}, "
                f"expected {own.get(name, 'none')}"
            )
    for name, part in model.named_parameters():
        part.copy_(weights[name])
