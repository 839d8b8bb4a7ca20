"""What a search asks of the configuration of a trial, and the folds of a cross-validation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dragoman.auto.search.plan import Cost
from dragoman.auto.trial import Outcome, is_fitted
from dragoman.base import config as settings
from dragoman.base import write_text
from dragoman.data import Example, read_examples, source_hash
from dragoman.models import EncoderDecoderConfig
from dragoman.runs.tasks import Config, task_of
from dragoman.training import with_all_references

FOLDS = 3
TARGETS = {"loss": "chrf", "wer": "exact_match"}  # by the metric that selects the weights of a run
# Seconds of a search from which models may take minutes to fit: for each training pair, and at most.
SLOW_FIT, SLOW_FITS = 0.06, 600.0
FEW = 150  # validation pairs below which a score is too noisy to choose by


def planned_settings(config: Config, steps: int, every: int, begun: Sequence[str] = ()) -> list[str]:
    """The settings of a training of so many steps, validated after so many: patience and warm-up follow the length.

    A training that goes on keeps the warm-ups it has `begun` with; it could not be resumed with others.
    """
    train, share = config.train, steps / config.train.steps
    patience = math.ceil(train.patience * max(1.0, share))
    warmup = math.ceil(train.optimizer.warmup * min(1.0, share))
    planned = [
        f"train.steps={steps}", f"train.validate_every={every}", f"train.save_every={every}",
        f"train.patience={patience}",
    ]  # fmt: skip
    if begun:
        return [*planned, *(setting for setting in begun if ".warmup=" in setting)]
    planned.append(f"train.optimizer.warmup={warmup}")
    if objective := getattr(train.objective, "warmup", 0):
        planned.append(f"train.objective.warmup={math.ceil(objective * min(1.0, share))}")
    return planned


def is_length_given(overrides: Sequence[str]) -> bool:
    """Whether the user sets how long training takes, so that no time can."""
    train = settings.override({}, overrides).get("train", {})
    return bool({"steps", "epochs"} & set(train if isinstance(train, Mapping) else ()))


def family(config: Config) -> str:
    """What kind of model it is: members of an ensemble help more where their kinds differ."""
    model = config.model
    if isinstance(model, EncoderDecoderConfig):
        return f"{model.encoder.kind} {model.decoder.kind}"
    return str(model.kind)


def copies_at_first(config: Config) -> bool:
    """Whether a model copies its source before it has learned anything, and so needs few steps where much is copied."""
    return bool(getattr(getattr(config.model, "decoder", None), "copies_at_first", False))


def is_slow(config: Config) -> bool:
    """Whether a model takes minutes to fit and to decode with."""
    return bool(getattr(config.model, "slow", False))


def search_metric(config: Config, overrides: Sequence[str] = ()) -> str:
    """The metric that compares trials: the one that was asked for, or what the task is about.

    It is of decoded text, since losses of different models hardly compare. Outputs of a closed set of words, such as
    queries and commands, are right or wrong as a whole.
    """
    train, metric = settings.override({}, overrides).get("train", {}), config.train.metric
    asked = isinstance(train, Mapping) and "metric" in train
    return metric if asked and metric != "loss" else TARGETS.get(metric, metric)


def prepared_sizes(config: Config) -> tuple[int, int]:
    """Tokenise the data once for all trials; returns the numbers of training pairs and different validation inputs."""
    corpus = task_of(config).prepare(config)
    with corpus.valid_texts.open(encoding="utf-8") as file:
        return corpus.report["train"]["pairs"], sum(1 for _ in with_all_references(map(json.loads, file)))


def affordable_fits(configs: Mapping[str, Config], seconds: float | None, pairs: int) -> tuple[dict[str, Config], str]:
    """The configurations, those with a quick way to fit where the usual one takes too much of the time; what to say."""
    enough = min(SLOW_FITS, SLOW_FIT * pairs)
    if seconds is None or seconds >= enough or len(configs) == 1:
        return dict(configs), ""
    quick = {name: replace(config, model=config.model.quickly()) for name, config in configs.items() if is_slow(config)}
    least = f"from --time {math.ceil(enough / 60)}m on"
    line = f"search: {', '.join(quick)} is fitted without the tuning that is part of it {least}"
    return {**configs, **quick}, line if quick else ""


def needed_folds(config: Config, validation: int) -> int:
    """How many folds a search needs; 1: the validation pairs suffice, or pairs have tags or a context."""
    return 1 if validation >= FEW or config.data.has_tags or config.data.reads_more else FOLDS


def write_folds(config: Config, folder: Path, folds: int) -> list[Config]:
    """Write the parts of every fold, and return a configuration for each. Pairs of one source stay together."""
    example_format = task_of(config).example_format(config)
    items = read_examples(config.data, config.data.train, example_format=example_format)
    examples = [item for item in items if isinstance(item, Example)]
    hashes = sorted({source_hash(example) for example in examples})
    fold_of = {source: index % folds for index, source in enumerate(hashes)}
    rows = [example_format.to_record(example) for example in examples]
    configs = []
    for fold in range(folds):
        paths = {}
        for part, held_out in (("train", False), ("valid", True)):
            chosen = [row for example, row in zip(examples, rows, strict=True)
                      if (fold_of[source_hash(example)] == fold) == held_out]  # fmt: skip
            paths[part] = folder / f"fold-{fold + 1}-{part}.jsonl"
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen)
            write_text(paths[part], text)
        data = replace(
            config.data, train=str(paths["train"]), valid=str(paths["valid"]), columns=tuple(rows[0]), header=False
        )
        configs.append(replace(config, data=data))
    return configs


def cost_of(outcome: Outcome, config: Config) -> Cost:
    """What training takes; the output of a model that has hardly begun is twice as long as later ones, roughly."""
    if is_fitted(config):
        return Cost(speed=1e9, validation=outcome.loading)
    start = outcome.loading
    if outcome.speed:
        start += max(0.0, outcome.seconds - outcome.step / outcome.speed)
    usual = config.train
    return Cost(outcome.speed or 1.0, outcome.overhead / 2, start, usual.steps, usual.validate_every)
