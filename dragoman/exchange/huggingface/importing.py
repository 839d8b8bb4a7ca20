"""Import a model folder of Hugging Face as a run, so that every command works on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import save_file

from dragoman.config import settings
from dragoman.errors import ConfigError, DataError, RunError, hint
from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.family import Family, Imported, check_weights
from dragoman.exchange.huggingface.m2m100 import M2M100
from dragoman.exchange.huggingface.marian import Marian
from dragoman.exchange.huggingface.mbart import MBart
from dragoman.exchange.huggingface.t5 import T5
from dragoman.files import remove_folder
from dragoman.runs.folder import IMPORTED, RUN_FORMAT
from dragoman.tasks.table import task_of
from dragoman.version import __version__

FAMILIES: dict[str, Family] = {"marian": Marian(), "m2m_100": M2M100(), "mbart": MBart(), "t5": T5(), "mt5": T5()}
LENGTH_RATIO = 2.0  # target tokens for one source token, which limits the length of outputs; the folder does not say


class ImportReport(NamedTuple):
    """What was imported."""

    run: Path
    family: str
    task: str
    parameters: int
    licence: str  # empty: the folder names none


def import_folder(folder: str | Path, run: str | Path, options: Mapping[str, str] | None = None) -> ImportReport:
    """Write a run with the weights, tokenizers and generation settings of a model folder: whole, or not at all."""
    path = Path(run)
    if path.exists():
        raise RunError(f"{path}: exists already; expected the name of a new run folder")
    with Checkpoint(folder) as checkpoint:
        family = checkpoint.family
        if family not in FAMILIES:
            raise DataError(
                f"{checkpoint.folder / 'config.json'}: model_type: found {family!r}, which cannot be imported. "
                + hint(family, FAMILIES)
            )
        try:
            imported = FAMILIES[family].read(checkpoint, options or {})
        except ConfigError as error:
            raise DataError(f"{checkpoint.folder}: {error}") from None
        licence = checkpoint.licence()
        parameters = write_run(imported, path, checkpoint.folder)
    about = {"family": family, "licence": licence, "folder": str(checkpoint.folder.absolute())}
    (path / IMPORTED).write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return ImportReport(path, family, imported.config.task, parameters, licence)


def write_run(imported: Imported, path: Path, folder: Path) -> int:
    """Write the run folder; returns the number of parameters."""
    config = settings.build(type(imported.config), settings.as_table(imported.config))  # with all checks
    model = task_of(config).model(config, imported.source, imported.target)
    check_weights(model, imported.weights, folder)
    parameters = {name: imported.weights[name].contiguous() for name, _ in model.named_parameters()}
    report = {"train": {}, "valid": {}, "length_ratio": LENGTH_RATIO, "fingerprint": "imported"}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    try:
        remove_folder(temporary)
        (temporary / "tokenizer").mkdir(parents=True)
        imported.source.save(temporary / "tokenizer", "source")
        imported.target.save(temporary / "tokenizer", "target")
        (temporary / "data.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
        (temporary / "run.json").write_text(json.dumps({"format": RUN_FORMAT, "version": __version__}), "utf-8")
        (temporary / "config.toml").write_text(settings.dump(config), encoding="utf-8")
        save_file(parameters, temporary / "weights.safetensors")
        temporary.rename(path)
    except OSError as error:
        raise RunError(f"{path}: cannot make the run folder ({error.strerror})") from None
    finally:
        remove_folder(temporary)
    return sum(tensor.numel() for tensor in parameters.values())
