"""Compare a trained run with copying the input: a model that loses to that is of no use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dragoman.runs import Run
from dragoman.runs.tasks import TranslateConfig
from dragoman.scoring import metrics_by_name, score_table
from dragoman.training import Seq2SeqValidator

METRIC = "chrf"  # graded, so that it also compares outputs that are never quite right


def copying_line(folder: str | Path) -> str:
    """A warning if copying the input scores as well on the validation inputs as the run at its best; else empty.

    Empty too if there is nothing to compare: another task, phonemes, or no text was decoded.
    """
    run = Run(folder)
    config = run.config
    best: list[dict[str, Any]] = [row["valid"] for row in run.metrics() if METRIC in row.get("valid", {})]
    if not isinstance(config, TranslateConfig) or config.data.units == "phonemes" or config.model.kind == "copy":
        return ""
    if not best:
        return ""
    validator = run.task.validator(config, run.task.prepare(config), torch.device("cpu"))
    if not isinstance(validator, Seq2SeqValidator) or not validator.texts:
        return ""
    copied = float(score_table(validator.texts, validator.references, (METRIC,), units="words")[METRIC])
    score = max(row[METRIC] for row in best)
    if score > copied:
        return ""
    shown = [metrics_by_name()[METRIC].format(value) for value in (score, copied)]
    return (
        f"copying the input has {METRIC} {shown[1]} on the validation pairs, the run {shown[0]}: it needs more "
        "training or data; --time 20m tries other models"
    )
