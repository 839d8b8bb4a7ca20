"""A configuration from nothing but the pairs: looks at the data, chooses, and says why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.auto.media import configured_media
from dragoman.config.settings import build as build_settings
from dragoman.config.settings import merge, override, read_toml
from dragoman.data.corpus import FAULTS_KEPT, DataConfig, Files, fault_message, paths_of, read_all
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.formats.formats import not_numbers
from dragoman.data.readers.lines import form_of
from dragoman.errors import ConfigError, DataError
from dragoman.models.elmo import BiLMConfig, ElmoEncoderConfig
from dragoman.models.encoders.bert import BertEncoderConfig
from dragoman.models.masked_lm import MaskedLMConfig
from dragoman.tasks.config import MODELS, Config, build, preset_table, preset_text, started_folder, task_metrics
from dragoman.tasks.table import task_of

FEW = 2000  # sentences, too few to learn sub-words from
FEW_CHARACTERS = 2_000_000  # of running text, from which characters are learned better than sub-words
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
    def recurring(self) -> bool:
        """The target is made of a few space-separated symbols that keep coming back."""
        return (
            self.target_spaces > 0.7
            and self.target_symbols <= 300
            and self.target_symbol_count >= 20 * self.target_symbols
        )

    @property
    def phonemes(self) -> bool:
        """Single words answered by short recurring symbols."""
        return self.recurring and self.source_spaces < 0.1 and self.target_symbol_length <= 5

    @property
    def source_short(self) -> bool:
        """Single words or short phrases rather than sentences."""
        return self.source_spaces < 0.1 or self.source_characters <= 24 or self.pairs < FEW

    @property
    def target_short(self) -> bool:
        """Single words or short phrases rather than sentences."""
        return self.target_spaces < 0.1 or self.target_characters <= 32 or self.pairs < FEW


def look(files: Files, data: DataConfig | None = None) -> Look:
    """Read all pairs once; faults are an error here where they will be one in training."""
    data = data or DataConfig(train=files)
    pairs = 0
    totals: Counter[str] = Counter()
    symbols: Counter[str] = Counter()
    faults: list[Fault] = []
    fault_count = 0
    for item in read_all(data, files):
        if isinstance(item, Fault):
            fault_count += 1
            if len(faults) < FAULTS_KEPT:
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
    if fault_count and data.faults == "stop":
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


def choose(files: Files, seen: Look, preset: str | None = None) -> tuple[dict[str, Any], list[str]]:
    """A configuration table for these pairs, and the reasons in plain words; the model may be a preset's."""
    source = {"kind": "characters"} if seen.source_short else subwords(seen)
    target = (
        {"kind": "words", "split": "spaces"}
        if seen.recurring
        else {"kind": "characters"}
        if seen.target_short
        else subwords(seen)
    )
    joint = source == target and source["kind"] == "subwords"
    tokenizer = {"source": source} if joint else {"source": source, "target": target}
    tokens = max(
        seen.source_characters / CHARACTERS[source["kind"]],
        seen.target_symbol_count / min(seen.pairs, LOOKED_AT)
        if seen.recurring
        else seen.target_characters / CHARACTERS[target["kind"]],
    )
    reasons = [f"source: {units_reason(source, seen.source_characters, seen.source_spaces, seen)}"]
    if joint:
        reasons[0] = reasons[0].replace("source:", "source and target:").replace("sub-words", "sub-words in common")
    elif seen.recurring:
        scored = "; scored as phonemes" if seen.phonemes else ""
        reasons.append(
            f"target: the symbols between spaces, because {seen.target_symbols} of them keep coming back{scored}"
        )
    else:
        reasons.append(f"target: {units_reason(target, seen.target_characters, seen.target_spaces, seen)}")
    few_and_short = seen.pairs <= 5000 and tokens <= 32 and "subwords" not in (source["kind"], target["kind"])
    given = preset is not None
    preset = preset or next((name for limit, name in PRESETS if seen.pairs <= limit), "transformer-base")
    if given:
        reasons.append(f"preset: {preset}, as asked")
    elif few_and_short:
        reasons.append(
            f"preset: {preset} with {SMALLEST['layers']}+{SMALLEST['layers']} layers of {SMALLEST['width']}, because "
            f"{seen.pairs:,} short pairs can fill no more"
        )
    else:
        reasons.append(f"preset: {preset}, because there are {seen.pairs:,} pairs")

    batch_tokens = next(size for limit, size in BATCHES if seen.pairs * tokens <= limit)
    epochs = next(epochs for limit, epochs in EPOCHS if seen.pairs <= limit)
    steps_an_epoch = max(1.0, seen.pairs * (tokens + 1) * 1.15 / batch_tokens)  # padding and <eos> included
    steps = max(1000, math.ceil(epochs * steps_an_epoch))
    validate_every = max(20, min(1000, max(math.ceil(steps_an_epoch), steps // 40), steps // 25))
    patience = 6 if few_and_short else 10
    # Short answers are right or wrong, and go on getting better when the loss has begun to rise.
    metric = "loss" if target["kind"] == "subwords" else "per" if seen.phonemes else "cer"
    reasons.append(
        f"budget: {steps:,} steps of {batch_tokens:,} tokens, about {steps / steps_an_epoch:.0f} rounds through the "
        f"data, validated every {validate_every} steps; stops when {patience} validations bring no better {metric}"
    )
    table: dict[str, Any] = {
        "preset": preset,
        "data": {"units": "phonemes" if seen.phonemes else "words"},
        "tokenizer": tokenizer,
        "model": {"tie": tie_of(preset, joint) if given else "all" if joint else "target"},
        "train": {
            "steps": steps,
            "batch_tokens": batch_tokens,
            "validate_every": validate_every,
            "save_every": validate_every,
            "metric": metric,
            "patience": patience,
            "optimizer": {"warmup": max(50, min(4000, steps // 10))},
        },
    }
    if given:
        pass  # its sizes and rates are what was asked for
    elif few_and_short:
        table["train"]["optimizer"]["learning_rate"] = 4e-3  # so narrow a model bears it, and learns twice as fast
        table["model"] |= {"encoder": dict(SMALLEST), "decoder": dict(SMALLEST)}
    elif seen.pairs <= 20_000:
        table["model"] |= {"encoder": {"dropout": 0.3}, "decoder": {"dropout": 0.3}}
        reasons.append("dropout: 0.3, because a small corpus is quickly learned by heart")
    return table, reasons


def configured(files: Files, overrides: Sequence[str] = ()) -> tuple[Config, list[str]]:
    """A whole configuration for these files with `place=value` settings on top, and the reasons for the rest."""
    asked = override({}, list(overrides))
    if asked.get("task", "translate") != "translate":
        if asked["task"] == "language-model":
            return configured_running(files, overrides)
        if asked["task"] in ("transcribe", "caption"):
            return configured_media(files, str(asked["task"]), overrides)
        return configured_directly(files, str(asked["task"]), overrides)
    preset = asked.get("preset")  # a slip of the pen is told before a long file is read
    if preset is not None:
        preset_text(str(preset))
    train = {"train": entry_of(files)}
    data = build_settings(DataConfig, merge(train, table_of(asked, "data")), "data")
    table, reasons = choose(files, look(files, data), None if preset is None else str(preset))
    table["data"] |= train
    return build(override(table, list(overrides))), reasons


def table_of(asked: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table of settings that were asked for, empty where there are none."""
    found = asked.get(name, {})
    return found if isinstance(found, Mapping) else {}


def entry_of(files: Files) -> Any:
    """What a configuration says of these files."""
    return {"source": files.source, "target": files.target} if isinstance(files, Pairs) else files


def configured_running(files: Files, overrides: Sequence[str]) -> tuple[Config, list[str]]:
    """The same for a language model: units, size and budget follow from how much text there is."""
    table: dict[str, Any] = {"task": "language-model", "data": {"train": entry_of(files)}}
    asked: dict[str, Any] = override({}, list(overrides))
    stack = asked.get("model", {}).get("stack", {})
    recurrent = (stack if isinstance(stack, str) else stack.get("kind")) == "recurrent"
    usual: dict[str, Any] = {} if recurrent else {"model": {"stack": {"kind": "transformer", "positions": "rotary"}}}
    first = build(override(merge(table, usual), list(overrides)))
    shape = task_of(first).shape_of(first)
    characters = 0
    faults: list[Fault] = []
    for item in read_all(first.data, files, shape=shape):
        if isinstance(item, Fault):
            faults.append(item)
        else:
            characters += len(item.references[0]) + 1
    if faults and first.data.faults == "stop":
        raise DataError(fault_message(faults, len(faults)))
    if not characters:
        raise DataError(f"{', '.join(paths_of(files))}: no usable line found")
    few = characters < FEW_CHARACTERS
    units = {"kind": "characters"} if few else {"kind": "subwords", "vocabulary": 8000 if characters < 5e7 else 32_000}
    tokens = characters if few else characters / CHARACTERS["subwords"]
    layers, width, segment = (4, 256, 128) if tokens < 2e7 else (8, 512, 256)
    batch_tokens = next(size for limit, size in BATCHES if tokens <= limit)
    batch_tokens = max(batch_tokens, 4 * segment) if tokens > 8 * segment else segment
    steps = max(500, min(100_000, math.ceil((20 if tokens < 2e7 else 3) * tokens / batch_tokens)))
    every = max(50, min(1000, steps // 20))
    table |= {
        "tokenizer": {"source": units},
        "model": {
            "kind": "language-model",
            "segment": segment,
            "memory": 0 if recurrent else segment,
            "output_dropout": 0.2,
            "stack": {
                "kind": "recurrent", "layers": 2, "embedding": width, "width": 2 * width, "weight_dropout": 0.2,
                "input_dropout": 0.2,
            }
            if recurrent
            else {
                "kind": "transformer", "layers": layers, "width": width, "heads": width // 64,
                "feedforward": 4 * width, "positions": "rotary", "dropout": 0.2,
            },
        },
        "train": {
            "steps": steps, "batch_tokens": batch_tokens, "validate_every": every, "save_every": every,
            "optimizer": {"warmup": max(20, min(1000, steps // 10)), "schedule": "cosine", "learning_rate": 1e-3},
        },
    }  # fmt: skip
    reasons = [
        f"units: {units['kind']}, because the text has {characters:,} characters",
        f"model: 2 recurrent layers of {2 * width}, as asked"
        if recurrent
        else f"model: a Transformer of {layers} layers of {width} that sees {segment} tokens and as many before",
        f"budget: {steps:,} steps of {batch_tokens:,} tokens, about {steps * batch_tokens / tokens:.0f} rounds through "
        "the text; the lowest loss is kept",
    ]
    return build(override(table, list(overrides))), reasons


def configured_directly(files: Files, task: str, overrides: Sequence[str]) -> tuple[Config, list[str]]:
    """The same for a task that is answered without a search."""
    base: dict[str, Any] = {"task": task, "data": {"train": entry_of(files)}}
    asked = override({}, list(overrides))
    if task not in DIRECT:
        return build(override(base, list(overrides))), []  # names the mistake
    usual = MODELS[task][0].kind
    another = table_of(asked, "model").get("kind", usual) != usual  # which has other settings

    def begun(name: str) -> dict[str, Any]:
        """What these data begin with, but for what does not go with what was asked for."""
        table = merge(base, DIRECT[name][0])
        if another:
            table = merge(base, {"tokenizer": table["tokenizer"]})
        return started(table, asked)

    names = ("regress", "series") if task == "regress" else (task,)
    first = first_that_builds([override(begun(name), list(overrides)) for name in names])  # tells slips of the pen
    shape = task_of(first).shape_of(first)
    count, length, series = 0, 0, True
    faults: list[Fault] = []
    labels: Counter[str] = Counter()
    heading: Example | None = None
    for item in read_all(first.data, files, shape=shape):
        if isinstance(item, Fault):
            faults.append(item)
            continue
        count += 1
        length += len(item.source)
        series = series and not not_numbers(item.source)
        if task == "classify" and not (isinstance(files, Pairs) and files.file is None):
            labels[item.references[0]] += 1
            heading = heading or item
    if faults and first.data.faults == "stop":
        raise DataError(fault_message(faults, len(faults)))
    if count < 2:
        raise DataError(f"{', '.join(paths_of(files))}: found {count} examples, expected at least 2")
    name = "series" if series and task == "regress" else task
    chosen, reason = DIRECT[name]
    table = begun(name)
    if table.get("model") != chosen["model"]:
        reason = "model: as asked for" if another else "model: reads as the run it starts from"
    tokens = length / count / CHARACTERS.get(chosen["tokenizer"]["source"]["kind"], 6)
    steps_an_epoch = max(1.0, count * (tokens + 1) * 1.15 / 2048)
    epochs = next(epochs for limit, epochs in EPOCHS if count <= limit)
    steps = max(300, min(20_000, math.ceil(epochs * steps_an_epoch)))
    every = max(20, min(1000, steps // 20))
    metric = task_metrics(task)[1]
    table["train"] = {
        "steps": steps, "batch_tokens": 2048, "validate_every": every, "save_every": every, "metric": metric,
        "optimizer": {"warmup": max(20, steps // 10), "schedule": "cosine", "learning_rate": 2e-3},
    }  # fmt: skip
    reasons = [reason, f"budget: {steps:,} steps of 2,048 tokens for {count:,} examples; the best {metric} is kept"]
    if heading is not None and looks_like_header(heading, labels):
        label = heading.references[0]
        reasons.append(f"is {heading.place} a header? No other line has its label '{label}'; then set data.header=true")
    return build(override(table, list(overrides))), reasons


def looks_like_header(first: Example, labels: Counter[str]) -> bool:
    """Whether the first line of a tab-separated file has a label of its own beside two or more others."""
    alone = len(labels) > 2 and labels[first.references[0]] == 1
    return alone and first.line == 1 and form_of(Path(first.path))[0] == "columns"


def first_that_builds(tables: Sequence[Mapping[str, Any]]) -> Config:
    """Of several tables the first without a mistake; where all have one, that of the first is told."""
    try:
        return build(tables[0])
    except ConfigError:
        for table in tables[1:]:
            with suppress(ConfigError):
                return build(table)
        raise


def started(table: dict[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The table where another run is started from: its tokenizers, what reads, and how much that can read."""
    folder = started_folder(asked)
    if not folder:
        return table
    theirs: dict[str, Any] = read_toml(Path(folder) / "config.toml")
    model: dict[str, Any] = dict(theirs.get("model", {}))
    table = {name: part for name, part in table.items() if name != "tokenizer"}
    table["data"] = {**table["data"], "max_length": theirs["data"]["max_length"]}
    if theirs.get("task") == table["task"]:
        return table | {"model": model}
    if "encoder" in model:
        encoder = {"kind": READS.get(model["kind"], "recurrent"), **model["encoder"]}
        table["model"] = {**table.get("model", {}), "encoder": encoder}
    return table


# The kind of encoder in a model that has but one.
READS = {MaskedLMConfig.kind: BertEncoderConfig.kind, BiLMConfig.kind: ElmoEncoderConfig.kind}


def tie_of(preset: str, joint: bool) -> str:
    """What a preset ties, or as much of it as two vocabularies allow."""
    model = preset_table(preset).get("model", {})
    tie: str = model.get("tie", "target")
    if joint or tie in ("none", "target"):
        return tie
    return "none" if model.get("kind") == "non-autoregressive" else "target"


def subwords(seen: Look) -> dict[str, Any]:
    """BPE with a vocabulary that the corpus can fill."""
    return {
        "kind": "subwords",
        "vocabulary": next((size for limit, size in VOCABULARIES if seen.pairs <= limit), 32_000),
    }


def units_reason(units: dict[str, Any], characters: float, spaces: float, seen: Look) -> str:
    """Why these units, in plain words."""
    if units["kind"] == "subwords":
        return f"{units['vocabulary']:,} BPE sub-words, because these are {seen.pairs:,} sentences"
    if characters > 32 and seen.pairs < FEW:
        return f"characters, because {seen.pairs:,} pairs are too few to learn sub-words from"
    if characters > 32 and spaces < 0.1:
        return "characters, because no spaces divide the texts into words"
    return f"characters, because the texts are short ({characters:.0f} characters on average)"


# What a task that needs no search begins with, and why.
DIRECT: dict[str, tuple[dict[str, Any], str]] = {
    "classify": (
        {
            "tokenizer": {"source": {"kind": "words"}},
            "model": {
                "dropout": 0.4,
                "pooling": {"kind": "queries"},
                "encoder": {"kind": "recurrent", "embedding": 128, "width": 256},
            },
        },
        "model: words read both ways by an LSTM of 256 and weighed by a learned query, as labels hang on few words",
    ),
    "regress": (
        {
            "tokenizer": {"source": {"kind": "words"}},
            "model": {"dropout": 0.2, "encoder": {"kind": "recurrent", "embedding": 128, "width": 256}},
        },
        "model: words read both ways by an LSTM of 256, the mean of its states answers",
    ),
    "series": (
        {
            "tokenizer": {"source": {"kind": "numbers"}},
            "model": {
                "pooling": {"kind": "attention"},
                "encoder": {"kind": "recurrent", "embedding": 1, "width": 32, "direction": "forward", "dropout": 0.0},
            },
        },
        "model: an LSTM of 32 over the numbers with attention over time, as every source is a series",
    ),
    "tag": (
        {
            "data": {"max_length": 1000},
            "tokenizer": {"source": {"kind": "characters"}},
            "model": {
                "encoder": {
                    "kind": "character-words", "embedding": 32, "kernels": [2, 3, 4], "filters": [64, 64, 64],
                    "longest_word": 24, "hashed": 50_000, "hashed_dropout": 0.3, "dropout": 0.3,
                    "inner": {"kind": "recurrent", "embedding": 128, "width": 256, "dropout": 0.3},
                },
            },
        },
        "model: words made of their characters, read both ways by an LSTM of 256, as endings tell tags of unseen words",
    ),
}  # fmt: skip
DIRECT["masked-language-model"] = (
    {
        "data": {"max_length": 125},  # two texts need one more than one
        "tokenizer": {"source": {"kind": "subwords", "vocabulary": 8000}},
        "model": {
            "encoder": {
                "layers": 4, "width": 256, "heads": 4, "feedforward": 1024, "attention_dropout": 0.0,
                "max_positions": 127,
            }
        },
    },
    "model: a small BERT of 4 layers of 256 over 8,000 sub-words, for classify or tag to start from",
)  # fmt: skip
CHARACTERS = {"characters": 1, "subwords": 4}  # a token, roughly
VOCABULARIES = ((20_000, 4000), (200_000, 8000), (2_000_000, 16_000))
PRESETS = ((20_000, "transformer-tiny"), (300_000, "transformer-small"))
# Cut from transformer-tiny. On 3,000 words of CMUdict its PER is that of twice the width, in a third of the time.
SMALLEST = {"layers": 2, "width": 64, "heads": 4, "feedforward": 256, "dropout": 0.1}
BATCHES = ((50_000, 512), (100_000, 1024), (1_000_000, 2048), (20_000_000, 4096), (math.inf, 8192))
EPOCHS = ((5000, 60), (50_000, 50), (200_000, 25), (1_000_000, 12), (math.inf, 5))
