"""The settings of the training loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from dragoman.config.settings import Range, setting
from dragoman.training.objectives import LikelihoodConfig, ObjectiveConfig
from dragoman.training.optimizer import AverageConfig, NoAverageConfig, OptimizerConfig
from dragoman.training.transfer import RateConfig, StartFromConfig

Count = Annotated[int, Range(1, None)]


@dataclass(frozen=True)
class TrainConfig:
    """How long, how fast and how careful."""

    steps: Count = setting(10_000, help="optimiser steps at most")
    seed: Annotated[int, Range(0, None)] = setting(1, help="decides start weights, batch order and dropout")
    start_from: str | StartFromConfig = setting(
        "",
        help='a run whose best weights this one starts with, wholly or { run = "runs/x", parts = ["encoder"] }; '
        "without a tokenizer its own is used too. Empty: random weights",
    )
    freeze: tuple[str, ...] = setting(
        (),
        help='weights that stay as they are: names, each with all below it ("encoder.embedding" is not '
        '"encoder.embedding_norm"), or patterns such as "encoder.embedding*"',
    )
    rates: tuple[RateConfig, ...] = setting(
        (), help='learning rates of their own, as in [{ names = "encoder", factor = 0.1 }]; of several the last holds'
    )
    objective: ObjectiveConfig = setting(LikelihoodConfig(), help="what training makes small")
    batch_tokens: Count = setting(
        4096, help="most tokens of one batch on either side, padding included; of running text streams × segment"
    )
    accumulate: Count = setting(1, help="batches whose gradients make one step, in every process")
    optimizer: OptimizerConfig = setting(OptimizerConfig(), help="AdamW and its schedule")
    clip: Annotated[float, Range(0.0, None)] = setting(1.0, help="longest gradient; 0 never shortens it")
    average: AverageConfig = setting(NoAverageConfig(), help="which weights are validated and kept")
    validate_every: Count = setting(500, help="steps between validations; the last step is always validated")
    metric: str = setting("loss", help="what chooses the best weights, of those that the task has")
    decode: Annotated[int, Range(0, None)] = setting(
        200, help="validation inputs decoded greedily for the other metrics; 0 for none"
    )
    patience: Annotated[int, Range(0, None)] = setting(
        10, help="stop after so many validations without a better one; 0 never stops early"
    )
    save_every: Count = setting(500, help="steps between checkpoints")
    log_every: Count = setting(50, help="steps between lines of progress and of metrics.jsonl")
    device: str = setting("auto", help='"auto", "cpu", "cuda" or "cuda:1"')
    precision: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", help="bfloat16 runs matrix products in half precision; auto does so on GPUs that can"
    )
    compile: Literal["auto", "off", "graphs", "kernels"] = setting(
        "auto",
        help="graphs: a GPU repeats the step that was captured for each batch shape, to the same weights; kernels: "
        "also compile the model's blocks, which takes a minute; auto: on a GPU, what a run of train.steps gains by",
    )
    tensorboard: bool = setting(False, help="also write TensorBoard files (extra 'tensorboard')")

    @property
    def pretrained(self) -> StartFromConfig | None:
        """The run this one starts from; None: there is none."""
        if isinstance(self.start_from, str):
            return StartFromConfig(self.start_from) if self.start_from else None
        return self.start_from

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        if isinstance(self.start_from, StartFromConfig) and not self.start_from.run:
            yield "start_from.run: found nothing, expected the folder of a run"
        if self.metric != "loss" and self.decode == 0:
            yield f"decode: found 0, expected at least 1 since train.metric = {self.metric!r} needs decoding"
