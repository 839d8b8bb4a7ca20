"""Recurrent cells over whole sequences as one autograd function, with the backward pass written out.

The forward pass stores the gates and states of all steps in one tensor each. The backward pass fills one tensor with
the gradients of all pre-activations, so that the gradient of W_hh is one product over the rows of all steps; autograd
through a loop computes one product per step and adds them up. The rest of a step is pointwise: `pointwise_forward` and
`pointwise_backward`, in plain torch here and in `fused_lstm` and `fused_gru`, as one Triton kernel each in
`fused_rnn_triton` on a GPU.

Nothing here copies a number from the device to the host, so a CUDA graph can capture it.
"""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dragoman.kernels.activations import ACTIVATION_GRADIENTS, ACTIVATIONS
from dragoman.kernels.support import HAS_TRITON


def triton_kernels(rnn: FusedRNN) -> ModuleType | None:
    """The module with the pointwise kernels for this cell, if its device and types have them; None: plain torch."""
    if rnn.kernel is None or not rnn.projected.is_cuda or rnn.states[0].dtype != torch.float32:
        return None
    if not HAS_TRITON:
        warnings.warn("recurrent layers run without their GPU kernels: Triton is not installed", stacklevel=2)
        return None
    from dragoman.kernels import fused_rnn_triton

    return fused_rnn_triton


StateGradients = tuple[Tensor, Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]


