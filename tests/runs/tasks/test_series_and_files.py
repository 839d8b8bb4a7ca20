"""Series, recordings and pictures to labels, numbers and tags: from files to scores, as one command after another."""

from __future__ import annotations

import json
import math
import random
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.base import config as settings
from dragoman.base.errors import ConfigError
from dragoman.data.formats.labels import frame_tags
from dragoman.data.media.audio import AudioConfig
from dragoman.data.tokenizers.numbers import NumberScaler, NumbersConfig
from dragoman.inference.load import load_run
from dragoman.models.sources import SeriesInput
from dragoman.runs.tasks.config import build
from tests.conftest import call, quiet_machine

RATE = 8000


def waves(draw: random.Random, steps: int) -> tuple[str, list[tuple[float, float]]]:
    """A label, and two series of its frequency, of different scales."""
    label = draw.choice("ab")
    phase, speed = draw.uniform(0, 6), {"a": 0.5, "b": 1.2}[label]
    return label, [(math.sin(phase + speed * at), 100 + 10 * math.cos(phase + speed * at)) for at in range(steps)]


def text(series: list[tuple[float, float]]) -> str:
    return " ".join(f"{left:.4f};{right:.3f}" for left, right in series)


def write_series(folder: Path) -> None:
    draw = random.Random(3)
    both = [waves(draw, 14) for _ in range(100)]
    forecasts = [f"{text(series[:12])}\t{text(series[12:])}\n" for _, series in both]
    labels = [f"{text(series)}\t{label}\n" for label, series in both]
    tags = [
        {"source": text(series), "target": " ".join("+" if one > 0 else "-" for one, _ in series)} for _, series in both
    ]
    (folder / "regress.tsv").write_text("".join(forecasts))
    (folder / "classify.tsv").write_text("".join(labels))
    (folder / "tag.jsonl").write_text("".join(json.dumps(one) + "\n" for one in tags))


