"""The last good checkpoint always loads, whatever happened to the newest."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.base import files
from dragoman.base.errors import RunError
from dragoman.base.files import append_text, atomic_write, write_text
from dragoman.runs import train
from dragoman.training import checkpoints
from dragoman.training.checkpoints import (
    Checkpoints,
    ShardedTensors,
    TrainingState,
    part_name,
    read_arrays,
    read_tensors,
    write_tensors,
)
from dragoman.training.display import Display
from tests.training.conftest import Configure
from tests.training.kill_driver import leftovers, result

FILES = {"weights.safetensors": {"a": torch.arange(4.0)}, "optimizer.safetensors": {"a.step": torch.tensor(3.0)}}


def saved(folder: Path, *steps: int) -> Checkpoints:
    checkpoints = Checkpoints(folder)
    for step in steps:
        checkpoints.save(TrainingState(step=step, best=[(-0.1 - step / 3, step)], seconds=1 / 3), FILES)
    return checkpoints


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    progress, files = saved(tmp_path, 5).load(5)
    assert progress == TrainingState(step=5, best=[(-0.1 - 5 / 3, 5)], seconds=1 / 3)
    assert files.keys() == FILES.keys()
    assert torch.equal(files["weights.safetensors"]["a"], torch.arange(4.0))
    assert files["optimizer.safetensors"]["a.step"].shape == ()


TENSORS = {
    "bias": torch.ones(7), "half": torch.ones(5, dtype=torch.bfloat16), "mask": torch.ones(9, dtype=torch.bool),
    "none": torch.zeros(0, 3), "expanded": torch.ones(1).as_strided((1,), (0,)), "number": torch.tensor(2.0),
    "table": torch.arange(1, 13).reshape(3, 4),
}  # fmt: skip
READERS: list[Callable[[Path], Any]] = [
    read_tensors,
    read_arrays,
    lambda path: dict(ShardedTensors([path])),
]


@pytest.mark.parametrize("read", READERS, ids=["torch", "numpy", "parts"])
def test_changed_bytes_of_weights_are_damage(read: Callable[[Path], Any], tmp_path: Path) -> None:
    path, old = tmp_path / "weights.safetensors", tmp_path / "old.safetensors"
    tensors = TENSORS if read is not read_arrays else {key: TENSORS[key] for key in TENSORS if key != "half"}
    write_tensors(path, tensors)
    found = read(path)
    assert {name: found[name].tolist() for name in found} == {name: tensors[name].tolist() for name in tensors}
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")  # after the header
    for place in range(start, len(whole)):
        path.write_bytes(whole[:place] + b"\0" + whole[place + 1 :])
        if whole[place]:
            with pytest.raises(RunError, match="damaged"):
                read(path)
    path.write_bytes(whole[:start] + bytes(len(whole) - start))
    with pytest.raises(RunError, match=r"damaged \(the numbers of \w+ are not those that were written\)"):
        read(path)
    safetensors.torch.save_file(tensors, old)  # as earlier versions and others write it
    assert read(old).keys() == tensors.keys()
    for sums in ("[" * 100_000, "7", '{"bias": "x"}'):
        safetensors.torch.save_file(tensors, old, {"crc32": sums})
        with pytest.raises(RunError, match="damaged"):
            read(old)


def test_the_parts_of_several_processes_are_one_checkpoint(tmp_path: Path) -> None:
    """Rows of a matrix, of which the third process has none, and what only the first one has."""
    checkpoints, state = saved(tmp_path, 3), TrainingState(step=5, processes=3)
    matrix, names = torch.arange(12.0).view(4, 3), [part_name("weights.safetensors", rank, 3) for rank in range(3)]
    checkpoints.begin(5)
    digests: dict[str, str] = {}
    for name, rows in zip(names, (matrix[:2], matrix[2:], matrix[4:]), strict=True):
        alone = {} if digests else {"step": torch.tensor(7.0), "bias": torch.ones(2)}
        digests |= checkpoints.write(5, {name: {"matrix": rows, **alone}})
    assert checkpoints.steps() == [3]
    checkpoints.commit(state, digests)
    assert checkpoints.load(5)[0] == state
    weights = checkpoints.load(5)[1]["weights.safetensors"]
    assert isinstance(weights, ShardedTensors)
    assert weights.shapes == {"matrix": (4, 3), "step": (), "bias": (2,)}
    folder = checkpoints.path(5)
    for found in (weights, read_tensors(folder / "weights.safetensors"), read_tensors(folder / names[0])):
        assert {name: found[name].tolist() for name in found} == {
            "matrix": matrix.tolist(), "step": 7.0, "bias": [1.0, 1.0],
        }  # fmt: skip
    content = (folder / names[1]).read_bytes()
    (folder / names[1]).write_bytes(content[:-1] + b"?")
    with pytest.raises(RunError, match=r"weights-00002-of-00003\.safetensors: damaged"):
        checkpoints.load(5)
    (folder / names[1]).unlink()
    with pytest.raises(RunError, match=r"weights-00002-of-00003\.safetensors: missing"):
        checkpoints.load(5)
    with pytest.raises(RunError, match="found 2 files weights-…, expected 3"):
        read_tensors(folder / "weights.safetensors")
    assert leftovers(tmp_path) == []


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 3, 6, 9, 12)
    assert checkpoints.steps() == [9, 12]
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"00000009", "00000012"}


def test_a_step_may_be_saved_again(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 3)
    checkpoints.save(TrainingState(step=3, validated_step=3), FILES)
    assert checkpoints.load(3)[0].validated_step == 3
    assert leftovers(tmp_path) == []


def test_a_folder_that_cannot_be_removed_at_once_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, remove, failed = saved(tmp_path, 3), shutil.rmtree, list[Path]()

    def fail_once(path: Path, **others: Any) -> None:  # as with a full disk, where even a folder cannot be opened
        if path.exists() and not failed:
            failed.append(path)
        else:
            remove(path, **others)

    monkeypatch.setattr(shutil, "rmtree", fail_once)
    checkpoints.save(TrainingState(step=3, validated_step=3), FILES)
    assert failed
    assert leftovers(tmp_path) == []


def test_what_was_being_written_is_cleared_and_what_was_set_aside_comes_back(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 3, 6)
    folder = tmp_path / "checkpoints"
    (folder / "00000006").rename(folder / ".00000006.old")  # killed between the two renames of a second save
    (folder / ".00000006.part").mkdir()
    shutil.copytree(folder / "00000003", folder / ".00000003.old")  # killed just after them
    assert checkpoints.steps() == [3]
    checkpoints.clear_unfinished()
    assert checkpoints.steps() == [3, 6]
    assert checkpoints.load(6)[0].step == 6
    assert leftovers(tmp_path) == []


def test_a_killed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors writes to a file of a random name first."""

    def killed(tensors: object, path: Path, metadata: object) -> None:
        (path.parent / ".tmpX7a").write_bytes(b"half")
        raise InterruptedError

    path, tensors = tmp_path / "a.safetensors", {"a": torch.ones(2)}
    (tmp_path / ".a.safetensors.part").write_bytes(b"of an earlier version")
    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", killed)
        with pytest.raises(RunError):
            write_tensors(path, tensors)
    write_tensors(path, tensors)
    assert [found.name for found in tmp_path.iterdir()] == ["a.safetensors"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_an_error_of_writing_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "check_regular", lambda path: None)  # it refuses devices
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        append_text(Path("/dev/full"), "x")


