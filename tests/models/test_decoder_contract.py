"""A decoder with a likelihood of its own is one class and one entry of the table; the model asks nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from dragoman.data.batch import Batch, batch_of
from dragoman.data.tokenizers.base import PAD
from dragoman.decoding.beam import CoverageTracker
from dragoman.decoding.scorer import Scorer
from dragoman.models.config import EncoderDecoderConfig, SampledSoftmaxConfig
from dragoman.models.contracts import Criterion, Decoder, Memory, State
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.entries import DecoderEntry
from dragoman.models.layers.linear import LogProbabilities
from dragoman.models.registry import DECODERS

VOCABULARY, BANNED = 9, 5


@dataclass(frozen=True)
class MixtureConfig:
    """Settings of the decoder of these tests."""

    kind: ClassVar[str] = "mixture"
    embedding: int = 6
    output_width: int = 6


class MixtureDecoder(Decoder):
    """p(y) = ½ softmax(W [y; c]) + ½ softmax(−W [y; c]), with the mean c of the memory; it never writes BANNED."""

    unused_memory = ("final", "states")
    own_likelihood = True
    graph_blockers = ("model.decoder 'mixture' is a test",)
    output: nn.Linear

    def __init__(self, config: MixtureConfig, embedding: nn.Module, memory_width: int) -> None:
        super().__init__()
        self.width, self.embedding = config.output_width, embedding
        self.context = nn.Linear(memory_width, self.width)
        self.calls = 0

    def set_output(self, layer: nn.Linear) -> LogProbabilities:
        self.output, self.width = layer, layer.out_features
        return LogProbabilities(self.width)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        weights = memory.mask.to(memory.values.dtype) / memory.mask.sum(1, keepdim=True)  # (B, S)
        return State(static=(weights, self.context(weights[:, None] @ memory.values)), cache=(), length=0)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        weights, context = (tensor.repeat_interleave(state.hypotheses, 0) for tensor in state.static)
        self.show_attention(weights[:, None, None].expand(-1, 1, tokens.shape[1], -1))
        logits = self.output(self.embedding(tokens) + context)
        mixed = (logits.softmax(-1) + (-logits).softmax(-1)) / 2
        return mixed.log(), state._replace(length=state.length + tokens.shape[1])

    def loss(self, inputs: Tensor, target: Tensor, state: State, criterion: Criterion) -> Tensor:
        self.calls += 1
        chosen = self(inputs, state)[0].gather(-1, target[:, :, None])[:, :, 0]
        return -(chosen * (target != PAD)).sum()

    def suppress(self, scores: Tensor, state: State) -> Tensor:
        banned = torch.arange(scores.shape[-1]) == BANNED
        return scores.masked_fill(banned, -torch.inf)


def settings(**options: object) -> EncoderDecoderConfig:
    encoder = RecurrentEncoderConfig(embedding=6, width=8, dropout=0.0)
    return EncoderDecoderConfig(encoder=encoder, decoder=MixtureConfig(), **options)  # type: ignore[arg-type]


@pytest.fixture
def model() -> Iterator[EncoderDecoder]:
    entry = DecoderEntry(MixtureConfig, MixtureDecoder, example=MixtureConfig())
    DECODERS.add(entry)
    torch.manual_seed(0)
    yield EncoderDecoder(settings(tie="none"), VOCABULARY, VOCABULARY).double()
    DECODERS.remove(entry)


@pytest.fixture
def batch() -> Batch:
    return batch_of([[4, 6, 8], [7, 4]], [[4, 4, 8, 7], [6, 4]])


def test_the_model_trains_with_the_likelihood_of_the_decoder(model: EncoderDecoder, batch: Batch) -> None:
    loss = model.train()(batch)
    assert model.decoder.calls == 1
    scores = model.eval().score(batch)
    torch.testing.assert_close(loss.total, -scores.log_probabilities.sum())
    assert loss.count == 8  # <eos> included


def test_the_search_never_sees_suppressed_tokens(model: EncoderDecoder, batch: Batch) -> None:
    tokens = torch.tensor([[2, 4], [2, 6]])
    for scores in (model.step(tokens, model.start(batch))[0], model.read(tokens, model.start(batch))[0]):
        assert scores[..., BANNED].isneginf().all()
        torch.testing.assert_close(scores.exp().sum(-1), torch.ones_like(scores[..., 0]))


def test_its_attention_reaches_the_coverage_penalty(model: EncoderDecoder, batch: Batch) -> None:
    tracker = CoverageTracker(model.step, Scorer(), batch.source.mask)
    tracker.step(torch.tensor([2, 2]), model.start(batch))
    expected = batch.source.mask.double() / batch.source.mask.sum(1, keepdim=True)
    torch.testing.assert_close(tracker.newest[:, 0], expected)


def test_hints_and_settings_follow_from_the_class(model: EncoderDecoder) -> None:
    assert model.graph_blockers == ["model.decoder 'mixture' is a test"]
    assert not model.has_unused_parameters
    assert [*settings(softmax=SampledSoftmaxConfig()).problems()] == [
        "softmax: found 'sampled', expected 'full' with decoder.kind = 'mixture'"
    ]
    assert [*settings(share_cells=True).problems()] == [
        "share_cells: found true, expected a recurrent encoder and a recurrent decoder"
    ]
