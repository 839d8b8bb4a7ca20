"""Compare systems: scores, learning curves, lengths, significance, outputs, attention, gradients, cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.base import DataError, DragomanError
from dragoman.classical import FittedModel
from dragoman.data import Example
from dragoman.inference import Predictor, as_examples, ignore_unknown, in_letters, load_predictor
from dragoman.inspect.measure.cost import (
    THEORY,
    LayerCost,
    benchmarked_layers,
    growth_exponents,
    measure_layers,
    saved_bytes,
)
from dragoman.inspect.measure.padding_view import padding_view
from dragoman.inspect.views.attention_layers import attention_layers, over_words
from dragoman.inspect.views.free_running import free_running, runs_freely
from dragoman.inspect.views.gradients import GradientFlow, UntrainedFlow, gradient_flow
from dragoman.inspect.views.layer_table import parameter_count
from dragoman.inspect.views.subject import open_subject
from dragoman.inspect.views.view import View
from dragoman.runs import Run
from dragoman.scoring import (
    Statistics,
    TextMetric,
    align_edits,
    bootstrap,
    by_length,
    higher_is_better,
    interval,
    metrics_for,
    paired_bootstrap,
    score_buckets,
    select_metrics,
    text_length,
    text_statistics,
)

SHOWN = 40  # outputs side by side
MAX_GRADIENT_TOKENS = 60
MEMORY_ROWS = 32
MAX_FREE_RUNNING = 500  # test pairs
TIME_TO_TARGET = "Time to target is the training time until it reaches a validation score that all reach."
TOKEN_METRICS = ("loss", "perplexity")
COST_LENGTHS = (128, 256, 512, 1024, 2048)
Say = Callable[[str], None]


@dataclass(frozen=True)
class System:
    """One system: its outputs for the test set, and for trained runs everything measured about them."""

    name: str
    outputs: list[str]  # of the first seed
    statistics: dict[str, Statistics]
    seeds: dict[str, list[float]]  # metric → score of every seed
    folders: tuple[Path, ...] = ()
    measured: dict[str, Any] = field(default_factory=dict)  # parameters, speed, memory, curves; empty: outputs alone


def measure_run(
    name: str, folders: Sequence[Path], test: Sequence[Example], metrics: Mapping[str, TextMetric], device: str
) -> System:
    """Decode the test set with every seed of a system and measure its cost."""
    sources, references = [example.source for example in test], [example.references for example in test]
    seeds: dict[str, list[float]] = {metric: [] for metric in metrics}
    first: tuple[list[str], dict[str, Statistics]] | None = None
    measured: dict[str, Any] = {}
    for folder in folders:
        predictor = load_predictor(folder, device, split_long=False)
        list(predictor.stream(sources[:8], on_unknown=ignore_unknown))  # warm up
        started = time.perf_counter()
        outputs = [prediction.text for prediction in predictor.predict(sources)]
        seconds = time.perf_counter() - started
        counts = text_statistics(outputs, references, metrics, sources)
        for metric, how in metrics.items():
            seeds[metric].append(how.score(counts[metric]))
        if first is None:
            first = outputs, counts
            measured = run_cost(predictor, test, len(sources) / seconds)
    assert first is not None
    return System(name, first[0], first[1], seeds, tuple(folders), measured)


def run_cost(predictor: Predictor, test: Sequence[Example], sentences_per_second: float) -> dict[str, Any]:
    several = len(predictor.members) > 1  # the curves of a member are not those of an ensemble
    rows = [] if several else predictor.run.metrics()
    logged = [row for row in rows if "tokens" in row]
    valid = [row for row in rows if "valid" in row]
    model = predictor.model
    examples = list(test[:MEMORY_ROWS])
    encoded = predictor.codec.encode_pairs(
        [example.source for example in examples], [example.references[0] for example in examples]
    )
    batch = predictor.collator.collate(*encoded).to(predictor.device)
    fitted = isinstance(model, FittedModel)
    closed = fitted or several  # nothing to look into
    config = predictor.run.config.model
    parts = (config, *(getattr(config, side, None) for side in ("encoder", "decoder")))
    return {
        "kind": " ".join(part.kind for part in parts if part is not None),
        "parameters": sum(tensor.size for tensor in model.tensors.values()) if fitted else parameter_count(model),
        # All of the training counts: start-up, validation and checkpoints too.
        "training_tokens_per_second": logged[-1]["tokens"] / max(1e-9, logged[-1]["seconds"]) if logged else None,
        "decoding_sentences_per_second": sentences_per_second,
        "beam": predictor.search.beam,
        "batch_size": predictor.defaults.batch_size,
        "activation_bytes": None if closed else saved_bytes(model, lambda: model(batch).total),
        "training_seconds": rows[-1]["seconds"] if rows else None,
        "steps": rows[-1]["step"] if rows else None,
        "metric": predictor.config.train.metric,
        "vocabulary": hash(tuple(predictor.target_tokenizer.pieces(range(len(predictor.target_tokenizer))))),
        "layers": () if closed else benchmarked_layers(model),
        "validation": [str(getattr(predictor.config.data, name)) for name in ("train", "valid", "holdout")],
        "loss": [(row["step"], row["seconds"], row["loss"]) for row in rows if "loss" in row and "valid" not in row],
        "valid": [(row["step"], row["seconds"], row["valid"]) for row in valid],
    }


def time_to_target(systems: Sequence[System]) -> tuple[str, float] | None:
    """(metric, score) that every trained system reaches; None: there is none, or their validation data differ."""
    trained = [system for system in systems if system.measured and system.measured["valid"]]
    metric = common_metric(trained) if trained and same_validation(trained) else None
    if metric is None:
        return None
    better, worse = (max, min) if higher_is_better(metric) else (min, max)
    scores = [[valid[metric] for _, _, valid in run.measured["valid"] if metric in valid] for run in trained]
    return metric, worse(better(values) for values in scores)


def common_metric(trained: Sequence[System]) -> str | None:
    """A metric of validation that means the same for all: losses are of tokens, and vocabularies differ."""
    measured = [system.measured for system in trained if system.measured]
    same = len({run.get("vocabulary") for run in measured}) <= 1
    last = [run["valid"][-1][2] for run in measured]  # scores of the last validation of each
    names = (name for name in (measured[0]["metric"], *last[0]) if all(name in scores for scores in last))
    return next((name for name in names if same or name not in TOKEN_METRICS), None)


def same_validation(trained: Sequence[System]) -> bool:
    return len({str(system.measured["validation"]) for system in trained if system.measured}) <= 1


def seconds_to(system: System, metric: str, target: float) -> float | None:
    """Training seconds until the first validation that reaches a score."""
    for _, seconds, valid in system.measured["valid"]:
        value = valid.get(metric)
        if value is not None and (value >= target if higher_is_better(metric) else value <= target):
            return float(seconds)
    return None


# --- views


def table_view(systems: Sequence[System], metrics: Mapping[str, TextMetric], draws: int, seed: int) -> View:
    target = time_to_target(systems)
    rows = []
    for system in systems:
        scores = {}
        for name, metric in metrics.items():
            low, high = interval(bootstrap(metric, system.statistics[name], draws, seed))
            values = [metric.scale * value for value in system.seeds[name]]
            scores[name] = {
                "score": statistics.mean(values),
                "seeds": values,
                "low": metric.scale * low,
                "high": metric.scale * high,
            }
        unshown = ("loss", "valid", "metric", "layers", "validation", "vocabulary")
        costs = {key: value for key, value in system.measured.items() if key not in unshown}
        if target is not None and system.measured:
            costs["seconds_to_target"] = seconds_to(system, *target)
        rows.append({"name": system.name, "scores": scores, **costs})
    return View(
        "scores",
        "Scores",
        "Every score has its 95 % interval, drawn by bootstrap over the test set. The other columns say what each "
        "system costs." + ("" if target is None else f" {TIME_TO_TARGET}"),
        {
            "rows": rows,
            "metrics": [
                {"name": name, "label": metric.label, "higher": metric.higher_is_better}
                for name, metric in metrics.items()
            ],
            "target": None if target is None else {"metric": target[0], "score": target[1]},
        },
    )


def curves_view(systems: Sequence[System]) -> View | None:
    trained = [system for system in systems if system.measured and system.measured["valid"]]
    if not trained:
        return None
    return View(
        "curves",
        "Learning curves",
        "Validation scores during training, by step or by time. Steps show how much a system learns from the same "
        "batches, time shows what that costs."
        + ("" if same_validation(trained) else " These systems were validated on different data."),
        {
            "systems": [
                {"name": system.name, "valid": system.measured["valid"], "loss": system.measured["loss"]}
                for system in trained
            ],
            "metrics": sorted({key for system in trained for _, _, valid in system.measured["valid"] for key in valid}),
            "metric": common_metric(trained) or trained[0].measured["metric"],
        },
    )


def length_view(
    systems: Sequence[System], sources: Sequence[str], metrics: Mapping[str, TextMetric], draws: int
) -> View:
    """The first metric by the number of source words, or letters of single words."""
    name, metric = next(iter(metrics.items()))
    letters = in_letters(sources)
    buckets = by_length(sources, letters=letters)
    return View(
        "lengths",
        "Score by length",
        f"Test {'words' if letters else 'sentences'} in groups of like length, with bootstrap intervals. A model that "
        "squeezes the source into one vector gets worse with length; attention does not.",
        {
            "metric": metric.label,
            "higher": metric.higher_is_better,
            "unit": "letters" if letters else "words",
            "buckets": [bucket.label for bucket in buckets],
            "systems": [
                {
                    "name": system.name,
                    "points": [
                        [*(metric.scale * value for value in (part.score, *part.interval)), part.segments]
                        for part in score_buckets(metric, system.statistics[name], buckets, draws=draws)
                    ],
                }
                for system in systems
            ],
        },
    )


def significance_view(
    systems: Sequence[System], metrics: Mapping[str, TextMetric], draws: int, seed: int
) -> View | None:
    """p-values of all pairs of systems by paired bootstrap."""
    if len(systems) < 2:
        return None
    tables = []
    for name, metric in metrics.items():
        drawn = [bootstrap(metric, system.statistics[name], draws, seed) for system in systems]
        scores = [metric.score(system.statistics[name]) for system in systems]
        size = len(systems)
        differences = [[metric.scale * (scores[row] - scores[column]) for column in range(size)] for row in range(size)]
        values: list[list[float | None]] = [[None] * size for _ in range(size)]
        for row, column in combinations(range(size), 2):
            p_value = paired_bootstrap(drawn[row], drawn[column], scores[row] - scores[column])
            values[row][column] = values[column][row] = p_value
        tables.append(
            {"metric": metric.label, "p": values, "differences": differences, "higher": metric.higher_is_better}
        )
    return View(
        "significance",
        "Significance",
        "Each cell is the difference between the system of the row and that of the column, with its p-value by paired "
        "bootstrap: how often chance alone would give a difference as large. Not corrected for the number of pairs.",
        {"systems": [system.name for system in systems], "metrics": tables},
    )


def ngrams_view(
    systems: Sequence[System], references: Sequence[Sequence[str]], metrics: Mapping[str, TextMetric]
) -> View | None:
    """The terms of BLEU for every system, and which n-grams of some outputs match."""
    metric = next((metric for metric in metrics.values() if metric.apart is not None), None)
    if metric is None or metric.apart is None or in_letters([texts[0] for texts in references]):
        return None  # single words have no n-grams
    apart = {system.name: metric.apart(system.outputs, references) for system in systems}
    picked = shown_rows(len(references))
    segments = {name: terms.pop("segments") for name, terms in apart.items()}
    return View(
        "ngrams",
        f"{metric.label} taken apart",
        f"{metric.label} is the geometric mean of four precisions: the shares of 1- to 4-grams of an output that its "
        "reference has too. Outputs shorter than their references are punished by the brevity penalty.",
        {
            "metric": metric.label,
            "systems": [{"name": name, **terms} for name, terms in apart.items()],
            "rows": [
                {"reference": references[index][0], "outputs": [segments[name][index] for name in apart]}
                for index in picked
            ],
        },
    )


def shown_rows(count: int) -> range:
    """Numbers of some test pairs, spread evenly."""
    return range(0, count, max(1, count // SHOWN))[:SHOWN]


def outputs_view(systems: Sequence[System], sources: Sequence[str] | None, references: Sequence[Sequence[str]]) -> View:
    """Outputs side by side; words, or letters of single words, that differ from the reference are marked."""
    letters = in_letters([texts[0] for texts in references])
    unit, split = ("letters", list[str]) if letters else ("words", str.split)
    how = metrics_for("words")["cer" if letters else "wer"]
    rates = np.stack([how.combine(how.statistics(system.outputs, references).rows) for system in systems])
    spread = rates.max(0) - rates.min(0)  # (S,), of the error rates
    rows = []
    for index in sorted({*shown_rows(len(references)), *np.argsort(-spread, kind="stable")[:SHOWN].tolist()}):
        reference = references[index][0]
        edits = [align_edits(split(reference), split(system.outputs[index])) for system in systems]
        outputs = [list(map(list, edit.operations)) for edit in edits]
        source = None if sources is None else sources[index]
        rows.append(
            {
                "number": index + 1, "source": source, "reference": reference, "outputs": outputs,
                "rates": rates[:, index].tolist(), "spread": float(spread[index]),
            }
        )  # fmt: skip
    return View(
        "outputs",
        "Outputs",
        f"The output of every system for some sources: spread evenly over the test set, and those where the systems "
        f"differ most. Green {unit} are not in the reference, struck {unit} of the reference are missing.",
        {"systems": [system.name for system in systems], "rows": rows, "unit": unit},
    )


def inside_views(systems: Sequence[System], test: Sequence[Example], sentence: str | None, device: str) -> list[View]:
    """Attention of each system for one sentence, and gradient flow of the recurrent ones over a long one."""
    letters = in_letters([example.source for example in test])
    lengths = sorted(test, key=lambda example: text_length(example.source, letters))
    middle = sentence or lengths[len(lengths) // 2].source
    long = lengths[int(len(lengths) * 0.97)].source
    maps: list[dict[str, Any]] = []
    flows: list[tuple[str, GradientFlow]] = []
    for system in systems:
        if not system.folders:
            continue
        predictor = load_predictor(system.folders[0], device)
        fitted = isinstance(predictor.model, FittedModel)
        if fitted and not predictor.model.shows_alignment:  # nothing to draw
            continue
        try:
            subject = open_subject(predictor, middle)
            crosses = [layer for layer in attention_layers(subject) if layer.kind == "cross"]
            if crosses:
                layer = crosses[-2] if len(crosses) > 2 else crosses[-1]
                weights, rows, columns = over_words(layer.weights, layer.rows, layer.columns)
                maps.append(
                    {
                        "name": system.name, "layer": layer.name, "weights": weights.mean(0), "rows": rows,
                        "columns": columns, "output": subject.target.text,
                    }
                )  # fmt: skip
            else:
                maps.append({"name": system.name, "layer": None, "weights": None, "output": subject.target.text})
            if fitted:
                continue
            far = open_subject(predictor, long)
            if len(far.source or ()) <= MAX_GRADIENT_TOKENS:
                flows += [(system.name, flow) for flow in gradient_flow(far)[:1]]
        except DragomanError:
            continue
    views = []
    if any(shown["weights"] is not None for shown in maps):
        views.append(
            View(
                "attentions",
                "Attention",
                "The attention of every neural system for the same source, averaged over the heads of one layer; of a "
                "word aligner the probabilities of its links, of a phrase-based system its phrases. Neural "
                "systems without attention read the source only through one vector.",
                {"sentence": middle, "maps": maps},
            )
        )
    if flows:
        views.append(
            View(
                "flows",
                "Gradient flow",
                "How strongly the encoder's last state depends on the state some steps earlier, in a long source. "
                "In a plain network this shrinks or grows exponentially, below the dashed bound; a gated cell learns "
                "how fast to forget, and follows the product of its forget gates.",
                {
                    "sentence": long,
                    "flows": [{**vars(flow), "name": f"{name}: {flow.name}", "loss": None} for name, flow in flows],
                },
            )
        )
    return views


def forcing_views(systems: Sequence[System], test: Sequence[Example], device: str, say: Say) -> list[View]:
    """Accuracy by position with right and own inputs, and with padding, of systems that write token by token."""
    rows = list(test[:: max(1, len(test) // MAX_FREE_RUNNING)])[:MAX_FREE_RUNNING]
    sources, targets = [row.source for row in rows], [row.references[0] for row in rows]
    found, readers = [], []
    for system in systems:
        predictor = load_predictor(system.folders[0], device)
        if len(predictor.members) > 1 or predictor.reads_files or not runs_freely(predictor.model):
            continue
        say(f"teacher forcing against free running: {len(rows):,} test pairs with {system.name}")
        found.append({"name": system.name, **free_running(predictor, sources, targets)._asdict()})
        readers.append(predictor)
    if not found:
        return []
    exposure = View(
        "exposure",
        "Teacher forcing",
        "Right tokens by position: with the reference as input, as in training (solid), and with the system's own "
        "tokens, as in use (dashed). The gap is exposure bias. A token counts at its own position only, so a missing "
        "word makes the rest wrong. Outputs are greedy.",
        {"systems": found, "pairs": len(rows)},
    )
    return [exposure, padding_view(readers[0], sources, targets, found)]


def untrained_views(cells: Sequence[UntrainedFlow], weights: Sequence[UntrainedFlow]) -> list[View]:
    """Gradients of cells before training, and of plain networks by the size of their recurrent matrix."""
    inputs = "random vectors"
    return [
        View(
            "flows",
            "Cells before training",
            "How strongly the last state depends on the state some steps earlier, before anything is learned. In a "
            "plain network it shrinks by the same factor at every step; gates and skip connections keep a path open.",
            {"sentence": inputs, "flows": [flow._asdict() for flow in cells]},
        ),
        View(
            "weights",
            "By recurrent weight",
            "A plain network whose recurrent matrix is a rotation times σ₁. Gradients vanish below 1 and explode above "
            "it.",
            {"sentence": inputs, "flows": [flow._asdict() for flow in weights]},
        ),
    ]


def cost_view(systems: Sequence[System], say: Say) -> View | None:
    """Measured cost of the layers that the systems are made of, against length, on the CPU; None: they have none.

    A GPU computes sentences of these lengths in the time of its launches, which says nothing about growth.
    """
    names = list(dict.fromkeys(name for system in systems for name in system.measured.get("layers", ())))
    if not names:
        return None
    say(f"measuring the cost against length of {', '.join(names)}, up to {COST_LENGTHS[-1]:,} tokens")

    def report(cost: LayerCost) -> None:
        say(f"  {cost.layer}, {cost.length:,} tokens: {1000 * cost.seconds:.1f} ms")

    costs = measure_layers(COST_LENGTHS, report, min_seconds=0.05, names=names)
    fits = growth_exponents(costs)
    return View(
        "cost",
        "Cost against length",
        "Time and memory of one layer of each kind that these systems have, measured on one CPU core; the "
        "exponent is the slope on the longer half, 1 for a cost in proportion to the length, 2 for its square. "
        "Operations, how many must wait for each other, and the longest path between two positions are those of theory "
        "(Vaswani et al. 2017): n tokens, width d, kernel k, window r.",
        {
            "layers": [
                {
                    "name": fit.layer, "seconds_exponent": fit.seconds, "saved_exponent": fit.saved,
                    "expected": fit.expected, "expected_saved": fit.expected_saved,
                    **{name: getattr(THEORY[fit.layer], name) for name in ("operations", "sequential", "path")},
                    "points": [(cost.length, cost.seconds, cost.saved) for cost in costs if cost.layer == fit.layer],
                }
                for fit in fits
            ]
        },
    )  # fmt: skip


def story_view(steps: Sequence[tuple[str, int, str, Sequence[str]]], scores: Mapping[str, Any]) -> View:
    """For each step of a ladder: its name and year, what changes and why, the views that show it, score and costs."""
    rows, metric = {row["name"]: row for row in scores["rows"]}, scores["metrics"][0]
    told: list[dict[str, Any]] = []
    costs = ("parameters", "training_tokens_per_second", "decoding_sentences_per_second")
    for name, year, change, figures in steps:
        own = rows[name]["scores"][metric["name"]]
        line = f"Here it scores {own['score']:.1f} {metric['label']} ({own['low']:.1f} to {own['high']:.1f})"
        if told:
            before = told[-1]["name"]
            difference = own["score"] - told[-1]["score"]
            more = f"{abs(difference):.1f} {'more' if difference > 0 else 'less'} than"
            line += f", {more if abs(difference) >= 0.05 else 'as much as'} the {before}"
        told.append(
            {
                "name": name, "year": year, "text": f"{change} {line}.", "score": own["score"], "low": own["low"],
                "high": own["high"], "figures": list(figures), **{cost: rows[name].get(cost) for cost in costs},
            }
        )  # fmt: skip
    return View(
        "story",
        "The ladder",
        "Each step changes one thing and trains on the same pairs; the networks have the same batches and budget. The "
        "figures in the text are those of these runs.",
        {"steps": told, "metric": metric["label"], "higher": metric["higher"]},
    )


def compare_runs(
    runs: Mapping[str, Sequence[Path]],
    test: Sequence[Example],
    *,
    metrics: Sequence[str],
    draws: int,
    seed: int,
    device: str,
    sentence: str | None,
    cost: bool,
    say: Say,
) -> list[View]:
    """Evaluate trained runs on test pairs; every entry of `runs` has the folders of its seeds."""
    if not test:
        raise DataError("nothing to compare on: no test pair was read")
    test = as_examples(list(test))
    first = Run(next(iter(runs.values()))[0])
    chosen = chosen_metrics(first, metrics, in_letters([example.references[0] for example in test]))
    systems = []
    for name, folders in runs.items():
        say(f"decoding {len(test):,} test pairs with {name}")
        systems.append(measure_run(name, folders, test, chosen, device))
    sources, references = [example.source for example in test], [example.references for example in test]
    views = [
        table_view(systems, chosen, draws, seed),
        curves_view(systems),
        length_view(systems, sources, chosen, draws),
        significance_view(systems, chosen, draws, seed),
        ngrams_view(systems, references, chosen),
        outputs_view(systems, sources, references),
        *inside_views(systems, test, sentence, device),
    ]
    if cost:
        views += forcing_views(systems, test, device, say)
        views.append(cost_view(systems, say))
    return [view for view in views if view is not None]


def chosen_metrics(run: Run, asked: Sequence[str], letters: bool) -> dict[str, TextMetric]:
    """The metrics that were asked for, else those of the task after the one that chose the run's checkpoints.

    Single words are scored without BLEU and TER, whose n-grams and shifts of words they do not have.
    """
    units = run.config.data.units
    if asked:
        return select_metrics(tuple(asked), units)
    names = list(select_metrics(run.task.default_metrics, units))
    first = run.config.train.metric
    if first not in metrics_for(units):
        first = "cer" if letters else names[0]
    elif letters and first == "bleu":
        first = "cer"
    wordy = ("bleu", "ter", "chrf++", "wer") if letters else ()
    return select_metrics((first, *(name for name in names if name != first and name not in wordy)), units)


def compare_texts(
    systems: Mapping[str, list[str]],
    references: Sequence[Sequence[str]],
    metrics: Mapping[str, TextMetric],
    draws: int,
    seed: int,
    sources: Sequence[str] | None = None,
) -> list[View]:
    """The views of systems of which only the outputs are known."""
    if in_letters([texts[0] for texts in references]):  # BLEU of single words is 0
        metrics = dict(sorted(metrics.items(), key=lambda item: item[0] not in ("cer", "exact_match")))
    compared = []
    for name, outputs in systems.items():
        counted = text_statistics(outputs, references, metrics, sources)
        scores = {metric: [how.score(counted[metric])] for metric, how in metrics.items()}
        compared.append(System(name, outputs, counted, scores))
    views = [
        table_view(compared, metrics, draws, seed),
        length_view(compared, sources or [texts[0] for texts in references], metrics, draws),
        significance_view(compared, metrics, draws, seed),
        ngrams_view(compared, references, metrics),
        outputs_view(compared, sources, references),
    ]
    return [view for view in views if view is not None]
