"""One pipeline for all runs: failures stay with their inputs, and keywords are the fields of the options."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_type_hints

import pytest
import torch

import dragoman
from dragoman.base.errors import ConfigError, DataError, DragomanError
from dragoman.data.examples import make_example
from dragoman.data.translation_memory import TranslationMemory
from dragoman.decoding.constraints.source import Terminology
from dragoman.decoding.constraints.spec import ConstrainedInput, OutputConstraints
from dragoman.decoding.greedy import TokenChooser
from dragoman.decoding.method import Method
from dragoman.decoding.options import DecodingOptions
from dragoman.decoding.sampling import Sampling
from dragoman.inference.completer import Completer, CompletionKeywords
from dragoman.inference.completion import CompletionOptions
from dragoman.inference.evaluation import EvaluationOptions
from dragoman.inference.inputs import (
    DecodingKeywords,
    EvaluationKeywords,
    StreamKeywords,
    StreamOptions,
)
from dragoman.inference.labeler import Labeler
from dragoman.inference.loaded import LoadedRun
from dragoman.inference.pipeline import Done, Row, Work, stream_outputs
from dragoman.inference.predictor import Predictor
from tests.conftest import TrainedFolder, call, quiet_machine, words, write_rows

FEW = ("train.steps=2", "train.validate_every=2", "train.optimizer.warmup=1")


@pytest.fixture(scope="module")
def labels_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("labels")
    write_rows(
        folder / "labels.tsv", [(f"{word} a", "odd" if number % 2 else "even") for number, word in enumerate(words(40))]
    )
    with quiet_machine(folder / "cache"), contextlib.chdir(folder):
        result = call("train", "labels.tsv", "task=classify", "--run", "runs/labels", *FEW)
        assert result.code == 0, result.err
        yield folder / "runs" / "labels"


KEYWORDS: dict[type, tuple[type, ...]] = {
    StreamKeywords: (StreamOptions,),
    DecodingKeywords: (DecodingOptions,),
    EvaluationKeywords: (DecodingOptions, EvaluationOptions, StreamOptions),
    CompletionKeywords: (CompletionOptions, StreamOptions),
}


@pytest.mark.parametrize("keywords", KEYWORDS, ids=lambda keywords: keywords.__name__)
def test_keywords_are_the_fields_of_the_options(keywords: type) -> None:
    types = {"Method": Method, "Terminology": Terminology, "TranslationMemory": TranslationMemory}
    types |= {"RunLike": str | Path | LoadedRun, "Sampling": Sampling, "TokenChooser": TokenChooser}
    expected: dict[str, Any] = {}
    for options in KEYWORDS[keywords]:
        expected |= get_type_hints(options, localns=types)
    assert get_type_hints(keywords, localns=types) == expected


@pytest.mark.parametrize("method", ["predict", "stream", "evaluate", "complete", "rate", "loss", "score"])
@pytest.mark.parametrize("kind", [Predictor, Labeler, Completer])
def test_public_methods_take_and_give_named_types(kind: type[LoadedRun], method: str) -> None:
    if function := getattr(kind, method, None):
        hints = get_type_hints(function)
        assert "return" in hints
        assert Any not in hints.values()


def test_an_input_that_fails_leaves_the_others(inside: TrainedFolder) -> None:
    run = dragoman.load(inside.run)
    assert isinstance(run, Predictor)
    texts, failed = ["abc", "fade", "", "jig"], dict[int, DragomanError]()
    good = run.predict(texts)
    done: list[int] = []
    wrong = ConstrainedInput("fade", OutputConstraints(pattern="("))
    inputs = [texts[0], wrong, *texts[2:]]
    found = list(run.stream(inputs, on_failed=failed.__setitem__, progress=done.append))
    assert list(failed) == [2]
    assert [one.text for one in found] == [good[0].text, "", "", good[3].text]
    assert sum(done) == 4
    with pytest.raises(DragomanError, match="pattern"):
        list(run.stream(inputs))


class Doubling(Work[int]):
    """Doubles numbers written as texts; 3 and 7 fail together with all that is computed with them."""

    calls = 0

    @property
    def run(self) -> LoadedRun:
        about = {"reads_files": False, "tags": (), "context": 0, "reads_match": 0.0}
        return cast("LoadedRun", SimpleNamespace(**about, unseen_in=lambda text: []))

    @property
    def empty(self) -> int:
        return -1

    def encode(self, rows: Sequence[Row]) -> None:
        for row in rows:
            row.source = int(row.text)

    def outputs(self, rows: Sequence[Row], done: Done) -> list[int]:
        self.calls += 1
        if any(row.source in (3, 7) for row in rows):
            raise DataError("bad")
        return [2 * row.source for row in rows]


def test_inputs_that_fail_are_isolated() -> None:
    failed: dict[int, DragomanError] = {}
    texts = [str(number) for number in range(9)]
    stream = StreamOptions(on_failed=failed.__setitem__)
    assert list(stream_outputs(Doubling(), texts, stream)) == [0, 2, 4, -1, 8, 10, 12, -1, 16]
    assert list(failed) == [4, 8]
    work = Doubling()
    list(stream_outputs(work, texts[:3], stream))
    assert work.calls == 1
    with pytest.raises(DataError, match="bad"):
        list(stream_outputs(Doubling(), texts, StreamOptions()))


def test_inputs_are_normalised_as_training_data_are() -> None:
    texts = ["\ufeff4", "1\x8a2", "\x85 5", "6"]
    given = [*texts, ConstrainedInput("\x807", OutputConstraints())]
    seen: list[str] = []

    class Seen(Doubling):
        def outputs(self, rows: Sequence[Row], done: Done) -> list[int]:
            seen.extend(row.text for row in rows)
            return [2 * row.source for row in rows]

    assert list(stream_outputs(Seen(), given, StreamOptions())) == [8, 24, 10, 12, 14]
    assert seen == [*(make_example(text, ["x"], "", 1, 99).source for text in texts), "7"]


def test_constraints_need_a_search() -> None:
    """Shards of a labeler ignored them."""
    run = SimpleNamespace(run=SimpleNamespace(task=SimpleNamespace(name="classify")))
    work = type("Labels", (Doubling,), {"run": run})()
    with pytest.raises(DataError, match=r'input 1: found constraints .* task = "classify" has none'):
        work.prepare(ConstrainedInput("1", OutputConstraints(prefix="p")), "input 1")


def test_options_of_a_search_are_refused_by_runs_without_one(labels_run: Path) -> None:
    """They were ignored."""
    with pytest.raises(ConfigError, match=r'beam: found 8, which is for runs that search.* task = "classify"'):
        dragoman.load(labels_run, beam=8)
    assert isinstance(dragoman.load(labels_run, engine="torch"), Labeler)


@pytest.mark.parametrize("beam", [1, 3])
def test_batches_on_several_cores_give_the_same_outputs(trained_folder: TrainedFolder, beam: int) -> None:
    predictor, texts = dragoman.load(trained_folder.run, "cpu", engine="torch"), [*words(20), "", "abc"]
    one, before = predictor.predict(texts, beam=beam), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        several = predictor.predict(texts, beam=beam, batch_size=4)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert [output.text for output in several] == [output.text for output in one]
    assert [output.score for output in several] == pytest.approx([output.score for output in one], abs=1e-5)
