"""Open a trained run: a Predictor, a Labeler or a Completer, as its task says."""

from __future__ import annotations

from pathlib import Path

from dragoman.errors import ConfigError
from dragoman.inference.completer import Completer
from dragoman.inference.labeler import Labeler, labeler_of
from dragoman.inference.predictor import Predictor
from dragoman.runs import Run


def load_run(
    folder: str | Path, device: str = "auto", *, engine: str = "auto", precision: str = "float32"
) -> Predictor | Labeler | Completer:
    """Open any trained run."""
    run = Run(folder)
    if run.task.head_decoder is None and not run.task.is_language_model:
        return Predictor(run, device, engine=engine, precision=precision)
    for name, found, usual in (("engine", engine, ("auto", "torch")), ("precision", precision, ("float32",))):
        if found not in usual:
            raise ConfigError(f'{name}: found {found}, which goes with a search; {folder} has task = "{run.task.name}"')
    return Completer(run, device) if run.task.is_language_model else labeler_of(run, device)


def load_predictor(
    folder: str | Path, device: str = "auto", *, engine: str = "auto", precision: str = "float32"
) -> Predictor:
    """Open a run whose outputs are found by a search; any other run is an error."""
    return Predictor(Run(folder), device, engine=engine, precision=precision)


def load_completer(folder: str | Path, device: str = "auto") -> Completer:
    """Open a trained language model; any other run is an error."""
    return Completer(Run(folder), device)
