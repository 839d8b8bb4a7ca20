"""`dragoman export` and `dragoman import`: runs in the formats of other programs, and published models as runs."""

from __future__ import annotations

from pathlib import Path

import click

from dragoman.commands.options import ListingOption
from dragoman.commands.printing import print_message, print_warning


def formats_text() -> str:
    from dragoman.exchange.registry import EXPORTERS

    return "; ".join(f"{exporter.name}: {exporter.about}" for exporter in EXPORTERS.values())


@click.command()
@click.argument("run")
@click.option(
    "--to", "name", cls=ListingOption, listing=formats_text, required=True, help="The format to write. LISTING"
)
@click.option("--output", "out", required=True, help="The new file or folder.")
@click.option(
    "--precision", type=click.Choice(["float32", "float16", "int8"]), help="ctranslate2, argos, web: of weights."
)
@click.option("--source-language", help="argos, web: the ISO 639 code of the source language.")
@click.option("--target-language", help="argos, web: the ISO 639 code of the target language.")
@click.option("--single", flag_value="yes", help="web: one HTML file with everything inside.")
@click.option("--runtime", help="web: the unpacked npm package onnxruntime-web; by default npm fetches it once.")
@click.option("--scores", help="Model card: the file with the output of `dragoman evaluate --intervals --json`.")
@click.option("--licence", help="Model card: the licence of this run.")
@click.option("--no-check", is_flag=True, help="Do not compare the exported model with the run.")
def export(run: str, name: str, out: str, no_check: bool, **options: str | None) -> None:
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
    from dragoman.exchange.registry import export_run
    from dragoman.runs.folder import licence_of

    given = {option: value for option, value in options.items() if value is not None}
    written = export_run(run, out, name, given)
    if not no_check and name != "card":
        print_check(run, name, written)
    click.echo(f"written: {written}")
    if licence := licence_of(run):
        click.echo(f"licence of the imported model: {licence}")


def print_check(run: str, name: str, written: Path) -> None:
    """Compare the exported model with the run, and say what was found."""
    from dragoman.analysis.export_check import check_export
    from dragoman.exchange.registry import EXPORTERS
    from dragoman.runs import Run

    result = check_export(Run(run), EXPORTERS[name], written)
    if isinstance(result, str):
        print_message(f"not compared with the run: {result}")
        return
    print_message(str(result))
    if result.warning:
        print_warning(f"{result.warning}; export in a higher precision, or measure on your own text first")


@click.command("import")
@click.argument("folder")
@click.option("--run", "run", required=True, help="The new run folder.")
@click.option(
    "--source-language", help="Multilingual models: the code of the source language; of Whisper, the spoken one."
)
@click.option("--target-language", help="Multilingual models: the code of the target language.")
def import_model(folder: str, run: str, **languages: str | None) -> None:
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
    from dragoman.exchange.huggingface.importing import import_folder

    report = import_folder(folder, run, {name: value for name, value in languages.items() if value})
    click.echo(f"{report.run}: {report.family}, task {report.task}, {report.parameters:,} parameters")
    click.echo(f"licence: {report.licence or 'the folder names none; ask its publisher'}")
