"""Compare systems by one protocol: texts, runs, configurations, the ladder of architectures, and tables of tasks."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dragoman.base import DataError, atomic_write, check_creatable
from dragoman.base.config import Limited, Range, Size, setting
from dragoman.scoring import Draws, Seed, draws_setting, metrics_setting, seed_setting, units_setting

if TYPE_CHECKING:
    from dragoman.data import Example
    from dragoman.inspect.views import View
    from dragoman.runs.tasks import Config

Say = Callable[[str], None]
# Of the reports: those that compare.js draws.
VIEWS = (
    "story", "scores", "curves", "lengths", "significance", "ngrams", "outputs", "attentions", "flows", "weights",
    "tasks", "exposure", "padding", "cost",
)  # fmt: skip


@dataclass(frozen=True)
class CompareOptions(Limited):
    """What to compare beside the systems that are named, on which data, and how long configurations train."""

    ladder: str | None = setting(
        None, flag="--ladder", metavar="PAIRS",
        help="train the history of the field on these pairs, from counts to the modern Transformer; `dates`: a made-up "
        "task that needs no file",
    )  # fmt: skip
    stages: Literal["history", "attention"] = setting(
        "history", flag="--stages", help="steps of --ladder: history, or attention: from gates to attention heads"
    )
    untrained: bool = setting(
        False, flag="--untrained",
        help="gradients before training: a plain RNN beside LSTM, GRU and residual, and by the recurrent weight",
    )  # fmt: skip
    tasks: str | None = setting(
        None, help="train configurations on every task of a folder: a table with the average", flag="--tasks",
        metavar="FOLDER",
    )  # fmt: skip
    test: str | None = setting(
        None, help="test pairs for runs and configurations. [--ladder: a tenth of PAIRS]", flag="--test", metavar="FILE"
    )
    output: str | None = setting(
        None, help="write a report: a page (.html) or its numbers (.json).", flag="--output -o", metavar="FILE"
    )
    view: str | None = setting(
        None, flag="--view", metavar="NAME",
        help="the view that the page opens at, or the only one in .json, such as attentions. [default: the first]",
    )  # fmt: skip
    folder: str = setting("runs/compare", help="where configurations are trained; resumes there", flag="--folder")
    steps: Size | None = setting(
        None, help="training steps of every configuration. [default: the first's]", flag="--steps"
    )
    tokens: Size | None = setting(
        None, help="Instead: target tokens that every configuration trains on", flag="--tokens"
    )
    minutes: Annotated[float, Range(0, exclusive_minimum=True)] | None = setting(
        None, help="Instead: training minutes of every configuration", flag="--minutes"
    )
    own_tokenizers: bool = setting(
        False, help="each configuration keeps its tokenizer: characters against words", flag="--own-tokenizers"
    )
    title: str | None = setting(None, help="title of the page or of its numbers", flag="--title")
    seeds: Size = setting(1, help="runs of every configuration", flag="--seeds")
    sentence: str | None = setting(
        None, help="source sentence for the attention of each. [default: one of the test]", flag="--sentence"
    )
    overrides: tuple[str, ...] = setting(
        (), help="a setting for all configurations", flag="--set", metavar="PLACE=VALUE"
    )
    source: str | None = setting(
        None, help="source lines of texts, for --metric f0.5, scores by length and the report", flag="--source"
    )
    metrics: tuple[str, ...] = metrics_setting()
    units: Literal["words", "phonemes"] = units_setting()
    plot: str | None = setting(
        None, help="Texts: also draw scores and intervals to this .png, .svg or .pdf file", flag="--plot",
        metavar="FILE",
    )  # fmt: skip
    draws: Draws = draws_setting()
    seed: Seed = seed_setting()
    device: str = setting("auto", help="auto, cpu, cuda, cuda:N or mps", flag="--device")

    def refuse(self, names: str, why: str) -> None:
        """Raise DataError for an option that would have no effect."""
        for name in names.split():
            if getattr(self, name) not in (None, ()):
                raise DataError(f"--{name} {why}")

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings of all configurations."""
        return (*(() if self.device == "auto" else (f"train.device={self.device}",)), *self.overrides)


