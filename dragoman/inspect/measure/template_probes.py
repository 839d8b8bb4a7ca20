"""`probe`, and its probes from a user's file: templates with slots, and the word forms to count in the outputs.

A source language without gender (Malay "dia", Turkish "o", Finnish "hän") makes a system choose one: the table shows
which it chooses for each word of a slot. Any other choice of words can be counted in the same way.
"""

from __future__ import annotations

import math
import re
import string
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.base import ConfigError, DataError, hint
from dragoman.data.readers import read_lines
from dragoman.inference import StreamOptions, is_spaced, load_predictor, require_texts
from dragoman.inspect.measure.probes import (
    PROBES,
    Predict,
    ProbeResult,
    predicted,
    probe_texts,
    run_probes,
    shortened,
    suitable_probes,
)
from dragoman.inspect.options import ProbeOptions
from dragoman.runs import Run

MAX_CASES = 20_000
SEVERAL, NONE, REJECTED = "several", "none", "rejected"  # forms of two groups, of no group, no output
KEYS = ("name", "templates", "slots", "forms", "by")
Words = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class TemplateProbe:
    """Every template with every word of its slots; `by` is the slot whose words the table counts."""

    name: str
    templates: tuple[str, ...]
    slots: Words
    forms: Words  # group → its words in outputs; * stands for any letters
    by: str

    def cases(self) -> list[tuple[str, str]]:
        """The word of the slot `by`, and the source."""
        found = []
        for template in self.templates:
            names = slot_names(template)
            for words in product(*(self.slots[name] for name in names)):
                filled = dict(zip(names, words, strict=True))
                found.append((filled[self.by], template.format(**filled)))
        return found

    def group_of(self, output: str) -> str:
        """The one group with a form in the output, else `several` or `none`."""
        text = output.casefold()
        words = set(re.findall(r"\w+", text))
        found = [group for group, forms in self.forms.items() if any(_occurs(form, words, text) for form in forms)]
        return found[0] if len(found) == 1 else SEVERAL if found else NONE


def _occurs(form: str, words: set[str], text: str) -> bool:
    form = form.casefold()
    if not is_spaced([form]) or not re.fullmatch(r"[\w*]+", form):  # scripts without spaces; "qu'elle"
        return form.strip("*") in text
    return form in words if "*" not in form else any(fnmatchcase(word, form) for word in words)


class FormCounts(NamedTuple):
    """Outputs of one word of the slot, or of all."""

    word: str
    counts: dict[str, int]  # by group, then several, none and rejected
    share: float | None  # of the first group among outputs with one group; None: there are none
    interval: tuple[float, float] | None  # 95 %, by Wilson's score

    def as_dict(self) -> dict[str, Any]:
        return self._asdict()


@dataclass(frozen=True)
class TemplateResult:
    """The counts of a probe, in the order of the words, with all of them last."""

    probe: str
    by: str
    groups: tuple[str, ...]
    rows: tuple[FormCounts, ...]
    examples: dict[str, list[tuple[str, str]]]  # by group: source and output

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "rows": [row.as_dict() for row in self.rows]}

    def lines(self) -> Iterator[str]:
        """For each word of the slot: how often its outputs have forms of each group, and the first one's share."""
        kinds = [kind for kind in self.rows[-1].counts if kind in self.groups or self.rows[-1].counts[kind]]
        width = max(len(self.by), *(len(row.word) for row in self.rows))
        heads = [f"{kind:>{max(8, len(kind))}}" for kind in kinds]
        yield f"{self.probe}: which forms do the outputs have?"
        yield f"  {self.by:<{width}}  {'  '.join(heads)}  {self.groups[0]} of {' + '.join(self.groups)} (95 %)"
        for row in self.rows:
            cells = "  ".join(f"{row.counts[kind]:>{len(head)}}" for kind, head in zip(kinds, heads, strict=True))
            share = "–"
            if row.share is not None and row.interval is not None:
                share = f"{row.share:.0%} ({row.interval[0]:.0%} to {row.interval[1]:.0%})"
            yield f"  {row.word:<{width}}  {cells}  {share}"
        for kind, several in self.examples.items():
            for source, output in several:
                yield f"  {kind}: {shortened(source)} → {shortened(output)}"
        yield ""


def wilson(hits: int, total: int, z: float = 1.959964) -> tuple[float, float]:
    """The interval of a share by Wilson 1927: right also for few cases and for shares of 0 and 1."""
    share, square = hits / total, z * z / total
    middle = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(share * (1 - share) / total + square / (4 * total))
    return max(0.0, middle - half), min(1.0, middle + half)


def run_template_probes(predict: Predict, probes: Sequence[TemplateProbe], examples: int = 2) -> list[TemplateResult]:
    return [_run(predict, probe, examples) for probe in probes]


