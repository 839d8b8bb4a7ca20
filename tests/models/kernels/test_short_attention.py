"""Attention kernels for short sequences against torch's own attention."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.models.kernels import fused_layers, short_attention
from dragoman.models.kernels.attention import attention
from dragoman.models.kernels.short_attention import attend_shared, attend_short
from dragoman.models.layers.config import RelativeBiasConfig, RelativeConfig, RelativeSinusoidalConfig
from dragoman.models.layers.kv_cache import FixedCache, SharedCache, SharedEntries
from dragoman.models.layers.positions import Relative, RelativeBias, RelativeSinusoidal
from dragoman.models.layers.self_attention import SelfAttention

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


def plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Tensor | None,
    kept: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """The definition, in float32."""
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    scores = query @ key.transpose(-2, -1) * query.shape[3] ** -0.5 + (0.0 if bias is None else bias)
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


def drawn_bias(kind: str, rows: int, heads: int, queries: int, keys: int) -> Tensor:
    """Shared by all rows in float32, the same as a table of T5 gives it, or of every row in half precision."""
    if kind == "table":
        return torch.randn(queries, keys, heads, device="cuda").permute(2, 0, 1)[None].requires_grad_()
    some = torch.randn(rows if kind == "rows" else 1, heads, queries, keys, device="cuda") * 2
    return (some.bfloat16() if kind == "rows" else some).requires_grad_()


@needs_gpu
@pytest.mark.parametrize("kind", ["shared", "table", "rows"])
@pytest.mark.parametrize("case", CASES)
def test_a_bias_is_added_to_the_scores(case: tuple[int, int, int, int, int, int, bool, bool], kind: str) -> None:
    *sizes, masked, causal = case
    parts, scale = drawn(*sizes), sizes[5] ** -0.5  # type: ignore[arg-type]
    mask, seen = seen_of(sizes[0], sizes[3], sizes[4], masked, causal)
    inputs = [*parts, drawn_bias(kind, sizes[0], sizes[1], sizes[3], sizes[4])]
    assert short_attention.supports(*parts[:2], mask, inputs[3])  # type: ignore[misc]
    out = attention(*parts, mask, inputs[3], causal, 0.0, scale)  # type: ignore[call-arg, arg-type]
    above = torch.randn_like(out)
    found = torch.autograd.grad(out, inputs, above, retain_graph=True)
    for one, other in zip(found, torch.autograd.grad(out, inputs, above), strict=True):
        assert torch.equal(one, other)  # bit for bit: a resumed training repeats its steps
    single = [part.detach().float().requires_grad_() for part in inputs]
    expected = plain(*single[:3], seen, bias=single[3])  # type: ignore[misc]
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)
    for mine, theirs in zip(found, torch.autograd.grad(expected, single, above.float()), strict=True):
        torch.testing.assert_close(mine.float(), theirs, rtol=5e-2, atol=5e-2)


@needs_gpu
@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask"])
@pytest.mark.parametrize("length", [12, 16, 32, 50])  # blocks of 16, 32 and 64 are compiled apart
@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
def test_dropout_is_the_same_on_the_way_back_and_follows_the_seed(biased: bool, length: int, masked: bool) -> None:
    rows, heads, depth, rate = 24, 4, 64, 0.25
    parts = drawn(rows, heads, heads, length, length, depth)
    with torch.no_grad():
        parts[2].copy_(torch.eye(length, depth, device="cuda"))  # then the output is the dropped weights
    real = torch.arange(length, device="cuda") < torch.randint(length // 2, length + 1, (rows, 1), device="cuda")
    mask = real[:, None, None, :] if masked else None
    bias = drawn_bias("table", rows, heads, length, length) if biased else None
    torch.manual_seed(5)
    out = attend_short(*parts, mask, False, rate, depth**-0.5, bias)  # type: ignore[call-arg, arg-type, misc]
    torch.manual_seed(5)
    again = attend_short(*parts, mask, False, rate, depth**-0.5, bias)  # type: ignore[call-arg, arg-type, misc]
    assert torch.equal(out, again)
    weights = plain(parts[0].float(), parts[1].float(), parts[2].float(), mask, bias=bias)
    kept = (out != 0).float() / (1 - rate)
    torch.testing.assert_close(out.float(), weights * kept, rtol=2e-2, atol=1e-3)
    kept = kept[..., :length]
    seen = kept.gt(0) if mask is None else kept.gt(0)[mask.expand_as(kept)]
    assert float(seen.float().mean()) == pytest.approx(1 - rate, abs=0.02)
    above = torch.randn_like(out)
    inputs = parts if bias is None else [*parts, bias]
    found = torch.autograd.grad(out, inputs, above)
    single = [part.detach().float().requires_grad_() for part in inputs]
    theirs_out = plain(*single[:3], mask, kept, *single[3:])  # type: ignore[misc]
    expected = torch.autograd.grad(theirs_out, single, above.float())
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.float(), theirs, rtol=5e-2, atol=5e-2)


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


BIASES = {
    "T5": lambda: RelativeBias(RelativeBiasConfig(buckets=8, distance=12), 4, 16, True),
    "Shaw": lambda: Relative(RelativeConfig(distance=5), 4, 16, True),
    "Transformer-XL": lambda: RelativeSinusoidal(RelativeSinusoidalConfig(), 4, 16, True),
}


@needs_gpu
@pytest.mark.parametrize("captured", [False, True], ids=["plain", "as captured"])
@pytest.mark.parametrize("kind", BIASES)
@pytest.mark.parametrize("width", [1, 3])
@torch.no_grad()
def test_a_beam_step_with_a_bias_is_the_plain_one(
    width: int, kind: str, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, capacity, device = 3, 20, torch.device("cuda")
    rows = sources * width
    torch.manual_seed(width)
    layer = SelfAttention(64, 4, key_heads=2, bias=False, relative=BIASES[kind]()).to(device).bfloat16().eval()
    if hasattr(layer.relative, "table"):
        layer.relative.table.normal_()  # large enough to be seen
    entries = [SharedEntries.empty(sources, width, capacity, device) for _ in range(2)]
    empty: Any = layer.init_cache(sources, capacity, torch.zeros((), device=device, dtype=torch.bfloat16))
    assert isinstance(empty, FixedCache)
    caches = [SharedCache.like(empty, some) for some in entries]
    first = torch.arange(rows, device=device) // width * width
    for step in range(capacity):
        parents, length = first + torch.randint(width, (rows,), device=device), torch.tensor(step, device=device)
        x = torch.randn(rows, 1, 64, device=device).bfloat16()
        for some in entries:
            some.advance(parents, length)
        with fused_layers.enabled() if captured else nullcontext():
            found, _ = layer.extend(x, caches[0], length)
        with monkeypatch.context() as patch:
            patch.setattr(short_attention, "shares", lambda *given: False)
            expected, _ = layer.extend(x, caches[1], length)
        torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
