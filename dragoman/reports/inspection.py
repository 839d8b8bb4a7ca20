"""Everything that can be shown about one example, as named views with data for pages, JSON and plots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from dragoman.analysis.attention_layers import ABOUT, AttentionLayer, attention_layers, rarest_columns
from dragoman.analysis.attribution import METHODS, attribute
from dragoman.analysis.beam_tree import beam_tree, next_tokens
from dragoman.analysis.gradients import flow_axis, gradient_flow
from dragoman.analysis.layer_row import tensor_table
from dragoman.analysis.layer_table import cell_sizes, layer_table, parameter_count
from dragoman.analysis.states import cell_traces
from dragoman.analysis.subject import Loaded, Subject, open_subject, plain_axis
from dragoman.analysis.tables import PathTable, hmm_table, viterbi_table
from dragoman.analysis.what_if import what_if
from dragoman.classical.hmm_tagger import HMMTagger
from dragoman.classical.model import FittedModel
from dragoman.errors import DataError, DragomanError
from dragoman.inference.completer import Completer
from dragoman.inference.labeler import MaskFiller
from dragoman.inference.predictor import Predictor
from dragoman.inference.unseen import told_elsewhere
from dragoman.models.classifier import Classifier
from dragoman.models.tagger import Tagger
from dragoman.models.traits import decodes
from dragoman.reports.classical_views import lexicon_view, phrase_view, series_view
from dragoman.reports.ctc_view import ctc_tables, ctc_view
from dragoman.reports.inside_views import inside_view, lens_view
from dragoman.reports.media_view import media_view
from dragoman.reports.sequence_views import embeddings_view, forcing_view, order_view, positions_view, training_view
from dragoman.reports.view import View, listed, packed, table_data
from dragoman.scoring.edit import align_edits

UNITS = 64  # recurrent units in a page: those that vary most


@dataclass(frozen=True)
class Inspection:
    """One example, its views, and what could not be shown."""

    title: str
    run: dict[str, Any]
    subject: Subject
    views: tuple[View, ...]
    notes: tuple[str, ...] = field(default=())
    first: str = "overview"  # the view that a page opens
    beside: Inspection | None = None  # of another run, or of this one before training

    def opened_at(self, kind: str, *, alone: bool = False) -> Inspection:
        """The same with another view first, or without all others."""
        view = self.view(kind)
        if not alone:
            return replace(self, first=kind)
        other = self.beside
        shown = None if other is None else replace(other, views=tuple(one for one in other.views if one.kind == kind))
        return replace(self, views=(view,), beside=shown)

    def page_data(self) -> dict[str, Any]:
        """The data of a page; tensors are base64 of 32-bit floats."""
        return packed(self._data())

    def as_dict(self) -> dict[str, Any]:
        """The same with tensors as nested lists, for JSON files."""
        return listed(self._data())

    def _target_name(self) -> str:
        if self.subject.source is None:
            return "text"
        return "given target" if self.subject.given else "output"

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
            "first": self.first,
            "source": None if source is None else {"text": self.subject.text or source.text, **source.as_dict()},
            "target": {
                "text": target.text,
                "given": self.subject.given,
                "name": self._target_name(),
                **target.as_dict(),
            },
            "views": [view.as_dict() for view in self.views],
            "notes": list(self.notes),
            **({} if self.beside is None else {"beside": self.beside._data()}),
        }


def inspect(
    loaded: Loaded, text: str, target: str | None = None, *, tag: str | None = None, beam: int | None = None,
    only: Collection[str] = (), training_pairs: int = 0,
) -> Inspection:  # fmt: skip
    """Compute every view that this run has for a text and a target, by default its own prediction.

    With `only` it computes the overview, these views where the run has them, and those that they draw from.
    With `training_pairs` also the training pairs, among so many, whose decoder states are nearest.
    """
    model = loaded.model
    if isinstance(model, FittedModel) and model.likelihood == "none":
        kind = f'model.kind = "{loaded.run.config.model.kind}"'
        if not model.shows_alignment:
            raise DataError(f"nothing to inspect: {kind} has neither layers nor probabilities")
        if target is not None:
            raise DataError(f"{kind} explains its own outputs, and cannot score a given one; leave out the target")
    subject = open_subject(loaded, text, target, tag)
    views: list[View] = []
    notes: list[str] = []
    shown = subject.source or subject.target
    if subject.text not in (shown.text, shown.text.partition("> ")[2]) and len(subject.text) > len(shown.text):
        notes.append(f"the text is long: the views show its first {len(shown):,} tokens")
    if subject.source is not None and not isinstance(loaded, Completer):
        unknown = list(dict.fromkeys(loaded.unseen_in(subject.source.text)))[:10]
        notes += [f"training did not have {', '.join(map(repr, unknown))}: read as <unk>"] if unknown else []
    makers = FITTED if isinstance(model, FittedModel) else NEURAL
    wanted = {*only, *(other for kind in only for other in DRAWS_FROM.get(kind, ()))}
    for kind, make in makers.items():
        if wanted and kind not in wanted:
            continue
        try:
            views += make(subject, beam)
        except DataError as error:
            notes.append(str(error))
    if training_pairs:
        views.append(training_view(subject, training_pairs))
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
        "parameters": _size(subject.model)[0],
    }


def _size(model: Any) -> tuple[int, str]:
    """How many parameters a model has, and what they are called."""
    if isinstance(model, FittedModel):
        return tensor_table(model)[1], "numbers"
    return parameter_count(model), "parameters"


@torch.no_grad()
def _overview(subject: Subject, views: list[View]) -> View:
    """Probabilities of the target's tokens, and what opens into which view."""
    count, noun = _size(subject.model)
    summary, scores = f"{count:,} {noun}.", None
    if subject.has_likelihood:
        scores = subject.log_probabilities().float().cpu()
        of = "text" if subject.source is None else "output"
        total = round(float(scores.double().sum()), 2) + 0.0  # no −0
        summary += f" The {of}'s log-probability is {f'{total:.2f}'.replace('-', '−')}."
    return View(
        "overview",
        "Overview",
        f"{_pick(subject, views)} Every box of the model opens the view that shows its sums.",
        {"log_probabilities": scores, "boxes": _boxes(subject, views), "summary": summary},
    )


