"""Fused LSTMs: the usual one, with peepholes, with coupled gates, with layer norm; see `fused_rnn`."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.kernels.activations import sigmoid_backward, tanh, tanh_backward
from dragoman.kernels.fused_rnn import FusedRNN


class FusedLSTM(FusedRNN):
    """Blocks i, f, ĉ, o; states h and c (the memory)."""

    blocks = 4
    kernel = "lstm"

    def allocate(self) -> None:
        self.tanh_memory = self.new_block(self.width)

    def pointwise_forward(self, step: int) -> None:
        """c = f⊙c' + i⊙ĉ, h = o⊙tanh(c)."""
        hidden, memory = self.states
        gates, width = self.gates[step], self.width
        ingate, forget, candidate, output = gates.chunk(4, -1)
        gates[:, : 2 * width].sigmoid_()
        tanh(candidate, out=candidate)
        output.sigmoid_()
        torch.mul(forget, memory[step], out=memory[step + 1]).addcmul_(ingate, candidate)
        tanh(memory[step + 1], out=self.tanh_memory[step])
        torch.mul(output, self.tanh_memory[step], out=hidden[step + 1])

    def pointwise_backward(self, step: int) -> None:
        ingate, forget, candidate, output = self.gates[step].chunk(4, -1)
        d_ingate, d_forget, d_candidate, d_output = self.d_gates[step].chunk(4, -1)
        d_hidden, d_memory = self.state_gradient(step), self.state_gradient(step, 1)
        tanh_memory = self.tanh_memory[step]
        sigmoid_backward(d_hidden * tanh_memory, output, d_output)
        d_memory.add_(tanh_backward(d_hidden.mul_(output), tanh_memory))
        sigmoid_backward(d_memory * candidate, ingate, d_ingate)
        sigmoid_backward(d_memory * self.states[1][step], forget, d_forget)
        tanh_backward(d_memory * ingate, candidate, d_candidate)
        d_memory.mul_(forget)


class FusedPeepholeLSTM(FusedLSTM):
    """Blocks i, f, ĉ, o; extras are the peepholes of i, f and o (3, D)."""

    kernel = "peephole-lstm"

    def pointwise_forward(self, step: int) -> None:
        """As the LSTM, but i and f also read p⊙c', o reads p⊙c."""
        hidden, memory = self.states
        peep_in, peep_forget, peep_out = self.extras[0].unbind()
        ingate, forget, candidate, output = self.gates[step].chunk(4, -1)
        ingate.add_(peep_in * memory[step]).sigmoid_()
        forget.add_(peep_forget * memory[step]).sigmoid_()
        tanh(candidate, out=candidate)
        torch.mul(forget, memory[step], out=memory[step + 1]).addcmul_(ingate, candidate)
        output.add_(peep_out * memory[step + 1]).sigmoid_()
        tanh(memory[step + 1], out=self.tanh_memory[step])
        torch.mul(output, self.tanh_memory[step], out=hidden[step + 1])

    def pointwise_backward(self, step: int) -> None:
        peep_in, peep_forget, peep_out = self.extras[0].unbind()
        ingate, forget, candidate, output = self.gates[step].chunk(4, -1)
        d_ingate, d_forget, d_candidate, d_output = self.d_gates[step].chunk(4, -1)
        d_hidden, d_memory = self.state_gradient(step), self.state_gradient(step, 1)
        tanh_memory = self.tanh_memory[step]
        sigmoid_backward(d_hidden * tanh_memory, output, d_output)
        d_memory.add_(tanh_backward(d_hidden.mul_(output), tanh_memory)).addcmul_(d_output, peep_out)
        sigmoid_backward(d_memory * candidate, ingate, d_ingate)
        sigmoid_backward(d_memory * self.states[1][step], forget, d_forget)
        tanh_backward(d_memory * ingate, candidate, d_candidate)
        d_memory.mul_(forget).addcmul_(d_ingate, peep_in).addcmul_(d_forget, peep_forget)

    def extras_gradients(self) -> tuple[Tensor, ...]:
        d_ingate, d_forget, _, d_output = self.d_gates.chunk(4, -1)
        before, after = self.states[1][:-1], self.states[1][1:]
        pairs = ((d_ingate, before), (d_forget, before), (d_output, after))
        return (torch.stack([(left * right).sum((0, 1)) for left, right in pairs]),)


