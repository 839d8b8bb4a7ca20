"""The command line: parse, call one function, print. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dragoman.errors import DataError, DragomanError, hint
from dragoman.options import decoding_options, engine_options
from dragoman.version import __version__

if TYPE_CHECKING:
    from dragoman.config import Config
    from dragoman.training.display import Display

Function = TypeVar("Function", bound=Callable[..., Any])


class Commands(click.Group):
    """Names the nearest command when one is mistyped, and lists commands in the order of work."""

    def list_commands(self, context: click.Context) -> list[str]:
        """In the order they were written."""
        return list(self.commands)

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name in the error."""
        if arguments and not arguments[0].startswith("-") and arguments[0] not in self.commands:
            context.fail(f"no such command '{arguments[0]}'. {hint(arguments[0], self.commands)}")
        return super().resolve_command(context, arguments)

    def invoke(self, context: click.Context) -> Any:
        """As click does, but without its silent exit code 1 when the reader of the output has left."""
        try:
            return super().invoke(context)
        except BrokenPipeError:
            raise ReaderLeft from None


class ReaderLeft(Exception):  # noqa: N818  (not an error: `dragoman … | head` has seen enough)
    """Nobody reads our output any more."""


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="dragoman %(version)s")
@click.option("--trace", is_flag=True, help="Show the whole Python traceback of an error (works after a command too).")
def cli(trace: bool) -> None:
    """Learn to map sequences to sequences from pairs: train, check, predict, evaluate.

    \b
    A first tour:
      dragoman train pairs.tsv              learn from a file of two columns, nothing else needed
      echo "hello" | dragoman predict runs/pairs
      dragoman evaluate runs/pairs test.tsv
      dragoman info runs/pairs
    """


# ---------------------------------------------------------------------- what to train


def resolve(
    what: str | None, source: str | None, target: str | None, overrides: tuple[str, ...], say: Any
) -> tuple[Config, str]:
    """The configuration meant by a config file, a data file, a run folder or two parallel files, and a run folder."""
    from dragoman import config as configuration
    from dragoman.files import run_name

    if what is not None and "=" in what and not Path(what).exists():
        overrides = (what, *overrides)
        what = None
    if (source is None) != (target is None):
        raise DataError("--source and --target go together: found one, expected both")
    if what is None and source is None:
        raise DataError("nothing to train on: name a data file, a configuration (.toml) or a run folder")
    if what is not None and source is not None:
        raise DataError(f"found both '{what}' and --source/--target, expected one of them")
    if what is not None and Path(what).is_dir():
        from dragoman.runs import resumed

        return resumed(what, overrides), what
    if what is not None and what.lower().endswith(".toml"):
        return configuration.load(what, overrides), str(Path("runs") / run_name(what))

    from dragoman import automatic
    from dragoman.data.readers import Pairs

    files = Pairs(source, target) if source is not None and target is not None else what
    assert files is not None
    folder = Path("runs") / run_name(what or source or "")
    config, reasons = automatic.configured(files, overrides)
    for reason in reasons:
        say(reason)
    if overrides:
        say(f"on top of that: {', '.join(overrides)}")
    return config, str(folder)


def what_to_train(function: Any) -> Any:
    """The arguments that name data or a configuration."""
    function = click.argument("overrides", nargs=-1, metavar="[PLACE=VALUE]...")(function)
    function = click.argument("what", required=False, metavar="[FILE|CONFIG|RUN]")(function)
    function = click.option("--target", help="Target lines, one for each source line.")(function)
    return click.option("--source", help="Source lines of a pair of parallel files.")(function)


@cli.command()
@what_to_train
@click.option("--run", "--run-folder", "run_folder", help="The run folder to make or go on with. [default: runs/NAME]")
@click.option("--quiet", "-q", is_flag=True, help="Show warnings only.")
def train(
    what: str | None,
    overrides: tuple[str, ...],
    source: str | None,
    target: str | None,
    run_folder: str | None,
    quiet: bool,
) -> None:
    """Train a model, or go on with one.

    \b
    dragoman train pairs.tsv                      choose everything from the data, and say why
    dragoman train --source a.en --target a.de    the same from two parallel files
    dragoman train my.toml train.steps=2000       from a configuration, one setting changed
    dragoman train runs/my                        go on where a run stopped
    torchrun --nproc-per-node 2 -m dragoman train my.toml --run-folder runs/my    on several processes

    Data may be .tsv, .jsonl or .parquet, plain, .gz or .zst. Ctrl-C and SIGTERM save before they stop; the same
    command goes on from there, to the same bits. (torchrun takes --run for one of its own options; --run-folder it
    leaves alone.)
    """
    from dragoman.runs import train as train_run
    from dragoman.training.display import Display
    from dragoman.training.ranks import Ranks

    display = Display(quiet=quiet or not Ranks().first)
    config, folder = resolve(what, source, target, overrides, display.say)
    folder = run_folder or folder
    progress = train_run(config, folder, display)
    if Ranks().first:
        report_trained(folder, config, progress, display)


