"""The same road from Python: train, load, predict, stream, evaluate."""

from __future__ import annotations

import contextlib
import itertools
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.base.errors import ConfigError, DataError, DragomanError, RunError
from dragoman.data.examples import Example
from dragoman.inference.inputs import WINDOW
from dragoman.inference.predictor import Predictor
from dragoman.runs.tasks import config
from tests.conftest import TrainedFolder, call, words, write_rows


@pytest.fixture
def run(inside: TrainedFolder) -> Predictor:
    return dragoman.load(inside.run)


@pytest.fixture
def table(cached: Path, tmp_path: Path) -> dict[str, Any]:
    """A tiny configuration as a dict."""
    write_rows(tmp_path / "pairs.tsv", [(word, word.upper()) for word in words(40)])
    side = {"kind": "recurrent", "layers": 1, "embedding": 8, "width": 8}
    return {
        "data": {"train": str(tmp_path / "pairs.tsv")},
        "tokenizer": {"source": {"kind": "characters"}},
        "model": {"encoder": side, "decoder": {**side, "attention": {"kind": "additive", "width": 8}}},
        "train": {"steps": 3, "device": "cpu"},
    }


# ---------------------------------------------------------------------- train


def test_train_takes_a_table_a_file_or_a_config(table: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(dragoman_toml(table), encoding="utf-8")
    ways: list[Any] = [table, path, str(path), config.build(table)]
    found = []
    for number, way in enumerate(ways):
        predictor = dragoman.train(way, tmp_path / f"run{number}", quiet=True)
        assert isinstance(predictor, Predictor)
        found.append([part.tolist() for part in predictor.model.parameters()])
    assert found[0] == found[1] == found[2] == found[3]  # one road, the same bits
    assert table["train"] == {"steps": 3, "device": "cpu"}  # what is given is not written to


def test_a_setting_in_place_of_the_folder_is_explained() -> None:
    with pytest.raises(TypeError, match=r"settings come after the folder: train\(DATA, \"runs/my\", 'train.steps=5'\)"):
        dragoman.train("pairs.tsv", "train.steps=5")


def dragoman_toml(table: dict[str, Any]) -> str:
    from dragoman.base import config as settings

    return settings.dump(config.build(table))


def test_train_takes_a_file_of_pairs_alone(
    table: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = dragoman.train("pairs.tsv", None, "preset=luong-2015-small", "train.steps=1", quiet=True)
    assert (tmp_path / "runs" / "pairs" / "weights.safetensors").exists()
    assert run.config.model.decoder.kind == "luong"


def test_overrides_come_last_and_a_file_names_its_run(
    table: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("named.toml").write_text(dragoman_toml(table), encoding="utf-8")
    predictor = dragoman.train("named.toml", None, "train.steps=2", "search.beam=3", quiet=True)
    assert predictor.config.train.steps == 2
    assert predictor.config.search.beam == 3
    assert tomllib.loads(Path("runs/named/config.toml").read_text(encoding="utf-8"))["train"]["steps"] == 2


def test_training_speaks_unless_told_not_to(
    table: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dragoman.train(table, tmp_path / "warned", quiet=True)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("warning: train.optimizer.warmup = 1,000 exceeds train.steps = 3")
    table["train"]["optimizer"] = {"warmup": 1}
    dragoman.train(table, tmp_path / "quiet", quiet=True)
    assert capsys.readouterr() == ("", "")
    dragoman.train(table, tmp_path / "loud")
    out, err = capsys.readouterr()
    assert out == ""
    assert "step 3/3" in err


def test_training_goes_on_where_it_stopped(table: dict[str, Any], tmp_path: Path) -> None:
    dragoman.train(table, tmp_path / "run", quiet=True)
    longer = config.build(table)
    longer = replace(longer, train=replace(longer.train, steps=5))
    dragoman.train(longer, tmp_path / "run", quiet=True)
    straight = dragoman.train(longer, tmp_path / "straight", quiet=True)
    last = [tmp_path / name / "checkpoints" / "00000005" / "weights.safetensors" for name in ("run", "straight")]
    assert last[0].read_bytes() == last[1].read_bytes()
    assert straight.run.metrics()[-1]["step"] == 5


Wrong = Callable[[dict[str, Any], Path], Any]
WRONG: dict[str, tuple[Wrong, type[Exception], str]] = {
    "a table without a run": (lambda table, _: dragoman.train(table), TypeError, "run=FOLDER"),
    "overrides of a Config": (
        lambda table, tmp: dragoman.train(config.build(table), tmp / "r", "train.steps=2"),
        TypeError,
        "dataclasses.replace",
    ),
    "an unknown setting": (
        lambda table, tmp: dragoman.train({**table, "trian": {}}, tmp / "r"),
        ConfigError,
        "trian: no such setting. Did you mean 'train'?",
    ),
    "an empty table": (lambda _, tmp: dragoman.train({}, tmp / "r"), ConfigError, "data.train: missing"),
    "a missing file": (lambda _, tmp: dragoman.train(tmp / "my.toml"), ConfigError, "my.toml: no such file"),
    "a folder for a run": (
        lambda table, tmp: dragoman.train(table, tmp, quiet=True),
        RunError,
        "not a run folder (it has no config.toml); name another with run=…",
    ),
    "no such run": (lambda _, tmp: dragoman.load(tmp / "r"), RunError, "no such run folder"),
    "an untrained folder": (lambda _, tmp: dragoman.load(tmp), RunError, "not a run folder"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_uses_of_train_and_load_are_told(table: dict[str, Any], tmp_path: Path, wrong: str) -> None:
    use, kind, expected = WRONG[wrong]
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(kind) as caught:
        use(table, tmp_path)
    assert expected in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert issubclass(kind, TypeError) or issubclass(kind, DragomanError)


# ---------------------------------------------------------------------- predict and stream


def test_predictions_are_those_of_the_command_line(run: Predictor, inside: TrainedFolder) -> None:
    texts = ["abc", "", "fade", "  ", "jig"]
    found = run.predict(texts)
    result = call("predict", inside.run, stdin="".join(f"{text}\n" for text in texts).encode())
    assert [str(one) for one in found] == [one.text for one in found] == result.lines
    rows = call("predict", inside.run, "--json", stdin="".join(f"{text}\n" for text in texts).encode())
    assert [one.as_json() for one in found] == rows.lines
    assert found[1] == found[3]
    assert found[1].tokens == ()
    assert run.predict([]) == []


def test_most_gives_alternatives(run: Predictor) -> None:
    (found,) = run.predict(["fade"], beam=3, n_best=3)
    assert len({found.text, *(one.text for one in found.alternatives)}) == 3
    assert found.score >= found.alternatives[0].score >= found.alternatives[1].score
    assert run.predict(["fade"], beam=3)[0].alternatives == ()


def test_stream_keeps_the_order_and_reads_no_further_than_it_must(run: Predictor) -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        for number in itertools.count():
            taken += 1
            yield "abcdefghij"[: 1 + number * 7 % 10]

    stream = run.stream(endless(), beam=1, window=5, batch_size=2)
    assert taken == 0  # nothing is read before something is asked for
    first = [next(stream).text for _ in range(12)]
    assert taken == 15
    assert first == [one.text for one in run.predict(["abcdefghij"[: 1 + n * 7 % 10] for n in range(12)], beam=1)]
    assert len(set(first)) > 5

    taken = 0
    next(run.stream(endless(), beam=1, window=1))
    assert taken == 1  # a person who waits is answered at once
    taken = 0
    next(run.stream(itertools.islice(endless(), WINDOW + 100), beam=1, batch_size=1024))
    assert taken == WINDOW


PREDICT: dict[str, tuple[Callable[[Predictor], Any], type[Exception], str]] = {
    "one text": (lambda run: run.predict("abc"), TypeError, "predict([text])"),
    "one text to stream": (lambda run: run.stream("abc"), TypeError, "[text]"),
    "no text": (lambda run: run.predict(["abc", 3]), TypeError, "found 3 among the texts, expected strings"),
    "bytes": (lambda run: run.predict([b"abc"]), TypeError, "found b'abc' among the texts"),
    "beam of nothing": (lambda run: run.predict(["abc"], beam=0), ConfigError, "beam: found 0, expected at least 1"),
    "half a beam": (lambda run: run.predict(["abc"], beam=1.5), ConfigError, "beam: found 1.5"),
    "no penalty": (lambda run: run.predict(["a"], length_penalty=-1.0), ConfigError, "length_penalty: found -1.0"),
    "no batch": (lambda run: run.predict(["abc"], batch_size=0), ConfigError, "batch_size: found 0, expected at"),
    "no outputs": (lambda run: run.predict(["abc"], n_best=0), ConfigError, "n_best: found 0"),
    "too many outputs": (lambda run: run.predict(["abc"], n_best=1001), ConfigError, "n_best: found 1001, expected"),
    "too many inputs": (lambda run: run.predict(["abc"], batch_size=10**6), ConfigError, "batch_size: found 1000000"),
    # wrong from the start, not when the first prediction is asked for
    "a lazy mistake": (lambda run: run.stream(["abc"], beam=0), ConfigError, "beam: found 0"),
    "nothing to evaluate": (lambda run: run.evaluate([]), DataError, "nothing to evaluate"),
    "texts to evaluate": (lambda run: run.evaluate(["abc"]), TypeError, "pair 1: found 'abc', expected (source, "),
    "no reference": (lambda run: run.evaluate([("a", "A"), ("b", [])]), TypeError, "pair 2: found the references []"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", PREDICT)
def test_wrong_uses_of_a_run_are_told(run: Predictor, wrong: str) -> None:
    use, kind, expected = PREDICT[wrong]
    with pytest.raises(kind) as caught:
        use(run)
    assert expected in str(caught.value)


def test_device_is_checked(inside: TrainedFolder) -> None:
    assert dragoman.load(inside.run, device="cpu").device.type == "cpu"
    with pytest.raises(ConfigError, match="found 'banana', expected auto, cpu, cuda, cuda:N or mps"):
        dragoman.load(inside.run, device="banana")


# ---------------------------------------------------------------------- evaluate


def test_evaluate_takes_pairs_examples_and_files(run: Predictor, tmp_path: Path) -> None:
    sources = words(20, seed=3)
    pairs = [(source, source.upper()) for source in sources]
    scores, outputs = run.evaluate(pairs)
    right = sum(output.text == target for output, (_, target) in zip(outputs, pairs, strict=True))
    assert 0 < right < 20
    assert scores["exact_match"] == right / 20
    assert [output.text for output in outputs] == [one.text for one in run.predict(sources)]
    examples = [Example(source, (target,), "somewhere", 1) for source, target in pairs]
    assert run.evaluate(examples) == (scores, outputs)
    # A file is read as the command reads it.
    file = write_rows(tmp_path / "pairs.tsv", list(pairs))
    found = run.evaluate(file)
    assert found == (scores, outputs)
    assert found["exact_match"] == right / 20
    assert re.fullmatch(r"<Evaluation of 20 examples: .*exact_match .* %.*>", repr(found))
    assert re.fullmatch(r"<Predictor .*: translate, [\d,]+ parameters on cpu>", repr(run))
    assert repr(outputs[0]) == f"Prediction({outputs[0].text!r}, score={outputs[0].score:.4f})"
    # Another reference, one that is the output itself, makes everything right but the loss.
    several = [(source, [target, output.text or "?"]) for (source, target), output in zip(pairs, outputs, strict=True)]
    better, _ = run.evaluate(several)
    assert better["exact_match"] == 1
    assert better["loss"] == scores["loss"]


def test_loss_is_that_of_the_outputs_scores(run: Predictor) -> None:
    """The mean negative log-probability of an output is the same by search and by teacher forcing."""
    outputs = run.predict(words(10, seed=4), beam=1)
    pairs = [(source, output.text) for source, output in zip(words(10, seed=4), outputs, strict=True)]
    pairs = [pair for pair in pairs if pair[1]]
    parts = [score for output in outputs if output.text for score in output.token_scores]
    scores, _ = run.evaluate(pairs, beam=1)
    assert scores["loss"] == pytest.approx(-sum(parts) / len(parts), rel=1e-5)
    assert scores["token_accuracy"] == 1


def test_an_input_too_long_for_the_model_is_named(table: dict[str, Any], tmp_path: Path) -> None:
    """And read in parts, within the positions that the model has."""
    table["model"]["encoder"] = {"kind": "dense", "max_positions": 9, "embedding": 8, "hidden": 8, "width": 8}
    table["data"]["max_length"] = 8  # and <eos>: more is refused
    run = dragoman.train(table, tmp_path / "run", quiet=True)
    told = "input 2: found 12 tokens, expected at most data.max_length = 8; read in 2 parts"
    with pytest.warns(UserWarning, match=f"^{re.escape(told)}$"):
        short, long = run.predict(["abc", "abcabcabcabc"], beam=1)
    first, second = run.predict(["abcabc", "abcabc"], beam=1)
    assert short.text == run.predict(["abc"], beam=1)[0].text
    assert long.text == first.text + second.text
    assert run.predict(["abcabcab"])  # the longest that needs no parts: a warning would be an error here


def test_a_file_names_its_run_without_its_endings(table: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "my.v2.toml"
    path.write_text(dragoman_toml(table), encoding="utf-8")
    with contextlib.chdir(tmp_path):
        dragoman.train(path, quiet=True)
    assert (tmp_path / "runs" / "my.v2" / "config.toml").exists()
