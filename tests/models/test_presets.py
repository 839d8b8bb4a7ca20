"""The parameter count of every preset: as stated, by formulas from the papers, as published, and by other toolkits."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import MarianConfig, MarianModel

from dragoman.auto.configure import configure
from dragoman.classical.transducers import TRANSDUCERS, build_transducer
from dragoman.data.tokenizers.characters import BytesConfig, ByteTokenizer
from dragoman.inspect.views.layer_table import parameter_count
from dragoman.models.classifier import Regressor
from dragoman.models.config import EncoderDecoderConfig, TransformerConfig
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.non_autoregressive import NonAutoregressiveConfig
from dragoman.runs.tasks import config, task_of
from dragoman.training.config import LastAverageConfig
from dragoman.training.optimizer import learning_rate_at
from tests.conftest import call

NAMES = config.preset_names()
PAPERS = [
    "sutskever-2014", "cho-2014", "bahdanau-2015", "luong-2015", "gnmt-2016", "kalchbrenner-2013", "convs2s-2017",
    "wu-2019", "makarov-2020", "pointer-generator",
]  # fmt: skip


# Worked by hand in textbooks: the sizes of the layers, and of all. Keras counts the same (one bias for each gate).
TEXTBOOKS = {
    "series-rnn": ([8, 3], 11),
    "series-attention": ([8, 22, 3], 33),
    "series-lstm": ([40_800, 80_400, 202], 121_402),
    "character-lstm": ([338_944, 343_040, 20_046], 702_030),
    "sentiment-lstm": ([2_560_000, 131_584, 129], 2_560_000 + 131_584 + 129),
}


def model_of(name: str) -> EncoderDecoderConfig | NonAutoregressiveConfig:
    return config.build({"preset": name, "data": {"train": "pairs.tsv"}}).model


def built(name: str) -> nn.Module:
    whole = config.build({"preset": name, "data": {"train": "pairs.tsv"}})
    if whole.model.kind in TRANSDUCERS:
        letters = ByteTokenizer(BytesConfig())
        return build_transducer(whole.model, letters, letters, shared=True)
    with torch.device("meta"):  # shapes without numbers
        model: nn.Module = task_of(whole).untrained(whole, *config.preset_notes(name)["vocabulary"])
        return model


@pytest.mark.parametrize("name", TEXTBOOKS)
def test_a_textbook_model_has_the_parameters_of_the_textbook(name: str) -> None:
    layers, whole = TEXTBOOKS[name]
    shown = call("presets", name, "--layers").lines
    counts = [int(line.split()[-1].replace(",", "")) for line in shown]
    assert (counts[:-1], counts[-1]) == (layers, whole)
    assert sum(counts[:-1]) == counts[-1]
    listed = next(line for line in call("presets").lines if line.startswith(name))
    assert listed.split()[1] == f"{whole:,}"


def test_softmax_of_two_labels_has_a_unit_more_than_a_sigmoid() -> None:
    def output(*overrides: str) -> int:
        whole = config.build({"preset": "sentiment-lstm", "data": {"train": "x.tsv"}}, overrides)
        return parameter_count(task_of(whole).untrained(whole, 20, 2).output)

    assert (output(), output("model.head=softmax")) == (129, 258)


def test_layers_of_what_has_none_are_one_line() -> None:
    assert "found no preset" in call("presets", "--layers").err
    assert call("presets", "copy", "--layers").out == "copy is counted from data; it has no layers\n"


def test_a_textbook_model_trains_as_it_is(tmp_path: Path) -> None:
    """The settings of the preset are those of the run, whatever the planner would choose for the data."""
    values = [f"{math.sin(step / 3):.3f}" for step in range(60)]
    rows = [" ".join(values[at : at + 20]) + f"\t{values[at + 20]}\n" for at in range(40)]
    (tmp_path / "series.tsv").write_text("".join(rows))
    run = tmp_path / "run"
    told = call("train", tmp_path / "series.tsv", "preset=series-attention", "train.steps=4", "--run", run)
    assert told.code == 0, told.err
    assert "preset: series-attention, as asked" in told.err
    assert "regress, 33 parameters" in call("info", run).out
    (tmp_path / "pairs.tsv").write_text("".join(f"some words {at}\tother words {at}\n" for at in range(50)))
    asked = configure(str(tmp_path / "pairs.tsv"), ["preset=character-lstm"])[0]
    assert (asked.tokenizer.source.kind, asked.model.tie) == ("characters", "none")


def test_every_paper_has_its_presets() -> None:
    assert {*PAPERS, *(f"{name}-small" for name in PAPERS), "transformer-base", "transformer-big"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_states_its_size(name: str) -> None:
    notes = config.preset_notes(name)
    assert parameter_count(built(name)) == notes["parameters"]
    assert notes["authors"][-4:].isdigit()
    assert len(notes["paper"]) > 20


def test_the_transformer_of_2017_trains_and_searches_as_its_paper_says() -> None:
    whole = config.build({"preset": "transformer-2017", "data": {"train": "pairs.tsv"}})
    for stack in (whole.model.encoder, whole.model.decoder):
        assert (stack.layers, stack.width, stack.heads, stack.feedforward, stack.norm) == (6, 512, 8, 2048, "post")
    optimizer = whole.train.optimizer
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (0.9, 0.98, 1e-9)
    for step in (1, 100, 4000, 4001, 90_000):  # equation 3
        expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert learning_rate_at(optimizer, step, whole.train.steps) == pytest.approx(expected)
    assert whole.train.average == LastAverageConfig(5)
    assert (whole.search.beam, whole.search.normalisation, whole.search.length_penalty) == (4, "gnmt", 0.6)
    block = torch.nn.Transformer(
        512, 8, 6, 6, 2048, batch_first=True
    )  # has a norm after each stack that the paper lacks
    blocks = sum(weight.numel() for weight in block.parameters()) - 2 * 2 * 512
    assert parameter_count(built("transformer-2017")) == blocks + 37_000 * 512


# Formulas from the papers' descriptions, with one bias for each gate


def linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def lstm(inputs: int, width: int) -> int:
    return 4 * (inputs * width + width * width + width)


def gru(inputs: int, width: int) -> int:
    return 3 * (inputs * width + width * width + width)


def convolution(inputs: int, outputs: int, kernel: int = 1) -> int:
    """Weight-normalised: a direction, a length and a bias for each output."""
    return inputs * outputs * kernel + 2 * outputs


def gated_stack(sizes: list[tuple[int, int]], embedding: int, attends: bool) -> int:
    """Gehring et al. 2017: v of d×2d×k, a projection where the width changes, W of the attention in and out."""
    total, below = convolution(embedding, sizes[0][0]), sizes[0][0]
    for width, kernel in sizes:
        total += convolution(below, 2 * width, kernel)
        total += convolution(below, width) if below != width else 0
        total += convolution(width, embedding) + convolution(embedding, width) if attends else 0
        below = width
    return total


def sutskever(source: int, target: int, layers: int, embedding: int, width: int) -> int:
    """Two stacks of LSTMs, two tables, one softmax."""
    stack = lstm(embedding, width) + (layers - 1) * lstm(width, width)
    return 2 * stack + source * embedding + target * embedding + target * width


def cho(source: int, target: int, embedding: int, width: int, maxout: int) -> int:
    """Appendix A: c = h_N enters every gate and the output; h'_0 = tanh(V c); 2 × maxout units; softmax."""
    decoder = gru(embedding + width, width) + linear(width, width)
    deep = linear(width + width + embedding, 2 * maxout)
    return gru(embedding, width) + decoder + deep + (source + target) * embedding + target * maxout


