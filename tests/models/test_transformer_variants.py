"""Transformer variants: T5 and Llama by configuration, against Hugging Face's, and settings that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import LlamaConfig, LlamaModel, T5Config, T5Model

from dragoman.base.errors import ConfigError
from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import PAD
from dragoman.models.config import TransformerConfig
from dragoman.models.contracts import Memory
from dragoman.models.layers.config import (
    FullConfig,
    LinearConfig,
    LocalConfig,
    NoPositionsConfig,
    RelativeBiasConfig,
    RelativeConfig,
    RotaryConfig,
)
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.transformer import TransformerDecoder, TransformerEncoder
from dragoman.runs.tasks import config as whole_config

CLOSE = {"rtol": 0.0, "atol": 1e-10}
WORDS, WIDTH, HEADS, INNER, LAYERS = 17, 12, 3, 20, 2
SOURCES = [[5, 6, 7, 8, 9, 16, 4, 5, 6, 7, 12, 15], [10, 4], [12, 11, 7]]
TARGETS = [[4, 5, 6], [7, 8, 9, 10, 4, 5, 13, 4, 4, 5], [6, 6]]


class InDouble(TorchFunctionMode):
    """Hugging Face computes norms, angles and softmax in float32 whatever the model's type: here in float64."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wider(one: Any) -> Any:
            return torch.float64 if one is torch.float32 else one

        function = Tensor.double if function is Tensor.float else function
        return function(*map(wider, args), **{name: wider(one) for name, one in (kwargs or {}).items()})


Places = dict[str, list[str]]  # our parameter → theirs, one below the other


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(5)
    yield
    torch.set_default_dtype(torch.float32)


def shaken(module: Any) -> Any:
    with torch.no_grad():
        for part in module.parameters():
            part.add_(0.2 * torch.randn_like(part))
    return module


def fill(ours: nn.Module, theirs: nn.Module, places: Places, spare: str = "no such part") -> None:
    """Our weights from theirs, but for the spare ones; ours multiply embeddings with √D, theirs do not."""
    parts, other = dict(ours.named_parameters()), dict(theirs.named_parameters())
    assert sorted(places) == sorted(name for name in parts if spare not in name)
    with torch.no_grad():
        for name, names in places.items():
            rows = torch.cat([other[one] for one in names])
            parts[name].copy_(rows / rows.shape[1] ** 0.5 if name == "input.embedding.weight" else rows)


