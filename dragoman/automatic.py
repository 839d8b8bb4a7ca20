"""A configuration from nothing but the pairs: looks at the data, chooses, and says why."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from dragoman.data.corpus import DataConfig, Files, fault_message, paths_of, read_all
from dragoman.data.readers import Fault
from dragoman.errors import DataError

LOOKED_AT = 50_000  # pairs examined closely; the rest is only counted


@dataclass(frozen=True)
class Look:
    """What the data look like."""

    pairs: int
    source_characters: float  # mean length
    target_characters: float
    source_spaces: float  # share of sources with a space inside
    target_spaces: float
    target_symbols: int  # distinct space-separated target symbols
    target_symbol_count: int  # how many were seen
    target_symbol_length: float

    @property
    def phonemes(self) -> bool:
        """Single words answered by a few symbols that keep coming back."""
        return (
            self.source_spaces < 0.1
            and self.target_spaces > 0.7
            and self.target_symbols <= 300
            and self.target_symbol_count >= 20 * self.target_symbols
            and self.target_symbol_length <= 5
        )

    @property
    def short(self) -> bool:
        """Words or short phrases rather than sentences."""
        return self.source_characters <= 24 and self.target_characters <= 32


def look(files: Files) -> Look:
    """Read all pairs once; faults are an error here, as they will be in training."""
    pairs = 0
    totals: Counter[str] = Counter()
    symbols: Counter[str] = Counter()
    faults: list[Fault] = []
    fault_count = 0
    for item in read_all(DataConfig(train=files), files):
        if isinstance(item, Fault):
            fault_count += 1
            if len(faults) < 3:
                faults.append(item)
            continue
        pairs += 1
        if pairs > LOOKED_AT:
            continue
        source, target = item.source.strip(), item.references[0].strip()
        totals["source"] += len(source)
        totals["target"] += len(target)
        totals["source_spaces"] += " " in source
        totals["target_spaces"] += " " in target
        if len(symbols) <= 1000:
            symbols.update(target.split())
    if fault_count:
        raise DataError(fault_message(faults, fault_count))
    if pairs < 2:
        raise DataError(f"{', '.join(paths_of(files))}: found {pairs} pairs, expected at least 2")
    seen = min(pairs, LOOKED_AT)
    count = sum(symbols.values())
    return Look(
        pairs=pairs,
        source_characters=totals["source"] / seen,
        target_characters=totals["target"] / seen,
        source_spaces=totals["source_spaces"] / seen,
        target_spaces=totals["target_spaces"] / seen,
        target_symbols=len(symbols),
        target_symbol_count=count,
        target_symbol_length=sum(len(symbol) * times for symbol, times in symbols.items()) / max(1, count),
    )


def choose(files: Files, seen: Look) -> tuple[dict[str, Any], list[str]]:
    """A configuration table for these pairs, and the reasons in plain words."""
    reasons = []
    tokenizer: dict[str, Any]
    units = "words"
    if seen.phonemes:
        units = "phonemes"
        tokenizer = {"source": {"kind": "characters"}, "target": {"kind": "words", "split": "spaces"}}
        tokens = seen.target_symbol_count / min(seen.pairs, LOOKED_AT)
        reasons.append(
            f"tokenizer: source characters, target symbols between spaces, because single words are answered by "
            f"{seen.target_symbols} recurring symbols (scored as phonemes)"
        )
    elif seen.short or seen.pairs < 2000:
        tokenizer = {"source": {"kind": "characters"}, "target": {"kind": "characters"}}
        tokens = max(seen.source_characters, seen.target_characters)
        why = (
            f"the pairs are short ({seen.source_characters:.0f} and {seen.target_characters:.0f} characters on average)"
            if seen.short
            else f"{seen.pairs:,} pairs are too few to learn sub-words from"
        )
        reasons.append(f"tokenizer: characters, because {why}")
    else:
        size = next((size for limit, size in VOCABULARIES if seen.pairs <= limit), 32_000)
        tokenizer = {"source": {"kind": "subwords", "vocabulary": size}}
        tokens = max(seen.source_characters, seen.target_characters) / 4
        reasons.append(
            f"tokenizer: {size:,} BPE sub-words shared by both sides, because these are {seen.pairs:,} sentences"
        )
    preset = next((name for limit, name in PRESETS if seen.pairs <= limit), "transformer-base")
    reasons.append(f"preset: {preset}, because there are {seen.pairs:,} pairs")

    batch_tokens = next(size for limit, size in BATCHES if seen.pairs * tokens <= limit)
    epochs = next(epochs for limit, epochs in EPOCHS if seen.pairs <= limit)
    steps_an_epoch = max(1.0, seen.pairs * (tokens + 1) * 1.15 / batch_tokens)  # padding and <eos> included
    steps = max(200, math.ceil(epochs * steps_an_epoch))
    validate_every = max(20, min(1000, math.ceil(steps_an_epoch), steps // 10))
    reasons.append(
        f"budget: {steps:,} steps of {batch_tokens:,} tokens, about {steps / steps_an_epoch:.0f} rounds through the "
        f"data, validated every {validate_every} steps; stops early when 10 validations bring nothing better"
    )
    table: dict[str, Any] = {
        "preset": preset,
        "data": {"units": units},
        "tokenizer": tokenizer,
        "model": {"tie": "target" if "target" in tokenizer else "all"},
        "train": {
            "steps": steps,
            "batch_tokens": batch_tokens,
            "validate_every": validate_every,
            "save_every": validate_every,
            "optimizer": {"warmup": max(50, min(4000, steps // 10))},
        },
    }
    if seen.pairs <= 20_000:
        for side in ("encoder", "decoder"):
            table["model"][side] = {"dropout": 0.3}
        reasons.append("dropout: 0.3, because a small corpus is quickly learned by heart")
    return table, reasons


VOCABULARIES = ((20_000, 4000), (200_000, 8000), (2_000_000, 16_000))
PRESETS = ((20_000, "transformer-tiny"), (300_000, "transformer-small"))
BATCHES = ((100_000, 1024), (1_000_000, 2048), (20_000_000, 4096), (math.inf, 8192))
EPOCHS = ((5000, 100), (50_000, 50), (200_000, 25), (1_000_000, 12), (math.inf, 5))
