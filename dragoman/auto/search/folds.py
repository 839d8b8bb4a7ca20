"""Cross-validation: split the training pairs into folds when too few pairs are set aside to choose by."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from dragoman.data.config import tags_of
from dragoman.data.examples import Example
from dragoman.data.split import read_examples, source_hash
from dragoman.files import write_text
from dragoman.tasks.config import Config
from dragoman.tasks.table import task_of

FOLDS = 3
FEW = 150  # validation pairs below which a score is too noisy to choose by


def needed_folds(config: Config, validation: int) -> int:
    """How many folds a search needs; 1: the validation pairs suffice, or the files have language tags."""
    return 1 if validation >= FEW or tags_of(config.data.train) else FOLDS


def write_folds(config: Config, folder: Path, folds: int) -> list[Config]:
    """Write the parts of every fold, and return a configuration for each. Pairs of one source stay together."""
    example_format = task_of(config).example_format(config)
    items = read_examples(config.data, config.data.train, example_format=example_format)
    examples = [item for item in items if isinstance(item, Example)]
    hashes = sorted({source_hash(example) for example in examples})
    fold_of = {source: index % folds for index, source in enumerate(hashes)}
    rows: list[dict[str, Any]] = [example_format.to_record(example) for example in examples]
    configs = []
    for fold in range(folds):
        paths = {}
        for part, held_out in (("train", False), ("valid", True)):
            chosen = [row for example, row in zip(examples, rows, strict=True)
                      if (fold_of[source_hash(example)] == fold) == held_out]  # fmt: skip
            paths[part] = folder / f"fold-{fold + 1}-{part}.jsonl"
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen)
            write_text(paths[part], text)
        data = replace(
            config.data, train=str(paths["train"]), valid=str(paths["valid"]), columns=tuple(rows[0]), header=False
        )
        configs.append(replace(config, data=data))
    return configs
