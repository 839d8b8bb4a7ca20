"""The registry of exporters, and the one function that writes a run in the format of another program.

An exporter is one object with a name, a list of everything that prevents the export of a run, and an export function.
`dragoman.register` makes it available to `dragoman export --to NAME`, to its help and to `export_run`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from dragoman.base import ConfigError, RunError, hint
from dragoman.base.config import Table
from dragoman.classical import NGramModel, write_arpa
from dragoman.exchange.argos import ArgosExporter
from dragoman.exchange.card import CARD, CARD_OPTIONS, CardExporter, model_card
from dragoman.exchange.huggingface.exporting import HuggingFaceExporter
from dragoman.exchange.onnx import OnnxExporter
from dragoman.exchange.web_page import WebExporter
from dragoman.inference.engine import CTranslate2Exporter, Exporter
from dragoman.runs import Run


class ArpaExporter(Exporter):
    """Writes an .arpa file, which KenLM, SRILM and many speech recognisers read."""

    name = "arpa"
    about = "an n-gram language model as an .arpa file, for KenLM, SRILM and speech recognisers"

    def blockers(self, run: Run) -> list[str]:
        kind = run.config.model.kind
        return [] if kind == "ngram" else [f'model.kind: found "{kind}", expected "ngram"']

    def export(self, run: Run, path: Path, options: Mapping[str, str]) -> None:
        model = run.model(torch.device("cpu"))
        assert isinstance(model, NGramModel)
        write_arpa(path, model, run.tokenizers()[1])


BUILT_IN: tuple[Exporter, ...] = (
    HuggingFaceExporter(),
    CTranslate2Exporter(),
    ArpaExporter(),
    ArgosExporter(),
    OnnxExporter(),
    WebExporter(),
    CardExporter(),
)
EXPORTERS = Table("exporter", lambda exporter: [exporter.name], BUILT_IN)


def flag_of(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def export_run(run: str | Path, output: str | Path, name: str, options: Mapping[str, str] | None = None) -> Path:
    """Write a trained run in the format of this name to a new file or folder: whole, or not at all."""
    if name not in EXPORTERS:
        raise ConfigError(f"format: found {name!r}, no such format. {hint(name, EXPORTERS)}")
    exporter, opened, path = EXPORTERS[name], Run(run), Path(output)
    opened.check_single(f"{name} has no ensembles")
    opened.weights_path()  # an untrained run is refused before anything else is said about it
    has_card = exporter in BUILT_IN
    own = getattr(exporter, "options", ())  # a plug-in may not inherit from Exporter
    known = (*own, *(option for option in CARD_OPTIONS if has_card and option not in own))
    for option in options or ():
        if option not in known:
            expected = ", ".join(map(flag_of, known)) or "no further options"
            raise ConfigError(f"{flag_of(option)}: {name} has no such option, expected {expected}")
    told = ["data.context and data.memory: expected 0, since other programs give a model nothing but the source"]
    if reasons := [*(told if opened.config.data.reads_more else ()), *exporter.blockers(opened)]:
        raise ConfigError(f"{name} cannot express this run: " + "; ".join(reasons))
    if path.exists():
        raise RunError(f"{path}: exists already; expected a new name")
    card = model_card(opened, options or {}) if has_card else ""  # before the slow part: its files may be faulty
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as scratch:
        part = Path(scratch) / path.name
        exporter.export(opened, part, options or {})
        if card and part.is_dir():
            (part / CARD).write_text(card, encoding="utf-8")
        part.rename(path)
    return path
