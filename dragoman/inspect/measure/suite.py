"""Tests of a model: cases and thresholds of a suite in TOML, checked one by one."""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from xml.etree import ElementTree

from dragoman.base import ConfigError, DataError, DragomanError
from dragoman.base.config import Range, build, inline, read_toml, setting
from dragoman.data import Example, TrainValidSplit, find_placeholders
from dragoman.inference import Predictor, StreamOptions, ignore_unknown, load_predictor, read_examples, require_texts
from dragoman.inspect.measure.probes import MIN_LOOP, PROBES, max_repetitions, probe_texts, suitable_probes
from dragoman.inspect.options import SuiteOptions
from dragoman.runs import Run
from dragoman.scoring import compare, select_metrics

Positive = Annotated[float, Range(0.0, None, exclusive_minimum=True)]
SIGNIFICANT = 0.05
TIMED = 20  # sources whose latency is measured, one by one
MEGABYTE = 1_000_000
_NUMBER = re.compile(r"\d+(?:[.,\u00a0\u202f']\d+)*")


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


@dataclass(frozen=True)
class Term:
    """A term and its translation."""

    source: str = setting(help="where the source has this text,")
    target: str = setting(help="the output has this one")


@dataclass(frozen=True)
class Case:
    """A source and what its output must satisfy."""

    source: str = setting(help="the input")
    name: str = setting("", help="what the report calls it; else the source")
    tag: str | None = setting(None, help="target tag, for a run trained with several")
    equal: tuple[str, ...] = setting((), help="the output is one of these texts")
    must_have: tuple[str, ...] = setting((), help="the output has all of these texts")
    must_not_have: tuple[str, ...] = setting((), help="the output has none of these texts")
    terms: tuple[Term, ...] = setting((), help="terms of the source and their translations")
    numbers: bool = setting(False, help="the output has the numbers of the source, separators apart")
    placeholders: bool = setting(False, help="the output has the tags, variables and addresses of the source")
    no_repetition: bool = setting(False, help=f"no words {MIN_LOOP} times in a row that the source does not repeat")
    min_ratio: Positive | None = setting(None, help="least characters of the output for each of the source")
    max_ratio: Positive | None = setting(None, help="most characters of the output for each of the source")

    def problems(self) -> Iterator[str]:
        if not self.source.strip():
            yield "source: found nothing, expected text"
        if not self.checks:
            yield f"found no check of the output of {self.source[:40]!r}, expected one or more, such as must_have"

    @property
    def checks(self) -> list[str]:
        return [name for name in CHECKS if getattr(self, name) not in ((), False, None)]


@dataclass(frozen=True)
class Threshold:
    """A score on a file of pairs."""

    file: str = setting(help="pairs of source and reference; relative to the suite")
    metric: str = setting("bleu", help="a metric of `dragoman evaluate`")
    at_least: float | None = setting(None, help="the lowest score that passes")
    at_most: float | None = setting(None, help="the highest score that passes")
    not_worse_than: str = setting("", help=f"another run, which must not be better with p < {SIGNIFICANT}")

    def problems(self) -> Iterator[str]:
        if self.at_least is None and self.at_most is None and not self.not_worse_than:
            yield "found no bound, expected at_least, at_most or not_worse_than"


@dataclass(frozen=True)
class Limits:
    """What the run may cost on this machine."""

    latency: Positive | None = setting(None, help="seconds for one sentence: median of the cases, one at a time")
    memory: Positive | None = setting(None, help="megabytes of memory at most, Python and torch included")
    size: Positive | None = setting(None, help="megabytes of the files of the run that prediction reads")


@dataclass(frozen=True)
class Suite:
    """All tests of a model."""

    case: tuple[Case, ...] = setting((), help="sources and what their outputs must satisfy")
    score: tuple[Threshold, ...] = setting((), help="scores on files")
    limits: Limits = setting(Limits(), help="what the run may cost")


class Result(NamedTuple):
    """The outcome of one check."""

    group: str  # case, score or limits
    name: str
    passed: bool
    detail: str = ""  # what was found and expected
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{'ok  ' if self.passed else 'FAIL'} {self.group}: {self.name}" + (
            f" ({self.detail})" if self.detail else ""
        )


