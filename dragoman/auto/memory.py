"""Estimate the memory of training from one batch, before training starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dragoman.data.collate import PAIR_COLLATOR, Collator
from dragoman.data.corpus import Corpus
from dragoman.errors import DragomanError
from dragoman.models.heads.softmax import PartitionedSoftmaxConfig, SampledSoftmaxConfig
from dragoman.tasks.config import Config
from dragoman.tasks.table import task_of
from dragoman.training.capacity import available_memory
from dragoman.training.optimizer import MovingAverageConfig

Say = Callable[[str], None]
BatchShape = tuple[int, int, int]  # rows, source and target tokens


def check_memory(config: Config, corpus: Corpus, shapes: set[BatchShape], device: torch.device, say: Say) -> None:
    """Compare the memory that training needs for the largest batch with the memory that is free."""
    sizes = len(corpus.source_tokenizer), len(corpus.target_tokenizer)
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
    outputs = model.positions(source, target)
    vocabulary = sizes[1]
    softmax = getattr(config.model, "softmax", None)
    if isinstance(softmax, SampledSoftmaxConfig):
        vocabulary = min(vocabulary, softmax.size + rows * target)
    elif isinstance(softmax, PartitionedSoftmaxConfig):
        vocabulary = min(vocabulary, softmax.size)
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
    """Bytes of the activations that a batch of this shape keeps for the backward pass.

    Measured on batches of one and two rows: activations grow linearly with rows.
    """
    rows, source, target = shape
    one, two = (saved_memory(model, (count, source, target), collator) for count in (1, 2))
    return one + (two - one) * (rows - 1)


def saved_memory(model: nn.Module, shape: BatchShape, collator: Collator = PAIR_COLLATOR) -> int:
    """Bytes that the forward pass keeps for the backward pass."""
    rows, source, target = shape
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(collator.dummy(rows, source, target)).total
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    del loss
    return sum(size for pointer, size in saved.items() if pointer not in own)