def same_gradients(found: Tensor, expected: Tensor, ours: nn.Module, theirs: nn.Module, places: Places) -> None:
    assert float(expected.detach().std()) > 0.5
    torch.testing.assert_close(found, expected, **CLOSE)
    weight = torch.randn_like(expected)
    (found * weight).sum().backward()
    (expected * weight).sum().backward()
    parts, other = dict(ours.named_parameters()), dict(theirs.named_parameters())
    for name, names in places.items():
        own, rows = parts[name].grad, [other[one].grad for one in names]
        assert own is not None
        wanted = torch.cat([row for row in rows if row is not None])
        assert float(wanted.abs().max()) > 1e-3, name
        scale = wanted.shape[1] ** 0.5 if name == "input.embedding.weight" else 1.0
        torch.testing.assert_close(own, wanted * scale, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


# --- T5 v1.1 ----------------------------------------------------------------------------------------------------------

T5_STACK = TransformerConfig(
    layers=LAYERS, width=WIDTH, heads=HEADS, feedforward=INNER, dropout=0.0, norm_kind="rms", gated=True,
    activation="gelu-tanh", bias=False, positions=RelativeBiasConfig(buckets=8, distance=9), score="dot",
)  # fmt: skip


def t5() -> T5Model:
    config = T5Config(
        vocab_size=WORDS, d_model=WIDTH, d_kv=WIDTH // HEADS, num_heads=HEADS, d_ff=INNER, num_layers=LAYERS,
        num_decoder_layers=LAYERS, feed_forward_proj="gated-gelu", relative_attention_num_buckets=8,
        relative_attention_max_distance=9, dropout_rate=0.0, pad_token_id=PAD,
    )  # fmt: skip
    model: T5Model = shaken(T5Model(config).double().eval())
    return model


def t5_places(side: str) -> Places:
    """Encoder or decoder; the decoder has a layer more in every block."""
    first = f"{side}.block.0.layer.0.SelfAttention"
    places = {
        "input.embedding.weight": ["shared.weight"],
        "norm.weight": [f"{side}.final_layer_norm.weight"],
        "blocks.0.attention.relative.table": [f"{first}.relative_attention_bias.weight"],
    }
    for layer in range(LAYERS):
        ours, theirs = f"blocks.{layer}", f"{side}.block.{layer}.layer"
        own, last = f"{theirs}.0.SelfAttention", f"{theirs}.{2 if side == 'decoder' else 1}"
        places |= {
            f"{ours}.attention.project.weight": [f"{own}.{part}.weight" for part in "qkv"],
            f"{ours}.attention.output.weight": [f"{own}.o.weight"],
            f"{ours}.attention_norm.weight": [f"{theirs}.0.layer_norm.weight"],
            f"{ours}.feedforward.gate.weight": [f"{last}.DenseReluDense.wi_0.weight"],
            f"{ours}.feedforward.widen.weight": [f"{last}.DenseReluDense.wi_1.weight"],
            f"{ours}.feedforward.narrow.weight": [f"{last}.DenseReluDense.wo.weight"],
            f"{ours}.feedforward_norm.weight": [f"{last}.layer_norm.weight"],
        }
        if side == "decoder":
            places[f"{ours}.cross_norm.weight"] = [f"{theirs}.1.layer_norm.weight"]
            for name, part in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
                places[f"{ours}.cross.{name}.weight"] = [f"{theirs}.1.EncDecAttention.{part}.weight"]
    return places


def test_encoder_is_t5s() -> None:
    theirs = t5()
    ours = TransformerEncoder(T5_STACK, TokenEmbedding(WORDS, WIDTH, PAD))
    fill(ours, theirs, t5_places("encoder"))
    batch = batch_of(SOURCES)
    real = batch.source.mask[:, :, None]
    found = ours(batch.source.data, batch.source.mask).keys * real
    with InDouble():
        expected = theirs.encoder(input_ids=batch.source.data, attention_mask=batch.source.mask.long())[0] * real
    same_gradients(found, expected, ours, theirs, t5_places("encoder"))


@pytest.mark.parametrize("sizes", [[11], [1] * 11, [4, 1, 6]])
def test_decoder_is_t5s(sizes: list[int]) -> None:
    theirs = t5()
    ours = TransformerDecoder(T5_STACK, TokenEmbedding(WORDS, WIDTH, PAD), WIDTH)
    fill(ours, theirs, t5_places("decoder"))
    mask = batch_of(SOURCES).source.mask
    tokens = batch_of(TARGETS).source.data
    keys = torch.randn(*mask.shape, WIDTH)
    state = ours.start(Memory(keys, keys, mask, ()))
    outputs = []
    for part in tokens.split(sizes, 1):
        hidden, state = ours(part, state)
        outputs.append(hidden)
    found = torch.cat(outputs, 1)
    with InDouble():
        expected = theirs.decoder(
            input_ids=tokens, encoder_hidden_states=keys, encoder_attention_mask=mask.long(), use_cache=False
        )[0]
    real = tokens[:, :, None] != PAD  # theirs would train the vector of <pad>
    same_gradients(found * real, expected * real, ours, theirs, t5_places("decoder"))


# --- Llama ------------------------------------------------------------------------------------------------------------

LLAMA_WIDTH = 24
LLAMA_STACK = TransformerConfig(
    layers=LAYERS, width=LLAMA_WIDTH, heads=6, key_heads=2, feedforward=INNER, dropout=0.0, norm_kind="rms", gated=True,
    activation="silu", bias=False, positions=RotaryConfig(base=500.0),
)  # fmt: skip


def llama() -> LlamaModel:
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=LLAMA_WIDTH, num_attention_heads=6, num_key_value_heads=2,
        intermediate_size=INNER, num_hidden_layers=LAYERS, rms_norm_eps=1e-6, max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0}, pad_token_id=PAD, attn_implementation="eager",
    )  # fmt: skip
    model: LlamaModel = shaken(LlamaModel(config).double().eval())
    # Llama keeps its rates in float32; the same formula in full precision takes their place.
    exact = 500.0 ** (-torch.arange(0, 4, 2) / 4)
    torch.testing.assert_close(model.rotary_emb.inv_freq.double(), exact, rtol=0.0, atol=1e-6)
    model.rotary_emb.inv_freq = exact
    return model


