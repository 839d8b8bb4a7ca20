"""Initialise a new model with trained weights: from another run (train.start_from) or from torchvision."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dragoman.base import RunError, copy_into
from dragoman.base import config as settings
from dragoman.data import Corpus
from dragoman.models import Encoder, EncoderDecoderConfig
from dragoman.models.encoders import TorchvisionConfig, trunk_of
from dragoman.runs.folder import IMPORTED, Run, import_record
from dragoman.runs.tasks.config import Config
from dragoman.training import EMBEDDING_TABLES, TransferReport, load_run

# Settings that do not change the meaning of a weight, though they may change how many there are.
HARMLESS = re.compile(r"dropout$|layers$|max_positions$")


def check_start_run(folder: str) -> None:
    """Refuse a train.start_from that is no run, or has no weights of a network."""
    try:
        run = Run(folder)
        run.check_single("a model begins with the weights of one")
        run.weights_path()
        if run.is_fitted:
            raise RunError(
                f'{folder}: found model.kind = "{run.config.model.kind}", which is fitted and has no weights of a '
                "network; leave train.start_from out, or name another run"
            )
    except RunError as error:
        raise RunError(f"train.start_from: {error}") from None


def check_teacher(folder: str) -> list[Run]:
    """The models of a run that an objective learns from: all members of an ensemble; refuse what cannot teach."""
    try:
        runs = [Run(folder), *Run(folder).other_members]
        for run in runs:
            run.weights_path()
            if not isinstance(run.config.model, EncoderDecoderConfig):
                raise RunError(
                    f"{run.folder}: found model.kind = {run.config.model.kind!r}, expected 'encoder-decoder'"
                )
    except RunError as error:
        raise RunError(f"train.objective.teachers: {error}") from None
    return runs


def teachers(config: Config, corpus: Corpus) -> list[Run]:
    """The runs whose models the objective reads; refuse other vocabularies than those of the training."""
    runs = [run for folder in config.train.objective.runs for run in check_teacher(folder)]
    for run in runs:
        ours = (corpus.source_tokenizer, corpus.target_tokenizer)
        for side, mine, theirs in zip(("source", "target"), ours, run.tokenizers(), strict=True):
            if mine.fingerprint() != theirs.fingerprint():
                raise RunError(
                    f"train.objective.teachers: {run.folder} has another {side} vocabulary ({len(theirs):,} "
                    f"{theirs.kind}) than this training ({len(mine):,} {mine.kind}); set tokenizer.{side}.kind=run "
                    f"tokenizer.{side}.run={run.folder}"
                )
    return runs


def keep_licence(config: Config, folder: Path) -> None:
    """A run that starts from an imported model keeps its licence."""
    start = config.train.pretrained
    if start is not None and import_record(start.run).get("licence"):
        copy_into((Path(start.run) / IMPORTED).resolve(), folder / IMPORTED)


def check_optional_packages(model: Any) -> None:
    """Raise MissingExtraError before the data are read if the model needs a package that is not installed."""
    encoder = getattr(model, "encoder", None)
    if isinstance(encoder, TorchvisionConfig):
        trunk_of(encoder.name, None)


def load_torchvision_weights(model: nn.Module) -> list[str]:
    """Load the published weights of the encoders that name some; returns a line for each."""
    lines = [module.load_pretrained() for module in model.modules() if isinstance(module, Encoder)]
    return [f"starts with {line}" for line in lines if line]


def load_start_run(config: Config, model: nn.Module, corpus: Corpus) -> TransferReport:
    """Load the best weights of train.start_from, or parts of them, into a new model."""
    start = config.train.pretrained
    assert start is not None
    run = Run(start.run)
    same_kind = run.config.task == config.task and type(run.config.model) is type(config.model)
    whole = same_kind and isinstance(config.train.start_from, str)
    ours = corpus.source_tokenizer, corpus.target_tokenizer
    return load_run(model, run.model(torch.device("cpu")), run.tokenizers(), ours, start, whole)


def settings_mismatch(config: Config, report: TransferReport) -> str:
    """How the settings of the loaded parts differ from those they were trained with; empty if they do not.

    Weights may fit and yet mean something else, such as those of attention with another number of heads.
    """
    start = config.train.pretrained
    assert start is not None
    their_model = Run(start.run).config.model
    their_names = {ours: theirs for theirs, _, ours in (part.partition(":") for part in start.parts) if ours}
    parts: dict[str, str] = {}  # our name of each loaded part → their name
    for name in report.loaded:
        if not fnmatchcase(name, EMBEDDING_TABLES):  # an embedding means the same in every model
            ours = next((part for part in their_names if f"{name}.".startswith(f"{part}.")), name.partition(".")[0])
            parts[ours] = their_names.get(ours, ours)
    changed: list[str] = []
    for ours, theirs in parts.items():
        before, now = settings_of_part(their_model, theirs), settings_of_part(config.model, ours)
        if hasattr(before, "kind") and type(before) is type(now):
            changed += [
                f"model.{ours}.{place} was {old!r}, is {new!r}"
                for place, old, new in settings.differences(before, now)
                if not HARMLESS.search(place)
            ]
    return f"{start.run} was trained with other settings: {'; '.join(changed)}" if changed else ""


def settings_of_part(model: Any, part: str) -> Any:
    """The settings of a part of a model, by the name of its weights; None if it has none of its own."""
    names = part.split(".")
    if names[0] == "decoder_head":
        names = names[1:] or ["decoder"]  # a captioner's
    for name in names:
        model = getattr(model, name, None)
    return model
