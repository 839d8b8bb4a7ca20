"""Parallel streams and segments for BPTT, against plain lists."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from dragoman.base.errors import DataError
from dragoman.data.bptt import BpttPlan, OverlappingBpttPlan, RunningText
from dragoman.data.store import StoreWriter, TokenStore
from dragoman.data.tokenizers.base import EOS, PAD


def stored(folder: Path, lines: list[list[int]]) -> RunningText:
    with StoreWriter(folder, 1, 1000) as writer:
        for start in range(0, len(lines), 3):
            part = lines[start : start + 3]
            writer.add([[]] * len(part), part)
    return RunningText(TokenStore(folder).target)


def some_lines(seed: int, count: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 12, count)
    lengths[random.integers(0, count, count // 3)] = 0  # empty lines, some of them in a row
    return [random.integers(4, 900, length).tolist() for length in lengths]


@pytest.mark.parametrize(
    "lines", [some_lines(0, 40), some_lines(3, 300), [[]] * 200, [[]], [[], [], [5]], [[5, 6, 7]], some_lines(1, 7)]
)
def test_spans_are_slices_of_the_whole_text(tmp_path: Path, lines: list[list[int]]) -> None:
    text = stored(tmp_path / "store", lines)
    whole = [EOS]
    for line in lines:
        whole += [*line, EOS]
    assert len(text) == len(whole)
    assert text.span(0, len(whole)).tolist() == whole  # in memory
    for start in range(len(whole) + 1):
        for end in {start, start + 1, start + 2, start + 7, start + 40, start + 400, len(whole)}:
            if end <= len(whole):
                assert text.read(start, end).tolist() == text.span(start, end).tolist() == whole[start:end]


def streams_of(plan: BpttPlan, epoch: int) -> tuple[list[list[int]], list[list[int]]]:
    """The inputs and targets of every stream over an epoch."""
    read: list[list[int]] = [[] for _ in range(plan.streams)]
    predicted: list[list[int]] = [[] for _ in range(plan.streams)]
    for number, segment in enumerate(plan.epoch(epoch)):
        assert segment.source.data.shape == segment.target.shape == (plan.streams, plan.segment)
        assert segment.fresh == (number == 0)
        assert ((segment.target != PAD) == segment.source.mask).all()
        assert int(segment.source.mask.sum()) == plan.tokens(epoch, number)
        for stream in range(plan.streams):
            real = segment.source.mask[stream]
            read[stream] += segment.source.data[stream][real].tolist()
            predicted[stream] += segment.target[stream][real].tolist()
    return read, predicted


@pytest.mark.parametrize(("streams", "length"), [(1, 5), (3, 4), (4, 7), (7, 1), (2, 1000)])
def test_validation_predicts_every_token_once_and_streams_continue(tmp_path: Path, streams: int, length: int) -> None:
    text = stored(tmp_path / "store", some_lines(2, 30))
    whole = text.span(0, len(text)).tolist()
    plan = BpttPlan(text, streams, length, shuffled=False)
    read, predicted = streams_of(plan, 3)
    assert [*chain(*predicted)] == whole[1:]
    assert [*chain(*read)] == whole[:-1]
    assert max(map(len, read)) - min(map(len, read)) <= 1
    assert len(plan) == -(-max(map(len, read)) // length)


def test_every_epoch_shifts_the_cuts_of_all_streams(tmp_path: Path) -> None:
    text = stored(tmp_path / "store", some_lines(4, 60))
    whole = text.span(0, len(text)).tolist()
    plan, again = BpttPlan(text, 3, 6, seed=5), BpttPlan(text, 3, 6, seed=5)
    shifts = set()
    for epoch in range(20):
        shift = plan.shift(epoch)
        shifts.add(shift)
        assert 0 <= shift <= plan.skipped
        assert [*chain(*streams_of(plan, epoch)[1])] == whole[1 + shift : len(whole) - plan.skipped + shift]
        spans = plan.spans(epoch, 2)
        assert (spans == again.spans(epoch, 2)).all()  # a pure function: a new plan gives the same
        assert (spans - shift == plan.spans(0, 2) - plan.shift(0)).all()
    assert 6 <= plan.skipped < 6 + 3 * 6
    assert plan.count % (3 * 6) == 0  # every segment is full
    assert len(shifts) > 7
    assert [BpttPlan(text, 3, 6, seed=6).shift(epoch) for epoch in range(9)] != [plan.shift(e) for e in range(9)]


def test_too_little_text_for_the_streams_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"2 tokens, expected at least one for each of 3 streams"):
        BpttPlan(stored(tmp_path / "store", [[5]]), 3, 4)


def test_an_incomplete_last_segment_is_skipped_only_if_it_is_small(tmp_path: Path) -> None:
    plan = BpttPlan(stored(tmp_path / "store", some_lines(4, 60)), 3, 50, seed=5)
    assert plan.skipped == 50


@pytest.mark.parametrize(
    ("before", "least", "segment"), [(0, 20, 7), (9, 20, 4), (8, 30, 8), (20, 25, 50), (5, 1000, 6)]
)
def test_evaluation_predicts_every_token_once_with_context(
    tmp_path: Path, before: int, least: int, segment: int
) -> None:
    text = stored(tmp_path / "store", some_lines(2, 30))
    whole = text.span(0, len(text)).tolist()
    plan = OverlappingBpttPlan(text, segment, context=before, min_tokens=least, max_streams=5)
    assert plan.streams == max(1, min(5, (len(whole) - 1) // least))
    predicted: list[list[int]] = [[] for _ in range(plan.streams)]
    read: list[list[int]] = [[] for _ in range(plan.streams)]
    for stream in range(plan.streams):  # read one at a time or together, the segments are the same
        for number, part in enumerate(plan.epoch(0, slice(stream, stream + 1))):
            together = plan.read(0, number)
            assert (together.source.data[stream] == part.source.data[0]).all()
            assert (together.target[stream] == part.target[0]).all()
            predicted[stream] += part.target[0][part.target[0] != PAD].tolist()
            read[stream] += part.source.data[0][part.source.mask[0]].tolist()
    assert [*chain(*predicted)] == whole[1:]
    for stream, row in enumerate(read):
        assert len(row) - len(predicted[stream]) == (before if stream else 0)
