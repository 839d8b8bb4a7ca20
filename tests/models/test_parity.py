"""Layers and models against code that is not ours: Hugging Face, torch's own layers, and equations written plainly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import MarianConfig, MarianMTModel

from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import EOS, PAD, SOS, UNK
from dragoman.decoding.beam import BeamOptions, beam_search
from dragoman.decoding.greedy import greedy_search
from dragoman.models.config import EncoderDecoderConfig, TransformerConfig
from dragoman.models.contracts import Memory
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.layers.attention import (
    CrossAttention,
    attend,
    masked_softmax,
    observe_attention,
)
from dragoman.models.layers.config import SinusoidalConfig
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.positions import Sinusoidal, sinusoids
from dragoman.models.layers.self_attention import SelfAttention
from dragoman.models.transformer import TransformerDecoder, TransformerEncoder

Places = dict[tuple[str, ...], tuple[str, ...]]  # our parameters → theirs, below each other on both sides


class Precision(NamedTuple):
    dtype: torch.dtype
    tolerance: float

    def same(self, found: Tensor, expected: Tensor, what: str = "outputs") -> None:
        torch.testing.assert_close(
            found, expected, rtol=0.0, atol=self.tolerance, msg=lambda message: f"{what}: {message}"
        )


@pytest.fixture(params=[Precision(torch.float32, 1e-5), Precision(torch.float64, 1e-10)], ids=["float32", "float64"])
def precision(request: pytest.FixtureRequest) -> Iterator[Precision]:
    chosen: Precision = request.param
    torch.set_default_dtype(chosen.dtype)
    torch.manual_seed(7)
    yield chosen
    torch.set_default_dtype(torch.float32)


def shake(module: nn.Module, size: float = 0.1) -> None:
    """Perturb all weights, so that biases and norms matter."""
    with torch.no_grad():
        for part in module.parameters():
            if part.requires_grad:
                part.add_(size * torch.randn_like(part))


def pairs(ours: str | Sequence[str], theirs: str | Sequence[str]) -> Places:
    """Weights and biases of linear layers or norms."""
    left, right = ([one] if isinstance(one, str) else one for one in (ours, theirs))
    return {
        tuple(f"{one}.{part}" for one in left): tuple(f"{one}.{part}" for one in right) for part in ("weight", "bias")
    }


def fill(ours: nn.Module, theirs: nn.Module, places: Places, spare: Sequence[str] = ()) -> None:
    """Our weights from theirs; every parameter of both sides must have its place, but for our `spare` ones."""
    parts, other = dict(ours.named_parameters()), dict(theirs.named_parameters())
    assert sorted(name for names in places for name in names) == sorted(set(parts) - set(spare))
    used = sorted(name for names in places.values() for name in names)
    assert used == sorted(name for name, part in other.items() if part.requires_grad)
    with torch.no_grad():
        for names, sources in places.items():
            sizes = [parts[name].shape[0] for name in names]
            for name, rows in zip(names, torch.cat([other[one] for one in sources]).split(sizes), strict=True):
                parts[name].copy_(rows)


def same_gradients(precision: Precision, ours: nn.Module, theirs: nn.Module, places: Places) -> None:
    parts, other = dict(ours.named_parameters()), dict(theirs.named_parameters())
    largest = 0.0
    for names, sources in places.items():
        expected = torch.cat([gradient(other[one]) for one in sources])
        precision.same(torch.cat([gradient(parts[one]) for one in names]), expected, str(names))
        largest = max(largest, float(expected.abs().max()))
    assert largest > 1e-2, "gradients so small that the tolerance says nothing"


def gradient(part: Tensor) -> Tensor:
    assert part.grad is not None
    return part.grad


# --- The Transformer against Hugging Face's Marian --------------------------------------------------------------------

WORDS = 29
MARIAN_SOURCES = [[5, 6, 7, 8, 9, 28], [10, 4], [12, 11, 7], [20]]
MARIAN_TARGETS = [[4, 5, 6], [7, 8, 9, 10, 4, 5, 27], [6, 6], [25, 13, 14, 15]]


def marian(activation: str) -> MarianMTModel:
    config = MarianConfig(
        vocab_size=WORDS,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=8,
        encoder_ffn_dim=48,
        decoder_ffn_dim=80,
        max_position_embeddings=40,
        activation_function=activation,
        scale_embedding=True,
        dropout=0.0,
        init_std=0.2,
        pad_token_id=PAD,
        eos_token_id=EOS,
        forced_eos_token_id=EOS,
        decoder_start_token_id=SOS,
        attn_implementation="eager",
    )
    model: MarianMTModel = MarianMTModel(config).to(torch.get_default_dtype()).eval()
    shake(model)
    # Marian makes its positions in float32; the same formula in full precision takes their place.
    rates = 10000.0 ** (-2 * np.arange(16) / 32)
    angles = np.arange(40)[:, None] * rates
    exact = torch.from_numpy(np.concatenate([np.sin(angles), np.cos(angles)], 1)).to(torch.get_default_dtype())
    for side in (model.model.encoder, model.model.decoder):
        torch.testing.assert_close(side.embed_positions.weight.data, exact, rtol=0.0, atol=1e-5)
        side.embed_positions.weight.data.copy_(exact)
    assert not model.final_logits_bias.any()
    return model


def marian_places(layers: int) -> Places:
    # One table serves source, target and output on both sides.
    places: Places = {("encoder.input.embedding.weight",): ("model.shared.weight",)}
    for layer in range(layers):
        for side in ("encoder", "decoder"):
            block, theirs = f"{side}.blocks.{layer}", f"model.{side}.layers.{layer}"
            places |= pairs(f"{block}.attention.project", [f"{theirs}.self_attn.{part}_proj" for part in "qkv"])
            places |= pairs(f"{block}.attention.output", f"{theirs}.self_attn.out_proj")
            places |= pairs(f"{block}.attention_norm", f"{theirs}.self_attn_layer_norm")
            places |= pairs(f"{block}.feedforward.widen", f"{theirs}.fc1")
            places |= pairs(f"{block}.feedforward.narrow", f"{theirs}.fc2")
            places |= pairs(f"{block}.feedforward_norm", f"{theirs}.final_layer_norm")
        block, theirs = f"decoder.blocks.{layer}", f"model.decoder.layers.{layer}.encoder_attn"
        for name, part in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("output", "out_proj")):
            places |= pairs(f"{block}.cross.{name}", f"{theirs}.{part}")
        places |= pairs(f"{block}.cross_norm", f"{theirs}_layer_norm")
    return places


def like_marian(theirs: MarianMTModel) -> EncoderDecoder:
    config = theirs.config

    def side(heads: int, feedforward: int) -> TransformerConfig:
        return TransformerConfig(
            layers=2,
            width=config.d_model,
            heads=heads,
            feedforward=feedforward,
            dropout=0.0,
            norm="post",
            activation={"swish": "silu"}.get(config.activation_function, config.activation_function),  # type: ignore[arg-type]
            positions=SinusoidalConfig(layout="halves"),
        )

    ours = EncoderDecoder(
        EncoderDecoderConfig(
            tie="all",
            encoder=side(config.encoder_attention_heads, config.encoder_ffn_dim),
            decoder=side(config.decoder_attention_heads, config.decoder_ffn_dim),
        ),
        WORDS,
        WORDS,
    ).eval()
    fill(ours, theirs, marian_places(2))
    return ours


@pytest.mark.parametrize("activation", ["swish", "relu", "gelu"])
def test_transformer_gives_marians_logits_and_gradients(precision: Precision, activation: str) -> None:
    theirs = marian(activation)
    ours = like_marian(theirs)
    batch = batch_of(MARIAN_SOURCES, MARIAN_TARGETS)
    assert not batch.source.mask.all(), "the source must have padding"
    assert float(ours.output.weight[PAD].detach().abs().sum()) > 0.1, "so that a padding vector read by mistake shows"
    inputs = torch.cat([batch.target.new_full((len(MARIAN_TARGETS), 1), SOS), batch.target[:, :-1]], 1)
    expected = theirs(
        input_ids=batch.source.data, attention_mask=batch.source.mask.long(), decoder_input_ids=inputs
    ).logits
    found = ours.logits(batch)
    assert float(expected.detach().std()) > 0.5
    precision.same(found, expected, "logits")

    total, count = ours(batch)
    (total / count).backward()
    F.cross_entropy(expected.flatten(0, 1), batch.target.flatten(), ignore_index=PAD).backward()
    same_gradients(precision, ours, theirs, marian_places(2))


@pytest.mark.parametrize("width", [1, 2, 5])
def test_search_writes_what_marian_writes(width: int) -> None:
    """Hugging Face's generate, set to stop as ours does.

    At the limit its beam takes <eos> as certain where ours counts its probability: such rows say nothing.
    """
    torch.manual_seed(11)
    theirs = marian("swish")
    with torch.no_grad():  # texts that neither repeat one word nor end all at once
        last = theirs.model.decoder.layers[-1].final_layer_norm
        last.weight.normal_()
        last.bias.add_(theirs.model.shared.weight[EOS])
    ours = like_marian(theirs)
    random = np.random.default_rng(5)
    sources = [list(map(int, random.integers(4, WORDS, size))) for size in random.integers(1, 9, 40)]
    batch = batch_of(sources)
    limit = 25
    written = theirs.generate(
        input_ids=batch.source.data,
        attention_mask=batch.source.mask.long(),
        num_beams=width,
        do_sample=False,
        max_new_tokens=limit,
        length_penalty=1.0,
        bad_words_ids=[[PAD], [UNK], [SOS]],
        **({"early_stopping": True} if width > 1 else {}),
    )
    limits = torch.full((len(sources),), limit)
    if width == 1:
        found = greedy_search(ours.step, ours.start(batch), limits)
    else:
        options = BeamOptions(width, stop="complete")
        found = [row[0] for row in beam_search(ours.step, ours.start(batch), limits, options)]
    lengths = []
    for row, hypothesis in zip(written[:, 1:].tolist(), found, strict=True):  # theirs begin with <sos>
        expected = tuple(row[: row.index(EOS) + 1])
        if len(expected) < limit or width == 1:
            assert hypothesis.tokens == expected
            lengths.append(len(expected))
    assert len(lengths) > 20
    assert len(set(lengths)) >= 5


# --- The stacks against torch.nn.Transformer's layers -----------------------------------------------------------------

WIDTH, HEADS, INNER = 24, 3, 40


def torch_stack(kind: type, norm: str, activation: str, layers: int) -> Any:
    layer_kind = {nn.TransformerEncoder: nn.TransformerEncoderLayer, nn.TransformerDecoder: nn.TransformerDecoderLayer}
    layer = layer_kind[kind](
        WIDTH, HEADS, INNER, dropout=0.0, activation=activation, batch_first=True, norm_first=norm == "pre"
    )
    final = nn.LayerNorm(WIDTH) if norm == "pre" else None
    extra = {"enable_nested_tensor": False} if kind is nn.TransformerEncoder else {}
    stack = kind(layer, layers, norm=final, **extra)
    shake(stack, 0.2)
    return stack


def stack_places(layers: int, norm: str, *, crossing: bool) -> Places:
    places: Places = {}
    for layer in range(layers):
        block, theirs = f"blocks.{layer}", f"layers.{layer}"
        for part in ("weight", "bias"):
            places[(f"{block}.attention.project.{part}",)] = (f"{theirs}.self_attn.in_proj_{part}",)
        places |= pairs(f"{block}.attention.output", f"{theirs}.self_attn.out_proj")
        places |= pairs(f"{block}.feedforward.widen", f"{theirs}.linear1")
        places |= pairs(f"{block}.feedforward.narrow", f"{theirs}.linear2")
        places |= pairs(f"{block}.attention_norm", f"{theirs}.norm1")
        places |= pairs(f"{block}.feedforward_norm", f"{theirs}.norm{3 if crossing else 2}")
        if crossing:
            for part in ("weight", "bias"):
                thirds = tuple(f"{block}.cross.{name}.{part}" for name in ("query", "key", "value"))
                places[thirds] = (f"{theirs}.multihead_attn.in_proj_{part}",)
            places |= pairs(f"{block}.cross.output", f"{theirs}.multihead_attn.out_proj")
            places |= pairs(f"{block}.cross_norm", f"{theirs}.norm2")
    if norm == "pre":
        places |= pairs("norm", "norm")
    return places


def plain_input(table: Tensor, tokens: Tensor) -> Tensor:
    """Scaled embeddings plus the paper's positions, written out."""
    width = table.shape[1]
    waves = torch.tensor(
        [
            [
                (math.cos if place % 2 else math.sin)(position / 10000 ** ((place - place % 2) / width))
                for place in range(width)
            ]
            for position in range(tokens.shape[1])
        ]
    )
    return F.embedding(tokens, table, padding_idx=PAD) * math.sqrt(width) + waves