def report_trained(folder: str, config: Config, progress: Any, display: Display) -> None:
    """The last words of a training run."""
    score, step = progress.best[0] if progress.best else (float("nan"), progress.step)
    early = " (stopped early)" if progress.step < config.train.steps else ""
    display.say(
        f"done: {progress.step:,} steps{early}, best {config.train.metric} {abs(score):.4g} at step {step:,}\n"
        f"run folder: {folder}\nuse it: dragoman predict {folder} FILE"
    )


@cli.command()
@what_to_train
@click.option("--show", type=click.IntRange(0), default=1000, show_default=True, help="Faulty lines to name.")
def check(what: str | None, overrides: tuple[str, ...], source: str | None, target: str | None, show: int) -> None:
    """Prove a run before it starts.

    Reads the configuration, then every data line (each fault is named as file:line), measures lengths, padding and
    the memory of the largest batch, and runs one train-validate-save-reload-decode cycle on a few pairs.
    """
    from dragoman.checking import check as prove

    config, _ = resolve(what, source, target, overrides, click.echo)
    prove(config, click.echo, show)
    click.echo("all is well")


tag_option = click.option(
    "--tag", help="What to write, such as de, where one model learned several languages; dragoman info shows which."
)
length_penalty = click.option(
    "--length-penalty", type=click.FloatRange(0.0), help="Rank hypotheses by Σ log p / t^penalty. [default: the run's]"
)


SEARCH_OPTIONS = (
    click.option(
        "--normalisation", type=click.Choice(["power", "gnmt", "none"]),
        help="Divide Σ log p by t^penalty, ((5 + t) / 6)^penalty, or nothing. [default: the run's]",
    ),
    click.option(
        "--coverage-penalty", type=click.FloatRange(0.0),
        help="What an output leaves unread of its source costs this much; needs attention. [default: the run's]",
    ),
    click.option(
        "--stop", type=click.Choice(["complete", "certain"]),
        help="Stop when as many outputs as the beam are complete, or when no open one can win. [default: the run's]",
    ),
    click.option("--shortest", type=click.IntRange(0), help="Fewest tokens of an output. [default: the run's]"),
    click.option("--no-repeat", type=click.IntRange(0), help="Write no N tokens in a row twice. [default: the run's]"),
)  # fmt: skip
CONTROL_OPTIONS = (
    click.option("--prefix", help="Every output begins with this text."),
    click.option("--forbid", multiple=True, help="No output holds this text, inside words either. Repeat for more."),
    click.option("--require", multiple=True, help="Every output holds this phrase. Repeat for more."),
    click.option("--pattern", help="Every output matches this regular expression as a whole."),
    click.option("--allow", metavar="FILE", help="Every output is one of the lines of FILE."),
    click.option(
        "--terminology", metavar="FILE",
        help="Source and target terms, tab-separated: where an input has the first, its output holds the second.",
    ),
    click.option(
        "--placeholders", is_flag=True, help="Keep tags, {variables}, addresses of an input, each as often as it comes."
    ),
)  # fmt: skip


def options(several: tuple[Any, ...]) -> Callable[[Function], Function]:
    """Several options of a command, in this order in its help."""

    def add(function: Function) -> Function:
        for option in reversed(several):
            function = option(function)
        return function

    return add


def search_settings(given: dict[str, Any]) -> dict[str, Any]:
    """The settings of search among the arguments of a command, as far as they were given."""
    names = ("normalisation", "coverage_penalty", "stop", "shortest", "no_repeat")
    return {name: given[name] for name in names if given.get(name) is not None}


