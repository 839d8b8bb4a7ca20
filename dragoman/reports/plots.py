"""Plots by matplotlib (extra 'plots'): attention, training curves, reliability diagrams, costs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.analysis.figures import INK, MAX_INCHES, PAPER, draw_heat, new_figure, save_plot, suptitle
from dragoman.scoring.calibration import Reliability, RiskPoint

if TYPE_CHECKING:
    from dragoman.analysis.attention import AttentionMap
    from dragoman.analysis.cost import GrowthExponents, LayerCost


def draw_costs(costs: Sequence[LayerCost], fits: Sequence[GrowthExponents], path: str | Path) -> Path:
    """Time and memory of layers against the sequence length, on logarithmic axes."""
    drawing = new_figure(11, 4.6)
    panels = drawing.subplots(1, 2)
    for axes, key, label, scale in (
        (panels[0], "seconds", "milliseconds, forward and backward", 1e3),
        (panels[1], "saved", "MiB saved for the backward pass", 2.0**-20),
    ):
        for fit in fits:
            own = [cost for cost in costs if cost.layer == fit.layer]
            power = f"{fit.layer} (n^{getattr(fit, key):.1f})"
            axes.plot([c.length for c in own], [scale * getattr(c, key) for c in own], marker="o", ms=3, label=power)
        axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel=label)
        axes.set_xticks(sorted({cost.length for cost in costs}))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, frameon=False)
    return save_plot(drawing, path)


def draw_attention(alignments: Sequence[AttentionMap], path: str | Path, title: str = "") -> Path:
    """One panel per text: output tokens down, source tokens across, one scale of colours from 0 to 1 for all."""
    columns = min(len(alignments), 3)
    rows = -(-len(alignments) // columns)
    widest = max(len(alignment.source) for alignment in alignments)
    tallest = max(len(alignment.target) for alignment in alignments)
    drawing = new_figure(
        min(MAX_INCHES, columns * (1.6 + 0.3 * max(widest, 8)) + 0.8),
        min(MAX_INCHES, rows * (1.7 + 0.3 * max(tallest, 5)) + 0.4),
    )
    layer = list(alignments[0].layers)[-1]
    heads = alignments[0].layers[layer].shape[0]
    heads_text = ", mean over its heads" if heads > 1 else ""
    suptitle(drawing, title or f"Where the model looks for each output token ({layer}{heads_text})", 10)
    image = None
    for index, alignment in enumerate(alignments):
        axes = drawing.add_subplot(rows, columns, index + 1)
        image = draw_heat(axes, alignment.mean().numpy(), alignment.target, alignment.source)
        axes.set_xlabel("input", fontsize=9, color=INK)
        axes.set_ylabel("output", fontsize=9, color=INK)
        if any(alignment.texts):
            letters = max(16, int(13 * drawing.get_figwidth() / columns))
            shown = " → ".join(textwrap.shorten(text, 80, placeholder=" …") for text in alignment.texts)
            axes.set_title(textwrap.fill(shown, letters), fontsize=10, color=INK, pad=6)
    drawing.colorbar(image, ax=drawing.axes, shrink=0.7, label="attention weight")
    return save_plot(drawing, path)


def draw_curves(
    metrics: Sequence[Mapping[str, Any]], path: str | Path, loss: str = "loss", differs: str = "", title: str = ""
) -> Path:
    """Training and validation loss over steps; `loss` is its unit, `differs` what only that of training has in it."""
    drawing = new_figure(7, 4)
    axes = drawing.add_subplot()
    train = [(row["step"], row["loss"]) for row in metrics if "loss" in row]
    valid = [(row["step"], row["valid"]["loss"]) for row in metrics if "loss" in row.get("valid", {})]
    if train:
        axes.plot(*zip(*train, strict=True), color="#9fb3c8", label=f"training ({differs})" if differs else "training")
    if valid:
        axes.plot(*zip(*valid, strict=True), color="#0b69a3", marker="o", markersize=3, label="validation")
    axes.set_xlabel("step")
    axes.set_ylabel(loss)
    axes.grid(alpha=0.3)
    if train or valid:
        axes.legend(frameon=False)
    if title:
        axes.set_title(title, color=INK)
    return save_plot(drawing, path)


def draw_risk_coverage(curve: Sequence[RiskPoint], path: str | Path, title: str = "") -> Path:
    """Wrong outputs against the share that is kept, and the confidence from which outputs are kept."""
    drawing = new_figure(6.4, 4.4)
    axes = drawing.subplots()
    shares = [point.coverage for point in curve]
    for name, values, style in (
        ("wrong among those kept", [point.error for point in curve], {"color": "#0b69a3"}),
        ("min_confidence", [point.confidence for point in curve], {"color": INK, "linestyle": "--", "linewidth": 1}),
    ):
        axes.plot(shares, values, label=name, **style)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="share of the outputs that is kept", title=title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    return save_plot(drawing, path)


def draw_reliability(panels: Mapping[str, Reliability], path: str | Path, title: str = "") -> Path:
    """Reliability diagrams, one panel each: accuracy against confidence above, the share of each bin below."""
    drawing = new_figure(4.2 * len(panels), 5.2)
    if title:
        drawing.suptitle(title, color=INK)
    grid = drawing.subplots(2, len(panels), squeeze=False, sharex=True, sharey="row", height_ratios=(3, 1))
    for index, (name, diagram) in enumerate(panels.items()):
        above, below = grid[0][index], grid[1][index]
        width = 1 / len(diagram.bins)
        starts = [number * width for number, part in enumerate(diagram.bins) if part.size]
        bins = [part for part in diagram.bins if part.size]
        heights, means = [part.accuracy for part in bins], {"markersize": 4, "label": "mean of each bin"}
        above.bar(starts, heights, width, align="edge", color="#9fb3c8", edgecolor=PAPER)
        above.plot((0, 1), (0, 1), color=INK, linewidth=1, linestyle="--", label="perfect calibration")
        above.plot([part.confidence for part in bins], heights, "o", color="#0b69a3", clip_on=False, **means)
        above.set_title(f"{name}: error {100 * diagram.error:.2f} %", fontsize=10, color=INK)
        below.bar(starts, [part.size / diagram.count for part in bins], width, align="edge", color="#0b69a3")
        below.set_xlabel("confidence")
        below.set_xlim(0, 1)
        above.set_ylim(0, 1)
        for axes in (above, below):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
            axes.set_axisbelow(True)
    grid[0][0].set_ylabel("accuracy")
    grid[1][0].set_ylabel("share")
    grid[0][0].legend(frameon=False, fontsize=8)
    return save_plot(drawing, path)
