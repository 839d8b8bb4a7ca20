"""Every search ends between two steps when its caller needs no result any more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.base.long_work import Abandoned, check_interrupted, interruptible
from dragoman.classical.ngram_transducer import search_chunks
from dragoman.classical.phrase_decoder import PhraseDecoder
from dragoman.decoding.mbr import MinimumBayesRisk
from dragoman.decoding.non_autoregressive import k_best, prefix_beam_search
from dragoman.decoding.sampling import Sampling
from dragoman.inference.align.alignment import align_pairs
from dragoman.models.contracts import CTCEmissions
from tests.classical import test_ngram_transducer, test_phrase_based
from tests.conftest import TrainedFolder

LONG = ["abcdefghij" * 2]


class Countdown:
    """Says stop after so many questions."""

    def __init__(self, questions: int) -> None:
        self.left = questions

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def questions_of(work: Callable[[], Any]) -> int:
    """How often a piece of work asks whether to stop."""
    asked = Countdown(10**9)
    with interruptible(asked):
        work()
    return 10**9 - asked.left


@pytest.fixture(scope="module")
def run(trained_folder: TrainedFolder) -> Any:
    return dragoman.load(trained_folder.run, device="cpu", engine="torch")


@pytest.mark.parametrize(
    "options",
    [
        {"beam": 1},
        {"beam": 5},
        {"beam": 4, "beam_groups": 2},
        {"beam": 4, "require": "B"},
        {"method": Sampling(samples=4)},
        {"method": MinimumBayesRisk(samples=4)},
    ],
    ids=["greedy", "beam", "groups", "constraints", "sampling", "risk"],
)
def test_searches_of_a_run_end_between_steps(run: Any, options: dict[str, Any]) -> None:
    questions = questions_of(lambda: run.predict(LONG, **options))
    assert questions > 5  # one for each token, not only one for each batch
    stop = Countdown(questions // 2)
    with interruptible(stop), pytest.raises(Abandoned):
        run.predict(LONG, **options)
    assert stop.left == -1  # at once
    assert run.predict(LONG, **options)  # nothing is left behind


def test_an_engine_ends_too(trained_folder: TrainedFolder) -> None:
    pytest.importorskip("ctranslate2")
    run = dragoman.load(trained_folder.run, device="cpu", engine="ctranslate2")
    # Beam search in the engine ends after a batch, which is why a server keeps batches short.
    for questions, options in ((2, {"beam": 1, "max_length": 1_000}), (0, {"beam": 4})):
        with interruptible(Countdown(questions)), pytest.raises(Abandoned):
            run.predict(LONG * 4, **options)
    assert run.predict(LONG, beam=1)


def test_alignments_end(run: Any) -> None:
    with interruptible(Countdown(2)), pytest.raises(Abandoned):
        list(align_pairs(run, [("abc", "ABC")] * 4, batch_size=1))


def ctc() -> Any:
    import torch

    emissions = CTCEmissions(torch.randn(2, 30, 8).log_softmax(-1), torch.tensor([30, 20]))
    return prefix_beam_search(emissions, torch.tensor([30, 30]), 3)


def lengths() -> Any:
    import torch

    return k_best(torch.randn(2, 1, 30, 8).log_softmax(-1), torch.tensor([[30], [20]]), 3)


def phrases() -> Any:
    decoder = PhraseDecoder(test_phrase_based.language_model(), test_phrase_based.WEIGHTS, stack=20, limit=4, pool=80)
    return decoder.translate(20, test_phrase_based.random_options(1, 20), 1)


def chunks() -> Any:
    model, _ = test_ngram_transducer.trained()
    return search_chunks(model.table, [tuple(range(4, 9)) * 5], 10, 1)


@pytest.mark.parametrize("work", [ctc, lengths, phrases, chunks])
def test_other_decoders_end(work: Callable[[], Any]) -> None:
    questions = questions_of(work)
    assert questions >= 20
    with interruptible(Countdown(questions // 2)), pytest.raises(Abandoned):
        work()


def test_without_a_caller_nothing_is_interrupted() -> None:
    check_interrupted()
    with interruptible(lambda: True), pytest.raises(Abandoned):
        check_interrupted()
    check_interrupted()


def test_labels_and_prompts_end(tmp_path: Path, cached: Path) -> None:
    from dragoman.inference.completion import CompletionOptions
    from dragoman.inference.load import load_run
    from tests.runs.tasks import test_labels_end_to_end as labels
    from tests.runs.tasks import test_language_model as language_models
    from tests.serving.tiny_runs import quick

    labels.write_data(tmp_path)
    (tmp_path / "text.txt").write_text(language_models.some_text(200, 1), encoding="utf-8")
    labeler = load_run(quick(labels.table("classify", tmp_path), tmp_path / "classify"), "cpu")
    completer = load_run(quick(language_models.table("lstm", tmp_path), tmp_path / "lm"), "cpu")
    with interruptible(Countdown(2)), pytest.raises(Abandoned):
        labeler.predict(labels.INPUTS["classify"] * 4, batch_size=1)
    with interruptible(Countdown(10)), pytest.raises(Abandoned):
        completer.complete(["anna"], CompletionOptions(50))
