"""`dragoman test`: check a model as software is checked."""

from __future__ import annotations

import click

from dragoman.base import DataError, atomic_write, check_writable
from dragoman.commands.from_record import options_of
from dragoman.commands.options import json_option
from dragoman.commands.printing import as_utf8, print_json, print_message
from dragoman.inspect import SuiteOptions


@click.command()
@click.argument("run")
@click.argument("suite", required=False, metavar="[SUITE.toml]")
@click.option("--init", is_flag=True, help="Print a first suite, from the data of the run and the probes.")
@click.option("--junit", metavar="FILE", help="Also write the results as JUnit XML, which CI servers show.")
@json_option
@options_of(SuiteOptions)
def test(run: str, suite: str | None, init: bool, junit: str | None, as_json: bool, options: SuiteOptions) -> None:
    """Test a run: one line for each check of a suite.

    The exit code is 1 if a check fails.

    \b
    dragoman test runs/my --init > suite.toml      a first suite, which the run passes
    dragoman test runs/my suite.toml
    dragoman test runs/new suite.toml --junit results.xml

    A suite has cases (a source, and what its output must satisfy), scores on files (thresholds, or not significantly
    worse than another run) and limits of latency, memory and size. 'test-suite' in the documentation lists all checks.
    """
    from dragoman.inspect.measure import first_suite, junit_xml, run_suite

    as_utf8()
    if init:
        if suite is not None or junit is not None or as_json:
            raise DataError("--init prints a suite and tests nothing: found other arguments, expected RUN alone")
        text, failed = first_suite(run, options)
        click.echo(text, nl=False)
        if failed:
            print_message(f"left out: {failed} checks that the run fails now")
        return
    if suite is None:
        raise DataError(f"nothing to test with: name a suite, or make one: dragoman test {run} --init > suite.toml")
    if junit is not None:
        check_writable(junit)
    results = []
    for result in run_suite(run, suite, options):
        results.append(result)
        if not as_json:
            click.echo(str(result))
    failures = sum(not result.passed for result in results)
    if junit is not None:
        with atomic_write(junit) as beside:
            beside.write_bytes(junit_xml(results, f"{run}: {suite}"))
    if as_json:
        table = {"checks": len(results), "failures": failures, "results": [result._asdict() for result in results]}
        print_json(table)
    else:
        click.echo(f"{len(results)} checks, {failures} failed")
    if failures:
        raise click.exceptions.Exit(1)
