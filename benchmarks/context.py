"""What a model gains from the sentence before: names that only it tells.

    python benchmarks/context.py DATA FOLDER [STEPS]

DATA has the practice sets, FOLDER gets data and runs. Documents of two sentences are made from pairs of Tatoeba
(English–German) with "Tom", who becomes one of forty persons. The second source begins with "He" or "She", its target
with the name. The same small Transformer is trained with data.context = 0 and 1.
"""

from __future__ import annotations

import gzip
import random
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import dragoman

PERSONS = {
    "He": "Ben David Emil Felix Georg Hans Ivan Jakob Karl Leo Max Noah Oskar Paul Ralf Simon Theo Udo Victor Walter",
    "She": "Anna Clara Doris Emma Frida Greta Helga Ida Julia Karin Lea Marta Nina Olga Paula Rita Sara Tina Ute Vera",
}
TOM = re.compile(r"\bTom\b")
DOCUMENTS = {"train": 5_000, "valid": 300, "test": 500}
MODEL = (
    "preset=transformer-tiny", "tokenizer.source.kind=subwords", "tokenizer.source.vocab_size=1500",
    "model.encoder.layers=2", "model.encoder.width=64", "model.encoder.heads=4", "model.encoder.feedforward=256",
    "model.decoder.layers=2", "model.decoder.width=64", "model.decoder.heads=4", "model.decoder.feedforward=256",
    "train.batch_tokens=1024", "train.metric=loss", "train.decode=0", "train.validate_every=200",
    "train.save_every=400", "train.optimizer.learning_rate=4e-3", "train.optimizer.warmup=100",
    "train.optimizer.schedule=cosine", "train.patience=0",
)  # fmt: skip


def pairs_of(data: Path) -> list[tuple[str, str]]:
    """Short pairs with one Tom on each side."""
    with gzip.open(data / "tatoeba_pairs" / "train.eng-deu.tsv.gz", "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t")[:2] for line in file]
    return [
        (source, target) for source, target in rows
        if len(source.split()) <= 7 and len(TOM.findall(source)) == len(TOM.findall(target)) == 1
        and not re.search(r"\b(Mary|Maria|he|she|him|her|his)\b", source, re.IGNORECASE)
    ]  # fmt: skip


def write_documents(data: Path, folder: Path) -> None:
    """Files of documents with a blank line between them; no pair is in two files."""
    draw, pairs = random.Random(1), pairs_of(data)
    draw.shuffle(pairs)
    starts, others = list[tuple[str, str]](), list[tuple[str, str]]()
    for source, target in pairs:
        both = source.startswith("Tom ") and target.startswith("Tom ")
        (starts if both else others).append((source, target))
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(DOCUMENTS.values())
    for name, count in DOCUMENTS.items():
        first, second = ([part.pop() for _ in range(len(part) * count // total)] for part in (others, starts))
        total -= count
        blocks = []
        for _ in range(count):
            pronoun, persons = draw.choice(list(PERSONS.items()))
            person = draw.choice(persons.split())
            one = [TOM.sub(person, text) for text in draw.choice(first)]
            source, target = draw.choice(second)
            two = [pronoun + source.removeprefix("Tom"), TOM.sub(person, target)]
            blocks.append("\t".join(one) + "\n" + "\t".join(two) + "\n")
        (folder / f"{name}.tsv").write_text("\n".join(blocks), encoding="utf-8")


def main() -> None:
    data, folder, steps = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "2000"
    if not (folder / "test.tsv").exists():
        write_documents(data, folder)
    blocks = (folder / "test.tsv").read_text(encoding="utf-8").strip().split("\n\n")
    rows = [[line.split("\t") for line in block.split("\n")] for block in blocks]
    print("| `data.context` | BLEU, first sentences | BLEU, second sentences | right name |\n|---|---|---|---|")
    for size in (0, 1):
        files = {name: folder / f"{name}.tsv" for name in ("train", "valid")}
        if not size:  # without context a blank line is a fault
            files = {name: folder / f"{name}-lines.tsv" for name in files}
            for name, path in files.items():
                path.write_text(
                    (folder / f"{name}.tsv").read_text(encoding="utf-8").replace("\n\n", "\n"), encoding="utf-8"
                )
        run = dragoman.train(
            files["train"], folder / f"run-{size}", f"data.valid={files['valid']}", f"data.context={size}",
            f"train.steps={steps}", *MODEL, quiet=True,
        )  # fmt: skip
        outputs = run.predict([text for document in rows for text in (document[0][0], document[1][0], "")])
        texts = [[output.text for output in outputs[place::3]] for place in (0, 1)]
        bleu = [dragoman.score(texts[place], [row[place][1] for row in rows], "bleu")["bleu"] for place in (0, 1)]
        names = [row[1][1].split()[0].strip(".,!?") for row in rows]
        right = sum(name in text for name, text in zip(names, texts[1], strict=True)) / len(rows)
        print(f"| {size} | {bleu[0]:.1f} | {bleu[1]:.1f} | {100 * right:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
