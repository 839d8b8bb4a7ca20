"""Non-autoregressive models: the laws over encoders, decoders and alignments, and their losses, in float64."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import build
from dragoman.base.errors import ConfigError
from dragoman.data.batch import Batch, batch_of, token_batch
from dragoman.data.tokenizers.base import EOS, PAD, SOS
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.searches import search
from dragoman.models.config import EncoderDecoderConfig, TransformerConfig
from dragoman.models.contracts import CTCEmissions, LengthBeam
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.heads.parallel import Upsample, resize
from dragoman.models.layers.config import LearnedConfig
from dragoman.models.non_autoregressive import (
    ALIGNMENTS,
    PARALLEL_DECODERS,
    AlignmentConfig,
    CTCConfig,
    FeedForwardStackConfig,
    LengthPredictorConfig,
    NonAutoregressive,
    NonAutoregressiveConfig,
    ParallelDecoderConfig,
)
from dragoman.models.traits import decodes
from tests.contract.conftest import ENCODER_CASES

CLOSE = {"rtol": 0.0, "atol": 1e-10}
VOCABULARY = 9
DECODER_CASES: dict[str, ParallelDecoderConfig] = {
    "feed-forward": FeedForwardStackConfig(layers=2, width=7, feedforward=9, dropout=0.0, activation="gelu"),
    "lstm": RecurrentEncoderConfig(embedding=5, width=6, dropout=0.0),
    "transformer": TransformerConfig(
        layers=1, width=8, heads=2, feedforward=9, dropout=0.0, positions=LearnedConfig(max_positions=60)
    ),
}
ALIGNMENT_CASES: dict[str, AlignmentConfig] = {
    "ctc": CTCConfig(upsample=3),
    "length": LengthPredictorConfig(max_length=7),
}
CASES = list(itertools.product(ENCODER_CASES, ["feed-forward"], ALIGNMENT_CASES))
CASES += [("transformer", *pair) for pair in itertools.product(["lstm", "transformer"], ALIGNMENT_CASES)]

SOURCES = [[5, 6, 7, 8, 9], [10, 4], [4, 8, 7], [4]]
TARGETS = [[4, 5, 6], [7, 8, 8, 6, 4, 5], [], [5, 5]]


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def built(encoder: str, decoder: str, alignment: AlignmentConfig, smoothing: float = 0.0) -> NonAutoregressive:
    torch.manual_seed(zlib.crc32(f"{encoder}>{decoder}".encode()))
    config = NonAutoregressiveConfig(
        encoder=ENCODER_CASES[encoder], decoder=DECODER_CASES[decoder], alignment=alignment, label_smoothing=smoothing
    )
    model = NonAutoregressive(config, VOCABULARY + 2, VOCABULARY)
    with torch.no_grad():  # so that biases and norms matter
        for part in model.parameters():
            part.add_(0.2 * torch.randn_like(part))
    return model


@pytest.fixture(params=CASES, ids=">".join)
def model(request: pytest.FixtureRequest) -> NonAutoregressive:
    encoder, decoder, alignment = request.param
    return built(encoder, decoder, ALIGNMENT_CASES[alignment], smoothing=0.1).train()


@pytest.fixture
def batch() -> Batch:
    return batch_of(SOURCES, TARGETS)


def gradients(model: nn.Module, *batches: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """The summed loss of batches and the gradient of every weight."""
    model.zero_grad()
    totals = []
    for batch in batches:
        total = model(batch).total
        total.backward()
        totals.append(total.detach())
    missing = [name for name, part in model.named_parameters() if part.grad is None]
    assert not missing
    return torch.stack(totals).sum(), {name: part.grad.clone() for name, part in model.named_parameters()}  # type: ignore[union-attr]


def assert_same(left: tuple[Tensor, dict[str, Tensor]], right: tuple[Tensor, dict[str, Tensor]]) -> None:
    torch.testing.assert_close(left[0], right[0], **CLOSE)
    for name, part in left[1].items():
        torch.testing.assert_close(part, right[1][name], **CLOSE)


# ---------------------------------------------------------------------- the laws


def test_every_table_entry_has_a_case() -> None:
    assert {type(case) for case in DECODER_CASES.values()} == set(PARALLEL_DECODERS)
    assert {type(case) for case in ALIGNMENT_CASES.values()} == set(ALIGNMENTS)
    assert {decoder for _, decoder, _ in CASES} == set(DECODER_CASES)


def test_law_3_padding_changes_neither_loss_nor_gradient_nor_score(model: NonAutoregressive, batch: Batch) -> None:
    plain = gradients(model, batch)
    source = F.pad(batch.source.data, (0, 4), value=PAD)
    padded = token_batch(source, F.pad(batch.target, (0, 3), value=PAD))
    assert_same(gradients(model, padded), plain)
    reached = model.reachable(batch).tolist()  # an encoder that leaves one entry a word has room for less
    count = sum(len(row) + 1 for row, fits in zip(TARGETS, reached, strict=True) if fits)
    assert int(model(padded).count) == int(model(batch).count) == count > 0
    before, after = model.score(batch), model.score(padded)
    size = batch.target.shape[1]
    torch.testing.assert_close(after.log_probabilities[:, :size], before.log_probabilities, **CLOSE)
    assert torch.equal(after.correct[:, :size], before.correct)
    assert not after.mask[:, size:].any()
    assert not after.log_probabilities[:, size:].any()


def test_law_4_rows_do_not_see_each_other(model: NonAutoregressive, batch: Batch) -> None:
    together = model.eval().score(batch)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        alone = model.score(batch_of([source], [target]))
        size = len(target) + 1
        torch.testing.assert_close(together.log_probabilities[row, :size], alone.log_probabilities[0], **CLOSE)
        assert torch.equal(together.correct[row, :size], alone.correct[0])


@pytest.mark.parametrize("beam", [1, 3])
def test_law_4_outputs_do_not_depend_on_the_batch(model: NonAutoregressive, beam: int) -> None:
    config = SearchConfig(beam=beam)
    together = search(model.eval(), batch_of(SOURCES), config, 1.5, beam)
    for row, source in enumerate(SOURCES):
        (alone,) = search(model, batch_of([source]), config, 1.5, beam)
        assert [one.tokens for one in together[row]] == [one.tokens for one in alone]
        for left, right in zip(together[row], alone, strict=True):
            assert left.token_scores == pytest.approx(right.token_scores, abs=1e-10)


@pytest.mark.parametrize("beam", [1, 4])
def test_law_6_a_search_score_is_the_score_of_its_text(model: NonAutoregressive, beam: int) -> None:
    found = search(model.eval(), batch_of(SOURCES), SearchConfig(beam=beam), 1.5, beam)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        assert len(hypotheses) == beam
        for one in hypotheses:
            scores = model.score(batch_of([source], [one.tokens[:-1]]))
            torch.testing.assert_close(torch.tensor(one.token_scores), scores.log_probabilities[0], **CLOSE)
            assert one.score == pytest.approx(scores.log_probabilities.sum().item(), abs=1e-10)


def test_law_9_accumulated_gradients_are_those_of_one_batch(model: NonAutoregressive, batch: Batch) -> None:
    whole = gradients(model, batch)
    parts = [batch_of(SOURCES[rows], TARGETS[rows]) for rows in (slice(0, 1), slice(1, 4))]
    assert_same(gradients(model, *parts), whole)


def test_gradient_is_that_of_small_changes(model: NonAutoregressive, batch: Batch) -> None:
    _, found = gradients(model, batch)
    names = ("output.weight", "alignment.upsample.split.weight", "alignment.length.bias", "alignment.project.weight")
    for name, part in model.named_parameters():
        if name in names:
            step = torch.zeros_like(part).flatten()
            place = int(found[name].abs().argmax())
            step[place] = 1e-6
            with torch.no_grad():
                losses = []
                for sign in (1, -1):
                    part.add_(sign * step.view_as(part))
                    losses.append(model(batch).total.item())
                    part.sub_(sign * step.view_as(part))
            expected = (losses[0] - losses[1]) / 2e-6
            assert float(found[name].flatten()[place]) == pytest.approx(expected, rel=1e-5)


# ---------------------------------------------------------------------- CTC


def text_of(path: tuple[int, ...]) -> list[int]:
    return [symbol for symbol, _ in itertools.groupby(path) if symbol != PAD]


def test_ctc_loss_is_the_sum_over_all_alignments() -> None:
    model = built("gru", "feed-forward", CTCConfig(upsample=2)).eval()
    for source, target in (([4], [5, 6]), ([5], [7, 7]), ([], [4]), ([6], []), ([6], [4, 5, 6, 7])):
        batch = batch_of([source], [target])
        written = model.emissions(batch, torch.tensor([99]), 1)
        assert isinstance(written, CTCEmissions)
        frames = written.log_probabilities[0]
        assert frames.shape[0] == 2 * (len(source) + 1)
        torch.testing.assert_close(frames.exp().sum(-1), torch.ones(len(frames)))
        probability = sum(
            math.exp(sum(frames[place, symbol].item() for place, symbol in enumerate(path)))
            for path in itertools.product([PAD, *set(target)], repeat=len(frames))
            if text_of(path) == target
        )
        loss = model(batch)
        assert loss.total.item() == pytest.approx(-math.log(probability), abs=1e-10)
        assert int(loss.count) == len(target) + 1
        scores = model.score(batch).log_probabilities[0]
        assert scores.tolist() == pytest.approx([math.log(probability) / (len(target) + 1)] * (len(target) + 1))


def test_ctc_smoothing_is_a_share_of_the_uniform_distribution() -> None:
    batch = batch_of(SOURCES, TARGETS)
    sharp = built("gru", "feed-forward", CTCConfig()).train()
    smooth = built("gru", "feed-forward", CTCConfig(), smoothing=0.2).train()
    written = sharp.emissions(batch, torch.tensor([9] * 4), 1)
    assert isinstance(written, CTCEmissions)
    uniform = sum(
        -frames[:length].mean(-1).sum().item()
        for frames, length in zip(written.log_probabilities, written.lengths.tolist(), strict=True)
    )
    assert smooth(batch).total.item() == pytest.approx(0.8 * sharp(batch).total.item() + 0.2 * uniform, abs=1e-9)
    assert smooth.eval()(batch).total.item() == pytest.approx(sharp(batch).total.item(), abs=1e-9)


def test_targets_without_a_path_give_no_loss_and_are_told() -> None:
    """Two positions for each source token: [4] has four with its <eos>; equal neighbours need a blank between."""
    model = built("transformer", "feed-forward", CTCConfig(upsample=2), smoothing=0.1).train()
    sources = [[4], [4], [4], [4], [4]]
    targets = [[5, 6, 7, 8], [5, 6, 7, 8, 4], [5, 5, 6], [5, 5, 6, 6], [7]]
    batch = batch_of(sources, targets)
    assert model.reachable(batch).tolist() == [True, False, True, False, True]
    kept = [0, 2, 4]
    fitting = batch_of([sources[row] for row in kept], [targets[row] for row in kept])
    assert_same(gradients(model, batch), gradients(model, fitting))
    assert int(model(batch).count) == int(model(fitting).count) == 5 + 4 + 2
    scores = model.eval().score(batch)
    assert scores.mask.any(1).tolist() == [True, False, True, False, True]
    assert scores.log_probabilities.isfinite().all()
    impossible = model(batch_of(sources[1:2], targets[1:2]))
    assert impossible.total.item() == 0.0
    impossible.total.backward()
    assert all(part.grad is None or part.grad.isfinite().all() for part in model.parameters())


def test_best_path_decides_what_is_correct() -> None:
    model = built("gru", "feed-forward", CTCConfig(upsample=2)).eval()
    lengths: list[int] = []
    for source in SOURCES:
        written = model.emissions(batch_of([source]), torch.tensor([99]), 1)
        frames = written.log_probabilities[0].index_fill(-1, torch.tensor([SOS, EOS]), -math.inf)
        text = text_of(tuple(frames.argmax(-1).tolist()))
        lengths.append(len(text))
        assert model.score(batch_of([source], [text])).correct.all()
        if not text:
            continue
        other = 4 + text[-1] % 4
        wrong = model.score(batch_of([source], [[*text[:-1], other]])).correct[0]
        assert wrong.tolist() == [True] * (len(text) - 1) + [other == text[-1], True]
        shorter = model.score(batch_of([source], [text[:-1]])).correct[0]
        assert shorter.tolist() == [True] * (len(text) - 1) + [False]  # it should have ended there
    assert max(lengths) > 1


# ---------------------------------------------------------------------- length


def test_length_loss_is_the_length_and_the_tokens() -> None:
    model = built("recurrent", "lstm", LengthPredictorConfig(max_length=6)).eval()
    for source, target in zip(SOURCES, TARGETS, strict=True):
        batch = batch_of([source], [target])
        memory = model.encode(batch.source.data, batch.source.mask)
        length = model.alignment.length(memory.values[0].mean(0)).log_softmax(-1)[len(target)]
        expected = [length.item()]
        if target:
            vectors = resize(memory.values, torch.tensor([len(source) + 1]), torch.tensor([len(target)]), len(target))
            vectors = model.alignment.project(vectors)
            hidden = model.decoder(vectors * 5**-0.5, torch.ones(1, len(target), dtype=torch.bool)).values
            tokens = model.output(hidden)[0].log_softmax(-1)
            expected = [*(tokens[place, token].item() for place, token in enumerate(target)), *expected]
        assert model.score(batch).log_probabilities[0].tolist() == pytest.approx(expected, abs=1e-10)
        assert model(batch).total.item() == pytest.approx(-sum(expected), abs=1e-10)


def test_length_smoothing_is_torchs_on_the_tokens() -> None:
    batch = batch_of(SOURCES, TARGETS)
    model = built("gru", "feed-forward", LengthPredictorConfig(max_length=6), smoothing=0.2).train()
    total = 0.0
    for source, target in zip(SOURCES, TARGETS, strict=True):
        alone = batch_of([source], [target])
        memory = model.encode(alone.source.data, alone.source.mask)
        scores = model.score(alone).log_probabilities[0]
        total -= scores[-1].item()
        if target:
            size = torch.tensor([len(target)])
            written = model.alignment.emit(model.log_probabilities, memory.values, memory.mask, size, len(target))
            total += F.cross_entropy(written[0], torch.tensor(target), reduction="sum", label_smoothing=0.2).item()
    assert model(batch).total.item() == pytest.approx(total, abs=1e-9)


def test_longer_targets_than_the_longest_give_no_loss() -> None:
    model = built("gru", "transformer", LengthPredictorConfig(max_length=3), smoothing=0.1).train()
    batch = batch_of(SOURCES, TARGETS)
    assert model.reachable(batch).tolist() == [True, False, True, True]
    fitting = batch_of([SOURCES[row] for row in (0, 2, 3)], [TARGETS[row] for row in (0, 2, 3)])
    assert_same(gradients(model, batch), gradients(model, fitting))
    assert not model.score(batch).mask[1].any()
    assert model.max_positions == 4
    found = search(model.eval(), batch_of(SOURCES), SearchConfig(beam=4, max_length=50), 1.0, 4)
    assert max(len(one.tokens) for row in found for one in row) <= 4


def test_lengths_keep_to_the_limits() -> None:
    model = built("gru", "feed-forward", LengthPredictorConfig(max_length=7)).eval()
    written = model.emissions(batch_of(SOURCES), torch.tensor([3, 1, 8, 50]), 5)
    assert isinstance(written, LengthBeam)
    possible = written.length_scores > -math.inf
    assert possible.sum(1).tolist() == [3, 1, 5, 5]
    assert (written.lengths.masked_fill(~possible, 0).amax(1) <= torch.tensor([2, 0, 7, 7])).all()
    found = search(model, batch_of(SOURCES), SearchConfig(beam=5, max_length=1), 1.0, 5)
    assert {len(one.tokens) for row in found for one in row} == {1, 2}


# ---------------------------------------------------------------------- positions


def test_resizing_is_torchs_linear_interpolation() -> None:
    x = torch.randn(6, 7, 3)
    lengths, sizes = torch.tensor([7, 3, 1, 4, 5, 2]), torch.tensor([3, 7, 4, 4, 1, 5])
    found = resize(x, lengths, sizes, 7)
    assert found.shape == (6, 7, 3)
    for row in range(6):
        expected = F.interpolate(x[row : row + 1, : lengths[row]].mT, size=int(sizes[row]), mode="linear").mT[0]
        torch.testing.assert_close(found[row, : sizes[row]], expected, rtol=0.0, atol=1e-6)


def test_upsampling_splits_every_vector_by_matrices_of_its_own() -> None:
    layer = Upsample(4, 5, 3)
    x = torch.randn(2, 2, 4)
    out, mask = layer(x, torch.tensor([[True, True], [True, False]]))
    assert out.shape == (2, 6, 5)
    assert mask.tolist() == [[True] * 6, [True] * 3 + [False] * 3]
    for part in range(3):
        rows = slice(5 * part, 5 * part + 5)
        torch.testing.assert_close(out[0, 3 + part], layer.split.weight[rows] @ x[0, 1] + layer.split.bias[rows])


# ---------------------------------------------------------------------- the whole


def test_tied_output_is_the_source_table() -> None:
    config = NonAutoregressiveConfig(
        tie="all", encoder=ENCODER_CASES["recurrent"], decoder=replace(DECODER_CASES["lstm"], width=6)
    )
    model = NonAutoregressive(config, VOCABULARY, VOCABULARY)
    assert model.output.weight is model.encoder.embedding.weight  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="tie: 'all' needs a decoder as wide as the source embeddings, found 512"):
        build(NonAutoregressiveConfig, {"tie": "all", "encoder": {"kind": "recurrent", "embedding": 6}})


def test_word_dropout_touches_training_only(batch: Batch) -> None:
    model = built("gru", "feed-forward", CTCConfig())
    model.word_dropout.share = 0.9
    calm = model.eval()(batch).total.item()
    assert model.eval()(batch).total.item() == calm
    assert len({model.train()(batch).total.item() for _ in range(5)}) > 1


def test_only_models_without_feedback_write_at_once() -> None:
    assert decodes(built("gru", "feed-forward", CTCConfig())) == "parallel"
    assert decodes(EncoderDecoder(EncoderDecoderConfig(encoder=ENCODER_CASES["gru"]), 9, 9)) == "stepwise"


def test_half_precision_gives_a_finite_loss_in_float32() -> None:
    torch.set_default_dtype(torch.float32)
    for alignment in ALIGNMENT_CASES.values():
        model = built("transformer", "transformer", alignment).train()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch_of(SOURCES, TARGETS)).total
        assert loss.dtype == torch.float32
        loss.backward()
        assert all(part.grad is None or part.grad.isfinite().all() for part in model.parameters())
