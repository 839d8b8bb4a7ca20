"""Time and memory of training a layer against the sequence length, and the power laws that they follow."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.inspect.options import BenchOptions
from dragoman.inspect.views.figures import check_plot_path, new_figure, save_plot
from dragoman.models.layers import (
    Cell,
    CharacterConvolution,
    FullConfig,
    GatedConvolution,
    GRUConfig,
    LinearAttention,
    LinearConfig,
    LocalAttention,
    LocalConfig,
    LSTMConfig,
    SegmentAttention,
    SegmentsConfig,
    SelfAttention,
    Unidirectional,
)
from dragoman.training import resolve_device

WIDTH, HEADS = 64, 4
WINDOW = 32  # of restricted attention
KERNEL = 3


class LayerTheory(NamedTuple):
    """What a layer costs by count: n tokens, width d, kernel k, window r (Vaswani et al. 2017, table 1).

    Exponents are those of n, for n much larger than d. Fused attention saves no weights, so its memory is linear in n.
    """

    operations: str
    sequential: str  # operations that must wait for each other
    path: str  # the longest path between two positions
    time: float  # exponent of the time in n
    memory: float  # exponent in n of what is saved for the backward pass


THEORY = {
    "self-attention": LayerTheory("n²·d", "1", "1", 2.0, 1.0),
    "local attention": LayerTheory("r·n·d", "1", "n/r", 1.0, 1.0),
    "segments": LayerTheory("r·n·d", "1", "n/r", 1.0, 1.0),
    "linear attention": LayerTheory("n·d²", "1", "1", 1.0, 1.0),
    "LSTM": LayerTheory("n·d²", "n", "n", 1.0, 1.0),
    "GRU": LayerTheory("n·d²", "n", "n", 1.0, 1.0),
    "convolution": LayerTheory("k·n·d²", "1", "log_k(n)", 1.0, 1.0),
}
# Growth in another size: layer, size, values, tokens, and the exponent in theory.
GROWTH = (
    ("self-attention", "d", (16, 32, 64), 2048, 1.0),
    ("local attention", "d", (64, 128, 256), 512, 1.0),
    ("LSTM", "d", (256, 512, 1024), 16, 2.0),
    ("convolution", "d", (128, 256, 512), 128, 2.0),
    ("convolution", "k", (5, 17, 65), 512, 1.0),
    ("local attention", "r", (64, 128, 256), 2048, 1.0),
)


class LayerCost(NamedTuple):
    """The cost of one layer at one sequence length."""

    layer: str
    length: int
    seconds: float  # forward and backward
    saved: int  # bytes that the forward pass saves for the backward pass

    def __str__(self) -> str:
        return f"{self.layer:<18}{self.length:>8,}{1000 * self.seconds:>12.2f}{self.saved / 2**20:>12.2f}"


class GrowthExponents(NamedTuple):
    """The exponents of time and memory in the length, fitted on the longer half of the lengths."""

    layer: str
    seconds: float
    saved: float
    expected: float  # of the time, in theory
    expected_saved: float  # of the memory, in theory


class SizeGrowth(NamedTuple):
    """The exponent of the time of a layer in its width d, kernel k or window r."""

    layer: str
    size: str
    seconds: float
    expected: float


class _Convolution(nn.Module):
    def __init__(self, width: int, kernel: int = KERNEL) -> None:
        super().__init__()
        self.inner = nn.Conv1d(width, width, kernel, padding=kernel // 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.inner((x * mask[:, :, None]).transpose(1, 2)).transpose(1, 2)
        return out


def benchmark_layers(width: int, heads: int, kernel: int = KERNEL, window: int = WINDOW) -> dict[str, nn.Module]:
    """The layers that are compared, each called as `layer(x, mask)`."""
    return {
        "self-attention": SelfAttention(width, heads, config=FullConfig()),
        "local attention": LocalAttention(width, heads, config=LocalConfig(window=window)),
        "segments": SegmentAttention(width, heads, config=SegmentsConfig(length=window)),
        "linear attention": LinearAttention(width, heads, config=LinearConfig()),
        "LSTM": Unidirectional(LSTMConfig(), width, width),
        "GRU": Unidirectional(GRUConfig(), width, width),
        "convolution": _Convolution(width, kernel),
    }


def benchmarked_layers(model: nn.Module) -> tuple[str, ...]:
    """The names of those layers of `benchmark_layers` that a model is made of."""
    names = set()
    kinds = {type(layer): name for name, layer in benchmark_layers(8, 2).items()}
    del kinds[Unidirectional]
    for module in model.modules():
        if isinstance(module, Cell):
            names |= {name for name in ("LSTM", "GRU") if name in type(module).__name__}
        elif isinstance(module, nn.Conv1d | GatedConvolution | CharacterConvolution):
            names.add("convolution")
        elif type(module) in kinds:
            names.add(kinds[type(module)])
    return tuple(name for name in THEORY if name in names)


def forward_pass(layer: nn.Module, length: int, width: int, device: torch.device) -> Callable[[], Tensor]:
    """A call of a layer with random vectors; recurrent layers return their last state beside their outputs."""
    x = torch.randn(1, length, width, device=device, requires_grad=True)
    mask = torch.ones(1, length, dtype=torch.bool, device=device)

    def forward() -> Tensor:
        result = layer(x, mask)
        out: Tensor = result[0] if isinstance(result, tuple) else result
        return out

    return forward


def saved_bytes(layer: nn.Module, run: Callable[[], Any]) -> int:
    """The bytes that a forward pass saves for the backward pass, besides the weights; each storage counts once."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*layer.parameters(), *layer.buffers())}
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(storages.values())