@cli.command()
@click.argument("run")
@click.argument("file", required=False)
@click.option("--beam", type=click.IntRange(1), help="Hypotheses kept side by side; 1 is greedy. [default: the run's]")
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, help="Inputs at a time.")
@length_penalty
@options(SEARCH_OPTIONS)
@options(CONTROL_OPTIONS)
@click.option("--beam-trace", metavar="FILE", help="Write all that the search looked at: one JSON object an input.")
@tag_option
@click.option("--json", "as_json", is_flag=True, help="One object a line: text, score, tokens, token_scores.")
@click.option("--n-best", type=click.IntRange(1), default=1, show_default=True, help="Outputs an input; needs --json.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@engine_options
@decoding_options
def predict(
    run: str,
    file: str | None,
    beam: int | None,
    batch_size: int,
    length_penalty: float | None,
    tag: str | None,
    as_json: bool,
    n_best: int,
    device: str,
    engine: str,
    precision: str,
    beam_trace: str | None,
    allow: str | None,
    terminology: str | None,
    placeholders: bool,
    how: dict[str, Any],
    **given: Any,
) -> None:
    """Predict one output line for every input line.

    Reads FILE (also .gz and .zst) or standard input. Empty lines stay empty. The output does not depend on the
    batch size or on the order of the lines.

    The lines of a FILE.jsonl are objects with "source" and, for this line alone, "prefix", "forbid", "require",
    "allow" or "pattern"; they go before the options of these names.
    """
    if n_best > 1 and not as_json:
        raise DataError(f"--n-best {n_best} needs --json: plain output has one line for every input line")
    typed = file in (None, "-")
    if typed and sys.stdin is None:
        raise DataError("standard input is closed: name a FILE, or send lines")
    from dragoman.companions import asked_how
    from dragoman.data.readers import read_lines
    from dragoman.predictor import WINDOW
    from dragoman.search.control import Asked, asked_from_json, control_of

    lines = read_lines(file)
    given["allow"] = list(read_lines(allow)) if allow else None
    control = control_of({**given, "forbid": list(given["forbid"]), "require": list(given["require"])}, "options")
    if beam_trace:
        from dragoman.files import check_writable

        check_writable(beam_trace)
    predictor, decoding = asked_how(run, device, how, beam, engine, precision)
    as_utf8()
    if not as_json:
        predictor.temperature = None  # plain output has no room for confidences: do not work them out
        predictor.tells_scores = False
    objects = file is not None and file.lower().removesuffix(".gz").removesuffix(".zst").endswith(".jsonl")
    texts = (
        asked_from_json(line, f"{file}:{number}", control) if objects and line.strip() else Asked(line, control)
        for number, line in enumerate(with_progress(lines, "lines"), 1)
    )
    conversation = typed and sys.stdin.isatty()  # a person waits for an answer to every line
    with contextlib.ExitStack() as stack:
        traced = stack.enter_context(Path(beam_trace).open("w", encoding="utf-8")) if beam_trace else None

        def tell_nodes(text: str, nodes: list[dict[str, Any]]) -> None:
            print(json.dumps({"source": text, "nodes": nodes}, ensure_ascii=False), file=traced)

        for prediction in predictor.stream(
            texts,
            tag=tag,
            beam=beam,
            length_penalty=length_penalty,
            batch_size=batch_size,
            most=n_best,
            window=1 if conversation else WINDOW,
            search=search_settings(given),
            terminology=terminology,
            placeholders=placeholders,
            tell=None if traced is None else tell_nodes,
            **decoding,
        ):
            if as_json:
                text = prediction.as_json(probability=how["exhaustive"] is not None)
            else:  # a sub-word model can spell any byte; a line must stay a line
                text = prediction.text.replace("\n", " ").replace("\r", " ")
            sys.stdout.write(text + "\n")
            if conversation:
                sys.stdout.flush()
        sys.stdout.flush()
    tell_saved(decoding)


def tell_saved(decoding: dict[str, Any]) -> None:
    """Say what a draft was good for."""
    saved = getattr(decoding["method"], "saved", None)
    if saved is not None:
        click.echo(f"draft: {saved}", err=True)


def as_utf8() -> None:
    """Write UTF-8 with bare line feeds whatever the locale: the output is data, not a message."""
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]


