"""`dragoman export`: write a trained run in the format of another program."""

from __future__ import annotations

import click


class FormatOption(click.Option):
    """The option `--format`; its help lists the registered exporters when it is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The formats come from the registry, which `dragoman --help` need not import."""
        from dragoman.exchange.registry import EXPORTERS

        record = super().get_help_record(ctx)
        assert record is not None
        return record[0], record[1] + " " + "; ".join(f"{one.name}: {one.about}" for one in EXPORTERS.values())


@click.command()
@click.argument("run")
@click.argument("folder")
@click.option("--format", "name", cls=FormatOption, required=True, help="The format to write.")
def export(run: str, folder: str, name: str) -> None:
    """Write a trained run into a new folder in the format of another program.

    A format that cannot express the run names every reason and writes nothing.

    \b
    dragoman export runs/my my-ctranslate2 --format ctranslate2
    dragoman export runs/ngrams my-arpa --format arpa
    """
    from dragoman.exchange.registry import export_run

    click.echo(f"written: {export_run(run, folder, name)}")
