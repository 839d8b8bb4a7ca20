"""Recurrent cells over whole sequences on a GPU as one autograd function, with the backward pass written out.

The forward pass stores the gates and states of all steps in one tensor each. The backward pass fills one tensor with
the gradients of all pre-activations, so that the gradient of W_hh is one product over the rows of all steps; autograd
through a loop computes one product per step and adds them up. The rest of a step is pointwise, one Triton kernel each
way (`fused_rnn_triton`). Nothing here copies a number from the device to the host, so a CUDA graph can capture it.

On a CPU autograd through plain steps is as fast, so there is no such function for CPUs.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dragoman.models.kernels.support import HAS_TRITON

StateGradients = tuple[Tensor, Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]


def supports(kernel: str, weight: Tensor) -> bool:
    """Whether there is such a kernel for cells with this weight. The kernels compute in float32 at most."""
    if not kernel or not weight.is_cuda or weight.dtype == torch.float64:
        return False
    if not HAS_TRITON:
        warnings.warn("recurrent layers run without their GPU kernels: Triton is not installed", stacklevel=2)
    return HAS_TRITON


def fused_rnn(
    kernel: str,
    projected: Tensor,
    weight: Tensor,
    initial: tuple[Tensor, ...],
    extras: tuple[Tensor, ...] = (),
    activation: str = "tanh",
) -> tuple[Tensor, ...]:
    """All states after every step, each (T, N, D) in at least float32.

    projected (T, N, blocks·D) is W_ih x + b, weight (blocks·D, D) is W_hh, initial states (N, D) each.
    """
    states: tuple[Tensor, ...] = _Sequence.apply(  # type: ignore[no-untyped-call]
        kernel, activation, len(initial), projected, weight, *initial, *extras
    )
    return states


class _FusedRNN:
    """The Elman cell, the LSTM, the LSTM with coupled gates, and what all fused cells share.

    All tensors have the time first: projected (T, N, blocks·D), every state (T + 1, N, D) with the initial state at 0.
    """

    adds_product = True  # one product computes projected + W h'; otherwise W h' is stored separately

    def __init__(
        self,
        kernel: str,
        projected: Tensor,
        weight: Tensor,
        initial: tuple[Tensor, ...],
        extras: tuple[Tensor, ...],
        activation: str,
    ) -> None:
        from dragoman.models.kernels import fused_rnn_triton  # needs a GPU

        self.triton: Any = fused_rnn_triton
        self.kernel, self.projected, self.extras, self.activation = kernel, projected, extras, activation
        self.weight = weight.to(projected.dtype)
        self.steps, self.rows, self.width = projected.shape[0], projected.shape[1], initial[0].shape[1]
        dtype = torch.promote_types(projected.dtype, torch.float32)
        self.states = tuple(state.new_empty(self.steps + 1, *state.shape, dtype=dtype) for state in initial)
        for state, first in zip(self.states, initial, strict=True):
            state[0] = first
        self.hidden_inputs = self.states[0]  # h in the type of the product
        if dtype != projected.dtype:
            self.hidden_inputs = self.states[0].new_empty(self.states[0].shape, dtype=projected.dtype)
            self.hidden_inputs[0] = initial[0]
        self.gates = torch.empty(projected.shape, dtype=projected.dtype, device=projected.device)
        self.products = self.gates if self.adds_product else torch.empty_like(self.gates)
        self.allocate()

    def allocate(self) -> None:
        """Allocate what else the forward pass stores."""

    def new_block(self, width: int) -> Tensor:
        """An uninitialised tensor (T, N, width)."""
        return self.states[0].new_empty(self.steps, self.rows, width)

    def forward(self) -> None:
        """Fill the states; the pre-activations in `gates` are replaced by the activations."""
        transposed = self.weight.t()
        for step in range(self.steps):
            if self.adds_product:
                torch.addmm(self.projected[step], self.hidden_inputs[step], transposed, out=self.gates[step])
            else:
                torch.mm(self.hidden_inputs[step], transposed, out=self.products[step])
            self.triton.pointwise_forward(self, step)

    def backward(self, output_gradients: tuple[Tensor | None, ...]) -> StateGradients:
        """The gradients of projected, weight, initial state and extras from those of all states (T, N, D)."""
        self.output_gradients = tuple(
            gradient if gradient is None or gradient.stride(2) == 1 else gradient.contiguous()
            for gradient in output_gradients
        )
        self.d_gates = torch.empty_like(self.gates)
        self.d_products = self.d_gates if self.adds_product else torch.empty_like(self.gates)
        self.state_gradients = tuple(state.new_zeros(self.rows, self.width) for state in self.states)
        self.direct_gradient: Tensor | None = None  # the part of h' gradient that does not pass through the product
        self.allocate_backward()
        for step in range(self.steps - 1, -1, -1):
            self.triton.pointwise_backward(self, step)
            d_hidden = self.d_products[step] @ self.weight
            if self.direct_gradient is not None:
                d_hidden = self.direct_gradient.add_(d_hidden)
            self.state_gradients = (d_hidden, *self.state_gradients[1:])
        d_weight = self.d_products.flatten(0, 1).t() @ self.hidden_inputs[:-1].flatten(0, 1)  # over all steps
        result = self.d_gates, d_weight, self.state_gradients, self.extras_gradients()
        del self.d_gates, self.d_products, self.output_gradients, self.state_gradients, self.direct_gradient
        return result

    def allocate_backward(self) -> None:
        """Allocate what the backward pass stores for its end."""

    def extras_gradients(self) -> tuple[Tensor, ...]:
        """The gradients of the cell's other parameters, over all steps at once."""
        return ()