def with_progress(items: Iterator[str], unit: str) -> Iterator[str]:
    """Count items on standard error, when a person reads there and the output goes elsewhere."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield from items
        return
    for count, item in enumerate(items, 1):
        if count % 1000 == 0:
            print(f"\r{count:,} {unit} read", end="", file=sys.stderr, flush=True)
        yield item
    print(file=sys.stderr)


@cli.command()
@click.argument("run")
@click.argument("file", required=False)
@click.option("--source", help="Source lines of a pair of parallel files.")
@click.option("--target", help="Reference lines, one for each source line.")
@click.option("--beam", type=click.IntRange(1), help="Hypotheses kept side by side; 1 is greedy. [default: the run's]")
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, help="Inputs at a time.")
@length_penalty
@options(SEARCH_OPTIONS)
@tag_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--output", help="Also write the outputs to this file, one a line.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@engine_options
@decoding_options
def evaluate(
    run: str,
    file: str | None,
    source: str | None,
    target: str | None,
    beam: int | None,
    batch_size: int,
    length_penalty: float | None,
    tag: str | None,
    as_json: bool,
    output: str | None,
    device: str,
    engine: str,
    precision: str,
    how: dict[str, Any],
    **given: Any,
) -> None:
    """Score a run on pairs: BLEU, chrF, WER, CER, exact match, loss and perplexity.

    FILE has a source and one or more references a line, tab-separated (or .jsonl, .parquet). wer, cer and exact_match
    are fractions. Where the target is phonemes (data.units), per is the error rate over phonemes and wer the share of
    inputs that match no reference.
    """
    from dragoman.companions import asked_how
    from dragoman.data.corpus import fault_message, read_all
    from dragoman.data.readers import Example, Fault, Pairs
    from dragoman.files import check_writable, written_whole

    if (file is None) == (source is None) or (source is None) != (target is None):
        raise DataError("name either FILE or both --source and --target")
    files = Pairs(source, target) if source is not None and target is not None else file
    assert files is not None
    if output:
        check_writable(output)
    predictor, decoding = asked_how(run, device, how, beam, engine, precision)
    examples: list[Example] = []
    faults: list[Fault] = []
    for item in read_all(predictor.config.data, files, several_references=True):
        if isinstance(item, Fault):
            faults.append(item)
        else:
            examples.append(item)
    if faults:
        # Scores of a part would be compared with scores of the whole: never leave out a line silently.
        raise DataError(fault_message(faults[:3], len(faults)).partition(" Mend")[0])
    predictor.temperature = None  # scores ask for no confidences
    predictor.tells_scores = False
    scores, predictions = predictor.evaluate(
        examples,
        tag=tag,
        beam=beam,
        length_penalty=length_penalty,
        batch_size=batch_size,
        search=search_settings(given),
        **decoding,
    )
    tell_saved(decoding)
    if output:
        with written_whole(output) as beside:
            texts = (prediction.text.replace("\n", " ").replace("\r", " ") for prediction in predictions)
            beside.write_bytes("".join(f"{text}\n" for text in texts).encode("utf-8", "replace"))
    print_scores(scores, as_json)


NAMES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "chrf++": "chrF++",
    "ter": "TER",
    "meteor": "METEOR",
    "rouge-1": "ROUGE-1",
    "rouge-2": "ROUGE-2",
    "rouge-l": "ROUGE-L",
    "wer": "WER",
    "cer": "CER",
    "per": "PER",
    "exact_match": "exact match",
    "loss": "loss",
    "perplexity": "perplexity",
    "token_accuracy": "token accuracy",
}
FRACTIONS = {"meteor", "rouge-1", "rouge-2", "rouge-l", "wer", "cer", "per", "exact_match", "token_accuracy"}


def print_scores(scores: dict[str, Any], as_json: bool) -> None:
    """Scores for a person, or as one JSON object."""
    if as_json:
        click.echo(json.dumps(scores))
        return
    signatures = scores["signatures"]
    for key, name in NAMES.items():
        if key in scores:
            value = scores[key]
            shown = f"{100 * value:.2f} %" if key in FRACTIONS else f"{value:.3f}" if key == "loss" else f"{value:.2f}"
            if key in scores.get("intervals", {}):
                low, high = ((100 if key in FRACTIONS else 1) * bound for bound in scores["intervals"][key])
                shown = f"{shown:>10}  {low:>6.2f} to {high:>6.2f}"
            click.echo(f"{name:<15}{shown:>10}   {signatures.get(key, '')}".rstrip())
    click.echo(f"{'segments':<15}{scores['segments']:>10,}")


metric_option = click.option(
    "--metric", "metrics", multiple=True, metavar="NAME",
    help="bleu, chrf, chrf++, ter, meteor (English), rouge-1, rouge-2, rouge-l (summaries), wer, cer, per (phonemes), "
    "exact_match or all; may be given several times. [default: all but meteor, rouge and per]",
)  # fmt: skip
units_option = click.option(
    "--units", type=click.Choice(["words", "phonemes"]), default="words", show_default=True,
    help="What the space-separated symbols are; phonemes print PER, and WER by whole lines.",
)  # fmt: skip
draws_option = click.option(
    "--draws", type=click.IntRange(10), default=1000, show_default=True, help="Draws of intervals and p-values."
)
seed_option = click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the draws.")


@cli.command()
@click.argument("hypotheses")
@click.argument("references", nargs=-1, required=True)
@metric_option
@units_option
@click.option("--intervals", is_flag=True, help="Add 95 % confidence intervals, by bootstrap over segments.")
@click.option("--source", help="Source lines, for the cuts below.")
@click.option("--by-length", is_flag=True, help="Also by words of the source, or of the reference without --source.")
@click.option("--by-frequency", metavar="FILE", help="Also by how often the rarest source word is in this text.")
@click.option("--by-tag", metavar="FILE", help="Also by the label on each line of FILE; of '<2de> text' it is de.")
@click.option("--alignment", is_flag=True, help="Show every line aligned with its reference, S, I and D counted.")
@click.option("--characters", is_flag=True, help="Align characters instead of words.")
@click.option("--table", is_flag=True, help="With --alignment, also print the table of edit costs.")
@click.option("--substitution", type=click.IntRange(0), default=1, show_default=True, help="Cost of a replacement.")
@click.option("--plot", metavar="FILE", help="Draw the cut by the first metric, or the edit table of the first line.")
@draws_option
@seed_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def score(hypotheses: str, references: tuple[str, ...], **options: Any) -> None:
    """Score text without a model: HYPOTHESES and one or more REFERENCES files, line by line.

    A reference line may hold several references, tab-separated.

    \b
    dragoman score out.txt ref.txt --intervals
    dragoman score out.txt ref.txt --source src.txt --by-length --metric bleu --plot lengths.png
    dragoman score out.txt ref.txt --alignment --characters --substitution 2
    """
    from dragoman.reports.scoring import ScoreRequest, score_report

    request = ScoreRequest(hypotheses, references, **options)
    scores, lines = score_report(request)
    as_utf8()
    if not request.as_json:
        for line in lines:
            click.echo(line)
    print_scores(scores, request.as_json)


@cli.command()
@click.argument("references")
@click.argument("systems", nargs=-1, required=True, metavar="BASELINE SYSTEM...")
@metric_option
@units_option
@click.option("--plot", metavar="FILE", help="Also draw scores and intervals to this .png, .svg or .pdf file.")
@draws_option
@seed_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(
    references: str,
    systems: tuple[str, ...],
    metrics: tuple[str, ...],
    units: Any,
    plot: str | None,
    draws: int,
    seed: int,
    as_json: bool,
) -> None:
    """Say whether systems differ: each SYSTEM's outputs against those of the BASELINE, on the same REFERENCES.

    Every score has a 95 % interval; every difference has p-values by paired bootstrap and by approximate
    randomisation. A line of REFERENCES may hold several references, tab-separated.
    """
    from dragoman.reports.lines import comparison_lines
    from dragoman.reports.scoring import compare_files

    table, standings = compare_files(references, systems, metrics, units, draws, seed, plot)
    as_utf8()
    if as_json:
        click.echo(json.dumps([standing.as_dict() for standing in standings], ensure_ascii=False))
    else:
        for line in comparison_lines(standings, table):
            click.echo(line)


@cli.command()
@click.argument("run")
@click.argument("file", required=False)
@click.option("--source", help="Source lines of a pair of parallel files.")
@click.option("--target", help="Target lines, one for each source line.")
@click.option(
    "--predict", "predicting", is_flag=True,
    help="FILE or standard input has sources alone: print what the run writes, a tab and its links.",
)  # fmt: skip
@click.option(
    "--layer", help="Whose attention is read: a name, or a number from 1. [default: the last, of three or more the "
    "last but one; with --reverse the two that agree best]",
)  # fmt: skip
@click.option("--head", type=click.IntRange(1), help="One head alone. [default: the mean of all]")
@click.option("--shift", is_flag=True, help="Look at the step that reads a token, not at the one that writes it.")
@click.option(
    "--threshold", type=click.FloatRange(0.0, 1.0, min_open=True),
    help="Link all words with at least this weight. [default: each target word with the one it looks at most]",
)  # fmt: skip
@click.option("--reverse", help="A run that learned target to source: join the links of both directions.")
@click.option(
    "--combine", type=click.Choice(["intersection", "union", "grow-diag", "grow-diag-final-and"]),
    default="grow-diag", show_default=True, help="How two directions are joined.",
)  # fmt: skip
@click.option("--gold", help="Hand-made links of these pairs: read the layer with the lowest error rate, and name it.")
@click.option("--gold-from", type=click.Choice(["0", "1"]), help="The number of the first word in the --gold file.")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Pairs at a time.")
@tag_option
@click.option("--json", "as_json", is_flag=True, help="One object a line: source, target, links, weights.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
def align(
    run: str,
    file: str | None,
    source: str | None,
    target: str | None,
    predicting: bool,
    layer: str | None,
    head: int | None,
    shift: bool,
    threshold: float | None,
    reverse: str | None,
    combine: str,
    gold: str | None,
    gold_from: str | None,
    batch_size: int,
    tag: str | None,
    as_json: bool,
    device: str,
) -> None:
    """Align words by attention: a line of links a pair, "0-0 1-2", source before target, counted from 0.

    FILE has a source and a target a line, tab-separated (or .jsonl, .parquet). Words are what whitespace parts,
    whatever units the run works on; the run must attend to its source. dragoman score-alignment compares the links
    with hand-made ones.
    """
    from dragoman.data.readers import Pairs, read_lines
    from dragoman.inspection.aligning import Aligner, as_line, chosen, predicted, read_aligned
    from dragoman.predictor import load
    from dragoman.scoring.alignment import read_alignments

    if predicting and (source is not None or target is not None):
        raise DataError("--predict reads sources alone, from FILE or standard input: leave out --source and --target")
    if not predicting and ((file is None) == (source is None) or (source is None) != (target is None)):
        raise DataError("name either FILE or both --source and --target, or add --predict to align what the run writes")
    truth = None if gold is None else read_alignments(read_lines(gold), gold, None if not gold_from else int(gold_from))
    predictor = load(run, device)
    backward = None if reverse is None else load(reverse, device)
    if predicting:
        pairs = predicted(predictor, file, tag)
    else:
        files = Pairs(source, target) if source is not None and target is not None else str(file)
        pairs = read_aligned(predictor, files)
    aligner = Aligner(
        predictor, backward, threshold=threshold, combination=combine, tag=tag, batch_size=batch_size
    )  # fmt: skip
    aligner = chosen(
        aligner, pairs, layer=layer, head=head, shifted=shift, gold=truth, say=lambda text: click.echo(text, err=True)
    )
    as_utf8()
    for pair, found in zip(pairs, aligner(pairs), strict=True):
        sys.stdout.write((as_line(found) if as_json else f"{pair[1]}\t{found}" if predicting else str(found)) + "\n")
    sys.stdout.flush()


@cli.command("score-alignment")
@click.argument("gold")
@click.argument("found")
@click.option(
    "--gold-from", type=click.Choice(["0", "1"]), help="The number of the first word in GOLD. [default: 0, or 1 where "
    "every line is one link]",
)  # fmt: skip
@click.option("--found-from", type=click.Choice(["0", "1"]), help="The same for FOUND.")
@click.option("--swap", is_flag=True, help="FOUND was made from the target to the source: turn its links round.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def score_alignment(
    gold: str, found: str, gold_from: str | None, found_from: str | None, swap: bool, as_json: bool
) -> None:
    """Score word alignments against hand-made ones: alignment error rate, precision, recall.

    Both files have one line a pair such as "0-0 1-2", where GOLD may mark possible links as 1p2; or one line a link,
    "PAIR SOURCE TARGET S|P" (also .gz and .zst). A possible link costs nothing, found or not (Och and Ney 2003).
    """
    from dragoman.data.readers import read_lines
    from dragoman.scoring.alignment import alignment_score, read_alignments, swapped

    truth, other = (
        read_alignments(read_lines(path), path, None if first is None else int(first))
        for path, first in ((gold, gold_from), (found, found_from))
    )
    links = [swapped(one.possible) if swap else one.possible for one in other]
    numbers = {number for one in truth for link in one.possible for number in link}
    if gold_from is None and numbers and 0 not in numbers:
        click.echo(f"{gold}: found no word 0; if its words count from 1, add --gold-from 1", err=True)
    scores = alignment_score(links, truth).as_dict()
    if as_json:
        click.echo(json.dumps(scores))
        return
    for name, key in (("AER", "aer"), ("precision", "precision"), ("recall", "recall")):
        click.echo(f"{name:<15}{100 * scores[key]:>10.2f} %")
    for key in ("links", "sure", "segments"):
        click.echo(f"{key:<15}{scores[key]:>10,}")


@cli.command()
@click.argument("run")
@click.option("--depth", type=click.IntRange(1), default=3, show_default=True, help="How deep to list layers.")
@click.option("--plot", help="Also draw the training curve to this .png, .svg or .pdf file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(run: str, depth: int, plot: str | None, as_json: bool) -> None:
    """Show a run: model summary, data, training curve."""
    from dragoman.information import information, show

    if plot:
        from dragoman.reports.drawing import check_picture

        check_picture(plot)
    found = information(run, depth)
    if as_json:
        click.echo(json.dumps(found))
    else:
        show(found)
    if plot:
        from dragoman.reports.drawing import draw_curves
        from dragoman.runs import Run

        click.echo(f"curve: {draw_curves(Run(run).metrics(), plot, title=run)}", err=True)


@cli.command()
@click.argument("run")
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@click.option("--out", default="attention.png", show_default=True, help="Picture to write: .png, .svg or .pdf.")
@tag_option
def attention(run: str, texts: tuple[str, ...], out: str, tag: str | None) -> None:
    """Draw what each output token of a TEXT looked at."""
    from dragoman.inspection.watch import cross_attention
    from dragoman.predictor import load
    from dragoman.reports.drawing import check_picture, draw_attention

    check_picture(out)
    predictor = load(run)
    usable = [text for text in texts if text.strip()]
    if not usable:
        raise DataError("found only empty text, expected something to look at")
    click.echo(draw_attention([cross_attention(predictor, text) for text in predictor.read_as(usable, tag)], out))


@cli.command()
@click.argument("run")
@click.option(
    "--probe", "names", multiple=True, metavar="NAME",
    help="repetition, copying, length or gender; may be given several times. [default: all]",
)  # fmt: skip
@click.option("--sentences", metavar="FILE", help="Source sentences for the probe of length, instead of English ones.")
@click.option("--examples", type=click.IntRange(0), default=2, show_default=True, help="Examples shown of each kind.")
@click.option("--beam", type=click.IntRange(1), help="Hypotheses kept side by side; 1 is greedy. [default: the run's]")
@tag_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
def probe(
    run: str,
    names: tuple[str, ...],
    sentences: str | None,
    examples: int,
    beam: int | None,
    tag: str | None,
    as_json: bool,
    device: str,
) -> None:
    """Ask a run what no test set asks, and count what it does.

    \b
    repetition   one word over and over: does the output repeat, or say things nobody wrote?
    copying      names and numbers: do they come through?
    length       one word, one sentence, many: is the output in proportion?
    gender       he and she with the same occupation: what else changes?

    The texts are English, so they suit runs with an English source.
    """
    from dragoman.data.readers import read_lines
    from dragoman.inspection.probes import SENTENCES
    from dragoman.inspection.probes import probe as ask
    from dragoman.predictor import load
    from dragoman.reports.lines import probe_lines

    given = list(read_lines(sentences)) if sentences else SENTENCES
    predictor = load(run, device)
    outcomes = ask(
        lambda texts: [prediction.text for prediction in predictor.predict(texts, tag=tag, beam=beam)],
        names,
        sentences=given,
        examples=examples,
    )
    as_utf8()
    if as_json:
        click.echo(json.dumps([outcome.as_dict() for outcome in outcomes], ensure_ascii=False))
    else:
        for line in probe_lines(outcomes):
            click.echo(line)


@cli.command()
@click.argument("run")
@click.argument("file", required=False)
@click.option("--source", help="Source lines of a pair of parallel files.")
@click.option("--target", help="Target lines, one for each source line.")
@click.option("--plot", help="Also draw how sure against how often right to this .png, .svg or .pdf file.")
@click.option("--bins", type=click.IntRange(1), default=15, show_default=True, help="Groups of like confidence.")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Pairs at a time.")
@tag_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
def calibrate(
    run: str,
    file: str | None,
    source: str | None,
    target: str | None,
    plot: str | None,
    bins: int,
    batch_size: int,
    tag: str | None,
    as_json: bool,
    device: str,
) -> None:
    """Make a run's confidences honest: of the tokens it is 80 % sure of, 80 % should be right.

    Fits one temperature (Guo et al. 2017) on the pairs of FILE, or on those that training set aside, and writes it to
    calibration.json in the run folder. From then on predict --json also gives confidence and token_confidences; the
    outputs stay as they are. Training on changes the weights: calibrate again afterwards.
    """
    from dragoman.data.readers import Pairs
    from dragoman.inspection import confidence
    from dragoman.predictor import load

    if (file is not None and source is not None) or (source is None) != (target is None):
        raise DataError("name FILE, or both --source and --target, or neither for the pairs that training set aside")
    if plot:
        from dragoman.reports.drawing import check_picture

        check_picture(plot)
    predictor = load(run, device)
    files = Pairs(source, target) if source is not None and target is not None else file
    rows = None if files is None else confidence.read_rows(predictor, files, tag)
    found = confidence.calibrate(predictor, rows, bins=bins, batch_size=batch_size)
    path = confidence.save_calibration(predictor, found)
    if as_json:
        click.echo(json.dumps(found.as_dict()))
    else:
        for line in found.lines():
            click.echo(line)
        click.echo(f"written: {path}")
    if plot:
        from dragoman.reports.drawing import draw_reliability

        panels = {"as trained": found.before.reliability, "calibrated": found.after.reliability}
        click.echo(f"picture: {draw_reliability(panels, plot, title=Path(run).name)}", err=True)


@cli.command()
@click.argument("task", required=False)
def new(task: str | None) -> None:
    """Print a commented starter configuration for a TASK (translate).

    \b
    dragoman new translate > my.toml
    """
    from dragoman.starter import STARTERS, starter

    if task is None:
        for name, chosen in STARTERS.items():
            click.echo(f"{name:<12}{chosen.about}")
    else:
        as_utf8()
        click.echo(starter(task), nl=False)


@cli.command()
@click.argument("name", required=False)
def presets(name: str | None) -> None:
    """List the presets with their sizes and papers, or print one as TOML.

    Presets named after a paper have its sizes; those that end in -small train on a laptop. The number of parameters
    is that with the vocabulary of the paper, or with 8,000 words.
    """
    from dragoman.config import preset_names, preset_notes, preset_text

    if name is not None:
        head, _, rest = preset_text(name).partition("\n\n")
        as_utf8()
        click.echo("".join(f"# {line}\n" for line in head.splitlines()) + f"\n{rest}", nl=False)
        return
    as_utf8()
    for preset in preset_names():
        notes = preset_notes(preset)
        click.echo(f"{preset:<25}{notes['parameters'] / 1e6:>6.1f} M  {notes['about']} ({notes['authors']})")


@cli.command()
@click.option("--run", "run_folder", default="runs/demo", show_default=True, help="The run folder.")
@click.option("--preset", default="demo-rnn", show_default=True, help="demo-rnn or demo-transformer.")
@click.argument("overrides", nargs=-1, metavar="[PLACE=VALUE]...")
def demo(run_folder: str, preset: str, overrides: tuple[str, ...]) -> None:
    """Learn English pronunciation from the CMU dictionary, in about three minutes on two CPU cores."""
    from dragoman.demo import demo as show_off

    show_off(run_folder, preset, overrides)


# ---------------------------------------------------------------------- errors


def main() -> None:
    """Run the command line; every user mistake is one line and exit code 2."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:  # closed by whoever started us: the next file opened would take its place
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))
        getattr(sys, name).reconfigure(errors="backslashreplace")  # a poor locale must not end a run
    sys.exit(guarded(sys.argv[1:]))


