"""Remote files of a configuration are downloaded once, resumed, checked, and never for a run folder."""

from __future__ import annotations

import builtins
import io
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, NamedTuple

import fsspec
import pytest

from dragoman.base import long_work as progress
from dragoman.base.errors import ConfigError, DataError, RunError
from dragoman.data import remote
from dragoman.data.config import TokenizersConfig, paths_of
from dragoman.data.corpus import prepare_corpus
from dragoman.data.remote import local_copy, matching_addresses, origins
from dragoman.data.tokenizers.characters import CharactersConfig
from dragoman.runs import Run, train
from dragoman.runs.tasks import config as configs
from tests.conftest import call
from tests.training.kill_driver import table, write_pairs


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


Change = Callable[[Answer], Answer]  # what a server does wrong


class Handler(BaseHTTPRequestHandler):
    """Answers for ranges; `cut` ends an answer after so many bytes, and `wrong` changes it."""

    protocol_version = "HTTP/1.1"  # with chunks
    files: ClassVar[dict[str, bytes]] = {}
    cut = 10**9
    chunked = False
    seen: ClassVar[list[tuple[str, str]]] = []
    wrong: ClassVar[list[Change]] = []

    def do_GET(self) -> None:
        content, asked = self.files.get(self.path.partition("?")[0]), self.headers.get("Range", "")
        Handler.seen.append((self.path, asked))
        self.close_connection = True
        if content is None:
            self.send_error(404)
            return
        tag = f'"{hash(content)}"'
        start = int(asked[6:-1]) if asked and self.headers["If-Range"] == tag else 0
        body = content[start : Handler.cut]
        headers = {"ETag": tag, "Content-Length": str(len(content) - start)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if self.chunked:
            del headers["Content-Length"]
            headers["Transfer-Encoding"] = "chunked"
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        answer = Answer(206 if start else 200, headers, body)
        for change in self.wrong:
            answer = change(answer)
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name.strip(), value)
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in (("files", {}), ("cut", 10**9), ("seen", []), ("wrong", [])):
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
    monkeypatch.setattr(Handler, "chunked", True)
    Handler.files["/b.tsv"] = bytes(1_200_000)
    local_copy(f"{server}/b.tsv", cache)
    assert "1.2 MB, " in capsys.readouterr().err


