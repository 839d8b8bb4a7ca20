"""Every kind of self-attention against plain sums over the visible pairs, in one call and step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from dragoman.models.contracts import map_tensors
from dragoman.models.layers import self_attention as linear
from dragoman.models.layers.attention import Cache, observe_attention
from dragoman.models.layers.config import (
    FullConfig,
    LinearConfig,
    LocalConfig,
    PositionsConfig,
    RelativeBiasConfig,
    RelativeConfig,
    RotaryConfig,
    SegmentsConfig,
    SelfAttentionConfig,
    SinusoidalConfig,
)
from dragoman.models.layers.positions import Relative, RelativeBias, RelativePositions, build_relative_positions
from dragoman.models.layers.self_attention import SELF_ATTENTIONS, SelfAttention

CLOSE = {"rtol": 0.0, "atol": 1e-10}
WIDTH, HEADS, DEPTH = 8, 4, 2
SIZE = 3  # of windows and segments
KINDS: list[SelfAttentionConfig] = [FullConfig(), LocalConfig(SIZE), SegmentsConfig(SIZE), LinearConfig()]
LENGTHS = [1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13]  # around the borders of blocks
POSITIONS: list[PositionsConfig] = [
    SinusoidalConfig(),
    RotaryConfig(base=20.0),
    RelativeConfig(distance=2),
    RelativeBiasConfig(buckets=4, distance=5),
]


def kind_of(config: Any) -> str:
    return str(config.kind) if hasattr(config, "kind") else str(config)


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(11)
    yield
    torch.set_default_dtype(torch.float32)


def build(
    config: SelfAttentionConfig,
    positions: PositionsConfig = POSITIONS[0],
    score: str = "scaled-dot",
    key_heads: int = 2,
    causal: bool = False,
) -> SelfAttention:
    relative = build_relative_positions(positions, 1, HEADS, DEPTH, causal=causal)[0]
    layer = SELF_ATTENTIONS[type(config)](
        WIDTH, HEADS, config=config, key_heads=key_heads, score=score, relative=relative
    )
    with torch.no_grad():
        for part in layer.parameters():
            part.add_(0.5 * torch.randn_like(part))
    return layer.eval()


# --- The plain way ----------------------------------------------------------------------------------------------------


def seen_by(config: SelfAttentionConfig, query: int, key: int, causal: bool) -> bool:
    """What the kind's definition says of two positions."""
    if causal and key > query:
        return False
    if isinstance(config, LocalConfig):
        return abs(query - key) <= config.window
    if isinstance(config, SegmentsConfig):
        return key // config.length in (query // config.length, query // config.length - 1)
    return True


def turned(x: Tensor) -> Tensor:
    """Heads of two numbers have one pair, turned by one radian a place."""
    turns = [torch.tensor([[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]]) for t in range(x.shape[2])]
    return torch.einsum("tij,bhtj->bhti", torch.stack(turns), x)


def raw_weights(layer: SelfAttention, config: SelfAttentionConfig, query: Tensor, key: Tensor) -> Tensor:
    """(B, H, T, S): what keys weigh for queries before it is shared out."""
    if isinstance(config, LinearConfig):
        return torch.einsum("bhtd,bhsd->bhts", F.elu(query) + 1, F.elu(key) + 1)
    length = query.shape[2]
    scale = 1.0
    if type(layer.score).__name__ == "ScaledDot":
        scale = 1 / math.sqrt(DEPTH)
    if type(layer.score).__name__ == "Cosine":
        query, key = query / query.norm(dim=-1, keepdim=True), key / key.norm(dim=-1, keepdim=True)
        query = query * layer.score.sharpness.exp()
    relative = layer.relative
    if type(relative).__name__ == "Rotary":
        query, key = turned(query), turned(key)
    scores = torch.einsum("bhtd,bhsd->bhts", query, key) * scale
    if isinstance(relative, Relative):
        clipped = [[max(-2, min(relative.ahead, s - t)) + 2 for s in range(length)] for t in range(length)]
        scores = scores + torch.einsum("bhtd,tsd->bhts", query, relative.table[torch.tensor(clipped)]) * scale
    if isinstance(relative, RelativeBias):
        apart = torch.tensor([[s - t for s in range(length)] for t in range(length)])
        scores = scores + relative.table[relative.bucket(apart)].movedim(-1, 0)
    return scores.exp()


