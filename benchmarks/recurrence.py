"""Time recurrent cells and an attentional model, forward and backward, beside torch's layers and a plain cell loop.

python benchmarks/recurrence.py                       on a GPU if there is one: 256 rows, 32 steps, width 512
OMP_NUM_THREADS=2 python benchmarks/recurrence.py --device cpu     64 rows, 25 steps, width 256; attentional 256/512

All are timed in turn, so that other load affects all of them. On a GPU our layers also run as a CUDA graph, as in
training; the peers run as their users run them. Writes benchmarks/results/recurrence-DEVICE.json and prints the tables.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
if importlib.util.find_spec("sentencepiece") is None:  # tokens are drawn here, so a bare GPU machine will do
    sys.modules["sentencepiece"] = ModuleType("sentencepiece")

from dragoman.models.decoders.recurrent import RecurrentDecoder, RecurrentDecoderConfig  # noqa: E402
from dragoman.models.encoders.recurrent import RecurrentEncoder, RecurrentEncoderConfig  # noqa: E402
from dragoman.models.kernels.torch_rnn import torch_rnn  # noqa: E402
from dragoman.models.layers.cells import (  # noqa: E402
    CellConfig,
    CoupledLSTMConfig,
    GRUConfig,
    LayerNormLSTMConfig,
    LSTMConfig,
    PeepholeLSTMConfig,
    RNNConfig,
    build_cell,
)
from dragoman.models.layers.embeddings import TokenEmbedding  # noqa: E402
from dragoman.models.layers.recurrence import Cell, CellState, all_states, plain_loop  # noqa: E402
from dragoman.models.layers.rnn_attention import AdditiveConfig  # noqa: E402

TORCH: dict[str, type[nn.RNNBase]] = {"torch.nn.LSTM": nn.LSTM, "torch.nn.GRU": nn.GRU, "torch.nn.RNN": nn.RNN}
CELLS: dict[str, CellConfig] = {
    "plain": RNNConfig(),
    "plain relu": RNNConfig(activation="relu"),
    "lstm": LSTMConfig(),
    "peephole-lstm": PeepholeLSTMConfig(),
    "coupled-lstm": CoupledLSTMConfig(),
    "normalised-lstm": LayerNormLSTMConfig(),
    "gru": GRUConfig(),
    "gru relu": GRUConfig(activation="relu"),
    "gru reset before": GRUConfig(reset="before"),
}
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
Work = Callable[[], Any]  # one forward and backward pass


# The peer: cells and additive attention as a plain loop writes them


class LoopModel(nn.Module):
    """An attentional bi-LSTM by nn.LSTMCell, one step after the other (Bahdanau 2015)."""

    def __init__(self, vocabulary: int, embedding: int, width: int, inner: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.source, self.target = nn.Embedding(vocabulary, embedding), nn.Embedding(vocabulary, embedding)
        self.ahead, self.back = nn.LSTMCell(embedding, width // 2), nn.LSTMCell(embedding, width // 2)
        self.begin = nn.Linear(width, 2 * width)
        self.key, self.query = nn.Linear(width, inner), nn.Linear(width, inner, bias=False)
        self.score = nn.Linear(inner, 1, bias=False)
        self.cell = nn.LSTMCell(embedding + width, width)
        self.readout, self.output = nn.Linear(2 * width + embedding, embedding), nn.Linear(embedding, vocabulary)

    @staticmethod
    def walk(cell: nn.LSTMCell, x: Tensor, order: range) -> Tensor:
        state: Any = None
        found: list[Any] = [None] * x.shape[1]
        for place in order:
            state = cell(x[:, place], state)
            found[place] = state[0]
        return torch.stack(found, 1)

    def forward(self, source: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        x = self.dropout(self.source(source))
        ahead = self.walk(self.ahead, x, range(x.shape[1]))
        back = self.walk(self.back, x, range(x.shape[1] - 1, -1, -1))
        memory = torch.cat([ahead, back], -1)
        keys = self.key(memory)
        state = torch.tanh(self.begin(torch.cat([ahead[:, -1], back[:, 0]], -1))).chunk(2, -1)
        hidden = []
        for token in self.dropout(self.target(target)).unbind(1):
            scores = self.score(torch.tanh(self.query(state[0])[:, None] + keys)).squeeze(-1)
            weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
            context = (weights[:, None] @ memory)[:, 0]
            state = self.cell(torch.cat([token, context], -1), state)
            hidden.append(torch.cat([state[0], context, token], -1))
        return self.output(self.dropout(torch.tanh(self.readout(torch.stack(hidden, 1)))))  # type: ignore[no-any-return]


class OurModel(nn.Module):
    """The same with our encoder and decoder."""

    def __init__(self, vocabulary: int, embedding: int, width: int, inner: int) -> None:
        super().__init__()
        encoder = RecurrentEncoderConfig(embedding=embedding, width=width, dropout=0.0)
        attention = AdditiveConfig(width=inner)
        decoder = RecurrentDecoderConfig(embedding=embedding, width=width, dropout=0.0, attention=attention)
        self.encoder = RecurrentEncoder(encoder, TokenEmbedding(vocabulary, embedding, 0))
        self.decoder = RecurrentDecoder(decoder, TokenEmbedding(vocabulary, embedding, 0), width)
        self.output = nn.Linear(self.decoder.width, vocabulary)

    def forward(self, source: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        hidden, _ = self.decoder(target, self.decoder.start(self.encoder(source, mask)))
        return self.output(hidden)  # type: ignore[no-any-return]


# Timing


def gradients(module: nn.Module, run: Callable[[], Tensor], *more: Tensor) -> Work:
    """One forward pass and the gradients of all parameters."""
    leaves = [*module.parameters(), *more]
    return lambda: torch.autograd.grad(run(), leaves)


def captured(work: Work) -> Work:
    """The same work as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = work()

    def replay() -> Any:
        graph.replay()
        return kept

    return replay


