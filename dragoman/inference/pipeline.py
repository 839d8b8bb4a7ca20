"""One pipeline from inputs to outputs: read → check → encode → batch → work on a batch → decode → restore order.

The command line, the server, shards and documents all predict through `stream_outputs`, so a check that stands here
cannot be forgotten by any of them. A `Predictor`, `Labeler` or `Completer` gives a `Work`: what it alone does to input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Generic, TypeVar

from dragoman.base import DataError, DragomanError
from dragoman.data import Fault, normalise
from dragoman.data.tokenizers import Context, add_tag, join_context, split_context, split_tag
from dragoman.decoding import Node
from dragoman.decoding.constraints import ConstrainedInput
from dragoman.inference.inputs import MEDIA_WINDOW, Nodes, StreamOptions, Warn
from dragoman.inference.loaded import LoadedRun
from dragoman.inference.long_inputs import InputTooLongError
from dragoman.inference.segments import Part, Segment
from dragoman.inference.unseen import UnseenInputs
from dragoman.runs.tasks import encoder_of, length_limit

Output = TypeVar("Output")


@dataclass(eq=False)
class Row:
    """A text that the model reads: an input, or a part of one."""

    index: int  # of its input in the window
    number: int  # of its input in the stream
    name: str  # of its input in messages
    item: ConstrainedInput
    context: tuple[str, ...] = ()  # the sentences before it
    source: Any = None  # token ids or features, once they are encoded
    trace: list[Node] = field(default_factory=list)  # of the search, if the caller wants it
    segment: Segment | None = None  # what its text leaves out of the input, and the output gets again

    @property
    def text(self) -> str:
        return self.item.text


Done = Callable[[Row], None]


class Work(ABC, Generic[Output]):
    """What one call of a run does to inputs; the pipeline does all that runs have in common."""

    run: LoadedRun
    empty: Output  # of an input that is empty, unreadable or refused
    reads_empty = False  # whether an empty text is an input like others

    def prepare(self, item: str | ConstrainedInput, name: str) -> ConstrainedInput:
        """The input as the model reads it, with all constraints on its output."""
        prepared = as_input(item)
        if prepared.constraints:
            task = self.run.run.task.name
            raise DataError(f'{name}: found constraints on the output, which need a search; task = "{task}" has none')
        return prepared

    def uncopied(self, text: str) -> str:
        """A text without what its output copies."""
        return text

    def plan(self, item: ConstrainedInput, name: str, warn: Warn) -> list[Part] | None:
        """The parts that an input is read in; None: it is read as a whole. Raises InputTooLongError."""
        return None

    def part(self, item: ConstrainedInput, part: Part, parts: Sequence[Part]) -> ConstrainedInput:
        """One of the parts of an input as an input of its own."""
        raise NotImplementedError

    def read_files(self, paths: Sequence[str]) -> Sequence[Any]:
        """What the model reads of every file, or its fault."""
        return self.run.extractor.encode_or_fault(paths)

    @abstractmethod
    def encode(self, rows: Sequence[Row]) -> None:
        """Set the sources of rows; those of files are their features already."""

    def check_source(self, row: Row, warn: Warn) -> None:
        """Raise an error for a source that the model cannot read, or cut it and warn."""

    def in_context(self, row: Row) -> str:
        """The text of a row behind its context, as training read it."""
        if not row.context:
            return row.text
        tag, text = split_tag(row.text, self.run.tags)
        text = join_context(row.context, text)
        return add_tag(text, tag) if tag else text

    @abstractmethod
    def outputs(self, rows: Sequence[Row], done: Done) -> list[Output]:
        """The output of every row, computed in batches; `done` gets each row as soon as its result is known."""

    def join(self, parts: Sequence[Part], outputs: Sequence[Output]) -> Output:
        """The outputs of the parts of an input as one."""
        raise NotImplementedError

    def matched(self, text: str) -> tuple[str, ...]:
        """The translation of the segment most like a text, if it is enough alike."""
        return ()

    def known(self, item: ConstrainedInput) -> Output | None:
        """The output of an input that needs no work: a translation memory has it."""
        return None

    def beside(self, known: Output, output: Output | None) -> Output | None:
        """A known output with others as its alternatives; without an output: itself, or None where it needs others."""
        return known

    def accepted(self, output: Output, text: str) -> Output:
        """The output as the caller gets it: without its text where the caller wants none that is so uncertain."""
        return output

    def trace_table(self, row: Row) -> Nodes:
        return []


def as_input(item: str | ConstrainedInput) -> ConstrainedInput:
    """An input; anything but text is an error."""
    prepared = item if isinstance(item, ConstrainedInput) else ConstrainedInput(item)
    if not isinstance(prepared.text, str):
        raise TypeError(f"found {prepared.text!r} among the texts, expected strings")
    return prepared


def normalised(item: str | ConstrainedInput) -> str | ConstrainedInput:
    """The input without the control characters that the readers of training data remove too."""
    text = normalise(as_input(item).text)
    if isinstance(item, str):
        return text
    return item._replace(text=text, target=None if item.target is None else normalise(item.target))


def check_positions(run: LoadedRun, row: Row, source: Sequence[Any]) -> None:
    """Raise an error for a source of more tokens than the encoder has positions."""
    setting, maximum = length_limit(encoder_of(run.config))
    if maximum is not None and len(source) >= maximum:
        problem = f"found {len(source) + 1} tokens, <eos> included"
        reason = f"expected at most the {maximum} of model.encoder.{setting}"
        raise InputTooLongError(row.name, row.text, (problem, maximum - 1), reason)


def check_several(texts: object, method: str, unit: str = "text") -> None:
    """Raise TypeError for a single text: its characters would be the inputs."""
    if isinstance(texts, str):
        raise TypeError(f"{method} takes a list of {unit}s; for one {unit} write {method}([{unit}])")


def stream_outputs(
    work: Work[Output], inputs: Iterable[str | ConstrainedInput], stream: StreamOptions
) -> Iterator[Output]:
    """An output for every input, in order and in bounded memory.

    At the end, or when the caller needs no more, one warning names what training did not have, unless the caller takes
    it with `on_unknown`.
    """
    unseen = UnseenInputs()
    stream = replace(stream, on_unknown=stream.on_unknown or unseen.add)
    if work.run.reads_files:
        stream = replace(stream, window=min(stream.window, MEDIA_WINDOW))
    first, waiting = 1, iter(inputs)
    context = Context(work.run.context)
    try:
        while items := list(islice(waiting, stream.window)):
            yield from Window(work, stream, first, context).outputs(items)
            first += len(items)
    finally:
        unseen.warn(stream.on_warning)


class Window(Generic[Output]):
    """Inputs that are read together, so that batches hold sources of like lengths."""

    def __init__(self, work: Work[Output], stream: StreamOptions, first: int, context: Context) -> None:
        self.work, self.stream, self.first, self.context = work, stream, first, context
        self.parts: dict[int, list[Part]] = {}  # of inputs that are read in parts, by their index
        self.known: dict[int, Output] = {}  # outputs that need no work, by the index of their input
        self.failed: set[int] = set()
        self.texts: list[str] = []  # as the model reads them
        self.waiting: Counter[int] = Counter()  # rows without a result, by the index of their input

    def outputs(self, items: Sequence[str | ConstrainedInput]) -> Iterator[Output]:
        if not self.work.run.reads_files:  # whose texts are names of files
            items = [normalised(item) for item in items]
        self.texts = [as_input(item).text for item in items]
        rows = [row for index, item in enumerate(items) for row in self.checked(index, item)]
        self.waiting.update(row.index for row in rows)
        rows = self.encoded(rows)
        computed: list[tuple[Row, Output]] = []
        for split in (False, True):  # apart, so that a long input changes no bit of the scores of the others
            alike = [row for row in rows if (row.index in self.parts) is split]
            computed += self.isolated(alike, lambda rows: self.work.outputs(rows, self.done))
        return self.restored(computed)

    def checked(self, index: int, item: str | ConstrainedInput) -> list[Row]:
        """The rows of an input that passes all checks; none of one that is empty, refused or only copied."""
        number, work = self.first + index, self.work
        name = as_input(item).place or self.stream.input_name(number)
        context: tuple[str, ...] = ()
        try:
            if work.run.context or work.run.reads_match:
                item, context = self.in_context(item)
            prepared = work.prepare(item, name)
            self.texts[index] = prepared.text
            if not (work.reads_empty or split_tag(prepared.text, work.run.tags)[1].strip()):
                self.stream.done(1)
                return []
            if (known := work.known(prepared)) is not None:
                self.known[index] = known
                if work.beside(known, None) is not None:
                    self.stream.done(1)
                    return []
            parts = work.plan(prepared, name, self.stream.warn)
        except DragomanError as error:
            self.fail(index, error)
            return []
        if parts is None:
            rows = [Row(index, number, name, prepared, context)]
        else:
            self.parts[index] = parts
            read = [(work.part(prepared, part, parts), part.segment) for part in parts if not part.copied]
            rows = [Row(index, number, name, item, context, segment=segment) for item, segment in read]
        if known is None:
            self.report_unseen(number, prepared)
        if not rows:
            self.stream.done(1)
        return rows

    def in_context(self, item: str | ConstrainedInput) -> tuple[str | ConstrainedInput, tuple[str, ...]]:
        """The input by itself, and what it brings along to be read before it: else a match, or the last ones read."""
        given = as_input(item)
        tag, text = split_tag(given.text, self.work.run.tags)
        brought, own = split_context(text)
        before = self.work.matched(own) if self.work.run.reads_match else self.context.of(own)
        text = add_tag(own, tag) if tag else own
        alone = text if isinstance(item, str) else given._replace(text=text)
        return alone, before if brought is None else brought

    def report_unseen(self, number: int, item: ConstrainedInput) -> None:
        """Report characters or words that training did not have, but for those of texts that are copied."""
        if surfaces := self.work.run.unseen_in(self.work.uncopied(item.text)):
            assert self.stream.on_unknown is not None, "`stream_outputs` sets it"
            self.stream.on_unknown(number, surfaces)

    def encoded(self, rows: list[Row]) -> list[Row]:
        """The rows with their sources, without those that cannot be read."""
        if self.work.run.reads_files:
            rows = self.readable(rows)

        def encode(rows: Sequence[Row]) -> Sequence[Row]:
            self.work.encode(rows)
            return rows

        for row, _ in self.isolated(rows, encode):
            try:
                self.work.check_source(row, self.stream.warn)
            except DragomanError as error:
                self.fail(row.index, error)
        return [row for row in rows if row.index not in self.failed]

    def readable(self, rows: list[Row]) -> list[Row]:
        """The rows whose files can be read, all in one go: an archive is read once."""
        kept = []
        features = self.work.read_files([row.text for row in rows])
        for row, source in zip(rows, features, strict=True):
            if not isinstance(source, Fault):
                row.source = source
                kept.append(row)
                continue
            fault = Fault(row.name, source.kind, str(source))
            if self.stream.on_unreadable is not None:
                self.stream.on_unreadable(fault)
                self.done(row)
            else:
                self.fail(row.index, DataError(f"{fault}; leave such inputs out with data.skip_unreadable=true"))
        return kept

    def isolated(self, rows: Sequence[Row], compute: Callable[[Sequence[Row]], Sequence[Any]]) -> list[tuple[Row, Any]]:
        """The rows with what `compute` gives for each; without those that fail, if the caller takes failures.

        After a failure halves of the rows are tried again until the faulty ones are alone. This costs nothing where no
        row fails, and some log₂ n more calls for every one that does.
        """
        if not rows:
            return []
        try:
            return list(zip(rows, compute(rows), strict=True))
        except DragomanError as error:
            if self.stream.on_failed is None:
                raise
            if len(rows) == 1:
                self.fail(rows[0].index, error)
                return []
        middle = len(rows) // 2
        return [*self.isolated(rows[:middle], compute), *self.isolated(rows[middle:], compute)]

    def fail(self, index: int, error: DragomanError) -> None:
        """Hand the error of an input to the caller, or raise it; the input has an empty output."""
        if index in self.failed:
            return
        if index in self.known:
            pass  # it goes without alternatives
        elif isinstance(error, InputTooLongError) and self.stream.on_refused is not None:
            self.stream.on_refused(self.first + index, error)
        elif self.stream.on_failed is not None:
            self.stream.on_failed(self.first + index, error)
        else:
            raise error
        self.failed.add(index)
        self.waiting[index] = 0
        self.stream.done(1)

    def done(self, row: Row) -> None:
        """Count an input as finished with the last of its rows."""
        if self.waiting[row.index]:
            self.waiting[row.index] -= 1
            if not self.waiting[row.index]:
                self.stream.done(1)

    def restored(self, computed: Sequence[tuple[Row, Output]]) -> Iterator[Output]:
        """The outputs in the order of the inputs, parts joined."""
        by_input: dict[int, list[tuple[Row, Output]]] = {}
        for row, output in computed:
            if row.index not in self.failed:
                by_input.setdefault(row.index, []).append((row, output))
        for index, text in enumerate(self.texts):
            own: list[tuple[Row, Output]] = by_input.get(index, [])
            nodes: Nodes = []
            if index in self.parts and index not in self.failed:
                output = self.work.join(self.parts[index], [output for _, output in own])
                nodes = self.work.trace_table(own[0][0]) if len(own) == 1 else nodes
            elif own:
                row, output = own[0]
                nodes = self.work.trace_table(row)
            else:
                output = self.known.get(index, self.work.empty)
            if index in self.known and (own or index in self.parts) and index not in self.failed:
                output = self.work.beside(self.known[index], output) or output
            if self.stream.on_trace is not None:
                self.stream.on_trace(text, nodes)
            yield self.work.accepted(output, text)
