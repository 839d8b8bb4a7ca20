"""Every kind of positions against the equation of its paper; all but `none` make order visible."""

from __future__ import annotations

import cmath
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.t5.modeling_t5 import T5Attention

from dragoman.data.tokenizers.base import PAD
from dragoman.models.config import TransformerConfig
from dragoman.models.contracts import Memory
from dragoman.models.layers.config import (
    LearnedConfig,
    NoPositionsConfig,
    PositionsConfig,
    RelativeBiasConfig,
    RelativeConfig,
    RelativeSinusoidalConfig,
    RotaryConfig,
    SinusoidalConfig,
)
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.positions import (
    ABSOLUTE_POSITIONS,
    RELATIVE_POSITIONS,
    Relative,
    RelativeBias,
    RelativePositions,
    RelativeSinusoidal,
    Rotary,
    build_absolute_positions,
    build_relative_positions,
    sinusoid_table,
    sinusoids,
)
from dragoman.models.transformer import TransformerDecoder, TransformerEncoder

CLOSE = {"rtol": 0.0, "atol": 1e-10}


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    yield
    torch.set_default_dtype(torch.float32)


# --- Rotary (E4) ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [10000.0, 50.0])
def test_rotary_multiplies_complex_numbers(base: float) -> None:
    """Su et al. 2021, eq. 12: the pair as a complex number, times e^(i·place·θ)."""
    layer = Rotary(RotaryConfig(base=base), heads=2, depth=6, causal=False)
    x, places = torch.randn(2, 2, 3, 6), torch.tensor([0, 5, 130])
    found = layer.rotate(x, places)
    for row, head, spot, pair in torch.cartesian_prod(*(torch.arange(size) for size in (2, 2, 3, 3))).tolist():
        number = complex(x[row, head, spot, pair], x[row, head, spot, pair + 3])
        turned = number * cmath.exp(1j * int(places[spot]) * base ** (-2 * pair / 6))
        assert complex(found[row, head, spot, pair], found[row, head, spot, pair + 3]) == pytest.approx(turned)


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    layer = Rotary(RotaryConfig(), heads=1, depth=8, causal=False)
    query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(left: int, right: int) -> float:
        turned = layer.rotate(query, torch.tensor([left])), layer.rotate(key, torch.tensor([right]))
        return float((turned[0] * turned[1]).sum())

    for distance in (-7, 0, 3):
        scores = [score(place, place + distance) for place in (7, 8, 40, 1000)]
        assert scores == pytest.approx([scores[0]] * 4, abs=1e-10)
    assert abs(score(7, 7) - score(7, 8)) > 1e-2


def test_rotary_keeps_low_precision_to_itself() -> None:
    """bfloat16 cannot count beyond 256: angles are computed in float32."""
    layer = Rotary(RotaryConfig(), heads=1, depth=8, causal=False)
    x, places = torch.randn(1, 1, 4, 8).bfloat16(), torch.tensor([257, 1001, 4099, 9999])
    found = layer.rotate(x, places)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), layer.rotate(x.double(), places), rtol=0.0, atol=0.03)


# --- Relative (E3) ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_relative_is_shaws_equation(causal: bool) -> None:
    """Shaw et al. 2018, eq. 4: e_ij = q_i (k_j + a_ij)ᵀ / √d, so the bias is q_i · a_ij / √d."""
    layer = Relative(RelativeConfig(distance=2), heads=3, depth=4, causal=causal)
    assert layer.table.shape == (3 if causal else 5, 4)
    query = torch.randn(2, 3, 5, 4)
    places, spots = torch.arange(3, 8), torch.arange(8)
    found = layer.bias(query, spots - places[:, None], 0.5)
    assert found.shape == (2, 3, 5, 8)
    for row, place in enumerate(places.tolist()):
        for spot in range(place + 1 if causal else 8):
            vector = layer.table[max(-2, min(2, spot - place)) + 2]
            torch.testing.assert_close(found[:, :, row, spot], query[:, :, row] @ vector * 0.5, **CLOSE)


def test_relative_sinusoids_are_those_of_transformer_xl() -> None:
    """Dai et al. 2019, section 3.3: (q_i + v) · W r_(i−j), entry by entry, also with positions of a cache."""
    layer = RelativeSinusoidal(RelativeSinusoidalConfig(), heads=2, depth=3, causal=True)
    torch.nn.init.normal_(layer.shift)
    query, places, spots = torch.randn(2, 2, 3, 3), torch.arange(4, 7), torch.arange(9) // 2
    found = layer.bias(query, spots - places[:, None], 0.5)
    rates = [10000 ** (-2 * index / 6) for index in range(3)]
    for row, place in enumerate(places.tolist()):
        for column, spot in enumerate(spots.tolist()):
            angles = torch.tensor([(spot - place) * rate for rate in rates])
            vector = (layer.project.weight @ torch.cat([angles.sin(), angles.cos()])).view(2, 3)
            expected = ((query[:, :, row] + layer.shift[:, 0]) * vector).sum(-1) * 0.5
            torch.testing.assert_close(found[:, :, row, column], expected, **CLOSE)


