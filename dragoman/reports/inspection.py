"""Everything that can be shown about one example, as named views with data for pages, JSON and plots."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.analysis.attention_layers import ABOUT, attention_layers
from dragoman.analysis.attribution import METHODS, attribute
from dragoman.analysis.beam_tree import beam_tree, next_tokens
from dragoman.analysis.gradients import flow_axis, gradient_flow
from dragoman.analysis.layer_table import layer_table, parameter_count
from dragoman.analysis.position_pictures import position_pictures
from dragoman.analysis.states import cell_traces
from dragoman.analysis.subject import Loaded, Subject, open_subject, plain_axis
from dragoman.analysis.tables import PathTable, ctc_table, viterbi_table
from dragoman.analysis.what_if import what_if
from dragoman.classical.hmm_tagger import HMMTagger
from dragoman.classical.model import FittedModel
from dragoman.data.batch import Pictures
from dragoman.errors import DataError, DragomanError
from dragoman.inference.completer import Completer
from dragoman.inference.predictor import Predictor
from dragoman.inference.unseen import told_elsewhere
from dragoman.models.classifier import Classifier, Regressor
from dragoman.models.contracts import CTCEmissions, decodes
from dragoman.models.tagger import Tagger
from dragoman.scoring.edit import align_edits

UNITS = 64  # recurrent units in a page: those that vary most


@dataclass(frozen=True)
class View:
    """One view of a page."""

    kind: str  # the JavaScript module that draws it
    title: str
    about: str  # two sentences beside the figure
    data: Any

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Inspection:
    """One example, its views, and what could not be shown."""

    title: str
    run: dict[str, Any]
    subject: Subject
    views: tuple[View, ...]
    notes: tuple[str, ...] = field(default=())

    def page_data(self) -> dict[str, Any]:
        """The data of a page; tensors are base64 of 32-bit floats."""
        return packed(self._data())

    def as_dict(self) -> dict[str, Any]:
        """The same with tensors as nested lists, for JSON files."""
        return listed(self._data())

    def view(self, kind: str) -> View:
        for view in self.views:
            if view.kind == kind:
                return view
        raise DataError(f"this run has no view {kind!r}; it has {', '.join(view.kind for view in self.views)}")

    def _data(self) -> dict[str, Any]:
        source, target = self.subject.source, self.subject.target
        return {
            "format": 1,
            "title": self.title,
            "run": self.run,
            "source": None if source is None else {"text": self.subject.text or source.text, **source.as_dict()},
            "target": {"text": target.text, "given": self.subject.given, **target.as_dict()},
            "views": [view.as_dict() for view in self.views],
            "notes": list(self.notes),
        }


def packed(data: dict[str, Any]) -> dict[str, Any]:
    """Nested values with every tensor as {shape, f32: base64}, which a browser reads at once."""

    def pack(tensor: Tensor) -> dict[str, Any]:
        content = tensor.float().contiguous().numpy().astype("<f4").tobytes()
        return {"shape": list(tensor.shape), "f32": base64.b64encode(content).decode("ascii")}

    return {key: _mapped(value, pack) for key, value in data.items()}


def listed(data: dict[str, Any]) -> dict[str, Any]:
    """Nested values with every tensor as nested lists."""

    def numbers(tensor: Tensor) -> Any:
        return np.asarray(tensor.float()).astype(float).round(9).tolist()

    return {key: _mapped(value, numbers) for key, value in data.items()}


def _mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return change(value.detach().cpu())
    if isinstance(value, dict):
        return {key: _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(inner, change) for inner in value]
    return value


def inspect(
    loaded: Loaded, text: str, target: str | None = None, *, tag: str | None = None, beam: int | None = None
) -> Inspection:
    """Compute every view that this run has for a text and a target, by default its own prediction."""
    model = loaded.model
    if isinstance(model, FittedModel) and model.likelihood == "none":
        kind = loaded.run.config.model.kind
        raise DataError(f'nothing to inspect: model.kind = "{kind}" has neither layers nor probabilities')
    subject = open_subject(loaded, text, target, tag)
    views: list[View] = []
    notes: list[str] = []
    shown = subject.source or subject.target
    if subject.text not in (shown.text, shown.text.partition("> ")[2]) and len(subject.text) > len(shown.text):
        notes.append(f"the text is long: the views show its first {len(shown):,} tokens")
    if subject.source is not None and not isinstance(loaded, Completer):
        unknown = list(dict.fromkeys(loaded.unseen(subject.source.text)))[:10]
        notes += [f"training did not have {', '.join(map(repr, unknown))}: read as <unk>"] if unknown else []
    for make in VIEWS:
        try:
            views += make(subject, beam)
        except DataError as error:
            notes.append(str(error))
    overview = _overview(subject, views)
    return Inspection(loaded.run.folder.resolve().name, _run(subject), subject, (overview, *views), tuple(notes))


def _run(subject: Subject) -> dict[str, Any]:
    run = subject.loaded.run
    return {
        "name": run.folder.resolve().name,
        "task": run.task.name,
        "model": run.config.model.kind,
        "parts": [
            {"part": part, "kind": config.kind}
            for part in ("encoder", "decoder", "stack", "pooling", "head")
            if (config := getattr(run.config.model, part, None)) is not None and hasattr(config, "kind")
        ],
        "parameters": parameter_count(subject.model),
    }


@torch.no_grad()
def _overview(subject: Subject, views: list[View]) -> View:
    """Probabilities of the target's tokens, and what opens into which view."""
    scores = subject.log_probabilities().float().cpu()
    if isinstance(subject.model, Regressor):
        scores = torch.zeros_like(scores)  # a number has no probability
    return View(
        "overview",
        "Overview",
        f"The input is above, the output below{_pick(subject, views)}. "
        "Every box of the model opens the view that shows its sums.",
        {
            "log_probabilities": scores,
            "views": [view.kind for view in views],
            "attention": any(view.title == "Attention" for view in views),
            "softmax": _softmax(subject),
        },
    )