def _run(predict: Predict, probe: TemplateProbe, examples: int) -> TemplateResult:
    cases = probe.cases()
    outputs = predicted(predict, [source for _, source in cases])
    kinds = (*probe.forms, SEVERAL, NONE, REJECTED)
    words = dict.fromkeys(probe.slots[probe.by])
    counts: dict[str, dict[str, int]] = {word: dict.fromkeys(kinds, 0) for word in words}
    shown: dict[str, list[tuple[str, str]]] = {kind: [] for kind in kinds}
    for (word, source), output in zip(cases, outputs, strict=True):
        kind = REJECTED if output is None else probe.group_of(output)
        counts[word][kind] += 1
        shown[kind].append((source, output or ""))
    total = {kind: sum(row[kind] for row in counts.values()) for kind in kinds}
    rows = [_counted(word, row, tuple(probe.forms)) for word, row in (*counts.items(), ("all", total))]
    few = {kind: several[:examples] for kind, several in shown.items() if several and examples}
    return TemplateResult(probe.name, probe.by, tuple(probe.forms), tuple(rows), few)


def _counted(word: str, counts: dict[str, int], groups: tuple[str, ...]) -> FormCounts:
    first, decided = counts[groups[0]], sum(counts[group] for group in groups)
    if not decided:
        return FormCounts(word, counts, None, None)
    return FormCounts(word, counts, first / decided, wilson(first, decided))


def slot_names(template: str) -> list[str]:
    """The slots of a template in its order, each once; DataError where braces do not match."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise DataError(f"template {template!r}: {error}; write a slot as {{name}}") from None
    return list(dict.fromkeys(names))


def read_template_probes(path: str) -> list[TemplateProbe]:
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: no TOML file ({error})") from None
    probes = table.get("probe")
    if set(table) != {"probe"} or not isinstance(probes, list) or not probes:
        raise DataError(f"{path}: found {', '.join(table) or 'nothing'}, expected one or more tables [[probe]]")
    return [_probe(f"{path}: probe {number}", entry) for number, entry in enumerate(probes, 1)]


def _probe(place: str, entry: Any) -> TemplateProbe:
    if not isinstance(entry, Mapping):
        raise DataError(f"{place}: found {entry!r}, expected a table [[probe]]")
    if unknown := next((key for key in entry if key not in KEYS), None):
        raise DataError(f"{place}: found {unknown!r}. {hint(unknown, KEYS)}")
    templates = _words(f"{place}: templates", entry.get("templates"))
    slots, forms = (_groups(f"{place}: {name}", entry.get(name)) for name in ("slots", "forms"))
    if len(forms) < 2:
        raise DataError(f"{place}: forms: found {', '.join(forms)}, expected two or more groups of words")
    if taken := next((name for name in (SEVERAL, NONE, REJECTED) if name in forms), None):
        raise DataError(f"{place}: forms: found {taken!r}, which the table has for other outputs; name it otherwise")
    by = entry.get("by", next(iter(slots)))
    if by not in slots:
        raise DataError(f"{place}: by: found {by!r}. {hint(str(by), slots)}")
    for template in templates:
        names = slot_names(template)
        if unknown := next((name for name in names if name not in slots), None):
            raise DataError(f"{place}: template {template!r}: found the slot {unknown!r}. {hint(unknown, slots)}")
        if by not in names:
            raise DataError(f"{place}: template {template!r}: expected the slot {{{by}}}, by which outputs are counted")
    cases = sum(math.prod(len(slots[name]) for name in slot_names(template)) for template in templates)
    if cases > MAX_CASES:
        raise DataError(f"{place}: found {cases:,} sources, expected at most {MAX_CASES:,}; take fewer words")
    return TemplateProbe(str(entry.get("name", place.rpartition(": ")[2])), templates, slots, forms, by)


def _groups(place: str, value: Any) -> Words:
    if not isinstance(value, Mapping) or not value:
        raise DataError(f"{place}: found {value!r}, expected a table of word lists")
    return {str(name): _words(f"{place}.{name}", words) for name, words in value.items()}


def _words(place: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(word, str) and word.strip() for word in value):
        raise DataError(f"{place}: found {value!r}, expected a list of texts")
    return tuple(value)


def probe(
    run: str | Path,
    options: ProbeOptions | None = None,
    *,
    note: Callable[[str], None] = lambda line: None,
    warn: Callable[[str], None] = lambda line: None,
) -> Sequence[ProbeResult | TemplateResult]:
    """Feed made-up inputs to a run and count the kinds of its outputs."""
    options = options or ProbeOptions()
    require_texts("probe", run)
    names, sentences = options.probes, options.sentences
    if sentences is not None and names and all(PROBES[name].english for name in names if name in PROBES):
        raise DataError(f"--sentences is for the probes of repetition and length: found {', '.join(names)}")
    own = None
    if options.templates is not None:
        if names or sentences is not None:
            raise ConfigError(f"{'--probe' if names else '--sentences'} or --templates")
        own = read_template_probes(options.templates)
    else:
        texts, warning = probe_texts(Run(run), None if sentences is None else list(read_lines(sentences)))
        chosen = suitable_probes(names, texts)
        if warning:
            warn(warning)
        if skipped := [name for name in PROBES if not names and name not in chosen]:
            note(f"skipped: {', '.join(skipped)}; their inputs are English, which this run does not read")
    predictor = load_predictor(run, options.device, split_long=False)
    reports = StreamOptions(on_warning=warn, input_name="probe input {}".format)

    def outputs(sources: Sequence[str]) -> list[str]:
        return [output.text for output in predictor.stream(sources, stream=reports, tag=options.tag, beam=options.beam)]

    if own is not None:
        return run_template_probes(outputs, own, options.examples)
    return run_probes(outputs, chosen, texts=texts, examples=options.examples)
