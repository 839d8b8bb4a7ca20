"""What export and import may be asked for. Nothing heavy is imported here: the help of commands reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dragoman.base.config import setting


def formats_text() -> str:
    from dragoman.exchange.registry import EXPORTERS

    return "; ".join(f"{exporter.name}: {exporter.about}" for exporter in EXPORTERS.values())


@dataclass(frozen=True)
class ExportOptions:
    """The format to write a run in, where to, and what some formats need to know."""

    to: str = setting(help="the format to write. LISTING", flag="--to", listing=formats_text)
    output: str = setting(help="the new file or folder", flag="--output")
    precision: Literal["float32", "float16", "int8"] | None = setting(
        None, help="ctranslate2, argos, web: of weights", flag="--precision"
    )
    source_language: str | None = setting(
        None, help="argos, web: the ISO 639 code of the source language", flag="--source-language"
    )
    target_language: str | None = setting(
        None, help="argos, web: the ISO 639 code of the target language", flag="--target-language"
    )
    single: bool = setting(False, help="web: one HTML file with everything inside", flag="--single")
    runtime: str | None = setting(
        None, help="web: the unpacked npm package onnxruntime-web; by default npm fetches it once", flag="--runtime"
    )
    scores: str | None = setting(
        None, help="model card: the file with the output of `dragoman evaluate --intervals --json`", flag="--scores"
    )
    licence: str | None = setting(None, help="model card: the licence of this run", flag="--licence")
    no_check: bool = setting(False, help="do not compare the exported model with the run", flag="--no-check")

    @property
    def of_format(self) -> dict[str, str]:
        """The options for the exporter that were given."""
        names = ("precision", "source_language", "target_language", "runtime", "scores", "licence")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return given | ({"single": "yes"} if self.single else {})


@dataclass(frozen=True)
class ImportOptions:
    """Where the run of an imported model goes, and the languages of a multilingual one."""

    run: str = setting(help="the new run folder", flag="--run")
    source_language: str | None = setting(
        None,
        help="multilingual models: the code of the source language; of Whisper, the spoken one",
        flag="--source-language",
    )
    target_language: str | None = setting(
        None, help="multilingual models: the code of the target language", flag="--target-language"
    )
