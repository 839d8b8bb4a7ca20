"""Batched products of small matrices, sums of columns, and the layout of weights for decoding, on a CPU.

Without MKL torch multiplies a batch of matrices one by one, each as a tensor of its own, which for the small ones of
attention takes three times as long as the product itself. NumPy's loop over the batch has no such cost.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

MIN_PARALLEL = 2**19  # multiplications; fewer are done before another thread starts


def slow_batched_matmul(x: Tensor) -> bool:
    """Whether torch is slow at batched products of such matrices, and NumPy can compute them."""
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and not torch.compiler.is_compiling()  # which cannot trace the next question
        and not torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    )


def column_sums(x: Tensor) -> Tensor:
    """(N, D) → (D,); on a CPU as a product with ones, four times as fast as torch's sum."""
    return (x.new_ones(1, x.shape[0]) @ x)[0] if x.device.type == "cpu" else x.sum(0)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="matmul")


def _multiply(left: Any, right: Any, into: Any) -> None:
    with np.errstate(all="ignore"):  # as torch: NaN shows in the loss, not as a warning
        np.matmul(left, right, out=into)


def batched_matmul(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a (B, H, M, K) times b (B, H, K, N), without gradients; `out` may have any strides."""
    if out is None:
        out = a.new_empty(*a.shape[:-1], b.shape[-1])
    left, right, into = a.numpy(), b.numpy(), out.numpy()
    rows, threads = a.shape[0], min(a.shape[0], torch.get_num_threads())
    if threads == 1 or a.numel() * b.shape[-1] < MIN_PARALLEL:
        _multiply(left, right, into)
        return out
    bounds = [rows * part // threads for part in range(threads + 1)]
    parts = [slice(first, last) for first, last in itertools.pairwise(bounds)]
    waiting = [_pool(threads - 1).submit(_multiply, left[part], right[part], into[part]) for part in parts[1:]]
    _multiply(left[parts[0]], right[parts[0]], into[parts[0]])
    for done in waiting:
        done.result()
    return out


def lay_out_for_decoding(model: nn.Module) -> None:
    """Store the matrices of linear layers transposed in memory; shapes and values stay the same.

    Decoding multiplies one row per hypothesis. OpenBLAS, which torch uses without MKL, then spends most of the time on
    transposing the matrix: transposed beforehand, 64 rows take half as long and 16 rows a third.
    """
    if torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and layer.weight.device.type == "cpu" and layer.weight.is_contiguous():
            layer.weight.data = layer.weight.data.t().contiguous().t()
