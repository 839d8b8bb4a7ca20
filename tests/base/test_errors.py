"""Messages of errors: from Python they name arguments and are short; on the command line they stay as written."""

from __future__ import annotations

import pytest

from dragoman.base.errors import ConfigError, DataError, on_command_line

MESSAGES = {
    "found x; name another folder with --run": "found x; name another folder with run=…",
    "--time, --trials and --ensemble need a data file": "seconds=…, trials=… and ensemble=… need a data file",
    "align --model hmm aligns raw pairs": "align model=hmm aligns raw pairs",
    "start with --run NEW train.start_from=x": "start with run=NEW train.start_from=x",
    "leave them out with --skip-unreadable": "leave them out with skip_unreadable=…",
    "name it with --tag (from Python tag=…)": "name it with --tag (from Python tag=…)",
    "old ones (dragoman train x --run y), or --run": "old ones (dragoman train x --run y), or run=…",
    "write it with `dragoman serve --corrections F`": "write it with `dragoman serve --corrections F`",
    "runs/a--b: no such run folder": "runs/a--b: no such run folder",
}


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_name_what_the_caller_wrote(message: str) -> None:
    assert str(DataError(message)) == MESSAGES[message]
    with on_command_line():
        assert str(DataError(message)) == message
    assert str(DataError(message)) == MESSAGES[message]


def test_no_line_is_longer_than_500_characters() -> None:
    error = ConfigError("a: found " + "x" * 3000 + ", expected a number\nb: short")
    first, second = str(error).split("\n")
    assert (len(first), second) == (500, "b: short")
    assert first.startswith("a: found xxx")
    assert first.endswith("xxx, expected a number")
    assert repr(error).count("x") > 3000
