"""Where the words of a transcript stand in its recording or line, by the command line."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dragoman
from dragoman.inference.align.ctc_alignment import MediaFeatures, force_align, read_media
from dragoman.inference.load import load_predictor
from tests.conftest import call
from tests.runs.tasks.test_media_end_to_end import RATE, manifest, recording, trained


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with trained(tmp_path_factory.mktemp("places"), ["speech", "joint", "lines"]) as place:
        yield place


def tones(words: list[str], seed: int) -> tuple[bytes, list[tuple[float, float]]]:
    """A recording, and the seconds from which to which each of its words sounds."""
    draw, spans, time = random.Random(seed), [], 0.05
    for _ in words:
        length = int(RATE * draw.uniform(0.08, 0.12)) / RATE
        spans.append((time, time + length))
        time += length + 0.05
    return recording(words, random.Random(seed)), spans


@pytest.mark.parametrize("run", ["speech", "joint"])
def test_words_are_placed_where_they_sound(folder: Path, tmp_path: Path, run: str) -> None:
    truth = {}
    for number, words in enumerate((["low", "high", "mid"], ["mid"], ["high", "high", "low", "mid"])):
        sound, spans = tones(words, number)
        (tmp_path / f"{number}.wav").write_bytes(sound)
        truth[f"{number}.wav"] = list(zip(words, spans, strict=True))
    rows = [f"{name}\t{' '.join(word for word, _ in result)}\n" for name, result in truth.items()]
    (tmp_path / "texts.tsv").write_text("".join(rows))
    result = call("align", folder / run, tmp_path / "texts.tsv", "--media", tmp_path)
    assert result.code == 0, result.err
    found = [row.split("\t") for row in result.out.splitlines()]
    assert [row[:2] for row in found] == [[name, word] for name, row in truth.items() for word, _ in row]
    sounding = [span for row in truth.values() for _, span in row]
    for (_, _, start, end, probability), (first, last) in zip(found, sounding, strict=True):
        assert first - 0.03 < (float(start) + float(end)) / 2 < last + 0.03
        assert float(start) < float(end)
        assert 0 < float(probability) <= 1
    alone = call("align", folder / run, tmp_path / "texts.tsv", "--media", tmp_path, "--batch-size", "1")
    assert alone.out == result.out
    objects = [
        json.loads(row)
        for row in call("align", folder / run, tmp_path / "texts.tsv", "--media", tmp_path, "--json").out.splitlines()
    ]
    assert [one["unit"] for one in objects] == ["seconds"] * 3
    assert [word["word"] for one in objects for word in one["words"]] == [row[1] for row in found]
    assert [f"{word['start']:.3f}" for one in objects for word in one["words"]] == [row[2] for row in found]
    given = [(str(tmp_path / name), " ".join(word for word, _ in row)) for name, row in truth.items()]
    predictor = load_predictor(folder / run)
    placed = predictor.force_align(given)
    options = dragoman.AlignOptions(media=str(tmp_path))
    manifest_file = dragoman.align(predictor, tmp_path / "texts.tsv", options)
    assert [row.split("\t") for one in manifest_file for row in one.lines()] == found
    assert [
        f"{place.start:.3f}" for one in placed for _, place in one.words if place is not None
    ] == [row[2] for row in found]  # fmt: skip
    heard = call("align", folder / run, tmp_path, "--predict")  # what the run writes, of the files of a folder
    assert "texts.tsv" not in heard.out
    outputs = call("predict", folder / run, tmp_path).out.split()
    assert [row.split("\t")[1] for row in heard.out.splitlines()] == outputs


def test_letters_are_placed_in_pixels_of_the_image_as_it_is(folder: Path, tmp_path: Path) -> None:
    from PIL import Image

    name, text = manifest(folder, "lines", "test").read_text().split("\t")[:2]
    larger = Image.open(folder / "writing" / name)
    larger = larger.resize((3 * larger.width + 1, 3 * larger.height))  # whose columns are no whole pixels
    larger.save(tmp_path / "large.png")
    predictor = load_predictor(folder / "lines")
    files = read_media(predictor, [str(folder / "writing" / name), str(tmp_path / "large.png")])
    one, three = force_align(
        predictor, [file for file in files if isinstance(file, MediaFeatures)], [text, f" {text} "]
    )
    assert [piece for piece, _ in one.tokens] == list(text)
    for number, (_, place) in enumerate(one.tokens):
        assert place is not None
        assert 6 * number - 4 <= (place.start + place.end) / 2 <= 6 * number + 12  # a letter is 4 wide, from 6 n + 2
    ((word, whole),) = three.words
    assert word == text
    assert whole is not None
    assert whole.end <= larger.width
    assert three.unit == "pixels"
    assert whole.start == pytest.approx(3 * min(place.start for _, place in one.tokens if place), abs=3 * 8)


def test_texts_without_room_and_other_faults_of_placing_are_told(folder: Path, tmp_path: Path) -> None:
    row = manifest(folder, "speech", "test").read_text().splitlines()[0].split("\t")[0]
    place = f"{folder}/sounds.tar.gz::test0.wav"
    (tmp_path / "none.tsv").write_text("")
    (tmp_path / "blank.txt").write_text("\n\n")
    (tmp_path / "list.txt").write_text(f"{place}\n\ngone.wav\n")
    (tmp_path / "long.tsv").write_text(f"{row}\t{'low ' * 200}\n{row}\tlow\n")
    result = call("align", folder / "speech", tmp_path / "long.tsv")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[:200] == [f"{row}\tlow\t-\t-\t-"] * 200
    assert "-" not in lines[200].split("\t")
    assert result.err == f"too few frames for the text, so its words have no positions: {row}\n"
    first = json.loads(call("align", folder / "speech", tmp_path / "long.tsv", "--json").out.splitlines()[0])
    assert first["words"][0] == {"word": "low", "start": None, "end": None, "probability": None}
    for arguments, wrong in (
        (("align", folder / "speech"), "found nothing, expected a manifest of files and texts; or add --predict"),
        (
            ("align", folder / "speech", folder / "sounds.tar.gz"),
            "sounds.tar.gz, expected a manifest of files and text",
        ),
        (("align", folder / "speech", tmp_path / "none.tsv"), "nothing to align: no pair was read"),
        (("align", folder / "speech", tmp_path / "blank.txt", "--predict"), "blank.txt: found no name of a file"),
        (("align", folder / "speech", tmp_path / "long.tsv", "--head", "1"), "--head goes with texts"),
        (("align", folder / "speech", "x.wav", "--predict"), "x.wav: found no such file; leave such files out with"),
        (("align", folder / "speech", tmp_path / "list.txt", "--predict"), "list.txt:3: gone.wav: found no such file"),
        (("align", folder / "speech", tmp_path / "gone.tsv"), "gone.tsv: no such file"),
        (("attention", folder / "speech", place, "--tag", "de"), "--tag goes with texts"),
    ):
        result = call(*arguments)
        assert result.code == 2, result
        assert wrong in result.err, result.err
    result = call("align", folder / "speech", tmp_path / "list.txt", "--predict", "--skip-unreadable")
    assert result.code == 0, result.err
    assert result.out.startswith(f"{place}\t")
    assert "list.txt:3: gone.wav: found no such file" in result.err


def test_an_empty_transcript_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has learned nothing writes nothing; silence would look like success."""
    monkeypatch.setattr("dragoman.inference.align.verbs.transcribe", lambda predictor, paths, *rest: [""] * len(paths))
    place = f"{folder}/sounds.tar.gz::test0.wav"
    result = call("align", folder / "speech", place, "--predict")
    assert (result.code, result.out) == (0, "")
    assert result.err == f"the text is empty, so there is no word to place: {place}\n"