@dataclass(frozen=True)
class Comparison:
    """The scores, for JSON and as lines of text, and the views of the report."""

    title: str
    about: str  # what was compared on
    data: Any = None
    lines: Sequence[str] = ()
    views: Sequence[View] = field(default=(), repr=False)

    def _repr_html_(self) -> str:
        """A notebook shows the lines as a terminal does: they are columns."""
        head, text = html.escape(f"{self.title}: {self.about}"), html.escape("\n".join(self.lines))
        return f"<h4>{head}</h4><pre>{text}</pre>"


def compare_systems(systems: Sequence[str], options: CompareOptions | None = None, say: Say = print) -> Comparison:
    """Compare files of texts (the first are references), run folders or configurations; write the report asked for."""
    options = options or CompareOptions()
    if options.output is not None:
        if Path(options.output).suffix.lower() not in (".html", ".json"):
            raise DataError(f"--output: found {options.output!r}, expected a file that ends in .html or .json")
        check_creatable(options.output)
    elif options.view is not None:
        raise DataError("--view goes with --output FILE")
    if options.view is not None:  # an error before the work
        known_view(options.view, VIEWS)
    if options.own_tokenizers and not any(name.lower().endswith(".toml") for name in systems):
        raise DataError("--own-tokenizers goes with configurations (.toml)")
    no_training = "test tasks steps tokens minutes sentence overrides source plot metrics"
    if len(systems) == 1 and Path(systems[0]).suffix.lower() in (".json", ".html"):
        options.refuse(no_training, "does not go with a report that is drawn again")
        return redraw(systems[0], options, say)
    if options.untrained:
        if systems or options.ladder is not None:
            raise DataError(f"--untrained has its own systems: found {systems[0] if systems else '--ladder'!r} too")
        options.refuse(no_training, "does not go with --untrained")
        found = compare_untrained(options)
    elif options.ladder is not None:
        if systems:
            raise DataError(f"--ladder trains its own systems: found {systems[0]!r} too")
        options.refuse("tasks", "does not go with --ladder")
        found = compare_ladder(options.ladder, options, say)
    elif options.tasks is not None:
        found = compare_tasks(systems, options.tasks, options, say)
    elif not systems:
        raise DataError("nothing to compare: name texts, runs or configurations, or use --ladder PAIRS")
    elif any(Path(name).is_dir() or name.lower().endswith(".toml") for name in systems):
        found = compare_models(systems, options, say)
    else:
        found = compare_files(systems, options)
    write_report(found, options, say)
    return found


def redraw(report: str, options: CompareOptions, say: Say) -> Comparison:
    """Draw the numbers of a report (.json, or those inside a page) with the present page."""
    from dragoman.web import build_page, page_data

    output = options.output
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
    data["title"] = options.title or data["title"]
    if options.view is not None:
        data["first"] = known_view(options.view, [view["kind"] for view in data["views"]])
    with atomic_write(output, with_folder=True) as beside:
        beside.write_text(build_page(data["title"], "compare-page", data), encoding="utf-8", newline="\n")
    say(f"report: {output}")
    return Comparison(data["title"], report)


def known_view(name: str, kinds: Sequence[str]) -> str:
    if name not in kinds:
        raise DataError(f"--view: found {name!r}, expected one of {', '.join(kinds)}")
    return name


def write_report(found: Comparison, options: CompareOptions, say: Say) -> None:
    from dragoman.inspect.views import listed, packed
    from dragoman.web import build_page, plain

    if (output := options.output) is None:
        return
    title, shown = options.title or found.title, [view.as_dict() for view in found.views]
    numbers, first = output.lower().endswith(".json"), options.view
    data: dict[str, Any] = {"format": 1, "title": title, "about": found.about, "views": shown, "notes": []}
    if first is not None:
        data["first"] = known_view(first, [view["kind"] for view in shown])
        data["views"] = [view for view in shown if view["kind"] == first or not numbers]
    with atomic_write(output, with_folder=True) as beside:
        content = json.dumps(plain(listed(data))) if numbers else build_page(title, "compare-page", packed(data))
        beside.write_text(content, encoding="utf-8", newline="\n")
    say(f"report: {output}")


