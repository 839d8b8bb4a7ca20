"""Batch loaders: batches of examples, or segments of running text for truncated back-propagation through time (BPTT).

The batches of an epoch have an order that follows from (seed, epoch), so a checkpoint stores only the number of the
next batch. The exception is the hidden state that a language model carries from segment to segment; a checkpoint
stores it as tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.base import DataError, RunError
from dragoman.data import Batch, BatchPlan, BpttPlan, Corpus, Segment, TokenStore, VocabularyParts, read_batch
from dragoman.models import carried_tensors, restore_carried
from dragoman.training.config import TrainConfig
from dragoman.training.runtime import ProcessGroup


def batch_plan(corpus: Corpus, config: TrainConfig, parts: NDArray[np.int32] | None = None) -> BatchPlan:
    """The batches of examples that these settings ask for."""
    return BatchPlan(corpus.train, config.batch_tokens, config.seed, corpus.collator, parts, config.batch_rows)


class BatchLoader:
    """Batches of examples of similar lengths.

    With `parts`, every batch is from one part of the corpus and has its vocabulary.
    """

    def __init__(self, corpus: Corpus, config: TrainConfig, parts: VocabularyParts | None = None) -> None:
        self.store, self.parts = corpus.train, parts
        self.plan: Any = batch_plan(corpus, config, None if parts is None else parts.of_row)

    def epoch(self, epoch: int) -> Any:
        """The keys of all batches of an epoch, in order: here the row numbers of each batch."""
        return self.plan.epoch(epoch)

    def num_tokens(self, key: Any) -> int:
        """The loss terms of a batch: target tokens, labels, numbers or tags without padding."""
        return int(self.plan.tokens(key))

    def load(self, key: Any) -> Any:
        """The batch of a key, padded to one of the plan's batch shapes."""
        batch: Batch = read_batch(self.store, key, self.plan)
        if self.parts is None:
            return batch
        return replace(batch, words=torch.from_numpy(self.parts.words[int(self.parts.of_row[key[0]])]))

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors for the checkpoint; all processes must call this together."""
        return {}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""


class SampledLoader(BatchLoader):
    """Batches of examples whose sub-words differ from epoch to epoch (BPE-dropout); a key names its epoch's store."""

    def __init__(self, corpus: Corpus, config: TrainConfig) -> None:
        super().__init__(corpus, config)
        self.sampled = corpus.sampled(config.seed)

    def epoch(self, epoch: int) -> Sequence[tuple[TokenStore, BatchPlan, Any]]:
        store = self.sampled.epoch(epoch)
        own = self.plan
        plan = BatchPlan(store, own.budget, own.seed, own.collator, batch_rows=own.batch_rows)
        plan.max_widths = own.max_widths  # so that all epochs have the same batch shapes
        return [(store, plan, rows) for rows in plan.epoch(epoch)]

    def num_tokens(self, key: Any) -> int:
        return int(key[1].tokens(key[2]))

    def load(self, key: Any) -> Batch:
        store, plan, rows = key
        return read_batch(store, rows, plan)


def example_loader(corpus: Corpus, config: TrainConfig, softmax: Any = None) -> BatchLoader:
    """Batches of examples; `softmax` are the settings of the model's, of which some compares the words of a part."""
    if corpus.has_dropout:
        return SampledLoader(corpus, config)
    if softmax is None or softmax.kind != "partitioned":
        return BatchLoader(corpus, config)
    return BatchLoader(corpus, config, VocabularyParts(corpus.train.target, len(corpus.target_tokenizer), softmax.size))


def check_streams(corpus: Corpus, streams: int, config: TrainConfig) -> None:
    """Raise DataError if there are more parallel streams than training tokens."""
    count = corpus.report["train"]["target_tokens"]
    if count < streams:
        raise DataError(
            f"the training text has {count:,} tokens, too few for {streams:,} streams; lower train.batch_tokens (now "
            f"{config.batch_tokens}; streams = batch_tokens / model.segment)"
        )


class BpttLoader(BatchLoader):
    """Segments of running text, with the hidden state that the model carries from segment to segment.

    Each batch of a step reads its own group of streams. So a step reads the same text whether one process accumulates
    several groups or several processes share them.
    """

    def __init__(self, corpus: Corpus, model: Any, segment: int, config: TrainConfig, processes: ProcessGroup) -> None:
        self.streams = config.batch_tokens // segment
        self.groups, self.processes = config.accumulate * processes.world_size, processes
        check_streams(corpus, self.streams * self.groups, config)
        self.plan = BpttPlan(corpus.train.target, self.streams * self.groups, segment, config.seed)
        self.carried = [model.empty_carry(self.streams) for _ in range(self.groups)]

    def epoch(self, epoch: int) -> Sequence[tuple[int, int, int]]:
        """(epoch, segment number, group) of each batch."""
        return [(epoch, number, group) for number in range(len(self.plan)) for group in range(self.groups)]

    def _streams(self, group: int) -> slice:
        return slice(group * self.streams, (group + 1) * self.streams)

    def num_tokens(self, key: Any) -> int:
        epoch, number, group = key
        return int(self.plan.tokens(epoch, number, self._streams(group)))

    def load(self, key: Any) -> Segment:
        """The next segment of a group, with the state carried over from its last one."""
        epoch, number, group = key
        segment: Segment = self.plan.read(epoch, number, self._streams(group))
        return replace(segment, carried=self.carried[group])

    def state_dict(self) -> dict[str, Tensor]:
        """The carried state of all groups, each from the process that computes it."""
        tensors = {}
        for group, carried in enumerate(self.carried):
            is_own = group % self.processes.world_size == self.processes.rank
            for name, tensor in carried_tensors(carried, f"group.{group}").items():
                # All other processes add zeros, so the sum is exact.
                summand = tensor.cpu() if is_own else torch.zeros_like(tensor, device="cpu")
                tensors[name] = self.processes.all_reduce_sum_tensor(summand)
        return tensors

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the carried state; RunError if the checkpoint has other groups or streams."""
        own = carried_tensors(self.carried, "group")
        if {name: part.shape for name, part in own.items()} != {name: part.shape for name, part in tensors.items()}:
            raise RunError(
                "the checkpoint carries the state of another number of streams; resume with the same "
                "train.batch_tokens and the same train.accumulate × processes as before"
            )
        restore_carried(self.carried, tensors, "group")
