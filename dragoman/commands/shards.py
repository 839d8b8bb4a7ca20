"""`dragoman predict --shards`: any amount of text, by any number of workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.base import DataError
from dragoman.commands.printing import print_message, print_warning
from dragoman.commands.settings import Settings
from dragoman.inference import ShardState, device_of_worker, do_shards

if TYPE_CHECKING:
    from dragoman.decoding import DecodingOptions
    from dragoman.runs import Run


def predict_shards(
    run: Run, settings: Settings, file: str | None, as_json: bool, decoding: DecodingOptions, device: str
) -> None:
    """Do the shards that are not done, and say how far the job is."""
    from dragoman.inference.shards import Job, check_input, check_run

    reading, shards = settings.data, settings.shards
    if file is None or file == "-":
        raise DataError("--shards needs a FILE: standard input cannot be cut into shards")
    assert shards.folder is not None
    check_input(Path(file))
    check_run(run, Path(file))
    data = reading.applied(run.config.data, file, print_warning)
    job = Job(
        str(run.folder.resolve()), str(Path(file).resolve()), str(Path(shards.folder).resolve()), decoding,
        data.columns, data.header, reading.table, as_json,
        device_of_worker(device), shards.size << 20,
    )  # fmt: skip
    job.open()
    print_state(do_shards(job, shards), shards.folder, as_json)


def print_state(state: ShardState, folder: str, as_json: bool) -> None:
    if state.unseen:
        shown = ", ".join(repr(text)[:40] for text in state.unseen_texts)
        print_warning(f"{state.unseen:,} rows have characters or words that training did not have, such as {shown}")
    line = f"{state.done:,} of {state.shards:,} shards done, {state.rows:,} rows"
    if state.failed:
        line += f", {state.failed:,} failed (reasons in {folder}/part-*.rejected.jsonl)"
    if state.finished:
        print_message(f"{line}; all outputs in order: cat {folder}/part-*.{'jsonl' if as_json else 'txt'}")
    else:
        print_message(f"{line}; others work on the rest, or the same command goes on with it")
