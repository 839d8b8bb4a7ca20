"""vᵀ tanh(q + k) and its way back as one kernel each, for NVIDIA GPUs; see `additive` for the same in plain torch."""

# ruff: noqa: N803  constants of a kernel are spelled as constants
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator, misc, import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dragoman.kernels.additive_score import Comparison

PLACES, COLUMNS = 16, 128  # of a tile


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _forward(
    query, keys, vector, scores, fan, places,
    WIDTH: tl.constexpr, PLACES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)  # of B·n queries
    place = tl.program_id(1) * PLACES + tl.arange(0, PLACES)
    column = tl.arange(0, COLUMNS)
    base = (row // fan).to(tl.int64) * places * WIDTH
    total = tl.zeros((PLACES,), dtype=tl.float32)
    for first in range(0, WIDTH, COLUMNS):
        here = first + column
        inside = here < WIDTH
        q = tl.load(query + row * WIDTH + here, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(vector + here, mask=inside, other=0.0).to(tl.float32)
        real = (place < places)[:, None] & inside[None, :]
        k = tl.load(keys + base + place[:, None] * WIDTH + here[None, :], mask=real, other=0.0).to(tl.float32)
        total += tl.sum(_tanh(q[None, :] + k) * v[None, :], 1)
    tl.store(scores + row * places + place, total, mask=place < places)


@triton.jit
def _backward(
    query, keys, vector, gradient, d_query, d_keys, d_vector, fan, places,
    WIDTH: tl.constexpr, PLACES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    source = tl.program_id(0)
    here = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = here < WIDTH
    base = source.to(tl.int64) * places * WIDTH
    v = tl.load(vector + here, mask=inside, other=0.0).to(tl.float32)
    of_vector = tl.load(d_vector + source * WIDTH + here, mask=inside, other=0.0)
    for number in range(fan):
        row = source * fan + number
        q = tl.load(query + row * WIDTH + here, mask=inside, other=0.0).to(tl.float32)
        of_query = tl.zeros((COLUMNS,), dtype=tl.float32)
        for first in range(0, places, PLACES):
            place = first + tl.arange(0, PLACES)
            real = (place < places)[:, None] & inside[None, :]
            spot = base + place[:, None] * WIDTH + here[None, :]
            k = tl.load(keys + spot, mask=real, other=0.0).to(tl.float32)
            g = tl.load(gradient + row * places + place, mask=place < places, other=0.0).to(tl.float32)
            bent = _tanh(q[None, :] + k)
            slope = (1.0 - bent * bent) * g[:, None]
            of_query += tl.sum(slope, 0)
            of_vector += tl.sum(bent * g[:, None], 0)
            # Only this program sees these columns of this source, so nothing need be atomic.
            tl.store(d_keys + spot, tl.load(d_keys + spot, mask=real, other=0.0) + slope, mask=real)
        tl.store(d_query + row * WIDTH + here, (of_query * v).to(d_query.dtype.element_ty), mask=inside)
    tl.store(d_vector + source * WIDTH + here, of_vector, mask=inside)


class KernelComparison(Comparison):
    """Nothing of (B, S, A) is kept but the keys and, going back, their gradient."""

    def __init__(self, vector: Tensor, keys: Tensor) -> None:
        super().__init__(vector, keys.contiguous())

    def begin(self) -> tuple[Tensor, Tensor]:
        """See Comparison; v's gradient source by source."""
        zeros = torch.zeros(self.keys.shape, dtype=torch.float32, device=self.keys.device)
        return zeros, zeros.new_zeros(zeros.shape[0], zeros.shape[2])

    def finish(self, d_keys: Tensor, d_vector: Tensor) -> tuple[Tensor, Tensor]:
        """See Comparison."""
        keys_type, vector_type, shape = self.types
        return d_keys.mul_(self.vector).to(keys_type), d_vector.sum(0).view(shape).to(vector_type)

    def forward(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """See Comparison; the scores in float32."""
        query = query.contiguous()
        sources, fan, width = query.shape
        places = self.keys.shape[1]
        scores = torch.empty(sources, fan, places, dtype=torch.float32, device=query.device)
        _forward[(sources * fan, triton.cdiv(places, PLACES))](
            query, self.keys, self.vector, scores, fan, places, WIDTH=width, PLACES=PLACES, COLUMNS=COLUMNS
        )
        return scores, query

    def backward(self, query: Tensor, gradient: Tensor) -> Tensor:
        """See Comparison."""
        d_keys, d_vector = self.gathered()
        sources, fan, width = query.shape
        d_query = torch.empty_like(query)
        _backward[(sources, triton.cdiv(width, COLUMNS))](
            query, self.keys, self.vector, gradient, d_query, d_keys, d_vector, fan, self.keys.shape[1],
            WIDTH=width, PLACES=PLACES, COLUMNS=COLUMNS,
        )  # fmt: skip
        return d_query
