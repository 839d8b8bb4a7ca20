"""`dragoman clean`: take bad pairs out of a corpus."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.commands.inputs import pair_files
from dragoman.commands.options import ListingOption, json_option
from dragoman.commands.printing import pair_line
from dragoman.data.examples import Fault, Pairs
from dragoman.data.readers.base import ReadOptions
from dragoman.data.readers.pairs import read_pairs
from dragoman.errors import ConfigError, DataError
from dragoman.files import atomic_write, same_file
from dragoman.training.display import Display

if TYPE_CHECKING:
    from dragoman.data.cleaning.clean import Report, Verdict


def rules_text(default: bool) -> str:
    """The rules that are on by default, or off, with what they are about."""
    from dragoman.data.cleaning.rules import RULES

    return "; ".join(f"{rule.name}: {rule.about}" for rule in RULES.values() if rule.default is default)


@click.command()
@pair_files("Target", required=True)
@click.option("-o", "--output", required=True, help="The pairs that are kept: .tsv or .jsonl.")
@click.option("--rejects", metavar="FILE", help="The others with rule and reason. [default: OUTPUT.rejected.tsv]")
@click.option(
    "--with", "with_", cls=ListingOption, listing=lambda: rules_text(False), multiple=True, metavar="RULE",
    help="Use also a rule that is off. LISTING",
)  # fmt: skip
@click.option(
    "--without", cls=ListingOption, listing=lambda: rules_text(True), multiple=True, metavar="RULE",
    help="Do not use a rule that is on. LISTING",
)  # fmt: skip
@click.option("--languages", metavar="A,B", help="Languages of source and target, for --with language.")
@click.option(
    "--max-ratio", type=click.FloatRange(1.0, min_open=True), default=3.0,
    help="A pair whose lengths differ so many times more than usual is rejected (rule ratio).",
)  # fmt: skip
@click.option(
    "--near", type=click.FloatRange(0.5, 1.0), default=0.8,
    help="Shared part of the character 5-grams of near duplicates (rule near-duplicate).",
)  # fmt: skip
@click.option("--columns", metavar="A,B", help="Columns of FILE, by number or name, or languages of a .tmx.")
@click.option("--header", is_flag=True, help="The first line of FILE names its columns.")
@json_option
def clean(files: str | Pairs, output: str, rejects: str | None, as_json: bool, **given: Any) -> None:
    """Take pairs out of a corpus that would harm training.

    \b
    dragoman clean pairs.tsv -o clean.tsv
    dragoman clean --source a.en --target a.de -o clean.tsv --with language --languages en,de
    dragoman clean crawl.tmx -o clean.tsv --with near-duplicate --without markup

    clean reads the corpus twice: first to see what is usual in it (the script of each side, the ratio of lengths), then
    to judge each pair. It prints how many pairs each rule has rejected, with examples. Nothing is lost: rejected pairs
    are in the file of --rejects, with rule, place and reason, tab-separated. Rules that also reject good translations
    are off: see 'scarce' in the documentation.
    """
    from dragoman.data.cleaning.clean import Report, judge
    from dragoman.data.cleaning.rules import Settings, chosen_rules

    names, columns = (
        tuple(name.strip() for name in (given[option] or "").split(",") if name.strip())
        for option in ("languages", "columns")
    )
    rules = chosen_rules((*given["with_"], *(["language"] if names else ())), given["without"])
    rejects = rejects or f"{Path(output).with_suffix('')}.rejected.tsv"
    if Path(rejects).absolute() == Path(output).absolute():
        raise ConfigError(f"--rejects {rejects}: expected another file than --output")
    inputs = (files,) if isinstance(files, str) else (files.source, files.target)
    if any(file and same_file(file, rejects) for file in inputs):
        raise DataError(f"{rejects}: rejected pairs would overwrite this input; name another file with --rejects")
    report = Report(rules)
    settings = Settings(given["max_ratio"], names, given["near"])
    with Display(quiet=not sys.stderr.isatty()) as display:
        read = partial(read_pairs, files, ReadOptions(columns, given["header"]))  # again at each call
        write_verdicts(judge(read, rules, settings, display.preparing), output, rejects, report)
    counts = {rule: report.rejected[rule] for rule in ("faulty", *(rule.name for rule in rules))}
    if as_json:
        table = {"read": report.total, "kept": report.kept, "rejected": counts, "examples": report.examples}
        click.echo(json.dumps(table, ensure_ascii=False))
        return
    click.echo(f"{'rule':<16}{'rejected':>10}{'share':>9}")
    for name, count in counts.items():
        click.echo(f"{name:<16}{count:>10,}{count / report.total:>9.2%}")
        for reason, pair in report.examples.get(name, ()):
            click.echo(f"    {reason}: {pair}"[:160])
    click.echo(f"{'kept':<16}{report.kept:>10,}{report.kept / report.total:>9.2%}   {output}")
    if report.rejected.total():
        click.echo(f"rejected pairs with reasons: {rejects}")


def write_verdicts(verdicts: Iterable[Verdict], output: str, rejects: str, report: Report) -> None:
    as_objects = Path(output).suffix in (".jsonl", ".ndjson")
    with ExitStack() as stack:
        kept, others = (
            stack.enter_context(stack.enter_context(atomic_write(path)).open("w", encoding="utf-8", newline="\n"))
            for path in (output, rejects)
        )
        for verdict in verdicts:
            report.add(verdict)
            item = verdict.item
            if isinstance(item, Fault):
                others.write(f"{verdict.rule}\t{item.location}\t{verdict.reason}\t\t\n")
                continue
            target = item.references[0]
            if verdict.rule:
                row = (verdict.rule, item.location, verdict.reason, item.source, target)
                others.write("\t".join(cell.replace("\t", " ") for cell in row) + "\n")
            else:
                kept.write(pair_line(item.source, target, as_objects))
        if not report.total:
            raise DataError("nothing to clean: no line was read")
