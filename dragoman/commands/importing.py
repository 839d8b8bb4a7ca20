"""`dragoman import`: make a run from a published model."""

from __future__ import annotations

import click


@click.command("import")
@click.argument("folder")
@click.option("--run", "run", required=True, help="The new run folder.")
@click.option(
    "--source-language",
    default="",
    help="Multilingual models: the code of the source language; of Whisper, the spoken one.",
)
@click.option("--target-language", default="", help="Multilingual models: the code of the target language.")
def import_model(folder: str, run: str, source_language: str, target_language: str) -> None:
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

    options = {"source_language": source_language, "target_language": target_language}
    report = import_folder(folder, run, {name: value for name, value in options.items() if value})
    click.echo(f"{report.run}: {report.family}, task {report.task}, {report.parameters:,} parameters")
    click.echo(f"licence: {report.licence or 'the folder names none; ask its publisher'}")
