"""Products of many small matrices on the CPU.

Without Intel's library torch multiplies a stack of matrices one by one, each as a tensor of its own, which for the
small ones of attention takes three times as long as the product. NumPy's loop over the stack has no such cost.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

WORTH_SHARING = 2**19  # multiplications; fewer are done before another thread has begun


def slow_stacks(x: Tensor) -> bool:
    """Whether torch is slow at stacks of matrices like these, and NumPy can do them."""
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and not torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and not torch.compiler.is_compiling()
    )


@cache
def _helpers(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="products")


def _multiply(left: Any, right: Any, into: Any) -> None:
    with np.errstate(all="ignore"):  # as torch does: what is no number shows in the loss, not as a warning
        np.matmul(left, right, out=into)


def products(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a (B, H, M, K) times b (B, H, K, N), without gradients; `out` may have any strides."""
    if out is None:
        out = a.new_empty(*a.shape[:-1], b.shape[-1])
    left, right, into = a.numpy(), b.numpy(), out.numpy()
    rows, threads = a.shape[0], min(a.shape[0], torch.get_num_threads())
    if threads == 1 or a.numel() * b.shape[-1] < WORTH_SHARING:
        _multiply(left, right, into)
        return out
    bounds = [rows * part // threads for part in range(threads + 1)]
    parts = [slice(first, last) for first, last in itertools.pairwise(bounds)]
    waiting = [_helpers(threads - 1).submit(_multiply, left[part], right[part], into[part]) for part in parts[1:]]
    _multiply(left[parts[0]], right[parts[0]], into[parts[0]])
    for done in waiting:
        done.result()
    return out
