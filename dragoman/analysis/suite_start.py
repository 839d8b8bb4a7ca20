"""A first suite of tests for a run, from its validation pairs and the probes; it holds only what the run passes now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dragoman.analysis.probes import PROBES, probe_texts, suitable_probes
from dragoman.analysis.suite import CHECKS, Case, check_cases, latency, length_ratio, numbers_of, run_size
from dragoman.config.settings import inline
from dragoman.data.examples import Example
from dragoman.data.split import TrainValidSplit
from dragoman.decoding.constraints.source import find_placeholders
from dragoman.errors import DataError, DragomanError
from dragoman.inference.predictor import Predictor
from dragoman.inference.unseen import told_elsewhere

PAIRS = 12  # of the validation data
SLACK = 2.0  # how much longer or shorter than the reference an output may be
HEADER = """\
# Tests of {run}, written from its data. Run them with: dragoman test RUN suite.toml
# A case may have: equal, must_have, must_not_have, terms, numbers, placeholders, no_repetition, min_ratio, max_ratio.
#
# [[score]]
# file = "test.tsv"              # source and reference
# metric = "bleu"
# at_least = 30.0
# not_worse_than = "runs/old"    # p < 0.05 by paired bootstrap
"""


def first_suite(predictor: Predictor) -> tuple[str, int]:
    """The suite as TOML, and how many checks were left out because the run fails them now."""
    cases = [*pair_cases(predictor), *probe_cases(predictor)]
    kept, failed = passing(cases, predictor)
    if not kept:
        raise DataError(f"{predictor.run.folder}: found no check that the run passes, expected some")
    lines = [HEADER.format(run=predictor.run.folder)]
    for case in kept:
        lines.append("[[case]]")
        values: dict[str, Any] = {"source": case.source} | ({"name": case.name} if case.name else {})
        values |= {"tag": case.tag} if case.tag else {}
        values |= {name: getattr(case, name) for name in case.checks}
        lines += [f"{name} = {inline(value)}" for name, value in values.items()]
        lines.append("")
    seconds = latency(predictor, [case.source for case in kept if case.tag is None][:5] or [kept[0].source])
    size = sum(map(run_size, predictor.members))
    lines += ["[limits]"]
    if any(case.tag is None for case in kept):
        lines.append(f"latency = {max(0.001, round(5 * seconds, 3))}  # seconds; found {seconds:.3f} here")
    lines.append(f"size = {round(1.5 * size + 0.05, 1)}  # megabytes; found {size:.1f}")
    return "\n".join(lines) + "\n", failed


def pair_cases(predictor: Predictor) -> Iterator[Case]:
    """Validation pairs of all lengths, with the checks that their references satisfy."""
    run = predictor.run
    try:
        split = TrainValidSplit(run.config.data, lambda doing, count: None, run.task.example_format(run.config))
        pairs = sorted(split.valid("reading"), key=lambda pair: len(pair.source))
    except (DragomanError, OSError):
        return
    chosen = pairs[:: max(1, len(pairs) // PAIRS)][:PAIRS]
    texts = [pair.model_input for pair in chosen]
    for pair, output in zip(chosen, predictor.stream(texts, on_unknown=told_elsewhere), strict=True):
        yield case_of(pair, output.text)


def case_of(pair: Example, output: str) -> Case:
    reference = pair.references[0]
    plain = Case(pair.source, tag=pair.tag or None, no_repetition=True)
    ratio = length_ratio(plain, reference)
    numbers, placeholders = numbers_of(pair.source), find_placeholders(pair.source)
    return replace(
        plain,
        equal=(reference,) if output.strip() == reference.strip() else (),
        numbers=bool(numbers) and not numbers - numbers_of(reference),
        placeholders=bool(placeholders) and all(text in reference for text, _ in placeholders),
        no_repetition=not CHECKS["no_repetition"](plain, reference),
        min_ratio=round(ratio / SLACK, 2) or None,
        max_ratio=round(ratio * SLACK, 2) or None,
    )


def probe_cases(predictor: Predictor) -> Iterator[Case]:
    """Names and numbers to copy, and one word many times, where the run reads sentences."""
    try:
        texts, _ = probe_texts(predictor.run)
        suitable = suitable_probes((), texts)
    except DragomanError:  # a run that reads single words has no probes
        return
    if predictor.tags:
        return
    if "copying" in suitable:
        for case in PROBES["copying"].cases(texts)[::3]:
            yield Case(case.sources[0], "probe: copying", must_have=(case.must_contain,))
    for case in PROBES["repetition"].cases(texts)[::6]:
        yield Case(case.sources[0], "probe: repetition", no_repetition=True)


def passing(cases: Sequence[Case], predictor: Predictor) -> tuple[list[Case], int]:
    """The cases with the checks that the run passes, and the number of others."""
    kept, failed = [], 0
    results = check_cases(cases, predictor)
    for case in cases:
        wrong = [name for name in case.checks if not next(results).passed]
        failed += len(wrong)
        empty: dict[str, Any] = {name: getattr(Case("x"), name) for name in wrong}
        if (rest := replace(case, **empty)).checks:
            kept.append(rest)
    return kept, failed
