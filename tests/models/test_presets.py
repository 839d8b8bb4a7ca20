"""The size of every preset: exact numbers, formulas from the papers, and Hugging Face's count of the same sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import MarianConfig, MarianModel

from dragoman import config
from dragoman.inspection.summary import parameter_count
from dragoman.layers.memory_attention import AdditiveConfig
from dragoman.models.encoder_decoder import EncoderDecoderConfig
from dragoman.models.instant import CTCConfig, InstantConfig
from dragoman.models.recurrent import RecurrentDecoderConfig
from dragoman.models.recurrent_encoder import RecurrentEncoderConfig
from dragoman.models.transformer import TransformerConfig
from dragoman.tasks import build_model

SHARED = 37_000  # Vaswani et al. 2017, section 5.1: one vocabulary for both sides
SOURCE, TARGET = 9_000, 7_000

# With a vocabulary of SHARED where the preset ties everything, of SOURCE and TARGET where it does not.
SIZES = {
    "nat-ctc-small": 15_988_480,
    "rnn-attention-base": 45_177_344,
    "rnn-attention-small": 3_312_768,
    "transformer-base": 63_084_544,
    "transformer-big": 214_249_472,
    "transformer-small": 16_845_824,
    "transformer-tiny": 3_899_904,
}
NAMES = config.preset_names()


def is_transformer(name: str) -> bool:
    model = preset(name)
    if isinstance(model, InstantConfig):
        return False
    return isinstance(model.encoder, TransformerConfig) and isinstance(model.decoder, TransformerConfig)


def preset(name: str) -> EncoderDecoderConfig | InstantConfig:
    return config.build({"preset": name, "data": {"train": "pairs.tsv"}}).model


def vocabularies(model: EncoderDecoderConfig | InstantConfig) -> tuple[int, int]:
    return (SHARED, SHARED) if model.tie == "all" else (SOURCE, TARGET)


def built(name: str) -> nn.Module:
    whole = config.build({"preset": name, "data": {"train": "pairs.tsv"}})
    with torch.device("meta"):  # shapes without numbers
        return build_model(whole, *vocabularies(whole.model))


def linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def recurrent_cell(kind: str, inputs: int, width: int) -> int:
    """Every gate reads input and state, with one bias."""
    return {"lstm": 4, "gru": 3}[kind] * (inputs * width + width * width + width)


def transformer_encoder(stack: TransformerConfig) -> int:
    d, norm = stack.width, 2 * stack.width
    block = 4 * linear(d, d) + linear(d, stack.feedforward) + linear(stack.feedforward, d) + 2 * norm
    return stack.layers * block + (norm if stack.norm == "pre" else 0)


def transformer_decoder(stack: TransformerConfig, memory: int) -> int:
    crossing = 2 * linear(stack.width, stack.width) + 2 * linear(memory, stack.width) + 2 * stack.width
    return transformer_encoder(stack) + stack.layers * crossing


def recurrent_encoder(stack: RecurrentEncoderConfig) -> int:
    inputs = [stack.embedding] + [stack.width] * (stack.layers - 1)
    return sum(2 * recurrent_cell(stack.cell.kind, size, stack.width // 2) for size in inputs)


def recurrent_decoder(stack: RecurrentDecoderConfig, memory: int) -> int:
    """Bahdanau et al. 2015, appendix A.2: s₀ from the encoder, W_a, U_a, v_a, the cells, and the readout."""
    states = {"lstm": 2, "gru": 1}[stack.cell.kind]
    assert isinstance(stack.attention, AdditiveConfig)
    inner = stack.attention.width
    attention = stack.width * inner + linear(memory, inner) + inner
    inputs = [stack.embedding + memory] + [stack.width] * (stack.layers - 1)
    cells = sum(recurrent_cell(stack.cell.kind, size, stack.width) for size in inputs)
    begin = stack.layers * linear(memory, states * stack.width)
    return attention + cells + begin + linear(stack.width + memory + stack.embedding, stack.embedding)


def instant(model: InstantConfig, source: int, target: int) -> int:
    """Two stacks, one matrix for each of the positions that a source token becomes, and one table or two."""
    encoder, decoder, alignment = model.encoder, model.decoder, model.alignment
    assert isinstance(encoder, TransformerConfig)
    assert isinstance(decoder, TransformerConfig)
    assert isinstance(alignment, CTCConfig)
    tables = source * encoder.width + (target * decoder.width if model.tie == "none" else 0)
    between = alignment.upsample * linear(encoder.width, decoder.width)
    return tables + transformer_encoder(encoder) + between + transformer_encoder(decoder)


def formula(model: EncoderDecoderConfig | InstantConfig, source: int, target: int) -> int:
    if isinstance(model, InstantConfig):
        return instant(model, source, target)
    tables = target * model.decoder.embedding
    if model.tie != "all":
        tables += source * model.encoder.embedding
    if model.tie == "none":
        tables += target * model.decoder.embedding
    encoder, decoder = model.encoder, model.decoder
    reading = transformer_encoder(encoder) if isinstance(encoder, TransformerConfig) else recurrent_encoder(encoder)
    if isinstance(decoder, TransformerConfig):
        return tables + reading + transformer_decoder(decoder, encoder.width)
    return tables + reading + recurrent_decoder(decoder, encoder.width)


def test_every_preset_has_its_number() -> None:
    assert set(SIZES) == {name for name in NAMES if not name.startswith("demo-")}
    assert [name for name in NAMES if name.startswith("demo-")]


@pytest.mark.parametrize("name", SIZES)
def test_size_is_exact(name: str) -> None:
    assert parameter_count(built(name)) == SIZES[name]


@pytest.mark.parametrize("name", NAMES)
def test_size_follows_the_formula(name: str) -> None:
    model = preset(name)
    assert parameter_count(built(name)) == formula(model, *vocabularies(model))


@pytest.mark.parametrize("name", [name for name in NAMES if is_transformer(name)])
def test_transformer_has_the_size_of_marian(name: str) -> None:
    model = preset(name)
    encoder, decoder = model.encoder, model.decoder
    assert isinstance(encoder, TransformerConfig)
    assert isinstance(decoder, TransformerConfig)
    assert encoder.positions.kind == decoder.positions.kind == "sinusoidal"
    source, target = vocabularies(model)
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


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("rnn-")])
def test_recurrent_encoder_has_the_size_of_torchs(name: str) -> None:
    """Torch's stack of the same sizes, less the second bias of every gate."""
    model = preset(name)
    stack = model.encoder
    assert isinstance(stack, RecurrentEncoderConfig)
    layer = {"lstm": nn.LSTM, "gru": nn.GRU}[stack.cell.kind]
    with torch.device("meta"):
        theirs = layer(stack.embedding, stack.width // 2, stack.layers, bidirectional=True)
    expected = sum(part.numel() for key, part in theirs.named_parameters() if not key.startswith("bias_hh"))
    expected += vocabularies(model)[0] * stack.embedding
    encoder = built(name).encoder
    assert isinstance(encoder, nn.Module)
    assert parameter_count(encoder) == expected


@pytest.mark.parametrize(("name", "published"), [("transformer-base", 65e6), ("transformer-big", 213e6)])
def test_size_is_near_the_papers(name: str, published: float) -> None:
    """Vaswani et al. 2017, table 3."""
    assert parameter_count(built(name)) == pytest.approx(published, rel=0.03)


@pytest.mark.parametrize("name", [name for name in NAMES if preset(name).encoder.width <= 256])
def test_built_for_real_it_counts_the_same(name: str) -> None:
    whole = config.build({"preset": name, "data": {"train": "pairs.tsv"}})
    real = build_model(whole, 50, 50)
    assert {part.device.type for part in real.parameters()} == {"cpu"}
    assert parameter_count(real) == formula(whole.model, 50, 50)
