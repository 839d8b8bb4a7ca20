"""Recording attention gives the true weights and changes no output; the layer table adds up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.base.errors import DataError
from dragoman.data.batch import Batch, batch_of
from dragoman.data.collate import PAIR_COLLATOR
from dragoman.data.tokenizers.base import EOS, PAD, SOS
from dragoman.data.tokenizers.pair_codec import PairCodec
from dragoman.decoding.beam import BeamOptions, beam_search
from dragoman.inference.align.attention import attention_map, record_attention
from dragoman.inspect.views.layer_table import layer_table, parameter_count
from dragoman.models.config import EncoderDecoderConfig, TransformerConfig
from dragoman.models.decoders.recurrent import RecurrentDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.layers.attention import CrossAttention
from dragoman.models.layers.cells import GRUConfig, LSTMConfig
from dragoman.models.layers.config import LearnedConfig
from dragoman.models.layers.rnn_attention import AdditiveConfig, SingleHeadAttention
from dragoman.models.layers.self_attention import SelfAttention
from dragoman.models.registry import DecoderConfig, EncoderConfig

WORDS, HEADS, LAYERS = 13, 2, 2
SOURCES = [[5, 6, 7, 8, 9], [10, 4], [12]]
TARGETS = [[4, 5, 6], [7, 8, 9, 10, 4, 5], [6]]
LONG, WIDE = 7, 6  # target and source lengths of the batch, <eos> included

TRANSFORMER = TransformerConfig(layers=LAYERS, width=8, heads=HEADS, feedforward=12, dropout=0.1)
ENCODERS: dict[str, EncoderConfig] = {
    "transformer": TRANSFORMER,
    "lstm": RecurrentEncoderConfig(cell=LSTMConfig(), layers=2, embedding=8, width=10),
}
DECODERS: dict[str, DecoderConfig] = {
    "transformer": TRANSFORMER,
    "gru": RecurrentDecoderConfig(cell=GRUConfig(), layers=2, embedding=8, width=9, attention=AdditiveConfig(width=7)),
}


def build(encoder: str, decoder: str, tie: str = "target") -> EncoderDecoder:
    torch.manual_seed(3)
    config = EncoderDecoderConfig(tie=tie, encoder=ENCODERS[encoder], decoder=DECODERS[decoder])  # type: ignore[arg-type]
    model = EncoderDecoder(config, WORDS, WORDS).eval()
    with torch.no_grad():  # so that the weights are far from even
        for part in model.parameters():
            part.add_(0.4 * torch.randn_like(part))
    return model


@pytest.fixture(params=[(encoder, decoder) for encoder in ENCODERS for decoder in DECODERS], ids=">".join)
def model(request: pytest.FixtureRequest) -> EncoderDecoder:
    return build(*request.param)


@pytest.fixture
def batch() -> Batch:
    return batch_of(SOURCES, TARGETS)


def attentions(model: nn.Module, kind: type | tuple[type, ...]) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, kind)]


@torch.no_grad()
def seen_in(model: EncoderDecoder, batch: Batch) -> dict[str, list[Tensor]]:
    with record_attention(model) as seen:
        model.score(batch)
    return seen


def test_weights_sum_to_one_over_real_source_positions(model: EncoderDecoder, batch: Batch) -> None:
    seen = seen_in(model, batch)
    kinds = dict(model.named_modules())
    reading = [name for name in seen if name.startswith("encoder.") or not isinstance(kinds[name], SelfAttention)]
    assert reading
    for name in reading:
        weights = torch.cat(seen[name], 2)
        heads = 1 if isinstance(kinds[name], SingleHeadAttention) else HEADS
        assert weights.shape == (3, heads, WIDE if name.startswith("encoder.") else LONG, WIDE), name
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), rtol=0.0, atol=1e-6)
        padding = ~batch.source.mask[:, None, None, :].expand_as(weights)
        assert padding.any()
        assert not weights[padding].any()
        assert (weights[~padding] > 0).all()
        assert float(weights.std()) > 0.05, "even weights would hide a mistake"


def test_decoder_self_attention_is_causal(batch: Batch) -> None:
    seen = seen_in(build("lstm", "transformer"), batch)
    names = [name for name in seen if name.startswith("decoder.") and not name.endswith("cross")]
    assert len(names) == LAYERS
    for name in names:
        (weights,) = seen[name]
        assert weights.shape == (3, HEADS, LONG, LONG)
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, HEADS, LONG), rtol=0.0, atol=1e-6)
        assert not weights.triu(1).any()
        assert (weights.tril()[..., -1, :] > 0).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_recording_changes_no_output(model: EncoderDecoder, batch: Batch, dtype: torch.dtype, tolerance: float) -> None:
    model.to(dtype)
    with torch.no_grad():
        plain = model.logits(batch)
        with record_attention(model) as seen:
            watched = model.logits(batch)
        after = model.logits(batch)
    assert seen
    scale = plain.abs().max()
    torch.testing.assert_close(watched / scale, plain / scale, rtol=0.0, atol=tolerance)
    assert torch.equal(after, plain)


@pytest.mark.parametrize("capacity", [None, 10])
def test_recorded_self_attention_over_a_cache_equals_that_of_the_whole_target(
    batch: Batch, capacity: int | None
) -> None:
    model = build("lstm", "transformer")
    whole = seen_in(model, batch)
    tokens = torch.cat([torch.full((3, 1), SOS), batch.target[:, :-1]], 1)
    state = model.start(batch, capacity)
    with torch.no_grad(), record_attention(model) as seen:
        for part in tokens.split([2, 4, 1], 1):
            _, state = model.decoder(part, state)
    for name in attentions(model.decoder, SelfAttention):  # type: ignore[arg-type]
        (expected,) = whole[f"decoder.{name}"]
        parts = seen[f"decoder.{name}"]
        assert [part.shape[2:] for part in parts] == [(size, capacity or end) for size, end in ((2, 2), (4, 6), (1, 7))]
        grown = [nn.functional.pad(part, (0, LONG - part.shape[3])) for part in parts]  # also cuts off spare room
        torch.testing.assert_close(torch.cat(grown, 2), expected, rtol=0.0, atol=1e-6)
        assert not any(part[..., LONG:].any() for part in parts)


def test_recording_changes_no_search(model: EncoderDecoder) -> None:
    batch = batch_of(SOURCES)
    limits = torch.tensor([6, 5, 7])
    plain = beam_search(model.step, model.start(batch), limits, BeamOptions(3, n_best=3))
    with record_attention(model) as seen:
        watched = beam_search(model.step, model.start(batch), limits, BeamOptions(3, n_best=3))
    assert seen
    assert [[one.tokens for one in row] for row in watched] == [[one.tokens for one in row] for row in plain]
    for left, right in zip(watched, plain, strict=True):
        assert [one.score for one in left] == pytest.approx([one.score for one in right], abs=1e-5)


def test_the_hypotheses_of_one_source_have_separate_rows(model: EncoderDecoder) -> None:
    """(N, H, T, S), where each hypothesis has a row as if it had a source of its own."""
    tokens = torch.tensor([[SOS, 4, 4], [SOS, 9, 4], [SOS, 11, 4], [SOS, 5, 6], [SOS, 6, 6], [SOS, 12, 6]])
    pair = batch_of(SOURCES[:2])
    shared, repeated = model.start(pair).expand(3), model.start(pair).select(torch.tensor([0, 0, 0, 1, 1, 1]))
    kinds = dict(model.named_modules())
    found = []
    for state in (shared, repeated):
        with torch.no_grad(), record_attention(model) as seen:
            model.step(tokens, state)
        found.append({name: torch.cat(parts, 2) for name, parts in seen.items()})
    assert found[0]
    for name, weights in found[0].items():
        heads = 1 if isinstance(kinds[name], SingleHeadAttention) else HEADS
        assert weights.shape[:3] == (6, heads, 3)
        torch.testing.assert_close(weights, found[1][name], rtol=0.0, atol=1e-6)
    last = found[0][attentions(model, (CrossAttention, SingleHeadAttention))[-1]]
    assert float((last[0] - last[1]).abs().max()) > 1e-3


def test_nothing_is_recorded_outside_the_block(model: EncoderDecoder, batch: Batch) -> None:
    with torch.no_grad():
        with record_attention(model) as seen:
            pass
        model.score(batch)
        assert seen == {}
        with record_attention(model) as seen:
            model.score(batch)
        counts = {name: len(parts) for name, parts in seen.items()}
        model.score(batch)
    assert counts
    assert {name: len(parts) for name, parts in seen.items()} == counts


def test_an_error_inside_the_block_ends_the_recording(model: EncoderDecoder, batch: Batch) -> None:
    with pytest.raises(KeyError), record_attention(model) as seen:
        raise KeyError
    with torch.no_grad():
        model.score(batch)
    assert seen == {}


def test_every_attention_is_recorded_under_its_module_name(model: EncoderDecoder, batch: Batch) -> None:
    seen = seen_in(model, batch)
    assert sorted(seen) == sorted(attentions(model, (SelfAttention, CrossAttention, SingleHeadAttention)))


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_layer_of_a_transformer_decoder_is_recorded(encoder: str, batch: Batch) -> None:
    seen = seen_in(build(encoder, "transformer"), batch)
    names = [name for name in seen if name.endswith("cross")]
    assert names == [f"decoder.blocks.{layer}.cross" for layer in range(LAYERS)]
    assert all(len(seen[name]) == 1 for name in names)
    assert float((seen[names[0]][0] - seen[names[1]][0]).abs().max()) > 1e-3


def test_a_recurrent_decoder_is_recorded_once_per_step(batch: Batch) -> None:
    model = build("lstm", "gru")
    seen = seen_in(model, batch)
    assert list(seen) == ["decoder.attention"]
    assert [part.shape for part in seen["decoder.attention"]] == [(3, 1, 1, WIDE)] * LONG
    # Its weights are those the equation gives from the decoder's states.
    layer = model.decoder.attention  # type: ignore[attr-defined]
    with torch.no_grad():
        state = model.start(batch)
        tokens = torch.cat([torch.full((3, 1), SOS), batch.target[:, :-1]], 1)
        for place, part in enumerate(seen["decoder.attention"]):
            mask, (keys, _) = state.static
            energy = (
                torch.tanh(state.cache[0][0] @ layer.score.query.weight.T + keys.transpose(0, 1))
                @ layer.score.score.weight[0]
            )
            expected = energy.T.masked_fill(~mask, float("-inf")).softmax(-1)
            torch.testing.assert_close(part[:, 0, 0], expected, rtol=0.0, atol=1e-6)
            _, state = model.decoder(tokens[:, place : place + 1], state)


def test_recorded_weights_have_no_autograd_graph(batch: Batch) -> None:
    model = build("transformer", "transformer").train()
    with record_attention(model) as seen:
        model(batch).total.backward()
    assert seen
    assert not any(part.requires_grad for parts in seen.values() for part in parts)


def test_another_model_in_the_block_is_not_mixed_in(batch: Batch) -> None:
    watched, other = build("transformer", "transformer"), build("lstm", "gru")
    with torch.no_grad(), record_attention(watched) as seen:
        other.score(batch)
        assert seen == {}
        watched.score(batch)
    assert sorted(seen) == sorted(attentions(watched, (SelfAttention, CrossAttention)))


class Numbers:
    """A tokenizer whose text is its token numbers."""

    def encode(self, text: str) -> list[int]:
        return [int(piece) for piece in text.split()]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def pieces(self, tokens: list[int]) -> list[str]:
        return ["<eos>" if token == EOS else str(token) for token in tokens]


def predictor_of(model: EncoderDecoder, written: str) -> Any:
    return SimpleNamespace(
        model=model,
        device=torch.device("cpu"),
        collator=PAIR_COLLATOR,
        source_tokenizer=Numbers(),
        target_tokenizer=Numbers(),
        codec=PairCodec(Numbers(), Numbers()),
        stream=lambda texts, **options: [SimpleNamespace(text=written) for _ in texts],
    )


@pytest.mark.parametrize("output", [None, "9 10 11"])
def test_the_attention_map_has_output_tokens_as_rows_and_source_tokens_as_columns(
    model: EncoderDecoder, output: str | None
) -> None:
    found = attention_map(predictor_of(model, "8 7"), "4 5 6 7", output)
    written = output or "8 7"
    assert found.source == ("4", "5", "6", "7", "<eos>")
    assert found.target == (*written.split(), "<eos>")
    assert list(found.layers) == attentions(model, (CrossAttention, SingleHeadAttention))
    target = [int(piece) for piece in written.split()]
    seen = seen_in(model, batch_of([[4, 5, 6, 7]], [target]))
    for name, weights in found.layers.items():
        torch.testing.assert_close(weights, torch.cat(seen[name], 2)[0], rtol=0.0, atol=0.0)
        assert weights.shape[1:] == (len(found.target), len(found.source))
    last = list(found.layers)[-1]
    torch.testing.assert_close(found.mean(), found.layers[last].mean(0))
    torch.testing.assert_close(found.mean(last).sum(1), torch.ones(len(found.target)))


# --- The layer table --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tie", ["none", "target", "all"])
@pytest.mark.parametrize(("encoder", "decoder"), [(encoder, decoder) for encoder in ENCODERS for decoder in DECODERS])
def test_the_layer_table_adds_up_and_has_the_shapes(encoder: str, decoder: str, tie: str, batch: Batch) -> None:
    model = build(encoder, decoder, tie)
    rows = layer_table(model, batch, depth=1)
    assert [(row.name, row.kind) for row in rows] == [
        ("encoder", type(model.encoder).__name__),
        ("decoder", type(model.decoder).__name__),
        ("output", "Linear"),
    ]
    assert [row.shape for row in rows] == [
        f"3×{WIDE}×{model.encoder.width}",
        f"3×{LONG}×{model.decoder.width}",
        f"3×{LONG}×{WORDS}",
    ]
    total = sum(part.numel() for part in {id(part): part for part in model.parameters()}.values())
    assert sum(row.parameters for row in rows) == parameter_count(model) == total
    table = WORDS * 8
    assert rows[2].parameters == (table if tie == "none" else 0)
    encoder_part = sum(part.numel() for part in model.encoder.parameters())  # type: ignore[attr-defined]
    decoder_part = sum(part.numel() for part in model.decoder.parameters())  # type: ignore[attr-defined]
    assert rows[0].parameters == encoder_part
    assert rows[1].parameters == decoder_part - (table if tie == "all" else 0)


def test_a_deeper_layer_table_splits_the_same_numbers(model: EncoderDecoder, batch: Batch) -> None:
    whole = {row.name: row for row in layer_table(model, batch, depth=9)}
    shallow = layer_table(model, batch, depth=2)
    assert len(shallow) < len(whole)
    assert {row.name for row in shallow} == {name for name in whole if name.count(".") < 2}
    for name, row in whole.items():
        module = model.get_submodule(name)
        direct = sum(part.numel() for part in module.parameters(recurse=False))
        below = sum(
            other.parameters
            for child, other in whole.items()
            if child.startswith(f"{name}.") and child.count(".") == name.count(".") + 1
        )
        if name != "output":  # its weight is the target table's
            assert row.parameters == direct + below, name
    assert any(row.shape == f"3×{WIDE}×8" for row in whole.values())


def test_the_layer_table_leaves_the_model_unchanged(model: EncoderDecoder, batch: Batch) -> None:
    model.train()
    layer_table(model, batch)
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    model.eval()
    layer_table(model, batch)
    assert not model.training


def test_a_failing_batch_leaves_the_model_unchanged() -> None:
    short = TransformerConfig(layers=1, width=8, heads=2, feedforward=12, positions=LearnedConfig(max_positions=4))
    model = EncoderDecoder(EncoderDecoderConfig(encoder=short, decoder=DECODERS["gru"]), WORDS, WORDS).train()
    with pytest.raises(DataError, match="4 positions"):
        layer_table(model, batch_of(SOURCES, TARGETS))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_the_batch_has_padding_on_both_sides() -> None:
    """The tests above need both kinds of padding."""
    batch = batch_of(SOURCES, TARGETS)
    assert batch.source.data.shape == (3, WIDE)
    assert batch.target.shape == (3, LONG)
    assert (batch.source.data == PAD).any()
    assert (batch.target == PAD).any()
