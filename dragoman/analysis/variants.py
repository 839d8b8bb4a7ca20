"""A run changed as a whole, to put beside it: before training, or without positions."""

from __future__ import annotations

from pathlib import Path

import torch

from dragoman.analysis.order import position_modules, positions_off
from dragoman.analysis.subject import Loaded
from dragoman.classical.model import FittedModel
from dragoman.errors import DataError
from dragoman.inference.load import load_run

# Names of what is put beside a run, and the arguments of `open_variant`.
VARIANTS: dict[str, dict[str, bool]] = {"untrained": {"untrained": True}, "no-positions": {"positions": False}}


def open_variant(
    folder: str | Path, device: str = "auto", *, untrained: bool = False, positions: bool = True
) -> Loaded:
    """A run with the random weights that training began with, or without its positions, or as it is.

    The model is changed for good, and torch alone may compute with it: an engine would read the weights of the folder.
    """
    loaded = load_run(folder, device, engine="torch")
    model = loaded.single_model("a variant is that of one model")
    if untrained:
        if isinstance(model, FittedModel):
            kind = loaded.config.model.kind
            raise DataError(f'model.kind = "{kind}" is counted from data, so it has no weights before training')
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(loaded.config.train.seed)
            fresh = loaded.run.task.model(loaded.config, loaded.source_tokenizer, loaded.target_tokenizer)
            for own, first in zip(model.parameters(), fresh.parameters(), strict=True):
                own.copy_(first)
    if not positions:
        if not position_modules(model):
            raise DataError(f"{loaded.run.folder}: the model has no positions that could be left out")
        model.left_out = positions_off(model)  # kept with the model: a block that is collected ends
        model.left_out.__enter__()
    return loaded


def variant_title(name: str, *, untrained: bool = False, positions: bool = True) -> str:
    """What a page calls it."""
    changes = (["before training"] if untrained else []) + ([] if positions else ["without positions"])
    return f"{name} ({', '.join(changes)})" if changes else name
