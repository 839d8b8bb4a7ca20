"""One optimiser step: forward, backward, gradient clipping, weight update and moving average.

On a GPU, small models spend most of a step waiting for Python to launch kernels. A batch plan has few batch shapes, so
a CUDA graph captures the whole step once per shape and is replayed afterwards. A graph launches the same kernels on
the same numbers, so a step gives the same weights before and after its shape is captured. The values that change from
step to step (learning rate, loss scale, average weight) are read from tensors; dropout is read from the generator that
every step seeds.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.base import DragomanError, brief
from dragoman.data import Batch
from dragoman.models import Loss
from dragoman.models.kernels import GraphInputs, StepBuffers, fused_layers, wide
from dragoman.models.layers import Linear
from dragoman.training.config import MovingAverageConfig, TrainConfig
from dragoman.training.objectives.base import Objective
from dragoman.training.optimizer import MovingAverage, build_optimizer
from dragoman.training.runtime import Runtime, use_bfloat16
from dragoman.training.sharding import checkpoint_activations, gathered, shard, whole
from dragoman.training.trained_weights import rate_factors

MIN_STEPS_TO_CAPTURE = 200  # in shorter runs, capturing costs more than it saves
MAX_GRAPHS = 512  # batch shapes; each graph holds driver memory
StepGraph = tuple[torch.cuda.CUDAGraph, Batch]  # a captured step, and the buffers from which it reads its batch


def step_seed(seed: int, step: int, batch: int) -> int:
    """The dropout seed of one batch of a step; it does not depend on the process that computes the batch."""
    text = f"{seed}/{step}/{batch}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


class LossModule(nn.Module):
    """A model whose forward pass is the loss of an objective.

    DistributedDataParallel wraps this module, so it sees everything that the objective computes. Checkpoints hold the
    weights of the model inside, by the names that they have there.
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Any) -> Loss:
        return self.objective.loss(self.model, batch)


class StepScalars:
    """The scalars of a step; on a GPU they are tensors on it, so that a captured graph reads new values."""

    def __init__(self, device: torch.device) -> None:
        self._tensor = torch.zeros(3, device=device) if device.type == "cuda" else None

    def set(self, learning_rate: float, loss_scale: float, average_weight: float) -> None:
        """Set the scalars of the next step; `average_weight` is the weight of the new parameters in the average."""
        if self._tensor is None:
            self.learning_rate, self.loss_scale, self.average_weight = learning_rate, loss_scale, average_weight
        else:
            values = torch.tensor([learning_rate, loss_scale, average_weight])
            self._tensor.copy_(values.pin_memory(), non_blocking=True)
            self.learning_rate, self.loss_scale, self.average_weight = self._tensor.unbind()  # type: ignore[assignment]


