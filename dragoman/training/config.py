"""The settings of training. Nothing here imports torch, so that the configuration of any run is read quickly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from dragoman.base.config import Range, Share, Size, SizeOrNone, setting
from dragoman.training.objectives.base import AnyObjectiveConfig, LikelihoodConfig

NonNegative = Annotated[float, Range(0.0, None)]
Positive = Annotated[float, Range(0.0, None, exclusive_minimum=True)]
ALL = "all"  # the parts of another run: all weights


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter 2019)."""

    learning_rate: Positive = setting(1e-3, help="peak learning rate of the schedule")
    schedule: Literal["inverse-sqrt", "cosine", "constant"] = setting(
        "inverse-sqrt", help="after the warm-up: proportional to 1/√step, half a cosine down to zero, or constant"
    )
    warmup: SizeOrNone = setting(1000, help="steps over which the learning rate rises linearly from zero")
    beta1: Share = setting(0.9, help="decay of the running mean of gradients")
    beta2: Share = setting(0.98, help="decay of the running mean of squared gradients")
    epsilon: Positive = setting(1e-9, help="added to the denominator for numerical stability")
    weight_decay: Annotated[float, Range(0.0, None)] = setting(0.0, help="decoupled weight decay of matrices")


@dataclass(frozen=True)
class NoAverageConfig:
    """No averaging: validate and keep the current weights."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class MovingAverageConfig:
    """Validate and keep an exponential moving average of the weights."""

    kind: ClassVar[str] = "ema"
    decay: Share = setting(0.999, help="decay of the moving average")


@dataclass(frozen=True)
class BestAverageConfig:
    """Keep the mean of the weights of the best validations."""

    kind: ClassVar[str] = "best"
    count: Size = setting(5, help="number of validations whose weights are averaged")


@dataclass(frozen=True)
class LastAverageConfig:
    """Keep the mean of the weights of the last validations (Vaswani et al. 2017)."""

    kind: ClassVar[str] = "last"
    count: Size = setting(5, help="number of validations whose weights are averaged")


AverageConfig = NoAverageConfig | MovingAverageConfig | BestAverageConfig | LastAverageConfig


@dataclass(frozen=True)
class RateConfig:
    """A learning-rate factor for some weights."""

    names: str = setting(help='module or weight name, or a pattern such as "*.attention.*"')
    factor: Annotated[float, Range(0.0, None, exclusive_minimum=True)] = setting(
        0.1, help="multiplies the learning rate of the schedule"
    )


@dataclass(frozen=True)
class LoRAConfig:
    """Low-rank adapters: only they are trained, and predictions use them merged into the weights."""

    rank: Size = setting(8, help="r: rows of A and columns of B")
    alpha: Annotated[float, Range(0.0, None, exclusive_minimum=True)] = setting(
        16.0, help="the product of B and A is multiplied by alpha / rank"
    )
    dropout: Share = setting(0.0, help="dropout on the input of the adapters")
    modules: tuple[str, ...] = setting(
        ("*.blocks.*",),
        help='linear layers that get an adapter: names of modules, or patterns such as "*.attention.*"; the default '
        "means all in the blocks of Transformers",
    )
    modules_to_save: tuple[str, ...] = setting(
        (), help='modules that are trained whole besides the adapters, such as a new output layer: ["output"]'
    )

    def problems(self) -> Iterator[str]:
        if not self.modules:
            yield "modules: found an empty list, expected names or patterns of linear layers"


@dataclass(frozen=True)
class StartFromConfig:
    """A run whose weights, or parts of them, initialise this one."""

    run: str = setting(help="run folder")
    parts: tuple[str, ...] = setting(
        (ALL,),
        help='parts to load: "all", "encoder", "decoder", "embeddings" or any module name; '
        '"stack:decoder" loads "stack" into "decoder"',
    )
    by_token: bool = setting(False, help="if vocabularies differ, load the embeddings of the tokens that both have")


@dataclass(frozen=True)
class VectorsConfig:
    """Files of word vectors that initialise embeddings."""

    source: str = setting("", help="file with vectors of source words: GloVe, word2vec (text or binary), fastText .vec")
    target: str = setting("", help="the same for target words")
    frozen: bool = setting(False, help="do not train these embeddings, those of words without a vector included")

    def problems(self) -> Iterator[str]:
        if self.frozen and not (self.source or self.target):
            yield "frozen: found true without a file of vectors"


@dataclass(frozen=True)
class TrainConfig:
    """Length, batches, optimiser, validation and checkpoints of a training run."""

    steps: Size = setting(10_000, help="maximum number of optimiser steps")
    epochs: NonNegative = setting(
        0.0, help="passes over the training data, from which train.steps follows; 0: train.steps as it is set"
    )
    minutes: NonNegative = setting(
        0.0,
        help="stop after so many minutes, validations included, of which all but the last take up to a fifth; 0: "
        "train.steps alone decides",
    )
    seed: SizeOrNone = setting(1, help="random seed of initial weights, batch order and dropout")
    start_from: str | StartFromConfig = setting(
        "",
        help='run whose best weights initialise this one: "runs/x", or parts of it as { run = "runs/x", parts = '
        '["encoder"] }. Without a [tokenizer] table its tokenizer is used too. Empty: random weights',
    )
    vectors: VectorsConfig = setting(
        VectorsConfig(), help="files of pre-trained word vectors that initialise the embeddings of their words"
    )
    freeze: tuple[str, ...] = setting(
        (),
        help='weights that are not trained: names of modules or weights ("encoder.embedding" does not include '
        '"encoder.embedding_norm"), or patterns such as "encoder.embedding*"',
    )
    lora: LoRAConfig | None = setting(
        None, help="fine-tune train.start_from with low-rank adapters, as in train.lora.rank=8; all other weights stay"
    )
    rates: tuple[RateConfig, ...] = setting(
        (),
        help='learning-rate factors by name, as in [{ names = "encoder", factor = 0.1 }]; the last match counts',
    )
    objective: AnyObjectiveConfig = setting(LikelihoodConfig(), help="training objective")
    batch_tokens: Size = setting(
        4096,
        help="maximum tokens of a batch on each side, padding included; for language models parallel streams × segment",
    )
    batch_rows: SizeOrNone = setting(
        0,
        help="rows of a batch, of any lengths and in random order, in place of batch_tokens of similar lengths; 0: "
        "batch_tokens. More padding, but short rows count no more than others",
    )
    accumulate: Size = setting(1, help="batches per step in every process, whose gradients are accumulated")
    optimizer: OptimizerConfig = setting(OptimizerConfig(), help="AdamW and its learning-rate schedule")
    clip: NonNegative = setting(1.0, help="maximum gradient norm; 0 disables clipping")
    average: AverageConfig = setting(NoAverageConfig(), help="weight averaging: which weights are validated and kept")
    validate_every: Size = setting(500, help="steps between validations; the last step is always validated")
    metric: str = setting("loss", help="metric of the task that selects the best weights")
    decode: SizeOrNone = setting(200, help="validation inputs that are decoded greedily for text metrics; 0 for none")
    patience: SizeOrNone = setting(10, help="stop after this many validations without improvement; 0 never stops early")
    save_every: Size = setting(500, help="steps between checkpoints")
    log_every: Size = setting(50, help="steps between log lines on the screen and in metrics.jsonl")
    device: str = setting("auto", help='"auto", "cpu", "cuda", "cuda:1" or "mps"')
    precision: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", help="bfloat16: autocast matrix products to bfloat16; auto: on GPUs that support it"
    )
    compile: Literal["auto", "off", "graphs"] = setting(
        "auto",
        help="graphs: replay each step as a CUDA graph, with fused kernels in half precision; auto: on a GPU, unless "
        "train.steps are few",
    )
    shard: Literal["off", "on"] = setting(
        "off",
        help="on: each of several processes keeps a part of weights, gradients and optimiser state (FSDP2), for models "
        "that one GPU cannot train",
    )
    checkpoint_activations: bool = setting(
        False, help="Transformers: the backward pass computes activations again, which saves memory and takes time"
    )
    tensorboard: bool = setting(False, help="also write TensorBoard files (package tensorboard)")
    track: tuple[str, ...] = setting(
        (),
        help='programs that record the metrics: "tensorboard", "mlflow", "wandb", "trackio" (packages of these names), '
        "or those of plug-ins",
    )

    @property
    def trackers(self) -> tuple[str, ...]:
        """The names of all trackers that follow the run."""
        return tuple(dict.fromkeys((*self.track, *(["tensorboard"] if self.tensorboard else []))))

    @property
    def pretrained(self) -> StartFromConfig | None:
        """The run that initialises this one; None without train.start_from."""
        if isinstance(self.start_from, str):
            return StartFromConfig(self.start_from) if self.start_from else None
        return self.start_from

    def problems(self) -> Iterator[str]:
        if isinstance(self.start_from, StartFromConfig) and not self.start_from.run:
            yield "start_from.run: found nothing, expected the folder of a run"
        if self.lora is not None and self.pretrained is None:
            yield "lora: adapters change trained weights, expected the run that has them in train.start_from"
        if self.metric != "loss" and self.decode == 0:
            yield f"decode: found 0, expected at least 1 since train.metric = {self.metric!r} needs decoding"
