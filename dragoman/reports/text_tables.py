"""Scores as lines of text for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dragoman.analysis.probes import PROBES, REJECTED, ProbeResult
from dragoman.scoring.buckets import BucketScore
from dragoman.scoring.edit import EditAlignment
from dragoman.scoring.metric import TextMetric
from dragoman.scoring.significance import SystemScore


def format_p_value(value: float) -> str:
    """A p-value, with no more digits than a thousand draws give."""
    return "<0.001" if value < 0.0005 else f"{value:.3f}"


def alignment_lines(alignments: Sequence[EditAlignment], unit: str, *, table: bool) -> Iterator[str]:
    """Each reference above its hypothesis, with what was replaced (S), inserted (I) and left out (D); then the sums."""
    for number, alignment in enumerate(alignments, 1):
        counts = _counts(alignment.substitutions, alignment.insertions, alignment.deletions)
        yield f"line {number}: {counts} of {len(alignment.left)} {unit}, cost {alignment.cost}"
        yield from alignment.render().split("\n")
        if table:
            yield from alignment.render_table().split("\n")
        yield ""
    kinds = [sum(getattr(one, kind) for one in alignments) for kind in ("substitutions", "insertions", "deletions")]
    length = sum(len(alignment.left) for alignment in alignments)
    rate = sum(kinds) / max(1, length)
    yield f"all lines: {_counts(*kinds)} of {length:,} {unit}, {100 * rate:.2f} %"


def _counts(substitutions: int, insertions: int, deletions: int) -> str:
    return f"{substitutions:,} S, {insertions:,} I, {deletions:,} D"


def bucket_lines(metric: TextMetric, groups: Sequence[BucketScore], along: str) -> Iterator[str]:
    """One line a group: its label, number of segments, score and interval."""
    wide = max(len(along), *(len(group.label) for group in groups))
    yield f"{along:<{wide}}  {'segments':>8}  {metric.label:>11}  95 % interval"
    for group in groups:
        low, high = (metric.format(bound) for bound in group.interval)
        yield f"{group.label:<{wide}}  {group.segments:>8,}  {metric.format(group.score):>11}  {low} to {high}"


def comparison_lines(standings: Sequence[SystemScore], metrics: Mapping[str, TextMetric]) -> Iterator[str]:
    """A block for each metric: every system with its interval, difference to the first and p-values."""
    wide = max(len("system"), *(len(standing.system) for standing in standings))
    for name, metric in metrics.items():
        mine = [standing for standing in standings if standing.metric == name]
        direction = "higher" if metric.higher_is_better else "lower"
        yield f"{metric.label}: {direction} is better   {mine[0].signature}"
        columns = f"{'score':>10}  {'95 % interval':^22}  {'difference':>10}  {'p boot.':>7}  {'p rand.':>7}"
        yield f"  {'system':<{wide}}  {columns}"
        for standing in mine:
            low, high = (metric.format(bound) for bound in standing.interval)
            line = f"  {standing.system:<{wide}}  {metric.format(standing.score):>10}  {f'{low} to {high}':^22}"
            if standing.versus:
                difference = standing.versus.difference * metric.scale
                line += f"  {difference:>+10.2f}  {format_p_value(standing.versus.bootstrap):>7}"
                line += f"  {format_p_value(standing.versus.randomisation):>7}"
            yield line.rstrip()
        yield ""
    yield "p: the chance of a difference this large to the first system if there were none (paired bootstrap;"
    yield "approximate randomisation). Each stands for one comparison: of twenty, one is below 0.05 by chance."


def probe_lines(outcomes: Sequence[ProbeResult]) -> Iterator[str]:
    """Each probe with what its kinds mean, how often each came, and examples."""
    for outcome in outcomes:
        yield f"{outcome.probe}: {outcome.about} ({outcome.cases} cases)"
        meanings = {**PROBES[outcome.probe].kinds, REJECTED: "the run does not take such an input"}
        for kind, count in outcome.counts.items():
            yield f"  {count:>4}  {kind:<14} {meanings[kind]}"
            for sources, outputs in outcome.examples.get(kind, ()):
                for place, source in enumerate(sources):
                    answer = f" → {_short(outputs[place])}" if place < len(outputs) else ""
                    yield f"          {_short(source)}{answer}"
        yield ""


def _short(text: str, most: int = 60) -> str:
    text = " ".join(text.split()) or "(nothing)"
    return text if len(text) <= most else text[: most - 1] + "…"
