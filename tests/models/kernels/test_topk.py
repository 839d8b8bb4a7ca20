"""The best of many scores, against torch's own functions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dragoman.models.kernels.cpu_matmul import lay_out_for_decoding
from dragoman.models.kernels.top_k import CHUNK, MIN_COLUMNS, argmax, topk


@pytest.mark.parametrize("size", [5, MIN_COLUMNS, MIN_COLUMNS + 1, MIN_COLUMNS + CHUNK - 1, 3 * MIN_COLUMNS + 7])
def test_the_best_are_those_of_torch(size: int) -> None:
    torch.manual_seed(1)
    scores = torch.randn(40, size)
    scores[1, size // 2 :] = float("-inf")
    scores[2] = float("-inf")
    scores[2, -3] = 0.0  # in the rest that fills no chunk
    scores[3] = scores[3].round()  # many are equal: the first is taken
    assert torch.equal(argmax(scores), scores.argmax(-1))
    for count in (1, 5, 10):
        if count > size:
            continue
        values, places = topk(scores, count)
        assert torch.equal(values, scores.topk(count, 1).values)
        assert torch.equal(scores.gather(1, places), values)
        assert all(len(set(row)) == count for row in places.tolist())


def test_nan_is_found_first_as_torch_does() -> None:
    scores = torch.zeros(2, MIN_COLUMNS)
    scores[1, 70] = float("nan")
    assert argmax(scores).tolist() == [0, 70]


def test_a_layout_changes_neither_shapes_nor_shared_tables_nor_values() -> None:
    torch.manual_seed(1)
    table = nn.Embedding(50, 8)
    model = nn.Sequential(table, nn.Linear(8, 8), nn.Linear(8, 50))
    model[2].weight = table.weight  # type: ignore[assignment]
    tokens = torch.randint(50, (4, 6))
    before = model(tokens)
    lay_out_for_decoding(model)
    assert model[2].weight is table.weight
    assert table.weight.shape == (50, 8)
    assert torch.allclose(model(tokens), before, atol=1e-6)
    if not torch.backends.mkl.is_available():
        assert model[1].weight.T.is_contiguous()  # type: ignore[operator, union-attr]
