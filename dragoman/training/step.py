"""One optimiser step: forward, backward, clipping, update and average.

On a GPU small models spend most of a step waiting for Python to launch kernels. The batch plan has few shapes, so all
that a step does is captured once a shape as a CUDA graph and replayed from then on: the same kernels on the same
numbers, launched by the GPU itself. What changes from step to step (learning rate, token count, memory of the average)
is read from tensors, and dropout from the generator that every step seeds, so captured and plain steps give the same
weights.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.data.batch import Batch
from dragoman.errors import DragomanError
from dragoman.files import set_compiler_caches
from dragoman.kernels.compile import CompiledBlocks
from dragoman.kernels.graph_inputs import GraphInputs
from dragoman.training.config import TrainConfig
from dragoman.training.distributed import ProcessGroup
from dragoman.training.objectives import LikelihoodConfig
from dragoman.training.optimizer import MovingAverage, learning_rate_at

WORTH_CAPTURING = 200  # steps; in fewer the captures cost more than they save
WORTH_KERNELS = 1e17  # operations: some minutes of a large GPU, of which compiled kernels save more than they take
MOST_GRAPHS = 512  # shapes; each graph holds some memory of the driver


def step_seed(seed: int, step: int, batch: int) -> int:
    """The seed of one batch's dropout; the same wherever that batch is computed."""
    text = f"{seed}/{step}/{batch}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


class Numbers:
    """What a step is told: where there is a GPU as tensors on it, so that a captured step can read them."""

    def __init__(self, device: torch.device) -> None:
        self._told = torch.zeros(3, device=device) if device.type == "cuda" else None

    def tell(self, rate: float, scale: float, share: float) -> None:
        """Learning rate, factor of the loss, and how far the average moves."""
        if self._told is None:
            self.rate, self.scale, self.share = rate, scale, share
        else:
            self._told.copy_(torch.tensor([rate, scale, share]).pin_memory(), non_blocking=True)
            self.rate, self.scale, self.share = self._told.unbind()  # type: ignore[assignment]


class Step:
    """The plain way, which every machine can go."""

    def __init__(
        self,
        config: TrainConfig,
        model: Any,
        wrapped: Any,  # the model, or what shares its gradients between processes
        objective: Any,
        optimizer: torch.optim.Optimizer,
        average: MovingAverage | None,
        processes: ProcessGroup,
        device: torch.device,
        half: bool,
        kernels: bool = False,
    ) -> None:
        self.config, self.model, self.wrapped, self.objective = config, model, wrapped, objective
        self.optimizer, self.average, self.processes, self.device, self.half = (
            optimizer,
            average,
            processes,
            device,
            half,
        )
        self.loss = torch.zeros((), dtype=torch.float64, device=device)  # summed until somebody takes it
        self.norm = torch.zeros((), device=device)  # of the last gradient, before clipping
        self.numbers = Numbers(device)
        self.compiled_blocks = CompiledBlocks(model) if kernels else None

    def __call__(self, batches: Iterable[tuple[int, Batch]], last: int, step: int, count: int) -> None:
        """Learn from batches and their places among all of this step; `count` tokens in all, the last at `last`."""
        # DDP takes the mean over processes; we want the sum over all tokens of the step.
        share = self.average.share(step) if self.average is not None else 0.0
        self.numbers.tell(
            learning_rate_at(self.config.optimizer, step, self.config.steps), self.processes.world_size / count, share
        )
        for place, batch in batches:
            torch.manual_seed(step_seed(self.config.seed, step, place))
            self.compute(batch, place == last)

    def compute(self, batch: Batch, last: bool) -> None:
        """Learn from one batch, which lies in the memory of the host; after the last move the weights."""
        self.learn(self.moved(batch), last)
        if last:
            self.update()

    def moved(self, batch: Batch) -> Batch:
        """The batch where the model is."""
        return batch.pin().to(self.device) if self.device.type == "cuda" else batch

    def learn(self, batch: Batch, last: bool = True) -> None:
        """Forward and backward; gradients add up, and with the last batch go to the other processes."""
        with nullcontext() if last or not self.processes.is_distributed else self.wrapped.no_sync():
            batch = self.objective.prepare(self.model, batch)
            with (
                torch.autocast(self.device.type, torch.bfloat16, enabled=self.half),
                self.compiled_blocks.enabled() if self.compiled_blocks else nullcontext(),
            ):
                loss = self._forward(batch)
            torch.autograd.backward(loss * self.numbers.scale)
        self.loss += loss.detach()

    def update(self) -> None:
        """Clip, move the weights and their average, and forget the gradients."""
        parameters = [part for part in self.model.parameters() if part.grad is not None]
        self.norm.copy_(nn.utils.clip_grad_norm_(parameters, self.config.clip or math.inf, foreach=True))
        for group in self.optimizer.param_groups:
            factor = group.get("factor", 1.0)
            group["lr"] = self.numbers.rate if factor == 1.0 else self.numbers.rate * factor
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.model, self.numbers.share)

    def _forward(self, batch: Batch) -> Tensor:
        try:
            total: Tensor = self.wrapped(batch).total
        except torch.OutOfMemoryError:
            shape = f"{batch.source.shape[0]} rows × {batch.source.shape[1]} and {batch.target.shape[1]} tokens"
            raise DragomanError(
                f"out of memory at a batch of {shape}; lower train.batch_tokens (now {self.config.batch_tokens}) "
                "and raise train.accumulate to keep the same step"
            ) from None
        return total


