"""Import a model folder of Hugging Face as a run, so that every command works on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dragoman.base import ConfigError, DataError, RunError, hint, move, write_bytes
from dragoman.base import config as settings
from dragoman.exchange.huggingface.bert import read_bert, read_roberta
from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.family import Family, Imported, check_weights
from dragoman.exchange.huggingface.gpt2 import read_gpt2
from dragoman.exchange.huggingface.speech import read_wav2vec2, read_whisper
from dragoman.exchange.huggingface.t5 import read_t5
from dragoman.exchange.huggingface.translation import read_m2m100, read_marian, read_mbart, read_pegasus
from dragoman.exchange.options import ImportOptions
from dragoman.runs import IMPORTED, limit_parameters, new_run
from dragoman.runs.tasks import task_of
from dragoman.training import OptimizerConfig, write_tensors

# By `model_type`.
FAMILIES: dict[str, Family] = {
    "marian": read_marian,
    "pegasus": read_pegasus,
    "m2m_100": read_m2m100,
    "mbart": read_mbart,
    "t5": read_t5,
    "mt5": read_t5,
    "bert": read_bert,
    "roberta": read_roberta,
    "gpt2": read_gpt2,
    "wav2vec2": read_wav2vec2,
    "whisper": read_whisper,
}
FINE_TUNING_RATE = 5e-5  # for runs that start from this one; a higher rate destroys pre-trained weights


class ImportReport(NamedTuple):
    """What was imported."""

    run: Path
    family: str
    task: str
    parameters: int
    licence: str  # empty: the folder names none


def import_model(folder: str | Path, options: ImportOptions) -> ImportReport:
    """Write a run with the weights, tokenizers and generation settings of a model folder: whole, or not at all."""
    path = Path(options.run)
    named = {"source_language": options.source_language, "target_language": options.target_language}
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
            imported = FAMILIES[family](checkpoint, {name: code for name, code in named.items() if code})
            about = {"family": family, "licence": checkpoint.licence(), "folder": str(checkpoint.folder.absolute())}
            parameters = write_run(imported, path, checkpoint.folder, about)
        except ConfigError as error:
            reasons = str(error).replace("\n", "; ")
            raise DataError(f"{checkpoint.folder}: {reasons}") from None
    return ImportReport(path, family, imported.config.task, parameters, about["licence"])


def write_run(imported: Imported, path: Path, folder: Path, about: Mapping[str, str]) -> int:
    """Write the run folder; returns the number of parameters."""
    train = replace(imported.config.train, optimizer=OptimizerConfig(learning_rate=FINE_TUNING_RATE))
    config = replace(imported.config, train=train)
    config = settings.build(type(config), settings.as_table(config))  # with all checks
    with limit_parameters(imported.weights, f"{folder / 'config.json'}"):
        model = task_of(config).model(config, imported.source_tokenizer, imported.target_tokenizer)
    check_weights(model, imported.weights, folder)
    parameters = {name: imported.weights[name].contiguous() for name, _ in model.named_parameters()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_run(path, config, imported.source_tokenizer, imported.target_tokenizer, imported.report) as temporary:
        write_tensors(temporary / "weights.safetensors", parameters)
        write_bytes(temporary / IMPORTED, (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode())
        move(temporary, path)
    return sum(tensor.numel() for tensor in parameters.values())
