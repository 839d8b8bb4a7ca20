"""`dragoman translate`: whole documents."""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.commands.checks import require_search
from dragoman.commands.options import device_option
from dragoman.commands.printing import print_message, print_warning
from dragoman.commands.settings import Schema, Settings, SettingsCommand
from dragoman.data.languages import languages_of_name
from dragoman.data.readers.lines import check_file
from dragoman.decoding.options import DecodingSettings
from dragoman.errors import ConfigError, DataError
from dragoman.files import atomic_write, cache_home, check_writable, digest, run_of_part, same_file, write_text
from dragoman.progress import progress

if TYPE_CHECKING:
    from dragoman.documents.translate import Translation

SCHEMA = Schema(
    DecodingSettings,
    places=(
        "search.beam", "search.length_penalty", "batch_size", "tag", "min_confidence", "memory",
        "constraints.terminology", "constraints.forbid", "ensemble.runs", "ensemble.average", "engine", "precision",
    ),
)  # fmt: skip


@click.command(cls=SettingsCommand, schema=SCHEMA, several="files")
@click.argument("run")
@click.argument("words", nargs=-1, required=True, metavar="FILE... [PLACE=VALUE]...")
@click.option("-o", "--output", help="The translated file, or a folder for several. [default: FILE.LANGUAGE.SUFFIX]")
@click.option("--from", "source", metavar="CODE", help="Source language, where a .tmx has several.")
@click.option("--to", "target", metavar="CODE", help="Target language, as .xlf and .tmx name it.")
@click.option("--force", is_flag=True, help="Replace output files that exist, even those that were edited.")
@click.option("--all", "everything", is_flag=True, help="Translate also what has a translation already.")
@click.option("--no-review", is_flag=True, help="Mark translations as done: no fuzzy flag in .po, no review in .xlf.")
@click.option("--keep-numbers", is_flag=True, help="Leave 1,234.5 as it is where the target language has 1.234,5.")
@click.option("--encoding", help="Encoding of a file that is not UTF-8 and does not say so, as latin-1.")
@device_option
def translate(
    run: str,
    files: tuple[str, ...],
    output: str | None,
    source: str | None,
    target: str | None,
    force: bool,
    everything: bool,
    no_review: bool,
    keep_numbers: bool,
    encoding: str | None,
    device: str,
    settings: Settings,
) -> None:
    """Translate whole documents: only their text changes.

    \b
    dragoman translate runs/en-de guide.docx                    writes guide.de.docx
    dragoman translate runs/en-de app.po -o app.de.po
    dragoman translate runs/en-de job.xlf constraints.terminology=terms.tsv
    dragoman translate runs/en-de memory.tmx --from en --to de
    dragoman translate runs/en-de docs/*.md -o translated/

    \b
    .docx .odt         paragraphs, tables, headers, footers, notes; formatting follows its words
    .pptx .odp .epub   slides with notes, electronic books with their table of contents
    .html .md          tags, links, emphasis and code are kept, tags go where the words go
    .xlf .xliff .tmx   XLIFF 1.2 and 2.x, TMX; quality of each translation in match-quality
    .po .pot           gettext, with plural forms
    .srt .vtt .txt     subtitles with their times; plain text line by line

    translate splits texts into sentences, and sentences that are too long for the model into parts, so nothing is cut
    off. Units that have a translation already, or translate="no", are left alone. Placeholders such as {name}, %s and
    addresses are copied. Everything that is no text stays byte for byte. A unit that cannot be translated is left as it
    is, and reported; the exit code is then 1, after all files are written.

    translate replaces an output that it wrote itself and nobody has changed since, so a command can be repeated. It
    refuses to replace any other file; --force replaces it.
    """
    from dragoman.documents.base import Reading
    from dragoman.documents.numbers import localiser
    from dragoman.documents.registry import FORMATS, open_document
    from dragoman.documents.translate import DocumentTranslator
    from dragoman.inference.load import load_predictor

    require_search("translate", run)
    if not files:
        raise DataError("found no FILE to translate, only settings")
    named = languages_of_name(Path(run).resolve().name)
    language = target or settings.tag or named[1]
    localise = None if keep_numbers else localiser(source or named[0], language)
    for file in files:
        if Path(file).suffix.lower() not in FORMATS:
            raise DataError(f"{file}: found {Path(file).suffix or 'no suffix'!r}, expected one of {', '.join(FORMATS)}")
    outputs = output_files(files, output, language)
    if not force:
        refuse_edited(outputs)
    for file in files:
        check_file(Path(file))
    reading = Reading(source or "", language, encoding or "", review=not no_review)
    decoding = settings.decoding()
    predictor = load_predictor(run, device, decoding)
    failed = 0
    for file, written in zip(files, outputs, strict=True):
        document = open_document(file, Path(file).read_bytes(), reading)
        with progress("sentences") as done:
            translation = DocumentTranslator(predictor, decoding, done, localise).translate(document, everything)
        if written == "-":
            sys.stdout.buffer.write(translation.data)
        else:
            write_output(written, translation.data)
        print_translation(file, written, translation)
        failed += len(translation.faults)
    if failed:
        units = f"{failed:,} unit{'s' if failed > 1 else ''}"
        print_message(f"{units} could not be translated and {'are' if failed > 1 else 'is'} left as before")
        raise click.exceptions.Exit(1)


def print_translation(file: str, written: str, translation: Translation) -> None:
    counts = ", ".join(f"{count:,} {name}" for name, count in translation.counts.items() if count) or "no text"
    sure = sum(translation.confidences) / len(translation.confidences) if translation.confidences else None
    quality = "" if sure is None else f"; mean token probability {sure:.0%}"
    print_message(f"{file if written == '-' else written}: {counts}{quality}")
    for warning in (*translation.warnings, *(f"{fault}; left as it is" for fault in translation.faults[:10])):
        print_warning(f"{file}: {warning}")
    if len(translation.faults) > 10:
        print_warning(f"and {len(translation.faults) - 10:,} more")


def output_files(files: tuple[str, ...], output: str | None, language: str) -> list[str]:
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
        if used := next((other for other in files if same_file(other, written)), None):
            raise DataError(f"{written}: this would overwrite the input {used}; name other files with --output")
        if run := run_of_part(Path(written)):
            raise DataError(f"--output {written}: this is a part of the run {run}; name a file outside it")
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