class Captured(NamedTuple):
    """A step as the GPU repeats it, and the tensors from which it reads its batch."""

    graph: torch.cuda.CUDAGraph
    source: Tensor
    target: Tensor


class CapturedStep(Step):
    """Plain when a shape is first met, which also warms it up; captured the second time, then replayed."""

    def __init__(self, *arguments: Any, say: Callable[[str], None]) -> None:
        super().__init__(*arguments)
        self.say = say
        self.graphs: dict[tuple[Any, ...], Captured | None] = {}
        self.pool = torch.cuda.graph_pool_handle()  # one for all: they never run at the same time
        self.capturing = True
        self.inputs = GraphInputs(self.model)  # the memory that the graphs read

    def compute(self, batch: Batch, last: bool) -> None:
        """Learn from one batch, which lies in the memory of the host."""
        if self.inputs.moved():
            self.graphs.clear()
            self.inputs = GraphInputs(self.model)
        shape = batch.graph_key
        captured = self.graphs.get(shape)
        if captured is None and shape in self.graphs and self.capturing and len(self.graphs) <= MOST_GRAPHS:
            captured = self.graphs[shape] = self._capture(batch)
        if captured is None:
            self.graphs[shape] = None
            super().compute(batch, last)
            return
        captured.source.copy_(batch.source.pin_memory(), non_blocking=True)
        captured.target.copy_(batch.target.pin_memory(), non_blocking=True)
        captured.graph.replay()

    def _capture(self, batch: Batch) -> Captured | None:
        source, target = (part.to(self.device) for part in (batch.source, batch.target))
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            graph.capture_begin(self.pool, capture_error_mode="thread_local")
            try:
                self.learn(batch.with_buffers(source, target))
                self.update()
            finally:
                graph.capture_end()
        except (RuntimeError, torch.OutOfMemoryError) as error:
            self.capturing = False
            self.optimizer.zero_grad(set_to_none=True)
            first = str(error).split("\n", 1)[0]
            self.say(f"train.compile: a step could not be captured ({first}); going on with plain steps")
            return None
        return Captured(graph, source, target)


def obstacles(config: TrainConfig, model: Any, processes: ProcessGroup, device: torch.device) -> list[str]:
    """Why steps cannot be captured, or need not be."""
    found = []
    if device.type != "cuda":
        found.append("there is no GPU")
    if processes.is_distributed:
        found.append("several processes train together")
    if config.accumulate > 1:
        found.append(f"train.accumulate is {config.accumulate}")
    if not isinstance(config.objective, LikelihoodConfig):
        found.append(f'train.objective is "{config.objective.kind}"')
    found.extend(model.graph_blockers)
    # All steps count, not those that are left: a run that was stopped must go on in the way it began.
    if config.compile == "auto" and config.steps < WORTH_CAPTURING:
        found.append(f"train.steps is {config.steps}")
    return found


def worth_kernels(config: TrainConfig, model: nn.Module) -> bool:
    """Whether a run is so long that compiling its kernels pays: by the operations of all its steps."""
    parameters = sum(part.numel() for part in model.parameters())
    return 6 * parameters * config.batch_tokens * config.accumulate * config.steps > WORTH_KERNELS


def build_step(
    config: TrainConfig,
    model: Any,
    wrapped: Any,
    objective: Any,
    optimizer: torch.optim.Optimizer,
    average: MovingAverage | None,
    processes: ProcessGroup,
    device: torch.device,
    half: bool,
    say: Callable[[str], None],
) -> Step:
    """The fastest way that the configuration, the model and the machine allow; what stands in the way is told."""
    on_gpu = device.type == "cuda"
    kernels = config.compile == "kernels" or (config.compile == "auto" and on_gpu and worth_kernels(config, model))
    if kernels:
        set_compiler_caches()
    arguments = (config, model, wrapped, objective, optimizer, average, processes, device, half, kernels)
    if config.compile == "off":
        return Step(*arguments)
    reasons = obstacles(config, model, processes, device)
    if not reasons:
        return CapturedStep(*arguments, say=say)
    if on_gpu or config.compile == "graphs":
        say(f"plain training steps, without CUDA graphs: {'; '.join(reasons)}")
    return Step(*arguments)
