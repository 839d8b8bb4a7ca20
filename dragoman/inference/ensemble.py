"""What computes for a predictor: one run's model or an ensemble, and the engine that searches with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dragoman.classical.model import FittedModel
from dragoman.data.tokenizers.pair_codec import PairCodec
from dragoman.decoding.ensemble import Ensemble
from dragoman.decoding.options import DecodingOptions
from dragoman.errors import ConfigError, RunError
from dragoman.exchange.choice import EngineChoice
from dragoman.files import write_text
from dragoman.inference.loaded import LoadedRun, check_vocabularies, opened

MEMBERS_FILE = "ensemble.json"


@dataclass(frozen=True)
class Backend:
    """A model to search with, how long its outputs may become, and the engine that may search in place of torch."""

    model: Any
    length_ratio: float
    engines: EngineChoice
    codec: PairCodec


def open_backend(first: LoadedRun, options: DecodingOptions) -> Backend:
    """The backend of a run; with `options.ensemble` all runs are averaged token by token."""
    tokenizers = (first.source_tokenizer, first.target_tokenizer)
    engines = EngineChoice(first.run, tokenizers, options.engine, options.precision, first.device)
    if first.half != (options.precision == "bfloat16"):
        first = LoadedRun(first.run, str(first.device), options.precision)
    if not options.ensemble:
        return Backend(first.model, first.length_ratio, engines, first.codec)
    runs = [first, *(opened(run, str(first.device), options.precision) for run in options.ensemble)]
    for other in runs[1:]:
        check_vocabularies(first, other, "an ensemble")
    if any(isinstance(run.model, FittedModel) for run in runs):
        raise ConfigError("an ensemble averages neural models; found one without a neural network")
    model = Ensemble([run.model for run in runs], options.average)
    copies = all(run.codec.copies for run in runs)  # other models cannot read the ids of copied words
    codec = first.codec if copies else PairCodec(first.source_tokenizer, first.target_tokenizer)
    return Backend(model, max(run.length_ratio for run in runs), engines, codec)


def write_members(folder: Path, members: Sequence[str]) -> None:
    """Make a run folder an ensemble: its own model and those of these run folders inside it."""
    write_text(folder / MEMBERS_FILE, json.dumps({"members": list(members)}))


def member_folders(folder: Path) -> tuple[Path, ...]:
    """The other runs of a run folder that is an ensemble; none for an ordinary one."""
    path = folder / MEMBERS_FILE
    if not path.is_file():
        return ()
    try:
        members = [folder / str(name) for name in json.loads(path.read_text(encoding="utf-8"))["members"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: damaged ({error})") from None
    for member in members:
        if not member.resolve().is_relative_to(folder.resolve()):
            raise RunError(f"{path}: found the member {member}, expected folders inside {folder}")
    return tuple(members)


def with_members(options: DecodingOptions, folder: Path) -> DecodingOptions:
    """The options with the stored members of a run folder before those that were asked for."""
    members = member_folders(folder)
    return replace(options, ensemble=(*members, *options.ensemble)) if members else options