def bahdanau(source: int, target: int, embedding: int, width: int, inner: int, maxout: int) -> int:
    """Appendix A: both directions of n, W_a n×n, U_a n×2n, v_a, W_s, and the deep output of l maxout units."""
    encoder = 2 * gru(embedding, width)
    attention = width * inner + linear(2 * width, inner) + inner
    decoder = gru(embedding + 2 * width, width) + linear(2 * width, width)
    deep = linear(width + 2 * width + embedding, 2 * maxout)
    return encoder + attention + decoder + deep + (source + target) * embedding + target * maxout


def luong(source: int, target: int, layers: int, width: int) -> int:
    """Section 4: W_a, W_p and v_p of the predicted window, W_c; the attentional vector is fed to the first layer."""
    encoder = layers * lstm(width, width)
    decoder = lstm(2 * width, width) + (layers - 1) * lstm(width, width)
    attention = width * width + width * width + width + 2 * width * width
    return encoder + decoder + attention + (source + 2 * target) * width


def gnmt(source: int, target: int, layers: int, width: int) -> int:
    """Section 3: one layer both ways, then forward ones; the context enters every decoder layer."""
    encoder = 2 * lstm(width, width) + lstm(2 * width, width) + (layers - 2) * lstm(width, width)
    decoder = layers * lstm(2 * width, width)
    attention = width * width + linear(width, width) + width
    return encoder + decoder + attention + (source + 2 * target) * width


