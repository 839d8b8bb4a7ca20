"""A table over several tasks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dragoman.auto.glue import published_rows
from dragoman.auto.protocol import table_lines
from dragoman.cli import cli
from dragoman.runs import Run

RESULTS = Path(__file__).parents[2] / "docs" / "reference" / "results.md"
MODEL = """
[tokenizer.source]
kind = "words"
[model]
kind = "classifier"
encoder = { kind = "transformer", layers = 1, width = 8, heads = 1, feedforward = 8 }
[train]
steps = 2
validate_every = 1
optimizer = { warmup = 1 }
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for name, words, metric in (("mood", ("good", "bad"), "accuracy"), ("size", ("large", "small"), "matthews")):
        folder = tmp_path / "tasks" / name
        folder.mkdir(parents=True)
        lines = "".join(f"{word} {number}\t{word == words[0]}\n" for number in range(8) for word in words)
        (folder / "train.tsv").write_text(lines)
        (folder / "dev.tsv").write_text(lines)
        settings = f'task = "classify"\n[data]\ntrain = "train.tsv"\nvalid = "dev.tsv"\n[train]\nmetric = "{metric}"\n'
        (folder / "task.toml").write_text(settings)
    (tmp_path / "tiny.toml").write_text(MODEL)
    return tmp_path


def run(folder: Path, *more: str) -> tuple[int, str]:
    arguments = ["compare", "tiny.toml", "--tasks", "tasks", "--folder", "runs", *more]
    done = CliRunner().invoke(cli, arguments)
    return done.exit_code, done.stdout if done.exit_code == 0 else str(done.exception)


def test_the_table_has_the_kept_scores_of_each_task_and_their_mean(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tasks)
    code, text = run(tasks, "--json", "--output", "table.html")
    assert code == 0, text
    table = json.loads(text.splitlines()[-1])
    assert table["tasks"] == [{"name": "mood", "metric": "accuracy"}, {"name": "size", "metric": "Matthews"}]
    (row,) = table["rows"]
    means = [score["mean"] for score in row["scores"]]
    for name, metric, mean in zip(("mood", "size"), ("accuracy", "matthews"), means, strict=True):
        rows = Run(tasks / "runs" / f"tiny-{name}-1").metrics()
        assert mean == pytest.approx(100 * max(one["valid"][metric] for one in rows if "valid" in one))
    assert row["average"] == pytest.approx(sum(means) / 2)
    assert '"kind":"tasks"' in (tasks / "table.html").read_text(encoding="utf-8")


def test_a_metric_of_which_less_is_better_has_no_average(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tasks)
    path = tasks / "tasks/size/task.toml"
    path.write_text(path.read_text().replace("matthews", "loss"))
    code, message = run(tasks)
    assert code == 1
    assert "size/task.toml: train.metric: found 'loss'" in message
    assert not (tasks / "runs").exists()


def test_a_trained_task_is_kept_and_other_settings_are_refused(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`compare` kept runs of other settings without a word."""
    monkeypatch.chdir(tasks)
    assert run(tasks)[0] == 0
    weights = sorted(tasks.glob("runs/*/weights.safetensors"))
    before = [path.stat().st_mtime_ns for path in weights]
    assert len(weights) == 2
    assert run(tasks)[0] == 0
    assert [path.stat().st_mtime_ns for path in weights] == before
    code, message = run(tasks, "--set", "model.dropout=0.5")
    assert code == 1
    assert "started with other settings (model.dropout was" in message


def test_published_rows_of_glue_stand_beside_its_tasks() -> None:
    rows = published_rows(["cola", "sst2-pretrained"])
    assert not published_rows(["words", "tags"])
    for row in rows:  # the average that was printed is that of the columns; ELMo's is rounded up there
        assert row["average"] == pytest.approx(float(np.mean([*row["scores"].values()])), abs=0.06)
    averages = {row["name"]: row["average"] for row in rows}
    assert averages["BERT base"] == 79.6
    assert averages["BERT large"] == 82.1
    task = {"name": "cola", "metric": "Matthews"}
    score = {"task": "cola", "mean": 20.8, "deviation": None, "seeds": [20.8]}
    own = {"name": "mine", "scores": [score], "average": 20.8}
    lines = table_lines({"tasks": [task], "rows": [own], "published": rows})
    assert lines[2].split() == ["mine", "20.8", "20.8"]
    assert lines[-1].split()[:3] == ["BERT", "large", "86.7"]
    page = RESULTS.read_text(encoding="utf-8")
    for row in rows:
        assert f"| {row['name']} | {' | '.join(f'{score:.1f}' for score in row['scores'].values())} |" in page
