"""Where the batches of a step come from: rows of a store, or running text that is read on and on.

The batches of an epoch are things in an order that follows from (seed, epoch), so a run needs to remember no more than
the number of the next one; what a model carries over from segment to segment is the exception, and kept beside the
weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from dragoman.data.batch import Batch
from dragoman.data.batching import BatchPlan, read_batch
from dragoman.data.bptt import BpttPlan, Segment, TokenStream
from dragoman.data.corpus import Corpus
from dragoman.errors import DataError, RunError
from dragoman.models.language_model import carried_tensors, restore_carried
from dragoman.training.config import TrainConfig
from dragoman.training.distributed import ProcessGroup


class BatchLoader(Protocol):
    """What a trainer asks for its batches."""

    plan: Any

    def epoch(self, epoch: int) -> Any:
        """All that is read in an epoch, by number."""

    def num_tokens(self, chosen: Any) -> int:
        """How many terms of the loss one of these has."""

    def load(self, chosen: Any) -> Any:
        """One of these as a batch."""

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint must keep; every process asks at the same time."""

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Give back what `carried` told."""


class ExampleLoader:
    """Rows of like lengths in batches; nothing goes on from one to the next."""

    def __init__(self, corpus: Corpus, config: TrainConfig) -> None:
        self.store = corpus.train
        self.plan = BatchPlan(corpus.train, config.batch_tokens, config.seed, collator=corpus.collator)

    def epoch(self, epoch: int) -> Any:
        """The rows of each batch."""
        return self.plan.epoch(epoch)

    def num_tokens(self, chosen: Any) -> int:
        """Real target tokens, labels, numbers or tags."""
        return self.plan.tokens(chosen)

    def load(self, chosen: Any) -> Batch:
        """Padded to the plan's grid."""
        return read_batch(self.store, chosen, self.plan)

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Nothing."""


def check_lanes(corpus: Corpus, lanes: int, config: TrainConfig) -> None:
    """Refuse more lanes than there are tokens to learn from."""
    count = corpus.report["train"]["target_tokens"]
    if count < lanes:
        raise DataError(
            f"the training text has {count:,} tokens, too few for {lanes:,} lanes; lower train.batch_tokens (now "
            f"{config.batch_tokens}; lanes = batch_tokens / model.segment)"
        )


class BpttLoader:
    """Segments of running text. The batches of one step are groups of lanes, each with what it carries over.

    So a step reads the same text whether one process accumulates its groups or several share them.
    """

    def __init__(self, corpus: Corpus, model: Any, segment: int, config: TrainConfig, processes: ProcessGroup) -> None:
        self.lanes = config.batch_tokens // segment
        self.groups, self.processes = config.accumulate * processes.world_size, processes
        check_lanes(corpus, self.lanes * self.groups, config)
        self.plan = BpttPlan(TokenStream(corpus.train.target), self.lanes * self.groups, segment, config.seed)
        self.memory = [model.empty_carry(self.lanes) for _ in range(self.groups)]

    def epoch(self, epoch: int) -> Sequence[tuple[int, int, int]]:
        """(epoch, number of the segment, group)."""
        return [(epoch, number, group) for number in range(len(self.plan)) for group in range(self.groups)]

    def _lanes(self, group: int) -> slice:
        return slice(group * self.lanes, (group + 1) * self.lanes)

    def num_tokens(self, chosen: Any) -> int:
        """Predictions."""
        epoch, number, group = chosen
        return self.plan.tokens(epoch, number, self._lanes(group))

    def load(self, chosen: Any) -> Segment:
        """The next segment of a group."""
        epoch, number, group = chosen
        return self.plan.read(epoch, number, self._lanes(group))._replace(carried=self.memory[group])

    def state_dict(self) -> dict[str, Tensor]:
        """What all groups carry over, of which each process knows its own."""
        found = {}
        for group, memory in enumerate(self.memory):
            mine = group % self.processes.world_size == self.processes.rank
            for name, part in carried_tensors(memory, f"group.{group}").items():
                # The others add nothing, so the sum is exact.
                found[name] = self.processes.all_reduce_sum_tensor(
                    part.cpu() if mine else torch.zeros_like(part, device="cpu")
                )
        return found

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Give back what `carried` told."""
        for group, memory in enumerate(self.memory):
            place = f"group.{group}"
            wanted = carried_tensors(memory, place)
            shapes = {name: part.shape for name, part in wanted.items()}
            if shapes != {name: part.shape for name, part in tensors.items() if name in shapes}:
                raise RunError(
                    "the checkpoint carries over another number of lanes; go on with as many processes as before"
                )
            restore_carried(memory, tensors, place)
