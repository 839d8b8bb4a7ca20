"""Control characters reach people as visible text, through pipes too; outputs in files and pipes are unchanged."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import click
import pytest

from dragoman import cli
from dragoman.base.terminal import guarded, visible
from dragoman.commands import root
from dragoman.commands.printing import print_json, print_lines
from dragoman.inspect.measure.run_summary import print_run_information
from dragoman.training.display import Display

HOSTILE = "a\x1b]0;title\x07b\x1b[2J\x9b31m\x7f\r\x08ü\t語"
SHOWN = "a\\x1b]0;title\\x07b\\x1b[2J\\x9b31m\\x7f\\r\\x08ü\t語"


class Terminal:
    """A pseudo-terminal: `stream` writes to it, `read` gives what it got."""

    def __init__(self) -> None:
        self.master, slave = os.openpty()
        self.stream = os.fdopen(slave, "w", encoding="utf-8")

    def read(self) -> str:
        self.stream.flush()
        os.set_blocking(self.master, False)
        found = b""
        try:
            while more := os.read(self.master, 1 << 16):
                found += more
        except OSError:
            pass
        return found.decode().replace("\r\n", "\n")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    one = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    yield one
    one.stream.close()
    os.close(one.master)


def test_control_characters_become_visible() -> None:
    assert visible(HOSTILE) == SHOWN
    assert visible("two\nlines\tand a tab") == "two\nlines\tand a tab"


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_all_that_is_printed_to_a_terminal_is_visible(
    name: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"sys.{name}", guarded(terminal.stream))
    stream = guarded(terminal.stream)
    click.echo(HOSTILE, err=name == "stderr")
    print(HOSTILE, file=stream)
    stream.writelines([HOSTILE, "\n"])
    assert terminal.read() == f"{SHOWN}\n" * 3


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_messages_are_visible_through_a_pipe(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(f"sys.{name}", guarded(pipe))
    assert guarded(guarded(pipe)).stream is pipe
    with click.Context(root.cli, **root.cli.context_settings):
        click.echo(HOSTILE, err=name == "stderr")
    assert pipe.buffer.getvalue().decode() == f"{SHOWN}\n"  # type: ignore[attr-defined]


def test_outputs_are_data_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr("sys.stdout", guarded(pipe))
    outputs: Any = SimpleNamespace(interactive=False)
    print_lines(outputs, [f"{HOSTILE}\n"])
    assert pipe.buffer.getvalue().decode() == f"{HOSTILE}\n"  # type: ignore[attr-defined]


def test_json_stays_json(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr("sys.stdout", guarded(pipe))
    print_json({"text": HOSTILE})
    pipe.flush()
    written = pipe.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert json.loads(written) == {"text": HOSTILE}
    assert written == f"{visible(written)}"
    assert "ü" in written


@pytest.mark.parametrize("piped", [False, True])
def test_the_command_line_guards_its_streams(piped: bool, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", pipe if piped else terminal.stream)
    monkeypatch.setattr("sys.argv", ["dragoman", HOSTILE])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    print(HOSTILE, file=sys.stderr)
    sys.stderr.flush()
    said = pipe.buffer.getvalue().decode() if piped else terminal.read()  # type: ignore[attr-defined]
    assert "\x1b" not in said
    assert SHOWN in said


def test_progress_of_training_shows_data_as_text(terminal: Terminal) -> None:
    with Display(guarded(terminal.stream)) as display:
        display.preparing(HOSTILE, 3)
        display.info(HOSTILE)
        display.start(0, 2)
        display.warning(HOSTILE)
    said = terminal.read()
    assert said.count(SHOWN.partition("\t")[0]) == 3
    assert "\x1b]0;" not in said
    assert "\x9b" not in said


def test_the_summary_of_a_run_shows_names_as_text(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", guarded(terminal.stream))
    counts = dict.fromkeys(("pairs", "source_tokens", "target_tokens", "too_long"), 1)
    information: dict[str, Any] = {
        "run": f"[/x]{HOSTILE}", "task": "classify", "parameters": 1, "layers": [], "example": "2 sources",
        "data": {"train": counts, "valid": counts}, "running": False, "fitted": False, "weights": "", "imported": None,
        "source_unit": "", "about": {"source": HOSTILE}, "members": [], "size": "1 parameter",
        "labels": ["[red]", HOSTILE], "tags": [HOSTILE], "steps": (1, 2), "seconds": 3, "train": [], "valid": [],
        "versions": [],
    }  # fmt: skip
    print_run_information(information)
    said = terminal.read()
    assert said.count(SHOWN.partition("\t")[0]) == 4
    assert "[/x]" in said
    assert "[red]" in said
    assert "\x1b]0;" not in said


def test_a_notebook_gets_carriage_returns_alone(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell command of a cell has a pseudo-terminal, but what shows it leaves other control sequences in the text."""

    def written() -> str:
        with Display(terminal.stream) as display:
            display.preparing("counting", 3)
            display.start(0, 2)
            display.show_step(1, 2, 1.5, 0.1, 100.0, 3.0)
        return terminal.read()

    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    assert "\x1b[" in written()
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    shown = written()
    assert "\x1b" not in shown
    assert "\rstep 1/2  loss 1.500" in shown
