"""What other systems lack or do differently, simulated; and Apple's GPUs, where there is one."""

from __future__ import annotations

import builtins
import errno
import importlib
import os
import signal
import socket
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dragoman.base import files, portable
from dragoman.base.errors import ConfigError, RunError
from dragoman.data.corpus_cache import lock_folder
from dragoman.decoding.sampling import Sampling
from dragoman.inference.load import load_predictor
from dragoman.models.kernels import support
from dragoman.runs.folder import locked
from dragoman.serving import server, system
from dragoman.serving.config import ServeConfig
from dragoman.training.runtime import resolve_device
from dragoman.training.signals import recorded_signals, stop_signals
from tests.conftest import TrainedFolder


class WindowsLocks(types.ModuleType):
    """The locks of Windows: on one byte at the position of a handle, of one handle at a time."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        super().__init__("msvcrt")
        self.held: dict[tuple[int, int], int] = {}

    def locking(self, handle: int, mode: int, count: int) -> None:
        assert (mode, count) == (self.LK_NBLCK, 1)
        key = os.fstat(handle).st_ino, os.lseek(handle, 0, os.SEEK_CUR)
        if self.held.setdefault(key, handle) != handle:
            raise OSError(errno.EACCES, "Permission denied")


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> WindowsLocks:
    locks = WindowsLocks()
    monkeypatch.setattr(portable, "fcntl", None)
    monkeypatch.setattr(portable, "msvcrt", locks)
    monkeypatch.setattr(portable, "NOFOLLOW", 0)
    return locks


def test_locks_by_windows(windows: WindowsLocks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with locked(tmp_path), pytest.raises(RunError, match="another process is training this run"), locked(tmp_path):
        pass
    windows.held.clear()  # Windows ends a lock when its handle is closed
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    first, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    os.lseek(first, 1, os.SEEK_SET)
    assert portable.lock(first) is True
    assert os.read(first, 1) == b"b"  # the position stays, and the content can be read
    assert portable.lock(second) is False
    monkeypatch.setattr("time.sleep", lambda seconds: windows.held.clear())
    assert portable.lock(second, wait=True) is True
    os.close(first)
    os.close(second)


def test_systems_without_locks_and_folders_that_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened = os.open

    def no_folders(path: Any, *rest: Any) -> int:
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", no_folders)
    with lock_folder(tmp_path) as held:
        assert held is False
    monkeypatch.setattr(portable, "fcntl", None)
    monkeypatch.setattr(portable, "msvcrt", None)
    with locked(tmp_path), locked(tmp_path):  # nothing holds it: both go on
        pass


def test_the_modules_of_linux_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the server's workers can be imported where a module does not exist."""
    imported = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name in ("fcntl", "resource", "readline", "termios", "pwd", "grp"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return imported(name, *rest)

    names = ("dragoman.base.portable", "dragoman.base.files", "dragoman.commands.repl", "dragoman.serving.system")
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    monkeypatch.setattr(builtins, "__import__", without)
    try:
        for name in names:
            sys.modules.pop(name, None)
            importlib.import_module(name)
        assert sys.modules["dragoman.base.portable"].fcntl is None
    finally:
        sys.modules.update(before)


def test_signals_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGHUP", raising=False)
    assert stop_signals() == [signal.SIGTERM]
    with recorded_signals() as signals:
        signal.raise_signal(signal.SIGTERM)
    assert signals.code == 128 + signal.SIGTERM


def test_cores_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert portable.usable_cores() == os.cpu_count()


def test_sockets_of_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "SHARES_SOCKETS", False)
    monkeypatch.setattr(sys, "platform", "win32")
    listening = system.listen("127.0.0.1", 0)
    with listening:
        assert not system.ignore_new_connections(listening)
        assert not system.has_waiting(listening)
        assert not listening.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        with socket.create_connection(listening.getsockname()[:2]):
            assert system.has_waiting(listening)
    system.release_free_memory()
    with pytest.raises(ConfigError, match="workers: found 2, but only Linux and macOS share a socket; expected 1"):
        server.serve(ServeConfig(workers=2), print)


def test_appended_text_has_the_same_line_ends_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "linesep", "\r\n")
    files.append_text(tmp_path / "log", "a\n")
    assert (tmp_path / "log").read_bytes() == b"a\n"


class NoFloat64(TorchDispatchMode):
    """A device without float64: an operation with such a result fails, as on Apple's GPUs."""

    def __torch_dispatch__(self, function: Any, kinds: Any, arguments: Any = (), named: Any = None) -> Any:
        result = function(*arguments, **(named or {}))
        assert not (isinstance(result, torch.Tensor) and result.dtype is torch.float64), function
        return result


@pytest.fixture
def without_float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(support, "WITHOUT_FLOAT64", {"cpu"})
    with NoFloat64():
        yield


def test_prediction_needs_no_float64(trained_folder: TrainedFolder, without_float64: None) -> None:
    run = load_predictor(str(trained_folder.run), device="cpu")
    assert len(run.predict(["abc", "de"], beam=3)) == 2
    assert len(run.predict(["abc", "de"], method=Sampling(top_k=5, top_p=0.9))) == 2
    assert run.evaluate([("abc", "abc")])


@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="no Apple GPU")
def test_an_apple_gpu_predicts_as_the_cpu(trained_folder: TrainedFolder) -> None:
    texts = ["abc", "de", "a longer text"]
    ours, theirs = (load_predictor(str(trained_folder.run), device=name).predict(texts) for name in ("cpu", "mps"))
    assert [output.text for output in ours] == [output.text for output in theirs]
    assert [output.score for output in ours] == pytest.approx([output.score for output in theirs], abs=1e-4)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="an Apple GPU")
def test_no_apple_gpu_is_an_error() -> None:
    with pytest.raises(ConfigError, match="found 'mps', but no Apple GPU can be used here"):
        resolve_device("mps")
