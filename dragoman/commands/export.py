"""`dragoman export`: write a trained run in the format of another program."""

from __future__ import annotations

import click


class FormatOption(click.Option):
    """The option `--to`; its help lists the registered exporters when it is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The formats come from the registry, which `dragoman --help` need not import."""
        from dragoman.exchange.registry import EXPORTERS

        record = super().get_help_record(ctx)
        assert record is not None
        return record[0], record[1] + " " + "; ".join(
            f"{exporter.name}: {exporter.about}" for exporter in EXPORTERS.values()
        )


@click.command()
@click.argument("run")
@click.option("--to", "name", cls=FormatOption, required=True, help="The format to write.")
@click.option("--output", "out", required=True, help="The new file or folder.")
@click.option("--precision", type=click.Choice(["float32", "float16", "int8"]), help="ctranslate2, argos: of weights.")
@click.option("--source-language", help="argos: the ISO 639 code of the source language.")
@click.option("--target-language", help="argos: the ISO 639 code of the target language.")
def export(run: str, name: str, out: str, **options: str | None) -> None:
    """Write a trained run in the format of another program.

    A format that cannot express the run names every reason and writes nothing.

    \b
    dragoman export runs/my --to ctranslate2 --precision int8 --output my-ctranslate2
    dragoman export runs/my --to huggingface --output my-model
    dragoman export runs/my --to argos --source-language en --target-language de --output en_de.argosmodel
    dragoman export runs/my --to onnx --output my-onnx
    dragoman export runs/ngrams --to arpa --output lm.arpa
    """
    from dragoman.exchange.registry import export_run
    from dragoman.runs.folder import licence_of

    given = {option: value for option, value in options.items() if value is not None}
    click.echo(f"written: {export_run(run, out, name, given)}")
    if licence := licence_of(run):
        click.echo(f"licence of the imported model: {licence}")
