"""Teacher forcing against free running: the counts are those of plain comparisons of tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dragoman.data.tokenizers.base import EOS
from dragoman.inference.evaluation import as_examples
from dragoman.inference.load import load_predictor
from dragoman.inference.predictor import Predictor
from dragoman.inspect.options import InspectOptions
from dragoman.inspect.views.free_running import forcing, free_running
from dragoman.inspect.views.subject import open_subject
from tests.conftest import TrainedFolder, quiet_machine

SOURCES, TARGETS = ["abcd", "ba", "fedcba", "cab"], ["ABCD", "BB", "FEDCBA", "CABA"]


@pytest.fixture(scope="module")
def predictor(trained_folder: TrainedFolder) -> Predictor:
    with quiet_machine(trained_folder.folder / "cache"):
        return load_predictor(trained_folder.run, "cpu")


def test_accuracy_by_position(predictor: Predictor) -> None:
    found = free_running(predictor, SOURCES, TARGETS, size=3)
    rows = predictor.codec.encode_pairs(SOURCES, TARGETS)
    golds = [[*row, EOS] for row in rows[1]]
    encode = predictor.target_tokenizer.encode
    owns = [[*encode(output.text), EOS] for output in predictor.predict(SOURCES, beam=1)]
    right = [
        [place < len(own) and own[place] == token for place, token in enumerate(gold)]
        for gold, own in zip(golds, owns, strict=True)
    ]
    assert found.counts.tolist() == [sum(len(gold) > place for gold in golds) for place in range(7)]
    expected = [sum(row[place] for row in right if len(row) > place) for place in range(7)]
    assert (found.free * found.counts).tolist() == pytest.approx(expected)
    loss = predictor.loss(as_examples(zip(SOURCES, TARGETS, strict=True)))
    assert float((found.forced * found.counts).sum() / found.counts.sum()) == pytest.approx(loss.accuracy)
    firsts = [row.index(False) for row in right if False in row]
    assert (found.starts * found.targets).tolist() == pytest.approx([firsts.count(place) for place in range(7)])
    assert found.after_counts[0] == len(firsts) > 0
    assert found.after_free[0] == 0
    assert found.forced[0] == found.free[0]  # nothing is read yet


def test_an_error_changes_only_what_follows(predictor: Predictor) -> None:
    subject = open_subject(predictor, "abcd", InspectOptions("ABCE"))
    found = forcing(subject)
    assert found is not None
    assert found.spread.shape == (4, 5)
    assert not found.spread.tril().any()
    target = subject.batch.target.clone()
    assert all(int(token) != int(right) for token, right in zip(found.errors, target[0], strict=False))
    target[0, 1] = found.errors[1]
    with torch.no_grad():
        changed = subject.log_probabilities(replace(subject.batch, target=target)) - subject.log_probabilities()
    torch.testing.assert_close(found.spread[1, 2:], changed[2:])