def llama_places() -> Places:
    places = {"input.embedding.weight": ["embed_tokens.weight"], "norm.weight": ["norm.weight"]}
    for layer in range(LAYERS):
        ours, theirs = f"blocks.{layer}", f"layers.{layer}"
        places |= {
            f"{ours}.attention.project.weight": [f"{theirs}.self_attn.{part}_proj.weight" for part in "qkv"],
            f"{ours}.attention.output.weight": [f"{theirs}.self_attn.o_proj.weight"],
            f"{ours}.attention_norm.weight": [f"{theirs}.input_layernorm.weight"],
            f"{ours}.feedforward.gate.weight": [f"{theirs}.mlp.gate_proj.weight"],
            f"{ours}.feedforward.widen.weight": [f"{theirs}.mlp.up_proj.weight"],
            f"{ours}.feedforward.narrow.weight": [f"{theirs}.mlp.down_proj.weight"],
            f"{ours}.feedforward_norm.weight": [f"{theirs}.post_attention_layernorm.weight"],
        }
    return places


def reads_nothing(decoder: TransformerDecoder, rows: int, capacity: int | None = None) -> Any:
    """Without biases, a memory of zeros adds zeros to the stream: what remains is a language model."""
    keys = torch.zeros(rows, 1, decoder.width)
    return decoder.start(Memory(keys, keys, torch.ones(rows, 1, dtype=torch.bool), ()), capacity)


def test_decoder_without_a_memory_is_llama() -> None:
    theirs = llama()
    ours = TransformerDecoder(LLAMA_STACK, TokenEmbedding(WORDS, LLAMA_WIDTH, PAD), LLAMA_WIDTH)
    fill(ours, theirs, llama_places(), spare="cross")
    tokens = torch.randint(4, WORDS, (3, 9))
    found, _ = ours(tokens, reads_nothing(ours, 3))
    with InDouble():
        expected = theirs(input_ids=tokens, use_cache=False).last_hidden_state
    same_gradients(found, expected, ours, theirs, llama_places())


def test_grouped_heads_keep_a_small_cache() -> None:
    """Ainslie et al. 2023: the cache has key_heads heads, and the parameters shrink with it."""
    decoder = TransformerDecoder(LLAMA_STACK, TokenEmbedding(WORDS, LLAMA_WIDTH, PAD), LLAMA_WIDTH)
    _, state = decoder(torch.tensor([[4, 5, 6]]), reads_nothing(decoder, 1))
    assert {part.shape for layer in state.cache for part in layer} == {(1, 2, 3, 4)}
    assert {part.shape for layer in state.static[1] for part in layer} == {(1, 2, 1, 4)}
    block: Any = decoder.blocks[0]
    assert block.attention.project.weight.shape == (LLAMA_WIDTH + 2 * 8, LLAMA_WIDTH)
    assert block.cross.key.weight.shape == block.cross.value.weight.shape == (8, LLAMA_WIDTH)


