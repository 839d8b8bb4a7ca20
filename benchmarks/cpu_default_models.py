"""Training speed on a CPU of the models that `dragoman train FILE` chooses there, beside Yoyodyne, transformers and a
plain loop.

    pip install --no-deps yoyodyne
    pip install lightning maxwell wandb transformers     # what it needs; torchvision and torchaudio are not imported
    OMP_NUM_THREADS=2 python benchmarks/cpu_default_models.py FILE.tsv [FILE.tsv ...]

For each file the automatic choice picks a model as it does without a GPU; the model decides the peers:

- Luong attention: Yoyodyne's soft attention, and Luong's equations as a loop over torch.nn.LSTMCell
- hard attention of first order: Yoyodyne's, with the same window and monotonic alignments
- edit transducer: Yoyodyne's, taught by its expert (ours sums over all edit sequences)
- Transformer like T5: T5ForConditionalGeneration of transformers

The peers have the same sizes and dropout. Everyone takes the same batches in turn. Our step is the trainer's own and
includes reading the batch; the peers receive a prepared batch.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cpu_training import ROOT, commit, ours, processor
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.auto.configure import configure
from dragoman.data.batch import Batch
from dragoman.data.batching import BatchPlan, read_batch
from dragoman.data.corpus import Corpus, prepare_corpus
from dragoman.data.tokenizers.base import EOS, PAD, SOS, SPECIALS

Step = Callable[[Batch], Any]
Peers = dict[str, tuple[nn.Module, Callable[[Batch], Tensor]]]  # models with their losses, by name
MEASURED = {"Yoyodyne": "yoyodyne", "transformers": "transformers", "torch": "torch"}


def training_step(model: nn.Module, clip: float, loss_of: Callable[[Batch], Tensor]) -> Step:
    """A usual training step."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0, fused=True)

    def step(batch: Batch) -> None:
        torch.autograd.backward(loss_of(batch))
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


# Yoyodyne


class Symbols:
    """Batches of ours as batches of Yoyodyne, which numbers the symbols of both sides together."""

    def __init__(self, corpus: Corpus) -> None:
        from yoyodyne import data

        def symbols(tokenizer: Any) -> list[str]:
            return list(tokenizer.pieces(range(len(SPECIALS), len(tokenizer))))

        sides = corpus.source_tokenizer, corpus.target_tokenizer
        source, target = (symbols(tokenizer) for tokenizer in sides)
        self.index = data.Index(source_vocabulary=source, target_vocabulary=target, tie_embeddings=True)
        specials = list(range(len(SPECIALS)))  # padding, unknown, start, end: the same numbers there
        self.source = torch.tensor(specials + [self.index(symbol) for symbol in source])
        self.target = torch.tensor(specials + [self.index(symbol) for symbol in target])

    def batch(self, batch: Batch) -> Any:
        from yoyodyne import data

        source = self.source[batch.source.data]
        source = torch.cat([source.new_full((len(source), 1), SOS), source], 1)
        if not (source == EOS).any():
            source = F.pad(source, (0, 1), value=PAD)
            source[torch.arange(len(source)), (source != PAD).sum(1)] = EOS
        # Ours rounds lengths up; Yoyodyne has no more padding than its longest row needs.
        rows = [side[:, : int((side != PAD).sum(1).max())] for side in (source, self.target[batch.target])]
        padded = [data.PaddedTensor.from_tensor(side) for side in rows]
        return data.Batch(padded[0], target=padded[1])


def yoyodyne_sizes(config: Any, symbols: Symbols) -> dict[str, Any]:
    from yoyodyne.models import modules

    encoder, decoder = config.model.encoder, config.model.decoder
    return {
        "source_encoder": modules.LSTMEncoder(
            embedding_size=encoder.embedding,
            hidden_size=encoder.width // 2,  # of one direction
            layers=encoder.layers,
            dropout=encoder.dropout,
            bidirectional=True,
        ),
        "embedding_size": decoder.embedding,
        "decoder_hidden_size": decoder.width,
        "decoder_layers": decoder.layers,
        "decoder_dropout": decoder.dropout,
        "label_smoothing": config.model.label_smoothing,
        "vocab_size": symbols.index.vocab_size,
        "target_vocab_size": symbols.index.target_vocab_size,
    }


