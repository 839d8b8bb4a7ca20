"""torch's own recurrent functions over whole sequences: cuDNN on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dragoman.kernels.half_precision_rnn import in_half_precision

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rnn_tanh": torch.rnn_tanh,
    "rnn_relu": torch.rnn_relu,
    "lstm": torch.lstm,
    "gru": torch.gru,
}
# Where torch's function is faster than `fused_rnn`, by device; measured by benchmarks/recurrence.py.
BY_TORCH: dict[str, frozenset[str]] = {"cpu": frozenset(), "cuda": frozenset(FUNCTIONS)}


def torch_is_faster(name: str, x: Tensor) -> bool:
    """Whether torch has a function of this name that is the fastest on the device of x."""
    return name in BY_TORCH.get(x.device.type, ())


def torch_rnn(
    name: str, x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """x (N, T, I), states (N, D) each, weights W_ih, W_hh, b_ih, b_hh → outputs (N, T, D) and the state after them."""
    kernel = partial(_call, name)
    if torch.is_autocast_enabled(x.device.type) or x.dtype.itemsize == 2:
        return in_half_precision(kernel, x, state, weights)
    return kernel(x, state, weights)


def _call(
    name: str, x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    initial = [tensor[None].contiguous() for tensor in state]
    weights = in_one_chunk(weights) if x.is_cuda else list(weights)
    biases, layers, dropout, bidirectional, batch_first = True, 1, 0.0, False, True
    training = torch.is_grad_enabled()  # cuDNN keeps what the backward pass needs only then; there is no dropout here
    out, *after = FUNCTIONS[name](
        x,
        initial if name == "lstm" else initial[0],
        weights,
        biases,
        layers,
        dropout,
        training,
        bidirectional,
        batch_first,
    )
    return out, tuple(tensor[0] for tensor in after)


def in_one_chunk(weights: Sequence[Tensor]) -> list[Tensor]:
    """The same weights as views of one new flat tensor, in their order.

    cuDNN reads W_ih, W_hh, b_ih, b_hh from one chunk of memory. From separate tensors torch copies them into one at
    every call, too, but warns each time.
    """
    flat = torch.cat([weight.reshape(-1) for weight in weights])
    chunks = torch.split(flat, [weight.numel() for weight in weights])
    return [chunk.view(weight.shape) for chunk, weight in zip(chunks, weights, strict=True)]
