"""Pictures for notebooks: predictions with colours, attention, training curves, the pages of `dragoman inspect`."""

from __future__ import annotations

import html
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dragoman.base import DataError, DragomanError, RunError
from dragoman.inference import Completer, Labeler, LoadedRun, Picture, Prediction, Predictor
from dragoman.inference.align import AttentionMap, attention_map
from dragoman.inspect.measure.run_summary import best_validation, curve_labels, draw_curves, format_scores
from dragoman.inspect.options import InspectOptions
from dragoman.inspect.views import inspection

PAGE_HEIGHT = 760  # pixels of a page inside a notebook
MOST_SOURCES = 3  # input tokens that a hover names
LEAST_WEIGHT = 0.1  # attention weights below it are not named
# Colours carry their own background, so that they can be read on light and dark pages alike.
INK, PAPER = "#1b1f24", "#ffffff"


def loaded(run: LoadedRun) -> Predictor | Labeler | Completer:
    assert isinstance(run, Predictor | Labeler | Completer)
    return run


def inspect(
    run: LoadedRun, text: str, target: str | None = None, *, tag: str | None = None, beam: int | None = None
) -> Picture:
    """The page of `dragoman inspect`."""
    report = inspection.inspect(loaded(run), text, InspectOptions(target, tag=tag, beam=beam))
    return Picture(report.title, report.page(), PAGE_HEIGHT)


def attention(run: LoadedRun, text: str, output: str | None = None, *, tag: str | None = None) -> Picture:
    """A table of cross-attention weights: a row for each output token, a column for each input token."""
    predictor = loaded(run)
    if not isinstance(predictor, Predictor):
        raise RunError(
            f'{predictor.run.folder}: no output text, so no cross-attention; task = "{predictor.run.task.name}"'
        )
    if predictor.reads_files:
        raise RunError(f"{predictor.run.folder}: reads files; use `dragoman attention {predictor.run.folder} FILE`")
    (source,) = predictor.read_as([text], tag)
    weights = attention_map(predictor, source, output)
    return Picture(f"attention for {text!r}", attention_table(weights))


def attention_table(attention: AttentionMap) -> str:
    """The mean weights of the last layer as an HTML table."""
    cell = f"color:{INK};text-align:center;padding:3px 6px"
    head = "".join(f'<th style="{cell}">{html.escape(token)}</th>' for token in attention.source)
    rows = []
    for token, weights in zip(attention.target, attention.mean().tolist(), strict=True):
        cells = "".join(
            f'<td title="{html.escape(token)} ← {html.escape(source)}: {weight:.3f}" '
            f'style="{cell};background:rgba(11,105,163,{weight:.3f});'
            f'color:{PAPER if weight > 0.6 else INK}">{weight:.2f}</td>'
            for source, weight in zip(attention.source, weights, strict=True)
        )
        rows.append(f'<tr><th style="{cell};text-align:right">{html.escape(token)}</th>{cells}</tr>')
    return (
        f'<table style="background:{PAPER};border-collapse:collapse"><caption>output tokens down, input tokens across'
        f"</caption><tr><th></th>{head}</tr>{''.join(rows)}</table>"
    )


def curves(run: LoadedRun) -> Picture:
    """Training and validation loss over steps, as a vector drawing."""
    folder = loaded(run).run
    if not (rows := folder.metrics()):
        raise DataError(f"{folder.folder}: no curves to show; this run was not trained step by step")
    with tempfile.TemporaryDirectory() as work:
        path = draw_curves(rows, Path(work) / "curves.svg", *curve_labels(folder), folder.folder.name)
        drawing = path.read_text(encoding="utf-8")
    return Picture(f"training of {folder.folder.name}", drawing[drawing.index("<svg") :])


def run_html(run: LoadedRun) -> str:
    """A small table: folder, task, model, best validation."""
    open_run = loaded(run)
    folder = open_run.run
    rows = {"run": str(folder.folder), "task": folder.task.name, "model": f"{open_run.size} on {open_run.device}"}
    if validated := [row for row in folder.metrics() if "valid" in row]:
        best = best_validation(validated, folder.config.train.metric)
        rows["best validation"] = f"{format_scores(best['valid'])} at step {best['step']:,}"
    lines = "".join(
        f"<tr><th style='text-align:left'>{name}</th><td>{html.escape(value)}</td></tr>" for name, value in rows.items()
    )
    return f"<table>{lines}</table>"


def prediction_html(prediction: object) -> str:
    """The tokens of an output, coloured by their probability; a hover shows it and the input tokens behind each."""
    assert isinstance(prediction, Prediction)
    probabilities = prediction.token_confidences or prediction.token_probabilities
    if not prediction.tokens:
        return html.escape(prediction.text) or "<i>empty</i>"
    sources = source_tokens(prediction)
    spans = []
    for index, token in enumerate(prediction.tokens):
        probability = probabilities[index] if index < len(probabilities) else 1.0
        shown = html.escape(token).replace("▁", " ") or "&nbsp;"
        hover = f"probability {probability:.3f}" + (f" ← {sources[index]}" if index < len(sources) else "")
        spans.append(
            f'<span title="{html.escape(hover)}" style="color:{INK};white-space:pre-wrap;border-radius:3px;'
            f'padding:1px 1px;margin-right:1px;background:hsl({120 * probability:.0f} 70% 82%)">{shown}</span>'
        )
    others = "".join(
        f"<li>{html.escape(other.text)} <small>{other.score:.3f}</small></li>" for other in prediction.alternatives
    )
    more = f"<ol start='2'>{others}</ol>" if others else ""
    return f'<div style="line-height:1.9">{"".join(spans)} <small>score {prediction.score:.3f}</small></div>{more}'


def source_tokens(prediction: Prediction) -> Sequence[str]:
    """For each output token the input tokens with most attention; empty where the model has no attention to show."""
    origin = prediction.origin
    predictor = origin.run() if origin is not None else None
    if not isinstance(predictor, Predictor) or predictor.reads_files:
        return []
    assert origin is not None
    try:
        (text,) = predictor.read_as([origin.text], origin.tag)
        weights = attention_map(predictor, text, prediction.text)
    except DragomanError:  # a model without attention has no alignment to show
        return []
    if (
        weights.target[: len(prediction.tokens)] != prediction.tokens
        and len(weights.target) != len(prediction.tokens) + 1
    ):
        return []  # the search wrote other tokens for the same text
    lines = []
    for row in weights.mean().tolist():
        ranked = sorted(zip(row, weights.source, strict=True), reverse=True)[:MOST_SOURCES]
        lines.append(", ".join(f"{token} {weight:.2f}" for weight, token in ranked if weight >= LEAST_WEIGHT))
    return lines
