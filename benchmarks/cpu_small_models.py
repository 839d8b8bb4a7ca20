"""Training steps on a CPU of the small models that the automatic choice trains there, beside plain torch.

    OMP_NUM_THREADS=1 python benchmarks/cpu_small_models.py PAIRS.tsv [--rounds 9] [--clock cpu]

PAIRS.tsv has words and their sounds, separated by spaces. Each model trains twice: as `dragoman train` does it, and as
plain torch does: recurrent cells one step after another, and products as torch computes them by itself. torch.nn's
Transformer of the same sizes is a peer of the Transformer. The steps take turns; the table has the best of all rounds
and the median.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import cpu_training  # noqa: E402
from cpu_training import CLOCKS, torch_defaults  # noqa: E402

from dragoman.auto.portfolio import MODERN  # noqa: E402
from dragoman.data.batching import BatchPlan, read_batch  # noqa: E402
from dragoman.data.corpus import Corpus, prepare_corpus  # noqa: E402
from dragoman.kernels.deferred_gradients import immediate_gradients  # noqa: E402
from dragoman.layers.cells import Cell  # noqa: E402
from dragoman.tasks import config as configuration  # noqa: E402

WIDTH = ("model.encoder.width=256", "model.decoder.width=256")
MODELS: dict[str, tuple[str, tuple[str, ...]]] = {  # preset and overrides
    "Luong 256": ("luong-2015-small", WIDTH),
    "hard attention": ("wu-2019-small", ()),
    "edit transducer": ("makarov-2020-small", ()),
    "Transformer 128": ("transformer-tiny", ()),
    "modern Transformer 128": ("transformer-tiny", MODERN),
}


def settings(data: Path, preset: str, overrides: tuple[str, ...]) -> Any:
    table = {
        "preset": preset,
        "data": {"train": str(data)},
        "tokenizer": {"source": {"kind": "characters"}, "target": {"kind": "words"}},
        "model": {"tie": "none"},
        "train": {"batch_tokens": 1024, "device": "cpu", "log_every": 10**9},
    }
    return configuration.build(table, overrides)


def in_plain_torch(config: Any, corpus: Corpus) -> Callable[[Any], None]:
    """The same step without our recurrent kernels and with torch's own choice of a library for products."""

    def walk_by_steps(model: nn.Module) -> None:
        for cell in model.modules():
            if isinstance(cell, Cell):
                cell.has_fused = False

    step = cpu_training.ours(config, corpus, walk_by_steps)

    def plain(batch: Any) -> None:
        with torch_defaults(), immediate_gradients():
            step(batch)

    return plain


def torch_transformer(vocabulary: int) -> Callable[[Any], None]:
    cpu_training.WIDTH, cpu_training.LAYERS, cpu_training.HEADS, cpu_training.INNER = 128, 4, 4, 512
    model = cpu_training.TorchTransformer(vocabulary, 0.2, 0.0)
    return cpu_training.peer(model, model.forward)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="cpu: for one thread beside other work")
    parser.add_argument("--only", default="", help="models with this in their name")
    given = parser.parse_args()
    clock = CLOCKS[given.clock]
    print("| model | Dragoman, ms a step: best, median | plain torch | times as fast |\n|---|---|---|---|")
    for name, (preset, overrides) in MODELS.items():
        if given.only not in name:
            continue
        config = settings(given.data, preset, overrides)
        corpus = prepare_corpus(config.data, config.tokenizer)
        plan = BatchPlan(corpus.train, config.train.batch_tokens, config.train.seed)
        batches = [read_batch(corpus.train, rows, plan) for rows in islice(plan.epoch(0), given.rounds + 2)]
        steps = {"ours": cpu_training.ours(config, corpus), "plain": in_plain_torch(config, corpus)}
        if name == "Transformer 128":
            size = max(len(corpus.source_tokenizer), len(corpus.target_tokenizer))
            steps["plain"] = torch_transformer(size)
        times: dict[str, list[float]] = {kind: [] for kind in steps}
        for number, batch in enumerate(batches):
            for kind, step in steps.items():
                begun = clock()
                step(batch)
                if number > 1:
                    times[kind].append(1e3 * (clock() - begun))
        shown = {kind: (min(took), statistics.median(took)) for kind, took in times.items()}
        (best, median), (peer, peer_median) = shown["ours"], shown["plain"]
        ratio = f"{peer / best:.2f} ({peer_median / median:.2f})"
        print(f"| {name} | {best:.1f}, {median:.1f} | {peer:.1f}, {peer_median:.1f} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
