"""Small versions of the long proofs in benchmarks/campaign (`make campaign`)."""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.campaign import invariance, soak
from dragoman.commands.root import MODULES
from dragoman.runs.tasks.config import preset_names
from tests.conftest import quiet_machine
from tests.processes import Command

ROOT = Path(__file__).resolve().parents[1]


def script(name: str, *arguments: str) -> str:
    """Run a campaign as `make campaign` does; it must find nothing."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        process = Command(arguments, streams={1: out.fileno()}, script=ROOT / "benchmarks" / "campaign" / name)
        code, said = process.finish(240)
        out.seek(0)
        printed = out.read()
    assert code == 0, printed + said
    return printed


def test_mutated_files_end_well_or_in_one_error() -> None:
    pytest.importorskip("soundfile")
    pytest.importorskip("PIL")
    said = script("mutations.py", "90", "--kinds", "config,data,media")
    assert re.search(r"^mutations: 90 cases, 0 failures", said, re.MULTILINE)


def test_random_documents_keep_their_tags() -> None:
    assert re.search(r"^documents: 16 cases, 0 failures", script("documents.py", "160"), re.MULTILINE)


def test_edited_shards_are_refused_and_killed_ones_lose_nothing() -> None:
    assert re.search(r"^shards: .*2 cases, 0 failures", script("shards.py", "2"), re.MULTILINE)


@pytest.mark.slow  # the campaign itself stops 500
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the processes of a command in /proc")
def test_stopped_commands_go_on() -> None:
    said = script("stops.py", "2", "--kinds", "adapt,tasks", "--spawned", "0")
    assert re.search(r"^stops: \d+ cases, 0 failures", said, re.MULTILINE)


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_faulty_file_operations_lose_nothing() -> None:
    assert re.search(r"^faults: 2 cases, 0 failures", script("faults.py", "2"), re.MULTILINE)


def test_the_matrix_has_every_command_and_kind_of_run(tmp_path: Path) -> None:
    """Its tables are complete: a new argument of a command needs a value, a new preset must be made small."""
    pytest.importorskip("PIL")
    from benchmarks.campaign import matrix

    kinds = matrix.Matrix(tmp_path, "", 0).tables
    assert set(preset_names()) < set(kinds)
    named = {line.partition("\t")[0] for line in matrix.command_lines()}
    assert named | set(matrix.LEFT_OUT) == set(MODULES)


def test_commands_end_well_on_a_kind_of_run() -> None:
    """Among them what ended in an internal error: a network that starts from the weights of a fitted tagger."""
    pytest.importorskip("PIL")
    only = "(start_from.* --run|info RUN|export.* web .*) on labels-hmm"
    assert re.search(r"^matrix: \d+ cases, 0 failures", script("matrix.py", "--only", only), re.MULTILINE)


@pytest.mark.slow  # the campaign itself runs all cases
def test_nothing_is_written_through_links() -> None:
    assert re.search(r"^links: \d+ cases, 0 failures", script("links.py", "--only", "shortlist"), re.MULTILINE)


def test_parsers_take_linear_time() -> None:
    """The parts that once took quadratic time."""
    only = r"split_sentences .(a|Dr|\.|\\n)|toml .a|po .\"a"
    said = script("linear_time.py", "--milliseconds", "10", "--only", only)
    assert re.search(r"^linear time: 13 cases, 0 failures", said, re.MULTILINE)


def test_outputs_do_not_depend_on_their_batch() -> None:
    compared, differing = invariance.campaign(6, names=("mixed",))
    assert compared == 6 * 4 * 4
    assert differing == []


@pytest.mark.gpu
def test_outputs_do_not_depend_on_their_batch_on_a_gpu() -> None:
    """Also where a search is captured, which happens when its shape recurs."""
    _, differing = invariance.campaign(24, "cuda", ("transformer", "gru", "luong"))
    assert differing == []


def test_searches_are_those_of_hugging_face() -> None:
    pytest.importorskip("transformers")
    from benchmarks.campaign.differential import against_hugging_face

    counts: Counter[str] = Counter()
    assert [against_hugging_face(random.Random(number), counts) for number in (0, 3)] == [""] * 2
    assert counts["the same"] >= 4


def test_files_are_closed_after_training_and_predicting(tmp_path: Path) -> None:
    with quiet_machine(tmp_path):
        cycles, _, files = soak.soak(0, cycles=2)
    assert cycles == 2
    assert files[1] <= files[0]