def clock(works: dict[str, Work], rounds: int, device: str, now: Callable[[], float]) -> dict[str, dict[str, float]]:
    """Median, fastest and slowest milliseconds of each, in turn."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 2):
        for name, work in works.items():
            wait()
            begin = now()
            work()
            wait()
            if number >= 2:  # the first two warm up
                times[name].append(1e3 * (now() - begin))
    return {
        name: {"median": statistics.median(took), "fastest": min(took), "slowest": max(took)}
        for name, took in times.items()
    }


def by_torch(cell: Cell, x: Tensor, start: CellState) -> Tensor:
    return torch_rnn(cell.torch_kernel, x, start, cell.torch_weights())[0]


def cell_works(arguments: argparse.Namespace, only: list[str]) -> dict[str, Work]:
    """Torch's layers, and our cells fused, as a plain loop and by torch's function, and all as CUDA graphs."""
    device = arguments.device
    x = torch.randn(arguments.rows, arguments.steps, arguments.width, device=device, requires_grad=True)
    works: dict[str, Work] = {}

    def eager(name: str, module: nn.Module, run: Callable[[], Tensor]) -> None:
        def total() -> Tensor:
            with torch.autocast(device, torch.bfloat16, enabled=arguments.autocast):
                out = run()
            return out.float().sum()

        work = gradients(module, total, x)
        works[name] = work
        if device == "cuda":
            works[f"{name}, graph"] = captured(work)

    for name, kind in TORCH.items():
        layer = kind(arguments.width, arguments.width, batch_first=True).to(device)
        eager(name, layer, lambda layer=layer: layer(x)[0])  # type: ignore[misc]
    for name, config in CELLS.items():
        if only and name not in only:
            continue
        cell: Cell = build_cell(config, arguments.width, arguments.width).to(device)
        start = cell.start(arguments.rows)
        if device == "cuda":
            eager(f"{name}: fused", cell, lambda cell=cell, start=start: all_states(cell, x, start)[0])  # type: ignore[misc]
        eager(f"{name}: loop", cell, lambda cell=cell, start=start: plain_loop(cell, x, start)[0])  # type: ignore[misc]
        if cell.torch_kernel:
            eager(f"{name}: torch's", cell, lambda cell=cell, start=start: by_torch(cell, x, start))  # type: ignore[misc]
    return works


def attentional_works(arguments: argparse.Namespace) -> dict[str, Work]:
    """An attentional model's step but for the optimiser: ours, ours as a graph, and the plain loop."""
    device, vocabulary = arguments.device, arguments.vocabulary
    sizes = (vocabulary, arguments.embedding, arguments.states, arguments.states)
    shape = (arguments.rows, arguments.attentional_steps)
    source, target, gold = (torch.randint(4, vocabulary, shape, device=device) for _ in range(3))
    mask = torch.ones(shape, dtype=torch.bool, device=device)
    works: dict[str, Work] = {}
    for name, kind in (("attentional: plain cell loop", LoopModel), ("attentional: ours", OurModel)):
        model = kind(*sizes).to(device)

        def loss(model: nn.Module = model) -> Tensor:
            with torch.autocast(device, torch.bfloat16, enabled=arguments.autocast):
                logits = model(source, target, mask)
            return F.cross_entropy(logits.float().flatten(0, 1), gold.flatten())

        works[name] = gradients(model, loss)
        if device == "cuda":
            works[f"{name}, graph"] = captured(works[name])
    return works


