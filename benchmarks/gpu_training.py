"""Whole training steps on one GPU, side by side with Hugging Face Marian and torch.nn.Transformer of the same sizes.

    python benchmarks/gpu_training.py [--rows 128 1024] [--json FILE]
    python benchmarks/gpu_training.py --ways graphs --kinds plain t5 rotary --no-peers --json FILE

Forward, backward, clipping and a fused AdamW update under bfloat16 autocast; the same dropout everywhere. Our steps
copy their batch from host memory, as in training; the peers' batches are on the GPU already. The second command
compares kinds of Transformers of the same sizes with each other; gated layers have a third matrix.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

WIDTH, LAYERS, HEADS, INNER, VOCABULARY, LENGTH, DROPOUT, SMOOTHING = 512, 6, 8, 1024, 10112, 32, 0.1, 0.1
MODERN = {"norm_kind": "rms", "gated": True, "activation": "silu"}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "t5": MODERN | {"positions": "relative-bias", "bias": False},  # what the automatic choice trains for sentences
    "rotary": MODERN | {"positions": "rotary"},
}
Step = Callable[[], None]


def batch(rows: int) -> Any:
    from dragoman.data.batch import token_batch

    draw = torch.Generator().manual_seed(1)
    source, target = (torch.randint(4, VOCABULARY, (rows, LENGTH), generator=draw) for _ in range(2))
    return token_batch(source, target)


def transformer(kind: str = "plain") -> dict[str, Any]:
    """The settings of a Transformer."""
    stack = {
        "kind": "transformer", "width": WIDTH, "layers": LAYERS, "heads": HEADS, "feedforward": INNER,
        "dropout": DROPOUT, "attention_dropout": DROPOUT, "feedforward_dropout": DROPOUT, **KINDS[kind],
    }  # fmt: skip
    return {"tie": "all", "label_smoothing": SMOOTHING, "encoder": stack, "decoder": stack}


def ours(rows: int, way: str, model: dict[str, Any] | None = None) -> Step:
    """A training step as the trainer makes it; `model`: settings of another model than the plain Transformer."""
    from dragoman.runs.tasks import config as configuration
    from dragoman.runs.tasks.translate import build_model
    from dragoman.training.display import Display
    from dragoman.training.objectives.base import Objective
    from dragoman.training.runtime import Runtime
    from dragoman.training.step import build_step

    model = model or transformer()
    config = configuration.build({"data": {"train": "none.tsv"}, "model": model, "train": {"compile": way}})
    torch.manual_seed(1)
    built = build_model(config, VOCABULARY, VOCABULARY).cuda().train()
    learn = build_step(config.train, built, Objective(), Runtime(torch.device("cuda"), display=Display()))
    host, number = batch(rows), 0
    count = host.target.numel()

    def step() -> None:
        nonlocal number
        number += 1
        learn([(0, host)], 0, number, count, config.train.optimizer.learning_rate, number)

    return step


def peer(rows: int, build: Callable[[], nn.Module], loss: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> Step:
    """The usual loop around a peer's model."""
    model = build().cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    host = batch(rows)
    source, target = host.source.data.cuda(), host.target.cuda()

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            total = loss(model, source, target)
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def marian() -> nn.Module:
    from transformers import MarianConfig, MarianMTModel

    return MarianMTModel(
        MarianConfig(
            vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=LAYERS,
            encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=INNER, decoder_ffn_dim=INNER,
            dropout=DROPOUT, attention_dropout=DROPOUT, activation_dropout=DROPOUT, max_position_embeddings=512,
            pad_token_id=0, eos_token_id=3, decoder_start_token_id=2, forced_eos_token_id=None,
        )
    )  # fmt: skip


def smoothed(logits: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), label_smoothing=SMOOTHING)


def marian_loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    inputs = torch.cat([target.new_full((target.shape[0], 1), 2), target[:, :-1]], 1)
    mask = source != 0
    return smoothed(model(input_ids=source, attention_mask=mask, decoder_input_ids=inputs).logits, target)


