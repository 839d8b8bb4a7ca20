"""Before training: estimates of its memory and time, and warnings about a plan that makes no sense."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from dragoman.base import DragomanError, WarningLine
from dragoman.data import PAIR_COLLATOR, Collator, Corpus
from dragoman.inspect.measure import saved_bytes, timed
from dragoman.runs.tasks import Config, task_of
from dragoman.training import (
    MovingAverageConfig,
    OptimizerConfig,
    available_memory,
    batch_plan,
    build_optimizer,
    duration,
)

Say = Callable[[str], None]
BatchShape = tuple[int, int, int]  # rows, source and target tokens
MANY_EPOCHS = 1000
TINY_CORPUS = 2000  # tokens: smaller data count as so many
PARAMETERS_PER_TOKEN = 1000  # more than this is far too many for the data
MEASURED_ROWS = 16
NIGHT = 10 * 3600.0  # seconds that a usual training may take
SLOW_STEP = 1.0  # seconds: the time of such steps is measured on fewer rows


def check_memory(config: Config, corpus: Corpus, shapes: set[BatchShape], device: torch.device, say: Say) -> None:
    """Compare the memory that training needs for the largest batch with the memory that is free."""
    torch.manual_seed(config.train.seed)
    model: Any = task_of(config).model(config, corpus.source_tokenizer, corpus.target_tokenizer).train()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    copies = 5 if isinstance(config.train.average, MovingAverageConfig) else 4  # + gradient, two moments, average
    # The largest batch has the most tokens on one side or both, or the longest rows: attention grows quadratically.
    measures: list[Callable[[BatchShape], int]] = [
        lambda shape: shape[0] * shape[1],
        lambda shape: shape[0] * shape[2],
        lambda shape: shape[0] * (shape[1] + shape[2]),
        lambda shape: shape[0] * (shape[1] ** 2 + shape[2] ** 2),
    ]
    candidates = {max(sorted(shapes), key=measure) for measure in measures}
    activations, (rows, source, target) = max(
        (batch_memory(model, shape, corpus.collator), shape) for shape in candidates
    )
    outputs, vocabulary = model.positions(source, target), len(corpus.target_tokenizer)
    softmax = getattr(config.model, "softmax", None)
    if softmax is not None and softmax.kind != "full":
        vocabulary = min(vocabulary, softmax.size + (rows * target if softmax.kind == "sampled" else 0))
    activations, outputs = (size * config.train.objective.memory_factor for size in (activations, outputs))
    activations += 2 * rows * outputs * vocabulary * 4  # probabilities come with two gradients of their size
    needed = parameters * 4 * copies + activations
    available = available_memory(device)
    verdict = f" of {available / 2**30:.1f} GiB free" if available else ""
    say(
        f"memory: {parameters:,} parameters; the largest batch ({rows} rows of {source} and {target} tokens) needs "
        f"about {needed / 2**30:.2f} GiB{verdict} on {device}"
    )
    if available and needed > available:
        raise DragomanError(
            f"the largest batch needs about {needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are free on "
            f"{device}; lower train.batch_tokens (now {config.train.batch_tokens}) or data.max_length"
        )


def batch_memory(model: nn.Module, shape: BatchShape, collator: Collator = PAIR_COLLATOR) -> int:
    """Bytes that a batch keeps for the backward pass, measured on one and two rows: they grow linearly with rows."""
    rows, source, target = shape
    single, double = (saved_bytes(model, partial(model, collator.dummy(count, source, target))) for count in (1, 2))
    return single + (double - single) * (rows - 1)


def plan_warnings(config: Config, corpus: Corpus, model: nn.Module) -> Iterator[str]:
    """What a person should know before training as planned."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    tokens = int(corpus.report["train"]["target_tokens"])
    pairs = int(corpus.report["train"]["pairs"])
    if parameters > PARAMETERS_PER_TOKEN * max(tokens, TINY_CORPUS):
        yield (
            f"{parameters:,} parameters for {pairs:,} training examples with {tokens:,} target tokens: the model will "
            "learn them by heart; take a smaller preset (dragoman presets) or more data"
        )
    epochs = number_of_epochs(config, corpus)
    if epochs > MANY_EPOCHS:
        yield (
            f"train.steps = {config.train.steps:,} reads the training data {epochs:,.0f} times; "
            f"{max(1, round(config.train.steps * MANY_EPOCHS / epochs)):,} steps would be {MANY_EPOCHS} times"
        )
    if task_of(config).is_language_model:
        return
    source = corpus.source_tokenizer
    if source.is_text:
        lengths = corpus.train.source.lengths()
        if len(lengths) and np.median(lengths) <= 1:
            yield (
                f"most sources are a single token ({source.kind}): the model cannot see what is inside them; for "
                'words or names set tokenizer.source.kind = "characters"'
            )


def number_of_epochs(config: Config, corpus: Corpus) -> float:
    train = config.train
    if task_of(config).is_language_model:
        tokens = int(corpus.report["train"]["target_tokens"])
        return train.steps * train.accumulate * train.batch_tokens / max(1, tokens)
    plan = batch_plan(corpus, train)
    return train.steps * train.accumulate / len(plan.epoch(0))


def batch_shapes(config: Config, corpus: Corpus) -> set[BatchShape]:
    plan = batch_plan(corpus, config.train)
    return {(len(rows), plan.width("source", rows), plan.width("target", rows)) for rows in plan.epoch(0)}


def training_seconds(
    model: nn.Module, config: Config, collator: Collator, shapes: set[BatchShape], device: torch.device
) -> float:
    """About how long training takes, from a few steps with a typical batch; of a slow model, with a part of it.

    Validations are not counted.
    """
    rows, source, target = sorted(shapes, key=lambda shape: shape[0] * (shape[1] + shape[2]))[len(shapes) // 2]
    model = model.to(device).train()
    optimizer = build_optimizer(OptimizerConfig(learning_rate=1e-30), model)

    def train_step(count: int) -> None:
        model(collator.dummy(count, source, target).to(device)).total.backward()
        optimizer.step()
        optimizer.zero_grad()

    part = min(rows, MEASURED_ROWS)
    train_step(part)  # allocates
    step = timed(lambda: train_step(part), device) * rows / part
    if rows > part and step < SLOW_STEP:
        step = statistics.median(timed(lambda: train_step(rows), device) for _ in range(3))
    passes = config.train.objective.memory_factor  # of the model, in every step
    return step * passes * config.train.accumulate * config.train.steps


def time_lines(seconds: float, config: Config, device: torch.device) -> Iterator[str]:
    """What to say of the time of a training, and a warning where it takes more than a night or so."""
    limit = 60 * config.train.minutes if config.train.minutes else math.inf
    share = f"; train.minutes = {config.train.minutes:g} ends it at {limit / seconds:.0%}" if seconds > limit else ""
    yield (
        f"time: about {duration(seconds)} for {config.train.steps:,} steps on {device}, validations not counted "
        f"(measured on a few batches; it may stop earlier by train.patience){share}"
    )
    if min(seconds, limit) > 1.5 * NIGHT:
        days = f"{min(seconds, limit) / 86400:.1f} days"
        advice = "take a smaller preset (dragoman presets), fewer train.steps, train.minutes or a GPU"
        yield WarningLine(f"warning: training takes about {days} on {device}; {advice}")