def soft_attention(config: Any, corpus: Corpus) -> Peers:
    """Yoyodyne's LSTM with attention, and a plain loop over Luong's equations."""
    from yoyodyne import models

    symbols = Symbols(corpus)
    model = models.SoftAttentionLSTMModel(**yoyodyne_sizes(config, symbols))

    def loss(batch: Batch) -> Tensor:
        theirs = symbols.batch(batch)
        found: Tensor = model.loss_func(model(theirs), theirs.target.tensor)
        return found

    vocabularies = len(corpus.source_tokenizer), len(corpus.target_tokenizer)
    plain = LuongLoop(*vocabularies, config.model.encoder, config.model.decoder)
    return {"Yoyodyne": (model, loss), "plain loop": (plain, plain.loss)}


def hard_attention(config: Any, corpus: Corpus) -> Peers:
    from yoyodyne import models

    symbols = Symbols(corpus)
    window = {"attention_context": config.model.decoder.jump, "enforce_monotonic": True}
    model = models.HardAttentionLSTMModel(**yoyodyne_sizes(config, symbols), **window)
    return {"Yoyodyne": (model, lambda batch: model(symbols.batch(batch)))}


def edit_transducer(config: Any, corpus: Corpus) -> Peers:
    """With its edit distance learned from the first 200 pairs, which changes no speed."""
    from maxwell import sed
    from yoyodyne import models

    symbols = Symbols(corpus)
    plan = BatchPlan(corpus.train, 2000, 1)
    first = symbols.batch(read_batch(corpus.train, plan.epoch(0)[0], plan))
    sides = [[row[row >= len(SPECIALS)].tolist() for row in side.tensor] for side in (first.source, first.target)]
    learned = sed.StochasticEditDistance.fit_from_data(list(zip(*sides, strict=True))[:200], epochs=1)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "sed.pkl"))
        learned.params.write_params(path)
        model = models.TransducerLSTMModel(path, index=symbols.index, **yoyodyne_sizes(config, symbols))
    return {"Yoyodyne": (model, lambda batch: model(symbols.batch(batch))[1])}


class LuongLoop(nn.Module):
    """Luong et al. 2015 with input feeding: torch.nn.LSTM reads the source, torch.nn.LSTMCell writes in a loop."""

    def __init__(self, source: int, target: int, encoder: Any, decoder: Any) -> None:
        super().__init__()
        embedding, width = decoder.embedding, decoder.width
        self.dropout = nn.Dropout(decoder.dropout)
        self.source, self.target = nn.Embedding(source, embedding), nn.Embedding(target, embedding)
        self.encoder = nn.LSTM(embedding, encoder.width // 2, batch_first=True, bidirectional=True)
        self.begin = nn.Linear(encoder.width, 2 * width)
        self.key = nn.Linear(encoder.width, width, bias=False)
        self.cell = nn.LSTMCell(2 * embedding, width)
        self.combine = nn.Linear(encoder.width + width, embedding, bias=False)

    def loss(self, batch: Batch) -> Tensor:
        mask, target = batch.source.mask, batch.target
        embedded = self.dropout(self.source(batch.source.data))
        packed = nn.utils.rnn.pack_padded_sequence(embedded, mask.sum(1), batch_first=True, enforce_sorted=False)
        walked, (final, _) = self.encoder(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(walked, batch_first=True, total_length=mask.shape[1])
        keys = self.key(memory)
        hidden, cell = torch.tanh(self.begin(torch.cat([final[0], final[1]], -1))).chunk(2, -1)
        last = memory.new_zeros(len(memory), self.target.embedding_dim)
        inputs = torch.cat([target.new_full((len(target), 1), SOS), target[:, :-1]], 1)
        attentional = []
        for token in self.dropout(self.target(inputs)).unbind(1):
            hidden, cell = self.cell(torch.cat([token, last], -1), (hidden, cell))
            weights = (keys @ hidden[:, :, None]).squeeze(-1).masked_fill(~mask, float("-inf")).softmax(-1)
            context = (weights[:, None] @ memory)[:, 0]
            last = torch.tanh(self.combine(torch.cat([context, hidden], -1)))
            attentional.append(last)
        scores = F.linear(self.dropout(torch.stack(attentional, 1)), self.target.weight)
        return F.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=PAD)


def t5(config: Any, corpus: Corpus) -> Peers:
    from transformers import T5Config, T5ForConditionalGeneration

    encoder, decoder = config.model.encoder, config.model.decoder
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=len(corpus.target_tokenizer),
            d_model=encoder.width,
            d_kv=encoder.width // encoder.heads,
            d_ff=encoder.feedforward,
            num_layers=encoder.layers,
            num_decoder_layers=decoder.layers,
            num_heads=encoder.heads,
            dropout_rate=encoder.dropout,
            feed_forward_proj="gated-silu",
            pad_token_id=PAD,
            eos_token_id=EOS,
            decoder_start_token_id=SOS,
            use_cache=False,
        )
    )

    def loss(batch: Batch) -> Tensor:
        target = batch.target
        inputs = torch.cat([target.new_full((len(target), 1), SOS), target[:, :-1]], 1)
        scores = model(
            input_ids=batch.source.data, attention_mask=batch.source.mask.long(), decoder_input_ids=inputs
        ).logits
        smoothing = config.model.label_smoothing
        return F.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=smoothing)

    return {"transformers T5": (model, loss)}


