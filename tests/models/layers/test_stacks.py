"""Recurrent layers and stacks against torch's stacks over packed rows and plain references."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.base.config import as_table, build
from dragoman.base.errors import ConfigError
from dragoman.models.contracts import Memory
from dragoman.models.encoders.recurrent import RecurrentEncoder, RecurrentEncoderConfig
from dragoman.models.layers.cells import (
    CellConfig,
    CoupledLSTMConfig,
    GRUConfig,
    LayerNormLSTMConfig,
    LSTMConfig,
    PeepholeLSTMConfig,
    RNNConfig,
)
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.recurrence import Cell
from dragoman.models.layers.rnn import Bidirectional, RecurrentLayer, Unidirectional, VariationalDropout

LENGTHS = [6, 2, 4, 1]
INPUTS, WIDTH, WORDS = 5, 8, 11
TORCH: dict[str, tuple[CellConfig, type[nn.RNNBase]]] = {
    "rnn": (RNNConfig(), nn.RNN),
    "lstm": (LSTMConfig(), nn.LSTM),
    "gru": (GRUConfig(), nn.GRU),
}


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(7)
    yield
    torch.set_default_dtype(torch.float32)


def same(found: Tensor, expected: Tensor, what: str = "outputs") -> None:
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-10, msg=lambda text: f"{what}: {text}")


def shake(module: nn.Module) -> None:
    with torch.no_grad():
        for part in module.parameters():
            part.add_(0.3 * torch.randn_like(part))


def lengths_mask() -> Tensor:
    return torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


def encoder_of(**settings: Any) -> RecurrentEncoder:
    table = {"embedding": INPUTS, "width": WIDTH, "dropout": 0.0} | settings
    config = build(RecurrentEncoderConfig, table)
    encoder = RecurrentEncoder(config, TokenEmbedding(WORDS, config.embedding, pad=0))
    shake(encoder)
    with torch.no_grad():
        encoder.embedding.weight[0] = 0.0
    return encoder


def sources() -> Tensor:
    return torch.randint(1, WORDS, (len(LENGTHS), max(LENGTHS))) * lengths_mask()


def copy_cell(theirs: nn.RNNBase, cell: Cell, suffix: str) -> dict[str, Tensor]:
    """Torch's weights from ours; gives ours by torch's names. Its second bias a gate stays at zero."""
    places = {"weight_ih": cell.input_weight, "weight_hh": cell.hidden_weight, "bias_ih": cell.bias}
    with torch.no_grad():
        for name, part in places.items():
            getattr(theirs, f"{name}_{suffix}").copy_(part)
        getattr(theirs, f"bias_hh_{suffix}").zero_()
    return {f"{name}_{suffix}": part for name, part in places.items()}


def packed(layer: nn.RNNBase, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs, zero on padding, and torch's last hidden vectors (layers × directions, B, D)."""
    rows = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    out, last = layer(rows)
    hidden = last[0] if isinstance(last, tuple) else last
    return nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0], hidden


def mirrored(x: Tensor) -> Tensor:
    """Each row's real part back to front, row by row."""
    rows = [torch.cat([row[:size].flip(0), row[size:]]) for row, size in zip(x, LENGTHS, strict=True)]
    return torch.stack(rows)


def same_gradients(
    memory: Memory, expected: Tensor, finals: list[Tensor], ours: list[Tensor], theirs: list[Tensor]
) -> None:
    same(memory.keys, expected)
    assert len(memory.final) == len(finals)
    weight, last = torch.randn_like(expected), torch.randn_like(finals[0])
    gradients = []
    for out, ends, leaves in ((memory.keys, memory.final, ours), (expected, finals, theirs)):
        total = (out * weight).sum() + sum((end * last).sum() for end in ends)
        gradients.append(torch.autograd.grad(total, leaves))
    for left, right in zip(memory.final, finals, strict=True):
        same(left, right, "final")
    for left, right in zip(*gradients, strict=True):
        assert float(right.abs().max()) > 1e-2
        same(left, right, "gradient")


