"""`qa`: check the translations of bilingual files, whoever made them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.base import ConfigError, DataError, check_output, check_writable, hint, progress
from dragoman.base.config import setting
from dragoman.data import Fault, languages_of_name, load_identifier
from dragoman.data.readers import ReadOptions, check_file, read_pairs
from dragoman.documents.report import CheckedFile, CheckedPair, write_report

if TYPE_CHECKING:
    from dragoman.decoding.constraints import Terminology

BILINGUAL = (".po", ".xlf", ".xliff")  # documents with sources and translations; READERS have the other formats


def kinds_listing() -> str:
    from dragoman.inference import FINDINGS, HARD_FINDINGS

    soft = [kind for kind in FINDINGS if kind not in HARD_FINDINGS]
    return f"Mistakes: {', '.join(kind for kind in FINDINGS if kind in HARD_FINDINGS)}. To look at: {', '.join(soft)}"


@dataclass(frozen=True)
class QAOptions:
    """What `qa` checks, and where it writes a report."""

    output: str | None = setting(None, help="write a page with all findings", flag="-o --output", metavar="REPORT.html")
    source: str | None = setting(
        None, help="source language. [default: as the file says, or its name, such as en-de.tsv]", flag="--from",
        metavar="CODE",
    )  # fmt: skip
    target: str | None = setting(None, help="target language", flag="--to", metavar="CODE")
    terms: str | None = setting(
        None, help="terms with their translations, tab-separated, that must be used", flag="--terms", metavar="FILE"
    )
    without: tuple[str, ...] = setting(
        (), help="leave out a kind of finding. LISTING", flag="--without", metavar="KIND", listing=kinds_listing
    )
    hard: bool = setting(False, help="mistakes only", flag="--hard")
    columns: str | None = setting(
        None, help="columns of source and target, by number or name, or languages of a .tmx", flag="--columns",
        metavar="A,B",
    )  # fmt: skip
    header: bool = setting(False, help="the first line of FILE names its columns", flag="--header")
    encoding: str | None = setting(
        None, help="encoding of a .po that is not UTF-8 and does not say so, as latin-1", flag="--encoding"
    )


def qa(files: Sequence[str], options: QAOptions = QAOptions()) -> list[CheckedFile]:  # noqa: B008  (frozen)
    """Check every translation of bilingual files, and write a report if the options name one."""
    from dragoman.decoding.constraints import Terminology
    from dragoman.inference import FINDINGS

    if not files:
        raise DataError("found no FILE to check")
    for kind in options.without:
        if kind not in FINDINGS:
            raise ConfigError(f"--without: found '{kind}'. {hint(kind, FINDINGS)}")
    for file in files:
        check_file(Path(file))
    if options.output is not None:
        check_output(options.output, files, "--output")
        check_writable(options.output)
    terms = Terminology.read(options.terms) if options.terms is not None else None
    with progress("segments") as done:
        checked = [_check(file, options, terms, done) for file in files]
    if options.output is not None:
        write_report(options.output, checked)
    return checked


def _check(file: str, options: QAOptions, terms: Terminology | None, done: Callable[[int], None]) -> CheckedFile:
    from dragoman.inference import Finding, checker

    (source, target), pairs = _opened(file, options)
    check = checker(source, target, terms, identify=_identifier() if target else None)
    kind_of_file = Path(file).suffix.lower()
    checked, seen = CheckedFile(file), dict[str, tuple[str, str]]()
    for place, text, output in pairs:
        if isinstance(output, Fault):
            findings = [Finding("unreadable", output.detail)]
            text, output = "", ""
        else:
            findings = check(text, output, accelerators=kind_of_file == ".po")
            if kind_of_file in (".xlf", ".xliff"):
                other, earlier = seen.setdefault(text, (output, place))
                if other != output:
                    findings.append(Finding("inconsistent", f"the same source has another translation at {earlier}"))
        kept = [one for one in findings if one.kind not in options.without and (one.hard or not options.hard)]
        checked.add(CheckedPair(place, text, output, kept))
        done(1)
    if not checked.segments:
        raise DataError(f"{file}: found no translation to check")
    return checked


def _opened(file: str, options: QAOptions) -> tuple[tuple[str, str], Iterable[tuple[str, str, str | Fault]]]:
    """The languages of a file; place, source and translation of each of its segments."""
    from dragoman.documents.base import Reading
    from dragoman.documents.registry import open_document

    path = Path(file)
    named = languages_of_name(path.name)
    if path.suffix.lower() in BILINGUAL:
        reading = Reading(options.source or "", options.target or "", options.encoding or "")
        document = open_document(file, path.read_bytes(), reading)
        source, target = (next(iter(codes), "").replace("_", "-") for codes in (document.sources, document.targets))
        named = (source or named[0], target or named[1])
        pairs: Iterable[tuple[str, str, str | Fault]] = (
            (f"{file}: {place}", source, output) for source, output, place in document.pairs()
        )
    else:
        columns = tuple(name.strip() for name in (options.columns or "").split(",") if name.strip())
        if path.suffix.lower() == ".tmx":
            columns = columns or tuple(filter(None, (options.source, options.target)))
            named = (columns[0], columns[1]) if len(columns) == 2 else named
        pairs = _rows(path, ReadOptions(columns, options.header))
    return (options.source or named[0], options.target or named[1]), pairs


def _rows(path: Path, reading: ReadOptions) -> Iterator[tuple[str, str, str | Fault]]:
    for row in read_pairs(path, reading):
        if isinstance(row, Fault):
            yield row.location, "", row
        else:
            yield row.location, row.source, row.references[0]


def _identifier() -> Callable[[str], tuple[str, float]] | None:
    """What tells the language of a text, where its package is installed."""
    if find_spec("py3langid") is None:
        return None
    identifier = load_identifier("the check 'language'", "documents")

    def identify(text: str) -> tuple[str, float]:
        code, share = identifier.classify(text)
        return str(code), float(share)

    return identify