PEERS = {
    "luong": soft_attention,
    "hard-attention": hard_attention,
    "edit-transducer": edit_transducer,
    "transformer": t5,
}


def measure(file: str, rounds: int, batches: int) -> dict[str, Any]:
    """Target tokens a second of everyone: medians of rounds with the same batches in turn."""
    config, reasons = configure(file, ["train.device=cpu", "train.log_every=1000000000"])
    kind = config.model.decoder.kind
    if kind not in PEERS:
        raise SystemExit(f"{file}: found the decoder {kind!r}, expected one of {', '.join(PEERS)}")
    corpus = prepare_corpus(config.data, config.tokenizer)
    plan = BatchPlan(corpus.train, config.train.batch_tokens, config.train.seed)
    epoch = plan.epoch(0)
    torch.manual_seed(1)
    others = PEERS[kind](config, corpus)
    steps = {"Dragoman": ours(config, corpus)}
    steps |= {name: training_step(model, config.train.clip, loss) for name, (model, loss) in others.items()}
    rates: dict[str, list[float]] = {name: [] for name in steps}
    sizes = []
    for number in range(rounds + 1):  # the first one warms up
        places = [(number * batches + place) % len(epoch) for place in range(batches)]
        read = [read_batch(corpus.train, epoch[place], plan) for place in places]
        tokens = sum(int((batch.target != PAD).sum()) for batch in read)
        turns = list(steps.items())
        for name, step in turns[number % len(turns) :] + turns[: number % len(turns)]:
            begin = time.perf_counter()
            for batch in read:
                step(batch)
            if number:
                rates[name].append(tokens / (time.perf_counter() - begin))
        sizes.append(tokens / batches)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    return {
        "file": Path(file).name,
        "model": next(line.partition(":")[2].split("(")[0].strip() for line in reasons if line.startswith("model:")),
        "pairs": len(corpus.train),
        "tokens_a_step": round(statistics.mean(sizes)),
        "parameters": {
            name: sum(weight.numel() for weight in model.parameters()) for name, (model, _) in others.items()
        },
        "tokens_per_second": medians,
        "spread": {name: [min(found), max(found)] for name, found in rates.items()},
        "times_as_fast": {name: medians["Dragoman"] / rate for name, rate in medians.items() if name != "Dragoman"},
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| model | pairs | Dragoman, target tokens/s | peer | its tokens/s | times as fast |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        for name, ratio in row["times_as_fast"].items():
            rates = [row["tokens_per_second"][who] for who in ("Dragoman", name)]
            lines.append(
                f"| {row['model']} | {row['pairs']:,} | {rates[0]:,.0f} | {name} | {rates[1]:,.0f} | {ratio:.2f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="pairs, one file for each model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=4, help="steps of everyone in a round")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "cpu_default_models.json")
    arguments = parser.parse_args()
    rows = [measure(file, arguments.rounds, arguments.batches) for file in arguments.files]
    facts = {
        "commit": commit(),
        "machine": processor(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "versions": {name: importlib.metadata.version(package) for name, package in MEASURED.items()},
        "rounds": arguments.rounds,
        "batches": arguments.batches,
        "files": rows,
    }
    print(table(rows))
    arguments.results.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
