"""Choose tokenizer, size and budget of a language model from the amount of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dragoman.auto.budget import BATCHES, CHARACTERS_PER_TOKEN, lower_rate, started_settings, up_to
from dragoman.auto.choices import STEPS, Choice, chosen, finish, without
from dragoman.base.config import merge, override
from dragoman.data import Files, too_few, usable_examples
from dragoman.runs.tasks import Config, Task, build

FEW_CHARACTERS = 2_000_000  # with less text, characters work better than sub-words
LARGE = 2e7  # tokens that fill the larger model


def configure_language_model(
    task: Task, entry: Any, files: Files, overrides: Sequence[str]
) -> tuple[Config, list[str]]:
    """A configuration with `place=value` overrides, and the reasons."""
    table: dict[str, Any] = {"task": task.name, "data": {"train": entry}}
    given: dict[str, Any] = override({}, overrides)
    stack = given.get("model", {}).get("stack", {})
    if given.get("model", {}).get("kind") == "ngram":
        return configure_ngram(task, table, files, overrides)
    recurrent = (stack if isinstance(stack, str) else stack.get("kind")) == "recurrent"
    default: dict[str, Any] = {} if recurrent else {"model": {"stack": {"kind": "transformer", "positions": "rotary"}}}
    theirs = started_settings(given)
    if theirs.get("task") != task.name or "segment" not in theirs.get("model", {}):
        theirs = {}
    if theirs:
        default = {"model": theirs["model"]}
    characters = count_characters(task, build(override(merge(table, default), overrides)), files)
    few = characters < FEW_CHARACTERS
    units = {"kind": "characters"} if few else {"kind": "subwords", "vocab_size": 8000 if characters < 5e7 else 32_000}
    tokens = characters if few else characters / CHARACTERS_PER_TOKEN["subwords"]
    layers, width, segment = (4, 256, 128) if tokens < LARGE else (8, 512, 256)
    batch_tokens = max(up_to(BATCHES, tokens), 4 * segment) if tokens > 8 * segment else segment
    steps = max(500, min(100_000, math.ceil((20 if tokens < LARGE else 3) * tokens / batch_tokens)))
    every = max(50, min(1000, steps // 20))
    recurrent_stack = {
        "kind": "recurrent", "layers": 2, "embedding": width, "width": 2 * width, "weight_dropout": 0.2,
        "input_dropout": 0.2,
    }  # fmt: skip
    transformer_stack = {
        "kind": "transformer", "layers": layers, "width": width, "heads": width // 64, "feedforward": 4 * width,
        "positions": "rotary", "dropout": 0.2,
    }  # fmt: skip
    table |= {
        "tokenizer": {"source": units},
        "model": {
            "segment": segment,
            "memory": 0 if recurrent else min(segment, given.get("model", {}).get("segment", segment)),
            "output_dropout": 0.2,
            "stack": recurrent_stack if recurrent else transformer_stack,
        },
        "train": {
            "steps": steps, "batch_tokens": batch_tokens, "validate_every": every, "save_every": every,
            "optimizer": {"warmup": max(20, min(1000, steps // 10)), "schedule": "cosine", "learning_rate": 1e-3},
        },
    }  # fmt: skip
    epochs = steps * batch_tokens / tokens
    reasons = {
        "tokenizer.source.kind": f"units: {units['kind']}, because the text has {characters:,} characters",
        "model.segment": f"model: 2 recurrent layers of {2 * width}, as asked"
        if recurrent
        else f"model: a Transformer of {layers} layers of {width} with segments of {segment} tokens and as much memory",
        STEPS: f"budget: {steps:,} steps of {batch_tokens:,} tokens, about {epochs:.0f} epochs; the trainer keeps the "
        "weights with the lowest loss",
    }
    if theirs:  # its tokenizer, its model and its learning rate
        table["train"]["batch_tokens"] = max(batch_tokens, theirs["model"]["segment"])
        lower_rate(table["train"], theirs)
        table["model"] = theirs["model"]
        del reasons["model.segment"]
    choices = chosen(table, reasons, round(epochs))
    if theirs:
        origin = "model and tokenizer: those of the run from which training starts"
        choices = [Choice("", None, origin), *without(choices, "tokenizer")]
    return finish(choices, overrides)


def configure_ngram(
    task: Task, table: dict[str, Any], files: Files, overrides: Sequence[str]
) -> tuple[Config, list[str]]:
    """The same for an n-gram model, which needs units alone."""
    table = table | {"model": {"kind": "ngram"}}
    characters = count_characters(task, build(override(dict(table), overrides)), files)
    few = characters < FEW_CHARACTERS
    units = {"kind": "characters"} if few else {"kind": "words", "vocab_size": 1_000_000}
    table |= {"tokenizer": {"source": units}}
    return build(override(table, overrides)), [
        f"units: {units['kind']}, because the text has {characters:,} characters"
    ]


def count_characters(task: Task, config: Config, files: Files) -> int:
    """The characters of the text, line ends included."""
    examples = usable_examples(config.data, files, example_format=task.example_format(config))
    characters = sum(len(example.references[0]) + 1 for example in examples)
    if not characters:
        raise too_few(files, "found no usable line")
    return characters
