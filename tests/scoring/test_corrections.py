"""F0.5 of corrections. ERRANT with `-lev -merge all-merge` finds the same edits in all 5,392 references of ua_gec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dragoman
from dragoman.base.errors import DataError
from dragoman.scoring.corrections import edits
from tests.conftest import TrainedFolder, call, quiet_machine

SOURCE = "He go to school , yesterday ."


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (SOURCE, set()),
        ("He went to school yesterday.", {(1, 2, ("went",)), (4, 5, ())}),
        ("He go to the school, yesterday.", {(3, 3, ("the",))}),
        ("Yesterday he went to school.", {(0, 2, ("Yesterday", "he", "went")), (4, 6, ())}),
        ("", {(0, 7, ())}),
    ],
)
def test_edits(target: str, expected: set[object]) -> None:
    assert edits(SOURCE, target) == expected


def test_copying_earns_nothing_and_a_wrong_correction_costs_more_than_a_missing_one() -> None:
    sources, references = ["a b c d", "e f g h"], ["a x c y", "e f z h"]

    def score(*outputs: str) -> float:
        return dragoman.score(list(outputs), references, "f0.5", sources=sources)["f0.5"]

    assert score(*sources) == 0.0
    assert score(*references) == 1.0
    one_missing, one_wrong = score("a x c d", "e f z h"), score("q a x c y", "e f z h")
    assert one_missing == pytest.approx(1.25 * 2 / (1.25 * 2 + 0.25 * 1))
    assert one_wrong == pytest.approx(1.25 * 3 / (1.25 * 3 + 1))
    assert score("a x c q", "e f z h") == pytest.approx(1.25 * 2 / (1.25 * 2 + 1 + 0.25))


def test_the_better_reference_counts_and_nothing_to_correct_is_right() -> None:
    sources, references = ["a b c", "d e"], [["a x c", "y b c"], ["d e", "d f"]]
    scores = dragoman.score(["y b c", "d e"], references, "f0.5", sources=sources, draws=20)
    assert scores["f0.5"] == 1.0
    assert "edits:levenshtein-merged" in scores.signatures["f0.5"]


def test_it_needs_the_sources() -> None:
    with pytest.raises(DataError, match=r"'f0\.5', which compares outputs with their sources"):
        dragoman.score(["a"], ["b"], "f0.5")


def test_commands(trained_folder: TrainedFolder, tmp_path: Path) -> None:
    texts = {"source": "abc d\ne f\n", "output": "abc x\ne f\n", "other": "abc d\ne f\n", "truth": "abc x\ne g\n"}
    files = {name: tmp_path / f"{name}.txt" for name in texts}
    for name, path in files.items():
        path.write_text(texts[name], encoding="utf-8")
    named = ("--metric", "f0.5", "--json")
    refused = call("score", files["output"], files["truth"], *named)
    assert refused.code == 2
    assert "--metric f0.5 needs --source" in refused.err
    scored = call("score", files["output"], files["truth"], "--source", files["source"], *named)
    assert json.loads(scored.out)["f0.5"] == pytest.approx(1.25 / 1.5)
    systems = (files["truth"], files["other"], files["output"])
    compared = call("compare", *systems, "--source", files["source"], "--draws", "20", *named)
    assert [row["score"] for row in json.loads(compared.out)] == [0.0, pytest.approx(1.25 / 1.5)]
    with quiet_machine(trained_folder.folder / "cache"):
        evaluated = call("evaluate", trained_folder.run, trained_folder.folder / "pairs.tsv", *named)
    assert evaluated.code == 0, evaluated.err
    assert 0 < json.loads(evaluated.out)["f0.5"] <= 1
