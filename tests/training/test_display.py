"""The progress of a training fits the terminal, and names no step that the time will not reach."""

from __future__ import annotations

import io
import re

import pytest

from dragoman.training.display import Display


class Terminal(io.StringIO):
    """Text that a terminal would show."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        return [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())) if line]


@pytest.mark.parametrize(("width", "gone"), [(120, ()), (80, ()), (70, ("rate",)), (40, ("rate", "tokens/s"))])
def test_the_bar_fits(monkeypatch: pytest.MonkeyPatch, width: int, gone: tuple[str, ...]) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with Display(terminal) as display:
        display.preparing("reading " + "x" * 200, 7)
        display.start(0, 1800)
        display.show_step(1234, 1800, 5.4652, 2e-3, 6703.2, 339)
        display.advance(1235)
    assert max(map(len, terminal.lines)) <= width
    shown = terminal.lines[-1]
    for part in ("1235/1800", "loss 5.465", "rate 2.00e-03", "6,703 tokens/s", "5:39 left"):
        assert (part in shown) != any(word in part for word in gone), shown


def test_a_time_shows_no_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    terminal, plain = Terminal(), io.StringIO()
    for stream in (terminal, plain):
        with Display(stream) as display:
            display.start(0, 20_000)
            display.show_step(100, 900, 5.0, 1e-3, 1000, 60, by_time=True)
            display.advance(101)
    assert plain.getvalue() == "step 100  loss 5.000  rate 1.00e-03  1,000 tokens/s  1:00 left\n"
    assert re.search(r" 101 +loss 5.000 .* 1:00 left", terminal.lines[-1])
    assert "/" not in terminal.lines[-1].replace("tokens/s", "")
