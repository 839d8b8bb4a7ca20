"""The exporter of n-gram language models to ARPA files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from dragoman.classical.arpa import write_arpa
from dragoman.classical.ngram import NGramConfig, NGramModel
from dragoman.exchange.exporter import Exporter
from dragoman.runs import Run


class ArpaExporter(Exporter):
    """Writes an .arpa file, which KenLM, SRILM and many speech recognisers read."""

    name = "arpa"
    about = "an n-gram language model as an .arpa file, for KenLM, SRILM and speech recognisers"

    def blockers(self, run: Run) -> list[str]:
        if isinstance(run.config.model, NGramConfig):
            return []
        return [f'model.kind: found "{run.config.model.kind}", expected "{NGramConfig.kind}"']

    def export(self, run: Run, path: Path, options: Mapping[str, str]) -> None:
        model = run.model(torch.device("cpu"))
        assert isinstance(model, NGramModel)
        write_arpa(path, model, run.tokenizers()[1])
