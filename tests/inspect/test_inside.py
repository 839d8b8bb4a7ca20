"""What is shown of a model is what the model computes: plain recomputation, finite differences, every architecture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.base.errors import DataError
from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import EOS, PAD, SOS
from dragoman.data.tokenizers.characters import CharactersConfig, CharacterTokenizer
from dragoman.inspect.views.attention_layers import AttentionLayer, attention_layers, attribute, merge_words
from dragoman.inspect.views.ctc import ctc_forward, ctc_table
from dragoman.inspect.views.gradients import (
    RADII,
    by_recurrent_weight,
    decay_slope,
    gradient_flow,
    state_gradients,
    step_jacobians,
    untrained_cells,
)
from dragoman.inspect.views.inside_attention import AttentionSums, attention_sums, chosen_sum, worked_example
from dragoman.inspect.views.layer_table import layer_table
from dragoman.inspect.views.logit_lens import block_norms, logit_lens, recorded_blocks
from dragoman.inspect.views.neighbours import nearest, principal_components
from dragoman.inspect.views.next_tokens import next_tokens
from dragoman.inspect.views.order import added_positions, order_effects
from dragoman.inspect.views.position_pictures import position_pictures
from dragoman.inspect.views.states import cell_traces, implicit_attention, record_cells
from dragoman.inspect.views.subject import Axis, Subject, plain_axis, target_log_probabilities, text_axis
from dragoman.inspect.views.tables import viterbi_table
from dragoman.inspect.views.what_if import frozen_gate, masked_head, what_if
from dragoman.models.config import EncoderDecoderConfig, TransformerConfig
from dragoman.models.decoders.pointer_generator import PointerGeneratorConfig
from dragoman.models.decoders.recurrent import RecurrentDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.layers.cells import (
    CellConfig,
    CoupledLSTMConfig,
    GRUConfig,
    LayerNormLSTMConfig,
    LSTMConfig,
    PeepholeLSTMConfig,
    RNNConfig,
    build_cell,
)
from dragoman.models.layers.config import RelativeBiasConfig
from dragoman.models.layers.crf import LinearChainCRF
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.positions import ABSOLUTE_POSITIONS, RELATIVE_POSITIONS
from dragoman.models.layers.rnn_attention import RNNAttentionConfig
from dragoman.models.registry import DECODERS, ENCODERS, has_attention
from tests.inspect.tempering import tempered

WORDS, SPACE = 13, 7
SOURCE, TARGET = [5, 6, 8, 9, 10], [4, 5, 6, 11]
CELLS = [
    RNNConfig(), LSTMConfig(), PeepholeLSTMConfig(), CoupledLSTMConfig(), LayerNormLSTMConfig(), GRUConfig(),
    GRUConfig(reset="before"),
]  # fmt: skip


def model_of(encoder: Any, decoder: Any) -> EncoderDecoder:
    torch.manual_seed(3)
    config = EncoderDecoderConfig(tie="none", encoder=encoder, decoder=decoder)
    model = EncoderDecoder(config, WORDS, WORDS, space=SPACE).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def subject_of(model: Any, source: list[int] = SOURCE, target: list[int] = TARGET) -> Subject:
    loaded: Any = None
    axes = [plain_axis([*map(str, tokens), "<eos>"]) for tokens in (source, target)]
    return Subject(loaded, model, batch_of([source], [target]), *axes, given=True)


def recurrent(cell: CellConfig) -> Subject:
    encoder = RecurrentEncoderConfig(cell=cell, embedding=6, width=8, dropout=0.0)
    decoder = next(one.example for one in DECODERS.values() if one.example.kind == "recurrent")
    return subject_of(model_of(encoder, replace(decoder, cell=cell, layers=1)))


PAIRS = [(one.example, next(iter(DECODERS.values())).example) for one in ENCODERS.values()] + [
    (next(iter(ENCODERS.values())).example, one.example) for one in DECODERS.values()
]


@pytest.mark.parametrize(("encoder", "decoder"), PAIRS, ids=lambda config: config.kind)
def test_every_architecture_shows_what_it_has(encoder: Any, decoder: Any) -> None:
    subject = subject_of(model_of(encoder, decoder))
    before = subject.log_probabilities().detach()
    layers = attention_layers(subject)
    assert any(layer.kind == "cross" for layer in layers) == has_attention(decoder)
    for layer in layers:
        assert layer.weights.shape == (layer.weights.shape[0], len(layer.rows), len(layer.columns))
        assert bool((layer.entropy() <= layer.max_entropy() + 1e-5).all())
    for trace in cell_traces(subject):
        assert all(len(value) == len(trace.axis) for value in trace.values.values())
    assert all(bool(flow.loss.isfinite().all()) for flow in gradient_flow(subject))
    try:
        found = attribute(subject)
        assert found.prefix is not None
    except DataError:
        assert encoder.kind == "character-words"
    if hasattr(subject.model, "read"):
        assert next_tokens(subject, 5) is not None
    assert what_if(subject) or not (layers or cell_traces(subject))
    position_pictures(subject.model)
    for row in layer_table(subject.model, subject.batch):
        if row.formula and not row.formula.endswith("parts"):
            assert eval(row.formula.replace("×", "*").replace("·", "*")) == row.parameters, row
    torch.testing.assert_close(subject.log_probabilities().detach(), before)  # looking changes nothing


@pytest.mark.parametrize("config", CELLS, ids=lambda config: f"{config.kind} {getattr(config, 'reset', '')}")
def test_gates_and_states_equal_a_plain_recomputation(config: CellConfig) -> None:
    """By torch's own layers where they exist, else by the equations of the papers written out here."""
    torch.manual_seed(1)
    cell = build_cell(config, 3, 4)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.7)
    inputs, start = torch.randn(1, 6, 3), cell.start(1)
    with torch.no_grad(), record_cells(cell) as recorded:
        outputs, _ = cell(inputs, start)
    steps = recorded[""]
    torch.testing.assert_close(torch.stack([after[0] for after in steps.after], 1), cell(inputs, start)[0])
    torch.testing.assert_close(outputs, cell(inputs, start)[0])
    for number in range(6):
        gates = cell.gates(steps.projected[number], steps.before[number])
        after = by_hand(cell, inputs[:, number], steps.before[number])
        for name, value in gates.items():
            torch.testing.assert_close(value, after[name], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(steps.after[number][0], after["hidden"], atol=1e-6, rtol=1e-6)


def by_hand(cell: Any, x: Tensor, state: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """One step of a cell, gate by gate."""
    name, width = type(cell).__name__, cell.width
    h = state[0]

    def block(number: int, hidden: Tensor = h) -> Tensor:
        rows = slice(number * width, (number + 1) * width)
        return x @ cell.input_weight[rows].T + cell.bias[rows] + hidden @ cell.hidden_weight[rows].T

    if name == "RNNCell":
        return {"candidate": torch.tanh(block(0)), "hidden": torch.tanh(block(0))}
    if name == "GRUCell":
        reset, update = torch.sigmoid(block(0)), torch.sigmoid(block(1))
        rows = slice(2 * width, 3 * width)
        given = x @ cell.input_weight[rows].T + cell.bias[rows]
        inner = (reset * h) @ cell.hidden_weight[rows].T if cell.before else reset * (h @ cell.hidden_weight[rows].T)
        candidate = torch.tanh(given + inner)
        return {
            "reset gate": reset, "update gate": update, "candidate": candidate,
            "hidden": update * h + (1 - update) * candidate,
        }  # fmt: skip
    c = state[1]
    if name == "CoupledLSTMCell":
        forget, output, candidate = torch.sigmoid(block(0)), torch.sigmoid(block(1)), torch.tanh(block(2))
        memory = forget * c + (1 - forget) * candidate
        return {
            "forget gate": forget, "output gate": output, "candidate": candidate, "hidden": output * torch.tanh(memory),
        }  # fmt: skip
    if name == "LayerNormLSTMCell":
        from torch.nn.functional import layer_norm

        whole = layer_norm(x @ cell.input_weight.T, (4 * width,)) * cell.input_norm.weight + cell.bias
        whole = whole + layer_norm(h @ cell.hidden_weight.T, (4 * width,)) * cell.hidden_norm.weight
        i, f, g, o = whole.chunk(4, -1)
    else:
        i, f, g, o = (block(number) for number in range(4))
    if name == "PeepholeLSTMCell":
        i, f = i + cell.peepholes[0] * c, f + cell.peepholes[1] * c
    memory = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    if name == "PeepholeLSTMCell":
        o = o + cell.peepholes[2] * memory
    shown = cell.memory_norm(memory) if name == "LayerNormLSTMCell" else memory
    return {
        "input gate": torch.sigmoid(i), "forget gate": torch.sigmoid(f), "candidate": torch.tanh(g),
        "output gate": torch.sigmoid(o), "hidden": torch.sigmoid(o) * torch.tanh(shown),
    }  # fmt: skip


def test_implicit_attention_unrolls_the_state_of_a_gru() -> None:
    subject = recurrent(GRUConfig())
    traces = cell_traces(subject)
    for trace in traces:
        assert trace.implicit is not None
        torch.testing.assert_close(trace.implicit.sum(1), torch.ones(len(trace.implicit)))
    trace = traces[0]
    update, candidate = trace.values["update gate"], trace.values["candidate"]
    steps = len(update)
    for unit in range(3):  # h_T is the weighted mean of all candidates and the start state
        weights = implicit_attention(update[:, unit : unit + 1])[-1]
        mixed = weights[0] * trace.start[unit] + sum(weights[i + 1] * candidate[i, unit] for i in range(steps))
        torch.testing.assert_close(mixed, trace.values["hidden state"][-1, unit], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("config", CELLS[:6], ids=lambda config: config.kind)
def test_state_gradients_agree_with_finite_differences(config: CellConfig) -> None:
    torch.manual_seed(2)
    cell = build_cell(config, 3, 4).double()
    given = torch.randn(5, 1, 3, dtype=torch.float64)
    states = [tuple(part.double() for part in cell.start(1))]
    with torch.no_grad():
        for x in given:
            states.append(cell.step(cell.project(x), states[-1]))
        projected = [cell.project(x) for x in given]
        norms = state_gradients(step_jacobians(cell, projected, states[:-1]), cell.width)
        jacobian = torch.zeros(4, 4, dtype=torch.float64)  # ∂h_5/∂h_2, by central differences
        for unit in range(4):
            ends = []
            for sign in (1, -1):
                state = (states[2][0].clone(), *states[2][1:])
                state[0][0, unit] += sign * 1e-6
                for x in projected[2:]:
                    state = cell.step(x, state)
                ends.append(state[0][0])
            jacobian[:, unit] = (ends[0] - ends[1]) / 2e-6
    assert float(norms[3]) == pytest.approx(float(torch.linalg.matrix_norm(jacobian, 2)), rel=1e-5)


def test_a_plain_network_stays_below_its_spectral_bound_and_an_lstm_keeps_gradients() -> None:
    plain = gradient_flow(recurrent(RNNConfig()))[0]
    assert plain.bound is not None
    assert bool((plain.state <= plain.bound * (1 + 1e-4)).all())
    lstm = gradient_flow(recurrent(LSTMConfig()))[0]
    assert lstm.gates is not None
    assert lstm.bound is None
    assert bool((lstm.gates.diff() <= 0).all())


def test_loss_gradients_agree_with_finite_differences() -> None:
    """The norm of ∂loss/∂h of an encoder state equals the loss's response to a change of that state."""
    subject = recurrent(RNNConfig())
    subject = replace(subject, model=subject.model.double())
    flow = gradient_flow(subject)[0]
    cell = subject.model.get_submodule(flow.name)
    place, size = 2, cell.width
    step, calls = cell.step, 0

    def loss_with(change: Tensor) -> Tensor:
        nonlocal calls
        calls = 0

        def changed(projected: Tensor, state: Any) -> Any:
            nonlocal calls
            after = step(projected, state)
            calls += 1
            return (after[0] + change,) if calls == place + 1 else after

        cell.step = changed
        with torch.no_grad(), record_cells(subject.model):
            return -subject.log_probabilities()

    gradient = torch.stack(
        [(loss_with(1e-5 * unit) - loss_with(-1e-5 * unit)) / 2e-5 for unit in torch.eye(size, dtype=torch.float64)], 1
    )
    torch.testing.assert_close(gradient.norm(dim=1).float(), flow.loss[:, place].float(), rtol=1e-3, atol=1e-6)


SMALL = TransformerConfig(layers=1, width=8, heads=2, feedforward=12, dropout=0.0)
POINTERS = [
    PointerGeneratorConfig(inner=RecurrentDecoderConfig(embedding=6, width=8, dropout=0.0)),
    PointerGeneratorConfig(inner=SMALL),
]  # they read the embeddings twice


@pytest.mark.parametrize(
    "decoder", [LSTMConfig(), SMALL, *POINTERS], ids=["lstm", "transformer", "pointer", "pointer-transformer"]
)
def test_attribution(decoder: Any) -> None:
    subject = recurrent(decoder) if isinstance(decoder, LSTMConfig) else subject_of(model_of(SMALL, decoder))
    subject = replace(subject, model=subject.model.double())
    found = attribute(subject, "integrated-gradients", steps=200)
    assert found.source is not None
    assert found.prefix is not None
    zero = zero_inputs(subject)
    expected = subject.log_probabilities().detach() - zero
    torch.testing.assert_close((found.source.sum(1) + found.prefix.sum(1)).double(), expected, atol=2e-2, rtol=2e-2)
    times = attribute(subject)
    assert times.source is not None
    assert times.source.shape == (len(TARGET) + 1, len(SOURCE) + 1)
    shown = scaled_log_probability(subject, 1 + 1e-5) - scaled_log_probability(subject, 1 - 1e-5)
    torch.testing.assert_close(times.source.sum(1).double(), shown / 2e-5, atol=1e-4, rtol=1e-4)


def scaled_log_probability(subject: Subject, scale: float) -> Tensor:
    """log p with all source embeddings times a factor: its derivative at 1 is the sum of input × gradient."""
    table = next(one for one in subject.model.encoder.modules() if isinstance(one, TokenEmbedding))
    handle = table.register_forward_hook(lambda module, given, out: out * scale)
    with torch.no_grad():
        out = subject.log_probabilities()
    handle.remove()
    return out


def zero_inputs(subject: Subject) -> Tensor:
    tables = [one for one in subject.model.modules() if isinstance(one, TokenEmbedding)]
    handles = [one.register_forward_hook(lambda module, given, out: out * 0) for one in tables]
    with torch.no_grad():
        out = subject.log_probabilities()
    for handle in handles:
        handle.remove()
    return out


def test_sums_of_attention_are_those_of_the_layer() -> None:
    subject = subject_of(model_of(SMALL, replace(SMALL, norm="pre", positions=RelativeBiasConfig())))
    given: dict[str, Tensor] = {}
    for name, module in subject.model.named_modules():
        if hasattr(module, "heads") and isinstance(getattr(module, "output", None), torch.nn.Linear):
            module.output.register_forward_hook(lambda _, __, out, name=name: given.setdefault(name, out[0]))
    sums = attention_sums(subject)
    assert [one.layer.kind for one in sums] == ["encoder", "decoder", "cross"]
    for one in sums:
        scores = one.products * one.scale + (0 if one.bias is None else one.bias)
        if one.visible is not None:
            scores = scores.masked_fill(~one.visible, -torch.inf)
        torch.testing.assert_close(scores.softmax(-1), one.layer.weights)
        torch.testing.assert_close(one.output, given[one.layer.name].detach())
    assert sums[1].bias is not None
    assert sums[1].visible is not None


@pytest.mark.parametrize("kind", ["additive", "dot", "scaled-dot", "general", "cosine"])
def test_sums_of_a_recurrent_decoder_give_its_weights(kind: str) -> None:
    attention = {one.kind: one for one in get_args(RNNAttentionConfig)}[kind]
    decoder = replace(RecurrentDecoderConfig(embedding=6, width=8, dropout=0.0), attention=attention())
    subject = subject_of(model_of(RecurrentEncoderConfig(embedding=6, width=8, dropout=0.0), decoder))
    (one,) = attention_sums(subject)
    torch.testing.assert_close((one.products * one.scale).softmax(-1), one.layer.weights)
    torch.testing.assert_close(one.output, one.context[0])
    assert (one.score is not None) == (kind == "additive")
    assert one.formula in "".join(worked_example(one, 0, 0))


def test_a_worked_example_is_that_of_the_textbooks() -> None:
    """q·k of 112 and 96 with d = 64 give 14 and 12, and weights of 0.88 and 0.12 (Alammar 2018)."""
    key = torch.zeros(1, 2, 64)
    key[0, 0, 0], key[0, 1, 0] = 112.0, 96.0
    query = torch.zeros(1, 1, 64)
    query[0, 0, 0] = 1.0
    weights = (query @ key.transpose(1, 2) / 8).softmax(-1)
    layer = AttentionLayer("layer", "encoder", weights, plain_axis(["Thinking"]), plain_axis(["Thinking", "Machines"]))
    sums = AttentionSums(layer, query, key, key, 0.125, None, None, None, torch.zeros(1, 64))
    lines = worked_example(*chosen_sum([sums], "layer,1,Thinking"))
    assert [line.split() for line in lines[3:5]] == [
        ["Thinking", "112.000", "14.000", "0.000", "1.0000", "0.8808"],
        ["Machines", "96.000", "12.000", "0.000", "0.1353", "0.1192"],
    ]
    with pytest.raises(DataError, match="found head '2', expected 1 to 1"):
        chosen_sum([sums], "1,2,1")


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_lens_of_the_last_layer_is_the_model(norm: Any) -> None:
    config = replace(SMALL, layers=2, norm=norm)
    subject = subject_of(model_of(config, config))
    blocks = recorded_blocks(subject)
    lens = logit_lens(subject, blocks)
    assert lens is not None
    assert lens.layers == ["embeddings", "layer 1", "layer 2"]
    torch.testing.assert_close(lens.chosen[-1], subject.log_probabilities().detach().exp(), atol=1e-6, rtol=1e-5)
    norms = block_norms(subject, blocks)
    assert [one.name for one in norms] == [f"{side}.blocks.{n}" for side in ("encoder", "decoder") for n in (0, 1)]
    for one in norms:
        parts = blocks[one.name]
        if norm == "pre":  # the residual sum
            added = sum(vectors for part, vectors in parts.items() if part != "output")
            torch.testing.assert_close(added, parts["output"], atol=1e-5, rtol=1e-5)
        assert list(one.parts)[0 :: len(one.parts) - 1] == ["input", "output"]


def test_heads_are_summed_up_in_words() -> None:
    axis = plain_axis(["a", "b", "c", "d", "<eos>"])
    before = torch.zeros(5, 5)
    before[0, 0] = 1.0
    before[torch.arange(1, 5), torch.arange(4)] = 1.0
    end = torch.zeros(5, 5)
    end[:, 4] = 1.0
    layer = AttentionLayer(
        "l", "encoder", torch.stack([before, torch.eye(5), end, torch.full((5, 5), 0.2)]), axis, axis
    )
    assert layer.summaries() == ["previous token 80%", "same position 100%", "end 100%", ""]
    rare = replace(layer, weights=torch.tensor([0.1, 0.1, 0.6, 0.1, 0.1]).expand(1, 5, 5))
    assert (rare.summaries(), rare.summaries([2])) == ([""], ["rarest token 60%"])


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "rotary", "relative", "relative-bias", "bert"])
def test_order_matters_only_with_positions(kind: str) -> None:
    """Without positions self-attention reads a bag of words."""
    examples = {entry.example.kind: entry.example for entry in ENCODERS.values()}
    if kind == "bert":  # adds its positions itself
        example = examples[kind]
    else:
        positions = {one.kind: one for one in (*ABSOLUTE_POSITIONS, *RELATIVE_POSITIONS)}[kind]()
        example = replace(examples["transformer"], positions=positions)
    decoder = next(one.example for one in DECODERS.values() if one.example.kind == "recurrent")
    subject = subject_of(model_of(example, decoder))
    before = subject.log_probabilities().detach()
    found = order_effects(subject)
    assert found is not None
    assert found.off is not None
    assert abs(found.off) > 1e-4
    assert [row.name for row in found.reorderings][-2:] == ["reversed", "shuffled"]
    for row in found.reorderings:
        assert abs(row.change) > 1e-5
        assert row.change_off == pytest.approx(0.0, abs=1e-4)
    added = added_positions(subject)
    assert (added is not None) == (kind in ("sinusoidal", "learned", "bert"))
    if added is not None:
        *parts, total = added.parts.values()
        torch.testing.assert_close(sum(parts, torch.zeros(())), total)
    torch.testing.assert_close(subject.log_probabilities().detach(), before)  # looking changes nothing


def test_bert_adds_token_segment_and_position() -> None:
    example = next(one.example for one in ENCODERS.values() if one.example.kind == "bert")
    decoder = next(one.example for one in DECODERS.values() if one.example.kind == "recurrent")
    subject = subject_of(model_of(example, decoder))
    added = added_positions(subject)
    assert added is not None
    assert added.segment is not None
    ids, encoder = [SOS, *subject.batch.source.data[0].tolist()], subject.encoder
    tokens, positions, segments = (
        table.detach().numpy() for table in (encoder.embedding.weight, encoder.positions, encoder.segments)
    )
    segment = np.minimum(np.cumsum([0, 0, *(token == EOS for token in ids[1:-1])]), len(segments) - 1)
    expected = tokens[ids], segments[segment], positions[: len(ids)]
    for part, own in zip((added.embedding, added.segment, added.position), expected, strict=True):
        np.testing.assert_allclose(part.numpy(), own, atol=1e-6)
    np.testing.assert_allclose(added.total.numpy(), sum(expected), atol=1e-6)
    assert [*added.parts] == ["embedding", "segment", "position", "total"]


def test_words_are_merged_by_sums_and_means() -> None:
    weights = torch.rand(2, 3, 4).softmax(-1)
    merged = merge_words(weights, [0, 0, 1], [0, 1, 1, 2])
    torch.testing.assert_close(merged.sum(-1), torch.ones(2, 2))
    torch.testing.assert_close(merged[:, 0, 1], weights[:, :2, 1:3].sum(-1).mean(1))
    tokenizer = CharacterTokenizer(CharactersConfig(), list(" abc"))
    axis = text_axis(tokenizer, "ab  c", tokenizer.encode("ab  c"))
    assert axis.words == ("ab", "c", "<eos>")
    assert axis.word_of == (0, 0, 1, 1, 1, 2)
    assert axis.shifted() == Axis("ab  c", ("<sos>", *axis.tokens[:-1]), ("<sos>", "ab", "c"), (0, 1, 1, 2, 2, 2))


def test_next_tokens_are_exact_at_every_temperature() -> None:
    subject = recurrent(LSTMConfig())
    found = next_tokens(subject, count=4)
    assert found is not None
    whole = next_tokens(subject, count=WORDS)
    assert whole is not None
    for temperature in (0.1, 0.5, 1.0, 2.5):
        for step in range(len(TARGET) + 1):
            exact = (whole.logits[step] / temperature).softmax(0)[:4]
            torch.testing.assert_close(tempered(found, step, temperature), exact, atol=1e-6, rtol=1e-5)
    cut = tempered(found, 0, 1.0, top_k=2)
    torch.testing.assert_close(cut[:2], whole.logits[0][:2].softmax(0), atol=1e-6, rtol=1e-5)
    assert tempered(found, 0, 1.0, top_p=1e-6).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_masking_and_freezing_do_what_they_say() -> None:
    small = TransformerConfig(layers=1, width=8, heads=2, feedforward=12, dropout=0.0)
    subject = subject_of(model_of(small, small))
    cross = next(layer for layer in attention_layers(subject) if layer.kind == "cross")
    module = dict(subject.model.named_modules())[cross.name]
    with torch.no_grad():
        with masked_head(module, 1):
            masked = subject.log_probabilities()
        kept = module.output.weight.clone()
        module.output.weight[:, 4:] = 0.0  # the columns that read head 2
        torch.testing.assert_close(subject.log_probabilities(), masked)
        module.output.weight.copy_(kept)
    gated = recurrent(LSTMConfig())
    cell = dict(gated.model.named_modules())[cell_traces(gated)[0].name]
    with torch.no_grad(), frozen_gate(cell, "forget gate", 0):
        shut = cell_traces(gated)[0]
    assert float(shut.values["forget gate"].max()) == 0.0
    changes = what_if(gated)
    assert {change.kind for change in changes} == {"head", "gate"}
    torch.testing.assert_close(
        changes[0].score - changes[0].difference, float(gated.log_probabilities().sum().detach())
    )


def test_viterbi_and_ctc_tables_agree_with_brute_force() -> None:
    torch.manual_seed(5)
    chain = LinearChainCRF(3)
    with torch.no_grad():
        for parameter in chain.parameters():
            parameter.copy_(torch.randn_like(parameter))
    emissions = torch.randn(5, 3)
    table = viterbi_table(chain, emissions)
    expected = chain.viterbi(emissions[None], torch.ones(1, 5, dtype=torch.bool))[0].tolist()
    assert [row for row, _ in table.path] == expected
    logs = torch.randn(6, 5).log_softmax(-1)
    labels = [2, 2, 4]
    found = ctc_table(logs, labels)
    best = max(
        sum(float(logs[t, token]) for t, token in enumerate(path))
        for path in torch.cartesian_prod(*[torch.arange(5)] * 6).tolist()
        if collapsed(path) == labels
    )
    assert float(found.scores[found.path[-1]]) == pytest.approx(best, abs=1e-5)
    assert table.end is not None
    assert found.end is not None
    paths = torch.cartesian_prod(*[torch.arange(3)] * 5)
    first, last, steps = (part.detach().numpy() for part in (chain.first, chain.last, chain.transitions))
    given = emissions.numpy()
    totals = np.array(
        [first[p[0]] + given[range(5), p].sum() + steps[p[:-1], p[1:]].sum() + last[p[-1]] for p in paths.numpy()]
    )
    for tag in range(3):  # the best of all paths that end in it
        assert float(table.end[tag]) == pytest.approx(totals[paths[:, -1].numpy() == tag].max(), abs=1e-5)
    assert found.end.tolist()[:-2] == [-np.inf] * 5  # only the last label and the blank behind it end a path
    assert float(found.end.max()) == pytest.approx(best, abs=1e-5)
    for labels in ([2, 2, 4], [1], []):
        paths = [path for path in torch.cartesian_prod(*[torch.arange(5)] * 6).tolist() if collapsed(path) == labels]
        total = sum(float(logs[range(6), path].double().sum().exp()) for path in paths)
        forward, count = ctc_forward(logs, labels)
        assert count == len(paths)
        assert float(forward[-2:, -1].exp().sum()) == pytest.approx(total, rel=1e-6)
        if labels:
            loss = F.ctc_loss(logs.double()[:, None], torch.tensor([labels]), [6], [len(labels)], reduction="sum")
            assert float(forward[-2:, -1].logsumexp(0)) == pytest.approx(-float(loss), rel=1e-9)


def collapsed(path: list[int]) -> list[int]:
    return [token for index, token in enumerate(path) if token != PAD and (index == 0 or path[index - 1] != token)]


def test_log_probabilities_are_those_of_the_model() -> None:
    subject = recurrent(LSTMConfig())
    expected = subject.model.logits(subject.batch).log_softmax(-1).gather(2, subject.batch.target[:, :, None])[0, :, 0]
    torch.testing.assert_close(
        target_log_probabilities(subject.model, subject.batch)[0], expected, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("config", "low", "high"),
    [
        (RNNConfig(recurrent_init="uniform"), 0.54, 0.60),  # the circular law: weights up to 1/√n have radius 1/√3
        (LSTMConfig(), 0.80, 1.0),  # σ(1) = 0.73 through the gate alone, and more through the candidate
    ],
)
def test_gradients_shrink_before_training_as_theory_says(config: CellConfig, low: float, high: float) -> None:
    torch.manual_seed(0)
    width, steps = 192, 20
    cell = build_cell(config, width, width)
    projected = cell.project(torch.randn(steps, 1, width) * width**-0.5).unbind(0)
    state, before = cell.start(1), []
    for given in projected:
        before.append(state)
        state = cell.step(given, state)
    with torch.no_grad():
        norms = state_gradients(step_jacobians(cell, projected, before), width)
    assert low < 10 ** decay_slope(norms[4:].tolist()) < high


def test_untrained_cells_behave_as_theory_says() -> None:
    """A rotation times σ₁ changes every gradient by σ₁ at every step, as long as tanh is linear."""
    for flow, radius in zip(by_recurrent_weight(width=16), RADII, strict=True):
        assert 10**flow.slope == pytest.approx(radius, rel=1e-3)
        assert flow.bound is not None
        torch.testing.assert_close(flow.state, flow.bound, rtol=2e-3, atol=0.0)
    factors = {flow.name: 10**flow.slope for flow in untrained_cells()}
    assert factors["plain"] < factors["GRU"] < factors["LSTM"] < factors["residual"]
    assert 0.5 < factors["plain"] < 0.62  # 1/√3


def test_neighbours_and_components() -> None:
    torch.manual_seed(2)
    table = torch.randn(30, 5)
    cosines, near = nearest(table, [7, 9], 3)
    for row, token in enumerate((7, 9)):
        every = F.cosine_similarity(table[token], table, dim=1)
        others = [other for other in every.argsort(descending=True).tolist() if other not in (0, 1, 2, 3, token)]
        assert near[row].tolist() == others[:3]
        torch.testing.assert_close(cosines[row], every[others[:3]])
    plane, explained = principal_components(table)
    centred = table - table.mean(0)
    singular = torch.linalg.svdvals(centred)
    assert explained == pytest.approx(float((singular[:2] ** 2).sum() / (singular**2).sum()), rel=1e-5)
    torch.testing.assert_close((centred @ plane).norm(dim=0), singular[:2])
