"""Check, distil and search from Python: the verbs of `dragoman check`, `distil` and `train --time`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dragoman.auto.distillation import distil as distil_run
from dragoman.auto.options import CheckOptions, DistilOptions, SearchOptions
from dragoman.auto.request import request_of
from dragoman.auto.search.state import SearchState
from dragoman.auto.training import check_request, search_request
from dragoman.base import silent
from dragoman.data.readers import check_file
from dragoman.training import Display

CHECK, DISTIL = CheckOptions(), DistilOptions()


class Checked(NamedTuple):
    """What a check reports."""

    lines: list[str]
    warnings: int  # lines that are warnings


def check(
    data: str | Path | Iterable[object], *overrides: str, options: CheckOptions = CHECK, quiet: bool = True
) -> Checked:
    """Check data and settings before a training: every line, lengths, memory, and a trial run on a few examples.

    `data` are files or pairs in memory, a configuration file, or the folder of a run that would be resumed. What
    training would refuse is a DragomanError.
    """
    lines: list[str] = []
    with silent(quiet), Display(quiet=quiet) as display:
        warnings = check_request(request_of(data, overrides), options, display, lines.append)
    return Checked(lines, warnings)


def distil(
    run: str | Path,
    student: str | Path | None = None,
    *overrides: str,
    options: DistilOptions = DISTIL,
    device: str = "auto",
    quiet: bool = False,
) -> list[str]:
    """Train one model on the outputs of a run or an ensemble; returns lines that compare it with its teacher.

    The folder of the student is `student`, or that of the run with "-student". A student that is there is trained on.
    """
    folder = Path(student) if student is not None else Path(f"{str(run).rstrip('/')}-student")
    if options.unlabelled is not None:
        check_file(Path(options.unlabelled))
    with silent(quiet), Display(quiet=quiet) as display:
        return distil_run(str(run), folder, overrides, device, display, options)


def search(
    data: str | Path | Iterable[object],
    run: str | Path | None = None,
    *overrides: str,
    options: SearchOptions | None = None,
    quiet: bool = False,
) -> SearchState:
    """Try several configurations and train the best, in `options.seconds` or with `options.trials` of them.

    The folder `run` becomes the run of the best model. The same call goes on with a search that was stopped.
    """
    request = request_of(data, overrides)
    if run is None and not request.folder:
        raise TypeError("search needs run=FOLDER when the data are not a file")
    with silent(quiet), Display(quiet=quiet) as display:
        return search_request(request._replace(folder=str(run or request.folder)), options or SearchOptions(), display)