def plainly(
    layer: SelfAttention, config: SelfAttentionConfig, x: Tensor, mask: Tensor, causal: bool
) -> tuple[Tensor, Tensor]:
    """Outputs (B, T, D) and weights (B, H, T, S), over all pairs at once."""
    rows, length, _ = x.shape
    key_width = layer.key_heads * DEPTH
    query, key, value = F.linear(x, layer.project.weight, layer.project.bias).split([WIDTH, key_width, key_width], -1)
    owner = [head // (HEADS // layer.key_heads) for head in range(HEADS)]  # the key head of every head
    query = query.view(rows, length, HEADS, DEPTH).transpose(1, 2)
    key, value = (part.view(rows, length, -1, DEPTH).transpose(1, 2)[:, owner] for part in (key, value))
    seen = torch.tensor([[seen_by(config, t, s, causal) for s in range(length)] for t in range(length)])
    raw = raw_weights(layer, config, query, key) * (seen & mask[:, None, None, :])
    total = raw.sum(-1, keepdim=True)
    weights = raw / total.masked_fill(total == 0, 1.0)
    read = torch.einsum("bhts,bhsd->bthd", weights, value).reshape(rows, length, WIDTH)
    return F.linear(read, layer.output.weight, layer.output.bias), weights.detach()


def extended(layer: SelfAttention, x: Tensor, sizes: list[int], capacity: int | None = None) -> tuple[Tensor, Cache]:
    """The decoder's way, in several calls."""
    cache = layer.init_cache(x.shape[0], capacity, like=x)
    length: Tensor | int = 0 if capacity is None else torch.tensor(0)
    outputs = []
    for part in x.split(sizes, 1):
        out, cache = layer.extend(part, cache, length)
        length = length + part.shape[1]
        outputs.append(out)
    return torch.cat(outputs, 1), cache


def gradients(layer: nn.Module, x: Tensor, out: Tensor) -> list[Tensor]:
    weight = torch.linspace(-1, 1, out.numel()).view_as(out)
    leaves = [x, *layer.parameters()]
    found = torch.autograd.grad((out * weight).sum(), leaves, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(leaf) if part is None else part for leaf, part in zip(leaves, found, strict=True)]


def same(layer: nn.Module, x: Tensor, found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, **CLOSE)
    for left, right in zip(gradients(layer, x, found), gradients(layer, x, expected), strict=True):
        torch.testing.assert_close(left, right, **CLOSE)


def inputs(length: int) -> tuple[Tensor, Tensor]:
    """Two rows, the second with padding at its end and in its midst."""
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, length - length // 3 :] = False
    mask[1, 1:2] = length < 3
    return torch.randn(2, length, WIDTH).requires_grad_(), mask


# --- Every kind is its definition -------------------------------------------------------------------------------------


def test_every_kind_is_tried() -> None:
    assert {type(kind) for kind in KINDS} == set(SELF_ATTENTIONS)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("config", KINDS, ids=kind_of)
def test_encoding_is_plain_sums(monkeypatch: pytest.MonkeyPatch, config: SelfAttentionConfig, length: int) -> None:
    monkeypatch.setattr(linear, "CHUNK", SIZE)
    layer = build(config)
    x, mask = inputs(length)
    expected, weights = plainly(layer, config, x, mask, causal=False)
    same(layer, x, layer(x, mask), expected)
    seen: list[Tensor] = []
    with observe_attention(lambda _, part: seen.append(part)):
        watched = layer(x, mask)
    torch.testing.assert_close(watched, expected, **CLOSE)
    assert len(seen) == 1
    torch.testing.assert_close(seen[0].detach(), weights, **CLOSE)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("config", KINDS, ids=kind_of)
def test_decoding_is_plain_sums(monkeypatch: pytest.MonkeyPatch, config: SelfAttentionConfig, length: int) -> None:
    monkeypatch.setattr(linear, "CHUNK", SIZE)
    layer = build(config, causal=True)
    x, _ = inputs(length)
    everything = torch.ones(2, length, dtype=torch.bool)
    expected, weights = plainly(layer, config, x, everything, causal=True)
    for sizes in ([length], [1] * length, [length // 2, length - length // 2], [1, length - 2, 1]):
        if min(sizes) < 1:
            continue
        same(layer, x, extended(layer, x, sizes)[0], expected)
        with torch.no_grad():
            static, _ = extended(layer, x, sizes, capacity=length + 2)
        torch.testing.assert_close(static, expected, **CLOSE)
        if isinstance(config, LinearConfig) and len(sizes) > 1:
            continue  # what is in the sum can no longer be told apart: see below
        for capacity in (None, length + 2):
            seen: list[Tensor] = []
            with torch.no_grad(), observe_attention(lambda _, part, seen=seen: seen.append(part)):
                extended(layer, x, sizes, capacity)
            assert len(seen) == len(sizes)
            found = torch.cat([F.pad(part, (0, length - part.shape[3])) for part in seen], 2)
            torch.testing.assert_close(found, weights, **CLOSE)


@pytest.mark.parametrize("key_heads", [4, 1])
@pytest.mark.parametrize("score", ["scaled-dot", "dot", "cosine"])
@pytest.mark.parametrize("positions", POSITIONS, ids=kind_of)
@pytest.mark.parametrize("config", KINDS[:3], ids=kind_of)
def test_kinds_scores_and_positions_compose(
    config: SelfAttentionConfig, positions: PositionsConfig, score: str, key_heads: int
) -> None:
    length = 8
    x, mask = inputs(length)
    layer = build(config, positions, score, key_heads)
    same(layer, x, layer(x, mask), plainly(layer, config, x, mask, causal=False)[0])
    layer = build(config, positions, score, key_heads, causal=True)
    everything = torch.ones(2, length, dtype=torch.bool)
    expected, _ = plainly(layer, config, x, everything, causal=True)
    for sizes in ([8], [1, 7], [4, 1, 3]):
        same(layer, x, extended(layer, x, sizes)[0], expected)
    with torch.no_grad():
        torch.testing.assert_close(extended(layer, x, [7, 1], capacity=9)[0], expected, **CLOSE)
        with observe_attention(lambda *_: None):
            torch.testing.assert_close(extended(layer, x, [4, 4])[0], expected, **CLOSE)


def test_watched_while_decoding_linear_attention_shows_what_can_be_told() -> None:
    layer = build(LinearConfig(), causal=True)
    x, _ = inputs(6)
    _, weights = plainly(layer, LinearConfig(), x, torch.ones(2, 6, dtype=torch.bool), causal=True)
    for capacity in (None, 9):
        seen: list[Tensor] = []
        with torch.no_grad(), observe_attention(lambda _, part, seen=seen: seen.append(part)):
            extended(layer, x, [4, 2], capacity)
        assert [part.shape for part in seen] == [(2, HEADS, 4, 4), (2, HEADS, 2, 6)]
        torch.testing.assert_close(seen[1][..., 4:], weights[:, :, 4:, 4:], **CLOSE)
        assert not seen[1][..., :4].any()


@pytest.mark.parametrize("config", KINDS, ids=kind_of)
def test_a_row_of_padding_reads_zeros(config: SelfAttentionConfig) -> None:
    layer = build(config, key_heads=4)
    x = torch.randn(2, 9, WIDTH).requires_grad_()
    mask = torch.tensor([[True], [False]]).expand(2, 9)
    out = layer(x, mask)
    torch.testing.assert_close(out[1], layer.output.bias.expand(9, WIDTH), **CLOSE)
    (found,) = torch.autograd.grad(out.square().sum(), x)
    assert found.isfinite().all()
    assert not found[1].any()
    assert found[0].any()


@pytest.mark.parametrize(
    ("config", "score"), [(config, "scaled-dot") for config in KINDS] + [(FullConfig(), "cosine")], ids=kind_of
)
def test_gradients_are_numeric_gradients(config: SelfAttentionConfig, score: str) -> None:
    positions = SinusoidalConfig() if isinstance(config, LinearConfig) else RelativeConfig(distance=2)
    length = 7  # longer than two windows
    mask = torch.tensor([[True] * 6 + [False]])
    x = torch.randn(1, length, WIDTH).requires_grad_()
    runs: list[tuple[bool, Callable[[SelfAttention, Tensor], Tensor]]] = [
        (False, lambda layer, x: layer(x, mask)),
        (True, lambda layer, x: extended(layer, x, [length])[0]),
        (True, lambda layer, x: extended(layer, x, [5, 2])[0]),
    ]
    for causal, run in runs:
        layer = build(config, positions, score, causal=causal)
        weight = torch.randn(1, length, WIDTH)

        def loss(x: Tensor, *_: Tensor, run: Any = run, layer: Any = layer, weight: Tensor = weight) -> Tensor:
            total: Tensor = (run(layer, x) * weight).sum()
            return total

        assert torch.autograd.gradcheck(loss, (x, *layer.parameters()), fast_mode=True)


# --- Numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("score", "shares"), [("scaled-dot", [0.88, 0.12]), ("dot", [1.0, 0.0]), ("cosine", [0.5, 0.5])]
)
def test_worked_numbers(score: str, shares: list[float]) -> None:
    """Scores 112 and 96 with d = 64 give 14 and 12, softmax 0.88 and 0.12; keys alike in direction."""
    layer = SelfAttention(64, 1, score=score)
    with torch.no_grad():
        layer.project.weight.zero_()
        layer.project.weight[0, 0] = 1.0  # query: the first number
        layer.project.weight[64, 1] = 1.0  # key: the second
    x = torch.zeros(1, 2, 64)
    x[0, :, 0], x[0, :, 1] = 8.0, torch.tensor([14.0, 12.0])
    seen: list[Tensor] = []
    with torch.no_grad(), observe_attention(lambda _, part: seen.append(part)):
        layer(x, torch.ones(1, 2, dtype=torch.bool))
    assert [round(one, 2) for one in seen[0][0, 0, 0].tolist()] == shares
    if score == "scaled-dot":
        assert seen[0][0, 0, 0, 0].item() == pytest.approx(1 / (1 + math.exp(12 - 14)))


def test_cosine_ignores_lengths_and_has_a_temperature_a_head() -> None:
    layer = build(FullConfig(), score="cosine", key_heads=4)
    with torch.no_grad():
        layer.project.bias.zero_()
        layer.score.sharpness[1] = -30.0  # so hot that everything is alike
    x, mask = torch.randn(1, 5, WIDTH), torch.ones(1, 5, dtype=torch.bool)
    seen: list[Tensor] = []
    with torch.no_grad(), observe_attention(lambda _, part: seen.append(part)):
        layer(x, mask)
        layer(x * torch.tensor([1.0, 7.0, 0.1, 30.0, 2.0])[:, None], mask)
    torch.testing.assert_close(seen[1], seen[0], **CLOSE)
    torch.testing.assert_close(seen[0][0, 1], torch.full((5, 5), 0.2), **CLOSE)
    assert float((seen[0][0, 0] - 0.2).abs().max()) > 0.1


# --- Cost -------------------------------------------------------------------------------------------------------------


class Elements(TorchDispatchMode):
    """Numbers made by all operations inside; a fused attention counts every pair it compares."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for part in out if isinstance(out, tuple | list) else (out,):
            if isinstance(part, Tensor):
                self.total += part.numel()
        if "scaled_dot_product" in str(function):
            query, key = args[:2]
            self.total += query.numel() // query.shape[-1] * key.shape[-2]
        return out


@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("config", [FullConfig(), LocalConfig(8), SegmentsConfig(8), LinearConfig()], ids=kind_of)
def test_cost_grows_with_length_only_where_everything_is_compared(config: SelfAttentionConfig, causal: bool) -> None:
    """O(n²·d) for full self-attention, O(r·n·d) for restricted."""
    layer = build(config, causal=causal)
    costs = []
    for length in (256, 512, 1024):
        x, mask = torch.randn(1, length, WIDTH), torch.ones(1, length, dtype=torch.bool)
        with torch.no_grad(), Elements() as counted:
            extended(layer, x, [length]) if causal else layer(x, mask)
        costs.append(counted.total)
    for shorter, longer in pairwise(costs):
        assert longer / shorter > 3 if isinstance(config, FullConfig) else 1.9 < longer / shorter < 2.1


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (FullConfig(), [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (LocalConfig(3), [1, 2, 3, 3, 3, 3, 3, 3, 3]),
        (SegmentsConfig(3), [1, 2, 3, 4, 5, 3, 4, 5, 3]),  # never more than two segments less one
    ],
    ids=kind_of,
)
def test_caches_drop_what_can_no_longer_be_seen(config: SelfAttentionConfig, sizes: list[int]) -> None:
    layer = build(config, causal=True)
    x, cache, found = torch.randn(1, 9, WIDTH), layer.init_cache(1, None, like=torch.zeros(1)), []
    for place in range(9):
        _, cache = layer.extend(x[:, place : place + 1], cache, place)
        found.append(cache[0].shape[2])
    assert found == sizes
    _, whole = extended(layer, x, [9])
    for left, right in zip(cache, whole, strict=True):
        torch.testing.assert_close(left, right, **CLOSE)


def test_the_state_of_linear_attention_does_not_grow() -> None:
    layer = build(LinearConfig(), causal=True)
    x = torch.randn(1, 200, WIDTH)
    for length in (1, 200):
        _, cache = extended(layer, x[:, :length], [length])
        assert [part.shape for part in cache] == [(1, HEADS, DEPTH, DEPTH + 1)]
    stepped, _ = extended(layer, x, [1] * 200)
    torch.testing.assert_close(extended(layer, x, [200])[0], stepped, **CLOSE)  # over three chunks of 64 and a part


def test_gradients_reach_the_segment_before_unless_the_state_is_detached() -> None:
    layer = build(SegmentsConfig(3), causal=True)
    for detached in (False, True):
        first, second = torch.randn(1, 6, WIDTH).requires_grad_(), torch.randn(1, 3, WIDTH)
        _, cache = layer.extend(first, layer.init_cache(1, None, like=second), 0)
        if detached:
            cache = map_tensors(cache, Tensor.detach)
        out, _ = layer.extend(second, cache, 6)
        if detached:
            assert not torch.autograd.grad(out.sum(), first, allow_unused=True)[0]
        else:
            (found,) = torch.autograd.grad(out.sum(), first)
            assert not found[:, :3].any()  # two segments back
            assert found[:, 3:].any()


def test_a_relation_that_tells_nothing_costs_nothing() -> None:
    assert RelativePositions().bias(torch.zeros(1), torch.zeros(1), 1.0) is None
    assert list(RelativePositions().parameters()) == []
