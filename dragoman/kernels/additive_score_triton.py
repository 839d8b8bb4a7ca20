"""Triton kernels for vᵀ tanh(q + k) and its backward pass; `additive_score` has the same in plain torch.

Imported on GPUs only.
"""

# ruff: noqa: N803  constants of a kernel are spelled as constants
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator, misc, import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

POSITIONS, COLUMNS = 16, 128  # of a tile


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _forward(
    query, keys, vector, scores, queries, positions,
    WIDTH: tl.constexpr, POSITIONS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)  # of B·n queries
    position = tl.program_id(1) * POSITIONS + tl.arange(0, POSITIONS)
    column = tl.arange(0, COLUMNS)
    base = (row // queries).to(tl.int64) * positions * WIDTH
    total = tl.zeros((POSITIONS,), dtype=tl.float32)
    for first in range(0, WIDTH, COLUMNS):
        columns = first + column
        inside = columns < WIDTH
        q = tl.load(query + row * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(vector + columns, mask=inside, other=0.0).to(tl.float32)
        real = (position < positions)[:, None] & inside[None, :]
        k = tl.load(keys + base + position[:, None] * WIDTH + columns[None, :], mask=real, other=0.0).to(tl.float32)
        total += tl.sum(_tanh(q[None, :] + k) * v[None, :], 1)
    tl.store(scores + row * positions + position, total, mask=position < positions)


@triton.jit
def _backward(
    query, keys, vector, gradient, d_query, d_keys, d_vector, queries, positions,
    WIDTH: tl.constexpr, POSITIONS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    source = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < WIDTH
    base = source.to(tl.int64) * positions * WIDTH
    v = tl.load(vector + columns, mask=inside, other=0.0).to(tl.float32)
    vector_sum = tl.load(d_vector + source * WIDTH + columns, mask=inside, other=0.0)
    for query_index in range(queries):
        row = source * queries + query_index
        q = tl.load(query + row * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
        query_sum = tl.zeros((COLUMNS,), dtype=tl.float32)
        for first in range(0, positions, POSITIONS):
            position = first + tl.arange(0, POSITIONS)
            real = (position < positions)[:, None] & inside[None, :]
            index = base + position[:, None] * WIDTH + columns[None, :]
            k = tl.load(keys + index, mask=real, other=0.0).to(tl.float32)
            g = tl.load(gradient + row * positions + position, mask=position < positions, other=0.0).to(tl.float32)
            tanh = _tanh(q[None, :] + k)
            slope = (1.0 - tanh * tanh) * g[:, None]
            query_sum += tl.sum(slope, 0)
            vector_sum += tl.sum(tanh * g[:, None], 0)
            # Only this program sees these columns of this source, so nothing need be atomic.
            tl.store(d_keys + index, tl.load(d_keys + index, mask=real, other=0.0) + slope, mask=real)
        tl.store(d_query + row * WIDTH + columns, (query_sum * v).to(d_query.dtype.element_ty), mask=inside)
    tl.store(d_vector + source * WIDTH + columns, vector_sum, mask=inside)


def forward(query: Tensor, keys: Tensor, vector: Tensor) -> Tensor:
    """Scores (B, n, S) in float32 of queries (B, n, A) against keys (B, S, A), both contiguous."""
    sources, queries, width = query.shape
    positions = keys.shape[1]
    scores = torch.empty(sources, queries, positions, dtype=torch.float32, device=query.device)
    _forward[(sources * queries, triton.cdiv(positions, POSITIONS))](
        query, keys, vector, scores, queries, positions, WIDTH=width, POSITIONS=POSITIONS, COLUMNS=COLUMNS
    )
    return scores


def backward(query: Tensor, keys: Tensor, vector: Tensor, gradient: Tensor, d_keys: Tensor, d_vector: Tensor) -> Tensor:
    """The gradient of the queries; adds those of keys (B, S, A), before the factor v, and of v (B, A) to the sums."""
    sources, queries, width = query.shape
    d_query = torch.empty_like(query)
    _backward[(sources, triton.cdiv(width, COLUMNS))](
        query, keys, vector, gradient, d_query, d_keys, d_vector, queries, keys.shape[1],
        WIDTH=width, POSITIONS=POSITIONS, COLUMNS=COLUMNS,
    )  # fmt: skip
    return d_query
