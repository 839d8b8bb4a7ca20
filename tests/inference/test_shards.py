"""Shards: the outputs of one pass, for any shards and workers, whatever is killed; rows that fail are set aside."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from dragoman.base.errors import ConfigError, DataError, DragomanError
from dragoman.data.readers.lines import byte_range_lines
from dragoman.decoding.options import DecodingOptions
from dragoman.inference import shards as shard_work
from dragoman.inference.shard_jobs import worker_part
from dragoman.inference.shards import (
    Job,
    check_input,
    described,
    predict_on_cluster,
    run_digest,
    work,
    work_in_processes,
    work_on_cluster,
)
from dragoman.runs.folder import write_members
from tests.conftest import TrainedFolder, call, words
from tests.processes import CONTEXT

LINES = words(80, seed=9)


@pytest.fixture
def text(inside: TrainedFolder) -> Path:
    return inside.write("big.txt", "".join(f"{line}\r\n" if line < "c" else f"{line}\n" for line in LINES).encode())


def job_of(inside: TrainedFolder, file: Path, folder: str, **settings: object) -> Job:
    given = {"shard_bytes": 100, "device": "cpu", "options": DecodingOptions(beam=1, scores=False)} | settings
    return Job(str(inside.run), str(file), str(inside.folder / folder), **given)  # type: ignore[arg-type]


def outputs(job: Job) -> list[str]:
    return [line for shard in job.shards for line in job.output(shard).read_text(encoding="utf-8").splitlines()]


def expected(inside: TrainedFolder, file: Path) -> list[str]:
    return call("predict", inside.run, file, "--beam", "1").lines


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_byte_ranges_have_every_line_once(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.txt"
    data = b"\xef\xbb\xbfone\n\ntwo two\r\n" + b"x" * 70 + b"\nlast"
    path.write_bytes(data)
    found = [line for start in range(0, len(data), size) for _, line in byte_range_lines(path, start, start + size)]
    assert found == [b"one", b"", b"two two", b"x" * 70, b"last"]


def test_shards_together_are_one_pass(inside: TrainedFolder, text: Path) -> None:
    job = job_of(inside, text, "whole")
    assert len(job.shards) > 4
    done = [work(job, (part, 3)) for part in range(3)]
    assert sum(done) == len(job.shards)
    assert outputs(job) == expected(inside, text)
    assert work(job) == 0  # nothing is left
    assert {path.suffix for path in Path(job.folder).iterdir()} == {".txt", ".json"}
    job.output(job.shards[1]).write_text("damaged", encoding="utf-8")
    assert work(job) == 1
    assert outputs(job) == expected(inside, text)


def test_parquet_and_json_rows(inside: TrainedFolder) -> None:
    table = pyarrow.table({"source": [*LINES[:20], None, *LINES[20:40]]})
    path = inside.folder / "big.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=16)
    job = job_of(inside, path, "parquet", as_json=True)
    assert len(job.shards) == 3
    work(job)
    found = [json.loads(line) for line in outputs(job)]
    assert found[20] == {"text": "", "fault": "'source' is null, expected text"}
    plain = inside.write("forty.txt", "".join(f"{line}\n" for line in LINES[:40]))
    assert [row["text"] for index, row in enumerate(found) if index != 20] == expected(inside, plain)
    rejected = json.loads(job.part(job.shards[1], ".rejected.jsonl").read_text(encoding="utf-8"))
    assert (rejected["row"], rejected["place"]) == (5, 20)


def test_rows_that_fail_are_set_aside(inside: TrainedFolder) -> None:
    rows = [
        b'{"source": "abc"}', b"no json", b'{"source": "ab\xff"}', b'{"source": "ab", "require": ["\xe4\xb8\xad"]}',
        b"", b'{"source": "' + b"a " * 6000 + b'"}', b'{"source": 5.5, "requir": "x"}', b'{"source": "bad"}',
    ]  # fmt: skip
    path = inside.write("rows.jsonl", b"\n".join(rows) + b"\n")
    job = job_of(inside, path, "rows", shard_bytes=1 << 20)
    work(job)
    found = outputs(job)
    assert len(found) == len(rows)
    assert [bool(line) for line in found] == [True, False, False, False, False, True, False, True]
    lines = job.part(job.shards[0], ".rejected.jsonl").read_text(encoding="utf-8").splitlines()
    rejected = {row["row"]: row["reason"] for row in map(json.loads, lines)}
    for row, reason in {2: "no JSON", 3: "UTF-8", 4: "cannot be spelled", 7: "Did you mean"}.items():
        assert reason in rejected.pop(row)
    assert not rejected


def stop_half_way(job: Job) -> None:
    shard_work.WINDOW = 3
    work(job, progress=lambda count: time.sleep(60))


def test_a_worker_killed_half_way_loses_and_doubles_nothing(inside: TrainedFolder, text: Path) -> None:
    job = job_of(inside, text, "killed", shard_bytes=300)
    job.open()
    folder = Path(job.folder)
    child = CONTEXT.Process(target=stop_half_way, args=(job,))
    child.start()
    deadline = time.monotonic() + 240
    while not any(folder.glob(".part-*.tmp")) and time.monotonic() < deadline:
        time.sleep(0.01)
    child.kill()
    child.join()
    assert any(folder.glob(".part-*.tmp"))
    work(job)
    assert outputs(job) == expected(inside, text)
    assert not list(folder.glob(".*"))
    assert not list(folder.glob("*.lock"))


def test_a_locked_shard_belongs_to_its_worker(inside: TrainedFolder, text: Path) -> None:
    job = job_of(inside, text, "locked")
    job.open()
    with shard_work.claim(job, job.shards[0]) as mine, shard_work.claim(job, job.shards[0]) as other:
        assert mine
        assert not other
        assert work(job) == len(job.shards) - 1
    assert work(job) == 1


def test_workers_may_begin_at_the_same_moment(inside: TrainedFolder, text: Path) -> None:
    for attempt in range(10):
        job = job_of(inside, text, f"together-{attempt}")
        job.manifest  # noqa: B018  (computed before all begin)
        start = threading.Barrier(8)
        with ThreadPoolExecutor(8) as workers:
            for done in [workers.submit(lambda job=job, start=start: (start.wait(), job.open())) for _ in range(8)]:
                done.result()
        assert [path.name for path in Path(job.folder).iterdir()] == ["manifest.json"]


def test_another_job_is_refused(inside: TrainedFolder, text: Path) -> None:
    job = job_of(inside, text, "mine")
    job.open()
    job_of(inside, text, "mine", options=DecodingOptions(beam=1, scores=False, batch_size=7)).open()
    for other in (
        job_of(inside, text, "mine", options=DecodingOptions(beam=2, scores=False)),
        job_of(inside, text, "mine", shard_bytes=120),
        job_of(inside, inside.write("other.txt", "abc\n"), "mine"),
    ):
        with pytest.raises(ConfigError, match="another job"):
            other.open()
    terms = inside.write("terms.tsv", "a\tA\n")
    first = described(DecodingOptions(terminology=str(terms)))
    inside.write("terms.tsv", "a\tB\n")
    assert described(DecodingOptions(terminology=str(terms))) != first


def edit_in_the_middle(file: Path) -> None:
    """Change one letter of a file; its size and time stay."""
    before, data = file.stat(), bytearray(file.read_bytes())
    place = next(index for index in range(len(data) // 2, len(data)) if chr(data[index]).isalpha())
    data[place] = ord("a") if data[place] != ord("a") else ord("b")
    file.write_bytes(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_an_edit_in_the_middle_of_the_input_is_another_job(inside: TrainedFolder) -> None:
    """Of a file with more than two megabytes, hashes of both ends said nothing."""
    long = inside.write("long.txt", "".join(f"{word}\n" for word in words(2000, seed=3)) * 300)
    job = job_of(inside, long, "edited", shard_bytes=1 << 20)
    job.open()
    edit_in_the_middle(long)
    with pytest.raises(ConfigError, match=r"another job \(input differs\)"):
        job_of(inside, long, "edited", shard_bytes=1 << 20).open()


def test_an_edit_while_shards_are_predicted_stops_them(inside: TrainedFolder, text: Path) -> None:
    job = job_of(inside, text, "during")
    with pytest.raises(DataError, match="changed while its shards were predicted"):
        work(job, progress=lambda count: edit_in_the_middle(text))
    assert not any(Path(job.folder).glob("part-*.txt"))


def test_every_file_of_a_run_that_changes_outputs_counts(inside: TrainedFolder, tmp_path: Path) -> None:
    """A changed member of an ensemble, or its list, gave the old outputs."""
    run = tmp_path / "run"
    shutil.copytree(inside.run, run)
    shutil.copytree(inside.run, run / "members" / "second")
    seen = {run_digest(run)}
    write_members(run, ["members/second"])
    seen.add(run_digest(run))
    for name in (
        "members/second/weights.safetensors", "members/second/config.toml", "weights.safetensors", "config.toml",
        "data.json", "calibration.json", "shortlist.safetensors", "tokenizer/source.json",
    ):  # fmt: skip
        path = run / name
        before = path.read_bytes() if path.exists() else b""
        if name.endswith("config.toml"):
            path.write_bytes(before + b"\n")
        elif name.endswith(".json") and before:
            path.write_bytes(before + b" ")
        else:
            path.write_bytes(before + b"x")
        found = run_digest(run)
        assert found not in seen, name
        seen.add(found)


def test_a_text_that_names_a_folder_is_a_text(inside: TrainedFolder) -> None:
    """A prefix such as "tests" was opened as a run."""
    (inside.folder / "hello").mkdir()
    with contextlib.chdir(inside.folder):
        assert described(DecodingOptions(prefix="hello"))["prefix"] == "hello"


def test_a_cluster_gets_counts_alone(inside: TrainedFolder, text: Path) -> None:
    distributed = pytest.importorskip("distributed")
    job = job_of(inside, text, "cluster", shard_bytes=300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None, silence_logs=50
        ) as cluster:
            done: list[int] = []
            work_on_cluster(job, cluster.scheduler_address, done.append)
    assert done == list(range(1, len(job.shards) + 1))
    assert outputs(job) == expected(inside, text)
    found = predict_on_cluster([], job, 0)
    assert set(found) == {"job", "rows", "failed", "bytes", "hash", "unseen", "unseen_texts"}
    assert len(json.dumps(found)) < 300


def test_the_command(inside: TrainedFolder, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = call("predict", inside.run, text, "--shards", inside.folder / "out", "--beam", "1")
    assert said.code == 0, said.err
    assert "1 of 1 shards done, 80 rows" in said.err
    assert (inside.folder / "out" / "part-00000.txt").read_text(encoding="utf-8").splitlines() == expected(inside, text)
    for arguments, message in (
        (("-", "--shards", "out"), "needs a FILE"),
        ((text, "shards.part=0/2"), "shards.part: needs --shards FOLDER"),
        ((text, "--shards", "out2", "shards.part=2/2"), "expected I/N"),
        ((text, "--shards", "out2", "shards.part=0/2", "shards.processes=2"), "expected one of them"),
        ((text, "--shards", inside.folder / "out", "--beam", "2"), "another job"),
        ((inside.write("a.txt.gz", b"\x1f\x8b"), "--shards", "out3"), "decompress"),
        ((text, "--shards", "out4", "shards.cluster=nowhere"), "scheduler"),
    ):
        said = call("predict", inside.run, *arguments)
        assert said.code == 2, said.err
        assert message in said.err
    for name, value in (("ID", "7"), ("MIN", "5"), ("COUNT", "4"), ("STEP", "2")):
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    assert worker_part(None) == (1, 4)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert worker_part(None) == (2, 3)


@pytest.mark.slow
def test_spawned_processes_survive_a_death(inside: TrainedFolder, text: Path) -> None:
    """Engines, also CTranslate2, are loaded inside the processes."""
    job = job_of(inside, text, "spawned", shard_bytes=50)
    killed: list[int] = []

    def kill_one(done: int) -> None:

        children = multiprocessing.active_children()
        if done > 2 and not killed and children:
            killed.append(children[0].pid or 0)
            os.kill(killed[0], signal.SIGKILL)

    work_in_processes(job, 2, kill_one)
    assert outputs(job) == expected(inside, text)
    broken = replace(job, folder=str(inside.folder / "broken"), run=str(inside.folder / "none"))
    with pytest.raises(DragomanError):
        work_in_processes(broken, 2)


def test_a_file_whose_rows_are_not_lines_is_not_cut_into_shards(tmp_path: Path) -> None:
    path = tmp_path / "some.tmx"
    path.write_text("<tmx/>\n")
    with pytest.raises(DataError, match=r"found \.tmx, which cannot be cut into shards; write it as \.tsv"):
        check_input(path)


def test_comma_separated_rows(inside: TrainedFolder) -> None:
    """Each shard reads the delimiter and the header from the first line of the file."""
    path = inside.write("rows.csv", "target;source\n" + "".join(f'x;"{line}"\n' for line in LINES[:30]))
    job = job_of(inside, path, "csv", columns=("source", "target"))
    assert len(job.shards) > 2
    work(job)
    assert outputs(job) == expected(inside, inside.write("plain.txt", "".join(f"{line}\n" for line in LINES[:30])))