def local_copy_or_error(url: str, cache: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        local_copy(url, cache)


OLD, NEW = b"a\tb\n" * 800, b"c\td\n" * 900
TAG = f'"{hash(NEW)}"'


def said(status: int = 0, /, **headers: str | None) -> Change:
    """Another status and other headers; None for a header takes it away."""

    def change(answer: Answer) -> Answer:
        changed = answer.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        kept = {name: value for name, value in changed.items() if value is not None}
        return answer._replace(status=status or answer.status, headers=kept)

    return change


def rest(body: bytes, content_range: str, **headers: str | None) -> Change:
    """The answer 206 with these bytes to whoever asks for a range; other answers stay as they are."""

    def change(answer: Answer) -> Answer:
        if answer.status != 206:
            return answer
        told = said(Content_Range=content_range or None, Content_Length=str(len(body)), **headers)
        return told(answer)._replace(body=body)

    return change


RESUMED = {  # the server sends the rest of OLD from 1,000 on; what it does wrong, and whether a second request helps
    "another version": rest(NEW[1000:], f"bytes 1000-{len(NEW) - 1}/{len(NEW)}", ETag=TAG),
    "another version of the old length": rest(NEW[1000:3200], "bytes 1000-3199/3200", ETag=TAG),
    "no version": rest(OLD[1000:], "bytes 1000-3199/3200", ETag=None),
    "a weak version": rest(OLD[1000:], "bytes 1000-3199/3200", ETag='W/"1"'),
    "an earlier start": rest(OLD[996:], "bytes 996-3199/3200"),
    "a later start": rest(OLD[1004:], "bytes 1004-3199/3200"),
    "another total": rest(OLD[1000:], "bytes 1000-3199/3600"),
    "no total": rest(OLD[1000:], "bytes 1000-3199/*"),
    "no range": rest(OLD[1000:], ""),
    "another length": rest(OLD[1000:2000], "bytes 1000-3199/3200"),
    "nothing left": lambda answer: Answer(416, {"Content-Length": "0"}, b"") if answer.status == 206 else answer,
    "nothing": lambda answer: Answer(204, {}, b"") if answer.status == 206 else answer,
}


@pytest.mark.parametrize("wrong", RESUMED.values(), ids=RESUMED)
def test_an_answer_that_is_not_the_rest_of_the_begun_version_is_asked_for_anew(
    wrong: Change, server: str, cache: Path
) -> None:
    Handler.files["/a.tsv"], Handler.cut, url = OLD, 1000, f"{server}/a.tsv"
    local_copy_or_error(url, cache)
    Handler.cut, Handler.wrong[:] = 10**9, [wrong]
    assert local_copy(url, cache).read_bytes() == OLD
    assert [asked for _, asked in Handler.seen] == ["", "bytes=1000-", ""]


def test_a_rest_in_parts_is_put_together(server: str, cache: Path) -> None:
    Handler.files["/a.tsv"], Handler.cut, url = OLD, 1000, f"{server}/a.tsv"
    local_copy_or_error(url, cache)
    Handler.cut, Handler.wrong[:] = 10**9, [rest(OLD[1000:2000], "bytes 1000-1999/3200")]
    with pytest.raises(DataError, match="found 2,000 of 3,200 bytes"):
        local_copy(url, cache)
    Handler.wrong.clear()
    assert local_copy(url, cache).read_bytes() == OLD


def endless(answer: Answer) -> Answer:
    body = b"fa0\r\n%b\r\n" % (b"x" * 4000) * 20
    return said(Content_Length=None, Transfer_Encoding="chunked")(answer)._replace(body=body)


WRONG = {
    "a part nobody asked for": (said(206, Content_Range="bytes 0-3599/9000"), "answers 206 Partial Content, expected"),
    "nothing": (lambda answer: Answer(204, {}, b""), "answers 204 No Content, expected 200"),
    "words": (said(Content_Length="abc"), "Content-Length: abc, expected one number"),
    "a debt": (said(Content_Length="-1"), "Content-Length: -1, expected one number"),
    "no end": (said(Content_Length=None), "does not say where the file ends"),
    "two ends": (said(**{"Content_Length ": "7"}), r"Content-Length: 3600, 7, expected one number"),
    "more than the disk": (said(Content_Length="9" * 18), r"needs 1,000,000,000\.0 GB, but"),
    "an end too late": (said(Content_Length="9000"), r"found 3,600 of 9,000 bytes\); run the same"),
    "an endless stream": (endless, "found more than 10,000 bytes; download it yourself"),
    "a stream that is cut": (
        lambda answer: said(Content_Length=None, Transfer_Encoding="chunked")(answer)._replace(body=b"fa0\r\nabc"),
        "IncompleteRead",
    ),
    "a stream without its last chunk": (
        lambda answer: endless(answer)._replace(body=b"3\r\nabc\r\n"),
        "IncompleteRead",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), WRONG.values(), ids=WRONG)
def test_an_answer_that_is_no_whole_file_is_an_error(
    wrong: Change, message: str, server: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MOST_UNTOLD", 10_000)
    monkeypatch.setattr(remote, "_BLOCK", 4096)
    Handler.files["/a.tsv"], Handler.wrong[:], url = NEW, [wrong], f"{server}/a.tsv"
    with pytest.raises(DataError, match=message):
        local_copy(url, cache)
    assert not list((cache / "remote").glob("*/*"))
    Handler.wrong.clear()
    assert local_copy(url, cache).read_bytes() == NEW


@pytest.mark.parametrize(
    "headers",
    [
        {"Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "Date": "Thu, 01 Jan 2026 00:00:10 GMT"},
        {"ETag": 'W/"1"'},
    ],
    ids=["a time within the last minute", "a weak tag"],
)
def test_what_two_versions_may_share_names_none(headers: dict[str, str], server: str, cache: Path) -> None:
    Handler.files["/a.tsv"], Handler.cut, url = OLD, 1000, f"{server}/a.tsv"
    Handler.wrong[:] = [said(**{"ETag": None, **headers})]
    local_copy_or_error(url, cache)
    Handler.files["/a.tsv"], Handler.cut = NEW, 10**9
    assert local_copy(url, cache).read_bytes() == NEW
    assert [asked for _, asked in Handler.seen] == ["", ""]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a%00b.tsv", r"file name 'a\\x00b.tsv'"), ("%2e%2e", r"file name '\.\.'"), ("a/%2E%2E", r"file name '\.\.'"),
        ("%0aa.tsv", r"file name '\\na.tsv'"), ("a" * 300 + ".tsv", "file name of 304 bytes, expected at most 200"),
        ("%C3%BC" * 120, "file name of 240 bytes"),
    ],
)  # fmt: skip
def test_a_name_that_no_file_can_have_is_an_error(path: str, message: str, server: str, cache: Path) -> None:
    with pytest.raises(DataError, match=message):
        local_copy(f"{server}/{path}", cache)
    assert Handler.seen == []


@pytest.mark.parametrize("url", ["http://[::1/a.tsv", "http://a:b/c.tsv", "https://", "http://\udc80/a.tsv"])
def test_no_address_is_one_line(url: str, cache: Path) -> None:
    with pytest.raises(DataError):
        local_copy(matching_addresses(url)[0], cache)


def test_any_letters_in_an_address(server: str, cache: Path) -> None:
    Handler.files["/gr%C3%BC%C3%9Fe%20an.tsv"] = OLD
    copies = [local_copy(f"{server}/{path}", cache) for path in ("grüße an.tsv", "gr%C3%BC%C3%9Fe%20an.tsv")]
    assert [(copy.name, copy.read_bytes()) for copy in copies] == [("grüße an.tsv", OLD)] * 2


class Killed(BaseException):
    """The code that downloads neither catches this nor tidies up after it."""


class Killer:
    """Ends the process, so to speak, at a line of that code."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Killer | None:
        if not frame.f_code.co_filename.endswith(("data/remote.py", "base/files.py")):
            return None
        if event == "line":
            self.left -= 1
            if not self.left:
                raise Killed
        return self


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_kill_at_any_line_mixes_no_versions(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old version was begun, the new one is on the server."""
    monkeypatch.setattr(remote, "_BLOCK", 2000)

    @contextmanager
    def opened(url: str, begun: remote.Begun) -> Iterator[remote.Stream]:
        start = begun.start if begun.validator == tag else 0
        yield remote.Stream({"ETag": tag}, tag, len(content), start, io.BytesIO(content[start:cut]))

    monkeypatch.setattr(remote, "_open_web", opened)
    monkeypatch.setattr(remote, "lock", lambda *arguments, **options: True)  # of a dead process nothing is locked
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # no power fails here
    url, begun = "http://a/a.tsv", tmp_path / "begun"
    tag, content, cut = "old", OLD, 1000
    with pytest.raises(DataError, match="1,000 of 3,200"):
        local_copy(url, begun)
    tag, content, cut = "new", NEW, 10**9
    for line in count(1):
        place = tmp_path / f"cache-{line}"
        shutil.copytree(begun, place)
        before = sys.gettrace()
        sys.settrace(Killer(line))
        try:
            copy = local_copy(url, place)
        except Killed:
            copy = None
        finally:
            sys.settrace(before)
        assert local_copy(url, place).read_bytes() == NEW, line
        if copy is not None:
            assert copy.read_bytes() == NEW
            assert line > 60
            break


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
