"""Operations on padded batches x (B, S, …) with a mask (B, S), True = real."""

from __future__ import annotations

from torch import Tensor

from dragoman.base import DataError


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """The mean of the real positions: x (B, S, D), mask (B, S) → (B, D)."""
    real = mask[:, :, None].to(x.dtype)
    return (x * real).sum(1) / real.sum(1).clamp(min=1)


def crop_to_maximum(x: Tensor, mask: Tensor, max_positions: int) -> tuple[Tensor, Tensor]:
    """At most `max_positions` columns of x (B, S, …) and mask (B, S); raises an error where a row is longer."""
    if x.shape[1] > max_positions:  # counting waits for the GPU, so shorter batches are not counted
        longest = int(mask.sum(1).max())
        if longest > max_positions:
            raise DataError(
                f"a source of {longest} tokens (<eos> counts), but the model reads at most {max_positions} "
                "(model.encoder's max_positions); shorten it, or set data.max_length while training"
            )
    return x[:, :max_positions], mask[:, :max_positions]
