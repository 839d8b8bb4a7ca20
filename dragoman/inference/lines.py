"""Lines in, lines out: the inputs of a file or of standard input through a run, one line of output for each."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.base import DataError, atomic_write, is_watched, progress_bar
from dragoman.data import Fault, ReadingOptions
from dragoman.data.media import is_media
from dragoman.data.readers import count_lines
from dragoman.decoding import DecodingOptions, LabelPrediction
from dragoman.decoding.constraints import ConstrainedInput
from dragoman.inference.inputs import WINDOW, Nodes, StreamOptions, Warn, common_constraints
from dragoman.inference.labeler import labeler_of
from dragoman.inference.load import load_completer
from dragoman.inference.long_inputs import InputTooLongError
from dragoman.inference.opened_inputs import open_inputs, reads_files
from dragoman.inference.prediction import Prediction
from dragoman.inference.predictor import Predictor
from dragoman.inference.unseen import UnseenInputs
from dragoman.runs import Run

if TYPE_CHECKING:
    from dragoman.inference.completion import CompletionOptions

PROMPT_WINDOW = 1024  # prompts read ahead


class PredictedLines:
    """The outputs of a run for the lines of a file or of standard input, or for the files that it reads."""

    def __init__(
        self,
        run: Run,
        file: str | None,
        options: DecodingOptions,
        reading: ReadingOptions,
        *,
        as_json: bool = False,
        device: str = "auto",
        warn: Warn = lambda line: None,
    ) -> None:
        """With `as_json` each line is an object, which names its file; `warn` gets a line about some inputs."""
        self.run, self.options, self.reading, self.as_json, self.warn = run, options, reading, as_json, warn
        self.path = None if file in (None, "-") else Path(str(file))
        if self.path is None and sys.stdin is None:
            raise DataError("standard input is closed: name a FILE, or send lines")
        self.files = reads_files(run)
        self.interactive = self.path is None and sys.stdin.isatty()  # a person waits for the output of every line
        self.unseen = UnseenInputs()
        self.refused: dict[int, str] = {}  # why inputs are too long to read, by their number
        self.unreadable: dict[str, Fault] = {}  # files left out, by the place of the input
        self.remembered = 0  # outputs that the memory has
        self.uncertain = 0  # outputs left out by min_confidence
        self._read: deque[ConstrainedInput] = deque()  # files that were read and have no output yet
        constraints = common_constraints(options)
        inputs = open_inputs(run, self.path, reading, warn)
        self._inputs = map(self._remember, (item.with_defaults(constraints) for item in inputs))
        self._searches = run.task.head_decoder is None
        self._loaded: Any = Predictor(run, device, options) if self._searches else labeler_of(run, device)

    def _remember(self, item: ConstrainedInput) -> ConstrainedInput:
        if self.as_json and self.files:
            self._read.append(item)
        return item

    def lines(self, beam_trace: str | None = None) -> Iterator[str]:
        """One line for each input; `beam_trace` names a file for all that the search ranked."""
        arguments = {} if self._searches else {"batch_size": self.options.batch_size}
        with ExitStack() as stack:
            stream = self._stream_options(stack, beam_trace)
            for number, prediction in enumerate(self._loaded.stream(self._inputs, stream=stream, **arguments), 1):
                yield self._line(prediction, number) + "\n"

    def _stream_options(self, stack: ExitStack, beam_trace: str | None) -> StreamOptions:
        """How to read and report; files and the progress bar close with `stack`."""
        progress = on_trace = None
        if beam_trace is not None:
            beside = stack.enter_context(atomic_write(beam_trace))
            trace = stack.enter_context(beside.open("w", encoding="utf-8"))

            def on_trace(text: str, nodes: Nodes) -> None:
                print(json.dumps({"source": text, "nodes": nodes}, ensure_ascii=False), file=trace)

        if is_watched(output=True) and not self.interactive:
            countable = self.path is not None and not (self.files and is_media(str(self.path)))
            progress = stack.enter_context(progress_bar("lines", count_lines(self.path) if countable else None))
        return StreamOptions(
            window=1 if self.interactive else WINDOW,
            progress=progress,
            on_trace=on_trace,
            on_unreadable=(lambda fault: self.unreadable.update({fault.location: fault}))
            if self.reading.skip_unreadable
            else None,
            on_warning=self.warn,
            on_unknown=self.unseen.add,
            on_refused=self._refuse,
        )

    def _refuse(self, number: int, error: InputTooLongError) -> None:
        """Say at once which input was refused, and why."""
        self.refused[number] = error.reason
        self.warn(f"{error}; its output is empty")

    def _line(self, prediction: Prediction | LabelPrediction, number: int) -> str:
        self.uncertain += bool(getattr(prediction, "refused", ""))
        self.remembered += bool(getattr(prediction, "from_memory", False))
        if not self.as_json:  # a sub-word model can output any byte; a line must stay a line
            return prediction.text.replace("\n", " ").replace("\r", " ")
        item = self._read.popleft() if self._read else None
        # A file name may have bytes that are not UTF-8.
        table: dict[str, Any] = {} if item is None else {"source": item.text.encode("utf-8", "replace").decode()}
        exact = self.options.method is not None and self.options.method.exact
        table |= prediction.as_table(**({"probability": True} if exact else {}))
        if item is not None and (fault := self.unreadable.get(item.place or f"input {number}")):
            table["unreadable"] = fault.detail  # tells an unreadable file from an empty output
        if number in self.refused:
            table["refused"] = self.refused[number]
        return json.dumps(table, ensure_ascii=False)

    def messages(self) -> Iterator[str]:
        """What there is to say after the last line."""
        if self._searches and (report := method_report(self._loaded)):
            yield report
        if message := self.unseen.message():
            yield f"warning: {message}"
        yield from unreadable_lines([*self.unreadable.values()], "each has an empty line")
        if self.options.memory is not None:
            yield f"{self.remembered:,} outputs are those of the memory"
        if self.uncertain:
            yield f"{self.uncertain:,} outputs were below min_confidence = {self.options.min_confidence} and are empty"
        if count := len(self.refused):
            several = count > 1
            yield (
                f"{count:,} input{'s were' if several else ' was'} too long and ha{'ve' if several else 's'} no output"
            )


def method_report(predictor: Predictor) -> str:
    """What the decoding method has to say after all inputs, such as the calls that a draft saved."""
    method = predictor.method(predictor.defaults)
    return "" if method is None else method.report()


def unreadable_lines(faults: Sequence[Fault], consequence: str) -> Iterator[str]:
    """Which inputs could not be read, and the consequence for the output."""
    yield from (f"left out: {fault}" for fault in faults[:3])
    if len(faults) > 3:
        yield f"left out: (and {len(faults) - 3:,} more)"
    if faults:
        yield f"{len(faults):,} input{'s' * (len(faults) > 1)} could not be read; {consequence}"


class CompletedLines:
    """The texts of a language model for prompts: given ones, or those of a file or of standard input."""

    def __init__(
        self,
        run: str,
        prompts: Sequence[str],
        file: str | None,
        options: CompletionOptions,
        *,
        as_json: bool = False,
        device: str = "auto",
        warn: Warn = lambda line: None,
    ) -> None:
        if prompts and file is not None:
            raise DataError(f"found {len(prompts)} PROMPT and --file {file}, expected one of them")
        typed = not prompts and file in (None, "-")
        if typed and sys.stdin is None:
            raise DataError("standard input is closed: give a PROMPT, or name a --file")
        self.options, self.as_json, self.warn, self.name = options, as_json, warn, file or "standard input"
        self.completer = load_completer(run, device)
        named = None if typed else Path(str(file))
        self._inputs = open_inputs(self.completer.run, list(prompts) if prompts else named, warn=warn)
        self.interactive = typed and sys.stdin.isatty()
        self.unseen = UnseenInputs("prompt")

    def lines(self) -> Iterator[str]:
        """The texts of each prompt, as they are to be written, all texts of a prompt at once."""
        stream = StreamOptions(
            window=1 if self.interactive else PROMPT_WINDOW,
            on_warning=self.warn,
            on_unknown=self.unseen.add,
            input_name="prompt {}".format,
        )
        # An empty line stands between texts of several lines.
        between = "" if self.options.one_line or self.as_json else "\n"
        number = 0
        for number, completions in enumerate(self.completer.stream(self._inputs, self.options, stream), 1):
            texts = (completion.as_json() if self.as_json else completion.text for completion in completions)
            yield (between if number > 1 else "") + between.join(f"{text}\n" for text in texts)
        if not number:
            raise DataError(f"{self.name}: found no line, expected prompts, one per line")