def _pick(subject: Subject, views: list[View]) -> str:
    unit = subject.target.unit
    if len(subject.target) < 2:
        return f"; lines show which input {subject.input_unit}s it depends on" if subject.source else ""
    if not any(view.kind == "attention" for view in views):
        return f"; pick an output {unit} to see its probability"
    return f"; pick an output {unit} to see which input {subject.input_unit}s it used"


def _softmax(subject: Subject) -> str:
    labels = getattr(subject.loaded, "labels", ())
    if isinstance(subject.model, Regressor):
        return "one number"
    if isinstance(subject.model, HMMTagger):
        return f"posterior over {len(labels)} tags, for each word"
    if isinstance(subject.model, Tagger):
        return f"softmax over {len(labels)} tags, for each word"
    return f"softmax over {len(labels)} labels" if labels else "softmax over the vocabulary"


def _attention(subject: Subject, beam: int | None) -> Iterator[View]:
    source_unit, target_unit = subject.input_unit, subject.target.unit
    layers, axis = attention_layers(subject), subject.source
    attributions: dict[str, Any] = {}
    for method in METHODS:
        try:
            attribution = attribute(subject, method)
        except (DataError, NotImplementedError):
            break
        source = attribution.source
        if source is not None and axis is not None and source.shape[1] != len(axis):
            axis = plain_axis(axis.words, axis.text, axis.unit)  # an encoder that makes words of characters reads words
            source = source if source.shape[1] == len(axis) else None
        if source is not None or attribution.prefix is not None:
            attributions[method] = {"source": source, "prefix": attribution.prefix}
    if not layers and not attributions:
        return
    yield View(
        "attention",
        "Attention" if layers else "Attribution",
        "Each row shows how one position divides its attention over the columns; a row sums to 1. Attention says where "
        f"a layer looks, not why the output came out so: input × gradient beside it estimates how much each input "
        f"{source_unit} moved the probability of each output {target_unit}."
        if layers
        else f"Input × gradient estimates how much each input {source_unit} moved the probability of each output "
        f"{target_unit}: blue raised it, red lowered it. This model has no attention.",
        {
            "layers": [
                {
                    **vars(layer),
                    "about": ABOUT[layer.kind],
                    "entropy": layer.entropy(),
                    "max_entropy": layer.max_entropy(),
                    "rows": layer.rows.as_dict(),
                    "columns": layer.columns.as_dict(),
                }
                for layer in layers
            ],
            "attribution": attributions,
            "source": None if axis is None else axis.as_dict(),
            "target": subject.target.as_dict(),
            "prefix": subject.target.shifted().as_dict(),
        },
    )


def _beam(subject: Subject, beam: int | None) -> Iterator[View]:
    loaded = subject.loaded
    if not isinstance(loaded, Predictor) or not hasattr(subject.model, "step") or subject.source is None:
        return
    if decodes(subject.model) == "parallel" and getattr(subject.model, "attention_decoder", None) is None:
        return
    try:
        tree = beam_tree(loaded, subject.source.text, beam)
    except DragomanError:  # a search without steps
        return
    yield View(
        "beam",
        "Beam search",
        "Beam search keeps the most probable beginnings of an output and continues each of them. Solid branches were "
        "kept, grey ones pruned with the reason; pick a grey one to see how the output would have gone on from there.",
        tree,
    )


