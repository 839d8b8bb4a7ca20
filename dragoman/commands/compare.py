"""`dragoman compare`: test texts for significance, compare runs, or train configurations and compare them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.commands.options import device_option, draws_option, json_option, metric_option, seed_option, units_option
from dragoman.commands.printing import as_utf8
from dragoman.errors import DataError

if TYPE_CHECKING:
    from dragoman.data.examples import Example
    from dragoman.reports.inspection import View
    from dragoman.runs.protocol import Budget
    from dragoman.tasks.config import Config


@click.command()
@click.argument("systems", nargs=-1, metavar="[REFERENCES] SYSTEM...")
@click.option(
    "--ladder",
    metavar="PAIRS",
    help="Train a classical model, plain RNN, LSTM, LSTM + attention, ConvS2S, Transformer on these pairs.",
)
@click.option("--test", metavar="FILE", help="Test pairs for runs and configurations. [--ladder: a tenth of PAIRS]")
@click.option("--output", "-o", metavar="FILE", help="Write a report: a page (.html) or its numbers (.json).")
@click.option(
    "--folder", default="runs/compare", show_default=True, help="Where configurations are trained; resumes there."
)
@click.option("--steps", type=click.IntRange(1), help="Training steps of every configuration. [default: the first's]")
@click.option("--tokens", type=click.IntRange(1), help="Instead: target tokens that every configuration trains on.")
@click.option(
    "--minutes", type=click.FloatRange(0, min_open=True), help="Instead: training minutes of every configuration."
)
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs of every configuration.")
@click.option("--sentence", help="Source sentence for the attention of each. [default: one of the test]")
@click.option("--set", "overrides", multiple=True, metavar="PLACE=VALUE", help="A setting for all configurations.")
@click.option("--source", help="Source lines of texts, for scores by length and the report.")
@metric_option
@units_option
@click.option("--plot", metavar="FILE", help="Texts: also draw scores and intervals to this .png, .svg or .pdf file.")
@draws_option
@seed_option
@json_option
@device_option
def compare(systems: tuple[str, ...], ladder: str | None, output: str | None, **options: Any) -> None:
    """Compare systems fairly: texts, runs, or configurations that are trained first, under one protocol.

    Texts: the outputs of each SYSTEM against those of the first, on the same REFERENCES. Every score has a 95 %
    interval; every difference has p-values by paired bootstrap and by approximate randomisation. A line of REFERENCES
    may hold several references, tab-separated.

    Runs (folders) and configurations (.toml): all are tested on the pairs of --test. Configurations are trained first
    on the data of the first one, with its tokenizer, batches and budget. The same command resumes after a stop.

    \b
    dragoman compare ref.txt greedy.txt beam5.txt
    dragoman compare ref.txt base.txt one.txt two.txt --metric bleu --plot scores.png --output report.html
    dragoman compare runs/lstm runs/transformer --test test.tsv --output report.html
    dragoman compare small.toml large.toml --test test.tsv --steps 2000 --seeds 3 --output report.html
    dragoman compare --ladder pairs.tsv --minutes 10 --output ladder.html
    """
    if output is not None:
        from dragoman.files import check_writable

        if Path(output).suffix.lower() not in (".html", ".json"):
            raise DataError(f"--output: found {output!r}, expected a file that ends in .html or .json")
        check_writable(output)
    as_utf8()
    if ladder is not None:
        if systems:
            raise DataError(f"--ladder trains its own systems: found {systems[0]!r} too")
        compare_ladder(ladder, output, options)
    elif not systems:
        raise DataError("nothing to compare: name texts, runs or configurations, or use --ladder PAIRS")
    elif any(Path(name).is_dir() or name.lower().endswith(".toml") for name in systems):
        compare_models(systems, output, options)
    else:
        compare_outputs(systems, output, options)


def write_report(title: str, about: str, views: list[View], output: str | None) -> None:
    """Write the page or the numbers."""
    from dragoman.files import atomic_write
    from dragoman.reports.comparison import Comparison
    from dragoman.reports.inspection import listed, packed
    from dragoman.web.page import build_page, plain

    if output is None:
        return
    data = Comparison(title, about, tuple(views)).data()
    if output.lower().endswith(".json"):
        content = json.dumps(plain(listed(data)))
    else:
        content = build_page(title, "compare-page", packed(data))
    with atomic_write(output) as beside:
        beside.write_text(content, encoding="utf-8", newline="\n")
    click.echo(f"report: {output}", err=True)


def compare_outputs(files: tuple[str, ...], output: str | None, options: dict[str, Any]) -> None:
    """Texts: REFERENCES, the baseline, and other systems."""
    from dragoman.reports.comparison import compare_texts
    from dragoman.reports.score_files import compare_files
    from dragoman.reports.text_tables import comparison_lines
    from dragoman.scoring.files import read_parallel_lines, read_references

    refuse(options, ("test", "steps", "tokens", "minutes", "sentence"), "goes with runs and configurations")
    references, *systems = files
    if not systems:
        raise DataError(f"nothing to compare: found {references} alone, expected references, a baseline and a system")
    draws, seed = options["draws"], options["seed"]
    table, standings = compare_files(
        references, systems, options["metrics"], options["units"], draws, seed, options["plot"]
    )
    if output is not None:
        from dragoman.data.readers.lines import read_lines

        first = list(read_lines(systems[0]))
        texts = {
            name: first if name == systems[0] else read_parallel_lines(name, systems[0], len(first)) for name in systems
        }
        truth = read_references([references], systems[0], len(first))
        source = options["source"]
        sources = None if source is None else read_parallel_lines(source, systems[0], len(first))
        write_report("Comparison", references, compare_texts(texts, truth, table, draws, seed, sources), output)
    if options["as_json"]:
        click.echo(json.dumps([standing.as_dict() for standing in standings], ensure_ascii=False))
    else:
        for line in comparison_lines(standings, table):
            click.echo(line)


def refuse(options: dict[str, Any], names: tuple[str, ...], why: str) -> None:
    """Raise an error for options that would have no effect."""
    for name in names:
        if options[name] not in (None, ()):
            raise DataError(f"--{name} {why}")


def compare_models(systems: tuple[str, ...], output: str | None, options: dict[str, Any]) -> None:
    """Run folders and configurations."""
    from dragoman.runs import Run
    from dragoman.tasks.config import load

    refuse(options, ("plot", "source"), "goes with texts")
    configs, runs = {}, {}
    for name in systems:
        path = Path(name)
        if path.is_dir():
            Run(path)
            runs[path.name if path.name not in runs else name] = [path]
        elif name.lower().endswith(".toml"):
            configs[path.stem if path.stem not in configs else name] = load(path, options["overrides"])
        else:
            raise DataError(f"{name}: found a text beside runs, expected run folders and configurations (.toml) alone")
    if options["test"] is None:
        raise DataError("name the test pairs of all systems with --test FILE")
    if len(systems) < 2:
        raise DataError(f"nothing to compare: found one system ({systems[0]}), expected another")
    if configs:
        runs |= dict(trained(configs, options))
    finish("Comparison", runs, read_test(options["test"], runs), output, options)


def budget_of(options: dict[str, Any], config: Config) -> Budget:
    """The budget that was asked for, else the steps of a configuration."""
    from dragoman.runs.protocol import Budget

    given = {name: options[name] for name in ("steps", "tokens", "minutes") if options[name] is not None}
    if len(given) > 1:
        raise DataError(f"found --{' and --'.join(given)}, expected one budget")
    return Budget(**given) if given else Budget(steps=config.train.steps)


def trained(configs: dict[str, Config], options: dict[str, Any]) -> Any:
    """Train every configuration; yields names and run folders."""
    from dragoman.runs.protocol import train_all

    budget = budget_of(options, next(iter(configs.values())))
    return train_all(
        configs, Path(options["folder"]), budget, options["seeds"], lambda line: click.echo(line, err=True)
    )


def read_test(file: str, runs: dict[str, list[Path]]) -> list[Example]:
    """The test pairs, read as the first run reads its data."""
    from dragoman.commands.labels import read_examples
    from dragoman.runs import Run

    run = Run(next(iter(runs.values()))[0])
    return read_examples(run.config.data, file, run.task.example_format(run.config), "pair", True, "compare on")


def compare_ladder(pairs: str, output: str | None, options: dict[str, Any]) -> None:
    """Train the ladder on a file of pairs and explain it."""
    from dragoman.auto.ladder import hold_out, ladder

    refuse(options, ("plot", "source"), "goes with texts")
    folder = Path(options["folder"])
    test: list[Example] | None = None
    if options["test"] is None:
        pairs, test = hold_out(pairs, folder)
    device = () if options["device"] == "auto" else (f"train.device={options['device']}",)
    configs, steps = ladder(pairs, (*device, *options["overrides"]))
    runs = dict(trained(configs, options))
    tested = test if test is not None else read_test(options["test"], runs)
    finish("The ladder", runs, tested, output, options, [(step.name, step.change, step.why) for step in steps])


def finish(
    title: str,
    runs: dict[str, list[Path]],
    test: list[Example],
    output: str | None,
    options: dict[str, Any],
    steps: list[tuple[str, str, str]] | None = None,
) -> None:
    """Test all runs, print their scores and write the report."""
    from dragoman.reports.comparison import compare_runs
    from dragoman.reports.ladder_story import story_view
    from dragoman.scoring.registry import metrics_by_name

    _, views = compare_runs(
        runs,
        test,
        metrics=options["metrics"],
        draws=options["draws"],
        seed=options["seed"],
        device=options["device"],
        sentence=options["sentence"],
        cost=output is not None,
        say=lambda line: click.echo(line, err=True),
    )
    if steps is not None:
        views.insert(0, story_view(steps, views))
    scores = next(view for view in views if view.kind == "scores").data
    write_report(title, f"{len(test):,} test pairs", views, output)
    if options["as_json"]:
        click.echo(json.dumps(scores, ensure_ascii=False))
        return
    width = max(len(row["name"]) for row in scores["rows"])
    for row in scores["rows"]:
        parts = []
        for metric in scores["metrics"]:
            known, own = metrics_by_name()[metric["name"]], row["scores"][metric["name"]]
            score, low, high = (known.format(own[name] / known.scale) for name in ("score", "low", "high"))
            parts.append(f"{metric['label']} {score} ({low} to {high})")
        click.echo(f"{row['name']:<{width}}  {'  '.join(parts)}")
    for step in next((view.data["steps"] for view in views if view.kind == "story"), []):
        click.echo(f"\n{step['name']}: {step['text']}")