def _pick(subject: Subject, views: list[View]) -> str:
    unit = subject.target.unit
    if subject.source is None:
        return (
            f"The model reads the text from left to right; pick a {unit} to see its probability after those before it."
        )
    known = "The input is above, the output below"
    linked = any(view.kind == "attention" for view in views)
    if len(subject.target) < 2:
        return f"{known}; lines show which input {subject.input_unit}s it depends on." if linked else f"{known}."
    if not linked:
        return f"{known}; pick an output {unit} to see its probability." if subject.has_likelihood else f"{known}."
    return f"{known}; pick an output {unit} to see which input {subject.input_unit}s it used."


def _boxes(subject: Subject, views: list[View]) -> list[dict[str, Any]]:
    """The parts of the model in the order of computation, each with the first view that shows it."""
    shown, model = {view.kind: view.title for view in views}, subject.loaded.run.config.model
    kinds = {part["part"]: part["kind"] for part in _run(subject)["parts"]}
    boxes: list[dict[str, Any]] = []

    def box(title: str, text: str, *kinds: str) -> None:
        boxes.append({"title": title, "text": text, "view": next((kind for kind in kinds if kind in shown), None)})

    if subject.source is not None:
        box("Input", f"{len(subject.source)} tokens", "media", "layers")
    if isinstance(subject.model, FittedModel):
        box("Model", model.kind, "series", "phrases", "lexicon", "tables", "layers")
    else:
        box("Vectors", "embeddings and positions" if "positions" in shown else "embeddings", "positions", "layers")
    if "encoder" in kinds:
        recurrent = kinds["encoder"] in ("recurrent", "frames")
        box("Encoder", kinds["encoder"], "states" if recurrent else "attention", "attention", "layers")
    if title := shown.get("attention"):
        box(title, "which input counts" if title == "Attribution" else "who looks where", "attention")
    for part, name in (("decoder", "Decoder"), ("stack", "Layers")):
        if part in kinds:
            box(name, kinds[part], "states", "attention", "layers")
    if "pooling" in kinds:
        box("Pooling", kinds["pooling"], "attention", "labels")
    title = "Probabilities" if subject.has_likelihood else "Output"
    box(title, _output(subject), "next", "labels", "surprise", "phrases", "series", "tables")
    if "beam" in shown:
        box("Search", "beam of hypotheses", "beam")
    return boxes


def _output(subject: Subject) -> str:
    """What the last part of the model computes."""
    labels, model = getattr(subject.loaded, "labels", ()), subject.model
    if subject.writes_numbers:
        count = len(subject.loaded.target_tokenizer)
        return "one number" if count == 1 else f"{count} numbers"
    if isinstance(model, HMMTagger):
        return f"posterior over {len(labels)} tags, for each word"
    if isinstance(model, FittedModel):
        return "counted, not learned by gradients" if subject.has_likelihood else "weighted sum of features"
    if isinstance(model, Tagger):
        return f"softmax over {len(labels)} tags, for each word"
    return f"softmax over {len(labels)} labels" if labels else "softmax over the vocabulary"