def _states(subject: Subject, beam: int | None) -> Iterator[View]:
    traces = cell_traces(subject)
    if not traces:
        return
    cross = next((layer for layer in attention_layers(subject) if layer.kind == "cross"), None)
    yield View(
        "states",
        "Gates and states",
        "Each row is a unit of a recurrent layer, each column a step through the text. A gate near 1 lets everything "
        "through and a gate near 0 nothing: a forget or update gate near 1 means that the unit keeps its memory.",
        {
            "cells": [
                {
                    "name": trace.name,
                    "kind": trace.kind,
                    "backward": trace.backward,
                    "axis": trace.axis.as_dict(),
                    "units": (units := trace.varying_units(UNITS)),
                    "width": trace.start.shape[0],
                    "values": {name: value[:, units].T for name, value in trace.values.items()},  # (units, T)
                    "start": trace.start[units],
                    "implicit": trace.implicit,
                }
                for trace in traces
            ],
            "cross": None if cross is None else {"weights": cross.weights.mean(0), "columns": cross.columns.as_dict()},
        },
    )


def _gradients(subject: Subject, beam: int | None) -> Iterator[View]:
    flows = gradient_flow(subject)
    if not flows:
        return
    yield View(
        "gradients",
        "Gradient flow",
        "The curve shows how strongly the last state depends on a state some steps earlier; a steep fall is a "
        "vanishing gradient. A plain recurrent network stays below its spectral bound (dashed), while the forget gates "
        "of an LSTM keep a path open.",
        {
            "flows": [
                {**vars(flow), "by_distance": flow.by_distance(), "axis": flow_axis(subject, flow).as_dict()}
                for flow in flows
            ],
            "target": subject.target.as_dict(),
        },
    )


def _next(subject: Subject, beam: int | None) -> Iterator[View]:
    table = next_tokens(subject)
    if table is None:
        return
    loaded = subject.loaded
    tokenizer = loaded.tokenizer if isinstance(loaded, Completer) else loaded.target_tokenizer
    if isinstance(loaded, Predictor) and subject.source is not None:
        tokenizer = loaded.codec.target_of(subject.source.text)
    yield View(
        "next",
        "Next token",
        "At every step the model gives each token of its vocabulary a probability. Temperature divides the logits "
        "before the softmax, top-k and top-p cut off the improbable tail; greedy search takes the longest bar.",
        {
            **vars(table),
            "pieces": [tokenizer.pieces(row) for row in table.tokens.tolist()],
            "tokens": table.tokens.tolist(),
            "chosen": table.chosen.tolist(),
            "target": subject.target.as_dict(),
        },
    )


def _what_if(subject: Subject, beam: int | None) -> Iterator[View]:
    changes = what_if(subject)
    if not changes:
        return
    with torch.no_grad():
        before = float(subject.log_probabilities().sum())
    changed = {change.kind for change in changes}
    texts = {
        "head": "one head is masked",
        "gate": "one gate is held open or shut",
        "word": f"one input {subject.input_unit} is left out",
    }
    kinds = [text for kind, text in texts.items() if kind in changed] or ["another token is forced"]
    forced = "; a forced token shows the output that would have followed it" if "token" in changed else ""
    yield View(
        "whatif",
        "What if",
        f"Each bar is the change of the output's log-probability when {' or '.join(kinds)}. A long bar to the left "
        f"marks a part that this output needs{forced}.",
        {
            "before": before,
            "changes": [asdict(change) for change in changes],
            "target": subject.target.as_dict(),
            "unit": subject.input_unit,
        },
    )


def _surprise(subject: Subject, beam: int | None) -> Iterator[View]:
    if not isinstance(subject.loaded, Completer):
        return
    with torch.no_grad():
        bits = -subject.log_probabilities().float().cpu() / np.log(2)
    yield View(
        "surprise",
        "Surprise",
        "The surprise of a token is −log₂ of its probability: how many bits the model needs for it. Tokens that the "
        "model expects cost almost nothing, names and turns of the text cost most.",
        {"bits": bits, "target": subject.target.as_dict()},
    )


@torch.no_grad()
def _labels(subject: Subject, beam: int | None) -> Iterator[View]:
    model, loaded = subject.model, subject.loaded
    if not isinstance(model, Tagger | Classifier) or isinstance(loaded, Predictor | Completer):
        return
    predicted = model.predict(subject.batch)
    assert predicted.probabilities is not None
    words = subject.target.tokens if isinstance(model, Tagger) else ("label",)
    chain = model.chain if isinstance(model, Tagger) else None
    data: dict[str, Any] = {
        "labels": list(loaded.labels),
        "rows": list(words),
        "probabilities": predicted.probabilities[0].float(),
        "values": predicted.values[0].tolist(),
        "emissions": model.outputs(subject.batch)[0][0] if isinstance(model, Tagger) else None,
        "transitions": None if chain is None else chain.transitions,
    }
    yield View(
        "labels",
        "Labels",
        "The bars are the probabilities of the labels. For tags, emissions score each word alone and transitions score "
        "which tag follows which; the chosen sequence has the best sum.",
        data,
    )


