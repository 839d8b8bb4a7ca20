"""`dragoman predict`: one output line for every input line."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.base import DataError, RunError, atomic_write, is_watched, progress_bar
from dragoman.base.config import setting
from dragoman.commands import inputs
from dragoman.commands.checks import PREDICT_ARGUMENTS, refuse_options
from dragoman.commands.options import device_option
from dragoman.commands.printing import (
    Refused,
    as_utf8,
    print_message,
    print_method_report,
    print_prompt,
    print_unseen,
    print_warning,
)
from dragoman.commands.settings import Schema, Settings, SettingsCommand
from dragoman.commands.shards import predict_shards
from dragoman.data import Fault, ReadingOptions
from dragoman.data.media import is_media
from dragoman.data.readers import count_lines
from dragoman.decoding import DecodingSettings
from dragoman.decoding.constraints import ConstrainedInput
from dragoman.inference import ShardSettings

if TYPE_CHECKING:
    from dragoman.decoding import DecodingOptions, LabelPrediction
    from dragoman.inference import Prediction, StreamOptions
    from dragoman.runs import Run


@dataclass(frozen=True)
class PredictSettings:
    """What `predict` has beside the settings of decoding."""

    data: ReadingOptions = setting(ReadingOptions(), help="how FILE is read; what is not given is as in training")
    shards: ShardSettings = setting(ShardSettings(), help="any amount of text")
    beam_trace: str | None = setting(None, help="a file for all that the search ranked: one JSON object per input")


SCHEMA = Schema(DecodingSettings, PredictSettings)


@click.command(cls=SettingsCommand, schema=SCHEMA)
@click.argument("run")
@click.argument("words", nargs=-1, metavar="[FILE] [PLACE=VALUE]...")
@click.option(
    "--json", "as_json", is_flag=True,
    help="One object per line: text, score, tokens, token_scores; also source where it is a file.",
)  # fmt: skip
@device_option
def predict(run: str, file: str | None, settings: Settings, as_json: bool, device: str) -> None:
    """Predict one output line for every input line.

    \b
    dragoman predict runs/my input.txt > output.txt
    echo "a line" | dragoman predict runs/my --beam 1                greedy search: the fastest way
    dragoman predict runs/my input.txt --json --n-best 3             with scores and alternatives
    dragoman predict runs/my input.txt search.length_penalty=0.6     any setting, as train takes them
    dragoman predict runs/my input.txt constraints.require=ship constraints.forbid=boat
    dragoman predict runs/my input.txt --sample method.temperature=0.7 --seed 2
    dragoman predict runs/my input.txt ensemble.runs=runs/other
    dragoman predict runs/my big.parquet --shards out/ shards.processes=4      any amount of text

    FILE may be .gz or .zst; without FILE, predict reads standard input. Each line is a source. Empty lines stay empty.
    The output does not depend on the batch size or on the order of the lines.

    Of a .tsv, .csv, .jsonl, .parquet or .tmx FILE, predict reads the source as evaluate does, and ignores references.
    An object in FILE.jsonl may have, for this line alone, "prefix", "forbid", "require", "allow", "pattern" or
    "constrain" (an object of names and texts), which replace the constraints of these names.

    With --shards each part of FILE becomes a file in the folder; the same command resumes after any interruption, and
    several may work on one folder at once. See 'shards' in the documentation.

    A run that classifies, regresses or tags needs no search: options of the search are errors, and --json adds
    probabilities. Separate two texts by a tab, and words or the numbers of a series by spaces.

    A run that transcribes or captions reads files: FILE is a recording or picture, a folder or archive of them (sorted
    by name), a manifest as for training, or a list of paths, one per line. The output has one line per file; --json
    names the file as "source".
    """
    from dragoman.inference import check_reading
    from dragoman.runs import Run

    if file in (None, "-") and sys.stdin is None:
        raise DataError("standard input is closed: name a FILE, or send lines")
    opened, reading, shards = Run(run), settings.data, settings.shards
    if opened.task.is_language_model:
        raise RunError(f"{run}: this run is a language model; use `dragoman complete`")
    check_reading(opened, reading)
    if opened.task.head_decoder is not None:
        shard_places = {place for place in settings.spelled if place.startswith("shards.")}
        refuse_options(opened, {*PREDICT_ARGUMENTS, *shard_places})
    if settings.n_best > 1 and not as_json:
        raise DataError(f"--n-best {settings.n_best} needs --json: plain output has one line for every input line")
    options = settings.decoding(scores=as_json)
    if shards.folder is None:
        write_predictions(InputLines(opened, file, reading, as_json), options, settings.beam_trace, device)
    elif settings.beam_trace is not None:
        raise DataError("found --shards and beam_trace, expected one of them")
    else:
        predict_shards(opened, settings, file, as_json, options, device)


@dataclass
class InputLines:
    """The inputs of a command: lines of a file or of standard input, or files that a run reads."""

    run: Run
    file: str | None
    reading: ReadingOptions
    as_json: bool  # one object per output, which names its file
    unreadable: dict[str, Fault] = field(default_factory=dict)  # files left out, by the place of the input
    refused: Refused = field(default_factory=Refused)
    remembered: int = 0  # outputs that the memory has
    uncertain: int = 0  # outputs left out by min_confidence
    read: deque[ConstrainedInput] = field(default_factory=deque)  # files that were read and have no output yet

    def __post_init__(self) -> None:
        from dragoman.inference import UnseenInputs, reads_files

        self.unseen = UnseenInputs()
        self.shown: dict[str, bool] = {}  # what JSON objects have beside the usual fields
        self.typed = self.file in (None, "-")
        self.interactive = self.typed and sys.stdin.isatty()  # a person waits for the output of every line
        self.files = reads_files(self.run)

    def texts(self, options: DecodingOptions) -> Iterator[ConstrainedInput]:
        """The inputs with their constraints; files are remembered until their output is written."""
        from dragoman.inference import common_constraints, open_inputs

        constraints = common_constraints(options)
        inputs = open_inputs(self.run, None if self.typed else Path(str(self.file)), self.reading, print_warning)
        return map(self.remember, (item.with_defaults(constraints) for item in inputs))

    def remember(self, item: ConstrainedInput) -> ConstrainedInput:
        if self.as_json and self.files:
            self.read.append(item)
        return item

    def stream_options(self, stack: ExitStack, beam_trace: str | None) -> StreamOptions:
        """How to read and report; files and the progress bar close with `stack`."""
        from dragoman.inference import WINDOW, StreamOptions

        progress = on_trace = None
        if beam_trace is not None:
            beside = stack.enter_context(atomic_write(beam_trace))
            trace = stack.enter_context(beside.open("w", encoding="utf-8"))

            def on_trace(text: str, nodes: list[dict[str, Any]]) -> None:
                print(json.dumps({"source": text, "nodes": nodes}, ensure_ascii=False), file=trace)

        if is_watched(output=True) and not self.interactive:
            lines = not (self.typed or (self.files and is_media(str(self.file))))
            total = count_lines(self.file) if lines else None
            progress = stack.enter_context(progress_bar("lines", total))
        return StreamOptions(
            window=1 if self.interactive else WINDOW,
            progress=progress,
            on_trace=on_trace,
            on_unreadable=(lambda fault: self.unreadable.update({fault.location: fault}))
            if self.reading.skip_unreadable
            else None,
            on_warning=print_warning,
            on_unknown=self.unseen.add,
            on_refused=self.refused.add,
        )

    def line(self, prediction: Prediction | LabelPrediction, number: int) -> str:
        self.uncertain += bool(getattr(prediction, "refused", ""))
        self.remembered += bool(getattr(prediction, "from_memory", False))
        if not self.as_json:  # a sub-word model can output any byte; a line must stay a line
            return prediction.text.replace("\n", " ").replace("\r", " ")
        item = self.read.popleft() if self.read else None
        table: dict[str, Any] = {} if item is None else {"source": inputs.printable(item.text)}
        table |= prediction.as_table(**self.shown)
        if item is not None and (fault := self.unreadable.get(item.place or f"input {number}")):
            table["unreadable"] = fault.detail  # tells an unreadable file from an empty output
        if number in self.refused.errors:
            table["refused"] = self.refused.errors[number]
        return json.dumps(table, ensure_ascii=False)


def write_predictions(lines: InputLines, options: DecodingOptions, beam_trace: str | None, device: str) -> None:
    from dragoman.inference import Predictor, labeler_of

    texts, run = lines.texts(options), lines.run
    searches = run.task.head_decoder is None
    predictor: Any = Predictor(run, device, options) if searches else labeler_of(run, device)
    arguments = {} if searches else {"batch_size": options.batch_size}
    if options.method is not None and options.method.exact:
        lines.shown["probability"] = True
    as_utf8()
    with ExitStack() as stack:
        stream = lines.stream_options(stack, beam_trace)
        print_prompt(lines.interactive)
        for number, prediction in enumerate(predictor.stream(texts, stream=stream, **arguments), 1):
            sys.stdout.write(lines.line(prediction, number) + "\n")
            if lines.interactive:
                sys.stdout.flush()
                print_unseen(lines.unseen)
        sys.stdout.flush()
    if searches:
        print_method_report(predictor)
    print_unseen(lines.unseen)
    inputs.print_unreadable([*lines.unreadable.values()], "each has an empty line")
    if options.memory is not None:
        print_message(f"{lines.remembered:,} outputs are those of the memory")
    if lines.uncertain:
        print_message(f"{lines.uncertain:,} outputs were below min_confidence = {options.min_confidence} and are empty")
    lines.refused.exit()