def compare_files(files: Sequence[str], options: CompareOptions) -> Comparison:
    """Texts: REFERENCES, the baseline, and other systems."""
    from dragoman.inspect.measure import compare_files as compare_output_files
    from dragoman.inspect.measure import compare_texts, comparison_lines

    options.refuse("test steps tokens minutes sentence", "goes with runs and configurations")
    references, *systems = files
    if not systems:
        raise DataError(f"nothing to compare: found {references} alone, expected references, a baseline and a system")
    draws, seed = options.draws, options.seed
    table, standings, outputs, truth, sources = compare_output_files(
        references, systems, options.metrics, options.units, draws, seed, options.plot, options.source
    )
    views = () if options.output is None else compare_texts(outputs, truth, table, draws, seed, sources)
    data = [standing.as_dict() for standing in standings]
    return Comparison("Comparison", references, data, [*comparison_lines(standings, table)], views)


def compare_untrained(options: CompareOptions) -> Comparison:
    from dragoman.inspect.measure import untrained_views
    from dragoman.inspect.views import by_recurrent_weight, untrained_cells

    flows = {"cells": untrained_cells(options.seed), "recurrent weight": by_recurrent_weight(options.seed)}
    rows = {kind: [{"name": flow.name, "factor": 10**flow.slope, "norms": flow.state.tolist()} for flow in own]
            for kind, own in flows.items()}  # fmt: skip
    lines = [f"{'untrained':<12}{'per step back':>14}{'after 10':>12}{'after 49':>12}   of ‖∂h(T)/∂h(t)‖"]
    for flow in (*flows["cells"], *flows["recurrent weight"]):
        norms = "".join(f"{float(flow.state[distance]):>12.2e}" for distance in (10, 49))
        lines.append(f"{flow.name:<12}{'×':>9}{10**flow.slope:>5.2f}{norms}")
    return Comparison("Gradients before training", "random inputs", rows, lines, untrained_views(*flows.values()))


def compare_tasks(systems: Sequence[str], folder: str, options: CompareOptions, say: Say) -> Comparison:
    """A row for each configuration, a column for each task: folders with a task.toml (data and metric)."""
    from dragoman.auto.protocol import read_tasks, table_lines, task_table
    from dragoman.inspect.views import View

    options.refuse("test tokens minutes sentence source plot metrics", "does not go with --tasks")
    if options.own_tokenizers:
        raise DataError("--own-tokenizers does not go with --tasks: there each configuration has its own anyway")
    configs = {Path(name).stem if Path(name).suffix.lower() == ".toml" else "": Path(name) for name in systems}
    if not systems or "" in configs or len(configs) < len(systems):
        found = ", ".join(systems) or "none"
        raise DataError(f"--tasks: found {found}, expected configurations (.toml) with different names")
    steps = () if options.steps is None else (f"train.steps={options.steps}",)
    tasks, given = read_tasks(Path(folder)), (*steps, *options.settings)
    table = task_table(configs, tasks, Path(options.folder), given, options.seeds, say)
    about = "Scores of the validation part of each task, of the weights that it chose; the last column is their mean."
    return Comparison("Tasks", f"{len(tasks)} tasks", table, table_lines(table), [View("tasks", "Tasks", about, table)])


def compare_models(systems: Sequence[str], options: CompareOptions, say: Say) -> Comparison:
    from dragoman.runs import Run
    from dragoman.runs.tasks import load

    options.refuse("plot source", "goes with texts")
    configs, runs = {}, {}
    for name in systems:
        path = Path(name)
        if path.is_dir():
            Run(path)
            runs[path.name if path.name not in runs else name] = [path]
        elif name.lower().endswith(".toml"):
            configs[path.stem if path.stem not in configs else name] = load(path, options.overrides)
        else:
            raise DataError(f"{name}: found a text beside runs, expected run folders and configurations (.toml) alone")
    if options.test is None:
        raise DataError("name the test pairs of all systems with --test FILE")
    if len(systems) < 2:
        raise DataError(f"nothing to compare: found one system ({systems[0]}), expected another")
    if configs:
        runs |= train_configs(configs, options, say)
    return compare_trained("Comparison", runs, read_test(runs, options.test, say), options, say)


