"""Matrices of ONNX graphs in 8 bits: a quarter of the size, nearly the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.exchange.onnx_int8 import PrecisionCheck, quantized, write_int8

onnx: Any = pytest.importorskip("onnx", reason="the extra 'export' is not installed")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")


def test_a_graph_with_int8_weights_computes_nearly_the_same(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    large = (draw.standard_normal((96, 80)) * np.geomspace(0.01, 1, 80)).astype(np.float32)
    tensors = {"large": large, "small": draw.standard_normal((80, 4)).astype(np.float32)}
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "large"], ["y"]),
        onnx.helper.make_node("MatMul", ["y", "small"], ["z"]),
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "g", [value("x", 1, [None, 96])], [value("z", 1, [None, 4])],
        [onnx.numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )  # fmt: skip
    opset = onnx.helper.make_opsetid("", 20)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), str(tmp_path / "a.onnx"))
    write_int8(tmp_path / "a.onnx", tmp_path / "b.onnx")
    x = draw.standard_normal((5, 96)).astype(np.float32)
    results = [onnxruntime.InferenceSession(tmp_path / f"{name}.onnx").run(None, {"x": x})[0] for name in "ab"]
    assert np.abs(results[0] - results[1]).max() < 0.02 * np.abs(results[0]).max()
    assert not np.array_equal(*results)
    assert (tmp_path / "b.onnx").stat().st_size < 0.45 * (tmp_path / "a.onnx").stat().st_size


def test_scales_follow_rows_or_columns_whichever_loses_less() -> None:
    rows = np.outer(np.geomspace(1e-3, 1, 40), np.ones(40)).astype(np.float32)
    assert quantized(rows)[1].shape == (40, 1)
    assert quantized(rows.T.copy())[1].shape == (1, 40)
    integers, scale = quantized(np.zeros((3, 3), np.float32))
    assert not (integers * scale).any()


def test_a_loss_of_quality_is_seen() -> None:
    assert PrecisionCheck(10, 0.9, "chrF", (40.0, 39.9)).lossless
    assert not PrecisionCheck(10, 0.9, "chrF", (40.0, 39.0)).lossless
