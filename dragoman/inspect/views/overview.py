"""The first view of a page: probabilities of the output, and the parts of the model with the views that show them."""

from __future__ import annotations

from typing import Any

import torch

from dragoman.classical import FittedModel, HMMTagger
from dragoman.inspect.views.layer_table import size_of
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View
from dragoman.models import Tagger


def run_parts(subject: Subject) -> dict[str, Any]:
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
        "parameters": size_of(subject.model)[0],
    }


@torch.no_grad()
def overview_view(subject: Subject, views: list[View]) -> View:
    """Probabilities of the target's tokens, and what opens into which view."""
    count, noun = size_of(subject.model)
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
    kinds = {part["part"]: part["kind"] for part in run_parts(subject)["parts"]}
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
