"""Scores and edit alignments as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dragoman.scoring import BucketScore, EditAlignment, SystemScore, TextMetric, all_edit_alignments

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
