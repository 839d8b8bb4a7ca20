"""A model search that is stopped, killed, late or loses a process goes on, or ends with what it has."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from dragoman.auto.configure import configure
from dragoman.auto.options import SearchOptions
from dragoman.auto.search import worker
from dragoman.auto.search.run import (
    Search,
)
from dragoman.auto.search.state import SearchState, check_folder, load_search
from dragoman.auto.search.worker import Job, TrialPool
from dragoman.auto.trial import Outcome, state_of
from dragoman.base.errors import Interrupted, RunError
from dragoman.training.signals import SearchInterrupted, stop_search_on_signals
from tests.auto.searches import TINY, FakeSearch, command, job_for, outcome, run_search, scores
from tests.conftest import call, words, write_rows


def sleep_job(job: Job) -> Outcome:
    """A job whose folder is its seconds; "dies" ends its process."""
    if job.folder == "dies":
        os._exit(3)
    time.sleep(float(job.folder))
    return outcome(1.0)


def die_once(job: Job) -> Outcome:
    """A job that dies when it first runs, in the file of its folder; another one works until a while after that."""
    path = Path(job.folder.removeprefix("beside "))
    if path == Path(job.folder) and not path.exists():
        path.touch()
        os._exit(3)
    while not path.exists():
        time.sleep(0.01)
    time.sleep(0.5 * (path != Path(job.folder)))
    return outcome(1.0)


def end_twice(job: Job) -> Outcome:
    """A job that is killed, then ended by a signal of its own, and then done; its folder counts."""
    folder = Path(job.folder)
    folder.mkdir(exist_ok=True)
    count = len(list(folder.iterdir()))
    (folder / str(count)).touch()
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if count == 1:
        raise Interrupted(143, 7)
    return outcome(1.0)


def save_on_sigterm(job: Job) -> Outcome:
    """A job that ends as training does: at a signal it saves for a while, then returns."""
    if job.folder != "wait":
        return sleep_job(job)
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    while not stopped:
        time.sleep(0.05)
    time.sleep(0.5)
    return outcome(1.0)


def test_a_second_signal_waits_until_the_workers_have_saved() -> None:
    saved = []

    def search() -> None:
        with stop_search_on_signals():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
                saved.append(True)

    with pytest.raises(SearchInterrupted):
        search()
    assert saved


@pytest.mark.slow  # a search that is killed ten times
@pytest.mark.timeout(1800)
def test_a_killed_search_goes_on_to_the_same_leaderboard(searched: Path, tmp_path: Path) -> None:
    """Killed ten times, each time a little later after something in its folder has changed."""
    run, killed = tmp_path / "run", 0

    def content() -> list[tuple[str, int]]:
        return sorted((str(path), path.stat().st_mtime_ns) for path in run.rglob("*") if path.exists())

    while killed < 10:
        process = subprocess.Popen(command(searched, run), stderr=subprocess.DEVNULL)
        before, deadline = content(), time.monotonic() + 120
        while content() == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.15 * killed)
        if process.poll() is not None:
            assert process.returncode == 0
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        killed += 1
    assert killed >= 5, "the search was finished too early to be killed"
    run_search(searched, run)
    assert scores(run) == scores(searched / "run")


def test_a_signal_waits_until_a_worker_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool must know it: nobody would end a worker that had just started, and the search would never exit."""
    start = TrialPool._start

    def signalled(pool: TrialPool) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return start(pool)

    monkeypatch.setattr(TrialPool, "_start", signalled)
    pool = TrialPool(1, sleep_job)

    def search() -> None:
        with stop_search_on_signals(), pool:
            pool.submit(Job("", "60", 1, 1, "loss"))

    with pytest.raises(SearchInterrupted):
        search()
    ((busy, _),) = pool.busy.values()
    assert not busy.process.is_alive()


def test_a_pool_of_idle_and_busy_workers_ends_after_a_signal() -> None:
    """A worker that is ended while it waits for a job held the lock of a shared queue: the busy one waited for ever."""
    processes: list[Any] = []

    def search() -> None:
        with stop_search_on_signals(), TrialPool(3, save_on_sigterm) as pool:
            for folder in ("0.1", "0.1", "wait"):
                pool.submit(Job("", folder, 1, 1, "loss"))
            while len(pool.idle) < 2:
                pool.wait()
            processes.extend(each.process for each in (*pool.idle, *(busy for busy, _ in pool.busy.values())))
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SearchInterrupted):
        search()
    assert len(processes) == 3
    assert not any(process.is_alive() for process in processes)


