"""Runs of every task after two steps of training: right or wrong, a server's answers must be those of `predict`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from dragoman.base import config as settings
from dragoman.runs import train
from dragoman.runs.tasks.config import build
from dragoman.training.display import Display
from tests.conftest import QUICK, SMALL, call, quiet_machine, words, write_rows
from tests.runs.tasks import test_labels_end_to_end as labels
from tests.runs.tasks import test_language_model as language_models
from tests.runs.tasks import test_masked_language_model as masked
from tests.runs.tasks import test_media_end_to_end as media


def quick(table: dict[str, Any], folder: Path) -> Path:
    """A run after two steps."""
    few = {"steps": 2, "validate_every": 2, "save_every": 2, "metric": "loss", "device": "cpu"}
    train(build(settings.merge(table, {"train": few})), folder, Display(quiet=True))
    return folder


def tiny_runs(place: Path) -> None:
    """Runs of all tasks but translation, by name, in the folder `runs`."""
    for one in (labels, masked):
        one.write_data(place)
    media.write_data(place)
    (place / "text.txt").write_text(language_models.some_text(200, 1), encoding="utf-8")
    with quiet_machine(place / "cache"):
        for name in ("classify", "regress", "tag"):
            quick(labels.table(name, place), place / "runs" / name)
        for name in ("speech", "captions"):
            quick(media.table(name, place), place / "runs" / name)
        mask = next(iter(masked.MODELS))
        quick(masked.table(mask, place), place / "runs" / "mask")
        quick(language_models.table("lstm", place), place / "runs" / "characters")


def translation_run(place: Path) -> Path:
    """A run that writes words in capitals, trained until it does so mostly right."""
    some = words(330)
    write_rows(place / "pairs.tsv", [(word, word.upper()) for word in some])
    with quiet_machine(place / "cache"), contextlib.chdir(place):
        result = call("train", "pairs.tsv", "--run", "ab-cd", *SMALL, *QUICK)
    assert result.code == 0, result.err
    return place / "ab-cd"
