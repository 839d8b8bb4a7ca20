"""Cells over whole sequences as one step of autograd, backward written out (FIELD B1–B5).

A walk goes through time once each way. Forward it keeps the gates and states of all steps in one block each; backward
it fills a block with the gradients of all steps' sums, so that the gradient of W_hh is one product over the rows of all
steps, where autograd through a loop makes one a step and adds them up. What is left of a step beside its product is
pointwise: `point` and `unpoint`, in plain torch here, one kernel each in `walk_kernels` for a GPU.

Nothing in it asks the device for a number, so a CUDA graph can hold it.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# torch's tanh takes three times as long as its sigmoid on ARM (10.2 and 3.4 ns a number on a Neoverse N1, torch 2.13).
SLOW_TANH = platform.machine().lower() in ("aarch64", "arm64")


def tanh(x: Tensor, out: Tensor | None = None) -> Tensor:
    """tanh(x), or 2 sigmoid(2x) − 1 where that is the faster one; both are within 2⁻²³ of the truth in float32."""
    if SLOW_TANH and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        return torch.mul(x, 2.0, out=out).sigmoid_().mul_(2.0).sub_(1.0)
    return torch.tanh(x, out=out)


def _relu(x: Tensor, out: Tensor | None = None) -> Tensor:
    return torch.clamp(x, min=0.0, out=out)


def _gelu(x: Tensor, out: Tensor) -> Tensor:
    return out.copy_(torch.nn.functional.gelu(x))


def _silu(x: Tensor, out: Tensor) -> Tensor:
    return out.copy_(torch.nn.functional.silu(x))


# What bends a candidate, and the way back: (gradient, before, after) → gradient.
BENDS: dict[str, Callable[..., Tensor]] = {"tanh": tanh, "relu": _relu, "gelu": _gelu, "silu": _silu}
UNBENDS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "tanh": lambda gradient, before, after: torch.ops.aten.tanh_backward(gradient, after),
    "relu": lambda gradient, before, after: torch.ops.aten.threshold_backward(gradient, after, 0),
    "gelu": lambda gradient, before, after: torch.ops.aten.gelu_backward(gradient, before),
    "silu": lambda gradient, before, after: torch.ops.aten.silu_backward(gradient, before),
}


def unsigmoid(gradient: Tensor, after: Tensor, out: Tensor) -> None:
    """The way back through a sigmoid that gave `after`."""
    torch.ops.aten.sigmoid_backward.grad_input(gradient, after, grad_input=out)


def untanh(gradient: Tensor, after: Tensor, out: Tensor | None = None) -> Tensor:
    """The way back through a tanh that gave `after`."""
    if out is None:
        return torch.ops.aten.tanh_backward(gradient, after)  # type: ignore[no-any-return]
    return torch.ops.aten.tanh_backward.grad_input(gradient, after, grad_input=out)  # type: ignore[no-any-return]


@cache
def _kernels() -> ModuleType | None:
    try:
        from dragoman.kernels import fused_rnn_triton as walk_kernels
    except ImportError as error:
        warnings.warn(f"recurrent layers run without their GPU kernels: {error}", stacklevel=2)
        return None
    return walk_kernels


def kernels_for(walk: Walk) -> ModuleType | None:
    """The module that points and unpoints on this walk's device, if there is one: float32 and below on a GPU."""
    fits = walk.projected.is_cuda and walk.states[0].dtype == torch.float32 and not isinstance(walk, GRUBeforeWalk)
    return _kernels() if fits else None


