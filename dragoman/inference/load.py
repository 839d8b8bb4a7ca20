"""Open a trained run: a Predictor, a Labeler or a Completer, as its task says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from dragoman.base import ConfigError, RunError
from dragoman.decoding import DecodingOptions, changed_fields, replace_from_keywords
from dragoman.inference.inputs import DecodingKeywords
from dragoman.inference.opened_inputs import reads_files
from dragoman.inference.predictor import Predictor
from dragoman.runs import Run

if TYPE_CHECKING:
    from dragoman.inference.completer import Completer
    from dragoman.inference.labeler import Labeler

Folders = str | Path | Sequence[str | Path]


def load_run(
    folder: Folders, device: str = "auto", options: DecodingOptions | None = None, **keywords: Unpack[DecodingKeywords]
) -> Predictor | Labeler | Completer:
    """Open any trained run; `options` and keywords are the decoding defaults of a predictor."""
    (options,) = replace_from_keywords(dict(keywords), options or DecodingOptions())
    run = Run(folder) if isinstance(folder, str | Path) else None
    if run is None or run.task.searches:
        return load_predictor(folder, device, options)
    for name in changed_fields(options):
        value = getattr(options, name)
        if name not in ("batch_size", "scores") and (name, value) != ("engine", "torch"):
            raise ConfigError(
                f"{name}: found {value}, which is for runs that search for an output text; "
                f'{folder} has task = "{run.task.name}"'
            )
    if run.task.is_language_model:
        from dragoman.inference.completer import Completer

        return Completer(run, device)
    from dragoman.inference.labeler import labeler_of

    return labeler_of(run, device)


def load_predictor(
    folder: Folders, device: str = "auto", options: DecodingOptions | None = None, **keywords: Unpack[DecodingKeywords]
) -> Predictor:
    """Open a run whose outputs are found by a search, or several as an ensemble; any other run is an error."""
    (options,) = replace_from_keywords(dict(keywords), options or DecodingOptions())
    if isinstance(folder, str | Path):
        return Predictor(Run(folder), device, options)
    if not folder:
        raise ConfigError("an ensemble needs at least one run, found none")
    first, *others = folder
    (options,) = replace_from_keywords({"ensemble": tuple(others)}, options)
    return Predictor(Run(first), device, options)


def load_completer(folder: str | Path, device: str = "auto") -> Completer:
    """Open a trained language model; any other run is an error."""
    from dragoman.inference.completer import Completer

    return Completer(Run(folder), device)


def require_texts(verb: str, folder: str | Path) -> None:
    """Raise an error for a run that reads files, and for one whose outputs need no search."""
    run = Run(folder)
    if reads_files(run):
        raise ConfigError(f'{verb} needs a run that reads text; {folder} has task = "{run.task.name}"')
    if run.task.head_decoder is not None:
        raise RunError(
            f'{folder}: found task = "{run.task.name}", which needs no search; {verb} needs task = "translate"'
        )