class FusedCoupledLSTM(FusedLSTM):
    """Blocks f, o, ĉ."""

    blocks = 3
    kernel = "coupled-lstm"

    def pointwise_forward(self, step: int) -> None:
        """c = f⊙c' + (1 − f)⊙ĉ, h = o⊙tanh(c)."""
        hidden, memory = self.states
        gates, width = self.gates[step], self.width
        forget, output, candidate = gates.chunk(3, -1)
        gates[:, : 2 * width].sigmoid_()
        tanh(candidate, out=candidate)
        torch.sub(memory[step], candidate, out=memory[step + 1]).mul_(forget).add_(candidate)
        tanh(memory[step + 1], out=self.tanh_memory[step])
        torch.mul(output, self.tanh_memory[step], out=hidden[step + 1])

    def pointwise_backward(self, step: int) -> None:
        forget, output, candidate = self.gates[step].chunk(3, -1)
        d_forget, d_output, d_candidate = self.d_gates[step].chunk(3, -1)
        d_hidden, d_memory = self.state_gradient(step), self.state_gradient(step, 1)
        tanh_memory = self.tanh_memory[step]
        sigmoid_backward(d_hidden * tanh_memory, output, d_output)
        d_memory.add_(tanh_backward(d_hidden.mul_(output), tanh_memory))
        sigmoid_backward(d_memory * (self.states[1][step] - candidate), forget, d_forget)
        tanh_backward(d_memory - d_memory * forget, candidate, d_candidate)
        d_memory.mul_(forget)


EPSILON = 1e-5  # the default of nn.LayerNorm


def _layer_norm(x: Tensor, out: Tensor, scale: Tensor) -> None:
    """(x − mean) / deviation into out, 1 / deviation into scale (N, 1)."""
    normed, _, reciprocal = torch.native_layer_norm(x, x.shape[-1:], None, None, EPSILON)
    out.copy_(normed)
    scale.copy_(reciprocal)


def _layer_norm_backward(gradient: Tensor, normed: Tensor, scale: Tensor) -> Tensor:
    """The gradient of x: torch's own function for a row of mean 0 and deviation 1, times the scale."""
    mean, one = torch.zeros_like(scale), torch.ones_like(scale)
    d_x: Tensor = torch.ops.aten.native_layer_norm_backward(
        gradient.to(normed.dtype), normed, normed.shape[-1:], mean, one, None, None, [True, False, False]
    )[0]
    return d_x.mul_(scale)


class FusedLayerNormLSTM(FusedLSTM):
    """Blocks i, f, ĉ, o; extras are the gain of norm(W h'), and gain and bias of norm(c).

    `products` holds norm(W h') before the gain.
    """

    adds_product = False
    kernel = "layer-norm-lstm"
    epsilon = EPSILON

    def allocate(self) -> None:
        """`normed_memory` holds norm(c) before gain and bias; the scales are 1 / deviation."""
        super().allocate()
        self.normed_memory = self.new_block(self.width)
        self.product_scale, self.memory_scale = self.new_block(1), self.new_block(1)

    def pointwise_forward(self, step: int) -> None:
        """As the LSTM, with gates from projected + norm(W h') and h = o⊙tanh(norm(c))."""
        hidden, memory = self.states
        gain, memory_gain, memory_bias = self.extras
        product, gates, width = self.products[step], self.gates[step], self.width
        _layer_norm(product, product, self.product_scale[step])
        torch.addcmul(self.projected[step], product, gain, out=gates)
        ingate, forget, candidate, output = gates.chunk(4, -1)
        gates[:, : 2 * width].sigmoid_()
        tanh(candidate, out=candidate)
        output.sigmoid_()
        torch.mul(forget, memory[step], out=memory[step + 1]).addcmul_(ingate, candidate)
        _layer_norm(memory[step + 1], self.normed_memory[step], self.memory_scale[step])
        tanh(torch.addcmul(memory_bias, self.normed_memory[step], memory_gain), out=self.tanh_memory[step])
        torch.mul(output, self.tanh_memory[step], out=hidden[step + 1])

    def allocate_backward(self) -> None:
        self.d_tanh_memory = self.new_block(self.width)

    def pointwise_backward(self, step: int) -> None:
        gain, memory_gain, _ = self.extras
        ingate, forget, candidate, output = self.gates[step].chunk(4, -1)
        d_ingate, d_forget, d_candidate, d_output = self.d_gates[step].chunk(4, -1)
        d_hidden, d_memory = self.state_gradient(step), self.state_gradient(step, 1)
        tanh_memory = self.tanh_memory[step]
        sigmoid_backward(d_hidden * tanh_memory, output, d_output)
        self.d_tanh_memory[step] = tanh_backward(d_hidden.mul_(output), tanh_memory)
        d_normed = self.d_tanh_memory[step] * memory_gain
        d_memory.add_(_layer_norm_backward(d_normed, self.normed_memory[step], self.memory_scale[step]))
        sigmoid_backward(d_memory * candidate, ingate, d_ingate)
        sigmoid_backward(d_memory * self.states[1][step], forget, d_forget)
        tanh_backward(d_memory * ingate, candidate, d_candidate)
        d_memory.mul_(forget)
        d_normed = self.d_gates[step] * gain
        self.d_products[step] = _layer_norm_backward(d_normed, self.products[step], self.product_scale[step])

    def extras_gradients(self) -> tuple[Tensor, ...]:
        gain = (self.d_gates * self.products).sum((0, 1))
        return gain, (self.d_tanh_memory * self.normed_memory).sum((0, 1)), self.d_tanh_memory.sum((0, 1))
