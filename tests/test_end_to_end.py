"""The whole road through the command line: train, predict, evaluate, info, check; and what wrong input gets."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import dragoman
from dragoman.cli import guarded
from dragoman.inference.predictor import Predictor
from tests.conftest import own_copy

Capture = pytest.CaptureFixture[str]
SMALL = [
    "model.encoder.layers=1", "model.decoder.layers=1", "model.encoder.width=32", "model.decoder.width=32",
    "model.encoder.feedforward=64", "model.decoder.feedforward=64", "train.steps=120", "train.validate_every=60",
    "train.save_every=60", "train.batch_tokens=512", "train.optimizer.learning_rate=5e-3", "train.optimizer.warmup=20",
]  # fmt: skip
CHARACTERS = ["tokenizer.source.kind=characters", "tokenizer.target.kind=characters", "model.tie=target"]
RECURRENT = [
    "preset=rnn-attention-small", "model.encoder.embedding=16", "model.encoder.width=32", "model.decoder.embedding=16",
    "model.decoder.width=32", "model.decoder.attention.width=16", *SMALL[-6:], *CHARACTERS,
]  # fmt: skip


def words(count: int) -> list[str]:
    draw = random.Random(1)
    return ["".join(draw.choices("abcdefgh", k=draw.randint(2, 9))) for _ in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return own_copy(tmp_path_factory, "road", train_both)


def train_both(place: Path) -> None:
    lines = [f"{word}\t{word.upper()}\n" for word in words(600)]
    (place / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    (place / "test.tsv").write_text("".join(lines[:50]), encoding="utf-8")
    patch = pytest.MonkeyPatch()
    patch.setenv("DRAGOMAN_CACHE", str(place / "cache"))
    for name, overrides in (
        ("transformer", ["preset=transformer-tiny", *SMALL, *CHARACTERS]),
        ("recurrent", RECURRENT),
    ):
        (place / f"{name}.toml").write_text(f'[data]\ntrain = "{place}/pairs.tsv"\n', encoding="utf-8")
        arguments = ["train", str(place / f"{name}.toml"), *overrides, "--run", str(place / name), "--quiet"]
        assert guarded(arguments) == 0
    patch.undo()


@pytest.fixture(params=["transformer", "recurrent"])
def run(request: pytest.FixtureRequest, folder: Path) -> Predictor:
    return dragoman.load(folder / request.param)


@pytest.mark.slow  # tests/test_invariance.py has the same with smaller models
@pytest.mark.parametrize("beam", [1, 4])
def test_output_does_not_depend_on_the_batch(run: Predictor, beam: int) -> None:
    inputs = words(200)
    expected = [prediction.text for prediction in run.predict(inputs, beam=beam, batch_size=1)]
    assert len(set(expected)) > 20
    for size in (7, 64):
        order = random.Random(size).sample(range(200), 200)
        shuffled = run.predict([inputs[place] for place in order], beam=beam, batch_size=size)
        assert [prediction.text for prediction in shuffled] == [expected[place] for place in order]


def test_predict_keeps_lines(folder: Path, capsys: Capture) -> None:
    (folder / "in.txt").write_bytes(b"abc\r\n\n  \nde\xe2\x80\xa8f\nhgf")
    assert guarded(["predict", str(folder / "transformer"), str(folder / "in.txt"), "--batch-size", "2"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 5
    assert out.split("\n")[1:3] == ["", ""]
    assert guarded(["predict", str(folder / "transformer"), str(folder / "in.txt"), "--json", "--n-best", "2"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"text", "score", "tokens"} <= set(rows[0])
    assert len(rows[0]["alternatives"]) == 1
    assert "".join(rows[0]["tokens"]) == rows[0]["text"]


def test_evaluate_and_score_agree(folder: Path, capsys: Capture) -> None:
    output = folder / "out.txt"
    run = str(folder / "transformer")
    assert guarded(["evaluate", run, str(folder / "test.tsv"), "--json", "--output", str(output)]) == 0
    scores = json.loads(capsys.readouterr().out)
    keys = {"bleu", "chrf", "wer", "cer", "exact_match", "loss", "perplexity", "signatures"}
    assert keys <= set(scores)
    assert 0 <= scores["exact_match"] <= 1
    references = [line.split("\t")[1] for line in (folder / "test.tsv").read_text().splitlines()]
    (folder / "references.txt").write_text("\n".join(references) + "\n")
    assert guarded(["score", str(output), str(folder / "references.txt"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    for key in ("bleu", "chrf", "wer", "cer", "exact_match"):
        assert again[key] == scores[key]
    assert scores["signatures"].items() <= again["signatures"].items()  # score counts more than evaluate


def test_several_references_count(folder: Path, capsys: Capture) -> None:
    (folder / "several.tsv").write_text("abc\tXYZ\tABC\nabd\tABD\n", encoding="utf-8")
    assert guarded(["evaluate", str(folder / "transformer"), str(folder / "several.tsv"), "--json"]) == 0
    several = json.loads(capsys.readouterr().out)
    prediction = dragoman.load(folder / "transformer").predict(["abc", "abd"])
    expected = [prediction[0].text in ("XYZ", "ABC"), prediction[1].text == "ABD"]
    assert several["exact_match"] == sum(expected) / 2


def test_info_shows_layers_data_and_curve(folder: Path, capsys: Capture) -> None:
    assert guarded(["info", str(folder / "transformer"), "--json", "--plot", str(folder / "curve.png")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(layer["parameters"] for layer in found["layers"] if "." not in layer["name"]) == found["parameters"]
    assert found["steps"] == [120, 120]
    assert [row["step"] for row in found["valid"]] == [60, 120]
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert guarded(["info", str(folder / "recurrent")]) == 0
    assert "valid loss" in capsys.readouterr().out


def test_resuming_a_finished_run_changes_nothing(folder: Path) -> None:
    weights = folder / "transformer" / "weights.safetensors"
    before = weights.read_bytes()
    assert guarded(["train", str(folder / "transformer"), "--quiet"]) == 0
    assert weights.read_bytes() == before


def test_check_names_every_fault(folder: Path, capsys: Capture) -> None:
    bad = folder / "bad.tsv"
    bad.write_bytes(b"a\tb\nlonely\nc\t\n\xff\td\ne\x07\tf\ng\th\ti\n" + b"j\tk\n" * 30)
    arguments = ["check", str(folder / "transformer.toml"), f"data.train={bad}", *SMALL, *CHARACTERS]
    assert guarded([*arguments, "preset=transformer-tiny"]) == 2
    found = capsys.readouterr()
    for line in (2, 3, 4, 5, 6):
        assert f"bad.tsv:{line}: " in found.out
    assert "5 lines cannot be used" in found.err
    assert guarded([*arguments, "preset=transformer-tiny", "data.faults=skip"]) == 0
    assert "cycle: trained" in capsys.readouterr().out


WRONG = [
    (["train", "nothing.tsv"], "no such file"),
    (["train", "pairs.tvs"], "Did you mean 'pairs.tsv'?"),
    (["trian", "pairs.tsv"], "Did you mean 'train'?"),
    (["train", "transformer.toml", "train.stesp=3"], "train.stesp: no such setting. Did you mean 'train.steps'?"),
    (["train", "transformer.toml", "train.steps=many"], "expected a whole number"),
    (["train", "transformer.toml", "train.steps=0"], "expected at least 1"),
    (["train", "transformer.toml", "train.steps"], "place=value"),
    (["train", "transformer.toml", "preset=transformer-tinny"], "Did you mean 'transformer-tiny'?"),
    (["train", "transformer.toml", "model.encoder.kind=transfomer"], "Did you mean 'transformer'?"),
    (["train", "transformer.toml", "model.encoder.heads=3", "model.encoder.width=32"], "divisor of width"),
    (["train", "transformer.toml", "train.device=cuda:77", *SMALL], "device"),
    (["train", "transformer.toml", "train.device=banana", *SMALL], "banana"),
    (["train", "transformer.toml", "train.precision=bfloat16", "train.device=cpu", *SMALL], "bfloat16"),
    (["train", "transformer.toml", "model.tie=all", "tokenizer.target.kind=words"], "one vocabulary"),
    (["train", "transformer", "model.encoder.layers=3"], "model.encoder.layers"),
    (["train", "--source", "pairs.tsv"], "--target"),
    (["train"], "nothing to train on"),
    (["predict", "transfomer"], "Did you mean 'transformer'?"),
    (["predict", "pairs.tsv"], "expected a run folder"),
    (["predict", "transformer", "nothing.txt"], "no such file"),
    (["predict", "transformer", "--n-best", "2"], "--json"),
    (["predict", "transformer", "--beam", "0"], "--beam"),
    (["evaluate", "transformer"], "FILE"),
    (["evaluate", "transformer", "lonely.tsv"], "lonely.tsv:1"),
    (["score", "pairs.tsv", "test.tsv"], "lines"),
    (["info", "cache"], "not a run folder"),
    (["new", "translat"], "Did you mean 'translate'?"),
    (["presets", "transformer-bigg"], "Did you mean 'transformer-big'?"),
    (["attention", "transformer", "abc", "--output", "a.txt"], ".png"),
]


@pytest.mark.parametrize(("arguments", "expected"), WRONG, ids=lambda value: " ".join(value)[:50])
def test_wrong_input_is_one_line_and_code_2(
    arguments: list[str], expected: str, folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DRAGOMAN_CACHE", str(folder / "cache"))
    (folder / "lonely.tsv").write_text("one column\n", encoding="utf-8")
    before = set(folder.rglob("*"))
    assert guarded(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert expected in error
    assert len(error.splitlines()) == 1
    assert {path for path in set(folder.rglob("*")) - before if "cache" not in path.parts} == set()


@pytest.mark.parametrize("damage", ["config.toml", "weights.safetensors", "data.json", "tokenizer/source.json"])
def test_a_damaged_run_says_which_file(folder: Path, damage: str, capsys: Capture, tmp_path: Path) -> None:
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(folder / "transformer", broken)
    path = broken / damage
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert guarded(["predict", str(broken), str(folder / "test.tsv")]) == 2
    error = capsys.readouterr().err.strip()
    assert Path(damage).name in error
    assert len(error.splitlines()) == 1


def test_python_interface(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(folder / "cache"))
    table = {"preset": "transformer-tiny", "data": {"train": str(folder / "pairs.tsv")}}
    run = dragoman.train(table, tmp_path / "run", *SMALL, *CHARACTERS, "train.steps=3", quiet=True)
    assert [type(prediction.text) for prediction in run.predict(["abc", ""])] == [str, str]
    assert run.predict([""])[0].text == ""
    with pytest.raises(TypeError, match="list of texts"):
        run.predict("abc")


def test_zero_configuration_chooses_and_says_why(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_CACHE", str(folder / "cache"))
    assert guarded(["train", str(folder / "pairs.tsv"), "train.steps=2", *SMALL[:6]]) == 0
    said = capsys.readouterr().err
    assert "characters, because" in said
    assert "preset: transformer-tiny" in said
    assert (tmp_path / "runs" / "pairs" / "weights.safetensors").exists()
