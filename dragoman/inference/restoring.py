"""Put what sources must keep back into outputs, and search again for outputs that have lost some of it.

The first output in order that keeps everything is taken: the best one, the next ones of the beam, an output for the
text without its protected spans, one without its numbers, and at last one in shorter parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import chain
from typing import Any, Protocol

from dragoman.base import DragomanError
from dragoman.data import fitting_sentences
from dragoman.data.tokenizers import add_tag, split_tag
from dragoman.decoding import DecodingOptions
from dragoman.decoding.constraints import ConstrainedInput
from dragoman.inference.checks import check_translation
from dragoman.inference.long_inputs import join_parts
from dragoman.inference.pipeline import Row
from dragoman.inference.prediction import Prediction
from dragoman.inference.segments import Parsing, Part, Segment, parts_of_text, sentence_links, words_of
from dragoman.inference.target_scores import QUIET

SHORT = 8  # words up to which a text is not read in parts
SEARCHED = {"number", "length", "loop"}  # findings for which another output is looked for
Exact = tuple[Prediction, bool]  # an output, and whether its spans are where the alignment says


class Searching(Protocol):
    """What restoring asks of the work of a call (`SearchWork`)."""

    @property
    def run(self) -> Any: ...

    @property
    def options(self) -> DecodingOptions: ...

    @property
    def beam(self) -> int:
        """Outputs that a search can tell apart; 1: another search finds the same."""

    @property
    def n_best(self) -> int: ...

    def parsing(self, item: ConstrainedInput) -> Parsing: ...

    def part(self, item: ConstrainedInput, part: Part, parts: Sequence[Part]) -> ConstrainedInput: ...

    def encode(self, rows: Sequence[Row]) -> None: ...


class Attempt:
    """The parts that a row is read in, and the outputs of those that are not copied."""

    def __init__(self, row: Row, parts: Sequence[Part]) -> None:
        self.row, self.parts = row, parts
        self.rows: list[Row] = []  # of the parts that are read
        self.outputs: list[Prediction] = []

    def candidates(self, restored: Sequence[Sequence[Exact]]) -> list[Exact]:
        """Outputs of the whole row, best first."""
        if len(restored) == 1:
            return [(join_parts(self.parts, [output]), exact) for output, exact in restored[0]]
        best = [outputs[0] for outputs in restored]
        return [(join_parts(self.parts, [output for output, _ in best]), all(exact for _, exact in best))]


class Restoring:
    """Restores the outputs of one call."""

    def __init__(self, work: Searching, search: Callable[[Sequence[Row], int], list[Prediction]]) -> None:
        self.work, self.search = work, search  # rows and a number of outputs → predictions

    def outputs(self, rows: Sequence[Row], predictions: Sequence[Prediction]) -> list[Prediction]:
        out, best = list(predictions), dict[int, tuple[int, list[Prediction]]]()  # faults of the best output, and all
        waiting: dict[int, Attempt] = {}
        for index, (row, prediction) in enumerate(zip(rows, predictions, strict=True)):
            if row.segment is not None or self.work.options.placeholders:
                waiting[index] = Attempt(row, [Part(self.text(row), False, row.segment)])
                waiting[index].rows, waiting[index].outputs = [row], [prediction]
        further = {index: self.attempts(rows[index]) for index in waiting}
        while waiting:
            failed: dict[int, Attempt] = {}
            for (index, attempt), restored in zip(waiting.items(), self.restored([*waiting.values()]), strict=True):
                candidates = attempt.candidates(restored)
                found = [output for output, _ in candidates]
                faults = [self.faults(attempt.row, output) + (not exact) for output, exact in candidates]
                least = min(faults)
                if index not in best or least < best[index][0]:
                    found.insert(0, found.pop(faults.index(least)))
                    texts = {output.text for output in found}
                    before = best[index][1] if index in best else []
                    best[index] = least, [*found, *(output for output in before if output.text not in texts)]
                if least and (parts := next(further[index], None)) is not None:
                    failed[index] = Attempt(attempt.row, parts)
            self.compute([*failed.values()])
            waiting = failed
        for index, (_, found) in best.items():
            out[index] = replace(found[0], alternatives=tuple(found[1 : self.work.options.n_best]))
        return out

    def text(self, row: Row) -> str:
        return split_tag(row.text, self.work.run.tags)[1]

    def segment(self, row: Row) -> Segment:
        """What a row stands for."""
        return row.segment or Segment(self.text(row), (), self.work.parsing(row.item))

    def attempts(self, row: Row) -> Iterator[Sequence[Part]]:
        """Other ways to read a row of which no output so far keeps everything."""
        segment, parsing, raw = row.segment, self.work.parsing(row.item), self.segment(row).raw
        if not parsing.protect:
            return
        if self.work.beam > self.work.n_best:
            yield [Part(self.text(row), False, segment)]
        if segment is not None and segment.block.text != self.text(row):
            yield [Part(segment.block.text, False, segment)]
        everything = parsing._replace(numbers=lambda number: True)
        leaf = segment is not None and segment.leaf
        if (parts := parts_of_text(raw, everything, leaf)) != [Part(raw, False)]:
            yield parts
        if len(raw.split()) > SHORT and not parsing.whole:
            size = max(SHORT, len(raw.split()) // 2)
            pieces = fitting_sentences(raw, lambda text: len(text.split()) <= size)
            if len(pieces) > 1:
                read = ((*parts_of_text(text, everything, leaf), Part(space, True)) for text, space in pieces)
                yield [part for parts in read for part in parts if part.text or part.segment is not None]

    def compute(self, attempts: Sequence[Attempt]) -> None:
        """Search for the outputs of all parts at once."""
        tags = self.work.run.tags
        for attempt in attempts:
            tag = split_tag(attempt.row.text, tags)[0]
            whole = sum(not part.copied for part in attempt.parts) == 1
            for part in attempt.parts:
                if not part.copied:
                    own = attempt.row.item._replace(text=add_tag(part.text, tag) if tag else part.text)
                    own = own if whole else self.work.part(own, part, attempt.parts)
                    attempt.rows.append(replace(attempt.row, item=own, segment=part.segment, source=None))
        rows = [row for attempt in attempts for row in attempt.rows]
        if not rows:
            return
        self.work.encode(rows)
        outputs = iter(self.search(rows, max(self.work.beam, self.work.n_best)))
        for attempt in attempts:
            attempt.outputs = [next(outputs) for _ in attempt.rows]

    def restored(self, attempts: Sequence[Attempt]) -> Iterator[list[list[Exact]]]:
        """For each attempt the outputs of each of its rows with everything that their sources keep."""
        protect = self.work.options.placeholders
        cleaned: list[tuple[Row, Prediction]] = []
        own = (zip(attempt.rows, attempt.outputs, strict=True) for attempt in attempts)
        for row, output in chain.from_iterable(own):
            for one in (output, *output.alternatives):
                kept = (self.text(row), required(row))
                text = self.segment(row).cleaned(one.text, *kept) if protect else one.text
                cleaned.append((row, replace(one, text=text, alternatives=())))
        placed = (pair for pair in cleaned if pair[0].segment is not None and pair[0].segment.spans)
        pairs = [(row.text, one.text) for row, one in placed if one.text.strip()]
        links = self.aligned(pairs)
        texts = iter([self.placed(row, one, links.get((row.text, one.text))) for row, one in cleaned])
        for attempt in attempts:
            yield [[next(texts) for _ in range(1 + len(output.alternatives))] for output in attempt.outputs]

    def placed(self, row: Row, output: Prediction, alignment: Any) -> Exact:
        if (segment := row.segment) is None:
            return output, True
        block = segment.block if segment.block.text == self.text(row) else segment.tagless
        links = sentence_links(alignment, self.text(row), output.text)
        text, exact = segment.restored(links, block, required(row))
        return replace(output, text=text), exact

    def aligned(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Any]:
        """The alignments of sources and outputs; none where the model has no attention to read them from."""
        distinct = list(dict.fromkeys(pairs))
        if not distinct or (view := self.work.run.alignment_view) is None:
            return {}
        align = import_module("dragoman.inference.align").align_pairs  # which imports this room
        stream = replace(QUIET, on_failed=lambda number, error: None)  # a pair that fails has no links
        try:
            links = align(self.work.run, distinct, view=view, segment=words_of, stream=stream)
            return dict(zip(distinct, links, strict=True))
        except (DragomanError, NotImplementedError):  # some tokenizers cannot say where their tokens stand
            return {}

    def faults(self, row: Row, output: Prediction) -> int:
        """How much an output lacks of what its source must keep, and whether it is a loop or far too short."""
        if not self.work.options.placeholders:
            return 0
        segment = self.segment(row)
        kinds = {finding.kind for finding in check_translation(segment.raw, output.text)} & SEARCHED
        return len(kinds) + (not segment.has_all(output.text, required(row)))


def required(row: Row) -> list[str]:
    """The phrases that an output must have, which may look like spans."""
    return [phrase for phrases in row.item.constraints.require for phrase in phrases]
