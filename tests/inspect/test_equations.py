"""Formulas, code and numbers are one: printed equations computed by numpy give the states of a model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dragoman.inspect.views.equations import equations_view, plain_parts
from dragoman.inspect.views.layer_table import cell_sizes
from dragoman.inspect.views.parts_in_code import DisagreementError, Part
from dragoman.inspect.views.plain_code import Code, Library, as_text, formula
from dragoman.inspect.views.subject import Subject, plain_axis
from dragoman.inspect.views.table import VIEWS
from dragoman.models.classifier import Classifier, ClassifierConfig
from dragoman.models.config import TransformerConfig
from dragoman.models.convs2s import ConvS2SDecoderConfig, ConvS2SEncoderConfig
from dragoman.models.decoders.copy_transducer import CopyTransducerConfig
from dragoman.models.decoders.edit_transducer import EditTransducerConfig
from dragoman.models.decoders.hard_attention import HardAttentionDecoderConfig
from dragoman.models.decoders.pointer_generator import PointerGeneratorConfig
from dragoman.models.decoders.recurrent import (
    FixedContextDecoderConfig,
    LuongDecoderConfig,
    MaxoutReadout,
    RecurrentDecoderConfig,
)
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.layers.cells import (
    CellConfig,
    CoupledLSTMConfig,
    GRUConfig,
    LayerNormLSTMConfig,
    LSTMConfig,
    MogrifierLSTMConfig,
    PeepholeLSTMConfig,
    RNNConfig,
    build_cell,
)
from dragoman.models.layers.config import LinearConfig, RelativeConfig, RotaryConfig
from dragoman.models.layers.embeddings import build_embedding
from dragoman.models.layers.pooling import QueriesConfig, StepWeightsConfig, TimeAttentionConfig
from dragoman.models.layers.rnn_attention import (
    AdditiveConfig,
    CosineConfig,
    DotConfig,
    GeneralConfig,
    MonotonicConfig,
    MultiHeadConfig,
    PredictiveConfig,
    ScaledDotConfig,
)
from tests.conftest import TrainedFolder, call
from tests.inspect.test_inside import SOURCE, WORDS, batch_of, model_of, recurrent, subject_of
from tests.web.javascript import run_javascript

# Every kind of cell with its settings, and its last two formulas.
CELLS: list[tuple[CellConfig, str, str]] = [
    (RNNConfig(), "", "h_t = tanh(W x_t + U h_{t−1} + b)"),
    (RNNConfig(activation="relu"), "", "h_t = ReLU(W x_t + U h_{t−1} + b)"),
    (LSTMConfig(), "c_t = f_t ⊙ c_{t−1} + i_t ⊙ g_t", "h_t = o_t ⊙ tanh(c_t)"),
    (LSTMConfig(activation="relu", output_activation="sigmoid"), "", "h_t = o_t ⊙ σ(c_t)"),
    (PeepholeLSTMConfig(), "o_t = σ(W_o x_t + U_o h_{t−1} + b_o + p_o ⊙ c_t)", "h_t = o_t ⊙ tanh(c_t)"),
    (PeepholeLSTMConfig(peepholes="full"), "o_t = σ(W_o x_t + U_o h_{t−1} + b_o + P_o c_t)", "h_t = o_t ⊙ tanh(c_t)"),
    (CoupledLSTMConfig(), "c_t = f_t ⊙ c_{t−1} + (1 − f_t) ⊙ g_t", "h_t = o_t ⊙ tanh(c_t)"),
    (LayerNormLSTMConfig(), "c_t = f_t ⊙ c_{t−1} + i_t ⊙ g_t", "h_t = o_t ⊙ tanh(LN_{γ_c,β_c}(c_t))"),
    (MogrifierLSTMConfig(), "c_t = f_t ⊙ c_{t−1} + i_t ⊙ g_t", "h_t = o_t ⊙ tanh(c_t)"),
    (MogrifierLSTMConfig(rounds=2, rank=3), "c_t = f_t ⊙ c_{t−1} + i_t ⊙ g_t", "h_t = o_t ⊙ tanh(c_t)"),
    (GRUConfig(), "n_t = tanh(W_n x_t + r_t ⊙ (U_n h_{t−1}) + b_n)", "h_t = z_t ⊙ h_{t−1} + (1 − z_t) ⊙ n_t"),
    (
        GRUConfig(reset="before", activation="sigmoid"),
        "n_t = σ(W_n x_t + U_n (r_t ⊙ h_{t−1}) + b_n)",
        "h_t = z_t ⊙ h_{t−1} + (1 − z_t) ⊙ n_t",
    ),
]  # fmt: skip


def normed(x: Any, scale: Any, shift: Any, epsilon: float) -> Any:
    variance = ((x - x.mean(-1, keepdims=True)) ** 2).mean(-1, keepdims=True)
    out = (x - x.mean(-1, keepdims=True)) / np.sqrt(variance + epsilon) * scale
    return out if shift is None else out + shift


def softmax(x: Any, axis: int) -> Any:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


# The functions of formulas, written down once more without torch.
NUMPY = Library(
    SimpleNamespace(
        sigmoid=lambda x: 1 / (1 + np.exp(-x)), tanh=np.tanh, relu=lambda x: np.maximum(x, 0), exp=np.exp,
        cat=np.concatenate, chunk=np.split, softmax=softmax, where=np.where, stack=np.stack, inf=np.inf, amax=np.max,
        sum=lambda x, axis, keepdim=False: x.sum(axis, keepdims=keepdim), cumprod=np.cumprod, reshape=np.reshape,
        split=lambda x, sizes, axis: np.split(x, np.cumsum(sizes)[:-1], axis),
        unbind=lambda x, axis: np.moveaxis(x, axis, 0), unflatten=lambda x, axis, shape: x.reshape(shape),
    ),
    SimpleNamespace(
        layer_norm=lambda x, shape, scale, shift=0.0, epsilon=1e-5: normed(x, scale, shift, epsilon),
        normalize=lambda x, dim: x / np.linalg.norm(x, axis=dim, keepdims=True),
        relu=lambda x: np.maximum(x, 0), silu=lambda x: x / (1 + np.exp(-x)),
        elu=lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1),
        rms_norm=lambda x, shape, scale, epsilon: x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale,
    ),
    lambda value: value.detach().double().numpy() if isinstance(value, Tensor) and value.is_floating_point() else (
        value.numpy() if isinstance(value, Tensor) else value
    ),
)  # fmt: skip


@pytest.mark.parametrize(("config", "before_last", "last"), CELLS, ids=lambda value: getattr(value, "kind", None))
def test_the_printed_equations_of_a_cell_are_what_it_computes(config: CellConfig, before_last: str, last: str) -> None:
    torch.manual_seed(5)
    cell = build_cell(config, 5, 4).double()
    for parameter in cell.parameters():
        torch.nn.init.normal_(parameter)
    code = Code(cell.equations(), cell.symbols())
    assert code.text[-1] == last
    assert not before_last or before_last in code.text
    x, state = torch.randn(1, 5).double(), tuple(torch.randn(1, 4).double() for _ in range(cell.num_states))
    found = code.run({"x": x[0], **dict(zip(("h_prev", "c_prev"), (part[0] for part in state), strict=False))}, NUMPY)
    with torch.no_grad():
        after = cell.step(cell.project(x), state)
    for name, part in zip("hc", after, strict=False):
        assert np.abs(found[name] - part[0].numpy()).max() < 1e-12
    if len(cell.letters) > 1:  # the gates have the names that `gates` gives them
        for letter, gate in zip(cell.letters, cell.gates(cell.project(x), state).values(), strict=True):
            assert np.abs(found[letter] - gate[0].detach().numpy()).max() < 1e-12


def test_every_kind_of_cell_has_equations_and_a_diagram_of_its_own(tmp_path: Path) -> None:
    """Seven kinds were drawn as three: a peephole LSTM as a plain one, a reset gate before the product as after."""
    cells = torch.nn.ModuleDict({str(place): build_cell(config, 5, 4) for place, (config, *_) in enumerate(CELLS)})
    found = cell_sizes(cells)
    for (config, _, last), one in zip(CELLS, found, strict=True):
        assert (one["kind"], one["inputs"], one["width"]) == (config.kind, 5, 4)
        assert one["text"][-1] == last
        assert [as_text(tree) for tree in one["formulas"]] == one["text"]
    drawn = run_javascript("diagrams", "async (cells) => cells.map(module_diagrams.cellParts)", found, tmp_path)
    assert len({json.dumps(one) for one in drawn}) == len(CELLS)  # each kind and each of these settings
    signs = {"tanh": "tanh", "relu": "ReLU", "sigmoid": "σ"}
    for (config, *_), one in zip(CELLS, drawn, strict=True):
        names = [text for _, _, text, *_ in one["nodes"]]
        activation = signs[getattr(config, "activation", "tanh")]
        assert {f"g: {activation}", f"n: {activation}", activation} & set(names)
        assert len(one.get("dashed", ())) == (3 if config.kind == "peephole-lstm" else 0)
        boxes = [(x - half(text), y - 15, x + half(text), y + 15) for x, y, text, *_ in one["nodes"]]
        for number, (left, top, right, bottom) in enumerate(boxes):
            assert left >= 0, one["nodes"][number]
            assert right <= 480, one["nodes"][number]
            assert 0 <= top < bottom <= one["height"], one["nodes"][number]
            for other in boxes[:number]:
                apart = left >= other[2] or right <= other[0] or top >= other[3] - 4 or bottom <= other[1] + 4
                assert apart, (one["nodes"][number], other)
        for points in one["arrows"]:  # ends at a node, or leaves the picture
            x, y = points[-1]
            at = any(left - 3 <= x <= right + 3 and top - 3 <= y <= bottom + 3 for left, top, right, bottom in boxes)
            assert at or x == 470, (config.kind, points)


def half(text: str) -> float:
    """Half the width of a node, as the module draws it."""
    return max(15, len(text) * 4.5 + 6)


BIDIRECTIONAL = RecurrentEncoderConfig(cell=GRUConfig(), embedding=6, width=8, dropout=0.0)
BAHDANAU = RecurrentDecoderConfig(
    cell=GRUConfig(), embedding=6, width=8, attention=AdditiveConfig(width=7), dropout=0.0
)
LUONG = LuongDecoderConfig(embedding=6, width=8, dropout=0.0)
TRANSFORMER = TransformerConfig(layers=1, width=8, heads=2, feedforward=12, dropout=0.0)
DECODERS: dict[str, Any] = {
    "additive": BAHDANAU,
    "monotonic": replace(
        BAHDANAU, attention=AdditiveConfig(width=7, keys=5, values=6, gate=True, window=MonotonicConfig(radius=1))
    ),
    "maxout": replace(BAHDANAU, layers=3, residual_from=2, context_to="all", readout=MaxoutReadout(width=5)),
    "multi-head": replace(BAHDANAU, attention=MultiHeadConfig(heads=2, width=6)),
    "general": LUONG,
    "dot": replace(LUONG, attention=DotConfig(), layers=2),
    "cosine": replace(LUONG, attention=CosineConfig(), input_feeding=False, readout="concatenate"),
    "predictive": replace(LUONG, attention=ScaledDotConfig(window=PredictiveConfig(radius=2))),
    "general-predictive": replace(BAHDANAU, attention=GeneralConfig(window=PredictiveConfig(radius=1)), width=9),
    "fixed-context": FixedContextDecoderConfig(context="every-step", embedding=6, width=8, dropout=0.0),
    "pointer-generator": PointerGeneratorConfig(pointer=5, inner=BAHDANAU),
    "hard": HardAttentionDecoderConfig(embedding=6, width=8, jump=2, dropout=0.0),
    "hard-order-0": HardAttentionDecoderConfig(order=0, context=True, embedding=6, width=8, dropout=0.0),
    "hard-anywhere": HardAttentionDecoderConfig(order=0, monotonic=False, embedding=6, width=8, dropout=0.0),
    "edit-transducer": EditTransducerConfig(embedding=6, width=8, dropout=0.0),
    "copy-transducer": CopyTransducerConfig(embedding=6, width=8, dropout=0.0),
    "transformer": TRANSFORMER,
    "post-norm": replace(TRANSFORMER, norm="post", bias=False, score="cosine", positions=RelativeConfig()),
    "rotary": replace(TRANSFORMER, positions=RotaryConfig(), score="dot", key_heads=1, gated=True, activation="silu"),
    "linear": replace(TRANSFORMER, attention=LinearConfig(), norm_kind="rms"),
}


def agree(parts: list[Part]) -> None:
    """With the run, by torch and by numpy."""
    for part in parts:
        assert part.difference() < 1e-5, part.name
        found = part.computed(NUMPY)
        for value, state in part.state.items():
            np.testing.assert_allclose(found[value], state.detach().numpy(), atol=1e-5, rtol=1e-5, err_msg=part.name)


LATENT = ("hard", "hard-order-0", "hard-anywhere", "edit-transducer", "copy-transducer")


@pytest.mark.parametrize("name", DECODERS)
def test_the_plain_code_of_every_part_is_what_the_run_computes(name: str) -> None:
    decoder = DECODERS[name]
    encoder = decoder if isinstance(decoder, TransformerConfig) else BIDIRECTIONAL
    parts = plain_parts(subject_of(model_of(encoder, decoder)))
    own = [part.name for part in parts if part.name.startswith("decoder")]
    assert own[-1] == ("decoder.blocks.0" if encoder is decoder else "decoder")
    attends = (name != "fixed-context" and name not in LATENT) or name in ("hard-order-0", "copy-transducer")
    assert any("attention" in one for one in own) == attends
    agree(parts)
    if name not in ("pointer-generator", "transformer", "post-norm", "rotary", "linear"):
        assert "p" in parts[-1].state
        np.testing.assert_allclose(parts[-1].values["p"].sum(-1), 1.0)


@pytest.mark.parametrize("kernel", [1, 2, 3])
def test_blocks_of_convs2s_are_what_the_run_computes(kernel: int) -> None:
    sizes: dict[str, Any] = {"layers": 2, "embedding": 6, "widths": (6, 8), "kernel": kernel, "dropout": 0.0}
    parts = plain_parts(subject_of(model_of(ConvS2SEncoderConfig(**sizes), ConvS2SDecoderConfig(**sizes))))
    names = [f"{side}.layers.{number}" for side in ("encoder", "decoder") for number in (0, 1)]
    assert {*names} <= {part.name for part in parts}
    agree(parts)
    by_name = {part.name: part.code.text for part in parts}
    assert by_name["encoder.layers.0"] == [
        "U = [Z; X; Z_r]", "W = s ⊙ V/‖V‖", "[A, B] = U Wᵀ + b", "G = A ⊙ σ(B)", "O = (G + X) ⊙ √0.5"
    ]  # fmt: skip
    assert by_name["decoder.layers.1"][-1] == "O = (R + X W_xᵀ + b_x) ⊙ √0.5"


@pytest.mark.parametrize(
    ("pooling", "title"),
    [(TimeAttentionConfig(), "attention over time"), (TimeAttentionConfig(steps=20), "attention over time"),
     (StepWeightsConfig(), "a weight for each step"), (QueriesConfig(), "learned queries"),
     (QueriesConfig(count=3), "learned queries")],
)  # fmt: skip
def test_poolings_are_what_the_run_computes(pooling: Any, title: str) -> None:
    torch.manual_seed(2)
    config = ClassifierConfig(pooling=pooling, encoder=BIDIRECTIONAL)
    model = Classifier(config, build_embedding(WORDS, 6, 0, None, sides=("source",)), 3, keep_from=0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    axis = plain_axis([*map(str, SOURCE), "<eos>"])
    batch = replace(batch_of([SOURCE], [SOURCE]), target=torch.tensor([[1]]))
    parts = plain_parts(Subject(None, model, batch, axis, plain_axis(["label"]), given=True))
    assert parts[-1].title == f"Pooling by {title}"
    agree(parts)


def test_the_formulas_of_attention_are_those_of_the_papers() -> None:
    def text(name: str, part: str) -> list[str]:
        parts = plain_parts(subject_of(model_of(BIDIRECTIONAL, DECODERS[name])))
        return next(one.code.text for one in parts if one.name == part)

    assert text("additive", "decoder.attention") == [
        "e_t = tanh(W s_t + H Uᵀ + b) v", "a_t = softmax(e_t)", "c_t = a_t H"
    ]  # fmt: skip
    assert text("additive", "decoder") == [
        "c_t = attention(s_{t−1})", "s_t = cell([y_t; c_t], s_{t−1})", "r_t = tanh(W_r [s_t; c_t; y_t] + b_r)",
        "p_t = softmax(W_o r_t)",
    ]  # fmt: skip
    assert text("general", "decoder.attention")[0] == "e_t = H Wᵀ s_t"
    assert text("predictive", "decoder.attention")[1] == "μ_t = n σ(v_p tanh(W_p s_t))"
    assert as_text(formula("E = Q @ K.mT / d ** 0.5", {"d": 4})) == "E = (Q Kᵀ)/√d"


def test_a_page_with_wrong_code_is_an_error() -> None:
    subject = recurrent(GRUConfig())
    cell = subject.model.encoder.layers[0].forward_cell
    cell.before = True  # the equations of the other GRU
    before = type(cell).gates

    def after(self: Any, projected: Tensor, state: Any) -> dict[str, Tensor]:
        own, self.before = self.before, False
        try:
            return before(self, projected, state)
        finally:
            self.before = own

    cell.gates = after.__get__(cell)
    with pytest.raises(DisagreementError, match=r"forward_cell: the plain code of h and the run differ by"):
        equations_view(subject)


def test_a_long_page_has_one_part_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.inspect.views.equations.MAX_NUMBERS", 3_000)
    deep = replace(TRANSFORMER, layers=3)
    view = equations_view(subject_of(model_of(deep, deep)))
    assert view is not None
    names = [part["name"] for part in view.data["parts"]]
    assert "encoder.blocks.0.attention" in names
    assert "decoder.blocks.0" in names
    assert view.data["left_out"] == 15 - len(names) > 0


def test_equations_from_the_command_line(inside: TrainedFolder) -> None:
    result = call("inspect", inside.run, "abc", "--view", "equations", "-o", "equations.json")
    assert result.code == 0, result.err
    views = json.loads(Path("equations.json").read_text(encoding="utf-8"))["views"]
    (view,) = [one for one in views if one["kind"] == "equations"]
    for part in view["data"]["parts"]:
        assert part["difference"] < 1e-5
        assert len(part["code"]) == len(part["text"]) == len(part["formulas"]) == len(part["names"])
        assert {name for names in part["names"] for name in names} <= {value["name"] for value in part["values"]}
    assert call("inspect", inside.run, "abc", "--view", "equations", "-o", "equations.svg").code == 0
    assert "plain PyTorch" in Path("equations.svg").read_text(encoding="utf-8")
    assert VIEWS["equations"].draws_from == ("layers",)
