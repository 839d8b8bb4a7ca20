"""docs/how-to/lectures.md: every command runs and writes its figure; those that need much time are slow."""

from __future__ import annotations

import contextlib
import random
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.base import config as settings
from dragoman.runs import train
from dragoman.runs.tasks.config import build
from tests.conftest import call, quiet_machine
from tests.runs.tasks import test_media_end_to_end as media
from tests.web.test_every_task import CASES, MEDIA, RECURRENT, table, write_data

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "lectures.md"
COMMANDS = re.findall(r"^\| .* \| `dragoman (.*)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
# Where the page has a run of the names on the left, the tests have the case on the right.
RUNS = {"phrases": "phrases", "aligner": "aligner", "hmm": "hmm", "kalman": "kalman", "ngrams": "n-grams",
        "masked": "masked", "transformer": "transformer", "speech": "speech", "captions": "captions", "video": "video",
        "sounds": "sounds"}  # fmt: skip
ATTENDING = {"kind": "recurrent", "embedding": 8, "width": 8, "dropout": 0.0}
PAIRS: dict[str, Any] = {"encoder": {**RECURRENT}, "decoder": ATTENDING}
SAMPLED = {**PAIRS, "forcing": {"kind": "linear"}}


def quick(command: str) -> bool:
    """Whether a command needs no run but the Transformer, which one training gives."""
    runs = set(re.findall(r"runs/(\w+)", command))
    return runs <= {"transformer"} and not re.search("bench|ladder|tokenizers", command)


@pytest.fixture(scope="module")
def lecture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with all files of the page."""
    place = tmp_path_factory.mktemp("lectures")
    write_data(place)
    media.write_data(place)
    for archive, member, name in (
        ("sounds.tar.gz", "test0.wav", "hello.wav"),
        ("pictures.tar", "test0.png", "beach.png"),
    ):
        media.unpack(place / archive, member)
        shutil.copy(place / member, place / name)
    draw = random.Random(2)
    rows = [line.split("\t") for line in (place / "pairs.tsv").read_text().splitlines()[:20]]
    more = [
        " ".join(draw.choices(["der", "kleine", "Hund", "Mann", "läuft"], k=draw.randint(4, 7))) for _ in range(240)
    ]
    (place / "more.tsv").write_text("".join(f"{text}\t{text.upper()}\n" for text in more))
    (place / "test.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    for name, column in (("source", 0), ("ref", 1)):
        (place / f"{name}.txt").write_text("".join(f"{row[column]}\n" for row in rows))
    for units in ("words", "characters"):
        own = {**table("transformer", place), "tokenizer": {"source": {"kind": units}}}
        (place / f"{units}.toml").write_text(settings.dump(build(own)))
    (place / "probes.toml").write_text(
        '[[probe]]\ntemplates = ["der {dog} läuft"]\nslots = { dog = ["Hund", "Mann"] }\n'
        'forms = { a = ["HUND"], b = ["MANN"] }\n'
    )
    (place / "out.txt").write_text("".join(f"{row[1]} X\n" for row in rows))
    (place / "other.txt").write_text("".join(f"{row[1][::-1]}\n" for row in rows))
    with quiet_machine(place / "cache"), contextlib.chdir(place):
        yield place


def needed_run(place: Path, name: str) -> None:
    folder = place / "runs" / name
    if folder.exists():
        return
    if name in RUNS:
        own = table(RUNS[name], place)
    else:
        model = {"rnn": PAIRS, "sampled": SAMPLED}[name]
        other = {
            "data": {"train": str(place / "more.tsv"), "holdout": 60},
            "train": {"steps": 60, "validate_every": 60, "optimizer": {"learning_rate": 0.01}},
        }
        own = {**settings.merge(table("transformer", place), other), "model": model}
    train(build(own), folder)


@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=() if quick(one) else pytest.mark.slow, id=one[:60]) for one in COMMANDS]
)
def test_the_command_draws_its_figure(lecture: Path, command: str) -> None:
    for name in re.findall(r"runs/(\w+)", command):
        needed_run(lecture, name)
    arguments = shlex.split(
        command.replace("--minutes 10", "--steps 2").replace("--lengths", "--lengths --max-length 128")
    )
    result = call(*arguments)
    assert result.code == 0, result.err
    written = re.search(r"(?:-o|--out|--plot) (\S+)", command)
    if written:
        assert (lecture / written[1]).stat().st_size > 1000
    else:
        assert len(result.lines) > 5


def test_the_page_has_figures() -> None:
    assert len(COMMANDS) > 25
    assert sum(map(quick, COMMANDS)) > 8
    assert set(RUNS.values()) <= {*CASES, *MEDIA}
