"""`dragoman lecture`: its table, its folder, its page and notebooks; docs/how-to/lectures.md is made from the table."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import dragoman
from dragoman.base.errors import DataError, MissingExtraError
from dragoman.commands.root import cli
from dragoman.lecture import making
from dragoman.lecture.runs import RUNS, config_text, sample
from dragoman.lecture.table import Figure, Numbers
from dragoman.lecture.topics import TOPICS
from dragoman.web.page import page_data
from tests.conftest import call, quiet_machine, tree

pytest.importorskip("PIL", reason="pictures need pillow (extra 'media')")
pytest.importorskip("matplotlib", reason="figures need matplotlib (extra 'plots')")
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import lectures  # noqa: E402

FIGURES = [figure for topic in TOPICS.values() for figure in topic.figures]
PAGE = (ROOT / "docs" / "how-to" / "lectures.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\| .* \| `dragoman (.*)` \|$", PAGE, re.MULTILINE)


def test_page_and_notebooks_are_those_of_the_table() -> None:
    """Else: python tools/lectures.py."""
    assert lectures.page() == PAGE
    made = {f"{name}.ipynb": lectures.notebook(topic) for name, topic in TOPICS.items()}
    assert made == {path.name: path.read_text(encoding="utf-8") for path in lectures.NOTEBOOKS.iterdir()}
    assert [figure.command for figure in FIGURES] == COMMANDS[len(RUNS) :]


def test_the_table() -> None:
    assert len(TOPICS) >= 10
    assert len(FIGURES) >= 49
    names = [figure.name for figure in FIGURES]
    assert len({*names}) == len(names)  # no command overwrites the figure of another
    for topic in TOPICS.values():
        assert topic.figures
        assert len(topic.ask) >= 2 <= len(topic.mistakes)
        assert {*topic.runs} <= {*RUNS}
        assert not {figure.name for figure in topic.figures} & {*making.SET_OF}
    for figure in FIGURES:
        assert figure.words[0] in cli.commands
        assert figure.question.endswith("?")


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Path]:
    with quiet_machine(tmp_path / "cache"), contextlib.chdir(tmp_path):
        yield tmp_path


def test_a_topic_is_made_once_and_what_is_lost_is_made_again(inside: Path) -> None:
    result = call("lecture", "hmm")
    assert (result.code, result.out) == (0, f"page: {inside / 'lecture' / 'index.html'}\n"), result.err
    data = page_data((inside / "lecture" / "index.html").read_text(encoding="utf-8"))
    assert data["first"] == "hmm"
    assert [topic["name"] for topic in data["topics"]] == list(TOPICS)
    trellis, kalman = next(topic for topic in data["topics"] if topic["name"] == "hmm")["figures"]
    assert trellis["command"].startswith("dragoman inspect runs/hmm")
    table = dragoman.load("lecture/runs/hmm", task="tag").inspect("the big dog")
    assert "viterbi" in table.html.lower()
    tags = {line.split("\t")[1] for line in Path("lecture/words.tsv").read_text().splitlines() if line}
    assert trellis["answer"]["right"] == len(tags) ** 3
    series = dragoman.load("lecture/runs/kalman", task="regress").predict(["0.1 0.2 0.3"])[0]
    assert kalman["answer"]["right"] == pytest.approx(float(series.text), abs=1e-3)
    assert not any(
        figure.get("answer") for topic in data["topics"] if topic["name"] != "hmm" for figure in topic["figures"]
    )

    Path("lecture/words.tsv").write_text("the\tDET\n", encoding="utf-8")  # a sample that the user changed
    before = tree(inside / "lecture")
    made = dragoman.make_lecture("hmm")
    assert {name for name, value in tree(inside / "lecture").items() if value != before.get(name)} <= {
        "index.html",
        "toys.html",
    }
    Path("lecture/kalman.html").unlink()
    assert "made 0 runs and 1 figures" in call("lecture", "hmm").err
    assert Path("lecture/words.tsv").read_text() == "the\tDET\n"
    assert made.figures["viterbi.svg"].answer.text == str(len(tags) ** 3)
    assert "<svg" in made.show("viterbi.svg").html
    assert made.show("kalman.html").height
    with pytest.raises(DataError, match=r"no figure 'x.svg' is drawn"):
        made.show("x.svg")


def test_a_stop_at_any_moment_leaves_what_the_same_command_completes(
    inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work is stopped before its first step and then after every second; a step writes a file or runs a command."""
    steps: list[str] = []
    left = [0]
    own_write, own_call = making.write_missing, making.call

    def counted(name: str) -> None:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        steps.append(name)

    def write(path: Path, content: bytes) -> None:
        if not path.exists():
            counted(str(path))
        own_write(path, content)

    def run(command: click.Command, words: list[str]) -> str:
        counted(" ".join(words))
        return own_call(command, words)

    monkeypatch.setattr(making, "write_missing", write)
    monkeypatch.setattr(making, "call", run)
    results = []
    while not results or results[-1].code:
        left[0] = 2 if results else 0  # a figure and its numbers are two commands
        results.append(call("lecture", "hmm"))
        assert results[-1].code in (0, 130), results[-1].err
        assert len(results) < 12
    assert len(results) > 4
    assert steps.count("train hmm.toml") == steps.count("train kalman.toml") == 1
    assert Path("lecture/viterbi.svg").is_file()
    assert Path("lecture/kalman.html").is_file()


