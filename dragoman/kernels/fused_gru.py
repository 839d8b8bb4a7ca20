"""Fused GRUs, with the reset gate after or before the product with W_hh; see `fused_rnn`."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from dragoman.kernels.activations import ACTIVATION_GRADIENTS, ACTIVATIONS, sigmoid_backward
from dragoman.kernels.fused_rnn import FusedRNN


class FusedGRU(FusedRNN):
    """The reset gate after the product, as in cuDNN; blocks r, u, ĥ."""

    blocks = 3
    adds_product = False
    kernel: ClassVar[str | None] = "gru"

    def allocate(self) -> None:
        self.preactivation = self.new_block(self.width)

    def pointwise_forward(self, step: int) -> None:
        """r and u = σ(projected + W h'), ĥ = activation(projected + r⊙W h'), h = ĥ + u⊙(h' − ĥ)."""
        (hidden,), width = self.states, self.width
        gates, product = self.gates[step], self.products[step]
        reset, update, candidate = gates.chunk(3, -1)
        torch.add(self.projected[step, :, : 2 * width], product[:, : 2 * width], out=gates[:, : 2 * width]).sigmoid_()
        preactivation = self.preactivation[step]
        torch.addcmul(self.projected[step, :, 2 * width :], reset, product[:, 2 * width :], out=preactivation)
        ACTIVATIONS[self.activation](preactivation, out=candidate)
        torch.sub(hidden[step], candidate, out=hidden[step + 1]).mul_(update).add_(candidate)

    def pointwise_backward(self, step: int) -> None:
        reset, update, _ = self.gates[step].chunk(3, -1)
        d_reset, _, d_candidate = self.d_gates[step].chunk(3, -1)
        product, d_product, width = self.products[step], self.d_products[step], self.width
        d_hidden = self.state_gradient(step)
        self.candidate_backward(step, d_hidden)
        sigmoid_backward(d_candidate * product[:, 2 * width :], reset, d_reset)
        d_product[:, : 2 * width] = self.d_gates[step, :, : 2 * width]
        torch.mul(d_candidate, reset, out=d_product[:, 2 * width :])
        self.direct_gradient = d_hidden.mul_(update)

    def candidate_backward(self, step: int, d_hidden: Tensor) -> None:
        """The gradients of the pre-activations of the update gate and of the candidate."""
        _, update, candidate = self.gates[step].chunk(3, -1)
        _, d_update, d_candidate = self.d_gates[step].chunk(3, -1)
        sigmoid_backward(d_hidden * (self.states[0][step] - candidate), update, d_update)
        d_activated = d_hidden - d_hidden * update
        d_candidate.copy_(ACTIVATION_GRADIENTS[self.activation](d_activated, self.preactivation[step], candidate))


class FusedGRUResetBefore(FusedGRU):
    """The reset gate before the product, as in Cho et al. 2014; blocks r, u, ĥ."""

    adds_product = True
    kernel = None

    def allocate(self) -> None:
        """`reset` holds r⊙h'."""
        super().allocate()
        self.reset = torch.empty_like(self.hidden_inputs[1:])

    def multiply(self, step: int, transposed: Tensor) -> None:
        """Two products: for the gates from h', for the candidate from r⊙h'."""
        width = self.width
        projected, gates = self.projected[step], self.gates[step]
        product = self.hidden_inputs[step] @ transposed[:, : 2 * width]
        torch.add(projected[:, : 2 * width], product, out=gates[:, : 2 * width]).sigmoid_()
        self.reset[step] = gates[:, :width] * self.states[0][step]
        product = self.reset[step] @ transposed[:, 2 * width :]
        torch.add(projected[:, 2 * width :], product, out=self.preactivation[step])

    def pointwise_forward(self, step: int) -> None:
        """ĥ = activation(projected + W (r⊙h')), h = ĥ + u⊙(h' − ĥ)."""
        (hidden,) = self.states
        _, update, candidate = self.gates[step].chunk(3, -1)
        ACTIVATIONS[self.activation](self.preactivation[step], out=candidate)
        torch.sub(hidden[step], candidate, out=hidden[step + 1]).mul_(update).add_(candidate)

    def pointwise_backward(self, step: int) -> None:
        reset, update, _ = self.gates[step].chunk(3, -1)
        d_reset, _, d_candidate = self.d_gates[step].chunk(3, -1)
        d_hidden, hidden = self.state_gradient(step), self.states[0][step]
        self.candidate_backward(step, d_hidden)
        d_reset_hidden = (d_candidate.to(self.weight.dtype) @ self.weight[2 * self.width :]).to(d_hidden.dtype)
        sigmoid_backward(d_reset_hidden * hidden, reset, d_reset)
        self.direct_gradient = d_hidden.mul_(update).addcmul_(d_reset_hidden, reset)

    def multiply_backward(self, step: int) -> None:
        width = self.width
        through_product = self.d_gates[step, :, : 2 * width].to(self.weight.dtype) @ self.weight[: 2 * width]
        assert self.direct_gradient is not None
        self.state_gradients = (self.direct_gradient.add_(through_product),)

    def weight_gradient(self) -> Tensor:
        both = self.d_gates.to(self.hidden_inputs.dtype).flatten(0, 1)
        gates, candidate = both[:, : 2 * self.width], both[:, 2 * self.width :]
        return torch.cat([gates.t() @ self.hidden_inputs[:-1].flatten(0, 1), candidate.t() @ self.reset.flatten(0, 1)])
