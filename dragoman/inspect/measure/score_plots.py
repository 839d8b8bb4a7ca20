"""Scores, edit alignments and comparisons of systems as lines of text and as plots."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.base import DataError
from dragoman.inspect.views.figures import INK, MAX_INCHES, new_figure, save_plot
from dragoman.scoring import BucketScore, Curve, EditAlignment, SystemScore, TextMetric, all_edit_alignments, printable

MAX_SHOWN = 100  # of equally cheap alignments


def format_p_value(value: float) -> str:
    """A p-value with three decimals, the precision of a thousand draws."""
    return "<0.001" if value < 0.0005 else f"{value:.3f}"


def alignment_lines(
    alignments: Sequence[EditAlignment], unit: str, *, table: bool, substitution: int | None = None
) -> Iterator[str]:
    """Each reference above its hypothesis, with substitutions (S), insertions (I) and deletions (D); then totals.

    With the cost of a `substitution`, all equally cheap alignments are shown.
    """
    for number, alignment in enumerate(alignments, 1):
        yield f"line {number}: {_errors([alignment])[1]} of {len(alignment.left)} {unit}, cost {alignment.cost}"
        shown = [alignment]
        if substitution is not None:
            shown = all_edit_alignments(alignment.left, alignment.right, substitution=substitution, limit=MAX_SHOWN + 1)
            more = f"more than {MAX_SHOWN}" if len(shown) > MAX_SHOWN else str(len(shown))
            yield f"cheapest alignments: {more}"
        for cheapest in shown[:MAX_SHOWN]:
            yield from cheapest.render().split("\n")
        if table:
            yield from alignment.render_table().split("\n")
        yield ""
    length = sum(len(alignment.left) for alignment in alignments)
    errors, counts = _errors(alignments)
    yield f"all lines: {counts} of {length:,} {unit}, {100 * errors / max(1, length):.2f} %"


def _errors(alignments: Sequence[EditAlignment]) -> tuple[int, str]:
    """The number of errors, and how many of each kind."""
    kinds = ("substitutions", "insertions", "deletions")
    counts = [sum(getattr(alignment, kind) for alignment in alignments) for kind in kinds]
    return sum(counts), "{:,} S, {:,} I, {:,} D".format(*counts)


def bucket_lines(metric: TextMetric, groups: Sequence[BucketScore], along: str) -> Iterator[str]:
    """One line per bucket: label, number of segments, score and interval."""
    width = max(len(along), *(len(group.label) for group in groups))
    yield f"{along:<{width}}  {'segments':>8}  {metric.label:>11}  95 % interval"
    for group in groups:
        low, high = (metric.format(bound) for bound in group.interval)
        yield f"{group.label:<{width}}  {group.segments:>8,}  {metric.format(group.score):>11}  {low} to {high}"


def ngram_lines(label: str, apart: Mapping[str, Any]) -> Iterator[str]:
    """The terms of a BLEU score, then every line with its n-grams; those that match stand between [ and ]."""
    for number, segment in enumerate(apart["segments"], 1):
        yield f"line {number}: {' '.join(segment['tokens'])}"
        for order, found in enumerate(segment["matched"], 1):
            starts = (" ".join(segment["tokens"][start : start + order]) for start in range(len(found)))
            shown = "  ".join(f"[{ngram}]" if match else ngram for ngram, match in zip(starts, found, strict=True))
            yield f"  {order}-grams {sum(found):>4} of {len(found):<4}  {shown}".rstrip()
        yield ""
    yield f"{label} taken apart   " + "".join(f"{order}-grams".rjust(11) for order in range(1, 5))
    for name in ("matches", "totals"):
        yield f"{name:<{len(label) + 15}}" + "".join(f"{count:>11,}" for count in apart[name])
    smoothed = any(
        count == 0 < precision for count, precision in zip(apart["matches"], apart["precisions"], strict=True)
    )
    precisions = "".join(f"{100 * precision:>9.2f} %" for precision in apart["precisions"])
    yield f"{'precision':<{len(label) + 15}}{precisions}{'   smoothed where 0 match' if smoothed else ''}"
    lengths = f"{apart['output_length']:,} tokens of output, {apart['reference_length']:,} of references"
    yield f"brevity penalty {apart['brevity_penalty']:.4f}: {lengths}"
    product = " · ".join(f"{100 * precision:.2f}" for precision in apart["precisions"])
    yield f"{label} = {apart['brevity_penalty']:.4f} · ({product})^(1/4) = {apart['score']:.2f}"


def comparison_lines(scores: Sequence[SystemScore], metrics: Mapping[str, TextMetric]) -> Iterator[str]:
    """One block per metric: every system with its interval, difference from the baseline and p-values."""
    width = max(len("system"), *(len(system_score.system) for system_score in scores))
    for name, metric in metrics.items():
        own = [system_score for system_score in scores if system_score.metric == name]
        direction = "higher" if metric.higher_is_better else "lower"
        yield f"{metric.label}: {direction} is better   {own[0].signature}"
        columns = f"{'score':>10}  {'95 % interval':^22}  {'difference':>10}  {'p boot.':>7}  {'p rand.':>7}"
        yield f"  {'system':<{width}}  {columns}"
        for system_score in own:
            low, high = (metric.format(bound) for bound in system_score.interval)
            score, between = metric.format(system_score.score), f"{low} to {high}"
            line = f"  {system_score.system:<{width}}  {score:>10}  {between:^22}"
            if versus := system_score.versus:
                p_values = (format_p_value(value) for value in (versus.bootstrap, versus.randomisation))
                line += "".join((f"  {versus.difference * metric.scale:>+10.2f}", *(f"  {p:>7}" for p in p_values)))
            yield line.rstrip()
        yield ""
    yield "p: the probability of a difference this large from the first system by chance (paired bootstrap;"
    yield "approximate randomisation), not corrected for multiple comparisons."


BLUE, GREY, RED = "#0b69a3", "#9fb3c8", "#ab091e"
PATH = {"equal": "#c1eac5", "substitute": "#fce588", "insert": "#b3ecff", "delete": "#ffd0b5"}
MAX_SYMBOLS = 80  # per side; more cells could not be read


def draw_edit_table(alignment: EditAlignment, path: str | Path) -> Path:
    """The dynamic programming table of an edit alignment, with its path coloured by kind of edit."""
    rows, columns = len(alignment.table), len(alignment.table[0])
    if max(rows, columns) > MAX_SYMBOLS + 1:
        raise DataError(
            f"cannot draw a table of {rows - 1} × {columns - 1} symbols: expected at most {MAX_SYMBOLS} per side; "
            "put a shorter pair first"
        )
    left, right = (["", *(printable(symbol) for symbol in side)] for side in (alignment.left, alignment.right))
    cell = min(1.6, 0.38 + 0.06 * max(map(len, right)))
    margin = 0.6 + 0.08 * max(map(len, left))
    drawing = new_figure(min(MAX_INCHES, max(4.6, margin + cell * columns)), min(MAX_INCHES, 1.5 + 0.38 * rows))
    axes = drawing.add_subplot()
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))

    def fill(row: int, column: int, colour: str, label: str | None = None) -> None:
        square = [column - 0.5, column + 0.5]
        axes.fill_between(square, row - 0.5, row + 0.5, color=colour, linewidth=0, label=label)

    fill(0, 0, "#e4e7eb")
    named = set()
    for (kind, _, _), (row, column) in zip(alignment.operations, alignment.path[1:], strict=True):
        fill(row, column, PATH[kind], None if kind in named else kind)
        named.add(kind)
    on_path = set(alignment.path)
    for row, costs in enumerate(alignment.table):
        for column, cost in enumerate(costs):
            weight = "bold" if (row, column) in on_path else "normal"
            axes.text(column, row, str(cost), ha="center", va="center", fontsize=9, color=INK, fontweight=weight)
    axes.plot(*zip(*((column, row) for row, column in alignment.path), strict=True), color=BLUE, alpha=0.35)
    axes.set_xticks(range(columns), right)
    axes.set_yticks(range(rows), left)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=10, colors=INK)
    for draw, count in ((axes.axhline, rows), (axes.axvline, columns)):
        for index in range(count - 1):
            draw(index + 0.5, color="#e4e7eb", linewidth=0.6)
    axes.spines[:].set_visible(False)
    if named:
        drawing.legend(loc="outside lower center", ncols=len(named), frameon=False, fontsize=9)
    counts = f"{alignment.substitutions} S, {alignment.insertions} I, {alignment.deletions} D"
    axes.set_title(f"cost {alignment.cost} ({counts})", fontsize=11, color=INK)
    return save_plot(drawing, path)


def draw_comparison(scores: Sequence[SystemScore], metrics: Mapping[str, TextMetric], path: str | Path) -> Path:
    """One panel per metric: scores with intervals, coloured where they differ significantly from the baseline."""
    systems = list(dict.fromkeys(system_score.system for system_score in scores))
    columns = min(3, len(metrics))
    rows = -(-len(metrics) // columns)
    width = min(MAX_INCHES, 2.0 + 3.6 * columns)
    drawing = new_figure(width, min(MAX_INCHES, rows * (1.3 + 0.42 * len(systems)) + 0.6))
    for index, (name, metric) in enumerate(metrics.items()):
        axes = drawing.add_subplot(rows, columns, index + 1)
        scale = metric.scale
        own = [system_score for system_score in scores if system_score.metric == name]
        for height, system_score in enumerate(own):
            colour = _verdict(system_score)
            low, high = (scale * bound for bound in system_score.interval)
            axes.plot([low, high], [height, height], color=colour, linewidth=2, solid_capstyle="butt")
            axes.plot(scale * system_score.score, height, "o", color=colour, markersize=6)
            if system_score.versus:
                note = f"p = {format_p_value(system_score.versus.randomisation)}".replace("= <", "< ")
                place, style = (scale * system_score.score, height), {"ha": "center", "fontsize": 8, "color": colour}
                axes.annotate(note, place, (0, 7), textcoords="offset points", **style)
        axes.axvline(scale * own[0].score, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_ylim(len(own) - 0.4, -0.6)
        axes.margins(x=0.15)
        names = list(systems) if index % columns == 0 else [""] * len(own)
        axes.set_yticks(range(len(own)), names)
        axes.set_title(
            f"{metric.label}{' %' if metric.percent else ''} {'↑' if metric.higher_is_better else '↓'}", fontsize=11
        )
        axes.tick_params(labelsize=9, colors=INK)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", alpha=0.25)
        axes.spines[["top", "right", "left"]].set_visible(False)
    about = "95 % intervals; p against the first system by approximate randomisation; blue better, red worse at 0.05"
    drawing.suptitle(textwrap.fill(about, int(12 * width)), fontsize=9, color=INK)
    return save_plot(drawing, path)


def _verdict(system_score: SystemScore) -> str:
    if system_score.versus is None or system_score.versus.randomisation >= 0.05:
        return INK
    return BLUE if system_score.versus.better else RED


def draw_buckets(
    groups: Sequence[BucketScore], metric: TextMetric, path: str | Path, along: str, *, joined: bool = True
) -> Path:
    """Scores by bucket with intervals; `joined` draws a line through buckets that have an order."""
    drawing = new_figure(min(MAX_INCHES, max(6.0, 1.6 + 0.9 * len(groups))), 4.4)
    axes: Any = drawing.add_subplot()
    middles, lows, highs = (
        [metric.scale * value for value in values]
        for values in zip(*((group.score, *group.interval) for group in groups), strict=True)
    )
    below = [max(0.0, middle - low) for middle, low in zip(middles, lows, strict=True)]
    above = [max(0.0, high - middle) for middle, high in zip(middles, highs, strict=True)]
    axes.errorbar(range(len(groups)), middles, [below, above], fmt="o-" if joined else "o", capsize=3)
    axes.set_xticks(range(len(groups)), [f"{group.label}\n({group.segments:,})" for group in groups])
    axes.set_xlabel(f"{along} (segments)", color=INK)
    axes.set_ylabel(f"{metric.label}{' %' if metric.percent else ''}", color=INK)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.25)
    axes.tick_params(labelsize=9, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    return save_plot(drawing, path)


def draw_predictions(predicted: NDArray[np.float64], true: NDArray[np.float64], path: str | Path) -> Path:
    """Predicted against true values, both (examples, numbers), with R² of each; exact predictions lie on the line."""
    columns = min(3, true.shape[1])
    rows = -(-true.shape[1] // columns)
    drawing = new_figure(0.6 + 4.2 * columns, 4.4 * rows)
    for number, (guesses, values) in enumerate(zip(predicted.T, true.T, strict=True)):
        axes: Any = drawing.add_subplot(rows, columns, number + 1)
        low, high = min(guesses.min(), values.min()), max(guesses.max(), values.max())
        axes.plot((low, high), (low, high), color=GREY, linewidth=1, linestyle="--", label="predicted = true")
        axes.scatter(values, guesses, s=14, color=BLUE, alpha=0.6, linewidths=0)
        variance = float(((values - values.mean()) ** 2).mean())
        error = float(((guesses - values) ** 2).mean())
        share = f", R² = {1 - error / variance:.3f}".replace("-", "−") if variance else ""
        axes.set_title(f"{f'number {number + 1}: ' if true.shape[1] > 1 else ''}MSE {error:.4g}{share}", fontsize=10)
        axes.set(xlabel="true value", ylabel="predicted value")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    return save_plot(drawing, path)


def draw_learning_curve(curve: Curve, path: str | Path) -> Path:
    """Measured scores over the number of training pairs, and the band of 95 % of the predictions beyond them."""
    metric, sizes = curve.text_metric, [point.pairs for point in curve.points]
    drawing = new_figure(6.8, 4.4)
    axes: Any = drawing.add_subplot()
    farthest = sizes[-1] + max(gain.more for gain in curve.gains)
    along = np.geomspace(sizes[0], farthest, 60)
    low, middle, high = metric.scale * np.quantile(curve.predict(list(along)), [0.025, 0.5, 0.975], axis=0)
    axes.fill_between(along, low, high, color=GREY, alpha=0.35, linewidth=0, label="95 % of the predictions")
    axes.plot(along, middle, color=BLUE, linewidth=1.5, label="power law")
    scores = [metric.scale * point.score for point in curve.points]
    bounds = [[metric.scale * abs(point.score - point.interval[side]) for point in curve.points] for side in (0, 1)]
    axes.errorbar(sizes, scores, bounds, fmt="o", color=INK, capsize=3, label="measured, 95 % of the draws of texts")
    if cut := [
        (size, score) for size, score, point in zip(sizes, scores, curve.points, strict=True) if point.cut_short
    ]:
        axes.plot(*zip(*cut, strict=True), "o", color="white", markeredgecolor=INK, zorder=3, label="ended by --time")
    for gain in curve.gains:
        axes.axvline(sizes[-1] + gain.more, color=GREY, linewidth=0.8, linestyle=":")
    axes.set(xscale="log", xlabel="training pairs", ylabel=f"{metric.label}{' %' if metric.percent else ''}")
    axes.set_xticks([*sizes, *(sizes[-1] + gain.more for gain in curve.gains)])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(axis="x", labelrotation=30)
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="lower right" if metric.higher_is_better else "upper right")
    return save_plot(drawing, path)