def test_wrong_uses_are_one_line_and_change_nothing(inside: Path) -> None:
    Path("mine").mkdir()
    Path("mine/index.html").write_text("mine")
    Path("file").write_text("mine")
    Path("damaged").mkdir()
    Path("damaged/lecture.json").write_text('{"format": 1}')
    Path("busy").mkdir()
    before = tree(inside)
    for words, message in (
        (("atention",), "no such topic 'atention'. Did you mean 'attention'?"),
        (("hmm", "-o", "mine"), "found files that are not of a lecture (no lecture.json), expected an empty folder"),
        (("hmm", "-o", "file"), "found a file, expected a folder"),
        (("hmm", "-o", "file/below"), "the folder cannot be made (Not a directory)"),
        (("hmm", "-o", "damaged"), "not the record of a lecture of this version"),
        (("hmm", "bias"), "unexpected extra argument"),
    ):
        result = call("lecture", *words)
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), words
        assert message in result.err
    assert tree(inside) == before
    assert call("lecture", "--list").lines == [f"{name:<16}{topic.title}" for name, topic in TOPICS.items()]


def test_a_folder_without_permission_is_told(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, **more: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refused)
    result = call("lecture", "hmm", "-o", "locked")
    assert (result.code, "the folder cannot be made (Permission denied)" in result.err) == (2, True)


def test_a_missing_package_is_told_before_any_work(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="matplotlib"):
        dragoman.make_lecture("hmm")
    assert not Path("lecture").exists()


def test_one_process_at_a_time(inside: Path) -> None:
    folder = making.Folder(Path("lecture"))
    with folder.locked():
        result = call("lecture", "hmm")
    assert (result.code, "another process is making this lecture" in result.err) == (2, True)


@pytest.mark.parametrize("name", RUNS)
def test_configurations_are_accepted(name: str, tmp_path: Path) -> None:
    from dragoman.runs.tasks.config import load

    path = tmp_path / f"{name}.toml"
    path.write_text(config_text(name), encoding="utf-8")
    assert load(str(path)).data.train == RUNS[name].data


def test_samples_are_the_same_each_time() -> None:
    for name in making.SETS:
        first = sample(name)
        assert name in first
        assert first == sample(name)
    pairs, test = (sample("pairs.tsv")[name].decode().splitlines() for name in ("pairs.tsv", "test.tsv"))
    assert not {row.split("\t")[0] for row in pairs} & {row.split("\t")[0] for row in test}


def test_tolerances_and_texts_of_answers(tmp_path: Path) -> None:
    """Of the answers that need the folder alone."""
    for name, content in sample("pairs.tsv").items():
        (tmp_path / name).write_bytes(content)
    figures = {figure.name: figure for figure in FIGURES}
    longer = figures["units.html"].compute(Numbers(None, tmp_path))
    words = (tmp_path / "ref.txt").read_text().split()
    spaces = len(words) - len((tmp_path / "ref.txt").read_text().splitlines())
    assert longer.right == pytest.approx((sum(map(len, words)) + spaces) / len(words))


def of_table(figure: Figure) -> str:
    return figure.name


@pytest.mark.page
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_every_command_of_the_page_runs_as_written_in_a_clean_folder(inside: Path) -> None:
    """In the order of the page; the slow ones run in `make campaign`."""
    assert call("lecture", "--files-only").code == 0
    data = page_data((inside / "lecture" / "index.html").read_text(encoding="utf-8"))
    assert not any("answer" in figure for topic in data["topics"] for figure in topic["figures"])
    with contextlib.chdir(inside / "lecture"):
        there = {path.name for path in Path().iterdir()}
        for figure, command in zip(FIGURES, COMMANDS[len(RUNS) :], strict=True):
            if figure.slow:
                continue
            assert figure.file is None or figure.file not in there
            result = call(*shlex.split(command))
            assert result.code == 0, (command, result.err)
            if figure.file:
                assert Path(figure.file).stat().st_size > 1000, command
            else:
                assert len(result.lines) > 5, command
            drawn = making.draw(figure, cli)  # draws once more, and asks
            assert drawn.answer.why
            assert drawn.answer.right not in drawn.answer.others
            assert isinstance(drawn.answer.right, str) == bool(drawn.answer.others), command
        for run in RUNS:
            assert call("train", f"{run}.toml").code == 0  # as the page says: resumed, and done


@pytest.mark.slow
@pytest.mark.page
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("figure", [figure for figure in FIGURES if figure.slow], ids=of_table)
def test_slow_figures(figure: Figure, inside: Path) -> None:
    for name in ("pairs.tsv", "words.toml"):
        for file, content in sample(name).items():
            Path(file).write_bytes(content)
    drawn = making.draw(figure, cli)
    assert figure.file is not None
    assert Path(figure.file).stat().st_size > 1000
    assert drawn.answer.why


@pytest.mark.page
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "hmm" else [pytest.mark.slow]) for name in TOPICS]
)
def test_notebooks_run(name: str, inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell in order, in a kernel; a command that fails is an error, which a notebook would pass over."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for variable in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(variable, str(inside / variable.lower()))
    book = nbformat.read(lectures.NOTEBOOKS / f"{name}.ipynb", as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    for cell in code:
        cell.source += "\nassert _exit_code == 0, _exit_code" * cell.source.startswith("!")
    nbclient.NotebookClient(book, timeout=1200, resources={"metadata": {"path": str(inside)}}).execute()
    answers = [cell.outputs[0].text for cell in code if cell.source.startswith("print(lecture.figures")]
    assert len(answers) == sum(not figure.slow for figure in TOPICS[name].figures)
    assert all(re.match(r".+: .+", text) for text in answers)
    shown = [cell.outputs[0].data["text/html"] for cell in code if cell.source.startswith("lecture.show")]
    assert all("<svg" in picture or "<iframe" in picture for picture in shown)
