"""From files to text for every task that reads recordings or pictures, by the command line."""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import tarfile
import wave
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
import torch

from dragoman.auto.configure import configure
from dragoman.base import config as settings
from dragoman.base.errors import ConfigError, DataError
from dragoman.data.batching import BatchPlan, read_batch
from dragoman.data.formats.media import MediaFormat
from dragoman.inference.load import load_predictor
from dragoman.runs import Run, train
from dragoman.runs.tasks.config import build
from dragoman.runs.tasks.table import TASKS, task_of
from dragoman.training.display import Display
from tests.conftest import call, made_once, quiet_machine

pytest.importorskip("PIL", reason="pictures need pillow (extra 'media')")

RATE = 4000
TONES = {"low": 300.0, "mid": 700.0, "high": 1400.0}
COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (40, 40, 220)}


def recording(words: list[str], draw: random.Random, rate: int = RATE) -> bytes:
    """A WAV file in which every word is a tone, silence around it."""
    parts = [np.zeros(rate // 20)]
    for word in words:
        time = np.arange(int(rate * draw.uniform(0.08, 0.12))) / rate
        parts += [0.5 * np.sin(2 * np.pi * TONES[word] * time), np.zeros(rate // 20)]
    samples = np.concatenate(parts) + 0.01 * np.random.default_rng(draw.randrange(1000)).standard_normal(
        sum(map(len, parts))
    )
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32000).astype("<i2").tobytes())
    return out.getvalue()


def png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "png")
    return out.getvalue()


def line(text: str) -> bytes:
    """A line of writing: every letter is a bar at a height of its own."""
    pixels = np.full((8, 6 * len(text) + 2), 255, np.uint8)
    for place, letter in enumerate(text):
        row = 2 * "abc".index(letter)
        pixels[row : row + 2, 6 * place + 2 : 6 * place + 6] = 0
    return png(pixels)


def picture(colour: str, side: str, draw: random.Random) -> bytes:
    pixels = np.full((16, 16, 3), 128, np.uint8)
    left = draw.randint(0, 2) + (8 if side == "right" else 0)
    pixels[4:12, left : left + 6] = COLOURS[colour]
    return png(pixels)


def packed(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))


def unpack(archive: Path, member: str) -> None:
    """Write a file of an archive beside it. Python before 3.11.4 has no filters of tarfile."""
    with tarfile.open(archive) as tar, (archive.parent / member).open("wb") as file:
        shutil.copyfileobj(tar.extractfile(member), file)  # type: ignore[arg-type]


def write_data(folder: Path) -> None:
    draw = random.Random(5)
    sounds, lines, pictures = {}, {}, {}
    (folder / "writing").mkdir()
    for part, count in (("train", 60), ("test", 12)):
        rows = []
        for number in range(count):
            words = draw.choices(list(TONES), k=draw.randint(1, 4))
            sounds[f"{part}{number}.wav"] = recording(words, draw)
            rows.append(f"{part}{number}.wav\t{' '.join(words)}\n")
        (folder / f"speech.{part}.tsv").write_text("".join(rows))
        (folder / f"joint.{part}.tsv").write_text("".join(rows))
        rows = []
        for number in range(count):
            text = "".join(draw.choices("abc", k=draw.randint(2, 5)))
            lines[f"{part}{number}.png"] = line(text)
            rows.append(f"{part}{number}.png\t{text}\tsomething else\n")
        (folder / f"writing/{part}.tsv").write_text("".join(rows))
        rows = []
        for number in range(count):
            colour, side = draw.choice(list(COLOURS)), draw.choice(["left", "right"])
            pictures[f"{part}{number}.png"] = picture(colour, side, draw)
            rows.append(
                f"{part}{number}.png\ta {colour} square on grey\tthere is something {colour} here\tone {colour} thing\n"
            )
        (folder / f"captions.{part}.tsv").write_text("".join(rows))
    packed(folder / "sounds.tar.gz", sounds)
    packed(folder / "pictures.tar", pictures)
    for name, data in lines.items():
        (folder / "writing" / name).write_bytes(data)


AUDIO = {"kind": "audio", "sample_rate": RATE, "num_mels": 12, "window": 0.02, "normalise": "corpus"}
SMALL = {"kind": "convs2s", "layers": 2, "embedding": 24, "width": 24, "kernel": 3, "dropout": 0.0}
ENCODER = {
    "subsampling": {"kind": "frame-stacking", "frames": 2},
    "dropout": 0.0,
    "inner": {**SMALL, "positions": "none"},
}
CASES: dict[str, dict[str, Any]] = {
    "speech": {
        "task": "transcribe",
        "data": {"media": "sounds.tar.gz"},
        "tokenizer": {"source": AUDIO, "target": {"kind": "words"}},
        "model": {"encoder": ENCODER, "augment": {"kind": "specaugment", "time_share": 0.02, "band_share": 0.1}},
        "train": {"metric": "wer"},
    },
    "joint": {
        "task": "transcribe",
        "data": {"media": "sounds.tar.gz"},
        "tokenizer": {"source": AUDIO, "target": {"kind": "words"}},
        "model": {
            "encoder": ENCODER,
            "attention_decoder": {
                "kind": "joint",
                "decoder": {"kind": "recurrent", "embedding": 16, "width": 16, "dropout": 0.0},
            },
        },
        "train": {"metric": "wer", "steps": 60},
    },
    "lines": {
        "task": "transcribe",
        "data": {"columns": ["1", "2"]},
        "tokenizer": {"source": {"kind": "line-image", "height": 8}, "target": {"kind": "characters"}},
        "model": {"encoder": ENCODER, "augment": {"kind": "line", "shift": 1, "squeeze": 0.05}},
        "train": {"metric": "cer"},
    },
    "captions": {
        "task": "caption",
        "data": {"media": "pictures.tar"},
        "tokenizer": {"source": {"kind": "picture", "size": 16}, "target": {"kind": "words"}},
        "model": {
            "augment": {"kind": "picture", "shift": 1, "zoom": 0.1},
            "encoder": {"kind": "resnet", "channels": [8, 16], "blocks": 1, "width": 16, "dropout": 0.0},
            "decoder": {"kind": "recurrent", "embedding": 16, "width": 16, "dropout": 0.0},
        },
        "train": {"metric": "bleu", "steps": 100, "optimizer": {"learning_rate": 5e-3, "warmup": 5}},
    },
}
QUICK: dict[str, Any] = {
    "steps": 80, "validate_every": 40, "save_every": 20, "log_every": 20, "batch_tokens": 1000, "decode": 8,
    "optimizer": {"learning_rate": 2e-2, "warmup": 5},
}  # fmt: skip