def write_recordings(folder: Path) -> None:
    """Silence, then a low or a high tone."""
    noise, labels, tags = np.random.default_rng(1), [], []
    for number in range(24):
        name, tone, silent = f"{number}.wav", 400 if number % 2 else 1500, 0.1 + 0.02 * (number % 5)
        samples = np.sin(2 * np.pi * tone * np.arange(RATE // 4) / RATE) * 8000
        samples[: int(silent * RATE)] = 0
        with wave.open(str(folder / name), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes((samples + 30 * noise.normal(size=len(samples))).astype("<i2").tobytes())
        label = "low" if number % 2 else "high"
        labels.append(f"{name}\t{label}\n")
        tags.append(f"{name}\tsilence@{silent:.2f} {label}@9\n")
    (folder / "words.tsv").write_text("".join(labels))
    (folder / "frames.tsv").write_text("".join(tags))


def write_pictures(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    noise, labels, numbers = np.random.default_rng(2), [], []
    for number in range(24):
        pixels = noise.integers(0, 40, (16, 16, 3)).astype(np.uint8)
        pixels[:, :, number % 3] += 200
        image.fromarray(pixels).save(folder / f"{number}.png")
        labels.append(f"{number}.png\t{'rgb'[number % 3]}\n")
        numbers.append(f"{number}.png\t{number % 3};{2 * (number % 3)}\n")
    (folder / "colours.tsv").write_text("".join(labels))
    (folder / "amounts.tsv").write_text("".join(numbers))


AUDIO = ("tokenizer.source.num_mels=20", "model.encoder.inner.width=24", "model.encoder.inner.layers=1",
         "model.encoder.inner.embedding=16", "model.encoder.subsampling.channels=[8,8]",
         "model.augment.kind=none")  # fmt: skip
PICTURE = ("tokenizer.source.size=16", "model.encoder.channels=[8,8]", "model.encoder.blocks=1",
           "model.encoder.width=16", "model.augment.kind=none")  # fmt: skip
# Data, task, settings, metric, and the score that training must reach.
RUNS: dict[str, tuple[str, str, tuple[str, ...], str, float]] = {
    "forecast": ("regress.tsv", "regress", ("model.pooling.kind=last", "train.steps=50"), "pearson", 0.99),
    "series": ("classify.tsv", "classify", ("model.encoder.width=16", "train.steps=40"), "accuracy", 0.95),
    "steps": ("tag.jsonl", "tag", ("model.encoder.width=16", "train.steps=40"), "accuracy", 0.8),
    "recordings": ("words.tsv", "classify", (*AUDIO, "train.steps=30"), "accuracy", 0.95),
    "frames": ("frames.tsv", "tag", (*AUDIO, "train.steps=60", "train.optimizer.learning_rate=0.01"), "accuracy", 0.85),
    "pictures": ("colours.tsv", "classify", (*PICTURE, "train.steps=30"), "accuracy", 0.95),
    "numbers": ("amounts.tsv", "regress", (*PICTURE, "train.steps=30"), "pearson", 0.8),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    where = tmp_path_factory.mktemp("sources")
    with quiet_machine(where / "cache"):
        write_series(where)
        write_recordings(where)
        write_pictures(where)
        for name, (data, task, changes, _, _) in RUNS.items():
            told = call("train", where / data, f"task={task}", *changes, "--run", where / name, "--quiet")
            assert told.code == 0, (name, told.err)
        yield where


@pytest.mark.parametrize("name", RUNS)
def test_it_learns_and_answers_alike_in_any_batch(folder: Path, name: str) -> None:
    data, _, _, metric, expected = RUNS[name]
    scores = json.loads(call("evaluate", folder / name, folder / data, "--json").out)
    assert scores[metric] >= expected, scores
    if data in ("words.tsv", "frames.tsv", "colours.tsv", "amounts.tsv"):
        names = [line.split("\t")[0] for line in (folder / data).read_text().splitlines()[:5]]
        inputs = "".join(f"{folder / name}\n" for name in names).encode()
    else:
        lines = (folder / data).read_text().splitlines()[:5]
        inputs = "".join(
            (json.loads(one)["source"] if one[0] == "{" else one.split("\t")[0]) + "\n" for one in lines
        ).encode()
    together, alone = (call("predict", folder / name, "--batch-size", size, stdin=inputs) for size in ("64", "1"))
    assert together.code == 0, together.err
    assert all(together.out.splitlines())
    if metric == "accuracy":
        assert together.out == alone.out
    else:  # up to rounding in float32
        numbers = [[float(one) for one in told.out.replace(";", " ").split()] for told in (together, alone)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-4)


def test_evaluation_scores_what_prediction_prints(folder: Path) -> None:
    told = call("predict", folder / "forecast", folder / "regress.tsv", "--json")
    rows = [json.loads(line)["values"] for line in told.out.splitlines()]
    truth = [
        [float(number) for step in line.split("\t")[1].split() for number in step.split(";")]
        for line in (folder / "regress.tsv").read_text().splitlines()
    ]
    scores = json.loads(call("evaluate", folder / "forecast", folder / "regress.tsv", "--json").out)
    assert scores["mse"] == pytest.approx(np.mean((np.array(rows) - np.array(truth)) ** 2), rel=1e-5)
    loaded: Any = load_run(folder / "forecast")  # both series share the scales of source and target
    assert loaded.source_tokenizer.shift == loaded.target_tokenizer.shift
    assert (loaded.target_tokenizer.steps, len(loaded.target_tokenizer)) == (2, 4)


def test_files_are_read_from_folders_and_manifests(folder: Path) -> None:
    from_manifest = call("predict", folder / "recordings", folder / "words.tsv", "--json")
    first = json.loads(from_manifest.out.splitlines()[0])
    assert (first["source"], set(first["probabilities"])) == (str(folder / "0.wav"), {"low", "high"})
    bad = f"{folder}/0.wav\n{folder}/none.wav\n".encode()
    refused = call("predict", folder / "recordings", stdin=bad)
    assert (refused.code, "input 2: " in refused.err) == (2, True)
    skipped = call("predict", folder / "recordings", "data.skip_unreadable=true", stdin=bad)
    assert (skipped.code, skipped.out) == (0, "high\n\n")
    manifest = folder / "some.tsv"
    manifest.write_text("0.wav\thigh\nnone.wav\tlow\n1.wav\tlow\n")
    assert "none.wav" in call("evaluate", folder / "recordings", manifest).err
    scores = json.loads(call("evaluate", folder / "recordings", manifest, "--json", "data.skip_unreadable=true").out)
    assert (scores["segments"], scores["unreadable"]) == (2, 1)


def test_frames_get_one_tag_each(folder: Path) -> None:
    config = AudioConfig(sample_rate=RATE)
    assert frame_tags("a b b", 3, config) == ["a", "b", "b"]
    assert frame_tags("a@0.02 b@0.05", 7, config) == ["a", "a", "b", "b", "b", "b", "b"]
    assert frame_tags("a@1", 2, config) == ["a", "a"]
    for wrong in ("a b", "a@x", "a@0.02 b@0.01", "@0.1"):
        assert isinstance(frame_tags(wrong, 3, config), str)
    tags = call("predict", folder / "frames", folder / "1.wav").out.split()
    loaded: Any = load_run(folder / "frames")
    frames = loaded.source_tokenizer.encode(str(folder / "1.wav"))
    assert len(tags) == len(frames)
    assert {tags[0], tags[-1]} == {"silence", "low"}


def test_wrong_shapes_are_errors_that_name_the_place(folder: Path) -> None:
    assert "input 1: found 1 numbers in a step, expected 2" in call("predict", folder / "series", stdin=b"1 2\n").err
    (folder / "three.tsv").write_text("1;2 3;4\t1;2 3;4 5;6\n")
    assert "found 3 steps, expected 2" in call("evaluate", folder / "forecast", folder / "three.tsv").err
    base: dict[str, Any] = {"task": "classify", "data": {"train": "x.tsv"}, "model": {"kind": "classifier"}}
    for change, expected in (
        ({"tokenizer": {"source": {"kind": "audio"}}}, 'model.encoder.kind = "recurrent" reads text or numbers'),
        ({"model": {"encoder": {"kind": "resnet"}}}, 'model.encoder.kind = "resnet" reads "picture"'),
        ({"model": {"augment": {"kind": "picture"}}}, "model.augment: changes recordings and pictures"),
        ({"data": {"media": "m"}}, "data.media: goes with recordings and pictures"),
        ({"task": "tag", "model": {"kind": "tagger", "encoder": {"kind": "resnet"}},
          "tokenizer": {"source": {"kind": "picture"}}}, "has no frames to tag"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=expected):
            build(settings.merge(base, change))


def test_the_published_forecaster_is_a_run_of_121402_parameters(folder: Path) -> None:
    lines = [" ".join(f"{math.sin(at + step / 3):.4f}" for step in range(8)) for at in range(40)]
    rows = [" ".join(line.split()[:6]) + "\t" + " ".join(line.split()[6:]) + "\n" for line in lines]
    (folder / "published.tsv").write_text("".join(rows))
    encoder = ("model.pooling.kind=last", "model.encoder.kind=recurrent", "model.encoder.direction=forward",
               "model.encoder.embedding=1", "model.encoder.layers=2", "model.encoder.width=100",
               "model.encoder.dropout=0")  # fmt: skip
    told = call("train", folder / "published.tsv", "task=regress", "tokenizer.source.kind=numbers", *encoder,
                "train.steps=10", "--run", folder / "published", "--quiet")  # fmt: skip
    assert told.code == 0, told.err
    shown = call("info", folder / "published").out
    for count in ("121,402", "40,800", "80,400", "202"):
        assert count in shown
    losses = [json.loads(line)["loss"] for line in (folder / "published" / "metrics.jsonl").read_text().splitlines()
              if "loss" in json.loads(line)]  # fmt: skip
    assert losses[-1] < losses[0]


def test_scales_are_those_of_numpy() -> None:
    texts = ["1;100 2;nan", "4;300"]
    scaler = NumberScaler.train(NumbersConfig(), texts)
    assert scaler.shift == pytest.approx([np.mean([1, 2, 4]), 200])
    assert scaler.scale == pytest.approx([np.std([1, 2, 4]), 100])
    assert math.isnan(scaler.encode("2;nan")[1])
    assert scaler.decode(scaler.encode("2;nan 4;300")) == "2;nan 4;300"
    inputs = SeriesInput(3, channels=2)
    series = torch.randn(4, 5, 2)
    torch.testing.assert_close(inputs(series), torch.einsum("bsc,cd->bsd", series, inputs.weight))
    assert SeriesInput(2, channels=2)(series) is not None
    assert SeriesInput(2, channels=2).weight is None