# --- Against torch's stacks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("direction", ["both", "forward", "backward"])
@pytest.mark.parametrize("name", TORCH)
def test_a_stack_is_torchs_over_packed_rows(name: str, direction: str, layers: int) -> None:
    config, kind = TORCH[name]
    both = direction == "both"
    ours = encoder_of(cell=as_table(config), layers=layers, direction=direction)
    theirs = kind(INPUTS, WIDTH // 2 if both else WIDTH, layers, batch_first=True, bidirectional=both)
    places: dict[str, Tensor] = {}
    for number, layer in enumerate(ours.layers):
        if isinstance(layer, Bidirectional):
            places |= copy_cell(theirs, layer.forward_cell, f"l{number}")
            places |= copy_cell(theirs, layer.backward_cell, f"l{number}_reverse")
        else:
            assert isinstance(layer, Unidirectional)
            places |= copy_cell(theirs, layer.cell, f"l{number}")
    source = sources()
    x = ours.embedding(source)
    memory = ours(source, lengths_mask())
    if direction == "backward":  # Sutskever et al. 2014: the same stack over the source reversed
        expected, last = packed(theirs, mirrored(x))
        expected = mirrored(expected)
    else:
        expected, last = packed(theirs, x)
    finals = [torch.cat(list(pair), -1) for pair in last.unflatten(0, (layers, 2))] if both else list(last)
    table = ours.embedding.weight
    same_gradients(memory, expected, finals, [*places.values(), table], [*map(theirs.get_parameter, places), table])
    assert {id(part) for part in ours.parameters()} == {id(part) for part in [*places.values(), table]}


@pytest.mark.parametrize("merge", ["mean", "projection"])
def test_merges_of_two_full_directions(merge: str) -> None:
    ours = encoder_of(cell="gru", merge=merge, width=7)
    layer: Any = ours.layers[0]
    theirs = nn.GRU(INPUTS, 7, batch_first=True, bidirectional=True)
    copy_cell(theirs, layer.forward_cell, "l0")
    copy_cell(theirs, layer.backward_cell, "l0_reverse")
    source = sources()
    both, last = packed(theirs, ours.embedding(source))

    def merged(both: Tensor) -> Tensor:
        ahead, back = both.chunk(2, -1)
        if merge == "mean":
            return 0.5 * ahead + 0.5 * back
        left, right = layer.merge.linear.weight.chunk(2, 1)
        return ahead @ left.T + back @ right.T + layer.merge.linear.bias

    memory = ours(source, lengths_mask())
    same(memory.keys, merged(both) * lengths_mask()[:, :, None])
    (final,) = memory.final
    same(final, merged(torch.cat(list(last), -1)), "final")


def test_gnmt_is_a_stack_of_torchs_layers_with_residuals() -> None:
    """The first layer reads both ways, the others forward, and the third is the first to add its input."""
    ours = encoder_of(layers=4, direction="first-both", residual_from=3)
    source = sources()
    x = ours.embedding(source)
    finals, leaves, theirs = [], [], []
    for number, layer in enumerate(ours.layers):
        both = number == 0
        lstm = nn.LSTM(INPUTS if both else WIDTH, WIDTH // 2 if both else WIDTH, batch_first=True, bidirectional=both)
        if isinstance(layer, Bidirectional):
            places = copy_cell(lstm, layer.forward_cell, "l0") | copy_cell(lstm, layer.backward_cell, "l0_reverse")
        else:
            assert isinstance(layer, Unidirectional)
            places = copy_cell(lstm, layer.cell, "l0")
        out, last = packed(lstm, x)
        x = x + out if number + 1 >= 3 else out
        finals.append(torch.cat(list(last), -1))
        leaves += places.values()
        theirs += map(lstm.get_parameter, places)
    same_gradients(ours(source, lengths_mask()), x, finals, leaves, theirs)


# --- Around the cells -------------------------------------------------------------------------------------------------


def test_residuals_only_where_sizes_fit() -> None:
    encoder = encoder_of(layers=4, widths=[6, 8, 8, 8], residual_from=1, direction="forward")
    assert [layer.residual for layer in encoder.layers] == [False, False, True, True]
    assert encoder_of(layers=2, embedding=WIDTH, residual_from=1).layers[0].residual
    assert not any(layer.residual for layer in encoder_of(layers=2, embedding=WIDTH).layers)


class Twice(nn.Module):
    """Stands in for a dropout whose draw is known."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


LAYERS: dict[str, Callable[..., RecurrentLayer]] = {
    "forward": Unidirectional,
    "backward": lambda *sizes, **options: Unidirectional(*sizes, backward=True, **options),
    "concatenate": Bidirectional,
    "projection": lambda *sizes, **options: Bidirectional(*sizes, merge="projection", **options),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_drops_its_input_norms_its_output_and_adds_what_was_not_dropped(kind: str) -> None:
    layer = LAYERS[kind](GRUConfig(), WIDTH, WIDTH, dropout=Twice(), residual=True, norm=True)
    shake(layer)
    x, mask = torch.randn(4, 6, WIDTH), lengths_mask()
    out, (final,) = layer(x, mask)
    read, (last,) = layer.read(2 * x, mask)
    centred = read - read.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    expected = x + normed * layer.norm.weight + layer.norm.bias
    same(out, expected * mask[:, :, None])
    same(final, last, "final")


CELLS: list[CellConfig] = [
    RNNConfig(activation="relu"),
    LSTMConfig(),
    PeepholeLSTMConfig(),
    CoupledLSTMConfig(),
    LayerNormLSTMConfig(),
    GRUConfig(),
    GRUConfig(reset="before"),
]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.kind + getattr(cell, "reset", ""))
def test_padding_changes_nothing(cell: CellConfig, kind: str) -> None:
    """Neither the content nor the amount of padding changes outputs, final states or gradients."""
    layer = LAYERS[kind](cell, WIDTH, WIDTH, residual=True, norm=True)
    shake(layer)
    x, mask = torch.randn(4, 6, WIDTH), lengths_mask()
    junk = torch.where(mask[:, :, None], x, 100 * torch.randn_like(x))
    longer, longer_mask = torch.cat([junk, torch.randn(4, 3, WIDTH)], 1), torch.cat([mask, mask.new_zeros(4, 3)], 1)
    longer.requires_grad_()
    out, (final,) = layer(longer, longer_mask)
    assert not out[~longer_mask].any()
    for row, size in enumerate(LENGTHS):
        alone, end = layer(x[row : row + 1, :size], torch.ones(1, size, dtype=torch.bool))
        same(out[row, :size], alone[0])
        same(final[row], end[0][0], "final")
    (gradient,) = torch.autograd.grad(out.square().sum() + final.square().sum(), longer)
    assert not gradient[~longer_mask].any()
    assert gradient[longer_mask].all()


def test_a_row_of_padding_alone_ends_where_it_started() -> None:
    layer = Bidirectional(LSTMConfig(), INPUTS, WIDTH)
    shake(layer)
    out, (final,) = layer(torch.randn(2, 3, INPUTS), torch.tensor([[True, True, False], [False] * 3]))
    assert not out[1].any()
    assert not final[1].any()
    assert final[0].all()


def test_variational_dropout_draws_once_a_row() -> None:
    """Gal and Ghahramani 2016: the same mask at every step, another for every row and every call."""
    dropout = VariationalDropout(0.3)
    ones = torch.ones(200, 5, 40)
    first, second = dropout(ones), dropout(ones)
    for out in (first, second):
        assert torch.equal(out, out[:, :1].expand_as(out))
        assert set(out.unique().tolist()) == {0.0, 1 / 0.7}
        assert float(out.mean()) == pytest.approx(1.0, abs=0.03)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    assert dropout.eval()(ones) is ones


@pytest.mark.parametrize("variational", [False, True])
def test_an_encoder_drops_what_every_layer_reads(variational: bool) -> None:
    encoder = encoder_of(layers=3, dropout=0.5, variational=variational, norm=True)
    dropped: list[Tensor] = []
    encoder.dropout.register_forward_hook(lambda _, inputs, out: dropped.append(out == 0))
    source = torch.randint(1, WORDS, (50, 6))
    mask = torch.ones(50, 6, dtype=torch.bool)
    first, second = encoder(source, mask).keys, encoder(source, mask).keys
    assert not torch.equal(first, second)
    assert len(dropped) == 6
    for draw in dropped:
        assert 0.4 < float(draw.double().mean()) < 0.6
        assert torch.equal(draw, draw[:, :1].expand_as(draw)) == variational
    encoder.eval()
    assert torch.equal(encoder(source, mask).keys, encoder(source, mask).keys)


# --- The encoder's settings -------------------------------------------------------------------------------------------


def count(module: nn.Module) -> int:
    return sum(part.numel() for part in module.parameters())


def gru_size(inputs: int, width: int) -> int:
    return 3 * (inputs * width + width * width + width)


def test_each_layer_has_its_own_width() -> None:
    """Only the layers as wide as the memory leave a final."""
    encoder = encoder_of(cell="gru", layers=3, widths=[6, 10, 10], width=10, direction="first-both", norm=True)
    table = WORDS * INPUTS
    norms = 2 * (6 + 10 + 10)
    assert count(encoder) == table + 2 * gru_size(INPUTS, 3) + gru_size(6, 10) + gru_size(10, 10) + norms
    memory = encoder(sources(), lengths_mask())
    assert memory.keys.shape == (4, 6, 10)
    assert [tuple(final.shape) for final in memory.final] == [(4, 10)] * 2
    assert encoder.width == 10


@pytest.mark.parametrize(
    ("merge", "extra"),
    [("concatenate", 2 * gru_size(5, 4)), ("mean", 2 * gru_size(5, 8)), ("projection", 2 * gru_size(5, 8) + 8 * 17)],
)
def test_merges_have_their_sizes(merge: str, extra: int) -> None:
    assert count(encoder_of(cell="gru", merge=merge)) == WORDS * INPUTS + extra


def test_cells_are_named_by_their_kind_or_by_a_table() -> None:
    for kind in ("rnn", "lstm", "peephole-lstm", "coupled-lstm", "layer-norm-lstm", "gru"):
        assert build(RecurrentEncoderConfig, {"cell": kind}).cell.kind == kind
    assert build(RecurrentEncoderConfig, {}).cell == LSTMConfig()
    table = {"cell": {"kind": "gru", "reset": "before", "recurrent_init": "identity"}}
    assert build(RecurrentEncoderConfig, table).cell == GRUConfig(reset="before", recurrent_init="identity")
    with pytest.raises(ConfigError, match=r"Did you mean 'peephole-lstm'\?"):
        build(RecurrentEncoderConfig, {"cell": "peepholelstm"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 7}, "width: found 7, expected an even number (two directions)"),
        ({"width": 7, "direction": "first-both"}, "width: found 7, expected an even number (two directions)"),
        ({"layers": 2, "widths": [5, 8], "width": 8}, "widths: found 5, expected an even number (two directions)"),
        ({"layers": 2, "widths": [4]}, "widths: found 1, expected one for each of 2 layers"),
        ({"layers": 2, "widths": [4, 6]}, "width: found 512, expected 6, the last of the widths"),
        ({"layers": 2, "residual_from": 3}, "residual_from: found 3, expected at most 2, the number of layers"),
    ],
)
def test_settings_that_do_not_fit_together(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build(RecurrentEncoderConfig, settings)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [{"direction": "forward"}, {"merge": "mean"}, {"layers": 2, "widths": [4, 7], "direction": "first-both"}],
)
def test_odd_widths_where_nothing_is_halved(settings: dict[str, Any]) -> None:
    assert encoder_of(width=7, **settings)(sources(), lengths_mask()).keys.shape == (4, 6, 7)