def manifest(folder: Path, name: str, part: str) -> Path:
    return folder / "writing" / f"{part}.tsv" if name == "lines" else folder / f"{name}.{part}.tsv"


def table(name: str, folder: Path) -> dict[str, Any]:
    case = settings.merge({"data": {"train": str(manifest(folder, name, "train"))}, "train": QUICK}, CASES[name])
    data: Any = case["data"]
    if "media" in data:
        data["media"] = str(folder / data["media"])
    return case


@contextmanager
def trained(place: Path, names: Iterable[str]) -> Iterator[Path]:
    """A folder in which some cases were trained."""
    write_data(place)
    with quiet_machine(place / "cache"):
        for name in names:
            config = build(table(name, place))
            (place / f"{name}.toml").write_text(settings.dump(config), encoding="utf-8")
            result = call("train", place / f"{name}.toml", "--run", place / name)
            assert result.code == 0, result.err
        yield place


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Every case trained once."""

    def make(place: Path) -> None:
        with trained(place, CASES):
            pass

    place = made_once(tmp_path_factory, "media", make)
    with quiet_machine(place / "cache"):
        yield place


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_task_that_reads_files_is_tried() -> None:
    reading = {
        name
        for name, task in TASKS.items()
        if isinstance(task.example_format(build({"task": name, **task.starter.table})), MediaFormat)
    }
    assert {case["task"] for case in CASES.values()} == reading


def test_learns_and_scores(folder: Path, tmp_path: Path, name: str) -> None:
    test, out = manifest(folder, name, "test"), tmp_path / "out.txt"
    result = call("evaluate", folder / name, test, "--json", "--output", out)
    assert result.code == 0, result.err
    scores = json.loads(result.out)
    assert scores["segments"] == 12
    written = out.read_text().split("\n")[:-1]
    rows = [row.split("\t") for row in test.read_text().splitlines()]
    if name == "captions":
        assert {"bleu", "chrf", "meteor_exact_stem", "cider"} <= set(scores)
        assert scores["bleu"] > 30
        right = sum(
            any(word in text.split() for word in row[1].split() if word in COLOURS)
            for text, row in zip(written, rows, strict=True)
        )
        assert right >= 9
        assert "nrefs:3" in scores["signatures"]["bleu"]
    else:
        truths = [row[1] for row in rows]
        assert scores["wer"] == pytest.approx(jiwer.wer(truths, written))
        assert scores["cer"] == pytest.approx(jiwer.cer(truths, written))
        assert scores["cer" if name == "lines" else "wer"] < 0.15
        oracle = jiwer.process_words(truths, written)
        kinds = scores["errors"]["words"]
        edits = oracle.substitutions + oracle.insertions + oracle.deletions
        assert kinds["substitutions"] + kinds["insertions"] + kinds["deletions"] == edits
        assert kinds["reference"] == sum(len(text.split()) for text in truths)


@pytest.mark.parametrize("metric", ["meteor_exact_stem", "cider"])
def test_metrics_of_captions_choose_weights(folder: Path, tmp_path: Path, metric: str) -> None:
    """What validation measures of whole greedy captions is what an evaluation measures of them."""
    run, test = tmp_path / "run", manifest(folder, "captions", "test")
    changes = (f"data.valid={test}", f"train.metric={metric}", "train.steps=30", "train.decode=100")
    result = call("train", folder / "captions.toml", *changes, f"data.cache={tmp_path / 'cache'}", "--run", run)
    assert result.code == 0, result.err
    assert f"best {metric} " in result.err + result.out
    assert re.search(r"for validation; 48 features → vocabulary \d+\n", result.err)
    assert re.search(r"reading \d+ files: 1 so far\n", result.err)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (validated,) = (row["valid"] for row in rows if "valid" in row)
    scores = json.loads(call("evaluate", run, test, "--beam", "1", "--metric", metric, "--json").out)
    assert scores[metric] == pytest.approx(validated[metric])
    assert validated[metric] > 0


@pytest.mark.parametrize("name", ["speech", "joint"])
def test_references_without_a_path_are_counted(folder: Path, tmp_path: Path, name: str) -> None:
    """They are left out of the loss, and said to be; outputs are scored against them all the same."""
    rows = manifest(folder, name, "test").read_text().splitlines(keepends=True)[:4]
    # CTC needs a blank between equal words: 2n − 1 positions, of which a recording of some words has about 30.
    long = [f"{row.split()[0]}\t{'low ' * 100}\n" for row in rows[:2]]
    fit, all_, none = (tmp_path / f"{part}.tsv" for part in ("fit", "all", "none"))
    for path, content in ((fit, rows[1:]), (all_, [long[0], *rows[1:]]), (none, long)):
        path.write_text("".join(content))
    scores = {path: json.loads(call("evaluate", folder / name, path, "--json").out) for path in (fit, all_)}
    assert "too_long" not in scores[fit]
    assert (scores[all_]["segments"], scores[all_]["too_long"]) == (4, 1)
    for score in ("loss", "perplexity", "token_accuracy"):
        assert scores[all_][score] == pytest.approx(scores[fit][score], rel=1e-4)
    truths = [row.split("\t")[1].strip() for row in all_.read_text().splitlines()]
    assert scores[all_]["wer"] == pytest.approx(
        jiwer.wer(truths, call("predict", folder / name, all_).out.splitlines())
    )
    result = [line.split(maxsplit=3) for line in call("evaluate", folder / name, all_).out.splitlines()]
    told = "of 4 references (25.0%) are too long for this model to output: not in loss, perplexity and token accuracy"
    assert ["too", "long", "1", told] in result
    assert "too long" not in call("evaluate", folder / name, fit).out
    nothing = call("evaluate", folder / name, none).out
    assert "of 2 references (100.0%) are too long" in nothing
    assert ["perplexity", "inf"] in [line.split() for line in nothing.splitlines()]
    told = call("evaluate", folder / name, none, "--json").out
    assert "Infinity" not in told
    assert json.loads(told)["loss"] is None


def test_every_kind_of_input_gives_the_same_text(folder: Path, tmp_path: Path) -> None:
    test = manifest(folder, "speech", "test")
    names = [row.split("\t")[0] for row in test.read_text().splitlines()]
    by_manifest = call("predict", folder / "speech", test).out.splitlines()
    assert len(by_manifest) == 12
    for kind in ("jsonl", "ndjson"):
        objects = tmp_path / f"all.{kind}"
        objects.write_text("".join(json.dumps({"source": name}) + "\n" for name in names))
        assert call("predict", folder / "speech", objects).out.splitlines() == by_manifest
    list_ = tmp_path / "list.txt"
    list_.write_text("".join(f"{folder}/sounds.tar.gz::{name}\n" for name in names) + "\n")
    assert call("predict", folder / "speech", list_).out.splitlines() == [*by_manifest, ""]
    everything = call("predict", folder / "speech", folder / "sounds.tar.gz").out.splitlines()
    order = sorted([f"train{n}.wav" for n in range(60)] + [f"test{n}.wav" for n in range(12)])
    assert [everything[order.index(name)] for name in names] == by_manifest
    alone = tmp_path / "sounds"
    alone.mkdir()
    with tarfile.open(folder / "sounds.tar.gz") as tar:
        for name in names[:3]:
            member = tar.extractfile(name)
            assert member is not None
            (alone / name).write_bytes(member.read())
    expected = [by_manifest[names.index(name)] for name in sorted(names[:3])]
    assert call("predict", folder / "speech", alone).out.splitlines() == expected
    assert call("predict", folder / "speech", alone / names[0]).out.splitlines() == by_manifest[:1]
    typed = call("predict", folder / "speech", "--json", stdin=f"{alone / names[0]}\n".encode())
    assert json.loads(typed.out)["text"] == by_manifest[0]
    moved = tmp_path / "moved.tsv"  # the texts of a manifest are not looked at
    moved.write_text("".join(f"{name}\n" for name in names[:3]))
    assert call("predict", folder / "speech", moved, f"data.media={alone}").out.splitlines() == by_manifest[:3]


def test_files_of_other_kinds_are_passed_over(folder: Path, tmp_path: Path) -> None:
    """A manifest lies beside its files, and folders hold notes: neither is a recording."""
    draw = random.Random(3)
    files = {f"{name}.WAV": recording([name], draw) for name in ("mid", "high", "low")}
    others = {"test.tsv": b"mid.WAV\tmid\n", "note.txt": b"?", "seen.png": line("abc"), "._mid.WAV": b"left by a Mac"}
    alone = tmp_path / "alone"
    alone.mkdir()
    for name, data in (files | others).items():
        (alone / name).write_bytes(data)
    packed(tmp_path / "all.tar.gz", {f"inner/{name}": data for name, data in (files | others).items()})
    expected = [call("predict", folder / "speech", alone / f"{name}.WAV").out for name in ("high", "low", "mid")]
    assert len(set(expected)) == 3
    for place in (alone, tmp_path / "all.tar.gz"):
        result = call("predict", folder / "speech", place)
        assert result.code == 0, result.err
        assert result.out == "".join(expected)
        assert result.err == f"warning: {place}: 4 of 7 files skipped, no recording by name\n"
        with pytest.warns(UserWarning, match="4 of 7 files skipped"):
            found = load_predictor(folder / "speech").predict(place)
        assert [output.text for output in found] == result.lines
    manifest = tmp_path / "some.tsv"  # its names were not looked up in the archive of the run
    manifest.write_text("test1.wav\tno\ntest3.wav\tno\n")
    found = load_predictor(folder / "speech").predict(manifest)
    assert [output.text for output in found] == call("predict", folder / "speech", manifest).lines
    assert all(output.text for output in found)
    assert len(call("predict", folder / "lines", alone).out.splitlines()) == 1  # a run of pictures reads pictures
    only = tmp_path / "only"
    only.mkdir()
    (only / "test.tsv").write_text("mid.WAV\tmid\n")
    result = call("predict", folder / "captions", only)
    assert result.code == 2
    assert f"{only}: found 1 file in it, none of them a picture; expected names in .png, " in result.err
    assert len(result.err.splitlines()) == 1


def test_json_names_the_file_of_every_answer(folder: Path, tmp_path: Path) -> None:
    names = [f"test{number}.wav" for number in (7, 1, 3)]
    alone = tmp_path / "alone"
    alone.mkdir()
    with tarfile.open(folder / "sounds.tar.gz") as tar:
        for name in names:
            file = tar.extractfile(name)
            assert file is not None
            (alone / name).write_bytes(file.read())
    (alone / "test2.wav").write_bytes(b"not a sound")
    listed = tmp_path / "list.txt"
    listed.write_text(f"{alone}/test7.wav\n\n{alone}/test1.wav\n")
    packed(tmp_path / "all.tar", {name: (alone / name).read_bytes() for name in names})
    for place, expected in (
        (alone, [f"{alone}/test{number}.wav" for number in (1, 2, 3, 7)]),
        (tmp_path / "all.tar", [f"{tmp_path}/all.tar::test{number}.wav" for number in (1, 3, 7)]),
        (manifest(folder, "speech", "test"), [f"{folder}/sounds.tar.gz::test{number}.wav" for number in range(12)]),
        (listed, [f"{alone}/test7.wav", "", f"{alone}/test1.wav"]),
        (alone / "test3.wav", [f"{alone}/test3.wav"]),
    ):
        result = call("predict", folder / "speech", place, "--json", "data.skip_unreadable=true", "--batch-size", "2")
        answers = [json.loads(row) for row in result.out.splitlines()]
        assert [answer["source"] for answer in answers] == expected
        for answer in answers:  # the name is that of the answer beside it
            silent = answer["source"] in ("", f"{alone}/test2.wav")
            own = "\n" if silent else call("predict", folder / "speech", answer["source"]).out
            assert answer["text"] + "\n" == own


def test_batches_do_not_change_the_text(folder: Path, name: str) -> None:
    predictor = load_predictor(folder / name)
    example_format = task_of(predictor.config).example_format(predictor.config)
    examples = list(example_format.read(predictor.config.data, str(manifest(folder, name, "test")), True))
    places = [one.model_input for one in examples]  # type: ignore[union-attr]
    together = predictor.predict(places, batch_size=12)
    alone = predictor.predict(places, batch_size=1)
    assert [one.text for one in together] == [one.text for one in alone]
    np.testing.assert_allclose([one.score for one in together], [one.score for one in alone], atol=1e-4)


def test_ways_of_searching(folder: Path, tmp_path: Path) -> None:
    test = manifest(folder, "joint", "test")
    words = tmp_path / "words.txt"
    words.write_text("".join(row.split("\t")[1] + "\n" for row in test.read_text().splitlines()))
    for options in (
        ("method=ctc", "method.mode=attention"),
        ("method=ctc", "method.mode=joint", "method.ctc_weight=0.5"),
        ("method=ctc", "method.mode=ctc", "--beam", "4"),
        ("method=ctc", f"method.language_model.model={words}", "method.language_model.order=2"),
        ("method=ctc", "method.mode=joint", f"method.language_model.model={words}", "method.language_model.weight=0.1"),
    ):
        result = call("evaluate", folder / "joint", test, "--json", *options)
        assert result.code == 0, result.err
        assert json.loads(result.out)["wer"] < (0.9 if "method.mode=attention" in options else 0.5), options
    # A language model that has seen one text alone, with enough weight, hears nothing else.
    words.write_text("high high\n")
    terms = tmp_path / "terms.tsv"
    terms.write_text("low\thigh\n")
    strong = (
        "method=ctc",
        f"method.language_model.model={words}",
        "method.language_model.weight=300",
    )  # Kneser-Ney leaves unseen words a lot
    assert set(call("predict", folder / "joint", test, "--beam", "8", *strong).out.splitlines()) == {"high high"}
    for name, options, wrong in (
        ("speech", ("method=ctc", "method.mode=attention"), "needs a model with CTC and a decoder"),
        ("speech", ("method.ctc_weight=0.5",), "method.ctc_weight needs method=ctc"),
        ("speech", ("method.language_model.order=2",), "needs method=ctc"),
        ("captions", ("method=ctc", "method.mode=ctc"), 'goes with task = "transcribe"'),
        ("speech", ("method=ctc", "method.mode=joint", "--sample"), "expected one of them"),
        ("speech", ("search.stop=certain",), "found stop, but this model outputs all tokens at once"),
        ("speech", ("constraints.placeholders=true",), "placeholders: needs the text of a source"),
        ("captions", (f"constraints.terminology={terms}",), "terminology: needs the text of a source"),
        ("captions", ("search.diversity_penalty=0.3",), "diversity_penalty: found 0.3, expected beam_groups above 1"),
    ):
        result = call("predict", folder / name, manifest(folder, name, "test"), *options)
        assert result.code != 0
        assert wrong in result.err, result.err


def test_alignments_are_shown(folder: Path) -> None:
    result = call(
        "evaluate",
        folder / "lines",
        manifest(folder, "lines", "test"),
        "evaluation.alignment=true",
        "evaluation.characters=true",
    )
    assert result.code == 0, result.err
    assert "all lines:" in result.out
    assert "characters" in result.out


@pytest.mark.slow  # other tasks do the same in less time
def test_goes_on_exactly_after_a_stop(folder: Path, tmp_path: Path, name: str) -> None:
    """Augmentation follows from the seed and the step, so a run that was stopped ends with the same weights."""
    steps = int(settings.as_table(build(table(name, folder)))["train"]["steps"])  # type: ignore[index]
    whole = Run(folder / name)
    config = build({**table(name, folder)})
    first = build(settings.merge(table(name, folder), {"train": {"steps": steps // 2}}))
    # The schedule looks at no last step, so half a run is the first half of a whole one.
    train(first, tmp_path / "run", Display(quiet=True))
    train(config, tmp_path / "run", Display(quiet=True))
    weights = [
        run.model(torch.device("cpu"), run.folder / "checkpoints" / f"{steps:08d}" / "weights.safetensors")
        for run in (whole, Run(tmp_path / "run"))
    ]
    for (key, mine), theirs in zip(weights[0].named_parameters(), weights[1].parameters(), strict=True):
        assert torch.equal(mine, theirs), key


def test_augmentation_is_for_training_alone(folder: Path) -> None:
    config = build(table("captions", folder))
    corpus = task_of(config).prepare(config)
    model = task_of(config).model(config, corpus.source_tokenizer, corpus.target_tokenizer)
    plan = BatchPlan(corpus.train, 1000, 1, collator=corpus.collator)
    batch = read_batch(corpus.train, plan.epoch(0)[0], plan)
    assert batch.source.data.dtype == torch.uint8
    model.eval()
    assert model(batch).total == model(batch).total
    model.train()
    losses = set()
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.add(float(model(batch).total.detach()))
    assert len(losses) == 2
    # Each of three captions is an example, but a picture is stored once.
    assert len(corpus.train) + len(corpus.valid) == 180
    assert len(corpus.train.source.column) == 60  # type: ignore[attr-defined]


# ---------------------------------------------------------------------- what is wrong with data


def faulty(folder: Path) -> dict[str, bytes]:
    draw = random.Random(1)
    good = recording(["low", "mid"], draw)
    files = {"good.wav": good, "good2.wav": recording(["high"], draw), "good3.wav": recording(["mid"], draw)}
    empty = io.BytesIO()
    with wave.open(empty, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
    files |= {"empty.wav": empty.getvalue(), "rate.wav": recording(["low"], draw, 8000), "noise.wav": b"not a sound"}
    files |= {"nothing.wav": b"", "cut.wav": good[: len(good) // 2]}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return files


FAULTS = {
    "empty.wav": ("without samples", "empty-file"),
    "rate.wav": ("found 8000 samples a second, expected 4000", "wrong-rate"),
    "noise.wav": ("cannot be read as a recording", "unreadable-file"),
    "nothing.wav": ("the file is empty", "unreadable-file"),
    "cut.wav": ("cut short", "unreadable-file"),
    "gone.wav": ("found no such file", "missing-file"),
}


@pytest.mark.parametrize("wrong", FAULTS)
def test_a_file_that_cannot_be_used_stops_and_is_named(folder: Path, tmp_path: Path, wrong: str) -> None:
    faulty(tmp_path)
    rows = f"good.wav\tlow mid\ngood2.wav\thigh\n{wrong}\tlow\ngood3.wav\tmid\n"
    (tmp_path / "all.tsv").write_text(rows)
    case = table("speech", folder) | {"data": {"train": str(tmp_path / "all.tsv"), "cache": str(tmp_path / "cache")}}
    with pytest.raises(DataError) as error:
        task_of(build(case)).prepare(build(case))
    assert str(tmp_path / "all.tsv") + ":3: " in str(error.value)
    assert str(tmp_path / wrong) in str(error.value)
    assert FAULTS[wrong][0] in str(error.value)
    skipping = settings.merge(case, {"data": {"faults": "skip"}})
    corpus = task_of(build(skipping)).prepare(build(skipping))
    assert corpus.report["faults"] == {FAULTS[wrong][1]: 1}
    assert len(corpus.train) + len(corpus.valid) == 3
    # An evaluation of a part must not pass for one of the whole, and a prediction must keep its lines in place.
    result = call("evaluate", folder / "speech", tmp_path / "all.tsv", f"data.media={tmp_path}")
    assert result.code != 0
    assert "all.tsv:3: " in result.err
    output = tmp_path / "out.txt"
    options = (f"data.media={tmp_path}", "data.skip_unreadable=true")
    result = call("evaluate", folder / "speech", tmp_path / "all.tsv", "--json", "--output", output, *options)
    assert result.code == 0, result.err
    assert (json.loads(result.out)["segments"], json.loads(result.out)["unreadable"]) == (3, 1)
    lines = output.read_text().split("\n")[:-1]
    assert [bool(text) for text in lines] == [True, True, False, True]
    result = call("predict", folder / "speech", tmp_path / "all.tsv", f"data.media={tmp_path}")
    assert result.code != 0
    assert f"all.tsv:3: {tmp_path / wrong}" in result.err
    result = call("predict", folder / "speech", tmp_path / "all.tsv", *options)
    assert result.out.split("\n")[:-1] == lines
    assert "1 input could not be read; each has an empty line" in result.err


def test_files_left_out_are_named_and_the_rest_counted(folder: Path, tmp_path: Path) -> None:
    faulty(tmp_path)
    wrong = ["noise.wav", "gone.wav", "cut.wav", "nothing.wav", "empty.wav"]
    (tmp_path / "all.tsv").write_text("".join(f"{name}\tlow mid\n" for name in ("good.wav", *wrong)))
    for command, became in (("predict", "each has an empty line"), ("evaluate", "no score counts them")):
        result = call(
            command, folder / "speech", tmp_path / "all.tsv", f"data.media={tmp_path}", "data.skip_unreadable=true"
        )
        assert result.code == 0, result.err
        told = result.err.splitlines()
        assert len(told) == 5
        for number, (line_, name) in enumerate(zip(told[:3], wrong[:3], strict=True), 2):
            assert line_.startswith(f"left out: {tmp_path}/all.tsv:{number}: {tmp_path / name}: ")
        assert told[3:] == ["left out: (and 2 more)", f"5 inputs could not be read; {became}"]
        (tmp_path / "good.tsv").write_text("good.wav\tlow mid\n")
        result = call(
            command, folder / "speech", tmp_path / "good.tsv", f"data.media={tmp_path}", "data.skip_unreadable=true"
        )
        assert (result.code, result.err) == (0, "")
    options = (f"data.media={tmp_path}", "data.skip_unreadable=true", "--json")
    rows = [
        json.loads(line) for line in call("predict", folder / "speech", tmp_path / "all.tsv", *options).out.splitlines()
    ]
    assert "unreadable" not in rows[0]
    for row, name in zip(rows[1:], wrong, strict=True):
        assert row["text"] == ""
        assert row["unreadable"].startswith(f"{tmp_path / name}: ")


def test_a_missing_transcript_and_a_broken_picture_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(np.zeros((16, 16, 3), np.uint8)))
    (tmp_path / "b.png").write_bytes(png(np.ones((16, 16, 3), np.uint8)))
    (tmp_path / "broken.png").write_bytes(png(np.zeros((16, 16, 3), np.uint8))[:40])
    (tmp_path / "all.tsv").write_text("a.png\tone\nb.png\ttwo\na.png\t\nbroken.png\tthree\n")
    case = table("captions", folder) | {"data": {"train": str(tmp_path / "all.tsv"), "cache": str(tmp_path / "cache")}}
    with pytest.raises(DataError, match=r"all.tsv:3: the target is empty.*all.tsv:4: .*broken.png: cannot be read"):
        task_of(build(case)).prepare(build(case))
    result = call("check", (tmp_path / "x.toml"))
    (tmp_path / "x.toml").write_text(settings.dump(build(case)))
    result = call("check", tmp_path / "x.toml")
    assert result.code != 0
    assert "all.tsv:3" in result.out + result.err
    assert "broken.png" in result.out + result.err
    skipping = settings.merge(case, {"data": {"faults": "skip"}})
    corpus = task_of(build(skipping)).prepare(build(skipping))
    assert corpus.report["faults"] == {"empty-side": 1, "unreadable-file": 1}


def test_the_store_follows_the_bytes_of_the_files(folder: Path, tmp_path: Path) -> None:
    files = faulty(tmp_path)
    (tmp_path / "all.tsv").write_text("good.wav\tlow mid\ngood2.wav\thigh\n")
    config = build(
        table("speech", folder) | {"data": {"train": str(tmp_path / "all.tsv"), "cache": str(tmp_path / "cache")}}
    )
    first = task_of(config).prepare(config).report["fingerprint"]
    assert task_of(config).prepare(config).report["fingerprint"] == first
    (tmp_path / "good.wav").write_bytes(files["good3.wav"])
    assert task_of(config).prepare(config).report["fingerprint"] != first


def test_a_list_names_its_line_and_bytes_are_no_list(folder: Path, tmp_path: Path) -> None:
    faulty(tmp_path)
    (tmp_path / "list.txt").write_text(f"{tmp_path}/good.wav\n\n{tmp_path}/noise.wav\n")
    result = call("predict", folder / "speech", tmp_path / "list.txt")
    assert f"list.txt:3: {tmp_path}/noise.wav: cannot be read as a recording (" in result.err
    assert "BytesIO" not in result.err
    (tmp_path / "good.data").write_bytes((tmp_path / "good.wav").read_bytes())
    answers = [call("predict", folder / "speech", tmp_path / f"good.{end}").out for end in ("wav", "data")]
    assert answers[0] == answers[1] != ""


def test_a_damaged_archive_is_noticed_by_its_checksum(folder: Path, tmp_path: Path) -> None:
    """Whatever tarfile makes of the bytes: damage within a recording would be heard as noise."""
    data = bytearray((folder / "sounds.tar.gz").read_bytes())
    data[-6] ^= 255  # the checksum itself, so that everything else can be read
    (tmp_path / "sounds.tar.gz").write_bytes(data)
    result = call("predict", folder / "speech", f"{tmp_path}/sounds.tar.gz::test0.wav")
    assert result.code == 2
    assert "sounds.tar.gz: the archive is damaged or cut short" in result.err


def test_large_pictures_give_no_warning_and_fractions_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    from PIL import Image

    from dragoman.data.media.images import PictureConfig

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200)  # refused from twice as many on
    reader = PictureConfig(size=8)
    assert reader.decode(png(np.zeros((16, 16, 3), np.uint8)), "x").shape == (8, 24)
    with pytest.raises(DataError, match=r"large.png: cannot be read as an image .*exceeds limit"):
        reader.decode(png(np.zeros((32, 32, 3), np.uint8)), "large.png")
    out = io.BytesIO()
    Image.new("F", (4, 4)).save(out, "TIFF")
    with pytest.raises(DataError, match="floating-point pixels, expected whole numbers"):
        reader.decode(out.getvalue(), "x.tif")


# ---------------------------------------------------------------------- the rest


def test_a_manifest_is_enough(folder: Path, tmp_path: Path) -> None:
    """`train FILE task=…` chooses how files are read by the files themselves."""
    for name, kind in (("speech", "audio"), ("lines", "line-image"), ("captions", "picture")):
        media = table(name, folder)["data"].get("media", "")
        overrides = [f"task={CASES[name]['task']}", f"data.media={media}"]
        overrides += ['data.columns=["1", "2"]'] if name == "lines" else []
        config, reasons = configure(str(manifest(folder, name, "train")), overrides)
        assert (config.tokenizer.source.kind, len(reasons)) == (kind, 2)
        assert kind != "audio" or config.tokenizer.source.sample_rate == RATE  # type: ignore[union-attr]
        if kind == "line-image":  # what the files are decides which settings there are
            own, _ = configure(str(manifest(folder, name, "train")), [*overrides, "tokenizer.source.height=32"])
            assert (own.tokenizer.source.kind, own.tokenizer.source.height) == (kind, 32)  # type: ignore[union-attr]
            with pytest.raises(ConfigError, match=r"tokenizer.source.sample_rate: no such setting for kind line-image"):
                configure(str(manifest(folder, name, "train")), [*overrides, "tokenizer.source.sample_rate=9"])
        for wrong, expected in (
            ("tokenizer.source.kind=audoi", "Did you mean 'audio'"),
            ("data.media=3", "expected text"),
        ):
            with pytest.raises(ConfigError, match=expected):
                configure(str(manifest(folder, name, "train")), [*overrides, wrong])
    faulty(tmp_path)
    (tmp_path / "all.tsv").write_text("gone.wav\tlow\ngood2.wav\thigh\ngood3.wav\tmid\n")
    with pytest.raises(DataError, match=r"all.tsv:1: .*gone.wav: found no such file"):
        configure(str(tmp_path / "all.tsv"), ["task=transcribe"])
    config, _ = configure(str(tmp_path / "all.tsv"), ["task=transcribe", "data.faults=skip"])
    assert config.tokenizer.source.sample_rate == RATE  # type: ignore[union-attr]


def test_a_place_of_files_that_is_not_there_is_named_itself(folder: Path, tmp_path: Path) -> None:
    gone, test = tmp_path / "gone.tar.gz", manifest(folder, "speech", "test")
    (tmp_path / "sounds.zip").write_bytes(b"PK")
    for media, found in ((gone, "which does not exist"), (tmp_path / "sounds.zip", "which is neither")):
        expected = f"found '{media}', {found}; expected a folder or an archive (.tar, .tar.gz, .tgz)\n"
        for command in ("predict", "evaluate"):
            result = call(command, folder / "speech", test, f"data.media={media}", "data.skip_unreadable=true")
            assert (result.code, result.err) == (2, f"dragoman: data.media: {expected}")
        for faults in ("stop", "skip"):
            case = settings.merge(table("speech", folder), {"data": {"media": str(media), "faults": faults}})
            with pytest.raises(DataError, match=r"^data\.media: found ") as error:
                task_of(build(case)).prepare(build(case))
            assert str(error.value) + "\n" == f"data.media: {expected}"
            with pytest.raises(DataError, match=r"^data\.media: found "):
                configure(str(test), ["task=transcribe", f"data.media={media}", f"data.faults={faults}"])
    moved = shutil.copytree(folder / "speech", tmp_path / "moved")
    settings_ = (moved / "config.toml").read_text()
    (moved / "config.toml").write_text(settings_.replace(str(folder / "sounds.tar.gz"), str(gone)))
    result = call("predict", moved, test)
    assert result.code == 2
    assert result.err.startswith(f"dragoman: data.media of the run (data.media=PATH names another): found '{gone}', ")
    assert "data.media: found " in call("evaluate", moved, test).err
    assert call("predict", moved, test, f"data.media={folder / 'sounds.tar.gz'}").code == 0
    whole = tmp_path / "whole.tsv"  # names that stand for themselves need no such place
    whole.write_text(f"{folder}/sounds.tar.gz::test0.wav\tlow\n")
    assert call("predict", moved, whole).code == call("evaluate", moved, whole).code == 0


@pytest.mark.parametrize(
    ("name", "options"), [("speech", ["tokenizer.source.sample_rate=4000"]), ("lines", []), ("captions", [])]
)
def test_nothing_is_chosen_by_a_file_that_does_not_exist(
    folder: Path, tmp_path: Path, name: str, options: list[str]
) -> None:
    """The first file is looked for before anything is said of it, and where it was looked for is told."""
    alone = tmp_path / "all.tsv"
    rows = [row.split("\t") for row in manifest(folder, name, "test").read_text().splitlines()]
    alone.write_text("".join(f"{row[0]}\t{row[1]}\n" for row in rows))
    asked = [f"task={CASES[name]['task']}", *options]
    result = call("train", alone, *asked, "--run", tmp_path / "run")
    assert result.code == 2
    told = "data.media, the folder or archive that files are in, is not set: names are relative to the manifest"
    assert result.err == f"dragoman: {alone}:1: {tmp_path / rows[0][0]}: found no such file; {told}\n"
    assert "source:" not in result.out
    with pytest.raises(DataError, match=f"found no such file; data.media, .* is '{tmp_path}'"):
        configure(str(alone), [*asked, f"data.media={tmp_path}"])
    with pytest.raises(DataError, match=r"none of 12 files can be read; the last: .*; data.media, "):
        configure(str(alone), [*asked, "data.faults=skip"])


def test_check_tries_what_can_be_read(folder: Path, tmp_path: Path) -> None:
    faulty(tmp_path)
    rows = "good.wav\tlow mid\ngone.wav\tlow\ngood2.wav\thigh\ngood3.wav\tmid\n" + "good.wav\tlow mid\n" * 20
    (tmp_path / "all.tsv").write_text(rows)
    data = {"train": str(tmp_path / "all.tsv"), "cache": str(tmp_path / "cache"), "faults": "skip"}
    (tmp_path / "x.toml").write_text(settings.dump(build(table("speech", folder) | {"data": data})))
    result = call("check", tmp_path / "x.toml")
    assert result.code == 0, result.err
    assert "1 missing-file" in result.out
    assert re.search(r"lengths: source .* frames; \d+ features\n", result.out)
    assert "decoded" in result.out


def test_what_needs_text_is_refused(folder: Path, tmp_path: Path) -> None:
    place = f"{folder}/pictures.tar::test0.png"
    (tmp_path / "empty.txt").write_text("\n")
    sound = f"{folder}/sounds.tar.gz::test0.wav"
    for arguments, wrong in (
        (("calibrate", folder / "captions"), "calibrate needs a run that reads text"),
        (("bench", folder / "captions"), "bench needs a run that reads text"),
        (("probe", folder / "speech"), "probe needs a run that reads text"),
        (("align", folder / "captions", manifest(folder, "captions", "test")), 'needs a run of task = "transcribe"'),
        (
            ("predict", folder / "captions", place, f"rerank.runs={folder / 'captions'}"),
            "needs a reverse run or a language",
        ),
        (("attention", folder / "captions", tmp_path / "gone.png"), f"dragoman: {tmp_path}/gone.png: found no such"),
        (
            (
                "predict",
                folder / "speech",
                sound,
                "method=ctc",
                f"method.language_model.model={tmp_path / 'empty.txt'}",
            ),
            "empty.txt: found no text",
        ),
        (
            (
                "predict",
                folder / "speech",
                sound,
                "method=ctc",
                "method.language_model.model=x.txt",
                "method.language_model.weight=nan",
            ),
            "method.language_model.weight: found nan, expected a finite number",
        ),
    ):
        result = call(*arguments)
        assert result.code == 2, result
        assert wrong in result.err, result.err
        assert len(result.err.splitlines()) == 1
    assert "skip_unreadable" not in call("attention", folder / "captions", tmp_path / "gone.png").err


def test_attention_is_drawn_over_a_picture(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    place = f"{folder}/pictures.tar::test0.png"
    result = call("attention", folder / "captions", place, "--output", tmp_path / "seen.png")
    assert result.code == 0, result.err
    assert (tmp_path / "seen.png").stat().st_size > 2000
    assert call("attention", folder / "captions", place, "--output", tmp_path / "seen.svg").code == 0
    drawn = re.findall(
        "<!-- (.*?) -->", (tmp_path / "seen.svg").read_text(), re.DOTALL
    )  # every text, before its outlines
    assert "test0.png" in drawn
    assert any(text.split()[:2] == ["attention", "weight"] for text in drawn)
    assert "0" in drawn
    assert any(re.fullmatch(r"\w+  \d+%", text) for text in drawn)


@pytest.mark.slow
def test_a_long_caption_is_drawn_whole(tmp_path: Path, monkeypatch: Any) -> None:
    """Its letters stay inside the drawing, and what stands between dollars is no formula."""
    pytest.importorskip("matplotlib")
    from dragoman.inspect.views import media_plots as pictures
    from dragoman.inspect.views.figures import save_plot

    drawn: list[Any] = []
    monkeypatch.setattr(pictures, "save_plot", lambda drawing, path: drawn.append(drawing) or save_plot(drawing, path))
    words = ["a", "dog", "that", "costs", "$5", "or", "$6", "runs"] * 6
    pictures.draw_attention_over_image(
        np.zeros((8, 8, 3), np.uint8), words, torch.rand(len(words), 2, 2), tmp_path / "x.png", " ".join(words)
    )
    drawn[0].draw_without_rendering()
    box = drawn[0]._suptitle.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= drawn[0].bbox.x1
    assert not drawn[0]._suptitle.get_parse_math()


READS = {
    "speech": ("12 features a frame of audio, 100 frames a second", "frames"),
    "joint": ("12 features a frame of audio, 100 frames a second", "frames"),
    "lines": ("8 pixels a column of a line of text, 0 is background and 1 ink", "columns"),
    "captions": ("pictures of 16 × 16 pixels, 48 numbers a row: red, green and blue", "rows"),
}


def test_info_and_check(folder: Path, name: str) -> None:
    found = json.loads(call("info", folder / name, "--json").out)
    assert found["task"] == CASES[name]["task"]
    assert found["vocabulary"]["source"][0] == CASES[name]["tokenizer"]["source"]["kind"]
    reads, unit = READS[name]
    result = call("info", folder / name).out
    assert f"\nsource: {reads}\n" in result
    assert "source vocabulary" not in result
    assert "target vocabulary: " in result
    assert f" pairs, {found['data']['train']['source_tokens']:,} source {unit} and " in result
    size = 16 if name == "captions" else 8
    assert f"(output shapes for 2 sources of {size} {unit}, 2 targets of 7 tokens)" in result
    result = call("check", folder / f"{name}.toml")
    assert result.code == 0, result.err


def test_sampling_follows_from_the_picture(folder: Path) -> None:
    test = manifest(folder, "captions", "test")
    draws = [call("predict", folder / "captions", test, "--sample", "--seed", seed).out for seed in ("1", "1", "2")]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"tokenizer": {"source": {"kind": "picture"}, "target": {"kind": "words"}}}, "reads"),
        ({"tokenizer": {"source": AUDIO}}, "tokenizer.target: found nothing"),
        ({"model": {"augment": {"kind": "picture"}}}, "does not go with"),
        ({"train": {"objective": {"kind": "minimum-risk"}}}, "samples token by token"),
        ({"task": "translate"}, "model.kind"),
    ],
)
def test_settings_that_cannot_be(folder: Path, change: dict[str, Any], expected: str) -> None:
    case = table("speech", folder)
    if "tokenizer" in change:
        del case["tokenizer"]
    if "task" in change:
        case["model"] = {"kind": "transcriber", **case["model"]}
    with pytest.raises(ConfigError, match=expected):
        build(settings.merge(case, change))
    with pytest.raises(ConfigError, match="goes with task"):
        build({"data": {"train": "x.tsv", "media": "y"}})


def test_inspect_shows_where_it_looks(folder: Path, name: str, tmp_path: Path) -> None:
    first = manifest(folder, name, "test").read_text(encoding="utf-8").split("\t")[0]
    run = load_predictor(folder / name, "cpu")
    place = {"lines": f"{folder}/writing/{first}", "captions": f"{folder}/pictures.tar::{first}"}
    path = place.get(name, f"{folder}/sounds.tar.gz::{first}")
    result = call("inspect", run.run.folder, path, "--output", tmp_path / "numbers.json", "--device", "cpu")
    assert result.code == 0, result.err
    views = {view["kind"]: view["data"] for view in json.loads((tmp_path / "numbers.json").read_text())["views"]}
    assert {"overview", "media", "layers"} <= set(views)
    if name == "speech":
        assert views["media"]["emissions"] is not None
        assert views["tables"]["tables"][0]["name"] == "CTC lattice"
