"""`dragoman demo` on a made-up dictionary."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

from dragoman.commands import demonstration
from tests.conftest import call, words


def test_the_demo_scores_ten_words_and_ends_with_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    spelled = words(300, shortest=6, longest=8)
    monkeypatch.setattr(demonstration, "dictionary", lambda: ((word, " ".join(word.upper())) for word in spelled))
    monkeypatch.setattr(demonstration, "TEST_SHARE", 0.1)
    monkeypatch.setattr(demonstration, "NETWORK_STEPS", 2)
    result = call("demo", "--run", tmp_path / "demo")
    assert result.code == 0, result.err
    lines = result.lines
    first = lines.index("Ten words it has never seen:") + 1
    assert [line.split()[-1] for line in lines[first : first + 10]] == ["✓"] * 10  # every letter is a sound
    address = urlparse(lines[-1].strip())
    assert address.scheme == "file"
    page = Path(unquote(address.path))
    assert page == (tmp_path / "demo" / "inspect.html").resolve()
    assert '"attention"' in page.read_text(encoding="utf-8")
    shown = demonstration.split()[1]
    assert not set(shown) & {line.split("\t")[0] for line in (tmp_path / "demo-data/train.tsv").read_text().split("\n")}