class TrainingStep:
    """A plain optimiser step, for every device: a model and everything that updates its weights."""

    def __init__(self, config: TrainConfig, model: Any, objective: Objective, runtime: Runtime) -> None:
        self.config, self.model, self.objective = config, model, objective
        self.device, self.processes, self.display = runtime.device, runtime.processes, runtime.display
        self.sharded = config.shard == "on"
        # What validation, prediction and the best weights read: one whole model, in the main process.
        self.whole_model = copy.deepcopy(model) if self.sharded and self.processes.is_main else model
        if config.checkpoint_activations:
            checkpoint_activations(model)
        self.loss_module: Any = LossModule(model, objective)
        factors = rate_factors(model, config.rates)
        # In a job of several processes, they share the gradients, or also weights and optimiser state.
        if self.sharded:
            self.loss_module = shard(self.loss_module, model, self.device, self.processes.world_size)
        else:
            unused = bool(model.has_unused_parameters)
            self.loss_module = self.processes.data_parallel(self.loss_module, self.device, unused)
        self.optimizer = build_optimizer(config.optimizer, model, factors)
        self.average = MovingAverage(config.average, model) if isinstance(config.average, MovingAverageConfig) else None
        self.bfloat16 = use_bfloat16(config.precision, self.device)
        self.loss = torch.zeros((), dtype=wide(self.device), device=self.device)  # summed until the trainer resets it
        self.gradient_norm = torch.zeros((), device=self.device)  # of the last step, before clipping
        self.scalars = StepScalars(self.device)

    def __call__(
        self,
        batches: Iterable[tuple[int, Batch]],
        last: int,
        step: int,
        count: int,
        rate: float,
        scheduled: int,
    ) -> None:
        """Train on this process's batches, each with its index among all batches of the step.

        `last` is the index of this process's last batch; `count` is the number of loss terms of all batches; `rate` is
        the learning rate; `scheduled` is the step that a schedule of the objective reads. It has no default: where
        train.minutes ends training before the last step, `step` would be wrong.
        """
        loss_scale = self.processes.world_size / count  # DDP averages gradients; we want the sum over all tokens
        self.scalars.set(rate, loss_scale, self.average.new_weight(step) if self.average is not None else 0.0)
        self.objective.set_step(scheduled, self.device)
        for index, batch in batches:
            self.seed(step_seed(self.config.seed, step, index))
            self.run_batch(batch, index == last)

    def seed(self, number: int) -> None:
        """Seed dropout; for GPUs that nobody has used yet, torch.manual_seed would write down the whole call stack."""
        (torch.default_generator if self.device.type == "cpu" else torch).manual_seed(number)

    def run_batch(self, batch: Batch, last: bool) -> None:
        """Add the gradients of a batch in host memory; after the last one update the weights."""
        try:
            self.forward_backward(batch.pin().to(self.device) if self.device.type == "cuda" else batch, last)
        except torch.OutOfMemoryError:
            shape = f"{len(batch.source)} rows × {batch.source.data.shape[1]} and {batch.target.shape[1]} tokens"
            raise DragomanError(
                f"out of memory at a batch of {shape}; lower train.batch_tokens (now {self.config.batch_tokens}) "
                "and raise train.accumulate to keep the same step"
            ) from None
        if last:
            self.update()

    def forward_backward(self, batch: Batch, last: bool = True) -> None:
        """Accumulate the gradients of a batch; with the last batch DDP reduces them over the processes."""
        prepared = self.objective.prepare(self.model, batch)  # before autocast: sampling is in full precision
        waits = self.processes.is_distributed and not last
        if self.sharded:
            self.loss_module.set_requires_gradient_sync(last)
        with self.loss_module.no_sync() if waits and not self.sharded else nullcontext():
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
                loss: Tensor = self.loss_module(prepared).total
            torch.autograd.backward(loss * self.scalars.loss_scale)
        self.loss += loss.detach()

    def gather(self) -> None:
        """Bring the whole model up to date; all processes call this together."""
        if self.sharded:
            weights = gathered(dict(self.model.named_parameters()), keep=self.processes.is_main)
            with torch.no_grad():
                for name, parameter in self.whole_model.named_parameters() if self.processes.is_main else ():
                    parameter.copy_(weights[name])

    def update(self) -> None:
        """Clip the gradients, update the weights and their average, and clear the gradients."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        norm = nn.utils.clip_grad_norm_(parameters, self.config.clip or math.inf, foreach=True)
        self.gradient_norm.copy_(whole(norm))
        for group in self.optimizer.param_groups:
            factor = group.get("factor", 1.0)
            group["lr"] = self.scalars.learning_rate if factor == 1.0 else self.scalars.learning_rate * factor
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(self.model, self.scalars.average_weight)


class CudaGraphStep(TrainingStep):
    """A step that is plain for a new batch shape (this also warms up), captured the second time, then replayed."""

    def __init__(self, config: TrainConfig, model: Any, objective: Objective, runtime: Runtime) -> None:
        super().__init__(config, model, objective, runtime)
        self.graphs: dict[tuple[Any, ...], StepGraph | None] = {}
        self.pool = torch.cuda.graph_pool_handle()  # shared: graphs never run at the same time
        self.capturing = True
        self.inputs = GraphInputs(self.model)  # the memory that the graphs read
        layers = [module for module in self.model.modules() if isinstance(module, Linear)]
        weights = [one for layer in layers for one in (layer.weight, layer.bias) if one is not None]
        self.buffers = StepBuffers(weights if self.bfloat16 else [], torch.bfloat16)

    def run_batch(self, batch: Batch, last: bool) -> None:
        """Replay the graph of the batch's shape, or capture it, or run the plain step."""
        if self.inputs.moved():
            self.graphs.clear()
            self.inputs = GraphInputs(self.model)
        shape = batch.graph_key
        captured = self.graphs.get(shape)
        if captured is None and shape in self.graphs and self.capturing and len(self.graphs) <= MAX_GRAPHS:
            captured = self.graphs[shape] = self._capture(batch)
        if captured is None:
            self.graphs[shape] = None
            super().run_batch(batch, last)
            return
        graph, buffers = captured
        buffers.fill(batch)
        graph.replay()

    def forward_backward(self, batch: Batch, last: bool = True) -> None:
        self.buffers.refresh()
        with fused_layers.enabled(self.buffers):
            super().forward_backward(batch, last)

    def _capture(self, batch: Batch) -> StepGraph | None:
        buffers = batch.buffers(self.device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            graph.capture_begin(self.pool, capture_error_mode="thread_local")
            try:
                self.forward_backward(buffers)
                self.update()
            finally:
                graph.capture_end()
        except (RuntimeError, torch.OutOfMemoryError) as error:
            self.capturing = False
            self.optimizer.zero_grad()
            self.display.info(
                f"train.compile: a step could not be captured ({brief(error)}); continuing with plain steps"
            )
            return None
        return graph, buffers


def graph_blockers(config: TrainConfig, model: Any, runtime: Runtime) -> list[str]:
    """The reasons why this run does not capture its steps as CUDA graphs."""
    # All steps count, not the remaining ones: a resumed run must take the same steps as before.
    too_short = config.compile == "auto" and config.steps < MIN_STEPS_TO_CAPTURE
    blockers = (
        "there is no GPU" if runtime.device.type != "cuda" else "",
        "several processes train together" if runtime.processes.is_distributed else "",
        f"train.accumulate is {config.accumulate}" if config.accumulate > 1 else "",
        # The backward pass, in a thread of its own, would compute activations again without the kernels' dropout.
        "train.checkpoint_activations is on" if config.checkpoint_activations else "",
        config.objective.graph_blocker,
        *model.graph_blockers,
        f"train.steps is {config.steps}" if too_short else "",
    )
    return [blocker for blocker in blockers if blocker]


def build_step(config: TrainConfig, model: Any, objective: Objective, runtime: Runtime) -> TrainingStep:
    """The fastest step that configuration, model and device allow; the display says what prevents a faster one."""
    if config.compile != "off":
        blockers = graph_blockers(config, model, runtime)
        if not blockers:
            return CudaGraphStep(config, model, objective, runtime)
        if runtime.device.type == "cuda" or config.compile == "graphs":
            runtime.display.info(f"plain training steps, without CUDA graphs: {'; '.join(blockers)}")
    return TrainingStep(config, model, objective, runtime)
