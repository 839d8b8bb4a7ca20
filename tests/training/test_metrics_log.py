"""The rows of metrics.jsonl that can be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.training.metrics_log import read_rows

TRAINED = {"step": 1, "loss": 2.0, "tokens_per_second": 3.0, "seconds": 4.0}
VALIDATED = {"step": 1, "valid": {"loss": 2.0, "bleu": 3}, "seconds": 4.0}


@pytest.mark.parametrize(
    "row",
    [
        TRAINED | {"seconds": "4"}, VALIDATED | {"seconds": "4"}, {"step": 1, "valid": {"loss": 2.0}},
        VALIDATED | {"valid": {"loss": 1.0, "bleu": "high"}}, VALIDATED | {"valid": {}},
        VALIDATED | {"valid": 3}, TRAINED | {"step": True}, TRAINED | {"epoch": float("inf")}, [1], None,
    ],
)  # fmt: skip
def test_rows_that_the_trainer_cannot_have_written_are_left_out(row: Any, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in (TRAINED, row, VALIDATED)))
    assert read_rows(path) == [TRAINED, VALIDATED]
