"""What a layer costs as its sequence grows (FIELD L8): time and memory of training, and the exponents they follow."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.layers.cells import GRUConfig, LSTMConfig
from dragoman.layers.rnn import Unidirectional
from dragoman.layers.self_attention import (
    FullConfig,
    LinearAttention,
    LinearConfig,
    LocalAttention,
    LocalConfig,
    SegmentAttention,
    SegmentsConfig,
    SelfAttention,
)

NEAR = 32  # how far restricted attention sees
KERNEL = 3
EXPECTED_EXPONENTS = {  # per layer, of sequences much longer than vectors are wide (Vaswani et al. 2017, table 1)
    "self-attention": 2.0,
    "local attention": 1.0,
    "segments": 1.0,
    "linear attention": 1.0,
    "LSTM": 1.0,
    "GRU": 1.0,
    "convolution": 1.0,
}


class LayerCost(NamedTuple):
    """One layer at one length."""

    layer: str
    length: int
    seconds: float  # forward and backward
    saved: int  # bytes that the forward pass keeps for the backward pass


class GrowthExponents(NamedTuple):
    """By which power of the length time and memory grow, over the longer half of the lengths."""

    layer: str
    seconds: float
    saved: float
    expected: float


class _Convolution(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Conv1d(width, width, KERNEL, padding=KERNEL // 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.inner((x * mask[:, :, None]).transpose(1, 2)).transpose(1, 2)
        return out


def benchmark_layers(width: int, heads: int) -> dict[str, nn.Module]:
    """The kinds that are compared, each as `layer(x, mask)`."""
    return {
        "self-attention": SelfAttention(width, heads, config=FullConfig()),
        "local attention": LocalAttention(width, heads, config=LocalConfig(window=NEAR)),
        "segments": SegmentAttention(width, heads, config=SegmentsConfig(length=NEAR)),
        "linear attention": LinearAttention(width, heads, config=LinearConfig()),
        "LSTM": Unidirectional(LSTMConfig(), width, width),
        "GRU": Unidirectional(GRUConfig(), width, width),
        "convolution": _Convolution(width),
    }


def output_of(found: Any) -> Tensor:
    """The vectors that a layer gives; recurrent ones give their last state too."""
    out: Tensor = found[0] if isinstance(found, tuple) else found
    return out


def saved_bytes(layer: nn.Module, run: Callable[[], Any]) -> int:
    """Bytes of the storages that a forward pass keeps beside the layer's weights, each counted once."""
    weights = {part.untyped_storage().data_ptr() for part in layer.parameters()}
    storages: dict[int, int] = {}

    def keep(part: Tensor) -> Tensor:
        storage = part.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return part

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda part: part):
        run()
    return sum(storages.values())


def timed(work: Callable[[], Any], device: torch.device) -> float:
    """Of one run, a GPU's work included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _seconds(run: Callable[[], None], device: torch.device, least: float) -> float:
    """Of one run, the median of several that together take at least so long."""
    found: list[float] = []
    while len(found) < 3 or (sum(found) < least and len(found) < 200):
        found.append(timed(run, device))
    return statistics.median(found)


def measure_layers(
    lengths: Sequence[int],
    *,
    width: int = 64,
    heads: int = 4,
    rows: int = 1,
    device: str = "cpu",
    least: float = 0.2,
    names: Sequence[str] = (),
    done: Callable[[LayerCost], None] = lambda cost: None,
) -> list[LayerCost]:
    """Time and memory of every kind at every length; `least` seconds are spent on each."""
    place = torch.device(device)
    torch.manual_seed(0)
    found = []
    for name, layer in benchmark_layers(width, heads).items():
        if names and name not in names:
            continue
        layer = layer.to(place).train()
        for length in lengths:
            x = torch.randn(rows, length, width, device=place, requires_grad=True)
            mask = torch.ones(rows, length, dtype=torch.bool, device=place)

            def forward(layer: nn.Module = layer, x: Tensor = x, mask: Tensor = mask) -> Tensor:
                return output_of(layer(x, mask))

            def both(forward: Callable[[], Tensor] = forward) -> None:
                forward().sum().backward()  # type: ignore[no-untyped-call]

            saved = saved_bytes(layer, forward)
            both()
            cost = LayerCost(name, length, _seconds(both, place, least), saved)
            found.append(cost)
            done(cost)
    return found


def power_law_exponent(points: Sequence[tuple[float, float]]) -> float:
    """The exponent of the power that fits points best (least squares of the logarithms)."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(max(y, 1e-12)) for _, y in points]
    middle, height = statistics.mean(xs), statistics.mean(ys)
    spread = sum((x - middle) ** 2 for x in xs)
    return sum((x - middle) * (y - height) for x, y in zip(xs, ys, strict=True)) / spread


def growth_exponents(costs: Sequence[LayerCost]) -> list[GrowthExponents]:
    """Of every layer; over short sequences what does not grow hides what does, so the longer half counts."""
    found = []
    for name in dict.fromkeys(cost.layer for cost in costs):
        mine = sorted(cost for cost in costs if cost.layer == name)  # by length
        mine = mine[len(mine) // 2 - (len(mine) % 2 == 0) :]
        times, memory = ([(cost.length, getattr(cost, key)) for cost in mine] for key in ("seconds", "saved"))
        found.append(
            GrowthExponents(name, power_law_exponent(times), power_law_exponent(memory), EXPECTED_EXPONENTS[name])
        )
    return found
