"""Parameter counts of published models, from the layers they are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.inspect.views.layer_table import parameter_count
from dragoman.models.layers.cells import LSTMConfig, RNNConfig, build_cell
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.pooling import TimeAttention


def run(cell: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = cell(x, cell.start(x.shape[0]))[0]  # type: ignore[operator]
    return out


def test_plain_recurrence_and_dense() -> None:
    cell, dense = build_cell(RNNConfig(), 1, 2), nn.Linear(2, 1)
    assert [parameter_count(part) for part in (cell, dense)] == [8, 3]
    assert dense(run(cell, torch.randn(4, 20, 1))[:, -1]).shape == (4, 1)


def test_plain_recurrence_with_attention_over_time() -> None:
    cell, attention, dense = build_cell(RNNConfig(), 1, 2), TimeAttention(2, 20), nn.Linear(2, 1)
    assert [parameter_count(part) for part in (cell, attention, dense)] == [8, 22, 3]
    assert dense(attention(run(cell, torch.randn(4, 20, 1)))).shape == (4, 1)


def test_attention_over_time_is_its_equation() -> None:
    attention = TimeAttention(3, 5).double()
    attention.bias.data = torch.randn(5, dtype=torch.float64)
    states = torch.randn(2, 5, 3, dtype=torch.float64)
    mask = torch.tensor([[True] * 5, [True, True, False, True, False]])
    found = attention(states, mask)
    for row in range(2):
        real = mask[row].nonzero()[:, 0].tolist()
        scores = [torch.tanh(states[row, step] @ attention.weight + attention.bias[step]).exp() for step in real]
        expected = sum(score * states[row, step] for score, step in zip(scores, real, strict=True)) / sum(scores)
        torch.testing.assert_close(found[row], expected, rtol=0.0, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: attention(x, mask), states.requires_grad_())


def test_two_lstms_and_dense() -> None:
    first, second, dense = build_cell(LSTMConfig(), 1, 100), build_cell(LSTMConfig(), 100, 100), nn.Linear(100, 2)
    assert [parameter_count(part) for part in (first, second, dense)] == [40_800, 80_400, 202]
    assert dense(run(second, run(first, torch.randn(3, 7, 1)))[:, -1]).shape == (3, 2)


def test_embedding_lstm_and_dense() -> None:
    embedding, cell, dense = TokenEmbedding(20_000, 128, 0), build_cell(LSTMConfig(), 128, 128), nn.Linear(128, 1)
    assert [parameter_count(part) for part in (embedding, cell, dense)] == [2_560_000, 131_584, 129]
    assert dense(run(cell, embedding(torch.tensor([[4, 5, 19_999]])))[:, -1]).shape == (1, 1)