def _attention(subject: Subject, beam: int | None) -> Iterator[View]:
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
        return
    earlier = "earlier text" if subject.source is None else "earlier output"
    rarest = rarest_columns(subject)
    yield View(
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
    loaded, masks = subject.loaded, isinstance(subject.loaded, MaskFiller)
    tokenizer = loaded.tokenizer if isinstance(loaded, Completer) else loaded.target_tokenizer
    if isinstance(loaded, Predictor) and subject.source is not None:
        tokenizer = loaded.codec.target_of(subject.source.text)
    about = (
        "For every [MASK] the model gives each token of its vocabulary a probability, as if the other masks stayed."
        if masks
        else "At every step the model gives each token of its vocabulary a probability."
    )
    yield View(
        "next",
        "Candidates" if masks else "Next token",
        f"{about} Temperature divides the logits before the softmax, top-k and top-p cut off the improbable tail; "
        "greedy search takes the longest bar.",
        {
            **vars(table),
            "pieces": [tokenizer.pieces(row) for row in table.tokens.tolist()],
            "tokens": table.tokens.tolist(),
            "chosen": table.chosen.tolist(),
            "target": subject.target.as_dict(),
            "masks": masks,
        },
    )


def _what_if(subject: Subject, beam: int | None) -> Iterator[View]:
    if isinstance(subject.model, FittedModel) and not subject.has_likelihood:
        return  # nothing changes but the output
    changes = what_if(subject)
    if not changes:
        return
    changed_thing = "predicted value" if subject.writes_numbers else "output's log-probability"
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
        f"Each bar is the change of the {changed_thing} when {' or '.join(kinds)}. "
        f"A long bar {'' if subject.writes_numbers else 'to the left '}marks a part that this output needs{forced}.",
        {
            "before": before,
            "measure": subject.measure,
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
    if not isinstance(model, Tagger | Classifier | HMMTagger) or isinstance(loaded, Predictor | Completer):
        return
    predicted = model.predict(subject.batch)
    assert predicted.probabilities is not None
    words = ("label",) if isinstance(model, Classifier) else subject.target.tokens
    chain = model.chain if isinstance(model, Tagger) else None
    emissions = model.outputs(subject.batch)[0][0] if isinstance(model, Tagger) else None
    if isinstance(model, HMMTagger):
        emissions = torch.from_numpy(model.lattice(*model.rows(subject.batch))[0][0])
    data: dict[str, Any] = {
        "labels": list(loaded.labels),
        "rows": list(words),
        "probabilities": predicted.probabilities[0].float(),
        "values": predicted.values[0].tolist(),
        "emissions": emissions,
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
    if isinstance(model, HMMTagger):
        words = [label.rpartition("/")[0] for label in subject.target.tokens]
        path = hmm_table(model.transitions, model.lattice(*model.rows(subject.batch))[0][0])
        about = "log-probability of the best path that ends in this tag, up to a term that all paths share"
        tables.append(table_data("Viterbi", about, path, list(loaded.labels), words))
    if isinstance(model, Tagger) and model.chain is not None and not isinstance(loaded, Predictor | Completer):
        path = viterbi_table(model.chain, model.outputs(subject.batch)[0][0])
        words = [label.rpartition("/")[0] for label in subject.target.tokens]
        tables.append(
            table_data("Viterbi", "best score of a path that ends in this tag", path, list(loaded.labels), words)
        )
    tables += ctc_tables(subject)
    if subject.given and isinstance(loaded, Predictor) and subject.source is not None:
        output = next(loaded.stream([subject.source.text], engine="torch", on_unknown=told_elsewhere)).text
        axis = subject.target
        by_word = len(axis.text.split()) > 1
        left, right = (text.split() if by_word else list(text) for text in (axis.text, output))
        edits = align_edits(left, right)
        about = f"cost of turning the target (down) into the output (across): {edits.cost}"
        path = PathTable(torch.tensor(edits.table), None, list(edits.path))
        tables.append(table_data("Edit distance", about, path, ["", *left], ["", *right]))
    if tables:
        yield View(
            "tables",
            "Tables",
            "Dynamic programming fills each cell from its neighbours and remembers which one it came from. Following "
            "these back-pointers from the last cell gives the best path, outlined here.",
            {"tables": tables},
        )


def _layers(subject: Subject, beam: int | None) -> Iterator[View]:
    fitted = isinstance(subject.model, FittedModel)
    rows = tensor_table(subject.model)[0] if fitted else layer_table(subject.model, subject.batch, run=subject.score)
    total, noun = _size(subject.model)
    yield View(
        "layers",
        "Numbers" if fitted else "Layers",
        "All that the model stores: it was counted from the data, without gradients."
        if fitted
        else "Every part of the model with the shape of its output for this example and its number of parameters. "
        "Shapes are batch × positions × width.",
        {"rows": [row._asdict() for row in rows], "total": total, "noun": noun, "cells": cell_sizes(subject.model)},
    )


MakeView = Callable[[Subject, int | None], Iterator[View]]
NEURAL: dict[str, MakeView] = {
    "attention": _attention, "inside": inside_view, "lens": lens_view, "labels": _labels, "surprise": _surprise,
    "media": media_view, "ctc": ctc_view, "next": _next, "beam": _beam, "forcing": forcing_view, "states": _states,
    "gradients": _gradients, "whatif": _what_if, "order": order_view, "tables": _tables,
    "embeddings": embeddings_view, "positions": positions_view, "layers": _layers,
}  # fmt: skip
FITTED: dict[str, MakeView] = {
    "phrases": phrase_view, "series": series_view, "attention": _attention, "lexicon": lexicon_view, "labels": _labels,
    "surprise": _surprise, "whatif": _what_if, "tables": _tables, "layers": _layers,
}  # fmt: skip
KINDS = ("overview", *dict.fromkeys((*NEURAL, *FITTED)))
# The pages of these views read the data of others.
DRAWS_FROM = dict.fromkeys(("overview", "inside", "media"), ("attention",))
