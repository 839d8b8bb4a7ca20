"""The files of a model search: links are refused and never followed, and damage is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.auto.search.state import SearchState, Trial, load_search
from dragoman.runs.folder import member_folders, write_members
from tests.auto.searches import FakeSearch, outcome
from tests.conftest import call


def test_members_outside_the_run_are_refused(tmp_path: Path) -> None:
    write_members(tmp_path, ["../other"])
    with pytest.raises(Exception, match="expected folders inside"):
        member_folders(tmp_path)


def slow(*names: str) -> list[Any]:
    """Cases that are like others of the same test: `make campaign` runs them."""
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture
def unfinished_search(searched: Path, tmp_path: Path) -> Path:
    """A search whose models are trained, but which is not marked as done."""
    run = shutil.copytree(searched / "run", tmp_path / "run")
    table = json.loads((run / "search.json").read_text())
    (run / "search.json").write_text(json.dumps(table | {"done": False}))
    return run


@pytest.mark.parametrize("name", ["best/mine", *slow("metrics.jsonl", "ensemble.json")])
def test_a_search_writes_through_no_link(name: str, unfinished_search: Path, tmp_path: Path) -> None:
    """The folder of a stranger, whose best run is copied over links to a file of the user's."""
    mine, link = tmp_path / "mine.txt", unfinished_search / name
    mine.write_text("precious")
    if name == "best/mine":  # a link in the run that is copied
        link = unfinished_search / "trials" / load_search(unfinished_search).members[0] / name
    link.unlink(missing_ok=True)
    link.symlink_to(mine)
    done = call("train", unfinished_search, "--quiet")
    assert (done.code, mine.read_text()) == (2 if name == "best/mine" else 0, "precious")
    assert link.is_symlink() == (name == "best/mine")


@pytest.mark.parametrize("name", ["trials", *slow("best", "trials/0")])
def test_a_search_writes_into_no_linked_folder(name: str, unfinished_search: Path, tmp_path: Path) -> None:
    state = load_search(unfinished_search)
    mine, link = tmp_path / "mine", unfinished_search / name.replace("0", state.members[0])
    shutil.move(link, mine)
    link.symlink_to(mine)
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    done = call("train", unfinished_search, "--quiet")
    assert done.code == 2
    assert "found a symbolic link, expected a f" in done.err
    assert {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table["trials"][0].update(name="../../mine"), "found the trial '../../mine', expected the name"),
        (lambda table: table.update(members=["../../mine"]), "found the trial '../../mine', expected the name"),
        (lambda table: table.update(members=["other"]), "found the trial 'other', expected the name"),
        (lambda table: table.update(trials=[]), "expected the name of a folder"),
        (lambda table: table.update(seconds="soon"), "seconds: found 'soon', expected float"),
        (lambda table: table["trials"][0].update(steps=[1, "x"]), "steps: found [1, 'x'], expected list[int]"),
        (lambda table: table["trials"][0].update(cost={"speed": "fast", "validation": 1}), "expected numbers"),
    ],
)
def test_a_damaged_search_is_refused(change: Any, message: str, unfinished_search: Path, tmp_path: Path) -> None:
    """A trial is a folder that the search removes and trains in: its name must not lead elsewhere."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine.toml").write_text("")
    table = json.loads((unfinished_search / "search.json").read_text())
    change(table)
    (unfinished_search / "search.json").write_text(json.dumps(table))
    done = call("train", unfinished_search, "--quiet")
    assert done.code == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_the_table_shows_the_run_that_is_kept(tmp_path: Path) -> None:
    """Another seed of the default model is better by less than the standard error."""
    state = SearchState("cer", None, 1, 1, 1, 1, [1], [Trial("a", steps=[100])], decoded=1000, members=["a", "a-seed1"])
    kept = outcome(-0.1347)._replace(exact=0.55, step=90)
    search = FakeSearch(tmp_path, **{"a": [kept], "a-seed1": [kept._replace(score=-0.1300, step=100, seconds=12.0)]})
    search._config = lambda name: SimpleNamespace(  # type: ignore[method-assign, assignment, return-value]
        model=SimpleNamespace(kind="encoder-decoder"), train=SimpleNamespace(steps=100)
    )
    search._finish(state, None)  # type: ignore[arg-type]
    assert state.members == ["a"]
    assert (state.trials[0].final, state.trials[0].step, state.trials[0].seconds) == (-0.1347, 90, 10.0)


@pytest.mark.parametrize(
    ("ensemble", "members"), [(1, ["a-seed0"]), (2, ["a-seed0", "b-seed0"]), (3, ["a-seed0", "b-seed0", "a-seed1"])]
)
def test_the_best_of_each_family_comes_first(
    ensemble: int, members: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best trial was left out where a worse one of its family ranked behind another family."""
    search = FakeSearch(tmp_path)
    trials = [Trial(name, scores=[score]) for name, score in (("a", 0.9), ("b", 0.8), ("a2", 0.7))]
    state = SearchState("cer", None, ensemble, 3, 1, 1, [3, 1], trials)
    monkeypatch.setattr(search, "_config", lambda name: name[0])
    monkeypatch.setattr(search, "_member", lambda state, trial, seed: f"{trial.name}-seed{seed}")
    monkeypatch.setattr("dragoman.auto.search.run.family", lambda config: config)
    monkeypatch.setattr("dragoman.auto.search.run.is_fitted", lambda config: False)
    search._choose_members(state)
    assert state.members == members