def test_a_file_that_torch_cannot_open_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, framework: str) -> None:
        raise RuntimeError(f"unable to open file <{path}> in read-only mode: Input/output error (5)")

    monkeypatch.setattr(checkpoints, "safe_open", fail)
    with pytest.raises(RunError, match=r"a\.safetensors: damaged \(.*Input/output error"):
        read_tensors(tmp_path / "a.safetensors")


def test_an_interrupted_read_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tensors(tmp_path / "a.safetensors", {"a": torch.ones(2)})
    opened, interrupted = checkpoints.safe_open, list[Path]()

    def interrupt_once(path: Path, framework: str) -> Any:
        if interrupted:
            return opened(path, framework)
        interrupted.append(path)
        raise RuntimeError(f"unable to open file <{path}> in read-only mode: Interrupted system call (4)")

    monkeypatch.setattr(checkpoints, "safe_open", interrupt_once)
    assert read_tensors(tmp_path / "a.safetensors")["a"].tolist() == [1, 1]
    assert interrupted


NOT_PROGRESS = ["", "5", "null", "[]", "{}", '"text"', '{"checksum": 1}', '{"files": {}}', '{"step": 1, "files": null}']


@pytest.mark.parametrize("content", NOT_PROGRESS)
def test_a_damaged_state_is_noticed(content: str, tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 3)
    (checkpoints.path(3) / "state.json").write_text(content)
    with pytest.raises(RunError, match=r"state\.json: damaged"):
        checkpoints.load(3)


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_or_a_cut_is_noticed_or_harmless(
    name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    checkpoints = saved(tmp_path_factory.mktemp("checkpoint"), 3)
    progress, files = checkpoints.load(3)
    path = checkpoints.path(3) / name
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[place:]
    path.write_bytes(content)
    try:
        after, again = checkpoints.load(3)
    except RunError as error:
        assert name in str(error)  # noqa: PT017
        return
    assert name == "state.json", "only white space may change unnoticed"
    assert after == progress
    assert all(torch.equal(files[file][key], again[file][key]) for file in files for key in files[file])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 3)
    (checkpoints.path(3) / "optimizer.safetensors").unlink()
    with pytest.raises(RunError, match=r"optimizer\.safetensors: missing"):
        checkpoints.load(3)


