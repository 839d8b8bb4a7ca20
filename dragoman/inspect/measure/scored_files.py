"""Score files of texts and of word alignments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dragoman.base import DataError
from dragoman.data.readers import read_lines
from dragoman.inspect.measure.score_plots import (
    alignment_lines,
    bucket_lines,
    draw_buckets,
    draw_comparison,
    draw_edit_table,
    ngram_lines,
)
from dragoman.inspect.views.figures import check_plot_path
from dragoman.scoring import (
    MARKS,
    AlignmentScore,
    Bucket,
    References,
    ScoreAlignmentOptions,
    ScoreOptions,
    SystemScore,
    TextMetric,
    Units,
    alignment_score,
    all_edit_alignments,
    by_frequency,
    by_length,
    by_tag,
    compare_to_baseline,
    edit_alignments,
    intervals,
    invalid_words,
    read_alignments,
    score_buckets,
    select_metrics,
    swap_direction,
    text_statistics,
)

_TAG = re.compile(r"^<2([^<>\s]+)> ")


def read_parallel_lines(path: str | Path, other: str | Path, count: int) -> list[str]:
    """The lines of a file; raises DataError unless there are `count` of them, as in the file `other`."""
    lines = list(read_lines(path))
    if len(lines) != count:
        raise DataError(f"{path}: found {len(lines):,} lines, expected {count:,} as in {other}")
    return lines


def read_references(paths: Sequence[str | Path], other: str | Path, count: int) -> list[list[str]]:
    """The references of each segment: one line of every file, which may have several separated by tabs."""
    columns = [read_parallel_lines(path, other, count) for path in paths]
    return [
        [text for line in row for text in line.split("\t") if text.strip()] or [""]
        for row in zip(*columns, strict=True)
    ]


class FileScores(NamedTuple):
    """The scores of a file, as JSON has them, and lines of text for n-grams, alignments and buckets."""

    scores: dict[str, Any]
    lines: list[str]


def score_files(
    hypotheses: str | Path, references: Sequence[str | Path], options: ScoreOptions | None = None
) -> FileScores:
    """Score a file of outputs line by line; a line of references may hold several, separated by tabs."""
    options = options or ScoreOptions()
    options.check()
    if not references:
        if options.words is None or options != ScoreOptions(words=options.words):
            raise DataError("found no references; expected a file of them, or --words alone")
        outputs = list(read_lines(hypotheses))
        found = invalid_words(outputs, read_lines(options.words))
        return FileScores({"segments": len(outputs), "invalid_words": found.as_dict(), "signatures": {}}, found.lines())
    if options.plot is not None:
        check_plot_path(options.plot)
    metrics = select_metrics(options.metrics, options.units)
    needing = [name for name, metric in metrics.items() if metric.uses_sources]
    if needing and not options.source:
        raise DataError(f"--metric {needing[0]} needs --source: it compares the output with the source")
    if options.source and not (needing or options.by_length or options.by_frequency):
        raise DataError("--source is read for --by-length, --by-frequency and --metric f0.5: found none of them")
    if options.ngrams:
        check_apart(metrics)
    outputs = list(read_lines(hypotheses))
    check_line_lengths(outputs, hypotheses)
    truth = read_references(references, hypotheses, len(outputs))
    sources = source_lines(hypotheses, options, len(outputs))
    counts = text_statistics(outputs, truth, metrics, sources)
    scores: dict[str, Any] = {"segments": len(outputs)}
    scores |= {name: metric.score(counts[name]) for name, metric in metrics.items()}
    made_of = {name: metric.terms for name, metric in metrics.items() if metric.terms is not None}
    if made_of:
        scores["terms"] = {name: terms(counts[name].rows.sum(axis=0)) for name, terms in made_of.items()}
    lines: list[str] = []
    if options.ngrams:
        scores["ngrams"] = taken_apart(outputs, truth, metrics)
        for name, apart in scores["ngrams"].items():
            lines += [*ngram_lines(metrics[name].label, apart), ""]
    if options.alignment:
        unit: Literal["characters", "words"] = "characters" if options.characters else "words"
        alignments = edit_alignments(outputs, truth, units=unit, substitution=options.substitution)
        cost = options.substitution if options.all_alignments else None
        lines += [*alignment_lines(alignments, unit, table=options.table, substitution=cost), ""]
        kinds = ("substitutions", "insertions", "deletions", "matches", "cost")
        scores["alignment"] = [{kind: getattr(alignment, kind) for kind in kinds} for alignment in alignments]
        if cost is not None:
            for row, alignment in zip(scores["alignment"], alignments, strict=True):
                every = all_edit_alignments(alignment.left, alignment.right, substitution=cost)
                row["cheapest"] = [
                    "".join(MARKS[step.kind] for step in path.operations).replace(" ", "=") for path in every
                ]
        if options.plot is not None:
            draw_edit_table(alignments[0], options.plot)
    for key, (unit_label, groups) in _groups(hypotheses, options, sources, truth).items():
        scores[key] = {}
        for name, metric in metrics.items():
            parts = score_buckets(metric, counts[name], groups, draws=options.draws, seed=options.seed)
            scores[key][name] = [part._asdict() | {"interval": list(part.interval)} for part in parts]
            lines += [*bucket_lines(metric, parts, unit_label), ""]
            if options.plot and name == next(iter(metrics)):
                draw_buckets(parts, metric, options.plot, unit_label, joined=key != "by_tag")
    if options.words is not None:
        found = invalid_words(outputs, read_lines(options.words))
        scores["invalid_words"] = found.as_dict()
        lines += [*found.lines(), ""]
    if options.intervals:
        scores["intervals"] = intervals(metrics, counts, options.draws, options.seed)
    scores["signatures"] = {name: counted.signature for name, counted in counts.items()}
    return FileScores(scores, lines)


def score_alignment(
    gold: str | Path, hypothesis: str | Path, options: ScoreAlignmentOptions | None = None
) -> AlignmentScore:
    """Score the links of one file by the gold links of another."""
    options = options or ScoreAlignmentOptions()
    truth, other = (
        read_alignments(read_lines(path), str(path), None if first is None else int(first))
        for path, first in ((gold, options.gold_from), (hypothesis, options.hypothesis_from))
    )
    if not truth and not other:
        raise DataError(f"nothing to score: found no line in {gold} and {hypothesis}")
    links = [swap_direction(row.possible) if options.swap else row.possible for row in other]
    numbers = {number for row in truth for link in row.possible for number in link}
    note = ""
    if options.gold_from is None and numbers and 0 not in numbers:
        note = f"{gold}: found no word 0; if its words count from 1, add --gold-from 1"
    return alignment_score(links, truth)._replace(note=note)


def taken_apart(
    hypotheses: Sequence[str], references: References, metrics: Mapping[str, TextMetric]
) -> dict[str, dict[str, Any]]:
    return {name: metric.apart(hypotheses, references) for name, metric in metrics.items() if metric.apart is not None}


def check_apart(metrics: Mapping[str, TextMetric]) -> None:
    if not any(metric.apart for metric in metrics.values()):
        raise DataError(f"no n-grams to show: found the metrics {', '.join(metrics)}, expected bleu among them")


def source_lines(path: str | Path, options: ScoreOptions, count: int) -> list[str] | None:
    """The sources, if they were given; a language tag is no word of them."""
    if not options.source:
        return None
    return [_TAG.sub("", line) for line in read_parallel_lines(options.source, path, count)]


def _groups(
    path: str | Path, options: ScoreOptions, sources: list[str] | None, references: list[list[str]]
) -> dict[str, tuple[str, list[Bucket]]]:
    """The requested bucketings by option: what they bucket by, and the buckets."""
    bucketings: dict[str, tuple[str, list[Bucket]]] = {}
    if options.by_length:
        unit_label = f"words of the {'source' if sources is not None else 'reference'}"
        bucketings["by_length"] = (unit_label, by_length(sources or [texts[0] for texts in references]))
    if options.by_frequency and sources is not None:
        groups = by_frequency(sources, read_lines(options.by_frequency))
        if not groups:
            raise DataError(f"{options.source}: found no words, expected one source per line")
        bucketings["by_frequency"] = ("rarest source word in training", groups)
    if options.by_tag:
        lines = read_parallel_lines(options.by_tag, path, len(references))
        labels = [front[1] if (front := _TAG.match(line)) else line.strip() or "(none)" for line in lines]
        bucketings["by_tag"] = ("tag", by_tag(labels))
    return bucketings


MAX_WORDS = 10_000  # of a line: edit distances take time and memory that grow with the square of its length


def check_line_lengths(lines: Sequence[str], path: str | Path) -> None:
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
    scores = compare_to_baseline(outputs, texts, metrics, sources=sources, draws=draws, seed=seed)
    if plot is not None:
        draw_comparison(scores, metrics, plot)
    return metrics, scores, outputs, texts, sources
