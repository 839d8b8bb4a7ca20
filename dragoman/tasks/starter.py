"""Commented starter configurations, made from the settings themselves so that they cannot go stale."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dragoman.config import settings
from dragoman.errors import ConfigError, hint
from dragoman.tasks.config import Config, build, preset_names, task_metrics
from dragoman.tasks.table import TASKS


class Starter(NamedTuple):
    """What a task's starter configuration opens with."""

    about: str
    table: dict[str, Any]


MISSING = object()  # a setting that a table does not name
STARTERS = {
    "translate": Starter(
        "pairs of text: translation, spelling correction, normalisation, grapheme-to-phoneme",
        {
            "preset": "transformer-small",
            "data": {"train": "pairs.tsv"},
            "tokenizer": {"source": {"kind": "subwords", "vocabulary": 8000}},
            "train": {"steps": 10_000},
        },
    ),
    "classify": Starter(
        "one or two texts with a label: sentiment, acceptability, paraphrase",
        {
            "task": "classify",
            "data": {"train": "labelled.tsv"},
            "tokenizer": {"source": {"kind": "words"}},
            "model": {"kind": "classifier", "dropout": 0.4, "encoder": {"kind": "recurrent"}},
            "train": {"steps": 3000, "metric": "accuracy"},
        },
    ),
    "regress": Starter(
        "texts or series of numbers with a number: similarity, the next value",
        {
            "task": "regress",
            "data": {"train": "numbers.tsv"},
            "tokenizer": {"source": {"kind": "numbers"}},
            "model": {"kind": "classifier", "encoder": {"kind": "recurrent", "embedding": 1, "width": 32}},
            "train": {"steps": 3000, "metric": "mse"},
        },
    ),
    "tag": Starter(
        "words with a tag each: parts of speech, names",
        {
            "task": "tag",
            "data": {"train": "words.tsv", "max_length": 1000},
            "tokenizer": {"source": {"kind": "characters"}},
            "model": {"kind": "tagger", "crf": True, "encoder": {"kind": "character-words"}},
            "train": {"steps": 3000, "metric": "accuracy"},
        },
    ),
    "language-model": Starter(
        "running text: what comes next; texts are gone on with by dragoman complete",
        {
            "task": "language-model",
            "data": {"train": "text.txt"},
            "tokenizer": {"source": {"kind": "subwords", "vocabulary": 8000}},
            "model": {
                "kind": "language-model",
                "segment": 128,
                "memory": 128,
                "stack": {
                    "kind": "transformer",
                    "layers": 4,
                    "width": 256,
                    "heads": 4,
                    "positions": {"kind": "rotary"},
                },
            },
            "train": {"steps": 10_000, "batch_tokens": 4096},
        },
    ),
    "masked-language-model": Starter(
        "texts alone: an encoder that tells hidden words, for other tasks to start from",
        {
            "task": "masked-language-model",
            "data": {"train": "texts.txt", "max_length": 126},
            "tokenizer": {"source": {"kind": "subwords", "vocabulary": 8000}},
            "model": {
                "kind": "masked-lm",
                "encoder": {
                    "layers": 4,
                    "width": 256,
                    "heads": 4,
                    "feedforward": 1024,
                    "attention_dropout": 0.0,
                    "max_positions": 127,
                },
            },
            "train": {"steps": 20_000, "batch_tokens": 8192, "optimizer": {"weight_decay": 0.01}},
        },
    ),
    "transcribe": Starter(
        "recordings or images of text lines with their text: speech and writing to text",
        {
            "task": "transcribe",
            "data": {"train": "recordings.tsv", "media": ""},
            "tokenizer": {"source": {"kind": "audio"}, "target": {"kind": "characters"}},
            "model": {
                "kind": "transcriber",
                "augment": {"kind": "masking"},
                "encoder": {"kind": "frames", "inner": {"kind": "recurrent", "layers": 2}},
            },
            "train": {"steps": 10_000, "batch_tokens": 20_000, "metric": "wer"},
        },
    ),
    "caption": Starter(
        "pictures with one or more captions each",
        {
            "task": "caption",
            "data": {"train": "pictures.tsv", "media": ""},
            "tokenizer": {"source": {"kind": "picture"}, "target": {"kind": "words", "minimum_count": 5}},
            "model": {
                "kind": "captioner",
                "augment": {"kind": "picture"},
                "encoder": {"kind": "resnet"},
                "decoder": {"kind": "recurrent"},
            },
            "train": {"steps": 10_000, "batch_tokens": 10_000, "metric": "bleu"},
        },
    ),
}


