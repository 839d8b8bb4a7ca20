"""`dragoman translate` replaces nothing that a person may have changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import TrainedFolder, call


@pytest.fixture
def documents(trained_folder: TrainedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainedFolder:
    """Two documents in an empty folder, and a cache of the test's own."""
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    for name in ("a.md", "b.md"):
        Path("docs", name).write_text("# abc\n\nabc abc\n", encoding="utf-8")
    return trained_folder


def test_the_documented_command_works_twice(documents: TrainedFolder) -> None:
    """Outputs that nobody has changed are replaced, in a folder that exists."""
    for time in range(2):
        done = call("translate", documents.run, "docs/a.md", "docs/b.md", "-o", "translated/", "--beam", "1")
        assert done.code == 0, (time, done.err)
    assert sorted(path.name for path in Path("translated").iterdir()) == ["a.md", "b.md"]


def test_one_file_into_a_folder_that_exists(documents: TrainedFolder) -> None:
    Path("there").mkdir()
    done = call("translate", documents.run, "docs/a.md", "-o", "there", "--beam", "1")
    assert done.code == 0, done.err
    assert Path("there/a.md").is_file()
    done = call("translate", documents.run, "docs/a.md", "docs/b.md", "-o", "there/a.md", "--beam", "1")
    assert done.code == 2
    assert "found a file, expected a folder for 2 files" in done.err


@pytest.mark.parametrize("same_size", [True, False])
def test_an_edited_output_is_kept(documents: TrainedFolder, same_size: bool) -> None:
    source, output = Path("docs/a.md"), Path("docs/a.de.md")
    assert call("translate", documents.run, source, "--to", "de", "--beam", "1").code == 0
    status = output.stat()
    edited = "x" * status.st_size if same_size else "edited by hand"
    output.write_text(edited, encoding="utf-8")
    os.utime(output, ns=(status.st_atime_ns, status.st_mtime_ns))
    done = call("translate", documents.run, source, "--to", "de", "--beam", "1")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "docs/a.de.md: exists, and may have been edited" in done.err
    assert "--force" in done.err
    assert output.read_text(encoding="utf-8") == edited
    assert call("translate", documents.run, source, "--to", "de", "--beam", "1", "--force").code == 0
    assert output.read_text(encoding="utf-8") != edited


def test_nothing_is_translated_if_one_output_is_not_ours(documents: TrainedFolder) -> None:
    Path("translated").mkdir()
    Path("translated/b.md").write_text("mine", encoding="utf-8")
    done = call("translate", documents.run, "docs/a.md", "docs/b.md", "-o", "translated", "--beam", "1")
    assert done.code == 2
    assert [path.name for path in Path("translated").iterdir()] == ["b.md"]
    assert Path("translated/b.md").read_text(encoding="utf-8") == "mine"


def test_an_output_is_never_another_input(documents: TrainedFolder) -> None:
    """As when a shell's *.md finds the translations of the first call."""
    assert call("translate", documents.run, "docs/a.md", "--to", "de", "--beam", "1").code == 0
    done = call("translate", documents.run, "docs/a.md", "docs/a.de.md", "--to", "de", "--beam", "1")
    assert done.code == 2
    assert "docs/a.de.md: this would overwrite the input docs/a.de.md" in done.err
