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


def run_name(path: str) -> str:
    """A folder name for a data or configuration file: its name without endings."""
    name = Path(path).name
    for suffix in (".gz", ".zst", ".toml", ".tsv", ".txt", ".jsonl", ".ndjson", ".parquet"):
        if name.lower().endswith(suffix):
            name = name[: -len(suffix)]
    return name or "run"


def resolve(
    what: str | None, source: str | None, target: str | None, overrides: tuple[str, ...], say: Any
) -> tuple[Config, str]:
    """The configuration meant by a config file, a data file, a run folder or two parallel files, and a run folder."""
    from dragoman import config as configuration
    from dragoman.settings import override

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
    preset = override({}, overrides).get("preset")  # a slip of the pen is told before a long file is read
    if preset is not None:
        configuration.preset_text(str(preset))
    table, reasons = automatic.choose(files, automatic.look(files), None if preset is None else str(preset))
    table["data"]["train"] = {"source": source, "target": target} if what is None else what
    config = configuration.build(override(table, overrides))
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
    beam_trace: str | None,
    allow: str | None,
    terminology: str | None,
    placeholders: bool,
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
    from dragoman.data.readers import read_lines
    from dragoman.predictor import WINDOW, load
    from dragoman.search.control import Asked, asked_from_json, control_of

    lines = read_lines(file)
    given["allow"] = list(read_lines(allow)) if allow else None
    control = control_of({**given, "forbid": list(given["forbid"]), "require": list(given["require"])}, "options")
    if beam_trace:
        from dragoman.files import check_writable

        check_writable(beam_trace)
    predictor = load(run, device)
    as_utf8()
    objects = file is not None and file.lower().removesuffix(".gz").removesuffix(".zst").endswith(".jsonl")
    texts = (
        asked_from_json(line, f"{file}:{number}", control) if objects and line.strip() else Asked(line, control)
        for number, line in enumerate(with_progress(lines, "lines"), 1)
    )
    conversation = typed and sys.stdin.isatty()  # a person waits for an answer to every line
    with contextlib.ExitStack() as stack:
        traced = stack.enter_context(Path(beam_trace).open("w", encoding="utf-8")) if beam_trace else None
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
            tell=None
            if traced is None
            else lambda text, nodes: print(
                json.dumps({"source": text, "nodes": nodes}, ensure_ascii=False), file=traced
            ),
        ):
            # A sub-word model can spell any byte; a line must stay a line.
            text = prediction.as_json() if as_json else prediction.text.replace("\n", " ").replace("\r", " ")
            sys.stdout.write(text + "\n")
            if conversation:
                sys.stdout.flush()
        sys.stdout.flush()


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
    **given: Any,
) -> None:
    """Score a run on pairs: BLEU, chrF, WER, CER, exact match, loss and perplexity.

    FILE has a source and one or more references a line, tab-separated (or .jsonl, .parquet). wer, cer and exact_match
    are fractions. Where the target is phonemes (data.units), per is the error rate over phonemes and wer the share of
    inputs that match no reference.
    """
    from dragoman.data.corpus import fault_message, read_all
    from dragoman.data.readers import Example, Fault, Pairs
    from dragoman.files import check_writable, written_whole
    from dragoman.predictor import load

    if (file is None) == (source is None) or (source is None) != (target is None):
        raise DataError("name either FILE or both --source and --target")
    files = Pairs(source, target) if source is not None and target is not None else file
    assert files is not None
    if output:
        check_writable(output)
    predictor = load(run, device)
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
    scores, predictions = predictor.evaluate(
        examples,
        tag=tag,
        beam=beam,
        length_penalty=length_penalty,
        batch_size=batch_size,
        search=search_settings(given),
    )
    if output:
        with written_whole(output) as beside:
            texts = (prediction.text.replace("\n", " ").replace("\r", " ") for prediction in predictions)
            beside.write_bytes("".join(f"{text}\n" for text in texts).encode("utf-8", "replace"))
    print_scores(scores, as_json)


NAMES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "wer": "WER",
    "cer": "CER",
    "per": "PER",
    "exact_match": "exact match",
    "loss": "loss",
    "perplexity": "perplexity",
    "token_accuracy": "token accuracy",
}
FRACTIONS = {"wer", "cer", "per", "exact_match", "token_accuracy"}


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
            click.echo(f"{name:<15}{shown:>10}   {signatures.get(key, '')}".rstrip())
    click.echo(f"{'segments':<15}{scores['segments']:>10,}")


@cli.command()
@click.argument("hypotheses")
@click.argument("references", nargs=-1, required=True)
@click.option(
    "--units", type=click.Choice(["words", "phonemes"]), default="words", show_default=True,
    help="What the space-separated symbols are; phonemes print PER, and WER by whole lines.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def score(hypotheses: str, references: tuple[str, ...], units: Any, as_json: bool) -> None:
    """Score text without a model: HYPOTHESES and one or more REFERENCES files, line by line.

    A reference line may hold several references, tab-separated.
    """
    from dragoman.data.readers import read_lines
    from dragoman.scoring import score_text

    written = list(read_lines(hypotheses))
    columns: list[list[str]] = []
    for path in references:
        lines = list(read_lines(path))
        if len(lines) != len(written):
            raise DataError(f"{path}: found {len(lines):,} lines, expected {len(written):,} as in {hypotheses}")
        columns.append(lines)
    together = [
        [text for line in row for text in line.split("\t") if text.strip()] or [""]
        for row in zip(*columns, strict=True)
    ]
    print_scores(score_text(written, together, units=units).as_dict(), as_json)


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
