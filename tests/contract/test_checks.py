"""The checks of `dragoman.testing` hold for what the package has, and find what is wrong with a bad part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from dragoman import register, train
from dragoman.data.examples import Example, Fault
from dragoman.data.readers.base import READERS, Reader, ReadOptions
from dragoman.models.contracts import Loss, Memory, State
from dragoman.models.decoders.recurrent import RecurrentDecoder, RecurrentDecoderConfig
from dragoman.models.entries import DecoderEntry
from dragoman.models.registry import DECODERS
from dragoman.scoring.metric import TextMetric
from dragoman.scoring.registry import METRICS, metrics_for
from dragoman.testing import (
    check_constraint,
    check_decoder,
    check_document,
    check_encoder,
    check_exporter,
    check_method,
    check_metric,
    check_objective,
    check_reader,
    check_task,
)  # fmt: skip
from dragoman.training.objectives.base import OBJECTIVES, Objective, ObjectiveConfig, ObjectiveEntry


@pytest.fixture(autouse=True)
def in_float64() -> None:
    """Replace that of the other contract tests: the checks choose their precision."""


def test_checks_of_registered_architectures() -> None:
    """The other contract tests check all of them; these are for the functions."""
    check_decoder("luong", learns=False)
    check_encoder("convs2s", learns=False)


@pytest.mark.parametrize("name", [*metrics_for("words"), "per"])
def test_metrics(name: str) -> None:
    check_metric(name)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("likelihood", {}), ("minimum-risk", {"metric": "cer", "samples": 3}), ("r-drop", {}), ("simcut", {"cut": 0.0})],
)
def test_objectives(kind: str, options: dict[str, Any]) -> None:
    check_objective(kind, **options)


METHODS: dict[str, dict[str, Any]] = {
    "sampling": {"temperature": 0.7},
    "mbr": {"samples": 4, "metric": "cer"},
    "exhaustive": {"length": 3},
}


@pytest.mark.parametrize("kind", METHODS)
def test_decoding_methods(kind: str) -> None:
    check_method(kind, **METHODS[kind])


READABLE = {
    ".tsv": b"ab\tBA\nc d\tD C\n",
    ".csv": b"source,target\nab,BA\nc d,D C\n",
    ".jsonl": b'{"source": "ab", "target": "BA"}\n{"source": "c d", "target": "D C"}\n',
}


@pytest.mark.parametrize("suffix", READABLE)
def test_readers(suffix: str) -> None:
    check_reader(suffix, READABLE[suffix], [("ab", "BA"), ("c d", "D C")])


def test_constraints() -> None:
    check_constraint("prefix", "ab", accepted=["ab", "abc"], refused=["ba", "a"])
    check_constraint("pattern", "a+b", accepted=["ab", "aab"], refused=["b", "ba"])


DOCUMENTS = {".txt": b"some text\n", ".md": b"# some *text*\n", ".po": b'msgid "some text"\nmsgstr ""\n'}


@pytest.mark.parametrize("suffix", DOCUMENTS)
def test_documents(suffix: str) -> None:
    check_document(suffix, DOCUMENTS[suffix], ["some text"])


def test_tasks_and_exporters(tmp_path: Path) -> None:
    texts = [("good film", "yes"), ("bad film", "no"), ("a good one", "yes"), ("a bad one", "no")] * 10
    rows = [f"{text} {index}\t{label}\n" for index, (text, label) in enumerate(texts)]
    (tmp_path / "labels.tsv").write_text("".join(rows))
    small = ("model.encoder.width=8", "model.encoder.embedding=8")
    check_task("classify", tmp_path / "labels.tsv", *small)
    table = {"task": "classify", "data": {"train": str(tmp_path / "labels.tsv")}}
    train(table, tmp_path / "run", "train.steps=2", *small, quiet=True)
    check_exporter("huggingface", tmp_path / "run")  # gives reasons


# ---------------------------------------------------------------------- what is wrong is found


@dataclass(frozen=True)
class WrongConfig(RecurrentDecoderConfig):
    kind: ClassVar[str] = "wrong"


class Forgetful(RecurrentDecoder):
    """Keeps its state on the module."""

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        self.kept = super().start(memory, capacity)
        return self.kept

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return super().forward(tokens, state._replace(cache=self.kept.cache))


class Clairvoyant(RecurrentDecoder):
    """Adds the mean of all tokens of the call."""

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, state = super().forward(tokens, state)
        return hidden + hidden.mean(1, keepdim=True), state


@pytest.mark.parametrize("module", [Forgetful, Clairvoyant])
def test_a_decoder_that_breaks_a_law_is_found(module: type[nn.Module]) -> None:
    example = WrongConfig(embedding=6, width=8, dropout=0.0)
    entry = register(DecoderEntry(WrongConfig, module, example=example))
    try:
        with pytest.raises(AssertionError, match=r"'wrong' with the encoder 'recurrent' breaks a law\. Law 1"):
            check_decoder("wrong", learns=False)
    finally:
        DECODERS.remove(entry)


def test_a_metric_in_the_wrong_direction_is_found() -> None:
    wer = metrics_for("words")["wer"]
    assert isinstance(wer, TextMetric)
    wrong = register(replace(wer, name="wrong", higher_is_better=True))
    try:
        with pytest.raises(AssertionError, match=r"wrong: a perfect output scores 0\.0, .* see higher_is_better"):
            check_metric("wrong")
    finally:
        METRICS.remove(wrong)


@dataclass(frozen=True)
class MeanConfig(ObjectiveConfig):
    kind: ClassVar[str] = "mean"


class Mean(Objective):
    """A mean where a sum belongs."""

    def loss(self, model: Any, batch: Any) -> Loss:
        loss = model(batch)
        return Loss(loss.total / loss.count, torch.ones(()))


def test_a_mean_for_a_sum_is_found() -> None:
    entry = register(ObjectiveEntry(MeanConfig, Mean))
    try:
        with pytest.raises(AssertionError, match="expected a sum over target tokens, not a mean"):
            check_objective("mean")
    finally:
        OBJECTIVES.remove(entry)


def test_a_constraint_that_accepts_too_much_is_found() -> None:
    with pytest.raises(AssertionError, match="prefix: a wrong answer for 'ab'"):
        check_constraint("prefix", "a", accepted=["a"], refused=["ab"])


class PlainReader(Reader):
    """Forgets that a file may be compressed."""

    suffixes = (".bars",)
    about = "bars"

    def pairs(self, path: Path, options: ReadOptions) -> Iterator[Example | Fault]:
        for number, line in enumerate(path.read_bytes().decode("utf-8", "replace").splitlines(), 1):
            source, _, target = line.partition("|")
            yield Example(source, (target,), str(path), number)


def test_a_reader_that_cannot_decompress_is_found() -> None:
    reader = register(PlainReader())
    try:
        with pytest.raises(AssertionError, match=r"file.bars.gz: "):
            check_reader(".bars", b"a|A\n", [("a", "A")])
    finally:
        READERS.remove(reader)
