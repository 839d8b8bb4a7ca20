"""Fused kernels between the matrix products of a Transformer against torch's own operations in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.models.kernels import fused_layers
from dragoman.models.kernels.short_attention import attend_short
from dragoman.models.kernels.step_buffers import SEEDS, StepBuffers, dropout_seed, half_copy
from dragoman.models.layers.attention import CrossAttention, read_memory
from dragoman.models.layers.config import RelativeBiasConfig, RotaryConfig
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.feed_forward import ACTIVATIONS
from dragoman.models.layers.linear import Linear
from dragoman.models.layers.positions import RelativeBias, Rotary

pytestmark = pytest.mark.gpu
HALF = torch.bfloat16
NORMS: dict[str, Callable[[int], Any]] = {
    "layer": nn.LayerNorm,
    "layer without bias": lambda width: nn.LayerNorm(width, bias=False),
    "rms": lambda width: nn.RMSNorm(width, eps=1e-6),
}


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    with fused_layers.enabled():
        yield


def drawn(*shape: int, half: bool = True) -> Tensor:
    return torch.randn(*shape, device="cuda").to(HALF if half else torch.float32).requires_grad_()


def check(found: Sequence[Tensor], expected: Sequence[Tensor], exact: float = 1e-2) -> None:
    for one, other in zip(found, expected, strict=True):
        distance = (one.detach().float() - other.detach().float()).norm() / other.detach().float().norm()
        assert float(distance) < exact


def gradients(outputs: Sequence[Tensor], inputs: Sequence[Tensor | None], keep: bool = False) -> list[Tensor]:
    """With the same numbers from above for outputs of any precision."""
    torch.manual_seed(2)
    above = [torch.randn(output.shape, device="cuda").to(HALF).to(output.dtype) for output in outputs]
    return list(torch.autograd.grad(outputs, [part for part in inputs if part is not None], above, retain_graph=keep))


@pytest.mark.parametrize("has_out", [True, False], ids=["sum", "stream"])
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("width", [96, 512, 1024])
def test_sums_and_norms(width: int, kind: str, has_out: bool) -> None:
    torch.manual_seed(1)
    norm = NORMS[kind](width).cuda()
    nn.init.normal_(norm.weight, 1.0, 0.3)
    x, out = drawn(5, 700, width, half=False), drawn(5, 700, width) if has_out else None
    with torch.autocast("cuda", HALF):
        total, normed = fused_layers.residual_norm(x, out, 0.0, norm)
    plain = x if out is None else x + out
    assert (total.dtype, normed.dtype) == (torch.float32, HALF)
    check((total, normed), (plain, norm(plain)))
    inputs = (x, out, norm.weight, getattr(norm, "bias", None))
    check(gradients((total, normed), inputs), gradients((plain, norm(plain)), inputs))


@pytest.mark.parametrize("width", [16, 96, 128, 512, 1000, 2048])  # blocks of other sizes are other programs
@pytest.mark.parametrize("kind", [None, *NORMS])
def test_dropout_keeps_its_share_and_the_same_numbers_backwards(kind: str | None, width: int) -> None:
    torch.manual_seed(1)
    norm = None if kind is None else NORMS[kind](width).cuda()
    x, out = drawn(300, width, half=False), drawn(300, width)
    with torch.autocast("cuda", HALF):
        total, normed = fused_layers.residual_norm(x, out, 0.25, norm)
        again, _ = fused_layers.residual_norm(x, out, 0.25, norm)
    kept = (total - x).abs() > 0
    noise = 5 * math.sqrt(0.75 * 0.25 / kept.numel())
    assert abs(float(kept.float().mean()) - 0.75) < noise
    assert not torch.equal(total, again)
    plain = x + out * kept / 0.75
    expected = (plain, plain if norm is None else norm(plain))
    check((total, normed), expected)
    check(gradients((total, normed), (x, out)), gradients(expected, (x, out)))
    rows = kept.float()
    assert abs(float((rows[:, :-1] * rows[:, 1:]).mean()) - 0.75**2) < 2 * noise  # neighbours are drawn independently
    assert abs(float((rows[:-1] * rows[1:]).mean()) - 0.75**2) < 2 * noise


@pytest.mark.parametrize("width", [300, 1024])  # a count that 16 divides is loaded eight numbers at a time
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations(kind: str, gated: bool, width: int) -> None:
    torch.manual_seed(1)
    x, gate = drawn(7, width), drawn(7, width) if gated else None
    found = fused_layers.activate(x, gate, kind, ACTIVATIONS[kind], 0.0)
    wide, door = x.float(), None if gate is None else gate.float()
    expected = ACTIVATIONS[kind](wide) if door is None else ACTIVATIONS[kind](door) * wide
    check([found], [expected])
    check(gradients([found], (x, gate)), gradients([expected], (x, gate), keep=True))
    dropped = fused_layers.activate(x, gate, kind, ACTIVATIONS[kind], 0.5)
    kept = dropped != 0
    check([dropped], [expected * kept * 2])
    check(gradients([dropped], (x, gate)), gradients([expected * kept * 2], (x, gate)))


@pytest.mark.parametrize(("columns", "words"), [(10112, 10112), (64, 59)])
def test_cross_entropy(columns: int, words: int) -> None:
    torch.manual_seed(1)
    logits, target = drawn(130, columns), torch.randint(0, words, (130,), device="cuda")
    target[3] = 0
    found = fused_layers.cross_entropy(logits, target, 0.1, words, 0)
    scores = logits[:, :words].float()
    expected = F.cross_entropy(scores, target, ignore_index=0, reduction="none", label_smoothing=0.1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    mine, other = gradients([found], [logits])[0], gradients([expected], [logits])[0]
    check([mine[:, :words]], [other[:, :words]])
    assert not mine[3].any()
    assert not mine[:, words:].any()


@pytest.mark.parametrize(("heads", "depth"), [(8, 64), (3, 20)])
def test_rotations(heads: int, depth: int) -> None:
    torch.manual_seed(1)
    projected = drawn(4, 50, 3 * heads * depth)
    x = projected[..., : heads * depth].view(4, 50, heads, depth).transpose(1, 2)
    positions = torch.arange(50, device="cuda") * 41
    rotary = Rotary(RotaryConfig(), heads, depth, False)
    found, expected = rotary.rotate(x, positions), rotary.rotate(x.float(), positions)
    check([found], [expected])
    check(gradients([found], [projected]), gradients([expected], [projected]))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(32, 32), (17, 40), (64, 64), (1, 300)])
def test_biases_of_distances(queries: int, keys: int, causal: bool) -> None:
    torch.manual_seed(1)
    layer = RelativeBias(RelativeBiasConfig(), 6, 64, causal).cuda()
    distance = torch.arange(keys, device="cuda") - torch.arange(queries, device="cuda")[:, None] - keys // 2
    half = drawn(1)
    found, expected = layer.bias(half, distance, 1.0), layer.bias(half.float(), distance, 1.0)
    assert type(found.grad_fn).__name__ != type(expected.grad_fn).__name__, "both are the plain code"
    assert torch.equal(found, expected)
    check(gradients([found], [layer.table]), gradients([expected], [layer.table]), exact=1e-5)


@pytest.mark.parametrize(("rows", "width"), [(1, 40), (64, 512), (65, 512), (32768, 1536)])
def test_column_sums(rows: int, width: int) -> None:
    from dragoman.models.kernels.fused_layers_triton import column_sums

    x = drawn(rows, width).detach()
    found = column_sums(x)
    torch.testing.assert_close(found, x.float().sum(0), rtol=1e-4, atol=1e-2)
    assert all(torch.equal(column_sums(x), found) for _ in range(20))  # whichever program adds the shares


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_linear_layers(bias: bool) -> None:
    torch.manual_seed(1)
    layer = Linear(48, 80, bias=bias).cuda()
    x = drawn(3, 50, 48, half=False)
    with torch.autocast("cuda", HALF):
        found = layer(x)
    expected = F.linear(x, layer.weight, layer.bias)
    assert found.dtype == HALF
    check([found], [expected])
    inputs = (x, layer.weight, layer.bias)
    check(gradients([found], inputs), gradients([expected], inputs))


def test_one_product_reads_the_memory_for_all_layers() -> None:
    torch.manual_seed(1)
    attentions = [CrossAttention(32, 4, 48).cuda() for _ in range(3)]
    memory = drawn(2, 9, 48, half=False)
    with torch.autocast("cuda", HALF):
        found = read_memory(attentions, memory, memory)
    expected = [attention.read(memory, memory) for attention in attentions]
    flat, plain = ([part for pair in pairs for part in pair] for pairs in (found, expected))
    check(flat, plain)
    check(gradients(flat, [memory]), gradients(plain, [memory]))


def test_a_step_converts_all_weights_and_draws_all_seeds_at_once() -> None:
    layer, other = Linear(48, 80).cuda(), Linear(48, 64).cuda()
    buffers = StepBuffers([layer.weight, layer.bias], HALF)
    with torch.no_grad():
        layer.weight.normal_()
    buffers.refresh()
    x = drawn(5, 48)
    with fused_layers.enabled(buffers):
        assert half_copy(layer.weight, HALF) is buffers.copies[layer.weight]
        found = layer(x), other(x)
        seeds = [int(dropout_seed(x.device)) for _ in range(2 * SEEDS + 1)]
    assert len(set(seeds)) > 2 * SEEDS - 5
    with fused_layers.enabled():
        assert all(torch.equal(*pair) for pair in zip(found, (layer(x), other(x)), strict=True))


@pytest.mark.parametrize("packed", [True, False])
def test_gradients_side_by_side_are_joined_without_a_copy(packed: bool) -> None:
    torch.manual_seed(1)
    projected = drawn(4, 9, 3 * 64)
    query, key, value = (
        part.view(4, 9, 4, 16).transpose(1, 2) for part in fused_layers.split_columns(projected, [64, 64, 64])
    )
    if not packed:
        key = key * 2.0
    out = attend_short(query, key, value, None, False, 0.0, 0.25)
    above = torch.randn_like(out)
    (found,) = torch.autograd.grad(out, projected, above)
    single = [part.detach().float().requires_grad_() for part in (query, key, value)]
    plain = F.scaled_dot_product_attention(*single, scale=0.25)
    parts = list(torch.autograd.grad(plain, single, above.float()))
    parts[1] = parts[1] if packed else parts[1] * 2.0
    check([found], [torch.cat([part.transpose(1, 2).flatten(2) for part in parts], -1)])
    assert found.is_contiguous()


def test_ids_of_32_bits_give_the_gradient_of_a_table() -> None:
    torch.manual_seed(1)
    embedding = TokenEmbedding(500, 32, 0).cuda()
    tokens = torch.randint(0, 500, (70, 80), device="cuda")
    assert fused_layers.token_ids(tokens, embedding.weight).dtype == torch.int32
    found, expected = embedding(tokens), F.embedding(tokens, embedding.weight, padding_idx=0)
    assert torch.equal(found, expected)
    mine, theirs = (gradients([out], [embedding.weight])[0] for out in (found, expected))
    check([mine], [theirs], 1e-5)
    assert not mine[0].any()


@pytest.mark.parametrize("again", [False, True], ids=["read once", "read twice"])
@pytest.mark.parametrize("norm", [None, nn.LayerNorm(96)], ids=["stream", "norm"])
def test_the_bias_before_a_residual_sum_gets_its_gradient_from_the_sum(norm: nn.Module | None, again: bool) -> None:
    torch.manual_seed(1)
    layer, norm = Linear(48, 96).cuda(), None if norm is None else norm.cuda()
    x, inner = drawn(5, 300, 96, half=False), drawn(5, 300, 48)
    with torch.autocast("cuda", HALF):
        out = layer(inner)
        total, normed = fused_layers.residual_norm(x, out, 0.0, norm)
    plain_out = F.linear(inner.float(), layer.weight, layer.bias)
    plain = x + plain_out
    found, expected = [total, normed], [plain, plain if norm is None else norm(plain)]
    if again:  # another reader, whose gradient the sum knows nothing of
        found, expected = [*found, out], [*expected, plain_out]
    inputs = (x, inner, layer.weight, layer.bias)
    check(gradients(found, inputs), gradients(expected, inputs))
