"""Key-value caches: which of them are values, which write in place, and that a compiler can trace them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.models.contracts import State, map_tensors
from dragoman.models.layers.kv_cache import FixedCache, GrowingCache, NoCache, SharedCache, SharedEntries
from dragoman.models.layers.self_attention import SelfAttention

ROWS, HEADS, DEPTH = 2, 2, 3


def parts(length: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, HEADS, length, DEPTH), torch.randn(rows, HEADS, length, DEPTH)


def test_a_growing_cache_is_a_value() -> None:
    first, second = parts(3), parts(2)
    before = GrowingCache(*parts(0)).update(*first, torch.arange(3)).cache
    kept = map_tensors(before, torch.clone)
    after = before.update(*second, torch.arange(3, 5))
    for old, copy, new, more in zip(before, kept, after.cache, second, strict=True):
        assert torch.equal(old, copy)
        assert torch.equal(new, torch.cat([old, more], 2))
    assert after.cache.drop(4).keys.shape[2] == 1


def test_a_fixed_cache_writes_at_the_positions_and_keeps_its_address() -> None:
    cache, new = FixedCache(*parts(6)), parts(2)
    address = cache.keys.data_ptr()
    seen = cache.update(*new, torch.tensor([3, 4]))
    assert seen.cache.keys.data_ptr() == address
    for buffer, written in zip(seen.cache, new, strict=True):
        assert torch.equal(buffer[:, :, 3:5], written)


def test_hypotheses_write_side_by_side_into_a_shared_cache() -> None:
    entries = SharedEntries.empty(2, 3, 4, torch.device("cpu"))  # two sources, three hypotheses, four positions
    cache = SharedCache.like(FixedCache(*parts(4)), entries)
    key, value = parts(1, rows=6)
    seen = cache.update(key, value, torch.tensor([2]))
    assert seen.hypotheses == 3
    assert seen.visible is not None
    assert seen.visible.shape == (2, 1, 3, 12)
    for row in range(6):
        assert torch.equal(seen.keys[row // 3, :, 2 * 3 + row % 3], key[row, :, 0])
        assert torch.equal(seen.values[row // 3, :, 2 * 3 + row % 3], value[row, :, 0])


@pytest.mark.parametrize(
    "cache", [NoCache(), GrowingCache(*parts(3)), FixedCache(*parts(3))], ids=lambda c: type(c).__name__
)
def test_a_state_keeps_the_kind_of_its_caches(cache: Any) -> None:
    state = State(static=(), cache=(cache,), length=3)
    rows = torch.tensor([1, 1])
    for changed in (state.select(rows), state.reorder(rows), state.expand(2), state.detach()):
        assert type(changed.cache[0]) is type(cache)


@pytest.mark.parametrize("cached", [False, True])
def test_a_compiler_traces_the_caches_in_one_graph(cached: bool) -> None:
    torch.manual_seed(0)
    layer, x = SelfAttention(8, 2), torch.randn(2, 5, 8)
    past = layer.init_cache(2, None, like=x) if cached else NoCache()
    compiled = torch.compile(layer.extend, backend="eager", fullgraph=True, dynamic=True)
    out, cache = compiled(x, past, 0)
    expected, _ = layer.extend(x, past, 0)
    torch.testing.assert_close(out, expected)
    assert type(cache) is type(past)
