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

from dragoman.version import __version__

if TYPE_CHECKING:
    from dragoman.tasks.config import Config

__all__ = ["__version__", "load", "train"]


def load(
    run: str | Path | Sequence[str | Path], device: str = "auto", *, engine: str = "auto", precision: str = "float32"
) -> Any:  # a Predictor, for labels, numbers and tags an Labeler, for language models a Completer
    """Open a trained run; `predict`, `stream` (or `complete`) and `evaluate` of the result do the rest.

    On a CPU the engine is CTranslate2 where it is installed and gives the same text (`engine="auto"`); with
    `precision="int8"` it is faster still, and not quite the same. `engine="torch"` is our own search.
    Several runs that share their vocabularies are an ensemble. `dragoman.inference.companions.ensemble` has other
    ways to average them.
    """
    if not isinstance(run, str | Path):
        from dragoman.errors import ConfigError
        from dragoman.inference.companions import ensemble

        if engine == "ctranslate2" or precision != "float32":
            raise ConfigError("engine: found ctranslate2, which cannot do an ensemble; expected auto or torch")
        return ensemble(run, device)
    from dragoman.inference.load import load_run

    return load_run(run, device, engine=engine, precision=precision)


def train(
    config: Config | Mapping[str, Any] | str | Path,
    run: str | Path | None = None,
    *overrides: str,
    quiet: bool = False,
) -> Any:
    """Train from a configuration (object, table or TOML file) or from a file of pairs alone, and open the result.

    An existing run folder goes on where it stopped. Without `run`, a file `my.toml` or `my.tsv` trains in `runs/my`.
    """
    from dragoman.files import run_name
    from dragoman.runs import train as train_run
    from dragoman.tasks import config as configuration
    from dragoman.training.display import Display

    if isinstance(config, str | Path):
        folder = Path(run) if run is not None else Path("runs") / run_name(str(config))
        if Path(config).suffix.lower() == ".toml":
            resolved = configuration.load(config, overrides)
        else:
            from dragoman.auto.configure import configure

            resolved, _ = configure(str(config), overrides)
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
    train_run(resolved, folder, Display(quiet=quiet))
    return load(folder)