def test_grouped_heads_are_heads_with_equal_keys() -> None:
    """An ordinary decoder whose heads repeat the keys and values of their group writes the same."""
    grouped = shaken(TransformerDecoder(LLAMA_STACK, TokenEmbedding(WORDS, LLAMA_WIDTH, PAD), 10))
    plain = TransformerDecoder(replace(LLAMA_STACK, key_heads=0), TokenEmbedding(WORDS, LLAMA_WIDTH, PAD), 10)

    def spread(weight: Tensor) -> Tensor:
        return weight.view(2, 4, -1).repeat_interleave(3, 0).flatten(0, 1)

    weights = dict(grouped.named_parameters())
    with torch.no_grad():
        for name, part in plain.named_parameters():
            given = weights[name]
            if name.endswith("attention.project.weight"):
                query, key, value = given.split([24, 8, 8])
                given = torch.cat([query, spread(key), spread(value)])
            elif given.shape != part.shape:
                given = spread(given)
            part.copy_(given)
    mask = batch_of(SOURCES).source.mask
    keys, tokens = torch.randn(*mask.shape, 10), batch_of(TARGETS).source.data
    memory = Memory(keys, keys, mask, ())
    torch.testing.assert_close(
        grouped(tokens, grouped.start(memory))[0], plain(tokens, plain.start(memory))[0], **CLOSE
    )


# --- Configuration ----------------------------------------------------------------------------------------------------


def stack_of(**settings: Any) -> TransformerConfig:
    table = {"preset": "transformer-tiny", "data": {"train": "pairs.tsv"}, "model": {"encoder": settings}}
    encoder = whole_config.build(table).model.encoder
    assert isinstance(encoder, TransformerConfig)
    return encoder


def test_a_choice_is_a_word_or_a_table() -> None:
    assert stack_of(positions="rotary").positions == RotaryConfig()
    assert stack_of(positions={"kind": "rotary", "base": 500}).positions == RotaryConfig(base=500.0)
    assert stack_of(positions="none").positions == NoPositionsConfig()
    assert stack_of(attention="linear").attention == LinearConfig()
    assert stack_of(attention={"kind": "local", "window": 9}).attention == LocalConfig(window=9)
    assert stack_of().attention == FullConfig()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"attention": "linear", "positions": "rotary"},
            "positions: found 'rotary', but linear attention has no scores",
        ),
        ({"attention": "linear", "positions": "relative"}, "positions: found 'relative', but linear attention"),
        ({"attention": "linear", "positions": "relative-bias"}, "positions: found 'relative-bias', but linear"),
        ({"attention": "linear", "score": "cosine"}, "score: found 'cosine', but linear attention has no scores"),
        ({"heads": 4, "key_heads": 3}, "key_heads: found 3, expected 0 or a divisor of heads = 4"),
        ({"width": 36, "heads": 4, "positions": "rotary"}, "needs heads of an even size, found 9"),
        ({"attention": {"kind": "local", "window": 0}}, "window: found 0, expected at least 1"),
        ({"positions": {"kind": "relative", "distance": 0}}, "distance: found 0, expected at least 1"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        stack_of(**settings)
    assert message in str(refused.value)


def test_linear_attention_takes_positions_that_are_added() -> None:
    for positions in ("sinusoidal", "learned", "none"):
        assert stack_of(attention="linear", positions=positions).positions.kind == positions


def test_no_bias_is_no_bias() -> None:
    stack = TransformerConfig(
        layers=1, width=8, heads=2, feedforward=12, bias=False, positions=RelativeConfig(), score="cosine"
    )
    for module in (
        TransformerEncoder(stack, TokenEmbedding(WORDS, 8, PAD)),
        TransformerDecoder(stack, TokenEmbedding(WORDS, 8, PAD), 8),
    ):
        assert not [name for name, _ in module.named_parameters() if "bias" in name]