def starter(task: str, overrides: Sequence[str] = ()) -> str:
    """The text of a starter configuration: what it sets, and behind '#' everything else with its present value.

    `place=value` settings on top may choose other kinds of parts, whose settings are then shown.
    """
    if task not in STARTERS:
        raise ConfigError(f"found {task!r}, no such task. {hint(task, STARTERS)}")
    about, table = STARTERS[task]
    table = settings.override(table, overrides)
    if table.get("task", task) != task:
        raise ConfigError(f"task: found {table['task']!r}, expected {task!r}, which was asked for, or nothing")
    resolved = settings.as_table(build(table))
    table = opened_kinds(table, resolved)
    lines = [
        f"# A Dragoman configuration for {about}.",
        "# A line behind '#' shows a setting that may be changed, with the value it has now.",
        "# Prove it:  dragoman check THIS_FILE",
        "# Train it:  dragoman train THIS_FILE [place=value ...]",
        "",
        f'task = "{task}"',
    ]
    if table.get("preset"):
        others = ", ".join(name for name in preset_names() if name != table["preset"])
        lines.append(f'preset = "{table["preset"]}"  # or {others}')
    # TOML takes a table's header once, so a table's own settings come together, before those of its sub-tables.
    tables: dict[str, list[str]] = {}
    for item in settings.describe(Config):
        head, _, key = item.place.rpartition(".")
        if head == "search" and (TASKS[task].readout is not None or TASKS[task].running):
            continue  # nothing is searched for
        if not head or not holds(item.when, resolved) or at(resolved, head) is None:
            continue
        opened = at(table, item.place, MISSING)
        if isinstance(opened, Mapping) and "kind" in opened:
            continue  # its own table says it
        value = at(resolved, item.place) if opened in (MISSING, None) else opened
        expected = f"one of {', '.join(task_metrics(task))}" if item.place == "train.metric" else item.expected
        note = f"{item.note} ({expected})" if item.note else expected
        chosen = opened is not MISSING
        text = item.default if isinstance(value, Mapping) and not chosen else settings.inline(value)
        tables.setdefault(head, []).append(f"{'' if chosen else '# '}{key} = {text}  # {note}")
    for head, rows in tables.items():
        lines += ["", f"[{head}]", *rows]
    return "\n".join(lines) + "\n"


def opened_kinds(table: Mapping[str, Any], resolved: Mapping[str, Any]) -> dict[str, Any]:
    """A table in which parts named by their kind alone are tables too: they get a header of their own."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        whole = resolved.get(key)
        if isinstance(whole, Mapping):
            value = opened_kinds(value if isinstance(value, Mapping) else {"kind": whole["kind"]}, whole)
        out[key] = value
    return out


def at(table: Mapping[str, Any], place: str, otherwise: Any = None) -> Any:
    """The value at a place of nested tables, else another."""
    value: Any = table
    for key in place.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return otherwise
        value = value[key]
    return value


def holds(when: str, resolved: Mapping[str, Any]) -> bool:
    """Whether a setting exists under the choices made."""
    if not when:
        return True
    conditions = re.findall(r'(\S+) = "([^"]*)"', when)
    return bool(conditions) and all(at(resolved, place) == kind for place, kind in conditions)
