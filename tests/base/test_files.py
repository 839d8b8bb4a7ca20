"""Nothing is written, moved or deleted through a symbolic link in a run folder, and no pipe in one is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.base import files
from dragoman.base.errors import RunError

WRITES: dict[str, Callable[[Path], object]] = {
    "append_text": lambda path: files.append_text(path, "a"),
    "atomic_write": lambda path: files.atomic_write(path, follow_link=False).__enter__(),
    "copy_into": lambda path: files.copy_into(path.absolute().parents[2] / "source", path),
    "create_empty": files.create_empty,
    "make_folder": lambda path: files.make_folder(path / "new"),
    "make_temporary": lambda path: files.make_temporary(path.parent, "a"),
    "move from": lambda path: files.move(path, path.absolute().parents[2] / "elsewhere"),
    "move to": lambda path: files.move(path.absolute().parents[2] / "source", path),
    "open_handle": lambda path: files.open_handle(path, os.O_RDWR | os.O_CREAT),
    "remove_file": files.remove_file,
    "remove_folder": files.remove_folder,
    "write_bytes": lambda path: files.write_bytes(path, b"a"),
    "write_text": lambda path: files.write_text(path, "a"),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a link to a folder of the user's, which has a file."""
    run, mine = tmp_path / "run", tmp_path / "mine"
    for folder in (run, mine):
        folder.mkdir()
    for path in (run / "config.toml", run / "run.json", mine / "file", tmp_path / "source"):
        path.write_text("precious", encoding="utf-8")
    (run / "versions").symlink_to(mine)
    return run


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_no_write_goes_through_a_linked_folder(
    write: Callable[[Path], object], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run)
    for path in (run / "versions" / "file", Path("versions/file")):  # as users name it, too
        with pytest.raises(RunError, match="found a symbolic link, expected a folder"):
            write(path)
    assert sorted(path.name for path in run.parent.iterdir()) == ["mine", "run", "source"]
    assert [path.read_text() for path in (run.parent / "mine").iterdir()] == ["precious"]


def test_links_that_lead_to_a_run_are_the_users_own(run: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(run.parent)
    files.write_text(tmp_path / "runs" / "run" / "metrics.jsonl", "a")
    assert (run / "metrics.jsonl").read_text() == "a"


def test_a_link_is_replaced_and_never_followed(run: Path) -> None:
    mine = run.parent / "mine" / "file"
    for name in ("a", "b", "c"):
        (run / name).symlink_to(mine)
    (run / "d").symlink_to(mine.parent)
    files.write_text(run / "a", "new")
    files.write_bytes(run / "b", b"new")
    files.remove_folder(run / "c")
    files.move(run.parent / "source", run / "d")
    assert [path.read_text() for path in (mine, run / "a", run / "b", run / "d")] == [
        "precious",
        "new",
        "new",
        "precious",
    ]


@pytest.mark.parametrize("linked", [False, True], ids=["pipe", "link"])
def test_pipes_are_neither_read_nor_written(linked: bool, run: Path) -> None:
    pipe = run.parent / "pipe" if linked else run / "best"
    os.mkfifo(pipe)
    if linked:
        (run / "best").symlink_to(pipe)
    message = r"best: found a pipe, a device or a socket, expected a file"
    with pytest.raises(RunError, match=message):
        files.check_no_pipes(run, files.is_run_file)
    for write in (files.append_text, lambda path, text: files.open_handle(path, os.O_WRONLY)):
        with pytest.raises(RunError, match=r"found a (pipe|symbolic link)"):
            write(run / "best", "a")
    files.write_text(run / "best", "new")  # replaces it
    files.check_no_pipes(run, files.is_run_file)
    os.mkfifo(run / "mine")  # no part of the run
    files.check_no_pipes(run, files.is_run_file)


@pytest.mark.parametrize("home", ["a file", "missing below a file", "none", "whole"])
def test_a_home_that_cannot_be_written_to_is_not_needed(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    homes = {"a file": tmp_path / "file", "missing below a file": tmp_path / "file" / "x", "whole": tmp_path / "new"}
    monkeypatch.delenv("DRAGOMAN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    if home == "none":  # as for a user that the system does not know
        monkeypatch.setattr("os.path.expanduser", lambda path: path)
    else:
        monkeypatch.setenv("HOME", str(homes[home]))
    folder = files.cache_home()
    if home == "whole":
        assert folder == tmp_path / "new" / ".cache" / "dragoman"
        return
    assert folder == tmp_path / "temporary" / f"dragoman-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(RunError, match=r"other users can write here.*set DRAGOMAN_CACHE to a folder that you can"):
        files.cache_home()