class FusedRNN:
    """The Elman cell, h = activation(projected + W h'), and what all fused cells share.

    All tensors have the time first: projected (T, N, blocks·D), every state (T + 1, N, D) with the initial state at 0.
    """

    blocks = 1
    adds_product = True  # one product computes projected + W h'; otherwise W h' is stored separately
    kernel: ClassVar[str | None] = "rnn"  # which kernels of `fused_rnn_triton` serve; None: none

    def __init__(
        self,
        projected: Tensor,
        weight: Tensor | None,  # None where the caller computes W h'
        initial: tuple[Tensor, ...],
        extras: tuple[Tensor, ...],
        activation: str,
    ) -> None:
        self.projected, self.extras, self.activation = projected, extras, activation
        self.weight = projected if weight is None else weight.to(projected.dtype)
        self.steps, self.rows, self.width = projected.shape[0], projected.shape[1], initial[0].shape[1]
        dtype = torch.promote_types(projected.dtype, torch.float32)
        self.states = tuple(state.new_empty(self.steps + 1, *state.shape, dtype=dtype) for state in initial)
        for state, first in zip(self.states, initial, strict=True):
            state[0] = first
        self.hidden_inputs = self.states[0]  # h in the type of the product
        if dtype != projected.dtype:
            self.hidden_inputs = self.states[0].new_empty(self.states[0].shape, dtype=projected.dtype)
            self.hidden_inputs[0] = initial[0]
        self.kernels = triton_kernels(self)
        if self.kernels is None:  # the kernels read half precision as it is
            self.projected = projected.to(dtype)
        self.gates = torch.empty(projected.shape, dtype=self.projected.dtype, device=projected.device)
        self.products = self.gates if self.adds_product else torch.empty_like(self.gates)
        self.allocate()

    def allocate(self) -> None:
        """Allocate what else the forward pass stores."""

    def new_block(self, width: int) -> Tensor:
        """An uninitialised tensor (T, N, width)."""
        return self.states[0].new_empty(self.steps, self.rows, width)

    # Forward

    def forward(self) -> None:
        # OpenBLAS multiplies by a matrix that is already transposed a sixth faster; to cuBLAS it makes no difference.
        transposed = self.weight.t() if self.weight.is_cuda else self.weight.t().contiguous()
        for step in range(self.steps):
            self.multiply(step, transposed)
            self.step_forward(step)

    def multiply(self, step: int, transposed: Tensor) -> None:
        """Compute W h' into `gates` or `products`."""
        if self.projected.dtype != self.hidden_inputs.dtype:
            self.products[step] = self.hidden_inputs[step] @ transposed
            if self.adds_product:
                self.gates[step].add_(self.projected[step])
        elif self.adds_product:
            torch.addmm(self.projected[step], self.hidden_inputs[step], transposed, out=self.gates[step])
        else:
            torch.mm(self.hidden_inputs[step], transposed, out=self.products[step])

    def pointwise_forward(self, step: int) -> None:
        """Compute the next state from the pre-activations in `gates`, which are replaced by the activations."""
        ACTIVATIONS[self.activation](self.gates[step], out=self.states[0][step + 1])

    def step_forward(self, step: int) -> None:
        """Run `pointwise_forward`, by kernel or in torch, and round h for the next product."""
        if self.kernels is not None:
            self.kernels.pointwise_forward(self, step)
            return
        self.pointwise_forward(step)
        if self.hidden_inputs is not self.states[0]:
            self.hidden_inputs[step + 1] = self.states[0][step + 1]

    # Backward

    def backward(self, output_gradients: tuple[Tensor | None, ...]) -> StateGradients:
        """The gradients of projected, weight, initial state and extras from those of all states (T, N, D)."""
        self.start_backward(output_gradients)
        for step in range(self.steps - 1, -1, -1):
            self.step_backward(step)
            self.multiply_backward(step)
        result = self.d_gates, self.weight_gradient(), self.state_gradients, self.extras_gradients()
        self.free_backward()
        return result

    def backward_of_single_step(self, output_gradients: tuple[Tensor | None, ...]) -> StateGradients:
        """The gradients of projected, product, initial state and extras, where the caller computed the product."""
        self.start_backward(output_gradients)
        self.step_backward(0)
        direct = torch.zeros_like(self.state_gradients[0]) if self.direct_gradient is None else self.direct_gradient
        result = self.d_gates[0], self.d_products[0], (direct, *self.state_gradients[1:]), self.extras_gradients()
        self.free_backward()
        return result

    def start_backward(self, output_gradients: tuple[Tensor | None, ...]) -> None:
        self.output_gradients = tuple(
            gradient if gradient is None or gradient.stride(2) == 1 else gradient.contiguous()
            for gradient in output_gradients
        )
        self.d_gates = torch.empty_like(self.gates)
        self.d_products = self.d_gates if self.adds_product else torch.empty_like(self.gates)
        self.state_gradients = tuple(state.new_zeros(self.rows, self.width) for state in self.states)
        self.direct_gradient: Tensor | None = None  # the part of h' gradient that does not pass through the product
        self.allocate_backward()

    def step_backward(self, step: int) -> None:
        """Run `pointwise_backward`, by kernel or in torch."""
        if self.kernels is None:
            self.pointwise_backward(step)
        else:
            self.kernels.pointwise_backward(self, step)

    def free_backward(self) -> None:
        """Free what only the backward pass needs."""
        del self.d_gates, self.d_products, self.output_gradients, self.state_gradients, self.direct_gradient

    def allocate_backward(self) -> None:
        """Allocate what the backward pass stores for its end."""

    def state_gradient(self, step: int, index: int = 0) -> Tensor:
        """The gradient of a state after a step: from the next step and from the output; may be overwritten."""
        from_output = self.output_gradients[index]
        from_next = self.state_gradients[index]
        return from_next if from_output is None else from_next.add_(from_output[step])

    def multiply_backward(self, step: int) -> None:
        """Replace the gradient of h by that of h': through the product, and directly."""
        through_product = self.d_products[step].to(self.weight.dtype) @ self.weight
        direct = self.direct_gradient
        d_hidden = through_product if direct is None else direct.add_(through_product)
        if self.kernels is None:  # the kernels read any type
            d_hidden = d_hidden.to(self.states[0].dtype)
        self.state_gradients = (d_hidden, *self.state_gradients[1:])

    def weight_gradient(self) -> Tensor:
        """One product over the rows of all steps."""
        return self.d_products.flatten(0, 1).to(self.hidden_inputs.dtype).t() @ self.hidden_inputs[:-1].flatten(0, 1)

    def pointwise_backward(self, step: int) -> None:
        """Compute the gradients of the pre-activations and of the state before from those of the state after."""
        self.d_gates[step] = ACTIVATION_GRADIENTS[self.activation](
            self.state_gradient(step), self.gates[step], self.states[0][step + 1]
        )

    def extras_gradients(self) -> tuple[Tensor, ...]:
        """The gradients of the cell's other parameters, over all steps at once."""
        return ()