def commit() -> str:
    """Of the tree that was measured, if git knows."""
    try:
        run = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return run.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    gpu = torch.cuda.is_available()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if gpu else "cpu")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--steps", type=int, help="of the cells")
    parser.add_argument("--width", type=int, help="of the cells' inputs and states")
    parser.add_argument("--embedding", type=int, default=0, help="attentional model: size of the embeddings")
    parser.add_argument("--states", type=int, default=512, help="attentional model: size of states and attention")
    parser.add_argument("--attentional-steps", type=int, help="attentional model: tokens a side")
    parser.add_argument("--vocabulary", type=int, help="attentional model: tokens")
    parser.add_argument("--cells", nargs="*", choices=CELLS, default=[], help="only these")
    parser.add_argument("--part", choices=["all", "cells", "attentional"], default="all")
    parser.add_argument("--rounds", type=int)
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="processor: for a CPU that others use too, with one thread"
    )
    parser.add_argument("--autocast", action="store_true", help="bfloat16 products")
    parser.add_argument("--output", type=Path, help="where the numbers go")
    arguments = parser.parse_args()
    usual: dict[str, tuple[int, int]] = {  # on a CPU, on a GPU
        "rows": (64, 256), "steps": (25, 32), "width": (256, 512), "embedding": (256, 512),
        "attentional_steps": (15, 32), "vocabulary": (8000, 10112), "rounds": (5, 20),
    }  # fmt: skip
    for name, pair in usual.items():
        setattr(arguments, name, getattr(arguments, name) or pair[arguments.device == "cuda"])
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")  # as cuDNN's LSTM multiplies by default
    works: dict[str, Work] = {}
    if arguments.part != "attentional":
        works |= cell_works(arguments, arguments.cells)
    if arguments.part != "cells":
        works |= attentional_works(arguments)
    times = clock(works, arguments.rounds, arguments.device, CLOCKS[arguments.clock])
    machine = torch.cuda.get_device_name() if arguments.device == "cuda" else platform.processor() or platform.machine()
    settings = {key: value for key, value in vars(arguments).items() if key != "output"}
    facts = {
        "commit": commit(), "machine": machine, "threads": torch.get_num_threads(), "load": os.getloadavg()[0],
        "python": platform.python_version(), "torch": torch.__version__, "settings": settings, "milliseconds": times,
    }  # fmt: skip
    output = arguments.output or ROOT / "benchmarks" / "results" / f"recurrence-{arguments.device}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    print(f"{machine}, torch {torch.__version__}, {facts['threads']} threads, load {facts['load']:.1f}: {settings}\n")
    print("| forward and backward | ms, median | fastest | slowest | × peer |")
    print("|---|---|---|---|---|")
    for name, took in times.items():
        peer = times["attentional: plain cell loop" if name.startswith("attentional") else "torch.nn.LSTM"]["median"]
        numbers = " | ".join(f"{took[key]:.2f}" for key in ("median", "fastest", "slowest"))
        print(f"| {name} | {numbers} | {took['median'] / peer:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
