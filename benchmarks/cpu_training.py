"""Training speed on a CPU: a Transformer against Hugging Face Marian and torch.nn.Transformer, or an attentional
bi-LSTM against a plain loop of cells.

    OMP_NUM_THREADS=2 python benchmarks/cpu_training.py --data FOLDER_OF_MULTI30K [--dropout everywhere]
    OMP_NUM_THREADS=2 python benchmarks/cpu_training.py --data FOLDER_OF_MULTI30K --model attentional

The Transformers have 3+3 post-norm layers of 256, 1024 inside the feed-forward layers, one table of 8,000 sub-words
for source, target and output, label smoothing 0.1, clipping at 1 and fused AdamW. They take the same batches in turn,
with dropout at the same positions: in the residual stream alone (`stream`), or on attention weights and inside the
feed-forward layers too (`everywhere`). The attentional models (Bahdanau 2015) have embeddings of 256, states and
attention of 512 and dropout on embeddings and before the output. Our step is the trainer's own and includes reading
the batch; the peers receive a prepared batch.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from recurrence import LoopModel  # noqa: E402

from dragoman.data.batch import Batch  # noqa: E402
from dragoman.data.batching import BatchPlan, read_batch  # noqa: E402
from dragoman.data.corpus import Corpus, prepare_corpus  # noqa: E402
from dragoman.data.tokenizers.base import EOS, PAD, SOS  # noqa: E402
from dragoman.models.layers.positions import sinusoids  # noqa: E402
from dragoman.runs.tasks import config as configuration  # noqa: E402
from dragoman.runs.tasks.table import task_of  # noqa: E402
from dragoman.training.objectives.base import build_objective  # noqa: E402
from dragoman.training.runtime import Runtime  # noqa: E402
from dragoman.training.trainer import Trainer  # noqa: E402

WIDTH, LAYERS, HEADS, INNER, SMOOTHING, RATE = 256, 3, 8, 1024, 0.1, 3e-4
BUDGET = 2240  # tokens a side, padding included: about 2,000 real target tokens a step
EMBEDDING, STATES = 256, 512  # of the attentional models
BARS = {"transformer": 1.35, "attentional": 1.2}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Step = Callable[[Batch], None]


def transformer_table(dropout: float, inside: float) -> dict[str, Any]:
    """The Transformer's settings."""
    stack = {
        "kind": "transformer",
        "layers": LAYERS,
        "width": WIDTH,
        "heads": HEADS,
        "feedforward": INNER,
        "norm": "post",
        "dropout": dropout,
        "attention_dropout": inside,
        "feedforward_dropout": inside,
    }
    return {"tie": "all", "encoder": stack, "decoder": stack}


def attentional_table(dropout: float, inside: float) -> dict[str, Any]:
    """The attentional model's settings: everything as it is by default, but for tables that the peer does not share."""
    layer = {"kind": "recurrent", "embedding": EMBEDDING, "width": STATES, "dropout": dropout}
    return {"tie": "none", "output_bias": True, "encoder": layer, "decoder": layer}


def settings(data: Path, model: dict[str, Any]) -> Any:
    """The run as a user would configure it."""
    files = {side: str(data / f"train.{ending}.gz") for side, ending in (("source", "en"), ("target", "de"))}
    table = {
        "data": {"train": files},
        "tokenizer": {"source": {"kind": "subwords", "vocab_size": 8000}},
        "model": {"kind": "encoder-decoder", "label_smoothing": SMOOTHING, **model},
        "train": {
            "batch_tokens": BUDGET,
            "device": "cpu",
            "log_every": 10**9,
            "optimizer": {"learning_rate": RATE, "schedule": "constant", "warmup": 0},
        },
    }
    return configuration.build(table)