def timed(work: Callable[[], Any], device: torch.device) -> float:
    """The seconds of one call, including the work it leaves to a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _training_seconds(forward: Callable[[], Tensor], device: torch.device, min_seconds: float) -> float:
    """The median time of forward and backward of at least three calls that together take at least `min_seconds`.

    On a CPU these are seconds of one core that this process had, so that other programs do not change them.
    """
    threads = torch.get_num_threads()
    seconds: list[float] = []

    def both() -> None:
        forward().sum().backward()  # type: ignore[no-untyped-call]

    both()  # the first call is slower than all others
    try:
        if device.type == "cpu":
            torch.set_num_threads(1)
        while len(seconds) < 3 or (sum(seconds) < min_seconds and len(seconds) < 200):
            started = time.process_time()
            wall = timed(both, device)
            seconds.append(time.process_time() - started if device.type == "cpu" else wall)
    finally:
        torch.set_num_threads(threads)
    return statistics.median(seconds)


def measure_layers(
    lengths: Sequence[int],
    report: Callable[[LayerCost], None],
    *,
    device: str = "cpu",
    min_seconds: float = 0.2,
    names: Sequence[str] = tuple(THEORY),
) -> list[LayerCost]:
    """The cost of layers at every length, each measured for at least `min_seconds`; `report` gets each at once."""
    target = torch.device(device)
    torch.manual_seed(0)
    costs = []
    layers = benchmark_layers(WIDTH, HEADS)
    for name in (name for name in layers if name in names):
        layer = layers[name].to(target).train()
        for length in lengths:
            forward = forward_pass(layer, length, WIDTH, target)
            saved = saved_bytes(layer, forward)
            cost = LayerCost(name, length, _training_seconds(forward, target, min_seconds), saved)
            costs.append(cost)
            report(cost)
    return costs


def power_law_exponent(points: Sequence[tuple[float, float]]) -> float:
    """The exponent of the power law through points (x, y), by least squares of the logarithms."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(max(y, 1e-12)) for _, y in points]
    return float(statistics.linear_regression(xs, ys).slope)


