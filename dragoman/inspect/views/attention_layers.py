"""The attention of every layer and head, and beside it which inputs an output depends on.

The latter by input × gradient and integrated gradients over the embeddings.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from dragoman.base import DataError, DragomanError
from dragoman.classical import FittedModel
from dragoman.data import Tokens
from dragoman.data.tokenizers import SPECIALS
from dragoman.inference import training_texts
from dragoman.inference.align import memory_labels, record_attention
from dragoman.inspect.views.figures import INK, MAX_INCHES, chosen, draw_heat, heat, new_figure, panel_size, suptitle
from dragoman.inspect.views.subject import Axis, Subject, plain_axis
from dragoman.inspect.views.view import View
from dragoman.models import SeriesInput
from dragoman.models.encoders import Standardizer
from dragoman.models.kernels import immediate_gradients
from dragoman.models.layers import OneHot, TokenEmbedding
from dragoman.runs import Run

Method = Literal["input-x-gradient", "integrated-gradients"]
METHODS: tuple[Method, ...] = get_args(Method)
INPUTS = (TokenEmbedding, OneHot, SeriesInput, Standardizer)
AttentionKind = Literal["cross", "encoder", "decoder", "pooling"]
ABOUT: dict[AttentionKind, str] = {
    "cross": "output over input",
    "encoder": "input over input",
    "decoder": "output over earlier output",
    "pooling": "the whole input for one label",
}

ENDS = ("<eos>", "[SEP]")


@dataclass(frozen=True)
class AttentionLayer:
    """The weights of one attention module for one example."""

    name: str
    kind: AttentionKind
    weights: Tensor  # (H, T, S)
    rows: Axis
    columns: Axis

    @property
    def sums_to_one(self) -> bool:
        """Whether every row is a distribution; learned weights of steps may be negative."""
        sums = self.weights.sum(-1)
        return bool((self.weights >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)

    def entropy(self) -> Tensor:
        """The mean entropy over rows of each head (H,) in bits: 0 looks at one entry, log₂ S at all alike."""
        return -(self.weights * self.weights.clamp(min=1e-30).log2()).sum(-1).mean(-1)

    def max_entropy(self) -> float:
        """The entropy of equal weights over all columns."""
        return math.log2(max(1, self.weights.shape[2]))

    def summaries(self, rarest: Sequence[int] = ()) -> list[str]:
        """Where each head looks most, if that is over half of its weight: the token before, itself, the end, …

        `rarest` are the columns of the source's least frequent tokens, at which some heads point (Voita et al. 2019).
        """
        rows, columns = self.weights.shape[1:]
        if not self.sums_to_one or min(rows, columns) < 3:
            return [""] * len(self.weights)
        at, over = torch.arange(rows)[:, None], torch.arange(columns)
        ends = torch.tensor([token in ENDS for token in self.columns.tokens])
        places = {"first token": over == 0, "end": ends}
        if rarest and self.kind in ("cross", "encoder"):
            places["rarest token"] = torch.isin(over, torch.tensor(rarest))
        if self.kind != "cross" and rows == columns:
            places |= {"previous token": over == at - 1, "same position": over == at, "next token": over == at + 1}
        shares = {name: (self.weights * where).sum(-1).mean(-1) for name, where in places.items()}  # (H,)
        names = []
        for head in range(len(self.weights)):
            name = max(shares, key=lambda name: float(shares[name][head]))
            names.append(f"{name} {float(shares[name][head]):.0%}" if shares[name][head] > 0.5 else "")
        return names


@lru_cache(maxsize=4)
def token_counts(run: Run) -> Counter[int]:
    """How often each source token occurs in a sample of the training data; empty: the data cannot be read."""
    texts, reader = training_texts(run), run.tokenizers()[0]
    if texts is None or not reader.is_text:
        return Counter()
    return Counter(token for row in reader.encode_batch(texts.sources) for token in row)


def rarest_columns(subject: Subject) -> list[int]:
    """Where the least frequent token of the source stands; empty: several are as rare, or there is no source of tokens.

    As in Voita et al. 2019, section 5.3, tokens count by their frequency in the training data.
    """
    if subject.loaded is None or subject.source is None or not isinstance(subject.batch.source, Tokens):
        return []
    counts, row = token_counts(subject.loaded.run), subject.batch.source.data[0]
    if not counts or row.dim() != 1 or len(row) != len(subject.source):
        return []
    tokens = [token for token in row.tolist() if token >= len(SPECIALS)]
    least = min((counts[token] for token in tokens), default=0)
    rare = {token for token in tokens if counts[token] == least}
    return [place for place, token in enumerate(row.tolist()) if token in rare] if len(rare) == 1 else []


def merge_words(weights: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    """Attention over words: summed over the tokens of a column's word, averaged over those of a row's word.

    weights (…, T, S); `rows` and `columns` give the word of each token. Clark et al. 2019, section 4.1.
    """
    row_share = _membership(rows).to(weights)  # (T, words)
    return (row_share / row_share.sum(0).clamp(min=1)).T @ weights @ _membership(columns).to(weights)


def over_words(weights: Tensor, rows: Axis, columns: Axis) -> tuple[Tensor, tuple[str, ...], tuple[str, ...]]:
    """The weights (…, T, S) over words, with their labels; over tokens where a side is but one word and <eos>."""
    if min(len(rows.words), len(columns.words)) <= 2:
        return weights, rows.tokens, columns.tokens
    return merge_words(weights, rows.word_of, columns.word_of), rows.words, columns.words


def _membership(words: Sequence[int]) -> Tensor:
    index = torch.tensor(words, dtype=torch.long)
    return torch.nn.functional.one_hot(index, int(index.max()) + 1).float()


@torch.no_grad()
def attention_layers(subject: Subject) -> list[AttentionLayer]:
    """Every attention that scoring the target computes, in the order of computation; empty: the model has none."""
    modules = dict(subject.model.named_modules())
    if isinstance(subject.model, FittedModel):
        if not subject.model.shows_alignment:
            return []
        weights = subject.model.attention(subject.batch)[0]
        return [AttentionLayer("alignment", "cross", weights, *_axes(subject, "cross", weights))]
    with record_attention(subject.model) as recorded:
        subject.log_probabilities()
    inside = {id(module) for module in subject.encoder.modules()} if subject.encoder is not None else set()
    layers = []
    for name, parts in recorded.items():
        module = modules[name]
        if any(part.shape[0] != 1 for part in parts):
            continue  # two texts that are encoded apart, or words made of characters: not one row of tokens
        widest = max(part.shape[3] for part in parts)
        weights = torch.cat([torch.nn.functional.pad(part, (0, widest - part.shape[3])) for part in parts], 2)
        weights = weights[0].float().cpu()
        kind: AttentionKind = "decoder"
        if getattr(module, "is_cross_attention", False):
            kind = "cross"
        elif id(module) in inside:
            kind = "encoder"
        elif subject.source is not None and weights.shape[1] <= 8 and "pooling" in name:
            kind = "pooling"
        elif id(module) not in inside and subject.source is not None and not hasattr(subject.model, "decoder"):
            kind = "encoder"
        layers.append(AttentionLayer(name, kind, weights, *_axes(subject, kind, weights)))
    return layers


def _axes(subject: Subject, kind: AttentionKind, weights: Tensor) -> tuple[Axis, Axis]:
    """Rows and columns; where the memory has other entries than the source has tokens, numbers stand for them."""
    _, rows, columns = weights.shape
    source, encoded = subject.source or plain_axis([]), subject.encoded or plain_axis([])
    target = subject.target
    if kind == "decoder":
        return _fitting(target.shifted(), rows), _fitting(target.shifted(), columns)
    if kind == "encoder":
        return _fitting(encoded, rows), _fitting(encoded, columns)
    over = _fitting(source, columns)
    if kind == "pooling":
        return plain_axis([f"query {number}" for number in range(1, rows + 1)] if rows > 1 else ["pooled"]), over
    return _fitting(target, rows), over


def _fitting(axis: Axis, size: int) -> Axis:
    if len(axis) == size:
        return axis
    return plain_axis(memory_labels(axis.tokens or ("",), axis.text, size))


@dataclass(frozen=True)
class Attribution:
    """How much each input adds to the log-probability of each target (rows), to first order."""

    method: Method
    source: Tensor | None  # (T, S)
    prefix: Tensor | None  # (T, T) the target tokens read before; column 0 is <sos>


@contextmanager
def input_vectors(subject: Subject, scales: Tensor) -> Iterator[dict[str, list[Tensor]]]:
    """Make the input vectors of a forward pass leaves of its graph, each row times its scale: "source" and "prefix"."""
    leaves: dict[str, list[Tensor]] = {"source": [], "prefix": []}
    read: list[tuple[nn.Module, Any, Tensor]] = []  # module, its argument and the leaf
    depth = 0

    def enter(module: nn.Module, arguments: Any) -> None:
        nonlocal depth
        depth += 1

    def leave(module: nn.Module, arguments: Any, output: Any) -> None:
        nonlocal depth
        depth -= 1

    def replace(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        for before, argument, leaf in read:
            if before is module and argument is arguments[0]:
                return leaf  # the same tokens once more, as by the gate of a pointer-generator: one input, not two
        leaf = output.detach()
        if leaf.shape[0] == len(scales):
            leaf = leaf * scales.to(leaf).view(-1, *[1] * (leaf.dim() - 1))
        leaf = leaf.requires_grad_()
        is_source = depth > 0 or isinstance(module, SeriesInput | Standardizer)
        leaves["source" if is_source else "prefix"].append(leaf)
        read.append((module, arguments[0], leaf))
        return leaf

    modules = subject.model.modules()
    handles = [module.register_forward_hook(replace) for module in modules if isinstance(module, INPUTS)]
    if subject.encoder is not None:
        handles.append(subject.encoder.register_forward_pre_hook(enter))
        handles.append(subject.encoder.register_forward_hook(leave))
    try:
        yield leaves
    finally:
        for handle in handles:
            handle.remove()


def attribute(subject: Subject, method: Method = "input-x-gradient", steps: int = 16) -> Attribution:
    """Attribute the log-probability of every target to the inputs.

    Input × gradient is Σ_d x_d ∂log p/∂x_d for each token. Integrated gradients (Sundararajan et al. 2017) average the
    gradient along the straight line from zero vectors to the inputs, at `steps` midpoints: their sum is the difference
    of log p between the inputs and zeros.
    """
    if method == "input-x-gradient":
        scales = torch.ones(1)
    else:
        scales = (torch.arange(steps) + 0.5) / steps
    batch = subject.batch.map(lambda part: part.repeat(len(scales), *[1] * (part.dim() - 1)))
    with immediate_gradients(), torch.enable_grad(), input_vectors(subject, scales) as leaves:
        scores = subject.score(subject.model, batch)  # (steps, T)
        # Words made of characters, and two texts that are read apart, have no single row of vectors.
        usable = {
            side: own[0] for side, own in leaves.items() if len(own) == 1 and own[0].shape[0] == len(scales)
        }  # fmt: skip
        if not usable or not scores.requires_grad:
            raise DataError("no attribution to show: this model reads no single row of vectors")
        rows: dict[str, list[Tensor]] = {side: [] for side in usable}
        for total in scores.sum(0):
            gradients = torch.autograd.grad(total, list(usable.values()), retain_graph=True, allow_unused=True)
            for (side, leaf), gradient in zip(usable.items(), gradients, strict=True):
                vectors = leaf.detach() / scales.to(leaf).view(-1, *[1] * (leaf.dim() - 1))  # the inputs, in every row
                share = torch.zeros_like(leaf) if gradient is None else vectors * gradient
                rows[side].append(share.mean(0).flatten(1).sum(-1))
    sides = {side: torch.stack(own).float().cpu() for side, own in rows.items()}
    return Attribution(method, sides.get("source"), sides.get("prefix"))


def attention_view(subject: Subject) -> View | None:
    layers, axis = attention_layers(subject), subject.source
    attributions: dict[str, Any] = {}
    for method in METHODS:
        try:
            attribution = attribute(subject, method)
        except (DragomanError, NotImplementedError):
            break
        source = attribution.source
        if source is not None and axis is not None and source.shape[1] != len(axis):
            # An encoder that makes words of characters reads words; BERT also reads [CLS].
            others = (subject.encoded or axis, plain_axis(axis.words, axis.text, axis.unit))
            axis = next((other for other in others if len(other) == source.shape[1]), axis)
            source = source if source.shape[1] == len(axis) else None
        if source is not None or attribution.prefix is not None:
            attributions[method] = {"source": source, "prefix": attribution.prefix}
    if not layers and not attributions:
        return None
    earlier = "earlier text" if subject.source is None else "earlier output"
    rarest = rarest_columns(subject)
    return View(
        "attention",
        "Attention" if layers else "Attribution",
        _about_attention(subject, layers, bool(attributions)),
        {
            "layers": [
                {
                    **vars(layer),
                    "about": "text over earlier text" if earlier == "earlier text" else ABOUT[layer.kind],
                    "sums_to_one": layer.sums_to_one,
                    "summaries": layer.summaries(rarest),
                    "entropy": layer.entropy() if layer.sums_to_one else None,
                    "max_entropy": layer.max_entropy(),
                    "rows": layer.rows.as_dict(),
                    "columns": layer.columns.as_dict(),
                }
                for layer in layers
            ],
            "attribution": attributions,
            "measure": subject.measure,
            "earlier": earlier,
            "source": None if axis is None else axis.as_dict(),
            "target": subject.target.as_dict(),
            "prefix": subject.target.shifted().as_dict(),
        },
    )


def _about_attention(subject: Subject, layers: list[AttentionLayer], attributed: bool) -> str:
    moved = "value" if subject.writes_numbers else "probability"
    unit = subject.target.unit
    inputs, outputs = f"input {subject.input_unit}", f"output {unit}"
    if subject.source is None:
        inputs, outputs = f"earlier {unit}", unit
    estimate = f"estimates how much each {inputs} moved the {moved} of each {outputs}"
    if not layers:
        return f"Input × gradient {estimate}: blue raised it, red lowered it. This model has no attention."
    sums = "; a row sums to 1" if all(layer.sums_to_one for layer in layers) else ""
    first = f"Each row shows how one position divides its attention over the columns{sums}."
    if not attributed:
        return f"{first} Attention says where a model looks."
    return (
        f"{first} Attention says where a layer looks, not why the output came out so: input × gradient beside it "
        f"{estimate}."
    )


def draw_attention(view: View, layer: str | None) -> Any:
    crosses = [layer_data for layer_data in view.data["layers"] if layer_data["kind"] == "cross"]
    if not view.data["layers"]:
        return draw_attribution(view, layer)
    own = chosen(view.data["layers"], layer if layer or not crosses else crosses[-1]["name"])
    axes_of = (Axis("", *(own[side][key] for key in ("tokens", "words", "word_of"))) for side in ("rows", "columns"))
    weights, row_names, column_names = over_words(own["weights"], *axes_of)
    heads, shares = weights.shape[0], own["sums_to_one"]
    top = 1.0 if shares else float(weights.abs().max()) or 1.0
    shown = [("mean of all heads" if heads > 1 else "attention", weights.mean(0))]
    shown += [
        (f"head {head + 1}" + (f" ({float(own['entropy'][head]):.2f} bits)" if shares else ""), weights[head])
        for head in range(heads)
        if heads > 1
    ]
    across = min(3, len(shown))
    down = -(-len(shown) // across)
    width, height = panel_size(len(row_names), len(column_names), across)
    drawing = new_figure(width, min(MAX_INCHES, height * down))
    suptitle(drawing, f"{own['about']} ({own['name']})")
    image = None
    for number, (name, values) in enumerate(shown, 1):
        axes = drawing.add_subplot(down, across, number)
        image = draw_heat(axes, values, row_names, column_names, signed=not shares, top=top)
        earlier = view.data["earlier"]
        axes.set_xlabel(earlier if own["kind"] == "decoder" else "input", fontsize=9, color=INK)
        written = earlier.removeprefix("earlier ")
        axes.set_ylabel("input" if own["kind"] == "encoder" else written, fontsize=9, color=INK)
        axes.set_title(name, fontsize=9, color=INK, pad=4)
    drawing.colorbar(image, ax=drawing.axes, shrink=0.6, label="attention weight")
    return drawing


def draw_attribution(view: View, layer: str | None) -> Any:
    method, sides = next(iter(view.data["attribution"].items()))
    side = "source" if sides["source"] is not None else "prefix"
    axis = view.data["source"] if side == "source" else view.data["prefix"]
    values = sides[side]
    top, label = float(values.abs().max()) or 1.0, method.replace("-x-", " × ").replace("-", " ")
    outputs = view.data["target"]["tokens"][: len(values)]
    drawing, axes = heat(values, outputs, axis["tokens"], label, signed=True, top=top)
    axes.set(ylabel="output", xlabel="input" if side == "source" else "earlier output")
    return drawing
