"""The model card of a run: what it was trained on and how, its scores, its licence, the command that repeats it.

Mitchell et al. 2019, "Model Cards for Model Reporting". Everything is read from the run folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dragoman.base import DataError, __version__
from dragoman.data import paths_of
from dragoman.inference.engine import Exporter
from dragoman.runs import Run, hardware_of, import_record
from dragoman.scoring import metrics_by_name

CARD = "MODEL_CARD.md"  # in every export that is a folder
CARD_OPTIONS = ("scores", "licence")  # of every export, since each has a card
SIZES = ("source_tokens", "target_tokens")
LIKELIHOOD = {"loss": ".3f", "perplexity": ".2f", "token_accuracy": ".1%"}


class CardExporter(Exporter):
    """The exporter of `dragoman export --to card`."""

    name = "card"
    about = "a model card in Markdown: data, training, scores, licence"
    options = CARD_OPTIONS

    def blockers(self, run: Run) -> list[str]:
        return []

    def export(self, run: Run, path: Path, options: Mapping[str, str]) -> None:
        path.write_text(model_card(run, options), encoding="utf-8")


def model_card(run: Run, options: Mapping[str, str]) -> str:
    """The card as Markdown; `options` are those of CARD_OPTIONS."""
    tested = [section("Scores of a test set", test_rows(options["scores"]))] if "scores" in options else []
    parts = [
        f"# {run.folder.resolve().name}",
        f"A run of Dragoman {__version__}, task `{run.task.name}`.",
        section("Model", model_rows(run)),
        section("Training data", data_rows(run)),
        section("Training", training_rows(run)),
        *tested,
        section("Scores of validation", score_rows(run)),
        score_note(run, bool(tested)),
        section("Licence", licence_rows(run, options.get("licence"))),
        "## How to repeat it",
        f"`config.toml` of the run has every setting:\n\n```\ndragoman train config.toml --run {run.folder.name}\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def section(title: str, rows: Iterator[tuple[str, str]]) -> str:
    lines = [f"| {name} | {escaped(value)} |" for name, value in rows]
    return "\n".join([f"## {title}", "", "| | |", "|---|---|", *lines])


def escaped(text: str) -> str:
    """A text as the cell of a table: on one line, and no column ends inside it."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def model_rows(run: Run) -> Iterator[tuple[str, str]]:
    config: Any = run.config.model
    yield "kind", config.kind
    for side in ("encoder", "decoder"):
        if (stack := getattr(config, side, None)) is not None:
            sizes = [f"{name} {getattr(stack, name)}" for name in ("layers", "width", "heads") if hasattr(stack, name)]
            yield side, ", ".join([stack.kind, *sizes])
    for side, reader in zip(("source", "target"), run.tokenizers(), strict=True):
        yield side, reader.describe(side).partition(": ")[2]
    yield "weights", f"blake2b {run.weights_digest()}"


def data_rows(run: Run) -> Iterator[tuple[str, str]]:
    report = run.data
    names = [Path(str(path)).name for path in paths_of(run.config.data.train)]
    yield "files", ", ".join(names)
    for part, title in (("train", "for training"), ("valid", "for validation")):
        table = report[part]
        tokens = [f"{table[name]:,} {name.replace('_', ' ')}" for name in SIZES if name in table]
        yield title, ", ".join([f"{table.get('pairs', 0):,} examples", *tokens])
    if faults := report.get("faults"):
        yield "left out", ", ".join(f"{count:,} × {kind}" for kind, count in faults.items())
    yield "fingerprint", str(report["fingerprint"])


def training_rows(run: Run) -> Iterator[tuple[str, str]]:
    rows = run.metrics()
    steps = max((int(row["step"]) for row in rows if "step" in row), default=0)
    seconds = max((float(row.get("seconds", 0.0)) for row in rows), default=0.0)
    yield "steps", f"{steps:,}"
    yield "time", f"{seconds / 3600:.2f} hours" if seconds else "not recorded"
    yield "hardware", (seconds and hardware_of(run.folder)) or "not recorded"  # an imported run was trained elsewhere
    yield "seed", str(run.config.train.seed)
    if start := run.config.train.pretrained:
        yield "started from", str(start)


def best_validation(run: Run) -> dict[str, Any]:
    """The validation that the weights are those of: the best by the metric of training."""
    rows = [row for row in run.metrics() if isinstance(row.get("valid"), dict)]
    name = run.config.train.metric
    scored = [row for row in rows if isinstance(row["valid"].get(name), int | float)]
    if not scored:
        return rows[-1] if rows else {}
    better = max if name in metrics_by_name() and metrics_by_name()[name].higher_is_better else min
    return better(scored, key=lambda row: float(row["valid"][name]))


def score_rows(run: Run) -> Iterator[tuple[str, str]]:
    best, metrics = best_validation(run), metrics_by_name()
    yield "step", f"{best.get('step', 0):,}"
    for name, value in best.get("valid", {}).items():
        if isinstance(value, int | float):
            yield name, metrics[name].format(value) if name in metrics else f"{value:{LIKELIHOOD.get(name, '.4g')}}"


def test_rows(path: str) -> Iterator[tuple[str, str]]:
    """What `dragoman evaluate --json` printed to a file: every score with its interval and signature."""
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
        bounds, signatures = dict(table.get("intervals", {})), dict(table.get("signatures", {}))
        scores = {name: float(value) for name, value in table.items() if isinstance(value, int | float)}
        pairs = {name: tuple(map(float, bounds[name])) for name in scores if name in bounds}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"--scores {path}: found no scores ({error}), expected the output of `dragoman evaluate --intervals --json`"
        ) from None
    metrics = metrics_by_name()
    for name, value in scores.items():
        if name not in metrics:
            yield name, f"{value:{LIKELIHOOD.get(name, ',.6g')}}"
            continue
        parts = [metrics[name].format(value)]
        if name in pairs:
            parts.append(f"95 % interval {' to '.join(map(metrics[name].format, pairs[name]))}")
        if name in signatures:
            parts.append(str(signatures[name]))
        yield name, "; ".join(parts)


def score_note(run: Run, tested: bool) -> str:
    decoded = run.config.train.decode
    advice = (
        " `--scores FILE` adds those of a test set with confidence intervals and signatures; "
        f"`dragoman evaluate {run.folder.name} test.tsv --intervals --json > FILE` writes them."
    )
    return (
        f"Scores of validation were measured during training{f', of text on {decoded:,} lines' if decoded else ''}. "
        f"They chose the weights, so they are optimistic.{'' if tested else advice}"
    )


def licence_rows(run: Run, named: str | None) -> Iterator[tuple[str, str]]:
    record = import_record(run.folder)
    if record:
        yield "imported model", f"{record['family']}, {record['licence'] or 'no licence named; ask its publisher'}"
    yield "this run", named or "not named (`--licence`); the licences of the training data decide what you may choose"