def stack_config(norm: str, activation: str) -> TransformerConfig:
    return TransformerConfig(
        layers=3,
        width=WIDTH,
        heads=HEADS,
        feedforward=INNER,
        dropout=0.0,
        norm=norm,  # type: ignore[arg-type]
        activation=activation,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_encoder_stack_is_torchs(precision: Precision, norm: str, activation: str) -> None:
    ours = TransformerEncoder(stack_config(norm, activation), TokenEmbedding(WORDS, WIDTH, PAD))
    theirs = torch_stack(nn.TransformerEncoder, norm, activation, 3)
    places = stack_places(3, norm, crossing=False)
    fill(ours, theirs, places, spare=["input.embedding.weight"])
    table = ours.input.embedding.weight.detach().clone().requires_grad_()
    batch = batch_of(MARIAN_SOURCES)
    found = ours(batch.source.data, batch.source.mask)
    expected = theirs(plain_input(table, batch.source.data), src_key_padding_mask=~batch.source.mask)
    precision.same(found.keys, expected, "keys")
    assert found.values is found.keys
    means = torch.stack([row[real].mean(0) for row, real in zip(expected, batch.source.mask, strict=True)])
    precision.same(found.final[0], means, "mean over real positions")
    weight = torch.randn_like(expected) / 10
    ((found.keys * weight).sum() + found.final[0].square().sum() / 10).backward()
    ((expected * weight).sum() + means.square().sum() / 10).backward()
    same_gradients(precision, ours, theirs, places)
    precision.same(gradient(ours.input.embedding.weight), gradient(table), "embedding")


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_decoder_stack_is_torchs(precision: Precision, norm: str, activation: str) -> None:
    ours = TransformerDecoder(stack_config(norm, activation), TokenEmbedding(WORDS, WIDTH, PAD), WIDTH)
    theirs = torch_stack(nn.TransformerDecoder, norm, activation, 3)
    places = stack_places(3, norm, crossing=True)
    fill(ours, theirs, places, spare=["input.embedding.weight"])
    table = ours.input.embedding.weight.detach().clone().requires_grad_()
    mask = batch_of(MARIAN_SOURCES).source.mask
    tokens = batch_of(MARIAN_TARGETS).source.data
    size = tokens.shape[1]
    memories = [torch.randn(*mask.shape, WIDTH).requires_grad_()]
    memories.append(memories[0].detach().clone().requires_grad_())
    state = ours.start(Memory(memories[0], memories[0], mask, ()))
    found, after = ours(tokens, state)
    expected = theirs(
        plain_input(table, tokens),
        memories[1],
        tgt_mask=torch.ones(size, size, dtype=torch.bool).triu(1),
        memory_key_padding_mask=~mask,
    )
    precision.same(found, expected)
    assert after.length == size
    weight = torch.randn_like(expected) / 10
    (found * weight).sum().backward()
    (expected * weight).sum().backward()
    same_gradients(precision, ours, theirs, places)
    precision.same(gradient(ours.input.embedding.weight), gradient(table), "embedding")
    precision.same(gradient(memories[0]), gradient(memories[1]), "memory")


def test_cross_attention_over_a_memory_of_another_width_is_torchs(precision: Precision) -> None:
    ours = CrossAttention(WIDTH, HEADS, 10)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, kdim=10, vdim=10, batch_first=True)
    shake(theirs)
    places: Places = {
        (f"{name}.weight",): (f"{name[0]}_proj_weight",) for name in ("query", "key", "value")
    }  # fmt: skip
    places[("query.bias", "key.bias", "value.bias")] = ("in_proj_bias",)
    places |= pairs("output", "out_proj")
    fill(ours, theirs, places)
    mask = batch_of(MARIAN_SOURCES).source.mask
    query, keys, values = torch.randn(4, 5, WIDTH), torch.randn(*mask.shape, 10), torch.randn(*mask.shape, 10)
    found = ours(query, ours.read(keys, values), mask)
    expected, _ = theirs(query, keys, values, key_padding_mask=~mask)
    precision.same(found, expected)
    found.square().mean().backward()
    expected.square().mean().backward()
    same_gradients(precision, ours, theirs, places)


