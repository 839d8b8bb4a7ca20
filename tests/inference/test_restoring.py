"""An output that lacks what its source must keep gives way to another one of the beam, or to one of shorter parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.decoding.constraints import ConstrainedInput
from dragoman.decoding.options import DecodingOptions
from dragoman.inference.checks import check_translation
from dragoman.inference.pipeline import Row
from dragoman.inference.prediction import Prediction
from dragoman.inference.restoring import Restoring
from dragoman.inference.segments import Parsing, Part

Beam = Callable[[str], Sequence[str]]  # a source → the outputs of its beam, best first


class Work:
    """The work of a call of a model without alignment, which can tell so many outputs apart."""

    def __init__(self, beam: int, n_best: int, placeholders: bool) -> None:
        self.run: Any = SimpleNamespace(tags=(), alignment_view=None)
        self.options = DecodingOptions(n_best=n_best, placeholders=placeholders)
        self.beam, self.n_best = beam, n_best
        self.read = list[str]()  # what was searched again

    def parsing(self, item: ConstrainedInput) -> Parsing:
        return Parsing(self.options.placeholders, apart=True)

    def part(self, item: ConstrainedInput, part: Part, parts: Sequence[Part]) -> ConstrainedInput:
        return ConstrainedInput(part.text, item.constraints)

    def encode(self, rows: Sequence[Row]) -> None:
        self.read += [row.text for row in rows]


def restored(
    source: str, beam: Beam, width: int = 4, n_best: int = 1, keep: bool = True
) -> tuple[Prediction, list[str]]:
    """The output for a source, and what was read again for it."""
    work = Work(width, n_best, keep)

    def search(rows: Sequence[Row], count: int) -> list[Prediction]:
        found = [[Prediction(text, -0.1, (), ()) for text in beam(row.text)[:count]] for row in rows]
        return [Prediction(one.text, -0.1, (), (), tuple(others)) for one, *others in found]

    rows = [Row(0, 1, "input 1", ConstrainedInput(source))]
    (output,) = Restoring(work, search).outputs(rows, search(rows, n_best))
    return output, work.read


LOOP = "no " * 40
DOGS = "There are 12 dogs and 7 men."


def test_a_good_output_is_searched_once() -> None:
    assert restored(DOGS, lambda text: ["12 Hunde und 7 Männer.", "x"]) == (
        Prediction("12 Hunde und 7 Männer.", -0.1, (), ()),
        [],
    )


@pytest.mark.parametrize("bad", ["Drei Hunde und 7 Männer.", "12 Hunde und 8 Männer.", "", "12 7 " + LOOP])
def test_the_first_output_of_the_beam_without_a_mistake_is_taken(bad: str) -> None:
    output, read = restored(DOGS, lambda text: [bad, "Ein Hund.", "12 Hunde und 7 Männer.", "12 und 7 andere."])
    assert (output.text, read) == ("12 Hunde und 7 Männer.", [DOGS])


def test_further_outputs_stay_in_order_behind_the_best() -> None:
    beam = ["Ein Hund.", "Zwei Hunde.", "12 Hunde und 7 Männer.", "12 Hunde."]
    output, read = restored(DOGS, lambda text: beam, n_best=4)
    assert [output.text, *(one.text for one in output.alternatives)] == [beam[2], beam[0], beam[1], beam[3]]
    assert read == []  # the beam had them all


def test_numbers_that_no_output_has_are_copied() -> None:
    """A search that finds the same again is not asked for it: the text is read around its numbers."""
    output, read = restored(DOGS, lambda text: ["Hunde" if "dogs" in text else "Da sind"], width=1)
    assert (output.text, read) == ("Da sind 12 Hunde 7 Da sind", ["There are", "dogs and", "men."])


def test_a_text_that_becomes_a_loop_is_read_in_parts() -> None:
    source = "One little dog ran up the hill, and the other one went down to the river."
    output, read = restored(source, lambda text: [LOOP if len(text.split()) > 8 else text.upper()], width=1)
    assert output.text == source.upper()
    assert " ".join(read) == source


def test_an_output_that_nothing_mends_has_a_finding() -> None:
    output, read = restored(DOGS, lambda text: [LOOP])
    assert read
    assert {"loop"} <= {finding.kind for finding in check_translation(DOGS, output.text) if finding.hard}


def test_without_placeholders_the_search_has_the_last_word() -> None:
    output, read = restored(DOGS, lambda text: ["Drei Hunde.", "12 und 7."], keep=False)
    assert (output.text, read) == ("Drei Hunde.", [])
