"""`dragoman predict`: one output line for every input line."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import deque
from pathlib import Path
from typing import Any

import click

from dragoman.commands.labels import predict_directly
from dragoman.commands.media import caller, files_only, locations, noted, reads_files, tell_left_out
from dragoman.commands.options import (
    CONTROL_OPTIONS,
    SEARCH_OPTIONS,
    beam_option,
    control_settings,
    decoding_options,
    device_option,
    engine_options,
    length_penalty_option,
    media_option,
    options,
    search_settings,
    skip_unreadable_option,
    tag_option,
)
from dragoman.commands.printing import as_utf8, tell_saved
from dragoman.commands.progress import count_lines, progress_bar
from dragoman.errors import DataError, RunError


@click.command()
@click.argument("run")
@click.argument("file", required=False)
@beam_option
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, help="Inputs at a time.")
@length_penalty_option
@options(SEARCH_OPTIONS.values())
@options(CONTROL_OPTIONS)
@click.option("--beam-trace", metavar="FILE", help="Write all that the search looked at: one JSON object an input.")
@tag_option
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One object a line: text, score, tokens, token_scores; source where it is a file.",
)
@click.option("--n-best", type=click.IntRange(1), default=1, show_default=True, help="Outputs an input; needs --json.")
@skip_unreadable_option
@media_option
@device_option
@engine_options
@decoding_options
def predict(
    run: str,
    file: str | None,
    beam: int | None,
    batch_size: int,
    length_penalty: float | None,
    tag: str | None,
    as_json: bool,
    n_best: int,
    skip_unreadable: bool,
    media: str | None,
    device: str,
    engine: str,
    precision: str,
    beam_trace: str | None,
    how: dict[str, Any],
    **given: Any,
) -> None:
    """Predict one output line for every input line.

    \b
    dragoman predict runs/my input.txt > output.txt
    echo "a line" | dragoman predict runs/my --beam 1                the fastest way
    dragoman predict runs/my input.txt --json --n-best 3             with scores and runners-up
    dragoman predict runs/my input.txt --require ship --forbid boat  what outputs must and must not hold
    dragoman predict runs/my input.txt --terminology terms.tsv --placeholders
    dragoman predict runs/my input.txt --sample --temperature 0.7 --seed 2
    dragoman predict runs/my input.txt --ensemble runs/other --ensemble runs/third

    Reads FILE (also .gz and .zst) or standard input. Empty lines stay empty. The output does not depend on the
    batch size or on the order of the lines.

    The lines of a FILE.jsonl are objects with "source" and, for this line alone, "prefix", "forbid", "require",
    "allow" or "pattern"; they go before the options of these names.

    A run that classifies, regresses or tags answers every line at once: two texts have a tab between them, words and
    the numbers of a series spaces. --json adds probabilities; options of search are refused, and an object has "source"
    alone.

    A run that transcribes or captions reads files: FILE is a recording or picture, a folder or archive of them, a
    manifest (.tsv, .jsonl) as for training, or a list of locations, one a line ("page.tar.gz::7.png" is in an archive).
    Of a folder or archive the recordings (or pictures) are read in sorted order of their names, other files are passed
    over and counted. Plain output has one line a file in that order; --json names every file as "source".
    """
    typed = file in (None, "-")
    if typed and sys.stdin is None:
        raise DataError("standard input is closed: name a FILE, or send lines")
    from dragoman.runs import Run

    opened = Run(run)
    if opened.task.is_language_model:
        raise RunError(
            f"{run}: found a language model, which answers nothing; go on with texts: dragoman complete {run}"
        )
    files_only(opened, skip_unreadable, media)
    if opened.task.head_decoder is not None:
        predict_directly(opened, file, batch_size, as_json, device)
        return
    if n_best > 1 and not as_json:
        raise DataError(f"--n-best {n_best} needs --json: plain output has one line for every input line")
    from dragoman.data.readers.lines import is_jsonl, read_lines
    from dragoman.decoding.constraints.spec import ConstrainedInput, input_from_json, parse_constraints
    from dragoman.inference.companions import asked_how
    from dragoman.inference.predictor import WINDOW

    named = locations(opened, file, media) if reads_files(opened) else None
    lines = read_lines(file) if named is None else named
    asked = control_settings(given)
    constraints = parse_constraints(asked, "options")
    if beam_trace is not None:
        from dragoman.files import check_writable

        check_writable(beam_trace)
    predictor, decoding = asked_how(run, device, how, beam, engine, precision)
    as_utf8()
    if not as_json:
        predictor.temperature = None  # plain output has no room for confidences: do not work them out
        predictor.tells_scores = False
    if reads_files(opened) and file is not None and not typed:
        predictor.called = caller(opened, file)
    left_out: dict[str, Any] = {}  # by place
    if skip_unreadable:
        predictor.unreadable = lambda fault: left_out.update({fault.location: fault})
    objects = named is None and is_jsonl(file)
    sources: deque[str] = deque()  # of files, as far as they are read and not yet answered
    if as_json and reads_files(opened):
        lines = noted(lines, sources)
    texts = (
        input_from_json(line, f"{file}:{number}", constraints)
        if objects and line.strip()
        else ConstrainedInput(line, constraints)
        for number, line in enumerate(lines, 1)
    )
    conversation = typed and sys.stdin.isatty()  # a person waits for an answer to every line
    with contextlib.ExitStack() as stack:
        traced = None if beam_trace is None else stack.enter_context(Path(beam_trace).open("w", encoding="utf-8"))
        progress = None
        if sys.stderr.isatty() and not sys.stdout.isatty() and not conversation:
            progress = stack.enter_context(
                progress_bar("lines", None if typed or named is not None else count_lines(file))
            )

        def tell_nodes(text: str, nodes: list[dict[str, Any]]) -> None:
            print(json.dumps({"source": text, "nodes": nodes}, ensure_ascii=False), file=traced)

        predictions = predictor.stream(
            texts,
            tag=tag,
            beam=beam,
            length_penalty=length_penalty,
            batch_size=batch_size,
            n_best=n_best,
            window=1 if conversation else WINDOW,
            search=search_settings(given),
            terminology=asked["terminology"],
            placeholders=asked["placeholders"],
            tell=None if traced is None else tell_nodes,
            progress=progress,
            **decoding,
        )
        for number, prediction in enumerate(predictions, 1):
            if as_json:
                table = {"source": sources.popleft()} if sources else {}
                table |= prediction.as_table(probability=how["exhaustive"] is not None)
                if wrong := left_out.get(predictor.called(number)):
                    table["unreadable"] = wrong.detail  # an empty text alone might be what was heard
                text = json.dumps(table, ensure_ascii=False)
            else:  # a sub-word model can spell any byte; a line must stay a line
                text = prediction.text.replace("\n", " ").replace("\r", " ")
            sys.stdout.write(text + "\n")
            if conversation:
                sys.stdout.flush()
        sys.stdout.flush()
    tell_saved(decoding)
    tell_left_out([*left_out.values()], "each has an empty line")