def convs2s(source: int, target: int) -> int:
    """Section 4.2: 512 × 9 and 1024 × 4 of kernel 3, 2048 × 2 of kernel 1; embeddings of 768, then 512."""
    sizes = [(512, 3)] * 9 + [(1024, 3)] * 4 + [(2048, 1)] * 2
    positions = 2 * 1024 * 768
    encoder = gated_stack(sizes, 768, attends=False) + convolution(2048, 768)
    decoder = gated_stack(sizes, 768, attends=True) + convolution(2048, 512)
    return encoder + decoder + positions + (source + target) * 768 + linear(512, target)


def kalchbrenner(source: int, target: int, width: int) -> int:
    """RCTM I: feature-wise kernels of 2, 3, … columns and as many closing ones; I, S, R of the recurrence; softmax.

    2 + 3 + … + 16 columns fold the 128 tokens that it may read. The convolution of three columns that gives memory
    entries to decoders with attention is our own, and unread here.
    """
    folding = 2 * sum(range(2, 17)) * width
    recurrence = 3 * width * width + width
    return folding + linear(3 * width, width) + recurrence + (source + 2 * target) * width


def wu(source: int, target: int, embedding: int, width: int, readout: int, jump: int) -> int:
    """Section 4: two layers both ways, one of the decoder, tanh(W [h; s]) and a softmax; a softmax over moves."""
    encoder = 2 * lstm(embedding, width) + 2 * lstm(2 * width, width)
    deep = linear(3 * width, readout) + linear(readout, target) + linear(3 * width, jump + 1)
    return encoder + lstm(embedding, width) + deep + (source + target) * embedding


def makarov(source: int, target: int, embedding: int, width: int) -> int:
    """One layer both ways and one of the decoder; a softmax over 2 V + 2 actions. The first state is our own."""
    first, deep = linear(2 * width, 2 * width), linear(3 * width, width) + linear(width, 2 * target + 2)
    return 3 * lstm(embedding, width) + first + deep + (source + target) * embedding