def load_suite(path: str | Path) -> Suite:
    suite = build(Suite, read_toml(path), origin=path)
    if not suite.case and not suite.score and suite.limits == Limits():
        raise ConfigError(f"{path}: found no check, expected [[case]], [[score]] or [limits]")
    return suite


# --- checks of one output: each gives what is wrong, or nothing


def wrong_equal(case: Case, output: str) -> str:
    return "" if output.strip() in case.equal else f"expected {' or '.join(map(repr, case.equal))}"


def missing(case: Case, output: str) -> str:
    lacking = [text for text in case.must_have if text not in output]
    return f"lacks {', '.join(map(repr, lacking))}" if lacking else ""


def unwanted(case: Case, output: str) -> str:
    found = [text for text in case.must_not_have if text in output]
    return f"has {', '.join(map(repr, found))}" if found else ""


def wrong_terms(case: Case, output: str) -> str:
    lacking = [term for term in case.terms if term.source in case.source and term.target not in output]
    return f"lacks {', '.join(f'{term.target!r} for {term.source!r}' for term in lacking)}" if lacking else ""


def numbers_of(text: str) -> Counter[str]:
    """The numbers of a text without their separators, which differ between languages."""
    return Counter(re.sub(r"\D", "", number) for number in _NUMBER.findall(text))


def wrong_numbers(case: Case, output: str) -> str:
    lacking = numbers_of(case.source) - numbers_of(output)
    return f"lacks the numbers {', '.join(lacking)}" if lacking else ""


def wrong_placeholders(case: Case, output: str) -> str:
    lacking = [text for text, count in find_placeholders(case.source) if output.count(text) < count]
    return f"lacks {', '.join(map(repr, lacking))}" if lacking else ""


def repeated(case: Case, output: str) -> str:
    times = max_repetitions(output)
    return f"repeats itself {times} times" if times >= max(MIN_LOOP, 1 + max_repetitions(case.source)) else ""


def length_ratio(case: Case, output: str) -> float:
    return len(output.strip()) / len(case.source.strip())


def too_short(case: Case, output: str) -> str:
    ratio = length_ratio(case, output)
    return f"{ratio:.2f} characters for each of the source" if case.min_ratio and ratio < case.min_ratio else ""


def too_long(case: Case, output: str) -> str:
    ratio = length_ratio(case, output)
    return f"{ratio:.2f} characters for each of the source" if case.max_ratio and ratio > case.max_ratio else ""


CHECKS = {
    "equal": wrong_equal,
    "must_have": missing,
    "must_not_have": unwanted,
    "terms": wrong_terms,
    "numbers": wrong_numbers,
    "placeholders": wrong_placeholders,
    "no_repetition": repeated,
    "min_ratio": too_short,
    "max_ratio": too_long,
}


# --- a whole suite


def run_suite(run: str | Path, path: str | Path, options: SuiteOptions | None = None) -> Iterator[Result]:
    """The results of all checks of a file, each as soon as it is known; the files it names are relative to it."""
    require_texts("test", run)
    suite, device, where = load_suite(path), (options or SuiteOptions()).device, Path(path).parent
    predictor = load_predictor(run, device)
    yield from check_cases(suite.case, predictor)
    systems: dict[str, Predictor] = {}
    for threshold in suite.score:
        yield check_score(threshold, predictor, where, systems, device)
    yield from check_limits(suite, predictor)


def check_cases(cases: Sequence[Case], predictor: Predictor) -> Iterator[Result]:
    quiet = StreamOptions(on_unknown=ignore_unknown, on_warning=lambda line: None)
    inputs = [text for case in cases for text in predictor.read_as([case.source], case.tag)]
    for case, output in zip(cases, predictor.stream(inputs, stream=quiet), strict=True):
        for name in case.checks:
            wrong = CHECKS[name](case, output.text)
            detail = f"{wrong}; output: {output.text}" if wrong else ""
            yield Result("case", f"{case.name or case.source} [{name}]", not wrong, detail)