@torch.no_grad()
def _tables(subject: Subject, beam: int | None) -> Iterator[View]:
    tables: list[dict[str, Any]] = []
    model, loaded = subject.model, subject.loaded
    if isinstance(model, Tagger) and model.chain is not None and not isinstance(loaded, Predictor | Completer):
        path = viterbi_table(model.chain, model.outputs(subject.batch)[0][0])
        words = [label.rpartition("/")[0] for label in subject.target.tokens]
        tables.append(_table("Viterbi", "best score of a path that ends in this tag", path, list(loaded.labels), words))
    if isinstance(loaded, Predictor) and (logs := _ctc_log_probabilities(subject)) is not None:
        ids, positions = subject.batch.target[0, :-1].tolist(), len(logs)
        rows = ["blank"]
        for piece in loaded.target_tokenizer.pieces(ids):
            rows += [piece, "blank"]
        if positions >= len(ids) and len(rows) * positions <= 200_000:
            columns, path = [str(number) for number in range(1, positions + 1)], ctc_table(logs.cpu(), ids)
            tables.append(_table("CTC lattice", "best log-probability up to here", path, rows, columns))
    if subject.given and isinstance(loaded, Predictor) and subject.source is not None:
        output = next(loaded.stream([subject.source.text], on_unknown=told_elsewhere)).text
        axis = subject.target
        by_word = len(axis.text.split()) > 1
        left, right = (text.split() if by_word else list(text) for text in (axis.text, output))
        edits = align_edits(left, right)
        about = f"cost of turning the target (down) into the output (across): {edits.cost}"
        path = PathTable(torch.tensor(edits.table), None, list(edits.path))
        tables.append(_table("Edit distance", about, path, ["", *left], ["", *right]))
    if tables:
        yield View(
            "tables",
            "Tables",
            "Dynamic programming fills each cell from its neighbours and remembers which one it came from. Following "
            "these back-pointers from the last cell gives the best path, outlined here.",
            {"tables": tables},
        )


def _table(name: str, about: str, table: PathTable, rows: list[str], columns: list[str]) -> dict[str, Any]:
    return {
        "name": name, "about": about, "scores": table.scores.float(), "path": table.path, "back": table.back,
        "rows": rows, "columns": columns,
    }  # fmt: skip


def _ctc_log_probabilities(subject: Subject) -> Tensor | None:
    """The log-probabilities of every position (P, V); None: the model has no CTC."""
    if decodes(subject.model) != "parallel":
        return None
    emitted = subject.model.emissions(subject.batch, subject.batch.source.mask.sum(1), 1)
    if not isinstance(emitted, CTCEmissions):
        return None
    return emitted.log_probabilities[0, : int(emitted.lengths[0])].float()


@torch.no_grad()
def _media(subject: Subject, beam: int | None) -> Iterator[View]:
    """Where in the recording or picture a run looks."""
    loaded = subject.loaded
    if not isinstance(loaded, Predictor) or not loaded.reads_files:
        return
    data: dict[str, Any] = {
        "features": subject.batch.source.data[0].float(),
        "picture": isinstance(subject.batch.source, Pictures),
        "target": subject.target.as_dict(),
        "emissions": None,
    }
    if (logs := _ctc_log_probabilities(subject)) is not None:
        probabilities, tokens = logs.exp().topk(3, 1)
        pieces = [
            ["blank" if token == 0 else loaded.target_tokenizer.pieces([token])[0] for token in row]
            for row in tokens.tolist()
        ]
        data["emissions"] = {"probabilities": probabilities, "pieces": pieces}
    yield View(
        "media",
        "Input",
        "The picture shows what the model reads: pixels, or the energy of a recording by frequency and time. Below it, "
        "the output tokens stand where the model found them.",
        data,
    )


def _positions(subject: Subject, beam: int | None) -> Iterator[View]:
    pictures = position_pictures(subject.model)
    if not pictures:
        return
    yield View(
        "positions",
        "Positions",
        "Position vectors tell equal words at different places apart; each row is a position, each column a dimension. "
        "The curve is the dot product of one position with all others: it falls with the distance.",
        {"pictures": pictures},
    )


def _layers(subject: Subject, beam: int | None) -> Iterator[View]:
    rows = layer_table(subject.model, subject.batch)
    yield View(
        "layers",
        "Layers",
        "Every part of the model with the shape of its output for this example and its number of parameters. Shapes "
        "are batch × positions × width.",
        {"rows": [row._asdict() for row in rows], "total": parameter_count(subject.model)},
    )


VIEWS: tuple[Callable[[Subject, int | None], Iterator[View]], ...] = (
    _attention, _labels, _surprise, _media, _next, _beam, _states, _gradients, _what_if, _tables, _positions, _layers,
)  # fmt: skip
