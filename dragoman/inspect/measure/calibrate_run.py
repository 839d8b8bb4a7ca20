"""`calibrate`: fit the confidences of a run, and draw how right they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.data import Pairs
from dragoman.inference import load_predictor
from dragoman.inspect.measure import calibration as confidence
from dragoman.inspect.options import CalibrateOptions
from dragoman.inspect.views.figures import INK, PAPER, check_plot_path, new_figure, save_plot
from dragoman.scoring import Reliability, RiskPoint, at_error_rate


class Calibrated(NamedTuple):
    """A fitted calibration, its file, and with an error rate the point that leaves this share of wrong outputs."""

    calibration: confidence.Calibration
    path: Path
    error_rate: float | None
    point: RiskPoint | None  # None: no confidence leaves so few, or no error rate was asked for

    def as_dict(self) -> dict[str, Any]:
        point = self.point and self.point._asdict()
        return self.calibration.as_dict() | ({} if self.error_rate is None else {"min_confidence": point})

    def lines(self) -> Iterator[str]:
        yield from self.calibration.lines()
        yield f"written: {self.path}"
        if self.point is not None:
            yield str(self.point)
        elif self.error_rate is not None:
            lowest = min(self.calibration.outputs.risk, key=lambda point: point.error)
            yield f"no min_confidence leaves at most {self.error_rate:.1%} wrong outputs; the best: {lowest}"


def calibrate(run: str | Path, files: str | Pairs | None = None, options: CalibrateOptions | None = None) -> Calibrated:
    """Fit confidences on pairs of a file or those that training set aside, and write them into the run folder."""
    options = options or CalibrateOptions()
    for picture in (options.plot, options.risk_plot):
        if picture is not None:
            check_plot_path(picture)
    predictor = load_predictor(run, options.device)
    rows = None if files is None else confidence.read_rows(predictor, files, options.tag)
    found = confidence.calibrate(predictor, rows, bins=options.bins, batch_size=options.batch_size)
    path, curve = confidence.save_calibration(predictor, found), found.outputs.risk
    if options.plot is not None:
        panels = {
            "tokens, as trained": found.before.reliability,
            "tokens, calibrated": found.after.reliability,
            "outputs, as trained": found.outputs.before,
            "outputs, calibrated": found.outputs.after,
        }
        draw_reliability(panels, options.plot, title=Path(run).name)
    if options.risk_plot is not None:
        draw_risk_coverage(curve, options.risk_plot, title=Path(run).name)
    point = None if options.error_rate is None else at_error_rate(curve, options.error_rate)
    return Calibrated(found, path, options.error_rate, point)


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
