"""Warnings about a training plan that would run but make no sense, and an estimate of its time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from dragoman.auto.memory import BatchShape
from dragoman.data.batching import BatchPlan
from dragoman.data.collate import Collator
from dragoman.data.corpus import Corpus
from dragoman.runs.plan import late_warmup
from dragoman.tasks.config import Config
from dragoman.tasks.table import task_of
from dragoman.training.display import duration

MANY_EPOCHS = 1000
TINY_CORPUS = 2000  # tokens: smaller data count as so many
PARAMETERS_PER_TOKEN = 1000  # more than this is far too many for the data
MEASURED_ROWS = 16
SLOW_STEP = 1.0  # seconds: the time of such steps is measured on fewer rows


def plan_warnings(config: Config, corpus: Corpus, model: nn.Module) -> Iterator[str]:
    """What a person should know before training as planned."""
    yield from late_warmup(config)
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


def with_epochs(config: Config, corpus: Corpus) -> Config:
    """The configuration with train.steps for train.epochs in one process, where that is set."""
    if not config.train.epochs:
        return config
    steps = config.train.steps / number_of_epochs(config, corpus)
    return replace(config, train=config.train.with_epoch_of(steps))


def number_of_epochs(config: Config, corpus: Corpus) -> float:
    """How often training reads the data."""
    train = config.train
    if task_of(config).is_language_model:
        tokens = int(corpus.report["train"]["target_tokens"])
        return train.steps * train.accumulate * train.batch_tokens / max(1, tokens)
    plan = BatchPlan(corpus.train, train.batch_tokens, train.seed, collator=corpus.collator)
    return train.steps * train.accumulate / len(plan.epoch(0))


def training_time(
    model: nn.Module, config: Config, collator: Collator, shapes: set[BatchShape], device: torch.device
) -> str:
    """About how long training takes, from a few steps with a typical batch; of a slow model, with a part of it."""
    rows, source, target = sorted(shapes, key=lambda shape: shape[0] * (shape[1] + shape[2]))[len(shapes) // 2]
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)

    def seconds_of(count: int) -> float:
        started = time.perf_counter()
        model(collator.dummy(count, source, target).to(device)).total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    part = min(rows, MEASURED_ROWS)
    seconds_of(part)  # allocates
    step = seconds_of(part) * rows / part
    if rows > part and step < SLOW_STEP:
        step = statistics.median(seconds_of(rows) for _ in range(3))
    total = step * config.train.accumulate * config.train.steps
    return (
        f"time: about {duration(total)} for {config.train.steps:,} steps on {device}, validations not counted "
        "(measured on a few batches; it may stop earlier by train.patience)"
    )