def train_configs(configs: Mapping[str, Config], options: CompareOptions, say: Say) -> dict[str, list[Path]]:
    """Train every configuration with one budget, else the steps of the first; returns names and run folders."""
    from dragoman.auto.protocol import Budget, train_all

    given = {name: value for name in ("steps", "tokens", "minutes") if (value := getattr(options, name)) is not None}
    if len(given) > 1:
        raise DataError(f"found --{' and --'.join(given)}, expected one budget")
    budget = Budget(**given) if given else Budget(steps=next(iter(configs.values())).train.steps)
    return dict(train_all(configs, Path(options.folder), budget, options.seeds, say, options.own_tokenizers))


def compare_ladder(pairs: str, options: CompareOptions, say: Say) -> Comparison:
    """Train the ladder on a file of pairs and explain it."""
    from dragoman.auto.architecture_ladder import DATE_SETTINGS, DATE_STEPS, DATES, hold_out, ladder, write_dates
    from dragoman.inspect.measure import story_view

    options.refuse("plot source", "goes with texts")
    folder = Path(options.folder)
    if pairs == DATES and not Path(pairs).exists():
        pairs = write_dates(folder)
        if not (options.steps or options.tokens or options.minutes):
            options = replace(options, steps=DATE_STEPS)
        options = replace(options, overrides=(*DATE_SETTINGS, *options.overrides))
    test: list[Example] | None = None
    if options.test is None:
        pairs, test = hold_out(pairs, folder)
    configs, steps = ladder(pairs, options.settings, options.stages)
    runs = train_configs(configs, options, say)
    found = compare_trained("The ladder", runs, test or read_test(runs, options.test, say), options, say)
    told = [(step.name, step.year, f"{step.change} {step.why}", step.figures) for step in steps]
    story = story_view(told, found.data)
    return replace(found, lines=[*ladder_lines(story.data), *found.lines], views=[story, *found.views])


def ladder_lines(story: Mapping[str, Any]) -> list[str]:
    """The ladder as a table and its text: year, size, score, speeds, and what each step changed."""
    head = ["step", "year", "parameters", story["metric"], "training tokens/s", "decoding sentences/s"]
    rows = [head]
    for step in story["steps"]:
        speeds = [step[name] for name in ("training_tokens_per_second", "decoding_sentences_per_second")]
        rows.append([step["name"], str(step["year"]), f"{step['parameters']:,}", f"{step['score']:.1f}",
                     *("–" if speed is None else f"{speed:,.0f}" for speed in speeds)])  # fmt: skip
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    table = ["  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]) for row in rows]
    return [*table, *(f"\n{step['name']}: {step['text']}" for step in story["steps"]), ""]


def read_test(runs: Mapping[str, Sequence[Path]], file: str | None, say: Say) -> list[Example]:
    from dragoman.inference import read_examples
    from dragoman.runs import Run

    assert file is not None
    first = Run(next(iter(runs.values()))[0])
    return read_examples(first, file, several_references=True, on_skipped=lambda line: say(f"warning: {line}"))


def compare_trained(
    title: str, runs: Mapping[str, Sequence[Path]], test: Sequence[Example], options: CompareOptions, say: Say
) -> Comparison:
    from dragoman.inspect.measure import compare_runs
    from dragoman.scoring import metrics_by_name

    views = compare_runs(
        runs, test, metrics=options.metrics, draws=options.draws, seed=options.seed, device=options.device,
        sentence=options.sentence, cost=options.output is not None, say=say,
    )  # fmt: skip
    scores = next(view for view in views if view.kind == "scores").data
    width = max(len(row["name"]) for row in scores["rows"])
    lines = []
    for row in scores["rows"]:
        parts = []
        for metric in scores["metrics"]:
            known, own = metrics_by_name()[metric["name"]], row["scores"][metric["name"]]
            score, low, high = (known.format(own[name] / known.scale) for name in ("score", "low", "high"))
            parts.append(f"{metric['label']} {score} ({low} to {high})")
        lines.append(f"{row['name']:<{width}}  {'  '.join(parts)}")
    return Comparison(title, f"{len(test):,} test pairs", scores, lines, views)