# --- The bias of T5 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20), (4, 5), (6, 7), (33, 200)])
def test_buckets_are_those_of_t5(buckets: int, distance: int, causal: bool) -> None:
    layer = RelativeBias(RelativeBiasConfig(buckets=buckets, distance=distance), heads=2, depth=4, causal=causal)
    distances = torch.arange(-300, 1 if causal else 301)
    expected = T5Attention._relative_position_bucket(
        distances, bidirectional=not causal, num_buckets=buckets, max_distance=distance
    )
    found = layer.bucket(distances)
    assert found.tolist() == expected.tolist()
    assert found.max() < buckets
    bias = layer.bias(torch.zeros(1), distances[None], 1.0)
    torch.testing.assert_close(bias, layer.table[expected].T[None, :, None], **CLOSE)


def test_a_stack_shares_its_biases_but_not_its_vectors() -> None:
    def made(config: PositionsConfig) -> list[RelativePositions]:
        return build_relative_positions(config, 3, 2, 4, causal=False)

    assert len({id(one) for one in made(RelativeBiasConfig())}) == 1
    assert len({id(one) for one in made(RelativeConfig())}) == 3
    assert all(type(one) is RelativePositions for one in made(SinusoidalConfig()))
    config = TransformerConfig(layers=3, width=8, heads=2, feedforward=8, positions=RelativeBiasConfig(buckets=8))
    encoder = TransformerEncoder(config, TokenEmbedding(9, 8, PAD))
    tables = [name for name, _ in encoder.named_parameters() if "relative" in name]
    assert tables == ["blocks.0.attention.relative.table"]
    assert encoder.blocks[2].attention.relative is encoder.blocks[0].attention.relative  # type: ignore[union-attr]


def test_positions_are_added_averaged_or_concatenated() -> None:
    x, table = torch.randn(2, 5, 8), sinusoids(7, 8)[2:7].to(torch.get_default_dtype())
    expected_by = {"sum": x + table, "mean": (x + table) / 2, "downscaled": x + table / 8**0.5}
    for merge, expected in expected_by.items():
        found = build_absolute_positions(SinusoidalConfig(merge=merge), 8)(x, 2)  # type: ignore[arg-type]
        torch.testing.assert_close(found, expected)
    joined: Any = build_absolute_positions(LearnedConfig(max_positions=9, merge="concatenate"), 8)
    both = torch.cat([x, joined.table[2:7].expand(2, -1, -1)], -1)
    torch.testing.assert_close(joined(x, 2), joined.merge.projection(both))
    assert sum(weight.numel() for weight in joined.parameters()) == 9 * 8 + 2 * 8 * 8 + 8


# --- Order ------------------------------------------------------------------------------------------------------------

STACK = TransformerConfig(layers=2, width=8, heads=2, feedforward=12, dropout=0.0)
KINDS: list[PositionsConfig] = [
    SinusoidalConfig(),
    SinusoidalConfig(merge="concatenate"),
    LearnedConfig(max_positions=9),
    LearnedConfig(max_positions=9, merge="mean"),
    RotaryConfig(),
    RelativeConfig(distance=3),
    RelativeSinusoidalConfig(),
    RelativeBiasConfig(buckets=8, distance=6),
    NoPositionsConfig(),
]


def kind_of(config: PositionsConfig) -> str:
    return config.kind


