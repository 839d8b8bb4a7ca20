"""What a search asks of the configuration of a trial."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from dragoman.config import settings
from dragoman.models.encoder_decoder import EncoderDecoderConfig
from dragoman.tasks.config import Config
from dragoman.tasks.table import task_of
from dragoman.training.validation.seq2seq import with_all_references


def planned_settings(config: Config, steps: int, every: int) -> list[str]:
    """The settings of a training of so many steps, validated after so many: patience and warm-up follow the length."""
    train, share = config.train, steps / config.train.steps
    patience = math.ceil(train.patience * max(1.0, share))
    warmup = math.ceil(train.optimizer.warmup * min(1.0, share))
    return [
        f"train.steps={steps}", f"train.validate_every={every}", f"train.save_every={every}",
        f"train.patience={patience}", f"train.optimizer.warmup={warmup}",
    ]  # fmt: skip


def is_length_given(overrides: Sequence[str]) -> bool:
    """Whether the user sets how long training takes, so that no time can."""
    train = settings.override({}, list(overrides)).get("train", {})
    return bool({"steps", "epochs"} & set(train if isinstance(train, Mapping) else ()))


def writes_tokens(config: Config) -> bool:
    """Whether a model can be averaged with others token by token."""
    return isinstance(config.model, EncoderDecoderConfig)


def is_fitted(config: Config) -> bool:
    """Whether a model is fitted in one go, without steps."""
    return bool(getattr(config.model, "fitted", False))


def is_slow(config: Config) -> bool:
    """Whether a model takes minutes to fit and to decode with."""
    return bool(getattr(config.model, "slow", False))


def search_metric(config: Config) -> str:
    """The metric that compares trials: of decoded text, since losses of different models hardly compare."""
    return "chrf" if config.train.metric == "loss" else config.train.metric


def prepared_validation(config: Config) -> int:
    """Tokenise the data once for all trials; returns the number of different validation inputs."""
    corpus = task_of(config).prepare(config)
    with corpus.valid_texts.open(encoding="utf-8") as file:
        return sum(1 for _ in with_all_references(map(json.loads, file)))