# --- Attention --------------------------------------------------------------------------------------------------------

LENGTHS = [6, 2, 4, 1]


def lengths_mask() -> Tensor:
    return torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


def weights_of(run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """What an attention gives out, and its weights."""
    seen: list[Tensor] = []
    with observe_attention(lambda _, weights: seen.append(weights)):
        out = run()
    assert len(seen) == 1
    return out, seen[0]


def test_worked_numbers_of_scaled_attention() -> None:
    """A worked example: scores 112 and 96 with d = 64 give 14 and 12, softmax 0.88 and 0.12."""
    query = torch.zeros(1, 1, 1, 64)
    query[..., 0] = 8.0
    key = torch.zeros(1, 1, 2, 64)
    key[0, 0, :, 0] = torch.tensor([14.0, 12.0])
    assert (query @ key.transpose(-2, -1)).flatten().tolist() == [112.0, 96.0]
    value = torch.eye(2, 64)[None, None]
    out, weights = weights_of(lambda: attend(nn.Identity(), query, key, value))
    expected = [1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))]
    assert [round(one, 2) for one in expected] == [0.88, 0.12]
    assert weights.flatten().tolist() == pytest.approx(expected, abs=1e-6)
    fused = attend(nn.Identity(), query, key, value)
    for read in (out, fused):
        assert read[0, 0, 0, :2].tolist() == pytest.approx(expected, abs=1e-6)
        assert not read[0, 0, 0, 2:].any()


