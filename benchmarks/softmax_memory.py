"""Memory of the training loss over a large vocabulary: the full softmax beside the sampled one (Jean et al. 2015).

    python benchmarks/softmax_memory.py [--vocabulary 200000] [--json FILE]

Each softmax runs in a process of its own: forward and backward of the output layer on 4,096 positions of width 512.
On a GPU the benchmark reads the allocator's peak, on a CPU the growth of the peak resident memory; weights and their
gradient do not count.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def peak(device: str) -> float:
    """Most bytes in use so far."""
    import torch

    if device == "cuda":
        return float(torch.cuda.max_memory_allocated())
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(kind: str, vocabulary: int, size: int, places: int, width: int) -> dict[str, Any]:
    """Peak memory beyond the weights, and seconds, of one forward and backward pass."""
    import torch
    from torch import nn

    from dragoman.models.config import FullSoftmaxConfig, SampledSoftmaxConfig
    from dragoman.models.heads.softmax import LOSSES

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    output = nn.Linear(width, vocabulary, bias=False, device=device)
    output.weight.grad = torch.zeros_like(output.weight)  # stands in every way of training
    hidden = torch.randn(places // 32, 32, width, device=device, requires_grad=True)
    target = torch.randint(4, vocabulary, (places // 32, 32), device=device)
    config = FullSoftmaxConfig() if kind == "full" else SampledSoftmaxConfig(size=size)
    before = peak(device)
    started = time.perf_counter()
    loss = LOSSES[type(config)](config, hidden, target, output, 0.1)
    loss.sum().backward()
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    return {
        "kind": kind,
        "device": torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU",
        "mebibytes": round((peak(device) - before) / 2**20, 1),
        "seconds": round(seconds, 3),
        "loss_per_token": round(float(loss.detach().mean()), 3),
    }


def main() -> None:
    """Run both ways and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=8192, help="words drawn beside those of the batch")
    parser.add_argument("--places", type=int, default=4096, help="target tokens in a batch")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--kind", choices=["full", "sampled"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = (options.vocabulary, options.size, options.places, options.width)
    if options.kind:
        print(json.dumps(measure(options.kind, *sizes)))
        return
    rows = []
    for kind in ("full", "sampled"):
        command = [sys.executable, __file__, "--kind", kind]
        for name, value in zip(("vocabulary", "size", "places", "width"), sizes, strict=True):
            command += [f"--{name}", str(value)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows.append(json.loads(done.stdout))
        print(f"{kind:<8} {rows[-1]['mebibytes']:>9,.1f} MiB  {rows[-1]['seconds']:.3f} s  on {rows[-1]['device']}")
    print(f"full / sampled: {rows[0]['mebibytes'] / rows[1]['mebibytes']:.1f} × the memory")
    if options.json:
        options.json.write_text(json.dumps({"vocabulary": options.vocabulary, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
