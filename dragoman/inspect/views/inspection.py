"""`inspect`: everything that can be shown about one example, as named views for pages, JSON and figures."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dragoman.base import DataError, atomic_write, check_creatable
from dragoman.classical import FittedModel
from dragoman.inference import Completer, load_run
from dragoman.inspect.options import TRAINING_PAIRS, InspectOptions
from dragoman.inspect.views.figures import check_plot_path, save_plot
from dragoman.inspect.views.inside_attention import attention_sums, chosen_sum, worked_example
from dragoman.inspect.views.order import position_modules, positions_off
from dragoman.inspect.views.overview import overview_view, run_parts
from dragoman.inspect.views.state_neighbours import neighbour_lines, state_neighbours
from dragoman.inspect.views.subject import Loaded, Subject, open_subject
from dragoman.inspect.views.table import VIEWS
from dragoman.inspect.views.view import View, listed, packed
from dragoman.web import build_page, plain

PICTURES = (".svg", ".png", ".pdf")
# Names of what is put beside a run, and the arguments of `open_variant`.
VARIANTS: dict[str, dict[str, bool]] = {"untrained": {"untrained": True}, "no-positions": {"positions": False}}


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
        view = self.view(kind)
        if not alone:
            return replace(self, first=kind)
        other = self.beside
        shown = None if other is None else replace(other, views=tuple(one for one in other.views if one.kind == kind))
        return replace(self, views=(view,), beside=shown)

    def page_data(self) -> dict[str, Any]:
        return packed(self._data())

    def page(self) -> str:
        return build_page(f"{self.title}: inspect", "inspect-page", self.page_data())

    def as_dict(self) -> dict[str, Any]:
        """The same with tensors as nested lists, for JSON files."""
        return listed(self._data())

    def view(self, kind: str) -> View:
        for view in self.views:
            if view.kind == kind:
                return view
        raise DataError(f"this run has no view {kind!r}; it has {', '.join(view.kind for view in self.views)}")

    def figure(self, kind: str | None = None, layer: str | None = None) -> Any:
        """The matplotlib figure of a view, by default the first that has one. `layer` chooses among several."""
        drawable = [view.kind for view in self.views if VIEWS[view.kind].has_figure]
        if kind is not None and kind not in drawable:
            figures = drawable or [name for name, entry in VIEWS.items() if entry.has_figure]
            raise DataError(f"--view: found {kind!r}, expected one of {', '.join(figures)}")
        if not drawable:
            raise DataError("this run has no view with a figure")
        view = self.view(kind or drawable[0])
        return VIEWS[view.kind].draw(view, layer)

    def save(self, path: str | Path, kind: str | None = None, layer: str | None = None) -> Path:
        """Write a page (.html) that opens at a view, the numbers of all views or of one (.json), or a figure."""
        path = Path(path)
        suffix = path.suffix.lower()
        if suffix in PICTURES:
            return save_plot(self.figure(kind, layer), path)
        shown = self if kind is None else self.opened_at(kind, alone=suffix == ".json")
        with atomic_write(path, with_folder=True) as file:
            content = json.dumps(plain(shown.as_dict())) if suffix == ".json" else shown.page()
            file.write_text(content, encoding="utf-8", newline="\n")
        return path

    def _data(self) -> dict[str, Any]:
        source, target, given = self.subject.source, self.subject.target, self.subject.given
        name = "text" if source is None else "given target" if given else "output"
        return {
            "format": 1,
            "title": self.title,
            "run": self.run,
            "first": self.first,
            "source": None if source is None else {"text": self.subject.text or source.text, **source.as_dict()},
            "target": {"text": target.text, "given": given, "name": name, **target.as_dict()},
            "views": [view.as_dict() for view in self.views],
            "notes": list(self.notes),
            **({} if self.beside is None else {"beside": self.beside._data()}),
        }


def inspect(run: str | Path | Loaded, text: str, options: InspectOptions | None = None) -> Inspection:
    """Compute every view that a run has for a text and a target, by default its own prediction."""
    options = options or InspectOptions()
    if unknown := next((kind for kind in options.views if kind not in VIEWS), None):
        raise DataError(f"views: found {unknown!r}, expected some of {', '.join(VIEWS)}")
    loaded = load_run(run, options.device) if isinstance(run, str | Path) else run
    found = _inspection(loaded, text, options)
    if options.beside is None:
        return found
    changes = VARIANTS.get(options.beside, {})
    other = open_variant(loaded.run.folder if changes else options.beside, options.device, **changes)
    beside = _inspection(other, text, options)
    return replace(found, beside=replace(beside, title=variant_title(beside.title, **changes)))


def inspect_to(
    path: str | Path, run: str | Path, text: str, options: InspectOptions, kind: str | None, layer: str | None
) -> Inspection:
    """Inspect and save; what cannot be written is an error before the work. See `Inspection.save`."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".html", ".json", *PICTURES):
        raise DataError(f"--output: found {str(path)!r}, expected a file that ends in .html, .json, .svg, .png or .pdf")
    if suffix not in PICTURES and layer is not None:
        raise DataError(f"--layer goes with .svg, .png or .pdf: found {path}")
    if suffix in PICTURES and options.beside is not None:
        raise DataError(f"--beside goes with .html or .json: found {path}")
    (check_plot_path if suffix in PICTURES else check_creatable)(path)
    if kind == "training":
        options = replace(options, training_pairs=options.training_pairs or TRAINING_PAIRS)
    only = replace(options, views=(kind,)) if kind in VIEWS and suffix != ".html" else options
    loaded = load_run(run, options.device)
    found = inspect(loaded, text, only)
    if only is not options and kind not in {view.kind for view in found.views}:
        found = inspect(loaded, text, options)  # the error says which views there are
    found.save(path, kind, layer)
    return found


