"""Remote files of a configuration are downloaded once, resumed, checked, and never for a run folder."""

from __future__ import annotations

import builtins
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest

from dragoman.base import long_work as progress
from dragoman.base.errors import ConfigError, DataError, RunError
from dragoman.data.config import TokenizersConfig, paths_of
from dragoman.data.corpus import prepare_corpus
from dragoman.data.remote import local_copy, matching_addresses, origins
from dragoman.data.tokenizers.characters import CharactersConfig
from dragoman.runs import Run, train
from dragoman.runs.tasks import config as configs
from tests.conftest import call
from tests.training.kill_driver import table, write_pairs


class Handler(BaseHTTPRequestHandler):
    """Answers for ranges; `cut` ends an answer after so many bytes."""

    files: ClassVar[dict[str, bytes]] = {}
    cut = 10**9
    sized = True
    seen: ClassVar[list[tuple[str, str]]] = []

    def do_GET(self) -> None:
        content, asked = self.files.get(self.path.partition("?")[0]), self.headers.get("Range", "")
        Handler.seen.append((self.path, asked))
        if content is None:
            self.send_error(404)
            return
        tag = f'"{hash(content)}"'
        start = int(asked[6:-1]) if asked and self.headers["If-Range"] == tag else 0
        self.send_response(206 if start else 200)
        if self.sized:
            self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", tag)
        self.end_headers()
        self.wfile.write(content[start : Handler.cut])

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in (("files", {}), ("cut", 10**9), ("seen", [])):
        monkeypatch.setattr(Handler, name, value)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    serving.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_download_goes_on_where_it_stopped_and_happens_once(server: str, cache: Path) -> None:
    content = bytes(range(256)) * 40
    Handler.files["/a.tsv"], Handler.cut, url = content, 3000, f"{server}/a.tsv?key=1"
    with pytest.raises(DataError, match=r"a\.tsv\?key=1: cannot be read \(found 3,000 of 10,240 bytes\)"):
        local_copy(url, cache)
    Handler.cut = 10**9
    copy = local_copy(url, cache)
    assert (copy.name, copy.read_bytes()) == ("a.tsv", content)
    assert [asked for _, asked in Handler.seen] == ["", "bytes=3000-"]
    assert local_copy(url, cache) == copy
    assert origins([str(copy), "a.tsv"]) == {str(copy): {"url": url, "digest": copy.parent.name}}
    # Another version is another file; one that changes during the download is read from its beginning.
    Handler.files["/a.tsv"], Handler.cut = content[::-1], 4000
    with pytest.raises(DataError, match="4,000 of 10,240"):
        local_copy(url, cache)
    Handler.files["/a.tsv"], Handler.cut = content[5:], 10**9
    other = local_copy(url, cache)
    assert (other.read_bytes(), copy.read_bytes()) == (content[5:], content)
    del Handler.files["/a.tsv"]
    with pytest.raises(DataError, match="no such file on the server"):
        local_copy(url, cache)
    assert not list((cache / "remote").glob("*.part*"))


@pytest.mark.parametrize("quiet", [True, False])
def test_quiet_silences_downloads(server: str, cache: Path, quiet: bool) -> None:
    Handler.files["/q.tsv"], Handler.cut = "".join(f"{n}\t{n}\n" for n in range(40)).encode(), 10**9
    given = ("preset=copy", "--run", cache / "run", *(["--quiet"] if quiet else []))
    done = call("train", f"{server}/q.tsv", *given)
    assert done.code == 0, done.err
    assert ("downloading" in done.err) == (not quiet)
    assert not progress.is_silent()  # after the command


