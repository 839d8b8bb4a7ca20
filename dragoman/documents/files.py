"""Translate files of any document format into files; what somebody may have edited is never replaced unasked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dragoman.base import (
    ConfigError,
    DataError,
    atomic_write,
    cache_home,
    check_output,
    check_writable,
    digest,
    progress,
    write_text,
)
from dragoman.base.config import setting
from dragoman.data import languages_of_name
from dragoman.data.readers import check_file

if TYPE_CHECKING:
    from dragoman.decoding import DecodingOptions
    from dragoman.documents.report import CheckedFile
    from dragoman.documents.translation import Translation


@dataclass(frozen=True)
class TranslateOptions:
    """What to translate of a document, and where to write it."""

    output: str | None = setting(
        None, help="the translated file, or a folder for several. [default: FILE.LANGUAGE.SUFFIX]", flag="-o --output"
    )
    source: str | None = setting(None, help="source language, where a .tmx has several", flag="--from", metavar="CODE")
    target: str | None = setting(None, help="target language, as .xlf and .tmx name it", flag="--to", metavar="CODE")
    force: bool = setting(False, help="replace output files that exist, even those that were edited", flag="--force")
    everything: bool = setting(False, help="translate also what has a translation already", flag="--all")
    no_review: bool = setting(
        False, help="mark translations as done: no fuzzy flag in .po, no review in .xlf", flag="--no-review"
    )
    keep_numbers: bool = setting(
        False, help="leave 1,234.5 as it is where the target language has 1.234,5", flag="--keep-numbers"
    )
    encoding: str | None = setting(
        None, help="encoding of a file that is not UTF-8 and does not say so, as latin-1", flag="--encoding"
    )
    report: str | None = setting(
        None, help="write a page with what is doubtful about the translations", flag="--report", metavar="FILE.html"
    )
    device: str = setting("auto", help="auto, cpu, cuda, cuda:N or mps", flag="--device")


class TranslatedFile(NamedTuple):
    """A file that was translated, the file that was written ("-": none), and what became of its units."""

    file: str
    output: str
    translation: Translation | None
    error: DataError | None = None  # why there is no translation: the file is faulty

    def messages(self) -> Iterator[str]:
        """How many units were done, how sure the model is, and what went wrong."""
        translation = self.translation
        if translation is None:
            yield f"error: {self.error}"
            return
        counts = ", ".join(f"{count:,} {name}" for name, count in translation.counts.items() if count) or "no text"
        sure = translation.confidences
        quality = f"; mean token probability {sum(sure) / len(sure):.0%}" if sure else ""
        yield f"{self.file if self.output == '-' else self.output}: {counts}{quality}"
        if translation.checked.line:
            yield f"{self.file}: {translation.checked.line}"
        for warning in (*translation.warnings, *(f"{fault}; left as it is" for fault in translation.faults[:10])):
            yield f"warning: {self.file}: {warning}"
        if len(translation.faults) > 10:
            yield f"warning: and {len(translation.faults) - 10:,} more"


def translate(
    run: str | Path,
    files: Sequence[str],
    options: TranslateOptions | None = None,
    decoding: DecodingOptions | None = None,
) -> Iterator[TranslatedFile]:
    """Translate documents and write them, each when the caller asks for it; names and options are checked before.

    A faulty one among several has an error in place of a translation, and the others are translated; a faulty one
    alone raises its error.
    """
    from dragoman.decoding import DecodingOptions
    from dragoman.documents.base import Reading
    from dragoman.documents.registry import FORMATS, open_document
    from dragoman.documents.report import write_report
    from dragoman.documents.translation import DocumentTranslator
    from dragoman.inference import checker, load_predictor, localiser

    options, decoding = options or TranslateOptions(), decoding or DecodingOptions()
    if not files:
        raise DataError("found no FILE to translate, only settings")
    named = languages_of_name(Path(run).resolve().name)
    language = options.target or decoding.tag or named[1]
    localise = None if options.keep_numbers else localiser(options.source or named[0], language)
    for file in files:
        if Path(file).suffix.lower() not in FORMATS:
            raise DataError(f"{file}: found {Path(file).suffix or 'no suffix'!r}, expected one of {', '.join(FORMATS)}")
    outputs = output_files(files, options.output, language)
    if not options.force:
        refuse_edited(outputs)
    for file in files:
        check_file(Path(file))
    if options.report is not None:
        check_output(options.report, files, "--report")
        check_writable(options.report)
    check = checker(options.source or named[0], language, decoding.terminology)
    # A file that names other languages than the name of the run is refused, unless the caller names the languages.
    expected = "" if options.source else named[0], "" if options.target else language
    reading = Reading(
        options.source or "", language, options.encoding or "", review=not options.no_review, expected=expected
    )
    predictor = load_predictor(run, options.device, decoding)

    checked: list[CheckedFile] = []

    def translated(file: str, written: str) -> TranslatedFile:
        try:
            document = open_document(file, Path(file).read_bytes(), reading)
            with progress("sentences") as done:
                translator = DocumentTranslator(predictor, decoding, done, localise, check)
                translation = translator.translate(document, options.everything)
        except DataError as error:
            if len(files) == 1:
                raise
            return TranslatedFile(file, written, None, error)
        if written != "-":
            write_output(written, translation.data)
        checked.append(replace(translation.checked, file=file))
        if options.report is not None:  # after each file: a later one may fail
            write_report(options.report, checked)
        return TranslatedFile(file, written, translation)

    return map(translated, files, outputs)


def output_files(files: Sequence[str], output: str | None, language: str) -> list[str]:
    if output == "-" and len(files) > 1:
        raise ConfigError(f"--output -: found {len(files)} files, expected one")
    folder = output is not None and output != "-" and (len(files) > 1 or output.endswith("/") or Path(output).is_dir())
    if folder:
        outputs = [str(Path(str(output)) / Path(file).name) for file in files]
        if Path(str(output)).exists() and not Path(str(output)).is_dir():
            raise DataError(f"--output {output}: found a file, expected a folder for {len(files)} files")
    elif output is not None:
        outputs = [output]
    else:
        outputs = [str(Path(file).with_suffix(f".{language or 'translated'}{Path(file).suffix}")) for file in files]
    for file, written in zip(files, outputs, strict=True):
        if written == "-":
            continue
        if Path(written).suffix.lower() != Path(file).suffix.lower():
            raise ConfigError(f"--output {written}: expected the suffix of {file}: the format stays the same")
        check_output(written, files, "--output")
        if not folder or Path(written).is_dir():
            check_writable(written)
    if len({*outputs}) < len(outputs):
        raise ConfigError("--output: found two files of one name, expected different names for one folder")
    if folder:
        Path(str(output)).mkdir(parents=True, exist_ok=True)
    return outputs


# --- outputs that were written before


def record_of(path: str) -> Path:
    """Where the cache keeps a hash of what was last written to a path."""
    name = hashlib.blake2b(str(Path(path).resolve()).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return cache_home() / "translated" / name


def refuse_edited(outputs: list[str]) -> None:
    """Raise DataError if an output exists that translate did not write, or that somebody has changed since."""

    def is_own(path: Path) -> bool:
        with suppress(OSError):
            return record_of(str(path)).read_text(encoding="ascii") == digest(path)
        return False

    others = [path for path in outputs if path != "-" and os.path.lexists(path) and not is_own(Path(path))]
    if others:
        more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
        raise DataError(
            f"{others[0]}{more}: exists, and may have been edited; move it, name another with --output, or replace it "
            "with --force"
        )


def write_output(path: str, data: bytes) -> None:
    """Write a translated file, and note its hash, so that the same command may replace it."""
    with atomic_write(path) as beside:
        beside.write_bytes(data)
    with suppress(OSError):  # without a cache, the next call asks for --force
        record = record_of(path)
        record.parent.mkdir(parents=True, exist_ok=True)
        write_text(record, hashlib.blake2b(data, digest_size=16).hexdigest())
