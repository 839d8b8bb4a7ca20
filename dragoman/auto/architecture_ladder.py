"""The ladder of architectures: from a classical model to the modern Transformer, or from gates to attention heads."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
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
    year: int  # of the publication
    change: str  # what is new
    why: str  # what the theory expects
    model: dict[str, Any]
    learning_rate: float
    figures: tuple[str, ...]  # views of the comparison that show it


def neural_steps(width: int, longest: int) -> list[LadderStep]:
    """The history of the field as models, all about `width` wide, for texts of up to `longest` tokens."""
    fixed = {"layers": 1, "embedding": width, "width": width, "dropout": 0.2}
    begin = {"kind": "fixed-context", "readout": "tanh", **fixed}
    both = {"layers": 2, "residual_from": 2}
    convolution = {"kind": "convs2s", "kernel": 3, "layers": 4, "embedding": width, "width": width, "dropout": 0.2}
    transformer = {
        "kind": "transformer", "layers": 3, "width": width, "heads": 4, "feedforward": 4 * width, "dropout": 0.2,
    }  # fmt: skip
    modern = {
        **transformer, "norm_kind": "rms", "gated": True, "activation": "silu", "bias": False, "positions": "rotary",
        "feedforward": 8 * width // 3,
    }  # fmt: skip
    gru = {"kind": "gru", "reset": "before"}
    return [
        LadderStep(
            "Kalchbrenner 2013", 2013,
            "Convolutions fold the source into one vector, and a plain recurrent network writes from it.",
            "The state passes through the same matrix at every step, so gradients shrink exponentially with distance.",
            {"encoder": {"kind": "kalchbrenner", "width": width, "max_positions": longest, "dropout": 0.2},
             "decoder": {**begin, "cell": {"kind": "rnn", "recurrent_init": "uniform"}, "context": "every-step",
                         "begin": "zero"}},
            1e-3, ("flows",),
        ),
        LadderStep(
            "Cho 2014", 2014,
            "A gated recurrent network reads the source word by word; another one reads its last state at every step.",
            "The update gate keeps a path open along which gradients survive, so far words can be learned from.",
            {"encoder": {"kind": "recurrent", "cell": gru, "direction": "forward", **fixed},
             "decoder": {**begin, "cell": gru, "context": "every-step"}},
            3e-3, ("flows",),
        ),
        LadderStep(
            "Sutskever 2014", 2014,
            "LSTMs replace the GRUs, and the source is read backwards: its first words are near the first outputs.",
            "All of the source still has to fit into one vector, so scores fall with length.",
            {"encoder": {"kind": "recurrent", "cell": "lstm", "direction": "backward", **fixed},
             "decoder": {**begin, "cell": "lstm", "begin": "copy"}},
            3e-3, ("flows", "lengths"),
        ),
        LadderStep(
            "Bahdanau 2015", 2015,
            "The encoder reads in both directions, and the decoder looks at all its states before every step.",
            "The source no longer has to fit into one vector, so long sentences should lose no more than short ones.",
            {"encoder": {"kind": "recurrent", "cell": "lstm", **fixed},
             "decoder": {"kind": "recurrent", "cell": "lstm", "attention": {"kind": "additive", "width": width},
                         "readout": "tanh", **fixed}},
            3e-3, ("attentions", "lengths"),
        ),
        LadderStep(
            "Luong 2015", 2015,
            "Attention comes after the cell, scored by one product, and its result is fed into the next step.",
            "The score is cheaper, and attention knows what the decoder has just read.",
            {"encoder": {"kind": "recurrent", "cell": "lstm", **fixed},
             "decoder": {"kind": "luong", "cell": "lstm", "attention": "general", **fixed}},
            3e-3, ("attentions",),
        ),
        LadderStep(
            "GNMT 2016", 2016,
            "More layers, with residual connections; the attention of the bottom decoder layer is fed to all.",
            "Residual connections let gradients pass through the depth as gates do through time.",
            {"encoder": {"kind": "recurrent", "cell": "lstm", **fixed, **both},
             "decoder": {"kind": "recurrent", "cell": "lstm", "attention": {"kind": "additive", "width": width},
                         "context_to": "all", "readout": "tanh", **fixed, **both}},
            3e-3, (),
        ),
        LadderStep(
            "ConvS2S 2017", 2017,
            "Gated convolutions replace recurrence, with attention in every decoder layer.",
            "All positions of a sentence are computed at once in training, and the path between two words is shorter.",
            {"encoder": convolution, "decoder": convolution}, 1e-3, ("curves",),
        ),
        LadderStep(
            "Transformer 2017", 2017,
            "Self-attention replaces convolution: every position looks at every other in every layer.",
            "Any two words are one step apart, at a cost that grows with the square of the length.",
            {"encoder": {**transformer, "norm": "post"}, "decoder": {**transformer, "norm": "post"}},
            1e-3, ("attentions", "cost"),
        ),
        LadderStep(
            "modern Transformer", 2023,
            "Norms move before each layer and become RMS norms; positions rotate queries and keys; feed-forward layers "
            "are gated (SwiGLU), and biases go (Touvron et al. 2023).",
            "Pre-norm keeps an open path through the depth, so training tolerates larger steps; distances, not places, "
            "enter the scores.",
            {"encoder": modern, "decoder": modern}, 2e-3, ("curves",),
        ),
    ]  # fmt: skip


def attention_steps(width: int, longest: int) -> list[LadderStep]:
    """From gates to heads: where the weights of past inputs come from, one change at a time."""
    fixed = {"layers": 1, "embedding": width, "width": width, "dropout": 0.2}
    decoder = {"kind": "recurrent", "cell": "gru", "readout": "tanh", **fixed}
    free = {
        "kind": "multi-kernel", "kernels": [1], "layers": 1, "embedding": width, "width": width, "dropout": 0.2,
        "positions": "sinusoidal",
    }  # fmt: skip
    single = {"kind": "scaled-dot"}
    return [
        LadderStep(
            "gates", 2014,
            "A GRU: each state is a weighted sum of past candidates, and the update gates give the weights.",
            "A candidate's weight is a product of all later gates, so it can only fall with distance.",
            {"encoder": {"kind": "recurrent", "cell": "gru", "direction": "forward", **fixed},
             "decoder": {"kind": "fixed-context", "cell": "gru", "begin": "copy", "readout": "tanh", **fixed}},
            3e-3, ("flows", "lengths"),
        ),
        LadderStep(
            "free candidates", 2014,
            "Candidates read their own input alone, and each output step weights them by a softmax of products with "
            "its state.",
            "A weight no longer depends on the gates between, so any distance costs the same.",
            {"encoder": free, "decoder": {**decoder, "attention": single}}, 3e-3, ("attentions", "lengths"),
        ),
        LadderStep(
            "keys and values", 2017,
            "Each candidate is projected twice: a key that is compared, and a value that is summed.",
            "What makes an input relevant may differ from what it says.",
            {"encoder": free, "decoder": {**decoder, "attention": {**single, "keys": width, "values": width}}},
            3e-3, ("attentions",),
        ),
        LadderStep(
            "heads", 2017,
            "Four narrow attentions run side by side, and their results are joined.",
            "One step can look at several places at once, for as many multiplications.",
            {"encoder": free,
             "decoder": {**decoder, "attention": {"kind": "multi-head", "heads": 4, "width": width}}},
            3e-3, ("attentions",),
        ),
    ]  # fmt: skip


STAGES = {"history": neural_steps, "attention": attention_steps}


def classical(config: Config) -> LadderStep:
    """The classical model for such tokens: phrases of words or sub-words, or n-grams of aligned characters."""
    sides = (config.tokenizer.source, config.tokenizer.target or config.tokenizer.source)
    if any(side.kind == "subwords" for side in sides) or all(side.kind == "words" for side in sides):
        return LadderStep(
            "phrase-based",
            2003,
            "No network: phrases counted in aligned pairs, an n-gram language model and a search over both.",
            "Counts remember what they saw and generalise to nothing else, so few pairs suffice and more help slowly.",
            {"kind": PhraseBasedConfig.kind},
            0.0,
            ("attentions",),
        )
    return LadderStep(
        "n-gram transducer",
        2008,
        "No network: pairs are cut into aligned chunks, and n-grams of chunks are counted.",
        "Counts see a few chunks of context, so few pairs suffice, and what lies further away is lost.",
        {"kind": NGramTransducerConfig.kind},
        0.0,
        (),
    )


def ladder(
    files: Files, overrides: Sequence[str] = (), stages: str = "history"
) -> tuple[dict[str, Config], list[LadderStep]]:
    """A configuration for every step on these pairs; the automatic one for the data gives all other settings."""
    base, _ = configure(files, ["train.optimizer.schedule=cosine", *overrides], neural=True)
    table: dict[str, Any] = settings.as_table(base)
    width = int(table["model"]["encoder"].get("width", 128))
    width = 256 if width >= 256 else 128 if width >= 128 else 64
    steps = STAGES[stages](width, table["data"]["max_length"] + 1)
    configs: dict[str, Config] = {}
    if stages == "history":
        steps = [classical(base), *steps]
        configs[steps[0].name] = from_table({**table, "model": steps[0].model})
    for step in steps[len(configs) :]:
        shared = {"kind": EncoderDecoderConfig.kind, "tie": "target", "label_smoothing": 0.1}
        config = from_table({**table, "model": {**shared, **step.model}})
        optimizer = replace(config.train.optimizer, learning_rate=step.learning_rate)
        configs[step.name] = replace(config, train=replace(config.train, optimizer=optimizer))
    return configs, steps


DATES = "dates"  # the name of the made-up task
DATE_PAIRS, DATE_STEPS = 3000, 400
DATE_SETTINGS = (
    "model.encoder.width=64", "model.decoder.width=64", "tokenizer.source.kind=characters",
    "tokenizer.target.kind=characters", "data.max_length=80", "train.metric=cer",
    "train.validate_every=200", "train.decode=100",
)  # fmt: skip
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


def made_up_dates(count: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Pairs of one or two dates as people write them, and as year-month-day: order changes, and length varies."""
    draw, seen = random.Random(seed), set[str]()
    while len(seen) < count:
        spoken, written = [], []
        for _ in range(draw.randint(1, 2)):
            day, month, year = draw.randint(1, 28), draw.randint(1, 12), draw.randint(1950, 2049)
            name = MONTHS[month - 1]
            forms = (
                f"{day} {name} {year}",
                f"{name} {day}, {year}",
                f"{day}. {name[:3]} {year}",
                f"{day}/{month}/{year}",
            )
            spoken.append(draw.choice(forms))
            written.append(f"{year}-{month:02}-{day:02}")
        source = "; ".join(spoken)
        if source not in seen:
            seen.add(source)
            yield source, " ".join(written)


def write_dates(folder: Path) -> str:
    """A file of the made-up task; returns its name."""
    path = folder / "data" / "dates.tsv"
    make_folder(path.parent)
    write_text(path, "".join(f"{source}\t{target}\n" for source, target in made_up_dates(DATE_PAIRS)))
    return str(path)


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
    path, test = folder / "data" / "train.tsv", [example for example in examples if source_hash(example) in chosen]
    make_folder(path.parent)
    lines = [f"{example.source}\t{example.references[0]}" for example in examples if source_hash(example) not in chosen]
    if any(line.count("\t") != 1 or "\n" in line for line in lines):
        raise DataError(f"{files}: found a tab inside a text; name the test pairs with --test instead")
    write_text(path, "\n".join(lines) + "\n")
    return str(path), test