def fused_rnn(
    kind: type[FusedRNN],
    projected: Tensor,
    weight: Tensor,
    initial: tuple[Tensor, ...],
    extras: tuple[Tensor, ...] = (),
    activation: str = "tanh",
) -> tuple[Tensor, ...]:
    """All states after every step, each (T, N, D).

    projected (T, N, blocks·D) is W_ih x + b, weight (blocks·D, D) is W_hh, initial states (N, D) each.
    """
    states: tuple[Tensor, ...] = _Sequence.apply(  # type: ignore[no-untyped-call]
        kind, activation, len(initial), projected, weight, *initial, *extras
    )
    return states


def fused_rnn_step(
    kind: type[FusedRNN],
    projected: Tensor,
    product: Tensor,
    state: tuple[Tensor, ...],
    extras: tuple[Tensor, ...] = (),
    activation: str = "tanh",
) -> tuple[Tensor, ...]:
    """The state after one step, for a loop that has computed the product W_hh h' itself; both (N, blocks·D)."""
    after: tuple[Tensor, ...] = _Step.apply(  # type: ignore[no-untyped-call]
        kind, activation, len(state), projected, product, *state, *extras
    )
    return after


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kind: Any, activation: str, states: int, projected: Tensor, weight: Tensor, *rest: Tensor
    ) -> Any:
        initial, extras = rest[:states], rest[states:]
        rnn: FusedRNN = kind(projected, weight, initial, extras, activation)
        with torch.autocast(projected.device.type, enabled=False):  # all types are set above
            rnn.forward()
        ctx.set_materialize_grads(False)
        ctx.rnn, ctx.dtypes = rnn, tuple(tensor.dtype for tensor in (projected, weight, *rest))
        ctx.save_for_backward(weight, *extras, *rnn.states)  # so that autograd notices changes in place
        return tuple(state[1:] for state in rnn.states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *output_gradients: Tensor | None) -> tuple[Any, ...]:
        ctx.saved_tensors  # noqa: B018  raises where a weight or a state was changed in place
        d_projected, d_weight, d_initial, d_extras = ctx.rnn.backward(output_gradients)
        gradients = d_projected, d_weight, *d_initial, *d_extras
        return None, None, None, *(tensor.to(dtype) for tensor, dtype in zip(gradients, ctx.dtypes, strict=True))


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kind: Any, activation: str, states: int, projected: Tensor, product: Tensor, *rest: Tensor
    ) -> Any:
        initial, extras = rest[:states], rest[states:]
        rnn: FusedRNN = kind(projected[None], None, initial, extras, activation)
        if rnn.adds_product:
            torch.add(projected, product, out=rnn.gates[0])
        else:
            rnn.products[0] = product
        with torch.autocast(projected.device.type, enabled=False):
            rnn.step_forward(0)
        ctx.set_materialize_grads(False)
        ctx.rnn, ctx.dtypes = rnn, tuple(tensor.dtype for tensor in (projected, product, *rest))
        ctx.save_for_backward(*extras, *rnn.states)
        return tuple(state[1] for state in rnn.states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *output_gradients: Tensor | None) -> tuple[Any, ...]:
        ctx.saved_tensors  # noqa: B018  raises where a weight or a state was changed in place
        with_time = tuple(None if gradient is None else gradient[None] for gradient in output_gradients)
        d_projected, d_product, d_initial, d_extras = ctx.rnn.backward_of_single_step(with_time)
        gradients = d_projected, d_product, *d_initial, *d_extras
        return None, None, None, *(tensor.to(dtype) for tensor, dtype in zip(gradients, ctx.dtypes, strict=True))