def test_what_the_vocabulary_does_not_know_has_no_place(folder: Path, tmp_path: Path) -> None:
    rows = manifest(folder, "speech", "test").read_text().splitlines()
    name, text = next(row.split("\t") for row in rows if " " in row)
    first, rest = text.split(" ", 1)
    (tmp_path / "known.tsv").write_text(f"{name}\t{text}\n")
    (tmp_path / "unknown.tsv").write_text(f"{name}\t {first} Zounds {rest}\n")
    known, result = (call("align", folder / "speech", tmp_path / f"{one}.tsv") for one in ("known", "unknown"))
    assert f"{name}\tZounds\t-\t-\t-" in result.out.splitlines()
    assert [row for row in result.out.splitlines() if "Zounds" not in row] == known.out.splitlines()
    assert result.err == "no position for 1 word outside the vocabulary: Zounds\n"


def test_files_are_named_as_they_are_written(folder: Path, tmp_path: Path) -> None:
    """In a manifest as it has them, whichever text is placed; a name may hold bytes that are no text."""
    test = manifest(folder, "speech", "test")
    for more in ((), ("--predict",)):
        found = {row.split("\t")[0] for row in call("align", folder / "speech", test, *more).out.splitlines()}
        assert found <= {f"test{number}.wav" for number in range(12)}
        assert len(found) > 8
    sound, _ = tones(["low"], 1)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xe9.wav")).write_bytes(sound)
    result = call("align", folder / "speech", tmp_path, "--predict", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["source"].endswith("/b?.wav")


@pytest.mark.parametrize(
    ("run", "place", "unit"),
    [("speech", "sounds.tar.gz::test0.wav", "seconds"), ("lines", "writing/test0.png", "pixels")],
)
def test_what_was_heard_or_read_is_drawn(folder: Path, tmp_path: Path, run: str, place: str, unit: str) -> None:
    pytest.importorskip("matplotlib")
    result = call("attention", folder / run, folder / place, "--output", tmp_path / "heard.svg")
    assert result.code == 0, result.err
    drawn = re.findall("<!-- (.*?) -->", (tmp_path / "heard.svg").read_text(), re.DOTALL)
    text = call("predict", folder / run, folder / place).out.strip()
    assert unit in drawn
    assert any(f"{place.rpartition('::')[2].rpartition('/')[2]}: {text}" == one for one in drawn)
    assert all(drawn.count(word) >= text.split().count(word) for word in text.split())
    several = call("attention", folder / run, folder / place, folder / place, "--output", tmp_path / "heard.png")
    assert several.out.splitlines() == [str(tmp_path / f"heard-{number}.png") for number in (1, 2)]