def test_a_download_shows_its_progress_to_a_person(
    server: str, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Handler.files["/a.tsv"], Handler.cut = bytes(2_500_000), 1_500_000
    local_copy_or_error(f"{server}/a.tsv", cache)
    assert " MB," not in capsys.readouterr().err  # nobody watches
    monkeypatch.setattr(progress, "is_watched", lambda output: True)
    Handler.cut = 2_000_000
    local_copy_or_error(f"{server}/a.tsv", cache)
    said = capsys.readouterr().err
    assert "downloading http://127.0.0.1" in said
    assert "2.0 of 2.5 MB, " in said
    assert " 80%" in said
    Handler.cut = 10**9
    local_copy(f"{server}/a.tsv", cache)
    assert "2.5 of 2.5 MB, " in capsys.readouterr().err
    monkeypatch.setattr(Handler, "sized", False)
    Handler.files["/b.tsv"] = bytes(1_200_000)
    local_copy(f"{server}/b.tsv", cache)
    assert "1.2 MB, " in capsys.readouterr().err


def local_copy_or_error(url: str, cache: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        local_copy(url, cache)


def test_an_unreachable_server_leaves_the_copy(server: str, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Handler.files["/a.tsv"] = b"a\tb\n"
    url = f"{server}/a.tsv"
    copy = local_copy(url, cache)
    record = next((cache / "remote").glob("*.json"))
    closed = url.replace(server, "http://127.0.0.1:1")
    with pytest.raises(DataError, match=r"127\.0\.0\.1:1/a\.tsv: cannot be read"):
        local_copy(closed, cache)
    failed = next(path for path in (cache / "remote").glob("*.lock") if path.stem != record.stem)
    record.rename(failed.with_suffix(".json"))  # as if the server had been there before
    assert local_copy(closed, cache) == copy
    assert "warning: " in capsys.readouterr().err


def test_any_scheme_and_patterns_through_fsspec(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    for name, text in (("b.en", "one\n"), ("a.en", "two\n"), ("a.de", "zwei\n"), ("b.de", "eins\n")):
        memory.pipe(f"/texts/{name}", text.encode())
    entry = {"source": "memory://texts/*.en", "target": "memory://texts/*.de", "tag": "de"}
    (tmp_path / "c.tsv").write_text("x\ty\n", encoding="utf-8")
    data = {"train": [entry, {"file": f"file://{tmp_path}/c.tsv", "tag": "de"}]}
    found = configs.build({"data": data}).data.train
    assert [Path(path).read_text(encoding="utf-8") for path in paths_of(found)] == [
        "two\n", "zwei\n", "one\n", "eins\n", "x\ty\n",
    ]  # fmt: skip
    assert all(path.startswith(str(cache / "remote")) for path in paths_of(found))
    with pytest.raises(DataError, match=r"memory://none\*: no file matches"):
        matching_addresses("memory://none*")
    with pytest.raises(DataError, match="memory://none: no such file"):
        local_copy("memory://none", cache)
    with pytest.raises(ConfigError, match="web servers list no files"):
        matching_addresses("https://example.com/*.tsv")
    with pytest.raises(ConfigError, match="unknown scheme"):
        local_copy("nothing://a", cache)
    with pytest.raises(ConfigError, match="chain of addresses"):
        local_copy("simplecache::memory://a", cache)
    imported = builtins.__import__

    def without_fsspec(name: str, *arguments: Any, **others: Any) -> Any:
        if name.startswith("fsspec"):
            raise ModuleNotFoundError("No module named 'fsspec'")
        return imported(name, *arguments, **others)

    monkeypatch.setattr(builtins, "__import__", without_fsspec)
    with pytest.raises(ConfigError, match=r"needs another package .*pip install fsspec"):
        local_copy("memory://texts/a.en", cache)


def test_a_run_notes_addresses_and_refuses_changes(server: str, cache: Path, tmp_path: Path) -> None:
    Handler.files["/pairs.tsv"] = write_pairs(tmp_path / "pairs.tsv", 60).read_bytes()
    content = table(tmp_path / "pairs.tsv", "best")
    content["data"]["train"] = url = f"{server}/pairs.tsv"
    content["train"] |= {"steps": 1, "validate_every": 1, "decode": 2}
    content["train"]["optimizer"]["warmup"] = 1
    config = configs.build(content)
    local = configs.build(content, [f"data.train={tmp_path / 'pairs.tsv'}"])
    tokenizers = TokenizersConfig(CharactersConfig())
    keys = [prepare_corpus(each.data, tokenizers).report["fingerprint"] for each in (config, local)]
    assert keys[0] == keys[1]
    run = tmp_path / "run"
    train(config, run)
    (copy, origin), *others = Run(run).data["remote"].items()
    assert (origin["url"], others) == (url, [])
    assert paths_of(Run(run).config.data.train) == [copy]
    assert len(Handler.seen) == 1
    # Its content has changed; or its copy is gone.
    Handler.files["/pairs.tsv"] += b"a\tb\n"
    with pytest.raises(RunError, match=re.escape(f"{url} has changed since this run was started")):
        train(configs.build(content), run)
    kept = Path(copy).read_bytes()
    Path(copy).unlink()
    with pytest.raises(RunError, match=re.escape(f"is gone; name its address ({url})")):
        train(Run(run).config, run)
    Handler.files["/pairs.tsv"] = kept
    train(configs.build(content, ["train.steps=2"]), run)
    # The folder of a stranger that names an address is refused, before anything is read.
    asked = len(Handler.seen)
    path = run / "config.toml"
    path.write_text(path.read_text(encoding="utf-8").replace(copy, url), encoding="utf-8")
    with pytest.raises(RunError, match="nothing is downloaded for a run folder"):
        Run(run)
    assert len(Handler.seen) == asked
