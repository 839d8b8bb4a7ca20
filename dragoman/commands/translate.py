"""`dragoman translate`: whole documents."""

from __future__ import annotations

import sys

import click

from dragoman.commands.from_record import options_of
from dragoman.commands.printing import print_message
from dragoman.commands.settings import SettingsCommand
from dragoman.decoding import DecodingSettings, Schema, Settings
from dragoman.documents import TranslateOptions
from dragoman.documents import translate as translate_files

SCHEMA = Schema(
    DecodingSettings,
    places=(
        "search.beam", "search.length_penalty", "batch_size", "tag", "min_confidence", "memory", "split_long",
        "constraints.terminology", "constraints.forbid", "ensemble.runs", "ensemble.average",
        "ensemble.weights", "engine", "precision",
    ),
)  # fmt: skip


@click.command(cls=SettingsCommand, schema=SCHEMA, several="files")
@click.argument("run")
@click.argument("words", nargs=-1, required=True, metavar="FILE... [PLACE=VALUE]...")
@options_of(TranslateOptions)
def translate(run: str, files: tuple[str, ...], options: TranslateOptions, settings: Settings) -> None:
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
    is, and reported; the exit code is then 1, after all files are written. So it is if one of several files is faulty:
    the others are translated, and the last line names the faulty ones. If none can be translated it is 2.

    A file that names other languages than the run, as .xlf and .po do, is refused; --from and --to say that the
    languages are right. The translation is labelled with the target language: lang of .html and .xhtml, w:lang of
    .docx, Language of .po.

    translate replaces an output that it wrote itself and nobody has changed since, so a command can be repeated. It
    refuses to replace any other file; --force replaces it.
    """
    failed, faulty = 0, list[str]()
    for done in translate_files(run, files, options, settings.decoding()):
        if done.translation is None:
            faulty.append(done.file)
        else:
            failed += len(done.translation.faults)
            if done.output == "-":
                sys.stdout.buffer.write(done.translation.data)
        for message in done.messages():
            print_message(message)
    if failed:
        units = f"{failed:,} unit{'s' if failed > 1 else ''}"
        print_message(f"{units} could not be translated and {'are' if failed > 1 else 'is'} left as before")
    if faulty:
        print_message(f"{len(faulty):,} of {len(files):,} files could not be translated: {', '.join(faulty)}")
    if failed or faulty:
        raise click.exceptions.Exit(2 if len(faulty) == len(files) else 1)
