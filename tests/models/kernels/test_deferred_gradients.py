"""Products with deferred gradients against plain ones."""

from __future__ import annotations

from threading import Thread

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.models.kernels.deferred_gradients import deferred_gradients, deferring, linear, matmul


def test_gradients_equal_those_of_plain_products() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(5, 6).double(), nn.Linear(6, 5, bias=False).double()
    memory = torch.randn(3, 5, 5, dtype=torch.float64, requires_grad=True)
    x = torch.randn(4, 3, 2, 5, dtype=torch.float64, requires_grad=True)
    leaves = [x, memory, *first.parameters(), *second.parameters()]

    def plain() -> Tensor:
        state = torch.zeros(3, 2, 5, dtype=torch.float64)
        for step in x:
            state = torch.tanh(F.linear(torch.tanh(first(step + state)), second.weight) @ memory)
        return state.sum()

    def deferred() -> Tensor:
        state = torch.zeros(3, 2, 5, dtype=torch.float64)
        with deferred_gradients(len(x)):
            for step in x:
                inner = torch.tanh(linear(step + state, first.weight, first.bias))
                state = torch.tanh(matmul(linear(inner, second.weight), memory))
        return state.sum()

    expected = torch.autograd.grad(plain(), leaves)
    total = deferred()
    torch.autograd.grad(total, [x], retain_graph=True)  # a pass that does not ask for the weights leaves nothing behind
    for _ in range(2):
        for gradient, truth in zip(torch.autograd.grad(total, leaves, retain_graph=True), expected, strict=True):
            torch.testing.assert_close(gradient, truth, rtol=0.0, atol=1e-12)


def test_a_frozen_weight_gets_no_gradient() -> None:
    weight, x = torch.randn(3, 2), torch.randn(4, 2, requires_grad=True)
    with deferred_gradients(2):
        linear(x, weight).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand(4, 2))
    assert weight.grad is None


def test_only_loops_of_several_steps_with_gradients_defer() -> None:
    assert not deferring()
    with deferred_gradients(1):
        assert not deferring()
    with torch.no_grad(), deferred_gradients(2):
        assert not deferring()
    with deferred_gradients(2):
        assert deferring()
        with deferred_gradients(1):
            assert not deferring()
        assert deferring()
    assert not deferring()


def test_another_thread_does_not_defer() -> None:
    seen: list[bool] = []
    with deferred_gradients(2):
        thread = Thread(target=lambda: seen.append(deferring()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_an_error_in_the_loop_ends_it() -> None:
    try:
        with deferred_gradients(2):
            raise KeyError
    except KeyError:
        assert not deferring()
