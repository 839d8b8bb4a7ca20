"""A model converted to bfloat16 (predict precision=bfloat16) gives nearly the same scores."""

from __future__ import annotations

import pytest
import torch

from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import SOS
from dragoman.testing.laws import SOURCES, TARGETS
from tests.contract.conftest import DECODER_CASES, ENCODER_CASES, build

FIRST = next(iter(ENCODER_CASES)), next(iter(DECODER_CASES))
PAIRS = [(encoder, FIRST[1]) for encoder in ENCODER_CASES] + [(FIRST[0], decoder) for decoder in DECODER_CASES]


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # CPUs without bfloat16
@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_all_weights_in_half_precision(encoder: str, decoder: str) -> None:
    model, batch = build(encoder, decoder).float().eval(), batch_of(SOURCES, TARGETS)
    with torch.no_grad():
        expected = model.score(batch).log_probabilities
        found = model.bfloat16().score(batch).log_probabilities
        torch.testing.assert_close(found, expected, rtol=0.0, atol=0.15)
        tokens, state = torch.full((len(SOURCES),), SOS), model.start(batch)
        for index in range(2):
            following, state = model.step(tokens, state)
            assert following.dtype == torch.float32
            tokens = batch.target[:, index]
            torch.testing.assert_close(following.gather(1, tokens[:, None])[:, 0], found[:, index], rtol=0.0, atol=0.15)
