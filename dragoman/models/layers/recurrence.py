"""Recurrent cells over time: the wall between what a cell computes and how it is computed.

A cell (`layers.cells`) states its gates, its step and its extra parameters. `run` and `read` choose what computes a
sequence: torch's own function (cuDNN), our GPU kernel, a scan for exported graphs, or the cell's own steps. `unrolled`
serves loops whose every step needs the one before, and `feed` the loop of Luong's decoder. Tests hold every way against
`plain_loop`. Inside `observe_cells` every cell runs step by step and shows each step to an observer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from dragoman.models.kernels import fused_rnn, input_feeding
from dragoman.models.kernels.deferred_gradients import deferred_gradients, deferring, linear
from dragoman.models.kernels.support import is_exporting
from dragoman.models.kernels.torch_rnn import torch_is_faster, torch_rnn

CellState = tuple[Tensor, ...]  # each (N, D); the first is the output
# cell, input (N, I), projected input (N, blocks·D), state before, state after
CellObserver = Callable[["Cell", Tensor, Tensor, CellState, CellState], None]
_observer: ContextVar[CellObserver | None] = ContextVar("cell_observer", default=None)

RecurrentInit = Literal["orthogonal", "identity", "uniform"]
INITIALISERS: dict[str, Callable[[Tensor], Tensor]] = {
    "orthogonal": nn.init.orthogonal_,
    "identity": nn.init.eye_,
    "uniform": lambda block: nn.init.uniform_(block, -(block.shape[1] ** -0.5), block.shape[1] ** -0.5),
}


class Cell(nn.Module):
    """One block of weight rows per gate or candidate, and one bias per gate; torch's layers have two, always added.

    A step is `step(project(x), state)`. The projection of the input does not depend on the state, so a sequence is
    projected in one product.
    """

    config: Any = None  # its settings
    title: str = "Recurrent cell"
    blocks: int
    block_names: ClassVar[tuple[str, ...]]  # what each block of weight rows computes
    letters: ClassVar[tuple[str, ...]] = ()  # the name of each block in `equations`; (): it has one block
    num_states: int  # tensors in the state
    activation_name = "tanh"  # of the candidate
    torch_kernel = ""  # the name of torch's function, if it has one for this cell
    kernel = ""  # the name of our GPU kernel, if there is one
    projects_first = True  # whether `project` multiplies by W_ih; otherwise the step does

    def __init__(self, inputs: int, width: int, recurrent_init: RecurrentInit) -> None:
        super().__init__()
        self.inputs, self.width = inputs, width
        self.input_weight = nn.Parameter(torch.empty(self.blocks * width, inputs))
        self.hidden_weight = nn.Parameter(torch.empty(self.blocks * width, width))
        self.bias = nn.Parameter(torch.zeros(self.blocks * width))
        for block in self.input_weight.chunk(self.blocks):
            nn.init.xavier_uniform_(block)
        for block in self.hidden_weight.chunk(self.blocks):
            INITIALISERS[recurrent_init](block)

    def start(self, rows: int) -> CellState:
        """The state before the first step: zeros."""
        return tuple(self.bias.new_zeros(rows, self.width) for _ in range(self.num_states))

    def project(self, x: Tensor) -> Tensor:
        """W_ih x + b: (…, I) → (…, blocks·D)."""
        return self.finish_projection(self.input_product(x, self.input_weight))

    def input_product(self, x: Tensor, weight: Tensor) -> Tensor:
        """`project` before `finish_projection`; `weight` holds the columns of W_ih for x, which may be a part."""
        return linear(x, weight, self.bias)

    def finish_projection(self, product: Tensor) -> Tensor:
        """What follows after the product of the whole input: nothing, but for a norm in some cells."""
        return product

    def gates(self, projected: Tensor, state: CellState) -> dict[str, Tensor]:
        """The gates and the candidate of one step by name, each (N, D); projected (N, blocks·D), the state before."""
        raise NotImplementedError

    def step(self, projected: Tensor, state: CellState) -> CellState:
        """The state after one step, by the equations of the cell; projected (N, blocks·D)."""
        raise NotImplementedError

    def extras(self) -> tuple[Tensor, ...]:
        """Parameters of the recurrence beside W_hh."""
        return ()

    def equations(self) -> tuple[str, ...]:
        """One step as lines of plain PyTorch, from x, h_prev, c_prev and `symbols` to h and c; (): it has none."""
        return ()

    def symbols(self) -> dict[str, Tensor]:
        """The parameters by their names in `equations`: W, U and b of every block."""
        parts: dict[str, Tensor] = {"W": self.input_weight, "U": self.hidden_weight, "b": self.bias}
        if not self.letters:
            return parts
        chunks = {name: part.chunk(self.blocks) for name, part in parts.items()}
        return {f"{name}_{letter}": chunk[i] for name, chunk in chunks.items() for i, letter in enumerate(self.letters)}

    def add_hidden(self, projected: Tensor, hidden: Tensor) -> Tensor:
        """projected + W_hh h'."""
        if deferring():
            return projected + linear(hidden, self.hidden_weight)
        return torch.addmm(projected, hidden, self.hidden_weight.t())

    def torch_weights(self) -> list[Tensor]:
        """Weights as torch's functions expect them, with zeros for the second bias."""
        return [self.input_weight, self.hidden_weight, self.bias, torch.zeros_like(self.bias)]

    def forward(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """x (N, T, I), T ≥ 1 → outputs (N, T, D) and the state after them."""
        return run(self, x, state)


@contextmanager
def observe_cells(observer: CellObserver) -> Iterator[None]:
    """Call `observer` with every step of every cell inside the block, in the order that each cell reads its input."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def observed() -> bool:
    """Whether there is an observer: then no kernel may hide a step."""
    return not torch.compiler.is_compiling() and _observer.get() is not None


def observed_step(cell: Cell, x: Tensor, projected: Tensor, state: CellState) -> CellState:
    """The cell's step, shown to the observer if there is one."""
    after = cell.step(projected, state)
    if observed() and (observer := _observer.get()) is not None:
        observer(cell, x, projected, state, after)
    return after


# Sequences


def run(cell: Cell, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
    """x (N, T, I), T ≥ 1 → outputs (N, T, D) and the state after them; one step needs no set-up of a sequence."""
    if x.shape[1] > 1:
        return sequence(cell, x, state)
    state = single_step(cell, x[:, 0], state)
    return state[0][:, None], state


def read(
    cell: Cell, x: Tensor, mask: Tensor, *, backward: bool = False, whole_state: bool = False
) -> tuple[Tensor, CellState]:
    """Padded rows (B, S, I) from the start → outputs (B, S, D) in the order of x, and the last output of every row.

    Padding is at the end of a row. Forward, a cell reads it after all real tokens; backward, it reads the real tokens
    of every row reversed. So padding never reaches a real position, and rows need no packing.
    With `whole_state` the second result is the whole state (B, D) each after the last real token.
    """
    lengths, start = mask.sum(1), cell.start(x.shape[0])
    x = reversed_rows(x, lengths) if backward else x
    # torch's functions return the whole state after the last column only, which may be padding.
    states = all_states(cell, x, start) if whole_state else sequence(cell, x, start)[:1]
    out = reversed_rows(states[0], lengths) if backward else states[0]
    return out, tuple(last_output(part, lengths) for part in states)


def sequence(cell: Cell, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
    """All steps of x (N, T, I) → outputs (N, T, D) and the state after the last."""
    if torch_is_faster(cell.torch_kernel, x) and not observed() and not is_exporting():
        return torch_rnn(cell.torch_kernel, x, state, cell.torch_weights())
    states = all_states(cell, x, state)
    return states[0], tuple(part[:, -1] for part in states)


def all_states(cell: Cell, x: Tensor, state: CellState) -> CellState:
    """The whole state after every step of x (N, T, I), each tensor (N, T, D)."""
    if is_exporting():
        return scan_loop(cell, x, state)
    # A compiler fuses plain steps itself.
    if torch.compiler.is_compiling() or observed() or not fused_rnn.supports(cell.kernel, cell.hidden_weight):
        return plain_loop(cell, x, state)
    projected = cell.project(x.transpose(0, 1))
    states = fused_rnn.fused_rnn(cell.kernel, projected, cell.hidden_weight, state, cell.extras(), cell.activation_name)
    # The kernel keeps states in at least float32, also of a model in half precision.
    return tuple(part.transpose(0, 1).to(cell.bias.dtype) for part in states)


def plain_loop(cell: Cell, x: Tensor, state: CellState) -> CellState:
    """`all_states` step by step; time first in the product, so that every step is contiguous."""
    steps, inputs = [], cell.project(x.transpose(0, 1)).unbind(0)  # T times (N, blocks·D)
    with deferred_gradients(len(inputs) if x.is_cuda else 1):  # on a CPU that takes as long as it saves
        for t, projected in enumerate(inputs):
            state = observed_step(cell, x[:, t], projected, state)
            steps.append(state)
    return tuple(torch.stack(part, 1).to(cell.bias.dtype) for part in zip(*steps, strict=True))


def scan_loop(cell: Cell, x: Tensor, state: CellState) -> CellState:
    """`all_states` as one operation for exported graphs, in which the number of steps may change."""
    from torch._higher_order_ops.scan import scan

    def step(before: CellState, projected: Tensor) -> tuple[CellState, CellState]:
        after = cell.step(projected, before)
        return after, tuple(part.clone() for part in after)

    _, states = scan(step, tuple(state), cell.project(x.transpose(0, 1)))
    return tuple(part.transpose(0, 1) for part in states)


def reversed_rows(x: Tensor, lengths: Tensor) -> Tensor:
    """The real tokens of every row reversed, padding left in place: (B, S, D)."""
    positions = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
    lengths = lengths[:, None]
    index = torch.where(positions < lengths, lengths - 1 - positions, positions)
    return x.gather(1, index[:, :, None].expand_as(x))


def last_output(x: Tensor, lengths: Tensor) -> Tensor:
    """The vector at the last real position of every row, zeros for empty rows: (B, S, D) → (B, D)."""
    index = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, x.shape[2])
    return x.gather(1, index)[:, 0].masked_fill((lengths == 0)[:, None], 0.0)


# Steps, and loops in which a step needs the one before


def single_step(cell: Cell, x: Tensor, state: CellState) -> CellState:
    """One step with x (N, I), by torch's fused cell where there is one."""
    if cell.torch_kernel in ("lstm", "gru") and not (observed() or deferring() or is_exporting()):
        if cell.torch_kernel == "gru":
            return (torch.gru_cell(x, state[0], *cell.torch_weights()),)
        hidden, memory = torch.lstm_cell(x, list(state), *cell.torch_weights())
        return hidden, memory
    return observed_step(cell, x, cell.project(x), state)


@contextmanager
def unrolled(cell: Cell, x: Tensor) -> Iterator[Callable[[int, Tensor, CellState], CellState]]:
    """A function (t, context, state) → state of a step with the input [x_t; context], for a loop over time.

    x (N, T, X) is known before the loop. W [x; c] = W_x x + W_c c, so one product computes W_x x of all steps. The
    gradients of weights that a step inside the block multiplies by are computed at the end of the backward pass.
    """

    def joined_step(t: int, context: Tensor, state: CellState) -> CellState:
        return single_step(cell, torch.cat([x[:, t], context], -1), state)

    def projected_step(t: int, context: Tensor, state: CellState) -> CellState:
        return cell.step(cell.finish_projection(projected[t] + linear(context, weight)), state)

    one_product = x.shape[1] > 1 and cell.projects_first and not observed()  # an observer sees the whole input
    if one_product:
        projected = cell.input_product(x.transpose(0, 1), cell.input_weight[:, : x.shape[-1]]).unbind(0)
        weight = cell.input_weight[:, x.shape[-1] :]
    with deferred_gradients(x.shape[1]):
        yield projected_step if one_product else joined_step


def loop(steps: int) -> AbstractContextManager[None]:
    """Defer the weight gradients of the loop inside the block to the end of the backward pass."""
    return deferred_gradients(steps)


def feed(
    cell: Cell,
    x: Tensor,
    state: CellState,
    last: Tensor,
    memory: input_feeding.DotMemory | None,
    combine: nn.Linear | None,
) -> tuple[Tensor, CellState] | None:
    """Input feeding as one autograd function (`kernels.input_feeding`); None: the caller runs the plain loop."""
    if memory is None or combine is None or cell.kernel != "lstm" or observed():
        return None
    return input_feeding.feed(x, state, last, cell.input_weight, cell.hidden_weight, cell.bias, memory, combine.weight)
