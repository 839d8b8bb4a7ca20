"""`dragoman export` and `dragoman import`: runs in the formats of other programs, and published models as runs."""

from __future__ import annotations

import click

from dragoman.commands.from_record import options_of
from dragoman.commands.printing import print_message, print_warning
from dragoman.exchange import ExportOptions, ImportOptions


@click.command()
@click.argument("run")
@options_of(ExportOptions)
def export(run: str, options: ExportOptions) -> None:
    """Write a trained run in the format of another program.

    A format that cannot express the run names every reason and writes nothing. ctranslate2, argos, onnx and web then
    decode up to 200 validation lines as the other program would; export prints how many texts equal those of the run,
    both scores, and a warning if the exported model (as with --precision int8) loses more than the standard error.

    \b
    dragoman export runs/my --to ctranslate2 --precision int8 --output my-ctranslate2
    dragoman export runs/my --to huggingface --output my-model
    dragoman export runs/my --to argos --source-language en --target-language de --output en_de.argosmodel
    dragoman export runs/my --to onnx --output my-onnx
    dragoman export runs/my --to web --output site     a page that translates in the browser
    dragoman export runs/my --to web --single --output my.html
    dragoman export runs/ngrams --to arpa --output lm.arpa
    """
    from dragoman.exchange import export as export_run

    exported = export_run(run, options)
    if isinstance(exported.check, str):
        print_message(f"not compared with the run: {exported.check}")
    elif exported.check is not None:
        print_message(str(exported.check))
        if exported.check.warning:
            print_warning(f"{exported.check.warning}; export in a higher precision, or measure on your own text first")
    click.echo(f"written: {exported.path}")
    if exported.licence:
        click.echo(f"licence of the imported model: {exported.licence}")


@click.command("import")
@click.argument("folder")
@options_of(ImportOptions)
def import_model(folder: str, options: ImportOptions) -> None:
    """Make a run from a model folder of Hugging Face.

    The folder holds config.json, model.safetensors and the tokenizer files, as `git clone` or `save_pretrained` leave
    them. Every command then works on the run: predict, evaluate, score, fine-tuning. Families: Marian (OPUS-MT),
    M2M-100 and NLLB, mBART-50, T5, mT5 and ByT5, BERT, RoBERTa, GPT-2, wav2vec 2.0 with CTC, Whisper. Pickled weights
    are never opened.

    \b
    dragoman import opus-mt-en-de --run runs/opus
    echo "Hello!" | dragoman predict runs/opus
    dragoman import nllb-200-distilled-600M --run runs/nllb --source-language eng_Latn --target-language deu_Latn
    dragoman import whisper-small --run runs/whisper --source-language de --target-language en
    dragoman train mine.tsv --run runs/mine train.start_from=runs/opus train.optimizer.learning_rate=1e-4
    """
    from dragoman.exchange import import_model as import_folder

    report = import_folder(folder, options)
    click.echo(f"{report.run}: {report.family}, task {report.task}, {report.parameters:,} parameters")
    click.echo(f"licence: {report.licence or 'the folder names none; ask its publisher'}")
