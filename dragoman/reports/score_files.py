"""Score files of texts, for `dragoman score` and `dragoman compare`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dragoman.analysis.figures import check_plot_path
from dragoman.data.readers.lines import read_lines
from dragoman.errors import DataError
from dragoman.reports.score_plots import draw_buckets, draw_comparison, draw_edit_table
from dragoman.reports.text_tables import alignment_lines, bucket_lines, ngram_lines
from dragoman.scoring.buckets import Bucket, by_frequency, by_length, by_tag, score_buckets
from dragoman.scoring.edit import MARKS, all_edit_alignments
from dragoman.scoring.error_rates import edit_alignments
from dragoman.scoring.metric import References, TextMetric, Units
from dragoman.scoring.registry import select_metrics, text_statistics
from dragoman.scoring.report import read_parallel_lines, read_references
from dragoman.scoring.significance import DEFAULT_DRAWS, SystemScore, intervals
from dragoman.scoring.significance import compare as compare_systems

_TAG = re.compile(r"^<2([^<>\s]+)> ")


@dataclass(frozen=True)
class ScoreOptions:
    """The options of `dragoman score`."""

    hypotheses: str
    references: Sequence[str]
    metrics: Sequence[str] = ()
    units: Units = "words"
    intervals: bool = False
    source: str | None = None
    by_length: bool = False
    by_frequency: str | None = None
    by_tag: str | None = None
    ngrams: bool = False
    alignment: bool = False
    characters: bool = False
    all_alignments: bool = False
    table: bool = False
    substitution: int = 1
    plot: str | None = None
    draws: int = DEFAULT_DRAWS
    seed: int = 1
    as_json: bool = False

    def check(self) -> None:
        """Raise DataError for options that would have no effect, before any file is read."""
        buckets = [name for name in ("by_length", "by_frequency", "by_tag") if getattr(self, name)]
        if self.by_frequency and not self.source:
            raise DataError("--by-frequency needs --source: it counts the words of the source")
        unused = [name for name in ("characters", "all_alignments", "table") if getattr(self, name)]
        unused += ["substitution"] if self.substitution != 1 else []
        if unused and not self.alignment:
            raise DataError(f"--{unused[0].replace('_', '-')} needs --alignment")
        if (self.draws != DEFAULT_DRAWS or self.seed != 1) and not (buckets or self.intervals):
            name = "draws" if self.draws != DEFAULT_DRAWS else "seed"
            raise DataError(f"--{name} needs --intervals, --by-length, --by-frequency or --by-tag")
        if self.plot is not None:
            if len(buckets) + self.alignment != 1:
                asked = ", ".join(f"--{name.replace('_', '-')}" for name in [*buckets, *["alignment"] * self.alignment])
                raise DataError(
                    f"--plot draws one thing: found {asked or 'nothing to draw'}, expected one of --by-length, "
                    "--by-frequency, --by-tag or --alignment"
                )
            check_plot_path(self.plot)


def score_report(request: ScoreOptions) -> tuple[dict[str, Any], list[str]]:
    """The scores for JSON, and lines of text for alignments and buckets."""
    request.check()
    metrics = select_metrics(request.metrics, request.units)
    needing = [name for name, metric in metrics.items() if metric.uses_sources]
    if needing and not request.source:
        raise DataError(f"--metric {needing[0]} needs --source: it compares the output with the source")
    if request.source and not (needing or request.by_length or request.by_frequency):
        raise DataError("--source is read for --by-length, --by-frequency and --metric f0.5: found none of them")
    if request.ngrams:
        check_apart(metrics)
    hypotheses = list(read_lines(request.hypotheses))
    check_line_lengths(hypotheses, request.hypotheses)
    references = read_references(request.references, request.hypotheses, len(hypotheses))
    sources = source_lines(request, len(hypotheses))
    counts = text_statistics(hypotheses, references, metrics, sources)
    scores: dict[str, Any] = {"segments": len(hypotheses)}
    scores |= {name: metric.score(counts[name]) for name, metric in metrics.items()}
    lines: list[str] = []
    if request.ngrams:
        scores["ngrams"] = taken_apart(hypotheses, references, metrics)
        for name, apart in scores["ngrams"].items():
            lines += [*ngram_lines(metrics[name].label, apart), ""]
    if request.alignment:
        unit: Literal["characters", "words"] = "characters" if request.characters else "words"
        alignments = edit_alignments(hypotheses, references, units=unit, substitution=request.substitution)
        cost = request.substitution if request.all_alignments else None
        lines += [*alignment_lines(alignments, unit, table=request.table, substitution=cost), ""]
        kinds = ("substitutions", "insertions", "deletions", "matches", "cost")
        scores["alignment"] = [{kind: getattr(alignment, kind) for kind in kinds} for alignment in alignments]
        if cost is not None:
            for row, alignment in zip(scores["alignment"], alignments, strict=True):
                every = all_edit_alignments(alignment.left, alignment.right, substitution=cost)
                row["cheapest"] = [
                    "".join(MARKS[step.kind] for step in path.operations).replace(" ", "=") for path in every
                ]
        if request.plot is not None:
            draw_edit_table(alignments[0], request.plot)
    for key, (unit_label, groups) in _groups(request, sources, references).items():
        scores[key] = {}
        for name, metric in metrics.items():
            parts = score_buckets(metric, counts[name], groups, draws=request.draws, seed=request.seed)
            scores[key][name] = [part._asdict() | {"interval": list(part.interval)} for part in parts]
            lines += [*bucket_lines(metric, parts, unit_label), ""]
            if request.plot and name == next(iter(metrics)):
                draw_buckets(parts, metric, request.plot, unit_label, joined=key != "by_tag")
    if request.intervals:
        scores["intervals"] = intervals(metrics, counts, request.draws, request.seed)
    scores["signatures"] = {name: counted.signature for name, counted in counts.items()}
    return scores, lines


def taken_apart(
    hypotheses: Sequence[str], references: References, metrics: Mapping[str, TextMetric]
) -> dict[str, dict[str, Any]]:
    """The terms of every score that has them, by metric."""
    return {name: metric.apart(hypotheses, references) for name, metric in metrics.items() if metric.apart is not None}


def check_apart(metrics: Mapping[str, TextMetric]) -> None:
    """Raise DataError if no metric can be taken apart."""
    if not any(metric.apart for metric in metrics.values()):
        raise DataError(f"no n-grams to show: found the metrics {', '.join(metrics)}, expected bleu among them")


def source_lines(request: ScoreOptions, count: int) -> list[str] | None:
    """The sources, if they were given; a language tag is no word of them."""
    if not request.source:
        return None
    return [_TAG.sub("", line) for line in read_parallel_lines(request.source, request.hypotheses, count)]


def _groups(
    request: ScoreOptions, sources: list[str] | None, references: list[list[str]]
) -> dict[str, tuple[str, list[Bucket]]]:
    """The requested bucketings by option: what they bucket by, and the buckets."""
    bucketings: dict[str, tuple[str, list[Bucket]]] = {}
    if request.by_length:
        unit_label = f"words of the {'source' if sources is not None else 'reference'}"
        bucketings["by_length"] = (unit_label, by_length(sources or [texts[0] for texts in references]))
    if request.by_frequency and sources is not None:
        groups = by_frequency(sources, read_lines(request.by_frequency))
        if not groups:
            raise DataError(f"{request.source}: found no words, expected one source per line")
        bucketings["by_frequency"] = ("rarest source word in training", groups)
    if request.by_tag:
        lines = read_parallel_lines(request.by_tag, request.hypotheses, len(references))
        labels = [front[1] if (front := _TAG.match(line)) else line.strip() or "(none)" for line in lines]
        bucketings["by_tag"] = ("tag", by_tag(labels))
    return bucketings


MAX_WORDS = 10_000  # of a line: edit distances take time and memory that grow with the square of its length


def check_line_lengths(lines: Sequence[str], path: str) -> None:
    """Raise DataError for a line that is a whole document."""
    for number, line in enumerate(lines, 1):
        if len(line) > 2 * MAX_WORDS and (count := len(line.split())) > MAX_WORDS:
            raise DataError(
                f"{path}:{number}: found {count:,} words, expected at most {MAX_WORDS:,}; put one sentence on a line"
            )


def compare_files(
    references: str,
    systems: Sequence[str],
    names: Sequence[str],
    units: Units,
    draws: int,
    seed: int,
    plot: str | None = None,
    source: str | None = None,
) -> tuple[dict[str, TextMetric], list[SystemScore], dict[str, list[str]], list[list[str]], list[str] | None]:
    """The scores of the outputs in files, each compared with the first, the baseline; also all texts."""
    if len(systems) < 2:
        raise DataError(f"nothing to compare: found one system ({systems[0]}), expected a baseline and another")
    if doubled := next((path for path in systems if systems.count(path) > 1), None):
        raise DataError(f"{doubled}: found twice, expected each system once")
    metrics = select_metrics(names, units)
    if plot is not None:
        check_plot_path(plot)
    first = list(read_lines(systems[0]))
    check_line_lengths(first, systems[0])
    outputs = {
        path: first if path == systems[0] else read_parallel_lines(path, systems[0], len(first)) for path in systems
    }
    texts = read_references([references], systems[0], len(first))
    sources = None if source is None else read_parallel_lines(source, systems[0], len(first))
    scores = compare_systems(outputs, texts, metrics, sources=sources, draws=draws, seed=seed)
    if plot is not None:
        draw_comparison(scores, metrics, plot)
    return metrics, scores, outputs, texts, sources
