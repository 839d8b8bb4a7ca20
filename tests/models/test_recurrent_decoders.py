"""Recurrent decoders against step-by-step references written from the papers' equations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dragoman.data.batch import Batch, batch_of
from dragoman.data.tokenizers.base import SOS
from dragoman.models.config import EncoderDecoderConfig
from dragoman.models.contracts import Memory, State
from dragoman.models.decoders.recurrent import (
    FixedContextDecoderConfig,
    LuongDecoderConfig,
    MaxoutReadout,
    RecurrentDecoderConfig,
    StateReadout,
    TanhReadout,
)
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.layers.cells import CoupledLSTMConfig, GRUConfig, LSTMConfig, RNNConfig
from dragoman.models.layers.recurrence import single_step
from dragoman.models.layers.rnn_attention import AdditiveConfig, DotConfig

CLOSE = {"rtol": 0.0, "atol": 1e-10}
ENCODER = RecurrentEncoderConfig(embedding=5, width=6, layers=2, dropout=0.0)


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def build(decoder: object, encoder: RecurrentEncoderConfig = ENCODER, **settings: object) -> EncoderDecoder:
    torch.manual_seed(5)
    config = EncoderDecoderConfig(tie="none", encoder=encoder, decoder=decoder, **settings)  # type: ignore[arg-type]
    assert not list(config.problems())
    model = EncoderDecoder(config, 13, 12)
    with torch.no_grad():
        for part in model.parameters():
            part.add_(0.1 * torch.randn_like(part))
    return model.eval()


def batch() -> Batch:
    return batch_of([[5, 6, 7], [8], [9, 10, 11, 12]], [[4, 5, 6, 7], [8, 9], [10]])


def reads(model: EncoderDecoder) -> tuple[Memory, Tensor, Tensor]:
    """The memory, the tokens fed and their embeddings."""
    given = batch()
    memory = model.encode(given.source.data, given.source.mask)
    tokens = torch.cat([given.target.new_full((3, 1), SOS), given.target[:, :-1]], 1)
    return memory, tokens, model.decoder.embedding(tokens)  # type: ignore[attr-defined]


def lstm(cell: nn.Module, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    gates = x @ cell.input_weight.T + state[0] @ cell.hidden_weight.T + cell.bias  # type: ignore[union-attr, operator]
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def first_states(model: EncoderDecoder, memory: Memory) -> list[tuple[Tensor, Tensor]]:
    states = []
    project = model.decoder.begin.project  # type: ignore[attr-defined]
    finals = memory.final[-len(project) :]
    for layer, linear in enumerate(project):
        both = torch.tanh(finals[min(layer, len(finals) - 1)] @ linear.weight.T + linear.bias)
        states.append((both[:, : both.shape[1] // 2], both[:, both.shape[1] // 2 :]))
    return states


def check(model: EncoderDecoder, expected: Tensor) -> None:
    given = batch()
    found, _ = model.decoder(reads(model)[1], model.start(given))
    torch.testing.assert_close(found, expected, **CLOSE)
    weight = torch.randn_like(found)
    (found * weight).sum().backward()
    gradients = {name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None}
    model.zero_grad()
    (expected * weight).sum().backward()
    for name, part in model.named_parameters():
        if part.grad is not None:
            torch.testing.assert_close(gradients[name], part.grad, **CLOSE)
    assert len(gradients) > 5


def test_sutskever_starts_from_the_source_and_never_sees_it_again() -> None:
    """Sutskever et al. 2014, with a tanh readout from state and embedded token."""
    model = build(FixedContextDecoderConfig(embedding=5, width=4, layers=2, dropout=0.0))
    decoder = model.decoder
    memory, _, embedded = reads(model)
    states = first_states(model, memory)
    out = []
    for step in range(embedded.shape[1]):
        x = embedded[:, step]
        for layer, cell in enumerate(decoder.stack.cells):  # type: ignore[attr-defined]
            states[layer] = lstm(cell, x, states[layer])
            x = states[layer][0]
        seen = torch.cat([x, embedded[:, step]], -1)
        out.append(torch.tanh(seen @ decoder.readout.linear.weight.T + decoder.readout.linear.bias))  # type: ignore[attr-defined]
    check(model, torch.stack(out, 1))


def test_layers_may_have_widths_of_their_own() -> None:
    """Two LSTMs of torch with the same weights, each with the size that its layer has."""
    sizes = (9, 4)
    model = build(FixedContextDecoderConfig(embedding=5, width=4, layers=2, widths=sizes, begin="zero", dropout=0.0,
                                            context="every-step", readout=StateReadout()))  # fmt: skip
    tokens, memory = torch.tensor([[3, 4, 5, 6]]), torch.randn(1, 6)
    state = State(static=(memory,), cache=tuple((torch.zeros(1, size),) * 2 for size in sizes), length=0)
    hidden, after = model.decoder(tokens, state)
    x = torch.cat([model.decoder.embedding(tokens), memory[:, None].expand(-1, 4, -1)], -1)
    for cell, size, state_after in zip(model.decoder.stack.cells, sizes, after.cache, strict=True):
        theirs = torch.nn.LSTM(x.shape[2], size, batch_first=True)
        for ours, name in zip(cell.torch_weights(), ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"),
                              strict=True):  # fmt: skip
            getattr(theirs, name).data = ours.data
        x, (last, memory_cell) = theirs(x)
        torch.testing.assert_close(state_after, (last[0], memory_cell[0]))
    torch.testing.assert_close(hidden, x)


def test_cho_feeds_the_context_to_every_step_and_reads_out_by_maxout() -> None:
    """Cho et al. 2014: h = GRU(y, h', c) with the reset before the product; s = maxout(O_h h + O_c c + O_y y)."""
    decoder_config = FixedContextDecoderConfig(
        cell=GRUConfig(reset="before"), embedding=5, width=4, dropout=0.0, context="every-step",
        readout=MaxoutReadout(width=3),
    )  # fmt: skip
    model = build(decoder_config)
    decoder = model.decoder
    memory, _, embedded = reads(model)
    context = memory.final[-1]
    begin = decoder.begin.project[0]  # type: ignore[attr-defined]
    h = torch.tanh(context @ begin.weight.T + begin.bias)
    cell = decoder.stack.cells[0]  # type: ignore[attr-defined]
    out = []
    for step in range(embedded.shape[1]):
        x = torch.cat([embedded[:, step], context], -1)
        w_r, w_u, w_h = cell.input_weight.chunk(3)
        u_r, u_u, u_h = cell.hidden_weight.chunk(3)
        b_r, b_u, b_h = cell.bias.chunk(3)
        r = torch.sigmoid(x @ w_r.T + h @ u_r.T + b_r)
        u = torch.sigmoid(x @ w_u.T + h @ u_u.T + b_u)
        h = u * h + (1 - u) * torch.tanh(x @ w_h.T + (r * h) @ u_h.T + b_h)
        linear = decoder.readout.linear  # type: ignore[attr-defined]
        seen = torch.cat([h, context, embedded[:, step]], -1) @ linear.weight.T + linear.bias
        out.append(torch.stack([torch.maximum(seen[:, 2 * j], seen[:, 2 * j + 1]) for j in range(3)], -1))
    check(model, torch.stack(out, 1))


def additive(attention: nn.Module, query: Tensor, memory: Memory) -> Tensor:
    parts = dict(attention.named_parameters())
    keys = memory.keys @ parts["score.key.weight"].T + parts["score.key.bias"]
    inner = torch.tanh((query @ parts["score.query.weight"].T)[:, None] + keys)
    energies = (inner @ parts["score.score.weight"][0]).masked_fill(~memory.mask, -torch.inf)
    return (energies.softmax(-1)[:, :, None] * memory.values).sum(1)


@pytest.mark.parametrize("to", ["bottom", "all"])
def test_bahdanau_attends_before_the_cell_and_gnmt_gives_the_context_to_all(to: str) -> None:
    """Bahdanau et al. 2015; GNMT: context to every layer, residual connections from the third."""
    config = RecurrentDecoderConfig(
        embedding=5, width=4, layers=4, dropout=0.0, attention=AdditiveConfig(width=7), context_to=to,  # type: ignore[arg-type]
        residual_from=3,
    )  # fmt: skip
    model = build(config)
    decoder = model.decoder
    memory, _, embedded = reads(model)
    states = first_states(model, memory)
    out = []
    for step in range(embedded.shape[1]):
        context = additive(decoder.attention, states[0][0], memory)  # type: ignore[attr-defined]
        states[0] = lstm(decoder.bottom, torch.cat([embedded[:, step], context], -1), states[0])  # type: ignore[attr-defined]
        x = states[0][0]
        for layer, cell in enumerate(decoder.upper.cells, start=1):  # type: ignore[attr-defined]
            entering = torch.cat([x, context], -1) if to == "all" else x
            states[layer] = lstm(cell, entering, states[layer])
            x = states[layer][0] + x if layer >= 2 else states[layer][0]
        linear = decoder.readout.linear  # type: ignore[attr-defined]
        seen = torch.cat([x, context, embedded[:, step]], -1)
        out.append(torch.tanh(seen @ linear.weight.T + linear.bias))
    check(model, torch.stack(out, 1))


@pytest.mark.parametrize("feeding", [True, False])
def test_luong_attends_after_the_cell(feeding: bool) -> None:
    """Luong et al. 2015: ã = tanh(W_c [c; h]), which enters the next step with input feeding."""
    config = LuongDecoderConfig(
        embedding=5, width=6, layers=2, dropout=0.0, attention=DotConfig(), input_feeding=feeding
    )
    model = build(config)
    decoder = model.decoder
    memory, _, embedded = reads(model)
    states = first_states(model, memory)
    fed = embedded.new_zeros(3, 5)
    out = []
    for step in range(embedded.shape[1]):
        x = torch.cat([embedded[:, step], fed], -1) if feeding else embedded[:, step]
        for layer, cell in enumerate(decoder.stack.cells):  # type: ignore[attr-defined]
            states[layer] = lstm(cell, x, states[layer])
            x = states[layer][0]
        scores = torch.einsum("bsd,bd->bs", memory.keys, x).masked_fill(~memory.mask, -torch.inf)
        context = torch.einsum("bs,bsd->bd", scores.softmax(-1), memory.values)
        fed = torch.tanh(torch.cat([context, x], -1) @ decoder.combine.weight.T)  # type: ignore[attr-defined]
        out.append(fed)
    check(model, torch.stack(out, 1))


@pytest.mark.parametrize("cell", [LSTMConfig(), GRUConfig(), CoupledLSTMConfig(), RNNConfig()], ids=lambda c: c.kind)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_copied_states_are_those_after_the_last_real_token(cell: object, direction: str) -> None:
    """Sutskever 2014: all of the encoder's state, the LSTM's memory included, whatever the padding."""
    encoder = RecurrentEncoderConfig(
        cell=cell, embedding=5, width=4, layers=2, dropout=0.0, direction=direction  # type: ignore[arg-type]
    )  # fmt: skip
    decoder = FixedContextDecoderConfig(
        cell=cell, embedding=5, width=4, layers=2, dropout=0.0, begin="copy", readout=StateReadout()  # type: ignore[arg-type]
    )  # fmt: skip
    model = build(decoder, encoder)
    given = batch()
    memory = model.encode(given.source.data, given.source.mask)
    assert len(memory.states) == 2
    for row in range(3):
        size = int(given.source.mask[row].sum())
        x = model.encoder.embedding(given.source.data[row : row + 1, :size])  # type: ignore[attr-defined]
        x = x.flip(1) if direction == "backward" else x
        for layer, states in zip(model.encoder.layers, memory.states, strict=True):  # type: ignore[attr-defined]
            state = layer.cell.start(1)
            steps = []
            for step in range(size):
                state = single_step(layer.cell, x[:, step], state)
                steps.append(state[0])
            x = torch.stack(steps, 1)
            for left, right in zip(states, state, strict=True):
                torch.testing.assert_close(left[row], right[0], **CLOSE)
    for copied, states in zip(model.start(given).cache, memory.states, strict=True):
        for left, right in zip(copied, states, strict=True):
            assert torch.equal(left, right)


def test_shared_cells_are_one_set_of_weights() -> None:
    encoder = RecurrentEncoderConfig(embedding=5, width=4, layers=2, dropout=0.0, direction="backward")
    decoder = FixedContextDecoderConfig(embedding=5, width=4, layers=2, dropout=0.0, begin="copy")
    apart, shared = (build(decoder, encoder, share_cells=share) for share in (False, True))
    counts = [sum(part.numel() for part in model.parameters()) for model in (apart, shared)]
    assert counts[0] - counts[1] == sum(
        part.numel() for layer in apart.encoder.layers for part in layer.cell.parameters()
    )  # type: ignore[attr-defined]
    shared(batch()).total.backward()
    assert shared.encoder.layers[0].cell.bias.grad is shared.decoder.stack.cells[0].bias.grad  # type: ignore[attr-defined]


PROBLEMS = {
    "decoder.begin: 'copy' needs": EncoderDecoderConfig(
        tie="none", encoder=ENCODER, decoder=FixedContextDecoderConfig(embedding=5, width=6, layers=2, begin="copy")
    ),
    "share_cells: found true, expected a recurrent encoder of one direction": EncoderDecoderConfig(
        tie="none", share_cells=True, encoder=ENCODER, decoder=FixedContextDecoderConfig(embedding=5, width=6, layers=2)
    ),
    "share_cells: found true, expected a recurrent encoder and": EncoderDecoderConfig(share_cells=True),
    "share_cells: found true, expected equal embedding sizes": EncoderDecoderConfig(
        tie="none", share_cells=True, encoder=replace(ENCODER, direction="forward"),
        decoder=FixedContextDecoderConfig(embedding=4, width=6, layers=2),
    ),
    "decoder.variational: found true": EncoderDecoderConfig(
        tie="none", truncate=2, encoder=ENCODER, decoder=LuongDecoderConfig(embedding=5, width=6, variational=True)
    ),
    "decoder.residual_from: found 9": EncoderDecoderConfig(
        tie="none", encoder=ENCODER, decoder=LuongDecoderConfig(embedding=5, width=6, residual_from=9)
    ),
    "decoder.widths: found 1, expected one for each of 2 layers": EncoderDecoderConfig(
        tie="none", encoder=ENCODER, decoder=LuongDecoderConfig(embedding=5, width=6, layers=2, widths=(6,))
    ),
    "decoder.width: found 6, expected 8": EncoderDecoderConfig(
        tie="none", encoder=ENCODER, decoder=LuongDecoderConfig(embedding=5, width=6, layers=2, widths=(6, 8))
    ),
    "decoder.residual_from: found widths that differ": EncoderDecoderConfig(
        tie="none", encoder=ENCODER, decoder=LuongDecoderConfig(
            embedding=5, width=6, layers=3, widths=(6, 8, 6), residual_from=2
        ),
    ),
    "decoder.begin: 'copy' needs a recurrent": EncoderDecoderConfig(
        tie="none", encoder=RecurrentEncoderConfig(embedding=5, width=6, layers=2, direction="forward"),
        decoder=FixedContextDecoderConfig(embedding=5, width=6, layers=2, widths=(4, 6), begin="copy"),
    ),
    "tie: 'target' needs equal sizes": EncoderDecoderConfig(
        encoder=ENCODER, decoder=FixedContextDecoderConfig(embedding=5, width=6, readout=StateReadout())
    ),
    "tie: 'target' needs learned embeddings": EncoderDecoderConfig(
        encoder=ENCODER, decoder=FixedContextDecoderConfig(embedding=0, width=6, readout=TanhReadout())
    ),
    "tie: 'source' needs equal sizes": EncoderDecoderConfig(
        tie="source", encoder=ENCODER, decoder=RecurrentDecoderConfig(embedding=4, width=6)
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", PROBLEMS)
def test_settings_that_do_not_fit_are_reported(message: str) -> None:
    assert [one for one in PROBLEMS[message].problems() if one.startswith(message)]


@pytest.mark.parametrize(("tie", "tables"), [("none", 3), ("inputs", 2), ("target", 2), ("source", 2), ("all", 1)])
def test_tables_are_tied_in_every_combination(tie: str, tables: int) -> None:
    """Weight tying (Press and Wolf 2017)."""
    decoder = RecurrentDecoderConfig(embedding=5, width=6, dropout=0.0)
    config = EncoderDecoderConfig(tie=tie, encoder=ENCODER, decoder=decoder)  # type: ignore[arg-type]
    assert not list(config.problems())
    model = EncoderDecoder(config, 13, 13)
    weights = [model.encoder.embedding.weight, model.decoder.embedding.weight, model.output.weight]  # type: ignore[attr-defined]
    assert len({id(weight) for weight in weights}) == tables
    pairs = {"inputs": (0, 1), "target": (1, 2), "source": (0, 2)}
    if tie in pairs:
        left, right = pairs[tie]
        assert weights[left] is weights[right]


def test_one_hot_encoder_decoder_has_the_published_size() -> None:
    """A published character model: one-hot 74 → LSTM 256; one-hot 78 → LSTM 256 → dense 78."""
    encoder = RecurrentEncoderConfig(embedding=0, width=256, direction="forward")
    decoder = FixedContextDecoderConfig(embedding=0, width=256, begin="copy", readout=StateReadout())
    config = EncoderDecoderConfig(tie="none", output_bias=True, encoder=encoder, decoder=decoder)
    assert not list(config.problems())
    model = EncoderDecoder(config, 74, 78)
    sizes = [
        sum(part.numel() for part in module.parameters()) for module in (model.encoder, model.decoder, model.output)
    ]  # type: ignore[attr-defined]
    assert sizes == [338_944, 343_040, 20_046]
    assert sum(part.numel() for part in model.parameters()) == 702_030
    model(batch_of([[5, 73]], [[4, 77]])).total.backward()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_truncated_back_propagation_cuts_the_gradient_and_nothing_else(size: int) -> None:
    """Truncated back-propagation: the same loss; gradients are those of chunks whose first state is a constant."""
    decoder = FixedContextDecoderConfig(embedding=5, width=4, dropout=0.0)
    whole, cut = build(decoder), build(decoder, truncate=size)
    given = batch()
    torch.testing.assert_close(cut(given).total, whole(given).total, **CLOSE)
    cut(given).total.backward()
    found = {name: part.grad.clone() for name, part in cut.named_parameters() if part.grad is not None}
    cut.zero_grad()
    memory, tokens, _ = reads(cut)
    state = cut.decoder.start(memory)
    total = torch.zeros(())
    for start in range(0, tokens.shape[1], size):
        hidden, state = cut.decoder(tokens[:, start : start + size], state)
        logits = cut.output(hidden).flatten(0, 1)
        target = given.target[:, start : start + size].flatten()
        total = total + nn.functional.cross_entropy(logits, target, ignore_index=0, reduction="sum")
        state = state._replace(cache=tuple(tuple(part.detach() for part in layer) for layer in state.cache))
    total.backward()
    for name, part in cut.named_parameters():
        torch.testing.assert_close(found[name], part.grad, **CLOSE)
    whole(given).total.backward()
    cell = "decoder.stack.cells.0.hidden_weight"
    assert (dict(whole.named_parameters())[cell].grad - found[cell]).abs().max() > 1e-6