class TorchTransformer(nn.Module):
    """torch.nn.Transformer between embeddings and an output layer that share one table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(512, WIDTH) * 0.02)
        self.core = nn.Transformer(
            WIDTH, HEADS, LAYERS, LAYERS, INNER, DROPOUT, batch_first=True, norm_first=True
        )  # fmt: skip

    def embedded(self, tokens: Tensor) -> Tensor:
        return nn.functional.dropout(self.table(tokens) * WIDTH**0.5 + self.positions[: tokens.shape[1]], DROPOUT)

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1], device=inputs.device)
        padding = source == 0
        x = self.core(
            self.embedded(source), self.embedded(inputs), tgt_mask=causal, tgt_is_causal=True,
            src_key_padding_mask=padding, memory_key_padding_mask=padding,
        )  # fmt: skip
        return nn.functional.linear(x, self.table.weight)


def torch_loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    inputs = torch.cat([target.new_full((target.shape[0], 1), 2), target[:, :-1]], 1)
    return smoothed(model(source, inputs), target)


def operations(rows: int, gated: bool) -> float:
    """Of the matrix products of one step, three times those of the forward pass."""
    tokens = rows * LENGTH
    inner = (3 if gated else 2) * WIDTH * INNER
    encoder = LAYERS * (4 * WIDTH**2 + inner)
    decoder = LAYERS * (8 * WIDTH**2 + inner) + WIDTH * VOCABULARY
    attention = LAYERS * 3 * 2 * LENGTH * WIDTH  # products with keys and with values
    return 3 * 2 * tokens * (encoder + decoder + attention)


def peak() -> float:
    """Operations a second of a large bfloat16 product."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = [milliseconds(lambda: a @ b, 20) for _ in range(3)]
    return float(2 * 8192**3 / (min(times) / 1000))


def milliseconds(step: Callable[[], Any], count: int) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - started) / count


PEERS: dict[str, Callable[[int], Step]] = {
    "Hugging Face Marian": lambda rows: peer(rows, marian, marian_loss),
    "torch.nn.Transformer": lambda rows: peer(rows, TorchTransformer, torch_loss),
}


def our_name(kind: str, way: str) -> str:
    return f"dragoman, {way}" if kind == "plain" else f"dragoman {kind}, {way}"


def measured(
    rows: int, peers: list[str], kinds: list[str], ways: list[str], rounds: int, most: float
) -> dict[str, dict[str, float]]:
    """Milliseconds a step of everybody, in turns."""
    contenders: dict[str, Callable[[], Step]] = {name: partial(PEERS[name], rows) for name in peers}
    for kind, way in product(kinds, ways):
        contenders[our_name(kind, way)] = partial(ours, rows, way, transformer(kind))
    steps, first = {}, {}
    for name, build in contenders.items():
        started = time.perf_counter()
        step = build()
        for _ in range(6):
            step()
        torch.cuda.synchronize()
        first[name] = time.perf_counter() - started
        steps[name] = step
        print(f"{rows} rows: {name} ready after {first[name]:.1f} s", flush=True)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            once = milliseconds(step, 3)
            times[name].append(milliseconds(step, max(3, min(30, int(most / max(once, 0.1))))))
    return {
        name: {"median": statistics.median(some), "least": min(some), "most": max(some), "ready_seconds": first[name]}
        for name, some in times.items()
    }


def main() -> None:
    """Measure, print, write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--ways", nargs="+", default=["off", "graphs"])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["plain"], help="of our Transformers")
    parser.add_argument("--no-peers", action="store_true", help="compare our own with the first of them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most", type=float, default=400, help="milliseconds of one timing")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "gpu_training.json")
    options = parser.parse_args()
    peers = [] if options.no_peers else list(PEERS)
    base = "the best peer" if peers else our_name(options.kinds[0], options.ways[0])
    gated = [our_name(kind, way) for kind in options.kinds if KINDS[kind] for way in options.ways]
    found: dict[str, Any] = {"machine": torch.cuda.get_device_name(), "torch": torch.__version__, "peak": peak()}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    found["commit"] = commit.stdout.strip()
    with torch.cuda.stream(torch.cuda.Stream()):
        for rows in options.rows:
            times = measured(rows, peers, options.kinds, options.ways, options.rounds, options.most)
            best = min(times[name]["median"] for name in peers or [base])
            print(f"| {rows} × {LENGTH} | ms a step | least to most | times as fast as {base} | of the matrix peak |")
            print("|---|---|---|---|---|")
            for name, one in times.items():
                one["ratio"] = best / one["median"]
                one["share_of_peak"] = operations(rows, name in gated) / (one["median"] / 1000) / found["peak"]
                print(
                    f"| {name} | {one['median']:.2f} | {one['least']:.2f} to {one['most']:.2f} | {one['ratio']:.2f} "
                    f"| {100 * one['share_of_peak']:.1f} % |"
                )
            found[f"{rows}x{LENGTH}"] = times
            torch.cuda.empty_cache()
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
