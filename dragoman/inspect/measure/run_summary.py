"""The summary of a run that `dragoman info` prints."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from dragoman.base import RunError, unguarded, visible
from dragoman.base import config as settings
from dragoman.data import SourceReader
from dragoman.inspect.options import InfoOptions
from dragoman.inspect.views.figures import INK, check_plot_path, new_figure, save_plot
from dragoman.inspect.views.layer_row import LayerRow, tensor_table
from dragoman.runs import (
    Run,
    best_trial,
    current_version,
    import_record,
    is_unfinished_search,
    list_versions,
    newest_state,
)
from dragoman.runs.tasks import encoder_of, length_limit
from dragoman.scoring import higher_is_better, metrics_by_name
from dragoman.training import BestAverageConfig, LastAverageConfig, MovingAverageConfig, duration

BARS = "▁▂▃▄▅▆▇█"


class Information(dict[str, Any]):
    """What there is to know of a run, as plain values for JSON."""

    def show(self) -> None:
        """Print it for a person, with the leaderboard of a search or of a run that a search made."""
        if "best" in self:
            use = f"use its best trial so far: dragoman predict {self['best']} FILE"
            print(f"{self['run']}: a search that is not finished; it goes on with: dragoman train {self['run']}")
            print(use if self["best"] else "none of its trials can be used yet")
        else:
            print_run_information(self)
        if (Path(self["run"]) / "versions" / "work").is_dir():
            print("\nan adaptation was stopped; it goes on with the same command again")
        leaderboard = Path(self["run"]) / "leaderboard.md"
        if leaderboard.is_file():
            print(f"\nsearch:\n{leaderboard.read_text(encoding='utf-8').rstrip()}")


def info(run: str | Path, options: InfoOptions | None = None) -> Information:
    """What there is to know of a run, as plain values for JSON; with `options.plot` also a picture of its training.

    Of a search that is not finished: its folder, and the run of its best trial so far.
    """
    options = options or InfoOptions()
    if is_unfinished_search(Path(run)):
        return Information(run=str(run), best=str(best_trial(Path(run)) or ""))
    opened = Run(run)
    if options.plot is not None:
        check_plot_path(options.plot)
        opened.check_single("--plot draws the curve of one")
    information = Information(run_information(str(run), options.depth))
    if options.plot is not None:
        draw_curves(opened.metrics(), options.plot, *curve_labels(opened), opened.folder.resolve().name)
    return information


def run_information(folder: str, depth: int = 3) -> dict[str, Any]:
    """Everything that `dragoman info` shows, as plain values for JSON."""
    run = Run(folder)
    source, target = run.tokenizers()
    members = [run, *run.other_members]
    steps = getattr(getattr(run.config.model, "pooling", None), "steps", 0)
    size = min(8, length_limit(encoder_of(run.config))[1] or 8, steps or 8)  # a small window reads no more
    layers: list[LayerRow] = []
    example = ""  # what the output shapes of layers are for
    if run.is_fitted:
        model = run.fitted_model()
        (layers, count), size_text = tensor_table(model), model.size
    elif len(members) > 1:
        count = sum(own_parameters(member) for member in members)
        size_text = f"{count:,} parameters in an ensemble of {len(members)} models"
    else:
        from dragoman.inspect.views.layer_table import layer_table, parameter_count

        model = run.task.model(run.config, source, target)
        batch = run.task.collator(run.config, source).dummy(2, size, 7)
        layers, count = layer_table(model, batch, depth), parameter_count(model)
        size_text = f"{count:,} parameters"
        streams = run.task.is_language_model
        example = f"2 streams of {size} tokens" if streams else describe_example(source, batch, size)
    metrics, state, current = run.metrics(), newest_state(run.folder), current_version(run)
    trained = [row for row in metrics if "loss" in row]
    validated = [row for row in metrics if "valid" in row]
    return {
        "run": folder,
        "task": run.config.task,
        "running": run.task.is_language_model,
        "fitted": run.is_fitted,
        "parameters": count,
        "size": size_text,
        "members": [member_information(member) for member in members] if len(members) > 1 else [],
        "layers": [layer._asdict() for layer in layers],
        "example": example,
        "data": run.data,
        "imported": import_record(folder),
        "vocabulary": {"source": [source.kind, len(source)], "target": [target.kind, len(target)]},
        "about": {"source": source.describe("source"), "target": target.describe("target")},
        "source_unit": source.unit if source.reads_files else "",
        "tags": list(source.tags),
        "labels": list(target.names),
        "steps": [max([row["step"] for row in metrics] + [state.step if state else 0]), run.config.train.steps],
        "seconds": max(metrics[-1]["seconds"] if metrics else 0.0, state.seconds if state else 0.0),
        "train": [{key: row[key] for key in ("step", "loss", "tokens_per_second")} for row in trained],
        "valid": [{"step": row["step"], **row["valid"]} for row in validated],
        "weights": "" if getattr(run.config.model, "fitted", False) else describe_weights(run, validated),
        "versions": [asdict(version) | {"current": version == current} for version in list_versions(run)],
        "config": settings.as_table(run.config),
        "torch": metadata.version("torch"),
    }


def own_parameters(run: Run) -> int:
    """The number of parameters of a neural run, of an ensemble those of its own model."""
    from dragoman.inspect.views.layer_table import parameter_count

    return parameter_count(run.task.model(run.config, *run.tokenizers()))


def member_information(run: Run) -> dict[str, Any]:
    validated = [{"step": row["step"], **row["valid"]} for row in run.metrics() if "valid" in row]
    parts = (getattr(run.config.model, part, None) for part in ("encoder", "decoder"))
    return {
        "run": str(run.folder),
        "model": "-".join(str(part.kind) for part in parts if part is not None) or run.config.model.kind,
        "parameters": own_parameters(run),
        "valid": dict(best_validation(validated, run.config.train.metric)) if validated else {},
    }


def curve_labels(run: Run) -> tuple[str, str]:
    """The label of the loss axis, and what only the training loss includes (dropout, label smoothing, …)."""
    if includes := run.config.train.objective.includes:
        return f"loss per {run.task.loss_unit}", includes
    table = settings.as_table(run.config.model)
    parts = {"dropout": "dropout", "label_smoothing": "smoothing", "augment": "augmentation"}
    parts_used = [word for key, word in parts.items() if has_nonzero(table, key)]
    return f"loss per {run.task.loss_unit}", f"with {' and '.join(parts_used)}" if parts_used else ""


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


def has_nonzero(table: Mapping[str, Any], key: str) -> bool:
    """Whether some setting with this name or name ending, at any depth, is neither 0 nor none."""
    for name, value in table.items():
        kind = value.get("kind", "none") if name == key and isinstance(value, Mapping) else "none"
        if kind != "none" or (name.endswith(key) and isinstance(value, float) and value > 0):
            return True
        if isinstance(value, Mapping) and has_nonzero(value, key):
            return True
    return False


def describe_example(source: SourceReader, batch: Any, size: int) -> str:
    targets = f"2 targets of {batch.target.shape[-1]}"
    if source.reads_files:
        return f"2 sources of {batch.source.data.shape[1]} {source.unit}, {targets} tokens"
    return f"2 sources of {size} tokens, {targets}"


def sparkline(values: list[float], width: int = 60) -> str:
    """A series as one line of bars; a series longer than `width` is sampled."""
    values = [value for value in values if math.isfinite(value)]
    if len(values) > width:
        values = [values[index * len(values) // width] for index in range(width)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    span = (high - low) or 1.0
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] for value in values)


def print_run_information(information: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(file=unguarded(sys.stdout), highlight=False, soft_wrap=True, markup=False, emoji=False)

    def show(text: str = "", style: str = "", end: str = "\n") -> None:
        console.print(visible(text), style=style, end=end)

    fitted = information["fitted"]
    members = information["members"]
    heads = ("tensor", "type", "shape", "numbers") if fitted else ("layer", "kind", "output", "parameters")
    layers = Table(*heads, box=None, pad_edge=False)
    layers.columns[3].justify = "right"
    for layer in information["layers"]:
        name, indent = visible(layer["name"]), "  " * layer["name"].count(".")
        layers.add_row(
            name if fitted else indent + name.rpartition(".")[2],
            layer["kind"],
            layer["shape"],
            f"{layer['parameters']:,}",
        )
    show(information["run"], style="bold", end="")
    show(f"  {information['task']}, {information['size']}")
    if members:
        show_members(members, show)
    else:
        console.print(layers)
        show("" if fitted else f"(output shapes for {information['example']})\n")
    data = information["data"]
    if about := information["imported"]:
        show(f"imported: {about['family']}, licence {about['licence'] or 'unknown'}")
    for part in ("train", "valid"):
        if not (counts := data[part]):
            continue  # an imported model has no data of its own
        if information["running"]:
            show(f"{part}: {counts['pairs']:,} lines, {counts['target_tokens']:,} tokens with their ends")
            continue
        unit = f" {information['source_unit']}" if information["source_unit"] else ""
        show(
            f"{part}: {counts['pairs']:,} pairs, {counts['source_tokens']:,} source{unit} and "
            f"{counts['target_tokens']:,} target tokens, {counts['too_long']:,} too long"
        )
    for side, text in information["about"].items():
        if information["running"] and side == "source":
            continue  # the target side is the same
        show(text)
    if information["labels"]:
        show(f"labels: {', '.join(information['labels'])}")
    if information["tags"]:
        counts = data.get("tags", {})
        show("tags: " + ", ".join(f"{tag} ({counts.get(tag, 0):,} pairs)" for tag in information["tags"]))
    if members:
        return
    step, steps = information["steps"]
    if information["imported"] and not step:
        show("not trained here")
    elif information["fitted"]:
        show(f"\nfitted in {information['seconds']:.1f} s" + (f", {step:,} iterations" if step else ""))
    else:
        show(f"\ntrained {step:,} of {steps:,} steps in {duration(information['seconds'])}")
    for name, rows in (("train", information["train"]), ("valid", information["valid"])):
        if rows and "loss" in rows[0]:
            losses = [row["loss"] for row in rows]
            show(f"{name} loss  {losses[0]:.3f} {sparkline(losses)} {losses[-1]:.3f}")
    if information["valid"]:
        best = (
            information["valid"][-1]
            if information["fitted"]
            else best_validation(information["valid"], information["config"]["train"]["metric"])
        )
        when = "validation" if information["fitted"] else f"validation at step {best['step']:,}"
        show(f"{when}: {format_scores(best)}")
    if information["versions"]:
        show_versions(information["versions"], show)
    elif information["weights"]:
        show(information["weights"])


def show_versions(versions: Sequence[Mapping[str, Any]], show: Callable[[str], None]) -> None:
    """One line for each version and each attempt, with the scores that decided."""
    show("\nversions:")
    for version in versions:
        mark = "in use" if version["current"] else "" if version["kept"] else "not kept"
        show(f"  {version['number'] or '–'}  {version['made']}  {version['origin']}" + (f"  ({mark})" if mark else ""))
        for part, about in (("held_out", "held-out corrections"), ("general", "general text")):
            for name, scores in version["details"].get(part, {}).items():
                if name not in (metrics := metrics_by_name()):
                    continue  # numbers of the judgement, such as how many segments it had
                before, after = (metrics[name].format(scores[when]) for when in ("before", "after"))
                show(f"       {about}: {name} {before} → {after} (p = {scores['p']:.3f})")


def show_members(members: Sequence[Mapping[str, Any]], show: Callable[[str], None]) -> None:
    """The members of an ensemble, each with its size and its own validation."""
    for member in members:
        show(f"  {member['run']}: {member['model']}, {member['parameters']:,} parameters")
        if member["valid"]:
            show(f"    validation alone, at step {member['valid']['step']:,}: {format_scores(member['valid'])}")
    show(f"(dragoman info {members[-1]['run']} shows the layers and the curve of a member)\n")


def best_validation(rows: Sequence[Mapping[str, Any]], metric: str) -> Mapping[str, Any]:
    sign = 1 if higher_is_better(metric) else -1
    return max(rows, key=lambda row: sign * row.get(metric, -sign * math.inf))


def format_scores(row: Mapping[str, Any]) -> str:
    metrics = metrics_by_name()
    return "  ".join(f"{name} {metrics[name].format(value)}" for name, value in row.items() if name in metrics)


def describe_weights(run: Run, validated: list[dict[str, Any]]) -> str:
    train = run.config.train
    try:
        path = run.weights_path()
    except RunError as error:
        return f"predict has no weights: {error}"
    if path.parent != run.folder:
        return f"predict uses the weights of the newest checkpoint, {path.parent.name}: no validation is done yet"
    steps = sorted(int(path.stem) for path in (run.folder / "best").glob("*.safetensors") if path.stem.isdigit())
    if not steps or not validated:
        return "predict uses weights.safetensors"
    average = train.average
    if isinstance(average, LastAverageConfig):
        steps = sorted(row["step"] for row in validated)[-average.count :]
        shown = ", ".join(f"{step:,}" for step in steps)
        return f"predict uses the mean of the weights of steps {shown}: the last validations"
    if isinstance(average, BestAverageConfig) and len(steps) > 1:
        shown = ", ".join(f"{step:,}" for step in steps)
        return f"predict uses the mean of the weights of steps {shown}: the {len(steps)} best by {train.metric}"
    moving = ", a moving average" if isinstance(average, MovingAverageConfig) else ""
    best = best_validation([{"step": row["step"], **row["valid"]} for row in validated], train.metric)["step"]
    return f"predict uses the weights of step {best:,}{moving}: the best {train.metric} of {len(validated)} validations"
