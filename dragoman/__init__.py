"""Dragoman: sequence-to-sequence learning from pairs.

import dragoman

dragoman.train("my.toml", run="runs/x")
run = dragoman.load("runs/x")
print(run.predict(["hello"])[0].text)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.plugins import register
from dragoman.version import __version__

if TYPE_CHECKING:
    from dragoman.decoding.options import DecodingOptions
    from dragoman.tasks.config import Config

__all__ = ["DecodingOptions", "__version__", "load", "register", "train"]


def load(
    run: str | Path | Sequence[str | Path],
    device: str = "auto",
    options: DecodingOptions | None = None,
    **keywords: Any,
) -> Any:  # a Predictor, Labeler or Completer, as the run's task says
    """Open a trained run to `predict`, `stream` (or `complete`) and `evaluate`.

    Several runs that share their vocabularies become an ensemble. `options` and keywords such as `beam=8` are the
    defaults of every call: see `dragoman.decoding.options.DecodingOptions`.
    """
    from dragoman.inference.load import load_run

    return load_run(run, device, options, **keywords)


def train(
    config: Config | Mapping[str, Any] | str | Path,
    run: str | Path | None = None,
    *overrides: str,
    quiet: bool = False,
) -> Any:
    """Train a run from a configuration (object, table or TOML file) or from a file of pairs alone, and open it.

    Training resumes in an existing run folder. Without `run`, a file `my.toml` or `my.tsv` trains in `runs/my`.
    """
    from dragoman.files import run_name
    from dragoman.runs import train as train_run
    from dragoman.tasks import config as configuration
    from dragoman.training.display import Display

    if isinstance(run, str) and "=" in run and not Path(run).exists():
        raise TypeError(
            f"train: found {run!r} as the run folder, which looks like a setting; settings come after the folder: "
            f'train(DATA, "runs/my", {run!r})'
        )
    display = Display(quiet=quiet)
    if isinstance(config, str | Path):
        folder = Path(run) if run is not None else Path("runs") / run_name(str(config))
        if Path(config).suffix.lower() == ".toml":
            resolved = configuration.load(config, overrides)
        else:
            from dragoman.auto.configure import configure

            resolved, reasons = configure(str(config), overrides)
            for reason in reasons:
                display.info(reason)
    else:
        if run is None:
            raise TypeError("train needs run=FOLDER when the configuration is not a file")
        folder = Path(run)
        if isinstance(config, Mapping):
            resolved = configuration.build(config, overrides)
        else:
            if overrides:
                raise TypeError("overrides apply to a table or a file; change a Config with dataclasses.replace")
            resolved = config
    train_run(resolved, folder, display)
    display.info(f"run folder: {folder}")
    return load(folder)


def __getattr__(name: str) -> Any:
    """`dragoman.DecodingOptions`, imported when it is first used: it needs torch."""
    if name == "DecodingOptions":
        from dragoman.decoding.options import DecodingOptions

        return DecodingOptions
    raise AttributeError(f"module 'dragoman' has no attribute {name!r}")
