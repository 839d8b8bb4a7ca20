"""`make_lecture`: sample files, tiny runs, figures and a page with questions; after a stop it makes the rest."""

from __future__ import annotations

import contextlib
import html
import importlib.util
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.base import (
    DataError,
    MissingExtraError,
    atomic_write,
    hint,
    lock,
    open_handle,
    progress,
    remove_file,
    silent,
    usable_cores,
    write_text,
)
from dragoman.inference import Picture
from dragoman.lecture.options import LectureOptions
from dragoman.lecture.page import write_page
from dragoman.lecture.runs import RUNS, config_text, sample
from dragoman.lecture.table import DrawnFigure, Figure, Numbers, Topic
from dragoman.lecture.topics import TOPICS

if TYPE_CHECKING:
    import click

RECORD = "lecture.json"  # what is finished; it also marks the folder as ours
ALONE = 3  # so few runs are trained by one process: a second one takes seconds to start
PAGE_HEIGHT = 760  # pixels of a page inside a notebook
MOST_TEXT = 6_000  # characters of what a command prints, on the page
PAIRS_FILES = dict.fromkeys(("test.tsv", "source.txt", "ref.txt", "out.txt", "other.txt"), "pairs.tsv")
SETS = {"pairs.tsv", "probes.toml", "words.toml", *(run.data for run in RUNS.values())}
# Which set of sample files has a file that a command names. Those of a run are made for it.
SET_OF = {**{name: name for name in SETS}, **PAIRS_FILES, "characters.toml": "words.toml"}


@dataclass(frozen=True)
class Lecture:
    """The folder of a lecture: its page, and the figures that are drawn, by the names of their files."""

    folder: Path
    page: Path
    figures: dict[str, DrawnFigure]

    def show(self, name: str) -> Picture:
        """A figure for a notebook."""
        if name not in self.figures:
            raise DataError(f"no figure {name!r} is drawn. {hint(name, self.figures)}")
        drawn = self.figures[name]
        if drawn.file is None:
            return Picture(drawn.title, f"<pre>{html.escape(drawn.text)}</pre>")
        content = (self.folder / drawn.file).read_text(encoding="utf-8")
        is_page = drawn.file.endswith(".html")
        return Picture(drawn.title, content if is_page else content[content.index("<svg") :], PAGE_HEIGHT * is_page)