def _inspection(loaded: Loaded, text: str, options: InspectOptions) -> Inspection:
    model, fitted = loaded.model, isinstance(loaded.model, FittedModel)
    if fitted and model.likelihood == "none":
        kind = f'model.kind = "{loaded.run.config.model.kind}"'
        if not model.shows_alignment:
            raise DataError(f"nothing to inspect: {kind} has neither layers nor probabilities")
        if options.target is not None:
            raise DataError(f"{kind} explains its own outputs, and cannot score a given one; leave out the target")
    subject = open_subject(loaded, text, options)
    views: list[View] = []
    notes: list[str] = []
    shown = subject.source or subject.target
    if subject.text not in (shown.text, shown.text.partition("> ")[2]) and len(subject.text) > len(shown.text):
        notes.append(f"the text is long: the views show its first {len(shown):,} tokens")
    if subject.source is not None and not isinstance(loaded, Completer):
        unknown = list(dict.fromkeys(loaded.unseen_in(subject.source.text)))[:10]
        notes += [f"training did not have {', '.join(map(repr, unknown))}: read as <unk>"] if unknown else []
    wanted = {*options.views, *(other for kind in options.views for other in VIEWS[kind].draws_from)}
    for kind, entry in VIEWS.items():
        if entry.on_request:
            asked = kind in wanted or options.training_pairs is not None
        else:
            asked = (not wanted or kind in wanted) and (entry.fitted or not fitted)
        if not asked or kind == "overview":  # which is made of all others
            continue
        try:
            view = entry.compute(subject)
        except DataError as error:
            if entry.on_request:
                raise
            notes.append(str(error))
        else:
            views += [] if view is None else [view]
    overview = overview_view(subject, views)
    return Inspection(loaded.run.folder.resolve().name, run_parts(subject), subject, (overview, *views), tuple(notes))


def open_variant(
    folder: str | Path, device: str = "auto", *, untrained: bool = False, positions: bool = True
) -> Loaded:
    """A run with the random weights that training began with, or without its positions, or as it is.

    The model is changed for good, and torch alone may compute with it: an engine would read the weights of the folder.
    """
    loaded = load_run(folder, device, engine="torch")
    model = loaded.single_model("a variant is that of one model")
    if untrained:
        if isinstance(model, FittedModel):
            kind = loaded.config.model.kind
            raise DataError(f'model.kind = "{kind}" is counted from data, so it has no weights before training')
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(loaded.config.train.seed)
            fresh = loaded.run.task.model(loaded.config, loaded.source_tokenizer, loaded.target_tokenizer)
            for own, first in zip(model.parameters(), fresh.parameters(), strict=True):
                own.copy_(first)
    if not positions:
        if not position_modules(model):
            raise DataError(f"{loaded.run.folder}: the model has no positions that could be left out")
        model.left_out = positions_off(model)  # kept with the model: a block that is collected ends
        model.left_out.__enter__()
    return loaded


def variant_title(name: str, *, untrained: bool = False, positions: bool = True) -> str:
    changes = (["before training"] if untrained else []) + ([] if positions else ["without positions"])
    return f"{name} ({', '.join(changes)})" if changes else name


def attention_sum(run: str | Path, text: str, cell: str, options: InspectOptions) -> str:
    """The attention of one position as a worked sum; `cell` is "LAYER,HEAD,ROW"."""
    subject = open_subject(load_run(run, options.device), text, options)
    return "\n".join(worked_example(*chosen_sum(attention_sums(subject), cell)))


def states_near(run: str | Path, text: str, token: str, options: InspectOptions) -> str:
    """The training pairs with the decoder states nearest to that before an output token (its number or its text)."""
    subject = open_subject(load_run(run, options.device), text, options)
    near = state_neighbours(subject, options.training_pairs or TRAINING_PAIRS)
    return "\n".join(neighbour_lines(subject, near, token))
