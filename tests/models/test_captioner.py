"""Image captioning: any decoder over an image memory, doubly stochastic attention, the gate, attention plots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.data.batch import Batch, Pictures, pad_tokens
from dragoman.data.tokenizers.base import PAD, SOS
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.searches import search
from dragoman.inference.align.attention import cross_attention_weights
from dragoman.inspect.views.media_plots import draw_attention_over_image, mean_over_heads
from dragoman.models.captioner import Captioner, CaptionerConfig, doubly_stochastic_penalty, with_attention
from dragoman.models.config import TransformerConfig
from dragoman.models.decoders.recurrent import FixedContextDecoderConfig, LuongDecoderConfig, RecurrentDecoderConfig
from dragoman.models.encoders.images import ResidualBlock, ResNetConfig
from dragoman.models.layers.augmentation import ImageAugmentConfig
from dragoman.models.layers.cells import GRUConfig
from dragoman.models.layers.rnn_attention import AdditiveConfig, GeneralConfig, build_rnn_attention
from dragoman.models.registry import FEATURE_ENCODERS
from dragoman.models.traits import decodes
from tests.models.torchvision_stand_in import stand_in

CLOSE = {"rtol": 0.0, "atol": 1e-10}
VOCABULARY, SIZE = 9, 8
ENCODERS = {entry.example.kind: entry.example for entry in FEATURE_ENCODERS.values()}
DECODERS = {
    "show-attend-tell": RecurrentDecoderConfig(
        embedding=6, width=9, attention=AdditiveConfig(width=7, gate=True), dropout=0.0
    ),
    "luong": LuongDecoderConfig(embedding=6, width=7, dropout=0.0, attention=GeneralConfig(gate=True)),
    "transformer": TransformerConfig(layers=2, width=8, heads=2, feedforward=12, dropout=0.0),
}
TARGETS = [[4, 5, 6], [7, 8], [4, 4, 5, 6, 7]]


@pytest.fixture(autouse=True)
def with_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(4)
    yield
    torch.set_default_dtype(torch.float32)


def build(encoder: str = "resnet", decoder: str = "show-attend-tell", weight: float = 0.0) -> Captioner:
    config = CaptionerConfig(encoder=ENCODERS[encoder], decoder=DECODERS[decoder], doubly_stochastic=weight)
    assert list(config.problems()) == []
    model = Captioner(config, 3 * SIZE, VOCABULARY)
    with torch.no_grad():
        for part in model.parameters():
            part.add_(0.2 * torch.randn_like(part))
    return model


def pictures(count: int = 3) -> Tensor:
    return torch.rand(count, SIZE, 3 * SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def batch() -> Batch:
    return Batch(Pictures.without_padding(pictures()), pad_tokens(TARGETS))


@torch.no_grad()
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_decoder_writes_over_every_memory(encoder: str, decoder: str) -> None:
    model = build(encoder, decoder).eval()
    assert decodes(model) == "stepwise"
    whole = batch()
    inputs = torch.cat([torch.full((3, 1), SOS), whole.target[:, :-1]], 1)
    logs, _ = model.read(inputs, model.start(whole))
    state, steps = model.start(whole), []
    for token in inputs.unbind(1):  # one by one, as a search does
        one, state = model.step(token, state)
        steps.append(one)
    torch.testing.assert_close(torch.stack(steps, 1), logs, **CLOSE)
    truth = F.nll_loss(logs.flatten(0, 1), whole.target.flatten(), ignore_index=PAD, reduction="sum")
    torch.testing.assert_close(model(whole).total, truth, **CLOSE)
    assert int(model(whole).count) == 13
    found = search(model, whole, SearchConfig(beam=3, max_length=6), 1.0, 2)
    for row, hypotheses in enumerate(found):
        for one in hypotheses:
            own = Batch(Pictures.without_padding(pictures()[row : row + 1]), pad_tokens([list(one.tokens[:-1])]))
            assert float(model.score(own).log_probabilities.sum()) == pytest.approx(one.score, abs=1e-9)


def test_doubly_stochastic_penalty_is_its_definition() -> None:
    weights = torch.rand(2, 3, 4, 5)
    target_mask = torch.tensor([[True] * 4, [True, True, False, False]])
    memory_mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    total = 0.0
    for row in range(2):
        for head in range(3):
            for place in range(5):
                if memory_mask[row, place]:
                    seen = sum(float(weights[row, head, token, place]) for token in range(4) if target_mask[row, token])
                    total += (1 - seen) ** 2 / 3
    assert float(doubly_stochastic_penalty(weights, target_mask, memory_mask)) == pytest.approx(total)
    even = torch.full((1, 1, 5, 5), 0.2)
    assert float(doubly_stochastic_penalty(even, torch.ones(1, 5).bool(), torch.ones(1, 5).bool())) == pytest.approx(
        0.0
    )


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_doubly_stochastic_term_is_added_and_trained(decoder: str) -> None:
    plain, uneven = build(decoder=decoder), build(decoder=decoder, weight=0.7)
    uneven.load_state_dict(plain.state_dict())
    whole = batch()
    memory = plain.encode(whole.source.data, whole.source.mask)
    _, layers = with_attention(plain.decoder_head, lambda: plain.decoder_head.loss(memory, whole.target, 0.1))
    assert len(layers) == (2 if decoder == "transformer" else 1)
    for weights in layers:
        assert weights.shape == (3, 2 if decoder == "transformer" else 1, 6, 4)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    term = torch.stack([doubly_stochastic_penalty(one, whole.target != PAD, memory.mask) for one in layers]).mean()
    torch.testing.assert_close(uneven(whole).total, plain(whole).total + 0.7 * term, **CLOSE)
    assert uneven.eval()(whole).total.item() == pytest.approx(plain.eval()(whole).total.item())  # training alone
    uneven.train()
    gradients = []
    for model in (plain, uneven):
        model.zero_grad()
        model(whole).total.backward()
        gradients.append({name: part.grad for name, part in model.named_parameters() if part.grad is not None})
    of_query = {"show-attend-tell": "score.query.weight", "luong": "attention.score.key.weight"}
    name = next(name for name in gradients[0] if name.endswith(of_query.get(decoder, "cross.query.weight")))
    assert (gradients[0][name] - gradients[1][name]).abs().max() > 1e-8
    # By differences: the term's own gradient is right.
    parameter = dict(uneven.named_parameters())[name]
    with torch.no_grad():
        step, flat = 1e-5, parameter.view(-1)
        flat[0] += step
        above = float(uneven(whole).total)
        flat[0] -= 2 * step
        below = float(uneven(whole).total)
    assert float(gradients[1][name].view(-1)[0]) == pytest.approx((above - below) / (2 * step), rel=1e-4, abs=1e-6)


def test_training_without_the_penalty_observes_no_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    model, whole = build(), batch()
    monkeypatch.setattr("dragoman.models.captioner.observe_attention", lambda observer: pytest.fail("watched"))
    assert torch.isfinite(model(whole).total)
    assert build(weight=1.0).graph_blockers
    assert build().graph_blockers == []


def test_the_gate_scales_what_is_read() -> None:
    gated = build_rnn_attention(AdditiveConfig(width=7, gate=True), 9, 10)
    query, memory, mask = torch.randn(2, 3, 9), torch.randn(2, 5, 10), torch.ones(2, 5, dtype=torch.bool)
    out = gated(query, gated.read(memory, memory), mask, 0)
    gate = gated.gate  # type: ignore[attr-defined]
    beta = torch.sigmoid(query @ gate.weight[0] + gate.bias)
    gated.gate = None  # type: ignore[attr-defined]
    torch.testing.assert_close(out, beta[:, :, None] * gated(query, gated.read(memory, memory), mask, 0))
    assert build_rnn_attention(AdditiveConfig(width=7), 9, 10).gate is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(("inputs", "stride"), [(8, 2), (16, 2), (16, 1)])
def test_a_shortcut_is_a_convolution_of_one_pixel_with_a_stride(inputs: int, stride: int) -> None:
    """Without a stride in the convolution: oneDNN corrupted memory there, with 8 channels last and two threads."""
    block = ResidualBlock(inputs, 8, stride)
    x = torch.randn(3, 5, 6, inputs).permute(0, 3, 1, 2)
    assert isinstance(block.shortcut, torch.nn.Conv2d)
    assert block.shortcut.stride == (1, 1)
    expected = F.relu(F.conv2d(x, block.shortcut.weight, stride=stride))  # a new block adds nothing to its shortcut
    torch.testing.assert_close(block(x), expected)


def test_wrong_settings_are_reported() -> None:
    fixed = CaptionerConfig(decoder=FixedContextDecoderConfig(), doubly_stochastic=1.0)
    assert any("has no attention" in text for text in fixed.problems())
    assert any(
        "decoder.begin" in text for text in CaptionerConfig(decoder=RecurrentDecoderConfig(begin="copy")).problems()
    )
    assert any("tie" in text for text in CaptionerConfig(decoder=RecurrentDecoderConfig(embedding=0)).problems())


def test_it_learns_to_attend_to_the_bright_corner(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    corners = {(0, 0): [4, 6], (0, 1): [4, 7], (1, 0): [5, 6], (1, 1): [5, 7]}

    def examples(count: int) -> Batch:
        source, targets = torch.rand(count, SIZE, SIZE, 3) * 0.2, []
        for row in range(count):
            down, across = int(torch.randint(2, ())), int(torch.randint(2, ()))
            source[row, 4 * down : 4 * down + 4, 4 * across : 4 * across + 4] += 0.7
            targets.append(corners[down, across])
        return Batch(Pictures.without_padding(source.view(count, SIZE, -1)), pad_tokens(targets))

    config = CaptionerConfig(
        label_smoothing=0.0, doubly_stochastic=0.1,
        augment=ImageAugmentConfig(shift=1, mirror=False),
        encoder=ResNetConfig(channels=(8, 16), blocks=1, width=24, dropout=0.0),
        decoder=RecurrentDecoderConfig(
            cell=GRUConfig(), embedding=12, width=24, attention=AdditiveConfig(width=16, gate=True), dropout=0.0
        ),
    )  # fmt: skip
    model = Captioner(config, 3 * SIZE, VOCABULARY)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(120):
        loss = model(examples(16))
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
    model.eval()
    test = examples(40)
    found = search(model, test, SearchConfig(beam=2, max_length=4), 1.0)
    right = sum(one[0].tokens == tuple(row.tolist()) for one, row in zip(found, test.target, strict=True))
    assert right >= 38
    weights = mean_over_heads(cross_attention_weights(model, test), 0)
    assert weights.shape == (3, 2, 2)
    torch.testing.assert_close(weights.sum((1, 2)), torch.ones(3))
    path = draw_attention_over_image(
        test.source.data[0].view(SIZE, SIZE, 3).clamp(0, 1).numpy(),
        ["top", "left", "."],
        weights,
        tmp_path / "look.png",
    )
    assert path.stat().st_size > 5000


def test_weights_over_a_grid_are_in_row_major_order() -> None:
    weights = torch.arange(8.0).view(2, 4)
    assert mean_over_heads({"layer": weights[None, None]}, 0)[1].tolist() == [[4.0, 5.0], [6.0, 7.0]]


def test_the_drawing_shows_where_each_word_looks(tmp_path: Path) -> None:
    """Read back from the file: the panel of a word is brightest where its weight is."""
    image = pytest.importorskip("matplotlib.image")
    weights = torch.zeros(2, 4, 4)
    weights[0, 0, 0] = weights[1, 3, 3] = 1.0
    path = draw_attention_over_image(torch.full((40, 40, 3), 0.5), ["one", "two"], weights, tmp_path / "a.png")
    drawn = image.imread(path)[:, :, :3].sum(-1)
    drawn = drawn[: drawn.shape[0] * 2 // 3]  # below stands the scale of colours
    height, width = drawn.shape
    thirds = [drawn[:, number * width // 3 : (number + 1) * width // 3] for number in range(3)]
    for panel, (down, across) in zip(thirds[1:], ((0, 0), (1, 1)), strict=True):
        inner = panel[height // 4 : -height // 12, panel.shape[1] // 8 : -panel.shape[1] // 8]
        middle, centre = inner.shape[0] // 2, inner.shape[1] // 2
        parts = {
            (row, column): inner[row * middle : (row + 1) * middle, column * centre : (column + 1) * centre]
            for row in (0, 1)
            for column in (0, 1)
        }
        coloured = {place: float(part[part < 2.9].mean()) for place, part in parts.items()}
        assert max(coloured, key=lambda place: coloured[place]) == (down, across)
