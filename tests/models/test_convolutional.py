"""Convolutional and dense encoders and decoders against plain references written from the papers, in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from dragoman.base import config as settings
from dragoman.base.errors import ConfigError, DataError
from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import EOS, PAD, SOS
from dragoman.inference.align.attention import record_attention
from dragoman.inspect.views.layer_table import parameter_count
from dragoman.models.config import EncoderDecoderConfig
from dragoman.models.convs2s import (
    ConvS2SDecoder,
    ConvS2SDecoderConfig,
    ConvS2SDecoderLayer,
    ConvS2SEncoder,
    ConvS2SEncoderConfig,
    ConvS2SEncoderLayer,
    ConvS2SInput,
)
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.convolutional import (
    KalchbrennerConfig,
    KalchbrennerEncoder,
    MultiKernelConfig,
    MultiKernelEncoder,
    MultiKernelLayer,
)
from dragoman.models.encoders.dense import DenseEncoder, DenseEncoderConfig
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.encoders.sequence import SEQUENCE_ENCODERS
from dragoman.models.layers.config import LearnedConfig, NoPositionsConfig, SinusoidalConfig
from dragoman.models.layers.convolution import WeightNormConvolution
from dragoman.models.layers.embeddings import TokenEmbedding

CLOSE = {"rtol": 0.0, "atol": 1e-10}
WORDS = 12
SOURCES = [[5, 6, 7, 8, 9], [10, 4], [11, 6, 7], [4]]
TARGETS = [[4, 5, 6], [7, 8, 9, 10, 4, 5], [6], [5, 5]]


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(5)
    yield
    torch.set_default_dtype(torch.float32)


def shake(module: nn.Module, size: float = 0.2) -> None:
    with torch.no_grad():
        for part in module.parameters():
            part.add_(size * torch.randn_like(part))


def same_gradients(module: nn.Module, ours: Tensor, theirs: Tensor) -> None:
    """Of two scalars by every parameter."""
    parts = dict(module.named_parameters())
    mine = torch.autograd.grad(ours, list(parts.values()), allow_unused=True)
    yours = torch.autograd.grad(theirs, list(parts.values()), allow_unused=True)
    largest = 0.0
    for name, left, right in zip(parts, mine, yours, strict=True):
        zeros = torch.zeros_like(parts[name])
        left, right = (zeros if one is None else one for one in (left, right))
        torch.testing.assert_close(left, right, **CLOSE, msg=lambda message, name=name: f"{name}: {message}")
        largest = max(largest, float(right.abs().max()))
    assert largest > 1e-2, "gradients so small that the tolerance says nothing"


# --- ConvS2S: Gehring et al. 2017, section 3, one position after another ----------------------------------------------

Rows = list[Tensor]  # one vector a position


def matrices(layer: nn.Module) -> list[Tensor]:
    """w = g v / ‖v‖ of every output, as one matrix for each column of the kernel."""
    assert isinstance(layer, WeightNormConvolution)
    rows = [g * v / (v * v).sum() ** 0.5 for g, v in zip(layer.scale, layer.direction, strict=True)]
    return list(torch.stack(rows).unbind(2))


def mapped(layer: nn.Module, x: Rows) -> Rows:
    if isinstance(layer, nn.Identity):
        return x
    (matrix,) = matrices(layer)
    return [matrix @ row + layer.bias for row in x]  # type: ignore[operator]


def gated(layer: WeightNormConvolution, x: Rows, before: int) -> Rows:
    """v([A B]) = A ⊗ σ(B) over windows that begin `before` places to the left, zeros outside."""
    columns = matrices(layer)
    out = []
    for place in range(len(x)):
        total = layer.bias
        for column, matrix in enumerate(columns):
            other = place - before + column
            if 0 <= other < len(x):
                total = total + matrix @ x[other]
        a, b = total.chunk(2)
        out.append(a * torch.sigmoid(b))
    return out


def added(left: Rows, right: Rows) -> Rows:
    return [(one + other) * 0.5**0.5 for one, other in zip(left, right, strict=True)]


def embedded(layer: ConvS2SInput, tokens: Sequence[int]) -> Rows:
    weight = layer.embedding.weight
    positions = layer.positions(weight.new_zeros(1, len(tokens), weight.shape[1]), 0)[0]
    return [weight[token] + position for token, position in zip(tokens, positions, strict=True)]


def plain_encoder(encoder: ConvS2SEncoder, tokens: Sequence[int], attentions: int) -> tuple[Rows, Rows]:
    """z and what is read of it."""
    e = embedded(encoder.input, tokens)
    x = mapped(encoder.project_in, e)
    for layer in encoder.layers:
        assert isinstance(layer, ConvS2SEncoderLayer)
        kernel = layer.convolution.kernel
        x = added(gated(layer.convolution.convolution, x, (kernel - 1) // 2), mapped(layer.shortcut, x))
    z = mapped(encoder.project_out, x)
    share = 1 / (2 * attentions)
    z = [share * row + (1 - share) * row.detach() for row in z]  # only that share of the gradient comes through
    return z, added(z, e)


def plain_decoder(decoder: ConvS2SDecoder, tokens: Sequence[int], keys: Rows, values: Rows) -> Rows:
    keys, values = mapped(decoder.key, keys), mapped(decoder.value, values)
    g = embedded(decoder.input, tokens)
    x = mapped(decoder.project_in, g)
    for layer in decoder.layers:
        assert isinstance(layer, ConvS2SDecoderLayer)
        h = gated(layer.convolution.convolution, x, layer.convolution.kernel - 1)
        contexts = []
        for query in added(mapped(layer.attention.query, h), g):  # eq. 1
            scores = torch.stack([query @ key for key in keys])
            weights = scores.exp() / scores.exp().sum()
            read = sum((weight * value for weight, value in zip(weights, values, strict=True)), torch.zeros(()))
            contexts.append(read * len(keys) * (1 / len(keys)) ** 0.5)  # eq. 2, then m √(1/m) of section 3.5
        x = added(added(mapped(layer.attention.output, contexts), h), mapped(layer.shortcut, x))
    return mapped(decoder.project_out, x)


def whole(source: int, target: int, attentions: int | None = None) -> EncoderDecoder:
    """Sizes that change from layer to layer, embeddings of `source` and `target`."""
    config = EncoderDecoderConfig(
        tie="none",
        encoder=ConvS2SEncoderConfig(
            layers=3, embedding=source, widths=(4, 4, 6), kernels=(3, 4, 1), dropout=0.0, attentions=attentions,
            positions=LearnedConfig(max_positions=10),
        ),
        decoder=ConvS2SDecoderConfig(
            layers=2, embedding=target, widths=(5, 4), kernels=(3, 2), dropout=0.0, output=6,
            positions=SinusoidalConfig(),
        ),
    )  # fmt: skip
    model = EncoderDecoder(config, WORDS, WORDS).eval()
    shake(model)
    return model


@pytest.mark.parametrize(("source", "target", "attentions"), [(5, 5, 2), (5, 7, None)], ids=["as it is", "projected"])
def test_convs2s_is_its_equations(source: int, target: int, attentions: int | None) -> None:
    model = whole(source, target, attentions)
    assert isinstance(model.encoder, ConvS2SEncoder)
    assert isinstance(model.decoder, ConvS2SDecoder)
    assert isinstance(model.decoder.key, nn.Identity) == (source == target)
    batch = batch_of(SOURCES, TARGETS)
    logits = model.logits(batch)
    ours, theirs = torch.zeros(()), torch.zeros(())
    for row, (tokens, outputs) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        keys, values = plain_encoder(model.encoder, [*tokens, EOS], attentions or 3)
        hidden = plain_decoder(model.decoder, [SOS, *outputs], keys, values)
        expected = torch.stack([model.output.weight @ one for one in hidden])
        torch.testing.assert_close(logits[row, : len(hidden)], expected, **CLOSE)
        weight = torch.randn_like(expected)
        ours = ours + (logits[row, : len(hidden)] * weight).sum()
        theirs = theirs + (expected * weight).sum()
    same_gradients(model, ours, theirs)


def test_gradients_of_the_stack_are_scaled_and_those_of_embeddings_are_not() -> None:
    found = []
    for attentions in (1, 8):
        torch.manual_seed(5)
        model = whole(5, 5, attentions)
        model(batch_of(SOURCES, TARGETS)).total.backward()
        encoder = model.encoder
        assert isinstance(encoder, ConvS2SEncoder)
        found.append([part.grad for part in (*encoder.layers.parameters(), encoder.input.embedding.weight)])
    (*once, embedding), (*eighth, other) = found
    for left, right in zip(once, eighth, strict=True):
        assert left is not None
        assert right is not None
        torch.testing.assert_close(left, 8 * right, **CLOSE)
    assert embedding is not None
    assert other is not None
    assert float((embedding - 8 * other).abs().max()) > 1e-3


def test_every_layer_attends_and_can_be_watched() -> None:
    model = whole(5, 5)
    batch = batch_of(SOURCES, TARGETS)
    plain = model.logits(batch)
    with record_attention(model) as seen:
        torch.testing.assert_close(model.logits(batch), plain, **CLOSE)
    assert list(seen) == ["decoder.layers.0.attention", "decoder.layers.1.attention"]
    for (weights,) in seen.values():
        assert weights.shape == (4, 1, 7, 6)
        torch.testing.assert_close(weights.sum(-1), torch.ones(4, 1, 7), **CLOSE)
        assert not weights[3, :, :, 2:].any()  # padding of the shortest source


def test_the_cache_is_what_the_kernels_look_back_at() -> None:
    model = whole(5, 5)
    state = model.start(batch_of(SOURCES), capacity=50)
    for _ in range(9):
        _, state = model.step(torch.full((4,), 6), state)
    assert [tuple(part.shape) for part in state.cache] == [(4, 2, 5), (4, 1, 5)]
    assert int(state.length) == 9


def test_convs2s_has_the_parameters_of_the_papers_english_german_model() -> None:
    """Section 4.2: 15 layers a side, 512 units in nine, 1024 in four (kernel 3), 2048 in two (kernel 1).

    Embeddings of 768 and 512 before the output layer are the sizes that its authors released.
    """
    widths = (512,) * 9 + (1024,) * 4 + (2048,) * 2
    kernels = (3,) * 13 + (1,) * 2
    vocabulary, size, output = 40_000, 768, 512
    config = EncoderDecoderConfig(
        tie="none",
        encoder=ConvS2SEncoderConfig(layers=15, embedding=size, widths=widths, kernels=kernels),
        decoder=ConvS2SDecoderConfig(layers=15, embedding=size, widths=widths, kernels=kernels, output=output),
    )
    with torch.device("meta"):
        found = parameter_count(EncoderDecoder(config, vocabulary, vocabulary))

    def layer(inputs: int, outputs: int, kernel: int = 1) -> int:
        return outputs * inputs * kernel + 2 * outputs  # v, g and b

    stack = layer(size, 512) + sum(
        layer(inputs, 2 * outputs, kernel) + (0 if inputs == outputs else layer(inputs, outputs))
        for inputs, outputs, kernel in zip((512, *widths), widths, kernels, strict=False)
    )
    encoder = (vocabulary + 1024) * size + stack + layer(2048, size)
    attention = sum(layer(width, size) + layer(size, width) for width in widths)
    decoder = (vocabulary + 1024) * size + stack + attention + layer(2048, output)
    assert found == encoder + decoder + vocabulary * output


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"layers": 3, "widths": [4, 4]}, "widths: found 2 numbers, expected one for each of layers = 3"),
        ({"layers": 1, "kernels": [3, 3]}, "kernels: found 2 numbers"),
        ({"kernel": 0}, "kernel: found 0, expected at least 1"),
    ],
)
def test_sizes_that_do_not_fit_are_named(table: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        settings.build(ConvS2SDecoderConfig, table)


def test_tying_needs_an_output_of_the_embeddings_size() -> None:
    decoder = {"kind": "convs2s", "embedding": 8, "output": 6}
    with pytest.raises(ConfigError, match=r"tie: 'target' needs equal sizes, found 8 .* and 6"):
        settings.build(EncoderDecoderConfig, {"decoder": decoder})
    settings.build(EncoderDecoderConfig, {"decoder": decoder, "tie": "none"})


# --- the sentence model: Kalchbrenner and Blunsom 2013, one sentence after another ------------------------------------


def table(width: int) -> TokenEmbedding:
    return TokenEmbedding(40, width, PAD)


def cut(side_by_side: Tensor, size: int) -> Tensor:
    """The kernel of a size, out of those of 2, 3, 4, … columns that stand side by side."""
    before = sum(range(2, size))
    return side_by_side[:, before : before + size]


def plain_sentence(encoder: KalchbrennerEncoder, tokens: Sequence[int]) -> tuple[Tensor, list[int]]:
    """The vector of one sentence and the sizes of the kernels that made it."""
    columns = [encoder.embedding.weight[token] for token in tokens]
    sizes, size = [], 2
    while len(columns) > 1:
        kernels = encoder.sentence.kernels
        if size > len(columns):
            size, kernels = len(columns), encoder.sentence.closing
        kernel = cut(kernels, size)
        columns = [
            torch.tanh(sum((kernel[:, j] * columns[place + j] for j in range(size)), torch.zeros(())))
            for place in range(len(columns) - size + 1)
        ]
        sizes.append(size)
        size += 1
    return columns[0], sizes


def test_the_kernels_of_a_sentence_are_those_of_the_paper() -> None:
    encoder = KalchbrennerEncoder(KalchbrennerConfig(width=2, max_positions=16), table(2))
    expected = {1: [], 2: [2], 3: [2, 2], 4: [2, 3], 6: [2, 3, 3], 7: [2, 3, 4], 9: [2, 3, 4, 3], 16: [2, 3, 4, 5, 6]}
    for length, sizes in expected.items():
        assert plain_sentence(encoder, [5] * length)[1] == sizes
    assert encoder.sentence.sizes == [2, 3, 4, 5, 6]


def test_sentence_convolution_is_a_loop_over_sentences() -> None:
    encoder = KalchbrennerEncoder(KalchbrennerConfig(width=4, max_positions=16, dropout=0.0), table(4)).eval()
    shake(encoder)
    rows = [[4 + (3 * length + place) % 30 for place in range(length)] for length in range(15)]
    batch = batch_of(rows)  # every length from 1 to 15 with <eos>
    memory = encoder(batch.source.data, batch.source.mask)
    ours, theirs = torch.zeros(()), torch.zeros(())
    for place, row in enumerate(rows):
        tokens = [*row, EOS]
        final, _ = plain_sentence(encoder, tokens)
        torch.testing.assert_close(memory.final[0][place], final, **CLOSE)
        vectors = encoder.embedding.weight[tokens]
        near = encoder.local(nn.functional.pad(vectors.T, (1, 1)))  # a kernel of 3
        expected = vectors + torch.tanh(near).T + final
        torch.testing.assert_close(memory.values[place, : len(tokens)], expected, **CLOSE)
        weight = torch.randn_like(expected)
        ours = ours + (memory.keys[place, : len(tokens)] * weight).sum() + memory.final[0][place].sum()
        theirs = theirs + (expected * weight).sum() + final.sum()
    same_gradients(encoder, ours, theirs)


@pytest.mark.parametrize(
    "config",
    [KalchbrennerConfig(width=4, max_positions=6), DenseEncoderConfig(max_positions=6, embedding=4, hidden=4, width=2)],
    ids=lambda config: config.kind,
)
def test_a_source_too_long_is_refused_by_its_length_and_padding_is_not(
    config: KalchbrennerConfig | DenseEncoderConfig,
) -> None:
    encoder = SEQUENCE_ENCODERS.of(config).module(config, table(4)).eval()
    batch = batch_of([[5] * 5, [5]])
    padded = nn.functional.pad(batch.source.data, (0, 4))
    encoder(padded, padded != PAD)
    long = batch_of([[5] * 6, [5]])
    with pytest.raises(DataError, match=r"a source of 7 tokens .* reads at most 6"):
        encoder(long.source.data, long.source.mask)


# --- several kernels side by side -------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", [NoPositionsConfig(), LearnedConfig(max_positions=9)])
def test_multi_kernel_is_torchs_convolutions_side_by_side(positions: LearnedConfig | NoPositionsConfig) -> None:
    kernels = (3, 5, 11)
    config = MultiKernelConfig(kernels=kernels, layers=2, embedding=4, width=6, dropout=0.0, positions=positions)
    encoder = MultiKernelEncoder(config, table(4)).eval()
    shake(encoder)
    batch = batch_of(SOURCES)
    memory = encoder(batch.source.data, batch.source.mask)
    ours, theirs = torch.zeros(()), torch.zeros(())
    for row, source in enumerate(SOURCES):
        x = encoder.embedding(torch.tensor([[*source, EOS]]))
        x = x * 2
        if isinstance(positions, LearnedConfig):
            x = x + encoder.positions.table[: x.shape[1]]
        x = x.transpose(1, 2)
        for layer in encoder.layers:
            assert isinstance(layer, MultiKernelLayer)
            parts = []
            for kernel, one in zip(kernels, layer.convolutions, strict=True):
                assert isinstance(one, nn.Conv1d)
                parts.append(nn.functional.conv1d(x, one.weight, one.bias, padding=kernel // 2))
            out = torch.cat(parts, 1).clamp(min=0)
            x = out + x if x.shape[1] == 6 else out
        expected = x[0].T
        torch.testing.assert_close(memory.keys[row, : len(expected)], expected, **CLOSE)
        torch.testing.assert_close(memory.final[0][row], expected.mean(0), **CLOSE)
        weight = torch.randn_like(expected)
        ours = ours + (memory.keys[row, : len(expected)] * weight).sum() + memory.final[0][row].sum()
        theirs = theirs + (expected * weight).sum() + expected.mean(0).sum()
    same_gradients(encoder, ours, theirs)


def test_with_non_local_a_position_sees_beyond_every_kernel() -> None:
    def far(non_local: bool) -> float:
        torch.manual_seed(1)
        config = MultiKernelConfig(kernels=(1, 3), layers=1, embedding=4, width=4, dropout=0.0, non_local=non_local)
        encoder = MultiKernelEncoder(config, table(4)).eval()
        shake(encoder)
        one, other = batch_of([[5, 6, 7, 8, 9]]), batch_of([[5, 6, 7, 8, 4]])
        difference = encoder(one.source.data, one.source.mask).keys - encoder(other.source.data, other.source.mask).keys
        return float(difference[0, 0].detach().abs().max())

    assert far(False) == 0.0
    assert far(True) > 1e-6


def test_the_width_is_shared_evenly() -> None:
    with pytest.raises(ConfigError, match="width: found 8, expected a multiple of 3"):
        settings.build(MultiKernelConfig, {"width": 8})
    built = settings.build(MultiKernelConfig, {"positions": "learned", "width": 9})
    assert built.positions == LearnedConfig()


# --- the dense window -------------------------------------------------------------------------------------------------


def test_dense_is_a_network_over_the_window_laid_flat() -> None:
    config = DenseEncoderConfig(
        max_positions=7, layers=2, embedding=3, hidden=5, width=4, activation="relu", dropout=0.0
    )
    encoder = DenseEncoder(config, table(3)).eval()
    shake(encoder)
    batch = batch_of(SOURCES)
    memory = encoder(batch.source.data, batch.source.mask)
    assert memory.mask.shape == (4, 7)
    assert memory.mask.all()
    ours, theirs = torch.zeros(()), torch.zeros(())
    for row, source in enumerate(SOURCES):
        vectors = [encoder.embedding.weight[token] for token in [*source, EOS]]
        x = torch.cat([*vectors, torch.zeros(3 * (7 - len(vectors)))])
        for layer in encoder.layers:
            assert isinstance(layer, nn.Linear)
            x = (layer.weight @ x + layer.bias).clamp(min=0)
        expected = (encoder.entries.weight @ x + encoder.entries.bias).view(7, 4)
        torch.testing.assert_close(memory.keys[row], expected, **CLOSE)
        torch.testing.assert_close(memory.final[0][row], expected.mean(0), **CLOSE)
        weight = torch.randn_like(expected)
        ours, theirs = ours + (memory.values[row] * weight).sum(), theirs + (expected * weight).sum()
    same_gradients(encoder, ours, theirs)


def test_a_convolutional_decoder_reads_any_encoder_by_projecting_once() -> None:
    config = EncoderDecoderConfig(
        encoder=RecurrentEncoderConfig(layers=1, embedding=4, width=6, dropout=0.0),
        decoder=ConvS2SDecoderConfig(layers=2, embedding=5, width=4, dropout=0.0),
    )
    model = EncoderDecoder(config, WORDS, WORDS).eval()
    shake(model)
    decoder = model.decoder
    assert isinstance(decoder, ConvS2SDecoder)
    batch = batch_of(SOURCES, TARGETS)
    memory = model.encode(batch.source.data, batch.source.mask)
    logits = model.logits(batch)
    for row, outputs in enumerate(TARGETS):
        keys = list(memory.keys[row][memory.mask[row]])
        hidden = plain_decoder(decoder, [SOS, *outputs], keys, keys)
        expected = torch.stack([model.output.weight @ one for one in hidden])
        torch.testing.assert_close(logits[row, : len(hidden)], expected, **CLOSE)
