"""Bidirectional language models against torch's LSTM, row by row; neither direction sees what it predicts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dragoman.base import config as settings
from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import EOS, SOS
from dragoman.models.elmo import BiLM, BiLMConfig, ElmoEncoderConfig

WORDS = 19
ROWS = [[5, 6, 7, 8, 9], [10], [11, 12, 13]]
CLOSE = {"rtol": 0.0, "atol": 1e-10}


@pytest.fixture
def model() -> Iterator[BiLM]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(4)
    config = BiLMConfig(encoder=ElmoEncoderConfig(layers=2, width=6, residual_from=0, dropout=0.0))
    built = BiLM(config, WORDS)
    with torch.no_grad():
        for part in built.parameters():
            part.add_(0.3 * torch.randn_like(part))
    yield built
    torch.set_default_dtype(torch.float32)


def torchs(model: BiLM) -> tuple[nn.LSTM, nn.LSTM]:
    """Two stacks of torch's own with the same weights."""
    out = []
    for stack in (model.encoder.forward_layers, model.encoder.backward_layers):
        theirs = nn.LSTM(6, 6, num_layers=2, batch_first=True)
        with torch.no_grad():
            for number, layer in enumerate(stack):
                getattr(theirs, f"weight_ih_l{number}").copy_(layer.cell.input_weight)
                getattr(theirs, f"weight_hh_l{number}").copy_(layer.cell.hidden_weight)
                getattr(theirs, f"bias_ih_l{number}").copy_(layer.cell.bias)
                getattr(theirs, f"bias_hh_l{number}").zero_()
        out.append(theirs)
    return out[0], out[1]


def test_the_loss_is_that_of_two_lstms(model: BiLM) -> None:
    ahead, back = torchs(model)
    table = model.output.weight
    expected: Tensor = torch.zeros(())
    for row in ROWS:
        text = torch.tensor([[SOS, *row, EOS]])
        embedded = nn.functional.embedding(text, table)
        forward = ahead(embedded)[0] @ table.T + model.output.bias
        backward = back(embedded.flip(1))[0].flip(1) @ table.T + model.output.bias
        size = text.shape[1]
        for place in range(1, size):
            expected = expected - forward[0, place - 1].log_softmax(-1)[text[0, place]]
        for place in range(1, size - 1):
            expected = expected - backward[0, place + 1].log_softmax(-1)[text[0, place]]
    batch = batch_of(ROWS)
    loss = model(batch)
    torch.testing.assert_close(loss.total, expected, **CLOSE)
    torch.testing.assert_close(-model.score(batch).log_probabilities.sum(), expected, **CLOSE)
    lengths = np.array([len(row) + 1 for row in ROWS])
    assert int(loss.count) == (2 * lengths - 1).sum() == 21
    loss.total.backward()
    unused = {name for name, part in model.named_parameters() if part.grad is None}
    assert unused == {"encoder.layer_weights", "encoder.scale"}


def test_features_are_the_mean_of_all_layers(model: BiLM) -> None:
    ahead, back = torchs(model)
    batch = batch_of(ROWS)
    memory = model.encoder(batch.source.data, batch.source.mask)
    assert memory.values.shape == (3, 6, 12)
    shares = model.encoder.layer_weights.exp() / model.encoder.layer_weights.exp().sum()
    for place, row in enumerate(ROWS):
        text = torch.tensor([[SOS, *row, EOS]])
        embedded = nn.functional.embedding(text, model.output.weight)
        states = [torch.cat([embedded, embedded], -1)]
        for layers in (1, 2):
            sides = []
            for theirs, mirrored in ((ahead, False), (back, True)):
                one = nn.LSTM(6, 6, num_layers=layers, batch_first=True)
                one.load_state_dict({name: theirs.state_dict()[name] for name in one.state_dict()})
                out = one(embedded.flip(1) if mirrored else embedded)[0]
                sides.append(out.flip(1) if mirrored else out)
            states.append(torch.cat(sides, -1))
        expected = model.encoder.scale * sum(share * state for share, state in zip(shares, states, strict=True))
        torch.testing.assert_close(memory.values[place, : len(row) + 1], expected[0, 1:], **CLOSE)
        final = torch.cat([states[-1][0, -1, :6], states[-1][0, 0, 6:]])
        torch.testing.assert_close(memory.final[0][place], final, **CLOSE)


def test_neither_direction_sees_what_it_predicts(model: BiLM) -> None:
    batch = batch_of([[5, 6, 7, 8, 9]])
    other = batch_of([[5, 6, 15, 8, 9]])
    with torch.no_grad():
        first, second = model.logits(batch)[0][0], model.logits(other)[0][0]
    ahead, back = (first - second).abs().amax(-1).split(6)
    assert ahead[:3].max() == 0  # <eos>, 5 and 6 tell 5, 6 and the changed one
    assert ahead[3:].min() > 0
    assert back[3:].max() == 0  # predictions of 8, 9 and the changed token, from the tokens after them
    assert back[1:3].min() > 0


def test_settings_survive_a_round_trip() -> None:
    config = BiLMConfig(encoder=ElmoEncoderConfig(layers=3, width=8), tie=False)
    assert settings.build(BiLMConfig, settings.as_table(config)) == config
