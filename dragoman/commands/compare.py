"""`dragoman compare`: test texts for significance, compare runs, or train configurations and compare them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.commands.inputs import read_examples
from dragoman.commands.options import device_option, draws_option, json_option, metric_option, seed_option, units_option
from dragoman.commands.printing import as_utf8, print_message
from dragoman.data.examples import Example
from dragoman.errors import DataError
from dragoman.files import atomic_write, check_creatable

if TYPE_CHECKING:
    from dragoman.analysis.view import View
    from dragoman.tasks.config import Config


@click.command()
@click.argument("systems", nargs=-1, metavar="[REFERENCES] SYSTEM...")
@click.option(
    "--ladder", metavar="PAIRS",
    help="Train a classical model, plain RNN, LSTM, LSTM + attention, ConvS2S, Transformer on these pairs.",
)  # fmt: skip
@click.option(
    "--untrained", is_flag=True,
    help="Gradients before training: a plain RNN beside LSTM, GRU and residual, and by the recurrent weight.",
)  # fmt: skip
@click.option(
    "--tasks", metavar="FOLDER", help="Train configurations on every task of a folder: a table with the average."
)
@click.option("--test", metavar="FILE", help="Test pairs for runs and configurations. [--ladder: a tenth of PAIRS]")
@click.option("--output", "-o", metavar="FILE", help="Write a report: a page (.html) or its numbers (.json).")
@click.option("--folder", default="runs/compare", help="Where configurations are trained; resumes there.")
@click.option("--steps", type=click.IntRange(1), help="Training steps of every configuration. [default: the first's]")
@click.option("--tokens", type=click.IntRange(1), help="Instead: target tokens that every configuration trains on.")
@click.option(
    "--minutes", type=click.FloatRange(0, min_open=True), help="Instead: training minutes of every configuration."
)
@click.option(
    "--own-tokenizers", is_flag=True, help="Each configuration keeps its tokenizer: characters against words."
)
@click.option("--title", help="Title of the page or of its numbers.")
@click.option("--seeds", type=click.IntRange(1), default=1, help="Runs of every configuration.")
@click.option("--sentence", help="Source sentence for the attention of each. [default: one of the test]")
@click.option("--set", "overrides", multiple=True, metavar="PLACE=VALUE", help="A setting for all configurations.")
@click.option("--source", help="Source lines of texts, for --metric f0.5, scores by length and the report.")
@metric_option
@units_option
@click.option("--plot", metavar="FILE", help="Texts: also draw scores and intervals to this .png, .svg or .pdf file.")
@draws_option
@seed_option
@json_option
@device_option
def compare(systems: tuple[str, ...], ladder: str | None, untrained: bool, output: str | None, **options: Any) -> None:
    """Compare texts, runs or configurations by one protocol.

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
    dragoman compare words.toml characters.toml --own-tokenizers --test test.tsv --minutes 10 --output report.html
    dragoman compare --untrained --output gradients.html
    dragoman compare small.toml large.toml --tasks glue --seeds 3
    dragoman compare ladder.json --output ladder.html         draw a kept report again, without training
    """
    if output is not None:
        if Path(output).suffix.lower() not in (".html", ".json"):
            raise DataError(f"--output: found {output!r}, expected a file that ends in .html or .json")
        check_creatable(output)
    as_utf8()
    if options["own_tokenizers"] and not any(name.lower().endswith(".toml") for name in systems):
        raise DataError("--own-tokenizers goes with configurations (.toml)")
    if len(systems) == 1 and Path(systems[0]).suffix.lower() in (".json", ".html"):
        taken = ("test", "tasks", "steps", "tokens", "minutes", "sentence", "overrides", "source", "plot", "metrics")
        refuse(options, taken, "does not go with a report that is drawn again")
        redraw(systems[0], output, options["title"])
    elif untrained:
        if systems or ladder is not None:
            raise DataError(f"--untrained has its own systems: found {systems[0] if systems else '--ladder'!r} too")
        taken = ("test", "tasks", "steps", "tokens", "minutes", "sentence", "overrides", "source", "plot", "metrics")
        refuse(options, taken, "does not go with --untrained")
        compare_untrained(output, options)
    elif ladder is not None:
        if systems:
            raise DataError(f"--ladder trains its own systems: found {systems[0]!r} too")
        refuse(options, ("tasks",), "does not go with --ladder")
        compare_ladder(ladder, output, options)
    elif options["tasks"] is not None:
        compare_tasks(systems, output, options)
    elif not systems:
        raise DataError("nothing to compare: name texts, runs or configurations, or use --ladder PAIRS")
    elif any(Path(name).is_dir() or name.lower().endswith(".toml") for name in systems):
        compare_models(systems, output, options)
    else:
        compare_outputs(systems, output, options)


def redraw(report: str, output: str | None, title: str | None) -> None:
    """Draw the numbers of a report (.json, or those inside a page) with the present page."""
    from dragoman.web.page import build_page, page_data

    if output is None or not output.lower().endswith(".html"):
        raise DataError(f"--output: found {output!r} for the report {report}, expected a page that ends in .html")
    try:
        text = Path(report).read_text(encoding="utf-8")
        data = page_data(text) if report.lower().endswith(".html") else json.loads(text)
        drawable = data["format"] == 1 and all({"kind", "title", "data"} <= view.keys() for view in data["views"])
    except OSError as error:
        raise DataError(f"{report}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        drawable = False
    if not drawable or any(view["kind"] == "overview" for view in data["views"]):
        raise DataError(f"{report}: found no report of `dragoman compare --output`, expected its .json or .html")
    data["title"] = title or data["title"]
    with atomic_write(output, with_folder=True) as beside:
        beside.write_text(build_page(data["title"], "compare-page", data), encoding="utf-8", newline="\n")
    print_message(f"report: {output}")


def write_report(title: str, about: str, views: list[View], output: str | None) -> None:
    from dragoman.analysis.view import listed, packed
    from dragoman.web.page import build_page, plain

    if output is None:
        return
    title = click.get_current_context().params["title"] or title
    shown = [view.as_dict() for view in views]
    data = {"format": 1, "title": title, "about": about, "views": shown, "notes": []}
    with atomic_write(output, with_folder=True) as beside:
        numbers = output.lower().endswith(".json")
        content = json.dumps(plain(listed(data))) if numbers else build_page(title, "compare-page", packed(data))
        beside.write_text(content, encoding="utf-8", newline="\n")
    print_message(f"report: {output}")


def refuse(options: dict[str, Any], names: tuple[str, ...], why: str) -> None:
    for name in names:
        if options[name] not in (None, ()):
            raise DataError(f"--{name} {why}")


def compare_outputs(files: tuple[str, ...], output: str | None, options: dict[str, Any]) -> None:
    """Texts: REFERENCES, the baseline, and other systems."""
    from dragoman.reports.comparison import compare_texts
    from dragoman.reports.score_files import compare_files
    from dragoman.reports.text_tables import comparison_lines

    refuse(options, ("test", "steps", "tokens", "minutes", "sentence"), "goes with runs and configurations")
    references, *systems = files
    if not systems:
        raise DataError(f"nothing to compare: found {references} alone, expected references, a baseline and a system")
    draws, seed = options["draws"], options["seed"]
    table, standings, outputs, truth, sources = compare_files(
        references, systems, options["metrics"], options["units"], draws, seed, options["plot"], options["source"]
    )
    if output is not None:
        write_report("Comparison", references, compare_texts(outputs, truth, table, draws, seed, sources), output)
    if options["as_json"]:
        click.echo(json.dumps([standing.as_dict() for standing in standings], ensure_ascii=False))
    else:
        click.echo("\n".join(comparison_lines(standings, table)))


def compare_untrained(output: str | None, options: dict[str, Any]) -> None:
    from dragoman.analysis.gradients import by_recurrent_weight, untrained_cells
    from dragoman.reports.comparison import untrained_views

    flows = {"cells": untrained_cells(options["seed"]), "recurrent weight": by_recurrent_weight(options["seed"])}
    write_report("Gradients before training", "random inputs", untrained_views(*flows.values()), output)
    if options["as_json"]:
        rows = {kind: [{"name": flow.name, "factor": 10**flow.slope, "norms": flow.state.tolist()} for flow in own]
                for kind, own in flows.items()}  # fmt: skip
        click.echo(json.dumps(rows, ensure_ascii=False))
        return
    click.echo(f"{'untrained':<12}{'per step back':>14}{'after 10':>12}{'after 49':>12}   of ‖∂h(T)/∂h(t)‖")
    for flow in (*flows["cells"], *flows["recurrent weight"]):
        norms = "".join(f"{float(flow.state[distance]):>12.2e}" for distance in (10, 49))
        click.echo(f"{flow.name:<12}{'×':>9}{10**flow.slope:>5.2f}{norms}")


def compare_tasks(systems: tuple[str, ...], output: str | None, options: dict[str, Any]) -> None:
    """A row for each configuration, a column for each task: folders with a task.toml (data and metric)."""
    from dragoman.analysis.view import View
    from dragoman.auto.task_table import read_tasks, table_lines, task_table

    refuse(options, ("test", "tokens", "minutes", "sentence", "source", "plot", "metrics"), "does not go with --tasks")
    if options["own_tokenizers"]:
        raise DataError("--own-tokenizers does not go with --tasks: there each configuration has its own anyway")
    configs = {Path(name).stem if Path(name).suffix.lower() == ".toml" else "": Path(name) for name in systems}
    if not systems or "" in configs or len(configs) < len(systems):
        found = ", ".join(systems) or "none"
        raise DataError(f"--tasks: found {found}, expected configurations (.toml) with different names")
    steps = () if options["steps"] is None else (f"train.steps={options['steps']}",)
    device = () if options["device"] == "auto" else (f"train.device={options['device']}",)
    given = (*device, *steps, *options["overrides"])
    tasks = read_tasks(Path(options["tasks"]))
    table = task_table(configs, tasks, Path(options["folder"]), given, options["seeds"], print_message)
    about = "Scores of the validation part of each task, of the weights that it chose; the last column is their mean."
    write_report("Tasks", f"{len(tasks)} tasks", [View("tasks", "Tasks", about, table)], output)
    click.echo(json.dumps(table, ensure_ascii=False) if options["as_json"] else "\n".join(table_lines(table)))


def compare_models(systems: tuple[str, ...], output: str | None, options: dict[str, Any]) -> None:
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
        runs |= train_configs(configs, options)
    finish("Comparison", runs, None, output, options)


def train_configs(configs: dict[str, Config], options: dict[str, Any]) -> dict[str, list[Path]]:
    """Train every configuration with one budget, else the steps of the first; returns names and run folders."""
    from dragoman.runs.protocol import Budget, train_all

    given = {name: options[name] for name in ("steps", "tokens", "minutes") if options[name] is not None}
    if len(given) > 1:
        raise DataError(f"found --{' and --'.join(given)}, expected one budget")
    budget = Budget(**given) if given else Budget(steps=next(iter(configs.values())).train.steps)
    return dict(
        train_all(configs, Path(options["folder"]), budget, options["seeds"], print_message, options["own_tokenizers"])
    )


def compare_ladder(pairs: str, output: str | None, options: dict[str, Any]) -> None:
    """Train the ladder on a file of pairs and explain it."""
    from dragoman.auto.ladder import hold_out, ladder

    refuse(options, ("plot", "source"), "goes with texts")
    test: list[Example] | None = None
    if options["test"] is None:
        pairs, test = hold_out(pairs, Path(options["folder"]))
    device = () if options["device"] == "auto" else (f"train.device={options['device']}",)
    configs, steps = ladder(pairs, (*device, *options["overrides"]))
    runs = train_configs(configs, options)
    finish(
        "The ladder",
        runs,
        test,
        output,
        options,
        [(step.name, f"{step.change} {step.why}", step.figures) for step in steps],
    )


def finish(
    title: str,
    runs: dict[str, list[Path]],
    test: list[Example] | None,
    output: str | None,
    options: dict[str, Any],
    steps: list[tuple[str, str, tuple[str, ...]]] | None = None,
) -> None:
    """Test all runs on `test`, or on the pairs of --test, print their scores and write the report."""
    from dragoman.reports.comparison import compare_runs, story_view
    from dragoman.runs import Run
    from dragoman.scoring.registry import metrics_by_name

    if test is None:  # read as the first run reads its data
        first = Run(next(iter(runs.values()))[0])
        test = read_examples(first, options["test"], "pair", several_references=True, purpose="compare on")
    measured = {name: options[name] for name in ("metrics", "draws", "seed", "device", "sentence")}
    views = compare_runs(runs, test, **measured, cost=output is not None, say=print_message)
    scores = next(view for view in views if view.kind == "scores").data
    if steps is not None:
        views.insert(0, story_view(steps, scores))
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
