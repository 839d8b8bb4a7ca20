"""The kernels for training on a CPU against torch."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.long_work import Abandoned, check_interrupted, interruptible
from dragoman.data.collate import PAIR_COLLATOR
from dragoman.decoding.config import SearchConfig
from dragoman.inference.search_work import BatchSearch
from dragoman.models.kernels import cpu_attention as small_attention
from dragoman.models.kernels.cpu_dropout import Dropout, dropout, keep_mask
from dragoman.models.kernels.cpu_matmul import batched_matmul
from dragoman.models.kernels.cpu_workers import map_batches
from dragoman.models.kernels.uninitialised import Uninitialised
from dragoman.models.layers.attention import attend

PRECISIONS = [(torch.float32, 1e-5), (torch.float64, 1e-10)]


def gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Of a sum with fixed weights, so that no two places count alike."""
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return list(torch.autograd.grad((out * weights).sum(), inputs))


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.9])
def test_dropout_has_its_rate_and_keeps_the_mean(rate: float) -> None:
    torch.manual_seed(1)
    count = 2_000_000
    mask = keep_mask((count // 1000, 1000), rate, torch.empty(0))
    dropped = float((mask == 0).double().mean())
    deviation = math.sqrt(rate * (1 - rate) / count)
    assert abs(dropped - rate) < 5 * deviation + 1 / 65536
    assert abs(float(mask.double().mean()) - 1) < 6 * deviation / (1 - rate)
    assert abs(float(mask.double().var()) * (1 - rate) / rate - 1) < 0.02
    assert set(mask.unique().tolist()) == {0.0, float(torch.tensor(65536 / round((1 - rate) * 65536)))}


def test_dropped_numbers_are_independent() -> None:
    torch.manual_seed(2)
    first, second = (keep_mask((500_000,), 0.3, torch.empty(0)) == 0 for _ in range(2))
    for shift in range(1, 9):  # four draws share a word: neighbours must not know of each other
        assert abs(float((first[shift:] & first[:-shift]).double().mean()) - 0.09) < 0.003
    assert abs(float((first & second).double().mean()) - 0.09) < 0.003


def test_dropout_follows_from_the_seed() -> None:
    x = torch.randn(7, 33)
    layer = Dropout(0.4)
    torch.manual_seed(5)
    first, then = layer(x), layer(x)
    torch.manual_seed(5)
    assert torch.equal(first, layer(x))
    assert torch.equal(then, layer(x))
    assert not torch.equal(first, then)
    assert torch.equal(layer.eval()(x), x)


@pytest.mark.parametrize("rate", [0.0, 1e-7, 1.0])
def test_dropout_at_its_ends(rate: float) -> None:
    x = torch.randn(50, 50)
    assert torch.allclose(dropout(x, rate), torch.zeros_like(x) if rate == 1.0 else x)


def test_gradients_pass_where_numbers_did() -> None:
    x = torch.randn(40, 40, requires_grad=True)
    out = dropout(x, 0.5)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.allclose(gradient * x, out)
    assert {0.0, 2.0} == set(gradient.unique().tolist())


@pytest.mark.parametrize("threads", [1, 2])
def test_batched_products(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a, b = torch.randn(5, 4, 33, 64), torch.randn(5, 64, 4, 65).transpose(1, 2)
        out = torch.empty(5, 33, 4, 65).transpose(1, 2)
        assert torch.allclose(batched_matmul(a, b, out), a @ b, atol=1e-4)
        assert torch.allclose(
            batched_matmul(b.transpose(-2, -1), a.transpose(-2, -1)), (a @ b).transpose(-2, -1), atol=1e-4
        )
    finally:
        torch.set_num_threads(before)


def masks(rows: int, length: int, seen: int) -> dict[str, Tensor | None]:
    real = torch.ones(rows, 1, 1, seen, dtype=torch.bool)
    real[1, ..., seen // 2 :] = False
    nothing = real.clone()
    nothing[0] = False
    pairs = torch.rand(rows, 1, length, seen, generator=torch.Generator().manual_seed(3)) < 0.4
    return {"none": None, "padding": real, "a row without keys": nothing, "pairs": pairs}


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("rows", [0, 1, 3], ids=["no bias", "one bias", "a bias of each row"])
@pytest.mark.parametrize("kind", ["none", "padding", "a row without keys", "pairs", "causal"])
def test_small_attention_is_torchs(
    dtype: torch.dtype, tolerance: float, kind: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_attention, "slow_batched_matmul", lambda x: True)
    torch.manual_seed(1)
    causal = kind == "causal"
    length, seen = 5, 5 if causal else 7
    packed = torch.randn(3, length, 2, 4, dtype=dtype, requires_grad=True)  # heads side by side, as they come
    key = torch.randn(3, 2, seen, 4, dtype=dtype, requires_grad=True)
    value = torch.randn(3, 2, seen, 4, dtype=dtype, requires_grad=True)
    bias = torch.randn(rows, 2, length, seen, dtype=dtype, requires_grad=True) if rows else None
    inputs = [packed, key, value, *([] if bias is None else [bias])]
    mask = None if causal else masks(3, length, seen)[kind]
    query = packed.transpose(1, 2)
    assert small_attention.supports(query, key, value, 0.0)
    ours = attend(nn.Identity(), query, key, value, mask=mask, bias=bias, causal=causal)
    seen_by = torch.ones(length, seen, dtype=torch.bool).tril() if causal and bias is not None else mask
    added = seen_by
    if bias is not None:
        added = bias if seen_by is None else bias.masked_fill(~seen_by, -torch.inf)
    plain = F.scaled_dot_product_attention(query, key, value, attn_mask=added, is_causal=causal and bias is None)
    if mask is not None:  # torch itself gives NaN or anything where there is nothing to see
        plain = torch.where(mask.any(-1, keepdim=True), plain.nan_to_num(), 0.0)
    assert torch.allclose(ours, plain, atol=tolerance)
    if kind not in ("a row without keys", "pairs"):
        for one, other in zip(gradients(ours, inputs), gradients(plain, inputs), strict=True):
            assert torch.allclose(one, other, atol=tolerance)
    assert all(
        bool(part.isfinite().all())
        for part in gradients(attend(nn.Identity(), query, key, value, mask=mask, bias=bias), inputs)
    )


def test_small_attention_drops_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_attention, "slow_batched_matmul", lambda x: True)
    query, key, value = (torch.randn(2, 2, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    torch.manual_seed(9)
    ours = attend(nn.Identity(), query, key, value, dropout=0.5)
    torch.manual_seed(9)
    drops = keep_mask((2, 2, 6, 6), 0.5, query)
    plain = ((query @ key.transpose(-2, -1) / 2).softmax(-1) * drops) @ value
    assert torch.allclose(ours, plain, atol=1e-10)
    inputs = [query, key, value]
    for one, other in zip(gradients(ours, inputs), gradients(plain, inputs), strict=True):
        assert torch.allclose(one, other, atol=1e-10)


def test_parameters_that_a_file_has_are_not_drawn() -> None:
    before = torch.get_rng_state()
    with Uninitialised():
        layer = nn.Linear(5, 7)
        nn.init.xavier_uniform_(layer.weight)
        nn.init.kaiming_normal_(layer.weight)
    assert torch.equal(torch.get_rng_state(), before)
    with Uninitialised():
        assert torch.zeros(3).uniform_(1, 2).min() >= 1, "no file has it"


def test_batches_on_all_cores_come_in_order_and_stop_with_their_caller() -> None:
    before, seen = torch.get_num_threads(), []

    def work(number: int) -> int:
        seen.append((number, torch.get_num_threads()))
        for _ in range(10_000 if number == 1 else 0):  # as a long search
            check_interrupted()
            time.sleep(0.001)
        if number == 2:
            raise ValueError("two")
        return number

    assert list(map_batches(work, [5, 4, 3, 6, 7, 8], 2)) == [5, 4, 3, 6, 7, 8]
    assert {threads for _, threads in seen} == {1}
    with pytest.raises(ValueError, match="two"):
        list(map_batches(work, [2, 1, *range(9, 100)], 2))
    assert len(seen) < 20, "batches that nobody waits for are not begun"
    with interruptible(lambda: True), pytest.raises(Abandoned):
        list(map_batches(work, [1, 1], 2))
    assert torch.get_num_threads() == before


def test_cores_share_batches_evenly_and_begin_with_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[int]] = []

    def search_batch(self: Any, indices: list[int], batch: Any, automata: Any, traced: Any) -> list[Any]:
        found.append(indices)
        return [(index, []) for index in indices]

    monkeypatch.setattr(BatchSearch, "_search_batch", search_batch)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    sources = [[5] * length for length in (3, 9, 1, 8, 2, 7, 4, 6, 5)]
    how = BatchSearch(None, torch.device("cpu"), PAIR_COLLATOR, SearchConfig(), 1.0, 1, 4, None, str)
    results = list(how.results(sources, None, ()))
    assert sorted(index for index, _ in results) == list(range(9))
    lengths = sorted([[len(sources[index]) for index in batch] for batch in found], reverse=True)
    assert lengths == [[9, 8, 7], [6, 5, 4], [3, 2, 1]]  # 4, 4 and 1 sources would leave a core waiting


@pytest.mark.parametrize(("width", "batches"), [(100, [9]), (10_000, [4, 5])])
def test_cores_share_a_batch_only_where_its_steps_are_large(
    width: int, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    monkeypatch.setattr(BatchSearch, "_search_batch", lambda self, indices, *_: found.append(len(indices)) or [])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with torch.device("meta"):
        model = torch.nn.Linear(width, width)
    how = BatchSearch(model, torch.device("cpu"), PAIR_COLLATOR, SearchConfig(), 1.0, 1, 32, None, str)
    list(how.results([[5, 6]] * 9, None, ()))
    assert sorted(found) == batches
