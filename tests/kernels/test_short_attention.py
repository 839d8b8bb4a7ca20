"""Attention kernels for short sequences against torch's own attention."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.kernels import short_attention
from dragoman.kernels.short_attention import attend_shared, attend_short
from dragoman.layers.kv_cache import SharedEntries

needs_gpu = pytest.mark.gpu
CASES = [
    # rows, heads, key heads, queries, keys, depth, masked, causal
    (3, 4, 4, 32, 32, 64, True, False),
    (2, 4, 2, 17, 17, 32, False, True),
    (2, 2, 1, 5, 40, 16, True, False),
    (2, 2, 2, 64, 33, 64, True, False),
]


def drawn(rows: int, heads: int, key_heads: int, queries: int, keys: int, depth: int) -> list[Tensor]:
    """Queries, keys, values as a fused projection leaves them: heads side by side."""
    torch.manual_seed(queries)
    shapes = ((queries, heads), (keys, key_heads), (keys, key_heads))
    parts = [torch.randn(rows, length, number, depth, device="cuda") for length, number in shapes]
    return [part.transpose(1, 2).bfloat16().requires_grad_() for part in parts]


def plain(query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None, kept: Tensor | None = None) -> Tensor:
    """The definition, in float32."""
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    scores = query @ key.transpose(-2, -1) * query.shape[3] ** -0.5
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = scores.softmax(-1).nan_to_num(0.0)
    return (weights if kept is None else weights * kept) @ value


def seen_of(rows: int, queries: int, keys: int, masked: bool, causal: bool) -> tuple[Tensor | None, Tensor]:
    mask = None
    seen = torch.ones(rows, 1, queries, keys, dtype=torch.bool, device="cuda")
    if masked:
        lengths = torch.tensor([keys, 1, 0][:rows], device="cuda")  # the last source has nothing to look at
        mask = (torch.arange(keys, device="cuda") < lengths[:, None])[:, None, None, :]
        seen = seen & mask
    if causal:
        seen = seen.tril()
    return mask, seen


@needs_gpu
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_those_of_plain_attention(
    case: tuple[int, int, int, int, int, int, bool, bool],
) -> None:
    *sizes, masked, causal = case
    parts = drawn(*sizes)  # type: ignore[arg-type]
    mask, seen = seen_of(sizes[0], sizes[3], sizes[4], masked, causal)
    assert short_attention.supports(parts[0], parts[1], mask)
    out = attend_short(*parts, mask, causal, 0.0, sizes[5] ** -0.5)  # type: ignore[call-arg]
    above = torch.randn_like(out)
    found = torch.autograd.grad(out, parts, above)
    single = [part.detach().float().requires_grad_() for part in parts]
    expected = plain(*single, seen)  # type: ignore[call-arg]
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)
    for mine, theirs in zip(found, torch.autograd.grad(expected, single, above.float()), strict=True):
        torch.testing.assert_close(mine.float(), theirs, rtol=5e-2, atol=5e-2)


@needs_gpu
def test_dropout_is_the_same_on_the_way_back_and_follows_the_seed() -> None:
    rows, heads, length, depth, rate = 8, 4, 32, 32, 0.25
    parts = drawn(rows, heads, heads, length, length, depth)
    with torch.no_grad():
        parts[2].copy_(torch.eye(length, device="cuda"))  # then the output is the dropped weights
    torch.manual_seed(5)
    out = attend_short(*parts, None, False, rate, depth**-0.5)  # type: ignore[call-arg]
    torch.manual_seed(5)
    assert torch.equal(out, attend_short(*parts, None, False, rate, depth**-0.5))  # type: ignore[call-arg]
    weights = plain(parts[0].float(), parts[1].float(), parts[2].float(), None)
    kept = (out != 0).float() / (1 - rate)
    torch.testing.assert_close(out.float(), weights * kept, rtol=2e-2, atol=1e-3)
    assert float(kept.gt(0).float().mean()) == pytest.approx(1 - rate, abs=0.01)
    above = torch.randn_like(out)
    found = torch.autograd.grad(out, parts, above)
    single = [part.detach().float().requires_grad_() for part in parts]
    expected = torch.autograd.grad(plain(*single, None, kept), single, above.float())  # type: ignore[call-arg]
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.float(), theirs, rtol=5e-2, atol=5e-2)


@needs_gpu
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")  # inductor's own
def test_compiled_code_may_hold_it() -> None:
    parts = drawn(2, 4, 4, 16, 16, 32)

    def layer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.relu(attend_short(query, key, value, None, True, 0.0, 0.2)).float().sum()

    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    expected = torch.autograd.grad(layer(*parts), parts)
    for mine, theirs in zip(torch.autograd.grad(compiled(*parts), parts), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


@needs_gpu
@pytest.mark.parametrize("width", [1, 3, 5])
def test_hypotheses_attend_to_their_own_prefixes(width: int) -> None:
    sources, heads, depth, capacity = 4, 2, 16, 40
    rows = sources * width
    torch.manual_seed(width)
    entries = SharedEntries.empty(sources, width, capacity, torch.device("cuda"))
    cache = [torch.zeros(sources, heads, capacity * width, depth, device="cuda").bfloat16() for _ in range(2)]
    first = torch.arange(rows, device="cuda") // width * width
    prefixes: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(rows)]
    for step in range(capacity):
        parents = first + torch.randint(width, (rows,), device="cuda")
        entries.advance(parents, torch.tensor(step, device="cuda"))
        query, key, value = (torch.randn(rows, heads, 1, depth, device="cuda").bfloat16() for _ in range(3))
        found = attend_shared(
            query, (key, value), (cache[0], cache[1]), entries, torch.tensor([step], device="cuda"), 0.3
        )
        prefixes = [[*prefixes[parent], (key[row], value[row])] for row, parent in enumerate(parents.tolist())]
        for row, prefix in enumerate(prefixes):
            keys, values = (torch.cat([pair[part] for pair in prefix], 1).float() for part in (0, 1))
            weights = (query[row].float() @ keys.transpose(1, 2) * 0.3).softmax(-1)
            torch.testing.assert_close(found[row].float(), weights @ values, atol=0.03, rtol=0.03)
