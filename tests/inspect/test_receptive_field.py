"""Receptive fields by layer against their formulas, and on a page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dragoman.inspect.views.receptive_field import draw_receptive, receptive_fields, receptive_view
from dragoman.models.convs2s import ConvS2SEncoderConfig
from dragoman.models.encoders.convolutional import MultiKernelConfig
from dragoman.models.layers.config import LocalConfig
from dragoman.models.registry import DECODERS
from dragoman.models.transformer import TransformerConfig
from tests.figures import faults
from tests.inspect.test_inside import model_of, subject_of

LAYERS, LENGTH = 3, 41
SMALL = {"layers": LAYERS, "dropout": 0.0}
STACK = TransformerConfig(**SMALL, width=16, heads=2, feedforward=16)


def fields(encoder: Any) -> Any:
    decoder = next(one.example for one in DECODERS.values() if one.example.kind == "recurrent")
    return subject_of(model_of(encoder, decoder), [5 + number % 3 for number in range(LENGTH - 1)])


@pytest.mark.parametrize(
    ("encoder", "expected"),
    [
        (MultiKernelConfig(**SMALL, embedding=8, width=8, kernels=(3, 5)), [1 + 4 * layer for layer in (1, 2, 3)]),
        (ConvS2SEncoderConfig(embedding=8, width=8, kernel=3, **SMALL), [1 + 2 * layer for layer in (1, 2, 3)]),
        (replace(STACK, attention=LocalConfig(window=2)), [1 + 4 * layer for layer in (1, 2, 3)]),
        (STACK, [LENGTH] * 3),
    ],
    ids=["kernels of 3 and 5", "ConvS2S", "window of 2", "full attention"],
)
def test_fields_grow_as_the_formulas_say(encoder: Any, expected: list[int]) -> None:
    """1 + L(k − 1) positions of convolutions of k, 1 + 2Lr of attention with a window of r: around the middle."""
    subject = fields(encoder)
    found = receptive_fields(subject)
    assert found is not None
    names, place, influence = found
    assert [int(size) for size in (influence > 0).sum(1)] == expected
    for row, size in zip(np.asarray(influence), expected, strict=True):
        (seen,) = np.nonzero(row)
        half = min(size // 2, place)
        np.testing.assert_array_equal(seen, np.arange(place - half, place - half + size))
    assert len(names) == LAYERS
    view = receptive_view(subject)
    assert view is not None
    assert view.data["sizes"] == expected
    assert not faults(draw_receptive(view, None))
