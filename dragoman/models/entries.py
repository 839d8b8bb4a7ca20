"""How an encoder or decoder is registered: one entry in a table (`encoders/sequence.py`, `registry.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One architecture: its settings, its module and settings for the contract tests."""

    config: type  # a frozen dataclass with `kind: ClassVar[str]`
    module: Callable[..., Any]  # encoders: (config, embedding or features); decoders: (config, embedding, memory width)
    example: Any  # tiny settings without dropout: the contract tests run every law over them
    learner: Any = None  # settings that learn to copy and reverse four words in 180 steps; None: the example
    scales_embeddings: bool = False  # it multiplies its embeddings by √width, as the Transformer does
    monotone: bool = False  # it aligns from left to right, so nobody expects it to reverse words
    graph_blocker: str = ""  # why a training step with it cannot be captured as a CUDA graph


def table_of(*entries: Entry) -> dict[type, Entry]:
    """Index entries by the class of their settings."""
    table = {entry.config: entry for entry in entries}
    assert len({config.kind for config in table}) == len(entries), "two entries of one kind"  # type: ignore[attr-defined]
    return table


def union_of(table: Mapping[type, Entry]) -> Any:
    """The union of all settings of a table, which the settings loader reads at run time."""
    return reduce(or_, table)