def test_files_are_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "a.txt", "old")
    write_tensors(tmp_path / "a.safetensors", {"a": torch.zeros(2)})

    def killed(path: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "a.txt", "new")
    with pytest.raises(KeyboardInterrupt):
        write_tensors(tmp_path / "a.safetensors", {"a": torch.ones(2)})
    assert (tmp_path / "a.txt").read_text() == "old"
    assert read_tensors(tmp_path / "a.safetensors")["a"].tolist() == [0, 0]


def test_tensors_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such file"):
        read_tensors(tmp_path / "a.safetensors")
    (tmp_path / "a.safetensors").write_bytes(b"PK\x03\x04 as torch.save would write it")
    with pytest.raises(RunError, match="damaged"):
        read_tensors(tmp_path / "a.safetensors")


# ---------------------------------------------------------------------- in a run


def truncate(folder: Path) -> None:
    path = folder / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def flip(folder: Path) -> None:
    path = folder / "optimizer.safetensors"
    content = bytearray(path.read_bytes())
    content[-50] ^= 1
    path.write_bytes(content)


def delete(folder: Path) -> None:
    (folder / "average.safetensors").unlink()


def damage_progress(folder: Path) -> None:
    content = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(content | {"step": 12}))


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize("damage", [truncate, flip, delete, damage_progress, empty])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    damage: Callable[[Path], Any], configure: Configure, tmp_path: Path
) -> None:
    run, nine = tmp_path / "run", ("train.steps=9", "train.optimizer.warmup=9", "train.log_every=1")
    train(configure(*nine), run)
    assert Checkpoints(run).steps() == [6, 9]
    expected = result(run)
    damage(run / "checkpoints" / "00000009")
    said = io.StringIO()
    train(configure(*nine), run, Display(said))
    warnings = [line for line in said.getvalue().splitlines() if line.startswith("warning:")]
    assert len(warnings) == 1
    assert "00000009" in warnings[0]
    assert "falling back to the checkpoint before" in warnings[0]
    assert "resuming from step 6" in said.getvalue()
    assert result(run) == expected


def test_a_run_without_a_readable_checkpoint_starts_from_the_first_step(configure: Configure, tmp_path: Path) -> None:
    """If it has no weights either, as before the first validation."""
    run, nine = tmp_path / "run", ("train.steps=9", "train.optimizer.warmup=9")
    train(configure(*nine), run)
    expected = result(run)
    for folder in (run / "checkpoints").iterdir():
        truncate(folder)
    (run / "weights.safetensors").unlink()
    shutil.rmtree(run / "best")
    said = io.StringIO()
    train(configure(*nine), run, Display(said))
    assert said.getvalue().count("warning: ") == 3
    assert "no checkpoint can be read; starting from the first step" in said.getvalue()
    assert result(run) == expected


def test_a_run_without_a_readable_checkpoint_keeps_its_weights(configure: Configure, tmp_path: Path) -> None:
    run, warmup = tmp_path / "run", "train.optimizer.warmup=9"
    train(configure("train.steps=9", warmup), run)
    kept = [run / "weights.safetensors", run / "metrics.jsonl", *(run / "best").iterdir()]
    before = [path.read_bytes() for path in kept]
    copy = shutil.copytree(run, tmp_path / "copy")
    for folder in (*(run / "checkpoints").iterdir(), *(copy / "checkpoints").iterdir()):
        truncate(folder)
    said = io.StringIO()
    train(configure("train.steps=9", warmup), run, Display(said))
    assert said.getvalue().count("warning: ") == 3
    assert "warning: no checkpoint can be read; the run is finished and keeps its best weights" in said.getvalue()
    assert [path.read_bytes() for path in kept] == before
    said = io.StringIO()
    assert train(configure("train.steps=12", warmup), copy, Display(said)).step == 12
    assert said.getvalue().count("warning: ") == 3
    assert "no checkpoint can be read; continuing from the best weights, of step 9. The optimiser" in said.getvalue()
    assert Checkpoints(copy).steps() == [10, 12]


