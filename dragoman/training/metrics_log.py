"""The metrics of a run: one JSON object a line in metrics.jsonl, and optionally TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dragoman.errors import MissingExtraError
from dragoman.files import append_text, make_folder, write_text
from dragoman.training.checkpoints import TrainingState


def tensorboard_writer() -> Any:
    """TensorBoard's SummaryWriter class; MissingExtraError if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtraError("train.tensorboard", "tensorboard", "tensorboard") from None
    return SummaryWriter


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; lines that are not rows are left out, such as half a line of a killed process."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if is_row(row):
            rows.append(row)
    return rows


def is_row(row: Any) -> bool:
    """Whether a JSON value is a row as the trainer writes it."""
    if not isinstance(row, dict) or "step" not in row:
        return False
    if any(type(row.get(name, 0)) is not int for name in ("step", "epoch", "tokens")):
        return False
    if "valid" not in row:
        return are_numbers([row.get(name) for name in ("loss", "tokens_per_second", "seconds")])
    scores = row["valid"]
    return isinstance(scores, dict) and bool(scores) and are_numbers([row.get("seconds"), *scores.values()])


def are_numbers(values: list[Any]) -> bool:
    """Whether all values are numbers of JSON."""
    return all(type(value) in (int, float) for value in values)


class MetricsLog:
    """Appends the training and validation metrics of a run to metrics.jsonl."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.path = run / "metrics.jsonl"
        self._tensorboard: Any = None

    def enable_tensorboard(self, step: int) -> None:
        """Also write to TensorBoard; what it has of steps after `step` is discarded."""
        self._tensorboard = tensorboard_writer()(str(make_folder(self.run / "tensorboard")), purge_step=step + 1)

    def append(self, row: dict[str, Any]) -> None:
        """Add one row. A row of a validation holds its scores under the key "valid"."""
        append_text(self.path, json.dumps(row) + "\n")
        if self._tensorboard is not None:
            prefix = "valid" if "valid" in row else "train"
            for name, value in row.get("valid", row).items():
                if isinstance(value, int | float) and name not in ("step", "epoch"):
                    self._tensorboard.add_scalar(f"{prefix}/{name}", value, row["step"])

    def truncate(self, state: TrainingState) -> None:
        """Remove the rows after a restored checkpoint: those steps will be trained again."""
        if not self.path.exists():
            return
        rows = [
            row
            for row in read_rows(self.path)
            if row["step"] <= (state.validated_step if "valid" in row else state.step)
        ]
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in rows))

    def first_loss(self) -> float | None:
        """The loss of step 1; None if the log does not hold it."""
        try:
            with self.path.open(encoding="utf-8") as file:
                row = json.loads(file.readline())
                return float(row["loss"]) if row["step"] == 1 else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
