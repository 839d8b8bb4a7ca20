"""Messages of trainings: the logger `dragoman.training`, the train.log of a run, the panel of a notebook."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.training import display as module
from dragoman.training.display import Display
from dragoman.training.notebook_panel import LINES, NotebookPanel
from tests.conftest import words

SETTINGS = {"steps": 3, "log_every": 1, "validate_every": 3, "optimizer": {"warmup": 1}}
PAIRS = [(word, word.upper()) for word in words(30)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))


def train(folder: Path, steps: int = 3, **more: Any) -> None:
    settings = {**SETTINGS, "steps": steps}
    dragoman.train(PAIRS, folder, "preset=demo-rnn", "data.units=words", train=settings, **more)


def test_a_run_keeps_its_messages_and_a_program_may_read_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "dragoman"):
        train(tmp_path / "run", quiet=True)
    assert capsys.readouterr().err == ""  # what nobody asked for is not shown
    text = (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
    lines = [re.sub(r"^[\d-]+ [\d:]+ ", "", line) for line in text.splitlines()]
    assert all(line.startswith(("INFO ", "WARNING ")) for line in lines)
    for part in ("INFO data: ", "INFO overrides: task", "INFO step 2/3  loss", "INFO valid 3  loss"):
        part = part.replace(" task", "")
        assert any(line.startswith(part) for line in lines), part
    logged = [record.getMessage() for record in caplog.records if record.name == "dragoman.training"]
    assert [line.partition(" ")[2] for line in lines] == logged[: len(lines)]
    train(tmp_path / "run", 4, quiet=True)
    longer = (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
    assert longer.startswith(text)
    assert "INFO resuming from step 3" in longer


def test_the_log_says_how_a_run_ended(tmp_path: Path) -> None:
    def fail(step: int, metrics: Any) -> None:
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        train(tmp_path / "run", on_metrics=fail, quiet=True)
    assert (tmp_path / "run" / "train.log").read_text().endswith("ERROR ended by ValueError: enough\n")


def test_warnings_have_their_level_and_control_characters_are_shown(caplog: pytest.LogCaptureFixture) -> None:
    display = Display(quiet=True)
    with caplog.at_level(logging.INFO, "dragoman"):
        display.warning("a \x1b[31mred\x1b[0m line")
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.WARNING, r"a \x1b[31mred\x1b[0m line")


def test_without_a_handler_nothing_is_shown_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Display(quiet=True).warning("once")
    assert capsys.readouterr().err == "warning: once\n"


@pytest.mark.filterwarnings("ignore")
def test_a_notebook_gets_html_that_changes_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output
    from traitlets.config import Config

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    monkeypatch.setattr(module, "notebook_panel", NotebookPanel)  # as in a kernel, which has another class of shell
    try:
        with capture_output() as captured:
            train(tmp_path / "run")
    finally:
        InteractiveShell.clear_instance()
    assert captured.stderr == ""  # no red block
    outputs = captured._outputs  # with what IPython tells the notebook besides the data
    assert [output["update"] for output in outputs] == [False, *(True for _ in outputs[1:])]
    assert len({output["transient"]["display_id"] for output in outputs}) == 1
    pages = [output["data"]["text/html"] for output in outputs]
    assert any('<progress value="2" max="3"></progress> <code>step 2/3  loss' in page for page in pages)
    assert any("valid 3  loss" in page for page in pages)
    assert "run folder: " in pages[-1]


def test_a_panel_escapes_and_shortens() -> None:
    panel = NotebookPanel()
    panel._output = type("Output", (), {"update": lambda *parts: None})()
    for number in range(LINES + 5):
        panel.line(f"<b>{number}</b>")
    page = panel._repr_html_()
    assert "<b>" not in page
    assert "… 5 lines before" in page
    assert "&lt;b&gt;204&lt;/b&gt;" in page
    assert "204" in repr(panel)