class Walk:
    """One walk of a plain cell, h = bend(projected + W h'), and what all walks share.

    Blocks, time first: projected (T, N, blocks·D), each state (T + 1, N, D) with the start in front.
    """

    blocks = 1
    adds = True  # the sums of a step are projected + W h', in one product; otherwise W h' is kept apart

    def __init__(
        self,
        projected: Tensor,
        weight: Tensor | None,  # None where somebody else multiplies
        start: tuple[Tensor, ...],
        extras: tuple[Tensor, ...],
        bend: str,
    ) -> None:
        self.projected, self.extras, self.bend = projected, extras, bend
        self.weight = projected if weight is None else weight.to(projected.dtype)
        self.steps, self.rows, self.width = projected.shape[0], projected.shape[1], start[0].shape[1]
        dtype = torch.promote_types(projected.dtype, torch.float32)
        self.states = tuple(part.new_empty(self.steps + 1, *part.shape, dtype=dtype) for part in start)
        for state, part in zip(self.states, start, strict=True):
            state[0] = part
        self.seen = self.states[0]  # what the product reads: h in the product's own type
        if dtype != projected.dtype:
            self.seen = self.states[0].new_empty(self.states[0].shape, dtype=projected.dtype)
            self.seen[0] = start[0]
        self.kernels = kernels_for(self)
        if self.kernels is None:  # kernels read what is rounded, and need not have it widened first
            self.projected = projected.to(dtype)
        self.gates = torch.empty(projected.shape, dtype=self.projected.dtype, device=projected.device)
        self.products = self.gates if self.adds else torch.empty_like(self.gates)
        self.prepare()

    def prepare(self) -> None:
        """Make room for what else is kept."""

    def room(self, width: int) -> Tensor:
        """A block for all steps."""
        return self.states[0].new_empty(self.steps, self.rows, width)

    # Forward

    def run(self) -> None:
        """Through all steps."""
        # OpenBLAS multiplies a sixth faster with a matrix that need not be turned; cuBLAS does not care.
        turned = self.weight.t() if self.weight.is_cuda else self.weight.t().contiguous()
        for step in range(self.steps):
            self.multiply(step, turned)
            self.go(step)

    def multiply(self, step: int, turned: Tensor) -> None:
        """The product of a step, from h' to gates or products."""
        if self.projected.dtype != self.seen.dtype:
            self.products[step] = self.seen[step] @ turned
            if self.adds:
                self.gates[step].add_(self.projected[step])
        elif self.adds:
            torch.addmm(self.projected[step], self.seen[step], turned, out=self.gates[step])
        else:
            torch.mm(self.seen[step], turned, out=self.products[step])

    def point(self, step: int) -> None:
        """From sums to the next state; the gates' values stay in their block."""
        BENDS[self.bend](self.gates[step], out=self.states[0][step + 1])

    def go(self, step: int) -> None:
        """`point` by kernel or in torch, and what the next product reads."""
        if self.kernels is not None:
            self.kernels.point(self, step)
            return
        self.point(step)
        if self.seen is not self.states[0]:
            self.seen[step + 1] = self.states[0][step + 1]

    # Backward

    def back(self, outer: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """From gradients of all states (T, N, D) to those of projected, weight, start and extras."""
        self.begin_back(outer)
        for step in range(self.steps - 1, -1, -1):
            self.ungo(step)
            self.unmultiply(step)
        result = self.d_gates, self.weight_gradient(), self.carried, self.extras_gradients()
        self.end_back()
        return result

    def back_once(
        self, outer: tuple[Tensor | None, ...]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Of the only step, for who multiplies himself: gradients of projected, product, start and extras."""
        self.begin_back(outer)
        self.ungo(0)
        past = torch.zeros_like(self.carried[0]) if self.direct is None else self.direct  # h' by way past the product
        result = self.d_gates[0], self.d_products[0], (past, *self.carried[1:]), self.extras_gradients()
        self.end_back()
        return result

    def begin_back(self, outer: tuple[Tensor | None, ...]) -> None:
        """Make room for the gradients."""
        self.outer = tuple(part if part is None or part.stride(2) == 1 else part.contiguous() for part in outer)
        self.d_gates = torch.empty_like(self.gates)
        self.d_products = self.d_gates if self.adds else torch.empty_like(self.gates)
        self.carried = tuple(state.new_zeros(self.rows, self.width) for state in self.states)  # from the step after
        self.direct: Tensor | None = None  # what of it reaches h' past the product
        self.prepare_back()

    def ungo(self, step: int) -> None:
        """`unpoint` by kernel or in torch."""
        if self.kernels is None:
            self.unpoint(step)
        else:
            self.kernels.unpoint(self, step)

    def end_back(self) -> None:
        """Let go of what only the way back needed."""
        del self.d_gates, self.d_products, self.outer, self.carried, self.direct

    def prepare_back(self) -> None:
        """Make room for what the way back keeps for its end."""

    def arriving(self, step: int, part: int = 0) -> Tensor:
        """The whole gradient of a state after a step; may be written over."""
        outer = self.outer[part]
        return self.carried[part] if outer is None else self.carried[part].add_(outer[step])

    def unmultiply(self, step: int) -> None:
        """The gradient of h' by way of the product, in place of that of h; `direct` is what went past it."""
        back = self.d_products[step].to(self.weight.dtype) @ self.weight
        d_hidden = self.direct.add_(back) if self.direct is not None else back
        if self.kernels is None:  # which takes it in any type
            d_hidden = d_hidden.to(self.states[0].dtype)
        self.carried = (d_hidden, *self.carried[1:])

    def weight_gradient(self) -> Tensor:
        """One product over the rows of all steps."""
        return self.d_products.flatten(0, 1).to(self.seen.dtype).t() @ self.seen[:-1].flatten(0, 1)

    def unpoint(self, step: int) -> None:
        """From the gradients of the state after a step to those of its sums and of the state before."""
        self.d_gates[step] = UNBENDS[self.bend](self.arriving(step), self.gates[step], self.states[0][step + 1])

    def extras_gradients(self) -> tuple[Tensor, ...]:
        """Of the cell's other parameters, over all steps at once."""
        return ()


class LSTMWalk(Walk):
    """Rows i, f, ĉ, o; the gates' block keeps their values, `shown` keeps tanh(c)."""

    blocks = 4

    def prepare(self) -> None:
        """See Walk."""
        self.shown = self.room(self.width)

    def point(self, step: int) -> None:
        """See Walk."""
        hidden, memory = self.states
        gates, width = self.gates[step], self.width
        write, forget, candidate, output = gates.chunk(4, -1)
        gates[:, : 2 * width].sigmoid_()
        tanh(candidate, out=candidate)
        output.sigmoid_()
        torch.mul(forget, memory[step], out=memory[step + 1]).addcmul_(write, candidate)
        tanh(memory[step + 1], out=self.shown[step])
        torch.mul(output, self.shown[step], out=hidden[step + 1])

    def unpoint(self, step: int) -> None:
        """See Walk."""
        write, forget, candidate, output = self.gates[step].chunk(4, -1)
        d_write, d_forget, d_candidate, d_output = self.d_gates[step].chunk(4, -1)
        d_hidden, d_memory, shown = self.arriving(step), self.arriving(step, 1), self.shown[step]
        unsigmoid(d_hidden * shown, output, d_output)
        d_memory.add_(untanh(d_hidden.mul_(output), shown))
        unsigmoid(d_memory * candidate, write, d_write)
        unsigmoid(d_memory * self.states[1][step], forget, d_forget)
        untanh(d_memory * write, candidate, d_candidate)
        d_memory.mul_(forget)


class PeepholeWalk(LSTMWalk):
    """Rows i, f, ĉ, o; extras are the peepholes of i, f and o."""

    def point(self, step: int) -> None:
        """See Walk."""
        hidden, memory = self.states
        see_write, see_forget, see_output = self.extras[0].unbind()
        write, forget, candidate, output = self.gates[step].chunk(4, -1)
        write.add_(see_write * memory[step]).sigmoid_()
        forget.add_(see_forget * memory[step]).sigmoid_()
        tanh(candidate, out=candidate)
        torch.mul(forget, memory[step], out=memory[step + 1]).addcmul_(write, candidate)
        output.add_(see_output * memory[step + 1]).sigmoid_()
        tanh(memory[step + 1], out=self.shown[step])
        torch.mul(output, self.shown[step], out=hidden[step + 1])

    def unpoint(self, step: int) -> None:
        """See Walk."""
        see_write, see_forget, see_output = self.extras[0].unbind()
        write, forget, candidate, output = self.gates[step].chunk(4, -1)
        d_write, d_forget, d_candidate, d_output = self.d_gates[step].chunk(4, -1)
        d_hidden, d_memory, shown = self.arriving(step), self.arriving(step, 1), self.shown[step]
        unsigmoid(d_hidden * shown, output, d_output)
        d_memory.add_(untanh(d_hidden.mul_(output), shown)).addcmul_(d_output, see_output)
        unsigmoid(d_memory * candidate, write, d_write)
        unsigmoid(d_memory * self.states[1][step], forget, d_forget)
        untanh(d_memory * write, candidate, d_candidate)
        d_memory.mul_(forget).addcmul_(d_write, see_write).addcmul_(d_forget, see_forget)

    def extras_gradients(self) -> tuple[Tensor, ...]:
        """See Walk."""
        d_write, d_forget, _, d_output = self.d_gates.chunk(4, -1)
        before, after = self.states[1][:-1], self.states[1][1:]
        pairs = ((d_write, before), (d_forget, before), (d_output, after))
        return (torch.stack([(left * right).sum((0, 1)) for left, right in pairs]),)


class CoupledWalk(LSTMWalk):
    """Rows f, o, ĉ."""

    blocks = 3

    def point(self, step: int) -> None:
        """See Walk."""
        hidden, memory = self.states
        gates, width = self.gates[step], self.width
        forget, output, candidate = gates.chunk(3, -1)
        gates[:, : 2 * width].sigmoid_()
        tanh(candidate, out=candidate)
        torch.sub(memory[step], candidate, out=memory[step + 1]).mul_(forget).add_(candidate)
        tanh(memory[step + 1], out=self.shown[step])
        torch.mul(output, self.shown[step], out=hidden[step + 1])

    def unpoint(self, step: int) -> None:
        """See Walk."""
        forget, output, candidate = self.gates[step].chunk(3, -1)
        d_forget, d_output, d_candidate = self.d_gates[step].chunk(3, -1)
        d_hidden, d_memory, shown = self.arriving(step), self.arriving(step, 1), self.shown[step]
        unsigmoid(d_hidden * shown, output, d_output)
        d_memory.add_(untanh(d_hidden.mul_(output), shown))
        unsigmoid(d_memory * (self.states[1][step] - candidate), forget, d_forget)
        untanh(d_memory - d_memory * forget, candidate, d_candidate)
        d_memory.mul_(forget)


EPSILON = 1e-5  # nn.LayerNorm's own


def _normalise(x: Tensor, out: Tensor, spread: Tensor) -> None:
    """(x − mean) / deviation into out, 1 / deviation into spread (N, 1)."""
    normed, _, scale = torch.native_layer_norm(x, x.shape[-1:], None, None, EPSILON)
    out.copy_(normed)
    spread.copy_(scale)


def _unnormalise(gradient: Tensor, normed: Tensor, spread: Tensor) -> Tensor:
    """The way back from the gradient of what `_normalise` wrote: torch's own for a row of mean 0 and deviation 1."""
    mean, scale = torch.zeros_like(spread), torch.ones_like(spread)
    back: Tensor = torch.ops.aten.native_layer_norm_backward(
        gradient.to(normed.dtype), normed, normed.shape[-1:], mean, scale, None, None, [True, False, False]
    )[0]
    return back.mul_(spread)


class NormalisedWalk(LSTMWalk):
    """Rows i, f, ĉ, o; extras are the gain of W h' and the gain and shift of the memory's norm.

    The products' block keeps W h' normalised, `inner` the memory normalised.
    """

    adds = False

    def prepare(self) -> None:
        """See Walk."""
        super().prepare()
        self.inner = self.room(self.width)
        self.spread, self.inner_spread = self.room(1), self.room(1)

    def point(self, step: int) -> None:
        """See Walk."""
        hidden, memory = self.states
        gain, memory_gain, memory_shift = self.extras
        product, gates, width = self.products[step], self.gates[step], self.width
        _normalise(product, product, self.spread[step])
        torch.addcmul(self.projected[step], product, gain, out=gates)
        write, forget, candidate, output = gates.chunk(4, -1)
        gates[:, : 2 * width].sigmoid_()
        tanh(candidate, out=candidate)
        output.sigmoid_()
        torch.mul(forget, memory[step], out=memory[step + 1]).addcmul_(write, candidate)
        _normalise(memory[step + 1], self.inner[step], self.inner_spread[step])
        tanh(torch.addcmul(memory_shift, self.inner[step], memory_gain), out=self.shown[step])
        torch.mul(output, self.shown[step], out=hidden[step + 1])

    def prepare_back(self) -> None:
        """See Walk."""
        self.d_shown = self.room(self.width)  # gradients of what tanh was given

    def unpoint(self, step: int) -> None:
        """See Walk."""
        gain, memory_gain, _ = self.extras
        write, forget, candidate, output = self.gates[step].chunk(4, -1)
        d_write, d_forget, d_candidate, d_output = self.d_gates[step].chunk(4, -1)
        d_hidden, d_memory, shown = self.arriving(step), self.arriving(step, 1), self.shown[step]
        unsigmoid(d_hidden * shown, output, d_output)
        self.d_shown[step] = untanh(d_hidden.mul_(output), shown)
        d_memory.add_(_unnormalise(self.d_shown[step] * memory_gain, self.inner[step], self.inner_spread[step]))
        unsigmoid(d_memory * candidate, write, d_write)
        unsigmoid(d_memory * self.states[1][step], forget, d_forget)
        untanh(d_memory * write, candidate, d_candidate)
        d_memory.mul_(forget)
        self.d_products[step] = _unnormalise(self.d_gates[step] * gain, self.products[step], self.spread[step])

    def extras_gradients(self) -> tuple[Tensor, ...]:
        """See Walk."""
        gain = (self.d_gates * self.products).sum((0, 1))
        return gain, (self.d_shown * self.inner).sum((0, 1)), self.d_shown.sum((0, 1))


class GRUWalk(Walk):
    """Reset after the product; rows r, u, ĥ. `before` keeps what the candidate was before it was bent."""

    blocks = 3
    adds = False

    def prepare(self) -> None:
        """See Walk."""
        self.before = self.room(self.width)

    def point(self, step: int) -> None:
        """See Walk."""
        (hidden,), width = self.states, self.width
        gates, product = self.gates[step], self.products[step]
        reset, update, candidate = gates.chunk(3, -1)
        torch.add(self.projected[step, :, : 2 * width], product[:, : 2 * width], out=gates[:, : 2 * width]).sigmoid_()
        before = self.before[step]
        torch.addcmul(self.projected[step, :, 2 * width :], reset, product[:, 2 * width :], out=before)
        BENDS[self.bend](before, out=candidate)
        torch.sub(hidden[step], candidate, out=hidden[step + 1]).mul_(update).add_(candidate)

    def unpoint(self, step: int) -> None:
        """See Walk."""
        reset, update, _ = self.gates[step].chunk(3, -1)
        d_reset, _, d_candidate = self.d_gates[step].chunk(3, -1)
        product, d_product, width = self.products[step], self.d_products[step], self.width
        d_hidden = self.arriving(step)
        self.unbend(step, d_hidden)
        unsigmoid(d_candidate * product[:, 2 * width :], reset, d_reset)
        d_product[:, : 2 * width] = self.d_gates[step, :, : 2 * width]
        torch.mul(d_candidate, reset, out=d_product[:, 2 * width :])
        self.direct = d_hidden.mul_(update)

    def unbend(self, step: int, d_hidden: Tensor) -> None:
        """The gradients of the update gate's and the candidate's sums."""
        _, update, candidate = self.gates[step].chunk(3, -1)
        _, d_update, d_candidate = self.d_gates[step].chunk(3, -1)
        unsigmoid(d_hidden * (self.states[0][step] - candidate), update, d_update)
        d_candidate.copy_(UNBENDS[self.bend](d_hidden - d_hidden * update, self.before[step], candidate))


class GRUBeforeWalk(GRUWalk):
    """Reset before the product, which so comes in two parts; `reset` keeps r⊙h'."""

    adds = True

    def prepare(self) -> None:
        """See Walk."""
        super().prepare()
        self.reset = torch.empty_like(self.seen[1:])

    def multiply(self, step: int, turned: Tensor) -> None:
        """See Walk."""
        width = self.width
        projected, gates = self.projected[step], self.gates[step]
        product = self.seen[step] @ turned[:, : 2 * width]
        torch.add(projected[:, : 2 * width], product, out=gates[:, : 2 * width]).sigmoid_()
        self.reset[step] = gates[:, :width] * self.states[0][step]
        torch.add(projected[:, 2 * width :], self.reset[step] @ turned[:, 2 * width :], out=self.before[step])

    def point(self, step: int) -> None:
        """See Walk."""
        (hidden,) = self.states
        _, update, candidate = self.gates[step].chunk(3, -1)
        BENDS[self.bend](self.before[step], out=candidate)
        torch.sub(hidden[step], candidate, out=hidden[step + 1]).mul_(update).add_(candidate)

    def unpoint(self, step: int) -> None:
        """See Walk."""
        reset, update, _ = self.gates[step].chunk(3, -1)
        d_reset, _, d_candidate = self.d_gates[step].chunk(3, -1)
        d_hidden, hidden = self.arriving(step), self.states[0][step]
        self.unbend(step, d_hidden)
        back = (d_candidate.to(self.weight.dtype) @ self.weight[2 * self.width :]).to(d_hidden.dtype)  # of r⊙h'
        unsigmoid(back * hidden, reset, d_reset)
        self.direct = d_hidden.mul_(update).addcmul_(back, reset)

    def unmultiply(self, step: int) -> None:
        """See Walk."""
        width = self.width
        back = self.d_gates[step, :, : 2 * width].to(self.weight.dtype) @ self.weight[: 2 * width]
        assert self.direct is not None
        self.carried = (self.direct.add_(back),)

    def weight_gradient(self) -> Tensor:
        """See Walk."""
        both = self.d_gates.to(self.seen.dtype).flatten(0, 1)
        gates, candidate = both[:, : 2 * self.width], both[:, 2 * self.width :]
        return torch.cat([gates.t() @ self.seen[:-1].flatten(0, 1), candidate.t() @ self.reset.flatten(0, 1)])


class _Walked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kind: Any, bend: str, parts: int, projected: Tensor, weight: Tensor, *rest: Tensor) -> Any:
        start, extras = rest[:parts], rest[parts:]
        walk: Walk = kind(projected, weight, start, extras, bend)
        with torch.autocast(projected.device.type, enabled=False):  # every type is already what it should be
            walk.run()
        ctx.set_materialize_grads(False)
        ctx.walk, ctx.types = walk, tuple(part.dtype for part in (projected, weight, *rest))
        ctx.save_for_backward(weight, *extras, *walk.states)  # only to hear of changes made in between
        return tuple(state[1:] for state in walk.states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor | None) -> tuple[Any, ...]:
        ctx.saved_tensors  # noqa: B018  raises where a weight or a state was changed in place
        d_projected, d_weight, d_start, d_extras = ctx.walk.back(outer)
        found = d_projected, d_weight, *d_start, *d_extras
        return None, None, None, *(part.to(dtype) for part, dtype in zip(found, ctx.types, strict=True))


def walked(
    kind: type[Walk],
    projected: Tensor,
    weight: Tensor,
    start: tuple[Tensor, ...],
    extras: tuple[Tensor, ...] = (),
    bend: str = "tanh",
) -> tuple[Tensor, ...]:
    """Every state after every step, each (T, N, D); projected (T, N, blocks·D), start (N, D) each."""
    states: tuple[Tensor, ...] = _Walked.apply(kind, bend, len(start), projected, weight, *start, *extras)  # type: ignore[no-untyped-call]
    return states


class _Stepped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kind: Any, bend: str, parts: int, projected: Tensor, product: Tensor, *rest: Tensor) -> Any:
        start, extras = rest[:parts], rest[parts:]
        walk: Walk = kind(projected[None], None, start, extras, bend)
        if walk.adds:
            torch.add(projected, product, out=walk.gates[0])
        else:
            walk.products[0] = product
        with torch.autocast(projected.device.type, enabled=False):
            walk.go(0)
        ctx.set_materialize_grads(False)
        ctx.walk, ctx.types = walk, tuple(part.dtype for part in (projected, product, *rest))
        ctx.save_for_backward(*extras, *walk.states)
        return tuple(state[1] for state in walk.states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor | None) -> tuple[Any, ...]:
        ctx.saved_tensors  # noqa: B018  raises where a weight or a state was changed in place
        gradients = ctx.walk.back_once(tuple(None if part is None else part[None] for part in outer))
        d_projected, d_product, d_start, d_extras = gradients
        found = d_projected, d_product, *d_start, *d_extras
        return None, None, None, *(part.to(dtype) for part, dtype in zip(found, ctx.types, strict=True))


def stepped(
    kind: type[Walk],
    projected: Tensor,
    product: Tensor,
    start: tuple[Tensor, ...],
    extras: tuple[Tensor, ...] = (),
    bend: str = "tanh",
) -> tuple[Tensor, ...]:
    """The state one step later, for a loop that has made the product W h' itself; both (N, blocks·D)."""
    state: tuple[Tensor, ...] = _Stepped.apply(kind, bend, len(start), projected, product, *start, *extras)  # type: ignore[no-untyped-call]
    return state