def ours(config: Any, corpus: Corpus) -> Step:
    """A step of the trainer; it takes the batches of its plan one after another, as everyone here does."""
    torch.manual_seed(1)
    model = task_of(config).model(config, corpus.source_tokenizer, corpus.target_tokenizer)
    folder = Path(tempfile.mkdtemp())
    runtime, task = Runtime(torch.device("cpu")), task_of(config)
    loader = task.loader(config, corpus, model, runtime.processes)
    validator = task.validator(config, corpus, runtime.device)
    objective = build_objective(config.train.objective, corpus)
    trainer = Trainer(config.train, model, objective, loader, validator, folder, runtime)
    trainer.state.step = 1  # the first step logs
    return lambda batch: trainer._step()


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with embeddings, positions and an output layer."""

    positions: Tensor

    def __init__(self, vocabulary: int, dropout: float, inside: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=WIDTH**-0.5)
        self.register_buffer("positions", sinusoids(512, WIDTH))
        self.dropout = nn.Dropout(dropout)
        self.stack = nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, INNER, dropout, batch_first=True)
        for layer in (*self.stack.encoder.layers, *self.stack.decoder.layers):
            layer.dropout.p = inside
            for attention in (layer.self_attn, getattr(layer, "multihead_attn", layer.self_attn)):
                attention.dropout = inside

    def embed(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.embedding(tokens) * WIDTH**0.5 + self.positions[: tokens.shape[1]])
        return embedded

    def forward(self, batch: Batch, inputs: Tensor) -> Tensor:
        hidden = self.stack(
            self.embed(batch.source.data),
            self.embed(inputs),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(inputs.shape[1]),
            src_key_padding_mask=(~batch.source.mask).float().masked_fill(~batch.source.mask, -math.inf),
            memory_key_padding_mask=(~batch.source.mask).float().masked_fill(~batch.source.mask, -math.inf),
            tgt_is_causal=True,
        )
        return F.linear(hidden, self.embedding.weight)


def marian(vocabulary: int, dropout: float, inside: float) -> nn.Module:
    """Hugging Face's Marian of these sizes; its attention is torch's fused one wherever that can be."""
    from transformers import MarianConfig, MarianMTModel

    return MarianMTModel(
        MarianConfig(
            vocab_size=vocabulary,
            d_model=WIDTH,
            encoder_layers=LAYERS,
            decoder_layers=LAYERS,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            encoder_ffn_dim=INNER,
            decoder_ffn_dim=INNER,
            activation_function="relu",
            dropout=dropout,
            attention_dropout=inside,
            activation_dropout=inside,
            scale_embedding=True,
            max_position_embeddings=512,
            pad_token_id=PAD,
            eos_token_id=EOS,
            decoder_start_token_id=SOS,
            use_cache=False,
        )
    )


def peer(model: nn.Module, logits: Callable[[Batch, Tensor], Tensor]) -> Step:
    """A usual training step."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9, weight_decay=0, fused=True)

    def step(batch: Batch) -> None:
        target = batch.target
        inputs = torch.cat([target.new_full((target.shape[0], 1), SOS), target[:, :-1]], 1)
        scores = logits(batch, inputs).flatten(0, 1)
        loss = F.cross_entropy(scores, target.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def peers(vocabulary: int, dropout: float, inside: float) -> dict[str, Step]:
    """Everyone we are compared with."""
    theirs: Any = marian(vocabulary, dropout, inside)
    plain = TorchTransformer(vocabulary, dropout, inside)

    def marian_logits(batch: Batch, inputs: Tensor) -> Tensor:
        scores: Tensor = theirs(
            input_ids=batch.source.data, attention_mask=batch.source.mask.long(), decoder_input_ids=inputs
        ).logits
        return scores

    return {"Hugging Face Marian": peer(theirs, marian_logits), "torch.nn.Transformer": peer(plain, plain.forward)}


def loops(vocabulary: int, dropout: float, inside: float) -> dict[str, Step]:
    """What an attentional model is compared with."""
    model = LoopModel(vocabulary, EMBEDDING, STATES, STATES, dropout)
    return {
        "plain cell loop": peer(model, lambda batch, inputs: model(batch.source.data, inputs, batch.source.mask)),
    }


def attentional_operations(batch: Batch, vocabulary: int) -> float:
    """See `operations`."""
    sources, targets = batch.source.mask.sum(1), (batch.target != PAD).sum(1)
    half = STATES // 2
    encoder = sources.sum() * (2 * 4 * half * (EMBEDDING + half) + STATES * STATES)
    cell = 4 * STATES * (EMBEDDING + 2 * STATES) + STATES * STATES
    readout = (2 * STATES + EMBEDDING) * EMBEDDING + EMBEDDING * vocabulary
    return 3.0 * 2.0 * float(encoder + targets.sum() * (cell + readout) + 2 * STATES * (sources * targets).sum())


def operations(batch: Batch, vocabulary: int) -> float:
    """Floating-point operations that a step cannot do without: matrix products over real tokens, three times forward.

    Padding counts nothing, nor do norms, softmax, dropout and the optimiser.
    """
    sources, targets = batch.source.mask.sum(1), (batch.target != PAD).sum(1)
    square, inner = WIDTH * WIDTH, 2 * WIDTH * INNER
    encoder = LAYERS * (sources.sum() * (4 * square + inner) + 2 * WIDTH * (sources * sources).sum())
    seen = targets * (targets + 1) // 2 + targets * sources
    decoder = LAYERS * (targets.sum() * (6 * square + inner) + sources.sum() * 2 * square + 2 * WIDTH * seen.sum())
    return 3.0 * 2.0 * float(encoder + decoder + targets.sum() * WIDTH * vocabulary)


MODELS: dict[str, tuple[Any, Any, Any]] = {  # settings, peers, what they cannot do without
    "transformer": (transformer_table, peers, operations),
    "attentional": (attentional_table, loops, attentional_operations),
}


def matrix_peak(clock: Callable[[], float]) -> float:
    """The most operations a second that a large float32 matrix product reaches here."""
    a = torch.randn(2048, 2048)
    fastest = math.inf
    for _ in range(6):
        begin = clock()
        a @ a
        fastest = min(fastest, clock() - begin)
    return 2 * 2048**3 / fastest


def commit() -> str:
    """What was measured; + says that files were changed since."""

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")


def processor() -> str:
    """The name of the CPU."""
    found = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout.splitlines()
    names = [line.partition(":")[2].strip() for line in found if line.startswith("Model name")]
    return f"{platform.machine()} {' '.join(names)}".strip()


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Rounds of a few batches, everyone in turn with the same ones."""
    inside = arguments.rate if arguments.dropout == "everywhere" else 0.0
    make, others, operations_of = MODELS[arguments.model]
    config = settings(arguments.data, make(arguments.rate, inside))
    corpus = prepare_corpus(config.data, config.tokenizer)
    vocabulary = len(corpus.target_tokenizer)
    plan = BatchPlan(corpus.train, config.train.batch_tokens, config.train.seed)
    epoch = plan.epoch(0)
    steps = {"Dragoman": ours(config, corpus), **others(vocabulary, arguments.rate, inside)}
    steps = {name: step for name, step in steps.items() if not arguments.only or arguments.only in name}
    rates: dict[str, list[float]] = {name: [] for name in steps}
    peaks, tokens, places, needed = [], 0, 0, []
    clock = CLOCKS[arguments.clock]
    for number in range(arguments.rounds + 1):  # the first one warms up
        first = number * arguments.batches
        batches = [read_batch(corpus.train, epoch[place], plan) for place in range(first, first + arguments.batches)]
        real = sum(int((batch.target != PAD).sum()) for batch in batches)
        tokens, places = tokens + real, places + sum(batch.target.numel() for batch in batches)
        needed.append(sum(operations_of(batch, vocabulary) for batch in batches) / real)
        peaks.append(matrix_peak(clock))
        turns = list(steps.items())
        for name, step in turns[number % len(turns) :] + turns[: number % len(turns)]:
            begin = clock()
            for batch in batches:
                step(batch)
            if number:
                rates[name].append(real / (clock() - begin))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    peak = max(peaks)
    best = max((found for name, found in medians.items() if name != "Dragoman"), default=math.nan)
    return {
        "commit": commit(),
        "machine": processor(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "versions": {"torch": torch.__version__, "python": platform.python_version(), **transformers_version()},
        "settings": {
            **{key: getattr(arguments, key) for key in ("model", "dropout", "rate", "rounds", "batches", "clock")},
            "vocabulary": vocabulary,
            "tokens_a_step": round(tokens / (arguments.rounds + 1) / arguments.batches),
            "padding": round(1 - tokens / places, 3),
        },
        "matrix_peak": peak,
        "operations_per_token": statistics.median(needed),
        "tokens_per_second": medians,
        "spread": {name: [min(found), max(found)] for name, found in rates.items()},
        "share_of_peak": {name: found * statistics.median(needed) / peak for name, found in medians.items()},
        "ratio_to_best_peer": medians.get("Dragoman", math.nan) / best,
    }


def transformers_version() -> dict[str, str]:
    """Of the peer."""
    import transformers

    return {"transformers": transformers.__version__}


def table(facts: dict[str, Any]) -> str:
    """The same for people."""
    told = facts["settings"]
    lines = [
        f"{facts['machine']}, {facts['threads']} threads, torch {facts['versions']['torch']}, "
        f"commit {facts['commit']}, {'CPU time' if told['clock'] == 'cpu' else 'wall time'}, load {facts['load']:.1f}; "
        f"{told['tokens_a_step']:,} target tokens a step, {told['padding']:.1%} padding, dropout {told['rate']} "
        f"{'everywhere' if told['dropout'] == 'everywhere' else 'in the stream'}; median of {told['rounds']} rounds of "
        f"{told['batches']} steps; matrix peak {facts['matrix_peak'] / 1e9:.1f} GFLOP/s",
        "",
        "| training, float32 | target tokens/s | least to most | of the matrix peak |",
        "|---|---|---|---|",
    ]
    for name, rate in facts["tokens_per_second"].items():
        low, high = facts["spread"][name]
        lines.append(f"| {name} | {rate:,.0f} | {low:,.0f} to {high:,.0f} | {facts['share_of_peak'][name]:.0%} |")
    lines += ["", f"{facts['ratio_to_best_peer']:.2f} × the best peer (bar: {BARS[told['model']]})"]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, required=True, help="the folder with Multi30k's train.en.gz and train.de.gz"
    )
    parser.add_argument("--model", choices=tuple(MODELS), default="transformer")
    parser.add_argument("--dropout", choices=("stream", "everywhere"), help="where; only a Transformer has the choice")
    parser.add_argument("--rate", type=float, default=0.1, help="of dropout")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=2, help="steps of everyone in a round")
    parser.add_argument(
        "--clock", choices=tuple(CLOCKS), default="wall", help="cpu: for one thread on a machine with other work"
    )
    parser.add_argument("--only", help="run nobody but those with this in their name")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "benchmarks" / "results", help="folder for JSON and table"
    )
    arguments = parser.parse_args()
    if arguments.model != "transformer" and arguments.dropout:
        parser.error("--dropout: only a Transformer has the choice")
    arguments.dropout = arguments.dropout or ("everywhere" if arguments.model == "transformer" else "stream")
    facts = measure(arguments)
    text = table(facts)
    print(text)
    if not arguments.only:
        arguments.results.mkdir(parents=True, exist_ok=True)
        kind = arguments.dropout if arguments.model == "transformer" else arguments.model
        path = arguments.results / f"cpu-training-{kind}"
        path.with_suffix(".json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        path.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    return 0 if arguments.only or facts["ratio_to_best_peer"] >= BARS[arguments.model] else 1


if __name__ == "__main__":
    sys.exit(main())
