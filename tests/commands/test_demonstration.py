"""`dragoman demo` on a made-up dictionary."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

from dragoman.auto import demonstration
from tests.conftest import call, words


def test_the_demo_scores_ten_words_and_ends_with_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    spelled = words(300, shortest=6, longest=8)
    monkeypatch.setattr(demonstration, "dictionary", lambda: ((word, " ".join(word.upper())) for word in spelled))
    monkeypatch.setattr(demonstration, "TEST_SHARE", 0.1)
    monkeypatch.setattr(demonstration, "NETWORK_STEPS", 2)
    said: list[str] = []
    written = demonstration.demo(demonstration.DemoOptions(str(tmp_path / "demo")), say=said.append)
    lines = "\n".join(said).split("\n")
    result = call("demo", "--run", tmp_path / "demo")  # goes on with the runs, which are trained
    assert result.code == 0, result.err
    same = [[line for line in text if not line.startswith("Trained in")] for text in (lines, result.lines)]
    assert same[0] == same[1]
    first = next(place for place, line in enumerate(lines) if line.endswith("Ten words it has never seen:")) + 1
    assert [line.split()[-1] for line in lines[first : first + 10]] == ["✓"] * 10  # every letter is a sound
    assert lines[first + 10].startswith("10 of 10 are right. Of all ")
    command = f"{demonstration.command_name()} predict {tmp_path / 'demo'}"
    assert any(line.endswith(command) for line in lines)
    address = urlparse(next(word for word in result.out.split() if word.startswith("file:")))
    page = Path(unquote(address.path))
    assert page == written.resolve() == (tmp_path / "demo" / "inspect.html").resolve()
    assert '"attention"' in page.read_text(encoding="utf-8")
    shown = demonstration.split()[1]
    assert not set(shown) & {line.split("\t")[0] for line in (tmp_path / "demo-data/train.tsv").read_text().split("\n")}


def test_commands_are_named_as_the_user_can_call_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an environment that is not active the path, else the name."""
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "dragoman").touch(mode=0o755)
    monkeypatch.setattr("sys.executable", str(binaries / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    assert demonstration.command_name() == ".venv/bin/dragoman"
    monkeypatch.chdir(tmp_path / ".venv")
    assert demonstration.command_name() == "bin/dragoman"
    monkeypatch.setenv("PATH", str(binaries))
    assert demonstration.command_name() == "dragoman"
