"""`dragoman clean`: take bad pairs out of a corpus."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.commands.layout import check_pair_files, pair_files
from dragoman.commands.options import json_option
from dragoman.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dragoman.data.cleaning.clean import Report, Verdict
    from dragoman.data.examples import Example, Fault, Pairs


class RuleOption(click.Option):
    """An option that takes a rule; its help lists the rules when it is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The names come from the table of rules, which `dragoman --help` need not import."""
        from dragoman.data.cleaning.rules import RULES

        record = super().get_help_record(ctx)
        assert record is not None
        wanted = self.name == "without"
        listed = "; ".join(f"{rule.name}: {rule.about}" for rule in RULES.values() if rule.default is wanted)
        return record[0], f"{record[1]} {listed}"


@click.command()
@pair_files("Target")
@click.option("-o", "--output", required=True, help="The pairs that are kept: .tsv or .jsonl.")
@click.option("--rejects", metavar="FILE", help="The others with rule and reason. [default: OUTPUT.rejected.tsv]")
@click.option("--with", "with_", cls=RuleOption, multiple=True, metavar="RULE", help="Use also a rule that is off.")
@click.option("--without", cls=RuleOption, multiple=True, metavar="RULE", help="Do not use a rule that is on.")
@click.option("--languages", metavar="A,B", default="", help="Languages of source and target, for --with language.")
@click.option(
    "--max-ratio", type=click.FloatRange(1.0, min_open=True), default=3.0, show_default=True,
    help="A pair whose lengths differ so many times more than usual is rejected (rule ratio).",
)  # fmt: skip
@click.option(
    "--near", type=click.FloatRange(0.5, 1.0), default=0.8, show_default=True,
    help="Shared part of the character 5-grams of near duplicates (rule near-duplicate).",
)  # fmt: skip
@click.option(
    "--columns", metavar="A,B", default="", help="Columns of FILE, by number or name, or languages of a .tmx."
)
@click.option("--header", is_flag=True, help="The first line of FILE names its columns.")
@json_option
def clean(files: str | Pairs | None, output: str, rejects: str | None, as_json: bool, **given: Any) -> None:
    """Take pairs out of a corpus that would harm training.

    \b
    dragoman clean pairs.tsv -o clean.tsv
    dragoman clean --source a.en --target a.de -o clean.tsv --with language --languages en,de
    dragoman clean crawl.tmx -o clean.tsv --with near-duplicate --without markup

    clean reads the corpus twice: first to see what is usual in it (the script of each side, the ratio of lengths), then
    to judge each pair. It prints how many pairs each rule has rejected, with examples. Nothing is lost: rejected pairs
    are in the file of --rejects, with rule, place and reason, tab-separated. Rules that also reject good translations
    are off: see docs/scarce.md.
    """
    from dragoman.data.cleaning.clean import Report, judge
    from dragoman.data.cleaning.rules import Settings, chosen_rules
    from dragoman.files import same_file

    names = tuple(code.strip() for code in given["languages"].split(",") if code.strip())
    rules = chosen_rules((*given["with_"], *(["language"] if names else ())), given["without"])
    read = reader(check_pair_files(files), given["columns"], given["header"])
    rejects = rejects or f"{Path(output).with_suffix('')}.rejected.tsv"
    if Path(rejects).absolute() == Path(output).absolute():
        raise ConfigError(f"--rejects {rejects}: expected another file than --output")
    inputs = (files,) if isinstance(files, str) else (files.source, files.target) if files else ()
    if any(file and same_file(file, rejects) for file in inputs):
        raise DataError(f"{rejects}: rejected pairs would overwrite this input; name another file with --rejects")
    report = Report(rules)
    settings = Settings(given["max_ratio"], names, given["near"])
    write_verdicts(lambda progress: judge(read, rules, settings, progress), output, rejects, report)
    if as_json:
        click.echo(json.dumps(report_table(report), ensure_ascii=False))
    else:
        print_report(report, output, rejects)


def reader(files: str | Pairs, columns: str, header: bool) -> Callable[[], Iterator[Example | Fault]]:
    """A function that reads the pairs again at each call."""
    from dragoman.data.readers.base import ReadOptions
    from dragoman.data.readers.pairs import read_pairs

    names = tuple(name.strip() for name in columns.split(",") if name.strip())
    return lambda: read_pairs(files, ReadOptions(names, header))


def write_verdicts(
    judge: Callable[[Callable[[str, int], None]], Iterator[Verdict]], output: str, rejects: str, report: Report
) -> None:
    """Write kept and rejected pairs, and count them."""
    from dragoman.data.examples import Fault
    from dragoman.files import atomic_write
    from dragoman.training.display import Display

    as_objects = Path(output).suffix in (".jsonl", ".ndjson")
    with ExitStack() as stack:
        display = stack.enter_context(Display(quiet=not sys.stderr.isatty()))
        kept, others = (
            stack.enter_context(stack.enter_context(atomic_write(path)).open("w", encoding="utf-8", newline="\n"))
            for path in (output, rejects)
        )
        for verdict in judge(display.preparing):
            report.add(verdict)
            item = verdict.item
            if isinstance(item, Fault):
                others.write(f"{verdict.rule}\t{item.location}\t{verdict.reason}\t\t\n")
                continue
            target = item.references[0]
            if verdict.rule:
                row = (verdict.rule, item.location, verdict.reason, item.source, target)
                others.write("\t".join(cell.replace("\t", " ") for cell in row) + "\n")
            elif as_objects:
                kept.write(json.dumps({"source": item.source, "target": target}, ensure_ascii=False) + "\n")
            else:
                kept.write(f"{item.source.replace(chr(9), ' ')}\t{target.replace(chr(9), ' ')}\n")
        if not report.total:
            raise DataError("nothing to clean: no line was read")


def report_table(report: Report) -> dict[str, Any]:
    """The report as a JSON object."""
    return {
        "read": report.total,
        "kept": report.kept,
        "rejected": {rule: report.rejected[rule] for rule in rule_names(report)},
        "examples": report.examples,
    }


def rule_names(report: Report) -> list[str]:
    """The rules in use, in order."""
    return ["faulty", *(rule.name for rule in report.rules)]


def print_report(report: Report, output: str, rejects: str) -> None:
    """Counts and examples for a person."""
    click.echo(f"{'rule':<16}{'rejected':>10}{'share':>9}")
    for rule in rule_names(report):
        count = report.rejected[rule]
        click.echo(f"{rule:<16}{count:>10,}{count / report.total:>9.2%}")
        for reason, pair in report.examples.get(rule, ()):
            click.echo(f"    {reason}: {pair}"[:160])
    click.echo(f"{'kept':<16}{report.kept:>10,}{report.kept / report.total:>9.2%}   {output}")
    if report.rejected.total():
        click.echo(f"rejected pairs with reasons: {rejects}")
