"""Decoding speed on a CPU: our torch search, our CTranslate2 engine, plain CTranslate2, Hugging Face generate.

    python benchmarks/cpu_decoding.py RUN --data FOLDER [--sentences 256] [--rounds 5]

RUN is a trained Transformer; FOLDER has Multi30k's test_2016_flickr.en.gz. The first three have the same weights and
outputs; a Hugging Face Marian of the same sizes has random weights and generates as many tokens. Rounds are
interleaved, because other work on the machine comes and goes; the table shows the median and, in brackets, minimum
and maximum. Writes benchmarks/results/cpu_decoding.json and .md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import dragoman
from dragoman.inference.engine import ctranslate2 as exchange
from dragoman.inference.engine import ctranslate2_export
from dragoman.inference.engine.engine import EngineSearch
from dragoman.inference.predictor import Predictor
from dragoman.models import kernels
from dragoman.models.config import TransformerConfig

Decode = Callable[[int], int]  # beam → tokens written
BATCH = 64


def ours(run: str, texts: list[str], **how: str) -> Decode:
    """As `dragoman predict` decodes: text in, text out."""
    predictor = dragoman.load(run, "cpu", scores=False, **how)

    def decode(beam: int) -> int:
        found = predictor.predict(texts, beam=beam, batch_size=BATCH)
        return sum(len(one.tokens) + 1 for one in found)

    return decode


def batch_after_batch(decode: Decode) -> Decode:
    """The same without a thread for each batch (`kernels/cpu_workers.py`): all threads share every operation."""

    def alone(beam: int) -> int:
        with patch.object(kernels, "map_batches", lambda work, batches, workers: map(work, batches)):
            return decode(beam)

    return alone


def plain(predictor: Predictor, texts: list[str], precision: str) -> Decode:
    """CTranslate2 called as its documentation does, on tokens that are ready: no text, no order, no limits."""
    tokenizers = (predictor.source_tokenizer, predictor.target_tokenizer)
    run = predictor.run
    folder = ctranslate2_export.exported(run.folder, run.weights_path(), predictor.model, tokenizers, precision)
    threads = torch.get_num_threads()
    translator = exchange.translator(folder, compute_type=precision, inter_threads=threads, intra_threads=1)
    names = exchange.names(tokenizers[0])
    sources = [[names[token] for token in tokenizers[0].encode(text)] for text in texts]

    def decode(beam: int) -> int:
        found = translator.translate_batch(sources, beam_size=beam, max_batch_size=BATCH)
        return sum(len(one.hypotheses[0]) + 1 for one in found)

    return decode


def marian(predictor: Predictor, texts: list[str], lengths: list[int]) -> Decode:
    """generate of a Marian of the same sizes, in batches of like lengths, made to write the mean of theirs."""
    from transformers import MarianConfig, MarianMTModel

    stack = predictor.config.model.encoder
    assert isinstance(stack, TransformerConfig)
    size = len(predictor.target_tokenizer)
    torch.manual_seed(1)
    model = MarianMTModel(
        MarianConfig(
            vocab_size=size,
            d_model=stack.width,
            encoder_layers=stack.layers,
            decoder_layers=predictor.config.model.decoder.layers,
            encoder_attention_heads=stack.heads,
            decoder_attention_heads=stack.heads,
            encoder_ffn_dim=stack.feedforward,
            decoder_ffn_dim=stack.feedforward,
            pad_token_id=0,
            eos_token_id=3,
            forced_eos_token_id=None,
            decoder_start_token_id=2,
        )
    ).eval()
    sources = predictor.source_tokenizer.encode_batch(texts)
    order = sorted(range(len(sources)), key=lambda place: len(sources[place]))

    @torch.no_grad()
    def decode(beam: int) -> int:
        written = 0
        for first in range(0, len(order), BATCH):
            places = order[first : first + BATCH]
            longest = max(len(sources[place]) for place in places)
            rows = torch.tensor([[*sources[place], *[0] * (longest - len(sources[place]))] for place in places])
            new = round(statistics.mean(lengths[place] for place in places))
            model.generate(
                rows, attention_mask=rows != 0, num_beams=beam, min_new_tokens=new, max_new_tokens=new, do_sample=False
            )
            written += new * len(places)
        return written

    return decode


def ending(predictor: Predictor, texts: list[str], beam: int) -> list[str]:
    """Without the texts on which a model that learned little never ends: the engine leaves those to our own search."""
    engine = predictor.backend(predictor.defaults).engines.engine(lambda: predictor.model)
    assert engine is not None
    sources = predictor.source_tokenizer.encode_batch(texts)
    config = replace(predictor.config.search, beam=beam)
    limits = config.limit(torch.tensor([len(row) + 1 for row in sources]), predictor.length_ratio).tolist()
    found = engine.search(sources, limits, EngineSearch(config, batch_size=BATCH, scores=False))
    kept = sorted(place for place, hypotheses in found if hypotheses is not None)
    return [texts[place] for place in kept]


def versions() -> dict[str, str]:
    """Of all that is measured."""
    found = {"dragoman": dragoman.__version__, "torch": torch.__version__, "python": platform.python_version()}
    for name in ("ctranslate2", "transformers"):
        try:
            found[name] = __import__(name).__version__
        except ImportError:
            found[name] = "missing"
    return found


def commit() -> str:
    """What the code is at."""
    told = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return told.stdout.strip()


def table(result: dict[str, Any]) -> str:
    """As Markdown."""
    beams = result["settings"]["beams"]
    lines = [
        "| tokens/s | " + " | ".join("greedy" if beam == 1 else f"beam {beam}" for beam in beams) + " |",
        "|---|" + "---|" * len(beams),
    ]
    for name, rows in result["tokens_per_second"].items():
        cells = [f"{row['median']:,.0f} ({row['lowest']:,.0f}–{row['highest']:,.0f})" for row in rows.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--only", nargs="+", default=[""], help="run nobody but those with one of these in their name")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "cpu_decoding.json")
    given = parser.parse_args()
    with gzip.open(given.data / "test_2016_flickr.en.gz", "rt", encoding="utf-8") as file:
        texts = [line.rstrip("\n") for line in file][: given.sentences]
    predictor = dragoman.load(given.run, "cpu", engine="torch")
    asked = len(texts)
    texts = ending(dragoman.load(given.run, "cpu", engine="ctranslate2"), texts, max(given.beams))
    lengths = [len(one.tokens) + 1 for one in predictor.predict(texts, beam=1)]
    peers: dict[str, Decode] = {
        "Dragoman, torch": ours(given.run, texts, engine="torch"),
        "Dragoman, torch, batch after batch": batch_after_batch(ours(given.run, texts, engine="torch")),
        "Dragoman, engine float32": ours(given.run, texts, engine="ctranslate2"),
        "CTranslate2 float32": plain(predictor, texts, "float32"),
        "Dragoman, engine int8": ours(given.run, texts, engine="ctranslate2", precision="int8"),
        "CTranslate2 int8": plain(predictor, texts, "int8"),
        "Hugging Face Marian": marian(predictor, texts, lengths),
    }
    peers = {name: decode for name, decode in peers.items() if any(part in name for part in given.only)}
    speeds: dict[str, dict[int, list[float]]] = {name: {beam: [] for beam in given.beams} for name in peers}
    for number in range(given.rounds + 1):
        for beam in given.beams:
            for name, decode in peers.items():
                started = time.perf_counter()
                tokens = decode(beam)
                seconds = time.perf_counter() - started
                if number:  # the first round warms up
                    speeds[name][beam].append(tokens / seconds)
                    print(f"{number} {name}, beam {beam}: {tokens / seconds:,.0f}", flush=True)
    result = {
        "commit": commit(),
        "machine": {"processor": platform.processor() or platform.machine(), "threads": torch.get_num_threads()},
        "versions": versions(),
        "settings": {
            "beams": given.beams,
            "batch": BATCH,
            "sentences": len(texts),
            "left_out_as_never_ending": asked - len(texts),
            "rounds": given.rounds,
            "mean_length": statistics.mean(lengths),
            "parameters": sum(part.numel() for part in predictor.model.parameters()),
        },
        "tokens_per_second": {
            name: {
                str(beam): {"median": statistics.median(row), "lowest": min(row), "highest": max(row)}
                for beam, row in rows.items()
            }
            for name, rows in speeds.items()
        },
    }
    given.out.parent.mkdir(exist_ok=True)
    given.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    given.out.with_suffix(".md").write_text(table(result), encoding="utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
