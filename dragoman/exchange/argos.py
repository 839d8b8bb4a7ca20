"""Export a run as an Argos Translate package, which LibreTranslate and Argos install: a zip with CTranslate2 inside.

A sentence splitter is in the package too, so that nothing is downloaded.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from dragoman.base import ConfigError, __version__
from dragoman.data.tokenizers import SubwordTokenizer
from dragoman.exchange.minisbd import write_splitter
from dragoman.inference.engine import CTranslate2Exporter
from dragoman.runs import Run


class ArgosExporter(CTranslate2Exporter):
    """The exporter of `dragoman export --to argos`."""

    name = "argos"
    about = "an .argosmodel file for Argos Translate and LibreTranslate"
    options = ("precision", "source_language", "target_language")

    def blockers(self, run: Run) -> list[str]:
        """What CTranslate2 cannot run, and tokenizers other than one SentencePiece model for both sides."""
        reasons = super().blockers(run)
        source, target = run.tokenizers()
        for side, tokenizer in (("source", source), ("target", target)):
            if not isinstance(tokenizer, SubwordTokenizer):
                reasons.append(f"tokenizer.{side}: found {tokenizer.kind!r}, expected 'subwords' without language tags")
        if source.fingerprint() != target.fingerprint():
            reasons.append("tokenizer.target: found a vocabulary of its own, expected one for both sides")
        return reasons

    def export(self, run: Run, path: Path, options: Mapping[str, str]) -> None:
        """Write the zip; it needs the ISO 639 codes of both languages."""
        codes = [options.get(f"{side}_language", "") for side in ("source", "target")]
        if not all(code.isalpha() for code in codes):
            raise ConfigError(
                "argos: expected the ISO 639 codes of both languages, as in --source-language en --target-language de"
            )
        source = run.tokenizers()[0]
        assert isinstance(source, SubwordTokenizer)
        metadata = {
            "package_version": "1.0",
            "argos_version": "1.9.0",
            "from_code": codes[0],
            "from_name": codes[0],
            "to_code": codes[1],
            "to_name": codes[1],
            "links": [],
            "made_with": f"dragoman {__version__}",
        }
        top = f"translate-{codes[0]}_{codes[1]}"
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch, zipfile.ZipFile(path, "w") as archive:
            folder = Path(scratch) / "model"
            self.export_model(run, folder, options.get("precision", "int8"))
            archive.writestr(f"{top}/metadata.json", json.dumps(metadata, indent=2))
            archive.writestr(f"{top}/sentencepiece.model", source.model)
            splitter = Path(scratch) / "rules.onnx"
            write_splitter(splitter, codes[0])
            archive.write(splitter, f"{top}/minisbd/{splitter.name}", zipfile.ZIP_DEFLATED)
            for file in sorted(folder.iterdir()):
                archive.write(file, f"{top}/model/{file.name}", zipfile.ZIP_DEFLATED)

    def decode(self, run: Run, path: Path, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if PurePosixPath(member).parent.name == "model":
                    (Path(scratch) / PurePosixPath(member).name).write_bytes(archive.read(member))
            return super().decode(run, Path(scratch), sources)
