"""Open the neural network of a run folder: build it from the configuration, and load its weights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from dragoman.base import RunError
from dragoman.models.kernels import Uninitialised
from dragoman.training import load_weights


def open_network(
    build: Callable[[], nn.Module], tensors: Mapping[str, torch.Tensor], device: torch.device, where: str
) -> nn.Module:
    """The trained network in evaluation mode; `where` names the configuration in errors."""
    with limit_parameters(tensors, where), Uninitialised():
        model = build()
    try:
        load_weights(model, tensors)
    except RunError as error:
        raise RunError(f"{where}: {error}") from None
    return model.to(device).eval()


@contextmanager
def limit_parameters(weights: Mapping[str, torch.Tensor], where: str) -> Iterator[None]:
    """Refuse to build a far larger or deeper model than the weights, before it takes memory or time.

    A parameter that is registered has no memory yet; its initialisation takes it. Shared ones count several
    times.
    """
    thread, total, tensors = threading.get_ident(), 0, 0
    numbers = sum(tensor.numel() for tensor in weights.values())

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal total, tensors
        if parameter is None or threading.get_ident() != thread:  # other threads may build models of their own
            return
        total, tensors = total + parameter.numel(), tensors + 1
        if total > 4 * numbers + 1_000_000 or tensors > 4 * len(weights) + 1_000:
            raise too_large

    too_large = RunError(
        f"{where}: describes a far larger model than the weights, which are {numbers:,} numbers; put the "
        "configuration back that the run was trained with"
    )
    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    except RuntimeError as error:
        raise (too_large if "allocate" in str(error) else error) from None
    finally:
        handle.remove()
