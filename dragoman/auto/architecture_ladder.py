"""The ladder of architectures, from a classical model and a plain recurrent network to the Transformer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.auto.configure import configure
from dragoman.base import DataError, make_folder, write_text
from dragoman.base import config as settings
from dragoman.classical import NGramTransducerConfig, PhraseBasedConfig
from dragoman.data import DataConfig, Example, Files, source_hash, usable_examples
from dragoman.models import EncoderDecoderConfig
from dragoman.runs.tasks import Config, from_table

TEST_SHARE, MAX_TEST = 0.1, 1000


class LadderStep(NamedTuple):
    """One model of the ladder, and what changes from the one before."""

    name: str
    change: str  # what is new
    why: str  # what the theory expects
    model: dict[str, Any]
    learning_rate: float
    figures: tuple[str, ...]  # views of the comparison that show it


def neural_steps(width: int) -> list[LadderStep]:
    """The models of the ladder, all about `width` wide."""
    fixed = {"layers": 1, "embedding": width, "width": width, "dropout": 0.2}

    def encoder_decoder(cell: Any) -> dict[str, Any]:
        return {
            "tie": "target",
            "encoder": {"kind": "recurrent", "cell": cell, "direction": "backward", **fixed},
            "decoder": {"kind": "fixed-context", "cell": cell, "begin": "copy", "readout": "tanh", **fixed},
        }

    attention = {
        "tie": "target",
        "encoder": {"kind": "recurrent", "cell": "lstm", **fixed},
        "decoder": {
            "kind": "recurrent", "cell": "lstm", "attention": {"kind": "additive", "width": width}, "readout": "tanh",
            **fixed,
        },
    }  # fmt: skip
    convolution = {"layers": 4, "embedding": width, "width": width, "dropout": 0.2}
    transformer = {
        "kind": "transformer",
        "layers": 3,
        "width": width,
        "heads": 4,
        "feedforward": 4 * width,
        "dropout": 0.2,
    }
    return [
        LadderStep(
            "plain RNN",
            "One recurrent layer reads the source backwards, and its last state is all that the decoder gets.",
            "The state passes through the same matrix at every step, so gradients shrink exponentially with distance.",
            encoder_decoder({"kind": "rnn", "recurrent_init": "uniform"}),
            1e-3,
            ("flows",),
        ),
        LadderStep(
            "LSTM",
            "The cell gets a memory with input, forget and output gates; nothing else changes.",
            "The forget gate keeps a path open along which gradients survive, so far words can be learned from.",
            encoder_decoder("lstm"),
            3e-3,
            ("flows", "lengths"),
        ),
        LadderStep(
            "LSTM + attention",
            "The encoder reads in both directions, and the decoder looks at all its states at every step.",
            "The source no longer has to fit into one vector, so long sentences should lose no more than short ones.",
            attention,
            3e-3,
            ("attentions", "lengths"),
        ),
        LadderStep(
            "ConvS2S",
            "Gated convolutions replace recurrence, with attention in every decoder layer.",
            "All positions of a sentence are computed at once in training, and the path between two words is shorter.",
            {
                "tie": "target",
                "encoder": {"kind": "convs2s", "kernel": 3, **convolution},
                "decoder": {"kind": "convs2s", "kernel": 3, **convolution},
            },
            1e-3,
            ("curves",),
        ),
        LadderStep(
            "Transformer",
            "Self-attention replaces convolution: every position looks at every other in every layer.",
            "Any two words are one step apart, at a cost that grows with the square of the length.",
            {"tie": "target", "encoder": transformer, "decoder": transformer},
            1e-3,
            ("attentions", "cost"),
        ),
    ]


def classical(config: Config) -> LadderStep:
    """The classical model for such tokens: phrases of words or sub-words, or n-grams of aligned characters."""
    sides = (config.tokenizer.source, config.tokenizer.target or config.tokenizer.source)
    if any(side.kind == "subwords" for side in sides) or all(side.kind == "words" for side in sides):
        return LadderStep(
            "phrase-based",
            "No network: phrases counted in aligned pairs, an n-gram language model and a search over both.",
            "Counts remember what they saw and generalise to nothing else, so few pairs suffice and more help slowly.",
            {"kind": PhraseBasedConfig.kind},
            0.0,
            ("attentions",),
        )
    return LadderStep(
        "n-gram transducer",
        "No network: pairs are cut into aligned chunks, and n-grams of chunks are counted.",
        "Counts see a few chunks of context, so few pairs suffice, and what lies further away is lost.",
        {"kind": NGramTransducerConfig.kind},
        0.0,
        (),
    )


def ladder(files: Files, overrides: Sequence[str] = ()) -> tuple[dict[str, Config], list[LadderStep]]:
    """A configuration for every step on these pairs; the automatic one for the data gives all other settings."""
    base, _ = configure(files, overrides, neural=True)
    table: dict[str, Any] = settings.as_table(base)
    width = int(table["model"]["encoder"].get("width", 128))
    width = 256 if width >= 256 else 128 if width >= 128 else 64
    baseline, steps = classical(base), neural_steps(width)
    configs: dict[str, Config] = {baseline.name: from_table({**table, "model": baseline.model})}
    for step in steps:
        own = {**table, "model": {"kind": EncoderDecoderConfig.kind, "label_smoothing": 0.1, **step.model}}
        config = from_table(own)
        optimizer = replace(config.train.optimizer, learning_rate=step.learning_rate, schedule="cosine")
        configs[step.name] = replace(config, train=replace(config.train, optimizer=optimizer))
    return configs, [baseline, *steps]


def hold_out(files: Files, folder: Path) -> tuple[str, list[Example]]:
    """Set a tenth of the pairs aside for testing, at most 1,000; returns the file of the others and the test pairs.

    All pairs of one source are on one side. The choice depends on the texts alone.
    """
    examples = list(usable_examples(DataConfig(train=files, faults="skip"), files))
    sources = sorted(set(map(source_hash, examples)))
    count = min(MAX_TEST, max(1, int(len(sources) * TEST_SHARE)))
    if len(sources) < 20:
        raise DataError(f"{files}: found {len(sources)} different sources, expected 20 or more to train and test on")
    chosen = set(sources[-count:])  # the lowest hashes become the validation data
    path, test = folder / "train.tsv", [example for example in examples if source_hash(example) in chosen]
    make_folder(folder)
    lines = [f"{example.source}\t{example.references[0]}" for example in examples if source_hash(example) not in chosen]
    if any(line.count("\t") != 1 or "\n" in line for line in lines):
        raise DataError(f"{files}: found a tab inside a text; name the test pairs with --test instead")
    write_text(path, "\n".join(lines) + "\n")
    return str(path), test
