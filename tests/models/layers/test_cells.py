"""Recurrent cells against their equations, torch's layers and numeric gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.models.kernels.torch_rnn import torch_rnn
from dragoman.models.layers import recurrence
from dragoman.models.layers.cells import (
    CELLS,
    CellConfig,
    CoupledLSTMConfig,
    GRUConfig,
    LayerNormLSTMConfig,
    LSTMConfig,
    MogrifierLSTMConfig,
    PeepholeLSTMConfig,
    RNNConfig,
    build_cell,
)
from dragoman.models.layers.recurrence import Cell, CellState, plain_loop, run, single_step

INPUTS, WIDTH, ROWS, STEPS = 5, 7, 3, 6
CASES: dict[str, CellConfig] = {
    "rnn": RNNConfig(),
    "rnn-relu": RNNConfig(activation="relu"),
    "lstm": LSTMConfig(),
    "peephole": PeepholeLSTMConfig(),
    "coupled": CoupledLSTMConfig(),
    "layer-norm": LayerNormLSTMConfig(),
    "mogrifier": MogrifierLSTMConfig(rounds=3),
    "mogrifier-rank": MogrifierLSTMConfig(rounds=2, rank=2),
    "gru-after": GRUConfig(),
    "gru-before": GRUConfig(reset="before"),
    "gru-after-relu": GRUConfig(activation="relu"),
    "gru-before-silu": GRUConfig(reset="before", activation="silu"),
    "gru-before-gelu": GRUConfig(reset="before", activation="gelu"),
    "gru-sigmoid": GRUConfig(activation="sigmoid"),
    "lstm-relu-sigmoid": LSTMConfig(activation="relu", output_activation="sigmoid"),
    "peephole-full": PeepholeLSTMConfig(peepholes="full"),
}
every_cell = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(7)
    yield
    torch.set_default_dtype(torch.float32)


def same(found: Tensor, expected: Tensor, what: str = "outputs") -> None:
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-10, msg=lambda text: f"{what}: {text}")


def shaken(config: CellConfig, inputs: int = INPUTS, width: int = WIDTH) -> Cell:
    """A cell away from its tidy start, so that biases, peepholes and norms matter."""
    cell = build_cell(config, inputs, width)
    with torch.no_grad():
        for part in cell.parameters():
            part.add_(0.5 * torch.randn_like(part))
    return cell


def start_of(cell: Cell, rows: int = ROWS) -> CellState:
    return tuple(torch.randn(rows, cell.width).requires_grad_() for _ in range(cell.num_states))


def looped(cell: Cell, x: Tensor, starts: CellState) -> tuple[Tensor, CellState]:
    """The sequence by plain steps."""
    states = plain_loop(cell, x, starts)
    return states[0], tuple(part[:, -1] for part in states)


def by_torch(cell: Cell, x: Tensor, starts: CellState) -> list[tuple[Tensor, CellState]]:
    """The sequence by torch's own kernel, where it has one."""
    return [torch_rnn(cell.torch_kernel, x, starts, cell.torch_weights())] if cell.torch_kernel else []


def same_with_gradients(ways: list[tuple[Tensor, CellState]], leaves: list[Tensor]) -> None:
    """Every way gives the outputs, last states and gradients of the first."""
    (out, state), *others = ways
    weight = torch.randn_like(out)

    def gradients(out: Tensor, state: CellState) -> tuple[Tensor, ...]:
        total = (out * weight).sum() + sum(part.square().sum() for part in state)
        return torch.autograd.grad(total, leaves)

    expected = gradients(out, state)
    assert all(float(part.abs().max()) > 1e-2 for part in expected), "so small that the tolerance says nothing"
    for other_out, other_state in others:
        same(other_out, out)
        assert len(other_state) == len(state)
        for left, right in zip(other_state, state, strict=True):
            same(left, right, "state")
        for left, right in zip(gradients(other_out, other_state), expected, strict=True):
            same(left, right, "gradient")


# --- Every cell is its equations --------------------------------------------------------------------------------------


