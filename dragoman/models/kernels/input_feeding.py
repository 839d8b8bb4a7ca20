"""An LSTM with dot-product attention after it and input feeding (Luong et al. 2015), over a whole target on a CPU.

What a step returns enters the next one, so no two steps can run together. But one product computes the part of the
gates that reads tokens, for all steps, and another one every weight gradient; autograd through a loop has one for each
step. The rest of a step writes into tensors for all steps: no part of its input is copied to lie beside another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dragoman.models.kernels.cpu_matmul import column_sums
from dragoman.models.kernels.deferred_gradients import deferring

Gradients = tuple[Tensor | None, ...]
aten = torch.ops.aten


class DotMemory(NamedTuple):
    """What softmax(scale · q · K) V reads: keys (N, S, D), values (N, S, M), mask (N, S)."""

    keys: Tensor
    values: Tensor
    mask: Tensor
    scale: float


def feed(
    x: Tensor,
    state: tuple[Tensor, ...],
    last: Tensor,
    input_weight: Tensor,
    hidden_weight: Tensor,
    bias: Tensor,
    memory: DotMemory,
    combine: Tensor,
) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    """Attentional vectors ã_t = tanh(W_c [c_t; h_t]) (N, T, A) of tokens x (N, T, X), and the state after them.

    `state` and `last` come before the first step. W_ih (4D, X + A) reads [x; ã], ã the attentional vector of the step
    before; W_hh is (4D, D), W_c `combine` (A, M + D). None: the caller runs the plain loop.
    """
    if not _serves(bias, memory, x):
        return None
    keys = memory.keys if memory.scale == 1.0 else memory.keys * memory.scale
    leaves = (x, last, input_weight, hidden_weight, bias, keys, memory.values, combine, *state)
    out, *after = _Feeding.apply(memory.mask, *leaves)  # type: ignore[no-untyped-call]
    return out, tuple(after)


def _serves(bias: Tensor, memory: DotMemory, x: Tensor) -> bool:
    """On a CPU, inside a loop that defers gradients, with one row for each source."""
    if not deferring() or x.device.type != "cpu" or torch.is_autocast_enabled("cpu") or len(memory.keys) != len(x):
        return False
    return x.dtype in (torch.float32, torch.float64) and bias.dtype == memory.keys.dtype == x.dtype


class _Loop:
    """One forward pass and the tensors of all its steps, time first.

    A row of `joined` (T + 1, N, M + D + A) is [c_t; h_t; ã_t]: its end is what the next step reads, its beginning what
    ã_t is computed from. The blocks of `gates` are i, f, ĉ, o.
    """

    def __init__(self, mask: Tensor, leaves: tuple[Tensor, ...]) -> None:
        x, last, input_weight, hidden_weight, bias, self.keys, self.values, self.combine, hidden, memory = leaves
        self.rows, self.steps, self.inputs = x.shape
        self.width, self.read = hidden.shape[1], self.values.shape[2]
        self.hidden_mask = ~mask
        self.blind = None if bool(mask.any(1).all()) else mask  # rows without a source position
        self.tokens = x.transpose(0, 1).flatten(0, 1)  # (T·N, X)
        self.token_weight = input_weight[:, : self.inputs]
        self.weight = torch.cat([hidden_weight, input_weight[:, self.inputs :]], 1)  # of [h; ã]
        # The tokens' part of the gates; the other products are added in place.
        self.gates = torch.addmm(bias, self.tokens, self.token_weight.t()).view(self.steps, self.rows, -1)
        self.joined = x.new_empty(self.steps + 1, self.rows, self.read + self.width + last.shape[1])
        self.fed = self.joined[:, :, self.read :]  # [h; ã]
        self.attended = self.joined[:, :, : self.read + self.width]  # [c; h]
        self.attentional = self.fed[:, :, self.width :]
        self.hidden = self.fed[:, :, : self.width]
        self.memory = memory.new_empty(self.steps + 1, *memory.shape)
        self.tanh_memory = torch.empty_like(self.memory[1:])
        self.hidden[0], self.memory[0], self.attentional[0] = hidden, memory, last
        self.weights = x.new_empty(self.steps, self.rows, mask.shape[1])  # of the attention

    def forward(self) -> None:
        weight, combine = self.weight.t().contiguous(), self.combine.t().contiguous()
        for step in range(self.steps):
            self.gates[step].addmm_(self.fed[step], weight)
            self.cell_forward(step)
            scores = torch.bmm(self.keys, self.hidden[step + 1][:, :, None])[:, :, 0]
            scores.masked_fill_(self.hidden_mask, torch.finfo(scores.dtype).min)
            weights = torch.softmax(scores, 1, out=self.weights[step])
            if self.blind is not None:
                weights.mul_(self.blind)
            self.joined[step + 1][:, : self.read] = torch.bmm(weights[:, None], self.values)[:, 0]
            torch.tanh(self.attended[step + 1] @ combine, out=self.attentional[step + 1])

    def cell_forward(self, step: int) -> None:
        """c = f⊙c' + i⊙ĉ, h = o⊙tanh(c); the pre-activations in `gates` are replaced by the activations."""
        ingate, forget, candidate, output = self.gates[step].chunk(4, -1)
        self.gates[step, :, : 2 * self.width].sigmoid_()
        candidate.tanh_()
        output.sigmoid_()
        torch.mul(forget, self.memory[step], out=self.memory[step + 1]).addcmul_(ingate, candidate)
        torch.tanh(self.memory[step + 1], out=self.tanh_memory[step])
        torch.mul(output, self.tanh_memory[step], out=self.hidden[step + 1])

    def cell_backward(self, step: int, d_hidden: Tensor, d_memory: Tensor, d_gates: Tensor) -> None:
        """Fill `d_gates` (N, 4D) from the gradients of h and c after the step; `d_memory` becomes that of c'."""
        ingate, forget, candidate, output = self.gates[step].chunk(4, -1)
        d_ingate, d_forget, d_candidate, d_output = d_gates.chunk(4, -1)
        tanh_memory = self.tanh_memory[step]
        aten.sigmoid_backward.grad_input(d_hidden * tanh_memory, output, grad_input=d_output)
        d_memory.add_(aten.tanh_backward(d_hidden.mul_(output), tanh_memory))
        aten.sigmoid_backward.grad_input(d_memory * candidate, ingate, grad_input=d_ingate)
        aten.sigmoid_backward.grad_input(d_memory * self.memory[step], forget, grad_input=d_forget)
        aten.tanh_backward.grad_input(d_memory * ingate, candidate, grad_input=d_candidate)
        d_memory.mul_(forget)

    def backward(self, d_out: Tensor | None, d_last_hidden: Tensor | None, d_last_memory: Tensor | None) -> Gradients:
        """The gradients of all leaves from those of the attentional vectors (N, T, A) and of the last state."""
        width = self.width
        d_fed = self.fed.new_zeros(self.fed.shape[1:])  # from the step after
        if d_last_hidden is not None:
            d_fed[:, :width] = d_last_hidden
        d_memory = torch.zeros_like(self.memory[0]) if d_last_memory is None else d_last_memory.clone()
        d_all_gates = torch.empty_like(self.gates)
        d_combined = torch.empty_like(self.attentional[1:])  # before the tanh
        d_attended, d_scores = torch.empty_like(self.attended[1:]), torch.empty_like(self.weights)
        for step in range(self.steps - 1, -1, -1):
            d_attentional = d_fed[:, width:]
            if d_out is not None:
                d_attentional = d_attentional + d_out[:, step]
            aten.tanh_backward.grad_input(d_attentional, self.attentional[step + 1], grad_input=d_combined[step])
            torch.mm(d_combined[step], self.combine, out=d_attended[step])
            d_context, d_state = torch.split(d_attended[step], [self.read, width], 1)
            d_weights = torch.bmm(self.values, d_context[:, :, None])[:, :, 0]
            d_scores[step] = torch._softmax_backward_data(d_weights, self.weights[step], 1, d_weights.dtype)
            d_hidden = torch.bmm(d_scores[step][:, None], self.keys)[:, 0].add_(d_state).add_(d_fed[:, :width])
            self.cell_backward(step, d_hidden, d_memory, d_all_gates[step])
            d_fed = d_all_gates[step] @ self.weight
        d_gates, contexts = d_all_gates.flatten(0, 1), d_attended[:, :, : self.read]
        fed = d_gates.t() @ self.fed[:-1].flatten(0, 1)
        return (
            (d_gates @ self.token_weight).view(self.steps, self.rows, -1).transpose(0, 1),
            d_fed[:, width:],
            torch.cat([d_gates.t() @ self.tokens, fed[:, width:]], 1),
            fed[:, :width],
            column_sums(d_gates),
            torch.bmm(d_scores.permute(1, 2, 0), self.hidden[1:].transpose(0, 1)),
            torch.bmm(self.weights.permute(1, 2, 0), contexts.transpose(0, 1)),
            d_combined.flatten(0, 1).t() @ self.attended[1:].flatten(0, 1),
            d_fed[:, :width],
            d_memory,
        )


class _Feeding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mask: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        loop = _Loop(mask, leaves)
        loop.forward()
        ctx.set_materialize_grads(False)
        ctx.loop = loop
        ctx.save_for_backward(*leaves)  # so that autograd notices changes in place
        out = loop.attentional[1:].transpose(0, 1).contiguous()
        return out, loop.hidden[-1].clone(), loop.memory[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        ctx.saved_tensors  # noqa: B018  raises where a leaf was changed in place
        return None, *ctx.loop.backward(*gradients)
