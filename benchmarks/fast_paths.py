"""What each GPU fast path gains over plain torch code inside the same CUDA graph.

    python benchmarks/fast_paths.py [--rounds 5] [--json FILE]

Every row switches one fast path of the kernels off and measures the same work with and without it, in turns.
Both run as captured CUDA graphs, so the gain is the kernel's own, not that of fewer launches. Our rule: a fast path
that gains less than 1.2 times is deleted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import gpu_decoding  # noqa: E402
import gpu_training  # noqa: E402

from dragoman.models.kernels import deferred_gradients, fused_layers, fused_rnn, short_attention, torch_rnn  # noqa: E402
from dragoman.models.kernels import top_k as topk  # noqa: E402

RECURRENT = {
    "tie": "none",
    "encoder": {"kind": "recurrent", "layers": 1, "embedding": 512, "width": 512},
    "decoder": {"kind": "recurrent", "layers": 1, "embedding": 512, "width": 512, "attention": {"width": 512}},
}
PEEPHOLE = {
    "tie": "none",
    "encoder": {"kind": "recurrent", "embedding": 512, "width": 512, "cell": "peephole-lstm"},
    "decoder": {"kind": "fixed-context", "embedding": 512, "width": 512, "cell": "peephole-lstm"},
}
off = patch.object


@contextmanager
def no_deferred_gradients() -> Iterator[None]:
    """Let autograd add up the weight gradients of a loop step by step."""
    with patch.object(deferred_gradients, "deferring", lambda: False):
        yield


def training_step(model: dict[str, Any] | None = None) -> Callable[[], Any]:
    """A captured training step of the Transformer, or of another model."""
    return gpu_training.ours(128, "graphs", model)


# Fast path → how to switch it off, and the work it speeds up.
PATHS: dict[str, tuple[Callable[[], Any], Callable[[], Callable[[], Any]]]] = {
    "short attention, training": (
        lambda: off(short_attention, "supports", lambda *given: False),
        training_step,
    ),
    "attention over a shared cache, beam 5": (
        lambda: off(short_attention, "shares", lambda *given: False),
        lambda: gpu_decoding.ours(512, 5, False),
    ),
    "short attention, training like T5": (
        lambda: off(short_attention, "supports", lambda *given: False),
        lambda: training_step(gpu_training.transformer("t5")),
    ),
    "attention over a shared cache, beam 5 like T5": (
        lambda: off(short_attention, "shares", lambda *given: False),
        lambda: gpu_decoding.ours(512, 5, False, "t5"),
    ),
    "bias of distances in a kernel, training like T5": (
        lambda: off(fused_layers, "distance_bias", lambda *given: None),
        lambda: training_step(gpu_training.transformer("t5")),
    ),
    "top-k and beam update, beam 5": (
        lambda: off(topk, "supports", lambda *given: False),
        lambda: gpu_decoding.ours(512, 5, False),
    ),
    "deferred gradients, attentional LSTM": (no_deferred_gradients, lambda: training_step(RECURRENT)),
    "cuDNN, attentional LSTM": (
        lambda: patch.dict(torch_rnn.BY_TORCH, cuda=frozenset()),
        lambda: training_step(RECURRENT),
    ),
    "pointwise kernels, peephole LSTM": (
        lambda: off(fused_rnn, "supports", lambda *given: False),
        lambda: training_step(PEEPHOLE),
    ),
}


def measure(name: str, rounds: int) -> dict[str, float]:
    """Milliseconds with and without a fast path."""
    switch, build = PATHS[name]
    work = {"with": (nullcontext, build()), "without": (switch, build())}
    times: dict[str, list[float]] = {}
    for context, step in work.values():
        with context():
            for _ in range(6):  # the graph is captured while the path is on or off
                step()
    for _ in range(rounds):
        for way, (context, step) in work.items():
            with context():
                times.setdefault(way, []).append(gpu_training.milliseconds(step, 10))
    found = {way: statistics.median(some) for way, some in times.items()}
    return found | {"gain": found["without"] / found["with"]}


def main() -> None:
    """Measure, print, write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="measure the paths with this in their name")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "fast_paths.json")
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": torch.cuda.get_device_name(), "torch": torch.__version__}
    print("| fast path | ms with | ms without | gain |\n|---|---|---|---|")
    with torch.cuda.stream(torch.cuda.Stream()):
        for name in PATHS:
            if options.only not in name:
                continue
            try:
                row = found[name] = measure(name, options.rounds)
            except Exception as error:  # one row must not cost the others
                print(f"| {name} | {type(error).__name__}: {str(error)[:80]} | | |", flush=True)
                continue
            print(f"| {name} | {row['with']:.2f} | {row['without']:.2f} | {row['gain']:.2f} |", flush=True)
            torch.cuda.empty_cache()
    options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