def test_a_run_with_damaged_weights_and_checkpoints_goes_on_from_the_best_validations(
    configure: Configure, tmp_path: Path
) -> None:
    run, nine = tmp_path / "run", ("train.steps=9", "train.optimizer.warmup=9")
    train(configure(*nine), run)
    best = {path.name: path.read_bytes() for path in (run / "best").iterdir()}
    for folder in (run / "checkpoints").iterdir():
        truncate(folder)
    (run / "weights.safetensors").write_bytes(b"x")
    said = io.StringIO()
    train(configure(*nine), run, Display(said))
    assert "no checkpoint can be read; the run is finished and keeps its best weights" in said.getvalue()
    assert {path.name: path.read_bytes() for path in (run / "best").iterdir()} == best
    kept = read_tensors(run / "best" / sorted(best)[-1])
    assert all(torch.equal(tensor, kept[name]) for name, tensor in read_tensors(run / "weights.safetensors").items())
    for path in ((run / "weights.safetensors"), *(run / "best").iterdir()):
        path.write_bytes(b"x")
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    with pytest.raises(RunError, match=r"no weights of the run can be read\. Train it anew with restart=…"):
        train(configure(*nine), run)


@pytest.mark.parametrize("average", ["ema", "best"])
@pytest.mark.parametrize("lost", [truncate, lambda run: (run / "weights.safetensors").unlink()])
def test_lost_weights_are_made_anew_from_the_best(
    lost: Callable[[Path], Any], average: str, configure: Configure, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(configure("train.steps=9", "train.validate_every=3", case=average), run)
    expected = result(run)
    lost(run)
    train(configure("train.steps=9", "train.validate_every=3", case=average), run)
    assert result(run) == expected


@pytest.mark.parametrize("average", ["ema", "best"])
def test_weights_that_a_kept_checkpoint_counts_among_the_best_are_kept(
    average: str, configure: Configure, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(configure("train.steps=9", "train.validate_every=1", "train.save_every=1", case=average), run)
    expected = result(run)
    newest = run / "checkpoints" / "00000009"
    needed = {
        step for path in newest.parent.iterdir() for _, step in json.loads((path / "state.json").read_text())["best"]
    }
    assert {int(path.stem) for path in (run / "best").iterdir()} == needed
    flip(newest)
    train(configure("train.steps=9", "train.validate_every=1", "train.save_every=1", case=average), run)
    assert result(run) == expected


# --- Links in a run folder that came from somebody else ---------------------------------------------------------------


def all_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_links_in_a_run_folder_are_not_written_through(configure: Configure, tmp_path: Path) -> None:
    """Every name that training opens is a link to a file or folder of the user's."""
    run, mine = tmp_path / "run", tmp_path / "mine"
    train(configure("train.steps=6"), run)
    mine.mkdir()
    expected = {}
    names = [".config.toml.part", ".metrics.jsonl.part", ".weights.safetensors.part", "checkpoints/.00000009.part"]
    for number, name in enumerate(names):
        (mine / f"{number}.txt").write_text("precious", encoding="utf-8")
        (run / name).symlink_to(mine / f"{number}.txt")
    (run / "best" / ".00000010.safetensors.part").symlink_to(mine / "0.txt")
    for number in range(len(names)):
        expected[f"{number}.txt"] = b"precious"
    train(configure("train.steps=12"), run)
    assert all_files(mine) == expected
    assert leftovers(run) == []
    assert read_tensors(run / "weights.safetensors")


@pytest.mark.parametrize("name", ["best", "checkpoints", "metrics.jsonl", "tensorboard"])
def test_a_linked_folder_of_a_run_is_refused(configure: Configure, tmp_path: Path, name: str) -> None:
    run, mine = tmp_path / "run", tmp_path / "mine"
    train(configure("train.steps=6", "train.tensorboard=true"), run)
    mine.mkdir()
    (mine / "00000003").mkdir()
    for kept in ("00000003/x.txt", "00000003.safetensors", ".a.part", "metrics.jsonl"):
        (mine / kept).write_text("precious", encoding="utf-8")
    before = all_files(mine)
    path = run / name
    if path.is_dir():
        shutil.rmtree(path)
        path.symlink_to(mine)
    else:
        path.unlink()
        path.symlink_to(mine / "new.jsonl")
    with pytest.raises(RunError, match=f"{name}: found a symbolic link, expected a f"):
        train(configure("train.steps=12", "train.tensorboard=true"), run)
    assert all_files(mine) == before


def test_an_output_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious", encoding="utf-8")
    (tmp_path / ".out.part.txt").symlink_to(tmp_path / "mine.txt")
    with atomic_write(tmp_path / "out.txt") as beside:
        beside.write_text("new", encoding="utf-8")
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "precious"
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == "new"