class _FusedPeepholeLSTM(_FusedRNN):
    """Extras are the peepholes of i, f and o (3, D)."""

    def extras_gradients(self) -> tuple[Tensor, ...]:
        d_ingate, d_forget, _, d_output = self.d_gates.chunk(4, -1)
        before, after = self.states[1][:-1], self.states[1][1:]
        pairs = ((d_ingate, before), (d_forget, before), (d_output, after))
        return (torch.stack([(left * right).sum((0, 1)) for left, right in pairs]),)


class _FusedLayerNormLSTM(_FusedRNN):
    """Extras are the gain of norm(W h'), and gain and bias of norm(c); `products` holds norm(W h') before the gain."""

    adds_product = False
    epsilon = 1e-5  # the default of nn.LayerNorm

    def allocate(self) -> None:
        """`normed_memory` holds norm(c) before gain and bias; the scales are 1 / deviation."""
        self.normed_memory = self.new_block(self.width)
        self.product_scale, self.memory_scale = self.new_block(1), self.new_block(1)

    def allocate_backward(self) -> None:
        self.d_tanh_memory = self.new_block(self.width)

    def extras_gradients(self) -> tuple[Tensor, ...]:
        gain = (self.d_gates * self.products).sum((0, 1))
        return gain, (self.d_tanh_memory * self.normed_memory).sum((0, 1)), self.d_tanh_memory.sum((0, 1))


class _FusedGRU(_FusedRNN):
    """The reset gate after the product, as in cuDNN."""

    adds_product = False

    def allocate(self) -> None:
        self.preactivation = self.new_block(self.width)


KERNELS: dict[str, type[_FusedRNN]] = {
    "rnn": _FusedRNN,
    "lstm": _FusedRNN,
    "peephole-lstm": _FusedPeepholeLSTM,
    "coupled-lstm": _FusedRNN,
    "layer-norm-lstm": _FusedLayerNormLSTM,
    "gru": _FusedGRU,
}


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernel: str, activation: str, states: int, projected: Tensor, weight: Tensor, *rest: Tensor
    ) -> Any:
        rnn = KERNELS[kernel](kernel, projected, weight, rest[:states], rest[states:], activation)
        with torch.autocast(projected.device.type, enabled=False):  # all types are set above
            rnn.forward()
        ctx.set_materialize_grads(False)
        ctx.rnn, ctx.dtypes = rnn, tuple(tensor.dtype for tensor in (projected, weight, *rest))
        ctx.save_for_backward(weight, *rest[states:], *rnn.states)  # so that autograd notices changes in place
        return tuple(state[1:] for state in rnn.states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *output_gradients: Tensor | None) -> tuple[Any, ...]:
        ctx.saved_tensors  # noqa: B018  raises where a weight or a state was changed in place
        d_projected, d_weight, d_initial, d_extras = ctx.rnn.backward(output_gradients)
        gradients = d_projected, d_weight, *d_initial, *d_extras
        return None, None, None, *(tensor.to(dtype) for tensor, dtype in zip(gradients, ctx.dtypes, strict=True))
