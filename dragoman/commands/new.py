"""`dragoman new`, `schema`, `presets` and `demo`: starting points."""

from __future__ import annotations

import sys

import click

from dragoman.auto import DemoOptions
from dragoman.auto import demo as show_off
from dragoman.base import ConfigError
from dragoman.commands.from_record import options_of
from dragoman.commands.printing import as_data


@click.command()
@click.argument("task", required=False)
@click.argument("overrides", nargs=-1, metavar="[PLACE=VALUE]...")
def new(task: str | None, overrides: tuple[str, ...]) -> None:
    """Print a commented starter configuration for a task.

    TASK is translate, classify, transcribe, … It shows every setting of its parts. Override a kind to see the
    settings of another one.

    \b
    dragoman new translate > my.toml
    dragoman new            list the tasks
    dragoman new transcribe tokenizer.source.kind=line-image model.augment.kind=line data.train=lines.tsv
    """
    from dragoman.runs.tasks import TASKS, starter

    if task is None:
        for name, chosen in TASKS.items():
            click.echo(f"{name:<24}{chosen.starter.about}")
    else:
        as_data()
        sys.stdout.write(starter(task, overrides))


@click.command()
def schema() -> None:
    """Print the JSON Schema of configuration files, for editors.

    An editor with a plug-in for TOML, such as Even Better TOML, completes and checks files that begin with a line
    "#:schema FILE". What `dragoman new` prints names the published schema; one of your own also has your plug-ins.

    \b
    dragoman schema > dragoman.schema.json
    dragoman --import my_module schema > dragoman.schema.json
    """
    import json

    from dragoman.runs.tasks import config_schema

    as_data()
    sys.stdout.write(json.dumps(config_schema(), ensure_ascii=False, indent=1) + "\n")


@click.command()
@click.argument("name", required=False)
@click.option("--layers", is_flag=True, help="Print the layers of one, with the products that give its parameters.")
def presets(name: str | None, layers: bool) -> None:
    """List the presets with sizes and papers, or print one.

    A preset named after a paper has the sizes of the paper; one that ends in -small trains on a laptop. The number of
    parameters holds for the vocabulary of the paper, or for 8,000 words. Those with numbers in their line, such as
    series-rnn, are the models that textbooks count by hand.

    \b
    dragoman presets
    dragoman presets luong-2015-small
    dragoman presets character-lstm --layers
    dragoman train pairs.tsv preset=luong-2015-small    to use one
    """
    from dragoman.runs.tasks import preset_listing, preset_page

    if layers:
        from dragoman.inspect.measure import preset_layers

        if name is None:
            raise ConfigError("--layers: found no preset, expected a name such as character-lstm")
        shown = preset_layers(name)
    else:
        shown = preset_listing() if name is None else preset_page(name)
    as_data()
    sys.stdout.write(shown)


@click.command()
@options_of(DemoOptions)
@click.argument("overrides", nargs=-1, metavar="[PLACE=VALUE]...")
def demo(options: DemoOptions, overrides: tuple[str, ...]) -> None:
    """Learn to pronounce English words; show a network at work.

    The CMU dictionary has the words. The demonstration takes two minutes on two CPU cores, and ends with a page.

    \b
    demo-ngrams        n-grams of aligned letters and sounds in one minute, then a small network for the page
    demo-rnn           the network alone, trained for three minutes; it makes more mistakes than the n-grams
    demo-transformer   a Transformer, as long

    \b
    dragoman demo
    dragoman demo --preset demo-rnn --run runs/demo-rnn
    dragoman demo --preset demo-transformer --run runs/other train.steps=500
    """
    show_off(options, overrides, click.echo)