def shaken(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for part in module.parameters():
            part.add_(0.3 * torch.randn_like(part))


def test_every_kind_is_tried() -> None:
    assert {type(kind) for kind in KINDS} == set(ABSOLUTE_POSITIONS)
    assert set(RELATIVE_POSITIONS) < set(ABSOLUTE_POSITIONS)


@pytest.mark.parametrize("positions", KINDS, ids=kind_of)
def test_only_without_positions_is_an_encoder_blind_to_order(positions: PositionsConfig) -> None:
    """att(A, B, C) = att(B, C, A) up to permutation."""
    encoder = TransformerEncoder(replace(STACK, positions=positions), TokenEmbedding(13, 8, PAD))
    shaken(encoder)
    source = torch.tensor([[5, 6, 7, 8, 9], [4, 4, 10, 11, 12]])
    mask = torch.tensor([[True] * 5, [True, True, False, True, False]])
    order = torch.tensor([2, 4, 0, 1, 3])
    with torch.no_grad():
        still = encoder(source, mask).keys[:, order]
        moved = encoder(source[:, order], mask[:, order]).keys
    difference = float((moved - still).abs().max())
    assert difference < 1e-12 if positions.kind == "none" else difference > 1e-2


@pytest.mark.parametrize("positions", KINDS, ids=kind_of)
def test_relations_see_distances_and_sums_see_places(positions: PositionsConfig) -> None:
    """Told inside attention, a sentence reads the same wherever it begins; added, it does not."""
    config = replace(STACK, positions=positions)
    encoder = TransformerEncoder(config, TokenEmbedding(13, 8, PAD))
    shaken(encoder)
    source = torch.tensor([[5, 6, 7]])
    later = torch.tensor([[4, 4, 5, 6, 7]])
    with torch.no_grad():
        here = encoder(source, torch.ones(1, 3, dtype=torch.bool)).keys
        there = encoder(later, torch.tensor([[False, False, True, True, True]])).keys[:, 2:]
    difference = float((there - here).abs().max())
    inside = type(positions) in RELATIVE_POSITIONS or positions.kind == "none"
    assert difference < 1e-10 if inside else difference > 1e-2


@pytest.mark.parametrize("positions", KINDS, ids=kind_of)
def test_only_learned_positions_end(positions: PositionsConfig) -> None:
    decoder = TransformerDecoder(replace(STACK, positions=positions), TokenEmbedding(13, 8, PAD), 8)
    assert decoder.max_positions == (9 if positions.kind == "learned" else None)


@pytest.mark.parametrize("positions", KINDS, ids=kind_of)
def test_cross_attention_has_no_positions(positions: PositionsConfig) -> None:
    decoder = TransformerDecoder(replace(STACK, positions=positions), TokenEmbedding(13, 8, PAD), 8)
    shaken(decoder)
    keys, mask = torch.randn(1, 5, 8), torch.ones(1, 5, dtype=torch.bool)
    order = torch.tensor([2, 4, 0, 1, 3])
    tokens = torch.tensor([[5, 6, 7]])

    def read(memory: Tensor) -> Tensor:
        return decoder(tokens, decoder.start(Memory(memory, memory, mask, ())))[0].detach()

    torch.testing.assert_close(read(keys[:, order]), read(keys), **CLOSE)


# --- What is refused --------------------------------------------------------------------------------------------------


def test_a_bias_needs_distances_beyond_its_exact_buckets() -> None:
    assert list(RelativeBiasConfig(buckets=32, distance=16).problems()) == [
        "distance: found 16, expected more than half of buckets = 32"
    ]
    assert list(RelativeBiasConfig(buckets=32, distance=17).problems()) == []


# --- Memory that captured graphs read ---------------------------------------------------------------------------------


def test_longer_sequences_leave_the_shorter_tables_where_they_are() -> None:
    """A captured CUDA graph keeps the address of the table that it saw."""
    device, dtype = torch.device("cpu"), torch.float64
    short = sinusoid_table(10, 6, "halves", device, dtype)
    address, values = short.data_ptr(), short.clone()
    held = weakref.ref(short)
    del short
    long = sinusoid_table(700, 6, "halves", device, dtype)
    assert long.shape == (1024, 6)
    found = held()
    assert found is not None, "the shorter table was freed"
    assert found.data_ptr() == address
    assert torch.equal(found, values)
    assert torch.equal(long[: len(values)], values)


def test_threads_that_need_longer_tables_at_once_share_one() -> None:
    with ThreadPoolExecutor(8) as threads:
        jobs = [
            threads.submit(sinusoid_table, length, 10, "interleaved", torch.device("cpu"), torch.float64)
            for length in [300, 3000, 40, 500] * 20
        ]
    for job, length in zip(jobs, [300, 3000, 40, 500] * 20, strict=True):
        assert job.result().shape[0] >= length
    assert len({job.result().shape[0] for job in jobs}) == len({job.result().data_ptr() for job in jobs}) <= 4


def test_compiled_sinusoids_equal_plain_ones() -> None:
    """torch 2.11 tells compiled functions that they are exported; exported graphs have their own table."""
    torch._dynamo.reset()
    positions = build_absolute_positions(SinusoidalConfig(), 16)
    x = torch.randn(2, 5, 16)
    expected = positions(x, 0)
    assert torch.equal(torch.compile(positions, backend="eager", dynamic=True)(x, 0), expected)
