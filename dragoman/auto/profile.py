"""Statistics of the data from which the configuration is chosen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from dragoman.data.config import DataConfig, Files, paths_of
from dragoman.data.examples import Fault
from dragoman.data.fault_messages import MAX_FAULTS, fault_message
from dragoman.data.split import read_examples
from dragoman.errors import DataError

FEW = 2000  # sentences: too few to learn sub-words from
EXAMINED = 50_000  # pairs whose text is examined; the others are only counted


@dataclass(frozen=True)
class PairProfile:
    """Statistics of a set of pairs."""

    pairs: int
    source_characters: float  # mean length
    target_characters: float
    source_spaces: float  # share of sources with a space inside
    target_spaces: float
    target_symbols: int  # distinct space-separated target symbols
    target_symbol_count: int  # all occurrences
    target_symbol_length: float

    @property
    def recurring(self) -> bool:
        """Whether targets are sequences over a small set of space-separated symbols."""
        return (
            self.target_spaces > 0.7
            and self.target_symbols <= 300
            and self.target_symbol_count >= 20 * self.target_symbols
        )

    @property
    def phonemes(self) -> bool:
        """Whether sources are single words and targets sequences of short symbols."""
        return self.recurring and self.source_spaces < 0.1 and self.target_symbol_length <= 5

    @property
    def source_short(self) -> bool:
        """Whether sources are words or short phrases rather than sentences."""
        return self.source_spaces < 0.1 or self.source_characters <= 24 or self.pairs < FEW

    @property
    def target_short(self) -> bool:
        """Whether targets are words or short phrases rather than sentences."""
        return self.target_spaces < 0.1 or self.target_characters <= 32 or self.pairs < FEW


def profile_pairs(files: Files, data: DataConfig | None = None) -> PairProfile:
    """Read all pairs once; faulty lines are an error here if training would stop at them."""
    data = data or DataConfig(train=files)
    pairs = 0
    totals: Counter[str] = Counter()
    symbols: Counter[str] = Counter()
    faults: list[Fault] = []
    fault_count = 0
    for item in read_examples(data, files):
        if isinstance(item, Fault):
            fault_count += 1
            if len(faults) < MAX_FAULTS:
                faults.append(item)
            continue
        pairs += 1
        if pairs > EXAMINED:
            continue
        source, target = item.source.strip(), item.references[0].strip()
        totals["source"] += len(source)
        totals["target"] += len(target)
        totals["source_spaces"] += " " in source
        totals["target_spaces"] += " " in target
        if len(symbols) <= 1000:
            symbols.update(target.split())
    if fault_count and data.faults == "stop":
        raise DataError(fault_message(faults, fault_count))
    if pairs < 2:
        raise DataError(f"{', '.join(paths_of(files))}: found {pairs} pairs, expected at least 2")
    examined = min(pairs, EXAMINED)
    count = sum(symbols.values())
    return PairProfile(
        pairs=pairs,
        source_characters=totals["source"] / examined,
        target_characters=totals["target"] / examined,
        source_spaces=totals["source_spaces"] / examined,
        target_spaces=totals["target_spaces"] / examined,
        target_symbols=len(symbols),
        target_symbol_count=count,
        target_symbol_length=sum(len(symbol) * times for symbol, times in symbols.items()) / max(1, count),
    )
