"""Corrected outputs: read them from any file that has them, filter them, and set some aside to judge with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dragoman.base import DataError
from dragoman.data import Correction, CorrectionLog, Example, Fault, FaultError, make_example, source_hash
from dragoman.data.cleaning import Profile, Report, Rule, Settings, chosen_rules, judge
from dragoman.data.readers import (
    READERS,
    ReadOptions,
    check_file,
    compression_of,
    looks_like_header,
    read_pairs,
    suffix_of,
)
from dragoman.documents import FORMATS, MAX_BYTES, open_document
from dragoman.inference import as_examples
from dragoman.runs import Run, list_versions

FEWEST = 20  # usable corrections: with fewer nothing can be said of the result
TESTED, VALIDATED = 0.2, 0.1  # shares that judge the new version, and that choose its checkpoint
MISTAKEN = 0.01  # a rule that rejects more of a run's own training pairs says nothing about its corrections
SETTINGS = Settings()


class Corrections(NamedTuple):
    """Usable corrections in three parts, no source in two of them."""

    train: list[Example]
    valid: list[Example]
    test: list[Example]
    report: Report  # of what was filtered out

    @property
    def usable(self) -> int:
        return len(self.train) + len(self.valid) + len(self.test)


def read_corrections(data: str | Path | Iterable[object], options: ReadOptions) -> Iterator[Example | Fault]:
    """The pairs (source, correction) of a file or of Python rows.

    Lines may be source and correction, or source, output and correction. Of PO and XLIFF files only those translations
    count that a person has translated or reviewed.
    """
    if not isinstance(data, str | Path):
        return iter(as_examples(data))
    path = Path(data)
    check_file(path)
    if suffix_of(path) in FORMATS and suffix_of(path) not in READERS and suffix_of(path) != ".txt":
        return confirmed_pairs(path, options)
    return read_pairs(path, with_layout(path, options))


def accepted_corrections(run: Run, folder: str, tag: str | None) -> Iterator[Example | Fault]:
    """The pairs of a server's corrections of this run, those that a reviewer has accepted.

    A run is known by its folder, or by its weights where the folder has moved since.
    """
    weights = {run.weights_digest(), *(version.digest for version in list_versions(run))}
    place = str(run.folder.resolve())
    log = CorrectionLog(folder)
    accepted = log.read("accepted")

    def is_ours(item: Correction) -> bool:
        return item.tag == (tag or "") and (item.run == place or item.weights in weights)

    ours = [item for item in accepted if is_ours(item)]
    if not ours:
        others = sorted({f"{item.run}{f' with tag {item.tag}' if item.tag else ''}" for item in accepted})
        found = f"accepted corrections only of {', '.join(others)}" if others else "no accepted correction"
        raise DataError(
            f"{log.path}: found {found}, expected some of {place}{f' with tag {tag}' if tag else ''}; look at them "
            f"with: dragoman corrections list {folder}"
        )
    return pairs_of(((item.source, item.correction, f"correction {item.id}") for item in ours), log.path, ReadOptions())


def with_layout(path: Path, options: ReadOptions) -> ReadOptions:
    """Column 3 is the correction of a file with three columns; a first line of names is no correction."""
    rows = READERS.of(path).first_rows(path)
    if not options.header and looks_like_header(rows) and not READERS.of(path).skips_header(rows[0]):
        options = replace(options, header=True)
    if not options.columns and rows and all(len(row) == 3 for row in rows):
        return replace(options, columns=("1", "3"))
    return options


def confirmed_pairs(path: Path, options: ReadOptions) -> Iterator[Example | Fault]:
    if compression_of(path):
        raise DataError(f"{path}: found a compressed document, expected a plain one")
    if path.stat().st_size > MAX_BYTES:
        raise DataError(f"{path}: found {path.stat().st_size:,} bytes, expected at most {MAX_BYTES:,}")
    confirmed = list(open_document(str(path), path.read_bytes()).confirmed())
    yield from pairs_of(confirmed, path, options)
    if not confirmed:
        raise DataError(
            f"{path}: found no translation that a person has confirmed, expected some: entries of PO files that are "
            "not fuzzy, targets of XLIFF files with approved or a state such as translated, reviewed or final"
        )


def pairs_of(texts: Iterable[tuple[str, str, str]], path: Path, options: ReadOptions) -> Iterator[Example | Fault]:
    """Pairs of source and correction, each with its place in a file; white space becomes single spaces."""
    for number, (source, target, place) in enumerate(texts, 1):
        try:
            yield make_example(
                " ".join(source.split()), [" ".join(target.split())], str(path), number, options.max_characters
            )
        except FaultError as fault:
            yield fault.at(f"{path}: {place}")


def filter_corrections(items: Sequence[Example | Fault], usual: Sequence[Example]) -> tuple[list[Example], Report]:
    """The corrections that pass the rules of `clean`, and a report of the others.

    What is usual are the run's own training pairs, not the corrections: those may be few, or sent by strangers.
    """
    profile = Profile()
    for example in usual:
        profile.add(example.source, example.references[0])
    rules = [rule for rule in chosen_rules(("contradiction",), ()) if accepts_training_pairs(rule, profile, usual)]
    report, kept = Report(rules), []
    for verdict in judge(lambda: iter(items), rules, SETTINGS, lambda doing, count: None, profile):
        report.add(verdict)
        if not verdict.rule and isinstance(verdict.item, Example):
            kept.append(verdict.item)
    return kept, report


def accepts_training_pairs(rule: Rule, profile: Profile, usual: Sequence[Example]) -> bool:
    """Whether a rule accepts the training pairs of a run: one that corrects spelling has sources as targets."""
    check = rule.build(profile, SETTINGS)
    if check is None or not usual:
        return True
    return sum(bool(check(example.source, example.references[0])) for example in usual) <= MISTAKEN * len(usual)


def prepare_corrections(
    items: Iterable[Example | Fault], usual: Sequence[Example], tag: str | None, name: str
) -> Corrections:
    """Filter corrections and split them by a hash of their source, so that later corrections move few of them."""
    every = [item._replace(tag=tag) if tag and isinstance(item, Example) else item for item in items]
    kept, report = filter_corrections(every, usual)
    if len(kept) < FEWEST:
        reasons = ", ".join(f"{rule} {count:,}" for rule, count in report.rejected.most_common()) or "none"
        faults = [str(item) for item in every if isinstance(item, Fault)]
        first = f"; first fault: {faults[0]}" if faults else ""
        raise DataError(
            f"{name}: found {len(kept):,} usable corrections, expected {FEWEST} or more (rejected: {reasons}){first}"
        )
    kept.sort(key=source_hash)
    tested, validated = (math.ceil(share * len(kept)) for share in (TESTED, VALIDATED))
    aside = tested + validated
    return Corrections(kept[aside:], kept[tested:aside], kept[:tested], report)