def check_score(
    threshold: Threshold, predictor: Predictor, where: Path, systems: dict[str, Predictor], device: str
) -> Result:
    started = time.monotonic()
    units = predictor.config.data.units
    metric = select_metrics((threshold.metric,), units)[threshold.metric]
    file = where / threshold.file
    examples = read_examples(predictor.run, file, several_references=True)
    if not examples:
        raise DataError(f"{file}: found no pair to score")
    score, predictions = predictor.evaluate(examples, metrics=threshold.metric, on_unknown=ignore_unknown)
    found = score[threshold.metric]
    bounds = [f"{word} {bound:g}" for word, bound in (("at least", threshold.at_least), ("at most", threshold.at_most))
              if bound is not None]  # fmt: skip
    passed = (threshold.at_least is None or found >= threshold.at_least) and (
        threshold.at_most is None or found <= threshold.at_most
    )
    detail = f"found {metric.format(found)}" + (f", expected {' and '.join(bounds)}" if bounds else "")
    if threshold.not_worse_than:
        other = str(where / threshold.not_worse_than)
        if other not in systems:
            systems[other] = load_predictor(other, device, split_long=False)  # as evaluate reads
        inputs = [example.model_input for example in examples]
        texts = {
            "other": [output.text for output in systems[other].stream(inputs, on_unknown=ignore_unknown)],
            "own": [output.text for output in predictions],
        }
        references = [list(example.references) for example in examples]
        sources = [example.source for example in examples]
        baseline, own = compare(texts, references, (threshold.metric,), units=units, sources=sources)
        assert own.versus is not None
        passed = passed and (own.versus.better or own.versus.bootstrap >= SIGNIFICANT)
        detail += f"; {threshold.not_worse_than} has {metric.format(baseline.score)}, p = {own.versus.bootstrap:.3f}"
    name = f"{threshold.metric} on {threshold.file}"
    return Result("score", name, passed, detail, time.monotonic() - started)


def check_limits(suite: Suite, predictor: Predictor) -> Iterator[Result]:
    limits = suite.limits
    if limits.latency is not None:
        sources = [case.source for case in suite.case if case.tag is None][:TIMED]
        if not sources:
            raise ConfigError("limits.latency: found no case to measure it with, expected [[case]]")
        yield bounded("latency", latency(predictor, sources), limits.latency, "s")
    if limits.memory is not None:
        yield bounded("memory", peak_memory(), limits.memory, "MB")
    if limits.size is not None:
        yield bounded("size", sum(map(run_size, predictor.members)), limits.size, "MB")


def bounded(name: str, found: float, limit: float, unit: str) -> Result:
    return Result("limits", name, found <= limit, f"found {found:.3g} {unit}, expected at most {limit:g} {unit}")


def latency(predictor: Predictor, sources: Sequence[str]) -> float:
    """The median seconds of one text alone, after a first one that warms up."""
    seconds = []
    for source in (sources[0], *sources):
        started = time.perf_counter()
        list(predictor.stream([source], on_unknown=ignore_unknown))
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def peak_memory() -> float:
    try:
        import resource
    except ImportError:  # Windows
        raise ConfigError("limits.memory: Python cannot measure it on this system; leave it out") from None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / MEGABYTE if sys.platform == "darwin" else most * 1024 / MEGABYTE


def run_size(run: Run) -> float:
    own = [run.weights_path(), *(path for path in (run.folder / "tokenizer").iterdir() if path.is_file())]
    return sum(path.stat().st_size for path in own) / MEGABYTE


def junit_xml(results: Sequence[Result], name: str) -> bytes:
    """The results as JUnit XML, which CI servers show."""
    failures = [result for result in results if not result.passed]
    suite = ElementTree.Element(
        "testsuite", name=name, tests=str(len(results)), failures=str(len(failures)), errors="0", skipped="0"
    )
    for result in results:
        case = ElementTree.SubElement(
            suite, "testcase", classname=result.group, name=printable(result.name), time=f"{result.seconds:.3f}"
        )
        if not result.passed:
            ElementTree.SubElement(case, "failure", message=printable(result.detail)).text = printable(result.detail)
    ElementTree.indent(suite)
    written: bytes = ElementTree.tostring(suite, "utf-8", xml_declaration=True)
    return written + b"\n"


def printable(text: str) -> str:
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)


# --- a first suite: it holds only what the run passes now


def first_suite(run: str | Path, options: SuiteOptions | None = None) -> tuple[str, int]:
    """The suite as TOML, and how many checks were left out because the run fails them now."""
    require_texts("test", run)
    predictor = load_predictor(run, (options or SuiteOptions()).device)
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
    for pair, output in zip(chosen, predictor.stream(texts, on_unknown=ignore_unknown), strict=True):
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
