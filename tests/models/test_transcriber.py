"""Recognition by CTC and attention: losses against torch's and brute force, the laws, and learning."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.base.errors import ConfigError
from dragoman.data.batch import Batch, Frames
from dragoman.data.collate import Collator, FrameCollator
from dragoman.data.tokenizers.base import EOS, PAD, SOS
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.joint_ctc import TranscriberSearch
from dragoman.decoding.non_autoregressive import LMFusion
from dragoman.decoding.searches import search
from dragoman.models.config import TransformerConfig
from dragoman.models.decoders.recurrent import RecurrentDecoderConfig
from dragoman.models.encoders.frames import FramesConfig, FrameStackingConfig
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.layers.augmentation import SpecAugmentConfig
from dragoman.models.layers.cells import GRUConfig
from dragoman.models.layers.rnn_attention import AdditiveConfig
from dragoman.models.traits import decodes
from dragoman.models.transcriber import CTCOnlyConfig, JointAttentionConfig, Transcriber, TranscriberConfig

CLOSE = {"rtol": 0.0, "atol": 1e-10}
VOCABULARY, FEATURES = 7, 5
ENCODER = FramesConfig(
    subsampling=FrameStackingConfig(2), dropout=0.0, inner=RecurrentEncoderConfig(embedding=6, width=8, dropout=0.0)
)
DECODERS = {
    "none": CTCOnlyConfig(),
    "lstm": JointAttentionConfig(
        decoder=RecurrentDecoderConfig(embedding=6, width=9, attention=AdditiveConfig(width=7), dropout=0.0)
    ),
    "transformer": JointAttentionConfig(
        weight=0.6,
        label_smoothing=0.0,
        decoder=TransformerConfig(layers=1, width=8, heads=2, feedforward=12, dropout=0.0),
    ),
}
LENGTHS = [8, 3, 7, 10]
COLLATOR = Collator(FrameCollator(FEATURES, "float32"))
TARGETS = [[4, 5], [6], [4, 4], [5, 6, 4]]


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(2)
    yield
    torch.set_default_dtype(torch.float32)


def build(decoder: str, **more: object) -> Transcriber:
    config = TranscriberConfig(encoder=ENCODER, attention_decoder=DECODERS[decoder], **more)  # type: ignore[arg-type]
    model = Transcriber(config, FEATURES, VOCABULARY)
    with torch.no_grad():
        for part in model.parameters():
            part.add_(0.3 * torch.randn_like(part))
    return model


def rows() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal((length, FEATURES)) for length in LENGTHS]


def batch_of(data: list[np.ndarray], targets: list[list[int]] | None = None) -> Batch:
    batch = COLLATOR.collate(data, targets)
    return replace(batch, source=Frames(batch.source.data.double(), batch.source.mask))


def text_of(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(symbol for symbol, _ in itertools.groupby(path) if symbol != PAD)


def brute(frames: Tensor) -> dict[tuple[int, ...], float]:
    """The probability of every text of frames (T, V), by summing over all paths."""
    found: dict[tuple[int, ...], float] = defaultdict(float)
    rows = frames.tolist()
    for path in itertools.product(range(frames.shape[1]), repeat=len(rows)):
        found[text_of(path)] += math.exp(sum(row[symbol] for row, symbol in zip(rows, path, strict=True)))
    return found


@torch.no_grad()
def test_the_loss_is_that_of_all_paths_and_torchs() -> None:
    model, batch = build("none").eval(), batch_of(rows(), TARGETS)
    written = model.emissions(batch, torch.tensor([9] * 4), 1)
    assert written.lengths.tolist() == [4, 2, 4, 5]
    truth = theirs = 0.0
    for row, (length, target) in enumerate(zip(written.lengths.tolist(), TARGETS, strict=True)):
        frames = written.log_probabilities[row, :length]
        truth -= math.log(brute(frames)[tuple(target)])
        one = F.ctc_loss(frames[:, None], torch.tensor([target]), torch.tensor([length]), torch.tensor([len(target)]),
                         blank=PAD, reduction="sum")  # fmt: skip
        theirs += float(one)
    loss = model(batch)
    assert float(loss.total) == pytest.approx(truth, abs=1e-9)
    assert float(loss.total) == pytest.approx(theirs, abs=1e-9)
    assert int(loss.count) == sum(len(target) + 1 for target in TARGETS)
    scores = model.score(batch)
    assert float(-scores.log_probabilities.sum()) == pytest.approx(truth, abs=1e-9)


def test_label_smoothing_pulls_real_positions_to_the_uniform_distribution_in_training() -> None:
    batch = batch_of(rows(), TARGETS)
    plain = build("none", label_smoothing=0.2).eval()
    total = plain(batch).total  # what is measured is not smoothed
    written = plain.emissions(batch, torch.tensor([9] * 4), 1)
    uniform = sum(-written.log_probabilities[row, :length].mean(-1).sum() for row, length in enumerate([4, 2, 4, 5]))
    torch.testing.assert_close(plain.train()(batch).total, 0.8 * total + 0.2 * uniform, **CLOSE)


@pytest.mark.parametrize("decoder", ["lstm", "transformer"])
def test_the_joint_loss_is_the_weighted_sum(decoder: str) -> None:
    model, batch = build(decoder), batch_of(rows(), TARGETS)
    weight, smoothing = model.joint.weight, model.joint.label_smoothing  # type: ignore[union-attr]
    state = model.start(batch)
    inputs = torch.cat([torch.full((4, 1), SOS), batch.target[:, :-1]], 1)
    logs, _ = model.read(inputs, state)
    beside = F.nll_loss(logs.flatten(0, 1), batch.target.flatten(), ignore_index=PAD, reduction="none")
    uniform = -(logs.mean(-1) * (batch.target != PAD)).sum()
    expected = (1 - smoothing) * beside.sum() + smoothing * uniform
    memory = model.encode(batch.source.data, batch.source.mask)
    frames = F.linear(memory.values, model.ctc.upsample.split.weight, model.ctc.upsample.split.bias).log_softmax(-1)
    sizes = (batch.target != PAD).sum(1) - 1
    alone = F.ctc_loss(frames.transpose(0, 1), batch.target, memory.mask.sum(1), sizes, blank=PAD, reduction="sum")
    loss = model(batch)
    torch.testing.assert_close(loss.total, weight * alone + (1 - weight) * expected, **CLOSE)
    loss.total.backward()
    assert all(part.grad is not None for part in model.ctc.parameters())


def test_ctc_alone_does_not_count_targets_without_an_alignment() -> None:
    impossible = [[4, 5], [6, 6], [4, 4], [5, 6, 4]]  # two positions, three needed
    model, batch = build("none"), batch_of(rows(), impossible)
    assert model.reachable(batch).tolist() == [True, False, True, True]
    loss = model(batch)
    assert torch.isfinite(loss.total)
    assert int(loss.count) == 10
    assert model.positions(10, 3) == 5
    joint = build("lstm")(batch)
    assert int(joint.count) == 13
    assert torch.isfinite(joint.total)


@pytest.mark.parametrize("decoder", DECODERS)
def test_padding_and_neighbours_change_nothing(decoder: str) -> None:
    model = build(decoder).eval()
    data, batch = rows(), batch_of(rows(), TARGETS)
    longer = Batch(
        Frames(F.pad(batch.source.data, (0, 0, 0, 6), value=9.0), F.pad(batch.source.mask, (0, 6))),
        F.pad(batch.target, (0, 2), value=PAD),
    )
    torch.testing.assert_close(model(longer).total, model(batch).total, **CLOSE)
    scores = model.score(longer).log_probabilities
    total = torch.zeros(())
    for row, target in enumerate(TARGETS):
        alone = batch_of([data[row]], [target])
        size = len(target) + 1
        torch.testing.assert_close(scores[row, :size], model.score(alone).log_probabilities[0], **CLOSE)
        total = total + model(alone).total
    torch.testing.assert_close(total, model(batch).total, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("decoder", ["lstm", "transformer"])
def test_joint_search_ranks_as_an_exhaustive_one(decoder: str) -> None:
    model, batch = build(decoder).eval(), batch_of(rows())
    config = SearchConfig(beam=60, length_penalty=0.0, max_length=2)
    found = search(model, batch, config, 1.0, 3, method=TranscriberSearch("joint", ctc_weight=0.4))
    texts = [text for size in range(3) for text in itertools.product([4, 5, 6], repeat=size)]
    written = model.emissions(batch, torch.tensor([9] * 4), 1)
    for row, hypotheses in enumerate(found):
        by_ctc = brute(written.log_probabilities[row, : int(written.lengths[row])])
        truth = {}
        for text in texts:
            if by_ctc.get(text, 0.0) == 0.0:
                continue
            state = model.start(batch_of([rows()[row]]))
            tokens = torch.tensor([[SOS, *text]])
            logs, _ = model.read(tokens, state)
            beside = sum(float(logs[0, place, token]) for place, token in enumerate([*text, EOS]))
            truth[text] = 0.4 * math.log(by_ctc[text]) + 0.6 * beside
        best = sorted(truth, key=lambda text: -truth[text])[:3]
        assert [one.tokens[:-1] for one in hypotheses] == best[: len(hypotheses)]
        for one in hypotheses:
            assert one.score == pytest.approx(truth[one.tokens[:-1]], abs=1e-9)
            assert sum(one.token_scores) == pytest.approx(one.score, abs=1e-9)


@torch.no_grad()
def test_attention_alone_scores_as_teacher_forcing_does() -> None:
    model, batch = build("lstm").eval(), batch_of(rows())
    found = search(model, batch, SearchConfig(beam=3), 1.0, 2, method=TranscriberSearch("attention"))
    for row, hypotheses in enumerate(found):
        assert len(hypotheses) == 2
        for one in hypotheses:
            own = batch_of([rows()[row]], [list(one.tokens[:-1])])
            memory = model.encode(own.source.data, own.source.mask)
            assert model.attention_decoder is not None
            truth = model.attention_decoder.score(memory, own.target).log_probabilities.sum()
            assert one.score == pytest.approx(float(truth), abs=1e-9)


def test_decoding_modes_are_chosen_by_name() -> None:
    model, batch = build("none").eval(), batch_of(rows())
    assert decodes(model) == "parallel"
    for method in (TranscriberSearch("attention"), TranscriberSearch("joint")):
        with pytest.raises(ConfigError, match="needs a model with CTC and a decoder"):
            search(model, batch, SearchConfig(), 1.0, method=method)
    assert len(search(model, batch, SearchConfig(beam=1), 1.0)) == 4
    uniform = LMFusion(lambda texts: torch.full((len(texts), VOCABULARY), -math.log(VOCABULARY)), weight=0.5)
    assert len(search(model, batch, SearchConfig(beam=4), 1.0, method=TranscriberSearch("ctc", fusion=uniform))) == 4


def test_wrong_settings_are_reported() -> None:
    for decoder in DECODERS.values():
        assert not isinstance(decoder, JointAttentionConfig) or list(decoder.problems()) == []
    copying = JointAttentionConfig(decoder=RecurrentDecoderConfig(begin="copy"))
    assert any("decoder.begin" in text for text in copying.problems())
    untied = JointAttentionConfig(decoder=RecurrentDecoderConfig(embedding=0))
    assert any("tie" in text for text in untied.problems())


@pytest.mark.parametrize("decoder", ["none", pytest.param("lstm", marks=pytest.mark.slow)])
def test_it_learns_to_read_noisy_symbols(decoder: str) -> None:
    """Every symbol is a few frames of a vector of its own in noise; repeats are separated by silence."""
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    shapes = random.standard_normal((VOCABULARY, FEATURES)).astype(np.float32) * 2

    def example() -> tuple[np.ndarray, list[int]]:
        text = random.integers(4, VOCABULARY, random.integers(1, 5)).tolist()
        parted: list[np.ndarray] = []
        for symbol in text:
            parted += [np.zeros(FEATURES)] * 2 + [shapes[symbol]] * int(random.integers(3, 6))
        noisy = np.array(parted) + 0.3 * random.standard_normal((len(parted), FEATURES))
        return noisy.astype(np.float32), text

    encoder = FramesConfig(
        subsampling=FrameStackingConfig(2), dropout=0.0,
        inner=RecurrentEncoderConfig(cell=GRUConfig(), embedding=24, width=48, dropout=0.0),
    )  # fmt: skip
    inner = RecurrentDecoderConfig(
        cell=GRUConfig(), embedding=24, width=32, attention=AdditiveConfig(width=24), dropout=0.0
    )
    joint = JointAttentionConfig(weight=0.5, label_smoothing=0.0, decoder=inner)
    config = TranscriberConfig(
        encoder=encoder, attention_decoder=CTCOnlyConfig() if decoder == "none" else joint,
        augment=SpecAugmentConfig(times=1, time_share=0.05, bands=1, band_share=0.2),
    )  # fmt: skip
    model = Transcriber(config, FEATURES, VOCABULARY)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(100 if decoder == "none" else 160):
        data = [example() for _ in range(24)]
        loss = model(COLLATOR.collate([one for one, _ in data], [text for _, text in data]))
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    data = [example() for _ in range(60)]
    batch = COLLATOR.collate([one for one, _ in data])
    ways: list[tuple[int, TranscriberSearch | None]] = [(1, None), (4, None)]
    if decoder != "none":
        ways += [(4, TranscriberSearch("attention")), (4, TranscriberSearch("joint", 0.5))]
    for beam, method in ways:
        found = search(model, batch, SearchConfig(beam=beam, max_length=8), 1.0, method=method)  # type: ignore[arg-type]
        right = sum(list(one[0].tokens[:-1]) == text for one, (_, text) in zip(found, data, strict=True))
        assert right >= 56, (beam, method, right)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # CPUs without bfloat16
@pytest.mark.parametrize("decoder", DECODERS)
def test_recordings_are_read_in_half_precision(decoder: str) -> None:
    """Features are stored in float32; with predict precision=bfloat16 all weights have half of it."""
    model, batch = build(decoder).float().eval(), COLLATOR.collate(rows(), TARGETS)
    assert batch.source.data.dtype == torch.float32
    with torch.no_grad():
        expected = model.score(batch).log_probabilities
        found = model.bfloat16().score(batch).log_probabilities
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.1)