class Folder:
    """The folder of a lecture and the record of what is finished in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise DataError(f"--output {path}: found a file, expected a folder; name another one")
        try:
            path.mkdir(parents=True, exist_ok=True)
            new = not any(path.iterdir())
        except OSError as error:
            raise DataError(
                f"--output {path}: the folder cannot be made ({error.strerror}); name another one"
            ) from None
        if not new and not (path / RECORD).is_file():
            raise DataError(
                f"--output {path}: found files that are not of a lecture (no {RECORD}), expected an empty folder; "
                "name another one"
            )
        if not os.access(path, os.W_OK):
            raise DataError(f"--output {path}: cannot be written (Permission denied); name another folder")
        self.done: dict[str, Any] = {"format": 1, "samples": [], "runs": [], "figures": {}}
        if new:
            self.save()
        else:
            self.done = self.read()

    def read(self) -> dict[str, Any]:
        try:
            found = json.loads((self.path / RECORD).read_text(encoding="utf-8"))
            if found["format"] != 1 or not isinstance(found["samples"], list) or not isinstance(found["runs"], list):
                raise ValueError
            for row in found["figures"].values():
                DrawnFigure.of(row["drawn"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            raise DataError(
                f"{self.path / RECORD}: not the record of a lecture of this version; name another folder with --output"
            ) from None
        return dict(found)

    def save(self) -> None:
        write_text(self.path / RECORD, json.dumps(self.done, ensure_ascii=False, indent=1) + "\n")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        handle = open_handle(self.path / ".lock", os.O_RDWR | os.O_CREAT)
        try:
            if lock(handle) is False:
                raise DataError(f"{self.path}: another process is making this lecture; wait for it")
            yield
        finally:
            os.close(handle)

    def is_drawn(self, figure: Figure) -> bool:
        """Whether the figure of this very row is there."""
        row = self.done["figures"].get(figure.name)
        there = figure.file is None or (self.path / figure.file).is_file()
        return there and row is not None and row["row"] == [figure.command, figure.question]


def make_lecture(
    command: click.Command,
    topic: str | None = None,
    options: LectureOptions | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> Lecture:
    """Make what is missing for a topic, or for all, and the page; `command` runs the commands of the figures.

    The process works in the folder of the lecture meanwhile: relative paths of other threads would go astray.
    """
    options = options or LectureOptions()
    if topic is not None and topic not in TOPICS:
        raise DataError(f"no such topic {topic!r}. {hint(topic, TOPICS)}")
    topics = [TOPICS[topic]] if topic is not None else list(TOPICS.values())
    figures = [figure for one in topics for figure in one.figures if options.slow or not figure.slow]
    check_packages(topics, figures)
    folder = Folder(Path(options.output).absolute())
    with folder.locked():
        make(folder, command, topics, [] if options.files_only else figures, say)
        page = write_page(folder.path, drawn_in(folder), topic)
    return Lecture(folder.path, page, drawn_in(folder))


def drawn_in(folder: Folder) -> dict[str, DrawnFigure]:
    return {
        figure.name: DrawnFigure.of(folder.done["figures"][figure.name]["drawn"])
        for topic in TOPICS.values()
        for figure in topic.figures
        if folder.is_drawn(figure)
    }


def check_packages(topics: Iterable[Topic], figures: Iterable[Figure]) -> None:
    """Say before any work which package is missing."""
    drawings = any((figure.file or "").endswith(".svg") for figure in figures)
    pictures = {"pictures.tsv", "clips.tsv"} & {RUNS[run].data for topic in topics for run in topic.runs}
    for wanted, package, extra in ((drawings, "matplotlib", "plots"), (bool(pictures), "PIL", "media")):
        if wanted and importlib.util.find_spec(package) is None:
            raise MissingExtraError("the figures of this lecture", {"PIL": "pillow"}.get(package, package), extra)


def make(
    folder: Folder, command: click.Command, topics: list[Topic], figures: list[Figure], say: Callable[[str], object]
) -> None:
    runs = list(dict.fromkeys(run for topic in topics for run in topic.runs))
    words = [word for topic in topics for figure in topic.figures for word in figure.words]
    sets = [SET_OF[word] for word in words if word in SET_OF] + [RUNS[run].data for run in runs]
    if "words.toml" in sets:
        sets.append("pairs.tsv")
    done = folder.done
    waiting_sets = [name for name in dict.fromkeys(sets) if name not in done["samples"]]
    waiting_runs = [run for run in runs if run not in done["runs"]]
    waiting = [figure for figure in figures if not folder.is_drawn(figure)]
    total = len(waiting_runs) + len(waiting)
    with progress("runs and figures", total) as advance, silent(), contextlib.chdir(folder.path):
        here = Folder.__new__(Folder)  # the same record, seen from inside
        here.path, here.done = Path(), done
        for name in waiting_sets:
            for file, content in sample(name).items():
                write_missing(Path(file), content)
            done["samples"].append(name)
            here.save()
        for run in train_runs(waiting_runs, command):
            done["runs"].append(run)
            here.save()
            advance(1)
        for figure in waiting:
            drawn = draw(figure, command)
            done["figures"][figure.name] = {"row": [figure.command, figure.question], "drawn": asdict(drawn)}
            here.save()
            advance(1)
    if total:
        say(f"made {len(waiting_runs)} runs and {len(waiting)} figures")


def train_runs(runs: list[str], command: click.Command) -> Iterator[str]:
    """Train runs and yield each that is finished; of many, a second process trains some beside this one."""
    for run in runs:
        write_missing(Path(f"{run}.toml"), config_text(run).encode())
    waiting = list(runs)
    beside: tuple[str, subprocess.Popen[bytes]] | None = None
    two = len(runs) > ALONE and usable_cores() > 1 and bool(sys.executable)
    try:
        while waiting:
            if two and beside is None and len(waiting) > 1:
                other = waiting.pop()
                words = [sys.executable, "-m", "dragoman", "train", f"{other}.toml"]
                quiet = subprocess.DEVNULL
                beside = other, subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet)
            run = waiting.pop(0)
            call(command, ["train", f"{run}.toml"])
            yield run
            if beside is not None and (beside[1].poll() is not None or not waiting):
                name, process = beside
                if process.wait() != 0:  # this process trains it once more, and says what is wrong
                    waiting.append(name)
                else:
                    yield name
                beside = None
    finally:
        if beside is not None:
            beside[1].terminate()  # a training saves its state, and resumes from it
            beside[1].wait()


def write_missing(path: Path, content: bytes) -> None:
    """Write a sample file unless it is there: users change theirs."""
    if not path.exists():
        with atomic_write(path, follow_link=False, with_folder=True) as file:
            file.write_bytes(content)


def draw(figure: Figure, command: click.Command) -> DrawnFigure:
    text = call(command, figure.words)
    numbers = Numbers(read_numbers(figure, command), Path())
    answer = figure.compute(numbers)
    cut = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT].rpartition(chr(10))[0]}\n…"
    shown = "" if figure.file else cut.rstrip()
    return DrawnFigure(figure.title, figure.command, figure.file, shown, figure.question, answer)


def read_numbers(figure: Figure, command: click.Command) -> Any:
    """The numbers behind a figure, as JSON has them."""
    from dragoman.web import page_data

    file = figure.file or ""
    if not figure.numbers and file.endswith(".html"):
        return page_data(Path(file).read_text(encoding="utf-8"))
    made = ".numbers.json"
    asked = shlex.split(figure.numbers) or figure.words
    words = [made if word in ("NUMBERS.json", file) else word for word in asked]
    printed = call(command, words)
    if made not in words:
        return json.loads(printed)
    try:
        return json.loads(Path(made).read_text(encoding="utf-8"))
    finally:
        remove_file(Path(made))


def call(command: click.Command, words: list[str]) -> str:
    """Run a command in this process, as a user would; returns what it prints."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        command.main(list(words), prog_name="dragoman", standalone_mode=False)
    return out.buffer.getvalue().decode("utf-8")