LATE_WORKER = """
import multiprocessing, os, sys, time
def begin(path):
    with open(path, "a") as file:
        file.write(f"{os.getpid()} ")
    time.sleep(1)  # the search is killed meanwhile
    from dragoman.auto.search.worker import end_with_parent
    end_with_parent()
    time.sleep(100)
if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=begin, args=(sys.argv[1],)).start()
    time.sleep(100)
"""


@pytest.mark.slow  # starts two processes
@pytest.mark.timeout(60)
def test_a_worker_that_begins_after_its_search_was_killed_ends(tmp_path: Path) -> None:
    script, begun = tmp_path / "script.py", tmp_path / "begun"
    script.write_text(LATE_WORKER)
    process = subprocess.Popen([sys.executable, script, begun])
    while not begun.exists() or not begun.read_text().endswith(" "):
        time.sleep(0.02)
    process.kill()
    process.wait()
    worker_folder = Path("/proc") / begun.read_text().strip()
    while worker_folder.exists():  # the test's limit ends an endless wait
        time.sleep(0.1)


def test_ctrl_c_stops_a_search_and_the_same_command_goes_on(searched: Path, tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of a terminal; a search in the background begins with SIGINT ignored."""
    run = tmp_path / "run"
    process = subprocess.Popen(
        command(searched, run), stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not any((run / "trials").glob("*/lock")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == (
        "stopped; the trials that were training are saved, and the same command goes on with the search"
    )


def alive_in_group(group: int) -> list[str]:
    """The processes of a group but those that nobody has waited for."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, process_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(process_group) == group and state != "Z":
                found.append(stat.with_name("cmdline").read_text())
    return found


def assert_group_ends(group: int) -> None:
    """A process that tracks resources ends by itself a moment after the last one that uses it."""
    deadline = time.monotonic() + 60
    while alive_in_group(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive_in_group(group)


def test_sigterm_ends_a_search_with_an_idle_worker_and_leaves_a_folder_that_goes_on(
    searched: Path, tmp_path: Path
) -> None:
    """Of three members on two workers the last trains alone, and the other worker waits for a job."""
    run = tmp_path / "run"
    given = ["train.steps=60", "train.validate_every=20", "train.save_every=1000", "train.patience=0"]
    words = [word for word in command(searched, run) if not word.startswith(("--quiet", "train.steps"))]
    words[words.index("--trials") + 1], words[words.index("--ensemble") + 1] = "1", "3"
    process = subprocess.Popen([*words, *given], stderr=subprocess.PIPE, text=True, start_new_session=True)
    members = run / "trials"
    while len(list(members.glob("*/weights.safetensors"))) < 2 or len(list(members.glob("*/lock"))) < 3:
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 143, said
    assert_group_ends(process.pid)
    state = load_search(run)
    assert not state.done
    assert state.best
    use = f"dragoman predict {run / state.best} FILE"
    assert f"search: use the best so far: {use}" in said
    shown = call("info", run)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(
        f"{run}: a search that is not finished; it goes on with: dragoman train {run}\n"
        f"use its best trial so far: {use}\n\nsearch:\n| rank |"
    )
    assert json.loads(call("info", run, "--json").out) == {"run": str(run), "best": str(run / state.best)}
    assert f"goes on with: dragoman train {run}; use its best trial so far: {use}\n" in call("predict", run, "x").err
    (run / "inputs.txt").write_text("abc\n")
    assert call("predict", run / state.best, run / "inputs.txt").code == 0
    assert call("train", run, "--quiet").code == 0
    assert load_search(run).done


def test_a_search_killed_while_it_began_begins_again(tmp_path: Path) -> None:
    (tmp_path / "trials").mkdir()
    (tmp_path / ".search.json.part").touch()  # it was being written
    check_folder(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(RunError, match="holds no search"):
        check_folder(tmp_path)


def test_a_folder_without_a_run_says_how_to_go_on(tmp_path: Path, searched: Path) -> None:
    (tmp_path / "trials").mkdir()
    (tmp_path / ".search.json.part").touch()
    assert "begins with the same command again" in call("info", tmp_path).err
    (tmp_path / "notes.txt").touch()
    assert "not a run folder (it has no config.toml)\n" in call("info", tmp_path).err
    assert "goes on with the same command again" in call("info", searched / "run" / "trials").err


def test_a_process_that_dies_fails_one_trial() -> None:
    jobs = [Job("", name, 1, 1, "cer") for name in ("0.05", "0.06", "dies", "0.07", "0.08")]
    with TrialPool(2, sleep_job) as pool:
        found = {job.folder: outcome for job, outcome in pool.outcomes(jobs)}
    assert found.keys() == {job.folder for job in jobs}
    assert found["dies"].error == "its process was killed 3 times, perhaps for lack of memory"
    assert all(not outcome.error for name, outcome in found.items() if name != "dies")


def test_a_job_that_dies_beside_others_runs_again_alone(tmp_path: Path) -> None:
    """It may have had too little memory beside them."""
    jobs = [Job("", name, 1, 1, "cer") for name in (str(tmp_path / "once"), f"beside {tmp_path / 'once'}")]
    with TrialPool(2, die_once) as pool:
        found = list(pool.outcomes(jobs))
    assert [(job, outcome.error) for job, outcome in found] == [(jobs[1], ""), (jobs[0], "")]


def test_a_job_whose_process_ends_is_done_again_also_where_it_was_alone(tmp_path: Path) -> None:
    with TrialPool(1, end_twice) as pool:
        ((_, found),) = pool.outcomes([Job("", str(tmp_path / "count"), 1, 1, "cer")])
    assert not found.error
    assert len(list((tmp_path / "count").iterdir())) == 3


def test_a_worker_that_is_killed_while_it_gets_a_job_loses_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("", "0", 1, 1, "cer")
    with TrialPool(1, sleep_job) as pool:
        assert len(list(pool.outcomes([job]))) == 1
        (idle,) = pool.idle
        idle.process.kill()
        idle.process.join()
        with monkeypatch.context() as patch:  # it still lived when it was chosen
            patch.setattr(type(idle.process), "is_alive", lambda process: True)
            pool.submit(job)
        assert pool.wait(60) == [(job, None)]
        ((_, found),) = pool.outcomes([job])
    assert not found.error


def test_scores_of_folds_are_added_in_one_order(cached: Path, tmp_path: Path) -> None:
    """The sum of 0.1, 0.2 and 0.3 depends on their order, and so would the winner of two equal trials."""
    config, _ = configure(str(write_rows(tmp_path / "pairs.tsv", [(word, word[::-1]) for word in words(60)])), TINY)

    class Shuffled(FakeSearch):
        def _outcomes(self, pool: Any, jobs: Any, *limits: Any) -> Any:
            scored = [(trial, job, outcome(int(job.folder[-1]) / 10)) for trial, job in jobs]
            return iter(scored if scored[0][0].name == "a" else scored[::-1])

    search = Shuffled(tmp_path / "run")
    search.create({"a": config, "b": config}, SearchOptions(None, trials=2, workers=1), [])
    state = load_search(tmp_path / "run")
    assert state.folds == 3
    for trial in state.trials:
        trial.steps = [2, 6]
    search._stage(state, cast(Any, None))
    assert state.trials[0].scores == state.trials[1].scores
    assert state.trials[1].fold_scores == [0.1, 0.2, 0.3]


def test_jobs_that_do_not_pause_are_killed_once_one_is_done() -> None:
    """Fitting, loading and validating cannot pause."""
    jobs = [Job("", seconds, 1, 1, "cer") for seconds in ("0.1", "600", "500")]
    with TrialPool(2, sleep_job) as pool:
        found = {job.folder: outcome.error for job, outcome in pool.outcomes(jobs, overdue=time.time() + 1.5)}
        assert found == {"0.1": "", "600": worker.OVERDUE, "500": worker.OVERDUE}
        ((_, outcome),) = pool.outcomes(jobs[:1])  # the pool goes on
        assert not outcome.error


def test_a_deadline_ends_a_job_with_a_validation(cached: Path, tmp_path: Path) -> None:
    job = job_for(tmp_path, 80, [*TINY, "train.steps=4000", "train.validate_every=2000"], until=4000)
    late = worker.run_job(job._replace(deadline=time.time()))
    assert late.step == 1  # a run without a step has no weights
    assert math.isfinite(late.score)
    assert worker.outcome_of_killed(job)._replace(loading=late.loading, overhead=late.overhead) == late
    assert worker.outcome_of_killed(job._replace(folder=str(tmp_path / "none"))).error == worker.OVERDUE


def test_a_search_without_time_left_ends_with_what_it_has(cached: Path, tmp_path: Path) -> None:
    """A resumed search counts the seconds that it has had; its jobs get what is left."""
    rows = [(word, word[::-1]) for word in words(400)]
    write_rows(tmp_path / "pairs.tsv", rows[:200])
    write_rows(tmp_path / "valid.tsv", rows[200:])
    settings = [*TINY[1:], "train.steps=300", f"data.valid={tmp_path / 'valid.tsv'}"]
    config, _ = configure(str(tmp_path / "pairs.tsv"), settings)
    given: list[Job] = []

    class Watched(FakeSearch):
        def _outcomes(self, pool: Any, jobs: Any, *limits: Any) -> Any:
            given.extend(job for _, job in jobs)
            return super()._outcomes(pool, jobs)

    search = Watched(tmp_path / "run", a=[outcome(0.5)] * 4, b=[outcome(0.4)] * 3)
    search.create({"a": config, "b": config}, SearchOptions(1000.0, workers=2), [])
    state = load_search(tmp_path / "run")
    state.spent = 990.0
    state.save(tmp_path / "run")
    done = search.run()
    assert done.members == ["a"]
    assert 990 <= done.spent < 1000
    deadlines = [job.deadline for job in given if job.deadline < math.inf]
    assert deadlines
    assert max(deadlines) <= search.started + 10


def test_a_search_that_is_stopped_in_the_rest_of_its_time_goes_on(
    cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan trains 24 steps, the rest of the time 30 and a second seed, which a signal keeps from its begin."""
    rows = write_rows(tmp_path / "pairs.tsv", [(word, word[::-1]) for word in words(60)])
    small = ["preset=luong-2015-small", "model.encoder.width=8", "model.decoder.width=8"]
    config, _ = configure(str(rows), [*small, *TINY])

    def rest(state: SearchState, trained: Any, left: float, tried: Any) -> list[Any]:
        usual = state.trials[0]
        return [] if tried else [("a", usual, 30), ("a-seed1", usual, 30)]

    class Stopping(Search):
        def _outcomes(self, pool: Any, jobs: Any, *limits: Any) -> Any:
            for found in super()._outcomes(pool, jobs, *limits):
                yield found
                if found[1].until == 30:
                    time.sleep(1.1)
                    raise SearchInterrupted(143, 0)

    monkeypatch.setattr("dragoman.auto.search.run.plan_remaining_time", rest)
    search = Stopping(tmp_path / "run", lambda line: None, lambda state: None)
    search.create({"a": config}, SearchOptions(600.0, workers=1), [])
    with pytest.raises(SearchInterrupted):
        search.run()
    stopped = load_search(tmp_path / "run")
    assert (stopped.members, stopped.trials[0].steps) == (["a", "a-seed1"], [30])
    assert stopped.spent > 1
    done = Search(tmp_path / "run", lambda line: None, lambda state: None).run()
    assert done.done
    states = [state_of(tmp_path / "run" / "trials" / name) for name in stopped.members]
    assert [state and state.step for state in states] == [30, 30]
    assert done.spent > stopped.spent


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. GPU 0 is full."),
        MemoryError("2 GiB: not enough memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_trial_without_enough_memory_fails_alone(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> Outcome:
        raise error

    monkeypatch.setattr(worker, "train_trial", full)
    job = job_for(tmp_path, 40, TINY, until=10)
    failed = worker.run_job(job)
    assert failed.error == f"not enough memory ({str(error) or 'MemoryError'})"
    error.args = (
        f"{str(error) or 'MemoryError'} Process 7 has 4.64 GiB memory in use. Process 8 …\nTry another setting.",
    )
    assert worker.run_job(job).error == failed.error
    assert failed.score == -math.inf
