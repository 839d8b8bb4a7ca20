"""Time every recurrent cell over a sequence, forward and backward, side by side with torch's fused layers.

OMP_NUM_THREADS=2 python benchmarks/cells.py [--rows 64] [--steps 50] [--width 256] [--device cpu] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dragoman.layers.cells import (  # noqa: E402
    Cell,
    CellConfig,
    CellState,
    CoupledLSTMConfig,
    GRUConfig,
    LSTMConfig,
    NormalisedLSTMConfig,
    PeepholeLSTMConfig,
    PlainConfig,
    build_cell,
)

LIMIT = 4.0  # times torch's LSTM
TORCH: dict[str, type[nn.RNNBase]] = {"torch.nn.LSTM": nn.LSTM, "torch.nn.GRU": nn.GRU, "torch.nn.RNN": nn.RNN}
CELLS: dict[str, CellConfig] = {
    "plain": PlainConfig(),
    "plain relu": PlainConfig(activation="relu"),
    "lstm": LSTMConfig(),
    "peephole-lstm": PeepholeLSTMConfig(),
    "coupled-lstm": CoupledLSTMConfig(),
    "normalised-lstm": NormalisedLSTMConfig(),
    "gru": GRUConfig(),
    "gru relu": GRUConfig(activation="relu"),
    "gru reset before": GRUConfig(reset="before"),
}
Run = Callable[[Tensor], Tensor]


def over(cell: Cell, sequence: Callable[..., tuple[Tensor, CellState]]) -> Run:
    return lambda x: sequence(cell, x, cell.start(x.shape[0]))[0]


def runs(width: int, device: str) -> dict[str, tuple[nn.Module, Run]]:
    """What is timed: torch's layers, our cells, and those of them that have a fused kernel without it."""
    found: dict[str, tuple[nn.Module, Run]] = {}
    for name, kind in TORCH.items():
        layer = kind(width, width, batch_first=True).to(device)
        found[name] = layer, lambda x, layer=layer: layer(x)[0]  # type: ignore[misc]
    for name, config in CELLS.items():
        cell = build_cell(config, width, width).to(device)
        found[name] = cell, over(cell, type(cell).sequence)
        if name in ("plain", "lstm", "gru"):
            found[f"{name}, not fused"] = cell, over(cell, Cell.sequence)
    return found


def seconds(module: nn.Module, run: Run, x: Tensor) -> float:
    """One forward and backward pass."""
    module.zero_grad()
    x.grad = None
    wait = torch.cuda.synchronize if x.is_cuda else lambda: None
    wait()
    begin = time.perf_counter()
    run(x).sum().backward()
    wait()
    return time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--width", type=int, default=256, help="of inputs and states")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    arguments = parser.parse_args()
    x = torch.randn(arguments.rows, arguments.steps, arguments.width, device=arguments.device, requires_grad=True)
    timed = runs(arguments.width, arguments.device)
    times: dict[str, list[float]] = {name: [] for name in timed}
    for number in range(arguments.rounds + 2):  # in turn, so that a busy moment falls on all of them
        for name, (module, run) in timed.items():
            took = seconds(module, run, x)
            if number >= 2:  # the first two warm up
                times[name].append(took)
    medians = {name: statistics.median(took) for name, took in times.items()}
    against = medians["torch.nn.LSTM"]
    print(
        f"{arguments.rows} rows, {arguments.steps} steps, width {arguments.width}, float32, {arguments.device}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}; median of {arguments.rounds}, load "
        f"{os.getloadavg()[0]:.1f}"
    )
    print(f"{'forward and backward':<22}{'ms':>9}{'fastest':>9}{'× torch.nn.LSTM':>17}")
    for name, took in medians.items():
        print(f"{name:<22}{1e3 * took:9.1f}{1e3 * min(times[name]):9.1f}{took / against:17.2f}")
    if arguments.json:
        facts = {
            "machine": platform.processor() or platform.machine(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            **{key: getattr(arguments, key) for key in ("rows", "steps", "width", "rounds", "device")},
            "seconds": medians,
            "ratio": {name: took / against for name, took in medians.items()},
        }
        arguments.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return 0 if all(medians[name] <= LIMIT * against for name in CELLS) else 1


if __name__ == "__main__":
    sys.exit(main())
