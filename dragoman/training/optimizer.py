"""AdamW, learning-rate schedules, weight averaging, and loading weights into a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.base import RunError
from dragoman.training.config import MovingAverageConfig, OptimizerConfig
from dragoman.training.sharding import part_like
from dragoman.training.trained_weights import saved_weights


def learning_rate_at(config: OptimizerConfig, step: int, steps: int) -> float:
    """The learning rate of a step (counted from 1): a pure function of the step, so checkpoints need not hold it."""
    if step <= config.warmup:
        return config.learning_rate * step / config.warmup
    if config.schedule == "constant":
        return config.learning_rate
    if config.schedule == "cosine":
        done = (step - config.warmup) / max(1, steps - config.warmup)
        return config.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return config.learning_rate * math.sqrt(max(1, config.warmup) / step)


class AdamW:
    """AdamW with torch's fused kernel and the interface of torch's optimisers.

    `torch.optim.AdamW` does the same, but imports torch's compiler first: 1.5 seconds of every training.
    """

    def __init__(self, groups: list[dict[str, Any]], betas: tuple[float, float], epsilon: float) -> None:
        self.param_groups, self.betas, self.epsilon = groups, betas, epsilon
        self.state: dict[Tensor, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters that have a gradient."""
        for group in self.param_groups:
            kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}  # the kernel takes one device and type
            for parameter in group["params"]:
                if parameter.grad is not None:
                    kinds.setdefault((parameter.device, parameter.dtype), []).append(parameter)
            for parameters in kinds.values():
                states = [self._state_of(parameter) for parameter in parameters]
                means, squares, steps = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
                torch._foreach_add_(steps, 1)
                torch._fused_adamw_(
                    parameters,
                    [parameter.grad for parameter in parameters if parameter.grad is not None],
                    means,
                    squares,
                    [],
                    steps,
                    lr=group["lr"],
                    beta1=self.betas[0],
                    beta2=self.betas[1],
                    weight_decay=group["weight_decay"],
                    eps=self.epsilon,
                    amsgrad=False,
                    maximize=False,
                )

    def zero_grad(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        if parameter not in self.state:
            self.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return self.state[parameter]


def build_optimizer(config: OptimizerConfig, model: nn.Module, factors: Mapping[str, float] | None = None) -> AdamW:
    """AdamW over the trainable parameters; vectors (biases, norms) are not decayed.

    `factors` scale the learning rate by parameter name. Each parameter group stores its factor, which the training step
    multiplies with the learning rate of the step.
    """
    groups: dict[tuple[bool, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            factor, decayed = (factors or {}).get(name, 1.0), parameter.dim() >= 2
            decay = config.weight_decay if decayed else 0.0
            group = {"params": [], "lr": config.learning_rate, "weight_decay": decay, "factor": factor}
            groups.setdefault((not decayed, factor), group)["params"].append(parameter)
    betas = (config.beta1, config.beta2)
    return AdamW([groups[key] for key in sorted(groups)], betas, config.epsilon)


def optimizer_tensors(optimizer: AdamW, model: nn.Module) -> dict[str, Tensor]:
    """The state of the optimiser, keyed by parameter name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{names[id(parameter)]}.{key}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(optimizer: AdamW, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load what `optimizer_tensors` returned."""
    keys: dict[str, list[str]] = {}
    for key in tensors:
        keys.setdefault(key.rpartition(".")[0], []).append(key)
    for name, parameter in model.named_parameters():
        if name in keys:
            # torch keeps the step count beside the fused kernel's other state, as float32 on the same device
            optimizer.state[parameter] = {
                key.rpartition(".")[2]: part_like(tensors[key], parameter).clone() for key in keys[name]
            }


class MovingAverage:
    """The exponential moving average of a model's weights."""

    def __init__(self, config: MovingAverageConfig, model: nn.Module) -> None:
        self.decay = config.decay
        self.weights = {name: parameter.detach().clone() for name, parameter in saved_weights(model).items()}

    def new_weight(self, step: int) -> float:
        """The weight of the new parameters at a step; larger in early steps, to forget the initial weights."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, model: nn.Module, new_weight: Tensor | float) -> None:
        """Move the average towards the model's weights: average += new_weight × (weights − average)."""
        averages = list(self.weights.values())
        current = [parameter.detach() for parameter in saved_weights(model).values()]
        if isinstance(new_weight, Tensor):  # _foreach_lerp_ takes a Python number only
            difference = torch._foreach_sub(current, averages)
            torch._foreach_mul_(difference, new_weight)
            torch._foreach_add_(averages, difference)
        else:
            torch._foreach_lerp_(averages, current, new_weight)


def mean_weights(models: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of the weights of several models, computed in float64."""
    return {
        name: (torch.stack([weights[name].double() for weights in models]).mean(0)).to(models[0][name].dtype)
        for name in models[0]
    }


@contextmanager
def averaged_weights(model: nn.Module, average: MovingAverage | None) -> Iterator[None]:
    """Inside the block a model has its averaged weights, where there is an average."""
    if average is None:
        yield
        return
    before = {name: parameter.detach().clone() for name, parameter in saved_weights(model).items()}
    load_weights(model, average.weights)
    yield
    load_weights(model, before)


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy named weights into a model; RunError if names or shapes differ. With adapters: what checkpoints hold."""
    parameters = saved_weights(model)
    own = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    shapes: Mapping[str, Any] | None = getattr(weights, "shapes", None)  # of tensors that are not in memory
    given = shapes or {name: tuple(parameter.shape) for name, parameter in weights.items()}
    for name in sorted(own.keys() | given.keys()):
        if own.get(name) != given.get(name):
            raise RunError(
                f"the weights do not fit the configuration: {name} has shape {given.get(name, 'none')}, "
                f"expected {own.get(name, 'none')}"
            )
    for name, parameter in parameters.items():
        parameter.copy_(part_like(weights[name], parameter))