@pytest.mark.parametrize("watched", [False, True], ids=["fused", "watched"])
@pytest.mark.parametrize("hypotheses", [1, 3])
def test_attend_is_its_equation(precision: Precision, watched: bool, hypotheses: int) -> None:
    query = torch.randn(4 * hypotheses, 2, 3, 5)
    key, value = torch.randn(4, 2, 6, 5), torch.randn(4, 2, 6, 5)
    mask = lengths_mask()[:, None, None, :]

    def run() -> Tensor:
        return attend(nn.Identity(), query, key, value, mask=mask)

    found = weights_of(run)[0] if watched else run()
    for row in range(4 * hypotheses):
        source = row // hypotheses
        size = LENGTHS[source]
        for head in range(2):
            for place in range(3):
                scores = [float(query[row, head, place] @ key[source, head, one]) / math.sqrt(5) for one in range(size)]
                total = sum(math.exp(score) for score in scores)
                shares = torch.tensor([math.exp(score) / total for score in scores])
                precision.same(found[row, head, place], shares @ value[source, head, :size])


@pytest.mark.parametrize("watched", [False, True], ids=["fused", "watched"])
def test_a_query_whose_keys_are_all_masked_gets_zeros(precision: Precision, watched: bool) -> None:
    query, key, value = (torch.randn(2, 2, 3, 4).requires_grad_() for _ in range(3))
    mask = torch.tensor([[True, False, True], [False, False, False]])[:, None, None, :]

    def run() -> Tensor:
        return attend(nn.Identity(), query, key, value, mask=mask)

    out = weights_of(run)[0] if watched else run()
    assert not out[1].any()
    assert out[0].all()
    out.square().sum().backward()
    for part in (query, key, value):
        assert gradient(part).isfinite().all()
        assert not gradient(part)[1].any()
        assert gradient(part)[0].any()


