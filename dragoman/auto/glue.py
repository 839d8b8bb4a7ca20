"""The scores of GLUE as published, to stand beside one's own (Devlin et al. 2019, table 1: the test server's)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

TASKS = ("MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE")
# The scores of the tasks, then the average that is printed there.
PUBLISHED = {
    "best before GPT": (80.6, 80.1, 66.1, 82.3, 93.2, 35.0, 81.0, 86.0, 61.7, 74.0),
    "BiLSTM + ELMo + attention": (76.4, 76.1, 64.8, 79.8, 90.4, 36.0, 73.3, 84.9, 56.8, 71.0),
    "GPT": (82.1, 81.4, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0, 75.1),
    "BERT base": (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4, 79.6),
    "BERT large": (86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1, 82.1),
}


def published_rows(tasks: Iterable[str]) -> list[dict[str, Any]]:
    """Published systems with all tasks of GLUE; nothing if none of these tasks is one of GLUE's."""

    def plain(name: str) -> str:
        return re.sub(r"[^a-z0-9]|pretrained", "", name.lower())

    if not {plain(name) for name in tasks} & {"mnli", *map(plain, TASKS)}:
        return []
    return [
        {"name": name, "scores": dict(zip(TASKS, scores[:-1], strict=True)), "average": scores[-1]}
        for name, scores in PUBLISHED.items()
    ]