def guarded(arguments: list[str]) -> int:
    """Run a command and turn whatever goes wrong into an exit code and a line; `--trace` adds the traceback."""
    trace = "--trace" in arguments
    try:
        try:
            cli.main([word for word in arguments if word != "--trace"], prog_name="dragoman", standalone_mode=False)
            if sys.stdout is not None:
                sys.stdout.flush()  # a full disk or a reader that left is noticed here, not at exit
        except click.exceptions.Exit as leave:
            return leave.exit_code
        except SystemExit:  # rich's answer to a reader that left
            raise ReaderLeft from None
        except BaseException:
            if trace:
                traceback.print_exc()
            raise
    except click.ClickException as mistake:
        where = mistake.ctx.command_path if isinstance(mistake, click.UsageError) and mistake.ctx else "dragoman"
        tell(mistake.format_message(), where)
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except (ReaderLeft, BrokenPipeError):
        silence()  # or Python would complain at exit
        return 141
    except DragomanError as error:
        tell(str(error))
        if error.abrupt:
            sys.stderr.flush()
            os._exit(2)
        return 2
    except OSError as error:
        if error.filename is None:
            silence()  # what could not be written would be tried again at exit
        tell(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error))
        return 2
    except Exception as error:
        from dragoman.training.signals import Stopped

        if isinstance(error, Stopped):
            click.echo(f"stopped and saved at step {error.step}; the same command goes on from there", err=True)
            return error.code
        tell(f"internal error: {type(error).__name__}: {error}. Add --trace to see where, and please report it")
        return 1
    return 0


def tell(message: str, where: str = "dragoman") -> None:
    """Say what is wrong; a message of several lines names several mistakes."""
    for line in message.split("\n"):
        click.echo(f"{where}: {line}", err=True)


def silence() -> None:
    """Let standard output lead nowhere from here on."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
