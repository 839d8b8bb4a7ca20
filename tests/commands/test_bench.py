"""`dragoman bench`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import TrainedFolder, call, words, write_rows


def test_a_run_is_measured_and_stays_as_it_is(inside: TrainedFolder) -> None:
    weights = (Path(inside.run) / "weights.safetensors").read_bytes()
    found = json.loads(call("bench", inside.run, "--pairs", "6", "--rounds", "1", "--json").out)
    names = [one["name"] for one in found["speeds"]]
    assert names[:3] == ["training", "greedy, torch float32", "beam 5, torch float32"]
    assert all(one["tokens"] > 0 and one["sentences"] > 0 for one in found["speeds"])
    assert found["pairs"] == 6
    assert (Path(inside.run) / "weights.safetensors").read_bytes() == weights
    result = call("bench", inside.run, "--pairs", "2", "--rounds", "1").out
    assert "tokens/s" in result
    assert "beam 5" in result


def test_a_fitted_model_has_no_training_steps(tmp_path: Path) -> None:
    write_rows(tmp_path / "pairs.tsv", [(word, word[::-1]) for word in words(30)])
    assert call("train", tmp_path / "pairs.tsv", "preset=memorise", "--run", tmp_path / "run").code == 0
    found = json.loads(call("bench", tmp_path / "run", "--pairs", "3", "--rounds", "1", "--json").out)
    assert found["speeds"][0]["name"] == "greedy, torch float32"


def test_layers_are_measured_against_length(inside: TrainedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.inspect.measure.cost.GROWTH", (("convolution", "d", (8, 16, 32), 16, 2.0),))
    found = json.loads(call("bench", "--lengths", "--max-length", "64", "--json", "--plot", "cost.png").out)
    assert {one["length"] for one in found["costs"]} == {16, 32, 64}
    assert {one["layer"] for one in found["exponents"]} >= {"self-attention", "LSTM", "convolution"}
    assert Path("cost.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "name a RUN or add --lengths: found neither"),
        (("runs/none",), "runs/none"),
        (("--lengths", "--max-length", "16"), "16"),
        (("--lengths", "--source", "a.txt"), "name FILE, or both --source and --target"),
        (("RUN", "--plot", "a.png"), "--plot goes with --lengths"),
        (("RUN", "--max-length", "64"), "--max-length goes with --lengths"),
        (("--lengths", "--rounds", "3"), "--rounds goes with a RUN"),
        (("RUN", "--source", "a.txt"), "name FILE, or both --source and --target"),
        (("RUN", "none.tsv"), "none.tsv: no such file"),
    ],
)
def test_mistakes_are_one_line(inside: TrainedFolder, words: tuple[str, ...], expected: str) -> None:
    result = call("bench", *(inside.run if word == "RUN" else word for word in words))
    assert result.code == 2
    assert expected in result.err
    assert len(result.err.strip().splitlines()) == 1