def growth_exponents(costs: Sequence[LayerCost]) -> list[GrowthExponents]:
    """The exponents of every layer, from the longer half of the lengths, where constant costs matter little."""
    exponents = []
    for name in dict.fromkeys(cost.layer for cost in costs):
        own = sorted(cost for cost in costs if cost.layer == name)  # by length
        own = own[len(own) // 2 - (len(own) % 2 == 0) :]
        times, memory = (
            power_law_exponent([(cost.length, getattr(cost, key)) for cost in own]) for key in ("seconds", "saved")
        )
        exponents.append(GrowthExponents(name, times, memory, THEORY[name].time, THEORY[name].memory))
    return exponents


def size_growth(device: str = "cpu") -> list[SizeGrowth]:
    """How the time of layers grows with their width d, kernel k and window r, at a fixed length."""
    target = torch.device(device)
    exponents = []
    for name, size, values, length, expected in GROWTH:
        points = []
        for value in values:
            width = value if size == "d" else WIDTH
            sizes = {"kernel": value} if size == "k" else {"window": value} if size == "r" else {}
            layer = benchmark_layers(width, HEADS, **sizes)[name].to(target).train()
            forward = forward_pass(layer, length, width, target)
            points.append((float(value), _training_seconds(forward, target, 0.1)))
        exponents.append(SizeGrowth(name, size, power_law_exponent(points), expected))
    return exponents


class LayerGrowth(NamedTuple):
    """How the costs of layers grow."""

    costs: list[LayerCost]
    exponents: list[GrowthExponents]
    sizes: list[SizeGrowth]

    def as_dict(self) -> dict[str, Any]:
        table: dict[str, Any] = {name: [row._asdict() for row in rows] for name, rows in self._asdict().items()}
        return table | {"theory": {name: row._asdict() for name, row in THEORY.items()}}

    def lines(self) -> Iterator[str]:
        """The fitted exponents beside those of theory, and what theory says of waiting and of paths."""
        heads = f"{'power of n':<18}{'time':>7}{'theory':>8}{'memory':>8}{'theory':>8}"
        yield f"\n{heads}  {'operations':<12}{'sequential':<12}longest path"
        for fit in self.exponents:
            own = THEORY[fit.layer]
            yield (
                f"{fit.layer:<18}{fit.seconds:>7.2f}{own.time:>8.0f}{fit.saved:>8.2f}{own.memory:>8.0f}"
                f"  {own.operations:<12}{own.sequential:<12}{own.path}"
            )
        yield f"\n{'power of another size':<26}{'time':>7}{'theory':>8}"
        for size in self.sizes:
            yield f"{size.layer + ', ' + size.size:<26}{size.seconds:>7.2f}{size.expected:>8.0f}"
        yield "n tokens, d width, k kernel, r window; forward and backward with all projections"


def bench_layers(options: BenchOptions, report: Callable[[LayerCost], None]) -> LayerGrowth:
    """Measure layers at every doubling up to the maximum length, and fit power laws; with `options.plot` a picture."""
    if options.plot is not None:
        check_plot_path(options.plot)
    longest, device = options.max_length or 4096, str(resolve_device(options.device))
    lengths = [longest >> shift for shift in range(6, -1, -1) if longest >> shift >= 16]
    costs = measure_layers(lengths, report, device=device)
    growth = LayerGrowth(costs, growth_exponents(costs), size_growth(device))
    if options.plot is not None:
        draw_costs(costs, growth.exponents, options.plot)
    return growth


def draw_costs(costs: Sequence[LayerCost], fits: Sequence[GrowthExponents], path: str | Path) -> Path:
    """Time and memory of layers against the sequence length, on logarithmic axes."""
    drawing = new_figure(11, 4.6)
    panels = drawing.subplots(1, 2)
    for axes, key, label, scale in (
        (panels[0], "seconds", "milliseconds, forward and backward", 1e3),
        (panels[1], "saved", "MiB saved for the backward pass", 2.0**-20),
    ):
        for fit in fits:
            own = [cost for cost in costs if cost.layer == fit.layer]
            power = f"{fit.layer} (n^{getattr(fit, key):.1f})"
            axes.plot([c.length for c in own], [scale * getattr(c, key) for c in own], marker="o", ms=3, label=power)
        axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel=label)
        axes.set_xticks(sorted({cost.length for cost in costs}))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, frameon=False)
    return save_plot(drawing, path)
