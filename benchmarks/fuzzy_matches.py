"""Do fuzzy matches of a translation memory help? Neural fuzzy repair against adaptation on retrieved neighbours.

    python benchmarks/fuzzy_matches.py DATA FOLDER [--sets multi30k,tatoeba] [--steps 6000] [--device cuda]

DATA has the practice sets. A half of the training pairs trains two models, the usual one (`plain`) and one that reads
the translation of the best match (`repair`, data.memory = 0.5). The memory has both halves. Three ways translate the
test sources: `plain` alone; `repair` with the memory; and `plain` after a few steps on the neighbours of each source
(`adapt`), from its own weights again for the next source. BLEU by the score of the best match: 100 % is what the memory
itself returns for exact matches, beside what the models write for them. The number of steps and the learning rate of
`adapt` are chosen on the validation part. The same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


import torch

import dragoman
from dragoman.data.translation_memory import Match, TranslationMemory

CLASSES = ((1.0, "100 %"), (0.9, "90–99 %"), (0.7, "70–89 %"), (0.0, "below"))
LEAST = 0.5  # the score from which a match is read or adapted on
NEIGHBOURS = 8
TUNED = [(steps, rate) for steps in (2, 4, 8) for rate in (1e-4, 3e-4)]  # of `adapt`, chosen on validation pairs
TATOEBA = 60_000  # training pairs of Tatoeba, in both halves together
VALIDATED = 150  # validation pairs with neighbours, for that choice
Pairs = list[tuple[str, str]]


def lines_of(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def read_parts(data: Path, name: str) -> dict[str, Pairs]:
    """Training, validation and test pairs, English to German."""
    if name == "multi30k":
        pairs = {}
        for part, file in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr")):
            english, german = (lines_of(data / name / f"{file}.{end}.gz") for end in ("en", "de"))
            pairs[part] = list(zip(english, german, strict=True))
        return pairs
    files = {"train": "train", "valid": "dev", "test": "test"}
    rows = {part: lines_of(data / "tatoeba_pairs" / f"{file}.eng-deu.tsv.gz") for part, file in files.items()}
    # The file goes from short to long sentences.
    rows["train"] = rows["train"][:: max(1, len(rows["train"]) // TATOEBA)]
    return {part: [(row.split("\t")[0], row.split("\t")[1]) for row in lines] for part, lines in rows.items()}


def train_models(folder: Path, parts: dict[str, Pairs], options: Any) -> dict[str, Any]:
    """The plain model and the one that reads matches, of the same half of the pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, pairs in (("train", parts["train"][::2]), ("valid", parts["valid"])):
        rows = ({"source": source, "target": target} for source, target in pairs)
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    runs = {}
    for name, least in (("plain", 0.0), ("repair", LEAST)):
        config = {
            "preset": options.preset,
            "data": {"train": str(folder / "train.jsonl"), "valid": str(folder / "valid.jsonl"), "memory": least},
            "tokenizer": {"source": {"kind": "subwords", "vocab_size": options.vocabulary}},
            "train": {
                "steps": options.steps, "batch_tokens": 8192, "validate_every": max(1, options.steps // 12),
                "save_every": max(1, options.steps // 4), "metric": "bleu", "decode": 500, "device": options.device,
                "optimizer": {"learning_rate": 1e-3, "warmup": max(1, options.steps // 10), "schedule": "cosine"},
            },
        }  # fmt: skip
        started = time.time()
        runs[name] = dragoman.train(config, folder / name, quiet=True)
        print(f"{name}: trained in {time.time() - started:.0f} s", file=sys.stderr, flush=True)
    return runs


def adapted_outputs(
    run: Any, sources: Sequence[str], neighbours: Sequence[Sequence[Match]], steps: int, rate: float
) -> Iterator[str]:
    """Outputs of the model after steps of Adam on the neighbours of each source; its weights are restored each time."""
    model, device = run.model, run.device
    before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    for source, matches in zip(sources, neighbours, strict=True):
        if matches:
            pairs = run.codec.encode_pairs([match.source for match in matches], [match.target for match in matches])
            batch = run.collator.collate(*pairs).to(device)
            optimizer = torch.optim.Adam(model.parameters(), lr=rate)
            model.eval()  # without dropout: a few steps must not be noise
            for _ in range(steps):
                loss = model(batch)
                optimizer.zero_grad()
                (loss.total / loss.count).backward()
                optimizer.step()
        yield run.predict([source], engine="torch")[0].text
        if matches:
            model.load_state_dict(before)


def choose_adaptation(run: Any, valid: Pairs, memory: TranslationMemory) -> tuple[int, float]:
    """Steps and learning rate with the best BLEU on validation pairs that have neighbours."""
    chosen = [(pair, memory.fuzzy(pair[0], LEAST, NEIGHBOURS, other=True)) for pair in valid[: 10 * VALIDATED]]
    chosen = [item for item in chosen if item[1]][:VALIDATED]
    if not chosen:
        return TUNED[0]
    sources, references = [pair[0] for pair, _ in chosen], [pair[1] for pair, _ in chosen]

    def bleu(setting: tuple[int, float]) -> float:
        outputs = list(adapted_outputs(run, sources, [matches for _, matches in chosen], *setting))
        return dragoman.score(outputs, references, "bleu")["bleu"]

    scores = {setting: bleu(setting) for setting in TUNED}
    shown = ", ".join(f"{steps} × {rate:g}: {score:.1f}" for (steps, rate), score in scores.items())
    print(f"adapt on {len(chosen)} validation pairs: {shown}", file=sys.stderr, flush=True)
    return max(scores, key=lambda setting: scores[setting])


def report(name: str, data: Path, folder: Path, options: Any) -> dict[str, Any]:
    """Print the table of a set."""
    parts = read_parts(data, name)
    parts["test"] = parts["test"][: options.test]
    runs = train_models(folder, parts, options)
    memory = TranslationMemory(parts["train"])
    sources, references = map(list, zip(*parts["test"], strict=True))
    neighbours = [memory.fuzzy(source, LEAST, NEIGHBOURS) for source in sources]
    best = [matches[0].score if matches else 0.0 for matches in neighbours]
    steps, rate = choose_adaptation(runs["plain"], parts["valid"], memory)
    outputs = {"plain": [output.text for output in runs["plain"].predict(sources)]}
    # An exact match is read as any other here: what `--memory` returns for it is the column "memory".
    joined = [
        f"{matches[0].target}\t{source}" if matches else f"\t{source}"
        for source, matches in zip(sources, neighbours, strict=True)
    ]
    outputs["repair"] = [output.text for output in runs["repair"].predict(joined)]
    started = time.time()
    outputs["adapt"] = list(adapted_outputs(runs["plain"], sources, neighbours, steps, rate))
    seconds = (time.time() - started) / len(sources)
    outputs["memory"] = [matches[0].target if matches else "" for matches in neighbours]
    counts = f"{len(parts['train'][::2]):,} training pairs, memory of {len(memory):,}, {len(sources):,} test sources"
    print(f"\n{name}: {counts}; adapt: {steps} steps of {rate:g}, {seconds:.2f} s a source\n")
    print(f"| best match | sources | {' | '.join(outputs)} |\n|---|---|{'---|' * len(outputs)}")
    table: dict[str, Any] = {}
    for number, (least, label) in enumerate((*CLASSES, (-1.0, "all"))):
        most = 2.0 if number in (0, len(CLASSES)) else CLASSES[number - 1][0]
        rows = [index for index, score in enumerate(best) if least <= score < most]
        texts = [references[index] for index in rows]
        scores = {
            system: dragoman.score([own[index] for index in rows], texts, "bleu")["bleu"] if rows else None
            for system, own in outputs.items()
        }
        table[label] = {"sources": len(rows), **scores}
        shown = " | ".join("–" if score is None else f"{score:.1f}" for score in scores.values())
        print(f"| {label} | {len(rows):,} | {shown} |", flush=True)
    return {"adapt": {"steps": steps, "rate": rate, "seconds": seconds}, "bleu": table}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default="multi30k,tatoeba")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--preset", default="transformer-small")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--test", type=int, default=1000, help="test sources at most; adapting takes most of the time")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    results = {name: report(name, options.data, options.folder / name, options) for name in options.sets.split(",")}
    (options.folder / "fuzzy_matches.json").write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