FORMULAS = {
    "kalchbrenner-2013": kalchbrenner(21_000, 21_000, 256),
    "sutskever-2014": sutskever(160_000, 80_000, 4, 1000, 1000),
    "cho-2014": cho(15_000, 15_000, 100, 1000, 500),
    "bahdanau-2015": bahdanau(30_000, 30_000, 620, 1000, 1000, 500),
    "luong-2015": luong(50_000, 50_000, 4, 1000),
    "gnmt-2016": gnmt(32_000, 32_000, 8, 1024),
    "convs2s-2017": convs2s(40_000, 40_000),
    "wu-2019": wu(60, 60, 200, 400, 1200, 4),
    "makarov-2020": makarov(60, 60, 100, 200),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_size_follows_the_paper(name: str) -> None:
    assert config.preset_notes(name)["parameters"] == FORMULAS[name]


@pytest.mark.parametrize(
    ("name", "published", "near"),
    [
        ("sutskever-2014", 384e6, 0.001),  # section 3.4
        ("gnmt-2016", 278e6, 0.02),  # as counted by Shazeer et al. 2017, table 2
        ("pointer-generator", 21_500_753, 0.03),  # section 5; the pointer has an attention of its own
        ("transformer-base", 65e6, 0.03),  # table 3
        ("transformer-big", 213e6, 0.03),
    ],
)
def test_size_is_the_published_one(name: str, published: float, near: float) -> None:
    assert config.preset_notes(name)["parameters"] == pytest.approx(published, rel=near)


def test_convs2s_has_the_published_size_with_the_published_vocabulary() -> None:
    """216 M with the 42,243 and 43,676 entries of the released English-German model."""
    assert convs2s(42_243, 43_676) == pytest.approx(216e6, rel=0.002)


# Other people's code


TRANSFORMERS = [
    name
    for name in NAMES
    if isinstance(getattr(model_of(name), "decoder", None), TransformerConfig)
    and isinstance(model_of(name), EncoderDecoderConfig)
]


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformer_has_the_size_of_marian(name: str) -> None:
    model = model_of(name)
    encoder, decoder = model.encoder, model.decoder
    assert isinstance(encoder, TransformerConfig)
    assert isinstance(decoder, TransformerConfig)
    assert encoder.positions.kind == decoder.positions.kind == "sinusoidal"
    source, target = config.preset_notes(name)["vocabulary"]
    with torch.device("meta"):
        marian = MarianModel(
            MarianConfig(
                vocab_size=target,
                d_model=encoder.width,
                encoder_layers=encoder.layers,
                decoder_layers=decoder.layers,
                encoder_attention_heads=encoder.heads,
                decoder_attention_heads=decoder.heads,
                encoder_ffn_dim=encoder.feedforward,
                decoder_ffn_dim=decoder.feedforward,
                max_position_embeddings=8,
                pad_token_id=0,
            )
        )
    expected = sum(part.numel() for part in marian.parameters() if part.requires_grad)  # its positions are frozen
    expected += sum(2 * stack.width for stack in (encoder, decoder) if stack.norm == "pre")  # Marian is post-norm
    expected += source * encoder.width if model.tie == "target" else 0  # Marian shares one table
    assert parameter_count(built(name)) == expected


RECURRENT = [name for name in NAMES if isinstance(getattr(model_of(name), "encoder", None), RecurrentEncoderConfig)]


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_encoder_has_the_size_of_torchs(name: str) -> None:
    """Torch's layers of the same sizes, less the second bias of every gate."""
    stack = model_of(name).encoder
    assert isinstance(stack, RecurrentEncoderConfig)
    kind = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[stack.cell.kind]
    numbers, vocabulary = type(built(name)) is Regressor, config.preset_notes(name)["vocabulary"][0]
    expected = 0 if numbers else vocabulary * stack.embedding
    for number, (inputs, width) in enumerate(
        zip((stack.embedding or vocabulary, *stack.sizes), stack.sizes, strict=False)
    ):
        both = stack.direction == "both" or (stack.direction == "first-both" and number == 0)
        with torch.device("meta"):
            theirs = kind(inputs, width // 2 if both else width, bidirectional=both)
        expected += sum(part.numel() for key, part in theirs.named_parameters() if not key.startswith("bias_hh"))
    encoder = built(name).encoder
    assert isinstance(encoder, nn.Module)
    assert parameter_count(encoder) == expected


@pytest.mark.parametrize("name", [name for name in NAMES if 0 < config.preset_notes(name)["parameters"] < 7e6])
def test_built_for_real_it_counts_the_same(name: str) -> None:
    whole = config.build({"preset": name, "data": {"train": "pairs.tsv"}})
    real = task_of(whole).untrained(whole, *config.preset_notes(name)["vocabulary"])
    assert {part.device.type for part in real.parameters()} == {"cpu"}
    assert parameter_count(real) == config.preset_notes(name)["parameters"]
