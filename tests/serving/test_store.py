"""What a server keeps: no change is lost, nothing that is gone comes back, and no client costs another its files."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.base.errors import ConfigError, RunError
from dragoman.serving import glossaries, store
from dragoman.serving.config import LimitsConfig, ServeConfig
from dragoman.serving.gate import network_of
from dragoman.serving.state import NotFound
from dragoman.serving.store import Store

PAIR = ("en", "de")


def caller(kept: Store, client: str = "1.2.3.4", token: str = "", **limits: int) -> Any:
    """A request of a client."""
    config = ServeConfig(token=token)
    return SimpleNamespace(
        client=client, state=SimpleNamespace(store=kept, config=config, limits=LimitsConfig(**limits))
    )


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path, 3, 100)
    yield opened
    opened.close()


def test_no_concurrent_change_is_lost_and_nothing_deleted_comes_back(tmp_path: Path) -> None:
    """Threads of two workers add terms, put whole dictionaries, rename, delete and read."""
    workers = [Store(tmp_path, 3, 100) for _ in range(2)]
    calls = [caller(one) for one in workers]
    shared = glossaries.create(calls[0], "shared", {PAIR: {"start": "Anfang"}}).glossary_id
    doomed = glossaries.create(calls[0], "doomed", {PAIR: {"start": "Anfang"}}).glossary_id
    size = 40  # of the dictionaries that are put whole

    def work(number: int) -> int:
        draw, call, deleted = Random(number), calls[number % 2], 0
        for step in range(12):
            glossaries.update(call, shared, f"name {number}", added=[(PAIR, {f"term {number} {step}": "x"})])
            other = ("en", f"l{draw.randrange(2)}")
            terms = {f"{number} {step} {index}": "y" for index in range(size)}
            glossaries.update(call, shared, replaced=[(other, terms)])
            try:
                found = glossaries.entries(call, shared, *other)
                assert len(found) == size
                assert len({term.rsplit(" ", 1)[0] for term in found}) == 1, "a mixture of two dictionaries"
            except NotFound:
                pass
            try:
                match draw.randrange(3):
                    case 0:
                        glossaries.delete(call, shared, other)
                    case 1:
                        glossaries.update(call, doomed, added=[(PAIR, terms)])
                    case _ if step > 6:
                        glossaries.delete(call, doomed)
                        deleted += 1
            except NotFound:
                pass
        return deleted

    with ThreadPoolExecutor(8) as pool:
        deleted = sum(pool.map(work, range(8)))
    expected = {f"term {number} {step}": "x" for number in range(8) for step in range(12)}
    assert glossaries.entries(calls[1], shared, *PAIR) == {"start": "Anfang", **expected}
    assert deleted == 1
    for one in calls:
        with pytest.raises(NotFound):
            glossaries.get(one, doomed)
    (rows,) = workers[0].read("SELECT count(*) FROM dictionaries WHERE glossary NOT IN (SELECT id FROM glossaries)")
    assert rows == (0,)
    for one in workers:
        one.close()


def test_glossaries_belong_to_a_client_or_to_the_token_and_stay_after_a_restart(kept: Store, tmp_path: Path) -> None:
    mine = glossaries.create(caller(kept, "a"), "mine", {PAIR: {"a": "b"}})
    ours = glossaries.create(caller(kept, "a", "secret"), "ours", {})
    assert [one.name for one in glossaries.every(caller(kept, "a"))] == ["mine"]
    for stranger in (caller(kept, "b"), caller(kept, "b", "other"), caller(kept, "a", "secret")):
        assert mine not in glossaries.every(stranger)
        for forbidden in (
            lambda call: glossaries.get(call, mine.glossary_id),
            lambda call: glossaries.entries(call, mine.glossary_id, *PAIR),
            lambda call: glossaries.update(call, mine.glossary_id, "theirs"),
            lambda call: glossaries.delete(call, mine.glossary_id),
        ):
            with pytest.raises(NotFound):
                forbidden(stranger)
    kept.close()
    again = Store(tmp_path, 3, 100)
    assert glossaries.every(caller(again, "b", "secret")) == [ours]
    assert glossaries.entries(caller(again, "a"), mine.glossary_id, "EN-us", "DE") == {"a": "b"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.iterdir())
    again.close()


def test_a_client_that_stores_too_many_glossaries_hinders_no_other(kept: Store) -> None:
    greedy = caller(kept, "a", glossaries=3, glossary_bytes=500)
    made = [glossaries.create(greedy, str(number), {}) for number in range(3)]
    with pytest.raises(ConfigError, match="found 4, expected at most 3; delete one first"):
        glossaries.create(greedy, "more", {})
    with pytest.raises(ConfigError, match="bytes in all, expected at most 500"):
        glossaries.update(greedy, made[0].glossary_id, "renamed", [(PAIR, {"a" * 600: "b"})])
    assert glossaries.every(greedy) == made  # nothing of a refused change is written
    assert glossaries.create(caller(kept, "b", glossaries=3), "other", {PAIR: {"a" * 600: "b"}})
    many = [(("en", f"l{number}"), {"a": "b"}) for number in range(glossaries.MAX_DICTIONARIES + 1)]
    with pytest.raises(ConfigError, match="dictionaries: found 101, expected at most 100"):
        glossaries.update(caller(kept, "a"), made[0].glossary_id, replaced=many)


def test_files_push_out_those_of_the_same_client_alone(kept: Store) -> None:
    other = kept.add("b", "theirs", b"data")
    keys = [kept.add("a", str(number), b"x") for number in range(260)]
    assert [key for key in keys if kept.about(key) is not None] == keys[-3:]
    assert (kept.about(other), kept.data(other)) == ("theirs", b"data")
    large = kept.add("a", "", b"x" * 99)  # with another file of the client more than 100 bytes
    assert [kept.data(key) for key in (*keys[-2:], large)] == [None, b"x", b"x" * 99]
    kept.replace(large, "grown", b"x" * 200)
    assert kept.about(large) == "grown"
    kept.replace(keys[0], "late")
    assert kept.about(keys[0]) is None  # what is gone stays gone
    assert kept.take(other) == b"data"
    assert kept.take(other) is None


def test_all_clients_together_keep_a_bounded_amount(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "TOGETHER", 2)
    large = [kept.add("a", "", b"x" * 45) for _ in range(2)]
    small = [kept.add(f"client {number}", "", b"x" * 20) for number in range(6)]
    assert [kept.data(key) is None for key in large] == [True, False]
    assert all(kept.data(key) for key in small)


def test_a_file_is_kept_for_an_hour(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    key = kept.add("a", "about", b"data")
    now = time.time()
    monkeypatch.setattr(store.time, "time", lambda: now + store.KEPT - 5)
    assert kept.data(key) == b"data"
    monkeypatch.setattr(store.time, "time", lambda: now + store.KEPT + 5)
    assert kept.data(key) is None
    kept.add("b")
    assert kept.read("SELECT count(*) FROM files") == [(1,)]


@pytest.mark.parametrize("name", ["server.sqlite", "server.sqlite-wal"])
def test_links_and_other_files_in_the_folder_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine", encoding="utf-8")
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="symbolic link"):
        Store(tmp_path, 3, 100)
    (tmp_path / name).unlink()
    (tmp_path / "server.sqlite").write_text("no database\n" * 200, encoding="utf-8")
    with pytest.raises(RunError, match="found no database of a server"):
        Store(tmp_path, 3, 100)
    assert (tmp_path / "elsewhere").read_text(encoding="utf-8") == "mine"


def test_the_owner_without_a_token_is_the_network() -> None:
    assert network_of(("1.2.3.4", 5)) == network_of(("::ffff:1.2.3.4", 6)) == "1.2.3.4"
    assert network_of(("2001:db8::1", 5)) == network_of(("2001:db8::ffff", 5)) != network_of(("2001:db8:1::1", 5))
    assert network_of(None) == network_of(("testclient", 5)) == ""