def sums(cell: Cell, x: Tensor, hidden: Tensor) -> list[Tensor]:
    """W x + U h' + b for every block of rows."""
    blocks = zip(*(part.chunk(cell.blocks) for part in (cell.input_weight, cell.hidden_weight, cell.bias)), strict=True)
    return [x @ w.T + hidden @ u.T + b for w, u, b in blocks]


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def normed(x: Tensor, gain: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return gain * centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def plain(activation: Callable[[Tensor], Tensor]) -> Callable[..., CellState]:
    def step(cell: Any, x: Tensor, hidden: Tensor) -> CellState:
        return (activation(sums(cell, x, hidden)[0]),)

    return step


def lstm(cell: Any, x: Tensor, hidden: Tensor, memory: Tensor) -> CellState:
    i, f, candidate, o = sums(cell, x, hidden)
    memory = sigmoid(f) * memory + sigmoid(i) * torch.tanh(candidate)
    return sigmoid(o) * torch.tanh(memory), memory


def mogrifier(cell: Any, x: Tensor, hidden: Tensor, memory: Tensor) -> CellState:
    def factor(gate: Any, value: Tensor) -> Tensor:
        if isinstance(gate, nn.Sequential):
            return 2 * sigmoid(value @ gate[0].weight.T @ gate[1].weight.T + gate[1].bias)
        return 2 * sigmoid(value @ gate.weight.T + gate.bias)

    first, second, *third = cell.rounds
    x = factor(first, hidden) * x
    hidden = factor(second, x) * hidden
    return lstm(cell, factor(third[0], hidden) * x if third else x, hidden, memory)


def relu_lstm(cell: Any, x: Tensor, hidden: Tensor, memory: Tensor) -> CellState:
    i, f, candidate, o = sums(cell, x, hidden)
    memory = sigmoid(f) * memory + sigmoid(i) * candidate.clamp(min=0)
    return sigmoid(o) * sigmoid(memory), memory


def peephole(cell: Any, x: Tensor, hidden: Tensor, memory: Tensor) -> CellState:
    i, f, candidate, o = sums(cell, x, hidden)
    see_i, see_f, see_o = (torch.diag(row) if row.dim() == 1 else row.T for row in cell.peepholes)
    f = sigmoid(f + memory @ see_f)
    i = sigmoid(i + memory @ see_i)
    memory = f * memory + i * torch.tanh(candidate)
    return sigmoid(o + memory @ see_o) * torch.tanh(memory), memory


def coupled(cell: Any, x: Tensor, hidden: Tensor, memory: Tensor) -> CellState:
    f, o, candidate = sums(cell, x, hidden)
    memory = sigmoid(f) * memory + (1 - sigmoid(f)) * torch.tanh(candidate)
    return sigmoid(o) * torch.tanh(memory), memory


def normalised(cell: Any, x: Tensor, hidden: Tensor, memory: Tensor) -> CellState:
    gates = normed(hidden @ cell.hidden_weight.T, cell.hidden_norm.weight)
    gates = gates + normed(x @ cell.input_weight.T, cell.input_norm.weight) + cell.bias
    i, f, candidate, o = gates.chunk(4, -1)
    memory = sigmoid(f) * memory + sigmoid(i) * torch.tanh(candidate)
    shown = normed(memory, cell.memory_norm.weight) + cell.memory_norm.bias
    return sigmoid(o) * torch.tanh(shown), memory


def gru(reset: str, activation: Callable[[Tensor], Tensor]) -> Callable[..., CellState]:
    def step(cell: Any, x: Tensor, hidden: Tensor) -> CellState:
        r, u, _ = sums(cell, x, hidden)
        r, u = sigmoid(r), sigmoid(u)
        w, m, b = (part.chunk(3)[2] for part in (cell.input_weight, cell.hidden_weight, cell.bias))
        from_state = r * (hidden @ m.T) if reset == "after" else (r * hidden) @ m.T
        candidate = activation(x @ w.T + from_state + b)
        return (u * hidden + (1 - u) * candidate,)

    return step


EQUATIONS: dict[str, Callable[..., CellState]] = {
    "rnn": plain(torch.tanh),
    "rnn-relu": plain(lambda x: x.clamp(min=0)),
    "lstm": lstm,
    "mogrifier": mogrifier,
    "mogrifier-rank": mogrifier,
    "peephole": peephole,
    "coupled": coupled,
    "layer-norm": normalised,
    "gru-after": gru("after", torch.tanh),
    "gru-before": gru("before", torch.tanh),
    "gru-after-relu": gru("after", lambda x: x.clamp(min=0)),
    "gru-before-silu": gru("before", lambda x: x * sigmoid(x)),
    "gru-before-gelu": gru("before", F.gelu),
    "gru-sigmoid": gru("after", lambda x: 1 / (1 + torch.exp(-x))),
    "lstm-relu-sigmoid": relu_lstm,
    "peephole-full": peephole,
}


def test_every_cell_has_a_case_and_a_place_in_the_table() -> None:
    assert {type(case) for case in CASES.values()} == set(CELLS) == set(get_args(CellConfig))


@every_cell
def test_a_cell_is_its_equations(name: str) -> None:
    cell = shaken(CASES[name])
    x = torch.randn(ROWS, STEPS, INPUTS).requires_grad_()
    starts = start_of(cell)
    outputs, state = [], starts
    for token in x.unbind(1):
        state = EQUATIONS[name](cell, token, *state)
        outputs.append(state[0])
    same_with_gradients([(torch.stack(outputs, 1), state), run(cell, x, starts)], [x, *starts, *cell.parameters()])


@every_cell
def test_a_sequence_is_step_by_step(name: str) -> None:
    """Fused or not; and a step is the same through `step`, which uses no fused kernel."""
    cell = shaken(CASES[name])
    x = torch.randn(ROWS, STEPS, INPUTS).requires_grad_()
    starts = start_of(cell)
    outputs, state = [], starts
    for token in x.unbind(1):
        state = single_step(cell, token, state)
        outputs.append(state[0])
        assert len(state) == cell.num_states
    ways = [
        (torch.stack(outputs, 1), state),
        run(cell, x, starts),
        looped(cell, x, starts),
        *by_torch(cell, x, starts),
    ]
    same_with_gradients(ways, [x, *starts, *cell.parameters()])


@every_cell
def test_without_gradients_a_sequence_is_the_same(name: str) -> None:
    """Then a CPU runs torch's own functions, too."""
    cell = shaken(CASES[name])
    x, starts = torch.randn(ROWS, STEPS, INPUTS), start_of(cell)
    with torch.no_grad():
        found = run(cell, x, starts)
    out, state = looped(cell, x, starts)
    for left, right in zip((found[0], *found[1]), (out, *state), strict=True):
        same(left, right.detach())


@every_cell
def test_any_split_of_a_sequence_is_the_whole(name: str) -> None:
    cell = shaken(CASES[name])
    x = torch.randn(ROWS, STEPS, INPUTS).requires_grad_()
    starts = start_of(cell)
    first, state = run(cell, x[:, :2], starts)
    second, state = run(cell, x[:, 2:], state)
    ways = [run(cell, x, starts), (torch.cat([first, second], 1), state)]
    same_with_gradients(ways, [x, *starts, *cell.parameters()])


@every_cell
def test_gradients_are_the_numeric_ones(name: str) -> None:
    cell = shaken(CASES[name], inputs=2, width=3)
    x, starts = torch.randn(2, 3, 2).requires_grad_(), start_of(cell, 2)

    def outputs(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:  # gradcheck changes the weights themselves, in place
        out, state = run(cell, x, rest[: cell.num_states])
        return out, *state

    assert torch.autograd.gradcheck(outputs, (x, *starts, *cell.parameters()))


# --- Against torch's layers -------------------------------------------------------------------------------------------

TORCH: dict[str, Callable[..., Any]] = {
    "rnn": nn.RNN,
    "rnn-relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
    "lstm": nn.LSTM,
    "gru-after": nn.GRU,
}


@pytest.mark.parametrize("name", TORCH)
def test_a_cell_over_a_sequence_is_torchs_layer(name: str) -> None:
    cell, theirs = shaken(CASES[name]), TORCH[name](INPUTS, WIDTH, batch_first=True)
    x, starts = torch.randn(ROWS, STEPS, INPUTS).requires_grad_(), start_of(cell)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(cell.input_weight)
        theirs.weight_hh_l0.copy_(cell.hidden_weight)
        theirs.bias_ih_l0.copy_(cell.bias)
        theirs.bias_hh_l0.zero_()  # the second bias a gate, which we do not carry
    begin = tuple(part[None] for part in starts)
    expected, last = theirs(x, begin if cell.num_states == 2 else begin[0])
    last = last if cell.num_states == 2 else (last,)
    found, state = run(cell, x, starts)
    weight = torch.randn_like(expected)
    gradients = []
    for out, states, own in (
        (found, state, [cell.input_weight, cell.hidden_weight, cell.bias]),
        (expected, [part[0] for part in last], [theirs.weight_ih_l0, theirs.weight_hh_l0, theirs.bias_ih_l0]),
    ):
        total = (out * weight).sum() + sum(part.square().sum() for part in states)
        gradients.append(torch.autograd.grad(total, [x, *starts, *own]))
    same(found, expected)
    for left, right in zip(state, last, strict=True):
        same(left, right[0], "state")
    for left, right in zip(*gradients, strict=True):
        assert float(right.abs().max()) > 1e-2
        same(left, right, "gradient")


def test_a_coupled_lstm_is_torchs_with_opposite_gates() -> None:
    """1 − σ(z) = σ(−z): torch's LSTM with the forget gate's weights negated in its input gate."""
    cell, theirs = shaken(CoupledLSTMConfig()), nn.LSTM(INPUTS, WIDTH, batch_first=True)
    with torch.no_grad():
        for ours, name in ((cell.input_weight, "weight_ih_l0"), (cell.hidden_weight, "weight_hh_l0")):
            forget, output, candidate = ours.chunk(3)
            getattr(theirs, name).copy_(torch.cat([-forget, forget, candidate, output]))
        forget, output, candidate = cell.bias.chunk(3)
        theirs.bias_ih_l0.copy_(torch.cat([-forget, forget, candidate, output]))
        theirs.bias_hh_l0.zero_()
    x = torch.randn(ROWS, STEPS, INPUTS)
    found, (hidden, memory) = run(cell, x, cell.start(ROWS))
    expected, (last_hidden, last_memory) = theirs(x)
    same(found, expected)
    same(hidden, last_hidden[0], "h")
    same(memory, last_memory[0], "c")


def test_full_peepholes_with_diagonal_matrices_are_diagonal_ones() -> None:
    diagonal, full = shaken(PeepholeLSTMConfig()), build_cell(PeepholeLSTMConfig(peepholes="full"), INPUTS, WIDTH)
    values = diagonal.state_dict()
    full.load_state_dict({**values, "peepholes": torch.diag_embed(values["peepholes"])})
    x = torch.randn(ROWS, STEPS, INPUTS)
    found, expected = (run(cell, x, cell.start(ROWS)) for cell in (full, diagonal))
    same(found[0], expected[0])
    same(found[1][1], expected[1][1])


def test_a_peephole_lstm_starts_as_the_lstm() -> None:
    torch.manual_seed(3)
    with_holes = build_cell(PeepholeLSTMConfig(), INPUTS, WIDTH)
    torch.manual_seed(3)
    without = build_cell(LSTMConfig(), INPUTS, WIDTH)
    x = torch.randn(ROWS, STEPS, INPUTS)
    found, expected = (run(cell, x, cell.start(ROWS))[0] for cell in (with_holes, without))
    same(found, expected)
    found.sum().backward()
    holes = with_holes.get_parameter("peepholes").grad
    assert holes is not None
    assert holes.all()  # shut, but they can learn


# --- Sizes and starts -------------------------------------------------------------------------------------------------


def size(module: nn.Module) -> int:
    return sum(part.numel() for part in module.parameters())


@pytest.mark.parametrize(
    ("config", "inputs", "width", "count"),
    [
        (LSTMConfig(), 74, 256, 338_944),
        (LSTMConfig(), 78, 256, 343_040),
        (LSTMConfig(), 1, 100, 40_800),
        (LSTMConfig(), 100, 100, 80_400),
        (LSTMConfig(), 128, 128, 131_584),
        (CoupledLSTMConfig(), 74, 256, 338_944 * 3 // 4),  # a quarter fewer
        (PeepholeLSTMConfig(), 74, 256, 338_944 + 3 * 256),
        (PeepholeLSTMConfig(peepholes="full"), 74, 256, 338_944 + 3 * 256 * 256),
        (LayerNormLSTMConfig(), 74, 256, 338_944 + 2 * 4 * 256 + 2 * 256),
        (GRUConfig(), 74, 256, 338_944 * 3 // 4),
        (GRUConfig(reset="before"), 74, 256, 338_944 * 3 // 4),
    ],
)
def test_cells_count_one_bias_a_gate(config: CellConfig, inputs: int, width: int, count: int) -> None:
    """Published counts."""
    assert size(build_cell(config, inputs, width)) == count


def test_a_plain_cell_and_a_dense_output_count_eleven() -> None:
    """RNN(1→2) + dense(2→1)."""
    cell = build_cell(RNNConfig(), 1, 2)
    assert (size(cell), size(nn.Linear(2, 1))) == (8, 3)


@every_cell
def test_recurrent_weights_start_orthogonal(name: str) -> None:
    """Gate by gate, so that no gate's product changes a length."""
    cell = build_cell(CASES[name], INPUTS, WIDTH)
    for block in cell.hidden_weight.chunk(cell.blocks):
        same(block @ block.T, torch.eye(WIDTH))
        assert float((block - torch.eye(WIDTH)).detach().abs().max()) > 0.1


def test_other_starts() -> None:
    identity = build_cell(GRUConfig(recurrent_init="identity"), INPUTS, WIDTH)
    for block in identity.hidden_weight.chunk(3):
        assert torch.equal(block, torch.eye(WIDTH))
    uniform = build_cell(LSTMConfig(recurrent_init="uniform"), 4, 64).hidden_weight.detach()
    assert 0.95 / 8 < float(uniform.abs().max()) <= 1 / 8
    assert abs(float(uniform.mean())) < 0.01
    assert float(uniform.square().mean()) == pytest.approx(1 / 64 / 3, rel=0.05)  # a uniform law's variance


@pytest.mark.parametrize(
    ("config", "block"),
    [
        (LSTMConfig(forget_bias=0.5), 1),
        (PeepholeLSTMConfig(forget_bias=0.5), 1),
        (CoupledLSTMConfig(forget_bias=0.5), 0),
        (LayerNormLSTMConfig(forget_bias=0.5), 1),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_only_the_forget_gate_starts_open(config: CellConfig, block: int) -> None:
    cell = build_cell(config, INPUTS, WIDTH)
    expected = [[0.5 if place == block else 0.0] * WIDTH for place in range(cell.blocks)]
    assert cell.bias.view(cell.blocks, WIDTH).tolist() == expected


def test_an_orthogonal_plain_cell_keeps_the_gradients_length() -> None:
    """While tanh is near its linear middle, ‖∂h_T/∂h_0 · v‖ = ‖v‖."""
    cell = build_cell(RNNConfig(), INPUTS, WIDTH)
    start = torch.full((1, WIDTH), 1e-8).requires_grad_()
    out, _ = run(cell, torch.zeros(1, 40, INPUTS), (start,))
    direction = torch.randn(WIDTH)
    (gradient,) = torch.autograd.grad(out[0, -1] @ direction, start)
    assert float(gradient.norm()) == pytest.approx(float(direction.norm()), rel=1e-9)


def test_a_compiled_layer_is_a_plain_loop_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11 tells compiled functions that they are exported; only exported graphs need a scan."""
    torch._dynamo.reset()
    cell = build_cell(PeepholeLSTMConfig(), INPUTS, WIDTH)
    x, state = torch.randn(ROWS, STEPS, INPUTS), cell.start(ROWS)
    expected = run(cell, x, state)[0]
    monkeypatch.setattr(recurrence, "scan_loop", None)  # calling it would fail
    compiled = torch.compile(cell, backend="eager")(x, state)[0]
    torch.testing.assert_close(compiled, expected)
