"""Decoding on one GPU, side by side with Hugging Face Marian's generate: same sizes, bfloat16, same number of tokens.

    python benchmarks/gpu_decoding.py [--sentences 512] [--kind plain] [--json FILE]

The weights are random and never choose the end of a sentence, so all outputs have 32 tokens. Both read tokens from GPU
memory and return rows of tokens; ours are plain Python values with scores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_training as training
import torch

from dragoman.data.tokenizers.base import EOS

ROOT = Path(__file__).resolve().parents[1]
TOKENS = 32


def ours(sentences: int, beam: int, plain: bool, kind: str = "plain") -> Callable[[], Any]:
    """Our search over a model in half precision; `plain`: without captured steps; `kind`: of Transformer."""
    from dragoman.decoding.config import SearchConfig
    from dragoman.decoding.cuda_graphs import _DECODERS, GraphDecoder
    from dragoman.decoding.searches import search
    from dragoman.runs.tasks import config as configuration
    from dragoman.runs.tasks.translate import build_model

    stack = {
        "kind": "transformer", "width": training.WIDTH, "layers": training.LAYERS, "heads": training.HEADS,
        "feedforward": training.INNER, **training.KINDS[kind],
    }  # fmt: skip
    table = {"tie": "all", "output_bias": True, "encoder": stack, "decoder": stack}
    torch.manual_seed(1)
    config = configuration.build({"data": {"train": "none.tsv"}, "model": table})
    model: Any = build_model(config, training.VOCABULARY, training.VOCABULARY).cuda().eval()
    with torch.no_grad():
        model.output.bias[EOS] = -1e4
    model.bfloat16()
    batch = training.batch(sentences).to(torch.device("cuda"))
    how = SearchConfig(beam=beam, max_length=TOKENS - 1)
    if plain:
        _DECODERS.setdefault(model, GraphDecoder(model)).enabled = False

    def decode() -> Any:
        found = search(model, batch, how, 1.0)
        assert len(found) == sentences
        assert len(found[0][0].tokens) == TOKENS
        return found

    return decode


def marian(sentences: int, beam: int) -> Callable[[], Any]:
    """Hugging Face's generate."""
    model: Any = training.marian().cuda().eval().bfloat16()
    batch = training.batch(sentences)
    source, mask = batch.source.data.cuda(), batch.source.mask.long().cuda()
    settings = {"num_beams": beam, "do_sample": False, "min_new_tokens": TOKENS, "max_new_tokens": TOKENS}

    def decode() -> Any:
        with torch.no_grad():
            return model.generate(source, attention_mask=mask, **settings).tolist()

    return decode


def main() -> None:
    """Measure, print, write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=512)
    parser.add_argument("--kind", choices=training.KINDS, default="plain", help="of our Transformer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "gpu_decoding.json")
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": torch.cuda.get_device_name(), "torch": torch.__version__}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    found |= {"commit": commit.stdout.strip(), "sentences": options.sentences, "tokens": TOKENS}
    for beam in (1, 5):
        ways = {
            "Hugging Face Marian": marian(options.sentences, beam),
            "dragoman, plain steps": ours(options.sentences, beam, True, options.kind),
            "dragoman": ours(options.sentences, beam, False, options.kind),
        }
        for decode in ways.values():
            for _ in range(4):
                decode()
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, decode in ways.items():
                times[name].append(training.milliseconds(decode, 2))
        peer = statistics.median(times["Hugging Face Marian"])
        print(f"| beam {beam}, {options.sentences} × {TOKENS} | ms | least to most | sentences/s | times Marian |")
        print("|---|---|---|---|---|")
        for name, some in times.items():
            middle = statistics.median(some)
            speed, ratio = options.sentences / middle * 1000, peer / middle
            print(f"| {name} | {middle:.1f} | {min(some):.1f} to {max(some):.1f} | {speed:,.0f} | {ratio:.2f} |")
            found[f"beam {beam}, {name}"] = {"median": middle, "least": min(some), "most": max(some), "ratio": ratio}
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