def test_masked_softmax_of_nothing_is_zeros(precision: Precision) -> None:
    scores = torch.randn(3, 4).requires_grad_()
    mask = torch.tensor([[True, True, False, True], [False] * 4, [True] * 4])
    weights = masked_softmax(scores, mask)
    assert not weights[~mask].any()
    precision.same(weights.sum(1), torch.tensor([1.0, 0.0, 1.0]))
    precision.same(weights[0, mask[0]], scores[0, mask[0]].exp() / scores[0, mask[0]].exp().sum())
    precision.same(weights[2], masked_softmax(scores, None)[2])
    weights.square().sum().backward()
    assert gradient(scores).isfinite().all()
    assert not gradient(scores)[1].any()
    assert gradient(scores)[0].any()


# --- Positions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [8, 9])
def test_sinusoids_are_the_formula(precision: Precision, width: int) -> None:
    interleaved, halves = (sinusoids(300, width, layout) for layout in ("interleaved", "halves"))
    assert interleaved.dtype == precision.dtype
    for position in (0, 1, 2, 17, 299):
        angles = [position / 10000 ** (2 * place / width) for place in range((width + 1) // 2)]
        waves = [(math.sin(angle), math.cos(angle)) for angle in angles]
        flat = [value for both in waves for value in both][:width]
        sorted_waves = [sine for sine, _ in waves] + [cosine for _, cosine in waves][: width // 2]
        precision.same(interleaved[position], torch.tensor(flat), "interleaved")
        precision.same(halves[position], torch.tensor(sorted_waves), "halves")


def test_positions_grow_and_start_anywhere(precision: Precision) -> None:
    layer = Sinusoidal(SinusoidalConfig(), 8)
    x = torch.randn(2, 5, 8)
    for start in (0, 3, 254, 1000):
        precision.same(layer(x, start) - x, sinusoids(start + 5, 8)[start:].expand(2, -1, -1))
    precision.same(layer(x, torch.tensor(3)), layer(x, 3))


def test_attention_without_positions_is_blind_to_order(precision: Precision) -> None:
    """Permutation: att(A, B, C) = att(B, C, A) up to permutation; with positions it is not."""
    layer = SelfAttention(8, 2)
    shake(layer)
    x = torch.randn(2, 5, 8)
    mask = torch.tensor([[True] * 5, [True, True, False, True, False]])
    order = torch.tensor([2, 4, 0, 1, 3])
    precision.same(layer(x[:, order], mask[:, order]), layer(x, mask)[:, order])
    place = Sinusoidal(SinusoidalConfig(), 8)
    moved, still = layer(place(x[:, order], 0), mask[:, order]), layer(place(x, 0), mask)[:, order]
    assert float((moved - still).detach().abs().max()) > 1e-2
